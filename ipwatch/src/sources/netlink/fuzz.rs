//! Entry point of the fuzz target.

use super::{diag, parse};
use crate::fact::NetnsRef;

/// Parses one datagram.
pub fn netlink(bytes: &[u8]) {
    let netns = NetnsRef::default();
    for message in parse::messages(bytes).map_while(Result::ok) {
        let _ = parse::tell(message.kind, message.payload, netns, &mut |_| {});
        let _ = parse::nsids(message.payload);
        let _ = diag::orphan(message.payload);
    }
}
