//! The ranges of the IPAM, and whether kernel and runtime agree with its reservations.

use crate::cli::table::{Cell, Style, Table};
use crate::cli::text;
use crate::cli::view::View;
use crate::contract::{Document, Held, IpamEntry, IpamHolder, IpamNetwork, IpamRange, Verdict};
use crate::escape::escape;

/// Ranges, followed by networks without one and by reservations, if there are any.
pub(super) fn ipam(ranges: &[IpamRange], document: &Document, view: View) -> String {
    let Document { reservations, networks, .. } = document;
    let mut parts = Vec::new();
    if !ranges.is_empty() || (reservations.is_empty() && networks.is_empty()) {
        parts.push(of_ranges(ranges, view));
    }
    if !networks.is_empty() {
        parts.push(of_networks(networks, view));
    }
    if !reservations.is_empty() {
        parts.push(of_reservations(reservations, view));
    }
    parts.join(if view.headers { "\n" } else { "" })
}

fn of_ranges(ranges: &[IpamRange], view: View) -> String {
    let mut columns = vec!["NETWORK", "RANGE", "USABLE", "USED", "LEAKED", "HELD", "FREE", "STORE"];
    if view.wide {
        columns.push("FROM");
    }
    let mut table = Table::new(&columns);
    for range in ranges {
        let leaked = if range.leaked > Some(0) { Style::Yellow } else { Style::Plain };
        let held = if range.held > Some(0) { Style::Yellow } else { Style::Plain };
        // The number of assignable IPs; if it is unknown what is held, the store's number of free IPs.
        let left = range.available.unwrap_or(range.free);
        let free = if left == 0 { Style::Red } else { Style::Plain };
        let mut row = vec![
            Cell::new(&range.network),
            Cell::new(&range.range),
            Cell::new(range.usable.to_string()),
            Cell::new(range.used.to_string()),
            Cell::styled(known(range.leaked), leaked),
            Cell::styled(known(range.held), held),
            Cell::styled(left.to_string(), free),
            Cell::new(&range.store),
        ];
        if view.wide {
            row.push(Cell::new(text::shown(range.path.as_deref().unwrap_or_default())));
        }
        table.row(row);
    }
    table.within(view).render(view.headers, view.paint)
}

fn of_networks(networks: &[IpamNetwork], view: View) -> String {
    let mut table = Table::new(&["NETWORK WITHOUT A RANGE", "RESERVED", "STORE"]);
    for one in networks {
        let reserved = Cell::new(one.reserved.to_string());
        table.row(vec![Cell::new(&one.network), reserved, Cell::new(&one.store)]);
    }
    table.render(view.headers, view.paint)
}

/// The answer to `ipwatch-ipam`. No command asks for it.
pub(super) fn held(held: &Held, view: View) -> String {
    let mut table = Table::new(&["IP", "STATE", "WHO"]);
    for one in held.addresses.iter().chain(&held.parked) {
        let state = format!("{:?}", one.state).to_lowercase();
        table.row(vec![Cell::new(one.ip.to_string()), Cell::new(state), Cell::new(&one.who)]);
    }
    table.within(view).render(view.headers, view.paint)
}

