//! 1,000 address changes a second for a minute.

use std::io::Write;
use std::time::{Duration, Instant};

use support::{Daemon, Lab, Netns};

use super::usage::Usage;
use super::{ends, figure};

const SECONDS: u32 = 60;
const A_SECOND: u32 = 1_000;
/// Changes between two pauses.
const BURST: u32 = 50;

/// Measures each of the builds that are compared.
pub(crate) fn of_addresses(lab: &Lab) {
    for build in ends::builds() {
        let daemon = ends::start(lab, &build);
        let netns = Netns::new(lab, build.hint);
        netns.veth_to_host();
        for_a_minute(&daemon, &netns, build.name);
    }
}

pub(crate) fn for_a_minute(daemon: &Daemon, netns: &Netns, name: &str) {
    let (mut ip, mut lines) = support::netns::stream(netns);
    let before = Usage::of(daemon.pid());
    let from = Instant::now();
    let mut changes = 0u32;
    while changes < SECONDS * A_SECOND {
        for _ in 0..BURST / 2 {
            let n = changes / 2 % 200 + 1;
            writeln!(lines, "addr add 10.241.0.{n}/32 dev eth0").expect("tell ip");
            writeln!(lines, "addr del 10.241.0.{n}/32 dev eth0").expect("tell ip");
            changes += 2;
        }
        lines.flush().expect("tell ip");
        let due = Duration::from_secs(1) * changes / A_SECOND;
        std::thread::sleep(due.saturating_sub(from.elapsed()));
    }
    writeln!(lines, "addr add 10.241.1.1/32 dev eth0").expect("tell ip");
    drop(lines);
    ip.wait().expect("ip ends");
    let rate = f64::from(changes) / from.elapsed().as_secs_f64();
    let after = Usage::of(daemon.pid());
    let shown = format!("{:.1} % of a core at {rate:.0} a second", before.cpu_percent(&after));
    figure(&format!("{name}churn of addresses for 60 s, CPU"), "<= 1.5 %", &shown);

    daemon.await_ip("10.241.1.1", netns.inode);
    let left = daemon.list("addresses", &["query", "ip", "10.241.0.0/24"]).len();
    let lost = daemon.log().lines().filter(|line| line.contains("lost")).count();
    let shown = format!("{left} wrong addresses left, {lost} losses told");
    let what = format!("{name}churn of addresses for 60 s, what is lost");
    figure(&what, "nothing, or resynced", &shown);
}
