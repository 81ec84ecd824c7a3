//! The teardown of a netns as spans. Pure.
//!
//! A teardown that makes progress is one span, from the request to its end. For one that hangs, a root span without
//! duration is sent at once; a child span follows at the end, with an event for each look at the kernel worker in
//! between.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::trace::Event;
use opentelemetry_sdk::trace::SpanData;

use super::attributes::{self, list, number, text, word};
use super::{names, span};
use crate::fact::BootNs;
use crate::map::{Ending, WorkerLook};

/// A teardown that hangs or has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Teardown {
    /// The teardown.
    pub ending: Ending,
    /// The boot it belongs to.
    pub boot_id: Arc<str>,
    /// Wall clock minus boot clock, in nanoseconds.
    pub wall_offset: i64,
}

impl Teardown {
    fn nanos(&self, at: BootNs) -> u64 {
        u64::try_from(i128::from(at.0) + i128::from(self.wall_offset)).unwrap_or(0)
    }
}

/// The span of a teardown.
pub(super) fn span(teardown: &Teardown) -> SpanData {
    let ending = &teardown.ending;
    let cookie = ending.netns.cookie.map(|cookie| cookie.to_string()).unwrap_or_default();
    let inode = ending.netns.inode.map(|inode| inode.to_string()).unwrap_or_default();
    // Inodes are reused, but two netns that are torn down at the same moment cannot share one.
    let asked = ending.asked.0.to_string();
    let parts = |what| [what, &*teardown.boot_id, &cookie, &inode, &asked];
    let root = attributes::span_id(&parts("teardown asked"));
    let start = teardown.nanos(ending.asked);
    let (span_id, parent, end) = match ending.finished {
        None => (root, None, start),
        Some(at) if ending.told => {
            (attributes::span_id(&parts("teardown")), Some(root), teardown.nanos(at))
        }
        Some(at) => (root, None, teardown.nanos(at)),
    };
    let ids = (attributes::trace_id(&parts("teardown trace")), span_id);
    let attributes = teardown_attributes(ending);
    let times = (start, end.max(start));
    let mut span = span::plain("ipwatch.netns.teardown", ids, parent, times, attributes);
    let looks = ending.looks.iter().map(|look| event(teardown, look)).collect();
    span.events = span::events(looks, u32::try_from(ending.more_looks).unwrap_or(u32::MAX));
    span
}

fn teardown_attributes(ending: &Ending) -> Vec<KeyValue> {
    let change = if ending.finished.is_some() { "finished" } else { "hangs" };
    let mut out = vec![word(names::TEARDOWN_CHANGE, change)];
    attributes::netns(&ending.netns, &mut out);
    if !ending.ips.is_empty() {
        let ips: Vec<String> = ending.ips.iter().map(ToString::to_string).collect();
        out.push(list(names::TEARDOWN_ADDRESSES, ips.iter().map(String::as_str)));
    }
    ending.container.iter().for_each(|container| attributes::container(container, &mut out));
    ending.pod.iter().for_each(|pod| attributes::pod(pod, &mut out));
    out
}

fn event(teardown: &Teardown, look: &WorkerLook) -> Event {
    let mut attributes = vec![
        number(names::PROCESS_PID, look.pid.into()),
        text(names::TEARDOWN_WORKER_STATE, &look.state.to_string()),
    ];
    attributes.extend(look.wchan.as_deref().map(|at| text(names::TEARDOWN_WORKER_WCHAN, at)));
    let at = attributes::moment(teardown.nanos(look.at));
    Event::new("ipwatch.teardown.look", at, attributes, 0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sinks::tests::opened;
    use opentelemetry_proto::tonic::trace::v1::Span;

    fn span(teardown: &Teardown) -> Span {
        super::span(teardown).into()
    }

    pub(in super::super) fn teardown(finished: Option<u64>, told: bool) -> Teardown {
        let subject = opened("a").finding.subject;
        let look = WorkerLook { at: BootNs(20), pid: 77, state: 'D', wchan: Some("msleep".into()) };
        let ending = Ending {
            netns: subject.netns.unwrap(),
            ips: vec!["10.0.3.17".parse().unwrap()],
            container: subject.container,
            pod: subject.pod,
            asked: BootNs(10),
            finished: finished.map(BootNs),
            looks: if told { vec![look] } else { Vec::new() },
            more_looks: 0,
            told,
        };
        Teardown { ending, boot_id: "boot".into(), wall_offset: 1000 }
    }

    #[test]
    fn one_that_gets_on_is_one_span() {
        let span = span(&teardown(Some(30), false));
        assert!(span.parent_span_id.is_empty() && span.events.is_empty());
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (1010, 1030));
    }

    #[test]
    fn one_that_hangs_is_told_at_once_and_its_end_is_a_child_with_the_looks() {
        let (hangs, ended) = (span(&teardown(None, true)), span(&teardown(Some(30), true)));
        assert_eq!((hangs.start_time_unix_nano, hangs.end_time_unix_nano), (1010, 1010));
        assert_eq!(ended.trace_id, hangs.trace_id);
        assert_eq!(ended.parent_span_id, hangs.span_id);
        assert_eq!((ended.start_time_unix_nano, ended.end_time_unix_nano), (1010, 1030));
        assert_eq!(ended.events[0].time_unix_nano, 1020);
    }
}
