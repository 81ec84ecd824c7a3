//! What the daemon has told, and how well it can be reached. Pure: updates in, nothing asked.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;

use crate::api::Event;
use crate::cli::show::lists;
use crate::cli::text::{self, Now, ShortIds};
use crate::contract::{Body, Code, Document, IpamRange, Neighbour, Probe, SourceState, Tenure};
use crate::fact::SourceStatus;
use crate::finding::{Finding, Severity, Status};

/// Findings that are kept, the worst first. The others are counted.
const MOST_FINDINGS: usize = 10_000;
/// Addresses that came or went, the newest.
const MOST_LOGGED: usize = 2_000;
/// IPs with a conflict.
const MOST_CONFLICTS: usize = 2_000;
/// Maximum number of reservations in one answer of the daemon (`daemon/answer.rs`): if there are as many, there may be
/// more.
const MOST_RESERVATIONS: usize = 4_096;

/// Findings about an IP that several have.
const CONFLICTS: [Code; 3] = [Code::IpDuplicate, Code::NeighbourConflict, Code::IpConflictImminent];

/// What is asked for again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    Findings,
    Ranges,
    Neighbours,
    Doctor,
}

impl Topic {
    pub(super) const ALL: [Topic; 4] =
        [Topic::Findings, Topic::Ranges, Topic::Neighbours, Topic::Doctor];
}

/// News from the daemon, or about the connection to it.
#[derive(Debug, Clone)]
pub(super) enum Update {
    /// The daemon's events are followed from now on.
    Following,
    /// The daemon does not answer any more. It is tried again within so many seconds.
    Lost {
        why: String,
        again: u64,
    },
    Answer(Topic, Box<Document>),
    /// The daemon answers, but refuses this.
    Refused(Topic, String),
    /// Events since the last update. The oldest are left out if there were too many.
    Events {
        events: Vec<Event>,
        omitted: u64,
    },
}

/// How well the daemon can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    /// It has not answered yet.
    Begun,
    Live,
    /// What is shown is as old as the last answer.
    Lost {
        why: String,
        again: u64,
    },
}

/// An address that came or went, or a gap in what is known of them.
#[derive(Debug, Clone)]
pub(super) enum Logged {
    Held(Tenure),
    Released(Tenure),
    Missing(u64),
}

/// An IP that several have.
#[derive(Debug, Clone, Default)]
pub(super) struct Conflict {
    /// Every MAC that has the IP, with its owner; else the pods and holders of the findings about it.
    pub(super) claims: String,
    /// Positions among the findings.
    pub(super) findings: Vec<usize>,
}

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) link: Link,
    pub(super) node: String,
    /// When the newest answer was made.
    pub(super) as_of: String,
    /// When following began, RFC 3339: what came and went before is not in the log.
    pub(super) since: Option<String>,
    pub(super) findings: Option<Vec<Finding>>,
    /// Findings beyond the maximum.
    pub(super) omitted: usize,
    pub(super) ids: ShortIds,
    pub(super) ranges: Option<Vec<IpamRange>>,
    /// Number of parked reservations, by store and network.
    pub(super) parked: HashMap<(String, String), u64>,
    /// The daemon did not list all reservations: there may be more parked ones.
    pub(super) parked_at_least: bool,
    neighbours: Option<Vec<Neighbour>>,
    pub(super) conflicts: BTreeMap<IpAddr, Conflict>,
    pub(super) doctor: Option<Document>,
    log: VecDeque<Logged>,
    /// The number of the first entry of the log.
    first: u64,
    refused: [Option<String>; Topic::ALL.len()],
}

impl Known {
    pub(super) fn nothing() -> Self {
        Self {
            link: Link::Begun,
            node: String::new(),
            as_of: String::new(),
            since: None,
            findings: None,
            omitted: 0,
            ids: ShortIds::default(),
            ranges: None,
            parked: HashMap::new(),
            parked_at_least: false,
            neighbours: None,
            conflicts: BTreeMap::new(),
            doctor: None,
            log: VecDeque::new(),
            first: 0,
            refused: [const { None }; Topic::ALL.len()],
        }
    }

