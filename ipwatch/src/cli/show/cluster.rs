//! The report of a cluster scan: ranges, findings, and the commands of remedies.

use std::collections::HashSet;

use crate::cli::table::{Cell, Style, Table};
use crate::cli::text;
use crate::cli::view::View;
use crate::contract::{Cluster, ClusterFinding, ClusterRange, Document, SourceState};
use crate::escape::escape;
use crate::fact::SourceStatus;
use crate::finding::Severity;

pub(super) fn table(document: &Document, cluster: &Cluster, view: View) -> String {
    let mut parts = Vec::new();
    if view.headers {
        parts.push(summary(document, cluster));
    }
    if !cluster.ranges.is_empty() {
        parts.push(ranges(&cluster.ranges, view));
    }
    if !cluster.findings.is_empty() {
        parts.push(findings(cluster, view));
    }
    let steps = steps(cluster);
    if view.headers && !steps.is_empty() {
        parts.push(steps);
    }
    parts.join(if view.headers { "\n" } else { "" })
}

fn summary(document: &Document, cluster: &Cluster) -> String {
    let what = match cluster.findings.len() as u64 + cluster.more {
        0 if document.sources.iter().any(is_half) => {
            "nothing is found, and not everything is known".to_owned()
        }
        0 => "nothing wrong is known".to_owned(),
        1 => "1 finding".to_owned(),
        n => format!("{n} findings"),
    };
    let mut text =
        format!("{}   {what}    {}\n", escape(&cluster.server), super::sources(document));
    for source in &document.sources {
        if is_half(source) {
            text.push_str(&format!("  {}: {}\n", escape(&source.name), escape(&source.detail)));
        }
    }
    text
}

/// Whether a list is incomplete, so that what it lacks may exist.
fn is_half(source: &SourceState) -> bool {
    matches!(source.status, SourceStatus::Down | SourceStatus::Degraded)
}

fn ranges(ranges: &[ClusterRange], view: View) -> String {
    let mut columns = vec!["OBJECT", "RANGE", "USABLE", "USED", "LEAKED", "FREE", "RECOVERABLE"];
    if view.wide {
        columns.push("FROM");
    }
    let mut table = Table::new(&columns);
    let known = |n: Option<u64>| n.map_or("unknown".to_owned(), |n| n.to_string());
    for range in ranges {
        let leaked = if range.compared { range.leaked.to_string() } else { "unknown".to_owned() };
        let recoverable =
            if range.compared { range.recoverable.to_string() } else { "unknown".to_owned() };
        let full = if range.free == Some(0) { Style::Red } else { Style::Plain };
        let lost = if range.leaked > 0 { Style::Yellow } else { Style::Plain };
        let mut row = vec![
            Cell::new(text::object_of(&range.object)),
            Cell::new(&range.range),
            Cell::new(known(range.usable)),
            Cell::new(range.used.to_string()),
            Cell::styled(leaked, lost),
            Cell::styled(known(range.free), full),
            Cell::new(recoverable),
        ];
        if view.wide {
            row.push(Cell::new(text::names(&range.from)));
        }
        table.noted(row, note(range));
    }
    table.within(view).render(view.headers, view.paint)
}

fn note(range: &ClusterRange) -> Option<String> {
    if range.leaked == 0 && range.doubtful == 0 {
        return None;
    }
    let free = range.free.map_or("free unknown".to_owned(), |free| format!("{free} free"));
    let mut note = format!("{} leaked, {free}, {} recoverable", range.leaked, range.recoverable);
    if range.doubtful > 0 {
        note.push_str(&format!(", {} doubtful", range.doubtful));
    }
    Some(note)
}

fn findings(cluster: &Cluster, view: View) -> String {
    let mut columns = vec!["SEV", "IP", "FINDING", "CERTAINTY", "POD", "OFFSET", "OBJECT"];
    if view.wide {
        columns.extend(["ID", "NODE"]);
    }
    let mut table = Table::new(&columns);
    for finding in &cluster.findings {
        let (severity, style) = match finding.severity {
            Severity::Critical => ("critical", Style::Red),
            Severity::Warning => ("warning", Style::Yellow),
            Severity::Info => ("info", Style::Plain),
        };
        let mut row = vec![
            Cell::styled(severity, style),
            Cell::known(finding.ip),
            Cell::new(&finding.code),
            Cell::new(&finding.certainty),
            Cell::new(text::names(&finding.pods)),
            Cell::known(finding.offset.as_ref()),
            Cell::new(text::object_of(finding.object.as_deref().unwrap_or_default())),
        ];
        if view.wide {
            row.push(Cell::new(text::shown(finding.id.as_deref().unwrap_or_default())));
            row.push(Cell::new(text::names(&finding.nodes)));
        }
        let evidence = finding.evidence.iter().map(|text| format!("  {text}"));
        table.noted(row, std::iter::once(finding.why.clone()).chain(evidence));
    }
    let mut text = table.within(view).render(view.headers, view.paint);
    if cluster.more > 0 {
        text.push_str(&format!("and {} more\n", cluster.more));
    }
    text
}

