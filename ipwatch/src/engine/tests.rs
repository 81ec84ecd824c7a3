//! The engine's own decisions: when it is ready, what is not reported before, what a restart keeps, and when everything
//! is read again.

mod bounds;
mod held;
mod same;

use std::net::Ipv4Addr;

use super::*;
use crate::fact::{
    Address, AddressKey, Boot, Look, NetnsRef, Origin, Presence, Reservation, Scope, Source,
    SourceStatus, Task, TaskKey,
};
use crate::finding::{ChangeKind, Status};

const MS: u64 = 1_000_000;
const POD: NetnsRef = NetnsRef { cookie: Some(7), inode: Some(70), nsid: Some(3) };
const HOST: NetnsRef = NetnsRef { cookie: Some(1), inode: Some(1), nsid: None };
const KEY: TaskKey = TaskKey { pid: 10, tid: 10, start: 100 };
const PF_EXITING: u32 = 0x4;

pub(crate) fn fact(ms: u64, what: Observation) -> Fact {
    Fact { at: BootNs(ms * MS), origin: Origin::Probe, what }
}

fn ended(scope: Scope, ms: u64) -> Observation {
    Observation::Ended { scope, began: BootNs(ms * MS), complete: true }
}

/// The first snapshot of a node with one pod of one process, without the runtimes' first answer.
pub(crate) fn snapshot() -> Vec<Fact> {
    let boot = Boot {
        boot_id: "boot".into(),
        node: "node".into(),
        kernel: String::new(),
        wall_offset: 0,
        host: HOST,
    };
    let local = Ipv4Addr::new(10, 0, 0, 5).into();
    let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
    let task = Task {
        key: KEY,
        netns: POD,
        comm: "java".into(),
        parent: None,
        exiting: false,
        killed: false,
        state: None,
        idle: None,
    };
    let source = |name: &str| {
        let status = SourceStatus::Active;
        Observation::Source(Source { name: name.into(), status, detail: String::new() })
    };
    let mut all = vec![Observation::Boot(boot)];
    all.extend(SOURCES.map(|name| source(name.as_str())));
    all.extend([
        Observation::Netns { netns: POD },
        Observation::Task(task),
        Observation::Address {
            netns: POD,
            address: Address { key, scope: Some(0), flags: Some(0) },
        },
        ended(Scope::Tasks, 1),
        ended(Scope::Mounts { mount_ns: 1 }, 1),
        ended(Scope::Addresses { netns: HOST }, 1),
        ended(Scope::Addresses { netns: POD }, 1),
    ]);
    all.into_iter().map(|what| fact(1, what)).collect()
}

pub(crate) fn exiting(ms: u64) -> Fact {
    fact(ms, Observation::TaskExiting { task: KEY })
}

/// A look at the process, which still hangs in its exit.
pub(crate) fn look(ms: u64) -> Fact {
    let look = Look {
        netns: Some(Presence::In(POD)),
        comm: "java".into(),
        state: 'D',
        flags: PF_EXITING,
        wchan: Some("request_wait_answer".into()),
        stack: vec!["request_wait_answer".into(), "fuse_flush".into(), "do_exit".into()],
        frozen: Some(false),
        ..Look::default()
    };
    fact(ms, Observation::Look { task: KEY, look: Box::new(look) })
}

struct Run(Engine);

impl Run {
    fn new(settings: Settings) -> Self {
        Self(Engine::new(settings, BootNs(MS)))
    }

    /// A run with a complete first snapshot.
    fn whole() -> Self {
        let mut run = Self::new(Settings::default());
        let mut facts = snapshot();
        facts.push(fact(2, Observation::FirstAnswers));
        assert!(run.step(2, &facts).whole);
        run
    }

    fn step(&mut self, ms: u64, facts: &[Fact]) -> Effects {
        self.0.step(facts, BootNs(ms * MS))
    }

    /// The process hangs until the finding fires, at 6.7 s with the default thresholds.
    fn hang(&mut self) -> Vec<Change> {
        let mut changes = self.step(1_000, &[exiting(1_000)]).changes;
        for ms in [6_100, 6_700] {
            changes.extend(self.step(ms, &[look(ms)]).changes);
        }
        changes
    }
}

fn told(changes: &[Change]) -> Vec<(ChangeKind, Status)> {
    changes.iter().map(|change| (change.change, change.finding.status)).collect()
}

