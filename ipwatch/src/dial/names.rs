//! Resolves the names of servers.
//!
//! In a container the process makes the node's directories its root (`--host-root`), where the container's
//! `/etc/resolv.conf` and `/etc/hosts` do not exist. glibc opens both by path again and again, so it is not enough to
//! read them before. Therefore [`stay`] leaves one thread behind in the container's root, which resolves every name
//! from then on: a process has one root per thread if the thread asks for that (`unshare(CLONE_FS)`, `unshare_fs` in
//! kernel/fork.c).

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

use rustix::thread::UnshareFlags;
use tokio::sync::oneshot;

use crate::rights::{self, Rights};

/// Names that wait for the thread. There are fewer servers than this in any configuration.
const QUEUE: usize = 16;

/// The thread that stayed behind. Static, because it is a property of the process: its other threads have lost that root.
static STAYED: OnceLock<SyncSender<Question>> = OnceLock::new();

struct Question {
    host: String,
    port: u16,
    answer: oneshot::Sender<io::Result<Vec<SocketAddr>>>,
}

/// Starts the thread that keeps the present root. Returns when it has a root of its own, so that the caller may change
/// that of the process.
///
/// # Errors
/// The kernel starts no thread, or gives it no root of its own.
pub(crate) fn stay() -> io::Result<()> {
    let (questions, asked) = sync_channel::<Question>(QUEUE);
    let (started, starts) = sync_channel(1);
    thread::Builder::new().name("names".into()).spawn(move || {
        let apart = apart();
        let has_failed = apart.is_err();
        // The caller waits for it.
        if started.send(apart).is_err() || has_failed {
            return;
        }
        for Question { host, port, answer } in asked {
            // glibc may try for minutes. Whoever has given up meanwhile asks again.
            if !answer.is_closed() {
                // An error here: the caller has given up.
                let _ = answer.send(resolve(&host, port));
            }
        }
    })?;
    let ended = |_| io::Error::other("the thread that resolves names has ended");
    starts.recv().map_err(ended)??;
    // A second call would change nothing: the first thread keeps the first root.
    let _ = STAYED.set(questions);
    Ok(())
}

/// Gives this thread a root of its own, and takes its capabilities: it needs none to read two files and to ask a server.
fn apart() -> io::Result<()> {
    // SAFETY: nothing in this process relies on this thread having the same root, working directory and umask as the
    // others; that they differ is the purpose.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
    rights::try_keep(Rights::None)
}

fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// The addresses of a server, which is an IP or a name. The caller must set a timeout.
pub(crate) async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    let Some(stayed) = STAYED.get() else {
        return Ok(tokio::net::lookup_host((host, port)).await?.collect());
    };
    let (answer, answered) = oneshot::channel();
    stayed.try_send(Question { host: host.to_owned(), port, answer }).map_err(|error| {
        io::Error::other(match error {
            TrySendError::Full(_) => "too many names wait for an answer of the DNS",
            TrySendError::Disconnected(_) => "the thread that resolves names has ended",
        })
    })?;
    answered.await.map_err(|_| io::Error::other("the thread that resolves names has ended"))?
}
