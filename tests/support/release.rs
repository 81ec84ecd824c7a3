//! A release of the daemon under test: `cargo xtask test` packs it in two revisions, in the directories `1` and `2` of
//! `IPWATCH_TEST_RELEASE`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Lab;

/// Programs that read a release.
const READERS: [&str; 4] = ["dpkg", "rpm", "skopeo", "runc"];

/// Why it is missing.
#[must_use]
pub fn missing() -> Option<String> {
    if std::env::var_os("IPWATCH_TEST_RELEASE").is_none_or(|dir| dir.is_empty()) {
        return Some("no release (IPWATCH_TEST_RELEASE is not set)".into());
    }
    let runs = |name: &&str| {
        let status = Command::new(name).arg("--version").stdout(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    READERS.iter().find(|name| !runs(name)).map(|name| format!("no {name}"))
}

/// The only file of this revision whose name ends like that.
///
/// # Panics
/// There are none or several.
#[must_use]
pub fn file(revision: u32, ending: &str) -> PathBuf {
    let dir = PathBuf::from(std::env::var_os("IPWATCH_TEST_RELEASE").expect("a release"));
    let entries = fs::read_dir(dir.join(revision.to_string())).expect("its directory").flatten();
    let ends = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
    let found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(ends).collect();
    <[PathBuf; 1]>::try_from(found).map(|[one]| one).expect("one file with this ending")
}

/// Runs a program; what it says.
///
/// # Panics
/// It fails.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output().expect("start a program");
    let text = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(out.status.success(), "{command:?}: {}", text.concat());
    text.concat()
}

/// A root directory to install a package in, with a shell, and a systemctl that writes down what it was told: there is no
/// systemd in it.
#[derive(Debug)]
pub struct Root {
    pub dir: PathBuf,
}

/// Where that systemctl writes.
const TOLD: &str = "told";

impl Root {
    /// Makes it, empty of packages.
    ///
    /// # Panics
    /// A file cannot be written.
    #[must_use]
    pub fn new(lab: &Lab) -> Self {
        let dir = lab.subdir("root");
        for part in ["bin", "dev", "tmp", "run/systemd/system", "var/lib/rpm"] {
            fs::create_dir_all(dir.join(part)).unwrap();
        }
        for part in ["info", "updates", "triggers"] {
            fs::create_dir_all(dir.join("var/lib/dpkg").join(part)).unwrap();
        }
        for file in ["status", "available"] {
            fs::write(dir.join("var/lib/dpkg").join(file), "").unwrap();
        }
        // Without devices: what the scripts send there is a file.
        fs::write(dir.join("dev/null"), "").unwrap();
        fs::copy("/bin/busybox", dir.join("bin/busybox")).unwrap();
        for name in ["sh", "rm", "touch"] {
            symlink("busybox", dir.join("bin").join(name)).unwrap();
        }
        for name in ["systemctl", "systemd-sysusers", "journalctl"] {
            let program = dir.join("bin").join(name);
            fs::write(&program, format!("#!/bin/sh\necho {name} \"$@\" >> /{TOLD}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { dir }
    }

    /// What its service manager was told since the last call, about the service.
    ///
    /// # Panics
    /// The file cannot be removed.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        let file = self.dir.join(TOLD);
        let text = fs::read_to_string(&file).unwrap_or_default();
        if file.exists() {
            fs::remove_file(file).unwrap();
        }
        let ours = text.lines().filter_map(|line| line.strip_prefix("systemctl "));
        ours.filter(|line| line.contains("ipwatch.service")).map(str::to_owned).collect()
    }

    /// A file of it.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }

    /// Runs dpkg on it. Its scripts run in it, as on a node.
    ///
    /// # Panics
    /// dpkg fails.
    #[track_caller]
    pub fn dpkg(&self, words: &[&str], package: &Path) -> String {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.dir.display()));
        // dpkg looks for programs of a Debian, and writes everything twice.
        dpkg.args(["--force-bad-path", "--force-unsafe-io", "--force-confold"]);
        run(dpkg.args(words).arg(package))
    }

    /// Runs rpm on it, as [`Root::dpkg`].
    ///
    /// # Panics
    /// rpm fails.
    #[track_caller]
    pub fn rpm(&self, words: &[&str], package: &Path) -> String {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(&self.dir).args(["--dbpath", "/var/lib/rpm"]);
        // The root has no package with the shell of the scripts; a query takes no such option.
        rpm.args((!words.contains(&"-q")).then_some("--nodeps"));
        run(rpm.args(words).arg(package))
    }

    /// Runs the installed program in it.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    #[must_use]
    pub fn ipwatch(&self, words: &[&str]) -> String {
        run(Command::new("chroot").arg(&self.dir).arg("/usr/bin/ipwatch").args(words))
    }
}
