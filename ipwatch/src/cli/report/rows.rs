//! The rows of tables and the lines that the page and the Markdown have in common. Pure.

use jiff::Timestamp;

use super::build::{date, lasted};
use super::picture;
use crate::cli::show::findings;
use crate::cli::text;
use crate::contract::Probe;
use crate::contract::report::{Item, ItemKind, Keeper, Lane, LaneKind, Report, Story};
use crate::fact::SourceStatus;
use crate::finding::{Severity, Status};

/// One row of the timeline.
pub(super) struct Row {
    order: (Option<Timestamp>, usize),
    /// The time, to the millisecond.
    pub(super) at: String,
    /// The class of its mark.
    pub(super) class: &'static str,
    /// The name of the lane.
    pub(super) lane: String,
    /// What began, happened or ended.
    pub(super) text: String,
}

/// The timeline as rows, the oldest first. An item that lasted has a row for its beginning and one for its end.
pub(super) fn rows(report: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    for lane in &report.timeline.lanes {
        for item in &lane.items {
            rows.extend(of_item(lane, item, &report.taken_at));
        }
    }
    for (nth, row) in rows.iter_mut().enumerate() {
        row.order.1 = nth;
    }
    rows.sort_by_key(|row| row.order);
    rows
}

/// A text about what the timeline leaves out.
pub(super) fn omitted(report: &Report) -> Option<String> {
    let timeline = &report.timeline;
    let parts = [(timeline.omitted, "older item"), (timeline.lanes_omitted, "unrelated lane")];
    let parts = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| text::count(*n, what));
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| format!("{} left out.", parts.join(" and ")))
}

fn of_item(lane: &Lane, item: &Item, taken_at: &str) -> Vec<Row> {
    let class = picture::class(item.kind);
    let name = match lane.kind {
        LaneKind::Finding if !lane.detail.is_empty() => format!("{} {}", lane.name, lane.detail),
        LaneKind::Pod if !lane.detail.is_empty() => format!("{} ({})", lane.name, lane.detail),
        _ => lane.name.clone(),
    };
    let row = |at: &str, text: String| Row {
        order: (at.parse().ok(), 0),
        at: precise(at),
        class,
        lane: name.clone(),
        text,
    };
    let is_run = matches!(item.kind, ItemKind::Run | ItemKind::FailedRun);
    match (&item.to, item.lasts) {
        // A run is short and has one row.
        (Some(to), _) if is_run => {
            vec![row(
                &item.from,
                format!("{}: {} after {}", item.text, item.ended, took(&item.from, to)),
            )]
        }
        (Some(to), _) => {
            let how = if item.ended.is_empty() {
                format!("{}: over", item.text)
            } else {
                item.ended.clone()
            };
            let after = lasted(&item.from, Some(to), taken_at);
            let mut rows = vec![row(&item.from, item.text.clone())];
            // That a finding fires and that it is resolved are items of their own.
            if !matches!(item.kind, ItemKind::Pending | ItemKind::Firing) {
                rows.push(row(to, format!("{how}, after {after}")));
            }
            rows
        }
        (None, true) => {
            let so_far = lasted(&item.from, None, taken_at);
            vec![row(&item.from, format!("{} (still, for {so_far})", item.text))]
        }
        (None, false) => vec![row(&item.from, item.text.clone())],
    }
}

/// A time to the millisecond, which shows the order of events of a kill.
fn precise(date: &str) -> String {
    match date.parse::<Timestamp>() {
        Ok(stamp) => format!("{}.{:03}", stamp.strftime("%F %T"), stamp.subsec_millisecond()),
        Err(_) => date.to_owned(),
    }
}

/// How long a run took.
fn took(from: &str, to: &str) -> String {
    match (from.parse::<Timestamp>(), to.parse::<Timestamp>()) {
        (Ok(from), Ok(to)) => match to.duration_since(from).as_millis() {
            millis @ ..10_000 => format!("{millis} ms"),
            millis => format!("{} s", millis / 1000),
        },
        _ => "an unknown time".to_owned(),
    }
}

/// The cells of a holder.
pub(super) fn keeper(keeper: &Keeper) -> [String; 4] {
    // In a word, too: colours are not always seen.
    let fault = keeper.at_fault.then_some("at fault");
    let stands: Vec<&str> = fault.into_iter().chain(keeper.stands.iter().map(|s| &**s)).collect();
    [
        keeper.name.clone(),
        keeper.keeps.clone(),
        keeper.since.as_deref().map(date).unwrap_or_default(),
        stands.join(", "),
    ]
}

/// Whether a related finding is the cause or a consequence.
pub(super) fn relation(report: &Report, story: &Story) -> Option<String> {
    let causes = |other: &&Story| other.caused_by.as_deref() == Some(story.id.as_str());
    if report.stories.first().filter(causes).is_some() {
        return Some("It is the cause.".to_owned());
    }
    let id = story.caused_by.as_deref()?;
    let cause = report.stories.iter().find(|other| other.id == id);
    Some(match cause {
        Some(cause) => format!("It is a consequence of {} ({id}).", cause.code),
        None => format!("It is a consequence of {id}."),
    })
}

/// The probes and codes that are not fully covered, a line each.
pub(super) fn not_seen(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if !report.blind.is_empty() {
        let codes: Vec<&str> = report.blind.iter().map(|code| code.as_str()).collect();
        lines.push(format!(
            "Could not be judged, so none of these began or ended: {}",
            codes.join(", ")
        ));
    }
    // Many events often have the same reason.
    let mut groups: Vec<(&Probe, Vec<&str>)> = Vec::new();
    for probe in &report.probes {
        let same = |other: &Probe| {
            (&other.status, &other.rung, &other.why) == (&probe.status, &probe.rung, &probe.why)
        };
        match groups.iter_mut().find(|(first, _)| same(first)) {
            Some((_, events)) => events.push(&probe.event),
            None => groups.push((probe, vec![&probe.event])),
        }
    }
    for (probe, events) in groups {
        let why = probe.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        let how = match probe.status.as_str() {
            "missing" => "not seen".to_owned(),
            "degraded" => "attached, and not seen in a test".to_owned(),
            _ => format!("seen by way of {}", probe.rung),
        };
        lines.push(format!("Events {how} ({}){why}", events.join(", ")));
    }
    lines
}

/// The line that says when, on which node and by which version the report was made.
pub(super) fn made_by(report: &Report) -> String {
    let daemon = report.daemon.as_ref().map(|daemon| {
        format!(", daemon {} on Linux {} ({})", daemon.version, daemon.kernel, daemon.machine)
    });
    let redacted = if report.redacted {
        ". Names and IPs are replaced, the same name by the same stand-in; numbers and times are unchanged"
    } else {
        ""
    };
    format!(
        "Node {}, {}. Made by ipwatch {}{}{redacted}.",
        report.node,
        date(&report.taken_at),
        report.version,
        daemon.unwrap_or_default()
    )
}

pub(super) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "critical",
        Severity::Warning => "warning",
        Severity::Info => "info",
    }
}

pub(super) fn status(status: Status) -> &'static str {
    findings::status(status)
}

/// The class of a source's mark.
pub(super) fn standing_class(status: SourceStatus) -> &'static str {
    match status {
        SourceStatus::Active => "resolved",
        SourceStatus::Degraded => "pending",
        SourceStatus::Down => "firing",
        SourceStatus::Disabled => "seen",
    }
}
