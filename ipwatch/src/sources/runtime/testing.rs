//! Runs the source in tests and receives its facts. The runtimes are fakes, each on its own socket:
//! [`cri::fake`](super::cri::fake), [`docker::fake`](super::docker::fake), and some that speak neither API.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;

pub(super) use super::cri::fake::{CONTAINERD_EVENTS, Cri, V1, V1ALPHA2};
pub(super) use super::docker::fake::Docker;
use super::{Kind, Pace, Runtimes, Settings, Socket, begin};
use crate::fact::{Container, Observation, Sandbox, Source, SourceStatus};
use crate::sources::testing::Heard;
pub(super) use crate::sources::testing::PATIENCE;
use crate::sources::{Emit, First};

/// Long timeouts, short pauses.
pub(super) fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace {
        short: PATIENCE,
        list: PATIENCE,
        first: PATIENCE,
        poll: ms(50),
        slow: Duration::from_secs(3600),
        settle: ms(5),
        after: ms(20),
        apart: ms(2),
        retry: (ms(20), ms(50)),
    }
}

/// As [`pace`], with short timeouts.
pub(super) fn hurried() -> Pace {
    Pace { short: Duration::from_millis(200), list: Duration::from_secs(1), ..pace() }
}

/// A directory for sockets.
pub(super) struct SocketDir(tempfile::TempDir);

impl SocketDir {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }
}

/// The facts of running sources.
pub(super) struct Seen(Heard);

impl Deref for Seen {
    type Target = Heard;

    fn deref(&self) -> &Heard {
        &self.0
    }
}

impl DerefMut for Seen {
    fn deref_mut(&mut self) -> &mut Heard {
        &mut self.0
    }
}

/// Starts the source on these sockets, as if the configuration named them.
pub(super) fn run(sockets: &[(&Path, Option<Kind>)], pace: Pace) -> (Runtimes, First, Seen) {
    let socket =
        |(path, kind): &(&Path, Option<Kind>)| Socket { path: path.to_path_buf(), kind: *kind };
    let sockets = Some(sockets.iter().map(socket).collect());
    let (emit, seen) = Seen::channel();
    let (runtimes, first) =
        begin(Settings { sockets, follow: true, ..Settings::default() }, pace, emit);
    (runtimes, first, seen)
}

impl Seen {
    pub(super) fn channel() -> (Emit, Self) {
        let (emit, heard) = Heard::channel();
        (emit, Self(heard))
    }

    pub(super) async fn source(&mut self, name: &str, status: SourceStatus) -> Source {
        let what = format!("source {name} {status:?}");
        self.until(&what, |what| match what {
            Observation::Source(source) if source.name == name && source.status == status => {
                Some(source.clone())
            }
            _ => None,
        })
        .await
    }

    /// Waits for a sandbox whose netns is known.
    pub(super) async fn whole(&mut self, id: &str) -> Sandbox {
        self.until(&format!("sandbox {id}, whole"), |what| match what {
            Observation::Sandbox(sandbox) if sandbox.id == id && sandbox.netns_path.is_some() => {
                Some(sandbox.clone())
            }
            _ => None,
        })
        .await
    }

    pub(super) fn sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        self.all.iter().filter_map(|fact| match &fact.what {
            Observation::Sandbox(sandbox) => Some(sandbox),
            _ => None,
        })
    }

    pub(super) fn containers(&self) -> impl Iterator<Item = &Container> {
        self.all.iter().filter_map(|fact| match &fact.what {
            Observation::Container(container) => Some(container),
            _ => None,
        })
    }
}

/// A socket that accepts every connection and sends `text`, then nothing more.
pub(super) fn says(path: &Path, text: &'static [u8]) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(text).await;
            open.push(stream);
        }
    });
}
