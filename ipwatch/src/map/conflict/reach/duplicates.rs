//! IPs that two netns have at once, if a peer could confuse the two.
//!
//! Only holders on one island, or behind one router, are compared with each other: a user can give one IP to thousands of
//! netns that nothing connects. What compares users' netns with each other has steps of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::plan::{DevId, Plan};
use super::router::{self, Port};
use super::{Endpoint, Meeting, flood};
use crate::fact::BootNs;
use crate::map::ipam::has;
use crate::map::kernel::Netns;
use crate::map::told::{Concern, Entry, choose};
use crate::map::{AddressEntry, Identity, NetnsId, NodeMap, Table};

/// Maximum for the same two netns: many shared IPs of one pair must not hide those of others.
const MAX_OF_TWO: usize = 16;
/// Maximum number of those that are left out which are known by name: an open finding may be about one of them.
const MAX_LEFT_OUT: usize = 8_192;
/// Maximum number of steps for all that concern a pod, the node or root; what would take more is not reported.
const STEPS: usize = 1 << 19;
/// The same for what concerns netns of users alone: a bridge with a hundred containers takes 40,000.
const STEPS_OF_USERS: usize = 1 << 17;

// Number of holders that were compared with others, for tests.
#[cfg(test)]
thread_local! {
    pub(crate) static COMPARED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

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

/// The duplicates found, and whether they are all.
#[derive(Debug)]
pub(super) struct Found {
    /// Those that are told.
    pub(super) all: Vec<Duplicate>,
    /// Those for which there is no place, by IP.
    pub(super) left_out: Vec<Duplicate>,
    /// These are all but for those among netns of users.
    pub(super) is_whole: bool,
    /// These are all among netns of users.
    pub(super) is_whole_of_users: bool,
}

/// Every duplicate of the node, as far as there is a place for it.
pub(super) fn find(map: &NodeMap) -> Found {
    let mut search = Search::new(map);
    let ips = map.conflict.reach.crowded.iter().filter(|ip| !map.is_shared_ip(**ip));
    let all: Vec<_> = ips.flat_map(|ip| search.of(*ip)).collect();
    let entries = all.into_iter().map(|(concern, one)| Entry {
        concern,
        of: one.both(),
        order: (one.first.since.max(one.second.since), one.ip, one.second.at),
        what: one,
    });
    let (all, mut left_out) = choose(entries, MAX_OF_TWO);
    left_out.sort_by_key(|(concern, _)| *concern);
    let beyond = left_out.split_off(left_out.len().min(MAX_LEFT_OUT));
    let is_of_users = |(concern, _): &(Concern, Duplicate)| *concern == Concern::Users;
    let Search { others, users, .. } = search;
    let is_whole = others.is_enough && beyond.iter().all(is_of_users);
    let is_whole_of_users = users.is_enough && beyond.is_empty();
    let mut left_out: Vec<Duplicate> = left_out.into_iter().map(|(_, one)| one).collect();
    left_out.sort_by_key(|one| one.ip);
    Found { all, left_out, is_whole, is_whole_of_users }
}

impl Duplicate {
    fn both(&self) -> (NetnsId, NetnsId) {
        let (one, other) = (self.first.at.netns, self.second.at.netns);
        (one.min(other), one.max(other))
    }
}

/// One holder of an IP, and its place in the plan.
struct Candidate {
    holding: Holding,
    rank: (BootNs, (u8, u64, u32)),
    concern: Concern,
    dev: DevId,
    island: DevId,
    port: Option<Behind>,
}

/// The port of a router that a holder is behind.
#[derive(Clone, Copy)]
struct Behind {
    /// The router, and the table that it uses there.
    router: (NetnsId, u32),
    /// It has the IP without a network.
    is_single: bool,
    /// The router sends what is for the IP there.
    is_way: bool,
}

/// A number of steps.
struct Effort {
    left: flood::Budget,
    is_enough: bool,
}

impl Effort {
    fn of(steps: usize) -> Self {
        Self { left: flood::Budget(steps), is_enough: true }
    }

    fn compare(&mut self) -> bool {
        #[cfg(test)]
        COMPARED.set(COMPARED.get() + 1);
        self.is_enough &= self.left.spend(1);
        self.is_enough
    }
}

struct Search<'a> {
    map: &'a NodeMap,
    /// What devices reach and through which device, sorted. What was looked for among users' netns may be cut short.
    reached: Table<(DevId, bool), Vec<(Endpoint, Endpoint)>>,
    others: Effort,
    users: Effort,
}

/// Those of the holders of one IP that came first, the ones that users' netns have apart.
#[derive(Default)]
struct Earlier {
    others: Places,
    users: Places,
}