/// Setting the clock changes only dates, in either direction.
#[test]
fn dates_follow_when_the_wall_clock_is_set() {
    const DAY: i64 = 86_400_000_000_000;
    let mut run = Run::whole();
    let before = run.hang();
    let since = |changes: &[Change]| changes.last().unwrap().finding.since.clone();
    for (ms, wall_offset) in [(6_800, 400 * DAY), (6_900, 399 * DAY)] {
        let set = fact(ms, Observation::ClockSet { wall_offset });
        assert_eq!(run.step(ms, &[set]).changes, [], "it is no news");
        let date = run.0.map().calendar().date(BootNs(0));
        assert_eq!(date, Calendar { wall_offset }.date(BootNs(0)));
    }
    let open = run.0.ledger().findings(false);
    assert_eq!(open[0].since, since(&before), "what was told keeps its date");
}

#[test]
fn it_is_ready_when_everything_was_read_and_everybody_has_answered() {
    let mut run = Run::new(Settings::default());
    let effects = run.step(2, &snapshot());
    assert!(!effects.whole && !run.0.is_ready(), "the runtimes have not answered");
    assert!(effects.next.is_some_and(|next| next <= BootNs(MS).plus(READY_AFTER)));
    let effects = run.step(3, &[fact(3, Observation::FirstAnswers)]);
    assert!(effects.whole && run.0.is_ready() && run.0.is_whole());
    assert!(!run.step(4, &[]).whole, "once");
}

#[test]
fn it_is_ready_without_what_takes_too_long() {
    let mut run = Run::new(Settings::default());
    run.step(2, &snapshot());
    run.step(5_001, &[]);
    assert!(!run.0.is_ready());
    assert!(!run.step(5_002, &[]).whole);
    assert!(run.0.is_ready() && !run.0.is_whole());
    assert!(run.step(9_000, &[fact(9_000, Observation::FirstAnswers)]).whole, "whole later");
}

#[test]
fn two_looks_make_a_finding_fire_and_the_second_is_asked_for() {
    let mut run = Run::whole();
    run.step(1_000, &[exiting(1_000)]);
    let effects = run.step(6_000, &[]);
    assert!(effects.wants.contains(&Request::Look { task: KEY }), "{:?}", effects.wants);
    let effects = run.step(6_100, &[look(6_100)]);
    assert_eq!(told(&effects.changes), [(ChangeKind::Opened, Status::Pending)]);
    assert!(!effects.writes.is_empty());
    let next = effects.next.unwrap();
    assert!(next > BootNs(6_100 * MS) && next <= BootNs(6_600 * MS), "{next:?}");
    let changes = run.step(6_700, &[look(6_700)]).changes;
    assert_eq!(told(&changes), [(ChangeKind::Updated, Status::Firing)]);
    let released = fact(7_000, Observation::TaskReleased { task: KEY });
    let changes = run.step(7_000, &[released]).changes;
    assert_eq!(told(&changes), [(ChangeKind::Resolved, Status::Resolved)]);
}

#[test]
fn the_thresholds_are_the_settings() {
    let thresholds = Thresholds { grace: 60_000 * MS, ..Thresholds::default() };
    let mut run = Run::new(Settings { thresholds, ..Settings::default() });
    let mut facts = snapshot();
    facts.push(fact(2, Observation::FirstAnswers));
    run.step(2, &facts);
    assert_eq!(run.hang(), [], "within its grace");
    run.0.retune(Thresholds::default(), Vec::new());
    let changes = run.step(6_800, &[]).changes;
    assert_eq!(told(&changes), [(ChangeKind::Opened, Status::Pending)], "by the new one it is not");
}

#[test]
fn nothing_is_told_to_be_over_before_it_is_ready() {
    let mut run = Run::new(Settings::default());
    run.step(2, &snapshot());
    run.step(1_000, &[exiting(1_000)]);
    // Not ready for a while yet: the engine starts later than its first facts.
    run.0.started = BootNs(6_000 * MS);
    assert_eq!(run.step(6_100, &[look(6_100)]).changes.len(), 1);
    let released = fact(6_200, Observation::TaskReleased { task: KEY });
    assert_eq!(run.step(6_200, &[released]).changes, []);
    let changes = run.step(6_300, &[fact(6_300, Observation::FirstAnswers)]).changes;
    assert_eq!(told(&changes), [(ChangeKind::Resolved, Status::Resolved)]);
}

