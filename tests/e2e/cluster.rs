//! `ipwatch cluster scan` against a real API server: the pool of five IPs in R4, two of which a crashed node has
//! leaked, and the commands that free exactly those two, run by a real kubectl. Neither Whereabouts nor kubelet runs.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use support::kubernetes::stores::POOLS;
use support::kubernetes::{Api, ControlPlane};
use support::poll::until;
use support::{Lab, daemon, helm, remedy};

support::tests! {
    a_crashed_nodes_allocations_are_found_and_freed needs [ApiServer, Helm],
}

const CRDS: [&str; 3] = [
    include_str!("../fixtures/crds/whereabouts-ippools.yaml"),
    include_str!("../fixtures/crds/whereabouts-overlapping.yaml"),
    include_str!("../fixtures/crds/net-attach-def.yaml"),
];
const RIGHTS: &str = include_str!("../../deploy/kubernetes/api/cluster-scan.yaml");
const OVERLAPPING: &str =
    "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/overlappingrangeipreservations";
const NETWORKS: &str = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions";
/// The name of the pool.
const POOL: &str = "192.168.7.0-27";

fn yaml(text: &str) -> Value {
    serde_norway::from_str(text).expect("an object")
}

/// Runs the scan with the rights of the kubeconfig.
fn scan(config: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(daemon::binary());
    command.args(["cluster", "scan", "--settle", "1s", "--kubeconfig"]).arg(config).args(words);
    command.env_remove("IPWATCH_HOST_ROOT").output().expect("run ipwatch")
}

fn document(config: &Path) -> Value {
    let out = scan(config, &["-o", "json"]);
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("a document")
}

/// Creates the cluster of R4, after its node `crashed` was deleted.
fn crash(api: &Api) {
    for crd in CRDS {
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &yaml(crd));
    }
    until("the definitions are served", 60, || {
        [POOLS, OVERLAPPING, NETWORKS].iter().all(|path| api.get(path).is_ok())
    });
    let node = |name: &str| json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}});
    for name in ["node-1", "node-2"] {
        api.create("/api/v1/nodes", &node(name));
    }
    let ipam = json!({"type": "whereabouts", "range": "192.168.7.0/27",
                      "range_start": "192.168.7.10", "range_end": "192.168.7.14"});
    let config = json!({"cniVersion": "0.3.1", "type": "ipvlan", "mode": "l2", "ipam": ipam});
    let meta = |name: &str| json!({"name": name});
    api.create(
        NETWORKS,
        &json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": meta("ipvlan"), "spec": {"config": config.to_string()},
        }),
    );
    for (n, name) in ["web-0", "web-1", "web-2"].iter().enumerate() {
        pod(api, name, &format!("node-{}", n % 2 + 1), n);
    }
    // The pods affected by the exhausted pool: one on a node, one that could not be scheduled.
    waiting(api, "victim-0", Some("node-1"));
    waiting(api, "victim-1", None);
    api.create(POOLS, &json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool", "metadata": meta(POOL),
        "spec": {"range": "192.168.7.0/27", "allocations": {
            "10": {"id": "1111", "podref": "default/web-0"},
            "11": {"id": "dead-1"},
            "12": {"id": "2222", "podref": "default/web-1"},
            "13": {"id": "dead-2"},
            "14": {"id": "3333"},
        }},
    }));
    for (at, podref) in [
        (10, "default/web-0"),
        (11, "default/old-0"),
        (12, "default/web-1"),
        (13, "default/old-1"),
        (14, "default/web-2"),
    ] {
        api.create(OVERLAPPING, &json!({
            "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
            "metadata": meta(&format!("192.168.7.{at}")), "spec": {"podref": podref},
        }));
    }
}

/// A pod as reported by kubelet and Multus.
fn pod(api: &Api, name: &str, node: &str, n: usize) {
    let (own, second) = (format!("10.244.{n}.2"), format!("192.168.7.{}", 10 + 2 * n));
    let status = json!([
        {"name": "cbr0", "interface": "eth0", "ips": [own], "default": true},
        {"name": "default/ipvlan", "interface": "net1", "ips": [second]},
    ]);
    let path = "/api/v1/namespaces/default/pods";
    let mut object = api.create(path, &json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"k8s.v1.cni.cncf.io/network-status": status.to_string()}},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "app"}]},
    }));
    object["status"] = json!({"phase": "Running", "podIP": own, "podIPs": [{"ip": own}]});
    let told = api.ask("PUT", &format!("{path}/{name}/status"), Some(&object));
    told.unwrap_or_else(|error| panic!("the status of {name}: {error}"));
}

