//! Restores reservations that an earlier run moved away, unless their IP has been given out since.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;

use super::act::{ActError, may};
use super::api_server::{Access, ApiServer};
use super::cluster_store;
use super::host_local::Locked;
use super::log;
use super::record::{self, Kept, Line, Record, RecordError};
use super::who::Who;
use crate::api::client::Client;
use crate::api::{Ask, Past};
use crate::contract::{Body, Document, Fix, FixItem, FixState, FixTarget, Prefix, Tenure};

/// Timeout of the question to the daemon who has had an IP since.
const PATIENCE: Duration = Duration::from_secs(2);

/// What can be undone of earlier runs.
#[derive(Debug)]
pub(crate) struct Undo {
    runs: Vec<Kept>,
    /// Of each item of [`Undo::fix`]: which run, its number there, and the name under which it is kept.
    places: Vec<KeptItem>,
    /// What would be restored.
    pub(crate) fix: Fix,
    /// Records that cannot be read.
    pub(crate) unread: Vec<String>,
}

#[derive(Debug, Clone)]
struct KeptItem {
    run: usize,
    number: usize,
    kept: Option<String>,
    /// When it was about to be moved, RFC 3339.
    at: String,
}

/// What can be undone of a finding (by its id or a prefix of it) or of a network; if `only` is not empty, of these IPs only.
/// Only one run is undone, the newest that changed something of it or the one that is `named`: an IP that an earlier run
/// moved away may have been given out and freed again since.
///
/// # Errors
/// [`RecordError`]
pub(crate) fn look(
    base: &Path,
    what: &str,
    only: &[IpAddr],
    named: Option<&str>,
) -> Result<Undo, RecordError> {
    let (runs, unread) = record::runs(base)?;
    let (mut places, mut items) = (Vec::new(), Vec::new());
    let is_meant = |kept: &Kept| match named {
        Some(name) => kept.name == name,
        None => changed(&kept.lines, what, only).next().is_some(),
    };
    if let Some(run) = runs.iter().position(is_meant) {
        let (newer, rest) = runs.split_at(run);
        let lines = rest.first().map_or(&[][..], |kept| &kept.lines);
        for (place, mut item) in of_run(run, lines, what, only) {
            if newer.iter().any(|kept| has_moved(&kept.lines, &item.target)) {
                item.state = FixState::LeftOut;
                item.why = Some(
                    "a later run moved one of this IP away: it was given out in between".to_owned(),
                );
            }
            places.push(place);
            items.push(item);
        }
    }
    let fix = Fix { dry_run: true, undo: true, items, ..Fix::default() };
    Ok(Undo { runs, places, fix, unread })
}

/// Whether a run has moved away a reservation of the same file, or removed an allocation at the same place.
fn has_moved(lines: &[Line], target: &FixTarget) -> bool {
    let Some((network, wanted)) = place(target) else { return false };
    changed(lines, network, &[]).any(|(line, _)| match line {
        Line::Intent { item, .. } => place(&item.target).is_some_and(|(_, key)| key == wanted),
        _ => false,
    })
}

/// The network of what can be brought back, and where it was.
fn place(target: &FixTarget) -> Option<(&str, &str)> {
    match target {
        FixTarget::FreeReservation { network, path, .. } => Some((network, path)),
        FixTarget::FreeAllocation { network, key, .. } => Some((network, key)),
        _ => None,
    }
}

/// What one run has changed of it, or may have: its intentions, and what became of each at last.
fn changed<'a>(
    lines: &'a [Line],
    what: &str,
    only: &[IpAddr],
) -> impl Iterator<Item = (&'a Line, Option<FixState>)> {
    lines.iter().filter_map(move |line| {
        let Line::Intent { number, item, .. } = line else { return None };
        let is_meant = match &item.target {
            FixTarget::FreeReservation { ip, network, .. }
            | FixTarget::FreeAllocation { ip, network, .. } => {
                (network == what || is_id(&item.finding, what))
                    && (only.is_empty() || only.contains(ip))
            }
            _ => is_id(&item.finding, what) && only.is_empty(),
        };
        let mut outcomes = lines.iter().filter_map(|line| match line {
            Line::Outcome { number: of, state, .. } if of == number => Some(*state),
            _ => None,
        });
        // A killed run may have written the intention only. Whether the file was moved is found out when it is restored.
        let over = outcomes.next_back();
        (is_meant && over != Some(FixState::Skipped)).then_some((line, over))
    })
}

