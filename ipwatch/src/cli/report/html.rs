//! The report as one page: HTML that is also valid XML, which contains its style and its picture. It has no script and loads
//! nothing. Pure.

use std::borrow::Cow;

use super::build::{date, lasted};
use super::picture;
use super::rows::{self, Row};
use crate::cli::text;
use crate::contract::report::{Advice, ItemKind, Report, Story, When};
use crate::escape::escape;
use crate::finding::{Severity, Status};

const STYLE: &str = include_str!("style.css");

/// The content security policy: even if text from a container became markup, the page loads and runs nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Escapes text that others chose: it contains no markup and no control characters.
pub(super) fn escaped(text: &str) -> String {
    let text = escape(text);
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Neither XML nor HTML allows them.
            c if u32::from(c) & 0xfffe == 0xfffe || ('\u{fdd0}'..='\u{fdef}').contains(&c) => {
                out.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out
}

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let mut out = String::new();
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n");
    out.push_str(&format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\"/>\n",
        escaped(POLICY)
    ));
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n");
    out.push_str("<meta name=\"referrer\" content=\"no-referrer\"/>\n");
    out.push_str(&format!("<title>{}</title>\n", escaped(&report.title)));
    out.push_str(&format!("<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"));
    out.push_str(&verdict(report));
    if let Some(story) = report.stories.first() {
        out.push_str(&steps(story));
    }
    out.push_str(&timeline(report));
    out.push_str(&holders(report));
    if let Some(story) = report.stories.first() {
        out.push_str(&section("Proof", &proof(story)));
    }
    out.push_str(&related(report));
    out.push_str(&seen(report));
    out.push_str(&footer(report));
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn section(title: &str, body: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n{body}</section>\n", escaped(title))
}

fn tone(story: Option<&Story>) -> &'static str {
    match story {
        None => "over",
        Some(story) if story.status == Status::Resolved => "over",
        Some(story) => match story.severity {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Info => "info",
        },
    }
}

fn badges(story: &Story) -> String {
    let severity = rows::severity(story.severity);
    format!(
        "<div class=\"badges\"><span class=\"badge\">{severity}</span>\
         <span class=\"badge\">{}</span><code>{}</code></div>\n",
        rows::status(story.status),
        story.code
    )
}

/// The title, in large letters.
fn verdict(report: &Report) -> String {
    let story = report.stories.first();
    let mut out = format!("<header class=\"verdict {}\">\n", tone(story));
    out.push_str(&story.map(badges).unwrap_or_default());
    out.push_str(&format!("<h1>{}</h1>\n", escaped(&report.title)));
    if let Some(story) = story {
        out.push_str(&format!("<p class=\"impact\">{}</p>\n", escaped(&story.impact)));
        for note in story.notes.iter().chain(&story.caveats) {
            out.push_str(&format!("<p class=\"soft\">{}</p>\n", escaped(note)));
        }
    }
    out.push_str("<dl class=\"facts\">\n");
    for (name, value) in facts(report) {
        out.push_str(&format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escaped(&value)));
    }
    out.push_str("</dl>\n</header>\n");
    out
}

fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(story) = report.stories.first() {
        facts.push(("Since", date(&story.since)));
        let over = story.resolved_at.as_deref();
        let name = if over.is_some() { "Lasted" } else { "Open for" };
        facts.push((name, lasted(&story.since, over, &report.taken_at)));
        facts.push(("Finding", story.id.clone()));
    }
    facts.push(("Node", report.node.clone()));
    facts.push(("As of", date(&report.taken_at)));
    facts
}

fn steps(story: &Story) -> String {
    if story.steps.is_empty() {
        return String::new();
    }
    section("What to do", &story.steps.iter().map(step).collect::<String>())
}

fn step(step: &Advice) -> String {
    let (class, label) = match step.when {
        When::Now => ("now", "Now"),
        When::Fix => ("fix", "Fix"),
        When::Never => ("never", "Do not"),
    };
    let changes = if step.changes { " (changes something)" } else { "" };
    let command = step.command.as_deref().map_or_else(String::new, |command| {
        format!("<pre><code>{}</code></pre>\n", escaped(command))
    });
    format!(
        "<div class=\"step {class}\">\n<b>{label}{changes}</b>\n<p>{}</p>\n{command}</div>\n",
        escaped(&step.what)
    )
}

/// The legend's text for each kind.
const LEGEND: [(ItemKind, &str); 12] = [
    (ItemKind::Tenure, "IP up"),
    (ItemKind::Reservation, "IP reserved"),
    (ItemKind::Run, "plugin run"),
    (ItemKind::FailedRun, "failed plugin run"),
    (ItemKind::Hold, "holds the netns"),
    (ItemKind::Exiting, "exiting"),
    (ItemKind::Signal, "signal"),
    (ItemKind::Seen, "seen"),
    (ItemKind::Pending, "finding opened"),
    (ItemKind::Firing, "finding fires"),
    (ItemKind::Acked, "acknowledged"),
    (ItemKind::Resolved, "finding resolved"),
];

