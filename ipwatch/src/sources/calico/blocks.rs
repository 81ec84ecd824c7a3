//! The blocks of the cluster: which IP is allocated to which container of this node, and how many IPs of each block are
//! allocated by any node.
//!
//! A block usually belongs to one node, but another node may borrow from it. Therefore every block is read, and only
//! this node's allocations are reported and kept. Tunnels, load balancers and Windows reservations have addresses too;
//! they belong to no container and cannot leak.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::clock;
use crate::fact::{self, BootNs, Observation, PodName, Reservation, Scope};

use super::STORE;
use super::documents::{Block, Owner, Slot};
use super::keys::{Kept, Keys};

/// Maximum number of this node's allocations that are followed. A node runs some hundred pods.
const MOST: usize = 16_384;
/// Maximum number of blocks. Four for each of 5,000 nodes are 20,000.
const MOST_BLOCKS: usize = 131_072;
/// Minimum length of the last part of a handle that is a container's id.
const SHORTEST_ID: usize = 32;
/// Handles with these prefixes belong to a node.
const OF_NODES: [&str; 4] =
    ["ipip-tunnel-addr-", "vxlan-tunnel-addr-", "vxlan-v6-tunnel-addr-", "wireguard-"];

/// Minimum nanoseconds between two reports of how many IPs are allocated: in a cluster pods start all the time, and
/// each fact costs a pass over the map.
const PAUSE: u64 = 5_000_000_000;

/// What was reported of each block.
#[derive(Default)]
pub(in crate::sources) struct Blocks {
    node: String,
    told: BTreeMap<String, Reported>,
    /// During a list: the blocks that it has contained so far.
    listed: Option<BTreeSet<String>>,
    followed: usize,
    wrong: usize,
    /// Number of blocks beyond the limit, since the last list began.
    beyond: usize,
    /// Blocks whose number of allocated IPs has changed and was not reported yet, and the time of the last report.
    waiting: BTreeSet<String>,
    counted: BootNs,
}

/// What was reported of a block, and how many of its entries could not be parsed.
#[derive(Default)]
struct Reported {
    own: BTreeMap<u32, Reservation>,
    wrong: usize,
    /// As in [`fact::Block`].
    first: Option<IpAddr>,
    taken: Option<u32>,
}

impl Blocks {
    pub(super) fn new(node: String) -> Self {
        Self { node, ..Self::default() }
    }

    /// Handles the current state of a block. `None`: it could not be parsed, and what was reported of it stays valid.
    fn block(&mut self, key: &str, block: Option<Block>, out: &mut Vec<Observation>) {
        // During a list everything is reported, or it would count as gone.
        let all = self.listed.as_mut().is_some_and(|listed| {
            listed.insert(key.to_owned());
            true
        });
        if self.told.len() >= MOST_BLOCKS && !self.told.contains_key(key) {
            self.beyond += 1;
            if self.listed.is_none() {
                // Whoever counts blocks must not take a part for all of them.
                let (scope, began) = (all_blocks(), BootNs(0));
                out.push(Observation::Ended { scope, began, complete: false });
            }
            return;
        }
        let is_new = !self.told.contains_key(key);
        let before = self.forget(key);
        let first = block.as_ref().map_or(before.first, |block| block.cidr.nth(0));
        let taken =
            block.as_ref().and_then(|block| if block.deleted { Some(0) } else { block.taken });
        // A number that becomes unknown is reported at once, and so is one that may not have been reported.
        let known = before.taken.is_some() && taken.is_some() && before.first == first;
        if all || is_new || !known && (before.first, before.taken) != (first, taken) {
            out.push(count(key, first, taken));
            self.waiting.remove(key);
        } else if before.taken != taken {
            self.waiting.insert(key.to_owned());
        }
        let Some(block) = block else {
            if all {
                out.extend(before.own.values().cloned().map(Observation::Reservation));
            }
            return self.keep(key, Reported { wrong: 1, taken, ..before });
        };
        let mut now = Reported { own: BTreeMap::new(), wrong: block.wrong, first, taken };
        let slots: &[Slot] = if block.deleted { &[] } else { &block.slots };
        for (ordinal, slot) in (0_u32..).zip(slots) {
            let reservation = match slot {
                Slot::Free => None,
                Slot::Unknown => before.own.get(&ordinal).cloned(),
                Slot::Taken(owner) => self.own(key, &block, ordinal, owner),
            };
            let Some(reservation) = reservation else { continue };
            if self.followed + now.own.len() >= MOST {
                now.wrong += 1;
                continue;
            }
            if all || before.own.get(&ordinal) != Some(&reservation) {
                out.push(Observation::Reservation(reservation.clone()));
            }
            now.own.insert(ordinal, reservation);
        }
        let gone = before.own.into_iter().filter(|(ordinal, _)| !now.own.contains_key(ordinal));
        out.extend(gone.map(|(_, was)| went(was)));
        self.keep(key, now);
        let now = clock::now();
        if self.listed.is_none() && (!out.is_empty() || now.since(self.counted) >= PAUSE) {
            self.overdue(out);
            self.counted = now;
        }
    }

    fn keep(&mut self, key: &str, told: Reported) {
        self.followed += told.own.len();
        self.wrong += told.wrong;
        self.told.insert(key.to_owned(), told);
    }

    fn forget(&mut self, key: &str) -> Reported {
        let told = self.told.remove(key).unwrap_or_default();
        self.followed -= told.own.len();
        self.wrong -= told.wrong;
        told
    }

