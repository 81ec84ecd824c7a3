//! The report as Markdown, for a channel or a ticket. Pure.

use super::build::{date, lasted};
use super::rows;
use crate::cli::text;
use crate::contract::report::{Advice, Report, Story, When};
use crate::escape::escape;

/// Escapes text that others chose: it contains no markup, link, mention or HTML.
fn escaped(text: &str) -> String {
    let text = escape(text);
    let mut out = String::with_capacity(text.len() + 8);
    let mut before = ' ';
    for c in text.chars() {
        let is_markup =
            matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '~' | '&' | '@');
        // `#5` is an issue; a URL would become a link.
        let is_link = c == '#' || c == '/' && before == ':';
        if is_markup || is_link {
            out.push('\\');
        }
        out.push(c);
        before = c;
    }
    // `www.` becomes a link as well.
    out.replace("www.", "www\\.")
}

/// The whole document.
pub(super) fn document(report: &Report) -> String {
    let mut out = format!("# {}\n\n", escaped(&report.title));
    if let Some(story) = report.stories.first() {
        out.push_str(&headline(report, story));
        out.push_str(&steps(story, "## What to do"));
    }
    out.push_str(&timeline(report));
    out.push_str(&holders(report));
    if let Some(story) = report.stories.first() {
        out.push_str("## Proof\n\n");
        out.push_str(&proof(story));
    }
    for story in report.stories.iter().skip(1) {
        out.push_str(&format!("## Related: {}\n\n", escaped(&story.title)));
        out.push_str(&headline(report, story));
        if let Some(relation) = rows::relation(report, story) {
            out.push_str(&format!("{}\n\n", escaped(&relation)));
        }
        out.push_str(&steps(story, "### What to do"));
        out.push_str("### Proof\n\n");
        out.push_str(&proof(story));
    }
    out.push_str(&seen(report));
    out.push_str(&format!("{}\n", escaped(&rows::made_by(report))));
    out
}

fn headline(report: &Report, story: &Story) -> String {
    let over = story.resolved_at.as_deref();
    let since = date(&story.since);
    let how_long = lasted(&story.since, over, &report.taken_at);
    let verb = if over.is_some() { "lasted" } else { "for" };
    let mut out = format!(
        "**{}, {}**: `{}`, since {since} ({verb} {how_long}), finding `{}` on node {}\n\n{}\n\n",
        rows::severity(story.severity),
        rows::status(story.status),
        story.code,
        story.id.replace('`', ""),
        escaped(&report.node),
        escaped(&story.impact)
    );
    for note in story.notes.iter().chain(&story.caveats) {
        out.push_str(&format!("- {}\n", escaped(note)));
    }
    if !story.notes.is_empty() || !story.caveats.is_empty() {
        out.push('\n');
    }
    out
}

fn steps(story: &Story, title: &str) -> String {
    if story.steps.is_empty() {
        return String::new();
    }
    let mut out = format!("{title}\n\n");
    out.extend(story.steps.iter().map(step));
    out
}

fn step(step: &Advice) -> String {
    let label = match step.when {
        When::Now => "Now",
        When::Fix => "Fix",
        When::Never => "Do not",
    };
    let changes = if step.changes { " (changes something)" } else { "" };
    let mut out = format!("**{label}{changes}:** {}\n\n", escaped(&step.what));
    if let Some(command) = &step.command {
        let command = escape(command);
        // A fence is longer than any run of backticks within it.
        let longest = command.split(|c| c != '`').map(str::len).max().unwrap_or_default();
        let fence = "`".repeat(longest.max(2) + 1);
        out.push_str(&format!("{fence}sh\n{command}\n{fence}\n\n"));
    }
    out
}

fn row<const N: usize>(cells: [String; N]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn head<const N: usize>(names: [&str; N]) -> String {
    row(names.map(str::to_owned)) + &row(names.map(|_| "---".to_owned()))
}

fn timeline(report: &Report) -> String {
    let rows = rows::rows(report);
    if rows.is_empty() {
        return String::new();
    }
    let mut out = format!("## Timeline\n\n{}", head(["Time (UTC)", "Where", "What"]));
    for one in rows {
        out.push_str(&row([one.at, escaped(&one.lane), escaped(&one.text)]));
    }
    if let Some(omitted) = rows::omitted(report) {
        out.push_str(&format!("\n{omitted}\n"));
    }
    out.push('\n');
    out
}

fn holders(report: &Report) -> String {
    if report.holders.is_empty() {
        return String::new();
    }
    let names = ["Holder", "Keeps", "Since", "State"];
    let mut out = format!("## What keeps it up\n\n{}", head(names));
    for keeper in &report.holders {
        let [name, keeps, since, stands] = rows::keeper(keeper).map(|cell| escaped(&cell));
        let name = if keeper.at_fault { format!("**{name}**") } else { name };
        out.push_str(&row([name, keeps, since, stands]));
    }
    out.push('\n');
    out
}

fn proof(story: &Story) -> String {
    let mut out = head(["Time (UTC)", "Source", "What it showed"]);
    for item in &story.proof {
        out.push_str(&row([date(&item.at), escaped(&item.source), escaped(&item.text)]));
    }
    out.push('\n');
    out
}

fn seen(report: &Report) -> String {
    let mut out = format!("## What was seen\n\n{}", head(["Source", "Status", "Detail"]));
    for source in &report.sources {
        let status = text::status(source.status).to_owned();
        out.push_str(&row([escaped(&source.name), status, escaped(&source.detail)]));
    }
    out.push_str("\nWhat could not be observed, or is left out:\n\n");
    for line in rows::not_seen(report).iter().chain(&report.caveats) {
        out.push_str(&format!("- {}\n", escaped(line)));
    }
    out.push('\n');
    out
}
