//! Files under `/proc`: the tasks of the node, close looks at one task and at what it may wait for, and searches for
//! what else holds a netns or keeps a container's mounts.
//!
//! Everything here blocks and must run on a thread where that does no harm. Nothing here reads a file that waits for a
//! task's memory (`cmdline`, `environ`: `mmap_lock`) or goes through its root or working directory: exactly the tasks
//! of interest hang, and the reader would hang with them. A runtime's links (`exe`, `cwd`, `fd`) are read as text and
//! never followed.

mod cgroup;
mod cleanup;
mod containers;
mod fds;
mod files;
mod fuse;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod hang;
mod holders;
mod look;
mod mounts;
mod namespaces;
mod perils;
mod pidns;
mod propagation;
mod runtimes;
mod shares;
mod tasks;

use std::io;
use std::path::{Path, PathBuf};

pub use cgroup::Hierarchies;
pub use holders::Search;
pub use mounts::MountWatch;
pub use runtimes::RuntimesSeen;

use crate::clock;
use crate::fact::{Fact, Observation, Origin, Source, SourceName, SourceStatus};
use crate::sources::probes::host;

/// Detail of the source if `/proc` does not show every task of the kernel.
const NESTED: &str = "/proc is of a pid namespace within the node's first, as in kind, k3d, minikube or LXD: pids are \
                      its own, and processes outside of it are neither seen nor named";

/// Why the mounts of somebody are not read.
const AGAIN: &str = "ipwatch was killed three times within an hour while it read them, as happens if a line of mountinfo \
                     is larger than the memory that ipwatch may have. They are read again an hour after the last time. \
                     Until then, what else holds a network namespace without processes is unknown";

/// A `/proc`, and the related files elsewhere.
#[derive(Debug, Clone)]
pub struct Proc {
    root: PathBuf,
    hierarchies: Hierarchies,
    sys: PathBuf,
    /// `/dev/kmsg`.
    kmsg: PathBuf,
    servers: fuse::Servers,
    perils: perils::Perils,
}

impl Proc {
    /// The kernel's own `/proc`.
    #[must_use]
    pub fn new() -> Self {
        Self::at(PathBuf::from("/proc"))
    }

    /// Another `/proc`, made for a test or mounted elsewhere. The cgroup hierarchies are those in its `self/mountinfo`.
    #[must_use]
    pub fn at(root: PathBuf) -> Self {
        Self {
            hierarchies: Hierarchies::find(&root),
            root,
            sys: PathBuf::from("/sys"),
            kmsg: PathBuf::from("/dev/kmsg"),
            servers: fuse::Servers::default(),
            perils: perils::Perils::default(),
        }
    }

    /// Notes down in this directory whose mounts are being read, so that a daemon that was killed by that again and again
    /// leaves them out. Without it if the directory cannot be used.
    #[must_use]
    pub(crate) fn noting(self, dir: &Path) -> Self {
        let perils = perils::Perils::at(dir, clock::now()).unwrap_or_else(|error| {
            tracing::debug!("{}: {error}", dir.display());
            perils::Perils::default()
        });
        for name in perils.barred(clock::now()) {
            tracing::warn!("the mounts of {} are not read: {AGAIN}", crate::escape::escape(name));
        }
        Self { perils, ..self }
    }

    /// The status of this source, as a fact: whether the namespaces of other users' processes can be read. The first
    /// process is checked as a sample.
    #[must_use]
    pub fn state(&self) -> Fact {
        let read =
            files::Dir::open(&self.root.join("1")).and_then(|dir| dir.namespace("ns/net", "net"));
        let (mut status, mut detail) = match read {
            Ok(_) if host::pid_namespace().is_some() => (SourceStatus::Degraded, NESTED.to_owned()),
            Ok(_) => (SourceStatus::Active, String::new()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => (
                SourceStatus::Degraded,
                "the namespaces of some processes do not read: CAP_SYS_PTRACE, or they have more \
                 capabilities than ipwatch"
                    .to_owned(),
            ),
            Err(error) => (SourceStatus::Down, format!("{}: {error}", self.root.display())),
        };
        let barred = self.perils.barred(clock::now()).join(", ");
        if !barred.is_empty() && status != SourceStatus::Down {
            status = SourceStatus::Degraded;
            let before = if detail.is_empty() { "" } else { "; " };
            detail = format!("{detail}{before}the mounts of {barred} are not read: {AGAIN}");
        }
        fact(Observation::Source(Source { name: SourceName::Procfs.into(), status, detail }))
    }
}

impl Default for Proc {
    fn default() -> Self {
        Self::new()
    }
}

fn fact(what: Observation) -> Fact {
    Fact { at: clock::now(), origin: Origin::Procfs, what }
}

#[cfg(test)]
mod testing;
