//! Neighbours that do not answer, and permanent entries that are not what they were.
//!
//! A failed entry is remembered a while after the kernel dropped it: the table's limit (`gc_thresh3`) is the
//! whole machine's, and a full table drops failed entries first (`neigh_forced_gc`). A full table makes no
//! entry fail by itself: without room for one there is no question (`neigh_alloc`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::fact::{BootNs, Mac, Neighbour};

use crate::map::kernel::is_silent;
use crate::map::{NetnsId, NodeMap};

/// `NUD_*`, `include/uapi/linux/neighbour.h`.
const INCOMPLETE: u16 = 0x01;
const FAILED: u16 = 0x20;
pub(in crate::map) const PERMANENT: u16 = 0x80;
pub(in crate::map) const INCOMPLETE_OR_FAILED: u16 = INCOMPLETE | FAILED;

const SEC: u64 = 1_000_000_000;
/// The kernel asks three times, a second apart (`mcast_solicit`, `retrans_time`).
const UNANSWERED: u64 = 3 * SEC;
/// A failure that nobody has tried to end for so long says nothing about now.
const STALE: u64 = 120 * SEC;
/// Two ways tell of one failure, the probe and netlink.
const TWICE_TOLD: u64 = SEC / 2;
/// A netns that goes takes its devices down first, and with them their entries.
const MISSED: u64 = 3 * SEC;
/// Failures, and permanent entries, that are remembered; the oldest go first.
const MAX: usize = 4096;
/// The same of one netns: failures of the host's, one for each pod.
const MAX_EACH: usize = 512;

type Key = (NetnsId, u32, IpAddr);

/// An entry without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    pub since: BootNs,
    /// Last time that the entry changed.
    pub changed: BootNs,
    /// How often it failed: whoever sends has the kernel try again.
    pub failures: u32,
    /// It is being asked for, since.
    pub asked: Option<BootNs>,
    /// When it last answered, if that was seen.
    pub confirmed: Option<BootNs>,
}

/// A permanent entry that is gone, or names another MAC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    pub mac: Mac,
    /// When it was first seen.
    pub since: BootNs,
    /// When it went or changed.
    pub lost: Option<BootNs>,
    /// The MAC that stands there instead.
    pub other: Option<Mac>,
}

#[derive(Debug, Default)]
pub(in crate::map) struct UnansweredEntries {
    silent: BTreeMap<Key, Unanswered>,
    fixed: BTreeMap<Key, Fixed>,
}

/// What else is known of the entry that is told of.
#[derive(Debug, Clone, Copy)]
pub(in crate::map) struct Place {
    /// When it last answered.
    pub(in crate::map) confirmed: Option<BootNs>,
    /// It is the host's.
    pub(in crate::map) host: bool,
    /// A dump tells of it: it may be as it is since long.
    pub(in crate::map) dumped: bool,
}

impl Unanswered {
    /// From when on it is no answer that is late.
    fn counts_from(&self) -> BootNs {
        match self.asked {
            Some(asked) if self.failures == 0 => asked.plus(UNANSWERED),
            _ => self.changed,
        }
    }
}

impl UnansweredEntries {
    pub(in crate::map) fn told(&mut self, id: NetnsId, new: &Neighbour, place: Place, at: BootNs) {
        let Place { confirmed, host, dumped } = place;
        let key = (id, new.ifindex, new.ip);
        if is_silent(new.state) {
            self.silent_again(key, new.state, dumped, confirmed, at);
        } else if new.mac.is_some() {
            self.silent.remove(&key);
        }
        // The host's are flannel's, one for each node, and come and go with them.
        if !host {
            self.fixed_told(key, new, at);
        }
    }

    fn silent_again(
        &mut self,
        key: Key,
        state: u16,
        dumped: bool,
        confirmed: Option<BootNs>,
        at: BootNs,
    ) {
        // Only failures are announced, one by one and without the question before (`neigh_timer_handler`):
        // the same word again is another failure, unless it comes from a dump or twice by two ways.
        let known = self.silent.get(&key);
        let (asked, failed) = (state & INCOMPLETE != 0, state & FAILED != 0);
        if known.is_some_and(|known| {
            dumped
                || failed && known.failures > 0 && at.since(known.changed) < TWICE_TOLD
                || asked && known.asked.is_some()
        }) {
            return;
        }
        if !self.silent.contains_key(&key) {
            make_room(&mut self.silent, key.0, |known| known.changed);
        }
        let known = self.silent.entry(key).or_insert(Unanswered {
            since: at,
            changed: at,
            failures: 0,
            asked: None,
            confirmed,
        });
        if at.since(known.changed) > STALE {
            (known.since, known.failures) = (at, 0);
        }
        known.changed = at;
        known.asked = asked.then_some(at);
        known.failures = known.failures.saturating_add(u32::from(failed));
    }

