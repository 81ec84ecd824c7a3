//! Addresses and devices that move, come again, or are the same in many places.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::keepalived::Keepalived;
use support::role::{Helper, Role};
use support::{Lab, Netns};

use super::{MOVES, Zoo, v6};
use crate::neighbours;

/// A LAN: a bridge in its own netns.
fn lan(lab: &Lab, name: &str) -> Netns {
    let lan = Netns::new(lab, name);
    lan.ip("link add br0 type bridge");
    lan.ip("link set br0 up");
    lan
}

/// A netns on a LAN, with an IP.
fn member(lab: &Lab, lan: &Netns, name: &str, n: u8) -> Netns {
    let netns = Netns::new(lab, name);
    netns.veth_to("eth0", lan, name);
    lan.ip(&format!("link set {name} master br0"));
    netns.add_address(&lab.cidr(n), "eth0");
    netns
}

/// An IP that moves from one node of a cluster to the other, without an announcement: removed first, or added first, for
/// up to 200 ms.
pub(super) fn failover(lab: &Lab, zoo: &Zoo<'_>) {
    let lan = lan(lab, "lan");
    let nodes = [member(lab, &lan, "member1", 101), member(lab, &lan, "member2", 102)];
    let vip = format!("{}/32", lab.ip(MOVES));
    nodes[0].add_address(&vip, "eth0");
    let mut active = 0;
    for n in 0.. {
        let (old, new) = (&nodes[active], &nodes[1 - active]);
        let overlap = [0, 2, 50, 200][n % 4];
        if n % 8 < 4 {
            let began = Instant::now();
            new.add_address(&vip, "eth0");
            std::thread::sleep(Duration::from_millis(overlap));
            old.ip(&format!("addr del {vip} dev eth0"));
            zoo.overlap.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
        } else {
            old.ip(&format!("addr del {vip} dev eth0"));
            new.add_address(&vip, "eth0");
        }
        active = 1 - active;
        if !zoo.pause(400) {
            return;
        }
    }
}

/// Addresses and devices that change in a netns that lives on.
pub(super) fn devices(lab: &Lab, zoo: &Zoo<'_>) {
    let netns = Netns::new(lab, "devices");
    let own = lab.cidr(110);
    let v6 = format!("{}:110/64", v6(lab));
    for n in (0..=u8::MAX).cycle() {
        let host = netns.veth_to_host();
        netns.add_address(&own, "eth0");
        for _ in 0..5 {
            netns.ip(&format!("addr del {own} dev eth0"));
            netns.add_address(&own, "eth0");
        }
        netns.add_address(&v6, "eth0");
        netns.ip(&format!("link set eth0 address 02:00:00:00:5a:{n:02x}"));
        netns.ip(&format!("addr del {v6} dev eth0"));
        support::netns::ip(&format!("link del {host}"));
        if !zoo.pause(100) {
            return;
        }
    }
}

/// Addresses that every node or pod has: a DNS cache on a link-local address, an anycast service on loopback, the
/// network of a Docker in a pod.
pub(super) fn everywhere(lab: &Lab, zoo: &Zoo<'_>) {
    let all: Vec<Netns> = (0..4)
        .map(|n| {
            let netns = Netns::new(lab, &format!("every{n}"));
            netns.veth_to_host();
            netns.add_address(&lab.cidr(120 + n), "eth0");
            netns.add_address("169.254.20.10/32", "lo");
            netns.add_address(&format!("{}/32", lab.ip(125)), "lo");
            netns.ip("link add docker0 type bridge");
            netns.ip("link set docker0 up");
            netns.add_address("172.17.0.1/16", "docker0");
            netns
        })
        .collect();
    zoo.wait();
    assert_eq!(all.len(), 4);
}

/// One IP twice, on two bridges that do not reach each other.
pub(super) fn twins(lab: &Lab, zoo: &Zoo<'_>) {
    let node = Netns::new(lab, "apart");
    let twin = |n: u8| {
        let (bridge, port) = (format!("br{n}"), format!("p{n}"));
        node.ip(&format!("link add {bridge} type bridge"));
        node.ip(&format!("link set {bridge} up"));
        let netns = Netns::new(lab, &format!("twin{n}"));
        netns.veth_to("eth0", &node, &port);
        node.ip(&format!("link set {port} master {bridge}"));
        netns
    };
    let both = [twin(1), twin(2)];
    while zoo.pause(1_000) {
        both.iter().for_each(|netns| netns.add_address(&lab.cidr(130), "eth0"));
        std::thread::sleep(Duration::from_secs(2));
        both.iter()
            .for_each(|netns| drop(netns.ip(&format!("addr del {} dev eth0", lab.cidr(130)))));
    }
}

