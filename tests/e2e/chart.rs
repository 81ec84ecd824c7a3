//! The Helm chart: it renders the same objects as the kustomize manifests, its values do what they say, contradictory
//! values are refused before anything is installed, and a real API server takes all of it.
//!
//! - [`installed`]: real Helm installs it into a real API server.

pub(crate) mod installed;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use support::helm::{deploy, helm, kustomize, template};
use support::{Lab, daemon};

support::tests! {
    it_makes_what_kustomize_makes needs [Helm],
    its_permissions_are_those_of_the_manifests needs [Helm],
    events_in_namespaces_need_no_right_elsewhere needs [Helm],
    rules_and_dashboard_are_the_files_of_the_repository needs [Helm],
    conditions_have_the_rights_of_the_manifests needs [Helm],
    it_is_clean needs [Helm],
    every_value_is_known_and_none_else needs [Helm],
    values_that_are_keys_reach_the_configuration needs [Helm],
    values_reach_the_manifests needs [Helm],
    before_1_30_apparmor_is_an_annotation needs [Helm],
    what_contradicts_itself_is_refused needs [Helm],
}

/// Values with which everything is rendered that can be.
pub(crate) const EVERYTHING: &str = "observeOnly=true,kubernetes.enabled=true,kubernetes.events=true,\
     kubernetes.whereabouts=true,kubernetes.calico=true,metrics.enabled=true,metrics.exposed=true,\
     metrics.port=9999,metrics.podMonitor.enabled=true,prometheusRule.enabled=true,\
     prometheusRule.labels.release=kps,dashboard.enabled=true,dashboard.annotations.folder=nodes,\
     networkPolicy.enabled=true,networkPolicy.from[0].namespaceSelector.matchLabels.a=b,\
     storePaths={/var/lib/docker/network},imagePullSecrets[0].name=registry,image.pullPolicy=Always,\
     image.digest=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,\
     extraEnv[0].name=IPWATCH_STUCK__GRACE,extraEnv[0].value=7s,\
     envFrom[0].secretRef.name=collector,extraVolumes[0].name=ca,extraVolumes[0].secret.secretName=ca,\
     extraVolumeMounts[0].name=ca,extraVolumeMounts[0].mountPath=/host/etc/ipwatch-ca,\
     seccompProfile.type=Localhost,seccompProfile.localhostProfile=ipwatch.json,\
     resourceQuota.enabled=true,seLinuxOptions.type=spc_t,podLabels.team=net,podAnnotations.a=b";

/// The documents by kind and name.
pub(crate) type Made = BTreeMap<(String, String), Value>;

pub(crate) fn by_name(documents: Vec<Value>) -> Made {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let count = documents.len();
    let map: Made = documents
        .into_iter()
        .map(|one| ((text(&one["kind"]), text(&one["metadata"]["name"])), one))
        .collect();
    assert_eq!(map.len(), count, "one of each name");
    map
}

fn object<'a>(made: &'a Made, kind: &str, name: &str) -> &'a Value {
    let found = made.get(&(kind.to_owned(), name.to_owned()));
    found.unwrap_or_else(|| panic!("no {kind} {name} in {:?}", made.keys()))
}

/// The daemon's pod.
fn pod(made: &Made) -> &Value {
    &object(made, "DaemonSet", "ipwatch")["spec"]["template"]["spec"]
}

/// The configuration in the ConfigMap.
fn config(made: &Made) -> &str {
    let data = &object(made, "ConfigMap", "ipwatch")["data"]["ipwatch.toml"];
    data.as_str().expect("the configuration")
}

