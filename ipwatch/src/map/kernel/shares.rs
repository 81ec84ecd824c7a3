//! How many addresses are kept, and of which netns; dropped addresses are read again later. `fittings` does the same
//! for everything else in a netns.
//!
//! Whoever can make one netns can make many and fill each, and no container may use up what others need. So the room is
//! shared by tenants (see there): when it is full, one that has few addresses takes room from the one that has most, and of
//! one tenant's netns the one that has few. What is not kept is unknown, not gone: it is counted, and the netns is read
//! anew once there is room. The host's netns is one, and root fills it: its addresses have room of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::fittings::Fitting;
use super::tenants::{Room, Tenant, TenantKind};
use crate::fact::{BootNs, NetnsRef};
use crate::map::{AddressId, Kinds, Netns, NetnsId, NodeMap};

/// Maximum number of addresses of one netns. A node with IPVS has one for each service.
const MAX_ADDRESSES: usize = 16_384;
/// Maximum number of addresses of all netns together, except the host's.
const MAX_IN_ALL: usize = 65_536;
/// Fraction of a netns's addresses that is dropped at one time: finding the newest takes a scan of all.
const CUT: usize = 16;
/// Fraction of the budget that must be free before dropped addresses are read again.
const ROOM: usize = 8;
/// How often they are read again, and how many netns at a time.
const REREAD: u64 = 30_000_000_000;
const AT_A_TIME: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Bounds {
    of_one: usize,
    in_all: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { of_one: MAX_ADDRESSES, in_all: MAX_IN_ALL }
    }
}

#[derive(Debug, Default)]
pub(in crate::map) struct Shares {
    bounds: Bounds,
    /// How many are kept of each netns but the host's.
    room: Room,
    /// Netns of which something is not kept, be it addresses or fittings, or was not reported.
    short: BTreeSet<NetnsId>,
    /// When they were last read again, and the last netns of that turn.
    reread: (BootNs, Option<NetnsId>),
}

/// What of a netns is not kept, roughly.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::map) struct Unkept {
    addresses: u64,
    fittings: [u64; Fitting::KINDS.len()],
    /// The same of the dump that is being applied.
    in_dump: u64,
    fittings_in_dump: [u64; Fitting::KINDS.len()],
}

impl Shares {
    /// Netns of which something is not kept, or was not reported.
    pub(super) fn short_ones(&self) -> impl Iterator<Item = NetnsId> {
        self.short.iter().copied()
    }
}

impl Unkept {
    /// The number of addresses, and of each of [`Fitting::KINDS`].
    pub(super) fn counts(&self) -> (u64, [u64; Fitting::KINDS.len()]) {
        (self.addresses, self.fittings)
    }

    /// Whatever it is.
    pub(super) fn all(&self) -> u64 {
        self.addresses + self.fittings.iter().sum::<u64>()
    }

    /// What an entry lacked that turned out to be the same netns.
    pub(super) fn absorb(&mut self, other: Self) {
        self.addresses += other.addresses;
        self.fittings.iter_mut().zip(other.fittings).for_each(|(own, others)| *own += others);
    }

    pub(super) fn add(&mut self, one: Fitting, count: u64) {
        for counts in [&mut self.fittings, &mut self.fittings_in_dump] {
            let count_of = &mut counts[one.kind()];
            *count_of = count_of.saturating_add(count);
        }
    }

    /// A dump of its fittings has begun, or has told all of them.
    pub(super) fn dump_of_fittings(&mut self, ended: bool) {
        let found = std::mem::take(&mut self.fittings_in_dump);
        if ended {
            self.fittings = found;
        }
    }
}

impl Netns {
    /// Approximate number of its addresses that are not kept: one that is reported twice is counted twice until the
    /// next dump. Which IPs they have is unknown.
    #[must_use]
    pub fn unkept(&self) -> u64 {
        self.unkept.addresses
    }
}

