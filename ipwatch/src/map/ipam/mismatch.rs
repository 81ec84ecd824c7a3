//! The stores against the kernel: who has an IP, and for whom it is reserved.
//!
//! Nothing is concluded from missing data. A netns counts against a reservation only if its own sandbox is known and is
//! another one, and only within one network: two networks without a connection may use the same IPs. While the holder's
//! own ADD or DEL runs, the two may differ.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::fact::{BootNs, CniCommand, Link, SourceStatus, store};

use super::stores::{is_by_pod_object, is_freed_by_cni};
use crate::fact::cgroup::{attribution, session_user};
use crate::map::told::{Concern, Entry, choose};
use crate::map::workload::HUNG;
use crate::map::workload::mounts_of;
use crate::map::workload::strip_var;
use crate::map::{
    CallEntry, Certainty, Kinds, Netns, NetnsId, NodeMap, Release, ReservationEntry, Tick,
};

/// Probes and stores are told by different ways: the word of a DEL may come this much after its effect.
pub(super) const SETTLE: u64 = 300_000_000;
/// After the end of a DEL its netns is taken away.
const AFTER_CALL: u64 = 2_000_000_000;
/// Where nobody sees the DEL.
pub(super) const UNSEEN_CALL: u64 = 5_000_000_000;
/// What was so when ipwatch began may be half of a DEL that began before it, and is a slow one's.
const UNSEEN_RELEASE: u64 = 30_000_000_000;
/// An IP that comes up when it is reserved is probably the new container's, whose ADD is told after its effect: on a busy
/// node, by as much as this.
const UNTOLD_ADD: u64 = 2_000_000_000;
/// A release older than this is not part of the current change.
const SEPARATE: u64 = 1_000_000_000;
/// The store whose networks have the names of the CNI result cache. Other stores may name theirs after an ENI or a
/// bridge.
const NAMED_BY_CNI: &str = store::HOST_LOCAL;
/// Maximum number of IPs of users' netns that are compared with the stores at a time.
const MOST_OF_USERS: usize = 2_048;
/// What disputes depend on: all but what is on the wire.
const DEPENDS_ON: Kinds = Kinds::NETNS
    .and(Kinds::ADDRESSES)
    .and(Kinds::LINKS)
    .and(Kinds::TASKS)
    .and(Kinds::RUNTIMES)
    .and(Kinds::PODS)
    .and(Kinds::IPAM)
    .and(Kinds::CALLS)
    .and(Kinds::ENDPOINTS);
/// Maximum number of tasks of a netns whose container is looked up.
const ASKED: usize = 64;

// Number of IPs of a netns that were compared with the stores, for tests.
#[cfg(test)]
thread_local! {
    pub(crate) static JUDGED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// An IP that is up in one place and reserved for another, or not at all.
#[derive(Debug)]
pub struct IpamMismatch<'a> {
    pub ip: IpAddr,
    /// The netns that has the IP.
    pub holder: &'a Netns,
    pub grounds: Grounds<'a>,
    /// When the mismatch began, as far as that was observed.
    pub since: BootNs,
    /// The moment from which it counts.
    pub from: BootNs,
}

/// What a store reports about an IP that a netns has.
#[derive(Debug)]
pub enum Grounds<'a> {
    /// It was reserved for the holder, and released.
    Released(&'a Release),
    /// It is in the range of this network, according to the CNI result cache or the holder's history, and the store has
    /// no reservation for it.
    Unreserved { store: &'a str, network: &'a str },
    /// It is reserved for another container.
    Handed(&'a ReservationEntry),
}

/// Who has which IP against the word of a store, as of the last settling.
#[derive(Debug, Default)]
pub(super) struct Disputed {
    told: BTreeSet<(IpAddr, NetnsId)>,
    /// Those for which there is no place.
    left_out: BTreeSet<(IpAddr, NetnsId)>,
    /// There may be more among netns of users.
    has_more_of_users: bool,
    /// What changed after this has not been looked at.
    seen: Option<Tick>,
}

impl Disputed {
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn count(&self) -> usize {
        self.told.len()
    }

    /// Something was forgotten that no fact tells of.
    pub(super) fn doubt(&mut self) {
        self.seen = None;
    }
}

/// Whether a netns belongs to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// It belongs to that container.
    Same,
    /// It belongs to another container.
    Other,
    Unknown,
}

