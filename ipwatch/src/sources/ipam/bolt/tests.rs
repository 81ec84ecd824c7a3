mod live;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::page::fnv1a;
use super::*;

const EFFECT: &str = "nothing works";
const PAGE: usize = 1024;

/// Pages of 1024 bytes, 150 keys on several levels, nested buckets.
const NESTED: &[u8] = include_bytes!("fixtures/nested.db");
const FILES: [&[u8]; 4] = [
    NESTED,
    include_bytes!("fixtures/terway.db"),
    include_bytes!("fixtures/libnetwork.db"),
    include_bytes!("fixtures/netavark.db"),
];

type Found = BTreeMap<String, Option<String>>;

fn found(bytes: &[u8]) -> Result<Found, Trouble> {
    let mut found = Found::new();
    let snapshot = Snapshot::parse(bytes.to_vec(), EFFECT)?;
    snapshot.entries(|entry| {
        let words = entry.path.iter().copied().chain([entry.key]).map(String::from_utf8_lossy);
        let path: Vec<_> = words.map(|word| word.into_owned()).collect();
        let value = entry.value.map(|value| String::from_utf8_lossy(value).into_owned());
        assert!(found.insert(path.join("/"), value).is_none(), "{path:?} twice");
        Ok(())
    })?;
    Ok(found)
}

fn reason(bytes: &[u8]) -> String {
    match found(bytes) {
        Err(Trouble::Unreadable { reason, effect }) => {
            assert_eq!(effect, Some(EFFECT));
            reason
        }
        other => panic!("{other:?}"),
    }
}

/// Which of the two meta pages is the newest.
fn newest(bytes: &[u8]) -> usize {
    let txid = |n: usize| u64::from_le_bytes(bytes[n * PAGE + 64..][..8].try_into().unwrap());
    usize::from(txid(1) > txid(0))
}

