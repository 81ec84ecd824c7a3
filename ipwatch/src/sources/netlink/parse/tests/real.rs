//! Messages captured from a kernel (6.18) after the `ip` and `bridge` commands that the names describe. Link messages
//! contain only the attributes that are parsed, unchanged.

use super::*;
use crate::fact::{Hop, LinkDetail, Route, RouteKey, Vlans};

const BRIDGE: &str = concat!(
    "0000010002000000021000000000000008000300627230000a0001007afcc54a1e4500009c0112000b000100",
    "62726964676500008c0102000c00100000000000000000000c00110000000000000000000c00120000000000",
    "000000000c001300000000000000000008000100dc05000008000200c800000008000300d007000008000400",
    "3075000008000500000000000600060000800000050007000000000006000900000000000c000b0080007afc",
    "c54a1e450c000a0080007afcc54a1e4506000c000000000008000d000000000005000e000000000005000f00",
    "000000000a0014000180c200000000000c002e00000000001f00000008003000000000000800310000000000",
    "050016000100000005001700010000000500180000000000050019000000000005002a000000000008001a00",
    "1000000008001b000010000008001c000200000008001d000200000005002b000200000005002c0001000000",
    "0c001e0064000000000000000c001f0090650000000000000c0020009c630000000000000c002100d4300000",
    "000000000c002200e8030000000000000c002300340c00000000000005002400000000000500250000000000",
    "0500260000000000",
);
const PORT: &str = concat!(
    "00000100040000000310000001000000070003007630000008000a00020000000a0001007afcc54a1e450000",
    "6c0112000900010076657468000000000b000400627269646765000050010500050001000000000006000200",
    "2000000008000300020000000500040000000000050005000000000005000600000000000500070000000000",
    "05001c00000000000500080001000000050009000100000005001b000100000005001e000100000005000a00",
    "0000000005000c00000000000c000d0080007afcc54a1e450c000e0080007afcc54a1e4506000f0001800000",
    "0600100000000000060011000180000006001200010000000500130000000000050014000000000005001d00",
    "0000000006001f00000000000500200000000000050023000000000005002400000000000500210001000000",
    "0500270000000000050028000000000005002b00000000000c00150000000000000000000c00160000000000",
    "000000000c001700000000000000000005001900010000000800250000020000080026000000000008002900",
    "0000000008002a00000000000800050003000000",
);
const PORT_OF_BRIDGE: &str = concat!(
    "07000100040000000210000000000000070003007630000008000a00020000000a0001007afcc54a1e450000",
    "080005000300000050010c800500010000000000060002002000000008000300020000000500040000000000",
    "05000500000000000500060000000000050007000000000005001c0000000000050008000100000005000900",
    "0100000005001b000100000005001e000100000005000a000000000005000c00000000000c000d0080007afc",
    "c54a1e450c000e0080007afcc54a1e4506000f00018000000600100000000000060011000180000006001200",
    "010000000500130000000000050014000000000005001d000000000006001f00000000000500200000000000",
    "0500230000000000050024000000000005002100010000000500270000000000050028000000000005002b00",
    "000000000c00150000000000000000000c00160000000000000000000c001700000000000000000005001900",
    "0100000008002500000200000800260000000000080029000000000008002a0000000000",
);
const MACVLAN: &str = concat!(
    "000001000500000002100000ffffffff080003006d7630000a0001005e3187b9060f00003c0012000c000100",
    "6d6163766c616e002c00020008000100010000000600020000000000080006000000000008000700e8030000",
    "08000800e80300000800050003000000",
);
const VXLAN: &str = concat!(
    "000001000600000002100000ffffffff08000300767830000a000100aae73753895e0000f00012000a000100",
    "76786c616e000000e0000200080001002a00000008000200ef010101080003000300000008000400c0000201",
    "050005000000000005001c0000000000050006000000000005001d000000000008001a000000000008002000",
    "00000000050007000100000005000b000000000005000c000000000005000d000000000005000e0000000000",
    "0500190000000000080008002c010000080009000000000006000f0012b50000050012000100000005001300",
    "0000000005001400000000000500150000000000050016000000000005001f000100000008000a0000000000",
    "0c002100f7ffffff000000ff",
);
const VXLAN_EXTERNAL: &str = concat!(
    "000001000700000002100000ffffffff08000300767831000a0001004e068a86a0540000d80012000a000100",
    "76786c616e000000c80002000800010000000000050005000000000005001c00000000000500060000000000",
    "05001d000000000008001a00000000000800200000000000050007000000000005000b000000000005000c00",
    "0000000005000d000000000005000e00000000000500190001000000080008002c0100000800090000000000",
    "06000f0012b60000050012000100000005001300000000000500140000000000050015000000000005001600",
    "0000000005001f000100000008000a00000000000c002100f7ffffff000000ff",
);
const VXLAN6: &str = concat!(
    "000001000800000002100000ffffffff08000300767832000a0001001e8f917bfb0c0000000112000a000100",
    "76786c616e000000f0000200080001002b0000001400100020010db800000000000000000000000214001100",
    "20010db8000000000000000000000001050005000000000005001c0000000000050006000000000005001d00",
    "0000000008001a00000000000800200000000000050007000100000005000b000000000005000c0000000000",
    "05000d000000000005000e00000000000500190000000000080008002c010000080009000000000006000f00",
    "2118000005001200010000000500130000000000050014000000000005001500000000000500160000000000",
    "05001f000100000008000a00000000000c002100f7ffffff000000ff",
);
const DEFAULT: &str = "02000000fe0300010000000008000f00fe00000008000500c00002fe0800040003000000";
const MULTIPATH: &str = concat!(
    "02000000fe0300010000000008000f00fe000000080006000500000024000900100000000300000008000500",
    "c0000203100000000300000008000500c0000204",
);
const VIA6: &str = concat!(
    "02200000fc0300010000000008000f00e803000008000100cb007101160012000a0020010db8000000000000",
    "00000000000900000800040003000000",
);
const DEFAULT6: &str = concat!(
    "0a000000fe0300010000000008000f00fe00000008000600000400001400050020010db80000000000000000",
    "000000fe080004000300000024000c0000000000000000000000000000000000000000000000000000000000",
    "000000000500140000000000",
);
const MULTIPATH6: &str = concat!(
    "0a000000fe0300010000000008000f00fe00000008000600000400003c0009001c0000000300000014000500",
    "20010db80000000000000000000000fd1c000000030000001400050020010db80000000000000000000000fe",
    "24000c0000000000000000000000000000000000000000000000000000000000000000000500140000000000",
);

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn link(hex: &str) -> crate::fact::Link {
    match what(libc::RTM_NEWLINK, &bytes(hex), NETNS) {
        Ok(Some(Observation::Link { link, .. })) => link,
        other => panic!("{other:?}"),
    }
}

