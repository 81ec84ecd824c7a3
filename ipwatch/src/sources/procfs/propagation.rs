//! Which mounts in other mount namespaces are copies of the node's own that go with them.
//!
//! What is mounted on a shared mount appears on its peers and slaves too (`propagate_mnt`, fs/pnode.c, 6.12), and is
//! unmounted there when it is unmounted on the node (`propagate_umount`): in every service with `PrivateTmp=`, and in
//! agents with `HostToContainer`. Such a copy keeps nothing alive that the node's mount does not. It stops being one
//! when the node's mount is gone, or when its mount namespace makes the mount that it lies on private.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

use super::mounts::{self, Mount};

/// Maximum number of mounts of the node for which copies are looked for, and of mounts on which copies may lie. Of
/// more than these, copies are not told from mounts of their own.
const MOST: usize = 65_536;
/// Maximum length of the paths of mounts on which copies may lie, in all, in bytes: a user may make thousands, in
/// directories of his own that are as deep as he likes.
const MOST_BYTES: usize = 4 << 20;

/// The node's mounts of a search, and where copies of them may lie.
#[derive(Debug, Default)]
pub(super) struct Propagation {
    /// Ids of the node's mounts.
    ids: HashSet<u64>,
    /// The peer groups of the shared mounts that they lie on.
    groups: HashSet<u64>,
    origins: HashSet<Origin>,
    /// Peers and slaves of these groups in any mount namespace, by id.
    below: HashMap<u64, Below>,
    /// Length of the paths in `below`, in bytes.
    bytes: usize,
}

/// One of the node's mounts: the peer group of the mount that it lies on, its path in that file system, and its own
/// root, which for a netns is `net:[INODE]`.
type Origin = (u64, Vec<u8>, Vec<u8>);

/// A mount on which others lie.
#[derive(Debug)]
struct Below {
    group: u64,
    root: Vec<u8>,
    point: Vec<u8>,
}

impl Below {
    /// The path of a mount point in this file system.
    fn path(&self, point: &[u8]) -> Option<Vec<u8>> {
        let own = if self.point == b"/" { &b""[..] } else { &self.point };
        let rest = point.strip_prefix(own).filter(|rest| rest.starts_with(b"/"))?;
        let root = if self.root == b"/" { &b""[..] } else { &self.root };
        Some([root, rest].concat())
    }
}

impl Propagation {
    /// Of the node's wanted mounts, which `mountinfo` shows. It is read twice: a mount and what it lies on may come in
    /// any order.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn of(mountinfo: &Path, wanted: impl Fn(&Mount<'_>) -> bool) -> io::Result<Self> {
        let mut own = Vec::new();
        let mut found = Self::default();
        mounts::lines(mountinfo, |line| {
            let mount = Mount::parse(line).filter(|mount| own.len() < MOST && wanted(mount));
            own.extend(mount.map(|mount| {
                found.ids.insert(mount.id);
                (mount.parent, mount.point.to_vec(), mount.root.to_vec())
            }));
        })?;
        let parents: HashSet<u64> = own.iter().map(|(parent, ..)| *parent).collect();
        let mut shared = HashMap::new();
        mounts::lines(mountinfo, |line| {
            let Some(mount) = Mount::parse(line).filter(|mount| parents.contains(&mount.id)) else {
                return;
            };
            shared.extend(mount.shared.map(|group| (mount.id, below(group, &mount))));
        })?;
        for (parent, point, root) in own {
            let Some(parent) = shared.get(&parent) else { continue };
            let Some(path) = parent.path(&point) else { continue };
            found.groups.insert(parent.group);
            found.origins.insert((parent.group, path, root));
        }
        Ok(found)
    }

    /// Whether a mount is such a copy. Must be called with each mount of a mount namespace, in the order in which the
    /// kernel shows them: what a copy lies on comes before it, unless it was moved.
    pub(super) fn is_copy(&mut self, mount: &Mount<'_>) -> bool {
        if self.origins.is_empty() {
            return false;
        }
        let copied = self.below.get(&mount.parent).and_then(|below| {
            let path = below.path(mount.point)?;
            Some(self.origins.contains(&(below.group, path, mount.root.to_vec())))
        });
        let mut groups = [mount.shared, mount.master].into_iter().flatten();
        let bytes = self.bytes + mount.root.len() + mount.point.len();
        if let Some(group) = groups.find(|group| self.groups.contains(group))
            && self.below.len() < MOST
            && bytes <= MOST_BYTES
        {
            self.bytes = bytes;
            self.below.insert(mount.id, below(group, mount));
        }
        copied == Some(true) && !self.ids.contains(&mount.id)
    }
}

