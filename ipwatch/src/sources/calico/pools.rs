//! Calico's pools, which blocks are taken from. The [`blocks`](super::blocks) show how much of them is allocated.
//!
//! A disabled pool allocates nothing any more, and one that is only for tunnels or load balancers allocates nothing to
//! pods: neither is a range.

use std::collections::BTreeMap;

use super::documents::Pool;
use super::keys::{Kept, Keys};
use super::{POOLS, STORE};
use crate::clock;
use crate::fact::{BootNs, Observation, Range, RangePart, Scope};

/// Maximum number of pools that are remembered. A cluster has a few.
const MOST: usize = 1024;

/// What was reported of each pool, by key.
#[derive(Default)]
pub(in crate::sources) struct Pools {
    told: BTreeMap<String, Reported>,
    /// During a list: what it has contained so far.
    listed: Option<BTreeMap<String, Reported>>,
    /// Number of pools beyond the limit, since the last list began.
    beyond: usize,
}

/// The range of a pool. If the pool cannot be parsed, its former range.
#[derive(Default)]
struct Reported {
    range: Option<Range>,
    wrong: bool,
}

impl Pools {
    /// Handles the current state of a pool. `name`: its name for people.
    fn pool(&mut self, key: &str, name: &str, pool: Option<Pool>, out: &mut Vec<Observation>) {
        let told = match pool {
            Some(pool) => Reported { range: range(name, &pool), wrong: false },
            None => {
                let before = self.told.get(key).and_then(|told| told.range.clone());
                Reported { range: before, wrong: true }
            }
        };
        let into = self.listed.as_mut().unwrap_or(&mut self.told);
        if into.len() >= MOST && !into.contains_key(key) {
            self.beyond += 1;
            return;
        }
        into.insert(key.to_owned(), told);
        if self.listed.is_none() {
            self.all(clock::now(), out);
        }
    }

    /// Reports all ranges.
    fn all(&self, began: BootNs, out: &mut Vec<Observation>) {
        let scope = || Scope::Ranges { store: STORE.to_owned() };
        out.push(Observation::Began(scope()));
        let ranges = self.told.values().filter_map(|told| told.range.clone());
        out.extend(ranges.take(MOST).map(Observation::Range));
        out.push(Observation::Ended { scope: scope(), began, complete: true });
    }
}

fn range(name: &str, pool: &Pool) -> Option<Range> {
    if !pool.is_for_pods {
        return None;
    }
    let (first, last) = pool.cidr.range();
    Some(Range {
        store: STORE.to_owned(),
        network: name.to_owned(),
        path: format!("ippools/{name}"),
        data_dir: None,
        shares: false,
        sets: vec![vec![RangePart { first, last, except: Vec::new() }]],
    })
}

impl Keys for Pools {
    fn source(&self) -> &'static str {
        POOLS
    }

    fn began(&mut self, _: &mut Vec<Observation>) {
        (self.listed, self.beyond) = (Some(BTreeMap::new()), 0);
    }

    fn put(&mut self, key: &str, value: Kept<'_>, out: &mut Vec<Observation>) {
        let Some((name, layout)) = named(key) else { return };
        let pool = value.read(|value| match layout {
            Layout::Bare => Pool::read(value),
            Layout::Resource => Pool::read(value.get("spec")?),
        });
        self.pool(key, &name, pool, out);
    }

    fn gone(&mut self, key: &str, out: &mut Vec<Observation>) {
        if self.told.remove(key).is_some() {
            self.all(clock::now(), out);
        }
    }

    fn ended(&mut self, began: BootNs, complete: bool, out: &mut Vec<Observation>) {
        let listed = self.listed.take().unwrap_or_default();
        if complete && self.beyond == 0 {
            self.told = listed;
        } else {
            self.told.extend(listed);
        }
        self.all(began, out);
    }

    fn wrong(&self) -> usize {
        self.told.values().filter(|told| told.wrong).count() + self.beyond
    }
}

/// The structure of a pool's value.
enum Layout {
    /// The pool's fields: in a v1 etcd, and in the `spec` of an object.
    Bare,
    /// A v3 resource, with the fields in its `spec`.
    Resource,
}

