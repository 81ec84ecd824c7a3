//! The effect of a late DEL on Calico's first datastore: a real etcd with its v2 API and the keys of R5, pods wired
//! as by Calico, and a plugin that uses the pod's name, as Calico's did. Calico does not run: the plugin is a script,
//! and the test does the work of Felix.
//!
//! The node is a netns of the lab, which the daemon takes for its host.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use support::etcd::Etcd;
use support::fake_cri::FakeCri;
use support::harness::case;
use support::poll::until;
use support::remedy::{Shell, change};
use support::role::{Helper, Role, Running};
use support::{Config, Daemon, Follower, Lab, Netns, Sandbox, daemon};

use super::{SOON, evidence, root_in};
use crate::etcd::node as node_name;
use crate::neighbours::{about, ask, ask_anew, ever, set};
use crate::never::{is_about, logged};

support::tests! {
    a_late_del_takes_the_endpoint_of_a_pods_successor needs [Etcd, FakeCri, Cni],
}

/// The gateway of each pod's default route, which is on no device.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The last octet of the block's first IP.
const BLOCK: u8 = 64;
/// Longer than the time until a missing endpoint counts and both the datastore (asked every 8 to 23 s) and the
/// runtime have answered again.
const HEALTHY: Duration = Duration::from_secs(40);
/// Seconds until that finding fires: the endpoint's grace, and two further answers of the runtime.
const SURE: u32 = 60;
/// The sandbox that kubelet cannot remove.
const OLD: &str = "bb4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";

/// The plugin's DEL: releases IPs by their handle, then the endpoint; both are named after the pod, regardless of the
/// container. A shell cannot edit the block: the block without the handle is in a file beside the script.
const PLUGIN: &str = r#"#!/bin/sh
conf=$(cat)
[ "$CNI_COMMAND" = DEL ] || exit 0
of() { printf %s "$conf" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
arg() { printf %s ";$CNI_ARGS" | sed -n "s/.*;$1=\([^;]*\).*/\1/p"; }
ask() { curl --silent --show-error --fail --max-time 10 --output /dev/null "$@"; }
keys=$(of etcd_endpoints)/v2/keys/calico
pod=$(arg K8S_POD_NAMESPACE).$(arg K8S_POD_NAME)
if ask --request DELETE "$keys/ipam/v2/handle/$pod?recursive=true"; then
    ask --request PUT --data-urlencode "value@${0%/*}/../freed" "$keys/ipam/v2/assignment/ipv4/block/$(of block)"
fi
ask --request DELETE "$keys/v1/host/$(of nodename)/workload/k8s/$pod/endpoint/$CNI_IFNAME"
exit 0
"#;

/// A node with Calico and its datastore.
struct Node<'a> {
    lab: &'a Lab,
    netns: Netns,
    /// The next hop of packets to other hosts.
    _router: Netns,
    etcd: Etcd,
    runtime: FakeCri,
    plugin: PathBuf,
}

/// A running pod.
struct Pod {
    name: &'static str,
    ip: Ipv4Addr,
    netns: Netns,
    /// The host's end of its veth.
    device: String,
    paper: Sandbox,
    _pause: Running,
}

impl<'a> Node<'a> {
    fn new(lab: &'a Lab) -> Self {
        let (netns, router) = (Netns::new(lab, "node"), Netns::new(lab, "router"));
        set(&netns, "ipv4/ip_forward", "1");
        netns.veth_to("uplink", &router, "eth0");
        netns.add_address(&format!("{}/30", lab.ip(2)), "uplink");
        router.add_address(&format!("{}/30", lab.ip(1)), "eth0");
        netns.ip(&format!("route add default via {}", lab.ip(1)));
        router.ip(&format!("route add {}/26 via {}", lab.ip(BLOCK), lab.ip(2)));
        let etcd = netns.run(|| Etcd::start(lab));
        let plugin = lab.subdir("bin").join("calico");
        fs::write(&plugin, PLUGIN).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        Self { lab, netns, _router: router, etcd, runtime: FakeCri::start(lab), plugin }
    }

