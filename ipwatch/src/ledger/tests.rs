//! The ledger with a real file: which data survives which events.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::backlog::FindingRow;
use super::file::FILE;
use super::life::{Life, Record};
use super::tenure::Open;
use super::writer::Pace;
use super::*;
use crate::clock::Calendar;
use crate::contract::{Netns, Past, Prefix, Tenure};
use crate::fact::{Boot, BootNs, NetnsRef, SourceStatus};
use crate::finding::{Candidate, Change, ChangeKind, Code, Finding, Severity, Status, Subject};
use crate::map::{Begun, Identity as NetnsIdentity, TenantKind, TenureKey};

mod disk;
mod file;
mod rows;

const CALENDAR: Calendar = Calendar { wall_offset: 1_767_225_600_000_000_000 };
const SECOND: u64 = 1_000_000_000;
/// Bounds a wait for another thread; no test depends on how long it really takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn boot(id: &str) -> Boot {
    Boot {
        boot_id: id.to_owned(),
        node: "node-17".to_owned(),
        kernel: "6.18.0".to_owned(),
        wall_offset: CALENDAR.wall_offset,
        host: NetnsRef::default(),
    }
}

/// The ledger and its file, in the daemon's order: the file's content is merged first, and rows are queued at once.
#[derive(Debug)]
struct Whole {
    ledger: Ledger,
    file: LedgerFile,
}

impl Whole {
    fn open(dir: Option<&Path>, boot: &Boot, retention: Retention) -> Result<Self, LedgerError> {
        Self::open_with(dir, boot, retention, Pace::default())
    }

    fn open_with(
        dir: Option<&Path>,
        boot: &Boot,
        retention: Retention,
        pace: Pace,
    ) -> Result<Self, LedgerError> {
        let file = LedgerFile::open_with(dir, boot, retention, pace)?;
        let mut ledger = Ledger::default();
        ledger.set_calendar(CALENDAR);
        let mut whole = Self { ledger, file };
        whole.with(|_| ());
        Ok(whole)
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Ledger) -> T) -> T {
        if let Some(loaded) = self.file.take_loaded() {
            self.ledger.restore(loaded, crate::clock::now());
        }
        let done = act(&mut self.ledger);
        self.file.write(self.ledger.take_writes());
        done
    }

    fn observe(
        &mut self,
        now: BootNs,
        candidates: &[Candidate],
        blind: &BTreeSet<Code>,
    ) -> Vec<Change> {
        self.with(|ledger| ledger.observe(now, candidates, blind))
    }

    fn held(&mut self, name: &str, begun: Begun) -> bool {
        self.with(|ledger| ledger.held(key(name), begun)).is_some()
    }

    fn released(&mut self, name: &str, at: BootNs, ended_by: &'static str) -> Option<Tenure> {
        self.with(|ledger| ledger.released(&key(name), at, ended_by, TenantKind::Pod))
            .map(|row| row.tenure())
    }

    fn settle(&mut self, alive: &HashSet<String>, at: BootNs) -> Vec<Tenure> {
        let alive = alive.iter().map(|name| key(name)).collect();
        let ended = self.with(|ledger| ledger.settle(&alive, at));
        ended.iter().map(tenure::Row::tenure).collect()
    }

    fn take_ended_by_reboot(&mut self) -> Option<(String, Vec<Tenure>)> {
        self.ledger.take_ended_by_reboot()
    }

    fn findings(&self, all: bool) -> Vec<Finding> {
        self.ledger.findings(all)
    }

    fn history(&self, prefix: Option<Prefix>, limit: usize) -> History {
        self.file.history(Past { ip: prefix, ..Past::default() }, limit)
    }

    fn prune(&mut self, now: BootNs) {
        let before = self.file.prune(&CALENDAR.date(now));
        self.ledger.forget_before(before);
    }

    fn status(&self) -> (SourceStatus, String) {
        self.file.status()
    }

    fn close(mut self, timeout: Duration) -> Result<(), LedgerError> {
        self.with(|_| ());
        self.file.write(self.ledger.final_writes());
        self.file.close(timeout)
    }
}

fn open(dir: &Path, boot_id: &str) -> Whole {
    try_open(dir, boot_id, Retention::default()).unwrap()
}

fn try_open(dir: &Path, boot_id: &str, retention: Retention) -> Result<Whole, LedgerError> {
    let pace = Pace {
        gather: Duration::from_millis(200),
        retry: (Duration::from_millis(20), Duration::from_millis(50)),
        ..Pace::default()
    };
    Whole::open_with(Some(dir), &boot(boot_id), retention, pace)
}

