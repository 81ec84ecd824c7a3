//! Neighbour entries, tenures and ranges.

use crate::cli::output::View;
use crate::cli::table::{Cell, Style, Table};
use crate::cli::text;
use crate::contract::{IpamRange, Neighbour, Tenure, Verdict};

pub(super) fn neighbours(neighbours: &[Neighbour], view: View) -> String {
    let mut table = if view.wide {
        Table::new(&["IP", "MAC", "STATE", "DEV", "NETNS", "AGE", "COOKIE", "NSID"])
    } else {
        Table::new(&["IP", "MAC", "STATE", "DEV", "NETNS", "AGE"])
    };
    for neighbour in neighbours {
        let lost = matches!(neighbour.state.as_str(), "FAILED" | "INCOMPLETE");
        let style = if lost { Style::Yellow } else { Style::Plain };
        let device = neighbour.interface.name.clone();
        let mut row = vec![
            Cell::new(neighbour.ip.to_string()),
            Cell::known(neighbour.mac),
            Cell::styled(&neighbour.state, style),
            Cell::new(device.unwrap_or_else(|| neighbour.interface.index.to_string())),
            Cell::new(text::netns(&neighbour.netns)),
            Cell::new(view.now.age(neighbour.since.as_deref())),
        ];
        if view.wide {
            row.extend([Cell::known(neighbour.netns.cookie), Cell::known(neighbour.netns.nsid)]);
        }
        table.row(row);
    }
    table.render(view.headers, view.paint)
}

pub(super) fn history(history: &[Tenure], view: View) -> String {
    let mut table = if view.wide {
        Table::new(&[
            "IP",
            "FROM",
            "TO",
            "LASTED",
            "POD",
            "NETNS",
            "ENDED BY",
            "COOKIE",
            "CONTAINER",
        ])
    } else {
        Table::new(&["IP", "FROM", "TO", "LASTED", "POD", "NETNS", "ENDED BY"])
    };
    for tenure in history {
        let to = tenure.to.as_deref();
        let lasted = match to {
            Some(to) => text::lasted(&tenure.from, to),
            None => view.now.age(Some(&tenure.from)),
        };
        let mut row = vec![
            Cell::new(tenure.ip.to_string()),
            Cell::new(view.now.clock(&tenure.from)),
            Cell::new(to.map_or_else(|| "now".to_owned(), |to| view.now.clock(to))),
            Cell::new(lasted),
            Cell::new(text::owner(tenure.pod.as_ref(), tenure.container.as_ref())),
            Cell::new(text::netns(&tenure.netns)),
            Cell::new(tenure.ended_by.as_deref().unwrap_or_default()),
        ];
        if view.wide {
            let container = tenure.container.as_ref().map(text::container);
            row.extend([
                Cell::known(tenure.netns.cookie),
                Cell::new(container.unwrap_or_default()),
            ]);
        }
        table.row(row);
    }
    table.render(view.headers, view.paint)
}

pub(super) fn ranges(ranges: &[IpamRange], view: View) -> String {
    let columns = ["NETWORK", "RANGE", "USABLE", "USED", "LEAKED", "FREE", "STORE"];
    let mut table = Table::new(&columns);
    for range in ranges {
        let style = if range.free == 0 { Style::Yellow } else { Style::Plain };
        table.row(vec![
            Cell::new(&range.network),
            Cell::new(&range.range),
            Cell::new(range.usable.to_string()),
            Cell::new(range.used.to_string()),
            Cell::new(range.leaked.to_string()),
            Cell::styled(range.free.to_string(), style),
            Cell::new(&range.store),
        ]);
    }
    table.render(view.headers, view.paint)
}

/// Whether an IP is free, and why not.
pub(super) fn verdict(verdict: &Verdict, view: View) -> String {
    let mut table = Table::new(&["IP", "FREE", "WHY"]);
    let (word, style) = if verdict.free { ("yes", Style::Plain) } else { ("no", Style::Yellow) };
    let mut reasons = verdict.reasons.iter();
    let first = reasons.next().map(String::as_str).unwrap_or_default();
    table.row(vec![Cell::new(verdict.ip.to_string()), Cell::styled(word, style), Cell::new(first)]);
    for reason in reasons {
        table.row(vec![Cell::new(""), Cell::new(""), Cell::new(reason)]);
    }
    table.render(view.headers, view.paint)
}

#[cfg(test)]
mod tests {
    use super::super::{document, plain, sample};

    #[test]
    fn neighbours_by_device() {
        let sample = sample("query-neigh.json");
        let text = document(&sample, plain(&sample));
        assert_eq!(
            text,
            "\
IP         MAC                STATE      DEV   NETNS       AGE
10.0.3.17  0a:58:0a:00:03:11  REACHABLE  cni0  host        30s
10.0.3.23  -                  FAILED     eth0  4026532177  9m
"
        );
    }

    #[test]
    fn ranges_with_what_is_left() {
        let sample = sample("query-ipam.json");
        let text = document(&sample, plain(&sample));
        assert_eq!(
            text,
            "\
NETWORK  RANGE                USABLE  USED  LEAKED  FREE  STORE
cbr0     10.0.3.2-10.0.3.254  253     251   38      2     host-local
macvlan  10.9.0.10-10.9.0.14  5       0     0       5     host-local
"
        );
    }

    #[test]
    fn a_verdict_says_why() {
        let sample = sample("check.json");
        let text = document(&sample, plain(&sample));
        assert_eq!(
            text,
            "\
IP         FREE  WHY
10.0.3.17  no    net:[4026532177], that of pod shop/api-0 has it on eth0
"
        );
    }

    #[test]
    fn history_tells_from_when_to_when() {
        let sample = sample("query-history.json");
        let text = document(&sample, plain(&sample));
        assert_eq!(
            text,
            "\
IP         FROM                  TO                    LASTED  POD         NETNS       ENDED BY
10.0.3.17  2025-12-27 01:00:00Z  now                   6d      shop/api-0  4026532177  -
10.0.3.17  2025-12-20 11:00:00Z  2025-12-27 00:58:31Z  6d      shop/api-1  4026532177  netns-gone
"
        );
    }
}
