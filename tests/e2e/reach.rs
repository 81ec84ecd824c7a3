//! Which devices share a link, and one IP in two netns: ipwatch's answers for real devices, compared with who answers
//! whom by ARP.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::arp::{Prober, all_ask_all};
use support::harness::FIGURE;
use support::poll::{settle, until};
use support::role::{Helper, Role};
use support::{Config, Daemon, Lab, Netns, patience};

support::tests! {
    a_hundred_random_wirings_are_told_as_arp_finds_them @ Kernel,
    one_ip_in_two_netns_on_one_bridge_is_told_until_one_leaves @ Kernel Stock,
    one_ip_behind_one_router_is_told_until_its_route_goes @ Kernel,
    a_holder_that_restarts_is_one_page_and_few_updates,
    a_holder_of_many_threads_is_one_page_and_few_updates,
    a_holder_that_is_made_anew_is_one_page_and_few_updates,
}

/// Number of wirings that exist at the same time.
const AT_ONCE: usize = 25;

/// Random numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    /// A number less than `n`.
    fn roll(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Features that this kernel may lack.
#[derive(Debug, Clone, Copy)]
struct Can {
    filtering: bool,
    vlan: bool,
    macvlan: bool,
    vxlan: bool,
}

impl Can {
    fn learn(lab: &Lab) -> Self {
        let netns = Netns::new(lab, "can");
        netns.ip("link add low type veth peer name high");
        let makes = |args: &str| {
            netns.run(|| {
                let mut ip = Command::new("ip");
                ip.args(args.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
                ip.status().expect("run ip").success()
            })
        };
        Self {
            filtering: makes("link add bri type bridge vlan_filtering 1"),
            vlan: makes("link add link low name sub type vlan id 5"),
            macvlan: makes("link add link low name mac type macvlan mode bridge"),
            vxlan: makes("link add vx type vxlan id 5 remote 100.64.0.1 dstport 4789"),
        }
    }
}

/// A wiring: a netns with all bridges, like that of a node in a container, and the netns of its pods.
struct Wiring {
    node: Netns,
    pods: Vec<Netns>,
    /// Device by IP; the netns is the node, or the pod with that number.
    ends: BTreeMap<Ipv4Addr, (Option<usize>, String)>,
    ip: String,
    bridge: String,
    net: [u8; 3],
}

impl Wiring {
    fn new(lab: &Lab, number: usize, dice: &mut Dice, can: Can) -> Self {
        let node = Netns::new(lab, &format!("n{number}"));
        let [.., low] = std::process::id().to_be_bytes();
        let net = [100, 64 + low % 64, number as u8];
        let (pods, ends, ip, bridge) = Default::default();
        let mut wiring = Self { node, pods, ends, ip, bridge, net };
        wiring.bridges(dice, can);
        for pod in 0..4 {
            wiring.pods.push(Netns::new(lab, &format!("n{number}p{pod}")));
            wiring.pod(pod, dice, can);
        }
        wiring.parent(dice, can);
        wiring.tunnel(dice, can);
        wiring.finish();
        wiring
    }

    fn line(&mut self, line: &str) {
        writeln!(self.ip, "{line}").expect("a line");
    }

    /// Adds an address that is asked for.
    fn end(&mut self, pod: Option<usize>, device: &str) -> Ipv4Addr {
        let [a, b, c] = self.net;
        let ip = Ipv4Addr::new(a, b, c, self.ends.len() as u8 + 1);
        self.ends.insert(ip, (pod, device.to_owned()));
        ip
    }

    /// Two bridges, sometimes with a veth between them: never a loop.
    fn bridges(&mut self, dice: &mut Dice, can: Can) {
        for bridge in ["bri0", "bri1"] {
            let filtering = u64::from(can.filtering && dice.roll(2) == 1);
            let filtering =
                if can.filtering { format!(" vlan_filtering {filtering}") } else { String::new() };
            self.line(&format!("link add {bridge} type bridge{filtering}"));
            let state = if dice.roll(10) == 0 { "down" } else { "up" };
            self.line(&format!("link set {bridge} {state}"));
            self.end(None, bridge);
            self.vlans(bridge, true, dice, can);
        }
        if dice.roll(2) == 1 {
            self.line("link add patch0 type veth peer name patch1");
            for (port, bridge) in [("patch0", "bri0"), ("patch1", "bri1")] {
                self.line(&format!("link set {port} master {bridge} up"));
                self.vlans(port, false, dice, can);
            }
        }
    }

    /// VLAN 5 in addition to VLAN 1, or instead of it.
    fn vlans(&mut self, port: &str, own: bool, dice: &mut Dice, can: Can) {
        if !can.filtering {
            return;
        }
        let own = if own { " self" } else { "" };
        let line = match dice.roll(4) {
            0 => format!("vlan add vid 5 dev {port}{own}"),
            1 => format!("vlan add vid 5 pvid untagged dev {port}{own}"),
            2 => format!(
                "vlan del vid 1 dev {port}{own}\nvlan add vid 5 pvid untagged dev {port}{own}"
            ),
            _ => return,
        };
        writeln!(self.bridge, "{line}").expect("a line");
    }

    /// A pod's veth: on one of the bridges, isolated or not, or on none.
    fn pod(&mut self, pod: usize, dice: &mut Dice, can: Can) {
        let (port, name) = (format!("port{pod}"), self.pods[pod].name().to_owned());
        self.line(&format!("link add {port} type veth peer name eth0 netns {name}"));
        let state = if dice.roll(12) == 0 { "down" } else { "up" };
        let master = dice.roll(5);
        if master == 4 {
            self.line(&format!("link set {port} {state}"));
            self.end(None, &port);
        } else {
            let bridge = ["bri0", "bri1"][master as usize % 2];
            self.line(&format!("link set {port} master {bridge} {state}"));
            if dice.roll(3) == 0 {
                self.line(&format!("link set {port} type bridge_slave isolated on"));
            }
            self.vlans(&port, false, dice, can);
        }
        self.end(Some(pod), "eth0");
        if can.vlan && dice.roll(3) == 0 {
            self.end(Some(pod), "eth0.5");
        }
    }

    /// A bridge port whose other end is the parent of pods' devices.
    fn parent(&mut self, dice: &mut Dice, can: Can) {
        // Not ipvlan: it delivers by IP, and the answer to a probe is for 0.0.0.0.
        if !can.macvlan {
            return;
        }
        self.line("link add up0 type veth peer name up1");
        self.line("link set up0 up");
        let bridge = ["bri0", "bri1"][dice.roll(2) as usize];
        self.line(&format!("link set up1 master {bridge} up"));
        self.vlans("up1", false, dice, can);
        self.end(None, "up0");
        for child in 0..2 + dice.roll(2) as usize {
            let name = self.pods[child].name().to_owned();
            let modes = ["private", "vepa", "bridge", "bridge"];
            let what = format!("macvlan mode {}", modes[dice.roll(4) as usize]);
            self.line(&format!("link add link up0 name sub0 netns {name} type {what}"));
            self.end(Some(child), "sub0");
        }
    }

    /// Two pods with a tunnel over their own addresses.
    fn tunnel(&mut self, dice: &mut Dice, can: Can) {
        if can.vxlan && dice.roll(2) == 0 {
            self.end(Some(2), "vx0");
            self.end(Some(3), "vx0");
        }
    }

    fn ip_of(&self, pod: usize, device: &str) -> Ipv4Addr {
        let mut own = self.ends.iter().filter(|(_, end)| **end == (Some(pod), device.to_owned()));
        *own.next().expect("it has one").0
    }

    /// Creates the devices and adds the addresses.
    fn finish(&mut self) {
        self.node.ip_batch(&self.ip);
        let mut lines = vec![String::new(); self.pods.len()];
        let mut node = String::new();
        for (ip, (pod, device)) in &self.ends {
            let lines = pod.map_or(&mut node, |pod| &mut lines[pod]);
            match (device.as_str(), *pod) {
                ("eth0.5", _) => lines.push_str("link add link eth0 name eth0.5 type vlan id 5\n"),
                ("vx0", Some(pod)) => {
                    let (own, other) = (self.ip_of(pod, "eth0"), self.ip_of(5 - pod, "eth0"));
                    let ends = format!("local {own} remote {other} dstport 4789");
                    lines.push_str(&format!("link add vx0 type vxlan id 7 {ends} dev eth0\n"));
                }
                _ => {}
            }
            if pod.is_some() {
                lines.push_str(&format!("link set {device} up\n"));
            }
            lines.push_str(&format!("addr add {ip}/24 dev {device}\n"));
        }
        self.node.ip_batch(&node);
        for (pod, lines) in self.pods.iter().zip(&lines) {
            pod.ip_batch(lines);
        }
        self.node.run(|| bridge_batch(&self.bridge));
        for netns in self.pods.iter().chain([&self.node]) {
            netns.run(|| {
                std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1").expect("a sysctl")
            });
        }
    }

    /// Which IPs answer which, by ARP.
    fn by_arp(&self) -> BTreeSet<(Ipv4Addr, Ipv4Addr)> {
        let of = |pod: Option<usize>| pod.map_or(&self.node, |pod| &self.pods[pod]);
        let ends = self.ends.iter();
        let probers =
            ends.map(|(ip, (pod, device))| (*ip, Prober::new(of(*pod), device))).collect();
        let answered = all_ask_all(&probers);
        answered.iter().filter(|(a, b)| answered.contains(&(*b, *a))).copied().collect()
    }

    /// Which IPs share a link, by ipwatch.
    fn by_ipwatch(&self, daemon: &Daemon) -> BTreeSet<(Ipv4Addr, Ipv4Addr)> {
        let [a, b, c] = self.net;
        let prefix = format!("{a}.{b}.{c}.0/24");
        let mut met = BTreeSet::new();
        for address in daemon.list("addresses", &["query", "ip", &prefix, "--reach"]) {
            let own = ipv4(&address["ip"]).expect("IPv4");
            for segment in address["reach"].as_array().expect("a list") {
                for member in segment["members"].as_array().expect("members") {
                    let ips = member["ips"].as_array().expect("ips").iter().filter_map(ipv4);
                    let link = segment["kind"] == "link";
                    met.extend(ips.filter(|_| link).map(|other| (own, other)));
                }
            }
        }
        met
    }

    /// Description for a failure.
    fn told(&self) -> String {
        let ends: Vec<String> = self
            .ends
            .iter()
            .map(|(ip, (pod, device))| format!("{ip} {device} of {pod:?}"))
            .collect();
        format!("{}{}{}", self.ip, self.bridge, ends.join("\n"))
    }
}

fn ipv4(value: &Value) -> Option<Ipv4Addr> {
    value.as_str()?.parse().ok()
}

/// As wired by ptp and Calico: each pod has its own veth, and the node has one route for the IP.
fn one_ip_behind_one_router_is_told_until_its_route_goes(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let node = Netns::new(lab, "node");
    let pods = [Netns::new(lab, "one"), Netns::new(lab, "two")];
    for (n, pod) in pods.iter().enumerate() {
        node.veth_to(&format!("cali{n}"), pod, "eth0");
        pod.add_address(&lab.cidr(9), "eth0");
        daemon.await_ip(lab.ip(9), pod.inode);
    }
    let own = |finding: &Value| finding["subject"]["ip"] == lab.ip(9).to_string();
    // The time of both looks, if there were anything to see.
    std::thread::sleep(std::time::Duration::from_secs(2) * patience());
    assert_eq!(daemon.findings().iter().filter(|one| own(one)).count(), 0, "links apart");
    let route = format!("{}/32 dev cali0", lab.ip(9));
    node.ip(&format!("route add {route}"));
    let found = daemon.await_firing("ip-duplicate", 10, own);
    assert!(found["impact"].as_str().unwrap().contains("router"), "{found}");
    node.ip(&format!("route del {route}"));
    daemon.await_resolved(&found, 10);
}

fn bridge_batch(lines: &str) {
    use std::io::Write as _;
    let mut bridge = Command::new("bridge");
    let mut child = bridge.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("run bridge");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("write to bridge");
    assert!(child.wait().expect("wait for bridge").success(), "{lines}");
}

fn a_hundred_random_wirings_are_told_as_arp_finds_them(lab: &Lab) {
    let can = Can::learn(lab);
    eprintln!("{can:?}");
    let daemon = Daemon::start(lab, &Config::default());
    let mut dice = Dice(5);
    // Fewer on an emulated machine.
    let (mut left, mut number, mut met) = (if patience() > 1 { 12 } else { 100 }, 0, 0);
    while left > 0 {
        let count = AT_ONCE.min(left);
        left -= count;
        let wirings: Vec<Wiring> = (0..count)
            .map(|_| {
                number += 1;
                Wiring::new(lab, number, &mut dice, can)
            })
            .collect();
        // Concurrently, because most of the time is spent waiting for answers.
        let found: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> =
                wirings.iter().map(|wiring| scope.spawn(|| wiring.by_arp())).collect();
            asked.into_iter().map(|asked| asked.join().expect("it asks")).collect()
        });
        for (wiring, found) in wirings.iter().zip(found) {
            met += found.len();
            let mut said = BTreeSet::new();
            settle(20, || {
                said = wiring.by_ipwatch(&daemon);
                said == found
            });
            let (more, less): (Vec<_>, Vec<_>) =
                (said.difference(&found).collect(), found.difference(&said).collect());
            assert!(
                more.is_empty() && less.is_empty(),
                "said and not so: {more:?}; so and not said: {less:?}\n{}",
                wiring.told()
            );
        }
    }
    eprintln!("{number} wirings, {} pairs that meet", met / 2);
    assert!(met > 0);
}

