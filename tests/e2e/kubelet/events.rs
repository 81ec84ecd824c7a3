//! A finding becomes an Event on the affected pod, created with the rights in our manifests, and stays the same Event
//! after a restart of the daemon.

use serde_json::Value;
use support::kubernetes::Node;
use support::poll::until;
use support::{Daemon, Lab};

use super::message;
use crate::lead::{config_for, small};

support::tests! {
    an_event_on_the_pod_says_who_holds_its_ip needs [Containerd, Kubelet, SharedApiServer],
}

/// The daemon's RBAC rules for Events.
const RIGHTS: &str = include_str!("../../../deploy/kubernetes/api/events.yaml");
const REASON: &str = "IpHeldByDeletedPod";

fn an_event_on_the_pod_says_who_holds_its_ip(lab: &Lab) {
    let mut node = Node::shared(lab, &small(lab), &[]);
    for document in RIGHTS.split("---\n") {
        let object: Value = serde_norway::from_str(document).expect("an object of events.yaml");
        let kind = object["kind"].as_str().expect("a kind").to_lowercase();
        let group = object["apiVersion"].as_str().expect("a group");
        node.api().create(&format!("/apis/{group}/{kind}s"), &object);
    }
    let lines = format!("{}\nevents = true", node.agent_lines());
    let config = config_for(&node.containerd).line(&lines);
    let daemon = Daemon::start(lab, &config);
    daemon.await_source("containerd");
    daemon.await_source("kubernetes");
    let heard = node.api().events(node.namespace());
    let pod = node.run_idle("web-0");
    daemon.await_ip(&pod.ip, pod.netns);
    let uid = node.pod("web-0").expect("the pod")["metadata"]["uid"].clone();

    // Without kubelet nobody ends the pods that the API server deletes then.
    node.crash_kubelet();
    node.force_delete("web-0");
    let (_, event) = heard.await_first("web-0", REASON, 120);
    assert_eq!(event["involvedObject"]["uid"], uid, "{event:#?}");
    assert_eq!((&event["type"], &event["count"]), (&"Warning".into(), &1.into()), "{event:#?}");
    assert_eq!(event["source"]["component"], "ipwatch", "{event:#?}");
    assert!(message(&event).contains(&pod.ip), "{event:#?}");
    assert!(message(&event).contains("ipwatch explain "), "{event:#?}");

    let _ = daemon.stop();
    let daemon = Daemon::start(lab, &config);
    let told = || heard.of("web-0").into_iter().filter(|(_, event)| event["reason"] == REASON);
    until("it is counted up", 60, || told().any(|(_, event)| event["count"].as_u64() > Some(1)));
    let mut names: Vec<String> =
        told().map(|(_, event)| event["metadata"]["name"].to_string()).collect();
    names.dedup();
    assert_eq!(names.len(), 1, "one Event for one finding: {names:?}");
    let source = daemon.source("kubernetes_events").expect("how it stands");
    assert_eq!(source["status"], "active", "{source}");
}
