//! Whole runtimes, against fake ones in this process.

use std::path::Path;
use std::time::Duration;

use super::cri::messages::{ContainerDelete, PodSandbox, TaskExit};
use super::find::tests as found;
use super::testing::{
    CONTAINERD_EVENTS, Cri, Docker, PATIENCE, Place, Seen, V1, V1ALPHA2, hurried, pace, run, says,
};
use super::*;
use crate::fact::{Life, Origin, Scope, SourceStatus, What};

const CRI: Option<Kind> = Some(Kind::Cri);

#[tokio::test]
async fn a_list_is_told_whole_and_then_where_each_sandbox_is() {
    let place = Place::new();
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
    let begin = seen.all.first().unwrap();
    let scope = Scope::Runtime { runtime: "containerd".into() };
    assert_eq!(begin.what, What::Began(scope.clone()));
    let at = seen.all.iter().take_while(|fact| !matches!(fact.what, What::Ended { .. }));
    assert!(at.clone().count() == 4 && at.clone().all(|fact| fact.at == begin.at));
    let ended = What::Ended { scope, began: begin.at, complete: true };
    assert_eq!(seen.all[4].what, ended);
}

#[tokio::test]
async fn a_runtime_that_hangs_is_down_and_delays_nobody() {
    let place = Place::new();
    let (mute, fine) = (place.path("containerd.sock"), place.path("b.sock"));
    says(&mute, b"");
    Cri::new("cri-o").with("s1").serve(&fine);
    let mut pace = hurried();
    pace.short = Duration::from_secs(3600);
    let (_, mut first, mut seen) = run(&[(&mute, CRI), (&fine, CRI)], pace);
    seen.whole("s1").await;
    assert!(tokio::time::timeout(Duration::from_millis(20), first.wait()).await.is_err());

    // With a deadline.
    let (_, mut first, mut seen) = run(&[(&mute, CRI)], hurried());
    let down = seen.source("containerd", SourceStatus::Down).await;
    assert!(down.detail.starts_with("no answer to the version within"), "{}", down.detail);
    first.wait().await;
    assert!(seen.all.iter().all(|fact| matches!(fact.what, What::Source(_))));
}

#[tokio::test]
async fn the_first_judgement_waits_for_nobody_for_ever() {
    let place = Place::new();
    let path = place.path("a.sock");
    says(&path, b"");
    let pace = Pace { first: Duration::from_millis(100), ..pace() };
    let (_, mut first, mut seen) = run(&[(&path, CRI)], pace);
    tokio::time::timeout(PATIENCE / 2, first.wait()).await.unwrap();
    // And it knows then that somebody is missing.
    seen.settle().await;
    let told = seen.all.iter().any(|fact| match &fact.what {
        What::Source(source) => source.status == SourceStatus::Down,
        _ => false,
    });
    assert!(told, "{:?}", seen.all);
}

