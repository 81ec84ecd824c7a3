//! Finds what other than a task holds a netns: mounts in every mount namespace, and fds and sockets of every process.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::process::{Pid, PidfdFlags};

use super::files::{Dir, is_gone, numbered};
use super::look::{netns, stat};
use super::mounts::{self, Mount};
use super::namespaces::{self, MountNamespace};
use super::shares::Shares;
use super::{Proc, cgroup, fact};
use crate::clock;
use crate::fact::{BootNs, Fact, Holder, NetnsRef, Observation, Scope};
use crate::sources::netlink::netns_of_socket;

/// Inode of the first user namespace (`PROC_USER_INIT_INO`, include/linux/proc_ns.h).
const INIT_USER_NS: u64 = 0xEFFF_FFFD;

/// Where to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    /// Also the fds of every process: 400 ms for 2,000 processes with 36,000 fds. Not needed if there is a BPF snapshot
    /// of files, which takes 15 ms.
    pub files: bool,
    /// Also every socket among these fds: 200 ms more.
    pub sockets: bool,
    /// When to give up; the result is then incomplete.
    pub until: BootNs,
}

impl Search {
    /// Only mounts, for at most five seconds.
    #[must_use]
    pub fn mounts() -> Self {
        Self { files: false, sockets: false, until: clock::now().plus(5_000_000_000) }
    }

    /// Everything, for at most three seconds.
    #[must_use]
    pub fn everything() -> Self {
        Self { files: true, sockets: true, until: clock::now().plus(3_000_000_000) }
    }
}

