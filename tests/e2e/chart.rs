//! The Helm chart: it renders the same objects as the kustomize manifests, its values do what they say, and
//! contradictory values are refused before anything is installed.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use support::helm::{deploy, helm, kustomize, template};
use support::{Lab, daemon};

support::tests! {
    it_makes_what_kustomize_makes needs [Helm],
    it_is_clean needs [Helm],
    every_value_is_known_and_none_else needs [Helm],
    observe_only_reaches_the_configuration needs [Helm],
    values_reach_the_manifests needs [Helm],
    what_contradicts_itself_is_refused needs [Helm],
}

/// The documents by kind; there is one of each.
fn by_kind(documents: Vec<Value>) -> BTreeMap<String, Value> {
    let kind = |document: &Value| document["kind"].as_str().expect("a kind").to_owned();
    let count = documents.len();
    let map: BTreeMap<_, _> = documents.into_iter().map(|one| (kind(&one), one)).collect();
    assert_eq!(map.len(), count, "one of each kind");
    map
}

/// The configuration in the ConfigMap.
fn config(made: &BTreeMap<String, Value>) -> String {
    made["ConfigMap"]["data"]["ipwatch.toml"].as_str().expect("the configuration").to_owned()
}

/// The configuration without comments.
fn bare(config: &str) -> String {
    let lines = config.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

fn it_makes_what_kustomize_makes(_lab: &Lab) {
    let mut chart = by_kind(template(&[]));
    let mut plain = by_kind(kustomize(&deploy().join("kubernetes")));
    // Helm creates the namespace itself, or finds it.
    plain.remove("Namespace").expect("a namespace");
    // A new configuration restarts the pods in both: through the ConfigMap's name there, through an annotation here.
    let name = plain["ConfigMap"]["metadata"]["name"].as_str().expect("a name").to_owned();
    assert!(name.starts_with("ipwatch-"), "{name}");
    let volumes = "/spec/template/spec/volumes";
    let daemonset = plain.get_mut("DaemonSet").unwrap();
    for volume in daemonset.pointer_mut(volumes).unwrap().as_array_mut().unwrap() {
        if volume["configMap"]["name"] == name.as_str() {
            volume["configMap"]["name"] = json!("ipwatch");
        }
    }
    plain.get_mut("ConfigMap").unwrap()["metadata"]["name"] = json!("ipwatch");
    let daemonset = chart.get_mut("DaemonSet").unwrap();
    let pod = daemonset.pointer_mut("/spec/template/metadata").unwrap();
    let annotations = pod.as_object_mut().unwrap().remove("annotations").expect("annotations");
    assert!(annotations["checksum/config"].as_str().is_some_and(|sum| sum.len() == 64));
    for made in [&mut chart, &mut plain] {
        let text = bare(&config(made));
        made.get_mut("ConfigMap").unwrap()["data"]["ipwatch.toml"] = json!(text);
    }
    assert_eq!(chart.keys().collect::<Vec<_>>(), plain.keys().collect::<Vec<_>>());
    for (kind, made) in &chart {
        assert_eq!(made, &plain[kind], "{kind}: the chart's first, kustomize's second");
    }
}

fn it_is_clean(_lab: &Lab) {
    let chart = deploy().join("helm/ipwatch");
    let out = helm(&["lint", "--strict", chart.to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

/// `values.yaml` and the schema, which refuses unknown names, have the same names.
fn every_value_is_known_and_none_else(_lab: &Lab) {
    fn compare(at: &str, schema: &Value, values: &Value) {
        let Some(known) = schema["properties"].as_object() else { return };
        let names = |map: &serde_json::Map<String, Value>| -> Vec<String> {
            let mut names: Vec<_> = map.keys().filter(|name| *name != "global").cloned().collect();
            names.sort();
            names
        };
        assert_eq!(names(known), names(values.as_object().unwrap()), "{at}");
        for (name, schema) in known {
            compare(&format!("{at}.{name}"), schema, &values[name]);
        }
    }
    let read = |name: &str| fs::read_to_string(deploy().join("helm/ipwatch").join(name)).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let values: Value = serde_norway::from_str(&read("values.yaml")).unwrap();
    compare("", &schema, &values);
    let made = by_kind(template(&[]));
    let image = &made["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["image"];
    let said = Command::new(daemon::binary()).arg("--version").output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout);
    assert_eq!(*image, said.trim().replace(' ', ":"), "the chart is of the program's version");
}

/// The output of `ipwatch config show` for a configuration.
fn shown(lab: &Lab, config: &str) -> String {
    let file = lab.dir().join("ipwatch.toml");
    fs::write(&file, config).unwrap();
    let mut show = Command::new(daemon::binary());
    let out = show.args(["config", "show", "--config"]).arg(&file).output().unwrap();
    assert!(out.status.success(), "{config}\n{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn observe_only_reaches_the_configuration(lab: &Lab) {
    let has = |config: &str, line: &str| shown(lab, config).lines().any(|shown| shown == line);
    let plain = config(&by_kind(template(&[])));
    assert!(has(&plain, "observe_only = false"), "{plain}");
    // With a table in the user's configuration, to which the key must not be added.
    let file = lab.dir().join("values.yaml");
    fs::write(&file, "observeOnly: true\nconfig: |\n  [stuck]\n  grace = \"7s\"\n").unwrap();
    let more = config(&by_kind(template(&["--values", file.to_str().unwrap()])));
    assert!(has(&more, "observe_only = true"), "{more}");
    assert!(has(&more, "grace = \"7s\""), "{more}");
}

fn values_reach_the_manifests(lab: &Lab) {
    let set = "observeOnly=true,metrics.enabled=true,metrics.exposed=true,metrics.port=9999,\
               metrics.podMonitor.enabled=true,storePaths={/var/lib/docker/network},image.tag=x,\
               nodeSelector.kubernetes\\.io/arch=arm64";
    let made = by_kind(template(&["--set", set]));
    let config = shown(lab, &config(&made));
    for line in ["observe_only = true", "listen = \"0.0.0.0:9999\"", "allow_non_loopback = true"] {
        assert!(config.lines().any(|shown| shown == line), "{line}: {config}");
    }
    let pod = &made["DaemonSet"]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["ports"], json!([{ "name": "metrics", "containerPort": 9999 }]));
    assert_eq!(container["image"], "ipwatch:x");
    assert_eq!(pod["nodeSelector"]["kubernetes.io/arch"], "arm64");
    let mounted = container["volumeMounts"].as_array().unwrap().last().unwrap();
    let path = "/host/var/lib/docker/network";
    assert_eq!(*mounted, json!({ "name": "store-0", "mountPath": path, "readOnly": true }));
    let endpoint = &made["PodMonitor"]["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["port"], container["ports"][0]["name"]);
    let loopback = by_kind(template(&["--set", "metrics.enabled=true"]));
    assert!(bare(&self::config(&loopback)).contains("listen = \"127.0.0.1:9469\""));
    assert!(!loopback.contains_key("PodMonitor"));
}

fn what_contradicts_itself_is_refused(_lab: &Lab) {
    let chart = deploy().join("helm/ipwatch");
    for (set, word) in [
        ("config=observe_only = true", "leave it out of config"),
        ("metrics.enabled=true,config=[metrics]", "leave it out of config"),
        ("metrics.podMonitor.enabled=true", "metrics.exposed"),
        ("observeonly=true", "observeonly"),
        ("metrics.port=70000", "metrics.port"),
    ] {
        let out = helm(&["template", "ipwatch", chart.to_str().unwrap(), "--set", set]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{set}");
        assert!(said.contains(word), "{set}: {said}");
    }
}
