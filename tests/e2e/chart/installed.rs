//! The chart in a real API server (1.20), for the default values and for everything on, and its pod run by a real
//! kubelet. No controller and no scheduler runs: the test makes the pod of the DaemonSet's template, and binds the pod of
//! `helm test` to the node.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::fuse::Hung;
use support::harness::FIGURE;
use support::helm::{self, begin, deploy, helm, template};
use support::kubernetes::{Api, ControlPlane, Node};
use support::pod::OWN_IMAGE;
use support::poll::until;
use support::{Daemon, Lab, eventually};

use super::EVERYTHING;
use crate::lead::duplicate::READ;
use crate::lead::{config_for, is_about, small};

support::tests! {
    an_api_server_takes_every_field needs [Helm, SharedApiServer],
    helm_installs_upgrades_and_removes_it needs [Helm, ApiServer],
    a_kubelet_runs_its_pod_which_finds_a_stuck_one needs [Helm, ApiServer, Kubelet, Containerd, Fuse],
}

/// Where objects of this kind are; `None` for those of the Prometheus Operator, whose kinds this server does not have.
fn path(object: &Value, namespace: &str) -> Option<String> {
    let (group, kind) = (object["apiVersion"].as_str()?, object["kind"].as_str()?);
    let plural = match kind {
        "NetworkPolicy" => "networkpolicies".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    let base = if group == "v1" { "/api/v1".to_owned() } else { format!("/apis/{group}") };
    match group {
        "monitoring.coreos.com/v1" => None,
        "rbac.authorization.k8s.io/v1" => Some(format!("{base}/{plural}")),
        _ => Some(format!("{base}/namespaces/{namespace}/{plural}")),
    }
}

/// The server drops fields that it does not know, without a word: all that was sent must be in its answer.
fn lost(at: &str, sent: &Value, stored: &Value, all: &mut Vec<String>) {
    match sent {
        Value::Object(fields) => {
            for (name, value) in fields {
                lost(&format!("{at}.{name}"), value, &stored[name], all);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                lost(&format!("{at}[{index}]"), value, &stored[index], all);
            }
        }
        // An empty text is the same as none.
        Value::String(text) if text.is_empty() => {}
        // Times and quantities are stored as they are written.
        sent if sent == stored => {}
        sent => all.push(format!("{at}: {sent} became {stored}")),
    }
}

fn an_api_server_takes_every_field(lab: &Lab) {
    let control = ControlPlane::shared(lab);
    let api = control.api();
    api.create("/api/v1/namespaces", &json!({ "metadata": { "name": lab.tag() } }));
    for set in ["observeOnly=false", EVERYTHING] {
        let args = ["--set", set, "--kube-version", "1.20.0", "--namespace", lab.tag()];
        let (mut taken, mut missing) = (0, Vec::new());
        for object in template(&args) {
            let Some(path) = path(&object, lab.tag()) else { continue };
            let path = format!("{path}?dryRun=All");
            // Other tests of this server have cluster roles of the same names.
            let mut object = object;
            if path.contains("/clusterrole") {
                let name = object["metadata"]["name"].as_str().unwrap();
                object["metadata"]["name"] = json!(format!("{}-{name}", lab.tag()));
            }
            let stored = api.ask("POST", &path, Some(&object));
            let stored = stored.unwrap_or_else(|error| panic!("{path}: {error}"));
            let kind = object["kind"].as_str().unwrap();
            lost(kind, &object, &stored, &mut missing);
            taken += 1;
        }
        assert_eq!(missing, Vec::<String>::new(), "{set}");
        assert!(taken >= 4, "{set}: {taken}");
    }
}

/// `helm COMMAND ipwatch`, with all rights.
fn run(control: &ControlPlane, args: &[&str]) -> String {
    let config = control.admin_config();
    let common = ["--namespace", "ipwatch", "--kubeconfig", config.to_str().unwrap()];
    let out = helm(&[args, &common].concat());
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The annotations of the DaemonSet's pods.
fn annotations(api: &Api) -> Value {
    let mut daemonset = api.get("/apis/apps/v1/namespaces/ipwatch/daemonsets/ipwatch").unwrap();
    daemonset["spec"]["template"]["metadata"]["annotations"].take()
}

fn helm_installs_upgrades_and_removes_it(lab: &Lab) {
    let control = ControlPlane::start(lab);
    let (api, agent) = (control.api(), control.as_agent());
    // The lab has granted them itself; here the chart does.
    for kind in ["clusterrolebindings", "clusterroles"] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{kind}/ipwatch");
        api.ask("DELETE", &path, None).unwrap();
    }
    let chart = deploy().join("helm/ipwatch");
    let chart = chart.to_str().unwrap();
    let said = run(&control, &["install", "ipwatch", chart, "--create-namespace"]);
    assert!(said.contains("ipwatch query findings"), "the notes: {said}");
    let first = annotations(api);
    assert_eq!(first["container.apparmor.security.beta.kubernetes.io/ipwatch"], "unconfined");
    let pods = "/api/v1/pods?limit=1";
    assert!(agent.get(pods).unwrap_err().starts_with("403"), "no permission is granted unasked");
    // With the kinds that this server has.
    let all = EVERYTHING
        .replace("podMonitor.enabled=true", "podMonitor.enabled=false")
        .replace("prometheusRule.enabled=true", "prometheusRule.enabled=false");
    let more =
        ["upgrade", "ipwatch", chart, "--set", &all, "--set", "config=[stuck]\ngrace = \"7s\""];
    run(&control, &more);
    let second = annotations(api);
    assert_ne!(first["checksum/config"], second["checksum/config"], "pods are restarted");
    agent.get(pods).expect("the permission for pods");
    let event = json!({
        "metadata": { "name": "e", "namespace": "ipwatch" }, "reason": "Test", "type": "Normal",
        "involvedObject": { "kind": "Pod", "namespace": "ipwatch", "name": "p" },
    });
    agent.create("/api/v1/namespaces/ipwatch/events", &event);
    for path in ["/api/v1/secrets", "/api/v1/nodes"] {
        assert!(agent.get(path).unwrap_err().starts_with("403"), "{path}");
    }
    let dashboard = "/api/v1/namespaces/ipwatch/configmaps/ipwatch-dashboard";
    assert!(api.get(dashboard).unwrap()["data"]["ipwatch.json"].as_str().is_some());
    run(&control, &["uninstall", "ipwatch"]);
    assert!(agent.get(pods).unwrap_err().starts_with("403"), "the permissions are gone");
    let left = api.get("/apis/apps/v1/namespaces/ipwatch/daemonsets").unwrap();
    assert_eq!(left["items"], json!([]));
}

/// Installed with the values that the lab needs, and run from the image: the daemon in the pod finds a stuck pod,
/// reports it to the API server with its own token, and `helm test` is content.
fn a_kubelet_runs_its_pod_which_finds_a_stuck_one(lab: &Lab) {
    // Before the node, whose mounts are a copy of the host's.
    let mut hung = Hung::mount(lab);
    let node = Node::on_the_host(lab, &small(lab));
    node.containerd.import_ipwatch();
    let (api, namespace) = (node.api(), node.namespace().to_owned());
    // The controller of Kubernetes makes it in every namespace.
    let authority = json!({
        "metadata": { "name": "kube-root-ca.crt" }, "data": { "ca.crt": node.control.authority() },
    });
    api.create(&format!("/api/v1/namespaces/{namespace}/configmaps"), &authority);
    for kind in ["clusterrolebindings", "clusterroles"] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{kind}/ipwatch");
        api.ask("DELETE", &path, None).unwrap();
    }
    install(lab, &node);
    let daemonset = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/ipwatch");
    let mut pod = api.get(&daemonset).unwrap()["spec"]["template"].take();
    pod["metadata"]["name"] = json!("ipwatch-0");
    pod["spec"]["nodeName"] = json!(node.name());
    api.create(&format!("/api/v1/namespaces/{namespace}/pods"), &pod);
    let socket = node.containerd.own_dir("/run/ipwatch").join("ipwatch.sock");
    let mut log = Command::new("sh");
    log.args(["-c", "exec tail -n +1 -F /var/log/pods/$0_ipwatch-0_*/ipwatch/*.log"])
        .arg(&namespace);
    until("its container has started", 60, || {
        let pod = node.pod("ipwatch-0").unwrap_or_default();
        !pod["status"]["containerStatuses"][0]["containerID"].is_null()
    });
    let daemon = Daemon::of_a_service(log, lab, &socket);
    // Its startup probe, which asks the daemon. (A kubelet of 1.20 says Ready only a minute later, at its next sync.)
    until("the pod has started", 60, || {
        let pod = node.pod("ipwatch-0").unwrap_or_default();
        pod["status"]["containerStatuses"][0]["started"] == true
    });
    until("the daemon answers", 30, || daemon.ask(&["query", "findings"]).status.success());
    for source in ["containerd", "kubernetes"] {
        daemon.await_source(source);
        let source = daemon.source(source).unwrap();
        assert_eq!(source["status"], "active", "{source}");
    }
    let events = api.events(&namespace);
    let stuck = node.run("db-0", hung.dir(), &READ);
    hung.await_read();
    daemon.await_ip(&stuck.ip, stuck.netns);
    node.delete("db-0");
    let finding = eventually("the stuck pod is found", 60, || {
        let mut all = daemon.findings().into_iter();
        all.find(|one| is_about(&stuck.ip)(one) && one["status"] == "firing")
    });
    assert_eq!(finding["code"], "ip-held-by-stuck-process", "{finding:#}");
    assert_eq!(finding["subject"]["pod"]["name"], "db-0", "{finding:#}");
    let (_, event) = events.await_first("db-0", "IpHeldByStuckProcess", 30);
    assert_eq!(event["source"]["host"], node.name(), "IPWATCH_NODE: {event:#}");
    the_plugin_of_kubectl_asks_every_node(lab, &node, &socket, &stuck.ip);
    test_by_helm(&node);
    println!("{FIGURE}{}", memory(&node));
    hung.release();
}

