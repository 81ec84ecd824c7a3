//! Everything at once, from a seed: pods come and go in real containerds, an unprivileged user floods, processes hang
//! and end, ipwatch and the runtime are restarted, ipwatch is stopped for seconds, and people ask. What hangs is found,
//! nothing else is, and once ipwatch is restarted no more, it needs no more memory and files than before.
//!
//! `cargo xtask soak` runs it for ten minutes, or as many as are wanted, and draws what it measured.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::fuse::Hung;
use support::harness::{self, FIGURE};
use support::pod::CNI_CACHE;
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, proc, prometheus, sys};

use crate::differential::{Rng, seed};
use crate::healthy::{IPWATCH_RESTARTS, KINDS, Node, Stops, Watch};
use crate::never;
use crate::worst_hour::{FLOODS, OpenDir};

support::tests! {
    nothing_grows_and_nothing_false_is_told needs [Containerd, Fuse] @ Alone Long,
}

/// Its length, in seconds, unless `IPWATCH_TEST_CYCLES` is another.
const SECONDS: usize = 120;
/// The default grace of a dead sandbox, a poll of the runtime and a second look.
const AFTERWARDS: Duration = Duration::from_secs(38);
/// Growth that is none: what the allocator keeps of a burst, in KiB. Between bursts 3.5 MiB come and go.
const SLACK: u64 = 4 * 1024;
/// How long what has ended is remembered (`KEEP` and `FORGET_AFTER` in `map/workload`), and what a cycle of pods takes
/// meanwhile, in KiB (27 were measured; some cycles have several pods); and the same of what its plugins returned
/// (`KEEP_HISTORY`).
const REMEMBERED: [(f64, u64); 2] = [(600.0, 32), (3_600.0, 2)];

/// What one look at the daemon gave.
struct Sample {
    /// Seconds since the beginning.
    at: f64,
    resident: u64,
    anonymous: u64,
    /// Hundredths of a second of CPU time in all.
    ticks: u64,
    files: usize,
    /// Cycles of pods that have ended so far.
    pods: u64,
    /// Events that were not reported, and repeated readings of everything.
    lost: f64,
    findings: usize,
}

struct Soak<'a> {
    lab: &'a Lab,
    watch: Mutex<Watch<'a>>,
    began: Instant,
    time: Duration,
    stop: AtomicBool,
    pods: AtomicU64,
    /// Each netns in which something hung, by its inode, with the process. The kernel reuses inodes at once.
    hung: Mutex<BTreeSet<(u64, u32)>>,
}

