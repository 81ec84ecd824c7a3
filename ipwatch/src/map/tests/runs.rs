//! What is kept of the runs of plugins, and for how long.

use super::*;
use crate::fact::{CniCall, CniCommand, Reservation};

const PATH: &str = "/run/netns/test";
const POD: NetnsRef = NetnsRef { cookie: Some(7), inode: Some(70), nsid: Some(3) };

fn key(pid: u32) -> TaskKey {
    TaskKey { pid, tid: pid, start: 1 }
}

fn began(pid: u32, command: CniCommand, id: &str) -> Observation {
    Observation::CniBegan(CniCall {
        task: key(pid),
        parent: 1,
        plugin: "/opt/cni/bin/bridge".into(),
        command,
        container_id: Some(id.into()),
        netns_path: Some(PATH.into()),
        ifname: Some("eth0".into()),
        pod: None,
    })
}

fn ended(pid: u32) -> Observation {
    Observation::CniEnded { task: key(pid), status: Some(0), signal: None }
}

fn owner(feed: &mut Feed) -> Option<String> {
    feed.wants(1);
    let id = feed.map.find(&POD).unwrap();
    feed.map.netns(id).unwrap().owner().map(|owner| owner.sandbox.clone())
}

#[test]
fn a_path_that_is_used_again_is_the_newest_ones() {
    let mut feed = Feed::new(ALL);
    feed.tell(began(500, CniCommand::Add, "z-old"));
    feed.tell(ended(500));
    feed.tell(began(501, CniCommand::Add, "a-new"));
    feed.tell(ended(501));
    let holder = mounted_at(PATH);
    feed.tell(Observation::Holder { netns: POD, holder });
    assert_eq!(owner(&mut feed).as_deref(), Some("a-new"));
    feed.tell(began(502, CniCommand::Del, "z-old"));
    assert_eq!(feed.map.workload.container_at(PATH), Some("a-new"));
    feed.tell(ended(502));
    assert_eq!(owner(&mut feed).as_deref(), Some("a-new"), "a late DEL");
    feed.tell(began(503, CniCommand::Del, "a-new"));
    assert_eq!(feed.map.workload.container_at(PATH), Some("a-new"));
    feed.tell(ended(503));
    assert_eq!(feed.map.workload.container_at(PATH), None, "given up");
    assert_eq!(owner(&mut feed).as_deref(), Some("a-new"), "what was once sure");
}

#[test]
fn a_path_is_forgotten_in_time() {
    let mut feed = Feed::new(ALL);
    feed.tell(began(500, CniCommand::Add, "one"));
    feed.tell(ended(500));
    feed.wants(500_000);
    assert_eq!(feed.map.workload.container_at(PATH), Some("one"));
    feed.wants(200_000);
    assert_eq!(feed.map.workload.container_at(PATH), None);
}

#[test]
fn a_run_that_was_not_seen_to_end_is_forgotten_in_time() {
    let mut feed = Feed::new(ALL);
    feed.tell(began(500, CniCommand::Del, "one"));
    feed.wants(119_000);
    assert!(feed.map.is_called(CniCommand::Del, "one", feed.at, 0));
    feed.wants(2_000);
    assert!(!feed.map.is_called(CniCommand::Del, "one", feed.at, 0), "it hangs");
    assert_eq!(feed.map.running_calls().count(), 1);
    feed.wants(1_800_000);
    assert_eq!(feed.map.running_calls().count(), 0);
    assert_eq!(feed.map.call_history("one").unwrap().del.running, 0);
    assert_eq!(feed.map.call_history("one").unwrap().del.running_since, None);
}

#[test]
fn only_the_loss_of_calls_hides_one() {
    let mut feed = Feed::new(ALL);
    let before = feed.map.calls_seen_since();
    feed.tell(Observation::Lost { count: None, calls: false });
    assert_eq!(feed.map.calls_seen_since(), before, "addresses, neighbours, tasks");
    let lost = feed.tell(Observation::Lost { count: None, calls: true });
    assert!(before < Some(lost));
    assert_eq!(feed.map.calls_seen_since(), Some(lost));
    let mut feed = Feed::new(NONE);
    feed.tell(Observation::Lost { count: None, calls: true });
    assert_eq!(feed.map.calls_seen_since(), None);
}

#[test]
fn a_record_that_does_not_say_what_was_lost_may_mean_calls() {
    let lost: Observation = serde_json::from_str(r#"{"what":"lost","count":3}"#).unwrap();
    assert_eq!(lost, Observation::Lost { count: Some(3), calls: true });
}

#[test]
fn one_whose_add_runs_is_not_forgotten_for_others() {
    let mut feed = Feed::new(ALL);
    feed.tell(began(1, CniCommand::Add, "under-way"));
    for n in 2..9_000 {
        feed.tell(began(n, CniCommand::Add, &format!("c{n}")));
        feed.tell(ended(n));
    }
    assert!(feed.map.call_histories().count() <= 8192);
    assert!(feed.map.call_history("under-way").is_some());
}

#[test]
fn a_container_that_is_gone_is_forgotten_an_hour_after_its_del() {
    let mut feed = Feed::new(ALL);
    let run = |feed: &mut Feed, pid, command, id: &str, status| {
        feed.tell(began(pid, command, id));
        feed.tell(Observation::CniEnded { task: key(pid), status, signal: None });
    };
    let dels = [
        ("gone", Some(Some(0))),
        ("up", None),
        ("fails", Some(Some(1))),
        ("reserved", Some(Some(0))),
        ("unseen", Some(None)),
    ];
    for (n, (id, del)) in (1..).zip(dels) {
        run(&mut feed, 10 * n, CniCommand::Add, id, Some(0));
        if let Some(status) = del {
            run(&mut feed, 10 * n + 1, CniCommand::Del, id, status);
        }
    }
    feed.tell(Observation::Reservation(Reservation {
        store: "host-local".into(),
        network: "net".into(),
        key: "/net/10.0.0.9".into(),
        ip: Ipv4Addr::new(10, 0, 0, 9).into(),
        container_id: Some("reserved".into()),
        ifname: None,
        pod: None,
        since: None,
    }));
    let known = |feed: &Feed| -> Vec<String> {
        feed.map.call_histories().map(|(id, _)| id.to_owned()).collect()
    };
    feed.wants(59 * 60_000);
    run(&mut feed, 70, CniCommand::Add, "next", Some(0));
    assert_eq!(known(&feed), ["fails", "gone", "next", "reserved", "unseen", "up"]);
    feed.wants(2 * 60_000);
    run(&mut feed, 80, CniCommand::Add, "third", Some(0));
    assert_eq!(known(&feed), ["fails", "next", "reserved", "third", "unseen", "up"]);
}
