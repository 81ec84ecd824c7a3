//! Neighbour entries change, or somebody tries to change them and fails.
//!
//! `__neigh_update` fires `neigh_update` with the entry as it was and the update as it was asked
//! for. Most updates confirm what is known and are dropped here. Told are: another MAC, a step
//! between "usable", "incomplete" and "failed", and a claim that loses: an ARP reply with another
//! MAC for an entry that stays as it is shows nowhere else.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::macros::{btf_tracepoint, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use ipwatch_common::{AF_INET, AF_INET6, NeighbourRecord, kind};

use crate::emit::{emit_neighbour, header};
use crate::limit::{Class, Owner, admits_on_link};
use crate::offsets::{
    DEVICE_ADDR_LEN, NEIGH_DEV, NEIGH_HA, NEIGH_KEY, NEIGH_STATE, NEIGH_TABLE, TABLE_FAMILY,
};
use crate::read::{self, Addr, at, field};

/// `include/uapi/linux/neighbour.h` and `include/net/neighbour.h`.
const NUD_INCOMPLETE: u8 = 0x01;
const NUD_FAILED: u8 = 0x20;
const NUD_VALID: u8 = 0xde;

/// Usable, incomplete, failed or none of these.
#[inline(always)]
fn class(state: u8) -> u8 {
    if state & NUD_VALID != 0 { NUD_VALID } else { state & (NUD_INCOMPLETE | NUD_FAILED) }
}

/// `neigh_update(n, lladdr, new, flags, nlmsg_pid)`.
#[inline(always)]
fn update(entry: Addr, lladdr: Addr, new_state: u8, flags: u32) {
    let device: Addr = field(entry, &NEIGH_DEV);
    if field::<u8>(device, &DEVICE_ADDR_LEN) != 6 {
        return;
    }
    let old_state: u8 = field(entry, &NEIGH_STATE);
    let mac: [u8; 6] = field(entry, &NEIGH_HA);
    let claim: [u8; 6] = if lladdr == 0 { [0; 6] } else { at(lladdr) };
    let other_mac = lladdr != 0 && claim != mac;
    if !other_mac && class(old_state) == class(new_state) {
        return;
    }
    let family = field::<u32>(field(entry, &NEIGH_TABLE), &TABLE_FAMILY) as u8;
    let ip = match family {
        AF_INET => {
            let [a, b, c, d]: [u8; 4] = field(entry, &NEIGH_KEY);
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        AF_INET6 => field(entry, &NEIGH_KEY),
        _ => return,
    };
    let net = read::net_of_device(device);
    let (netns, ifindex) = (read::netns(net), read::index_of_device(device));
    if !admits_on_link(Class::Neighbours, kind::NEIGHBOUR, &netns, Owner::of(net), ifindex) {
        return;
    }
    let record = NeighbourRecord {
        header: header::<NeighbourRecord>(kind::NEIGHBOUR),
        netns,
        ip,
        ifindex,
        flags,
        family,
        old_state,
        new_state,
        has_claim: u8::from(lladdr != 0),
        mac,
        claim,
    };
    emit_neighbour(kind::NEIGHBOUR, &record);
}

#[btf_tracepoint]
pub fn tp_neigh_update(ctx: BtfTracePointContext) -> i32 {
    // Before 5.18 the verifier lets no program load an argument that points to a plain number
    // (`btf_ctx_access`). The arguments are eight bytes each.
    let lladdr = at((ctx.as_ptr() as Addr).wrapping_add(8));
    update(ctx.arg(0), lladdr, ctx.arg(2), ctx.arg(3));
    0
}

#[raw_tracepoint]
pub fn rt_neigh_update(ctx: RawTracePointContext) -> i32 {
    update(ctx.arg(0), ctx.arg(1), ctx.arg(2), ctx.arg(3));
    0
}
