//! Entry points of the fuzz targets.

use ipwatch_common::{
    AddressRecord, CallEndRecord, CallRecord, CallRefusedRecord, ClaimRecord, Header, MoveRecord,
    NeighbourRecord, NetnsRecord, TaskRecord, Wire, kind,
};

use super::{calls, events};
use crate::fact::{Fact, Observation};

/// Parses the bytes as one record of a ring buffer, then as many: of each the kind, and what follows its header.
/// Returns the facts of the latter.
pub(crate) fn ring_records(mut bytes: &[u8]) -> Vec<Fact> {
    let mut facts = Vec::new();
    let _ = events::decode(bytes, &mut facts);
    facts.clear();
    let mut time = 0;
    while let Some((kind, rest)) = bytes.split_first() {
        let kind = u16::from(*kind) % kind::CALL_REFUSED + 1;
        let size = size_of(kind);
        let body = &rest[..rest.len().min(size - Header::SIZE)];
        bytes = &rest[body.len()..];
        let mut record = vec![0; size];
        time += 1_000_000;
        record[..2].copy_from_slice(&kind.to_ne_bytes());
        record[2..4].copy_from_slice(&u16::try_from(size).unwrap_or(0).to_ne_bytes());
        record[8..16].copy_from_slice(&u64::to_ne_bytes(time));
        record[Header::SIZE..][..body.len()].copy_from_slice(body);
        let before = facts.len();
        let read = events::decode(&record, &mut facts);
        assert!(read.is_ok_and(|read| read == kind) || facts.len() == before, "{read:?}");
        assert!(facts.len() <= before + 1, "one record is one fact");
    }
    facts
}

/// The size of a record of this kind.
fn size_of(kind: u16) -> usize {
    match kind {
        kind::NETNS_CREATED | kind::NETNS_DYING | kind::NETNS_GONE => NetnsRecord::SIZE,
        kind::TASK_FORK..=kind::SIGNAL => TaskRecord::SIZE,
        kind::IPV4_UP..=kind::DAD_FAILED => AddressRecord::SIZE,
        kind::DEVICE_MOVED => MoveRecord::SIZE,
        kind::NEIGHBOUR => NeighbourRecord::SIZE,
        kind::CLAIM | kind::CLAIM_ON_WIRE => ClaimRecord::SIZE,
        kind::CALL_BEGAN => CallRecord::SIZE,
        kind::CALL_ENDED => CallEndRecord::SIZE,
        _ => CallRefusedRecord::SIZE,
    }
}

/// Parses records of CNI calls: the bytes as they are, and as the body after a valid header.
pub fn cni_call(bytes: &[u8]) {
    let _ = calls::decode(bytes);
    for (kind, size) in
        [(kind::CALL_BEGAN, CallRecord::SIZE), (kind::CALL_ENDED, CallEndRecord::SIZE)]
    {
        let mut record = vec![0; size];
        record[..2].copy_from_slice(&kind.to_ne_bytes());
        for (to, from) in record[Header::SIZE..].iter_mut().zip(bytes) {
            *to = *from;
        }
        let said = calls::decode(&record);
        // An end always yields an observation; a start only if its command is valid.
        assert!(kind == kind::CALL_BEGAN || matches!(said, Some(Observation::CniEnded { .. })));
    }
}
