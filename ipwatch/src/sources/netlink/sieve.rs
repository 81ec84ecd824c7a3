//! Filters the route groups before messages are queued, so that a storm of a router's route changes does not cost the
//! few routes that are read.

use libc::{BPF_ABS, BPF_B, BPF_H, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, sock_filter};

/// Offsets of a netlink message's type, and of the fields of a route message (`struct nlmsghdr`, `struct rtmsg`).
const TYPE: u32 = 4;
const FAMILY: u32 = 16;
const TO_LEN: u32 = 17;
const TABLE: u32 = 20;

/// Passes default routes and routes to single IPs outside the table `local`, and every message that is not a route
/// message. A datagram contains only one route message.
pub(super) const ROUTES: [sock_filter; 16] = [
    load(BPF_H, TYPE),
    equal(kind(libc::RTM_NEWROUTE), 2, 0),
    equal(kind(libc::RTM_DELROUTE), 1, 0),
    pass(u32::MAX),
    load(BPF_B, TABLE),
    equal(libc::RT_TABLE_LOCAL as u32, 9, 0), // a table beyond 255 is RT_TABLE_COMPAT here
    load(BPF_B, TO_LEN),
    equal(0, 6, 0),
    equal(32, 1, 0),
    equal(128, 2, 5),
    load(BPF_B, FAMILY),
    equal(libc::AF_INET as u32, 2, 3),
    load(BPF_B, FAMILY),
    equal(libc::AF_INET6 as u32, 0, 1),
    pass(u32::MAX),
    pass(0),
];

/// Loads are in network byte order; the type is in that of the machine.
const fn kind(kind: u16) -> u32 {
    kind.to_be() as u32
}

const fn load(width: u32, at: u32) -> sock_filter {
    instruction(BPF_LD | width | BPF_ABS, at, 0, 0)
}

const fn equal(to: u32, yes: u8, no: u8) -> sock_filter {
    instruction(BPF_JMP | BPF_JEQ | BPF_K, to, yes, no)
}

const fn pass(bytes: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, bytes, 0, 0)
}

const fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}
