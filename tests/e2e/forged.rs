//! Runs of CNI plugins that do not come from the node's runtime: by a local user, by root of another user namespace,
//! and of a plugin that others can modify. Plugins are programs that anybody may start, with any environment.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::network::{self, Container, Network};
use support::poll::until;
use support::{Config, Daemon, Lab, Netns, eventually};

support::tests! {
    a_strangers_words_reach_no_finding needs [Cni],
    a_forged_del_hides_no_freed_ip needs [Cni],
    a_forged_del_of_a_user_namespace_hides_no_freed_ip needs [Cni],
    a_plugin_that_others_can_change_is_not_believed needs [Cni],
}

const NOBODY: u32 = 65534;

/// The text that root pasted in the end.
const HOSTILE: &str = "aaaaaaaaaaaé;id>/dev/null;#";

/// A plugin that is a script, executable by anybody.
fn plugin(lab: &Lab, body: &str) -> PathBuf {
    let path = network::bin_dir(lab).join("plugin");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    for path in [lab.dir(), &network::bin_dir(lab), &path] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    path
}

fn watching(lab: &Lab) -> Daemon {
    let config = Config::default().networks(&[network::conf_dir(lab)], &network::bin_dir(lab));
    Daemon::start(lab, &config)
}

/// A DEL for a container by this command.
fn del(mut command: Command, id: &str) -> Child {
    command.env_clear().env("CNI_COMMAND", "DEL").env("CNI_CONTAINERID", id);
    command.env("CNI_NETNS", "/run/netns/none").env("CNI_IFNAME", "eth0");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("start the plugin")
}

/// The plugin, run by an unprivileged user.
fn by_nobody(plugin: &Path) -> Command {
    let mut command = Command::new(plugin);
    command.uid(NOBODY).gid(NOBODY);
    command
}

/// The plugin, run by root of another user namespace.
fn by_other_root(plugin: &Path) -> Command {
    let mut command = Command::new("/usr/bin/unshare");
    command.args(["--user", "--map-root-user", "--"]).arg(plugin);
    command
}

/// How often `doctor` reports that this name was refused from the probes.
fn refused(daemon: &Daemon, name: &str) -> u64 {
    let document = daemon.document(&["doctor"]).expect("doctor answers");
    let all = document["refused"].as_array().cloned().unwrap_or_default();
    let own = |entry: &&Value| entry["source"] == "probes" && entry["name"] == name;
    all.iter().find(own).and_then(|entry| entry["count"].as_u64()).unwrap_or_default()
}

fn a_strangers_words_reach_no_finding(lab: &Lab) {
    let plugin = plugin(lab, "exit 7");
    let daemon = watching(lab);
    // A DEL that fails for a minute would be a finding.
    let until = Instant::now() + Duration::from_secs(75);
    let mut calls = 0;
    while Instant::now() < until {
        let mut call = del(by_nobody(&plugin), HOSTILE);
        assert_eq!(call.wait().unwrap().code(), Some(7));
        calls += 1;
        let findings = daemon.findings();
        let told = findings.iter().find(|finding| finding.to_string().contains("/dev/null"));
        assert!(told.is_none(), "{told:#?}");
        std::thread::sleep(Duration::from_secs(2));
    }
    assert!(refused(&daemon, "plugin-run") >= calls, "doctor counts them");
    let text = daemon.ask(&["doctor"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("plugin-run"), "and shows them");
    // The same id by root: it is invalid.
    del(Command::new(&plugin), HOSTILE).wait().unwrap();
    support::poll::until("it is counted", 10, || refused(&daemon, "container-id") == 1);
}

/// A pod whose reservation is removed while it lives, and a forged DEL for it.
fn goes_on(lab: &Lab, by: fn(&Path) -> Command) {
    let node = Netns::new(lab, "node");
    let subnet = format!("{}/29", lab.ip(0));
    let network = Network::new(lab, &node, "net", "bridge", &subnet, json!({ "bridge": "br1" }));
    let plugin = plugin(lab, "exec sleep 100");
    let daemon = watching(lab);
    daemon.await_source("host-local");
    let (container, pod) = (Container::new(lab, 1), Netns::new(lab, "pod"));
    let ip = network.add(&container, &pod).unwrap();
    daemon.await_ip(&ip, pod.inode);
    eventually("the reservation is known", 10, || {
        let all = daemon.list("reservations", &["query", "ipam", &ip]);
        all.into_iter().find(|entry| !entry["kernel"].as_array().is_none_or(Vec::is_empty))
    });
    let mut forged = del(by(&plugin), &container.id);
    std::thread::sleep(Duration::from_secs(1));
    assert!(forged.try_wait().unwrap().is_none(), "it goes on");
    std::fs::remove_file(network.reservations().join(&ip)).unwrap();
    daemon.await_firing("ip-released-but-held", 30, |finding| finding["subject"]["ip"] == ip);
    assert!(forged.try_wait().unwrap().is_none(), "it still goes on");
    forged.kill().unwrap();
    forged.wait().unwrap();
}

fn a_forged_del_hides_no_freed_ip(lab: &Lab) {
    goes_on(lab, by_nobody);
}

fn a_forged_del_of_a_user_namespace_hides_no_freed_ip(lab: &Lab) {
    goes_on(lab, by_other_root);
}

fn a_plugin_that_others_can_change_is_not_believed(lab: &Lab) {
    let script = plugin(lab, "exit 0");
    let daemon = watching(lab);
    let run = || assert!(del(Command::new(&script), "c1").wait().unwrap().success());
    run();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(refused(&daemon, "plugin-file"), 0, "root's own");
    chown(&script, Some(NOBODY), None).unwrap();
    run();
    until("a script", 10, || refused(&daemon, "plugin-file") == 1);
    // A program: the executed file is the plugin itself.
    chown(&script, Some(0), None).unwrap();
    let copied = network::bin_dir(lab).join("copied");
    std::fs::copy("/usr/bin/true", &copied).unwrap();
    std::fs::set_permissions(&copied, std::fs::Permissions::from_mode(0o775)).unwrap();
    assert!(del(Command::new(&copied), "c1").wait().unwrap().success());
    until("a program", 10, || refused(&daemon, "plugin-file") == 2);
    // A directory in its path.
    std::fs::set_permissions(&copied, std::fs::Permissions::from_mode(0o755)).unwrap();
    chown(lab.dir(), Some(NOBODY), None).unwrap();
    assert!(del(Command::new(&copied), "c1").wait().unwrap().success());
    chown(lab.dir(), Some(0), None).unwrap();
    until("a directory", 10, || refused(&daemon, "plugin-file") == 3);
}
