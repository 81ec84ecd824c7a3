//! What belongs to the canary, and what only looks like it.

use ipwatch_common::{CallRecord, Header, Netns, NetnsRecord, TaskRecord, Wire, kind};

use super::*;
use crate::fact::{Sender, Task};
use crate::sources::probes::TICK;

const STAGE: u32 = 100;
const OURS: Netns = Netns { cookie: 7, inode: 4_026_532_001, refs: 1 };
const OTHERS: Netns = Netns { cookie: 8, inode: 4_026_532_002, refs: 1 };
const NONE: Netns = Netns { cookie: 0, inode: 0, refs: 0 };

/// The header of an event that happens now.
fn header<T: Wire>(kind: u16) -> Header {
    Header { kind, size: T::SIZE as u16, reserved: 0, time: clock::now().0 }
}

/// The bytes of a record: these fields at their offsets, everything else zero.
fn bytes<T: Wire>(header: Header, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; T::SIZE];
    bytes[..2].copy_from_slice(&header.kind.to_ne_bytes());
    bytes[2..4].copy_from_slice(&header.size.to_ne_bytes());
    bytes[8..16].copy_from_slice(&header.time.to_ne_bytes());
    for (at, field) in fields {
        bytes[*at..*at + field.len()].copy_from_slice(field);
    }
    assert!(T::take(&mut &bytes[..]).is_some());
    bytes
}

fn netns_bytes(netns: Netns) -> Vec<u8> {
    [&netns.cookie.to_ne_bytes()[..], &netns.inode.to_ne_bytes(), &netns.refs.to_ne_bytes()]
        .concat()
}

fn netns_record(kind: u16, netns: Netns) -> Vec<u8> {
    bytes::<NetnsRecord>(header::<NetnsRecord>(kind), &[(16, &netns_bytes(netns))])
}

fn task_record(kind: u16, netns: Netns, pid: u32) -> Vec<u8> {
    let (pid, start) = (pid.to_ne_bytes(), (9 * TICK).to_ne_bytes());
    let fields: [(usize, &[u8]); 4] =
        [(16, &netns_bytes(netns)), (32, &pid), (36, &pid), (40, &start)];
    bytes::<TaskRecord>(header::<TaskRecord>(kind), &fields)
}

fn kill(pid: u32, sender: u32) -> Observation {
    let by = Sender { pid: sender, comm: "exe".into() };
    Observation::Signalled { pid, tid: pid, signal: 9, group: true, by }
}

fn task(pid: u32, netns: NetnsRef) -> Task {
    Task {
        key: TaskKey { pid, tid: pid, start: 9 },
        netns,
        comm: "exe".into(),
        parent: None,
        exiting: false,
        killed: false,
        state: None,
        idle: None,
    }
}

fn reference(netns: Netns) -> NetnsRef {
    NetnsRef { cookie: Some(netns.cookie), inode: Some(netns.inode), nsid: None }
}

/// Claims of a stage that has named its netns.
fn standing() -> Claims {
    let claims = Claims::default();
    claims.begin(STAGE);
    let other = NetnsRef { cookie: Some(9), inode: Some(4_026_532_009), nsid: None };
    claims.know([reference(OURS), other], None);
    claims
}

fn fact(what: Observation) -> Fact {
    Fact { at: BootNs(1), origin: Origin::Snapshot, what }
}

fn kept(claims: &Claims, what: Observation) -> bool {
    let mut facts = vec![fact(what)];
    claims.admit(&mut facts);
    !facts.is_empty()
}

#[test]
fn without_a_canary_nothing_is_its() {
    let claims = Claims::default();
    assert!(!claims.claims(&netns_record(kind::NETNS_CREATED, OURS)));
    assert!(kept(&claims, Observation::Netns { netns: reference(OURS) }));
    assert!(!claims.is_held());
}

#[test]
fn everybody_waits_until_the_netns_have_names() {
    let claims = Claims::default();
    claims.begin(STAGE);
    assert!(!claims.is_held(), "it does nothing yet");
    claims.hold(Duration::from_secs(60));
    assert!(claims.is_held());
    claims.know([reference(OURS), reference(OURS)], None);
    assert!(!claims.is_held());
    claims.hold(Duration::ZERO);
    assert!(!claims.is_held(), "and no longer than this");
}

