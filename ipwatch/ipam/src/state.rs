//! The state files of the plugin: for each network a file of parked reservations, and a lock file.
//!
//! They have mode 0600 in a directory of mode 0700, because a network configuration may contain credentials. A file is
//! replaced atomically: a reader without the lock sees the old or the new content.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files::{self, Attributes, OPEN_FLAGS, make_dir, read_small};
use crate::name;
use crate::time::Deadline;

/// Longest file, in bytes: eight configurations of the maximum length, and more.
const LONGEST: usize = 16 << 20;
/// How long to wait for a lock. Its owner runs a delegate at most four times.
const PATIENCE: Duration = Duration::from_secs(2);

/// A parked reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its container id ([`crate::name`]).
    pub id: String,
    /// The interface name that it is stored under.
    pub ifname: String,
    /// Its addresses.
    pub ips: Vec<IpAddr>,
    /// The delegate's network configuration, which its DEL needs.
    pub config: Value,
    /// `CNI_PATH`.
    pub path: Vec<PathBuf>,
    /// Since when the daemon has not told whether it is held, in seconds since the boot. An answer clears it.
    #[serde(default)]
    pub unanswered_since: Option<u64>,
    /// When its release may be tried again after a failure, in seconds since the boot.
    #[serde(default)]
    pub next_try: u64,
    /// What held it when it was parked, in one line for people.
    #[serde(default)]
    pub who: String,
}

/// How many seconds after a failure a release is tried again.
const AGAIN: u64 = 60;

impl Entry {
    /// Puts the next release off, after one has failed. `now` is in seconds since the boot.
    pub(crate) fn put_off(&mut self, now: u64) {
        self.next_try = now + AGAIN;
    }

    /// Whether its release may be tried. A time further in the future than [`Entry::put_off`] sets was written before the
    /// node was booted.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.next_try <= now || self.next_try > now + AGAIN
    }
}

/// The parked reservations of one network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// In the order in which they were parked; by id if the file was lost.
    pub parked: Vec<Entry>,
}

impl State {
    /// Reads the file. `None`: it does not exist, or could not be parsed. An entry whose id is not that of a parked
    /// reservation is left out, whoever wrote it: its release would free the address of a container of the runtime.
    #[must_use]
    pub fn read(dir: &Path, network: &str) -> Option<Self> {
        let bytes = read_small(&file(dir, network), LONGEST).ok()??;
        let mut state: Self = serde_json::from_slice(&bytes).ok()?;
        state.parked.retain(|entry| name::is_parked(&entry.id));
        Some(state)
    }

    /// Replaces the file. The caller must have the lock.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, dir: &Path, network: &str) -> io::Result<()> {
        make_dir(dir)?;
        // Not synced: after a crash of the node nothing is held, and parked reservations are found by their name.
        let attributes = Attributes { synced: false, ..Attributes::PRIVATE };
        files::replace(&file(dir, network), &serde_json::to_vec(self)?, attributes)
    }

    /// The networks that have a file, sorted.
    #[must_use]
    pub fn networks(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten().take(4096);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter_map(|name| name.strip_suffix(".parked").map(str::to_owned)).collect();
        names.sort();
        names
    }
}

fn file(dir: &Path, network: &str) -> PathBuf {
    dir.join(format!("{network}.parked"))
}

