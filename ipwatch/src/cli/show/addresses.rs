//! A list of addresses: one row each, with columns in an order that depends on the question.

use std::collections::HashSet;

use crate::cli::table::{Cell, Style, Table};
use crate::cli::text;
use crate::cli::view::View;
use crate::contract::Address;

/// A column of the table.
#[derive(Debug, Clone, Copy)]
enum Column {
    Ip,
    Netns,
    Device,
    Mac,
    Pod,
    State,
    Holder,
    Age,
    Attempt,
    Uid,
    Container,
    ContainerState,
    Runtime,
    Scope,
    NetnsState,
    Cookie,
    Nsid,
    Reserved,
    Findings,
    Path,
}

use Column::*;

const BY_ADDRESS: &[Column] = &[Ip, Netns, Device, Mac, Pod, State, Holder, Age];
const BY_ADDRESS_WIDE: &[Column] = &[
    Ip,
    Netns,
    Device,
    Mac,
    Pod,
    State,
    Holder,
    Age,
    Scope,
    NetnsState,
    Cookie,
    Nsid,
    Attempt,
    Container,
    ContainerState,
    Runtime,
    Reserved,
    Findings,
    Path,
];
const BY_POD: &[Column] = &[Pod, State, Ip, Netns, Holder, Age];
const BY_POD_WIDE: &[Column] = &[
    Pod,
    State,
    Ip,
    Netns,
    Holder,
    Age,
    Attempt,
    Uid,
    Container,
    ContainerState,
    Runtime,
    Device,
    Mac,
    NetnsState,
    Cookie,
    Nsid,
    Reserved,
    Findings,
    Path,
];

pub(super) fn table(addresses: &[Address], view: View) -> String {
    let columns = match (view.pods, view.wide) {
        (false, false) => BY_ADDRESS,
        (false, true) => BY_ADDRESS_WIDE,
        (true, false) => BY_POD,
        (true, true) => BY_POD_WIDE,
    };
    let titles: Vec<&'static str> = columns.iter().map(|column| column.title()).collect();
    let mut table = Table::new(&titles);
    let shown = shown(addresses, view);
    for address in &shown {
        table.row(columns.iter().map(|column| column.cell(address, view)).collect());
    }
    let mut out = table.within(view).render(view.headers, view.paint);
    let hidden = addresses.len() - shown.len();
    if hidden > 0 && view.headers {
        let what = text::count(hidden, "loopback or link-local IP");
        out.push_str(&format!("{what} not shown (--all)\n"));
    }
    out
}

/// The addresses without loopback and link-local ones, which are in every netns. If a netns has no others here, they are
/// shown.
fn shown(addresses: &[Address], view: View) -> Vec<&Address> {
    let netns = |address: &Address| {
        let of = &address.netns;
        (of.cookie, of.inode, of.nsid)
    };
    let local = |address: &Address| address.ip.is_some_and(text::is_local);
    let others: HashSet<_> =
        addresses.iter().filter(|address| !local(address)).map(netns).collect();
    let is_shown =
        |address: &&Address| view.all || !local(address) || !others.contains(&netns(address));
    addresses.iter().filter(is_shown).collect()
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Ip => "IP",
            Netns => "NETNS",
            Device => "DEV",
            Mac => "MAC",
            Pod => "POD",
            State => "STATE",
            Holder => "HOLDER",
            Age => "AGE",
            Attempt => "ATTEMPT",
            Uid => "UID",
            Container => "CONTAINER",
            ContainerState => "CONTAINER-STATE",
            Runtime => "RUNTIME",
            Scope => "SCOPE",
            NetnsState => "NETNS-STATE",
            Cookie => "COOKIE",
            Nsid => "NSID",
            Reserved => "RESERVED",
            Findings => "FINDINGS",
            Path => "PATH",
        }
    }

    fn cell(self, address: &Address, view: View) -> Cell {
        let (pod, container) = (address.pod.as_ref(), address.container.as_ref());
        let interface = address.interface.as_ref();
        match self {
            Ip => ip(address, view),
            Netns => Cell::new(text::netns(&address.netns)),
            Device => Cell::known(interface.and_then(|device| device.name.as_deref())),
            Mac => Cell::known(interface.and_then(|device| device.mac)),
            Pod if view.pods => Cell::new(text::owner_first(pod, container)),
            Pod => Cell::new(text::owner(pod, container)),
            State => Cell::new(text::state(pod, container)),
            Holder => Cell::new(text::holders(&address.holders)),
            Age => Cell::new(view.up(address)),
            Attempt => Cell::known(pod.and_then(|pod| pod.attempt)),
            Uid => Cell::known(pod.and_then(|pod| pod.uid.as_deref())),
            Container => Cell::new(container.map(text::container).unwrap_or_default()),
            ContainerState => Cell::known(container.and_then(|of| of.state.as_deref())),
            Runtime => Cell::known(container.and_then(|of| of.runtime.as_deref())),
            Scope => Cell::known(address.scope.as_deref()),
            NetnsState => Cell::known(address.netns.state.as_deref()),
            Cookie => Cell::known(address.netns.cookie),
            Nsid => Cell::known(address.netns.nsid),
            Reserved => Cell::new(reserved(address)),
            Findings => Cell::new(address.findings.join(",")),
            Path => Cell::known(address.netns.path.as_deref().map(text::shown)),
        }
    }
}

