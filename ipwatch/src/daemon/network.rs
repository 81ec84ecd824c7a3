//! The thread that talks to servers on the network: a collector, the API server, an etcd, and whoever scrapes.
//!
//! It has no capability at all: what these servers send is parsed on it, and the rest of the daemon may enter any
//! network namespace. The kubelet's socket is asked from it as well.

use std::cell::OnceCell;
use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;

use crate::rights::{self, Rights};

/// Of the thread, and of those for blocking calls.
const NAME: &str = "ipwatch-network";
/// For calls that hang in the kernel when the daemon shuts down.
const PATIENCE: Duration = Duration::from_secs(1);

/// The thread, once it has been started. It ends when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Network(OnceCell<Running>);

#[derive(Debug)]
struct Running {
    handle: Handle,
    /// Dropped to end the thread.
    _stop: oneshot::Sender<()>,
}

impl Network {
    /// While the guard lives, tasks that the caller spawns run on the thread. The guard must not live across an `await`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn enter(&self) -> io::Result<EnterGuard<'_>> {
        if self.0.get().is_none() {
            // Nobody else is there to fill it: a `Network` belongs to one thread.
            let _ = self.0.set(start()?);
        }
        let running = self.0.get().ok_or_else(|| io::Error::other("it was not started"))?;
        Ok(running.handle.enter())
    }
}

fn start() -> io::Result<Running> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .thread_name(NAME)
        .max_blocking_threads(16)
        .thread_keep_alive(Duration::from_secs(2))
        .build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    // It needs nothing of what a `Starter` hands on.
    let thread = std::thread::Builder::new().name(NAME.to_owned());
    thread.stack_size(512 * 1024).spawn(move || {
        // Its threads for blocking calls inherit this.
        rights::keep(Rights::None);
        // An error means that the sender was dropped, which is all that it is for.
        let _ = runtime.block_on(stopped);
        runtime.shutdown_timeout(PATIENCE);
    })?;
    Ok(Running { handle, _stop: stop })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spawned_there_has_no_capability_and_ends_with_it() {
        let network = Network::default();
        let effective = || rustix::thread::capabilities(None).map(|sets| sets.effective);
        let had = effective().unwrap();
        let (told, asked) = std::sync::mpsc::channel();
        let (here, blocking) = (told.clone(), told);
        {
            let _network = network.enter().unwrap();
            tokio::spawn(async move {
                here.send(effective().unwrap()).unwrap();
                let work = tokio::task::spawn_blocking(effective).await.unwrap();
                blocking.send(work.unwrap()).unwrap();
                std::future::pending::<()>().await;
            });
        }
        let patience = Duration::from_secs(30);
        for _ in 0..2 {
            assert!(asked.recv_timeout(patience).unwrap().is_empty());
        }
        assert_eq!(effective().unwrap(), had, "the caller keeps its own");
        drop(network);
        let ended = asked.recv_timeout(patience);
        assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }
}
