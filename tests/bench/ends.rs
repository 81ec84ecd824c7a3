//! What processes that come and go cost: 1,000 a second for a minute, and one of 5,000 threads that is killed at once.
//!
//! With `IPWATCH_BENCH_BEFORE` another build of the daemon (its path) is measured beside this one, in the same run.

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

/// The daemons that are compared, by their names in the figures.
fn builds() -> Vec<(&'static str, PathBuf)> {
    let before =
        std::env::var_os("IPWATCH_BENCH_BEFORE").map(|path| ("before: ", PathBuf::from(path)));
    before.into_iter().chain([("", binary())]).collect()
}

/// Begins of processes that were told or counted, and events that were lost.
fn told(daemon: &Daemon) -> (u64, u64) {
    let probes = daemon.list("probes", &["doctor"]);
    let sum = |key: &str| probes.iter().filter_map(|probe| probe[key].as_u64()).sum::<u64>();
    (sum("seen"), sum("lost"))
}

pub(crate) fn of_processes(lab: &Lab) {
    for (name, path) in builds() {
        let hint = if name.is_empty() { "now" } else { "before" };
        let daemon = start(lab, path, hint);
        let netns = Netns::new(lab, hint);
        netns.veth_to_host();
        netns.add_address(&lab.cidr(7), "eth0");
        come_and_go(&daemon, &netns, name);
        end_at_once(&daemon, &netns, name);
    }
}

fn start(lab: &Lab, path: PathBuf, hint: &str) -> Daemon {
    let state = lab.subdir(&format!("state-{hint}"));
    let mut daemon = Daemon::spawn_by(Command::new(path), lab, &Config::default(), &state);
    daemon.await_ready();
    quiet();
    daemon
}

fn come_and_go(daemon: &Daemon, netns: &Netns, name: &str) {
    let (rate, seconds) = (A_SECOND.to_string(), SECONDS.to_string());
    let mut churn = Helper::new(Role::Churn).inside(netns).arg(&rate).arg(&seconds).start();
    let (seen, lost) = told(daemon);
    let before = Usage::of(daemon.pid());
    churn.tell("go");
    let made: u32 = churn.hear().parse().expect("a number");
    let after = Usage::of(daemon.pid());
    let rate = made / SECONDS;
    let shown = format!("{:.2} % of a core at {rate} a second", before.cpu_percent(&after));
    figure(&format!("{name}processes that come and go for 60 s, CPU"), "< 2 %", &shown);
    let (all, gone) = told(daemon);
    let lines = daemon.log().lines().filter(|line| line.contains("lost")).count();
    let shown = format!("{} of {} lost, {lines} losses told", gone - lost, all - seen);
    figure(&format!("{name}processes that come and go for 60 s, events"), "none lost", &shown);
}

fn end_at_once(daemon: &Daemon, netns: &Netns, name: &str) {
    let count = THREADS.to_string();
    let mut threads = Helper::new(Role::Threads).inside(netns).arg(&count).start();
    std::thread::sleep(Duration::from_secs(2));
    let (_, lost) = told(daemon);
    let before = Usage::of(daemon.pid());
    threads.signal(libc::SIGKILL);
    assert!(threads.ends(30), "it does not end");
    std::thread::sleep(Duration::from_secs(5));
    let after = Usage::of(daemon.pid());
    let shown = format!("{:.2} % of a core over 5 s and more", before.cpu_percent(&after));
    figure(&format!("{name}{THREADS} threads killed at once, CPU"), "< 2 %", &shown);
    let shown = format!("{} lost", told(daemon).1 - lost);
    figure(&format!("{name}{THREADS} threads killed at once, events"), "none lost", &shown);
}
