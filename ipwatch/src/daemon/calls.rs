//! What is done with runs of CNI plugins that have ended: some are exported as spans; for a failed run the reason is
//! looked up in the runtime's log.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::span_links::SpanLinks;
use crate::clock;
use crate::fact::{Fact, Observation, Origin, SourceName, TaskKey};
use crate::map::{CallEnd, CallEntry, NodeMap};
use crate::reading::{self, Readings};
use crate::sinks::call::Run;
use crate::sinks::otlp;
use crate::sources::Emit;
use crate::sources::cni::log::{self, Failure};

/// Pauses before the log is read after a failure: the runtime writes the reason after it has handled the plugin's
/// exit.
const READ_AFTER: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(300)];
/// Failures whose reasons are looked up at the same time. If more fail at once, they share a reason.
const MOST: usize = 8;
/// Maximum depth of plugins that call plugins.
const DEEPEST: usize = 8;

/// Handles ended runs.
#[derive(Debug)]
pub(super) struct Calls {
    logs: Arc<[PathBuf]>,
    readings: Readings,
    emit: Emit,
    exporter: Option<otlp::Calls>,
    free: Arc<Semaphore>,
}

impl Calls {
    /// Looks up reasons in these logs and exports nothing.
    pub(super) fn new(logs: &[PathBuf], readings: Readings, emit: Emit) -> Self {
        let free = Arc::new(Semaphore::new(MOST));
        Self { logs: logs.into(), readings, emit, exporter: None, free }
    }

    /// Exports spans as well.
    pub(super) fn export_to(&mut self, exporter: Option<otlp::Calls>) {
        self.exporter = exporter;
    }

    /// Handles runs that have ended. Never blocks. Must be called within the tokio runtime.
    pub(super) fn tell(&self, ended: Vec<CallEntry>, map: &NodeMap, span_links: &SpanLinks) {
        if ended.is_empty() {
            return;
        }
        let boot_id: Arc<str> = map.boot().map_or("", |boot| &boot.boot_id).into();
        let wall_offset = map.calendar().wall_offset;
        for entry in ended {
            let root = root(map, &entry);
            let boot_id = Arc::clone(&boot_id);
            let run = Run { entry, root, boot_id, wall_offset, error: None };
            // If a run within another fails, the outer run fails as well, and the log gives the reason for that one.
            let failure = failure(&run).filter(|_| run.entry.within.is_none());
            let exporter = self.exporter.as_ref();
            let concern = span_links.is_about(&run.entry.call.task);
            let exporter = exporter.filter(|calls| concern || calls.wants(&run)).cloned();
            match (failure, Arc::clone(&self.free).try_acquire_owned()) {
                (Some(failure), Ok(permit)) => {
                    let (logs, emit) = (Arc::clone(&self.logs), self.emit.clone());
                    let readings = self.readings.clone();
                    tokio::spawn(async move {
                        let error = explain(logs, &failure, &readings, &emit).await;
                        publish(exporter.as_ref(), Run { error, ..run });
                        drop(permit);
                    });
                }
                _ => publish(exporter.as_ref(), run),
            }
        }
    }
}

fn publish(exporter: Option<&otlp::Calls>, run: Run) {
    if let Some(exporter) = exporter {
        exporter.publish(&run);
    }
}

/// The outermost run that contains this run.
fn root(map: &NodeMap, entry: &CallEntry) -> TaskKey {
    let mut root = entry.call.task;
    let mut within = entry.within;
    for _ in 0..DEEPEST {
        let Some(task) = within else { break };
        root = task;
        let around = map.calls().find(|entry| entry.call.task == task);
        within = around.and_then(|entry| entry.within);
    }
    root
}

/// What to look up in the log: only for a run that failed and has a container id.
fn failure(run: &Run) -> Option<Failure> {
    let Run { entry, wall_offset, .. } = run;
    entry.ended.as_ref().filter(|end| CallEnd::failed(end))?;
    let began = i64::try_from(entry.began.0).ok()?;
    Some(Failure {
        container_id: entry.call.container_id.clone()?,
        command: entry.call.command,
        since: began.saturating_add(*wall_offset),
    })
}

/// Looks up the reason of a failure in the logs and emits it as a fact.
async fn explain(
    logs: Arc<[PathBuf]>,
    failure: &Failure,
    readings: &Readings,
    emit: &Emit,
) -> Option<String> {
    for pause in READ_AFTER {
        tokio::time::sleep(pause).await;
        let (logs, wanted) = (Arc::clone(&logs), failure.clone());
        // Not on the async thread: the disk of a log may be slow, or hang. That log is then skipped.
        let find = move || log::find(&logs, &wanted);
        let found = reading::unblocked(readings, SourceName::Cni.as_str(), find).await;
        let Ok(Ok(Some(text))) = found else { continue };
        let (container_id, command) = (failure.container_id.clone(), failure.command);
        let what = Observation::CniError { container_id, command, text: text.clone() };
        // An error means that the daemon is shutting down.
        let _ = emit.send(vec![Fact { at: clock::now(), origin: Origin::Runtime, what }]).await;
        return Some(text);
    }
    None
}
