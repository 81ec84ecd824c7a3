//! Finds which container runtimes run on the node, on which sockets they listen, and which containers have a monitor (a
//! containerd-shim or a conmon).
//!
//! A process name proves nothing: anyone can run a program called `containerd-shim-runc-v2`. A process counts only if
//! its name and its executable fit, all its user ids are 0, and it is in the user and pid namespaces of pid 1. This
//! excludes local users, the root of a container, and a runtime within a container, whose containers are not this
//! node's. If the namespaces of a process cannot be read, they do not exclude it: the containers of an overlooked
//! runtime would look dead.
//!
//! A monitor's working directory is the bundle of its container, which is chosen by its runtime only. It contains the
//! runtime's state directory, and so identifies the instance. A runtime's own state directories are found through its
//! open fds: containerd keeps the `log` FIFO of each shim open (`openShimLog`, containerd 1.6 to 2.1).

use std::collections::BTreeSet;
use std::io;

use super::Proc;
use super::files::{Dir, is_gone};
use super::look;
use crate::fact::{Engine, Monitor, RuntimeProcess};

/// Process names of runtimes, which the kernel cuts to 15 bytes.
const RUNTIMES: [(&str, Engine); 5] = [
    ("containerd", Engine::Containerd),
    ("docker-containe", Engine::Containerd),
    ("crio", Engine::CriO),
    ("dockerd", Engine::Docker),
    ("podman", Engine::Podman),
];
/// Programs that contain several, including containerd.
const MULTICALL: [&str; 4] = ["k3s", "rke2", "k0s", "docker-containerd"];
/// Prefixes of monitors' names.
const MONITORS: [&str; 3] = ["containerd-shim", "docker-containe", "conmon"];
/// Part of a bundle's path: `STATE/io.containerd.runtime.v2.task/NAMESPACE/ID`, of old shims `…v1.linux…`.
const BUNDLES: &str = "/io.containerd.runtime.v";
/// Part of the working directory of a conmon: `…/overlay-containers/ID/userdata`.
const STORAGE: &str = "-containers";
/// containerd's namespace for dockerd.
const MOBY: &str = "moby";

/// Maximum number of runtimes kept. A node has one or two.
const MOST_RUNTIMES: usize = 64;
/// Maximum number of monitors kept. A node has one for each pod, or with conmon one for each container.
const MOST_MONITORS: usize = 4096;
const MOST_CHILDREN: usize = 64;
const MOST_FDS: usize = 65_536;
const MOST_SOCKETS: usize = 16;
const MOST_DIRS: usize = 16;
/// Maximum length of a path (`PATH_MAX`).
const LONGEST: usize = 4096;
/// Maximum number of bytes read of a table of Unix sockets: about 50,000 lines.
const TABLE: usize = 4 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimesSeen {
    /// The runtimes, none of which is marked as asked yet.
    pub runtimes: Vec<RuntimeProcess>,
    pub monitors: Vec<Monitor>,
    /// Whether every process could be read.
    pub complete: bool,
}

/// A runtime and its parent.
struct Found {
    process: RuntimeProcess,
    parent: Option<u32>,
}

/// The namespaces of pid 1, or ipwatch's own if those cannot be read.
struct Node {
    user: Option<u64>,
    pid: Option<u64>,
}

impl Proc {
    /// Finds every runtime and monitor of the node.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub fn runtimes(&self) -> io::Result<RuntimesSeen> {
        let root = Dir::open(&self.root)?;
        let of = |name: &str, kind| {
            let read = |pid: &str| root.dir(pid).and_then(|dir| dir.namespace(name, kind)).ok();
            read("1").or_else(|| read("self"))
        };
        let node = Node { user: of("ns/user", "user"), pid: of("ns/pid", "pid") };
        let mut seen = RuntimesSeen { complete: true, ..RuntimesSeen::default() };
        let mut found = Vec::new();
        for pid in root.numbers(".")? {
            let Ok(dir) = root.dir(pid.to_string()) else { continue };
            let comm = match dir.text("comm") {
                Ok(comm) => comm.trim_end_matches('\n').to_owned(),
                Err(error) => {
                    seen.complete &= is_gone(&error);
                    continue;
                }
            };
            if let Some(engine) = runtime(&dir, &comm) {
                if node.owns(&dir) && found.len() < MOST_RUNTIMES {
                    found.extend(read_runtime(pid, engine, &dir, &mut seen.complete));
                }
            } else if is_monitor(&dir, &comm) && node.owns(&dir) {
                if seen.monitors.len() < MOST_MONITORS {
                    seen.monitors.push(read_monitor(pid, &comm, &dir));
                } else {
                    seen.complete = false;
                }
            }
        }
        seen.runtimes = without_dockers_own(found);
        Ok(seen)
    }
}

