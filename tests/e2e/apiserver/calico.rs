//! Calico's blocks and pools in a real API server, which validates them; no part of Calico runs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::fake_cri::FakeCri;
use support::kubernetes::{ControlPlane, calico};
use support::poll::until;
use support::{Daemon, Lab, Sandbox};

use super::{Cluster, SOON};

support::tests! {
    what_is_no_allocation_of_a_block_spoils_no_other needs [SharedApiServer],
    a_leak_of_a_block_is_freed_and_comes_back needs [ApiServer, FakeCri],
}

const STORE: &str = "calico";

fn what_is_no_allocation_of_a_block_spoils_no_other(lab: &Lab) {
    let control = ControlPlane::shared(lab);
    calico::define(&control);
    let id = |c: char| c.to_string().repeat(64);
    let owner = |handle: String, node: &str| json!({ "handle_id": handle, "secondary": { "namespace": "shop", "node": node, "pod": "api-0" } });
    let of = |cidr: &str, node: &str, allocations: Value, attributes: Value| {
        let spec = json!({
            "cidr": cidr, "affinity": format!("host:{node}"), "strictAffinity": false,
            "allocations": allocations, "unallocated": [], "attributes": attributes, "deleted": false,
        });
        calico::block(&control, &spec)
    };
    let own = lab.tag();
    // The API server refuses this one.
    assert!(of("10.0.9.0/30", own, json!(["0"]), json!([])).is_err(), "it validates");
    // Nulls for free IPs; an index out of range; a handle followed by a line break and an interface name; one IP that
    // another node has borrowed.
    let owners = json!([
        owner(format!("net.{}", id('a')), own),
        owner(format!("net.{}\r\neth0", id('b')), own),
        owner(format!("net.{}", id('c')), "far"),
    ]);
    of("10.0.0.0/29", own, json!([null, 0, 1, 99, -1, 2, null, null]), owners).unwrap();
    // This node has borrowed one IP of another node's block.
    let owners =
        json!([owner(format!("net.{}", id('d')), own), owner(format!("net.{}", id('e')), "far")]);
    of("10.0.1.0/30", "far", json!([0, 1, null, null]), owners).unwrap();
    of("fd00::/126", own, json!([null, 0]), json!([owner(format!("net.{}", id('f')), own)]))
        .unwrap();

    // Two of the blocks belong to a pool; in the second pool's only block the number of used IPs is unknown; the last
    // pool is disabled.
    calico::pool(&control, "shop", &json!({ "cidr": "10.0.0.0/23", "blockSize": 29 }));
    calico::pool(&control, "six", &json!({ "cidr": "fd00::/64", "blockSize": 126 }));
    calico::pool(&control, "off", &json!({ "cidr": "10.9.0.0/16", "disabled": true }));

    let config = control.agent_config();
    let lines = format!("[kubernetes]\nkubeconfig = {config:?}\ncalico = true\nnode = {own:?}");
    let daemon = Daemon::start(lab, &support::Config::default().line(&lines));
    let expected: BTreeSet<(String, String)> =
        [("10.0.0.1", 'a'), ("10.0.0.2", 'b'), ("10.0.1.0", 'd'), ("fd00::1", 'f')]
            .map(|(ip, of)| (ip.to_owned(), id(of)))
            .into();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut known = BTreeSet::new();
    until("this node's allocations are known", 40, || {
        let both =
            ["0.0.0.0/0", "::/0"].map(|all| daemon.list("reservations", &["query", "ipam", all]));
        let mut all = both.concat();
        all.retain(|entry| entry["store"] == STORE);
        known = all.iter().map(|one| (text(&one["ip"]), text(&one["container_id"]))).collect();
        known.len() >= expected.len()
    });
    assert_eq!(known, expected);
    let source = daemon.source(STORE).unwrap();
    assert_eq!(source["status"], "degraded", "{source}");

    // A pool's used IPs: all allocations, by this node or by others, whoever owns them.
    let pools = || {
        let mut all = daemon.list("ranges", &["query", "ipam"]);
        all.retain(|range| range["store"] == STORE);
        let number = |range: &Value, name: &str| range[name].as_u64().unwrap_or(u64::MAX);
        let one = |range: &Value| {
            let left = ["usable", "used", "free"].map(|name| number(range, name));
            (text(&range["network"]), left)
        };
        all.iter().map(one).collect::<Vec<_>>()
    };
    let are = |used: u64| {
        vec![
            ("default".to_owned(), [1 << 22, 0, 1 << 22]),
            ("shop".to_owned(), [512, used, 512 - used]),
        ]
    };
    until("what the pools have left is known", 20, || pools() == are(7));
    let at = daemon.list("ranges", &["query", "ipam", "10.0.1.0"]);
    assert!(at.len() == 1 && at[0]["network"] == "shop", "{at:#?}");
    // Another node has allocated one more.
    of(
        "10.0.1.4/30",
        "far",
        json!([0, null, null, null]),
        json!([owner(format!("net.{}", id('e')), "far")]),
    )
    .unwrap();
    until("one more is taken", 20, || pools() == are(8));
}

