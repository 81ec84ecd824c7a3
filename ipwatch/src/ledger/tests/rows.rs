//! Rows on their way to the disk: which rows wait, and in which tables they are.

use super::*;
use crate::ledger::backlog::Backlog;
use crate::ledger::format::Identity;
use crate::ledger::store::Store;
use crate::ledger::tenure::Row;

fn identity() -> Identity {
    Identity { boot_id: "boot-1".to_owned(), node: "node-17".to_owned(), began: String::new() }
}

fn finding(status: Status) -> FindingRow {
    let mut life = Life::default();
    let change = life.observe(BootNs(SECOND), &CALENDAR, &[candidate("a", 9)], &BTreeSet::new());
    let mut finding = change[0].finding.clone();
    finding.status = status;
    if status == Status::Resolved {
        finding.resolved_at = Some(CALENDAR.date(BootNs(2 * SECOND)));
    }
    FindingRow::new(&Record::over(finding))
}

/// Writes these backlogs one after the other, and opens the file again.
fn written(backlogs: impl IntoIterator<Item = Backlog>) -> Loaded {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let (store, _) = Store::open(&path, &identity()).unwrap();
    backlogs.into_iter().for_each(|backlog| store.commit(&backlog).unwrap());
    store.close(&path).unwrap();
    Store::open(&path, &identity()).unwrap().1
}

#[test]
fn a_resolved_finding_is_not_among_the_open_ones() {
    let [mut one, mut other] = [Backlog::default(), Backlog::default()];
    one.finding("a", finding(Status::Pending));
    other.finding("a", finding(Status::Resolved));
    let loaded = written([one, other]);
    assert_eq!((loaded.findings.len(), loaded.resolved.len()), (0, 1));
}

/// Both rows of one key in one transaction, in the order of their names: the newer one first.
#[test]
fn a_tenure_that_ended_and_began_again_is_open() {
    let (mut open, mut backlog) = (Open::default(), Backlog::default());
    open.held(key("k"), tenure("10.0.0.1", 1));
    let over = open.released(&key("k"), CALENDAR.wall(BootNs(SECOND)), "netns-gone").unwrap();
    backlog.tenure(over.name(), over);
    let again = open.held(key("k"), tenure("10.0.0.1", 2)).unwrap();
    backlog.tenure(again.name(), again.clone());
    let read = written([backlog]).tenures;
    let whole = |row: &Row| (row.name(), row.hash(), row.tenure());
    assert_eq!(read.iter().map(whole).collect::<Vec<_>>(), [whole(&again)]);
}

#[test]
fn what_comes_back_unwritten_yields_to_what_is_newer() {
    let mut backlog = Backlog::default();
    backlog.finding("kept", finding(Status::Pending));
    backlog.finding("newer", finding(Status::Pending));
    let failed = backlog.take();
    assert!(backlog.is_empty());
    backlog.finding("newer", finding(Status::Resolved));
    backlog.put_back(failed);
    let ended = |id: &str| {
        backlog.findings().find(|(known, _)| *known == id).map(|(_, row)| row.ended != 0)
    };
    assert_eq!((ended("kept"), ended("newer")), (Some(false), Some(true)));
}

#[test]
fn only_what_is_over_is_given_up_and_that_is_counted() {
    let (mut open, mut backlog) = (Open::default(), Backlog::default());
    let lasts = open.held(key("lasts"), tenure("10.9.9.9", 1)).unwrap();
    backlog.tenure(lasts.name(), lasts);
    for n in 0..10_000_u64 {
        open.held(key("k"), tenure("10.0.0.1", n + 2));
        let at = CALENDAR.wall(BootNs((n + 2) * SECOND));
        let over = open.released(&key("k"), at, "address-deleted").unwrap();
        backlog.tenure(over.name(), over);
    }
    assert_eq!(backlog.lost() + backlog.len() as u64, 10_001);
    assert!(backlog.lost() > 0);
    assert_eq!(backlog.tenures().filter(|(_, row)| row.ended() == 0).count(), 1);
}

