//! The sandbox that each netns was made for, remembered beyond the tasks, mounts and cached results that showed it.
//!
//! A runtime makes one netns for one sandbox. So certain evidence (a process of the sandbox in the netns, or its mount
//! path, as reported by the runtime, an ADD or the cache) holds for as long as the netns lives; the cgroups of the
//! tasks in it are weaker, because others may enter; an IP alone only provides a name.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, Holder, Life};

use super::calls::HUNG;
use super::proof::Proofs;
use super::runtime::SandboxVerdict;
use super::sandbox::strip_var;
use crate::fact::cgroup::{Attribution, attribution, is_nested};
use crate::map::{Kinds, Netns, NetnsId, NodeMap, Thresholds};

/// What an empty netns without an IP may outlive its sandbox by, in graces: dockerd removes the files of ended netns
/// once a minute (`gpmCleanupPeriod`, moby's libnetwork/osl/namespace_linux.go).
const UNHURRIED: u64 = 3;
/// Who enters an empty netns within this time of its first sight, or of the end of its ADD, is not yet somebody who looks at
/// what was left, in ns: CNI plugins enter and leave the netns that they set up, and then the pod's first process enters it.
const SETTING_UP: u64 = 10_000_000_000;

/// The owner of a netns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The sandbox's container id.
    pub sandbox: String,
    /// The evidence.
    pub certainty: Certainty,
    /// Whether a kubelet on this node requested the sandbox, so that its runtime must know it. Other sandboxes (of a
    /// build, or of a cluster in a container) cannot be judged here.
    pub kubelet: bool,
}

/// The evidence for the owner of a netns, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// A cached result has its IP: good for a name, no proof of anything.
    ByIp,
    /// Processes of the sandbox's containers are in it.
    ByCgroup,
    /// The sandbox's first process is in it, or it is mounted at the sandbox's path.
    Proven,
}

/// Netns whose owner must be determined.
#[derive(Debug, Default)]
pub(in crate::map) struct Owners {
    all: bool,
    some: BTreeSet<NetnsId>,
    /// A leftover may count sooner than was planned.
    hasten: bool,
    /// Netns owned by a sandbox of a kubelet that no runtime has reported.
    strangers: BTreeSet<NetnsId>,
    /// Sandbox and netns.
    claims: BTreeSet<(String, NetnsId)>,
}

impl Owners {
    /// A fact arrived that may determine the owner of any netns.
    pub(in crate::map) fn ask_all(&mut self) {
        self.all = true;
    }

    /// A leftover may count sooner than was planned.
    pub(in crate::map) fn hasten_searches(&mut self) {
        self.hasten = true;
    }

    /// A fact about one netns arrived.
    pub(in crate::map) fn ask(&mut self, id: NetnsId) {
        self.some.insert(id);
    }

    pub(in crate::map) fn forget(&mut self, id: NetnsId, owner: Option<&Owner>) {
        self.some.remove(&id);
        self.strangers.remove(&id);
        if let Some(owner) = owner {
            self.claims.remove(&(owner.sandbox.clone(), id));
        }
    }

    /// Every sandbox with a netns that is known to be made for it, and that netns.
    pub(in crate::map) fn claims(&self) -> impl Iterator<Item = &(String, NetnsId)> {
        self.claims.iter()
    }

    /// The netns of a sandbox.
    pub(in crate::map) fn netns_of(&self, sandbox: &str) -> impl Iterator<Item = NetnsId> {
        let from = (sandbox.to_owned(), NetnsId::MIN);
        let to = (sandbox.to_owned(), NetnsId::MAX);
        self.claims.range(from..=to).map(|(_, id)| *id)
    }
}

/// Evidence of a netns's sandbox from outside the netns.
struct Signs<'a> {
    /// As reported by the runtimes.
    paths: BTreeMap<&'a str, &'a str>,
    pids: BTreeMap<u32, &'a str>,
    /// From the result cache, or of removed sandboxes: the path may belong to another one by now.
    past: BTreeMap<&'a str, &'a str>,
}

