//! Tests the source with a fake kubelet.

use std::path::{Path, PathBuf};

use prost::Message as _;
use prost::bytes::Bytes;
use tonic::Status;

use super::fake::{Kubelet, pod, uid};
use super::messages::{ANNOTATIONS, Annotation, Time};
use super::*;
use crate::fact::{Pod, Source};
use crate::reading::Readings;
use crate::sources::kubernetes::{self, Settings};
use crate::sources::testing::{Heard, PATIENCE};

/// Long timeouts, short pauses.
fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace {
        open: PATIENCE,
        list: PATIENCE,
        settle: ms(10),
        apart: ms(10),
        whole: Duration::from_secs(3600),
        well: ms(50),
        absent: ms(20),
        retry: (ms(20), ms(40)),
    }
}

struct Seen(Heard);

fn watch(socket: &Path, pace: Pace) -> Seen {
    let (emit, heard) = Heard::channel();
    tokio::spawn(run(SocketPath::new(socket, SOURCE, &Readings::default()), pace, emit));
    Seen(heard)
}

impl Seen {
    /// Waits for this status. Skips the one reported before the first attempt.
    async fn status(&mut self, status: SourceStatus) -> String {
        self.0
            .until(&format!("{status:?}"), |what| match what {
                Observation::Source(Source { status: told, detail, .. })
                    if *told == status && !detail.ends_with("not known yet") =>
                {
                    Some(detail.clone())
                }
                _ => None,
            })
            .await
    }

    /// The next complete list: its pods, and whether it was marked complete.
    async fn list(&mut self) -> (Vec<Pod>, bool) {
        self.0
            .until("a list", |what| matches!(what, Observation::Began(Scope::Pods)).then_some(()))
            .await;
        let from = self.0.all.len();
        let complete = self
            .0
            .until("the end of a list", |what| match what {
                Observation::Ended { scope: Scope::Pods, complete, .. } => Some(*complete),
                _ => None,
            })
            .await;
        let pods = self.0.all[from..].iter().filter_map(|fact| match &fact.what {
            Observation::Pod(pod) => Some(pod.clone()),
            _ => None,
        });
        (pods.collect(), complete)
    }

    async fn names(&mut self) -> Vec<String> {
        self.list().await.0.into_iter().map(|pod| pod.name).collect()
    }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pods-api.sock");
    (dir, path)
}

