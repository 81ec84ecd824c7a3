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

/// Longest text of a change, in characters. A syslog message may have 1,024 bytes (RFC 3164); current daemons accept more.
const LONGEST: usize = 900;

/// Logs the result of an item. Returns `false` if neither the journal nor syslog accepts it.
pub(super) fn tell(item: &FixItem, who: &Who, record: &Path) -> bool {
    let text = format!(
        "fix: {} (finding {} {}); by {}, record {}",
        sentence(item),
        item.code,
        item.finding,
        who.words(),
        said(&record.display().to_string())
    );
    let cut: String = escape(&text).chars().take(LONGEST).collect();
    let text = format!("{cut}{}", end_of_quotation(&cut));
    let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
    let fields = [
        ("MESSAGE", text.clone()),
        ("PRIORITY", (PRIORITY & 7).to_string()),
        ("SYSLOG_FACILITY", (PRIORITY >> 3).to_string()),
        ("SYSLOG_IDENTIFIER", "ipwatch".to_owned()),
        ("IPWATCH_FIX", record.display().to_string()),
        ("IPWATCH_ID", item.finding.clone()),
        ("IPWATCH_CODE", item.code.to_string()),
        ("IPWATCH_FIX_UID", who.uid.to_string()),
        ("IPWATCH_FIX_LOGIN_UID", number(who.login_uid)),
        ("IPWATCH_FIX_SUDO_USER", who.sudo_user.clone().unwrap_or_default()),
        ("IPWATCH_FIX_COMMAND", who.command.join(" ")),
    ];
    journal::note(&fields) || syslog(&text)
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
mod tests {
    use super::*;
    use crate::contract::Code;

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
}
