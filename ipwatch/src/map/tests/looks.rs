//! How many looks at processes are asked for at once, and for whom.

use super::*;

const POD: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(4) };
/// Half of the grace, when a leaving task is looked at first.
const FIRST_LOOK: u64 = 2_501;

/// The nth netns of a user.
fn of_user(feed: &mut Feed, n: u32, uid: u32) -> NetnsRef {
    let netns = full(100 + u64::from(n), 1_000 + n, 100 + n as i32);
    feed.tell(Observation::NetnsUser { netns, uid, nested: true });
    netns
}

/// Processes with these pids are killed, and hang.
fn hang(feed: &mut Feed, netns: NetnsRef, pids: std::ops::Range<u32>) {
    for pid in pids {
        let at = feed.at;
        let killed = Task { killed: true, ..task(pid, netns) };
        feed.tell_at(at, Origin::Probe, Observation::Task(killed));
    }
}

/// The pids that are to be looked at.
fn looks(feed: &mut Feed, after_ms: u64) -> Vec<u32> {
    let pid = |want: Request| match want {
        Request::Look { task } => Some(task.pid),
        _ => None,
    };
    feed.wants(after_ms).into_iter().filter_map(pid).collect()
}

/// A look showed that the task is still there.
fn answer(feed: &mut Feed, pid: u32, netns: NetnsRef) {
    let look = Look { netns: Some(Presence::In(netns)), state: 'D', ..Look::default() };
    let task = task(pid, netns).key;
    feed.tell_at(feed.at, Origin::Procfs, Observation::Look { task, look: Box::new(look) });
}

/// A pod's is looked at at once, however many others wait, and behind no more than the few that were asked for before.
#[test]
fn a_pods_look_does_not_wait_for_those_of_users() {
    let mut feed = Feed::new(ALL);
    let netns = of_user(&mut feed, 0, 65_534);
    hang(&mut feed, netns, 10_000..20_000);
    let asked = looks(&mut feed, FIRST_LOOK);
    assert!((1..=64).contains(&asked.len()), "{} at once", asked.len());
    feed.tell(Observation::Netns { netns: POD });
    feed.tell(Observation::Holder { netns: POD, holder: mounted_at(PATH) });
    feed.tell(sandbox(None));
    hang(&mut feed, POD, 100..101);
    assert!(looks(&mut feed, 0).is_empty(), "none was answered");
    let due = looks(&mut feed, FIRST_LOOK);
    assert_eq!(due.first(), Some(&100), "{} others", due.len());
    // Those that were not answered for two seconds are asked for once more, or others are.
    assert!(due.len() <= 65, "{} at once", due.len());
}

/// Each of them has its turn, and no more are asked for than have been answered.
#[test]
fn all_are_looked_at_some_at_a_time() {
    let mut feed = Feed::new(ALL);
    let netns = of_user(&mut feed, 0, 65_534);
    hang(&mut feed, netns, 10_000..11_000);
    let mut seen = std::collections::BTreeSet::new();
    let mut asked = looks(&mut feed, FIRST_LOOK);
    while !asked.is_empty() {
        assert!(asked.len() <= 64, "{} at once", asked.len());
        for pid in asked {
            assert!(seen.insert(pid), "{pid} had its turn");
            answer(&mut feed, pid, netns);
        }
        asked = looks(&mut feed, 0);
    }
    assert_eq!(seen.len(), 1_000);
}

/// Nor do those of one user wait for those of another.
#[test]
fn users_take_turns() {
    let mut feed = Feed::new(ALL);
    let (one, other) = (of_user(&mut feed, 0, 65_534), of_user(&mut feed, 1, 1_000));
    hang(&mut feed, one, 10_000..12_000);
    let first = looks(&mut feed, FIRST_LOOK);
    hang(&mut feed, other, 20_000..20_010);
    assert!(looks(&mut feed, FIRST_LOOK - 1_000).is_empty());
    feed.at = feed.at.plus(1_000 * MS);
    for pid in first {
        answer(&mut feed, pid, one);
    }
    let next = looks(&mut feed, 0);
    assert_eq!(next.iter().filter(|pid| **pid >= 20_000).count(), 10, "{next:?}");
}