fn candidate(key: &str, observed: u64) -> Candidate {
    Candidate {
        code: Code::IpHeldByStuckProcess,
        key: key.to_owned(),
        severity: Severity::Warning,
        subject: Subject::default(),
        holders: Vec::new(),
        evidence: Vec::new(),
        since: BootNs(SECOND),
        observed: BootNs(observed),
        impact: crate::remedy::Text::own("it will break"),
        remediation: Vec::new(),
        caused_by: None,
        preexisting: false,
    }
}

/// The key of a tenure that a test calls so.
fn key(name: &str) -> TenureKey {
    let number = name.bytes().fold(0, |number, byte| number << 8 | u64::from(byte));
    let ip = "192.0.2.1".parse().unwrap();
    TenureKey { netns: NetnsIdentity::Cookie(number), ifindex: 2, ip, prefix_len: 24 }
}

fn tenure(ip: &str, from: u64) -> Begun {
    Begun {
        ip: ip.parse().unwrap(),
        netns: Netns { cookie: Some(7), ..Netns::default() },
        from: CALENDAR.wall(BootNs(from * SECOND)),
        preexisting: false,
    }
}

fn see(ledger: &mut Whole, seconds: u64, keys: &[&str]) -> Vec<Change> {
    let candidates: Vec<Candidate> =
        keys.iter().map(|key| candidate(key, seconds * SECOND)).collect();
    ledger.observe(BootNs(seconds * SECOND), &candidates, &BTreeSet::new())
}

fn close(ledger: Whole) {
    ledger.close(PATIENCE).unwrap();
}

/// Waits until `done` is true; panics with the ledger's status on timeout.
fn until(ledger: &mut Whole, what: &str, mut done: impl FnMut(&mut Whole) -> bool) {
    let start = crate::clock::now();
    while !done(ledger) {
        let waited = Duration::from_nanos(crate::clock::now().since(start));
        assert!(waited < PATIENCE, "{what}: still {:?}", ledger.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until everything is on the disk.
fn until_written(ledger: &mut Whole) {
    until(ledger, "everything written", |ledger| ledger.file.shared.is_idle());
}

/// What a restart must keep of each open finding. New evidence is not written, because it is observed again.
fn lives(ledger: &Whole) -> Vec<(String, Status, String, Option<String>)> {
    let alive = ledger.findings(false).into_iter();
    alive.map(|alive| (alive.id, alive.status, alive.since, alive.firing_at)).collect()
}

/// `(ip, from, ended_by)` of the history, newest first.
fn history(ledger: &Whole) -> Vec<(String, String, Option<String>)> {
    let rows = ledger.history(None, 1000).run();
    rows.into_iter().map(|row| (row.ip.to_string(), row.from, row.ended_by)).collect()
}

#[test]
fn a_restart_within_the_boot_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path(), "boot-1");
    see(&mut ledger, 10, &["a", "b"]);
    see(&mut ledger, 11, &["a", "b"]);
    see(&mut ledger, 12, &["a"]);
    assert!(ledger.held("k1", tenure("10.0.0.1", 5)));
    assert!(ledger.held("k2", tenure("10.0.0.2", 6)));
    let before = ledger.findings(true);
    close(ledger);

    let mut ledger = open(dir.path(), "boot-1");
    assert_eq!(ledger.findings(true), before, "alive and resolved ones, to the last field");
    // Until the first snapshot is complete nothing is resolved; then what still exists is no change.
    let blind = BTreeSet::from([Code::IpHeldByStuckProcess]);
    assert_eq!(ledger.observe(BootNs(20 * SECOND), &[], &blind), []);
    assert_eq!(see(&mut ledger, 21, &["a"]), []);
    assert_eq!(ledger.findings(false)[0].firing_at, before[0].firing_at);

    assert!(!ledger.held("k1", tenure("10.0.0.1", 20)), "held since before");
    let unseen = ledger.settle(&HashSet::from(["k1".to_owned()]), BootNs(22 * SECOND));
    assert_eq!(unseen.len(), 1);
    assert_eq!(unseen[0].ended_by.as_deref(), Some("unseen"));
    let over = ledger.released("k1", BootNs(30 * SECOND), "address-deleted").unwrap();
    assert_eq!(over.from, tenure("10.0.0.1", 5).from.to_string());
    let first = |n: usize| history(&ledger)[n].clone();
    assert_eq!(
        first(0),
        ("10.0.0.2".into(), tenure("::", 6).from.to_string(), Some("unseen".into()))
    );
    assert_eq!(
        first(1),
        ("10.0.0.1".into(), tenure("::", 5).from.to_string(), Some("address-deleted".into()))
    );
    close(ledger);
}

#[test]
fn a_reboot_ends_everything_and_merges_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path(), "boot-1");
    see(&mut ledger, 10, &["a"]);
    let id = ledger.findings(false)[0].id.clone();
    ledger.held("k1", tenure("10.0.0.1", 5));
    close(ledger);

    let mut ledger = open(dir.path(), "boot-2");
    assert_eq!(ledger.findings(false), []);
    // Every sink is notified, once.
    let changes = see(&mut ledger, 3, &[]);
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (changes[0].change, &changes[0].finding.id, changes[0].finding.status),
        (ChangeKind::Resolved, &id, Status::Resolved)
    );
    assert_eq!(see(&mut ledger, 4, &[]), []);
    let (boot, ended) = ledger.take_ended_by_reboot().unwrap();
    assert_eq!((boot.as_str(), ended.len()), ("boot-1", 1), "and so is who had an IP");
    assert_eq!(ended[0].from, tenure("10.0.0.1", 5).from.to_string());
    assert_eq!(ended[0].ended_by.as_deref(), Some("reboot"));
    assert_eq!(ledger.take_ended_by_reboot(), None);
    // The same key in this boot is another tenure, although `settle` was never called.
    assert!(ledger.held("k1", tenure("10.0.0.1", 50)));
    let rows = history(&ledger);
    assert_eq!(rows[0].2, None);
    assert_eq!(rows[1].2.as_deref(), Some("reboot"));
    close(ledger);

    let ledger = open(dir.path(), "boot-2");
    assert_eq!(ledger.findings(true)[0].status, Status::Resolved);
    assert_eq!(history(&ledger).len(), 2);
    close(ledger);
}

