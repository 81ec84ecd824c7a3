//! Bringing back what was moved away, as far as it has not been given out since.

use std::net::IpAddr;
use std::path::Path;

use super::act::{ActError, may};
use super::host_local::Locked;
use super::log;
use super::record::{self, Kept, Line, RecordError};
use super::who::Who;
use crate::contract::{Fix, FixItem, FixState, FixTarget};

/// What can be undone of earlier runs.
#[derive(Debug)]
pub(crate) struct Undo {
    runs: Vec<Kept>,
    /// Of each item of [`Undo::fix`]: which run, its number there, and the name under which it is kept.
    places: Vec<Place>,
    /// What would be restored.
    pub(crate) fix: Fix,
    /// Records that cannot be read.
    pub(crate) unread: Vec<String>,
}

#[derive(Debug, Clone)]
struct Place {
    run: usize,
    number: usize,
    kept: Option<String>,
}

/// What can be undone of the finding with this id, or a beginning of it, or of this network; of these IPs, unless there are
/// none.
///
/// # Errors
/// [`RecordError`]
pub(crate) fn look(base: &Path, what: &str, only: &[IpAddr]) -> Result<Undo, RecordError> {
    let (runs, unread) = record::runs(base)?;
    let (mut places, mut items) = (Vec::new(), Vec::new());
    for (run, kept) in runs.iter().enumerate() {
        for (place, item) in of_run(run, &kept.lines, what, only) {
            places.push(place);
            items.push(item);
        }
    }
    let fix = Fix { dry_run: true, items, ..Fix::default() };
    Ok(Undo { runs, places, fix, unread })
}

/// What one run has changed and nobody has undone.
fn of_run(run: usize, lines: &[Line], what: &str, only: &[IpAddr]) -> Vec<(Place, FixItem)> {
    let mut found = Vec::new();
    for line in lines {
        let Line::Intent { number, item, kept, .. } = line else { continue };
        let is_meant = match &item.target {
            FixTarget::FreeReservation { ip, network, .. } => {
                (network == what || is_id(&item.finding, what))
                    && (only.is_empty() || only.contains(ip))
            }
            _ => is_id(&item.finding, what) && only.is_empty(),
        };
        let outcomes = lines.iter().filter_map(|line| match line {
            Line::Outcome { number: of, state, .. } if of == number => Some(*state),
            _ => None,
        });
        // Of a run that was killed only the intention is known: where the file lies tells.
        let over = outcomes.last();
        if !is_meant || matches!(over, Some(FixState::Skipped | FixState::Restored)) {
            continue;
        }
        let mut item = FixItem { proof: Vec::new(), why: None, ..(**item).clone() };
        item.state = FixState::Planned;
        if kept.is_none() {
            item.state = FixState::LeftOut;
            item.why = Some("what was removed cannot be brought back: nothing used it".to_owned());
        }
        found.push((Place { run, number: *number, kept: kept.clone() }, item));
    }
    found
}

fn is_id(id: &str, what: &str) -> bool {
    what.len() >= 4 && id.starts_with(what)
}

/// Restores it. Whether every change was logged.
///
/// # Errors
/// [`ActError`]: nothing was changed.
pub(crate) async fn restore(undo: Undo) -> Result<(Fix, bool), ActError> {
    may()?;
    let Undo { mut runs, places, mut fix, .. } = undo;
    let who = Who::now();
    let mut logged = true;
    fix.dry_run = false;
    for (item, place) in fix.items.iter_mut().zip(&places) {
        if item.state != FixState::Planned {
            continue;
        }
        let Some(run) = runs.get_mut(place.run) else { continue };
        match one(item, place, run).await {
            Ok(()) => {
                item.state = FixState::Restored;
                if let Err(error) = run.record.became(place.number, item, Some(&who)) {
                    let path = run.record.path().display();
                    tracing::warn!("the record in {path} is not whole: {error}");
                }
                logged &= log::tell(item, &who, run.record.path());
            }
            Err(why) => (item.state, item.why) = (FixState::Skipped, Some(why)),
        }
    }
    Ok((fix, logged))
}

async fn one(item: &FixItem, place: &Place, run: &Kept) -> Result<(), String> {
    let (FixTarget::FreeReservation { path, .. }, Some(kept)) = (&item.target, &place.kept) else {
        return Err("it cannot be brought back".to_owned());
    };
    // A name in a record that somebody has written by hand leads nowhere else.
    if kept.contains('/') || kept.starts_with('.') {
        return Err("its record names no file".to_owned());
    }
    let path = Path::new(path);
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err("it is no path of a file".to_owned());
    };
    let locked = Locked::take(directory).await.map_err(|error| error.to_string())?;
    locked.move_back(run.record.dir(), kept, name).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Code;

    const ID: &str = "wv4akx7q2m5z6b3d";

    fn item(target: FixTarget) -> Box<FixItem> {
        let (finding, code) = (ID.to_owned(), Code::IpamReservationLeaked);
        let (state, why, proof) = (FixState::Planned, None, Vec::new());
        Box::new(FixItem { finding, code, target, state, why, proof })
    }

    fn reservation(last: u8) -> Box<FixItem> {
        item(FixTarget::FreeReservation {
            ip: format!("10.0.3.{last}").parse().unwrap(),
            network: "cbr0".to_owned(),
            path: format!("/var/lib/cni/networks/cbr0/10.0.3.{last}"),
            container_id: "c0ffee".to_owned(),
            ifname: None,
            since: None,
        })
    }

    fn intent(number: usize, item: Box<FixItem>, kept: Option<&str>) -> Line {
        Line::Intent { at: String::new(), number, item, kept: kept.map(str::to_owned) }
    }

    fn outcome(number: usize, state: FixState) -> Line {
        Line::Outcome { at: String::new(), number, state, why: None, who: None }
    }

    #[test]
    fn what_was_done_or_may_have_been_is_undone_and_nothing_else() {
        let lines = [
            intent(0, reservation(18), Some("0-x")),
            outcome(0, FixState::Done),
            intent(1, reservation(19), Some("1-x")),
            outcome(1, FixState::Skipped),
            intent(2, reservation(20), Some("2-x")),
            outcome(2, FixState::Done),
            outcome(2, FixState::Restored),
            // The run was killed here.
            intent(3, reservation(21), Some("3-x")),
        ];
        let numbers = |what: &str, only: &[IpAddr]| {
            let found = of_run(0, &lines, what, only);
            found.into_iter().map(|(place, _)| place.number).collect::<Vec<_>>()
        };
        for what in ["cbr0", ID, "wv4a"] {
            assert_eq!(numbers(what, &[]), [0, 3], "{what}");
        }
        for other in ["macvlan", "wv4", "", "r7d2"] {
            assert_eq!(numbers(other, &[]), [] as [usize; 0], "{other}");
        }
        assert_eq!(numbers("cbr0", &["10.0.3.21".parse().unwrap()]), [3]);
    }

    #[test]
    fn what_is_gone_is_said_to_be_gone() {
        let netns = crate::contract::Netns::default();
        let path = "/run/netns/a".to_owned();
        let lines = [
            intent(0, item(FixTarget::UnmountNetns { path, netns }), None),
            outcome(0, FixState::Done),
        ];
        let (_, item) = of_run(0, &lines, ID, &[]).remove(0);
        assert_eq!(item.state, FixState::LeftOut);
        assert!(item.why.unwrap().contains("cannot be brought back"));
    }
}
