//! Tasks in a netns, a detailed look at a task, and other holders of a netns.

use serde::{Deserialize, Serialize};

use super::{BootNs, FileSystem, NetnsRef, Process};

/// A task: one thread of one process. `start` distinguishes two tasks with the same tid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskKey {
    /// The process (thread group) id, as in the pid namespace of `/proc`.
    pub pid: u32,
    /// The thread id; equal to `pid` for the leader.
    pub tid: u32,
    /// Start of this thread since boot in USER_HZ ticks (10 ms): field 22 of
    /// `/proc/PID/task/TID/stat`, and `task->start_boottime / 10^7` in the kernel.
    pub start: u64,
}

impl TaskKey {
    /// Whether this is the thread group's leader.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.pid == self.tid
    }
}

/// A task with its netns and state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its identity.
    #[serde(flatten)]
    pub key: TaskKey,
    /// Its netns.
    pub netns: NetnsRef,
    /// The kernel's name of the thread, lossily decoded. Hostile text.
    pub comm: String,
    /// The parent process, if the source reports it: a child inherits its cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Whether `PF_EXITING` is set.
    #[serde(default)]
    pub exiting: bool,
    /// Whether SIGKILL is pending, for the thread or its process.
    #[serde(default)]
    pub killed: bool,
    /// State letter as in `/proc`; absent if the source does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<char>,
    /// How long it has not been on a CPU, in nanoseconds; a lower bound. A task that exits and has not run for a minute
    /// has been exiting for a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<u64>,
}

/// The sender of a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// Process id; 0 for the kernel (OOM, cgroup.kill, the end of a pid namespace), and with a name other than `kernel`
    /// for a process outside of the daemon's pid namespace.
    pub pid: u32,
    /// Its name. Hostile text.
    pub comm: String,
}

/// What `/proc/PID/task/TID` showed of one task, for the evidence of a finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Look {
    /// Whether the task still has namespaces: `ns/net` can be read. `None`: could not be determined.
    pub netns: Option<Presence>,
    /// The thread's name. Hostile text.
    pub comm: String,
    /// State letter.
    pub state: char,
    /// `PF_*` flags (field 9 of stat): 0x4 is `PF_EXITING`, 0x8 on old kernels `PF_EXITPIDONE`.
    pub flags: u32,
    /// `SigPnd`: signals pending for the thread.
    pub sig_pending: u64,
    /// `ShdPnd`: signals pending for the process.
    pub shared_pending: u64,
    /// Kernel function it sleeps in; absent if hidden or not asleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// Kernel stack, innermost first, function names without addresses; empty if unreadable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
    /// Whether a core dump is being written (`CoreDumping: 1`).
    #[serde(default)]
    pub core_dumping: bool,
    /// CPU time of the thread so far, user and system, in USER_HZ ticks (10 ms): fields 14 and 15 of stat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// Number of threads that its process still has: field 20 of stat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Whether its cgroup is frozen (v1 `freezer.state`, v2 `cgroup.events`), or being frozen. `None`: could not be
    /// read, so it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
    /// The control file that requests the freeze, of this cgroup or the nearest one above it: a v2 `cgroup.freeze` that
    /// says 1, or a v1 `freezer.state`. Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_by: Option<String>,
    /// The CPU limits of its cgroup and of those above, the innermost first. Read only while the task is runnable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_limits: Vec<CpuLimit>,
    /// Bytes that its process has written so far, to files of any kind (`wchar` in `/proc/PID/io`). Read only while its
    /// core is dumped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<u64>,
    /// Its cgroup path, in the hierarchy that names containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// File systems visible to it that it may be waiting for: those served by a process, another machine or a block
    /// device. Read only if its stack shows that it waits for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub file_systems: Vec<FileSystem>,
    /// Inits of pid namespaces that wait for this task to end (`zap_pid_ns_processes`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waited_for_by: Vec<Process>,
    /// A file of the task that does not answer. What it would have shown is absent here; if `state` is absent, nothing
    /// else is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<Unanswered>,
}

/// A CPU limit of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuLimit {
    /// In thousandths of a CPU: `cpu.max`, or on v1 `cpu.cfs_quota_us`.
    pub thousandths: u32,
    /// How often it was exhausted since its cgroup was made (`nr_throttled` in `cpu.stat`).
    pub exhausted: u64,
}

impl Look {
    /// Whether it shows only that the task's files do not answer.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.unanswered.is_some() && self.state == char::default()
    }
}

