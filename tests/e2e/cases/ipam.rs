//! Failures of IPAM and its plugins: an empty store entry, a DEL that fails, a DEL that affects the wrong pod, and
//! what a failed ADD leaves.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};
use support::fake_cri::FakeCri;
use support::harness::case;
use support::network::{self, Container, Network};
use support::pod::Containerd;
use support::remedy::{Shell, change};
use support::role::{Helper, Role};
use support::{Daemon, Lab, Netns};

use super::{SOON, config, evidence};

support::tests! {
    an_empty_reservation_is_told needs [Cni],
    an_empty_cached_result_is_told,
    a_del_that_fails_again_and_again_is_told needs [Containerd],
    a_late_del_takes_the_successors_network needs [Cni, FakeCri],
    both_ends_of_a_pods_veth_on_the_node @ Kernel,
}

const UNREADABLE: &str = "ipam-store-unreadable";
const FAILING: &str = "cni-del-failing";
const SUCCESSOR: &str = "cni-del-hits-successor";
const ORPHANED: &str = "veth-orphaned";

/// Whether the finding's evidence contains this.
fn tells_of(what: &str) -> impl Fn(&Value) -> bool {
    move |finding| evidence(finding).contains(what)
}

fn a_network(lab: &Lab, node: &Netns, plugin: &str) -> Network {
    let subnet = format!("{}/26", lab.ip(0));
    Network::new(lab, node, "net", plugin, &subnet, json!({ "bridge": "br0" }))
}

fn of_networks(lab: &Lab) -> support::Config {
    config().leak_age(2).networks(&[network::conf_dir(lab)], &network::bin_dir(lab))
}

/// What a crash during a write leaves. host-local skips such a file, and its IP is lost.
fn an_empty_reservation_is_told(lab: &Lab) {
    let node = Netns::new(lab, "node");
    let network = a_network(lab, &node, "bridge");
    let netns = Netns::new(lab, "c1");
    network.add(&Container::new(lab, 1), &netns).unwrap();
    let daemon = Daemon::start(lab, &of_networks(lab));
    let empty = network.reservations().join(lab.ip(9).to_string());
    fs::write(&empty, "").unwrap();
    let finding = daemon.await_firing(UNREADABLE, SOON, tells_of(empty.to_str().unwrap()));
    assert_eq!(finding["severity"], "warning", "{finding:#?}");
    fs::remove_file(&empty).unwrap();
    daemon.await_resolved(&finding, SOON);
    case("an empty reservation", UNREADABLE, "the file", "yes, when it is gone");
}

/// An empty result, which makes kubelet retry forever.
fn an_empty_cached_result_is_told(lab: &Lab) {
    let cache = lab.subdir("cache");
    let daemon = Daemon::start(lab, &config().cache_dir(&cache));
    let empty = cache.join("net-0123456789-eth0");
    fs::write(&empty, "").unwrap();
    let finding = daemon.await_firing(UNREADABLE, SOON, tells_of(empty.to_str().unwrap()));
    fs::remove_file(&empty).unwrap();
    daemon.await_resolved(&finding, SOON);
    case("an empty cached CNI result", UNREADABLE, "the file", "yes, when it is gone");
}

fn a_del_that_fails_again_and_again_is_told(lab: &Lab) {
    let containerd = Containerd::start(lab);
    let config =
        config().cri(containerd.socket()).networks(&containerd.conf_dirs(), &containerd.bin_dir());
    let daemon = Daemon::start(lab, &config);
    daemon.await_source("containerd");
    let pod = containerd.pod("web-0").sandbox();
    containerd.fail_del(true);
    let stop = || containerd.begin_stop(&pod).wait().unwrap().success();
    // Like kubelet, which retries forever.
    let mut tries = 0;
    support::poll::until("it is told", SOON, || {
        assert!(!stop(), "it cannot be stopped");
        tries += 1;
        let all = daemon.findings();
        let mut mine = all.iter().filter(|f| f["subject"]["container"]["id"] == *pod.sandbox);
        mine.any(|finding| finding["code"] == FAILING && finding["status"] == "firing")
    });
    assert!(tries > 1, "one failure is none");
    // It may fire before the runtime has told that the sandbox is NotReady.
    let finding = daemon.await_firing(FAILING, SOON, |finding| {
        finding["subject"]["container"]["id"] == *pod.sandbox
            && finding["steps"].to_string().contains("crictl stopp ")
    });
    assert_eq!(finding["severity"], "warning", "{finding:#?}");
    assert_eq!(finding["subject"]["pod"]["name"], pod.name.as_str(), "{finding:#?}");
    assert!(evidence(&finding).contains("bridge"), "{finding:#?}");
    let shell = Shell::new(lab).with_runtime(containerd.socket());
    shell.looks(&finding);
    let command = change(&finding, "crictl stopp ");
    let is_there = || {
        let list = shell.run("crictl pods");
        String::from_utf8_lossy(&list.stdout).contains(&*pod.sandbox)
    };
    // While DEL fails, the sandbox must not be removed: nobody would run DEL for it any more.
    shell.refuses(&command);
    assert!(is_there(), "it was removed without its DEL");
    containerd.fail_del(false);
    shell.succeeds(&command);
    assert!(!is_there(), "it is removed");
    daemon.await_resolved(&finding, SOON);
    shell.changes_nothing(&command);
    case("DEL fails again and again", FAILING, "sandbox, plugin, pod", "yes, when it succeeds");
}

