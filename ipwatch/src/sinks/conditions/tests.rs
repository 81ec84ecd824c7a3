//! The sink against a fake API server, which merges conditions by their type as a real one does. The end-to-end tests
//! use a real kube-apiserver.

use std::collections::VecDeque;

use hyper::http::request::Parts;
use serde_json::{Value as Json, json};

use super::*;
use crate::sinks::tests::{apiserver, resolved, updated};

/// Bounds a wait; no test depends on the real duration.
const PATIENCE: Duration = Duration::from_secs(30);
const ID: &str = "dvte6lcgcbjvp6en";

/// The message of each condition that a finding like this makes true, with its sources and without them.
pub(in crate::sinks) fn messages(finding: &Finding) -> Vec<String> {
    let finding = Finding {
        status: crate::finding::Status::Firing,
        severity: crate::finding::Severity::Critical,
        ..finding.clone()
    };
    let said = |(kind, blind): (Kind, bool)| {
        let code = kind.codes()[0];
        let note = Note::of(&Finding { code, ..finding.clone() }).expect("it is true");
        let sight = Kind::ALL.into_iter().flat_map(Kind::codes);
        let sight = sight.map(|code| (*code, Sight { blind, warms_up: false })).collect();
        let firing = (0..9).map(|n| (n.to_string(), note.clone())).collect();
        let grounds = Grounds {
            firing: &firing,
            sight: &sight,
            is_long_blind: blind,
            was_seen: true,
            told: None,
        };
        state::judge(kind, &grounds).expect("it is judged").message
    };
    Kind::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)]).map(said).collect()
}

#[derive(Debug, Default)]
struct State {
    conditions: Vec<Json>,
    /// The conditions in each request.
    asked: Vec<Vec<Json>>,
    /// Statuses to answer first.
    refusals: VecDeque<u16>,
}

#[derive(Debug, Clone, Default)]
struct Cluster(Arc<Mutex<State>>);

