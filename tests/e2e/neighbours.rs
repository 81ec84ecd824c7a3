//! Two MACs for one IP, and neighbours that do not answer: real netns on a real bridge, with requests by the kernel
//! itself. The node is a netns of the lab, which the daemon takes for its host.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::harness::FIGURE;
use support::remedy::Shell;
use support::sandbox::Sandbox;
use support::{Config, Daemon, Lab, Netns, daemon, eventually};

support::tests! {
    two_answers_are_a_conflict_until_one_leaves @ Kernel Stock,
    a_fail_over_is_no_conflict @ Kernel,
    what_is_set_by_hand_is_no_conflict @ Kernel,
    an_ipv6_address_that_was_given_up_is_a_conflict @ Kernel,
    a_pod_that_does_not_answer_is_found @ Kernel,
    a_gateway_that_does_not_answer_is_lost @ Kernel,
    changes_are_followed @ Kernel,
}

pub(crate) const CONFLICT: &str = "neighbour-conflict";
pub(crate) const SOON: u32 = 20;

/// A node with a bridge.
struct Node<'a> {
    lab: &'a Lab,
    netns: Netns,
}

impl<'a> Node<'a> {
    fn new(lab: &'a Lab) -> Self {
        let netns = Netns::new(lab, "node");
        netns.ip("link add br0 type bridge");
        netns.ip("link set br0 up");
        Self { lab, netns }
    }

    /// Creates a netns on the bridge with this IP.
    fn pod(&self, name: &str, ip: u8) -> Netns {
        let pod = Netns::new(self.lab, name);
        let port = format!("p{name}");
        pod.veth_to("eth0", &self.netns, &port);
        self.netns.ip(&format!("link set {port} master br0"));
        pod.add_address(&self.lab.cidr(ip), "eth0");
        pod
    }

    /// Starts the daemon of this node.
    fn daemon(&self, config: &Config) -> Daemon {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.netns.path().display()));
        command.arg(daemon::binary());
        let state = self.lab.subdir("state");
        let mut daemon = Daemon::spawn_by(command, self.lab, config, &state);
        daemon.await_ready();
        daemon
    }
}

/// Makes the kernel of a netns ask for an IP on its link.
pub(crate) fn ask(netns: &Netns, ip: Ipv4Addr) {
    netns.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        // For an IP in state FAILED some of the sends fail.
        let _ = socket.send_to(b"?", (ip, 9));
    });
}

/// Like [`ask`], after its neighbour entry is removed.
pub(crate) fn ask_anew(netns: &Netns, ip: Ipv4Addr) {
    netns.ip(&format!("neigh flush to {ip}"));
    ask(netns, ip);
}

pub(crate) fn set(netns: &Netns, sysctl: &str, value: &str) {
    netns.run(|| fs::write(format!("/proc/sys/net/{sysctl}"), value).expect("set a sysctl"));
}

pub(crate) fn about(ip: impl ToString) -> impl Fn(&Value) -> bool {
    let ip = ip.to_string();
    move |finding| finding["subject"]["ip"] == *ip
}

/// Every finding about an IP, including resolved ones.
pub(crate) fn ever(daemon: &Daemon, ip: impl ToString) -> Vec<Value> {
    let mut all = daemon.list("findings", &["query", "findings", "--all"]);
    all.retain(about(ip));
    all
}

