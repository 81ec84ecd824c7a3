//! Calico's pools: what its blocks are cut from. How much of them is taken the [`blocks`](super::blocks) say.
//!
//! One that is disabled hands out nothing any more, and one that is for tunnels or load balancers only nothing to
//! pods: neither is a range.

use std::collections::BTreeMap;

use super::documents::Pool;
use super::keys::{Kept, Keys};
use super::{POOLS, STORE};
use crate::clock;
use crate::fact::{BootNs, Observation, Range, RangePart, Scope};

/// Pools that are remembered. A cluster has a few.
const MOST: usize = 1024;

/// What was told of each pool, by its key.
#[derive(Default)]
pub(in crate::sources) struct Pools {
    told: BTreeMap<String, Told>,
    /// While a list comes: what it named.
    listed: Option<BTreeMap<String, Told>>,
    /// More than are remembered, since the last list began.
    beyond: usize,
}

/// What a pool hands out; of one that is not understood what it did before.
#[derive(Default)]
struct Told {
    range: Option<Range>,
    wrong: bool,
}

impl Pools {
    /// A pool is so now. `name`: what people call it.
    fn pool(&mut self, key: &str, name: &str, pool: Option<Pool>, out: &mut Vec<Observation>) {
        let told = match pool {
            Some(pool) => Told { range: range(name, &pool), wrong: false },
            None => {
                let before = self.told.get(key).and_then(|told| told.range.clone());
                Told { range: before, wrong: true }
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

    /// Tells all ranges.
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

/// What the value of a pool's key is.
enum Layout {
    /// The pool's fields: in the first layout of an etcd, and of an object its `spec`.
    Bare,
    /// A resource of the third version, with the fields in its `spec`.
    Resource,
}

/// What people call the pool of a key: of the API server `ippools/NAME`, of an etcd
/// `/calico/resources/v3/projectcalico.org/ippools/NAME`, first `/calico/v1/ipam/v4/pool/10.0.0.0-16`. In the first
/// layout a pool has no name, and is called by what it hands out.
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

    /// As calicoctl 3.20 wrote it for a cluster that kubeadm made, without what its metadata has besides.
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
