//! The sources, every event with its current rung, and what cannot be judged meanwhile.

use crate::cli::table::{Cell, Style, Table};
use crate::cli::text;
use crate::cli::view::View;
use crate::contract::{Document, Probe, Proof};
use crate::escape::escape;
use crate::fact::SourceStatus;

/// Maximum length of a reason within its column.
const NOTE_LENGTH: usize = 40;

pub(super) fn table(document: &Document, probes: &[Probe], view: View) -> String {
    let mut sources = Table::new(&["SOURCE", "STATUS", "DETAIL"]);
    for source in &document.sources {
        let style = match source.status {
            SourceStatus::Active => Style::Green,
            SourceStatus::Degraded => Style::Yellow,
            SourceStatus::Down => Style::Red,
            SourceStatus::Disabled => Style::Dim,
        };
        sources.row(vec![
            Cell::new(&source.name),
            Cell::styled(text::status(source.status), style),
            Cell::new(&source.detail),
        ]);
    }
    let proven = probes.iter().any(|probe| probe.canary.is_some());
    let mut columns = vec!["EVENT", "RUNG", "HOOK", "STATUS"];
    columns.extend(view.wide.then_some(["SEEN", "LOST"]).into_iter().flatten());
    columns.extend(proven.then_some("CANARY"));
    columns.push("WHY");
    let mut events = Table::new(&columns);
    let mut notes = Notes { inline: view.wide || !view.headers, texts: Vec::new() };
    let whys: Vec<String> = probes.iter().map(why).collect();
    for (probe, why) in probes.iter().zip(&whys) {
        let style = match probe.status.as_str() {
            "active" if probe.missed.is_some() => Style::Yellow,
            "active" => Style::Green,
            "missing" | "degraded" => Style::Red,
            _ => Style::Yellow,
        };
        let mut row = vec![
            Cell::new(&probe.event),
            Cell::new(&probe.rung),
            Cell::new(&probe.hook),
            Cell::styled(&probe.status, style),
        ];
        if view.wide {
            row.push(Cell::known(probe.seen));
            row.push(Cell::known(probe.lost.or(probe.seen.map(|_| 0))));
        }
        if proven {
            row.push(canary(probe.canary.as_ref(), &mut notes));
        }
        row.push(Cell::new(notes.note(why)));
        events.row(row);
    }
    let sources = sources.within(view).render(view.headers, view.paint);
    let events = events.within(view).render(view.headers, view.paint);
    let notes = notes.render();
    let refused = refused(document, view);
    // Last, where the prompt is: it limits what an empty list of findings means.
    let unjudged = unjudged(document, view);
    if document.sources.is_empty() {
        format!("{events}{notes}{refused}{unjudged}")
    } else {
        format!("{sources}\n{events}{notes}{refused}{unjudged}")
    }
}

/// The canary's verdict: "seen in 120 µs, 3m ago", or "counted, 3m ago".
fn canary<'a>(proof: Option<&'a Proof>, notes: &mut Notes<'a>) -> Cell {
    let Some(proof) = proof else { return Cell::new("") };
    let ago = format!("{} ago", text::span(proof.ago_secs.cast_signed()));
    match (proof.verdict.as_str(), proof.micros) {
        ("seen", Some(micros)) => Cell::new(format!("seen in {}, {ago}", spelt(micros))),
        ("seen", None) => Cell::new(format!("counted, {ago}")),
        ("not-seen", _) => Cell::styled("attached, not seen", Style::Red),
        _ => {
            let why = notes.note(proof.why.as_deref().unwrap_or_default());
            Cell::styled(format!("not tried: {why}"), Style::Dim)
        }
    }
}

fn spelt(micros: u64) -> String {
    match micros {
        0..10_000 => format!("{micros} µs"),
        _ => format!("{} ms", micros / 1000),
    }
}

/// The reason for the rung of an event, and the number of events that it missed.
fn why(probe: &Probe) -> String {
    let missed = probe.missed.map(|count| {
        format!("{count} were not told by it: a look at all tasks found what they had left")
    });
    let again = probe.attached_again.as_ref().map(|again| {
        let ago = text::span(again.ago_secs.cast_signed());
        match again.times {
            1 => format!("attached again {ago} ago: it had told nothing"),
            times => format!("attached again {ago} ago, {times} times: it had told nothing"),
        }
    });
    let why = again.as_deref().into_iter().chain(missed.as_deref()).chain(probe.why.as_deref());
    let why: Vec<&str> = why.collect();
    why.join("; ")
}

