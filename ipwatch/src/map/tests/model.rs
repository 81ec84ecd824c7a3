//! Random sequences of netns events: against a model, and in arbitrary order.

use proptest::prelude::*;

use super::*;
use crate::fact::Scope;

/// One random step: netns are created, get names, addresses and tasks, and end.
#[derive(Debug, Clone)]
enum Step {
    Seen(u8),
    Address(u8, u8),
    Gone(u8, u8),
    Task(u8, u8),
    Released(u8),
    Dies(u8),
    Link(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4u8).prop_map(Step::Seen),
        (0..4u8, 0..6u8).prop_map(|(netns, ip)| Step::Address(netns, ip)),
        (0..4u8, 0..6u8).prop_map(|(netns, ip)| Step::Gone(netns, ip)),
        (0..6u8, 0..4u8).prop_map(|(pid, netns)| Step::Task(pid, netns)),
        (0..6u8).prop_map(Step::Released),
        (0..4u8).prop_map(Step::Dies),
        (0..4u8).prop_map(Step::Link),
    ]
}

proptest! {
    /// Against a model that keys on the slot's incarnation: inodes and nsids are reused by every incarnation of a slot,
    /// cookies never.
    #[test]
    fn the_map_equals_the_model(steps in prop::collection::vec(step(), 1..200), provisional: bool) {
        let mut feed = Feed::with(NodeMap::new(provisional), ALL);
        let mut life = [0u64; 4];
        let mut addresses = std::collections::BTreeSet::new();
        let mut tasks = std::collections::BTreeMap::new();
        let name = |slot: u8, life: &[u64; 4]| {
            full(100 + life[slot as usize] * 4 + u64::from(slot), 70 + u32::from(slot), slot.into())
        };
        for step in steps {
            match step {
                Step::Seen(n) => { feed.tell(Observation::Netns { netns: name(n, &life) }); }
                Step::Address(n, last) => {
                    feed.tell(Observation::Address { netns: name(n, &life), address: address(last) });
                    addresses.insert((ip(last), n));
                }
                Step::Gone(n, last) => {
                    feed.tell(Observation::AddressGone { netns: name(n, &life), key: key(last) });
                    addresses.remove(&(ip(last), n));
                }
                Step::Task(pid, n) => {
                    feed.tell(Observation::Task(task(pid.into(), name(n, &life))));
                    tasks.insert(pid, n);
                }
                Step::Released(pid) => {
                    feed.tell(Observation::TaskReleased { task: task(pid.into(), HOST).key });
                    tasks.remove(&pid);
                }
                Step::Dies(n) => {
                    feed.tell(Observation::NetnsGone { netns: name(n, &life) });
                    life[n as usize] += 1;
                    addresses.retain(|(_, slot)| *slot != n);
                    tasks.retain(|_, slot| *slot != n);
                }
                Step::Link(n) => {
                    let link = Link {
                        ifindex: 2, name: "eth0".into(), up: true, ..Link::default()
                    };
                    feed.tell(Observation::Link { netns: name(n, &life), link });
                }
            }
            let mut seen: Vec<_> = feed
                .map
                .addresses(&Selector::Ip(None))
                .into_iter()
                .map(|view| (view.ip.unwrap(), (view.netns.inode.unwrap() - 70) as u8))
                .collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, addresses.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(feed.map.sizes().2, tasks.len());
        }
    }

    /// In any order of facts and times: no panic, and no address outside a netns.
    #[test]
    fn any_order_is_survived(
        steps in prop::collection::vec((step(), 0..50u64, prop::option::of(0..3u64), prop::option::of(0..3u32), prop::option::of(0..3i32)), 1..300)
    ) {
        let mut feed = Feed::new(NONE);
        for (step, at, cookie, inode, nsid) in steps {
            let netns = NetnsRef { cookie: cookie.map(|c| c + 50), inode, nsid };
            let what = match step {
                Step::Seen(_) => Observation::Netns { netns },
                Step::Address(_, last) => Observation::Address { netns, address: address(last) },
                Step::Gone(_, last) => Observation::AddressGone { netns, key: key(last) },
                Step::Task(pid, _) => Observation::Task(task(pid.into(), netns)),
                Step::Released(pid) => Observation::TaskReleased { task: task(pid.into(), HOST).key },
                Step::Dies(_) => Observation::NetnsDying { netns },
                Step::Link(_) => Observation::LinkGone { netns, ifindex: 2 },
            };
            feed.tell_at(BootNs(1_000 * MS + at * MS), Origin::Netlink, what);
            let (netns, by_ip, _) = feed.map.sizes();
            let held: std::collections::BTreeSet<_> = feed.map.all_netns()
                .flat_map(|n| n.addresses().map(|(key, _)| (key.local, n.id)).collect::<Vec<_>>())
                .collect();
            prop_assert_eq!(held.len(), by_ip);
            prop_assert!(netns >= 1);
            feed.map.agenda(feed.at, &Thresholds::default());
            feed.map.assert_fittings_count();
            feed.map.assert_netns_count();
        }
    }

    /// The same where there is room for a few netns only, and for the names of a few others: at the end, when all that are
    /// there are told again, none of these is unknown.
    #[test]
    fn of_more_netns_than_are_kept_each_is_kept_or_left_out(
        steps in prop::collection::vec((0..9u8, 0..12u8, any::<bool>(), any::<bool>()), 1..200),
        in_all in 1..6usize,
    ) {
        let mut feed = Feed::new(ALL);
        feed.map.bound_netns(in_all, 40);
        let mut life = [0u64; 12];
        for (step, n, by_cookie, full) in steps {
            let (slot, inode, nsid) = (usize::from(n), 70 + u32::from(n), i32::from(n));
            let cookie = 100 + life[slot] * 12 + u64::from(n);
            let netns = NetnsRef {
                cookie: (by_cookie || full).then_some(cookie),
                inode: (!by_cookie || full).then_some(inode),
                nsid: full.then_some(nsid),
            };
            match step {
                0 | 1 => { feed.tell(Observation::NetnsCreated { netns }); }
                2 => { feed.tell(Observation::Task(task(u32::from(n) + 10, netns))); }
                3 => {
                    feed.tell(Observation::NetnsUser { netns, uid: u32::from(n % 3), nested: n % 2 > 0 });
                    let scope = Scope::Addresses { netns };
                    let began = feed.tell(Observation::Began(scope.clone()));
                    feed.tell(Observation::Ended { scope, began, complete: true });
                }
                4 => { feed.tell(Observation::Holder { netns, holder: mounted_at(PATH) }); }
                5 => { feed.tell(Observation::Address { netns, address: address(n) }); }
                6 => {
                    let link = Link { ifindex: 2, name: "eth0".into(), up: true, ..Link::default() };
                    feed.tell(Observation::Link { netns, link });
                }
                7 => {
                    let named = NetnsRef { cookie: Some(cookie), inode: Some(inode), nsid: Some(nsid) };
                    feed.tell(Observation::NetnsGone { netns: named });
                    life[slot] += 1;
                }
                _ => { feed.wants(2_500); }
            }
            feed.map.assert_netns_count();
            feed.map.assert_fittings_count();
            feed.map.assert_tasks_count();
        }
        for n in 0..12u32 {
            let cookie = Some(100 + life[n as usize] * 12 + u64::from(n));
            let netns = NetnsRef { cookie, inode: Some(70 + n), nsid: Some(n as i32) };
            feed.tell(Observation::Netns { netns });
        }
        feed.map.assert_netns_count();
        let (kept, ..) = feed.map.sizes();
        prop_assert_eq!(kept - 1 + feed.map.left_out(), 12);
        prop_assert!(kept - 1 <= in_all);
    }
}