/// A number, or nothing where it is not known.
fn known(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn of_reservations(reservations: &[IpamEntry], view: View) -> String {
    let mut columns = vec!["IP", "NETWORK", "RESERVED FOR", "KERNEL", "RUNTIME", "AGREE", "AGE"];
    if view.wide {
        columns.extend(["STORE", "KEY"]);
    }
    let mut table = Table::new(&columns);
    for entry in reservations {
        let agree = entry.agree.as_deref().unwrap_or("unknown");
        let style = match agree {
            "held-by-another" => Style::Red,
            "leaked" => Style::Yellow,
            _ => Style::Plain,
        };
        let mut row = vec![
            Cell::new(entry.ip.to_string()),
            Cell::new(&entry.network),
            Cell::new(reserved_for(entry)),
            Cell::new(in_kernel(&entry.kernel)),
            Cell::new(entry.runtime.as_deref().unwrap_or("unknown")),
            Cell::styled(agree, style),
            Cell::new(view.now.age(entry.since.as_deref())),
        ];
        if view.wide {
            row.extend([Cell::new(&entry.store), Cell::new(text::shown(&entry.key))]);
        }
        table.row(row);
    }
    table.within(view).render(view.headers, view.paint)
}

fn reserved_for(entry: &IpamEntry) -> String {
    let container = entry.container_id.as_deref().map(|id| text::cut(id, 12).to_owned());
    entry.pod.as_ref().map(text::pod).or(container).unwrap_or_default()
}

/// The holders of the IP: the first, and the number of others.
fn in_kernel(holders: &[IpamHolder]) -> String {
    let Some((first, more)) = holders.split_first() else { return "nobody".to_owned() };
    let named = text::owner(first.pod.as_ref(), first.container.as_ref());
    let whose = if named.is_empty() { text::netns(&first.netns) } else { named };
    if more.is_empty() { whose } else { format!("{whose} and {} more", more.len()) }
}

/// Whether an IP is free, and why not.
pub(super) fn verdict(verdict: &Verdict) -> String {
    let word = if verdict.free { "free" } else { "NOT FREE" };
    let pool = match verdict.in_pool {
        Some(false) => ", in no pool of this node".to_owned(),
        _ if verdict.pools.is_empty() => String::new(),
        _ => format!(", in the pool of {}", escape(&verdict.pools.join(", "))),
    };
    let mut text = format!("{}  {word}{pool}\n", verdict.ip);
    for reason in &verdict.reasons {
        text.push_str(&format!("  {}\n", escape(reason)));
    }
    for id in &verdict.findings {
        text.push_str(&format!("  see: ipwatch explain {}\n", escape(id)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{document, plain, sample};
    use crate::contract::{Body, IpamNetwork};

    #[test]
    fn ranges_and_whether_all_agree_on_what_is_reserved() {
        let sample = sample("query-ipam.json");
        let text = document(&sample, plain(&sample));
        assert_eq!(
            text,
            "\
NETWORK  RANGE                USABLE  USED  LEAKED  HELD  FREE  STORE
cbr0     10.0.3.2-10.0.3.254  253     251   38      1     1     host-local
macvlan  10.9.0.10-10.9.0.14  5       0     0       -     5     host-local

IP         NETWORK  RESERVED FOR  KERNEL      RUNTIME  AGREE   AGE
10.0.3.18  cbr0     3d1f2a9d7e6f  nobody      denied   leaked  12d
10.0.3.17  cbr0     shop/api-0    shop/api-0  alive    yes     6d
"
        );
    }

    #[test]
    fn without_ranges_there_are_reservations_alone() {
        let mut sample = sample("query-ipam.json");
        sample.body = Body::Ranges(Vec::new());
        let text = document(&sample, plain(&sample));
        assert!(text.starts_with("IP "), "{text}");
    }

    #[test]
    fn networks_without_a_range_have_a_line_each() {
        let mut sample = sample("query-ipam.json");
        sample.body = Body::Ranges(Vec::new());
        let network = |network: &str, reserved| IpamNetwork {
            store: "cilium".into(),
            network: network.into(),
            reserved,
        };
        sample.networks = vec![network("cilium", 41)];
        let text = document(&sample, plain(&sample));
        let begins = "NETWORK WITHOUT A RANGE  RESERVED  STORE\ncilium                   41        cilium\n\nIP ";
        assert!(text.starts_with(begins), "{text}");
    }

    #[test]
    fn a_verdict_says_why_and_where_to_read_on() {
        let sample = sample("check.json");
        let text = document(&sample, plain(&sample));
        let begins = "10.0.3.17  NOT FREE, in the pool of cbr0\n  net:[4026532177] (pod shop/api-0) has it on eth0\n";
        assert!(text.starts_with(begins), "{text}");
        assert!(text.ends_with("ipwatch explain k3f9xq2mzt7ahw4c\n"), "{text}");
    }
}