/// What kill -9 leaves: the file at some moment, never closed.
#[test]
fn what_was_told_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let image = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path(), "boot-1");
    for n in 0..40_u64 {
        see(&mut ledger, 10 + n, &["a"]);
        let key = n.to_string();
        ledger.held(&key, tenure(&format!("10.0.0.{n}"), n));
        if n % 3 == 0 {
            ledger.released(&key, BootNs(n * SECOND), "address-deleted");
        }
    }
    until_written(&mut ledger);
    let before = lives(&ledger);
    std::fs::copy(dir.path().join(FILE), image.path().join(FILE)).unwrap();

    let mut survivor = open(image.path(), "boot-1");
    assert_eq!(survivor.status().0, SourceStatus::Active);
    assert_eq!(lives(&survivor), before);
    assert_eq!(history(&survivor), history(&ledger));
    assert_eq!(survivor.settle(&HashSet::new(), BootNs(99 * SECOND)).len(), 26);
    close(survivor);
    close(ledger);
}

#[test]
fn findings_are_written_without_waiting_for_more() {
    let dir = tempfile::tempdir().unwrap();
    let pace = Pace { gather: Duration::from_secs(24 * 3600), ..Pace::default() };
    let (boot, retention) = (boot("boot-1"), Retention::default());
    let mut ledger = Whole::open_with(Some(dir.path()), &boot, retention, pace).unwrap();
    ledger.held("k", tenure("10.0.0.1", 1));
    see(&mut ledger, 10, &["a"]);
    // Nothing else happens and nothing is closed.
    until_written(&mut ledger);
    close(ledger);
}

#[test]
fn a_resolved_finding_that_comes_back_is_alive_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path(), "boot-1");
    see(&mut ledger, 10, &["a"]);
    see(&mut ledger, 11, &[]);
    until_written(&mut ledger);
    see(&mut ledger, 12, &["a"]);
    close(ledger);
    let ledger = open(dir.path(), "boot-1");
    let all = ledger.findings(true);
    assert_eq!(all.len(), 1, "one finding, not one alive and one resolved");
    assert_eq!(all[0].status, Status::Pending);
    close(ledger);
}

