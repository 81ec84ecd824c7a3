//! containerd 1.6, 1.7 and 2.1, with the runc and the CNI plugins of their suites.

use std::path::Path;

use serde_json::Value;
use support::fuse::Hung;
use support::harness::FIGURE;
use support::pod::{CNI_CACHE, Containerd, PodSandbox, Setup};
use support::suite::{self, Cgroups};
use support::{Config, Daemon, Lab, Suite};

use super::{CHURN, DEAD, LEAKED, RESERVED, SOON, STUCK, await_state, is_in, on_each_suite, wait};
use crate::lead;
use crate::never::{self, Watch};

on_each_suite! {
    pods_come_and_go needs [Fuse],
    what_is_stuck_or_leaked_is_found needs [Fuse],
}

support::tests! {
    an_upgrade_from_trixie_to_sid needs [Trixie, Sid, Fuse] @ Long,
    pods_in_user_namespaces needs [Sid, Fuse],
    under_cgroup_v1_alone needs [Sid, Fuse, FreezerV1] @ Long,
}

const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];
/// Not cat: it splices, and would then hang with the lock of the pipe to its shim.
const READ: [&str; 5] = ["/bin/busybox", "head", "-c", "1", "/host/hang"];

fn config(containerd: &Containerd<'_>) -> Config {
    super::config()
        .cri(containerd.socket())
        .networks(&containerd.conf_dirs(), &containerd.bin_dir())
        .cache_dir(Path::new(CNI_CACHE))
}

fn watching(lab: &Lab, containerd: &Containerd<'_>) -> Watch {
    Watch::start(lab, &config(containerd), Some("containerd"))
}

/// Three pods that stay.
fn steady(lab: &Lab, containerd: &Containerd<'_>) -> Vec<PodSandbox> {
    let run = |n| PodSandbox::clone(&containerd.run(&format!("web-{n}"), lab.dir(), &SLEEP));
    (0..3).map(run).collect()
}

#[track_caller]
fn are_ready(daemon: &Daemon, pods: &[PodSandbox]) {
    pods.iter().for_each(|pod| await_state(daemon, &pod.ip, pod.netns, &["Ready"]));
}

/// Pods are made and removed, two at a time.
fn churn(lab: &Lab, containerd: &Containerd<'_>, number: usize) {
    for n in (0..number).step_by(2) {
        let make = |n: usize| containerd.run(&format!("batch-{n}"), lab.dir(), &SLEEP);
        let both = [make(n), make(n + 1)];
        both.iter().for_each(|pod| containerd.stop(pod));
    }
}

/// Pods come and go in a containerd that has taken over the state of the version before it, whose pods run on, and that
/// is killed and started under them.
fn pods_come_and_go(lab: &Lab, suite: Suite) {
    let before = match suite {
        Suite::Bookworm => Some(Suite::Bookworm),
        Suite::Trixie => Some(Suite::Bookworm),
        Suite::Sid => None,
    };
    healthy(lab, before, suite, Cgroups::Host);
}

fn healthy(lab: &Lab, before: Option<Suite>, suite: Suite, cgroups: Cgroups) {
    suite::share(lab);
    let setup = Setup { suite: before, cgroups, ..Setup::default() };
    let mut containerd = Containerd::start_as(lab, &setup);
    let watch = watching(lab, &containerd);
    let pods = steady(lab, &containerd);
    are_ready(&watch.daemon, &pods);
    containerd.upgrade(suite);
    churn(lab, &containerd, CHURN);
    are_ready(&watch.daemon, &pods);
    containerd.crash();
    containerd.restart();
    churn(lab, &containerd, 2);
    wait();
    are_ready(&watch.daemon, &pods);
    pods.iter().for_each(|pod| containerd.stop(pod));
    watch.was_quiet(lab);
    let before = before.map_or("the installed one".to_owned(), |suite| suite.version("containerd"));
    println!(
        "{FIGURE}silent: {}, upgraded from {before}, cgroups of {cgroups:?}",
        suite.version("containerd")
    );
}

fn an_upgrade_from_trixie_to_sid(lab: &Lab) {
    healthy(lab, Some(Suite::Trixie), Suite::Sid, Cgroups::Host);
}

fn under_cgroup_v1_alone(lab: &Lab) {
    healthy(lab, Some(Suite::Sid), Suite::Sid, Cgroups::V1);
}