/// `ipwatch fix` releases an assignment as Calico does: the block, then its handle; and brings it back.
fn a_leak_of_a_block_is_freed_and_comes_back(lab: &Lab) {
    let mut cluster = Cluster::start(lab, &[]);
    calico::define(&cluster.control);
    let (dead, living) = (cluster.pods.remove(0), &cluster.pods[0]);
    let (cidr, ip) = (format!("{}/29", lab.ip(64)), lab.ip(64).to_string());
    let handle = |id: &str| format!("net.{id}");
    let owner = |id: &str, pod: &str, node: &str| json!({ "handle_id": handle(id), "secondary": { "namespace": Sandbox::NAMESPACE, "node": node, "pod": pod } });
    let owners = [
        owner(&dead.paper.sandbox, &dead.paper.name, lab.tag()),
        owner(&living.paper.sandbox, &living.paper.name, lab.tag()),
        owner(&"e".repeat(64), "far-0", "far"),
    ];
    let spec = json!({
        "cidr": cidr, "affinity": format!("host:{}", lab.tag()), "strictAffinity": false,
        "allocations": [0, 1, 2, null, null, null, null, null], "unallocated": [3, 4, 5, 6, 7],
        "attributes": owners, "deleted": false,
    });
    let block = calico::block(&cluster.control, &spec).expect("a block");
    let name = block["metadata"]["name"].as_str().expect("a name").to_owned();
    let api = cluster.control.api();
    let handles = "/apis/crd.projectcalico.org/v1/ipamhandles";
    for id in [&dead.paper.sandbox, &living.paper.sandbox] {
        let object = json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle",
            "metadata": { "name": handle(id) },
            "spec": { "handleID": handle(id), "block": { &*cidr: 1 }, "deleted": false },
        });
        api.create(handles, &object);
    }
    let lines = format!("{}\ncalico = true", cluster.lines());
    let daemon = Daemon::start(lab, &cluster.config().line(&lines));
    until("the assignment is known", SOON, || {
        daemon.list("reservations", &["query", "ipam", &ip]).iter().any(|one| one["ip"] == *ip)
    });
    daemon.await_source("containerd");
    // The pod is gone from the runtime, without a DEL.
    let rest = cluster.pods.iter().map(|pod| FakeCri::lines(&pod.paper, "READY"));
    cluster.runtime.has(&rest.collect::<String>());
    let (id, pod) = (dead.paper.sandbox.clone(), dead.paper.name.clone());
    drop(dead);
    let leak = daemon.await_firing("ipam-reservation-leaked", SOON * 2, crate::lead::is_about(&ip));
    support::remedy::Shell::new(lab).looks(&leak);
    let finding = leak["id"].as_str().expect("an id");

    let config = cluster.control.admin_config();
    let fix = |args: &[&str]| {
        let mut command = crate::fix::command(lab, &daemon, args);
        command.arg("--kubeconfig").arg(&config).args(["-o", "json"]);
        crate::fix::items(&command.output().expect("run it"))
    };
    let spec = || {
        let path = format!("/apis/crd.projectcalico.org/v1/ipamblocks/{name}");
        api.get(&path).expect("the block")["spec"].clone()
    };
    let is_counted = |id: &str| api.get(&format!("{handles}/{}", handle(id))).is_ok();
    let before = spec();
    // A pod of that name is there, and nobody has told which IP it has.
    let (kept, code) = fix(&[finding, "--yes"]);
    let (state, why) = crate::fix::state(&kept, &ip);
    assert_eq!((state, code), ("skipped", Some(1)), "{kept:#?}");
    assert!(why.contains("again, and it may have this IP"), "{why}");
    assert_eq!(spec(), before);
    cluster.force_delete(&pod);

    let (done, code) = fix(&[finding, "--yes"]);
    assert_eq!(code, Some(0), "{done:#?}");
    let after = spec();
    assert_eq!(after["allocations"], json!([null, 0, 1, null, null, null, null, null]));
    assert_eq!(after["attributes"], json!(owners[1..]), "the living ones keep theirs");
    assert_eq!(after["unallocated"], json!([3, 4, 5, 6, 7, 0]));
    assert!(!is_counted(&id) && is_counted(&living.paper.sandbox));
    daemon.await_resolved(&leak, SOON);

    let (undone, code) = fix(&[finding, "--undo", "--yes"]);
    assert_eq!((code, crate::fix::state(&undone, &ip).0), (Some(0), "restored"), "{undone:#?}");
    let back = spec();
    assert_eq!(back["allocations"], json!([2, 0, 1, null, null, null, null, null]));
    assert_eq!(back["attributes"][2], owners[0]);
    assert!(is_counted(&id), "its handle, too");
}