    fn fixed_told(&mut self, key: Key, new: &Neighbour, at: BootNs) {
        let permanent = new.mac.filter(|_| new.state & PERMANENT != 0);
        match (self.fixed.get_mut(&key), permanent) {
            (Some(known), Some(mac)) if known.mac == mac => {
                (known.lost, known.other) = (None, None);
            }
            (Some(known), other) => {
                known.lost.get_or_insert(at);
                known.other = other;
            }
            (None, Some(mac)) => {
                make_room(&mut self.fixed, key.0, |known| known.since);
                self.fixed.insert(key, Fixed { mac, since: at, lost: None, other: None });
            }
            (None, None) => {}
        }
    }

    /// The entry is gone.
    pub(in crate::map) fn gone(&mut self, id: NetnsId, ifindex: u32, ip: IpAddr, at: BootNs) {
        let key = (id, ifindex, ip);
        if self.silent.get(&key).is_some_and(|known| known.failures == 0) {
            self.silent.remove(&key);
        }
        if let Some(known) = self.fixed.get_mut(&key) {
            known.lost.get_or_insert(at);
            known.other = None;
        }
    }

    pub(in crate::map) fn forget_device(&mut self, id: NetnsId, ifindex: u32) {
        self.silent.retain(|(netns, on, _), _| (*netns, *on) != (id, ifindex));
        self.fixed.retain(|(netns, on, _), _| (*netns, *on) != (id, ifindex));
    }

    pub(in crate::map) fn forget_netns(&mut self, id: NetnsId) {
        self.silent.retain(|(netns, ..), _| *netns != id);
        self.fixed.retain(|(netns, ..), _| *netns != id);
    }

    /// Forgets what says nothing any more. Says when the next one begins to count, or to be stale.
    pub(in crate::map) fn settle(&mut self, now: BootNs) -> Option<BootNs> {
        self.silent.retain(|_, known| now.since(known.changed) < STALE);
        self.due(now)
    }

    /// When the next one begins to count, or to be stale.
    fn due(&self, now: BootNs) -> Option<BootNs> {
        let counts = self.silent.values().map(Unanswered::counts_from);
        let stale = self.silent.values().map(|known| known.changed.plus(STALE));
        let missed = self.fixed.values().filter_map(|known| Some(known.lost?.plus(MISSED)));
        counts.chain(stale).chain(missed).filter(|due| *due > now).min()
    }
}

/// Whoever scans a range from its netns must not push out what others failed to reach, nor what others had fixed.
fn make_room<T>(entries: &mut BTreeMap<Key, T>, id: NetnsId, age: impl Fn(&T) -> BootNs) {
    let none = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
    let own = entries.range((id, 0, none)..).take_while(|((netns, ..), _)| *netns == id);
    let oldest = |(key, known): (&Key, &T)| (age(known), *key);
    let oldest = if own.clone().count() >= MAX_EACH {
        own.map(oldest).min()
    } else if entries.len() >= MAX {
        entries.iter().map(oldest).min()
    } else {
        None
    };
    if let Some((_, key)) = oldest {
        entries.remove(&key);
    }
}

impl NodeMap {
    /// When the next entry without an answer, or permanent one that is gone, begins to count, or counts no more.
    #[must_use]
    pub fn next_silence(&self, now: BootNs) -> Option<BootNs> {
        self.conflict.unanswered.due(now)
    }

    /// Entries that had no answer, in any netns: its id, the device, the IP.
    pub fn silent(&self, now: BootNs) -> impl Iterator<Item = (&Key, &Unanswered)> {
        let counts = move |known: &Unanswered| {
            known.counts_from() <= now && now.since(known.changed) < STALE
        };
        self.conflict.unanswered.silent.iter().filter(move |(_, known)| counts(known))
    }

    /// Permanent entries of pods that are gone, or name another MAC.
    pub fn unfixed(&self, now: BootNs) -> impl Iterator<Item = (&Key, &Fixed)> {
        let missed = move |known: &Fixed| known.lost.is_some_and(|lost| lost.plus(MISSED) <= now);
        self.conflict.unanswered.fixed.iter().filter(move |(_, known)| missed(known))
    }
}