#[test]
fn an_ip_is_found_on_every_device_that_has_it_and_nowhere_else() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let ips = ["0.0.0.0", "10.0.0.1", "10.0.0.2", "255.255.255.255", "::", "fd00::1", last].map(ip);
    let netns = full(7, 70, 3);
    let mut feed = Feed::new(NONE);
    let mut n = 0;
    for ifindex in [0, 1, 2, 7, u32::MAX] {
        for local in ips {
            for (prefix_len, peer) in [(0, None), (24, None), (255, Some(ip(last)))] {
                n += 1;
                if n * 7 % 5 < 3 {
                    let key = AddressKey { ifindex, local, prefix_len, peer };
                    let address = Address { key, scope: Some(0), flags: Some(0) };
                    feed.tell(Observation::Address { netns, address });
                }
            }
        }
    }
    let entry = feed.map.all_netns().find(|entry| entry.names.inode == netns.inode).unwrap();
    assert!(entry.addresses().count() > 50);
    for wanted in ips.into_iter().chain([ip("10.0.0.3"), ip("fd00::2")]) {
        let keys = |ifindex: Option<u32>| {
            let all = entry.addresses().map(|(key, _)| *key);
            let own = all.filter(move |key| key.local == wanted);
            own.filter(move |key| ifindex.is_none_or(|it| it == key.ifindex)).collect::<Vec<_>>()
        };
        let found: Vec<_> = entry.with_ip(wanted).map(|(key, _)| *key).collect();
        assert_eq!(found, keys(None), "{wanted}");
        for ifindex in [0, 2, 3, u32::MAX] {
            let found: Vec<_> = entry.on_device(ifindex, wanted).map(|(key, _)| *key).collect();
            assert_eq!(found, keys(Some(ifindex)), "{wanted} on {ifindex}");
        }
    }
}
