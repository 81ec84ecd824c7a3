//! One line for an event of the live stream.

use super::{findings, lists};
use crate::api::Event;
use crate::cli::table::{Paint, Style};
use crate::cli::text::{self, Now};
use crate::contract::{Neighbour, Tenure};
use crate::escape::escape;
use crate::finding::{Change, ChangeKind, Severity};

/// Length of an id in a stream, in which later ids are not known yet.
const ID_LENGTH: usize = 6;

/// The line of an event.
pub(in crate::cli) fn line(event: &Event, paint: Paint, wide: bool) -> String {
    let (at, verb, style, rest) = match event {
        Event::Finding(change) => finding(change, wide),
        Event::Held(tenure) => (tenure.from.as_str(), "held", Style::Green, held(tenure, wide)),
        Event::Released(tenure) => {
            let at = tenure.to.as_deref().unwrap_or(&tenure.from);
            let lasted = text::lasted(&tenure.from, at);
            let by = tenure.ended_by.as_deref().unwrap_or("unknown");
            (at, "released", Style::Dim, format!("{}, {by}, after {lasted}", held(tenure, wide)))
        }
        Event::Neighbour(entry) => {
            let trouble = !entry.conflict.is_empty() || lists::is_lost(entry);
            let style = if trouble { Style::Yellow } else { Style::Dim };
            (entry.since.as_deref().unwrap_or_default(), "neigh", style, neighbour(entry))
        }
        Event::Lagged { dropped } => {
            return format!(
                "{}\n",
                paint.paint(Style::Red, &format!("-- {dropped} events are missing here --"))
            );
        }
    };
    let verb = paint.paint(style, &format!("{verb:<9}")).into_owned();
    format!("{:<10} {verb} {}\n", Now::at(at).clock(at), escape(&rest))
}

/// Identifies the event's subject.
pub(in crate::cli) fn name(event: &Event) -> String {
    let name = match event {
        Event::Finding(change) => change.finding.id.clone(),
        Event::Held(tenure) | Event::Released(tenure) => tenure.ip.to_string(),
        Event::Neighbour(entry) => entry.ip.to_string(),
        Event::Lagged { .. } => return String::new(),
    };
    format!("{}\n", escape(&name))
}

fn finding(change: &Change, wide: bool) -> (&str, &'static str, Style, String) {
    let Change { change: kind, finding, .. } = change;
    let style = match finding.severity {
        Severity::Critical => Style::Red,
        Severity::Warning => Style::Yellow,
        Severity::Info => Style::Plain,
    };
    let (verb, style, at) = match kind {
        ChangeKind::Opened => ("opened", style, finding.last_seen.as_str()),
        ChangeKind::Updated => ("updated", style, finding.last_seen.as_str()),
        ChangeKind::Resolved => {
            ("resolved", Style::Green, finding.resolved_at.as_deref().unwrap_or(&finding.last_seen))
        }
    };
    let mut rest = vec![
        text::severity(finding.severity).to_owned(),
        text::cut(&finding.id, ID_LENGTH).to_owned(),
        findings::status(finding.status).to_owned(),
        text::subject(&finding.subject),
        finding.code.to_string(),
        text::owner(finding.subject.pod.as_ref(), finding.subject.container.as_ref()),
        text::holders(&finding.holders),
    ];
    if wide {
        rest.push(finding.impact.clone());
    }
    rest.retain(|part| !part.is_empty());
    (at, verb, style, rest.join("  "))
}

fn neighbour(entry: &Neighbour) -> String {
    let device = entry.interface.name.clone();
    let device = device.unwrap_or_else(|| format!("device {}", entry.interface.index));
    let mut parts = vec![entry.ip.to_string(), entry.state.clone()];
    parts.extend(entry.mac.map(|mac| mac.to_string()));
    parts.push(format!("on {device} of netns {}", text::netns(&entry.netns)));
    parts.push(lists::owner_of_ip(entry));
    if !entry.conflict.is_empty() {
        parts.push(format!("conflict: {}", lists::conflict(entry)));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("  ")
}

fn held(tenure: &Tenure, wide: bool) -> String {
    let mut parts = vec![tenure.ip.to_string(), format!("netns {}", text::netns(&tenure.netns))];
    parts.push(text::owner(tenure.pod.as_ref(), tenure.container.as_ref()));
    if wide {
        parts.extend(tenure.netns.cookie.map(|cookie| format!("cookie {cookie}")));
        parts.extend(tenure.netns.path.as_deref().map(text::shown));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::super::sample_text;
    use super::*;

    #[test]
    fn a_line_each() {
        let text: String = sample_text("watch.jsonl")
            .lines()
            .map(|line| super::line(&serde_json::from_str(line).unwrap(), Paint(false), false))
            .collect();
        assert_eq!(
            text,
            "\
03:04:05Z  held      10.0.3.17  netns 4026532177  shop/api-0
03:10:09Z  opened    WARN  k3f9q2  firing  10.0.3.17  ip-held-by-stuck-process  shop/api-0  pid 812 java
03:05:00Z  released  10.0.3.23  netns 4026532290, netns-gone, after 6m
03:20:00Z  resolved  WARN  k3f9q2  resolved  10.0.3.17  ip-held-by-stuck-process  shop/api-0  pid 812 java
03:21:00Z  neigh     10.0.3.17  REACHABLE  0a:58:0a:00:03:11  on cni0 of netns host  shop/api-0  conflict: 0a:58:0a:00:03:11 (shop/api-0), 0a:58:0a:00:03:2a (elsewhere)
-- 12 events are missing here --
"
        );
    }
}
