//! Runtimes that hang, lie or leak.

use std::time::Duration;

use super::super::cri::messages::PodSandbox;
use super::super::testing::{Cri, Docker, PATIENCE, SocketDir, hurried, pace, run, says};
use super::super::{Kind, Pace};
use super::CRI;
use crate::fact::{Life, Observation, SourceStatus};
use crate::testing::{Log, hear};

#[tokio::test]
async fn a_runtime_that_hangs_is_down_and_delays_nobody() {
    let place = SocketDir::new();
    let (mute, fine) = (place.path("containerd.sock"), place.path("b.sock"));
    says(&mute, b"");
    Cri::new("cri-o").with("s1").serve(&fine);
    let mut pace = hurried();
    pace.short = Duration::from_secs(3600);
    let (_, mut first, mut seen) = run(&[(&mute, CRI), (&fine, CRI)], pace);
    seen.whole("s1").await;
    assert!(tokio::time::timeout(Duration::from_millis(20), first.wait()).await.is_err());

    // With a timeout.
    let (_, mut first, mut seen) = run(&[(&mute, CRI)], hurried());
    let down = seen.source("containerd", SourceStatus::Down).await;
    assert!(down.detail.starts_with("no answer to the version within"), "{}", down.detail);
    first.wait().await;
    assert!(seen.all.iter().all(|fact| matches!(fact.what, Observation::Source(_))));
}

#[tokio::test]
async fn the_first_judgement_waits_for_nobody_for_ever() {
    let place = SocketDir::new();
    let path = place.path("a.sock");
    says(&path, b"");
    let pace = Pace { first: Duration::from_millis(100), ..pace() };
    let (_, mut first, mut seen) = run(&[(&path, CRI)], pace);
    tokio::time::timeout(PATIENCE / 2, first.wait()).await.unwrap();
    // It is then known that one runtime is missing.
    seen.settle().await;
    let told = seen.all.iter().any(|fact| match &fact.what {
        Observation::Source(source) => source.status == SourceStatus::Down,
        _ => false,
    });
    assert!(told, "{:?}", seen.all);
}

#[tokio::test]
async fn garbage_is_no_answer() {
    let place = SocketDir::new();
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
    let place = SocketDir::new();
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
    let place = SocketDir::new();
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
    let degraded = |what: &Observation| match what {
        Observation::Source(source) if source.detail.contains("3616 entries") => {
            Some(source.status)
        }
        _ => None,
    };
    assert_eq!(seen.until("too many", degraded).await, SourceStatus::Degraded);
    let ended = seen.all.iter().rev().find_map(|fact| match fact.what {
        Observation::Ended { complete, .. } => Some(complete),
        _ => None,
    });
    assert_eq!(ended, Some(false));
}

#[tokio::test]
async fn hostile_names_and_ids_are_left_out() {
    let place = SocketDir::new();
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
    assert_eq!(seen.sandboxes().next().unwrap().pod, None, "of a namespace that is none");
    let containers: Vec<_> = seen.containers().collect();
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0].name, None);
    assert_eq!((containers[0].life, containers[0].word.as_str()), (Life::Unclear, "Unknown"));
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_asked_after_keeps_no_other_waiting() {
    let place = SocketDir::new();
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
    // Not with every list: that would occupy a thread of the runtime for 2 s each time.
    let asked = runtime.calls("PodSandboxStatus");
    assert_eq!(asked, 2);
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
    let _logging = hear(subscriber);

    let place = SocketDir::new();
    let (cri, docker) = (place.path("a.sock"), place.path("docker.sock"));
    let runtime = Cri::new("cri-o").with("s1").with("s2");
    let verbose = format!(
        r#"{{"pid":1,"config":{{"annotations":{{"k":"{TOKEN}"}}}},"runtimeSpec":{{"process":
        {{"env":["T={TOKEN}"],"args":["{TOKEN}"]}},"annotations":{{"a":"{TOKEN}"}},"linux":{{
        "namespaces":[{{"type":"network","path":"/run/netns/s1"}}]}}}},"cniResult":"{TOKEN}"}}"#
    );
    runtime.state().info.insert("s1".into(), verbose);
    // Not the expected JSON, and an error might quote it.
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
    // Not a valid answer of dockerd.
    engine.set("/containers/json", &format!(r#"[{{"Id":"d1","Created":"{TOKEN}"}}]"#));
    seen.source("docker", SourceStatus::Down).await;

    let facts = serde_json::to_string(&seen.all).unwrap();
    assert!(facts.contains("/run/netns/s1") && facts.contains("/run/docker/netns/d1"));
    assert!(!facts.contains(TOKEN), "{facts}");
    let log = log.text();
    assert!(log.contains("ipwatch"), "something was logged");
    let line = log.lines().find(|line| line.contains(TOKEN));
    assert_eq!(line, None);
}

fn whole_id(what: &Observation) -> Option<String> {
    match what {
        Observation::Sandbox(sandbox) if sandbox.netns_path.is_some() => Some(sandbox.id.clone()),
        _ => None,
    }
}
