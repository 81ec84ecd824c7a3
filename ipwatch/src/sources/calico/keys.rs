//! What a Calico datastore holds, told key by key, whatever it is kept in.

use serde_json::Value;

use super::STORE;
use crate::fact::{BootNs, Observation};

/// Who is told.
pub(in crate::sources) trait Keys: Send + 'static {
    /// Name of the source that tells of them.
    fn source(&self) -> &'static str {
        STORE
    }
    /// What is said before anything is known: that this is going to be told.
    fn will_tell(&self) -> Option<Observation> {
        None
    }
    /// A whole list begins.
    fn began(&mut self, out: &mut Vec<Observation>);
    /// A key is there, or has changed.
    fn put(&mut self, key: &str, value: Kept<'_>, out: &mut Vec<Observation>);
    /// A key was deleted.
    fn gone(&mut self, key: &str, out: &mut Vec<Observation>);
    /// The list is over. `began`: when it began.
    fn ended(&mut self, began: BootNs, complete: bool, out: &mut Vec<Observation>);
    /// What has waited is to be told.
    fn overdue(&mut self, _: &mut Vec<Observation>) {}
    /// All that there is of endpoints has been told.
    fn confirmed(&mut self, _: &mut Vec<Observation>) {}
    /// Entries that were not understood.
    fn wrong(&self) -> usize;
}

/// A value as it is kept. It is read only of a key that is of interest.
pub(in crate::sources) enum Kept<'a> {
    /// In an etcd.
    Bytes(&'a [u8]),
    /// In the API server: an object's `spec`.
    Spec(Value),
}

impl Kept<'_> {
    /// What is understood of it by this.
    pub(super) fn read<T>(self, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        match self {
            Self::Bytes(bytes) => read(&serde_json::from_slice(bytes).ok()?),
            Self::Spec(spec) => read(&spec),
        }
    }
}
