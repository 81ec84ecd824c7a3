//! Calico's datastore in a real etcd, through both APIs, and etcd's failures: while it is silent nothing is
//! concluded, the daemon pauses between its requests, and what etcd says afterwards counts again.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::json;
use support::etcd::Etcd;
use support::poll::until;
use support::{Config, Daemon, Lab};

support::tests! {
    both_apis_are_followed needs [Etcd],
    what_is_reserved_there_is_known needs [Etcd],
    a_killed_one_is_down_and_comes_back needs [Etcd],
    a_hung_v3_is_down_and_comes_back needs [Etcd],
    a_hung_v2_is_down_and_comes_back needs [Etcd],
    what_was_compacted_meanwhile_is_listed_again needs [Etcd],
    who_may_not_read_is_told_so needs [Etcd],
    tls_with_a_client_certificate needs [Etcd],
    a_configuration_is_checked_with_its_files needs [],
}

const APIS: [&str; 2] = ["v3", "v2"];
/// The node that owns the blocks.
const NODE: &str = "node-1";

/// The key of block `n`; both APIs use the same one, but neither sees the other's data.
fn key(n: u32) -> String {
    format!("/calico/ipam/v2/assignment/ipv4/block/192.0.2.{}-30", n * 4)
}

/// A block of four IPs, all free.
fn block(n: u32) -> String {
    let cidr = format!("192.0.2.{}/30", n * 4);
    json!({ "cidr": cidr, "affinity": format!("host:{NODE}"), "strictAffinity": false,
        "allocations": [null, null, null, null], "unallocated": [0, 1, 2, 3], "attributes": [] })
    .to_string()
}

fn put(etcd: &Etcd, api: &str, n: u32) {
    match api {
        "v3" => etcd.put(&key(n), &block(n)),
        _ => etcd.set(&key(n), &block(n)),
    }
}

fn watching(lab: &Lab, etcd: &Etcd, api: &str) -> Daemon {
    let state = lab.subdir(&format!("state-{api}"));
    let config = Config::default().line(&etcd.lines(api));
    let mut daemon = Daemon::spawn(lab, &config, &state);
    daemon.await_ready();
    daemon
}

#[track_caller]
fn await_state(daemon: &Daemon, status: &str, part: &str) {
    await_source(daemon, "calico", status, part);
}

#[track_caller]
fn await_source(daemon: &Daemon, name: &str, status: &str, part: &str) {
    let mut seen = None;
    support::poll::settle(90, || {
        seen = daemon.source(name);
        seen.as_ref().is_some_and(|source| {
            source["status"] == status
                && source["detail"].as_str().is_some_and(|detail| detail.contains(part))
        })
    });
    let seen = seen.expect("the source");
    let detail = seen["detail"].as_str().unwrap_or_default();
    assert!(seen["status"] == status && detail.contains(part), "{status} {part}: {seen}");
}

#[track_caller]
fn assert_nothing_flagged(daemon: &Daemon) {
    let about = |finding: &serde_json::Value| finding.to_string().contains("calico");
    let flagged: Vec<_> = daemon.findings().into_iter().filter(about).collect();
    assert!(flagged.is_empty(), "{flagged:#?}");
}

fn both_apis_are_followed(lab: &Lab) {
    let etcd = Etcd::start(lab);
    for api in APIS {
        for n in 0..3 {
            put(&etcd, api, n);
        }
        let daemon = watching(lab, &etcd, api);
        await_state(&daemon, "active", &format!("etcd {api} {}, 3 keys", etcd.url()));
        assert_nothing_flagged(&daemon);
        daemon.stop();
    }
}

