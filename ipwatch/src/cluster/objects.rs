//! The fields that are read of the API server's objects, and no others: of a pod's spec the node and host network, no
//! environment, only annotations about IPs.

use std::net::IpAddr;

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::Value;

use super::snapshot;
use crate::prefix::Prefix;
use crate::sources::json::{Few, Name};
use crate::sources::kubernetes::documents::{self, Annotated};
use crate::sources::kubernetes::whereabouts::Meta;

/// Multus' status of each interface, and its older name.
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const OLDER_STATUS: &str = "k8s.v1.cni.cncf.io/networks-status";
/// The networks that a pod asks Multus for.
const WANTED: &str = "k8s.v1.cni.cncf.io/networks";
/// Calico's annotations with the pod's IPs.
const CALICO: [&str; 2] = ["cni.projectcalico.org/podIP", "cni.projectcalico.org/podIPs"];
/// Maximum length of an annotation that is read, in bytes.
const LONGEST: usize = 64 << 10;

/// `Node`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub(super) metadata: NodeMeta,
    status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeMeta {
    pub(super) name: Name,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    conditions: Few<Condition, 256>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: Name,
    status: Name,
    last_transition_time: Option<Name>,
}

impl Node {
    pub(super) fn world(self) -> (String, snapshot::Node) {
        let ready = self.status.conditions.0.into_iter().find(|one| one.kind.0 == "Ready");
        let is_ready = ready.as_ref().is_some_and(|ready| ready.status.0 == "True");
        let silent = ready.filter(|ready| ready.status.0 == "Unknown");
        let silent_since = silent.map(|ready| ready.last_transition_time.unwrap_or_default().0);
        (self.metadata.name.0, snapshot::Node { silent_since, ready: is_ready })
    }
}

pub(super) type Pod = documents::Pod<Annotations>;

/// Multus' status of one interface.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Interface {
    name: Name,
    ips: Few<Name, 64>,
    default: bool,
}

#[derive(Debug, Default)]
pub(super) struct Annotations {
    status: Option<String>,
    wanted: Option<String>,
    calico: Vec<String>,
}

impl Annotated for Annotations {
    const KEYS: &[&str] = &[STATUS, OLDER_STATUS, WANTED, CALICO[0], CALICO[1]];

    fn read(&mut self, key: &str, value: Value) -> Result<(), serde_json::Error> {
        let text = serde_json::from_value(value)?;
        match key {
            STATUS => self.status = Some(text),
            OLDER_STATUS => {
                self.status.get_or_insert(text);
            }
            WANTED => self.wanted = Some(text),
            _ => self.calico.push(text),
        }
        Ok(())
    }
}

impl Pod {
    pub(super) fn world(self) -> snapshot::Pod {
        let annotations = self.metadata.annotations;
        let (networks, networks_wrong) = match annotations.status.map(|text| networks(&text)) {
            None => (None, false),
            Some(Some(networks)) => (Some(networks), false),
            Some(None) => (None, true),
        };
        let calico = annotations.calico.iter().filter(|text| text.len() <= LONGEST);
        let mut calico: Vec<IpAddr> =
            calico.flat_map(|text| text.split(',')).filter_map(address).collect();
        calico.sort_unstable();
        calico.dedup();
        let asked = annotations.wanted.as_deref();
        // The reported networks count; the requested ones only if there is no report.
        let unsaid = asked.filter(|_| networks.is_none());
        let wanted = unsaid.and_then(|text| wanted(text, &self.metadata.namespace.0));
        snapshot::Pod {
            namespace: self.metadata.namespace.0,
            name: self.metadata.name.0,
            uid: self.metadata.uid.0,
            node: self.spec.node_name.0,
            host_network: self.spec.host_network,
            ended: matches!(&*self.status.phase.0, "Succeeded" | "Failed"),
            phase: self.status.phase.0,
            deleting: self.metadata.deletion_timestamp.is_some(),
            ips: self.status.pod_ips.0.iter().filter_map(|one| address(&one.ip.0)).collect(),
            networks,
            networks_wrong,
            wants_networks: asked.is_some(),
            wanted,
            calico,
        }
    }
}

/// Parses Multus' status. `None` if it cannot be parsed.
fn networks(text: &str) -> Option<Vec<snapshot::Attached>> {
    if text.len() > LONGEST {
        return None;
    }
    let interfaces: Few<Interface, 256> = serde_json::from_str(text).ok()?;
    let mut all = Vec::new();
    for Interface { name, ips, default } in interfaces.0 {
        for ip in &ips.0 {
            all.push(snapshot::Attached { network: name.0.clone(), ip: address(&ip.0)?, default });
        }
    }
    Some(all)
}

/// A requested network.
#[derive(Debug, Deserialize)]
struct Wanted {
    name: Name,
    #[serde(default)]
    namespace: Name,
}

/// Parses the requested networks (multus 4, pkg/k8sclient, parsePodNetworkAnnotation); `None` if they cannot be
/// parsed. `own`: the pod's namespace.
fn wanted(text: &str, own: &str) -> Option<Vec<String>> {
    if text.len() > LONGEST {
        return None;
    }
    let full = |namespace: &str, name: &str| {
        let namespace = if namespace.is_empty() { own } else { namespace };
        let plain = !name.is_empty() && !format!("{namespace}{name}").contains('/');
        plain.then(|| format!("{namespace}/{name}"))
    };
    if text.contains(['[', '{', '"']) {
        let all: Few<Wanted, 256> = serde_json::from_str(text).ok()?;
        return all.0.iter().map(|one| full(&one.namespace.0, &one.name.0)).collect();
    }
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    let each = text.split(',').map(|one| {
        // The part after `@` is the name of the interface in the pod.
        let one = one.split_once('@').map_or(one, |(one, _)| one).trim();
        one.split_once('/').map_or_else(|| full("", one), |(space, name)| full(space, name))
    });
    each.collect()
}

