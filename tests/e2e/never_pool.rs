//! Stores of clouds' plugins with IPs that no pod has: what is free, what cools down after its pod and what is
//! handed out again is as it should be, and nothing may be raised for it, not even `pending`. The files are in
//! the shapes that their owners write (for Terway: by the real bolt); no Terway and no ipamd run here.

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

/// Longer than a poll of the runtime may take to be answered.
const HEARD: Duration = Duration::from_secs(7);

/// What Terway's daemon left: pods' IPs, and those of older versions that name no container.
const RELATIONS: &[u8] = include_bytes!("../../ipwatch/src/sources/ipam/bolt/fixtures/terway.db");
/// The sandbox that has all of its pods' IPs.
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
        // A second interface that is kept warm: its own IP is up, and no store has it.
        netns.ip("link add ens6 type veth peer name wire6");
        netns.ip("link set ens6 up");
        netns.add_address(&lab.cidr(100), "ens6");
        let checkpoint = lab.subdir("aws-node").join("ipam.json");
        Self { lab, netns, runtime: FakeCri::start(lab), checkpoint }
    }

    /// A pod that is up with this IP; a route leads to it, and a pair of its own.
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

    /// ipamd has handed out these, and replaces its file.
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
        // What is handed out is up within that, also where everything is slow.
        let config = never::config().leak_age(patience()).cri(self.runtime.socket()).line(&places);
        Watch::start(self.lab, &config, Some("containerd"))
    }
}

/// As their owners do: written beside it, and renamed.
fn replace(path: &Path, bytes: &[u8]) {
    let part = path.with_extension("part");
    std::fs::write(&part, bytes).unwrap();
    std::fs::rename(part, path).unwrap();
}

/// An IP is freed with its pod, cools down, and is the next pod's; the others of the pool are nobody's.
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

    // DEL: the device goes, then ipamd lets go of the IP, and kubelet of the sandbox.
    old.netns.ip("link del eth0");
    node.handed_out(&[(&steady.container, &steady.ip)]);
    tell(&[&steady]);
    let ip = old.ip.clone();
    drop(old);
    support::poll::until("it cools down", 10, || !reserved(&ip));
    wait();

    // It is handed out again before it is up.
    let next = Container::new(lab, 3).of_pod("web-3");
    node.handed_out(&[(&steady.container, &steady.ip), (&next, &ip)]);
    support::poll::until("it is handed out again", 10, || reserved(&ip));
    let next = Pod { container: next, ..node.pod(3, 18) };
    tell(&[&steady, &next]);
    watch.daemon.await_ip(&next.ip, next.netns.inode);
    wait();
    watch.was_quiet(lab);
}

/// Relations of pods that run, then of pods that are gone, and some without a container; their IPs are up nowhere.
fn a_warm_pool_of_terway(lab: &Lab) {
    let node = Node::new(lab);
    let dir = lab.subdir("terway");
    replace(&dir.join("ResRelation.db"), RELATIONS);
    let id = TERWAYS.repeat(32);
    let sandbox = Container { id, pod: "dual".into(), uid: "uid-dual".into() };
    // A runtime without a single sandbox is not taken for the one to ask.
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
    // Terway clears up by itself, minutes after a pod: until then its IPs are neither leaked nor held.
    node.runtime.has(&other);
    std::thread::sleep(HEARD);
    wait();
    let all: Vec<Value> = watch.daemon.list("findings", &["query", "findings", "--all"]);
    let found: Vec<&Value> = all.iter().filter(|one| ours(one)).collect();
    assert!(found.is_empty(), "{found:#?}");
    watch.was_quiet(lab);
}
