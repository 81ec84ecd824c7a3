//! The layout of text for people, as the tables and trees need it.

use super::table::Paint;
use super::text::Now;
use crate::contract::Address;

/// The layout of text for people.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    /// The time of the document.
    pub(super) now: Now,
    /// Show more columns.
    pub(super) wide: bool,
    /// Show headers, summaries and hints.
    pub(super) headers: bool,
    /// Show consequences and resolved findings, or loopback and link-local addresses, as well.
    pub(super) all: bool,
    /// A daemon answered, so that it can explain a finding by its id.
    pub(super) asked: bool,
    /// Show addresses by pod.
    pub(super) pods: bool,
    pub(super) paint: Paint,
    /// Width of the terminal; `None` if lines are not limited.
    pub(super) width: Option<usize>,
    /// Draw trees without box characters.
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
