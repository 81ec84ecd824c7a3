//! IPAM stores, combined with the kernel and the runtimes, in the types of the JSON contract.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::clock::Calendar;
use crate::contract::{self, IpamEntry, IpamHolder, IpamNetwork, IpamRange, Prefix};
use crate::fact::{BootNs, PodName};

use super::netns::interface_view;
use crate::map::ipam::usable;
use crate::map::{Grounds, Match, RangeEntry, UnreadableEntry};
use crate::map::{Netns, NodeMap, ReservationEntry, SandboxVerdict, Thresholds};

/// Maximum number of holders listed for one IP.
pub(in crate::map) const LISTED: usize = 16;

impl NodeMap {
    /// Every range whose number of taken IPs is known.
    #[must_use]
    pub fn ranges_view(&self, now: BootNs, thresholds: &Thresholds) -> Vec<IpamRange> {
        let sees_all = self.knows_all_addresses();
        let view = |entry: &RangeEntry| {
            let usage = entry.usage();
            let (held, available) = sees_all.then(|| self.held_in(entry)).unzip();
            IpamRange {
                store: entry.range.store.clone(),
                network: entry.range.network.clone(),
                range: entry.text(),
                usable: usage.usable,
                used: usage.used,
                leaked: self.leaked_count(entry, now, thresholds),
                free: usage.free,
                held,
                available,
                path: Some(entry.range.path.clone()),
                time_left: entry.time_left(now).map(|left| left / 1_000_000_000),
            }
        };
        self.ranges().filter(|entry| self.is_counted(entry)).map(view).collect()
    }

    /// Number of leaked IPs of a range. Some leaks are proven without a runtime, such as those from before the boot: then
    /// the number is a lower bound. 0 is reported only if nothing is reserved, or runtimes judge what is.
    fn leaked_count(
        &self,
        entry: &RangeEntry,
        now: BootNs,
        thresholds: &Thresholds,
    ) -> Option<u64> {
        let leaked = self.leaked_in(entry, now, thresholds).len() as u64;
        let nothing = || entry.sets().all(|(parts, free)| free == usable(parts));
        let judged = || self.runtimes_judge() && self.store_counts(&entry.range.store);
        (leaked > 0 || nothing() || judged()).then_some(leaked)
    }

    /// Networks with reservations and without a range, at most `most`.
    #[must_use]
    pub fn unranged_view(&self, most: usize) -> Vec<IpamNetwork> {
        let mut counts: BTreeMap<(&str, &str), (&ReservationEntry, u64)> = BTreeMap::new();
        for entry in self.reservations() {
            let network = (&*entry.store, &*entry.network);
            counts.entry(network).or_insert((entry, 0)).1 += 1;
        }
        let unranged = counts.into_iter().filter(|(_, (first, _))| self.range_of(first).is_none());
        let view = |((store, network), (_, reserved)): ((&str, &str), (_, u64))| IpamNetwork {
            store: store.to_owned(),
            network: network.to_owned(),
            reserved,
        };
        unranged.map(view).take(most).collect()
    }

    /// Number of IPs of a range that some netns has without a reservation in its store, and number of pods that can be
    /// started without these IPs. A user's netns that nothing connects with the node takes no IP from anybody.
    pub(in crate::map) fn held_in(&self, entry: &RangeEntry) -> (u64, u64) {
        let is_taken = |ip: IpAddr| {
            let torn = |one: &UnreadableEntry| one.file.takes == Some(ip);
            self.reservations_of(ip).any(|one| entry.is_of(one)) || self.unreadable().any(torn)
        };
        let mut all = BTreeSet::new();
        let available = entry.sets().map(|(parts, free)| {
            let up = parts.iter().filter(|part| part.first <= part.last).flat_map(|part| {
                let within = self.kernel.within(part.first, part.last);
                let counts = |id| !self.netns(id).is_some_and(|netns| self.is_users_apart(netns));
                let within = within.filter(move |(ip, id)| part.contains(*ip) && counts(*id));
                within.map(|(ip, _)| ip)
            });
            let held: BTreeSet<IpAddr> = up.filter(|ip| !is_taken(*ip)).collect();
            let available = free.saturating_sub(held.len() as u64);
            all.extend(held);
            available
        });
        let available = available.min().unwrap_or(0);
        (all.len() as u64, available)
    }

    /// Up to `most` reservations in IP order: of all IPs or of a prefix, of all networks or of one.
    #[must_use]
    pub fn reservations_view(
        &self,
        prefix: Option<&Prefix>,
        network: Option<&str>,
        most: usize,
    ) -> Vec<IpamEntry> {
        let pools = self.ranges().filter(|range| range.is_by_blocks() || range.range.shares);
        let pool = network.and_then(|name| pools.into_iter().find(|one| one.range.network == name));
        let of_network = |entry: &&ReservationEntry| {
            network.is_none_or(|name| *entry.network == *name)
                || pool.is_some_and(|pool| pool.is_of(entry))
        };
        match prefix.map(Prefix::range) {
            Some((first, last)) => {
                let within = self.ipam.within(first, last).map(|(_, entry)| entry);
                within.filter(of_network).take(most).map(|entry| self.entry_view(entry)).collect()
            }
            None => {
                let all = self.reservations().filter(of_network).take(most);
                all.map(|entry| self.entry_view(entry)).collect()
            }
        }
    }

