//! A node loses its runtime's state twice, and with it the pods that nobody stops then; the range fills until
//! kubelet cannot start the next one.

use support::Lab;
use support::kubernetes::Node;
use support::lead::{Failure, Told};
use support::pod::{Pod, PodSandbox};

use super::watching;
use crate::lead::exhaustion::{EXHAUSTING, FULL, await_range, crash, network_of, of_range};
use crate::lead::{SOON, await_ready, is_about, is_of, names, small};

support::tests! {
    a_pod_fails_long_after_the_first_leak_was_told needs [Containerd, Kubelet, SharedApiServer],
}

const FAILED: &str = "FailedCreatePodSandBox";

fn run(node: &Node<'_>, numbers: std::ops::Range<usize>) -> Vec<PodSandbox> {
    let sandbox = |pod: &Pod| PodSandbox::clone(pod);
    numbers.map(|n| sandbox(&node.run_idle(&format!("web-{n}")))).collect()
}

/// The runtime's state is lost, and somebody clears the pods away that cannot be stopped: kubelet then finds
/// nothing to stop, and nobody ever asks for a DEL.
fn lose(node: &mut Node<'_>, pods: &[PodSandbox]) {
    crash(&mut node.containerd, pods);
    pods.iter().for_each(|pod| node.force_delete(&pod.name));
    node.containerd.restart_empty();
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