/// A second pod of ipwatch, on a node that does not exist, is named. The lab's API server cannot connect to the lab's
/// kubelet, which is in another netns: where the plugin runs `kubectl exec`, the command is run here instead, with the
/// socket of the pod's daemon. Everything else is asked of the API server by the real kubectl.
fn the_plugin_of_kubectl_asks_every_node(lab: &Lab, node: &Node<'_>, socket: &Path, stuck: &str) {
    let mut other = node.pod("ipwatch-0").unwrap();
    let kept = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "ipwatch-1", "labels": other["metadata"]["labels"].take() },
        "spec": { "nodeName": "node-without-kubelet", "containers": [{ "name": "ipwatch", "image": "none" }] },
    });
    node.api().create(&format!("/api/v1/namespaces/{}/pods", node.namespace()), &kept);
    let bare = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-without-ipwatch" } });
    node.api().create("/api/v1/nodes", &bare);
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' exec '*) while [ \"$1\" != -- ]; do shift; done; shift 2\n\
         exec '{}' --socket '{}' \"$@\" ;;\nesac\nexec '{}/kubectl' \"$@\"\n",
        support::daemon::binary().display(),
        socket.display(),
        helm::kubectl_dir().display()
    );
    let kubectl = lab.dir().join("kubectl");
    std::fs::write(&kubectl, script).unwrap();
    std::fs::set_permissions(&kubectl, Permissions::from_mode(0o755)).unwrap();
    let plugin = lab.dir().join("kubectl-ipwatch");
    std::os::unix::fs::symlink(support::daemon::binary(), &plugin).unwrap();
    let ask = |words: &[&str]| {
        let path = format!("{}:/usr/bin:/bin", lab.dir().display());
        let mut command = Command::new(&plugin);
        command.env("PATH", path).args(words).arg("--kubeconfig").arg(node.control.admin_config());
        let out = command.args(["--ipwatch-namespace", node.namespace()]).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, said) = ask(&["findings", "-A", "--timeout", "30"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("1 of 3 nodes   "), "{said}");
    assert!(said.contains(stuck) && said.contains("ip-held-by-stuck-process"), "{said}");
    assert!(said.contains("  node-without-kubelet: \"its pod ipwatch-1 is Pending\""), "{said}");
    assert!(said.contains("  node-without-ipwatch: \"no pod of ipwatch is on it\""), "{said}");
    let (code, said) = ask(&["ip", stuck, "--timeout", "30"]);
    assert_eq!(code, Some(0), "{said}");
    let row = said.lines().find(|line| line.contains("HELD: unsafe to hand out"));
    assert!(row.is_some_and(|row| row.contains(node.name()) && row.contains("db-0")), "{said}");
}