#[test]
fn history_is_newest_first_of_file_and_memory_alike() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path(), "boot-1");
    let history = |ledger: &Whole, prefix: Option<(&str, u8)>, limit| -> Vec<String> {
        let prefix = prefix.map(|(ip, len)| Prefix { ip: ip.parse().unwrap(), len });
        let rows = ledger.history(prefix, limit).run();
        rows.into_iter().map(|row| format!("{}", row.ip)).collect()
    };
    ledger.held("a", tenure("10.0.0.1", 1));
    ledger.held("b", tenure("10.0.1.1", 3));
    ledger.held("v6", tenure("fd00::1", 4));
    until_written(&mut ledger);
    ledger.held("c", tenure("10.0.0.2", 2));
    ledger.released("a", BootNs(9 * SECOND), "netns-gone");
    assert_eq!(history(&ledger, None, 9), ["fd00::1", "10.0.1.1", "10.0.0.2", "10.0.0.1"]);
    assert_eq!(history(&ledger, None, 2), ["fd00::1", "10.0.1.1"]);
    assert_eq!(history(&ledger, Some(("10.0.0.0", 24)), 9), ["10.0.0.2", "10.0.0.1"]);
    assert_eq!(history(&ledger, Some(("10.0.0.1", 32)), 9), ["10.0.0.1"]);
    assert_eq!(history(&ledger, Some(("10.0.0.9", 32)), 9), [""; 0]);
    // The waiting end is newer than the row on the disk.
    let one = ledger.history(Some(Prefix { ip: "10.0.0.1".parse().unwrap(), len: 32 }), 9).run();
    assert_eq!(one[0].ended_by.as_deref(), Some("netns-gone"));
    until_written(&mut ledger);
    assert_eq!(history(&ledger, Some(("10.0.0.1", 32)), 9), ["10.0.0.1"]);
    close(ledger);
}

#[test]
fn without_a_directory_everything_is_in_memory() {
    let boot = boot("boot-1");
    let mut ledger = Whole::open(None, &boot, Retention::default()).unwrap();
    assert_eq!(ledger.status(), (SourceStatus::Disabled, "in memory only".to_owned()));
    assert_eq!(see(&mut ledger, 10, &["a"]).len(), 1);
    ledger.held("k", tenure("10.0.0.1", 1));
    ledger.released("k", BootNs(2 * SECOND), "netns-gone");
    assert_eq!(history(&ledger).len(), 1);
    ledger.prune(BootNs(3 * SECOND));
    close(ledger);
}

#[test]
fn age_takes_what_is_over_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let retention = Retention { max_age_secs: 100, ..Retention::default() };
    let mut ledger = try_open(dir.path(), "boot-1", retention).unwrap();
    see(&mut ledger, 10, &["old", "alive"]);
    see(&mut ledger, 11, &["alive"]);
    ledger.held("old", tenure("10.0.0.1", 1));
    ledger.held("alive", tenure("10.0.0.2", 1));
    ledger.released("old", BootNs(2 * SECOND), "netns-gone");
    ledger.held("young", tenure("10.0.0.3", 1));
    ledger.released("young", BootNs(150 * SECOND), "netns-gone");
    until_written(&mut ledger);
    ledger.prune(BootNs(200 * SECOND));
    until(&mut ledger, "pruned", |ledger| history(ledger).len() == 2);
    assert_eq!(ledger.findings(true).len(), 1);
    close(ledger);

    let ledger = try_open(dir.path(), "boot-1", retention).unwrap();
    assert_eq!(ledger.findings(true).len(), 1);
    assert!(history(&ledger).iter().all(|(ip, ..)| ip != "10.0.0.1"));
    close(ledger);
}

#[test]
fn size_takes_the_oldest_first() {
    let dir = tempfile::tempdir().unwrap();
    let retention = Retention { max_bytes: 3 * 1024 * 1024, ..Retention::default() };
    let mut ledger = try_open(dir.path(), "boot-1", retention).unwrap();
    ledger.held("alive", tenure("10.9.9.9", 1));
    for n in 0..12_000_u64 {
        let key = n.to_string();
        ledger.held(&key, tenure(&format!("10.0.{}.{}", n / 250, n % 250), n));
        ledger.released(&key, BootNs((n + 1) * SECOND), "netns-gone");
        if n % 1000 == 0 {
            until_written(&mut ledger);
        }
    }
    until_written(&mut ledger);
    let len = || std::fs::metadata(dir.path().join(FILE)).unwrap().len();
    until(&mut ledger, "small again", |_| len() <= retention.max_bytes);
    let rows = ledger.history(None, 100_000).run();
    assert!((100..12_000).contains(&rows.len()), "{} rows are left", rows.len());
    assert_eq!(rows[0].ip.to_string(), "10.0.47.249", "the youngest are there");
    assert_eq!(rows.last().unwrap().ip.to_string(), "10.9.9.9", "and what is not over");
    close(ledger);
}
