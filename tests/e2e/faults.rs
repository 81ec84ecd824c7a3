//! The node fails around the daemon, or the daemon with it: afterwards it still knows what it knew, finds what came
//! meanwhile, and names what it lacks.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::inotify;
use rustix::time::{ClockId, clock_gettime, clock_settime};
use serde_json::Value;
use support::fuse::Hung;
use support::poll::until;
use support::role::{Helper, Role, Running};
use support::stuck::{self, How, Stuck};
use support::{Config, Daemon, Lab, Netns, daemon, eventually, harness, patience, poorer, sys};

support::tests! {
    with_too_few_files_it_says_so,
    stopped_for_a_while_it_catches_up needs [Fuse],
    where_proc_hides_processes_it_sees_them needs [Fuse],
    a_state_directory_that_hangs_is_waited_for needs [Fuse],
    killed_again_and_again_it_keeps_what_it_had needs [Fuse],
    what_others_have_left_of_inotify_is_named needs [OwnMachine] @ Alone Kernel Stock,
    the_wall_clock_is_set_a_day_forth_and_back needs [OwnMachine, Fuse] @ Alone Kernel Stock,
}

fn config() -> Config {
    Config::default().grace(1)
}

/// A netns with the lab's IP `host`.
fn with_address(lab: &Lab, hint: &str, host: u8) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(host), "eth0");
    netns
}

/// Waits for the finding about this netns.
fn await_finding(daemon: &Daemon, netns: &Netns) -> Value {
    eventually("the finding fires", 15, || {
        let all = daemon.findings_in(netns.inode);
        all.into_iter().find(|finding| finding["status"] == "firing")
    })
}

/// Files are its scarcest resource; inotify, whose error is the same for two limits, is not short here.
fn with_too_few_files_it_says_so(lab: &Lab) {
    for files in [16, 24, 32] {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {files}; exec \"$0\" \"$@\""));
        command.arg(daemon::binary());
        let mut daemon = Daemon::spawn_by(command, lab, &config(), &lab.subdir("state"));
        // Whether it can run with so few is not tested.
        let names = |said: &str| said.contains("LimitNOFILE") || said.contains("open files");
        let said = eventually(&format!("with {files} it says what it lacks"), 20, || {
            let said = daemon.log();
            (daemon.has_ended().is_some() || names(&said)).then_some(said)
        });
        assert!(names(&said), "{files}: {said}");
        assert!(!said.contains("max_user_instances"), "{files}: {said}");
        drop(daemon);
        std::fs::remove_file(lab.dir().join("daemon.log")).expect("a log of its own for each");
    }
}