fn one_ip_in_two_netns_on_one_bridge_is_told_until_one_leaves(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let node = Netns::new(lab, "node");
    node.ip("link add bri0 type bridge");
    node.ip("link set bri0 up");
    let pods = [Netns::new(lab, "one"), Netns::new(lab, "two")];
    let lonely = Netns::new(lab, "apart");
    for (n, pod) in pods.iter().chain([&lonely]).enumerate() {
        node.veth_to(&format!("port{n}"), pod, "eth0");
    }
    for n in [0, 1] {
        node.ip(&format!("link set port{n} master bri0"));
    }
    for pod in [&lonely, &pods[0]] {
        pod.add_address(&lab.cidr(7), "eth0");
        daemon.await_ip(lab.ip(7), pod.inode);
    }
    let own = |finding: &Value| finding["subject"]["ip"] == lab.ip(7).to_string();
    let began = std::time::Instant::now();
    pods[1].add_address(&lab.cidr(7), "eth0");
    let found = daemon.await_firing("ip-duplicate", 10, own);
    assert_eq!(found["severity"], "info", "no runtime and no store knows of either: {found:#?}");
    println!("{FIGURE}a duplicate fires {:?} after the second address", began.elapsed());
    assert_eq!(found["subject"]["netns"]["inode"], pods[1].inode, "{found}");
    assert!(found["impact"].as_str().unwrap().contains("bridge bri0"), "{found}");
    assert_eq!(daemon.findings().iter().filter(|one| own(one)).count(), 1, "one is apart");
    pods[0].ip(&format!("addr del {} dev eth0", lab.cidr(7)));
    daemon.await_resolved(&found, 10);
}

