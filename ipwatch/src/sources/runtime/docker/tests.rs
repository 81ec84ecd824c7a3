use std::time::Duration;

use super::super::testing::{Docker, Seen, SocketDir, hurried, pace, run};
use super::super::{Kind, Pace, Runtimes};
use super::*;
use crate::fact::{Observation, SourceStatus};

const UID: &str = "7f3a2c1e-0000-4000-8000-000000000001";

/// A container as dockerd 20.10 lists it, shortened.
fn listed(id: &str, name: &str, state: &str, mode: &str) -> String {
    format!(
        r#"{{"Id":"{id}","Names":["/{name}","/other/alias"],"Image":"i","Command":"c","Created":1700000000,
        "Ports":[],"Labels":{{"a":"b"}},"State":"{state}","Status":"Up 5 minutes",
        "HostConfig":{{"NetworkMode":"{mode}"}},"NetworkSettings":{{"Networks":{{"bridge":
        {{"IPAddress":"172.17.0.2","GlobalIPv6Address":"","Gateway":"172.17.0.1"}}}}}},"Mounts":[]}}"#
    )
}

fn list(entries: &[String]) -> String {
    format!("[{}]", entries.join(","))
}

fn inspected(netns: &str) -> String {
    format!(
        r#"{{"Id":"x","State":{{"Status":"running","Running":true,"Dead":false,"Pid":812}},"Name":"/web",
        "NetworkSettings":{{"SandboxKey":"{netns}","Networks":{{}}}}}}"#
    )
}

fn found(entries: &[String]) -> Found {
    sorted("docker", &documents::read("test", list(entries).as_bytes()).unwrap())
}

fn start(engine: &Docker, place: &SocketDir, pace: Pace) -> (Runtimes, Seen) {
    let path = place.path("docker.sock");
    engine.serve(&path);
    let (runtimes, _, seen) = run(&[(&path, Some(Kind::Docker))], pace);
    (runtimes, seen)
}

#[test]
fn kubelets_containers_are_known_by_their_names() {
    let found = found(&[
        listed("s1", &format!("k8s_POD_api-0_shop_{UID}_3"), "running", "none"),
        listed("s2", &format!("k8s_POD_dns_kube-system_{UID}_0"), "running", "host"),
        listed("s3", &format!("k8s_POD_api-1_shop_{UID}_1_5eed"), "exited", "none"),
        listed("c1", &format!("k8s_main_api-0_shop_{UID}_7"), "running", "container:s1"),
    ]);
    let pod = |n: usize| {
        let sandbox: &Sandbox = &found.sandboxes[n];
        let pod = sandbox.pod.as_ref().unwrap();
        assert_eq!((pod.uid.as_deref(), sandbox.name.as_deref()), (Some(UID), None));
        (pod.namespace.as_str(), pod.name.as_str(), sandbox.attempt, sandbox.host_network)
    };
    assert_eq!(pod(0), ("shop", "api-0", Some(3), false));
    assert_eq!(pod(1), ("kube-system", "dns", Some(0), true));
    assert_eq!(pod(2), ("shop", "api-1", Some(1), false));
    assert_eq!(found.sandboxes[2].life, Life::Dead);
    let [container] = found.containers.as_slice() else { panic!("{:?}", found.containers) };
    assert_eq!(container.sandbox.as_deref(), Some("s1"));
    assert_eq!((container.name.as_deref(), container.life), (Some("main"), Life::Alive));
}

