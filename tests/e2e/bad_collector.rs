//! A collector that fails: killed, hanging, slow, refusing, and back again. It costs the memory of the bounded queues
//! and no more; each span that is not delivered is counted; and everything else continues.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use support::collector::Collector;
use support::harness::FIGURE;
use support::poll::until;
use support::prometheus::{self, Page};
use support::{Config, Daemon, Lab, Netns, eventually, netns, patience, proc};

support::tests! {
    a_bad_collector_costs_neither_memory_nor_latency needs [Rotel] @ Alone,
    a_burst_is_delivered_or_counted_to_the_span needs [Rotel] @ Alone,
}

/// Limit of the additional memory, in KiB.
const MEMORY: u64 = 5 * 1024;
/// Latency goal from the kernel to the map, in seconds, for 99 % of the events.
const GOAL: f64 = 500e-6;
/// How long the collector fails.
const BAD: Duration = Duration::from_secs(4);
/// Addresses that come and go per second: more tenures in [`BAD`] than the queue holds.
const A_SECOND: u32 = 200;
/// Longest age of a page of metrics, and longest delay of a follower.
const STALE: Duration = Duration::from_millis(1500);
/// Number of spans in a burst, and of netns that they come from.
const BURST: u32 = 20_000;
const NETNS: u32 = 20;

/// A daemon that exports every tenure to a collector, and what it reports about that.
struct Rig {
    collector: Collector,
    daemon: Daemon,
    metrics: String,
    tenures: Tenures,
}

impl Rig {
    fn start(lab: &Lab) -> Self {
        let (collector, metrics) = (Collector::start(lab), prometheus::free_address());
        let config = Config::default().otlp(&collector.endpoint);
        let config = config.otlp_line("tenures = true").otlp_line("timeout = \"1s\"");
        let config = config.line(&format!("[metrics]\nlisten = \"{metrics}\""));
        let daemon = Daemon::start(lab, &config);
        let tenures = Tenures::of(&daemon);
        let rig = Self { collector, daemon, metrics, tenures };
        until("everything is read", 40, || rig.page().value("ipwatch_ready") > 0.0);
        rig
    }

    fn page(&self) -> Page {
        // During a burst, on a slow machine, the core may take longer than a scrape waits.
        eventually("a scrape is answered", 60, || {
            prometheus::get(&self.metrics, "/metrics", "*/*").filter(|page| page.status == 200)
        })
    }

    /// What has become of the tenures so far, and how many there were. That number is a range: other tests may change
    /// addresses meanwhile, and the values are not read at the same moment.
    fn books(&self) -> Books {
        let least = self.tenures.heard();
        std::thread::sleep(STALE * patience());
        let page = self.page();
        let tenures = |name: &str| of_signal(&page, name, "tenures");
        let exported = tenures("ipwatch_telemetry_exported_total");
        let dropped = tenures("ipwatch_telemetry_dropped_total");
        let waiting = tenures("ipwatch_telemetry_waiting");
        let findings = page.value("ipwatch_telemetry_published_total") as u64;
        std::thread::sleep(STALE * patience());
        Books { heard: (least, self.tenures.heard()), findings, exported, dropped, waiting }
    }

    /// Number of tenures that the collector accepted.
    fn taken(&self) -> u64 {
        of_signal(&self.page(), "ipwatch_telemetry_exported_total", "tenures")
    }

    fn await_none_waiting(&self) {
        until("no tenure waits", 60, || {
            of_signal(&self.page(), "ipwatch_telemetry_waiting", "tenures") == 0
        });
    }

