//! Which claims to one IP contradict each other, and which only appear to.
//!
//! Two MACs that both answer are a conflict. A MAC that takes over from another is not: a pod that was given the IP of
//! a removed pod, or an announced fail-over. Nor are a router that answers for others (proxy ARP), a device and those
//! stacked on it, two devices of one netns, and the MACs of VRRP.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::fact::{BootNs, Link, LinkDetail, Mac};

use super::claims::{Contest, FORGOTTEN, HANDED_OVER, Home, Key, OUT_OF_STEP, Side, Turn};
use crate::map::told::{Concern, Entry, choose, has_room_for};
use crate::map::{Endpoint, Netns, NetnsId, NodeMap};

const SEC: u64 = 1_000_000_000;
/// After an entry changed, the kernel ignores other MACs for one second (`locktime`), so the later answer is rejected.
const ONE_ANSWER: u64 = 2 * SEC;
/// Two answers to one request arrive within this time.
const AT_ONCE: u64 = SEC;
/// A MAC that answers for this many IPs and requests none itself is a proxy.
pub(super) const PROXY: usize = 3;
/// Maximum number of devices followed from one to the next.
const DEPTH: usize = 8;

/// The evidence that two MACs have one IP, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grounds {
    /// The address failed duplicate address detection.
    Dad,
    /// A MAC claims an IP that another MAC has on the same link, on this node.
    Held,
    /// The neighbour entry accepted one answer and rejected another.
    Lost,
    /// Both answered within a second.
    BothAnswered,
    /// First one MAC, then the other, then the first one again.
    InTurns,
}

/// One of the MACs that have the IP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// Unknown if only duplicate address detection noticed it.
    pub mac: Option<Mac>,
    /// The device of this node that has the MAC.
    pub home: Option<Home>,
    /// What was observed of it. Absent if it has the IP on this node and was not observed.
    pub heard: Option<Side>,
}

/// One IP and the MACs that claim it, as observed on one device of one netns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub ip: IpAddr,
    /// The netns where it was observed.
    pub netns: NetnsId,
    /// The device where it was observed.
    pub ifindex: u32,
    pub parties: Vec<Party>,
    pub grounds: Grounds,
    /// Since when both are known.
    pub since: BootNs,
    /// When the last claim was observed.
    pub heard: BootNs,
    /// The conflict does not depend on recent packets: the address failed duplicate address detection, or all parties
    /// have it on this node now.
    pub stands: bool,
}

impl NodeMap {
    /// The conflicts at `now`, as each device observed them: those that were heard, then those of addresses that failed
    /// duplicate address detection. If they are too many, those about IPs that pods, root or the node have come first.
    #[must_use]
    pub fn conflicts(&self, now: BootNs) -> Vec<Conflict> {
        self.told_conflicts(now).0
    }

    /// Whether there are conflicts that are not told, because there are too many.
    #[must_use]
    pub fn leaves_out_conflicts(&self, now: BootNs) -> bool {
        let claims = &self.conflict.claims;
        let most = claims.count_contested() + claims.dad().count();
        !has_room_for(most) && self.told_conflicts(now).1
    }

    /// The conflicts about one IP, including those that are left out.
    #[must_use]
    pub fn conflicts_of(&self, ip: IpAddr, now: BootNs) -> Vec<Conflict> {
        let claims = &self.conflict.claims;
        let anew = |key: &Key| self.conflict(key, claims.contest(key)?, now);
        let heard: Vec<Conflict> = match claims.settled_of(ip, now) {
            Some(settled) => settled.cloned().collect(),
            None => claims.contested_of(ip).filter_map(anew).collect(),
        };
        let refused = self.refused_addresses().filter(|key| key.0 == ip);
        heard.into_iter().chain(refused.filter_map(|key| self.failed(key))).collect()
    }

