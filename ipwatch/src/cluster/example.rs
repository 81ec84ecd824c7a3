//! The example in `docs/contract/`: the report about an invented cluster, made by this code.

use std::path::Path;

use serde_json::json;

use super::document;
use super::fixtures::{Objects, crashed, overlapping, pod, pool};
use super::remedy::Kubectl;
use super::snapshot::{Listed, Snapshot, State};
use crate::contract::{Body, Document};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/contract/cluster-scan.json");
/// Number of findings in the example.
const SHOWN: usize = 4;

/// A node has crashed, one list is forbidden, an entry of another cannot be parsed, and other kinds do not exist.
fn look() -> Snapshot {
    let mut reservation = overlapping("192.168.7.11", "shop/old-0");
    reservation["metadata"]["uid"] = json!("5d0e7a52-63c1-4f0f-8f0e-0d9b6f3c1a11");
    reservation["metadata"]["resourceVersion"] = json!("48213");
    let told = Objects {
        pools: vec![
            pool(json!({
                "10": {"id": "8c1b52d0a9f3", "podref": "shop/web-0"},
                "11": {"id": "3d1f2a9d7e6f"},
                "12": {"id": "f7a6c2e18b04", "podref": "shop/web-1"},
                "13": {"id": "b2409c7f51de", "podref": "shop/old-1"},
                "14": {"id": "6e93d10c4ab8", "podref": "shop/web-2"},
                "x": {"id": "is no offset"},
            })),
            json!({
                "metadata": {"name": "fd00-7---64", "namespace": "kube-system"},
                "spec": {"range": "fd00:7::/64", "allocations": {
                    "10": {"id": "8c1b52d0a9f3", "podref": "shop/web-0"},
                    "11": {"id": "f7a6c2e18b04", "podref": "shop/web-1"},
                    "12": {"id": "6e93d10c4ab8", "podref": "shop/web-2"},
                }},
            }),
        ],
        overlapping: vec![
            overlapping("192.168.7.10", "shop/web-0"),
            reservation,
            overlapping("fd00-7--a", "shop/web-0"),
        ],
        pods: vec![
            pod("web-0", "node-1", "10.0.1.2", &["192.168.7.10", "fd00:7::a"]),
            pod("web-1", "node-2", "10.0.2.2", &["192.168.7.12", "fd00:7::b"]),
            pod("web-2", "node-2", "10.0.2.3", &["fd00:7::c"]),
            pod("twin", "node-1", "10.0.2.2", &[]),
        ],
        ..crashed()
    };
    let refused = "not allowed: needs the right to list ipamblocks.crd.projectcalico.org";
    Snapshot {
        blocks: Listed { items: Vec::new(), state: State::Unknown(refused.to_owned()) },
        handles: Listed::default(),
        calico_pools: Listed::default(),
        ..told.look()
    }
}

fn example() -> Document {
    let look = look();
    let mut example = document("https://10.0.0.1:6443", &look, &look, &Kubectl::default());
    example.taken_at = "2026-01-02T03:10:10.000Z".to_owned();
    let Body::Cluster(cluster) = &mut example.body else { panic!("no cluster") };
    // As if there were too many.
    cluster.more = cluster.findings.split_off(SHOWN).len() as u64;
    example
}

#[test]
fn the_example_of_the_contract_is_what_is_said() {
    let wanted = serde_json::to_string_pretty(&example()).unwrap() + "\n";
    if std::env::var_os("IPWATCH_BLESS").is_some() {
        std::fs::write(PATH, wanted).unwrap();
        return;
    }
    let there = crate::bounded::read_text(Path::new(PATH), 1 << 20).unwrap();
    assert!(
        there == wanted,
        "docs/contract/cluster-scan.json is behind the code: IPWATCH_BLESS=1 cargo test -p ipwatch --lib \
         the_example_of_the_contract writes it anew"
    );
}
