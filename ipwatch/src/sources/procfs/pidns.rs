//! Finds who waits for a task to end: the init of its pid namespace, which can exit only after all other tasks in it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::Proc;
use super::files::Dir;
use crate::clock;
use crate::fact::{BootNs, Process};

/// The function in which such an init waits (kernel/pid_namespace.c). It sleeps in it, or in `do_wait` called from it.
const WAITS: &str = "zap_pid_ns_processes";

/// Maximum number of an init's threads that are checked.
const THREADS: usize = 256;

/// Maximum depth of nested pid namespaces (`MAX_PID_NS_LEVEL`, kernel/pid_namespace.c).
const DEEPEST: usize = 32;

impl Proc {
    /// Inits that wait for the task of `dir`. Both still show their pid namespace while they exit (`pidns_get` takes it
    /// from the pid, not from `nsproxy`), so two equal links are a proof.
    pub(super) fn waited_for_by(&self, dir: &Dir, until: BootNs) -> Vec<Process> {
        self.search_inits(dir, until).unwrap_or_default()
    }

    fn search_inits(&self, dir: &Dir, until: BootNs) -> io::Result<Vec<Process>> {
        let root = Dir::open(&self.root)?;
        // The daemon's own pid namespace does not end.
        let ours = root.dir("self").and_then(|dir| dir.namespace("ns/pid", "pid")).ok();
        let mut within = vec![dir.namespace("ns/pid", "pid")?];
        within.extend(parents(dir));
        within.retain(|ns| Some(*ns) != ours);
        let mut found = Vec::new();
        if within.is_empty() {
            return Ok(found);
        }
        for pid in root.numbers(".")? {
            if clock::now() > until {
                break;
            }
            let Ok(dir) = root.dir(pid.to_string()) else { continue };
            if dir.namespace("ns/pid", "pid").is_ok_and(|ns| within.contains(&ns)) && waits(&dir) {
                found.push(Process { pid, comm: dir.comm() });
            }
        }
        Ok(found)
    }
}

/// The pid namespaces around that of a task, up to the daemon's own: the inits of both wait for a container in a
/// container.
fn parents(dir: &Dir) -> Vec<u64> {
    let mut found = Vec::new();
    let mut at = dir.file("ns/pid").map(OwnedFd::from);
    while let Ok(ns) = at.and_then(|ns| parent(&ns))
        && found.len() < DEEPEST
    {
        found.extend(rustix::fs::fstat(&ns).map(|stat| stat.st_ino));
        at = Ok(ns);
    }
    found
}

/// NS_GET_PARENT (4.9+); EPERM beyond what the daemon may see.
fn parent(ns: &OwnedFd) -> io::Result<OwnedFd> {
    const NS_GET_PARENT: libc::Ioctl = 0xb702; // linux/nsfs.h
    // SAFETY: takes no argument; returns a new fd or -1.
    let fd = unsafe { libc::ioctl(ns.as_raw_fd(), NS_GET_PARENT) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made for us, open, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a process is an init of which one thread, the last to exit, waits for the rest of its namespace.
fn waits(dir: &Dir) -> bool {
    is_init(dir)
        && dir.numbers("task").is_ok_and(|tids| {
            tids.into_iter().take(THREADS).any(|tid| {
                let read = |name| dir.text(format!("task/{tid}/{name}")).unwrap_or_default();
                read("wchan") == WAITS || read("stack").contains(WAITS)
            })
        })
}

/// Whether its pid in its own pid namespace is 1.
fn is_init(dir: &Dir) -> bool {
    let status = dir.text("status").unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.and_then(|numbers| numbers.split_whitespace().next_back()) == Some("1")
}

#[cfg(test)]
mod tests;
