//! Which MACs were seen to claim an IP on a link, and when. Whether that is a conflict is decided in
//! `neighbour_conflict`.
//!
//! Claims are updates of the kernel's neighbour entries (`neighbours`) and ARP packets that were captured. For each IP
//! on each device the last few MACs are kept; `evidence` decides for how many IPs, and whose are forgotten first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use crate::fact::{BootNs, Claim, ClaimKind, Mac, Neighbour, NetnsRef};

use super::evidence::{Admission, Evidence};
use super::neighbour_conflict::{Conflict, PROXY};
use super::rejected::Rejected;
use crate::map::kernel::{Tenant, heard, is_routable};
use crate::map::queue::Queue;
use crate::map::{Kinds, Netns, NetnsId, NodeMap, Table};

const SEC: u64 = 1_000_000_000;
/// A MAC that has not been seen for this long no longer counts as a claimant.
pub(in crate::map) const FORGOTTEN: u64 = 60 * SEC;
/// An announcement of an IP that another MAC has is no conflict if the other MAC gives it up within this time.
pub(in crate::map) const HANDED_OVER: u64 = 2 * SEC;
/// Different sources report an address, its device and a packet, with up to this much delay between them.
pub(in crate::map) const OUT_OF_STEP: u64 = SEC / 10;
/// Minimum interval between two lookups of the device that has a MAC.
const LOOK_AGAIN: u64 = SEC / 2;
/// A packet and the entry that it changes are reported separately, within this time.
const SAME_PACKET: u64 = SEC;
/// An entry set manually is reported again by netlink within this time.
const SAME_HAND: u64 = 2 * SEC;
/// Maximum number of MACs for one IP on one device.
const MAX_SIDES: usize = 4;
/// Maximum number of turns that are kept.
const MAX_TURNS: usize = 8;
/// If more than this many IPs are contested, a change that may concern all of them is settled at most once every
/// [`LOOK_AGAIN`]: an untrusted user can claim thousands of IPs, and create links that come and go.
const MANY: usize = 256;
/// Maximum number of IPs for each netns, on all of its devices, and for all netns but the host's.
const MAX_PER_NETNS: usize = 4096;
const MAX_CLAIMS: usize = 12_288;

/// An IP on a device of a netns.
pub(in crate::map) type Key = (IpAddr, NetnsId, u32);

/// How a claim was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::map) enum How {
    /// In a packet of its own.
    Packet(ClaimKind),
    /// As an update that the neighbour entry accepted.
    Taken,
    /// As an update that the neighbour entry rejected.
    Lost,
    /// As the answer to duplicate address detection (IPv6).
    Dad,
}

/// One MAC that claims an IP, and when it last did so in each way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    pub mac: Mac,
    /// When it was first observed.
    pub first: BootNs,
    /// When it was last observed.
    pub last: BootNs,
    /// By an announcement (gratuitous ARP).
    pub announced: Option<BootNs>,
    /// By a reply.
    pub replied: Option<BootNs>,
    /// By a request that it sent.
    pub requested: Option<BootNs>,
    /// By an update that the neighbour entry accepted or that confirmed the entry.
    pub taken: Option<BootNs>,
    /// By an update that the neighbour entry rejected.
    pub lost: Option<BootNs>,
    /// By its answer to duplicate address detection.
    pub dad: Option<BootNs>,
    /// The device of this node that has the MAC, if any.
    pub home: Option<Home>,
    /// When an entry with this MAC was set manually.
    hand: Option<BootNs>,
    /// Its device, or the IP on it, was removed from this node.
    left: bool,
    /// When its home was last looked up.
    looked: Option<BootNs>,
}

/// A device of this node that has the MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    pub netns: NetnsId,
    /// Index of the device in `netns`.
    pub ifindex: u32,
    /// Whether the netns has the claimed IP.
    pub holds: bool,
}

