//! How many facts per second the pure half takes: `cargo bench -p ipwatch`.
//!
//! The load is that of a large, busy node: 1,000 netns with ten addresses each, in which addresses come and go,
//! processes fork and exit, and neighbours change. It goes through the daemon's engine, which takes a step after each
//! batch of 512 facts, including detectors, blindness, ledger and tenures.
//!
//! Three of the committed recordings follow, each replayed many times. Their steps are those of the daemon that was
//! recorded, a few facts each, so that their cost is mostly that of a step.
//!
//! It also measures how soon an IP is found in a netns with 4,096 addresses, as on a node with IPVS, against a search
//! through all of them.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::net::Ipv4Addr;

use ipwatch::clock;
use ipwatch::engine::{Engine, Settings};
use ipwatch::fact::{
    Address, AddressKey, Boot, BootNs, Fact, Gate, Mac, Neighbour, NetnsRef, Observation, Origin,
    Scope, Sight, Source, SourceStatus, Task, TaskKey,
};
use ipwatch::map::{NodeMap, Thresholds};
use serde::Deserialize;

const NETNS: u64 = 1_000;
const ADDRESSES: u64 = 10;
const FACTS: usize = 1_000_000;
const ROUNDS: usize = 5;
const CROWD: u64 = 4_096;
/// Replays of each recording.
const REPLAYS: usize = 200;
const RECORDINGS: [(&str, &str); 3] = [
    ("flood-of-neighbours", include_str!("../../recordings/flood-of-neighbours.jsonl")),
    ("node-crash", include_str!("../../recordings/node-crash.jsonl")),
    ("range-full", include_str!("../../recordings/range-full.jsonl")),
];
const HOST: NetnsRef = NetnsRef { cookie: Some(1), inode: Some(1), nsid: None };
/// The sources that report their state at the start: without them the engine waits before it judges.
const SOURCES: [&str; 6] = ["cni", "neighbours", "netlink", "probes", "procfs", "routes"];

fn netns(n: u64) -> NetnsRef {
    NetnsRef { cookie: Some(n + 10), inode: Some(0xf000_0000 + n as u32), nsid: Some(n as i32) }
}

fn address(n: u64, last: u64) -> Address {
    let local = Ipv4Addr::from_bits(0x0a00_0000 + (n << 8) as u32 + last as u32).into();
    let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
    Address { key, scope: Some(0), flags: Some(0x80) }
}

fn task(n: u64, pid: u32) -> Task {
    Task {
        key: TaskKey { pid, tid: pid, start: u64::from(pid) },
        netns: netns(n),
        comm: "worker".to_owned(),
        parent: None,
        exiting: false,
        killed: false,
        state: None,
        idle: None,
    }
}

/// The state before the churn begins.
fn beginning() -> Vec<Observation> {
    let mut facts = vec![
        Observation::Boot(Boot {
            boot_id: "bench".to_owned(),
            node: "bench".to_owned(),
            kernel: String::new(),
            wall_offset: 0,
            host: HOST,
        }),
        Observation::Sight(Sight {
            teardown_end: true,
            release: true,
            addresses: true,
            calls: true,
            tasks: true,
        }),
    ];
    let source = |name: &str| {
        let status = SourceStatus::Active;
        Observation::Source(Source { name: name.to_owned(), status, detail: String::new() })
    };
    facts.extend(SOURCES.map(source));
    let ended = |scope| Observation::Ended { scope, began: BootNs(1), complete: true };
    let dumped = |netns| ended(Scope::Addresses { netns });
    for n in 0..NETNS {
        facts.push(Observation::Netns { netns: netns(n) });
        facts.push(Observation::Task(task(n, 1_000 + n as u32)));
        for last in 0..ADDRESSES {
            facts.push(Observation::Address { netns: netns(n), address: address(n, last) });
        }
        facts.push(dumped(netns(n)));
    }
    let scopes = [Scope::Tasks, Scope::Mounts { mount_ns: 1 }];
    facts.extend(scopes.map(ended));
    facts.extend([dumped(HOST), Observation::FirstAnswers]);
    facts
}

/// A reproducible stream of changes.
fn churn() -> Vec<Observation> {
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        // A linear congruential generator: reproducible, and its values spread well enough.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut facts = Vec::with_capacity(FACTS);
    while facts.len() < FACTS {
        let (n, last) = (random(NETNS), 100 + random(50));
        let pid = 100_000 + random(50_000) as u32;
        let mac = Some(Mac([2, 0, 0, 0, n as u8, last as u8]));
        let ip = address(n, last).key.local;
        facts.push(match random(6) {
            0 => Observation::Address { netns: netns(n), address: address(n, last) },
            1 => Observation::AddressGone { netns: netns(n), key: address(n, last).key },
            2 => Observation::Task(task(n, pid)),
            3 => Observation::TaskExiting { task: task(n, pid).key },
            4 => Observation::TaskReleased { task: task(n, pid).key },
            _ => Observation::Neighbour {
                netns: netns(n),
                neighbour: Neighbour { ifindex: 2, ip, mac, state: 2, claimed: None, admin: false },
            },
        });
    }
    facts
}

