//! Details of sandboxes that are requested once for each, because lists do not contain them and the request is
//! expensive.
//!
//! The request goes through the sandbox's shim (containerd, `toCRISandboxInfo`: `task.Status`) or takes the container's
//! lock (dockerd, `ContainerInspect`), so it can hang even if a list does not.

use std::collections::HashMap;
use std::net::IpAddr;

use super::reporter::Found;
use crate::fact::{BootNs, Life, Sandbox};

/// First and longest pause in nanoseconds before a failed request is repeated.
const RETRY: (u64, u64) = (5_000_000_000, 300_000_000_000);

/// The details of one sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) pid: Option<u32>,
    pub(super) netns_path: Option<String>,
    pub(super) ips: Vec<IpAddr>,
    /// `None`: the runtime did not say.
    pub(super) host_network: Option<bool>,
    /// Its state, if the details contain it: newer than that in the list.
    pub(super) life: Option<(Life, &'static str)>,
}

/// The sandboxes in the last list.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<String, Entry>);

#[derive(Debug, Default)]
struct Entry {
    details: Option<Details>,
    /// Whether it was alive when it was requested: a sandbox that is started again has another netns.
    alive: bool,
    tries: u32,
    /// The request must not be repeated before this time.
    again: BootNs,
    /// Whether it is in the newest list.
    listed: bool,
}

impl Known {
    /// Adds the known details to the sandboxes of a list, and forgets sandboxes that are not in it.
    pub(super) fn complete(&mut self, found: &mut Found) {
        for entry in self.0.values_mut() {
            entry.listed = false;
        }
        for sandbox in &mut found.sandboxes {
            let entry = self.0.entry(sandbox.id.clone()).or_default();
            entry.listed = true;
            if sandbox.life == Life::Alive && !entry.alive && entry.details.is_some() {
                *entry = Entry { listed: true, ..Entry::default() };
            }
            if let Some(details) = &entry.details {
                details.add_to(sandbox);
            }
        }
        self.0.retain(|_, entry| entry.listed);
    }

    /// Whether the details of this sandbox must be requested now.
    pub(super) fn wants(&self, id: &str, now: BootNs) -> bool {
        self.0.get(id).is_some_and(|entry| entry.details.is_none() && entry.again <= now)
    }

    /// Records the result of a request; `None` if it failed.
    pub(super) fn asked(&mut self, sandbox: &mut Sandbox, details: Option<Details>, now: BootNs) {
        let Some(entry) = self.0.get_mut(&sandbox.id) else { return };
        match details {
            Some(mut details) => {
                if let Some((life, word)) = details.life.take() {
                    (sandbox.life, sandbox.word) = (life, word.to_owned());
                }
                details.add_to(sandbox);
                entry.alive = sandbox.life == Life::Alive;
                entry.details = Some(details);
            }
            None => {
                let pause = RETRY.0.saturating_mul(1 << entry.tries.min(10)).min(RETRY.1);
                entry.again = now.plus(pause);
                entry.tries += 1;
            }
        }
    }

    /// Forgets a sandbox that has another netns now, or is gone. Returns whether it was known.
    pub(super) fn forget(&mut self, id: &str) -> bool {
        self.0.remove(id).is_some()
    }
}

impl Details {
    fn add_to(&self, sandbox: &mut Sandbox) {
        // The pid of a dead sandbox may have been reused.
        sandbox.pid = self.pid.filter(|_| sandbox.life == Life::Alive);
        if sandbox.ips.is_empty() {
            sandbox.ips.clone_from(&self.ips);
        }
        if let Some(host_network) = self.host_network {
            sandbox.host_network = host_network;
        }
        // dockerd also has a path for the host's netns, and every container in the host network has it.
        sandbox.netns_path = self.netns_path.clone().filter(|_| !sandbox.host_network);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(id: &str, life: Life) -> Found {
        let sandbox = Sandbox {
            runtime: "docker".into(),
            id: id.into(),
            pod: None,
            attempt: None,
            name: None,
            life,
            word: String::new(),
            created: None,
            ips: Vec::new(),
            netns_path: None,
            pid: None,
            host_network: false,
        };
        Found { sandboxes: vec![sandbox], ..Found::default() }
    }

    fn details() -> Details {
        Details { pid: Some(7), netns_path: Some("/run/netns/a".into()), ..Details::default() }
    }

    #[test]
    fn one_is_asked_after_once_and_its_facts_stay_whole() {
        let mut known = Known::default();
        let mut found = list("a", Life::Alive);
        known.complete(&mut found);
        assert!(known.wants("a", BootNs(1)));
        known.asked(&mut found.sandboxes[0], Some(details()), BootNs(1));
        assert!(!known.wants("a", BootNs(u64::MAX)));
        let mut again = list("a", Life::Alive);
        known.complete(&mut again);
        assert_eq!(again.sandboxes[0].pid, Some(7));
        assert_eq!(again.sandboxes[0].netns_path.as_deref(), Some("/run/netns/a"));
        // A dead sandbox keeps its path, but its pid may have been reused.
        let mut dead = list("a", Life::Dead);
        known.complete(&mut dead);
        assert_eq!(dead.sandboxes[0].pid, None);
        assert!(dead.sandboxes[0].netns_path.is_some());
    }

    #[test]
    fn one_that_is_started_again_is_asked_after_again() {
        let mut known = Known::default();
        let mut dead = list("a", Life::Dead);
        known.complete(&mut dead);
        known.asked(&mut dead.sandboxes[0], Some(details()), BootNs(1));
        let mut alive = list("a", Life::Alive);
        known.complete(&mut alive);
        assert_eq!(alive.sandboxes[0].netns_path, None);
        assert!(known.wants("a", BootNs(1)));
    }

    #[test]
    fn the_nodes_own_netns_is_nobodys() {
        let mut known = Known::default();
        let mut found = list("a", Life::Alive);
        found.sandboxes[0].host_network = true;
        known.complete(&mut found);
        known.asked(&mut found.sandboxes[0], Some(details()), BootNs(1));
        assert_eq!(
            (found.sandboxes[0].pid, found.sandboxes[0].netns_path.as_ref()),
            (Some(7), None)
        );
    }

    #[test]
    fn one_that_does_not_answer_is_asked_after_less_and_less() {
        let mut known = Known::default();
        let mut found = list("a", Life::Alive);
        known.complete(&mut found);
        let mut now = BootNs(1);
        for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert!(known.wants("a", now), "{pause}");
            known.asked(&mut found.sandboxes[0], None, now);
            now = now.plus(pause * 1_000_000_000);
            assert!(!known.wants("a", BootNs(now.0 - 1)), "{pause}");
        }
    }

    #[test]
    fn nothing_is_kept_of_what_is_no_longer_listed() {
        let mut known = Known::default();
        known.complete(&mut list("a", Life::Alive));
        known.complete(&mut list("b", Life::Alive));
        assert!(!known.forget("a") && known.forget("b"));
        assert!(known.0.is_empty());
    }
}
