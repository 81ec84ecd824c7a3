//! Checks the node itself at the moment of a change: which netns have an IP, and what holds a netns. The daemon is asked as
//! well, but may be seconds behind.
//!
//! If something could not be read, nothing is changed.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::mount::UnmountFlags;

use crate::clock;
use crate::contract::{Address, Netns};
use crate::fact::{BootNs, Fact, Holder, NetnsPath, NetnsRef, Observation, Scope};
use crate::remedy::said;
use crate::sources::netlink::{AdoptError, Requests};
use crate::sources::procfs::{Proc, Search};

mod pair;

/// How often the netns are listed, to distinguish those that ended meanwhile from those that cannot be opened.
const ROUNDS: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);

/// Maximum age of a look at all addresses, in ns.
const FRESH: u64 = 1_000_000_000;

/// The reason if a check under a store's lock takes too long: ADDs and DELs wait for that lock.
pub(super) const LATE: &str = "to look at it took longer than pods may wait for the store's lock: try again when the node is less busy";

/// How long a search for netns that fds and sockets keep may take, and how many ways into one are kept.
const KEPT: u64 = 5_000_000_000;
const WAYS: usize = 4;

/// How long a search for what holds a netns may take. Nobody waits for it but a person.
const SEARCHED: u64 = 15_000_000_000;

/// Inode of the first pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST_PIDS: &str = "pid:[4026531836]";

/// Succeeds if this process runs on the node itself: in the initial pid namespace, and in the node's mount and network
/// namespaces.
///
/// # Errors
/// Why nothing can be changed from here, for people.
pub(super) fn is_here() -> Result<(), String> {
    let unseen = |error: io::Error| {
        format!("whether this is the node itself cannot be seen ({error}): run it as root")
    };
    // In another pid namespace, pid 1 is a process of the container, and the checks below would pass.
    if !sees_all_processes(&std::fs::read_link("/proc/self/ns/pid").map_err(unseen)?) {
        return Err(
            "this is a pid namespace of its own, in which not every process of the node can be seen: run `ipwatch fix` on \
             the node itself"
                .to_owned(),
        );
    }
    let mounts = Proc::new().is_in_nodes_mounts().map_err(unseen)?;
    let net = net_of("1").map_err(unseen)? == net_of("self").map_err(unseen)?;
    if mounts && net {
        return Ok(());
    }
    Err("this is not the node itself, but a container or another namespace: run `ipwatch fix` on the node".to_owned())
}

fn sees_all_processes(pids: &Path) -> bool {
    pids == Path::new(FIRST_PIDS)
}

/// A number that identifies the netns of a process, without permission to read its namespace link: the inode of a file that
/// each netns has of its own (`get_proc_task_net`, fs/proc/proc_net.c; 6.18).
fn net_of(process: &str) -> io::Result<u64> {
    let path = Path::new("/proc").join(process).join("net/dev");
    Ok(rustix::fs::stat(path.as_path())?.st_ino)
}

/// Whether all processes whose namespace links may not be read are in this process's netns. These have capabilities that
/// this process lacks, as pid 1 may have. Their threads are assumed to be in the same netns.
fn unread_are_here() -> io::Result<bool> {
    let own = net_of("self")?;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else { continue };
        match std::fs::read_link(Path::new("/proc").join(pid).join("ns/net")) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            _ => continue,
        }
        match net_of(pid) {
            Ok(theirs) if theirs != own => return Ok(false),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(true)
}

/// Reads the state of the node. Its thread enters other netns: see [`Requests`].
pub(super) struct Node {
    proc: Proc,
    requests: Requests,
    /// When all addresses of the node were read, and the netns of each.
    up: Option<(BootNs, BTreeMap<IpAddr, String>)>,
    /// By inode, what the daemon knows about each netns.
    told: BTreeMap<u32, Told>,
    /// By inode, the fds and sockets that keep a netns, as of the last search.
    kept: BTreeMap<u32, Vec<NetnsPath>>,
}

/// What the daemon knows about a netns.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    cookie: Option<u64>,
    /// It lists addresses of the netns, and has therefore read all of them.
    addresses: bool,
}

impl Node {
    pub(super) fn new() -> io::Result<Self> {
        let (proc, requests) = (Proc::new(), Requests::new()?);
        Ok(Self { proc, requests, up: None, told: BTreeMap::new(), kept: BTreeMap::new() })
    }

    /// Whether the last look at all addresses is recent enough.
    pub(super) fn is_fresh(&self) -> bool {
        self.up.as_ref().is_some_and(|(at, _)| clock::now().since(*at) < FRESH)
    }

