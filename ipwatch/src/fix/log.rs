//! Logs each change to the journal or, without it, to syslog. The record has the changes as well.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

use super::who::Who;
use crate::contract::{FixItem, FixState, FixTarget};
use crate::escape::escape;
use crate::remedy::{end_of_quotation, said};
use crate::sinks::journal;

/// The socket of syslog.
const SYSLOG: &str = "/dev/log";

/// Facility `authpriv`, for what privileged commands do, and severity `notice` (RFC 5424).
const PRIORITY: u8 = (10 << 3) | 5;

/// Longest text of a change, in bytes. A syslog message may have 1,024 bytes (RFC 3164); current daemons accept more.
const LONGEST: usize = 900;
/// Longest value of another field, in bytes: together they must fit into a datagram.
const LONGEST_FIELD: usize = 8 * 1024;

/// Logs the result of an item. Returns `false` if neither the journal nor syslog accepts it.
pub(super) fn tell(item: &FixItem, who: &Who, record: &Path) -> bool {
    let fields = fields(item, who, record);
    let [(_, text), ..] = &fields;
    journal::note(&fields) || syslog(text)
}

/// The fields of the entry; the first is the line for people. All values are escaped and short enough, together, for a
/// datagram: a user's name comes from the environment, a word of the command line from wherever it was pasted from.
fn fields(item: &FixItem, who: &Who, record: &Path) -> [(&'static str, String); 11] {
    let text = format!(
        "fix: {} (finding {} {}); by {}, record {}",
        sentence(item),
        item.code,
        item.finding,
        who.words(),
        said(&record.display().to_string())
    );
    let text = shown(&text, LONGEST);
    let field = |text: &str| shown(text, LONGEST_FIELD);
    let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
    [
        ("MESSAGE", text),
        ("PRIORITY", (PRIORITY & 7).to_string()),
        ("SYSLOG_FACILITY", (PRIORITY >> 3).to_string()),
        ("SYSLOG_IDENTIFIER", "ipwatch".to_owned()),
        ("IPWATCH_FIX", field(&record.display().to_string())),
        ("IPWATCH_ID", item.finding.clone()),
        ("IPWATCH_CODE", item.code.to_string()),
        ("IPWATCH_FIX_UID", who.uid.to_string()),
        ("IPWATCH_FIX_LOGIN_UID", number(who.login_uid)),
        ("IPWATCH_FIX_SUDO_USER", field(who.sudo_user.as_deref().unwrap_or_default())),
        ("IPWATCH_FIX_COMMAND", field(&who.command.join(" "))),
    ]
}

/// Escaped, and cut; a quotation that was cut is closed.
fn shown(text: &str, most: usize) -> String {
    let text = escape(text);
    let cut = &text[..text.floor_char_boundary(most)];
    format!("{cut}{}", end_of_quotation(cut))
}

fn syslog(text: &str) -> bool {
    let line = format!("<{PRIORITY}>ipwatch[{}]: {text}", std::process::id());
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(line.as_bytes(), SYSLOG)
    });
    sent.is_ok()
}

/// What was done, in one line for people.
pub(super) fn sentence(item: &FixItem) -> String {
    match &item.target {
        FixTarget::FreeReservation { ip, network, container_id, .. } => {
            let did = match item.state {
                FixState::Restored => "restored",
                FixState::Stranded => "moved away, and could not put back, what was at",
                _ => "freed",
            };
            format!("{did} {ip} in {} of container {}", said(network), said(container_id))
        }
        FixTarget::FreeAllocation { ip, network, store, container_id, .. } => {
            let did = match item.state {
                FixState::Restored => "restored",
                FixState::Unknown => "may have freed",
                _ => "freed",
            };
            let (store, network) = (said(store), said(network));
            format!("{did} {ip} in {store} {network} of container {}", said(container_id))
        }
        FixTarget::UnmountNetns { path, netns } => {
            let inode = netns.inode.unwrap_or_default();
            format!("unmounted net:[{inode}] at {}", said(path))
        }
        FixTarget::DeletePair { interface, peer } => {
            let name = |name: &Option<String>| said(name.as_deref().unwrap_or_default());
            format!("deleted the pair {} and {}", name(&interface.name), name(&peer.name))
        }
        FixTarget::Nothing { about } => format!("did nothing about {}", said(about)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::contract::Code;

    /// The entry about an item, when who ran the command and where the record is are said by this word as well.
    pub(crate) fn entry(item: &FixItem, word: &str) -> Vec<(&'static str, String)> {
        let who = Who {
            sudo_user: Some(word.to_owned()),
            command: vec![word.to_owned(); 2],
            ..Who::default()
        };
        fields(item, &who, Path::new(word)).into()
    }

    #[test]
    fn a_change_is_one_line_whatever_it_is_called() {
        let item = FixItem {
            finding: "k3f9q2m7x5wz4a6b".to_owned(),
            code: Code::NetnsLeaked,
            target: FixTarget::UnmountNetns {
                path: "/run/netns/a\nb $(id)".to_owned(),
                netns: crate::contract::Netns { inode: Some(7), ..Default::default() },
            },
            state: FixState::Done,
            why: None,
            proof: Vec::new(),
        };
        assert_eq!(sentence(&item), r#"unmounted net:[7] at "/run/netns/a\x0ab \x24(id)""#);
    }

    #[test]
    fn whoever_ran_it_steers_no_terminal_by_his_name_or_his_words() {
        let item = FixItem {
            finding: "k3f9q2m7x5wz4a6b".to_owned(),
            code: Code::NetnsLeaked,
            target: FixTarget::Nothing { about: String::new() },
            state: FixState::Done,
            why: None,
            proof: Vec::new(),
        };
        let entry = entry(&item, &format!("a\u{1b}[2J\nMESSAGE={}", "x".repeat(64 << 10)));
        for (field, text) in &entry {
            assert!(!text.contains(char::is_control), "{field}: {text:?}");
            assert!(text.len() <= LONGEST_FIELD + 1, "{field}: {} bytes", text.len());
        }
        let named = entry.iter().filter(|(_, text)| text.starts_with("a\\x1b[2J\\x0aMESSAGE="));
        let named: Vec<&str> = named.map(|(field, _)| *field).collect();
        assert_eq!(named, ["IPWATCH_FIX", "IPWATCH_FIX_SUDO_USER", "IPWATCH_FIX_COMMAND"]);
    }
}
