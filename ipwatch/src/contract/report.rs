//! The part of the contract that is an incident report: `ipwatch report --json`. The page and the Markdown say the same.

use serde::{Deserialize, Serialize};

use super::{Code, DaemonInfo, Probe, Severity, SourceState, Status};

/// Everything that is known of one incident, in the words that a person reads. With `--redact` all names and IPs in it are
/// stand-ins.
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
    /// Names and IPs are stand-ins, the same one for the same name throughout.
    pub redacted: bool,
    /// In one line: what is held, whose it is, and who holds it.
    pub title: String,
    /// What is wrong, the one that the report is about first, then its cause and what came of it. Empty: nothing wrong is
    /// known.
    pub stories: Vec<Story>,
    /// What happened when.
    pub timeline: Timeline,
    /// Who keeps the addresses up.
    pub holders: Vec<Keeper>,
    /// What was asked, and how it stood.
    pub sources: Vec<SourceState>,
    /// Events that are not seen as they should be.
    pub probes: Vec<Probe>,
    /// Codes of findings that could not be judged.
    pub blind: Vec<Code>,
    /// What could not be seen or is not told here, in words.
    pub caveats: Vec<String>,
    /// The version of the command that made this.
    pub version: String,
    /// Which daemon answered. Absent: it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<DaemonInfo>,
}

/// One finding, in the words of `ipwatch explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    /// The finding's id.
    pub id: String,
    /// Its code.
    pub code: Code,
    /// How bad.
    pub severity: Severity,
    /// Where it stands.
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
    /// More to know of it, a sentence each: who has acknowledged it, that it stood before ipwatch first looked.
    pub notes: Vec<String>,
    /// What will break.
    pub impact: String,
    /// The proof, the oldest first.
    pub proof: Vec<ProofItem>,
    /// What to do, in this order.
    pub steps: Vec<Advice>,
    /// What was not seen of what it rests on.
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

/// One step on the way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// At once, to mend it, or not to be done.
    pub when: When,
    /// What it is for.
    pub what: String,
    /// The command for a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The command changes something. All others only look.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes: bool,
}

/// When a step is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// At once, so that it does not get worse.
    Now,
    /// To mend it.
    Fix,
    /// Never.
    Never,
}

/// What happened when: a lane for each pod, each holder and each finding.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Timeline {
    /// The lanes: pods first, then holders, then findings.
    pub lanes: Vec<Lane>,
    /// How many items are not told: the oldest of lanes that have too many.
    #[serde(default, skip_serializing_if = "is_none")]
    pub omitted: usize,
    /// How many lanes are not told: those that are not about the first finding, the newest of them.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lanes_omitted: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(n: &usize) -> bool {
    *n == 0
}

/// What happened to one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// Of what kind.
    pub kind: LaneKind,
    /// Which.
    pub name: String,
    /// What tells it from others of that name: its netns, its place.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What happened, the oldest first.
    pub items: Vec<Item>,
}

/// Whom a lane is about.
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

/// One thing that happened or lasted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// What it is.
    pub kind: ItemKind,
    /// When it happened or began, RFC 3339.
    pub from: String,
    /// When it ended, RFC 3339. Absent of what happened at one moment, and of what lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// It still lasted when the daemon was asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lasts: bool,
    /// In words.
    pub text: String,
    /// How it ended, in words.
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
    /// It was on its way out, and held it still.
    Exiting,
    /// A signal was sent.
    Signal,
    /// A source showed something else.
    Seen,
    /// A finding had been seen once.
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
    /// Who or what: `pid 812 java`.
    pub name: String,
    /// Whose netns it keeps: a pod, a container, or the netns itself.
    pub keeps: String,
    /// Since when, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// How it stands: `exiting`, `state D`, where its mount is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stands: Vec<String>,
    /// A finding names it: the others are there as well, and are not at fault.
    pub at_fault: bool,
}
