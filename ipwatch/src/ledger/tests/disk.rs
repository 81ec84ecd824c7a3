//! Disks that do not accept writes.

use super::*;

/// A small file system, which is unmounted when dropped.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    /// `None`, with the reason on stderr, if mounting is not permitted. In CI that is an error.
    fn small(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
        let options = c"size=6m,mode=0700";
        match rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, options) {
            Ok(()) => Some(Self { dir }),
            Err(error) if std::env::var_os("CI").is_none() => {
                eprintln!("SKIPPED {test}: a tmpfs cannot be mounted: {error}");
                None
            }
            Err(error) => panic!("{test}: a tmpfs cannot be mounted: {error}"),
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Leaves no byte free.
    fn fill(&self) -> PathBuf {
        let filler = self.path().join("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        let block = [0xa5; 4096];
        while std::io::Write::write(&mut file, &block).is_ok_and(|written| written > 0) {}
        filler
    }

    fn read_only(&self, read_only: bool) {
        let flags = if read_only {
            rustix::mount::MountFlags::RDONLY
        } else {
            rustix::mount::MountFlags::empty()
        };
        rustix::mount::mount_remount(self.path(), flags, c"").unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

fn until_active(ledger: &mut Whole) {
    until(ledger, "in use again", |ledger| {
        ledger.observe(BootNs(0), &[], &BTreeSet::from([Code::IpHeldByStuckProcess]));
        ledger.status().0 == SourceStatus::Active && ledger.file.shared.is_idle()
    });
}

#[test]
fn a_disk_that_is_full_at_the_start_is_used_when_there_is_room() {
    let Some(disk) = Disk::small("a_disk_that_is_full_at_the_start") else { return };
    let filler = disk.fill();
    let mut ledger = open(disk.path(), "boot-1");
    let (status, detail) = ledger.status();
    assert_eq!(status, SourceStatus::Degraded);
    assert!(detail.contains("ledger.redb") && detail.contains("No space left"), "{detail}");
    assert_eq!(see(&mut ledger, 10, &["a"]).len(), 1, "it watches on");
    ledger.held("k", tenure("10.0.0.1", 1));
    assert_eq!(history(&ledger).len(), 1);

    std::fs::remove_file(filler).unwrap();
    until_active(&mut ledger);
    close(ledger);
    let ledger = open(disk.path(), "boot-1");
    assert_eq!((ledger.findings(false).len(), history(&ledger).len()), (1, 1));
    close(ledger);
    let names = std::fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let aside = names.filter(|name| name.to_string_lossy().contains("corrupt")).count();
    assert_eq!(aside, 0, "no half-made file was taken for a damaged one");
}

#[test]
fn a_disk_that_fills_up_loses_nothing() {
    let Some(disk) = Disk::small("a_disk_that_fills_up") else { return };
    let mut ledger = open(disk.path(), "boot-1");
    see(&mut ledger, 10, &["a"]);
    ledger.held("long", tenure("10.9.9.9", 1));
    ledger.held("ends", tenure("10.9.9.8", 1));
    until_written(&mut ledger);
    let filler = disk.fill();
    // Some pages of the file are free to begin with.
    let mut held = 0_u64;
    until(&mut ledger, "the disk is felt", |ledger| {
        // No more than may wait, however slow the writer is.
        let waiting = ledger.file.shared.lock().backlog.len();
        for _ in waiting..500 {
            let key = held.to_string();
            ledger.held(&key, tenure(&format!("10.0.{}.{}", held / 250, held % 250), held));
            ledger.released(&key, BootNs((held + 1) * SECOND), "netns-gone");
            held += 1;
        }
        see(ledger, 20 + held, &["a"]);
        see(ledger, 21 + held, &["a", "b"]);
        ledger.status().0 == SourceStatus::Degraded
    });
    // A tenure that ends meanwhile must not be open again once the file works.
    ledger.released("ends", BootNs(90 * SECOND), "netns-gone");
    assert!(ledger.status().1.contains("rows queued"), "{:?}", ledger.status());
    see(&mut ledger, 100_000, &["a", "c"]);

    std::fs::remove_file(filler).unwrap();
    until_active(&mut ledger);
    let before = (ledger.findings(true), ledger.history(None, 100_000).run());
    assert_eq!(before.1.len() as u64, held + 2, "every row, although its batch failed");
    assert!(ledger.released("ends", BootNs(91 * SECOND), "netns-gone").is_none());
    let ended = before.1.iter().find(|row| row.ip.to_string() == "10.9.9.8").unwrap();
    assert_eq!(ended.ended_by.as_deref(), Some("netns-gone"));
    close(ledger);
    let ledger = open(disk.path(), "boot-1");
    assert_eq!(ledger.findings(true), before.0);
    assert_eq!(ledger.history(None, 100_000).run(), before.1);
    close(ledger);
}

/// It would put a history of its own in the place of the one that waits.
#[test]
fn a_second_daemon_is_refused_though_the_file_of_the_first_is_closed() {
    let Some(disk) = Disk::small("a_second_daemon_is_refused") else { return };
    let filler = disk.fill();
    let first = open(disk.path(), "boot-1");
    assert_eq!(first.status().0, SourceStatus::Degraded, "nothing could be opened");
    std::fs::remove_file(filler).unwrap();
    disk.read_only(true);
    let refused = |error: LedgerError| assert!(matches!(error, LedgerError::Locked(_)), "{error}");
    refused(try_open(disk.path(), "boot-1", Retention::default()).unwrap_err());
    disk.read_only(false);
    let mut first = first;
    until_active(&mut first);
    refused(try_open(disk.path(), "boot-1", Retention::default()).unwrap_err());
    close(first);
    close(open(disk.path(), "boot-1"));
}

#[test]
fn a_disk_that_becomes_read_only_is_waited_for() {
    let Some(disk) = Disk::small("a_disk_that_becomes_read_only") else { return };
    let state = disk.path().join("state");
    std::fs::create_dir(&state).unwrap();
    disk.read_only(true);
    let mut ledger = open(&state, "boot-1");
    let (status, detail) = ledger.status();
    assert_eq!(status, SourceStatus::Degraded);
    assert!(detail.contains("Read-only file system"), "{detail}");
    see(&mut ledger, 10, &["a"]);
    disk.read_only(false);
    until_active(&mut ledger);
    close(ledger);
    let ledger = open(&state, "boot-1");
    assert_eq!(ledger.findings(false).len(), 1);
    close(ledger);
}

#[test]
fn what_could_not_be_written_at_the_end_is_said() {
    let dir = tempfile::tempdir().unwrap();
    // A file where the directory should be.
    let state = dir.path().join("state");
    std::fs::write(&state, b"").unwrap();
    let mut ledger = open(&state, "boot-1");
    assert_eq!(ledger.status().0, SourceStatus::Degraded);
    see(&mut ledger, 10, &["a"]);
    let error = ledger.close(PATIENCE).unwrap_err();
    assert!(matches!(error, LedgerError::NotWritten { .. }), "{error}");
}

/// The file of an earlier run appears late: its content and the current state are merged.
#[test]
fn an_earlier_run_that_comes_late_is_joined() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut earlier = open(&state, "boot-1");
    see(&mut earlier, 10, &["a", "gone"]);
    see(&mut earlier, 11, &["a", "gone"]);
    earlier.held("k", tenure("10.0.0.1", 5));
    earlier.held("gone", tenure("10.0.0.2", 5));
    let firing_at = earlier.findings(false)[0].firing_at.clone();
    close(earlier);
    let hidden = dir.path().join("hidden");
    std::fs::rename(&state, &hidden).unwrap();
    std::fs::write(&state, b"").unwrap();

    let mut ledger = open(&state, "boot-1");
    see(&mut ledger, 20, &["a"]);
    ledger.held("k", tenure("10.0.0.1", 20));
    ledger.settle(&HashSet::from(["k".to_owned()]), BootNs(21 * SECOND));
    std::fs::remove_file(&state).unwrap();
    std::fs::rename(&hidden, &state).unwrap();
    until_active(&mut ledger);
    let resolved = see(&mut ledger, 30, &["a"]);
    assert_eq!(resolved.len(), 1, "what is gone resolves: {resolved:?}");
    assert_eq!(ledger.findings(false)[0].firing_at, firing_at);
    close(ledger);

    let ledger = open(&state, "boot-1");
    let rows = history(&ledger);
    assert_eq!(rows.len(), 2);
    let from = tenure("10.0.0.1", 5).from.to_string();
    assert!(rows.contains(&("10.0.0.1".to_owned(), from.clone(), None)), "{rows:?}");
    assert!(rows.contains(&("10.0.0.2".to_owned(), from, Some("unseen".to_owned()))), "{rows:?}");
    close(ledger);
}
