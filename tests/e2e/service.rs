//! What a service manager sees of the daemon, tested with a real socket in its place: readiness, the watchdog,
//! reload, stop, the journal's fields, and the unit's capabilities. [`super::systemd`] tests the real one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use support::journal::Journal;
use support::stuck::Stuck;
use support::{Config, Daemon, Lab, Netns, daemon, eventually, poll, sys, unit};

support::tests! {
    it_tells_when_it_is_ready_and_that_it_is_alive,
    one_that_stands_still_is_missed_and_its_successor_keeps_the_findings needs [Fuse],
    a_reload_takes_over_what_needs_no_restart_and_keeps_the_map,
    a_shorter_grace_is_for_who_hangs_already_too needs [Fuse],
    a_configuration_broken_at_reload_changes_nothing,
    doctor_asks_the_daemon_of_the_configuration_that_is_named,
    the_journal_gets_fields needs [Fuse],
    with_the_units_capabilities_it_sees_everything needs [Fuse] @ Kernel Stock,
    a_capability_that_is_missing_is_named @ Kernel,
    each_thread_has_the_capabilities_of_the_table,
    an_acknowledgement_lasts_over_a_restart_and_no_longer_than_it_is_meant_to needs [Fuse],
}

/// Watchdog timeout in these tests.
const WATCHDOG: Duration = Duration::from_millis(1500);

/// The manager's end of the notify socket.
struct Manager {
    socket: UnixDatagram,
    said: Vec<String>,
}

impl Manager {
    fn new(lab: &Lab) -> (Self, Command) {
        let path = lab.dir().join("notify");
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut command = Command::new(daemon::binary());
        command.env("NOTIFY_SOCKET", &path);
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        (Self { socket, said: Vec::new() }, command)
    }

    /// The next message, if one comes soon.
    fn next(&mut self) -> Option<String> {
        let mut buffer = [0; 4096];
        let len = self.socket.recv(&mut buffer).ok()?;
        let message = String::from_utf8(buffer[..len].to_vec()).unwrap();
        self.said.push(message.clone());
        Some(message)
    }

    /// Waits for a message that contains this line.
    #[track_caller]
    fn hears(&mut self, line: &str) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            if let Some(message) = self.next()
                && message.lines().any(|one| one.starts_with(line))
            {
                return message;
            }
        }
        panic!("{line} was not told, but: {:#?}", self.said);
    }
}

fn it_tells_when_it_is_ready_and_that_it_is_alive(lab: &Lab) {
    let (mut manager, command) = Manager::new(lab);
    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let daemon = Daemon::spawn_by(command, lab, &Config::default(), &lab.subdir("state"));
    manager.hears("STATUS=reading the node");
    let ready = manager.hears("READY=1");
    let earlier = &manager.said[..manager.said.len() - 1];
    assert!(!earlier.iter().any(|message| message.contains("READY")), "{earlier:?}");
    assert!(ready.contains("addresses in"), "with how things stand: {ready}");
    // Ready means complete: the first answer has the address.
    assert_eq!(daemon.ip_in(lab.ip(7), netns.inode).unwrap()["ip"], lab.ip(7).to_string());
    // Nothing happens, and the watchdog is fed all the same.
    let mut last = Instant::now();
    for _ in 0..4 {
        manager.hears("WATCHDOG=1");
        let pause = last.elapsed();
        assert!(pause < WATCHDOG, "fed too late: {pause:?}");
        last = Instant::now();
    }
    let status = daemon.stop();
    assert!(status.success(), "{status}");
    manager.hears("STOPPING=1");
}

/// The test acts as systemd: it misses the watchdog's message, kills the hung daemon, and starts a new one.
fn one_that_stands_still_is_missed_and_its_successor_keeps_the_findings(lab: &Lab) {
    let stuck = Stuck::new(lab);
    let fires = |daemon: &Daemon| {
        eventually("the finding fires", 15, || {
            let all = daemon.findings_in(stuck.netns.inode);
            all.into_iter().find(|finding| finding["status"] == "firing")
        })
    };
    let (mut manager, command) = Manager::new(lab);
    let (config, state) = (Config::default().grace(1), lab.subdir("state"));
    let daemon = Daemon::spawn_by(command, lab, &config, &state);
    manager.hears("READY=1");
    let before = fires(&daemon);
    manager.hears("WATCHDOG=1");
    sys::kill(daemon.pid(), libc::SIGSTOP).unwrap();
    while manager.next().is_some() {}
    let until = Instant::now() + WATCHDOG * 2;
    while Instant::now() < until {
        let told = manager.next();
        assert!(told.is_none(), "it stands still and says {told:?}");
    }
    daemon.crash();
    let (mut manager, command) = Manager::new(lab);
    let daemon = Daemon::spawn_by(command, lab, &config, &state);
    manager.hears("READY=1");
    let after = fires(&daemon);
    assert_eq!((&before["id"], &before["since"]), (&after["id"], &after["since"]));
}

