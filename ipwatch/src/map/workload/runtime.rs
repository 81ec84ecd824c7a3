//! Reports of the container runtimes, and since when: which sandboxes live, which are dead, and which no longer exist.
//!
//! A runtime's report is only as new as its last complete listing. A sandbox that a later listing does not name is
//! removed; one that was never reported is denied only by a runtime that has answered since.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, Container, Life, PodName, Sandbox, Source, SourceName, SourceStatus};

use super::crash_loop;
use super::unasked::Why;
use crate::map::request::Request;
use crate::map::{Certainty, Kinds, Netns, NodeMap, Thresholds, Tick};

/// Maximum number of sandboxes, and of containers, including removed ones.
const MAX_ENTRIES: usize = 16_384;
/// How long a removed one is remembered after nothing of it is left.
const FORGET_AFTER: u64 = 600_000_000_000;
/// Minimum interval between two requests to one runtime about the same matter.
const ASK_AGAIN: u64 = 60_000_000_000;
/// Delay before an unanswered request is repeated.
const RETRY: u64 = 5_000_000_000;

/// A sandbox as last reported by its runtime.
#[derive(Debug, Clone)]
pub struct SandboxEntry {
    pub sandbox: Sandbox,
    /// When it was first reported.
    pub first_seen: BootNs,
    /// When it was last reported.
    pub told: BootNs,
    /// Since when it is known to be dead or removed.
    pub dead: Option<BootNs>,
    /// When the runtime was first known not to have it any more.
    pub gone: Option<BootNs>,
    /// Whether it was dead at the first report: the time of its death is unknown.
    pub preexisting: bool,
}

impl SandboxEntry {
    /// When it died; `None` if it was dead at the first report.
    fn died(&self) -> Option<BootNs> {
        self.dead.filter(|_| !self.preexisting)
    }
}

/// A container as last reported by its runtime.
#[derive(Debug, Clone)]
pub struct ContainerEntry {
    pub container: Container,
    /// When it was last reported.
    pub told: BootNs,
    /// Since when it is known to be dead or removed.
    pub dead: Option<BootNs>,
    /// When the runtime was first known not to have it any more.
    pub gone: Option<BootNs>,
}