/// Evidence that a task still makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It runs, or is about to.
    Runs,
    /// It is runnable, and a CPU limit of its cgroup was exhausted since the look before: the lowest such limit, in
    /// thousandths of a CPU. The limit counts for the whole cgroup: a task that sleeps is not the one that it slows down.
    Throttled(u32),
    /// Number of bytes of its core that were written since the look before.
    Dumps(u64),
    /// CPU time used since the look before, in USER_HZ ticks.
    Cpu(u64),
    /// Number of threads of its process that have ended since the look before.
    Threads(u32),
}

impl Look {
    /// The progress that this look shows since the one before.
    #[must_use]
    pub fn progress(&self, before: Option<&Look>) -> Option<Progress> {
        let more = |of: fn(&Look) -> Option<u64>| {
            of(self)?.checked_sub(of(before?)?).filter(|more| *more > 0)
        };
        if self.state == 'R' {
            let limit = before.and_then(|before| self.exhausted_since(before));
            return Some(limit.map_or(Progress::Runs, Progress::Throttled));
        }
        if let Some(bytes) = more(|look| look.written) {
            return Some(Progress::Dumps(bytes));
        }
        let ended = || before?.threads?.checked_sub(self.threads?).filter(|ended| *ended > 0);
        more(|look| look.cpu).map(Progress::Cpu).or_else(|| ended().map(Progress::Threads))
    }

    /// The lowest CPU limit that was exhausted since an earlier look.
    fn exhausted_since(&self, before: &Look) -> Option<u32> {
        // A cgroup got a limit, or lost it: which is which is unknown.
        if self.cpu_limits.len() != before.cpu_limits.len() {
            return None;
        }
        let both = self.cpu_limits.iter().zip(&before.cpu_limits);
        let exhausted = both.filter(|(now, before)| now.exhausted > before.exhausted);
        exhausted.map(|(now, _)| now.thousandths).min()
    }
}

/// A file whose reader has not returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// Its path.
    pub file: String,
    /// Since when the reader waits.
    pub since: BootNs,
}

/// Whether a task still has a netns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// It is in this one.
    In(NetnsRef),
    /// It has released its namespaces.
    Released,
    /// The task no longer exists.
    Gone,
}

/// A holder of a netns other than a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Holder {
    /// A bind mount of its nsfs file.
    Mount {
        /// Inode of the mount namespace that contains it.
        mount_ns: u64,
        /// Path within that mount namespace. Hostile text.
        path: String,
        /// A process of that mount namespace, through whose `/proc/PID/root` the path is reached.
        pid: u32,
        /// That process's name, if it was read. Hostile text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        comm: Option<String>,
        /// Its cgroup path, in the hierarchy that names containers, if it was read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<String>,
        /// Whether the mount namespace is neither the node's, nor the daemon's own, nor one in which a container
        /// runtime runs: then its root user chose the path.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        foreign: bool,
    },
    /// An open fd on its nsfs file.
    Fd {
        /// The process.
        pid: u32,
        /// The fd.
        fd: u32,
        /// The process's name. Hostile text.
        comm: String,
    },
    /// A socket created in the netns and open in a process that may be in another one.
    Socket {
        /// The process.
        pid: u32,
        /// The fd.
        fd: u32,
        /// The process's name. Hostile text.
        comm: String,
    },
    /// A socket without a process: a TCP connection that the kernel still closes.
    Orphan {
        /// `tcp LOCAL → REMOTE STATE`.
        text: String,
    },
    /// Not known to hold it: a process at whose Unix socket fds of any kind wait unread (`SCM_RIGHTS`). The kernel shows
    /// their number and not what they are. Read only if a search finds no holder.
    Candidate {
        /// The process.
        pid: u32,
        /// The fd of its socket.
        fd: u32,
        /// The process's name. Hostile text.
        comm: String,
        /// Number of fds that wait.
        unread: u32,
    },
}

impl Holder {
    /// The process to show to people, and to reach the netns by. For a mount it is the process that the mount was seen
    /// through, unless that is meaningless: the daemon itself (in its own mount namespace no name is read, and the
    /// node's first process represents the namespace) or kthreadd.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        match self {
            Self::Mount { pid: 1, .. } => Some(1),
            Self::Mount { pid: 0 | 2, .. }
            | Self::Mount { comm: None, .. }
            | Self::Orphan { .. }
            | Self::Candidate { .. } => None,
            Self::Mount { pid, .. } | Self::Fd { pid, .. } | Self::Socket { pid, .. } => Some(*pid),
        }
    }
}