impl NodeMap {
    /// Netns that have this IP on a device of their own, without the host's and those in teardown.
    pub fn holders_of(&self, ip: IpAddr) -> impl Iterator<Item = &Netns> {
        self.with_ip(ip).filter_map(|id| self.netns(id)).filter(move |netns| is_holder(netns, ip))
    }

    /// Whether a netns was made for what a reservation names.
    #[must_use]
    pub fn belongs(&self, netns: &Netns, entry: &ReservationEntry) -> Match {
        match (&entry.container_id, &entry.pod) {
            (Some(id), _) => self.is_of_container(netns, id),
            (None, Some(pod)) => match self.sandbox_of(netns.id).1 {
                Some(own) => {
                    let same = own.namespace.as_deref() == Some(&*pod.namespace)
                        && own.name.as_deref() == Some(&*pod.name);
                    match (same, own.name.is_some(), &own.uid, &pod.uid) {
                        (true, _, Some(own), Some(uid)) if own != uid => Match::Other,
                        (true, ..) => Match::Same,
                        (false, true, ..) => Match::Other,
                        _ => Match::Unknown,
                    }
                }
                None => Match::Unknown,
            },
            (None, None) => Match::Unknown,
        }
    }

    pub(super) fn is_of_container(&self, netns: &Netns, id: &str) -> Match {
        let owner = netns.owner();
        let sandbox = |id: &str| self.workload.sandbox_of_container(id).map(str::to_owned);
        if owner.is_some_and(|owner| {
            owner.sandbox == id
                || sandbox(id).as_deref() == Some(&owner.sandbox)
                || sandbox(&owner.sandbox).as_deref() == Some(id)
        }) {
            return Match::Same;
        }
        if self.shows(netns, id) {
            return Match::Same;
        }
        // An owner guessed by its IP is only a guess, and an id that is not a known sandbox's may be one of its
        // containers.
        let known = owner.filter(|owner| owner.certainty != Certainty::ByIp);
        match known.filter(|owner| self.is_sandbox(&owner.sandbox)) {
            Some(_) => Match::Other,
            None => Match::Unknown,
        }
    }

    /// Whether what is in a netns, or where it is mounted, says that it is this container's. What a user calls a cgroup in
    /// a session of his own says nothing.
    fn shows(&self, netns: &Netns, id: &str) -> bool {
        let by_cgroup = netns.cgroups().take(ASKED).any(|(_, cgroup)| {
            cgroup
                .filter(|path| session_user(path).is_none())
                .and_then(attribution)
                .is_some_and(|found| found.container_id.as_deref() == Some(id))
        });
        by_cgroup || self.is_mounted_for(netns, id)
    }

    /// Whether a netns is taken for a container's by nothing but its IP, which whoever is root in a netns can give it, or
    /// the name of a cgroup that a user made.
    pub(in crate::map) fn is_guess(&self, netns: &Netns, entry: &ReservationEntry) -> bool {
        let has =
            |is_users: bool| {
                netns.cgroups().take(ASKED).filter_map(|(_, cgroup)| cgroup).any(|path| {
                    session_user(path).is_some() == is_users && attribution(path).is_some()
                })
            };
        let by_name = netns.owner().is_some_and(|owner| match owner.certainty {
            Certainty::ByIp => true,
            Certainty::ByCgroup => has(true) && !has(false),
            Certainty::Proven => false,
        });
        by_name && !entry.container_id.as_deref().is_some_and(|id| self.shows(netns, id))
    }

    /// Whether a netns is mounted at the path that the runtime, the cache or an ADD reports for this sandbox.
    pub(in crate::map) fn is_mounted_for(&self, netns: &Netns, id: &str) -> bool {
        self.paths_of(id).any(|path| is_mounted_at(netns, path))
    }

    /// Whether any source has reported this id as a sandbox's.
    fn is_sandbox(&self, id: &str) -> bool {
        self.sandbox(id).is_some()
            || self.attachment_of(id).is_some()
            || self.call_history(id).is_some_and(|history| history.add.first.is_some())
            || self.reservations_for(id).next().is_some()
    }