/// A period in which one MAC was the last to be observed.
#[derive(Debug, Clone, Copy)]
pub(in crate::map) struct Turn {
    pub(super) mac: Mac,
    pub(super) from: BootNs,
    pub(super) until: BootNs,
    /// Whether it began with an announcement.
    pub(super) announced: bool,
}

/// The claims to one IP on one device.
#[derive(Debug, Default)]
pub(in crate::map) struct Contest {
    pub(super) sides: Vec<Side>,
    /// Recorded only if there are several MACs.
    pub(super) turns: VecDeque<Turn>,
    touched: BootNs,
}

#[derive(Debug, Default)]
pub(in crate::map) struct Claims {
    entries: BTreeMap<Key, Contest>,
    kept: Evidence<Key, MAX_PER_NETNS, MAX_CLAIMS>,
    /// Entries that may be in conflict: several MACs, or a MAC other than that of the IP's holder on this node.
    contested: BTreeSet<Key>,
    /// Which contested entries must be settled again.
    unsettled: Unsettled,
    /// When a contested entry must be settled again because of the clock alone.
    due: Queue<Key>,
    /// The conflicts, as of the last settling.
    found: BTreeMap<Key, Conflict>,
    /// A conflict was removed since the last settling.
    lost: bool,
    /// Addresses that failed duplicate address detection.
    pub(super) dad: Rejected,
    /// Number of IPs of a device for which a MAC only ever replied: kept because the check for proxies is frequent.
    answering: Table<(NetnsId, u32, Mac), usize>,
    /// Whether a probe reports neighbour updates.
    by_probe: bool,
}

/// Which claims have changed since they were last settled.
#[derive(Debug, Default)]
struct Unsettled {
    keys: BTreeSet<Key>,
    /// Everything observed on these devices.
    devices: BTreeSet<(NetnsId, u32)>,
    all: bool,
    /// When all of more than [`MANY`] contested entries were last settled.
    all_at: BootNs,
    /// When to settle all of them again.
    later: Option<BootNs>,
}

impl Unsettled {
    fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.devices.is_empty() && !self.all
    }
}

impl Side {
    fn new(mac: Mac, at: BootNs) -> Self {
        Self {
            mac,
            first: at,
            last: at,
            announced: None,
            replied: None,
            requested: None,
            taken: None,
            lost: None,
            dad: None,
            home: None,
            hand: None,
            left: false,
            looked: None,
        }
    }

    fn heard(&mut self, how: How, at: BootNs) {
        let when = match how {
            How::Packet(ClaimKind::Announcement) => &mut self.announced,
            How::Packet(ClaimKind::Reply) => &mut self.replied,
            How::Packet(ClaimKind::Request) => &mut self.requested,
            How::Taken => &mut self.taken,
            How::Lost => &mut self.lost,
            How::Dad => &mut self.dad,
        };
        *when = (*when).max(Some(at));
        self.last = self.last.max(at);
        self.left = false;
    }

    /// Whether it requests or announces the IP itself, which a proxy does not do.
    pub(in crate::map) fn speaks_for_itself(&self) -> bool {
        self.requested.is_some() || self.announced.is_some()
    }

    /// Whether it was observed in a packet recently, and may still be present.
    pub(in crate::map) fn is_live(&self, now: BootNs) -> bool {
        !self.left && self.hand.is_none() && now.since(self.last) < FORGOTTEN
    }

    /// When the clock alone may change what the claim means.
    fn moments(&self, now: BootNs) -> impl Iterator<Item = BootNs> {
        let (last, first) = (self.last, self.first);
        let looked = self.looked.filter(|at| self.home.is_none() && now > *at);
        let looked = looked.map(|at| at.plus(LOOK_AGAIN));
        let announced = self.announced.map(|at| at.plus(HANDED_OVER));
        [last.plus(FORGOTTEN), first.plus(OUT_OF_STEP)].into_iter().chain(announced).chain(looked)
    }

