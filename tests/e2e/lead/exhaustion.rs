//! A range is filled by reservations of pods that ended long ago, until no pod can start.

use std::fs::{self, File};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use support::fake_cri::FakeCri;
use support::lead::{Failure, Told};
use support::network::{Container, Network};
use support::pod::{Containerd, PodSandbox, Setup};
use support::poll::until;
use support::remedy::{Shell, change};
use support::{Config, Daemon, Lab, Netns, Sandbox};

use super::{SOON, await_ready, config, evidence, is_about, is_of, names, small, watching};
use crate::fix::{Leaks, unmounts};

support::tests! {
    lost_sandboxes_fill_a_range needs [Containerd],
    reservations_of_before_the_boot_fill_a_range needs [Containerd],
    add_without_del_fills_a_range needs [Cni, FakeCri],
}

pub(crate) const EXHAUSTING: &str = "ipam-range-exhausting";
const LEAKED: &str = "ipam-reservation-leaked";
/// Proof of `ipwatch fix` for containers that no runtime has.
const DENIED: &str = "every runtime was asked, and none has the container";
pub(crate) const FULL: &str = "no IP addresses available in range set";

fn small_one(lab: &Lab) -> Containerd<'_> {
    Containerd::start_as(lab, &Setup { subnet: Some(small(lab)), ..Setup::default() })
}

/// As after a power failure or a careless cleanup: containerd, its shims and their processes are killed, and its
/// state is lost. containerd is down afterwards.
pub(crate) fn crash(containerd: &mut Containerd<'_>, pods: &[PodSandbox]) {
    containerd.crash();
    for pod in pods {
        containerd.kill_shim_and_children(pod);
    }
    containerd.wipe();
}

fn lose(containerd: &mut Containerd<'_>, pods: &[PodSandbox]) {
    crash(containerd, pods);
    containerd.restart_empty();
}

fn sandboxes(containerd: &Containerd<'_>, from: usize, number: usize) -> Vec<PodSandbox> {
    let name = |n: usize| format!("web-{n}");
    (from..from + number).map(|n| containerd.pod(&name(n)).sandbox()).collect()
}

/// Starts the next pod, which must fail. Returns when the failure showed.
#[track_caller]
fn refused(containerd: &Containerd<'_>) -> Instant {
    let error = containerd.pod("web-9").try_sandbox().expect_err("the range is full");
    let at = Instant::now();
    assert!(error.contains(FULL), "{error}");
    at
}

/// Whether the finding names the range and the number of leaks.
pub(crate) fn of_range(network: &str, leaked: usize) -> impl Fn(&Value) -> Result<String, String> {
    move |finding| {
        names(&finding["subject"].to_string(), &[network], "")?;
        let text = evidence(finding);
        names(&text, &[&format!("{leaked} of them leaked")], &format!("the range, {leaked} leaked"))
    }
}

/// Waits until a finding reports the range with this many leaks.
#[track_caller]
pub(crate) fn await_range(told: &Told, network: &str, leaked: usize) {
    let tells = of_range(network, leaked);
    told.await_firing(EXHAUSTING, SOON, |finding| {
        is_of(network)(finding) && tells(finding).is_ok()
    });
}

pub(crate) fn network_of(containerd: &Containerd<'_>) -> String {
    containerd.reservations().file_name().unwrap().to_str().unwrap().to_owned()
}

fn lost_sandboxes_fill_a_range(lab: &Lab) {
    let mut containerd = small_one(lab);
    let daemon = watching(lab, &containerd);
    let told = Told::by(&daemon);
    let first = sandboxes(&containerd, 0, 1);
    await_ready(&daemon, &first);
    lose(&mut containerd, &first);
    // In practice weeks pass until the next one; the test waits only until the first is reported.
    let more = sandboxes(&containerd, 1, 3);
    told.await_firing("netns-leaked", SOON, is_about(&first[0].ip));
    await_ready(&daemon, &more);
    lose(&mut containerd, &more);
    let _last = sandboxes(&containerd, 4, 1);
    let network = network_of(&containerd);
    await_range(&told, &network, 4);
    let at = refused(&containerd);
    let failure = Failure { case: "runtime's state lost, range fills", at, slow: true };
    let path = first[0].path.to_str().unwrap().to_owned();
    told.lead(&failure, "netns-leaked", is_about(&first[0].ip), |finding| {
        names(&finding["holders"].to_string(), &[&path], "the netns's name")
    });
    told.lead(&failure, EXHAUSTING, is_of(&network), of_range(&network, 4));
    // `ipwatch fix` frees all of it: the netns, and then what is reserved for them.
    let lost: Vec<&PodSandbox> = first.iter().chain(&more).collect();
    for pod in &lost {
        let finding = daemon.await_firing("netns-leaked", SOON, is_about(&pod.ip));
        unmounts(lab, &daemon, &finding, &pod.path);
    }
    let ips: Vec<&str> = lost.iter().map(|pod| &*pod.ip).collect();
    let (store, proof) =
        (containerd.reservations(), "its runtime had the container, and has it no more");
    Leaks { network: &network, store: &store, ips: &ips, proof }.are_freed(lab, &daemon);
}

