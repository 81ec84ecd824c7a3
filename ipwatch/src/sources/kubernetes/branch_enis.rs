//! The branch ENIs of AWS in a pod's annotation: a pod with a security group of its own has its IP from one of them, and
//! the checkpoint of the VPC CNI has no such pod.
//!
//! `vpc.amazonaws.com/pod-eni` is a JSON text that Amazon's VPC resource controller writes before the pod starts
//! (`ENIDetails`, pkg/provider/branch/trunk). Only `[].{eniId,privateIp,ipv6Addr}` are read. The annotation ends with the
//! pod's object, and whoever may create pods can write it where that controller does not run: such a reservation tells
//! people who has an IP, and no finding rests on it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Deserialize;

use super::documents::PodMeta;
use crate::fact::{Observation, PodName, Reservation, store};
use crate::sources::json::{self, Few, Name};

/// Name of the store.
const STORE: &str = store::AWS_BRANCH_ENI;
/// Maximum length in bytes of the annotation that is read. An ENI has some 250.
pub(super) const LONGEST: usize = 16 * 1024;
/// Maximum number of ENIs of one pod.
const MOST: usize = 16;
/// Maximum number of pods that are followed.
const MOST_PODS: usize = 4096;

/// `ENIDetails`
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BranchEni {
    eni_id: Name,
    private_ip: Name,
    ipv6_addr: Name,
}

/// The keys of the reservations that were reported of each pod.
#[derive(Debug, Default)]
pub(super) struct BranchEnis {
    told: BTreeMap<String, BTreeSet<String>>,
    /// During a list: the pods that it has contained so far.
    listed: Option<BTreeSet<String>>,
}

impl BranchEnis {
    /// A list begins.
    pub(super) fn began(&mut self) {
        self.listed = Some(BTreeSet::new());
    }

    /// A list has ended: what a complete one did not contain is gone.
    pub(super) fn ended(&mut self, complete: bool, out: &mut Vec<Observation>) {
        let listed = self.listed.take().unwrap_or_default();
        if complete {
            let gone = self.told.extract_if(.., |pod, _| !listed.contains(pod));
            out.extend(gone.flat_map(|(_, keys)| keys).map(released));
        }
    }

    /// A pod of this node, as it is now.
    pub(super) fn now(&mut self, meta: &PodMeta, out: &mut Vec<Observation>) {
        let pod = pod(meta);
        let before = self.told.remove(&pod).unwrap_or_default();
        let has_room = self.told.len() < MOST_PODS;
        let said = meta.annotations.pod_eni.as_deref().filter(|_| has_room).unwrap_or_default();
        let mut keys = BTreeSet::new();
        for reservation in reservations(meta, said) {
            keys.insert(reservation.key.clone());
            out.push(Observation::Reservation(reservation));
        }
        out.extend(before.difference(&keys).cloned().map(released));
        if !keys.is_empty() {
            self.listed.as_mut().map(|listed| listed.insert(pod.clone()));
            self.told.insert(pod, keys);
        }
    }

    /// A pod has no object any more.
    pub(super) fn gone(&mut self, meta: &PodMeta, out: &mut Vec<Observation>) {
        let keys = self.told.remove(&pod(meta)).unwrap_or_default();
        out.extend(keys.into_iter().map(released));
    }
}

fn released(key: String) -> Observation {
    Observation::ReservationGone { store: STORE.to_owned(), key }
}

fn pod(meta: &PodMeta) -> String {
    format!("pods/{}/{}", meta.namespace.0, meta.name.0)
}

