//! Tests the whole source against fake runtimes in this process.

mod hostile;

use std::path::Path;
use std::time::Duration;

use super::cri::messages::{ContainerDelete, TaskExit};
use super::find::tests as found;
use super::testing::{CONTAINERD_EVENTS, Cri, Docker, Seen, SocketDir, V1, V1ALPHA2, pace, run};
use super::*;
use crate::fact::{Life, Observation, Origin, Scope, SourceStatus};

const CRI: Option<Kind> = Some(Kind::Cri);

#[tokio::test]
async fn a_list_is_told_whole_and_then_where_each_sandbox_is() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("containerd").with("s1");
    runtime.state().add_container("c1", "s1", "main", 1);
    runtime.state().add_container("c2", "s1", "init", 2);
    runtime.serve(&path);
    let (_, mut first, mut seen) = run(&[(&path, CRI)], pace());
    let sandbox = seen.whole("s1").await;
    first.wait().await;

    assert_eq!(sandbox.runtime, "containerd");
    let pod = sandbox.pod.unwrap();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("shop", "pod-s1"));
    assert_eq!((pod.uid.as_deref(), sandbox.attempt), (Some("uid-s1"), Some(3)));
    assert_eq!((sandbox.life, sandbox.word.as_str()), (Life::Alive, "Ready"));
    assert_eq!(sandbox.ips, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(sandbox.netns_path.as_deref(), Some("/run/netns/s1"));
    assert_eq!((sandbox.pid, sandbox.host_network), (Some(4711), false));
    let containers: Vec<_> = seen
        .containers()
        .take(2)
        .map(|one| (one.name.as_deref().unwrap(), one.life, one.word.as_str()))
        .collect();
    assert_eq!(containers, [("main", Life::Alive, "Running"), ("init", Life::Dead, "Exited")]);

    assert!(seen.all.iter().all(|fact| fact.origin == Origin::Runtime));
    let waits = &seen.all[0].what;
    assert!(
        matches!(waits, Observation::Source(source) if source.detail == "has not answered yet")
    );
    let mut told = seen.all.iter();
    let begin = told.find(|fact| matches!(fact.what, Observation::Began(_))).unwrap();
    let scope = Scope::Runtime { runtime: "containerd".into() };
    assert_eq!(begin.what, Observation::Began(scope.clone()));
    let at = told.clone().take_while(|fact| !matches!(fact.what, Observation::Ended { .. }));
    assert!(at.clone().count() == 3 && at.clone().all(|fact| fact.at == begin.at));
    let ended = Observation::Ended { scope, began: begin.at, complete: true };
    assert_eq!(told.nth(3).unwrap().what, ended);
}

#[tokio::test]
async fn the_older_api_is_spoken_where_only_that_is() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o").with("s1");
    runtime.state().services = [V1ALPHA2].into();
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    let degraded = seen.source("cri-o", SourceStatus::Degraded).await;
    assert!(degraded.detail.contains("polled every"), "{}", degraded.detail);
    assert!(degraded.detail.contains("v1.2.3, CRI v1alpha2"), "{}", degraded.detail);
    seen.whole("s1").await;
}

#[tokio::test]
async fn a_runtime_without_a_cri_is_nobody_to_ask_unless_it_had_one() {
    let place = SocketDir::new();
    let path = place.path("containerd.sock");
    let runtime = Cri::new("containerd");
    runtime.state().services.clear();
    runtime.serve(&path);
    let (_, mut first, mut seen) = run(&[(&path, CRI)], pace());
    let off = seen.source("containerd", SourceStatus::Disabled).await;
    assert!(off.detail.contains("does not serve the CRI"), "{}", off.detail);
    first.wait().await;

    runtime.state().services = [V1].into();
    seen.list().await;
    runtime.state().services.clear();
    seen.source("containerd", SourceStatus::Down).await;
}

#[tokio::test]
async fn without_events_it_is_polled() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o");
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    seen.source("cri-o", SourceStatus::Degraded).await;
    runtime.state().add("s1");
    seen.whole("s1").await;
}

