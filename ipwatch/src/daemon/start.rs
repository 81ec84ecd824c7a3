//! Starting the sources, in the order that leaves no gap: first everything that queues events (probes,
//! netlink sockets, watches), then the snapshots, then what queued meanwhile.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use tokio::sync::{mpsc, watch};

use super::calls::Calls;
use super::canary::{Keeper, When};
use super::dispatch::{Dispatch, Settings};
use super::restarts::{Part, Troubles, keep, on_a_thread};
use crate::bounded;
use crate::clock;
use crate::config::Config;
use crate::contract::Probe;
use crate::fact::{Boot, Fact, NetnsRef, Observation, Origin, Source, SourceName, SourceStatus};
use crate::reading::Readings;
use crate::sources::netlink::{Listener, Requests};
use crate::sources::probes::{self, Events, Losses, Missed, Probes, ProbesError, Rung, Snapshots};
use crate::sources::procfs::{MountWatch, Proc};
use crate::sources::runtime::{self, Runtimes};
use crate::sources::{Closed, Emit, First, arp, calico, cni, ipam, kubernetes, wall_clock};

/// Between two walks where no probe sees a netns being made (0.1 ms each).
const WALK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// Between two snapshots of the tasks where no probe sees them move (1 ms for 1,000 tasks).
const TASKS_EVERY: std::time::Duration = std::time::Duration::from_secs(2);
/// The same without BPF, from `/proc` (8 ms for 1,000 tasks).
const PROCFS_EVERY: std::time::Duration = TASKS_EVERY;
/// A container start changes the mount table a dozen times.
const MOUNTS_SETTLE: std::time::Duration = std::time::Duration::from_millis(100);

const LISTENER: Part = Part {
    name: "the netlink listener",
    sources: &[SourceName::Netlink, SourceName::Neighbours, SourceName::Routes],
    is_vital: true,
};
/// Mounts are read in every search too.
const MOUNTS: Part =
    Part { name: "the watch of the mount table", sources: &[SourceName::Procfs], is_vital: false };
const EVENTS: Part =
    Part { name: "the reader of events", sources: &[SourceName::Probes], is_vital: true };
const CALLS: Part = Part {
    name: "the reader of runs of CNI plugins",
    sources: &[SourceName::Probes],
    is_vital: false,
};
/// All tasks are read now and then.
const TASKS: Part =
    Part { name: "the reader of tasks", sources: &[SourceName::Probes], is_vital: false };
/// Their paths stay known.
const PLUGINS: Part = Part {
    name: "the watch of the directories of CNI plugins",
    sources: &[SourceName::Probes],
    is_vital: false,
};

/// What is worth loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// Events as they happen, and snapshots.
    Everything,
    /// Snapshots alone: whoever looks once misses no event.
    Snapshots,
}

/// The sources, running.
pub(super) struct Started {
    pub(super) boot: Boot,
    pub(super) dispatch: Dispatch,
    pub(super) eyes: Eyes,
    pub(super) facts: mpsc::Receiver<Vec<Fact>>,
    /// The first answers of the container runtimes, and of the stores.
    pub(super) first: Vec<First>,
    /// Deals with ended runs of CNI plugins.
    pub(super) calls: Calls,
    pub(super) readings: Readings,
}

/// The probes, attached for as long as this lives, or why there are none.
pub(super) enum Eyes {
    Open(Box<Probes>, Option<Keeper>),
    Closed(Vec<Probe>),
}

impl Eyes {
    /// Every event and the rung it stands on now.
    pub(super) fn report(&self) -> Vec<Probe> {
        match self {
            Eyes::Open(probes, _) => probes.report(),
            Eyes::Closed(report) => report.clone(),
        }
    }

    /// Events that no program saw, because it was running already.
    pub(super) fn missed(&self) -> Missed {
        match self {
            Eyes::Open(probes, _) => probes.missed(),
            Eyes::Closed(_) => Missed::default(),
        }
    }

    /// A way to ask for a canary, or why there is none.
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

/// Starts every source. What cannot be had is told as a source that is down, except netlink: without
/// it there is nothing to watch.
pub(super) async fn start(config: &Config, sight: Sight, canary: When) -> anyhow::Result<Started> {
    let canary = if config.observe_only { When::Never } else { canary };
    let (emit, facts) = Emit::channel(256);
    let host =
        Requests::new().context("cannot ask netlink about the host's network namespace")?.host();
    let boot = boot(config, host)?;
    emit.send(vec![daemon_fact(Observation::Boot(boot.clone()))]).await?;

    let listener = Listener::open(host).context("cannot listen on netlink")?;
    let (readings, troubles) = (Readings::default(), Troubles::default());
    let mut loaded = load_probes(config, sight, canary, &emit, (&readings, &troubles)).await?;
    tokio::spawn(listen(listener, troubles.clone(), emit.clone()));
    watch_cni(config, &emit, &readings);
    let stores = ipam::start(&config.ipam, &emit, &readings);
    let (runtimes, first) = ask_runtimes(config, sight, &emit, &readings);
    // Whoever looks once has no use for what only time tells.
    if sight == Sight::Everything {
        tokio::spawn(follow_clock(emit.clone()));
        let mut cluster = config.kubernetes.clone();
        // It keeps its data in one place: where an etcd is named, there.
        cluster.calico &= config.calico.etcd_endpoints.is_empty();
        kubernetes::start(&cluster, &boot.node, &emit, &readings);
        calico::start(&config.calico, &cluster, &boot.node, &emit);
    }

    let polls = sight == Sight::Everything && !(loaded.sees_tasks && loaded.sees_creation);
    let has_bpf = loaded.snapshots.is_some();
    let settings = Settings { observe_only: config.observe_only, polls, host };
    let kept = (readings.clone(), troubles.clone());
    let dispatch = Dispatch::start(settings, &emit, loaded.snapshots, runtimes, kept)
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
        read_tasks(tasks, &dispatch, troubles, &emit);
    }
    if let Eyes::Open(probes, keeper) = &mut loaded.eyes
        && canary != When::Never
        && probes.standings().are_provable()
    {
        let (sweeps, out) = (!config.probes.sweep.is_zero(), emit.clone());
        *keeper = Some(Keeper::start(canary, sweeps, probes.standings(), dispatch.clone(), out));
    }
    let calls = Calls::new(&config.cni.logs, readings.clone(), emit);
    let first = vec![first, stores];
    Ok(Started { boot, dispatch, eyes: loaded.eyes, facts, first, calls, readings })
}