/// The IPs of the annotation. What is no list of ENIs, or has no IP, is left out.
fn reservations(meta: &PodMeta, said: &str) -> Vec<Reservation> {
    let enis = json::parse::<Few<BranchEni, MOST>>(said.as_bytes()).unwrap_or_default();
    let of = |eni: &BranchEni| {
        let ips = [&eni.private_ip, &eni.ipv6_addr].map(|ip| ip.0.parse::<IpAddr>().ok());
        let id = eni.eni_id.0.clone();
        ips.into_iter().flatten().map(move |ip| Reservation {
            store: STORE.to_owned(),
            network: id.clone(),
            key: format!("{}/{ip}", pod(meta)),
            ip,
            container_id: None,
            ifname: None,
            pod: Some(PodName {
                namespace: meta.namespace.0.clone(),
                name: meta.name.0.clone(),
                uid: Some(meta.uid.0.clone()).filter(|uid| !uid.is_empty()),
            }),
            since: None,
        })
    };
    enis.0.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::documents;
    use super::*;

    /// As the controller writes it: the field names are those of its structure.
    const SAID: &str = r#"[{"eniId":"eni-0f9c8b7a6d5e4f321","ifAddress":"02:56:ab:1e:9f:11",
        "privateIp":"10.0.3.17","ipv6Addr":"","vlanId":2,"subnetCidr":"10.0.0.0/19","subnetV6Cidr":"",
        "associationID":"trunk-assoc-0a1b2c3d4e5f60718"}]"#;

    fn meta(name: &str, pod_eni: Value) -> PodMeta {
        let pod: documents::Pod = serde_json::from_value(json!({"metadata": {
            "name": name, "namespace": "shop", "uid": "u",
            "annotations": {"vpc.amazonaws.com/pod-eni": pod_eni},
        }}))
        .unwrap();
        pod.metadata
    }

    fn told(meta: &PodMeta) -> Vec<(String, String, IpAddr)> {
        let mut out = Vec::new();
        BranchEnis::default().now(meta, &mut out);
        let told = out.into_iter().map(|what| match what {
            Observation::Reservation(one) => (one.network, one.key, one.ip),
            other => panic!("{other:?}"),
        });
        told.collect()
    }

    #[test]
    fn each_ip_of_an_eni_is_reserved_for_the_pod() {
        let ip: IpAddr = "10.0.3.17".parse().unwrap();
        let eni = "eni-0f9c8b7a6d5e4f321".to_owned();
        let key = "pods/shop/api-0/10.0.3.17".to_owned();
        assert_eq!(told(&meta("api-0", SAID.into())), [(eni, key, ip)]);
        let both = SAID.replace(r#""ipv6Addr":"""#, r#""ipv6Addr":"2600:1f14::17""#);
        assert_eq!(told(&meta("api-0", both.into())).len(), 2);
        let [one] = &reservations(&meta("api-0", Value::Null), SAID)[..] else { panic!() };
        let pod = one.pod.as_ref().unwrap();
        assert_eq!((&*pod.namespace, &*pod.name, pod.uid.as_deref()), ("shop", "api-0", Some("u")));
        assert_eq!(one.container_id, None, "the annotation names none");
    }

    #[test]
    fn whatever_somebody_wrote_does_no_harm() {
        let many = format!("[{}]", vec!["{}"; 100_000].join(","));
        let deep = "[".repeat(10_000);
        let nothing: [Value; 9] = [
            Value::Null,
            json!(7),
            json!([{"privateIp": "10.0.0.5"}]),
            "".into(),
            "{}".into(),
            r#"[{"privateIp":"of a syntax to come"}]"#.into(),
            r#"[{"privateIp":["10.0.0.5"]}]"#.into(),
            many.into(),
            deep.into(),
        ];
        for said in nothing {
            assert_eq!(told(&meta("api-0", said)), []);
        }
        let few = vec![r#"{"privateIp":"10.0.0.5"}"#; MOST + 1].join(",");
        assert_eq!(told(&meta("api-0", format!("[{few}]").into())), [], "too many of one pod");
    }

    #[test]
    fn a_reservation_ends_with_the_annotation_and_with_the_pod() {
        let gone = |out: &mut Vec<Observation>| {
            let keys = out.drain(..).filter_map(|what| match what {
                Observation::ReservationGone { key, .. } => Some(key),
                _ => None,
            });
            keys.collect::<Vec<_>>()
        };
        let key = |pod: &str| format!("pods/shop/{pod}/10.0.3.17");
        let (mut enis, mut out) = (BranchEnis::default(), Vec::new());
        for pod in ["a", "b", "c", "d"] {
            enis.now(&meta(pod, SAID.into()), &mut out);
        }
        assert!(gone(&mut out).is_empty());
        enis.now(&meta("a", Value::Null), &mut out);
        assert_eq!(gone(&mut out), [key("a")]);
        enis.gone(&meta("b", SAID.into()), &mut out);
        assert_eq!(gone(&mut out), [key("b")]);
        // A list that broke off proves nothing.
        enis.began();
        enis.now(&meta("c", SAID.into()), &mut out);
        enis.ended(false, &mut out);
        assert!(gone(&mut out).is_empty());
        enis.began();
        enis.now(&meta("c", SAID.into()), &mut out);
        enis.ended(true, &mut out);
        assert_eq!(gone(&mut out), [key("d")]);
    }
}
