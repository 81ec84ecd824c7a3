//! Neighbour entries and tenures.

use crate::cli::table::{Cell, Style, Table};
use crate::cli::text;
use crate::cli::view::View;
use crate::contract::{Claimant, IpamHolder, Neighbour, Tenure};

pub(super) fn neighbours(neighbours: &[Neighbour], view: View) -> String {
    let mut table = if view.wide {
        Table::new(&[
            "IP", "MAC", "STATE", "DEV", "NETNS", "AGE", "POD", "MAC OF", "CONFLICT", "COOKIE",
            "NSID",
        ])
    } else {
        Table::new(&["IP", "MAC", "STATE", "DEV", "NETNS", "AGE", "POD", "MAC OF", "CONFLICT"])
    };
    for neighbour in neighbours {
        let style = if is_lost(neighbour) { Style::Yellow } else { Style::Plain };
        let device = neighbour.interface.name.clone();
        let mut row = vec![
            Cell::new(neighbour.ip.to_string()),
            Cell::known(neighbour.mac),
            Cell::styled(&neighbour.state, style),
            Cell::new(device.unwrap_or_else(|| neighbour.interface.index.to_string())),
            Cell::new(text::netns(&neighbour.netns)),
            Cell::new(view.now.age(neighbour.since.as_deref())),
            Cell::new(owner_of_ip(neighbour)),
            Cell::new(neighbour.mac_of.as_ref().map(owner).unwrap_or_default()),
            Cell::styled(conflict(neighbour), Style::Red),
        ];
        if view.wide {
            row.extend([Cell::known(neighbour.netns.cookie), Cell::known(neighbour.netns.nsid)]);
        }
        table.row(row);
    }
    table.within(view).render(view.headers, view.paint)
}

/// Whether the entry has no answer.
pub(super) fn is_lost(neighbour: &Neighbour) -> bool {
    matches!(neighbour.state.as_str(), "FAILED" | "INCOMPLETE")
}

/// The holders of the IP on this node.
pub(super) fn owner_of_ip(neighbour: &Neighbour) -> String {
    neighbour.holders.iter().map(owner).collect::<Vec<_>>().join(", ")
}

/// Every MAC that claims the IP, with its owner.
pub(in crate::cli) fn conflict(neighbour: &Neighbour) -> String {
    let one = |claimant: &Claimant| {
        let mac = claimant.mac.map_or_else(|| "unknown".to_owned(), |mac| mac.to_string());
        let of = claimant.of.as_ref().map_or_else(|| "elsewhere".to_owned(), owner);
        format!("{mac} ({of})")
    };
    neighbour.conflict.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The pod, else the container, else the netns.
fn owner(holder: &IpamHolder) -> String {
    let name = text::owner(holder.pod.as_ref(), holder.container.as_ref());
    if name.is_empty() { format!("netns {}", text::netns(&holder.netns)) } else { name }
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
            Cell::new(ended(tenure)),
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
    table.within(view).render(view.headers, view.paint)
}

/// How the tenure ended, and how often if the row stands for several.
fn ended(tenure: &Tenure) -> String {
    let by = tenure.ended_by.as_deref().unwrap_or_default();
    match tenure.times {
        Some(times) => format!("{by}, the last of {times} times"),
        None => by.to_owned(),
    }
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
IP         MAC                STATE      DEV   NETNS       AGE  POD         MAC OF      CONFLICT
10.0.3.17  0a:58:0a:00:03:11  REACHABLE  cni0  host        30s  shop/api-0  shop/api-0  0a:58:0a:00:03:11 (shop/api-0), 0a:58:0a:00:03:2a (elsewhere)
10.0.3.23  -                  FAILED     eth0  4026532177  9m   -           -           -
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