pub(crate) fn proof(finding: &Value) -> String {
    let items = finding["evidence"].as_array().expect("evidence");
    items.iter().filter_map(|item| item["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn two_answers_are_a_conflict_until_one_leaves(lab: &Lab) {
    let node = Node::new(lab);
    let (a, b, asking) = (node.pod("a", 5), node.pod("b", 5), node.pod("c", 7));
    let paper = Sandbox::make(lab, &a, &lab.cidr(5), "");
    let daemon = node.daemon(&Config::default().cache_dir(paper.cache()));
    let ip = lab.ip(5);
    daemon.await_ip(ip, a.inode);
    daemon.await_ip(ip, b.inode);
    let asked = Instant::now();
    ask_anew(&asking, ip);
    let finding = daemon.await_firing(CONFLICT, SOON, about(ip));
    println!("{FIGURE}a conflict fires {:?} after the first question", asked.elapsed());
    let text = proof(&finding);
    for part in
        [a.mac("eth0"), b.mac("eth0"), format!("net:[{}]", a.inode), "pod \"shop/api-0\"".into()]
    {
        assert!(text.contains(&part), "{part} is not in\n{text}");
    }
    assert!(text.contains(&format!("net:[{}]", b.inode)), "{text}");
    let all = ever(&daemon, ip);
    let root = all.iter().find(|one| one["code"] == "ip-duplicate").expect("its root");
    assert_eq!(finding["caused_by"], root["id"], "{all:#?}");
    assert_eq!(all.len(), 2, "{all:#?}");
    let entries = daemon.list("neighbours", &["query", "neigh", &ip.to_string()]);
    let of = |entry: &Value| entry["netns"]["inode"] == asking.inode;
    let entry = entries.iter().find(|entry| of(entry)).expect("the entry");
    assert_eq!(entry["conflict"].as_array().map(Vec::len), Some(2), "{entry:#?}");
    assert_eq!(entry["holders"].as_array().map(Vec::len), Some(2), "{entry:#?}");
    let shell = Shell::new(lab).within(&node.netns);
    [&finding, root].into_iter().for_each(|finding| shell.looks(finding));
    b.ip(&format!("addr del {} dev eth0", lab.cidr(5)));
    daemon.await_resolved(&finding, SOON);
}

fn a_fail_over_is_no_conflict(lab: &Lab) {
    let node = Node::new(lab);
    let (a, b, asking) = (node.pod("a", 5), node.pod("b", 6), node.pod("c", 7));
    let daemon = node.daemon(&Config::default());
    let ip = lab.ip(5);
    daemon.await_ip(ip, a.inode);
    let mac_is = |mac: String| {
        eventually("the entry has the MAC", SOON, || {
            ask(&asking, ip);
            let entries = daemon.list("neighbours", &["query", "neigh", &ip.to_string()]);
            entries.iter().any(|entry| entry["mac"] == *mac).then_some(())
        });
    };
    ask(&asking, ip);
    mac_is(a.mac("eth0"));
    a.ip(&format!("addr del {} dev eth0", lab.cidr(5)));
    daemon.await_no_ip(ip, a.inode);
    b.add_address(&lab.cidr(5), "eth0");
    // The kernel announces the addresses of a device when its MAC changes (`inetdev_event`).
    set(&b, "ipv4/conf/eth0/arp_notify", "1");
    let mac = format!("02:00:{:02x}:{:02x}:00:05", b.inode >> 8 & 0xff, b.inode & 0xff);
    b.ip(&format!("link set eth0 address {mac}"));
    mac_is(mac);
    // The time after which an announcement counts.
    sleep(Duration::from_secs(3));
    ask(&asking, ip);
    assert_eq!(ever(&daemon, ip), Vec::<Value>::new());
}

fn what_is_set_by_hand_is_no_conflict(lab: &Lab) {
    let node = Node::new(lab);
    let (a, asking) = (node.pod("a", 5), node.pod("c", 7));
    let daemon = node.daemon(&Config::default());
    let ip = lab.ip(5);
    let (own, other) = (a.mac("eth0"), "02:00:00:00:00:99");
    for mac in [&*own, other, &*own, other, &*own] {
        asking.ip(&format!("neigh replace {ip} lladdr {mac} dev eth0 nud permanent"));
        eventually("it is told", SOON, || {
            let entries = daemon.list("neighbours", &["query", "neigh", &ip.to_string()]);
            entries.iter().any(|entry| entry["mac"] == mac).then_some(())
        });
    }
    assert_eq!(ever(&daemon, ip), Vec::<Value>::new());
}

fn an_ipv6_address_that_was_given_up_is_a_conflict(lab: &Lab) {
    let node = Node::new(lab);
    let (a, b) = (node.pod("a", 5), node.pod("b", 6));
    let ip: std::net::Ipv6Addr = format!("fd5a:{:x}::5", a.inode & 0xffff).parse().unwrap();
    a.add_address(&format!("{ip}/64"), "eth0");
    let daemon = node.daemon(&Config::default());
    daemon.await_ip(ip, a.inode);
    b.ip(&format!("addr add {ip}/64 dev eth0"));
    let finding = daemon.await_firing(CONFLICT, SOON, about(ip));
    let text = proof(&finding);
    for part in ["dadfailed", &a.mac("eth0"), &b.mac("eth0")] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    b.ip(&format!("addr del {ip}/64 dev eth0"));
    daemon.await_resolved(&finding, SOON);
}

fn a_pod_that_does_not_answer_is_found(lab: &Lab) {
    let node = Node::new(lab);
    node.netns.add_address(&lab.cidr(1), "br0");
    let pod = node.pod("a", 5);
    let paper = Sandbox::make(lab, &pod, &lab.cidr(5), "");
    let daemon = node.daemon(&Config::default().cache_dir(paper.cache()));
    let ip = lab.ip(5);
    ask(&node.netns, ip);
    daemon.await_ip(ip, pod.inode);
    set(&pod, "ipv4/conf/all/arp_ignore", "8");
    node.netns.ip(&format!("neigh flush to {ip}"));
    let finding = eventually("a pod that does not answer is found", 40, || {
        ask(&node.netns, ip);
        sleep(Duration::from_millis(500));
        // Somebody tries again and again, which two looks must show.
        let warned = |one: &Value| one["status"] == "firing" && one["severity"] == "warning";
        let is_it = |one: &Value| one["code"] == "neighbour-failed" && warned(one);
        ever(&daemon, ip).into_iter().find(is_it)
    });
    assert_eq!(finding["subject"]["pod"]["name"], "api-0");
    Shell::new(lab).within(&node.netns).looks(&finding);
    set(&pod, "ipv4/conf/all/arp_ignore", "0");
    eventually("it is over", 40, || {
        ask(&node.netns, ip);
        ever(&daemon, ip).iter().all(|one| one["status"] == "resolved").then_some(())
    });
}

fn a_gateway_that_does_not_answer_is_lost(lab: &Lab) {
    let node = Node::new(lab);
    node.netns.add_address(&lab.cidr(1), "br0");
    let pod = node.pod("a", 5);
    let paper = Sandbox::make(lab, &pod, &lab.cidr(5), "");
    pod.ip(&format!("route add default via {}", lab.ip(1)));
    let daemon = node.daemon(&Config::default().cache_dir(paper.cache()));
    daemon.await_ip(lab.ip(5), pod.inode);
    set(&node.netns, "ipv4/conf/all/arp_ignore", "8");
    let elsewhere = Ipv4Addr::new(192, 0, 2, 1);
    let lost = "gateway-neighbour-lost";
    let finding = eventually("a gateway that does not answer is lost", 40, || {
        ask(&pod, elsewhere);
        sleep(Duration::from_millis(500));
        let firing = |one: &Value| one["status"] == "firing" && one["code"] == lost;
        daemon.findings_in(pod.inode).into_iter().find(firing)
    });
    let text = proof(&finding);
    assert!(text.contains(&format!("via {} on eth0", lab.ip(1))), "{text}");
    Shell::new(lab).within(&node.netns).looks(&finding);
    set(&node.netns, "ipv4/conf/all/arp_ignore", "0");
    eventually("it is over", 40, || {
        ask(&pod, elsewhere);
        let open = daemon.findings_in(pod.inode);
        open.iter().all(|one| one["code"] != lost).then_some(())
    });
}

fn changes_are_followed(lab: &Lab) {
    let node = Node::new(lab);
    let (a, asking) = (node.pod("a", 5), node.pod("c", 7));
    let daemon = node.daemon(&Config::default());
    let follower = daemon.follow_what(&["neigh"]);
    let ip = lab.ip(5);
    let seen = eventually("the entry is told", SOON, || {
        ask_anew(&asking, ip);
        let lines = follower.text();
        let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut entries = events.filter(|event| event["event"] == "neighbour");
        entries.find(|entry| entry["ip"] == ip.to_string() && entry["mac"] == a.mac("eth0"))
    });
    assert_eq!(seen["holders"][0]["netns"]["inode"], a.inode, "{seen:#?}");
    assert_eq!(seen["mac_of"]["netns"]["inode"], a.inode, "{seen:#?}");
}