impl Node {
    /// Whether a process belongs to the node's root user.
    fn owns(&self, dir: &Dir) -> bool {
        let same = |path, kind, own: Option<u64>| match (dir.namespace(path, kind).ok(), own) {
            (Some(its), Some(own)) => its == own,
            _ => true,
        };
        is_root(&dir.text("status").unwrap_or_default())
            && same("ns/user", "user", self.user)
            && same("ns/pid", "pid", self.pid)
    }
}

/// Whether every user id in a `status` is 0.
fn is_root(status: &str) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_whitespace().all(|id| id == "0") && !ids.trim().is_empty())
}

fn parent(dir: &Dir) -> Option<u32> {
    let status = dir.text("status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// The name of the executable; `None` if the link cannot be read.
fn program(dir: &Dir) -> Option<String> {
    let path = link(dir, "exe")?;
    path.rsplit('/').next().map(str::to_owned)
}

/// Which runtime a process is, by its name and its executable.
fn runtime(dir: &Dir, comm: &str) -> Option<Engine> {
    let (name, engine) = RUNTIMES.iter().find(|(name, _)| *name == comm)?;
    let fits = program(dir)
        .is_none_or(|program| program == *name || MULTICALL.contains(&program.as_str()));
    fits.then_some(*engine)
}

fn is_monitor(dir: &Dir, comm: &str) -> bool {
    MONITORS.iter().any(|name| comm.starts_with(name))
        && program(dir).is_none_or(|program| {
            program.starts_with("conmon") || program.contains("containerd-shim")
        })
}

fn read_runtime(pid: u32, engine: Engine, dir: &Dir, complete: &mut bool) -> Option<Found> {
    let (mut sockets, mut dirs) = (BTreeSet::new(), BTreeSet::new());
    match dir.first_numbers("fd", MOST_FDS) {
        Ok((fds, _)) => {
            let texts = fds.into_iter().filter_map(|fd| link(dir, &format!("fd/{fd}")));
            for text in texts {
                if let Some((state, _)) = text.split_once(BUNDLES) {
                    dirs.insert(state.to_owned());
                } else if let Some(inode) = socket(&text) {
                    sockets.insert(inode);
                }
            }
        }
        Err(error) if is_gone(&error) => return None,
        Err(_) => *complete = false,
    }
    let mut sockets = listening(dir, &sockets);
    // Without a socket it is a podman command that a user runs.
    if engine == Engine::Podman && sockets.is_empty() {
        return None;
    }
    // The socket of containerd's own protocol, ttrpc, is sorted last: it does not identify a runtime.
    sockets.sort_by_key(|path| (path.ends_with(".ttrpc"), path.len()));
    sockets.truncate(MOST_SOCKETS);
    if engine == Engine::Containerd {
        dirs.extend(runtime_dirs(&sockets));
    }
    let dirs = dirs.into_iter().take(MOST_DIRS).collect();
    let started = look::started(dir);
    let (asked, ignored) = (false, false);
    let process = RuntimeProcess { pid, engine, started, sockets, dirs, asked, ignored };
    Some(Found { process, parent: parent(dir) })
}

/// The state directory of a containerd whose socket is in the usual place, which is within that directory.
fn runtime_dirs(sockets: &[String]) -> Vec<String> {
    sockets
        .iter()
        .filter_map(|path| path.strip_suffix("/containerd.sock"))
        .map(str::to_owned)
        .collect()
}

fn socket(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The paths on which a process with these sockets listens.
fn listening(dir: &Dir, inodes: &BTreeSet<u64>) -> Vec<String> {
    use std::io::Read as _;
    let mut table = Vec::new();
    let read =
        dir.file("net/unix").and_then(|file| file.take(TABLE as u64).read_to_end(&mut table));
    if read.is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&table);
    let paths: BTreeSet<String> = text.lines().filter_map(|line| listener(line, inodes)).collect();
    paths.into_iter().collect()
}

/// The path in a line of `/proc/net/unix` (`unix_seq_show`), if the socket accepts connections and is one of these.
fn listener(line: &str, inodes: &BTreeSet<u64>) -> Option<String> {
    /// `__SO_ACCEPTCON`, linux/net.h.
    const ACCEPTS: u32 = 1 << 16;
    let mut words = line.split_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let inode: u64 = words.nth(2)?.parse().ok()?;
    let path = words.next().filter(|path| path.starts_with('/'))?;
    (flags & ACCEPTS != 0 && inodes.contains(&inode)).then(|| path.to_owned())
}

/// Parses a text in every way used for a process, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(super) fn parse(text: &str) {
    let _ = (is_root(text), socket(text), listener(text, &BTreeSet::from([1])));
    let mut monitor = unknown_monitor(1);
    shim(&mut monitor, text);
    conmon(&mut monitor, text, text);
}

fn unknown_monitor(pid: u32) -> Monitor {
    Monitor {
        pid,
        engine: None,
        dir: None,
        namespace: None,
        container_id: None,
        children: Vec::new(),
        ignored: false,
    }
}

fn read_monitor(pid: u32, comm: &str, dir: &Dir) -> Monitor {
    let cwd = link(dir, "cwd").unwrap_or_default();
    let children = dir.text(format!("task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
    let mut monitor = unknown_monitor(pid);
    monitor.children.extend(children.take(MOST_CHILDREN));
    if comm.starts_with("conmon") {
        conmon(&mut monitor, &cwd, &dir.text("cgroup").unwrap_or_default());
    } else {
        shim(&mut monitor, &cwd);
    }
    monitor
}

/// `STATE/io.containerd.runtime.v2.task/NAMESPACE/ID`.
fn shim(monitor: &mut Monitor, cwd: &str) {
    let Some((state, rest)) = cwd.split_once(BUNDLES) else { return };
    let mut parts = rest.split('/').skip(1);
    let (Some(namespace), Some(id)) = (parts.next(), parts.next()) else { return };
    monitor.engine = Some(if namespace == MOBY { Engine::Docker } else { Engine::Containerd });
    monitor.dir = Some(state.to_owned());
    monitor.namespace = Some(namespace.to_owned());
    monitor.container_id = Some(id.to_owned());
}

/// The cgroup that a conmon was put into shows whether it is CRI-O's or podman's.
fn conmon(monitor: &mut Monitor, cwd: &str, cgroup: &str) {
    let engines = [("crio-conmon-", Engine::CriO), ("libpod-conmon-", Engine::Podman)];
    let of = engines.iter().find(|(name, _)| cgroup.contains(name));
    monitor.engine = of.map(|(_, engine)| *engine);
    let mut parts = cwd.split('/').skip_while(|part| !part.ends_with(STORAGE)).skip(1);
    monitor.container_id = parts.next().filter(|id| !id.is_empty()).map(str::to_owned);
}

/// Merges a containerd that dockerd started into that dockerd: only dockerd uses it, and its containers are dockerd's.
/// A containerd that dockerd found running is recognised by its socket, `X/containerd/containerd.sock` for a dockerd
/// with `--exec-root X`, if dockerd has sockets there. A dockerd without its own containerd uses the node's.
fn without_dockers_own(found: Vec<Found>) -> Vec<RuntimeProcess> {
    let (mut dockers, others): (Vec<Found>, Vec<Found>) =
        found.into_iter().partition(|found| found.process.engine == Engine::Docker);
    let mut kept: Vec<RuntimeProcess> = Vec::new();
    for other in others {
        let behind = |docker: &&mut Found| {
            let listens =
                |path: &str| docker.process.sockets.iter().any(|own| own.starts_with(path));
            let execs_from = |dir: &str| {
                dir.ends_with("/docker")
                    || listens(&format!("{dir}/metrics.sock"))
                    || listens(&format!("{dir}/libnetwork/"))
            };
            let socket = |path: &String| {
                path.strip_suffix("/containerd/containerd.sock").is_some_and(execs_from)
            };
            other.process.engine == Engine::Containerd
                && (other.parent == Some(docker.process.pid)
                    || other.process.sockets.iter().any(socket))
        };
        match dockers.iter_mut().find(behind) {
            Some(docker) => docker.process.dirs.extend(other.process.dirs),
            None => kept.push(other.process),
        }
    }
    let nodes: BTreeSet<String> = kept
        .iter()
        .filter(|process| process.engine == Engine::Containerd)
        .flat_map(|process| process.dirs.iter().cloned())
        .collect();
    for docker in &mut dockers {
        if docker.process.dirs.is_empty() {
            docker.process.dirs.extend(nodes.iter().take(MOST_DIRS).cloned());
        }
    }
    kept.extend(dockers.into_iter().map(|docker| docker.process));
    kept.sort_by_key(|process| process.pid);
    kept
}

/// The text of a link, without the suffix that the kernel adds if the file was removed (`d_path`).
fn link(dir: &Dir, path: &str) -> Option<String> {
    let mut buffer = [0u8; LONGEST];
    let len = dir.link_into(path, &mut buffer).ok()?;
    let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
    Some(text.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(text))
}

#[cfg(test)]
mod tests;
