//! This node's allocations in blocks, and how many IPs of each block are allocated.

use serde_json::{Value, json};

use super::*;

const ID: &str = "aa4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
const KEY: &str = "ipamblocks/10-0-0-0-29";

fn told(blocks: &mut Blocks, value: &Value) -> Vec<String> {
    let mut out = Vec::new();
    blocks.block(KEY, Block::read(value), &mut out);
    texts(&out)
}

fn texts(out: &[Observation]) -> Vec<String> {
    let text = |what: &Observation| match what {
        Observation::Reservation(one) => {
            let pod = one.pod.as_ref().map(|pod| format!(" {}/{}", pod.namespace, pod.name));
            let id = one.container_id.as_deref().map_or("-", |id| &id[..4]);
            let at = one.key.strip_prefix(KEY).unwrap_or_default();
            format!("{at} {} {id} {}{}", one.ip, one.network, pod.unwrap_or_default())
        }
        Observation::ReservationGone { key, .. } => format!("gone {key}"),
        Observation::Ended { complete, .. } => format!("ended {complete}"),
        other => serde_json::to_value(other).unwrap()["what"].as_str().unwrap().to_owned(),
    };
    // The numbers of allocated IPs are tested separately.
    let counts = |what: &&Observation| {
        let scope = match what {
            Observation::Block(_) | Observation::BlockGone { .. } => return false,
            Observation::Began(scope) | Observation::Ended { scope, .. } => scope,
            _ => return true,
        };
        *scope != all_blocks()
    };
    out.iter().filter(counts).map(text).collect()
}

fn pods(node: Option<&str>, handle: &str) -> Value {
    json!({"handle_id": handle, "secondary": {
        "node": node, "namespace": "shop", "pod": "api-0",
        "timestamp": "2024-05-01 10:11:12.5 +0000 UTC",
    }})
}

fn block(allocations: Value, attributes: Vec<Value>) -> Value {
    json!({"cidr": "10.0.0.0/29", "affinity": "host:node-1",
        "allocations": allocations, "attributes": attributes})
}

#[test]
fn only_what_is_this_nodes_is_told() {
    let handle = format!("k8s-pod-network.{ID}");
    let own = pods(Some("node-1"), &handle);
    let borrowed = pods(Some("node-2"), &handle);
    let unsaid = json!({"handle_id": handle});
    let mut blocks = Blocks::new("node-1".to_owned());
    let now = block(json!([0, 1, 2, null, null, null, null, null]), vec![own, borrowed, unsaid]);
    let expected = [
        "/0 10.0.0.0 aa4c k8s-pod-network shop/api-0".to_owned(),
        "/2 10.0.0.2 aa4c k8s-pod-network".to_owned(),
    ];
    assert_eq!(told(&mut blocks, &now), expected);
    assert_eq!(blocks.told[KEY].own[&0].since, Some(1_714_558_272_500_000_000));
    assert_eq!(blocks.told[KEY].own[&2].since, None);
    // In another node's block, those that this node has borrowed.
    let mut other = Blocks::new("node-2".to_owned());
    assert_eq!(told(&mut other, &now), ["/1 10.0.0.1 aa4c k8s-pod-network shop/api-0"]);
    let none: [&str; 0] = [];
    assert_eq!(told(&mut blocks, &now), none, "nothing has changed");
    let deleted = json!({"cidr": "10.0.0.0/29", "deleted": true});
    assert_eq!(told(&mut blocks, &deleted).len(), 2, "both are gone");
    assert_eq!((blocks.followed, blocks.wrong), (0, 8));
}

/// The reported numbers of allocated IPs.
fn counted(out: &[Observation]) -> Vec<String> {
    let text = |what: &Observation| match what {
        Observation::Block(one) => {
            let first = one.first.map_or("?".to_owned(), |ip| ip.to_string());
            let taken = one.taken.map_or("?".to_owned(), |taken| taken.to_string());
            Some(format!("{} {first} {taken}", one.key))
        }
        Observation::BlockGone { key, .. } => Some(format!("gone {key}")),
        Observation::Began(scope) if *scope == all_blocks() => Some("began".to_owned()),
        Observation::Ended { scope, complete, .. } if *scope == all_blocks() => {
            Some(format!("ended {complete}"))
        }
        _ => None,
    };
    out.iter().filter_map(text).collect()
}

