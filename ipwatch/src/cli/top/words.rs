//! Rows in words: what is in the cells of each, and the lines about the selected one.

use super::bar;
use super::known::{Known, Logged};
use super::rows::Row;
use crate::cli::show::{family, family::Families, findings, story};
use crate::cli::table::Style;
use crate::cli::text::{self, Now};
use crate::contract::{IpamRange, Tenure};
use crate::fact::SourceStatus;
use crate::finding::{Finding, Severity};

/// Text in a cell, not yet cut nor escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) style: Style,
}

fn cell(text: impl Into<String>) -> Cell {
    styled(text, Style::Plain)
}

fn styled(text: impl Into<String>, style: Style) -> Cell {
    Cell { text: text.into(), style }
}

/// Everything that a row tells, in lower case, for the filter and the search.
pub(super) fn text_of(known: &Known, row: Row) -> String {
    let mut text = String::new();
    for cell in cells(known, row) {
        text.push_str(&cell.text);
        text.push(' ');
    }
    if let Row::Finding { at, .. } = row
        && let Some(finding) = known.finding(at)
    {
        text.push_str(&finding.id);
        text.push(' ');
        text.push_str(&story::title(finding));
        text.extend(finding.subject.network.iter().flat_map(|network| [" ", network]));
    }
    text.to_lowercase()
}

/// The cells of a row, in the order of the columns of its pane.
pub(super) fn cells(known: &Known, row: Row) -> Vec<Cell> {
    let now = known.now();
    match row {
        Row::Range(at) => match known.range(at) {
            Some(range) => of_range(known, range),
            None => Vec::new(),
        },
        Row::Finding { at, under, .. } => match known.finding(at) {
            Some(finding) => of_finding(known, finding, under, now),
            None => Vec::new(),
        },
        Row::Logged(number) => match known.logged(number) {
            Some(Logged::Held(tenure)) => of_tenure(tenure, false, now),
            Some(Logged::Released(tenure)) => of_tenure(tenure, true, now),
            Some(Logged::Missing(count)) => {
                let what = match count {
                    0 => "the daemon was gone: what came and went meanwhile is missing".to_owned(),
                    count => format!("{count} events are missing here"),
                };
                vec![cell(""), styled("missing", Style::Red), cell(what)]
            }
            None => Vec::new(),
        },
        Row::Conflict(ip) => {
            let Some(conflict) = known.conflicts.get(&ip) else { return Vec::new() };
            let found = conflict.findings.iter().filter_map(|at| known.finding(*at));
            let worst = found.clone().map(|finding| finding.severity).max();
            let codes: Vec<&str> = found.map(|finding| finding.code.as_str()).collect();
            let style = worst.map_or(Style::Plain, of_severity);
            vec![
                styled(worst.map_or("", text::severity), style),
                cell(ip.to_string()),
                styled(codes.join(", "), style),
                cell(&*conflict.claims),
            ]
        }
        Row::Source(at) => {
            let source = &known.sources()[at];
            let style = match source.status {
                SourceStatus::Active => Style::Green,
                SourceStatus::Degraded => Style::Yellow,
                SourceStatus::Down => Style::Red,
                SourceStatus::Disabled => Style::Dim,
            };
            vec![
                cell(&*source.name),
                styled(text::status(source.status), style),
                cell(&*source.detail),
            ]
        }
        Row::Unseen(at) => {
            let probe = &known.probes()[at];
            let why = match (probe.missed, &probe.why) {
                (Some(missed), _) => format!("{missed} were not reported by it"),
                (None, Some(why)) => why.clone(),
                (None, None) => format!("by {}", probe.hook),
            };
            let style = if probe.missed.is_some() { Style::Yellow } else { Style::Red };
            vec![cell(format!("event {}", probe.event)), styled(&*probe.status, style), cell(why)]
        }
        Row::Unjudged(at) => vec![
            cell("not judged"),
            styled("blind", Style::Red),
            cell(format!("{}: a source that it rests on does not answer", known.blind()[at])),
        ],
    }
}

fn of_severity(severity: Severity) -> Style {
    match severity {
        Severity::Critical => Style::Red,
        Severity::Warning => Style::Yellow,
        Severity::Info => Style::Plain,
    }
}

fn of_finding(known: &Known, finding: &Finding, under: bool, now: Now) -> Vec<Cell> {
    let subject = &finding.subject;
    let code = match under {
        true => format!("└ {}", finding.code),
        false => finding.code.to_string(),
    };
    let status = match finding.unjudged {
        true => "unjudged",
        false if finding.acked.is_some() => "acked",
        false => findings::status(finding.status),
    };
    let cause = finding.caused_by.as_deref().map(|id| known.ids.get(id).to_owned());
    vec![
        styled(text::severity(finding.severity), of_severity(finding.severity)),
        cell(known.ids.get(&finding.id)),
        cell(text::subject(subject)),
        cell(code),
        cell(text::holders(&finding.holders)),
        cell(now.age(Some(&finding.since))),
        cell(status),
        cell(text::owner(subject.pod.as_ref(), subject.container.as_ref())),
        cell(cause.unwrap_or_default()),
    ]
}

