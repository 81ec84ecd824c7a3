//! `ip-held-by-stuck-process`: found in time with its evidence, and never for innocent processes.

use jiff::Timestamp;
use serde_json::Value;
use support::cgroup::{self, Freezer, LittleCpu};
use support::fuse::Hung;
use support::innocent::{self, Innocent};
use support::role::{Helper, Role, Running};
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, Sandbox, eventually, patience};

support::tests! {
    a_killed_reader_is_found needs [Fuse] @ Kernel Stock Rung Container,
    a_leader_that_hangs_after_a_threads_exit_group_is_found needs [Fuse] @ Kernel Stock Rung,
    a_hang_in_exit_is_found needs [Fuse] @ Kernel Rung Container,
    a_hang_after_a_thread_directed_kill_is_found needs [Fuse] @ Kernel Rung Container,
    a_hang_after_sigterm_is_found needs [Fuse] @ Kernel Rung Container,
    a_hang_after_sigkill_is_found needs [Fuse] @ Kernel Rung Container,
    one_that_hung_before_the_start_is_found needs [Fuse] @ Kernel Stock Rung Container,
    a_released_one_is_resolved needs [Fuse] @ Kernel Rung Container,
    what_is_reported_is_in_the_log needs [Fuse] @ Rung Container,
    scan_says_so_without_a_daemon needs [Fuse] @ Kernel Stock Rung Container,
    explain_says_what_to_do needs [Fuse] @ Kernel Rung Container,
    the_innocent_raise_nothing needs [Fuse, FreezerV2, PlainCore] @ Kernel Stock Rung Container,
    an_exit_with_little_cpu_is_slow needs [LittleCpu] @ Alone,
    who_hides_in_a_frozen_cgroup_is_found needs [Fuse, FreezerV2],
    the_frozen_of_cgroup_v1_raise_nothing needs [Fuse, FreezerV1] @ Kernel Stock Rung Container,
}

/// Grace in these tests, in seconds.
const GRACE: u32 = 2;
/// Interval of process snapshots if no probe reports processes, in seconds.
const SNAPSHOTS: u32 = 2;
/// Time after which an exiting process to which no signal was seen counts as not ending, in seconds.
const SETTLES: u32 = 1;
const CODE: &str = "ip-held-by-stuck-process";

fn config() -> Config {
    Config::default().grace(GRACE)
}

/// A netns with an IP.
fn with_address(lab: &Lab, hint: &str) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    netns
}

/// Waits until the finding about this netns fires.
fn await_finding(daemon: &Daemon, netns: &Netns) -> Value {
    await_finding_within(daemon, netns, GRACE + 10)
}

fn await_finding_within(daemon: &Daemon, netns: &Netns, seconds: u32) -> Value {
    eventually("the finding fires", seconds, || {
        daemon.findings_in(netns.inode).into_iter().find(|finding| finding["status"] == "firing")
    })
}

fn a_killed_reader_is_found(lab: &Lab) {
    is_found(lab, How::KilledReader);
}

/// No signal is sent to the leader, and it does not exit.
fn a_leader_that_hangs_after_a_threads_exit_group_is_found(lab: &Lab) {
    is_found(lab, How::GroupExit);
}

fn a_hang_in_exit_is_found(lab: &Lab) {
    is_found(lab, How::Exit);
}

fn a_hang_after_a_thread_directed_kill_is_found(lab: &Lab) {
    is_found(lab, How::ThreadKill);
}

fn a_hang_after_sigterm_is_found(lab: &Lab) {
    is_found(lab, How::Term);
}

fn a_hang_after_sigkill_is_found(lab: &Lab) {
    is_found(lab, How::Kill);
}