/// Parses an IP, with or without a prefix length.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    text.split_once('/').map_or(text, |(ip, _)| ip).parse().ok()
}

/// `OverlappingRangeIPReservation`
#[derive(Debug, Deserialize)]
pub(super) struct Overlapping {
    metadata: OverlappingMeta,
    #[serde(default)]
    spec: OverlappingSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[serde(rename_all = "camelCase")]
struct OverlappingMeta {
    name: Name,
    namespace: Name,
    uid: Name,
    resource_version: Name,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OverlappingSpec {
    podref: Name,
    ipamclaimref: Name,
}

impl Overlapping {
    pub(super) fn world(self) -> snapshot::Overlapping {
        snapshot::Overlapping {
            namespace: self.metadata.namespace.0,
            name: self.metadata.name.0,
            uid: self.metadata.uid.0,
            version: self.metadata.resource_version.0,
            podref: Some(self.spec.podref.0).filter(|podref| !podref.is_empty()),
            claimed: !self.spec.ipamclaimref.0.is_empty(),
        }
    }
}

/// `IPAMBlock`
#[derive(Debug, Deserialize)]
pub(super) struct Block {
    metadata: NodeMeta,
    spec: BlockSpec,
}

#[derive(Debug, Deserialize)]
struct BlockSpec {
    cidr: Name,
    #[serde(default)]
    affinity: Option<Name>,
    #[serde(default)]
    allocations: Few<Option<i64>, 65_536>,
    #[serde(default)]
    attributes: Few<Attribute, 65_536>,
    #[serde(default)]
    deleted: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Attribute {
    handle_id: Option<Name>,
    secondary: Secondary,
}

#[derive(Debug, Default)]
struct Secondary {
    pod: Option<String>,
    namespace: Option<String>,
    node: Option<String>,
}

impl<'de> Deserialize<'de> for Secondary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Known {
            pod: Option<Name>,
            namespace: Option<Name>,
            node: Option<Name>,
        }
        let known = Option::<Known>::deserialize(deserializer)?.unwrap_or_default();
        let text = |name: Option<Name>| name.map(|name| name.0).filter(|text| !text.is_empty());
        Ok(Self { pod: text(known.pod), namespace: text(known.namespace), node: text(known.node) })
    }
}

impl Block {
    /// `None` if its range cannot be parsed.
    pub(super) fn world(self) -> Option<snapshot::Block> {
        let range: Prefix = self.spec.cidr.0.parse().ok()?;
        let mut block = snapshot::Block {
            name: self.metadata.name.0,
            host: self.spec.affinity.and_then(|affinity| {
                affinity.0.strip_prefix("host:").map(str::to_owned).filter(|host| !host.is_empty())
            }),
            range,
            allocations: Vec::new(),
            wrong: 0,
            deleted: self.spec.deleted,
        };
        for (ordinal, index) in (0_u128..).zip(&self.spec.allocations.0) {
            let Some(index) = index else { continue };
            let attribute =
                usize::try_from(*index).ok().and_then(|at| self.spec.attributes.0.get(at));
            let ip = block.range.nth(ordinal);
            let (Some(attribute), Some(ip)) = (attribute, ip) else {
                block.wrong += 1;
                continue;
            };
            let Secondary { pod, namespace, node } = &attribute.secondary;
            block.allocations.push(snapshot::CalicoAllocation {
                ordinal,
                ip,
                // Some have an interface after a line break.
                handle: attribute.handle_id.as_ref().and_then(|handle| {
                    let first = handle.0.split(char::is_control).next().unwrap_or_default();
                    Some(first.to_owned()).filter(|first| !first.is_empty())
                }),
                pod: namespace.clone().zip(pod.clone()),
                node: node.clone(),
            });
        }
        Some(block)
    }
}

/// `IPPool` of Calico.
#[derive(Debug, Deserialize)]
pub(super) struct CalicoPool {
    metadata: NodeMeta,
    spec: CalicoPoolSpec,
}

#[derive(Debug, Deserialize)]
struct CalicoPoolSpec {
    cidr: Name,
}

impl CalicoPool {
    pub(super) fn world(self) -> Option<snapshot::CalicoPool> {
        let range: Prefix = self.spec.cidr.0.parse().ok()?;
        Some(snapshot::CalicoPool { name: self.metadata.name.0, range })
    }
}

/// `IPAMHandle`
#[derive(Debug, Deserialize)]
pub(super) struct Handle {
    metadata: NodeMeta,
    spec: HandleSpec,
}

#[derive(Debug, Deserialize)]
struct HandleSpec {
    #[serde(rename = "handleID")]
    id: Name,
    #[serde(default)]
    deleted: bool,
}

impl Handle {
    pub(super) fn world(self) -> snapshot::Handle {
        let id = self.spec.id.0.split(char::is_control).next().unwrap_or_default().to_owned();
        snapshot::Handle { name: self.metadata.name.0, id, deleted: self.spec.deleted }
    }
}

/// The namespace and name of a Whereabouts object.
pub(super) fn named(meta: &Meta) -> (String, String) {
    (meta.namespace.0.clone(), meta.name.0.clone())
}
