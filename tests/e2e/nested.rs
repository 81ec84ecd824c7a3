//! The daemon in a pid namespace below the node's, as on a node that is itself a container (kind, k3d, minikube,
//! LXD): the kernel's pids differ from those in its `/proc`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use support::cni::{Node, Recorder, only};
use support::fuse::Hung;
use support::harness::FIGURE;
use support::pod::{CNI_CACHE, Containerd};
use support::role::{Helper, Role, Running};
use support::{Config, Daemon, Lab, Netns, daemon, eventually, netns, sys};

support::tests! {
    a_call_of_a_plugin_is_told_with_the_pids_of_its_node needs [Cni] @ Kernel,
    a_stuck_pod_is_found_by_the_pids_of_its_node needs [Containerd, Fuse],
    no_event_counts_as_not_seen @ Alone Kernel,
    pids_are_those_of_its_own_namespace needs [Fuse],
}

const GRACE: u32 = 2;
/// A user without the right to ask.
const NOBODY: u32 = 65_534;
/// Environment variable set in the inner run of a test.
const INSIDE: &str = "IPWATCH_TEST_INSIDE";

/// Runs `test` on a node that is itself a container: in its own pid and mount namespace, with everything that it
/// starts. The test binary is run once more inside.
fn on_a_nested_node(lab: &Lab, test: impl FnOnce(&Lab)) {
    if std::env::var_os(INSIDE).is_some() {
        let own = std::fs::read_link("/proc/1/ns/pid").expect("its pid namespace");
        assert_ne!(own, Path::new("pid:[4026531836]"), "that is the node's first");
        netns::forget_others(&[]);
        return test(lab);
    }
    // The shell is pid 1 and reaps orphans; with nothing after the command it would `exec` the test instead.
    let mut unshare = Command::new("unshare");
    unshare.args(["-p", "-f", "--mount-proc", "sh", "-c", "\"$0\"; exit $?"]);
    unshare.arg(std::env::current_exe().unwrap()).env(INSIDE, "yes").stdin(Stdio::null());
    let status = unshare.status().expect("run unshare");
    assert!(status.success(), "inside: {status}");
}

/// The last two pids of `NSpid`: the process's pid in its own pid namespace and in the parent one.
fn names(pid: u32) -> Option<(u32, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let names = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut names = names.split_whitespace().rev().map(|name| name.parse().expect("a pid"));
    Some((names.next()?, names.next()?))
}

fn child(of: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn with_address(lab: &Lab, hint: &str, host: u8) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(host), "eth0");
    netns
}

fn a_call_of_a_plugin_is_told_with_the_pids_of_its_node(lab: &Lab) {
    on_a_nested_node(lab, |lab| {
        let node = Node::new(lab);
        let recorder = Recorder::start(&node, &Config::default());
        let pod = node.pod("pod");
        let call = node.call("bridge", "ADD", "inside-id", &pod);
        let (pid, out) = node.run(&call);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        let (seen, _) = recorder.stop();
        let main = only(&seen, "bridge", "ADD", "inside-id");
        main.is(&call, pid, out.status);
        let ipam = only(&seen, "host-local", "ADD", "inside-id");
        assert_eq!(ipam.began["parent"], pid, "{}", ipam.began);
    });
}

/// The daemon, a real containerd and the pod are all on that node.
fn a_stuck_pod_is_found_by_the_pids_of_its_node(lab: &Lab) {
    on_a_nested_node(lab, |lab| {
        let mut hung = Hung::mount(lab);
        let containerd = Containerd::start(lab);
        let config = Config::default().grace(GRACE).cache_dir(Path::new(CNI_CACHE));
        let daemon = Daemon::start(lab, &config.cri(containerd.socket()));
        let pod = containerd.run("db-0", hung.dir(), &["/bin/cat", "/host/hang"]);
        let is_it = |holder: &serde_json::Value| holder["pid"] == pod.pid;
        daemon.await_holder(&pod.ip, pod.netns, "the container's process", is_it);
        pod.hang(&mut hung);
        let finding = daemon.await_firing("ip-held-by-stuck-process", GRACE + 12, |finding| {
            finding["subject"]["netns"]["inode"] == pod.netns
        });
        assert_eq!(finding["holders"][0]["pid"], pod.pid, "{finding:#}");
        assert_eq!(finding["subject"]["pod"]["namespace"], "shop", "{finding:#}");
        assert_eq!(finding["subject"]["pod"]["name"], "db-0", "{finding:#}");
        assert_eq!(finding["subject"]["pod"]["uid"], pod.uid, "{finding:#}");
        let evidence = finding["evidence"].to_string();
        assert!(evidence.contains(&pod.container), "its cgroup is part of the proof: {evidence}");
        // This test sent the signal, with its pid in this namespace.
        let sender = format!("by pid {} ", std::process::id());
        assert!(daemon::probes() == "off" || evidence.contains(&sender), "{sender}: {evidence}");
        daemon.await_source("containerd");
        let procfs = daemon.source("procfs").expect("it is told");
        assert!(procfs["detail"].as_str().unwrap().contains("pid namespace"), "{procfs:#}");
        hung.release();
        support::poll::until("it has ended", 10, || daemon.findings_in(pod.netns).is_empty());
        containerd.stop(&pod);
        daemon.await_no_ip(&pod.ip, pod.netns);
    });
}

