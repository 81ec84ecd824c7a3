//! Starts the sources in an order that leaves no gap: first everything that queues events (probes, netlink sockets,
//! watches), then the snapshots, then the reading of what was queued meanwhile.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use tokio::sync::{mpsc, watch};

use super::calls::Calls;
use super::canary::{Keeper, When};
use super::capabilities;
use super::dispatch::{Dispatch, Settings};
use super::network::Network;
use super::restarts::{Part, Troubles, keep, on_a_thread};
use crate::bounded;
use crate::clock;
use crate::config::Config;
use crate::contract::Probe;
use crate::fact::{Boot, Fact, NetnsRef, Observation, Origin, Source, SourceName, SourceStatus};
use crate::reading::Readings;
use crate::rights::{self, Rights, Starter};
use crate::sources::netlink::{Listener, Requests};
use crate::sources::probes::{self, Events, Losses, Missed, Probes, ProbesError, Rung, Snapshots};
use crate::sources::procfs::{MountWatch, Proc};
use crate::sources::runtime::{self, Runtimes};
use crate::sources::{Closed, Emit, First, arp, calico, cni, ipam, kubernetes, wall_clock};

/// Interval of walks if no probe reports new netns (0.1 ms each).
const WALK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// Interval of task snapshots if no probe reports tasks that move (1 ms for 1,000 tasks).
const TASKS_EVERY: std::time::Duration = std::time::Duration::from_secs(2);
/// Interval of task snapshots without BPF, from `/proc` (8 ms for 1,000 tasks).
const PROCFS_EVERY: std::time::Duration = TASKS_EVERY;
/// A container start changes the mount table a dozen times: pause before the next read.
const MOUNTS_SETTLE: std::time::Duration = std::time::Duration::from_millis(100);

const LISTENER: Part = Part {
    name: "the netlink listener",
    sources: &[SourceName::Netlink, SourceName::Neighbours, SourceName::Routes],
    is_vital: true,
};
/// Not vital: every search reads mounts as well.
const MOUNTS: Part =
    Part { name: "the watch of the mount table", sources: &[SourceName::Procfs], is_vital: false };
const EVENTS: Part =
    Part { name: "the reader of events", sources: &[SourceName::Probes], is_vital: true };
/// Not vital: netlink reports neighbour entries too, and the next packet repeats a claim.
const NEIGHBOURS: Part = Part {
    name: "the reader of neighbours and claims",
    sources: &[SourceName::Probes],
    is_vital: false,
};
/// Not vital: only what is lost meanwhile waits for it.
const OWED: Part = Part {
    name: "the reader of what was not reported",
    sources: &[SourceName::Probes],
    is_vital: false,
};
const CALLS: Part = Part {
    name: "the reader of runs of CNI plugins",
    sources: &[SourceName::Probes],
    is_vital: false,
};
/// Not vital: all tasks are swept regularly.
const TASKS: Part =
    Part { name: "the reader of tasks", sources: &[SourceName::Probes], is_vital: false };
/// Not vital: the paths of known plugins stay known.
const PLUGINS: Part = Part {
    name: "the watch of the directories of CNI plugins",
    sources: &[SourceName::Probes],
    is_vital: false,
};

/// Contexts of errors.
pub(super) const NO_NETWORK: &str = "cannot start the thread for servers on the network";
const NO_STARTER: &str = "cannot start the thread that makes threads";

/// What to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// Events as they happen, and snapshots.
    Everything,
    /// Snapshots alone: a single look needs no events.
    Snapshots,
}

/// The sources, running.
pub(super) struct Started {
    pub(super) boot: Boot,
    pub(super) dispatch: Dispatch,
    pub(super) eyes: Eyes,
    pub(super) facts: mpsc::Receiver<Vec<Fact>>,
    /// The first answers of the container runtimes and of the stores.
    pub(super) first: Vec<First>,
    /// Handles ended runs of CNI plugins.
    pub(super) calls: Calls,
    pub(super) readings: Readings,
    /// The capabilities that this process lacks, and the loss caused by each.
    pub(super) lacking: Option<String>,
}

/// The probes, attached for as long as this value lives, or the report of why there are none.
pub(super) enum Eyes {
    Open(Box<Probes>, Option<Keeper>),
    Closed(Vec<Probe>),
}

