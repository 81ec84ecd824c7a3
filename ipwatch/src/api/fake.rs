//! A daemon for tests: the real server on a temporary socket, with a function as its core.

use super::client::Client;
use super::server::{Options, Server};
use super::{Ask, AskError, Request, Streams, questions};
use crate::contract::Document;

/// Stops with the runtime in which it was started.
pub(crate) struct Fake {
    pub(crate) client: Client,
    pub(crate) events: Streams,
    _dir: tempfile::TempDir,
}

/// Starts a fake daemon. Must be called within a tokio runtime.
pub(crate) fn daemon(answer: impl Fn(&Ask) -> Result<Document, AskError> + Send + 'static) -> Fake {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ipwatch.sock");
    let options = Options { group: "ipwatch-no-such-group".into(), ..Options::default() };
    let server = Server::bind(&path, options).unwrap();
    let (sender, mut requests) = questions(4);
    let events = Streams::new(16);
    tokio::spawn(server.run(sender, events.clone(), std::future::pending()));
    tokio::spawn(async move {
        while let Some(Request { ask, reply, .. }) = requests.recv().await {
            let _ = reply.send(answer(&ask));
        }
    });
    Fake { client: Client::new(path), events, _dir: dir }
}
