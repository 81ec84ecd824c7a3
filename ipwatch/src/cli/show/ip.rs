//! `query ip IP`: everything known about one IP, whether it is up nowhere, once or several times.

use std::net::IpAddr;

use super::card::{self, Card};
use crate::cli::table::Style;
use crate::cli::text;
use crate::cli::view::View;
use crate::contract::{Address, IpamEntry, Neighbour, Verdict};
use crate::finding::{Code, Finding};

/// Answers to other questions about the IP.
#[derive(Debug, Default)]
pub(in crate::cli) struct Around {
    /// Its neighbour entries.
    pub(in crate::cli) neighbours: Vec<Neighbour>,
    /// All open findings.
    pub(in crate::cli) findings: Vec<Finding>,
    /// Its reservations.
    pub(in crate::cli) reservations: Vec<IpamEntry>,
    /// The answer of `check`.
    pub(in crate::cli) verdict: Option<Verdict>,
}

/// The card. Unknown lines are left out.
pub(in crate::cli) fn render(
    ip: IpAddr,
    addresses: &[Address],
    around: &Around,
    view: View,
) -> String {
    let mut card = Card::new(view.paint);
    let about: Vec<&Finding> = (around.findings.iter())
        .filter(|finding| {
            let named = addresses.iter().any(|address| address.findings.contains(&finding.id));
            finding.subject.has_ip(ip) || named
        })
        .collect();
    let (verdict, style) = state(addresses, around, &about);
    // Consequences of a finding that is shown are left to `explain`.
    let follows = |finding: &Finding| {
        let cause = finding.caused_by.as_deref();
        cause.is_some_and(|cause| about.iter().any(|one| one.id == cause))
    };
    let about: Vec<&Finding> = about.iter().copied().filter(|one| !follows(one)).collect();
    card.title(&ip.to_string(), &verdict, style);
    for (at, address) in addresses.iter().enumerate() {
        if at > 0 {
            card.out.push('\n');
        }
        card.address(address, view);
    }
    for entry in &around.reservations {
        let shown = addresses.iter().filter_map(|address| address.reservation.as_ref());
        if !shown.into_iter().any(|one| one.key.as_deref() == Some(&entry.key)) {
            card.line("ipam", &reserved(entry, view));
        }
    }
    for neighbour in &around.neighbours {
        card.line("neigh", &card::entry(neighbour, view));
    }
    // A finding that an address names, and that has been resolved since, is shown by its id.
    let mut ids: Vec<&str> = about.iter().map(|finding| finding.id.as_str()).collect();
    let named = addresses.iter().flat_map(|address| &address.findings).map(String::as_str);
    ids.extend(named.filter(|id| !about.iter().any(|finding| finding.id == *id)));
    ids.dedup();
    card.findings(ids.iter().copied(), &around.findings, view);
    card.out
}

/// The most important fact about the IP.
fn state(addresses: &[Address], around: &Around, about: &[&Finding]) -> (String, Style) {
    let duplicate = about.iter().any(|finding| finding.code == Code::IpDuplicate);
    match addresses {
        _ if duplicate => {
            let count = addresses.len();
            (format!("DUPLICATE: {count} network namespaces have it"), Style::Red)
        }
        [] => of_nobody(around),
        [one] => {
            let (verdict, style) = card::verdict_on(one);
            (verdict.to_owned(), style)
        }
        _ if !about.is_empty() => ("HELD: unsafe to hand out".to_owned(), Style::Red),
        several => (format!("IN USE in {} network namespaces", several.len()), Style::Plain),
    }
}

/// The verdict for an IP that is configured nowhere.
fn of_nobody(around: &Around) -> (String, Style) {
    let leaked = |entry: &IpamEntry| entry.agree.as_deref() == Some("leaked");
    if around.reservations.iter().any(leaked) {
        return ("LEAKED: reserved for a container that is gone".to_owned(), Style::Yellow);
    }
    if !around.reservations.is_empty() {
        return ("RESERVED: nobody on this node has it".to_owned(), Style::Plain);
    }
    let Some(verdict) = &around.verdict else {
        return ("nobody on this node has it".to_owned(), Style::Plain);
    };
    match verdict.reasons.first() {
        Some(why) => (format!("NOT FREE: {why}"), Style::Yellow),
        None if verdict.in_pool == Some(false) => {
            let text = "FREE: nobody on this node has it; it is in no pool of this node";
            (text.to_owned(), Style::Plain)
        }
        None => {
            ("FREE: nobody on this node has it, and no store reserves it".to_owned(), Style::Plain)
        }
    }
}

