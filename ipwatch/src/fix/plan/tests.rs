use super::*;
use crate::contract::{Ack, Container, Interface, IpamHolder, Netns};
use crate::testing::finding;

const ID: &str = "3d1f2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e00";

fn ip(last: u8) -> IpAddr {
    format!("10.0.3.{last}").parse().unwrap()
}

fn container(last: u8) -> Option<Container> {
    Some(Container { id: Some(format!("{ID}{last}")), ..Container::default() })
}

fn key(last: u8) -> String {
    format!("/var/lib/cni/networks/cbr0/10.0.3.{last}")
}

fn firing(id: &str, code: Code, subject: Subject) -> Finding {
    let status = Status::Firing;
    Finding { code, status, subject, holders: Vec::new(), ..finding(id) }
}

/// A finding about several leaks of cbr0.
fn leaks(all: &[u8]) -> Finding {
    let one = |last: &u8| Reserved {
        ip: ip(*last),
        key: key(*last),
        container: container(*last),
        pod: None,
    };
    let reservations = all.iter().map(one).collect();
    let subject = Subject { network: Some("cbr0".to_owned()), reservations, ..Subject::default() };
    firing("wv4akx7q2m5z6b3d", Code::IpamReservationLeaked, subject)
}

fn entry(last: u8) -> IpamEntry {
    IpamEntry {
        ip: ip(last),
        store: "host-local".to_owned(),
        network: "cbr0".to_owned(),
        key: key(last),
        container_id: Some(format!("{ID}{last}")),
        ifname: Some("eth0".to_owned()),
        pod: None,
        since: Some("2025-12-20T11:00:00.000Z".to_owned()),
        kernel: Vec::new(),
        runtime: Some("denied".to_owned()),
        agree: Some("leaked".to_owned()),
    }
}

fn planned(fix: &Fix) -> Vec<IpAddr> {
    let ips = fix.items.iter().filter(|item| item.state == FixState::Planned);
    ips.filter_map(|item| match &item.target {
        FixTarget::FreeReservation { ip, .. } => Some(*ip),
        _ => None,
    })
    .collect()
}

fn why(fix: &Fix) -> &str {
    fix.items[0].why.as_deref().unwrap_or_default()
}

#[test]
fn each_leak_of_the_cause_is_planned_with_its_proof() {
    let finding = leaks(&[18, 19]);
    let fix = plan(&[&finding], &[entry(18), entry(19), entry(20)], &[]);
    assert!(fix.dry_run);
    assert_eq!(planned(&fix), [ip(18), ip(19)], "and not 20, which no finding lists");
    let FixTarget::FreeReservation { path, container_id, ifname, network, since, .. } =
        &fix.items[0].target
    else {
        panic!("{fix:?}")
    };
    assert_eq!((path.as_str(), network.as_str()), (&*key(18), "cbr0"));
    assert_eq!((container_id.as_str(), ifname.as_deref()), (&*format!("{ID}18"), Some("eth0")));
    assert_eq!(since.as_deref(), Some("2025-12-20T11:00:00.000Z"));
    let proof = fix.items[0].proof.join("\n");
    for part in [&*key(18), "none has the container", "no network namespace of this node", "fires"]
    {
        assert!(proof.contains(part), "{part}: {proof}");
    }
}

#[test]
fn a_single_leak_has_its_ip_in_the_subject_alone() {
    let mut finding = leaks(&[]);
    (finding.subject.ip, finding.subject.container) = (Some(ip(18)), container(18));
    assert_eq!(reserved(&[&finding]).into_iter().collect::<Vec<_>>(), [ip(18)]);
    assert_eq!(planned(&plan(&[&finding], &[entry(18)], &[])), [ip(18)]);
}