/// A pod that waits for an IP of the pool.
fn waiting(api: &Api, name: &str, node: Option<&str>) {
    api.create(
        "/api/v1/namespaces/default/pods",
        &json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": {"k8s.v1.cni.cncf.io/networks": "ipvlan"}},
            "spec": {"nodeName": node, "containers": [{"name": "app", "image": "app"}]},
        }),
    );
}

/// A pod of ipwatch on a node, with the labels of the manifests.
fn agent_pod(api: &Api, node: &str) {
    let path = "/api/v1/namespaces/default/pods";
    let mut object = api.create(path, &json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "ipwatch-x", "labels": {"app.kubernetes.io/name": "ipwatch"}},
        "spec": {"nodeName": node, "hostNetwork": true, "containers": [{"name": "ipwatch", "image": "ipwatch"}]},
    }));
    object["status"] = json!({"phase": "Running"});
    let told = api.ask("PUT", &format!("{path}/ipwatch-x/status"), Some(&object));
    told.unwrap_or_else(|error| panic!("the status of ipwatch-x: {error}"));
}

/// The IPs of the findings with a code.
fn ips(document: &Value, code: &str) -> Vec<String> {
    let findings = document["cluster"]["findings"].as_array().expect("findings").iter();
    let ours = findings.filter(|one| one["code"] == code);
    ours.map(|one| one["ip"].as_str().expect("an IP").to_owned()).collect()
}

/// Runs a command as a person does who has kubectl in the PATH.
fn shell(lab: &Lab, command: &str) -> Output {
    let kubectl = helm::kubectl_dir();
    let path = format!("{}:{}:/usr/bin:/bin", lab.dir().display(), kubectl.display());
    remedy::ran(command);
    Command::new("sh")
        .args(["-c", command])
        .env("PATH", path)
        .env("HOME", lab.dir())
        .output()
        .expect("run sh")
}

fn changes(document: &Value) -> Vec<String> {
    commands(document, true)
}

fn looks(document: &Value) -> Vec<String> {
    commands(document, false)
}

fn commands(document: &Value, changes: bool) -> Vec<String> {
    let findings = document["cluster"]["findings"].as_array().expect("findings").iter();
    let findings = findings.inspect(|finding| remedy::printed(finding));
    let steps = findings.flat_map(|one| one["remediation"].as_array().into_iter().flatten());
    let ours = steps.filter(|step| step["changes"].as_bool().unwrap_or_default() == changes);
    ours.filter_map(|step| step["command"].as_str().map(str::to_owned)).collect()
}

fn offsets(api: &Api) -> Vec<String> {
    let pool = api.get(&format!("{POOLS}/{POOL}")).expect("the pool");
    pool["spec"]["allocations"].as_object().expect("allocations").keys().cloned().collect()
}

