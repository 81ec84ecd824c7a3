//! ipvlan reports a duplicate itself: the kernel refuses an address that another device of the same parent has
//! (`ipvlan_addr_busy`, drivers/net/ipvlan). With `ipwatch-ipam` no pod gets such an address. In the VMs, whose kernels have
//! ipvlan.
//!
//! The kernel is asked some milliseconds after the IP is reserved. A release build warns within that time, even on an
//! emulated CPU (`IPWATCH_TEST_SHIPPED`: `cargo xtask test --long`, `cargo xtask vm shipped`). A build without
//! optimisation takes a second there: for it the IPAM plugin is slowed down, like one that asks a server.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Instant;

use jiff::Timestamp;
use serde_json::json;
use support::lead::{Failure, Told};
use support::network::{self, Container, Network};
use support::role::{Helper, Role};
use support::{Daemon, Lab, Netns, is_shipped};

use super::duplicate::RELEASED;
use super::exhaustion::{a_runtime_with_a_pod, await_mounted, of_network};
use super::outlets::{Outlets, leads_to_what_it_is_about};
use super::{SOON, is_about, names, small};

support::tests! {
    the_second_add_is_refused needs [OwnMachine, Cni, FakeCri, Rotel] @ Alone Kernel Stock,
    with_the_plugin_the_second_add_gets_another_ip needs [OwnMachine, Cni, FakeCri] @ Kernel Stock,
}

const IMMINENT: &str = "ip-conflict-imminent";
/// Seconds that a reservation takes if the daemon under test is not a release build.
const SLOW_IPAM: &str = "3";

/// A network of ipvlan, and the netns that is its node.
fn a_network(lab: &Lab) -> (Netns, Network) {
    let node = Netns::new(lab, "node");
    node.ip("link add parent type dummy");
    node.ip("link set parent up");
    let ipvlan = json!({ "master": "parent" });
    let network = Network::new(lab, &node, "ipvlan", "ipvlan", &small(lab), ipvlan);
    (node, network)
}

fn the_second_add_is_refused(lab: &Lab) {
    let (_node, network) = a_network(lab);
    let (runtime, _pod) = a_runtime_with_a_pod(lab);
    let (outlets, command) = Outlets::new(lab);
    let config = outlets.config(of_network(lab).cri(runtime.socket()));
    let mut daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
    daemon.await_ready();
    daemon.await_source("containerd");
    let told = Told::by(&daemon);
    let containers: Vec<Container> = (0..6).map(|n| Container::new(lab, n)).collect();
    let netns: Vec<Netns> = (0..6).map(|n| Netns::new(lab, &format!("c{n}"))).collect();
    let ip = network.add(&containers[0], &netns[0]).unwrap();
    let holder = Helper::new(Role::Park).inside(&netns[0]).start();
    daemon.await_ip(&ip, netns[0].inode);
    let (seen, ()) = outlets.during(&ip, || {
        // A runtime that has lost the netns's path frees the IP without touching a device.
        network.del(&containers[0], None).unwrap();
        told.await_word(RELEASED, SOON, is_about(&ip));
        for n in 1..5 {
            let other = network.add(&containers[n], &netns[n]).unwrap();
            assert_ne!(other, ip, "host-local goes round");
        }
    });
    if !is_shipped() {
        let slow = network::bin_dir(lab).join("host-local.slow");
        fs::write(slow, SLOW_IPAM).expect("make the IPAM plugin slow");
    }
    let add = Timestamp::now();
    let error = network.add(&containers[5], &netns[5]).expect_err("the address is in use");
    let at = Instant::now();
    assert!(error.said.contains("address already in use"), "{error:?}");
    let pid = holder.pid().to_string();
    let named = |finding: &serde_json::Value| {
        names(&finding["holders"].to_string(), &[&pid], "the process in it")
    };
    let failure = Failure { case: "ipvlan: address already in use", at, slow: true };
    told.lead(&failure, RELEASED, is_about(&ip), named);
    let failure = Failure { slow: false, ..failure };
    told.lead(&failure, IMMINENT, is_about(&ip), named);
    let finding = daemon.await_firing(RELEASED, SOON, is_about(&ip));
    seen.assert_before(add, "an IP of ipvlan that is held", &finding);
    leads_to_what_it_is_about(&outlets.collector, &seen.span, &ip, "ipvlan", &containers[0].id);
}

/// The plugin asks before the kernel is asked: no pod fails.
fn with_the_plugin_the_second_add_gets_another_ip(lab: &Lab) {
    let (node, plain) = a_network(lab);
    let ours = plain.prevented(lab);
    let (runtime, _pod) = a_runtime_with_a_pod(lab);
    // Its node is the netns of the network: the IP must be on a device that leads there.
    let daemon = node.run(|| Daemon::start(lab, &of_network(lab).cri(runtime.socket())));
    daemon.await_source("containerd");
    let containers: Vec<Container> = (0..3).map(|n| Container::new(lab, n)).collect();
    let [first, second, third] = [0, 1, 2].map(|n| Netns::new(lab, &format!("c{n}")));
    let ip = ours.add(&containers[0], &first).unwrap();
    await_mounted(&daemon, &ip, &first);
    ours.del(&containers[0], None).unwrap();
    daemon.await_firing(RELEASED, SOON, is_about(&ip));
    // host-local hands out the one after the last.
    let last = ours.reservations().join("last_reserved_ip.0");
    let again = || {
        let first: Ipv4Addr = ip.parse().unwrap();
        fs::write(&last, Ipv4Addr::from_bits(first.to_bits() - 1).to_string()).unwrap();
    };
    again();
    let error = plain.add(&containers[1], &second).expect_err("the address is in use");
    assert!(error.said.contains("address already in use"), "{error:?}");
    // A runtime runs DEL after a failed ADD.
    plain.del(&containers[1], Some(&second)).unwrap();
    // An emulated CPU may take longer than the two seconds that an answer may have at most: then the kernel refuses.
    let other = (0..3).find_map(|_| {
        again();
        let added = ours.add(&containers[2], &third);
        if let Err(error) = &added {
            assert!(error.said.contains("address already in use"), "{error:?}");
            ours.del(&containers[2], Some(&third)).unwrap();
        }
        added.ok()
    });
    assert_ne!(other.expect("the daemon is asked, and answers in time"), ip);
    let parked = fs::read_to_string(ours.reservations().join(&ip)).unwrap();
    assert!(parked.starts_with("ipwatch-parked-"), "{parked}");
    // Once the IP is down, the next call releases it.
    let inode = first.inode;
    drop(first);
    daemon.await_no_ip(&ip, inode);
    ours.del(&containers[2], Some(&third)).unwrap();
    let left = fs::read_dir(ours.reservations()).unwrap().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains('.')).collect();
    assert_eq!(left, ["last_reserved_ip.0"]);
}