    /// Checks that `doctor` and the metrics count the same losses.
    fn doctor_agrees(&self) {
        let mut said = (String::new(), String::new());
        support::poll::settle(20, || {
            let page = self.page();
            let all = page.samples("ipwatch_telemetry_dropped_total");
            let dropped: u64 = all.iter().map(|line| number(line)).sum();
            let standing = self.daemon.source("otlp").expect("the collector is a source");
            let detail = standing["detail"].as_str().unwrap_or_default().to_owned();
            said = (detail, format!(" sent, {dropped} dropped, "));
            said.0.contains(&said.1)
        });
        assert!(said.0.contains(&said.1), "doctor says {}, a scrape{}", said.0, said.1);
    }
}

fn of_signal(page: &Page, name: &str, signal: &str) -> u64 {
    let signal = format!("signal=\"{signal}\"");
    page.samples(name).iter().find(|line| line.contains(&signal)).map_or(0, |line| number(line))
}

fn number(sample: &str) -> u64 {
    sample.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok()).map_or(0, |n| n as u64)
}

/// What became of the tenures.
#[derive(Debug, Clone, Copy)]
struct Books {
    /// Events of tenures that a follower heard or missed, shortly before and shortly after.
    heard: (u64, u64),
    /// Changes of findings: events that were missed may be some of these as well.
    findings: u64,
    exported: u64,
    dropped: u64,
    waiting: u64,
}

impl Books {
    /// Checks that each span created since `before` is delivered, counted as dropped, or queued.
    #[track_caller]
    fn balance(&self, before: &Books) {
        let sum = |books: &Books| books.exported + books.dropped + books.waiting;
        let known = sum(self) - sum(before);
        let most = self.heard.1 - before.heard.0;
        let least = self.heard.0.saturating_sub(before.heard.1 + self.findings - before.findings);
        let balanced = (least..=most).contains(&known);
        assert!(balanced, "made {least} to {most}, known of {known}: {before:?}, {self:?}");
    }
}

/// Counts the tenures that began or ended, as a follower of the daemon hears them.
struct Tenures {
    socket: UnixStream,
    /// Includes missed events of any kind.
    heard: Arc<AtomicU64>,
}

impl Tenures {
    fn of(daemon: &Daemon) -> Self {
        let (socket, lines) = daemon.events();
        let heard = Arc::<AtomicU64>::default();
        let count = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in lines {
                // In a burst there is no time to parse every line.
                if line.starts_with("{\"event\":\"held\"")
                    || line.starts_with("{\"event\":\"released\"")
                {
                    count.fetch_add(1, Relaxed);
                } else if line.starts_with("{\"event\":\"lagged\"") {
                    let event: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                    count.fetch_add(event["dropped"].as_u64().expect("a number"), Relaxed);
                }
            }
        });
        Self { socket, heard }
    }

    fn heard(&self) -> u64 {
        self.heard.load(Relaxed)
    }
}

impl Drop for Tenures {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Adds and removes addresses at a steady pace.
struct Churn {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Churn {
    fn start(netns: &Netns) -> Self {
        const TURN: Duration = Duration::from_millis(20);
        let stop = Arc::<AtomicBool>::default();
        let (mut ip, mut lines) = netns::stream(netns);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let from = Instant::now();
            let mut done = 0;
            while !stopped.load(Relaxed) {
                let due = (from.elapsed().as_secs_f64() * f64::from(A_SECOND)) as u32;
                for n in done..due.max(done) {
                    let n = n % 200 + 1;
                    writeln!(lines, "addr add 10.241.0.{n}/32 dev eth0").expect("tell ip");
                    writeln!(lines, "addr del 10.241.0.{n}/32 dev eth0").expect("tell ip");
                }
                done = done.max(due);
                lines.flush().expect("tell ip");
                std::thread::sleep(TURN);
            }
            drop(lines);
            assert!(ip.wait().expect("ip ends").success());
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let thread = self.thread.take().expect("it was started");
        assert!(thread.join().is_ok() || std::thread::panicking(), "the addresses came and went");
    }
}

/// How an impostor behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    /// Accepts connections, reads nothing, answers nothing.
    Hangs,
    /// Reads one byte and sends one byte of a correct answer per second.
    Crawls,
}

/// A fake collector on the collector's port.
struct Impostor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Impostor {
    fn start(port: u16, manner: Manner) -> Self {
        /// The server's first frame in HTTP/2: an empty SETTINGS frame.
        const HELLO: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("take the collector's port");
        listener.set_nonblocking(true).expect("set nonblocking");
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut guests: Vec<(TcpStream, Instant, usize)> = Vec::new();
            while !stopped.load(Relaxed) {
                if let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).expect("set nonblocking");
                    guests.push((stream, Instant::now(), 0));
                }
                for (stream, from, said) in &mut guests {
                    let due = from.elapsed().as_secs() as usize;
                    if manner == Manner::Crawls && *said < due {
                        // A client that has given up is ignored.
                        let _ = stream.read(&mut [0]);
                        let _ = HELLO.get(*said).map(|byte| stream.write_all(&[*byte]));
                        *said += 1;
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            guests.len()
        });
        Self { stop, thread: Some(thread) }
    }