impl NodeMap {
    /// Determines the owners of the netns about which facts arrived.
    pub(in crate::map) fn settle_owners(&mut self, thresholds: &Thresholds) {
        let all = std::mem::take(&mut self.workload.owners.all);
        let some = std::mem::take(&mut self.workload.owners.some);
        let hasten = std::mem::take(&mut self.workload.owners.hasten);
        if !all && some.is_empty() {
            if hasten {
                self.hasten_searches(thresholds);
            }
            return;
        }
        if all {
            self.ipam.ask_all_leaks();
        }
        let signs = self.signs();
        let open = |entry: &&Netns| {
            !entry.host
                && !entry
                    .owner()
                    .is_some_and(|owner| owner.certainty == Certainty::Proven && owner.kubelet)
        };
        let found: Vec<(NetnsId, Option<Owner>)> = if all {
            let entries = self.all_netns().filter(open);
            entries.map(|entry| (entry.id, self.find_owner(entry, &signs))).collect()
        } else {
            let entries = some.iter().filter_map(|id| self.netns(*id)).filter(open);
            entries.map(|entry| (entry.id, self.find_owner(entry, &signs))).collect()
        };
        for (id, owner) in found {
            self.set_owner(id, owner);
        }
        self.withdraw_guesses();
        self.find_strangers();
        self.hasten_searches(thresholds);
    }

    /// A confirmed owner invalidates guesses elsewhere.
    fn withdraw_guesses(&mut self) {
        for id in std::mem::take(&mut self.workload.owners.some) {
            let Some(entry) = self.netns(id) else { continue };
            let owner = self.guess_owner(entry);
            self.set_owner(id, owner);
        }
    }

