//! A sandbox is dead, or hangs, and its tasks are not gone.

use support::fuse::Hung;
use support::harness::case;
use support::pod::{Containerd, Pod};
use support::poll::until;
use support::proc::{View, tasks_in};
use support::remedy::{Shell, change, changes};
use support::{Lab, sys};

use super::{GRACE, SLEEP, SOON, await_word, evidence, is_about, is_in, root_in, watching};

support::tests! {
    a_stuck_process_has_its_runtimes_word needs [Containerd, Fuse],
    a_dead_sandbox_with_a_stuck_task_is_a_consequence needs [Containerd, Fuse],
    a_task_outlives_its_sandbox needs [Containerd],
    a_task_outlives_a_sandbox_that_is_gone needs [Containerd],
    zombies_of_a_stopped_shim_hold_nothing needs [Containerd],
    the_control_leaves_nothing_flagged needs [Containerd],
}

fn hang(hung: &mut Hung, pod: &Pod) {
    hung.await_read();
    sys::kill(pod.pid, libc::SIGKILL).unwrap();
    until("it hangs", 10, || {
        View::leader(pod.pid).is_some_and(|view| view.state == 'D' && view.killed())
    });
}

/// While kubelet tries to stop it, in vain: exactly one cause, with what the runtime says beside it.
fn a_stuck_process_has_its_runtimes_word(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let containerd = Containerd::start(lab);
    let daemon = watching(lab, &containerd);
    let pod = containerd.run("db-0", hung.dir(), &["/bin/cat", "/host/hang"]);
    await_word(&daemon, &pod, "Ready");
    hang(&mut hung, &pod);
    let mut client = containerd.begin_stop(&pod);
    let finding = daemon.await_firing("ip-held-by-stuck-process", SOON, is_in(pod.netns));
    is_about(&finding, &pod);
    assert_eq!(finding["holders"][0]["pid"], pod.pid, "the stuck one, not the pause: {finding:#?}");
    let container = &finding["subject"]["container"];
    assert_eq!(container["id"], pod.container.as_str(), "{finding:#?}");
    assert_eq!(container["runtime"], "containerd", "{finding:#?}");
    assert_eq!(container["name"], "main", "{finding:#?}");
    let proof = evidence(&finding);
    assert!(proof.contains("containerd") && proof.contains("is Ready"), "its word: {proof}");
    assert_eq!(container["state"], "Running", "{finding:#?}");
    assert!(proof.contains("fuse_"), "the cause: {proof}");
    std::thread::sleep(std::time::Duration::from_secs(u64::from(2 * GRACE)));
    assert_eq!(root_in(&daemon, pod.netns)["id"], finding["id"], "still the one cause");
    assert!(client.try_wait().unwrap().is_none(), "stopping it hangs");
    hung.release();
    daemon.await_resolved(&finding, SOON);
    client.wait().unwrap();
    case(
        "process hangs on FUSE, StopPodSandbox hangs",
        "ip-held-by-stuck-process",
        &format!("pid {} (cat), runtime's word", pod.pid),
        "yes, when the mount is aborted",
    );
}

fn a_dead_sandbox_with_a_stuck_task_is_a_consequence(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let mut containerd = Containerd::start(lab);
    let daemon = watching(lab, &containerd);
    // Not cat: that one splices, and then hangs with the lock of the pipe to its shim, which hangs too.
    let command = ["/bin/busybox", "head", "-c", "1", "/host/hang"];
    let pod = containerd.run("db-0", hung.dir(), &command);
    await_word(&daemon, &pod, "Ready");
    hang(&mut hung, &pod);
    containerd.crash();
    containerd.kill_shim_and_pause(&pod);
    containerd.restart();
    let dead = daemon.await_firing("ip-held-by-dead-sandbox", SOON, is_in(pod.netns));
    let stuck = daemon.await_firing("ip-held-by-stuck-process", SOON, is_in(pod.netns));
    assert_eq!(dead["caused_by"], stuck["id"], "{dead:#?}");
    assert_eq!(root_in(&daemon, pod.netns)["id"], stuck["id"]);
    assert_eq!(stuck["holders"][0]["pid"], pod.pid, "{stuck:#?}");
    hung.release();
    daemon.await_resolved(&stuck, SOON);
    daemon.await_resolved(&dead, SOON);
    case(
        "the same, and its shim is killed",
        "ip-held-by-dead-sandbox, caused by stuck",
        &format!("pid {} (head)", pod.pid),
        "yes, when the mount is aborted",
    );
}

