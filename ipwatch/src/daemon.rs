//! Wires sources, map, detectors, ledger, API and sinks, and takes them down again.
//!
//! - `start`: the sources, in an order that leaves no gap.
//! - `core`: the single owner of the engine; `answer`: answers to queries; `own`: facts that the daemon itself adds
//!   to those of its sources.
//! - `span_links`: the tenures, plugin runs and cause that the span of a finding links to.
//! - `dispatch`, `readers`, `workers`: the threads that fetch what the map requests, and the replacement of a thread
//!   that hangs.
//! - `restarts`: restarts a part of a source that has ended.
//! - `canary`: when the canary runs, and what follows from its verdicts.
//! - `latency`, `memory`: what the daemon costs. `scrape`: the reading that answers a scrape.
//! - `service`, `reload`, `capabilities`: the service manager: notifications to it, reloads that it asks for,
//!   capabilities that it grants.
//! - `record_replay`: `record` and `replay`.

mod answer;
mod calls;
mod canary;
mod capabilities;
mod ceiling;
mod core;
mod dispatch;
mod fds_in_flight;
mod host_id;
mod jobs;
mod latency;
mod memory;
mod network;
mod orphan_sockets;
mod own;
mod readers;
mod record_replay;
mod reload;
mod restarts;
mod scrape;
mod scraped;
mod search_pace;
mod service;
mod span_links;
mod start;
mod turn;
mod workers;

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use self::canary::When;
use self::core::{Core, Parts};
use self::network::Network;
pub use self::record_replay::{record, replay};
use self::reload::Reloads;
pub use self::reload::Reread;
use self::scraped::Scrape;
use self::service::Service;
use self::start::{NO_NETWORK, Sight, Started};
use crate::api::server::{Options, Server};
use crate::api::{Asking, Streams};
use crate::bounded;
use crate::clock;
use crate::config::{Config, DEFAULT_SOCKET};
use crate::contract::{Body, Document};
use crate::engine::Engine;
use crate::ledger::{LedgerFile, Retention};
use crate::metrics;
use crate::remedy::Daemon;
use crate::rights::{self, Rights};
use crate::sinks::{self, Sinks};
use crate::sources::procfs::Proc;

/// Events that a slow follower may fall behind; older ones are dropped for this follower.
const FOLLOWERS_LAG: usize = 1024;

/// Maximum number of scrapes that wait for the core.
const SCRAPES: usize = 16;

/// `ipwatch run`: watches until SIGINT or SIGTERM. SIGHUP reloads the configuration; but if a standard stream is a
/// terminal, SIGHUP means that the terminal has closed, and ends the daemon.
///
/// # Errors
/// Not root, another daemon on the socket or the store, no netlink, or the port for metrics cannot be bound.
pub fn run(config: Config, reread: Reread) -> anyhow::Result<()> {
    must_be_root()?;
    memory::one_heap();
    let otlp = telemetry(&config)?;
    let server = Server::bind(&config.socket, Options::default())?;
    // Bind the metrics port before watching anything, so that a port that cannot be bound fails the rollout.
    let meters = config.metrics.listen.as_ref().map(metrics::Server::bind).transpose()?;
    on_runtime(async move {
        let events = Streams::new(FOLLOWERS_LAG);
        // Before anything slow, so that an early SIGHUP does not end the process. SIGINT and SIGTERM must end it
        // until their handlers are installed below.
        let mut hangup = signal(SignalKind::hangup())?;
        let mut service = Service::start();
        let canary = if config.probes.canary { When::Daily } else { When::Asked };
        let network = Network::default();
        // The socket's directory is this daemon's own since the socket was bound.
        let notes = config.socket.parent().unwrap_or(Path::new("/"));
        let proc = Proc::new().noting(notes);
        let started = start::start(&config, Sight::Everything, canary, &network, proc).await?;
        let file = open_ledger(&config, &started)?;
        let node = started.boot.node.clone();
        let (asking, scrapes) = mpsc::channel(SCRAPES);
        let (mut core, requests) =
            core(&config, started, file, &events, otlp, (scrapes, &network))?;
        core.beat(service.beat());
        tell_cluster(&config, &node, &mut core, &network)?;
        let mut reloads = Reloads::new(reread, config);

        let (stop, mut stopped) = watch::channel(());
        let serving = tokio::spawn(server.run(requests, events, async move {
            // An error means that the sender was dropped, which also means stop.
            let _ = stopped.changed().await;
        }));
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let attended = input.is_terminal() || output.is_terminal() || error.is_terminal();
        let measuring = meters.map(|server| -> anyhow::Result<_> {
            let mut stopped = stop.subscribe();
            let _network = network.enter().context(NO_NETWORK)?;
            Ok(tokio::spawn(server.run(asking, async move {
                let _ = stopped.changed().await;
            })))
        });
        let measuring = measuring.transpose()?;
        let mut told = false;
        loop {
            tokio::select! {
                () = turn::turn(&mut core) => service.turned(&core),
                read = reloads.read() => reloads.finish(read, &mut core, &mut service),
                _ = hangup.recv() => if attended { break } else { reloads.begin() },
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
            }
            if core.is_ready() && !told {
                told = true;
                tell_ready(&core);
            }
        }
        tracing::info!("stopping");
        Service::stopping();
        drop(stop);
        let _ = tokio::time::timeout(Duration::from_secs(3), serving).await;
        if let Some(measuring) = measuring {
            let _ = tokio::time::timeout(Duration::from_secs(1), measuring).await;
        }
        core.close().await;
        Ok(())
    })
}