/// The memory of the pod's cgroup, to compare with the chart's limit.
fn memory(node: &Node<'_>) -> String {
    let pod = node.pod("ipwatch-0").unwrap();
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let find = format!(
        "find /sys/fs/cgroup -path '*pod{uid}/*' '(' -name memory.current -o -name memory.usage_in_bytes ')'"
    );
    let out =
        Command::new("sh").args(["-c", &format!("{find} -exec cat {{}} +")]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let bytes = text.lines().filter_map(|line| line.parse::<u64>().ok()).max().unwrap_or_default();
    format!("memory of the pod's cgroup: {} MiB", bytes >> 20)
}

fn install(lab: &Lab, node: &Node<'_>) {
    let config = lab.dir().join("pod.toml");
    std::fs::write(&config, config_for(&node.containerd).text()).unwrap();
    let (dir, port) = (lab.dir().display(), node.control.door().port());
    let (repository, tag) = OWN_IMAGE.rsplit_once(':').unwrap();
    let values = format!(
        "image: {{ repository: {repository}, tag: '{tag}', pullPolicy: Never }}
kubernetes: {{ enabled: true, events: true }}
extraEnv:
  - {{ name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1 }}
  - {{ name: KUBERNETES_SERVICE_PORT, value: '{port}' }}
  - {{ name: IPWATCH_STUCK__GRACE, value: 2s }}
extraVolumes: [{{ name: lab, hostPath: {{ path: {dir} }} }}]
extraVolumeMounts:
  - {{ name: lab, mountPath: /host{dir}, readOnly: true, mountPropagation: HostToContainer }}
"
    );
    let file = lab.dir().join("values.yaml");
    std::fs::write(&file, values).unwrap();
    let chart = deploy().join("helm/ipwatch");
    let set = format!("config={}", config.display());
    let (chart, file) = (chart.to_str().unwrap(), file.to_str().unwrap());
    run_in(node, &["install", "ipwatch", chart, "--values", file, "--set-file", &set]);
}

fn run_in(node: &Node<'_>, args: &[&str]) {
    let config = node.control.admin_config();
    let common = ["--namespace", node.namespace(), "--kubeconfig", config.to_str().unwrap()];
    let out = helm(&[args, &common].concat());
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Runs `helm test`, and binds its pod as a scheduler does.
fn test_by_helm(node: &Node<'_>) {
    let config = node.control.admin_config();
    let common = ["--namespace", node.namespace(), "--kubeconfig", config.to_str().unwrap()];
    let test = begin(&[&["test", "ipwatch", "--timeout", "60s"], &common[..]].concat());
    until("helm makes the pod", 30, || node.pod("ipwatch-test").is_some());
    let path = format!("/api/v1/namespaces/{}/pods/ipwatch-test/binding", node.namespace());
    let to = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "ipwatch-test" },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node.name() },
    });
    node.api().ask("POST", &path, Some(&to)).unwrap();
    let out = test.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let status = node.pod("ipwatch-test").map(|mut pod| pod["status"].take());
    assert!(out.status.success() && said.contains("Succeeded"), "{said} {out:?} {status:#?}");
}
