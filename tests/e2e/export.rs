//! Findings and their links, as spans and log records to a real collector.

use serde_json::{Value, json};
use support::collector::Collector;
use support::fuse::Hung;
use support::network::{self, Container, Network};
use support::role::Running;
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, eventually};

support::tests! {
    a_duplicate_is_linked_to_the_tenures_of_both_sides needs [Rotel],
    a_finding_reaches_a_collector needs [Fuse, Rotel],
    a_finding_reaches_a_collector_over_http needs [Fuse, Rotel],
    a_freed_ip_is_linked_to_its_tenure_and_to_its_call needs [Cni, Rotel],
    a_teardown_and_a_tenure_are_spans needs [Rotel] @ Kernel Stock,
    what_cannot_work_ends_the_start_with_one_line,
    without_a_collector_nothing_else_suffers needs [Fuse],
}

const STUCK: &str = "ip-held-by-stuck-process";

/// A netns with an IP of the lab, and the process that hangs in it.
struct Stuck {
    netns: Netns,
    helper: Running,
}

impl Stuck {
    fn hang(lab: &Lab, hung: &mut Hung) -> Self {
        let netns = Netns::new(lab, "out");
        netns.veth_to_host();
        netns.add_address(&lab.cidr(7), "eth0");
        let mut helper = stuck::start(How::Kill, &netns, hung);
        stuck::hang(How::Kill, &mut helper);
        Self { netns, helper }
    }

    /// Waits for the finding, and returns its id.
    #[track_caller]
    fn await_finding(&self, daemon: &Daemon) -> String {
        let ours = |finding: &Value| finding["subject"]["netns"]["inode"] == self.netns.inode;
        let finding = daemon.await_firing(STUCK, 15, ours);
        finding["id"].as_str().unwrap().to_owned()
    }
}

fn a_finding_reaches_a_collector(lab: &Lab) {
    let collector = Collector::start(lab);
    let mut hung = Hung::mount(lab);
    let daemon = Daemon::start(lab, &Config::default().grace(1).otlp(&collector.endpoint));
    let stuck = Stuck::hang(lab, &mut hung);
    let id = stuck.await_finding(&daemon);
    let (ip, pid) = (lab.ip(7).to_string(), stuck.helper.pid().to_string());
    let _ = collector.await_span(STUCK, &[&id, &ip, &pid]);
    hung.release();
    let _ = collector.await_span(STUCK, &[&id, "resolved"]);
}

