//! IP → netns → device: what is answered, and what is answered no more.

use std::time::{Duration, Instant};

use serde_json::Value;
use support::poll::until;
use support::role::{Helper, Role};
use support::{Config, Daemon, Lab, Netns};

support::tests! {
    a_fresh_address_is_answered needs [SharedDaemon] @ Kernel Stock Rung,
    what_stood_before_the_start_is_known @ Kernel Stock Rung,
    a_deleted_address_disappears needs [SharedDaemon] @ Kernel Stock Rung,
    a_flush_takes_all needs [SharedDaemon] @ Kernel Stock Rung,
    a_torn_down_netns_disappears needs [SharedDaemon] @ Kernel Stock Rung,
    an_address_on_loopback_alone_is_known needs [SharedDaemon] @ Kernel Stock Rung,
    a_moved_device_takes_its_addresses_along needs [SharedDaemon] @ Kernel Stock Rung,
    a_device_that_is_moved_to_where_it_is_keeps_its_addresses needs [SharedDaemon] @ Kernel Stock Rung,
    a_peer_is_no_holder needs [SharedDaemon] @ Kernel Stock Rung,
    an_ipv6_address_whose_peer_changed_leaves_nothing needs [SharedDaemon] @ Kernel Stock Rung,
    bridges_and_macvlans_are_told needs [SharedDaemon] @ Kernel Stock Rung,
    a_neighbour_is_told needs [SharedDaemon] @ Kernel Stock Rung,
    every_way_to_ask_finds_the_same needs [SharedDaemon] @ Rung,
    watch_tells_an_address_that_comes_and_goes needs [SharedDaemon] @ Rung,
    a_name_with_terminal_escapes_is_escaped needs [SharedDaemon] @ Rung,
}

/// A netns with eth0, a veth whose peer is on the host, as a pod has it.
fn pod(lab: &Lab, hint: &str) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns
}

fn a_fresh_address_is_answered(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "fresh");
    let holder = Helper::new(Role::Park).inside(&netns).comm("java").start();
    netns.add_address(&lab.cidr(7), "eth0");
    netns.add_address("2001:db8::7/64", "eth0");
    for (ip, len) in [(lab.ip(7).to_string(), 24), ("2001:db8::7".to_owned(), 64)] {
        let is = |h: &Value| h["kind"] == "process" && h["pid"] == holder.pid();
        let found = daemon.await_holder(&ip, netns.inode, "java", is);
        assert_eq!(found["comm"], "java");
        // A device's name and MAC come in separate messages.
        until("the device is told", 5, || {
            let address = daemon.await_ip(&ip, netns.inode);
            address["interface"]["name"] == "eth0"
                && address["interface"]["mac"] == netns.mac("eth0")
                && address["interface"]["kind"] == "veth"
                // The mount table is read separately as well.
                && address["netns"]["path"] == netns.path().to_str().unwrap()
        });
        let address = daemon.await_ip(&ip, netns.inode);
        assert_eq!(address["prefix_len"], len, "{address}");
        assert_eq!(address["scope"], "global", "{address}");
        assert_eq!(address["netns"]["cookie"].as_u64(), netns.cookie, "{address}");
    }
}

fn what_stood_before_the_start_is_known(lab: &Lab) {
    let netns = pod(lab, "old");
    netns.add_address(&lab.cidr(7), "eth0");
    let holder = Helper::new(Role::Park).inside(&netns).start();
    let daemon = Daemon::start(lab, &Config::default());
    // No waiting: the first answer comes after the first snapshot.
    let address = daemon.ip_in(lab.ip(7), netns.inode).expect("known at once");
    let pids: Vec<&Value> =
        address["holders"].as_array().unwrap().iter().map(|holder| &holder["pid"]).collect();
    assert!(pids.iter().any(|pid| **pid == holder.pid()), "{address}");
}

fn a_deleted_address_disappears(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "del");
    for cidr in [lab.cidr(7), "2001:db8::8/64".to_owned()] {
        let ip = cidr.split('/').next().unwrap();
        netns.add_address(&cidr, "eth0");
        daemon.await_ip(ip, netns.inode);
        netns.ip(&format!("addr del {cidr} dev eth0"));
        daemon.await_no_ip(ip, netns.inode);
    }
}

/// Deleting a primary address deletes its secondaries with it.
fn a_flush_takes_all(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "flush");
    for n in [7, 8, 9] {
        netns.add_address(&lab.cidr(n), "eth0");
        daemon.await_ip(lab.ip(n), netns.inode);
    }
    netns.ip(&format!("addr del {} dev eth0", lab.cidr(7)));
    for n in [7, 8, 9] {
        daemon.await_no_ip(lab.ip(n), netns.inode);
    }
    netns.add_address(&lab.cidr(10), "eth0");
    daemon.await_ip(lab.ip(10), netns.inode);
    netns.ip("link del eth0");
    daemon.await_no_ip(lab.ip(10), netns.inode);
}

