//! Calico's datastore as objects of the API server (`crd.projectcalico.org`). Each object is a key, `PLURAL/NAME`, with
//! its `spec` as the value.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::Blocks;
use super::keys::{Kept, Keys};
use super::pools::Pools;
use crate::fact::Observation;
use crate::sources::json::Name;
use crate::sources::kubernetes::reflector::{Change, Kind};

pub(in crate::sources) struct Objects<K> {
    pub(super) keys: K,
    plural: &'static str,
    /// The objects, for people.
    about: &'static str,
}

/// The blocks of the cluster. `node`: Calico's name of this node. Blocks have no field by which a node's could be
/// selected.
pub(in crate::sources) fn blocks(node: String) -> Objects<Blocks> {
    Objects { keys: Blocks::new(node), plural: "ipamblocks", about: "Calico's blocks" }
}

pub(in crate::sources) fn pools() -> Objects<Pools> {
    Objects { keys: Pools::default(), plural: "ippools", about: "Calico's pools" }
}

#[derive(Deserialize)]
pub(in crate::sources) struct Object {
    metadata: Meta,
    #[serde(default)]
    spec: Value,
}

#[derive(Deserialize)]
struct Meta {
    name: Name,
}

impl<K: Keys> Kind for Objects<K> {
    type Item = Object;

    fn source(&self) -> &'static str {
        self.keys.source()
    }

    fn about(&self) -> String {
        self.about.to_owned()
    }

    fn path(&self) -> String {
        format!("/apis/crd.projectcalico.org/v1/{}?", self.plural)
    }

    fn may_be_missing(&self) -> bool {
        true
    }

    fn wrong(&self) -> usize {
        self.keys.wrong()
    }

    fn tell(&mut self, change: Change<Object>, out: &mut Vec<Observation>) {
        let key = |meta: Meta| format!("{}/{}", self.plural, meta.name.0);
        match change {
            Change::Began => self.keys.began(out),
            Change::Now(Object { metadata, spec }) => {
                self.keys.put(&key(metadata), Kept::Spec(spec), out);
            }
            Change::Gone(object) => self.keys.gone(&key(object.metadata), out),
            Change::Ended { began, complete } => self.keys.ended(began, complete, out),
            Change::Confirmed => {
                self.keys.overdue(out);
                self.keys.confirmed(out);
            }
        }
    }
}
