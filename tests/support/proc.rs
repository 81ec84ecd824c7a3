//! The state of a task in `/proc`, parsed plainly, as the reference for fixtures and product.

use std::fs;
use std::path::PathBuf;

/// `PF_EXITING` (`include/linux/sched.h`).
pub const PF_EXITING: u32 = 0x4;

/// One look at a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub state: char,
    /// `PF_*` flags.
    pub flags: u32,
    /// Signals pending for the thread.
    pub sig_pending: u64,
    /// Signals pending for the process.
    pub shared_pending: u64,
    /// `CoreDumping: 1`.
    pub core_dumping: bool,
    /// The kernel function in which it sleeps; if `wchan` is empty (x86 before 5.16), the first of its stack.
    pub wchan: String,
    /// Kernel stack.
    pub stack: String,
    /// Inode of its netns; `None` if it has released it.
    pub netns: Option<u64>,
}

impl View {
    /// Looks at a thread. `None` if it has ended.
    #[must_use]
    pub fn of(pid: u32, tid: u32) -> Option<Self> {
        let dir = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        // The name may contain anything, even brackets and spaces: the fields start after the last bracket.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let status = fs::read_to_string(dir.join("status")).ok()?;
        let line = |key: &str| {
            status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim).unwrap_or("")
        };
        let mask = |key: &str| u64::from_str_radix(line(key), 16).unwrap_or(0);
        let stack = fs::read_to_string(dir.join("stack")).unwrap_or_default();
        let wchan = fs::read_to_string(dir.join("wchan")).unwrap_or_default();
        let innermost = stack.split([' ', '+']).nth(1).unwrap_or_default();
        let wchan = if wchan == "0" { innermost.to_owned() } else { wchan };
        Some(Self {
            state: fields.first()?.chars().next()?,
            flags: fields.get(6)?.parse().ok()?,
            sig_pending: mask("SigPnd:"),
            shared_pending: mask("ShdPnd:"),
            core_dumping: line("CoreDumping:") == "1",
            wchan,
            stack,
            netns: netns_of(&dir.join("ns/net")),
        })
    }

    /// Looks at the leader of a process.
    #[must_use]
    pub fn leader(pid: u32) -> Option<Self> {
        Self::of(pid, pid)
    }

    /// Whether it has begun to exit.
    #[must_use]
    pub fn exiting(&self) -> bool {
        self.flags & PF_EXITING != 0
    }

    /// Whether SIGKILL is pending for the thread or its process.
    #[must_use]
    pub fn killed(&self) -> bool {
        (self.sig_pending | self.shared_pending) & (1 << (libc::SIGKILL - 1)) != 0
    }
}

fn netns_of(link: &std::path::Path) -> Option<u64> {
    let target = fs::read_link(link).ok()?;
    target.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// The threads of a process.
#[must_use]
pub fn threads(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The thread of a process with this name.
#[must_use]
pub fn thread_named(pid: u32, name: &str) -> Option<u32> {
    let comm = |tid: &u32| fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
    threads(pid).into_iter().find(|tid| comm(tid).is_ok_and(|comm| comm.trim_end() == name))
}

/// The threads of the node in this netns, as `(pid, tid)`, except those of ipwatch.
#[must_use]
pub fn tasks_in(netns: u64) -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pids = pids.filter(|pid| !is_a_daemon(*pid));
    pids.flat_map(|pid: u32| threads(pid).into_iter().map(move |tid| (pid, tid)))
        .filter(|(pid, tid)| {
            netns_of(&PathBuf::from(format!("/proc/{pid}/task/{tid}/ns/net"))) == Some(netns)
        })
        .collect()
}

/// Whether the process is ipwatch: a daemon of another test briefly enters every netns of the node to read it.
fn is_a_daemon(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    program.is_ok_and(|program| program.file_name().is_some_and(|name| name == "ipwatch"))
}

/// The parent of a process.
#[must_use]
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The children of a process; each of its threads has children of its own.
#[must_use]
pub fn children(parent: u32) -> Vec<u32> {
    let of = |tid: u32| fs::read_to_string(format!("/proc/{parent}/task/{tid}/children"));
    let lines = threads(parent).into_iter().filter_map(|tid| of(tid).ok());
    lines
        .flat_map(|line| {
            line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// Whether a process exists and is not a zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    View::leader(pid).is_some_and(|view| view.state != 'Z')
}

/// Resident memory of a process, in KiB.
#[must_use]
pub fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Anonymous memory of a process, in KiB.
#[must_use]
pub fn anonymous_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

/// CPU time of a process, in hundredths of a second.
#[must_use]
pub fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Number of open files of a process.
#[must_use]
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}
