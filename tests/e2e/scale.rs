//! Many netns at the same time: the map equals the kernel's data, netns by netns.

use std::collections::{BTreeMap, BTreeSet};

use support::poll::{settle, until};
use support::{Config, Daemon, Lab, Netns};

support::tests! {
    a_thousand_netns_with_ten_thousand_addresses @ Alone,
}

const NETNS: usize = 1000;
const EACH: usize = 10;

type Map = BTreeMap<u64, BTreeSet<String>>;

fn a_thousand_netns_with_ten_thousand_addresses(lab: &Lab) {
    // Half of them before the daemon starts, half of them while it runs.
    let mut all: Vec<Netns> = (0..NETNS / 2).map(|n| filled(lab, n)).collect();
    let daemon = Daemon::start(lab, &Config::default());
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
