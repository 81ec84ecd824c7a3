//! eBPF probes: live events, and snapshots read from the kernel.
//!
//! The kernel half is `ipwatch-ebpf`. The files here:
//! - `object`: the committed object file of the kernel half.
//! - `btf`, `offsets`: the offsets in this kernel of the struct members that the programs read.
//! - `ladder`: the events, and the ways (`rung`) to observe each; `attach`: tries one way; `kernel`: why the kernel refuses it;
//!   `again`: attaches again what tells nothing.
//! - `plugins`: the directories of CNI plugins; `calls`: parses the records of their runs.
//! - `ring`, `events`: reads the ring buffers, and turns records into facts. `tasks`: the same for tasks. `owed`: netns
//!   of which events were not reported.
//! - `snapshot`: netns, tasks and files that already exist.
//! - `standings`: the rung of each event, and what the canary has shown about it.
//! - `host`: the host's netns, which the programs leave out; `log`: log messages of the kernel half.
//!
//! If the kernel refuses a program, only its event is affected: netlink or procfs reports it instead, and `doctor`
//! shows why.
//!
//! To miss nothing, call [`Probes::load`], then take the [`Snapshots`], then read [`Probes::events`], which were queued
//! meanwhile. When [`Probes::losses`] or [`Probes::missed`] grows, take the snapshots again. A task that moves is
//! reported as [`Observation::Task`](crate::fact::What::Task) with its new netns, even if that is the host's: this is
//! how it leaves the old one.

mod again;
mod attach;
mod btf;
pub mod calls;
mod events;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
pub(crate) mod host;
mod kernel;
mod ladder;
mod log;
mod memlock;
mod object;
mod offsets;
mod owed;
mod plugin_file;
mod plugins;
mod ring;
mod rung;
mod snapshot;
mod standings;
mod tasks;

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf};
use aya::{Btf, Ebpf, EbpfLoader, Endianness};
use aya_log::{EbpfLogger, Level};
use tokio::sync::{Notify, watch};

use crate::bounded;
use crate::contract;
use crate::fact::{NetnsRef, Sight};
use crate::sources::arp;
use crate::sources::errors::chain;

pub(crate) use again::Again;
pub use owed::Owed;
pub use plugins::PluginDirs;
pub use ring::{Events, Losses};
pub use rung::Rung;
pub use snapshot::{SnapshotError, Snapshots};
pub use tasks::{Beside, Tasks};

pub(crate) use events::TICK;
pub(crate) use host::netns as own_netns;
#[cfg(test)]
pub(crate) use ladder::event_names;
pub(crate) use standings::Standings;

const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";
/// In bytes. A kernel's BTF takes 4 to 6 MB, with every debug option about 20.
const BTF_LIMIT: usize = 64 << 20;

/// Entries of the ladder that are not events, but lists read on demand.
pub const SNAPSHOTS: [&str; 3] = ["netns-list", "task-list", "file-list"];

/// Size in bytes of the ring buffer for the kernel half's log. It must be a multiple of the page size, which is at most
/// 64 KiB.
const LOG_BYTES: u32 = 64 << 10;

/// Programs that report runs of CNI plugins (`ladder.rs`).
const CALLS: [&str; 4] = ["tp_call", "tp_call_end", "rt_call", "rt_call_end"];

/// Number of events that no program processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missed {
    pub events: u64,
    /// Of these, starts and ends of runs of CNI plugins.
    pub calls: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rungs that must not be used: if one causes problems on a kernel, and to test the others.
    pub forbid: Vec<Rung>,
    /// Size of the ring buffer in bytes, rounded up to a power of two.
    pub ring_bytes: u32,
    /// Directories of CNI plugins.
    pub plugin_dirs: Vec<PathBuf>,
    /// When a socket listens for ARP on the host's links.
    pub watch: arp::Watch,
}

impl Default for Settings {
    /// 512 KiB hold about 5,000 events: at a thousand address changes a second, the daemon can pause for five seconds.
    /// Twice that size is resident memory, because the buffer is mapped twice in a row so that no record wraps.
    fn default() -> Self {
        Self {
            forbid: Vec::new(),
            ring_bytes: 512 << 10,
            plugin_dirs: Vec::new(),
            watch: arp::Watch::Auto,
        }
    }
}

