//! The end of a search for holders that has found none: the processes at whose Unix sockets fds wait unread. An fd in
//! flight keeps a netns and no process has it, so these processes are reported as candidates.

use super::orphan_sockets::is_same;
use crate::clock;
use crate::fact::{Fact, Holder, NetnsRef, Observation, Origin};
use crate::sources::procfs::Proc;

/// How long one search may look for them, in nanoseconds.
const LONGEST: u64 = 1_000_000_000;

/// Adds candidates to the facts of a search, before the facts that end it, for each netns whose search was complete and
/// found nothing. `beside` has the tasks in these netns and what another pass has found that ran at the same time.
pub(super) fn add(proc: &Proc, wanted: &[NetnsRef], beside: &[Fact], facts: &mut Vec<Fact>) {
    let bare: Vec<NetnsRef> =
        wanted.iter().filter(|netns| is_bare(**netns, beside, facts)).copied().collect();
    if bare.is_empty() {
        return;
    }
    let found = proc.unread_fds(clock::now().plus(LONGEST)).unwrap_or_else(|error| {
        tracing::debug!("fds in flight: {error}");
        Vec::new()
    });
    tell(&found, &bare, facts);
}

fn tell(found: &[Holder], bare: &[NetnsRef], facts: &mut Vec<Fact>) {
    let told = bare.iter().flat_map(|netns| {
        found.iter().map(|holder| Observation::Holder { netns: *netns, holder: holder.clone() })
    });
    let at = clock::now();
    let told: Vec<Fact> = told.map(|what| Fact { at, origin: Origin::Procfs, what }).collect();
    let ends =
        facts.iter().position(|fact| matches!(fact.what, Observation::HoldersSearched { .. }));
    let ends = ends.unwrap_or(facts.len());
    facts.splice(ends..ends, told);
}

fn is_bare(wanted: NetnsRef, beside: &[Fact], facts: &[Fact]) -> bool {
    let holds = |fact: &Fact| match &fact.what {
        Observation::Holder { netns, .. } => is_same(netns, &wanted),
        Observation::Task(task) => is_same(&task.netns, &wanted),
        _ => false,
    };
    let searched = |fact: &Fact| match fact.what {
        Observation::HoldersSearched { netns, complete } => complete && netns == wanted,
        _ => false,
    };
    facts.iter().any(searched) && !facts.iter().chain(beside).any(holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::{BootNs, Task, TaskKey};

    const A: NetnsRef = NetnsRef { cookie: Some(1), inode: Some(11), nsid: None };
    const B: NetnsRef = NetnsRef { cookie: None, inode: Some(12), nsid: None };

    fn fact(what: Observation) -> Fact {
        Fact { at: BootNs(5), origin: Origin::Procfs, what }
    }

    fn ended(netns: NetnsRef, complete: bool) -> Fact {
        fact(Observation::HoldersSearched { netns, complete })
    }

    #[test]
    fn only_a_netns_that_a_complete_search_found_bare_has_candidates() {
        let fd = Holder::Fd { pid: 3, fd: 4, comm: String::new() };
        let held = fact(Observation::Holder { netns: NetnsRef::cookie(1), holder: fd });
        let key = TaskKey { pid: 7, tid: 7, start: 1 };
        let inside = fact(Observation::Task(Task {
            key,
            netns: NetnsRef::inode(12),
            comm: String::new(),
            parent: None,
            exiting: false,
            killed: false,
            state: None,
            idle: None,
        }));
        let ends = [ended(A, true), ended(B, true)];
        assert!(is_bare(A, &[], &ends) && is_bare(B, &[], &ends));
        assert!(!is_bare(A, std::slice::from_ref(&held), &ends), "by the other pass's name");
        assert!(!is_bare(B, &[inside], &ends), "a task is in it");
        assert!(!is_bare(A, &[], &[ended(A, false), ended(B, true)]), "not everything was read");
    }

    #[test]
    fn candidates_are_told_before_the_end_of_the_search() {
        let holder = Holder::Candidate { pid: 7, fd: 5, comm: "keeper".into(), unread: 1 };
        let mut facts = vec![ended(A, true), ended(B, false)];
        tell(std::slice::from_ref(&holder), &[A], &mut facts);
        let told: Vec<_> = facts.into_iter().map(|fact| fact.what).collect();
        let ends = |netns, complete| Observation::HoldersSearched { netns, complete };
        assert_eq!(told, [Observation::Holder { netns: A, holder }, ends(A, true), ends(B, false)]);
    }
}
