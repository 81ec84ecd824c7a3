//! Links that are full, numerous, or change while they are watched: what is reported stays right, and nothing unknown
//! is reported.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use support::poll::settle;
use support::{Config, Daemon, Lab, Netns, patience};

support::tests! {
    one_range_on_many_bridges_apart @ Alone Kernel,
    devices_are_renamed_while_they_are_watched @ Kernel,
    every_vlan_there_is needs [OwnMachine] @ Kernel,
    a_full_neighbour_table needs [OwnMachine] @ Kernel Stock,
}

const DUPLICATE: &str = "ip-duplicate";
/// What every Docker bridge hands out first.
const RANGE: [&str; 2] = ["172.17.0.1/16", "172.17.0.2/16"];

/// Findings about these netns.
fn about(daemon: &Daemon, netns: &[Netns]) -> Vec<Value> {
    let mut all = daemon.findings();
    all.retain(|finding| {
        netns.iter().any(|netns| finding["subject"]["netns"]["inode"] == netns.inode)
    });
    all
}

fn one_range_on_many_bridges_apart(lab: &Lab) {
    // Fewer on an emulated CPU.
    let many = if patience() > 1 { 50 } else { 500 };
    let daemon = Daemon::start(lab, &Config::default());
    let node = Netns::new(lab, "node");
    let mut pods = Vec::new();
    for n in 0..many {
        let pod = Netns::new(lab, &format!("p{n}"));
        node.ip_batch(&format!(
            "link add br{n} type bridge\nlink set br{n} up\naddr add {} dev br{n}\n",
            RANGE[0]
        ));
        node.veth_to(&format!("port{n}"), &pod, "eth0");
        node.ip(&format!("link set port{n} master br{n}"));
        pod.add_address(RANGE[1], "eth0");
        pods.push(pod);
    }
    let known = || daemon.list("addresses", &["query", "ip", "172.17.0.2"]).len();
    settle(60, || known() >= many);
    assert!(known() >= many, "{}", known());
    // Time for both looks.
    sleep(Duration::from_secs(2) * patience());
    assert_eq!(about(&daemon, &pods), Vec::<Value>::new());
    // If two of them share a bridge, a duplicate is reported.
    node.ip("link set port1 master br0");
    let both = [pods[0].inode, pods[1].inode];
    let found = daemon.await_firing(DUPLICATE, 20, |finding| {
        both.iter().any(|inode| finding["subject"]["netns"]["inode"] == *inode)
    });
    assert_eq!(about(&daemon, &pods).len(), 1);
    node.ip("link set port1 nomaster");
    daemon.await_resolved(&found, 20);
}

/// Two pods on a bridge with one IP.
struct Pair {
    node: Netns,
    pods: [Netns; 2],
}

impl Pair {
    fn new(lab: &Lab, bridge: &str) -> Self {
        let node = Netns::new(lab, "node");
        node.ip(&format!("link add br0 type bridge{bridge}"));
        node.ip("link set br0 up");
        let pods = [Netns::new(lab, "a"), Netns::new(lab, "b")];
        for (n, pod) in pods.iter().enumerate() {
            node.veth_to(&format!("port{n}"), pod, "eth0");
            node.ip(&format!("link set port{n} master br0"));
            pod.add_address(&lab.cidr(5), "eth0");
        }
        Self { node, pods }
    }

    fn await_duplicate(&self, daemon: &Daemon) -> Value {
        daemon.await_firing(DUPLICATE, 20, |finding| {
            self.pods.iter().any(|pod| finding["subject"]["netns"]["inode"] == pod.inode)
        })
    }
}

