//! Whereabouts' pools: which IP is allocated to which container, in the whole cluster.
//!
//! Read of an IPPool are its name, `spec.range`, and of each allocation the offset, `id`, `podref` and `ifname`. The IP
//! is the address in `range` plus the offset. The ranges that a pool may allocate from are in
//! [`networks`](super::networks).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::reflector::{Change, Kind};
use crate::fact::{Observation, PodName, Reservation, Scope, store};
use crate::prefix::Prefix;
use crate::sources::json::Name;

/// Name of the store and of its source.
pub(super) const STORE: &str = store::WHEREABOUTS;
/// Maximum number of allocations that are followed: two /16.
const MOST: usize = 131_072;

/// What was reported of each pool.
#[derive(Default)]
pub(super) struct Pools {
    told: BTreeMap<String, Reported>,
    /// During a list: the pools that it has contained so far.
    listed: Option<BTreeSet<String>>,
    hasher: RandomState,
    followed: usize,
}

/// A hash of each reported allocation, and the number of malformed ones.
#[derive(Default)]
struct Reported {
    offsets: BTreeMap<u128, u64>,
    wrong: usize,
}

/// `IPPool`
#[derive(Deserialize)]
pub(crate) struct IpPool {
    #[serde(default)]
    pub(crate) metadata: Meta,
    pub(crate) spec: Spec,
}

/// Fields of its `ObjectMeta`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Meta {
    pub(crate) name: Name,
    pub(crate) namespace: Name,
}

#[derive(Deserialize)]
pub(crate) struct Spec {
    pub(crate) range: Name,
    #[serde(default)]
    pub(crate) allocations: Allocations,
}

/// By offset. Malformed allocations are counted.
#[derive(Default)]
pub(crate) struct Allocations {
    pub(crate) read: BTreeMap<u128, Allocation>,
    pub(crate) wrong: usize,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Allocation {
    pub(crate) id: Name,
    pub(crate) podref: Name,
    ifname: Name,
    /// Its owner, if it outlives its pods.
    #[serde(rename = "ipamclaimref")]
    pub(crate) claim: Name,
}

impl<'de> Deserialize<'de> for Allocations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Allocations;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("allocations")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Allocations::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Allocations::default();
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value::<Value>()?;
                    // Whereabouts itself ignores keys that are not numbers.
                    let offset = key.parse::<u128>().ok().filter(|_| all.read.len() < MOST);
                    match (offset, serde_json::from_value(value)) {
                        (Some(offset), Ok(allocation)) => {
                            all.read.insert(offset, allocation);
                        }
                        _ => all.wrong += 1,
                    }
                }
                Ok(all)
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

impl Kind for Pools {
    type Item = IpPool;

    fn source(&self) -> &'static str {
        STORE
    }

    fn about(&self) -> String {
        "Whereabouts' pools".to_owned()
    }

    fn path(&self) -> String {
        "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools?".to_owned()
    }

    fn may_be_missing(&self) -> bool {
        true
    }

    fn wrong(&self) -> usize {
        self.told.values().map(|told| told.wrong).sum()
    }

    fn tell(&mut self, change: Change<Self::Item>, out: &mut Vec<Observation>) {
        let scope = || Scope::Reservations { store: STORE.to_owned() };
        match change {
            Change::Began => {
                self.listed = Some(BTreeSet::new());
                out.push(Observation::Began(scope()));
            }
            Change::Now(pool) => self.pool(pool, out),
            Change::Gone(pool) => self.gone(&name(&pool.metadata), out),
            Change::Ended { began, complete } => {
                let listed = self.listed.take().unwrap_or_default();
                if complete {
                    self.told.retain(|name, _| listed.contains(name));
                    self.followed = self.told.values().map(|told| told.offsets.len()).sum();
                }
                out.push(Observation::Ended { scope: scope(), began, complete });
            }
            Change::Confirmed => {}
        }
    }
}

/// The name of a pool.
fn name(meta: &Meta) -> String {
    format!("{}/{}", meta.namespace.0, meta.name.0)
}

