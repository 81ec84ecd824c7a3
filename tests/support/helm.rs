//! Helm and kubectl as they come, to make manifests of what `deploy/` holds. No API server takes part.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::need;

/// What is missing here to run them.
#[must_use]
pub fn missing() -> Option<String> {
    match std::env::var_os("IPWATCH_TEST_HELM").filter(|path| !path.is_empty()) {
        Some(_) => ["helm", "kubectl"].iter().find_map(|name| need::absent(program(name))),
        None => Some("no Helm (IPWATCH_TEST_HELM is not set)".to_owned()),
    }
}

/// Where kubectl is, for a PATH.
#[must_use]
pub fn kubectl_dir() -> PathBuf {
    program("kubectl").parent().map(Path::to_owned).unwrap_or_default()
}

fn program(name: &str) -> PathBuf {
    let dir = PathBuf::from(std::env::var_os("IPWATCH_TEST_HELM").unwrap_or_default());
    dir.join(name).join(name)
}

/// Of the repository.
#[must_use]
pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Runs `helm ARGS`, with nothing of whoever runs the tests.
#[must_use]
pub fn helm(args: &[&str]) -> Output {
    run(Command::new(program("helm")).args(args))
}

/// What the chart makes, with these arguments.
///
/// # Panics
/// Helm refuses.
#[must_use]
pub fn template(args: &[&str]) -> Vec<Value> {
    let chart = deploy().join("helm/ipwatch");
    let chart = chart.to_str().expect("a path of text");
    let words = ["template", "ipwatch", chart, "--namespace", "ipwatch"];
    documents(&helm(&[&words, args].concat()))
}

/// What kustomize makes of this directory.
///
/// # Panics
/// It does not.
#[must_use]
pub fn kustomize(dir: &Path) -> Vec<Value> {
    documents(&run(Command::new(program("kubectl")).arg("kustomize").arg(dir)))
}

fn run(command: &mut Command) -> Output {
    let none = "/nonexistent";
    command.env("HOME", none).env("HELM_CONFIG_HOME", none).env("KUBECONFIG", none);
    command.stdin(Stdio::null()).output().expect("run helm or kubectl")
}

fn documents(out: &Output) -> Vec<Value> {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    let all = text.split("---\n").map(|document| serde_norway::from_str(document).expect("YAML"));
    // An empty template is an empty document.
    all.filter(|document: &Value| !document.is_null()).collect()
}