fn devices_are_renamed_while_they_are_watched(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let pair = Pair::new(lab, "");
    let found = pair.await_duplicate(&daemon);
    // A device that is up cannot be renamed, and one that is down reaches nobody.
    pair.pods[1].ip("link set eth0 down");
    daemon.await_resolved(&found, 20);
    pair.pods[1].ip("link set eth0 name net\u{1b}1");
    pair.node.ip("link set port1 down");
    pair.node.ip("link set port1 name old");
    pair.node.ip("link set port0 down");
    pair.node.ip("link set port0 name port1");
    pair.node.ip("link set old name port0");
    for port in ["port0", "port1"] {
        pair.node.ip(&format!("link set {port} up"));
    }
    pair.pods[1].ip("link set net\u{1b}1 up");
    pair.await_duplicate(&daemon);
    let ip = lab.ip(5).to_string();
    let told = daemon.list("addresses", &["query", "ip", &ip]);
    let of = |address: &&Value| address["netns"]["inode"] == pair.pods[1].inode;
    let address = told.iter().find(of).expect("the address");
    // The kernel accepts such a name, and it must not be shown; the address is reported all the same.
    let name = address["interface"]["name"].as_str().expect("a name");
    assert!(name.starts_with("ifindex:"), "{name}");
    let shown = String::from_utf8(daemon.ask(&["query", "ip", &ip]).stdout).expect("text");
    assert!(!shown.contains('\u{1b}') && shown.contains(name), "{shown}");
    let doctor = daemon.document(&["doctor"]).expect("doctor answers");
    let refused = doctor["refused"].as_array().expect("what was refused");
    let counted = |entry: &Value| {
        entry["source"] == "netlink"
            && entry["name"] == "device"
            && entry["count"].as_u64() > Some(0)
    };
    assert!(refused.iter().any(counted), "{refused:#?}");
}

fn every_vlan_there_is(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let pair = Pair::new(lab, " vlan_filtering 1");
    let vlans = |args: &str| {
        pair.node.run(|| {
            let mut bridge = Command::new("bridge");
            bridge.arg("vlan").args(args.split(' '));
            assert!(bridge.status().expect("run bridge").success(), "bridge vlan {args}");
        });
    };
    let found = pair.await_duplicate(&daemon);
    // Each port with every VLAN, and with its own one for untagged frames.
    for port in ["port0", "port1"] {
        vlans(&format!("add vid 1-4094 dev {port}"));
    }
    vlans("add vid 7 pvid untagged dev port0");
    vlans("add vid 8 pvid untagged dev port1");
    daemon.await_resolved(&found, 20);
    vlans("add vid 7 pvid untagged dev port1");
    pair.await_duplicate(&daemon);
    assert_eq!(about(&daemon, &pair.pods).len(), 1);
}

/// Runs alone: the neighbour table is shared by the whole machine.
fn a_full_neighbour_table(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let node = Netns::new(lab, "node");
    let pod = Netns::new(lab, "pod");
    node.veth_to("port0", &pod, "eth0");
    node.add_address(&lab.cidr(1), "port0");
    pod.add_address(&lab.cidr(5), "eth0");
    pod.ip(&format!("route add default via {}", lab.ip(1)));
    daemon.await_ip(lab.ip(5), pod.inode);
    // gc_thresh3 is 1,024.
    let others = Netns::new(lab, "others");
    others.ip("link add eth0 type dummy");
    others.ip("addr add 10.0.0.1/8 dev eth0");
    others.ip("link set eth0 up");
    let fill = || {
        let line = |n: u32| {
            let ip = Ipv4Addr::from_bits(0x0a00_0100 + n);
            format!("neigh replace {ip} lladdr 02:00:00:00:00:01 dev eth0 nud reachable\n")
        };
        others.run(|| {
            let lines: String = (0..1_200).map(line).collect();
            let mut ip = Command::new("ip");
            let mut child = ip
                .args(["-force", "-batch", "-"])
                .stdin(std::process::Stdio::piped())
                .stderr(std::process::Stdio::null())
                .spawn()
                .expect("run ip");
            let mut input = child.stdin.take().expect("a pipe");
            let _ = std::io::Write::write_all(&mut input, lines.as_bytes());
            drop(input);
            // Those for which there is no room fail.
            child.wait().expect("wait for ip");
        });
    };
    for _ in 0..4 {
        fill();
        for (netns, to) in [(&node, lab.ip(5)), (&pod, Ipv4Addr::new(192, 0, 2, 1))] {
            netns.run(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                let _ = socket.send_to(b"?", (to, 9));
            });
        }
        sleep(Duration::from_secs(1) * patience());
    }
    assert_eq!(about(&daemon, &[node, pod]), Vec::<Value>::new());
    assert!(daemon.list("neighbours", &["query", "neigh"]).len() >= 1_000);
}
