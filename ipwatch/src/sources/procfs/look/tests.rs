use std::process::{Child, Command, Stdio};

use super::super::testing::{Made, Tree};
use super::*;
use crate::sources::netlink::testing::root;

fn looked(proc: &Proc, task: TaskKey) -> Look {
    match proc.look(task).unwrap().what {
        Observation::Look { task: of, look } if of == task => *look,
        other => panic!("{other:?}"),
    }
}

#[test]
fn everything_a_finding_needs_is_seen() {
    let tree = Tree::new();
    let made = Made {
        comm: b"evil) R 1 (\xff",
        state: 'D',
        flags: 0x40_0004,
        status: "Name:\tSigPnd\nSigPnd:\t0000000000000001\nShdPnd:\t0000000000000100\n\
                 CoreDumping:\t1\n",
        cgroup: "0::/pod (deleted)\n",
        wchan: "request_wait_answer",
        stack: "[<0>] request_wait_answer+0x12/0x20 [fuse]\n[<0>] vfs_read+0x1/0x2\nnonsense\n",
        ..Made::default()
    };
    tree.task(&made);
    let io = "rchar: 9\nwchar: 4096\nsyscr: 1\nsyscw: 1\nread_bytes: 0\nwrite_bytes: 0\n";
    tree.file(&format!("proc/{}/io", made.pid), io);
    let look = looked(&tree.proc(), made.key());
    let seen = Look {
        netns: Some(Presence::In(NetnsRef::inode(4_026_532_177))),
        comm: "evil) R 1 (\u{fffd}".to_owned(),
        state: 'D',
        flags: 0x40_0004,
        sig_pending: 1,
        shared_pending: 0x100,
        wchan: Some("request_wait_answer".to_owned()),
        stack: vec!["request_wait_answer".to_owned(), "vfs_read".to_owned()],
        core_dumping: true,
        written: Some(4096),
        cpu: Some(35),
        threads: Some(1),
        frozen: Some(false),
        cgroup: Some("/pod (deleted)".to_owned()),
        ..Look::default()
    };
    assert_eq!(look, seen);
}

#[test]
fn many_groups_hide_no_signal() {
    let tree = Tree::new();
    let made = Made::default();
    tree.task(&made);
    let status = |groups| {
        let groups = "4294967294 ".repeat(groups);
        let signals = "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";
        let text = format!("Name:\tx\nGroups:\t{groups}\n{signals}");
        tree.file(&format!("proc/{}/task/{}/status", made.pid, made.tid), &text);
    };
    status(65_536);
    assert_eq!(looked(&tree.proc(), made.key()).shared_pending, 0x100);
    // More than any process has: what was cut off is unknown, and not "no signal".
    status(100_000);
    assert!(tree.proc().look(made.key()).is_err());
}

#[test]
fn where_no_wchan_is_told_the_stack_begins_with_it() {
    let stack = "[<0>] __refrigerator+0x12/0x20\n[<0>] get_signal+0x1/0x2\n";
    for (state, told) in [('D', Some("__refrigerator")), ('R', None)] {
        let tree = Tree::new();
        let made = Made { state, wchan: "0", stack, ..Made::default() };
        tree.task(&made);
        let look = looked(&tree.proc(), made.key());
        assert_eq!(look.wchan.as_deref(), told, "a running task sleeps nowhere");
        assert_eq!(look.frozen == Some(true), state == 'D');
    }
}

#[test]
fn a_pid_that_is_used_again_is_another_task() {
    let tree = Tree::new();
    let made = Made::default();
    tree.task(&made);
    let before = TaskKey { start: made.start - 1, ..made.key() };
    let look = looked(&tree.proc(), before);
    assert_eq!(look, Look { netns: Some(Presence::Gone), ..Look::default() });
    assert_eq!(tree.proc().presence(before).unwrap(), Presence::Gone);
    assert!(!tree.proc().alive(before).unwrap() && tree.proc().alive(made.key()).unwrap());
}

#[test]
fn a_task_without_namespaces_has_released_them() {
    let tree = Tree::new();
    let zombie = Made { netns: None, state: 'Z', ..Made::default() };
    tree.task(&zombie);
    assert_eq!(tree.proc().presence(zombie.key()).unwrap(), Presence::Released);
    assert_eq!(looked(&tree.proc(), zombie.key()).netns, Some(Presence::Released));
}

#[test]
fn the_v1_refrigerator_is_seen_without_its_files() {
    let tree = Tree::new();
    let frozen =
        Made { wchan: "__refrigerator", cgroup: "5:freezer:/not/readable\n", ..Made::default() };
    tree.task(&frozen);
    assert_eq!(looked(&tree.proc(), frozen.key()).frozen, Some(true));
    tree.task(&Made { pid: 41, tid: 41, wchan: "0", ..frozen.clone() });
    let unknown = looked(&tree.proc(), TaskKey { pid: 41, tid: 41, ..frozen.key() });
    assert_eq!((unknown.frozen, unknown.wchan), (None, None));
}

/// A child of the test, killed with this value.
struct Running(Child);

impl Running {
    fn new(script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn key(&self) -> TaskKey {
        let pid = self.0.id();
        let dir = Dir::open(format!("/proc/{pid}").as_ref()).unwrap();
        TaskKey { pid, tid: pid, start: stat(&dir).unwrap().starttime }
    }

    /// Looks until `wanted` accepts the result.
    fn until(&self, wanted: impl Fn(&Look) -> bool) -> Look {
        let (proc, key) = (Proc::new(), self.key());
        for _ in 0..2_000 {
            let look = looked(&proc, key);
            if wanted(&look) {
                return look;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("{:?}", looked(&proc, key));
    }

    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_real_process_stopped_and_then_dead() {
    let running = Running::new("exec sleep 60");
    let look = running.until(|look| look.wchan.is_some());
    assert!(matches!(look.netns, Some(Presence::In(_))));
    assert_eq!(look.flags & 0x4, 0);
    assert!(look.cgroup.is_some());
    running.signal("-STOP");
    let stopped = running.until(|look| look.state == 'T');
    assert!(!stopped.core_dumping && stopped.frozen != Some(true));
    // Not waited for yet, it remains as a zombie, which has no netns.
    let key = running.key();
    running.signal("-KILL");
    let dead = running.until(|look| look.state == 'Z');
    assert_eq!(dead.netns, Some(Presence::Released));
    assert!(Proc::new().alive(key).unwrap());
    drop(running);
    assert_eq!(Proc::new().presence(key).unwrap(), Presence::Gone);
}

#[test]
fn a_real_process_in_a_frozen_v1_cgroup_with_sigkill_pending() {
    let Some(freezer) = Proc::new().hierarchies.freezer.filter(|_| root()) else {
        eprintln!("skipped: no v1 freezer here");
        return;
    };
    let cgroup = freezer.join(format!("ipwatch-test-{}", std::process::id()));
    std::fs::create_dir(&cgroup).unwrap();
    let running = Running::new("exec sleep 60");
    running.until(|look| look.comm == "sleep");
    std::fs::write(cgroup.join("cgroup.procs"), running.0.id().to_string()).unwrap();
    std::fs::write(cgroup.join("freezer.state"), "FROZEN").unwrap();
    running.signal("-KILL");
    let paused = running.until(|look| look.state == 'D');
    std::fs::write(cgroup.join("freezer.state"), "THAWED").unwrap();
    drop(running);
    std::fs::remove_dir(&cgroup).unwrap();
    assert_eq!(paused.frozen, Some(true));
    assert_eq!(paused.shared_pending & 0x100, 0x100, "the signature of a stuck one");
}
