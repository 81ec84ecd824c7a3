//! Tasks come, move between netns, are killed, and give their netns up.
//!
//! What is told, and what the user half may rely on:
//! - A process (thread group leader) outside the host's netns is told at fork, exec, exit and
//!   release. A task that moves into or out of another netns is told when it moves.
//! - A thread is covered by its leader and not told by itself, unless it is somewhere else or
//!   outlives its leader: then it is told when that happens, and at its own exit and release.
//! - An exit is not a release: `sched_process_exit` fires while the task still has its netns
//!   (`do_exit`, kernel/exit.c). `exit_task_namespaces` is the release. Where it cannot be hooked,
//!   `sched_process_free` tells it late: for a zombie only when it has been reaped.

use aya_ebpf::helpers::bpf_get_current_comm;
use aya_ebpf::helpers::generated::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_loop};
use aya_ebpf::macros::{btf_tracepoint, fentry, kprobe, map, raw_tracepoint};
use aya_ebpf::maps::LruHashMap;
use aya_ebpf::programs::{BtfTracePointContext, FEntryContext, ProbeContext, RawTracePointContext};
use ipwatch_common::{Netns, OUTSIDE, SignalRecord, TaskRecord, kind};

use crate::emit::{emit, header};
use crate::offsets::{
    NSPROXY_NET, OWN_PID_NS, SIGNAL_LIVE, SIGNAL_SHARED_PENDING, SIGNAL_THREAD_HEAD, TASK_COMM,
    TASK_EXIT_STATE, TASK_FLAGS, TASK_LEADER, TASK_PARENT, TASK_PENDING, TASK_SIGNAL, TASK_START,
    TASK_STATE, TASK_THREAD_NODE,
};
use crate::read::{self, Addr, at, field, is_host, net_of_task};

/// `include/linux/sched.h`: the task is in `do_exit`.
pub const PF_EXITING: u32 = 0x4;
const SIGKILL: i32 = 9;
/// `include/trace/events/signal.h`.
const TRACE_SIGNAL_DELIVERED: i32 = 0;
/// `include/linux/sched/signal.h`: the kernel itself sends the signal.
const SEND_SIG_PRIV: Addr = 1;
/// Threads told when their leader exits. More are found by the next task snapshot.
const SURVIVORS: u32 = 4096;

/// The names of a task that was told by itself and whose end must be told as well.
#[repr(C)]
#[derive(Clone, Copy)]
struct Told {
    start: u64,
    pid: u32,
    tid: u32,
}

/// By the address of its `task_struct`, which is not used again before `sched_process_free`: the
/// ids are no key, because `de_thread` (fs/exec.c) swaps them when a thread runs a new program.
#[map]
static TOLD: LruHashMap<u64, Told> = LruHashMap::with_max_entries(4096, 0);

#[inline(always)]
fn remember(task: Addr, record: &TaskRecord) {
    let told = Told { start: record.start, pid: record.pid, tid: record.tid };
    // A full LRU map throws out an old entry; an entry that was lost costs a late release, which
    // the next task snapshot makes good.
    let _ = TOLD.insert(task, told, 0);
}

#[inline(always)]
fn recall(task: Addr) -> Option<Told> {
    // SAFETY: copied at once; an entry that is replaced meanwhile is one that is lost.
    unsafe { TOLD.get(task) }.copied()
}

/// Everything about a task, with `netns` as the netns it is told in.
#[inline(always)]
pub fn record(kind: u16, task: Addr, netns: Netns) -> TaskRecord {
    let parent: Addr = field(task, &TASK_PARENT);
    let signal: Addr = field(task, &TASK_SIGNAL);
    let pending: u64 = field(task, &TASK_PENDING);
    let shared: u64 = field(signal, &SIGNAL_SHARED_PENDING);
    TaskRecord {
        header: header::<TaskRecord>(kind),
        netns,
        pid: read::pid(task),
        tid: read::tid(task),
        start: field(task, &TASK_START),
        parent: read::pid(parent),
        flags: field(task, &TASK_FLAGS),
        state: field(task, &TASK_STATE),
        exit_state: field(task, &TASK_EXIT_STATE),
        pending: pending | shared,
        idle: 0,
        comm: field(task, &TASK_COMM),
    }
}

