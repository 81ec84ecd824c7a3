//! Findings: one row each, consequences folded under their cause.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::family::{self, Families};
use crate::cli::table::{Cell, Style, Table};
use crate::cli::text::{self, Now, ShortIds};
use crate::cli::view::View;
use crate::contract::Document;
use crate::finding::{Ack, Finding, Severity, Status};

/// Maximum number of causes shown to a person who did not ask for all. With `--no-headers`, as for a program, all are
/// shown.
const PAGE: usize = 20;

pub(in crate::cli) fn table(document: &Document, findings: &[Finding], view: View) -> String {
    let families = Families::new(findings);
    let all = families.all();
    let mut out = String::new();
    if view.headers {
        out.push_str(&summary(document, findings, &families));
    }
    if findings.is_empty() {
        return out;
    }
    let ids = ShortIds::new(findings.iter().map(|finding| finding.id.as_str()));
    let mut table = if view.wide {
        Table::new(&[
            "SEV", "ID", "SUBJECT", "FINDING", "HOLDER", "AGE", "STATUS", "POD", "SANDBOX",
            "NETNS", "CAUSE",
        ])
    } else {
        Table::new(&["SEV", "ID", "SUBJECT", "FINDING", "HOLDER", "AGE"])
    };
    let shown = if view.all || !view.headers { all.len() } else { PAGE };
    for (head, consequences) in all.iter().take(shown) {
        let folded = if view.all { None } else { folded(head, consequences) };
        table.noted(row(head, &ids, view), Some(note(head, folded, view.now)));
        for finding in consequences.iter().filter(|_| view.all) {
            let cause = families.cause(finding).map(|cause| ids.get(&cause.id));
            let caused = cause.map(|id| format!("caused by {id}"));
            table.noted(row(finding, &ids, view), Some(note(finding, caused, view.now)));
        }
    }
    out.push_str(&table.within(view).render(view.headers, view.paint));
    out.extend(rest(all.get(shown..).unwrap_or_default()));
    let worst = all.first().filter(|(head, _)| head.status != Status::Resolved);
    if let (true, Some((worst, _))) = (view.headers, worst) {
        // Without a daemon only the runbook can be shown.
        let what = if view.asked { ids.get(&worst.id) } else { worst.code.as_str() };
        out.push_str(&format!("Next: ipwatch explain {what}\n"));
    }
    out
}

fn summary(document: &Document, findings: &[Finding], families: &Families<'_>) -> String {
    let what = counted(findings, families);
    let node = crate::escape::escape(&document.node);
    format!("{node}   {what}    {}\n", super::sources(document))
}

/// How many of these are open, and how many of those are causes.
pub(in crate::cli) fn counted(findings: &[Finding], families: &Families<'_>) -> String {
    let open = |finding: &&Finding| finding.status != Status::Resolved;
    let total = findings.iter().filter(open).count();
    let causes = findings.iter().filter(open).filter(|f| !families.is_folded(f)).count();
    match (causes, total) {
        (_, 0) => "nothing wrong is known".to_owned(),
        (causes, total) if causes == total => text::count(total, "finding"),
        (causes, total) => {
            format!("{}, {}", text::count(causes, "cause"), text::count(total, "finding"))
        }
    }
}

/// The number of causes that are not listed, by severity.
fn rest(left: &[(&Finding, Vec<&Finding>)]) -> Option<String> {
    if left.is_empty() {
        return None;
    }
    let mut counts: BTreeMap<Reverse<Severity>, usize> = BTreeMap::new();
    for (head, consequences) in left {
        *counts.entry(Reverse(family::worst(head, consequences))).or_default() += 1;
    }
    let counts = counts.iter().map(|(worst, n)| format!("{n} {}", text::severity(worst.0)));
    let counts: Vec<String> = counts.collect();
    let more = text::count(left.len(), "more cause");
    Some(format!("… and {more}: {} (--all)\n", counts.join(", ")))
}

/// The number of consequences that are folded under this row, and whether they are worse.
pub(super) fn folded(head: &Finding, consequences: &[&Finding]) -> Option<String> {
    if consequences.is_empty() {
        return None;
    }
    let severity = match family::worst(head, consequences) {
        Severity::Critical if head.severity < Severity::Critical => ", critical",
        _ => "",
    };
    Some(format!("{} folded{severity} (--all)", text::count(consequences.len(), "consequence")))
}