fn tell_ready(core: &Core) {
    let (netns, addresses, tasks) = core.map().sizes();
    tracing::info!("ready: {addresses} addresses in {netns} network namespaces, {tasks} holders");
    memory::give_back();
}

fn must_be_root() -> anyhow::Result<()> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "this needs root: it reads every process and enters network namespaces; start it with sudo \
         or as a service"
    );
    Ok(())
}

/// One thread for all tasks, and a few for blocking calls.
fn on_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // A call that hangs in the kernel must not block others: each store and the CNI cache take one thread.
        .max_blocking_threads(16)
        .thread_keep_alive(Duration::from_secs(2))
        .thread_name("ipwatch-files")
        .on_thread_start(|| rights::keep(Rights::Read))
        .build()
        .context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    // A thread that hangs on a disk must not keep the daemon from exiting.
    runtime.shutdown_timeout(Duration::from_secs(5));
    done
}

/// Starts to send Events to the API server, and to keep conditions there, if that is configured and the API server can be
/// reached.
fn tell_cluster(
    config: &Config,
    node: &str,
    core: &mut Core,
    network: &Network,
) -> anyhow::Result<()> {
    let settings = &config.kubernetes;
    if !settings.events && !settings.node_conditions {
        return Ok(());
    }
    let door = match settings.door() {
        Ok(door) => door,
        Err(why) => {
            let key = if settings.events { "events" } else { "node_conditions" };
            tracing::warn!("kubernetes.{key}: the API server is {why}");
            return Ok(());
        }
    };
    let _network = network.enter().context(NO_NETWORK)?;
    let node = settings.node_name(node);
    if settings.node_conditions {
        match sinks::conditions::Conditions::start(door.clone(), node.clone()) {
            Ok(conditions) => core.keep_conditions(conditions),
            Err(why) => tracing::warn!("kubernetes.node_conditions: {why}"),
        }
    }
    if settings.events {
        core.tell_cluster(sinks::events::Events::start(door, node, &settings.event_namespaces));
    }
    Ok(())
}

/// The OTLP settings, validated before anything is started.
fn telemetry(config: &Config) -> anyhow::Result<Option<sinks::otlp::Settings>> {
    let environment = sinks::otlp::config::environment;
    config.otlp.settings(&environment).context("the configuration is wrong")
}

fn open_ledger(config: &Config, started: &Started) -> anyhow::Result<LedgerFile> {
    let retention = Retention {
        max_age_secs: config.retention.max_age.as_secs().unsigned_abs(),
        max_bytes: config.retention.max_mib.saturating_mul(1024 * 1024),
    };
    Ok(LedgerFile::open(Some(&config.state_dir), &started.boot, retention)?)
}

/// A unique id of this run: a UUID of version 4 (`proc_do_uuid`, drivers/char/random.c).
fn run_id() -> Option<String> {
    let text = bounded::read_text(Path::new("/proc/sys/kernel/random/uuid"), 64).ok()?;
    Some(text.trim_end().to_owned())
}

