//! A netns that is empty is entered by somebody who leaves at once, or who stays.

use super::*;
use crate::fact::{CniCall, CniCommand, Container, Engine, Monitor, RuntimeProcess};

fn idle_since(feed: &Feed, netns: &NetnsRef) -> Option<BootNs> {
    feed.map.netns(feed.map.find(netns)?)?.idle_since()
}

#[test]
fn a_visit_of_which_is_told_late_ends_no_idleness() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Netns { netns });
    let idle = |feed: &Feed| idle_since(feed, &netns);
    let visitor = task(10, netns);
    feed.tell(Observation::Task(visitor.clone()));
    let emptied = feed.tell(Observation::TaskReleased { task: visitor.key });
    // It left a millisecond later; the map is told 2 s after it came, and that it left later still.
    for later in [0, 100, 2_000] {
        let entered = feed.at.plus(MS);
        feed.tell_at(entered, Origin::Probe, Observation::Task(visitor.clone()));
        feed.wants(2_000);
        assert_eq!(idle(&feed), Some(emptied));
        feed.wants(later);
        assert_eq!(idle(&feed).is_some(), later < 500);
        let left = Observation::TaskReleased { task: visitor.key };
        feed.tell_at(entered.plus(MS), Origin::Probe, left);
        assert_eq!((idle(&feed), feed.map.taskless().count()), (Some(emptied), 1));
    }
}

/// Two ipwatch on a node enter the netns that they search, and each sees the other enter.
#[test]
fn a_visit_ends_no_idleness_and_asks_for_no_search() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Netns { netns });
    let idle = |feed: &Feed| idle_since(feed, &netns);
    let visitor = task(10, netns);
    let enter = |feed: &mut Feed| feed.tell(Observation::Task(visitor.clone()));
    let leave = |feed: &mut Feed| feed.tell(Observation::TaskReleased { task: visitor.key });
    // The first one is whom the netns was made for.
    enter(&mut feed);
    feed.wants(1);
    assert_eq!(idle(&feed), None);
    let left = leave(&mut feed);
    assert_eq!(idle(&feed), Some(left));
    assert!(searches(&feed.wants(200)));
    feed.tell(Observation::HoldersSearched { netns, complete: true });
    let visit = |feed: &mut Feed, ms: u64| {
        enter(feed);
        assert!(!searches(&feed.wants(ms)));
        assert_eq!((idle(feed), feed.map.taskless().count()), (Some(left), 1));
        leave(feed);
        assert_eq!((idle(feed), feed.map.taskless().count()), (Some(left), 1));
    };
    (0..5).for_each(|_| visit(&mut feed, 100));
    assert!(!searches(&feed.wants(200)), "the second is a second after the first");
    visit(&mut feed, 400);
    assert!(!searches(&feed.wants(200)), "it fell due while somebody was in it");
    assert!(searches(&feed.wants(200)));
    feed.tell(Observation::HoldersSearched { netns, complete: true });
    // Who stays lives there.
    enter(&mut feed);
    feed.wants(1);
    assert!(!searches(&feed.wants(500)));
    assert_eq!((idle(&feed), feed.map.taskless().count()), (None, 0));
    assert!(!searches(&feed.wants(10_000)));
    let left = leave(&mut feed);
    assert_eq!(idle(&feed), Some(left));
    assert!(!searches(&feed.wants(100)));
    assert!(searches(&feed.wants(100)));
    // So does whoever has stayed, though nobody has looked meanwhile.
    enter(&mut feed);
    feed.at = feed.at.plus(500 * MS);
    let left = leave(&mut feed);
    assert_eq!(idle(&feed), Some(left));
    // A hidden holder is looked for whoever is in it.
    assert!(searches(&feed.wants(200)));
    feed.tell(Observation::Holder {
        netns,
        holder: Holder::Fd { pid: 20, fd: 3, comm: "agent".into() },
    });
    feed.tell(Observation::HoldersSearched { netns, complete: false });
    enter(&mut feed);
    feed.wants(1);
    assert!(searches(&feed.wants(1_100)));
    assert_eq!(idle(&feed), None);
}

