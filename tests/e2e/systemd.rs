//! ipwatch as a service of a real systemd, from the package: README's way to the first finding, install, readiness,
//! capabilities, watchdog, reload, upgrade, removal. Runs in a VM that `cargo xtask test --only systemd` boots.
//!
//! The tests share one service and run one after the other; each sets it up as required.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::fuse::Hung;
use support::pod::CNI_CACHE;
use support::poll::until;
use support::role::{Helper, Role};
use support::stuck::{self, How, Stuck};
use support::systemd::{self, property};
use support::unit::{self, status};
use support::{Config, Daemon, Lab, Netns, Sandbox, daemon, eventually, sys};

support::tests! {
    the_readme_leads_to_the_first_finding needs [Systemd, Fuse] @ Alone,
    an_installed_package_is_a_service_that_is_ready needs [Systemd] @ Alone,
    it_has_the_units_capabilities_and_no_other needs [Systemd] @ Alone,
    a_capability_that_is_taken_away_is_named needs [Systemd] @ Alone,
    a_finding_is_in_the_journal_with_its_runbook needs [Systemd, Fuse] @ Alone,
    a_reload_keeps_the_map needs [Systemd] @ Alone,
    a_core_that_stands_still_is_started_anew needs [Systemd, Fuse] @ Alone,
    an_upgrade_restarts_it_and_keeps_findings needs [Systemd, Fuse] @ Alone,
    what_is_removed_is_gone needs [Systemd] @ Alone,
    its_exposure_is_as_documented needs [Systemd] @ Alone,
}

/// README, of which the first block of commands below "Install" is typed.
const README: &str = include_str!("../../README.md");
/// What a new user types, at most, from nothing to an explained finding.
const COMMANDS: usize = 5;

/// Types a command in this directory, and returns what it printed. Nobody answers its questions.
#[track_caller]
fn typed(command: &str, dir: &Path) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(dir).stdin(std::process::Stdio::null());
    let out = shell.output().expect("a shell");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command}: {}\n{said}{error}", out.status);
    println!("# {command}\n{said}");
    said
}

/// A process of a pod hangs, with the configuration of the package and without a word from a runtime.
fn the_readme_leads_to_the_first_finding(lab: &Lab) {
    if systemd::installed().is_some() {
        systemd::purge();
    }
    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    fs::create_dir_all(CNI_CACHE).expect("make the cache");
    for entry in fs::read_dir(pod.cache()).expect("the pod's result").flatten() {
        fs::copy(entry.path(), Path::new(CNI_CACHE).join(entry.file_name())).expect("cache it");
    }
    let mut hung = Hung::mount(lab);
    let mut helper = stuck::start_as(How::Kill, &netns, &mut hung, |helper| helper.within(&pod));
    pod.await_in(helper.pid());
    stuck::hang(How::Kill, &mut helper);

    let (_, install) = README.split_once("\n## Install\n").expect("a section");
    let block = install.lines().skip_while(|line| !line.starts_with("    "));
    let commands: Vec<&str> = block
        .map_while(|line| line.strip_prefix("    "))
        .map(|line| line.split("  #").next().unwrap_or_default().trim())
        .collect();
    let ["cargo xtask package", steps @ .., last] = &commands[..] else { panic!("{commands:?}") };
    // As the first command leaves it.
    let made = lab.subdir("target").join("package");
    fs::create_dir(&made).expect("a directory");
    let package = &systemd::packages()[0];
    fs::copy(package, made.join(package.file_name().expect("a name"))).expect("copy the package");
    steps.iter().for_each(|command| drop(typed(command, lab.dir())));
    assert_eq!((property("ActiveState"), property("NRestarts")), ("active".into(), "0".into()));
    let said = eventually("the first finding", 30, || {
        let said = typed(last, lab.dir());
        let fires = said.contains(&lab.ip(7).to_string()) && !said.contains("seen once so far");
        fires.then_some(said)
    });
    let next = said.lines().find_map(|line| line.strip_prefix("Next: ")).expect("a next command");
    assert!(commands.len() < COMMANDS, "{commands:?}, and {next}");
    let told = typed(next, lab.dir());
    let name = format!("{}/{}", Sandbox::NAMESPACE, pod.name);
    let holder = format!("held by pid {} ", helper.pid());
    for part in [holder.as_str(), &name, "ip-held-by-stuck-process", "\nFIX ", "\nPROOF "] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    fs::remove_dir_all(CNI_CACHE).expect("remove the cache");
}