#[tokio::test]
async fn its_pods_are_listed_and_again_when_they_change() {
    let (_dir, path) = place();
    let kubelet = Kubelet::new(&[1]);
    let _running = kubelet.serve(&path);
    let mut seen = watch(&path, pace());
    let (pods, complete) = seen.list().await;
    assert!(complete);
    let [one] = &pods[..] else { panic!("{pods:?}") };
    assert_eq!((&*one.uid, &*one.namespace, &*one.name), (&*uid(1), "shop", "api-1"));
    assert_eq!((one.phase.as_deref(), one.grace), (Some("Running"), Some(20)));
    assert_eq!(one.ips, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    let text = seen.status(SourceStatus::Active).await;
    assert!(text.contains("pods-api.sock"), "{text}");
    // The number of an event's type is ignored, because it depends on the kubelet's version.
    kubelet.changes(0, vec![pod(1), pod(2)]);
    assert_eq!(seen.names().await, ["api-1", "api-2"]);
    let mut ending = pod(1);
    let meta = ending.metadata.as_mut().unwrap();
    meta.deletion_timestamp = Some(Time { seconds: 100 });
    meta.deletion_grace_period_seconds = Some(7);
    kubelet.changes(4, vec![ending, pod(2)]);
    let (pods, _) = seen.list().await;
    assert_eq!((pods[0].deletion, pods[0].grace), (Some(100_000_000_000), Some(7)));
    kubelet.changes(2, vec![pod(2)]);
    assert_eq!(seen.names().await, ["api-2"]);
    assert_eq!(kubelet.state().watches, 1);
}

#[tokio::test]
async fn what_a_watch_did_not_tell_the_next_list_does() {
    let (_dir, path) = place();
    let kubelet = Kubelet::new(&[1]);
    let _running = kubelet.serve(&path);
    let mut seen = watch(&path, Pace { whole: Duration::from_millis(30), ..pace() });
    assert_eq!(seen.names().await, ["api-1"]);
    kubelet.state().pods.clear();
    while !seen.names().await.is_empty() {}
}

#[tokio::test]
async fn one_that_has_just_started_is_not_taken_for_one_without_pods() {
    let (_dir, path) = place();
    let kubelet = Kubelet::new(&[1]);
    kubelet.state().refuses = Some(Status::failed_precondition("Kubelet is initializing"));
    let _running = kubelet.serve(&path);
    let mut seen = watch(&path, pace());
    let text = seen.status(SourceStatus::Down).await;
    assert!(text.contains("has just started"), "{text}");
    assert!(!seen.0.all.iter().any(|fact| matches!(fact.what, Observation::Ended { .. })));
    kubelet.state().refuses = None;
    assert_eq!(seen.names().await, ["api-1"]);
    seen.status(SourceStatus::Active).await;
}

#[tokio::test]
async fn one_that_hangs_is_down_and_its_list_has_no_end() {
    let (_dir, path) = place();
    let kubelet = Kubelet::new(&[1]);
    kubelet.state().hangs = true;
    let _running = kubelet.serve(&path);
    let mut seen = watch(&path, Pace { list: Duration::from_millis(200), ..pace() });
    let text = seen.status(SourceStatus::Down).await;
    assert!(text.contains("no answer to ListPods within"), "{text}");
    assert!(!seen.0.all.iter().any(|fact| matches!(fact.what, Observation::Ended { .. })));
    kubelet.state().hangs = false;
    assert_eq!(seen.names().await, ["api-1"]);
}

#[tokio::test]
async fn who_is_cut_off_lists_again() {
    let (_dir, path) = place();
    let kubelet = Kubelet::new(&[1]);
    let _running = kubelet.serve(&path);
    let mut seen = watch(&path, pace());
    assert_eq!(seen.names().await, ["api-1"]);
    seen.status(SourceStatus::Active).await;
    kubelet.state().pods = vec![pod(3).encode_to_vec().into()];
    kubelet.cuts_off();
    let text = seen.status(SourceStatus::Degraded).await;
    assert!(text.contains("listed anew"), "{text}");
    assert_eq!(seen.names().await, ["api-3"]);
    seen.status(SourceStatus::Active).await;
}

#[tokio::test]
async fn a_socket_that_appears_later_is_found_and_then_missed() {
    let (_dir, path) = place();
    let mut seen = watch(&path, pace());
    let text = seen.status(SourceStatus::Disabled).await;
    assert!(text.contains("no socket at"), "{text}");
    let kubelet = Kubelet::new(&[1]);
    let running = kubelet.serve(&path);
    assert_eq!(seen.names().await, ["api-1"]);
    // From now on this kubelet is known to have the API.
    drop(running);
    seen.status(SourceStatus::Down).await;
    std::fs::remove_file(&path).unwrap();
    while !seen.status(SourceStatus::Down).await.contains("no socket at") {}
    let _running = kubelet.serve(&path);
    assert_eq!(seen.names().await, ["api-1"]);
}

#[tokio::test]
async fn one_that_is_there_is_missed_from_the_start() {
    let (_dir, path) = place();
    let kubelet = Kubelet::new(&[1]);
    kubelet.state().refuses = Some(Status::internal("not today"));
    let _running = kubelet.serve(&path);
    let mut seen = watch(&path, pace());
    let first = seen.0.until("a word", |what| match what {
        Observation::Source(source) => Some((source.status, source.detail.clone())),
        _ => None,
    });
    let first = first.await;
    assert!(first.0 == SourceStatus::Down && first.1.contains("not known yet"), "{first:?}");
    assert!(seen.status(SourceStatus::Down).await.contains("not today"));
}

#[tokio::test]
async fn one_without_the_api_is_no_error() {
    let (_dir, path) = place();
    let kubelet = Kubelet::new(&[]);
    kubelet.state().refuses = Some(Status::unimplemented("unknown service v1alpha1.Pods"));
    let _running = kubelet.serve(&path);
    let text = watch(&path, pace()).status(SourceStatus::Disabled).await;
    assert!(text.contains("feature gate PodsAPI"), "{text}");
}

#[tokio::test]
async fn a_pod_that_is_not_understood_spoils_no_other() {
    let (_dir, path) = place();
    let kubelet = Kubelet::new(&[1, 2]);
    let nameless = super::messages::Pod { metadata: None, ..pod(3) };
    kubelet.state().pods.insert(1, Bytes::from_static(b"\x0a\xff\xff garbage"));
    kubelet.state().pods.push(nameless.encode_to_vec().into());
    let _running = kubelet.serve(&path);
    let mut seen = watch(&path, pace());
    let (pods, complete) = seen.list().await;
    let names: Vec<&str> = pods.iter().map(|pod| &*pod.name).collect();
    assert_eq!((&names[..], complete), (&["api-1", "api-2"][..], false));
    let text = seen.status(SourceStatus::Degraded).await;
    assert!(text.starts_with("2 pods are not understood"), "{text}");
}

#[tokio::test]
async fn a_list_that_is_too_large_or_too_long_sweeps_nothing() {
    let (_dir, path) = place();
    let kubelet = Kubelet::new(&[]);
    kubelet.state().pods = vec![Bytes::from(vec![0; 33 << 20])];
    let _running = kubelet.serve(&path);
    let mut seen = watch(&path, pace());
    let text = seen.status(SourceStatus::Down).await;
    assert!(text.contains("more than 32 MiB"), "{text}");
    assert!(!seen.0.all.iter().any(|fact| matches!(fact.what, Observation::Ended { .. })));
    let many = (0..5000).map(|n| pod(n).encode_to_vec().into());
    kubelet.state().pods = many.collect();
    let (pods, complete) = seen.list().await;
    assert_eq!((pods.len(), complete), (4096, false));
}

#[tokio::test]
async fn where_the_api_server_is_asked_the_kubelet_is_not() {
    let (dir, path) = place();
    let kubelet = Kubelet::new(&[1]);
    let _running = kubelet.serve(&path);
    let alone = Settings { kubelet_socket: path.clone(), ..Settings::default() };
    let both = Settings { kubeconfig: Some(dir.path().join("config")), ..alone.clone() };
    let (emit, heard) = Heard::channel();
    kubernetes::start(&both, "node-1", &emit, &Readings::default());
    let mut seen = Seen(heard);
    // Not even if the API server cannot be reached.
    while !seen.status(SourceStatus::Down).await.contains("config") {}
    assert_eq!(kubelet.state().lists, 0);
    assert_eq!(kubelet.state().watches, 0);
    for off in [
        Settings { enabled: Some(false), ..alone.clone() },
        Settings { kubelet_socket: PathBuf::new(), ..alone.clone() },
        both,
    ] {
        assert_eq!(off.fallback(), None);
    }
    assert_eq!(alone.fallback(), Some(path));
}

#[test]
fn a_static_pods_mirror_says_so() {
    let mark = |key: &'static str, value: &'static [u8]| {
        let mut bytes = Vec::new();
        let one = Annotation { key: key.into(), value: Bytes::from_static(value) };
        prost::encoding::message::encode(ANNOTATIONS, &one, &mut bytes);
        bytes
    };
    let read = |annotations: Vec<u8>| {
        let mut bytes = pod(1).encode_to_vec();
        // A message that occurs twice is merged.
        prost::encoding::bytes::encode(1, &annotations, &mut bytes);
        messages::read(&bytes.into()).map(|pod| pod.metadata.annotations.mirror)
    };
    assert_eq!(read(mark("other", b"\xff")), Some(None));
    let marked = [mark("a", b"b"), mark("kubernetes.io/config.mirror", b"0123")].concat();
    assert_eq!(read(marked), Some(Some("0123".to_owned())));
    assert_eq!(read(mark("kubernetes.io/config.mirror", b"\xff")), None);
}
