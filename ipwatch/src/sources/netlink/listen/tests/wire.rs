//! Changes of what decides reachability: real devices, bridges and routes.

use std::process::Command;

use super::*;
use crate::fact::{Hop, Link, LinkDetail, Route, RouteKey, Vlans};
use crate::sources::netlink::testing::{has_device, run};

fn bridge(words: &str) {
    run(Command::new("bridge").args(words.split_whitespace()));
}

fn link(what: &Observation, name: &str) -> Option<Link> {
    match what {
        Observation::Link { link, .. } if link.name == name => Some(link.clone()),
        _ => None,
    }
}

/// The reported routes, in order, without the kernel's own.
fn routes(seen: &[Observation]) -> Vec<Result<Route, (RouteKey, Vec<Hop>)>> {
    let told = |what: &Observation| match what {
        Observation::Route { route, .. } => Some(Ok(route.clone())),
        Observation::RouteGone { key, hops, .. } => Some(Err((*key, hops.clone()))),
        _ => None,
    };
    seen.iter().filter_map(told).collect()
}

#[test]
fn routes_come_change_and_go() {
    listening(
        |_| {},
        async |heard| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            ip("link set v1 up");
            ip("addr add 192.0.2.1/24 dev v0");
            for words in [
                "route add default via 192.0.2.254",
                "route replace default via 192.0.2.253",
                "route add 198.51.100.7/32 dev v0",
                "route add 203.0.113.0/24 dev v0",
                "route del default",
                "-6 route add default dev v0 metric 7",
                "-6 route add 2001:db8::7/128 via fe80::1 dev v0 table 1000",
            ] {
                ip(words);
            }
            let last = |what: &Observation| matches!(what, Observation::Route { route, .. } if route.key.table == 1000);
            heard.until(last).await;
            let v0 = heard.seen.iter().find_map(|what| link(what, "v0")).unwrap().ifindex;
            let key = |to: &str, prefix_len, table, priority| RouteKey {
                to: to.parse().unwrap(),
                prefix_len,
                table,
                priority,
            };
            let hops = |gateway: Option<&str>| {
                vec![Hop { ifindex: v0, gateway: gateway.map(|ip| ip.parse().unwrap()) }]
            };
            let route = |key, gateway| Ok(Route { key, hops: hops(gateway) });
            let default = key("0.0.0.0", 0, 254, 0);
            let told = [
                route(default, Some("192.0.2.254")),
                route(default, Some("192.0.2.253")),
                route(key("198.51.100.7", 32, 254, 0), None),
                Err((default, hops(Some("192.0.2.253")))),
                route(key("::", 0, 254, 7), None),
                route(key("2001:db8::7", 128, 1000, 1024), Some("fe80::1")),
            ];
            assert_eq!(routes(&heard.seen), told);
        },
    );
}

/// Adds more routes than the route queue has room for.
fn many_routes(listener: &mut Listener, to: impl Fn(u8) -> String) {
    listener.routes.socket.receive_buffer(4_096).unwrap();
    ip("link set lo up");
    for n in 1..60 {
        ip(&format!("route add {} dev lo", to(n)));
    }
}

#[test]
fn a_routers_prefixes_are_not_even_queued() {
    listening(
        |listener| {
            many_routes(listener, |n| format!("203.0.{n}.0/24"));
            ip("route add 198.51.100.7/32 dev lo");
        },
        async |heard| {
            heard.until(|what| matches!(what, Observation::Route { .. })).await;
            assert_eq!(routes(&heard.seen).len(), 1);
            assert!(heard.lost.try_recv().is_err(), "the small queue held all there was");
        },
    );
}

#[test]
fn a_storm_of_routes_is_told_as_lost_and_costs_no_address() {
    listening(
        |listener| {
            many_routes(listener, |n| format!("198.51.100.{n}/32"));
            ip("addr add 192.0.2.1/32 dev lo");
        },
        async |heard| {
            let (lost, source) = heard.overrun().await;
            assert_eq!((lost, &*source.name), (Some(Lost::Routes), "routes"));
            heard.until(|what| holds(what, "192.0.2.1")).await;
        },
    );
}

#[test]
fn routes_of_another_netns_are_its_own() {
    listening(
        |_| {},
        async |heard| {
            let netns = Netns::new();
            netns.veth("ipwt-f");
            netns.ip("link set eth0 up");
            netns.ip("route add default dev eth0");
            let given = heard.until(|what| matches!(what, Observation::Netns { .. })).await;
            let Observation::Netns { netns: name } = given else { unreachable!() };
            let told = heard.until(|what| matches!(what, Observation::Route { .. })).await;
            assert!(matches!(told, Observation::Route { netns, .. } if netns == name), "{told:?}");

            // The next netns gets the same nsid, and its messages are accepted once all sockets have read the end of
            // the first.
            drop(netns);
            heard
                .until(|what| matches!(what, Observation::NetnsDying { netns } if *netns == name))
                .await;
            heard.seen.clear();
            let next = Netns::new();
            next.veth("ipwt-g");
            next.ip("link set eth0 up");
            next.ip("route add default dev eth0 metric 9");
            let told = heard.until(|what| matches!(what, Observation::Route { .. })).await;
            assert!(
                matches!(&told, Observation::Route { netns, route } if *netns == name
                    && route.key.priority == 9),
                "{told:?}"
            );
        },
    );
}

