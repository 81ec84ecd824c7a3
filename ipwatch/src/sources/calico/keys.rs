//! What a Calico datastore holds, told key by key, whatever it is kept in.

use super::STORE;
use crate::fact::{BootNs, Observation};

/// Who is told.
pub(super) trait Keys: Send + 'static {
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
    /// A key is there, or has changed. Its value as it is kept.
    fn put(&mut self, key: &str, value: &[u8], out: &mut Vec<Observation>);
    /// A key was deleted.
    fn gone(&mut self, key: &str, out: &mut Vec<Observation>);
    /// The list is over. `began`: when it began.
    fn ended(&mut self, began: BootNs, complete: bool, out: &mut Vec<Observation>);
    /// What has waited is to be told.
    fn overdue(&mut self, _: &mut Vec<Observation>) {}
    /// All that there is of endpoints has been told.
    fn confirmed(&mut self, out: &mut Vec<Observation>);
    /// Entries that were not understood.
    fn wrong(&self) -> usize;
}
