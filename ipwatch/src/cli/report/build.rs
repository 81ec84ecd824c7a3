//! Makes the report from the daemon's answers. Pure.

use std::collections::HashSet;

use jiff::Timestamp;

use super::case::Case;
use super::timeline;
use crate::cli::show::family::Families;
use crate::cli::show::{card, story};
use crate::cli::text::{self, Now};
use crate::contract::report::{Advice, Keeper, ProofItem, Report, Story};
use crate::contract::{Address, Document, Holder, SCHEMA};
use crate::fact::SourceStatus;
use crate::finding::{Finding, Status};

/// Maximum number of findings in a report.
const MOST_STORIES: usize = 12;
/// Maximum number of holders in a report.
const MOST_HOLDERS: usize = 40;

/// The report of a case.
pub(super) fn report(case: &Case) -> Report {
    let told = told(case);
    let related = told.len().saturating_sub(MOST_STORIES);
    let told = told.get(..MOST_STORIES).unwrap_or(&told);
    let document = envelope(case);
    let mut caveats = caveats(case);
    if related > 0 {
        let more = text::count(related, "more finding");
        caveats.push(format!("{more} followed from it: `ipwatch query findings --all` lists them"));
    }
    Report {
        schema: SCHEMA.to_owned(),
        about: case.about.clone(),
        node: case.node.clone(),
        taken_at: case.taken_at.clone(),
        redacted: false,
        title: title(case, told),
        stories: told.iter().map(|finding| story(finding, &document)).collect(),
        timeline: timeline::timeline(case, told),
        holders: keepers(case, told),
        sources: case.sources.clone(),
        probes: case.probes.iter().filter(|probe| probe.status != "active").cloned().collect(),
        blind: case.blind.clone(),
        caveats,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        daemon: case.daemon.clone(),
    }
}

/// The findings of the report: those that it is about, the worst first, then their causes, then their consequences.
fn told(case: &Case) -> Vec<&Finding> {
    let heads = Families::new(&case.findings);
    let around = Families::new(&case.around);
    let mut told: Vec<&Finding> = heads.all().into_iter().map(|(head, _)| head).collect();
    for finding in told.clone() {
        told.extend(around.cause(finding));
    }
    for finding in told.clone() {
        told.extend(around.consequences(finding));
    }
    let mut seen = HashSet::new();
    told.retain(|finding| seen.insert(finding.id.as_str()));
    told
}

/// A document with the case's sources, for functions that read their status from a document.
fn envelope(case: &Case) -> Document {
    Document {
        schema: SCHEMA.to_owned(),
        node: case.node.clone(),
        taken_at: case.taken_at.clone(),
        sources: case.sources.clone(),
        body: crate::contract::Body::Findings(Vec::new()),
        reservations: Vec::new(),
        networks: Vec::new(),
        refused: Vec::new(),
        blind: Vec::new(),
        daemon: None,
        runs: Vec::new(),
    }
}

fn title(case: &Case, told: &[&Finding]) -> String {
    match told.first() {
        Some(finding) => story::title(finding),
        None => format!("{}: nothing wrong is known", text::shown(&case.about)),
    }
}

fn story(finding: &Finding, document: &Document) -> Story {
    let advice = finding.advice();
    let steps = advice.iter().enumerate().map(|(at, step)| {
        let (when, what) = story::when(at, &step.what);
        Advice { when, what: what.to_owned(), command: step.command.clone(), changes: step.changes }
    });
    let steps = if finding.status == Status::Resolved { Vec::new() } else { steps.collect() };
    let proof = story::in_order(finding).into_iter().map(|item| ProofItem {
        at: item.at.clone(),
        source: item.source.clone(),
        text: item.text.clone(),
    });
    Story {
        id: finding.id.clone(),
        code: finding.code,
        severity: finding.severity,
        status: finding.status,
        title: story::title(finding),
        since: finding.since.clone(),
        resolved_at: finding.resolved_at.clone(),
        caused_by: finding.caused_by.clone(),
        notes: notes(finding),
        impact: finding.impact.clone(),
        proof: proof.collect(),
        steps,
        caveats: story::caveats(document, finding),
    }
}