/// A netns that an agent's fd keeps, which has been searched for so long that the next search is 30 s away.
fn kept_by_an_fd(feed: &mut Feed, netns: NetnsRef) -> BootNs {
    feed.tell(Observation::Netns { netns });
    feed.tell(Observation::Task(task(10, netns)));
    feed.wants(1);
    let emptied = feed.tell(Observation::TaskReleased { task: task(10, netns).key });
    for pause in [200, 1_100, 5_100] {
        assert!(searches(&feed.wants(pause)), "after {pause} ms");
        let holder = Holder::Fd { pid: 20, fd: 3, comm: "agent".into() };
        // All facts of a search have the time of its beginning.
        let at = feed.tell(Observation::Holder { netns, holder });
        let ended = Observation::HoldersSearched { netns, complete: true };
        feed.tell_at(at, Origin::Procfs, ended);
    }
    emptied
}

/// By that the search decides who comes first.
#[test]
fn it_is_told_whose_it_is_and_when_it_was_searched_completely() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    let sought = |wants: Vec<Request>| {
        let all = wants.into_iter().find_map(|want| match want {
            Request::Holders { netns } => Some(netns),
            _ => None,
        });
        all.map(|all| (all[0].netns, all[0].whose, all[0].since))
    };
    let seen = feed.tell(Observation::Netns { netns });
    assert_eq!(sought(feed.wants(500)), Some((netns, TenantKind::User(None), seen)));
    feed.tell(Observation::NetnsUser { netns, uid: 1_000, nested: true });
    let mut since = seen;
    for complete in [false, true, false] {
        let at = feed.tell(Observation::HoldersSearched { netns, complete });
        if complete {
            since = at;
        }
        let whose = TenantKind::User(Some(1_000));
        assert_eq!(sought(feed.wants(40_000)), Some((netns, whose, since)));
    }
}

/// Until it is searched again, what was found of it before the visit is not told: soon, and not when that was planned.
#[test]
fn after_a_visit_that_was_taken_for_a_stay_it_is_searched_at_once() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    let emptied = kept_by_an_fd(&mut feed, netns);
    let visitor = task(11, netns);
    let entered = feed.tell(Observation::Task(visitor.clone()));
    feed.wants(100);
    assert!(!searches(&feed.wants(600)));
    assert_eq!(idle_since(&feed, &netns), None, "taken for one that lives there");
    let left = Observation::TaskReleased { task: visitor.key };
    feed.tell_at(entered.plus(MS), Origin::Probe, left);
    assert_eq!(idle_since(&feed, &netns), Some(emptied));
    assert!(searches(&feed.wants(200)));
}

/// Found by a snapshot, as every netns that is older than the daemon.
#[test]
fn the_first_task_of_a_netns_that_was_found_empty_is_a_visitor() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    let found = feed.tell(Observation::Netns { netns });
    assert!(searches(&feed.wants(1_000)));
    feed.tell(Observation::HoldersSearched { netns, complete: true });
    let visitor = task(10, netns);
    feed.tell(Observation::Task(visitor.clone()));
    feed.wants(100);
    assert_eq!(idle_since(&feed, &netns), Some(found));
    feed.tell(Observation::TaskReleased { task: visitor.key });
    assert_eq!(idle_since(&feed, &netns), Some(found));
}

/// It is older than the netns, and a kubelet's: such as an agent's.
#[test]
fn a_visitor_makes_no_netns_older() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    kept_by_an_fd(&mut feed, netns);
    let id = feed.map.find(&netns).unwrap();
    let denied = |feed: &Feed| {
        feed.map.denied_from(feed.map.netns(id).unwrap(), BootNs(0), &Thresholds::default())
    };
    let before = denied(&feed);
    let mut agent = task(11, netns);
    agent.key.start = 1;
    let path = format!("/kubepods/pod1c0de3f2-8a5b-4c9d-9e8f-0123456789ab/{ID}");
    feed.tell(Observation::Task(agent.clone()));
    feed.tell(Observation::Cgroup { task: agent.key, path });
    feed.wants(100);
    assert_eq!(denied(&feed), before);
    feed.wants(500);
    assert!(denied(&feed) < before, "whoever stays may be whom it was made for");
}

