//! The table of thread groups that are on their way out, in full or in part.
//!
//! One entry a group, however many threads it has. A healthy group is out of it again within milliseconds: with its
//! last release, with its leader's end, or with the end of an exec. The user half reads what has stayed longer and
//! looks for members that still hold a netns. So nothing has to be told of those that die as they should, and nothing
//! is missed of those that do not.

use core::hint::black_box;

use aya_ebpf::helpers::bpf_get_current_comm;
use aya_ebpf::helpers::generated::{bpf_get_current_pid_tgid, bpf_ktime_get_boot_ns};
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use ipwatch_common::{Leaving, MISSING, MOST_LEAVING, OUTSIDE, kind};

use crate::emit::{dropped, rouse};
use crate::offsets::{
    OWN_PID_NS, SIGHAND_ACTION, SIGNAL_EXEC_TASK, SIGNAL_FLAGS, SIGNAL_THREADS, TASK_LEADER,
    TASK_NSPROXY, TASK_SIGHAND, TASK_START, TYPED,
};
use crate::read::{self, Addr, at, field};
use crate::tasks::ids;

/// `include/linux/sched/signal.h`: all of the thread group is to end.
const SIGNAL_GROUP_EXIT: u32 = 0x4;
/// `include/linux/sched/signal.h`: the kernel itself sends the signal.
const SEND_SIG_PRIV: Addr = 1;
/// Size of `struct k_sigaction`, which begins with its handler (x86-64 and arm64).
const SIGACTION: u64 = 32;
/// `SIG_KERNEL_COREDUMP_MASK` (include/linux/signal.h), by number: such a signal sets no flag when it is sent, and the
/// thread that dumps waits for all others before anything of the group exits.
const DUMPS: u64 =
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 11 | 1 << 24 | 1 << 25 | 1 << 31;

/// By the address of the `signal_struct`. Allocated beforehand: memory is short when processes are killed for it.
#[map]
static LEAVING: HashMap<u64, Leaving> = HashMap::with_max_entries(MOST_LEAVING, 0);

/// Those of which the user half has named members, so that their releases are to be told; with the start of the
/// leader. It fills this itself.
#[map]
static NAMED: HashMap<u64, u64> = HashMap::with_max_entries(MOST_LEAVING, 0);

/// Whether all of a group is to end: it exits, or one of its threads runs a new program and ends the others
/// (`de_thread`, fs/exec.c).
#[inline(always)]
pub fn is_ending(signal: Addr) -> bool {
    field::<u32>(signal, &SIGNAL_FLAGS) & SIGNAL_GROUP_EXIT != 0
        || field::<Addr>(signal, &SIGNAL_EXEC_TASK) != 0
}

/// Whether a signal that was just sent to `task` ends it with a core dump. Where it is forced upon a task that blocks
/// or ignores it, the default handler is set before it is sent (`force_sig_info_to_task`).
#[inline(always)]
pub fn dumps(number: u32, task: Addr) -> bool {
    if number >= 32 || DUMPS >> number & 1 == 0 || SIGHAND_ACTION.load() == MISSING {
        return false;
    }
    let sighand: Addr = field(task, &TASK_SIGHAND);
    sighand != 0 && handler(sighand, number) == 0
}

/// `sighand->action[number - 1].sa.sa_handler`.
#[inline(always)]
fn handler(sighand: Addr, number: u32) -> Addr {
    let base = sighand + u64::from(SIGHAND_ACTION.load());
    if TYPED.load() == 0 {
        return at(base + u64::from(number - 1) * SIGACTION);
    }
    // Through a typed pointer the verifier allows offsets that it knows: it takes each turn for itself.
    let mut action = base;
    for one in 1..32 {
        if one == number {
            return at(action);
        }
        action = black_box(action + SIGACTION);
    }
    1
}

/// Whether `entry` is about the group that has this leader's start.
#[inline(always)]
fn of(signal: Addr, start: u64) -> Option<*mut Leaving> {
    let entry = LEAVING.get_ptr_mut(signal)?;
    // SAFETY: a value of the map, which is never freed; one that is used anew meanwhile has another start.
    (unsafe { (*entry).start } == start).then_some(entry)
}

