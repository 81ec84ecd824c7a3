//! Every way in which a process can be told to end while one of its threads hangs in the kernel. Each is found in
//! time, through the kernel half's table of dying tasks, or through a sweep over all tasks where that table cannot
//! tell.

use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;
use support::fuse::Hung;
use support::role::{Helper, Role, Running};
use support::{Config, Daemon, Lab, Netns, cgroup, eventually, harness, patience, proc, sys};

support::tests! {
    each_is_found_without_a_sweep needs [Fuse] @ Alone Kernel Stock Rung,
    each_is_found_by_the_sweep_alone needs [Fuse, Tracing] @ Alone Kernel Stock,
    each_is_found_by_looking_at_all_tasks needs [Fuse] @ Alone Kernel,
    each_is_found_where_nothing_can_be_probed needs [Fuse] @ Alone Kernel Stock,
}

/// Grace period in these tests, in seconds.
const GRACE: u32 = 1;
/// Seconds after the grace period within which the finding must fire.
const IN_TIME: u32 = 3;
const CODE: &str = "ip-held-by-stuck-process";

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Its leader hangs and another thread calls `exit_group()`.
    GroupExit,
    /// `kill -9`.
    Kill,
    /// SIGTERM, without a handler.
    Term,
    /// A thread faults; it waits for all others before it dumps core.
    Fault,
    /// A thread makes a system call for which a seccomp filter kills the process.
    Seccomp,
    /// Its cgroup is out of memory.
    Oom,
    /// Its leader exits before a thread that hangs, and then the process is killed.
    LeaderFirst,
    /// Its leader exits before a thread that hangs, and then another thread calls `exit_group()`.
    LeaderFirstGroupExit,
    /// A thread calls `execve()` and waits for its leader, which hangs (`de_thread`).
    Exec,
    /// It hangs in its exit while closing a file.
    Exit,
}

impl Way {
    const ALL: [Way; 10] = [
        Way::GroupExit,
        Way::Kill,
        Way::Term,
        Way::Fault,
        Way::Seccomp,
        Way::Oom,
        Way::LeaderFirst,
        Way::LeaderFirstGroupExit,
        Way::Exec,
        Way::Exit,
    ];

    /// Whether the leader hangs, and not another thread.
    fn hangs_leader(self) -> bool {
        !matches!(self, Way::LeaderFirst | Way::LeaderFirstGroupExit)
    }
}

/// A process that hangs or is about to.
struct Case {
    way: Way,
    helper: Running,
    netns: Netns,
    _hung: Hung,
}

impl Case {
    fn new(lab: &Lab, way: Way, memory: &Path) -> Self {
        let name = format!("{way:?}").to_lowercase();
        let mut hung = Hung::mount_at(lab, &name);
        let netns = Netns::new(lab, &name);
        netns.veth_to_host();
        netns.add_address(&lab.cidr(way as u8 + 2), "eth0");
        let file = hung.file();
        let who = if way.hangs_leader() { "leader" } else { "thread" };
        let memory = memory.to_str().expect("a path in UTF-8");
        let helper = match way {
            Way::Exit => Helper::new(Role::Opener).inside(&netns).arg(&file).start(),
            _ => {
                let helper = Helper::new(Role::Mortal).inside(&netns);
                let helper = helper.arg(who).arg(memory).arg(&file).start();
                hung.await_read();
                helper
            }
        };
        Self { way, helper, netns, _hung: hung }
    }

    /// Starts one case for each wanted way that can be tried here; each hangs or is about to.
    fn all(lab: &Lab, memory: Option<&Path>, wanted: impl Fn(Way) -> bool) -> Vec<Self> {
        let none = Path::new(NO_MEMORY);
        let ways = ways(memory, wanted).into_iter();
        let all = ways.map(|way| Self::new(lab, way, memory.unwrap_or(none))).collect();
        // Let the events of their start pass first.
        std::thread::sleep(std::time::Duration::from_secs(1));
        all
    }

    /// Ends the process. Returns the time at which its end began.
    fn end(&mut self) -> Timestamp {
        if !self.way.hangs_leader() {
            self.helper.tell("leave");
            let stat = format!("/proc/{}/stat", self.helper.pid());
            support::poll::until("the leader has exited", 5, || {
                std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
            });
        }
        let at = Timestamp::now();
        match self.way {
            Way::Kill | Way::LeaderFirst => self.helper.signal(libc::SIGKILL),
            Way::Term => self.helper.signal(libc::SIGTERM),
            Way::GroupExit | Way::LeaderFirstGroupExit | Way::Exit => self.helper.tell("exit"),
            Way::Fault => self.helper.tell("fault"),
            Way::Seccomp => self.helper.tell("seccomp"),
            Way::Oom => self.helper.tell("oom"),
            Way::Exec => self.helper.tell("exec"),
        }
        at
    }

    /// Waits for the finding. Returns how many seconds after `end` it fired.
    fn is_found(&self, daemon: &Daemon, end: Timestamp, in_time: u32) -> f64 {
        let way = self.way;
        let finding: Value =
            eventually(&format!("{way:?}: the finding fires"), GRACE + in_time + 5, || {
                let all = daemon.findings_in(self.netns.inode);
                all.into_iter().find(|finding| finding["status"] == "firing")
            });
        assert_eq!(finding["code"], CODE, "{way:?}: {finding}");
        assert_eq!(finding["holders"][0]["pid"], self.helper.pid(), "{way:?}: {finding}");
        let fired = finding["firing_at"].as_str().unwrap().parse::<Timestamp>().unwrap();
        fired.duration_since(end).as_secs_f64()
    }

