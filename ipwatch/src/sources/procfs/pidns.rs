//! Who waits for a task to end: the init of its pid namespace, which may exit only when every other task
//! in it has gone.

use std::io;

use super::Proc;
use super::files::Dir;
use crate::clock;
use crate::fact::{BootNs, Process};

/// Where such an init waits (kernel/pid_namespace.c). It sleeps in `do_wait` below that, or in itself.
const WAITS: &str = "zap_pid_ns_processes";

/// Threads of an init that are looked at.
const THREADS: usize = 256;

impl Proc {
    /// Inits that wait for the task of `dir`. Both still show their pid namespace while they exit
    /// (`pidns_get` takes it from the pid, not from `nsproxy`), so that two equal links prove it.
    pub(super) fn waited_for_by(&self, dir: &Dir, until: BootNs) -> Vec<Process> {
        let search = || -> io::Result<Vec<Process>> {
            let own = dir.namespace("ns/pid", "pid")?;
            let root = Dir::open(&self.root)?;
            // Of the first namespace nobody waits for the end.
            if root.dir("self").and_then(|dir| dir.namespace("ns/pid", "pid")).ok() == Some(own) {
                return Ok(Vec::new());
            }
            let mut found = Vec::new();
            for pid in root.numbers(".")? {
                if clock::now() > until {
                    break;
                }
                let Ok(dir) = root.dir(pid.to_string()) else { continue };
                if dir.namespace("ns/pid", "pid").ok() == Some(own) && waits(&dir) {
                    found.push(Process { pid, comm: dir.comm() });
                }
            }
            Ok(found)
        };
        search().unwrap_or_default()
    }
}

/// An init one of whose threads, the last to exit, waits for the rest of its namespace.
fn waits(dir: &Dir) -> bool {
    is_init(dir)
        && dir.numbers("task").is_ok_and(|tids| {
            tids.into_iter().take(THREADS).any(|tid| {
                let read = |name| dir.text(format!("task/{tid}/{name}")).unwrap_or_default();
                read("wchan") == WAITS || read("stack").contains(WAITS)
            })
        })
}

/// Its number in its own pid namespace is 1.
fn is_init(dir: &Dir) -> bool {
    let status = dir.text("status").unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.and_then(|numbers| numbers.split_whitespace().next_back()) == Some("1")
}

#[cfg(test)]
mod tests;
