//! Entry point of the fuzz target.

use serde::de::DeserializeSeed as _;

use super::documents::{Line, Reader, Status};
use super::reflector::{Change, Kind};
use super::{networks, pods, whereabouts};
use crate::fact::Observation;

/// Parses answers of the API server: lists and watch lines of every kind except Calico's (`calico::fuzz`).
pub(in crate::sources) fn kubernetes(bytes: &[u8]) {
    let mut out = Vec::new();
    each(bytes, &mut pods::Pods::of("node-1".to_owned(), true), &mut out);
    each(bytes, &mut whereabouts::Pools::default(), &mut out);
    each(bytes, &mut networks::Networks::default(), &mut out);
    let _ = serde_json::from_slice::<Status>(bytes);
}

pub(in crate::sources) fn each<K: Kind>(bytes: &[u8], kind: &mut K, out: &mut Vec<Observation>) {
    let reader = Reader::<K::Item>::new(kind.most());
    if let Ok(page) = reader.deserialize(&mut serde_json::Deserializer::from_slice(bytes)) {
        page.items.read.into_iter().for_each(|item| kind.tell(Change::Now(item), out));
    }
    if let Ok(line) = serde_json::from_slice::<Line>(bytes)
        && let Ok(item) = serde_json::from_value(line.object)
    {
        kind.tell(Change::Now(item), out);
    }
}