/// The remedies for a shell: each command once, those that look before those that change.
fn steps(cluster: &Cluster) -> String {
    let mut text = String::new();
    let mut said = HashSet::new();
    for finding in cluster.findings.iter().filter(|finding| !finding.remediation.is_empty()) {
        let mut lines = String::new();
        for step in &finding.remediation {
            let Some(command) = &step.command else {
                lines.push_str(&format!("  # {}\n", escape(&step.what)));
                continue;
            };
            if said.insert(command) {
                lines.push_str(&format!("  # {}\n  {}\n", escape(&step.what), escape(command)));
            }
        }
        if !lines.is_empty() {
            text.push_str(&format!("{}:\n{lines}", title(finding)));
        }
    }
    if text.is_empty() {
        text
    } else {
        format!("What to do; ipwatch itself changes nothing:\n\n{text}")
    }
}

fn title(finding: &ClusterFinding) -> String {
    let sure = match &*finding.certainty {
        "certain" => String::new(),
        other => format!(" ({}: look first)", escape(other)),
    };
    format!("{}{sure}", escape(&crate::cli::text::cluster_name(finding)))
}

#[cfg(test)]
mod tests {
    use super::super::{document, plain, sample};
    use crate::contract::Body;

    #[test]
    fn ranges_what_is_wrong_and_the_way_out() {
        let sample = sample("cluster-scan.json");
        let text = document(&sample, plain(&sample));
        for line in [
            "https://10.0.0.1:6443   7 findings    sources 4/6 (ippools degraded, ipamblocks down → unknown)",
            "  ipamblocks: not allowed: needs the right to list ipamblocks.crd.projectcalico.org",
            "2 leaked, 0 free, 2 recoverable, 1 doubtful",
            "ipam-reservation-leaked 192.168.7.11 ippools.whereabouts.cni.cncf.io kube-system/192.168.7.0-27/11 (likely: look first):",
            "overlappingrangeipreservations.whereabouts.cni.cncf.io kube-system/192.168.7.11 keeps it too",
            "  # free offset 11 (192.168.7.11), and if that went through its overlapping reservation",
            "and 3 more",
        ] {
            assert!(
                text.lines().any(|one| one.trim_start() == line.trim_start()),
                "{line}\n{text}"
            );
        }
    }

    #[test]
    fn what_else_is_known_stands_below_what_is_wrong() {
        let mut sample = sample("cluster-scan.json");
        let Body::Cluster(cluster) = &mut sample.body else { panic!("no cluster") };
        cluster.findings.truncate(2);
        cluster.findings[1].why = "it is gone".into();
        cluster.findings[1].evidence = vec!["first\u{1b}[2J".into(), "second\nthird".into()];
        let text = document(&sample, plain(&sample));
        let mut lines = text.lines().skip_while(|line| line.trim() != "it is gone");
        let mut next = || lines.next().unwrap();
        let indent = next().find("it is gone").unwrap();
        for (line, wanted) in [(next(), "first\\x1b[2J"), (next(), "second\\x0athird")] {
            assert_eq!(line.trim_start(), wanted);
            assert!(line.len() - wanted.len() > indent, "below it: {text}");
        }
        // Printed without headers too, because it belongs to the finding.
        let bare = document(&sample, crate::cli::view::View { headers: false, ..plain(&sample) });
        assert!(bare.contains("  first\\x1b[2J\n"), "{bare}");
    }

    #[test]
    fn what_was_not_compared_is_unknown() {
        let mut sample = sample("cluster-scan.json");
        let Body::Cluster(cluster) = &mut sample.body else { panic!("no cluster") };
        cluster.ranges[1].compared = false;
        let text = document(&sample, plain(&sample));
        let row = text.lines().find(|line| line.contains("fd00-7---64")).unwrap();
        assert_eq!(row.matches("unknown").count(), 4, "{row}");
    }
}
