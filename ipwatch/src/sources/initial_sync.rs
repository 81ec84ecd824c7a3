//! Waiting for the first word of sources that may take their time.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

/// Held by whoever has yet to give its first word.
#[derive(Debug, Clone)]
pub(crate) struct Unheard {
    _held: mpsc::Sender<Infallible>,
}

/// Waits for the first word of sources that were there at the start.
#[derive(Debug)]
pub struct First {
    /// Closed once nobody is left who has yet to answer.
    answered: mpsc::Receiver<Infallible>,
    patience: Duration,
    until: Option<Instant>,
}

impl First {
    /// Waits for everybody who holds a clone of the [`Unheard`], for so long.
    pub(crate) fn new(patience: Duration) -> (Unheard, Self) {
        let (held, answered) = mpsc::channel(1);
        (Unheard { _held: held }, Self { answered, patience, until: None })
    }

    /// Done when each has answered or failed, but when the patience after the first call is over at the
    /// latest. What they told is in the queue of facts then. Cancel-safe.
    pub async fn wait(&mut self) {
        let until = *self.until.get_or_insert_with(|| Instant::now() + self.patience);
        // Whether they have all answered makes no difference: the sources tell.
        let _ = tokio::time::timeout_at(until, self.answered.recv()).await;
    }
}
