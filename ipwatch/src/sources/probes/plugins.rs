//! Tells the kernel half in which directories CNI plugins lie, and again whenever one of them is
//! replaced.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::maps::{HashMap as BpfMap, MapData};
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use ipwatch_common::{DirKey, MOST_DIRS, PATH_KEY, path_key};
use tokio::io::Interest;

use crate::fact::SourceName;
use crate::reading::{self, Readings, Target};
use crate::sources::ready::ready;

/// What `doctor` names where a directory does not answer.
const SOURCE: &str = SourceName::Probes.as_str();

/// The directories, as the kernel half knows them.
pub struct PluginDirs {
    map: BpfMap<MapData, DirKey, u8>,
    directories: Vec<PathBuf>,
    /// What was found out of each. It stands for as long as the directory does not answer.
    found: Found,
    told: BTreeSet<DirKey>,
}

/// The names of each directory that answers.
type Found = BTreeMap<PathBuf, BTreeSet<DirKey>>;

impl std::fmt::Debug for PluginDirs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginDirs").field("directories", &self.directories).finish_non_exhaustive()
    }
}

impl PluginDirs {
    /// Tells them by their paths. No directory is touched: one may lie on a file system that hangs.
    pub(super) fn new(map: BpfMap<MapData, DirKey, u8>, directories: Vec<PathBuf>) -> Self {
        let mut dirs = Self { map, directories, found: Found::new(), told: BTreeSet::new() };
        dirs.tell(Found::new());
        dirs
    }

    /// Makes the kernel half's list what it should be. The new ones first: no plugin is missed.
    fn tell(&mut self, found: Found) {
        self.found.extend(found);
        let by_path = self.directories.iter().map(|directory| of_path(directory));
        let keys: BTreeSet<DirKey> =
            by_path.chain(self.found.values().flatten().copied()).collect();
        let most = usize::try_from(MOST_DIRS).unwrap_or(usize::MAX);
        let keys: BTreeSet<DirKey> = keys.into_iter().take(most).collect();
        for key in keys.difference(&self.told) {
            if let Err(error) = self.map.insert(key, 1, 0) {
                tracing::warn!(%error, "probes: a directory of CNI plugins is not watched");
            }
        }
        for key in self.told.difference(&keys) {
            // Not there is what was wanted.
            let _ = self.map.remove(key);
        }
        self.told = keys;
    }

    /// Follows the directories for ever. Where one of them hangs in the kernel, another follower takes over and leaves
    /// that one out until it answers.
    ///
    /// # Errors
    /// inotify breaks. What was told last stays, and the next run begins with all of it.
    pub async fn follow(&mut self, readings: &Readings) -> io::Result<()> {
        loop {
            let hangs = self.until_one_hangs(readings).await?;
            tracing::warn!(
                "{hangs} does not answer: CNI plugins are known there by their path alone"
            );
        }
    }

    async fn until_one_hangs(&mut self, readings: &Readings) -> io::Result<Target> {
        let mut returns = readings.returns();
        let mut follower = Follower::new(self.directories.clone())?;
        let fd = follower.inotify.as_fd().try_clone_to_owned()?;
        let readable = ready(fd, Interest::READABLE)?;
        let mut anew = true;
        loop {
            // Off the async worker: a directory may lie on a file system that is slow.
            let work = move || follower.turn(anew).map(|found| (follower, found));
            let found;
            (follower, found) = match reading::unblocked(readings, SOURCE, work).await? {
                Ok(done) => done?,
                Err(hangs) => return Ok(hangs),
            };
            if let Some(found) = found {
                self.tell(found);
            }
            anew = tokio::select! {
                guard = readable.readable() => {
                    guard?.clear_ready();
                    false
                }
                // What was left out may be read now.
                _ = returns.changed() => true,
            };
        }
    }
}

/// Every name by which the kernel half may meet this directory: its path as written, its path without links, and what
/// `stat` says it is. (btrfs makes up the device; the paths remain.)
///
/// # Errors
/// It hangs.
fn keys(directory: &Path) -> io::Result<BTreeSet<DirKey>> {
    let _reading = reading::path(directory)?;
    let mut keys = BTreeSet::from([of_path(directory)]);
    if let Ok(resolved) = std::fs::canonicalize(directory) {
        keys.insert(of_path(&resolved));
    }
    if let Ok(stat) = std::fs::metadata(directory) {
        keys.insert([device(stat.dev()), stat.ino()]);
    }
    Ok(keys)
}

