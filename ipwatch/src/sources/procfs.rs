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
mod files;
mod fuse;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod hang;
mod holders;
mod look;
mod mounts;
mod namespaces;
mod pidns;
mod propagation;
mod runtimes;
mod shares;
mod tasks;

use std::io;
use std::path::PathBuf;

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

/// A `/proc`, and the related files elsewhere.
#[derive(Debug, Clone)]
pub struct Proc {
    root: PathBuf,
    hierarchies: Hierarchies,
    sys: PathBuf,
    /// `/dev/kmsg`.
    kmsg: PathBuf,
    servers: fuse::Servers,
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
        }
    }

    /// The status of this source, as a fact: whether the namespaces of other users' processes can be read. The first
    /// process is checked as a sample.
    #[must_use]
    pub fn state(&self) -> Fact {
        let read =
            files::Dir::open(&self.root.join("1")).and_then(|dir| dir.namespace("ns/net", "net"));
        let (status, detail) = match read {
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
