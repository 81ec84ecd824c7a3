//! Candidates: what the detectors see, before the [`crate::ledger`] tracks it and turns it into a [`Finding`].

mod id;

pub(crate) use self::id::finding_id;
use crate::contract;
pub use crate::contract::{
    Ack, Change, ChangeKind, Code, Evidence, Finding, Severity, Status, Subject,
};
use crate::fact::BootNs;
use crate::remedy::{self, Text};

/// What a detector sees in the map at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub code: Code,
    /// Identifies the finding across time and restarts: built from names that are never reused (boot id, cookie, task
    /// start). The finding's id is a hash of code and key.
    pub key: String,
    pub severity: Severity,
    /// What the finding is about.
    pub subject: Subject,
    /// What holds the IP or the netns.
    pub holders: Vec<contract::Holder>,
    pub evidence: Vec<Evidence>,
    /// Since when the state has existed.
    pub since: BootNs,
    /// When the state was last **observed**, which is not when the detector last ran: two candidates with the same
    /// `observed` are one observation.
    pub observed: BootNs,
    /// What will break, in one sentence.
    pub impact: Text,
    /// What to do, in this order.
    pub remediation: Vec<remedy::Step>,
    /// Code and key of the candidate that this is a consequence of.
    pub caused_by: Option<(Code, String)>,
    /// Whether the state already existed at the first look.
    pub preexisting: bool,
}
