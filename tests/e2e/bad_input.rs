//! Errors around the daemon: one clear line that says what to do, and nothing is lost or half started.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use support::{Config, Daemon, Lab, Netns, daemon};

support::tests! {
    without_root_it_says_what_it_needs,
    a_stranger_is_turned_away_by_the_sockets_mode,
    a_stranger_is_turned_away_by_who_he_is,
    a_full_disk_costs_no_answer,
    a_corrupted_store_is_set_aside,
    an_unknown_key_is_named,
    a_bad_value_is_named,
    a_bad_ip_is_a_usage_error,
    without_a_daemon_it_says_how_to_start_one,
    a_second_daemon_does_not_take_the_socket,
    a_configuration_is_checked_without_a_daemon,
}

const NOBODY: u32 = 65534;

/// The binary where other users can run it: a checkout may be in a home directory.
fn copied(lab: &Lab) -> PathBuf {
    let to = lab.dir().join("ipwatch");
    fs::copy(daemon::binary(), &to).unwrap();
    for path in [lab.dir(), &to] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    to
}

/// Checks that it failed with exit code 2 and few lines, none of them a backtrace; returns them.
#[track_caller]
fn refused(out: &Output) -> String {
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    let lines = said.lines().filter(|line| !line.trim().is_empty()).count();
    assert!((1..=3).contains(&lines), "one clear line, or a few: {said}");
    said
}

fn without_root_it_says_what_it_needs(lab: &Lab) {
    let ipwatch = copied(lab);
    let state = lab.subdir("theirs");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    let socket = state.join("sock");
    let out = Command::new(&ipwatch)
        .args(["run", "--socket"])
        .arg(&socket)
        .arg("--state-dir")
        .arg(&state)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let said = refused(&out);
    assert!(said.contains("root") || said.contains("CAP_"), "{said}");
    assert!(!socket.exists(), "nothing half started");
}

fn a_stranger_is_turned_away_by_the_sockets_mode(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let mode = fs::metadata(daemon.socket()).unwrap().permissions().mode();
    // Without a group `ipwatch` on the node only root may open it.
    let group = fs::read_to_string("/etc/group").unwrap_or_default();
    let has_group = group.lines().any(|line| line.starts_with("ipwatch:"));
    assert_eq!(mode & 0o777, if has_group { 0o660 } else { 0o600 });
    let said = refused(&as_stranger(lab, &daemon));
    assert!(said.contains("root"), "says who may ask: {said}");
}

/// The daemon checks the client's credentials even if the socket's mode permits everybody.
fn a_stranger_is_turned_away_by_who_he_is(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    fs::set_permissions(daemon.socket(), fs::Permissions::from_mode(0o666)).unwrap();
    let said = refused(&as_stranger(lab, &daemon));
    assert!(said.contains("root") || said.contains("group"), "says who may ask: {said}");
    assert!(daemon.ask(&["query", "ip"]).status.success(), "and goes on answering root");
}

fn as_stranger(lab: &Lab, daemon: &Daemon) -> Output {
    let mut command = Command::new(copied(lab));
    command.arg("--socket").arg(daemon.socket()).args(["query", "ip"]);
    command.uid(NOBODY).gid(NOBODY).output().unwrap()
}

/// The map needs no disk. A failure to store is reported once.
fn a_full_disk_costs_no_answer(lab: &Lab) {
    let state = lab.subdir("full");
    rustix::mount::mount(
        "ipwatch-test",
        &state,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        c"size=16k",
    )
    .unwrap();
    // Fails when the disk is full, which is intended.
    let _ = fs::write(state.join("ballast"), vec![0; 1 << 16]);
    let daemon = Daemon::start_in(lab, &Config::default(), &state);
    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    daemon.await_ip(lab.ip(7), netns.inode);
    support::poll::until("it says so", 10, || daemon.log().contains("space"));
    let lines = daemon.log().lines().filter(|line| line.contains("space")).count();
    assert!(lines <= 3, "not again and again: {lines} times");
}