    fn signs(&self) -> Signs<'_> {
        let mut signs =
            Signs { paths: BTreeMap::new(), pids: BTreeMap::new(), past: BTreeMap::new() };
        for ((id, _), (attachment, _)) in &self.workload.attachments {
            let path = attachment.netns_path.as_deref();
            signs.past.extend(path.map(|path| (strip_var(path), &**id)));
        }
        for entry in self.workload.runtimes.sandboxes().filter(|entry| !entry.sandbox.host_network)
        {
            let sandbox = &entry.sandbox;
            let path = sandbox.netns_path.as_deref();
            let paths = if entry.gone.is_none() { &mut signs.paths } else { &mut signs.past };
            paths.extend(path.map(|path| (strip_var(path), sandbox.id.as_str())));
            // The pid of a sandbox that has ended may belong to another process by now.
            let pid = sandbox.pid.filter(|_| entry.gone.is_none() && sandbox.life == Life::Alive);
            signs.pids.extend(pid.map(|pid| (pid, sandbox.id.as_str())));
        }
        signs
    }

    fn find_owner(&self, entry: &Netns, signs: &Signs<'_>) -> Option<Owner> {
        let pids = entry.tasks().filter_map(|task| signs.pids.get(&task.pid));
        let elsewhere =
            |id: &str| self.is_mounted_elsewhere(entry, id) || self.is_another_mounted(entry, id);
        let pid = pids.into_iter().find(|id| !elsewhere(id));
        let at = |path: &str| {
            let path = strip_var(path);
            let told =
                signs.paths.get(path).copied().or_else(|| self.workload.calls.container_at(path));
            told.or_else(|| signs.past.get(path).copied())
        };
        let path = || mounts_of(entry).find_map(at);
        match pid.copied().or_else(path) {
            Some(id) => Some(self.owned(id, Certainty::Proven, false)),
            None => self.guess_owner(entry),
        }
    }

    fn owned(&self, sandbox: &str, certainty: Certainty, kubelet: bool) -> Owner {
        Owner {
            kubelet: kubelet || self.is_kubelets(sandbox),
            sandbox: sandbox.to_owned(),
            certainty,
        }
    }

    /// Former certain evidence is better than a guess, and a guess better than nothing.
    fn guess_owner(&self, entry: &Netns) -> Option<Owner> {
        let sure = |known: &&Owner| {
            known.certainty == Certainty::Proven && !self.is_another_mounted(entry, &known.sandbox)
        };
        if let Some(known) = entry.owner().filter(sure) {
            return Some(self.owned(&known.sandbox, known.certainty, known.kubelet));
        }
        let before = entry.owner().filter(|known| !self.is_anothers(entry, &known.sandbox));
        let lived_here = before.filter(|known| known.certainty == Certainty::ByCgroup);
        let lived_here = lived_here.and_then(|known| self.still_owned(entry, known));
        let lives_here = || {
            // Who only visits it is no witness.
            let (id, kubelet) = (!entry.is_visited()).then(|| self.owner_by_cgroup(entry))??;
            Some(self.owned(&id, Certainty::ByCgroup, kubelet))
        };
        // Nor is who entered it when those it was made for had left.
        let settled = lived_here.clone().filter(|_| entry.was_left());
        settled
            .or_else(lives_here)
            .or(lived_here)
            .or_else(|| {
                let attachment = self.attachment_by_place(entry.id, None)?;
                let certainty = Certainty::ByIp;
                Some(self.owned(&attachment.container_id, certainty, attachment.pod.is_some()))
            })
            .or_else(|| before.filter(|known| known.certainty != Certainty::ByCgroup).cloned())
    }

    /// Who owns it by a former guess. Its runtime may have told since then of which sandbox the container is, or the
    /// result cache of its pod.
    fn still_owned(&self, entry: &Netns, known: &Owner) -> Option<Owner> {
        let uid = || {
            let mut found = entry.cgroups().filter_map(|(_, cgroup)| attribution(cgroup?));
            let is_known =
                |found: &Attribution| found.container_id.as_ref() == Some(&known.sandbox);
            found.find(is_known)?.pod_uid
        };
        let sandbox = self.sandbox_with(&known.sandbox, uid).unwrap_or(&known.sandbox);
        let runtimes = &self.workload.runtimes;
        let in_hosts = runtimes.sandbox(sandbox).is_some_and(|it| it.sandbox.host_network);
        let is_another = in_hosts || self.is_anothers(entry, sandbox);
        (!is_another).then(|| self.owned(sandbox, known.certainty, known.kubelet))
    }

    /// Whether a sandbox certainly does not own this netns: a runtime makes one netns for each.
    fn is_anothers(&self, entry: &Netns, sandbox: &str) -> bool {
        self.has_other_netns(sandbox, entry.id, Certainty::Proven)
            || self.is_mounted_elsewhere(entry, sandbox)
    }

    /// Whether a sandbox is known, by evidence of at least `by`, to have another netns.
    pub(in crate::map) fn has_other_netns(
        &self,
        sandbox: &str,
        id: NetnsId,
        by: Certainty,
    ) -> bool {
        let mut others = self.workload.owners.netns_of(sandbox).filter(|other| *other != id);
        others.any(|other| {
            let owner = self.netns(other).and_then(Netns::owner);
            owner.is_some_and(|owner| owner.certainty >= by)
        })
    }

    /// Whether another netns, known to be the sandbox's, is mounted at the sandbox's path and this one is not: a pid in
    /// this netns is then only a guess, because the process may have been about to move.
    fn is_another_mounted(&self, entry: &Netns, sandbox: &str) -> bool {
        let mut others = self.workload.owners.netns_of(sandbox).filter(|id| *id != entry.id);
        let mounted = |id| self.netns(id).is_some_and(|it| self.is_mounted_for(it, sandbox));
        others.any(mounted) && !self.is_mounted_for(entry, sandbox)
    }

    /// Whether a netns is mounted, but not at this sandbox's path. While a sandbox is being made, its first process is
    /// still in its runtime's netns.
    fn is_mounted_elsewhere(&self, entry: &Netns, sandbox: &str) -> bool {
        // A path through a process (cri-dockerd passes such paths to an ADD) is not a mount.
        let mounts = self.paths_of(sandbox).filter(|path| !path.starts_with("/proc/"));
        let mut known = mounts.peekable();
        known.peek().is_some() && known.all(|path| is_mounted_only_elsewhere(entry, path))
    }

    /// The sandbox of a container: by its runtime, else by the result cache, which may have it for the pod with this uid.
    pub(super) fn sandbox_with<'a>(
        &'a self,
        container: &'a str,
        uid: impl FnOnce() -> Option<String>,
    ) -> Option<&'a str> {
        let known = self.workload.runtimes.sandbox_of_container(container);
        let cached = || self.attachment_of(container).map(|_| container);
        let by_uid = || {
            // Where nothing is cached, no cgroup needs to be read for the uid.
            let uid = (!self.workload.attachments.is_empty()).then(uid)??;
            Some(&*self.attachment_by_uid(&uid)?.container_id)
        };
        known.or_else(cached).or_else(by_uid)
    }

    /// The sandbox of most of the tasks in a netns. A few may belong to others: agents and CNI daemons of other pods
    /// enter it, and pods in the host's network have no netns of their own.
    fn owner_by_cgroup(&self, entry: &Netns) -> Option<(String, bool)> {
        let mut votes: BTreeMap<String, (usize, bool)> = BTreeMap::new();
        for (_, cgroup) in entry.cgroups() {
            let Some((path, found)) = cgroup.and_then(|path| Some((path, attribution(path)?)))
            else {
                continue;
            };
            let Some(id) = found.container_id else { continue };
            let sandbox = self.sandbox_with(&id, || found.pod_uid).map(str::to_owned).unwrap_or(id);
            let elsewhere = self.workload.owners.netns_of(&sandbox).any(|other| other != entry.id);
            let host =
                self.workload.runtimes.sandbox(&sandbox).is_some_and(|s| s.sandbox.host_network);
            if !host && !elsewhere && !self.is_mounted_elsewhere(entry, &sandbox) {
                let vote = votes.entry(sandbox).or_default();
                vote.0 += 1;
                vote.1 |= is_kubelets_own(path);
            }
        }
        let most = votes.into_iter().max_by_key(|(_, (votes, _))| *votes)?;
        Some((most.0, most.1.1))
    }

    /// Whether a kubelet requested this sandbox.
    fn is_kubelets(&self, sandbox: &str) -> bool {
        self.workload.runtimes.sandbox(sandbox).is_some_and(|entry| entry.sandbox.pod.is_some())
            || self.attachment_of(sandbox).is_some_and(|attachment| attachment.pod.is_some())
            || self.call_history(sandbox).is_some_and(|history| history.pod.is_some())
    }

    fn set_owner(&mut self, id: NetnsId, owner: Option<Owner>) {
        let Some(before) = self.kernel.set_owner(id, owner.as_ref()) else { return };
        self.changes.mark(Kinds::NETNS);
        if let Some(before) = before {
            self.workload.owners.claims.remove(&(before.sandbox, id));
        }
        for (key, _) in self.kernel.get(id).into_iter().flat_map(Netns::addresses) {
            self.ipam.touch(key.local);
        }
        self.conflict.readdressed();
        self.tenant_changed(id);
        if let Some(owner) = owner {
            if owner.certainty == Certainty::Proven {
                self.scheduler.vouched(id, self.now);
                let others: Vec<NetnsId> = self.workload.owners.netns_of(&owner.sandbox).collect();
                self.workload.owners.some.extend(others);
            }
            self.workload.owners.claims.insert((owner.sandbox, id));
        }
        self.netns_named(id);
    }

    fn find_strangers(&mut self) {
        let runtimes = &self.workload.runtimes;
        let strange = |owner: &Owner| {
            owner.kubelet
                && owner.certainty != Certainty::ByIp
                && runtimes.sandbox(&owner.sandbox).is_none()
        };
        let strangers = self
            .kernel
            .all()
            .filter(|entry| entry.owner().is_some_and(strange))
            .map(|entry| entry.id)
            .collect();
        if self.workload.owners.strangers != strangers {
            self.workload.owners.strangers = strangers;
            self.changes.mark(Kinds::NETNS);
        }
    }

    /// Netns of a kubelet's sandbox that every runtime denies, and the moment from which that counts.
    pub(in crate::map) fn denied(&self, thresholds: &Thresholds) -> Vec<(NetnsId, BootNs)> {
        let since = |id: &NetnsId| {
            let entry = self.netns(*id)?;
            match self.verdict_on(&entry.owner()?.sandbox) {
                SandboxVerdict::Denied(first) => {
                    let aged = self.denied_from(entry, first, thresholds);
                    let aged = entry.settled_since().map_or(aged, |settled| settled.max(aged));
                    let left = self.leaked_from(entry, thresholds);
                    Some((*id, left.map_or(aged, |left| left.min(aged))))
                }
                _ => None,
            }
        };
        self.workload.owners.strangers.iter().filter_map(since).collect()
    }

    /// Netns whose owning sandbox no runtime has reported.
    pub fn strangers(&self) -> impl Iterator<Item = &Netns> {
        self.workload.owners.strangers.iter().filter_map(|id| self.netns(*id))
    }

    /// Netns without any task but visitors, in no order.
    pub fn taskless(&self) -> impl Iterator<Item = &Netns> {
        self.scheduler.taskless().filter_map(|id| self.netns(*id))
    }

    /// The moment from which a netns without tasks is a leak, if the state of its sandbox allows it: removed, or denied
    /// by every runtime, or old if there is no runtime to ask.
    #[must_use]
    pub fn leaked_from(&self, entry: &Netns, thresholds: &Thresholds) -> Option<BootNs> {
        let owner = entry.owner().filter(|owner| owner.certainty != Certainty::ByIp)?;
        let idle = entry.idle_since()?;
        match self.verdict_on(&owner.sandbox) {
            SandboxVerdict::Gone(sandbox) => {
                let gone = idle.max(sandbox.gone.unwrap_or_default());
                Some(self.left_from(entry, &owner.sandbox, gone, thresholds))
            }
            SandboxVerdict::Denied(first) if owner.kubelet => {
                let aged = self.denied_from(entry, first, thresholds).max(idle);
                let younger = self.runtimes_are_younger(entry).map(|started| {
                    let gone = idle.max(first).max(started).max(self.busy_until(entry));
                    self.left_from(entry, &owner.sandbox, gone, thresholds)
                });
                Some(younger.map_or(aged, |younger| younger.min(aged)))
            }
            SandboxVerdict::NobodyToAsk if owner.kubelet => {
                Some(self.ready(entry).plus(thresholds.leak_age).max(idle))
            }
            _ => None,
        }
    }

    /// The moment from which a netns without tasks is what its sandbox left behind, which no runtime has had since
    /// `gone`.
    fn left_from(
        &self,
        entry: &Netns,
        sandbox: &str,
        gone: BootNs,
        thresholds: &Thresholds,
    ) -> BootNs {
        // Without an IP nothing is urgent.
        let shorten = |proofs: Proofs| proofs.shorten(thresholds.sandbox_grace);
        let grace = match entry.routable().next() {
            Some(_) => {
                let empty = entry.is_bare_since(gone);
                self.proven_grace((sandbox, None), gone, empty, shorten)
            }
            None => thresholds.sandbox_grace.saturating_mul(UNHURRIED),
        };
        gone.plus(grace).max(self.after_calls(sandbox, grace))
    }

    /// When the last runtime was started, if each was started after the netns existed, and has been listed since.
    #[must_use]
    pub fn runtimes_are_younger(&self, entry: &Netns) -> Option<BootNs> {
        self.runtimes_started_after(&entry.owner()?.sandbox, entry.cookie_since)
    }

    /// The moment from which the denial of a sandbox that no runtime ever reported counts. While it is being made (its
    /// network, its image, its first process) none reports it, and that may take minutes.
    pub(crate) fn denied_from(
        &self,
        entry: &Netns,
        first: BootNs,
        thresholds: &Thresholds,
    ) -> BootNs {
        self.ready(entry).plus(thresholds.leak_age).max(first)
    }

    /// The earliest moment from which its sandbox could use it: the netns exists, and no ADD is under way. The
    /// sandbox's first process starts after that.
    fn ready(&self, entry: &Netns) -> BootNs {
        self.busy_until(entry).max(self.born(entry))
    }

    /// Until when an ADD works on the netns, or may do so; 0 if none is known.
    fn busy_until(&self, entry: &Netns) -> BootNs {
        let history = entry.owner().and_then(|owner| self.call_history(&owner.sandbox));
        let add = history.map(|history| history.add);
        let running = add.filter(|add| add.running > 0).and_then(|add| add.last);
        let ended = add.and_then(|add| add.ended);
        running.map(|began| began.plus(HUNG)).max(ended).unwrap_or_default()
    }

    /// Whether those that are in it, which was empty then, entered it when it was new.
    pub(super) fn was_entered_new(&self, entry: &Netns) -> bool {
        let came = Some(entry.first_seen).filter(|_| self.was_seen_to_come(entry));
        let entered = entry.entered_since().zip(came);
        entered.is_some_and(|(entered, came)| entered.since(came) < SETTING_UP)
    }

    /// Whether all that are in it only visit what was left: as [`Netns::is_visited`], unless they may be setting it up or may
    /// be of its pod. The first process of that may come late, and a container be started again where all had ended.
    pub(in crate::map) fn is_revisited(&self, entry: &Netns) -> bool {
        let Some(entered) = entry.entered_since().filter(|_| entry.is_visited()) else {
            return false;
        };
        let added = Some(self.busy_until(entry)).filter(|until| *until != BootNs::default());
        let is_new = self.was_entered_new(entry)
            || added.is_some_and(|since| entered.since(since) < SETTING_UP);
        let lives = |owner: &Owner| {
            owner.certainty != Certainty::ByIp
                && matches!(self.verdict_on(&owner.sandbox), SandboxVerdict::Lives)
        };
        !is_new && !entry.owner().is_some_and(lives)
    }

    /// When a netns was made, as far as known: not after its ADD ended, nor after the oldest task of a kubelet's container
    /// that lives in it was started.
    fn born(&self, entry: &Netns) -> BootNs {
        const TICK: u64 = 10_000_000;
        let offset = self.boot.as_ref().map_or(0, |boot| boot.wall_offset);
        let cached = entry.owner().and_then(|owner| self.attachment_of(&owner.sandbox)?.made);
        let cached = cached.and_then(|made| u64::try_from(made.saturating_sub(offset)).ok());
        let known = cached.map_or(entry.first_seen, |made| entry.first_seen.min(BootNs(made)));
        if entry.is_visited() {
            return known;
        }
        // A task of the node that came to stay may be older than the netns; a container's own process is not.
        let own = |path: &str| is_kubelets_own(path) && attribution(path).is_some();
        entry.cgroups().fold(known, |born, (task, cgroup)| {
            let start = BootNs(task.start.saturating_mul(TICK));
            // The time first: it is cheaper than to read a path, and few tasks are older than what is known.
            if start < born && cgroup.is_some_and(own) { start } else { born }
        })
    }

    /// Whether another look would decide about something suspicious.
    #[must_use]
    pub fn has_open_suspicion(&self, thresholds: &Thresholds) -> bool {
        let unsearched = |netns: &Netns| {
            let from = self.leaked_from(netns, thresholds);
            let sure = from.map(|from| from.plus(thresholds.second_look));
            // Waiting for age alone is not included.
            let soon = sure.filter(|sure| sure.since(self.now) < thresholds.leak_age);
            soon.is_some_and(|sure| netns.searched().is_none_or(|(at, _)| at < sure))
        };
        self.awaits_runtimes(thresholds)
            || self.workload.container_mounts.is_searching()
            || self.taskless().any(unsearched)
    }

    /// Schedules searches of netns that have become suspicious for the moment from which they count.
    fn hasten_searches(&mut self, thresholds: &Thresholds) {
        let due: Vec<(NetnsId, BootNs)> = self
            .taskless()
            .filter_map(|entry| Some((entry, self.leaked_from(entry, thresholds)?)))
            .filter(|(entry, from)| entry.searched().is_none_or(|(at, _)| at < *from))
            .map(|(entry, from)| (entry.id, from))
            .collect();
        for (id, from) in due {
            self.scheduler.hasten_search(id, from);
        }
    }

    /// When to search again for the holders of a netns that was just searched, and last searched completely at `last`:
    /// once more for confirmation if it looks leaked. What a search finds may be what makes it count.
    pub(in crate::map) fn next_search(
        &self,
        id: NetnsId,
        (at, complete): (BootNs, bool),
        last: Option<BootNs>,
        thresholds: &Thresholds,
    ) -> Option<BootNs> {
        let entry = self.netns(id)?;
        let from = self.leaked_from(entry, thresholds)?;
        if at < from {
            return Some(from);
        }
        if !complete {
            return None;
        }
        let counted = last.filter(|last| *last >= from);
        let sure = counted.is_some_and(|last| at.since(last) >= thresholds.second_look);
        (!sure).then(|| counted.unwrap_or(at).plus(thresholds.second_look).max(at))
    }
}

/// Mount paths of a netns in mount namespaces of those who mount netns for containers. A mount in another mount
/// namespace only shows that the netns is held: a container with CAP_SYS_ADMIN in its own, or anybody in a user
/// namespace, may mount a netns there under the path of another's sandbox.
pub(in crate::map) fn mounts_of(entry: &Netns) -> impl Iterator<Item = &str> {
    entry.holders().filter_map(|holder| match holder {
        Holder::Mount { path, foreign: false, .. } => Some(path.as_str()),
        _ => None,
    })
}

/// Whether a netns is mounted under some file name and never under that of this path: agents see the same file in
/// another directory.
fn is_mounted_only_elsewhere(entry: &Netns, path: &str) -> bool {
    let name = |path: &str| path.rsplit('/').next().map(str::to_owned);
    let mut mounts = mounts_of(entry);
    let first = mounts.next();
    first.is_some_and(|first| name(first) != name(path))
        && mounts.all(|other| name(other) != name(path))
}

/// Whether a cgroup is of a container that this node's own kubelet requested, and not of a cluster within a container,
/// or of one that a pod made within its own.
fn is_kubelets_own(path: &str) -> bool {
    path.trim_start_matches('/').starts_with("kubepods") && !is_nested(path)
}
