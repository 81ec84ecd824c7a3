//! Tests the v2 follower against a fake etcd and its failures, and the settings of both APIs. The end-to-end tests use
//! a real etcd.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;

use super::fake::{Fake, Reply, event, list};
use super::*;
use crate::fact::{BootNs, Fact, Observation};
use crate::sources::calico::keys::Kept;

/// Limits a wait; no test depends on its actual length.
const PATIENCE: Duration = Duration::from_secs(30);

/// Long timeouts, short pauses.
fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace {
        open: PATIENCE,
        answer: PATIENCE,
        list: PATIENCE,
        ping: (PATIENCE, PATIENCE),
        alive: PATIENCE,
        poll: PATIENCE,
        well: ms(50),
        retry: (ms(20), ms(40)),
    }
}

/// Records the calls.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<String>>>);

impl Written {
    fn write(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    async fn await_line(&self, line: &str) {
        let wait = async {
            while !self.all().iter().any(|one| one == line) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let came = tokio::time::timeout(PATIENCE, wait).await;
        came.unwrap_or_else(|_| panic!("no {line:?}, but {:?}", self.all()));
    }
}

impl Keys for Written {
    fn began(&mut self, _: &mut Vec<Observation>) {
        self.write("began".into());
    }
    fn put(&mut self, key: &str, value: Kept<'_>, _: &mut Vec<Observation>) {
        let Kept::Bytes(value) = value else { panic!("{key} is no object") };
        self.write(format!("{key} = {}", String::from_utf8_lossy(value)));
    }
    fn gone(&mut self, key: &str, _: &mut Vec<Observation>) {
        self.write(format!("{key} gone"));
    }
    fn ended(&mut self, _: BootNs, complete: bool, _: &mut Vec<Observation>) {
        self.write(format!("ended, complete: {complete}"));
    }
    fn confirmed(&mut self, _: &mut Vec<Observation>) {
        self.write("confirmed".into());
    }
    fn wrong(&self) -> usize {
        0
    }
}

struct Seen {
    facts: mpsc::Receiver<Vec<Fact>>,
    written: Written,
}

impl Seen {
    /// The next status of the source.
    async fn next_state(&mut self) -> (SourceStatus, String) {
        let next = async {
            loop {
                for fact in self.facts.recv().await.unwrap() {
                    if let Observation::Source(source) = fact.what {
                        assert_eq!(source.name, "calico");
                        return (source.status, source.detail);
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, next).await.expect("a state")
    }

    async fn await_state(&mut self, status: SourceStatus, part: &str) -> String {
        loop {
            let (now, detail) = self.next_state().await;
            if now == status && detail.contains(part) {
                return detail;
            }
        }
    }
}

fn settings(url: &str) -> Settings {
    Settings { etcd_endpoints: vec![url.to_owned()], etcd_api: Version::V2, ..Settings::default() }
}

fn run(settings: Settings, pace: Pace) -> Seen {
    run_with(v2::Store::new("node 1"), settings, pace)
}

fn run_with(store: v2::Store, settings: Settings, pace: Pace) -> Seen {
    let (emit, facts) = Emit::channel(64);
    let written = Written::default();
    let reporter = reporter::Reporter::new(written.clone(), emit);
    tokio::spawn(reflector::run(store, settings, pace, reporter));
    Seen { facts, written }
}

const WORKLOADS: &str = "/calico/v1/host/node%201/workload?";
const BLOCKS: &str = "/assignment?recursive=true&quorum";
const BLOCKS_WAIT: &str = "/assignment?wait";
/// The key that is requested to learn the index of the store.
const SMALL: &str = "/ipam/v2/config";

#[tokio::test]
async fn a_list_and_then_what_changes() {
    let (fake, url) = Fake::start(vec![
        (BLOCKS, vec![list(7, &[("/calico/ipam/v2/assignment/ipv4/block/a", "{}")])]),
        (
            BLOCKS_WAIT,
            vec![
                event("compareAndSwap", 9, json!({ "key": "/b", "value": "1" })),
                event("delete", 12, json!({ "key": "/b" })),
            ],
        ),
    ])
    .await;
    let mut seen = run(settings(&url), pace());
    assert_eq!(seen.next_state().await.0, SourceStatus::Down);
    let text = seen.await_state(SourceStatus::Active, "1 keys in the last list").await;
    assert!(text.contains(&format!("etcd v2 {url}")), "{text}");
    seen.written.await_line("/b gone").await;
    assert_eq!(
        seen.written.all(),
        [
            "began",
            "/calico/ipam/v2/assignment/ipv4/block/a = {}",
            "ended, complete: true",
            "/b = 1",
            "/b gone"
        ]
    );
    assert_eq!(fake.asked(WORKLOADS).len(), 2, "a list, a poll");
    let polls = fake.asked(BLOCKS_WAIT);
    let from: Vec<&str> =
        polls.iter().filter_map(|path| path.rsplit_once('=')).map(|(_, n)| n).collect();
    assert_eq!(from[..2], ["8", "10"], "{polls:?}");
}

#[tokio::test]
async fn a_directory_that_goes_takes_its_keys_with_it() {
    let tree = [("/t/a/1", "x"), ("/t/a/2", "x"), ("/t/ab", "x")];
    let (_fake, url) = Fake::start(vec![
        (BLOCKS, vec![list(7, &tree)]),
        (BLOCKS_WAIT, vec![event("delete", 9, json!({ "key": "/t/a", "dir": true }))]),
    ])
    .await;
    let seen = run(settings(&url), pace());
    seen.written.await_line("/t/a/2 gone").await;
    let all = seen.written.all();
    assert_eq!(all[all.len() - 2..], ["/t/a/1 gone", "/t/a/2 gone"]);
}

#[tokio::test]
async fn a_directory_that_lives_longer_keeps_its_keys() {
    let dir = json!({ "key": "/t/a", "dir": true });
    let (_fake, url) = Fake::start(vec![
        (BLOCKS, vec![list(7, &[("/t/a/1", "x")])]),
        (
            BLOCKS_WAIT,
            vec![
                event("update", 9, dir.clone()),
                event("set", 10, json!({ "key": "/t/b", "value": "1" })),
                event("set", 11, dir),
            ],
        ),
    ])
    .await;
    let seen = run(settings(&url), pace());
    seen.written.await_line("/t/a/1 gone").await;
    assert_eq!(seen.written.all()[3..], ["/t/b = 1", "/t/a/1 gone"]);
}

#[tokio::test]
async fn what_a_watch_adds_is_bounded() {
    let put = |at, key: &str| event("set", at, json!({ "key": key, "value": "1" }));
    let long = format!("/t/{}", "x".repeat(LONGEST_KEY));
    let polls = vec![put(8, &long), put(9, "/t/b"), put(10, "/t/c"), put(11, "/t/b")];
    let (_fake, url) =
        Fake::start(vec![(BLOCKS, vec![list(7, &[("/t/a", "1")])]), (BLOCKS_WAIT, polls)]).await;
    let mut store = v2::Store::new("node 1");
    store.most = 2;
    let mut seen = run_with(store, settings(&url), pace());
    seen.await_state(SourceStatus::Degraded, "1 keys are more than is followed").await;
    let all = ["began", "/t/a = 1", "ended, complete: true", "/t/b = 1", "ended, complete: false"];
    assert_eq!(seen.written.all()[..5], all);
}

/// etcd keeps a thousand events of the whole store; one tree may be quiet for longer.
#[tokio::test]
async fn a_quiet_tree_goes_on_from_where_the_store_is() {
    let none = || json!({ "errorCode": 100, "message": "Key not found", "index": 5000 });
    let at = |index| Reply::Json(404, index, none());
    let (fake, url) = Fake::start(vec![
        (BLOCKS, vec![list(7, &[("/t/a", "1")])]),
        (BLOCKS_WAIT, vec![Reply::Hold(100), Reply::Hold(5000), Reply::Hold(6000)]),
        ("/workload?wait", vec![Reply::Hold(100), Reply::Hold(5000), Reply::Hold(6000)]),
        (SMALL, vec![at(5000), at(6000), Reply::Hang]),
    ])
    .await;
    let quick = Duration::from_millis(100);
    let pace = Pace { alive: quick, poll: quick, answer: Duration::from_secs(2), ..pace() };
    let mut seen = run(settings(&url), pace);
    seen.await_state(SourceStatus::Down, "whether it lives").await;
    for (tree, listed) in [(BLOCKS_WAIT, "8"), ("/workload?wait", "101")] {
        let polls = fake.asked(tree);
        let from: Vec<&str> = polls.iter().filter_map(|path| path.rsplit('=').next()).collect();
        // Not the index just received: an event before it may still be in flight.
        assert_eq!(from[1..3], [listed, "5001"], "{polls:?}");
    }
    assert_eq!(seen.written.all()[3..], ["confirmed", "confirmed"]);
    assert_eq!(fake.asked(BLOCKS).len(), 1);
}

#[tokio::test]
async fn what_was_cleared_is_listed_again() {
    let cleared = json!({ "errorCode": 401, "message": "The event in requested index is outdated and cleared", "index": 2000 });
    let (fake, url) = Fake::start(vec![
        (BLOCKS, vec![list(7, &[("/t/a", "1")]), list(2000, &[("/t/b", "1")])]),
        (BLOCKS_WAIT, vec![Reply::Json(400, 2000, cleared), Reply::Hold(2000)]),
    ])
    .await;
    let mut seen = run(settings(&url), pace());
    seen.await_state(SourceStatus::Degraded, "listed anew").await;
    seen.written.await_line("/t/b = 1").await;
    assert_eq!(seen.written.all().iter().filter(|line| *line == "began").count(), 2);
    seen.await_state(SourceStatus::Active, "").await;
    assert_eq!(fake.asked(BLOCKS).len(), 2);
}

#[tokio::test]
async fn one_that_hangs_is_down_and_nothing_is_told_of_it() {
    let (fake, url) =
        Fake::start(vec![(BLOCKS, vec![list(7, &[("/t/a", "1")])]), (SMALL, vec![Reply::Hang])])
            .await;
    let quick = Duration::from_millis(50);
    let mut seen =
        run(settings(&url), Pace { answer: Duration::from_secs(2), alive: quick, ..pace() });
    seen.await_state(SourceStatus::Active, "").await;
    let text = seen.await_state(SourceStatus::Down, "no answer to the question").await;
    assert!(text.contains("whether it lives"), "{text}");
    // It resumes where it was.
    seen.await_state(SourceStatus::Active, "").await;
    assert_eq!(seen.written.all(), ["began", "/t/a = 1", "ended, complete: true"]);
    assert_eq!(fake.asked(BLOCKS).len(), 1);
}

#[tokio::test]
async fn polls_that_end_at_once_are_not_repeated_without_a_pause() {
    let empty = || Reply::Raw(100, String::new());
    let (fake, url) = Fake::start(vec![(BLOCKS_WAIT, vec![empty(); 1000])]).await;
    let pace = Pace { well: PATIENCE, retry: (PATIENCE, PATIENCE), ..pace() };
    let mut seen = run(settings(&url), pace);
    seen.await_state(SourceStatus::Down, "ended at once").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fake.asked(BLOCKS_WAIT).len(), 1);
}

#[tokio::test]
async fn garbage_and_refusals_are_said_and_conclude_nothing() {
    let refused = json!({ "message": "Insufficient credentials" });
    let torn = "{\"action\":\"get\",\"node\":{\"key\":\"/t\",\"nodes\":[{\"key\":\"/t/secret";
    let (_fake, url) = Fake::start(vec![(
        BLOCKS,
        vec![
            Reply::Raw(7, torn.to_owned()),
            Reply::Json(401, 0, refused),
            list(7, &[("/t/a", "1")]),
        ],
    )])
    .await;
    let mut seen = run(settings(&url), pace());
    let text = seen.await_state(SourceStatus::Down, "torn").await;
    assert!(!text.contains("secret"), "{text}");
    seen.await_state(SourceStatus::Down, "does not take our credentials").await;
    seen.await_state(SourceStatus::Active, "").await;
    // Neither of the lists that failed has removed anything.
    assert_eq!(
        seen.written.all(),
        ["began", "began", "began", "/t/a = 1", "ended, complete: true"]
    );
}

#[tokio::test]
async fn a_store_that_was_set_back_is_listed_again() {
    let (_fake, url) = Fake::start(vec![
        (BLOCKS, vec![list(70, &[("/t/a", "1")]), list(7, &[])]),
        (BLOCKS_WAIT, vec![Reply::Hold(6)]),
    ])
    .await;
    let mut seen = run(settings(&url), pace());
    seen.await_state(SourceStatus::Degraded, "set back").await;
    seen.await_state(SourceStatus::Active, "0 keys").await;
}

#[tokio::test]
async fn an_entry_whose_value_is_beyond_the_bound_is_there_all_the_same() {
    let long = "x".repeat(VALUE_LIMIT + 1);
    let (_fake, url) =
        Fake::start(vec![(BLOCKS, vec![list(7, &[("/t/a", &long), ("/t/b", "1")])])]).await;
    let mut seen = run(settings(&url), pace());
    seen.await_state(SourceStatus::Active, "2 keys").await;
    assert_eq!(seen.written.all(), ["began", "/t/a = ", "/t/b = 1", "ended, complete: true"]);
}

#[tokio::test]
async fn the_password_is_read_from_its_file_each_time_and_shown_nowhere() {
    let (fake, url) = Fake::start(vec![("/health", vec![Reply::Json(401, 0, json!({}))])]).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("user");
    std::fs::write(&path, "me:canary\n").unwrap();
    let settings = Settings { etcd_user_file: Some(path.clone()), ..settings(&url) };
    let mut seen = run(settings, Pace { retry: (PATIENCE / 100, PATIENCE / 100), ..pace() });
    let text = seen.await_state(SourceStatus::Down, "credentials").await;
    assert!(!text.contains("canary"), "{text}");
    std::fs::write(&path, "me:other\n").unwrap();
    seen.await_state(SourceStatus::Active, "").await;
    let users = fake.users();
    assert_eq!(users[0].as_deref(), Some("Basic bWU6Y2FuYXJ5"));
    assert_eq!(users[1].as_deref(), Some("Basic bWU6b3RoZXI="));
}

/// Calico stores more for each pod of the cluster than its IP, and each node would receive all of it.
#[tokio::test]
async fn neither_handles_nor_pools_are_asked_for() {
    for key in [
        "/calico/ipam/v2/handle/k8s-pod-network.aa",
        "/calico/resources/v3/projectcalico.org/ippools/default",
    ] {
        assert!(!v3::PREFIXES.iter().any(|prefix| key.starts_with(prefix)), "{key}");
    }
    let (fake, url) = Fake::start(Vec::new()).await;
    let mut seen = run(settings(&url), pace());
    seen.await_state(SourceStatus::Active, "").await;
    let asked = fake.asked("/v2/keys");
    let trees = ["/calico/v1/host/node%201/workload?", "/calico/ipam/v2/assignment?"];
    assert_eq!(asked.len(), 4, "a list and a poll of each: {asked:?}");
    for path in &asked {
        let below = path.trim_start_matches("/v2/keys");
        assert!(trees.iter().any(|tree| below.starts_with(tree)), "{path}");
    }
}

#[tokio::test]
async fn what_is_not_whole_confirms_nothing() {
    let (emit, mut facts) = Emit::channel(64);
    let written = Written::default();
    let mut reporter = reporter::Reporter::new(written.clone(), emit);
    reporter.began(BootNs(1)).await.unwrap();
    reporter.ended(BootNs(1)).await.unwrap();
    reporter.confirmed(BootNs(2)).await.unwrap();
    reporter.leave_out_now();
    reporter.confirmed(BootNs(3)).await.unwrap();
    let so_far = ["began", "ended, complete: true", "confirmed", "ended, complete: false"];
    assert_eq!(written.all(), so_far);
    // A list makes the data complete again, and a key that cannot be Calico's does not affect that.
    reporter.began(BootNs(4)).await.unwrap();
    reporter.put(&[0xff], b"{}");
    reporter.put(&[b'k'; LONGEST_KEY + 1], b"{}");
    reporter.ended(BootNs(4)).await.unwrap();
    reporter.gone(&[0xff]);
    reporter.confirmed(BootNs(5)).await.unwrap();
    assert_eq!(written.all()[4..], ["began", "ended, complete: true", "confirmed"]);
    reporter.well("etcd").await.unwrap();
    let mut told = Vec::new();
    while let Ok(facts) = facts.try_recv() {
        told.extend(facts);
    }
    let told = format!("{told:?}");
    assert!(told.contains("2 entries are not understood"), "{told}");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let wrong = |settings: Settings| settings.wrong().unwrap_or_default();
    let with = |urls: &[&str]| Settings {
        etcd_endpoints: urls.iter().map(|url| (*url).to_owned()).collect(),
        ..Settings::default()
    };
    assert_eq!(with(&["https://a:2379", "http://10.0.0.1:2379"]).wrong(), None);
    assert!(wrong(with(&["a:2379"])).contains("etcd_endpoints: an endpoint is written"));
    assert!(wrong(with(&["http://a"; 33])).contains("more than 32"));
    let file = Some("/x".into());
    let user = |url| Settings { etcd_user_file: file.clone(), ..with(&[url]) };
    assert!(wrong(user("http://10.0.0.1:2379")).contains("could read the password"));
    assert_eq!(user("http://127.0.0.1:2379").wrong(), None);
    assert_eq!(user("https://10.0.0.1:2379").wrong(), None);
    let alone = Settings { etcd_cert_file: file.clone(), ..with(&[]) };
    assert!(wrong(alone).contains("name both"));
    let relative = Settings { etcd_ca_file: Some("ca.pem".into()), ..with(&[]) };
    assert!(wrong(relative).contains("ca.pem must begin with /"));
}

#[test]
fn files_that_are_none_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    let settings = Settings {
        etcd_endpoints: vec!["https://a:2379".to_owned()],
        etcd_ca_file: Some(path.clone()),
        ..Settings::default()
    };
    let error = settings.check().unwrap_err().to_string();
    assert!(error.contains("ca.pem") && error.contains("No such file"), "{error}");
    std::fs::write(&path, "hunter2").unwrap();
    let error = settings.check().unwrap_err().to_string();
    assert!(error.contains("no certificate in PEM") && !error.contains("hunter2"), "{error}");
}

#[test]
fn an_error_of_v3_says_what_to_do() {
    use tonic::Code;
    let said = |code, text: &str| status::said("a list", code, text).to_string();
    let compacted = status::said(
        "a watch",
        Code::OutOfRange,
        "etcdserver: mvcc: required revision has been compacted",
    );
    assert!(matches!(compacted, EtcdError::Expired { .. }));
    assert!(said(Code::Unavailable, "etcdserver: no leader").contains("no leader"));
    assert!(said(Code::PermissionDenied, "etcdserver: permission denied").contains("grant"));
    // The message of a watch.
    let watch = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    assert!(said(Code::Unknown, watch).contains("grant"));
    for text in [
        "etcdserver: authentication failed, invalid user ID or password",
        "etcdserver: user name is empty",
    ] {
        assert!(said(Code::InvalidArgument, text).contains("etcd_user_file"), "{text}");
    }
    let large = "Error, decoded message length too large: found 9 bytes, the limit is: 4 bytes";
    assert!(said(Code::OutOfRange, large).contains("more than 16 MiB"));
    let long = "x".repeat(9000);
    assert!(said(Code::Internal, &format!("{long}\n")).len() < 300);
}