/// An address that flaps beyond its budget writes one row again and again.
#[test]
fn a_row_that_is_written_again_and_again_takes_one_place() {
    let (mut open, mut backlog) = (Open::default(), Backlog::default());
    let mut ended = |name: &str, ip: &str| {
        open.held(key(name), tenure(ip, 1));
        open.released(&key(name), CALENDAR.wall(BootNs(2 * SECOND)), "address-deleted").unwrap()
    };
    let (other, flaps) = (ended("other", "10.0.0.1"), ended("flaps", "10.0.0.2"));
    backlog.tenure(other.name(), other);
    for _ in 0..10_000 {
        backlog.tenure(flaps.name(), flaps.clone());
    }
    assert_eq!((backlog.len(), backlog.lost()), (2, 0));
    backlog.set_memory_short(true);
    assert_eq!((backlog.len(), backlog.lost()), (2, 0));
}

/// What was written as ended and goes on after all is no row that may be given up, nor is one that must not be written.
#[test]
fn only_rows_that_wait_and_are_over_have_a_place_among_the_ended() {
    let (mut open, mut backlog) = (Open::default(), Backlog::default());
    for n in 0..10_000_u64 {
        let lasts = open.held(key("k"), tenure("10.0.0.1", n + 2)).unwrap();
        let at = CALENDAR.wall(BootNs((n + 2) * SECOND));
        let over = open.released(&key("k"), at, "address-deleted").unwrap();
        backlog.tenure(over.name(), over.clone());
        match n {
            0 => backlog.tenure(lasts.name(), lasts),
            1 => backlog.forget(&over.name()),
            _ => {}
        }
    }
    assert_eq!(backlog.tenures().filter(|(_, row)| row.ended() == 0).count(), 1);
    assert_eq!(backlog.lost() + backlog.len() as u64, 10_000 - 1);
}

#[test]
fn a_finding_that_is_resolved_again_and_again_takes_one_place() {
    let mut backlog = Backlog::default();
    backlog.finding("other", finding(Status::Resolved));
    let (open, resolved) = (finding(Status::Pending), finding(Status::Resolved));
    for _ in 0..2_000 {
        backlog.finding("flaps", resolved.clone());
        backlog.finding("flaps", resolved.clone());
        backlog.finding("flaps", open.clone());
    }
    backlog.finding("flaps", resolved);
    assert_eq!((backlog.len(), backlog.lost()), (2, 0));
}

/// While memory is short fewer rows wait, also of a batch that comes back unwritten.
#[test]
fn while_memory_is_short_fewer_rows_wait() {
    let (mut open, mut backlog) = (Open::default(), Backlog::default());
    for n in 0..4_000_u64 {
        open.held(key("k"), tenure("10.0.0.1", n + 2));
        let at = CALENDAR.wall(BootNs((n + 2) * SECOND));
        let over = open.released(&key("k"), at, "address-deleted").unwrap();
        backlog.tenure(over.name(), over);
    }
    let failed = backlog.take();
    backlog.set_memory_short(true);
    backlog.put_back(failed);
    assert_eq!((backlog.len(), backlog.lost()), (1_024, 4_000 - 1_024));
}

#[test]
fn what_is_lost_is_counted_once_however_often_a_write_fails() {
    let (mut open, mut backlog) = (Open::default(), Backlog::default());
    for n in 0..10_000_u64 {
        open.held(key("k"), tenure("10.0.0.1", n + 2));
        let at = CALENDAR.wall(BootNs((n + 2) * SECOND));
        let over = open.released(&key("k"), at, "address-deleted").unwrap();
        backlog.tenure(over.name(), over);
    }
    let lost = backlog.lost();
    assert!(lost > 0);
    for _ in 0..3 {
        let failed = backlog.take();
        backlog.put_back(failed);
    }
    assert_eq!(backlog.lost(), lost);
}