/// A container of another containerd namespace, which nobody asks about.
#[test]
fn a_visitor_says_nothing_of_who_runs_the_sandbox() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Holder { netns, holder: mounted_at(PATH) });
    feed.tell(sandbox(Some(10)));
    kept_by_an_fd(&mut feed, netns);
    let runtime = RuntimeProcess {
        pid: 800,
        engine: Engine::Containerd,
        started: None,
        sockets: vec!["/run/containerd/x.sock".into()],
        dirs: vec!["/run/containerd".into()],
        asked: true,
        ignored: false,
    };
    let monitor = Monitor {
        pid: 900,
        engine: Some(Engine::Containerd),
        dir: Some("/run/containerd".into()),
        namespace: Some("moby".into()),
        container_id: Some("other".into()),
        children: vec![11],
        ignored: false,
    };
    let (runtimes, monitors) = (vec![runtime], vec![monitor]);
    feed.tell(Observation::RuntimeProcesses { runtimes, monitors, complete: true });
    feed.tell(Observation::Task(task(11, netns)));
    feed.wants(100);
    assert!(feed.map.doubt_about(ID).is_none());
    feed.wants(500);
    assert!(feed.map.doubt_about(ID).is_some(), "whoever stays may be of the sandbox");
}

/// A netns is made for one sandbox. Who enters it when all of that have left is somebody else, however long he stays.
#[test]
fn who_enters_what_others_have_left_does_not_own_it() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    let owner = |feed: &Feed| {
        let entry = feed.map.netns(feed.map.find(&netns).unwrap()).unwrap();
        entry.owner().map(|owner| owner.sandbox.clone())
    };
    let cgroup = |feed: &mut Feed, pid, path: String| {
        feed.tell(Observation::Task(task(pid, netns)));
        feed.tell(Observation::Cgroup { task: task(pid, netns).key, path });
        feed.wants(100);
    };
    feed.tell(Observation::Netns { netns });
    cgroup(&mut feed, 10, format!("/kubepods/pod1c0de3f2-8a5b-4c9d-9e8f-0123456789ab/{ID}"));
    assert_eq!(owner(&feed).as_deref(), Some(ID));
    feed.tell(Observation::TaskReleased { task: task(10, netns).key });
    cgroup(&mut feed, 11, format!("/docker/{}", ID.replace('8', "9")));
    for _ in 0..2 {
        assert_eq!(owner(&feed).as_deref(), Some(ID));
        feed.wants(600);
    }
    feed.tell(Observation::TaskReleased { task: task(11, netns).key });
    feed.wants(1);
    assert_eq!(owner(&feed).as_deref(), Some(ID));
}

/// The first container of a pod without an infra container is known by its own id until its runtime has told of it.
#[test]
fn a_container_that_its_runtime_tells_of_later_is_its_sandboxes() {
    const CONTAINER: &str = "9f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
    for host_network in [false, true] {
        let mut feed = Feed::new(ALL);
        let netns = full(7, 70, 3);
        feed.tell(Observation::Netns { netns });
        assert!(searches(&feed.wants(1_000)));
        feed.tell(Observation::HoldersSearched { netns, complete: true });
        let path = format!("/kubepods/pod1c0de3f2-8a5b-4c9d-9e8f-0123456789ab/{CONTAINER}");
        feed.tell(Observation::Task(task(10, netns)));
        feed.tell(Observation::Cgroup { task: task(10, netns).key, path });
        feed.wants(1);
        feed.wants(600);
        let owner = |feed: &Feed| {
            let entry = feed.map.netns(feed.map.find(&netns).unwrap()).unwrap();
            entry.owner().map(|owner| owner.sandbox.clone())
        };
        assert_eq!(owner(&feed).as_deref(), Some(CONTAINER));
        let Observation::Sandbox(mut told) = sandbox(None) else { unreachable!() };
        (told.netns_path, told.host_network) = (None, host_network);
        feed.tell(Observation::Sandbox(told));
        feed.tell(Observation::Container(Container {
            runtime: "containerd".into(),
            id: CONTAINER.into(),
            sandbox: Some(ID.into()),
            name: None,
            life: Life::Alive,
            word: "Running".into(),
        }));
        feed.wants(1);
        assert_eq!(owner(&feed).as_deref(), (!host_network).then_some(ID));
    }
}

#[test]
fn whoever_is_in_a_netns_that_is_not_torn_down_after_all_lives_there() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    kept_by_an_fd(&mut feed, netns);
    feed.tell(Observation::Task(task(11, netns)));
    feed.wants(100);
    feed.tell(Observation::NetnsDying { netns });
    feed.tell(Observation::Netns { netns });
    feed.wants(600);
    feed.wants(600);
    assert_eq!(idle_since(&feed, &netns), None);
}

