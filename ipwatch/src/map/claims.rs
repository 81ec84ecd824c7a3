//! Who was heard to claim an IP on a link, and when.

use crate::fact::{BootNs, Claim, NetnsRef};

use super::NodeMap;

impl NodeMap {
    pub(super) fn set_claim(&mut self, netns: &NetnsRef, claim: &Claim, at: BootNs) {
        let _ = (netns, claim, at);
    }
}
