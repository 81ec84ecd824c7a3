//! What goes wrong with pods on nodes, reproduced with real parts and checked only by `/proc`, the kernel and the
//! runtime: the basis of the tests in [`crate::cases`].

use std::time::{Duration, Instant};

use support::docker::Dockerd;
use support::fuse::Hung;
use support::pod::{Containerd, PodSandbox, Slow};
use support::poll::until;
use support::proc::{View, tasks_in};
use support::{Lab, Netns, eventually, rtnl, sys};

support::tests! {
    a_pods_sandboxes_have_attempts needs [Pods],
    a_sandbox_of_the_host_has_no_ip needs [Pods],
    a_killed_shim_leaves_a_sandbox_that_can_be_removed needs [Containerd],
    a_container_outlives_its_sandbox needs [Containerd],
    a_wiped_runtime_denies_what_it_made needs [Containerd],
    a_stopped_shim_leaves_zombies needs [Pods],
    stopping_a_pod_that_hangs_hangs needs [Pods, Fuse],
    slow_pods_come_in_the_end needs [Containerd],
    a_pod_of_docker_runs_and_is_removed needs [Dockerd],
    a_container_of_docker_outlives_its_record needs [Dockerd],
    the_teardown_of_netns_hangs needs [OwnMachine] @ Alone Kernel Stock,
}

const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];

/// As seen by `ls`: the name exists and is mounted.
fn is_mounted(pod: &PodSandbox) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(&pod.path).is_ok_and(|meta| meta.ino() == pod.netns)
}

fn a_pods_sandboxes_have_attempts(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let first = containerd.pod("web-0").sandbox();
    containerd.halt(&first);
    let second = containerd.pod("web-0").uid(&first.uid).attempt(1).sandbox();
    assert_eq!(containerd.state_of(&first.sandbox).as_deref(), Some("NOTREADY"));
    assert_eq!(containerd.state_of(&second.sandbox).as_deref(), Some("READY"));
    assert!(first.uid == second.uid && first.sandbox != second.sandbox);
    containerd.stop(&second);
    assert_eq!(containerd.state_of(&second.sandbox), None);
}

fn a_sandbox_of_the_host_has_no_ip(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let pod = containerd.pod("agent-0").host_network().sandbox();
    let own = View::leader(std::process::id()).unwrap().netns;
    assert_eq!((Some(pod.netns), pod.ip.as_str()), (own, ""));
    containerd.stop(&pod);
}

/// The control case: everything is freed.
fn a_killed_shim_leaves_a_sandbox_that_can_be_removed(lab: &Lab) {
    let mut containerd = Containerd::start(lab);
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    containerd.crash();
    containerd.kill_shim_and_pause(&pod);
    assert!(View::leader(pod.pid).is_some(), "the container goes on");
    containerd.restart();
    // When containerd restores its state, it finds the shim gone and makes runc kill what is left.
    until("the container is killed", 10, || tasks_in(pod.netns).is_empty());
    assert_eq!(containerd.state_of(&pod.sandbox).as_deref(), Some("NOTREADY"));
    assert!(is_mounted(&pod), "the IP is still up, held by the name alone");
    containerd.stop(&pod);
    assert!(!pod.path.exists());
}

fn a_container_outlives_its_sandbox(lab: &Lab) {
    let mut containerd = Containerd::start(lab);
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    containerd.crash();
    containerd.kill_shim_and_pause(&pod);
    containerd.forget_in_runc(&pod.container);
    containerd.restart();
    until("the sandbox is dead", 10, || {
        containerd.state_of(&pod.sandbox).as_deref() == Some("NOTREADY")
    });
    println!("its container is {:?}", containerd.state_of(&pod.container));
    let inside = tasks_in(pod.netns);
    assert_eq!(inside, [(pod.pid, pod.pid)], "a task of it is alive");
    sys::kill(pod.pid, libc::SIGKILL).unwrap();
    until("it is gone", 10, || tasks_in(pod.netns).is_empty());
    containerd.stop(&pod);
    assert!(!pod.path.exists());
}

fn a_wiped_runtime_denies_what_it_made(lab: &Lab) {
    let mut containerd = Containerd::start(lab);
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    containerd.crash();
    containerd.kill_shim_and_children(&pod);
    containerd.wipe();
    containerd.restart_empty();
    assert_eq!(containerd.state_of(&pod.sandbox), None);
    assert!(tasks_in(pod.netns).is_empty());
    assert!(is_mounted(&pod), "the IP is still up, held by the name alone");
    let next = containerd.run("web-1", lab.dir(), &SLEEP);
    assert_ne!(next.ip, pod.ip, "still reserved");
    containerd.stop(&next);
}

