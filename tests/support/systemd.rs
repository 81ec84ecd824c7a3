//! ipwatch as a service of a real systemd, which is process 1 of the test's VM. The packages are in the directory
//! `IPWATCH_TEST_DEBS`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{Config, Daemon, Lab, eventually};

/// Directory of the administrator's drop-ins of the unit.
const DROP_INS: &str = "/etc/systemd/system/ipwatch.service.d";
/// The configuration of the service.
pub const CONFIG: &str = "/etc/ipwatch/ipwatch.toml";

/// Why these tests cannot run here.
#[must_use]
pub fn missing() -> Option<String> {
    if std::env::var_os("IPWATCH_TEST_DEBS").is_none() {
        return Some("this is no VM that boots systemd for the tests".into());
    }
    crate::need::absent("/run/systemd/system")
}

/// Runs a program and returns its output.
///
/// # Panics
/// The program failed.
#[track_caller]
pub fn run(words: &[&str]) -> String {
    let out = output(words);
    assert!(
        out.status.success(),
        "{words:?}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Runs a program and ignores its exit code.
#[must_use]
#[track_caller]
pub fn output(words: &[&str]) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(std::process::Stdio::null());
    command.output().unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// A property of the service, from systemd.
#[must_use]
#[track_caller]
pub fn property(name: &str) -> String {
    let text = run(&["systemctl", "show", "--value", "--property", name, "ipwatch.service"]);
    text.trim().to_owned()
}

/// The daemon's pid; 0 if it does not run.
#[must_use]
#[track_caller]
pub fn main_pid() -> u32 {
    property("MainPID").parse().expect("a pid")
}

/// Both packages, the older first.
#[must_use]
pub fn packages() -> [PathBuf; 2] {
    let dir = std::env::var_os("IPWATCH_TEST_DEBS").expect("packages");
    let entries = fs::read_dir(dir).expect("their directory").flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "deb")).collect();
    // `ipwatch_0.1.0-2_amd64.deb` is the newer one.
    all.sort_by_key(|path| path.to_string_lossy().contains("-2_"));
    all.try_into().expect("two packages")
}

/// Installs a package without asking.
#[track_caller]
pub fn install(package: &Path) {
    let package = package.to_str().expect("a path that is text");
    let out = output(&["dpkg", "--force-confold", "--force-unsafe-io", "--install", package]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "dpkg: {said}\n{}", String::from_utf8_lossy(&out.stdout));
    println!("{}{said}", String::from_utf8_lossy(&out.stdout));
}

/// The version of the installed package.
#[must_use]
pub fn installed() -> Option<String> {
    let out = output(&["dpkg-query", "-W", "-f=${db:Status-Abbrev} ${Version}", "ipwatch"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.strip_prefix("ii ").map(|version| version.trim().to_owned())
}

/// Removes the package with its configuration.
#[track_caller]
pub fn purge() {
    run(&["dpkg", "--purge", "ipwatch"]);
    drop_in("");
}

/// Replaces the drop-in of the service by these lines; it takes effect at the next start. Empty: none.
#[track_caller]
pub fn drop_in(lines: &str) {
    let _ = fs::remove_dir_all(DROP_INS);
    if !lines.is_empty() {
        fs::create_dir_all(DROP_INS).expect("make a directory");
        let text = format!("[Service]\n{lines}\n");
        fs::write(Path::new(DROP_INS).join("test.conf"), text).expect("write a drop-in");
    }
    run(&["systemctl", "daemon-reload"]);
}

/// Restarts the service with this configuration and drop-in; `systemctl` returns when it is ready. Installs the
/// package if it is missing.
#[must_use]
#[track_caller]
pub fn service(lab: &Lab, config: &Config, lines: &str) -> Daemon {
    if installed().is_none() {
        install(&packages()[0]);
    }
    drop_in(lines);
    fs::write(CONFIG, config.text()).expect("write the configuration");
    run(&["systemctl", "reset-failed", "ipwatch.service"]);
    run(&["systemctl", "restart", "ipwatch.service"]);
    ask(lab)
}

/// A handle for the running service, whose log is followed until it is dropped.
#[must_use]
pub fn ask(lab: &Lab) -> Daemon {
    let mut follow = Command::new("journalctl");
    follow.args(["--follow", "--lines=0", "--output=cat", "--unit=ipwatch.service"]);
    Daemon::of_a_service(follow, lab, Path::new("/run/ipwatch/ipwatch.sock"))
}

/// Waits until the service runs with another pid than this, and is ready.
#[track_caller]
pub fn await_successor(of: u32) -> u32 {
    eventually("systemd starts it anew", 60, || {
        let pid = main_pid();
        (pid != 0 && pid != of && property("ActiveState") == "active").then_some(pid)
    })
}