    /// A cheap check of an IP: whether a netns has it without a matching reservation in any store.
    pub(in crate::map) fn is_doubtful(&self, ip: IpAddr) -> bool {
        if !crate::map::kernel::is_routable(ip) {
            return false;
        }
        self.holders_of(ip).any(|netns| {
            let owner = netns.owner().map(|owner| &*owner.sandbox);
            let mut reserved = false;
            for (_, entry) in self.ipam.of_ip(ip) {
                let named = entry.container_id.is_some() && entry.container_id.as_deref() == owner;
                // Its own reservation exists: any other reservation of the IP belongs to another network.
                if named || self.belongs(netns, entry) == Match::Same {
                    return false;
                }
                reserved = true;
            }
            let own = |release: &Release| {
                release.was.container_id.is_none() || release.was.container_id.as_deref() == owner
            };
            // Whether the IP belongs to that range may change with every link. That of nobody who is known never does: see
            // [`Self::home_of`].
            let is_known = netns.owner().is_some_and(|owner| owner.certainty != Certainty::ByIp);
            let ranged = || self.ranges().any(|range| !range.is_by_blocks() && range.contains(ip));
            reserved || self.ipam.releases_of(ip).any(own) || is_known && ranged()
        })
    }

    /// The store and network that a netns has an IP from, according to the cached result of its sandbox. A DEL removes
    /// that result: then the network that its link is part of.
    fn home_of(&self, netns: &Netns, ip: IpAddr) -> Option<(&str, &str)> {
        // If a complete listing did not have it, it stays unreserved even if a file is unreadable now.
        let known = |store| self.is_whole(store) || self.ipam.unreserved.contains(&(ip, netns.id));
        let ranges = self.ranges().filter(|entry| entry.contains(ip) && known(&entry.range.store));
        // Reservations of other nodes are not visible here.
        let ranges = ranges.filter(|entry| !entry.is_by_blocks());
        let mut networks = ranges.map(|entry| (&*entry.range.store, &*entry.range.network));
        if let Some(name) = self.network_of(netns, ip) {
            return networks.find(|(_, network)| *network == name);
        }
        netns.owner().filter(|owner| owner.certainty != Certainty::ByIp)?;
        let link = self.link_below(netns, ip)?;
        networks.find(|(store, network)| {
            self.has_member(store, network, netns.id, |other, ip| {
                self.link_below(other, ip) == Some(link)
            })
        })
    }

    /// Whether another netns that satisfies `so` has an IP that is reserved for it in this network.
    fn has_member(
        &self,
        store: &str,
        network: &str,
        except: NetnsId,
        so: impl Fn(&Netns, IpAddr) -> bool,
    ) -> bool {
        let own = |netns: &Netns, ip| {
            self.reservations_of(ip).any(|entry| {
                *entry.store == *store
                    && *entry.network == *network
                    && self.belongs(netns, entry) == Match::Same
            })
        };
        let all = self.all_netns();
        let mut others =
            all.filter(|netns| !netns.host && netns.dying.is_none() && netns.id != except);
        others.any(|netns| {
            netns.routable().any(|(key, _)| so(netns, key.local) && own(netns, key.local))
        })
    }

    /// The network by which a netns has this IP, as its sandbox's cached result says.
    pub(super) fn network_of(&self, netns: &Netns, ip: IpAddr) -> Option<&str> {
        let owner = netns.owner().filter(|owner| owner.certainty != Certainty::ByIp)?;
        let own = self.workload.attachments_of(&owner.sandbox);
        let mut with_ip = own.filter(|known| known.ips.iter().any(|(own, _)| *own == ip));
        with_ip.next().map(|known| &*known.network)
    }

    /// Whether a store has listed everything, and is active.
    #[must_use]
    pub fn is_whole(&self, store: &str) -> bool {
        self.store_listed(store).is_some()
            && self.source(store).is_some_and(|source| source.status == SourceStatus::Active)
    }

    /// The IPs that are disputed, whether or not that counts yet, each with its holder. In netns of users that lead nowhere no
    /// IP is anybody else's.
    fn find_disputed(&self, now: BootNs) -> Disputed {
        // What this agenda marks later on is looked at by the next one.
        let seen = Some(self.tick().before());
        if self.ipam.doubtful.is_empty() {
            return Disputed { seen, ..Disputed::default() };
        }
        let (mut all, mut found) = (Vec::new(), Vec::new());
        let mut of_users = 0;
        for ip in self.ipam.doubtful.iter().copied() {
            for holder in self.with_ip(ip).filter_map(|id| self.netns(id)) {
                let concern = Concern::of(holder);
                let is_users = concern == Concern::Users;
                if is_users && of_users >= MOST_OF_USERS {
                    of_users += 1;
                    continue;
                }
                if self.is_users_apart(holder) || !is_holder(holder, ip) {
                    continue;
                }
                of_users += usize::from(is_users);
                self.disputes_of(ip, holder, now, &mut found);
                if !found.is_empty() {
                    let what = (ip, holder.id);
                    all.push(Entry { concern, of: holder.id, order: ip, what });
                    found.clear();
                }
            }
        }
        let (told, left_out) = choose(all, usize::MAX);
        Disputed {
            told: told.into_iter().collect(),
            left_out: left_out.into_iter().map(|(_, what)| what).collect(),
            has_more_of_users: of_users > MOST_OF_USERS,
            seen,
        }
    }

