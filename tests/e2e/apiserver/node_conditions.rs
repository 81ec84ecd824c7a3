//! Conditions of a Node in a real API server, written with exactly the rights in our manifests; and the same conditions
//! as node-problem-detector's custom plugin reads them from the same daemon.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use support::poll::until;
use support::{Daemon, Lab};

use super::{Cluster, SOON, await_status};

support::tests! {
    // The condition is about every finding of the machine.
    a_held_ip_is_a_condition_of_the_node_until_it_is_over needs [ApiServer, FakeCri] @ Alone,
}

/// The daemon's RBAC rules for conditions.
const RIGHTS: &str = include_str!("../../../deploy/kubernetes/api/node-conditions.yaml");
const POLICY: &str = include_str!("../../../deploy/kubernetes/api/node-conditions-policy.yaml");
const PLUGIN: &str = include_str!("../../../deploy/node-problem-detector/ipwatch.json");
const HELD: &str = "PodIPHeld";
const OURS: [&str; 3] = ["PodIPExhausted", HELD, "PodIPConflict"];

fn path(node: &str) -> String {
    format!("/api/v1/nodes/{node}")
}

/// A condition of a node.
fn condition(cluster: &Cluster<'_>, node: &str, name: &str) -> Option<Value> {
    let node = cluster.control.api().get(&path(node)).expect("the node");
    let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|one| one["type"] == name)
}

/// Waits until the condition about held IPs has this status.
#[track_caller]
fn await_held(cluster: &Cluster<'_>, status: &str) -> Value {
    let mut last = None;
    until(&format!("{HELD} is {status}"), SOON * 2, || {
        last = condition(cluster, cluster.lab.tag(), HELD);
        last.as_ref().is_some_and(|one| one["status"] == status)
    });
    last.unwrap_or_default()
}

