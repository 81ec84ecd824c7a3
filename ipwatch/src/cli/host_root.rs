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

use std::collections::HashSet;
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
    // As the kernel names it in mountinfo.
    let path = &fs::canonicalize(path).map_err(closed)?;
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

/// The first mount below `root` that would stay when the node unmounts it: what it is mounted on follows no other
/// mount, and that is what an unmounting spreads by (`propagate_umount`, fs/pnode.c). Lines of mountinfo are `ID
/// PARENT DEVICE ROOT POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`; `master:` is the tag of a mount that follows
/// another, and `shared:` of one that is the other's equal (`show_mountinfo`, fs/proc_namespace.c).
fn pinned(mounts: &str, root: &Path) -> Option<String> {
    let lines = || mounts.lines().map(|line| line.split(' ').collect::<Vec<&str>>());
    let end = |fields: &[&str]| fields.iter().position(|field| *field == "-");
    let following: HashSet<String> = lines()
        .filter(|fields| {
            let tags = end(fields).and_then(|end| fields.get(6..end)).unwrap_or_default();
            tags.iter().any(|tag| tag.starts_with("master:") || tag.starts_with("shared:"))
        })
        .filter_map(|fields| fields.first().map(|id| (*id).to_owned()))
        .collect();
    lines().find_map(|fields| {
        let below = Path::new(fields.get(4)?).strip_prefix(root).ok()?;
        // Where netns files and the root file systems of containers are mounted.
        let pins = ["nsfs", "overlay"].contains(fields.get(end(&fields)? + 1)?);
        (pins && !following.contains(*fields.get(1)?)).then(|| format!("/{}", below.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u32, on: u32, point: &str, tags: &str, kind: &str) -> String {
        format!("{id} {on} 0:22 / {point} rw,nosuid {tags}- {kind} source rw\n")
    }

    #[test]
    fn a_mount_that_does_not_go_with_the_nodes_is_found() {
        let root = Path::new("/host");
        let found = |lines: &[String]| pinned(&lines.concat(), root);
        let image = mount(1, 0, "/", "", "overlay");
        let proc = mount(2, 1, "/host/proc", "", "proc");
        let run = |tags: &str| mount(3, 1, "/host/run", tags, "tmpfs");
        let netns = |tags: &str| mount(4, 3, "/host/run/netns/a", tags, "nsfs");
        let fine = [image.clone(), proc, run("master:5 "), netns("shared:9 master:7 ")];
        assert_eq!(found(&fine), None);
        // Private on the node itself, and unmounted with what it is on.
        assert_eq!(found(&[image.clone(), run("master:5 "), netns("")]), None);
        let kept = Some("/run/netns/a");
        assert_eq!(found(&[run(""), netns("")]).as_deref(), kept);
        // Mounted private, but not what was mounted below it.
        assert_eq!(found(&[run(""), netns("master:7 ")]).as_deref(), kept);
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
