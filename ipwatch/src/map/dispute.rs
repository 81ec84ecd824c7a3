//! The stores against the kernel: who has an IP, and for whom it is reserved.
//!
//! Nothing is concluded from what is not known. A netns counts against a reservation only if its own
//! sandbox is known and is another one, and only within one network: two networks that cannot reach each
//! other may well use the same IPs. While the holder's own ADD or DEL runs the two may differ.

use std::net::IpAddr;

use crate::fact::{BootNs, CniCommand, Holder, SourceStatus};

use super::cgroup::attribution;
use super::sandbox::strip_var;
use super::{Netns, NodeMap, Release, ReservationEntry, Told};

/// Probes and stores are told by different ways: the word of a DEL may come this much after its effect.
const SETTLE: u64 = 300_000_000;
/// After the end of a DEL its netns is taken away.
const AFTER_CALL: u64 = 2_000_000_000;
/// The same where tasks are in it, who keep it: what a call does to it is done when the call ends.
const AFTER_CALL_OF_HELD: u64 = 500_000_000;
/// Where nobody sees the DEL.
const UNSEEN_CALL: u64 = 5_000_000_000;
/// A DEL that has hung for so long is no excuse any more.
const HUNG_CALL: u64 = 120_000_000_000;
/// A release that is older than this was no part of what goes on now.
const SEPARATE: u64 = 1_000_000_000;
/// Stores whose IPs are not freed by a CNI plugin.
const WITHOUT_CNI: [&str; 2] = ["libnetwork", "netavark"];
/// Tasks of a netns that are asked for their container.
const ASKED: usize = 64;

/// An IP that is up in one place and reserved for another, or for nobody.
#[derive(Debug)]
pub struct Dispute<'a> {
    /// The IP.
    pub ip: IpAddr,
    /// Who has it.
    pub holder: &'a Netns,
    /// What the store says.
    pub grounds: Grounds<'a>,
    /// The moment from which it counts.
    pub from: BootNs,
}

/// What a store says of an IP that a netns has.
#[derive(Debug)]
pub enum Grounds<'a> {
    /// It was reserved for the holder, and let go of.
    Released(&'a Release),
    /// It comes out of this network's range, as the CNI result cache or the holder's past say, and the store does not
    /// have it.
    Unreserved {
        /// The store.
        store: &'a str,
        /// The network.
        network: &'a str,
    },
    /// It is reserved for another one.
    Handed(&'a ReservationEntry),
}

/// Whose a netns is, measured by a container's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// That container's.
    Same,
    /// Another's.
    Other,
    /// Nobody can tell.
    Unknown,
}

