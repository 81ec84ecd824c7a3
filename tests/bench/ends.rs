//! The cost of processes that come and go: 1,000 per second for a minute, and one of 5,000 threads that is killed at
//! once.
//!
//! With `IPWATCH_BENCH_BEFORE` (`cargo xtask bench --before COMMIT`), which holds the path of another build of the
//! daemon, that build is measured as well, in the same run.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use support::daemon::binary;
use support::role::{Helper, Role};
use support::{Config, Daemon, Lab, Netns};

use super::figure;
use super::usage::{Usage, quiet};

const A_SECOND: u32 = 1_000;
const SECONDS: u32 = 60;
const THREADS: u32 = 5_000;

/// A configuration that every build understands: an unknown key is an error.
const PLAIN: &str = "[runtime]\nsockets = []\n";

/// Events of tasks. They have a ring buffer of their own; earlier builds put them into that of the addresses.
const OF_TASKS: [&str; 8] = [
    "process-fork",
    "process-exec",
    "process-exit",
    "netns-release",
    "task-freed",
    "netns-join",
    "sigkill",
    "group-exit",
];
const ELSEWHERE: [&str; 4] = ["cni-call", "netns-list", "task-list", "file-list"];

/// A build of the daemon that is measured.
pub(crate) struct Build {
    /// Prefix of its figures.
    pub(crate) name: &'static str,
    /// Part of the names of its netns and its state directory.
    pub(crate) hint: &'static str,
    pub(crate) path: PathBuf,
    config: Config,
    /// Whether events of tasks use the ring buffer of the addresses.
    shares: bool,
}

/// The builds that are compared.
pub(crate) fn builds() -> Vec<Build> {
    let before = std::env::var_os("IPWATCH_BENCH_BEFORE").map(|path| Build {
        name: "before: ",
        hint: "before",
        path: path.into(),
        config: Config::of(PLAIN),
        shares: true,
    });
    let now =
        Build { name: "", hint: "now", path: binary(), config: Config::default(), shares: false };
    before.into_iter().chain([now]).collect()
}

/// The counters of `doctor`.
struct Told {
    /// Events that were reported or counted.
    seen: u64,
    lost: u64,
    /// Records that went through the ring buffer of the addresses.
    through_ring: u64,
}

impl Build {
    fn told(&self, daemon: &Daemon) -> Told {
        let probes = daemon.list("probes", &["doctor"]);
        let in_ring = |event: &str| {
            !ELSEWHERE.contains(&event) && (self.shares || !OF_TASKS.contains(&event))
        };
        let (mut seen, mut lost, mut through_ring) = (0, 0, 0);
        for probe in &probes {
            let events = probe["seen"].as_u64().unwrap_or(0);
            seen += events;
            lost += probe["lost"].as_u64().unwrap_or(0);
            if in_ring(probe["event"].as_str().unwrap_or_default()) {
                through_ring += events;
            }
        }
        Told { seen, lost, through_ring }
    }
}

pub(crate) fn of_processes(lab: &Lab) {
    for build in builds() {
        let daemon = start(lab, &build);
        let netns = Netns::new(lab, build.hint);
        netns.veth_to_host();
        netns.add_address(&lab.cidr(7), "eth0");
        come_and_go(&daemon, &netns, &build);
        end_at_once(&daemon, &netns, &build);
    }
}

pub(crate) fn start(lab: &Lab, build: &Build) -> Daemon {
    let state = lab.subdir(&format!("state-{}", build.hint));
    let mut daemon = Daemon::spawn_by(Command::new(&build.path), lab, &build.config, &state);
    daemon.await_ready();
    quiet();
    daemon
}

fn come_and_go(daemon: &Daemon, netns: &Netns, build: &Build) {
    let name = build.name;
    let (rate, seconds) = (A_SECOND.to_string(), SECONDS.to_string());
    let mut churn = Helper::new(Role::Churn).inside(netns).arg(&rate).arg(&seconds).start();
    let first = build.told(daemon);
    let before = Usage::of(daemon.pid());
    churn.tell("go");
    let made: u32 = churn.hear().parse().expect("a number");
    let after = Usage::of(daemon.pid());
    let rate = made / SECONDS;
    let shown = format!("{:.2} % of a core at {rate} a second", before.cpu_percent(&after));
    figure(&format!("{name}processes that come and go for 60 s, CPU"), "< 2 %", &shown);
    let last = build.told(daemon);
    let lines = daemon.log().lines().filter(|line| line.contains("lost")).count();
    let (lost, seen) = (last.lost - first.lost, last.seen - first.seen);
    let shown = format!("{lost} of {seen} lost, {lines} losses told");
    figure(&format!("{name}processes that come and go for 60 s, events"), "none lost", &shown);
    ring_of_addresses(&format!("{name}processes that come and go for 60 s"), &first, &last);
}

fn ring_of_addresses(what: &str, first: &Told, last: &Told) {
    let shown = format!("{} records", last.through_ring - first.through_ring);
    figure(&format!("{what}, in the ring buffer that addresses use"), "none", &shown);
}

fn end_at_once(daemon: &Daemon, netns: &Netns, build: &Build) {
    let name = build.name;
    let count = THREADS.to_string();
    let mut threads = Helper::new(Role::Threads).inside(netns).arg(&count).start();
    std::thread::sleep(Duration::from_secs(2));
    let first = build.told(daemon);
    let before = Usage::of(daemon.pid());
    threads.signal(libc::SIGKILL);
    assert!(threads.ends(30), "it does not end");
    std::thread::sleep(Duration::from_secs(5));
    let after = Usage::of(daemon.pid());
    let shown = format!("{:.2} % of a core over 5 s and more", before.cpu_percent(&after));
    figure(&format!("{name}{THREADS} threads killed at once, CPU"), "< 2 %", &shown);
    let last = build.told(daemon);
    let shown = format!("{} lost", last.lost - first.lost);
    figure(&format!("{name}{THREADS} threads killed at once, events"), "none lost", &shown);
    ring_of_addresses(&format!("{name}{THREADS} threads killed at once"), &first, &last);
}
