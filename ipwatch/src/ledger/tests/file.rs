//! Files that are damaged, foreign or missing.

use super::*;

const SEAL: &str = "ledger.redb.sealed";

fn file(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

fn bytes(path: &Path) -> Vec<u8> {
    crate::bounded::read_regular(path, 16 * 1024 * 1024).unwrap().bytes
}

fn aside(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != FILE && name != SEAL)
        .collect();
    names.sort();
    names
}

/// A ledger with some content: its file while it is open, and its seal and file after it is closed.
fn images() -> [(Option<Vec<u8>>, Vec<u8>); 2] {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path(), "boot-1");
    see(&mut ledger, 10, &["a", "b", "c"]);
    for n in 0..200 {
        ledger.held(&n.to_string(), tenure(&format!("10.0.0.{n}"), n));
    }
    until_written(&mut ledger);
    let open = bytes(&file(dir.path()));
    close(ledger);
    let seal = bytes(&dir.path().join(SEAL));
    [(None, open), (Some(seal), bytes(&file(dir.path())))]
}

/// The same bytes truncated at several places, and with part of a page overwritten at several places.
fn damaged(whole: &[u8]) -> Vec<Vec<u8>> {
    const PAGE: usize = 4096;
    let cuts = [1, 8, 320, PAGE, whole.len() / 2, whole.len() - 1].map(|len| whole[..len].to_vec());
    let mut images = cuts.to_vec();
    let pages = whole.chunks(PAGE).enumerate();
    let used = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    let blots = [(0, 0xff), (64, 0xa5), (1024, 0)].into_iter().cycle();
    for ((n, page), (skip, byte)) in used.zip(blots) {
        let mut image = whole.to_vec();
        image[n * PAGE + skip..n * PAGE + page.len()].fill(byte);
        images.push(image);
    }
    images
}

#[test]
fn garbage_is_put_aside_and_a_new_file_begun() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(file(dir.path()), b"this is no ledger").unwrap();
    let mut ledger = open(dir.path(), "boot-1");
    assert_eq!(ledger.status().0, SourceStatus::Active);
    see(&mut ledger, 10, &["a"]);
    close(ledger);
    assert_eq!(aside(dir.path()), ["ledger.redb.corrupt-1"]);
    assert_eq!(bytes(&dir.path().join("ledger.redb.corrupt-1")), b"this is no ledger");
    let ledger = open(dir.path(), "boot-1");
    assert_eq!(ledger.findings(false).len(), 1);
    close(ledger);
}

#[test]
fn only_the_last_damaged_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..5 {
        std::fs::write(file(dir.path()), format!("damaged {n}")).unwrap();
        close(open(dir.path(), "boot-1"));
    }
    let kept: Vec<String> = (3..=5).map(|n| format!("ledger.redb.corrupt-{n}")).collect();
    assert_eq!(aside(dir.path()), kept);
}

/// The daemon starts with any file, and shows either what was written or nothing.
#[test]
fn damage_anywhere_is_survived() {
    for (seal, whole) in images() {
        let mut felt = 0;
        for image in std::iter::once(whole.clone()).chain(damaged(&whole)) {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(file(dir.path()), &image).unwrap();
            if let Some(seal) = &seal {
                std::fs::write(dir.path().join(SEAL), seal).unwrap();
            }
            let mut ledger = open(dir.path(), "boot-1");
            assert_eq!(ledger.status().0, SourceStatus::Active, "{:?}", ledger.status());
            match (ledger.findings(true).len(), history(&ledger).len(), aside(dir.path()).len()) {
                (3, 200, 0) if seal.is_none() || image == whole => {}
                // Not closed yet: the commit before the damaged one.
                (0 | 3, 0..=200, 0) if seal.is_none() && image != whole => felt += 1,
                (0, 0, 1) if image != whole => felt += 1,
                other => panic!("findings, tenures, files put aside: {other:?}"),
            }
            see(&mut ledger, 20, &["new"]);
            close(ledger);
        }
        assert!(felt > 6, "the damage was felt");
    }
}

