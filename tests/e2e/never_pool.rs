//! Stores of cloud plugins with IPs that no pod has: free IPs, IPs that cool down after their pod, and IPs that are
//! assigned again are normal, and nothing may be raised for them, not even as `pending`. The files have the formats
//! of their plugins (Terway's was written by the real bolt library); neither Terway nor ipamd runs here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use support::fake_cri::FakeCri;
use support::network::Container;
use support::role::{Helper, Role, Running};
use support::{Lab, Netns, patience};

use crate::never::{self, Watch, wait};

support::tests! {
    a_warm_pool_of_aws needs [FakeCri, Fuse],
    a_warm_pool_of_terway needs [FakeCri, Fuse],
}

/// Longer than the time until a poll of the runtime is answered.
const HEARD: Duration = Duration::from_secs(7);

/// Data of Terway's daemon: pods' IPs, and those of older versions that name no container.
const RELATIONS: &[u8] = include_bytes!("../../ipwatch/src/sources/ipam/bolt/fixtures/terway.db");
/// The sandbox that owns all of its pods' IPs.
const TERWAYS: &str = "c1";

/// A pod with an IP of the pool.
struct Pod {
    container: Container,
    ip: String,
    netns: Netns,
    _pause: Running,
}

/// A node whose pods have IPs of its interfaces.
struct Node<'a> {
    lab: &'a Lab,
    netns: Netns,
    runtime: FakeCri,
    checkpoint: PathBuf,
}

impl<'a> Node<'a> {
    fn new(lab: &'a Lab) -> Self {
        let netns = Netns::new(lab, "node");
        // A warm secondary interface: its own IP is up, and in no store.
        netns.ip("link add ens6 type veth peer name wire6");
        netns.ip("link set ens6 up");
        netns.add_address(&lab.cidr(100), "ens6");
        let checkpoint = lab.subdir("aws-node").join("ipam.json");
        Self { lab, netns, runtime: FakeCri::start(lab), checkpoint }
    }

    /// A running pod with this IP, on its own veth, with a route to it.
    fn pod(&self, n: u8, ip: u8) -> Pod {
        let container = Container::new(self.lab, usize::from(n)).of_pod(&format!("web-{n}"));
        let netns = Netns::new(self.lab, &format!("c{n}"));
        netns.veth_to("eth0", &self.netns, &format!("eni{n}"));
        let ip = self.lab.ip(ip).to_string();
        netns.add_address(&format!("{ip}/32"), "eth0");
        self.netns.ip(&format!("route add {ip}/32 dev eni{n}"));
        let pause = Helper::new(Role::Park).inside(&netns).start();
        Pod { container, ip, netns, _pause: pause }
    }

    /// Replaces ipamd's file by these allocations.
    fn handed_out(&self, pods: &[(&Container, &str)]) {
        let allocation = |(container, ip): &(&Container, &str)| {
            json!({
                "networkName": "aws-cni", "containerID": container.id, "ifName": "eth0", "ipv4": ip,
                "allocationTimestamp": 1_700_000_000_000_000_000_i64,
                "metadata": { "k8sPodNamespace": "shop", "k8sPodName": container.pod },
            })
        };
        let allocations: Vec<Value> = pods.iter().map(allocation).collect();
        let text = json!({ "version": "vpc-cni-ipam/1", "allocations": allocations }).to_string();
        replace(&self.checkpoint, text.as_bytes());
    }

    fn watch(&self, terway: &Path) -> Watch {
        let places = format!(
            "[ipam]\ndata_dirs = []\nconf_dirs = []\naws_checkpoint = {:?}\nterway_dir = {terway:?}",
            self.checkpoint
        );
        // The time within which an assigned IP is up, even on a slow machine.
        let config = never::config().leak_age(patience()).cri(self.runtime.socket()).line(&places);
        Watch::start(self.lab, &config, Some("containerd"))
    }
}

/// Writes as their owners do: to another file that is renamed.
fn replace(path: &Path, bytes: &[u8]) {
    let part = path.with_extension("part");
    std::fs::write(&part, bytes).unwrap();
    std::fs::rename(part, path).unwrap();
}

/// An IP is freed with its pod, cools down, and is assigned to the next pod; the other IPs of the pool are
/// unassigned.
fn a_warm_pool_of_aws(lab: &Lab) {
    let node = Node::new(lab);
    let tell = |pods: &[&Pod]| {
        let lines = pods.iter().map(|pod| FakeCri::line(&pod.container, "READY"));
        node.runtime.has(&lines.collect::<String>());
    };
    let (steady, old) = (node.pod(1, 17), node.pod(2, 18));
    node.handed_out(&[(&steady.container, &steady.ip), (&old.container, &old.ip)]);
    tell(&[&steady, &old]);
    let watch = node.watch(&lab.subdir("terway"));
    watch.daemon.await_source("aws-vpc-cni");
    let reserved = |ip: &str| {
        let all = watch.daemon.list("reservations", &["query", "ipam", ip]);
        all.iter().any(|one| one["store"] == "aws-vpc-cni")
    };
    support::poll::until("what is handed out is known", 10, || reserved(&old.ip));
    std::thread::sleep(HEARD);

    // DEL: the device is deleted, then ipamd frees the IP, and kubelet removes the sandbox.
    old.netns.ip("link del eth0");
    node.handed_out(&[(&steady.container, &steady.ip)]);
    tell(&[&steady]);
    let ip = old.ip.clone();
    drop(old);
    support::poll::until("it cools down", 10, || !reserved(&ip));
    wait();

    // The IP is assigned again before it is up.
    let next = Container::new(lab, 3).of_pod("web-3");
    node.handed_out(&[(&steady.container, &steady.ip), (&next, &ip)]);
    support::poll::until("it is handed out again", 10, || reserved(&ip));
    let next = Pod { container: next, ..node.pod(3, 18) };
    tell(&[&steady, &next]);
    watch.daemon.await_ip(&next.ip, next.netns.inode);
    wait();
    watch.was_quiet(lab);
}

/// Relations of running pods, then of deleted pods, and some without a container; their IPs are up nowhere.
fn a_warm_pool_of_terway(lab: &Lab) {
    let node = Node::new(lab);
    let dir = lab.subdir("terway");
    replace(&dir.join("ResRelation.db"), RELATIONS);
    let id = TERWAYS.repeat(32);
    let sandbox = Container { id, pod: "dual".into(), uid: "uid-dual".into() };
    // A runtime without any sandbox is not trusted to deny one.
    let other = FakeCri::line(&Container::new(lab, 1), "READY");
    node.runtime.has(&(other.clone() + &FakeCri::line(&sandbox, "READY")));
    let watch = node.watch(&dir);
    watch.daemon.await_source("terway");
    let ours = |finding: &Value| {
        let ip = finding["subject"]["ip"].as_str().unwrap_or_default();
        ["10.0.3.", "10.0.4.", "fd00::17"].iter().any(|part| ip.starts_with(part))
    };
    let known = watch.daemon.list("reservations", &["query", "ipam", "10.0.3.17"]);
    assert_eq!(known[0]["store"], "terway", "{known:#?}");
    wait();
    // Terway cleans up minutes after a pod: until then its IPs are neither leaked nor held.
    node.runtime.has(&other);
    std::thread::sleep(HEARD);
    wait();
    let all: Vec<Value> = watch.daemon.list("findings", &["query", "findings", "--all"]);
    let found: Vec<&Value> = all.iter().filter(|one| ours(one)).collect();
    assert!(found.is_empty(), "{found:#?}");
    watch.was_quiet(lab);
}