fn timeline(report: &Report) -> String {
    let rows = rows::rows(report);
    if rows.is_empty() {
        return String::new();
    }
    let kinds: Vec<ItemKind> =
        report.timeline.lanes.iter().flat_map(|lane| &lane.items).map(|item| item.kind).collect();
    let mut out = String::from("<ul class=\"legend\">\n");
    for (kind, name) in LEGEND.iter().filter(|(kind, _)| kinds.contains(kind)) {
        let class = picture::class(*kind);
        out.push_str(&format!("<li><span class=\"mark {class}\"></span>{name}</li>\n"));
    }
    out.push_str("</ul>\n<figure>\n<div class=\"figure\">\n");
    out.push_str(&picture::svg(report));
    out.push_str(
        "</div>\n<figcaption>Times are UTC. Gaps are not to scale: the numbers between the times say how long each \
         was. An arrow at the end: it still lasted.</figcaption>\n</figure>\n",
    );
    if let Some(omitted) = rows::omitted(report) {
        out.push_str(&format!("<p class=\"soft\">{omitted}</p>\n"));
    }
    let cells = |row: &Row| {
        [
            Td::nowrap(&row.at),
            Td {
                class: "",
                html: format!("<span class=\"mark {}\"></span>{}", row.class, escaped(&row.lane)),
            },
            Td::plain(&row.text),
        ]
    };
    let table = table(&["Time (UTC)", "Where", "What"], rows.iter().map(cells));
    section("Timeline", &out) + &section("The same as a table", &table)
}

/// A cell: its class, and what is in it.
struct Td {
    class: &'static str,
    html: String,
}

impl Td {
    fn plain(text: &str) -> Self {
        Self { class: "", html: escaped(text) }
    }

    fn nowrap(text: &str) -> Self {
        Self { class: "nowrap", html: escaped(text) }
    }
}

fn table<const N: usize>(headers: &[&str; N], rows: impl Iterator<Item = [Td; N]>) -> String {
    let mut out = String::from("<div class=\"wide\">\n<table>\n<thead><tr>");
    for header in headers {
        out.push_str(&format!("<th scope=\"col\">{header}</th>"));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for Td { class, html } in row {
            let class: Cow<'_, str> =
                if class.is_empty() { "".into() } else { format!(" class=\"{class}\"").into() };
            out.push_str(&format!("<td{class}>{html}</td>"));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
    out
}

fn holders(report: &Report) -> String {
    if report.holders.is_empty() {
        return String::new();
    }
    let cells = |row: [String; 4], at_fault: bool| {
        let [name, keeps, since, stands] = row;
        let class = if at_fault { "fault" } else { "" };
        [
            Td { class, html: escaped(&name) },
            Td::plain(&keeps),
            Td::nowrap(&since),
            Td::plain(&stands),
        ]
    };
    let rows = report.holders.iter().map(|keeper| cells(rows::keeper(keeper), keeper.at_fault));
    section("What keeps it up", &table(&["Holder", "Keeps", "Since", "State"], rows))
}

fn proof(story: &Story) -> String {
    let cells = story
        .proof
        .iter()
        .map(|item| [Td::nowrap(&date(&item.at)), Td::nowrap(&item.source), Td::plain(&item.text)]);
    table(&["Time (UTC)", "Source", "What it showed"], cells)
}

/// The causes and consequences of the first finding.
fn related(report: &Report) -> String {
    let Some(rest) = report.stories.get(1..).filter(|rest| !rest.is_empty()) else {
        return String::new();
    };
    let mut out = String::new();
    for story in rest {
        out.push_str(&format!("<div class=\"related {}\">\n{}", tone(Some(story)), badges(story)));
        out.push_str(&format!("<h3>{}</h3>\n", escaped(&story.title)));
        out.push_str(&format!("<p>{}</p>\n", escaped(&story.impact)));
        if let Some(relation) = rows::relation(report, story) {
            out.push_str(&format!("<p class=\"soft\">{}</p>\n", escaped(&relation)));
        }
        for note in story.notes.iter().chain(&story.caveats) {
            out.push_str(&format!("<p class=\"soft\">{}</p>\n", escaped(note)));
        }
        out.push_str(&story.steps.iter().map(step).collect::<String>());
        out.push_str(&proof(story));
        out.push_str("</div>\n");
    }
    section("Related findings", &out)
}

fn seen(report: &Report) -> String {
    let mut out = String::new();
    let sources = report.sources.iter().map(|source| {
        let class = rows::standing_class(source.status);
        [
            Td::nowrap(&source.name),
            Td {
                class: "nowrap",
                html: format!(
                    "<span class=\"mark {class}\"></span>{}",
                    text::status(source.status)
                ),
            },
            Td::plain(&source.detail),
        ]
    });
    out.push_str(&table(&["Source", "Status", "Detail"], sources));
    let mut not_seen = rows::not_seen(report);
    not_seen.extend(report.caveats.iter().cloned());
    out.push_str("<h3>What could not be observed, or is left out</h3>\n<ul>\n");
    for text in not_seen {
        out.push_str(&format!("<li>{}</li>\n", escaped(&text)));
    }
    out.push_str("</ul>\n");
    section("What was seen", &out)
}

fn footer(report: &Report) -> String {
    format!("<footer>\n<p>{}</p>\n</footer>\n", escaped(&rows::made_by(report)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who sees no difference between red and green, or prints without colours, still tells them apart.
    #[test]
    fn what_is_drawn_in_another_shape_has_that_shape_in_the_legend() {
        for (kind, name) in LEGEND {
            let class = picture::class(kind);
            let drawn = STYLE.lines().any(|line| line.starts_with(&format!("svg g.{class} ")))
                || matches!(kind, ItemKind::Signal | ItemKind::Seen | ItemKind::Resolved);
            let mark = format!(".mark.{class}");
            let marked = STYLE.lines().any(|line| {
                let (names, _) = line.split_once('{').unwrap_or_default();
                names.split(',').any(|one| one.trim() == mark)
            });
            assert_eq!(drawn, marked, "{name}");
        }
    }
}
