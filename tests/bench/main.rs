//! The figures that the design promises, measured on this host with real kernel objects: `cargo xtask bench`. Every
//! line shows a figure beside its goal. Timings on a shared machine are noisy: use medians, and ratios within one
//! run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a benchmark fails by panicking, and measures with the plain clock"
)]

mod churn;
mod cluster;
mod ends;
mod lasting;
mod latency;
mod prevention;
mod runtime;
mod top;
mod usage;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support::daemon::binary;
use support::role::{Helper, Role, Running};
use support::{Config, Daemon, Lab, Need, Netns, Test, harness};

use usage::{Usage, quiet};

/// Prints one figure beside its goal. xtask reads the three parts, which two blanks separate, into
/// `docs/figures.json`.
pub(crate) fn figure(name: &str, goal: &str, measured: &str) {
    println!("{}{name:<58}  {measured:<34}  goal {goal}", harness::FIGURE);
}

pub(crate) fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values[values.len() / 2]
}

pub(crate) fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort();
    let index = (values.len() as f64 * share).ceil() as usize;
    values[index.clamp(1, values.len()) - 1]
}

/// A netns with a veth to the host, an address, and the given number of processes in it.
struct Pod {
    netns: Netns,
    _processes: Vec<Running>,
}

fn pod(lab: &Lab, n: usize, processes: usize) -> Pod {
    let netns = Netns::new(lab, &n.to_string());
    netns.veth_to_host();
    netns.add_address(&format!("10.{}.{}.2/24", 100 + n / 250, n % 250), "eth0");
    let park = |_| Helper::new(Role::Park).inside(&netns).start();
    let processes = (0..processes).map(park).collect();
    Pod { netns, _processes: processes }
}

fn scans(times: usize) -> Duration {
    scans_of(&binary(), times)
}

fn scans_of(program: &Path, times: usize) -> Duration {
    let scan = |_| {
        let from = Instant::now();
        let out = Command::new(program).args(["scan", "-o", "json"]).output().expect("scan");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        from.elapsed()
    };
    median((0..times).map(scan).collect())
}

fn a_node_with_250_pods(lab: &Lab) {
    let pods: Vec<Pod> = (0..250).map(|n| pod(lab, n, 2)).collect();
    let time = scans(7);
    figure(
        "cold scan, 500 processes, 250 netns, probes loaded",
        "< 100 ms",
        &format!("{time:.1?}"),
    );

    let daemon = Daemon::start(lab, &Config::default());
    quiet();
    let from = Usage::of(daemon.pid());
    std::thread::sleep(Duration::from_secs(30));
    let to = Usage::of(daemon.pid());
    let idle = format!("{:.3} % of a core over 30 s", from.cpu_percent(&to));
    figure("idle CPU, 250 pods", "< 0.1 %", &idle);
    figure("mountinfo reads in 15 idle seconds", "0", &usage::reads_of_mountinfo(daemon.pid()));
    figure("memory, 250 pods", "< 12 MiB", &to.memory());
    drop(daemon);

    let exporting = Config::default().otlp("http://127.0.0.1:9");
    let daemon = Daemon::start(lab, &exporting);
    quiet();
    figure("memory, 250 pods, OTLP on", "< 16 MiB", &Usage::of(daemon.pid()).memory());
    latency::of_addresses(&daemon, &pods[0].netns);
    churn::for_a_minute(&daemon, &pods[1].netns, "250 pods: ");
}

/// Entries that the kernel's neighbour table has held once.
const NEIGHBOURS: u32 = 100_000;

