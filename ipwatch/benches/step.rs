//! What one event costs on a small node and on a large one: `cargo bench -p ipwatch --bench step`.
//!
//! A node with healthy pods: each has a sandbox, a netns with ten addresses, a process, a veth pair, a route, a
//! reservation, and the host's neighbour entry for it. Each step of the engine takes one fact, 10 ms after the
//! previous one. The same kind of event is compared with 10 netns and with 1,000.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::net::{IpAddr, Ipv4Addr};

use ipwatch::clock;
use ipwatch::engine::{Engine, Settings};
use ipwatch::fact::{
    Address, AddressKey, Boot, BootNs, CniCall, CniCommand, Fact, Hop, Life, Link, Mac, Neighbour,
    NetnsRef, Observation, Origin, PodName, Range, RangePart, Reservation, Route, RouteKey,
    Sandbox, Scope, Sight, Source, SourceStatus, Task, TaskKey,
};

const SIZES: [u64; 2] = [10, 1_000];
const ADDRESSES: u64 = 10;
const EVENTS: u64 = 4_000;
/// Events of each kind when instructions are counted.
const COUNTED: u64 = 12;
const START: BootNs = BootNs(1_000);
const ROUNDS: usize = 5;
const STEP: u64 = 10_000_000;
const HOST: NetnsRef = NetnsRef { cookie: Some(1), inode: Some(1), nsid: None };
const SOURCES: [&str; 8] =
    ["cni", "neighbours", "netlink", "probes", "procfs", "routes", "host-local", "containerd"];
/// Index of the device in the pod's netns, and of the first peer on the host.
const ETH0: u32 = 2;
const VETH: u32 = 100;

fn netns(n: u64) -> NetnsRef {
    NetnsRef { cookie: Some(n + 10), inode: Some(0xf000_0000 + n as u32), nsid: Some(n as i32) }
}

fn ip(n: u64, last: u64) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + (n << 8) as u32 + last as u32).into()
}

fn address(n: u64, last: u64) -> Address {
    let key = AddressKey { ifindex: ETH0, local: ip(n, last), prefix_len: 24, peer: None };
    Address { key, scope: Some(0), flags: Some(0x80) }
}