/// Holders by where they can be met.
#[derive(Default)]
struct Places {
    on: Table<DevId, Linked>,
    behind: Table<(NetnsId, u32), Routed>,
}

/// The holders on one island.
#[derive(Default)]
struct Linked {
    /// In the order in which they came.
    all: Vec<usize>,
    at: Table<Endpoint, usize>,
    netns: Firsts,
}

/// The first holders behind one router. No two netns are behind one port.
#[derive(Default)]
struct Routed {
    all: Firsts,
    single: Firsts,
    ways: Firsts,
}

/// The first holder, and the first in another netns.
#[derive(Default)]
struct Firsts([Option<(NetnsId, usize)>; 2]);

impl Firsts {
    fn add(&mut self, netns: NetnsId, place: usize) {
        match &mut self.0 {
            [first @ None, _] => *first = Some((netns, place)),
            [Some((known, _)), other @ None] if *known != netns => *other = Some((netns, place)),
            _ => {}
        }
    }

    /// The first that is in another netns than this one.
    fn but(&self, netns: NetnsId) -> Option<usize> {
        self.0.iter().flatten().find(|(known, _)| *known != netns).map(|(_, place)| *place)
    }
}

impl Routed {
    /// The first that has the same IP to the router: see [`router::meeting`].
    fn first_to_meet(&self, second: &Candidate, by: &Behind) -> Option<usize> {
        let netns = second.holding.at.netns;
        if by.is_way {
            return self.all.but(netns);
        }
        let single = by.is_single.then(|| self.single.but(netns)).flatten();
        [self.ways.but(netns), single].into_iter().flatten().min()
    }
}

impl Places {
    fn add(&mut self, place: usize, one: &Candidate) {
        let netns = one.holding.at.netns;
        let linked = self.on.entry(one.island).or_default();
        linked.all.push(place);
        linked.at.insert(one.holding.at, place);
        linked.netns.add(netns, place);
        if let Some(by) = one.port {
            let routed = self.behind.entry(by.router).or_default();
            routed.all.add(netns, place);
            if by.is_single {
                routed.single.add(netns, place);
            }
            if by.is_way {
                routed.ways.add(netns, place);
            }
        }
    }
}

impl<'a> Search<'a> {
    fn new(map: &'a NodeMap) -> Self {
        let (others, users) = (Effort::of(STEPS), Effort::of(STEPS_OF_USERS));
        Self { map, reached: Table::default(), others, users }
    }

    /// The duplicates of one IP. A netns comes second in one of them at most: with the first one that is no user's, if there
    /// is any.
    fn of(&mut self, ip: IpAddr) -> Vec<(Concern, Duplicate)> {
        // The plan is made here, for most nodes have no such IP.
        let all = candidates(self.map, self.map.plan(), ip);
        let (mut found, mut told) = (Vec::new(), BTreeSet::new());
        let mut earlier = Earlier::default();
        for (place, second) in all.iter().enumerate() {
            let is_users = second.concern == Concern::Users;
            if !told.contains(&second.holding.at.netns) {
                let by_others = self.first_of(&all, &earlier.others, second, false);
                let by_users = match by_others {
                    Some(_) if is_users => None,
                    _ => self.first_of(&all, &earlier.users, second, is_users),
                };
                let first = [by_others, by_users].into_iter().flatten().min_by_key(|(at, _)| *at);
                if let Some((at, meeting)) = first {
                    let first = &all[at];
                    told.insert(second.holding.at.netns);
                    let concern = first.concern.min(second.concern);
                    let (first, second) = (first.holding, second.holding);
                    found.push((concern, Duplicate { ip, first, second, meeting }));
                }
            }
            let places = if is_users { &mut earlier.users } else { &mut earlier.others };
            places.add(place, second);
        }
        found
    }

    /// The first of these that a holder meets, and where. `among_users`: both are users'.
    fn first_of(
        &mut self,
        all: &[Candidate],
        earlier: &Places,
        second: &Candidate,
        among_users: bool,
    ) -> Option<(usize, Meeting)> {
        let linked = earlier.on.get(&second.island);
        let linked = linked.and_then(|linked| self.first_on_link(all, linked, second, among_users));
        let routed = second.port.and_then(|by| {
            let at = earlier.behind.get(&by.router)?.first_to_meet(second, &by)?;
            Some((at, Meeting::Router(by.router.0)))
        });
        // Who shares a link with the same one needs no router.
        linked.into_iter().chain(routed).min_by_key(|(at, _)| *at)
    }