fn of_tenure(tenure: &Tenure, is_over: bool, now: Now) -> Vec<Cell> {
    let owner = text::owner(tenure.pod.as_ref(), tenure.container.as_ref());
    let place = match owner.as_str() {
        "" => format!("netns {}", text::netns(&tenure.netns)),
        owner => owner.to_owned(),
    };
    let (at, verb, style, how) = match (is_over, &tenure.to) {
        (true, to) => {
            let at = to.as_deref().unwrap_or(&tenure.from);
            let by = tenure.ended_by.as_deref().unwrap_or("unknown");
            let lasted = text::lasted(&tenure.from, at);
            (at, "gone", Style::Dim, format!("{by}, after {lasted}"))
        }
        (false, _) => (&*tenure.from, "up", Style::Green, String::new()),
    };
    vec![
        cell(now.clock(at)),
        styled(verb, style),
        cell(tenure.ip.to_string()),
        cell(place),
        cell(how),
    ]
}

fn of_range(known: &Known, range: &IpamRange) -> Vec<Cell> {
    let parked = parked(known, range);
    let left = range.available.unwrap_or(range.free);
    let known_or = |number: Option<u64>, word: &str| match number {
        Some(0) => String::new(),
        Some(number) => format!("{number} {word}"),
        None => format!("? {word}"),
    };
    let warn = |text: String| {
        let style = if text.is_empty() { Style::Plain } else { Style::Yellow };
        styled(text, style)
    };
    let least = if known.parked_at_least { ">=" } else { "" };
    let parked = match parked {
        0 if !known.parked_at_least => String::new(),
        parked => format!("{least}{parked} parked"),
    };
    let free = if left == 0 { Style::Red } else { Style::Plain };
    let time_left = range.time_left.map(|left| {
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        format!("full in {}", text::span(left))
    });
    vec![
        cell(&*range.network),
        cell(format!("{}/{}", range.used, range.usable)),
        warn(known_or(range.leaked, "leaked")),
        warn(known_or(range.held, "held")),
        cell(parked),
        styled(format!("{left} free"), free),
        warn(time_left.unwrap_or_default()),
        cell(&*range.range),
        cell(&*range.store),
    ]
}

fn parked(known: &Known, range: &IpamRange) -> u64 {
    let name = (range.store.clone(), range.network.clone());
    known.parked.get(&name).copied().unwrap_or(0)
}

/// How much of a range each part is.
pub(super) fn parts(known: &Known, row: Row) -> Option<[(bar::Part, u64); 5]> {
    let Row::Range(at) = row else { return None };
    let range = known.range(at)?;
    Some(bar::parts(range, parked(known, range)))
}

/// The lines below the lists about the selected row: what it is, and what its cells do not show.
pub(super) fn detail(known: &Known, row: Row) -> Vec<Cell> {
    match row {
        Row::Finding { at, folded, .. } => {
            let Some(finding) = known.finding(at) else { return Vec::new() };
            let mut lines = vec![styled(story::title(finding), Style::Bold)];
            if finding.unjudged {
                let unknown =
                    "a source that it rests on does not answer: whether it still holds is unknown";
                lines.push(styled(unknown, Style::Red));
            }
            if folded > 0 {
                let list = known.findings.as_deref().unwrap_or_default();
                let consequences = Families::new(list).consequences(finding);
                let worst = family::worst(finding, &consequences);
                let count = text::count(folded, "consequence");
                let style = of_severity(worst);
                lines.push(styled(
                    format!("{count} folded, the worst {} (Space)", text::severity(worst)),
                    style,
                ));
            }
            lines.push(cell(findings::note(finding, None, known.now())));
            lines
        }
        Row::Source(_) | Row::Unseen(_) | Row::Unjudged(_) => {
            let mut cells = cells(known, row).into_iter();
            let title = cells.next().map(|cell| styled(cell.text, Style::Bold));
            title.into_iter().chain(cells.nth(1)).collect()
        }
        Row::Conflict(ip) => {
            let Some(conflict) = known.conflicts.get(&ip) else { return Vec::new() };
            let found = conflict.findings.iter().filter_map(|at| known.finding(*at));
            let title = match found.clone().next() {
                Some(finding) => story::title(finding),
                None => format!("{ip} is claimed by {}", conflict.claims),
            };
            let impacts = found.map(|finding| cell(&*finding.impact));
            std::iter::once(styled(title, Style::Bold)).chain(impacts).collect()
        }
        Row::Range(at) => match known.range(at) {
            Some(range) => vec![
                styled(format!("{} {} {}", range.store, range.network, range.range), Style::Bold),
                cell(range.path.clone().map(|path| format!("from {path}")).unwrap_or_default()),
            ],
            None => Vec::new(),
        },
        Row::Logged(number) => match known.tenure(number) {
            Some(tenure) => {
                let pod = text::owner(tenure.pod.as_ref(), tenure.container.as_ref());
                let of = if pod.is_empty() { pod } else { format!(" of {pod}") };
                let netns = text::netns(&tenure.netns);
                vec![styled(format!("{}{of} in netns {netns}", tenure.ip), Style::Bold)]
            }
            None => Vec::new(),
        },
    }
}