#[test]
fn a_source_that_is_down_keeps_what_rests_on_it() {
    let mut run = Run::whole();
    assert_eq!(run.hang().len(), 2);
    let source = |ms, status| {
        let source = Source { name: "netlink".into(), status, detail: String::new() };
        fact(ms, Observation::Source(source))
    };
    let released = fact(7_000, Observation::TaskReleased { task: KEY });
    let down = [source(7_000, SourceStatus::Down), released];
    assert_eq!(run.step(7_000, &down).changes, []);
    let up = run.step(7_100, &[source(7_100, SourceStatus::Active)]).changes;
    assert_eq!(told(&up), [(ChangeKind::Resolved, Status::Resolved)]);
}

/// A listener that ended and was restarted: what it missed is unknown.
#[test]
fn a_gap_ends_nothing_and_is_read_afterwards() {
    let mut run = Run::whole();
    let source = |ms, status| {
        let source = Source { name: "netlink".into(), status, detail: String::new() };
        fact(ms, Observation::Source(source))
    };
    let silent = |effects: &Effects| effects.tenures.is_empty() && effects.changes.is_empty();
    assert!(silent(&run.step(5_000, &[source(5_000, SourceStatus::Down)])));
    assert!(silent(&run.step(300_000, &[])));
    let lost = fact(300_100, Observation::Lost { count: None, calls: false });
    let effects = run.step(300_100, &[lost, source(300_100, SourceStatus::Active)]);
    assert!(silent(&effects) && effects.reread);
    let adopt = |want: &Request| matches!(want, Request::Adopt { netns, .. } if *netns == POD);
    assert!(effects.wants.iter().any(adopt), "{:?}", effects.wants);
}

#[test]
fn after_a_loss_everything_is_read_again_at_most_once_a_second() {
    let lost = |ms| fact(ms, Observation::Lost { count: None, calls: false });
    let mut run = Run::whole();
    assert!(run.step(5_000, &[lost(5_000), lost(5_000)]).reread, "at once");
    let effects = run.step(5_100, &[lost(5_100)]);
    assert!(!effects.reread);
    assert!(effects.next.is_some_and(|next| next <= BootNs(6_000 * MS)), "{:?}", effects.next);
    let effects = run.step(6_000, &[]);
    assert!(effects.reread);
    let adopt = |want: &Request| matches!(want, Request::Adopt { netns, .. } if *netns == POD);
    assert!(effects.wants.iter().any(adopt), "every netns is opened again: {:?}", effects.wants);
    assert!(!run.step(8_000, &[]).reread, "once");
}

#[test]
fn who_has_an_ip_is_told_once_and_written() {
    let mut run = Run::new(Settings::default());
    let effects = run.step(2, &snapshot());
    let [TenureChange::Held(tenure)] = &effects.tenures[..] else { panic!("{effects:?}") };
    assert_eq!(tenure.tenure().ip, Ipv4Addr::new(10, 0, 0, 5));
    assert!(!effects.writes.is_empty());
    let effects = run.step(10, &[fact(10, Observation::NetnsGone { netns: POD })]);
    let [TenureChange::Released(tenure)] = &effects.tenures[..] else { panic!("{effects:?}") };
    assert_eq!(tenure.tenure().ended_by.as_deref(), Some("netns-gone"));
}

/// Facts that are applied one by one, with late steps, give the same result as all at once.
#[test]
fn it_does_not_matter_how_facts_are_cut_into_batches() {
    let mut one = Run::whole();
    let mut other = Run::whole();
    let facts = [exiting(1_000), look(6_100)];
    facts.iter().for_each(|fact| one.0.apply(std::slice::from_ref(fact)));
    assert_eq!(one.step(6_100, &[]).changes, other.step(6_100, &facts).changes);
}

