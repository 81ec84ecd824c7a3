//! What decides reachability, as it is dumped.

use super::*;
use crate::fact::{Hop, LinkDetail, Route};
use crate::sources::netlink::testing::{has_device, ip};

/// The nsids that a netns uses for others, and what they resolve to.
fn peers(facts: &[Fact]) -> BTreeSet<(i32, Option<u64>, Option<i32>)> {
    let peer = |fact: &Fact| match fact.what {
        Observation::PeerNetns { nsid, peer, .. } => Some((nsid, peer.cookie, peer.nsid)),
        _ => None,
    };
    facts.iter().filter_map(peer).collect()
}

fn routes(facts: &[Fact]) -> Vec<Route> {
    let route = |fact: &Fact| match &fact.what {
        Observation::Route { route, .. } => Some(route.clone()),
        _ => None,
    };
    facts.iter().filter_map(route).collect()
}

fn adopt(requests: &mut Requests, netns: &Netns) -> Vec<Fact> {
    requests.adopt(NetnsRef::default(), &door(netns), &[], false).unwrap()
}

#[test]
fn whose_the_other_ends_of_links_are() {
    if !root() {
        return;
    }
    in_new_netns(|| {
        let mut requests = Requests::new().unwrap();
        let (first, netns, other) = (Netns::new(), Netns::new(), Netns::new());
        adopt(&mut requests, &first); // so that numbers here and there differ
        ip("link add v0 type veth peer name v1");
        ip(&format!("link add m0 link v0 netns {} type macvlan", netns.pid()));
        netns.ip(&format!("link add side type veth peer name side netns {}", other.pid()));
        let vlan = has_device("link v0 type vlan id 9");
        if vlan {
            ip(&format!("link add l0 link v0 netns {} type vlan id 9", netns.pid()));
        }
        let first = adopt(&mut requests, &netns);
        let number = |name: &str, facts: &[Fact]| link(facts, name).unwrap().peer_nsid.unwrap();
        let host = (number("m0", &first), requests.host().cookie, None);
        // The other netns has no name on the host yet.
        assert_eq!(peers(&first), [host].into());

        // In that netns the host has no nsid.
        let from_other = adopt(&mut requests, &other);
        let expected = (number("side", &from_other), None, names(&first).nsid);
        assert_eq!(peers(&from_other), [expected].into());
        let again = adopt(&mut requests, &netns);
        let expected = (number("side", &again), None, names(&from_other).nsid);
        assert_eq!(peers(&again), [host, expected].into());
        if vlan {
            assert_eq!(number("l0", &again), host.0);
        }
        assert_eq!(peers(&requests.dump_host().unwrap()), [].into(), "it uses its own names");
    });
}

#[test]
fn bridges_and_routes_are_dumped() {
    if !root() {
        return;
    }
    in_new_netns(|| {
        let mut requests = Requests::new().unwrap();
        ip("link add v0 type veth peer name v1");
        let port = |facts: &[Fact]| {
            facts.iter().any(|fact| {
                matches!(fact.what, Observation::Vlans { .. } | Observation::Port { .. })
            })
        };
        assert!(!port(&requests.dump_host().unwrap()), "no bridge, no question about its ports");
        ip("link add br0 type bridge");
        ip("link set v0 master br0");
        ip("link set v0 type bridge_slave isolated on");
        for device in ["lo", "v0", "v1"] {
            ip(&format!("link set {device} up"));
        }
        ip("addr add 192.0.2.1/24 dev v1");
        ip("route add default via 192.0.2.254");
        ip("route append default via 192.0.2.253");
        ip("route add 198.51.100.7/32 dev v1 table 1000");
        ip("route add 203.0.113.0/24 dev v1");
        ip("route add blackhole 203.0.113.7/32");
        ip("-6 route add 2001:db8::7/128 dev v1");

        let facts = requests.dump_host().unwrap();

        let v0 = link(&facts, "v0").unwrap();
        assert!(v0.isolated && !link(&facts, "v1").unwrap().isolated);
        assert!(port(&facts));
        let detail = link(&facts, "br0").unwrap().detail;
        assert_eq!(detail, Some(LinkDetail::Bridge { vlan_filtering: false }));
        let routes = routes(&facts);
        let told: Vec<_> =
            routes.iter().map(|route| (route.key.to.to_string(), route.key.table)).collect();
        let main = |to: &str| (to.to_owned(), 254);
        let expected = [
            main("0.0.0.0"),
            main("0.0.0.0"),
            ("198.51.100.7".to_owned(), 1000),
            main("2001:db8::7"),
        ];
        assert_eq!(BTreeSet::from_iter(told.clone()), BTreeSet::from_iter(expected), "{told:?}");
        assert_eq!(told.len(), 4);
        // The default route with the best metric comes first.
        let v1 = link(&facts, "v1").unwrap().ifindex;
        let gateway = |ip: &str| vec![Hop { ifindex: v1, gateway: Some(ip.parse().unwrap()) }];
        let defaults: Vec<_> = routes.iter().filter(|route| route.key.prefix_len == 0).collect();
        assert_eq!(defaults[0].hops, gateway("192.0.2.254"));
        assert_eq!(defaults[1].hops, gateway("192.0.2.253"));
        let scope = Scope::Routes { netns: requests.host() };
        assert!(ended(&facts).contains(&(scope, true)));
    });
}