fn is_found(lab: &Lab, how: How) {
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "stuck");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()));
    let mut helper = stuck::start_as(how, &netns, &mut hung, |helper| helper.within(&pod));
    let pid = helper.pid();
    pod.await_in(pid);
    daemon.await_holder(lab.ip(7), netns.inode, "the helper", |h| h["pid"] == pid);
    // Its cgroup is read right after that, and v1 shows none for an exiting task; in practice no container is killed
    // in the millisecond of its start.
    std::thread::sleep(std::time::Duration::from_millis(300) * support::patience());
    let view = stuck::hang(how, &mut helper);
    let finding = await_finding_within(&daemon, &netns, GRACE + unseen(how) + 10);
    assert_eq!(finding["code"], CODE);
    assert_eq!(finding["severity"], "warning");
    assert_eq!(finding["subject"]["ip"], lab.ip(7).to_string());
    assert_eq!(finding["subject"]["netns"]["cookie"].as_u64(), netns.cookie);
    let holder = &finding["holders"][0];
    assert_eq!((&holder["pid"], &holder["comm"]), (&pid.into(), &comm(how).into()), "{finding}");
    assert_eq!(holder["state"], view.state.to_string(), "{finding}");
    proof_is_complete(&finding, how);
    names_the_pod(&finding, &pod);
    in_time(&finding, unseen(how));
    let address = daemon.ip_in(lab.ip(7), netns.inode).expect("still held");
    assert_eq!(address["findings"], Value::from(vec![finding["id"].clone()]));
}

fn comm(how: How) -> &'static str {
    match how {
        How::KilledReader => "t-reader",
        How::GroupExit => "t-hung-leader",
        _ => "t-opener",
    }
}

fn names_the_pod(finding: &Value, pod: &Sandbox) {
    let subject = &finding["subject"];
    assert_eq!(subject["pod"]["namespace"], Sandbox::NAMESPACE, "{subject}");
    assert_eq!(subject["pod"]["name"], pod.name, "{subject}");
    assert_eq!(subject["pod"]["uid"], pod.uid, "{subject}");
    assert_eq!(subject["container"]["id"], pod.container, "its own, not the sandbox's: {subject}");
    let evidence = finding["evidence"].to_string();
    assert!(evidence.contains(&pod.container), "its cgroup is part of the proof: {evidence}");
}

/// Checks every item of evidence that the finding must have.
fn proof_is_complete(finding: &Value, how: How) {
    let evidence = finding["evidence"].as_array().expect("evidence");
    for item in evidence {
        assert!(item["source"].is_string() && item["text"].is_string(), "{item}");
        item["at"].as_str().unwrap().parse::<Timestamp>().expect("an RFC 3339 time");
    }
    let text: Vec<&str> = evidence.iter().filter_map(|item| item["text"].as_str()).collect();
    let text = text.join("\n");
    let mut wanted = vec!["wchan request_wait_answer", "fuse_", "flags 0x", "SigPnd", "ShdPnd"];
    if how.exits() {
        wanted.extend(["(PF_EXITING)", "do_exit"]);
    }
    if matches!(how, How::KilledReader | How::GroupExit | How::Kill) {
        wanted.push("0000000000000100"); // SIGKILL in a mask of pending signals
    }
    for part in wanted {
        assert!(text.contains(part), "{how:?}: no {part} in the evidence:\n{text}");
    }
    if how.by_sigkill() && support::daemon::probes() != "off" {
        let sender = format!("pid {}", std::process::id());
        assert!(text.contains(&sender), "{how:?}: who sent it ({sender})?\n{text}");
    }
    assert!(!finding["remediation"].as_array().unwrap().is_empty());
    assert!(!finding["impact"].as_str().unwrap().is_empty());
}

/// Reported within 2 s after its grace, by the daemon's own clock.
fn in_time(finding: &Value, unseen: u32) {
    let time = |key: &str| finding[key].as_str().unwrap().parse::<Timestamp>().unwrap();
    let took = time("firing_at").duration_since(time("since")).as_secs_f64();
    println!("named {took:.2} s after it began to hang; its grace is {GRACE} s");
    assert!(took >= f64::from(GRACE), "not before its grace");
    assert!(took < f64::from(GRACE + unseen + 2 * patience()), "in time");
}

/// How long it may stay unreported: without probes an interval of the snapshots.
fn unseen(how: How) -> u32 {
    match how {
        _ if support::daemon::probes() == "off" => SNAPSHOTS,
        How::GroupExit => SETTLES,
        _ => 0,
    }
}