/// Like a machine that was suspended, or a cgroup that was frozen.
fn stopped_for_a_while_it_catches_up(lab: &Lab) {
    let before = Stuck::new(lab);
    let gone = with_address(lab, "gone", 21);
    let daemon = Daemon::start(lab, &config());
    let known = await_finding(&daemon, &before.netns);
    daemon.await_ip(lab.ip(21), gone.inode);

    sys::kill(daemon.pid(), libc::SIGSTOP).expect("stop it");
    drop(gone);
    let came = with_address(lab, "came", 22);
    let mut hung = Hung::mount_at(lab, "meanwhile");
    let stuck = with_address(lab, "meanwhile", 23);
    let mut helper = stuck::start(How::Kill, &stuck, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    let pause = if harness::is_long() { 60 } else { 8 };
    std::thread::sleep(Duration::from_secs(pause));
    sys::kill(daemon.pid(), libc::SIGCONT).expect("let it go on");

    daemon.await_ip(lab.ip(22), came.inode);
    await_finding(&daemon, &stuck);
    support::poll::until("what went meanwhile is gone", 20, || daemon.ip(lab.ip(21)).is_empty());
    let after = await_finding(&daemon, &before.netns);
    assert_eq!((&after["id"], &after["since"]), (&known["id"], &known["since"]));
}

/// With the unit's capabilities, as processes are hidden from those that may not trace them.
fn where_proc_hides_processes_it_sees_them(lab: &Lab) {
    let stuck = Stuck::new(lab);
    let command = poorer::with_hidden_processes(&daemon::binary());
    let mut daemon = Daemon::spawn_by(command, lab, &config(), &lab.subdir("state"));
    daemon.await_ready();
    let finding = await_finding(&daemon, &stuck.netns);
    assert_eq!(finding["holders"][0]["pid"], stuck.helper.pid(), "{finding}");
    let inside = with_address(lab, "inside", 22);
    let helper = Helper::new(Role::Park).inside(&inside).start();
    daemon.await_holder(lab.ip(22), inside.inode, "the helper", |h| h["pid"] == helper.pid());
}

/// A mount whose server is gone: whoever opens a file there waits. The daemon watches without its history, and keeps it
/// when the mount works.
fn a_state_directory_that_hangs_is_waited_for(lab: &Lab) {
    let stuck = Stuck::new(lab);
    let mut hung = Hung::mount_at(lab, "history");
    let state = hung.dir().to_owned();
    let daemon = Daemon::start_in(lab, &config(), &state);
    let found = await_finding(&daemon, &stuck.netns);
    let ledger = || daemon.source("ledger").expect("the source");
    until("it says so", 15, || {
        ledger()["status"] == "degraded" && ledger()["detail"].to_string().contains("not answer")
    });
    let history = daemon.list("history", &["query", "history", &lab.ip(1).to_string()]);
    assert_eq!(history.len(), 1, "what waits to be written is told: {history:#?}");
    hung.release();
    until("it is written", 20, || ledger()["status"] == "active");
    until("and at the place that it is meant for", 10, || state.join("ledger.redb").exists());
    // It answers once that is on the disk, and what came before it too.
    let id = found["id"].as_str().expect("an id");
    assert!(daemon.ask(&["ack", id]).status.success());
    daemon.crash();
    let daemon = Daemon::start_in(lab, &config(), &state);
    let after = await_finding(&daemon, &stuck.netns);
    assert_eq!((&after["id"], &after["since"]), (&found["id"], &found["since"]));
}

/// One of several that hang.
struct Standing {
    netns: Netns,
    _helper: Running,
    _hung: Hung,
}

impl Standing {
    fn new(lab: &Lab, host: u8) -> Self {
        let mut hung = Hung::mount_at(lab, &format!("s{host}"));
        let netns = with_address(lab, &format!("s{host}"), host);
        let mut helper = stuck::start(How::Kill, &netns, &mut hung);
        stuck::hang(How::Kill, &mut helper);
        Self { netns, _helper: helper, _hung: hung }
    }
}

/// `kill -9` at random moments, from before it is ready to long after, while addresses come and go.
fn killed_again_and_again_it_keeps_what_it_had(lab: &Lab) {
    let standing: Vec<Standing> = (30..35).map(|host| Standing::new(lab, host)).collect();
    let churned = with_address(lab, "churn", 40);
    let identity = |daemon: &Daemon| {
        let of = |(one, host): (&Standing, u8)| {
            let finding = await_finding(daemon, &one.netns);
            let history = daemon.list("history", &["query", "history", &lab.ip(host).to_string()]);
            assert_eq!(history.len(), 1, "one tenure over all of it: {history:#?}");
            assert!(history[0]["to"].is_null(), "and it lasts: {history:#?}");
            let stays = ["id", "since", "firing_at"].map(|key| finding[key].clone());
            (one.netns.inode, (stays, history[0]["from"].clone()))
        };
        standing.iter().zip(30..).map(of).collect::<BTreeMap<_, _>>()
    };
    let daemon = Daemon::start(lab, &config());
    let before = identity(&daemon);
    // With all of that on the disk: the kills follow.
    assert!(daemon.stop().success());

    let times = if harness::is_long() { 100 } else { 8 };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..100_u8).cycle() {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let cidr = lab.cidr(100 + n);
                churned.add_address(&cidr, "eth0");
                churned.ip(&format!("addr del {cidr} dev eth0"));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        // A fixed seed, so that a failure can be reproduced.
        let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..times {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let daemon = Daemon::spawn(lab, &config(), &lab.subdir("state"));
            std::thread::sleep(Duration::from_millis(random >> 33 & 0x7ff) * patience());
            daemon.crash();
        }
        done.store(true, Ordering::Relaxed);
    });

    let daemon = Daemon::start(lab, &config());
    assert_eq!(identity(&daemon), before, "the same findings, since the same moments");
    let all = daemon.list("findings", &["query", "findings", "--all"]);
    let ours = |finding: &&Value| {
        finding["subject"]["netns"]["inode"].as_u64().is_some_and(|of| before.contains_key(&of))
    };
    let of: Vec<&Value> = all.iter().filter(ours).collect();
    assert_eq!(of.len(), before.len(), "none is lost, doubled or resolved: {of:#?}");
    let files = std::fs::read_dir(lab.subdir("state")).expect("list the state directory");
    let name = |file: std::io::Result<std::fs::DirEntry>| file.expect("an entry").file_name();
    let names: Vec<String> = files.map(|file| name(file).to_string_lossy().into_owned()).collect();
    assert!(!names.iter().any(|name| name.contains("corrupt")), "undamaged: {names:?}");
}

