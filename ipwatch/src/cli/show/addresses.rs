//! Many addresses: one row each.

use crate::cli::output::View;
use crate::cli::table::{Cell, Style, Table};
use crate::cli::text;
use crate::contract::Address;

pub(super) fn table(addresses: &[Address], view: View) -> String {
    let mut table = if view.wide {
        Table::new(&[
            "IP",
            "NETNS",
            "DEV",
            "MAC",
            "POD",
            "HOLDER",
            "AGE",
            "SCOPE",
            "STATE",
            "COOKIE",
            "NSID",
            "CONTAINER",
            "RESERVED",
            "FINDINGS",
            "PATH",
        ])
    } else {
        Table::new(&["IP", "NETNS", "DEV", "MAC", "POD", "HOLDER", "AGE"])
    };
    for address in addresses {
        table.row(row(address, view));
    }
    table.render(view.headers, view.paint)
}

fn row(address: &Address, view: View) -> Vec<Cell> {
    let ip = match (address.ip, address.prefix_len) {
        (Some(ip), Some(len)) if view.wide => format!("{ip}/{len}"),
        (Some(ip), _) => ip.to_string(),
        (None, _) => String::new(),
    };
    let interface = address.interface.as_ref();
    let style = if address.findings.is_empty() { Style::Plain } else { Style::Yellow };
    let mut row = vec![
        Cell::styled(ip, style),
        Cell::new(text::netns(&address.netns)),
        Cell::new(interface.and_then(|dev| dev.name.as_deref()).unwrap_or_default()),
        Cell::known(interface.and_then(|dev| dev.mac)),
        Cell::new(text::owner(address.pod.as_ref(), address.container.as_ref())),
        Cell::new(text::holders(&address.holders)),
        Cell::new(view.now.age(address.since.as_deref())),
    ];
    if view.wide {
        let reserved =
            address.reservation.as_ref().map(|reservation| match reservation.network.as_deref() {
                Some(network) => format!("{}/{network}", reservation.store),
                None => reservation.store.clone(),
            });
        row.extend([
            Cell::new(address.scope.as_deref().unwrap_or_default()),
            Cell::new(address.netns.state.as_deref().unwrap_or_default()),
            Cell::known(address.netns.cookie),
            Cell::known(address.netns.nsid),
            Cell::new(address.container.as_ref().map(text::container).unwrap_or_default()),
            Cell::known(reserved),
            Cell::new(address.findings.join(",")),
            Cell::new(address.netns.path.as_deref().unwrap_or_default()),
        ]);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::super::{plain, sample};
    use super::*;
    use crate::contract::Body;

    #[test]
    fn one_row_each_and_a_netns_without_an_address_too() {
        let document = sample("query-netns.json");
        let Body::Addresses(list) = &document.body else { panic!("addresses") };
        let text = table(list, plain(&document));
        let expected = "\
IP          NETNS       DEV   MAC                POD         HOLDER                           AGE
10.0.3.17   4026532177  eth0  0a:58:0a:00:03:11  shop/api-0  pid 812 java +1                  6d
fd00:3::17  4026532177  eth0  0a:58:0a:00:03:11  shop/api-0  pid 812 java +1                  6d
10.0.3.1    host        cni0  0a:58:0a:00:03:01  -           pid 1 systemd                    -
10.0.3.23   4026532290  eth0  0a:58:0a:00:03:17  -           pid 2204 thread 2207 worker +3   12m
-           4026532311  -     -                  -           kernel reference                 -
";
        let squeeze = |text: &str| -> Vec<String> {
            text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(squeeze(&text), squeeze(expected));
    }

    #[test]
    fn wide_adds_columns() {
        let document = sample("query-netns.json");
        let Body::Addresses(list) = &document.body else { panic!("addresses") };
        let text = table(list, View { wide: true, ..plain(&document) });
        for part in
            ["10.0.3.17/24", "dying", "host-local/cbr0", "8201", "7f3a91c26e0b", "k3f9q2m7x5wz4a6b"]
        {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
