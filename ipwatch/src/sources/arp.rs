//! ARP on the links of the host's netns, for kernels where the stack's own `arp_process` cannot be probed,
//! which would tell of every netns.
//!
//! It is one packet socket that hears ARP alone, as the stack delivers it: on bridges, parents and plain
//! devices, not on a bridge's ports. A program of the kernel half is its filter (`ipwatch-ebpf`, `claims`):
//! it tells what is new through the probes' ring buffer and keeps every packet from the socket's queue,
//! so that the socket is never read.
//!
//! There is nothing like it for NDP: neighbour discovery is ICMPv6, and a filter would be run for each
//! packet of it. IPv6 has duplicate address detection, whose failure the kernel tells, and entries of
//! neighbours, whose changes and losing claims it tells too.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::probes::Rung;
use crate::fact::SourceStatus;

/// When to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Watch {
    /// Where no probe tells of ARP.
    #[default]
    Auto,
    /// There too.
    Always,
    /// Never.
    Off,
}

/// A socket in the calling thread's netns that hears nothing yet: the filter comes before the packets.
///
/// # Errors
/// It needs CAP_NET_RAW.
pub(super) fn socket() -> io::Result<OwnedFd> {
    // SOCK_DGRAM: a packet begins with its ARP header. Protocol 0: none is taken in.
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel gave this fd to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the socket hear the ARP of every device of its netns.
///
/// # Errors
/// Those of bind(2).
pub(super) fn listen(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: a struct of integers, for which all 0 is a value: no device, which means each.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ARP as u16).to_be();
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes of `address`, which is its size.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How it stands as a source: `rung` is how claims are seen, and `listens` whether a socket does.
#[must_use]
pub fn standing(watch: Watch, rung: Option<Rung>, listens: bool) -> (SourceStatus, String) {
    let (status, detail) = match rung {
        Some(Rung::Socket) => (
            SourceStatus::Degraded,
            "hears the links of the host's netns alone: see `ipwatch doctor`",
        ),
        Some(_) if listens => (SourceStatus::Active, "every netns, and the host's links"),
        Some(_) if watch == Watch::Always => {
            (SourceStatus::Degraded, "every netns; no socket can listen on the host's links")
        }
        Some(_) => (SourceStatus::Active, "every netns"),
        None if watch == Watch::Off => (
            SourceStatus::Disabled,
            "switched off by the configuration: neighbours.watch = \"off\"",
        ),
        None => (SourceStatus::Down, "nothing hears ARP: see `ipwatch doctor`"),
    };
    (status, detail.to_owned())
}

#[cfg(test)]
mod tests;
