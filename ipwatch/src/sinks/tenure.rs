//! An IP's tenure as spans. Pure.
//!
//! A tenure is one trace. Its root span marks the assignment; it has no duration and is sent at once, so that the
//! holder of an IP can be looked up before the tenure ends. A child span lasts from the assignment to the release. The
//! ids are derived from the tenure, so that a finding can link to it without having its span.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::trace::Link;
use opentelemetry_sdk::trace::SpanData;

use super::attributes::{self, nanos, text, word};
use super::names;
use super::span::{self, Ids};
use crate::contract::{Holder, Tenure};

/// A tenure that begins or has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The tenure. It has ended if `to` is set.
    pub tenure: Tenure,
    /// The holders of its netns.
    pub holders: Vec<Holder>,
    /// The boot it belongs to.
    pub boot_id: Arc<str>,
}

/// A link to the root span of a tenure.
#[must_use]
pub fn link(tenure: &Tenure, boot_id: &str) -> Link {
    span::link(ids(tenure, boot_id, "assigned"), "tenure")
}

fn ids(tenure: &Tenure, boot_id: &str, change: &str) -> Ids {
    let netns = &tenure.netns;
    // As in an identity: the cookie if there is one, because inodes are reused.
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

/// The root span of a tenure that begins, or the child span of one that has ended.
pub(super) fn span(held: &Held) -> SpanData {
    let tenure = &held.tenure;
    let begins = ids(tenure, &held.boot_id, "assigned");
    let from = nanos(&tenure.from);
    let (own, parent, end) = match &tenure.to {
        None => (begins, None, from),
        Some(to) => (ids(tenure, &held.boot_id, "released"), Some(begins.1), nanos(to).max(from)),
    };
    span::plain("ipwatch.tenure", own, parent, (from, end), tenure_attributes(held))
}

fn tenure_attributes(held: &Held) -> Vec<KeyValue> {
    let tenure = &held.tenure;
    let change = if tenure.to.is_some() { "released" } else { "assigned" };
    let mut out = vec![
        word(names::TENURE_CHANGE, change),
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
    use opentelemetry_proto::tonic::trace::v1::Span;

    fn span(held: &Held) -> Span {
        super::span(held).into()
    }

    pub(in super::super) fn held(to: Option<&str>) -> Held {
        let finding = opened("a").finding;
        let tenure = Tenure {
            ip: "10.0.3.17".parse().unwrap(),
            netns: finding.subject.netns.unwrap(),
            container: finding.subject.container,
            pod: finding.subject.pod,
            from: "2026-01-01T00:00:00.000Z".to_owned(),
            preexisting: false,
            to: to.map(str::to_owned),
            ended_by: to.map(|_| "netns-gone".to_owned()),
            times: None,
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
        let root = super::span(&begins);
        for tenure in [&begins.tenure, &ended.tenure] {
            let link = link(tenure, "boot");
            assert_eq!(link.span_context, root.span_context);
            let another = super::link(tenure, "another boot").span_context;
            assert_ne!(another.trace_id(), root.span_context.trace_id());
        }
        let mut again = begins.tenure;
        again.from = "2026-01-01T00:02:00.000Z".to_owned();
        let again = link(&again, "boot").span_context;
        assert_ne!(again.trace_id(), root.span_context.trace_id(), "a second tenure is another");
    }
}