/// Findings that list who has been in a netns for a while name nobody who visits an empty one.
#[test]
fn a_visitor_is_no_resident() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    kept_by_an_fd(&mut feed, netns);
    let id = feed.map.find(&netns).unwrap();
    feed.wants(10_000);
    feed.tell(Observation::Task(task(11, netns)));
    feed.wants(1);
    assert_eq!(residents(&feed, id), [HolderKind::Fd]);
    feed.wants(600);
    assert_eq!(residents(&feed, id), [HolderKind::Process, HolderKind::Fd], "it lives there");
}

fn residents(feed: &Feed, id: NetnsId) -> Vec<HolderKind> {
    feed.map.resident_views(id, feed.at).iter().map(|holder| holder.kind).collect()
}

/// Plugins enter and leave a new netns before the pod's first process does, which then enters one that was empty.
#[test]
fn a_pod_that_has_just_begun_is_a_resident() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Netns { netns });
    let id = feed.map.find(&netns).unwrap();
    let plugin = task(10, netns);
    feed.tell(Observation::Task(plugin.clone()));
    feed.tell(Observation::TaskReleased { task: plugin.key });
    feed.tell(Observation::Task(task(11, netns)));
    feed.wants(1);
    assert!(idle_since(&feed, &netns).is_some(), "it may be a visitor");
    assert_eq!(residents(&feed, id), [HolderKind::Process]);
}

/// The ADD of the sandbox [`ID`].
fn add() -> CniCall {
    CniCall {
        task: TaskKey { pid: 500, tid: 500, start: 5 },
        parent: 1,
        plugin: "/opt/cni/bin/bridge".into(),
        command: CniCommand::Add,
        container_id: Some(ID.into()),
        netns_path: Some(PATH.into()),
        ifname: Some("eth0".into()),
        pod: None,
    }
}

/// No runtime answers, no result is cached, and the sandbox has no process of its own: the container's word is all there is.
/// A plugin has entered and left its netns before.
#[test]
fn the_first_container_of_a_pod_says_whose_its_netns_is() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Netns { netns });
    feed.tell(Observation::Holder { netns, holder: mounted_at(PATH) });
    let began = add();
    let plugin = began.task;
    feed.tell(Observation::CniBegan(began));
    feed.tell(Observation::Task(task(10, netns)));
    feed.tell(Observation::TaskReleased { task: task(10, netns).key });
    feed.tell(Observation::CniEnded { task: plugin, status: Some(0), signal: None });
    feed.wants(1_000);
    feed.tell(Observation::Task(task(11, netns)));
    let path = format!("/kubepods/pod{UID}/{OTHER}");
    feed.tell(Observation::Cgroup { task: task(11, netns).key, path });
    feed.wants(1);
    feed.wants(600);
    let id = feed.map.find(&netns).unwrap();
    let owner = feed.map.netns(id).unwrap().owner().map(|owner| owner.sandbox.clone());
    assert_eq!(owner.as_deref(), Some(ID));
    let (container, pod) = feed.map.sandbox_of(id);
    assert_eq!(container.and_then(|it| it.id).as_deref(), Some(OTHER));
    assert_eq!(pod.and_then(|it| it.uid).as_deref(), Some(UID));
}

/// An ADD may take long, as may the image of the first container of a sandbox that has no process of its own.
#[test]
fn who_begins_late_what_is_a_pods_is_a_resident() {
    for lives in [true, false] {
        let mut feed = Feed::new(ALL);
        let netns = full(7, 70, 3);
        feed.tell(Observation::Netns { netns });
        assert!(searches(&feed.wants(1_000)));
        let at = feed.tell(Observation::Holder { netns, holder: mounted_at(PATH) });
        feed.tell_at(at, Origin::Procfs, Observation::HoldersSearched { netns, complete: true });
        let status = SourceStatus::Active;
        let source = Source { name: "containerd".into(), status, detail: String::new() };
        feed.tell(Observation::Source(source));
        if lives {
            feed.tell(sandbox(None));
        } else {
            let began = add();
            let task = began.task;
            feed.tell(Observation::CniBegan(began));
            feed.wants(40_000);
            feed.tell(Observation::CniEnded { task, status: Some(0), signal: None });
        }
        feed.wants(if lives { 41_000 } else { 1_000 });
        feed.tell(Observation::Task(task(11, netns)));
        feed.wants(1);
        assert!(idle_since(&feed, &netns).is_some(), "it may be a visitor");
        let id = feed.map.find(&netns).unwrap();
        assert_eq!(residents(&feed, id), [HolderKind::Process, HolderKind::Mount], "{lives}");
    }
}