    /// Waits for the finding. Returns the seconds it took if they are outside the limits.
    fn is_late(&self, daemon: &Daemon, end: Timestamp, in_time: u32) -> Option<(Way, f64)> {
        let took = self.is_found(daemon, end, in_time);
        println!("{:?}: {took:.2} s after its end began; its grace is {GRACE} s", self.way);
        // The process lives until its memory is used up and the kernel has tried to reclaim some.
        let lives = if self.way == Way::Oom { IN_TIME } else { 0 };
        let limit = GRACE + (in_time + lives) * patience();
        let in_time = f64::from(GRACE)..=f64::from(limit);
        (!in_time.contains(&took)).then_some((self.way, took))
    }
}

/// Ends all at once, and checks that each is found within its grace period and `IN_TIME`.
fn each_is_found(lab: &Lab, config: Config, wanted: impl Fn(&Daemon, Way) -> bool) {
    let daemon = Daemon::start(lab, &config.grace(GRACE).core_dump_grace(GRACE));
    each_is_found_by(lab, &daemon, IN_TIME, wanted, || ());
}

/// Like [`each_is_found`], with another limit after the grace period. `meanwhile` runs while all still hang.
fn each_is_found_by(
    lab: &Lab,
    daemon: &Daemon,
    in_time: u32,
    wanted: impl Fn(&Daemon, Way) -> bool,
    meanwhile: impl FnOnce(),
) {
    let memory = cgroup::with_little_memory(lab);
    let mut cases = Case::all(lab, memory.as_deref(), |way| wanted(daemon, way));
    let ends: Vec<Timestamp> = cases.iter_mut().map(Case::end).collect();
    let judged = cases.iter().zip(ends);
    let late: Vec<_> =
        judged.filter_map(|(case, end)| case.is_late(daemon, end, in_time)).collect();
    assert!(late.is_empty(), "not in time: {late:?}");
    meanwhile();
}

/// Argument that says that there is no cgroup for a process that is to run out of memory.
const NO_MEMORY: &str = "-";

/// The ways that can be tried here.
fn ways(memory: Option<&Path>, wanted: impl Fn(Way) -> bool) -> Vec<Way> {
    let can = |way: &Way| wanted(*way) && (*way != Way::Oom || memory.is_some());
    let ways: Vec<Way> = Way::ALL.into_iter().filter(can).collect();
    assert!(ways.len() >= 8, "{ways:?}");
    ways
}

/// Without sweeps, so only the probes can report. The processes end one after the other and stay until the last one
/// is found: an event about one may cause others to be read.
fn each_is_found_without_a_sweep(lab: &Lab) {
    if support::daemon::probes() == "off" {
        return;
    }
    let config = Config::default().probes_line("sweep = \"0s\"");
    let daemon = Daemon::start(lab, &config.grace(GRACE).core_dump_grace(GRACE));
    let probes = daemon.list("probes", &["doctor"]);
    let group_exit = probes.iter().find(|probe| probe["event"] == "group-exit").expect("listed");
    let memory = cgroup::with_little_memory(lab);
    let memory = memory.as_deref();
    // A thread that waits for its leader in an exec has sent no signal and has not exited: it is seen only where a
    // kernel function can be probed.
    let wanted = |way| way != Way::Exec || group_exit["rung"] != "snapshot";
    let mut cases = Case::all(lab, memory, wanted);
    for case in &mut cases {
        let end = case.end();
        assert_eq!(case.is_late(&daemon, end, IN_TIME), None, "not in time");
    }
}

/// The probes are attached, but the thread that reads the task events is held, so none arrives. The sweep must find
/// every case, and count it as missed.
fn each_is_found_by_the_sweep_alone(lab: &Lab) {
    if support::daemon::probes() != "all" {
        return;
    }
    let sweep = if harness::is_long() { 30 } else { 8 };
    let config = Config::default().probes_line(&format!("sweep = \"{sweep}s\""));
    let daemon = Daemon::start(lab, &config.grace(GRACE).core_dump_grace(GRACE));
    let reader = proc::thread_named(daemon.pid(), "ipwatch-tasks").expect("tasks are told of here");
    let held = sys::Held::take(reader).expect("hold a thread of the daemon");
    let missed = || {
        let probes = daemon.list("probes", &["doctor"]);
        let exit = probes.iter().find(|probe| probe["event"] == "process-exit").expect("listed");
        exit["missed"].as_u64().unwrap_or(0)
    };
    // A finding of one sweep is confirmed by the next.
    let counted = || {
        support::poll::until("what no event told is counted", 2 * sweep + 15, || missed() > 0);
    };
    each_is_found_by(lab, &daemon, sweep + IN_TIME, |_, _| true, counted);
    println!("{} ends were missed", missed());
    drop(held);
}

/// No event is seen; only the iterators run.
fn each_is_found_by_looking_at_all_tasks(lab: &Lab) {
    if support::daemon::probes() != "all" {
        return;
    }
    let forbid = "forbid = [\"tp_btf\", \"raw_tp\", \"fentry\", \"kprobe\", \"socket\"]";
    each_is_found(lab, Config::default().probes_line(forbid), |_, _| true);
}

/// No BPF program is loaded.
fn each_is_found_where_nothing_can_be_probed(lab: &Lab) {
    if support::daemon::probes() != "all" {
        return;
    }
    each_is_found(lab, Config::default().probes_line("enabled = false"), |_, _| true);
}
