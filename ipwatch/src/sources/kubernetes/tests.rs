//! Tests the source against a fake API server and its failures. The end-to-end tests use a real kube-apiserver.

use std::time::Duration;

use serde_json::json;

use super::credentials::Credentials;
use super::fake::{Fake, Reply, bookmark, event, list, pod, uid};
use super::pods::Pods;
use super::*;
use crate::fact::{Pod, Scope};
use crate::sources::calico::kdd;
use crate::sources::testing::{Heard, PATIENCE};
use crate::testing::authority::Authority;

/// Long timeouts, short pauses.
fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace {
        open: PATIENCE,
        answer: PATIENCE,
        list: PATIENCE,
        silence: PATIENCE,
        watch: PATIENCE,
        between: ms(2),
        well: ms(50),
        retry: (ms(40), ms(80)),
    }
}

struct Seen {
    heard: Heard,
    _dir: tempfile::TempDir,
}

/// Runs the source against this server.
fn run(url: &str, pace: Pace) -> Seen {
    run_trusting("", url, pace)
}

/// The same, trusting this CA certificate in PEM.
fn run_trusting(authority: &str, url: &str, pace: Pace) -> Seen {
    follow_kind(Pods::of("node-1".into(), false), authority, url, pace)
}

fn follow_kind(kind: impl reflector::Kind, authority: &str, url: &str, pace: Pace) -> Seen {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    std::fs::write(dir.path().join("ca.pem"), authority).unwrap();
    let ca = if authority.is_empty() { "" } else { ", certificate-authority: ca.pem" };
    let config = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"{url}\"{ca}}}}}]\n\
         users: [{{name: u, user: {{token: canary}}}}]\n"
    );
    std::fs::write(&path, config).unwrap();
    let (emit, heard) = Heard::channel();
    tokio::spawn(reflector::run(kind, Credentials::Kubeconfig(path), pace, emit));
    Seen { heard, _dir: dir }
}

/// A CA, and the server side of TLS with a certificate from it.
fn vouched_for() -> (String, tokio_rustls::TlsAcceptor) {
    let authority = Authority::new();
    (authority.pem(), authority.server("127.0.0.1", false, &[]))
}

#[tokio::test]
async fn only_a_server_that_its_authority_vouches_for_is_told_the_token() {
    let (ours, tls) = vouched_for();
    let (theirs, _) = vouched_for();
    let (fake, url) = Fake::secure(vec![list("5", &[3])], tls).await;
    let mut seen = run_trusting(&theirs, &url, pace());
    seen.status(SourceStatus::Down).await;
    let why = seen.status(SourceStatus::Down).await;
    assert!(why.contains("certificate"), "{why}");
    assert_eq!(fake.paths().len(), 0);
    let mut seen = run_trusting(&ours, &url, pace());
    seen.pod(3).await;
    assert!(seen.listed().await);
    assert_eq!(fake.state().asked[0].1.as_deref(), Some("Bearer canary"));
}

impl Seen {
    async fn status(&mut self, status: SourceStatus) -> String {
        self.heard
            .until(&format!("{status:?}"), |what| match what {
                Observation::Source(source) if source.status == status => {
                    Some(source.detail.clone())
                }
                _ => None,
            })
            .await
    }

    async fn listed(&mut self) -> bool {
        self.heard
            .until("the end of a list", |what| match what {
                Observation::Ended { scope: Scope::Pods, complete, .. } => Some(*complete),
                _ => None,
            })
            .await
    }

    async fn pod(&mut self, n: u32) -> Pod {
        self.heard
            .until(&format!("pod {n}"), |what| match what {
                Observation::Pod(pod) if pod.uid == uid(n) => Some(pod.clone()),
                _ => None,
            })
            .await
    }

    async fn gone(&mut self, n: u32) {
        self.heard
            .until(&format!("the end of pod {n}"), |what| match what {
                Observation::PodGone { uid: gone } if *gone == uid(n) => Some(()),
                _ => None,
            })
            .await;
    }
}

