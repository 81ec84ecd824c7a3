//! An API server that tests share. Each test has the name of a node for a kubelet, and creates objects in its own
//! namespace, or objects that no other test of this server creates or counts. The objects of a test are deleted after
//! it, even if it was killed; namespaces stay, because no controller runs that deletes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::{Api, ControlPlane, home};
use crate::shared::{Part, joined};
use crate::{Lab, Netns, poll};

/// File in a lab with a slot: the directory of the server's files, and the slot, a line each.
const NOTE: &str = "shared-api-server";
/// File in a lab: the paths of the created objects, one a line.
const MADE: &str = "made";
/// Part of the path of a CRD; its objects are deleted with it.
const DEFINITIONS: &str = "/customresourcedefinitions/";

/// Port of the first slot's kubelet.
const PORT: usize = 10250;

/// Name of a slot's node.
pub(super) fn node(tag: &str, slot: usize) -> String {
    format!("{tag}-{slot}")
}

/// File in the server's directory while a slot is in use.
fn in_use(base: &Path, slot: usize) -> PathBuf {
    base.join(format!("slot-{slot}"))
}

/// Whether a slot is ready for its next test, by the lab of the server.
pub(crate) fn is_free(lab: &Path, slot: usize) -> bool {
    !in_use(&lab.join("kubernetes"), slot).exists()
}

/// The netns of the server, by its lab.
fn netns_of(lab: &Path) -> String {
    format!("{}-node", lab.file_name().and_then(|name| name.to_str()).expect("a tag"))
}

impl ControlPlane {
    /// Port of this node's kubelet: all kubelets of a shared API server are in the server's netns.
    pub(super) fn kubelet_port(&self) -> usize {
        let slot = self.node.rsplit_once('-').and_then(|(_, slot)| slot.parse::<usize>().ok());
        PORT + slot.unwrap_or_default()
    }

    /// The server that tests share, for a test that `needs [SharedApiServer]`.
    #[must_use]
    pub fn shared(lab: &Lab) -> Self {
        let (place, slot) = joined(Part::ApiServer);
        let base = place.join("kubernetes");
        let dir = home(lab);
        fs::write(in_use(&base, slot), "").expect("take the slot");
        fs::write(dir.join(NOTE), format!("{}\n{slot}", place.display())).expect("note the slot");
        let netns = Netns::of_others(&netns_of(&place));
        let tag = place.file_name().and_then(|name| name.to_str()).expect("a tag");
        let node = node(tag, slot);
        let (api, door) = Self::ways(&dir, &base, &netns, &node);
        let api = api.noting(dir.join(MADE));
        let address = netns.ip("-4 -j addr show dev lo scope global");
        let address: serde_json::Value = serde_json::from_str(&address).expect("ip -j prints JSON");
        let infos = address
            .as_array()
            .expect("devices")
            .iter()
            .flat_map(|device| device["addr_info"].as_array().into_iter().flatten());
        let address = infos.filter_map(|info| info["local"].as_str()).next();
        let address = address.expect("the node's address").to_owned();
        Self { address, dir, base, api, door, own: None, node, netns }
    }
}

/// Whether a path is a namespace, which is not deleted.
fn is_namespace(path: &str) -> bool {
    path.strip_prefix("/api/v1/namespaces/").is_some_and(|name| !name.contains('/'))
}

/// Deletes a test's objects in the shared server, if it uses that, and frees its slot.
pub(super) fn leave(tag: &str) {
    let dir = Lab::dir_of(tag).join("kubernetes");
    let Ok(note) = fs::read_to_string(dir.join(NOTE)) else { return };
    let Some((place, slot)) = note.split_once('\n') else { return };
    let (place, Ok(slot)) = (Path::new(place), slot.parse()) else { return };
    let (base, netns) = (place.join("kubernetes"), netns_of(place));
    // The bridge of its pods.
    let _ = Command::new("ip").args(["-n", &netns, "link", "del", &format!("{tag}b")]).output();
    let api = Api::by(base.join(super::api::CONFIG), &Path::new(crate::netns::DIR).join(&netns));
    let made = fs::read_to_string(dir.join(MADE)).unwrap_or_default();
    // A missing object is deleted; any other error would affect the next test.
    let is_gone = |answer: Result<_, String>| answer.is_err_and(|error| error.starts_with("404"));
    let now = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0 });
    let mut clean = true;
    for path in made.lines().rev().filter(|path| !is_namespace(path)) {
        let done = api.ask("DELETE", path, Some(&now));
        clean &= done.is_ok() || is_gone(done);
        // The objects of a CRD are deleted first, which takes a moment.
        if path.contains(DEFINITIONS) {
            poll::settle(20, || is_gone(api.get(path)));
            clean &= is_gone(api.get(path));
        }
    }
    if clean {
        let _ = fs::remove_file(in_use(&base, slot));
    }
}
