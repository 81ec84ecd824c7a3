//! Files that are written while they are read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::*;
use crate::clock;

const NESTED: &[u8] = include_bytes!("../fixtures/nested.db");
/// The binary of `make.go`, built by `cargo xtask test --long`.
const WRITER: &str = "IPWATCH_TEST_BOLT_WRITER";

/// As bolt does before it writes pages beyond the end of the file.
#[test]
fn a_file_that_grows_meanwhile_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    fs::write(&path, NESTED).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::File::options().write(true).open(&path).unwrap();
            let mut size = NESTED.len() as u64;
            while !over.load(Ordering::Relaxed) && size < LARGEST as u64 / 8 {
                size += 4096;
                file.set_len(size).unwrap();
            }
        });
        for _ in 0..50 {
            let mut entries = 0;
            let snapshot = Snapshot::take(&path, "").unwrap();
            let walked = snapshot.entries(|_| {
                entries += 1;
                Ok(())
            });
            assert_eq!((walked, entries), (Ok(()), 155));
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Bolt itself commits without a pause in another process: a copy always contains one transaction, never parts of two.
#[test]
#[ignore = "needs Go and its bolt: cargo xtask test --long"]
fn transactions_of_a_live_owner_are_never_mixed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut owner = owner(&path);
    let (mut last, mut whole, mut busy) = (0, 0, 0);
    let limit = clock::now().plus(180_000_000_000);
    let size = || fs::metadata(&path).unwrap().len();
    let first = size();
    while whole < 300 || size() < 8 * first {
        assert!(clock::now() < limit, "{whole} whole, {busy} busy");
        match Snapshot::take(&path, "") {
            Ok(snapshot) => {
                let number = transaction(&snapshot);
                assert!(number >= last, "{number} after {last}");
                whole += u32::from(number > last);
                last = number;
            }
            Err(Trouble::Busy(_)) => busy += 1,
            Err(other) => panic!("after {last}: {other:?}"),
        }
    }
    println!("{whole} transactions of {last}, {busy} times busy, {} KiB", size() >> 10);
    drop(owner.stdin.take());
    assert!(owner.wait().unwrap().success());
}

/// Starts the process, and waits for its first transaction.
fn owner(path: &Path) -> Child {
    let mut command = Command::new(std::env::var_os(WRITER).expect(WRITER));
    command.arg("commit").arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut owner = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "committed\n");
    owner
}

/// The number of the transaction that wrote everything in the file.
fn transaction(snapshot: &Snapshot) -> u32 {
    let mut values = BTreeMap::new();
    let all = snapshot.values("relation", |key, value| {
        values.insert(key.to_vec(), value.to_vec());
        Ok(())
    });
    all.unwrap();
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    let of: Vec<String> = values.values().map(|value| text(value)).collect();
    let number: u32 = of[0].trim_end_matches('.').parse().unwrap();
    assert!(of.iter().all(|other| *other == of[0]), "{of:?}");
    assert_eq!(of.len(), 10 + number as usize % 90, "keys of transaction {number}");
    number
}
