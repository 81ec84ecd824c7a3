//! Where everything is on a screen of a given size. Wide screens show all panes, narrow ones the ranges and the pane that
//! is in use.

use ratatui_core::layout::{Rect, Size};

use super::rows::Pane;

/// From so many columns on all panes are shown side by side.
const WIDE: u16 = 140;
/// From so many lines on.
const HIGH: u16 = 20;
/// From so many lines on the ranges are shown beside another pane.
const RANGES_FROM: u16 = 16;
/// From so many lines on there are lines about the selected row.
const DETAIL_FROM: u16 = 12;

/// The places on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// The node, what is wrong, and what is not seen. One line.
    pub(super) header: Rect,
    /// The names of the panes, if not all are shown. One line.
    pub(super) tabs: Rect,
    /// The panes, in the order of [`Pane::ALL`]; empty if a pane is not shown.
    pub(super) panes: [Rect; 5],
    /// About the selected row.
    pub(super) detail: Rect,
    /// The line between the left and the right side.
    pub(super) line: Rect,
    /// The keys, or what is typed. One line.
    pub(super) footer: Rect,
}

impl Places {
    pub(super) fn pane(&self, pane: Pane) -> Rect {
        self.panes[pane as usize]
    }
}

/// Lines of a pane above its rows: its title, and those of its columns. A few lines are for rows alone.
pub(super) fn above(place: Rect, pane: Pane) -> u16 {
    match (pane, place.height) {
        (_, 0..=1) => 0,
        (Pane::Ranges, _) => 1,
        (_, 2..=3) => 0,
        _ => 2,
    }
}

/// The places on a screen of this size, of which `pane` is in use, for so many ranges.
pub(super) fn places(size: Size, pane: Pane, ranges: usize) -> Places {
    let Size { width, height } = size;
    let mut rest = Rect::new(0, 0, width, height);
    let header = top(&mut rest, 1);
    let footer = bottom(&mut rest, u16::from(height > 1));
    let none = Rect::ZERO;
    let mut places =
        Places { header, tabs: none, panes: [none; 5], detail: none, line: none, footer };
    if width >= WIDE && height >= HIGH {
        wide(&mut places, rest, ranges);
        return places;
    }
    if height >= RANGES_FROM && pane != Pane::Ranges && ranges > 0 {
        let lines = of_ranges(ranges, height / 5);
        places.panes[Pane::Ranges as usize] = top(&mut rest, lines);
    }
    places.tabs = top(&mut rest, u16::from(height >= 6));
    if height >= DETAIL_FROM {
        places.detail = bottom(&mut rest, if height >= HIGH { 4 } else { 2 });
    }
    places.panes[pane as usize] = rest;
    places
}

fn wide(places: &mut Places, mut rest: Rect, ranges: usize) {
    let lines = of_ranges(ranges, rest.height / 4);
    places.panes[Pane::Ranges as usize] = top(&mut rest, lines);
    places.detail = bottom(&mut rest, 4);
    let left = rest.width * 3 / 5;
    let mut right = Rect { x: rest.x + left + 1, width: rest.width - left - 1, ..rest };
    places.line = Rect { x: rest.x + left, width: 1, ..rest };
    places.panes[Pane::Findings as usize] = Rect { width: left, ..rest };
    let third = right.height / 3;
    places.panes[Pane::Sources as usize] = bottom(&mut right, third);
    places.panes[Pane::Conflicts as usize] = bottom(&mut right, third);
    places.panes[Pane::Addresses as usize] = right;
}

/// Lines for so many ranges, with the title. Their columns need none.
fn of_ranges(ranges: usize, most: u16) -> u16 {
    let ranges = u16::try_from(ranges.max(1)).unwrap_or(u16::MAX);
    1 + ranges.min(most.max(1))
}

/// Number of rows that a pane shows.
pub(super) fn visible(place: Rect, pane: Pane) -> usize {
    usize::from(place.height - above(place, pane))
}

/// The area of a text over the whole screen: all but its title and the footer.
pub(super) fn page(size: Size) -> Rect {
    Rect::new(0, 1, size.width, size.height.saturating_sub(2))
}

fn top(rest: &mut Rect, lines: u16) -> Rect {
    let lines = lines.min(rest.height);
    let taken = Rect { height: lines, ..*rest };
    rest.y += lines;
    rest.height -= lines;
    taken
}

fn bottom(rest: &mut Rect, lines: u16) -> Rect {
    let lines = lines.min(rest.height);
    rest.height -= lines;
    Rect { y: rest.y + rest.height, height: lines, ..*rest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_nothing_is_outside_at_any_size() {
        for width in [0, 1, 10, 79, 80, 139, 140, 200, 500] {
            for height in (0..30).chain([60, 200]) {
                for pane in Pane::ALL {
                    let size = Size { width, height };
                    let places = places(size, pane, 7);
                    let screen = Rect::new(0, 0, width, height);
                    let all: Vec<Rect> =
                        [places.header, places.tabs, places.detail, places.line, places.footer]
                            .into_iter()
                            .chain(places.panes)
                            .filter(|place| !place.is_empty())
                            .collect();
                    for (at, place) in all.iter().enumerate() {
                        assert_eq!(place.intersection(screen), *place, "{size} {pane:?}");
                        assert!(
                            all[..at].iter().all(|other| !other.intersects(*place)),
                            "{size} {pane:?}: {places:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_pane_in_use_is_shown_on_every_terminal_that_has_room_for_a_row() {
        for pane in Pane::ALL {
            let places = places(Size { width: 10, height: 4 }, pane, 3);
            assert!(visible(places.pane(pane), pane) > 0, "{pane:?}");
        }
    }
}
