//! Keeps the daemons of Debian's packages stopped while apt installs them: the tests run daemons of their own.
//!
//! A package starts its units by deb-systemd-invoke, which ignores `RUNLEVEL`. It starts no unit that is masked. A mask
//! below /run is gone after a reboot, even if this program is killed before it removes the mask.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{command, succeeds};

/// Units of the packages in [`super::E2E`] and [`super::DOCKER`], and of those they depend on.
const UNITS: [&str; 9] = [
    "containerd.service",
    "docker.service",
    "docker.socket",
    "keepalived.service",
    "podman.service",
    "podman.socket",
    "podman-auto-update.service",
    "podman-auto-update.timer",
    "podman-restart.service",
];

/// The units that apt may bring, masked. Dropped, they are unmasked and disabled, so that the next boot does not start them
/// either.
#[derive(Debug)]
pub(super) struct Stopped {
    systemctl: PathBuf,
    units: Vec<&'static str>,
}

impl Stopped {
    /// Masks the units that this machine does not have yet. `None` without systemd.
    pub(super) fn here() -> Option<Self> {
        Path::new("/run/systemd/system").is_dir().then(|| Self::by(Path::new("systemctl")))
    }

    fn by(systemctl: &Path) -> Self {
        let ask = |words: &[&str]| succeeds(Command::new(systemctl).args(words));
        // A unit that is there is a person's: it goes on as it is.
        let new = UNITS.into_iter().filter(|unit| !ask(&["cat", unit]));
        let units: Vec<&str> = new.collect();
        if !units.is_empty() && !ask(&[&["mask", "--runtime"], units.as_slice()].concat()) {
            println!("systemctl cannot mask {}: apt may start them", units.join(", "));
        }
        Self { systemctl: systemctl.into(), units }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for unit in &self.units {
            let systemctl = self.systemctl.to_string_lossy();
            succeeds(&mut command(&[&systemctl, "unmask", "--runtime", unit]));
            if succeeds(&mut command(&[&systemctl, "cat", unit])) {
                succeeds(&mut command(&[&systemctl, "disable", unit]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::shell::make_program;

    #[test]
    fn units_that_come_with_a_package_are_neither_started_nor_enabled() {
        let dir = std::env::temp_dir().join(format!("xtask-units-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (systemctl, log, there) = (dir.join("systemctl"), dir.join("log"), dir.join("there"));
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = cat ] && exec grep -qx \"$2\" '{}'\necho \"$@\" >> '{}'\n",
            there.display(),
            log.display()
        );
        make_program(&systemctl, &script);
        fs::write(&there, "docker.service\ndocker.socket\n").unwrap();
        let stopped = Stopped::by(&systemctl);
        let masked = fs::read_to_string(&log).unwrap();
        fs::write(&there, "docker.service\ndocker.socket\ncontainerd.service\n").unwrap();
        fs::write(&log, "").unwrap();
        drop(stopped);
        let after = fs::read_to_string(&log).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert!(
            masked.starts_with("mask --runtime containerd.service keepalived.service "),
            "{masked}"
        );
        assert!(!masked.contains("docker"), "a person's own is left alone: {masked}");
        assert!(
            after.starts_with("unmask --runtime containerd.service\ndisable containerd.service\n"),
            "{after}"
        );
        assert_eq!(after.matches("disable ").count(), 1, "{after}");
        assert_eq!(after.matches("unmask ").count(), UNITS.len() - 2, "{after}");
    }
}
