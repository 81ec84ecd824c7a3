//! Finds what is wrong with the cluster, from two looks at it. Pure.
//!
//! Each look is judged separately, and only what both show is reported: lists are read one after the other, and a pod
//! may be created or deleted between two of them. If a list is incomplete, an element that it lacks proves nothing.

mod calico;
mod duplicates;
mod living;
#[cfg(test)]
mod tests;
mod whereabouts;

use std::collections::BTreeMap;
use std::net::IpAddr;

use self::living::Living;
use super::remedy::Kubectl;
use super::snapshot::{Snapshot, State};
use crate::contract::{self, Cluster, ClusterFinding, ClusterRange};
use crate::fact::store;
use crate::finding::Severity;
use crate::remedy::Step;

/// Maximum number of findings in the report.
const MOST: usize = 10_000;

pub(super) const LEAKED: &str = "ipam-reservation-leaked";
pub(super) const DOUBTFUL: &str = "ipam-reservation-doubtful";

/// How certain a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Certainty {
    Certain,
    Likely,
    Doubtful,
}

/// A problem that one look shows.
#[derive(Debug, Clone)]
struct Candidate {
    /// Identifies the same problem in the other look: contains nothing that may change meanwhile, unless the change
    /// means another owner.
    key: String,
    code: &'static str,
    severity: Severity,
    certainty: Certainty,
    ip: Option<IpAddr>,
    object: Option<String>,
    /// The object of the range that the allocation takes an IP from.
    range: Option<String>,
    offset: Option<u128>,
    id: Option<String>,
    pods: Vec<String>,
    nodes: Vec<String>,
    why: String,
    evidence: Vec<String>,
    remediation: Vec<Step>,
}

impl Candidate {
    fn new(code: &'static str, key: String, why: String) -> Self {
        Self {
            key: format!("{code} {key}"),
            code,
            severity: Severity::Warning,
            certainty: Certainty::Certain,
            ip: None,
            object: None,
            range: None,
            offset: None,
            id: None,
            pods: Vec::new(),
            nodes: Vec::new(),
            why,
            evidence: Vec::new(),
            remediation: Vec::new(),
        }
    }

    fn told(self) -> ClusterFinding {
        let certainty = match self.certainty {
            Certainty::Certain => "certain",
            Certainty::Likely => "likely",
            Certainty::Doubtful => "doubtful",
        };
        ClusterFinding {
            code: self.code.to_owned(),
            severity: self.severity,
            certainty: certainty.to_owned(),
            ip: self.ip,
            object: self.object,
            offset: self.offset.map(|offset| offset.to_string()),
            id: self.id,
            pods: self.pods,
            nodes: self.nodes,
            why: self.why,
            evidence: self.evidence,
            remediation: self.remediation.iter().map(contract::Step::from).collect(),
        }
    }
}

/// The problems that both looks show, as the second describes them.
pub(super) fn judge(
    server: &str,
    first: &Snapshot,
    second: &Snapshot,
    kubectl: &Kubectl,
) -> Cluster {
    let seen: BTreeMap<String, Certainty> =
        candidates(first, kubectl).into_iter().map(|one| (one.key, one.certainty)).collect();
    let mut told: Vec<Candidate> = Vec::new();
    for mut one in candidates(second, kubectl) {
        if let Some(before) = seen.get(&one.key) {
            one.certainty = one.certainty.max(*before);
            told.push(one);
        }
    }
    // A range is compared only if both looks know it.
    let mut ranges = ranges(second, &told);
    for range in &mut ranges {
        range.compared &= first.pods.is_whole() && knows(first, &range.store);
    }
    // Leaks in a range without free IPs are critical.
    let full: Vec<&str> = (ranges.iter())
        .filter(|range| range.free == Some(0))
        .map(|range| range.object.as_str())
        .collect();
    for one in told.iter_mut().filter(|one| one.code == LEAKED) {
        if one.range.as_deref().is_some_and(|range| full.contains(&range)) {
            one.severity = Severity::Critical;
        }
    }
    told.sort_by(|a, b| {
        let order = |one: &Candidate| (std::cmp::Reverse(one.severity), one.certainty, one.code);
        order(a)
            .cmp(&order(b))
            .then_with(|| a.object.cmp(&b.object))
            .then_with(|| a.offset.cmp(&b.offset))
            .then_with(|| a.key.cmp(&b.key))
    });
    let more = told.len().saturating_sub(MOST) as u64;
    told.truncate(MOST);
    let findings = told.into_iter().map(Candidate::told).collect();
    Cluster { server: server.to_owned(), ranges, findings, more }
}

/// Whether a look has any data of a store.
fn knows(look: &Snapshot, store: &str) -> bool {
    let state = if store == store::CALICO { &look.blocks.state } else { &look.pools.state };
    !matches!(state, State::Unknown(_))
}

/// The problems that one look shows.
fn candidates(look: &Snapshot, kubectl: &Kubectl) -> Vec<Candidate> {
    let living = Living::new(look);
    let mut all = Vec::new();
    whereabouts::candidates(look, &living, kubectl, &mut all);
    calico::candidates(look, &living, kubectl, &mut all);
    duplicates::candidates(look, &living, kubectl, &mut all);
    all
}

fn ranges(look: &Snapshot, told: &[Candidate]) -> Vec<ClusterRange> {
    let mut ranges = whereabouts::ranges(look, told);
    ranges.extend(calico::ranges(look, told));
    ranges
}
