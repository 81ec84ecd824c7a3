use super::super::testing::{Made, Tree};
use super::*;
use crate::fact::SourceStatus;

const HOST: u32 = 4_026_531_840;
const POD: u32 = 4_026_532_177;
const OTHER: u32 = 4_026_532_300;

fn snapshot(tree: &Tree) -> (Vec<Task>, bool) {
    let facts = tree.proc().tasks(NetnsRef::inode(HOST)).unwrap();
    let (first, last) = (facts.first().unwrap(), facts.last().unwrap());
    assert_eq!(first.what, Observation::Began(Scope::Tasks));
    let Observation::Ended { scope: Scope::Tasks, began, complete } = last.what else {
        panic!("{last:?}")
    };
    assert_eq!(began, first.at);
    let task = |fact: &Fact| match &fact.what {
        Observation::Task(task) => Some(task.clone()),
        _ => None,
    };
    let mut tasks: Vec<_> = facts.iter().filter_map(task).collect();
    tasks.sort_by_key(|task| task.key);
    (tasks, complete)
}

#[test]
fn tasks_outside_the_host_and_no_others() {
    let tree = Tree::new();
    tree.task(&Made { pid: 1, tid: 1, netns: Some(HOST), comm: b"init", ..Made::default() });
    let killed = Made {
        pid: 50,
        tid: 50,
        flags: 0x4,
        status: "SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n",
        netns: Some(POD),
        ..Made::default()
    };
    tree.task(&killed);
    // Threads in the netns of their leader are not reported.
    tree.task(&Made { pid: 60, tid: 60, threads: 2, ..Made::default() });
    tree.task(&Made { pid: 60, tid: 61, threads: 2, ..Made::default() });
    let (tasks, complete) = snapshot(&tree);
    assert!(complete);
    let seen: Vec<_> = tasks.iter().map(|task| (task.key.pid, task.key.tid)).collect();
    assert_eq!(seen, [(50, 50), (60, 60)]);
    let told = Task {
        key: killed.key(),
        netns: NetnsRef::inode(POD),
        comm: "java".to_owned(),
        parent: Some(1),
        exiting: true,
        killed: true,
        state: Some('S'),
        idle: None,
    };
    assert_eq!(tasks[0], told);
}

#[test]
fn a_thread_elsewhere_and_the_threads_of_a_dead_leader() {
    let tree = Tree::new();
    // A runtime's thread that has entered a pod's netns.
    tree.task(&Made { pid: 70, tid: 70, threads: 3, netns: Some(HOST), ..Made::default() });
    tree.task(&Made { pid: 70, tid: 71, threads: 3, netns: Some(OTHER), ..Made::default() });
    tree.task(&Made { pid: 70, tid: 72, threads: 3, netns: Some(HOST), ..Made::default() });
    // The leader is a zombie and its sibling hangs, which `lsns` does not show. During the exit of the group, the
    // leader's thread count may already be 1.
    let dead = Made { pid: 80, tid: 80, threads: 1, netns: None, state: 'Z', ..Made::default() };
    tree.task(&dead);
    tree.task(&Made { pid: 80, tid: 81, netns: Some(POD), state: 'D', ..Made::default() });
    tree.task(&Made { pid: 90, tid: 90, netns: None, state: 'Z', ..Made::default() });
    let (tasks, complete) = snapshot(&tree);
    assert!(complete);
    let seen: Vec<_> = tasks.iter().map(|task| (task.key.tid, task.netns.inode)).collect();
    assert_eq!(seen, [(71, Some(OTHER)), (81, Some(POD))]);
}

#[test]
fn what_cannot_be_read_makes_the_snapshot_incomplete() {
    let tree = Tree::new();
    tree.task(&Made::default());
    let vanished = Made { pid: 41, tid: 41, ..Made::default() };
    tree.task(&vanished);
    std::fs::remove_file(tree.path("proc/41/stat")).unwrap();
    let (tasks, complete) = snapshot(&tree);
    assert_eq!((tasks.len(), complete), (1, true), "a process that has just gone is no gap");
    tree.file("proc/41/stat", "nonsense");
    assert!(!snapshot(&tree).1);
}

#[test]
fn the_source_says_whether_it_can_see() {
    let tree = Tree::new();
    let status = |tree: &Tree| match tree.proc().state().what {
        Observation::Source(source) => (source.name, source.status),
        other => panic!("{other:?}"),
    };
    assert_eq!(status(&tree), ("procfs".to_owned(), SourceStatus::Down));
    tree.task(&Made { pid: 1, tid: 1, ..Made::default() });
    assert_eq!(status(&tree), ("procfs".to_owned(), SourceStatus::Active));
}
