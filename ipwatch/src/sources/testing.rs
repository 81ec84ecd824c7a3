//! Shared by tests of sources: receives the facts of a running source.

use std::time::Duration;

use tokio::sync::mpsc;

use super::Emit;
use crate::fact::{Fact, Observation};

/// Limits a wait; no test depends on its actual length.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Heard {
    facts: mpsc::Receiver<Vec<Fact>>,
    /// All facts received so far.
    pub(crate) all: Vec<Fact>,
}

impl Heard {
    /// An emitter for a source, and its receiver.
    pub(crate) fn channel() -> (Emit, Self) {
        let (emit, facts) = Emit::channel(64);
        (emit, Self { facts, all: Vec::new() })
    }

    /// The first fact from now on that `fits` accepts, as the value that it returns.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        fits: impl Fn(&Observation) -> Option<T>,
    ) -> T {
        let wait = async {
            loop {
                let batch = self.facts.recv().await.expect("the source has ended");
                let found = batch.iter().find_map(|fact| fits(&fact.what));
                self.all.extend(batch);
                if let Some(found) = found {
                    return found;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(found) => found,
            Err(_) => {
                let lines = self.all.iter().rev().take(20).rev();
                let seen: Vec<_> = lines.map(|fact| serde_json::to_string(fact).unwrap()).collect();
                panic!("never: {what}; last seen:\n{}", seen.join("\n"))
            }
        }
    }

    /// Waits for the end of the next list. Returns whether it was complete.
    pub(crate) async fn list(&mut self) -> bool {
        self.until("the end of a list", |what| match what {
            Observation::Ended { complete, .. } => Some(*complete),
            _ => None,
        })
        .await
    }

    /// Collects the facts that arrive within 300 ms.
    pub(crate) async fn settle(&mut self) {
        let until = tokio::time::Instant::now() + Duration::from_millis(300);
        while let Ok(Some(batch)) = tokio::time::timeout_at(until, self.facts.recv()).await {
            self.all.extend(batch);
        }
    }
}
