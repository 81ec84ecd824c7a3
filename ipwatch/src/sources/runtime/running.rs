//! Which runtimes run on the node, and which of them are asked. A runtime that runs and is not asked may own any
//! container that the others do not know.
//!
//! A runtime is asked if it listens on a socket that has a seat (`names`), whether or not it answers there: one that
//! does not is reported as down. The running runtimes are read from `/proc` periodically, because no event reports
//! them: a runtime usually starts once in a node's life.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::names::Names;
use crate::clock;
use crate::fact::{Fact, Monitor, Observation, Origin, RuntimeProcess, SourceName, SourceStatus};
use crate::reading::{self, Readings};
use crate::sources::procfs::{Proc, RuntimesSeen};
use crate::sources::session::Standing;
use crate::sources::{Closed, Emit, Unheard};

/// Between two reads. Unless configured otherwise, a pod's netns is judged after five minutes by whether other runtimes
/// know it.
const EVERY: Duration = Duration::from_secs(30);
pub(super) const NAME: &str = SourceName::Runtimes.as_str();
/// Maximum number of runtimes that `doctor` lists.
const LISTED: usize = 8;

/// The last report.
#[derive(Debug, Default)]
struct LastReport {
    seen: Option<RuntimesSeen>,
    standing: Standing,
}

/// Reads the running runtimes periodically until the daemon shuts down. Releases `first` after the first report.
pub(super) async fn run(
    names: Arc<Names>,
    ignore: Vec<PathBuf>,
    emit: Emit,
    readings: Readings,
    first: Unheard,
) {
    let mut first = Some(first);
    let mut told = LastReport::default();
    loop {
        let mut returns = readings.returns();
        let look = || Proc::new().runtimes().map(|seen| (resolve(&seen), seen));
        let seen = match reading::unblocked(&readings, NAME, look).await {
            Ok(Ok(Ok((real, mut seen)))) => {
                mark(&mut seen, &real, &names, &ignore);
                Ok(seen)
            }
            Ok(Ok(Err(error))) => Err(format!("/proc does not answer: {error}")),
            // The next read leaves it out.
            Ok(Err(hangs)) => {
                tracing::warn!("{hangs} does not answer: the runtimes are read without it");
                continue;
            }
            // The thread panicked, or the tokio runtime is shutting down.
            Err(error) => Err(error.to_string()),
        };
        if told.tell(&emit, seen).await.is_err() {
            return;
        }
        drop(first.take());
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            // A process that was left out may be readable again.
            _ = returns.changed() => {}
        }
    }
}

impl LastReport {
    /// Reports what has changed.
    async fn tell(
        &mut self,
        emit: &Emit,
        seen: Result<RuntimesSeen, String>,
    ) -> Result<(), Closed> {
        let mut facts = Vec::new();
        let (status, detail) = match &seen {
            Ok(seen) => standing(seen),
            Err(error) => (SourceStatus::Down, error.clone()),
        };
        // After a failed read, anything may be running.
        let seen = seen.unwrap_or_default();
        if self.seen.as_ref() != Some(&seen) {
            let RuntimesSeen { runtimes, monitors, complete } = seen.clone();
            facts.push(Observation::RuntimeProcesses { runtimes, monitors, complete });
            self.seen = Some(seen);
        }
        facts.extend(self.standing.change(NAME, status, detail));
        let fact = |what| Fact { at: clock::now(), origin: Origin::Procfs, what };
        emit.send(facts.into_iter().map(fact).collect()).await
    }
}

/// The real paths of sockets whose path is a link or leads through one, because seats are known by real paths. If a
/// path cannot be resolved, its name is used.
fn resolve(seen: &RuntimesSeen) -> BTreeMap<String, PathBuf> {
    let real = |path: &String| {
        let _reading = reading::path(Path::new(path)).ok()?;
        let real = Path::new(path).canonicalize().ok()?;
        (real != Path::new(path)).then(|| (path.clone(), real))
    };
    seen.runtimes.iter().flat_map(|process| &process.sockets).filter_map(real).collect()
}

/// Marks the runtimes that are asked, and those that the configuration ignores.
fn mark(
    seen: &mut RuntimesSeen,
    real: &BTreeMap<String, PathBuf>,
    names: &Names,
    ignore: &[PathBuf],
) {
    let all = ignore.iter().any(|path| path == Path::new("/"));
    let ignored =
        |path: &str| all || ignore.iter().any(|prefix| Path::new(path).starts_with(prefix));
    for process in &mut seen.runtimes {
        process.asked = process.sockets.iter().any(|path| {
            names.has(Path::new(path)) || real.get(path).is_some_and(|real| names.has(real))
        });
        process.ignored =
            !process.asked && (all || process.sockets.iter().any(|path| ignored(path)));
    }
    for monitor in &mut seen.monitors {
        monitor.ignored = all || monitor.dir.as_deref().is_some_and(ignored);
    }
}

