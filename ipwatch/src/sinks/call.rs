//! A run of a CNI plugin as a span. Pure.
//!
//! The outermost run is the root of a trace; runs that it starts, such as that of an IPAM plugin, are its children. All
//! ids are derived from the boot and the process, so that a child can be sent before its parent.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::trace::{Link, SpanId, Status, TraceId};
use opentelemetry_sdk::trace::SpanData;

use super::attributes::{self, clean, number, span_id, text, trace_id, word};
use super::{names, span};
use crate::contract::Pod;
use crate::fact::{BootNs, TaskKey};
use crate::map::CallEntry;

/// A run that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The run.
    pub entry: CallEntry,
    /// The outermost run that it is within; itself, if it is within none.
    pub root: TaskKey,
    /// The boot it belongs to.
    pub boot_id: Arc<str>,
    /// Wall clock minus boot clock, in nanoseconds.
    pub wall_offset: i64,
    /// The reason of a failure, if the log of the runtime has it.
    pub error: Option<String>,
}

/// Identifies a run, so that a link to its span can be made before the run has ended.
#[derive(Debug, Clone, Copy)]
pub struct RunKey<'a> {
    /// The run.
    pub task: TaskKey,
    /// The outermost run that it is within; itself, if it is within none.
    pub root: TaskKey,
    /// The boot it belongs to.
    pub boot_id: &'a str,
}

impl RunKey<'_> {
    /// A link to the span of this run.
    #[must_use]
    pub fn link(&self) -> Link {
        span::link((self.trace_id(), self.span_id(self.task)), "cni-call")
    }

    fn trace_id(&self) -> TraceId {
        trace_id(&self.parts("call trace", self.root).each_ref().map(String::as_str))
    }

    fn span_id(&self, task: TaskKey) -> SpanId {
        span_id(&self.parts("call", task).each_ref().map(String::as_str))
    }

    fn parts(&self, what: &str, task: TaskKey) -> [String; 4] {
        let TaskKey { pid, start, .. } = task;
        [what.to_owned(), self.boot_id.to_owned(), pid.to_string(), start.to_string()]
    }
}

impl Run {
    fn nanos(&self, at: BootNs) -> u64 {
        u64::try_from(i128::from(at.0) + i128::from(self.wall_offset)).unwrap_or(0)
    }

    fn key(&self) -> RunKey<'_> {
        RunKey { task: self.entry.call.task, root: self.root, boot_id: &self.boot_id }
    }

    /// Whether it failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.entry.ended.as_ref().is_some_and(crate::map::CallEnd::failed)
    }
}

/// The span of a run.
pub(super) fn span(run: &Run) -> SpanData {
    let call = &run.entry.call;
    let key = run.key();
    let end = run.entry.ended.map_or(run.entry.began, |end| end.at);
    let plugin = call.plugin.rsplit('/').next().unwrap_or_default();
    let name = clean(&format!("cni {} {plugin}", call.command.as_str()));
    let ids = (key.trace_id(), key.span_id(call.task));
    let parent = run.entry.within.map(|task| key.span_id(task));
    let times = (run.nanos(run.entry.began), run.nanos(end));
    let mut span = span::plain(name, ids, parent, times, attributes(run, plugin));
    span.status = outcome(run);
    span
}

fn attributes(run: &Run, plugin: &str) -> Vec<KeyValue> {
    let call = &run.entry.call;
    let mut out = vec![
        word(names::CNI_COMMAND, call.command.as_str()),
        text(names::CNI_PLUGIN, plugin),
        text(names::PROCESS_EXECUTABLE_PATH, &call.plugin),
        number(names::PROCESS_PID, call.task.pid.into()),
        number(names::PROCESS_PARENT_PID, call.parent.into()),
    ];
    out.extend(call.container_id.as_deref().map(|id| text(names::CONTAINER_ID, id)));
    out.extend(call.ifname.as_deref().map(|name| text(names::CNI_IFNAME, name)));
    out.extend(call.netns_path.as_deref().map(|path| text(names::NETNS_PATH, path)));
    if let Some(pod) = &call.pod {
        let pod = Pod {
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: pod.uid.clone(),
            ..Pod::default()
        };
        attributes::pod(&pod, &mut out);
    }
    let end = run.entry.ended;
    out.extend(end.and_then(|e| e.status).map(|n| number(names::PROCESS_EXIT_CODE, n.into())));
    out.extend(end.and_then(|e| e.signal).map(|n| number(names::CNI_SIGNAL, n.into())));
    out.extend(run.error.as_deref().map(|error| text(names::CNI_ERROR, error)));
    out.extend(how_it_failed(run).map(|how| text(names::ERROR_TYPE, &how)));
    out
}

