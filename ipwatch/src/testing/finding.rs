//! A finding for tests of what is done with one.

use crate::contract::{Container, Holder, HolderKind, Netns, Pod, Step};
use crate::finding::{Code, Evidence, Finding, Severity, Status, Subject};

/// A finding that was seen once, with every field that it can have then.
pub(crate) fn finding(id: &str) -> Finding {
    Finding {
        id: id.to_owned(),
        code: Code::IpHeldByStuckProcess,
        severity: Severity::Warning,
        status: Status::Pending,
        unjudged: false,
        subject: Subject {
            ip: Some("10.0.3.17".parse().unwrap()),
            netns: Some(Netns {
                cookie: Some(4711),
                inode: Some(4_026_532_177),
                ..Netns::default()
            }),
            container: Some(Container { id: Some("c0ffee".to_owned()), ..Container::default() }),
            pod: Some(Pod {
                namespace: Some("shop".to_owned()),
                name: Some("api-0".to_owned()),
                uid: Some("7f3a".to_owned()),
                ..Pod::default()
            }),
            ..Subject::default()
        },
        holders: vec![Holder {
            pid: Some(812),
            comm: Some("java".to_owned()),
            state: Some('D'),
            exiting: Some(true),
            ..Holder::of_kind(HolderKind::Process)
        }],
        evidence: vec![Evidence {
            source: "procfs".to_owned(),
            at: "2026-01-01T00:00:05.000Z".to_owned(),
            text: "state D in nfs_wait_bit_killable".to_owned(),
        }],
        since: "2026-01-01T00:00:00.000Z".to_owned(),
        firing_at: None,
        last_seen: "2026-01-01T00:00:06.000Z".to_owned(),
        resolved_at: None,
        caused_by: None,
        impact: "the IP cannot be used".to_owned(),
        remediation: vec!["bring back the NFS server".to_owned()],
        steps: vec![Step { what: "bring back the NFS server".to_owned(), ..Step::default() }],
        preexisting: false,
        acked: None,
    }
}
