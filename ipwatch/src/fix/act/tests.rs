//! What the daemon says at the moment of the change decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::api::{AskError, fake};
use crate::contract::{Code, Container, Status, Subject, Verdict};
use crate::testing::finding;

const IP: &str = "192.0.2.18";

fn document(body: Body, entries: Vec<IpamEntry>) -> Document {
    Document {
        schema: crate::contract::SCHEMA.to_owned(),
        node: "node-1".to_owned(),
        taken_at: "2026-01-02T03:10:10.000Z".to_owned(),
        sources: Vec::new(),
        body,
        reservations: entries,
        networks: Vec::new(),
        refused: Vec::new(),
        runs: Vec::new(),
        blind: Vec::new(),
        daemon: None,
    }
}

fn leaked() -> Finding {
    Finding {
        code: Code::IpamReservationLeaked,
        status: Status::Firing,
        holders: Vec::new(),
        subject: Subject {
            ip: IP.parse().ok(),
            network: Some("cbr0".to_owned()),
            container: Some(Container { id: Some("c0ffee".to_owned()), ..Container::default() }),
            ..Subject::default()
        },
        ..finding("wv4akx7q2m5z6b3d")
    }
}

fn entry() -> IpamEntry {
    IpamEntry {
        ip: IP.parse().unwrap(),
        store: "host-local".to_owned(),
        network: "cbr0".to_owned(),
        key: format!("/var/lib/cni/networks/cbr0/{IP}"),
        container_id: Some("c0ffee".to_owned()),
        ifname: Some("eth0".to_owned()),
        pod: None,
        since: None,
        kernel: Vec::new(),
        runtime: Some("gone".to_owned()),
        agree: Some("leaked".to_owned()),
    }
}

fn verdict(free: bool) -> Verdict {
    Verdict {
        ip: IP.parse().unwrap(),
        free,
        reasons: if free {
            Vec::new()
        } else {
            vec!["netlink does not answer: nobody knows".to_owned()]
        },
        pools: Vec::new(),
        in_pool: Some(true),
        holders: Vec::new(),
        reservations: Vec::new(),
        findings: Vec::new(),
    }
}

/// A run against a daemon that says this.
fn act<'a>(client: &'a Client, base: &Path) -> Act<'a> {
    let who = Who::now();
    let record = Record::begin(base, "cbr0", "node-1", who.clone()).unwrap();
    let node = Node::new().unwrap();
    let api = ApiServer::new(Access::default());
    Act { client, api, node, record, who, silent: None, unlogged: false }
}

#[tokio::test]
async fn what_the_daemon_says_now_decides() {
    let planned = plan::plan(&[&leaked()], &[entry()], &[]).items.remove(0);
    assert_eq!(planned.state, FixState::Planned);
    let dir = tempfile::tempdir().unwrap();
    for (says, finding, entries, free) in [
        (None, Some(leaked()), vec![entry()], true),
        (Some("is over"), None, vec![entry()], true),
        (Some("any more"), Some(leaked()), vec![], true),
        (Some("netlink does not answer"), Some(leaked()), vec![entry()], false),
    ] {
        let fake = fake::daemon(move |ask| match ask {
            Ask::Findings { .. } => match &finding {
                Some(finding) => Ok(document(Body::Findings(vec![finding.clone()]), Vec::new())),
                None => Err(AskError::NotFound("none".to_owned())),
            },
            Ask::Ipam { .. } => Ok(document(Body::Ranges(Vec::new()), entries.clone())),
            Ask::Check { .. } => Ok(document(Body::Verdict(verdict(free)), Vec::new())),
            _ => Err(AskError::NotFound("none".to_owned())),
        });
        let mut act = act(&fake.client, &dir.path().join(format!("{says:?}")));
        let told = match act.agrees(&planned).await {
            Ok(()) => act.is_free(IP.parse().unwrap(), "c0ffee").await,
            refused => refused,
        };
        match says {
            None => assert_eq!(told, Ok(())),
            Some(says) => assert!(told.clone().unwrap_err().contains(says), "{says}: {told:?}"),
        }
    }
}

#[tokio::test]
async fn a_daemon_that_went_is_asked_once_and_nothing_is_changed_without_it() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let fake = fake::daemon(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Err(AskError::Unavailable("it goes down".to_owned()))
    });
    let dir = tempfile::tempdir().unwrap();
    let mut act = act(&fake.client, &dir.path().join("fix"));
    let planned = plan::plan(&[&leaked()], &[entry()], &[]).items.remove(0);
    for _ in 0..3 {
        let why = act.agrees(&planned).await.unwrap_err();
        assert!(why.contains("without its word") && why.contains("it goes down"), "{why}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// Pods wait for the store's lock: of the daemon only the last question is asked under it.
#[tokio::test]
async fn the_plan_is_made_again_before_the_lock_and_the_last_look_is_under_it() {
    let dir = tempfile::tempdir().unwrap();
    let network = dir.path().join("cbr0");
    std::fs::create_dir(&network).unwrap();
    std::fs::write(network.join(IP), "c0ffee\r\neth0").unwrap();
    let key = network.join(IP).to_str().unwrap().to_owned();
    let entry = IpamEntry { key, ..entry() };
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (says, asked) = (entry.clone(), seen.clone());
    let fake = fake::daemon(move |ask| {
        let lock = std::fs::File::open(network.join("lock"));
        let held = lock.is_ok_and(|lock| lock.try_lock().is_err());
        let (question, answer) = match ask {
            Ask::Findings { .. } => ("findings", document(Body::Findings(vec![leaked()]), vec![])),
            Ask::Ipam { .. } => ("ipam", document(Body::Ranges(Vec::new()), vec![says.clone()])),
            Ask::Check { .. } => ("check", document(Body::Verdict(verdict(false)), Vec::new())),
            _ => ("other", document(Body::Addresses(Vec::new()), Vec::new())),
        };
        asked.lock().unwrap().push((question, held));
        Ok(answer)
    });
    let planned = plan::plan(&[&leaked()], &[entry], &[]).items.remove(0);
    let mut act = act(&fake.client, &dir.path().join("fix"));
    assert!(act.item(&planned).await.is_err(), "`check` says no");
    let seen = seen.lock().unwrap();
    assert!(seen.contains(&("check", true)), "{seen:?}");
    assert!(seen.iter().all(|(question, held)| (*question == "check") == *held), "{seen:?}");
    assert!(std::path::Path::new(&dir.path().join("cbr0").join(IP)).exists());
}