    fn first_on_link(
        &mut self,
        all: &[Candidate],
        linked: &Linked,
        second: &Candidate,
        among_users: bool,
    ) -> Option<(usize, Meeting)> {
        // A cheap check before the flood.
        linked.netns.but(second.holding.at.netns)?;
        let Self { map, reached, others, users } = self;
        let effort = if among_users { users } else { others };
        let there = reached.entry((second.dev, among_users)).or_insert_with(|| {
            let reach = flood::reach(map.plan(), second.dev, &mut effort.left);
            effort.is_enough &= reach.complete;
            reach.endpoints
        });
        let there: &[(Endpoint, Endpoint)] = there;
        let may_be = |at: usize| {
            let first = &all[at];
            first.holding.at.netns != second.holding.at.netns && !is_one_gateway(map, first, second)
        };
        let mut first = None;
        if linked.all.len() <= there.len() {
            for at in linked.all.iter().copied() {
                if !effort.compare() {
                    return None;
                }
                let to = all[at].holding.at;
                if let Ok(place) = there.binary_search_by_key(&to, |(to, _)| *to)
                    && may_be(at)
                {
                    return Some((at, Meeting::Link(there[place].1)));
                }
            }
        } else {
            for (to, by) in there {
                if !effort.compare() {
                    return None;
                }
                let at = linked.at.get(to).copied().filter(|at| may_be(*at));
                let is_sooner = |at: &usize| first.is_none_or(|(sooner, _)| *at < sooner);
                first = at.filter(is_sooner).map(|at| (at, Meeting::Link(*by))).or(first);
            }
        }
        first
    }
}

/// The holders that answer for an IP, in the order in which they came, without those that are alone where they are.
fn candidates(map: &NodeMap, plan: &Plan, ip: IpAddr) -> Vec<Candidate> {
    let holders = map
        .with_ip(ip)
        .filter_map(|id| map.netns(id))
        .filter(|netns| netns.dying.is_none() && has(netns, ip));
    let holdings = holders.flat_map(|netns| {
        let own = netns.with_ip(ip).filter(move |(key, known)| {
            let stale = known.touched < map.lost_last.max(netns.overrun());
            netns.is_routable(key) && known.is_used() && !stale
        });
        own.filter_map(move |(key, known)| {
            let dev = plan.find(Endpoint { netns: netns.id, ifindex: key.ifindex })?;
            Some((netns, known, dev, router::port(map, plan, dev)))
        })
    });
    let holdings: Vec<(&Netns, &AddressEntry, DevId, Option<Port>)> = holdings.collect();
    let (mut on, mut behind) = (Table::default(), Table::default());
    for (place, (netns, _, dev, port)) in holdings.iter().enumerate() {
        let island: &mut Firsts = on.entry(plan.devs[*dev].island()).or_default();
        island.add(netns.id, place);
        if let Some(port) = port {
            let router: &mut Firsts = behind.entry((port.netns, port.table)).or_default();
            router.add(netns.id, place);
        }
    }
    let mut ways: BTreeMap<(NetnsId, u32), BTreeSet<u32>> = BTreeMap::new();
    let mut all = Vec::new();
    for (netns, known, dev, port) in holdings {
        let island = plan.devs[dev].island();
        let is_met = |met: Option<&Firsts>| met.is_some_and(|met| met.but(netns.id).is_some());
        let router = port.map(|port| (port.netns, port.table));
        let port = port.filter(|_| router.is_some_and(|router| is_met(behind.get(&router))));
        if port.is_none() && !is_met(on.get(&island)) {
            continue;
        }
        let holding = holding(map, netns, plan.devs[dev].at, known);
        let port = port.map(|port| {
            let router = (port.netns, port.table);
            let ways = ways
                .entry(router)
                .or_insert_with(|| router::ways(map, port.netns, port.table, ip).collect());
            let is_way = ways.contains(&port.ifindex());
            Behind { router, is_single: router::is_single(map, holding.at, ip), is_way }
        });
        let rank = (holding.not_before, rank(&netns.identity));
        all.push(Candidate { holding, rank, concern: Concern::of(netns), dev, island, port });
    }
    all.sort_by_key(|one| (one.rank, one.holding.at.ifindex));
    all
}

fn holding(map: &NodeMap, netns: &Netns, at: Endpoint, known: &AddressEntry) -> Holding {
    let AddressEntry { since, seen_to_come, .. } = *known;
    // An address read in a dump may be older than `since`.
    let made = || map.sandbox_made(netns).unwrap_or_default().min(since);
    let not_before = if seen_to_come { since } else { made() };
    Holding { at, since, seen_to_come, not_before }
}

/// A tie-breaker that is the same after a restart.
fn rank(identity: &Identity) -> (u8, u64, u32) {
    match *identity {
        Identity::Cookie(cookie) => (0, cookie, 0),
        Identity::Inode(inode, generation) => (1, inode.into(), generation),
        Identity::Nsid(nsid, generation) => (2, nsid.unsigned_abs().into(), generation),
    }
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
