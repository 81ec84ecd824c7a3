//! `endpoint-missing`: Calico's datastore has no workload endpoint for a living pod of this node that has a device of
//! Calico's, or has one that names another container: its agent treats the device as unused and removes its routes.
//! Also, as context, endpoints whose pod no longer exists.
//!
//! Only a datastore that was listed completely, answers and has had an endpoint of this node can show this, and the
//! runtime must have confirmed after that that the pod lives. If the pod itself is the endpoint (the API server), its
//! status replaces the missing annotations: that pages nobody.

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::contract;
use crate::fact::{BootNs, SourceName};
use crate::finding::{Candidate, Code, Evidence, Severity, Subject};
use crate::map::{EndpointEntry, Kinds, MissingEndpoint, NodeMap, StaleEndpoint, Thresholds};
use crate::remedy::{Command, Step, kubernetes, said, text, value};

/// Maximum number of stale endpoints that are reported individually.
const TOLD: usize = 64;

pub(super) const DETECTOR: Detector = Detector::Whole {
    on: Kinds::NONE,
    beyond: Kinds::NETNS
        .and(Kinds::LINKS)
        .and(Kinds::RUNTIMES)
        .and(Kinds::PODS)
        .and(Kinds::CALLS)
        .and(Kinds::ENDPOINTS),
    detect,
};