/// Without it dates are those of the start.
async fn follow_clock(emit: Emit) {
    if let Err(error) = wall_clock::follow(&emit).await {
        tracing::warn!("dates do not follow when the wall clock is set: {error}");
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

/// Loads the probes and starts to read them. None at all is a state, not an error.
async fn load_probes(
    config: &Config,
    sight: Sight,
    canary: When,
    emit: &Emit,
    (readings, troubles): (&Readings, &Troubles),
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
    // By this path, and by no other, the canary runs a plugin: our own program.
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
    if let Some(Events { mut events, calls }) = probes.events() {
        let out = emit.clone();
        let read = async move || events.run(&out).await;
        tokio::spawn(keep(EVENTS, troubles.clone(), emit.clone(), read));
        let (out, readings) = (emit.clone(), readings.clone());
        let read = async move || calls.run(&out, &readings).await;
        tokio::spawn(keep(CALLS, troubles.clone(), emit.clone(), read));
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

/// How the source stands that hears ARP.
async fn tell_arp(config: &Config, probes: Option<&Probes>, emit: &Emit) -> Result<(), Closed> {
    let rung = probes.and_then(Probes::hears_arp);
    let listens = probes.is_some_and(Probes::listens_for_arp);
    let (status, detail) = arp::standing(config.neighbours.watch, rung, listens);
    tell_source(emit, SourceName::Arp, status, detail).await
}

/// How the probes stand, event by event.
pub(super) async fn tell_probes(report: &[Probe], sight: Sight, emit: &Emit) -> Result<(), Closed> {
    let (status, detail) = standing(report, sight);
    tell_source(emit, SourceName::Probes, status, with_lockdown(detail)).await
}

/// How the probes stand as a source.
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

/// A locked kernel is the reason for much, and known: nobody need guess.
fn with_lockdown(detail: String) -> String {
    let words = [Some(detail).filter(|detail| !detail.is_empty()), Probes::lockdown()];
    words.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// What did not fit into the ring buffer is told as lost. Neighbour updates that the kernel half held
/// back are not: netlink tells the same. Nor are claims: nothing that could be read again tells of them,
/// but the next packet does. Nor are tasks: whoever reads of them has all of them read (`probes::Tasks`).
async fn tell_losses(mut losses: watch::Receiver<Losses>, emit: Emit) {
    let total = |losses: Losses| {
        let Losses { netns, addresses, neighbours, calls, .. } = losses;
        netns + addresses + neighbours + calls
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

/// Reads netlink; what the kernel dropped is told as lost, and so is what it told while no socket was open.
async fn listen(mut listener: Listener, troubles: Troubles, emit: Emit) {
    let (lost, mut losses) = mpsc::channel(4);
    let told = emit.clone();
    tokio::spawn(async move {
        while losses.recv().await.is_some() {
            // Probes alone tell of runs of plugins.
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

/// Reads what the kernel half keeps of tasks.
fn read_tasks(tasks: probes::Tasks, dispatch: &Dispatch, troubles: Troubles, emit: &Emit) {
    let (tasks, out, dispatch) = (Arc::new(Mutex::new(tasks)), emit.clone(), dispatch.clone());
    let session = async move || {
        let (tasks, out, dispatch) = (Arc::clone(&tasks), out.clone(), dispatch.clone());
        let read = move || {
            // What a reader that panicked remembered of single tasks may be old: the next look settles it.
            tasks.lock().unwrap_or_else(PoisonError::into_inner).run(&out, &dispatch)
        };
        on_a_thread("tasks", read).await
    };
    tokio::spawn(keep(TASKS, troubles, emit.clone(), session));
}

fn watch_cni(config: &Config, emit: &Emit, readings: &Readings) {
    tokio::spawn(cni::run(config.cni.cache_dirs.clone(), emit.clone(), readings.clone()));
}

/// Whoever looks once subscribes to nothing.
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

/// Asks for the mounts whenever the mount table has changed, and never otherwise.
fn watch_mounts(dispatch: &Dispatch, readings: &Readings, troubles: &Troubles, emit: &Emit) {
    let (dispatch, readings) = (dispatch.clone(), readings.clone());
    let session = async move || -> io::Result<()> {
        let mut watch = MountWatch::new(&Proc::new(), readings.clone())?;
        loop {
            watch.changed().await?;
            dispatch.mounts();
            // What changes meanwhile is told by the next round.
            tokio::time::sleep(MOUNTS_SETTLE).await;
        }
    };
    tokio::spawn(keep(MOUNTS, troubles.clone(), emit.clone(), session));
}

/// Looks at all tasks every now and then although probes tell of them: events are hints, and this is what makes the
/// map right where one was not told. Without end, but for a configuration that has it off.
async fn sweep(dispatch: Dispatch, every: std::time::Duration) {
    while !every.is_zero() {
        tokio::time::sleep(every).await;
        dispatch.tasks();
    }
}

/// Looks every now and then at what nothing pushes on this kernel.
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