fn one_that_hung_before_the_start_is_found(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "before");
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    let daemon = Daemon::start(lab, &config());
    let finding = await_finding(&daemon, &netns);
    assert_eq!(finding["holders"][0]["pid"], helper.pid());
    assert_eq!(finding["preexisting"], true, "it stood before ipwatch first looked: {finding}");
}

fn a_released_one_is_resolved(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let daemon = Daemon::start(lab, &config());
    let netns = with_address(lab, "resolve");
    let mut helper = stuck::start(How::Term, &netns, &mut hung);
    stuck::hang(How::Term, &mut helper);
    let finding = await_finding(&daemon, &netns);
    hung.release();
    support::poll::until("no open finding is left", 10, || {
        daemon.findings_in(netns.inode).is_empty()
    });
    let all = daemon.list("findings", &["query", "findings", "--all"]);
    let resolved = all.iter().find(|f| f["id"] == finding["id"]).expect("it is remembered");
    assert_eq!(resolved["status"], "resolved");
    assert!(resolved["resolved_at"].is_string(), "{resolved}");
}

fn what_is_reported_is_in_the_log(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let daemon = Daemon::start(lab, &config());
    let netns = with_address(lab, "log");
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    await_finding(&daemon, &netns);
    let ip = lab.ip(7).to_string();
    support::poll::until("the log has it", 5, || {
        daemon.log().lines().any(|line| line.contains(CODE) && line.contains(&ip))
    });
}

/// A single run: without a daemon, it takes its own two looks.
fn scan_says_so_without_a_daemon(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "scan");
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    std::thread::sleep(std::time::Duration::from_secs(u64::from(GRACE) + 1));
    let file = lab.dir().join("scan.toml");
    std::fs::write(&file, config().text()).unwrap();
    let out = std::process::Command::new(support::daemon::binary())
        .arg("scan")
        .arg("--config")
        .arg(&file)
        .args(["-o", "json"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "exit code 1 says: findings. {said}");
    let document: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let findings = document["findings"].as_array().expect("findings");
    let ours = findings.iter().find(|f| f["subject"]["netns"]["inode"] == netns.inode);
    assert_eq!(ours.expect("ours is among them")["code"], CODE);
}

fn explain_says_what_to_do(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let daemon = Daemon::start(lab, &config());
    let netns = with_address(lab, "explain");
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    let finding = await_finding(&daemon, &netns);
    let ip = lab.ip(7).to_string();
    let explained = |what: &str| {
        let out = daemon.ask(&["explain", what]);
        assert!(out.status.success(), "{what}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    for what in [finding["id"].as_str().unwrap(), &ip] {
        let text = explained(what);
        assert!(text.contains("kill -9"), "{what}: says what does not help: {text}");
    }
    let runbook = explained(CODE);
    assert!(runbook.starts_with(&format!("# {CODE}")), "a code brings its runbook");
    assert!(runbook.contains("/sys/fs/fuse/connections/"), "with the way out: {runbook}");
    // An error without a matching finding still has a meaning.
    let pasted = daemon.ask(&["explain", "time limit exceeded while waiting to become leader"]);
    let said = String::from_utf8_lossy(&pasted.stderr);
    assert!(said.contains("Whereabouts") && said.contains("`ipwatch explain "), "{said}");
}

fn the_innocent_raise_nothing(lab: &Lab) {
    let hung = Hung::mount(lab);
    raise_nothing(lab, &["v2", "vfork", "stop", "core", "busy", "zombie"], |netns| {
        vec![
            innocent::frozen_v2(lab, &netns[0]),
            innocent::vfork_parent(&netns[1]),
            innocent::stopped(&netns[2]),
            innocent::dumping_core(&netns[3], &hung),
            innocent::busy(&netns[4]),
            innocent::zombie(&netns[5]),
        ]
    });
}

fn the_frozen_of_cgroup_v1_raise_nothing(lab: &Lab) {
    cgroup::v1_freezer(lab);
    raise_nothing(lab, &["v1", "v1k"], |netns| {
        let frozen = |netns, killed| innocent::frozen_v1(lab, netns, killed);
        vec![frozen(&netns[0], false), frozen(&netns[1], true)]
    });
}

/// Whoever may make cgroups freezes his own, in which a process that was killed stays only if it hangs.
fn who_hides_in_a_frozen_cgroup_is_found(lab: &Lab) {
    let group = Freezer::v2(lab);
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "hidden");
    let daemon = Daemon::start(lab, &config());
    let mut helper = stuck::start(How::KilledReader, &netns, &mut hung);
    stuck::hang(How::KilledReader, &mut helper);
    group.begin(helper.pid());
    let finding = await_finding(&daemon, &netns);
    assert_eq!(
        (&finding["code"], &finding["holders"][0]["pid"]),
        (&CODE.into(), &helper.pid().into())
    );
}

