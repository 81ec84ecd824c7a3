//! The cost for a node of following the stores in the API server: with a real API server and objects of a whole
//! cluster, of which at most four are this node's.

use std::path::Path;
use std::time::{Duration, Instant};

use support::kubernetes::{ControlPlane, calico, stores};
use support::poll::until;
use support::{Config, Daemon, Lab};

use super::usage::{Usage, quiet};
use super::{figure, median};

const ALLOCATIONS: u64 = 10_000;
const TIMES: usize = 5;

fn config(lab: &Lab, control: &ControlPlane, more: &str) -> Config {
    let config = control.agent_config();
    let lines = format!("[kubernetes]\nkubeconfig = {config:?}\nnode = {:?}\n{more}", lab.tag());
    // Without stores on the node.
    Config::default().networks(&[], Path::new("/nonexistent")).line(&lines)
}

/// The time from the daemon's start until `done`, and the daemon.
fn started(
    lab: &Lab,
    config: &Config,
    n: usize,
    done: impl Fn(&Daemon) -> bool,
) -> (Duration, Daemon) {
    let state = lab.subdir(&format!("state-{n}"));
    let from = Instant::now();
    let mut daemon = Daemon::spawn(lab, config, &state);
    daemon.await_ready();
    until("all is known", 60, || done(&daemon));
    (from.elapsed(), daemon)
}

/// Measures the time until `done` beside the time until the node's pods are known, and the memory of both.
fn measure(
    lab: &Lab,
    control: &ControlPlane,
    what: &str,
    more: &str,
    done: impl Fn(&Daemon) -> bool,
) {
    let (without, with) = (config(lab, control, ""), config(lab, control, more));
    let pods = |daemon: &Daemon| {
        daemon.source("kubernetes").is_some_and(|source| source["status"] == "active")
    };
    let plain = median((0..TIMES).map(|n| started(lab, &without, n, pods).0).collect());
    let full = median((0..TIMES).map(|n| started(lab, &with, n, &done).0).collect());
    let shown = format!("{full:.0?}; until the node's pods are known {plain:.0?}");
    figure(&format!("{what}: from the start until all is known"), "< 1 s", &shown);
    let memory = |config: &Config, done: &dyn Fn(&Daemon) -> bool| {
        let (_, daemon) = started(lab, config, TIMES, done);
        quiet();
        Usage::of(daemon.pid())
    };
    let (without, with) = (memory(&without, &pods), memory(&with, &done));
    let more = with.resident_mib() - without.resident_mib();
    let shown = format!("{more:.1} MiB more: {}; without {}", with.memory(), without.memory());
    figure(&format!("memory, {what}"), "< 10 MiB", &shown);
}

pub(crate) fn ten_thousand_allocations(lab: &Lab) {
    let control = ControlPlane::start(lab);
    stores::whereabouts(&control);
    stores::fill(&control, ALLOCATIONS as usize);
    // The API server has them in memory by then, like any that has been asked before.
    measure(lab, &control, "10,000 IPPool allocations", "whereabouts = true", |daemon| {
        let ranges = daemon.list("ranges", &["query", "ipam"]);
        ranges.iter().filter_map(|range| range["used"].as_u64()).sum::<u64>() == ALLOCATIONS
    });
}

pub(crate) fn five_hundred_blocks(lab: &Lab) {
    let control = ControlPlane::start(lab);
    calico::define(&control);
    calico::fill(&control, 500, lab.tag());
    // Every other address of the first four blocks, which are this node's; and for the pool, every other one of all
    // blocks.
    measure(lab, &control, "500 blocks of Calico's", "calico = true", |daemon| {
        let ranges = daemon.list("ranges", &["query", "ipam"]);
        ranges.iter().any(|range| range["used"].as_u64() == Some(500 * 32))
            && daemon.list("reservations", &["query", "ipam", "100.64.0.0/24"]).len() == 128
    });
}