/// Changes a field of the newest meta page, with the correct checksum.
fn with_meta(field: usize, value: u64) -> Vec<u8> {
    let mut bytes = NESTED.to_vec();
    let at = newest(&bytes) * PAGE + 16;
    bytes[at + field..][..8].copy_from_slice(&value.to_le_bytes());
    let sum = fnv1a(&bytes[at..at + 56]);
    bytes[at + 56..][..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn root_page(bytes: &[u8]) -> usize {
    let at = newest(bytes) * PAGE + 16 + 16;
    usize::try_from(u64::from_le_bytes(bytes[at..][..8].try_into().unwrap())).unwrap() * PAGE
}

/// Offset of the first page of this kind with more than one element.
fn page_of_kind(bytes: &[u8], flags: u8) -> usize {
    (2 * PAGE..bytes.len())
        .step_by(PAGE)
        .find(|at| bytes[at + 8] == flags && bytes[at + 10] > 1)
        .unwrap()
}

#[test]
fn everything_in_a_file_is_found_once() {
    let all = found(NESTED).unwrap();
    let keys = all.keys().filter(|key| key.starts_with("large/key-")).count();
    assert_eq!(keys, 150);
    let key = format!("large/key-149-{}", "k".repeat(40));
    assert_eq!(all[&key].as_deref(), Some("149"));
    assert_eq!(all["large/within/small/a"].as_deref(), Some("1"));
    assert_eq!((&all["empty"], &all["large/within"]), (&None, &None));
    assert_eq!(all.len(), 150 + 5);
}

#[test]
fn a_damaged_meta_leaves_the_other_one() {
    let torn = |n: usize| {
        let mut bytes = NESTED.to_vec();
        bytes[n * PAGE + 70] ^= 1;
        bytes
    };
    let (new, old) = (newest(NESTED), 1 - newest(NESTED));
    assert_eq!(found(&torn(old)).unwrap().len(), 155);
    // The meta page before it is that of an empty file.
    assert_eq!(found(&torn(new)), Ok(Found::new()));
    let mut both = torn(new);
    both[old * PAGE + 70] ^= 1;
    assert!(reason(&both).starts_with("not a bolt file"));
    assert!(reason(&[0; 8192]).starts_with("not a bolt file"));
    assert!(reason(b"x").starts_with("not a bolt file"));
}

#[test]
fn another_version_is_none() {
    let mut bytes = NESTED.to_vec();
    for n in 0..2 {
        let at = n * PAGE + 16;
        bytes[at + 4] = 3;
        let sum = fnv1a(&bytes[at..at + 56]);
        bytes[at + 56..][..8].copy_from_slice(&sum.to_le_bytes());
    }
    assert!(reason(&bytes).starts_with("not a bolt file"));
}

#[test]
fn pages_that_are_not_there_are_told() {
    assert_eq!(
        reason(&with_meta(16, 1 << 60)),
        "damaged: page 1152921504606846976 is beyond its end"
    );
    // In the file, but not in use.
    let unused = (NESTED.len() / PAGE - 1) as u64;
    assert!(reason(&with_meta(16, unused)).contains("beyond its end"));
    let root = root_page(NESTED);
    assert!(reason(&NESTED[..root + 100]).contains("beyond its end"));
    let mut bytes = NESTED.to_vec();
    bytes[root + 12..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(reason(&bytes).contains("beyond its end"));
}

#[test]
fn a_page_that_is_another_is_told() {
    let mut bytes = NESTED.to_vec();
    let root = root_page(&bytes);
    bytes[root..][..8].copy_from_slice(&7u64.to_le_bytes());
    assert!(reason(&bytes).contains("is not of the expected type"));
    // As while the owner writes it for the first time.
    bytes[root..root + PAGE].fill(0);
    assert!(reason(&bytes).contains("is not of the expected type"));
    // The root is a page of the free list.
    bytes = NESTED.to_vec();
    bytes[root + 8] = 0x10;
    assert!(reason(&bytes).contains("is not of the expected type"));
}

#[test]
fn a_cycle_ends() {
    let mut bytes = NESTED.to_vec();
    let branch = page_of_kind(&bytes, 1);
    let own = u64::try_from(branch / PAGE).unwrap();
    bytes[branch + 16 + 8..][..8].copy_from_slice(&own.to_le_bytes());
    assert!(reason(&bytes).ends_with("is used twice"));
    // Two branches with the same child.
    bytes = NESTED.to_vec();
    let (first, second) = (branch + 16 + 8, branch + 32 + 8);
    let child: [u8; 8] = bytes[first..][..8].try_into().unwrap();
    bytes[second..][..8].copy_from_slice(&child);
    assert!(reason(&bytes).ends_with("is used twice"));
}

#[test]
fn what_lies_outside_its_page_is_told() {
    let leaf = page_of_kind(NESTED, 2);
    for field in [4, 8, 12] {
        let mut bytes = NESTED.to_vec();
        bytes[leaf + 16 + field..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(reason(&bytes).ends_with("points outside it"), "field {field}");
    }
    let mut bytes = NESTED.to_vec();
    bytes[leaf + 10..][..2].copy_from_slice(&u16::MAX.to_le_bytes());
    assert!(reason(&bytes).starts_with("damaged"));
}

/// A leaf on which all elements are the same inline bucket, which contains such a leaf again, and so on: each level
/// multiplies the number of elements.
#[test]
fn one_value_under_many_keys_ends() {
    // A page without elements.
    let mut inner = [&[0; 24][..], &2u16.to_le_bytes(), &[0; 6]].concat();
    for _ in 0..6 {
        let header = [&0u64.to_le_bytes()[..], &2u16.to_le_bytes(), &8u16.to_le_bytes(), &[0; 4]];
        let mut page: Vec<u8> = header.concat();
        for n in 0..8u32 {
            let size = u32::try_from(inner.len()).unwrap();
            let numbers = [1, (8 - n) * 16, 0, size];
            page.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        page.extend(&inner);
        inner = [vec![0; 16], page].concat();
    }
    let mut bytes = NESTED.to_vec();
    let root = root_page(&bytes);
    assert!(inner.len() - 16 <= PAGE);
    bytes[root + 8..root + 10].copy_from_slice(&2u16.to_le_bytes());
    bytes[root + 10..root + inner.len() - 16].copy_from_slice(&inner[16 + 10..]);
    bytes[root + 12..root + 16].fill(0);
    let mut keys = 0u32;
    let walked = Snapshot::parse(bytes, EFFECT).unwrap().entries(|_| {
        keys += 1;
        Ok(())
    });
    let Err(Trouble::Unreadable { reason, .. }) = walked else { panic!("{keys} keys") };
    assert_eq!(reason, Malformed::TooMuch.to_string());
    assert!(keys < 8u32.pow(5), "{keys} keys");
}

#[test]
fn cut_anywhere_it_ends() {
    for bytes in FILES {
        for length in (0..bytes.len()).step_by(509) {
            let _ = found(&bytes[..length]);
        }
    }
}

#[test]
fn a_file_is_taken_as_it_is_and_never_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let taken = |path: &PathBuf| Snapshot::take(path, EFFECT).map(|_| ());
    assert_eq!(taken(&path), Err(Trouble::Gone));
    fs::write(&path, b"").unwrap();
    assert!(matches!(taken(&path), Err(Trouble::Busy(_))));
    fs::write(&path, NESTED).unwrap();
    assert_eq!(taken(&path), Ok(()));
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(LARGEST as u64 + 1).unwrap();
    let Err(Trouble::Unreadable { reason, .. }) = taken(&path) else { panic!() };
    assert_eq!(reason, "larger than 64 MiB");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(taken(&link), Err(Trouble::Unreadable { .. })));
    assert!(matches!(taken(&dir.path().to_owned()), Err(Trouble::Unreadable { .. })));
}

/// The file's owner holds its lock all the time.
#[test]
fn a_locked_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    fs::write(&path, NESTED).unwrap();
    let owner = fs::File::open(&path).unwrap();
    owner.try_lock().unwrap();
    assert!(Snapshot::take(&path, EFFECT).is_ok());
    // The owner still holds it.
    assert!(fs::File::open(&path).unwrap().try_lock().is_err());
}

/// Transactions are committed while the file is copied: a copy never contains parts of two.
#[test]
fn a_file_that_is_written_meanwhile_is_whole_or_busy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    // Two images that differ only in the newest meta page, which bolt writes last. It is rewritten again and again.
    let images: Vec<Vec<u8>> = (0..2u64).map(|n| with_meta(48, 100 + n)).collect();
    fs::write(&path, &images[0]).unwrap();
    let meta = newest(NESTED) * PAGE;
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::File::options().write(true).open(&path).unwrap();
            for n in 0.. {
                if over.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                let image = &images[n % 2];
                file.write_at(&image[meta..meta + PAGE], meta as u64).unwrap();
            }
        });
        let (mut whole, mut busy) = (0, 0);
        for _ in 0..200 {
            match Snapshot::take(&path, EFFECT) {
                Ok(snapshot) => {
                    let mut entries = 0;
                    snapshot
                        .entries(|_| {
                            entries += 1;
                            Ok(())
                        })
                        .unwrap();
                    // The older meta page is that of an empty file, and is chosen while the newer one is incomplete.
                    assert!(entries == 155 || entries == 0, "{entries}");
                    whole += 1;
                }
                Err(Trouble::Busy(_)) => busy += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(whole + busy, 200);
    });
}

proptest! {
    /// Whatever is changed in a file, reading it ends, and yields no more than the file can contain.
    #[test]
    fn changed_anywhere_it_ends(
        file in 0..FILES.len(),
        changes in proptest::collection::vec((0..131_072usize, any::<u8>()), 1..40),
    ) {
        let mut bytes = FILES[file].to_vec();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let _ = Snapshot::parse(bytes, EFFECT).and_then(|snapshot| snapshot.entries(|_| Ok(())));
    }
}