    /// Stops. Returns the number of connections.
    fn leave(mut self) -> usize {
        self.stop.store(true, Relaxed);
        self.thread.take().map_or(0, |thread| thread.join().expect("it was let in"))
    }
}

/// What a period of time cost.
struct Cost {
    /// Peak memory, in KiB.
    rss: u64,
    /// The 50th and 99th percentile of the latency from the kernel to the map, in seconds; `None` where no probe
    /// reports any.
    latency: Option<(f64, f64)>,
}

impl Cost {
    fn of(rig: &Rig, time: Duration) -> Self {
        let before = latencies(&rig.page());
        let from = Instant::now();
        let mut rss = 0;
        while from.elapsed() < time {
            rss = rss.max(proc::rss_kib(rig.daemon.pid()));
            std::thread::sleep(Duration::from_millis(50));
        }
        let after = latencies(&rig.page());
        let counts: Vec<(f64, u64)> =
            after.iter().zip(&before).map(|(a, b)| (a.0, a.1.saturating_sub(b.1))).collect();
        let all = counts.last().map_or(0, |last| last.1);
        let quantile = |share: f64| {
            let wanted = ((all as f64 * share).ceil() as u64).max(1);
            counts.iter().find(|(_, count)| *count >= wanted).map_or(f64::INFINITY, |one| one.0)
        };
        Self { rss, latency: (all > 0).then(|| (quantile(0.5), quantile(0.99))) }
    }

    fn shown(&self) -> String {
        let latency = self.latency.map_or("no probes".to_owned(), |(p50, p99)| {
            format!("p50 < {:.0} us, p99 < {:.0} us", p50 * 1e6, p99 * 1e6)
        });
        format!("{:.1} MiB, {latency}", self.rss as f64 / 1024.0)
    }
}

/// The buckets of the latency: upper bounds, and how many events took no longer.
fn latencies(page: &Page) -> Vec<(f64, u64)> {
    let bucket = |line: &&str| {
        let bound = line.split_once("le=\"")?.1.split_once('"')?.0;
        Some((bound.parse().unwrap_or(f64::INFINITY), number(line)))
    };
    page.samples("ipwatch_event_latency_seconds_bucket").iter().filter_map(bucket).collect()
}