/// The firing finding about the process that hangs.
#[track_caller]
fn finding_of(stuck: &Stuck, service: &Daemon) -> Value {
    let ours = |finding: &Value| finding["subject"]["netns"]["inode"] == stuck.netns.inode;
    service.await_firing("ip-held-by-stuck-process", 20, ours)
}

fn same(before: &Value, after: &Value) {
    for key in ["id", "since", "firing_at"] {
        assert_eq!(before[key], after[key], "{key}: the same finding");
    }
}

fn an_installed_package_is_a_service_that_is_ready(lab: &Lab) {
    if systemd::installed().is_some() {
        systemd::purge();
    }
    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let holder = Helper::new(Role::Park).inside(&netns).comm("java").start();
    systemd::install(&systemd::packages()[0]);
    // dpkg returned after systemd, and therefore after the map was complete: do not wait.
    let service = systemd::ask(lab);
    let address = service.ip_in(lab.ip(7), netns.inode).expect("known at once");
    let holders = address["holders"].as_array().unwrap();
    assert!(
        holders.iter().any(|one| one["pid"] == holder.pid() && one["comm"] == "java"),
        "{address}"
    );
    assert_eq!(property("ActiveState"), "active");
    assert_eq!(property("UnitFileState"), "enabled");
    assert_eq!(property("Type"), "notify");
    let status = property("StatusText");
    assert!(status.contains("addresses in"), "{status}");
    // As for a client in its group.
    let socket = systemd::run(&["stat", "-c", "%G %a", "/run/ipwatch/ipwatch.sock"]);
    assert_eq!(socket.trim(), "ipwatch 660");
    let state = systemd::run(&["stat", "-c", "%U %a", "/var/lib/ipwatch"]);
    assert_eq!(state.trim(), "root 700");
    // Every file is as packed, and systemd has no complaint about the unit.
    assert_eq!(systemd::run(&["dpkg", "--verify", "ipwatch"]), "");
    systemd::run(&["systemd-analyze", "verify", "--man=no", "ipwatch.service"]);
    assert!(systemd::run(&["ipwatch", "query", "ip", &lab.ip(7).to_string()]).contains("java"));
}

/// The probes and their rungs, without counts.
fn probes(daemon: &Daemon) -> Vec<Value> {
    let mut probes = daemon.list("probes", &["doctor"]);
    for probe in probes.iter_mut().filter_map(Value::as_object_mut) {
        probe.retain(|key, _| ["event", "hook", "rung", "status"].contains(&key.as_str()));
    }
    probes
}

fn it_has_the_units_capabilities_and_no_other(lab: &Lab) {
    let service = systemd::service(lab, &Config::default(), "");
    let pid = systemd::main_pid();
    let granted = unit::mask(&unit::capabilities());
    assert_eq!(
        u64::from_str_radix(&status(pid, "CapBnd"), 16).unwrap(),
        granted,
        "not {granted:x}"
    );
    // `service::each_thread_has_the_capabilities_of_the_table` says which of its threads has which. One may end meanwhile.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let texts: Vec<String> =
        threads.filter_map(|one| fs::read_to_string(one.path().join("status")).ok()).collect();
    let of_all = |set: &str| {
        let lines = texts.iter().flat_map(|text| text.lines());
        let sets = lines.filter_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
        sets.fold(0, |all, one| all | u64::from_str_radix(one.trim(), 16).unwrap())
    };
    let permitted = of_all("CapPrm");
    assert!(permitted != 0 && permitted & !granted == 0, "{permitted:x}, of {granted:x}");
    assert_eq!((of_all("CapInh"), of_all("CapAmb")), (0, 0));
    assert_eq!((status(pid, "NoNewPrivs").as_str(), status(pid, "Seccomp").as_str()), ("1", "2"));
    // No mount namespace of its own: it would keep mounts that the node has unmounted.
    let mounts = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
    assert_eq!(mounts(&pid.to_string()), mounts("1"));
    assert_eq!(service.source("capabilities"), None);
    let best = {
        let free = Command::new(daemon::binary());
        let state = lab.subdir("state");
        let mut free = Daemon::spawn_by(free, lab, &Config::default(), &state);
        free.await_ready();
        probes(&free)
    };
    assert!(!best.is_empty());
    assert_eq!(probes(&service), best, "every probe on the same rung as without the cage");
    let down = service.document(&["doctor"]).unwrap()["sources"].take();
    let down = down.as_array().unwrap().iter().filter(|source| source["status"] == "down");
    assert_eq!(down.collect::<Vec<_>>(), Vec::<&Value>::new());
    // Created while it runs: reported by netlink, and read by entering.
    let late = Netns::new(lab, "late");
    late.ip(&format!("addr add {} dev lo", lab.cidr(2)));
    service.await_ip(lab.ip(2), late.inode);
}