fn a_finding_reaches_a_collector_over_http(lab: &Lab) {
    let collector = Collector::start(lab);
    let mut hung = Hung::mount(lab);
    let config = Config::default().grace(1).otlp(&collector.http);
    let config = config.otlp_line("protocol = \"http/protobuf\"");
    let config = config.otlp_line("signals = [\"traces\", \"logs\"]");
    let daemon = Daemon::start(lab, &config);
    let id = Stuck::hang(lab, &mut hung).await_finding(&daemon);
    let _ = collector.await_span(STUCK, &[&id]);
    // The collector prints only one signal; for the other the counters show that it was accepted.
    let standing = daemon.source("otlp").expect("the collector is a source");
    assert_eq!(standing["status"], "active", "{standing}");
    let detail = standing["detail"].as_str().unwrap();
    for part in [&*collector.http, "traces to", "logs to", "0 dropped"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
}

fn a_duplicate_is_linked_to_the_tenures_of_both_sides(lab: &Lab) {
    let collector = Collector::start(lab);
    let daemon = Daemon::start(lab, &Config::default().otlp(&collector.endpoint));
    let node = Netns::new(lab, "node");
    node.ip("link add bri0 type bridge");
    node.ip("link set bri0 up");
    let (ip, pods) = (lab.ip(7).to_string(), [Netns::new(lab, "one"), Netns::new(lab, "two")]);
    for (n, pod) in pods.iter().enumerate() {
        node.veth_to(&format!("port{n}"), pod, "eth0");
        node.ip(&format!("link set port{n} master bri0"));
        pod.add_address(&lab.cidr(7), "eth0");
        daemon.await_ip(lab.ip(7), pod.inode);
    }
    let finding = collector.await_span("ipwatch.finding.firing ip-duplicate", &[&ip]);
    for pod in &pods {
        let tenure = collector.await_span("ipwatch.tenure", &[&ip, &pod.inode.to_string()]);
        assert!(finding.leads_to(&tenure), "{finding:?}\nleads not to\n{tenure:?}");
    }
}

fn a_freed_ip_is_linked_to_its_tenure_and_to_its_call(lab: &Lab) {
    let collector = Collector::start(lab);
    let node = Netns::new(lab, "node");
    let subnet = format!("{}/29", lab.ip(0));
    let network = Network::new(lab, &node, "net", "bridge", &subnet, json!({ "bridge": "br1" }));
    let config = Config::default().networks(&[network::conf_dir(lab)], &network::bin_dir(lab));
    let daemon = Daemon::start(lab, &config.otlp(&collector.endpoint));
    daemon.await_source("host-local");
    let (container, pod) = (Container::new(lab, 1), Netns::new(lab, "pod"));
    let ip = network.add(&container, &pod).unwrap();
    daemon.await_ip(&ip, pod.inode);
    eventually("the reservation is known", 10, || {
        let all = daemon.list("reservations", &["query", "ipam", &ip]);
        all.into_iter().find(|entry| !entry["kernel"].as_array().is_none_or(Vec::is_empty))
    });
    std::fs::remove_file(network.reservations().join(&ip)).unwrap();
    daemon.await_firing("ip-released-but-held", 20, |finding| finding["subject"]["ip"] == ip);
    let finding = collector.await_span("ipwatch.finding.firing ip-released-but-held", &[&ip]);
    // Neither every tenure nor every run is exported here: these are, because the finding links to them.
    for (other, part) in [("ipwatch.tenure", &*ip), ("cni ADD bridge", &*container.id)] {
        let other = collector.await_span(other, &[part]);
        assert!(finding.leads_to(&other), "{finding:?}\nleads not to\n{other:?}");
    }
}

fn a_teardown_and_a_tenure_are_spans(lab: &Lab) {
    let collector = Collector::start(lab);
    let config = Config::default().otlp(&collector.endpoint).otlp_line("tenures = true");
    let daemon = Daemon::start(lab, &config);
    let netns = Netns::new(lab, "short");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(9), "eth0");
    let (ip, inode) = (lab.ip(9).to_string(), netns.inode);
    daemon.await_ip(&ip, inode);
    let _ = collector.await_span("ipwatch.tenure", &[&ip, "assigned"]);
    drop(netns);
    // If a probe reports addresses, the address is removed before its netns.
    let how = if probes(&daemon, "ipv4-address") { "address-deleted" } else { "netns-gone" };
    let _ = collector.await_span("ipwatch.tenure", &[&ip, "released", how]);
    // If no probe sees the end, it is not reported.
    if probes(&daemon, "netns-teardown-end") {
        let inode = inode.to_string();
        let _ = collector.await_span("ipwatch.netns.teardown", &[&inode, "finished"]);
    }
}

/// Whether a probe reports this event.
fn probes(daemon: &Daemon, event: &str) -> bool {
    let all = daemon.list("probes", &["doctor"]);
    all.iter().any(|probe| probe["event"] == event && probe["rung"] != "netlink")
}

fn what_cannot_work_ends_the_start_with_one_line(lab: &Lab) {
    for (line, says) in [
        ("endpoint = \"collector:4317\"", "no scheme"),
        ("endpoint = \"https://collector\"\nca_file = \"/none.pem\"", "/none.pem"),
        ("endpoint = \"http://c\"\nprotocol = \"http/json\"", "http/protobuf"),
    ] {
        let config = Config::default().line(&format!("[otlp]\n{line}"));
        let mut daemon = Daemon::spawn(lab, &config, &lab.subdir("state"));
        assert_ne!(daemon.ended(), Some(0));
        let log = daemon.log();
        assert!(log.contains(says), "{log}");
        assert!(!daemon.socket().exists(), "nothing was started");
    }
}

/// Without a collector only its spans are lost, and counted.
fn without_a_collector_nothing_else_suffers(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    // The port of the discard service: nothing listens there.
    let daemon = Daemon::start(lab, &Config::default().grace(1).otlp("http://127.0.0.1:9"));
    let _ = Stuck::hang(lab, &mut hung).await_finding(&daemon);
    assert!(daemon.stop().success(), "and it stops in time");
}