impl NodeMap {
    /// Netns that have this IP on a device of their own, the host's and those that are being torn down left out.
    pub fn holders_of(&self, ip: IpAddr) -> impl Iterator<Item = &Netns> {
        self.with_ip(ip)
            .filter_map(|id| self.netns.get(&id))
            .filter(move |netns| !netns.host && netns.dying.is_none() && has(netns, ip))
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

    fn is_of_container(&self, netns: &Netns, id: &str) -> Match {
        let owner = netns.owner();
        let sandbox = |id: &str| self.runtimes.sandbox_of_container(id).map(str::to_owned);
        if owner.is_some_and(|owner| {
            owner.sandbox == id
                || sandbox(id).as_deref() == Some(&owner.sandbox)
                || sandbox(&owner.sandbox).as_deref() == Some(id)
        }) {
            return Match::Same;
        }
        let by_cgroup = netns.tasks.iter().take(ASKED).any(|task| {
            let cgroup = self.tasks.get(task).and_then(|task| task.cgroup.as_deref());
            cgroup
                .and_then(attribution)
                .is_some_and(|found| found.container_id.as_deref() == Some(id))
        });
        if by_cgroup || self.is_mounted_for(netns, id) {
            return Match::Same;
        }
        // A guess by its IP is a name, and an id that is nobody's sandbox may be one of its containers.
        let known = owner.filter(|owner| owner.told != Told::ByIp);
        match known.filter(|owner| self.is_sandbox(&owner.sandbox)) {
            Some(_) => Match::Other,
            None => Match::Unknown,
        }
    }

    /// Whether it is mounted where the runtime, the cache or an ADD say that this sandbox's netns is.
    fn is_mounted_for(&self, netns: &Netns, id: &str) -> bool {
        let told = self.sandbox(id).and_then(|entry| entry.sandbox.netns_path.as_deref());
        let cached = self.attachment_of(id).and_then(|known| known.netns_path.as_deref());
        let called = self.call_history(id).and_then(|known| known.netns_path.as_deref());
        [told, cached, called].into_iter().flatten().any(|path| is_mounted_at(netns, path))
    }

    /// Whether this is the id of a sandbox, as far as anybody has said.
    fn is_sandbox(&self, id: &str) -> bool {
        self.sandbox(id).is_some()
            || self.attachment_of(id).is_some()
            || self.call_history(id).is_some_and(|history| history.add.first.is_some())
            || self.reservations_for(id).next().is_some()
    }

    /// A first look at an IP: whether a netns has it for which no store has it reserved.
    pub(super) fn is_doubtful(&self, ip: IpAddr) -> bool {
        if !super::netns::is_routable(ip) {
            return false;
        }
        self.holders_of(ip).any(|netns| {
            let owner = netns.owner().map(|owner| &*owner.sandbox);
            let mut reserved = false;
            for (_, entry) in self.ipam.of_ip(ip) {
                if entry.container_id.is_none() || entry.container_id.as_deref() != owner {
                    return true;
                }
                reserved = true;
            }
            let own = |release: &Release| {
                release.was.container_id.is_none() || release.was.container_id.as_deref() == owner
            };
            !reserved && (self.ipam.releases_of(ip).any(own) || self.home_of(netns, ip).is_some())
        })
    }

    /// The network, of a store that hands it out, that a netns has an IP of: as the cached result of its
    /// sandbox says.
    fn home_of(&self, netns: &Netns, ip: IpAddr) -> Option<(&str, &str)> {
        let network = self.network_of(netns, ip)?;
        let range = self.ranges().find(|range| {
            range.range.network == network
                && range.contains(ip)
                && self.is_whole(&range.range.store)
        })?;
        Some((&range.range.store, &range.range.network))
    }

    /// The network by which a netns has this IP, as its sandbox's cached result says.
    fn network_of(&self, netns: &Netns, ip: IpAddr) -> Option<&str> {
        let owner = netns.owner().filter(|owner| owner.told != Told::ByIp)?;
        let from = (owner.sandbox.clone(), String::new());
        let own = self.attachments.range(from..).take_while(|((id, _), _)| *id == owner.sandbox);
        let mut with_ip = own.filter(|(_, (known, _))| known.ips.iter().any(|(own, _)| *own == ip));
        with_ip.next().map(|(_, (known, _))| &*known.network)
    }

    /// Whether a store has told all it has, and answers wholly.
    #[must_use]
    pub fn is_whole(&self, store: &str) -> bool {
        self.store_listed(store).is_some()
            && self.source(store).is_some_and(|source| source.status == SourceStatus::Active)
    }

    /// Everything that is in dispute, whether or not it counts yet.
    fn all_disputes(&self, now: BootNs) -> Vec<Dispute<'_>> {
        let mut found = Vec::new();
        for ip in &self.ipam.doubtful {
            for holder in self.holders_of(*ip) {
                self.disputes_of(*ip, holder, now, &mut found);
            }
        }
        found
    }

