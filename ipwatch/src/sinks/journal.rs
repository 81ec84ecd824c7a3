//! Logs findings: one line each on stderr, or an entry with fields if stderr is connected to the journal.

pub mod entry;
mod native;
mod pace;

pub(crate) use native::note;
pub use native::to_the_journal;
pub use pace::{Pace, User};

use std::fmt::Write as _;

use crate::contract::holders_in_short;
use crate::escape::escape;
use crate::finding::{Change, ChangeKind, Finding, Severity, Status};
use crate::remedy::said;
use crate::sinks::cut;

/// The target of the log lines: `RUST_LOG=ipwatch::finding=warn` selects only these.
pub const TARGET: &str = "ipwatch::finding";

/// Maximum length of each text in a line, in bytes.
const LONGEST: usize = 4 * 1024;

/// Writes one line or one entry. A resolved finding is logged as information, whatever its severity was.
pub fn write(change: &Change) {
    // The level is part of a static description of the line, so each needs a call of its own.
    macro_rules! line {
        ($level:ident) => {{
            if tracing::enabled!(target: TARGET, tracing::Level::$level) && native::send(change) {
                return;
            }
            let finding = &change.finding;
            let subject = &finding.subject;
            let holder = finding.holders.first();
            tracing::event!(
                target: TARGET,
                tracing::Level::$level,
                id = finding.id.as_str(),
                code = finding.code.as_str(),
                severity = severity(finding.severity),
                status = status(finding.status),
                ip = subject.ip.map(tracing::field::display),
                pod = pod(finding).map(short).map(tracing::field::display),
                netns = subject.netns.as_ref().and_then(|netns| netns.inode),
                holder.pid = holder.and_then(|holder| holder.pid),
                holder.comm = holder
                    .and_then(|holder| holder.comm.as_deref())
                    .map(|comm| short(escape(comm).into_owned()))
                    .map(tracing::field::display),
                caused_by = finding.caused_by.as_deref(),
                "{}",
                short(sentence(change))
            )
        }};
    }
    match change.finding.severity {
        _ if change.change == ChangeKind::Resolved => line!(INFO),
        Severity::Critical => line!(ERROR),
        Severity::Warning => line!(WARN),
        Severity::Info => line!(INFO),
    }
}

fn short(text: String) -> String {
    cut(text, LONGEST)
}

/// The line for people: `opened: ip-held-by-stuck-process 10.0.3.17 of shop/api-0, held by pid 812 java`.
pub(super) fn sentence(change: &Change) -> String {
    let finding = &change.finding;
    let mut line = String::new();
    let verb = match change.change {
        ChangeKind::Opened => "opened",
        ChangeKind::Updated => "updated",
        ChangeKind::Resolved => "resolved",
    };
    // Writing to a String cannot fail.
    let _ = write!(line, "{verb}: {}", finding.code);
    if let Some(about) = about(finding) {
        let _ = write!(line, " {about}");
    }
    if let Some(pod) = named(finding) {
        let _ = write!(line, " of {}", said(&pod));
    }
    if let Some(holders) = holders_in_short(&finding.holders) {
        let _ = write!(line, ", held by {}", escape(&holders));
    }
    if finding.acked.is_some() {
        line.push_str(", acknowledged");
    }
    if change.held_back > 0 {
        let s = if change.held_back == 1 { "" } else { "s" };
        let _ = write!(line, " ({} earlier change{s} not reported)", change.held_back);
    }
    line
}

/// The IP of the finding, or its network if it is about one.
pub(super) fn about(finding: &Finding) -> Option<String> {
    let subject = &finding.subject;
    if let Some(ip) = subject.ip {
        return Some(ip.to_string());
    }
    let network = subject.network.as_deref().filter(|_| subject.netns.is_none())?;
    let several = subject.several().map(|count| format!(" ({count} IPs)")).unwrap_or_default();
    Some(format!("network {}{several}", said(network)))
}

pub(super) fn pod(finding: &Finding) -> Option<String> {
    named(finding).map(|name| escape(&name).into_owned())
}

/// The pod's name, unescaped.
pub(super) fn named(finding: &Finding) -> Option<String> {
    let pod = finding.subject.pod.as_ref()?;
    let name = pod.name.as_deref()?;
    Some(match &pod.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    })
}

pub(super) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

pub(super) fn status(status: Status) -> &'static str {
    match status {
        Status::Pending => "pending",
        Status::Firing => "firing",
        Status::Resolved => "resolved",
    }
}

#[cfg(test)]
pub(in crate::sinks) mod tests;