    /// Store and name of the pools of the reservations within a prefix, if these do not name their pool.
    pub fn pools_of(&self, prefix: &Prefix) -> impl Iterator<Item = (&str, &str)> {
        let (first, last) = prefix.range();
        let pools = self.ranges().filter(move |range| {
            range.is_by_blocks() && self.ipam.within(first, last).any(|(_, one)| range.is_of(one))
        });
        pools.map(|pool| (&*pool.range.store, &*pool.range.network))
    }

    /// Reservations that are leaked or parked, or whose IP somebody else has; in no order, at most so many.
    #[must_use]
    pub fn disagreements(&self, most: usize) -> Vec<IpamEntry> {
        let disputes = self.disputes(self.now());
        let handed = disputes.iter().filter_map(|dispute| match dispute.grounds {
            Grounds::Handed(entry) => Some(entry),
            _ => None,
        });
        let leaked = self.leaks().map(|leak| leak.entry).filter(|entry| !entry.is_parked());
        handed
            .chain(self.parked())
            .chain(leaked)
            .take(most)
            .map(|entry| self.entry_view(entry))
            .collect()
    }

    fn entry_view(&self, entry: &ReservationEntry) -> IpamEntry {
        let id = entry.container_id.as_deref();
        let pod = entry.pod.as_deref().cloned().or_else(|| self.pod_of(id?));
        let since = entry.since.and_then(|since| u64::try_from(since).ok());
        let told = id.and_then(|id| self.sandbox_told(id)?.1);
        let runtime = id.and_then(|id| word(self.verdict_on(id)));
        IpamEntry {
            ip: entry.ip,
            store: entry.store.to_string(),
            network: entry.network.to_string(),
            key: entry.key.to_string(),
            container_id: id.map(str::to_owned),
            ifname: entry.ifname.as_deref().map(str::to_owned),
            pod: told.or_else(|| pod.map(pod_view)),
            since: since.map(|since| Calendar::default().date(BootNs(since))),
            kernel: self.ip_holders(entry.ip),
            runtime: runtime.map(str::to_owned),
            agree: self.agreement(entry).map(str::to_owned),
        }
    }

    /// Whether store, kernel and runtime agree on a reservation.
    fn agreement(&self, entry: &ReservationEntry) -> Option<&'static str> {
        if entry.is_parked() {
            let leaked = self.is_leaked(&entry.store, &entry.key);
            return Some(if leaked { "leaked" } else { "parked" });
        }
        let mut unknown = false;
        let mut other = false;
        for holder in self.holders_of(entry.ip) {
            match self.belongs(holder, entry) {
                Match::Same => {
                    let id = entry.container_id.as_deref();
                    let dead = id.is_some_and(|id| {
                        matches!(
                            self.verdict_on(id),
                            SandboxVerdict::Dead(_) | SandboxVerdict::Gone(_)
                        )
                    });
                    return Some(if dead { "leaked" } else { "yes" });
                }
                Match::Other => other |= self.is_disputed(entry.ip, holder, self.now()),
                Match::Unknown => unknown = true,
            }
        }
        if self.is_leaked(&entry.store, &entry.key) {
            return Some("leaked");
        }
        match (other, unknown) {
            (true, _) => Some("held-by-another"),
            (false, true) => None,
            (false, false) => Some("idle"),
        }
    }

    /// Every netns on this node that has an IP, including the node's own.
    pub(in crate::map) fn ip_holders(&self, ip: IpAddr) -> Vec<IpamHolder> {
        let all = self.with_ip(ip).filter_map(|id| self.netns(id)).take(LISTED);
        let view = |netns: &Netns| {
            let (container, pod) = self.sandbox_of(netns.id);
            let on = netns.with_ip(ip).next();
            IpamHolder {
                netns: self.netns_view(netns),
                interface: on.map(|(key, _)| interface_view(netns, key.ifindex)),
                container,
                pod,
            }
        };
        all.map(view).collect()
    }

    /// The reservation of an address that a netns has: its own before another's.
    pub(in crate::map) fn reservation_at(
        &self,
        netns: &Netns,
        ip: IpAddr,
    ) -> Option<contract::Reservation> {
        if netns.host {
            return None;
        }
        let own = |entry: &&ReservationEntry| self.belongs(netns, entry) == Match::Same;
        let found = self.reservations_of(ip).find(own).or_else(|| self.reservations_of(ip).next());
        found.map(reservation_view)
    }
}

pub(in crate::map) fn reservation_view(entry: &ReservationEntry) -> contract::Reservation {
    contract::Reservation {
        store: entry.store.to_string(),
        network: Some(entry.network.to_string()),
        key: Some(entry.key.to_string()),
        container_id: entry.container_id.as_deref().map(str::to_owned),
        pod: entry.pod.as_deref().cloned().map(pod_view),
    }
}

fn pod_view(pod: PodName) -> contract::Pod {
    contract::Pod {
        namespace: Some(pod.namespace),
        name: Some(pod.name),
        uid: pod.uid,
        ..contract::Pod::default()
    }
}

fn word(word: SandboxVerdict<'_>) -> Option<&'static str> {
    match word {
        SandboxVerdict::Lives => Some("alive"),
        SandboxVerdict::Dead(_) => Some("dead"),
        SandboxVerdict::Gone(_) => Some("gone"),
        SandboxVerdict::Denied(_) => Some("denied"),
        SandboxVerdict::NobodyToAsk => Some("nobody"),
        SandboxVerdict::Unknown(_) => None,
    }
}
