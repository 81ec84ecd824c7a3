//! The attach ladder: each event is on the highest rung that this machine allows, and `doctor` shows the rung and why
//! it is not higher.

use std::process::Command;

use serde_json::Value;
use support::{Config, Daemon, Lab, Netns, daemon, poorer};

support::tests! {
    every_event_says_where_it_stands @ Kernel Stock,
    a_refusal_is_told_with_what_was_read @ Kernel Stock,
    who_claims_an_ip_is_heard @ Kernel Stock,
    the_socket_is_opened_as_the_configuration_says @ Kernel Stock,
    without_bpf_the_rest_goes_on @ Kernel Stock,
    without_btf_the_rest_goes_on @ Kernel Stock,
    without_btf_what_is_mounted_on_the_node_alone_is_found @ Kernel Stock,
}

fn every_event_says_where_it_stands(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let probes = daemon.list("probes", &["doctor"]);
    assert!(probes.len() > 5, "{probes:?}");
    let rungs = [
        "tp_btf",
        "raw_tp",
        "tracepoint",
        "fentry",
        "kprobe",
        "socket",
        "netlink",
        "procfs",
        "snapshot",
        "none",
    ];
    for probe in &probes {
        assert!(rungs.contains(&probe["rung"].as_str().unwrap()), "{probe}");
        let fine = probe["status"] == "active";
        assert!(fine || probe["why"].is_string(), "a lower rung says why: {probe}");
    }
    if daemon::probes() == "off" {
        let used = |rung: &str| probes.iter().any(|probe| probe["rung"] == rung);
        assert!(!["tp_btf", "fentry", "kprobe"].into_iter().any(used), "{probes:?}");
    }
}

/// A kernel option is named only if the kernel's configuration says that it is not set; a lockdown is reported.
fn a_refusal_is_told_with_what_was_read(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let document = daemon.document(&["doctor"]).expect("a document");
    let whys = document["probes"].as_array().unwrap().iter().filter_map(|one| one["why"].as_str());
    let words = |why: &str| why.split([' ', ';']).map(str::to_owned).collect::<Vec<_>>();
    for why in whys {
        let words = words(why);
        // What the ladder names without reading the configuration: disabled probes, missing BTF.
        let refused = why.contains("refused") || why.contains("no kprobes");
        for (at, option) in words.iter().enumerate().filter(|(_, word)| word.starts_with("CONFIG_"))
        {
            if !refused {
                continue;
            }
            assert_eq!(words[at + 1..at + 5], ["is", "not", "set", "in"], "{why}");
            let unpack = "case $1 in *.gz) zcat $1;; *) cat $1;; esac";
            let read =
                Command::new("sh").args(["-c", unpack, "sh", &words[at + 5]]).output().unwrap();
            let text = String::from_utf8_lossy(&read.stdout).into_owned();
            assert!(text.contains("CONFIG_BPF_SYSCALL=y"), "{why}");
            let set = |line: &str| line.starts_with(&format!("{option}="));
            assert!(!text.lines().any(set), "{why}");
        }
    }
    let sources = document["sources"].as_array().unwrap();
    let probes = sources.iter().find(|source| source["name"] == "probes").expect("told");
    let lockdown = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let told = probes["detail"].as_str().unwrap_or_default().contains("kernel lockdown");
    let locked = lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]");
    assert_eq!(told, locked && daemon::probes() != "off", "{lockdown} {probes}");
}