/// The facts that `explain` prints beside the title.
fn notes(finding: &Finding) -> Vec<String> {
    let mut notes = Vec::new();
    let subject = &finding.subject;
    let pod = subject.pod.as_ref().filter(|pod| pod.state.is_some() || pod.attempt.is_some());
    notes.extend(pod.map(|pod| format!("pod {}", card::pod(pod))));
    let container = subject.container.as_ref().filter(|container| container.name.is_some());
    notes.extend(container.map(|container| format!("container {}", card::container(container))));
    if finding.preexisting {
        notes.push("it existed before ipwatch first looked".to_owned());
    }
    if finding.unjudged {
        notes.push(
            "whether this is still the case is unknown: a source that it depends on does not answer"
                .to_owned(),
        );
    }
    notes.extend(finding.acked.as_ref().map(timeline::acknowledged));
    notes
}

/// What keeps the addresses up: the holders that the findings name, then the others in these netns.
fn keepers(case: &Case, told: &[&Finding]) -> Vec<Keeper> {
    let mut keepers: Vec<Keeper> = Vec::new();
    let mut add = |holder: &Holder, keeps: String, at_fault: bool| {
        let one = keeper(holder, keeps, at_fault);
        let known = |other: &Keeper| other.name == one.name && other.keeps == one.keeps;
        if !keepers.iter().any(known) {
            keepers.push(one);
        }
    };
    for finding in told {
        let subject = &finding.subject;
        let netns = subject.netns.as_ref().map(text::netns).unwrap_or_default();
        let keeps = kept(&text::owner(subject.pod.as_ref(), subject.container.as_ref()), &netns);
        finding.holders.iter().for_each(|holder| {
            add(holder, keeps.clone(), !holder.is_candidate());
        });
    }
    for address in case.addresses.iter().filter(|address| !is_hosts(address)) {
        let owner = text::owner(address.pod.as_ref(), address.container.as_ref());
        let keeps = kept(&owner, &text::netns(&address.netns));
        address.holders.iter().for_each(|holder| add(holder, keeps.clone(), false));
    }
    keepers.truncate(MOST_HOLDERS);
    keepers
}

/// Whether it is an address of the host, whose holders are all processes of the node.
fn is_hosts(address: &Address) -> bool {
    address.netns.state.as_deref() == Some("host")
}

fn kept(owner: &str, netns: &str) -> String {
    let parts =
        [owner.to_owned(), if netns.is_empty() { String::new() } else { format!("netns {netns}") }];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

fn keeper(holder: &Holder, keeps: String, at_fault: bool) -> Keeper {
    let mut stands = Vec::new();
    stands.extend(holder.mount_place().map(|place| format!("in {place}")));
    if holder.exiting == Some(true) {
        stands.push("exiting".to_owned());
    }
    stands.extend(holder.state.map(state));
    Keeper { name: holder.words(), keeps, since: holder.since.clone(), stands, at_fault }
}

/// A state letter of /proc/PID/stat, with what it means.
fn state(letter: char) -> String {
    let meaning = match letter {
        'D' => " (waits in the kernel, no signal wakes it)",
        'R' => " (runs)",
        'S' => " (sleeps)",
        'T' | 't' => " (stopped)",
        'Z' => " (zombie)",
        _ => "",
    };
    format!("state {letter}{meaning}")
}

/// What could not be observed, or is left out of this report.
fn caveats(case: &Case) -> Vec<String> {
    let mut caveats = Vec::new();
    for source in text::blind_spots(&envelope(case)) {
        let so = match source.status {
            SourceStatus::Down => "what it would report is unknown",
            _ => "its report may be incomplete",
        };
        caveats.push(format!("{} is {}: {so}", source.name, text::status(source.status)));
    }
    caveats.extend(case.unanswered.iter().map(|what| format!("Not known: {what}")));
    caveats.push(
        "Runs of CNI plugins are kept for ten minutes: older ones are missing here".to_owned(),
    );
    if case.history.is_empty() {
        caveats.push("The history has no tenure of these IPs".to_owned());
    }
    caveats
}

/// How long something lasted, or has lasted so far.
pub(super) fn lasted(from: &str, to: Option<&str>, taken_at: &str) -> String {
    Now::at(to.unwrap_or(taken_at)).age(Some(from))
}

/// A date for people: to the second, UTC.
pub(super) fn date(date: &str) -> String {
    match date.parse::<Timestamp>() {
        Ok(stamp) => stamp.strftime("%F %TZ").to_string(),
        Err(_) => date.to_owned(),
    }
}