#[tokio::test]
async fn garbage_is_no_answer() {
    let place = Place::new();
    for (file, garbage, kind) in [
        ("a.sock", &b"SSH-2.0-OpenSSH_9.2\r\n"[..], CRI),
        ("b.sock", b"\x00\x00\xff\x04\x00\x00\x00\x00\x00", CRI),
        ("c.sock", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{]", Some(Kind::Docker)),
        ("d.sock", b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n", Some(Kind::Docker)),
        ("e.sock", b"\x16\x03\x01", Some(Kind::Docker)),
        ("f.sock", b"SSH-2.0-OpenSSH_9.2\r\n", None),
    ] {
        let path = place.path(file);
        says(&path, garbage);
        let (_, mut first, mut seen) = run(&[(&path, kind)], hurried());
        let name = format!("runtime ({})", path.display());
        let down = seen.source(&name, SourceStatus::Down).await;
        assert!(down.detail.ends_with(file), "{}", down.detail);
        first.wait().await;
    }
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_the_end() {
    let place = Place::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o").with("s1");
    let huge = vec![b'x'; 17 << 20].into();
    runtime.state().sandboxes.items.push(PodSandbox { id: huge, ..PodSandbox::default() });
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    let down = seen.source("cri-o", SourceStatus::Down).await;
    assert!(down.detail.contains("more than 16 MiB"), "{}", down.detail);
    assert_eq!(seen.sandboxes().count(), 0);
}

#[tokio::test]
async fn ten_thousand_containers_are_told_and_more_than_the_bound_are_not_forgotten() {
    let place = Place::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o").with("s1");
    for n in 0..10_000 {
        runtime.state().add_container(&format!("c{n}"), "s1", "main", 1);
    }
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    assert!(seen.list().await);
    assert_eq!(seen.containers().count(), 10_000);

    for n in 10_000..20_000 {
        runtime.state().add_container(&format!("c{n}"), "s1", "main", 1);
    }
    let degraded = |what: &What| match what {
        What::Source(source) if source.detail.contains("3616 entries") => Some(source.status),
        _ => None,
    };
    assert_eq!(seen.until("too many", degraded).await, SourceStatus::Degraded);
    let ended = seen.all.iter().rev().find_map(|fact| match fact.what {
        What::Ended { complete, .. } => Some(complete),
        _ => None,
    });
    assert_eq!(ended, Some(false));
}

#[tokio::test]
async fn hostile_names_are_bounded_and_hostile_ids_left_out() {
    let place = Place::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o").with("s1");
    {
        let mut state = runtime.state();
        let metadata = state.sandboxes.items[0].metadata.as_mut().unwrap();
        metadata.name = "p".repeat(253).into();
        metadata.namespace = vec![0xff; 4000].into();
        state.add_container("c1", "s1", "\u{1b}[2J\nname", 7);
        state.add_container("../../etc", "s1", "x", 1);
        state.add_container("c1", "s1", "again", 1);
    }
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    assert!(!seen.list().await, "two containers were left out");
    let pod = seen.sandboxes().next().unwrap().pod.clone().unwrap();
    assert_eq!(pod.name.len(), 253);
    assert!(pod.namespace.len() <= 512);
    let containers: Vec<_> = seen.containers().collect();
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0].name.as_deref(), Some("\u{1b}[2J\nname"));
    assert_eq!((containers[0].life, containers[0].word.as_str()), (Life::Unclear, "Unknown"));
}

#[tokio::test]
async fn the_older_api_is_spoken_where_only_that_is() {
    let place = Place::new();
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
    let place = Place::new();
    let path = place.path("containerd.sock");
    let runtime = Cri::new("containerd");
    runtime.state().services.clear();
    runtime.serve(&path);
    let (_, mut first, mut seen) = run(&[(&path, CRI)], pace());
    let off = seen.source("containerd", SourceStatus::Disabled).await;
    assert!(off.detail.contains("offers no CRI"), "{}", off.detail);
    first.wait().await;

    runtime.state().services = [V1].into();
    seen.list().await;
    runtime.state().services.clear();
    seen.source("containerd", SourceStatus::Down).await;
}

#[tokio::test]
async fn without_events_it_is_polled() {
    let place = Place::new();
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
    let place = Place::new();
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
    let dead = |what: &What| match what {
        What::Sandbox(sandbox) if sandbox.life == Life::Dead => Some(sandbox.clone()),
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
    let gone = |what: &What| match what {
        What::SandboxGone { runtime, id } => Some((runtime.clone(), id.clone())),
        _ => None,
    };
    assert_eq!(seen.until("gone", gone).await, ("containerd".into(), "s1".into()));
    assert!(seen.list().await);
    // kubelet's share of the events is left to it.
    assert_eq!(runtime.calls("GetContainerEvents"), 0);
}

#[tokio::test]
async fn an_event_of_the_cri_does_the_same() {
    let place = Place::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o").with("s1");
    runtime.state().cri_events = Some(tokio::sync::broadcast::channel(4).0);
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    seen.source("cri-o", SourceStatus::Active).await;
    runtime.has_listener().await;
    seen.settle().await;
    runtime.removes("c9");
    let gone = |what: &What| match what {
        What::ContainerGone { id, .. } => Some(id.clone()),
        _ => None,
    };
    assert_eq!(seen.until("gone", gone).await, "c9");
    assert!(seen.list().await);
}

#[tokio::test]
async fn a_runtime_that_dies_is_down_until_it_is_back() {
    let place = Place::new();
    let path = place.path("containerd.sock");
    let runtime = Cri::new("containerd").with("s1");
    let server = runtime.serve_for_now(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    seen.whole("s1").await;
    drop(server);
    let down = seen.source("containerd", SourceStatus::Down).await;
    assert!(!down.detail.is_empty());
    std::fs::remove_file(&path).unwrap();
    let missing = |what: &What| match what {
        What::Source(source) if source.detail.starts_with("no socket at") => Some(source.status),
        _ => None,
    };
    assert_eq!(seen.until("no socket", missing).await, SourceStatus::Down);
    let asked = runtime.calls("PodSandboxStatus");
    let _server = runtime.serve_for_now(&path);
    seen.source("containerd", SourceStatus::Degraded).await;
    // It is the same sandbox: nothing is asked twice.
    assert_eq!(seen.whole("s1").await.pid, Some(4711));
    assert_eq!(runtime.calls("PodSandboxStatus"), asked);
}

#[tokio::test]
async fn two_of_one_name_are_told_apart() {
    let place = Place::new();
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
    let place = Place::new();
    let path = place.path("a.sock");
    let (emit, mut seen) = Seen::channel();
    let names = Arc::default();
    let parts = watch::Parts { names, pace: pace(), follow: true, emit };
    found::start(vec![found::maybe(&path, Kind::Cri)], parts).await;
    let nobody = seen.source("runtime", SourceStatus::Disabled).await;
    assert_eq!(nobody.detail, find::NOBODY);
    assert_eq!(seen.all.len(), 1);

    Cri::new("cri-o").with("s1").serve(&path);
    let gone = |what: &What| match what {
        What::SourceGone { name } => Some(name.clone()),
        _ => None,
    };
    assert_eq!(seen.until("runtime is gone", gone).await, "runtime");
    seen.whole("s1").await;
}

#[tokio::test]
async fn a_runtime_is_renamed_once_it_says_its_name() {
    let place = Place::new();
    let path = place.path("containerd.sock");
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    // Named, but not there: that is no "nobody".
    let down = seen.source("containerd", SourceStatus::Down).await;
    assert!(down.detail.starts_with("no socket at /"), "{}", down.detail);
    Cri::new("cri-o").serve(&path);
    let gone = |what: &What| match what {
        What::SourceGone { name } => Some(name.clone()),
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
async fn a_sandbox_that_cannot_be_asked_after_keeps_no_other_waiting() {
    let place = Place::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o").with("s1").with("s2");
    runtime.state().stuck.insert("s1".into());
    runtime.serve(&path);
    let (_, mut first, mut seen) = run(&[(&path, CRI)], hurried());
    seen.whole("s2").await;
    first.wait().await;
    seen.settle().await;
    assert!(seen.sandboxes().any(|sandbox| sandbox.id == "s1"));
    assert!(!seen.sandboxes().any(|one| one.id == "s1" && one.netns_path.is_some()));
    // Not with every list: that would be 2 s of a thread in the runtime each time.
    let asked = runtime.calls("PodSandboxStatus");
    assert_eq!(asked, 2);
}

#[tokio::test]
async fn asking_lists_again_at_once() {
    let place = Place::new();
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
    let place = Place::new();
    // Each behind a name that lets the other be expected.
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
    let place = Place::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("containerd").with("s1");
    runtime.state().services.insert(CONTAINERD_EVENTS);
    runtime.serve(&path);
    let (emit, mut seen) = Seen::channel();
    let sockets = Some(vec![Socket { path, kind: CRI }]);
    let (_, mut first) = begin(Settings { sockets, follow: false }, pace(), emit);
    seen.source("containerd", SourceStatus::Active).await;
    seen.whole("s1").await;
    first.wait().await;
    assert_eq!(runtime.calls("Subscribe") + runtime.calls("GetContainerEvents"), 0);
}

#[tokio::test]
async fn a_pod_in_the_hosts_netns_says_so() {
    let place = Place::new();
    let path = place.path("a.sock");
    let runtime = Cri::new("cri-o").with("s1");
    runtime.state().host_network = true;
    runtime.serve(&path);
    let (_, _, mut seen) = run(&[(&path, CRI)], pace());
    assert!(seen.whole("s1").await.host_network);
}

/// What is logged in this thread, down to the last detail.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_secret_of_a_verbose_answer_is_told_or_logged() {
    const TOKEN: &str = "c4n4ry-t0ken";
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);

    let place = Place::new();
    let (cri, docker) = (place.path("a.sock"), place.path("docker.sock"));
    let runtime = Cri::new("cri-o").with("s1").with("s2");
    let verbose = format!(
        r#"{{"pid":1,"config":{{"annotations":{{"k":"{TOKEN}"}}}},"runtimeSpec":{{"process":
        {{"env":["T={TOKEN}"],"args":["{TOKEN}"]}},"annotations":{{"a":"{TOKEN}"}},"linux":{{
        "namespaces":[{{"type":"network","path":"/run/netns/s1"}}]}}}},"cniResult":"{TOKEN}"}}"#
    );
    runtime.state().info.insert("s1".into(), verbose);
    // Not JSON at all, where an error might quote it.
    runtime.state().info.insert("s2".into(), format!("{{\"pid\":\"{TOKEN}\"}}"));
    runtime.serve(&cri);
    let listed = format!(
        r#"[{{"Id":"d1","Names":["/a"],"State":"running","Command":"{TOKEN}","Labels":{{"l":"{TOKEN}"}},
        "Mounts":[{{"Source":"{TOKEN}"}}],"HostConfig":{{"NetworkMode":"bridge","Annotations":
        {{"a":"{TOKEN}"}}}}}}]"#
    );
    let engine = Docker::new(&listed);
    let inspected = format!(
        r#"{{"Args":["{TOKEN}"],"Config":{{"Env":["T={TOKEN}"],"Labels":{{"l":"{TOKEN}"}}}},
        "State":{{"Status":"running","Pid":7,"Error":"{TOKEN}"}},
        "NetworkSettings":{{"SandboxKey":"/run/docker/netns/d1"}}}}"#
    );
    engine.set("/containers/d1/json", &inspected);
    engine.serve(&docker);
    let (_, _, mut seen) = run(&[(&cri, CRI), (&docker, Some(Kind::Docker))], pace());
    let wait = async {
        let (mut one, mut other) = (false, false);
        while !(one && other) {
            match seen.until("a sandbox", whole_id).await.as_str() {
                "s1" => one = true,
                _ => other = true,
            }
        }
    };
    wait.await;
    engine.has_listener().await;
    engine.event(&format!(
        r#"{{"Action":"start","Actor":{{"ID":"d1","Attributes":{{"l":"{TOKEN}"}}}}}}"#
    ));
    // Not what dockerd says.
    engine.set("/containers/json", &format!(r#"[{{"Id":["{TOKEN}"]}}]"#));
    seen.source("docker", SourceStatus::Down).await;

    let facts = serde_json::to_string(&seen.all).unwrap();
    assert!(facts.contains("/run/netns/s1") && facts.contains("/run/docker/netns/d1"));
    assert!(!facts.contains(TOKEN), "{facts}");
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(log.contains("ipwatch"), "something was logged");
    let line = log.lines().find(|line| line.contains(TOKEN));
    assert_eq!(line, None);
}

fn whole_id(what: &What) -> Option<String> {
    match what {
        What::Sandbox(sandbox) if sandbox.netns_path.is_some() => Some(sandbox.id.clone()),
        _ => None,
    }
}

#[test]
fn every_usual_path_has_a_usual_name() {
    let names: Arc<names::Names> = Arc::default();
    let name = |path| names.seat(Path::new(path)).unwrap().name();
    assert_eq!(name("/none/1/containerd.sock"), "containerd");
    assert_eq!(name("/none/crio.sock"), "cri-o");
    assert_eq!(name("/none/docker.sock"), "docker");
    assert_eq!(name("/none/cri-dockerd.sock"), "docker (/none/cri-dockerd.sock)");
}
