//! A sandbox is dead or hangs, but its tasks still exist.

use serde_json::Value;
use support::fuse::Hung;
use support::harness::case;
use support::pod::{Containerd, Pod};
use support::poll::until;
use support::proc::{View, tasks_in};
use support::remedy::{Shell, change, changes};
use support::{Daemon, Lab, sys};

use super::{GRACE, SLEEP, SOON, await_word, evidence, is_about, is_in, root_in, watching};

support::tests! {
    a_stuck_process_has_its_runtimes_word needs [Pods, Fuse],
    a_dead_sandbox_with_a_stuck_task_is_a_consequence needs [Containerd, Fuse],
    a_task_outlives_its_sandbox needs [Containerd],
    a_task_outlives_a_sandbox_that_is_gone needs [Containerd],
    zombies_of_a_stopped_shim_hold_nothing needs [Pods],
    the_control_leaves_nothing_flagged needs [Containerd],
}

/// While kubelet fails to stop it: exactly one cause, with the runtime's state.
fn a_stuck_process_has_its_runtimes_word(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let containerd = Containerd::shared(lab);
    let daemon = watching(lab, &containerd);
    let pod = containerd.run("db-0", hung.dir(), &["/bin/cat", "/host/hang"]);
    await_word(&daemon, &pod, "Ready");
    pod.hang(&mut hung);
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
    // Not cat: it splices, and would then hang with the lock of the pipe to its shim, which would hang too.
    let command = ["/bin/busybox", "head", "-c", "1", "/host/hang"];
    let pod = containerd.run("db-0", hung.dir(), &command);
    await_word(&daemon, &pod, "Ready");
    pod.hang(&mut hung);
    containerd.crash();
    containerd.kill_shim_and_pause(&pod);
    containerd.restart();
    let stuck = daemon.await_firing("ip-held-by-stuck-process", SOON, is_in(pod.netns));
    // It may have been found before its cause: the runtime's word and the looks at the process have dates of their own.
    let dead = daemon.await_firing("ip-held-by-dead-sandbox", SOON, |finding| {
        is_in(pod.netns)(finding) && finding["caused_by"] == stuck["id"]
    });
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

/// Kills a pod's shim while containerd is down; `lose` restarts containerd. The container lives on, and holds the IP
/// until it is killed.
fn outlives<'a>(
    lab: &'a Lab,
    what: &str,
    lose: impl FnOnce(&mut Containerd<'_>, &Pod),
    is_proven: impl FnOnce(&Daemon, &Pod, &Value),
) -> (Containerd<'a>, Pod) {
    let mut containerd = Containerd::start(lab);
    let daemon = watching(lab, &containerd);
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    await_word(&daemon, &pod, "Ready");
    containerd.crash();
    containerd.kill_shim_and_pause(&pod);
    lose(&mut containerd, &pod);
    let finding = daemon.await_firing("ip-held-by-dead-sandbox", SOON, is_in(pod.netns));
    is_about(&finding, &pod);
    assert_eq!(finding["holders"][0]["pid"], pod.pid, "{finding:#?}");
    is_proven(&daemon, &pod, &finding);
    // `is_proven` may have ended it.
    let _ = sys::kill(pod.pid, libc::SIGKILL);
    daemon.await_resolved(&finding, SOON);
    let holder = format!("pid {} (sleep), pod and sandbox", pod.pid);
    case(what, "ip-held-by-dead-sandbox", &holder, "yes, when it is killed");
    (containerd, pod)
}

fn a_task_outlives_its_sandbox(lab: &Lab) {
    let lose = |containerd: &mut Containerd<'_>, pod: &Pod| {
        containerd.forget_in_runc(&pod.container);
        containerd.restart();
    };
    let is_proven = |daemon: &Daemon, pod: &Pod, finding: &Value| {
        assert_eq!(finding["severity"], "warning");
        assert_eq!(finding["subject"]["pod"]["state"], "NotReady", "{finding:#?}");
        let proof = evidence(finding);
        assert!(proof.contains("NotReady") && proof.contains(&pod.sandbox[..12]), "{proof}");
        assert!(proof.contains(&pod.pid.to_string()), "{proof}");
        assert_eq!(root_in(daemon, pod.netns)["id"], finding["id"]);
        // The runtime still has it, and ends it by its own command.
        let shell = Shell::new(lab).with_runtime(&lab.dir().join("containerd/sock"));
        shell.looks(finding);
        let command = change(finding, "crictl ");
        let id = pod.sandbox.as_str();
        shell.succeeds(&command);
        assert_eq!(shell.said()[..3], ["crictl", "stopp", id]);
        let list = shell.run("crictl pods");
        assert!(!String::from_utf8_lossy(&list.stdout).contains(id), "it is removed: {list:?}");
        shell.changes_nothing(&command);
        assert!(!changes(finding).iter().any(|command| command.contains("kill")), "{finding:#?}");
    };
    let what = "shim killed, its container lives";
    let _ = outlives(lab, what, lose, is_proven);
}

/// The runtime lost all its state.
fn a_task_outlives_a_sandbox_that_is_gone(lab: &Lab) {
    let lose = |containerd: &mut Containerd<'_>, _: &Pod| {
        containerd.wipe();
        containerd.restart_empty();
    };
    // The process is init of a pid namespace, which ignores SIGTERM.
    let is_ended = |daemon: &Daemon, pod: &Pod, finding: &Value| {
        let (shell, command) = (Shell::new(lab), change(finding, &format!("kill -9 {}", pod.pid)));
        shell.refuses(&command.replacen("{18}", "{18}9", 1));
        assert!(View::leader(pod.pid).is_some(), "it was ended for another process");
        shell.succeeds(&command);
        daemon.await_resolved(finding, SOON);
        // Repeated: the process has ended, or is a zombie that was not reaped yet, on which no signal has an effect.
        let _ = shell.run(&command);
        assert!(daemon.findings_in(pod.netns).iter().all(|one| one["code"] != finding["code"]));
    };
    let _ = outlives(lab, "runtime's state wiped, a container lives", lose, is_ended);
}

/// The runtime reports the pod as alive, zombies hold no netns, and the mount of the netns is legitimate: nothing is
/// wrong with the IP, and nothing must be reported.
fn zombies_of_a_stopped_shim_hold_nothing(lab: &Lab) {
    let containerd = Containerd::shared(lab);
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

/// The shim was killed, but the state kept: containerd cleans up, so there is nothing to report.
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
    let about = |change: &&Value| change["finding"]["subject"]["pod"]["uid"] == pod.uid.as_str();
    let changes = follower.changes();
    let told: Vec<_> = changes.iter().filter(about).collect();
    assert!(told.is_empty(), "{told:#?}");
    case("shim killed, state kept, pod removed", "none: all is freed", "-", "-");
}
