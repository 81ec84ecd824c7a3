//! Random lives of a node: a case of the detectors, cut short and mixed with facts of other cases, steps of the clock,
//! other thresholds, failing sources and acknowledgements. After every step incremental detection must give the same
//! result as detection from scratch, with the same times and texts; and everything that strangers can fill must be within its
//! bounds, which are small in every other life, so that they are reached.
//!
//! The property test (`tests/same.rs`) draws lives at random; the fuzz target `engine` searches for new paths.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::*;
use crate::fact::{
    Address, AddressKey, Boot, NetnsRef, Origin, Source, SourceStatus, Task, TaskKey, Unreported,
};
use crate::finding::{Candidate, Finding};
use crate::map::{ConflictGrounds, Places};

const MS: u64 = 1_000_000;
const SEC: u64 = 1_000 * MS;
/// Steps of the clock, in ns.
const STEPS: [u64; 10] =
    [1, MS, 100 * MS, 500 * MS, SEC, 3 * SEC, 5 * SEC, 31 * SEC, 121 * SEC, 301 * SEC];
/// So small that lives reach it.
const PLACES: Places = Places { of_one: 1, of_users: 1, of_others: 1 };
const STATUSES: [SourceStatus; 4] =
    [SourceStatus::Down, SourceStatus::Active, SourceStatus::Degraded, SourceStatus::Active];

/// One line of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Line {
    Fact(Box<Fact>),
    /// The detectors are asked at this time.
    At(BootNs),
}

/// The lines of each case, and the facts of all cases together.
pub(crate) struct Palette {
    pub(crate) cases: Vec<Vec<Line>>,
    all: Vec<Fact>,
}

impl Palette {
    pub(crate) fn new(cases: Vec<Vec<Line>>) -> Self {
        let fact = |line: &Line| match line {
            Line::Fact(fact) => Some((**fact).clone()),
            Line::At(_) => None,
        };
        let all = cases.iter().flatten().filter_map(fact).collect();
        Self { cases, all }
    }
}

/// An engine, and a ledger that gets everything anew in every step.
struct Twins {
    engine: Engine,
    ledger: Ledger,
    now: BootNs,
}

impl Twins {
    fn new(is_bounded: bool) -> Self {
        let now = BootNs(MS);
        let (mut engine, mut ledger) = (Engine::new(Settings::default(), now), Ledger::default());
        if is_bounded {
            engine.map.bound_all();
            engine.ledger.bound(PLACES);
            ledger.bound(PLACES);
        }
        Self { engine, ledger, now }
    }

    /// Replays a line of a case, at its time or later.
    fn follow(&mut self, line: &Line) {
        match line {
            Line::Fact(fact) => {
                self.now = self.now.max(fact.at);
                self.tell(&fact.what, fact.origin);
            }
            Line::At(now) => self.now = self.now.max(*now),
        }
    }

    fn tell(&mut self, what: &Observation, origin: Origin) {
        self.now = self.now.plus(1);
        if let Observation::Boot(Boot { wall_offset, .. }) | Observation::ClockSet { wall_offset } =
            what
        {
            self.ledger.set_calendar(Calendar { wall_offset: *wall_offset });
        }
        self.engine.apply(&[Fact { at: self.now, origin, what: what.clone() }]);
    }

    /// The candidates from scratch, and the changes of the ledger that gets them.
    fn compare(&mut self) -> (Vec<Candidate>, Vec<Change>) {
        let Engine { map, thresholds, ready, started, .. } = &self.engine;
        let mut detection = Detection::default();
        detection.update(map, self.now, thresholds);
        let blind = match ready {
            Some(_) => detect::blind(map, thresholds),
            None => Code::ALL.iter().copied().collect(),
        };
        self.ledger.set_second_look(thresholds.second_look);
        self.ledger.be_patient(&detect::patient(self.now.since(*started), thresholds));
        self.ledger.keep_while(|finding| detect::still_holds(map, finding, self.now));
        let standing = Standing {
            whose: &|candidate| map.whose(&candidate.subject),
            may_hold: &detect::may_hold(&detection, map, self.now),
        };
        let found = detection.found();
        let changes = self.ledger.observe_with(self.now, found, &blind, &standing);
        (found.to_vec(), changes)
    }

