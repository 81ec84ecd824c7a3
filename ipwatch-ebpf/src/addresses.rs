//! Addresses come and go, duplicates are detected, devices change their netns.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::{fentry, fexit, kprobe, kretprobe, map};
use aya_ebpf::maps::LruHashMap;
use aya_ebpf::programs::{FEntryContext, FExitContext, ProbeContext, RetProbeContext};
use ipwatch_common::{AF_INET, AF_INET6, AddressRecord, MoveRecord, Netns, kind};

use crate::emit::{emit_within, header};
use crate::limit::{Class, Owner, admits};
use crate::offsets::{
    IFA4_ADDRESS, IFA4_DEV, IFA4_FLAGS, IFA4_LOCAL, IFA4_PREFIX_LEN, IFA4_SCOPE, IFA6_ADDR,
    IFA6_FLAGS, IFA6_IDEV, IFA6_PEER, IFA6_PREFIX_LEN, IN_DEVICE_DEV, INET6_DEV_DEV, SKB_HEAD,
    SKB_MAC_HEADER,
};
use crate::owed::{self, What, owe};
use crate::read::{self, Addr, field};

/// `include/linux/netdevice.h`, the same since 2.6.
const NETDEV_UP: u64 = 1;
const NETDEV_DOWN: u64 = 2;
/// `include/uapi/linux/rtnetlink.h`.
const RTM_NEWADDR: u32 = 20;
const RTM_DELADDR: u32 = 21;

/// The MAC of no device.
const NOBODY: [u8; 6] = [0; 6];

