//! How text for people is laid out: what the tables and trees are told of whoever reads them.

use super::table::Paint;
use super::text::Now;
use crate::contract::Address;

/// How text for people is laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    /// The document's moment.
    pub(super) now: Now,
    /// More columns.
    pub(super) wide: bool,
    /// Header lines, summaries and hints.
    pub(super) headers: bool,
    /// Consequences and resolved findings too.
    pub(super) all: bool,
    /// Addresses are told as those of pods.
    pub(super) pods: bool,
    pub(super) paint: Paint,
    /// Longest line of a tree; `None` where nothing shows lines of a limited width.
    pub(super) width: Option<usize>,
    /// Trees are drawn without box characters.
    pub(super) ascii: bool,
}

impl View {
    /// How long an address has been up: `6m`, or `≥6m` if it was up already when ipwatch first looked.
    pub(super) fn up(self, address: &Address) -> String {
        let age = self.now.age(address.since.as_deref());
        let least = match address.preexisting && !age.is_empty() {
            false => "",
            true if self.ascii => ">=",
            true => "≥",
        };
        format!("{least}{age}")
    }
}
