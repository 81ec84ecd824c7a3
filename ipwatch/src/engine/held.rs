//! Answers the question of an IPAM plugin: what still holds an address, and why.
//!
//! `map/ipam/held.rs` decides whether an address is held. A DEL is put off only if, in addition, a finding fires (after two
//! looks) about a process that is stuck in the container's own netns. If the answer is not certain, it is
//! [`HeldState::Unknown`], and the plugin serves the call as if it had not asked.

use super::Engine;
use crate::contract::{
    Held, HeldAddress, HeldCall, HeldQuestion, HeldState, Netns as NetnsView, Severity, Status,
};
use crate::detect;
use crate::fact::BootNs;
use crate::finding::{Code, Finding};
use crate::map::{Given, Hold, Netns, StoreNetwork};
use crate::remedy::said;

/// The code of the finding for which a DEL is put off.
const STUCK: Code = Code::IpHeldByStuckProcess;

impl Engine {
    /// Answers the question of an IPAM plugin.
    #[must_use]
    pub fn held(&self, asked: &HeldQuestion, now: BootNs) -> Held {
        let place = StoreNetwork { store: &asked.store, network: &asked.network };
        let addresses = match asked.call {
            HeldCall::Add => self.held_on_add(asked, place, now),
            HeldCall::Del => self.held_on_del(asked, place, now),
        };
        let parked =
            asked.parked.iter().map(|(ip, cookie)| self.of_parked(*ip, *cookie, place, now));
        let parked = parked.collect();
        let mut ranges = self.map.ranges();
        let range = ranges
            .find(|entry| entry.range.store == asked.store && entry.range.network == asked.network);
        let usable = range.filter(|range| self.map.is_counted(range));
        Held { addresses, parked, usable: usable.map(|range| range.usage().usable) }
    }

    /// The answer about a parked address, by the cookie of the netns that had it; 0: unknown. Another netns that was given it
    /// may have it as well: of a result of both families, held by two, the id has one cookie, and so it has where two had the
    /// same address. One for which the store has it reserved is no such: the store has given it away, so that it is not parked
    /// any more.
    fn of_parked(
        &self,
        ip: std::net::IpAddr,
        cookie: u64,
        place: StoreNetwork<'_>,
        now: BootNs,
    ) -> HeldAddress {
        if cookie == 0 {
            return self.of_hold(ip, self.map.hold(place, ip, "", now), now);
        }
        if let Some(netns) = self.map.hold_of(ip, cookie) {
            return self.told(ip, HeldState::Held, netns, "cookie", now);
        }
        match self.map.hold(place, ip, "", now) {
            other @ (Hold::Still(_, given) | Hold::Leaving(_, given))
                if given != Given::Reserved =>
            {
                self.of_hold(ip, other, now)
            }
            _ if self.map.knows_all_addresses() && !self.map.is_held_by_unknown(ip) => {
                HeldAddress::of(ip, HeldState::Free)
            }
            _ => HeldAddress::of(ip, HeldState::Unknown),
        }
    }

    fn held_on_add(
        &self,
        asked: &HeldQuestion,
        place: StoreNetwork<'_>,
        now: BootNs,
    ) -> Vec<HeldAddress> {
        let hold = |ip| self.map.hold(place, ip, &asked.container, now);
        asked.ips.iter().map(|ip| self.of_hold(*ip, hold(*ip), now)).collect()
    }

    fn of_hold(&self, ip: std::net::IpAddr, hold: Hold<'_>, now: BootNs) -> HeldAddress {
        match hold {
            Hold::Nobody => HeldAddress::of(ip, HeldState::Free),
            Hold::Unknown => HeldAddress::of(ip, HeldState::Unknown),
            Hold::Leaving(netns, given) => {
                self.told(ip, HeldState::Leaving, netns, given.as_str(), now)
            }
            Hold::Still(netns, given) => self.told(ip, HeldState::Held, netns, given.as_str(), now),
        }
    }