fn detect(map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> Judged {
    let unwired = map.has_unwired_pods();
    let missing = map.missing_endpoints(thresholds);
    let missing = missing.iter().filter(|one| one.from <= now);
    let stale = map.stale_endpoints(thresholds);
    // The text about a pod changes with everything in its netns, and the pod's own call excuses it for a while.
    let again = Again::always_if(unwired || !stale.is_empty());
    let stale = stale.iter().filter(|one| one.from <= now).take(TOLD);
    let missing = missing.filter_map(|one| of_pod(map, one));
    (missing.chain(stale.filter_map(|one| of_endpoint(map, one))).collect(), again)
}

fn of_pod(map: &NodeMap, missing: &MissingEndpoint<'_>) -> Option<Candidate> {
    let MissingEndpoint { store, pod, netns, .. } = *missing;
    let sandbox = &missing.sandbox.sandbox;
    // Both must have reported since then: neither's silence counts.
    let observed = map.last_listed(&sandbox.runtime)?.min(missing.heard);
    if observed < missing.from {
        return None;
    }
    let boot = map.boot()?;
    let in_api = is_in_api(missing);
    let name = format!("{}/{}", pod.namespace, pod.name);
    let impact = if in_api {
        text!(
            "Calico's annotations of pod {} do not name the IP of its sandbox: a DEL was run for it, or another \
             sandbox's ADD. Its IP can be assigned again while the pod still has it.",
            value(&name)
        )
    } else {
        text!(
            "Calico no longer knows pod {}: its agent treats {} as unused and removes its route and its rules, so \
             the pod becomes unreachable.",
            value(&name),
            value(&missing.device.name)
        )
    };
    let uid = sandbox.pod.as_ref().and_then(|pod| pod.uid.as_deref());
    let subject = evidence::subject(map, netns);
    let key = format!("{}/{store}/{}", boot.boot_id, sandbox.id);
    let is_found = evidence::is_found(Code::EndpointMissing, &key);
    Some(Candidate {
        code: Code::EndpointMissing,
        key,
        severity: if in_api { Severity::Warning } else { Severity::Critical },
        subject,
        holders: evidence::bounded(map.resident_views(netns.id, map.now())),
        evidence: evidence(map, missing, observed),
        since: missing.since,
        observed,
        impact,
        remediation: remediation(missing, uid, is_found),
        caused_by: None,
        preexisting: missing.lost.is_none() && missing.other.is_none(),
    })
}

/// Whether the pod itself is the endpoint.
fn is_in_api(missing: &MissingEndpoint<'_>) -> bool {
    *missing.store == *SourceName::Kubernetes.as_str()
}

fn evidence(map: &NodeMap, missing: &MissingEndpoint<'_>, observed: BootNs) -> Vec<Evidence> {
    let MissingEndpoint { store, pod, netns, device, .. } = *missing;
    let name = said(&format!("{}/{}", pod.namespace, pod.name));
    let mut proof = Proof::new(map);
    if let Some((was, went)) = missing.lost {
        let text = format!(
            "the endpoint of {name} was removed: {}{}",
            said(&was.endpoint.key),
            container(was)
        );
        proof.tell(By::Named(store), *went, text);
    }
    let text = match missing.other {
        Some(other) => {
            let key = said(&other.endpoint.key);
            format!(
                "the endpoint of {name} belongs to another container: {key}{}",
                container(other)
            )
        }
        None if is_in_api(missing) => {
            format!("pods/{name} has no Calico address in its annotations")
        }
        None => format!("its complete list has no endpoint of {name}"),
    };
    proof.tell(By::Named(store), observed, text);
    proof.runtime(missing.sandbox);
    let text =
        format!("{} leads to its netns, {}", said(&device.name), evidence::netns_text(netns));
    proof.tell(By::Netlink, observed, text);
    let ips = evidence::addresses(netns).join(", ");
    proof.tell(By::Netlink, observed, format!("up in it: {ips}"));
    let routes = netns.routable().next().map(|(key, _)| map.routes_to(key.local));
    for route in routes.into_iter().flatten() {
        proof.tell(By::Netlink, observed, route);
    }
    proof.done()
}

fn calicoctl_get(namespace: &str) -> Command {
    let get = Command::new("calicoctl").owns(&["get", "workloadendpoint"]);
    get.word("--namespace={}", &[value(namespace)]).owns(&["-o", "wide"])
}

fn remediation(missing: &MissingEndpoint<'_>, uid: Option<&str>, is_found: Command) -> Vec<Step> {
    let (namespace, pod) = (&*missing.pod.namespace, &*missing.pod.name);
    let device = &*missing.device.name;
    let ip = |words: &[&'static str]| Command::new("ip").owns(words).value(device);
    vec![
        Step::look(
            text!("See what the node still has"),
            ip(&["route", "show", "dev"]).and(ip(&["-d", "link", "show", "dev"])),
        ),
        Step::look(text!("See what Calico has"), calicoctl_get(namespace)),
        Step::look(
            text!(
                "First make sure that old sandboxes of this pod are removed; otherwise their DEL is run again. \
                 Remove one only while this shows it as NotReady, never the one that is Ready (ipwatch explain \
                 endpoint-missing has the command)"
            ),
            Command::new("crictl").own("pods").word("--name=^{}$", &[value(pod)]),
        ),
        kubernetes::delete_pod(
            text!(
                "Then delete the pod, if it is still this one: its controller, if it has one, creates another one"
            ),
            is_found,
            [namespace, pod],
            uid,
        ),
        Step::never(&text!(
            "restart calico-node; it creates no endpoint, and removes the route if it is still there"
        )),
    ]
}

fn container(entry: &EndpointEntry) -> String {
    let id = entry.endpoint.container.as_deref().map(evidence::short);
    id.map(|id| format!(", for container {}", said(id))).unwrap_or_default()
}

fn of_endpoint(map: &NodeMap, stale: &StaleEndpoint<'_>) -> Option<Candidate> {
    let endpoint = &stale.entry.endpoint;
    let observed = map.all_listed()?.min(stale.heard);
    if observed < stale.from {
        return None;
    }
    let name = format!("{}/{}", endpoint.namespace, endpoint.pod);
    let mut proof = Proof::new(map);
    let text = format!(
        "an endpoint of {}: {}{}",
        said(&name),
        said(&endpoint.key),
        container(stale.entry)
    );
    proof.tell(By::Named(&endpoint.store), stale.entry.told, text);
    match map.sandbox(stale.container) {
        Some(entry) => proof.runtime(entry),
        None => {
            let runtimes: Vec<&str> = map.runtimes().collect();
            let asked = evidence::listed(runtimes);
            let text = format!(
                "no runtime has {}; asked: {asked}",
                said(evidence::short(stale.container))
            );
            proof.tell(By::Runtime, observed, text);
        }
    }
    let device = endpoint.device.as_deref().map_or_else(|| "of it".to_owned(), said);
    proof.tell(By::Netlink, observed, format!("its netns is gone, and so is device {device}"));
    let (container, pod) = map.sandbox_told(stale.container).unwrap_or_default();
    Some(Candidate {
        code: Code::EndpointMissing,
        key: format!("{}/{}/{}", endpoint.store, endpoint.key, stale.container),
        severity: Severity::Info,
        subject: Subject {
            ip: endpoint.ips.first().copied(),
            container: container.or_else(|| {
                let id = Some(stale.container.to_owned());
                Some(contract::Container { id, ..Default::default() })
            }),
            pod: pod.or_else(|| {
                Some(contract::Pod {
                    namespace: Some(endpoint.namespace.clone()),
                    name: Some(endpoint.pod.clone()),
                    ..Default::default()
                })
            }),
            ..Subject::default()
        },
        holders: Vec::new(),
        evidence: proof.done(),
        since: stale.from.min(observed),
        observed,
        impact: text!(
            "Calico still has an endpoint for pod {}, of which nothing is left on this node. Network policies still \
             include its IP.",
            value(&name)
        ),
        remediation: vec![
            evidence::ask_runtime(map, stale.container),
            Step::look(text!("See what Calico has for it"), calicoctl_get(&endpoint.namespace)),
            Step::advice(text!(
                "Delete that one endpoint only if the container is gone and Calico still has the endpoint: ipwatch \
                 explain endpoint-missing has the command, which checks the container's id first."
            )),
        ],
        caused_by: None,
        preexisting: false,
    })
}
