//! The blocks of the cluster: which IP is allocated to which container of this node.
//!
//! A block is one node's as a rule, but another may have borrowed from it: every block is looked at, and only what
//! is this node's is told and kept. Tunnels, load balancers and what Windows keeps back have addresses too: nobody's
//! container, so nothing that could leak.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, PodName, Reservation, Scope, What};

use super::STORE;
use super::documents::{Block, Owner, Slot};

/// Allocations of this node that are followed. A node runs some hundred pods.
const MOST: usize = 16_384;
/// Blocks that are known. Four of each of 5,000 nodes are 20,000.
const MOST_BLOCKS: usize = 131_072;
/// The shortest tail of a handle that is a container's id.
const SHORTEST_ID: usize = 32;
/// Handles that begin so are a node's own.
const OF_NODES: [&str; 4] =
    ["ipip-tunnel-addr-", "vxlan-tunnel-addr-", "vxlan-v6-tunnel-addr-", "wireguard-"];

/// What was told of each block.
#[derive(Default)]
pub(super) struct Blocks {
    node: String,
    told: BTreeMap<String, Told>,
    /// Blocks that the list has named so far, while one comes.
    listed: Option<BTreeSet<String>>,
    followed: usize,
    wrong: usize,
    /// Blocks beyond the bound, since the last list began.
    beyond: usize,
}

/// What was told of a block, and how much of it is not understood.
#[derive(Default)]
struct Told {
    own: BTreeMap<u32, Reservation>,
    wrong: usize,
}

impl Blocks {
    pub(super) fn new(node: String) -> Self {
        Self { node, ..Self::default() }
    }

    /// Entries that are not understood, of all blocks.
    pub(super) fn wrong(&self) -> usize {
        self.wrong + self.beyond
    }

    pub(super) fn began(&mut self, out: &mut Vec<What>) {
        (self.listed, self.beyond) = (Some(BTreeSet::new()), 0);
        out.push(What::Began(scope()));
    }

    pub(super) fn ended(&mut self, began: BootNs, complete: bool, out: &mut Vec<What>) {
        let listed = self.listed.take().unwrap_or_default();
        let complete = complete && self.beyond == 0;
        if complete {
            let gone: Vec<String> =
                self.told.keys().filter(|key| !listed.contains(*key)).cloned().collect();
            gone.iter().for_each(|key| {
                self.forget(key);
            });
        }
        out.push(What::Ended { scope: scope(), began, complete });
    }

    /// A block is so now. Absent: it is not understood, and what was told of it stands.
    pub(super) fn put(&mut self, key: &str, block: Option<Block>, out: &mut Vec<What>) {
        // In a list everything is told, or it would be taken for gone.
        let all = self.listed.as_mut().is_some_and(|listed| {
            listed.insert(key.to_owned());
            true
        });
        if self.told.len() >= MOST_BLOCKS && !self.told.contains_key(key) {
            self.beyond += 1;
            return;
        }
        let before = self.forget(key);
        let Some(block) = block else {
            if all {
                out.extend(before.own.values().cloned().map(What::Reservation));
            }
            return self.keep(key, Told { own: before.own, wrong: 1 });
        };
        let mut now = Told { own: BTreeMap::new(), wrong: block.wrong };
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
                out.push(What::Reservation(reservation.clone()));
            }
            now.own.insert(ordinal, reservation);
        }
        let gone = before.own.into_iter().filter(|(ordinal, _)| !now.own.contains_key(ordinal));
        out.extend(gone.map(|(_, was)| went(was)));
        self.keep(key, now);
    }

    pub(super) fn gone(&mut self, key: &str, out: &mut Vec<What>) {
        out.extend(self.forget(key).own.into_values().map(went));
    }

    fn keep(&mut self, key: &str, told: Told) {
        self.followed += told.own.len();
        self.wrong += told.wrong;
        self.told.insert(key.to_owned(), told);
    }

    fn forget(&mut self, key: &str) -> Told {
        let told = self.told.remove(key).unwrap_or_default();
        self.followed -= told.own.len();
        self.wrong -= told.wrong;
        told
    }

    /// The reservation that an allocation is, if it is this node's.
    fn own(&self, block: &str, of: &Block, ordinal: u32, owner: &Owner) -> Option<Reservation> {
        if owner.node.as_ref().or(of.host.as_ref()) != Some(&self.node) {
            return None;
        }
        let named = Named::of(owner);
        Some(Reservation {
            store: STORE.to_owned(),
            network: named.network,
            key: format!("{block}/{ordinal}"),
            ip: of.cidr.ip(ordinal.into())?,
            container_id: named.container,
            ifname: named.ifname,
            pod: named.pod,
            // Only if the block itself says that it was this node's: it tells what was made before the boot.
            since: owner.node.is_some().then(|| since(owner.timestamp.as_deref()?)).flatten(),
        })
    }
}