    pub(super) fn update(&mut self, update: Update) {
        match update {
            Update::Following => {
                if matches!(self.link, Link::Lost { .. }) {
                    self.note(Logged::Missing(0));
                }
                self.link = Link::Live;
            }
            Update::Lost { why, again } => self.link = Link::Lost { why, again },
            Update::Refused(topic, why) => self.refused[topic as usize] = Some(why),
            Update::Answer(topic, document) => {
                self.refused[topic as usize] = None;
                self.answer(topic, *document);
            }
            Update::Events { events, omitted } => {
                if omitted > 0 {
                    self.note(Logged::Missing(omitted));
                }
                events.into_iter().for_each(|event| self.event(event));
            }
        }
    }

    fn answer(&mut self, topic: Topic, document: Document) {
        self.node.clone_from(&document.node);
        if document.taken_at > self.as_of {
            self.as_of.clone_from(&document.taken_at);
        }
        self.since.get_or_insert_with(|| document.taken_at.clone());
        match (topic, document) {
            (Topic::Findings, Document { body: Body::Findings(findings), .. }) => {
                self.take_findings(findings);
                self.find_conflicts();
            }
            (Topic::Ranges, Document { body: Body::Ranges(ranges), reservations, .. }) => {
                self.parked.clear();
                self.parked_at_least = reservations.len() >= MOST_RESERVATIONS;
                for entry in reservations {
                    if entry.agree.as_deref() == Some("parked") {
                        *self.parked.entry((entry.store, entry.network)).or_default() += 1;
                    }
                }
                self.ranges = Some(ranges);
            }
            (Topic::Neighbours, Document { body: Body::Neighbours(mut all), .. }) => {
                all.retain(|neighbour| !neighbour.conflict.is_empty());
                all.truncate(MOST_CONFLICTS);
                self.neighbours = Some(all);
                self.find_conflicts();
            }
            (Topic::Doctor, document) => self.doctor = Some(document),
            // A daemon that answers something else than was asked: the pane says that nothing is known.
            _ => {}
        }
    }

    fn take_findings(&mut self, mut findings: Vec<Finding>) {
        findings.retain(|finding| finding.status != Status::Resolved);
        self.omitted = findings.len().saturating_sub(MOST_FINDINGS);
        if self.omitted > 0 {
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
            findings.truncate(MOST_FINDINGS);
        }
        for finding in &mut findings {
            // These are most of its size, and are asked for when they are to be read.
            (finding.evidence, finding.steps) = (Vec::new(), Vec::new());
            finding.remediation = Vec::new();
        }
        self.ids = ShortIds::new(findings.iter().map(|finding| finding.id.as_str()));
        self.findings = Some(findings);
    }

