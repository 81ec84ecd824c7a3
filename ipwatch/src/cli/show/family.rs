//! Which findings fold under which cause.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::finding::{Finding, Severity, Status};

/// A list of findings, by cause.
pub(in crate::cli) struct Families<'a> {
    findings: &'a [Finding],
    by_id: HashMap<&'a str, &'a Finding>,
}

impl<'a> Families<'a> {
    pub(in crate::cli) fn new(findings: &'a [Finding]) -> Self {
        let by_id = findings.iter().map(|finding| (finding.id.as_str(), finding)).collect();
        Self { findings, by_id }
    }

    /// The cause of a finding, if it is in the list. An open finding does not fold under a resolved one: it would be
    /// overlooked.
    pub(in crate::cli) fn cause(&self, finding: &Finding) -> Option<&'a Finding> {
        let cause = self.by_id.get(finding.caused_by.as_deref()?)?;
        let over = |finding: &Finding| finding.status == Status::Resolved;
        (cause.id != finding.id && (!over(cause) || over(finding))).then_some(cause)
    }

    /// The causes of a finding, the nearest first. If the causes form a cycle, which no daemon should report, the
    /// list is empty, so that no finding is hidden.
    fn causes(&self, finding: &Finding) -> Vec<&'a Finding> {
        let mut chain: Vec<&Finding> = Vec::new();
        let mut next = self.cause(finding);
        while let Some(cause) = next {
            if cause.id == finding.id || chain.iter().any(|known| known.id == cause.id) {
                return Vec::new();
            }
            chain.push(cause);
            next = self.cause(cause);
        }
        chain
    }

    /// Whether the finding is folded under another.
    pub(in crate::cli) fn is_folded(&self, finding: &Finding) -> bool {
        !self.causes(finding).is_empty()
    }

    /// All consequences of a finding, the worst first.
    pub(in crate::cli) fn consequences(&self, finding: &Finding) -> Vec<&'a Finding> {
        let mut found: Vec<&Finding> = self
            .findings
            .iter()
            .filter(|other| self.causes(other).iter().any(|cause| cause.id == finding.id))
            .collect();
        found.sort_by(|a, b| rank(a, a.severity).cmp(&rank(b, b.severity)));
        found
    }

    /// The findings without a cause, each with its consequences: open before resolved, the worst first, then the
    /// oldest. A cause ranks with its worst consequence.
    pub(in crate::cli) fn all(&self) -> Vec<(&'a Finding, Vec<&'a Finding>)> {
        let mut folded: HashMap<&str, Vec<&Finding>> = HashMap::new();
        let mut all = Vec::new();
        for finding in self.findings {
            match self.causes(finding).last() {
                Some(head) => folded.entry(&head.id).or_default().push(finding),
                None => all.push((finding, Vec::new())),
            }
        }
        for (head, consequences) in &mut all {
            *consequences = folded.remove(head.id.as_str()).unwrap_or_default();
            consequences.sort_by(|a, b| rank(a, a.severity).cmp(&rank(b, b.severity)));
        }
        all.sort_by(|(a, of_a), (b, of_b)| rank(a, worst(a, of_a)).cmp(&rank(b, worst(b, of_b))));
        all
    }
}

/// The worst severity among a cause and its open consequences.
pub(in crate::cli) fn worst(head: &Finding, consequences: &[&Finding]) -> Severity {
    let open = consequences.iter().filter(|finding| finding.status != Status::Resolved);
    open.map(|finding| finding.severity).fold(head.severity, Severity::max)
}

fn rank(finding: &Finding, severity: Severity) -> impl Ord {
    (finding.status == Status::Resolved, Reverse(severity), finding.since.clone())
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::contract::Body;

    /// Findings named `a`, `b`, …, each with the given cause.
    fn findings(causes: &[Option<&str>]) -> Vec<Finding> {
        let Body::Findings(samples) = sample("scan.json").body else { panic!("findings") };
        let named = causes.iter().zip('a'..).map(|(cause, name)| Finding {
            id: name.to_string(),
            caused_by: cause.map(str::to_owned),
            ..samples[0].clone()
        });
        named.collect()
    }

    fn ids(findings: &[&Finding]) -> String {
        findings.iter().map(|finding| finding.id.as_str()).collect()
    }

    fn heads(findings: &[Finding]) -> String {
        Families::new(findings).all().iter().map(|(head, _)| head.id.as_str()).collect()
    }

    #[test]
    fn consequences_of_consequences_fold_under_the_first_cause() {
        let list = findings(&[None, Some("a"), Some("b"), None]);
        let families = Families::new(&list);
        let all = families.all();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].0.id.as_str(), ids(&all[0].1)), ("a", "bc".to_owned()));
        assert_eq!(ids(&families.consequences(&list[1])), "c", "of one in between too");
    }

    #[test]
    fn nothing_vanishes_behind_what_is_not_shown_or_over() {
        assert_eq!(heads(&findings(&[Some("z"), Some("b")])), "ab", "not there, and its own cause");
        let mut over = findings(&[None, Some("a")]);
        over[0].status = Status::Resolved;
        assert_eq!(heads(&over), "ba");
        over[1].status = Status::Resolved;
        assert_eq!(heads(&over), "a");
    }

    #[test]
    fn nothing_vanishes_in_a_ring() {
        assert_eq!(heads(&findings(&[Some("b"), Some("c"), Some("a"), Some("a")])), "abcd");
    }

    #[test]
    fn a_cause_is_as_bad_as_what_came_of_it() {
        let mut list = findings(&[None, None, Some("b")]);
        list[2].severity = Severity::Critical;
        assert_eq!(heads(&list), "ba");
        list[2].status = Status::Resolved;
        assert_eq!(heads(&list), "ab");
    }
}