    fn daemon(&self) -> Daemon {
        let config = Config::default()
            .cache_dir(&self.lab.subdir("cni"))
            .networks(&[self.lab.subdir("net.d")], self.plugin.parent().unwrap())
            .cri(self.runtime.socket())
            .line(&self.etcd.lines("v2"));
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.netns.path().display())).arg(daemon::binary());
        let mut daemon = Daemon::spawn_by(command, self.lab, &config, &self.lab.subdir("state"));
        daemon.await_ready();
        daemon
    }

    fn set(&self, key: &str, value: &Value) {
        self.netns.run(|| self.etcd.set(key, &value.to_string()));
    }

    fn block_key(&self) -> String {
        format!("/calico/ipam/v2/assignment/ipv4/block/{}-26", self.lab.ip(BLOCK))
    }

    /// The node's block, with these pods' IPs allocated.
    fn block(&self, taken: &[(&str, Ipv4Addr)]) -> Value {
        let mut allocations = vec![Value::Null; 64];
        for (place, (_, ip)) in taken.iter().enumerate() {
            allocations[usize::from(ip.octets()[3] - BLOCK)] = place.into();
        }
        let free: Vec<usize> = (0..64).filter(|n| allocations[*n].is_null()).collect();
        let owner = |(pod, _): &(&str, Ipv4Addr)| json!({ "handle_id": format!("shop.{pod}"), "secondary": {} });
        json!({
            "cidr": format!("{}/26", self.lab.ip(BLOCK)), "hostAffinity": node_name(), "strictAffinity": false,
            "allocations": allocations, "unallocated": free,
            "attributes": taken.iter().map(owner).collect::<Vec<_>>(),
        })
    }

    fn endpoint_key(pod: &str) -> String {
        format!("/calico/v1/host/{}/workload/k8s/shop.{pod}/endpoint/eth0", node_name())
    }

    /// ADD for a pod: its IP, its endpoint, its veth, and Felix's settings. `all`: the pods that have IPs after that.
    fn add(&self, name: &'static str, ip: Ipv4Addr, all: &[(&str, Ipv4Addr)]) -> Pod {
        let device = device_of(name);
        self.set(&self.block_key(), &self.block(all));
        let cidr = format!("{}/26", self.lab.ip(BLOCK));
        let handle = json!({ "id": format!("shop.{name}"), "block": { cidr: 1 } });
        self.set(&format!("/calico/ipam/v2/handle/shop.{name}"), &handle);
        let netns = Netns::new(self.lab, name);
        let uid = format!("{:08x}-0000-4000-8000-000000000001", netns.inode);
        let paper = Sandbox::make_as(self.lab, &netns, &format!("{ip}/32"), "", (name, &uid));
        self.call("ADD", &paper.sandbox, name, &netns.path().display().to_string());
        let endpoint = json!({
            "state": "active", "name": device, "mac": null, "profile_ids": ["k8s_ns.shop"],
            "ipv4_nets": [format!("{ip}/32")], "ipv6_nets": [],
        });
        self.set(&Self::endpoint_key(name), &endpoint);
        netns.veth_to("eth0", &self.netns, &device);
        // The same MAC for all devices.
        self.netns.ip(&format!("link set {device} address ee:ee:ee:ee:ee:ee"));
        netns.add_address(&format!("{ip}/32"), "eth0");
        netns.ip(&format!("route add {GATEWAY} dev eth0 scope link"));
        netns.ip(&format!("route add default via {GATEWAY} dev eth0"));
        set(&self.netns, &format!("ipv4/neigh/{device}/proxy_delay"), "0");
        set(&self.netns, &format!("ipv4/conf/{device}/proxy_arp"), "1");
        self.netns.ip(&format!("route replace {ip}/32 dev {device} scope link"));
        let pause = Helper::new(Role::Park).inside(&netns).within(&paper).start();
        Pod { name, ip, netns, device, paper, _pause: pause }
    }

    /// Felix's changes to the device of a pod without an endpoint.
    fn unwire(&self, pod: &Pod) {
        self.netns.ip(&format!("route del {}/32 dev {}", pod.ip, pod.device));
        set(&self.netns, &format!("ipv4/conf/{}/proxy_arp", pod.device), "0");
    }

    /// Sets the runtime's pods to these, and the old sandbox of a pod.
    fn has(&self, pods: &[&Pod]) {
        let old =
            format!("sandbox {OLD} NOTREADY shop db-0 0badc0de-0000-4000-8000-000000000001 0\n");
        let lines = pods.iter().map(|pod| FakeCri::lines(&pod.paper, "READY"));
        self.runtime.has(&(old + &lines.collect::<String>()));
    }

    /// DEL of the old sandbox of `db-0`, as repeated by kubelet: its netns no longer exists.
    fn late_del(&self) {
        self.call("DEL", OLD, "db-0", "");
    }

    /// Calls the plugin as a runtime does.
    fn call(&self, what: &str, container: &str, pod: &str, netns: &str) {
        let config = json!({
            "name": "k8s-pod-network", "cniVersion": "0.3.0", "type": "calico", "nodename": node_name(),
            "etcd_endpoints": self.etcd.url(), "block": format!("{}-26", self.lab.ip(BLOCK)),
        });
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={container}"
        );
        let mut command = Command::new(&self.plugin);
        command.env("CNI_COMMAND", what).env("CNI_CONTAINERID", container).env("CNI_NETNS", netns);
        command.env("CNI_IFNAME", "eth0").env("CNI_PATH", "/opt/cni/bin").env("CNI_ARGS", args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.netns.run(|| command.spawn()).expect("start the plugin");
        let text = config.to_string();
        child.stdin.take().unwrap().write_all(text.as_bytes()).expect("tell the plugin");
        let out = child.wait_with_output().expect("wait for the plugin");
        assert!(out.status.success(), "{out:?}");
    }
}

