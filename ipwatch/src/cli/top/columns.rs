//! The columns of each pane, and how wide they are on a screen of a given width.

use std::net::Ipv6Addr;

use super::rows::Pane;

/// Spaces between columns.
pub(super) const GAP: u16 = 2;
/// What the column that takes what is left has at least.
const LEAST: u16 = 6;
/// What that column must have before another one is shown or widened.
const ENOUGH: u16 = 16;
/// Columns with IPs: they are as wide as the longest one that is shown, if there is room.
const OF_IPS: [&str; 2] = ["IP", "SUBJECT"];
/// Length of an IPv6 address in full.
const LONGEST_IP: usize = 39;
/// From this room on, findings have more columns.
const BROAD: u16 = 108;

/// A column of a pane: its title and its width; 0 takes what is left.
pub(super) type Column = (&'static str, u16);

const ADDRESSES: [Column; 5] = [("TIME", 9), ("", 7), ("IP", 15), ("WHOSE", 0), ("HOW", 22)];

const CONFLICTS: [Column; 4] = [("SEV", 4), ("IP", 15), ("FINDING", 19), ("CLAIMED BY", 0)];

/// The columns of a pane that has so much room.
pub(super) fn columns_of(pane: Pane, room: u16) -> &'static [Column] {
    match pane {
        Pane::Ranges => &[],
        Pane::Findings if room < BROAD => {
            &[("SEV", 4), ("ID", 4), ("SUBJECT", 15), ("FINDING", 27), ("HOLDER", 0), ("AGE", 4)]
        }
        Pane::Findings => &[
            ("SEV", 4),
            ("ID", 4),
            ("SUBJECT", 18),
            ("FINDING", 29),
            ("HOLDER", 0),
            ("AGE", 4),
            ("STATUS", 8),
            ("POD", 16),
        ],
        // Whose an address is matters more than how it ended.
        Pane::Addresses if left(&ADDRESSES, room) < ENOUGH => &ADDRESSES[..4],
        Pane::Addresses => &ADDRESSES,
        Pane::Conflicts if left(&CONFLICTS, room) < ENOUGH => {
            &[("SEV", 4), ("IP", 15), ("FINDING", 12), ("CLAIMED BY", 0)]
        }
        Pane::Conflicts => &CONFLICTS,
        Pane::Sources => &[("SOURCE", 22), ("STATUS", 8), ("DETAIL", 0)],
    }
}

/// What is left of the room for the column of width 0.
fn left(columns: &[Column], room: u16) -> u16 {
    let gaps = GAP * u16::try_from(columns.len().saturating_sub(1)).unwrap_or(0);
    let fixed: u16 = columns.iter().map(|(_, width)| width).sum();
    room.saturating_sub(fixed + gaps)
}

/// The widths of columns that take so much room in all. `longest`: the length of the longest text in a column.
pub(super) fn widths(columns: &[Column], room: u16, longest: impl Fn(usize) -> usize) -> Vec<u16> {
    let mut left = left(columns, room);
    let mut widths: Vec<u16> = columns.iter().map(|(_, width)| *width).collect();
    for (at, (title, width)) in columns.iter().enumerate() {
        if OF_IPS.contains(title) {
            let wanted = u16::try_from(longest(at).min(LONGEST_IP)).unwrap_or(*width);
            let more = wanted.saturating_sub(*width).min(left.saturating_sub(ENOUGH));
            widths[at] += more;
            left -= more;
        }
    }
    let left = left.max(LEAST);
    widths.into_iter().map(|width| if width == 0 { left } else { width }).collect()
}

/// An IPv6 address or the number of a netns that is too long, without its middle: addresses of one prefix, and netns of one
/// day, differ at the end.
pub(super) fn shortened(text: &str, width: usize, mark: char) -> String {
    let is_netns = text.strip_prefix("netns ").is_some_and(|number| number.parse::<u64>().is_ok());
    let is_ip = || text.parse::<Ipv6Addr>().is_ok();
    if text.len() <= width || width < 5 || !(is_netns || is_ip()) {
        return text.to_owned();
    }
    let end = if is_netns { 4.min(width - 1) } else { width / 2 };
    format!("{}{mark}{}", &text[..width - 1 - end], &text[text.len() - end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn width_of(title: &str, pane: Pane, room: u16, longest: usize) -> Option<u16> {
        let columns = columns_of(pane, room);
        let at = columns.iter().position(|(one, _)| *one == title)?;
        Some(widths(columns, room, |_| longest)[at])
    }

    /// The right side of screens with 140 to 200 columns.
    #[test]
    fn whose_an_address_is_can_be_read_on_every_wide_screen() {
        for screen in 140..=240_u16 {
            let room = screen - screen * 3 / 5 - 1 - 2;
            let whose = width_of("WHOSE", Pane::Addresses, room, 9).unwrap();
            assert!(whose >= ENOUGH, "{screen} columns: {whose}");
            let claims = width_of("CLAIMED BY", Pane::Conflicts, room, 9).unwrap();
            assert!(claims >= ENOUGH, "{screen} columns: {claims}");
        }
        assert_eq!(width_of("HOW", Pane::Addresses, 53, 9), None, "there is no room for it");
        assert_eq!(width_of("HOW", Pane::Addresses, 78, 9), Some(22));
    }

    #[test]
    fn a_column_of_ips_is_as_wide_as_they_are_if_there_is_room() {
        assert_eq!(width_of("SUBJECT", Pane::Findings, 118, 39), Some(23), "a holder goes before");
        assert_eq!(width_of("SUBJECT", Pane::Findings, 160, 39), Some(39));
        assert_eq!(width_of("SUBJECT", Pane::Findings, 160, 20), Some(20));
        assert_eq!(width_of("IP", Pane::Conflicts, 78, 500), Some(33));
        for room in 0..300 {
            for pane in [Pane::Findings, Pane::Addresses, Pane::Conflicts, Pane::Sources] {
                let widths = widths(columns_of(pane, room), room, |_| 39);
                let taken =
                    widths.iter().sum::<u16>() + GAP * u16::try_from(widths.len() - 1).unwrap();
                assert!(taken <= room.max(80), "{pane:?} in {room}: {widths:?}");
            }
        }
    }

    #[test]
    fn addresses_of_one_prefix_differ_where_they_are_cut() {
        let [one, other] = ["2001:db8:85a3::8a2e:370:7334", "2001:db8:85a3::8a2e:370:9999"]
            .map(|ip| shortened(ip, 15, '…'));
        assert_eq!((one.as_str(), other.as_str()), ("2001:db…70:7334", "2001:db…70:9999"));
        assert_eq!(shortened("netns 4026532290", 15, '~'), "netns 4026~2290");
        assert_eq!(shortened("shop/a-very-long-name", 15, '…'), "shop/a-very-long-name");
        assert_eq!(shortened("netns of é\u{301}", 8, '…'), "netns of é\u{301}");
        assert_eq!(shortened("10.0.3.17", 15, '…'), "10.0.3.17");
    }
}
