//! Runs the commands of a finding as a person on call does: pasted into a root shell.
//!
//! `ipwatch` is the binary under test; the commands contain the socket of the lab's daemon. `kubectl`, `crictl` and
//! `calicoctl`, which a lab does not have, are stand-ins that record their arguments and succeed: the tests show
//! which words they get. With a containerd, `crictl` passes the request on to it ([`Shell::with_runtime`]); with an
//! API server, the test runs Debian's `kubectl` ([`Shell::with_kubectl`]).
//!
//! Every form of command in a finding of a test, whether it changes something or only looks, must be run by some
//! test: the harness counts both ([`Forms`]), and a complete run in which a form was not run fails. It counts by code
//! and form: a form that was only run for another code is listed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::{Lab, Netns, daemon, helm, pod};

/// Programs that are replaced by stand-ins.
const STAND_INS: [&str; 3] = ["kubectl", "crictl", "calicoctl"];

/// Prefix of a line about a form of command in a finding, and about one that was run.
const PRINTED: &str = "PRINTED ";
const RAN: &str = "RAN ";

/// A root shell in a lab.
#[derive(Debug)]
pub struct Shell {
    bin: PathBuf,
    said: PathBuf,
    /// The netns of the node, if it is one of the lab.
    netns: Option<PathBuf>,
    kubeconfig: Option<PathBuf>,
}

impl Shell {
    /// A shell on the lab's node.
    #[must_use]
    pub fn new(lab: &Lab) -> Self {
        let (bin, said) = (lab.subdir("shell"), lab.dir().join("said"));
        let shell = Self { bin, said, netns: None, kubeconfig: None };
        let missing = ["journalctl", "arping"].into_iter().filter(|name| !is_installed(name));
        for name in STAND_INS.into_iter().chain(missing) {
            let noted = shell.noted(name);
            shell.program(name, &noted);
        }
        shell.program("ipwatch", &format!("exec '{}' \"$@\"", daemon::binary().display()));
        shell
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("write a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it one");
    }

    /// Shell code that records the arguments of a program.
    fn noted(&self, name: &str) -> String {
        format!("printf '%s\\n' {name} \"$@\" >>'{}'", self.said.display())
    }

    /// Replaces `crictl` by a program that passes requests on to this runtime.
    #[must_use]
    pub fn with_runtime(self, socket: &Path) -> Self {
        let (noted, client) = (self.noted("crictl"), pod::client());
        let client = format!("'{}' '{}'", client.display(), socket.display());
        let does = format!(
            "{noted}\ncase $1 in\nstopp) exec {client} stop \"$2\" ;;\nrmp) exec {client} remove \"$2\" ;;\n\
             inspectp) {client} list | grep -F -- \"$2\" ;;\n*) exec {client} list ;;\nesac"
        );
        self.program("crictl", &does);
        self
    }

    /// Replaces `docker` by a program that uses the API of this dockerd: a lab needs no docker client.
    #[must_use]
    pub fn with_docker(self, socket: &Path) -> Self {
        let noted = self.noted("docker");
        let ask =
            format!("curl --silent --fail --max-time 50 --unix-socket '{}' -X", socket.display());
        let does = format!(
            "{noted}\ncase $1 in\nrm) exec {ask} DELETE \"http://d/containers/$2\" ;;\n\
             stop) exec {ask} POST \"http://d/containers/$2/stop\" ;;\nesac\nexit 1"
        );
        self.program("docker", &does);
        self
    }

    /// Runs the commands on a node that is this netns.
    #[must_use]
    pub fn within(self, netns: &Netns) -> Self {
        Self { netns: Some(netns.path().to_owned()), ..self }
    }

    /// Replaces `kubectl` by the real one, which uses this kubeconfig.
    #[must_use]
    pub fn with_kubectl(mut self, config: &Path) -> Self {
        self.kubeconfig = Some(config.to_owned());
        let (noted, real) = (self.noted("kubectl"), helm::kubectl_dir().join("kubectl"));
        self.program("kubectl", &format!("{noted}\nexec '{}' \"$@\"", real.display()));
        self
    }

