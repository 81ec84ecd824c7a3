//! Many netns at the same time: the map equals the kernel's data, netns by netns, and a scrape stays small.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use support::cgroup::Memory;
use support::harness::FIGURE;
use support::poll::{settle, until};
use support::prometheus::{self, Page};
use support::{Config, Daemon, Lab, Netns};

support::tests! {
    a_thousand_netns_with_ten_thousand_addresses @ Alone,
    a_full_node_serves_what_was_recorded @ Alone,
}

const NETNS: usize = 1000;
const EACH: usize = 10;
/// What the daemon may have with them in all, in bytes, as its cgroup counts: `MemoryHigh` of the unit.
const CEILING: u64 = 96 << 20;

type Map = BTreeMap<u64, BTreeSet<String>>;

fn a_thousand_netns_with_ten_thousand_addresses(lab: &Lab) {
    // Half of them before the daemon starts, half of them while it runs.
    let mut all: Vec<Netns> = (0..NETNS / 2).map(|n| filled(lab, n)).collect();
    let (daemon, memory) = crate::worst_hour::counted(lab, &Config::default());
    all.extend((NETNS / 2..NETNS).map(|n| filled(lab, n)));
    let real: Map = all.iter().map(|netns| (netns.inode, told_by_ip(netns))).collect();
    assert_eq!(real.values().map(BTreeSet::len).sum::<usize>(), NETNS * (EACH + 1));
    let mut known = Map::new();
    settle(30, || {
        known = told_by_ipwatch(&daemon, &real);
        known == real
    });
    let wrong: Vec<_> = real.iter().filter(|(inode, ips)| known.get(inode) != Some(ips)).collect();
    let first = wrong.first().map(|(inode, ips)| (inode, ips, known.get(inode)));
    assert!(
        wrong.is_empty(),
        "{} netns differ; the first (inode, real, known): {first:?}",
        wrong.len()
    );
    if let Some(has) = memory.as_ref().map(Memory::now) {
        let (of, each) = (all.len(), EACH + 1);
        println!(
            "{FIGURE}{of} netns with {each} addresses: {} MiB, as its cgroup counts",
            has >> 20
        );
        assert!(has < CEILING, "{has} bytes");
    }
    drop(all);
    until("all of them are gone", 60, || told_by_ipwatch(&daemon, &real).is_empty());
}

/// Ten addresses on `lo` beside 127.0.0.1, because devices are not the subject.
fn filled(lab: &Lab, n: usize) -> Netns {
    let netns = Netns::new(lab, &n.to_string());
    let lines: String = (0..EACH)
        .map(|k| format!("addr add 10.{}.{}.{}/32 dev lo\n", n / 250, n % 250, k + 1))
        .collect();
    netns.ip_batch(&lines);
    netns
}

fn told_by_ip(netns: &Netns) -> BTreeSet<String> {
    let json = netns.ip_json();
    let links = json.as_array().expect("links");
    let infos = links.iter().flat_map(|link| link["addr_info"].as_array().expect("addresses"));
    infos
        .filter_map(|info| info["local"].as_str())
        .filter(|ip| ip.contains('.'))
        .map(str::to_owned)
        .collect()
}

fn told_by_ipwatch(daemon: &Daemon, wanted: &Map) -> Map {
    let mut map = Map::new();
    for address in daemon.list("addresses", &["query", "ip"]) {
        let inode = address["netns"]["inode"].as_u64().unwrap_or(0);
        let ip = address["ip"].as_str().filter(|ip| ip.contains('.'));
        if let Some(ip) = ip.filter(|_| wanted.contains_key(&inode)) {
            map.entry(inode).or_default().insert(ip.to_owned());
        }
    }
    map
}

/// The scrape of a full node with findings, of which `cargo xtask scale` makes those of a whole fleet.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/scrape.txt");
/// Pods of a full node.
const PODS: usize = 250;
/// Most series of a node without `ipwatch_address_info`, as `docs/scale.md` promises.
const SERIES: usize = 400;

/// A metric that is added, renamed or gone has to be measured again; `IPWATCH_BLESS=1` records the scrape anew.
fn a_full_node_serves_what_was_recorded(lab: &Lab) {
    let address = prometheus::free_address();
    let (_stage, config) = crate::top::node(lab, &lab.subdir("demo"));
    let _pods: Vec<Netns> = (0..PODS).map(|n| pod(lab, n)).collect();
    let metrics = format!(
        "[metrics]\nlisten = \"{address}\"\naddress_info = true\npod_cidrs = [\"10.200.0.0/16\"]\n"
    );
    let daemon = Daemon::start(lab, &Config::of(&format!("{config}{metrics}")));
    for code in ["netns-leaked", "ip-duplicate"] {
        daemon.await_firing(code, 60, |_| true);
    }
    let scrape = || {
        let accept = "application/openmetrics-text;version=1.0.0";
        prometheus::get(&address, "/metrics", accept).expect("it is served")
    };
    until("each pod's IP is served", 60, || scrape().samples("ipwatch_address_info").len() >= PODS);
    let page = scrape();
    let all = page.body.lines().filter(|line| !line.starts_with('#')).count();
    let series = all - page.samples("ipwatch_address_info").len();
    println!("{FIGURE}{series} series of a full node");
    assert!(series <= SERIES, "{series} series: a fleet has thousands of such nodes");
    if std::env::var_os("IPWATCH_BLESS").is_some() {
        fs::write(RECORDED, &page.body).expect("record the scrape");
    }
    let recorded = fs::read_to_string(PathBuf::from(RECORDED)).expect("a recorded scrape");
    let recorded = Page { status: 200, head: String::new(), body: recorded };
    let anew = "IPWATCH_BLESS=1 records it anew";
    assert_eq!(families(&page), families(&recorded), "{RECORDED}: {anew}");
    let (now, then) = (labels(&page), labels(&recorded));
    for (name, labels) in &now {
        // What has no sample in one of them has no labels there.
        let recorded = then.get(name).unwrap_or(labels);
        assert_eq!(labels, recorded, "labels of {name} in {RECORDED}: {anew}");
    }
}

/// Names and types of the metrics of a page.
fn families(page: &Page) -> BTreeSet<&str> {
    page.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect()
}

/// The names of each metric's labels.
fn labels(page: &Page) -> BTreeMap<&str, BTreeSet<&str>> {
    let samples = page.body.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| {
            let (name, rest) = line.split_once('{')?;
            let (labels, _) = rest.rsplit_once('}')?;
            let names = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0));
            Some((name, names.collect()))
        })
        .collect()
}

/// Both ends of its veth are in it: no pod can reach another.
fn pod(lab: &Lab, n: usize) -> Netns {
    let netns = Netns::new(lab, &n.to_string());
    netns.ip_batch(&format!(
        "link add eth0 type veth peer name eth1\naddr add 10.200.{}.{}/32 dev eth0\n\
         link set eth1 up\nlink set eth0 up\n",
        n / 250,
        n % 250 + 1
    ));
    netns
}