    /// Takes over what the daemon knows about the netns, for those that cannot be opened from here, such as one whose mount
    /// is hidden below another mount.
    pub(super) fn hears(&mut self, addresses: &[Address]) {
        self.told.clear();
        for address in addresses {
            let Some(inode) = address.netns.inode else { continue };
            let told = self.told.entry(inode).or_default();
            told.cookie = address.netns.cookie;
            told.addresses |= address.ip.is_some();
        }
    }

    /// Looks for netns that an fd or a socket alone keeps, before anybody waits for a lock: it reads every fd of the node.
    /// What it could not read in time, or may not, is the daemon's to tell of.
    pub(super) fn look_for_kept(&mut self) -> Result<(), String> {
        let until = clock::now().plus(KEPT);
        let (facts, _) = self.proc.kept_by_files(until).map_err(unread)?;
        self.kept = ways_in(&facts);
        Ok(())
    }

    /// Looks again at those of these netns that an fd or a socket keeps: what did not open may have been closed.
    fn look_again(&mut self, these: &BTreeMap<u32, Vec<NetnsPath>>) -> Result<(), String> {
        let gone: Vec<NetnsRef> = these
            .keys()
            .filter(|inode| self.kept.contains_key(inode))
            .map(|inode| NetnsRef::inode(*inode))
            .collect();
        if gone.is_empty() {
            return Ok(());
        }
        let search = Search { until: clock::now().plus(KEPT), ..Search::everything() };
        let found = ways_in(&self.proc.search(&gone, search).map_err(unread)?);
        self.kept.retain(|inode, _| gone.iter().all(|one| one.inode != Some(*inode)));
        self.kept.extend(found);
        Ok(())
    }

    /// Succeeds if no netns of the node has the IP, asked within the last second.
    ///
    /// # Errors
    /// Which netns has it, or what could not be read.
    pub(super) fn nobody_has(&mut self, ip: IpAddr, until: BootNs) -> Result<(), String> {
        if !self.is_fresh() {
            let at = clock::now();
            self.up = Some((at, self.addresses(until)?));
        }
        match self.up.as_ref().and_then(|(_, up)| up.get(&ip)) {
            Some(netns) => {
                Err(format!("{netns} has the IP up: once freed, the next pod would share it"))
            }
            None => Ok(()),
        }
    }

    /// Every address of every netns that a task, a mount, an fd or a socket leads to, and where it is. Fds and sockets are
    /// those of the last [`Node::look_for_kept`].
    fn addresses(&mut self, until: BootNs) -> Result<BTreeMap<IpAddr, String>, String> {
        let mut up = BTreeMap::new();
        let host = self.requests.dump_host().map_err(|error| error.to_string())?;
        note(&host, "the node", &mut up)?;
        self.each_netns(until, true, |inode, facts| {
            note(facts, &format!("net:[{inode}]"), &mut up)
        })?;
        Ok(up)
    }