fn a_bad_collector_costs_neither_memory_nor_latency(lab: &Lab) {
    let mut rig = Rig::start(lab);
    let netns = Netns::new(lab, "churn");
    netns.veth_to_host();
    let before = rig.books();
    let churn = Churn::start(&netns);
    let warm = Cost::of(&rig, BAD);
    let usual = Cost::of(&rig, BAD);
    drop(churn);
    println!("{FIGURE}collector takes all: {} (before: {})", usual.shown(), warm.shown());
    for (what, manner) in [
        ("killed", None),
        ("hangs", Some(Manner::Hangs)),
        ("slow, a byte a second", Some(Manner::Crawls)),
        ("refuses", None),
    ] {
        let from = rig.books();
        let churn = Churn::start(&netns);
        if what == "refuses" {
            rig.collector.stop();
        } else {
            rig.collector.kill();
        }
        let impostor = manner.map(|manner| Impostor::start(rig.collector.port(), manner));
        let cost = Cost::of(&rig, BAD);
        let came = impostor.map(Impostor::leave);
        assert!(came.is_none_or(|came| came > 0), "{what}: nobody came");
        let taken = rig.taken();
        rig.collector.again();
        let back = Instant::now();
        until(&format!("{what}: it connects again"), 60, || rig.taken() > taken);
        let after = back.elapsed();
        drop(churn);
        rig.await_none_waiting();
        let to = rig.books();
        let dropped = to.dropped - from.dropped;
        println!(
            "{FIGURE}collector {what}: {}; {dropped} dropped and counted, takes again after {:.1} s",
            cost.shown(),
            after.as_secs_f64()
        );
        to.balance(&before);
        rig.doctor_agrees();
        assert!(dropped > 0, "{what}: nothing was lost, so nothing was shown");
        cost.is_as(&usual, what);
    }
    let (ends, printed) = (rig.books(), rig.collector.count("ipwatch.tenure"));
    // What a killed collector had accepted and not yet printed is its own loss.
    println!("{FIGURE}spans of tenures: {} taken, {printed} printed", ends.exported);
    assert!(rig.daemon.stop().success(), "and it ends in time");
}

impl Cost {
    /// Checks that the cost is that of the usual run, within the noise of a busy machine.
    #[track_caller]
    fn is_as(&self, usual: &Cost, what: &str) {
        let (rss, most) = (self.rss, usual.rss + MEMORY);
        assert!(rss <= most, "{what}: {rss} KiB, {} KiB before", usual.rss);
        if let (Some((p50, _)), Some((usual, _))) = (self.latency, usual.latency) {
            assert!(p50 <= (usual * 4.0).max(GOAL), "{what}: p50 {p50} s, {usual} s before");
        }
    }
}

/// Many netns get their addresses at once, and lose them at once.
fn a_burst_is_delivered_or_counted_to_the_span(lab: &Lab) {
    let rig = Rig::start(lab);
    let begins = rig.books();
    let filled: Vec<Netns> = (0..NETNS).map(|n| filled(lab, n)).collect();
    let held = burst(&rig, &begins, "20,000 IPs come");
    drop(filled);
    let gone = burst(&rig, &held, "20,000 IPs go at once");
    // Every span counted as delivered has arrived, exactly once, and no other.
    until("it has printed what it took", 60, || {
        rig.collector.count("ipwatch.tenure") == rig.taken()
    });
    assert!(rig.taken() >= gone.exported);
    rig.doctor_agrees();
}

/// Waits until the fate of every span of a burst is known.
#[track_caller]
fn burst(rig: &Rig, before: &Books, what: &str) -> Books {
    let known = |books: &Books| books.exported + books.dropped + books.waiting;
    let mut after = *before;
    eventually(&format!("{what}: all are known"), 60, || {
        after = rig.books();
        (known(&after) >= known(before) + u64::from(BURST) && after.waiting == 0).then_some(())
    });
    let (sent, dropped) = (after.exported - before.exported, after.dropped - before.dropped);
    println!("{FIGURE}burst, {what}: {sent} delivered, {dropped} dropped and counted");
    after.balance(before);
    assert!(sent > 0);
    after
}

fn filled(lab: &Lab, n: u32) -> Netns {
    let netns = Netns::new(lab, &format!("b{n}"));
    let lines: String = (0..BURST / NETNS)
        .map(|k| format!("addr add 10.{}.{}.{}/32 dev br0\n", 200 + n, k / 250, k % 250 + 1))
        .collect();
    netns.ip_batch(&format!("link add br0 type bridge\n{lines}"));
    netns
}
