//! What a row leads to: the question for the daemon that a key asks about it.

use super::known::Known;
use super::rows::Row;
use crate::api::{Past, Prefix, Selector};
use crate::contract::{Netns, Pod};
use crate::remedy::said;

/// A question that a row leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    Explain(String),
    Tree(Selector),
    History(Past),
    /// The reservations of a network.
    Network(String),
}

impl Question {
    /// The command that prints the answer.
    pub(super) fn command(&self) -> String {
        let of = |what: &str, name: &Option<String>| match name {
            Some(name) => format!("{what} {}", said(name)),
            None => what.to_owned(),
        };
        match self {
            Question::Explain(what) => format!("ipwatch explain {}", said(what)),
            Question::Network(network) => format!("ipwatch query ipam {}", said(network)),
            Question::Tree(selector) => {
                let what = match selector {
                    Selector::Ip(prefix) => of("ip", &prefix.map(|prefix| prefix.to_string())),
                    Selector::Netns(name) => of("netns", name),
                    Selector::Pod(name) => of("pod", name),
                    Selector::Pid(pid) => format!("pid {pid}"),
                };
                format!("ipwatch query {what} -o tree")
            }
            Question::History(Past { ip: Some(ip), .. }) => format!("ipwatch query history {ip}"),
            Question::History(past) => of("ipwatch query history --pod", &past.pod),
        }
    }
}

/// What a row tells when it is opened.
pub(super) fn explain(known: &Known, row: Row) -> Option<Question> {
    Some(match row {
        Row::Range(at) => Question::Network(known.range(at)?.network.clone()),
        Row::Finding { at, .. } => Question::Explain(known.finding(at)?.id.clone()),
        Row::Logged(number) => Question::Explain(known.tenure(number)?.ip.to_string()),
        Row::Conflict(ip) => match known.conflicts.get(&ip)?.findings.first() {
            Some(at) => Question::Explain(known.finding(*at)?.id.clone()),
            None => Question::Explain(ip.to_string()),
        },
        Row::Unjudged(at) => Question::Explain(known.blind().get(at)?.to_string()),
        Row::Source(_) | Row::Unseen(_) => return None,
    })
}

/// The tree of a row: that of its netns, else of its IP or pod.
pub(super) fn tree(known: &Known, row: Row) -> Option<Question> {
    let by_ip = |ip| Selector::Ip(Some(Prefix::host(ip)));
    let selector = match row {
        Row::Finding { at, .. } => {
            let subject = &known.finding(at)?.subject;
            let pod = subject.pod.as_ref().and_then(pod_name);
            let netns = subject.netns.as_ref().and_then(netns_name);
            netns
                .or(subject.ip.map(by_ip))
                .or(subject.reservations.first().map(|one| by_ip(one.ip)))
                .or(pod.map(|name| Selector::Pod(Some(name))))?
        }
        Row::Logged(number) => {
            let tenure = known.tenure(number)?;
            netns_name(&tenure.netns).unwrap_or_else(|| by_ip(tenure.ip))
        }
        Row::Conflict(ip) => by_ip(ip),
        _ => return None,
    };
    Some(Question::Tree(selector))
}

fn netns_name(netns: &Netns) -> Option<Selector> {
    let inode = netns.inode.map(|inode| inode.to_string());
    let name = netns.cookie.map(|cookie| cookie.to_string()).or(inode);
    Some(Selector::Netns(Some(name?)))
}

fn pod_name(pod: &Pod) -> Option<String> {
    Some(format!("{}/{}", pod.namespace.as_deref()?, pod.name.as_deref()?))
}

/// The history of a row: of its IP, else of its pod.
pub(super) fn history(known: &Known, row: Row) -> Option<Question> {
    let ip = match row {
        Row::Finding { at, .. } => {
            let subject = &known.finding(at)?.subject;
            let ip = subject.ips().next();
            if ip.is_none() {
                let pod = Some(subject.pod.as_ref().and_then(pod_name)?);
                return Some(Question::History(Past { pod, ..Past::default() }));
            }
            ip?
        }
        Row::Logged(number) => known.tenure(number)?.ip,
        Row::Conflict(ip) => ip,
        _ => return None,
    };
    let ip = Some(Prefix::host(ip));
    Some(Question::History(Past { ip, ..Past::default() }))
}
