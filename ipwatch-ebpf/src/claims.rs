//! Who claims an IPv4 address on a link, by ARP.
//!
//! Two ways to hear it share one filter: `arp_process`, which the stack of every netns calls for each
//! ARP packet that it takes in, and a filter on a packet socket of the host's netns where that function
//! cannot be hooked. Nearly every packet confirms what is known and is dropped here; the socket filter
//! drops them all, so that nothing is ever queued on its socket.
//!
//! Told are: an IP that is new on its device, a MAC that is new for it, and, where an IP has had two of
//! them, each turn from one to the other, and now and then that they go on. What could not be told is
//! not remembered either: the next packet tells it.

use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::{fentry, kprobe, map, socket_filter};
use aya_ebpf::maps::LruHashMap;
use aya_ebpf::programs::{FEntryContext, ProbeContext, SkBuffContext};
use ipwatch_common::{ARP_REPLY, ARP_REQUEST, ClaimRecord, MISSING, Netns, kind};

use crate::emit::{emit_neighbour, header};
use crate::limit::{Class, Owner, admits_on_link};
use crate::offsets::{
    DEVICE_IP, HOST_COOKIE, HOST_INODE, IFA4_LOCAL, IFA4_NEXT, IN_DEVICE_LIST, SKB_DEV, SKB_HEAD,
    SKB_NETWORK_HEADER,
};
use crate::owed;
use crate::read::{self, Addr, Plain, at, field};

/// ARP for IPv4 on Ethernet: `struct arphdr` and what follows it (`arp_create`, net/ipv4/arp.c).
#[repr(C)]
#[derive(Clone, Copy)]
struct Packet {
    /// Kind and length of the addresses.
    kind: [u8; 6],
    operation: [u8; 2],
    mac: [u8; 6],
    ip: [u8; 4],
    target_mac: [u8; 6],
    target: [u8; 4],
}

// SAFETY: bytes, one after the other.
unsafe impl Plain for Packet {
    const ZERO: Self = Self {
        kind: [0; 6],
        operation: [0; 2],
        mac: [0; 6],
        ip: [0; 4],
        target_mac: [0; 6],
        target: [0; 4],
    };
}

/// ARPHRD_ETHER, ETH_P_IP, and how long their addresses are.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// `include/uapi/linux/if_packet.h`.
const PACKET_OTHERHOST: u32 = 3;

/// An IP that two quarrel about is told again this long after it was last told of the same one.
const AGAIN: u64 = 5_000_000_000;
/// The same of one that nobody contradicts: before the user half forgets it, after a minute.
const ALONE: u64 = 45_000_000_000;
/// The other one of them was not told for this long: it has given the IP up, as when a pod is given that of
/// one before it.
const SETTLED: u64 = 60_000_000_000;
/// Turns from one of two MACs to the other that are told in that time.
const TURNS: u32 = 8;
/// Addresses of a device that are looked through for one of its own.
const OWN: u32 = 8;

/// An IP on a device. `netns` is the cookie, or the inode where there is none.
#[repr(C)]
#[derive(Clone, Copy)]
struct Key {
    netns: u64,
    ifindex: u32,
    ip: [u8; 4],
}

/// The last two MACs that claimed it; all 0 is none. Two CPUs may write here at once: what they make of
/// it costs a record too many, or one that the next packet makes up for.
#[repr(C)]
#[derive(Clone, Copy)]
struct Owners {
    macs: [[u8; 6]; 2],
    /// Turns told since `since`.
    turns: u32,
    /// When each was told last.
    told: [u64; 2],
    since: u64,
}

/// Those of devices and netns that are gone age out.
#[map]
static CLAIMS: LruHashMap<Key, Owners> = LruHashMap::with_max_entries(4096, 0);

/// Whether the packet claims an IP: RFC 5227's probes, whose sender is 0.0.0.0, claim none, and addresses
/// that no host can have are nobody's.
#[inline(always)]
fn claims(packet: &Packet) -> bool {
    let Packet { kind, operation: [high, operation], mac, ip: [first, ..], .. } = *packet;
    kind == ETHERNET_IPV4
        && high == 0
        && (operation == ARP_REQUEST || operation == ARP_REPLY)
        && !(first == 0 || first == 127 || first >= 224)
        && mac != [0; 6]
        && mac != [0xff; 6]
}

/// Tells what the packet claims unless it is known.
#[inline(always)]
fn hear(kind: u16, netns: Netns, owner: Owner, ifindex: u32, packet: &Packet) {
    let Packet { ip, mac, operation: [_, operation], target, .. } = *packet;
    let key = Key { netns: owed::name(&netns), ifindex, ip };
    let known = CLAIMS.get_ptr_mut(key);
    // SAFETY: takes nothing, reads a clock.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    // SAFETY: an element of a preallocated map stays memory of that map even when it is evicted.
    let news = known.is_none_or(|known| unsafe { is_news(&*known, mac, now) });
    if !news || !admits_on_link(Class::Claims, kind, &netns, owner, ifindex) {
        return;
    }
    let record = ClaimRecord {
        header: header::<ClaimRecord>(kind),
        netns,
        ifindex,
        ip,
        mac,
        operation,
        announces: u8::from(target == ip),
    };
    if !emit_neighbour(kind, &record) {
        return;
    }
    match known {
        // SAFETY: as above.
        Some(known) => unsafe { remember(&mut *known, mac, now) },
        None => {
            let owners = Owners { macs: [mac, [0; 6]], turns: 0, told: [now, 0], since: now };
            // Where the kernel has no element left, the next packet is told once more.
            let _ = CLAIMS.insert(key, owners, 0);
        }
    }
}