    /// The reservation of an allocation, if it is this node's.
    fn own(&self, block: &str, of: &Block, ordinal: u32, owner: &Owner) -> Option<Reservation> {
        if owner.node.as_ref().or(of.host.as_ref()) != Some(&self.node) {
            return None;
        }
        let named = Named::of(owner);
        Some(Reservation {
            store: STORE.to_owned(),
            network: named.network,
            key: format!("{block}/{ordinal}"),
            ip: of.cidr.nth(ordinal.into())?,
            container_id: named.container,
            ifname: named.ifname,
            pod: named.pod,
            // Only if the block itself names this node: `since` decides whether the allocation was made before the
            // boot.
            since: owner.node.is_some().then(|| since(owner.timestamp.as_deref()?)).flatten(),
        })
    }
}

impl Keys for Blocks {
    fn began(&mut self, out: &mut Vec<Observation>) {
        (self.listed, self.beyond) = (Some(BTreeSet::new()), 0);
        out.extend([Observation::Began(scope()), Observation::Began(all_blocks())]);
    }

    fn put(&mut self, key: &str, value: Kept<'_>, out: &mut Vec<Observation>) {
        self.block(key, value.read(Block::read), out);
    }

    fn gone(&mut self, key: &str, out: &mut Vec<Observation>) {
        if self.told.contains_key(key) {
            out.push(Observation::BlockGone { store: STORE.to_owned(), key: key.to_owned() });
        }
        out.extend(self.forget(key).own.into_values().map(went));
    }

    fn ended(&mut self, began: BootNs, complete: bool, out: &mut Vec<Observation>) {
        let listed = self.listed.take().unwrap_or_default();
        let complete = complete && self.beyond == 0;
        if complete {
            let gone: Vec<String> =
                self.told.keys().filter(|key| !listed.contains(*key)).cloned().collect();
            gone.iter().for_each(|key| {
                self.forget(key);
            });
        }
        let scopes = [scope(), all_blocks()];
        out.extend(scopes.map(|scope| Observation::Ended { scope, began, complete }));
    }

    /// Reports the number of allocated IPs of the blocks for which that was delayed.
    fn overdue(&mut self, out: &mut Vec<Observation>) {
        for key in std::mem::take(&mut self.waiting) {
            if let Some(told) = self.told.get(&key) {
                out.push(count(&key, told.first, told.taken));
            }
        }
    }

    fn wrong(&self) -> usize {
        self.wrong + self.beyond
    }
}

fn scope() -> Scope {
    Scope::Reservations { store: STORE.to_owned() }
}

fn count(key: &str, first: Option<IpAddr>, taken: Option<u32>) -> Observation {
    Observation::Block(fact::Block { store: STORE.to_owned(), key: key.to_owned(), first, taken })
}

fn all_blocks() -> Scope {
    Scope::Blocks { store: STORE.to_owned() }
}

fn went(was: Reservation) -> Observation {
    Observation::ReservationGone { store: was.store, key: was.key }
}

/// The owner that a handle names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    network: String,
    container: Option<String>,
    ifname: Option<String>,
    pod: Option<PodName>,
}

impl Named {
    fn of(owner: &Owner) -> Self {
        let handle = owner.handle.as_deref().unwrap_or_default();
        // Some handles contain the interface after a line break.
        let (handle, rest) = handle.split_once(['\r', '\n']).unwrap_or((handle, ""));
        let (handle, ifname) = (handle.trim(), rest.trim());
        let pod = |namespace: &str, name: &str| {
            (!namespace.is_empty() && !name.is_empty()).then(|| PodName {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: None,
            })
        };
        let told = owner.namespace.as_deref().zip(owner.pod.as_deref());
        let told = told.and_then(|(namespace, name)| pod(namespace, name));
        let of_node = owner.kind.is_some() || OF_NODES.iter().any(|own| handle.starts_with(own));
        if of_node {
            let network = owner.kind.as_deref().unwrap_or(handle);
            return Self { network: network.to_owned(), ..Self::default() };
        }
        match handle.rsplit_once('.') {
            Some((network, id)) if is_id(id) => Self {
                network: network.to_owned(),
                container: Some(id.to_owned()),
                ifname: (!ifname.is_empty()).then(|| ifname.to_owned()),
                pod: told,
            },
            // Older handles contain the pod: no network has a pod's namespace and name.
            Some(_) if told.is_none() => {
                let named = handle.split_once('.').filter(|_| owner.node.is_none());
                let pod = named.and_then(|(namespace, name)| pod(namespace, name));
                let network = if pod.is_some() { String::new() } else { handle.to_owned() };
                Self { network, pod, ..Self::default() }
            }
            _ if told.is_some() => Self { pod: told, ..Self::default() },
            _ => Self { network: handle.to_owned(), ..Self::default() },
        }
    }
}

/// Whether this is a container's id and not a word: hex digits, or a UUID.
fn is_id(text: &str) -> bool {
    text.len() >= SHORTEST_ID && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// Parses `2024-05-01 10:11:12.123456789 +0000 UTC`, Go's format.
fn since(text: &str) -> Option<i64> {
    let mut words = text.split_whitespace();
    let date = format!("{} {} {}", words.next()?, words.next()?, words.next()?);
    let at = jiff::Zoned::strptime("%Y-%m-%d %H:%M:%S%.f %z", &date).ok()?;
    i64::try_from(at.timestamp().as_nanosecond()).ok()
}

#[cfg(test)]
mod tests;