    /// Reads every netns that exists now, except the host's. Netns that are created meanwhile are left to the daemon:
    /// otherwise a process that creates netns without end could delay this for ever. `told`: if a netns cannot be opened, it
    /// is enough that the daemon knows its addresses.
    fn each_netns(
        &mut self,
        until: BootNs,
        told: bool,
        mut each: impl FnMut(u32, &[Fact]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut left = self.all_netns(until)?;
        let mut closed = String::new();
        for round in 0..ROUNDS {
            if round > 0 {
                std::thread::sleep(PAUSE);
                self.look_again(&left)?;
                let now = self.all_netns(until)?;
                left = now.into_iter().filter(|(inode, _)| left.contains_key(inode)).collect();
            }
            let mut failed = BTreeMap::new();
            for (inode, doors) in std::mem::take(&mut left) {
                if clock::now() > until {
                    return Err(LATE.to_owned());
                }
                match self.read(inode, &doors) {
                    Ok(facts) => each(inode, &facts)?,
                    Err(error @ AdoptError::Stranded) => return Err(error.to_string()),
                    // The daemon knows its addresses, and has just answered that no netns has the IP.
                    Err(_) if told && self.told.get(&inode).is_some_and(|told| told.addresses) => {}
                    // The netns or its task or mount has gone, or it cannot be opened: the next list shows which.
                    Err(error) => {
                        closed = format!("net:[{inode}]: {error}");
                        failed.insert(inode, doors);
                    }
                }
            }
            if failed.is_empty() {
                return Ok(());
            }
            left = failed;
        }
        self.look_again(&left)?;
        if of_these(&left, self.all_netns(until)?).is_empty() {
            return Ok(());
        }
        Err(format!("what a network namespace has could not be asked: {closed}"))
    }

    /// Reads a netns through one of these paths, or by the cookie that the daemon knows (Linux 6.18).
    fn read(&mut self, inode: u32, doors: &[NetnsPath]) -> Result<Vec<Fact>, AdoptError> {
        let by_inode = NetnsRef::inode(inode);
        let closed = match self.requests.adopt(by_inode, doors, &[], true) {
            Err(error) if !error.is_fatal() => error,
            read => return read,
        };
        let cookie = self.told.get(&inode).and_then(|told| told.cookie);
        if cookie.is_none() {
            return Err(closed);
        }
        self.requests.adopt(NetnsRef { cookie, ..by_inode }, &[NetnsPath::Handle], &[], true)
    }

    /// The netns of the node except the host's, by inode, with the paths by which each can be opened.
    fn all_netns(&self, until: BootNs) -> Result<BTreeMap<u32, Vec<NetnsPath>>, String> {
        if clock::now() > until {
            return Err(LATE.to_owned());
        }
        let host = self.requests.host();
        let tasks = self.tasks()?;
        let mounts = self.proc.mounts().map_err(unread)?;
        let (others, whole) = self.proc.mounts_elsewhere().map_err(unread)?;
        if !whole || !are_all_complete(&mounts) {
            return Err("not every mount could be read".to_owned());
        }
        let mut all: BTreeMap<u32, Vec<NetnsPath>> = BTreeMap::new();
        for fact in tasks.iter().chain(&mounts).chain(&others) {
            let (netns, door) = match &fact.what {
                Observation::Task(task) => {
                    let (pid, tid) = (task.key.pid, task.key.tid);
                    (task.netns, Some(NetnsPath::Task { pid, tid }))
                }
                Observation::Holder { netns, holder } => (*netns, NetnsPath::through(holder)),
                _ => continue,
            };
            if let Some(inode) = netns.inode.filter(|inode| Some(*inode) != host.inode) {
                all.entry(inode).or_default().extend(door);
            }
        }
        for (inode, doors) in &self.kept {
            if Some(*inode) != host.inode {
                all.entry(*inode).or_default().extend(doors.iter().cloned());
            }
        }
        Ok(all)
    }

    /// Unmounts a netns from the node's mount namespace if it is still the same netns and only this mount holds it.
    ///
    /// # Errors
    /// What prevents it.
    pub(super) fn unmount(&mut self, path: &str, netns: &Netns) -> Result<(), String> {
        let Some(inode) = netns.inode else {
            return Err("which netns it is is not known".to_owned());
        };
        let wanted = NetnsRef { cookie: netns.cookie, inode: Some(inode), nsid: None };
        let door = [NetnsPath::Mount { pid: 1, path: path.to_owned() }];
        // Compares its inode and, where the kernel tells one (5.14), its cookie.
        self.requests.adopt(wanted, &door, &[], true).map_err(|error| match error {
            AdoptError::Mismatch { .. } => {
                "another network namespace is mounted there by now".to_owned()
            }
            error => error.to_string(),
        })?;
        let tasks = self.tasks()?;
        let is_inside = |fact: &Fact| match &fact.what {
            Observation::Task(task) if task.netns.inode == Some(inode) => Some(task.key.pid),
            _ => None,
        };
        if let Some(pid) = tasks.iter().find_map(is_inside) {
            return Err(format!("pid {pid} is in it"));
        }
        let until = clock::now().plus(SEARCHED);
        let search = Search { until, ..Search::everything() };
        let found = self.proc.search(&[wanted], search).map_err(unread)?;
        // Fds of processes with more capabilities than this one cannot be read. That none of them holds the netns is known
        // from the daemon: the finding fires only after a search that read everything.
        if !is_whole(&found) {
            let mounts = self.proc.search(&[wanted], Search { until, ..Search::mounts() });
            if !is_whole(&mounts.map_err(unread)?) {
                return Err("not every mount could be read".to_owned());
            }
        }
        only_mount(&found, path)?;
        unmount_there(path, inode)
    }

    /// Every task that is in another netns than the host's.
    fn tasks(&self) -> Result<Vec<Fact>, String> {
        let tasks = self.proc.tasks(self.requests.host()).map_err(unread)?;
        let whole = is_complete(&tasks, |scope| matches!(scope, Scope::Tasks));
        if whole || unread_are_here().map_err(unread)? {
            return Ok(tasks);
        }
        Err("not every process could be read".to_owned())
    }
}

/// The ways into each netns that holders give.
fn ways_in(facts: &[Fact]) -> BTreeMap<u32, Vec<NetnsPath>> {
    let mut all: BTreeMap<u32, Vec<NetnsPath>> = BTreeMap::new();
    for fact in facts {
        if let Observation::Holder { netns: NetnsRef { inode: Some(inode), .. }, holder } =
            &fact.what
        {
            let doors = all.entry(*inode).or_default();
            // One is enough; another may be closed.
            doors.extend(NetnsPath::through(holder).filter(|_| doors.len() < WAYS));
        }
    }
    all
}

/// Whether a search read everything.
fn is_whole(found: &[Fact]) -> bool {
    let cut =
        |fact: &Fact| matches!(fact.what, Observation::HoldersSearched { complete: false, .. });
    !found.iter().any(cut)
}

/// Whether a search found this one mount and nothing else.
fn only_mount(found: &[Fact], path: &str) -> Result<(), String> {
    let mut mounts = 0;
    for fact in found {
        match &fact.what {
            Observation::Holder { holder: Holder::Mount { path: at, pid: 1, .. }, .. }
                if at == path =>
            {
                mounts += 1;
            }
            Observation::Holder { holder, .. } => {
                return Err(format!("{} holds it as well", words(holder)));
            }
            _ => {}
        }
    }
    match mounts {
        0 => Err("it is not mounted there any more".to_owned()),
        1 => Ok(()),
        _ => Err("it is mounted there more than once".to_owned()),
    }
}

fn words(holder: &Holder) -> String {
    match holder {
        Holder::Mount { mount_ns, path, .. } => {
            format!("a mount at {} in mnt:[{mount_ns}]", said(path))
        }
        Holder::Fd { pid, fd, comm } => format!("fd {fd} of pid {pid} ({})", said(comm)),
        Holder::Socket { pid, fd, comm } => {
            format!("a socket, fd {fd} of pid {pid} ({}),", said(comm))
        }
        Holder::Orphan { .. } => "a socket of no process".to_owned(),
        Holder::Candidate { pid, comm, .. } => format!("perhaps pid {pid} ({})", said(comm)),
    }
}

fn unread(error: io::Error) -> String {
    format!("/proc cannot be read: {error}")
}

/// Of the netns that could not be opened, those that still exist, with their present paths. The kernel reuses an inode at
/// once (`ida_alloc`, lib/idr.c): if none of the old paths is left, it is another netns, and the old one has ended.
fn of_these(
    failed: &BTreeMap<u32, Vec<NetnsPath>>,
    now: BTreeMap<u32, Vec<NetnsPath>>,
) -> BTreeMap<u32, Vec<NetnsPath>> {
    let is_same = |inode: &u32, now: &[NetnsPath]| {
        failed.get(inode).is_some_and(|then| {
            then.is_empty() || now.is_empty() || then.iter().any(|door| now.contains(door))
        })
    };
    now.into_iter().filter(|(inode, doors)| is_same(inode, doors)).collect()
}

/// Whether these facts contain at least one list, and all lists are complete.
fn are_all_complete(facts: &[Fact]) -> bool {
    let mut ends = facts.iter().filter_map(|fact| match fact.what {
        Observation::Ended { complete, .. } => Some(complete),
        _ => None,
    });
    ends.next() == Some(true) && ends.all(|complete| complete)
}

/// Whether a complete dump of this scope is among the facts.
fn is_complete(facts: &[Fact], is: impl Fn(&Scope) -> bool) -> bool {
    facts.iter().any(|fact| match &fact.what {
        Observation::Ended { scope, complete, .. } => *complete && is(scope),
        _ => false,
    })
}

/// Notes the addresses of a netns.
fn note(facts: &[Fact], name: &str, up: &mut BTreeMap<IpAddr, String>) -> Result<(), String> {
    if !is_complete(facts, |scope| matches!(scope, Scope::Addresses { .. })) {
        return Err(format!("not all addresses of {name} could be read"));
    }
    for fact in facts {
        if let Observation::Address { address, .. } = &fact.what {
            up.insert(address.key.local, name.to_owned());
        }
    }
    Ok(())
}

/// Unmounts what is mounted at a path if it is a netns with this inode. No symlink is followed, and the unmount is not lazy:
/// it fails if the mount is in use.
fn unmount_there(path: &str, inode: u32) -> Result<(), String> {
    let fail = |error: rustix::io::Errno| format!("{}: {error}", said(path));
    let path_of = Path::new(path);
    let (Some(above), Some(name)) = (path_of.parent(), path_of.file_name()) else {
        return Err(format!("{} is no path of a mount", said(path)));
    };
    let open = |at: &Path, flags: OFlags| {
        let (flags, resolve) = (flags | OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_SYMLINKS);
        rustix::fs::openat2(rustix::fs::CWD, at, flags, Mode::empty(), resolve)
    };
    let directory: OwnedFd = open(above, OFlags::DIRECTORY).map_err(fail)?;
    {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&directory, name, flags, Mode::empty()).map_err(fail)?;
        let stat = rustix::fs::fstat(&file).map_err(fail)?;
        if stat.st_ino != u64::from(inode) {
            return Err("another network namespace is mounted there by now".to_owned());
        }
    }
    let at = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    rustix::mount::unmount(&at, UnmountFlags::NOFOLLOW).map_err(|error| match error {
        rustix::io::Errno::BUSY => "somebody has it open".to_owned(),
        error => fail(error),
    })
}

#[cfg(test)]
mod tests;
