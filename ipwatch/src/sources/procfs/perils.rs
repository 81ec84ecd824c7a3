//! Remembers whose mounts were being read when the daemon was killed, and reads them no more if that happens again and
//! again.
//!
//! The kernel puts a whole line of mountinfo into one buffer, which counts as memory of whoever reads it
//! (`seq_read_iter`, fs/seq_file.c; 5.10 to 6.18), and a line is as long as a directory is deep: 60 MB after one second of
//! `mkdir` by an unprivileged user in namespaces of their own. Nothing tells the length before the kernel has made the
//! line. So before each read it is noted down whose mounts are read.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::files::{Dir, is_gone};
use crate::bounded;
use crate::fact::BootNs;
use crate::fact::cgroup;

/// Nobody's mounts are left out before the daemon was killed so often during their reads. Whatever else kills it may do so
/// during any read.
const STRIKES: u32 = 3;
/// For how long a kill is remembered, in nanoseconds.
const MEMORY: u64 = 3_600_000_000_000;
/// Number of threads that can read mounts at the same time; more are not noted down.
const SLOTS: usize = 8;
/// Size of a slot, in bytes: a name that ends at the first NUL.
const SLOT: usize = 256;
/// Maximum number of tenants that are remembered.
const MOST: usize = 64;

/// The notes of this daemon. A process that answers once and ends makes none: nothing would read them.
#[derive(Debug, Clone, Default)]
pub(super) struct Perils(Option<Arc<Notes>>);

#[derive(Debug)]
struct Notes {
    /// A name for each read that is under way, in a slot of its own.
    file: File,
    /// A bit for each slot.
    taken: AtomicU32,
    strikes: Vec<Strike>,
}

/// A read that is under way, until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Option<(Arc<Notes>, usize)>);

/// Nothing is read of whoever it is.
#[derive(Debug, thiserror::Error)]
#[error("the mounts of {0} are not read: the daemon was killed during that again and again")]
pub(super) struct Barred(String);

impl Perils {
    /// Reads what an earlier daemon has left in a directory, and notes down there what this one reads. A file system that is
    /// gone after a reboot is best: times are relative to the boot.
    ///
    /// # Errors
    /// Others can write to the directory, or we cannot.
    pub(super) fn at(dir: &Path, now: BootNs) -> io::Result<Self> {
        let of = fs::metadata(dir)?;
        if of.uid() != rustix::process::geteuid().as_raw() || of.mode() & 0o022 != 0 {
            return Err(io::Error::other("others can write to it"));
        }
        let (slots, past) = (dir.join("mounts-being-read"), dir.join("mounts-that-kill"));
        let mut strikes = remembered(&past, now);
        for name in left(&slots) {
            match strikes.iter_mut().find(|strike| strike.name == name) {
                Some(strike) => (strike.at, strike.count) = (now, strike.count + 1),
                None => strikes.push(Strike { at: now, count: 1, name }),
            }
        }
        strikes.sort_by_key(|strike| std::cmp::Reverse(strike.at));
        strikes.truncate(MOST);
        let lines: String = strikes.iter().map(Strike::line).collect();
        let new = past.with_extension("new");
        file(&new)?.write_all_at(lines.as_bytes(), 0)?;
        fs::rename(&new, &past)?;
        Ok(Self(Some(Arc::new(Notes { file: file(&slots)?, taken: AtomicU32::new(0), strikes }))))
    }

    /// Whose mounts are not read.
    pub(super) fn barred(&self, now: BootNs) -> Vec<&str> {
        let strikes = self.0.iter().flat_map(|notes| &notes.strikes);
        strikes.filter(|strike| strike.bars(now)).map(|strike| strike.name.as_str()).collect()
    }

    /// Notes down that the mounts of a process are about to be read.
    pub(super) fn enter(&self, now: BootNs, process: &Dir) -> Result<UnderWay, Barred> {
        let name = self.0.is_some().then(|| tenant(process)).flatten();
        name.map_or(Ok(UnderWay(None)), |name| self.enter_of(now, name))
    }

