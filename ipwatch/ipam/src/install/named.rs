//! The directories that were named when the plugin was installed (`--conf-dir`, `--bin-dir`). `ipwatch cni uninstall`, which
//! a package runs without options, must find the same files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{self, Attributes, make_dir, read_small};

/// The file in the state directory. No network has this name ([`Config::is_named`](crate::config::Config::is_named)).
const FILE: &str = ".named";
/// Longest file, in bytes.
const LONGEST: usize = 64 * 1024;

/// The named directories.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Named {
    /// Of network configurations.
    pub conf: Vec<PathBuf>,
    /// Of plugins.
    pub bin: Vec<PathBuf>,
}

impl Named {
    /// What was named at earlier installations. Nothing if that cannot be read.
    #[must_use]
    pub fn read(state_dir: &Path) -> Self {
        let bytes = read_small(&state_dir.join(FILE), LONGEST).ok().flatten();
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Adds what is named now.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(state_dir: &Path, conf: &[PathBuf], bin: &[PathBuf]) -> io::Result<()> {
        let before = Self::read(state_dir);
        let mut all = before.clone();
        for (all, new) in [(&mut all.conf, conf), (&mut all.bin, bin)] {
            all.extend(new.iter().cloned());
            all.sort();
            all.dedup();
        }
        if all == before {
            return Ok(());
        }
        make_dir(state_dir)?;
        let bytes = serde_json::to_vec(&all)?;
        files::replace(&state_dir.join(FILE), &bytes, Attributes::PRIVATE)
    }

    /// Forgets it all: nothing is installed any more.
    pub fn forget(state_dir: &Path) {
        let _ = fs::remove_file(state_dir.join(FILE));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn each_directory_is_remembered_once() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        assert_eq!(Named::read(&state), Named::default());
        Named::add(&state, &[], &[]).unwrap();
        assert!(!state.exists(), "there is nothing to remember");
        let path = |text: &str| vec![PathBuf::from(text)];
        Named::add(&state, &path("/etc/cni/other"), &path("/b")).unwrap();
        Named::add(&state, &path("/etc/cni/other"), &path("/a")).unwrap();
        let known = Named::read(&state);
        assert_eq!(known.conf, path("/etc/cni/other"));
        assert_eq!(known.bin, ["/a", "/b"].map(PathBuf::from));
        Named::forget(&state);
        assert_eq!(Named::read(&state), Named::default());
    }
}