/// Puts a group in, if it is not there.
#[inline(always)]
pub fn enter(task: Addr, signal: Addr, ending: bool) {
    let leader: Addr = field(task, &TASK_LEADER);
    let start: u64 = field(leader, &TASK_START);
    // SAFETY: takes nothing, reads a clock.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    if let Some(entry) = of(signal, start) {
        // SAFETY: as in `of`.
        unsafe {
            if ending && (*entry).ending == 0 {
                (*entry).since = now;
                (*entry).ending = 1;
                rouse();
            }
        }
        return;
    }
    let entry = Leaving {
        start,
        since: now,
        killed: 0,
        pid: ids(leader).0,
        ending: u32::from(ending),
        news: 0,
        tid: 0,
        group: 0,
        sender: 0,
        comm: [0; 16],
    };
    let _ = NAMED.remove(signal);
    if LEAVING.insert(signal, entry, 0).is_err() {
        // The user half looks at all tasks then.
        dropped(kind::TASK_EXIT);
    }
    rouse();
}

/// Remembers who sent SIGKILL first: the first is the story, later ones are people trying again.
#[inline(always)]
pub fn killed(task: Addr, signal: Addr, info: Addr, group: u32) {
    let leader: Addr = field(task, &TASK_LEADER);
    let Some(entry) = of(signal, field(leader, &TASK_START)) else { return };
    // SAFETY: as in `of`; the signal's lock is held while it is sent (`__send_signal_locked`).
    unsafe {
        if (*entry).killed != 0 {
            return;
        }
        let by_kernel = info == SEND_SIG_PRIV;
        (*entry).tid = ids(task).1;
        (*entry).group = group;
        (*entry).sender = if by_kernel { 0 } else { current() };
        (*entry).comm = bpf_get_current_comm().unwrap_or_default();
        (*entry).killed = bpf_ktime_get_boot_ns();
    }
    rouse();
}

/// Who sends it.
#[inline(always)]
fn current() -> u32 {
    if OWN_PID_NS.load() == 0 {
        // SAFETY: takes nothing.
        return (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32;
    }
    match read::pid(read::current()) {
        0 => OUTSIDE,
        pid => pid,
    }
}

/// Whether the user half has named members of this group.
#[inline(always)]
pub fn is_named(task: Addr, signal: Addr) -> bool {
    let leader: Addr = field(task, &TASK_LEADER);
    // SAFETY: copied at once.
    match unsafe { NAMED.get(signal) } {
        Some(start) => *start == field::<u64>(leader, &TASK_START),
        None => false,
    }
}

/// A thread of a group that is known to have lost others exits: it may hang as well.
#[inline(always)]
pub fn news(task: Addr, signal: Addr) {
    let leader: Addr = field(task, &TASK_LEADER);
    if let Some(entry) = of(signal, field(leader, &TASK_START)) {
        // SAFETY: as in `of`. An increment that is lost is one of several at one time.
        unsafe { (*entry).news = (*entry).news.wrapping_add(1) };
        rouse();
    }
}

/// `task` gives its namespaces up. If it is the last of its group that has some, the group is out: all others are
/// reaped, or but for a leader that has given its own up before.
#[inline(always)]
pub fn released(task: Addr, signal: Addr) {
    let leader: Addr = field(task, &TASK_LEADER);
    let last = match field::<u32>(signal, &SIGNAL_THREADS) {
        1 => true,
        2 => leader != task && field::<Addr>(leader, &TASK_NSPROXY) == 0,
        // Not known, or one of many.
        _ => false,
    };
    if last {
        remove(signal, field(leader, &TASK_START));
    }
}

/// All of the group is over: a leader is freed after all others.
#[inline(always)]
pub fn over(leader: Addr, signal: Addr) {
    remove(signal, field(leader, &TASK_START));
}

/// An exec has ended all other threads, and the group lives on, unless it was killed meanwhile.
#[inline(always)]
pub fn renewed(task: Addr, signal: Addr) {
    if field::<u32>(signal, &SIGNAL_FLAGS) & SIGNAL_GROUP_EXIT == 0 {
        remove(signal, field(task, &TASK_START));
    }
}

#[inline(always)]
fn remove(signal: Addr, start: u64) {
    if of(signal, start).is_some() {
        let _ = LEAVING.remove(signal);
        let _ = NAMED.remove(signal);
    }
}

/// Whether a group is in the table.
#[inline(always)]
pub fn has(task: Addr, signal: Addr) -> bool {
    let leader: Addr = field(task, &TASK_LEADER);
    of(signal, field(leader, &TASK_START)).is_some()
}