fn below(group: u64, mount: &Mount<'_>) -> Below {
    Below { group, root: mount.root.to_vec(), point: mount.point.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node's mounts of /run, of the names of netns in it, and of one netns.
    const NODE: &str = "\
        20 1 0:20 / /run rw shared:5 - tmpfs tmpfs rw\n\
        21 20 0:20 /netns /run/netns rw shared:6 - tmpfs tmpfs rw\n\
        22 21 0:4 net:[7] /run/netns/a rw shared:9 - nsfs nsfs rw\n";

    fn copies(node: &str, other: &str) -> Vec<bool> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mountinfo");
        std::fs::write(&path, node).unwrap();
        let mut node = Propagation::of(&path, |mount| mount.netns().is_some()).unwrap();
        let lines = other.lines().map(|line| Mount::parse(line.as_bytes()).unwrap());
        lines.map(|mount| node.is_copy(&mount)).collect()
    }

    #[test]
    fn a_copy_lies_on_a_peer_or_a_slave_of_what_the_nodes_mount_lies_on() {
        let slave = "40 30 0:20 /netns /run/netns rw master:6 - tmpfs tmpfs rw\n\
                     41 40 0:4 net:[7] /run/netns/a rw master:9 - nsfs nsfs rw\n";
        assert_eq!(copies(NODE, slave), [false, true]);
        // Another place, seen through another directory.
        let agent = "40 30 0:20 / /host/run rw shared:70 master:6 - tmpfs tmpfs rw\n\
                     41 40 0:4 net:[7] /host/run/netns/a rw - nsfs nsfs rw\n";
        assert_eq!(copies(NODE, agent), [false, true]);
        let peer = "40 30 0:20 /netns /run/netns rw shared:6 - tmpfs tmpfs rw\n\
                    41 40 0:4 net:[7] /run/netns/a rw shared:9 - nsfs nsfs rw\n";
        assert_eq!(copies(NODE, peer), [false, true]);
    }

    #[test]
    fn deep_directories_do_not_fill_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mountinfo");
        std::fs::write(&path, NODE).unwrap();
        let mut node = Propagation::of(&path, |mount| mount.netns().is_some()).unwrap();
        let deep = "/deep".repeat(10_000);
        for id in 100..300 {
            let line = format!("{id} 30 0:20 /netns {deep} rw master:6 - tmpfs tmpfs rw");
            assert!(!node.is_copy(&Mount::parse(line.as_bytes()).unwrap()));
        }
        let kept: usize = node.below.values().map(|one| one.root.len() + one.point.len()).sum();
        assert!(kept > MOST_BYTES / 2 && kept <= MOST_BYTES, "{kept}");
        assert_eq!(kept, node.bytes);
    }

    #[test]
    fn what_stays_when_the_node_unmounts_its_own_is_no_copy() {
        // Private since the mount namespace was made.
        let private = "40 30 0:20 /netns /run/netns rw - tmpfs tmpfs rw\n\
                       41 40 0:4 net:[7] /run/netns/a rw - nsfs nsfs rw\n";
        assert_eq!(copies(NODE, private), [false, false]);
        // The mount is in the node's peer group, but what it lies on is not: bound by hand.
        let bound = "40 30 0:21 / /srv rw - ext4 /dev/a rw\n\
                     41 40 0:4 net:[7] /srv/a rw shared:9 - nsfs nsfs rw\n";
        assert_eq!(copies(NODE, bound), [false, false]);
        // On a slave, but at another name, or another netns.
        let other = "40 30 0:20 /netns /run/netns rw master:6 - tmpfs tmpfs rw\n\
                     41 40 0:4 net:[7] /run/netns/b rw - nsfs nsfs rw\n\
                     42 40 0:4 net:[8] /run/netns/a rw - nsfs nsfs rw\n";
        assert_eq!(copies(NODE, other), [false, false, false]);
        // The node has unmounted its own: what is left elsewhere keeps the netns.
        let slave = "40 30 0:20 /netns /run/netns rw master:6 - tmpfs tmpfs rw\n\
                     41 40 0:4 net:[7] /run/netns/a rw master:9 - nsfs nsfs rw\n";
        let (without, _) = NODE.split_at(NODE.find("22 21").unwrap());
        assert_eq!(copies(without, slave), [false, false]);
        // The node's own.
        assert_eq!(copies(NODE, NODE), [false, false, false]);
    }
}