/// How a run failed: its signal or its exit status.
fn how_it_failed(run: &Run) -> Option<String> {
    let end = run.entry.ended.filter(crate::map::CallEnd::failed)?;
    Some(match end.signal {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit status {}", end.status.unwrap_or_default()),
    })
}

fn outcome(run: &Run) -> Status {
    let Some(how) = how_it_failed(run) else { return Status::Unset };
    Status::error(run.error.as_deref().map_or(how, clean))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::fact::{CniCall, CniCommand, PodName};
    use crate::map::CallEnd;
    use opentelemetry_proto::tonic::trace::v1::{Span, Status};

    fn span(run: &Run) -> Span {
        super::span(run).into()
    }

    pub(in super::super) fn run(pid: u32, within: Option<u32>) -> Run {
        let task = |pid| TaskKey { pid, tid: pid, start: 5 };
        let call = CniCall {
            task: task(pid),
            parent: 1,
            plugin: "/opt/cni/bin/bridge".into(),
            command: CniCommand::Add,
            container_id: Some("abc".into()),
            netns_path: None,
            ifname: Some("eth0".into()),
            pod: Some(PodName { namespace: "shop".into(), name: "api-0".into(), uid: None }),
        };
        let ended = Some(CallEnd { at: BootNs(30), status: Some(1), signal: None });
        let root = task(within.unwrap_or(pid));
        let entry = CallEntry {
            call,
            within: within.map(task),
            began: BootNs(10),
            ended,
            delegated: false,
            of_add: false,
            put_off: false,
        };
        Run { entry, root, boot_id: "boot".into(), wall_offset: 1000, error: None }
    }

    #[test]
    fn a_run_within_another_is_its_child() {
        let (main, ipam) = (span(&run(7, None)), span(&run(8, Some(7))));
        assert_eq!(ipam.trace_id, main.trace_id);
        assert_eq!(ipam.parent_span_id, main.span_id);
        assert_ne!(ipam.span_id, main.span_id);
        assert!(main.parent_span_id.is_empty());
        assert_eq!((main.trace_id.len(), main.span_id.len()), (16, 8));
        assert_ne!(span(&run(9, None)).trace_id, main.trace_id);
        assert_eq!((main.start_time_unix_nano, main.end_time_unix_nano), (1010, 1030));
        assert_eq!(main.name, "cni ADD bridge");
    }

    #[test]
    fn a_failure_says_why() {
        let message = |run: &Run| span(run).status.unwrap().message;
        let how = |run: &Run| {
            let pairs = super::span(run).attributes;
            let pair = pairs.into_iter().find(|pair| pair.key.as_str() == "error.type");
            pair.map(|pair| pair.value.to_string())
        };
        let mut failed = run(7, None);
        assert_eq!(
            (message(&failed), how(&failed)),
            ("exit status 1".into(), Some("exit status 1".into()))
        );
        failed.entry.ended = Some(CallEnd { at: BootNs(30), status: None, signal: Some(9) });
        assert_eq!((message(&failed), how(&failed)), ("signal 9".into(), Some("signal 9".into())));
        failed.error = Some("no IP\u{1b}[2J".into());
        assert!(message(&failed).starts_with("no IP") && !message(&failed).contains('\u{1b}'));
        failed.entry.ended = Some(CallEnd { at: BootNs(30), status: Some(0), signal: None });
        assert_eq!(span(&failed).status, Some(Status::default()));
        assert_eq!(how(&failed), None);
    }
}
