//! The pods of this node. If Calico stores its data in the API server, a pod is its own endpoint: its annotations
//! contain what the ADD has set up, and the DEL empties them. Branch ENIs of AWS are in an annotation as well.

use std::net::IpAddr;

use super::SOURCE;
use super::branch_enis::BranchEnis;
use super::documents;
use super::reflector::{Change, Kind};
use crate::fact::{self, Observation, Scope};
use crate::sources::url::encoded;

/// Maximum number of pods that are kept of one answer: twice as many as the map keeps of a node.
const MOST: usize = 8192;
/// Maximum number of IPs kept of one pod.
const MOST_IPS: usize = 64;

/// The pods whose `spec.nodeName` is `node`.
pub(super) struct Pods {
    pub(super) node: String,
    /// Also report Calico's endpoints.
    pub(super) calico: bool,
    branch_enis: BranchEnis,
}

impl Kind for Pods {
    type Item = documents::Pod;

    fn source(&self) -> &'static str {
        SOURCE
    }

    fn about(&self) -> String {
        format!("the pods of node {}", self.node)
    }

    fn path(&self) -> String {
        format!("/api/v1/pods?fieldSelector={}", encoded(&format!("spec.nodeName={}", self.node)))
    }

    fn most(&self) -> usize {
        MOST
    }

    fn will_tell(&self) -> Option<Observation> {
        self.endpoints().map(Observation::Began)
    }

    fn tell(&mut self, change: Change<Self::Item>, out: &mut Vec<Observation>) {
        match change {
            Change::Began => {
                self.branch_enis.began();
                out.extend(self.scopes().map(Observation::Began));
            }
            Change::Ended { began, complete } => {
                self.branch_enis.ended(complete, out);
                let ended = |scope| Observation::Ended { scope, began, complete };
                out.extend(self.scopes().map(ended));
            }
            Change::Confirmed => out.push(Observation::PodsConfirmed),
            Change::Now(pod) => {
                if pod.spec.node_name.0 == self.node {
                    self.branch_enis.now(&pod.metadata, out);
                }
                let endpoint = self.endpoint(&pod);
                if let Some(pod) = self.own(pod) {
                    out.push(Observation::Pod(pod));
                    out.extend(endpoint);
                }
            }
            Change::Gone(pod) => {
                self.branch_enis.gone(&pod.metadata, out);
                out.extend(self.calico.then(|| unwired(&pod.metadata)));
                let uid = Some(pod.metadata.uid.0).filter(|uid| !uid.is_empty());
                out.extend(uid.map(|uid| Observation::PodGone { uid }));
            }
        }
    }
}

impl Pods {
    /// The pods of a node, and with `calico` its endpoints.
    pub(super) fn of(node: String, calico: bool) -> Self {
        Self { node, calico, branch_enis: BranchEnis::default() }
    }

    fn scopes(&self) -> impl Iterator<Item = Scope> + use<> {
        std::iter::once(Scope::Pods).chain(self.endpoints())
    }

    fn endpoints(&self) -> Option<Scope> {
        self.calico.then(|| Scope::Endpoints { store: SOURCE.to_owned() })
    }

    /// The Calico endpoint in a pod's annotations.
    fn endpoint(&self, pod: &documents::Pod) -> Option<Observation> {
        let meta = &pod.metadata;
        let said = meta.annotations.calico_ips.as_deref();
        let ips = || said.unwrap_or_default().split(',');
        let ips = || ips().filter_map(|ip| ip.split('/').next()?.trim().parse::<IpAddr>().ok());
        let ips: Vec<IpAddr> = ips().take(MOST_IPS).collect();
        if !self.calico {
            return None;
        }
        // A DEL leaves them empty. If they are missing, they were never written; if they cannot be parsed, something
        // was. In both cases the pod counts as having an endpoint.
        if said.is_some_and(|said| said.split(',').all(|one| one.trim().is_empty())) {
            return Some(unwired(meta));
        }
        let container = meta.annotations.calico_container.clone();
        Some(Observation::Endpoint(fact::Endpoint {
            store: SOURCE.to_owned(),
            key: key(meta),
            namespace: meta.namespace.0.clone(),
            pod: meta.name.0.clone(),
            container: container.filter(|id| !id.is_empty()),
            device: None,
            ips,
        }))
    }