fn a_stopped_shim_leaves_zombies(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    let shim = containerd.stop_shim(&pod);
    for pid in [pod.pid, pod.pause] {
        sys::kill(pid, libc::SIGKILL).unwrap();
        let view =
            eventually("a zombie", 10, || View::leader(pid).filter(|view| view.state == 'Z'));
        assert_eq!(view.netns, None, "a zombie holds no netns");
    }
    assert_eq!(containerd.state_of(&pod.sandbox).as_deref(), Some("READY"), "it knows no better");
    let mut client = containerd.begin_stop(&pod);
    std::thread::sleep(Duration::from_secs(1));
    assert!(client.try_wait().unwrap().is_none(), "stopping it hangs");
    client.kill().unwrap();
    client.wait().unwrap();
    drop(shim);
    until("the zombies are reaped", 10, || View::leader(pod.pause).is_none());
    containerd.stop(&pod);
}

fn stopping_a_pod_that_hangs_hangs(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let containerd = Containerd::shared(lab);
    let pod = containerd.run("db-0", hung.dir(), &["/bin/cat", "/host/hang"]);
    hung.await_read();
    let mut client = containerd.begin_stop(&pod);
    until("its process hangs", 10, || pod.hangs());
    assert!(client.try_wait().unwrap().is_none());
    assert_eq!(containerd.state_of(&pod.sandbox).as_deref(), Some("READY"));
    let inside = tasks_in(pod.netns);
    hung.release();
    let status = eventually("then it is stopped", 20, || client.try_wait().unwrap());
    println!("stopped: {status}");
    // The netns ended with its pod: another pod may have its inode.
    until("and its tasks are gone", 10, || {
        tasks_in(pod.netns).iter().all(|task| !inside.contains(task))
    });
    containerd.stop(&pod);
}

fn slow_pods_come_in_the_end(lab: &Lab) {
    let containerd = Containerd::start(lab);
    for slow in [Slow::Add, Slow::Create] {
        containerd.slow_down(slow, Duration::from_secs(2));
        let began = Instant::now();
        let pod = containerd.pod("late-0").sandbox();
        assert!(began.elapsed() > Duration::from_secs(2), "{slow:?}");
        containerd.slow_down(slow, Duration::ZERO);
        containerd.stop(&pod);
    }
}

fn a_pod_of_docker_runs_and_is_removed(lab: &Lab) {
    let dockerd = Dockerd::start(lab);
    let pod = dockerd.run_pod("web-0", 7, lab.dir(), &SLEEP);
    assert_eq!(pod.sandbox.netns, pod.main.netns);
    // Processes that started them may take a moment to leave.
    until("both are in it, and nobody else", 10, || tasks_in(pod.sandbox.netns).len() == 2);
    let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", pod.main.pid)).unwrap();
    assert!(cgroup.contains(&format!("/pod{}/{}", pod.uid, pod.main.id)), "{cgroup}");
    assert_eq!(dockerd.state_of(&pod.main.id).as_deref(), Some("running"));
    dockerd.remove(&pod.main);
    dockerd.remove(&pod.sandbox);
    assert_eq!(dockerd.state_of(&pod.main.id), None);
    until("its tasks are gone", 10, || tasks_in(pod.sandbox.netns).is_empty());
}

fn a_container_of_docker_outlives_its_record(lab: &Lab) {
    let mut dockerd = Dockerd::start(lab);
    let container = dockerd.run("web", 7, lab.dir(), &SLEEP);
    dockerd.crash_around(&[&container]);
    dockerd.restart();
    assert_eq!(dockerd.state_of(&container.id).as_deref(), Some("exited"));
    assert_eq!(tasks_in(container.netns), [(container.pid, container.pid)]);
}

/// A device of the netns stays while the kernel's worker waits for the lock.
fn the_teardown_of_netns_hangs(lab: &Lab) {
    let netns = Netns::new(lab, "slow");
    let device = std::path::Path::new("/sys/class/net").join(netns.veth_to_host());
    let held = rtnl::Held::take();
    drop(netns);
    let worker = eventually("a worker tears it down", 10, rtnl::cleanup_worker);
    println!("{worker:?}");
    assert_eq!(worker.1.state, 'D', "{worker:?}");
    assert!(device.exists());
    held.release();
    until("its device is gone", 10, || !device.exists());
    until("and the worker rests", 10, || rtnl::cleanup_worker().is_none());
}
