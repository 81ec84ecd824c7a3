//! Removes what a lab's pods left outside the lab: processes, cgroups, netns, cache files, runc's state, the sockets
//! of shims, the bridge.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::found::argument;
use super::{CNI_CACHE, network, uid_of};
use crate::{Lab, cgroup, netns};

/// File in the lab: ids and paths to be removed, one a line.
const LIST: &str = "pods";
/// runc's state of the pods' containers, which does not depend on containerd's state directory.
const RUNC: &str = "/run/containerd/runc/k8s.io";

/// Records that there may be something to sweep.
pub(super) fn begin(lab: &Lab) {
    note(lab, "");
}

/// Records a sandbox or a container, so that everything with its id is swept even if nobody stops it.
pub(super) fn note_id(lab: &Lab, id: &str) {
    note(lab, &format!("id {id}"));
}

/// Finds the mount of a netns, records it, and returns it.
pub(super) fn note_netns(lab: &Lab, inode: u64) -> PathBuf {
    let path = fs::read_dir(netns::DIR)
        .expect("the names of netns")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| fs::metadata(path).is_ok_and(|meta| meta.ino() == inode))
        .expect("a name of the pod's netns");
    note(lab, &format!("netns {}", path.display()));
    path
}

fn note(lab: &Lab, line: &str) {
    use std::io::Write as _;
    let list = lab.dir().join(LIST);
    let mut list = fs::File::options().create(true).append(true).open(list).expect("open a list");
    writeln!(list, "{line}").expect("note it");
}

/// Removes everything.
pub fn sweep(tag: &str) {
    let dir = Lab::dir_of(tag);
    let list = fs::read_to_string(dir.join(LIST));
    if let Ok(list) = &list {
        // While its network exists, which containerd needs for that.
        super::shared::leave(tag, &ids(tag, list));
    }
    for bridge in [format!("{tag}b"), format!("{tag}b-1")] {
        // The netns of sandboxes whose creation was interrupted: nothing else shows their owner.
        netns_behind(&bridge).iter().for_each(|path| netns::remove(path));
        let _ = Command::new("ip").args(["link", "del", &bridge]).output();
    }
    let Ok(list) = list else { return };
    remove_cgroups(tag);
    remove_runc_state(tag);
    for containerd in ["containerd", "containerd-1", "containerd-far", "containerd-far-1"] {
        remove_shim_sockets(&dir.join(containerd).join("state"));
    }
    for socket in list.lines().filter_map(|line| line.strip_prefix("socket ")) {
        let _ = fs::remove_file(socket);
    }
    for path in list.lines().filter_map(|line| line.strip_prefix("netns ")) {
        netns::remove(Path::new(path));
    }
    let ids = ids(tag, &list);
    for entry in cached() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let uid = argument(&result, "K8S_POD_UID").unwrap_or_default();
        // For an interrupted creation only the loopback device's result is known.
        if is_of(tag, &uid) || ids.iter().any(|id| name.contains(id)) {
            if let Some(path) = result["netns"].as_str() {
                netns::remove(Path::new(path));
            }
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a uid belongs to a pod of this test.
fn is_of(tag: &str, uid: &str) -> bool {
    let (first, last) = uid_of(tag);
    uid.starts_with(&format!("{first}-")) && uid.ends_with(&format!("-{last}"))
}

/// The mounts of the netns that contain the peers of a bridge's ports.
fn netns_behind(bridge: &str) -> Vec<PathBuf> {
    let ports = Command::new("ip").args(["-o", "-d", "link", "show", "master", bridge]).output();
    let text = ports.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let text = text.unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    let names = words.windows(2).filter(|pair| pair[0] == "link-netns").map(|pair| pair[1]);
    names.map(|name| Path::new(netns::DIR).join(name)).collect()
}

pub(super) fn cached() -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(CNI_CACHE).into_iter().flatten().flatten()
}

/// The recorded containers, and those whose creation was interrupted before that, by their results on the networks
/// with the tag.
fn ids(tag: &str, list: &str) -> Vec<String> {
    let noted = list.lines().filter_map(|line| line.strip_prefix("id ")).map(str::to_owned);
    let prefix = network(tag, "");
    let on_network = cached().filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let id = name.strip_prefix(&prefix)?.split('-').nth(1)?;
        (!id.is_empty()).then(|| id.to_owned())
    });
    noted.chain(on_network).collect()
}

/// The directories of the containers of the containerd with this state directory; their names are the ids.
fn bundles(state: &Path) -> Vec<PathBuf> {
    let inside = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let namespaces = inside(&state.join("io.containerd.runtime.v2.task"));
    namespaces.flat_map(|namespace| inside(&namespace.path())).map(|bundle| bundle.path()).collect()
}

fn ids_in(state: &Path) -> Vec<String> {
    let name = |dir: PathBuf| Some(dir.file_name()?.to_str()?.to_owned());
    bundles(state).into_iter().filter_map(name).collect()
}

/// The sockets of its shims. A killed shim leaves its socket in a directory that all share.
fn shim_sockets(state: &Path) -> Vec<PathBuf> {
    let socket = |bundle: PathBuf| {
        let address = fs::read_to_string(bundle.join("address")).ok()?;
        address.trim().strip_prefix("unix://").map(PathBuf::from)
    };
    bundles(state).into_iter().filter_map(socket).collect()
}

/// Records the containers and their shims' sockets before the state that names them is removed.
pub(crate) fn note_shims(lab: &Lab, state: &Path) {
    ids_in(state).iter().for_each(|id| note_id(lab, id));
    for socket in shim_sockets(state) {
        note(lab, &format!("socket {}", socket.display()));
    }
}

pub(crate) fn remove_shim_sockets(state: &Path) {
    shim_sockets(state).into_iter().for_each(|socket| drop(fs::remove_file(socket)));
}

/// Directory of runc's state of a container.
pub(super) fn runc_state(id: &str) -> PathBuf {
    Path::new(RUNC).join(id)
}

/// Removes a lab's containers from runc's state.
pub(super) fn remove_runc_state(tag: &str) {
    let dir = Lab::dir_of(tag);
    let list = fs::read_to_string(dir.join(LIST)).unwrap_or_default();
    let noted = list.lines().filter_map(|line| line.strip_prefix("id ")).map(str::to_owned);
    // And those that a kubelet made.
    for id in noted.chain(ids_in(&dir.join("containerd/state"))) {
        let _ = fs::remove_dir_all(runc_state(&id));
    }
}

/// Ends the processes in the cgroups of a lab's pods, and removes the cgroups.
pub(crate) fn remove_cgroups(tag: &str) {
    for top in cgroup::hierarchies() {
        let pods = top.join("kubepods/besteffort");
        for pod in fs::read_dir(&pods).into_iter().flatten().flatten() {
            let name = pod.file_name();
            let name = name.to_string_lossy();
            if name.strip_prefix("pod").is_some_and(|uid| is_of(tag, uid)) {
                cgroup::end(&pod.path());
            }
        }
        // The parents that kubelet would have made; on a node with a kubelet they are not empty.
        let _ = fs::remove_dir(&pods);
        let _ = fs::remove_dir(top.join("kubepods"));
    }
}
