//! What strangers cause is bounded, and costs nobody else a finding or a tenure.

use super::*;
use crate::fact::{Link, Mac};

const USERS: NetnsRef = NetnsRef { cookie: Some(9_000), inode: Some(9_000), nsid: None };

/// The address that is the nth of a user's netns.
fn address_of_user(n: u32) -> AddressKey {
    let local = Ipv4Addr::from_bits(0xc000_0200 + n).into();
    AddressKey { ifindex: 2, local, prefix_len: 24, peer: None }
}

/// A netns in a user namespace, with an address.
fn of_a_user() -> Vec<Fact> {
    let address = Address { key: address_of_user(1), scope: Some(0), flags: Some(0) };
    let all = [
        Observation::Netns { netns: USERS },
        Observation::NetnsUser { netns: USERS, uid: 1_000, nested: true },
        Observation::Address { netns: USERS, address },
        ended(Scope::Addresses { netns: USERS }, 3),
    ];
    all.into_iter().map(|what| fact(3, what)).collect()
}

fn key_of(pid: u32) -> TaskKey {
    TaskKey { pid, tid: pid, start: 100 }
}

/// A process in the user's netns.
fn process(pid: u32) -> Fact {
    let (comm, parent, exiting, killed) = ("cat".to_owned(), None, false, false);
    let (key, netns, state, idle) = (key_of(pid), USERS, None, None);
    fact(4, Observation::Task(Task { key, netns, comm, parent, exiting, killed, state, idle }))
}

/// It still hangs in its exit.
fn look_at(pid: u32, ms: u64, frozen: bool) -> Fact {
    let look = Look {
        netns: Some(Presence::In(USERS)),
        comm: "cat".into(),
        state: 'D',
        flags: PF_EXITING,
        wchan: Some("request_wait_answer".into()),
        stack: vec!["request_wait_answer".into(), "fuse_flush".into(), "do_exit".into()],
        frozen: Some(frozen),
        ..Look::default()
    };
    fact(ms, Observation::Look { task: key_of(pid), look: Box::new(look) })
}

fn exits(pid: u32, ms: u64) -> Fact {
    fact(ms, Observation::TaskExiting { task: key_of(pid) })
}

/// The pids that open findings name.
fn open(run: &Run) -> BTreeSet<u32> {
    run.0.ledger().open_findings().filter_map(|one| one.holders.first()?.pid).collect()
}

/// The pids of these changes of the user's findings.
fn changed(changes: &[Change], kind: ChangeKind) -> Vec<u32> {
    let all = changes.iter().filter(|change| change.change == kind);
    all.filter_map(|change| change.finding.holders.first()?.pid).collect()
}

/// A user's hung processes, many more than there is room for, the oldest of which are frozen.
fn flood() -> Run {
    let mut run = Run::whole();
    run.step(3, &of_a_user());
    let all: Vec<u32> = (1_000..1_300).collect();
    run.step(4, &all.iter().map(|pid| process(*pid)).collect::<Vec<_>>());
    let exit = |pid: &u32| exits(*pid, if *pid < 1_100 { 900 } else { 1_000 });
    run.step(1_000, &all.iter().map(exit).collect::<Vec<_>>());
    for ms in [6_100, 6_700] {
        let looks = all.iter().map(|pid| look_at(*pid, ms, *pid < 1_100));
        run.step(ms, &looks.collect::<Vec<_>>());
    }
    run
}

/// One finding for each hung process would be thousands. What is open stays open until it is over, even if others are older.
#[test]
fn hung_processes_of_one_user_are_no_thousands_of_findings() {
    let mut run = flood();
    let told = open(&run);
    assert_eq!(told.len(), 64);
    let said = run.0.map().said_of_untold(&run.0.untold()).unwrap();
    let whose = "findings that are not told for want of room: uid 1000: ";
    assert_eq!(said, format!("{whose}{} ip-held-by-stuck-process", 200 - 64));
    // The pod's comes later, and is told at once.
    let changes = run.step(7_000, &[exiting(7_000)]).changes;
    assert_eq!(changes, []);
    for ms in [12_100, 12_700] {
        assert_eq!(run.step(ms, &[look(ms)]).changes.len(), 1, "the pod's alone");
    }
    assert_eq!(open(&run).len(), 65);
    // Older ones are thawed: they take no place of an open one, which does not end either.
    let thawed: Vec<Fact> = (1_000..1_100).map(|pid| look_at(pid, 13_000, false)).collect();
    assert_eq!(run.step(13_000, &thawed).changes, []);
    assert_eq!(run.step(14_000, &[]).changes, []);
    let unjudged = |run: &Run| {
        let open = run.0.ledger().open_findings();
        open.filter(|finding| run.0.is_unjudged(finding)).count()
    };
    assert_eq!(unjudged(&run), 64, "no command relies on them");
    // One that is over ends, and another takes its place.
    let over = *told.last().unwrap();
    let released = fact(15_000, Observation::TaskReleased { task: key_of(over) });
    let changes = run.step(15_000, &[released]).changes;
    assert_eq!(changed(&changes, ChangeKind::Resolved), [over]);
    assert_eq!(changed(&changes, ChangeKind::Opened).len(), 1);
    assert_eq!(run.step(16_000, &[]).changes, []);
}