#[tokio::test]
async fn an_event_of_containerd_asks_for_a_list_and_names_what_is_gone() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("containerd").with("s1").with("s2");
    runtime.state().services.insert(CONTAINERD_EVENTS);
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    let active = seen.source("containerd", SourceStatus::Active).await;
    assert!(active.detail.starts_with("v1.2.3, CRI v1, /"), "{}", active.detail);
    runtime.has_listener().await;
    seen.settle().await;

    runtime.state().sandboxes.items[0].state = 1;
    runtime.event("/tasks/exit", TaskExit { container_id: "s1".into(), id: "s1".into() });
    let dead = |what: &Observation| match what {
        Observation::Sandbox(sandbox) if sandbox.life == Life::Dead => Some(sandbox.clone()),
        _ => None,
    };
    let sandbox = seen.until("a dead sandbox", dead).await;
    assert_eq!((sandbox.id.as_str(), sandbox.word.as_str()), ("s1", "NotReady"));
    assert_eq!(sandbox.netns_path.as_deref(), Some("/run/netns/s1"));
    assert_eq!(sandbox.pid, None);
    seen.settle().await;

    let lists = runtime.calls("ListContainers");
    runtime.event("/tasks/exit", TaskExit { container_id: "s2".into(), id: "probe".into() });
    seen.settle().await;
    assert_eq!(runtime.calls("ListContainers"), lists, "an exec asks for nothing");

    runtime.state().sandboxes.items.remove(0);
    runtime.event("/containers/delete", ContainerDelete { id: "s1".into() });
    let gone = |what: &Observation| match what {
        Observation::SandboxGone { runtime, id } => Some((runtime.clone(), id.clone())),
        _ => None,
    };
    assert_eq!(seen.until("gone", gone).await, ("containerd".into(), "s1".into()));
    assert!(seen.list().await);
    // kubelet's share of the events is left to it.
    assert_eq!(runtime.calls("GetContainerEvents"), 0);
}

#[tokio::test]
async fn an_event_of_the_cri_does_the_same() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o").with("s1");
    runtime.state().cri_events = Some(tokio::sync::broadcast::channel(4).0);
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    seen.source("cri-o", SourceStatus::Active).await;
    runtime.has_listener().await;
    seen.settle().await;
    runtime.removes("c9");
    let gone = |what: &Observation| match what {
        Observation::ContainerGone { id, .. } => Some(id.clone()),
        _ => None,
    };
    assert_eq!(seen.until("gone", gone).await, "c9");
    assert!(seen.list().await);
}

#[tokio::test]
async fn a_runtime_that_dies_is_down_until_it_is_back() {
    let place = SocketDir::new();
    let path = place.path("containerd.sock");
    let runtime = Cri::new("containerd").with("s1");
    let server = runtime.serve_for_now(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    seen.whole("s1").await;
    drop(server);
    let down = seen.source("containerd", SourceStatus::Down).await;
    assert!(!down.detail.is_empty());
    std::fs::remove_file(&path).unwrap();
    let missing = |what: &Observation| match what {
        Observation::Source(source) if source.detail.starts_with("no socket at") => {
            Some(source.status)
        }
        _ => None,
    };
    assert_eq!(seen.until("no socket", missing).await, SourceStatus::Down);
    let asked = runtime.calls("PodSandboxStatus");
    let _server = runtime.serve_for_now(&path);
    seen.source("containerd", SourceStatus::Degraded).await;
    // It is the same sandbox: nothing is requested twice.
    assert_eq!(seen.whole("s1").await.pid, Some(4711));
    assert_eq!(runtime.calls("PodSandboxStatus"), asked);
}

#[tokio::test]
async fn two_of_one_name_are_told_apart() {
    let place = SocketDir::new();
    let (a, b) = (place.path("a.sock"), place.path("b.sock"));
    Cri::new("containerd").with("same").serve(&a);
    Cri::new("containerd").with("same").serve(&b);
    let (_, mut first, mut seen) = run(&[(&a, CRI), (&b, CRI)], pace());
    first.wait().await;
    seen.settle().await;
    let mut names: Vec<_> = seen.sandboxes().map(|sandbox| sandbox.runtime.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[0], "containerd");
    assert!(names[1].starts_with("containerd (/") && names[1].ends_with(".sock)"), "{names:?}");
}

#[tokio::test]
async fn nobody_to_ask_is_said_until_somebody_appears() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    let (emit, mut seen) = Seen::channel();
    let (names, readings) = (Arc::default(), Readings::default());
    let parts = watch::Parts { names, pace: pace(), follow: true, emit, readings };
    found::start(vec![found::maybe(&path, Kind::Cri)], parts).await;
    let nobody = seen.source("runtime", SourceStatus::Disabled).await;
    assert_eq!(nobody.detail, find::NOBODY);
    assert_eq!(seen.all.len(), 1);

    Cri::new("cri-o").with("s1").serve(&path);
    let gone = |what: &Observation| match what {
        Observation::SourceGone { name } => Some(name.clone()),
        _ => None,
    };
    assert_eq!(seen.until("runtime is gone", gone).await, "runtime");
    seen.whole("s1").await;
}