impl Proc {
    /// Reads the netns mounts of the node's mount namespace, which is that of its first process, and of the daemon's
    /// own, which may be a container's or a hardened service's. These are the mounts that runtimes and people make, and
    /// cost one read of one file each. The mounts of each mount namespace are bracketed by its [`Scope::Mounts`]. Other
    /// mount namespaces are searched only if the holders of a netns are requested.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn mounts(&self) -> io::Result<Vec<Fact>> {
        let root = Dir::open(&self.root)?;
        let ours = root.dir("self")?.namespace("ns/mnt", "mnt")?;
        let mut facts = Vec::new();
        // If the link may not be read, the mounts may not be read either (`mounts_open_common`, fs/proc_namespace.c).
        let nodes = root.dir("1").and_then(|dir| dir.namespace("ns/mnt", "mnt"));
        if let Some(mount_ns) = nodes.ok().filter(|nodes| *nodes != ours) {
            self.mounts_in("1", MountNamespace { mount_ns, pid: 1 }, &mut facts)?;
        }
        let pid = self.first_of_ours(&root, ours);
        self.mounts_in("self", MountNamespace { mount_ns: ours, pid }, &mut facts)?;
        Ok(facts)
    }

    fn mounts_in(
        &self,
        process: &str,
        place: MountNamespace,
        facts: &mut Vec<Fact>,
    ) -> io::Result<()> {
        let scope = Scope::Mounts { mount_ns: place.mount_ns };
        let began = clock::now();
        facts.push(Fact { at: began, ..fact(Observation::Began(scope.clone())) });
        let complete = mounts::lines(&self.root.join(process).join("mountinfo"), |line| {
            let Some(mount) = Mount::parse(line) else { return };
            let Some(inode) = mount.netns() else { return };
            let holder = mounted(place, &mount, None, false);
            facts.push(fact(Observation::Holder { netns: NetnsRef::inode(inode), holder }));
        })?;
        facts.push(fact(Observation::Ended { scope, began, complete }));
        Ok(())
    }

    /// The node's first process, if it is in our own mount namespace, because it outlives the daemon and paths are
    /// looked up later; otherwise ourselves. If the first process has capabilities that we lack, its link cannot be
    /// read. The id of its root mount then decides, which is unique on the node (`mnt_alloc_id`, fs/namespace.c).
    fn first_of_ours(&self, root: &Dir, mount_ns: u64) -> u32 {
        let first = |process: &str| {
            let mut id = None;
            let path = self.root.join(process).join("mountinfo");
            let read = mounts::lines(&path, |line| {
                id = id.or_else(|| Mount::parse(line).map(|mount| mount.id));
            });
            read.ok().and(id)
        };
        let theirs = root.dir("1").and_then(|dir| dir.namespace("ns/mnt", "mnt"));
        let ours = match theirs {
            Ok(theirs) => theirs == mount_ns,
            Err(_) => first("1").is_some_and(|id| first("self") == Some(id)),
        };
        if ours { 1 } else { std::process::id() }
    }

    /// Whether this process is in the node's own mount namespace, that of the first process.
    ///
    /// # Errors
    /// `/proc` is unreadable.
    pub(crate) fn is_in_nodes_mounts(&self) -> io::Result<bool> {
        let root = Dir::open(&self.root)?;
        let ours = root.dir("self")?.namespace("ns/mnt", "mnt")?;
        Ok(self.first_of_ours(&root, ours) == 1)
    }

    /// Searches for what holds these netns: a fact for each holder, and for each netns one that says
    /// that the search has ended, and whether everything could be read **of where it was to look**. A
    /// netns whose inode is not known cannot be searched for.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub fn search(&self, wanted: &[NetnsRef], search: Search) -> io::Result<Vec<Fact>> {
        let known: HashMap<u32, NetnsRef> =
            wanted.iter().filter_map(|netns| Some((netns.inode?, *netns))).collect();
        let mut facts = Vec::new();
        let mut found = |inode: u32, holder| {
            if let Some(&netns) = known.get(&inode) {
                facts.push(fact(Observation::Holder { netns, holder }));
            }
        };
        let is_wanted = |inode: u32| known.contains_key(&inode);
        let mut shares = Shares::of_search(known.len());
        let mut complete = self.each_mount(is_wanted, search.until, &mut shares, &mut found)?;
        if search.files {
            let (wanted, sockets) = (is_wanted, HashMap::new());
            let mut files = Files { wanted, search, sockets, shares: &mut shares, found };
            complete &= files.search(&Dir::open(&self.root)?)?;
        }
        for &netns in wanted {
            let complete = complete && netns.inode.is_some();
            facts.push(fact(Observation::HoldersSearched { netns, complete }));
        }
        Ok(facts)
    }

    /// Every netns that an fd or a socket of a process keeps which is in another one, and whether all could be read.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub(crate) fn kept_by_files(&self, until: BootNs) -> io::Result<(Vec<Fact>, bool)> {
        let mut facts = Vec::new();
        let found = |inode, holder| {
            facts.push(fact(Observation::Holder { netns: NetnsRef::inode(inode), holder }));
        };
        let search = Search { until, ..Search::everything() };
        let wanted = |inode| inode >= FIRST_INODE;
        let mut shares = Shares::of_all();
        let sockets = HashMap::new();
        let mut files = Files { wanted, search, sockets, shares: &mut shares, found };
        let whole = files.search(&Dir::open(&self.root)?)?;
        Ok((facts, whole && !shares.is_cut))
    }

    /// Reads, in every mount namespace, the mounts of netns that [`Proc::mounts`] does not report.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub fn all_mounts(&self) -> io::Result<Vec<Fact>> {
        Ok(self.mounts_elsewhere()?.0)
    }

    /// As [`Proc::all_mounts`], and whether every mount namespace could be read.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub(crate) fn mounts_elsewhere(&self) -> io::Result<(Vec<Fact>, bool)> {
        let told: HashSet<u32> = self
            .mounts()?
            .iter()
            .filter_map(|fact| match &fact.what {
                Observation::Holder { netns, .. } => netns.inode,
                _ => None,
            })
            .collect();
        let mut facts = Vec::new();
        let found = |inode, holder| {
            facts.push(fact(Observation::Holder { netns: NetnsRef::inode(inode), holder }));
        };
        let until = Search::everything().until;
        let mut shares = Shares::of_all();
        let whole = self.each_mount(|inode| !told.contains(&inode), until, &mut shares, found)?;
        Ok((facts, whole && !shares.is_cut))
    }

    /// Passes the mounts of wanted netns to `found`, as many as their shares allow, but for copies that go with a mount of
    /// the node. Returns false if a mount namespace could not be read.
    fn each_mount(
        &self,
        wanted: impl Fn(u32) -> bool,
        until: BootNs,
        shares: &mut Shares,
        mut found: impl FnMut(u32, Holder),
    ) -> io::Result<bool> {
        let root = Dir::open(&self.root)?;
        let own = root.dir("self").and_then(|dir| dir.namespace("ns/mnt", "mnt")).ok();
        let host = self.host_mount_ns();
        let first = own.map(|own| self.first_of_ours(&root, own));
        // Ids are unique on the node (`mnt_alloc_id`), whichever process shows them.
        let mut ids = HashSet::new();
        let mut propagation = self.propagation(|mount| mount.netns().is_some_and(&wanted));
        let pass = namespaces::each_mount(&self.root, &self.perils, until, |place, mount| {
            let is_copy = propagation.is_copy(mount);
            let Some(inode) = mount.netns().filter(|inode| wanted(*inode)) else { return };
            let foreign = own != Some(place.mount_ns);
            let is_known = (is_copy && foreign) || ids.contains(&mount.id);
            if !is_known && shares.take(inode) {
                ids.insert(mount.id);
                let place = match first.filter(|_| !foreign) {
                    Some(pid) => MountNamespace { pid, ..place },
                    None => place,
                };
                let process = foreign.then(|| root.dir(place.pid.to_string()).ok()).flatten();
                let foreign = foreign
                    && host != Some(place.mount_ns)
                    && !process.as_ref().is_some_and(is_runtime);
                found(inode, mounted(place, mount, process.as_ref(), foreign));
            }
        })?;
        Ok(pass.complete)
    }
}