/// As after a reboot without DEL: no netns is left, and the reservations are older than the boot.
fn reservations_of_before_the_boot_fill_a_range(lab: &Lab) {
    let mut containerd = small_one(lab);
    let lost = sandboxes(&containerd, 0, 4);
    containerd.crash();
    for pod in &lost {
        containerd.kill_shim_and_children(pod);
        rustix::mount::unmount(&pod.path, rustix::mount::UnmountFlags::DETACH).unwrap();
        fs::remove_file(&pod.path).unwrap();
    }
    containerd.wipe();
    for pod in &lost {
        let file = File::options().append(true).open(containerd.reservations().join(&pod.ip));
        file.expect("it is still reserved").set_modified(before_the_boot()).unwrap();
    }
    containerd.restart_empty();
    let daemon = watching(lab, &containerd);
    let told = Told::by(&daemon);
    let _living = sandboxes(&containerd, 4, 1);
    told.await_firing(LEAKED, SOON, is_about(&lost[0].ip));
    let network = network_of(&containerd);
    await_range(&told, &network, 4);
    let at = refused(&containerd);
    let failure = Failure { case: "reboot without DEL, range is full", at, slow: true };
    told.lead(&failure, LEAKED, is_about(&lost[0].ip), |finding| {
        let text = evidence(finding) + &finding["subject"].to_string();
        names(&text, &[&lost[0].sandbox, "boot"], "the reservation, of before the boot")
    });
    told.lead(&failure, EXHAUSTING, is_of(&network), of_range(&network, 4));
    let ips: Vec<&str> = lost.iter().map(|pod| &*pod.ip).collect();
    Leaks { network: &network, store: &containerd.reservations(), ips: &ips, proof: DENIED }
        .are_freed(lab, &daemon);
}

fn before_the_boot() -> SystemTime {
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    SystemTime::now() - Duration::from_secs_f64(seconds) - Duration::from_secs(86_400)
}

/// The plugin is called for containers whose netns are then destroyed.
fn add_without_del_fills_a_range(lab: &Lab) {
    let node = Netns::new(lab, "node");
    let bridge = serde_json::json!({ "bridge": "br0" });
    let network = Network::new(lab, &node, "direct", "bridge", &small(lab), bridge);
    let (runtime, _pod) = a_runtime_with_a_pod(lab);
    let daemon = Daemon::start(lab, &of_network(lab).cri(runtime.socket()));
    daemon.await_source("containerd");
    let told = Told::by(&daemon);
    let containers: Vec<Container> = (0..6).map(|n| Container::new(lab, n)).collect();
    let add = |n: usize| {
        let netns = Netns::new(lab, &format!("c{n}"));
        let ip = network.add(&containers[n], &netns);
        if let Ok(ip) = &ip {
            await_mounted(&daemon, ip, &netns);
        }
        ip
    };
    let first = add(0).unwrap();
    told.await_firing(LEAKED, SOON, is_about(&first));
    let rest: Vec<String> = (1..5).map(|n| add(n).unwrap()).collect();
    await_range(&told, network.name(), 5);
    let error = add(5).expect_err("the range is full");
    let at = Instant::now();
    assert!(error.code == 999 && error.said.contains(FULL), "{error:?}");
    let failure = Failure { case: "ADD without DEL, range fills", at, slow: true };
    told.lead(&failure, LEAKED, is_about(&first), |finding| {
        let text = evidence(finding) + &finding["subject"].to_string();
        names(&text, &[&containers[0].id], "the reservation, its container")
    });
    told.lead(&failure, EXHAUSTING, is_of(network.name()), of_range(network.name(), 5));

    // The node is cordoned while the finding is open, and not later.
    let full = daemon.await_firing(EXHAUSTING, SOON, is_of(network.name()));
    let shell = Shell::new(lab);
    shell.looks(&full);
    let cordon = change(&full, "kubectl cordon ");
    shell.succeeds(&cordon);
    let ips: Vec<&str> = rest.iter().chain([&first]).map(String::as_str).collect();
    Leaks { network: network.name(), store: &network.reservations(), ips: &ips, proof: DENIED }
        .are_freed(lab, &daemon);
    daemon.await_resolved(&full, SOON);
    let _ = shell.said();
    shell.refuses(&cordon);
    assert_eq!(shell.said(), Vec::<String>::new());
}

/// Waits until the daemon knows an IP of a netns, and where the netns is mounted. If new netns are not reported by events, one
/// that ends within a second may never be seen; nor is its owner known before its mount is read.
#[track_caller]
pub(crate) fn await_mounted(daemon: &Daemon, ip: &str, netns: &Netns) {
    daemon.await_ip(ip, netns.inode);
    let path = netns.path().to_str().unwrap().to_owned();
    until("it is known where it is mounted", 10, || {
        let known = daemon.ip_in(ip, netns.inode);
        known.is_some_and(|entry| entry["netns"]["path"] == *path)
    });
}

/// A runtime that denies pods that it does not have: it has one pod.
pub(super) fn a_runtime_with_a_pod(lab: &Lab) -> (FakeCri, (Netns, Sandbox)) {
    let runtime = FakeCri::start(lab);
    let netns = Netns::new(lab, "other");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(200), "eth0");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(200), "");
    runtime.has_pod(&pod, "READY");
    (runtime, (netns, pod))
}

/// The configuration of a daemon that knows the networks whose plugins the test calls.
pub(super) fn of_network(lab: &Lab) -> Config {
    config().networks(&[support::network::conf_dir(lab)], &support::network::bin_dir(lab))
}