impl Eyes {
    /// Every event and its current rung.
    pub(super) fn report(&self) -> Vec<Probe> {
        match self {
            Eyes::Open(probes, _) => probes.report(),
            Eyes::Closed(report) => report.clone(),
        }
    }

    /// Events that no program saw, because it was already running.
    pub(super) fn missed(&self) -> Missed {
        match self {
            Eyes::Open(probes, _) => probes.missed(),
            Eyes::Closed(_) => Missed::default(),
        }
    }

    /// The handle to request a canary run, or why there is none.
    pub(super) fn canary(&self) -> Result<&Keeper, &'static str> {
        match self {
            Eyes::Open(_, Some(keeper)) => Ok(keeper),
            Eyes::Open(probes, None) if probes.standings().are_provable() => {
                Err("observe_only = true: the canary would make network namespaces of its own")
            }
            Eyes::Open(..) | Eyes::Closed(_) => {
                Err("no probe is attached that a canary could prove")
            }
        }
    }
}

/// Starts every source. A source that cannot be started is reported as down, except netlink, which is required.
pub(super) async fn start(
    config: &Config,
    sight: Sight,
    canary: When,
    network: &Network,
    proc: Proc,
) -> anyhow::Result<Started> {
    let canary = if config.observe_only { When::Never } else { canary };
    // Before this thread gives up anything.
    let (lacking, starter) = (capabilities::missing(), Starter::start().context(NO_STARTER)?);
    let (emit, facts) = Emit::channel(256);
    let host =
        Requests::new().context("cannot ask netlink about the host's network namespace")?.host();
    let boot = boot(config, host)?;
    emit.send(vec![daemon_fact(Observation::Boot(boot.clone()))]).await?;

    let listener = Listener::open(host).context("cannot listen on netlink")?;
    let (readings, troubles) = (Readings::default(), Troubles::default());
    let parts = (&readings, &troubles, &starter);
    let mut loaded = load_probes(config, sight, canary, &emit, parts).await?;
    rights::keep(Rights::Core);
    tokio::spawn(listen(listener, troubles.clone(), emit.clone()));
    watch_cni(config, &emit, &readings);
    let stores = ipam::start(&config.ipam, &emit, &readings);
    let (runtimes, first) = ask_runtimes(config, sight, &emit, &readings);
    // A single look has no use for what changes over time.
    if sight == Sight::Everything {
        tokio::spawn(follow_clock(emit.clone()));
        let mut cluster = config.kubernetes.clone();
        // Calico keeps its data in one place: if an etcd is configured, the data is there.
        cluster.calico &= config.calico.etcd_endpoints.is_empty();
        let _network = network.enter().context(NO_NETWORK)?;
        kubernetes::start(&cluster, &boot.node, &emit, &readings);
        calico::start(&config.calico, &cluster, &boot.node, &emit);
    }

    let polls = sight == Sight::Everything && !(loaded.sees_tasks && loaded.sees_creation);
    let has_bpf = loaded.snapshots.is_some();
    let settings = Settings { observe_only: config.observe_only, polls, host, proc };
    let kept = (readings.clone(), troubles.clone());
    let dispatch = Dispatch::start(settings, &emit, loaded.snapshots, runtimes, kept, &starter)
        .context("cannot start a thread")?;
    watch_mounts(&dispatch, &readings, &troubles, &emit);
    dispatch.snapshot();
    if polls {
        let tasks = !loaded.sees_tasks && !config.probes.sweep.is_zero();
        tokio::spawn(tick(dispatch.clone(), has_bpf, !loaded.sees_creation, tasks));
    }
    if sight == Sight::Everything && loaded.sees_tasks {
        tokio::spawn(sweep(dispatch.clone(), config.probes.sweep.unsigned_abs()));
    }
    if let Some(tasks) = loaded.tasks {
        read_tasks(tasks, &dispatch, troubles, &emit, starter.clone());
    }
    if let Eyes::Open(probes, keeper) = &mut loaded.eyes
        && canary != When::Never
        && probes.standings().are_provable()
    {
        let (sweeps, out) = (!config.probes.sweep.is_zero(), emit.clone());
        let makers = (dispatch.clone(), starter);
        let attached = (probes.standings(), probes.again());
        *keeper = Some(Keeper::start(canary, sweeps, attached, makers, out));
    }
    let calls = Calls::new(&config.cni.logs, readings.clone(), emit);
    let first = vec![first, stores];
    Ok(Started { boot, dispatch, eyes: loaded.eyes, facts, first, calls, readings, lacking })
}