fn ip(address: &Address, view: View) -> Cell {
    let ip = match (address.ip, address.prefix_len) {
        (Some(ip), Some(len)) if view.wide => format!("{ip}/{len}"),
        (Some(ip), _) => ip.to_string(),
        (None, _) => String::new(),
    };
    let style = if address.findings.is_empty() { Style::Plain } else { Style::Yellow };
    Cell::styled(ip, style)
}

fn reserved(address: &Address) -> String {
    let Some(reservation) = &address.reservation else { return String::new() };
    match reservation.network.as_deref() {
        Some(network) => format!("{}/{network}", reservation.store),
        None => reservation.store.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{plain, sample};
    use super::*;
    use crate::contract::Body;

    fn shown(view: impl FnOnce(View) -> View) -> String {
        let document = sample("query-netns.json");
        let Body::Addresses(list) = &document.body else { panic!("addresses") };
        table(list, view(plain(&document)))
    }

    #[test]
    fn one_row_each_and_a_netns_without_an_address_too() {
        let text = shown(|view| view);
        let expected = "\
IP          NETNS       DEV   MAC                POD         STATE     HOLDER                          AGE
10.0.3.17   4026532177  eth0  0a:58:0a:00:03:11  shop/api-0  NotReady  pid 812 java +1                 6d
fd00:3::17  4026532177  eth0  0a:58:0a:00:03:11  shop/api-0  NotReady  pid 812 java +1                 6d
10.0.3.1    host        cni0  0a:58:0a:00:03:01  -           -         pid 1 systemd                   -
10.0.3.23   4026532290  eth0  0a:58:0a:00:03:17  -           -         pid 2204 thread 2209 worker +5  12m
-           4026532311  -     -                  -           -         kernel reference                -
-           4026532340  -     -                  -           -         kernel reference                -
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_every_netns_has_is_shown_if_it_is_asked_for_or_all_there_is() {
        let document = sample("query-netns.json");
        let Body::Addresses(mut list) = document.body.clone() else { panic!("addresses") };
        let [mut loopback, mut local] = [list[0].clone(), list[0].clone()];
        loopback.ip = "127.0.0.1".parse().ok();
        local.ip = "fe80::1".parse().ok();
        let mut alone = local.clone();
        alone.netns.inode = Some(4_026_532_999);
        list.extend([loopback, local, alone]);
        let view = plain(&document);
        let text = table(&list, view);
        assert!(!text.contains("127.0.0.1") && text.contains("4026532999"), "{text}");
        assert_eq!(text.matches("fe80::1").count(), 1, "{text}");
        assert!(text.ends_with("2 loopback or link-local IPs not shown (--all)\n"), "{text}");
        let all = table(&list, View { all: true, ..view });
        assert!(all.contains("127.0.0.1") && all.matches("fe80::1").count() == 2, "{all}");
    }

    #[test]
    fn pods_come_first_when_they_were_asked_for() {
        let text = shown(|view| View { pods: true, ..view });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..2],
            [
                "POD         STATE     IP          NETNS       HOLDER                          AGE",
                "shop/api-0  NotReady  10.0.3.17   4026532177  pid 812 java +1                 6d",
            ]
        );
        let wide = shown(|view| View { pods: true, wide: true, ..view });
        assert!(wide.starts_with("POD         STATE     IP"), "{wide}");
        let row = wide.lines().nth(1).unwrap();
        for part in ["  3        7f3a2c1e-55d0", "  api  ", "  Running  ", "  containerd  "] {
            assert!(row.contains(part), "{part}\n{wide}");
        }
    }

    #[test]
    fn wide_adds_columns() {
        let text = shown(|view| View { wide: true, ..view });
        for part in [
            "10.0.3.17/24",
            "dying",
            "host-local/cbr0",
            "8201",
            "api        Running",
            "k3f9q2m7x5wz4a6b",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