impl Cluster {
    async fn start() -> (Self, String) {
        let cluster = Self::default();
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
        cluster.state().conditions.push(ready);
        let served = cluster.clone();
        let answer = move |parts, said| std::future::ready(served.answer(&parts, &said));
        let url = apiserver::serve(answer).await;
        (cluster, url)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn answer(&self, parts: &Parts, said: &Json) -> (u16, Json) {
        assert_eq!(parts.method, "PATCH");
        assert_eq!(parts.uri.path(), "/api/v1/nodes/node-17/status");
        assert_eq!(parts.headers["content-type"], "application/strategic-merge-patch+json");
        let patch = said["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut state = self.state();
        state.asked.push(patch.clone());
        match state.refusals.pop_front() {
            Some(code) => (code, json!({"kind": "Status", "message": "no, says \u{1b}[2J it"})),
            None => {
                merge(&mut state.conditions, patch);
                (200, json!({"kind": "Node", "status": {"conditions": state.conditions}}))
            }
        }
    }

    /// The condition `PodIPHeld`, once it fits.
    async fn until(&self, fits: impl Fn(&Json) -> bool) -> Json {
        let wait = async {
            loop {
                let is = |one: &&Json| one["type"] == "PodIPHeld" && fits(one);
                if let Some(one) = self.state().conditions.iter().find(is).cloned() {
                    return one;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(one) => one,
            Err(_) => panic!("never: {:#?}", self.state()),
        }
    }
}

/// As a strategic merge patch.
fn merge(conditions: &mut Vec<Json>, patch: Vec<Json>) {
    for new in patch {
        match conditions.iter_mut().find(|one| one["type"] == new["type"]) {
            None => conditions.push(new),
            Some(old) => {
                for (key, value) in new.as_object().unwrap() {
                    old[key] = value.clone();
                }
            }
        }
    }
}

fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace {
        answer: PATIENCE,
        between: (ms(1), ms(1)),
        heartbeat: PATIENCE * 10,
        blind: PATIENCE * 10,
        retry: (ms(10), ms(20)),
        refused: (ms(10), ms(20)),
    }
}

/// The sink with this server.
fn run(url: &str, pace: Pace) -> (Conditions, tempfile::TempDir) {
    let (door, dir) = apiserver::credentials(url);
    (Conditions::at_pace(door, "node-17".into(), pace).unwrap(), dir)
}

fn clear(_: Code) -> Sight {
    Sight::default()
}

fn blind(code: Code) -> Sight {
    Sight { blind: code == Code::IpHeldByDeletedPod, warms_up: false }
}

fn is(status: &'static str) -> impl Fn(&Json) -> bool {
    move |one| one["status"] == status
}

/// Waits until the sink has this status and says this, which is after the server has answered. Returns all it says.
async fn stands(sink: &Conditions, status: SourceStatus, says: &str) -> String {
    let wait = async {
        loop {
            let (now, detail) = sink.standing();
            if now == status && detail.contains(says) {
                return detail;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(detail) => detail,
        Err(_) => panic!("never {says:?}: {:?}", sink.standing()),
    }
}

#[tokio::test]
async fn it_is_true_while_a_finding_fires_and_kubelets_own_conditions_stay() {
    let (cluster, url) = Cluster::start().await;
    let (sink, _dir) = run(&url, pace());
    sink.judge(clear);
    let before = cluster.until(is("False")).await;
    assert_eq!(before["reason"], "NoIPHeld");
    assert!(before["lastTransitionTime"].is_string(), "{before}");
    sink.publish(&updated(ID).finding);
    let held = cluster.until(is("True")).await;
    assert_eq!(held["reason"], "IpHeldByStuckProcess");
    assert!(held["message"].as_str().unwrap().contains("10.0.3.17 of shop/api-0"), "{held}");
    sink.publish(&resolved(ID).finding);
    cluster.until(is("False")).await;
    let counters = sink.shutdown().await;
    assert_eq!((counters.count.waiting, counters.failures), (0, 0));
    let state = cluster.state();
    assert_eq!(state.conditions[0]["reason"], "KubeletReady");
    let names: Vec<_> = state.conditions[1..].iter().map(|one| &one["type"]).collect();
    assert_eq!(names, ["PodIPExhausted", "PodIPHeld", "PodIPConflict"]);
    assert_eq!(state.asked.len(), 4, "the look, and each status: {:#?}", state.asked);
}

#[tokio::test]
async fn a_text_alone_is_no_transition_and_a_restart_is_none() {
    let (cluster, url) = Cluster::start().await;
    let (sink, _dir) = run(&url, pace());
    sink.judge(clear);
    sink.publish(&updated(ID).finding);
    cluster.until(is("True")).await;
    let mut finding = updated(ID).finding;
    finding.holders[0].pid = Some(900);
    sink.publish(&finding);
    let says = |text: &'static str| {
        move |one: &Json| one["message"].as_str().is_some_and(|message| message.contains(text))
    };
    cluster.until(says("pid 900")).await;
    let last = |cluster: &Cluster| cluster.state().asked.last().unwrap()[1].clone();
    assert!(last(&cluster).get("lastTransitionTime").is_none(), "{}", last(&cluster));
    drop(sink);
    // The ledger brings the finding back. Nothing is written for it, and the next news is no transition either.
    let (sink, _dir) = run(&url, pace());
    let asked = cluster.state().asked.len();
    sink.publish(&finding);
    sink.judge(|_| Sight { blind: false, warms_up: true });
    finding.holders[0].pid = Some(901);
    sink.publish(&finding);
    cluster.until(says("pid 901")).await;
    assert!(last(&cluster).get("lastTransitionTime").is_none(), "{}", last(&cluster));
    assert!(cluster.state().asked.len() <= asked + 3, "{:#?}", cluster.state().asked);
}

#[tokio::test]
async fn a_silence_leaves_it_for_a_while_and_then_makes_it_unknown() {
    let (cluster, url) = Cluster::start().await;
    let (sink, _dir) = run(&url, Pace { blind: Duration::from_millis(300), ..pace() });
    sink.judge(clear);
    sink.publish(&updated(ID).finding);
    cluster.until(is("True")).await;
    sink.judge(blind);
    sink.publish(&resolved(ID).finding);
    cluster.until(is("Unknown")).await;
    let said = |status: &str| {
        let state = cluster.state();
        let held = state.asked.iter().flatten().filter(|one| one["type"] == "PodIPHeld");
        held.filter(|one| one["status"] == status).count()
    };
    assert_eq!(said("False"), usize::from(said("False") > 0), "before the finding at most");
    sink.judge(clear);
    cluster.until(is("False")).await;
    // Of the others all is known meanwhile.
    let state = cluster.state();
    let conflict = state.conditions.iter().find(|one| one["type"] == "PodIPConflict").unwrap();
    assert_eq!(conflict["status"], "False");
}

#[tokio::test]
async fn before_the_first_look_is_complete_nothing_is_said_for_a_while() {
    let (cluster, url) = Cluster::start().await;
    let (sink, _dir) = run(&url, pace());
    sink.judge(|_| Sight { blind: true, warms_up: true });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(cluster.state().asked.iter().all(Vec::is_empty), "{:#?}", cluster.state().asked);
    drop(sink);
    let (sink, _dir) = run(&url, Pace { blind: Duration::from_millis(20), ..pace() });
    sink.judge(|_| Sight { blind: true, warms_up: true });
    cluster.until(is("Unknown")).await;
}

#[tokio::test]
async fn a_heartbeat_says_that_somebody_still_looks() {
    let (cluster, url) = Cluster::start().await;
    let (sink, _dir) = run(&url, Pace { heartbeat: Duration::from_millis(20), ..pace() });
    sink.judge(clear);
    cluster.until(is("False")).await;
    let before = cluster.state().asked.len();
    let wait = async {
        while cluster.state().asked.len() < before + 3 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
    let last = cluster.state().asked.last().unwrap()[1].clone();
    assert!(last["lastHeartbeatTime"].is_string(), "{last}");
    assert!(last.get("lastTransitionTime").is_none(), "{last}");
}

#[tokio::test]
async fn a_server_that_fails_or_refuses_is_asked_again_and_that_is_said() {
    let (cluster, url) = Cluster::start().await;
    cluster.state().refusals = [500, 403, 401, 429].into();
    let (sink, _dir) = run(&url, pace());
    sink.judge(clear);
    sink.publish(&updated(ID).finding);
    stands(&sink, SourceStatus::Active, "PodIPHeld True, PodIPConflict False").await;
    assert_eq!(sink.counters().failures, 4);
    cluster.state().refusals = std::iter::repeat_n(403, 10_000).collect();
    sink.publish(&resolved(ID).finding);
    let detail = stands(&sink, SourceStatus::Degraded, "1 waiting").await;
    assert!(detail.contains("403"), "{detail}");
    assert!(!detail.contains('\u{1b}') && !detail.contains("canary"), "{detail}");
    assert_eq!(sink.shutdown().await.count.dropped, 1);
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_is_none() {
    for name in ["", "../pods", "a/b", "A", "a\n"] {
        let door = Credentials::Kubeconfig("/absent".into());
        assert!(Conditions::start(door, name.to_owned()).is_err(), "{name:?}");
    }
}

/// Many pods die at once, and then a range has no IP left.
#[tokio::test]
async fn many_findings_of_one_condition_hide_no_other() {
    let mut inner = Inner::new(Pace::default());
    for n in 0..2 * MOST {
        inner.publish(&updated(&format!("held{n:012}")).finding);
    }
    let mut exhausted = updated(ID).finding;
    exhausted.code = Code::IpamRangeExhausting;
    exhausted.severity = crate::finding::Severity::Critical;
    assert!(inner.publish(&exhausted));
    inner.judge(|_| Sight::default());
    let state = inner.wanted(Kind::Exhausted, Instant::now()).expect("it can be judged");
    assert_eq!(state.value, Value::True);
}
