//! One pass over the mounts of every mount namespace of the node.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;

use super::files::{Dir, is_gone};
use super::mounts::{self, Mount};
use super::perils::Perils;
use crate::clock;
use crate::fact::BootNs;

/// Number of a mount namespace whose link may not be read: that needs the right to trace the process (which may have
/// capabilities that we lack); its mountinfo does not.
pub(super) const UNKNOWN: u64 = 0;

/// Maximum number of processes remembered for one mount namespace.
const FEW: usize = 8;

/// Where a mount was seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct MountNamespace {
    /// Inode of the mount namespace, or [`UNKNOWN`].
    pub(super) mount_ns: u64,
    /// A process in it.
    pub(super) pid: u32,
}

/// The result of a pass.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Whether every mount namespace that a process is in was read completely.
    pub(super) complete: bool,
    /// The first few processes of each mount namespace, which have the lowest pids.
    pub(super) processes: HashMap<u64, Vec<u32>>,
}

/// Passes every mount of every mount namespace to `each`. A mount can be passed twice: through a process that hides its
/// namespaces, through one in a chroot, or if a namespace was read again after a failed read.
///
/// A mountinfo shows what is below the root of its process, and leaves out the rest (`show_mountinfo`,
/// fs/proc_namespace.c; 5.10 to 6.18). A mount namespace is therefore read through processes in a chroot only until one
/// is found that is not. If all are, what lies outside of their roots stays unknown, and the pass is complete
/// nevertheless: an agent that changes to the node's root in its container is such a mount namespace for as long as it
/// runs, and anybody can make one, so that on many nodes no leak would ever be reported. `netns_leaked` says that such a
/// mount is possible.
pub(super) fn each_mount(
    proc: &Path,
    perils: &Perils,
    until: BootNs,
    mut each: impl FnMut(MountNamespace, &Mount<'_>),
) -> io::Result<Pass> {
    let root = Dir::open(proc)?;
    let mut walk = Walk { proc, perils, until, each: &mut each };
    let (mut read, mut unread) = (HashSet::new(), HashSet::new());
    let (mut roots, hasher) = (HashMap::<u64, Vec<u64>>::new(), RandomState::new());
    let mut denied = Vec::new();
    let mut pass = Pass { complete: true, ..Pass::default() };
    let mut pids = root.numbers(".")?;
    let (all, own) = (pids.len(), std::process::id());
    let mut at = 0;
    while let Some(&pid) = pids.get(at) {
        // A mount namespace is read through one of its processes, which is shown to people. Our own process and kernel
        // threads are used only if there is no other.
        let last = at >= all;
        at += 1;
        if clock::now() > until {
            return Ok(Pass { complete: false, ..pass });
        }
        let tasks = match root.dir(pid.to_string()).and_then(|dir| of_process(&dir, pid)) {
            Ok(tasks) => tasks,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                denied.push(pid);
                continue;
            }
            Err(error) => {
                pass.complete &= is_gone(&error);
                continue;
            }
        };
        for (mount_ns, path) in tasks {
            if pid != own && !last {
                remember(pass.processes.entry(mount_ns).or_default(), pid);
            }
            if read.contains(&mount_ns) {
                continue;
            }
            if !last && (pid == own || is_of_the_kernel(&root, pid)) {
                pids.push(pid);
                continue;
            }
            let below = root.dir(&path).and_then(|dir| root_of(&dir));
            let below = below.unwrap_or_default();
            let seen = roots.get(&mount_ns).map_or(&[][..], Vec::as_slice);
            let hash = hasher.hash_one(&below);
            if !below.is_empty() && (seen.len() >= FEW || seen.contains(&hash)) {
                continue;
            }
            match walk.read(MountNamespace { mount_ns, pid }, &path, &below) {
                Ok(Some(whole)) => {
                    pass.complete &= whole;
                    if below.is_empty() {
                        read.insert(mount_ns);
                    } else {
                        roots.entry(mount_ns).or_default().push(hash);
                    }
                }
                Ok(None) => {} // it has left; another process may still show this one
                Err(_) => {
                    unread.insert(mount_ns);
                }
            }
        }
    }
    for pid in denied {
        remember(pass.processes.entry(UNKNOWN).or_default(), pid);
        let place = MountNamespace { mount_ns: UNKNOWN, pid };
        pass.complete &= match walk.read(place, &pid.to_string(), b"") {
            Ok(whole) => whole.unwrap_or(true),
            Err(_) => false,
        };
    }
    pass.complete &= unread.is_subset(&read);
    Ok(pass)
}

