//! Tests the probes on the running kernel. Needs root. Creates its own netns, without devices or addresses, which end
//! with the threads and children that hold them.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::*;
use crate::fact::{Fact, Holder, Observation, Scope};
use crate::reading::Readings;
use crate::sources::Emit;
use crate::testing::program;

/// Loads the probes. `None` if the test is skipped, which prints a line and is an error in CI.
fn probes(test: &str, forbid: &[Rung]) -> Option<Probes> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "{test} needs root");
        eprintln!("SKIPPED {test}: needs root");
        return None;
    }
    let settings = Settings { forbid: forbid.to_vec(), ..Settings::default() };
    Some(Probes::load(&settings).unwrap())
}

fn unshare() -> io::Result<()> {
    // SAFETY: takes no pointer.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a thread in its own netns reports about itself.
struct Place {
    inode: u32,
    tid: u32,
    file: File,
    socket: UdpSocket,
}

/// A thread that stays in a new netns until it is told to end.
struct Stay {
    go: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Stay {
    fn begin() -> (Self, Place) {
        let (go, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            unshare().unwrap();
            let file = File::open("/proc/thread-self/ns/net").unwrap();
            let place = Place {
                inode: file.metadata().unwrap().ino() as u32,
                tid: rustix::thread::gettid().as_raw_nonzero().get() as u32,
                socket: UdpSocket::bind("0.0.0.0:0").unwrap(),
                file,
            };
            tell.send(place).unwrap();
            let _ = wait.recv();
        });
        (Self { go, thread }, told.recv().unwrap())
    }

    fn end(self) {
        drop(self.go);
        self.thread.join().unwrap();
    }
}

/// Checks that `facts` are a complete dump of `scope`.
fn assert_whole(facts: &[Fact], scope: Scope) {
    assert_eq!(facts.first().map(|fact| &fact.what), Some(&Observation::Began(scope.clone())));
    let began = facts[0].at;
    let ended = Observation::Ended { scope, began, complete: true };
    assert_eq!(facts.last().map(|fact| &fact.what), Some(&ended));
}

fn netns_of(what: &Observation) -> Option<NetnsRef> {
    match what {
        Observation::Netns { netns } | Observation::Holder { netns, .. } => Some(*netns),
        Observation::Task(task) => Some(task.netns),
        _ => None,
    }
}

#[test]
fn snapshots_show_a_netns_its_thread_and_what_holds_it_when_the_thread_is_gone() {
    let name = "snapshots_show_a_netns_its_thread_and_what_holds_it_when_the_thread_is_gone";
    let Some(mut probes) = probes(name, &[]) else { return };
    let host = probes.host();
    let mut snapshots = probes.snapshots().unwrap();
    let (stay, place) = Stay::begin();
    let here =
        |fact: &&Fact| netns_of(&fact.what).is_some_and(|netns| netns.inode == Some(place.inode));

    let netns = snapshots.netns().unwrap();
    assert_whole(&netns, Scope::Netns);
    assert!(netns.iter().any(|fact| fact.what == Observation::Netns { netns: host }));
    let found = netns.iter().find(here).expect("the new netns is on the list");
    assert!(netns_of(&found.what).unwrap().cookie.is_some());

    let tasks = snapshots.tasks().unwrap();
    assert_whole(&tasks, Scope::Tasks);
    let Observation::Task(task) = &tasks.iter().find(here).unwrap().what else { panic!() };
    assert_eq!((task.key.pid, task.key.tid), (std::process::id(), place.tid));
    assert!(!task.exiting && !task.killed);
    assert!(tasks.iter().all(|fact| netns_of(&fact.what) != Some(host)), "the host is left out");

    stay.end();
    let (files, whole) = snapshots.files(&[]).unwrap();
    assert!(whole);
    assert_whole(&files, Scope::Files);
    let holders: Vec<_> = files.iter().filter(here).map(|fact| &fact.what).collect();
    let pid = std::process::id();
    let fds = [place.file.as_raw_fd() as u32, place.socket.as_raw_fd() as u32];
    assert!(holders.iter().any(|what| matches!(
        what,
        Observation::Holder { holder: Holder::Fd { pid: p, fd, .. }, .. } if (*p, *fd) == (pid, fds[0])
    )));
    assert!(holders.iter().any(|what| matches!(
        what,
        Observation::Holder { holder: Holder::Socket { pid: p, fd, .. }, .. } if (*p, *fd) == (pid, fds[1])
    )));
}

/// A sleeping child in its own netns, which ends with this value.
struct Sleeper(Child);

impl Sleeper {
    fn spawn() -> Self {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null());
        // SAFETY: between fork and exec only one system call is made.
        let child = unsafe { command.pre_exec(unshare) }.spawn().unwrap();
        Self(child)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test, but a process with two threads, libtest's and this one, for the test below.
#[test]
#[ignore = "a process for another test"]
fn stays_until_its_input_ends() {
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

#[test]
fn a_thread_is_covered_by_its_leader_in_the_same_netns() {
    let name = "a_thread_is_covered_by_its_leader_in_the_same_netns";
    let Some(mut probes) = probes(name, &[]) else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "stays_until_its_input_ends"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    // SAFETY: between fork and exec only one system call is made.
    let mut child = unsafe { command.pre_exec(unshare) }.spawn().unwrap();
    let pid = child.id();
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    for _ in 0..500 {
        if threads() > 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let count = threads();
    let facts = probes.snapshots().unwrap().tasks().unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(count > 1, "it has but one thread");
    let told: Vec<u32> = facts
        .iter()
        .filter_map(|fact| match &fact.what {
            Observation::Task(task) if task.key.pid == pid => Some(task.key.tid),
            _ => None,
        })
        .collect();
    assert_eq!(told, [pid]);
}

/// Ignores the requests.
struct Nobody;

impl Beside for Nobody {
    fn sweep(&self) {}

    fn look(&self, _: u32) {}
}

/// Starts to report tasks.
fn tell_tasks(probes: &mut Probes, emit: &Emit) {
    let (mut tasks, out) = (probes.tasks().unwrap(), emit.clone());
    std::thread::spawn(move || tasks.run(&out, &Nobody));
}

/// Runs a process from start to end with the allowed rungs, and returns what was reported about it.
async fn life(probes: &mut Probes) -> Vec<Observation> {
    let events = probes.events().unwrap();
    let (emit, mut facts) = Emit::channel(64);
    tell_tasks(probes, &emit);
    let reader = tokio::spawn(events.run(emit, Readings::default()));
    let mut sleeper = Sleeper::spawn();
    let pid = sleeper.0.id();
    let mut told = Vec::new();
    let about = |what: &Observation| match what {
        Observation::Task(task) => task.key.pid == pid,
        Observation::TaskExiting { task } | Observation::TaskReleased { task } => task.pid == pid,
        Observation::Signalled { pid: target, .. } => *target == pid,
        _ => false,
    };
    let has = |told: &[Observation], wanted: &dyn Fn(&Observation) -> bool| told.iter().any(wanted);
    let end = async {
        // spawn() returns when the exec has closed its pipe, some time before the kernel reports the exec
        // (`begin_new_exec`, then `exec_binprm`, fs/exec.c).
        while !has(&told, &|what| matches!(what, Observation::Task(task) if task.comm == "sleep")) {
            let batch = facts.recv().await.unwrap();
            told.extend(batch.into_iter().map(|fact| fact.what).filter(about));
        }
        sleeper.0.kill().unwrap();
        sleeper.0.wait().unwrap();
        while !has(&told, &|what| matches!(what, Observation::TaskReleased { .. })) {
            let batch = facts.recv().await.unwrap();
            told.extend(batch.into_iter().map(|fact| fact.what).filter(about));
        }
    };
    tokio::time::timeout(Duration::from_secs(30), end).await.expect("the release is told");
    reader.abort();
    told
}

fn assert_life(told: &[Observation]) {
    let at = |wanted: &dyn Fn(&Observation) -> bool| {
        told.iter().position(wanted).unwrap_or_else(|| panic!("not told: {told:?}"))
    };
    let exec = at(&|what| matches!(what, Observation::Task(task) if task.comm == "sleep"));
    let released = at(&|what| matches!(what, Observation::TaskReleased { .. }));
    assert!(exec < released, "{told:?}");
    // A normal exit: none of its intermediate steps is reported.
    let dying = |what: &Observation| {
        matches!(what, Observation::Signalled { .. } | Observation::TaskExiting { .. })
    };
    assert!(!told.iter().any(dying), "{told:?}");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// A shell in its own netns runs a program again and again: the programs are not reported, and nothing is lost.
#[test]
fn what_ends_at_once_is_not_told() {
    let Some(mut probes) = probes("what_ends_at_once_is_not_told", &[]) else { return };
    let losses = probes.losses();
    let (told, ended) = block_on(async {
        let events = probes.events().unwrap();
        let (emit, mut facts) = Emit::channel(1024);
        tell_tasks(&mut probes, &emit);
        let reader = tokio::spawn(events.run(emit, Readings::default()));
        let mut command = Command::new("sh");
        command
            .args(["-c", "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done; sleep 1; :"]);
        // SAFETY: between fork and exec only one system call is made.
        let mut child = unsafe { command.pre_exec(unshare) }.spawn().unwrap();
        let end = tokio::task::spawn_blocking(move || child.wait().unwrap());
        tokio::time::timeout(Duration::from_secs(60), end).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (mut told, mut ended) = (0, false);
        while let Ok(batch) = facts.try_recv() {
            for fact in batch {
                match fact.what {
                    Observation::Task(task) if task.comm == "true" => told += 1,
                    Observation::Task(task) if task.comm == "sleep" => ended = true,
                    _ => {}
                }
            }
        }
        reader.abort();
        (told, ended)
    });
    assert!(ended, "what lives for a second is told");
    assert!(told < 60, "{told} of 300");
    assert_eq!(losses.borrow().tasks, 0);
    let report = probes.report();
    let fork = report.iter().find(|probe| probe.event == "process-fork").unwrap();
    assert!(fork.seen.unwrap() >= 300, "{fork:?}");
}

#[test]
fn a_process_is_followed_from_exec_to_release() {
    let Some(mut probes) = probes("a_process_is_followed_from_exec_to_release", &[]) else {
        return;
    };
    assert_life(&block_on(life(&mut probes)));
    let report = probes.report();
    let exec = report.iter().find(|probe| probe.event == "process-exec").unwrap();
    assert_eq!((exec.rung.as_str(), exec.status.as_str()), ("tp_btf", "active"));
    assert!(exec.seen.unwrap() > 0);
    let kill = report.iter().find(|probe| probe.event == "sigkill").unwrap();
    assert!(kill.seen.unwrap() > 0, "it is counted all the same");
    assert_eq!(probes.missed(), Missed::default());
}

#[test]
fn the_same_is_told_on_lower_rungs() {
    let forbid = [Rung::TpBtf, Rung::Fentry];
    let Some(mut probes) = probes("the_same_is_told_on_lower_rungs", &forbid) else { return };
    assert_life(&block_on(life(&mut probes)));
    let report = probes.report();
    let exec = report.iter().find(|probe| probe.event == "process-exec").unwrap();
    assert_eq!((exec.rung.as_str(), exec.status.as_str()), ("raw_tp", "fallback"));
    assert_eq!(exec.why.as_deref(), Some("tp_btf: forbidden by the configuration"));
}

#[test]
fn a_snapshot_that_was_refused_says_so() {
    let Some(mut probes) = probes("a_snapshot_that_was_refused_says_so", &[Rung::Snapshot]) else {
        return;
    };
    let mut snapshots = probes.snapshots().unwrap();
    assert!(matches!(snapshots.netns(), Err(SnapshotError::Refused(_))));
    assert!(matches!(snapshots.tasks(), Err(SnapshotError::Refused(_))));
}

/// The end of a run that did not fit waits in a map: if the start of a run was reported, its end is too.
#[test]
fn the_end_of_a_call_is_told_whether_or_not_there_was_room() {
    let name = "the_end_of_a_call_is_told_whether_or_not_there_was_room";
    if probes(name, &[]).is_none() {
        return;
    }
    const RUNS: usize = 100;
    let dir = std::env::temp_dir().join(format!("ipwatch-calls-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let plugin = dir.join("plugin");
    program::copy("/bin/true", &plugin);
    let plugin_dirs = vec![dir.clone()];
    // Room for about 25 of them.
    let settings = Settings { ring_bytes: 1 << 16, plugin_dirs, ..Settings::default() };
    let mut probes = Probes::load(&settings).unwrap();
    let losses = probes.losses();
    for _ in 0..RUNS {
        let mut command = Command::new(&plugin);
        command.env_clear().env("CNI_COMMAND", "DEL").env("CNI_CONTAINERID", "c1");
        assert!(command.status().unwrap().success());
    }
    std::fs::remove_dir_all(&dir).unwrap();
    block_on(async {
        let events = probes.events().unwrap();
        let (emit, mut facts) = Emit::channel(64);
        let reader = tokio::spawn(events.run(emit, Readings::default()));
        let (mut began, mut ended) = (0, 0);
        let all = async {
            while ended < RUNS {
                for fact in facts.recv().await.unwrap() {
                    match fact.what {
                        Observation::CniBegan(call) if call.plugin.ends_with("/plugin") => {
                            began += 1
                        }
                        Observation::CniEnded { status, .. } => {
                            ended += usize::from(status == Some(0))
                        }
                        _ => {}
                    }
                }
            }
        };
        let all = tokio::time::timeout(Duration::from_secs(30), all).await;
        assert!(all.is_ok(), "{began} began and {ended} of {RUNS} ended");
        assert_eq!(losses.borrow().calls, (RUNS - began) as u64, "what was lost is told");
        assert!(began > 0 && began < RUNS, "{began}");
        reader.abort();
    });
}

/// A reader that is too slow loses events, and learns that it did.
#[test]
fn what_does_not_fit_is_counted() {
    if probes("what_does_not_fit_is_counted", &[]).is_none() {
        return;
    }
    let settings = Settings { ring_bytes: 1 << 16, ..Settings::default() };
    let mut probes = Probes::load(&settings).unwrap();
    let losses = probes.losses();
    block_on(async {
        let events = probes.events().unwrap();
        // The end of each child writes a record of a hundred bytes.
        for _ in 0..1000 {
            drop(Sleeper::spawn());
        }
        let (emit, mut facts) = Emit::channel(64);
        tell_tasks(&mut probes, &emit);
        let reader = tokio::spawn(events.run(emit, Readings::default()));
        let mut losses = losses;
        let lost = async {
            tokio::select! {
                changed = losses.changed() => changed.unwrap(),
                () = async { while facts.recv().await.is_some() {} } => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(30), lost).await.expect("the loss is told");
        assert!(losses.borrow().tasks > 0);
        reader.abort();
    });
}