/// One thing is not as it must be, and nothing is planned.
#[test]
fn whatever_does_not_agree_is_left_out_and_said() {
    type Change = fn(&mut Finding, &mut IpamEntry);
    let changes: [(&str, Change); 15] = [
        ("second look", |finding, _| finding.status = Status::Pending),
        ("does not answer", |finding, _| finding.unjudged = true),
        ("not known", |finding, _| finding.subject.reservations[0].container = None),
        ("any more", |_, entry| entry.container_id = Some("another".to_owned())),
        ("any more", |_, entry| entry.ip = ip(99)),
        ("any more", |_, entry| entry.network = "other".to_owned()),
        ("whereabouts keeps it", |_, entry| entry.store = "whereabouts".to_owned()),
        ("would share it", |_, entry| {
            let netns = Netns { inode: Some(7), ..Netns::default() };
            let up = IpamHolder { netns, interface: None, container: None, pod: None };
            entry.kernel.push(up);
        }),
        ("has the container still", |_, entry| entry.runtime = Some("alive".to_owned())),
        ("has the container still", |_, entry| entry.runtime = Some("dead".to_owned())),
        ("do not say", |_, entry| entry.runtime = Some("another word".to_owned())),
        ("does not count as leaked", |_, entry| (entry.runtime, entry.agree) = (None, None)),
        ("does not count as leaked", |_, entry| entry.agree = Some("idle".to_owned())),
        ("not the path", |finding, entry| {
            entry.key = "/var/lib/cni/networks/cbr0/../x/10.0.3.18".to_owned();
            entry.key.clone_into(&mut finding.subject.reservations[0].key);
        }),
        ("not the path", |finding, entry| {
            entry.key = "/var/lib/cni/networks/other/10.0.3.18".to_owned();
            entry.key.clone_into(&mut finding.subject.reservations[0].key);
        }),
    ];
    for (n, (says, change)) in changes.into_iter().enumerate() {
        let (mut finding, mut entry) = (leaks(&[18]), entry(18));
        change(&mut finding, &mut entry);
        let fix = plan(&[&finding], &[entry], &[]);
        assert_eq!(planned(&fix), [] as [IpAddr; 0], "{n}: {fix:?}");
        assert!(why(&fix).contains(says), "{n}: {}", why(&fix));
        assert_eq!(fix.items[0].state, FixState::LeftOut);
    }
}

#[test]
fn only_these_ips_and_no_other_is_said_of_each() {
    let finding = leaks(&[18, 19]);
    let fix = plan(&[&finding], &[entry(18), entry(19)], &[ip(19), ip(77)]);
    assert_eq!(planned(&fix), [ip(19)]);
    let about = |item: &FixItem| item.why.clone().unwrap_or_default();
    assert!(about(&fix.items[0]).contains("--only"), "{fix:?}");
    assert!(about(&fix.items[2]).contains("no finding that is meant lists this IP"), "{fix:?}");
}

#[test]
fn what_is_planned_is_still_so_or_it_is_said_why_not() {
    let finding = leaks(&[18]);
    let fix = plan(&[&finding], &[entry(18)], &[]);
    let item = &fix.items[0];
    let open = [finding.clone()];
    assert_eq!(still(item, &open, &[entry(18)]), Ok(()));
    // Its file was written again, for the same container.
    let anew = IpamEntry { since: Some("2026-01-02T03:00:00.000Z".to_owned()), ..entry(18) };
    assert!(still(item, &open, &[anew]).is_err());
    let ifname = IpamEntry { ifname: Some("net1".to_owned()), ..entry(18) };
    assert!(still(item, &open, &[ifname]).is_err());
    let successor = IpamEntry { container_id: Some("next".to_owned()), ..entry(18) };
    assert!(still(item, &open, &[successor]).unwrap_err().contains("any more"));
    assert!(still(item, &open, &[]).unwrap_err().contains("any more"));
    assert_eq!(still(item, &[], &[entry(18)]).unwrap_err(), "its finding is over");
    let over = [Finding { status: Status::Resolved, ..finding.clone() }];
    assert_eq!(still(item, &over, &[entry(18)]).unwrap_err(), "its finding is over");
    let other = [leaks(&[19])];
    assert!(still(item, &other, &[entry(18), entry(19)]).is_err(), "it lists the IP no more");
    let blind = [Finding { unjudged: true, ..finding }];
    assert!(still(item, &blind, &[entry(18)]).unwrap_err().contains("does not answer"));
}