/// A task that has ended meanwhile takes nobody's turn.
#[test]
fn what_has_ended_is_not_looked_at() {
    let mut feed = Feed::new(ALL);
    let netns = of_user(&mut feed, 0, 65_534);
    hang(&mut feed, netns, 10_000..10_200);
    let asked = looks(&mut feed, FIRST_LOOK);
    for pid in 10_000..10_200 {
        feed.tell_at(
            feed.at,
            Origin::Probe,
            Observation::TaskReleased { task: task(pid, netns).key },
        );
    }
    assert!(!asked.is_empty() && looks(&mut feed, 0).is_empty());
    assert!(looks(&mut feed, 10_000).is_empty());
}

/// Who waits as nobody known has a pod's turn as soon as a runtime vouches for the netns.
#[test]
fn a_runtimes_word_counts_for_those_that_wait() {
    let mut feed = Feed::new(ALL);
    let strange = full(100, 1_000, 100);
    hang(&mut feed, strange, 10_000..10_500);
    hang(&mut feed, POD, 20_000..20_001);
    assert!(!looks(&mut feed, FIRST_LOOK).contains(&20_000));
    feed.tell(Observation::Holder { netns: POD, holder: mounted_at(PATH) });
    feed.tell(sandbox(None));
    assert_eq!(looks(&mut feed, 0), [20_000]);
}

/// Names of cgroups and threads are read by the same thread.
#[test]
fn cgroups_are_asked_for_some_at_a_time() {
    let mut feed = Feed::new(ALL);
    let netns = of_user(&mut feed, 0, 65_534);
    for pid in 10_000..13_000 {
        feed.tell_at(feed.at, Origin::Probe, Observation::Task(task(pid, netns)));
    }
    feed.tell(Observation::Netns { netns: POD });
    feed.tell(Observation::Holder { netns: POD, holder: mounted_at(PATH) });
    feed.tell(sandbox(None));
    feed.wants(0);
    feed.tell(Observation::Task(task(100, POD)));
    let named = |wants: &[Request]| {
        let pid = |want: &Request| match want {
            Request::Cgroup { task } => Some(task.pid),
            _ => None,
        };
        wants.iter().filter_map(pid).collect::<Vec<u32>>()
    };
    let first = named(&feed.wants(0));
    assert_eq!(first, [100], "the pod's at once; as many of users as may be are asked for already");
    // Those outside of any container's cgroup are never named: each is asked for in its turn all the same.
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..120 {
        let asked = named(&feed.wants(250));
        assert!(asked.len() <= 300, "{} at once", asked.len());
        seen.extend(asked.into_iter().filter(|pid| *pid >= 10_000));
    }
    assert!(seen.len() >= 2_800, "{}", seen.len());
}

/// Processes whose leader has ended: their other threads are looked for, some at a time.
#[test]
fn threads_are_looked_for_some_at_a_time() {
    let mut feed = Feed::new(ALL);
    let netns = of_user(&mut feed, 0, 65_534);
    for pid in 10_000..12_000 {
        feed.tell_at(feed.at, Origin::Probe, Observation::Task(task(pid, netns)));
        feed.tell_at(
            feed.at,
            Origin::Probe,
            Observation::TaskReleased { task: task(pid, netns).key },
        );
    }
    let threads = |wants: Vec<Request>| {
        wants.iter().filter(|want| matches!(want, Request::Threads { .. })).count()
    };
    feed.wants(0);
    let mut all = 0;
    for _ in 0..150 {
        let asked = threads(feed.wants(250));
        assert!(asked <= 64, "{asked} at once");
        all += asked;
    }
    assert_eq!(all, 2_000);
    // The agenda says when the next ones are.
    hang(&mut feed, netns, 1..2);
    assert!(feed.map.agenda(feed.at, &Thresholds::default()).next.is_some());
}
