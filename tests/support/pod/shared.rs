//! A containerd that tests share. Each test has a handler of its runtime: the handler's directory of networks has
//! only the test's CNI network, so that subnet, bridge and reservations are as with a separate containerd. The image
//! is imported once.
//!
//! Its plugins and its runc are shared: a test that slows them down or makes them fail starts its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Containerd, Programs, Setup, client, place, sweep, uid_of};
use crate::poll::until;
use crate::shared::{Part, joined};
use crate::{Lab, patience, sys};

/// File in a lab with a slot: the socket, and the directory of the slot's network, a line each.
const NOTE: &str = "shared-containerd";
/// Time limit for removing what a test left.
const LIMIT: Duration = Duration::from_secs(20);

/// Name of a slot's handler.
pub(super) fn handler(slot: usize) -> String {
    format!("net{slot}")
}

/// Directory of a slot's network configuration, by the directory of the containerd.
pub(super) fn conf_dir(dir: &Path, slot: usize) -> PathBuf {
    dir.join(format!("{}.d", handler(slot)))
}

/// Whether a slot is ready for its next test, by the lab of the containerd.
pub(crate) fn is_free(home: &Path, slot: usize) -> bool {
    let dir = conf_dir(&home.join("containerd"), slot);
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

impl<'a> Containerd<'a> {
    /// The containerd that tests share, for a test that `needs [Pods]`; with a network for this test.
    #[must_use]
    pub fn shared(lab: &'a Lab) -> Self {
        Self::shared_as(lab, &Setup::default())
    }

    /// Like `shared`, with a different network.
    #[must_use]
    pub fn shared_as(lab: &'a Lab, setup: &Setup<'_>) -> Self {
        let (home, slot) = joined(Part::Pods);
        let dir = home.join("containerd");
        let (socket, conf_dir) = (dir.join("sock"), conf_dir(&dir, slot));
        sweep::begin(lab);
        let note = format!("{}\n{}", socket.display(), conf_dir.display());
        fs::write(lab.dir().join(NOTE), note).expect("note the slot");
        let programs = Programs::default();
        let containerd =
            Self { lab, socket, dir, child: None, node: None, programs, slot: Some(slot) };
        let loaded = || containerd.cri(&["network", &handler(slot)]).is_ok();
        // containerd reads the directory some time after a change, and must have noticed the removal of the previous
        // network.
        until("the slot's network of before is gone", 20, || !loaded());
        // Written in place: containerd ignores a file that is moved there (`syncLoop` skips Create,
        // pkg/cri/server/cni_conf_syncer.go, 1.6).
        let network = conf_dir.join(place::CONFLIST);
        fs::write(network, place::default_network(lab, setup)).expect("write the conflist");
        until("the slot's network is loaded", 20, loaded);
        containerd
    }
}

/// Removes what a test has in the shared containerd, if it uses that, and frees its slot. `ids`: its known sandboxes.
/// Bounded in time: what containerd does not remove in time is killed.
pub(super) fn leave(tag: &str, ids: &[String]) {
    let Ok(note) = fs::read_to_string(Lab::dir_of(tag).join(NOTE)) else { return };
    let Some((socket, conf_dir)) = note.split_once('\n') else { return };
    // A stopped shim answers no request.
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

/// Makes containerd stop and remove all sandboxes of a test.
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