/// Names that were rejected; none on most nodes.
fn refused(document: &Document, view: View) -> String {
    if document.refused.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["SOURCE", "REFUSED", "COUNT", "LAST"]);
    for entry in &document.refused {
        table.row(vec![
            Cell::new(&entry.source),
            Cell::styled(entry.name.as_str(), Style::Yellow),
            Cell::known(Some(entry.count)),
            Cell::new(&entry.last),
        ]);
    }
    format!("\n{}", table.within(view).render(view.headers, view.paint))
}

/// Codes of which no finding begins or ends meanwhile, because a source that they rest on does not answer; none on most
/// nodes.
fn unjudged(document: &Document, view: View) -> String {
    if document.blind.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["FINDING", "STATUS"]);
    for code in &document.blind {
        table.row(vec![Cell::new(code.as_str()), Cell::styled("cannot be judged", Style::Red)]);
    }
    format!("\n{}", table.within(view).render(view.headers, view.paint))
}

/// Reasons that do not fit into a column, printed once below the table: one missing kernel option is the reason for
/// many events.
struct Notes<'a> {
    /// Everything goes into the column.
    inline: bool,
    texts: Vec<&'a str>,
}

impl<'a> Notes<'a> {
    /// The text in the column: the reason, or the number of its note.
    fn note(&mut self, why: &'a str) -> String {
        if self.inline || why.chars().count() <= NOTE_LENGTH {
            return why.to_owned();
        }
        let known = self.texts.iter().position(|text| *text == why);
        let at = known.unwrap_or_else(|| {
            self.texts.push(why);
            self.texts.len() - 1
        });
        format!("[{}]", at + 1)
    }

    fn render(&self) -> String {
        let mut out = String::new();
        for (at, text) in self.texts.iter().enumerate() {
            out.push_str(&format!("\n[{}] {}\n", at + 1, escape(text)));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::{document, plain, sample};
    use super::*;
    use crate::finding::Code;

    #[test]
    fn every_event_says_where_it_stands_and_why_not_higher() {
        let sample = sample("doctor.json");
        let text = document(&sample, plain(&sample));
        let (sources, events) = text.split_once("\n\n").unwrap();
        assert!(sources.contains("cni         degraded  1 of 23"), "{sources}");
        assert!(events.starts_with("EVENT             RUNG     HOOK"), "{events}");
        assert!(events.contains("none     addrconf_dad_failure           missing"), "{events}");
        assert!(events.contains("  [1]\n"), "{events}");
        assert!(events.contains("active    counted, 3m ago         -\n"), "{events}");
        assert!(events.contains("fallback  seen in 120 µs, 3m ago  [1]\n"), "{events}");
        assert!(events.contains("not tried: [2]"), "{events}");
        assert!(events.contains("\n\n[2] only the host's links are heard"), "{events}");
        assert!(events.contains("\n\n[1] fentry: load refused (EOPNOTSUPP): CONFIG_DYNAMIC"));
        assert!(events.contains("fentry and kprobe refused: EPERM\n"), "{events}");
        let wide = document(&sample, View { wide: true, ..plain(&sample) });
        assert!(wide.contains("48211") && !text.contains("48211"), "{wide}");
        assert!(wide.contains("640    0     -"), "{wide}");
        assert!(wide.contains("71     1900  not tried: only the host's links"), "{wide}");
    }

    #[test]
    fn what_was_refused_is_shown_where_something_was() {
        let mut sample = sample("doctor.json");
        let text = document(&sample, plain(&sample));
        assert!(text.contains("SOURCE  REFUSED     COUNT  LAST\nprobes  plugin-run  12"), "{text}");
        sample.refused.clear();
        assert!(!document(&sample, plain(&sample)).contains("REFUSED"));
    }

    #[test]
    fn codes_that_cannot_be_judged_are_named_where_there_are_some() {
        let mut sample = sample("doctor.json");
        sample.blind.insert(0, Code::NetnsLeaked);
        let text = document(&sample, plain(&sample));
        let rows =
            "netns-leaked          cannot be judged\nip-released-but-held  cannot be judged\n";
        assert!(text.ends_with(&format!("\nFINDING               STATUS\n{rows}")), "{text}");
        let bare = document(&sample, View { headers: false, ..plain(&sample) });
        assert!(bare.ends_with(rows) && !bare.contains("FINDING"), "{bare}");
        sample.blind.clear();
        assert!(!document(&sample, plain(&sample)).contains("cannot be judged"));
    }

    #[test]
    fn one_reason_is_told_once() {
        let mut notes = Notes { inline: false, texts: Vec::new() };
        let (one, two) = ("x".repeat(41), "y".repeat(41));
        assert_eq!(notes.note(&one), "[1]");
        assert_eq!(notes.note(&two), "[2]");
        assert_eq!(notes.note(&one), "[1]");
        assert_eq!(notes.note("short"), "short");
        assert_eq!(notes.render(), format!("\n[1] {one}\n\n[2] {two}\n"));
    }
}