    /// Runs a command as it was printed.
    #[must_use]
    pub fn run(&self, command: &str) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.bin.display());
        // Without another program in between: those of busybox prefer their own applets.
        let mut sh = match &self.netns {
            Some(netns) => {
                let mut nsenter = Command::new("nsenter");
                nsenter.arg(format!("--net={}", netns.display())).arg("sh");
                nsenter
            }
            None => Command::new("sh"),
        };
        sh.args(["-c", command]).env("PATH", path).current_dir(&self.bin);
        sh.envs(self.kubeconfig.as_ref().map(|config| ("KUBECONFIG", config)));
        ran(command);
        sh.output().expect("run sh")
    }

    /// Runs the commands that only look, and checks that their programs accept them.
    #[track_caller]
    pub fn looks(&self, finding: &Value) {
        for command in looks(finding) {
            let out = self.run(&command);
            let said = String::from_utf8_lossy(&out.stderr).to_lowercase();
            let known =
                !["usage", "unknown", "unrecognized", "invalid option", "not found", "syntax"]
                    .iter()
                    .any(|word| said.contains(word));
            let started = !matches!(out.status.code(), None | Some(124..=127));
            assert!(known && started, "{command}: {out:?}");
        }
    }

    /// Runs a command and checks that it succeeds.
    #[track_caller]
    pub fn succeeds(&self, command: &str) {
        let out = self.run(command);
        assert!(out.status.success(), "{command}: {out:?}");
    }

    /// Runs a command and checks that its precondition fails.
    #[track_caller]
    pub fn refuses(&self, command: &str) {
        let out = self.run(command);
        assert!(!out.status.success(), "{command}: {out:?}");
    }

    /// Runs a command again when its finding is resolved: whether it succeeds or not, the runtime of
    /// [`Self::with_runtime`] must be unchanged.
    #[track_caller]
    pub fn changes_nothing(&self, command: &str) {
        let list = || {
            let out = self.run("crictl pods");
            assert!(out.status.success(), "{out:?}");
            // In no particular order.
            let list = String::from_utf8_lossy(&out.stdout).into_owned();
            list.lines().map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let before = list();
        let out = self.run(command);
        assert_eq!(list(), before, "{command}: {out:?}");
    }

    /// The calls of the stand-ins since the last time, a word a line.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        let _ = fs::remove_file(&self.said);
        said.lines().map(str::to_owned).collect()
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

/// A code and the form of a command of its finding, as in a line of a test's log.
type Printed = String;

/// Commands of findings that this test has seen, each with its entries for the table at the end: two findings may
/// have the same command.
static SEEN: Mutex<BTreeMap<String, BTreeSet<Printed>>> = Mutex::new(BTreeMap::new());

/// Records the commands of a finding, for the table at the end.
pub fn printed(finding: &Value) {
    let code = finding["code"].as_str().unwrap_or_default();
    let steps = ["steps", "remediation"].map(|key| finding[key].as_array());
    for step in steps.into_iter().flatten().flatten() {
        let Some(command) = step["command"].as_str() else { continue };
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{code}\t{}", form(step));
        if !seen.values().any(|known| known.contains(&line)) {
            println!("{PRINTED}{line}");
        }
        seen.entry(command.to_owned()).or_default().insert(line);
    }
}

/// Records that a command was run as printed.
pub fn ran(command: &str) {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    for line in seen.get(command).into_iter().flatten() {
        println!("{RAN}{line}");
    }
}

/// What programs are told to do, in the commands of findings.
const VERBS: [&str; 39] = [
    "addr",
    "check",
    "cluster",
    "cordon",
    "del",
    "delete",
    "describe",
    "dev",
    "explain",
    "fix",
    "get",
    "inspectp",
    "ip",
    "ipam",
    "ipwatch",
    "link",
    "neigh",
    "netns",
    "patch",
    "pod",
    "pods",
    "query",
    "release",
    "rm",
    "rmp",
    "route",
    "scan",
    "set",
    "sh",
    "show",
    "stop",
    "stopp",
    "workloadendpoint",
    "cleanup_net",
    "tree",
    "json",
    "1",
    "0",
    "w",
];

/// A command without its values: programs, options and verbs. A run that only tests whether something is unchanged is
/// shown as `still`, because its form depends on what else is known.
fn form(step: &Value) -> String {
    let mut parts: Vec<String> = Vec::new();
    let runs = step["runs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut piped = String::new();
    for (at, run) in runs.iter().enumerate() {
        let words = run["argv"].as_array().into_iter().flatten().filter_map(Value::as_str);
        // Present only if the daemon's socket is not the default.
        let words = words.filter(|word| !word.starts_with("--socket="));
        let words: Vec<&str> = words.enumerate().map(|(n, word)| shape(n, word)).collect();
        piped.push_str(&words.join(" "));
        if let Some((_, name)) = run["to"].as_str().and_then(|to| to.rsplit_once('/')) {
            piped.push_str(&format!(" > {name}"));
        }
        if run["pipe"] == true {
            piped.push_str(" | ");
            continue;
        }
        let asks =
            at + 1 < runs.len() && (words.join(" ").contains("grep -q") || words[0] == "test");
        let part = std::mem::take(&mut piped);
        let part = if asks { "still".to_owned() } else { part };
        if parts.last() != Some(&part) {
            parts.push(part);
        }
    }
    parts.join(" && ")
}

/// A word of a command if it must be ours; of an option its name.
fn shape(at: usize, word: &str) -> &str {
    let script = word.contains("$1");
    if at == 0 || script || VERBS.contains(&word) || word.ends_with(".whereabouts.cni.cncf.io") {
        return word;
    }
    if word.starts_with('-') { word.split_inclusive('=').next().unwrap_or(word) } else { "_" }
}

/// The forms of commands in findings of a run, and those that were run, each by form and code.
#[derive(Debug, Default)]
pub(crate) struct Forms {
    /// With a test whose finding has the form.
    printed: BTreeMap<(String, String), String>,
    ran: BTreeSet<(String, String)>,
}

impl Forms {
    /// Adds the lines that a test printed.
    pub(crate) fn read(&mut self, test: &str, log: &str) {
        let key = |line: &str| {
            let (code, form) = line.split_once('\t')?;
            Some((form.to_owned(), code.to_owned()))
        };
        for line in log.lines() {
            if let Some(ran) = line.strip_prefix(RAN) {
                self.ran.extend(key(ran));
            } else if let Some(key) = line.strip_prefix(PRINTED).and_then(key) {
                self.printed.entry(key).or_insert_with(|| test.to_owned());
            }
        }
    }

    /// Prints the number of forms, and those that no test ran, for any code or for this one. Returns whether each
    /// form was run.
    pub(crate) fn print(&self) -> bool {
        let left = self.printed.iter().filter(|(key, _)| !self.ran.contains(*key));
        let (other, never): (Vec<_>, Vec<_>) =
            left.partition(|((form, _), _)| self.ran.iter().any(|(ran, _)| ran == form));
        if !self.printed.is_empty() {
            let forms: BTreeSet<_> = self.printed.keys().map(|(form, _)| form).collect();
            let left: BTreeSet<_> = never.iter().map(|((form, _), _)| form).collect();
            let (all, ran) = (forms.len(), forms.len() - left.len());
            println!("commands of findings: {all} forms, of which {ran} were run by a test");
            let (all, ran) = (self.printed.len(), self.printed.len() - other.len() - never.len());
            println!("by code and form: {all}, of which {ran} were run by a test");
        }
        for ((form, code), test) in &other {
            println!("run for another code alone: {form} ({code} of {test})");
        }
        for ((form, code), test) in &never {
            println!("never run: {form} ({code} of {test})");
        }
        never.is_empty()
    }
}

/// The forms of all commands of a finding.
#[must_use]
pub fn forms(finding: &Value) -> BTreeSet<String> {
    let steps = finding["steps"].as_array().into_iter().flatten();
    steps.filter(|step| step["command"].is_string()).map(form).collect()
}

/// The commands of a finding that change something.
#[must_use]
pub fn changes(finding: &Value) -> Vec<String> {
    commands(finding, true)
}

/// The commands of a finding that only look.
#[must_use]
pub fn looks(finding: &Value) -> Vec<String> {
    commands(finding, false)
}

fn commands(finding: &Value, changes: bool) -> Vec<String> {
    printed(finding);
    let steps = finding["steps"].as_array().expect("steps").iter();
    let of = steps.filter(|step| step["changes"].as_bool().unwrap_or_default() == changes);
    of.filter_map(|step| step["command"].as_str().map(str::to_owned)).collect()
}

/// The only command that changes something and contains `with`.
///
/// # Panics
/// There is none, or more than one.
#[must_use]
#[track_caller]
pub fn change(finding: &Value, with: &str) -> String {
    let mut all = changes(finding);
    all.retain(|command| command.contains(with));
    assert_eq!(all.len(), 1, "one command with {with}: {:#?}", finding["steps"]);
    all.remove(0)
}