/// Whether to tell that `mac` claims it.
#[inline(always)]
fn is_news(owners: &Owners, mac: [u8; 6], now: u64) -> bool {
    let [first, second] = owners.macs;
    let [told_first, told_second] = owners.told;
    let (told, other) = if mac == first {
        (told_first, told_second)
    } else if mac == second {
        (told_second, told_first)
    } else {
        return true;
    };
    // Alone, as far as it is heard here: whoever has the IP here is not.
    if second == [0; 6] {
        return now.wrapping_sub(told) > ALONE;
    }
    let turns = if now.wrapping_sub(owners.since) > AGAIN { 0 } else { owners.turns };
    let goes_on = now.wrapping_sub(told) > AGAIN && now.wrapping_sub(other) < SETTLED;
    goes_on || (told < other && turns < TURNS)
}

/// Keeps that `mac` was told.
#[inline(always)]
fn remember(owners: &mut Owners, mac: [u8; 6], now: u64) {
    if now.wrapping_sub(owners.since) > AGAIN {
        owners.since = now;
        owners.turns = 0;
    }
    owners.turns += 1;
    let [first, second] = owners.macs;
    let [told_first, told_second] = owners.told;
    // A third one takes the place of that which was told longer ago.
    if mac == first || (mac != second && second != [0; 6] && told_first < told_second) {
        owners.macs = [mac, second];
        owners.told = [now, told_second];
    } else {
        owners.macs = [first, mac];
        owners.told = [told_first, now];
    }
}

/// Whether one of the device's own IPs claims, or is asked for, or is answered.
#[inline(always)]
fn concerns(device: Addr, packet: &Packet) -> bool {
    let mut ifa: Addr = field(field(device, &DEVICE_IP), &IN_DEVICE_LIST);
    for _ in 0..OWN {
        if ifa == 0 {
            return false;
        }
        let own: [u8; 4] = field(ifa, &IFA4_LOCAL);
        if own == packet.ip || own == packet.target {
            return true;
        }
        ifa = field(ifa, &IFA4_NEXT);
    }
    false
}

/// `arp_process(net, sk, skb)`: `arp_rcv` has made the whole packet linear.
///
/// A broadcast is heard by every pod on its bridge. Each of them need not tell what the host's bridge
/// tells: a pod tells who claims its own IP, and who talks with it.
#[inline(always)]
fn process(skb: Addr) {
    let head: Addr = field(skb, &SKB_HEAD);
    let network_header: u16 = field(skb, &SKB_NETWORK_HEADER);
    let device: Addr = field(skb, &SKB_DEV);
    if head == 0 || device == 0 {
        return;
    }
    let packet: Packet = at(head.wrapping_add(u64::from(network_header)));
    if !claims(&packet) {
        return;
    }
    let net = read::net_of_device(device);
    if !read::is_host(net) && !concerns(device, &packet) {
        return;
    }
    let (netns, owner) = (read::netns(net), Owner::of(net));
    hear(kind::CLAIM, netns, owner, read::index_of_device(device), &packet);
}

#[fentry]
pub fn fe_arp(ctx: FEntryContext) -> u32 {
    process(ctx.arg(2));
    0
}

#[kprobe]
pub fn kp_arp(ctx: ProbeContext) -> u32 {
    if let Some(skb) = ctx.arg(2) {
        process(skb);
    }
    0
}

/// On a packet socket of type SOCK_DGRAM in the host's netns: the packet begins with its ARP header
/// (`packet_rcv`, net/packet/af_packet.c), and 0 keeps every one from the socket's queue.
#[socket_filter]
pub fn sk_arp(ctx: SkBuffContext) -> i64 {
    // SAFETY: a member of the context, which the verifier turns into a load from the packet's own.
    let (kind, ifindex) = unsafe { ((*ctx.skb.skb).pkt_type, (*ctx.skb.skb).ifindex) };
    // As in `arp_rcv`. So are packets marked whose VLAN has no device here: they are of another link
    // (`__netif_receive_skb_core`, net/core/dev.c, which takes their tag away).
    if kind == PACKET_OTHERHOST {
        return 0;
    }
    if let Ok(packet) = ctx.load::<Packet>(0)
        && claims(&packet)
    {
        let netns = Netns { cookie: HOST_COOKIE.load(), inode: HOST_INODE.load(), refs: MISSING };
        hear(kind::CLAIM_ON_WIRE, netns, Owner::ROOT, ifindex, &packet);
    }
    0
}
