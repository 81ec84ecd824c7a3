//! A finding in the form that the API, the log, the ledger and the traces use.

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

/// The state of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Observed once.
    Pending,
    /// Confirmed by two separate observations.
    Firing,
    /// Ended.
    Resolved,
}

/// What a finding is about. Unknown fields are absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Subject {
    /// The IP concerned; the first one if the netns has several.
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
    /// Number of further reservations that the daemon does not list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reservations_omitted: u32,
}

impl Subject {
    /// Whether it names this IP.
    #[must_use]
    pub fn has_ip(&self, ip: IpAddr) -> bool {
        self.ips().any(|known| known == ip)
    }

    /// Every IP that it names.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.ip.into_iter().chain(self.reservations.iter().map(|one| one.ip))
    }

    /// Number of reservations, if there are several.
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
    /// Its key in the store: a path, or the name of an object.
    pub key: String,
    /// The container that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// That container's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// One item of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The source.
    pub source: String,
    /// When it was observed, RFC 3339.
    pub at: String,
    /// What was observed. May quote hostile text: escape it before a terminal.
    pub text: String,
}

/// A finding with its state over time, as the API, the log, the store and the traces use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable id: 16 characters of `a-z2-7`. People use a unique prefix.
    pub id: String,
    /// The kind.
    pub code: Code,
    /// How soon a person must act.
    pub severity: Severity,
    /// Its state.
    pub status: Status,
    /// Whether a source that it depends on does not answer, or there was no room to judge it, so that it is unknown whether
    /// it still holds. Set only in answers of the daemon, and placed right after `status`: commands that check for an open finding must not accept
    /// such a finding (`remedy/guard.rs`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unjudged: bool,
    /// What it is about.
    pub subject: Subject,
    /// What holds the IP or the netns.
    pub holders: Vec<Holder>,
    /// The evidence.
    pub evidence: Vec<Evidence>,
    /// Since when the state has existed, RFC 3339.
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
    /// What to do, one line for each step, in this order.
    pub remediation: Vec<String>,
    /// The same steps, each with its command as separate words. Absent in findings written by older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Whether the state already existed at the first look.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preexisting: bool,
    /// A person has acknowledged it: it does not page again while this is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acked: Option<Ack>,
}

impl Finding {
    /// What to do, in this order. In findings written by older versions, commands are part of the lines and quote
    /// nothing: for these the runbook is named instead.
    #[must_use]
    pub fn advice(&self) -> Cow<'_, [Step]> {
        if !self.steps.is_empty() || self.remediation.is_empty() {
            return Cow::Borrowed(&self.steps);
        }
        // Three fixed words: nothing needs quoting.
        let argv = ["ipwatch", "explain", self.code.as_str()].map(str::to_owned).to_vec();
        Cow::Owned(vec![Step {
            what: "See its runbook".to_owned(),
            command: Some(argv.join(" ")),
            runs: vec![Run { argv, ..Run::default() }],
            changes: false,
        }])
    }

    /// Whether it pages: it is critical, fires, follows from no other finding, and is not acknowledged.
    #[must_use]
    pub fn pages(&self) -> bool {
        self.severity == Severity::Critical
            && self.status == Status::Firing
            && self.caused_by.is_none()
            && self.acked.is_none()
    }
}

/// An acknowledgement: a person knows about the finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// When it was given, RFC 3339.
    pub at: String,
    /// Uid of the user who gave it; absent if written by older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Until when it is valid, RFC 3339; absent: until the finding ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// The reason, as the user wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A change of a finding: one event for every sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The kind of change.
    pub change: ChangeKind,
    /// The finding after the change.
    pub finding: Finding,
    /// When it happened, if the finding does not have that time: an acknowledgement was withdrawn, or expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Number of earlier changes of holders, subject or remedies that were not reported, because the last report was
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
    /// First observed.
    Opened,
    /// It fires now, its severity, holders or subject changed, or its acknowledgement did.
    Updated,
    /// Ended.
    Resolved,
}