    fn told_conflicts(&self, now: BootNs) -> (Vec<Conflict>, bool) {
        let failed = self.refused_addresses().filter_map(|key| self.failed(key)).map(Cow::Owned);
        let all: Vec<Cow<'_, Conflict>> = match self.conflict.claims.settled(now) {
            Some(settled) => settled.map(Cow::Borrowed).chain(failed).collect(),
            None => self.heard_conflicts(now).map(Cow::Owned).chain(failed).collect(),
        };
        let owned = |all: Vec<Cow<'_, Conflict>>| all.into_iter().map(Cow::into_owned).collect();
        if has_room_for(all.len()) {
            return (owned(all), false);
        }
        let entries = all.into_iter().map(|what| {
            let (concern, holder) = self.concern_of(&what);
            // One IP is observed by any number of devices, and one netns may have any number of IPs.
            let of = (holder, holder.is_none().then_some(what.ip));
            let order = (what.since, what.ip, what.netns, what.ifindex);
            Entry { concern, of, order, what }
        });
        let (told, left_out) = choose(entries, usize::MAX);
        (owned(told), !left_out.is_empty())
    }

    /// Whom a conflict concerns, and the netns that has the IP. Whoever may send what he likes can claim any IP; that a netns
    /// has it is the kernel's word.
    fn concern_of(&self, conflict: &Conflict) -> (Concern, Option<NetnsId>) {
        let of = |id: NetnsId| self.netns(id).map_or(Concern::Users, Concern::of);
        let homes = || conflict.parties.iter().filter_map(|party| party.home);
        let holders = homes().filter(|home| home.holds).map(|home| (of(home.netns), home.netns));
        let holder = holders.min().filter(|(concern, _)| *concern == Concern::Holder);
        if let Some((concern, id)) = holder {
            return (concern, Some(id));
        }
        let mut seen = homes().map(|home| home.netns).chain([conflict.netns]);
        let is_users = seen.all(|id| of(id) == Concern::Users);
        (if is_users { Concern::Users } else { Concern::Observer }, None)
    }

    /// The addresses that failed duplicate address detection, without those that are shared on purpose.
    fn refused_addresses(&self) -> impl Iterator<Item = &Key> {
        self.conflict.claims.dad().filter(|(ip, ..)| !self.is_shared_ip(*ip))
    }

    /// The observed conflicts, computed anew.
    pub(crate) fn heard_conflicts(&self, now: BootNs) -> impl Iterator<Item = Conflict> {
        let contested = self.conflict.claims.contested();
        contested.filter_map(move |(key, contest)| self.conflict(key, contest, now))
    }

    pub(super) fn conflict(&self, key: &Key, contest: &Contest, now: BootNs) -> Option<Conflict> {
        let (ip, netns, ifindex) = *key;
        // Some IPs are shared on purpose.
        if self.is_shared_ip(ip) {
            return None;
        }
        let sides: Vec<&Side> =
            contest.sides.iter().filter(|side| self.may_claim(key, side, now)).collect();
        let mut parties: Vec<Party> = Vec::new();
        let mut grounds = None;
        for (place, one) in sides.iter().enumerate() {
            for other in &sides[place + 1..] {
                if let Some(why) = self.between(ip, contest, one, other) {
                    grounds = grounds.or(Some(why));
                    add(&mut parties, Party::heard(one));
                    add(&mut parties, Party::heard(other));
                }
            }
        }
        for (holder, claimant) in self.held(key, &sides, now) {
            grounds = Some(Grounds::Held);
            add(&mut parties, Party::heard(claimant));
            add(&mut parties, holder);
        }
        let firsts = parties.iter().filter_map(|party| Some(party.heard.as_ref()?.first));
        let mut firsts: Vec<BootNs> = firsts.collect();
        firsts.sort_unstable();
        let lasts = parties.iter().filter_map(|party| Some(party.heard.as_ref()?.last));
        // A third party joined an existing conflict.
        let (since, heard) = (*firsts.get(1).or(firsts.first())?, lasts.max()?);
        parties.sort_by_key(|party| party.mac);
        let stands = parties.iter().all(|party| party.home.is_some_and(|home| home.holds));
        Some(Conflict { ip, netns, ifindex, parties, grounds: grounds?, since, heard, stands })
    }

    /// Whether this MAC can be a claimant at all.
    fn may_claim(&self, key: &Key, side: &Side, now: BootNs) -> bool {
        let (_, netns, ifindex) = *key;
        let at = side.home.and_then(|home| self.netns(home.netns).map(|entry| (home, entry)));
        // The claimant's own router: the node, or the netns that observed the claim.
        let router =
            at.is_some_and(|(home, entry)| !home.holds && (entry.host || entry.id == netns));
        let proxy = || {
            !side.speaks_for_itself()
                && side.home.is_none_or(|home| !home.holds)
                && self.conflict.claims.answered_by(netns, ifindex, side.mac) >= PROXY
        };
        side.is_live(now) && !is_virtual(side.mac) && !router && !proxy()
    }

    /// The evidence, if any, that the claims of two observed MACs contradict each other.
    fn between(&self, ip: IpAddr, contest: &Contest, one: &Side, other: &Side) -> Option<Grounds> {
        if self.are_one(one.home, other.home) {
            return None;
        }
        let refused = |winner: &Side, loser: &Side| {
            let answers = [winner.taken, winner.replied, winner.requested];
            let near = |answer: BootNs, lost: BootNs| answer.plus(ONE_ANSWER) >= lost;
            // The loser announced a takeover too early for the entry to accept it, was accepted later, and the winner
            // is silent.
            let moved = |lost: BootNs| {
                let taken = loser.taken.filter(|taken| *taken > lost);
                loser.announced.is_some() && taken.is_some_and(|taken| winner.last <= taken)
            };
            loser.lost.is_some_and(|lost| {
                answers.into_iter().flatten().any(|at| near(at, lost)) && !moved(lost)
            })
        };
        // An IPv6 answer that may be rejected comes from a proxy or from an anycast address (RFC 4861, 7.2.4).
        if ip.is_ipv4() && (refused(one, other) || refused(other, one)) {
            return Some(Grounds::Lost);
        }
        let at_once = |a: BootNs, b: BootNs| a.0.abs_diff(b.0) <= AT_ONCE;
        if one.replied.zip(other.replied).is_some_and(|(one, other)| at_once(one, other)) {
            return Some(Grounds::BothAnswered);
        }
        in_turns(contest, one.mac, other.mac).then_some(Grounds::InTurns)
    }

    /// Holders of the IP on this node that share the link where a claim was observed, each with the MAC that claims the
    /// IP too.
    fn held<'a>(&self, key: &Key, sides: &[&'a Side], now: BootNs) -> Vec<(Party, &'a Side)> {
        let (ip, netns, ifindex) = *key;
        let mut found = Vec::new();
        let here = self.segment(netns, ifindex);
        for (id, on, mac) in self.devices_with(ip) {
            let (Some(mac), Some(entry)) = (mac, self.netns(id)) else { continue };
            let there = Endpoint { netns: id, ifindex: on };
            if entry.dying.is_some() || !self.meets(here, key, there) {
                continue;
            }
            let own = entry.on_device(on, ip).next();
            let Some((_, address)) = own.filter(|(_, known)| known.is_used()) else { continue };
            let home = Home { netns: id, ifindex: on, holds: true };
            let claims = sides.iter().filter(|side| {
                let handed_over = side.only_announced()
                    && side.announced.is_some_and(|at| at.plus(HANDED_OVER) > now);
                // Its MAC may just have changed: netlink reports that a moment later.
                side.mac != mac
                    && now >= side.first.plus(OUT_OF_STEP)
                    && side.last >= address.since.plus(OUT_OF_STEP)
                    && !handed_over
                    && !self.are_one(Some(home), side.home)
            });
            for side in claims {
                let heard = None;
                found.push((Party { mac: Some(mac), home: Some(home), heard }, *side));
            }
        }
        found
    }

    /// The conflict of an address that failed duplicate address detection.
    fn failed(&self, key: &Key) -> Option<Conflict> {
        let (ip, netns, ifindex) = *key;
        if !self.has_failed(key) {
            return None;
        }
        let entry = self.netns(netns).filter(|entry| entry.dying.is_none())?;
        let own = entry.link(ifindex)?.mac;
        let (_, address) = entry.on_device(ifindex, ip).next()?;
        let heard =
            self.conflict.claims.contest(key).into_iter().flat_map(|contest| &contest.sides);
        let offenders: Vec<&Side> = heard.filter(|side| side.dad.is_some()).collect();
        // Its own request came back: a loop on the link, or a bond.
        if !offenders.is_empty() && offenders.iter().all(|side| Some(side.mac) == own) {
            return None;
        }
        let home = Some(Home { netns, ifindex, holds: true });
        let mut parties = vec![Party { mac: own, home, heard: None }];
        for side in offenders.iter().filter(|side| Some(side.mac) != own) {
            add(&mut parties, Party::heard(side));
        }
        let here = self.segment(netns, ifindex);
        for (id, on, mac) in self.devices_with(ip) {
            if id != netns && mac.is_some() && self.segment(id, on) == here {
                let home = Some(Home { netns: id, ifindex: on, holds: true });
                add(&mut parties, Party { mac, home, heard: None });
            }
        }
        if parties.len() == 1 {
            parties.push(Party { mac: None, home: None, heard: None });
        }
        parties.sort_by_key(|party| party.mac);
        let (since, heard) = (address.since, address.touched);
        let grounds = Grounds::Dad;
        Some(Conflict { ip, netns, ifindex, parties, grounds, since, heard, stands: true })
    }

    /// Whether two MACs belong to one netns, or to a device and one stacked on it.
    fn are_one(&self, one: Option<Home>, other: Option<Home>) -> bool {
        let (Some(one), Some(other)) = (one, other) else { return false };
        one.netns == other.netns || self.is_made_of(one, other) || self.is_made_of(other, one)
    }

    fn is_made_of(&self, child: Home, parent: Home) -> bool {
        let entry = self.netns(child.netns);
        let Some((entry, link)) = entry.and_then(|e| Some((e, e.link(child.ifindex)?))) else {
            return false;
        };
        is_upper(link)
            && link.peer == Some(parent.ifindex)
            && self.far_netns(entry, link).is_none_or(|netns| netns == parent.netns)
    }

    /// The netns of a device's other end, or of its parent, if known.
    pub(in crate::map) fn far_netns(&self, entry: &Netns, link: &Link) -> Option<NetnsId> {
        let Some(nsid) = link.peer_nsid else { return Some(entry.id) };
        if let Some(known) = self.peer_netns(entry.id, nsid) {
            return Some(known);
        }
        // Interface indexes are small numbers that repeat in every netns: the host's end tells which netns it leads to.
        let host = self.netns(self.host()?)?;
        let end = host.link(link.peer?)?;
        let back = end.peer == Some(link.ifindex) && end.peer_nsid.is_some();
        (back && end.peer_nsid == entry.names.nsid).then_some(host.id)
    }

    /// Whether a device observes packets from the link of `there`. On a bridge with VLAN filtering, two devices of one
    /// bridge may be separated.
    fn meets(&self, here: (NetnsId, u32), (_, netns, ifindex): &Key, there: Endpoint) -> bool {
        let link = self.netns(here.0).and_then(|entry| entry.link(here.1));
        let detail = link.and_then(|link| link.detail.as_ref());
        let apart = matches!(detail, Some(LinkDetail::Bridge { vlan_filtering: true }));
        let heard = || {
            let reach = self.reach(Endpoint { netns: *netns, ifindex: *ifindex });
            reach.endpoints.iter().any(|(other, _)| *other == there)
        };
        self.segment(there.netns, there.ifindex) == here && (!apart || heard())
    }

    /// The device that represents a link: the bridge, the parent of a macvlan, or one end of a lone pair.
    #[must_use]
    pub fn segment(&self, netns: NetnsId, ifindex: u32) -> (NetnsId, u32) {
        let mut at = (netns, ifindex);
        for _ in 0..DEPTH {
            let Some(entry) = self.netns(at.0) else { return at };
            let Some(link) = entry.link(at.1) else { return at };
            let master = link.master.and_then(|master| entry.link(master));
            if let Some(master) =
                master.filter(|master| is_kind(master, &["bridge", "bond", "team"]))
            {
                at = (at.0, master.ifindex);
                continue;
            }
            let Some(other) = link.peer.filter(|_| is_upper(link) || link.is_pair()) else {
                return at;
            };
            let Some(there) = self.far_netns(entry, link) else { return at };
            if is_upper(link) {
                at = (there, other);
                continue;
            }
            let end = self.netns(there).and_then(|entry| entry.link(other));
            if end.is_some_and(|end| end.master.is_some()) {
                at = (there, other);
                continue;
            }
            return at.min((there, other));
        }
        at
    }
}

