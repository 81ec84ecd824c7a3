//! podman 4.3, 5.4 and 5.8, with the conmon, the OCI runtimes and the netavark of their suites. It has no daemon: ipwatch
//! asks the service with its API where one runs.

use support::contained::Container;
use support::fuse::Hung;
use support::harness::FIGURE;
use support::podman::SuitesPodman;
use support::{Config, Daemon, Lab, Netns, Suite};

use super::{LEAKED, RESERVED, SOON, STUCK, are_running, is_in, on_each_suite, wait};
use crate::lead;
use crate::never::Watch;

on_each_suite! {
    containers_come_and_go needs [Fuse],
    what_is_stuck_or_leaked_is_found needs [Fuse],
}

support::tests! {
    an_upgrade_from_trixie_to_sid needs [Trixie, Sid, Fuse] @ Long,
    under_cgroup_v2_alone_and_in_a_user_namespace needs [Sid, Fuse],
    rootless needs [Sid, Fuse],
}

const SLEEP: [&str; 3] = ["/bin/busybox", "sleep", "1000000"];
const READ: [&str; 5] = ["/bin/busybox", "head", "-c", "1", "/host/hang"];
const SHOP: [&str; 2] = ["--network", "shop"];
/// How many containers come and go: podman takes a second for each.
const CHURN: usize = 6;

/// The configuration of a daemon that asks podman's service.
fn config(podman: &SuitesPodman<'_>) -> Config {
    let (db, networks) = (podman.files.db(), podman.files.networks());
    let ipam =
        format!("[ipam]\ndata_dirs = []\nnetavark_db = {db:?}\nnetavark_networks = {networks:?}\n");
    super::config().docker(&podman.socket()).line(&ipam)
}

fn start<'a>(lab: &'a Lab, node: &'a Netns, suite: Suite) -> SuitesPodman<'a> {
    let podman = SuitesPodman::new(lab, node, suite);
    podman.network("shop", &lab.cidr(0));
    podman
}

fn churn(lab: &Lab, podman: &SuitesPodman<'_>, options: &[&str]) {
    for n in 0..CHURN {
        let container = podman.run(&format!("batch-{n}"), lab.dir(), options, &SLEEP);
        podman.remove(&container);
    }
}

/// Containers come and go in a podman that has taken over those of the version before it, and whose service is killed
/// and started.
fn containers_come_and_go(lab: &Lab, suite: Suite) {
    let before = if suite == Suite::Trixie { Suite::Bookworm } else { suite };
    healthy(lab, before, suite);
}

fn an_upgrade_from_trixie_to_sid(lab: &Lab) {
    healthy(lab, Suite::Trixie, Suite::Sid);
}

fn healthy(lab: &Lab, before: Suite, suite: Suite) {
    let node = Netns::new(lab, "podman");
    let mut podman = start(lab, &node, before);
    let service = podman.serve();
    let watch = Watch::start(lab, &config(&podman), Some("podman"));
    let run = |n| podman.run(&format!("web-{n}"), lab.dir(), &SHOP, &SLEEP);
    let containers: Vec<Container> = (0..2).map(run).collect();
    are_running(&watch.daemon, &containers);
    drop(service);
    podman.replace(suite);
    let _service = podman.serve();
    churn(lab, &podman, &SHOP);
    wait();
    are_running(&watch.daemon, &containers);
    containers.iter().for_each(|container| podman.remove(container));
    watch.was_quiet(lab);
    let (before, now) = (before.version("podman"), suite.version("podman"));
    println!("{FIGURE}silent: {now}, taken over from {before}");
}

