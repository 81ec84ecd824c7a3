//! Calico's blocks and pools in a real API server, which validates them; no part of Calico runs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::kubernetes::{ControlPlane, calico};
use support::poll::until;
use support::{Daemon, Lab};

support::tests! {
    what_is_no_allocation_of_a_block_spoils_no_other needs [SharedApiServer],
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