/// A process that hangs in a pod whose shim was killed; then a runtime that has lost its state, with a netns, and with a
/// reservation alone.
fn what_is_stuck_or_leaked_is_found(lab: &Lab, suite: Suite) {
    let mut hung = Hung::mount(lab);
    let mut containerd =
        Containerd::start_as(lab, &Setup { suite: Some(suite), ..Setup::default() });
    let daemon = Daemon::start(lab, &config(&containerd));
    daemon.await_source("containerd");
    let pod = containerd.run("db-0", hung.dir(), &READ);
    let lost = containerd.pod("web-0").sandbox();
    are_ready(&daemon, &[PodSandbox::clone(&pod), lost.clone()]);
    pod.hang(&mut hung);
    containerd.crash();
    containerd.kill_shim_and_pause(&pod);
    containerd.restart();
    let stuck = daemon.await_firing(STUCK, SOON, is_in(pod.netns));
    // It may have been found before its cause: the runtime's word and the looks at the process have dates of their own.
    let dead = daemon.await_firing(DEAD, SOON, |finding| {
        is_in(pod.netns)(finding) && finding["caused_by"] == stuck["id"]
    });
    assert_eq!(stuck["holders"][0]["pid"], pod.pid, "{stuck:#?}");
    assert_eq!(stuck["subject"]["pod"]["name"], "db-0", "{stuck:#?}");
    assert_eq!(stuck["subject"]["container"]["runtime"], "containerd", "{stuck:#?}");
    hung.release();
    daemon.await_resolved(&stuck, SOON);
    daemon.await_resolved(&dead, SOON);
    containerd.crash();
    containerd.kill_shim_and_children(&lost);
    containerd.wipe();
    containerd.restart_empty();
    let leaked = daemon.await_firing(LEAKED, SOON, is_in(lost.netns));
    assert_eq!(leaked["holders"][0]["mount_path"], lost.path.to_str().unwrap(), "{leaked:#?}");
    assert_eq!(leaked["subject"]["pod"]["name"], "web-0", "{leaked:#?}");
    rustix::mount::unmount(&lost.path, rustix::mount::UnmountFlags::DETACH).unwrap();
    daemon.await_resolved(&leaked, SOON);
    let reserved = daemon.await_firing(RESERVED, SOON, lead::is_about(&lost.ip));
    let names = |finding: &Value| lead::evidence(finding) + &finding["subject"].to_string();
    assert!(names(&reserved).contains(&lost.sandbox[..12]), "{reserved:#?}");
    println!("{FIGURE}found: stuck, dead, leaked: {}", suite.version("containerd"));
}

/// Their netns belongs to their user namespace, as for pods with `hostUsers: false`.
fn pods_in_user_namespaces(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let containerd =
        Containerd::start_as(lab, &Setup { suite: Some(Suite::Sid), ..Setup::default() });
    let daemon = Daemon::start(lab, &config(&containerd));
    daemon.await_source("containerd");
    let follower = daemon.follow();
    for n in 0..4 {
        let name = format!("batch-{n}");
        let pod = containerd.pod(&name).user_namespace().run(lab.dir(), &SLEEP);
        containerd.stop(&pod);
    }
    let pod = containerd.pod("db-0").user_namespace().run(hung.dir(), &READ);
    let map = std::fs::read_to_string(format!("/proc/{}/uid_map", pod.pid)).unwrap();
    assert_ne!(map.split_whitespace().nth(1), Some("0"), "a user namespace: {map}");
    are_ready(&daemon, &[PodSandbox::clone(&pod)]);
    wait();
    let told = follower.changes_seen();
    assert!(!told.iter().any(|change| never::is_about(lab, change)), "{told:#?}");
    pod.hang(&mut hung);
    let stuck = daemon.await_firing(STUCK, SOON, is_in(pod.netns));
    assert_eq!(stuck["holders"][0]["pid"], pod.pid, "{stuck:#?}");
    assert_eq!(stuck["severity"], "warning", "a pod, and not a user's own: {stuck:#?}");
    assert_eq!(stuck["subject"]["pod"]["name"], "db-0", "{stuck:#?}");
    hung.release();
    daemon.await_resolved(&stuck, SOON);
}
