//! `--host-root`: changes the root from the container's to the node's, before anything is read.
//!
//! In a container the node's files are mounted under a prefix. Prepending the prefix to paths would fail: an absolute
//! symlink below it (such as `/var/run`) leads out of it, and every path in the output would differ from the path on
//! the node. Therefore the process makes the prefix its root, and each path means the same as on the node, including
//! those of the configuration, the socket and the state.
//!
//! The container must have the node's processes, the node's network, and mounts that follow the node's. A private
//! copy of the node's mounts keeps alive what the node unmounts, such as the network namespaces and file systems of
//! dead pods: such a container is refused here.
//!
//! Names of servers are resolved as in the container, whose DNS knows the cluster's Services: one thread stays in the
//! container's root for that (`dial/names.rs`).

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::bounded;
use crate::dial::names;

/// Maximum size of mountinfo, in bytes.
const MOUNTINFO: usize = 16 << 20;

/// Why the node's root was not entered.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostRootError {
    /// The prefix is not a directory, or chroot is not permitted.
    #[error(
        "--host-root {path}: {error} (it needs CAP_SYS_CHROOT and the node's directories mounted there)"
    )]
    Closed {
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// Its `/proc` is not that of this process's PID namespace.
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
        path: PathBuf,
        /// The mount point, as a path on the node.
        point: String,
    },
}

/// Makes `path` the root of this process, and leaves a thread behind that resolves names. Must be called before any other
/// thread starts, because those share the root.
///
/// # Errors
/// [`HostRootError`]; the root is unchanged then.
pub(super) fn enter(path: &Path) -> Result<(), HostRootError> {
    let closed = |error: io::Error| HostRootError::Closed { path: path.to_owned(), error };
    // As the kernel writes it in mountinfo.
    let path = &fs::canonicalize(path).map_err(closed)?;
    let path_of = |tail: &str| path.join(tail);
    let own = fs::read_link(path_of("proc/self")).map_err(closed)?;
    if own.to_str().and_then(|pid| pid.parse().ok()) != Some(std::process::id()) {
        return Err(HostRootError::OtherProcesses(path.to_owned()));
    }
    let netns = |process: &str| fs::read_link(path_of(&format!("proc/{process}/ns/net")));
    // Kernel threads always have the node's netns. If not even theirs can be read, `doctor` reports what is missing.
    let differs = |node: PathBuf| netns("self").is_ok_and(|own| own != node);
    if netns("2").is_ok_and(differs) {
        return Err(HostRootError::OtherNetwork(path.to_owned()));
    }
    let mounts = bounded::read_text(&path_of("proc/self/mountinfo"), MOUNTINFO).map_err(closed)?;
    if let Some(point) = pinned(&mounts, path) {
        return Err(HostRootError::Pins { path: path.to_owned(), point });
    }
    names::stay().map_err(closed)?;
    rustix::process::chroot(path).map_err(|error| closed(error.into()))?;
    rustix::process::chdir("/").map_err(|error| closed(error.into()))
}

/// The first mount below `root` that would stay when the node unmounts it, because the mount below it follows no
/// other mount, and unmounting propagates only along such relations (`propagate_umount`, fs/pnode.c). Lines of
/// mountinfo are `ID PARENT DEVICE ROOT POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`; the tag `master:` marks a mount
/// that follows another, `shared:` a peer (`show_mountinfo`, fs/proc_namespace.c).
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
        // The types of netns mounts and of the root file systems of containers.
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
        // Private on the node itself, but unmounted together with its parent.
        assert_eq!(found(&[image.clone(), run("master:5 "), netns("")]), None);
        let kept = Some("/run/netns/a");
        assert_eq!(found(&[run(""), netns("")]).as_deref(), kept);
        // Mounted private, but not the mounts below it.
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