impl NodeMap {
    /// Sets smaller bounds, so that a test needs fewer addresses.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn bound_addresses(&mut self, of_one: usize, in_all: usize) {
        self.kernel.shares.bounds = Bounds { of_one, in_all };
    }

    /// Checks the bounds, and the sizes against the addresses.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn assert_addresses_count(&self) {
        let own = self.kernel.netns.values().filter(|entry| !entry.host);
        let sizes = own.filter(|entry| !entry.addresses.is_empty());
        let sizes = sizes.map(|entry| (entry.id, (entry.tenant(), entry.addresses.len())));
        let Shares { bounds, room, short, .. } = &self.kernel.shares;
        assert_eq!(sizes.collect::<BTreeMap<_, _>>(), room.sizes());
        assert!(room.kept() <= bounds.in_all);
        let mut hosts = self.kernel.netns.values().filter(|entry| entry.host);
        assert!(hosts.all(|entry| entry.addresses.len() <= bounds.of_one));
        assert!(short.iter().all(|id| self.kernel.netns.contains_key(id)));
    }

    /// Ensures that one more address of a netns can be kept, at the cost of a netns that has more.
    pub(in crate::map) fn make_room(&mut self, id: NetnsId, at: BootNs) -> bool {
        let Some(entry) = self.kernel.netns.get(&id) else { return false };
        let (own, host) = (entry.addresses.len(), entry.host);
        if own >= self.kernel.shares.bounds.of_one {
            return false;
        }
        let shares = &self.kernel.shares;
        if host || shares.room.kept() < shares.bounds.in_all {
            return true;
        }
        // Among equals nobody takes anything.
        let tenant = entry.tenant();
        let Some(giver) = self.kernel.shares.room.giver(tenant, own, 1) else { return false };
        self.cut(giver.id, (giver.has / CUT).clamp(1, giver.at_most), at);
        true
    }

    /// Drops `count` addresses of a netns: the newest, because a netns was made for its first ones.
    fn cut(&mut self, id: NetnsId, count: usize, at: BootNs) {
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let mut all: Vec<(BootNs, AddressId)> =
            entry.addresses().map(|(key, known)| (known.since, *key)).collect();
        let keep = all.len().saturating_sub(count);
        if keep > 0 && keep < all.len() {
            all.select_nth_unstable(keep);
        }
        self.mark_in(id, Kinds::ADDRESSES);
        for (_, key) in all.split_off(keep) {
            self.end_tenure(id, &key, at, "not-kept");
            self.take_out(id, &key);
            self.not_kept(id);
        }
    }

    /// Counts an address that is not kept.
    pub(in crate::map) fn not_kept(&mut self, id: NetnsId) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        entry.unkept.addresses += 1;
        entry.unkept.in_dump += 1;
        self.kernel.shares.short.insert(id);
    }

    /// A dump of the addresses has begun, or has been applied completely.
    pub(in crate::map) fn unkept_of_dump(&mut self, id: NetnsId, ended: bool) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let found = std::mem::take(&mut entry.unkept.in_dump);
        if !ended {
            return;
        }
        entry.unkept.addresses = found;
        self.mark_short(id);
    }

    /// Updates whether something of the netns is not kept, or was not reported.
    pub(in crate::map) fn mark_short(&mut self, id: NetnsId) {
        let entry = self.kernel.netns.get(&id);
        if entry.is_some_and(|entry| entry.unkept.all() > 0 || entry.is_incomplete()) {
            self.kernel.shares.short.insert(id);
        } else {
            self.kernel.shares.short.remove(&id);
        }
    }

    /// Updates the number of addresses of a netns after a change.
    pub(in crate::map) fn recount(&mut self, id: NetnsId) {
        self.mark_short(id);
        let entry = self.kernel.netns.get(&id).filter(|entry| !entry.host);
        let counts = entry.map(|entry| (entry.tenant(), entry.addresses.len()));
        let (tenant, count) = counts.unwrap_or((Tenant::Root, 0));
        self.kernel.shares.room.set(id, tenant, count);
        self.recensus(id);
    }

    /// Netns with addresses that are not known: they are not kept, or events of them were not reported. In one that is in
    /// teardown no address is new.
    pub fn short(&self) -> impl Iterator<Item = &Netns> {
        let short = self.kernel.shares.short.iter().filter_map(|id| self.kernel.netns.get(id));
        short.filter(|entry| entry.unkept() > 0 || (entry.is_incomplete() && entry.dying.is_none()))
    }

    /// Whoever owns its user namespace: where its room is from.
    pub(in crate::map) fn set_netns_user(
        &mut self,
        netns: &NetnsRef,
        user: (u32, bool),
        at: BootNs,
    ) {
        let Some(id) = self.resolve(netns, at).or_else(|| self.user_of_left_out(netns, user, at))
        else {
            return;
        };
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        if entry.user.replace(user) != Some(user) {
            // Whether a reservation may be its own depends on it.
            entry.addresses.keys().for_each(|key| self.ipam.touch(key.local));
            self.conflict.rewired();
            self.tenant_changed(id);
        }
    }

    /// A netns may count to another tenant than before.
    pub(in crate::map) fn tenant_changed(&mut self, id: NetnsId) {
        self.recount(id);
        self.refit(id);
        self.recrowd(id);
        if let Some(entry) = self.kernel.netns.get(&id) {
            self.conflict.counts_to(id, entry.counts_to());
            self.scheduler.count_to(entry.tenant(), entry.tasks());
        }
    }

    /// A tenant, for people.
    pub(in crate::map) fn said_of_tenant(&self, tenant: Tenant) -> String {
        let Tenant::Pod(id) = tenant else { return TenantKind::from(tenant).to_string() };
        let inode = self.kernel.netns.get(&id).and_then(|entry| entry.names.inode);
        inode.map_or_else(|| "a pod".to_owned(), |inode| format!("net:[{inode}]"))
    }

    /// What is not kept, by tenant, for people; those that lack most come first.
    fn said_of_tenants(&self) -> Option<String> {
        const LISTED: usize = 3;
        let mut tenants: BTreeMap<Tenant, (Unkept, usize)> = BTreeMap::new();
        let short = self.kernel.shares.short.iter().filter_map(|id| self.kernel.netns.get(id));
        for entry in short.filter(|entry| !entry.host && entry.unkept.all() > 0) {
            let (unkept, netns) = tenants.entry(entry.tenant()).or_default();
            unkept.absorb(entry.unkept);
            *netns += 1;
        }
        let mut tenants: Vec<_> = tenants.into_iter().collect();
        tenants.sort_by_key(|(_, (unkept, _))| std::cmp::Reverse(unkept.all()));
        let of = |(tenant, (unkept, netns)): &(Tenant, (Unkept, usize))| {
            let mut said = self.said_of_tenant(*tenant);
            let kinds = Fitting::KINDS.into_iter().zip(unkept.fittings);
            let all = [("addresses", unkept.addresses)].into_iter().chain(kinds);
            let mut apart = ": ";
            for (kind, count) in all.filter(|(_, count)| *count > 0) {
                let _ = write!(said, "{apart}{count} {kind}");
                apart = ", ";
            }
            let _ = write!(said, " not kept, of {netns} network namespaces");
            said
        };
        let listed: Vec<String> = tenants.iter().take(LISTED).map(of).collect();
        (!listed.is_empty()).then(|| format!("; {}", listed.join("; ")))
    }

    /// The same for people, after what else is beyond the bounds; those that lack most come first.
    #[must_use]
    pub fn said_of_short(&self) -> Option<String> {
        const LISTED: usize = 3;
        let mut all: Vec<&Netns> = self.short().filter(|entry| entry.unkept() > 0).collect();
        all.sort_by_key(|netns| std::cmp::Reverse(netns.unkept()));
        let of = |netns: &&Netns| {
            let name = match (netns.host, netns.names.inode) {
                (true, _) => "the host's".to_owned(),
                (false, Some(inode)) => format!("net:[{inode}]"),
                (false, None) => netns.identity.to_string(),
            };
            format!("{name} {} of more than {}", netns.addresses.len(), netns.addresses.len())
        };
        let listed: Vec<String> = all.iter().take(LISTED).map(of).collect();
        let more = all.len().checked_sub(LISTED + 1).map(|more| format!(" and {} more", more + 1));
        let by_netns = (!all.is_empty()).then(|| {
            format!("; addresses kept by netns: {}{}", listed.join(", "), more.unwrap_or_default())
        });
        let said = [by_netns, self.said_of_tenants()];
        said.into_iter().flatten().reduce(|netns, tenants| netns + &tenants)
    }

    /// Reads dropped items again if there is room. Returns when to call this again.
    pub(in crate::map) fn reread_short(&mut self, now: BootNs) -> Option<BootNs> {
        if self.kernel.shares.short.is_empty() {
            return None;
        }
        let (last, from) = self.kernel.shares.reread;
        let due = last.plus(REREAD);
        if now < due {
            return Some(due);
        }
        let short = &self.kernel.shares.short;
        let after = short.iter().filter(|id| Some(**id) > from);
        let next: Vec<NetnsId> =
            after.chain(short).copied().take(AT_A_TIME.min(short.len())).collect();
        self.kernel.shares.reread = (now, next.last().copied());
        let Bounds { of_one, in_all } = self.kernel.shares.bounds;
        let room = self.kernel.shares.room.kept() < in_all - in_all / ROOM
            && self.kernel.fittings.has_room();
        for id in next {
            let Some(entry) = self.kernel.netns.get(&id).filter(|entry| entry.dying.is_none())
            else {
                continue;
            };
            // One whose events were lost is read at its own pace.
            let fits = entry.unkept.all() > 0 && entry.addresses.len() < of_one;
            if fits && (room || entry.host) {
                self.scheduler.doubted(id, entry.host, now);
            }
        }
        Some(now.plus(REREAD))
    }
}