    /// Takes a step and compares. Returns the codes that were found.
    fn step(&mut self) -> BTreeSet<Code> {
        let effects = self.engine.step(&[], self.now);
        let (found, changes) = self.compare();
        assert_eq!(self.engine.detection.found(), found);
        assert_eq!(effects.changes, changes);
        let open = |ledger: &Ledger| ledger.open_findings().cloned().collect::<Vec<Finding>>();
        assert_eq!(open(&self.engine.ledger), open(&self.ledger));
        assert_eq!(self.engine.ledger.due(self.now), self.ledger.due(self.now));
        assert_eq!(self.engine.ledger.untold(), self.ledger.untold());
        self.ledger.assert_is_bounded();
        let Engine { map, thresholds, detection, .. } = &mut self.engine;
        assert_eq!(detection.blind(map, thresholds), detect::blind(map, thresholds));
        indexes_are_true(map, self.now);
        map.assert_bounds();
        found.iter().map(|one| one.code).collect()
    }

    fn acknowledge(&mut self, pick: usize) {
        let id = self.ledger.open_findings().nth(pick % 3).map(|finding| finding.id.clone());
        let Some(id) = id else { return };
        let lasts = (!pick.is_multiple_of(4)).then_some(Duration::from_secs(pick as u64 % 7));
        let word = (!pick.is_multiple_of(5)).then_some(AckRequest { uid: 0, lasts, note: None });
        let one = self.engine.acknowledge(&id, self.now, word.clone());
        assert_eq!(one, self.ledger.acknowledge(&id, self.now, word));
    }
}

/// Lookups by index must equal a full search.
fn indexes_are_true(map: &NodeMap, now: BootNs) {
    let anew: Vec<_> = map.heard_conflicts(now).collect();
    let kept = map.conflicts(now);
    assert_eq!(kept.get(..anew.len()), Some(&anew[..]));
    assert!(kept[anew.len()..].iter().all(|one| one.grounds == ConflictGrounds::Dad));
    let ids = |all: &mut dyn Iterator<Item = &crate::map::SandboxEntry>| {
        all.map(|entry| entry.sandbox.id.clone()).collect::<Vec<_>>()
    };
    let dead = ids(&mut map.all_sandboxes().filter(|entry| entry.dead.is_some()));
    assert_eq!(ids(&mut map.all_dead()), dead);
    let keys = |all: &mut dyn Iterator<Item = &TaskEntry>| {
        all.map(|task| task.key).collect::<Vec<TaskKey>>()
    };
    let looked = keys(&mut map.leaving().filter(|task| task.look.is_some()));
    assert_eq!(keys(&mut map.seen_leaving()), looked);
    let before = keys(&mut map.leaving().filter(|task| task.preexisting));
    assert_eq!(keys(&mut map.left_before()), before);
    for netns in map.all_netns() {
        let links = netns.links().map(|known| &known.link);
        let pairs = links.filter(|link| {
            link.peer.is_some() && link.peer_nsid.is_none() && crate::map::is_pods(link)
        });
        let pairs: Vec<u32> = pairs.map(|link| link.ifindex).collect();
        let known: Vec<u32> = netns.pairs().map(|known| known.link.ifindex).collect();
        assert_eq!(known, pairs);
    }
}

fn thresholds(pick: usize) -> Thresholds {
    let of = [Thresholds::default(), Thresholds { grace: SEC, ..Thresholds::default() }];
    let short = Thresholds { sandbox_grace: SEC, leak_age: 5 * SEC, ..Thresholds::default() };
    let quick = Thresholds { second_look: 0, teardown_grace: SEC, ..short };
    [of[0], of[1], short, quick][pick % 4]
}

/// What a user does with one of some netns of his own. The cases have no more netns than the small bounds allow.
fn of_a_stranger(pick: usize) -> Vec<Observation> {
    let number = pick as u32 % 4;
    let inode = Some(9_000 + number);
    let netns = NetnsRef { cookie: inode.map(u64::from), inode, nsid: None };
    let address = |last| {
        let local = std::net::Ipv4Addr::new(192, 0, 2, last).into();
        let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
        let address = Address { key, scope: None, flags: None };
        Observation::Address { netns, address }
    };
    let task = |n| {
        let pid = 9_000 + 8 * number + n;
        let key = TaskKey { pid, tid: pid, start: 100 };
        let (comm, parent, exiting, killed) = ("sleep".to_owned(), None, false, false);
        let (state, idle) = (None, None);
        Observation::Task(Task { key, netns, comm, parent, exiting, killed, state, idle })
    };
    match pick / 8 % 8 {
        0 => vec![Observation::NetnsGone { netns }],
        1 => vec![Observation::NetnsDying { netns }],
        2 => vec![Observation::NetnsUser { netns, uid: 65_534, nested: true }],
        3 | 4 => vec![Observation::NetnsCreated { netns }],
        5 => (1..5).map(task).collect(),
        _ => (1..5).map(address).collect(),
    }
}