/// Program names of container runtimes, which may have a mount namespace of their own (`PrivateMounts=`, `MountFlags=`
/// in a unit, a snap) and mount the netns of their sandboxes there.
const RUNTIMES: [&[u8]; 7] =
    [b"containerd", b"crio", b"dockerd", b"k3s", b"podman", b"rke2", b"cri-dockerd"];

/// Whether a process is a container runtime of the node: by its program name, if it is neither in a container nor in
/// another user namespace. A container can give its program the same name.
fn is_runtime(process: &Dir) -> bool {
    let mut buffer = [0; 4096]; // PATH_MAX
    let named = process.link("exe", &mut buffer).is_ok_and(|path| {
        let name = path.rsplit(|byte| *byte == b'/').next();
        name.is_some_and(|name| RUNTIMES.contains(&name))
    });
    let groups = process.text("cgroup").ok();
    let group = groups.as_deref().and_then(cgroup::naming);
    let contained = group.is_none_or(|path| crate::fact::cgroup::attribution(path).is_some());
    named && !contained && process.namespace("ns/user", "user").is_ok_and(|own| own == INIT_USER_NS)
}

/// A netns mount, with the name and the cgroup of `process`, through which it was seen.
fn mounted(
    place: MountNamespace,
    mount: &Mount<'_>,
    process: Option<&Dir>,
    foreign: bool,
) -> Holder {
    let groups = process.and_then(|dir| dir.text("cgroup").ok());
    Holder::Mount {
        mount_ns: place.mount_ns,
        path: mounts::text(mount.point),
        pid: place.pid,
        comm: process.map(Dir::comm).filter(|comm| !comm.is_empty()),
        cgroup: groups.as_deref().and_then(cgroup::naming).map(ToOwned::to_owned),
        foreign,
    }
}

/// Inodes of namespaces that are made later begin here (`PROC_DYNAMIC_FIRST`, fs/proc/generic.c; 6.18), which rules out
/// most files without a look.
const FIRST_INODE: u32 = 0xf000_0000;

/// The search through fds.
struct Files<'a, W, F> {
    wanted: W,
    search: Search,
    /// The netns of each socket inode seen, because many processes share one.
    sockets: HashMap<u64, Option<u32>>,
    shares: &'a mut Shares,
    found: F,
}