fn a_capability_that_is_taken_away_is_named(lab: &Lab) {
    let all = unit::capabilities();
    assert!(all.len() > 5, "{all:?}");
    for name in &all {
        let lines = format!("CapabilityBoundingSet=~{name}");
        let service = systemd::service(lab, &Config::default(), &lines);
        let has = u64::from_str_radix(&status(systemd::main_pid(), "CapBnd"), 16).unwrap();
        assert_eq!(
            has,
            unit::mask(&all) & !unit::mask(std::slice::from_ref(name)),
            "it is taken away: {has:x}"
        );
        let source =
            service.source("capabilities").unwrap_or_else(|| panic!("{name} is not missed"));
        let detail = source["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("without {name} ")), "{detail}");
        assert_eq!(detail.matches("without").count(), 1, "{detail}");
        assert!(systemd::run(&["ipwatch", "doctor"]).contains(name));
    }
    systemd::drop_in("");
}

/// The journal entries about a finding, the newest last.
fn journal(finding: &Value) -> Vec<Value> {
    let id = format!("IPWATCH_ID={}", finding["id"].as_str().unwrap());
    let text = systemd::run(&["journalctl", "--output=json", &id]);
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}

fn a_finding_is_in_the_journal_with_its_runbook(lab: &Lab) {
    let service = systemd::service(lab, &Config::default().grace(1), "");
    let stuck = Stuck::new(lab);
    let finding = finding_of(&stuck, &service);
    let entry = eventually("the journal has it", 10, || {
        journal(&finding).into_iter().rfind(|entry| entry["IPWATCH_STATUS"] == "firing")
    });
    let code = "ip-held-by-stuck-process";
    let wanted: [(&str, &str); 7] = [
        ("IPWATCH_CODE", code),
        ("IPWATCH_IP", &lab.ip(1).to_string()),
        ("IPWATCH_NETNS", &stuck.netns.inode.to_string()),
        ("IPWATCH_SEVERITY", finding["severity"].as_str().unwrap()),
        // A process that belongs to no known pod asks nobody to act.
        ("PRIORITY", if finding["severity"] == "info" { "6" } else { "4" }),
        ("SYSLOG_IDENTIFIER", "ipwatch"),
        ("_SYSTEMD_UNIT", "ipwatch.service"),
    ];
    for (field, value) in wanted {
        assert_eq!(entry[field], value, "{field}: {entry}");
    }
    // Queries that an operator would use.
    let by_code = format!("IPWATCH_CODE={code}");
    let by_ip = format!("IPWATCH_IP={}", lab.ip(1));
    let said = systemd::run(&["journalctl", "--output=json", &by_code, &by_ip]);
    assert!(!said.trim().is_empty());
    // The catalog entry, with its variables replaced, and with the runbook.
    let id = format!("IPWATCH_ID={}", finding["id"].as_str().unwrap());
    let text = systemd::run(&["journalctl", "--no-pager", "--catalog", &id]);
    for part in [
        format!("ipwatch: {code}").as_str(),
        "WHAT IT MEANS",
        "KEEP IT FROM GETTING WORSE",
        "/sys/fs/fuse/connections/",
        &format!("ipwatch explain {}", finding["id"].as_str().unwrap()),
    ] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

/// The journal entries of this process.
fn log(pid: u32) -> String {
    systemd::run(&["journalctl", "--no-pager", "--output=cat", &format!("_PID={pid}")])
}

fn a_reload_keeps_the_map(lab: &Lab) {
    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let service = systemd::service(lab, &Config::default(), "");
    let (pid, since) =
        (systemd::main_pid(), service.await_ip(lab.ip(7), netns.inode)["since"].take());
    let reload = |text: &str, says: &str| {
        fs::write(systemd::CONFIG, text).unwrap();
        systemd::run(&["systemctl", "reload", "ipwatch.service"]);
        // systemd 252 does not wait for the end of a reload.
        until(&format!("it says {says:?}"), 10, || log(pid).contains(says));
        assert_eq!(property("ActiveState"), "active");
        assert_eq!(systemd::main_pid(), pid, "the same process");
        let address = service.ip_in(lab.ip(7), netns.inode).expect("still known");
        assert_eq!(address["since"], since, "the same tenure");
    };
    reload(&Config::default().grace(1).text(), "reloaded: stuck.grace");
    reload(
        "[stuck]\ngarce = \"2s\"\n",
        "the configuration was not reloaded, and the old one stays in force: ",
    );
    assert_eq!(property("NRestarts"), "0");
}

/// First stops only the thread of the core, then the whole process.
fn a_core_that_stands_still_is_started_anew(lab: &Lab) {
    let config = Config::default().grace(1);
    // Shorter than the unit's half minute.
    let service = systemd::service(lab, &config, "WatchdogSec=10s\nRestartSec=1s");
    let stuck = Stuck::new(lab);
    let before = finding_of(&stuck, &service);
    let first = systemd::main_pid();
    // The runtime's only thread is the first one.
    sys::Held::take(first).unwrap().await_end(60);
    let second = systemd::await_successor(first);
    assert_eq!(property("NRestarts"), "1");
    same(&before, &finding_of(&stuck, &service));

    sys::kill(second, libc::SIGSTOP).unwrap();
    systemd::await_successor(second);
    assert_eq!(property("NRestarts"), "2");
    same(&before, &finding_of(&stuck, &service));
    let log = systemd::run(&["journalctl", "--no-pager", "--unit=ipwatch.service"]);
    assert!(log.matches("Watchdog timeout").count() >= 2, "{log}");
    systemd::drop_in("");
}

fn an_upgrade_restarts_it_and_keeps_findings(lab: &Lab) {
    let [old, new] = systemd::packages();
    if systemd::installed().is_some() {
        systemd::purge();
    }
    systemd::install(&old);
    let config = Config::default().grace(1);
    let service = systemd::service(lab, &config, "");
    let (pid, version) = (systemd::main_pid(), systemd::installed().unwrap());
    let directory = || systemd::run(&["stat", "-c", "%i", "/run/ipwatch"]);
    let mounted = directory();
    let stuck = Stuck::new(lab);
    let before = finding_of(&stuck, &service);
    systemd::install(&new);
    assert_eq!(systemd::installed().unwrap(), format!("{version}-2"));
    assert_eq!(property("ActiveState"), "active");
    assert_ne!(systemd::main_pid(), pid, "restarted");
    same(&before, &finding_of(&stuck, &service));
    assert_eq!(fs::read_to_string(systemd::CONFIG).unwrap(), config.text(), "kept");
    // A service that was stopped stays stopped.
    systemd::run(&["systemctl", "stop", "ipwatch.service"]);
    systemd::install(&old);
    assert_eq!(property("ActiveState"), "inactive");
    assert_eq!(
        directory(),
        mounted,
        "a container that has it mounted sees the socket of the next start"
    );
}

fn what_is_removed_is_gone(lab: &Lab) {
    let service = systemd::service(lab, &Config::default(), "");
    let pid = systemd::main_pid();
    drop(service);
    systemd::run(&["dpkg", "--remove", "ipwatch"]);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "its process");
    for path in ["/usr/bin/ipwatch", "/run/ipwatch", "/usr/lib/systemd/system/ipwatch.service"] {
        assert!(!Path::new(path).exists(), "{path}");
    }
    assert_eq!(property("LoadState"), "not-found");
    assert!(log(pid).contains("stopping"), "in order: {}", log(pid));
    for path in ["/var/lib/ipwatch", systemd::CONFIG] {
        assert!(Path::new(path).exists(), "{path} is kept until the purge");
    }
    // The state is restored after a reinstall.
    systemd::install(&systemd::packages()[0]);
    assert_eq!(
        (property("ActiveState"), property("UnitFileState")),
        ("active".into(), "enabled".into())
    );
    systemd::purge();
    for path in ["/var/lib/ipwatch", "/etc/ipwatch", "/usr/bin/ipwatch", "/run/ipwatch"] {
        assert!(!Path::new(path).exists(), "{path}");
    }
    assert_eq!(property("LoadState"), "not-found");
    let links = systemd::run(&["find", "/etc/systemd", "-name", "ipwatch*"]);
    assert_eq!(links, "", "nothing of it is enabled");
}

fn its_exposure_is_as_documented(lab: &Lab) {
    let _service = systemd::service(lab, &Config::default(), "");
    let said = systemd::run(&["systemd-analyze", "--no-pager", "security", "ipwatch.service"]);
    let line = said.lines().find(|line| line.contains("Overall exposure level"));
    let line = line.unwrap_or_else(|| panic!("no sum: {said}"));
    // `→ Overall exposure level for ipwatch.service: 4.9 OK 🙂`
    let (_, sum) = line.split_once("ipwatch.service: ").expect("a sum");
    let sum: Vec<&str> = sum.split_whitespace().take(2).collect();
    let docs = include_str!("../../docs/service.md");
    let documented = format!("says {} (\"{}\")", sum[0], sum[1]);
    assert!(docs.contains(&documented), "docs/service.md does not say {documented:?}:\n{said}");
}