/// Counts the connections to etcd's port within `seconds` while etcd is down.
fn callers(port: u16, seconds: u64) -> usize {
    let door = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("its port");
    door.set_nonblocking(true).expect("ask without waiting");
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut came = 0;
    while Instant::now() < until {
        match door.accept() {
            Ok(_) => came += 1,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    came
}

fn a_killed_one_is_down_and_comes_back(lab: &Lab) {
    let mut etcd = Etcd::start(lab);
    for api in APIS {
        put(&etcd, api, 0);
        let daemon = watching(lab, &etcd, api);
        await_state(&daemon, "active", "1 keys");
        etcd.crash();
        await_state(&daemon, "down", "");
        let came = callers(etcd.port(), 4);
        assert!((1..=8).contains(&came), "{came} in 4 s");
        etcd.restart();
        // The watch continues at its revision: nothing is listed again.
        put(&etcd, api, 1);
        await_state(&daemon, "active", "1 keys");
        assert_nothing_flagged(&daemon);
        daemon.stop();
    }
}

fn a_hung_v3_is_down_and_comes_back(lab: &Lab) {
    hangs(lab, "v3");
}

fn a_hung_v2_is_down_and_comes_back(lab: &Lab) {
    hangs(lab, "v2");
}

fn hangs(lab: &Lab, api: &str) {
    let etcd = Etcd::start(lab);
    put(&etcd, api, 0);
    let daemon = watching(lab, &etcd, api);
    await_state(&daemon, "active", "1 keys");
    etcd.hang();
    await_state(&daemon, "down", "");
    etcd.go_on();
    await_state(&daemon, "active", "1 keys");
    assert_nothing_flagged(&daemon);
}

fn what_was_compacted_meanwhile_is_listed_again(lab: &Lab) {
    let mut etcd = Etcd::start(lab);
    for api in APIS {
        put(&etcd, api, 0);
        let daemon = watching(lab, &etcd, api);
        await_state(&daemon, "active", "1 keys");
        etcd.while_away(|etcd| {
            put(etcd, api, 1);
            put(etcd, api, 2);
            match api {
                "v3" => etcd.compact(),
                // The v2 API keeps the last thousand events.
                _ => etcd.set("/else/[1-1100]", "x"),
            }
        });
        await_state(&daemon, "active", "3 keys");
        let asked = match api {
            "v3" => etcd.counted("grpc_server_started_total{grpc_method=\"Range\""),
            _ => etcd.counted("etcd_http_received_total{method=\"QGET\""),
        };
        assert!(asked < 40, "{asked} requests");
        assert_nothing_flagged(&daemon);
        daemon.stop();
    }
}

fn who_may_not_read_is_told_so(lab: &Lab) {
    let etcd = Etcd::start(lab);
    put(&etcd, "v3", 0);
    for user in ["root", "ipwatch"] {
        etcd.v3("auth/user/add", &json!({ "name": user, "password": "canary" }));
        etcd.v3("auth/role/add", &json!({ "name": user }));
    }
    etcd.v3("auth/user/grant", &json!({ "user": "root", "role": "root" }));
    etcd.v3("auth/enable", &json!({}));
    let file = lab.subdir("user").join("etcd-user");
    std::fs::write(&file, "ipwatch:wrong\n").unwrap();
    let lines = format!("{}etcd_user_file = {file:?}\n", etcd.lines("v3"));
    let daemon = Daemon::start(lab, &Config::default().line(&lines));
    await_state(&daemon, "down", "does not take our credentials");
    // The credentials file is read again at each attempt.
    std::fs::write(&file, "ipwatch:canary\n").unwrap();
    await_state(&daemon, "down", "we may not read it");
    assert!(!daemon.log().contains("canary"), "{}", daemon.log());
    let answer = etcd.v3("auth/authenticate", &json!({ "name": "root", "password": "canary" }));
    let token = answer["token"].as_str().unwrap();
    for (prefix, end) in [
        ("/calico/ipam/v2/assignment/", "/calico/ipam/v2/assignment0"),
        (
            "/calico/resources/v3/projectcalico.org/workloadendpoints/",
            "/calico/resources/v3/projectcalico.org/workloadendpoints0",
        ),
    ] {
        etcd.grant_read(token, "ipwatch", prefix, end);
    }
    etcd.grant(token, "ipwatch", "ipwatch");
    await_state(&daemon, "active", "1 keys");
    // A role from before pools were read: all the rest is followed.
    await_source(&daemon, "calico-pools", "down", "we may not read it");
    assert_nothing_flagged(&daemon);
}

fn tls_with_a_client_certificate(lab: &Lab) {
    let etcd = Etcd::secure(lab);
    for api in APIS {
        put(&etcd, api, 0);
        let daemon = watching(lab, &etcd, api);
        await_state(&daemon, "active", &format!("etcd {api} https://127.0.0.1:"));
        daemon.stop();
    }
}

fn a_configuration_is_checked_with_its_files(lab: &Lab) {
    let file = lab.subdir("config").join("ipwatch.toml");
    let check = |url: &str, lines: &str| {
        std::fs::write(&file, format!("[calico]\netcd_endpoints = [{url:?}]\n{lines}")).unwrap();
        let mut command = std::process::Command::new(support::daemon::binary());
        let out = command.args(["config", "check"]).arg(&file).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (secure, near) = ("https://a", "http://127.0.0.1:2379");
    let (fine, said) = check(secure, "etcd_ca_file = \"/nowhere/ca.pem\"");
    assert!(!fine && said.contains("/nowhere/ca.pem: No such file"), "{said}");
    let (fine, said) = check(near, "etcd_ca_fil = \"/nowhere/ca.pem\"");
    assert!(!fine && said.contains("did you mean `etcd_ca_file`?"), "{said}");
    let (fine, said) = check(near, "etcd_api = \"v1\"");
    assert!(!fine && said.contains("v3"), "{said}");
    let (fine, said) = check(near, "");
    assert!(fine, "{said}");
}

/// This node's name as the daemon uses it.
pub(crate) fn node() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

/// A block of this node with one IP allocated: with a container's handle, or with the pod's as Calico of reproduction
/// R5 does.
fn taken(api: &str, handle: &str) -> String {
    let node = node();
    let of = match api {
        "v3" => json!({ "affinity": format!("host:{node}") }),
        _ => json!({ "hostAffinity": node }),
    };
    let secondary = match api {
        "v3" => json!({ "namespace": "shop", "node": node, "pod": "web-0",
            "timestamp": "2026-01-02 03:04:05.678 +0000 UTC" }),
        _ => json!({}),
    };
    let mut block = json!({ "cidr": "192.0.2.0/30", "strictAffinity": false,
        "allocations": [null, 0, null, null], "unallocated": [0, 2, 3],
        "attributes": [{ "handle_id": handle, "secondary": secondary }] });
    for (name, value) in of.as_object().unwrap() {
        block[name] = value.clone();
    }
    block.to_string()
}

/// Other keys of the store, as `(key, value)`: a pod's endpoint on this node, the pool of its IP, and a handle, which
/// the daemon does not read.
fn others(api: &str, container: &str) -> [(String, String); 3] {
    let node = node();
    let doubled = node.replace('-', "--");
    let handle = ("/calico/ipam/v2/handle/shop.web-0".to_owned(), json!({}).to_string());
    match api {
        "v3" => {
            let root = "/calico/resources/v3/projectcalico.org";
            let name = format!("{doubled}-k8s-web--0-eth0");
            let endpoint = json!({ "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
                "metadata": { "name": name, "namespace": "shop" },
                "spec": { "orchestrator": "k8s", "node": node, "pod": "web-0", "containerID": container,
                    "endpoint": "eth0", "interfaceName": "cali12345678901",
                    "ipNetworks": ["192.0.2.1/32"] } });
            let pool = json!({ "kind": "IPPool", "apiVersion": "projectcalico.org/v3",
                "metadata": { "name": "pool" }, "spec": { "cidr": "192.0.2.0/24", "blockSize": 30 } });
            [
                (format!("{root}/workloadendpoints/shop/{name}"), endpoint.to_string()),
                (format!("{root}/ippools/pool"), pool.to_string()),
                handle,
            ]
        }
        _ => {
            let endpoint = json!({ "state": "active", "name": "cali12345678901", "mac": null,
                "profile_ids": [], "ipv4_nets": ["192.0.2.1/32"], "ipv6_nets": [] });
            let pool = json!({ "cidr": "192.0.2.0/24", "ipip": "", "masquerade": true });
            [
                (
                    format!("/calico/v1/host/{node}/workload/k8s/shop.web-0/endpoint/eth0"),
                    endpoint.to_string(),
                ),
                ("/calico/v1/ipam/v4/pool/192.0.2.0-24".to_owned(), pool.to_string()),
                handle,
            ]
        }
    }
}

fn what_is_reserved_there_is_known(lab: &Lab) {
    let etcd = Etcd::start(lab);
    let container = "8f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
    for api in APIS {
        let put = |key: &str, value: &str| match api {
            "v3" => etcd.put(key, value),
            _ => etcd.set(key, value),
        };
        let handle = match api {
            "v3" => format!("k8s-pod-network.{container}"),
            _ => "shop.web-0".to_owned(),
        };
        put(&key(0), &taken(api, &handle));
        for (key, value) in others(api, container) {
            put(&key, &value);
        }
        let daemon = watching(lab, &etcd, api);
        await_state(&daemon, "active", ", 2 keys");
        let known = || daemon.list("reservations", &["query", "ipam", "192.0.2.1"]);
        until("the reservation is known", 20, || !known().is_empty());
        let all = known();
        assert_eq!(all.len(), 1, "{all:#?}");
        assert_eq!(all[0]["store"], "calico", "{all:#?}");
        assert_eq!(all[0]["pod"]["name"], "web-0", "{all:#?}");
        if api == "v3" {
            assert_eq!(all[0]["container_id"], container, "{all:#?}");
        }
        // Allocations of other nodes are no reservations here, but count as used.
        let used = || {
            let all = daemon.list("ranges", &["query", "ipam"]);
            let pool = all.iter().find(|range| range["store"] == "calico");
            pool.and_then(|pool| Some((pool["usable"].as_u64()?, pool["used"].as_u64()?)))
        };
        until("what the pool has left is known", 20, || used() == Some((256, 1)));
        let far = block(1).replace("[null,null,null,null]", "[7,null,8,9]");
        put(&key(1), &far);
        until("another node has taken three", 20, || used() == Some((256, 4)));
        // The block is freed while it is watched, and then allocated again.
        put(&key(0), &block(0));
        until("the reservation is gone", 20, || known().is_empty());
        until("and so it is of the pool", 20, || used() == Some((256, 3)));
        put(&key(0), &taken(api, &handle));
        until("the reservation is back", 20, || !known().is_empty());
        match api {
            "v3" => etcd.delete(&key(0)),
            // A directory: etcd names none of the keys in it.
            _ => etcd.remove("/calico/ipam/v2/assignment/ipv4"),
        }
        until("its block is gone", 20, || known().is_empty());
        let left = if api == "v3" { 3 } else { 0 };
        until("of the pool as well", 20, || used() == Some((256, left)));
        daemon.stop();
    }
}