/// A reservation of an IP that is not up in the netns of its container.
fn reserved(entry: &IpamEntry, view: View) -> String {
    let mut out = format!("{} {} reserves it", entry.store, entry.network);
    if let Some(id) = &entry.container_id {
        out.push_str(&format!(" for {}", text::cut(id, 12)));
    }
    if let Some(pod) = &entry.pod {
        out.push_str(&format!(" of {}", text::pod(pod)));
    }
    let age = view.now.age(entry.since.as_deref());
    if !age.is_empty() {
        out.push_str(&format!(" for {age}"));
    }
    match entry.agree.as_deref() {
        Some("leaked") => out.push_str(", leaked"),
        Some("idle") => out.push_str(", nobody has it"),
        Some("parked") => out.push_str(", parked while it is held"),
        Some("held-by-another") => out.push_str(", another one has it"),
        _ => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{plain, sample};
    use super::*;
    use crate::contract::Body;

    fn sampled() -> (Address, View, Vec<IpamEntry>) {
        let document = sample("query-ip.json");
        let view = plain(&document);
        let Body::Addresses(mut list) = document.body else { panic!("addresses") };
        (list.swap_remove(0), view, sample("query-ipam.json").reservations)
    }

    fn first(text: &str) -> &str {
        text.lines().next().unwrap()
    }

    #[test]
    fn a_duplicate_shows_both_sides_and_its_finding() {
        let (address, view, _) = sampled();
        let mut other = address.clone();
        other.netns.inode = Some(4_026_532_999);
        let Body::Findings(mut findings) = sample("scan.json").body else { panic!("findings") };
        findings[0].code = Code::IpDuplicate;
        findings[0].subject.ip = address.ip;
        let around = Around { findings, ..Around::default() };
        let text = render(address.ip.unwrap(), &[address, other], &around, view);
        assert_eq!(first(&text), "10.0.3.17   DUPLICATE: 2 network namespaces have it");
        assert_eq!(text.matches("\nkernel   netns ").count(), 2, "{text}");
        assert!(text.contains("netns 4026532999") && text.contains("ip-duplicate"), "{text}");
        let once = text.lines().filter(|line| line.starts_with("finding ")).count();
        assert_eq!(once, 1 + text.matches("ip-held").count(), "{text}");
    }

    #[test]
    fn a_leaked_ip_is_not_nowhere() {
        let (address, view, reservations) = sampled();
        assert_eq!(reservations[0].agree.as_deref(), Some("leaked"));
        let around = Around { reservations, ..Around::default() };
        let text = render(address.ip.unwrap(), &[], &around, view);
        assert_eq!(first(&text), "10.0.3.17   LEAKED: reserved for a container that is gone");
        assert!(text.contains("\nipam     host-local cbr0 reserves it for 3d1f2a9d7e6f"), "{text}");
        assert!(text.contains(", leaked"), "{text}");
    }

    #[test]
    fn free_is_said_only_of_what_was_asked_and_answered() {
        let (address, view, _) = sampled();
        let ip = address.ip.unwrap();
        let Body::Verdict(mut verdict) = sample("check.json").body else { panic!("verdict") };
        verdict.reasons.clear();
        let around =
            |verdict: &Verdict| Around { verdict: Some(verdict.clone()), ..Around::default() };
        let free = render(ip, &[], &around(&verdict), view);
        assert_eq!(
            first(&free),
            "10.0.3.17   FREE: nobody on this node has it, and no store reserves it"
        );
        verdict.in_pool = Some(false);
        let nowhere = render(ip, &[], &around(&verdict), view);
        assert!(first(&nowhere).ends_with("it is in no pool of this node"), "{nowhere}");
        verdict.reasons.push("netlink does not answer: nobody knows".to_owned());
        let blind = render(ip, &[], &around(&verdict), view);
        assert_eq!(first(&blind), "10.0.3.17   NOT FREE: netlink does not answer: nobody knows");
        let silent = render(ip, &[], &Around::default(), view);
        assert_eq!(first(&silent), "10.0.3.17   nobody on this node has it");
    }
}