fn mac(n: u64, end: u8) -> Mac {
    Mac([2, 0, 0, end, (n >> 8) as u8, n as u8])
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

fn pod(n: u64) -> PodName {
    let uid = Some(format!("00000000-0000-0000-0000-{n:012}"));
    PodName { namespace: "shop".to_owned(), name: format!("api-{n}"), uid }
}

fn reservation(n: u64, last: u64) -> Reservation {
    Reservation {
        store: "host-local".to_owned(),
        network: "cbr0".to_owned(),
        key: format!("/var/lib/cni/networks/cbr0/{}", ip(n, last)),
        ip: ip(n, last),
        container_id: Some(format!("{n:064x}")),
        ifname: Some("eth0".to_owned()),
        pod: None,
        since: None,
    }
}

fn neighbour(n: u64, state: u16) -> Observation {
    let ifindex = VETH + n as u32;
    let neighbour = Neighbour {
        ifindex,
        ip: ip(n, 0),
        mac: Some(mac(n, 1)),
        state,
        claimed: None,
        admin: false,
    };
    Observation::Neighbour { netns: HOST, neighbour }
}

fn pair(n: u64) -> [Observation; 2] {
    let veth = VETH + n as u32;
    let link = |ifindex, name: String, peer, end, nsid| Link {
        ifindex,
        name,
        mac: Some(mac(n, end)),
        kind: Some("veth".to_owned()),
        peer: Some(peer),
        peer_nsid: Some(nsid),
        up: true,
        ..Link::default()
    };
    let here = link(veth, format!("veth{n:08x}"), ETH0, 0, n as i32);
    let there = link(ETH0, "eth0".to_owned(), veth, 1, 0);
    [
        Observation::Link { netns: HOST, link: here },
        Observation::Link { netns: netns(n), link: there },
    ]
}

fn route(n: u64) -> Observation {
    let key = RouteKey { to: ip(n, 0), prefix_len: 32, table: 254, priority: 0 };
    let hops = vec![Hop { ifindex: VETH + n as u32, gateway: None }];
    Observation::Route { netns: HOST, route: Route { key, hops } }
}

fn sandbox(n: u64) -> Sandbox {
    Sandbox {
        runtime: "containerd".to_owned(),
        id: format!("{n:064x}"),
        pod: Some(pod(n)),
        attempt: Some(0),
        name: None,
        life: Life::Alive,
        word: "Ready".to_owned(),
        created: None,
        ips: vec![ip(n, 0)],
        netns_path: None,
        pid: Some(1_000 + n as u32),
        host_network: false,
    }
}

fn call(n: u64, pid: u32) -> CniCall {
    CniCall {
        task: TaskKey { pid, tid: pid, start: u64::from(pid) },
        parent: 1,
        plugin: "/opt/cni/bin/bridge".to_owned(),
        command: CniCommand::Check,
        container_id: Some(format!("{n:064x}")),
        netns_path: None,
        ifname: Some("eth0".to_owned()),
        pod: Some(pod(n)),
    }
}

/// The state of a node with this many pods.
fn node(pods: u64) -> Vec<Observation> {
    let boot = Boot {
        boot_id: "bench".to_owned(),
        node: "bench".to_owned(),
        kernel: String::new(),
        wall_offset: 0,
        host: HOST,
    };
    let sight =
        Sight { teardown_end: true, release: true, addresses: true, calls: true, tasks: true };
    let mut facts = vec![Observation::Boot(boot), Observation::Sight(sight)];
    let source = |name: &str| {
        let status = SourceStatus::Active;
        Observation::Source(Source { name: name.to_owned(), status, detail: String::new() })
    };
    facts.extend(SOURCES.map(source));
    let ended = |scope| Observation::Ended { scope, began: BootNs(1), complete: true };
    let dumped = |netns| ended(Scope::Addresses { netns });
    for n in 0..pods {
        facts.push(Observation::Netns { netns: netns(n) });
        facts.extend(pair(n));
        facts.push(Observation::Task(task(n, 1_000 + n as u32)));
        for last in 0..ADDRESSES {
            facts.push(Observation::Address { netns: netns(n), address: address(n, last) });
            facts.push(Observation::Reservation(reservation(n, last)));
        }
        facts.extend([
            Observation::Sandbox(sandbox(n)),
            route(n),
            neighbour(n, 2),
            dumped(netns(n)),
        ]);
    }
    let first = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let last = IpAddr::V4(Ipv4Addr::new(10, 255, 255, 254));
    facts.push(Observation::Range(Range {
        store: "host-local".to_owned(),
        network: "cbr0".to_owned(),
        path: "/etc/cni/net.d/10-cbr0.conflist".to_owned(),
        data_dir: None,
        shares: false,
        sets: vec![vec![RangePart { first, last, except: Vec::new() }]],
    }));
    let scopes = [
        Scope::Tasks,
        Scope::Mounts { mount_ns: 1 },
        Scope::Runtime { runtime: "containerd".to_owned() },
        Scope::Reservations { store: "host-local".to_owned() },
    ];
    facts.extend(scopes.map(ended));
    facts.extend([dumped(HOST), Observation::FirstAnswers]);
    facts
}

/// The `i`th event of a kind, in one of `pods` netns.
type Event = fn(i: u64, pods: u64) -> Observation;

const KINDS: [(&str, Event); 7] = [
    ("an address comes or goes", |i, pods| {
        let n = (i / 2) % pods;
        let netns = netns(n);
        match i % 2 {
            0 => Observation::Address { netns, address: address(n, 100) },
            _ => Observation::AddressGone { netns, key: address(n, 100).key },
        }
    }),
    ("a process comes, exits, goes", |i, pods| {
        let (n, pid) = ((i / 3) % pods, 100_000 + (i / 3 % 20_000) as u32);
        let task = task(n, pid);
        match i % 3 {
            0 => Observation::Task(task),
            1 => Observation::TaskExiting { task: task.key },
            _ => Observation::TaskReleased { task: task.key },
        }
    }),
    ("a neighbour changes", |i, pods| neighbour(i % pods, if i / pods % 2 == 0 { 4 } else { 2 })),
    ("a route comes or goes", |i, pods| {
        let n = (i / 2) % pods;
        let key = RouteKey { to: ip(n, 200), prefix_len: 32, table: 254, priority: 0 };
        let hops = vec![Hop { ifindex: VETH + n as u32, gateway: None }];
        match i % 2 {
            0 => Observation::Route { netns: HOST, route: Route { key, hops } },
            _ => Observation::RouteGone { netns: HOST, key, hops },
        }
    }),
    ("a link changes", |i, pods| {
        let [_, Observation::Link { netns, mut link }] = pair((i / 2) % pods) else {
            unreachable!()
        };
        link.up = i % 2 == 1;
        Observation::Link { netns, link }
    }),
    ("a reservation comes or goes", |i, pods| {
        let one = reservation((i / 2) % pods, 100);
        match i % 2 {
            0 => Observation::Reservation(one),
            _ => Observation::ReservationGone { store: one.store, key: one.key },
        }
    }),
    ("a CNI plugin runs", |i, pods| {
        let (n, pid) = ((i / 2) % pods, 200_000 + (i / 2 % 20_000) as u32);
        let call = call(n, pid);
        match i % 2 {
            0 => Observation::CniBegan(call),
            _ => Observation::CniEnded { task: call.task, status: Some(0), signal: None },
        }
    }),
];

fn stamp(what: Observation, at: BootNs) -> Fact {
    Fact { at, origin: Origin::Probe, what }
}

/// The facts of the first snapshot of a node with so many pods.
fn snapshot(pods: u64) -> Vec<Fact> {
    node(pods).into_iter().map(|what| stamp(what, START)).collect()
}

fn fresh() -> Engine {
    Engine::new(Settings::default(), START)
}

/// The engine once its initial work is done, and the time of its last step.
fn settled(mut engine: Engine) -> (Engine, BootNs) {
    assert!(engine.is_whole(), "it judges");
    // The initial requests are not part of an event's cost.
    let mut at = START;
    for _ in 0..200 {
        at = at.plus(STEP);
        engine.step(&[], at);
    }
    (engine, at)
}

/// `number` events of a kind, each [`STEP`] after the one before.
fn events(kind: Event, pods: u64, number: u64, at: &mut BootNs) -> Vec<Fact> {
    let event = |i| {
        *at = at.plus(STEP);
        stamp(kind(i, pods), *at)
    };
    (0..number).map(event).collect()
}

fn steps(engine: &mut Engine, events: &[Fact]) {
    let step = |event: &Fact| engine.step(std::slice::from_ref(event), event.at).changes.len();
    assert_eq!(events.iter().map(step).sum::<usize>(), 0, "nothing is wrong on this node");
}

/// Microseconds per step with one such event.
fn cost(kind: Event, pods: u64) -> f64 {
    let mut engine = fresh();
    engine.step(&snapshot(pods), START);
    let (mut engine, mut at) = settled(engine);
    let events = events(kind, pods, EVENTS, &mut at);
    let from = clock::now();
    steps(&mut engine, &events);
    clock::now().since(from) as f64 / 1e3 / EVENTS as f64
}

/// The work that `cargo xtask instructions` counts, each part in a function that it finds by its name.
fn counted() {
    let [few, many] = SIZES;
    let (one, other) = (snapshot(few), snapshot(many));
    let (mut small, mut large) = (fresh(), fresh());
    small.step(&one, START);
    scan_of_1000_netns(&mut large, &other);
    let [(mut small, at), (mut large, _)] = [small, large].map(settled);
    let all = |pods| -> Vec<Fact> {
        let mut at = at;
        KINDS.iter().flat_map(|(_, kind)| events(*kind, pods, COUNTED, &mut at)).collect()
    };
    let (one, other) = (all(few), all(many));
    events_with_10_netns(&mut small, &one);
    events_with_1000_netns(&mut large, &other);
}

#[inline(never)]
fn scan_of_1000_netns(engine: &mut Engine, facts: &[Fact]) {
    engine.step(facts, START);
}

#[inline(never)]
fn events_with_10_netns(engine: &mut Engine, events: &[Fact]) {
    steps(engine, events);
}

#[inline(never)]
fn events_with_1000_netns(engine: &mut Engine, events: &[Fact]) {
    steps(engine, events);
}

fn main() {
    if std::env::args().any(|arg| arg == "--count") {
        return counted();
    }
    for (name, kind) in KINDS {
        // The median of several runs, alternating, so that other load on the machine affects both sizes.
        let mut costs = SIZES.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (costs, pods) in costs.iter_mut().zip(SIZES) {
                costs.push(cost(kind, pods));
            }
        }
        let [small, large] = costs.map(|mut all| {
            all.sort_by(f64::total_cmp);
            all[ROUNDS / 2]
        });
        println!(
            "{name}: {small:.2} µs with {} netns, {large:.2} µs with {}: {:.2} times",
            SIZES[0],
            SIZES[1],
            large / small
        );
    }
}
