//! A pod is force-deleted while its process hangs in the kernel. kubelet stops the rest of its sandbox, its IP is
//! freed, and the fifth next pod gets the IP and becomes Ready, without any error.

use support::Lab;
use support::lead::Failure;
use support::pod::PodSandbox;
use support::poll::until;
use support::remedy::{Shell, change};

use super::Deleted;
use crate::lead::duplicate::{DUPLICATE, RELEASED, orphan};
use crate::lead::{Eyes, SOON, await_ready, is_about};

support::tests! {
    a_freed_ip_is_told_before_the_next_pod_has_it needs [Containerd, Fuse, Kubelet, SharedApiServer],
}

fn a_freed_ip_is_told_before_the_next_pod_has_it(lab: &Lab) {
    let mut deleted = Deleted::start(lab, &[]);
    let Deleted { node, daemon, told, events, pod, .. } = &deleted;
    assert!(deleted.is_reserved(), "its IP is reserved");
    // Its shim is killed, and its netns unmounted: for kubelet it has ended, and so has its sandbox.
    orphan(&node.containerd, pod);
    until("kubelet has its IP freed", 60, || !deleted.is_reserved());
    assert!(pod.hangs(), "with its process and its netns");
    told.await_word(RELEASED, SOON, is_about(&pod.ip));

    // host-local assigns round-robin: the fifth next pod gets it.
    let others: Vec<PodSandbox> =
        (0..4).map(|n| PodSandbox::clone(&node.run_idle(&format!("web-{n}")))).collect();
    await_ready(daemon, &others);
    let eyes = Eyes::within(node.netns(), &pod.ip);
    let second = node.run_idle("web-4");
    assert_eq!(second.ip, pod.ip, "the IP of the one that hangs");
    let failure = Failure {
        case: "kubelet: force-deleted, freed while held, next pod gets it",
        at: eyes.saw(),
        slow: true,
    };
    told.lead(&failure, RELEASED, is_about(&pod.ip), |finding| deleted.is_named(finding));
    // Kubernetes reports nothing: the pod is Ready.
    let warnings = events.of("web-4").into_iter().filter(|(_, event)| event["type"] != "Normal");
    assert_eq!(warnings.count(), 0, "{:#?}", events.of("web-4"));
    // The newer one is known when the runtime has reported the creation time of its sandbox.
    let duplicate = daemon.await_firing(DUPLICATE, SOON, |finding| {
        is_about(&pod.ip)(finding) && finding["subject"]["pod"]["name"] == "web-4"
    });
    for (_, word) in told.findings() {
        let older = word["code"] == DUPLICATE && word["steps"].to_string().contains("/pods/db-0");
        assert!(!older, "the older one is to be deleted: {word:#?}");
    }
    // The printed command deletes the newer pod, but none that has its name later.
    let shell = Shell::new(lab).with_kubectl(&node.control.admin_config());
    shell.looks(&duplicate);
    let command = change(&duplicate, "kubectl delete --raw=");
    shell.refuses(&command.replace("\"uid\":\"", "\"uid\":\"0"));
    let is_deleted =
        || node.pod("web-4").is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
    assert!(!is_deleted(), "another one was deleted");
    shell.succeeds(&command);
    assert!(is_deleted(), "{command}");
    // A repetition: it does not end earlier, and no other pod ends.
    let ends = |name: &str| node.pod(name).map(|pod| pod["metadata"]["deletionTimestamp"].clone());
    let before = ends("web-4");
    let _ = shell.run(&command);
    assert!(ends("web-4").is_none_or(|at| Some(at) == before), "{command}");
    assert_eq!(ends("web-3"), Some(serde_json::Value::Null), "another one was deleted");
    deleted.hung.release();
}