#[test]
fn a_finding_is_meant_by_its_id_and_leaks_by_their_network() {
    let (leak, mut other) = (leaks(&[18]), leaks(&[19]));
    other.id = "wv4bbbbbbbbbbbbb".to_owned();
    other.subject.network = Some("macvlan".to_owned());
    let mut over = leaks(&[20]);
    (over.id, over.status) = ("r7d2h5kq4wz6xa3m".to_owned(), Status::Resolved);
    let open = [leak, other, over];
    let ids = |what: &str| {
        let meant = meant(&open, what, true)?;
        Ok::<_, Unclear>(
            meant.findings.into_iter().map(|one| one.id[..4].to_owned()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(ids("wv4a").unwrap(), ["wv4a"]);
    assert_eq!(ids("macvlan").unwrap(), ["wv4b"]);
    assert!(matches!(ids("wv4"), Err(Unclear::NotFound(_))), "too short for anything");
    assert!(matches!(ids("r7d2"), Err(Unclear::NotFound(_))), "it is over");
    for nothing in ["", "cbr", "x$(id)"] {
        assert!(matches!(ids(nothing), Err(Unclear::NotFound(_))), "{nothing}");
    }
    // A network that is called as an id begins.
    let mut open = open;
    open[0].subject.network = Some("wv4b".to_owned());
    assert!(matches!(meant(&open, "wv4b", true), Err(Unclear::Ambiguous(_))));
    assert_eq!(meant(&open, "wv4bbbbbbbbbbbbb", true).unwrap().findings.len(), 1);
}

#[test]
fn where_nobody_is_asked_a_beginning_is_not_enough() {
    let open = [leaks(&[18])];
    let whole = open[0].id.as_str();
    for beginning in ["w", "wv4a", &whole[..15]] {
        assert!(meant(&open, beginning, false).is_err(), "{beginning}");
    }
    let why = meant(&open, "wv4a", false).unwrap_err().to_string();
    assert!(why.contains(whole), "it says which: {why}");
    for enough in [whole, "cbr0"] {
        assert_eq!(meant(&open, enough, false).unwrap().findings.len(), 1, "{enough}");
    }
    assert!(meant(&open, "w", true).is_err(), "one letter");
}

#[test]
fn what_somebody_acknowledged_is_left_unless_it_is_named_itself() {
    let mut known = leaks(&[18]);
    let at = "2026-01-02T03:00:00.000Z".to_owned();
    known.acked = Some(Ack { at, uid: None, until: None, note: None });
    let open = [known, Finding { id: "wv4bbbbbbbbbbbbb".to_owned(), ..leaks(&[19]) }];
    let network = meant(&open, "cbr0", false).unwrap();
    let [left] = network.acknowledged.as_slice() else { panic!("{network:?}") };
    assert_eq!((network.findings[0].id.as_str(), network.findings.len()), ("wv4bbbbbbbbbbbbb", 1));
    let item = acknowledged(left);
    assert_eq!(item.state, FixState::LeftOut);
    assert!(item.why.unwrap().contains(&open[0].id));
    assert_eq!(meant(&open, &open[0].id, false).unwrap().findings.len(), 1);
}

fn mount(path: &str, pid: u32) -> Holder {
    Holder {
        mount_path: Some(path.to_owned()),
        mount_ns: Some(4_026_531_841),
        mount_ns_pid: Some(pid),
        ..Holder::of_kind(HolderKind::Mount)
    }
}

fn leaked_netns(holders: Vec<Holder>) -> Finding {
    let netns = Netns {
        cookie: Some(4711),
        inode: Some(4_026_532_290),
        nsid: Some(3),
        path: Some("/run/netns/cni-aa10".to_owned()),
        state: None,
    };
    let subject = Subject { netns: Some(netns), ..Subject::default() };
    Finding { holders, ..firing("r7d2h5kq4wz6xa3m", Code::NetnsLeaked, subject) }
}

#[test]
fn a_netns_is_unmounted_only_where_one_mount_of_the_node_is_all_that_holds_it() {
    let own = || mount("/run/netns/cni-aa10", 1);
    let finding = leaked_netns(vec![own()]);
    let fix = plan(&[&finding], &[], &[]);
    let FixTarget::UnmountNetns { path, netns } = &fix.items[0].target else { panic!("{fix:?}") };
    assert_eq!(
        (path.as_str(), netns.cookie, netns.inode),
        ("/run/netns/cni-aa10", Some(4711), Some(4_026_532_290))
    );
    assert_eq!(fix.items[0].proof.len(), 1);
    assert_eq!(still(&fix.items[0], std::slice::from_ref(&finding), &[]), Ok(()));
    let fd = Holder { pid: Some(9), fd: Some(3), ..Holder::of_kind(HolderKind::Fd) };
    let socket = Holder { socket: Some("tcp".to_owned()), ..Holder::of_kind(HolderKind::Socket) };
    for holders in [
        vec![],
        vec![Holder::of_kind(HolderKind::Kernel)],
        vec![fd.clone()],
        vec![own(), fd],
        vec![own(), socket],
        vec![own(), mount("/run/netns/cni-aa10", 1840)],
        vec![own(), mount("/run/netns/other", 1)],
        vec![mount("/host/run/netns/cni-aa10", 1840)],
        vec![Holder { mount_ns_pid: None, ..own() }],
        vec![mount("relative", 1)],
    ] {
        let other = leaked_netns(holders);
        let left = plan(&[&other], &[], &[]);
        assert_eq!(left.items[0].state, FixState::LeftOut, "{other:?}");
        assert!(!why(&left).is_empty());
        assert!(still(&fix.items[0], &[other], &[]).is_err(), "a holder came meanwhile");
    }
    let mut pending = finding.clone();
    pending.status = Status::Pending;
    assert_eq!(plan(&[&pending], &[], &[]).items[0].state, FixState::LeftOut);
    // A new one under the same name.
    let mut next = finding;
    next.subject.netns.as_mut().unwrap().cookie = Some(4712);
    assert!(still(&fix.items[0], &[next], &[]).is_err());
}

fn device(name: &str, index: u32) -> Option<Interface> {
    let name = Some(name.to_owned());
    Some(Interface { name, index, mac: None, kind: Some("veth".to_owned()), master: None })
}

#[test]
fn an_allocation_in_the_api_server_is_freed_where_its_key_leads_there() {
    for (store, key, planned) in [
        ("whereabouts", "ippools/kube-system/10.0.3.0-24/18", true),
        ("whereabouts", "ippools/kube-system/../18", false),
        ("calico", "ipamblocks/10-0-3-0-26/18", true),
        ("calico", "/calico/ipam/v2/assignment/ipv4/block/10.0.3.0-26/18", false),
        ("libnetwork", "ipamblocks/10-0-3-0-26/18", false),
    ] {
        let mut entry = entry(18);
        (entry.store, entry.key) = (store.to_owned(), key.to_owned());
        let mut finding = leaks(&[18]);
        finding.subject.reservations.iter_mut().for_each(|one| one.key = key.to_owned());
        let fix = plan(&[&finding], std::slice::from_ref(&entry), &[]);
        let item = &fix.items[0];
        let is = matches!(item.target, FixTarget::FreeAllocation { .. });
        assert_eq!((is, item.state == FixState::Planned), (planned, planned), "{key}: {item:?}");
        if planned {
            assert!(item.proof[0].starts_with(store), "{item:?}");
            let (findings, mut entries) = ([finding], [entry]);
            assert_eq!(still(item, &findings, &entries), Ok(()));
            entries[0].agree = Some("idle".to_owned());
            assert!(still(item, &findings, &entries).is_err(), "{key}");
        }
    }
}

#[test]
fn a_pair_is_deleted_and_a_route_is_not() {
    let subject = Subject {
        interface: device("veth1a2b3c4d", 41),
        peer: device("veth5e6f7a8b", 42),
        pod: Some(crate::contract::Pod { name: Some("api-0".into()), ..Default::default() }),
        ..Subject::default()
    };
    let mut unnamed = firing("p81cn3t6v2ye7rkd", Code::VethOrphaned, subject.clone());
    unnamed.subject.pod = None;
    let fix = plan(&[&unnamed], &[], &[]);
    assert_eq!(fix.items[0].state, FixState::LeftOut);
    assert!(why(&fix).contains("the form of its name alone"), "{fix:?}");
    let pair = firing("p81cn3t6v2ye7rkd", Code::VethOrphaned, subject);
    let fix = plan(&[&pair], &[], &[]);
    assert_eq!(fix.items[0].state, FixState::Planned);
    assert!(matches!(fix.items[0].target, FixTarget::DeletePair { .. }));
    let mut other = pair.clone();
    other.subject.peer = device("veth5e6f7a8b", 43);
    assert!(still(&fix.items[0], &[other], &[]).is_err(), "another device has its name");
    let route = Subject { ip: Some(ip(18)), ..Subject::default() };
    let route = firing("p81cn3t6v2ye7rkd", Code::VethOrphaned, route);
    let fix = plan(&[&route], &[], &[]);
    assert_eq!(fix.items[0].state, FixState::LeftOut);
    assert!(why(&fix).contains("a route"), "{fix:?}");
}

#[test]
fn of_no_other_finding_anything_is_done() {
    let done = [Code::IpamReservationLeaked, Code::NetnsLeaked, Code::VethOrphaned];
    for code in Code::ALL.iter().copied().filter(|code| !done.contains(code)) {
        let mut finding = firing("k3f9q2m7x5wz4a6b", code, leaks(&[18]).subject);
        finding.holders = vec![mount("/run/netns/cni-aa10", 1)];
        let fix = plan(&[&finding], &[entry(18)], &[]);
        assert_eq!(fix.items.len(), 1);
        assert_eq!(fix.items[0].state, FixState::LeftOut, "{code}");
    }
}
