//! What the IPAM stores say: reservations, and the ranges they come out of.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::fact::{BootNs, Range, Reservation, Unreadable};

use super::NodeMap;

/// A reservation and since when it is known.
#[derive(Debug, Clone)]
pub struct ReservationEntry {
    /// What the store says.
    pub reservation: Reservation,
    /// First told.
    pub first_seen: BootNs,
    /// Last told.
    pub told: BootNs,
}

#[derive(Debug, Default)]
pub(super) struct Ipam {
    reservations: BTreeMap<(String, String), ReservationEntry>,
    ranges: BTreeMap<(String, String, String), (Range, BootNs)>,
    unreadable: BTreeMap<(String, String), (Unreadable, BootNs)>,
}

impl NodeMap {
    pub(super) fn set_reservation(&mut self, reservation: &Reservation, at: BootNs) {
        let key = (reservation.store.clone(), reservation.key.clone());
        let first_seen = self.ipam.reservations.get(&key).map_or(at, |known| known.first_seen);
        let entry = ReservationEntry { reservation: reservation.clone(), first_seen, told: at };
        self.ipam.reservations.insert(key, entry);
    }

    pub(super) fn drop_reservation(&mut self, store: &str, key: &str) {
        self.ipam.reservations.remove(&(store.to_owned(), key.to_owned()));
    }

    pub(super) fn sweep_reservations(&mut self, store: &str, began: BootNs) {
        self.ipam.reservations.retain(|(own, _), entry| own != store || entry.told >= began);
    }

    pub(super) fn set_range(&mut self, range: &Range, at: BootNs) {
        let key = (range.store.clone(), range.network.clone(), range.path.clone());
        self.ipam.ranges.insert(key, (range.clone(), at));
    }

    pub(super) fn sweep_ranges(&mut self, store: &str, began: BootNs) {
        self.ipam.ranges.retain(|(own, ..), (_, told)| own != store || *told >= began);
    }

    pub(super) fn set_unreadable(&mut self, file: &Unreadable, at: BootNs) {
        let key = (file.store.clone(), file.path.clone());
        self.ipam.unreadable.insert(key, (file.clone(), at));
    }

    pub(super) fn set_readable(&mut self, store: &str, path: &str) {
        self.ipam.unreadable.remove(&(store.to_owned(), path.to_owned()));
    }

    /// Every reservation of an IP.
    pub fn reservations_of(&self, ip: IpAddr) -> impl Iterator<Item = &ReservationEntry> {
        self.ipam.reservations.values().filter(move |entry| entry.reservation.ip == ip)
    }
}