#[test]
fn a_netns_is_ours_by_its_cookie_from_its_making_to_its_end() {
    let claims = standing();
    assert!(claims.claims(&netns_record(kind::NETNS_CREATED, OURS)));
    assert!(!claims.claims(&netns_record(kind::NETNS_CREATED, OTHERS)));
    let same_inode = Netns { cookie: 99, ..OURS };
    assert!(!claims.claims(&netns_record(kind::NETNS_CREATED, same_inode)));
    claims.left();
    assert!(claims.claims(&netns_record(kind::NETNS_DYING, OURS)));
    assert!(claims.claims(&netns_record(kind::NETNS_GONE, OURS)));
    let marks = claims.marks();
    let all = [Mark::Created, Mark::Dying, Mark::Gone];
    assert!(all.iter().all(|mark| marks.contains_key(mark)), "{marks:?}");
}

#[test]
fn an_inode_alone_is_ours_only_until_it_is_given_to_another_netns() {
    let claims = Claims::default();
    claims.begin(STAGE);
    let old = Netns { cookie: 0, ..OURS };
    claims.know([NetnsRef::inode(OURS.inode), NetnsRef::inode(1)], None);
    assert!(claims.claims(&netns_record(kind::NETNS_CREATED, old)));
    assert!(!kept(&claims, Observation::Netns { netns: NetnsRef::inode(OURS.inode) }));
    claims.left();
    assert!(!claims.claims(&netns_record(kind::NETNS_CREATED, old)), "a new one");
    assert!(kept(&claims, Observation::Netns { netns: NetnsRef::inode(OURS.inode) }));
}

/// Its inode is reused by a pod's netns, and no probe reports that.
#[test]
fn after_its_end_an_inode_alone_is_another_netns() {
    let claims = Claims::default();
    claims.begin(STAGE);
    let (inode, old) = (NetnsRef::inode(OURS.inode), Netns { cookie: 0, ..OURS });
    claims.know([inode, NetnsRef::inode(1)], None);
    let before = task_record(kind::TASK_FORK, old, 101);
    claims.left();
    let kept_later = |what| {
        let mut facts = vec![Fact { at: clock::now(), origin: Origin::Snapshot, what }];
        claims.admit(&mut facts);
        !facts.is_empty()
    };
    assert!(kept_later(Observation::Netns { netns: inode }));
    assert!(kept_later(Observation::Task(task(7, inode))));
    assert!(!claims.claims(&task_record(kind::TASK_FORK, old, 101)));
    assert!(!kept(&claims, Observation::Netns { netns: inode }), "read before, told after");
    assert!(claims.claims(&before));
    assert!(!kept_later(Observation::NetnsDying { netns: inode }));
    assert!(claims.claims(&netns_record(kind::NETNS_DYING, old)));
    assert!(claims.claims(&netns_record(kind::NETNS_GONE, old)));
    // A cookie is never reused.
    let claims = standing();
    claims.left();
    assert!(claims.claims(&task_record(kind::TASK_FORK, OURS, 101)));
}

/// The end of a pod's netns is read late, when the canary's netns has its inode.
#[test]
fn the_end_of_a_netns_that_had_the_inode_before_is_told() {
    let old = Netns { cookie: 0, ..OURS };
    let (dying, gone) = (netns_record(kind::NETNS_DYING, old), netns_record(kind::NETNS_GONE, old));
    let earlier = clock::now();
    let inode = NetnsRef::inode(OURS.inode);
    let kept_then = |claims: &Claims, at, what| {
        let mut facts = vec![Fact { at, origin: Origin::Snapshot, what }];
        claims.admit(&mut facts);
        !facts.is_empty()
    };
    let claims = Claims::default();
    claims.begin(STAGE);
    claims.know([inode, NetnsRef::inode(1)], None);
    assert!(!claims.claims(&dying) && !claims.claims(&gone), "before the stage");
    // The inode is free before the last part of a teardown is reported.
    assert!(!claims.claims(&netns_record(kind::NETNS_GONE, old)), "beside the stage");
    assert!(kept_then(&claims, earlier, Observation::NetnsDying { netns: inode }));
    assert!(kept_then(&claims, clock::now(), Observation::NetnsDying { netns: inode }));
    assert!(kept_then(&claims, earlier, Observation::NetnsGone { netns: inode }));
    claims.left();
    assert!(!claims.claims(&gone), "told after the stage");
    assert!(kept_then(&claims, earlier, Observation::NetnsDying { netns: inode }));
    assert!(claims.claims(&netns_record(kind::NETNS_GONE, old)), "its own");
}

