//! The content of a Calico datastore, key by key, wherever it is stored.

use serde_json::Value;

use super::STORE;
use crate::fact::{BootNs, Observation};

/// Turns keys into observations.
pub(in crate::sources) trait Keys: Send + 'static {
    /// Name of the source.
    fn source(&self) -> &'static str {
        STORE
    }
    /// An observation sent before anything is known, which announces what will be reported.
    fn will_tell(&self) -> Option<Observation> {
        None
    }
    /// A complete list begins.
    fn began(&mut self, out: &mut Vec<Observation>);
    /// A key exists, or has changed.
    fn put(&mut self, key: &str, value: Kept<'_>, out: &mut Vec<Observation>);
    /// A key was deleted.
    fn gone(&mut self, key: &str, out: &mut Vec<Observation>);
    /// The list has ended. `began`: when it began.
    fn ended(&mut self, began: BootNs, complete: bool, out: &mut Vec<Observation>);
    /// Reports what was delayed.
    fn overdue(&mut self, _: &mut Vec<Observation>) {}
    /// All endpoints that exist were reported.
    fn confirmed(&mut self, _: &mut Vec<Observation>) {}
    /// Number of entries that could not be parsed.
    fn wrong(&self) -> usize;
}

/// A value as it is stored. It is parsed only if the key is of interest.
pub(in crate::sources) enum Kept<'a> {
    /// In an etcd.
    Bytes(&'a [u8]),
    /// In the API server: an object's `spec`.
    Spec(Value),
}

impl Kept<'_> {
    /// Parses the value with `read`.
    pub(super) fn read<T>(self, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        match self {
            Self::Bytes(bytes) => read(&serde_json::from_slice(bytes).ok()?),
            Self::Spec(spec) => read(&spec),
        }
    }
}