/// All at the same time, each in its own netns, for longer than the grace.
fn raise_nothing(lab: &Lab, hints: &[&str], start: impl FnOnce(&[Netns]) -> Vec<Innocent>) {
    let daemon = Daemon::start(lab, &config());
    let netns: Vec<Netns> = hints.iter().map(|hint| with_address(lab, hint)).collect();
    let innocents = start(&netns);
    // A process that does hang shows that the daemon looks.
    let mut hung = Hung::mount_at(lab, "guilty");
    let guilty = with_address(lab, "guilty");
    let mut helper: Running = stuck::start(How::Kill, &guilty, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    await_finding(&daemon, &guilty);
    std::thread::sleep(std::time::Duration::from_secs(u64::from(GRACE)));
    assert_eq!(netns.len(), innocents.len());
    for (netns, innocent) in netns.iter().zip(&innocents) {
        let findings = daemon.findings_in(netns.inode);
        let pid = innocent.helper.pid();
        assert!(findings.is_empty(), "{} pid {pid}: {findings:?}", netns.name());
    }
}

/// A pod's process with thousands of threads is killed and gets next to no CPU time: by a share of the one CPU that it
/// may use, while another process wants that CPU, and by a limit.
fn an_exit_with_little_cpu_is_slow(lab: &Lab) {
    let netns = [with_address(lab, "share"), with_address(lab, "limit")];
    let pods = netns.each_ref().map(|netns| Sandbox::make(lab, netns, &lab.cidr(7), ""));
    let daemon = Daemon::start(lab, &config().cache_dir(pods[0].cache()));
    let groups = [LittleCpu::by_share(lab), LittleCpu::by_limit(lab)];
    let start = |n: usize| {
        let threads = Helper::new(Role::Threads).arg("5000").inside(&netns[n]).within(&pods[n]);
        let helper = threads.start();
        pods[n].await_in(helper.pid());
        daemon.await_holder(lab.ip(7), netns[n].inode, "it", |h| h["pid"] == helper.pid());
        groups[n].take(helper.pid());
        helper
    };
    let (helpers, other) =
        support::sys::on_one_cpu(|| ([start(0), start(1)], Helper::new(Role::Busy).start()));
    helpers.iter().for_each(|helper| helper.signal(libc::SIGKILL));
    // The machine is too busy for clients of the daemon: its log says what it found.
    let of = |netns: &Netns| -> Vec<String> {
        let netns = format!("netns={}", netns.inode);
        let log = daemon.log();
        let lines = log.lines().filter(|line| line.contains(CODE) && line.contains(&netns));
        lines.map(str::to_owned).collect()
    };
    support::poll::until("the slow one is told", GRACE + 20, || !of(&netns[0]).is_empty());
    if LittleCpu::limits_exits() {
        support::poll::until("the limited one is told", 20, || !of(&netns[1]).is_empty());
    }
    // Longer than the grace, which begins again with each look that shows progress.
    std::thread::sleep(std::time::Duration::from_secs(u64::from(2 * GRACE)));
    drop(other);
    drop(groups);
    support::poll::until("both have ended", 60, || {
        !helpers.iter().any(|helper| support::proc::is_alive(helper.pid()))
    });
    let loud = |line: &String| !line.contains("severity=\"info\"");
    let told: Vec<String> = netns.iter().flat_map(of).filter(loud).collect();
    assert!(told.is_empty(), "{told:#?}");
}
