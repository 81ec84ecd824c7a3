//! The rows of each pane: which there are, and in which order. A row is put into words ([`super::words`]) only if it is
//! shown, filtered or searched.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::known::{Known, Logged};
use super::words::{cells, text_of};
use crate::cli::show::family::Families;
use crate::cli::text;
use crate::contract::IpamRange;
use crate::fact::SourceStatus;

/// A list on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    Ranges,
    Findings,
    Addresses,
    Conflicts,
    Sources,
}

impl Pane {
    pub(super) const ALL: [Pane; 5] =
        [Pane::Ranges, Pane::Findings, Pane::Addresses, Pane::Conflicts, Pane::Sources];

    /// What its rows may be sorted by.
    pub(super) fn orders(self) -> &'static [&'static str] {
        match self {
            Pane::Ranges => &["fullest", "name"],
            Pane::Findings => &["worst", "newest", "oldest", "subject"],
            Pane::Addresses => &["newest", "IP"],
            Pane::Conflicts => &["IP", "claims"],
            Pane::Sources => &["worst", "name"],
        }
    }
}

/// A row, by where it is found in what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    Range(usize),
    /// A finding; `under` another one, or with so many consequences folded under it.
    Finding {
        at: usize,
        under: bool,
        folded: usize,
    },
    /// An entry of the log, by its number.
    Logged(u64),
    Conflict(IpAddr),
    Source(usize),
    /// An event that is not seen as it should be.
    Unseen(usize),
    /// A code that cannot be judged.
    Unjudged(usize),
}

/// What a person wants to see of a pane.
#[derive(Debug, Default)]
pub(super) struct Wanted<'a> {
    /// Position in [`Pane::orders`].
    pub(super) order: usize,
    /// Only rows with this text, in lower case. Empty: all.
    pub(super) filter: &'a str,
    /// Ids of causes that are shown with what follows from them.
    pub(super) unfolded: Option<&'a HashSet<String>>,
    /// All are.
    pub(super) unfold_all: bool,
}

/// The rows of a pane.
pub(super) fn rows(known: &Known, pane: Pane, wanted: &Wanted<'_>) -> Vec<Row> {
    let mut rows: Vec<Row> = match pane {
        Pane::Ranges => (0..known.ranges.as_ref().map_or(0, Vec::len)).map(Row::Range).collect(),
        Pane::Findings => return of_findings(known, wanted),
        Pane::Addresses => known.log().map(|(number, _)| Row::Logged(number)).collect(),
        Pane::Conflicts => known.conflicts.keys().copied().map(Row::Conflict).collect(),
        Pane::Sources => {
            let sources = (0..known.sources().len()).map(Row::Source);
            let unseen = known.unseen().map(|(at, _)| Row::Unseen(at));
            sources.chain(unseen).chain((0..known.blind().len()).map(Row::Unjudged)).collect()
        }
    };
    if !wanted.filter.is_empty() {
        rows.retain(|row| text_of(known, *row).contains(wanted.filter));
    }
    sort(known, pane, wanted.order, &mut rows);
    rows
}

fn sort(known: &Known, pane: Pane, order: usize, rows: &mut [Row]) {
    let name = |row: &Row| cells(known, *row).into_iter().next().map(|cell| cell.text);
    match (pane, order) {
        (Pane::Ranges, 0) => rows.sort_by_key(|row| match row {
            Row::Range(at) => known.ranges.as_ref().map(|all| share_left(&all[*at])),
            _ => None,
        }),
        (Pane::Addresses, 1) => rows.sort_by_key(|row| match row {
            Row::Logged(number) => match known.logged(*number) {
                Some(Logged::Held(tenure) | Logged::Released(tenure)) => Some(tenure.ip),
                _ => None,
            },
            _ => None,
        }),
        (Pane::Conflicts, 1) => rows.sort_by_cached_key(|row| match row {
            Row::Conflict(ip) => known.conflicts.get(ip).map(|conflict| conflict.claims.clone()),
            _ => None,
        }),
        (Pane::Sources, 0) => rows.sort_by_key(|row| match row {
            Row::Source(at) => match known.sources()[*at].status {
                SourceStatus::Down => 0,
                SourceStatus::Degraded => 1,
                SourceStatus::Active => 4,
                SourceStatus::Disabled => 5,
            },
            Row::Unjudged(_) => 2,
            _ => 3,
        }),
        (Pane::Ranges | Pane::Sources, _) => rows.sort_by_cached_key(name),
        _ => {}
    }
}

/// What can still be handed out of a range, in 1/1000.
fn share_left(range: &IpamRange) -> u64 {
    let left = range.available.unwrap_or(range.free);
    let share = u128::from(left) * 1000 / u128::from(range.usable.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn of_findings(known: &Known, wanted: &Wanted<'_>) -> Vec<Row> {
    let list = known.findings.as_deref().unwrap_or_default();
    let places: HashMap<&str, usize> =
        list.iter().enumerate().map(|(at, finding)| (finding.id.as_str(), at)).collect();
    let matches = |at: usize| {
        wanted.filter.is_empty()
            || text_of(known, Row::Finding { at, under: false, folded: 0 }).contains(wanted.filter)
    };
    let families = Families::new(list);
    let mut all = families.all();
    match wanted.order {
        1 => all.sort_by(|(a, _), (b, _)| b.since.cmp(&a.since)),
        2 => all.sort_by(|(a, _), (b, _)| a.since.cmp(&b.since)),
        3 => all.sort_by_cached_key(|(head, _)| {
            (head.subject.ip, text::subject(&head.subject), head.code.as_str())
        }),
        _ => {}
    }
    let mut rows = Vec::new();
    for (head, consequences) in all {
        let Some(at) = places.get(head.id.as_str()).copied() else { continue };
        let is_open = wanted.unfold_all
            || wanted.unfolded.is_some_and(|unfolded| unfolded.contains(&head.id));
        let all_below: Vec<usize> = consequences
            .iter()
            .filter_map(|finding| places.get(finding.id.as_str()).copied())
            .collect();
        // What a filter finds is shown, also below a cause that is folded.
        let is_shown = |at: &usize| match wanted.filter {
            "" => is_open,
            _ => matches(*at),
        };
        let below: Vec<usize> = all_below.iter().copied().filter(is_shown).collect();
        if below.is_empty() && !matches(at) {
            continue;
        }
        rows.push(Row::Finding { at, under: false, folded: all_below.len() - below.len() });
        rows.extend(below.into_iter().map(|at| Row::Finding { at, under: true, folded: 0 }));
    }
    rows
}

/// What identifies a row: the cursor stays on it while others come and go.
pub(super) fn key(known: &Known, row: Row) -> String {
    match row {
        Row::Range(at) => match known.range(at) {
            Some(range) => format!("{} {} {}", range.store, range.network, range.range),
            None => String::new(),
        },
        Row::Finding { at, .. } => known.finding(at).map(|one| one.id.clone()).unwrap_or_default(),
        Row::Logged(number) => number.to_string(),
        Row::Conflict(ip) => ip.to_string(),
        Row::Source(at) => known.sources()[at].name.clone(),
        Row::Unseen(at) => format!("event {}", known.probes()[at].event),
        Row::Unjudged(at) => format!("code {}", known.blind()[at]),
    }
}