    /// Whether any IP is doubtful by the cheap check.
    #[cfg(test)]
    pub(in crate::map) fn has_doubtful_ips(&self) -> bool {
        !self.ipam.doubtful.is_empty()
    }

    /// Whether any IP is disputed, whether or not that counts yet.
    #[must_use]
    pub fn has_disputed_ips(&self) -> bool {
        !self.ipam.disputed.told.is_empty()
    }

    /// Whether there are disputes that are not told, because there are too many.
    #[must_use]
    pub fn leaves_out_disputes(&self) -> bool {
        let Disputed { left_out, has_more_of_users, .. } = &self.ipam.disputed;
        *has_more_of_users || !left_out.is_empty()
    }

    /// Whether there are no other disputes among netns of users than those that are told or left out.
    #[must_use]
    pub fn has_all_disputes_of_users(&self) -> bool {
        !self.ipam.disputed.has_more_of_users
    }

    /// The mismatches about one IP that are left out, and count at `now`.
    #[must_use]
    pub fn left_out_disputes(&self, ip: IpAddr, now: BootNs) -> Vec<IpamMismatch<'_>> {
        let all = &self.ipam.disputed.left_out;
        let mut found =
            self.disputes_of_all(all.range((ip, NetnsId::MIN)..=(ip, NetnsId::MAX)), now);
        found.retain(|dispute| dispute.from <= now);
        found
    }

    fn disputes_of<'a>(
        &'a self,
        ip: IpAddr,
        holder: &'a Netns,
        now: BootNs,
        found: &mut Vec<IpamMismatch<'a>>,
    ) {
        #[cfg(test)]
        JUDGED.set(JUDGED.get() + 1);
        let all = self.reservations_of(ip).filter(|entry| !is_by_pod_object(&entry.store));
        let reserved: Vec<&ReservationEntry> = all.collect();
        // Its own reservation exists: any other reservation of the IP belongs to another network.
        if reserved.iter().any(|entry| self.belongs(holder, entry) == Match::Same) {
            return;
        }
        let own: Option<&Release> = self
            .releases_of(ip)
            .filter(|release| self.belongs(holder, &release.was) == Match::Same)
            .filter(|release| !self.is_guess(holder, &release.was))
            .max_by_key(|release| release.at);
        // Parked: its store hands it to nobody until the holder has let go of it.
        let is_parked = |own: &Release| {
            let mut same = reserved.iter().filter(|entry| entry.is_parked());
            same.any(|entry| entry.store == own.was.store && entry.network == own.was.network)
        };
        if own.is_some_and(is_parked) {
            return;
        }
        let address = address_since(holder, ip);
        // An IP that came back after its release has a new history, of which nothing is known.
        let freed = own.filter(|release| address <= release.at);
        let mut tell = |grounds, store: &str, since: BootNs, pause: u64| {
            let from = self.counts_from(holder, freed, store, since, pause, now);
            found.push(IpamMismatch { ip, holder, grounds, since, from });
        };
        if let Some(release) = freed {
            tell(Grounds::Released(release), &release.was.store, release.at, SETTLE);
        } else if reserved.is_empty()
            && let Some((store, network)) = self.home_of(holder, ip)
        {
            let listed = self.store_listed(store).unwrap_or_default();
            let grounds = Grounds::Unreserved { store, network };
            tell(grounds, store, address.max(listed), UNSEEN_RELEASE);
        }
        for entry in reserved.into_iter().filter(|entry| !entry.is_parked()) {
            if self.belongs(holder, entry) == Match::Other
                && self.is_one_network(holder, entry, own)
            {
                let apart = own.is_none_or(|own| entry.first_seen.since(own.at) > SEPARATE);
                // What was up until the holder's own reservation was released, and a while after, came with that one.
                let came_before = freed.is_some() && apart;
                let came_with_it = !came_before && address.plus(UNTOLD_ADD) > entry.first_seen;
                let pause = match (own.is_none() && entry.preexisting, came_with_it, apart) {
                    (true, ..) => UNSEEN_RELEASE,
                    (false, true, _) => UNTOLD_ADD,
                    (false, false, true) => 0,
                    (false, false, false) => SETTLE,
                };
                tell(Grounds::Handed(entry), &entry.store, entry.first_seen.max(address), pause);
            }
        }
    }

    /// Whether a holder's IP is of the network of a reservation. If names do not tell: whether another netns of that
    /// network has the same network in the CNI result cache, or is attached to the same link.
    fn is_one_network(
        &self,
        holder: &Netns,
        entry: &ReservationEntry,
        own: Option<&Release>,
    ) -> bool {
        if let Some(own) = own {
            return own.was.store == entry.store && own.was.network == entry.network;
        }
        let name = self.network_of(holder, entry.ip);
        match name {
            Some(name) if *name == *entry.network => return true,
            Some(_) if *entry.store == *NAMED_BY_CNI => return false,
            _ => {}
        }
        let link = self.link_below(holder, entry.ip);
        if name.is_none() && link.is_none() {
            return false;
        }
        self.has_member(&entry.store, &entry.network, holder.id, |other, ip| {
            name.is_some() && self.network_of(other, ip) == name
                || link.is_some() && self.link_below(other, ip) == link
        })
    }

    /// The bridge of the host that the device with this IP is attached to, or its parent on the host.
    fn link_below(&self, netns: &Netns, ip: IpAddr) -> Option<u32> {
        let host = self.netns(self.host()?)?;
        let (key, _) = netns.with_ip(ip).next()?;
        let link = netns.link(key.ifindex)?;
        match link.kind.as_deref() {
            _ if link.is_pair() => host_end(host, netns, link)?.master,
            Some("macvlan" | "ipvlan") => {
                // Only a pair with the host tells the nsid of the host in this netns.
                let mut pairs = netns.links().map(|entry| &entry.link);
                let pair = pairs.find(|link| host_end(host, netns, link).is_some())?;
                let hosts = pair.peer_nsid?;
                let parent = link.peer.filter(|_| link.peer_nsid == Some(hosts))?;
                Some(host.link(parent)?.ifindex)
            }
            _ => None,
        }
    }

    /// The moment from which a mismatch counts: `pause` after it began, and not while it may be part of a call.
    fn counts_from(
        &self,
        holder: &Netns,
        freed: Option<&Release>,
        store: &str,
        since: BootNs,
        pause: u64,
        now: BootNs,
    ) -> BootNs {
        let mut from = since.plus(pause);
        if !is_freed_by_cni(store) || !self.sees_calls(now) {
            from = from.max(since.plus(UNSEEN_CALL));
        }
        // Only the call that released the IP excuses it: a failing DEL is repeated forever.
        let event = freed.map_or(since, |freed| freed.at);
        let released = freed.and_then(|freed| freed.was.container_id.as_deref());
        from.max(self.excused_until(holder, released, event, now))
    }

    /// Until when calls that were under way at `event` may explain it. Reports of a store may be late, so a DEL that
    /// had just ended or a failed ADD counts as well. A successful ADD releases no IP.
    fn excused_until(
        &self,
        holder: &Netns,
        released: Option<&str>,
        event: BootNs,
        now: BootNs,
    ) -> BootNs {
        let longest = event.plus(HUNG);
        let sandbox = holder.owner().map(|owner| owner.sandbox.as_str());
        let called = |id: &&str| self.call_history(id).is_some();
        let ids: Vec<&str> = [sandbox, released].into_iter().flatten().filter(called).collect();
        if ids.is_empty() || now >= longest {
            return event;
        }
        let until = |entry: &CallEntry| match entry.ended {
            None => entry.began.plus(HUNG),
            // The runtime no longer found the netns: neither the plugin nor the runtime removes it.
            Some(end) if entry.call.netns_path.is_none() => end.at.plus(SETTLE),
            Some(end) => end.at.plus(AFTER_CALL),
        };
        let under_way = |entry: &CallEntry| match entry.ended {
            None => true,
            Some(end) if end.at >= event => true,
            // On a busy node the release is heard of long after the DEL's end: until the netns is taken away, it counts.
            Some(end) if entry.call.command == CniCommand::Del => end.at.plus(AFTER_CALL) > event,
            Some(end) => end.at.plus(SETTLE) > event && end.failed(),
        };
        let meant = self.calls().filter(|entry| {
            entry.began <= event.plus(SETTLE)
                && under_way(entry)
                && !entry.of_add
                && until(entry) > event
                && matches!(entry.call.command, CniCommand::Add | CniCommand::Del)
                && entry.call.container_id.as_deref().is_some_and(|id| ids.contains(&id))
        });
        meant.map(until).max().unwrap_or(event).min(longest)
    }

    /// The mismatches about these IPs of netns, whether or not they count yet.
    fn disputes_of_all<'a, 'b>(
        &'a self,
        all: impl Iterator<Item = &'b (IpAddr, NetnsId)>,
        now: BootNs,
    ) -> Vec<IpamMismatch<'a>> {
        let mut found = Vec::new();
        for (ip, id) in all {
            if let Some(holder) = self.netns(*id).filter(|holder| is_holder(holder, *ip)) {
                self.disputes_of(*ip, holder, now, &mut found);
            }
        }
        found
    }

    /// The mismatches that count at `now`, of those that the last settling found.
    #[must_use]
    pub fn disputes(&self, now: BootNs) -> Vec<IpamMismatch<'_>> {
        let mut found = self.disputes_of_all(self.ipam.disputed.told.iter(), now);
        found.retain(|dispute| dispute.from <= now);
        found
    }

    /// Finds what is disputed, if anything has changed that it depends on, and remembers which IPs are known to be
    /// unreserved. Returns when the next mismatch begins to count.
    pub(in crate::map) fn settle_disputes(&mut self, now: BootNs) -> Option<BootNs> {
        if self.ipam.disputed.seen.is_none_or(|seen| self.changed(DEPENDS_ON, seen)) {
            let found = self.find_disputed(now);
            if self.ipam.disputed.told != found.told {
                self.changes.mark(Kinds::IPAM);
            }
            self.ipam.disputed = found;
        }
        let all = self.disputes_of_all(self.ipam.disputed.told.iter(), now);
        let next = all.iter().map(|dispute| dispute.from).filter(|at| *at > now).min();
        let free = all.iter().filter(|dispute| {
            dispute.from <= now && matches!(dispute.grounds, Grounds::Unreserved { .. })
        });
        let free = free.map(|dispute| (dispute.ip, dispute.holder.id)).collect();
        if self.ipam.unreserved != free {
            self.ipam.unreserved = free;
            self.changes.mark(Kinds::IPAM);
        }
        next
    }

    /// Whether a netns has an IP with a mismatch that counts at `now`.
    pub(in crate::map) fn is_disputed(&self, ip: IpAddr, holder: &Netns, now: BootNs) -> bool {
        let mut found = Vec::new();
        self.disputes_of(ip, holder, now, &mut found);
        found.iter().any(|dispute| dispute.from <= now)
    }
}