/// What a life has shown.
#[derive(Default)]
#[cfg_attr(not(test), allow(dead_code, reason = "the fuzz target does not read it"))]
pub(crate) struct Lived {
    /// The codes of all that was found in it.
    pub(crate) codes: BTreeSet<Code>,
    /// The kinds of what was not kept, because a bound was reached.
    pub(crate) not_kept: BTreeSet<&'static str>,
}

impl Lived {
    fn step(&mut self, twins: &mut Twins) {
        self.codes.extend(twins.step());
        self.not_kept.extend(twins.engine.map.unkept_by_kind().keys().map(|what| what.kind));
        if !twins.ledger.untold().is_empty() {
            self.not_kept.insert("findings");
        }
    }
}

/// Runs a life.
///
/// # Panics
/// Detection differs from detection from scratch.
pub(crate) fn live(palette: &Palette, case: usize, life: &[(u8, u16)]) -> Lived {
    let cases = palette.cases.len();
    let (is_bounded, case) = (!(case / cases).is_multiple_of(2), case % cases);
    let case = &palette.cases[case];
    let mut next = case.iter();
    let mut twins = Twins::new(is_bounded);
    // The first fact of every stream, the boot: until then it is not known which netns is the host's.
    if let Some(line) = next.next() {
        twins.follow(line);
    }
    let mut lived = Lived::default();
    for (op, pick) in life {
        let pick = usize::from(*pick);
        match op {
            0..=23 => {
                if let Some(line) = next.next() {
                    twins.follow(line);
                }
            }
            24 => drop(next.next()),
            25 => twins.follow(&case[pick % case.len()]),
            26 => {
                let fact = &palette.all[pick % palette.all.len()];
                twins.tell(&fact.what, fact.origin);
            }
            28 if is_bounded => {
                for what in of_a_stranger(pick) {
                    twins.tell(&what, Origin::Probe);
                }
            }
            27 | 28 => twins.now = twins.now.plus(STEPS[pick % STEPS.len()]),
            29 => twins.engine.retune(thresholds(pick), Vec::new()),
            30 => {
                let names = SOURCES.map(SourceName::as_str).into_iter().chain([
                    "containerd",
                    "host-local",
                    "kubernetes",
                ]);
                let name = names.cycle().nth(pick % 9).unwrap_or_default();
                let status = STATUSES[pick / 9 % STATUSES.len()];
                let source = Source { name: name.into(), status, detail: String::new() };
                twins.tell(&Observation::Source(source), Origin::Runtime);
            }
            _ => match pick % 6 {
                0 => twins.tell(&Observation::Lost { count: None, calls: true }, Origin::Probe),
                1 => {
                    let wall_offset = (pick as i64 - 30_000) * 1_000_000_000;
                    twins.tell(&Observation::ClockSet { wall_offset }, Origin::Daemon);
                }
                2 => {
                    let mut names: Vec<NetnsRef> =
                        twins.engine.map.all_netns().map(|entry| entry.names).collect();
                    names.sort_by_key(|netns| (netns.cookie, netns.inode, netns.nsid));
                    let Some(netns) = names.get(pick / 6 % names.len().max(1)) else { continue };
                    let (overrun, addresses) = (pick as u64 / 6 % 2, pick as u64 / 12 % 2);
                    let unreported = Unreported { overrun, addresses, ..Unreported::default() };
                    twins.tell(&Observation::LostIn { netns: *netns, unreported }, Origin::Probe);
                }
                3 => twins.tell(&Observation::Memory { short: pick / 6 % 2 > 0 }, Origin::Daemon),
                _ => twins.acknowledge(pick / 6),
            },
        }
        // Sometimes several facts at once.
        if !pick.is_multiple_of(4) {
            lived.step(&mut twins);
        }
    }
    lived.step(&mut twins);
    lived
}

/// Tells a node of a case these facts, one in each step.
///
/// # Panics
/// As [`live`].
#[cfg(feature = "fuzzing")]
pub(crate) fn told(palette: &Palette, facts: &[Fact]) {
    let mut twins = Twins::new(true);
    palette.cases.iter().take(1).flatten().for_each(|line| twins.follow(line));
    for fact in facts {
        twins.tell(&fact.what, fact.origin);
        twins.step();
    }
}
