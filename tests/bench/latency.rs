//! How long it takes until an event in the kernel is known.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::fuse::Hung;
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns};

use super::{figure, quantile};

const ROUNDS: usize = 500;
const GRACE: u32 = 2;

/// The events of `watch`.
fn follow(daemon: &Daemon) -> impl Iterator<Item = Value> {
    let mut stream = UnixStream::connect(daemon.socket()).expect("connect");
    stream.write_all(b"GET /v1/watch HTTP/1.1\r\nHost: ipwatch\r\n\r\n").expect("ask");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    // Headers and chunk sizes are not JSON objects.
    BufReader::new(stream)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_str(&line).ok())
        .filter(Value::is_object)
}

/// From the line with which `ip` adds an address to the event that a follower of the socket reads.
pub(crate) fn of_addresses(daemon: &Daemon, netns: &Netns) {
    let mut events = follow(daemon);
    let (mut ip, mut lines) = support::netns::stream(netns);
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|n| {
            let ip = format!("10.240.{}.{}", n / 250, n % 250 + 1);
            let from = Instant::now();
            writeln!(lines, "addr add {ip}/32 dev eth0").expect("tell ip");
            lines.flush().expect("tell ip");
            let told = events.find(|event| event["event"] == "held" && event["ip"] == ip.as_str());
            assert!(told.is_some(), "{ip} is never told");
            let time = from.elapsed();
            writeln!(lines, "addr del {ip}/32 dev eth0").expect("tell ip");
            time
        })
        .collect();
    drop(lines);
    ip.wait().expect("ip ends");
    let (p50, p99) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
    let shown = format!("p50 {p50:.0?}, p99 {p99:.0?}");
    figure("address: `ip` told -> kernel -> map -> follower", "(kernel -> map < 500 us)", &shown);
}

/// From the kernel's time stamp to the map, as the daemon measures it.
pub(crate) fn of_events(daemon: &Daemon, netns: &Netns) {
    netns.run(|| {
        for _ in 0..ROUNDS {
            assert!(Command::new("true").status().expect("true").success());
        }
    });
    let document = daemon.document(&["doctor"]).expect("doctor");
    let sources = document["sources"].as_array().expect("sources");
    let probes = sources.iter().find(|source| source["name"] == "probes").expect("probes");
    let detail = probes["detail"].as_str().unwrap_or_default();
    let speed = detail.split("; ").find(|part| part.contains("kernel to map"));
    figure("kernel event -> map", "p99 < 500 us", speed.unwrap_or("no probes"));
}

/// From the end of a stuck process's grace period to the firing of the finding.
pub(crate) fn of_a_stuck_holder(lab: &Lab) {
    let netns = Netns::new(lab, "stuck");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(2), "eth0");
    let mut hung = Hung::mount(lab);
    let daemon = Daemon::start(lab, &Config::default().grace(GRACE));
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    let mut events = follow(&daemon);
    let from = Instant::now();
    stuck::hang(How::Kill, &mut helper);
    let fired = events.any(|event| event["finding"]["status"] == "firing");
    assert!(fired, "the finding never fires");
    let after = from.elapsed().saturating_sub(Duration::from_secs(GRACE.into()));
    figure("stuck holder named, after its grace", "< 2 s", &format!("{after:.0?}"));
}