/// Writes another configuration and reloads it. Returns the daemon's answer.
fn reload(lab: &Lab, daemon: &Daemon, manager: &mut Manager, text: &str) -> String {
    fs::write(lab.dir().join("ipwatch.toml"), text).unwrap();
    sys::kill(daemon.pid(), libc::SIGHUP).unwrap();
    let begun = manager.hears("RELOADING=1");
    assert!(begun.contains("MONOTONIC_USEC="), "as systemd 253 asks for: {begun}");
    manager.hears("READY=1")
}

fn a_reload_takes_over_what_needs_no_restart_and_keeps_the_map(lab: &Lab) {
    let (mut manager, command) = Manager::new(lab);
    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let config = Config::default();
    let daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
    manager.hears("READY=1");
    let since = daemon.await_ip(lab.ip(7), netns.inode)["since"].clone();

    let done = reload(lab, &daemon, &mut manager, &config.clone().grace(1).text());
    assert!(done.contains("reloaded: stuck.grace\n"), "{done}");
    let changed = Config::default().grace(2).line("[retention]\nmax_mib = 7");
    let done = reload(lab, &daemon, &mut manager, &changed.text());
    assert!(
        done.contains("reloaded: stuck.grace; changed, but waits for a restart: retention.max_mib")
    );
    assert!(daemon.log().contains("waits for a restart: retention.max_mib"), "{}", daemon.log());
    // Same process, same tenure; nothing was read twice or lost.
    let address = daemon.ip_in(lab.ip(7), netns.inode).unwrap();
    assert_eq!(address["since"], since);
}

fn a_shorter_grace_is_for_who_hangs_already_too(lab: &Lab) {
    let mut stuck = Stuck::about_to_be(lab);
    let (mut manager, command) = Manager::new(lab);
    let patient = Config::default().grace(3600);
    let daemon = Daemon::spawn_by(command, lab, &patient, &lab.subdir("state"));
    manager.hears("READY=1");
    stuck.hang();
    assert!(daemon.findings_in(stuck.netns.inode).is_empty());
    reload(lab, &daemon, &mut manager, &Config::default().grace(1).text());
    let ours =
        |finding: &serde_json::Value| finding["subject"]["netns"]["inode"] == stuck.netns.inode;
    daemon.await_firing("ip-held-by-stuck-process", 20, ours);
}

fn a_configuration_broken_at_reload_changes_nothing(lab: &Lab) {
    let (mut manager, command) = Manager::new(lab);
    let config = Config::default().grace(1);
    let daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
    manager.hears("READY=1");
    let before = daemon.log().lines().count();
    let done = reload(lab, &daemon, &mut manager, "[stuck]\ngarce = \"2s\"\n");
    assert!(done.contains("not reloaded: ") && done.contains("did you mean `grace`?"), "{done}");
    let log = daemon.log();
    // Whatever else is logged is about the node, which other tests change.
    let told =
        log.lines().skip(before).filter(|line| line.contains("reload") || line.contains(".toml"));
    let new: Vec<&str> = told.collect();
    assert_eq!(new.len(), 1, "one clear line: {new:?}");
    assert!(new[0].contains("ipwatch.toml:2: ") && new[0].contains("the old one stays in force"));
    fs::remove_file(lab.dir().join("ipwatch.toml")).unwrap();
    sys::kill(daemon.pid(), libc::SIGHUP).unwrap();
    assert!(manager.hears("READY=1").contains("cannot read the configuration"));
    // The first configuration was in force all along: returning to it is no change.
    let done = reload(lab, &daemon, &mut manager, &config.text());
    assert!(done.contains("reloaded: nothing to take over"), "{done}");
    assert!(daemon.ask(&["doctor"]).status.success());
}

fn doctor_asks_the_daemon_of_the_configuration_that_is_named(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let file = lab.dir().join("named.toml");
    fs::write(&file, format!("socket = {:?}\n", daemon.socket())).unwrap();
    let doctor = Command::new(daemon::binary()).args(["doctor", "--config"]).arg(&file).output();
    let (out, own) = (doctor.unwrap(), daemon.ask(&["doctor"]));
    assert!(out.status.success() && own.status.success(), "{out:?}");
    assert!(out.stderr.is_empty(), "it asks another one, or none: {out:?}");
}

