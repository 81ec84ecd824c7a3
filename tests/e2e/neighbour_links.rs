//! Two MACs for one IP on links that are not bridges: pods on one parent device, and a tunnel. The holders of the IP
//! on both ends are named, and the finding is resolved when one releases it. (Pods on their own veths share no link:
//! there a duplicate IP is found at the router, see [`crate::reach`].)

use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use support::harness::FIGURE;
use support::{Config, Daemon, Lab, Netns, daemon, eventually};

use crate::neighbours::{CONFLICT, SOON, about, ask_anew, ever, proof};

support::tests! {
    two_pods_of_one_parent_are_a_conflict_until_one_leaves needs [Macvlan] @ Kernel Stock,
    two_ends_of_a_tunnel_are_a_conflict_until_one_leaves needs [Vxlan] @ Kernel,
}

/// A holder of the IP: the netns and its device.
type Owner<'a> = (&'a Netns, &'a str);

/// Starts the daemon on a node that is a netns.
fn daemon_in(lab: &Lab, node: &Netns) -> Daemon {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", node.path().display())).arg(daemon::binary());
    let mut daemon = Daemon::spawn_by(command, lab, &Config::default(), &lab.subdir("state"));
    daemon.await_ready();
    daemon
}

/// Both get the IP, `asking` asks for it, and the conflict names both until the second gives it up.
fn conflict(lab: &Lab, daemon: &Daemon, link: &str, owners: [Owner<'_>; 2], asking: &Netns) {
    let (ip, cidr) = (lab.ip(5), lab.cidr(5));
    for (netns, device) in owners {
        netns.add_address(&cidr, device);
        daemon.await_ip(ip, netns.inode);
    }
    let asked = Instant::now();
    // A request may be lost while a link comes up; the kernel repeats it after a second.
    let finding = eventually("two answers are a conflict", SOON, || {
        ask_anew(asking, ip);
        std::thread::sleep(std::time::Duration::from_millis(200));
        let firing = |one: &Value| one["status"] == "firing" && one["code"] == CONFLICT;
        ever(daemon, ip).into_iter().find(firing)
    });
    println!("{FIGURE}a conflict on {link} fires {:?} after the first question", asked.elapsed());
    let text = proof(&finding);
    for (netns, device) in owners {
        for part in [netns.mac(device), format!("net:[{}]", netns.inode)] {
            assert!(text.contains(&part), "{part} is not in\n{text}");
        }
    }
    let all = ever(daemon, ip);
    let conflicts = all.iter().filter(|one| one["code"] == CONFLICT).count();
    assert_eq!(conflicts, 1, "one link: {all:#?}");
    assert!(all.iter().all(about(ip)));
    let (netns, device) = owners[1];
    netns.ip(&format!("addr del {cidr} dev {device}"));
    daemon.await_resolved(&finding, SOON);
}

fn two_pods_of_one_parent_are_a_conflict_until_one_leaves(lab: &Lab) {
    let node = Netns::new(lab, "node");
    node.ip("link add up0 type veth peer name up1");
    node.ip("link set up0 up");
    node.ip("link set up1 up");
    let pod = |name: &str| {
        let pod = Netns::new(lab, name);
        let kind = "macvlan mode bridge";
        node.ip(&format!("link add link up0 name eth0 netns {} type {kind}", pod.name()));
        pod.ip("link set eth0 up");
        pod
    };
    let (a, b, asking) = (pod("a"), pod("b"), pod("c"));
    asking.add_address(&lab.cidr(7), "eth0");
    let daemon = daemon_in(lab, &node);
    conflict(lab, &daemon, "macvlan", [(&a, "eth0"), (&b, "eth0")], &asking);
}

/// A node's pods on a bridge with a tunnel; a device at the other end has the same IP.
fn two_ends_of_a_tunnel_are_a_conflict_until_one_leaves(lab: &Lab) {
    let (node, far) = (Netns::new(lab, "node"), Netns::new(lab, "far"));
    node.veth_to("under", &far, "under");
    let ends = [(&node, "100.64.0.1", "100.64.0.2"), (&far, "100.64.0.2", "100.64.0.1")];
    for (netns, own, other) in ends {
        netns.add_address(&format!("{own}/24"), "under");
        let ends = format!("local {own} remote {other} dstport 4789");
        netns.ip(&format!("link add vx0 type vxlan id 7 {ends} dev under"));
        netns.ip("link set vx0 up");
    }
    node.ip("link add br0 type bridge");
    node.ip("link set br0 up");
    node.ip("link set vx0 master br0");
    let pod = |name: &str| {
        let pod = Netns::new(lab, name);
        pod.veth_to("eth0", &node, &format!("p{name}"));
        node.ip(&format!("link set p{name} master br0"));
        pod
    };
    let (a, asking) = (pod("a"), pod("c"));
    asking.add_address(&lab.cidr(7), "eth0");
    let daemon = daemon_in(lab, &node);
    conflict(lab, &daemon, "vxlan", [(&a, "eth0"), (&far, "vx0")], &asking);
}
