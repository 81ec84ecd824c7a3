//! ARP on the links of the host's netns, for kernels on which `arp_process` cannot be probed, which would report every
//! netns.
//!
//! It uses one packet socket that receives only ARP, as the network stack delivers it: on bridges, parent and plain
//! devices, not on the ports of a bridge. Its filter is a program of the kernel half (`ipwatch-ebpf`, `claims`), which
//! reports what is new through the probes' ring buffer and drops every packet, so that the socket is never read.
//!
//! There is no equivalent for NDP: neighbour discovery is ICMPv6, and a filter would run for each ICMPv6 packet. For
//! IPv6 the kernel reports failures of duplicate address detection, and changes of neighbour entries, including claims
//! that lose.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::probes::Rung;
use crate::fact::SourceStatus;

/// When to listen with a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Watch {
    /// If no probe reports ARP.
    #[default]
    Auto,
    /// Even if a probe reports ARP.
    Always,
    Off,
}

/// Opens a socket in the calling thread's netns that receives nothing yet, so that the filter can be attached first.
///
/// # Errors
/// CAP_NET_RAW is missing.
pub(super) fn socket() -> io::Result<OwnedFd> {
    // SOCK_DGRAM: a packet starts with its ARP header. Protocol 0: no packet is received.
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel gave this fd to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the socket receive the ARP packets of every device in its netns.
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

/// The status of this source. `rung`: how claims are observed; `listens`: whether a socket receives ARP.
#[must_use]
pub fn standing(watch: Watch, rung: Option<Rung>, listens: bool) -> (SourceStatus, String) {
    let (status, detail) = match rung {
        Some(Rung::Socket) => (
            SourceStatus::Degraded,
            "observes only the links of the host's netns: see `ipwatch doctor`",
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
        None => (SourceStatus::Down, "ARP is not observed: see `ipwatch doctor`"),
    };
    (status, detail.to_owned())
}

#[cfg(test)]
mod tests;
