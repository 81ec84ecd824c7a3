//! Proof instead of patience: what shortens the grace of what a sandbox has left behind.
//!
//! A grace is what doubt costs: its runtime, a plugin or the kubelet may be about to clean up. Each proof that one of
//! them is not shortens it, independently of the others. `docs/confidence.md` has the table.

use crate::fact::BootNs;
use crate::map::NodeMap;
use crate::map::ipam::is_freed_by_cni;

/// After the end of a run of a plugin its runtime goes on with what belongs to it: the netns, the sandbox.
const AFTER_CALL: u64 = 2_000_000_000;

/// What proves, beside the runtimes' word, that nobody is about to clean up after a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::map) struct Proofs {
    /// Its netns was seen to end, or nothing that could go on is in it: no task, fd or socket, by a complete search.
    pub(in crate::map) empty: bool,
    /// Every run of a CNI plugin was seen since before it was gone, and none for it is under way.
    pub(in crate::map) no_call: bool,
    /// The API server or the kubelet does not have its pod any more.
    pub(in crate::map) no_pod: bool,
}

impl Proofs {
    /// What is left of a grace, in ns: all of it, a third, a tenth, nothing but the two looks.
    #[must_use]
    pub(in crate::map) fn shorten(self, grace: u64) -> u64 {
        let proofs = [self.empty, self.no_call, self.no_pod];
        match proofs.into_iter().filter(|proof| *proof).count() {
            0 => grace,
            1 => grace / 3,
            2 => grace / 10,
            _ => 0,
        }
    }
}

impl NodeMap {
    /// What is left of the grace of what a sandbox has left behind that no runtime has had since `gone`, by `shorten`. `uid`
    /// is its pod's where nothing else tells. `empty` is as in [`Proofs`].
    pub(in crate::map) fn proven_grace(
        &self,
        (sandbox, uid): (&str, Option<&str>),
        gone: BootNs,
        empty: bool,
        shorten: impl Fn(Proofs) -> u64,
    ) -> u64 {
        let no_pod = self.has_no_pod(sandbox, uid, gone);
        let grace = shorten(Proofs { empty, no_call: true, no_pod });
        // What is lost when the grace is over changes nothing of it.
        if self.no_call_for(sandbox) && self.calls_seen_over(gone, gone.plus(grace)).is_some() {
            return grace;
        }
        shorten(Proofs { empty, no_call: false, no_pod })
    }

    /// Until when runs of plugins for a sandbox that have ended may be why something of it is still there.
    pub(in crate::map) fn after_calls(&self, sandbox: &str, grace: u64) -> BootNs {
        let ended = self
            .call_history(sandbox)
            .and_then(|history| [history.add.ended, history.del.ended].into_iter().flatten().max());
        ended.map_or(BootNs::default(), |ended| ended.plus(grace.max(AFTER_CALL)))
    }

    /// Whether it is one whose plugins are run, and none is.
    fn no_call_for(&self, sandbox: &str) -> bool {
        let history = self.call_history(sandbox);
        // Nothing is proven by the silence of plugins that nobody runs: dockerd and netavark do without.
        let by_cni = history.is_some()
            || self.attachment_of(sandbox).is_some()
            || self.reservations_for(sandbox).any(|entry| is_freed_by_cni(&entry.store));
        by_cni && history.is_none_or(|history| history.add.running + history.del.running == 0)
    }

    /// Whether who told of all pods has told that this one's is gone, or has told of all since `gone` and not of it. A uid
    /// is no other pod's ever after: it stays proven when whoever told falls silent.
    fn has_no_pod(&self, sandbox: &str, uid: Option<&str>, gone: BootNs) -> bool {
        if !self.pods_were_told() {
            return false;
        }
        let told =
            self.sandbox(sandbox).and_then(|entry| entry.sandbox.pod.as_ref()?.uid.as_deref());
        let history = || self.call_history(sandbox)?.pod.as_ref()?.uid.as_deref();
        let Some(uid) = told.or(uid).or_else(history) else { return false };
        self.is_no_pod(uid, gone)
    }
}