fn scope() -> Scope {
    Scope::Reservations { store: STORE.to_owned() }
}

fn went(was: Reservation) -> What {
    What::ReservationGone { store: was.store, key: was.key }
}

/// Whom a handle is for.
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
        // Some carry the interface behind the end of a line.
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
            // Older ones are named after the pod: no network has a pod's namespace and name.
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

/// Whether this is a container's id, not a word: hex digits, or a UUID.
fn is_id(text: &str) -> bool {
    text.len() >= SHORTEST_ID && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// `2024-05-01 10:11:12.123456789 +0000 UTC`, as Go writes it.
fn since(text: &str) -> Option<i64> {
    let mut words = text.split_whitespace();
    let date = format!("{} {} {}", words.next()?, words.next()?, words.next()?);
    let at = jiff::Zoned::strptime("%Y-%m-%d %H:%M:%S%.f %z", &date).ok()?;
    i64::try_from(at.timestamp().as_nanosecond()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ID: &str = "aa4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
    const KEY: &str = "ipamblocks/10-0-0-0-29";

    fn told(blocks: &mut Blocks, value: &Value) -> Vec<String> {
        let mut out = Vec::new();
        blocks.put(KEY, Block::read(value), &mut out);
        texts(&out)
    }

    fn texts(out: &[What]) -> Vec<String> {
        let text = |what: &What| match what {
            What::Reservation(one) => {
                let pod = one.pod.as_ref().map(|pod| format!(" {}/{}", pod.namespace, pod.name));
                let id = one.container_id.as_deref().map_or("-", |id| &id[..4]);
                let at = one.key.strip_prefix(KEY).unwrap_or_default();
                format!("{at} {} {id} {}{}", one.ip, one.network, pod.unwrap_or_default())
            }
            What::ReservationGone { key, .. } => format!("gone {key}"),
            What::Ended { complete, .. } => format!("ended {complete}"),
            other => serde_json::to_value(other).unwrap()["what"].as_str().unwrap().to_owned(),
        };
        out.iter().map(text).collect()
    }

    fn pods(node: Option<&str>, handle: &str) -> Value {
        json!({"handle_id": handle, "secondary": {
            "node": node, "namespace": "shop", "pod": "api-0",
            "timestamp": "2024-05-01 10:11:12.5 +0000 UTC",
        }})
    }

    fn block(allocations: Value, attributes: Vec<Value>) -> Value {
        json!({"cidr": "10.0.0.0/29", "affinity": "host:node-1",
            "allocations": allocations, "attributes": attributes})
    }

    #[test]
    fn only_what_is_this_nodes_is_told() {
        let handle = format!("k8s-pod-network.{ID}");
        let own = pods(Some("node-1"), &handle);
        let borrowed = pods(Some("node-2"), &handle);
        let unsaid = json!({"handle_id": handle});
        let mut blocks = Blocks::new("node-1".to_owned());
        let now =
            block(json!([0, 1, 2, null, null, null, null, null]), vec![own, borrowed, unsaid]);
        let expected = [
            "/0 10.0.0.0 aa4c k8s-pod-network shop/api-0".to_owned(),
            "/2 10.0.0.2 aa4c k8s-pod-network".to_owned(),
        ];
        assert_eq!(told(&mut blocks, &now), expected);
        assert_eq!(blocks.told[KEY].own[&0].since, Some(1_714_558_272_500_000_000));
        assert_eq!(blocks.told[KEY].own[&2].since, None);
        // In another node's block it is what this one has borrowed.
        let mut other = Blocks::new("node-2".to_owned());
        assert_eq!(told(&mut other, &now), ["/1 10.0.0.1 aa4c k8s-pod-network shop/api-0"]);
        let none: [&str; 0] = [];
        assert_eq!(told(&mut blocks, &now), none, "nothing has changed");
        let deleted = json!({"cidr": "10.0.0.0/29", "deleted": true});
        assert_eq!(told(&mut blocks, &deleted).len(), 2, "both are gone");
        assert_eq!((blocks.followed, blocks.wrong), (0, 8));
    }

    #[test]
    fn what_is_no_containers_has_none() {
        let named = |handle: &str, secondary: Value| {
            let value = block(
                json!([0, null, null, null, null, null, null, null]),
                vec![json!({"handle_id": handle, "secondary": secondary})],
            );
            let mut blocks = Blocks::new("node-1".to_owned());
            let mut out = Vec::new();
            blocks.put(KEY, Block::read(&value), &mut out);
            let [What::Reservation(one)] = &out[..] else { panic!("{out:?}") };
            (
                one.container_id.clone(),
                one.pod.as_ref().map(|pod| pod.name.clone()),
                one.ifname.clone(),
            )
        };
        let tunnel = json!({"node": "node-1", "type": "ipipTunnelAddress"});
        let pod = |name: &str| Some(name.to_owned());
        assert_eq!(named("ipip-tunnel-addr-node-1", tunnel), (None, None, None));
        assert_eq!(named(&format!("vxlan-tunnel-addr-x.{ID}"), json!(null)), (None, None, None));
        assert_eq!(named("windows-reserved-ipam-handle", json!({"note": "x"})), (None, None, None));
        let service = json!({"type": "serviceLoadBalancer", "namespace": "a", "service": "b"});
        assert_eq!(named(&format!("lb-{ID}.{ID}"), service), (None, None, None));
        let machine = json!({"node": "node-1", "namespace": "shop", "pod": "vm-launcher"});
        assert_eq!(named("k8s-pod-network.vmi.shop.vm", machine), (None, pod("vm-launcher"), None));
        assert_eq!(
            named("shop.api-0", json!(null)),
            (None, pod("api-0"), None),
            "the first datastore"
        );
        let torn = format!("net.work.{ID}\r\neth0");
        assert_eq!(named(&torn, json!({})), (Some(ID.to_owned()), None, pod("eth0")));
        assert_eq!(named("", json!({})), (None, None, None));
    }

    #[test]
    fn what_is_not_understood_any_more_stands() {
        let own = pods(Some("node-1"), &format!("net.{ID}"));
        let mut blocks = Blocks::new("node-1".to_owned());
        let whole = json!([0, 0, null, null, null, null, null, null]);
        assert_eq!(told(&mut blocks, &block(whole, vec![own.clone()])).len(), 2);
        let broken = json!([7, -1, null, null, null, null, null, null]);
        let broken = block(broken, vec![own]);
        let none: [&str; 0] = [];
        assert_eq!(
            (told(&mut blocks, &broken), blocks.wrong()),
            (none.map(str::to_owned).to_vec(), 2)
        );
        // A list tells it again, or it would be taken for gone.
        let mut out = Vec::new();
        blocks.began(&mut out);
        blocks.put(KEY, Block::read(&broken), &mut out);
        blocks.ended(BootNs(1), true, &mut out);
        assert_eq!((out.len(), texts(&out)[3].as_str()), (4, "ended true"));
        let no_block = json!("no block");
        assert_eq!((told(&mut blocks, &no_block).len(), blocks.wrong()), (0, 1));
        let mut out = Vec::new();
        blocks.began(&mut out);
        blocks.ended(BootNs(2), true, &mut out);
        assert_eq!((blocks.followed, blocks.wrong()), (0, 0), "the list did not name it");
    }

    #[test]
    fn an_ipv6_block_has_ordinals_too() {
        let mut blocks = Blocks::new("node-1".to_owned());
        let mut slots = vec![Value::Null; 64];
        slots[63] = json!(0);
        let value = json!({"cidr": "fd00:1::40/122", "affinity": "host:node-1", "allocations": slots,
            "attributes": [pods(Some("node-1"), &format!("net.{ID}"))]});
        assert_eq!(told(&mut blocks, &value), ["/63 fd00:1::7f aa4c net shop/api-0"]);
        assert_eq!(blocks.wrong(), 0);
    }

    #[test]
    fn of_five_hundred_blocks_one_nodes_allocations_are_kept() {
        let mut blocks = Blocks::new("node-7".to_owned());
        let mut out = Vec::new();
        blocks.began(&mut out);
        for n in 0..500_u32 {
            let node = format!("node-{}", n / 4);
            let attributes: Vec<Value> =
                (0..64).map(|_| pods(Some(&node), &format!("net.{ID}"))).collect();
            let value = json!({"cidr": format!("10.{}.{}.0/26", n >> 8, n & 255),
                "affinity": format!("host:{node}"), "allocations": (0..64).collect::<Vec<u32>>(),
                "attributes": attributes});
            blocks.put(&format!("ipamblocks/{n}"), Block::read(&value), &mut out);
        }
        blocks.ended(BootNs(1), true, &mut out);
        assert_eq!((out.len(), blocks.followed, blocks.told.len()), (258, 256, 500));
        assert_eq!(blocks.wrong(), 0);
    }
}
