//! Tasks come, move between netns, are killed, and give their netns up.
//!
//! What is told, and what the user half may rely on:
//! - A process (thread group leader) outside the host's netns is told when it is a moment old: until then it waits in a
//!   table, and one that ends meanwhile is never told. One that begins in another netns than its parent's, or moves
//!   into or out of another netns, is told at once.
//! - A thread is covered by its leader and not told by itself, unless it is somewhere else or
//!   its leader has exited.
//! - An exit is not a release: `sched_process_exit` fires while the task still has its netns
//!   (`do_exit`, kernel/exit.c). Whatever is on its way out is in a table (`leaving`), and what stays there is looked
//!   at by the user half. `exit_task_namespaces` is the release. Where it cannot be hooked,
//!   `sched_process_free` tells it late: for a zombie only when it has been reaped.
//! - A release is told of what was told.

use aya_ebpf::macros::{btf_tracepoint, fentry, kprobe, map, raw_tracepoint};
use aya_ebpf::maps::{HashMap, LruHashMap};
use aya_ebpf::programs::{BtfTracePointContext, FEntryContext, ProbeContext, RawTracePointContext};
use ipwatch_common::{FreshKey, MOST_FRESH, Netns, TaskRecord, kind};

use crate::emit::{When, emit_task, header, rouse, seen};
use crate::leaving;
use crate::limit::{Class, Owner, admits};
use crate::offsets::{
    NSPROXY_NET, SIGNAL_SHARED_PENDING, TASK_COMM, TASK_EXIT_STATE, TASK_FLAGS, TASK_LEADER,
    TASK_PARENT, TASK_PENDING, TASK_PID, TASK_SIGNAL, TASK_START, TASK_STATE,
};
use crate::read::{self, Addr, field, is_host, net_of_task};

/// `include/linux/sched.h`: the task is in `do_exit`.
pub const PF_EXITING: u32 = 0x4;
const SIGKILL: u32 = 9;

/// Tasks that were not told yet. The user half takes them out and tells them when they are a moment old.
#[map]
static FRESH: HashMap<FreshKey, TaskRecord> = HashMap::with_max_entries(MOST_FRESH, 0);

/// The names of a task that was told by itself and whose end must be told as well.
#[repr(C)]
#[derive(Clone, Copy)]
struct Told {
    start: u64,
    pid: u32,
    tid: u32,
    /// `task->pid`. A task that is freed has no other number left (`__unhash_process`, kernel/exit.c).
    kernel: u32,
    reserved: u32,
}

/// By the address of its `task_struct`, which is not used again before `sched_process_free`: the
/// ids are no key, because `de_thread` (fs/exec.c) swaps them when a thread runs a new program.
#[map]
static TOLD: LruHashMap<u64, Told> = LruHashMap::with_max_entries(4096, 0);

#[inline(always)]
fn remember(task: Addr, record: &TaskRecord) {
    let TaskRecord { start, pid, tid, .. } = *record;
    told(task, start, (pid, tid));
}

#[inline(always)]
fn told(task: Addr, start: u64, (pid, tid): (u32, u32)) {
    let told = Told { start, pid, tid, kernel: field(task, &TASK_PID), reserved: 0 };
    // A full LRU map throws out an old entry; an entry that was lost costs a late release, which
    // the next task snapshot makes good.
    let _ = TOLD.insert(task, told, 0);
}

#[inline(always)]
fn recall(task: Addr) -> Option<Told> {
    // SAFETY: copied at once; an entry that is replaced meanwhile is one that is lost.
    unsafe { TOLD.get(task) }.copied()
}

/// The ids of a task: of its process, and its own.
#[inline(always)]
pub fn ids(task: Addr) -> (u32, u32) {
    (read::pid(task), read::tid(task))
}

