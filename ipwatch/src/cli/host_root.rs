//! `--host-root`: from a container's root into the node's, before anything is read.
//!
//! In a container the node's files are mounted under a prefix. Paths that were joined with it by hand would
//! still go wrong: an absolute symlink in there (`/var/run`) leads out of it again, and every path that is
//! shown would be another one than on the node. So the process makes the prefix its root, and each path
//! means what it means on the node; that of the configuration, the socket and the state too.
//!
//! What the container gives it must be the node's: its processes, its network, and mounts that follow the
//! node's. A private copy of the node's mounts keeps alive what the node unmounts, the network namespaces and
//! file systems of dead pods among them: that harm is refused here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::bounded;

/// The most of a mountinfo that is read.
const MOUNTINFO: usize = 16 << 20;

/// Why the node's root was not entered.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostRootError {
    /// It is no directory, or may not become the root.
    #[error(
        "--host-root {path}: {error} (it needs CAP_SYS_CHROOT and the node's directories mounted there)"
    )]
    Closed {
        /// The prefix.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// Its `/proc` is not that of the processes this one is among.
    #[error(
        "--host-root {0}: its /proc does not show this process as itself: mount the node's /proc there, and \
         run with hostPID (docker: --pid=host)"
    )]
    OtherProcesses(PathBuf),
    /// The container has a network of its own.
    #[error(
        "--host-root {0}: this is not the node's network namespace: run with hostNetwork (docker: --network=host)"
    )]
    OtherNetwork(PathBuf),
    /// Its mounts do not follow the node's.
    #[error(
        "--host-root {path}: {point} is mounted so that what the node unmounts there stays: mount it with \
         mountPropagation HostToContainer (docker: rslave)"
    )]
    Pins {
        /// The prefix.
        path: PathBuf,
        /// Where, on the node.
        point: String,
    },
}

/// Makes `path` the root of this process. Before any thread is started, for the root is all threads'.
///
/// # Errors
/// [`HostRootError`]; nothing has changed then.
pub(super) fn enter(path: &Path) -> Result<(), HostRootError> {
    let closed = |error: io::Error| HostRootError::Closed { path: path.to_owned(), error };
    let path_of = |tail: &str| path.join(tail);
    let own = fs::read_link(path_of("proc/self")).map_err(closed)?;
    if own.to_str().and_then(|pid| pid.parse().ok()) != Some(std::process::id()) {
        return Err(HostRootError::OtherProcesses(path.to_owned()));
    }
    let netns = |process: &str| fs::read_link(path_of(&format!("proc/{process}/ns/net")));
    // Kernel threads have never left the node's; where not even theirs reads, `doctor` says what is missing.
    let differs = |node: PathBuf| netns("self").is_ok_and(|own| own != node);
    if netns("2").is_ok_and(differs) {
        return Err(HostRootError::OtherNetwork(path.to_owned()));
    }
    let mounts = bounded::read_text(&path_of("proc/self/mountinfo"), MOUNTINFO).map_err(closed)?;
    if let Some(point) = pinned(&mounts, path) {
        return Err(HostRootError::Pins { path: path.to_owned(), point });
    }
    rustix::process::chroot(path).map_err(|error| closed(error.into()))?;
    rustix::process::chdir("/").map_err(|error| closed(error.into()))
}

/// The first mount below `root` that would stay when the node unmounts it. Lines of mountinfo are `ID PARENT
/// DEVICE ROOT POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`; `master:` is the tag of one that follows another, and
/// `shared:` of one that is the other's equal (`show_mountinfo`, fs/proc_namespace.c).
fn pinned(mounts: &str, root: &Path) -> Option<String> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let end = fields.iter().position(|field| *field == "-")?;
        let below = Path::new(fields.get(4)?).strip_prefix(root).ok()?;
        let follows = fields
            .get(6..end)?
            .iter()
            .any(|tag| tag.starts_with("master:") || tag.starts_with("shared:"));
        // Where netns files and the root file systems of containers are mounted.
        let pins = ["nsfs", "overlay"].contains(fields.get(end + 1)?);
        (pins && !follows).then(|| format!("/{}", below.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(point: &str, tags: &str, kind: &str) -> String {
        format!("40 30 0:22 / {point} rw,nosuid {tags}- {kind} source rw\n")
    }

    #[test]
    fn a_mount_that_does_not_follow_the_nodes_is_found() {
        let root = Path::new("/host");
        let found = |lines: &[String]| pinned(&lines.concat(), root);
        let fine = [
            mount("/", "", "overlay"),
            mount("/host/proc", "", "proc"),
            mount("/host/run", "master:5 ", "tmpfs"),
            mount("/host/run/netns/a", "shared:9 master:7 ", "nsfs"),
            mount("/host/etc/ipwatch", "", "ext4"),
        ];
        assert_eq!(found(&fine), None);
        let netns =
            [mount("/host/run", "master:5 ", "tmpfs"), mount("/host/run/netns/a", "", "nsfs")];
        assert_eq!(found(&netns).as_deref(), Some("/run/netns/a"));
        assert_eq!(found(&["torn".into(), "1 2 - ".into()]), None);
    }

    #[test]
    fn a_directory_that_is_no_root_is_refused() {
        let empty = tempfile::tempdir().unwrap();
        let said = enter(empty.path()).unwrap_err().to_string();
        assert!(said.contains("CAP_SYS_CHROOT") && said.contains("No such file"), "{said}");
        fs::create_dir(empty.path().join("proc")).unwrap();
        std::os::unix::fs::symlink("1", empty.path().join("proc/self")).unwrap();
        let said = enter(empty.path()).unwrap_err();
        assert!(matches!(said, HostRootError::OtherProcesses(_)), "{said}");
    }
}
