//! How many facts a second the pure half takes: `cargo bench -p ipwatch`.
//!
//! The load is that of a large node in bad weather: 1,000 netns with ten addresses each, in which
//! addresses come and go, processes are forked and exit, and neighbours change. The detectors and the
//! agenda run as often as the daemon lets them: after each batch of 512 facts.
//!
//! And how soon an IP is found in a netns with 4,096 addresses, as a node with IPVS has it, beside a search
//! through all of them.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::net::Ipv4Addr;

use ipwatch::clock;
use ipwatch::detect;
use ipwatch::fact::{
    Address, AddressKey, Boot, BootNs, Fact, Mac, Neighbour, NetnsRef, Origin, Sight, Task,
    TaskKey, What,
};
use ipwatch::map::{NodeMap, Policy};

const NETNS: u64 = 1_000;
const ADDRESSES: u64 = 10;
const FACTS: usize = 1_000_000;
const ROUNDS: usize = 5;
const CROWD: u64 = 4_096;

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

/// What stands before the churn begins.
fn beginning() -> Vec<What> {
    let mut facts = vec![
        What::Boot(Boot {
            boot_id: "bench".to_owned(),
            node: "bench".to_owned(),
            kernel: String::new(),
            wall_offset: 0,
            host: NetnsRef { cookie: Some(1), inode: Some(1), nsid: None },
        }),
        What::Sight(Sight {
            teardown_end: true,
            release: true,
            addresses: true,
            calls: true,
            tasks: true,
        }),
    ];
    for n in 0..NETNS {
        facts.push(What::Netns { netns: netns(n) });
        facts.push(What::Task(task(n, 1_000 + n as u32)));
        for last in 0..ADDRESSES {
            facts.push(What::Address { netns: netns(n), address: address(n, last) });
        }
    }
    facts
}

/// A repeatable stream of changes.
fn churn() -> Vec<What> {
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        // A linear congruential generator: repeatable, and good enough to spread.
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
            0 => What::Address { netns: netns(n), address: address(n, last) },
            1 => What::AddressGone { netns: netns(n), key: address(n, last).key },
            2 => What::Task(task(n, pid)),
            3 => What::TaskExiting { task: task(n, pid).key },
            4 => What::TaskReleased { task: task(n, pid).key },
            _ => What::Neighbour {
                netns: netns(n),
                neighbour: Neighbour { ifindex: 2, ip, mac, state: 2, claimed: None, admin: false },
            },
        });
    }
    facts
}

fn stamped(facts: Vec<What>, at: &mut BootNs) -> Vec<Fact> {
    let stamp = |what| {
        *at = at.plus(1_000);
        Fact { at: *at, origin: Origin::Probe, what }
    };
    facts.into_iter().map(stamp).collect()
}

fn play(map: &mut NodeMap, facts: &[Fact], policy: &Policy) -> usize {
    let mut found = 0;
    for batch in facts.chunks(512) {
        for fact in batch {
            map.apply(fact);
        }
        let now = map.now();
        map.agenda(now, policy);
        map.take_tenures();
        found += detect::detect(map, now, policy).len();
    }
    found
}

/// Finds each IP of a netns with many, by the map's order and by looking at all of them.
fn crowd() {
    let mut map = NodeMap::new(false);
    let own = netns(0);
    let facts =
        (0..CROWD).map(|n| What::Address { netns: own, address: address(n >> 8, n & 0xff) });
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
    let policy = Policy::default();
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let mut map = NodeMap::new(false);
            play(&mut map, &begin, &policy);
            let from = clock::now();
            let found = play(&mut map, &facts, &policy);
            assert_eq!(found, 0, "nothing is stuck in this load");
            facts.len() as f64 / (clock::now().since(from) as f64 / 1e9)
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!(
        "core replay: {:.2} million facts a second (median of {ROUNDS}; {} facts, {NETNS} netns)",
        rates[ROUNDS / 2] / 1e6,
        facts.len()
    );
}
