//! Telling what a datastore said: facts by way of who understands its keys, and how the source stands.

use super::error::EtcdError;
use super::{LONGEST_KEY, MOST_KEYS, VALUE_LIMIT};
use crate::clock;
use crate::fact::{BootNs, Fact, Observation, Origin, SourceStatus};
use crate::sources::calico::keys::{Kept, Keys};
use crate::sources::session::Standing;
use crate::sources::{Closed, Emit};

/// Facts that are handed over at once.
const BATCH: usize = 256;

/// What is told, and what has been.
pub(super) struct Reporter<K> {
    keys: K,
    emit: Emit,
    standing: Standing,
    out: Vec<Observation>,
    /// Keys of the last list.
    listed: usize,
    /// Those of them, and of what a watch told since, that are beyond what is followed.
    beyond: u64,
    /// Keys since the last list that are longer than any of Calico's, or no text.
    dropped: usize,
}

impl<K: Keys> Reporter<K> {
    pub(super) fn new(keys: K, emit: Emit) -> Self {
        let (standing, out) = (Standing::default(), Vec::new());
        Self { keys, emit, standing, out, listed: 0, beyond: 0, dropped: 0 }
    }

    /// A whole list begins.
    pub(super) async fn began(&mut self, at: BootNs) -> Result<(), Closed> {
        (self.listed, self.beyond, self.dropped) = (0, 0, 0);
        self.keys.began(&mut self.out);
        self.flush(at).await
    }

    /// An entry of a list. `false`: there is no room for more.
    pub(super) async fn listed(
        &mut self,
        key: &[u8],
        value: &[u8],
        at: BootNs,
    ) -> Result<bool, Closed> {
        if self.listed == MOST_KEYS {
            return Ok(false);
        }
        self.listed += 1;
        self.put(key, value);
        if self.out.len() >= BATCH {
            self.flush(at).await?;
        }
        Ok(true)
    }

    /// So many keys were not listed.
    pub(super) fn leave_out(&mut self, more: u64) {
        self.beyond = self.beyond.saturating_add(more);
    }

    /// A watch has a key for which there is no room.
    pub(super) fn leave_out_now(&mut self) {
        self.leave_out(1);
        // What was whole is so no more.
        self.keys.ended(BootNs(0), false, &mut self.out);
    }

    /// Nothing is known yet.
    pub(super) async fn will_tell(&mut self) -> Result<(), Closed> {
        self.out.extend(self.keys.will_tell());
        self.flush(clock::now()).await
    }

    /// All has been told that there was then. A key that cannot be Calico's takes nothing from that.
    pub(super) async fn confirmed(&mut self, then: BootNs) -> Result<(), Closed> {
        // Of now: what was told since then is no newer.
        self.keys.overdue(&mut self.out);
        self.flush(clock::now()).await?;
        if self.beyond == 0 {
            self.keys.confirmed(&mut self.out);
        }
        self.flush(then).await
    }

    /// The list is over.
    pub(super) async fn ended(&mut self, began: BootNs) -> Result<(), Closed> {
        self.flush(began).await?;
        self.keys.ended(began, self.beyond == 0, &mut self.out);
        self.flush(clock::now()).await
    }

    /// A key is there, or has changed.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        // One whose value is too long is there all the same: as one that nobody understands.
        let value: &[u8] = if value.len() > VALUE_LIMIT { &[] } else { value };
        match text(key) {
            Some(key) => self.keys.put(key, Kept::Bytes(value), &mut self.out),
            None => self.dropped += 1,
        }
    }

    /// A key was deleted.
    pub(super) fn gone(&mut self, key: &[u8]) {
        if let Some(key) = text(key) {
            self.keys.gone(key, &mut self.out);
        }
    }

    /// Hands over what has come together.
    pub(super) async fn flush(&mut self, at: BootNs) -> Result<(), Closed> {
        let facts = self.out.drain(..);
        self.emit.send(facts.map(|what| Fact { at, origin: Origin::Ipam, what }).collect()).await
    }

    /// It answers. `about`: who, and where.
    pub(super) async fn well(&mut self, about: &str) -> Result<(), Closed> {
        let (beyond, wrong) = (self.beyond, self.dropped + self.keys.wrong());
        let mut text = Vec::new();
        if beyond > 0 {
            text.push(format!("{beyond} keys are more than is followed"));
        }
        if wrong > 0 {
            text.push(format!("{wrong} entries are not understood"));
        }
        let status = if text.is_empty() { SourceStatus::Active } else { SourceStatus::Degraded };
        text.push(format!("{about}, {} keys in the last list", self.listed));
        self.say(status, text.join("; ")).await
    }

    /// What an error means for what is known.
    pub(super) async fn failed(&mut self, about: &str, error: &EtcdError) -> Result<(), Closed> {
        match error {
            // It is there, and what was told is as true as before.
            EtcdError::Expired { .. } => {
                self.say(SourceStatus::Degraded, format!("{about} is listed anew: {error}")).await
            }
            _ => self.say(SourceStatus::Down, format!("{about} is not known: {error}")).await,
        }
    }

    pub(super) async fn say(&mut self, status: SourceStatus, detail: String) -> Result<(), Closed> {
        self.standing.tell(&self.emit, Origin::Ipam, self.keys.source(), status, detail).await
    }
}

/// A key that may be Calico's.
pub(super) fn text(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok().filter(|key| key.len() <= LONGEST_KEY)
}
