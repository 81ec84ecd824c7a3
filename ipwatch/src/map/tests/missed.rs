//! Events of tasks that no probe reported: repaired at once, counted when a later look confirms them.

use super::*;

const NETNS: NetnsRef = NetnsRef { cookie: Some(7), inode: None, nsid: None };
const SEC: u64 = 1_000 * MS;

/// A task that started this many seconds after the boot.
fn started(pid: u32, seconds: u64) -> Task {
    let mut task = task(pid, NETNS);
    task.key.start = seconds * 100;
    task
}

/// A complete snapshot at that second.
fn snapshot(feed: &mut Feed, second: u64, tasks: &[Task]) {
    let at = BootNs(second * SEC);
    feed.tell_at(at, Origin::Snapshot, Observation::Began(Scope::Tasks));
    for task in tasks {
        feed.tell_at(at, Origin::Snapshot, Observation::Task(task.clone()));
    }
    let ended = Observation::Ended { scope: Scope::Tasks, began: at, complete: true };
    feed.tell_at(at, Origin::Snapshot, ended);
}

/// A feed with its first snapshot at second 10.
fn feed() -> Feed {
    let mut feed = Feed::new(ALL);
    snapshot(&mut feed, 10, &[]);
    feed
}

fn missed(feed: &Feed) -> Vec<(&'static str, u64)> {
    feed.map.missed_events().into_iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn one_that_no_event_told_is_known_at_once_and_counted_after_a_second_look() {
    let mut feed = feed();
    let (made, moved) = (started(30, 20), started(31, 5));
    snapshot(&mut feed, 40, &[made.clone(), moved.clone()]);
    assert!(feed.map.task(&made.key).is_some() && feed.map.task(&moved.key).is_some());
    assert_eq!(missed(&feed), []);
    let agenda = feed.map.agenda(BootNs(43 * SEC), &Thresholds::default());
    assert!(
        agenda.wants.iter().any(|want| matches!(want, Request::Walk { .. })),
        "the second look is asked for"
    );
    snapshot(&mut feed, 43, &[made.clone(), moved.clone()]);
    assert_eq!(missed(&feed), [("netns-join", 1), ("process-fork", 1)]);
    snapshot(&mut feed, 73, &[made, moved]);
    assert_eq!(missed(&feed).len(), 2, "each is counted once");
}

#[test]
fn what_follows_before_the_second_look_is_counted_too() {
    let mut feed = feed();
    let made = started(30, 20);
    let dying = Task { killed: true, ..made.clone() };
    snapshot(&mut feed, 40, &[made]);
    snapshot(&mut feed, 43, std::slice::from_ref(&dying));
    assert_eq!(missed(&feed), [("process-fork", 1)]);
    snapshot(&mut feed, 46, &[dying]);
    assert_eq!(missed(&feed), [("process-exit", 1), ("process-fork", 1)]);
}

#[test]
fn an_event_that_was_on_its_way_is_not_missed() {
    let mut feed = feed();
    let made = started(30, 20);
    snapshot(&mut feed, 40, std::slice::from_ref(&made));
    feed.tell_at(BootNs(20 * SEC), Origin::Probe, Observation::Task(made.clone()));
    snapshot(&mut feed, 43, std::slice::from_ref(&made));
    snapshot(&mut feed, 73, &[]);
    feed.tell_at(BootNs(73 * SEC), Origin::Probe, Observation::TaskReleased { task: made.key });
    snapshot(&mut feed, 103, &[]);
    assert_eq!(missed(&feed), []);
}

#[test]
fn one_that_came_and_went_between_two_looks_is_not_missed() {
    let mut feed = feed();
    snapshot(&mut feed, 40, &[started(30, 20)]);
    snapshot(&mut feed, 70, &[]);
    snapshot(&mut feed, 100, &[]);
    assert_eq!(missed(&feed), []);
}

#[test]
fn a_task_is_told_by_its_event_and_not_by_a_snapshot_that_meets_it_in_its_first_second() {
    let mut feed = feed();
    let mut young = started(30, 40);
    young.key.start -= 10;
    snapshot(&mut feed, 40, std::slice::from_ref(&young));
    assert!(feed.map.task(&young.key).is_none(), "it may be gone without a word");
    snapshot(&mut feed, 70, std::slice::from_ref(&young));
    assert!(feed.map.task(&young.key).is_some());
}

#[test]
fn a_release_that_nobody_told_is_counted() {
    let mut feed = feed();
    let gone = started(30, 5);
    feed.tell_at(BootNs(11 * SEC), Origin::Probe, Observation::Task(gone.clone()));
    snapshot(&mut feed, 40, &[]);
    assert!(feed.map.task(&gone.key).is_none());
    assert_eq!(missed(&feed), []);
    snapshot(&mut feed, 43, &[]);
    assert_eq!(missed(&feed), [("netns-release", 1)]);
}

#[test]
fn a_move_and_an_exit_that_nobody_told_are_counted() {
    let mut feed = feed();
    let (moves, dies) = (started(30, 5), started(31, 5));
    for task in [&moves, &dies] {
        feed.tell_at(BootNs(11 * SEC), Origin::Probe, Observation::Task(task.clone()));
    }
    let elsewhere = Task { netns: NetnsRef::cookie(8), ..moves };
    let dying = Task { killed: true, ..dies };
    for second in [40, 43] {
        snapshot(&mut feed, second, &[elsewhere.clone(), dying.clone()]);
    }
    assert_eq!(missed(&feed), [("netns-join", 1), ("process-exit", 1)]);
}

#[test]
fn where_tasks_are_not_seen_nothing_is_missed() {
    let mut feed = Feed::new(Sight { tasks: false, ..ALL });
    for second in [10, 40, 43] {
        snapshot(&mut feed, second, &[started(30, 20)]);
    }
    snapshot(&mut feed, 46, &[]);
    snapshot(&mut feed, 49, &[]);
    assert_eq!(missed(&feed), []);
}