/// What node-problem-detector's plugin says of a condition: its exit code and its line.
fn detector(daemon: &Daemon, lab: &Lab, name: &str) -> (Option<i32>, String) {
    let plugin: Value = serde_json::from_str(PLUGIN).expect("a configuration");
    let rules = plugin["rules"].as_array().expect("rules");
    let rule = rules.iter().find(|rule| rule["condition"] == name).expect("a rule");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/node-problem-detector");
    let installed = rule["path"].as_str().expect("a path").rsplit('/').next().expect("a name");
    let program = lab.dir().join("ipwatch-here");
    let (binary, socket) = (support::daemon::binary(), daemon.socket().display());
    let text = format!("#!/bin/sh\nexec '{}' --socket '{socket}' \"$@\"\n", binary.display());
    std::fs::write(&program, text).expect("write a program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .expect("make it one");
    let args = rule["args"].as_array().expect("arguments").iter().filter_map(Value::as_str);
    let out = Command::new(script.join(installed)).args(args).env("IPWATCH", &program).output();
    let out = out.expect("run the plugin");
    let line = String::from_utf8_lossy(&out.stdout).trim_end().to_owned();
    (out.status.code(), line)
}

fn a_held_ip_is_a_condition_of_the_node_until_it_is_over(lab: &Lab) {
    let mut cluster = Cluster::start(lab, &[]);
    let (own, other) = (lab.tag().to_owned(), format!("{}-b", lab.tag()));
    for name in [&own, &other] {
        cluster.control.api().create("/api/v1/nodes", &json!({ "metadata": { "name": name } }));
    }
    // As kubelet has written it.
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    let status = format!("{}/status", path(&own));
    cluster.control.api().ask("PATCH", &status, Some(&ready)).expect("kubelet's condition");
    let config = cluster.config().line(&format!("{}\nnode_conditions = true", cluster.lines()));

    // Without the right nothing is written, and `doctor` says why.
    let daemon = Daemon::start(lab, &config);
    let sink = |daemon: &Daemon| daemon.source("kubernetes_node_conditions").unwrap_or_default();
    until("it is refused", SOON, || sink(&daemon)["detail"].to_string().contains("403"));
    let _ = daemon.stop();
    rights(&cluster, &own, &other);

    let daemon = Daemon::start(lab, &config);
    await_status(&daemon, &["active"]);
    daemon.await_source("containerd");
    let first = &cluster.pods[0];
    daemon.await_ip(&first.ip, first.netns.inode);
    let clear = await_held(&cluster, "False");
    assert_eq!(clear["reason"], "NoIPHeld", "{clear:#}");
    assert_eq!(detector(&daemon, lab, HELD), (Some(0), String::new()));

    cluster.force_delete(&first.paper.name);
    let held = await_held(&cluster, "True");
    assert_eq!(held["reason"], "IpHeldByDeletedPod", "{held:#}");
    let message = held["message"].as_str().expect("a message").to_owned();
    assert!(message.contains(&first.ip) && message.contains("ipwatch explain "), "{message}");
    let (code, line) = detector(&daemon, lab, HELD);
    let id = message.rsplit(' ').next().expect("an id").trim_end_matches(')');
    assert_eq!(code, Some(1), "{line}");
    assert_eq!(line, format!("ip-held-by-deleted-pod {} (ipwatch explain {id})", first.ip));
    assert_eq!(detector(&daemon, lab, "PodIPConflict").0, Some(0));

    // The pod ends.
    let gone = cluster.pods.remove(0);
    let lines =
        cluster.pods.iter().map(|pod| support::fake_cri::FakeCri::lines(&pod.paper, "READY"));
    cluster.runtime.has(&lines.collect::<String>());
    drop(gone);
    let clear = await_held(&cluster, "False");
    assert_eq!(clear["reason"], "NoIPHeld", "{clear:#}");

    // Another one is held. After a crash that is taken up again: no transition.
    cluster.force_delete(&cluster.pods[0].paper.name);
    let held = await_held(&cluster, "True");
    daemon.crash();
    let daemon = Daemon::start(lab, &config);
    daemon.await_firing(super::CODE, SOON, |_| true);
    until("it is told", SOON, || sink(&daemon)["detail"].to_string().contains("PodIPHeld True"));
    let again = await_held(&cluster, "True");
    assert_eq!(again["lastTransitionTime"], held["lastTransitionTime"], "{again:#}");
    let kubelets = condition(&cluster, &own, "Ready").expect("kubelet's condition");
    assert_eq!(kubelets["status"], "True", "{kubelets:#}");
    assert!(OURS.iter().all(|name| condition(&cluster, &other, name).is_none()), "its own alone");
    removed(&cluster, &own);
    let _ = daemon.stop();
}

/// The rights in our manifests allow to read a Node, to patch its status, and nothing else. They cannot be limited to one node:
/// that is the policy's part, or the node authorizer's for kubelet's own credentials.
fn rights(cluster: &Cluster<'_>, own: &str, other: &str) {
    let control = &cluster.control;
    control.grant(RIGHTS);
    let agent = control.as_agent();
    let patch = json!({ "status": { "conditions": [{ "type": HELD, "status": "Unknown" }] } });
    let status = |node: &str| format!("{}/status", path(node));
    until("the rights are there", 20, || {
        agent.ask("PATCH", &status(own), Some(&json!({}))).is_ok()
    });
    let cordon = json!({ "spec": { "unschedulable": true } });
    let refused = [
        ("PATCH", path(own), Some(&cordon)),
        ("GET", "/api/v1/nodes".to_owned(), None),
        ("DELETE", path(other), None),
    ];
    for (method, at, body) in refused {
        let answer = agent.ask(method, &at, body);
        assert!(answer.as_ref().is_err_and(|why| why.starts_with("403")), "{method}: {answer:?}");
    }
    let kubelet = control.as_kubelet();
    let answer = kubelet.ask("PATCH", &status(other), Some(&patch));
    assert!(answer.as_ref().is_err_and(|why| why.starts_with("403")), "{answer:?}");
    kubelet.ask("PATCH", &status(own), Some(&json!({}))).expect("its own");
    // The policy is about the same account, and about these conditions.
    for known in OURS.iter().copied().chain(["system:serviceaccount:ipwatch:ipwatch"]) {
        assert!(POLICY.contains(known), "{known}");
    }
}

/// The command in docs/kubernetes.md that takes the conditions away.
fn removed(cluster: &Cluster<'_>, own: &str) {
    let docs = include_str!("../../../docs/kubernetes.md");
    let line = docs.lines().find(|line| line.contains("\"$patch\"")).expect("the patch");
    let patch = line.split('\'').nth(1).expect("within quotes");
    let patch: Value = serde_json::from_str(patch).expect("JSON");
    let status = format!("{}/status", path(own));
    cluster.control.api().ask("PATCH", &status, Some(&patch)).expect("it is taken");
    assert!(OURS.iter().all(|name| condition(cluster, own, name).is_none()));
    assert!(condition(cluster, own, "Ready").is_some());
}
