use super::*;
use crate::fact::BootNs;
use crate::fact::Holder;

const A: NetnsRef = NetnsRef { cookie: Some(1), inode: Some(11), nsid: None };
const B: NetnsRef = NetnsRef { cookie: None, inode: Some(12), nsid: None };

fn fact(what: Observation) -> Fact {
    Fact { at: BootNs(5), origin: Origin::Procfs, what }
}

fn mount(netns: NetnsRef, path: &str) -> Fact {
    let holder = Holder::Mount {
        mount_ns: 1,
        path: path.to_owned(),
        pid: 9,
        comm: None,
        cgroup: None,
        foreign: false,
    };
    fact(Observation::Holder { netns, holder })
}

fn ended(netns: NetnsRef) -> Fact {
    fact(Observation::HoldersSearched { netns, complete: true })
}

fn orphan() -> Holder {
    Holder::Orphan { text: "tcp a → b FIN_WAIT1".to_owned() }
}

/// Searches A and B, with a thread that answers `told()`; returns the facts in order.
fn searched(told: impl FnOnce() -> Option<Vec<SocketHolders>> + Send + 'static) -> Vec<Fact> {
    let (to, jobs) = sync_channel::<Box<NetnsJob>>(1);
    let answering = std::thread::spawn(move || {
        let NetnsJob::Orphans(ask) = *jobs.recv().unwrap() else { panic!("another job") };
        let asked: Vec<NetnsRef> = ask.netns.iter().map(|(netns, _)| *netns).collect();
        assert_eq!(asked, [A, B]);
        if let Some(told) = told() {
            ask.answer.send(told).unwrap();
        }
    });
    let mut facts = vec![mount(A, "/a"), ended(A), ended(B)];
    add(&to, &[A, B], &[], &mut facts);
    answering.join().unwrap();
    facts
}

fn complete(facts: &[Fact]) -> Vec<(NetnsRef, bool)> {
    let end = |fact: &Fact| match fact.what {
        Observation::HoldersSearched { netns, complete } => Some((netns, complete)),
        _ => None,
    };
    facts.iter().filter_map(end).collect()
}

#[test]
fn orphans_are_told_before_the_end_of_the_search() {
    let facts =
        searched(|| Some(vec![SocketHolders::Unreachable, SocketHolders::Known(vec![orphan()])]));
    let kinds: Vec<bool> =
        facts.iter().map(|fact| matches!(fact.what, Observation::HoldersSearched { .. })).collect();
    assert_eq!(kinds, [false, false, true, true]);
    assert_eq!(facts[1].what, Observation::Holder { netns: B, holder: orphan() });
    assert_eq!(complete(&facts), [(A, true), (B, true)], "no way in is no reason to search again");
}

#[test]
fn what_was_not_asked_is_not_known() {
    let facts = searched(|| Some(vec![SocketHolders::Known(Vec::new())]));
    assert_eq!(complete(&facts), [(A, true), (B, false)]);
    assert_eq!(complete(&searched(|| None)), [(A, false), (B, false)]);
    let (to, _jobs) = sync_channel(0);
    let mut facts = vec![ended(A)];
    add(&to, &[A], &[], &mut facts);
    assert_eq!(complete(&facts), [(A, false)], "the thread has too much to do");
}

#[test]
fn the_doors_are_what_was_found_and_the_handle() {
    let fd = Holder::Fd { pid: 3, fd: 4, comm: String::new() };
    // The other pass identifies a netns by its cookie.
    let beside = fact(Observation::Holder { netns: NetnsRef::cookie(1), holder: fd });
    let facts = [mount(A, "/a"), mount(B, "/b")];
    let through = NetnsPath::Mount { pid: 9, path: "/a".to_owned() };
    let expected = [through, NetnsPath::Fd { pid: 3, fd: 4 }, NetnsPath::Handle];
    assert_eq!(doors(A, std::slice::from_ref(&beside), &facts), expected);
    assert_eq!(doors(NetnsRef::nsid(1), &[beside], &facts), [NetnsPath::Handle]);
}