fn of_path(path: &Path) -> DirKey {
    // As libcni joins it with a plugin's name: without a slash at its end or two in a row.
    let path: PathBuf = path.components().collect();
    [PATH_KEY, path_key(path.as_os_str().as_bytes())]
}

/// `s_dev` (`MKDEV`, include/linux/kdev_t.h) of what `stat` gives.
fn device(dev: u64) -> u64 {
    u64::from(libc::major(dev)) << 20 | u64::from(libc::minor(dev))
}

struct Follower {
    directories: Vec<PathBuf>,
    inotify: Inotify,
    /// Directories on the way to those of the plugins, and the names that lead there.
    ways: HashMap<WatchDescriptor, BTreeSet<OsString>>,
}

impl Follower {
    fn new(directories: Vec<PathBuf>) -> io::Result<Self> {
        Ok(Self { directories, inotify: Inotify::init()?, ways: HashMap::new() })
    }

    /// Reads what has queued; when the way to a directory may have changed, goes it again and says what it found.
    fn turn(&mut self, anew: bool) -> io::Result<Option<Found>> {
        let changed = self.has_changed()?;
        if !(anew || changed || self.ways.is_empty()) {
            return Ok(None);
        }
        self.arm();
        // After the watches: what changes from now on is told.
        let found = |directory: &PathBuf| Some((directory.clone(), keys(directory).ok()?));
        Ok(Some(self.directories.iter().filter_map(found).collect()))
    }

    fn has_changed(&mut self) -> io::Result<bool> {
        let mut changed = false;
        let mut buffer = [0; 4096];
        loop {
            let events = match self.inotify.read_events(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changed),
                events => events?,
            };
            for event in events {
                let on_the_way = |names: &BTreeSet<OsString>| match event.name {
                    Some(name) => names.contains(name),
                    None => true,
                };
                changed |= event.mask.contains(EventMask::Q_OVERFLOW)
                    || self.ways.get(&event.wd).is_some_and(on_the_way);
            }
        }
    }

    fn arm(&mut self) {
        for (watch, _) in self.ways.drain() {
            // Fails when the kernel has taken it away itself.
            let _ = self.inotify.watches().remove(watch);
        }
        for directory in self.directories.clone() {
            // One that hangs is watched again once it answers.
            let Ok(_reading) = reading::path(&directory) else { continue };
            if let Ok(resolved) = std::fs::canonicalize(&directory) {
                self.arm_one(&resolved);
            }
            self.arm_one(&directory);
        }
    }

    fn arm_one(&mut self, directory: &Path) {
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO
            | WatchMask::ONLYDIR;
        let mut below = directory;
        for above in directory.ancestors().skip(1) {
            // One that is not there is told of by the one above it.
            if let Ok(watch) = self.inotify.watches().add(above, mask)
                && let Some(name) = below.file_name()
            {
                self.ways.entry(watch).or_default().insert(name.to_owned());
            }
            below = above;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_known_by_its_path_and_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let keys_of_link = keys(&link.join("")).unwrap();
        let by_path = |path: &Path| [PATH_KEY, path_key(path.as_os_str().as_bytes())];
        assert!(keys_of_link.contains(&by_path(&link)));
        assert!(keys_of_link.is_superset(&keys(&real).unwrap()));
        assert_eq!(keys(&dir.path().join("none")).unwrap().len(), 1, "it may come to be");
    }

    #[test]
    fn the_key_of_a_path_is_that_of_its_bytes() {
        let step = |key, byte: &u8| ipwatch_common::path_step(key, *byte);
        assert_eq!(
            b"/opt/cni/bin".iter().fold(ipwatch_common::PATH_SEED, step),
            path_key(b"/opt/cni/bin")
        );
        assert_ne!(path_key(b"/opt/cni/bin"), path_key(b"/opt/cni"));
    }
}