fn a_task_outlives_its_sandbox(lab: &Lab) {
    let mut containerd = Containerd::start(lab);
    let daemon = watching(lab, &containerd);
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    await_word(&daemon, &pod, "Ready");
    containerd.crash();
    containerd.kill_shim_and_pause(&pod);
    containerd.forget_in_runc(&pod.container);
    containerd.restart();
    let finding = daemon.await_firing("ip-held-by-dead-sandbox", SOON, is_in(pod.netns));
    is_about(&finding, &pod);
    assert_eq!(finding["severity"], "warning");
    assert_eq!(finding["subject"]["pod"]["state"], "NotReady", "{finding:#?}");
    assert_eq!(finding["holders"][0]["pid"], pod.pid, "{finding:#?}");
    let proof = evidence(&finding);
    assert!(proof.contains("NotReady") && proof.contains(&pod.sandbox[..12]), "{proof}");
    assert!(proof.contains(&pod.pid.to_string()), "{proof}");
    assert_eq!(root_in(&daemon, pod.netns)["id"], finding["id"]);
    // Its runtime has it still, and ends it by its own command.
    let shell = Shell::new(lab);
    shell.succeeds(&change(&finding, "crictl "));
    let id = pod.sandbox.as_str();
    assert_eq!(shell.said(), ["crictl", "stopp", id, "crictl", "rmp", id]);
    assert!(!changes(&finding).iter().any(|command| command.contains("kill")), "{finding:#?}");
    sys::kill(pod.pid, libc::SIGKILL).unwrap();
    daemon.await_resolved(&finding, SOON);
    containerd.stop(&pod);
    case(
        "shim killed, its container lives",
        "ip-held-by-dead-sandbox",
        &format!("pid {} (sleep), pod and sandbox", pod.pid),
        "yes, when it is killed",
    );
}

/// The runtime had it and has lost all it knew.
fn a_task_outlives_a_sandbox_that_is_gone(lab: &Lab) {
    let mut containerd = Containerd::start(lab);
    let daemon = watching(lab, &containerd);
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    await_word(&daemon, &pod, "Ready");
    containerd.crash();
    containerd.kill_shim_and_pause(&pod);
    containerd.wipe();
    containerd.restart_empty();
    let finding = daemon.await_firing("ip-held-by-dead-sandbox", SOON, is_in(pod.netns));
    is_about(&finding, &pod);
    assert_eq!(finding["holders"][0]["pid"], pod.pid, "{finding:#?}");
    // It is the init of a pid namespace, which SIGTERM does nothing to.
    let (shell, command) = (Shell::new(lab), change(&finding, &format!("kill -9 {}", pod.pid)));
    shell.refuses(&command.replacen("{18}", "{18}9", 1));
    assert!(View::leader(pod.pid).is_some(), "it was ended for another process");
    shell.succeeds(&command);
    daemon.await_resolved(&finding, SOON);
    // Once more: it is gone, or a zombie that nobody has taken notice of, to which no signal does anything.
    let _ = shell.run(&command);
    assert!(daemon.findings_in(pod.netns).iter().all(|one| one["code"] != finding["code"]));
    case(
        "runtime's state wiped, a container lives",
        "ip-held-by-dead-sandbox",
        &format!("pid {} (sleep), pod and sandbox", pod.pid),
        "yes, when it is killed",
    );
}

/// The runtime takes it for alive, zombies hold no netns, and the name of the netns is its own: nothing
/// is wrong with the IP that anybody could tell, and nothing is told.
fn zombies_of_a_stopped_shim_hold_nothing(lab: &Lab) {
    let containerd = Containerd::start(lab);
    let daemon = watching(lab, &containerd);
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    await_word(&daemon, &pod, "Ready");
    let shim = containerd.stop_shim(&pod);
    for pid in [pod.pid, pod.pause] {
        sys::kill(pid, libc::SIGKILL).unwrap();
    }
    until("nothing but zombies is left", 10, || tasks_in(pod.netns).is_empty());
    std::thread::sleep(std::time::Duration::from_secs(u64::from(5 * GRACE)));
    let findings = daemon.findings_in(pod.netns);
    assert!(findings.is_empty(), "{findings:#?}");
    let address = daemon.ip_in(&pod.ip, pod.netns).expect("its IP is still shown");
    let held = address["holders"].to_string();
    assert!(!held.contains("\"process\"") && held.contains("\"mount\""), "by its name: {held}");
    drop(shim);
    containerd.stop(&pod);
    daemon.await_no_ip(&pod.ip, pod.netns);
    case("shim stopped, its children zombies", "none: a zombie holds no netns", "-", "-");
}

/// Shim killed, state kept: containerd cleans up, and so nothing is left to be told of.
fn the_control_leaves_nothing_flagged(lab: &Lab) {
    let mut containerd = Containerd::start(lab);
    let daemon = watching(lab, &containerd);
    let follower = daemon.follow();
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    await_word(&daemon, &pod, "Ready");
    containerd.crash();
    containerd.kill_shim_and_pause(&pod);
    containerd.restart();
    until("the container is killed", 10, || tasks_in(pod.netns).is_empty());
    containerd.stop(&pod);
    daemon.await_no_ip(&pod.ip, pod.netns);
    std::thread::sleep(std::time::Duration::from_secs(u64::from(3 * GRACE)));
    let about = |change: &&serde_json::Value| {
        change["finding"]["subject"]["pod"]["uid"] == pod.uid.as_str()
    };
    let changes = follower.changes();
    let told: Vec<_> = changes.iter().filter(about).collect();
    assert!(told.is_empty(), "{told:#?}");
    case("shim killed, state kept, pod removed", "none: all is freed", "-", "-");
}
