//! Runs of plugins whose end was not observed.

use super::*;
use crate::fact::{CniCall, CniCommand};

const MINUTE: u64 = 60_000 * MS;

fn run(pid: u32, start: u64) -> TaskKey {
    TaskKey { pid, tid: pid, start }
}

fn del(task: TaskKey, parent: u32, plugin: &str) -> Observation {
    Observation::CniBegan(CniCall {
        task,
        parent,
        plugin: format!("/opt/cni/bin/{plugin}"),
        command: CniCommand::Del,
        container_id: Some("c1".into()),
        netns_path: None,
        ifname: None,
        pod: None,
    })
}

fn ended(task: TaskKey, status: Option<u32>, signal: Option<u32>) -> Observation {
    Observation::CniEnded { task, status, signal }
}

fn went(feed: &Feed) -> CommandStats {
    feed.map.call_history("c1").unwrap().del
}

#[test]
fn a_plugin_that_ends_has_seen_those_that_it_ran_end() {
    let mut feed = Feed::new(ALL);
    feed.tell(del(run(10, 1), 1, "bridge"));
    feed.tell(del(run(11, 2), 10, "host-local"));
    feed.tell(del(run(12, 3), 11, "deeper"));
    feed.tell(del(run(20, 4), 1, "bridge"));
    feed.tell(ended(run(10, 1), Some(0), None));
    let under_way: Vec<TaskKey> = feed.map.running_calls().map(|entry| entry.call.task).collect();
    assert_eq!(under_way, [run(20, 4)]);
    assert_eq!((went(&feed).running, went(&feed).failures), (1, 0));
    let taken: Vec<TaskKey> = feed.map.take_calls().iter().map(|entry| entry.call.task).collect();
    assert_eq!(taken, [run(10, 1)], "how long the others took is not known");
    // Reported late: nothing is counted twice.
    feed.tell(ended(run(11, 2), Some(1), None));
    assert_eq!((went(&feed).running, went(&feed).failures), (1, 0));
}

#[test]
fn a_plugin_that_is_killed_leaves_its_child_under_way() {
    let mut feed = Feed::new(ALL);
    feed.tell(del(run(10, 1), 1, "bridge"));
    feed.tell(del(run(11, 2), 10, "host-local"));
    feed.tell(ended(run(10, 1), None, Some(9)));
    assert_eq!(went(&feed).running, 1);
    feed.tell(ended(run(11, 2), Some(0), None));
    assert_eq!(went(&feed).running, 0);
}

#[test]
fn an_end_that_went_unseen_is_neither_success_nor_failure() {
    let mut feed = Feed::new(ALL);
    feed.tell(del(run(10, 1), 1, "bridge"));
    feed.tell(ended(run(10, 1), Some(1), None));
    feed.tell(del(run(11, 2), 1, "bridge"));
    // The pid is reused.
    feed.tell(del(run(11, 3), 1, "bridge"));
    assert_eq!((went(&feed).running, went(&feed).failures), (1, 1));
    assert_eq!(feed.map.failing_dels().count(), 1);
    feed.tell(ended(run(11, 3), Some(0), None));
    assert_eq!((went(&feed).running, went(&feed).failures), (0, 0));
    assert_eq!(feed.map.failing_dels().count(), 0);
}

#[test]
fn a_run_whose_end_was_lost_is_not_under_way_for_ever() {
    let mut feed = Feed::new(ALL);
    let began = feed.tell(del(run(10, 1), 1, "bridge"));
    feed.tell(Observation::Lost { count: Some(1), calls: true });
    let is_called =
        |feed: &Feed, after| feed.map.is_called(CniCommand::Del, "c1", began.plus(after), MINUTE);
    assert!(is_called(&feed, MINUTE));
    assert!(!is_called(&feed, 3 * MINUTE));
    // The next run removes the old one.
    feed.at = began.plus(31 * MINUTE);
    feed.tell(del(run(11, 2), 1, "bridge"));
    assert_eq!((went(&feed).running, feed.map.running_calls().count()), (1, 1));
}

#[test]
fn runs_are_told_with_how_they_ended_the_oldest_first() {
    let mut feed = Feed::new(ALL);
    feed.tell(del(run(10, 1), 1, "bridge"));
    feed.tell(del(run(11, 2), 10, "host-local"));
    feed.tell(ended(run(11, 2), Some(4), None));
    let told = feed.map.runs_view(None);
    let [outer, inner] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((outer.plugin.as_str(), outer.pid, outer.within), ("bridge", 10, None));
    assert_eq!((outer.ended.as_ref(), outer.failed()), (None, false));
    assert_eq!(
        (inner.plugin.as_str(), inner.within, inner.status),
        ("host-local", Some(10), Some(4))
    );
    assert!(inner.failed() && inner.ended.is_some() && inner.began >= outer.began);
    assert_eq!(inner.container_id.as_deref(), Some("c1"));
    assert!(feed.map.runs_view(Some("shop/api-0")).is_empty(), "no pod was named");
}
