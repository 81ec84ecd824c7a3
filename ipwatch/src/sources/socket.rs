//! Checks and connects to a Unix socket that another process created, off the async worker, because its path may lead
//! through a mount that no longer answers (`kern_path`, called by `unix_find_bsd`, waits for it for ever).
//!
//! Each socket occupies one thread at a time. A thread that hangs is left behind ([`reading`]), and until it returns
//! every other attempt fails at once.

use std::io;
use std::os::unix::net::UnixStream as Connected;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use crate::reading::{self, Readings};

/// A Unix socket by its path. Clones share the thread.
#[derive(Debug, Clone)]
pub(crate) struct SocketPath(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// The source for which a hang is reported.
    source: &'static str,
    readings: Readings,
    /// Held while a thread accesses the path.
    turn: Arc<Mutex<()>>,
}

/// How a pause ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    Over,
    /// A thread that hung has returned.
    Early,
}

impl SocketPath {
    pub(crate) fn new(path: &Path, source: &'static str, readings: &Readings) -> Self {
        let (path, readings) = (path.to_owned(), readings.clone());
        Self(Arc::new(Inner { path, source, readings, turn: Arc::default() }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Connects. The caller must set a timeout.
    ///
    /// # Errors
    /// As `connect`; [`reading::Hangs`].
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        let stream = self.look(connect).await?;
        UnixStream::from_std(stream)
    }

    /// Runs `look` on the path.
    ///
    /// # Errors
    /// What the look returns; [`reading::Hangs`].
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let way = self.clone();
        let turn = Arc::clone(&self.0.turn).lock_owned().await;
        // A task of its own: if the caller gives up earlier, the thread must still be left behind when it hangs.
        let looking = tokio::spawn(async move {
            let _turn = turn;
            let Inner { readings, source, .. } = &*way.0;
            let on_it = way.clone();
            let work = move || {
                let _reading = reading::path(on_it.path())?;
                look(on_it.path())
            };
            match reading::unblocked(readings, source, work).await? {
                Ok(done) => done,
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")),
            }
        });
        looking.await.map_err(io::Error::other)?
    }

    /// Waits before the next attempt. Returns early if any thread that hung has returned, because it may have hung on
    /// this path.
    pub(crate) async fn pause(&self, pause: Duration) -> Paused {
        let mut returns = self.0.readings.returns();
        tokio::select! {
            () = tokio::time::sleep(pause) => Paused::Over,
            _ = returns.changed() => Paused::Early,
        }
    }
}

/// Non-blocking: a blocking `connect` waits for as long as the listener's backlog is full.
fn connect(path: &Path) -> io::Result<Connected> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&fd, &address)?;
    Ok(Connected::from(fd))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn way(path: &Path, readings: &Readings) -> SocketPath {
        SocketPath::new(path, "runtimes", readings)
    }

    /// On a thread that reads a pipe to which nothing is written.
    #[tokio::test]
    async fn one_that_hangs_is_left_behind_even_if_nobody_waits_for_it() {
        let readings = Readings::default();
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let dead = way(Path::new("/dead/a.sock"), &readings);
        let look = dead.look(move |_| reader.read_exact(&mut [0]));
        assert!(tokio::time::timeout(Duration::from_millis(20), look).await.is_err());
        let error = dead.look(|_| -> io::Result<()> { panic!("it would hang") }).await.unwrap_err();
        assert!(reading::hangs(&error).is_some(), "{error}");
        let error = dead.connect().await.unwrap_err();
        assert!(reading::hangs(&error).is_some(), "{error}");
        let report = readings.report(crate::clock::now());
        assert!(report[0].0 == "runtimes" && report[0].1.starts_with("/dead/a.sock"), "{report:?}");
        // Another path is not affected.
        way(Path::new("/none/b.sock"), &readings).look(|_| Ok(())).await.unwrap();
        let pausing = tokio::spawn(async move { (dead.pause(LONG).await, dead) });
        tokio::task::yield_now().await;
        writer.write_all(b"x").unwrap();
        let (paused, dead) = pausing.await.unwrap();
        assert_eq!(paused, Paused::Early);
        dead.look(|_| Ok(())).await.unwrap();
        assert_eq!(dead.pause(Duration::from_millis(1)).await, Paused::Over);
    }

    #[tokio::test]
    async fn a_full_backlog_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let way = way(&path, &Readings::default());
        let missing = way.connect().await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let listener = UnixListener::bind(&path).unwrap();
        // The shortest possible backlog.
        rustix::net::listen(&listener, 0).unwrap();
        let mut taken = Vec::new();
        let error = loop {
            match way.connect().await {
                Ok(stream) => taken.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "after {}", taken.len());
        taken[0].writable().await.unwrap();
    }
}
