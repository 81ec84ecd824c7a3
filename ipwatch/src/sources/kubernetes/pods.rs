//! The pods of this node.

use std::net::IpAddr;

use super::SOURCE;
use super::documents;
use super::follow::{Change, Kind, encoded};
use crate::fact::{self, Scope, What};

/// IPs that are kept of one pod.
const MOST_IPS: usize = 64;

/// Those whose `spec.nodeName` is this.
pub(super) struct Pods {
    pub(super) node: String,
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

    fn tell(&mut self, change: Change<Self::Item>, out: &mut Vec<What>) {
        out.extend(match change {
            Change::Began => Some(What::Began(Scope::Pods)),
            Change::Ended { began, complete } => {
                Some(What::Ended { scope: Scope::Pods, began, complete })
            }
            Change::Confirmed => Some(What::PodsConfirmed),
            Change::Now(pod) => self.own(pod).map(What::Pod),
            Change::Gone(pod) => Some(pod.metadata.uid.0)
                .filter(|uid| !uid.is_empty())
                .map(|uid| What::PodGone { uid }),
        });
    }
}

impl Pods {
    /// A pod that is this node's, whatever was asked for.
    fn own(&self, pod: documents::Pod) -> Option<fact::Pod> {
        let documents::Pod { metadata: meta, spec, status } = pod;
        if spec.node_name.0 != self.node || meta.uid.0.is_empty() {
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
            mirror_of: meta.annotations.0,
        })
    }
}