#[test]
fn how_many_are_taken_is_told_of_every_block_and_anew_when_it_changes() {
    let mut blocks = Blocks::new("node-1".to_owned());
    let others = |allocations: Value| {
        let attributes = json!([pods(Some("node-2"), "x"), {"handle_id": 7}]);
        json!({"cidr": "10.0.0.0/29", "affinity": "host:node-2",
            "allocations": allocations, "attributes": attributes})
    };
    let mut put = |value: &Value| {
        let mut out = Vec::new();
        blocks.block(KEY, Block::read(value), &mut out);
        blocks.overdue(&mut out);
        counted(&out)
    };
    let none: [&str; 0] = [];
    // Allocations of another node, with an owner that cannot be parsed, and with a missing attribute.
    let all = others(json!([0, 1, 99, null, null, null, null, null]));
    assert_eq!(put(&all), [format!("{KEY} 10.0.0.0 3")]);
    assert_eq!(put(&all), none, "nothing has changed");
    let moved = others(json!([0, 1, null, 99, null, null, null, null]));
    assert_eq!(put(&moved), none, "nor how many they are");
    assert_eq!(put(&others(json!([0, 1]))), [format!("{KEY} 10.0.0.0 ?")], "six are not told");
    let empty = others(json!([null, null, null, null, null, null, null, null]));
    assert_eq!(put(&empty), [format!("{KEY} 10.0.0.0 0")]);
    assert_eq!(put(&json!(7)), [format!("{KEY} 10.0.0.0 ?")], "it is no block any more");
    assert_eq!(
        put(&json!({"cidr": "10.0.0.0/29", "deleted": true})),
        [format!("{KEY} 10.0.0.0 0")]
    );
    let mut out = Vec::new();
    blocks.gone(KEY, &mut out);
    blocks.gone(KEY, &mut out);
    assert_eq!(counted(&out), [format!("gone {KEY}")]);
    // A block that was never parsed may be in any pool. During a list everything is reported.
    for _ in 0..2 {
        out.clear();
        blocks.began(&mut out);
        blocks.block(KEY, None, &mut out);
        blocks.ended(BootNs(1), true, &mut out);
        assert_eq!(counted(&out), ["began", &format!("{KEY} ? ?"), "ended true"]);
    }
}

#[test]
fn what_changes_all_the_time_is_told_now_and_then() {
    let mut blocks = Blocks::new("node-1".to_owned());
    let others = |taken: usize| {
        let slot = |n| if n < taken { json!(0) } else { Value::Null };
        block((0..8).map(slot).collect(), vec![pods(Some("node-2"), "x")])
    };
    let put = |blocks: &mut Blocks, key: &str, value: &Value| {
        let mut out = Vec::new();
        blocks.block(key, Block::read(value), &mut out);
        counted(&out)
    };
    let none: [&str; 0] = [];
    assert_eq!(put(&mut blocks, KEY, &others(1)), [format!("{KEY} 10.0.0.0 1")], "it is new");
    blocks.counted = clock::now().plus(3_600 * PAUSE);
    for taken in 2..7 {
        assert_eq!(put(&mut blocks, KEY, &others(taken)), none);
    }
    let mut out = Vec::new();
    blocks.overdue(&mut out);
    blocks.overdue(&mut out);
    assert_eq!(counted(&out), [format!("{KEY} 10.0.0.0 6")], "the last, and once");
    // If something must be reported, everything delayed is reported too.
    assert_eq!(put(&mut blocks, KEY, &others(5)), none);
    let (new, old) = (format!("{KEY}1 10.0.0.0 1"), format!("{KEY} 10.0.0.0 5"));
    assert_eq!(put(&mut blocks, &format!("{KEY}1"), &others(1)), [new, old]);
    assert_eq!(put(&mut blocks, KEY, &json!(7)), [format!("{KEY} 10.0.0.0 ?")], "at once");
    assert_eq!(put(&mut blocks, KEY, &others(5)), [format!("{KEY} 10.0.0.0 5")], "at once");
    blocks.counted = clock::now().plus(3_600 * PAUSE);
    assert_eq!(put(&mut blocks, KEY, &others(4)), none);
    blocks.counted = BootNs(0);
    assert_eq!(put(&mut blocks, KEY, &others(3)), [format!("{KEY} 10.0.0.0 3")], "after a while");
    blocks.counted = clock::now().plus(3_600 * PAUSE);
    assert_eq!(put(&mut blocks, KEY, &others(2)), none);
    let mut out = Vec::new();
    blocks.gone(KEY, &mut out);
    blocks.overdue(&mut out);
    assert_eq!(counted(&out), [format!("gone {KEY}")]);
}