/// The configuration without comments.
fn bare(config: &str) -> String {
    let lines = config.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

fn it_makes_what_kustomize_makes(_lab: &Lab) {
    for (set, dir) in [("observeOnly=false", ""), ("kubernetes.enabled=true", "api")] {
        let (mut chart, mut plain) = (
            by_name(template(&["--set", set])),
            by_name(kustomize(&deploy().join("kubernetes").join(dir))),
        );
        // `helm test` has no counterpart, and Helm creates the namespace itself, or finds it.
        chart.remove(&("Pod".into(), "ipwatch-test".into())).expect("its test");
        plain.remove(&("Namespace".into(), "ipwatch".into())).expect("a namespace");
        // A new configuration restarts the pods in both: through the ConfigMap's name there, through an annotation here.
        let (_, name) = plain.keys().find(|(kind, _)| kind == "ConfigMap").expect("one").clone();
        assert!(name.starts_with("ipwatch-"), "{name}");
        let text = serde_json::to_string(&plain.into_values().collect::<Vec<_>>()).unwrap();
        let mut plain = by_name(serde_json::from_str(&text.replace(&name, "ipwatch")).unwrap());
        let daemonset = chart.get_mut(&("DaemonSet".into(), "ipwatch".into())).unwrap();
        let about = daemonset.pointer_mut("/spec/template/metadata").unwrap();
        let annotations = about.as_object_mut().unwrap().remove("annotations").expect("some");
        assert!(annotations["checksum/config"].as_str().is_some_and(|sum| sum.len() == 64));
        for made in [&mut chart, &mut plain] {
            let text = bare(config(made));
            let map = made.get_mut(&("ConfigMap".into(), "ipwatch".into())).unwrap();
            map["data"]["ipwatch.toml"] = json!(text);
            sort_volumes(made);
        }
        assert_eq!(chart.keys().collect::<Vec<_>>(), plain.keys().collect::<Vec<_>>(), "{set}");
        for (name, made) in &chart {
            assert_eq!(made, &plain[name], "{name:?}: the chart's first, kustomize's second");
        }
    }
}

/// kustomize puts what a patch adds first. The order of volumes and mounts has no meaning.
fn sort_volumes(made: &mut Made) {
    let daemonset = made.get_mut(&("DaemonSet".into(), "ipwatch".into())).unwrap();
    for list in ["/spec/template/spec/volumes", "/spec/template/spec/containers/0/volumeMounts"] {
        let list = daemonset.pointer_mut(list).unwrap().as_array_mut().unwrap();
        list.sort_by_key(|one| one["name"].as_str().unwrap().to_owned());
    }
}

fn its_permissions_are_those_of_the_manifests(_lab: &Lab) {
    let roles = |made: &Made| -> Vec<String> {
        let names = made.keys().filter(|(kind, _)| kind == "ClusterRole");
        names.map(|(_, name)| name.clone()).collect()
    };
    assert!(roles(&by_name(template(&[]))).is_empty());
    for (value, file, name) in [
        ("enabled", "rbac.yaml", "ipwatch"),
        ("events", "events.yaml", "ipwatch-events"),
        ("whereabouts", "whereabouts.yaml", "ipwatch-whereabouts"),
        ("calico", "calico.yaml", "ipwatch-calico"),
    ] {
        let set = format!("kubernetes.enabled=true,kubernetes.{value}=true");
        let made = by_name(template(&["--set", &set]));
        let text = fs::read_to_string(deploy().join("kubernetes/api").join(file)).unwrap();
        for document in text.split("---\n") {
            let wanted: Value = serde_norway::from_str(document).unwrap();
            assert_eq!(object(&made, wanted["kind"].as_str().unwrap(), name), &wanted, "{value}");
        }
        let granted = roles(&made);
        let allowed = ["ipwatch", name];
        assert!(granted.iter().all(|role| allowed.contains(&role.as_str())), "{granted:?}");
    }
}

fn events_in_namespaces_need_no_right_elsewhere(lab: &Lab) {
    let set =
        "kubernetes.enabled=true,kubernetes.events=true,kubernetes.eventNamespaces={db,default}";
    let made = template(&["--set", set]);
    let named = |kind: &str| -> Vec<&Value> {
        let is = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == "ipwatch-events";
        made.iter().filter(is).collect()
    };
    assert!(named("ClusterRole").is_empty() && named("ClusterRoleBinding").is_empty());
    let file = deploy().join("kubernetes/api/events-in-a-namespace.yaml");
    let text = fs::read_to_string(file).unwrap();
    for document in text.split("---\n") {
        let mut wanted: Value = serde_norway::from_str(document).unwrap();
        let all = named(wanted["kind"].as_str().unwrap());
        let of = |one: &&Value| one["metadata"]["namespace"].as_str().unwrap().to_owned();
        assert_eq!(all.iter().map(of).collect::<Vec<_>>(), ["db", "default"]);
        for one in all {
            wanted["metadata"]["namespace"] = one["metadata"]["namespace"].clone();
            assert_eq!(one, &wanted);
        }
    }
    let elsewhere =
        |one: &&Value| !["Role", "RoleBinding"].contains(&one["kind"].as_str().unwrap());
    let rest = made.iter().filter(elsewhere).cloned().collect();
    let shown = shown(lab, &by_name(rest));
    let line = "event_namespaces = [\"db\", \"default\"]";
    assert!(shown.lines().any(|one| one.split("  # ").next() == Some(line)), "{shown}");
}

fn rules_and_dashboard_are_the_files_of_the_repository(_lab: &Lab) {
    let read = |path: &str| fs::read_to_string(deploy().join(path)).unwrap();
    let made = by_name(template(&["--set", "prometheusRule.enabled=true,dashboard.enabled=true"]));
    let groups = |path: &str| -> Vec<Value> {
        let mut file: Value = serde_norway::from_str(&read(path)).unwrap();
        serde_json::from_value(file["groups"].take()).unwrap()
    };
    let all = [groups("prometheus/recording.yml"), groups("prometheus/alerts.yml")].concat();
    assert_eq!(object(&made, "PrometheusRule", "ipwatch")["spec"]["groups"], json!(all));
    let map = object(&made, "ConfigMap", "ipwatch-dashboard");
    assert_eq!(map["data"]["ipwatch.json"], read("grafana/ipwatch.json").trim_end());
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let url = "prometheusRule.enabled=true,prometheusRule.runbookUrl=https://git.example/docs";
    let rules = by_name(template(&["--set", url]));
    let rules = object(&rules, "PrometheusRule", "ipwatch").to_string();
    assert!(rules.contains("https://git.example/docs/findings/") && !rules.contains("runbooks."));
}

fn conditions_have_the_rights_of_the_manifests(_lab: &Lab) {
    let made =
        by_name(template(&["--set", "kubernetes.enabled=true,kubernetes.nodeConditions=true"]));
    for name in ["node-conditions.yaml", "node-conditions-policy.yaml"] {
        let text = fs::read_to_string(deploy().join("kubernetes/api").join(name)).unwrap();
        for document in text.split("---\n") {
            let plain: Value = serde_norway::from_str(document).unwrap();
            let kind = plain["kind"].as_str().expect("a kind");
            let chart = object(&made, kind, "ipwatch-node-conditions");
            assert_eq!(chart, &plain, "{kind}: the chart's first, {name}'s second");
        }
    }
}

fn it_is_clean(lab: &Lab) {
    let chart = deploy().join("helm/ipwatch");
    let chart = chart.to_str().unwrap();
    for set in ["observeOnly=false", EVERYTHING] {
        let out = helm(&["lint", "--strict", chart, "--set", set]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
    // What is packaged does not depend on the repository that it links to.
    let out = helm(&["package", chart, "--destination", lab.dir().to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let packed = fs::read_dir(lab.dir()).unwrap().flatten().map(|entry| entry.path());
    let packed = packed.filter(|path| path.extension().is_some_and(|end| end == "tgz")).last();
    let set = ["--set", EVERYTHING];
    let packed = packed.expect("a package");
    let out =
        helm(&["template", "ipwatch", packed.to_str().unwrap(), set[0], set[1], "-n", "ipwatch"]);
    let from_package = String::from_utf8_lossy(&out.stdout).into_owned();
    let text = from_package.split("---\n").map(|one| serde_norway::from_str(one).unwrap());
    let from_package = by_name(text.filter(|one: &Value| !one.is_null()).collect());
    assert_eq!(from_package, by_name(template(&set)));
}

/// `values.yaml` and the schema, which refuses unknown names, have the same names.
fn every_value_is_known_and_none_else(_lab: &Lab) {
    fn compare(at: &str, schema: &Value, values: &Value) {
        let Some(known) = schema["properties"].as_object() else { return };
        assert_eq!(schema["additionalProperties"], false, "{at}");
        let Some(values) = values.as_object() else { return };
        // Names that Kubernetes defines have no defaults here.
        if matches!(at, ".resources" | ".seLinuxOptions" | ".seccompProfile") {
            assert!(values.keys().all(|name| known.contains_key(name)), "{at}");
            return;
        }
        let names = |map: &serde_json::Map<String, Value>| -> Vec<String> {
            let mut names: Vec<_> = map.keys().filter(|name| *name != "global").cloned().collect();
            names.sort();
            names
        };
        assert_eq!(names(known), names(values), "{at}");
        for (name, schema) in known {
            compare(&format!("{at}.{name}"), schema, values.get(name).unwrap_or(&Value::Null));
        }
    }
    let read = |name: &str| fs::read_to_string(deploy().join("helm/ipwatch").join(name)).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let values: Value = serde_norway::from_str(&read("values.yaml")).unwrap();
    compare("", &schema, &values);
    let made = by_name(template(&[]));
    let image = &pod(&made)["containers"][0]["image"];
    let said = Command::new(daemon::binary()).arg("--version").output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout);
    assert_eq!(*image, said.trim().replace(' ', ":"), "the chart is of the program's version");
}

/// The output of `ipwatch config show` for the configuration and the variables of the rendered pod.
fn shown(lab: &Lab, made: &Made) -> String {
    let file = lab.dir().join("ipwatch.toml");
    fs::write(&file, config(made)).unwrap();
    let mut show = Command::new(daemon::binary());
    for variable in pod(made)["containers"][0]["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        if let Some(value) = variable["value"].as_str().filter(|_| name != "IPWATCH_HOST_ROOT") {
            show.env(name, value);
        }
    }
    let out = show.args(["config", "show", "--config"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !said.contains("is unknown"), "{said}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn values_that_are_keys_reach_the_configuration(lab: &Lab) {
    #[track_caller]
    fn has(shown: &str, lines: &[&str]) {
        for line in lines {
            let is = |shown: &str| shown.split("  # ").next() == Some(*line);
            assert!(shown.lines().any(is), "{line}: {shown}");
        }
    }
    let plain = shown(lab, &by_name(template(&[])));
    has(&plain, &["observe_only = false", "#listen is not set", "events = false"]);
    // With tables in the user's configuration that have keys of ours.
    let file = lab.dir().join("values.yaml");
    let text = "config: |\n  [stuck]\n  grace = \"5m\"\n  core_dump_grace = \"7m\"\n  \
                [metrics]\n  max_address_series = 7\n";
    fs::write(&file, text).unwrap();
    let values = ["--values", file.to_str().unwrap(), "--set", EVERYTHING];
    let all = shown(lab, &by_name(template(&values)));
    has(&all, &["observe_only = true", "grace = \"7s\"", "core_dump_grace = \"7m\""]);
    has(&all, &["events = true", "whereabouts = true", "calico = true", "max_address_series = 7"]);
    has(&all, &["listen = \"0.0.0.0:9999\"", "allow_non_loopback = true"]);
    let loopback = shown(lab, &by_name(template(&["--set", "metrics.enabled=true"])));
    has(&loopback, &["listen = \"127.0.0.1:9469\"", "allow_non_loopback = false"]);
    let set = "metrics.enabled=true,metrics.exposed=true,metrics.address=[::]";
    has(&shown(lab, &by_name(template(&["--set", set]))), &["listen = \"[::]:9469\""]);
    // As `helm upgrade --reuse-values` from a chart that did not have these values yet.
    let set = "resourceQuota=null,metrics.enabled=true,metrics.exposed=true,metrics.address=null";
    has(&shown(lab, &by_name(template(&["--set", set]))), &["listen = \"0.0.0.0:9469\""]);
}

fn values_reach_the_manifests(_lab: &Lab) {
    let made = by_name(template(&["--set", EVERYTHING]));
    let pod = pod(&made);
    let container = &pod["containers"][0];
    assert_eq!(container["ports"], json!([{ "name": "metrics", "containerPort": 9999 }]));
    let digest = "a".repeat(64);
    assert_eq!(container["image"], format!("ipwatch@sha256:{digest}"));
    assert_eq!(container["envFrom"], json!([{ "secretRef": { "name": "collector" } }]));
    let node = json!({ "name": "IPWATCH_NODE",
        "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } });
    assert!(container["env"].as_array().unwrap().contains(&node));
    let profile = json!({ "type": "Localhost", "localhostProfile": "ipwatch.json" });
    assert_eq!(container["securityContext"]["seccompProfile"], profile);
    let mounts = container["volumeMounts"].as_array().unwrap();
    let volumes = pod["volumes"].as_array().unwrap();
    for (name, path) in [
        ("store-0", "/host/var/lib/docker/network"),
        ("api", "/host/etc/ipwatch-api"),
        ("ca", "/host/etc/ipwatch-ca"),
    ] {
        assert!(mounts.iter().any(|one| one["name"] == name && one["mountPath"] == path), "{name}");
        assert!(volumes.iter().any(|one| one["name"] == name), "{name}");
    }
    // Least rights: only the socket's directory and the state can be written to.
    let plain = by_name(template(&[]));
    let mounts = self::pod(&plain)["containers"][0]["volumeMounts"].as_array().unwrap().iter();
    let writable = mounts.filter(|one| one["readOnly"] != true).map(|one| one["mountPath"].clone());
    let expected = ["/host/run/ipwatch", "/host/var/lib/ipwatch"];
    assert_eq!(writable.collect::<Vec<_>>(), expected);
    let endpoint = &object(&made, "PodMonitor", "ipwatch")["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["port"], container["ports"][0]["name"]);
    let policy = &object(&made, "NetworkPolicy", "ipwatch")["spec"];
    assert_eq!(policy["ingress"][0]["ports"], json!([{ "port": 9999 }]));
    assert_eq!(policy["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"]["a"], "b");
    let quota = &object(&made, "ResourceQuota", "ipwatch")["spec"];
    let scope = &quota["scopeSelector"]["matchExpressions"][0];
    assert_eq!(scope["scopeName"], "PriorityClass");
    assert_eq!(scope["values"][0], pod["priorityClassName"], "what GKE asks for");
    let arm64 =
        by_name(template(&["--set", "nodeSelector.kubernetes\\.io/arch=arm64,image.tag=x"]));
    assert_eq!(self::pod(&arm64)["nodeSelector"]["kubernetes.io/arch"], "arm64");
    assert_eq!(self::pod(&arm64)["containers"][0]["image"], "ipwatch:x");
    let all = by_name(template(&["--set", "nodeSelector.kubernetes\\.io/arch=null"]));
    assert_eq!(self::pod(&all)["nodeSelector"], json!({ "kubernetes.io/os": "linux" }));
    assert!(!arm64.keys().any(|(kind, _)| kind == "PodMonitor" || kind == "NetworkPolicy"));
}

fn before_1_30_apparmor_is_an_annotation(_lab: &Lab) {
    let annotation = "container.apparmor.security.beta.kubernetes.io/ipwatch";
    for (version, is_old) in [("1.20.0", true), ("1.29.9", true), ("1.30.0", false)] {
        let made = by_name(template(&["--kube-version", version]));
        let template = &object(&made, "DaemonSet", "ipwatch")["spec"]["template"];
        let noted = &template["metadata"]["annotations"][annotation];
        let field = &template["spec"]["containers"][0]["securityContext"]["appArmorProfile"];
        assert_eq!((noted == "unconfined", field.is_null()), (is_old, is_old), "{version}");
    }
    let out = render(&["--kube-version", "1.19.0"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("1.20"), "{out:?}");
}

fn render(args: &[&str]) -> std::process::Output {
    let chart = deploy().join("helm/ipwatch");
    let chart: &Path = &chart;
    helm(&[&["template", "ipwatch", chart.to_str().unwrap()], args].concat())
}

fn what_contradicts_itself_is_refused(_lab: &Lab) {
    for (set, word) in [
        ("metrics.podMonitor.enabled=true", "metrics.exposed"),
        ("kubernetes.events=true", "kubernetes.enabled"),
        ("kubernetes.eventNamespaces={db}", "kubernetes.events"),
        ("kubernetes.eventNamespaces={Db}", "eventNamespaces"),
        ("observeonly=true", "observeonly"),
        ("kubernetes.evnts=true", "evnts"),
        ("metrics.port=70000", "metrics.port"),
        ("metrics.address=::", "metrics.address"),
        ("resourceQuota.enabled=true,priorityClassName=", "priorityClassName"),
        ("image.digest=sha256:1", "image.digest"),
        ("extraEnv[0].nme=X", "extraEnv"),
        ("seccompProfile.type=Any", "seccompProfile"),
    ] {
        let out = render(&["--set", set]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{set}");
        assert!(said.contains(word), "{set}: {said}");
    }
}