/// If this fails, dates keep the clock offset of the start.
async fn follow_clock(emit: Emit) {
    if let Err(error) = wall_clock::follow(&emit).await {
        tracing::warn!(
            "dates will be wrong after the wall clock is set, because its changes cannot be watched: {error}"
        );
    }
}

pub(super) fn daemon_fact(what: Observation) -> Fact {
    Fact { at: clock::now(), origin: Origin::Daemon, what }
}

fn boot(config: &Config, host: NetnsRef) -> anyhow::Result<Boot> {
    let path = std::path::Path::new("/proc/sys/kernel/random/boot_id");
    let boot_id = bounded::read_text(path, 64).context("cannot read the boot id")?;
    let uname = rustix::system::uname();
    let node = config.node.clone().unwrap_or_else(|| uname.nodename().to_string_lossy().into());
    Ok(Boot {
        boot_id: boot_id.trim().to_owned(),
        node,
        kernel: uname.release().to_string_lossy().into_owned(),
        wall_offset: clock::wall_offset(),
        host,
    })
}

struct Loaded {
    eyes: Eyes,
    snapshots: Option<Snapshots>,
    tasks: Option<probes::Tasks>,
    sees_creation: bool,
    sees_tasks: bool,
}

/// Loads the probes and starts to read them. Having none is a state, not an error.
async fn load_probes(
    config: &Config,
    sight: Sight,
    canary: When,
    emit: &Emit,
    (readings, troubles, starter): (&Readings, &Troubles, &Starter),
) -> anyhow::Result<Loaded> {
    let without = |report| Loaded {
        eyes: Eyes::Closed(report),
        snapshots: None,
        tasks: None,
        sees_creation: false,
        sees_tasks: false,
    };
    if !config.probes.enabled {
        let error = ProbesError::Disabled;
        tell_source(emit, SourceName::Probes, SourceStatus::Disabled, error.to_string()).await?;
        tell_arp(config, None, emit).await?;
        return Ok(without(Probes::unavailable_report(&error)));
    }
    let mut forbid = config.probes.forbid.clone();
    if sight == Sight::Snapshots {
        forbid.extend([Rung::TpBtf, Rung::RawTp, Rung::Fentry, Rung::Kprobe, Rung::Socket]);
    }
    let mut plugin_dirs = config.cni.bin_dirs.clone();
    // The canary runs a plugin, our own program, by this path and no other.
    let own = std::path::PathBuf::from(format!("/proc/{}", std::process::id()));
    plugin_dirs.extend(Some(own).filter(|_| canary != When::Never));
    let watch = config.neighbours.watch;
    let settings = probes::Settings { forbid, plugin_dirs, watch, ..Default::default() };
    let mut probes = match Probes::load(&settings) {
        Ok(probes) => probes,
        Err(error) => {
            let detail = with_lockdown(error.to_string());
            tell_source(emit, SourceName::Probes, SourceStatus::Down, detail).await?;
            tell_arp(config, None, emit).await?;
            return Ok(without(Probes::unavailable_report(&error)));
        }
    };
    emit.send(vec![daemon_fact(Observation::Sight(probes.sight()))]).await?;
    tell_probes(&probes.report(), sight, emit).await?;
    if sight == Sight::Everything {
        tell_arp(config, Some(&probes), emit).await?;
    }
    if let Some(Events { mut events, mut neighbours, calls }) = probes.events() {
        let out = emit.clone();
        let read = async move || events.run(&out).await;
        tokio::spawn(keep(EVENTS, troubles.clone(), emit.clone(), read));
        let out = emit.clone();
        let read = async move || neighbours.run(&out).await;
        tokio::spawn(keep(NEIGHBOURS, troubles.clone(), emit.clone(), read));
        let (out, readings, starter) = (emit.clone(), readings.clone(), starter.clone());
        let read = async move || calls.run(&out, &readings, &starter).await;
        tokio::spawn(keep(CALLS, troubles.clone(), emit.clone(), read));
    }
    if let Some(mut owed) = probes.owed() {
        let out = emit.clone();
        let read = async move || owed.run(&out).await;
        tokio::spawn(keep(OWED, troubles.clone(), emit.clone(), read));
    }
    tokio::spawn(tell_losses(probes.losses(), emit.clone()));
    if let Some(mut dirs) = probes.plugin_dirs() {
        let readings = readings.clone();
        let follow = async move || dirs.follow(&readings).await;
        tokio::spawn(keep(PLUGINS, troubles.clone(), emit.clone(), follow));
    }
    Ok(Loaded {
        sees_creation: probes.sees_creation(),
        sees_tasks: probes.sees_tasks(),
        tasks: (sight == Sight::Everything).then(|| probes.tasks()).flatten(),
        snapshots: probes.snapshots(),
        eyes: Eyes::Open(Box::new(probes), None),
    })
}