/// Whether `task`, which is in `net`, is covered by its leader: a thread whose leader holds the same
/// netns and is not on its way out.
#[inline(always)]
pub fn covered(task: Addr, net: Addr) -> bool {
    let leader: Addr = field(task, &TASK_LEADER);
    leader != task
        && field::<u32>(leader, &TASK_FLAGS) & PF_EXITING == 0
        && net_of_task(leader) == net
}

/// `sched_process_fork(parent, child)`.
#[inline(always)]
fn fork(child: Addr) {
    let net = net_of_task(child);
    if net == 0 || is_host(net) || covered(child, net) {
        return;
    }
    emit(kind::TASK_FORK, &record(kind::TASK_FORK, child, read::netns(net)));
}

/// `sched_process_exec(task, old_pid, bprm)`.
#[inline(always)]
fn exec(task: Addr, old_tid: u32) {
    let net = net_of_task(task);
    if net == 0 || is_host(net) {
        return;
    }
    let record = record(kind::TASK_EXEC, task, read::netns(net));
    if old_tid != record.tid
        && let Some(told) = recall(task)
    {
        // It was told as a thread, and has taken its leader's ids over (de_thread).
        let _ = TOLD.remove(task);
        let old = TaskRecord { start: told.start, tid: told.tid, ..record };
        emit(kind::TASK_FREE, &TaskRecord { header: header::<TaskRecord>(kind::TASK_FREE), ..old });
    }
    emit(kind::TASK_EXEC, &record);
}

/// `sched_process_exit(task)`.
#[inline(always)]
fn exit(task: Addr) {
    let net = net_of_task(task);
    if net == 0 || is_host(net) || (covered(task, net) && recall(task).is_none()) {
        return;
    }
    let record = record(kind::TASK_EXIT, task, read::netns(net));
    remember(task, &record);
    emit(kind::TASK_EXIT, &record);
    let signal: Addr = field(task, &TASK_SIGNAL);
    // `live` no longer counts this task: do_exit() takes it off before the tracepoint.
    if record.pid == record.tid && field::<u32>(signal, &SIGNAL_LIVE) > 0 {
        survivors(task, signal);
    }
}

#[repr(C)]
struct Threads {
    leader: Addr,
    head: Addr,
    node: Addr,
}

/// Tells every thread that goes on without its leader.
#[inline(always)]
fn survivors(leader: Addr, signal: Addr) {
    if SIGNAL_THREAD_HEAD.load() == ipwatch_common::MISSING {
        return;
    }
    let head = signal + u64::from(SIGNAL_THREAD_HEAD.load());
    let mut threads = Threads { leader, head, node: at(head) };
    let callback = survivor as unsafe extern "C" fn(u64, *mut Threads) -> i64;
    // SAFETY: the kernel calls `survivor` with the address of `threads` before this returns.
    unsafe {
        bpf_loop(SURVIVORS, callback as *mut _, (&raw mut threads).cast(), 0);
    }
}

/// One step along `signal->thread_head`; 1 ends the loop.
///
/// # Safety
/// `threads` is valid and nobody else uses it.
#[inline(never)]
unsafe extern "C" fn survivor(_: u64, threads: *mut Threads) -> i64 {
    // SAFETY: as the caller promises.
    let threads = unsafe { &mut *threads };
    if threads.node == 0 || threads.node == threads.head {
        return 1;
    }
    let task = threads.node.wrapping_sub(u64::from(TASK_THREAD_NODE.load()));
    threads.node = at(threads.node);
    let net = net_of_task(task);
    if task != threads.leader && net != 0 && !is_host(net) {
        let record = record(kind::TASK_SURVIVOR, task, read::netns(net));
        remember(task, &record);
        emit(kind::TASK_SURVIVOR, &record);
    }
    0
}

/// `exit_task_namespaces(task)`: also called by a fork that fails (`copy_process`), for a child that
/// still carries its parent's ids.
#[inline(always)]
fn release(task: Addr) {
    if field::<u32>(task, &TASK_FLAGS) & PF_EXITING == 0 {
        return;
    }
    let net = net_of_task(task);
    if net == 0 || is_host(net) || (covered(task, net) && recall(task).is_none()) {
        return;
    }
    emit(kind::TASK_RELEASE, &record(kind::TASK_RELEASE, task, read::netns(net)));
    let _ = TOLD.remove(task);
}

