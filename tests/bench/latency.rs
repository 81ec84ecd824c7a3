//! How long it takes until an event in the kernel is known.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::fuse::Hung;
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns};

use super::{figure, median, quantile};

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

/// Alternating runs of the daemon and of the bare reader.
const RUNS: usize = 9;

/// From the kernel's time stamp to the map, as the daemon measures it, and to a bare reader of the ring buffer
/// (`ipwatch/benches/bare_ring.rs`), alternately. The load is 500 runs of a CNI plugin, each of which makes two events
/// that the kernel half reports at once on every kernel: processes that end soon are not reported at all.
pub(crate) fn of_events(lab: &Lab) {
    let Some(reader) = std::env::var_os("BENCH_BARE") else {
        println!("no bare reader: `cargo xtask bench` builds it");
        return;
    };
    let plugins = support::network::bin_dir(lab);
    let plugin = plugins.join("none");
    std::fs::copy("/bin/true", &plugin).expect("copy a program");
    let config = Config::default().networks(&[support::network::conf_dir(lab)], &plugins);
    let (mut map, mut bare) = (Vec::new(), Vec::new());
    for n in 0..RUNS {
        let mut daemon = Daemon::spawn(lab, &config, &lab.subdir(&format!("state-{n}")));
        daemon.await_ready();
        std::thread::sleep(Duration::from_secs(1));
        run(&plugin);
        map.push(quantiles_of(&daemon));
        drop(daemon);
        bare.push(bare_quantiles(Command::new(&reader).arg(&plugins), &plugin));
    }
    let medians =
        |all: &[[Duration; 2]]| [0, 1].map(|n| median(all.iter().map(|q| q[n]).collect()));
    let (map, bare) = (medians(&map), medians(&bare));
    let shown = |[p50, p99]: [Duration; 2]| format!("p50 {p50:.1?}, p99 {p99:.1?}");
    figure("kernel event -> map", "p99 < 500 us", &shown(map));
    figure("kernel event -> a bare reader of the ring buffer", "no goal", &shown(bare));
    for (n, quantile, goal) in [(0, "p50", "<= 2 times"), (1, "p99", "<= 3 times")] {
        let ratio = map[n].as_secs_f64() / bare[n].as_secs_f64();
        let what = format!("kernel event -> map against a bare reader, {quantile}");
        figure(&what, goal, &format!("{ratio:.2} times (medians of {RUNS} alternating runs)"));
    }
}

fn run(plugin: &Path) {
    for n in 0..ROUNDS {
        let mut run = Command::new(plugin);
        run.env("CNI_COMMAND", "CHECK").env("CNI_CONTAINERID", format!("{n:064x}"));
        run.env("CNI_NETNS", "").env("CNI_IFNAME", "eth0").env("CNI_PATH", "/nonexistent");
        assert!(run.status().expect("run a plugin").success());
    }
}

/// The daemon's quantiles, upper bounds of its histogram, which are at most an eighth too high.
fn quantiles_of(daemon: &Daemon) -> [Duration; 2] {
    let document = daemon.document(&["doctor"]).expect("doctor");
    let sources = document["sources"].as_array().expect("sources");
    let probes = sources.iter().find(|source| source["name"] == "probes").expect("probes");
    let detail = probes["detail"].as_str().unwrap_or_default();
    let micros = |after: &str| {
        let number = detail.split(after).nth(1)?.split(' ').next()?.parse().ok()?;
        Some(Duration::from_micros(number))
    };
    let count: usize = detail
        .split("; ")
        .find_map(|part| part.split_once(" events, kernel to map")?.0.parse().ok())
        .unwrap_or_else(|| panic!("no latency in {detail:?}"));
    assert!(count >= ROUNDS, "only {count} events");
    ["half below ", "99 % below "].map(|after| micros(after).expect("a quantile"))
}

fn bare_quantiles(reader: &mut Command, plugin: &Path) -> [Duration; 2] {
    let mut child =
        reader.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the reader");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut hear = || said.next().expect("a line").expect("hear the reader");
    assert_eq!(hear(), "ready");
    run(plugin);
    drop(child.stdin.take());
    let line = hear();
    assert!(child.wait().expect("wait for the reader").success());
    let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
    assert!(numbers[0] >= 2 * ROUNDS as u64, "only {} records", numbers[0]);
    [numbers[1], numbers[2]].map(Duration::from_nanos)
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