/// For a scan: if no runtime is queried, a leak from before the boot is still found.
#[test]
fn it_is_not_decided_before_a_leak_had_both_its_looks() {
    let thresholds =
        Thresholds { sandbox_grace: 1_000 * MS, second_look: 25 * MS, ..Thresholds::default() };
    let mut run =
        Run(Engine::new(Settings { thresholds, ..Settings::default() }, BootNs(400_000 * MS)));
    let mut facts = snapshot();
    for fact in &mut facts {
        if let Observation::Boot(boot) = &mut fact.what {
            boot.wall_offset = 1_000_000_000_000_000;
        }
    }
    let source = |name: &str, status| {
        Observation::Source(Source { name: name.into(), status, detail: String::new() })
    };
    let reservation = Observation::Reservation(Reservation {
        store: "host-local".into(),
        network: "cbr0".into(),
        key: "/var/lib/cni/networks/cbr0/10.0.0.9".into(),
        ip: Ipv4Addr::new(10, 0, 0, 9).into(),
        container_id: Some("aa4c1b2a9d7e6f5041322314a5b6c7d8".into()),
        ifname: Some("eth0".into()),
        pod: None,
        since: Some(999_000_000_000_000),
    });
    let scope = Scope::Reservations { store: "host-local".into() };
    facts.extend(
        [
            source("runtime", SourceStatus::Disabled),
            source("host-local", SourceStatus::Active),
            Observation::Began(scope.clone()),
            reservation,
            ended(scope, 400_001),
            Observation::FirstAnswers,
        ]
        .map(|what| fact(400_001, what)),
    );
    let mut changes = run.step(400_002, &facts).changes;
    assert!(run.0.is_ready());
    let mut ms = 400_002;
    while !run.0.is_decided(BootNs(ms * MS)) {
        ms += 10;
        assert!(ms < 402_000, "it waits for no more than its grace and two looks");
        changes.extend(run.step(ms, &[]).changes);
    }
    let fires = [(ChangeKind::Opened, Status::Pending), (ChangeKind::Updated, Status::Firing)];
    assert_eq!(told(&changes), fires);
}

/// A process that hangs in a user's netns is not kept any more, because root's need the room. Nothing shows that it has ended
/// until all tasks have been read and it was not among them.
#[test]
fn what_is_not_kept_for_want_of_room_has_not_ended() {
    const USERS: NetnsRef = NetnsRef { cookie: Some(9), inode: Some(90), nsid: Some(5) };
    let mut run = Run::whole();
    run.0.map.bound_all();
    let task = |pid: u32, netns, killed| Task {
        key: TaskKey { pid, tid: pid, start: 100 },
        netns,
        comm: "cat".into(),
        parent: None,
        exiting: false,
        killed,
        state: None,
        idle: None,
    };
    let told = |ms, task| fact(ms, Observation::Task(task));
    let local = Ipv4Addr::new(10, 0, 9, 9).into();
    let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
    let address = Address { key, scope: Some(0), flags: Some(0) };
    let mut facts = vec![
        fact(1_000, Observation::NetnsUser { netns: POD, uid: 0, nested: false }),
        fact(1_000, Observation::NetnsUser { netns: USERS, uid: 1_000, nested: true }),
        fact(1_000, Observation::Address { netns: USERS, address }),
    ];
    facts.extend((100..103).map(|pid| told(1_000, task(pid, USERS, true))));
    run.step(1_000, &facts);
    for ms in [6_100, 6_700] {
        let look = |pid: u32| {
            let look = Look {
                netns: Some(Presence::In(USERS)),
                comm: "cat".into(),
                state: 'D',
                shared_pending: 1 << 8,
                frozen: Some(false),
                ..Look::default()
            };
            let task = TaskKey { pid, tid: pid, start: 100 };
            fact(ms, Observation::Look { task, look: Box::new(look) })
        };
        run.step(ms, &(100..103).map(look).collect::<Vec<_>>());
    }
    let open = |run: &Run| run.0.ledger().findings(false).len();
    assert_eq!(open(&run), 3);
    // Two of them give their room.
    let sleeps: Vec<Fact> = (20..22).map(|pid| told(7_000, task(pid, POD, false))).collect();
    run.step(7_000, &sleeps);
    assert_eq!(run.0.map().leaving().count(), 1);
    run.step(60_000, &[]);
    assert_eq!(open(&run), 3, "{:?}", run.0.ledger().findings(true));
    // All tasks are read: of the two only one is still there.
    let read = |ms, left: &[u32]| {
        let began = fact(ms, Observation::Began(Scope::Tasks));
        let kept = [10, 20, 21].map(|pid| told(ms, task(pid, POD, false)));
        let left = left.iter().map(|pid| told(ms, task(*pid, USERS, true)));
        let all = [began].into_iter().chain(kept).chain(left);
        let all = all.map(|fact| Fact { origin: Origin::Snapshot, ..fact });
        all.chain([fact(ms + 1, ended(Scope::Tasks, ms))]).collect::<Vec<Fact>>()
    };
    run.step(61_000, &read(61_000, &[100, 102]));
    run.step(70_000, &[]);
    assert_eq!(open(&run), 3, "which of them it is, is not known");
    run.step(91_000, &read(91_000, &[100]));
    run.step(150_000, &[]);
    assert_eq!(open(&run), 1, "{:?}", run.0.ledger().findings(true));
}