    fn disputes_of<'a>(
        &'a self,
        ip: IpAddr,
        holder: &'a Netns,
        now: BootNs,
        found: &mut Vec<Dispute<'a>>,
    ) {
        let reserved: Vec<&ReservationEntry> = self.reservations_of(ip).collect();
        // Its own is there: whoever else reserves the IP does so in another network.
        if reserved.iter().any(|entry| self.belongs(holder, entry) == Match::Same) {
            return;
        }
        let own: Option<&Release> = self
            .releases_of(ip)
            .filter(|release| self.belongs(holder, &release.was) == Match::Same)
            .max_by_key(|release| release.at);
        let address = address_since(holder, ip);
        let mut tell = |grounds, store: &str, event: BootNs, apart: bool| {
            if let Some(from) = self.counts_from(holder, own, store, event, apart, now) {
                found.push(Dispute { ip, holder, grounds, from });
            }
        };
        // The IP came back after its release: that is another life of it, of which nothing is known.
        let before = |release: &&Release| address <= release.at;
        if let Some(release) = own.filter(before) {
            tell(Grounds::Released(release), &release.was.store, release.at, false);
        } else if reserved.is_empty()
            && let Some((store, network)) = self.home_of(holder, ip)
        {
            let listed = self.store_listed(store).unwrap_or_default();
            tell(Grounds::Unreserved { store, network }, store, address.max(listed), false);
        }
        for entry in reserved {
            if self.belongs(holder, entry) == Match::Other
                && self.is_one_network(holder, entry, own)
            {
                let released = own.map(|own| own.at);
                let apart = released.is_none_or(|at| entry.first_seen.since(at) > SEPARATE);
                tell(Grounds::Handed(entry), &entry.store, entry.first_seen.max(address), apart);
            }
        }
    }

    /// Whether a holder's IP is of the network that a reservation is of. Where its own network is not
    /// known: whether both hang on the same bridge or parent.
    fn is_one_network(
        &self,
        holder: &Netns,
        entry: &ReservationEntry,
        own: Option<&Release>,
    ) -> bool {
        if let Some(own) = own {
            return own.was.store == entry.store && own.was.network == entry.network;
        }
        if let Some(network) = self.network_of(holder, entry.ip) {
            return *network == *entry.network;
        }
        let Some(link) = self.link_below(holder, entry.ip) else { return false };
        let members = self.reservations().filter(|other| {
            other.store == entry.store && other.network == entry.network && other.ip != entry.ip
        });
        // A few will do: they are all on the same one.
        members.take(256).any(|other| {
            self.holders_of(other.ip).any(|netns| {
                self.belongs(netns, other) == Match::Same
                    && self.link_below(netns, other.ip) == Some(link)
            })
        })
    }

    /// The bridge of the host that the device with an IP hangs on, or the host's device that it is made of.
    fn link_below(&self, netns: &Netns, ip: IpAddr) -> Option<u32> {
        let (key, _) = netns.addresses().find(|(key, _)| key.local == ip)?;
        let link = netns.link(key.ifindex)?;
        let host = self.netns.get(&self.host()?)?;
        let below = host.link(link.peer?)?;
        match link.kind.as_deref() {
            // Its peer's own peer is this one: the number is not by chance.
            Some("veth") if below.peer == Some(link.ifindex) => below.master,
            Some("macvlan" | "ipvlan") => Some(below.ifindex),
            _ => None,
        }
    }

    /// The moment from which a difference counts; absent while it may be part of a call. `apart`: no
    /// release went with it.
    fn counts_from(
        &self,
        holder: &Netns,
        own: Option<&Release>,
        store: &str,
        event: BootNs,
        apart: bool,
        now: BootNs,
    ) -> Option<BootNs> {
        let mut from = if apart { event } else { event.plus(SETTLE) };
        if WITHOUT_CNI.contains(&store) || !self.sight().calls {
            from = from.max(event.plus(UNSEEN_CALL));
        }
        let sandbox = holder.owner().map(|owner| owner.sandbox.as_str());
        let released = own.and_then(|own| own.was.container_id.as_deref());
        let after_call = if holder.tasks.is_empty() { AFTER_CALL } else { AFTER_CALL_OF_HELD };
        for id in [sandbox, released].into_iter().flatten() {
            let Some(history) = self.call_history(id) else { continue };
            for went in [&history.add, &history.del] {
                let hung = went.running_since.is_some_and(|at| now.since(at) > HUNG_CALL);
                if went.running > 0 && !hung {
                    return None;
                }
                if let Some(ended) = went.ended {
                    from = from.max(ended.plus(after_call));
                }
            }
        }
        Some(from)
    }

    /// What is in dispute at `now`.
    #[must_use]
    pub fn disputes(&self, now: BootNs) -> Vec<Dispute<'_>> {
        let mut found = self.all_disputes(now);
        found.retain(|dispute| dispute.from <= now);
        found
    }

    /// When the next dispute begins to count.
    pub(super) fn next_dispute(&self, now: BootNs) -> Option<BootNs> {
        let all = self.all_disputes(now).into_iter();
        all.map(|dispute| dispute.from).filter(|at| *at > now).min()
    }

    /// Whether a command of this container's is under way or has just ended.
    #[must_use]
    pub fn is_busy(&self, container: &str, now: BootNs) -> bool {
        [CniCommand::Add, CniCommand::Del]
            .into_iter()
            .any(|command| self.is_called(command, container, now, AFTER_CALL))
    }
}

/// Whether a netns has an IP on a device by which others could reach it.
fn has(netns: &Netns, ip: IpAddr) -> bool {
    netns.routable().any(|(key, _)| {
        let dummy =
            netns.link(key.ifindex).is_some_and(|link| link.kind.as_deref() == Some("dummy"));
        key.local == ip && !dummy
    })
}

fn address_since(netns: &Netns, ip: IpAddr) -> BootNs {
    let own = netns.addresses().filter(|(key, _)| key.local == ip);
    own.map(|(_, known)| known.since).min().unwrap_or_default()
}

pub(super) fn is_mounted_at(netns: &Netns, path: &str) -> bool {
    netns.holders().any(|holder| match holder {
        Holder::Mount { path: own, .. } => strip_var(own) == strip_var(path),
        _ => false,
    })
}