    /// Whether it announced the IP and did nothing else that counts as use.
    pub(in crate::map) fn only_announced(&self) -> bool {
        self.announced.is_some_and(|at| {
            let apart =
                |other: &Option<BootNs>| other.is_some_and(|o| o.0.abs_diff(at.0) > SAME_PACKET);
            self.replied.is_none() && self.requested.is_none() && !apart(&self.taken)
        })
    }
}

impl Contest {
    /// MACs that only ever replied.
    fn answering(&self) -> Vec<Mac> {
        let answer = self.sides.iter().filter(|side| !side.speaks_for_itself());
        answer.map(|side| side.mac).collect()
    }

    fn hear(&mut self, mac: Mac, how: How, at: BootNs) {
        let place = self.sides.iter().position(|side| side.mac == mac).unwrap_or_else(|| {
            if self.sides.len() >= MAX_SIDES {
                let oldest = self.sides.iter().enumerate().min_by_key(|(_, side)| side.last);
                if let Some(oldest) = oldest.map(|(place, _)| place) {
                    self.sides.remove(oldest);
                }
            }
            self.sides.push(Side::new(mac, at));
            self.sides.len() - 1
        });
        let side = &mut self.sides[place];
        if let Some(hand) = side.hand {
            if how == How::Taken && at.since(hand) < SAME_HAND {
                return;
            }
            side.hand = None;
        }
        side.heard(how, at);
        if self.sides.len() > 1 {
            self.take_turn(mac, how, at);
        }
    }

    fn take_turn(&mut self, mac: Mac, how: How, at: BootNs) {
        let announced = how == How::Packet(ClaimKind::Announcement);
        if self.turns.is_empty()
            && let Some(first) =
                self.sides.iter().find(|side| side.mac != mac && side.hand.is_none())
        {
            let announced = first.only_announced();
            let turn = Turn { mac: first.mac, from: first.first, until: first.last, announced };
            self.turns.push_back(turn);
        }
        match self.turns.back_mut() {
            Some(turn) if turn.mac == mac => {
                turn.announced |= announced && at.since(turn.from) <= SAME_PACKET;
                turn.until = turn.until.max(at);
            }
            last => {
                // Sources may report out of order; turns must be in order.
                let at = last.map_or(at, |last| at.max(last.until));
                if self.turns.len() >= MAX_TURNS {
                    self.turns.pop_front();
                }
                self.turns.push_back(Turn { mac, from: at, until: at, announced });
            }
        }
    }
}

/// The range of all keys of an IP.
fn all_of(ip: IpAddr) -> std::ops::RangeInclusive<Key> {
    (ip, NetnsId::MIN, 0)..=(ip, NetnsId::MAX, u32::MAX)
}

impl Claims {
    fn forget(&mut self, key: &Key) {
        let Some(contest) = self.entries.get(key) else { return };
        self.kept.remove(key.1, *key, contest.touched);
        self.drop_entry(key);
    }

    /// Removes an entry that is no longer among those that are kept.
    fn drop_entry(&mut self, key: &Key) {
        let Some(contest) = self.entries.remove(key) else { return };
        let (_, id, ifindex) = *key;
        self.count_answers(id, ifindex, &contest.answering(), &[]);
        self.drop_contested(key);
    }

    /// Marks a key that may be in conflict.
    fn contend(&mut self, key: Key) {
        self.contested.insert(key);
        self.unsettled.keys.insert(key);
    }

    /// Removes a key that is in no conflict.
    fn drop_contested(&mut self, key: &Key) {
        self.contested.remove(key);
        self.due.cancel(key);
        self.lost |= self.found.remove(key).is_some();
    }

    /// A device, a name or the shared IPs have changed: every contested key may have become or ceased to be a conflict.
    pub(in crate::map) fn unsettle(&mut self) {
        self.unsettled.all = true;
    }

    /// An address with this IP was removed or altered.
    pub(in crate::map) fn unsettle_ip(&mut self, ip: IpAddr) {
        if !self.contested.is_empty() {
            self.unsettled.keys.extend(self.contested.range(all_of(ip)));
        }
    }