#[test]
fn what_is_set_on_devices_is_heard() {
    listening(
        |_| {},
        async |heard| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            ip("link add m0 link v0 type macvlan mode private");
            let mode = |what: &Observation| match link(what, "m0")?.detail {
                Some(LinkDetail::Macvlan { mode }) => Some(mode),
                _ => None,
            };
            heard.until(|what| mode(what) == Some(1)).await;
            // The kernel reports nothing about a device that is down.
            ip("link set m0 type macvlan mode vepa");
            ip("link set m0 up");
            heard.until(|what| mode(what) == Some(2)).await;
            ip("link set m0 type macvlan mode bridge");
            heard.until(|what| mode(what) == Some(4)).await;

            ip("link add x0 type vxlan id 42 remote 198.51.100.9 local 192.0.2.1 dstport 4789");
            let told = heard.until(|what| link(what, "x0").is_some()).await;
            let vxlan = LinkDetail::Vxlan {
                vni: Some(42),
                remote: Some("198.51.100.9".parse().unwrap()),
                local: Some("192.0.2.1".parse().unwrap()),
                port: 4789,
            };
            assert_eq!(link(&told, "x0").unwrap().detail, Some(vxlan));

            let v1 = heard.seen.iter().find_map(|what| link(what, "v1")).unwrap().ifindex;
            ip("link set v1 name other");
            let told = heard.until(|what| link(what, "other").is_some()).await;
            assert_eq!(link(&told, "other").unwrap().ifindex, v1, "a new name, the same device");

            if has_device("type vrf table 9") {
                ip("link add r0 type vrf table 77");
                let told = heard.until(|what| link(what, "r0").is_some()).await;
                assert_eq!(link(&told, "r0").unwrap().detail, Some(LinkDetail::Vrf { table: 77 }));
            }
            if has_device("link v0 type vlan id 9") {
                ip("link add l0 link v0 type vlan id 77");
                let told = heard.until(|what| link(what, "l0").is_some()).await;
                assert_eq!(link(&told, "l0").unwrap().detail, Some(LinkDetail::Vlan { id: 77 }));
            }
            if has_device("link other type ipvlan mode l3") {
                ip("link add i0 link other type ipvlan mode l3 private");
                let told = heard.until(|what| link(what, "i0").is_some()).await;
                let ipvlan = LinkDetail::Ipvlan { mode: 1, flags: 1 };
                assert_eq!(link(&told, "i0").unwrap().detail, Some(ipvlan));
            }
        },
    );
}

#[test]
fn a_port_is_isolated_by_either_tool() {
    listening(
        |_| {},
        async |heard| {
            ip("link add br0 type bridge");
            ip("link add v0 type veth peer name v1");
            ip("link set v0 master br0 up");
            let port = |what: &Observation| match what {
                Observation::Port { isolated, .. } => Some(*isolated),
                _ => None,
            };
            heard.until(|what| link(what, "v0").is_some_and(|link| link.master.is_some())).await;
            // Only the bridge reports this change.
            bridge("link set dev v0 isolated on");
            heard.until(|what| port(what) == Some(true)).await;
            ip("link set dev v0 type bridge_slave isolated off");
            heard.seen.clear();
            heard.until(|what| port(what) == Some(false)).await;
            ip("link set dev v0 type bridge_slave isolated on");
            heard.until(|what| link(what, "v0").is_some_and(|link| link.isolated)).await;
        },
    );
}

#[test]
fn vlans_of_a_port_come_and_go() {
    listening(
        |_| {},
        async |heard| {
            if !has_device("type bridge vlan_filtering 1") {
                return;
            }
            let own = |first, last, own| Vlans { first, last, pvid: own, untagged: own };
            let told = |what: &Observation| match what {
                Observation::Vlans { vlans, .. } => Some(vlans.clone()),
                _ => None,
            };
            ip("link add br0 type bridge vlan_filtering 1");
            ip("link set br0 up");
            ip("link add v0 type veth peer name v1");
            ip("link set v0 master br0");
            bridge("vlan add dev v0 vid 10-20");
            heard.until(|what| told(what) == Some(vec![own(1, 1, true), own(10, 20, false)])).await;
            bridge("vlan del dev v0 vid 1");
            heard.until(|what| told(what) == Some(vec![own(10, 20, false)])).await;
            heard.seen.clear();
            bridge("vlan del dev v0 vid 10-20");
            heard.until(|what| told(what) == Some(Vec::new())).await;
            bridge("vlan add dev v0 vid 1-4094");
            heard.until(|what| told(what) == Some(vec![own(1, 4094, false)])).await;
            heard.seen.clear();
            ip("link set v0 nomaster");
            heard.until(|what| told(what) == Some(Vec::new())).await;
            ip("link set br0 type bridge vlan_filtering 0");
            let off = Some(LinkDetail::Bridge { vlan_filtering: false });
            heard.until(|what| link(what, "br0").is_some_and(|link| link.detail == off)).await;
        },
    );
}