/// A plugin that names its objects after the pod, as Calico did with etcd v2: DEL of any sandbox of the pod removes
/// what the last one got.
const BY_NAME: &str = r#"#!/bin/sh
pod=${CNI_ARGS##*K8S_POD_NAME=}
record="$0.${pod%%;*}"
if [ "$CNI_COMMAND" = ADD ]; then
    printf '%s\n%s\n' "$CNI_CONTAINERID" "$CNI_NETNS" >"$record"
    exec /usr/lib/cni/bridge
fi
{ read -r id; read -r netns; } <"$record"
grep -l "^$id" "$(dirname "$0")"/../ipam/*/[0-9]*.* | xargs rm -f
ip -n "${netns##*/}" link del eth0
"#;

fn a_late_del_takes_the_successors_network(lab: &Lab) {
    let node = Netns::new(lab, "node");
    let plugin = network::bin_dir(lab).join("by-name");
    let network = a_network(lab, &node, "by-name");
    fs::write(&plugin, BY_NAME).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let runtime = FakeCri::start(lab);
    let daemon = Daemon::start(lab, &of_networks(lab).cri(runtime.socket()));
    daemon.await_source("containerd");
    let netns = [1, 2].map(|n| Netns::new(lab, &format!("c{n}")));
    let [old, new] = [1, 2].map(|n| Container::new(lab, n).of_pod("db-0"));
    network.add(&old, &netns[0]).unwrap();
    runtime.has(&FakeCri::line(&old, "READY"));
    let ip = network.add(&new, &netns[1]).unwrap();
    let _pause = Helper::new(Role::Park).inside(&netns[1]).start();
    runtime.has(&(FakeCri::line(&old, "NOTREADY") + &FakeCri::line(&new, "READY")));
    support::poll::until("the pod is known by its runtime's word", 20, || {
        let address = daemon.ip_in(&ip, netns[1].inode);
        address.is_some_and(|address| address["pod"]["name"] == "db-0")
    });
    network.del(&old, None).unwrap();
    let finding = daemon.await_firing(SUCCESSOR, SOON, |finding| finding["subject"]["ip"] == *ip);
    assert_eq!(finding["severity"], "critical", "{finding:#?}");
    assert_eq!(finding["subject"]["container"]["id"], *new.id, "whom it hits: {finding:#?}");
    assert!(evidence(&finding).contains(&old.id[..12]), "whose it was: {finding:#?}");
    let shell = Shell::new(lab);
    shell.looks(&finding);
    let command = change(&finding, "crictl rmp ");
    shell.succeeds(&command);
    assert_eq!(shell.said()[..2], ["crictl", "rmp"]);
    let delete = change(&finding, "kubectl delete --raw=");
    shell.succeeds(&delete);
    assert_eq!(shell.said()[..2], ["kubectl", "delete"]);
    runtime.has(&FakeCri::line(&old, "NOTREADY"));
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
    shell.refuses(&delete);
    assert_eq!(shell.said(), Vec::<String>::new(), "neither is done once more");
    case(
        "DEL of an old sandbox takes the new one's IP",
        SUCCESSOR,
        "both sandboxes, the pod",
        "yes, when the pod is made anew",
    );
}

/// A veth pair in the host's netns, without addresses.
struct Pair(String);

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).output();
    }
}

/// What an ADD leaves if it fails before it moves one end.
fn both_ends_of_a_pods_veth_on_the_node(lab: &Lab) {
    let daemon = Daemon::start(lab, &config().leak_age(2));
    let name = format!("veth{:08x}", std::process::id());
    // The sweep knows this name.
    let pair = Pair(format!("{}b", lab.tag()));
    support::netns::ip(&format!("link add {name} type veth peer name {}", pair.0));
    let finding = daemon.await_firing(ORPHANED, SOON, tells_of(&name));
    assert_eq!(finding["severity"], "info", "{finding:#?}");
    drop(pair);
    daemon.await_resolved(&finding, SOON);
    case("both ends of a pod's veth on the node", ORPHANED, "the devices", "yes, when it is gone");
}