fn a_thousand_netns(lab: &Lab) {
    let all: Vec<Netns> = (0..1_000).map(|n| filled(lab, n)).collect();
    let from = Instant::now();
    for netns in &all {
        let out = Command::new("ip")
            .args(["netns", "exec", netns.name(), "ip", "-j", "addr"])
            .output()
            .expect("ip netns exec");
        assert!(out.status.success());
    }
    let by_hand = from.elapsed();
    let all_scan = |when: &'static str| {
        ends::builds().into_iter().map(move |build| {
            let (name, time) = (build.name, scans_of(&build.path, 5));
            let ratio = by_hand.as_secs_f64() / time.as_secs_f64();
            let shown = format!("{ratio:.0}x ({time:.0?} against {by_hand:.1?})");
            let what =
                format!("{name}cold scan of 1,000 netns against `ip netns exec` in a loop{when}");
            figure(&what, ">= 100x", &shown);
            time
        })
    };
    let before: Vec<Duration> = all_scan("").collect();
    // The neighbour table is shared by all netns, and does not shrink.
    fill_and_empty(&all[0]);
    let after = all_scan(", after 100,000 neighbours");
    for (build, (before, after)) in ends::builds().iter().zip(before.into_iter().zip(after)) {
        let shown = format!("{:.2} times", after.as_secs_f64() / before.as_secs_f64());
        figure(
            &format!("{}the cold scan after 100,000 neighbours against before", build.name),
            "<= 1.3 times",
            &shown,
        );
    }

    let daemon = Daemon::start(lab, &Config::default());
    support::poll::until("10,000 addresses are known", 60, || {
        daemon.list("addresses", &["query", "ip", "10.0.0.0/8"]).len() >= 10_000
    });
    quiet();
    figure(
        "memory, 1,000 netns with 10,000 addresses",
        "< 24 MiB",
        &Usage::of(daemon.pid()).memory(),
    );
}

/// Adds [`NEIGHBOURS`] neighbour entries in a netns, and removes them.
fn fill_and_empty(netns: &Netns) {
    let each = |word: &str| -> String {
        let line = |n: u32| {
            let ip = std::net::Ipv4Addr::from_bits(0x0a80_0000 + n);
            format!("neigh {word} {ip} lladdr 02:00:00:00:00:01 dev br0 nud permanent\n")
        };
        (0..NEIGHBOURS).map(line).collect()
    };
    netns.ip_batch(&each("add"));
    netns.ip_batch(&each("del"));
}

/// A netns with ten addresses on a bridge.
fn filled(lab: &Lab, n: usize) -> Netns {
    let netns = Netns::new(lab, &n.to_string());
    let addresses: String = (0..10)
        .map(|k| format!("addr add 10.{}.{}.{}/24 dev br0\n", n / 250, n % 250, k + 1))
        .collect();
    netns.ip_batch(&format!("link add br0 type bridge\n{addresses}"));
    netns
}

/// The stuck process comes first: the kernel takes many seconds to destroy what the other tests leave.
const TESTS: &[Test] = &[
    bench("bench::a_stuck_holder", &[Need::Fuse], latency::of_a_stuck_holder),
    bench("bench::kernel_events", &[], latency::of_events),
    bench("bench::processes_that_end", &[], ends::of_processes),
    bench("bench::addresses_that_come_and_go", &[], churn::of_addresses),
    bench("bench::a_node_with_250_pods", &[], a_node_with_250_pods),
    bench(
        "bench::a_node_with_250_sandboxes",
        &[Need::Fuse, Need::FakeCri],
        runtime::a_node_with_250_sandboxes,
    ),
    bench("bench::top_over_250_pods", &[], top::of_250_pods),
    bench("bench::ten_minutes_with_250_pods", &[], lasting::ten_minutes_with_250_pods),
    bench("bench::a_thousand_netns", &[], a_thousand_netns),
    bench("bench::an_add_through_ipwatch_ipam", &[Need::Cni], prevention::of_an_add),
    bench("bench::ten_thousand_allocations", &[Need::ApiServer], cluster::ten_thousand_allocations),
    bench("bench::five_hundred_blocks", &[Need::ApiServer], cluster::five_hundred_blocks),
];

const fn bench(name: &'static str, needs: &'static [Need], run: fn(&Lab)) -> Test {
    Test { name, needs, marks: &[harness::Mark::Alone], run }
}

fn main() -> std::process::ExitCode {
    harness::main(&[TESTS])
}
