//! The layout of Calico's keys in an etcd: v3, and v1, which older clusters have.
//!
//! - blocks, in both: `/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26`;
//! - endpoints, v3: `/calico/resources/v3/projectcalico.org/workloadendpoints/NAMESPACE/NODE-k8s-POD-eth0`, with the
//!   dashes of each part doubled; v1: `/calico/v1/host/NODE/workload/k8s/NAMESPACE.POD/endpoint/eth0`.
//!
//! Only this node's endpoints are reported. Other keys are ignored.

use crate::fact::{BootNs, Observation};

use super::STORE;
use super::blocks::Blocks;
use super::documents::Workload;
use super::endpoints::{self, Endpoints};
use super::keys::{Kept, Keys};

/// The orchestrator name of Kubernetes' pods.
const K8S: &str = "k8s";

/// What a key refers to.
#[derive(Debug, PartialEq, Eq)]
enum Key {
    Block,
    /// An endpoint of this node.
    Endpoint {
        namespace: String,
        pod: String,
        /// Whether it has the v1 layout.
        first: bool,
    },
}

/// What was read from an etcd.
pub(super) struct Model {
    pub(super) node: String,
    blocks: Blocks,
    endpoints: Endpoints,
}

impl Model {
    pub(super) fn new(node: String) -> Self {
        Self { blocks: Blocks::new(node.clone()), endpoints: Endpoints::default(), node }
    }

    fn key(&self, key: &str) -> Option<Key> {
        let rest = key.trim_start_matches('/').strip_prefix("calico/")?;
        let parts: Vec<&str> = rest.split('/').collect();
        match parts[..] {
            ["ipam", "v2", "assignment", _, "block", name] if !name.is_empty() => Some(Key::Block),
            ["resources", "v3", "projectcalico.org", "workloadendpoints", namespace, name] => {
                let name = name.strip_prefix(&format!("{}-{K8S}-", doubled(&self.node)))?;
                let pod = segment(name)?;
                Some(Key::Endpoint { namespace: namespace.to_owned(), pod, first: false })
            }
            ["v1", "host", node, "workload", K8S, workload, "endpoint", _] if node == self.node => {
                let workload = unescaped(workload);
                let (namespace, pod) = workload.split_once('.')?;
                let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
                Some(Key::Endpoint { namespace, pod, first: true })
            }
            _ => None,
        }
    }
}

impl Keys for Model {
    fn will_tell(&self) -> Option<Observation> {
        Some(Observation::Began(endpoints::scope()))
    }

    fn began(&mut self, out: &mut Vec<Observation>) {
        self.blocks.began(out);
        self.endpoints.began(out);
    }

    fn put(&mut self, key: &str, value: Kept<'_>, out: &mut Vec<Observation>) {
        let Some(kind) = self.key(key) else { return };
        match kind {
            Key::Block => self.blocks.put(key, value, out),
            Key::Endpoint { namespace, pod, first } => {
                let read = if first { Workload::read_first } else { Workload::read };
                let workload = value.read(read);
                // The key has the prefix of this node's keys, but belongs to another node: `node-1` and `node-1-k8s-x`.
                let other = |known: &Workload| known.node.as_ref().is_some_and(|n| *n != self.node);
                if !workload.as_ref().is_some_and(other) {
                    self.endpoints.put(key, (&namespace, &pod), workload, out);
                }
            }
        }
    }

    fn gone(&mut self, key: &str, out: &mut Vec<Observation>) {
        match self.key(key) {
            Some(Key::Block) => self.blocks.gone(key, out),
            Some(Key::Endpoint { .. }) => self.endpoints.gone(key, out),
            None => {}
        }
    }

    fn ended(&mut self, began: BootNs, complete: bool, out: &mut Vec<Observation>) {
        self.blocks.ended(began, complete, out);
        self.endpoints.ended(began, complete, out);
    }

    fn overdue(&mut self, out: &mut Vec<Observation>) {
        self.blocks.overdue(out);
    }

    fn confirmed(&mut self, out: &mut Vec<Observation>) {
        if self.endpoints.is_whole() {
            out.push(Observation::EndpointsConfirmed { store: STORE.to_owned() });
        }
    }

    fn wrong(&self) -> usize {
        self.blocks.wrong() + self.endpoints.wrong()
    }
}