fn a_torn_down_netns_disappears(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "gone");
    netns.add_address(&lab.cidr(7), "eth0");
    daemon.await_ip(lab.ip(7), netns.inode);
    netns.unname();
    daemon.await_no_ip(lab.ip(7), netns.inode);
    let left = daemon.list("addresses", &["query", "netns"]);
    assert!(
        !left
            .iter()
            .any(|address| address["netns"]["cookie"].as_u64() == netns.cookie
                && netns.cookie.is_some()),
        "{left:?}"
    );
}

/// No veth gives such a netns an nsid: it must be found and assigned one.
fn an_address_on_loopback_alone_is_known(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = Netns::new(lab, "lo");
    netns.ip(&format!("addr add {}/32 dev lo", lab.ip(7)));
    daemon.await_ip(lab.ip(7), netns.inode);
    netns.ip(&format!("addr add {}/32 dev lo", lab.ip(8)));
    daemon.await_ip(lab.ip(8), netns.inode);
}

fn a_moved_device_takes_its_addresses_along(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let (from, to) = (pod(lab, "from"), Netns::new(lab, "to"));
    from.add_address(&lab.cidr(7), "eth0");
    daemon.await_ip(lab.ip(7), from.inode);
    from.ip(&format!("link set eth0 netns {}", to.name()));
    daemon.await_no_ip(lab.ip(7), from.inode);
    to.add_address(&lab.cidr(7), "eth0");
    to.ip("link set eth0 up");
    let address = daemon.await_ip(lab.ip(7), to.inode);
    assert_eq!(address["netns"]["cookie"].as_u64(), to.cookie);
}

/// The kernel reports success for such a move and moves nothing: root in a container must not be able to hide an IP
/// this way.
fn a_device_that_is_moved_to_where_it_is_keeps_its_addresses(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "stay");
    netns.add_address(&lab.cidr(7), "eth0");
    daemon.await_ip(lab.ip(7), netns.inode);
    netns.ip(&format!("link set eth0 netns {}", netns.name()));
    // Any event about the move is read before this one.
    netns.add_address(&lab.cidr(8), "eth0");
    daemon.await_ip(lab.ip(8), netns.inode);
    assert!(daemon.ip_in(lab.ip(7), netns.inode).is_some(), "it is there still");
}

fn a_peer_is_no_holder(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "ptp");
    netns.ip(&format!("addr add {} peer {} dev eth0", lab.ip(7), lab.ip(8)));
    daemon.await_ip(lab.ip(7), netns.inode);
    assert!(daemon.ip_in(lab.ip(8), netns.inode).is_none(), "the far end is not held here");
}

/// The kernel writes the new peer into the existing address (`inet6_addr_modify`, net/ipv6/addrconf.c).
fn an_ipv6_address_whose_peer_changed_leaves_nothing(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "peer6");
    for (change, peer) in [("add", "fd77::2/128"), ("change", "fd77::3/128")] {
        netns.ip(&format!("addr {change} fd77::1 peer {peer} dev eth0 nodad"));
        daemon.await_ip("fd77::1", netns.inode);
    }
    // Any event about the change is read before this one.
    netns.add_address("fd77::9/128", "eth0");
    daemon.await_ip("fd77::9", netns.inode);
    let all = daemon.list("addresses", &["query", "ip", "fd77::1"]);
    let here = all.iter().filter(|address| address["netns"]["inode"] == netns.inode).count();
    assert_eq!(here, 1, "{all:?}");
    netns.ip("addr del fd77::1 peer fd77::3/128 dev eth0");
    daemon.await_no_ip("fd77::1", netns.inode);
}

fn bridges_and_macvlans_are_told(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let (node, inner) = (Netns::new(lab, "node"), Netns::new(lab, "inner"));
    node.ip("link add br0 type bridge");
    node.veth_to("v0", &inner, "eth0");
    node.ip("link set v0 master br0");
    node.add_address(&lab.cidr(1), "br0");
    node.add_address(&lab.cidr(2), "v0");
    inner.ip("link add mv0 link eth0 type macvlan mode bridge");
    inner.add_address(&lab.cidr(3), "mv0");
    let told = |n, netns: &Netns, name: &str, kind: &str, master: Value| {
        until(&format!("{name} is told whole"), 10, || {
            let interface = daemon.await_ip(lab.ip(n), netns.inode)["interface"].take();
            interface["name"] == name && interface["kind"] == kind && interface["master"] == master
        });
    };
    told(1, &node, "br0", "bridge", Value::Null);
    told(2, &node, "v0", "veth", "br0".into());
    told(3, &inner, "mv0", "macvlan", Value::Null);
}

