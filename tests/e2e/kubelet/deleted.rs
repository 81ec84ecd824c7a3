//! A pod that hangs is force-deleted: it is removed from the API at once, and its IP is still up. kubelet reports
//! that after two calls to the runtime have timed out, in an Event about a pod that no longer exists.

use support::Lab;
use support::harness::FIGURE;
use support::lead::Failure;

use super::Deleted;
use crate::lead::is_about;

support::tests! {
    a_force_deleted_pod_that_hangs_is_told_before_kubelet_says_so needs [Containerd, Fuse, Kubelet, SharedApiServer],
}

const FAILED: &str = "FailedKillPod";
/// Findings about its IP before kubelet's Event.
const CODES: &[&str] = &["ip-held-by-stuck-process", "ip-held-by-deleted-pod"];
/// Instead of two minutes, which kubelet waits twice: with the default, FailedKillPod comes after four minutes.
const TIMEOUT: &str = "--runtime-request-timeout=30s";

fn a_force_deleted_pod_that_hangs_is_told_before_kubelet_says_so(lab: &Lab) {
    let mut deleted = Deleted::start(lab, &[TIMEOUT]);
    let (at, event) = deleted.events.await_first("db-0", FAILED, 150);
    assert_eq!(event["source"]["component"], "kubelet", "{event:#?}");
    let waited = at.duration_since(deleted.at).as_secs_f64();
    println!("{FIGURE}kubelet told of a force-deleted pod after {waited:.1} s, by {TIMEOUT}");
    assert!(deleted.is_reserved(), "its IP is reserved");
    let failure =
        Failure { case: "kubelet: force-deleted pod hangs, FailedKillPod", at, slow: true };
    for code in CODES {
        let about = is_about(&deleted.pod.ip);
        deleted.told.lead(&failure, code, about, |finding| deleted.is_named(finding));
    }
    deleted.hung.release();
}
