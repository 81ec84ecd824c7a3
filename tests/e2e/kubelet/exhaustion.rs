//! A node loses its runtime's state twice, and with it pods that nobody stops then; the range fills until kubelet
//! cannot start the next pod.

use std::path::Path;
use std::time::{Duration, Instant};

use support::harness::FIGURE;
use support::kubernetes::Node;
use support::lead::{Failure, Told};
use support::pod::{CNI_CACHE, Pod, PodSandbox};
use support::{Config, Daemon, Lab};

use super::watching;
use crate::lead::exhaustion::{EXHAUSTING, FULL, await_range, crash, network_of, of_range};
use crate::lead::{SOON, await_ready, is_about, is_of, names, small};

support::tests! {
    a_pod_fails_long_after_the_first_leak_was_told needs [Containerd, Kubelet, SharedApiServer],
    five_leaks_of_a_crash_are_told_before_the_next_pod_fails needs [Containerd, Kubelet, SharedApiServer],
}

const FAILED: &str = "FailedCreatePodSandBox";

fn run(node: &Node<'_>, numbers: std::ops::Range<usize>) -> Vec<PodSandbox> {
    let sandbox = |pod: &Pod| PodSandbox::clone(pod);
    numbers.map(|n| sandbox(&node.run_idle(&format!("web-{n}")))).collect()
}

/// Loses the runtime's state and force-deletes the pods, which cannot be stopped: kubelet then finds nothing to stop,
/// and DEL is never called. Returns the time since which the runtime answers again.
fn lose(node: &mut Node<'_>, pods: &[PodSandbox]) -> Instant {
    crash(&mut node.containerd, pods);
    pods.iter().for_each(|pod| node.force_delete(&pod.name));
    node.containerd.restart_empty()
}

fn a_pod_fails_long_after_the_first_leak_was_told(lab: &Lab) {
    let mut node = Node::shared(lab, &small(lab), &[]);
    let daemon = watching(lab, &node);
    let told = Told::by(&daemon);
    let events = node.api().events(node.namespace());
    let first = run(&node, 0..1);
    await_ready(&daemon, &first);
    lose(&mut node, &first);
    told.await_firing("netns-leaked", SOON, is_about(&first[0].ip));
    let more = run(&node, 1..4);
    await_ready(&daemon, &more);
    lose(&mut node, &more);
    let _fifth = run(&node, 4..5);
    let network = network_of(&node.containerd);
    await_range(&told, &network, 4);

    node.create("web-5", lab.dir(), &["/bin/sleep", "1000000"]);
    let (at, event) = events.await_first("web-5", FAILED, 60);
    assert!(super::message(&event).contains(FULL), "{event:#?}");
    assert_eq!(event["source"]["component"], "kubelet", "{event:#?}");
    let failure = Failure { case: "kubelet: leaks, FailedCreatePodSandBox", at, slow: true };
    let path = first[0].path.to_str().unwrap().to_owned();
    told.lead(&failure, "netns-leaked", is_about(&first[0].ip), |finding| {
        names(&finding["holders"].to_string(), &[&path], "the netns's name")
    });
    told.lead(&failure, EXHAUSTING, is_of(&network), of_range(&network, 4));
}

/// With default graces, which are shortened by proof that nobody will free the reservations. The whole range is lost
/// at once, and the next pod starts two seconds after the node is Ready.
fn five_leaks_of_a_crash_are_told_before_the_next_pod_fails(lab: &Lab) {
    let mut node = Node::shared(lab, &small(lab), &[]);
    let config = Config::default()
        .cache_dir(Path::new(CNI_CACHE))
        .cri(node.containerd.socket())
        .networks(&node.containerd.conf_dirs(), &node.containerd.bin_dir())
        .line(&node.agent_lines());
    let daemon = Daemon::start(lab, &config);
    daemon.await_source("containerd");
    daemon.await_source("kubernetes");
    let told = Told::by(&daemon);
    let events = node.api().events(node.namespace());
    let pods = run(&node, 0..5);
    await_ready(&daemon, &pods);

    node.crash_kubelet();
    let back = lose(&mut node, &pods);
    node.restart_kubelet();
    std::thread::sleep(Duration::from_secs(2));
    node.create("web-5", lab.dir(), &["/bin/sleep", "1000000"]);
    let (at, event) = events.await_first("web-5", FAILED, 60);
    assert!(super::message(&event).contains(FULL), "{event:#?}");

    let failure = Failure { case: "kubelet: a crash, the next pod at once", at, slow: true };
    for pod in &pods {
        let path = pod.path.to_str().unwrap();
        told.lead(&failure, "netns-leaked", is_about(&pod.ip), |finding| {
            names(&finding["holders"].to_string(), &[path], "the netns's name")
        });
    }
    let network = network_of(&node.containerd);
    told.lead(&failure, EXHAUSTING, is_of(&network), of_range(&network, 5));
    let firing = told
        .findings()
        .into_iter()
        .filter(|(_, finding)| finding["code"] == "netns-leaked" && finding["status"] == "firing");
    let last = firing.map(|(heard, _)| heard).max().expect("five");
    println!("{FIGURE}five leaks fire {:.1?} after the runtime answers", last - back);
}