/// The name for people of the pool with this key: in the API server `ippools/NAME`, in an etcd v3
/// `/calico/resources/v3/projectcalico.org/ippools/NAME`, v1 `/calico/v1/ipam/v4/pool/10.0.0.0-16`. A v1 pool has no
/// name; its prefix is used.
fn named(key: &str) -> Option<(String, Layout)> {
    let parts: Vec<&str> = key.trim_start_matches('/').split('/').collect();
    match parts[..] {
        ["ippools", name] if !name.is_empty() => Some((name.to_owned(), Layout::Bare)),
        ["calico", "resources", "v3", "projectcalico.org", "ippools", name] if !name.is_empty() => {
            Some((name.to_owned(), Layout::Resource))
        }
        ["calico", "v1", "ipam", "v4" | "v6", "pool", cidr] if !cidr.is_empty() => {
            Some((cidr.replacen('-', "/", 1), Layout::Bare))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::kdd::{self, Object};
    use super::*;
    use crate::sources::kubernetes::reflector::{Change, Kind};

    const V3: &str = "/calico/resources/v3/projectcalico.org/ippools/default-ipv4-ippool";
    const V1: &str = "/calico/v1/ipam/v4/pool/10.244.0.0-16";

    fn texts(out: &mut Vec<Observation>) -> Vec<String> {
        let text = |what: Observation| match what {
            Observation::Range(range) => {
                let part = &range.sets[0][0];
                Some(format!("{} {}-{} {}", range.network, part.first, part.last, range.path))
            }
            _ => None,
        };
        out.drain(..).filter_map(text).collect()
    }

    fn object(name: &str, spec: Value) -> Object {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    /// As calicoctl 3.20 wrote it for a cluster made by kubeadm, without its other metadata.
    fn recorded() -> Value {
        json!({"cidr": "10.244.0.0/16", "vxlanMode": "Never", "ipipMode": "Always",
            "natOutgoing": true, "blockSize": 26, "nodeSelector": "all()",
            "allowedUses": ["Workload", "Tunnel"]})
    }

    #[test]
    fn a_pool_is_the_same_wherever_it_is_kept() {
        let mut out = Vec::new();
        let mut pools = kdd::pools();
        pools.tell(Change::Began, &mut out);
        pools.tell(Change::Now(object("default-ipv4-ippool", recorded())), &mut out);
        pools.tell(Change::Ended { began: BootNs(1), complete: true }, &mut out);
        let named = "default-ipv4-ippool 10.244.0.0-10.244.255.255 ippools/default-ipv4-ippool";
        assert_eq!(texts(&mut out), [named]);
        let etcd = |key: &str, value: &Value| {
            let (mut pools, mut out) = (Pools::default(), Vec::new());
            pools.put(key, Kept::Bytes(value.to_string().as_bytes()), &mut out);
            assert_eq!(pools.wrong(), 0);
            texts(&mut out)
        };
        let v3 = json!({"kind": "IPPool", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "default-ipv4-ippool"}, "spec": recorded()});
        assert_eq!(etcd(V3, &v3), [named]);
        let v1 = json!({"cidr": "10.244.0.0/16", "ipip": "tunl0", "ipip_mode": "always",
            "masquerade": true, "ipam": true, "disabled": false});
        assert_eq!(
            etcd(V1, &v1),
            ["10.244.0.0/16 10.244.0.0-10.244.255.255 ippools/10.244.0.0/16"]
        );
    }

    #[test]
    fn what_hands_out_nothing_to_pods_is_no_range() {
        let (mut pools, mut out) = (kdd::pools(), Vec::new());
        let specs = [
            json!({"cidr": "10.0.0.0/16", "disabled": true}),
            json!({"cidr": "10.0.0.0/16", "allowedUses": ["Tunnel"]}),
            json!({"cidr": "10.0.0.0/16", "allowedUses": ["LoadBalancer"]}),
            json!({"cidr": "10.0.0.0/16", "ipam": false}),
        ];
        for spec in specs {
            pools.tell(Change::Now(object("other", spec)), &mut out);
            assert_eq!((texts(&mut out).len(), pools.wrong()), (0, 0));
        }
        pools.tell(Change::Now(object("other", json!({"cidr": "fd00::/48"}))), &mut out);
        let whole = "other fd00::-fd00::ffff:ffff:ffff:ffff:ffff ippools/other";
        assert_eq!(texts(&mut out), [whole]);
        pools.tell(Change::Gone(object("other", json!(null))), &mut out);
        assert_eq!((texts(&mut out).len(), out.len()), (0, 0));
        for key in ["/calico/v1/ipam/v4/config", "/calico/resources/v3/projectcalico.org/x/y", ""] {
            pools.keys.put(key, Kept::Bytes(b"{}"), &mut out);
            assert_eq!((out.len(), pools.wrong()), (0, 0), "{key}");
        }
    }

    #[test]
    fn one_that_is_not_understood_any_more_stands_as_it_was() {
        let (mut pools, mut out) = (kdd::pools(), Vec::new());
        pools.tell(Change::Now(object("one", recorded())), &mut out);
        assert_eq!(texts(&mut out).len(), 1);
        for broken in [json!(7), json!({}), json!({"cidr": "x"}), json!({"cidr": "10.0.0.0/33"})] {
            pools.tell(Change::Now(object("one", broken.clone())), &mut out);
            assert_eq!((texts(&mut out).len(), pools.wrong()), (1, 1), "{broken}");
        }
        pools.tell(Change::Began, &mut out);
        pools.tell(Change::Now(object("new", json!(7))), &mut out);
        pools.tell(Change::Ended { began: BootNs(1), complete: false }, &mut out);
        assert_eq!((texts(&mut out).len(), pools.wrong()), (1, 2), "a list that was cut short");
        pools.tell(Change::Began, &mut out);
        pools.tell(Change::Ended { began: BootNs(1), complete: true }, &mut out);
        assert_eq!((texts(&mut out).len(), pools.wrong()), (0, 0), "a whole one without it");
        pools.tell(Change::Began, &mut out);
        for n in 0..MOST + 2 {
            pools.tell(Change::Now(object(&format!("n{n}"), recorded())), &mut out);
        }
        pools.tell(Change::Ended { began: BootNs(1), complete: true }, &mut out);
        assert_eq!((texts(&mut out).len(), pools.wrong()), (MOST, 2));
    }
}