/// Why no BPF program can be used. Everything is then observed through netlink and procfs.
#[derive(Debug, thiserror::Error)]
pub enum ProbesError {
    /// The configuration disables the probes.
    #[error("switched off by the configuration: probes.enabled = false")]
    Disabled,
    /// There is no object file for this architecture.
    #[error("this build has no eBPF object for {0}")]
    NoObject(&'static str),
    /// The kernel has no BTF.
    #[error(
        "{BTF_PATH} cannot be read ({0}): the kernel needs CONFIG_DEBUG_INFO_BTF, and /sys must be mounted"
    )]
    NoBtf(#[source] std::io::Error),
    /// The kernel's BTF cannot be parsed.
    #[error("{BTF_PATH} cannot be parsed: {0}")]
    BadBtf(String),
    /// The host's netns cannot be identified.
    #[error("/proc/thread-self/ns/net cannot be read ({0}): /proc must be mounted")]
    NoHost(#[source] std::io::Error),
    #[error(
        "bpf(2) is not permitted: run as root, or with CAP_BPF and CAP_PERFMON (in a container, its seccomp profile must allow bpf too)"
    )]
    NotPermitted,
    /// The value of RLIMIT_MEMLOCK, in bytes.
    #[error(
        "bpf(2) is not permitted: RLIMIT_MEMLOCK is {} KiB, and before Linux 5.11 maps count against it: needs LimitMEMLOCK=infinity, or CAP_SYS_RESOURCE", .0 / 1024
    )]
    MemoryLimit(u64),
    /// Any other error.
    #[error("the eBPF object cannot be loaded: {0}")]
    Load(String),
}

/// The probes. They stay attached as long as this value or its [`Snapshots`] exist.
pub struct Probes {
    ebpf: Arc<Mutex<Ebpf>>,
    standings: Arc<Standings>,
    again: Arc<Again>,
    /// The socket that receives ARP. It works while it is open, and is never read.
    arp: Option<OwnedFd>,
    host: NetnsRef,
    losses: watch::Receiver<Losses>,
    events: Option<Unstarted>,
    owed: Option<Owed>,
    snapshots: Option<Snapshots>,
    tasks: Option<Tasks>,
    plugin_dirs: Option<PluginDirs>,
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probes").field("standings", &self.standings).finish_non_exhaustive()
    }
}

/// The parts of [`Events`], which needs an async runtime to register with.
struct Unstarted {
    rings: ring::Rings,
    lost: Arc<ring::Lost>,
}

impl Probes {
    /// Loads and attaches what this kernel accepts. From here on events are queued in the ring buffer: to miss nothing,
    /// take the snapshots first and read [`Probes::events`] afterwards.
    ///
    /// # Errors
    /// [`ProbesError`] only if no program at all can be loaded. Each error says what to do.
    pub fn load(settings: &Settings) -> Result<Self, ProbesError> {
        let object = object::OBJECT.ok_or(ProbesError::NoObject(std::env::consts::ARCH))?;
        let host = host::netns().map_err(ProbesError::NoHost)?;
        let types = bounded::read(Path::new(BTF_PATH), BTF_LIMIT).map_err(ProbesError::NoBtf)?;
        let (loader, offsets, btf) = understand(&types.bytes)?;
        drop(types);
        let ring_bytes = settings.ring_bytes.clamp(1 << 16, 1 << 28).next_power_of_two();
        let memlock = memlock::raise();
        let kernel = kernel::Kernel::default();
        let typed = u32::from(kernel.lockdown() == Some("confidentiality") || is_typed());
        let created = create(loader, object, &btf, &offsets, host, (ring_bytes, typed));
        let mut ebpf = created.map_err(|error| match (error, memlock) {
            (ProbesError::NotPermitted, Some(limit)) => ProbesError::MemoryLimit(limit),
            (error, _) => error,
        })?;
        let dirs = HashMap::try_from(take(&mut ebpf, "DIRS")?).map_err(load_error)?;
        let dirs = PluginDirs::new(dirs, settings.plugin_dirs.clone());
        let mut loader = attach::Loader::new(&mut ebpf, &btf, &offsets, &kernel);
        let standings = ladder::climb(&mut loader, settings);
        let attached = loader.into_parts();
        drop(btf);
        give_memory_back();
        Self::assemble(ebpf, standings, attached, host, dirs)
    }