/// The first sight of what is older than the daemon is the daemon's start.
#[test]
fn who_enters_what_was_left_before_the_start_is_a_visitor() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    let began = feed.tell_from(Origin::Snapshot, Observation::Began(Scope::Netns));
    feed.tell_at(began, Origin::Snapshot, Observation::Netns { netns });
    let ended = Observation::Ended { scope: Scope::Netns, began, complete: true };
    feed.tell_at(began, Origin::Snapshot, ended);
    feed.wants(1_000);
    let at = feed.tell(Observation::Holder {
        netns,
        holder: Holder::Fd { pid: 20, fd: 3, comm: "agent".into() },
    });
    feed.tell_at(at, Origin::Procfs, Observation::HoldersSearched { netns, complete: true });
    feed.tell(Observation::Task(task(11, netns)));
    feed.wants(1);
    let id = feed.map.find(&netns).unwrap();
    assert_eq!(residents(&feed, id), [HolderKind::Fd]);
    // One that is made later is new.
    let netns = full(8, 80, 4);
    feed.tell(Observation::NetnsCreated { netns });
    let id = feed.map.find(&netns).unwrap();
    feed.tell(Observation::Task(task(12, netns)));
    feed.tell(Observation::TaskReleased { task: task(12, netns).key });
    feed.tell(Observation::Task(task(13, netns)));
    feed.wants(1);
    assert_eq!(residents(&feed, id), [HolderKind::Process]);
}

const UID: &str = "1c0de3f2-8a5b-4c9d-9e8f-0123456789ab";
const OTHER: &str = "9f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";

/// A cached result of the sandbox [`ID`].
fn cached(pod: Option<PodName>) -> Observation {
    Observation::Attachment(Attachment {
        made: None,
        container_id: ID.into(),
        ifname: "eth0".into(),
        network: "net".into(),
        netns_path: None,
        ips: vec![(ip(5), 24)],
        pod,
    })
}

/// The containers and the pods by which tenures were named since the last call.
fn named(feed: &mut Feed) -> Vec<(Option<String>, Option<String>)> {
    let events = feed.map.take_tenures().into_iter();
    let who = events.filter_map(|event| match event {
        TenureEvent::Named { who, .. } => Some(who),
        _ => None,
    });
    let ids = who.map(|who| {
        let (container, pod) = (who.container.as_ref(), who.pod.as_ref());
        (container.and_then(|it| it.id.clone()), pod.and_then(|it| it.uid.clone()))
    });
    ids.collect()
}

/// No runtime tells of its sandbox. What a name says of a tenure that has been kept is never taken back.
#[test]
fn a_visitor_gives_a_netns_no_name() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Address { netns, address: address(5) });
    kept_by_an_fd(&mut feed, netns);
    let id = feed.map.find(&netns).unwrap();
    let pod = PodName { namespace: "shop".into(), name: "web-0".into(), uid: Some("a".into()) };
    feed.tell(cached(Some(pod)));
    feed.wants(1);
    let before = feed.map.sandbox_of(id);
    assert_eq!(before.1.as_ref().and_then(|pod| pod.name.as_deref()), Some("web-0"));
    assert_eq!(named(&mut feed), [(Some(ID.into()), Some("a".into()))]);
    feed.tell(Observation::Task(task(11, netns)));
    let path = format!("/kubepods/pod{UID}/{OTHER}");
    feed.tell(Observation::Cgroup { task: task(11, netns).key, path });
    feed.wants(1);
    assert_eq!(feed.map.sandbox_of(id), before);
    let by_visitor = (Some(OTHER.into()), Some(UID.into()));
    assert!(!named(&mut feed).contains(&by_visitor));
    feed.tell(Observation::TaskReleased { task: task(11, netns).key });
    feed.wants(1);
    assert_eq!(feed.map.sandbox_of(id), before);
}