/// What inotify may have is by user, and root's is shared with every container that has no user namespace.
fn what_others_have_left_of_inotify_is_named(lab: &Lab) {
    let network = lab.subdir("networks/net");
    let reserve = |host: u8| {
        let path = network.join(lab.ip(host).to_string());
        std::fs::write(path, format!("c{host}\r\neth0")).expect("reserve it");
    };
    let known = |daemon: &Daemon, host: u8| {
        let all = daemon.list("reservations", &["query", "ipam", &lab.ip(host).to_string()]);
        all.iter().any(|one| one["container_id"] == format!("c{host}"))
    };
    let config = config().networks(&[lab.subdir("net.d")], &lab.subdir("bin"));
    let config = config.data_dir(&lab.subdir("networks"));
    for (sysctl, mut host) in [("max_user_instances", 50), ("max_user_watches", 60)] {
        reserve(host);
        let limit = Limit::lower(sysctl, 64);
        let taken = Hoard::new(lab, sysctl);
        let daemon = Daemon::start_in(lab, &config, &lab.subdir(sysctl));
        for source in ["host-local", "cni"] {
            daemon.await_source(source);
            let source = daemon.source(source).expect("the source");
            let detail = source["detail"].as_str().expect("a detail");
            assert_eq!(source["status"], "degraded", "{source}");
            assert!(detail.contains(&format!("raise fs.inotify.{sysctl} (now 64)")), "{detail}");
        }
        let log = daemon.log();
        assert!(log.contains(&format!("fs.inotify.{sysctl}")), "{log}");
        assert!(!log.contains("LimitNOFILE"), "{log}");
        until("what is there is known", 10, || known(&daemon, host));
        host += 1;
        reserve(host);
        until("what comes is read", 20, || known(&daemon, host));
        drop((taken, limit));
        until("it watches again", 30, || {
            let is_active = |name| daemon.source(name).is_some_and(|one| one["status"] == "active");
            is_active("host-local") && is_active("cni")
        });
        host += 1;
        reserve(host);
        until("it is told by inotify", 10, || known(&daemon, host));
        assert!(daemon.log().contains("works again"), "{}", daemon.log());
    }
}

/// A limit of inotify for every user of this machine. It is as before when this is dropped.
struct Limit(std::path::PathBuf, String);

impl Limit {
    fn lower(sysctl: &str, to: u32) -> Self {
        let path = std::path::Path::new("/proc/sys/fs/inotify").join(sysctl);
        let before = std::fs::read_to_string(&path).expect("a limit");
        std::fs::write(&path, to.to_string()).expect("lower it");
        Self(path, before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        std::fs::write(&self.0, &self.1).expect("raise it again");
    }
}

/// All that is left of inotify for root, as another program of root's takes it.
struct Hoard {
    _instances: Vec<OwnedFd>,
}

impl Hoard {
    fn new(lab: &Lab, sysctl: &str) -> Self {
        let new = || inotify::init(inotify::CreateFlags::CLOEXEC);
        if sysctl == "max_user_instances" {
            let _instances = std::iter::from_fn(|| new().ok()).take(4096).collect();
            return Self { _instances };
        }
        let one = new().expect("an inotify instance");
        let add = |n: usize| {
            let dir = lab.subdir(&format!("watched/{n}"));
            inotify::add_watch(&one, &dir, inotify::WatchFlags::CREATE)
        };
        let all = (0..4096).take_while(|n| add(*n).is_ok()).count();
        assert!(all < 4096, "none is refused");
        Self { _instances: vec![one] }
    }
}

/// Only dates follow the clock; order and durations are the boot clock's. A restart in between changes nothing.
fn the_wall_clock_is_set_a_day_forth_and_back(lab: &Lab) {
    const DAY: i64 = 86_400;
    let stuck = Stuck::new(lab);
    let netns = with_address(lab, "n", 7);
    let mut daemon = Daemon::start(lab, &config());
    daemon.await_ip(lab.ip(7), netns.inode);
    let what = |finding: &Value| {
        ["id", "since", "firing_at", "status"].map(|field| finding[field].clone())
    };
    let before = what(&await_finding(&daemon, &stuck.netns));
    for days in [1, -2, 1] {
        let mut now = clock_gettime(ClockId::Realtime);
        now.tv_sec += days * DAY;
        clock_settime(ClockId::Realtime, now).unwrap();
        until("dates follow the clock", 10, || {
            let document = daemon.document(&["doctor"]).unwrap();
            let taken: Timestamp = document["taken_at"].as_str().unwrap().parse().unwrap();
            taken.duration_since(Timestamp::now()).abs().as_secs() < DAY / 2
        });
        assert_eq!(what(&await_finding(&daemon, &stuck.netns)), before, "after {days} days");
        daemon.crash();
        daemon = Daemon::start(lab, &config());
        assert_eq!(what(&await_finding(&daemon, &stuck.netns)), before, "and a restart");
    }
    let all = daemon.list("findings", &["query", "findings", "--all"]);
    let of = |finding: &&Value| finding["subject"]["netns"]["inode"] == stuck.netns.inode;
    assert_eq!(all.iter().filter(of).count(), 1, "not doubled, and not resolved: {all:#?}");
    let history = daemon.list("history", &["query", "history", &lab.ip(7).to_string()]);
    assert_eq!(history.len(), 1, "one tenure over all of it: {history:#?}");
    assert!(history[0]["to"].is_null(), "and it lasts: {history:#?}");
    assert_eq!(daemon.findings_in(netns.inode), Vec::<Value>::new());
}
