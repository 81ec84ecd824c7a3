//! Waits for the first reports of sources that may be slow.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

/// Held by each source that has yet to send its first report.
#[derive(Debug, Clone)]
pub(crate) struct Unheard {
    _held: mpsc::Sender<Infallible>,
}

/// Waits for the first reports of the sources that exist at the start.
#[derive(Debug)]
pub struct First {
    /// Closed when no [`Unheard`] is left.
    answered: mpsc::Receiver<Infallible>,
    patience: Duration,
    until: Option<Instant>,
}

impl First {
    /// Waits until all clones of the [`Unheard`] are dropped, for at most `patience`.
    pub(crate) fn new(patience: Duration) -> (Unheard, Self) {
        let (held, answered) = mpsc::channel(1);
        (Unheard { _held: held }, Self { answered, patience, until: None })
    }

    /// Returns when each source has answered or failed, or when `patience` after the first call has passed. What they
    /// reported is then in the queue of facts. Cancel-safe.
    pub async fn wait(&mut self) {
        let until = *self.until.get_or_insert_with(|| Instant::now() + self.patience);
        // Whether all have answered makes no difference: the sources report their own status.
        let _ = tokio::time::timeout_at(until, self.answered.recv()).await;
    }
}
