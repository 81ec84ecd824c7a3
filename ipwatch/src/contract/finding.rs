//! A finding as everybody is told of it: the API, the log, the ledger and the traces carry it so.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Code, Container, Holder, Interface, Netns, Pod, Run, Step};

/// How soon a person must act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Context.
    Info,
    /// A ticket.
    Warning,
    /// Pages a person.
    Critical,
}

/// Where a finding stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Seen once.
    Pending,
    /// Seen by two separate observations.
    Firing,
    /// Over.
    Resolved,
}

/// What a finding is about. What is unknown is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Subject {
    /// The IP at stake; the first one when the netns has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// The netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// The container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// The pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// The CNI network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The pod's device, for a pair of `veth-orphaned`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// The other end of `interface`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Interface>,
    /// Reservations that one cause has left, where there are several, the oldest first. `ip`, `container` and `pod` are
    /// absent then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reserved>,
    /// How many of these the daemon does not list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reservations_omitted: u32,
}

impl Subject {
    /// Whether it is about this IP.
    #[must_use]
    pub fn has_ip(&self, ip: IpAddr) -> bool {
        self.ips().any(|known| known == ip)
    }

    /// Every IP that it names.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.ip.into_iter().chain(self.reservations.iter().map(|one| one.ip))
    }

    /// How many reservations it is about, where these are several.
    #[must_use]
    pub fn several(&self) -> Option<usize> {
        let omitted = usize::try_from(self.reservations_omitted).unwrap_or(usize::MAX);
        (!self.reservations.is_empty()).then(|| self.reservations.len().saturating_add(omitted))
    }

    /// Every pod that it names.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pod.iter().chain(self.reservations.iter().filter_map(|one| one.pod.as_ref()))
    }

    /// Every container that it names.
    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.container
            .iter()
            .chain(self.reservations.iter().filter_map(|one| one.container.as_ref()))
    }
}

/// One of several reservations that a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The IP.
    pub ip: IpAddr,
    /// Its name in the store: a path, or an object's.
    pub key: String,
    /// The container that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// That container's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// One item of proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Which source showed it.
    pub source: String,
    /// When, RFC 3339.
    pub at: String,
    /// What it showed. May quote hostile text: escape it before a terminal.
    pub text: String,
}

/// A finding with its life: what the API, the log, the store and the traces carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable id: 16 characters of `a-z2-7`. People use a unique prefix.
    pub id: String,
    /// Which kind.
    pub code: Code,
    /// How bad.
    pub severity: Severity,
    /// Where it stands.
    pub status: Status,
    /// A source that it rests on does not answer: whether it is still so is unknown. In answers of the daemon only, right
    /// after `status`: commands that ask for an open finding must not take it for one (`remedy/guard.rs`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unjudged: bool,
    /// About what.
    pub subject: Subject,
    /// Who is at fault.
    pub holders: Vec<Holder>,
    /// The proof.
    pub evidence: Vec<Evidence>,
    /// Since when it has been so, RFC 3339.
    pub since: String,
    /// When the second observation made it fire, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firing_at: Option<String>,
    /// Last observation, RFC 3339.
    pub last_seen: String,
    /// When it ended, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<String>,
    /// Id of the finding that this is a consequence of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caused_by: Option<String>,
    /// What will break.
    pub impact: String,
    /// What to do, the first line first.
    pub remediation: Vec<String>,
    /// The same steps, each with its command as the words that it is made of. Absent in what older versions wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// It already stood when ipwatch first looked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preexisting: bool,
    /// A person has seen it: it is not to page again while this is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acked: Option<Ack>,
}

impl Finding {
    /// What to do, in this order. What an older version wrote has commands within its lines that quote nothing: of such
    /// a finding the runbook is told instead.
    #[must_use]
    pub fn advice(&self) -> Cow<'_, [Step]> {
        if !self.steps.is_empty() || self.remediation.is_empty() {
            return Cow::Borrowed(&self.steps);
        }
        // Three words of ours: nothing in them is to be quoted.
        let argv = ["ipwatch", "explain", self.code.as_str()].map(str::to_owned).to_vec();
        Cow::Owned(vec![Step {
            what: "See its runbook".to_owned(),
            command: Some(argv.join(" ")),
            runs: vec![Run { argv, ..Run::default() }],
            changes: false,
        }])
    }

    /// Whether it is to wake somebody: it is critical, fires, follows from no other, and nobody knows it yet.
    #[must_use]
    pub fn pages(&self) -> bool {
        self.severity == Severity::Critical
            && self.status == Status::Firing
            && self.caused_by.is_none()
            && self.acked.is_none()
    }
}

/// Somebody's word that a finding is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// When it was given, RFC 3339.
    pub at: String,
    /// The user who gave it, by number; absent in what older versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Until when it holds, RFC 3339; absent: until the finding is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Why, in the words of whoever gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One step in the life of a finding: one event for every sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What happened.
    pub change: ChangeKind,
    /// The finding as it stands now.
    pub finding: Finding,
    /// When, where the finding does not say so: an acknowledgement was taken back, or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// How many changes of holders, subject or remedies came before it and were not told, because the last one was told
    /// less than ten seconds before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_back: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Change {
    /// A change whose time is in the finding.
    #[must_use]
    pub fn new(change: ChangeKind, finding: Finding) -> Self {
        Self { change, finding, at: None, held_back: 0 }
    }
}

/// What happened to a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// First seen.
    Opened,
    /// Began to fire, changed its severity, holders or subject, or was acknowledged or no longer is.
    Updated,
    /// Over.
    Resolved,
}
