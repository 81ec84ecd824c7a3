//! Devices that not every kernel has: service IPs on a dummy device (kube-proxy with ip_vs), VRF and VLAN twins, a bond
//! whose MAC changes with its active port. In the zoo, and in the VMs by themselves.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{Lab, Netns};

use crate::healthy::Stops;
use crate::neighbours::{ask, ask_anew, set};
use crate::never;

support::tests! {
    devices_of_stock_kernels_are_innocent @ Kernel Stock,
}

/// Long enough for some rounds of each.
const TIME: Duration = Duration::from_secs(15);

/// An animal of this file: what it does until this is false.
pub(super) type Animal = fn(&Lab, &dyn Fn(u64) -> bool);

/// Each with the device that it needs.
pub(super) const ANIMALS: [(&str, &str, Animal); 4] = [
    ("service-ips", "type dummy", service_ips),
    ("vrf", "type vrf table 10", vrf_twins),
    ("vlan", "link low type vlan id 10", vlan_twins),
    ("bond", "type bond mode active-backup fail_over_mac active", bond),
];

/// The animals whose devices the kernel has.
pub(super) fn here() -> impl Iterator<Item = (&'static str, Animal)> {
    let had = ANIMALS.iter().filter(|(_, device, _)| can_be_made(device));
    had.map(|(name, _, animal)| (*name, *animal))
}

/// Whether the kernel can create such a device; tested in a temporary netns.
pub(super) fn can_be_made(what: &str) -> bool {
    let script = format!("ip link add low type veth peer name high && ip link add new {what}");
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script]).output().is_ok_and(|out| out.status.success())
}

/// With short graces nothing may be told of them, not even `pending`.
fn devices_of_stock_kernels_are_innocent(lab: &Lab) {
    let watch = never::Watch::start(lab, &never::config(), None);
    let stop = AtomicBool::new(false);
    let goes_on = |ms| {
        std::thread::sleep(Duration::from_millis(ms));
        !stop.load(Ordering::Relaxed)
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        let goes_on = &goes_on;
        let run = |(name, animal): (&'static str, Animal)| {
            println!("{name}: had by this kernel");
            scope.spawn(move || animal(lab, goes_on))
        };
        let all: Vec<_> = here().map(run).collect();
        while began.elapsed() < TIME && !all.iter().any(|one| one.is_finished()) {
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(began.elapsed() >= TIME, "an animal has ended by itself");
    });
    never::wait();
    watch.was_quiet(lab);
}

/// A LAN, and nodes on it.
fn nodes(lab: &Lab, name: &str, ips: [u8; 2]) -> (Netns, [Netns; 2]) {
    let lan = Netns::new(lab, &format!("{name}net"));
    lan.ip("link add br0 type bridge");
    lan.ip("link set br0 up");
    let nodes = ips.map(|n| {
        let node = Netns::new(lab, &format!("{name}{n}"));
        let port = format!("{name}{n}");
        node.veth_to("eth0", &lan, &port);
        lan.ip(&format!("link set {port} master br0"));
        node.add_address(&lab.cidr(n), "eth0");
        node
    });
    (lan, nodes)
}

/// kube-proxy with ip_vs: each node has the IPs of all services on `kube-ipvs0`, and answers for none of them
/// (`arp_ignore` = 1). Services come and go.
fn service_ips(lab: &Lab, goes_on: &dyn Fn(u64) -> bool) {
    let (_lan, nodes) = nodes(lab, "svc", [152, 153]);
    for node in &nodes {
        node.ip("link add kube-ipvs0 type dummy");
        set(node, "ipv4/conf/all/arp_ignore", "1");
        set(node, "ipv4/conf/all/arp_announce", "2");
        node.add_address(&format!("{}/32", lab.ip(154)), "kube-ipvs0");
    }
    let service = format!("{}/32", lab.ip(155));
    while goes_on(500) {
        nodes.iter().for_each(|node| node.add_address(&service, "kube-ipvs0"));
        ask(&nodes[0], lab.ip(153));
        std::thread::sleep(Duration::from_millis(700));
        nodes.iter().for_each(|node| drop(node.ip(&format!("addr del {service} dev kube-ipvs0"))));
    }
}

/// Two tenants of one router with the same IPs, each in a VRF of its own.
fn vrf_twins(lab: &Lab, goes_on: &dyn Fn(u64) -> bool) {
    let router = Netns::new(lab, "vrfs");
    let tenants = [1_u8, 2].map(|n| {
        let (vrf, port) = (format!("vrf{n}"), format!("ten{n}"));
        router.ip(&format!("link add {vrf} type vrf table {}", 10 + n));
        router.ip(&format!("link set {vrf} up"));
        let tenant = Netns::new(lab, &format!("tenant{n}"));
        tenant.veth_to("eth0", &router, &port);
        router.ip(&format!("link set {port} master {vrf}"));
        router.add_address(&lab.cidr(156), &port);
        tenant
    });
    let own = lab.cidr(157);
    while goes_on(500) {
        for tenant in &tenants {
            tenant.add_address(&own, "eth0");
            ask_anew(tenant, lab.ip(156));
        }
        std::thread::sleep(Duration::from_secs(1));
        tenants.iter().for_each(|tenant| drop(tenant.ip(&format!("addr del {own} dev eth0"))));
    }
}

/// Two netns with one IP, in two VLANs of one trunk.
fn vlan_twins(lab: &Lab, goes_on: &dyn Fn(u64) -> bool) {
    let node = Netns::new(lab, "trunk");
    node.ip("link add low type veth peer name high");
    node.ip("link set low up");
    node.ip("link set high up");
    let own = lab.cidr(158);
    while goes_on(300) {
        let twins = [10, 20].map(|id| {
            let twin = Netns::new(lab, &format!("vlan{id}"));
            let name = twin.name();
            node.ip(&format!("link add link low name eth{id} netns {name} type vlan id {id}"));
            twin.ip(&format!("link set eth{id} up"));
            twin.add_address(&own, &format!("eth{id}"));
            twin
        });
        std::thread::sleep(Duration::from_secs(1));
        drop(twins);
    }
}

/// A bond that takes the MAC of its active port (`fail_over_mac`): it changes with each fail-over, and is announced.
fn bond(lab: &Lab, goes_on: &dyn Fn(u64) -> bool) {
    let (lan, [asking, _other]) = nodes(lab, "bond", [159, 160]);
    let node = Netns::new(lab, "bonded");
    node.ip("link add bond0 type bond mode active-backup miimon 100 fail_over_mac active");
    for port in ["one", "two"] {
        node.ip(&format!("link add {port} type veth peer name bond{port} netns {}", lan.name()));
        lan.ip(&format!("link set bond{port} master br0"));
        lan.ip(&format!("link set bond{port} up"));
        node.ip(&format!("link set {port} master bond0"));
    }
    node.ip("link set bond0 up");
    node.add_address(&lab.cidr(161), "bond0");
    for n in 0.. {
        let port = ["one", "two"][n % 2];
        node.ip(&format!("link set bond0 type bond active_slave {port}"));
        ask(&asking, lab.ip(161));
        if !goes_on(700) {
            return;
        }
    }
}
