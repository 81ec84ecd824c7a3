//! Neighbours on the LAN: machines with two NICs, virtual routers, a node that answers for its pods.

use support::arp::Answerer;
use support::role::{Helper, Role};
use support::{Lab, Netns};

use super::Zoo;
use crate::neighbours::{ask, ask_anew, set};

/// Last octet of the IP of a machine elsewhere that has two NICs.
pub(super) const TWO_NICS: u8 = 105;

/// Those of a netns of this node that has two.
pub(super) const NEAR: [u8; 2] = [106, 107];

/// A LAN with somebody who asks, and the netns through which the machines on it answer.
fn segment(lab: &Lab, name: &str, asker: u8) -> [Netns; 3] {
    let lan = Netns::new(lab, name);
    lan.ip("link add br0 type bridge");
    lan.ip("link set br0 up");
    let plug = |who: &str| {
        let netns = Netns::new(lab, &format!("{name}{who}"));
        netns.veth_to("eth0", &lan, who);
        lan.ip(&format!("link set {who} master br0"));
        netns
    };
    let (asking, outside) = (plug("asks"), plug("far"));
    asking.add_address(&lab.cidr(asker), "eth0");
    [lan, asking, outside]
}

/// A machine with two NICs on one LAN answers with both for each of its IPs (`arp_ignore` = 0, the default). One is
/// elsewhere, one is a netns of this node.
pub(super) fn two_nics(lab: &Lab, zoo: &Zoo<'_>) {
    let [lan, asking, outside] = segment(lab, "nics", 104);
    let far = lab.ip(TWO_NICS);
    let macs: &[&str] = &["02:00:00:00:05:01", "02:00:00:00:05:02"];
    let mut answerer = Answerer::new(&outside, "eth0", &[(far, macs)]);
    let near = Netns::new(lab, "nicsnear");
    for (device, n) in [("eth0", NEAR[0]), ("eth1", NEAR[1])] {
        let port = format!("near{n}");
        near.veth_to(device, &lan, &port);
        lan.ip(&format!("link set {port} master br0"));
        near.add_address(&lab.cidr(n), device);
    }
    while zoo.pause(200) {
        [far, lab.ip(NEAR[0]), lab.ip(NEAR[1])].into_iter().for_each(|ip| ask_anew(&asking, ip));
        for _ in 0..10 {
            answerer.answer(true);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Virtual routers: with GLBP each client gets another MAC, with HSRP, VRRP and CARP one that changes its place or its
/// group. Each takes turns with the MAC of a real router.
pub(super) fn first_hop(lab: &Lab, zoo: &Zoo<'_>) {
    let [_lan, asking, outside] = segment(lab, "hops", 108);
    let routers = [
        (lab.ip(109), &["00:07:b4:00:01:01", "00:07:b4:00:01:02"] as &[&str]),
        (lab.ip(88), &["00:00:0c:07:ac:01", "00:00:0c:07:ac:02"]),
        (lab.ip(89), &["00:00:0c:9f:f0:01", "00:00:0c:9f:f0:02"]),
        (lab.ip(96), &["00:00:5e:00:01:01", "00:00:5e:00:01:02"]),
        (lab.ip(97), &["00:00:5e:00:01:0a", "02:00:00:00:97:01"]),
    ];
    let mut answerer = Answerer::new(&outside, "eth0", &routers);
    while zoo.pause(200) {
        routers.iter().for_each(|(ip, _)| ask_anew(&asking, *ip));
        for _ in 0..10 {
            answerer.answer(false);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Pods as of Calico: each has a /32 and the gateway 169.254.1.1, for which the node answers with one MAC on every
/// interface.
pub(super) fn proxy_arp(lab: &Lab, zoo: &Zoo<'_>) {
    let node = Netns::new(lab, "calico");
    node.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
    let pod = |n: u8| {
        let pod = Netns::new(lab, &format!("cali{n}"));
        let port = format!("cali{n}");
        pod.veth_to("eth0", &node, &port);
        node.ip(&format!("link set {port} address ee:ee:ee:ee:ee:ee"));
        set(&node, &format!("ipv4/conf/{port}/proxy_arp"), "1");
        let ip = lab.ip(n);
        pod.add_address(&format!("{ip}/32"), "eth0");
        pod.ip("route add 169.254.1.1 dev eth0 scope link");
        pod.ip("route add default via 169.254.1.1 dev eth0");
        node.ip(&format!("route replace {ip} dev {port} scope link"));
        let process = Helper::new(Role::Park).inside(&pod).start();
        (pod, process)
    };
    let stay = [pod(81), pod(82)];
    while zoo.pause(500) {
        let (short, process) = pod(83);
        for (asking, n) in [(&stay[0].0, 82), (&stay[1].0, 83), (&short, 81)] {
            ask(asking, lab.ip(n));
            ask_anew(asking, std::net::Ipv4Addr::new(169, 254, 1, 1));
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        process.end();
        // As CNI does: the device first. With the netns alone, the kernel would remove it some time later.
        short.ip("link del eth0");
    }
}
