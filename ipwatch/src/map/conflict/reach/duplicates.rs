//! IPs that two netns have at once, if a peer could confuse the two.

use std::net::IpAddr;

use super::plan::{DevId, Plan};
use super::router::{self, Port};
use super::{Endpoint, Meeting, flood};
use crate::fact::BootNs;
use crate::map::AddressEntry;
use crate::map::ipam::has;
use crate::map::kernel::Netns;
use crate::map::{Identity, NetnsId, NodeMap, Table};

/// Maximum number of duplicates reported at once.
const MAX_DUPLICATES: usize = 512;
/// Maximum for the same two netns: many shared IPs of one pair must not hide those of others.
const MAX_OF_TWO: usize = 16;
/// Maximum number of steps for all of them; what would take more is not reported.
const STEPS: usize = 1 << 19;

/// A netns device that has an IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    pub at: Endpoint,
    /// When it was first known.
    pub since: BootNs,
    /// Its arrival was observed; otherwise it may have been there for long.
    pub seen_to_come: bool,
    /// Earliest possible arrival: when it was observed to arrive, else when its sandbox was made, else 0.
    pub not_before: BootNs,
}

/// Two holders of one IP that meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicate {
    pub ip: IpAddr,
    /// The holder that has had the IP longer. If more than two meet: the earliest that the other one meets.
    pub first: Holding,
    /// The holder that came later, as far as that is known.
    pub second: Holding,
    pub meeting: Meeting,
}

impl Duplicate {
    /// Whether the second one certainly came later.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.first.since <= self.second.not_before
    }
}

/// One holder of an IP, and its place in the plan.
struct Candidate {
    holding: Holding,
    rank: (BootNs, (u8, u64, u32)),
    dev: DevId,
    island: DevId,
    port: Option<Port>,
}

/// The duplicates found, and whether they are all.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) all: Vec<Duplicate>,
    pub(super) complete: bool,
}

/// What devices reach and through which device, sorted.
struct Reached {
    known: Table<DevId, Vec<(Endpoint, Endpoint)>>,
    budget: flood::Budget,
    complete: bool,
}

pub(super) fn find(map: &NodeMap) -> Found {
    let mut found = Found { all: Vec::new(), complete: true };
    let budget = flood::Budget(STEPS);
    let mut reached = Reached { known: Table::default(), budget, complete: true };
    let mut of_two: Table<(NetnsId, NetnsId), usize> = Table::default();
    for ip in map.conflict.reach.crowded.iter().copied().filter(|ip| !map.is_shared_ip(*ip)) {
        let all = candidates(map, map.plan(), ip);
        for (place, second) in all.iter().enumerate() {
            let told =
                |one: &Duplicate| one.ip == ip && one.second.at.netns == second.holding.at.netns;
            if found.all.iter().rev().take_while(|one| one.ip == ip).any(told) {
                continue;
            }
            let earlier = all[..place].iter();
            let pair = earlier.filter(|first| may_meet(first, second)).find_map(|first| {
                let meeting = meeting(map, &mut reached, ip, first, second)?;
                (!is_one_gateway(map, first, second)).then_some((first.holding, meeting))
            });
            let Some((first, meeting)) = pair else { continue };
            let (one, other) = (first.at.netns, second.holding.at.netns);
            let told = of_two.entry((one.min(other), one.max(other))).or_default();
            if found.all.len() >= MAX_DUPLICATES {
                return Found { complete: false, ..found };
            }
            if *told >= MAX_OF_TWO {
                found.complete = false;
                continue;
            }
            *told += 1;
            found.all.push(Duplicate { ip, first, second: second.holding, meeting });
        }
    }
    found.complete &= reached.complete;
    found
}

/// The holders that answer for an IP, in the order in which they came.
fn candidates(map: &NodeMap, plan: &Plan, ip: IpAddr) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = map
        .with_ip(ip)
        .filter_map(|id| map.netns(id))
        .filter(|netns| netns.dying.is_none() && has(netns, ip))
        .flat_map(|netns| {
            let own = netns.with_ip(ip).filter(move |(key, known)| {
                let stale = known.touched < map.lost_last.max(netns.overrun());
                netns.is_routable(key) && known.is_used() && !stale
            });
            own.map(move |(key, known)| (netns, key.ifindex, known))
        })
        .filter_map(|(netns, ifindex, known)| candidate(map, plan, netns, ifindex, known))
        .collect();
    all.sort_by_key(|one| (one.rank, one.holding.at.ifindex));
    all
}

fn candidate(
    map: &NodeMap,
    plan: &Plan,
    netns: &Netns,
    ifindex: u32,
    known: &AddressEntry,
) -> Option<Candidate> {
    let at = Endpoint { netns: netns.id, ifindex };
    let dev = plan.find(at)?;
    let AddressEntry { since, seen_to_come, .. } = *known;
    // An address read in a dump may be older than `since`.
    let made = || map.sandbox_made(netns).unwrap_or_default().min(since);
    let not_before = if seen_to_come { since } else { made() };
    Some(Candidate {
        holding: Holding { at, since, seen_to_come, not_before },
        rank: (not_before, rank(&netns.identity)),
        dev,
        island: plan.devs[dev].island(),
        port: router::port(map, plan, dev),
    })
}

/// A tie-breaker that is the same after a restart.
fn rank(identity: &Identity) -> (u8, u64, u32) {
    match *identity {
        Identity::Cookie(cookie) => (0, cookie, 0),
        Identity::Inode(inode, generation) => (1, inode.into(), generation),
        Identity::Nsid(nsid, generation) => (2, nsid.unsigned_abs().into(), generation),
    }
}

/// A cheap check before the flood.
fn may_meet(a: &Candidate, b: &Candidate) -> bool {
    let routed = match (a.port, b.port) {
        (Some(a), Some(b)) => (a.netns, a.table) == (b.netns, b.table),
        _ => false,
    };
    a.holding.at.netns != b.holding.at.netns && (a.island == b.island || routed)
}

fn meeting(
    map: &NodeMap,
    reached: &mut Reached,
    ip: IpAddr,
    first: &Candidate,
    second: &Candidate,
) -> Option<Meeting> {
    if first.island == second.island {
        let Reached { known, budget, complete } = reached;
        let there = known.entry(second.dev).or_insert_with(|| {
            let reach = flood::reach(map.plan(), second.dev, budget);
            *complete &= reach.complete;
            reach.endpoints
        });
        let place = there.binary_search_by_key(&first.holding.at, |(to, _)| *to);
        if let Ok(place) = place {
            return Some(Meeting::Link(there[place].1));
        }
    }
    let ports = (first.port?, second.port?);
    let met = router::meet(map, (first.holding.at, ports.0, ip), (second.holding.at, ports.1, ip));
    met.then_some(Meeting::Router(ports.0.netns))
}

/// Whether both are one gateway that exists on every bridge of a link with the same MAC.
fn is_one_gateway(map: &NodeMap, a: &Candidate, b: &Candidate) -> bool {
    let bridge = |one: &Candidate| {
        let Endpoint { netns, ifindex } = one.holding.at;
        let link = map.netns(netns)?.link(ifindex)?;
        (link.kind.as_deref() == Some("bridge")).then_some(link.mac)?
    };
    bridge(a).is_some() && bridge(a) == bridge(b)
}