#[test]
fn any_other_container_with_a_netns_is_a_sandbox_without_a_pod() {
    let found = found(&[
        listed("a", "web", "running", "bridge"),
        listed("b", "agent", "paused", "host"),
        listed("c", "sidecar", "running", "container:web"),
        listed("d", "sidecar2", "running", "container:a"),
        listed("e", "k8s_not-quite_one", "created", "default"),
    ]);
    let sandboxes: Vec<_> = found
        .sandboxes
        .iter()
        .map(|one| (one.name.as_deref().unwrap(), one.host_network, one.pod.is_none(), one.life))
        .collect();
    assert_eq!(
        sandboxes,
        [
            ("web", false, true, Life::Alive),
            ("agent", true, true, Life::Alive),
            ("k8s_not-quite_one", false, true, Life::Unclear)
        ]
    );
    assert_eq!(found.sandboxes[0].ips, ["172.17.0.2".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(found.sandboxes[0].created, Some(1_700_000_000_000_000_000));
    let containers: Vec<_> = found.containers.iter().map(|one| one.sandbox.as_deref()).collect();
    assert_eq!(containers, [Some("a"), Some("a")]);
}

#[test]
fn every_state_is_told_in_dockers_words() {
    for (state, expected) in [
        ("running", Life::Alive),
        ("paused", Life::Alive),
        ("exited", Life::Dead),
        ("dead", Life::Dead),
        ("removing", Life::Dead),
        ("created", Life::Unclear),
        ("restarting", Life::Unclear),
    ] {
        let found = found(&[listed("a", "web", state, "bridge")]);
        assert_eq!((found.sandboxes[0].life, found.sandboxes[0].word.as_str()), (expected, state));
    }
    let found = found(&[listed("a", "web", "\\u001b[2J", "bridge")]);
    assert_eq!(
        (found.sandboxes[0].life, found.sandboxes[0].word.as_str()),
        (Life::Unclear, "unknown")
    );
}

#[test]
fn what_is_missing_or_hostile_spoils_no_other() {
    let found = found(&[
        r#"{"Id":"a"}"#.to_owned(),
        r#"{"Id":"b","Names":null,"HostConfig":null,"NetworkSettings":{"Networks":null}}"#
            .to_owned(),
        r#"{"Id":"c","NetworkSettings":{"Networks":{"n":null}},"Unknown":[[{}]]}"#.to_owned(),
        listed("../../secrets", "x", "running", "bridge"),
        listed("e", &"x".repeat(4000), "running", "container:../../secrets"),
    ]);
    assert_eq!((found.sandboxes.len(), found.dropped), (3, 1));
    let container = &found.containers[0];
    assert_eq!(container.sandbox, None);
    assert_eq!(container.name.as_ref().map(String::len), Some(512));
}

#[test]
fn a_list_is_bounded() {
    let json = format!("[{}{{\"Id\":\"a\"}}]", "{\"Id\":\"a\"},".repeat(20_000));
    let list: Capped<Listed> = documents::read("test", json.as_bytes()).unwrap();
    assert_eq!((list.items.len(), list.more), (16_384, 20_001 - 16_384));
}

#[tokio::test]
async fn a_new_container_is_asked_after_once_and_again_when_it_is_restarted() {
    let place = SocketDir::new();
    let engine = Docker::new(&list(&[listed("a", "web", "running", "bridge")]));
    engine.set("/containers/a/json", &inspected("/run/docker/netns/1"));
    let (_, mut seen) = start(&engine, &place, pace());
    let active = seen.source("docker", SourceStatus::Active).await;
    assert!(active.detail.starts_with("20.10.24, API 1.41, /"), "{}", active.detail);
    let sandbox = seen.whole("a").await;
    assert_eq!(
        (sandbox.pid, sandbox.netns_path.as_deref()),
        (Some(812), Some("/run/docker/netns/1"))
    );
    assert_eq!((sandbox.runtime.as_str(), sandbox.name.as_deref()), ("docker", Some("web")));
    engine.has_listener().await;
    seen.settle().await;
    let asked = |path: &str| engine.state().calls.iter().filter(|call| *call == path).count();
    assert_eq!(asked("/containers/a/json"), 1);

    engine.set("/containers/a/json", &inspected("/run/docker/netns/2"));
    engine.event(
        r#"{"Type":"container","Action":"start","Actor":{"ID":"a","Attributes":{}},"time":1}"#,
    );
    let second = |what: &Observation| match what {
        Observation::Sandbox(sandbox) => {
            sandbox.netns_path.clone().filter(|path| path.ends_with('2'))
        }
        _ => None,
    };
    seen.until("its new netns", second).await;
}

#[tokio::test]
async fn what_docker_removes_is_gone() {
    let place = SocketDir::new();
    let web = listed("a", "web", "running", "bridge");
    let engine = Docker::new(&list(&[web, listed("b", "side", "running", "container:a")]));
    engine.set("/containers/a/json", &inspected("/run/docker/netns/1"));
    let (_, mut seen) = start(&engine, &place, pace());
    seen.whole("a").await;
    engine.has_listener().await;
    engine.set("/containers/json", "[]");
    for id in ["b", "a"] {
        engine.event(&format!(r#"{{"Action":"destroy","Actor":{{"ID":"{id}"}}}}"#));
    }
    let gone = |what: &Observation| match what {
        Observation::ContainerGone { id, .. } => Some(format!("container {id}")),
        Observation::SandboxGone { id, .. } => Some(format!("sandbox {id}")),
        _ => None,
    };
    assert_eq!(seen.until("the container is gone", gone).await, "container b");
    assert_eq!(seen.until("the sandbox is gone", gone).await, "sandbox a");
    assert!(seen.list().await);
}

#[tokio::test]
async fn a_container_whose_lock_is_held_delays_no_list() {
    let place = SocketDir::new();
    let stuck = listed("stuck", "web", "running", "bridge");
    let engine = Docker::new(&list(&[stuck, listed("b", "api", "running", "bridge")]));
    engine.state().stuck.insert("/containers/stuck/json".into());
    engine.set("/containers/b/json", &inspected("/run/docker/netns/b"));
    let (runtimes, mut seen) = start(&engine, &place, hurried());
    seen.whole("b").await;
    assert!(seen.sandboxes().any(|sandbox| sandbox.id == "stuck"));
    runtimes.ask("docker");
    assert!(seen.list().await);
}

#[tokio::test]
async fn a_dead_container_has_nothing_left_to_ask_after() {
    let place = SocketDir::new();
    let engine = Docker::new(&list(&[listed("a", "web", "dead", "bridge")]));
    let (_, mut seen) = start(&engine, &place, pace());
    assert!(seen.list().await);
    seen.settle().await;
    assert!(!engine.state().calls.iter().any(|call| call.starts_with("/containers/a")));
}

#[tokio::test]
async fn a_huge_answer_is_not_read_to_the_end() {
    let place = SocketDir::new();
    let engine = Docker::new(&format!("[{}]", " ".repeat(17 << 20)));
    let (_, mut seen) = start(&engine, &place, pace());
    let down = seen.source("docker", SourceStatus::Down).await;
    assert!(down.detail.contains("more than 16 MiB"), "{}", down.detail);
}

#[tokio::test]
async fn podmans_socket_is_podmans() {
    let place = SocketDir::new();
    let engine = Docker::new("[]");
    let version =
        r#"{"Version":"4.3.1","ApiVersion":"1.41","Components":[{"Name":"Podman Engine"}]}"#;
    engine.set("/version", version);
    let (_, mut seen) = start(&engine, &place, pace());
    seen.source("podman", SourceStatus::Active).await;
}

#[tokio::test]
async fn a_line_without_end_ends_the_stream_and_not_the_source() {
    let place = SocketDir::new();
    let engine = Docker::new("[]");
    // A stream that lasted longer would be requested again.
    let pace = Pace { poll: Duration::from_secs(3600), ..pace() };
    let (_, mut seen) = start(&engine, &place, pace);
    seen.source("docker", SourceStatus::Active).await;
    engine.has_listener().await;
    let line = "x".repeat(300 << 10);
    for _ in 0..5 {
        engine.send(&line);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let degraded = seen.source("docker", SourceStatus::Degraded).await;
    assert!(degraded.detail.starts_with("polled"), "{}", degraded.detail);
}