fn reservations(api: &Api) -> Vec<String> {
    let all = api.get(OVERLAPPING).expect("the reservations");
    let items = all["items"].as_array().expect("items").iter();
    items.filter_map(|one| one["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

fn a_crashed_nodes_allocations_are_found_and_freed(lab: &Lab) {
    let control = ControlPlane::start(lab);
    let api = control.api();
    crash(api);
    let agent = control.agent_config();

    // The rights of a node's agent do not suffice, and nothing is concluded from lists that it may not read.
    let out = scan(&agent, &[]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("needs the right to list nodes"), "{said}");

    // With exactly the rights of our manifest.
    api.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &yaml(RIGHTS));
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "ipwatch-cluster-scan"});
    let account = json!({"kind": "ServiceAccount", "name": "ipwatch", "namespace": "ipwatch"});
    api.create(
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "scan"}, "roleRef": role, "subjects": [account],
        }),
    );
    until("the rights are there", 30, || scan(&agent, &["-o", "name"]).status.code() == Some(1));
    let text = scan(&agent, &[]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("2 leaked, 0 free, 2 recoverable"), "{text}");
    let told = document(&agent);
    let leaked = ips(&told, "ipam-reservation-leaked");
    assert_eq!(leaked, ["192.168.7.11", "192.168.7.13"], "{told:#}");
    // A waiting pod may be the holder: the command that frees comes after the one that asks its node.
    for (finding, id) in
        told["cluster"]["findings"].as_array().expect("findings").iter().zip(["dead-1", "dead-2"])
    {
        let steps = finding["remediation"].as_array().expect("steps");
        let asks = steps.iter().position(|step| step["command"] == format!("crictl inspectp {id}"));
        let frees = steps.iter().position(|step| step["changes"] == true).expect("what frees it");
        assert_eq!(asks.map(|at| at + 1), Some(frees), "{finding:#}");
        let what = steps[frees]["what"].as_str().expect("what it does");
        assert!(what.starts_with("only if none of them knows it: "), "{what}");
    }

    // One of the two IPs is given to a living pod meanwhile: its command must not remove it.
    let admin = control.admin_config();
    let told = document(&admin);
    // With the rights of the person who frees them, the commands that look show the objects.
    for command in looks(&told).iter().filter(|command| !command.starts_with("crictl ")) {
        let out = shell(lab, command);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.is_empty(), "{command}: {said}");
    }

    // No node here has a runtime: a stand-in shows the arguments of `crictl`.
    let node = remedy::Shell::new(lab);
    for command in looks(&told).iter().filter(|command| command.starts_with("crictl ")) {
        node.succeeds(command);
        assert_eq!(node.said()[..2], ["crictl", "inspectp"]);
    }

    let commands = changes(&told);
    assert_eq!(commands.len(), 2, "{commands:#?}");
    let pool = format!("{POOLS}/{POOL}");
    let mut object = api.get(&pool).expect("the pool");
    object["spec"]["allocations"]["13"] = json!({"id": "new", "podref": "default/web-3"});
    api.ask("PUT", &pool, Some(&object)).unwrap_or_else(|error| panic!("{error}"));
    let refused = shell(lab, &commands[1]);
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(offsets(api), ["10", "11", "12", "13", "14"]);
    let all = ["10", "11", "12", "13", "14"].map(|at| format!("192.168.7.{at}"));
    assert_eq!(reservations(api), all, "the living pod's overlapping reservation stays");
    // An object that was replaced meanwhile is kept as well.
    let (_, delete) = commands[1].split_once(" && ").expect("two commands");
    let refused = shell(lab, &delete.replace("\"uid\":\"", "\"uid\":\"0"));
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(reservations(api), all);
    let mut object = api.get(&pool).expect("the pool");
    object["spec"]["allocations"]["13"] = json!({"id": "dead-2"});
    api.ask("PUT", &pool, Some(&object)).unwrap_or_else(|error| panic!("{error}"));

    for command in &commands {
        let out = shell(lab, command);
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let is_freed = || {
        assert_eq!(offsets(api), ["10", "12", "14"]);
        assert_eq!(reservations(api), ["192.168.7.10", "192.168.7.12", "192.168.7.14"]);
    };
    is_freed();
    // Repeated, there is nothing to free.
    for command in &commands {
        let out = shell(lab, command);
        assert!(!out.status.success(), "{command}: {out:?}");
    }
    is_freed();
    let out = scan(&admin, &["-o", "json"]);
    let told: Value = serde_json::from_slice(&out.stdout).expect("a document");
    assert_eq!(out.status.code(), Some(0), "{told:#}");
    let range = &told["cluster"]["ranges"][0];
    assert_eq!((&range["leaked"], &range["free"]), (&json!(0), &json!(2)), "{told:#}");

    // As a plugin of kubectl: requests for a pod's node, and the program's own commands.
    symlink(daemon::binary(), lab.dir().join("kubectl-ipwatch")).expect("a name for the plugin");
    let plugin = |words: &str| {
        let out = shell(lab, &format!("kubectl ipwatch --kubeconfig {} {words}", admin.display()));
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, said) = plugin("web-1");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no pod of ipwatch runs on node node-2"), "{said}");
    let (code, said) = plugin("absent");
    assert!(code == Some(2) && said.contains("NotFound"), "{code:?} {said}");
    // kubectl's own failure, which exits with 1: there is no kubelet to serve the exec.
    agent_pod(api, "node-2");
    let (code, said) = plugin("web-1 -n default --ipwatch-namespace default");
    assert!(code == Some(2) && !said.contains("no pod of ipwatch"), "{code:?} {said}");
    let (code, said) = plugin("cluster scan --settle 1s");
    assert_eq!(code, Some(0), "{said}");
    let own = format!("kubectl ipwatch cluster scan --settle 1s --kubeconfig {}", admin.display());
    let out = shell(lab, &own);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
}
