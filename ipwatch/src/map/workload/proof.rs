//! Proofs that shorten the grace of what a sandbox has left behind.
//!
//! The grace covers doubt: the runtime, a plugin or the kubelet may be about to clean up. Each proof that one of them
//! is not shortens it, independently of the others. `docs/confidence.md` has the table.

use crate::fact::BootNs;
use crate::map::NodeMap;
use crate::map::ipam::is_freed_by_cni;

/// After a plugin run has ended, the runtime continues with what belongs to it: the netns, the sandbox.
const AFTER_CALL: u64 = 2_000_000_000;

/// Proofs, beside the report of the runtimes, that nothing is about to clean up after a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::map) struct Proofs {
    /// Its netns was seen to end, or a complete search found no task, fd or socket in it.
    pub(in crate::map) empty: bool,
    /// Every run of a CNI plugin was observed since before the sandbox was removed, and none for it is under way.
    pub(in crate::map) no_call: bool,
    /// The API server or the kubelet does not have its pod any more.
    pub(in crate::map) no_pod: bool,
}

impl Proofs {
    /// The remaining grace, in ns: all of it, a third, a tenth, or only the two looks.
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
    /// The remaining grace, by `shorten`, of what a sandbox left behind that no runtime has had since `gone`. `uid` is
    /// its pod's, used if no other source has it. `empty` is as in [`Proofs`].
    pub(in crate::map) fn proven_grace(
        &self,
        (sandbox, uid): (&str, Option<&str>),
        gone: BootNs,
        empty: bool,
        shorten: impl Fn(Proofs) -> u64,
    ) -> u64 {
        let no_pod = self.has_no_pod(sandbox, uid, gone);
        let grace = shorten(Proofs { empty, no_call: true, no_pod });
        // A loss after the grace has ended does not change it.
        if self.no_call_for(sandbox) && self.calls_seen_over(gone, gone.plus(grace)).is_some() {
            return grace;
        }
        shorten(Proofs { empty, no_call: false, no_pod })
    }

    /// Until when ended plugin runs for a sandbox may explain that something of it is still there.
    pub(in crate::map) fn after_calls(&self, sandbox: &str, grace: u64) -> BootNs {
        let ended = self
            .call_history(sandbox)
            .and_then(|history| [history.add.ended, history.del.ended].into_iter().flatten().max());
        ended.map_or(BootNs::default(), |ended| ended.plus(grace.max(AFTER_CALL)))
    }

    /// Whether this sandbox uses CNI plugins, and none is running.
    fn no_call_for(&self, sandbox: &str) -> bool {
        let history = self.call_history(sandbox);
        // The silence of plugins that nobody runs proves nothing: dockerd and netavark do without.
        let by_cni = history.is_some()
            || self.attachment_of(sandbox).is_some()
            || self.reservations_for(sandbox).any(|entry| is_freed_by_cni(&entry.store));
        by_cni && history.is_none_or(|history| history.add.running + history.del.running == 0)
    }

    /// Whether the source of all pods has reported the removal of this sandbox's pod, or has reported all pods since
    /// `gone` and not this one. Because a uid is never reused, this stays proven if the source stops answering.
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