fn core(
    config: &Config,
    started: Started,
    file: LedgerFile,
    events: &Streams,
    otlp: Option<sinks::otlp::Settings>,
    (scrapes, network): (mpsc::Receiver<metrics::Question>, &Network),
) -> anyhow::Result<(Core, Asking)> {
    let node = sinks::Node {
        name: started.boot.node.clone(),
        host_id: host_id::host_id(),
        kubernetes: config.kubernetes.node_of_a_cluster(&started.boot.node),
        cluster: config.kubernetes.cluster.clone(),
        instance: run_id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        resource: otlp.as_ref().map(|otlp| otlp.resource.clone()).unwrap_or_default(),
    };
    let sinks = match otlp {
        None => Sinks::default(),
        Some(otlp) => {
            let _network = network.enter().context(NO_NETWORK)?;
            Sinks::start(otlp, &node, &started.readings).context("the configuration is wrong")?
        }
    };
    let mut calls = started.calls;
    calls.export_to(sinks.otlp().and_then(sinks::otlp::Otlp::calls));
    let mut scrape = Scrape::default();
    scrape.configure(&config.metrics, &config.addresses.shared);
    let begun = clock::now();
    let mut engine = Engine::new(config.engine(), begun);
    engine.set_daemon(asked(config));
    Ok(Core::new(Parts {
        engine,
        file,
        dispatch: started.dispatch,
        eyes: started.eyes,
        sinks,
        calls,
        started: begun,
        lacking: started.lacking,
        facts: started.facts,
        first: started.first,
        events: events.clone(),
        scrape,
        scrapes,
    }))
}

/// How the commands of remedies reach this daemon: its socket, if that is not the default.
fn asked(config: &Config) -> Daemon {
    match config.socket.to_string_lossy() {
        usual if usual == DEFAULT_SOCKET => Daemon::Usual,
        socket => Daemon::At(socket.into_owned()),
    }
}

/// Options of `ipwatch scan`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanOptions {
    /// Overrides the grace of the configuration.
    pub grace: Option<Duration>,
}

/// `ipwatch scan`: one complete look without a daemon. A task that is on its way out delays the end until its grace
/// has passed.
///
/// # Errors
/// Not root, or no netlink.
pub fn scan(config: &Config, options: ScanOptions) -> anyhow::Result<Document> {
    let core = one_shot(config, options, Sight::Snapshots, When::Never)?;
    let findings = core.ledger().findings(false);
    Ok(core.document(Body::Findings(findings)))
}

/// `ipwatch doctor` if no daemon answers: loads every probe, reports the result, and unloads the probes.
///
/// # Errors
/// Not root, or no netlink; or a canary is asked for and cannot run.
pub fn doctor(config: &Config, canary: bool) -> anyhow::Result<Document> {
    let when = if canary { When::Asked } else { When::Never };
    let core = one_shot(config, ScanOptions::default(), Sight::Everything, when)?;
    Ok(Document {
        refused: core.map().refused(),
        daemon: Some(answer::about_itself(&core)),
        ..core.document(Body::Probes(core.eyes.report()))
    })
}

/// Runs a core without a store and a socket until the first snapshot is complete. With [`Sight::Snapshots`] it also
/// waits for second looks that are still to decide something.
fn one_shot(
    config: &Config,
    options: ScanOptions,
    sight: Sight,
    canary: When,
) -> anyhow::Result<Core> {
    must_be_root()?;
    let mut config = config.clone();
    if let Some(grace) = options.grace {
        config.stuck.grace = grace.try_into().unwrap_or(config.stuck.grace);
    }
    // A scan is waited for: do not wait as long as the daemon does for a runtime to clean up.
    config.holders.grace = config.holders.grace.min(SCAN_GRACE);
    on_runtime(async {
        let events = Streams::new(1);
        let network = Network::default();
        let started = start::start(&config, sight, canary, &network, Proc::new()).await?;
        let file = LedgerFile::open(None, &started.boot, Retention::default())?;
        let (_asking, scrapes) = mpsc::channel(1);
        // A one-shot prints its answer to standard output and serves no socket.
        let (mut core, _requests) =
            core(&config, started, file, &events, None, (scrapes, &network))?;
        core.engine.set_daemon(Daemon::Absent);
        let thresholds = core.in_haste();
        let patience = thresholds.grace + 2 * thresholds.second_look + 5_000_000_000;
        let until = clock::now().plus(patience);
        while clock::now() < until {
            turn::turn(&mut core).await;
            if core.is_ready() && (sight == Sight::Everything || core.is_settled()) {
                break;
            }
        }
        if canary == When::Asked {
            let mut done = core.eyes.canary().map_err(anyhow::Error::msg)?.ask();
            // The core must turn meanwhile; the canary's own results do not pass through it.
            while matches!(done.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                let _ =
                    tokio::time::timeout(Duration::from_millis(10), turn::turn(&mut core)).await;
            }
        }
        Ok(core)
    })
}

/// How long a dead sandbox may keep its IP before a scan reports it.
const SCAN_GRACE: jiff::SignedDuration = jiff::SignedDuration::from_secs(1);

/// `path`, escaped for messages.
fn shown(path: &Path) -> String {
    crate::escape::escape(&path.to_string_lossy()).into_owned()
}
