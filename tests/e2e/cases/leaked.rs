//! A pod is unknown to its runtime, but its netns still exists: held by its name, an fd, a socket, a mount elsewhere,
//! or something invisible.

use std::ops::Deref;

use serde_json::Value;
use support::harness::case;
use support::pod::{Containerd, PodSandbox};
use support::role::{Helper, Role, Running};
use support::{Daemon, Lab, Netns, sys};

use super::{SOON, await_word, evidence, is_about, is_in, only_holder, root_in, watching};

support::tests! {
    a_leak_by_its_own_name needs [Containerd],
    a_leak_by_an_fd needs [Containerd],
    a_leak_by_a_socket needs [Containerd],
    a_leak_by_an_orphaned_connection needs [Containerd],
    a_leak_by_an_fd_in_flight needs [Containerd],
    a_leak_by_a_mount_elsewhere needs [Containerd],
    a_leak_of_before_the_start needs [Containerd],
    a_leak_without_a_runtime_is_one_by_its_age,
}

const CODE: &str = "netns-leaked";

/// Kills a pod and removes all state about it. Its netns stays, with its IP.
fn lose(containerd: &mut Containerd<'_>, pod: &PodSandbox) {
    containerd.crash();
    containerd.kill_shim_and_children(pod);
    containerd.wipe();
    containerd.restart_empty();
}

