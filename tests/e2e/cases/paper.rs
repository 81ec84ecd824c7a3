//! The cases in VMs, where no containerd fits: pods of a fake runtime on real kernels. They show that kernels which
//! report less lead to the same findings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use support::fake_cri::FakeCri;
use support::harness::case;
use support::role::{Helper, Role};
use support::{Daemon, Lab, Netns, Sandbox};

use super::{SOON, config, is_in, only_holder};

support::tests! {
    a_task_of_a_dead_sandbox needs [FakeCri] @ Kernel,
    netns_that_are_held_in_every_way needs [FakeCri] @ Kernel,
    a_leak_that_is_visited_all_the_time needs [FakeCri] @ Kernel Stock,
}

fn with_address(lab: &Lab, hint: &str, n: u8) -> (Netns, Sandbox) {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(n), "eth0");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(n), "");
    (netns, pod)
}

fn watching(lab: &Lab, runtime: &FakeCri, pod: &Sandbox) -> Daemon {
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()).cri(runtime.socket()));
    daemon.await_source("containerd");
    daemon
}

/// Waits until the daemon knows a netns as that of a living pod.
fn await_ready(lab: &Lab, daemon: &Daemon, n: u8, netns: &Netns) {
    support::poll::until("the pod is known as Ready", 30, || {
        daemon.ip_in(lab.ip(n), netns.inode).is_some_and(|a| a["pod"]["state"] == "Ready")
    });
}

fn a_task_of_a_dead_sandbox(lab: &Lab) {
    let runtime = FakeCri::start(lab);
    let (netns, pod) = with_address(lab, "dead", 7);
    runtime.has_pod(&pod, "READY");
    let daemon = watching(lab, &runtime, &pod);
    let helper = Helper::new(Role::Park).inside(&netns).within(&pod).start();
    await_ready(lab, &daemon, 7, &netns);
    runtime.has_pod(&pod, "NOTREADY");
    let code = "ip-held-by-dead-sandbox";
    let finding = daemon.await_firing(code, SOON, is_in(netns.inode));
    assert_eq!(only_holder(&finding)["pid"], helper.pid(), "{finding:#?}");
    assert_eq!(finding["subject"]["pod"]["name"], pod.name.as_str(), "{finding:#?}");
    assert_eq!(finding["subject"]["pod"]["state"], "NotReady", "{finding:#?}");
    helper.end();
    daemon.await_resolved(&finding, SOON);
    case("sandbox dead by a mock's word", code, "pid and pod", "yes, when it is killed");
}

/// All at the same time: held by name, an fd, a socket, an fd in flight and a mount elsewhere.
fn netns_that_are_held_in_every_way(lab: &Lab) {
    let runtime = FakeCri::start(lab);
    let ways = [
        (None, "mount"),
        (Some(Role::HoldFd), "fd"),
        (Some(Role::HoldSocket), "socket"),
        (Some(Role::HoldInFlight), "kernel"),
        // The last one: it keeps the names of all netns that still have one.
        (Some(Role::Agent), "mount"),
    ];
    let pods: Vec<(Netns, Sandbox)> =
        (1..=5).map(|n| with_address(lab, &format!("held{n}"), n)).collect();
    let lines = |pods: &[(Netns, Sandbox)]| -> String {
        pods.iter().map(|(_, pod)| FakeCri::lines(pod, "READY")).collect()
    };
    runtime.has(&lines(&pods));
    let daemon = watching(lab, &runtime, &pods[0].1);
    for (n, (netns, _)) in (1..).zip(&pods) {
        await_ready(lab, &daemon, n, netns);
    }
    let holders: Vec<_> = ways
        .iter()
        .zip(&pods)
        .map(|((role, _), (netns, _))| {
            let helper = Helper::new((*role)?).arg(netns.path().to_str().unwrap()).start();
            if *role == Some(Role::Agent) {
                netns.unmount()
            } else {
                netns.unname()
            }
            Some(helper)
        })
        .collect();
    runtime.has("");
    let findings: Vec<Value> = pods
        .iter()
        .map(|(netns, _)| daemon.await_firing("netns-leaked", SOON, is_in(netns.inode)))
        .collect();
    for (((_, kind), helper), finding) in ways.iter().zip(&holders).zip(&findings) {
        let named = finding["holders"].as_array().unwrap();
        let is = |holder: &&Value| *kind != "kernel" || holder["kind"] != "candidate";
        let mut kinds = named.iter().filter(is).map(|holder| &holder["kind"]);
        assert!(kinds.all(|of| of == *kind), "{kind}: {finding:#?}");
        if let Some(helper) = helper.as_ref() {
            let pid = if *kind == "mount" { "mount_ns_pid" } else { "pid" };
            assert!(named.iter().any(|h| h[pid] == helper.pid()), "{kind}: {finding:#?}");
        }
    }
    holders.into_iter().flatten().for_each(support::role::Running::end);
    pods.iter().for_each(|(netns, _)| netns.unname());
    findings.iter().for_each(|finding| drop(daemon.await_resolved(finding, SOON)));
    case(
        "sandbox gone by a mock's word",
        "netns-leaked",
        "name, fd, socket, kernel, mount elsewhere",
        "yes",
    );
}

/// Agents enter the netns of pods to look at them, and so does another ipwatch.
fn a_leak_that_is_visited_all_the_time(lab: &Lab) {
    const PAUSE: Duration = Duration::from_millis(200);
    let runtime = FakeCri::start(lab);
    let (netns, pod) = with_address(lab, "visited", 8);
    runtime.has_pod(&pod, "READY");
    let daemon = watching(lab, &runtime, &pod);
    await_ready(lab, &daemon, 8, &netns);
    runtime.has("");
    let over = AtomicBool::new(false);
    let finding = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Bounded, in case that nothing is found.
            for _ in 0..600 {
                netns.run(|| ());
                std::thread::sleep(PAUSE);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let finding = daemon.await_firing("netns-leaked", SOON, is_in(netns.inode));
        std::thread::sleep(10 * PAUSE);
        over.store(true, Ordering::Relaxed);
        finding
    });
    // Besides, the visitor has the file open that it enters by.
    let holders = finding["holders"].as_array().unwrap();
    assert!(holders.iter().any(|holder| holder["kind"] == "mount"), "{finding:#?}");
    let log = daemon.log();
    assert!(!log.contains("resolved: netns-leaked"), "a visit ends no leak: {log}");
    netns.unname();
    daemon.await_resolved(&finding, SOON);
}