    fn assemble(
        mut ebpf: Ebpf,
        standings: Vec<ladder::Standing>,
        (arp, links): (Option<OwnedFd>, attach::Links),
        host: NetnsRef,
        plugin_dirs: PluginDirs,
    ) -> Result<Self, ProbesError> {
        let (rings, tables) = (rings(&mut ebpf)?, tables(&mut ebpf)?);
        let counts = Arc::new(counts(&mut ebpf)?);
        let table = owed_table(&mut ebpf)?;
        let walk = Array::try_from(take(&mut ebpf, "WALK")?).map_err(load_error)?;
        let walk_end = Array::try_from(take(&mut ebpf, "WALK_RESULT")?).map_err(load_error)?;
        let log = EbpfLogger::init_with_logger(&mut ebpf, log::ToTracing).map_err(load_error)?;
        let (sender, losses) = watch::channel(Losses::default());
        let ebpf = Arc::new(Mutex::new(ebpf));
        let owed = Arc::new(Notify::new());
        let debts = Owed::new(table, Arc::clone(&owed));
        let lost = Arc::new(ring::Lost { counts: Arc::clone(&counts), losses: sender, owed });
        let tasks = Tasks::new(tables, Arc::clone(&ebpf), Arc::clone(&lost));
        let again = Again::new(Arc::clone(&ebpf), links, &standings);
        Ok(Self {
            tasks: Some(tasks),
            snapshots: Some(Snapshots { ebpf: Arc::clone(&ebpf), walk, walk_end, log }),
            ebpf,
            standings: Arc::new(Standings::new(standings, counts)),
            again: Arc::new(again),
            arp,
            host,
            losses,
            events: Some(Unstarted { rings, lost }),
            owed: Some(debts),
            plugin_dirs: Some(plugin_dirs),
        })
    }

    /// The kernel's lockdown level, which affects every program.
    #[must_use]
    pub fn lockdown() -> Option<String> {
        kernel::Kernel::default().lockdown().map(kernel::lockdown_word)
    }

    /// Every event and how it is observed.
    #[must_use]
    pub fn report(&self) -> Vec<contract::Probe> {
        self.standings.report()
    }

    /// The report if [`Probes::load`] failed, so that `doctor` always shows every event.
    #[must_use]
    pub fn unavailable_report(error: &ProbesError) -> Vec<contract::Probe> {
        ladder::unavailable(&error.to_string())
    }

    /// Which kinds of events would be seen, so that their absence means something.
    #[must_use]
    pub fn sight(&self) -> Sight {
        self.standings.sight()
    }

    /// The state of the events, shared with the canary.
    pub(crate) fn standings(&self) -> Arc<Standings> {
        Arc::clone(&self.standings)
    }

    /// Attaches programs again.
    pub(crate) fn again(&self) -> Arc<Again> {
        Arc::clone(&self.again)
    }

    /// Whether tasks that start, exit and move between netns are seen. If not, only a task snapshot shows them.
    #[must_use]
    pub fn sees_tasks(&self) -> bool {
        self.standings.sees_tasks()
    }

    /// Whether every new netns is seen. If not, only a netns walk finds one without a device.
    #[must_use]
    pub fn sees_creation(&self) -> bool {
        self.sees("netns-created")
    }

    fn sees(&self, event: &str) -> bool {
        self.standings.sees(event)
    }

    /// The rung that reports ARP claims of an IP, if any.
    #[must_use]
    pub fn hears_arp(&self) -> Option<Rung> {
        self.standings.rung(ladder::ARP_CLAIM)
    }

    /// Whether a socket receives the ARP of the host's links.
    #[must_use]
    pub fn listens_for_arp(&self) -> bool {
        self.arp.is_some()
    }

    /// The host's netns, whose tasks are not reported.
    #[must_use]
    pub fn host(&self) -> NetnsRef {
        self.host
    }