fn row(finding: &Finding, ids: &ShortIds, view: View) -> Vec<Cell> {
    let style = match (finding.status, finding.severity) {
        (Status::Resolved, _) => Style::Dim,
        (_, Severity::Critical) => Style::Red,
        (_, Severity::Warning) => Style::Yellow,
        (_, Severity::Info) => Style::Plain,
    };
    let mut row = vec![
        Cell::styled(text::severity(finding.severity), style),
        Cell::new(ids.get(&finding.id)),
        Cell::new(text::subject(&finding.subject)),
        Cell::new(finding.code.as_str()),
        Cell::new(text::holders(&finding.holders)),
        Cell::new(view.now.age(Some(&finding.since))),
    ];
    if view.wide {
        let subject = &finding.subject;
        row.extend([
            Cell::new(status(finding.status)),
            Cell::new(text::owner(subject.pod.as_ref(), subject.container.as_ref())),
            Cell::new(text::state(subject.pod.as_ref(), subject.container.as_ref())),
            Cell::new(subject.netns.as_ref().map(text::netns).unwrap_or_default()),
            Cell::new(finding.caused_by.as_deref().map(|id| ids.get(id)).unwrap_or_default()),
        ]);
    }
    row
}

/// The status of a finding.
pub(in crate::cli) fn status(status: Status) -> &'static str {
    match status {
        Status::Pending => "pending",
        Status::Firing => "firing",
        Status::Resolved => "resolved",
    }
}

/// The line below a row: the impact, and what the row does not show.
pub(in crate::cli) fn note(finding: &Finding, relation: Option<String>, now: Now) -> String {
    let mut parts = Vec::new();
    match finding.status {
        Status::Pending => parts.push("seen once so far".to_owned()),
        Status::Firing => {}
        Status::Resolved => {
            let age = now.age(finding.resolved_at.as_deref());
            parts.push(format!("over since {age}"));
        }
    }
    parts.push(finding.impact.clone());
    if finding.preexisting {
        parts.push("existed before ipwatch first looked".to_owned());
    }
    parts.extend(finding.acked.as_ref().map(|ack| acked(ack, now)));
    parts.extend(relation);
    parts.retain(|part| !part.is_empty());
    parts.join(" · ")
}

