//! dockerd 20.10, 26 and 28, with the containerd and the runc of their suites, and containers on a network of its own.

use std::path::Path;

use support::contained::Container;
use support::docker::Dockerd;
use support::fuse::Hung;
use support::harness::FIGURE;
use support::{Config, Daemon, Lab, Netns, Suite, sys};

use super::{CHURN, DEAD, LEAKED, SOON, STUCK, are_running, is_in, on_each_suite, wait};
use crate::never::Watch;

on_each_suite! {
    containers_come_and_go needs [Fuse],
    what_is_stuck_or_leaked_is_found needs [Fuse],
}

support::tests! {
    an_upgrade_from_trixie_to_sid needs [Trixie, Sid, Fuse] @ Long,
}

const NETWORK: &str = "shop";
const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];
const READ: [&str; 5] = ["/bin/busybox", "head", "-c", "1", "/host/hang"];

/// Starts dockerd with a network, in the netns of its bridge.
fn start<'a>(lab: &'a Lab, node: &Netns, suite: Suite) -> Dockerd<'a> {
    let dockerd = node.run(|| Dockerd::start_of(lab, Some(suite)));
    dockerd.network(NETWORK, &lab.cidr(0));
    dockerd
}

fn config(dockerd: &Dockerd<'_>) -> Config {
    let ipam = format!("[ipam]\ndata_dirs = []\ndocker_data_root = {:?}\n", dockerd.data_root());
    super::config().docker(&dockerd.socket()).line(&ipam)
}

fn churn(dockerd: &Dockerd<'_>, number: usize) {
    for n in (0..number).step_by(2) {
        let make = |n: usize| dockerd.run_in(&format!("batch-{n}"), NETWORK, &SLEEP);
        let both = [make(n), make(n + 1)];
        both.iter().for_each(|container| dockerd.remove(container));
    }
}

/// Containers come and go in a dockerd that has taken over those of the version before it, and that is restarted under
/// them.
fn containers_come_and_go(lab: &Lab, suite: Suite) {
    let before = if suite == Suite::Trixie { Suite::Bookworm } else { suite };
    healthy(lab, before, suite);
}

fn an_upgrade_from_trixie_to_sid(lab: &Lab) {
    healthy(lab, Suite::Trixie, Suite::Sid);
}

fn healthy(lab: &Lab, before: Suite, suite: Suite) {
    let node = Netns::new(lab, "docker");
    let mut dockerd = start(lab, &node, before);
    let watch = Watch::start(lab, &config(&dockerd), Some("docker"));
    let containers: Vec<Container> =
        (0..3).map(|n| dockerd.run_in(&format!("web-{n}"), NETWORK, &SLEEP)).collect();
    are_running(&watch.daemon, &containers);
    node.run(|| dockerd.replace(suite));
    churn(&dockerd, CHURN);
    wait();
    are_running(&watch.daemon, &containers);
    containers.iter().for_each(|container| dockerd.remove(container));
    watch.was_quiet(lab);
    let (before, now) = (before.version("docker"), suite.version("docker"));
    println!("{FIGURE}silent: {now}, taken over from {before}");
}

/// A process that hangs and whose container dockerd calls exited; then a dockerd that has lost its state.
fn what_is_stuck_or_leaked_is_found(lab: &Lab, suite: Suite) {
    let node = Netns::new(lab, "docker");
    let mut hung = Hung::mount(lab);
    let mut dockerd = start(lab, &node, suite);
    let daemon = Daemon::start(lab, &config(&dockerd));
    daemon.await_source("docker");
    let container = dockerd.run_on("db", NETWORK, hung.dir(), &READ);
    let lost = dockerd.run_in("web", NETWORK, &SLEEP);
    let path = dockerd.netns_path(&lost);
    are_running(&daemon, &[container.clone(), lost.clone()]);
    hung.hang(container.pid);
    dockerd.crash_around(&[&container]);
    node.run(|| dockerd.restart());
    let stuck = daemon.await_firing(STUCK, SOON, is_in(container.netns));
    // It may have been found before its cause: dockerd's word and the looks at the process have dates of their own.
    let dead = daemon.await_firing(DEAD, SOON, |finding| {
        is_in(container.netns)(finding) && finding["caused_by"] == stuck["id"]
    });
    assert_eq!(stuck["holders"][0]["pid"], container.pid, "{stuck:#?}");
    assert_eq!(stuck["subject"]["container"]["name"], "db", "{stuck:#?}");
    assert_eq!(stuck["subject"]["container"]["runtime"], "docker", "{stuck:#?}");
    hung.release();
    daemon.await_resolved(&stuck, SOON);
    daemon.await_resolved(&dead, SOON);
    dockerd.crash_around(&[&lost]);
    sys::kill(lost.pid, libc::SIGKILL).unwrap();
    dockerd.forget(&lost);
    node.run(|| dockerd.restart());
    let leaked = daemon.await_firing(LEAKED, SOON, is_in(lost.netns));
    let holder = leaked["holders"][0]["mount_path"].as_str().map(Path::new);
    assert_eq!(holder, Some(&*path), "{leaked:#?}");
    assert_eq!(leaked["subject"]["container"]["name"], "web", "{leaked:#?}");
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    daemon.await_resolved(&leaked, SOON);
    println!("{FIGURE}found: stuck, dead, leaked: {}", suite.version("docker"));
}
