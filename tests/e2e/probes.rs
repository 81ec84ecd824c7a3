//! The attach ladder: each event stands on the highest rung that this place allows, and `doctor`
//! says which, and why no higher.

use serde_json::Value;
use support::{Config, Daemon, Lab, Netns, daemon, poorer};

support::tests! {
    every_event_says_where_it_stands,
    who_claims_an_ip_is_heard,
    without_bpf_the_rest_goes_on,
    without_btf_the_rest_goes_on,
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

/// What is asked from a pod's netns on a link to the host is heard there.
fn who_claims_an_ip_is_heard(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let document = daemon.document(&["doctor"]).expect("a document");
    let sources = document["sources"].as_array().unwrap();
    let arp = sources.iter().find(|source| source["name"] == "arp").expect("told");
    if daemon::probes() == "off" {
        assert_eq!(arp["status"], "down");
        return;
    }
    assert_ne!(arp["status"], "down", "{arp}");
    let seen = || {
        let probes = daemon.list("probes", &["doctor"]);
        let probe = probes.into_iter().find(|probe| probe["event"] == "arp-claim").unwrap();
        println!("{probe}");
        probe["seen"].as_u64().expect("a rung of its own")
    };
    let before = seen();
    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    netns.run(|| {
        let socket = std::net::UdpSocket::bind((lab.ip(7), 0)).unwrap();
        // Nobody has it, so that everybody is asked.
        socket.send_to(b"?", (lab.ip(9), 9)).unwrap();
    });
    support::poll::until("the request is heard", 10, || seen() > before);
}

fn without_bpf_the_rest_goes_on(lab: &Lab) {
    goes_on(lab, poorer::without_bpf(&daemon::binary()), &["bpf(2)", "CAP_BPF"]);
}

fn without_btf_the_rest_goes_on(lab: &Lab) {
    let says = ["/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF"];
    goes_on(lab, poorer::without_btf(&daemon::binary()), &says);
}

/// The daemon says once that its probes are missing and what to do (`says`), and answers all the same.
fn goes_on(lab: &Lab, command: std::process::Command, says: &[&str]) {
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