fn route(hex: &str) -> Route {
    match what(libc::RTM_NEWROUTE, &bytes(hex), NETNS) {
        Ok(Some(Observation::Route { route, .. })) => route,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_kind_of_a_device_adds() {
    assert_eq!(link(BRIDGE).detail, Some(LinkDetail::Bridge { vlan_filtering: false }));
    assert_eq!(link(MACVLAN).detail, Some(LinkDetail::Macvlan { mode: 1 }));
    let vxlan = |vni, remote: Option<&str>, local: Option<&str>, port| LinkDetail::Vxlan {
        vni,
        remote: remote.map(|ip| ip.parse().unwrap()),
        local: local.map(|ip| ip.parse().unwrap()),
        port,
    };
    let multicast = vxlan(Some(42), Some("239.1.1.1"), Some("192.0.2.1"), 4789);
    assert_eq!(link(VXLAN).detail, Some(multicast));
    assert_eq!(link(VXLAN_EXTERNAL).detail, Some(vxlan(None, None, None, 4790)));
    let six = vxlan(Some(43), Some("2001:db8::2"), Some("2001:db8::1"), 8472);
    assert_eq!(link(VXLAN6).detail, Some(six));
    let port = link(PORT);
    assert_eq!((port.kind.as_deref(), port.detail, port.isolated), (Some("veth"), None, true));
    assert_eq!(port.master, Some(2));
}

#[test]
fn a_port_is_told_of_by_its_bridge() {
    let told = all(libc::RTM_NEWLINK, &bytes(PORT_OF_BRIDGE)).unwrap();
    let port = Observation::Port { netns: NETNS, ifindex: 4, isolated: true };
    // A bridge without VLANs leaves `IFLA_AF_SPEC` out.
    assert_eq!(told, [port, Observation::Vlans { netns: NETNS, ifindex: 4, vlans: Vec::new() }]);
}

#[test]
fn routes_of_every_kind() {
    let key = |to: &str, prefix_len, table, priority| RouteKey {
        to: to.parse().unwrap(),
        prefix_len,
        table,
        priority,
    };
    let hop = |gateway: &str| Hop { ifindex: 3, gateway: Some(gateway.parse().unwrap()) };
    let one = |key, gateway| Route { key, hops: vec![hop(gateway)] };
    assert_eq!(route(DEFAULT), one(key("0.0.0.0", 0, 254, 0), "192.0.2.254"));
    let several =
        Route { key: key("0.0.0.0", 0, 254, 5), hops: vec![hop("192.0.2.3"), hop("192.0.2.4")] };
    assert_eq!(route(MULTIPATH), several);
    assert_eq!(route(VIA6), one(key("203.0.113.1", 32, 1000, 0), "2001:db8::9"));
    assert_eq!(route(DEFAULT6), one(key("::", 0, 254, 1024), "2001:db8::fe"));
    let several = Route {
        key: key("::", 0, 254, 1024),
        hops: vec![hop("2001:db8::fd"), hop("2001:db8::fe")],
    };
    assert_eq!(route(MULTIPATH6), several);
    let gone = what(libc::RTM_DELROUTE, &bytes(DEFAULT6), NETNS).unwrap();
    let hops = vec![hop("2001:db8::fe")];
    assert_eq!(
        gone,
        Some(Observation::RouteGone { netns: NETNS, key: key("::", 0, 254, 1024), hops })
    );
}

/// `DEFAULT` with one byte of its header changed.
fn changed(at: usize, to: u8) -> Vec<u8> {
    let mut message = bytes(DEFAULT);
    message[at] = to;
    message
}

#[test]
fn routes_that_nothing_is_told_of() {
    let said = |message: &[u8]| what(libc::RTM_NEWROUTE, message, NETNS);
    // In this order: a prefix; some source addresses only; a family that is not IP; a cached route.
    for (at, to) in [(1, 24), (2, 8), (0, libc::AF_BRIDGE as u8), (9, 0x02)] {
        assert_eq!(said(&changed(at, to)).unwrap(), None, "byte {at}");
    }
    assert!(said(&changed(1, 32)).is_err(), "a single IP's, without the IP");
    assert!(said(&changed(1, 32)[..11]).is_err());
    let local = with(bytes(DEFAULT), &[(libc::RTA_TABLE, &255_u32.to_ne_bytes())]);
    assert_eq!(said(&local).unwrap(), None);
    let dead = changed(8, 1);
    assert_eq!(said(&dead).unwrap(), None);
    assert!(what(libc::RTM_DELROUTE, &dead, NETNS).unwrap().is_some());
    let to = |family: libc::c_int, len, ip: &[u8]| {
        let header = vec![family as u8, len, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        let oif = (libc::RTA_OIF, &3_u32.to_ne_bytes()[..]);
        said(&with(header, &[(libc::RTA_DST, ip), oif])).unwrap()
    };
    let mut six = [0; 16];
    for (first, second) in [(0xfe, 0x80), (0xff, 0x02)] {
        (six[0], six[1]) = (first, second);
        assert_eq!(to(libc::AF_INET6, 128, &six), None);
    }
    (six[0], six[1]) = (0x20, 0x01);
    assert!(to(libc::AF_INET6, 128, &six).is_some());
    assert_eq!(to(libc::AF_INET6, 32, &six), None, "32 bits are not all of them");
    assert!(to(libc::AF_INET, 32, &[192, 0, 2, 7]).is_some());
}

#[test]
fn a_black_hole_ends_the_route_in_whose_place_it_is() {
    let hole = changed(7, 6);
    let gone = what(libc::RTM_NEWROUTE, &hole, NETNS).unwrap();
    let key = route(DEFAULT).key;
    assert_eq!(gone, Some(Observation::RouteGone { netns: NETNS, key, hops: Vec::new() }));
    assert_eq!(what(libc::RTM_DELROUTE, &hole, NETNS).unwrap(), None);
}

/// A bridge's message about its port, with these attributes in `IFLA_AF_SPEC`.
fn port(spec: &[(u16, &[u8])]) -> Vec<Observation> {
    let (master, spec) = (2_u32.to_ne_bytes(), with(Vec::new(), spec));
    let attributes = [(libc::IFLA_MASTER, &master[..]), (libc::IFLA_AF_SPEC, &spec[..])];
    all(libc::RTM_NEWLINK, &with(ifinfo(libc::AF_BRIDGE as u8), &attributes)).unwrap()
}

fn vlan(flags: u16, vid: u16) -> Vec<u8> {
    [flags.to_ne_bytes(), vid.to_ne_bytes()].concat()
}

#[test]
fn ranges_of_vlans() {
    let infos = [vlan(6, 1), vlan(8, 10), vlan(16, 20), vlan(16, 30), vlan(8, 50), vlan(16, 40)];
    let infos: Vec<_> = infos.iter().map(|info| (2, &info[..])).collect();
    let vlans = |first, last, own| Vlans { first, last, pvid: own, untagged: own };
    // An end without a begin, and a range that runs backwards, are ignored.
    let vlans = vec![vlans(1, 1, true), vlans(10, 20, false)];
    assert_eq!(port(&infos), [Observation::Vlans { netns: NETNS, ifindex: 7, vlans }]);

    let hardware = 2_u16.to_ne_bytes();
    assert_eq!(port(&[(0, &hardware), infos[0]]), [], "a network card's own");
    assert_eq!(port(&[(4, &[])]), [], "MRP");
    assert_eq!(port(&[]), [Observation::Vlans { netns: NETNS, ifindex: 7, vlans: vec![] }]);
    assert_eq!(
        port(&[(2, &[1, 2, 3])]),
        [Observation::Vlans { netns: NETNS, ifindex: 7, vlans: vec![] }]
    );
}

#[test]
fn as_many_vlans_as_there_are_and_no_more() {
    let infos: Vec<_> = (0..5_000).map(|vid| vlan(0, vid % 4096)).collect();
    let infos: Vec<_> = infos.iter().map(|info| (2, &info[..])).collect();
    let told = port(&infos);
    assert!(matches!(&told[..], [Observation::Vlans { vlans, .. }] if vlans.len() == 4094));
}

#[test]
fn a_device_that_says_something_strange_is_still_a_device() {
    let name = (libc::IFLA_IFNAME, &b"odd\0"[..]);
    let of = |kind: &[u8], data: &[u8]| {
        let info = with(Vec::new(), &[(1, kind), (2, data), (4, b"bridge\0"), (5, &[1])]);
        let message = with(ifinfo(0), &[name, (libc::IFLA_LINKINFO, &info)]);
        match what(libc::RTM_NEWLINK, &message, NETNS) {
            Ok(Some(Observation::Link { link, .. })) => (link.detail, link.isolated),
            other => panic!("{other:?}"),
        }
    };
    let short = with(Vec::new(), &[(1, &[1]), (7, &[]), (15, &[1])]);
    for kind in ["macvlan", "ipvlan", "vlan", "vrf", "bridge", "vxlan", "\u{fffd}"] {
        for data in [&b""[..], &[3, 0, 1], &[0xff; 8], &short] {
            assert_eq!(of(kind.as_bytes(), data), (None, false), "{kind} {data:?}");
        }
    }
    let ipvlan = with(Vec::new(), &[(1, &1_u16.to_ne_bytes()), (2, &1_u16.to_ne_bytes())]);
    assert_eq!(of(b"ipvlan\0", &ipvlan).0, Some(LinkDetail::Ipvlan { mode: 1, flags: 1 }));
    let vlan = with(Vec::new(), &[(1, &100_u16.to_ne_bytes())]);
    assert_eq!(of(b"vlan\0", &vlan).0, Some(LinkDetail::Vlan { id: 100 }));
    let vrf = with(Vec::new(), &[(1, &100_u32.to_ne_bytes())]);
    assert_eq!(of(b"vrf\0", &vrf).0, Some(LinkDetail::Vrf { table: 100 }));
}