    /// The contested keys to settle at `now`.
    fn take_unsettled(&mut self, now: BootNs) -> BTreeSet<Key> {
        let Unsettled { mut keys, devices, all, all_at, later } =
            std::mem::take(&mut self.unsettled);
        self.unsettled.all_at = all_at;
        if all || later.is_some() {
            let soonest = all_at.plus(LOOK_AGAIN);
            if self.contested.len() <= MANY || soonest <= now {
                self.unsettled.all_at = now;
                return self.contested.clone();
            }
            self.unsettled.later = Some(soonest);
        }
        for (id, ifindex) in devices {
            keys.extend(self.kept.of(id).filter(|(_, _, on)| *on == ifindex));
        }
        keys.retain(|key| self.contested.contains(key));
        keys.extend(std::iter::from_fn(|| self.due.pop(now)));
        keys
    }

    /// The conflicts, unless something has changed since the last settling.
    pub(in crate::map) fn settled(&self, now: BootNs) -> Option<impl Iterator<Item = &Conflict>> {
        self.is_settled(now).then(|| self.found.values())
    }

    /// The same of one IP.
    pub(in crate::map) fn settled_of(
        &self,
        ip: IpAddr,
        now: BootNs,
    ) -> Option<impl Iterator<Item = &Conflict>> {
        let of_ip = || self.found.range(all_of(ip)).map(|(_, found)| found);
        self.is_settled(now).then(of_ip)
    }

    fn is_settled(&self, now: BootNs) -> bool {
        self.unsettled.is_empty() && self.due.next().is_none_or(|due| due > now)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn assert_evidence_is_bounded(&self, exists: impl Fn(NetnsId) -> bool) {
        self.kept.assert_is_bounded();
        self.dad.assert_is_bounded(exists);
    }

    pub(in crate::map) fn forget_device(&mut self, id: NetnsId, ifindex: u32) {
        let on_it = self.kept.of(id).filter(|(_, _, on)| *on == ifindex);
        let keys: Vec<Key> = on_it.copied().collect();
        keys.iter().for_each(|key| self.forget(key));
        self.dad.forget_device(id, ifindex);
    }

    pub(in crate::map) fn forget_netns(&mut self, id: NetnsId) {
        let keys: Vec<Key> = self.kept.of(id).copied().collect();
        keys.iter().for_each(|key| self.forget(key));
        self.kept.forget_netns(id);
        self.dad.forget_netns(id);
    }

    /// An entry was set manually: that is no claim, unless its MAC is observed later.
    pub(in crate::map) fn set_by_hand(
        &mut self,
        id: NetnsId,
        ifindex: u32,
        ip: IpAddr,
        mac: Mac,
        at: BootNs,
    ) {
        if let Some(contest) = self.entries.get_mut(&(ip, id, ifindex))
            && let Some(side) = contest.sides.iter_mut().find(|side| side.mac == mac)
            && at.since(side.last) < SAME_HAND
        {
            side.hand = Some(at);
            self.unsettle_key((ip, id, ifindex));
        }
    }

    /// The set of endpoints with this IP has changed.
    pub(in crate::map) fn touch(&mut self, ip: IpAddr) {
        if self.entries.is_empty() {
            return;
        }
        for (key, _) in self.entries.range(all_of(ip)) {
            self.contested.insert(*key);
            self.unsettled.keys.insert(*key);
        }
    }

    pub(in crate::map) fn contest(&self, key: &Key) -> Option<&Contest> {
        self.entries.get(key)
    }

    /// The observations about a key have changed.
    fn unsettle_key(&mut self, key: Key) {
        if self.contested.contains(&key) {
            self.unsettled.keys.insert(key);
        }
    }

    /// Every contested key.
    pub(in crate::map) fn contested(&self) -> impl Iterator<Item = (&Key, &Contest)> {
        self.contested.iter().filter_map(|key| Some((key, self.entries.get(key)?)))
    }

    /// The contested keys of one IP.
    pub(in crate::map) fn contested_of(&self, ip: IpAddr) -> impl Iterator<Item = &Key> {
        self.contested.range(all_of(ip))
    }

    /// Maximum number of conflicts that there can be, but for those of addresses that were refused.
    pub(in crate::map) fn count_contested(&self) -> usize {
        self.contested.len()
    }

    pub(in crate::map) fn dad(&self) -> impl Iterator<Item = &Key> {
        self.dad.iter()
    }

    /// Number of IPs for which a MAC on a device only replies.
    pub(in crate::map) fn answered_by(&self, id: NetnsId, ifindex: u32, mac: Mac) -> usize {
        self.answering.get(&(id, ifindex, mac)).copied().unwrap_or_default()
    }

    /// Updates the counts when the MACs that only replied for an IP change from `before` to `now`.
    fn count_answers(&mut self, id: NetnsId, ifindex: u32, before: &[Mac], now: &[Mac]) {
        if before == now {
            return;
        }
        for mac in now {
            let count = self.answering.entry((id, ifindex, *mac)).or_default();
            *count += 1;
            if *count == PROXY {
                self.unsettled.devices.insert((id, ifindex));
            }
        }
        for mac in before {
            let key = (id, ifindex, *mac);
            let Some(count) = self.answering.get_mut(&key) else { continue };
            if *count == PROXY {
                self.unsettled.devices.insert((id, ifindex));
            }
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.answering.remove(&key);
            }
        }
    }