fn no_event_counts_as_not_seen(lab: &Lab) {
    on_a_nested_node(lab, |lab| {
        let daemon = Daemon::start(lab, &Config::default());
        let out = daemon.ask(&["doctor", "--canary"]);
        if !out.status.success() {
            // Without a probe there is nothing to verify.
            assert!(String::from_utf8_lossy(&out.stderr).contains("no probe"), "{out:?}");
            return;
        }
        let probes = daemon.list("probes", &["doctor"]);
        let of = |verdict: &str| {
            let its = probes.iter().filter(|probe| probe["canary"]["verdict"] == verdict);
            its.map(|probe| probe["event"].as_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(of("not-seen"), Vec::<&str>::new(), "{probes:#?}");
        println!("{FIGURE}seen {}; not tried: {}", of("seen").len(), of("not-tried").join(", "));
        // The events that would carry a foreign pid, or none.
        for event in ["task-netns-change", "process-exit", "sigkill", "process-exec", "cni-call"] {
            let probe = probes.iter().find(|probe| probe["event"] == event);
            println!(
                "{event}: {}",
                probe.map_or_else(String::new, |probe| probe["canary"].to_string())
            );
        }
        assert!(of("seen").len() > 8, "{probes:#?}");
    });
}

fn pids_are_those_of_its_own_namespace(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let (inner, outer) = (with_address(lab, "inner", 7), with_address(lab, "outer", 8));
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--"]);
    unshare.arg(support::daemon::binary());
    let config = Config::default().grace(GRACE).cache_dir(&lab.subdir("cni"));
    let mut daemon = Daemon::spawn_by(unshare, lab, &config, &lab.subdir("state"));
    // The client is outside and has no pid in the daemon's namespace.
    daemon.await_ready();
    // Access is decided by its user, as always; the file mode now admits anybody.
    std::fs::set_permissions(daemon.socket(), Permissions::from_mode(0o666)).unwrap();
    let client = lab.dir().join("ipwatch-client");
    std::fs::copy(daemon::binary(), &client).expect("a copy that others may run");
    let mut nobody = Command::new(client);
    nobody.arg("--socket").arg(daemon.socket()).args(["query", "ip"]).uid(NOBODY).gid(NOBODY);
    let said = nobody.stdin(Stdio::null()).output().expect("run ipwatch").stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains(&format!("user {NOBODY} may not ask")), "{said}");
    let init = child(daemon.pid()).expect("the daemon itself");
    assert_eq!(names(init).map(|(own, _)| own), Some(1), "it is in a pid namespace of its own");
    let file = hung.file();
    let park = Helper::new(Role::Park).inside(&outer).start();
    let helper: Running =
        Helper::new(Role::Opener).inside(&inner).pid_namespace_of(init).arg(&file).start();
    let outside = eventually("it is started", 5, || helper.child());
    let (own, _) = names(outside).expect("it is two pid namespaces deep");
    assert_ne!(own, outside);
    daemon.await_holder(lab.ip(7), inner.inode, "the one inside", |h| h["pid"] == own);
    sys::kill(outside, libc::SIGKILL).expect("kill it");
    let finding = daemon.await_firing("ip-held-by-stuck-process", GRACE + 12, |finding| {
        finding["subject"]["netns"]["inode"] == inner.inode
    });
    assert_eq!(finding["holders"][0]["pid"], own, "{finding:#}");
    // Of the process outside only its netns is known.
    let address = daemon.await_ip(lab.ip(8), outer.inode);
    let holders = address["holders"].to_string();
    assert!(!holders.contains("\"process\""), "{} is not to be named: {holders}", park.pid());
    let procfs = daemon.source("procfs").expect("it is told");
    assert_eq!(procfs["status"], "degraded", "{procfs:#}");
    assert!(procfs["detail"].as_str().unwrap().contains("pid namespace"), "{procfs:#}");
    hung.release();
    support::poll::until("it has ended", 10, || daemon.findings_in(inner.inode).is_empty());
}
