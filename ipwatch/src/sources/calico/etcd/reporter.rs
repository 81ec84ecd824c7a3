//! Reports what was read from a datastore: facts from its keys, and the status of the source.

use super::error::EtcdError;
use super::{LONGEST_KEY, MOST_KEYS, VALUE_LIMIT};
use crate::clock;
use crate::fact::{BootNs, Fact, Observation, Origin, SourceStatus};
use crate::sources::calico::keys::{Kept, Keys};
use crate::sources::session::Standing;
use crate::sources::{Closed, Emit};

/// Maximum number of facts sent at once.
const BATCH: usize = 256;

/// What is being reported, and what has been.
pub(super) struct Reporter<K> {
    keys: K,
    emit: Emit,
    standing: Standing,
    out: Vec<Observation>,
    /// Number of keys in the last list.
    listed: usize,
    /// Number of keys in the last list, and in changes since, that are beyond the limit.
    beyond: u64,
    /// Number of keys since the last list that cannot be Calico's: too long, or not UTF-8.
    dropped: usize,
}

impl<K: Keys> Reporter<K> {
    pub(super) fn new(keys: K, emit: Emit) -> Self {
        let (standing, out) = (Standing::default(), Vec::new());
        Self { keys, emit, standing, out, listed: 0, beyond: 0, dropped: 0 }
    }

    /// A complete list begins.
    pub(super) async fn began(&mut self, at: BootNs) -> Result<(), Closed> {
        (self.listed, self.beyond, self.dropped) = (0, 0, 0);
        self.keys.began(&mut self.out);
        self.flush(at).await
    }

    /// Adds an entry of a list. Returns false if the limit is reached.
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

    /// Counts keys that were not listed.
    pub(super) fn leave_out(&mut self, more: u64) {
        self.beyond = self.beyond.saturating_add(more);
    }

    /// Counts a key of a watch that is beyond the limit.
    pub(super) fn leave_out_now(&mut self) {
        self.leave_out(1);
        // The data is no longer complete.
        self.keys.ended(BootNs(0), false, &mut self.out);
    }

    /// Announces what will be reported, before anything is known.
    pub(super) async fn will_tell(&mut self) -> Result<(), Closed> {
        self.out.extend(self.keys.will_tell());
        self.flush(clock::now()).await
    }

    /// Reports that everything that existed at `then` was reported. A key that cannot be Calico's does not affect that.
    pub(super) async fn confirmed(&mut self, then: BootNs) -> Result<(), Closed> {
        // With the current time, because some of it was reported after `then`.
        self.keys.overdue(&mut self.out);
        self.flush(clock::now()).await?;
        if self.beyond == 0 {
            self.keys.confirmed(&mut self.out);
        }
        self.flush(then).await
    }

    /// The list has ended.
    pub(super) async fn ended(&mut self, began: BootNs) -> Result<(), Closed> {
        self.flush(began).await?;
        self.keys.ended(began, self.beyond == 0, &mut self.out);
        self.flush(clock::now()).await
    }

    /// Reports a key that exists or has changed.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        // A key whose value is too long still exists: it is reported like one that could not be parsed.
        let value: &[u8] = if value.len() > VALUE_LIMIT { &[] } else { value };
        match text(key) {
            Some(key) => self.keys.put(key, Kept::Bytes(value), &mut self.out),
            None => self.dropped += 1,
        }
    }

    /// Reports a deleted key.
    pub(super) fn gone(&mut self, key: &[u8]) {
        if let Some(key) = text(key) {
            self.keys.gone(key, &mut self.out);
        }
    }

    /// Sends the collected facts.
    pub(super) async fn flush(&mut self, at: BootNs) -> Result<(), Closed> {
        let facts = self.out.drain(..);
        self.emit.send(facts.map(|what| Fact { at, origin: Origin::Ipam, what }).collect()).await
    }

    /// Reports the status of a member that answers. `about`: which one.
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

    /// Reports the status after an error.
    pub(super) async fn failed(&mut self, about: &str, error: &EtcdError) -> Result<(), Closed> {
        match error {
            // The member works, and what was reported is still valid.
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

/// A key, if it may be Calico's.
pub(super) fn text(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok().filter(|key| key.len() <= LONGEST_KEY)
}