    /// The snapshots; `None` if they were already taken.
    pub fn snapshots(&mut self) -> Option<Snapshots> {
        self.snapshots.take()
    }

    /// The source of task events; `None` if it was already taken. Events are queued since the programs were attached,
    /// as for [`Probes::events`].
    pub fn tasks(&mut self) -> Option<Tasks> {
        self.tasks.take()
    }

    /// The directories of CNI plugins, to be followed; `None` if they were already taken, or if runs of plugins are not
    /// seen.
    pub fn plugin_dirs(&mut self) -> Option<PluginDirs> {
        self.plugin_dirs.take().filter(|_| self.sees("cni-call"))
    }

    /// The ring buffer of the runs of CNI plugins without its reader, in place of [`Probes::events`]; `None` if they were
    /// already taken. For `benches/bare_ring.rs`.
    pub fn ring_of_calls(&mut self) -> Option<RingBuf<MapData>> {
        self.events.take().map(|events| events.rings.calls)
    }

    /// The reader of what must be read again because it was not reported; `None` if it was already taken.
    pub fn owed(&mut self) -> Option<Owed> {
        self.owed.take()
    }

    /// The live events; `None` if they were already taken.
    pub fn events(&mut self) -> Option<Events> {
        let Unstarted { rings, lost } = self.events.take()?;
        Some(Events::new(rings, &self.standings.counters, &lost))
    }

    /// Number of events that were not processed because the same program was already running on that CPU (a program can
    /// be preempted, or interrupted by what it observes). The kernel counts them without any notification: the caller
    /// must poll, and take new snapshots when the number has grown.
    #[must_use]
    pub fn missed(&self) -> Missed {
        let ebpf = self.ebpf.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missed = Missed::default();
        for (name, program) in ebpf.programs() {
            let Ok(fd) = program.fd() else { continue };
            let count = misses(fd.as_fd().as_raw_fd()).unwrap_or_default();
            missed.events += count;
            if CALLS.contains(&name) {
                missed.calls += count;
            }
        }
        missed
    }

    /// What was lost so far; changes when more is lost.
    #[must_use]
    pub fn losses(&self) -> watch::Receiver<Losses> {
        self.losses.clone()
    }
}

/// Whether a test requests that kernel memory is read as on a locked-down kernel. Debug builds only.
fn is_typed() -> bool {
    cfg!(debug_assertions) && std::env::var_os("IPWATCH_TEST_TYPED").is_some()
}

/// Parses the kernel's type information. aya parses it itself when it creates a loader, and again for the programs,
/// some 20 ms each; the parses therefore run in parallel. aya 0.14 leaves no other way: `EbpfLoader::new` parses before
/// it could be given parsed BTF, and does not share its own (aya-rs/aya#1172).
fn understand(types: &[u8]) -> Result<(EbpfLoader<'static>, offsets::Offsets, Btf), ProbesError> {
    let bad = |error: &dyn fmt::Display| ProbesError::BadBtf(error.to_string());
    let (loader, offsets, btf) = std::thread::scope(|scope| {
        let btf = scope.spawn(|| Btf::parse(types, Endianness::default()));
        (EbpfLoader::new(), offsets::Offsets::read(types), btf.join())
    });
    let offsets = offsets.map_err(|error| bad(&error))?;
    let btf = btf.map_err(|_| bad(&"the parser panicked"))?.map_err(|error| bad(&error))?;
    Ok((loader, offsets, btf))
}

