//! Processes that end in every ordinary way, or that look stuck and are not, and pods that end.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::cgroup::{self, Freezer, LittleCpu};
use support::fuse::Hung;
use support::poll::until;
use support::role::{Helper, Role};
use support::{Lab, Netns, innocent};

use super::{SLEEP, Zoo};

/// A netns in the role of a pod.
fn pod(lab: &Lab, name: &str, n: u8) -> Netns {
    let netns = Netns::new(lab, name);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(n), "eth0");
    netns
}

/// Processes in the role of a pod that end in every way, also with many threads.
pub(super) fn exits(lab: &Lab, zoo: &Zoo<'_>) {
    let netns = pod(lab, "exits", 140);
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV].into_iter().cycle() {
        let threads = Helper::new(Role::Threads).arg("1000").inside(&netns).start();
        let stopped = Helper::new(Role::Park).inside(&netns).start();
        stopped.signal(libc::SIGSTOP);
        threads.signal(signal);
        stopped.signal(libc::SIGKILL);
        if !zoo.pause(500) {
            return;
        }
    }
}

/// Processes that look stuck but are not.
pub(super) fn innocents(lab: &Lab, zoo: &Zoo<'_>) {
    let netns = pod(lab, "innocents", 150);
    let all = [
        innocent::frozen_v1(lab, &netns, true),
        innocent::vfork_parent(&netns),
        innocent::stopped(&netns),
        innocent::dumping_core(&netns, zoo.hung),
        innocent::zombie(&netns),
    ];
    zoo.wait();
    assert_eq!(all.len(), 5);
}

/// Processes that a debugger has stopped: some are killed while it is attached, some continue.
pub(super) fn gdb(lab: &Lab, zoo: &Zoo<'_>) {
    let netns = pod(lab, "gdb", 141);
    for n in 0.. {
        let traced = Helper::new(Role::Threads).arg("10").inside(&netns).start();
        let pid = traced.pid();
        let mut gdb = Command::new("gdb");
        // No files of symbols: reading those takes seconds.
        gdb.args(["-q", "-nx", "-iex", "set auto-solib-add off", "-p", &pid.to_string()]);
        gdb.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut gdb = gdb.spawn().expect("run gdb");
        until("gdb has stopped the process", 30, || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:\tt"))
        });
        let goes_on = zoo.pause(3_000);
        if n % 2 == 0 {
            traced.signal(libc::SIGKILL);
            std::thread::sleep(Duration::from_millis(500));
        }
        let _ = gdb.stdin.take().expect("a pipe").write_all(b"detach\nquit\n");
        gdb.kill().expect("end gdb");
        gdb.wait().expect("wait for gdb");
        traced.end();
        if !goes_on || !zoo.pause(5_000) {
            return;
        }
    }
}

/// Core dumps that take seconds, and end.
pub(super) fn cores(lab: &Lab, zoo: &Zoo<'_>) {
    let netns = pod(lab, "cores", 142);
    loop {
        let mut slow = Hung::mount_at(lab, "slow");
        let mut dumps = innocent::dumping_core(&netns, &slow);
        let goes_on = zoo.pause(8_000);
        slow.release();
        assert!(dumps.helper.ends(20), "the dump ends with its file system");
        if !goes_on || !zoo.pause(500) {
            return;
        }
    }
}

/// A container with the smallest share of the CPU (`cpu.shares` 2, as every BestEffort pod) that ends beside busy
/// neighbours.
pub(super) fn starved(lab: &Lab, zoo: &Zoo<'_>) {
    if cgroup::without_cpu().is_some() {
        return zoo.wait();
    }
    let netns = pod(lab, "starved", 143);
    loop {
        let group = LittleCpu::by_share(lab);
        let mut threads = Helper::new(Role::Threads).arg("200").inside(&netns).start();
        group.take(threads.pid());
        let busy = [innocent::busy(&netns), innocent::busy(&netns)];
        threads.signal(libc::SIGKILL);
        let goes_on = zoo.pause(3_000);
        drop(busy);
        // Without the group's limit it need not wait any more.
        drop(group);
        assert!(threads.ends(60), "it ends");
        if !goes_on || !zoo.pause(20_000) {
            return;
        }
    }
}

/// Pods start and end; one is frozen and killed, and ends when it is thawed; one ignores SIGTERM; one is stopped again
/// and again while its successor runs.
pub(super) fn pods(lab: &Lab, zoo: &Zoo<'_>) {
    let containerd = zoo.containerd;
    let deaf = ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    let slow = containerd.run("slow-0", lab.dir(), &deaf);
    let mut client = containerd.begin_termination(&slow, 300);
    let freezer = Freezer::named(lab, false, "zoo-pods");
    for n in 0.. {
        let pod = containerd.run(&format!("web-{n}"), lab.dir(), &SLEEP);
        if n % 3 == 0 {
            freezer.freeze(pod.pid);
            support::sys::kill(pod.pid, libc::SIGKILL).unwrap();
            std::thread::sleep(Duration::from_secs(3));
            freezer.thaw();
            until("it has gone", 10, || !support::proc::is_alive(pod.pid));
        }
        if n % 3 == 1 {
            containerd.halt(&pod);
            let successor = containerd.run(&format!("web-{n}"), lab.dir(), &SLEEP);
            for _ in 0..5 {
                containerd.halt(&pod);
                std::thread::sleep(Duration::from_millis(300));
            }
            containerd.stop(&successor);
        }
        containerd.stop(&pod);
        if !zoo.pause(200) {
            break;
        }
    }
    client.kill().unwrap();
    client.wait().unwrap();
    containerd.stop(&slow);
}