/// Everything about a task, with `netns` as the netns it is told in.
#[inline(always)]
pub fn record(kind: u16, task: Addr, netns: Netns) -> TaskRecord {
    let parent: Addr = field(task, &TASK_PARENT);
    let signal: Addr = field(task, &TASK_SIGNAL);
    let pending: u64 = field(task, &TASK_PENDING);
    let shared: u64 = field(signal, &SIGNAL_SHARED_PENDING);
    let (pid, tid) = ids(task);
    TaskRecord {
        header: header::<TaskRecord>(kind),
        netns,
        pid,
        tid,
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

#[inline(always)]
fn leads(task: Addr) -> bool {
    field::<Addr>(task, &TASK_LEADER) == task
}

#[inline(always)]
fn key(task: Addr) -> FreshKey {
    [task, field(task, &TASK_START)]
}

/// Whether one more record of a task in `net` may be told. One that may not is counted, and all tasks are read again.
#[inline(always)]
fn may_tell(kind: u16, net: Addr) -> bool {
    admits(Class::Tasks, kind, &read::netns(net), Owner::of(net))
}

/// Has a task in `net` told in a moment, unless it ends before.
#[inline(always)]
fn tell_later(task: Addr, net: Addr, record: &TaskRecord) {
    if FRESH.insert(key(task), record, 0).is_err() {
        if may_tell(record.header.kind, net) {
            emit_task(record.header.kind, record, When::Soon);
        }
    } else {
        rouse();
    }
}

/// `sched_process_fork(parent, child)`.
#[inline(always)]
fn fork(parent: Addr, child: Addr) {
    let net = net_of_task(child);
    if net == 0 || is_host(net) || covered(child, net) {
        return;
    }
    seen(kind::TASK_FORK);
    let record = record(kind::TASK_FORK, child, read::netns(net));
    if !leads(child) {
        remember(child, &record);
    }
    if net_of_task(parent) == net {
        tell_later(child, net, &record);
    } else if may_tell(kind::TASK_FORK, net) {
        emit_task(kind::TASK_FORK, &record, When::Now);
    }
}

/// `sched_process_exec(task, old_pid, bprm)`.
#[inline(always)]
fn exec(task: Addr, old_tid: u32) {
    let net = net_of_task(task);
    if net == 0 || is_host(net) {
        return;
    }
    seen(kind::TASK_EXEC);
    leaving::renewed(task, field(task, &TASK_SIGNAL));
    let mut record = record(kind::TASK_EXEC, task, read::netns(net));
    if old_tid != field::<u32>(task, &TASK_PID) {
        // A thread has taken its leader's ids over (de_thread). Its old name may have been told.
        if let Some(told) = recall(task) {
            let _ = TOLD.remove(task);
            let _ = FRESH.remove([task, told.start]);
            let header = header::<TaskRecord>(kind::TASK_FREE);
            let old = TaskRecord { header, start: told.start, tid: told.tid, ..record };
            if may_tell(kind::TASK_FREE, net) {
                emit_task(kind::TASK_FREE, &old, When::Now);
            }
        }
        if may_tell(kind::TASK_EXEC, net) {
            emit_task(kind::TASK_EXEC, &record, When::Now);
        }
        return;
    }
    // SAFETY: copied at once.
    record.header.reserved = match unsafe { FRESH.get(key(task)) } {
        Some(fresh) => fresh.header.reserved,
        None => 1,
    };
    tell_later(task, net, &record);
}

/// `sched_process_exit(task)`.
#[inline(always)]
fn exit(task: Addr) {
    let net = net_of_task(task);
    if net == 0 || is_host(net) {
        return;
    }
    let signal: Addr = field(task, &TASK_SIGNAL);
    let (leads, ending) = (leads(task), leaving::is_ending(signal));
    let named = leaving::is_named(task, signal);
    if leads || ending {
        leaving::enter(task, signal, ending);
    }
    if leads {
        seen(kind::TASK_EXIT);
    }
    if named {
        leaving::news(task, signal);
    }
    // SAFETY: copied at once.
    if let Some(known) = unsafe { FRESH.get(key(task)) }.map(|fresh| fresh.header.reserved)
        && FRESH.remove(key(task)).is_ok()
        && known == 0
    {
        // Never told: there is nothing to take back.
        let _ = TOLD.remove(task);
        return;
    }
    if leads || named || apart(task, net, ending) {
        told(task, field(task, &TASK_START), ids(task));
    }
}

/// Whether a thread was told for itself before the kernel half was there: its leader is somewhere else, or has left it.
#[inline(always)]
fn apart(task: Addr, net: Addr, ending: bool) -> bool {
    let beside = net_of_task(field(task, &TASK_LEADER));
    beside != net && (beside != 0 || !ending)
}

/// `exit_task_namespaces(task)`: also called by a fork that fails (`copy_process`), for a child that
/// still carries its parent's ids.
#[inline(always)]
fn release(task: Addr) {
    if field::<u32>(task, &TASK_FLAGS) & PF_EXITING == 0 {
        return;
    }
    let net = net_of_task(task);
    if net == 0 || is_host(net) {
        return;
    }
    let signal: Addr = field(task, &TASK_SIGNAL);
    if recall(task).is_some() || leaving::is_named(task, signal) {
        seen(kind::TASK_RELEASE);
        if may_tell(kind::TASK_RELEASE, net) {
            let record = record(kind::TASK_RELEASE, task, read::netns(net));
            emit_task(kind::TASK_RELEASE, &record, When::Soon);
        }
        let _ = TOLD.remove(task);
    }
    leaving::released(task, signal);
}

/// `sched_process_free(task)`: the last word on a task.
#[inline(always)]
fn free(task: Addr) {
    let signal: Addr = field(task, &TASK_SIGNAL);
    if leads(task) {
        leaving::over(task, signal);
    }
    let Some(told) = recall(task) else { return };
    let _ = TOLD.remove(task);
    let none = Netns { cookie: 0, inode: 0, refs: ipwatch_common::MISSING };
    // Another id than it was told with: another thread has run a new program and taken it over
    // (de_thread), so that the old name lives on.
    if told.kernel == field::<u32>(task, &TASK_PID) {
        seen(kind::TASK_FREE);
        let Told { start, pid, tid, .. } = told;
        let record = TaskRecord { pid, tid, start, ..record(kind::TASK_FREE, task, none) };
        emit_task(kind::TASK_FREE, &record, When::Soon);
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
    seen(kind::TASK_JOIN);
    let _ = FRESH.remove(key(task));
    if !leads(task) {
        told(task, field(task, &TASK_START), ids(task));
    }
    // Two system calls are a move there and back.
    let charged = if is_host(new_net) { old_net } else { new_net };
    if may_tell(kind::TASK_JOIN, charged) {
        let record = record(kind::TASK_JOIN, task, read::netns(new_net));
        emit_task(kind::TASK_JOIN, &record, When::Now);
    }
}

/// `signal_generate(sig, info, task, group, result)`. By then a signal that ends the whole group has set the flag for
/// that (`complete_signal`), but for SIGKILL to one that ends already and for signals that dump core.
#[inline(always)]
fn signal(number: u32, info: Addr, task: Addr, group: u32) {
    let signal: Addr = field(task, &TASK_SIGNAL);
    if number != SIGKILL && !leaving::is_ending(signal) && !leaving::dumps(number, task) {
        return;
    }
    let net = net_of_task(task);
    // A target without a netns may be the dead leader of threads that live on, and people send SIGKILL to those.
    if (net == 0 && number != SIGKILL) || (net != 0 && is_host(net)) {
        return;
    }
    leaving::enter(task, signal, true);
    if number == SIGKILL {
        seen(kind::SIGNAL);
        leaving::killed(task, signal, info, group);
    }
}

/// `zap_other_threads(task)`: `task` ends all others of its group, to exit or to run a new program. Of the others none
/// may ever come as far as an exit.
#[inline(always)]
fn zap(task: Addr) {
    let net = net_of_task(task);
    if net != 0 && !is_host(net) {
        seen(kind::GROUP_EXIT);
        leaving::enter(task, field(task, &TASK_SIGNAL), true);
    }
}

/// `do_coredump`: the running task waits for all others of its group before it dumps. Mostly a signal has told of it. A
/// filter of system calls that ends a process sends none before 5.16 (`__seccomp_filter`, kernel/seccomp.c).
#[inline(always)]
fn dump() {
    zap(read::current());
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

tracepoint!(tp_fork, rt_fork, |ctx| fork(ctx.arg(0), ctx.arg(1)));
tracepoint!(tp_exec, rt_exec, |ctx| exec(ctx.arg(0), ctx.arg(1)));
tracepoint!(tp_exit, rt_exit, |ctx| exit(ctx.arg(0)));
tracepoint!(tp_free, rt_free, |ctx| free(ctx.arg(0)));
tracepoint!(tp_signal, rt_signal, |ctx| signal(ctx.arg(0), ctx.arg(1), ctx.arg(2), ctx.arg(3)));

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

#[fentry]
pub fn fe_zap(ctx: FEntryContext) -> u32 {
    zap(ctx.arg(0));
    0
}

#[kprobe]
pub fn kp_zap(ctx: ProbeContext) -> u32 {
    if let Some(task) = ctx.arg(0) {
        zap(task);
    }
    0
}

#[fentry]
pub fn fe_dump(_: FEntryContext) -> u32 {
    dump();
    0
}

#[kprobe]
pub fn kp_dump(_: ProbeContext) -> u32 {
    dump();
    0
}