#[tokio::test]
async fn a_runtime_is_renamed_once_it_says_its_name() {
    let place = SocketDir::new();
    let path = place.path("containerd.sock");
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    // A socket that is configured but does not exist is not reported as "no runtime".
    let down = seen.source("containerd", SourceStatus::Down).await;
    assert!(down.detail.starts_with("no socket at /"), "{}", down.detail);
    Cri::new("cri-o").serve(&path);
    let gone = |what: &Observation| match what {
        Observation::SourceGone { name } => Some(name.clone()),
        _ => None,
    };
    assert_eq!(seen.until("the former name", gone).await, "containerd");
    seen.source("cri-o", SourceStatus::Degraded).await;
}

#[tokio::test]
async fn switched_off_means_nobody_is_asked() {
    let (_, mut first, mut seen) = run(&[], pace());
    let off = seen.source("runtime", SourceStatus::Disabled).await;
    assert_eq!(off.detail, "switched off by the configuration");
    first.wait().await;
}

#[tokio::test]
async fn asking_lists_again_at_once() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o");
    runtime.serve(&path);
    let pace = Pace { poll: Duration::from_secs(3600), ..pace() };
    let (runtimes, _, mut seen) = run(&[(&path, CRI)], pace);
    seen.source("cri-o", SourceStatus::Degraded).await;
    seen.settle().await;
    let lists = runtime.calls("ListContainers");
    runtime.state().add("s1");
    runtimes.ask("containerd");
    seen.settle().await;
    assert_eq!(runtime.calls("ListContainers"), lists, "that was another one's name");
    runtimes.ask("cri-o");
    seen.whole("s1").await;
}

#[tokio::test]
async fn what_a_socket_speaks_is_found_out_by_asking() {
    let place = SocketDir::new();
    // Each has a name that suggests the other API.
    let (cri, docker) = (place.path("docker.sock"), place.path("some.sock"));
    Cri::new("cri-o").with("s1").serve(&cri);
    Docker::new("[]").serve(&docker);
    let (_, _, mut seen) = run(&[(&cri, None)], pace());
    seen.whole("s1").await;
    let (_, _, mut seen) = run(&[(&docker, None)], pace());
    seen.source("docker", SourceStatus::Active).await;
}

#[tokio::test]
async fn whoever_looks_once_subscribes_to_nothing() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("containerd").with("s1");
    runtime.state().services.insert(CONTAINERD_EVENTS);
    runtime.serve(&path);
    let (emit, mut seen) = Seen::channel();
    let sockets = Some(vec![Socket { path, kind: CRI }]);
    let (_, mut first) = begin(Settings { sockets, ..Settings::default() }, pace(), emit);
    seen.source("containerd", SourceStatus::Active).await;
    seen.whole("s1").await;
    first.wait().await;
    assert_eq!(runtime.calls("Subscribe") + runtime.calls("GetContainerEvents"), 0);
}

#[tokio::test]
async fn a_pod_in_the_hosts_netns_says_so() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o").with("s1");
    runtime.state().host_network = true;
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    let host = |what: &Observation| match what {
        Observation::Sandbox(sandbox) if sandbox.host_network => Some(sandbox.netns_path.clone()),
        _ => None,
    };
    assert_eq!(seen.until("a sandbox of the host's", host).await, None);
}

#[test]
fn every_usual_path_has_a_usual_name() {
    let names: Arc<names::Names> = Arc::default();
    let name = |path| names.seat(Path::new(path), None).unwrap().name();
    assert_eq!(name("/none/1/containerd.sock"), "containerd");
    assert_eq!(name("/none/crio.sock"), "cri-o");
    assert_eq!(name("/none/docker.sock"), "docker");
    assert_eq!(name("/none/cri-dockerd.sock"), "docker (/none/cri-dockerd.sock)");
}
