//! Rejected names and disregarded plugin runs, counted by the source that reported them.

use std::collections::BTreeMap;

use crate::contract;
use crate::fact::{BootNs, Name};

use super::NodeMap;

/// Maximum number of counters: enough for every source of a node with every kind of name.
const MOST: usize = 512;
/// Name that all further sources share. The names of sources come from the configuration.
const OTHERS: &str = "others";
/// A plugin whose file an untrusted user can change may hide calls: how long after such a run the observed calls count
/// as incomplete.
const DOUBT: u64 = 600_000_000_000;

/// Counts, and when they last grew.
#[derive(Debug, Default)]
pub(super) struct Refused {
    counts: BTreeMap<(String, Name), (u64, BootNs)>,
    /// When a plugin run was disregarded that may nevertheless have changed something.
    plugin: Option<BootNs>,
}

impl NodeMap {
    pub(super) fn name_refused(&mut self, source: &str, name: Name, count: u64, at: BootNs) {
        let counts = &mut self.refused.counts;
        let mut key = (source.to_owned(), name);
        if counts.len() >= MOST && !counts.contains_key(&key) {
            OTHERS.clone_into(&mut key.0);
        }
        let entry = counts.entry(key).or_default();
        *entry = (entry.0.saturating_add(count), entry.1.max(at));
        if name == Name::PluginFile {
            // This run does not show whether an ADD or a DEL is under way, but one may be.
            self.refused.plugin = self.refused.plugin.max(Some(at));
            self.calls_lost(at);
        }
    }

    /// Whether every run of a CNI plugin that can change something is observed and trusted.
    pub(super) fn sees_calls(&self, now: BootNs) -> bool {
        let doubt = self.refused.plugin.is_some_and(|at| now.since(at) < DOUBT);
        self.sight().calls && !doubt
    }

    /// The counters of rejected names.
    #[must_use]
    pub fn refused(&self) -> Vec<contract::Refused> {
        let told = |((source, name), (count, last)): (&(String, Name), &(u64, BootNs))| {
            let last = self.calendar().date(*last);
            contract::Refused { source: source.clone(), name: *name, count: *count, last }
        };
        self.refused.counts.iter().map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::{Fact, Observation, Origin, Sight};

    fn tell(map: &mut NodeMap, at: u64, what: Observation) {
        map.apply(&Fact { at: BootNs(at), origin: Origin::Probe, what });
    }

    fn refuse(map: &mut NodeMap, at: u64, source: &str, name: Name) {
        tell(map, at, Observation::Refused { source: source.to_owned(), name, count: 2 });
    }

    #[test]
    fn refusals_are_counted_by_source_and_kind_and_bounded() {
        let mut map = NodeMap::new(false);
        for at in 1..=3 {
            refuse(&mut map, at, "containerd", Name::ContainerId);
        }
        refuse(&mut map, 4, "probes", Name::PluginRun);
        let counts: Vec<_> = map.refused().into_iter().map(|one| (one.source, one.count)).collect();
        assert_eq!(counts, [("containerd".to_owned(), 6), ("probes".to_owned(), 2)]);
        for n in 0..2 * MOST {
            refuse(&mut map, 5, &format!("runtime-{n}"), Name::PodName);
        }
        let all = map.refused();
        assert_eq!(all.len(), MOST + 1);
        assert_eq!(all.iter().map(|one| one.count).sum::<u64>(), 8 + 4 * MOST as u64);
    }

    #[test]
    fn calls_are_not_all_seen_while_a_plugin_is_not_believed() {
        let mut map = NodeMap::new(false);
        let sight = Sight { calls: true, ..Sight::default() };
        tell(&mut map, 1, Observation::Sight(sight));
        // A caller without permission to run plugins changes nothing: no call is missed.
        refuse(&mut map, 2, "probes", Name::PluginRun);
        assert!(map.sees_calls(BootNs(2)));
        assert_eq!(map.calls_seen_since(), Some(BootNs(1)));
        refuse(&mut map, 3, "probes", Name::PluginFile);
        assert!(!map.sees_calls(BootNs(4)) && map.sees_calls(BootNs(3 + DOUBT)));
        assert_eq!(map.calls_seen_since(), Some(BootNs(3)));
    }
}