    fn held_on_del(
        &self,
        asked: &HeldQuestion,
        place: StoreNetwork<'_>,
        now: BootNs,
    ) -> Vec<HeldAddress> {
        let own = self.map.own_holds(place, &asked.container, asked.ifname.as_deref());
        own.map(|(ip, holders)| {
            let mut stuck = holders.into_iter().filter_map(|netns| {
                let inode = netns.names.inode.map(u64::from);
                // The interface plugin can enter this netns and removes the device before or after this DEL.
                if asked.netns.is_some() && (inode.is_none() || inode == asked.netns) {
                    return None;
                }
                let since = self.stuck_since(&self.map.netns_view(netns), now)?;
                let told = self.told(ip, HeldState::Held, netns, "stuck", now);
                Some(HeldAddress { for_secs: now.since(since) / 1_000_000_000, ..told })
            });
            stuck.next().unwrap_or_else(|| HeldAddress::of(ip, HeldState::Free))
        })
        .collect()
    }

    /// Since when a process has been stuck in a netns, by the ledger: the finding survives a restart of the daemon, and the
    /// end of one of several processes. `None`: no such finding fires, or its time is not known.
    fn stuck_since(&self, view: &NetnsView, now: BootNs) -> Option<BootNs> {
        let firing = self.ledger.open_findings().filter(|finding| {
            finding.code == STUCK
                && finding.status == Status::Firing
                && finding.severity >= Severity::Warning
                && is_of(finding, view)
        });
        let since = firing.filter_map(|finding| self.map.calendar().moment(&finding.since)).min();
        // A date in the future was written before the clock was set back.
        since.filter(|since| *since <= now && !self.is_blind(STUCK))
    }

    /// The answer about an address that a netns has.
    fn told(
        &self,
        ip: std::net::IpAddr,
        state: HeldState,
        netns: &Netns,
        proof: &str,
        now: BootNs,
    ) -> HeldAddress {
        let view = self.map.netns_view(netns);
        let (container, pod) = self.map.sandbox_of(netns.id);
        let mut open = self.ledger.findings(false);
        open.retain(|finding| finding.status == Status::Firing && is_of(finding, &view));
        let critical = open
            .iter()
            .any(|finding| finding.severity == Severity::Critical && finding.subject.has_ip(ip));
        // Causes come before consequences.
        open.sort_by_key(|finding| (finding.code != STUCK, finding.caused_by.is_some()));
        let cause = open.first();
        let since = cause.and_then(|cause| {
            let same = open.iter().filter(|one| one.code == cause.code);
            same.filter_map(|one| self.map.calendar().moment(&one.since)).min()
        });
        let holder = cause.and_then(|cause| cause.holders.first().cloned());
        let holder = holder.or_else(|| self.map.resident_views(netns.id, now).into_iter().next());
        let mut who = format!("{ip} is still held");
        who += &match holder.as_ref().map(|holder| (holder, holder.pid, holder.comm.as_deref())) {
            _ if netns.dying.is_some() => {
                " by the network namespace, whose teardown hangs".to_owned()
            }
            Some((_, Some(pid), Some(comm))) => format!(" by pid {pid} ({})", said(comm)),
            Some((holder, ..)) => format!(" by {}", holder.words()),
            None => String::new(),
        };
        if let Some(pod) = &pod
            && let (Some(namespace), Some(name)) = (&pod.namespace, &pod.name)
        {
            who += &format!(" of pod {}", said(&format!("{namespace}/{name}")));
        }
        if let Some(why) = holder.and_then(|holder| detect::why_stuck(&self.map, holder.pid?)) {
            who += &format!(": {why}");
        }
        if let Some(cause) = cause {
            let since = since.map(|at| self.map.calendar().date(at));
            who += &since.map(|since| format!(", since {since}")).unwrap_or_default();
            who += &format!("; ipwatch explain {}", cause.id.get(..4).unwrap_or(&cause.id));
        }
        HeldAddress {
            netns: Some(view),
            container,
            pod,
            who,
            proof: proof.to_owned(),
            finding: cause.map(|cause| cause.id.clone()),
            critical,
            for_secs: since.map_or(0, |since| now.since(since) / 1_000_000_000),
            ..HeldAddress::of(ip, state)
        }
    }
}

/// Whether a finding is about a netns.
fn is_of(finding: &Finding, view: &NetnsView) -> bool {
    finding.subject.netns.as_ref().is_some_and(|netns| is_same(netns, view))
}

fn is_same(one: &NetnsView, other: &NetnsView) -> bool {
    match (one.cookie, other.cookie) {
        (Some(one), Some(other)) => one == other,
        _ => one.inode.is_some() && one.inode == other.inode,
    }
}
