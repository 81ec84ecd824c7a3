//! The fields of a journal entry about a change of a finding. Pure.
//!
//! By `MESSAGE_ID`, `journalctl -x` shows the runbook from `deploy/systemd/ipwatch.catalog`.

use sha2::{Digest as _, Sha256};

use super::{pod, sentence, severity, status};
use crate::escape::escape;
use crate::finding::{Change, ChangeKind, Code, Finding, Severity};
use crate::sinks::cut;

/// Maximum length of a field, in bytes: an entry must fit into a datagram.
const LONGEST: usize = 8 * 1024;

/// The fields, in this order; unknown fields are left out. All values are escaped, because journalctl prints to
/// terminals.
#[must_use]
pub fn fields(change: &Change) -> Vec<(&'static str, String)> {
    let Change { change: kind, finding, .. } = change;
    let kind = match kind {
        ChangeKind::Opened => "opened",
        ChangeKind::Updated => "updated",
        ChangeKind::Resolved => "resolved",
    };
    let mut fields = vec![
        ("MESSAGE", sentence(change)),
        ("MESSAGE_ID", message_id(finding.code)),
        ("PRIORITY", priority(change).to_string()),
        ("SYSLOG_IDENTIFIER", "ipwatch".to_owned()),
        ("IPWATCH_CHANGE", kind.to_owned()),
        ("IPWATCH_ID", finding.id.clone()),
        ("IPWATCH_CODE", finding.code.to_string()),
        ("IPWATCH_SEVERITY", severity(finding.severity).to_owned()),
        ("IPWATCH_STATUS", status(finding.status).to_owned()),
        ("IPWATCH_SINCE", finding.since.clone()),
        ("IPWATCH_IMPACT", escape(&finding.impact).into_owned()),
    ];
    let mut optional =
        |name, value: Option<String>| fields.extend(value.map(|value| (name, value)));
    optional("IPWATCH_ACTION", Some(actions(finding)).filter(|actions| !actions.is_empty()));
    optional("IPWATCH_CAUSED_BY", finding.caused_by.clone());
    if let Some(ack) = &finding.acked {
        optional("IPWATCH_ACKED", Some(ack.at.clone()));
        optional("IPWATCH_ACKED_UID", ack.uid.map(|uid| uid.to_string()));
        optional("IPWATCH_ACKED_UNTIL", ack.until.clone());
        optional("IPWATCH_ACKED_NOTE", ack.note.as_deref().map(|note| escape(note).into_owned()));
    }
    subject(finding, &mut optional);
    fields.into_iter().map(|(name, value)| (name, cut(value, LONGEST))).collect()
}

/// The remediation steps, one a line. A line that does not fit is left out: a part of a command is another command.
fn actions(finding: &Finding) -> String {
    let advice = finding.advice();
    let lines: Vec<String> = advice.iter().map(|step| escape(&step.line()).into_owned()).collect();
    let all = lines.join("\n");
    if all.len() <= LONGEST {
        return all;
    }
    let more = format!("For further steps see ipwatch explain {}", finding.id);
    let mut text = String::new();
    for line in lines {
        if text.len() + line.len() + 1 + more.len() > LONGEST {
            break;
        }
        text.push_str(&line);
        text.push('\n');
    }
    text + &more
}

fn subject(finding: &Finding, optional: &mut impl FnMut(&'static str, Option<String>)) {
    let subject = &finding.subject;
    let text = |text: &Option<String>| text.as_deref().map(|text| escape(text).into_owned());
    // A field may occur several times in an entry: `journalctl IPWATCH_IP=` matches each.
    subject.ips().for_each(|ip| optional("IPWATCH_IP", Some(ip.to_string())));
    if let Some(netns) = &subject.netns {
        optional("IPWATCH_NETNS", netns.inode.map(|inode| inode.to_string()));
        optional("IPWATCH_NETNS_COOKIE", netns.cookie.map(|cookie| cookie.to_string()));
    }
    optional("IPWATCH_POD", pod(finding));
    optional("IPWATCH_POD_UID", subject.pod.as_ref().and_then(|pod| text(&pod.uid)));
    optional("IPWATCH_CONTAINER", subject.container.as_ref().and_then(|one| text(&one.id)));
    optional("IPWATCH_NETWORK", text(&subject.network));
    if let Some(holder) = finding.holders.first() {
        optional("IPWATCH_HOLDER", Some(escape(&holder.words()).into_owned()));
        optional("IPWATCH_HOLDER_PID", holder.pid.map(|pid| pid.to_string()));
        optional("IPWATCH_HOLDER_COMM", text(&holder.comm));
    }
}

/// The syslog priority. Only findings that page have `crit`.
fn priority(change: &Change) -> u8 {
    const CRITICAL: u8 = 2;
    const WARNING: u8 = 4;
    const INFO: u8 = 6;
    let finding = &change.finding;
    match finding.severity {
        _ if change.change == ChangeKind::Resolved => INFO,
        _ if finding.pages() => CRITICAL,
        Severity::Critical | Severity::Warning => WARNING,
        Severity::Info => INFO,
    }
}

/// The `MESSAGE_ID` of a code: a UUID (version 8, RFC 9562) derived from its name, so that it never changes.
#[must_use]
pub fn message_id(code: Code) -> String {
    let digest =
        Sha256::new().chain_update("ipwatch finding ").chain_update(code.as_str()).finalize();
    let mut id = [0_u8; 16];
    id.copy_from_slice(&digest[..16]);
    id[6] = (id[6] & 0x0f) | 0x80;
    id[8] = (id[8] & 0x3f) | 0x80;
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