/// Calico's name for the host's end of a pod's veth.
fn device_of(pod: &str) -> String {
    let script = format!("printf shop.{pod} | sha1sum");
    let out = Command::new("sh").args(["-c", &script]).output().expect("run sha1sum");
    format!("cali{}", String::from_utf8_lossy(&out.stdout[..11]))
}

/// Whether the router answers a pod, if only with a refusal.
fn is_reachable(lab: &Lab, pod: &Pod) -> bool {
    let router = SocketAddr::from((lab.ip(1), 9));
    let answer = pod.netns.run(|| TcpStream::connect_timeout(&router, Duration::from_secs(2)));
    answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Waits until the runtime's state of a pod is known.
fn await_alive(daemon: &Daemon, pod: &Pod) {
    until(&format!("{} is known as Ready", pod.name), 30, || {
        daemon.ip_in(pod.ip, pod.netns.inode).is_some_and(|one| one["pod"]["state"] == "Ready")
    });
}

/// Checks that nothing about the lab was reported since, not even as `pending`.
#[track_caller]
fn assert_quiet(lab: &Lab, daemon: &Daemon, follower: &Follower) {
    let mut told = follower.changes_seen();
    told.retain(|change| is_about(lab, change));
    assert!(told.is_empty(), "nothing is wrong yet: {told:#?}");
    assert_eq!(logged(lab, daemon), None);
}

/// Checks that the finding is about this pod, is a consequence of `root`, and has these words in its evidence.
#[track_caller]
fn assert_is(finding: &Value, pod: &Pod, root: Option<&Value>, words: &[&str]) {
    let (subject, id) = (&finding["subject"], root.map_or(&Value::Null, |root| &root["id"]));
    assert_eq!(subject["netns"]["inode"], pod.netns.inode, "{finding:#?}");
    assert_eq!(subject["pod"]["namespace"], Sandbox::NAMESPACE, "{finding:#?}");
    assert_eq!(subject["pod"]["name"], pod.name, "{finding:#?}");
    assert_eq!(subject["ip"], pod.ip.to_string(), "{finding:#?}");
    assert_eq!(finding["caused_by"], *id, "{finding:#?}");
    let text = evidence(finding);
    for part in words {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

/// The next pod has the same IP on its own veth, and the node's neighbour table has both.
fn await_both_entries(node: &Node<'_>, daemon: &Daemon, both: [&Pod; 2]) {
    let ip = both[0].ip;
    let macs = both.map(|pod| (pod.device.clone(), pod.netns.mac("eth0")));
    until("the node has two entries, and both are known", 20, || {
        ask(&node.netns, ip);
        let told = daemon.list("neighbours", &["query", "neigh", &ip.to_string()]);
        macs.iter().all(|(device, mac)| {
            let is =
                |entry: &&Value| entry.to_string().contains(&**device) && entry["mac"] == **mac;
            told.iter().any(|entry| is(&entry))
        })
    });
    let told = node.netns.ip(&format!("neigh show to {ip}"));
    assert!(
        macs.iter().all(|(device, mac)| told.contains(&format!("dev {device} lladdr {mac}"))),
        "{told}"
    );
}

fn a_late_del_takes_the_endpoint_of_a_pods_successor(lab: &Lab) {
    let node = Node::new(lab);
    let (ip, other) = (lab.ip(BLOCK + 5), lab.ip(BLOCK + 9));
    let cart = node.add("cart-0", other, &[("cart-0", other)]);
    node.has(&[&cart]);
    let daemon = node.daemon();
    daemon.await_source("containerd");
    daemon.await_source("calico");
    let follower = daemon.follow();
    // Before the successor exists, the DEL has no effect.
    node.late_del();
    let db = node.add("db-0", ip, &[("cart-0", other), ("db-0", ip)]);
    let freed = node.block(&[("cart-0", other)]).to_string();
    fs::write(lab.dir().join("freed"), freed).unwrap();
    node.has(&[&cart, &db]);
    await_alive(&daemon, &db);
    for pod in [&cart, &db] {
        assert!(is_reachable(lab, pod), "{} is wired", pod.name);
    }
    sleep(HEALTHY);
    assert_quiet(lab, &daemon, &follower);
    drop(follower);

    node.late_del();
    let del = daemon.await_firing("cni-del-hits-successor", SOON, about(ip));
    let key = Node::endpoint_key("db-0");
    assert_is(
        &del,
        &db,
        None,
        &["calico DEL for sandbox bb4c1b2a9d7e of shop/db-0", &key, &node.block_key()],
    );
    node.unwire(&db);
    // The kernel would ask again within a minute.
    ask_anew(&db.netns, GATEWAY);
    assert!(!is_reachable(lab, &db), "nothing answers for its gateway");
    let gateway = daemon.await_firing("gateway-neighbour-lost", SURE, about(ip));
    let missing = daemon.await_firing("endpoint-missing", SURE, about(ip));
    let words = ["the default route of", "via 169.254.1.1 on eth0", "had no answer", &db.device];
    assert_is(&gateway, &db, Some(&del), &words);
    let words = [&*format!("the endpoint of shop/db-0 was removed: {key}"), &db.device, "is Ready"];
    assert_is(&missing, &db, Some(&del), &words);
    assert_eq!(missing["severity"], "critical", "{missing:#?}");
    assert_eq!(root_in(&daemon, db.netns.inode)["id"], del["id"], "one cause");
    let shell = Shell::new(lab).within(&node.netns);
    [&del, &gateway, &missing].into_iter().for_each(|finding| shell.looks(finding));
    let remove = change(&del, "crictl rmp ");
    for _ in 0..2 {
        shell.succeeds(&remove);
        assert_eq!(shell.said().last().map(String::as_str), Some(OLD));
    }

    // The IP is free in the datastore, and the next pod gets it. Each has its own veth, so no two answer on one link
    // and there is no `neighbour-conflict`: they meet at the node, which is the router of both.
    let next = node.add("next-0", ip, &[("cart-0", other), ("next-0", ip)]);
    node.has(&[&cart, &db, &next]);
    await_both_entries(&node, &daemon, [&db, &next]);
    let twice = daemon.await_firing("ip-duplicate", SOON, |one| {
        about(ip)(one) && one["subject"]["pod"]["name"] == next.name
    });
    let text = evidence(&twice);
    // A value is quoted, and this is JSON.
    let pods = [r#"pod \"shop/db-0\""#, r#"pod \"shop/next-0\""#];
    for part in pods.into_iter().chain(["they share the router that is the host"]) {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let all = ever(&daemon, ip);
    assert!(all.iter().all(|one| one["code"] != "neighbour-conflict"), "{all:#?}");
    assert_eq!(twice["caused_by"], del["id"], "{all:#?}");
    let root = root_in(&daemon, db.netns.inode);
    assert_is(&root, &db, None, &[&key, &node.block_key()]);

    // Each command deletes that pod by its uid.
    let deletes = [&del, &missing, &twice].map(|finding| change(finding, "kubectl delete --raw="));
    for delete in &deletes {
        shell.succeeds(delete);
        assert_eq!(shell.said()[..2], ["kubectl", "delete"]);
    }
    // The pod is deleted together with its netns.
    node.has(&[&cart, &next]);
    drop(db);
    for finding in [&del, &missing, &gateway, &twice] {
        daemon.await_resolved(finding, SOON);
    }
    deletes.iter().for_each(|delete| shell.refuses(delete));
    assert_eq!(shell.said(), Vec::<String>::new(), "nothing is deleted any more");
    assert_eq!(ever(&daemon, other), Vec::<Value>::new(), "about one that nothing happened to");
    case(
        "DEL of an old sandbox takes the new one's Calico endpoint",
        "cni-del-hits-successor",
        "both sandboxes, the pod, the key",
        "yes, when the pod is made anew",
    );
}
