//! Every server that the daemon asks (a runtime of each kind, the kubelet, the API server, etcd by both APIs, the collector)
//! is bad in the same way at once. It costs neither memory nor any other finding, each source says what is wrong, and
//! nobody is asked without a pause.

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

/// For how long they are watched after the finding. Whoever takes what comes has hundreds of MiB by then.
const WATCHED: Duration = Duration::from_secs(8);
/// What the daemon may have meanwhile, in KiB. Most of it are pods that the API server without end names, 65,536 of which
/// are kept.
const MEMORY: u64 = 80 * 1024;
/// Connections that a client makes in that time at most: pauses of a second, two, four, eight, each at least half as long,
/// and in a session a few requests.
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

/// Two daemons: one of them asks the kubelet and an etcd by API v2, where the other asks the API server and API v3.
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
    // Without a runtime to ask, what stands idle would be a leak.
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
        // With a state of its own: the finding is news, for the collector too.
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
        for (name, one) in ours() {
            println!("{name}: {} came, {} asked, {} B sent", one.came(), one.asked(), one.sent());
            assert!(one.came() <= CONNECTIONS, "{name}: {} came", one.came());
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

/// Each source that such a server is asked for is down, or says what is wrong.
fn says_what_is_wrong(daemon: &Daemon, asked: &[&str]) {
    let names = |server: &str| match server {
        "cri" => "runtime (",
        "docker" => "docker",
        "api" => "kubernetes",
        "kubelet" => "kubelet",
        server if server.starts_with("etcd") => "calico",
        _ => "otlp",
    };
    // By HTTP the collector's 200 is its word that it took what it was sent, whatever it says besides.
    for server in asked.iter().filter(|server| **server != "otlp-http") {
        let all = daemon.list("sources", &["doctor"]);
        let is = |one: &&Value| one["name"].as_str().is_some_and(|n| n.starts_with(names(server)));
        let source = all.iter().find(is).unwrap_or_else(|| panic!("{server}: {all:#?}"));
        println!("{server}: {source}");
        assert_ne!(source["status"], "active", "{server}: {source:#}");
    }
}