/// Creates the maps and reads the programs from the object; none is loaded yet.
fn create(
    loader: EbpfLoader<'_>,
    object: &[u8],
    btf: &Btf,
    offsets: &offsets::Offsets,
    host: NetnsRef,
    (ring_bytes, typed): (u32, u32),
) -> Result<Ebpf, ProbesError> {
    let host_inode = host.inode.unwrap_or_default();
    let host_cookie = host.cookie.unwrap_or_default();
    let pid_ns = host::pid_namespace().unwrap_or_default();
    let log_level = Level::Error as u8;
    let mut loader = loader;
    loader.btf(Some(btf)).map_max_entries("EVENTS", ring_bytes);
    // Records read from this buffer wait elsewhere (`ring.rs`), so it can be smaller.
    loader.map_max_entries("CALLS", ring_bytes / 2);
    loader.map_max_entries("TASKS", ring_bytes / 2);
    // What does not fit is repeated: a claim by the next packet, a neighbour entry by netlink.
    loader.map_max_entries("NEIGHBOURS", ring_bytes / 4);
    // The smallest possible ring buffer: few messages are ever logged.
    loader.map_max_entries("AYA_LOGS", LOG_BYTES);
    loader.override_global(aya_log::LEVEL, &log_level, true);
    loader.override_global("HOST_INODE", &host_inode, true);
    loader.override_global("HOST_COOKIE", &host_cookie, true);
    loader.override_global("OWN_PID_NS", &pid_ns, true);
    loader.override_global("TYPED", &typed, true);
    for (global, offset) in offsets.globals() {
        loader.override_global(global, offset, true);
    }
    loader.load(object).map_err(|error| match attach::errno(&error) {
        Some(libc::EPERM | libc::EACCES) => ProbesError::NotPermitted,
        Some(libc::ENOSYS) => ProbesError::Load("the kernel needs CONFIG_BPF_SYSCALL".to_owned()),
        _ => load_error(error),
    })
}

/// What the kernel half writes as events happen.
fn rings(ebpf: &mut Ebpf) -> Result<ring::Rings, ProbesError> {
    Ok(ring::Rings {
        events: RingBuf::try_from(take(ebpf, "EVENTS")?).map_err(load_error)?,
        neighbours: RingBuf::try_from(take(ebpf, "NEIGHBOURS")?).map_err(load_error)?,
        calls: RingBuf::try_from(take(ebpf, "CALLS")?).map_err(load_error)?,
        untold: HashMap::try_from(take(ebpf, "UNTOLD")?).map_err(load_error)?,
    })
}

/// What the kernel half records about tasks.
fn tables(ebpf: &mut Ebpf) -> Result<tasks::Tables, ProbesError> {
    Ok(tasks::Tables {
        ring: RingBuf::try_from(take(ebpf, "TASKS")?).map_err(load_error)?,
        roused: Array::try_from(take(ebpf, "ROUSED")?).map_err(load_error)?,
        fresh: HashMap::try_from(take(ebpf, "FRESH")?).map_err(load_error)?,
        leaving: HashMap::try_from(take(ebpf, "LEAVING")?).map_err(load_error)?,
        named: HashMap::try_from(take(ebpf, "NAMED")?).map_err(load_error)?,
    })
}

/// Where the kernel half says which netns must be read again.
fn owed_table(ebpf: &mut Ebpf) -> Result<owed::Table, ProbesError> {
    Ok(owed::Table {
        owed: HashMap::try_from(take(ebpf, "OWED")?).map_err(load_error)?,
        owes: Array::try_from(take(ebpf, "OWES")?).map_err(load_error)?,
    })
}

fn counts(ebpf: &mut Ebpf) -> Result<ring::Counts, ProbesError> {
    let mut counter = |name| PerCpuArray::try_from(take(ebpf, name)?).map_err(load_error);
    Ok(ring::Counts {
        drops: counter("DROPS")?,
        dropped: counter("DROPPED")?,
        overrun: counter("OVERRUN")?,
        suppressed: counter("SUPPRESSED")?,
        seen: counter("SEEN")?,
    })
}

/// `recursion_misses` of one program (`bpf_prog_show_fdinfo`, kernel/bpf/syscall.c, since 5.12).
fn misses(fd: RawFd) -> Option<u64> {
    let info = bounded::read_text(Path::new(&format!("/proc/self/fdinfo/{fd}")), 4096).ok()?;
    info.lines().find_map(|line| line.strip_prefix("recursion_misses:"))?.trim().parse().ok()
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map, ProbesError> {
    ebpf.take_map(name).ok_or_else(|| ProbesError::Load(format!("it has no map {name}")))
}

fn load_error(error: impl std::error::Error + 'static) -> ProbesError {
    ProbesError::Load(chain(&error))
}

/// Parsing BTF allocates tens of megabytes, which glibc would otherwise never return.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests;