impl Soak<'_> {
    /// Waits; `false` when the time is over.
    fn pause(&self, ms: usize) -> bool {
        let until = Instant::now() + Duration::from_millis(ms as u64);
        while Instant::now() < until {
            if self.is_over() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.began.elapsed() >= self.time
    }

    /// Whether ipwatch is restarted no more.
    fn is_settled(&self) -> bool {
        self.began.elapsed() * 3 >= self.time
    }

    /// Asks the daemon while nobody restarts or stops it.
    fn with<T>(&self, ask: impl FnOnce(&Daemon) -> T) -> T {
        ask(self.watch.lock().expect("nobody has failed").daemon())
    }

    /// Waits until a question has an answer.
    fn until(&self, what: &str, is: impl Fn(&Daemon) -> bool) {
        let began = Instant::now();
        while !self.with(&is) {
            assert!(began.elapsed() < Duration::from_secs(90) * support::patience(), "{what}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn nothing_grows_and_nothing_false_is_told(lab: &Lab) {
    let seed = seed();
    println!("{FIGURE}IPWATCH_TEST_SEED={seed}");
    let node = Node::start(lab, 0);
    let socket = lab.dir().join("metrics.sock");
    let config = node.configure(Config::default().grace(2).cache_dir(Path::new(CNI_CACHE)));
    let config = config.line(&format!("[metrics]\nlisten = \"unix:{}\"", socket.display()));
    let seconds = harness::cycles().unwrap_or(SECONDS);
    let soak = Soak {
        lab,
        watch: Mutex::new(Watch::start(lab, config)),
        began: Instant::now(),
        time: Duration::from_secs(seconds as u64),
        stop: AtomicBool::new(false),
        pods: AtomicU64::new(0),
        hung: Mutex::default(),
    };
    let soak = &soak;
    let mut samples = Vec::new();
    std::thread::scope(|scope| {
        let _stops = Stops(&soak.stop);
        let mut rng = Rng(seed);
        let mut new = || Rng(rng.below(usize::MAX) as u64);
        let (a, b, c, d, e) = (new(), new(), new(), new(), new());
        let all = [
            scope.spawn(move || pods(soak, node, a)),
            scope.spawn(move || strangers(soak, b)),
            scope.spawn(move || hangs(soak, c)),
            scope.spawn(move || stops(soak, d)),
            scope.spawn(move || asks(soak, e)),
        ];
        while !soak.is_over() && !all.iter().any(|one| one.is_finished()) {
            std::thread::sleep(Duration::from_secs(1));
            samples.push(look(soak, &socket));
            if samples.len().is_multiple_of(5) {
                nothing_false(soak);
            }
        }
    });
    std::thread::sleep(AFTERWARDS);
    nothing_false(soak);
    keep(&samples);
    nothing_grew(soak, &samples);
    println!(
        "{FIGURE}soak, false findings  0 in {seconds} s; {} that were true  goal 0",
        soak.hung.lock().expect("nobody has failed").len()
    );
}

/// Pods of all kinds, on bridge, ptp and macvlan.
fn pods(soak: &Soak<'_>, mut node: Node<'_>, mut rng: Rng) {
    loop {
        let kind = rng.below(KINDS);
        if kind != IPWATCH_RESTARTS || !soak.is_settled() {
            node.cycle(kind + KINDS * rng.below(2), &soak.watch);
            soak.pods.fetch_add(1, Ordering::Relaxed);
        }
        if !soak.pause(rng.below(400)) {
            return;
        }
    }
}

/// What the kernel permits to everybody.
fn strangers(soak: &Soak<'_>, mut rng: Rng) {
    let open = OpenDir::new(soak.lab);
    for n in 0.. {
        let flood = FLOODS[rng.below(FLOODS.len())].start(&open, n);
        let goes_on = soak.pause(2_000 + rng.below(8_000));
        drop(flood);
        if !goes_on || !soak.pause(rng.below(10_000)) {
            return;
        }
    }
}

/// Processes that hang in netns with an IP, and end when what they wait for answers.
fn hangs(soak: &Soak<'_>, mut rng: Rng) {
    for n in 0_usize.. {
        let mut hung = Hung::mount_at(soak.lab, &format!("hung{n}"));
        let netns = Netns::new(soak.lab, &format!("hung{n}"));
        netns.veth_to_host();
        netns.add_address(&soak.lab.cidr(96 + (n % 16) as u8), "eth0");
        let inode = netns.inode;
        let mut helper = stuck::start(How::Kill, &netns, &mut hung);
        soak.hung.lock().expect("nobody has failed").insert((inode, helper.pid()));
        stuck::hang(How::Kill, &mut helper);
        let fires = |finding: &Value| finding["status"] == "firing";
        soak.until("what hangs is found", |daemon| daemon.findings_in(inode).iter().any(fires));
        hung.release();
        soak.until("and has ended", |daemon| !daemon.findings_in(inode).iter().any(fires));
        if !soak.pause(rng.below(5_000)) {
            return;
        }
    }
}

/// As if the machine were suspended, or the cgroup frozen.
fn stops(soak: &Soak<'_>, mut rng: Rng) {
    while soak.pause(10_000 + rng.below(20_000)) {
        soak.with(|daemon| {
            sys::kill(daemon.pid(), libc::SIGSTOP).expect("stop it");
            std::thread::sleep(Duration::from_millis(500 + rng.below(2_500) as u64));
            sys::kill(daemon.pid(), libc::SIGCONT).expect("let it go on");
        });
    }
}

/// People, and one who asks for everything and reads nothing.
fn asks(soak: &Soak<'_>, mut rng: Rng) {
    let mut silent = None;
    while soak.pause(rng.below(700)) {
        soak.with(|daemon| match rng.below(8) {
            0 => silent = Some(daemon.events()),
            1 => silent = None,
            2 => drop(daemon.ask(&["query", "history", &soak.lab.ip(2).to_string()])),
            3 => drop(daemon.ask(&["query", "ipam"])),
            4 => drop(daemon.ask(&["doctor"])),
            5 => drop(daemon.ask(&["check", &soak.lab.ip(3).to_string()])),
            _ => drop(daemon.ask(&["query", "ip", &soak.lab.ip(4).to_string()])),
        });
    }
    drop(silent);
}

fn look(soak: &Soak<'_>, socket: &Path) -> Sample {
    soak.with(|daemon| {
        let pid = daemon.pid();
        let page = prometheus::get_unix(socket, "/metrics");
        let lost = page.samples("ipwatch_probe_events_lost_total");
        let lost: f64 =
            lost.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        Sample {
            at: soak.began.elapsed().as_secs_f64(),
            resident: proc::rss_kib(pid),
            anonymous: proc::anonymous_kib(pid),
            ticks: proc::cpu_ticks(pid),
            files: proc::open_files(pid),
            pods: soak.pods.load(Ordering::Relaxed),
            lost: lost + page.value("ipwatch_resyncs_total"),
            findings: daemon.findings().len(),
        }
    })
}

/// Nothing above info but that a process hangs which does.
#[track_caller]
fn nothing_false(soak: &Soak<'_>) {
    let hung = soak.hung.lock().expect("nobody has failed").clone();
    let is_true = |finding: &Value| {
        let netns = finding["subject"]["netns"]["inode"].as_u64();
        let holders = finding["holders"].as_array().into_iter().flatten();
        let mut pids = holders.filter_map(|holder| u32::try_from(holder["pid"].as_u64()?).ok());
        finding["code"] == "ip-held-by-stuck-process"
            && pids.any(|pid| netns.is_some_and(|netns| hung.contains(&(netns, pid))))
    };
    let mut told = soak.watch.lock().expect("nobody has failed").changes();
    told.retain(|change| {
        let finding = &change["finding"];
        finding["severity"] != "info" && !never::is_elsewhere(soak.lab, change) && !is_true(finding)
    });
    assert!(told.is_empty(), "{told:#?}");
}

/// Compares the first and the last quarter of the time in which nobody restarted the daemon. What is remembered of pods
/// that have ended may grow until the first of them are forgotten: a leak of less than that takes a run of hours to show.
fn nothing_grew(soak: &Soak<'_>, samples: &[Sample]) {
    let settled: Vec<&Sample> =
        samples.iter().filter(|one| one.at * 3.0 >= soak.time.as_secs_f64()).collect();
    let median = |part: &[&Sample], of: fn(&Sample) -> u64| {
        let mut all: Vec<u64> = part.iter().map(|one| of(one)).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    let quarter = settled.len() / 4;
    let parts = [&settled[..quarter], &settled[settled.len() - quarter..]];
    let memory = parts.map(|part| median(part, |one| one.anonymous));
    let files = parts.map(|part| median(part, |one| one.files as u64));
    let remembered = parts.map(|part| {
        let at = part[part.len() / 2];
        let within = |time: f64| {
            let first = settled.iter().find(|one| one.at + time >= at.at);
            at.pods - first.map_or(at.pods, |one| one.pods)
        };
        REMEMBERED.iter().map(|(time, each)| within(*time) * each).sum::<u64>()
    });
    println!(
        "{FIGURE}anonymous memory {} KiB, then {} KiB, with pods that have ended up to {} and {} KiB; files {}, then {}",
        memory[0], memory[1], remembered[0], remembered[1], files[0], files[1]
    );
    let more = remembered[1].saturating_sub(remembered[0]);
    assert!(memory[1] <= memory[0] + more + SLACK, "memory grows: {memory:?}, {remembered:?}");
    assert!(files[1] <= files[0] + 16, "files stay open: {files:?}");
}

/// Writes what was measured for `cargo xtask soak`.
fn keep(samples: &[Sample]) {
    let Some(path) = std::env::var_os("IPWATCH_TEST_SOAK") else { return };
    let head = "seconds\tresident KiB\tanonymous KiB\tCPU ticks\tfiles\tlost\tfindings\tpods\n";
    let text = samples.iter().fold(head.to_owned(), |mut text, one| {
        let Sample { at, resident, anonymous, ticks, files, pods, lost, findings } = one;
        let _ = writeln!(
            text,
            "{at:.1}\t{resident}\t{anonymous}\t{ticks}\t{files}\t{lost}\t{findings}\t{pods}"
        );
        text
    });
    std::fs::write(path, text).expect("write what was measured");
}