/// Escapes a part of an endpoint's name.
fn doubled(text: &str) -> String {
    text.replace('-', "--")
}

/// The first part of a name, up to a dash that is not doubled.
fn segment(name: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = name.chars().peekable();
    while let Some(char) = rest.next() {
        if char == '-' && rest.next_if_eq(&'-').is_none() {
            return Some(out).filter(|out| !out.is_empty());
        }
        out.push(char);
    }
    None
}

/// Unescapes a part of a v1 key.
fn unescaped(text: &str) -> String {
    text.replace("%2F", "/").replace("%2f", "/").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fact::Endpoint;

    const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-29";
    const V3: &str =
        "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node--1-k8s-api--0-eth0";
    const V1: &str = "/calico/v1/host/node-1/workload/k8s/shop.api-0/endpoint/eth0";

    fn put(model: &mut Model, key: &str, value: &Value) -> Vec<Observation> {
        let mut out = Vec::new();
        model.put(key, Kept::Bytes(value.to_string().as_bytes()), &mut out);
        out
    }

    fn model() -> Model {
        Model::new("node-1".to_owned())
    }

    fn endpoint(out: &[Observation]) -> &Endpoint {
        let [Observation::Endpoint(endpoint)] = out else { panic!("{out:?}") };
        endpoint
    }

    #[test]
    fn an_endpoint_of_either_layout_is_the_same() {
        let spec = json!({"orchestrator": "k8s", "node": "node-1", "containerID": "aa", "pod": "api-0",
            "endpoint": "eth0", "ipNetworks": ["10.0.0.5/32", "fd00::5/128"], "interfaceName": "cali1"});
        let v3 =
            json!({"kind": "WorkloadEndpoint", "metadata": {"namespace": "shop"}, "spec": spec});
        let v1 = json!({"state": "active", "name": "cali1", "active_instance_id": "aa",
            "ipv4_nets": ["10.0.0.5/32"], "ipv6_nets": ["fd00::5/128"], "labels": {"a": "b"}});
        let (out, first) = (put(&mut model(), V3, &v3), put(&mut model(), V1, &v1));
        let (one, other) = (endpoint(&out), endpoint(&first));
        assert_eq!((one.key.as_str(), other.key.as_str()), (V3, V1));
        assert_eq!(Endpoint { key: V1.to_owned(), ..one.clone() }, *other);
        assert_eq!((one.namespace.as_str(), one.pod.as_str()), ("shop", "api-0"));
        assert_eq!((one.container.as_deref(), one.device.as_deref()), (Some("aa"), Some("cali1")));
        assert_eq!(one.ips.len(), 2);
    }

    #[test]
    fn an_endpoint_that_is_not_understood_is_there_all_the_same() {
        let mut model = model();
        let mut out = Vec::new();
        model.began(&mut out);
        model.put(V3, Kept::Bytes(b"{"), &mut out);
        // The value that is passed on if it is too long.
        model.put(V1, Kept::Bytes(b""), &mut out);
        model.put(BLOCK, Kept::Bytes(&[0xff; 9]), &mut out);
        model.ended(BootNs(1), true, &mut out);
        let told: Vec<&Endpoint> = out
            .iter()
            .filter_map(|what| match what {
                Observation::Endpoint(endpoint) => Some(endpoint),
                _ => None,
            })
            .collect();
        let [one, other] = told[..] else { panic!("{out:?}") };
        assert_eq!((&*one.namespace, &*one.pod, &one.container), ("shop", "api-0", &None));
        assert_eq!((&*other.namespace, &*other.pod), ("shop", "api-0"));
        assert_eq!(model.wrong(), 3);
        let mut out = Vec::new();
        model.gone(V3, &mut out);
        model.gone(V3, &mut out);
        assert_eq!((out.len(), model.wrong()), (1, 2));
        out.clear();
        model.confirmed(&mut out);
        assert_eq!(out, [Observation::EndpointsConfirmed { store: "calico".to_owned() }]);
    }

    #[test]
    fn what_is_another_nodes_is_left_alone() {
        let mut model = model();
        for key in [
            "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node--12-k8s-api--0-eth0",
            "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node-1-k8s-api--0-eth0",
            "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node--1-k8s-",
            "/calico/resources/v3/projectcalico.org/ippools/default",
            "/calico/v1/host/node-2/workload/k8s/shop.api-0/endpoint/eth0",
            "/calico/v1/host/node-1/workload/libnetwork/x/endpoint/eth0",
            "/calico/v1/host/node-1/metadata",
            "/calico/ipam/v2/handle/k8s-pod-network.aa",
            "/other/ipam/v2/assignment/ipv4/block/10.0.0.0-29",
            "",
        ] {
            assert_eq!(put(&mut model, key, &json!({"spec": {}, "metadata": {}})), [], "{key}");
        }
        let spec = json!({"spec": {"node": "node-1-k8s-api"}, "metadata": {}});
        assert_eq!(put(&mut model, V3, &spec), []);
        assert_eq!(model.wrong(), 0);
    }

    #[test]
    fn a_block_is_followed_by_its_key() {
        let mut model = model();
        let id = "a".repeat(64);
        let block = json!({"cidr": "10.0.0.0/30", "affinity": "host:node-1", "allocations": [null, 0, null, null],
            "attributes": [{"handle_id": format!("net.{id}"), "secondary": {"node": "node-1"}}]});
        let [Observation::Block(all), Observation::Reservation(one)] =
            &put(&mut model, BLOCK, &block)[..]
        else {
            panic!("one")
        };
        assert_eq!((&*all.key, all.taken), (BLOCK, Some(1)));
        assert_eq!((one.key.clone(), one.container_id.clone()), (format!("{BLOCK}/1"), Some(id)));
        let mut out = Vec::new();
        let far = json!({"cidr": "10.0.0.0/30", "affinity": "host:node-1", "allocations": [null, 0, 1, null],
            "attributes": [block["attributes"][0], {"handle_id": "x", "secondary": {"node": "node-2"}}]});
        model.put(BLOCK, Kept::Bytes(far.to_string().as_bytes()), &mut out);
        model.overdue(&mut out);
        let counts = |what: &Observation| matches!(what, Observation::Block(block) if block.taken == Some(2));
        assert_eq!(out.iter().filter(|what| counts(what)).count(), 1, "{out:?}");
        out.clear();
        model.gone(BLOCK, &mut out);
        assert_eq!(out.len(), 2);
    }

    /// Whatever the bytes are: only this node's data is reported, a key is removed once, and no entry that was parsed
    /// before is withdrawn.
    #[test]
    fn torn_and_mangled_values_are_counted_and_take_nothing_back() {
        let block = include_bytes!("../../../../fuzz/seeds/calico/block.json");
        let endpoint = include_bytes!("../../../../fuzz/seeds/calico/endpoint.json");
        let mut random: u64 = 7;
        for n in 0..4000_usize {
            let mut next = |below: usize| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                usize::try_from(random >> 33).unwrap_or_default() % below
            };
            let (key, seed): (&str, &[u8]) =
                if n % 2 == 0 { (BLOCK, block) } else { (V3, endpoint) };
            let mut bytes = seed.to_vec();
            if n % 3 == 0 {
                bytes.truncate(next(seed.len()));
            } else {
                for _ in 0..=next(4) {
                    let at = next(bytes.len());
                    bytes[at] = b"\0\"[]{}-:,9x\xff"[next(12)];
                }
            }
            let mut model = model();
            let mut out = Vec::new();
            model.put(key, Kept::Bytes(seed), &mut out);
            let before = out.len();
            assert!(before > 0);
            out.clear();
            model.began(&mut out);
            model.put(key, Kept::Bytes(&bytes), &mut out);
            model.ended(BootNs(1), true, &mut out);
            let torn = serde_json::from_slice::<Value>(&bytes).is_err();
            assert!(!torn || (model.wrong() > 0 && out.len() == before + 6), "{n}: {out:?}");
            let own = |what: &Observation| match what {
                Observation::Reservation(one) => one.key.starts_with(BLOCK),
                Observation::Endpoint(one) => one.key == V3,
                _ => true,
            };
            assert!(out.iter().all(own), "{n}: {out:?}");
            out.clear();
            model.gone(key, &mut out);
            model.gone(key, &mut out);
            assert!(out.len() <= before.max(64), "{n}: {out:?}");
            assert_eq!(model.wrong(), 0, "{n}");
        }
    }
}
