//! How text for people is laid out: what the tables and trees are told of whoever reads them.

use super::table::Paint;
use super::text::Now;

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