impl<W: Fn(u32) -> bool, F: FnMut(u32, Holder)> Files<'_, W, F> {
    fn search(&mut self, root: &Dir) -> io::Result<bool> {
        let own = std::process::id();
        let mut complete = true;
        for pid in root.numbers(".")?.into_iter().filter(|&pid| pid != own) {
            if clock::now() > self.search.until {
                return Ok(false);
            }
            match root.dir(pid.to_string()).and_then(|dir| self.process(pid, &dir)) {
                Ok(whole) => complete &= whole,
                Err(error) => complete &= is_gone(&error),
            }
        }
        Ok(complete)
    }

    fn process(&mut self, pid: u32, dir: &Dir) -> io::Result<bool> {
        let fds = dir.numbers("fd")?;
        if fds.is_empty() {
            return Ok(true);
        }
        // A process holds its own netns as a task.
        let home =
            dir.namespace("ns/net", "net").and_then(netns).ok().and_then(|netns| netns.inode);
        let mut process = Process { pid, dir, home, pidfd: None, comm: None };
        let mut complete = true;
        for fd in fds {
            match self.fd(&mut process, fd) {
                Ok(()) => {}
                Err(error) if is_gone(&error) => {}
                Err(_) => complete = false,
            }
        }
        Ok(complete)
    }

    fn fd(&mut self, process: &mut Process<'_>, fd: u32) -> io::Result<()> {
        let mut buffer = [0; 64];
        let link = process.dir.link(&format!("fd/{fd}"), &mut buffer)?;
        let (inode, socket) = if let Some(inode) = numbered(link, "net") {
            (u32::try_from(inode).ok(), false)
        } else if link.starts_with(b"/") {
            (self.mounted(process, fd)?, false)
        } else if let Some(socket) = numbered(link, "socket").filter(|_| self.search.sockets) {
            (self.socket(process, fd, socket)?, true)
        } else {
            return Ok(());
        };
        let Some(inode) = inode.filter(|inode| (self.wanted)(*inode)) else {
            return Ok(());
        };
        if process.home != Some(inode) && !process.is_ipwatch() && self.shares.take(inode) {
            let (pid, comm) = (process.pid, process.comm());
            let holder = match socket {
                true => Holder::Socket { pid, fd, comm },
                false => Holder::Fd { pid, fd, comm },
            };
            (self.found)(inode, holder);
        }
        Ok(())
    }

    /// Returns the wanted inode of an fd that was opened through a bind mount, whose link shows the mount's path. The
    /// inode number is in fdinfo (5.14+), which accesses no file system, unlike a stat.
    fn mounted(&self, process: &Process<'_>, fd: u32) -> io::Result<Option<u32>> {
        let info = process.dir.text(format!("fdinfo/{fd}"))?;
        let inode = info.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok());
        let Some(inode) = inode.filter(|inode| (self.wanted)(*inode)) else {
            return Ok(None);
        };
        // Another file system may use the same inode number. It is not accessed, because it may hang: the kernel knows
        // the device number itself.
        let file = process.dir.path(&format!("fd/{fd}"))?;
        let device = |fd: BorrowedFd<'_>| {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let stat = rustix::fs::statx(fd, c"", flags, StatxFlags::TYPE)?;
            Ok::<_, io::Error>((stat.stx_dev_major, stat.stx_dev_minor))
        };
        let ours = std::fs::File::open("/proc/self/ns/net")?;
        Ok((device(file.as_fd())? == device(ours.as_fd())?).then_some(inode))
    }

    fn socket(
        &mut self,
        process: &mut Process<'_>,
        fd: u32,
        socket: u64,
    ) -> io::Result<Option<u32>> {
        if let Some(&known) = self.sockets.get(&socket) {
            return Ok(known);
        }
        process.pidfd()?;
        let netns = {
            // `__pidfd_fget` (kernel/pid.c) waits for exec_update_lock.
            let _reading = process.dir.reading("pidfd_getfd".as_ref())?;
            netns_of_socket(process.pidfd()?.as_fd(), fd)
        };
        let inode = match netns {
            Ok(netns) => u32::try_from(rustix::fs::fstat(&netns)?.st_ino).ok(),
            // Closed meanwhile, or of a protocol family without a netns.
            Err(error) if is_closed(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.sockets.insert(socket, inode);
        Ok(inode)
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK | libc::ENOTTY))
}

/// A process whose fds are searched.
struct Process<'a> {
    pid: u32,
    dir: &'a Dir,
    home: Option<u32>,
    pidfd: Option<OwnedFd>,
    comm: Option<String>,
}

impl Process<'_> {
    fn comm(&mut self) -> String {
        let dir = self.dir;
        self.comm.get_or_insert_with(|| dir.comm()).clone()
    }

    /// Whether it is another ipwatch, such as a `scan` beside the daemon, whose sockets are in a netns while it queries
    /// there. Anyone can choose the name, so the executable is compared too.
    fn is_ipwatch(&mut self) -> bool {
        let program = |dir: &Dir| {
            let file = dir.path("exe").ok()?;
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let stat = rustix::fs::statx(file.as_fd(), c"", flags, StatxFlags::INO).ok()?;
            Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
        };
        let Ok(own) = Dir::open("/proc/self".as_ref()) else { return false };
        // The executable may be on a file system that hangs; most processes are excluded by their name.
        self.comm() == own.comm() && program(&own).is_some_and(|own| program(self.dir) == Some(own))
    }

    fn pidfd(&mut self) -> io::Result<&OwnedFd> {
        if self.pidfd.is_none() {
            let pid = Pid::from_raw(self.pid.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
            let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
            stat(self.dir)?; // still there: so the pid was still its own when the pidfd was made
            self.pidfd = Some(pidfd);
        }
        self.pidfd.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

mod unread;

#[cfg(test)]
mod tests;