    fn enter_of(&self, now: BootNs, name: String) -> Result<UnderWay, Barred> {
        let Some(notes) = &self.0 else { return Ok(UnderWay(None)) };
        if self.barred(now).contains(&name.as_str()) {
            return Err(Barred(name));
        }
        let Some(slot) = notes.take() else { return Ok(UnderWay(None)) };
        let mut text = [0; SLOT];
        text[..name.len()].copy_from_slice(name.as_bytes());
        // If it cannot be written, only the memory of this read is lost.
        let _ = notes.file.write_all_at(&text, (slot * SLOT) as u64);
        Ok(UnderWay(Some((Arc::clone(notes), slot))))
    }
}

impl Notes {
    fn take(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| {
            let bit = 1 << slot;
            self.taken.fetch_or(bit, Ordering::Relaxed) & bit == 0
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some((notes, slot)) = self.0.take() {
            let _ = notes.file.write_all_at(&[0], (slot * SLOT) as u64);
            notes.taken.fetch_and(!(1 << slot), Ordering::Relaxed);
        }
    }
}

/// Whose mounts a process shows. `None`: it is gone.
fn tenant(process: &Dir) -> Option<String> {
    let name = match super::cgroup::read(process) {
        Ok(path) => path.map(|path| whose(&path)),
        Err(error) if is_gone(&error) => return None,
        // Whoever may make cgroups can make one whose path is longer than a page (ENAMETOOLONG, `proc_cgroup_show`; 6.18
        // cuts it).
        Err(_) => None,
    };
    name.or_else(|| {
        let by = process.owner().ok()?;
        Some(format!("user {by}, without a cgroup that can be read"))
    })
}

/// The name of a tenant in one line that fits into a slot.
fn whose(cgroup: &str) -> String {
    let mut name = cgroup::tenant(cgroup).replace(['\n', '\0'], "?");
    while name.len() >= SLOT {
        name.pop();
    }
    if name.is_empty() { "/".to_owned() } else { name }
}

/// How often the daemon was killed while it read a tenant's mounts, and when it last was: a line `AT COUNT NAME`.
#[derive(Debug)]
struct Strike {
    at: BootNs,
    count: u32,
    name: String,
}

impl Strike {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next();
        let (at, count) = (word()?.parse().ok()?, word()?.parse().ok()?);
        Some(Self { at: BootNs(at), count, name: word()?.to_owned() })
    }

    fn is_remembered(&self, now: BootNs) -> bool {
        // One from the future is from before a reboot.
        self.at <= now && now.since(self.at) < MEMORY
    }

    fn bars(&self, now: BootNs) -> bool {
        self.count >= STRIKES && self.is_remembered(now)
    }

    fn line(&self) -> String {
        format!("{} {} {}\n", self.at.0, self.count, self.name)
    }
}

fn remembered(past: &Path, now: BootNs) -> Vec<Strike> {
    let read = bounded::read_regular(past, MOST * 2 * SLOT).map(|read| read.bytes);
    let text = String::from_utf8_lossy(&read.unwrap_or_default()).into_owned();
    let strikes = text.lines().filter_map(Strike::parse);
    strikes.filter(|strike| strike.is_remembered(now)).collect()
}

