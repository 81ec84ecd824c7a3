//! What the tests of sources have in common: hearing the facts of one that runs.

use std::time::Duration;

use tokio::sync::mpsc;

use super::Emit;
use crate::fact::{Fact, Observation};

/// Bounds a wait; no test depends on how long it really takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The facts of a running source.
pub(crate) struct Heard {
    facts: mpsc::Receiver<Vec<Fact>>,
    /// All that were waited for so far.
    pub(crate) all: Vec<Fact>,
}

impl Heard {
    /// What a source emits to, and what hears it.
    pub(crate) fn channel() -> (Emit, Self) {
        let (emit, facts) = Emit::channel(64);
        (emit, Self { facts, all: Vec::new() })
    }

    /// The first fact from now on of which `fits` makes something.
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

    /// The end of the next list; whether it was complete.
    pub(crate) async fn list(&mut self) -> bool {
        self.until("the end of a list", |what| match what {
            Observation::Ended { complete, .. } => Some(*complete),
            _ => None,
        })
        .await
    }

    /// What is told within a while.
    pub(crate) async fn settle(&mut self) {
        let until = tokio::time::Instant::now() + Duration::from_millis(300);
        while let Ok(Some(batch)) = tokio::time::timeout_at(until, self.facts.recv()).await {
            self.all.extend(batch);
        }
    }
}