fn key(pool: &str, offset: u128) -> String {
    format!("ippools/{pool}/{offset}")
}

impl Pools {
    fn pool(&mut self, pool: IpPool, out: &mut Vec<Observation>) {
        let named = name(&pool.metadata);
        // During a list everything is reported, or it would count as gone.
        let all = self.listed.as_mut().is_some_and(|listed| {
            listed.insert(named.clone());
            true
        });
        let before = self.told.remove(&named).unwrap_or_default();
        self.followed -= before.offsets.len();
        let mut told = Reported { wrong: pool.spec.allocations.wrong, ..Reported::default() };
        let range = Prefix::from_cidr(&pool.spec.range.0);
        for (offset, allocation) in pool.spec.allocations.read {
            let ip = range.as_ref().and_then(|range| range.plus(offset));
            let Some(ip) = ip.filter(|_| self.followed < MOST) else {
                told.wrong += 1;
                continue;
            };
            let reservation = reservation(&pool.metadata, &named, offset, ip, allocation);
            let hash = self.hasher.hash_one(&reservation);
            if all || before.offsets.get(&offset) != Some(&hash) {
                out.push(Observation::Reservation(reservation));
            }
            told.offsets.insert(offset, hash);
            self.followed += 1;
        }
        for offset in before.offsets.keys().filter(|offset| !told.offsets.contains_key(offset)) {
            let key = key(&named, *offset);
            out.push(Observation::ReservationGone { store: STORE.to_owned(), key });
        }
        self.told.insert(named, told);
    }

    fn gone(&mut self, pool: &str, out: &mut Vec<Observation>) {
        let told = self.told.remove(pool).unwrap_or_default();
        self.followed -= told.offsets.len();
        out.extend(told.offsets.keys().map(|offset| {
            let key = key(pool, *offset);
            Observation::ReservationGone { store: STORE.to_owned(), key }
        }));
    }
}

fn reservation(
    meta: &Meta,
    pool: &str,
    offset: u128,
    ip: IpAddr,
    allocation: Allocation,
) -> Reservation {
    let Allocation { id, podref, ifname, .. } = allocation;
    let pod = podref.0.split_once('/').map(|(namespace, name)| PodName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: None,
    });
    Reservation {
        store: STORE.to_owned(),
        network: meta.name.0.clone(),
        key: key(pool, offset),
        ip,
        container_id: Some(id.0).filter(|id| !id.is_empty()),
        ifname: Some(ifname.0).filter(|name| !name.is_empty()),
        pod,
        since: None,
    }
}