fn stamped(facts: Vec<Observation>, at: &mut BootNs) -> Vec<Fact> {
    let stamp = |what| {
        *at = at.plus(1_000);
        Fact { at: *at, origin: Origin::Probe, what }
    };
    facts.into_iter().map(stamp).collect()
}

/// Returns the number of changes to findings.
fn play(engine: &mut Engine, facts: &[Fact]) -> usize {
    let mut changes = 0;
    for batch in facts.chunks(512) {
        let now = batch.last().map_or_else(BootNs::default, |fact| fact.at);
        changes += engine.step(batch, now).changes.len();
    }
    changes
}

/// A recording: its settings, and the facts of each step with the time of the step.
struct Recording {
    settings: Settings,
    started: BootNs,
    steps: Vec<(Vec<Fact>, BootNs)>,
}

/// A line of a recording: see `daemon/record_replay.rs`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Settings {
        settings: Judged,
    },
    Step {
        step: BootNs,
    },
    Told {
        #[serde(rename = "told")]
        _told: serde::de::IgnoredAny,
    },
    Fact(Box<Fact>),
}

#[derive(Deserialize)]
struct Judged {
    started: BootNs,
    provisional: bool,
    #[serde(rename = "policy")]
    thresholds: Thresholds,
    shared: Vec<String>,
}

fn recording(text: &str) -> Recording {
    let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let Some(Line::Settings { settings: Judged { started, provisional, thresholds, shared } }) =
        lines.next()
    else {
        panic!("a recording begins with its settings");
    };
    let shared = shared.iter().map(|prefix| prefix.parse().unwrap()).collect();
    let settings = Settings { provisional, thresholds, shared };
    let (mut gate, mut facts, mut steps) = (Gate::default(), Vec::new(), Vec::new());
    for line in lines {
        match line {
            Line::Fact(fact) => facts.push(*fact),
            Line::Step { step } => {
                gate.admit(&mut facts);
                steps.push((std::mem::take(&mut facts), step));
            }
            Line::Told { .. } => {}
            Line::Settings { .. } => panic!("a recording has its settings once"),
        }
    }
    Recording { settings, started, steps }
}

/// Facts per second of a replay of this recording with a new engine.
fn replay(recording: &Recording) -> f64 {
    let mut engine = Engine::new(recording.settings.clone(), recording.started);
    let from = clock::now();
    let mut facts = 0;
    for (batch, now) in &recording.steps {
        engine.step(batch, *now);
        facts += batch.len();
    }
    facts as f64 / (clock::now().since(from) as f64 / 1e9)
}

fn recordings() {
    for (name, text) in RECORDINGS {
        let recording = recording(text);
        let mut rates: Vec<f64> = (0..REPLAYS).map(|_| replay(&recording)).collect();
        rates.sort_by(f64::total_cmp);
        let facts: usize = recording.steps.iter().map(|(facts, _)| facts.len()).sum();
        println!(
            "FIGURE replay of {name}  {:.2} million facts a second (median of {REPLAYS}; {facts} facts in {} \
             steps)  goal >= 2 million",
            rates[REPLAYS / 2] / 1e6,
            recording.steps.len()
        );
    }
}

/// Finds each IP of a netns with many, through the map's order and by searching all of them.
fn crowd() {
    let mut map = NodeMap::new(false);
    let own = netns(0);
    let facts =
        (0..CROWD).map(|n| Observation::Address { netns: own, address: address(n >> 8, n & 0xff) });
    for fact in stamped(facts.collect(), &mut BootNs(1)) {
        map.apply(&fact);
    }
    let entry = map.all_netns().find(|entry| entry.names.cookie == own.cookie).unwrap();
    let ips: Vec<_> = entry.addresses().map(|(key, _)| key.local).collect();
    assert_eq!(ips.len() as u64, CROWD);
    let each = |find: &dyn Fn(std::net::IpAddr) -> usize| {
        let from = clock::now();
        let found: usize = ips.iter().map(|ip| find(*ip)).sum();
        assert_eq!(found, ips.len());
        clock::now().since(from) as f64 / 1e3 / ips.len() as f64
    };
    let search = each(&|ip| entry.addresses().filter(|(key, _)| key.local == ip).count());
    let found = each(&|ip| entry.with_ip(ip).count());
    println!(
        "an IP among {CROWD} of a netns: found in {found:.2} µs, by a search in {search:.2} µs"
    );
}

fn main() {
    crowd();
    let mut at = BootNs(1);
    let (begin, facts) = (stamped(beginning(), &mut at), stamped(churn(), &mut at));
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let mut engine = Engine::new(Settings::default(), BootNs(1));
            play(&mut engine, &begin);
            assert!(engine.is_whole(), "it judges");
            let from = clock::now();
            let changes = play(&mut engine, &facts);
            assert_eq!(changes, 0, "nothing is stuck in this load");
            facts.len() as f64 / (clock::now().since(from) as f64 / 1e9)
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!(
        "FIGURE core replay, including detectors, ledger and tenures  {:.2} million facts a second (median of {ROUNDS}; \
         {} facts, {NETNS} netns)  goal >= 2 million",
        rates[ROUNDS / 2] / 1e6,
        facts.len()
    );
    recordings();
}
