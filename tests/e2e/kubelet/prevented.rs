//! A pod hangs and is force-deleted, and its IP is released behind the runtime's back, as a cleaner of leaks does. Then
//! five pods start at the same time. With `ipwatch-ipam` none of them has its IP; without it one has, in silence.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use support::harness::{FIGURE, case};
use support::kubernetes::Node;
use support::pod::Pod;
use support::poll::until;
use support::{Daemon, Lab};

use super::Deleted;
use crate::lead::duplicate::DUPLICATE;
use crate::lead::{SOON, config_for, is_about};

support::tests! {
    no_pod_of_a_kubelet_is_given_an_ip_that_is_held needs [Containerd, Fuse, Kubelet, SharedApiServer],
    without_the_plugin_a_kubelets_pod_is_given_it needs [Containerd, Fuse, Kubelet, SharedApiServer],
}

const NEXT: usize = 5;
const IMMINENT: &str = "ip-conflict-imminent";
const PARKED: &str = "ipwatch-parked-";

/// Room for the five and for one that is parked.
fn subnet(lab: &Lab) -> String {
    format!("{}/27", lab.ip(0))
}

/// A daemon in the node's netns, as on a node: an address counts as held if its device leads to there.
fn beside(lab: &Lab, node: &Node<'_>) -> Daemon {
    let daemon = node.netns().run(|| Daemon::start(lab, &config_for(&node.containerd)));
    daemon.await_source("containerd");
    daemon
}

/// Releases the IP of the pod that hangs, and starts five others. Each has a reservation of its own.
fn next_five(deleted: &Deleted<'_>) -> Vec<Pod> {
    let Deleted { node, daemon, pod, .. } = deleted;
    until("its reservation is known", 20, || {
        let answer = daemon.document(&["query", "ipam", &pod.ip]).unwrap_or_default();
        answer["reservations"][0]["ip"] == *pod.ip
    });
    assert_eq!(node.containerd.reserved_for(&pod.ip).as_deref(), Some(&*pod.sandbox));
    fs::remove_file(node.containerd.reservations().join(&pod.ip)).unwrap();
    node.containerd.hand_out_next(pod.ip.parse().unwrap());
    let names: Vec<String> = (0..NEXT).map(|n| format!("web-{n}")).collect();
    names.iter().for_each(|name| node.create_idle(name));
    let next: Vec<Pod> = names.iter().map(|name| node.await_started(name)).collect();
    assert!(pod.hangs(), "the IP is still up");
    for other in &next {
        let reserved = node.containerd.reserved_for(&other.ip);
        assert_eq!(reserved.as_deref(), Some(&*other.sandbox), "{other:#?}");
    }
    next
}

/// How many of the next pods share the IP, which xtask adds up over all runs.
fn shared(next: &[Pod], held: &Pod, how: &str, goal: &str) -> usize {
    let number = next.iter().filter(|pod| pod.ip == held.ip).count();
    println!(
        "{FIGURE}kubelet: next pods that share a held IP, {how}  {number} of {} in this run  goal {goal}",
        next.len()
    );
    number
}

fn no_pod_of_a_kubelet_is_given_an_ip_that_is_held(lab: &Lab) {
    let mut deleted = Deleted::on(lab, Node::prevented(lab, &subnet(lab)), beside);
    let next = next_five(&deleted);
    let Deleted { node, daemon, told, events, pod, .. } = &deleted;
    let ips: BTreeSet<&str> = next.iter().map(|pod| &*pod.ip).collect();
    assert!(ips.len() == NEXT && !ips.contains(&*pod.ip), "{ips:?}, and {} is held", pod.ip);
    let parked = node.containerd.reserved_for(&pod.ip).expect("it is parked");
    assert!(parked.starts_with(PARKED), "{parked}");
    // kubelet had no trouble, and nobody is told of a conflict.
    for other in &next {
        let warnings = events.of(&other.name);
        let mut warnings = warnings.iter().filter(|(_, event)| event["type"] != "Normal");
        assert!(warnings.next().is_none(), "{:#?}", events.of(&other.name));
        daemon.await_ip(&other.ip, other.netns);
    }
    let ip = pod.ip.clone();
    let about = is_about(&ip);
    let wrong = |(_, finding): &(_, Value)| about(finding) && finding["code"] == DUPLICATE;
    assert!(!told.findings().iter().any(wrong), "{:#?}", told.findings());
    // Between the ADD and its parking the IP is reserved for the next pod. On a machine that takes more than half a second
    // for it, this is told, and is over at once.
    until("no conflict is imminent", 20, || {
        !daemon.findings().iter().any(|finding| about(finding) && finding["code"] == IMMINENT)
    });
    shared(&next, pod, "with ipwatch-ipam", "0");
    case(
        "kubelet: force-deleted, freed while held, five next pods, with ipwatch-ipam",
        "none: 5 of 5 have an IP of their own",
        &format!("pid {}", pod.pid),
        "yes",
    );
    deleted.hung.release();
}

/// The same without it, so that the test above can fail.
fn without_the_plugin_a_kubelets_pod_is_given_it(lab: &Lab) {
    let mut deleted = Deleted::on(lab, Node::shared(lab, &subnet(lab), &[]), beside);
    let next = next_five(&deleted);
    let number = shared(&next, &deleted.pod, "without ipwatch-ipam", "one in each run");
    assert_eq!(number, 1, "{next:#?}");
    deleted.daemon.await_firing(DUPLICATE, SOON, is_about(&deleted.pod.ip));
    case(
        "kubelet: force-deleted, freed while held, five next pods",
        DUPLICATE,
        "the next pod that starts",
        "yes",
    );
    deleted.hung.release();
}