    /// The pod, if it is on this node, whatever the selector was.
    fn own(&self, pod: documents::Pod) -> Option<fact::Pod> {
        if pod.spec.node_name.0 == self.node { fact(pod) } else { None }
    }
}

/// The kept fields of a pod, from either source. `None`: it has no uid, so it cannot be identified.
pub(super) fn fact(pod: documents::Pod) -> Option<fact::Pod> {
    let documents::Pod { metadata: meta, spec, status } = pod;
    if meta.uid.0.is_empty() {
        return None;
    }
    let grace = meta.deletion_grace_period_seconds.or(spec.termination_grace_period_seconds);
    let date = meta.deletion_timestamp.and_then(|date| date.0.parse::<jiff::Timestamp>().ok());
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in status.pod_ips.0.iter().filter_map(|one| one.ip.0.parse().ok()) {
        if ips.len() < MOST_IPS && !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    Some(fact::Pod {
        uid: meta.uid.0,
        namespace: meta.namespace.0,
        name: meta.name.0,
        phase: Some(status.phase.0).filter(|phase| !phase.is_empty()),
        ips,
        deletion: date.and_then(|date| i64::try_from(date.as_nanosecond()).ok()),
        grace: grace.and_then(|grace| u64::try_from(grace).ok()),
        mirror_of: meta.annotations.mirror,
    })
}

fn key(meta: &documents::PodMeta) -> String {
    format!("pods/{}/{}", meta.namespace.0, meta.name.0)
}

fn unwired(meta: &documents::PodMeta) -> Observation {
    Observation::EndpointGone { store: SOURCE.to_owned(), key: key(meta) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(calico: bool, annotations: serde_json::Value) -> Vec<Observation> {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "api-0", "namespace": "shop", "uid": "u", "annotations": annotations},
            "spec": {"nodeName": "node-1"},
        }));
        let mut out = Vec::new();
        Pods::of("node-1".to_owned(), calico).tell(Change::Now(pod.unwrap()), &mut out);
        out
    }

    #[test]
    fn what_calico_says_of_a_pod_is_in_its_annotations() {
        let annotations = json!({"a": {"b": 7}, "cni.projectcalico.org/podIP": "10.0.0.5/32",
            "cni.projectcalico.org/podIPs": "10.0.0.5/32,fd00::5/128",
            "cni.projectcalico.org/containerID": "aa"});
        let [_, Observation::Endpoint(one)] = &told(true, annotations.clone())[..] else {
            panic!()
        };
        assert_eq!(
            (&*one.key, one.container.as_deref(), one.ips.len()),
            ("pods/shop/api-0", Some("aa"), 2)
        );
        assert_eq!(told(false, annotations).len(), 1, "nobody asked");
        let old = json!({"cni.projectcalico.org/podIP": "10.0.0.5"});
        let [_, Observation::Endpoint(one)] = &told(true, old)[..] else { panic!() };
        assert_eq!((one.container.as_deref(), one.ips.len()), (None, 1));
        for silent in [json!(null), json!({}), json!({"cni.projectcalico.org/containerID": "aa"})] {
            let [_, Observation::Endpoint(one)] = &told(true, silent)[..] else { panic!() };
            assert!(one.ips.is_empty());
        }
        for emptied in [
            json!({"cni.projectcalico.org/podIP": "", "cni.projectcalico.org/containerID": "aa"}),
            json!({"cni.projectcalico.org/podIPs": " , "}),
        ] {
            assert!(matches!(told(true, emptied)[1], Observation::EndpointGone { .. }));
        }
        let strange = json!({"cni.projectcalico.org/podIPs": "of a syntax to come"});
        let [_, Observation::Endpoint(one)] = &told(true, strange)[..] else { panic!() };
        assert!(one.ips.is_empty(), "there, though not understood");
    }
}