/// An address that the kernel rejected (IFA_F_PERMANENT, IFA_F_DADFAILED).
fn rejected(netns: NetnsRef, n: u32) -> Observation {
    let address = Address { key: rejected_key(n), scope: Some(0), flags: Some(0x88) };
    Observation::Address { netns, address }
}

fn rejected_key(n: u32) -> AddressKey {
    let local = std::net::Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n)).into();
    AddressKey { ifindex: 2, local, prefix_len: 64, peer: None }
}

fn with_device(netns: NetnsRef, user: (u32, bool)) -> [Observation; 2] {
    let (mac, kind) = (Some(Mac([2, 0, 0, 0, 0, 1])), Some("veth".into()));
    let link = Link { ifindex: 2, name: "eth0".into(), mac, kind, up: true, ..Link::default() };
    let (uid, nested) = user;
    [Observation::NetnsUser { netns, uid, nested }, Observation::Link { netns, link }]
}

/// A conflict that gives way to others is not over: its finding ends when the address goes.
#[test]
fn what_gives_way_is_not_over() {
    let mut run = Run::whole();
    let users = [0, 1, 2, 3].map(|n| NetnsRef { cookie: Some(9_100 + n), ..USERS });
    let users = users.map(|netns| NetnsRef { inode: netns.cookie.map(|n| n as u32), ..netns });
    let mut facts = Vec::new();
    for netns in users {
        facts.push(fact(3, Observation::Netns { netns }));
        facts.extend(with_device(netns, (1_000, true)).map(|what| fact(3, what)));
        // The newest ones give way first.
        facts.extend((0..32).rev().map(|n| fact(4 + u64::from(32 - n), rejected(netns, n))));
    }
    let opened = run.step(100, &facts).changes;
    assert_eq!(opened.len(), 64, "of 128 that are kept");
    let mut facts: Vec<Fact> = with_device(POD, (0, false)).map(|what| fact(200, what)).into();
    facts.extend((500..520).map(|n| fact(200, rejected(POD, n))));
    let changes = run.step(200, &facts).changes;
    let of = |kind| changes.iter().filter(|change| change.change == kind).count();
    assert_eq!((of(ChangeKind::Opened), of(ChangeKind::Resolved)), (20, 0));
    run.step(1_000, &[]);
    let still: Vec<Change> = run.step(3_000, &[]).changes;
    assert!(still.iter().all(|change| change.change != ChangeKind::Resolved), "{still:?}");
    let gone = |netns| Observation::AddressGone { netns, key: rejected_key(0) };
    let changes = run.step(4_000, &users.map(|netns| fact(4_000, gone(netns)))).changes;
    let over = changes.iter().filter(|change| change.change == ChangeKind::Resolved);
    let over: Vec<_> = over.map(|change| change.finding.subject.ip).collect();
    assert_eq!(over, [Some(rejected_key(0).local); 4]);
    let count = run.0.ledger().open_findings().count();
    assert_eq!(count, 64 + 20, "others have their places");
}

/// A user who adds and removes addresses without end costs no other tenure its end.
#[test]
fn tenures_of_one_user_do_not_crowd_out_the_end_of_a_pods() {
    let mut run = Run::whole();
    run.step(3, &of_a_user());
    let mut facts = Vec::new();
    for n in 0..33_000 {
        let at = |after| BootNs(1_000 * MS + 2 * n + after);
        let key = address_of_user(2);
        let address = Address { key, scope: Some(0), flags: Some(0) };
        let [came, gone] = [
            Observation::Address { netns: USERS, address },
            Observation::AddressGone { netns: USERS, key },
        ];
        let told = |after, what| Fact { at: at(after), origin: Origin::Probe, what };
        facts.extend([told(0, came), told(1, gone)]);
    }
    facts.push(fact(2_000, Observation::NetnsGone { netns: POD }));
    let effects = run.step(2_000, &facts);
    let ended = effects.tenures.iter().any(|change| {
        let pods = Ipv4Addr::new(10, 0, 0, 5);
        matches!(change, TenureChange::Released(row) if row.tenure().ip == pods
            && row.tenure().ended_by.as_deref() == Some("netns-gone"))
    });
    assert!(ended, "the pod's end is told");
    assert!(run.0.ledger().forgotten() > 0, "what is not told is counted");
}
