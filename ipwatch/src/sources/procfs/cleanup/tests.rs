use std::process::{Command, Stdio};

use super::super::testing::{Made, Tree};
use super::*;
use crate::sources::netlink::testing::root;

const STACK: &str =
    "[<0>] msleep+0x1/0x2\n[<0>] cleanup_net+0x1/0x2\n[<0>] process_one_work+0x1/0x2\n";

/// A kernel thread with this name.
fn thread(tree: &Tree, pid: u32, comm: &'static str, flags: u32, state: char, stack: &'static str) {
    let made = Made {
        pid,
        tid: pid,
        comm: comm.as_bytes(),
        flags,
        state,
        stack,
        wchan: "msleep",
        netns: None,
        ..Made::default()
    };
    tree.task(&made);
    tree.file(&format!("proc/{pid}/comm"), &format!("{comm}\n"));
}

fn worker(proc: &Proc) -> Option<Cleanup> {
    match proc.cleanup_worker().unwrap().what {
        Observation::Cleanup { worker } => worker,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_worker_is_known_by_its_name_while_it_works() {
    let tree = Tree::new();
    thread(&tree, 12, "kworker/R-netns", KERNEL_THREAD, 'I', "[<0>] rescuer_thread+0x1/0x2\n");
    thread(&tree, 13, "kworker/u8:2-netns", KERNEL_THREAD, 'I', "[<0>] worker_thread+0x1/0x2\n");
    thread(&tree, 14, "kworker/u8:3+events", KERNEL_THREAD, 'D', "[<0>] msleep+0x1/0x2\n");
    // A process can take any name.
    thread(&tree, 15, "kworker/u8:4+netns", 0x40_0000, 'S', STACK);
    assert_eq!(worker(&tree.proc()), None);
    thread(&tree, 16, "kworker/u8:5+netns", KERNEL_THREAD, 'D', STACK);
    let found = worker(&tree.proc()).unwrap();
    assert_eq!((found.pid, found.state, found.wchan.as_deref()), (16, 'D', Some("msleep")));
    assert_eq!(found.stack, ["msleep", "cleanup_net", "process_one_work"]);
    assert_eq!(found.message, None, "no log");
}

#[test]
fn or_by_its_stack() {
    let tree = Tree::new();
    thread(&tree, 16, "kworker/u8:5", KERNEL_THREAD, 'D', STACK);
    assert_eq!(worker(&tree.proc()).map(|found| found.pid), Some(16));
}

#[test]
fn only_the_kernels_own_complaint_counts() {
    let text = "unregister_netdevice: waiting for eth0 to become free. Usage count = 2";
    let record = |head: &str| complaint(format!("{head};{text}\n SUBSYSTEM=net\n").as_bytes());
    assert_eq!(record("0,912,81234567,-"), Some((81_234_567, text.to_owned())));
    assert_eq!(record("6,912,81234567,-,caller=T7"), Some((81_234_567, text.to_owned())));
    // What a process wrote to /dev/kmsg has facility 1 or more.
    assert_eq!(record("8,912,81234567,-"), None);
    assert_eq!(complaint(b"6,1,2,-;unregister_netdevice: x\n"), None);
    for garbage in [&b""[..], b";", b"6;x", b"a,b,c;unregister_netdevice: waiting for x", b"\xff"] {
        assert_eq!(complaint(garbage), None);
    }
}

#[test]
fn a_fresh_complaint_stands_beside_a_worker_that_sleeps() {
    let tree = Tree::new();
    thread(&tree, 16, "kworker/u8:5+netns", KERNEL_THREAD, 'D', STACK);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec * 1_000_000;
    let record = |at: i64| format!("0,1,{at},-;{COMPLAINT}eth0 to become free. Usage count = 2\n");
    tree.file("kmsg", &record(now));
    let message = worker(&tree.proc()).unwrap().message.unwrap();
    assert!(message.ends_with("waiting for eth0 to become free. Usage count = 2"), "{message}");
    tree.file("kmsg", &record(0));
    let up_long = now > i64::try_from(STALE).unwrap();
    assert_eq!(worker(&tree.proc()).unwrap().message.is_none(), up_long);
    tree.file("kmsg", &record(now));
    thread(&tree, 16, "kworker/u8:5+netns", KERNEL_THREAD, 'R', STACK);
    assert_eq!(worker(&tree.proc()).unwrap().message, None, "it runs: it does not wait");
}

#[test]
fn a_real_worker_is_caught_at_it() {
    if !root() {
        return;
    }
    // Each of these netns is torn down when its process ends.
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do unshare -n true; done"]);
    let mut churn = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let proc = Proc::new();
    let looks = || (0..2_000).find_map(|_| worker(&proc).filter(|found| !found.stack.is_empty()));
    let found = looks();
    churn.kill().unwrap();
    churn.wait().unwrap();
    let found = found.expect("a worker in 2,000 looks");
    let stat = stat(&Dir::open(format!("/proc/{}", found.pid).as_ref()).unwrap());
    assert!(stat.is_ok_and(|stat| stat.flags & KERNEL_THREAD != 0));
    assert!(found.stack.iter().any(|frame| frame == "cleanup_net"), "{found:?}");
}