/// A process that hangs; then a podman that has lost its state, with a netns, and with a reservation alone.
fn what_is_stuck_or_leaked_is_found(lab: &Lab, suite: Suite) {
    let node = Netns::new(lab, "podman");
    let mut hung = Hung::mount(lab);
    let podman = start(lab, &node, suite);
    let service = podman.serve();
    let daemon = Daemon::start(lab, &config(&podman));
    daemon.await_source("podman");
    let container = podman.run("db", hung.dir(), &SHOP, &READ);
    let lost = podman.run("web", lab.dir(), &SHOP, &SLEEP);
    are_running(&daemon, &[container.clone(), lost.clone()]);
    hung.hang(container.pid);
    let stuck = daemon.await_firing(STUCK, SOON, is_in(container.netns));
    assert_eq!(stuck["holders"][0]["pid"], container.pid, "{stuck:#?}");
    assert_eq!(stuck["severity"], "warning", "{stuck:#?}");
    assert_eq!(stuck["subject"]["container"]["name"], "db", "{stuck:#?}");
    assert_eq!(stuck["subject"]["container"]["runtime"], "podman", "{stuck:#?}");
    hung.release();
    daemon.await_resolved(&stuck, SOON);
    podman.kill_with_monitor(&lost);
    drop(service);
    podman.forget_all();
    let _service = podman.serve();
    // A podman that has containers is used, so its denial of others counts.
    let _other = podman.run("other", lab.dir(), &SHOP, &SLEEP);
    let leaked = daemon.await_firing(LEAKED, SOON, is_in(lost.netns));
    let path = leaked["holders"][0]["mount_path"].as_str().unwrap_or_default();
    assert!(path.starts_with("/run/netns/netns-"), "{leaked:#?}");
    assert_eq!(leaked["subject"]["container"]["name"], "web", "{leaked:#?}");
    rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).unwrap();
    daemon.await_resolved(&leaked, SOON);
    let reserved = daemon.await_firing(RESERVED, SOON, lead::is_about(&lost.ip));
    let text = lead::evidence(&reserved) + &reserved["subject"].to_string();
    assert!(text.contains(&lost.id[..12]), "{reserved:#?}");
    println!("{FIGURE}found: stuck, leaked: {}", suite.version("podman"));
}

/// Containers in user namespaces of their own, whose netns belongs to these, in a hierarchy of v2.
fn under_cgroup_v2_alone_and_in_a_user_namespace(lab: &Lab) {
    let node = Netns::new(lab, "podman");
    let mut hung = Hung::mount(lab);
    let podman = SuitesPodman::on_v2(lab, &node, Suite::Sid);
    podman.network("shop", &lab.cidr(0));
    let _service = podman.serve();
    let daemon = Daemon::start(lab, &config(&podman));
    daemon.await_source("podman");
    let follower = daemon.follow();
    let ids = podman.ids();
    let options = ["--network", "shop", "--uidmap", &ids, "--gidmap", &ids];
    churn(lab, &podman, &options);
    let container = podman.run("db", hung.dir(), &options, &READ);
    let map = std::fs::read_to_string(format!("/proc/{}/uid_map", container.pid)).unwrap();
    assert_ne!(map.split_whitespace().nth(1), Some("0"), "a user namespace: {map}");
    are_running(&daemon, std::slice::from_ref(&container));
    wait();
    let told = follower.changes_seen();
    assert!(!told.iter().any(|change| crate::never::is_about(lab, change)), "{told:#?}");
    hung.hang(container.pid);
    let stuck = daemon.await_firing(STUCK, SOON, is_in(container.netns));
    assert_eq!(stuck["holders"][0]["pid"], container.pid, "{stuck:#?}");
    assert_eq!(stuck["subject"]["container"]["name"], "db", "{stuck:#?}");
    hung.release();
    daemon.await_resolved(&stuck, SOON);
}

/// A user's containers, whose network pasta makes, and which no runtime vouches for: what hangs there is information.
fn rootless(lab: &Lab) {
    let node = Netns::new(lab, "podman");
    node.veth_to_host();
    node.add_address(&lab.cidr(9), "eth0");
    node.ip(&format!("route add default via {}", lab.ip(1)));
    let mut hung = Hung::mount(lab);
    let podman = SuitesPodman::rootless(lab, &node, Suite::Sid);
    let daemon = Daemon::start(lab, &super::config());
    let follower = daemon.follow();
    let options = ["--network", "pasta"];
    churn(lab, &podman, &options);
    let container = podman.run("db", hung.dir(), &options, &READ);
    wait();
    let told = follower.changes_seen();
    assert!(!told.iter().any(|change| crate::never::is_about(lab, change)), "{told:#?}");
    hung.hang(container.pid);
    let stuck = daemon.await_firing(STUCK, SOON, is_in(container.netns));
    assert_eq!(stuck["holders"][0]["pid"], container.pid, "{stuck:#?}");
    assert_eq!(stuck["severity"], "info", "{stuck:#?}");
    hung.release();
    daemon.await_resolved(&stuck, SOON);
}
