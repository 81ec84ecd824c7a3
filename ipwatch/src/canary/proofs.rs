//! The last verdict for each event.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Verdict;
use crate::contract;
use crate::fact::BootNs;

/// Shared by the canary's runner and the reports.
#[derive(Debug, Default)]
pub(crate) struct Proofs(Mutex<BTreeMap<&'static str, (Verdict, BootNs)>>);

impl Proofs {
    /// Sets a new verdict. A temporary failure does not replace an earlier verdict.
    pub(crate) fn set(&self, event: &'static str, verdict: Verdict, at: BootNs) {
        let mut proofs = self.proofs();
        let passing = matches!(verdict, Verdict::NotNow(_));
        if !passing || !proofs.contains_key(event) {
            proofs.insert(event, (verdict, at));
        }
    }

    /// Whether the event is attached, but was not reported.
    pub(crate) fn is_blind(&self, event: &str) -> bool {
        matches!(self.proofs().get(event), Some((Verdict::NotSeen(_), _)))
    }

    /// The proof as `doctor` shows it.
    pub(crate) fn of(&self, event: &str, now: BootNs) -> Option<contract::Proof> {
        let proofs = self.proofs();
        let (verdict, at) = proofs.get(event)?;
        let ago_secs = now.since(*at) / 1_000_000_000;
        let proof = |verdict: &str, micros, why| contract::Proof {
            verdict: verdict.to_owned(),
            micros,
            ago_secs,
            why,
        };
        Some(match verdict {
            Verdict::Seen(ns) => proof("seen", ns.map(|ns| ns / 1000), None),
            Verdict::NotSeen(what) => proof("not-seen", None, Some(what.clone())),
            Verdict::NotTried(why) | Verdict::NotNow(why) => {
                proof("not-tried", None, Some(why.clone()))
            }
        })
    }

    fn proofs(&self) -> MutexGuard<'_, BTreeMap<&'static str, (Verdict, BootNs)>> {
        // Each entry is complete whenever the lock is released.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
