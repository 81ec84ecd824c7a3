//! A pod is deleted by force while its process hangs in the kernel. kubelet stops what is left of its sandbox, its IP
//! is freed, and the fifth next pod is given it and is Ready, without a word.

use support::fuse::Hung;
use support::kubernetes::Node;
use support::lead::{Failure, Told};
use support::pod::PodSandbox;
use support::poll::until;
use support::{Lab, patience};

use super::deleted::IDLE;
use super::watching;
use crate::lead::duplicate::{DUPLICATE, READ, RELEASED, hangs, orphan};
use crate::lead::{Eyes, SOON, await_ready, is_about, names, small};

support::tests! {
    a_freed_ip_is_told_before_the_next_pod_has_it needs [Containerd, Fuse, Kubelet] @ Alone,
}

fn a_freed_ip_is_told_before_the_next_pod_has_it(lab: &Lab) {
    let node = Node::start(lab, &small(lab), &[]);
    // After kubelet, which otherwise has a copy of this mount.
    let mut hung = Hung::mount(lab);
    let daemon = watching(lab, &node);
    let told = Told::by(&daemon);
    let events = node.api().events(node.namespace());
    let pod = node.run("db-0", hung.dir(), &READ);
    hung.await_read();
    daemon.await_ip(&pod.ip, pod.netns);
    let reservation = node.containerd.reservations().join(&pod.ip);
    std::thread::sleep(IDLE * patience());
    node.force_delete("db-0");
    until("the API has forgotten it", 20, || node.pod("db-0").is_none());
    until("kubelet kills it, and it hangs", 60, || hangs(&pod));
    assert!(reservation.exists(), "its IP is reserved");
    // Its shim gives up, and its netns has lost its name: for kubelet it has ended, and so has its sandbox.
    orphan(&node.containerd, &pod);
    until("kubelet has its IP freed", 60, || !reservation.exists());
    assert!(hangs(&pod), "with its process and its netns");
    told.await_word(RELEASED, SOON, is_about(&pod.ip));

    // host-local goes round: the fifth next pod gets it.
    let others: Vec<PodSandbox> =
        (0..4).map(|n| PodSandbox::clone(&node.run_idle(&format!("web-{n}")))).collect();
    await_ready(&daemon, &others);
    let eyes = Eyes::within(node.netns(), &pod.ip);
    let second = node.run_idle("web-4");
    assert_eq!(second.ip, pod.ip, "the IP of the one that hangs");
    let failure = Failure {
        case: "kubelet: force-deleted, freed while held, next pod gets it",
        at: eyes.saw(),
        slow: true,
    };
    let holder = pod.pid.to_string();
    told.lead(&failure, RELEASED, is_about(&pod.ip), |finding| {
        names(&finding["holders"].to_string(), &[&holder], "the process that hangs")?;
        let subject = &finding["subject"]["pod"]["name"];
        names(&subject.to_string(), &[&pod.name], "the process that hangs, its pod")
    });
    // Kubernetes has nothing to say of it: the pod is Ready.
    let warnings = events.of("web-4").into_iter().filter(|(_, event)| event["type"] != "Normal");
    assert_eq!(warnings.count(), 0, "{:#?}", events.of("web-4"));
    daemon.await_firing(DUPLICATE, SOON, is_about(&pod.ip));
    hung.release();
}
