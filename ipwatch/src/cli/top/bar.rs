//! A range as a bar: what is used, leaked, parked, held and free, in as many cells as there are.

use super::fit::Glyphs;
use crate::cli::table::Style;
use crate::contract::IpamRange;

/// A part of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Reserved, and not one of the following two.
    Used,
    /// Reserved for something that no longer exists.
    Leaked,
    /// Reserved by `ipwatch-ipam` for somebody who still has the IP.
    Parked,
    /// Up on this node without a reservation: it cannot be handed out.
    Held,
    Free,
}

impl Part {
    pub(super) const ALL: [Part; 5] =
        [Part::Used, Part::Leaked, Part::Parked, Part::Held, Part::Free];

    pub(super) fn meaning(self) -> &'static str {
        match self {
            Part::Used => "used: reserved for something that exists",
            Part::Leaked => "leaked: reserved for something that no longer exists",
            Part::Parked => "parked: kept by ipwatch-ipam while somebody still has the IP",
            Part::Held => "held: up on this node without a reservation",
            Part::Free => "free",
        }
    }

    /// Its cell in a bar. Each part differs from the others without colours too.
    pub(super) fn cell(self, glyphs: Glyphs) -> &'static str {
        match self {
            Part::Used => glyphs.pick("█", "#"),
            Part::Leaked => glyphs.pick("▓", "L"),
            Part::Parked => glyphs.pick("▚", "P"),
            Part::Held => glyphs.pick("▒", "H"),
            Part::Free => glyphs.pick("░", "."),
        }
    }

    pub(super) fn style(self) -> Style {
        match self {
            Part::Used => Style::Plain,
            Part::Leaked => Style::Yellow,
            Part::Parked => Style::Green,
            Part::Held => Style::Red,
            Part::Free => Style::Dim,
        }
    }
}

/// How much of a range each part is, in the order of [`Part::ALL`]. Parts of which the number is unknown count as what
/// they are part of: the row beside the bar says so.
pub(super) fn parts(range: &IpamRange, parked: u64) -> [(Part, u64); 5] {
    let leaked = range.leaked.unwrap_or(0).min(range.used);
    let parked = parked.min(range.used - leaked);
    let held = range.held.unwrap_or(0).min(range.free);
    [
        (Part::Used, range.used - leaked - parked),
        (Part::Leaked, leaked),
        (Part::Parked, parked),
        (Part::Held, held),
        (Part::Free, range.free - held),
    ]
}

/// Shares `width` cells among the parts in proportion. A part that exists has a cell at least, as long as there are as
/// many cells as such parts: one leak in a /16 is not nothing.
pub(super) fn cells(parts: &[(Part, u64)], width: usize) -> Vec<(Part, usize)> {
    let total: u128 = parts.iter().map(|(_, count)| u128::from(*count)).sum();
    let mut shared: Vec<(Part, usize)> = Vec::new();
    let (mut before, mut taken) = (0_u128, 0);
    for (part, count) in parts {
        // Cumulative rounding: the cells always add up to the width.
        before += u128::from(*count);
        let end = (before * width as u128 + total / 2).checked_div(total).unwrap_or(0);
        let end = usize::try_from(end).unwrap_or(width);
        shared.push((*part, end - taken));
        taken = end;
    }
    for at in 0..shared.len() {
        if parts[at].1 == 0 || shared[at].1 > 0 {
            continue;
        }
        let widest = (0..shared.len()).max_by_key(|at| shared[*at].1);
        if let Some(widest) = widest.filter(|widest| shared[*widest].1 > 1) {
            shared[widest].1 -= 1;
            shared[at].1 += 1;
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(used: u64, leaked: Option<u64>, held: Option<u64>, free: u64) -> IpamRange {
        IpamRange {
            store: "host-local".into(),
            network: "cbr0".into(),
            range: "10.0.3.2-10.0.3.254".into(),
            usable: used + free,
            used,
            leaked,
            free,
            held,
            available: None,
            path: None,
            time_left: None,
        }
    }

    fn drawn(range: &IpamRange, parked: u64, width: usize) -> String {
        let cells = cells(&parts(range, parked), width);
        cells.iter().map(|(part, n)| part.cell(Glyphs::Ascii).repeat(*n)).collect()
    }

    #[test]
    fn a_bar_has_each_part_in_proportion() {
        assert_eq!(drawn(&range(8, Some(2), Some(1), 2), 1, 10), "#####LLPH.");
        assert_eq!(drawn(&range(0, Some(0), None, 5), 0, 10), "..........");
        assert_eq!(drawn(&range(5, None, None, 0), 0, 10), "##########");
    }

    #[test]
    fn what_there_is_little_of_is_seen() {
        let small = range(60_000, Some(1), Some(1), 5_536);
        assert_eq!(drawn(&small, 1, 20), "###############LPH..");
        // With fewer cells than parts no cell is made up.
        assert_eq!(drawn(&small, 1, 1).len(), 1);
        assert_eq!(drawn(&small, 1, 0), "");
    }

    #[test]
    fn numbers_of_a_store_that_contradict_each_other_do_no_harm() {
        let odd = range(1, Some(u64::MAX), Some(u64::MAX), 1);
        assert_eq!(drawn(&odd, u64::MAX, 4), "LLHH");
        let empty = range(0, Some(3), Some(3), 0);
        assert_eq!(drawn(&empty, 3, 4), "");
        let huge = range(u64::MAX / 2, Some(0), Some(0), u64::MAX / 2);
        assert_eq!(drawn(&huge, 0, 4), "##..");
    }
}