#[test]
fn what_is_no_containers_has_none() {
    let named = |handle: &str, secondary: Value| {
        let value = block(
            json!([0, null, null, null, null, null, null, null]),
            vec![json!({"handle_id": handle, "secondary": secondary})],
        );
        let mut blocks = Blocks::new("node-1".to_owned());
        let mut out = Vec::new();
        blocks.block(KEY, Block::read(&value), &mut out);
        let [Observation::Block(_), Observation::Reservation(one)] = &out[..] else {
            panic!("{out:?}")
        };
        (one.container_id.clone(), one.pod.as_ref().map(|pod| pod.name.clone()), one.ifname.clone())
    };
    let tunnel = json!({"node": "node-1", "type": "ipipTunnelAddress"});
    let pod = |name: &str| Some(name.to_owned());
    assert_eq!(named("ipip-tunnel-addr-node-1", tunnel), (None, None, None));
    assert_eq!(named(&format!("vxlan-tunnel-addr-x.{ID}"), json!(null)), (None, None, None));
    assert_eq!(named("windows-reserved-ipam-handle", json!({"note": "x"})), (None, None, None));
    let service = json!({"type": "serviceLoadBalancer", "namespace": "a", "service": "b"});
    assert_eq!(named(&format!("lb-{ID}.{ID}"), service), (None, None, None));
    let machine = json!({"node": "node-1", "namespace": "shop", "pod": "vm-launcher"});
    assert_eq!(named("k8s-pod-network.vmi.shop.vm", machine), (None, pod("vm-launcher"), None));
    assert_eq!(named("shop.api-0", json!(null)), (None, pod("api-0"), None), "the first datastore");
    let torn = format!("net.work.{ID}\r\neth0");
    assert_eq!(named(&torn, json!({})), (Some(ID.to_owned()), None, pod("eth0")));
    assert_eq!(named("", json!({})), (None, None, None));
}

#[test]
fn what_is_not_understood_any_more_stands() {
    let own = pods(Some("node-1"), &format!("net.{ID}"));
    let mut blocks = Blocks::new("node-1".to_owned());
    let whole = json!([0, 0, null, null, null, null, null, null]);
    assert_eq!(told(&mut blocks, &block(whole, vec![own.clone()])).len(), 2);
    let broken = json!([7, -1, null, null, null, null, null, null]);
    let broken = block(broken, vec![own]);
    let none: [&str; 0] = [];
    assert_eq!((told(&mut blocks, &broken), blocks.wrong()), (none.map(str::to_owned).to_vec(), 2));
    // A list reports it again, or it would count as gone.
    let mut out = Vec::new();
    blocks.began(&mut out);
    blocks.block(KEY, Block::read(&broken), &mut out);
    blocks.ended(BootNs(1), true, &mut out);
    let all = texts(&out);
    assert_eq!((all.len(), all[3].as_str()), (4, "ended true"));
    let no_block = json!("no block");
    assert_eq!((told(&mut blocks, &no_block).len(), blocks.wrong()), (0, 1));
    let mut out = Vec::new();
    blocks.began(&mut out);
    blocks.ended(BootNs(2), true, &mut out);
    assert_eq!((blocks.followed, blocks.wrong()), (0, 0), "the list did not name it");
}

#[test]
fn an_ipv6_block_has_ordinals_too() {
    let mut blocks = Blocks::new("node-1".to_owned());
    let mut slots = vec![Value::Null; 64];
    slots[63] = json!(0);
    let value = json!({"cidr": "fd00:1::40/122", "affinity": "host:node-1", "allocations": slots,
        "attributes": [pods(Some("node-1"), &format!("net.{ID}"))]});
    assert_eq!(told(&mut blocks, &value), ["/63 fd00:1::7f aa4c net shop/api-0"]);
    assert_eq!(blocks.wrong(), 0);
}

#[test]
fn of_five_hundred_blocks_one_nodes_allocations_are_kept() {
    let mut blocks = Blocks::new("node-7".to_owned());
    let mut out = Vec::new();
    blocks.began(&mut out);
    for n in 0..500_u32 {
        let node = format!("node-{}", n / 4);
        let attributes: Vec<Value> =
            (0..64).map(|_| pods(Some(&node), &format!("net.{ID}"))).collect();
        let value = json!({"cidr": format!("10.{}.{}.0/26", n >> 8, n & 255),
            "affinity": format!("host:{node}"), "allocations": (0..64).collect::<Vec<u32>>(),
            "attributes": attributes});
        blocks.block(&format!("ipamblocks/{n}"), Block::read(&value), &mut out);
    }
    blocks.ended(BootNs(1), true, &mut out);
    let all = (texts(&out).len(), counted(&out).len());
    assert_eq!((all, blocks.followed, blocks.told.len()), ((258, 502), 256, 500));
    assert_eq!(blocks.wrong(), 0);
}