/// Reports the status of the source that hears ARP.
async fn tell_arp(config: &Config, probes: Option<&Probes>, emit: &Emit) -> Result<(), Closed> {
    let rung = probes.and_then(Probes::hears_arp);
    let listens = probes.is_some_and(Probes::listens_for_arp);
    let (status, detail) = arp::standing(config.neighbours.watch, rung, listens);
    tell_source(emit, SourceName::Arp, status, detail).await
}

/// Reports the status of the probes, event by event.
pub(super) async fn tell_probes(report: &[Probe], sight: Sight, emit: &Emit) -> Result<(), Closed> {
    let (status, detail) = standing(report, sight);
    tell_source(emit, SourceName::Probes, status, with_lockdown(detail)).await
}

/// The status of the probes as one source.
fn standing(report: &[Probe], sight: Sight) -> (SourceStatus, String) {
    let wanted = |probe: &&Probe| {
        sight == Sight::Everything || probes::SNAPSHOTS.contains(&probe.event.as_str())
    };
    let all = report.iter().filter(wanted).count();
    let lower = |probe: &&Probe| !["active", "degraded"].contains(&probe.status.as_str());
    let lower = report.iter().filter(wanted).filter(lower).count();
    let blind = report.iter().filter(|probe| probe.status == "degraded");
    let blind: Vec<&str> = blind.map(|probe| probe.event.as_str()).collect();
    let mut words = Vec::new();
    if lower > 0 {
        words.push(format!("{lower} of {all} events on a lower rung: see `ipwatch doctor`"));
    }
    if !blind.is_empty() {
        words.push(format!("attached, not seen by the canary: {}", blind.join(", ")));
    }
    match (words.is_empty(), sight) {
        (true, Sight::Everything) => (SourceStatus::Active, String::new()),
        (true, Sight::Snapshots) => (SourceStatus::Active, "snapshots only".to_owned()),
        _ => (SourceStatus::Degraded, words.join("; ")),
    }
}