/// Another netns has its inode before the last part of its teardown is reported.
#[test]
fn only_the_end_of_it_is_ours_once_the_inode_is_anothers() {
    let old = Netns { cookie: 0, ..OURS };
    let claims = Claims::default();
    claims.begin(STAGE);
    claims.know([NetnsRef::inode(OURS.inode), NetnsRef::inode(1)], None);
    claims.left();
    assert!(claims.claims(&netns_record(kind::NETNS_DYING, old)));
    assert!(!claims.claims(&netns_record(kind::NETNS_CREATED, old)), "the next one's");
    assert!(!claims.claims(&task_record(kind::TASK_FORK, old, 77)));
    assert!(claims.claims(&netns_record(kind::NETNS_GONE, old)), "of the first");
    assert!(!claims.claims(&netns_record(kind::NETNS_GONE, old)), "of the second");
}

/// Tasks have a ring buffer of their own, which is read up to 100 ms later than the other one.
#[test]
fn what_is_told_after_the_end_of_its_netns_is_ours() {
    let claims = standing();
    let release = task_record(kind::TASK_RELEASE, OURS, STAGE);
    claims.left();
    assert!(claims.claims(&netns_record(kind::NETNS_GONE, OURS)));
    assert!(claims.claims(&release));
    assert!(claims.marks().contains_key(&Mark::Release));
    // From a list that was started before.
    assert!(!kept(&claims, Observation::Netns { netns: reference(OURS) }));
    assert!(!claims.claims(&task_record(kind::TASK_RELEASE, OTHERS, STAGE)));
}

#[test]
fn an_inode_alone_is_ours_after_its_end_for_what_happened_before() {
    let old = Netns { cookie: 0, ..OURS };
    for next_comes_first in [false, true] {
        let claims = Claims::default();
        claims.begin(STAGE);
        claims.know([NetnsRef::inode(OURS.inode), NetnsRef::inode(1)], None);
        let release = task_record(kind::TASK_RELEASE, old, STAGE);
        claims.left();
        let gone = netns_record(kind::NETNS_GONE, old);
        let created = netns_record(kind::NETNS_CREATED, old);
        if next_comes_first {
            assert!(!claims.claims(&created), "the next one's");
        }
        assert!(claims.claims(&gone));
        assert!(!claims.claims(&netns_record(kind::IPV4_DOWN, old)), "an end of the next one");
        assert!(
            !claims.claims(&task_record(kind::TASK_RELEASE, old, 77)),
            "a task of the next one"
        );
        assert!(claims.claims(&release));
        assert!(claims.marks().contains_key(&Mark::Release));
    }
}

/// Linux 5.12 and 5.13: the record has a cookie, but ours cannot be read.
#[test]
fn a_cookie_that_only_the_kernel_knows_does_not_hide_it() {
    let claims = Claims::default();
    claims.begin(STAGE);
    claims.know([NetnsRef::inode(OURS.inode), NetnsRef::inode(1)], None);
    assert!(claims.claims(&netns_record(kind::NETNS_CREATED, OURS)));
    assert!(!claims.claims(&netns_record(kind::NETNS_CREATED, OTHERS)));
    claims.left();
    assert!(claims.claims(&netns_record(kind::NETNS_GONE, OURS)));
    claims.know([NetnsRef::inode(OURS.inode), NetnsRef::inode(1)], None);
    claims.left();
    let next = Netns { cookie: 99, ..OURS };
    assert!(!claims.claims(&netns_record(kind::NETNS_CREATED, next)), "a new one");
}

