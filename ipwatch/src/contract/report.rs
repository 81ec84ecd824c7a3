//! The part of the contract that is an incident report: `ipwatch report --json`. The HTML page and the Markdown have the
//! same content.

use serde::{Deserialize, Serialize};

use super::{Code, DaemonInfo, Probe, Severity, SourceState, Status};

/// Everything that is known about one incident, as text for people. With `--redact`, all known names and IPs are replaced
/// by stand-ins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`](super::SCHEMA).
    pub schema: String,
    /// What was asked for: a finding's id, an IP, a pod.
    pub about: String,
    /// The node's name.
    pub node: String,
    /// When the daemon was asked, RFC 3339.
    pub taken_at: String,
    /// Known names and IPs are replaced by stand-ins, the same name by the same stand-in everywhere.
    pub redacted: bool,
    /// In one line: what is held, whose it is, and who holds it.
    pub title: String,
    /// The findings: those that the report is about, then their causes and consequences. Empty: no finding is known.
    pub stories: Vec<Story>,
    /// What happened when.
    pub timeline: Timeline,
    /// What keeps the addresses up.
    pub holders: Vec<Keeper>,
    /// The sources and their status.
    pub sources: Vec<SourceState>,
    /// The probes that are not active.
    pub probes: Vec<Probe>,
    /// Codes of findings that could not be judged.
    pub blind: Vec<Code>,
    /// What could not be observed or is left out of this report, a sentence each.
    pub caveats: Vec<String>,
    /// The version of the command that made this.
    pub version: String,
    /// The daemon that answered. Absent: it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<DaemonInfo>,
}

/// One finding, with the texts of `ipwatch explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    /// The finding's id.
    pub id: String,
    /// Its code.
    pub code: Code,
    /// Its severity.
    pub severity: Severity,
    /// Whether it is pending, firing or resolved.
    pub status: Status,
    /// In one line: what is held, whose it is, and who holds it.
    pub title: String,
    /// Since when, RFC 3339.
    pub since: String,
    /// When it ended, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<String>,
    /// Id of the finding that this is a consequence of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caused_by: Option<String>,
    /// Further facts, a sentence each: who has acknowledged it, or that it existed before ipwatch first looked.
    pub notes: Vec<String>,
    /// What will break.
    pub impact: String,
    /// The proof, the oldest first.
    pub proof: Vec<ProofItem>,
    /// What to do, in this order.
    pub steps: Vec<Advice>,
    /// Which of the sources that it rests on are down or incomplete.
    pub caveats: Vec<String>,
}

/// One item of proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofItem {
    /// When it was seen, RFC 3339.
    pub at: String,
    /// Which source showed it.
    pub source: String,
    /// What it showed.
    pub text: String,
}

/// One step of what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// Whether to do it at once, as the fix, or never.
    pub when: When,
    /// What it does.
    pub what: String,
    /// The command for a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Whether the command changes something. All other commands only read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes: bool,
}

/// Whether and when to do a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// At once, so that it does not get worse.
    Now,
    /// The fix.
    Fix,
    /// Never.
    Never,
}

/// What happened when: a lane for each pod, each holder and each finding.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Timeline {
    /// The lanes: pods first, then holders, then findings.
    pub lanes: Vec<Lane>,
    /// How many items are left out: the oldest ones of lanes that have too many.
    #[serde(default, skip_serializing_if = "is_none")]
    pub omitted: usize,
    /// How many lanes are left out: the newest ones of those that are not about the first finding.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lanes_omitted: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(n: &usize) -> bool {
    *n == 0
}

/// What happened to one pod, holder or finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// What the lane is about.
    pub kind: LaneKind,
    /// Its name.
    pub name: String,
    /// What distinguishes it from others with the same name, such as its netns.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What happened, the oldest first.
    pub items: Vec<Item>,
}

/// What a lane is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LaneKind {
    /// A pod or a container, with its netns.
    Pod,
    /// A process, a mount, an fd, a socket.
    Holder,
    /// A finding.
    Finding,
}

/// One event, or one state with its duration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// What it is.
    pub kind: ItemKind,
    /// When it happened or began, RFC 3339.
    pub from: String,
    /// When it ended, RFC 3339. Absent for an event at one moment, and if it still lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// It still lasted when the daemon was asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lasts: bool,
    /// A text for people.
    pub text: String,
    /// How it ended, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ended: String,
}

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ItemKind {
    /// An IP was up.
    Tenure,
    /// An IP was reserved.
    Reservation,
    /// A CNI plugin ran.
    Run,
    /// A CNI plugin ran and failed.
    FailedRun,
    /// Something held the netns.
    Hold,
    /// It was exiting, and still held the netns.
    Exiting,
    /// A signal was sent.
    Signal,
    /// A source reported something else.
    Seen,
    /// A finding was pending: seen once.
    Pending,
    /// A finding fired.
    Firing,
    /// A finding was acknowledged.
    Acked,
    /// A finding ended.
    Resolved,
}

/// What keeps a netns alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeper {
    /// Its name, such as `pid 812 java`.
    pub name: String,
    /// What it keeps alive: the netns of a pod or of a container, or a netns of unknown owner.
    pub keeps: String,
    /// Since when, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Its state, a text each: that it is exiting, its process state, where its mount is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stands: Vec<String>,
    /// Whether a finding names it. The other holders are not at fault.
    pub at_fault: bool,
}