/// Adds that the kernel is locked down, if it is: the likely reason for a failure.
fn with_lockdown(detail: String) -> String {
    let words = [Some(detail).filter(|detail| !detail.is_empty()), Probes::lockdown()];
    words.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Reports what did not fit into the ring buffers as lost. Not counted: neighbours, because netlink reports the same;
/// claims, because they cannot be read again, only the next packet repeats them; tasks, because their reader has all
/// tasks read (`probes::Tasks`); what is in a single netns, which is read again by itself (`probes::Owed`).
async fn tell_losses(mut losses: watch::Receiver<Losses>, emit: Emit) {
    let total = |losses: Losses| {
        let Losses { netns, addresses, calls, .. } = losses;
        netns + addresses + calls
    };
    let mut told = Losses::default();
    while losses.changed().await.is_ok() {
        let now = *losses.borrow_and_update();
        let count = Some(total(now).saturating_sub(total(told))).filter(|count| *count > 0);
        let calls = now.calls > told.calls;
        told = now;
        let lost = daemon_fact(Observation::Lost { count, calls });
        if count.is_some() && emit.send(vec![lost]).await.is_err() {
            return;
        }
    }
}

async fn tell_source(
    emit: &Emit,
    name: SourceName,
    status: SourceStatus,
    detail: String,
) -> Result<(), Closed> {
    let source = Source { name: name.into(), status, detail };
    emit.send(vec![daemon_fact(Observation::Source(source))]).await
}

/// Reads netlink. What the kernel dropped is reported as lost, and so is what changed while no socket was open.
async fn listen(mut listener: Listener, troubles: Troubles, emit: Emit) {
    let (lost, mut losses) = mpsc::channel(4);
    let told = emit.clone();
    tokio::spawn(async move {
        while losses.recv().await.is_some() {
            // Only probes report plugin runs.
            let lost = Observation::Lost { count: None, calls: false };
            if told.send(vec![daemon_fact(lost)]).await.is_err() {
                return;
            }
        }
    });
    let (mut begun, out) = (false, emit.clone());
    let session = async move || {
        if std::mem::replace(&mut begun, true) {
            listener.reopen()?;
        }
        listener.run(&out, &lost).await
    };
    keep(LISTENER, troubles, emit, session).await;
}

/// Reads the task records of the kernel half.
fn read_tasks(
    tasks: probes::Tasks,
    dispatch: &Dispatch,
    troubles: Troubles,
    emit: &Emit,
    starter: Starter,
) {
    let (tasks, out, dispatch) = (Arc::new(Mutex::new(tasks)), emit.clone(), dispatch.clone());
    let session = async move || {
        let (tasks, out, dispatch) = (Arc::clone(&tasks), out.clone(), dispatch.clone());
        let read = move || {
            // A reader that panicked may leave old records of single tasks: the next look corrects them.
            tasks.lock().unwrap_or_else(PoisonError::into_inner).run(&out, &dispatch)
        };
        on_a_thread(("tasks", Rights::Read, &starter), read).await
    };
    tokio::spawn(keep(TASKS, troubles, emit.clone(), session));
}

fn watch_cni(config: &Config, emit: &Emit, readings: &Readings) {
    tokio::spawn(cni::run(config.cni.cache_dirs.clone(), emit.clone(), readings.clone()));
}

/// A single look (`Sight::Snapshots`) subscribes to nothing.
fn ask_runtimes(
    config: &Config,
    sight: Sight,
    emit: &Emit,
    readings: &Readings,
) -> (Runtimes, First) {
    let sockets = config.runtime.sockets.clone();
    let ignore = config.runtime.ignore.clone();
    let settings = runtime::Settings { sockets, follow: sight == Sight::Everything, ignore };
    runtime::start(settings, emit.clone(), readings.clone())
}

/// Requests a read of the mounts after each change of the mount table.
fn watch_mounts(dispatch: &Dispatch, readings: &Readings, troubles: &Troubles, emit: &Emit) {
    let (dispatch, readings) = (dispatch.clone(), readings.clone());
    let session = async move || -> io::Result<()> {
        let mut watch = MountWatch::new(&Proc::new(), readings.clone())?;
        loop {
            watch.changed().await?;
            dispatch.mounts();
            // The next round reports changes made during this pause.
            tokio::time::sleep(MOUNTS_SETTLE).await;
        }
    };
    tokio::spawn(keep(MOUNTS, troubles.clone(), emit.clone(), session));
}

/// Looks at all tasks regularly although probes report them: events are hints, and the sweep repairs the map if an
/// event was missed. Runs until the daemon ends; does nothing if the configuration disables it.
async fn sweep(dispatch: Dispatch, every: std::time::Duration) {
    while !every.is_zero() {
        tokio::time::sleep(every).await;
        dispatch.tasks();
    }
}

/// Polls what this kernel does not report by events.
pub(super) async fn tick(dispatch: Dispatch, has_bpf: bool, netns: bool, tasks: bool) {
    let mut turn = 0u32;
    let every = if has_bpf { WALK_EVERY } else { PROCFS_EVERY };
    let tasks_each = (TASKS_EVERY.as_secs() / WALK_EVERY.as_secs()) as u32;
    loop {
        tokio::time::sleep(every).await;
        turn = turn.wrapping_add(1);
        if has_bpf && netns {
            dispatch.walk();
        }
        if tasks && (!has_bpf || turn.is_multiple_of(tasks_each)) {
            dispatch.tasks();
        }
    }
}

#[cfg(test)]
mod tests;
