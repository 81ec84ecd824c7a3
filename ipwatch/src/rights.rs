//! The capabilities of our threads. They belong to threads, not to the process (capabilities(7)): each thread keeps only
//! what its work needs.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// What a thread needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Talks to the network, or writes our own files.
    None,
    /// Enters network namespaces and asks them.
    EnterNetns,
    /// Reads processes, and the kernel's log.
    ReadProcesses,
    /// Reads processes and mounts, asks sockets for their netns, and runs the snapshot programs.
    Search,
    /// Reads what the kernel half reports, and the files that it names.
    Probes,
}

impl Rights {
    fn set(self) -> CapabilitySet {
        let processes = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
        match self {
            Rights::None => CapabilitySet::empty(),
            Rights::EnterNetns => processes | CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN,
            Rights::ReadProcesses => processes | CapabilitySet::SYS_ADMIN | CapabilitySet::SYSLOG,
            // NET_ADMIN: the netns of a socket (SIOCGSKNS, `sock_ioctl`, net/socket.c).
            Rights::Search => Rights::Probes.set() | CapabilitySet::NET_ADMIN,
            Rights::Probes => {
                processes | CapabilitySet::SYS_ADMIN | CapabilitySet::BPF | CapabilitySet::PERFMON
            }
        }
    }
}

/// Gives up everything but `rights` on the calling thread, and thereby on the threads that it starts. If that fails, the
/// thread works with what it has.
pub(crate) fn keep(rights: Rights) {
    if let Err(error) = try_keep(rights) {
        tracing::warn!("a thread keeps capabilities that it does not need: {error}");
    }
}

/// The same.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn try_keep(rights: Rights) -> io::Result<()> {
    let had = rustix::thread::capabilities(None)?;
    let (effective, permitted) = (had.effective & rights.set(), had.permitted & rights.set());
    let sets = CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_what_it_had_and_may_keep_and_its_children_no_more() {
        let effective = || rustix::thread::capabilities(None).unwrap().effective;
        let had = effective();
        let apart = std::thread::spawn(move || {
            keep(Rights::EnterNetns);
            let own = effective();
            keep(Rights::Search);
            (own, effective(), std::thread::spawn(effective).join().unwrap())
        });
        let (own, both, child) = apart.join().unwrap();
        assert_eq!(own, had & Rights::EnterNetns.set());
        assert_eq!(both, own & Rights::Search.set(), "nothing comes back");
        assert_eq!(child, both);
        assert_eq!(effective(), had, "the caller keeps its own");
    }
}