fn the_journal_gets_fields(lab: &Lab) {
    let mut stuck = Stuck::about_to_be(lab);
    let (journal, command) = Journal::new(lab);
    let config = Config::default().grace(1);
    let mut daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
    // Of other tests' findings there may be more than the journal's socket takes at once.
    let journal = journal.keep();
    daemon.await_ready();
    stuck.hang();
    let finding = daemon.await_firing("ip-held-by-stuck-process", 20, |finding| {
        finding["subject"]["netns"]["inode"] == stuck.netns.inode
    });
    let id = finding["id"].as_str().unwrap();
    let (ip, inode) = (lab.ip(1).to_string(), stuck.netns.inode.to_string());
    let wanted = [
        ("IPWATCH_ID", id),
        ("IPWATCH_CODE", "ip-held-by-stuck-process"),
        ("IPWATCH_STATUS", "firing"),
        ("IPWATCH_IP", &ip),
        ("IPWATCH_NETNS", &inode),
        // Of no pod, so it is information.
        ("PRIORITY", "6"),
    ];
    let entry = journal.await_first(&wanted, 20);
    assert!(entry.iter().any(|(name, _)| name == "MESSAGE_ID"), "{entry:#?}");
    let log = daemon.log();
    let is_it = |line: &&str| line.contains(id) && line.contains("\"firing\"");
    assert_eq!(log.lines().find(is_it), None, "not a second time as a line");
    assert!(log.contains("<6>"), "its own lines are still there: {log}");
}

fn with_the_units_capabilities_it_sees_everything(lab: &Lab) {
    let mut stuck = Stuck::about_to_be(lab);
    // Without the sandbox of this test run.
    let free = Command::new(daemon::binary());
    let mut whole = Daemon::spawn_by(free, lab, &Config::default(), &lab.subdir("state"));
    whole.await_ready();
    let probes = |daemon: &Daemon| {
        let mut probes = daemon.list("probes", &["doctor"]);
        // Without the counts, which depend on what happens meanwhile.
        for probe in probes.iter_mut().filter_map(serde_json::Value::as_object_mut) {
            probe.retain(|key, _| ["event", "hook", "rung", "status"].contains(&key.as_str()));
        }
        probes
    };
    let best = probes(&whole);
    assert!(whole.stop().success());
    let command = unit::with_capabilities(&unit::capabilities());
    let config = Config::default().grace(1);
    let mut daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
    daemon.await_ready();
    assert_eq!(daemon.source("capabilities"), None);
    assert_eq!(probes(&daemon), best, "every probe on the same rung as with all capabilities");
    daemon.await_holder(lab.ip(1), stuck.netns.inode, "with its pid", |holder| {
        holder["pid"].is_number()
    });
    stuck.hang();
    let finding = daemon.await_firing("ip-held-by-stuck-process", 20, |finding| {
        finding["subject"]["netns"]["inode"] == stuck.netns.inode
    });
    let evidence = finding["evidence"].to_string();
    assert!(evidence.contains("kernel stack"), "{evidence}");
    // Created while it runs: netlink reports it, and it is read by entering it.
    let late = Netns::new(lab, "late");
    late.veth_to_host();
    late.add_address(&lab.cidr(2), "eth0");
    daemon.await_ip(lab.ip(2), late.inode);
}