/// The status: which runtimes are not asked, and what to do about it.
fn standing(seen: &RuntimesSeen) -> (SourceStatus, String) {
    if !seen.complete {
        let text = "not every process could be read (CAP_SYS_PTRACE): no container counts as dead by the word of \
                    others than its own runtime";
        return (SourceStatus::Degraded, text.to_owned());
    }
    let unasked: Vec<&RuntimeProcess> =
        seen.runtimes.iter().filter(|process| !process.asked && !process.ignored).collect();
    if unasked.is_empty() {
        let asked: Vec<String> =
            seen.runtimes.iter().filter(|process| process.asked).map(place).collect();
        let text =
            if asked.is_empty() { String::new() } else { format!("asked: {}", asked.join(", ")) };
        return (SourceStatus::Active, text);
    }
    let lines: Vec<String> =
        unasked.iter().take(LISTED).map(|process| complaint(process, &seen.monitors)).collect();
    let text = format!(
        "{}: no container that may be its own counts as dead. Add its socket to [runtime] sockets; if no pod of this \
         node is its own, to [runtime] ignore",
        lines.join("; ")
    );
    (SourceStatus::Degraded, text)
}

fn complaint(process: &RuntimeProcess, monitors: &[Monitor]) -> String {
    let name = process.engine.name();
    let own = |monitor: &&Monitor| {
        let here = monitor.dir.as_ref().is_some_and(|dir| process.dirs.contains(dir));
        monitor.engine == Some(process.engine) && (here || monitor.dir.is_none())
    };
    let runs = if monitors.iter().any(|monitor| own(&monitor)) {
        format!("containers of {name} are running, and {name} is not asked")
    } else {
        format!("{name} is running, and is not asked")
    };
    format!("{runs} ({})", place(process))
}

/// Name, pid and socket of a runtime.
fn place(process: &RuntimeProcess) -> String {
    let socket = process.sockets.first().map(|path| format!(", {path}")).unwrap_or_default();
    format!("{} pid {}{socket}", process.engine.name(), process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Engine;

    fn process(pid: u32, engine: Engine, socket: &str, dir: &str) -> RuntimeProcess {
        let texts = |text: &str| vec![text.to_owned()];
        let (sockets, dirs) = (texts(socket), texts(dir));
        RuntimeProcess { pid, engine, started: None, sockets, dirs, asked: false, ignored: false }
    }

    fn monitor(engine: Engine, dir: Option<&str>) -> Monitor {
        Monitor {
            pid: 900,
            engine: Some(engine),
            dir: dir.map(str::to_owned),
            namespace: None,
            container_id: Some("c".into()),
            children: Vec::new(),
            ignored: false,
        }
    }

    fn seen() -> RuntimesSeen {
        RuntimesSeen {
            runtimes: vec![
                process(10, Engine::Containerd, "/none/containerd.sock", "/none/state"),
                process(11, Engine::CriO, "/none/crio.sock", "/none/crio"),
            ],
            monitors: vec![monitor(Engine::Containerd, Some("/none/state"))],
            complete: true,
        }
    }

    #[test]
    fn one_is_asked_whose_socket_has_a_seat() {
        let names: Arc<Names> = Arc::default();
        let _seat = names.seat(Path::new("/none/crio.sock"), None);
        let mut seen = seen();
        mark(&mut seen, &BTreeMap::new(), &names, &[]);
        let asked: Vec<bool> = seen.runtimes.iter().map(|process| process.asked).collect();
        assert_eq!(asked, [false, true]);
        let (status, detail) = standing(&seen);
        assert_eq!(status, SourceStatus::Degraded);
        let begins = "containers of containerd are running, and containerd is not asked (containerd pid 10, \
                      /none/containerd.sock): ";
        assert!(detail.starts_with(begins) && detail.contains("[runtime] sockets"), "{detail}");
        seen.monitors.clear();
        assert!(standing(&seen).1.starts_with("containerd is running, and is not asked"));
    }

    #[test]
    fn whoever_is_left_out_is_no_complaint() {
        for prefix in ["/none/containerd.sock", "/none", "/"] {
            let names: Arc<Names> = Arc::default();
            let _seat = names.seat(Path::new("/none/crio.sock"), None);
            let mut seen = seen();
            mark(&mut seen, &BTreeMap::new(), &names, &[prefix.into()]);
            let (status, detail) = standing(&seen);
            assert_eq!(
                (status, &*detail),
                (SourceStatus::Active, "asked: cri-o pid 11, /none/crio.sock")
            );
            // A prefix must consist of whole path components.
            mark(&mut seen, &BTreeMap::new(), &names, &["/no".into(), "/none/containerd".into()]);
            assert_eq!(standing(&seen).0, SourceStatus::Degraded);
        }
        let mut seen = seen();
        mark(&mut seen, &BTreeMap::new(), &Names::default(), &["/none/state".into()]);
        assert!(seen.monitors[0].ignored && !seen.runtimes[0].ignored);
    }

    #[test]
    fn what_could_not_be_read_is_said() {
        let seen = RuntimesSeen { complete: false, ..RuntimesSeen::default() };
        assert_eq!(standing(&seen).0, SourceStatus::Degraded);
    }
}