    /// Makes room for claims to one more IP in a netns. A conflict that was found is forgotten last. Returns whether there
    /// is room.
    fn make_room(&mut self, id: NetnsId, tenant: Option<Tenant>) -> bool {
        let found = &self.found;
        match self.kept.admit(id, tenant, |key| found.contains_key(key)) {
            Admission::Fits => {}
            Admission::InsteadOf(other) => self.drop_entry(&other),
            Admission::Refused => return false,
        }
        true
    }

    /// It may have turned out whose a netns is.
    pub(in crate::map) fn counts_to(&mut self, id: NetnsId, tenant: Option<Tenant>) {
        self.kept.counts_to(id, tenant);
        self.dad.counts_to(id, tenant);
    }

    /// Number of IPs of each netns whose claims were forgotten for want of room.
    pub(in crate::map) fn forgotten(&self) -> impl Iterator<Item = (NetnsId, u64)> {
        self.kept.forgotten_by_netns()
    }
}

impl NodeMap {
    /// Records the claims that a change of a neighbour entry implies.
    pub(in crate::map) fn hear_neighbour(
        &mut self,
        id: NetnsId,
        new: &Neighbour,
        before: Option<&Neighbour>,
        at: BootNs,
        (first_hand, dumped): (bool, bool),
    ) {
        self.conflict.claims.by_probe |= first_hand;
        if let Some(mac) = new.mac.filter(|_| new.admin) {
            self.conflict.claims.set_by_hand(id, new.ifindex, new.ip, mac, at);
        }
        // If a probe reports too, netlink is late: another MAC that it reports may be older than what is known.
        let same = |before: &Neighbour| before.mac == new.mac;
        let late = self.conflict.claims.by_probe && !first_hand && !before.is_some_and(same);
        if let Some(mac) = heard(before, new, dumped).filter(|_| !late) {
            self.hear(id, new.ifindex, new.ip, mac, How::Taken, at);
        }
        if let Some(mac) = new.claimed {
            self.hear(id, new.ifindex, new.ip, mac, How::Lost, at);
        }
    }

    pub(in crate::map) fn set_claim(&mut self, netns: &NetnsRef, claim: &Claim, at: BootNs) {
        let Some(id) = self.resolve(netns, at) else { return };
        let Claim { ifindex, ip, mac, kind } = *claim;
        self.hear(id, ifindex, ip, mac, How::Packet(kind), at);
    }

