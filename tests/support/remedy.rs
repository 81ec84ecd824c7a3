//! What a person on call does with a finding: pastes its commands into a root shell.
//!
//! `ipwatch` is the binary under test, asked by the lab's daemon. `kubectl`, `crictl` and `calicoctl`, which no lab has,
//! are stand-ins that write their arguments down and succeed: what these tests show of them is which words they get.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::{Lab, daemon};

/// Programs that are not here.
const STAND_INS: [&str; 3] = ["kubectl", "crictl", "calicoctl"];

/// A root shell of a lab.
#[derive(Debug)]
pub struct Shell {
    bin: PathBuf,
    said: PathBuf,
}

impl Shell {
    /// One for the lab's daemon.
    #[must_use]
    pub fn new(lab: &Lab) -> Self {
        let (bin, said) = (lab.subdir("shell"), lab.dir().join("said"));
        let script = |name: &str, text: &str| {
            let path = bin.join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("write a program");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it one");
        };
        for name in STAND_INS {
            script(name, &format!("printf '%s\\n' {name} \"$@\" >>'{}'", said.display()));
        }
        let (binary, socket) = (daemon::binary(), lab.dir().join("ipwatch.sock"));
        let ask = format!("exec '{}' --socket '{}' \"$@\"", binary.display(), socket.display());
        script("ipwatch", &ask);
        Self { bin, said }
    }

    /// Runs a command as it was printed.
    #[must_use]
    pub fn run(&self, command: &str) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.bin.display());
        let mut sh = Command::new("sh");
        sh.args(["-c", command]).env("PATH", path).current_dir(&self.bin);
        sh.output().expect("run sh")
    }

    /// Runs it: it says that it did what it was to do.
    #[track_caller]
    pub fn succeeds(&self, command: &str) {
        let out = self.run(command);
        assert!(out.status.success(), "{command}: {out:?}");
    }

    /// Runs it: it says that there was nothing to be done.
    #[track_caller]
    pub fn refuses(&self, command: &str) {
        let out = self.run(command);
        assert!(!out.status.success(), "{command}: {out:?}");
    }

    /// What the stand-ins were called with since the last time, a word a line.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        let _ = fs::remove_file(&self.said);
        said.lines().map(str::to_owned).collect()
    }
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
    let steps = finding["steps"].as_array().expect("steps").iter();
    let of = steps.filter(|step| step["changes"].as_bool().unwrap_or_default() == changes);
    of.filter_map(|step| step["command"].as_str().map(str::to_owned)).collect()
}

/// The only command that changes something and has this in it.
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