/// The acknowledgement. Its note is foreign text; it is escaped with the line.
fn acked(ack: &Ack, now: Now) -> String {
    let mut text = format!("acknowledged {} ago", now.age(Some(&ack.at)));
    if let Some(uid) = ack.uid {
        text.push_str(&format!(" by uid {uid}"));
    }
    if let Some(until) = &ack.until {
        text.push_str(&format!(", until {until}"));
    }
    if let Some(note) = &ack.note {
        text.push_str(&format!(": {}", text::shown(note)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{plain, sample};
    use super::*;
    use crate::contract::Body;

    fn shown(change: impl FnOnce(&mut Vec<Finding>), view: impl FnOnce(View) -> View) -> String {
        let mut document = sample("scan.json");
        let Body::Findings(findings) = &mut document.body else { panic!("findings") };
        change(findings);
        let Body::Findings(findings) = document.body.clone() else { panic!("findings") };
        table(&document, &findings, view(plain(&document)))
    }

    #[test]
    fn a_note_is_wrapped_to_the_terminal() {
        let text = shown(|_| {}, |view| View { width: Some(70), ascii: true, ..view });
        let notes: Vec<&str> = text.lines().filter(|line| line.starts_with("      ")).collect();
        assert!(notes.len() > 1, "{text}");
        assert!(notes.iter().all(|line| line.chars().count() <= 70), "{text}");
        assert!(notes[1..].iter().all(|line| line.starts_with("      ... ")), "{text}");
    }

    #[test]
    fn a_consequence_is_folded_under_its_cause() {
        let text = shown(|_| {}, |view| view);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("node-17   1 cause, 3 findings    sources 5/6 (cni"),
            "{text}"
        );
        assert_eq!(
            lines[1..4],
            [
                "SEV   ID    SUBJECT    FINDING                   HOLDER        AGE",
                "WARN  k3f9  10.0.3.17  ip-held-by-stuck-process  pid 812 java  5m",
                "      10.0.3.17 stays up for as long as pod \"shop/api-0\" cannot exit. If the IPAM frees it \
                 meanwhile, the next pod that is given 10.0.3.17 fails with \"address already in use\" \
                 or shares it. · 2 consequences folded, critical (--all)",
            ]
        );
        assert_eq!(lines[4..], ["Next: ipwatch explain k3f9"]);
        // README's incident begins with it.
        let readme = include_str!("../../../../README.md");
        let (_, incident) = readme.split_once("\n    # ipwatch query findings\n").unwrap();
        let printed: Vec<&str> = incident.lines().map(str::trim_start).collect();
        assert_eq!((printed[1], printed[2]), (lines[1], lines[2]));
        assert_eq!(printed[4], lines[4]);
        let scanned = shown(|_| {}, |view| View { asked: false, ..view });
        assert!(scanned.ends_with("Next: ipwatch explain ip-held-by-stuck-process\n"), "{scanned}");
    }

    #[test]
    fn all_shows_consequences_below_their_cause_the_worst_first_and_escapes_names() {
        let text = shown(|_| {}, |view| View { all: true, wide: true, ..view });
        let rows = ["WARN  k3f9  10.0.3.17", "CRIT  p81c  10.0.3.40", "WARN  r7d2  10.0.3.17"];
        let at = rows.map(|row| text.find(row).unwrap_or_else(|| panic!("{row} not in {text}")));
        assert!(at.is_sorted(), "{text}");
        assert_eq!(text.matches(" · caused by k3f9").count(), 2, "{text}");
        assert!(text.contains("shop/api-0  NotReady  4026532177"), "{text}");
        assert!(text.contains("pid 977 thread 981 \"nginx\\x1b[2J\""), "{text}");
        assert!(text.contains("seen once so far · ") && text.contains("existed before"), "{text}");
        assert!(text.ends_with("Next: ipwatch explain k3f9\n"), "{text}");
    }

    #[test]
    fn what_does_not_fit_a_page_is_counted_by_severity() {
        let many = |findings: &mut Vec<Finding>| {
            let one = Finding { caused_by: None, ..findings[0].clone() };
            let severity = |n| if n < 2 { Severity::Info } else { Severity::Warning };
            let named = (0..2_000).map(|n| Finding {
                id: format!("{n:05}"),
                severity: severity(n),
                ..one.clone()
            });
            *findings = named.collect();
        };
        let text = shown(many, |view| view);
        assert_eq!(text.matches("ip-held-by-stuck-process").count(), PAGE, "{text}");
        assert!(text.contains("\n… and 1980 more causes: 1978 WARN, 2 INFO (--all)\n"), "{text}");
        let all = shown(many, |view| View { all: true, ..view });
        let program = shown(many, |view| View { headers: false, ..view });
        for text in [all, program] {
            assert_eq!(text.matches("ip-held-by-stuck-process").count(), 2_000);
            assert!(!text.contains("more cause"), "{text}");
        }
    }

    #[test]
    fn a_cause_that_is_not_shown_hides_nothing() {
        let text = shown(|findings| drop(findings.remove(0)), |view| view);
        assert!(text.contains("p81c") && text.contains("r7d2"), "{text}");
        assert!(text.contains("2 findings "), "{text}");
    }

    #[test]
    fn nothing_wrong_is_said_with_what_was_looked_at() {
        let text = shown(Vec::clear, |view| view);
        assert!(text.starts_with("node-17   nothing wrong is known    sources 5/6"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn what_is_over_comes_last_and_asks_for_nothing() {
        let text = shown(
            |findings| {
                findings[1].caused_by = None;
                findings[1].status = Status::Resolved;
                findings[1].resolved_at = Some("2026-01-02T03:10:00.000Z".into());
            },
            |view| view,
        );
        assert!(text.find("k3f9").unwrap() < text.find("p81c").unwrap(), "{text}");
        assert!(text.contains("over since 10s"), "{text}");
        assert!(text.ends_with("Next: ipwatch explain k3f9\n"), "{text}");
    }
}