/// The name that Whereabouts gives to the pool of a range: `10.0.0.0-27`.
pub(crate) fn pool_name(range: &Prefix) -> String {
    range.network().to_cidr().replace([':', '/'], "-")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fact::BootNs;

    fn pool(range: &str, allocations: Value) -> IpPool {
        serde_json::from_value(json!({
            "metadata": {"name": "10.0.0.0-27", "namespace": "kube-system"},
            "spec": {"range": range, "allocations": allocations},
        }))
        .unwrap()
    }

    fn told(pools: &mut Pools, change: Change<IpPool>) -> Vec<String> {
        let mut out = Vec::new();
        pools.tell(change, &mut out);
        let text = |what: &Observation| match what {
            Observation::Reservation(one) => {
                let pod = one.pod.as_ref().map(|pod| format!(" {}/{}", pod.namespace, pod.name));
                let id = one.container_id.as_deref().unwrap_or("-");
                format!("{} {} {id}{}", one.key, one.ip, pod.unwrap_or_default())
            }
            Observation::ReservationGone { key, .. } => format!("gone {key}"),
            other => serde_json::to_value(other).unwrap()["what"].as_str().unwrap().to_owned(),
        };
        out.iter().map(text).collect()
    }

    #[test]
    fn an_allocation_is_the_written_address_and_so_many_more() {
        let mut pools = Pools::default();
        assert_eq!(told(&mut pools, Change::Began), ["began"]);
        let all = json!({"3": {"id": "c3", "podref": "shop/api-0", "ifname": "net1"}, "26": {"id": "c26"}});
        let first = told(&mut pools, Change::Now(pool("10.0.0.4/27", all.clone())));
        let expected = [
            "ippools/kube-system/10.0.0.0-27/3 10.0.0.7 c3 shop/api-0",
            "ippools/kube-system/10.0.0.0-27/26 10.0.0.30 c26",
        ];
        assert_eq!(first, expected);
        let ended = Change::Ended { began: BootNs(1), complete: true };
        assert_eq!(told(&mut pools, ended), ["ended"]);
        let none: [&str; 0] = [];
        assert_eq!(told(&mut pools, Change::Now(pool("10.0.0.4/27", all.clone()))), none);
        let left = json!({"3": {"id": "other"}});
        assert_eq!(
            told(&mut pools, Change::Now(pool("10.0.0.4/27", left.clone()))),
            [
                "ippools/kube-system/10.0.0.0-27/3 10.0.0.7 other",
                "gone ippools/kube-system/10.0.0.0-27/26"
            ]
        );
        // A list reports everything, because what it does not contain is gone.
        told(&mut pools, Change::Began);
        assert_eq!(told(&mut pools, Change::Now(pool("10.0.0.4/27", left))).len(), 1);
        let gone = pool("10.0.0.4/27", json!(null));
        assert_eq!(
            told(&mut pools, Change::Gone(gone)),
            ["gone ippools/kube-system/10.0.0.0-27/3"]
        );
        assert_eq!(pools.followed, 0);
    }

    #[test]
    fn what_is_no_allocation_is_counted_and_spoils_no_other() {
        let strange = json!({
            "x": {"id": "c"}, "-1": {"id": "c"}, "1.5": {"id": "c"}, "": {"id": "c"},
            "99999999999999999999999999999999999999999": {"id": "c"},
            "32": {"id": "outside"}, "5": "no object", "6": {"id": 7},
            "1": {"id": "c1", "podref": "nonsense", "news": {"of": ["a", "newer", "schema"]}},
        });
        let mut pools = Pools::default();
        let all = told(&mut pools, Change::Now(pool("10.0.0.0/27", strange)));
        assert_eq!(all, ["ippools/kube-system/10.0.0.0-27/1 10.0.0.1 c1"]);
        assert_eq!(pools.wrong(), 8);
        for range in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/-1"] {
            let mut pools = Pools::default();
            let all = told(&mut pools, Change::Now(pool(range, json!({"1": {"id": "c"}}))));
            assert_eq!((all.len(), pools.wrong()), (0, 1), "{range}");
        }
        assert!(serde_json::from_value::<IpPool>(json!({"spec": {"range": 7}})).is_err());
    }

    #[test]
    fn an_ipv6_range_has_offsets_too() {
        let mut pools = Pools::default();
        let all = json!({"1": {"id": "a"}, "18446744073709551615": {"id": "b"}, "18446744073709551616": {"id": "c"}});
        let all = told(&mut pools, Change::Now(pool("fd00::/64", all)));
        assert!(
            all[0].ends_with("/1 fd00::1 a") && all[1].ends_with(" fd00::ffff:ffff:ffff:ffff b"),
            "{all:?}"
        );
        assert_eq!((all.len(), pools.wrong()), (2, 1));
        assert_eq!(pool_name(&"fd00::/64".parse().unwrap()), "fd00---64");
    }

    #[test]
    fn ten_thousand_allocations_are_told_and_followed_by_what_changes() {
        let all: serde_json::Map<String, Value> = (1..=10_000)
            .map(|n| (n.to_string(), json!({"id": format!("c{n}"), "podref": "shop/api"})))
            .collect();
        let mut pools = Pools::default();
        let mut out = Vec::new();
        pools.tell(Change::Now(pool("10.0.0.0/16", Value::Object(all.clone()))), &mut out);
        assert_eq!((out.len(), pools.followed), (10_000, 10_000));
        out.clear();
        let mut fewer = all;
        fewer.remove("77");
        pools.tell(Change::Now(pool("10.0.0.0/16", Value::Object(fewer))), &mut out);
        assert_eq!((out.len(), pools.followed), (1, 9_999));
    }
}
