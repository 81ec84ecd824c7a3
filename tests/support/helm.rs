//! Real Helm and kubectl: they render the manifests in `deploy/`, and Helm installs into an API server that it is told.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::need;

/// Why they cannot be run here.
#[must_use]
pub fn missing() -> Option<String> {
    match std::env::var_os("IPWATCH_TEST_HELM").filter(|path| !path.is_empty()) {
        Some(_) => ["helm", "kubectl"].iter().find_map(|name| need::absent(program(name))),
        None => Some("no Helm (IPWATCH_TEST_HELM is not set)".to_owned()),
    }
}

/// Directory of kubectl, for a PATH.
#[must_use]
pub fn kubectl_dir() -> PathBuf {
    program("kubectl").parent().map(Path::to_owned).unwrap_or_default()
}

fn program(name: &str) -> PathBuf {
    let dir = PathBuf::from(std::env::var_os("IPWATCH_TEST_HELM").unwrap_or_default());
    dir.join(name).join(name)
}

/// The directory `deploy` of the repository.
#[must_use]
pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Runs `helm ARGS` without the configuration of the user.
#[must_use]
pub fn helm(args: &[&str]) -> Output {
    run(Command::new(program("helm")).args(args))
}

/// Starts `helm ARGS`.
///
/// # Panics
/// It cannot be started.
#[must_use]
pub fn begin(args: &[&str]) -> Child {
    let mut command = Command::new(program("helm"));
    prepare(command.args(args)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start helm")
}

/// The manifests that the chart renders with these arguments.
///
/// # Panics
/// Helm failed.
#[must_use]
pub fn template(args: &[&str]) -> Vec<Value> {
    let chart = deploy().join("helm/ipwatch");
    let chart = chart.to_str().expect("a path of text");
    let words = ["template", "ipwatch", chart, "--namespace", "ipwatch"];
    documents(&helm(&[&words, args].concat()))
}

/// The manifests that kustomize renders from this directory.
///
/// # Panics
/// kustomize failed.
#[must_use]
pub fn kustomize(dir: &Path) -> Vec<Value> {
    documents(&run(Command::new(program("kubectl")).arg("kustomize").arg(dir)))
}

fn run(command: &mut Command) -> Output {
    prepare(command).output().expect("run helm or kubectl")
}

fn prepare(command: &mut Command) -> &mut Command {
    let none = "/nonexistent";
    command.env("HOME", none).env("HELM_CONFIG_HOME", none).env("KUBECONFIG", none);
    command.stdin(Stdio::null())
}

fn documents(out: &Output) -> Vec<Value> {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    let all = text.split("---\n").map(|document| serde_norway::from_str(document).expect("YAML"));
    // An empty template is an empty document.
    all.filter(|document: &Value| !document.is_null()).collect()
}