    /// A MAC claims an IP on a device.
    pub(in crate::map) fn hear(
        &mut self,
        id: NetnsId,
        ifindex: u32,
        ip: IpAddr,
        mac: Mac,
        how: How,
        at: BootNs,
    ) {
        // Ignore multicast and zero MACs. (Load-balanced servers that share one MAC reply with a multicast MAC.)
        if !is_routable(ip) || mac.0[0] & 1 != 0 || mac.0 == [0; 6] {
            return;
        }
        let key = (ip, id, ifindex);
        let Some(tenant) = self.netns(id).map(Netns::counts_to) else { return };
        let claims = &mut self.conflict.claims;
        if let Some(contest) = claims.entries.get_mut(&key) {
            let before = contest.touched;
            contest.touched = before.max(at);
            claims.kept.renew(id, key, before, contest.touched);
        } else if claims.make_room(id, tenant) {
            claims.kept.add(id, tenant, key, at);
            claims.entries.insert(key, Contest { touched: at, ..Contest::default() });
        } else {
            return;
        }
        let Some(contest) = claims.entries.get_mut(&key) else { return };
        let (known, before) = (contest.sides.len(), contest.answering());
        contest.hear(mac, how, at);
        let several = contest.sides.len() > 1;
        if known != contest.sides.len() && several {
            self.kernel.neighbour_changed(id, ifindex, ip);
        }
        let now = contest.answering();
        self.conflict.claims.count_answers(id, ifindex, &before, &now);
        let holders = self.devices_with(ip);
        let own = holders.iter().find(|(_, _, own)| *own == Some(mac));
        if let Some((netns, ifindex, _)) = own
            && let Some(contest) = self.conflict.claims.entries.get_mut(&key)
            && let Some(side) = contest.sides.iter_mut().find(|side| side.mac == mac)
        {
            side.home = Some(Home { netns: *netns, ifindex: *ifindex, holds: true });
        }
        if several || own.is_none() && !holders.is_empty() || holders.len() > 1 {
            self.conflict.claims.contend(key);
        } else {
            self.conflict.claims.unsettle_key(key);
        }
    }

    /// The devices of this node with an IP, each with its netns and MAC.
    pub(in crate::map) fn devices_with(&self, ip: IpAddr) -> Vec<(NetnsId, u32, Option<Mac>)> {
        let mut found = Vec::new();
        for entry in self.with_ip(ip).filter_map(|id| self.netns(id)) {
            for (key, _) in entry.with_ip(ip) {
                let mac = entry.link(key.ifindex).and_then(|link| link.mac);
                found.push((entry.id, key.ifindex, mac));
            }
        }
        found
    }

    /// Every MAC of this node's devices, with its devices; those in the host's netns last.
    #[must_use]
    pub fn macs(&self) -> BTreeMap<Mac, Vec<(NetnsId, u32)>> {
        let mut macs: BTreeMap<Mac, Vec<(bool, NetnsId, u32)>> = BTreeMap::new();
        for entry in self.all_netns() {
            for link in entry.links().map(|known| &known.link) {
                if let Some(mac) = link.mac.filter(|mac| mac.0 != [0; 6]) {
                    macs.entry(mac).or_default().push((entry.host, entry.id, link.ifindex));
                }
            }
        }
        let places = |mut places: Vec<(bool, NetnsId, u32)>| {
            places.sort_unstable();
            places.into_iter().map(|(_, id, ifindex)| (id, ifindex)).collect()
        };
        macs.into_iter().map(|(mac, found)| (mac, places(found))).collect()
    }

    /// Settles the contested claims that changed or are due: finds the device of each MAC, decides whether there is a
    /// conflict, and drops claims that are no longer contested. Returns when the next claim is due.
    pub(in crate::map) fn settle_claims(&mut self, now: BootNs) -> Option<BootNs> {
        let keys = self.conflict.claims.take_unsettled(now);
        let mut macs = None;
        for key in keys {
            self.settle_claim(&key, now, &mut macs);
        }
        if std::mem::take(&mut self.conflict.claims.lost) {
            self.changes.mark(Kinds::NEIGHBOURS);
        }
        self.settle_rejected(now);
        let Claims { due, unsettled, dad, .. } = &self.conflict.claims;
        [due.next(), unsettled.later, dad.due()].into_iter().flatten().min()
    }