/// A lock, which is released when it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: another process has it. After any other error waiting does not help.
    pub fn try_take(dir: &Path, name: &str) -> io::Result<Self> {
        make_dir(dir)?;
        let path = dir.join(format!("{name}.lock"));
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        options.custom_flags(OPEN_FLAGS.bits().cast_signed());
        let file = options.open(path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { _file: file })
    }

    /// Takes the lock, and waits up to two seconds for another process that has it.
    ///
    /// # Errors
    /// As [`Lock::try_take`].
    pub fn take(dir: &Path, name: &str) -> io::Result<Self> {
        Self::take_within(dir, name, PATIENCE)
    }

    /// [`Lock::take`] with a hundredth of that time, for work that a later call can do as well.
    ///
    /// # Errors
    /// As [`Lock::try_take`].
    pub fn take_soon(dir: &Path, name: &str) -> io::Result<Self> {
        Self::take_within(dir, name, PATIENCE / 100)
    }

    fn take_within(dir: &Path, name: &str, patience: Duration) -> io::Result<Self> {
        let deadline = Deadline::within(patience);
        loop {
            match Self::try_take(dir, name) {
                Err(error) if is_taken(&error) && deadline.left().is_some() => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                taken => return taken,
            }
        }
    }
}

/// Whether the error means that another process has the lock.
pub(crate) fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn entry() -> Entry {
        Entry {
            id: "ipwatch-parked-0f3c9a12-1-1".into(),
            ifname: "ipwparked".into(),
            ips: vec!["10.1.0.2".parse().unwrap()],
            config: serde_json::json!({ "name": "net" }),
            path: vec!["/opt/cni/bin".into()],
            unanswered_since: Some(7),
            next_try: 0,
            who: String::new(),
        }
    }

    #[test]
    fn it_is_private_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a/b");
        assert_eq!(State::read(&dir, "net"), None);
        let state = State { parked: vec![entry()] };
        state.write(&dir, "net").unwrap();
        assert_eq!(State::read(&dir, "net"), Some(state));
        assert_eq!(State::networks(&dir), ["net"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&file(&dir, "net"))), (0o700, 0o600));
        fs::write(file(&dir, "net"), "{").unwrap();
        assert_eq!(State::read(&dir, "net"), None);
    }

    /// Under any other id the delegate has stored the address of a container.
    #[test]
    fn only_what_has_the_id_of_a_parked_reservation_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let with = |id: &str| Entry { id: id.into(), ..entry() };
        let pod = "8f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
        let state = State { parked: vec![with(pod), with(""), entry(), with(name::PREFIX)] };
        state.write(dir.path(), "net").unwrap();
        assert_eq!(State::read(dir.path(), "net"), Some(State { parked: vec![entry()] }));
    }

    #[test]
    fn no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        fs::write(&target, "{\"parked\":[]}").unwrap();
        symlink(&target, file(dir.path(), "net")).unwrap();
        assert_eq!(State::read(dir.path(), "net"), None);
        State::default().write(dir.path(), "net").unwrap();
        assert!(fs::symlink_metadata(file(dir.path(), "net")).unwrap().is_file());
        assert_eq!(fs::read(&target).unwrap(), b"{\"parked\":[]}");
    }

    #[test]
    fn one_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::try_take(dir.path(), "net").unwrap();
        assert!(is_taken(&Lock::try_take(dir.path(), "net").unwrap_err()));
        Lock::try_take(dir.path(), "other").unwrap();
        drop(lock);
        Lock::take(dir.path(), "net").unwrap();
    }

    #[test]
    fn a_release_is_put_off_for_a_minute_and_not_beyond_a_boot() {
        let mut entry = Entry {
            id: String::new(),
            ifname: String::new(),
            ips: Vec::new(),
            config: Value::Null,
            path: Vec::new(),
            unanswered_since: None,
            next_try: 0,
            who: String::new(),
        };
        assert!(entry.is_due(0));
        entry.put_off(7_776_000);
        let at = |now| entry.is_due(now);
        assert_eq!([7_776_000, 7_776_059, 7_776_060].map(at), [false, false, true]);
        assert!(entry.is_due(30), "90 days of uptime ago");
    }

    #[test]
    fn a_lock_that_never_can_be_had_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("net.lock")).unwrap();
        let began = crate::time::now();
        let error = Lock::take(dir.path(), "net").unwrap_err();
        assert!(!is_taken(&error), "{error}");
        assert!(crate::time::now() - began < PATIENCE);
    }
}