/// A StatefulSet's pod that is made anew with the same IP: each time another netns, another veth, another MAC. Its
/// neighbours talk to it.
pub(super) fn sticky(lab: &Lab, zoo: &Zoo<'_>) {
    let lan = lan(lab, "stickynet");
    let asking = member(lab, &lan, "asks", 77);
    while zoo.pause(1_000) {
        for _ in 0..20 {
            let pod = member(lab, &lan, "sticky", 78);
            let process = Helper::new(Role::Park).inside(&pod).start();
            neighbours::ask(&asking, lab.ip(78));
            std::thread::sleep(Duration::from_millis(20));
            process.end();
            // As CNI's bridge does: the device first, then the netns.
            pod.ip("link del eth0");
            drop(pod);
        }
    }
}

/// macvlan devices whose MAC belongs to their IP, as Docker and some CNI plugins choose it: the successor has both.
pub(super) fn macvlan(lab: &Lab, zoo: &Zoo<'_>) {
    let lan = lan(lab, "macnet");
    let node = Netns::new(lab, "macnode");
    node.veth_to("up0", &lan, "up1");
    lan.ip("link set up1 master br0");
    let asking = member(lab, &lan, "macasks", 79);
    while zoo.pause(300) {
        let pod = Netns::new(lab, "macpod");
        let mac = "02:42:0a:00:00:50";
        let name = pod.name();
        node.ip(&format!(
            "link add link up0 name mac0 address {mac} netns {name} type macvlan mode bridge"
        ));
        pod.ip("link set mac0 up");
        pod.add_address(&lab.cidr(80), "mac0");
        neighbours::ask(&asking, lab.ip(80));
        std::thread::sleep(Duration::from_millis(100));
        pod.ip("link del mac0");
    }
}

/// IPv6 addresses that move between nodes, with duplicate address detection and without.
pub(super) fn ipv6(lab: &Lab, zoo: &Zoo<'_>) {
    let lan = lan(lab, "lan6");
    let nodes = [member(lab, &lan, "six1", 86), member(lab, &lan, "six2", 87)];
    let prefix = v6(lab);
    for (n, node) in nodes.iter().enumerate() {
        node.add_address(&format!("{prefix}:{}/64", n + 1), "eth0");
    }
    let moves = format!("{prefix}:100/64");
    for n in 0.. {
        let (old, new) = (&nodes[n % 2], &nodes[(n + 1) % 2]);
        let nodad = if n % 4 < 2 { " nodad" } else { "" };
        new.ip(&format!("addr add {moves} dev eth0{nodad}"));
        if !zoo.pause(1_500) {
            return;
        }
        new.ip(&format!("addr del {moves} dev eth0"));
        old.ip("neigh flush dev eth0");
    }
}

/// Last octets of the IPs that keepalived moves.
pub(super) const VIPS: [u8; 2] = [90, 93];

/// A virtual IP that real keepalived moves between two nodes, with announcements: a master that is stopped, and one that
/// comes back. Between pods, which a runtime vouches for: [`crate::never`].
pub(super) fn keepalived(lab: &Lab, zoo: &Zoo<'_>) {
    routers(lab, zoo, "ka", [VIPS[0], 91, 92], Keepalived::start);
}

/// The same with `use_vmac`: the IP has a device of its own, with the MAC of RFC 5798 on both routers.
pub(super) fn vmac(lab: &Lab, zoo: &Zoo<'_>) {
    routers(lab, zoo, "vm", [VIPS[1], 94, 95], Keepalived::start_with_vmac);
}

fn routers(
    lab: &Lab,
    zoo: &Zoo<'_>,
    name: &str,
    [vip, low, high]: [u8; 3],
    start: fn(&Lab, &Netns, &str, u8) -> Keepalived,
) {
    let lan = lan(lab, &format!("{name}net"));
    let router = |which: &str, n: u8| member(lab, &lan, &format!("{name}{which}"), n);
    let (low, high) = (router("low", low), router("high", high));
    let vip = lab.ip(vip).to_string();
    let _backup = start(lab, &low, &vip, 90);
    Keepalived::await_vip(&low, &vip, true);
    while zoo.pause(500) {
        let master = start(lab, &high, &vip, 110);
        Keepalived::await_vip(&high, &vip, true);
        Keepalived::await_vip(&low, &vip, false);
        drop(master);
        Keepalived::await_vip(&high, &vip, false);
        Keepalived::await_vip(&low, &vip, true);
    }
}
