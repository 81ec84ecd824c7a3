//! Sandboxes of one pod are created and end repeatedly.

use support::Lab;
use support::harness::case;
use support::pod::Containerd;
use support::remedy::Shell;

use super::{SOON, watching};

support::tests! {
    a_sandbox_that_is_made_again_and_again_is_a_loop needs [Pods],
}

const TIMES: u32 = 6;

fn a_sandbox_that_is_made_again_and_again_is_a_loop(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let daemon = watching(lab, &containerd);
    let first = containerd.pod("web-0").sandbox();
    containerd.halt(&first);
    // In addition a pod of a StatefulSet that is recreated as often: the same name, but another pod.
    let stateful = |_| {
        let pod = containerd.pod("db-0").sandbox();
        containerd.halt(&pod);
        pod
    };
    let others: Vec<_> = (0..TIMES).map(stateful).collect();
    let again = |attempt| {
        let pod = containerd.pod("web-0").uid(&first.uid).attempt(attempt).sandbox();
        containerd.halt(&pod);
        pod
    };
    let all: Vec<_> = (1..TIMES).map(again).collect();
    // The newest: it may fire before the last one is made.
    let about = |finding: &serde_json::Value| {
        let pod = &finding["subject"]["pod"];
        pod["uid"] == first.uid.as_str() && pod["attempt"] == TIMES - 1
    };
    let finding = daemon.await_firing("sandbox-crash-loop", SOON, about);
    let pod = &finding["subject"]["pod"];
    assert_eq!((&pod["namespace"], &pod["name"]), (&"shop".into(), &"web-0".into()));
    let proof = super::evidence(&finding);
    let known = proof.matches("was created").count();
    assert!(known >= 5, "{proof}");
    assert!(all.iter().all(|pod| proof.contains(&pod.sandbox[..12])), "{proof}");
    assert!(finding["impact"].as_str().unwrap().contains("IP"), "says what it costs: {finding:#?}");
    Shell::new(lab).looks(&finding);
    let open = daemon.findings();
    for other in &others {
        let about = |f: &&serde_json::Value| f["subject"]["pod"]["uid"] == other.uid.as_str();
        assert!(!open.iter().any(|f| about(&f)), "a StatefulSet is no loop: {open:#?}");
    }
    case(
        &format!("{TIMES} sandboxes of one pod within a minute"),
        "sandbox-crash-loop",
        "the pod; attempts and their IPs",
        "not in this run: after 10 minutes",
    );
}