/// The daemon runs in a node, and a pod asks for the node's IP: the node hears the request, and if every netns is
/// heard, the pod's hears the reply.
fn who_claims_an_ip_is_heard(lab: &Lab) {
    let (node, pod) = (Netns::new(lab, "node"), Netns::new(lab, "pod"));
    let daemon = node.run(|| Daemon::start(lab, &Config::default()));
    let document = daemon.document(&["doctor"]).expect("a document");
    let sources = document["sources"].as_array().unwrap();
    let arp = sources.iter().find(|source| source["name"] == "arp").expect("told");
    let probe = || {
        let probes = daemon.list("probes", &["doctor"]);
        probes.into_iter().find(|probe| probe["event"] == "arp-claim").expect("it is listed")
    };
    let hears = match probe()["rung"].as_str().unwrap() {
        "fentry" | "kprobe" => 2,
        "socket" => 1,
        rung => {
            assert_eq!((rung, daemon::probes().as_str()), ("netlink", "off"));
            assert_eq!(arp["status"], "down");
            return;
        }
    };
    assert_eq!(arp["status"], if hears == 2 { "active" } else { "degraded" }, "{arp}");
    pod.veth_to("eth0", &node, "pod0");
    pod.add_address(&lab.cidr(7), "eth0");
    node.add_address(&lab.cidr(1), "pod0");
    pod.run(|| {
        let socket = std::net::UdpSocket::bind((lab.ip(7), 0)).unwrap();
        socket.send_to(b"?", (lab.ip(1), 9)).unwrap();
    });
    support::poll::until("the claims are told", 10, || probe()["seen"].as_u64() >= Some(hears));
}

fn the_socket_is_opened_as_the_configuration_says(lab: &Lab) {
    if daemon::probes() == "off" {
        return;
    }
    let node = Netns::new(lab, "node");
    let standing = |watch: &str| {
        let config = Config::default().line(&format!("[neighbours]\nwatch = \"{watch}\""));
        let daemon = node.run(|| Daemon::start(lab, &config));
        let document = daemon.document(&["doctor"]).expect("a document");
        let one = |list: &str, key: &str, name: &str| {
            let list = document[list].as_array().unwrap().iter();
            list.clone().find(|one| one[key] == name).expect("told").clone()
        };
        (one("probes", "event", "arp-claim"), one("sources", "name", "arp"))
    };
    let (probe, source) = standing("always");
    let heard = if probe["rung"] == "socket" {
        "only the links of the host's netns"
    } else {
        "and the host's links"
    };
    assert!(source["detail"].as_str().unwrap().contains(heard), "{probe} {source}");
    let (probe, source) = standing("off");
    assert_ne!(probe["rung"], "socket");
    let status = if probe["rung"] == "netlink" { "disabled" } else { "active" };
    assert_eq!(source["status"], status, "{probe} {source}");
}

fn without_bpf_the_rest_goes_on(lab: &Lab) {
    goes_on(lab, poorer::without_bpf(&daemon::binary()), &["bpf(2)", "CAP_BPF"]);
}

fn without_btf_the_rest_goes_on(lab: &Lab) {
    let says = ["/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF"];
    goes_on(lab, poorer::without_btf(&daemon::binary()), &says);
}

/// As in a container, or a service in a private mount namespace, where mounts of the node are not visible.
fn without_btf_what_is_mounted_on_the_node_alone_is_found(lab: &Lab) {
    let says = ["/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF"];
    goes_on(lab, poorer::without_btf_and_propagation(&daemon::binary()), &says);
}

/// The daemon logs once that its probes are missing and what to do (`says`), and answers anyway.
fn goes_on(lab: &Lab, command: Command, says: &[&str]) {
    let mut daemon = Daemon::spawn_by(command, lab, &Config::default(), &lab.subdir("state"));
    daemon.await_ready();
    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let address = daemon.await_ip(lab.ip(7), netns.inode);
    assert_eq!(address["netns"]["inode"], netns.inode);
    let document = daemon.document(&["doctor"]).expect("a document");
    let sources = document["sources"].as_array().unwrap();
    let probes = sources.iter().find(|source| source["name"] == "probes").expect("told");
    assert!(probes["status"] != "active" && probes["detail"] != Value::Null, "{probes}");
    let log = daemon.log();
    let about = |line: &&str| ["bpf", "btf"].iter().any(|word| line.to_lowercase().contains(word));
    let lines: Vec<&str> = log.lines().filter(about).collect();
    if daemon::probes() == "off" {
        assert!(lines.is_empty(), "nobody asked for probes: {lines:?}");
        return;
    }
    assert!(lines.len() == 1, "exactly one line: {lines:?}");
    assert!(says.iter().all(|part| lines[0].contains(part)), "{says:?}: {}", lines[0]);
}