/// Where the root of a process is in its mount namespace, as mountinfo would write it; empty if it is at the top. The
/// link's text begins at the top whoever reads it (`prepend_path`, fs/d_path.c; 5.10 to 6.18), unless it is below the
/// reader's own root.
fn root_of(dir: &Dir) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 4096]; // a page, which the kernel fills at most (`do_proc_readlink`)
    match dir.link("root", &mut buffer) {
        Ok(b"/") => Ok(Vec::new()),
        Ok(root) => Ok(root.iter().flat_map(escaped).copied().collect()),
        Err(error) if is_gone(&error) => Err(error),
        // No path, so that no command is made of what is below it.
        Err(_) => Ok(b"?".to_vec()),
    }
}

fn escaped(byte: &u8) -> &[u8] {
    if *byte == b'\\' { b"\\134" } else { std::slice::from_ref(byte) }
}

/// Whether the root of a process is that of its mount namespace, so that it sees all mounts of it, each at the path that
/// it has there.
pub(super) fn is_at_the_top(dir: &Dir) -> bool {
    root_of(dir).is_ok_and(|root| root.is_empty())
}

/// Kernel threads have no executable (`proc_exe_link`, fs/proc/base.c).
fn is_of_the_kernel(root: &Dir, pid: u32) -> bool {
    let dir = root.dir(pid.to_string());
    dir.is_ok_and(|dir| dir.link("exe", &mut [0; 64]).is_err_and(|error| is_gone(&error)))
}

fn remember(known: &mut Vec<u32>, pid: u32) {
    if known.len() < FEW && known.last() != Some(&pid) {
        known.push(pid);
    }
}

struct Walk<'a, F> {
    proc: &'a Path,
    perils: &'a Perils,
    until: BootNs,
    each: &'a mut F,
}

impl<F: FnMut(MountNamespace, &Mount<'_>)> Walk<'_, F> {
    /// Reads one mountinfo, that of a task whose root is at `below`. Returns whether it was read completely, or `None` if
    /// the task has released its namespaces (EINVAL, `mounts_open_common`) or is gone, or if it shows not even its own root,
    /// which was unmounted then (`umount -l`).
    fn read(
        &mut self,
        place: MountNamespace,
        task: &str,
        below: &[u8],
    ) -> io::Result<Option<bool>> {
        let is_strange = place.pid != 1 && place.pid != std::process::id();
        let process = || Dir::open(&self.proc.join(place.pid.to_string()));
        let process = match is_strange.then(process).transpose() {
            Err(error) if is_gone(&error) => return Ok(None),
            process => process?,
        };
        let enter = |process| self.perils.enter(clock::now(), process);
        let _under_way = process.as_ref().map(enter).transpose().map_err(io::Error::other)?;
        let mut any = false;
        let path = self.proc.join(task).join("mountinfo");
        let lines = mounts::lines_until(&path, self.until, |line| {
            any = true;
            if let Some(mut mount) = Mount::parse(line) {
                let point = match (below, mount.point) {
                    (b"", point) => Cow::Borrowed(point),
                    (below, b"/") => Cow::Borrowed(below),
                    (below, point) => Cow::Owned([below, point].concat()),
                };
                mount.point = &point;
                (self.each)(place, &mount);
            }
        });
        match lines {
            Ok(whole) => Ok((any || !whole || !below.is_empty()).then_some(whole)),
            Err(error) if is_gone(&error) || error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The mount namespaces of a process, each with a task in it: one, or those of its threads if the leader has exited. A
/// thread beside a leader that lives can be in another one (`unshare(CLONE_NEWNS)`), which is not read: nothing shows it
/// but a link for each thread, of which a node can have 20,000.
fn of_process(dir: &Dir, pid: u32) -> io::Result<Vec<(u64, String)>> {
    match dir.namespace("ns/mnt", "mnt") {
        Ok(mount_ns) => return Ok(vec![(mount_ns, pid.to_string())]),
        Err(error) if !is_gone(&error) => return Err(error),
        Err(_) => {}
    }
    let mut found = Vec::new();
    for tid in dir.numbers("task")? {
        if let Ok(mount_ns) = dir.namespace(&format!("task/{tid}/ns/mnt"), "mnt") {
            found.push((mount_ns, format!("{pid}/task/{tid}")));
        }
    }
    Ok(found)
}
