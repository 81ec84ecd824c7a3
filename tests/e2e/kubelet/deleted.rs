//! A pod that hangs is deleted by force: the API has forgotten it at once, and its IP is still up. kubelet says so
//! after two calls to the runtime have timed out, in an Event on a pod that is no more.

use std::time::{Duration, Instant};

use support::fuse::Hung;
use support::harness::FIGURE;
use support::kubernetes::Node;
use support::lead::{Failure, Told};
use support::poll::until;
use support::{Lab, patience};

use super::watching;
use crate::lead::duplicate::{READ, hangs};
use crate::lead::{is_about, names, small};

support::tests! {
    a_force_deleted_pod_that_hangs_is_told_before_kubelet_says_so needs [Containerd, Fuse, Kubelet] @ Alone,
}

const FAILED: &str = "FailedKillPod";
/// What is said about its IP before kubelet says anything.
const CODES: &[&str] = &["ip-held-by-stuck-process", "ip-held-by-deleted-pod"];
/// Instead of two minutes, of which kubelet waits twice: by itself it says FailedKillPod after four.
const TIMEOUT: &str = "--runtime-request-timeout=30s";
/// Until kubelet's worker for a new pod has nothing to do: its last look ends with PLEG's next round, a second later.
pub(super) const IDLE: Duration = Duration::from_secs(4);

fn a_force_deleted_pod_that_hangs_is_told_before_kubelet_says_so(lab: &Lab) {
    let node = Node::start(lab, &small(lab), &[TIMEOUT]);
    // After kubelet, which otherwise has a copy of this mount.
    let mut hung = Hung::mount(lab);
    let daemon = watching(lab, &node);
    let told = Told::by(&daemon);
    let events = node.api().events(node.namespace());
    let pod = node.run("db-0", hung.dir(), &READ);
    hung.await_read();
    daemon.await_ip(&pod.ip, pod.netns);
    // One that has just become Ready, kubelet's worker still looks at; a deletion by force that comes meanwhile it
    // forgets, and nobody says anything at all.
    std::thread::sleep(IDLE * patience());
    let deleted = Instant::now();
    node.force_delete("db-0");
    until("the API has forgotten it", 20, || node.pod("db-0").is_none());
    until("kubelet kills it, and it hangs", 60, || hangs(&pod));

    let (at, event) = events.await_first("db-0", FAILED, 150);
    assert_eq!(event["source"]["component"], "kubelet", "{event:#?}");
    let waited = at.duration_since(deleted).as_secs_f64();
    println!("{FIGURE}kubelet told of a force-deleted pod after {waited:.1} s, by {TIMEOUT}");
    assert!(node.containerd.reservations().join(&pod.ip).exists(), "its IP is reserved");
    let failure =
        Failure { case: "kubelet: force-deleted pod hangs, FailedKillPod", at, slow: true };
    let holder = pod.pid.to_string();
    for code in CODES {
        told.lead(&failure, code, is_about(&pod.ip), |finding| {
            names(&finding["holders"].to_string(), &[&holder], "the process that hangs")?;
            let subject = &finding["subject"]["pod"]["name"];
            names(&subject.to_string(), &[&pod.name], "the process that hangs, its pod")
        });
    }
    hung.release();
}
