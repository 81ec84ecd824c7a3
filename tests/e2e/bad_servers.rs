//! Every server that the daemon asks (a runtime of each kind, the kubelet, the API server, etcd by both APIs, the collector)
//! fails in the same way at the same time. The daemon's memory stays bounded, other findings are still reported, each
//! source says what is wrong, and no server is asked again without a pause.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::bad_server::{self, Manner};
use support::harness::FIGURE;
use support::poll::until;
use support::stuck::Stuck;
use support::{Config, Daemon, Lab, Netns, Sandbox, patience, proc};

support::tests! {
    slow_ones needs [Fuse],
    wrong_ones needs [Fuse],
    endless_ones needs [Fuse],
    ones_that_cut_off needs [Fuse],
    ones_that_send_a_gigabyte needs [Fuse],
}

/// How long the daemons are observed after the finding. A daemon without limits would have hundreds of MiB by then.
const WATCHED: Duration = Duration::from_secs(8);
/// The memory that a daemon may have in that time, in KiB: the tests' build has 50 MiB without any server.
const MEMORY: u64 = 72 * 1024;
/// Maximum number of connections of a client in that time: the pauses are 1, 2, 4 and 8 seconds, with jitter at least half of
/// that, and a session has a few requests.
const CONNECTIONS: usize = 40;

fn slow_ones(lab: &Lab) {
    cost_nothing(lab, Manner::Slow);
}

fn wrong_ones(lab: &Lab) {
    cost_nothing(lab, Manner::Wrong);
}

fn endless_ones(lab: &Lab) {
    cost_nothing(lab, Manner::Endless);
}

fn ones_that_cut_off(lab: &Lab) {
    cost_nothing(lab, Manner::CutOff);
}

fn ones_that_send_a_gigabyte(lab: &Lab) {
    cost_nothing(lab, Manner::Gigabyte);
}

fn kubeconfig(lab: &Lab, port: u16) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{ "name": "test", "cluster": { "server": format!("http://127.0.0.1:{port}") } }],
        "users": [{ "name": "test", "user": {} }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
    });
    let path = lab.dir().join("kubeconfig");
    std::fs::write(&path, config.to_string()).expect("write it");
    path.display().to_string()
}

/// Two daemons: one asks the kubelet and an etcd by API v2, the other one the API server and an etcd by API v3.
fn cost_nothing(lab: &Lab, manner: Manner) {
    let socket = |name: &str| lab.dir().join(name);
    let mut served = Vec::new();
    let mut on_socket = |name: &'static str| {
        served.push((name, bad_server::on_socket(&socket(name), manner)));
        socket(name)
    };
    let (cri, docker, kubelet) = (on_socket("cri"), on_socket("docker"), on_socket("kubelet"));
    let mut on_port = |name: &'static str| {
        let (port, one) = bad_server::on_port(manner);
        served.push((name, one));
        port
    };
    let (api, etcd3, etcd2) = (on_port("api"), on_port("etcd-v3"), on_port("etcd-v2"));
    let (grpc, http) = (on_port("otlp-grpc"), on_port("otlp-http"));
    let calico = |port: u16, api: &str| {
        format!("[calico]\netcd_endpoints = [\"http://127.0.0.1:{port}\"]\netcd_api = {api:?}")
    };
    let config =
        || Config::default().grace(1).holders_grace(1).leak_age(1).cache_dir(&lab.subdir("cni"));
    let first = config()
        .cri(&cri)
        .docker(&docker)
        .otlp(&format!("http://127.0.0.1:{grpc}"))
        .line(&format!("[kubernetes]\nkubeconfig = {:?}\nnode = \"n\"", kubeconfig(lab, api)))
        .line(&calico(etcd3, "v3"));
    // Without a runtime to ask, idle reservations would count as leaked.
    let second = config()
        .cri(&cri)
        .otlp(&format!("http://127.0.0.1:{http}"))
        .otlp_line("protocol = \"http/protobuf\"")
        .line(&format!("[kubernetes]\nkubelet_socket = {kubelet:?}"))
        .line(&calico(etcd2, "v2"));
    let idle = Netns::new(lab, "idle");
    idle.veth_to_host();
    idle.add_address(&lab.cidr(7), "eth0");
    let _pod = Sandbox::make(lab, &idle, &lab.cidr(7), "");
    let stuck = Stuck::new(lab);
    for (config, asked) in [
        (first, &["cri", "docker", "api", "etcd-v3", "otlp-grpc"][..]),
        (second, &["cri", "kubelet", "etcd-v2", "otlp-http"][..]),
    ] {
        // With a state directory of its own, so that the finding is new and is sent to the collector.
        let before: Vec<usize> = served.iter().map(|(_, one)| one.came()).collect();
        let daemon = Daemon::start_in(lab, &config, &lab.subdir(&format!("state-{}", asked[1])));
        let fires = |finding: &Value| finding["subject"]["netns"]["inode"] == stuck.netns.inode;
        daemon.await_firing("ip-held-by-stuck-process", 15, fires);
        let ours = || served.iter().filter(|(name, _)| asked.contains(name));
        until("all are asked", 20, || ours().all(|(_, one)| one.asked() > 0));
        let (from, mut most) = (Instant::now(), 0);
        while from.elapsed() < WATCHED * patience() {
            most = most.max(proc::rss_kib(daemon.pid()));
            std::thread::sleep(Duration::from_millis(20));
        }
        let mib = most / 1024;
        println!("{FIGURE}{manner:?} servers ({}): at most {mib} MiB resident", asked.join(", "));
        for ((name, one), before) in served.iter().zip(before) {
            if asked.contains(name) {
                let came = one.came() - before;
                println!("{name}: {came} came, {} asked, {} B sent", one.asked(), one.sent());
                // What has its status has arrived, whatever the body says: no pause follows, and each change of a finding
                // is sent, those of other tests too.
                let is_taken = *name == "otlp-http" && !matches!(manner, Manner::Slow);
                assert!(is_taken || came <= CONNECTIONS, "{name}: {came} came");
            }
        }
        assert!(most < MEMORY, "{most} KiB");
        let findings = daemon.findings_in(idle.inode);
        assert!(findings.is_empty(), "nothing is concluded: {findings:#?}");
        says_what_is_wrong(&daemon, asked);
        let asked = Instant::now();
        assert!(daemon.ask(&["query", "ip"]).status.success());
        assert!(asked.elapsed() < Duration::from_secs(3) * patience(), "it answers");
        assert!(daemon.stop().success(), "and stops in order");
    }
}

/// Each source that asks such a server must be down, or say what is wrong.
fn says_what_is_wrong(daemon: &Daemon, asked: &[&str]) {
    let names = |server: &str| match server {
        "cri" => "runtime (",
        "docker" => "docker",
        "api" => "kubernetes",
        "kubelet" => "kubelet",
        server if server.starts_with("etcd") => "calico",
        _ => "otlp",
    };
    // With HTTP, status 200 means that the collector accepted the data, whatever the body says.
    for server in asked.iter().filter(|server| **server != "otlp-http") {
        let all = daemon.list("sources", &["doctor"]);
        let is = |one: &&Value| one["name"].as_str().is_some_and(|n| n.starts_with(names(server)));
        let source = all.iter().find(is).unwrap_or_else(|| panic!("{server}: {all:#?}"));
        println!("{server}: {source}");
        assert_ne!(source["status"], "active", "{server}: {source:#}");
    }
}