/// State of the sandbox that a netns was made for, according to the runtimes. Only its owner can prove it dead
/// ([`SandboxVerdict::Dead`], [`SandboxVerdict::Gone`]); the denial of other runtimes is proof only if no further runtime can own it
/// (`unasked`).
#[derive(Debug, Clone, Copy)]
pub enum SandboxVerdict<'a> {
    /// It lives, or is being made.
    Lives,
    /// It is dead; its runtime still has it.
    Dead(&'a SandboxEntry),
    /// Its runtime had it and does not have it any more.
    Gone(&'a SandboxEntry),
    /// It was never reported, every runtime that could own it is queried, and each has been listed completely. Since
    /// then.
    Denied(BootNs),
    /// There is no runtime to query, and none running that could own it.
    NobodyToAsk,
    /// No queried runtime can tell. Nothing follows from that; in particular, its processes must not be treated as safe
    /// to end.
    Unknown(Why<'a>),
}

/// Progress of a runtime's listings.
#[derive(Debug, Default)]
struct Listed {
    /// When the first complete listing began.
    first: Option<BootNs>,
    /// When the last complete listing began.
    last: Option<BootNs>,
    /// When the complete listing before `last` began.
    before: Option<BootNs>,
    /// When it was queried again.
    asked: Option<BootNs>,
    /// Whether it has reported a pod, so that it is a kubelet's runtime.
    pods: bool,
}

impl Listed {
    /// When to query so that two listings after `since` are at least `apart`, which confirms a finding. `None` if they
    /// are. The first of them may be late: what counts is the time between the two.
    fn second_look(&self, since: BootNs, apart: u64) -> Option<BootNs> {
        let Some(last) = self.last.filter(|last| *last >= since) else { return Some(since) };
        let before = self.before.filter(|before| *before >= since);
        let certain = before.is_some_and(|before| last.since(before) >= apart);
        (!certain).then(|| last.plus(apart))
    }
}

/// What makes a second query of a runtime necessary, except for what changes with time alone.
#[derive(Debug, Default)]
struct Suspects {
    /// When this was computed.
    seen: Option<(Tick, Thresholds)>,
    /// Runtimes of dead or deleted sandboxes that are still here, and since when that counts.
    left: Vec<(String, BootNs)>,
    /// Whether a pod seems to lack an endpoint.
    unwired: bool,
}

impl Suspects {
    const ON: Kinds = Kinds::NETNS.and(Kinds::RUNTIMES).and(Kinds::PODS).and(Kinds::ENDPOINTS);
}

#[derive(Debug, Default)]
pub(in crate::map) struct Runtimes {
    listed: BTreeMap<String, Listed>,
    sandboxes: BTreeMap<String, SandboxEntry>,
    /// Ids of sandboxes that are dead or removed.
    dead: BTreeSet<String>,
    containers: BTreeMap<String, ContainerEntry>,
    pub(super) crash_loops: crash_loop::CrashLoops,
    forgotten: BootNs,
    suspects: Suspects,
}

impl Runtimes {
    pub(in crate::map) fn sandbox(&self, id: &str) -> Option<&SandboxEntry> {
        self.sandboxes.get(id)
    }

    pub(in crate::map) fn container(&self, id: &str) -> Option<&ContainerEntry> {
        self.containers.get(id)
    }

    pub(in crate::map) fn sandboxes(&self) -> impl Iterator<Item = &SandboxEntry> {
        self.sandboxes.values()
    }

    /// The sandbox of a container, or the sandbox itself.
    pub(in crate::map) fn sandbox_of_container(&self, id: &str) -> Option<&str> {
        match self.sandboxes.get_key_value(id) {
            Some((id, _)) => Some(id),
            None => self.containers.get(id)?.container.sandbox.as_deref(),
        }
    }

    fn is_known(&self, pod: &PodName, but: &str) -> bool {
        self.sandboxes
            .values()
            .any(|entry| entry.sandbox.id != but && entry.sandbox.pod.as_ref() == Some(pod))
    }
}

impl NodeMap {
    pub(in crate::map) fn set_sandbox(&mut self, sandbox: &Sandbox, at: BootNs) {
        let known = self.workload.runtimes.sandboxes.get(&sandbox.id);
        if known.is_some_and(|known| known.told > at) {
            return;
        }
        // Two runtimes may report the same sandbox, such as Docker and the shim that speaks CRI for it: the first one
        // counts.
        let another = |known: &SandboxEntry| {
            known.gone.is_none()
                && known.sandbox.runtime != sandbox.runtime
                && self.runtime_answers(&known.sandbox.runtime)
        };
        if known.is_some_and(another) {
            return;
        }
        if known.is_none() && self.workload.runtimes.sandboxes.len() >= MAX_ENTRIES {
            return;
        }
        let same = known.is_some_and(|known| known.gone.is_none() && known.sandbox == *sandbox);
        let dead =
            (sandbox.life == Life::Dead).then(|| known.and_then(|known| known.dead).unwrap_or(at));
        let entry = SandboxEntry {
            first_seen: known.map_or(at, |known| known.first_seen),
            preexisting: match known {
                Some(known) => known.preexisting && dead.is_some(),
                None => dead.is_some() && !self.has_listed(&sandbox.runtime),
            },
            told: at,
            dead,
            gone: None,
            sandbox: sandbox.clone(),
        };
        let fresh = known.is_none();
        if known.is_none_or(|known| known.sandbox.created != sandbox.created) {
            self.conflict.readdressed();
        }
        if dead.is_some() {
            self.workload.container_mounts.suspect(&sandbox.id, entry.died());
        } else {
            self.workload.container_mounts.acquit(&sandbox.id);
        }
        if fresh && !sandbox.host_network {
            self.note_attempt(sandbox, at);
        }
        if sandbox.pod.is_some()
            && let Some(listed) = self.workload.runtimes.listed.get_mut(&sandbox.runtime)
            && !std::mem::replace(&mut listed.pods, true)
        {
            // From now on its denials count.
            self.workload.owners.ask_all();
        }
        if dead.is_some() {
            self.workload.runtimes.dead.insert(sandbox.id.clone());
        } else {
            self.workload.runtimes.dead.remove(&sandbox.id);
        }
        self.workload.runtimes.sandboxes.insert(sandbox.id.clone(), entry);
        // Its first process may be in a netns that is not kept: then it is not kept either, and is looked for.
        if let Some(pid) = sandbox.pid
            && !same
            && dead.is_none()
            && self.left_out() > 0
            && self.tasks_of(pid).next().is_none()
        {
            self.scheduler.walk_by(at);
        }
        if !same {
            self.workload.owners.ask_all();
        }
    }

    /// The status of a runtime's source has changed. A disabled source is no runtime.
    pub(in crate::map) fn runtime_stands(&mut self, source: &Source) {
        let listed = &mut self.workload.runtimes.listed;
        if source.status == SourceStatus::Disabled {
            listed.remove(&source.name);
        } else if source.name != SourceName::Runtime {
            listed.entry(source.name.clone()).or_default();
        }
        self.workload.owners.ask_all();
    }

    /// A source has changed its name: the former name is not waited for any more.
    pub(in crate::map) fn runtime_renamed(&mut self, name: &str) {
        self.workload.runtimes.listed.remove(name);
    }

    /// Counts a new sandbox of a pod.
    fn note_attempt(&mut self, sandbox: &Sandbox, at: BootNs) {
        let Some(pod) = &sandbox.pod else { return };
        // By the runtime's clock, if it reports a time: a sandbox from before ipwatch's start is as old as it is.
        let made = match self.made_at(sandbox) {
            Some(Ok(made)) => made.min(at),
            // Of an earlier boot.
            Some(Err(_)) => return,
            None => at,
        };
        if self.workload.runtimes.is_known(pod, &sandbox.id)
            || sandbox.attempt.is_some_and(|n| n > 0)
        {
            self.workload.runtimes.crash_loops.note(pod, sandbox, made);
        }
    }

    /// When a sandbox was made, as reported by its runtime; `Err` if before the boot.
    fn made_at(&self, sandbox: &Sandbox) -> Option<Result<BootNs, std::num::TryFromIntError>> {
        let offset = self.boot.as_ref().map_or(0, |boot| boot.wall_offset);
        Some(u64::try_from(sandbox.created?.saturating_sub(offset)).map(BootNs))
    }

    /// When the sandbox of a netns was made, as reported by its runtime. Nothing in the netns is older.
    pub(in crate::map) fn sandbox_made(&self, netns: &Netns) -> Option<BootNs> {
        let owner = netns.owner().filter(|owner| owner.certainty != Certainty::ByIp)?;
        self.made_at(&self.workload.runtimes.sandbox(&owner.sandbox)?.sandbox)?.ok()
    }

    pub(in crate::map) fn sandbox_gone(&mut self, runtime: &str, id: &str, at: BootNs) {
        let Some(entry) = self.workload.runtimes.sandboxes.get_mut(id) else { return };
        if entry.sandbox.runtime != runtime || entry.told > at {
            return;
        }
        entry.dead.get_or_insert(at);
        entry.gone.get_or_insert(at);
        self.workload.runtimes.dead.insert(id.to_owned());
        self.workload.container_mounts.suspect(id, Some(at));
        self.workload.owners.ask_all();
    }

    pub(in crate::map) fn set_container(&mut self, container: &Container, at: BootNs) {
        let known = self.workload.runtimes.containers.get(&container.id);
        if known.is_some_and(|known| known.told > at) {
            return;
        }
        if known.is_none() {
            if self.workload.runtimes.containers.len() >= MAX_ENTRIES {
                return;
            }
            self.workload.owners.ask_all();
        }
        let dead = (container.life == Life::Dead)
            .then(|| known.and_then(|known| known.dead).unwrap_or(at));
        match dead {
            // Dead since an unknown time: no grace.
            Some(_) if known.is_none() && !self.has_listed(&container.runtime) => {
                self.workload.container_mounts.suspect(&container.id, None);
            }
            Some(_) => self.workload.container_mounts.suspect(&container.id, dead),
            None => self.workload.container_mounts.acquit(&container.id),
        }
        let entry = ContainerEntry { container: container.clone(), told: at, dead, gone: None };
        self.workload.runtimes.containers.insert(container.id.clone(), entry);
    }

    pub(in crate::map) fn container_gone(&mut self, runtime: &str, id: &str, at: BootNs) {
        let Some(entry) = self.workload.runtimes.containers.get_mut(id) else { return };
        if entry.container.runtime != runtime || entry.told > at {
            return;
        }
        entry.dead.get_or_insert(at);
        entry.gone.get_or_insert(at);
        self.workload.container_mounts.suspect(id, Some(at));
    }

    /// The remaining tasks of dead sandboxes may be frozen, which only a look shows.
    fn look_at_the_dead(&mut self, at: BootNs) {
        const EACH: usize = 8;
        let left = self.dead_sandboxes().flat_map(|(_, netns)| netns.tasks().take(EACH).copied());
        for task in left.collect::<Vec<_>>() {
            self.scheduler.doubt(task, at);
        }
    }

    /// A complete listing of a runtime has ended: what it did not name is removed.
    pub(in crate::map) fn runtime_listed(&mut self, runtime: &str, began: BootNs) {
        let were_listed = self.are_listed_since_their_start();
        let listed = self.workload.runtimes.listed.entry(runtime.to_owned()).or_default();
        if listed.first.replace(listed.first.unwrap_or(began)).is_none() {
            self.workload.owners.ask_all();
        }
        if listed.last < Some(began) {
            listed.before = listed.last.replace(began);
        }
        listed.asked = None;
        if !were_listed && self.are_listed_since_their_start() {
            self.workload.owners.ask_all();
        }
        let missed = |own: &str, told: BootNs, gone: Option<BootNs>| {
            own == runtime && told < began && gone.is_none()
        };
        let sandboxes: Vec<String> = self
            .workload
            .runtimes
            .sandboxes
            .values()
            .filter(|entry| missed(&entry.sandbox.runtime, entry.told, entry.gone))
            .map(|entry| entry.sandbox.id.clone())
            .collect();
        for id in sandboxes {
            self.sandbox_gone(runtime, &id, began);
        }
        let containers: Vec<String> = self
            .workload
            .runtimes
            .containers
            .values()
            .filter(|entry| missed(&entry.container.runtime, entry.told, entry.gone))
            .map(|entry| entry.container.id.clone())
            .collect();
        for id in containers {
            self.container_gone(runtime, &id, began);
        }
        self.look_at_the_dead(began);
        self.forget_the_gone(began);
    }

    /// Drops sandboxes and containers that were removed long ago and hold nothing any more.
    fn forget_the_gone(&mut self, now: BootNs) {
        if now.since(self.workload.runtimes.forgotten) < FORGET_AFTER / 10 {
            return;
        }
        self.workload.runtimes.forgotten = now;
        let Runtimes { sandboxes, containers, dead, .. } = &mut self.workload.runtimes;
        let (leftovers, owners) = (&mut self.workload.container_mounts, &self.workload.owners);
        let old = |gone: Option<BootNs>| gone.is_some_and(|gone| now.since(gone) > FORGET_AFTER);
        let mut forget = |id: &String, gone: Option<BootNs>| {
            let forget = old(gone) && owners.netns_of(id).next().is_none() && !leftovers.holds(id);
            if forget {
                leftovers.acquit(id);
            }
            forget
        };
        sandboxes.retain(|id, entry| !forget(id, entry.gone));
        dead.retain(|id| sandboxes.contains_key(id));
        containers.retain(|id, entry| !forget(id, entry.gone));
        self.workload.runtimes.crash_loops.forget(now);
    }

    /// A sandbox, by its id.
    #[must_use]
    pub fn sandbox(&self, id: &str) -> Option<&SandboxEntry> {
        self.workload.runtimes.sandbox(id)
    }

    /// Every sandbox, including removed ones.
    pub fn all_sandboxes(&self) -> impl Iterator<Item = &SandboxEntry> {
        self.workload.runtimes.sandboxes()
    }

    /// The netns that was made for a sandbox, if it exists.
    #[must_use]
    pub fn netns_of_sandbox(&self, sandbox: &str) -> Option<&Netns> {
        self.workload.owners.netns_of(sandbox).find_map(|id| self.netns(id))
    }

    /// A container that is not a sandbox, by its id.
    #[must_use]
    pub fn container(&self, id: &str) -> Option<&ContainerEntry> {
        self.workload.runtimes.container(id)
    }

    /// Sandboxes that are dead or removed and whose netns still exists.
    pub fn dead_sandboxes(&self) -> impl Iterator<Item = (&SandboxEntry, &Netns)> {
        self.all_dead().flat_map(|entry| {
            let claimed = self.workload.owners.netns_of(&entry.sandbox.id);
            let netns = claimed.filter_map(|id| self.netns(id));
            let sure = |netns: &&Netns| {
                netns.owner().is_some_and(|owner| owner.certainty != Certainty::ByIp)
            };
            netns.filter(sure).map(move |netns| (entry, netns))
        })
    }

    /// Sandboxes that are dead or removed.
    pub fn all_dead(&self) -> impl Iterator<Item = &SandboxEntry> {
        self.workload.runtimes.dead.iter().filter_map(|id| self.workload.runtimes.sandboxes.get(id))
    }

    /// Whether a runtime has been listed completely at least once.
    fn has_listed(&self, runtime: &str) -> bool {
        self.workload.runtimes.listed.get(runtime).is_some_and(|listed| listed.first.is_some())
    }

    /// When the last complete listing of this runtime began.
    #[must_use]
    pub fn last_listed(&self, runtime: &str) -> Option<BootNs> {
        self.workload.runtimes.listed.get(runtime)?.last
    }

    /// The oldest of the runtimes' last listings: every runtime has been listed since.
    #[must_use]
    pub fn all_listed(&self) -> Option<BootNs> {
        let listed = self.workload.runtimes.listed.values();
        listed.map(|listed| listed.last.unwrap_or_default()).min()
    }

    /// Whether every runtime has been listed completely and still answers. True if there is none.
    #[must_use]
    pub fn runtimes_answer(&self) -> bool {
        self.workload
            .runtimes
            .listed
            .iter()
            .all(|(name, listed)| listed.last.is_some() && self.runtime_answers(name))
    }

    /// Whether the runtimes can say which containers no longer exist: there are some, all answer, and one has pods.
    pub(in crate::map) fn runtimes_judge(&self) -> bool {
        self.runtimes_answer() && self.workload.runtimes.listed.values().any(|listed| listed.pods)
    }

    /// Names of the known runtimes.
    pub fn runtimes(&self) -> impl Iterator<Item = &str> {
        self.workload.runtimes.listed.keys().map(String::as_str)
    }

    /// State of the sandbox that a netns was made for, according to the runtimes.
    #[must_use]
    pub fn verdict_on(&self, sandbox: &str) -> SandboxVerdict<'_> {
        if let Some(entry) = self.workload.runtimes.sandboxes.get(sandbox) {
            return match (self.runtime_answers(&entry.sandbox.runtime), entry.gone, entry.dead) {
                (false, ..) => SandboxVerdict::Unknown(Why::Silent),
                (_, Some(_), _) => SandboxVerdict::Gone(entry),
                (_, _, Some(_)) => SandboxVerdict::Dead(entry),
                _ => SandboxVerdict::Lives,
            };
        }
        if let Some(why) = self.doubt_about(sandbox) {
            return SandboxVerdict::Unknown(why);
        }
        let listed = &self.workload.runtimes.listed;
        if listed.is_empty() {
            // This source is reported only if no runtime was found.
            let none = self.has_source(SourceName::Runtime);
            return if none {
                SandboxVerdict::NobodyToAsk
            } else {
                SandboxVerdict::Unknown(Why::Silent)
            };
        }
        // A runtime that has never had a pod may not be the kubelet's: for example Docker, beside a kubelet's runtime
        // that is not queried.
        if !listed.values().any(|listed| listed.pods) {
            return SandboxVerdict::Unknown(Why::NoPods);
        }
        let since =
            listed.iter().map(|(name, listed)| listed.first.filter(|_| self.runtime_answers(name)));
        let since: Option<Vec<BootNs>> = since.collect();
        let since = since.and_then(|since| since.into_iter().max());
        since.map_or(SandboxVerdict::Unknown(Why::Silent), SandboxVerdict::Denied)
    }

    /// Requests to runtimes: a second listing if one reports something dead that the kernel still has.
    pub(in crate::map) fn want_runtimes(
        &mut self,
        now: BootNs,
        thresholds: &Thresholds,
        wants: &mut Vec<Request>,
    ) -> Option<BootNs> {
        let mut due: BTreeMap<String, BootNs> = BTreeMap::new();
        let seen = self.workload.runtimes.suspects.seen;
        let fresh = seen.is_some_and(|(seen, of)| {
            of == *thresholds && !self.changed_beyond(Suspects::ON, seen)
        });
        #[cfg(test)]
        if fresh {
            let (now, known) = (self.suspects(thresholds), &self.workload.runtimes.suspects);
            assert_eq!((&now.left, now.unwired), (&known.left, known.unwired));
        }
        if !fresh {
            self.workload.runtimes.suspects = self.suspects(thresholds);
        }
        for (runtime, since) in self.suspicions(&self.workload.runtimes.suspects, thresholds) {
            let Some(listed) = self.workload.runtimes.listed.get(&runtime) else { continue };
            let next = listed.second_look(since, thresholds.second_look);
            let next = next.unwrap_or(listed.last.unwrap_or_default().plus(ASK_AGAIN));
            let next = listed.asked.map_or(next, |asked| next.max(asked.plus(RETRY)));
            due.entry(runtime).and_modify(|due| *due = next.min(*due)).or_insert(next);
        }
        let mut soonest = None;
        for (runtime, at) in due {
            let next = if at <= now {
                if let Some(listed) = self.workload.runtimes.listed.get_mut(&runtime) {
                    listed.asked = Some(now);
                }
                wants.push(Request::Runtime { runtime });
                now.plus(RETRY)
            } else {
                at
            };
            soonest = Some(soonest.map_or(next, |known: BootNs| known.min(next)));
        }
        soonest
    }

    /// Whether a runtime must still be queried, or queried again, about something suspicious.
    #[must_use]
    pub fn awaits_runtimes(&self, thresholds: &Thresholds) -> bool {
        let suspicions = self.suspicions(&self.suspects(thresholds), thresholds);
        suspicions.iter().any(|(runtime, since)| {
            let listed = self.workload.runtimes.listed.get(runtime);
            let listed =
                listed.is_none_or(|one| one.second_look(*since, thresholds.second_look).is_some());
            self.runtime_answers(runtime) && listed
        })
    }

    fn suspects(&self, thresholds: &Thresholds) -> Suspects {
        let mut left = Vec::new();
        for (entry, netns) in self.dead_sandboxes() {
            let since = entry.dead.unwrap_or_default().plus(thresholds.sandbox_grace);
            let since = netns.settled_since().map_or(since, |settled| settled.max(since));
            left.push((entry.sandbox.runtime.clone(), since));
        }
        for deleted in self.deleted_pods(thresholds) {
            left.push((deleted.sandbox.sandbox.runtime.clone(), deleted.from));
        }
        let seen = Some((self.tick(), *thresholds));
        Suspects { seen, left, unwired: self.has_unwired_pods() }
    }

    /// Runtimes, and the moment from which their report on something dead counts.
    fn suspicions(&self, suspects: &Suspects, thresholds: &Thresholds) -> Vec<(String, BootNs)> {
        let mut found = suspects.left.clone();
        for (_, since) in self.denied(thresholds) {
            found.extend(self.workload.runtimes.listed.keys().map(|name| (name.clone(), since)));
        }
        let unwired = suspects.unwired.then(|| self.missing_endpoints(thresholds));
        for missing in unwired.into_iter().flatten() {
            // Right after the datastore's report, which may be the later one: a finding needs both. What has been
            // missing for long has been reported already.
            let fresh = missing.heard.since(missing.from) < ASK_AGAIN;
            let runtime = &missing.sandbox.sandbox.runtime;
            let last = self.last_listed(runtime).unwrap_or_default();
            let since = match missing.heard {
                // Many reports may arrive at once: one listing follows them all.
                heard if fresh && last < heard => heard.max(missing.from).max(last.plus(RETRY)),
                _ => missing.from,
            };
            found.push((runtime.clone(), since));
        }
        for since in self.ipam.leak_moments() {
            found.extend(self.workload.runtimes.listed.keys().map(|name| (name.clone(), since)));
        }
        found
    }
}