    fn settle_claim(
        &mut self,
        key: &Key,
        now: BootNs,
        macs: &mut Option<BTreeMap<Mac, Vec<(NetnsId, u32)>>>,
    ) {
        let Some(contest) = self.conflict.claims.entries.get(key) else { return };
        let sides: Vec<Side> =
            contest.sides.iter().map(|side| self.at_home(side, key.0, now, macs)).collect();
        let live = || sides.iter().filter(|side| side.is_live(now));
        let holders = self.devices_with(key.0);
        let foreign = live()
            .any(|side| holders.iter().any(|(_, _, mac)| mac.is_some_and(|mac| mac != side.mac)));
        let due = live().flat_map(|side| side.moments(now)).filter(|at| *at > now).min();
        let contended = live().count() > 1 || foreign;
        if let Some(contest) = self.conflict.claims.entries.get_mut(key) {
            contest.sides = sides;
        }
        if !contended {
            self.conflict.claims.drop_contested(key);
            return;
        }
        let contest = self.conflict.claims.entries.get(key);
        let found = contest.and_then(|contest| self.conflict(key, contest, now));
        let Claims { due: queue, found: all, .. } = &mut self.conflict.claims;
        match due {
            Some(due) => queue.set(*key, due),
            None => queue.cancel(key),
        }
        if found.as_ref() != all.get(key) {
            match found {
                Some(found) => all.insert(*key, found),
                None => all.remove(key),
            };
            self.changes.mark(Kinds::NEIGHBOURS);
        }
    }

    /// A copy of the side with its current home on this node.
    fn at_home(
        &self,
        side: &Side,
        ip: IpAddr,
        now: BootNs,
        macs: &mut Option<BTreeMap<Mac, Vec<(NetnsId, u32)>>>,
    ) -> Side {
        let mut side = side.clone();
        if side.left || now.since(side.last) >= FORGOTTEN {
            return side;
        }
        let stands = |home: &Home| {
            let entry = self.netns(home.netns).filter(|entry| entry.dying.is_none());
            let link = entry.and_then(|entry| entry.link(home.ifindex));
            link.is_some_and(|link| link.mac == Some(side.mac))
                && entry.is_some_and(|entry| home.holds == holds(entry, ip))
        };
        if side.home.as_ref().is_some_and(stands) {
            return side;
        }
        if side.looked.is_some_and(|looked| now.since(looked) < LOOK_AGAIN) && side.home.is_none() {
            return side;
        }
        side.looked = Some(now);
        let places = macs.get_or_insert_with(|| self.macs()).get(&side.mac);
        let homes = places.into_iter().flatten().filter_map(|(netns, ifindex)| {
            let entry = self.netns(*netns).filter(|entry| entry.dying.is_none())?;
            Some(Home { netns: *netns, ifindex: *ifindex, holds: holds(entry, ip) })
        });
        let found = homes.max_by_key(|home| home.holds);
        let held = side.home.is_some_and(|home| home.holds);
        side.left =
            side.home.is_some() && found.is_none() || held && found.is_some_and(|home| !home.holds);
        side.home = found;
        side
    }

    /// Whether any address has failed duplicate address detection.
    #[must_use]
    pub fn has_failed_addresses(&self) -> bool {
        !self.conflict.claims.dad.is_empty()
    }

    /// Number of claims dropped for lack of room.
    #[must_use]
    pub fn forgotten_claims(&self) -> u64 {
        self.conflict.claims.kept.forgotten()
    }
}

fn holds(entry: &Netns, ip: IpAddr) -> bool {
    entry.with_ip(ip).any(|(_, known)| known.is_used())
}
