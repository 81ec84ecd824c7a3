//! The canary: ipwatch makes each event once, in its own network namespaces, and reports whether its probes saw it.
//! It must be visible nowhere else.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::harness::FIGURE;
use support::{Config, Daemon, Lab, daemon, poll, poorer, sys};

support::tests! {
    each_event_is_proven @ Alone Kernel Stock Rung,
    it_appears_nowhere_else @ Alone Kernel,
    another_daemon_reports_nothing_of_it @ Alone Kernel Stock,
    a_program_that_tells_nothing_is_found @ Alone,
    a_program_whose_link_is_closed_is_attached_again @ Alone,
    nobody_else_can_detach_its_links @ Alone Kernel Stock Rung,
    typed_loads_are_proven_too @ Alone,
    where_it_cannot_be_nothing_counts_as_not_seen,
    with_observe_only_there_is_none,
}

/// Whether a program of ours must see the event, not netlink, procfs or a list of something else.
fn is_ours(probe: &Value) -> bool {
    let rung = probe["rung"].as_str().unwrap();
    let list = rung == "snapshot" && probe["event"].as_str().unwrap().ends_with("-list");
    list || ["tp_btf", "raw_tp", "fentry", "kprobe", "socket"].contains(&rung)
}

fn probes_are_off() -> bool {
    daemon::probes() == "off"
}

/// Without probes there is nothing to prove. Under lockdown some are left.
fn can_be_proven(daemon: &Daemon) -> bool {
    let probes = daemon.list("probes", &["doctor"]);
    let any = probes.iter().any(|probe| is_ours(probe) && probe["rung"] != "socket");
    assert!(any || probes_are_off(), "{probes:?}");
    any
}

fn proven(daemon: &Daemon) -> Vec<Value> {
    daemon.list("probes", &["doctor", "--canary"])
}

/// By itself after the start, and on request.
fn each_event_is_proven(lab: &Lab) {
    let daemon = Daemon::start(lab, &by_itself());
    if !can_be_proven(&daemon) {
        let out = daemon.ask(&["doctor", "--canary"]);
        assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("no probe"));
        return;
    }
    let shown = |probes: &[Value]| probes.iter().filter(|one| one["canary"].is_object()).count();
    poll::until("it has run by itself", 60, || shown(&daemon.list("probes", &["doctor"])) > 0);
    let probes = proven(&daemon);
    for probe in &probes {
        let ours = is_ours(probe);
        let canary = &probe["canary"];
        println!("{} {} {canary}", probe["event"], probe["rung"]);
        assert_eq!(ours, canary.is_object(), "{probe}");
        if !ours {
            continue;
        }
        assert_ne!(probe["status"], "degraded", "{probe}");
        match canary["verdict"].as_str().unwrap() {
            "seen" => {
                let counted = ["process-fork", "process-exit", "sigkill", "group-exit"];
                let timed = canary["micros"].is_u64();
                assert!(timed || counted.iter().any(|event| probe["event"] == *event), "{probe}");
                assert!(canary["ago_secs"].as_u64() < Some(60), "{probe}");
            }
            "not-tried" => {
                let why = canary["why"].as_str().unwrap();
                let known =
                    ["host's links", "veth", "IPv6", "not supported", "netns-release reports"];
                assert!(known.iter().any(|word| why.contains(word)), "{probe}");
            }
            other => panic!("{other}: {probe}"),
        }
    }
    assert!(shown(&probes) > 8, "{probes:?}");
    let of = |verdict: &str| {
        let its = probes.iter().filter(|probe| probe["canary"]["verdict"] == verdict);
        its.map(|probe| probe["event"].as_str().unwrap()).collect::<Vec<_>>()
    };
    let (seen, not_tried) = (of("seen").len(), of("not-tried").join(", "));
    println!("{FIGURE}canary: seen {seen} of {} events; not tried: {not_tried}", probes.len());
    let text = String::from_utf8(daemon.ask(&["doctor"]).stdout).unwrap();
    let told = ["CANARY", "seen in ", "counted, "];
    assert!(told.iter().all(|told| text.contains(told)), "{text}");
}

fn it_appears_nowhere_else(lab: &Lab) {
    let daemon = Daemon::start(lab, &by_itself());
    if !can_be_proven(&daemon) {
        return;
    }
    let follower = daemon.follow();
    for _ in 0..3 {
        proven(&daemon);
    }
    // Its addresses, as written in answers and events, and its name.
    let nowhere = |text: &str| {
        let traces = ["\"192.0.2.1\"", "\"198.51.100.", "2001:db8:6970:7761:"];
        traces.into_iter().chain(["ipwatch-canary"]).all(|trace| !text.contains(trace))
    };
    let links = Command::new("ip").args(["-o", "link"]).output().expect("ip");
    assert!(!String::from_utf8_lossy(&links.stdout).contains("canary"));
    for args in [&["query", "history"][..], &["query", "findings", "--all"], &["query", "netns"]] {
        let out = daemon.ask(&[args, &["-o", "json"]].concat());
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(nowhere(&said), "{args:?}: {said}");
    }
    assert!(nowhere(&follower.text()), "{}", follower.text());
    assert!(nowhere(&daemon.log()), "{}", daemon.log());
    // Neither a child nor a zombie is left.
    let tasks = format!("/proc/{}/task", daemon.pid());
    for task in std::fs::read_dir(tasks).unwrap().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        assert_eq!(children, "", "{}", task.path().display());
    }
}