/// Whether a netns other than the host's, which is not in teardown, has this IP on a device of its own.
fn is_holder(netns: &Netns, ip: IpAddr) -> bool {
    !netns.host && netns.dying.is_none() && has(netns, ip)
}

/// Whether a netns answers for an IP, which it does not if only a dummy device has it.
pub(in crate::map) fn has(netns: &Netns, ip: IpAddr) -> bool {
    netns.with_ip(ip).filter(|(key, _)| netns.is_routable(key)).any(|(key, _)| {
        let link = netns.link(key.ifindex);
        link.is_none_or(|link| link.kind.as_deref() != Some("dummy"))
    })
}

pub(super) fn address_since(netns: &Netns, ip: IpAddr) -> BootNs {
    netns.with_ip(ip).map(|(_, known)| known.since).min().unwrap_or_default()
}

/// The host's end of a netns's pair. Interface indexes are small numbers that repeat in every netns: the host's end
/// tells which netns it leads to.
fn host_end<'a>(host: &'a Netns, netns: &Netns, link: &Link) -> Option<&'a Link> {
    let end = host.link(link.peer?)?;
    let back = end.is_pair() && link.is_pair() && end.peer == Some(link.ifindex);
    let there = end.peer_nsid.is_some() && end.peer_nsid == netns.names.nsid;
    (back && there).then_some(end)
}

pub(in crate::map) fn is_mounted_at(netns: &Netns, path: &str) -> bool {
    mounts_of(netns).any(|own| strip_var(own) == strip_var(path))
}