impl Party {
    fn heard(side: &Side) -> Self {
        Self { mac: Some(side.mac), home: side.home, heard: Some(side.clone()) }
    }
}

/// Adds a party, or merges it with the one that has the same MAC.
fn add(parties: &mut Vec<Party>, party: Party) {
    match parties.iter_mut().find(|known| known.mac == party.mac) {
        Some(known) => known.heard = known.heard.take().or(party.heard),
        None => parties.push(party),
    }
}

fn is_kind(link: &Link, kinds: &[&str]) -> bool {
    link.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
}

fn is_upper(link: &Link) -> bool {
    is_kind(link, &["macvlan", "macvtap", "ipvlan", "ipvtap"])
}

/// Whether a MAC is a virtual router's: those of VRRP (RFC 9568) and HSRP (RFC 2281 and version 2) move with the active
/// role; with GLBP each router has one, and each client gets one of them.
fn is_virtual(mac: Mac) -> bool {
    matches!(
        mac.0,
        [0, 0, 0x5e, 0, 1 | 2, _]
            | [0, 0, 0x0c, 7, 0xac, _]
            | [0, 0, 0x0c, 0x9f, 0xf0..=0xff, _]
            | [0, 5, 0x73, 0xa0, 0..=0x0f, _]
            | [0, 7, 0xb4, 0..=3, _, _]
    )
}

/// Whether one MAC, the other and the first one again were observed within a minute. An announcement is a takeover:
/// activity of the other MAC within a second after it is not a turn, and an announcement by each is a fail-over and a
/// fail-back.
fn in_turns(contest: &Contest, one: Mac, other: Mac) -> bool {
    let mut turns: Vec<Turn> = Vec::new();
    for turn in contest.turns.iter().filter(|turn| turn.mac == one || turn.mac == other) {
        match turns.last_mut() {
            Some(last) if last.mac == turn.mac => last.until = turn.until,
            Some(last) if last.announced && turn.until.since(last.from) < SEC => {}
            _ => turns.push(*turn),
        }
    }
    turns.windows(3).any(|three| {
        let [first, between, again] = three else { return false };
        let back = between.announced && again.announced;
        again.from.since(first.until) < FORGOTTEN && !back
    })
}
