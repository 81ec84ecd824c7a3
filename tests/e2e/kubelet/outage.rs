//! The API server is killed and restarted: its silence does not count as a deletion, and its answers after the
//! restart do.

use support::kubernetes::Node;
use support::lead::Told;
use support::pod::PodSandbox;
use support::poll::until;
use support::remedy::{Shell, change};
use support::{Daemon, Lab};

use super::watching;
use crate::lead::{SOON, await_ready, is_about, small};

support::tests! {
    a_silent_api_server_deletes_no_pod needs [Containerd, Kubelet],
}

const CODE: &str = "ip-held-by-deleted-pod";

#[track_caller]
fn await_status(daemon: &Daemon, status: &str) {
    until(&format!("the API server is {status}"), 120, || {
        daemon.source("kubernetes").is_some_and(|source| source["status"] == status)
    });
}

fn a_silent_api_server_deletes_no_pod(lab: &Lab) {
    let mut node = Node::start(lab, &small(lab), &[]);
    let daemon = watching(lab, &node);
    let told = Told::by(&daemon);
    let pods: Vec<PodSandbox> =
        (0..2).map(|n| PodSandbox::clone(&node.run_idle(&format!("web-{n}")))).collect();
    await_ready(&daemon, &pods);

    node.control.crash();
    await_status(&daemon, "down");
    node.control.restart();
    await_status(&daemon, "active");
    let about = |code: &str| {
        let all = told.findings();
        all.into_iter().filter(|(_, finding)| finding["code"] == code).count()
    };
    assert_eq!(about(CODE), 0, "both are there");

    // Without kubelet nobody ends the pods that the API server deletes then.
    node.crash_kubelet();
    node.force_delete("web-0");
    told.await_firing(CODE, SOON, is_about(&pods[0].ip));
    let finding = daemon.await_firing(CODE, SOON, is_about(&pods[0].ip));
    daemon.await_ip(&pods[1].ip, pods[1].netns);
    let other = daemon.findings_in(pods[1].netns);
    assert!(other.iter().all(|finding| finding["code"] != CODE), "{other:#?}");
    // The test does kubelet's work, for this pod only.
    let shell = Shell::new(lab).with_runtime(node.containerd.socket());
    shell.looks(&finding);
    let (cordon, stop) = (change(&finding, "kubectl cordon "), change(&finding, "crictl stopp "));
    shell.succeeds(&cordon);
    shell.succeeds(&stop);
    assert!(!support::proc::is_alive(pods[0].pause), "its sandbox goes on");
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&cordon);
    shell.changes_nothing(&stop);
    assert!(support::proc::is_alive(pods[1].pause), "another one was ended");
}