#[tokio::test]
async fn pods_are_listed_by_pages_and_followed() {
    let first =
        json!({"metadata": {"resourceVersion": "9", "continue": "a/b="}, "items": [pod(1)]});
    let watch = vec![
        event("ADDED", pod(11)),
        bookmark("12"),
        event("NEWS", json!({"metadata": {"resourceVersion": "99"}})),
        event("DELETED", pod(13)),
    ];
    let (fake, url) = Fake::start(
        vec![Reply::Json(first), list("10", &[2])],
        vec![Reply::Lines(watch), Reply::Hold(Vec::new())],
    )
    .await;
    let mut seen = run(&url, pace());
    let one = seen.pod(1).await;
    assert_eq!(
        (one.name.as_str(), one.phase.as_deref(), one.grace),
        ("api-1", Some("Running"), Some(30))
    );
    assert_eq!(one.ips, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    seen.pod(2).await;
    assert!(seen.listed().await);
    seen.pod(11).await;
    seen.heard
        .until("a bookmark", |what| matches!(what, Observation::PodsConfirmed).then_some(()))
        .await;
    seen.gone(13).await;
    while fake.watched().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let paths = fake.paths();
    let node = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1";
    assert_eq!(paths[0], format!("{node}&limit=250&resourceVersion=0"));
    assert_eq!(paths[1], format!("{node}&limit=250&continue=a%2Fb%3D"));
    assert!(
        paths[2].starts_with(&format!("{node}&watch=1&allowWatchBookmarks=true&timeoutSeconds="))
    );
    assert!(paths[2].ends_with("&resourceVersion=10"), "{paths:?}");
    assert!(
        paths[3].contains("&watch=1") && paths[3].ends_with("&resourceVersion=13"),
        "it resumes"
    );
    assert_eq!(fake.state().asked[0].1.as_deref(), Some("Bearer canary"));
    let told = serde_json::to_string(&seen.heard.all).unwrap();
    assert!(!told.contains("hunter2") && !told.contains("canary"), "{told}");
}

#[tokio::test]
async fn what_is_too_long_ago_is_listed_anew_and_never_older() {
    let gone = event("ERROR", json!({"kind": "Status", "code": 410, "reason": "Expired"}));
    let (fake, url) = Fake::start(
        vec![list("10", &[1]), Reply::Status(504, None), list("30", &[2])],
        vec![Reply::Lines(vec![event("ADDED", pod(20)), gone]), Reply::Hold(Vec::new())],
    )
    .await;
    let mut seen = run(&url, pace());
    assert!(seen.listed().await);
    let why = seen.status(SourceStatus::Degraded).await;
    assert!(why.contains("410"), "{why}");
    seen.pod(2).await;
    assert!(seen.listed().await);
    seen.status(SourceStatus::Active).await;
    let lists: Vec<String> =
        fake.paths().into_iter().filter(|path| !path.contains("&watch=1")).collect();
    assert!(
        lists[1].ends_with("&resourceVersion=20&resourceVersionMatch=NotOlderThan"),
        "{lists:?}"
    );
    assert!(lists[2].ends_with("&limit=250"), "it did not know so new a version: {lists:?}");
    let down = |fact: &&Fact| matches!(&fact.what, Observation::Source(s) if s.status == SourceStatus::Down);
    assert_eq!(seen.heard.all.iter().filter(down).count(), 1, "only before the first list");
}

#[tokio::test]
async fn what_fails_within_a_watch_would_fail_there_again() {
    // An object in etcd that the API server cannot decode.
    let status = json!({"kind": "Status", "code": 500, "message": "illegal base64 data"});
    let (fake, url) = Fake::start(
        vec![list("10", &[1]), list("30", &[2])],
        vec![Reply::Lines(vec![event("ERROR", status)]), Reply::Hold(Vec::new())],
    )
    .await;
    let mut seen = run(&url, pace());
    assert!(seen.listed().await);
    let why = seen.status(SourceStatus::Down).await;
    assert!(why.contains("500 illegal base64 data"), "{why}");
    seen.pod(2).await;
    assert!(seen.listed().await);
    seen.status(SourceStatus::Active).await;
    let paths = fake.paths();
    assert!(
        paths[2].ends_with("&resourceVersion=10&resourceVersionMatch=NotOlderThan"),
        "{paths:?}"
    );
}

/// Checks that after a failure the server is not asked without a pause, and that the source recovers by itself.
async fn recovers(bad: Reply, pace: Pace, says: &str) {
    let (fake, url) = Fake::start(vec![bad], vec![Reply::Hold(Vec::new())]).await;
    let mut seen = run(&url, pace);
    let why = loop {
        let why = seen.status(SourceStatus::Down).await;
        if !why.ends_with("not known yet") {
            break why;
        }
    };
    assert!(why.contains(says) && why.contains("are not known: "), "{why}");
    assert!(!why.contains('\u{1b}') && !why.contains("canary"), "{why}");
    // Between two requests at least half of 40 ms, then half of 80 ms.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = fake.paths().len();
    assert!(asked <= 26, "asked {asked} times");
    assert!(
        !seen.heard.all.iter().any(|fact| matches!(fact.what, Observation::Ended { .. })),
        "nothing is gone"
    );
    fake.state().lists = vec![list("5", &[3])].into();
    seen.pod(3).await;
    assert!(seen.listed().await);
    seen.status(SourceStatus::Active).await;
}

#[tokio::test]
async fn it_recovers_from_an_error() {
    recovers(Reply::Status(500, None), pace(), "500 no, says  [2J the server").await;
}

#[tokio::test]
async fn it_recovers_from_a_token_that_has_expired() {
    recovers(Reply::Status(401, None), pace(), "the token has expired").await;
}

#[tokio::test]
async fn it_recovers_from_a_server_that_hangs() {
    let hurried = Pace { answer: Duration::from_millis(100), ..pace() };
    recovers(Reply::Hang, hurried, "no answer to a list within 100ms").await;
}

#[tokio::test]
async fn it_recovers_from_a_list_that_never_ends() {
    let hurried = Pace { list: Duration::from_millis(100), ..pace() };
    recovers(Reply::Hold(vec![json!({})]), hurried, "").await;
}

#[tokio::test]
async fn it_recovers_from_garbage() {
    for text in ["<html>", "{\"items\": [", "[]", "", "{\"metadata\": {}, \"items\": 7}"] {
        recovers(Reply::Raw(text), pace(), "not an answer of this API").await;
    }
}

#[tokio::test]
async fn it_recovers_from_a_connection_that_is_cut() {
    recovers(Reply::Cut, pace(), "a list: ").await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_down() {
    let mut seen = run("http://127.0.0.1:1", pace());
    let why = seen.status(SourceStatus::Down).await;
    assert!(why.ends_with("not known yet"), "{why}");
    let why = seen.status(SourceStatus::Down).await;
    assert!(why.contains("refused"), "{why}");
}

#[tokio::test]
async fn one_that_has_too_much_to_do_is_left_alone_for_as_long_as_it_asks() {
    let (fake, url) = Fake::start(vec![Reply::Status(429, Some(3600))], Vec::new()).await;
    let mut seen = run(&url, pace());
    let why = seen.status(SourceStatus::Degraded).await;
    assert!(why.contains("429"), "{why}");
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(fake.paths().len(), 1);
}

#[tokio::test]
async fn a_watch_that_breaks_is_resumed_and_what_was_told_stands() {
    let bad = [
        Reply::Status(500, None),
        Reply::Lines(Vec::new()),
        Reply::Cut,
        Reply::Lines(vec![event("ADDED", pod(11))]),
        Reply::Status(429, None),
        Reply::Hold(vec![event("ADDED", pod(12))]),
    ];
    let (fake, url) = Fake::start(vec![list("10", &[1])], bad.to_vec()).await;
    // None of these watches counts as successful.
    let mut seen = run(&url, Pace { well: PATIENCE, ..pace() });
    seen.pod(12).await;
    let lists = fake.paths().iter().filter(|path| !path.contains("&watch=1")).count();
    assert_eq!(lists, 1, "{:?}", fake.paths());
    let from: Vec<String> =
        fake.watched().iter().map(|path| path.rsplit('=').next().unwrap().to_owned()).collect();
    assert_eq!(from, ["10", "10", "10", "10", "11", "11"]);
}

#[tokio::test]
async fn a_silent_watch_is_asked_anew() {
    let (fake, url) = Fake::start(vec![list("10", &[1])], vec![Reply::Hold(Vec::new())]).await;
    let mut seen = run(&url, Pace { silence: Duration::from_millis(100), ..pace() });
    seen.listed().await;
    while fake.watched().len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_object_that_is_not_understood_spoils_no_other_and_makes_nothing_gone() {
    let strange = json!({"metadata": {"uid": 7}});
    let items = json!({"metadata": {"resourceVersion": "9"}, "items": [strange, pod(2)]});
    let (_fake, url) = Fake::start(
        vec![Reply::Json(items), list("20", &[2])],
        vec![
            Reply::Lines(vec![event("DELETED", strange.clone()), bookmark("12")]),
            Reply::Hold(vec![]),
        ],
    )
    .await;
    let mut seen = run(&url, pace());
    seen.pod(2).await;
    assert!(!seen.listed().await, "it is not complete");
    let why = seen.status(SourceStatus::Degraded).await;
    assert!(why.starts_with("1 entries are not understood"), "{why}");
    assert!(seen.listed().await, "what was missed in the watch is listed");
    seen.status(SourceStatus::Active).await;
}

#[tokio::test]
async fn a_mirror_a_deletion_and_another_nodes_pod_are_told_as_what_they_are() {
    let mut mirror = pod(1);
    mirror["metadata"]["annotations"] =
        json!({"a": {"b": 1}, "kubernetes.io/config.mirror": "0a1b"});
    let mut ending = pod(2);
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    ending["metadata"]["deletionGracePeriodSeconds"] = json!(5);
    let mut other = pod(3);
    other["spec"]["nodeName"] = json!("node-2");
    let items = json!({"metadata": {"resourceVersion": "9"}, "items": [mirror, ending, other]});
    let (_fake, url) = Fake::start(vec![Reply::Json(items)], Vec::new()).await;
    let mut seen = run(&url, pace());
    assert_eq!(seen.pod(1).await.mirror_of.as_deref(), Some("0a1b"));
    seen.listed().await;
    let told: Vec<&Pod> = seen
        .heard
        .all
        .iter()
        .filter_map(|fact| match &fact.what {
            Observation::Pod(pod) => Some(pod),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!((told[1].deletion, told[1].grace), (Some(1_767_323_045_000_000_000), Some(5)));
}

#[tokio::test]
async fn without_a_way_in_it_is_off() {
    let (emit, mut facts) = Emit::channel(4);
    let off =
        Settings { enabled: Some(false), kubeconfig: Some("/x".into()), ..Settings::default() };
    let alone = Settings { kubelet_socket: "".into(), ..Settings::default() };
    for settings in [alone, off] {
        start(&settings, "node-1", &emit, &Readings::default());
        let told = facts.recv().await.unwrap();
        let Observation::Source(source) = &told[0].what else { panic!("{told:?}") };
        assert_eq!((source.name.as_str(), source.status), ("kubernetes", SourceStatus::Disabled));
    }
}

/// A change of one range reports all of them, as a list that begins at that moment.
#[tokio::test]
async fn a_range_that_changes_while_it_is_watched_takes_no_other_away() {
    let pool = |name: &str, cidr: &str, version: &str| json!({"metadata": {"name": name, "resourceVersion": version}, "spec": {"cidr": cidr}});
    let pools = json!({
        "metadata": {"resourceVersion": "10"},
        "items": [pool("one", "10.0.0.0/26", "1"), pool("two", "10.0.1.0/26", "2")],
    });
    let changed = vec![
        event("MODIFIED", pool("two", "10.0.2.0/26", "11")),
        event("DELETED", pool("one", "10.0.0.0/26", "12")),
    ];
    let (_fake, url) = Fake::start(vec![Reply::Json(pools)], vec![Reply::Hold(changed)]).await;
    let mut seen = follow_kind(kdd::pools(), "", &url, pace());
    let mut ends = 0;
    while ends < 3 {
        seen.heard
            .until("all", |what| matches!(what, Observation::Ended { .. }).then_some(()))
            .await;
        ends += 1;
    }
    let mut map = crate::map::NodeMap::new(false);
    let mut after = Vec::new();
    for fact in &seen.heard.all {
        map.apply(fact);
        if matches!(fact.what, Observation::Ended { .. }) {
            after.push(map.ranges().map(crate::map::RangeEntry::text).collect::<Vec<_>>());
        }
    }
    let (one, two) = ("10.0.0.0-10.0.0.63", "10.0.2.0-10.0.2.63");
    assert_eq!(after, [vec![one, "10.0.1.0-10.0.1.63"], vec![one, two], vec![two]]);
}

/// The limit is asked for again and again, and told when it has changed. A server that refuses it is asked later.
#[tokio::test]
async fn how_many_pods_a_node_may_have_is_asked_for() {
    let replies = [
        Reply::Status(403, None),
        allocatable("110"),
        allocatable("110"),
        Reply::Json(json!({"status": {}})),
        Reply::Raw("canary"),
        allocatable("250"),
    ];
    let again = Duration::from_millis(2);
    let (fake, mut heard, _dir) = ask_for_the_limit(&replies, again).await;
    assert_eq!(heard.until("the limit", limit).await, 110);
    assert_eq!(heard.until("another limit", limit).await, 250, "nothing is told twice");
    let path = "/api/v1/nodes/node-1?resourceVersion=0";
    assert!(fake.paths().iter().all(|asked| asked == path), "{:?}", fake.paths());
}

/// ipwatch may start before the API server can be reached.
#[tokio::test]
async fn a_limit_that_cannot_be_had_yet_is_asked_for_soon() {
    let replies =
        [Reply::Cut, Reply::Status(503, None), Reply::Status(404, None), allocatable("110")];
    let (_fake, mut heard, _dir) = ask_for_the_limit(&replies, Duration::from_secs(3600)).await;
    assert_eq!(heard.until("the limit", limit).await, 110);
}

fn allocatable(pods: &str) -> Reply {
    Reply::Json(json!({"status": {"allocatable": {"pods": pods, "cpu": "4"}}}))
}

fn limit(what: &Observation) -> Option<u32> {
    match what {
        Observation::PodLimit { pods } => Some(*pods),
        _ => None,
    }
}

/// Starts to ask a server that replies this, every `again`.
async fn ask_for_the_limit(replies: &[Reply], again: Duration) -> (Fake, Heard, tempfile::TempDir) {
    let (fake, url) = Fake::start(replies.to_vec(), Vec::new()).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    let config = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"{url}\"}}}}]\n\
         users: [{{name: u, user: {{token: canary}}}}]\n"
    );
    std::fs::write(&path, config).unwrap();
    let (emit, heard) = Heard::channel();
    let retry = Duration::from_millis(2);
    let pace = node::Pace { open: PATIENCE, answer: PATIENCE, again, retry };
    tokio::spawn(node::run("node-1".into(), Credentials::Kubeconfig(path), pace, emit));
    (fake, heard, dir)
}
