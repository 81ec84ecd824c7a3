//! TCP connections without a process that the kernel is still closing. Each keeps its netns alive until the remote end
//! has answered or the kernel gives up.
//!
//! They are read with `sock_diag` (linux/inet_diag.h). Its messages have a fixed layout and the same framing as
//! rtnetlink. If TCP diagnostics are a module, the kernel loads it on the first request, as it does for `ss`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::parse;
use super::talk::{Talk, errno, invalid};
use crate::fact::Holder;

const SOCK_DIAG_BY_FAMILY: u16 = 20; // linux/sock_diag.h
const HEADER: usize = 16; // struct nlmsghdr
const REQUEST: usize = 56; // struct inet_diag_req_v2
const ANSWER: usize = 72; // struct inet_diag_msg

/// States in which only the kernel works on a connection (net/tcp_states.h). A connection in the accept queue has no
/// process either, but is never in one of these states.
const CLOSING: [(u8, &str); 4] =
    [(4, "FIN_WAIT1"), (5, "FIN_WAIT2"), (9, "LAST_ACK"), (11, "CLOSING")];

/// `idiag_timer` of a TIME_WAIT socket (`inet_twsk_diag_fill`). Such a message shows the state that the socket came
/// from. A TIME_WAIT socket holds no netns: `inet_twsk_purge` ends it with the netns.
const TIMEWAIT: u8 = 3;

/// Maximum number of connections reported for one netns.
const MOST: usize = 64;
/// Maximum number of answers in one dump; a longer dump is an error.
const ANSWERS: usize = 65_536;

/// Returns the orphans, at most [`MOST`], in the netns in which the socket of `talk` was opened.
pub(super) fn orphans(talk: &mut Talk<'_>) -> io::Result<Vec<Holder>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump(talk, family as u8, &mut found)?;
    }
    Ok(found)
}

fn dump(talk: &mut Talk<'_>, family: u8, found: &mut Vec<Holder>) -> io::Result<()> {
    *talk.sequence = talk.sequence.wrapping_add(1);
    talk.socket.send(&request(family, *talk.sequence))?;
    let mut answers = 0;
    loop {
        let received = talk.receive()?;
        for message in parse::messages(&talk.buffer[..received]) {
            let message = message.map_err(invalid)?;
            if message.sequence != *talk.sequence {
                continue;
            }
            match libc::c_int::from(message.kind) {
                libc::NLMSG_DONE | libc::NLMSG_ERROR => return errno(message.payload),
                _ => {}
            }
            answers += 1;
            if answers > ANSWERS {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "too many connections"));
            }
            found.extend(orphan(message.payload).filter(|_| found.len() < MOST));
        }
    }
}

/// A dump request for the TCP sockets of one family that are closing.
fn request(family: u8, sequence: u32) -> Vec<u8> {
    let states = CLOSING.iter().fold(0_u32, |states, (state, _)| states | 1 << state);
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes()); // port id: the kernel fills it in
    bytes.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.resize(HEADER + REQUEST, 0); // struct inet_diag_sockid: any
    bytes
}

/// Parses a `struct inet_diag_msg`. Returns the connection if it is an orphan: its socket has no inode.
pub(super) fn orphan(message: &[u8]) -> Option<Holder> {
    let message: &[u8; ANSWER] = message.first_chunk()?;
    let [family, state, timer, ..] = *message;
    let (_, state) = CLOSING.iter().find(|(number, _)| *number == state)?;
    let inode = message.last_chunk::<4>()?;
    if timer == TIMEWAIT || *inode != [0; 4] {
        return None;
    }
    // struct inet_diag_sockid: two ports, two addresses of 16 bytes each.
    let local = end(family, message.get(4..6)?, message.get(8..24)?)?;
    let remote = end(family, message.get(6..8)?, message.get(24..40)?)?;
    Some(Holder::Orphan { text: format!("tcp {local} → {remote} {state}") })
}

fn end(family: u8, port: &[u8], address: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(port.try_into().ok()?);
    let ip: IpAddr = match libc::c_int::from(family) {
        libc::AF_INET => Ipv4Addr::from(*address.first_chunk::<4>()?).into(),
        // An IPv4 connection on an IPv6 socket.
        libc::AF_INET6 => Ipv6Addr::from(*address.first_chunk::<16>()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests;
