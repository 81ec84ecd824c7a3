//! An IP's tenure as OTLP spans. Pure.
//!
//! A tenure is one trace. Its root is the span of its beginning, of no length and sent at once: who looks for
//! the holder of an IP cannot wait for the end. The end is a child that lasts from the assignment to the
//! release. The ids are made from what a tenure says of itself, so that a finding's link can be made without
//! the span.

use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::{Span, span};

use super::attributes::{self, nanos, text};
use super::names;
use super::span::{FLAGS, Link};
use crate::contract::{Holder, Tenure};

/// A tenure that begins, or one that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The tenure; it has ended if it says until when.
    pub tenure: Tenure,
    /// Who keeps its netns.
    pub holders: Vec<Holder>,
    /// Which boot it is in.
    pub boot_id: Arc<str>,
}

impl Held {
    /// About what it takes in memory.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + 512 + self.holders.len() * (size_of::<Holder>() + 64)
    }
}

/// A link to the beginning of a tenure.
#[must_use]
pub fn link(tenure: &Tenure, boot_id: &str) -> Link {
    let (trace_id, span_id) = ids(tenure, boot_id, "assigned");
    Link { trace_id, span_id, kind: "tenure" }
}

fn ids(tenure: &Tenure, boot_id: &str, change: &str) -> (Vec<u8>, Vec<u8>) {
    let netns = &tenure.netns;
    // As in an identity: the cookie where there is one, for the inode is handed out again.
    let netns = match (netns.cookie, netns.inode, netns.nsid) {
        (Some(cookie), ..) => format!("cookie:{cookie}"),
        (None, Some(inode), _) => format!("inode:{inode}"),
        (None, None, nsid) => format!("nsid:{}", nsid.unwrap_or(-1)),
    };
    let ip = tenure.ip.to_string();
    let parts = |what| [what, boot_id, &netns, &ip, &tenure.from];
    let [_, boot, netns, ip, from] = parts("");
    let span = attributes::span_id(&["tenure", boot, netns, ip, from, change]);
    (attributes::trace_id(&parts("tenure trace")), span)
}

/// The span of a beginning or of an end.
pub(super) fn span(held: &Held) -> Span {
    let tenure = &held.tenure;
    let (trace_id, root) = ids(tenure, &held.boot_id, "assigned");
    let from = nanos(&tenure.from);
    let (span_id, parent_span_id, end) = match &tenure.to {
        None => (root, Vec::new(), from),
        Some(to) => (ids(tenure, &held.boot_id, "released").1, root, nanos(to).max(from)),
    };
    Span {
        trace_id,
        span_id,
        parent_span_id,
        flags: FLAGS,
        name: "ipwatch.tenure".to_owned(),
        kind: span::SpanKind::Internal as i32,
        start_time_unix_nano: from,
        end_time_unix_nano: end,
        attributes: tenure_attributes(held),
        ..Span::default()
    }
}

fn tenure_attributes(held: &Held) -> Vec<KeyValue> {
    let tenure = &held.tenure;
    let change = if tenure.to.is_some() { "released" } else { "assigned" };
    let mut out = vec![
        text(names::TENURE_CHANGE, change),
        text(names::TENURE_SINCE, &tenure.from),
        text(names::NETWORK_LOCAL_ADDRESS, &tenure.ip.to_string()),
    ];
    out.extend(tenure.ended_by.as_deref().map(|why| text(names::TENURE_ENDED_BY, why)));
    attributes::netns(&tenure.netns, &mut out);
    tenure.container.iter().for_each(|container| attributes::container(container, &mut out));
    tenure.pod.iter().for_each(|pod| attributes::pod(pod, &mut out));
    attributes::holders(&held.holders, &mut out);
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sinks::tests::opened;

    pub(in super::super) fn held(to: Option<&str>) -> Held {
        let finding = opened("a").finding;
        let tenure = Tenure {
            ip: "10.0.3.17".parse().unwrap(),
            netns: finding.subject.netns.unwrap(),
            container: finding.subject.container,
            pod: finding.subject.pod,
            from: "2026-01-01T00:00:00.000Z".to_owned(),
            to: to.map(str::to_owned),
            ended_by: to.map(|_| "netns-gone".to_owned()),
        };
        Held { tenure, holders: finding.holders, boot_id: "boot".into() }
    }

    #[test]
    fn the_end_is_a_child_of_the_beginning_and_has_the_whole_length() {
        let (begins, ends) = (span(&held(None)), span(&held(Some("2026-01-01T00:01:00.000Z"))));
        assert_eq!(ends.trace_id, begins.trace_id);
        assert_eq!(ends.parent_span_id, begins.span_id);
        assert_eq!(begins.start_time_unix_nano, begins.end_time_unix_nano);
        assert_eq!(ends.end_time_unix_nano - ends.start_time_unix_nano, 60_000_000_000);
    }

    #[test]
    fn a_link_leads_to_the_beginning_whoever_makes_it() {
        let (begins, ended) = (held(None), held(Some("2026-01-01T00:01:00.000Z")));
        let root = span(&begins);
        for tenure in [&begins.tenure, &ended.tenure] {
            let link = link(tenure, "boot");
            assert_eq!((&link.trace_id, &link.span_id), (&root.trace_id, &root.span_id));
            assert_ne!(super::link(tenure, "another boot").trace_id, root.trace_id);
        }
        let mut again = begins.tenure;
        again.from = "2026-01-01T00:02:00.000Z".to_owned();
        assert_ne!(link(&again, "boot").trace_id, root.trace_id, "a second tenure is another");
    }
}
