//! A containerd that tests share. Each test has one handler of its runtime to itself: in the handler's own directory
//! of networks stands the test's CNI network and no other, so that its subnet, its bridge and its reservations are
//! as they are with a containerd of its own. The image is there once.
//!
//! Its plugins and its runc are everybody's: a test that slows them down or has them fail starts its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Containerd, Setup, client, place, sweep, uid_of};
use crate::poll::until;
use crate::shared::{Part, joined};
use crate::{Lab, patience, sys};

/// In a lab that has a slot: the socket, and the directory of the slot's network, a line each.
const NOTE: &str = "shared-containerd";
/// How long it may take to remove what a test left.
const LIMIT: Duration = Duration::from_secs(20);

/// Name of a slot's handler.
pub(super) fn handler(slot: usize) -> String {
    format!("net{slot}")
}

/// Where the network of a slot is configured, by the directory of the containerd.
pub(super) fn conf_dir(dir: &Path, slot: usize) -> PathBuf {
    dir.join(format!("{}.d", handler(slot)))
}

/// Whether a slot is as its next test expects it, by the lab of the containerd.
pub(crate) fn is_free(home: &Path, slot: usize) -> bool {
    let dir = conf_dir(&home.join("containerd"), slot);
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

impl<'a> Containerd<'a> {
    /// The one that tests share, for a test that `needs [Pods]`; with a network of this test's own.
    #[must_use]
    pub fn shared(lab: &'a Lab) -> Self {
        Self::shared_as(lab, &Setup::default())
    }

    /// The same with a difference in the network.
    #[must_use]
    pub fn shared_as(lab: &'a Lab, setup: &Setup<'_>) -> Self {
        let (home, slot) = joined(Part::Pods);
        let dir = home.join("containerd");
        let (socket, conf_dir) = (dir.join("sock"), conf_dir(&dir, slot));
        sweep::begin(lab);
        let note = format!("{}\n{}", socket.display(), conf_dir.display());
        fs::write(lab.dir().join(NOTE), note).expect("note the slot");
        let containerd = Self { lab, socket, dir, child: None, node: None, slot: Some(slot) };
        let loaded = || containerd.cri(&["network", &handler(slot)]).is_ok();
        // It reads the directory some time after it has changed, and has to have seen the one before go.
        until("the slot's network of before is gone", 20, || !loaded());
        // Written where it stands: of a file that is moved there containerd hears nothing (`syncLoop` passes over
        // Create, pkg/cri/server/cni_conf_syncer.go, 1.6).
        let network = conf_dir.join(place::CONFLIST);
        fs::write(network, place::bridge(lab, setup)).expect("write the conflist");
        until("the slot's network is loaded", 20, loaded);
        containerd
    }
}

/// Removes what a test has in the shared containerd, where it has one, and frees its slot. `ids`: those of its
/// sandboxes that are known. Bounded in time: what containerd does not remove within it is killed.
pub(super) fn leave(tag: &str, ids: &[String]) {
    let Ok(note) = fs::read_to_string(Lab::dir_of(tag).join(NOTE)) else { return };
    let Some((socket, conf_dir)) = note.split_once('\n') else { return };
    // One that was stopped does nothing that it is told.
    shims(ids).into_iter().for_each(|shim| drop(sys::kill(shim, libc::SIGCONT)));
    let gone = purge(socket, tag) || {
        sweep::remove_cgroups(tag);
        shims(ids).into_iter().for_each(|shim| drop(sys::kill(shim, libc::SIGKILL)));
        purge(socket, tag)
    };
    if gone {
        let _ = fs::remove_file(Path::new(conf_dir).join(place::CONFLIST));
    }
}

/// Has containerd stop and remove all sandboxes of a test.
fn purge(socket: &str, tag: &str) -> bool {
    let (first, last) = uid_of(tag);
    let mut command = Command::new(client());
    command.args([socket, "purge", &format!("{first}-"), &format!("-{last}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut client) = command.spawn() else { return false };
    let began = Instant::now();
    loop {
        match client.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if began.elapsed() < LIMIT * patience() => {}
            _ => {
                let _ = client.kill();
                let _ = client.wait();
                return false;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The shims of these sandboxes.
fn shims(ids: &[String]) -> Vec<u32> {
    let is_theirs = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words[0].ends_with(b"/containerd-shim-runc-v2")
            && words
                .windows(2)
                .any(|pair| pair[0] == b"-id" && ids.iter().any(|id| id.as_bytes() == pair[1]))
    };
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_theirs).collect()
}