/// Without one of them the daemon either runs and says what it lacks, or says so and does not start.
fn a_capability_that_is_missing_is_named(lab: &Lab) {
    let all = unit::capabilities();
    assert!(all.len() > 5, "{all:?}");
    // What a capability is for may be absent: a container has no kernel log.
    let log = std::path::Path::new("/dev/kmsg").exists();
    for name in all.iter().filter(|name| log || *name != "CAP_SYSLOG") {
        let rest: Vec<String> = all.iter().filter(|one| *one != name).cloned().collect();
        let mut daemon = Daemon::spawn_by(
            unit::with_capabilities(&rest),
            lab,
            &Config::default(),
            &lab.subdir(&name.to_lowercase()),
        );
        daemon.await_ready();
        let source =
            daemon.source("capabilities").unwrap_or_else(|| panic!("{name} is not missed"));
        assert_eq!(source["status"], "degraded");
        let detail = source["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("without {name} ")), "{detail}");
        assert_eq!(detail.matches("without").count(), 1, "{detail}");
        println!("{name}: {}", lacks(&daemon));
        assert!(daemon.stop().success());
    }
}

/// Sources that are neither active nor disabled, for the test's log.
fn lacks(daemon: &Daemon) -> String {
    let document = daemon.document(&["doctor"]).unwrap();
    let sources = document["sources"].as_array().unwrap().iter();
    let poor =
        sources.filter(|source| source["status"] != "active" && source["status"] != "disabled");
    poor.map(|source| format!("{} {}", source["name"], source["detail"]))
        .collect::<Vec<_>>()
        .join(" | ")
}

fn an_acknowledgement_lasts_over_a_restart_and_no_longer_than_it_is_meant_to(lab: &Lab) {
    let stuck = Stuck::new(lab);
    let config = Config::default().grace(1);
    let daemon = Daemon::start(lab, &config);
    let ours =
        |finding: &serde_json::Value| finding["subject"]["netns"]["inode"] == stuck.netns.inode;
    let finding = daemon.await_firing("ip-held-by-stuck-process", 20, ours);
    let id = finding["id"].as_str().unwrap();
    let acked = |daemon: &Daemon| {
        let all = daemon.findings_in(stuck.netns.inode);
        all.into_iter().find(|one| one["id"] == id).map(|mut one| one["acked"].take()).unwrap()
    };
    assert!(acked(&daemon).is_null());
    let follower = daemon.follow();
    eventually("the follower is there", 10, || {
        let out = daemon.ask(&["ack", &id[..8], "--for", "1h", "--note", "seen\u{1b}[2J by me"]);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(said.contains("acknowledged") && said.contains("\\x1b[2J by me"), "{said}");
        let told = follower.changes();
        told.iter().any(|change| change["finding"]["acked"]["note"].is_string()).then_some(())
    });
    let before = acked(&daemon);
    assert!(before["until"].is_string() && before["note"] == "seen\u{1b}[2J by me", "{before}");
    assert_eq!(daemon.findings_in(stuck.netns.inode)[0]["status"], "firing", "it goes on");

    daemon.crash();
    let daemon = Daemon::start(lab, &config);
    let _ = daemon.await_firing("ip-held-by-stuck-process", 20, ours);
    assert_eq!(acked(&daemon)["note"], before["note"], "kept over a restart");

    assert!(daemon.ask(&["ack", id, "--for", "1s"]).status.success());
    eventually("its time is over", 15, || acked(&daemon).is_null().then_some(()));
    assert!(daemon.ask(&["ack", id]).status.success());
    assert!(acked(&daemon)["until"].is_null(), "until it is over");
    assert!(daemon.ask(&["unack", id]).status.success());
    assert!(acked(&daemon).is_null());
    assert_eq!(daemon.ask(&["ack", "77777777"]).status.code(), Some(3));
    assert_eq!(daemon.ask(&["ack", ""]).status.code(), Some(2), "nothing is meant by nothing");
}

/// Names of threads and their capabilities, from the table in `docs/security.md`.
fn rights_of_threads() -> BTreeMap<String, u64> {
    let page = include_str!("../../docs/security.md");
    let quoted = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
    };
    let table = page.lines().skip_while(|line| !line.starts_with("| Thread | Work |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let mask = unit::mask(&quoted(cells[3]));
        quoted(cells[1]).into_iter().map(move |name| (name, mask))
    })
    .collect()
}

fn each_thread_has_the_capabilities_of_the_table(lab: &Lab) {
    let table = rights_of_threads();
    assert!(table.len() > 10, "{table:?}");
    // The unit's, however this test is run. Nobody listens there; the thread is started for whom it is to talk to.
    let command = unit::with_capabilities(&unit::capabilities());
    let config = Config::default().otlp("http://127.0.0.1:9").probes_line("canary = false");
    let mut daemon = Daemon::spawn_by(command, lab, &config, &lab.subdir("state"));
    daemon.await_ready();
    let mut seen = BTreeSet::new();
    let mut look = || {
        let mut wrong = Vec::new();
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
        for task in tasks.filter_map(|task| Some(task.ok()?.path())) {
            // One that has ended meanwhile.
            let Ok(status) = fs::read_to_string(task.join("status")) else { continue };
            let field = |name: &str| {
                let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                value.trim().to_owned()
            };
            let sets = ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"];
            let sets = sets.map(|set| u64::from_str_radix(&field(set), 16).unwrap());
            let name = field("Name:");
            let kept = *table.get(&name).unwrap_or_else(|| panic!("{name} is not in the table"));
            let effective = if name == "ipwatch-starter" { 0 } else { kept };
            let wanted = [0, kept, effective, 0];
            // A thread that was made just now has not given up anything yet.
            if sets != wanted {
                wrong.push(format!("{name}: {sets:x?}, not {wanted:x?}"));
            } else {
                seen.insert(name);
            }
        }
        wrong
    };
    // Threads come and go: many looks, while it works and while the canary runs.
    std::thread::scope(|scope| {
        // Without probes it is refused.
        let canary = scope.spawn(|| daemon.ask(&["doctor", "--canary"]));
        while !canary.is_finished() {
            look();
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    poll::until("every thread has what the table says", 20, || {
        let wrong = look();
        if !wrong.is_empty() {
            println!("{wrong:?}");
        }
        wrong.is_empty()
    });
    let mut always = vec!["ipwatch", "ipwatch-starter", "ipwatch-network", "ledger"];
    always.extend(["ipwatch-netns", "ipwatch-looks", "ipwatch-search"]);
    if daemon::probes() != "off" {
        always.extend(["ipwatch-calls", "ipwatch-tasks", "ipwatch-canary"]);
    }
    for name in always {
        assert!(seen.contains(name), "{name}: {seen:?}");
    }
}
