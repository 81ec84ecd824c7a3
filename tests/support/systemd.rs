//! A systemd that is process 1 of a machine of the tests' own, and ipwatch as a service of it, installed from the
//! packages that `IPWATCH_TEST_DEBS` names a directory of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{Config, Daemon, Lab, eventually};

/// Where a node's administrator changes the unit.
const DROP_INS: &str = "/etc/systemd/system/ipwatch.service.d";
/// Its configuration.
pub const CONFIG: &str = "/etc/ipwatch/ipwatch.toml";

/// Why there is none here.
#[must_use]
pub fn missing() -> Option<String> {
    if std::env::var_os("IPWATCH_TEST_DEBS").is_none() {
        return Some("this is no VM that boots systemd for the tests".into());
    }
    crate::need::absent("/run/systemd/system")
}

/// Runs a program and returns what it printed.
///
/// # Panics
/// It failed.
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

/// Runs a program, whatever becomes of it.
#[must_use]
#[track_caller]
pub fn output(words: &[&str]) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(std::process::Stdio::null());
    command.output().unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// What systemd says of the service.
#[must_use]
#[track_caller]
pub fn property(name: &str) -> String {
    let text = run(&["systemctl", "show", "--value", "--property", name, "ipwatch.service"]);
    text.trim().to_owned()
}

/// The daemon's pid; 0: none runs.
#[must_use]
#[track_caller]
pub fn main_pid() -> u32 {
    property("MainPID").parse().expect("a pid")
}

/// The two packages, the older first.
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

/// Installs a package, without a question.
#[track_caller]
pub fn install(package: &Path) {
    let package = package.to_str().expect("a path that is text");
    let out = output(&["dpkg", "--force-confold", "--force-unsafe-io", "--install", package]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "dpkg: {said}\n{}", String::from_utf8_lossy(&out.stdout));
    println!("{}{said}", String::from_utf8_lossy(&out.stdout));
}

/// The version of the package that is installed.
#[must_use]
pub fn installed() -> Option<String> {
    let out = output(&["dpkg-query", "-W", "-f=${db:Status-Abbrev} ${Version}", "ipwatch"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.strip_prefix("ii ").map(|version| version.trim().to_owned())
}

/// Leaves nothing of the package.
#[track_caller]
pub fn purge() {
    run(&["dpkg", "--purge", "ipwatch"]);
    drop_in("");
}

/// Lines that change the service, from its next start on; none: it is as the package has it.
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

/// The service with this configuration and these changes, started anew: `systemctl` comes back when it is ready.
/// The package is installed unless it is.
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

/// The running service, to be asked. Its log is followed for as long.
#[must_use]
pub fn ask(lab: &Lab) -> Daemon {
    let mut follow = Command::new("journalctl");
    follow.args(["--follow", "--lines=0", "--output=cat", "--unit=ipwatch.service"]);
    Daemon::of_a_service(follow, lab, Path::new("/run/ipwatch/ipwatch.sock"))
}

/// Waits until another process than this one is the service, and ready.
#[track_caller]
pub fn await_successor(of: u32) -> u32 {
    eventually("systemd starts it anew", 60, || {
        let pid = main_pid();
        (pid != 0 && pid != of && property("ActiveState") == "active").then_some(pid)
    })
}
