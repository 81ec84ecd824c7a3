//! Tells the kernel half the directories of CNI plugins, and updates them when one is replaced.

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
use crate::sources::inotify::scarce;
use crate::sources::ready::ready;

/// The source that `doctor` names if a directory hangs.
const SOURCE: &str = SourceName::Probes.as_str();

/// The directories, as the kernel half knows them.
pub struct PluginDirs {
    map: BpfMap<MapData, DirKey, u8>,
    directories: Vec<PathBuf>,
    /// The last keys found for each directory. They stay valid while the directory hangs.
    found: Found,
    told: BTreeSet<DirKey>,
}

/// The keys of each directory that answers.
type Found = BTreeMap<PathBuf, BTreeSet<DirKey>>;

impl std::fmt::Debug for PluginDirs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginDirs").field("directories", &self.directories).finish_non_exhaustive()
    }
}

impl PluginDirs {
    /// Registers the directories by their paths. No directory is accessed: one may be on a file system that hangs.
    pub(super) fn new(map: BpfMap<MapData, DirKey, u8>, directories: Vec<PathBuf>) -> Self {
        let mut dirs = Self { map, directories, found: Found::new(), told: BTreeSet::new() };
        dirs.tell(Found::new());
        dirs
    }

    /// Updates the kernel half's list. New keys are inserted before old ones are removed, so that no plugin is missed.
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
            // An error only means that the key was not there.
            let _ = self.map.remove(key);
        }
        self.told = keys;
    }

    /// Follows the directories until it fails. If one of them hangs in the kernel, a new follower takes over and leaves
    /// that directory out until it answers.
    ///
    /// # Errors
    /// inotify fails. The kernel half keeps the last keys, and the next run starts by reading everything.
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
            // Off the async worker: a directory may be on a slow file system.
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
                // A directory that was left out may answer again.
                _ = returns.changed() => true,
            };
        }
    }
}

/// Every key by which the kernel half may recognise this directory: its path as written, its path without links, and
/// its device and inode. (btrfs reports a made-up device; the path keys still work.)
///
/// # Errors
/// The directory hangs.
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
    // libcni joins it with a plugin's name: without a trailing slash or double slashes.
    let path: PathBuf = path.components().collect();
    [PATH_KEY, path_key(path.as_os_str().as_bytes())]
}

/// Converts a device number from `stat` to `s_dev` (`MKDEV`, include/linux/kdev_t.h).
fn device(dev: u64) -> u64 {
    u64::from(libc::major(dev)) << 20 | u64::from(libc::minor(dev))
}

struct Follower {
    directories: Vec<PathBuf>,
    inotify: Inotify,
    /// Watched directories on the path to the plugin directories, and the names that lead there.
    ways: HashMap<WatchDescriptor, BTreeSet<OsString>>,
}

impl Follower {
    fn new(directories: Vec<PathBuf>) -> io::Result<Self> {
        Ok(Self { directories, inotify: Inotify::init().map_err(scarce)?, ways: HashMap::new() })
    }

    /// Reads the queued events. If the path to a directory may have changed, walks it again and returns what was found.
    fn turn(&mut self, anew: bool) -> io::Result<Option<Found>> {
        let changed = self.has_changed()?;
        if !(anew || changed || self.ways.is_empty()) {
            return Ok(None);
        }
        self.arm();
        // After the watches are set, so that later changes are reported.
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
            // Fails if the kernel has already removed the watch.
            let _ = self.inotify.watches().remove(watch);
        }
        for directory in self.directories.clone() {
            // A directory that hangs is watched again once it answers.
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
            // If a directory is missing, the watch of its parent reports its creation.
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
