//! Blocks as objects of the API server (`ipamblocks.crd.projectcalico.org`).

use serde::Deserialize;
use serde_json::Value;

use crate::fact::Observation;
use crate::sources::json::Name;
use crate::sources::kubernetes::reflector::{Change, Kind};

use super::STORE;
use super::blocks;
use super::documents::Block;

/// The blocks of the cluster.
pub(in crate::sources) struct Blocks(blocks::Blocks);

impl Blocks {
    /// `node`: what Calico calls this one.
    pub(in crate::sources) fn new(node: String) -> Self {
        Self(blocks::Blocks::new(node))
    }
}

/// `IPAMBlock`
#[derive(Deserialize)]
pub(in crate::sources) struct IpamBlock {
    metadata: Meta,
    #[serde(default)]
    spec: Value,
}

#[derive(Deserialize)]
struct Meta {
    name: Name,
}

impl Kind for Blocks {
    type Item = IpamBlock;

    fn source(&self) -> &'static str {
        STORE
    }

    fn about(&self) -> String {
        "Calico's blocks".to_owned()
    }

    fn path(&self) -> String {
        // Nothing that one could select by says whose a block is.
        "/apis/crd.projectcalico.org/v1/ipamblocks?".to_owned()
    }

    fn may_be_missing(&self) -> bool {
        true
    }

    fn wrong(&self) -> usize {
        self.0.wrong()
    }

    fn tell(&mut self, change: Change<Self::Item>, out: &mut Vec<Observation>) {
        let key = |name: Name| format!("ipamblocks/{}", name.0);
        match change {
            Change::Began => self.0.began(out),
            Change::Now(IpamBlock { metadata, spec }) => {
                self.0.put(&key(metadata.name), Block::read(&spec), out);
            }
            Change::Gone(block) => self.0.gone(&key(block.metadata.name), out),
            Change::Ended { began, complete } => self.0.ended(began, complete, out),
            Change::Confirmed => self.0.confirmed(out),
        }
    }
}