fn a_neighbour_is_told(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "neigh");
    netns.add_address(&lab.cidr(7), "eth0");
    daemon.await_ip(lab.ip(7), netns.inode);
    let (ip, mac) = (lab.ip(9).to_string(), "02:00:00:00:00:99");
    netns.ip(&format!("neigh add {ip} lladdr {mac} dev eth0 nud permanent"));
    let told = |question: &[&str]| {
        let all = daemon.list("neighbours", question);
        all.into_iter().find(|entry| entry["netns"]["inode"] == netns.inode && entry["ip"] == ip)
    };
    let entry = support::eventually("the neighbour is told", 10, || told(&["query", "neigh"]));
    assert_eq!((&entry["mac"], &entry["state"]), (&mac.into(), &"PERMANENT".into()), "{entry}");
    assert_eq!(entry["interface"]["name"], "eth0", "{entry}");
    assert_eq!(entry["netns"]["cookie"].as_u64(), netns.cookie, "{entry}");
    assert!(told(&["query", "neigh", &ip]).is_some(), "by its IP");
    assert!(told(&["query", "neigh", &lab.ip(8).to_string()]).is_none(), "by another");
    netns.ip(&format!("neigh del {ip} dev eth0"));
    until("it is gone", 10, || told(&["query", "neigh"]).is_none());
}

fn every_way_to_ask_finds_the_same(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "ask");
    netns.add_address(&lab.cidr(7), "eth0");
    let holder = Helper::new(Role::Park).inside(&netns).start();
    let is = |h: &Value| h["pid"] == holder.pid();
    daemon.await_holder(lab.ip(7), netns.inode, "the helper", is);
    let is = |h: &Value| h["kind"] == "mount";
    daemon.await_holder(lab.ip(7), netns.inode, "its mount", is);
    let (inode, pid) = (netns.inode.to_string(), holder.pid().to_string());
    let path = netns.path().to_str().unwrap();
    let mut questions = vec![
        vec!["ip".to_owned(), lab.cidr(0)],
        vec!["netns".to_owned(), inode],
        vec!["netns".to_owned(), path.to_owned()],
        vec!["netns".to_owned(), netns.name().to_owned()],
        vec!["pid".to_owned(), pid],
    ];
    questions.extend(netns.cookie.map(|cookie| vec!["netns".to_owned(), cookie.to_string()]));
    for question in questions {
        let words: Vec<&str> =
            std::iter::once("query").chain(question.iter().map(String::as_str)).collect();
        let found = daemon.list("addresses", &words);
        let ip = Value::from(lab.ip(7).to_string());
        assert!(found.iter().any(|address| address["ip"] == ip), "{words:?}: {found:?}");
    }
    let nobody = daemon.ask(&["query", "ip", "192.0.2.123"]);
    assert_eq!(nobody.status.code(), Some(3), "not found");
}

fn watch_tells_an_address_that_comes_and_goes(lab: &Lab) {
    use std::io::{BufRead as _, BufReader};
    let daemon = Daemon::shared(lab);
    let mut watch = std::process::Command::new(support::daemon::binary())
        .arg("--socket")
        .arg(daemon.socket())
        .args(["watch", "-o", "jsonl"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let (sender, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    // The next event about an IP, if it is told within a second.
    let next = |ip: std::net::Ipv4Addr| {
        let until = Instant::now() + Duration::from_secs(1) * support::patience();
        std::iter::from_fn(|| told.recv_timeout(until - Instant::now()).ok())
            .map(|line| serde_json::from_str::<Value>(&line).expect("a JSON document a line"))
            .find(|event| event["ip"] == ip.to_string())
    };
    let netns = pod(lab, "watch");
    let come_and_go = |host: u8| {
        netns.add_address(&lab.cidr(host), "eth0");
        daemon.await_ip(lab.ip(host), netns.inode);
        netns.ip(&format!("addr del {} dev eth0", lab.cidr(host)));
    };
    support::eventually("the watcher has connected", 20, || {
        come_and_go(6);
        next(lab.ip(6))
    });
    come_and_go(7);
    let event = || support::eventually("an event", 20, || next(lab.ip(7)));
    assert_eq!(event()["event"], "held");
    assert_eq!(event()["event"], "released");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

fn a_name_with_terminal_escapes_is_escaped(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = pod(lab, "esc");
    netns.add_address(&lab.cidr(7), "eth0");
    let holder = Helper::new(Role::Park).inside(&netns).comm("\x1b[31mred\x07\n").start();
    let is = |h: &Value| h["pid"] == holder.pid();
    let found = daemon.await_holder(lab.ip(7), netns.inode, "the helper", is);
    assert_eq!(found["comm"], "\x1b[31mred\x07\n", "JSON carries the name as it is");
    for format in ["table", "wide", "yaml"] {
        let out = daemon.ask(&["query", "ip", &lab.ip(7).to_string(), "-o", format]);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains("red"), "{format}: the name is shown: {text:?}");
        assert!(!text.contains(['\x1b', '\x07']), "{format}: but harmless: {text:?}");
    }
}