#[test]
fn a_task_is_ours_where_it_is_and_when_it_is_nowhere_any_more() {
    let claims = standing();
    assert!(claims.claims(&task_record(kind::TASK_FORK, OURS, 101)));
    assert!(claims.claims(&task_record(kind::TASK_RELEASE, NONE, 101)));
    assert!(!claims.claims(&task_record(kind::TASK_RELEASE, NONE, 55)), "a stranger's");
    assert!(!claims.claims(&task_record(kind::TASK_FORK, OTHERS, 56)));
    // Another process enters every netns and continues: it is not the canary's task when it ends.
    assert!(claims.claims(&task_record(kind::TASK_JOIN, OURS, 57)));
    assert!(!claims.claims(&task_record(kind::TASK_JOIN, OTHERS, 57)));
    assert!(!claims.claims(&task_record(kind::TASK_RELEASE, NONE, 57)));
}

#[test]
fn a_kill_is_ours_by_who_sent_it() {
    let claims = standing();
    assert!(!kept(&claims, kill(101, STAGE)));
    assert!(kept(&claims, kill(101, 1)));
    assert!(kept(&claims, kill(STAGE, 1)), "somebody kills the stage: that is told");
    claims.left();
    assert!(kept(&claims, kill(101, STAGE)), "the pid is another one's by now");
}

#[test]
fn a_task_that_was_only_listed_is_ours_to_its_end() {
    let claims = standing();
    let end = |pid| Observation::TaskReleased { task: TaskKey { pid, tid: pid, start: 9 } };
    assert!(!kept(&claims, Observation::Task(task(STAGE, reference(OURS)))));
    assert!(!kept(&claims, Observation::Task(task(103, reference(OURS)))));
    claims.left();
    assert!(claims.claims(&task_record(kind::TASK_FREE, NONE, STAGE)));
    assert!(claims.marks().contains_key(&Mark::Free));
    assert!(!kept(&claims, end(103)));
    assert!(kept(&claims, end(104)), "a stranger's");
}

#[test]
fn a_plugin_is_ours_only_while_the_canary_sings() {
    let call = |container: &[u8]| {
        let (pid, start) = (102u32.to_ne_bytes(), (9 * TICK).to_ne_bytes());
        // header, pid, parent, start, script, loose, plugin, command
        let at = 16 + 4 + 4 + 8 + 4 + 4 + 256 + 16;
        let fields: [(usize, &[u8]); 3] = [(16, &pid), (24, &start), (at, container)];
        bytes::<CallRecord>(header::<CallRecord>(kind::CALL_BEGAN), &fields)
    };
    let claims = standing();
    assert!(claims.claims(&call(super::super::CONTAINER.as_bytes())));
    assert!(!claims.claims(&call(b"ipwatch-canary2")));
    claims.left();
    assert!(!claims.claims(&call(super::super::CONTAINER.as_bytes())));
}

#[test]
fn facts_of_its_netns_go_no_further() {
    let claims = standing();
    let netns = reference(OURS);
    assert!(!kept(&claims, Observation::Netns { netns }));
    assert!(!kept(&claims, Observation::Netns { netns: NetnsRef::inode(OURS.inode) }));
    assert!(kept(&claims, Observation::Netns { netns: reference(OTHERS) }));
    assert!(kept(&claims, Observation::Netns { netns: NetnsRef::nsid(0) }));
    assert!(!kept(&claims, Observation::Task(task(STAGE, netns))));
    let holder = Holder::Fd { pid: STAGE, fd: 3, comm: "exe".into() };
    assert!(!kept(&claims, Observation::Holder { netns, holder }));
    assert!(!claims.is_queued(BootNs(1)));
    assert!(!kept(&claims, Observation::NetnsDying { netns }));
    assert!(claims.is_queued(BootNs(1)));
    let marks = claims.marks();
    for mark in [Mark::NetnsListed, Mark::TaskListed, Mark::FileListed] {
        assert!(marks.contains_key(&mark), "{mark:?}");
    }
}

#[test]
fn garbage_is_nobodys() {
    let claims = standing();
    for size in 0..200 {
        assert!(!claims.claims(&vec![0xff; size]), "{size}");
        assert!(!claims.claims(&vec![1; size]), "{size}");
    }
}
