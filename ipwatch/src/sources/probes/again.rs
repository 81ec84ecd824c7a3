//! Attaches programs again that are attached and tell nothing.
//!
//! A program is called until its link is closed, which only this process does: links of tracing programs cannot be detached
//! by others (`bpf_raw_tp_link_lops`, `bpf_tracing_link_lops`, kernel/bpf/syscall.c, have no `detach`, 5.10 to 6.18), and
//! nothing is pinned. What is left are switches of the whole node (`kernel.ftrace_enabled`, `kprobes/enabled` of debugfs) and
//! faults of the kernel. The old link goes first: the same program cannot be at a function twice (`bpf_trampoline_link_prog`,
//! kernel/bpf/trampoline.c), and a tracepoint would take the two for one (`tracepoint_probe_register_may_exist`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use aya::Ebpf;

use super::attach::{Attach, Links, hold, let_go};
use super::ladder::Standing;
use crate::escape::escape;

/// Between two attempts to get at the programs, which a snapshot has for some milliseconds, and how many there are: one that
/// hangs in the kernel has them for ever.
const WAIT: (Duration, u32) = (Duration::from_millis(20), 100);

/// The links of what is attached, and how to make them again.
pub(crate) struct Again {
    ebpf: Arc<Mutex<Ebpf>>,
    links: Mutex<Links>,
    /// The programs of each event.
    ways: BTreeMap<&'static str, &'static [(&'static str, Attach)]>,
}

impl std::fmt::Debug for Again {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Again").finish_non_exhaustive()
    }
}

impl Again {
    pub(super) fn new(ebpf: Arc<Mutex<Ebpf>>, links: Links, standings: &[Standing]) -> Self {
        let by_link = |one: &&Standing| {
            let none = |(_, attach): &(_, Attach)| {
                matches!(attach, Attach::Iter(_) | Attach::Arp | Attach::TestRun)
            };
            one.rung.is_some() && !one.programs.iter().any(none)
        };
        let ways = standings.iter().filter(by_link).map(|one| (one.event, one.programs)).collect();
        Self { ebpf, links: Mutex::new(links), ways }
    }

    /// Attaches the programs of an event again. It blocks; needs CAP_PERFMON for kprobes.
    ///
    /// # Errors
    /// Why it is not attached again. A program that was let go and refused is not attached any more.
    pub(crate) fn attach(&self, event: &str) -> Result<(), String> {
        let programs = *self.ways.get(event).ok_or("no program of it is attached by a link")?;
        for _ in 0..WAIT.1 {
            let mut ebpf = match self.ebpf.try_lock() {
                Ok(ebpf) => ebpf,
                Err(TryLockError::Poisoned(ebpf)) => ebpf.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(WAIT.0);
                    continue;
                }
            };
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            return programs.iter().try_for_each(|(name, attach)| {
                let program = ebpf.program_mut(name).ok_or("it is not loaded")?;
                if let Some(link) = links.remove(name) {
                    let_go(program, link).map_err(|error| said(name, &error))?;
                }
                let link = hold(name, program, *attach).map_err(|error| said(name, &error))?;
                links.extend(link.map(|link| (*name, link)));
                Ok(())
            });
        }
        Err("a snapshot hangs".to_owned())
    }
}

fn said(name: &str, error: &(dyn std::error::Error + 'static)) -> String {
    format!("{name}: {}", escape(&super::chain(error)))
}
