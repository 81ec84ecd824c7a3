//! What the map does not keep for want of room, by kind and by whose it is: for metrics, which name no tenant.

use std::collections::BTreeMap;

use super::fittings::Fitting;
use super::tenants::Tenant;
use crate::map::NodeMap;

/// One kind of what is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NotKept {
    /// `addresses`, `links`, `neighbours`, `routes`, `vlans` (and names of other netns), `tasks`, `netns`; and `findings`, which the engine
    /// counts.
    pub kind: &'static str,
    /// `host`, `pods`, `root`, `users`.
    pub of: &'static str,
}

/// The kinds of [`Fitting::KINDS`], as values of a label.
const FITTINGS: [&str; Fitting::KINDS.len()] = ["links", "neighbours", "routes", "vlans"];

/// `None` is the host's netns.
fn class(tenant: Option<Tenant>) -> &'static str {
    match tenant {
        None => "host",
        Some(Tenant::Pod(_)) => "pods",
        Some(Tenant::Root) => "root",
        Some(Tenant::User(_)) => "users",
    }
}

impl NodeMap {
    /// How much of each kind is not kept, roughly; without what is 0.
    #[must_use]
    pub fn unkept_by_kind(&self) -> BTreeMap<NotKept, u64> {
        let mut all: BTreeMap<NotKept, u64> = BTreeMap::new();
        let mut add = |kind, of, count: u64| {
            if count > 0 {
                let known = all.entry(NotKept { kind, of: class(of) }).or_default();
                *known = known.saturating_add(count);
            }
        };
        for entry in self.kernel.shares.short_ones().filter_map(|id| self.kernel.get(id)) {
            let (addresses, fittings) = entry.unkept.counts();
            add("addresses", entry.counts_to(), addresses);
            for (kind, count) in FITTINGS.into_iter().zip(fittings) {
                add(kind, entry.counts_to(), count);
            }
        }
        for (id, count) in self.kernel.crowd.unkept() {
            add("tasks", self.kernel.get(id).and_then(super::Netns::counts_to), count);
        }
        for (tenant, count) in self.left_out_by_tenant() {
            add("netns", Some(tenant), count);
        }
        all
    }
}