/// The process of a duplicate's holder is restarted twice a second for more than ten seconds.
fn a_holder_that_restarts_is_one_page_and_few_updates(lab: &Lab) {
    const RESTARTS: usize = 26;
    let restart = |_: &Netns, pod: &Netns| {
        let start = || Command::new("sleep").arg("60").spawn().expect("run sleep");
        for _ in 0..RESTARTS {
            let mut holder = pod.run(start);
            std::thread::sleep(Duration::from_millis(500));
            holder.kill().expect("kill it");
            holder.wait().expect("wait for it");
        }
    };
    is_one_page_and_few_updates(lab, "26 restarts of a holder", 4, restart);
}

/// The holder of a duplicate has 5,000 threads, and starts 100 processes a second in addition.
fn a_holder_of_many_threads_is_one_page_and_few_updates(lab: &Lab) {
    let crowd = |_: &Netns, pod: &Netns| {
        let mut threads = Helper::new(Role::Threads).inside(pod).arg("5000").start();
        let mut churn = Helper::new(Role::Churn).inside(pod).arg("100").arg("12").start();
        churn.tell("go");
        let made = churn.hear();
        println!("{made} processes");
        threads.signal(libc::SIGKILL);
        assert!(threads.ends(30), "it does not end");
    };
    // The number of holders in a step depends on the machine.
    is_one_page_and_few_updates(lab, "5,000 threads and 1,200 processes of a holder", 0, crowd);
}

