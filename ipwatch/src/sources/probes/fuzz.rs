//! Entry point of the fuzz target.

use ipwatch_common::{CallEndRecord, CallRecord, Header, Wire, kind};

use super::calls;
use crate::fact::Observation;

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