/// The canary makes a duplicate, which other daemons on the node see too.
fn another_daemon_reports_nothing_of_it(lab: &Lab) {
    let daemon = Daemon::start(lab, &by_itself());
    if !can_be_proven(&daemon) {
        return;
    }
    let beside = Beside::start(lab);
    for _ in 0..3 {
        proven(&daemon);
    }
    let said = beside.log();
    assert!(!said.contains("2001:db8:6970:7761:") && !said.contains("WARN"), "{said}");
}

/// The default: the canary runs a few seconds after the start.
fn by_itself() -> Config {
    Config::default().probes_line("canary = true")
}

/// A second daemon of the same test, with separate files.
struct Beside(Child, PathBuf);

impl Beside {
    fn start(lab: &Lab) -> Self {
        let dir = lab.subdir("beside");
        let (config, log) = (dir.join("ipwatch.toml"), dir.join("log"));
        let text = Config::default().probes_line("canary = false").text();
        std::fs::write(&config, text).expect("write the configuration");
        let sink = File::create(&log).expect("a log");
        let mut command = Command::new(daemon::binary());
        command.arg("run").arg("--config").arg(&config).arg("--state-dir").arg(&dir);
        command.arg("--socket").arg(dir.join("socket")).stdin(Stdio::null()).stdout(Stdio::null());
        let this = Self(command.stderr(sink).spawn().expect("start it"), log);
        poll::until("the one beside is ready", 60, || this.log().contains("ready: "));
        this
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.1).unwrap_or_default()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three programs that appear to be attached, but report nothing. (A release build has no such option: the tests on
/// the host run a test build.)
fn a_program_that_tells_nothing_is_found(lab: &Lab) {
    if probes_are_off() {
        return;
    }
    let mut command = Command::new(daemon::binary());
    command.env("IPWATCH_TEST_DEAF", "tp_signal,tp_exec,tp_neigh_update");
    let mut daemon = Daemon::spawn_by(command, lab, &by_itself(), &lab.subdir("state"));
    daemon.await_ready();
    let deaf = ["neighbour-update", "process-exec", "sigkill"];
    let probes = proven(&daemon);
    let mut found: Vec<&str> = probes
        .iter()
        .filter(|probe| probe["status"] == "degraded")
        .map(|probe| {
            assert_eq!(probe["canary"]["verdict"], "not-seen", "{probe}");
            let why = probe["why"].as_str().unwrap();
            assert!(why.contains("instead: procfs") || why.contains("instead: netlink"), "{why}");
            probe["event"].as_str().unwrap()
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, deaf);
    let source = daemon.source("probes").expect("told");
    let detail = source["detail"].as_str().unwrap();
    assert!(deaf.iter().all(|event| detail.contains(event)), "{source}");
    let text = String::from_utf8(daemon.ask(&["doctor"]).stdout).unwrap();
    assert_eq!(text.matches("attached, not seen  ").count(), deaf.len(), "{text}");
    // That they were attached again has not helped, and is not tried each time that somebody asks.
    let again = |probe: &Value| probe["attached_again"]["times"].as_u64();
    let probes = [probes, proven(&daemon)];
    for probe in probes.iter().flatten().filter(|probe| probe["status"] == "degraded") {
        assert!(matches!(again(probe), Some(1 | 2)), "{probe}");
    }
}

/// Their links are closed: the programs are loaded, and nothing calls them. (A release build has no such option.)
fn a_program_whose_link_is_closed_is_attached_again(lab: &Lab) {
    if probes_are_off() {
        return;
    }
    let mut command = Command::new(daemon::binary());
    let names = "tp_exec,rt_exec,tp_neigh_update,rt_neigh_update,fe_netns_init,kp_netns_init";
    command.env("IPWATCH_TEST_DETACHED", names);
    let mut daemon = Daemon::spawn_by(command, lab, &by_itself(), &lab.subdir("state"));
    daemon.await_ready();
    let mut seen = 0;
    for probe in &proven(&daemon) {
        let event = probe["event"].as_str().unwrap();
        let was_closed = ["process-exec", "neighbour-update", "netns-created"].contains(&event);
        let again = &probe["attached_again"];
        if !is_ours(probe) || !was_closed {
            assert!(again.is_null(), "{probe}");
            continue;
        }
        seen += 1;
        assert_eq!(again["times"], 1, "{probe}");
        assert_eq!(probe["canary"]["verdict"], "seen", "{probe}");
        assert_ne!(probe["status"], "degraded", "{probe}");
        assert!(again["ago_secs"].as_u64() < Some(60), "{probe}");
        let log = daemon.log();
        let tells = |line: &str| line.contains("attached again: ") && line.contains(event);
        assert!(log.lines().any(tells), "{event}: {log}");
    }
    // Under lockdown only some of them are there.
    assert!(seen > 0 || !can_be_proven(&daemon), "none was attached");
    let text = String::from_utf8(daemon.ask(&["doctor"]).stdout).unwrap();
    assert_eq!(text.contains("it had told nothing"), seen > 0, "{text}");
    let source = daemon.source("probes").expect("told");
    assert!(!source["detail"].to_string().contains("not seen by the canary"), "{source}");
}

/// Root asks the kernel to detach each of the daemon's links.
fn nobody_else_can_detach_its_links(lab: &Lab) {
    let daemon = Daemon::start(lab, &by_itself());
    if !can_be_proven(&daemon) {
        return;
    }
    let mut kinds = std::collections::BTreeMap::new();
    for fd in std::fs::read_dir(format!("/proc/{}/fdinfo", daemon.pid())).unwrap().flatten() {
        // Before 5.11 a link has no kind there.
        let Ok(text) = std::fs::read_to_string(fd.path()) else { continue };
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let Some(id) = field("link_id:") else { continue };
        let kind = field("link_type:").unwrap_or_default().to_owned();
        let error = sys::detach_bpf_link(id.parse().unwrap()).expect_err("it was detached");
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{kind}: {error}");
        *kinds.entry(kind).or_insert(0) += 1;
    }
    println!("{FIGURE}links that others cannot detach: {kinds:?}");
    assert!(!kinds.is_empty() || daemon::probes() == "kprobe", "no link");
    for probe in &proven(&daemon) {
        assert!(probe["status"] != "degraded" && probe["attached_again"].is_null(), "{probe}");
    }
}

/// No netns can be created. That does not mean that the programs fail, and the daemon works as before.
fn where_it_cannot_be_nothing_counts_as_not_seen(lab: &Lab) {
    if probes_are_off() {
        return;
    }
    let command = poorer::without_unshare(&daemon::binary());
    let mut daemon = Daemon::spawn_by(command, lab, &by_itself(), &lab.subdir("state"));
    daemon.await_ready();
    let probes = proven(&daemon);
    let mut refused = 0;
    for probe in &probes {
        assert_ne!(probe["status"], "degraded", "{probe}");
        let canary = &probe["canary"];
        assert_ne!(canary["verdict"], "not-seen", "{probe}");
        assert_eq!(is_ours(probe), canary.is_object(), "{probe}");
        refused += usize::from(canary["why"].to_string().contains("CAP_SYS_ADMIN"));
    }
    assert!(refused > 5, "{probes:?}");
    let source = daemon.source("probes").expect("told");
    assert!(!source["detail"].to_string().contains("not seen"), "{source}");
    assert!(!daemon.log().contains("WARN"), "{}", daemon.log());
}

fn with_observe_only_there_is_none(lab: &Lab) {
    let config = by_itself().top("observe_only = true");
    let daemon = Daemon::start(lab, &config);
    let out = daemon.ask(&["doctor", "--canary"]);
    let said = String::from_utf8_lossy(&out.stderr);
    let why = if probes_are_off() { "no probe" } else { "observe_only" };
    assert!(!out.status.success() && said.contains(why), "{said}");
    assert!(Path::new("/proc").join(daemon.pid().to_string()).exists());
    let probes = daemon.list("probes", &["doctor"]);
    assert!(probes.iter().all(|probe| probe["canary"].is_null()), "{probes:?}");
}

/// Reads kernel memory as under lockdown=confidentiality. (A release build does that only there.)
fn typed_loads_are_proven_too(lab: &Lab) {
    if probes_are_off() {
        return;
    }
    let mut command = Command::new(daemon::binary());
    command.env("IPWATCH_TEST_TYPED", "1");
    let mut daemon = Daemon::spawn_by(command, lab, &by_itself(), &lab.subdir("state"));
    daemon.await_ready();
    let probes = proven(&daemon);
    for event in ["process-fork", "process-exec", "process-exit", "sigkill", "task-list"] {
        let probe = probes.iter().find(|probe| probe["event"] == event).expect("told");
        assert!(is_ours(probe), "{probe}");
        assert_eq!(probe["canary"]["verdict"], "seen", "{probe}");
    }
    // A program that cannot read this way is refused, with the reason.
    let neighbours = probes.iter().find(|probe| probe["event"] == "neighbour-update").unwrap();
    assert_eq!(neighbours["rung"], "netlink", "{neighbours}");
    assert!(neighbours["why"].as_str().unwrap().contains("load refused"), "{neighbours}");
}
