//! Reads the files of one directory: many of them in two threads, because the kernel takes most of the time.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::{Content, Store, Trouble};
use crate::reading;

/// From this many files on, a second thread reads a part of them.
const MANY: usize = 1_024;

/// Number of files that are read before their content is passed on.
const PART: usize = 256;

/// Number of parts that the other thread may be ahead.
const AHEAD: usize = 8;

type Said = Result<Content, Trouble>;

/// Reads each file once and passes on its content, in any order. All files must be in `directory`.
pub(super) fn each<E>(
    store: &dyn Store,
    directory: BorrowedFd<'_>,
    paths: &[PathBuf],
    mut says: impl FnMut(&Path, Said) -> Result<(), E>,
) -> Result<(), E> {
    let one = |path: &Path| -> Said {
        let _reading = reading::path(path).map_err(|error| super::unread(&error, None))?;
        store.read_in(directory, path)
    };
    if paths.len() < MANY {
        return paths.iter().try_for_each(|path| says(path, one(path)));
    }
    let read = |part: &[PathBuf]| -> Vec<Said> { part.iter().map(|path| one(path)).collect() };
    let mut tell = |part: &[PathBuf], said: Vec<Said>| {
        part.iter().zip(said).try_for_each(|(path, said)| says(path, said))
    };
    let next = AtomicUsize::new(0);
    // Each thread takes the next part when it has finished one, because this thread has more work than the other.
    let take = || paths.chunks(PART).nth(next.fetch_add(1, Ordering::Relaxed));
    std::thread::scope(|scope| {
        let (sender, ready) = mpsc::sync_channel(AHEAD);
        let other = move || {
            while let Some(part) = take() {
                if sender.send((part, read(part))).is_err() {
                    return; // nobody is told any more
                }
            }
        };
        // If no thread can be created, this one reads all files.
        let _ = std::thread::Builder::new().spawn_scoped(scope, other);
        loop {
            while let Ok((part, said)) = ready.try_recv() {
                tell(part, said)?;
            }
            let Some(part) = take() else { break };
            tell(part, read(part))?;
        }
        // Registered as a read, because the other thread may hang at one of the files.
        let _reading = paths.first().and_then(|path| reading::path(path).ok());
        ready.into_iter().try_for_each(|(part, said)| tell(part, said))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::sources::ipam::Settings;
    use crate::sources::ipam::host_local::HostLocal;

    const FILES: usize = 3 * MANY + 1;

    /// Creates all files except every seventh.
    fn filled(dir: &Path) -> Vec<PathBuf> {
        let paths: Vec<PathBuf> =
            (0..FILES).map(|n| dir.join(format!("10.0.{}.{}", n / 256, n % 256))).collect();
        for (n, path) in paths.iter().enumerate().filter(|(n, _)| n % 7 > 0) {
            fs::write(path, format!("c{n}")).unwrap();
        }
        paths
    }

    #[test]
    fn each_of_many_files_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let paths = filled(dir.path());
        let store = HostLocal::new(&Settings::default());
        let directory = File::open(dir.path()).unwrap();
        let mut told = BTreeMap::new();
        each(&store, directory.as_fd(), &paths, |path, said| {
            assert!(told.insert(path.to_owned(), said).is_none(), "{path:?} twice");
            Ok::<_, ()>(())
        })
        .unwrap();
        assert_eq!(told.len(), paths.len());
        for (n, path) in paths.iter().enumerate() {
            match &told[path] {
                Ok(content) => {
                    let id = content.reservations[0].container_id.as_deref();
                    assert_eq!(id, Some(format!("c{n}").as_str()));
                }
                Err(trouble) => assert!(n % 7 == 0 && *trouble == Trouble::Gone),
            }
        }
    }

    #[test]
    fn who_listens_no_more_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths = filled(dir.path());
        let store = HostLocal::new(&Settings::default());
        let directory = File::open(dir.path()).unwrap();
        let mut told = 0;
        let ended = each(&store, directory.as_fd(), &paths, |_, _| {
            told += 1;
            if told == PART { Err("closed") } else { Ok(()) }
        });
        assert_eq!((ended, told), (Err("closed"), PART));
    }
}