/// `sched_process_free(task)`: the last word on a task whose exit was told.
#[inline(always)]
fn free(task: Addr) {
    let Some(told) = recall(task) else { return };
    let _ = TOLD.remove(task);
    let none = Netns { cookie: 0, inode: 0, refs: ipwatch_common::MISSING };
    let record = record(kind::TASK_FREE, task, none);
    // Another id than it was told with: another thread has run a new program and taken it over
    // (de_thread), so that the old name lives on.
    if told.tid == record.tid {
        emit(kind::TASK_FREE, &TaskRecord { pid: told.pid, start: told.start, ..record });
    }
}

/// `switch_task_namespaces(task, new)`: setns and unshare; without `new`, an exit.
#[inline(always)]
fn switch(task: Addr, new: Addr) {
    if new == 0 {
        return;
    }
    let old_net = net_of_task(task);
    let new_net: Addr = field(new, &NSPROXY_NET);
    if new_net == 0 || new_net == old_net {
        return;
    }
    let record = record(kind::TASK_JOIN, task, read::netns(new_net));
    if record.pid != record.tid {
        remember(task, &record);
    }
    emit(kind::TASK_JOIN, &record);
}

/// Who sends it.
#[inline(always)]
fn current() -> u32 {
    if OWN_PID_NS.load() == 0 {
        // SAFETY: takes nothing.
        return (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32;
    }
    // SAFETY: takes nothing.
    match read::pid(unsafe { bpf_get_current_task() }) {
        0 => OUTSIDE,
        pid => pid,
    }
}

/// `signal_generate(sig, info, task, group, result)`. A target without a netns may be the dead
/// leader of threads that live on, so it is told.
#[inline(always)]
fn signal(number: i32, info: Addr, task: Addr, group: u32, result: i32) {
    if number != SIGKILL || result != TRACE_SIGNAL_DELIVERED {
        return;
    }
    let net = net_of_task(task);
    if net != 0 && is_host(net) {
        return;
    }
    let by_kernel = info == SEND_SIG_PRIV;
    let record = SignalRecord {
        header: header::<SignalRecord>(kind::SIGNAL),
        pid: read::pid(task),
        tid: read::tid(task),
        signal: number as u32,
        group,
        sender: if by_kernel { 0 } else { current() },
        reserved: 0,
        comm: bpf_get_current_comm().unwrap_or_default(),
    };
    emit(kind::SIGNAL, &record);
}

macro_rules! tracepoint {
    ($tp:ident, $raw:ident, |$ctx:ident| $call:expr) => {
        #[btf_tracepoint]
        pub fn $tp($ctx: BtfTracePointContext) -> i32 {
            $call;
            0
        }

        #[raw_tracepoint]
        pub fn $raw($ctx: RawTracePointContext) -> i32 {
            $call;
            0
        }
    };
}

tracepoint!(tp_fork, rt_fork, |ctx| fork(ctx.arg(1)));
tracepoint!(tp_exec, rt_exec, |ctx| exec(ctx.arg(0), ctx.arg(1)));
tracepoint!(tp_exit, rt_exit, |ctx| exit(ctx.arg(0)));
tracepoint!(tp_free, rt_free, |ctx| free(ctx.arg(0)));
tracepoint!(tp_signal, rt_signal, |ctx| signal(
    ctx.arg(0),
    ctx.arg(1),
    ctx.arg(2),
    ctx.arg(3),
    ctx.arg(4)
));

#[fentry]
pub fn fe_release(ctx: FEntryContext) -> u32 {
    release(ctx.arg(0));
    0
}

#[kprobe]
pub fn kp_release(ctx: ProbeContext) -> u32 {
    if let Some(task) = ctx.arg(0) {
        release(task);
    }
    0
}

#[fentry]
pub fn fe_switch(ctx: FEntryContext) -> u32 {
    switch(ctx.arg(0), ctx.arg(1));
    0
}

#[kprobe]
pub fn kp_switch(ctx: ProbeContext) -> u32 {
    if let (Some(task), Some(new)) = (ctx.arg(0), ctx.arg(1)) {
        switch(task, new);
    }
    0
}