/// What one run has changed and no later run has undone.
fn of_run(run: usize, lines: &[Line], what: &str, only: &[IpAddr]) -> Vec<(KeptItem, FixItem)> {
    let mut found = Vec::new();
    for (line, over) in changed(lines, what, only) {
        let Line::Intent { number, item, kept, at } = line else { continue };
        if over == Some(FixState::Restored) {
            continue;
        }
        let mut item = FixItem { proof: Vec::new(), why: None, ..(**item).clone() };
        item.state = FixState::Planned;
        if kept.is_none() {
            item.state = FixState::LeftOut;
            item.why = Some("what was removed cannot be brought back: nothing used it".to_owned());
        }
        let (kept, at) = (kept.clone(), at.clone());
        found.push((KeptItem { run, number: *number, kept, at }, item));
    }
    found
}

fn is_id(id: &str, what: &str) -> bool {
    what.len() >= 4 && id.starts_with(what)
}

/// Restores what can be undone, except IPs that the daemon knows to have been up since. Returns the items with their
/// results, and whether every change was logged.
///
/// # Errors
/// [`ActError`]: nothing was changed.
pub(crate) async fn restore(
    undo: Undo,
    client: &Client,
    access: Access,
) -> Result<(Fix, bool), ActError> {
    may()?;
    let Undo { runs, places, mut fix, .. } = undo;
    // Once the daemon fails to answer it is not asked again. An unneeded reservation does no harm and is reported as leaked.
    let mut daemon = Some(client);
    let mut api = ApiServer::new(access);
    let who = Who::now();
    let mut logged = true;
    fix.dry_run = false;
    for (item, place) in fix.items.iter_mut().zip(&places) {
        if item.state != FixState::Planned {
            continue;
        }
        let Some(run) = runs.get(place.run) else { continue };
        match one(item, place, run, &mut daemon, &mut api).await {
            Ok(mut record) => {
                item.state = FixState::Restored;
                if let Err(error) = record.became(place.number, item, Some(&who)) {
                    let path = record.path().display();
                    tracing::warn!("the record in {path} is not whole: {error}");
                }
                logged &= log::tell(item, &who, record.path());
            }
            Err(why) => (item.state, item.why) = (FixState::Skipped, Some(why)),
        }
    }
    Ok((fix, logged))
}

/// Succeeds unless the daemon's history has a tenure of the IP since.
async fn nobody_since(ip: IpAddr, at: &str, daemon: &mut Option<&Client>) -> Result<(), String> {
    let Some(client) = *daemon else { return Ok(()) };
    let asked = Ask::History(Past { ip: Some(Prefix::host(ip)), ..Past::default() });
    match timeout(PATIENCE, client.ask(&asked)).await {
        Ok(Ok(Document { body: Body::History(all), .. })) => {
            match all.iter().find(|one| is_later(one, at)) {
                Some(one) => Err(format!(
                    "the IP has been given out again since: it was up from {}",
                    one.from
                )),
                None => Ok(()),
            }
        }
        Ok(Err(crate::api::client::ClientError::Refused { status: 404, .. })) => Ok(()),
        _ => {
            *daemon = None;
            Ok(())
        }
    }
}

/// Whether a tenure lasted beyond a moment. True if a date cannot be parsed.
fn is_later(tenure: &Tenure, at: &str) -> bool {
    let date = |text: &str| text.parse::<Timestamp>().ok();
    match (tenure.to.as_deref().map(date), date(at)) {
        (Some(Some(to)), Some(at)) => to > at,
        _ => true,
    }
}

async fn one(
    item: &FixItem,
    place: &KeptItem,
    run: &Kept,
    daemon: &mut Option<&Client>,
    api: &mut ApiServer,
) -> Result<Record, String> {
    let Some(kept) = &place.kept else { return Err("it cannot be brought back".to_owned()) };
    // A name in a record that somebody has written by hand leads nowhere else.
    if kept.contains('/') || kept.starts_with('.') {
        return Err("its record names no file".to_owned());
    }
    let path = match &item.target {
        FixTarget::FreeReservation { ip, path, .. } => {
            nobody_since(*ip, &place.at, daemon).await?;
            Path::new(path)
        }
        FixTarget::FreeAllocation { ip, .. } => {
            nobody_since(*ip, &place.at, daemon).await?;
            return allocation(run, kept, api).await;
        }
        _ => return Err("it cannot be brought back".to_owned()),
    };
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err("it is no path of a file".to_owned());
    };
    let record = run.open().map_err(|error| format!("its record cannot be opened: {error}"))?;
    let locked = Locked::take(directory).await.map_err(|error| error.to_string())?;
    locked.move_back(record.dir(), kept, name).map_err(|error| error.to_string())?;
    Ok(record)
}

