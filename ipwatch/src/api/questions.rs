//! The way of a question from the server to the core.

use tokio::sync::mpsc::error::SendError;
use tokio::sync::{mpsc, oneshot};

use super::{Ask, AskError};
use crate::contract::Document;

/// A question and the channel for its answer.
#[derive(Debug)]
pub struct Request {
    /// The question.
    pub ask: Ask,
    /// The user id of the client.
    pub uid: u32,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<Document, AskError>>,
}

impl Ask {
    /// Whether a pod waits for the answer: the question of `ipwatch-ipam`, which gives up after 20 ms. A runtime runs it as
    /// root, like the daemon. Other users may ask as well, but not before others.
    #[must_use]
    pub fn is_urgent(&self, uid: u32) -> bool {
        matches!(self, Self::Held(_)) && uid == rustix::process::geteuid().as_raw()
    }
}

/// The server's end. Urgent questions have a channel of their own, so that no number of others delays them.
#[derive(Debug, Clone)]
pub struct Asking {
    urgent: mpsc::Sender<Request>,
    usual: mpsc::Sender<Request>,
}

/// The core's end.
#[derive(Debug)]
pub struct Questions {
    urgent: mpsc::Receiver<Request>,
    usual: mpsc::Receiver<Request>,
}

/// Both ends, with room for this number of questions of each kind.
#[must_use]
pub fn questions(room: usize) -> (Asking, Questions) {
    let ((urgent, first), (usual, rest)) = (mpsc::channel(room), mpsc::channel(room));
    (Asking { urgent, usual }, Questions { urgent: first, usual: rest })
}

impl Asking {
    /// Sends a question, and waits for room.
    ///
    /// # Errors
    /// The core has ended.
    pub async fn send(&self, request: Request) -> Result<(), Box<SendError<Request>>> {
        let to = if request.ask.is_urgent(request.uid) { &self.urgent } else { &self.usual };
        to.send(request).await.map_err(Box::new)
    }
}

impl Questions {
    /// The next question, urgent ones first. `None`: nobody can ask any more. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Request> {
        tokio::select! {
            biased;
            Some(request) = self.urgent.recv() => Some(request),
            request = self.usual.recv() => request,
        }
    }

    /// An urgent question that is already there.
    pub fn urgent(&mut self) -> Option<Request> {
        self.urgent.try_recv().ok()
    }

    /// Takes no more questions.
    #[cfg(test)]
    pub(crate) fn close(&mut self) {
        self.urgent.close();
        self.usual.close();
    }
}
