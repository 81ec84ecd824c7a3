//! A close look at one task: what it does, whether it still has its namespaces, whether it is only paused, and what it
//! may wait for.

use std::io;

use procfs::FromRead;
use procfs::process::Stat;

use super::files::{Dir, is_gone};
use super::{Proc, cgroup, fact, hang};
use crate::fact::{BootNs, Fact, Look, NetnsRef, Observation, Presence, TaskKey, Unanswered};
use crate::reading;

/// Maximum number of stack frames kept (`proc_pid_stack` shows at most 64).
const FRAMES: usize = 64;

/// The function in which the v1 freezer puts a task to sleep (`__refrigerator`, kernel/freezer.c).
const REFRIGERATOR: &str = "__refrigerator";

impl Proc {
    /// Looks at a task. If it is gone, or if its pid was reused, the result is [`Presence::Gone`].
    ///
    /// # Errors
    /// `/proc` cannot be read; nothing is known.
    pub fn look(&self, task: TaskKey) -> io::Result<Fact> {
        let gone = || Look { netns: Some(Presence::Gone), ..Look::default() };
        let look = match self
            .task(task)
            .and_then(|dir| dir.map(|dir| self.look_through(task, &dir)).transpose())
        {
            Ok(Some(look)) => look,
            Ok(None) => gone(),
            Err(error) if is_gone(&error) => gone(),
            Err(error) => self.blank(task, error)?,
        };
        Ok(fact(Observation::Look { task, look: Box::new(look) }))
    }

    /// A look at a task whose `stat` another reader is hanging at, so that its start time cannot be checked either. Its
    /// links wait for the same lock, except on older kernels (`reading::execve`).
    fn blank(&self, task: TaskKey, error: io::Error) -> io::Result<Look> {
        let Some(unanswered) = unanswered(task, "stat", &error) else { return Err(error) };
        let path = self.root.join(format!("{}/task/{}", task.pid, task.tid));
        let netns = match Dir::open(&path) {
            Ok(dir) => dir.namespace("ns/net", "net").and_then(netns).ok().map(Presence::In),
            Err(error) if is_gone(&error) => Some(Presence::Gone),
            Err(_) => None,
        };
        Ok(Look { netns, unanswered: Some(unanswered), ..Look::default() })
    }

    /// Whether a task still has a netns. Costs four system calls.
    ///
    /// # Errors
    /// It is unknown.
    pub fn presence(&self, task: TaskKey) -> io::Result<Presence> {
        match self.task(task)? {
            Some(dir) => presence(&dir),
            None => Ok(Presence::Gone),
        }
    }

    /// Whether a task still exists, including as a zombie.
    ///
    /// # Errors
    /// It is unknown.
    pub fn alive(&self, task: TaskKey) -> io::Result<bool> {
        self.task(task).map(|dir| dir.is_some())
    }