/// A pod is known before any of its containers, which makes no owner.
#[test]
fn whoever_stays_gives_a_netns_his_name_once_he_lives_there() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Address { netns, address: address(5) });
    kept_by_an_fd(&mut feed, netns);
    feed.tell(Observation::Task(task(11, netns)));
    let path = format!("/kubepods/pod{UID}");
    feed.tell(Observation::Cgroup { task: task(11, netns).key, path });
    feed.wants(1);
    assert_eq!(named(&mut feed), []);
    feed.wants(600);
    assert_eq!(named(&mut feed), [(None, Some(UID.into()))]);
}

/// Its owner is known: whoever comes when all of that have left is somebody else, however long he stays.
#[test]
fn who_enters_what_others_have_left_gives_it_no_name() {
    for has_result in [true, false] {
        let mut feed = Feed::new(ALL);
        let netns = full(7, 70, 3);
        feed.tell(Observation::Address { netns, address: address(5) });
        feed.tell(Observation::Holder { netns, holder: mounted_at(PATH) });
        let pod = PodName { namespace: "shop".into(), name: "web-0".into(), uid: Some("a".into()) };
        let Observation::Attachment(mut result) = cached(Some(pod)) else { unreachable!() };
        result.netns_path = Some(PATH.into());
        if has_result {
            feed.tell(Observation::Attachment(result));
        }
        feed.tell(Observation::Netns { netns });
        let path = format!("/kubepods/poda/{ID}");
        feed.tell(Observation::Task(task(10, netns)));
        feed.tell(Observation::Cgroup { task: task(10, netns).key, path });
        feed.wants(1);
        let id = feed.map.find(&netns).unwrap();
        let owner = |feed: &Feed| feed.map.netns(id).unwrap().owner().map(|it| it.sandbox.clone());
        assert_eq!(owner(&feed).as_deref(), Some(ID));
        feed.tell(Observation::TaskReleased { task: task(10, netns).key });
        feed.wants(10_000);
        let before = feed.map.sandbox_of(id);
        feed.tell(Observation::Task(task(11, netns)));
        let path = format!("/kubepods/pod{UID}/{OTHER}");
        feed.tell(Observation::Cgroup { task: task(11, netns).key, path });
        feed.wants(1);
        feed.wants(600);
        assert_eq!(idle_since(&feed, &netns), None, "it lives there");
        assert_eq!(owner(&feed).as_deref(), Some(ID));
        assert_eq!(feed.map.sandbox_of(id), before, "{has_result}");
        // A container of the sandbox that was started again says what its own always did.
        feed.tell(Observation::Task(task(12, netns)));
        let path = format!("/kubepods/pod{UID}/{ID}");
        feed.tell(Observation::Cgroup { task: task(12, netns).key, path });
        let (container, pod) = feed.map.sandbox_of(id);
        assert_eq!(container.and_then(|it| it.id).as_deref(), Some(ID));
        let uid = if has_result { "a" } else { UID };
        assert_eq!(pod.and_then(|it| it.uid).as_deref(), Some(uid));
    }
}

/// The result cache is read after the pod has begun.
#[test]
fn a_container_of_a_pod_whose_result_is_read_later_is_its_sandboxes() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Netns { netns });
    assert!(searches(&feed.wants(1_000)));
    feed.tell(Observation::HoldersSearched { netns, complete: true });
    feed.tell(Observation::Task(task(10, netns)));
    let path = format!("/kubepods/pod{UID}/{OTHER}");
    feed.tell(Observation::Cgroup { task: task(10, netns).key, path });
    feed.wants(1);
    feed.wants(600);
    let owner = |feed: &Feed| {
        let entry = feed.map.netns(feed.map.find(&netns).unwrap()).unwrap();
        entry.owner().map(|owner| owner.sandbox.clone())
    };
    assert_eq!(owner(&feed).as_deref(), Some(OTHER));
    let pod = PodName { namespace: "shop".into(), name: "web-0".into(), uid: Some(UID.into()) };
    feed.tell(cached(Some(pod)));
    feed.wants(1);
    assert_eq!(owner(&feed).as_deref(), Some(ID));
    feed.tell(Observation::TaskReleased { task: task(10, netns).key });
    feed.wants(1);
    assert_eq!(owner(&feed).as_deref(), Some(ID), "also when it has left");
}
