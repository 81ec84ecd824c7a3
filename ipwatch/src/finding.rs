//! What the detectors see, before the [`crate::ledger`] gives it a life and makes a [`Finding`] of it.

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
    /// Which kind.
    pub code: Code,
    /// What makes this finding the same one tomorrow and after a restart: built from names that are
    /// never reused (boot id, cookie, task start). The finding's id is a hash of code and key.
    pub key: String,
    /// How bad.
    pub severity: Severity,
    /// About what.
    pub subject: Subject,
    /// Who is at fault.
    pub holders: Vec<contract::Holder>,
    /// The proof.
    pub evidence: Vec<Evidence>,
    /// Since when it has been so.
    pub since: BootNs,
    /// When it was last **observed**, which is not when the detector last ran: two candidates with
    /// the same `observed` are one observation.
    pub observed: BootNs,
    /// What will break, one sentence.
    pub impact: Text,
    /// What to do, in this order.
    pub remediation: Vec<remedy::Step>,
    /// Key of the candidate that this is a consequence of.
    pub caused_by: Option<(Code, String)>,
    /// It already stood when ipwatch first looked.
    pub preexisting: bool,
}