/// Whose mounts were being read by a daemon that did not come to the end of it.
fn left(slots: &Path) -> Vec<String> {
    let read = bounded::read_regular(slots, SLOTS * SLOT).map(|read| read.bytes);
    let read = read.unwrap_or_default();
    let names = read.chunks(SLOT).filter_map(|slot| slot.split(|byte| *byte == 0).next());
    let mut names: Vec<String> = names
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).replace('\n', "?"))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// An empty file of root's.
fn file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const POD: &str = "/kubepods.slice/kubepods-pod3c6d9d2a_1f36_4d0b_9d0e_6a1f0d2c7b11.slice/x";
    const HOUR: u64 = MEMORY;

    /// The daemon is killed while it reads the mounts of somebody with this cgroup.
    fn killed(dir: &Path, at: u64, cgroup: &str) {
        let perils = Perils::at(dir, BootNs(at)).unwrap();
        std::mem::forget(perils.enter_of(BootNs(at), whose(cgroup)).unwrap());
    }

    fn is_barred(dir: &Path, at: u64, cgroup: &str) -> bool {
        let perils = Perils::at(dir, BootNs(at)).unwrap();
        perils.enter_of(BootNs(at), whose(cgroup)).is_err()
    }

    #[test]
    fn whoever_has_killed_the_daemon_three_times_is_left_out_for_an_hour() {
        let dir = tempfile::tempdir().unwrap();
        for at in 1..=3 {
            assert!(!is_barred(dir.path(), at, POD));
            killed(dir.path(), at, POD);
        }
        assert!(is_barred(dir.path(), 4, POD));
        assert!(is_barred(dir.path(), 5, &format!("{POD}/a/cgroup/of/its/own")));
        assert!(!is_barred(dir.path(), 6, "/user.slice/user-1000.slice/session-1.scope"));
        let perils = Perils::at(dir.path(), BootNs(7)).unwrap();
        assert_eq!(perils.barred(BootNs(7)).len(), 1);
        let later = BootNs(HOUR + 5);
        assert!(perils.enter_of(later, whose(POD)).is_ok(), "the same daemon");
        assert!(perils.barred(later).is_empty());
        let rebooted = BootNs(1);
        assert!(Perils::at(dir.path(), rebooted).unwrap().barred(rebooted).is_empty());
    }

    #[test]
    fn a_read_that_ends_is_no_strike_and_other_kills_are_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        for at in 0..20 {
            let perils = Perils::at(dir.path(), BootNs(at)).unwrap();
            drop(perils.enter_of(BootNs(at), whose(POD)).unwrap());
            let another = format!("/system.slice/{at}.service");
            std::mem::forget(perils.enter_of(BootNs(at), another).unwrap());
        }
        let now = BootNs(21);
        assert!(Perils::at(dir.path(), now).unwrap().barred(now).is_empty());
    }

    /// A path of cgroups that is longer than a page cannot be read.
    #[test]
    fn whose_cgroup_cannot_be_read_is_known_by_his_user() {
        let dir = tempfile::tempdir().unwrap();
        let process = Dir::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("cgroup")).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let expected = format!("user {user}, without a cgroup that can be read");
        assert_eq!(tenant(&process), Some(expected));
        fs::remove_dir(dir.path().join("cgroup")).unwrap();
        assert_eq!(tenant(&process), None, "it is gone");
    }

    #[test]
    fn more_reads_than_slots_and_long_names_are_harmless() {
        let dir = tempfile::tempdir().unwrap();
        let perils = Perils::at(dir.path(), BootNs(1)).unwrap();
        let name = format!("/{}\n/ä{}", "x".repeat(300), "ä".repeat(300));
        let enter = |perils: &Perils, name: &str| perils.enter_of(BootNs(1), whose(name)).unwrap();
        let all: Vec<_> = (0..20).map(|_| enter(&perils, &name)).collect();
        assert_eq!(all.iter().filter(|one| one.0.is_some()).count(), SLOTS);
        drop(all);
        assert!(enter(&perils, "").0.is_some());
        assert!(enter(&Perils::default(), &name).0.is_none());
    }

    #[test]
    fn what_is_no_list_is_read_as_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mounts-that-kill"), b"x\n1 2\n\xff 3 y\n99999999999 9 a b\n")
            .unwrap();
        fs::write(dir.path().join("mounts-being-read"), vec![0xff; 100_000]).unwrap();
        let now = BootNs(1);
        assert!(Perils::at(dir.path(), now).unwrap().barred(now).is_empty());
        assert!(Perils::at(&dir.path().join("none"), now).is_err());
    }

    #[test]
    fn nothing_is_written_where_others_may_write() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(Perils::at(dir.path(), BootNs(1)).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