/// A sandbox in a crash loop: a new netns and a new link with the same IP, every 2.5 s.
fn a_holder_that_is_made_anew_is_one_page_and_few_updates(lab: &Lab) {
    const LIVES: usize = 5;
    let again = |node: &Netns, pod: &Netns| {
        pod.ip(&format!("addr del {} dev eth0", lab.cidr(7)));
        for n in 0..LIVES {
            std::thread::sleep(Duration::from_secs(1));
            let next = Netns::new(lab, &format!("again{n}"));
            node.veth_to(&format!("again{n}"), &next, "eth0");
            node.ip(&format!("link set again{n} master bri0"));
            next.add_address(&lab.cidr(7), "eth0");
            std::thread::sleep(Duration::from_millis(1500));
        }
    };
    is_one_page_and_few_updates(lab, "a holder in five netns, one after the other", 0, again);
}

/// `happen` gets the node and one netns of a duplicate. At least `least` changes must be held back.
fn is_one_page_and_few_updates(
    lab: &Lab,
    what: &str,
    least: u64,
    happen: impl FnOnce(&Netns, &Netns),
) {
    let daemon = Daemon::start(lab, &Config::default());
    let follower = daemon.follow();
    let node = Netns::new(lab, "node");
    node.ip("link add bri0 type bridge");
    node.ip("link set bri0 up");
    let pods = [Netns::new(lab, "one"), Netns::new(lab, "two")];
    for (n, pod) in pods.iter().enumerate() {
        node.veth_to(&format!("port{n}"), pod, "eth0");
        node.ip(&format!("link set port{n} master bri0"));
        pod.add_address(&lab.cidr(7), "eth0");
        daemon.await_ip(lab.ip(7), pod.inode);
    }
    let own = |finding: &Value| finding["subject"]["ip"] == lab.ip(7).to_string();
    let found = daemon.await_firing("ip-duplicate", 10, own);
    let began = std::time::Instant::now();
    happen(&node, &pods[1]);
    let tens = began.elapsed().as_secs().div_ceil(10);
    let told = || -> Vec<Value> {
        let all = follower.changes_seen().into_iter();
        all.filter(|change| change["finding"]["id"] == found["id"]).collect()
    };
    let held_back = |changes: &[Value]| -> u64 {
        changes.iter().filter_map(|change| change["held_back"].as_u64()).sum()
    };
    // Queries show the last change at once; followers get it within ten seconds.
    until("what was held back is told", 15, || held_back(&told()) >= least);
    let changes = told();
    let of = |kind: &str| changes.iter().filter(|one| one["change"] == kind).count();
    assert_eq!(of("opened"), 1, "one page: {changes:#?}");
    let (updates, most) = (of("updated"), usize::try_from(tens).unwrap() + 2);
    println!("{FIGURE}{what}: {updates} updates, {} changes held back", held_back(&changes));
    assert!(updates <= most, "{updates} updates, and {most} are to be expected: {changes:#?}");
}
