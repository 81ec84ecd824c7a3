//! The sink against a fake API server, which keeps Events as a real one does: they are created once, then patched,
//! then deleted. The end-to-end tests use a real kube-apiserver.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::Method;
use hyper::http::request::Parts;
use serde_json::{Value, json};

use super::*;
use crate::sinks::tests::{apiserver, opened, resolved, updated};

/// Bounds a wait; no test depends on the real duration.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct State {
    /// By path.
    events: BTreeMap<String, Value>,
    /// Method and path of each request.
    asked: Vec<String>,
    /// Statuses to answer first.
    refusals: VecDeque<u16>,
    /// No request is answered while this is set.
    held: bool,
}

#[derive(Debug, Clone, Default)]
struct Cluster(Arc<Mutex<State>>);

impl Cluster {
    async fn start() -> (Self, String) {
        let cluster = Self::default();
        let served = cluster.clone();
        let answer = move |parts, said| {
            let cluster = served.clone();
            async move { cluster.answer(&parts, said).await }
        };
        let url = apiserver::serve(answer).await;
        (cluster, url)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    async fn answer(&self, parts: &Parts, said: Value) -> (u16, Value) {
        assert_eq!(parts.headers["authorization"], format!("Bearer {}", apiserver::TOKEN));
        let answer = self.answer_to(parts, said);
        while self.state().held {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        answer
    }

    fn answer_to(&self, parts: &Parts, said: Value) -> (u16, Value) {
        let path = parts.uri.path().to_owned();
        let mut state = self.state();
        state.asked.push(format!("{} {path}", parts.method));
        if let Some(code) = state.refusals.pop_front() {
            (code, json!({"kind": "Status", "message": "no, says \u{1b}[2J the server"}))
        } else if parts.method == Method::POST {
            let at = format!("{path}/{}", said["metadata"]["name"].as_str().unwrap());
            match state.events.entry(at) {
                Slot::Occupied(_) => (409, json!({})),
                Slot::Vacant(free) => (201, free.insert(said).clone()),
            }
        } else {
            assert_eq!(parts.headers["content-type"], "application/merge-patch+json");
            match state.events.get_mut(&path) {
                None => (404, json!({})),
                Some(event) => {
                    for (key, value) in said.as_object().unwrap() {
                        event[key] = value.clone();
                    }
                    (200, event.clone())
                }
            }
        }
    }

    /// The one Event, once it fits.
    async fn until(&self, fits: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let found = self.state().events.values().find(|event| fits(event)).cloned();
                if let Some(event) = found {
                    return event;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(event) => event,
            Err(_) => panic!("never: {:#?}", self.state()),
        }
    }

    async fn until_asked(&self, times: usize) {
        let wait = async {
            while self.state().asked.len() < times {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{:#?}", self.state());
    }
}

fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace { answer: PATIENCE, again: PATIENCE * 10, retry: (ms(20), ms(40)), ..Pace::default() }
}

/// The sink with this server.
fn run(url: &str, pace: Pace) -> (Events, tempfile::TempDir) {
    only_in(&[], url, pace)
}

/// The same, where Events are only for these namespaces.
fn only_in(namespaces: &[&str], url: &str, pace: Pace) -> (Events, tempfile::TempDir) {
    let (door, dir) = apiserver::credentials(url);
    let namespaces: Vec<String> = namespaces.iter().map(ToString::to_string).collect();
    (Events::at_pace(door, "node-17".into(), &namespaces, pace), dir)
}

async fn counted(events: &Events, fits: impl Fn(&Counters) -> bool) {
    let wait = async {
        while !fits(&events.counters()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{:?}", events.counters());
}

#[tokio::test]
async fn a_finding_that_fires_is_one_event_however_often_it_is_told() {
    let (cluster, url) = Cluster::start().await;
    let (events, _dir) = run(&url, pace());
    events.publish(&opened("a").finding);
    let mut finding = updated("a").finding;
    events.publish(&finding);
    let event = cluster.until(|event| event["count"] == 1).await;
    assert_eq!(event["involvedObject"]["name"], "api-0");
    // An unchanged finding is not sent again; another holder is.
    events.publish(&finding);
    finding.holders[0].pid = Some(900);
    events.publish(&finding);
    let event = cluster.until(|event| event["count"] == 2).await;
    assert!(event["message"].as_str().unwrap().contains("pid 900"), "{event}");
    events.publish(&resolved("a").finding);
    let counters = events.shutdown().await;
    assert_eq!((counters.count.exported, counters.count.dropped, counters.failures), (2, 0, 0));
    let state = cluster.state();
    let methods: Vec<_> = state.asked.iter().map(|one| one.split(' ').next().unwrap()).collect();
    assert_eq!((state.events.len(), methods), (1, vec!["POST", "PATCH"]));
}

/// Either sent or dropped, never both.
#[tokio::test]
async fn what_ends_before_the_answer_is_counted_once() {
    for (refusals, ends) in [(vec![], (1, 0, 0)), (vec![503], (0, 1, 1))] {
        let (cluster, url) = Cluster::start().await;
        let (events, _dir) = run(&url, pace());
        *cluster.state() = State { refusals: refusals.into(), held: true, ..State::default() };
        events.publish(&updated("a").finding);
        cluster.until_asked(1).await;
        events.publish(&resolved("a").finding);
        cluster.state().held = false;
        counted(&events, |counters| counters.count.exported + counters.failures == 1).await;
        let counters = events.shutdown().await;
        assert_eq!((counters.count.exported, counters.count.dropped, counters.failures), ends);
    }
}

#[tokio::test]
async fn what_ends_and_has_no_answer_at_the_end_is_dropped() {
    let (cluster, url) = Cluster::start().await;
    let (events, _dir) = run(&url, pace());
    cluster.state().held = true;
    events.publish(&updated("a").finding);
    cluster.until_asked(1).await;
    events.publish(&resolved("a").finding);
    let counters = events.shutdown().await;
    assert_eq!((counters.count.exported, counters.count.dropped), (0, 1));
}

#[tokio::test]
async fn after_a_restart_it_is_the_same_one_counted_up() {
    let (cluster, url) = Cluster::start().await;
    for count in [1, 2, 3] {
        let (events, _dir) = run(&url, pace());
        events.publish(&updated("a").finding);
        cluster.until(|event| event["count"] == count).await;
        events.shutdown().await;
    }
    assert_eq!(cluster.state().events.len(), 1);
}

#[tokio::test]
async fn what_still_holds_is_told_again_also_after_it_was_forgotten() {
    let (cluster, url) = Cluster::start().await;
    let (events, _dir) = run(&url, Pace { again: Duration::from_millis(20), ..pace() });
    events.publish(&updated("a").finding);
    cluster.until(|event| event["count"].as_u64() >= Some(3)).await;
    cluster.state().events.clear();
    cluster.until(|event| event["count"].as_u64() > Some(3)).await;
    let mut finding = updated("a").finding;
    let at = "2026-01-01T00:00:00.000Z".to_owned();
    finding.acked = Some(crate::finding::Ack { at, uid: None, until: None, note: None });
    events.publish(&finding);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let asked = cluster.state().asked.len();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(cluster.state().asked.len(), asked, "somebody knows it");
}

#[tokio::test]
async fn a_server_that_fails_is_asked_again_and_one_that_refuses_is_not() {
    let (cluster, url) = Cluster::start().await;
    let (events, _dir) = run(&url, pace());
    cluster.state().refusals = [500, 401, 429].into();
    events.publish(&updated("a").finding);
    counted(&events, |counters| counters.failures == 3 && counters.count.exported == 1).await;
    assert_eq!(events.standing().0, SourceStatus::Active);
    cluster.state().refusals = [403].into();
    events.publish(&updated("b").finding);
    counted(&events, |counters| counters.count.dropped == 1).await;
    let (status, detail) = events.standing();
    assert_eq!(status, SourceStatus::Degraded);
    assert!(detail.contains("1 told, 1 dropped, 0 waiting") && detail.contains("403"), "{detail}");
    assert!(!detail.contains('\u{1b}') && !detail.contains("canary"), "{detail}");
    cluster.until_asked(5).await;
}

#[tokio::test]
async fn a_pod_of_another_cluster_is_dropped_and_no_trouble() {
    let (cluster, url) = Cluster::start().await;
    let (events, _dir) = run(&url, pace());
    cluster.state().refusals = [404].into();
    events.publish(&updated("a").finding);
    counted(&events, |counters| counters.count.dropped == 1).await;
    let (status, detail) = events.standing();
    assert_eq!(status, SourceStatus::Active, "{detail}");
}

#[tokio::test]
async fn no_namespace_has_an_event_but_those_of_the_configuration() {
    let (cluster, url) = Cluster::start().await;
    let (events, _dir) = only_in(&["db", "kube-system"], &url, pace());
    let of = |id: &str, namespace: Option<&str>| {
        let mut finding = updated(id).finding;
        match (namespace, &mut finding.subject.pod) {
            (Some(_), Some(pod)) => pod.namespace = namespace.map(ToOwned::to_owned),
            (_, pod) => *pod = None,
        }
        finding
    };
    // Another namespace, twice; and a finding about the node, whose Events are in `default`.
    events.publish(&of("a", Some("shop")));
    events.publish(&of("a", Some("shop")));
    events.publish(&of("b", None));
    events.publish(&of("c", Some("db")));
    let event = cluster.until(|event| event["count"] == 1).await;
    assert_eq!(event["metadata"]["namespace"], "db");
    assert!(events.standing().1.contains(", 2 withheld"), "{:?}", events.standing());
    assert_eq!(events.standing().0, SourceStatus::Active);
    // Its pod is known by another name later, and then ends.
    events.publish(&of("c", Some("shop")));
    events.publish(&resolved("c").finding);
    events.publish(&of("a", Some("db")));
    let is_a = |event: &Value| event["metadata"]["name"].as_str().unwrap().contains("-a-");
    cluster.until(is_a).await;
    assert!(events.standing().1.contains(", 3 withheld"), "{:?}", events.standing());
    let counters = events.shutdown().await;
    assert_eq!((counters.count.exported, counters.count.dropped), (2, 0));
    let state = cluster.state();
    assert!(state.asked.iter().all(|one| one.contains("/namespaces/db/")), "{state:?}");
}

#[tokio::test]
async fn a_storm_is_told_no_faster_than_it_may_and_its_rest_is_counted() {
    let (cluster, url) = Cluster::start().await;
    let (events, _dir) = run(&url, Pace { burst: 5, each: PATIENCE, ..pace() });
    for n in 0..MOST + 7 {
        events.publish(&updated(&n.to_string()).finding);
    }
    cluster.until_asked(5).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(cluster.state().asked.len(), 5);
    // What is still queued counts as dropped on shutdown.
    let counters = events.shutdown().await;
    let Count { exported, dropped, waiting } = counters.count;
    assert_eq!((exported, dropped, waiting), (5, MOST as u64 - 5 + 7, 0));
}

#[tokio::test]
async fn nobody_there_costs_nobody_anything() {
    let (events, _dir) = run("http://127.0.0.1:1", pace());
    (0..MOST + 1).for_each(|n| events.publish(&updated(&n.to_string()).finding));
    counted(&events, |counters| counters.failures > 1).await;
    assert_eq!(events.counters().count.waiting, MOST as u64);
    // A finding that ends before its Event could be sent counts as dropped, too.
    events.publish(&resolved("7").finding);
    assert_eq!(events.counters().count.dropped, 2);
    assert!(events.standing().1.contains("refused"), "{:?}", events.standing());
}