/// An IPv4 address in the first four bytes.
#[inline(always)]
fn ipv4(ip: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = ip;
    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// `fib_inetaddr_event(nb, event, ifa)`: a notifier, called for whatever changes an address,
/// secondaries that go with their primary and the end of a netns included.
#[inline(always)]
fn ipv4_event(event: u64, ifa: Addr) {
    match event {
        NETDEV_UP => ipv4_record(kind::IPV4_UP, ifa),
        NETDEV_DOWN => ipv4_record(kind::IPV4_DOWN, ifa),
        _ => {}
    }
}

/// `rtmsg_ifa(event, ifa, nlh, portid)`: called where the notifier is, and once more for a changed lifetime. Its argument
/// has a type.
#[inline(always)]
fn ipv4_message(event: u32, ifa: Addr) {
    match event {
        RTM_NEWADDR => ipv4_record(kind::IPV4_UP, ifa),
        RTM_DELADDR => ipv4_record(kind::IPV4_DOWN, ifa),
        _ => {}
    }
}

/// The netns of a device, and the kind as [`owed::of`] makes it, unless it has caused too many records.
#[inline(always)]
fn may_tell(kind: u16, device: Addr) -> Option<(Netns, u16)> {
    let net = read::net_of_device(device);
    let (netns, owner) = (read::netns(net), Owner::of(net));
    admits(Class::Addresses, kind, &netns, owner).then_some((netns, owed::of(owner, kind)))
}

#[inline(always)]
fn ipv4_record(kind: u16, ifa: Addr) {
    let device: Addr = field(field(ifa, &IFA4_DEV), &IN_DEVICE_DEV);
    let Some((netns, owed)) = may_tell(kind, device) else { return };
    let record = AddressRecord {
        header: header::<AddressRecord>(kind),
        netns,
        local: ipv4(field(ifa, &IFA4_LOCAL)),
        peer: ipv4(field(ifa, &IFA4_ADDRESS)),
        ifindex: read::index_of_device(device),
        flags: field(ifa, &IFA4_FLAGS),
        family: AF_INET,
        prefix_len: field(ifa, &IFA4_PREFIX_LEN),
        scope: field(ifa, &IFA4_SCOPE),
        has_offender: 0,
        offender: [0; 6],
        reserved: [0; 6],
    };
    emit_within(kind, &record, [(&record.netns, owed)]);
}

#[inline(always)]
fn ipv6_record(kind: u16, ifp: Addr, offender: [u8; 6]) {
    let device: Addr = field(field(ifp, &IFA6_IDEV), &INET6_DEV_DEV);
    let Some((netns, owed)) = may_tell(kind, device) else { return };
    let prefix_len: u32 = field(ifp, &IFA6_PREFIX_LEN);
    let record = AddressRecord {
        header: header::<AddressRecord>(kind),
        netns,
        local: field(ifp, &IFA6_ADDR),
        peer: field(ifp, &IFA6_PEER),
        ifindex: read::index_of_device(device),
        flags: field(ifp, &IFA6_FLAGS),
        family: AF_INET6,
        prefix_len: prefix_len as u8,
        scope: 0,
        has_offender: u8::from(offender != NOBODY),
        offender,
        reserved: [0; 6],
    };
    emit_within(kind, &record, [(&record.netns, owed)]);
}

/// `inet6addr_notifier_call_chain(val, ifp)`: as for IPv4; the address may still be tentative.
#[inline(always)]
fn ipv6_event(event: u64, ifp: Addr) {
    let kind = match event {
        NETDEV_UP => kind::IPV6_UP,
        NETDEV_DOWN => kind::IPV6_DOWN,
        _ => return,
    };
    ipv6_record(kind, ifp, NOBODY);
}

/// `__ipv6_ifa_notify(event, ifp)`: event 0 tells of changed flags or lifetimes.
#[inline(always)]
fn ipv6_notify(event: u32, ifp: Addr) {
    let kind = match event {
        0 | RTM_NEWADDR => kind::IPV6_READY,
        RTM_DELADDR => kind::IPV6_REMOVED,
        _ => return,
    };
    ipv6_record(kind, ifp, NOBODY);
}

/// `addrconf_dad_failure(skb, ifp)`: `eth_hdr(skb)->h_source` is who answered.
#[inline(always)]
fn dad_failure(skb: Addr, ifp: Addr) {
    let head: Addr = field(skb, &SKB_HEAD);
    let mac_header: u16 = field(skb, &SKB_MAC_HEADER);
    // skb_mac_header_was_set() of include/linux/skbuff.h. Nothing can be read at 0: that gives zeroes.
    let is_set = head != 0 && mac_header != u16::MAX;
    let source = if is_set { head.wrapping_add(u64::from(mac_header) + 6) } else { 0 };
    ipv6_record(kind::DAD_FAILED, ifp, read::at(source));
}

#[fentry]
pub fn fe_ipv4(ctx: FEntryContext) -> u32 {
    ipv4_event(ctx.arg(1), ctx.arg(2));
    0
}

#[fentry]
pub fn fe_ipv4_message(ctx: FEntryContext) -> u32 {
    ipv4_message(ctx.arg(0), ctx.arg(1));
    0
}

#[kprobe]
pub fn kp_ipv4(ctx: ProbeContext) -> u32 {
    if let (Some(event), Some(ifa)) = (ctx.arg(1), ctx.arg(2)) {
        ipv4_event(event, ifa);
    }
    0
}

macro_rules! hook {
    ($fentry:ident, $kprobe:ident, $handler:ident) => {
        #[fentry]
        pub fn $fentry(ctx: FEntryContext) -> u32 {
            $handler(ctx.arg(0), ctx.arg(1));
            0
        }

        #[kprobe]
        pub fn $kprobe(ctx: ProbeContext) -> u32 {
            if let (Some(first), Some(second)) = (ctx.arg(0), ctx.arg(1)) {
                $handler(first, second);
            }
            0
        }
    };
}

hook!(fe_ipv6, kp_ipv6, ipv6_event);
hook!(fe_ipv6_notify, kp_ipv6_notify, ipv6_notify);
hook!(fe_dad_failure, kp_dad_failure, dad_failure);

/// A device that is being moved: `__dev_change_net_namespace` may still refuse, and once it has
/// returned the device no longer tells where it came from.
#[repr(C)]
#[derive(Clone, Copy)]
struct Move {
    device: Addr,
    from: Netns,
    owner: Owner,
    from_ifindex: u64,
}

/// By the task that moves it. Moves hold RTNL, so there is one at a time (per netns, on kernels
/// with a lock for each).
#[map]
static MOVES: LruHashMap<u64, Move> = LruHashMap::with_max_entries(64, 0);

#[inline(always)]
fn move_begins(device: Addr) {
    let net = read::net_of_device(device);
    let moved = Move {
        device,
        from: read::netns(net),
        owner: Owner::of(net),
        from_ifindex: u64::from(read::index_of_device(device)),
    };
    // A full LRU map throws out an old entry: an insertion fails only where the kernel has no
    // memory, and then the move is not told.
    let _ = MOVES.insert(bpf_get_current_pid_tgid(), moved, 0);
}

/// What the function returns is not asked: before 5.17 a program at its end would have to know how many arguments it
/// has. A device that was not moved is where it was.
#[inline(always)]
fn move_ends(device: Option<Addr>) {
    let task = bpf_get_current_pid_tgid();
    // SAFETY: the entry is this task's own and is copied at once.
    let Some(moved) = (unsafe { MOVES.get(task) }).copied() else { return };
    let _ = MOVES.remove(task);
    // An argument has a type, and what was in a map has none.
    let device = device.unwrap_or(moved.device);
    let to_net = read::net_of_device(device);
    let (to, to_owed) = (read::netns(to_net), owed::of(Owner::of(to_net), kind::DEVICE_MOVED));
    if (to.cookie, to.inode) == (moved.from.cookie, moved.from.inode) {
        return;
    }
    // Whoever moves a device has the netns that it leaves.
    if !admits(Class::Addresses, kind::DEVICE_MOVED, &moved.from, moved.owner) {
        owe(&to, What::Addresses, to_owed);
        return;
    }
    let record = MoveRecord {
        header: header::<MoveRecord>(kind::DEVICE_MOVED),
        from: moved.from,
        to,
        from_ifindex: moved.from_ifindex as u32,
        to_ifindex: read::index_of_device(device),
    };
    let from_owed = owed::of(moved.owner, kind::DEVICE_MOVED);
    let within = [(&record.from, from_owed), (&record.to, to_owed)];
    emit_within(kind::DEVICE_MOVED, &record, within);
}

#[fentry]
pub fn fe_move(ctx: FEntryContext) -> u32 {
    move_begins(ctx.arg(0));
    0
}

#[kprobe]
pub fn kp_move(ctx: ProbeContext) -> u32 {
    if let Some(device) = ctx.arg(0) {
        move_begins(device);
    }
    0
}

#[fexit]
pub fn fx_move(ctx: FExitContext) -> u32 {
    move_ends(Some(ctx.arg(0)));
    0
}

#[kretprobe]
pub fn kr_move(_: RetProbeContext) -> u32 {
    move_ends(None);
    0
}