    fn find_conflicts(&mut self) {
        let mut found: BTreeMap<IpAddr, Conflict> = BTreeMap::new();
        for neighbour in self.neighbours.iter().flatten() {
            let conflict = found.entry(neighbour.ip).or_default();
            if conflict.claims.is_empty() {
                conflict.claims = lists::conflict(neighbour);
            }
        }
        for (at, finding) in self.findings.iter().flatten().enumerate() {
            if let Some(ip) = finding.subject.ip.filter(|_| CONFLICTS.contains(&finding.code)) {
                found.entry(ip).or_default().findings.push(at);
            }
        }
        // The neighbour table has nothing about a duplicate within the node.
        let findings = self.findings.as_deref().unwrap_or_default();
        for conflict in found.values_mut().filter(|conflict| conflict.claims.is_empty()) {
            let about = conflict.findings.iter().filter_map(|at| findings.get(*at));
            let mut claims: Vec<String> = about.map(claims_of).collect();
            claims.dedup();
            claims.retain(|claim| !claim.is_empty());
            conflict.claims = claims.join(", ");
        }
        self.conflicts = found;
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Held(tenure) => self.note(Logged::Held(tenure)),
            Event::Released(tenure) => self.note(Logged::Released(tenure)),
            Event::Lagged { dropped } => self.note(Logged::Missing(dropped)),
            // The findings and the neighbours are asked for, because an event does not say what cannot be judged.
            Event::Finding(_) | Event::Neighbour(_) => {}
        }
    }

    fn note(&mut self, entry: Logged) {
        if self.log.len() == MOST_LOGGED {
            self.log.pop_front();
            self.first += 1;
        }
        self.log.push_back(entry);
    }

    /// The log with the number of each entry, the newest first.
    pub(super) fn log(&self) -> impl Iterator<Item = (u64, &Logged)> {
        (self.first..).zip(&self.log).collect::<Vec<_>>().into_iter().rev()
    }

    /// An entry of the log by its number; `None` if it was dropped.
    pub(super) fn logged(&self, number: u64) -> Option<&Logged> {
        self.log.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn finding(&self, at: usize) -> Option<&Finding> {
        self.findings.as_deref()?.get(at)
    }

    pub(super) fn range(&self, at: usize) -> Option<&IpamRange> {
        self.ranges.as_deref()?.get(at)
    }

    /// The tenure in an entry of the log.
    pub(super) fn tenure(&self, number: u64) -> Option<&Tenure> {
        match self.logged(number)? {
            Logged::Held(tenure) | Logged::Released(tenure) => Some(tenure),
            Logged::Missing(_) => None,
        }
    }

    /// The time that ages are relative to: that of the newest answer, so that what is stale does not age.
    pub(super) fn now(&self) -> Now {
        Now::at(&self.as_of)
    }

    pub(super) fn is_stale(&self) -> bool {
        matches!(self.link, Link::Lost { .. })
    }

    /// Why there is no answer about this.
    pub(super) fn refusal(&self, topic: Topic) -> Option<&str> {
        self.refused[topic as usize].as_deref()
    }

    pub(super) fn are_neighbours_known(&self) -> bool {
        self.neighbours.is_some()
    }

    pub(super) fn sources(&self) -> &[SourceState] {
        self.doctor.as_ref().map_or(&[], |document| &document.sources)
    }

    pub(super) fn blind(&self) -> &[Code] {
        self.doctor.as_ref().map_or(&[], |document| &document.blind)
    }

    /// Events that are not seen as they should be.
    pub(super) fn unseen(&self) -> impl Iterator<Item = (usize, &Probe)> {
        self.probes().iter().enumerate().filter(|(_, probe)| {
            matches!(probe.status.as_str(), "missing" | "degraded") || probe.missed.is_some()
        })
    }

    pub(super) fn probes(&self) -> &[Probe] {
        match self.doctor.as_ref().map(|document| &document.body) {
            Some(Body::Probes(probes)) => probes,
            _ => &[],
        }
    }

    /// The named sources that do not tell all, in a few words. Empty: all of them are active.
    pub(super) fn silent(&self, names: &[&str]) -> String {
        let silent = self.sources().iter().filter(|source| {
            names.contains(&source.name.as_str()) && source.status != SourceStatus::Active
        });
        let said = silent.map(|source| format!("{} {}", source.name, text::status(source.status)));
        said.collect::<Vec<_>>().join(", ")
    }

    /// The worst severity of what is open.
    pub(super) fn worst(&self) -> Option<Severity> {
        self.findings.iter().flatten().map(|finding| finding.severity).max()
    }
}

/// The pods that a finding names, with what holds its IP.
fn claims_of(finding: &Finding) -> String {
    let pods: Vec<String> = finding.subject.pods().map(text::pod).collect();
    match (pods.join(", "), text::holders(&finding.holders)) {
        (pods, holders) if pods.is_empty() || holders.is_empty() => pods + &holders,
        (pods, holders) => format!("{pods} ({holders})"),
    }
}
