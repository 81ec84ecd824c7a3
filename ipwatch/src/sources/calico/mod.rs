//! Calico's datastore. Read only.
//!
//! - `keys`: what is told of it, key by key.
//! - `etcd`: where it is an etcd of its own.

pub mod etcd;
mod keys;

use self::keys::Keys;
use crate::fact::{BootNs, What};
use crate::sources::Emit;

/// Starts to ask, if there is a way. `node`: what this node is called. To be called within the runtime of tokio.
pub fn start(settings: &etcd::Settings, node: &str, emit: &Emit) {
    etcd::start(settings, node, Silent, emit);
}

/// Follows, and tells of nothing.
struct Silent;

impl Keys for Silent {
    fn began(&mut self, _: &mut Vec<What>) {}
    fn put(&mut self, _: &str, _: &[u8], _: &mut Vec<What>) {}
    fn gone(&mut self, _: &str, _: &mut Vec<What>) {}
    fn ended(&mut self, _: BootNs, _: bool, _: &mut Vec<What>) {}
    fn wrong(&self) -> usize {
        0
    }
}