/// Unmounts the netns, as a person would who does nothing else.
fn unname(pod: &PodSandbox) {
    rustix::mount::unmount(&pod.path, rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// A daemon and its runtime.
struct Leak<'a> {
    daemon: Daemon,
    _containerd: Containerd<'a>,
}

impl Deref for Leak<'_> {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

/// Loses a pod whose netns is then held by `hold`. Returns the finding and the holder.
fn leak<T>(lab: &Lab, hold: impl FnOnce(&PodSandbox) -> T) -> (Leak<'_>, PodSandbox, Value, T) {
    let mut containerd = Containerd::start(lab);
    let daemon = watching(lab, &containerd);
    let pod = containerd.pod("web-0").sandbox();
    await_word(&daemon, &pod, "Ready");
    let holder = hold(&pod);
    lose(&mut containerd, &pod);
    // A container that another test starts has the node's mounts until it has entered its root.
    let mounts = |finding: &Value| {
        let holders = finding["holders"].as_array().expect("holders");
        holders.iter().filter(|holder| holder["kind"] == "mount").count()
    };
    let is_it = is_in(pod.netns);
    let finding = daemon.await_firing(CODE, SOON, |finding| is_it(finding) && mounts(finding) <= 1);
    is_about(&finding, &pod);
    assert_eq!(finding["severity"], "warning", "{finding:#?}");
    (Leak { daemon, _containerd: containerd }, pod, finding, holder)
}

fn a_leak_by_its_own_name(lab: &Lab) {
    let (daemon, pod, finding, ()) = leak(lab, |_| ());
    let path = pod.path.to_str().unwrap();
    let holder = only_holder(&finding);
    assert_eq!((&holder["kind"], &holder["mount_path"]), (&"mount".into(), &path.into()));
    assert!(evidence(&finding).contains(path));
    assert_eq!(root_in(&daemon, pod.netns)["id"], finding["id"]);
    crate::fix::unmounts(lab, &daemon, &finding, &pod.path);
    case("state wiped", CODE, "bind mount, its path", "yes, when it is unmounted");
}

/// A helper that holds the unnamed netns by `role` is named as `kind`, and the finding is resolved when the helper
/// ends.
fn held_by(lab: &Lab, role: Role, kind: &str) {
    let (daemon, pod, finding, helper) = leak(lab, |pod| {
        let path = pod.path.to_str().unwrap();
        let helper = Helper::new(role).arg(path).comm("keeper").start();
        unname(pod);
        helper
    });
    let holder = only_holder(&finding);
    assert_eq!(holder["kind"], kind, "{finding:#?}");
    assert_eq!(root_in(&daemon, pod.netns)["id"], finding["id"]);
    assert_eq!(holder["pid"], helper.pid(), "{finding:#?}");
    assert_eq!(holder["comm"], "keeper", "{finding:#?}");
    assert!(holder["fd"].is_u64(), "{finding:#?}");
    // `ipwatch fix` ends no process.
    let id = finding["id"].as_str().unwrap();
    let fix = crate::fix::command(lab, &daemon, &[id, "--yes", "-o", "json"]).output().unwrap();
    let (items, _) = crate::fix::items(&fix);
    assert_eq!((items.len(), &items[0]["state"]), (1, &"left-out".into()), "{items:#?}");
    assert!(support::proc::is_alive(helper.pid()));
    helper.end();
    daemon.await_resolved(&finding, SOON);
}

fn a_leak_by_an_fd(lab: &Lab) {
    held_by(lab, Role::HoldFd, "fd");
    case("the same, unmounted: an fd", CODE, "pid and fd", "yes, when it is closed");
}

fn a_leak_by_a_socket(lab: &Lab) {
    held_by(lab, Role::HoldSocket, "socket");
    case("the same, unmounted: a socket", CODE, "pid and socket", "yes, when it is closed");
}

fn a_leak_by_an_fd_in_flight(lab: &Lab) {
    let (daemon, pod, finding, keeper) = leak(lab, |pod| {
        let path = pod.path.to_str().unwrap();
        let keeper = Helper::new(Role::HoldInFlight).arg(path).comm("keeper").start();
        unname(pod);
        keeper
    });
    let holders = finding["holders"].as_array().expect("holders");
    assert_eq!(holders[0]["kind"], "kernel", "{finding:#?}");
    // Those of other tests may be candidates as well.
    assert!(holders[1..].iter().all(|holder| holder["kind"] == "candidate"), "{finding:#?}");
    let own = holders.iter().find(|holder| holder["pid"] == keeper.pid());
    let own = own.unwrap_or_else(|| panic!("not named: {finding:#?}"));
    assert_eq!((&own["comm"], &own["unread_fds"]), (&"keeper".into(), &1.into()), "{finding:#?}");
    let proof = evidence(&finding);
    let said = format!("may be held by an fd in flight to pid {} (keeper)", keeper.pid());
    assert!(proof.contains("reference") && proof.contains(&said), "{proof}");
    assert_eq!(root_in(&daemon, pod.netns)["id"], finding["id"]);
    keeper.end();
    daemon.await_resolved(&finding, SOON);
    case(
        "the same, unmounted: an fd in flight",
        CODE,
        "kernel reference, and whose socket it may wait at",
        "yes, when it is closed",
    );
}

fn a_leak_by_an_orphaned_connection(lab: &Lab) {
    let (daemon, _, finding, ()) = leak(lab, |pod| {
        let path = pod.path.clone();
        sys::on_own_thread(|| {
            sys::enter_netns(&path).expect("enter the netns");
            support::netns::orphan_a_connection();
        });
        unname(pod);
    });
    for holder in finding["holders"].as_array().expect("holders") {
        assert_eq!(holder["kind"], "socket", "{finding:#?}");
        assert!(holder["pid"].is_null(), "no process has it: {finding:#?}");
        let socket = holder["socket"].as_str().unwrap_or_default();
        assert!(socket.starts_with("tcp 127.0.0.1:") && socket.contains("FIN"), "{finding:#?}");
    }
    daemon.await_resolved(&finding, 90);
    case(
        "the same, unmounted: an orphaned TCP connection",
        CODE,
        "the connection and its state",
        "yes, when it times out",
    );
}

fn a_leak_by_a_mount_elsewhere(lab: &Lab) {
    let (daemon, pod, finding, agent): (_, _, _, Running) = leak(lab, |pod| {
        let path = pod.path.to_str().unwrap();
        let agent = Helper::new(Role::Agent).comm("agent").arg(path).start();
        unname(pod);
        agent
    });
    let holder = only_holder(&finding);
    assert_eq!(holder["kind"], "mount", "{finding:#?}");
    assert_eq!(holder["mount_path"], pod.path.to_str().unwrap(), "{finding:#?}");
    assert!(holder["pid"].is_null(), "no process keeps a mount: {finding:#?}");
    assert_eq!(holder["mount_ns_pid"], agent.pid(), "{finding:#?}");
    assert_eq!(holder["mount_ns_comm"], "agent", "{finding:#?}");
    let own = std::fs::read_link(format!("/proc/{}/ns/mnt", agent.pid())).unwrap();
    let mount_ns = format!("mnt:[{}]", holder["mount_ns"]);
    assert_eq!(own.to_str(), Some(&*mount_ns), "{finding:#?}");
    let remedies = finding["remediation"].to_string();
    assert!(!remedies.contains("nsenter"), "nothing of the agent's is run: {remedies}");
    assert!(remedies.contains(&format!("umount -N {} ", agent.pid())), "{remedies}");
    root_of(&daemon, &finding);
    agent.end();
    daemon.await_resolved(&finding, SOON);
    case(
        "the same, unmounted: an agent's mount",
        CODE,
        "path, mount namespace, pid",
        "yes, when the agent ends",
    );
}

/// If the agent keeps more of the dead pod than the netns, that is the cause.
fn root_of(daemon: &Daemon, finding: &Value) {
    if let Some(cause) = finding["caused_by"].as_str() {
        let all = daemon.findings();
        let cause = all.iter().find(|f| f["id"] == cause).expect("an open finding");
        assert_eq!(cause["code"], "mount-leak-blocks-removal", "{cause:#?}");
    }
}

/// The pod died before the daemon's first look: only the CNI result shows the owner of the netns, and the runtime
/// denies it.
fn a_leak_of_before_the_start(lab: &Lab) {
    let mut containerd = Containerd::start(lab);
    let pod = containerd.pod("web-0").sandbox();
    lose(&mut containerd, &pod);
    // A runtime with pods is used by a kubelet, so its denial of others counts.
    let other = containerd.pod("web-1").sandbox();
    // It is unknown how long this has been so; only the age is known.
    let config = super::config().cri(containerd.socket()).leak_age(3);
    let daemon = Daemon::start(lab, &config);
    let finding = daemon.await_firing(CODE, SOON, is_in(pod.netns));
    is_about(&finding, &pod);
    assert_eq!(finding["preexisting"], true, "{finding:#?}");
    let proof = evidence(&finding);
    assert!(proof.contains("no runtime has") && proof.contains(&pod.sandbox[..12]), "{proof}");
    unname(&pod);
    daemon.await_resolved(&finding, SOON);
    containerd.stop(&other);
    case(
        "state wiped before the daemon",
        CODE,
        "bind mount, its path",
        "yes, when it is unmounted",
    );
}

/// Without a runtime the age decides.
fn a_leak_without_a_runtime_is_one_by_its_age(lab: &Lab) {
    let netns = Netns::new(lab, "old");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let pod = support::Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let daemon = Daemon::start(lab, &super::config().cache_dir(pod.cache()).leak_age(3));
    let finding = daemon.await_firing(CODE, SOON, is_in(netns.inode));
    assert_eq!(finding["subject"]["pod"]["name"], pod.name.as_str(), "{finding:#?}");
    assert_eq!(only_holder(&finding)["mount_path"], netns.path().to_str().unwrap());
    netns.unmount();
    daemon.await_resolved(&finding, SOON);
    case(
        "a pod's netns is old, no runtime",
        CODE,
        "bind mount, its path",
        "yes, when it is unmounted",
    );
}