    /// Opens the directory of a task, which from now on refers only to that task. `None` if the task is gone or has
    /// another start time.
    pub(super) fn task(&self, task: TaskKey) -> io::Result<Option<Dir>> {
        let TaskKey { pid, tid, start } = task;
        let path = self.root.join(format!("{pid}/task/{tid}"));
        let read = Dir::open(&path).and_then(|dir| Ok((stat(&dir)?, dir)));
        match read {
            Ok((stat, dir)) => Ok((stat.starttime == start).then_some(dir)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn look_through(&self, task: TaskKey, dir: &Dir) -> io::Result<Look> {
        let stat = stat(dir)?;
        let signals = Signals::read(dir)?;
        let wchan = dir.text("wchan").ok().filter(|name| !name.is_empty() && name != "0");
        let groups = dir.text("cgroup").ok();
        let frozen = match &wchan {
            Some(name) if name == REFRIGERATOR => Some(true),
            _ => self
                .frozen(groups.as_deref(), stat.flags & hang::PF_EXITING != 0 || signals.killed()),
        };
        let limited = groups.as_deref().filter(|_| stat.state == 'R');
        let cpu_limits = limited.map(|lines| self.cpu_limits(lines)).unwrap_or_default();
        let mut look = Look {
            comm: stat.comm,
            state: stat.state,
            flags: stat.flags,
            sig_pending: signals.thread,
            shared_pending: signals.process,
            core_dumping: signals.core_dumping,
            cpu: Some(stat.utime.saturating_add(stat.stime)),
            threads: u32::try_from(stat.num_threads).ok(),
            frozen,
            frozen_by: groups
                .as_deref()
                .filter(|_| frozen == Some(true))
                .and_then(|lines| self.frozen_by(lines)),
            cpu_limits,
            written: None,
            cgroup: groups.as_deref().and_then(cgroup::naming).map(ToOwned::to_owned),
            stack: Vec::new(),
            wchan,
            file_systems: Vec::new(),
            waited_for_by: Vec::new(),
            netns: None,
            unanswered: None,
        };
        // Read last: it waits for exec_update_lock, which an execve holds briefly, or for as long as it hangs closing a
        // file (`lock_trace`, fs/proc/base.c; `begin_new_exec`, fs/exec.c).
        match dir.text("stack") {
            Ok(stack) => look.stack = frames(&stack),
            Err(error) => look.unanswered = unanswered(task, "stack", &error),
        }
        // It waits for the same lock (`do_io_accounting`, fs/proc/base.c).
        if look.core_dumping && look.unanswered.is_none() {
            look.written = self.written(task.pid);
        }
        // Before 5.16, x86 shows no wchan without frame pointers, which most kernels lack (`get_wchan`,
        // arch/x86/kernel/process.c). The stack of a sleeping task starts with the same function.
        if look.wchan.is_none() && matches!(look.state, 'S' | 'D') {
            look.wchan = look.stack.first().cloned();
            if look.wchan.as_deref() == Some(REFRIGERATOR) && look.frozen != Some(true) {
                look.frozen = Some(true);
                look.frozen_by = groups.as_deref().and_then(|lines| self.frozen_by(lines));
            }
        }
        // After all other reads: if the task still has a netns now, it had one during them.
        look.netns = presence(dir).ok();
        self.explain(dir, &mut look);
        Ok(look)
    }
}

impl Proc {
    /// The bytes that all threads of a process have written. The kernel counts a core dump among them, also one to a pipe
    /// (`__kernel_write_iter`, fs/read_write.c; before 6.1 `__kernel_write`).
    fn written(&self, pid: u32) -> Option<u64> {
        let io = Dir::open(&self.root.join(pid.to_string())).ok()?.text("io").ok()?;
        io.lines().find_map(|line| line.strip_prefix("wchar:"))?.trim().parse().ok()
    }
}

/// The file that an error is about, if the error is that it hangs.
fn unanswered(task: TaskKey, name: &str, error: &io::Error) -> Option<Unanswered> {
    let since = reading::hangs(error)?.since;
    let TaskKey { pid, tid, .. } = task;
    let file = if pid == tid {
        format!("/proc/{pid}/{name}")
    } else {
        format!("/proc/{pid}/task/{tid}/{name}")
    };
    Some(Unanswered { file, since })
}

/// `stat` of a task, whose name can be any bytes.
pub(super) fn stat(dir: &Dir) -> io::Result<Stat> {
    let bytes = dir.read("stat")?;
    Stat::from_read(&bytes[..])
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

/// When a process was started, if that can be read. `stat` counts ticks of 10 ms since the boot (`nsec_to_clock_t` of
/// `start_boottime`, fs/proc/array.c).
pub(super) fn started(dir: &Dir) -> Option<BootNs> {
    stat(dir).ok().map(|stat| BootNs(stat.starttime.saturating_mul(10_000_000)))
}

/// `ns/net` returns ENOENT for a zombie, for a task after `exit_task_namespaces`, and for a task that is gone. `stat`
/// distinguishes the last case.
fn presence(dir: &Dir) -> io::Result<Presence> {
    let error = match dir.namespace("ns/net", "net") {
        Ok(inode) => return netns(inode).map(Presence::In),
        Err(error) => error,
    };
    match dir.read("stat") {
        Err(stat) if is_gone(&stat) => Ok(Presence::Gone),
        Ok(_) if is_gone(&error) => Ok(Presence::Released),
        _ => Err(error),
    }
}

/// The netns with the number in `net:[…]`.
pub(super) fn netns(inode: u64) -> io::Result<NetnsRef> {
    u32::try_from(inode).map(NetnsRef::inode).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The signal fields of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Signals {
    /// `SigPnd`.
    pub(super) thread: u64,
    /// `ShdPnd`.
    pub(super) process: u64,
    /// `CoreDumping: 1` (4.15+).
    pub(super) core_dumping: bool,
}

impl Signals {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);

    pub(super) fn read(dir: &Dir) -> io::Result<Self> {
        Self::parse(&dir.status()?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The fields in a look.
    pub(super) fn of(look: &Look) -> Self {
        Self {
            thread: look.sig_pending,
            process: look.shared_pending,
            core_dumping: look.core_dumping,
        }
    }

    /// Whether SIGKILL is pending.
    pub(super) fn killed(self) -> bool {
        (self.thread | self.process) & Self::KILL != 0
    }

    /// Parsed here, because `Status` of the `procfs` crate has no `CoreDumping` and needs 30 other fields. `Name:`
    /// comes first and is escaped by the kernel, so a name cannot forge a line. `None`: it ends before the signals, which
    /// every task has, a zombie too (`task_sig`, fs/proc/array.c). Then it is unknown whether SIGKILL is pending.
    pub(super) fn parse(status: &str) -> Option<Self> {
        let mut signals = Self::default();
        let mut shared = None;
        for line in status.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let mask = || u64::from_str_radix(value.trim(), 16).unwrap_or_default();
            match key {
                "SigPnd" => signals.thread = mask(),
                "ShdPnd" => shared = Some(mask()),
                "CoreDumping" => signals.core_dumping = value.trim() == "1",
                _ => {}
            }
        }
        signals.process = shared?;
        Some(signals)
    }
}

/// The function names of a kernel stack, `[<0>] name+0x12/0x34 [module]`, without the addresses.
pub(super) fn frames(stack: &str) -> Vec<String> {
    let name = |line: &str| {
        let symbol = line.strip_prefix("[<")?.split_once(">] ")?.1;
        Some(symbol.split(['+', ' ']).next()?.to_owned())
    };
    stack.lines().filter_map(name).take(FRAMES).collect()
}

#[cfg(test)]
mod tests;
