//! The programs of a containerd: the installed ones, or newer ones that `cargo xtask test` unpacks.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::PLUGINS;

/// Names the directory of the newer ones, unpacked as in `/`.
const VARIABLE: &str = "IPWATCH_TEST_NEWER";

/// Where the programs of a containerd are.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub(super) containerd: PathBuf,
    /// Directory of the CNI plugins.
    pub(super) plugins: PathBuf,
}

impl Programs {
    pub(super) fn of(newer: bool) -> Self {
        let root = if newer { root().expect("needs [NewerContainerd]") } else { "/".into() };
        let plugins = root.join(PLUGINS.trim_start_matches('/'));
        Self { containerd: root.join("usr/bin/containerd"), plugins }
    }
}

fn root() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from).filter(|root| !root.as_os_str().is_empty())
}

/// Why the newer ones cannot be run here: they may need a newer libc.
pub(crate) fn missing() -> Option<String> {
    let Some(root) = root() else {
        return Some(format!("no {VARIABLE}: cargo xtask test sets it"));
    };
    let runs = |program: &Path| {
        Command::new(program).arg("-v").output().is_ok_and(|out| out.status.success())
    };
    let programs = ["usr/bin/containerd", "usr/bin/containerd-shim-runc-v2"];
    let mut programs = programs.map(|name| root.join(name)).into_iter();
    let bad = programs.find(|program| !runs(program));
    bad.map(|program| format!("{} does not run here", program.display()))
}