/// Brings an allocation back into its object in the API server.
async fn allocation(run: &Kept, kept: &str, api: &mut ApiServer) -> Result<Record, String> {
    let record = run.open().map_err(|error| format!("its record cannot be opened: {error}"))?;
    let text =
        record.kept(kept).map_err(|error| format!("its record has nothing of it: {error}"))?;
    let seen = serde_json::from_slice(&text)
        .map_err(|error| format!("its record is not understood: {error}"))?;
    cluster_store::restore(api, &seen).await?;
    Ok(record)
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
            // It could not be put back.
            intent(4, reservation(22), Some("4-x")),
            outcome(4, FixState::Stranded),
        ];
        let numbers = |what: &str, only: &[IpAddr]| {
            let found = of_run(0, &lines, what, only);
            found.into_iter().map(|(place, _)| place.number).collect::<Vec<_>>()
        };
        for what in ["cbr0", ID, "wv4a"] {
            assert_eq!(numbers(what, &[]), [0, 3, 4], "{what}");
        }
        for other in ["macvlan", "wv4", "", "r7d2"] {
            assert_eq!(numbers(other, &[]), [] as [usize; 0], "{other}");
        }
        assert_eq!(numbers("cbr0", &["10.0.3.21".parse().unwrap()]), [3]);
    }

    #[test]
    fn only_the_newest_run_is_undone_and_nothing_that_was_given_out_since() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("fix");
        let mut names = Vec::new();
        for freed in [&[18, 19][..], &[18]] {
            let mut record = Record::begin(&base, "cbr0", "node-1", Who::now()).unwrap();
            for last in freed {
                let item = *reservation(*last);
                let number = record.intend(&item, Some(&format!("{last}-x"))).unwrap();
                record.became(number, &FixItem { state: FixState::Done, ..item }, None).unwrap();
            }
            names.push(record.path().file_name().unwrap().to_str().unwrap().to_owned());
            std::thread::sleep(Duration::from_millis(2));
        }
        let look = |named: Option<&str>| {
            let undo = look(&base, "cbr0", &[], named).unwrap();
            assert!(undo.fix.undo);
            let told = |item: &FixItem| match &item.target {
                FixTarget::FreeReservation { ip, .. } => (ip.to_string(), item.state),
                _ => panic!("{item:?}"),
            };
            undo.fix.items.iter().map(told).collect::<Vec<_>>()
        };
        let one = |last: u8, state| (format!("10.0.3.{last}"), state);
        assert_eq!(look(None), [one(18, FixState::Planned)], "the newest alone");
        let older = [one(18, FixState::LeftOut), one(19, FixState::Planned)];
        assert_eq!(look(Some(&names[0])), older, "18 was given out before the second run");
        assert!(look(Some("2000")).is_empty());
        let (runs, _) = record::runs(&base).unwrap();
        let restored = FixItem { state: FixState::Restored, ..*reservation(18) };
        runs[0].open().unwrap().became(0, &restored, None).unwrap();
        assert!(look(None).is_empty(), "an older one only where it is named");
    }

    #[test]
    fn whoever_had_the_ip_afterwards_counts() {
        let tenure = |to: Option<&str>| Tenure {
            ip: "10.0.3.18".parse().unwrap(),
            netns: crate::contract::Netns::default(),
            container: None,
            pod: None,
            from: "2026-01-02T03:00:00.000Z".to_owned(),
            to: to.map(str::to_owned),
            ended_by: None,
            times: None,
            preexisting: false,
        };
        let at = "2026-01-02T03:10:00.000Z";
        for (to, later) in [
            (None, true),
            (Some("2026-01-02T03:10:00.001Z"), true),
            (Some("2026-01-02T03:09:59Z"), false),
            (Some("whenever"), true),
        ] {
            assert_eq!(is_later(&tenure(to), at), later, "{to:?}");
        }
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