#[test]
fn another_redb_file_is_not_taken_for_ours() {
    let dir = tempfile::tempdir().unwrap();
    {
        let db = redb::Database::create(file(dir.path())).unwrap();
        let txn = db.begin_write().unwrap();
        let theirs: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("theirs");
        txn.open_table(theirs).unwrap().insert("a", 1).unwrap();
        txn.commit().unwrap();
    }
    close(open(dir.path(), "boot-1"));
    assert_eq!(aside(dir.path()), ["ledger.redb.corrupt-1"]);
}

#[test]
fn a_newer_format_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    close(open(dir.path(), "boot-1"));
    std::fs::remove_file(dir.path().join(SEAL)).unwrap();
    {
        let db = redb::Database::open(file(dir.path())).unwrap();
        let txn = db.begin_write().unwrap();
        txn.open_table(tables::META).unwrap().insert("format", "2").unwrap();
        txn.commit().unwrap();
    }
    let before = bytes(&file(dir.path()));
    let error = try_open(dir.path(), "boot-1", Retention::default()).unwrap_err();
    assert!(matches!(error, LedgerError::Newer { found: 2, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("ledger.redb has format 2") && text.contains("run the newer"), "{text}");
    assert!(bytes(&file(dir.path())) == before, "the file was touched");
    assert_eq!(aside(dir.path()), [""; 0]);
}

#[test]
fn a_second_daemon_is_told_which_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = open(dir.path(), "boot-1");
    let error = try_open(dir.path(), "boot-1", Retention::default()).unwrap_err();
    assert!(matches!(error, LedgerError::Locked(_)), "{error}");
    assert!(error.to_string().contains(file(dir.path()).to_str().unwrap()), "{error}");
    // The first one has lost nothing.
    see(&mut first, 10, &["a"]);
    close(first);
    let third = open(dir.path(), "boot-1");
    assert_eq!(third.findings(false).len(), 1);
    close(third);
}

#[test]
fn a_file_that_is_deleted_is_made_again_with_all_that_is_alive() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path(), "boot-1");
    see(&mut ledger, 10, &["a"]);
    ledger.held("k", tenure("10.0.0.1", 1));
    until_written(&mut ledger);
    std::fs::remove_file(file(dir.path())).unwrap();
    see(&mut ledger, 11, &["a", "b"]);
    until(&mut ledger, "a new file", |ledger| {
        // The core's next step merges the content of the new file, which is empty.
        ledger.held("k", tenure("10.0.0.1", 1));
        file(dir.path()).exists() && ledger.file.shared.is_idle()
    });
    close(ledger);
    let ledger = open(dir.path(), "boot-1");
    assert_eq!(ledger.findings(false).len(), 2);
    assert_eq!(history(&ledger).len(), 1);
    close(ledger);
}

#[test]
fn a_directory_that_is_deleted_is_made_again_with_all_that_is_alive() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut ledger = open(&state, "boot-1");
    see(&mut ledger, 10, &["a"]);
    ledger.held("k", tenure("10.0.0.1", 1));
    until_written(&mut ledger);
    std::fs::remove_dir_all(&state).unwrap();
    see(&mut ledger, 11, &["a", "b"]);
    until(&mut ledger, "a new directory", |ledger| {
        ledger.held("k", tenure("10.0.0.1", 1));
        file(&state).exists() && ledger.file.shared.is_idle()
    });
    // It is this daemon's as the old one was.
    let second = try_open(&state, "boot-1", Retention::default()).unwrap_err();
    assert!(matches!(second, LedgerError::Locked(_)), "{second}");
    close(ledger);
    let ledger = open(&state, "boot-1");
    assert_eq!((ledger.findings(false).len(), history(&ledger).len()), (2, 1));
    close(ledger);
}

#[test]
fn whoever_waits_for_the_disk_finds_it_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path(), "boot-1");
    for at in 10..30 {
        see(&mut ledger, at, &[&*format!("{at}")]);
        assert!(ledger.file.written().wait(PATIENCE));
        assert_eq!(ledger.file.backlog(), (0, 0));
    }
    close(ledger);
    let mut memory = Whole::open(None, &boot("boot-1"), Retention::default()).unwrap();
    see(&mut memory, 10, &["a"]);
    assert!(memory.file.written().wait(PATIENCE), "nothing waits for a disk");
}

#[test]
fn nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("made").join("here");
    close(open(&state, "boot-1"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&file(&state))), (0o700, 0o600));
}