fn a_corrupted_store_is_set_aside(lab: &Lab) {
    let state = lab.subdir("state");
    let daemon = Daemon::start(lab, &Config::default());
    assert!(daemon.stop().success());
    let garbage = b"this is no database ".repeat(1000);
    let files: Vec<PathBuf> =
        fs::read_dir(&state).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(!files.is_empty(), "it keeps a store");
    for file in files.iter().filter(|file| file.is_file()) {
        fs::write(file, &garbage).unwrap();
    }
    let daemon = Daemon::start(lab, &Config::default());
    assert!(daemon.log().contains(state.to_str().unwrap()), "it names the file:\n{}", daemon.log());
    let kept = fs::read_dir(&state).unwrap().flatten();
    let kept = kept.filter(|entry| fs::read(entry.path()).is_ok_and(|bytes| bytes == garbage));
    assert!(kept.count() > 0, "what cannot be read is not thrown away");

    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    daemon.await_ip(lab.ip(7), netns.inode);
    let fresh = |file: &PathBuf| fs::read(file).is_ok_and(|bytes| bytes != garbage);
    assert!(files.iter().any(fresh), "a fresh store is there: {files:?}");
    assert!(daemon.stop().success());
    let daemon = Daemon::start(lab, &Config::default());
    let history = daemon.list("history", &["query", "history", &lab.ip(7).to_string()]);
    assert_eq!(history.len(), 1, "and it is one that keeps: {history:?}");
    assert!(history[0]["to"].is_null(), "one tenure over both: {history:?}");
}

fn an_unknown_key_is_named(lab: &Lab) {
    let said = does_not_start(lab, &Config::default().line("[stuck]\ngarce = \"2s\""));
    assert!(
        said.contains("`garce`, did you mean `grace`?") && said.contains("ipwatch.toml:"),
        "{said}"
    );
}

fn a_bad_value_is_named(lab: &Lab) {
    let said = does_not_start(lab, &Config::default().line("[stuck]\ngrace = \"soon\""));
    // The line number depends on the rungs that this run forbids in the same file.
    assert!(said.contains("ipwatch.toml:"), "{said}");
    assert!(said.contains("grace") && said.contains("\"soon\""), "key and value: {said}");
}

/// Checks that the daemon refuses to start, at once and without leaving anything; returns its message.
fn does_not_start(lab: &Lab, config: &Config) -> String {
    let mut daemon = Daemon::spawn(lab, config, &lab.subdir("state"));
    assert_eq!(daemon.ended(), Some(2), "{}", daemon.log());
    assert!(!daemon.socket().exists());
    assert_eq!(fs::read_dir(lab.subdir("state")).unwrap().count(), 0, "nothing half started");
    daemon.log()
}

fn a_bad_ip_is_a_usage_error(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    for bad in ["10.0.0.256", "10.0.0.1/33", "::g", "fe80::1/129"] {
        let said = refused(&daemon.ask(&["query", "ip", bad]));
        assert!(said.contains(bad), "{said}");
    }
}

fn without_a_daemon_it_says_how_to_start_one(lab: &Lab) {
    let socket = lab.dir().join("nobody-listens");
    let mut command = Command::new(daemon::binary());
    let out = command.arg("--socket").arg(&socket).args(["query", "ip"]).output().unwrap();
    let said = refused(&out);
    assert!(said.contains("ipwatch run") && said.contains(socket.to_str().unwrap()), "{said}");
}

fn a_second_daemon_does_not_take_the_socket(lab: &Lab) {
    let first = Daemon::start(lab, &Config::default());
    let mut second = Daemon::spawn(lab, &Config::default(), &lab.subdir("other"));
    assert_eq!(second.ended(), Some(2), "{}", second.log());
    assert!(first.ask(&["query", "ip"]).status.success(), "the first goes on");
}

/// `ipwatch config ARGS`.
fn config(args: &[&str]) -> Output {
    Command::new(daemon::binary()).arg("config").args(args).output().unwrap()
}

fn a_configuration_is_checked_without_a_daemon(lab: &Lab) {
    let file = lab.dir().join("mine.toml");
    let path = file.to_str().unwrap();
    let default = config(&["default"]);
    assert!(default.status.success());
    fs::write(&file, &default.stdout).unwrap();
    assert!(config(&["check", path]).status.success(), "what it prints it takes");
    let shown = config(&["show", "--config", path]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("[stuck]\ngrace = \"5s\"\n"), "{text}");

    fs::write(&file, "[stuck]\n\ngarce = \"2s\"\n").unwrap();
    let said = refused(&config(&["check", path]));
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    assert!(
        said.contains(&format!("{path}:3: unknown key `garce`, did you mean `grace`?")),
        "{said}"
    );
    fs::write(&file, "[otlp.headers]\nauthorization = \"hunter2\"\n").unwrap();
    let shown = config(&["show", "--config", path]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("authorization") && !text.contains("hunter2"), "{text}");
    refused(&config(&["check", lab.dir().join("absent.toml").to_str().unwrap()]));
}
