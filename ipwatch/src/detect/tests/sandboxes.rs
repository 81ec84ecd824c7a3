//! Leftovers of sandboxes that are dead according to their runtime.

use super::*;
use crate::contract::HolderKind;
use crate::fact::{Attachment, Cleanup, CniCommand, Holder, Life, Parent, PodName, Sandbox, Scope};
use crate::finding::Severity;

pub(super) const ID: &str = "8f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
pub(super) const APP: &str = "00001b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
pub(super) const UID: &str = "1c0de3f2-8a5b-4c9d-9e8f-0123456789ab";
pub(super) const PATH: &str = "/run/netns/cni-1";

pub(super) fn pod_name() -> PodName {
    PodName { namespace: "shop".into(), name: "api-0".into(), uid: Some(UID.into()) }
}

pub(super) fn sandbox(life: Life, word: &str) -> Sandbox {
    Sandbox {
        runtime: "containerd".into(),
        id: ID.into(),
        pod: Some(pod_name()),
        attempt: Some(1),
        name: None,
        life,
        word: word.into(),
        created: None,
        ips: Vec::new(),
        netns_path: Some(PATH.into()),
        pid: Some(10),
        host_network: false,
    }
}

pub(super) fn mount_of(path: &str, mount_ns: u64, pid: u32) -> Holder {
    Holder::Mount { mount_ns, path: path.into(), pid, comm: None, cgroup: None, foreign: false }
}

impl Case {
    /// A pod that containerd knows.
    pub(super) fn with_runtime() -> Self {
        let mut case = Self::pod();
        case.source("containerd", SourceStatus::Active);
        case.at(3, Observation::Holder { netns: POD, holder: mount_of(PATH, 1, 1) });
        case.at(3, Observation::Cgroup { task: KEY, path: format!("/kubepods/pod{UID}/{ID}") });
        case.list(10, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
        case.wants(11);
        case
    }

    /// A complete listing of containerd.
    pub(super) fn list(&mut self, ms: u64, all: Vec<Observation>) {
        let scope = Scope::Runtime { runtime: "containerd".into() };
        self.at(ms, Observation::Began(scope.clone()));
        all.into_iter().for_each(|what| self.at(ms, what));
        self.at(ms, Observation::Ended { scope, began: BootNs(ms * MS), complete: true });
        self.wants(ms);
    }

    pub(super) fn empty(&mut self, ms: u64) {
        self.at(ms, Observation::TaskReleased { task: KEY });
        self.wants(ms);
    }

    pub(super) fn searched(&mut self, ms: u64, holders: &[Holder]) {
        for holder in holders {
            self.at(ms, Observation::Holder { netns: POD, holder: holder.clone() });
        }
        self.at(ms, Observation::HoldersSearched { netns: POD, complete: true });
        self.wants(ms);
    }

    pub(super) fn codes(&self) -> Vec<Code> {
        self.found().iter().map(|found| found.code).collect()
    }

    pub(super) fn only(&self) -> Candidate {
        let found = self.found();
        assert_eq!(found.len(), 1, "{found:#?}");
        found.into_iter().next().unwrap()
    }
}

pub(super) fn not_ready() -> Vec<Observation> {
    vec![Observation::Sandbox(sandbox(Life::Dead, "NotReady"))]
}

#[test]
pub(super) fn tasks_of_a_dead_sandbox_are_found_after_its_grace() {
    let mut case = Case::with_runtime();
    case.list(1_000, not_ready());
    case.list(30_000, not_ready());
    assert_eq!(case.codes(), [], "within its grace");
    case.list(31_001, not_ready());
    let found = case.only();
    assert_eq!((found.code, found.since), (Code::IpHeldByDeadSandbox, BootNs(1_000 * MS)));
    assert_eq!(found.holders[0].pid, Some(10));
    let pod = found.subject.pod.clone().unwrap();
    assert_eq!(
        (pod.name.as_deref(), pod.attempt, pod.state.as_deref()),
        (Some("api-0"), Some(1), Some("NotReady"))
    );
    assert!(found.remediation.iter().any(|line| line.line().contains("crictl stopp 8f4c1b2a9d7e")));
    case.list(32_000, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    assert_eq!(case.codes(), [], "it lives after all");
}

#[test]
fn the_runtime_is_asked_again_before_anything_is_said() {
    let mut case = Case::with_runtime();
    case.list(1_000, not_ready());
    let ask = Request::Runtime { runtime: "containerd".into() };
    assert!(!case.wants(30_000).contains(&ask));
    assert!(case.wants(31_000).contains(&ask));
    assert!(!case.wants(31_100).contains(&ask), "it was asked");
    case.list(31_200, not_ready());
    assert!(!case.wants(31_600).contains(&ask), "too early to be a second look");
    assert!(case.wants(31_700).contains(&ask), "a second time, for certainty");
    case.list(31_701, not_ready());
    assert!(!case.wants(60_000).contains(&ask));
    assert!(case.wants(91_701).contains(&ask), "now and then, as long as it stands");
}

/// A busy node answers late; that must not cost a minute.
#[test]
fn a_first_look_that_comes_late_is_followed_by_a_second() {
    let mut case = Case::with_runtime();
    case.list(1_000, not_ready());
    let ask = Request::Runtime { runtime: "containerd".into() };
    assert!(case.wants(31_000).contains(&ask));
    case.list(31_900, not_ready());
    assert!(case.wants(32_400).contains(&ask), "half a second after the first");
    case.list(32_401, not_ready());
    assert!(!case.wants(60_000).contains(&ask));
}

#[test]
pub(super) fn a_sandbox_that_its_runtime_forgot_is_dead_and_one_that_it_cannot_tell_of_is_not() {
    let mut case = Case::with_runtime();
    case.list(1_000, Vec::new());
    case.source("containerd", SourceStatus::Down);
    case.list(32_000, Vec::new());
    case.source("containerd", SourceStatus::Down);
    assert_eq!(case.codes(), [], "its silence says nothing");
    assert!(blind(&case.0, &Thresholds::default()).contains(&Code::IpHeldByDeadSandbox));
    case.source("containerd", SourceStatus::Active);
    let found = case.only();
    assert_eq!(found.code, Code::IpHeldByDeadSandbox);
    assert_eq!(found.subject.container.unwrap().state.as_deref(), Some("gone"));
}

#[test]
fn a_truncated_list_makes_nothing_gone() {
    let mut case = Case::with_runtime();
    let scope = Scope::Runtime { runtime: "containerd".into() };
    case.at(1_000, Observation::Began(scope.clone()));
    case.at(1_000, Observation::Ended { scope, began: BootNs(1_000 * MS), complete: false });
    case.list(40_000, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    assert_eq!(case.codes(), []);
}

#[test]
pub(super) fn a_pod_of_kubelets_that_every_runtime_denies_is_found_but_nobody_elses() {
    let denied = |cgroup: String| {
        let mut case = Case::pod();
        case.source("containerd", SourceStatus::Active);
        case.at(3, Observation::Cgroup { task: KEY, path: cgroup });
        case.list(1_000, other());
        assert_eq!(case.codes(), [], "it may be starting");
        case.list(200_000, other());
        assert_eq!(case.codes(), [], "it may still be starting");
        case.list(302_000, other());
        case.codes()
    };
    assert_eq!(denied(format!("/kubepods/pod{UID}/{ID}")), [Code::IpHeldByDeadSandbox]);
    assert_eq!(
        denied(format!("/docker/{APP}/kubelet/kubepods/pod{UID}/{ID}")),
        [],
        "a cluster inside"
    );
    assert_eq!(denied(format!("/kubepods/pod{UID}/{APP}/docker/{ID}")), [], "a pod's own Docker's");
    assert_eq!(denied(format!("/docker/{ID}")), [], "of a runtime that is not asked");
    assert_eq!(denied("/user.slice".into()), [], "a person's");
}

/// Another pod, which shows that this runtime is a kubelet's.
pub(super) fn other() -> Vec<Observation> {
    let pod = PodName { name: "other-0".into(), ..pod_name() };
    let id = format!("1{}", &ID[1..]);
    let (pod, pid, netns_path) = (Some(pod), None, None);
    vec![Observation::Sandbox(Sandbox {
        id,
        pod,
        pid,
        netns_path,
        ..sandbox(Life::Alive, "Ready")
    })]
}

#[test]
fn a_runtime_that_has_no_pods_denies_nothing() {
    let mut case = Case::pod();
    case.source("docker", SourceStatus::Active);
    case.at(3, Observation::Cgroup { task: KEY, path: format!("/kubepods/pod{UID}/{ID}") });
    let scope = Scope::Runtime { runtime: "docker".into() };
    case.at(400_000, Observation::Began(scope.clone()));
    let began = BootNs(400_000 * MS);
    case.at(400_000, Observation::Ended { scope, began, complete: true });
    case.wants(400_000);
    assert_eq!(case.codes(), [], "kubelet's may be another");
}

#[test]
fn a_visitor_does_not_make_a_netns_his_sandboxs() {
    let mut case = Case::pod();
    case.source("containerd", SourceStatus::Active);
    // A CNI daemon of the host's network enters the netns first.
    let daemon = Sandbox {
        id: APP.into(),
        host_network: true,
        pid: None,
        netns_path: None,
        ..sandbox(Life::Alive, "Ready")
    };
    case.at(3, Observation::Cgroup { task: KEY, path: format!("/kubepods/pod{UID}/{APP}") });
    case.list(10, vec![Observation::Sandbox(daemon.clone())]);
    let owner = |case: &Case| {
        let id = case.0.find(&POD).unwrap();
        case.0.netns(id).unwrap().owner().map(|owner| owner.sandbox.clone())
    };
    assert_eq!(owner(&case), None);
    case.list(
        20,
        vec![Observation::Sandbox(daemon), Observation::Sandbox(sandbox(Life::Alive, "Ready"))],
    );
    assert_eq!(owner(&case).as_deref(), Some(ID), "by its first process");
}

#[test]
fn an_incomplete_search_does_not_end_what_a_complete_one_found() {
    let mut case = Case::with_runtime();
    case.empty(1_000);
    case.list(1_000, Vec::new());
    case.searched(31_200, &[mount_of(PATH, 1, 1)]);
    assert_eq!(case.codes(), [Code::NetnsLeaked]);
    case.at(40_000, Observation::HoldersSearched { netns: POD, complete: false });
    assert_eq!(case.codes(), [Code::NetnsLeaked]);
}

#[test]
pub(super) fn a_stuck_process_is_the_cause_of_what_follows_from_it() {
    let mut case = Case::with_runtime();
    case.killed(1_000);
    case.list(1_000, not_ready());
    case.look(6_100, Look { shared_pending: SIGKILL, ..hanging() });
    case.list(31_500, not_ready());
    let found = case.found();
    let [stuck, dead] = &found[..] else { panic!("{found:#?}") };
    assert_eq!(stuck.code, Code::IpHeldByStuckProcess);
    assert_eq!(dead.caused_by, Some((stuck.code, stuck.key.clone())));
    assert!(stuck.evidence.iter().any(|item| item.source == "containerd"), "the runtime's word");
}

/// A sandbox that died before its process was killed is no consequence of that, and what follows from a cause that has
/// ended stays on its own.
#[test]
fn what_began_before_a_cause_does_not_follow_from_it() {
    let dead = |killed: u64| {
        let mut case = Case::with_runtime();
        case.list(1_000, not_ready());
        case.killed(killed);
        case.look(killed + 5_100, Look { shared_pending: SIGKILL, ..hanging() });
        case.list(61_500, not_ready());
        case
    };
    let cause = |case: &Case| {
        let found = case.found();
        let dead = found.iter().find(|one| one.code == Code::IpHeldByDeadSandbox).unwrap();
        assert!(dead.caused_by.is_none() || found.len() == 2, "{found:#?}");
        dead.caused_by.as_ref().map(|(code, _)| *code)
    };
    assert_eq!(cause(&dead(20_000)), None);
    let mut case = dead(1_000);
    assert_eq!(cause(&case), Some(Code::IpHeldByStuckProcess));
    let other = TaskKey { pid: 11, tid: 11, start: 101 };
    case.at(61_600, Observation::Task(task(other, POD)));
    let look = Box::new(Look { flags: 0, ..hanging() });
    case.at(61_650, Observation::Look { task: other, look });
    case.at(61_700, Observation::TaskReleased { task: KEY });
    case.list(62_200, not_ready());
    assert_eq!(cause(&case), None, "the stuck process ended");
}

#[test]
pub(super) fn a_device_of_the_node_in_a_dead_sandbox_is_found() {
    let mut case = Case::with_runtime();
    let parent = |bus: &str| Parent {
        bus: bus.into(),
        address: "0000:00:05.0".into(),
        driver: Some("ena".into()),
    };
    let link =
        |parent| Link { ifindex: 4, name: "eth1".into(), up: true, parent, ..Link::default() };
    case.at(20, Observation::Link { netns: POD, link: link(Some(parent("pci"))) });
    case.list(1_000, not_ready());
    case.empty(1_100);
    assert_eq!(case.codes(), []);
    case.list(31_500, not_ready());
    let found = case.only();
    assert_eq!(found.code, Code::DeviceHeldByDeadSandbox);
    assert!(found.evidence[1].text.contains("eth1 (pci 0000:00:05.0, driver ena)"), "{found:#?}");
    // The way to it leads through the mount, and not through who visits the netns.
    let visitor = task(TaskKey { pid: 70, tid: 70, start: 50 }, POD);
    case.at(31_600, Observation::Task(visitor.clone()));
    case.wants(31_600);
    assert_eq!(case.only(), found, "while somebody visits it");
    case.at(31_700, Observation::TaskReleased { task: visitor.key });
    case.at(32_000, Observation::Link { netns: POD, link: link(None) });
    assert_eq!(case.codes(), [], "a veth is no device of the node");
}

#[test]
pub(super) fn a_netns_of_a_sandbox_that_is_gone_is_leaked_and_says_what_holds_it() {
    let holders = [
        (vec![mount_of(PATH, 1, 1)], HolderKind::Mount),
        (vec![Holder::Fd { pid: 9, fd: 3, comm: "agent".into() }], HolderKind::Fd),
        (vec![Holder::Socket { pid: 9, fd: 3, comm: "agent".into() }], HolderKind::Socket),
        (
            vec![Holder::Orphan { text: "tcp 10.0.0.5:80 → 10.0.0.9:41 FIN_WAIT1".into() }],
            HolderKind::Socket,
        ),
        (vec![], HolderKind::Kernel),
    ];
    for (holders, kind) in holders {
        let mut case = Case::with_runtime();
        case.empty(1_000);
        case.list(1_000, Vec::new());
        case.searched(10_000, &holders);
        case.searched(10_100, &holders);
        assert_eq!(case.codes(), [], "within its grace");
        let wants = case.wants(31_100);
        assert!(wants.iter().any(|want| matches!(want, Request::Holders { .. })), "{wants:?}");
        case.searched(31_200, &holders);
        let found = case.only();
        assert_eq!((found.code, found.holders[0].kind), (Code::NetnsLeaked, kind));
        assert_eq!(found.holders.len(), 1, "{found:#?}");
        assert_eq!(found.subject.pod.as_ref().unwrap().name.as_deref(), Some("api-0"));
        let wants = case.wants(31_800);
        assert!(
            wants.iter().any(|want| matches!(want, Request::Holders { .. })),
            "a second look: {wants:?}"
        );
    }
}

/// An agent that enters every netns every few seconds hides no leak, and none that is found ends by its visit.
#[test]
fn a_leak_that_is_visited_is_found() {
    let mut case = Case::with_runtime();
    let agent = task(TaskKey { pid: 70, tid: 70, start: 50 }, POD);
    let visit = |case: &mut Case, ms: u64| {
        let before = case.codes();
        case.at(ms, Observation::Task(agent.clone()));
        case.wants(ms);
        assert_eq!(case.codes(), before, "while it is in");
        case.at(ms + 1, Observation::TaskReleased { task: agent.key });
        case.wants(ms + 1);
    };
    case.empty(1_000);
    case.list(1_000, Vec::new());
    for second in 2..31 {
        visit(&mut case, second * 1_000);
    }
    let mount = [mount_of(PATH, 1, 1)];
    case.searched(31_200, &mount);
    let found = case.only();
    assert_eq!((found.code, found.since), (Code::NetnsLeaked, BootNs(1_000 * MS)));
    visit(&mut case, 31_300);
    assert_eq!(case.codes(), [Code::NetnsLeaked]);
    // The runtime is asked again after the grace.
    case.list(31_500, Vec::new());
    visit(&mut case, 31_600);
    assert_eq!(case.codes(), [Code::NetnsLeaked]);
}

/// What a runtime said before somebody entered the netns is no look at him.
#[test]
fn whoever_came_to_stay_where_all_had_left_is_found_by_a_listing_since_then() {
    let entered = || {
        let mut case = Case::with_runtime();
        case.empty(1_000);
        case.list(1_000, Vec::new());
        case.list(31_500, Vec::new());
        case.at(31_600, Observation::Task(task(TaskKey { pid: 70, tid: 70, start: 50 }, POD)));
        case.wants(31_600);
        case
    };
    let mut case = entered();
    case.list(31_700, Vec::new());
    assert_eq!(case.codes(), [], "it may be a visitor");
    case.wants(32_200);
    assert_eq!(case.codes(), [Code::IpHeldByDeadSandbox], "it was in, and it lives there");
    let mut case = entered();
    case.wants(32_200);
    assert_eq!(case.codes(), [], "the runtime has not been asked since");
    case.list(32_300, Vec::new());
    assert_eq!(case.codes(), [Code::IpHeldByDeadSandbox]);
}

#[test]
fn the_runtime_is_asked_at_once_about_whoever_came_to_stay() {
    let ask = Request::Runtime { runtime: "containerd".into() };
    let agent = task(TaskKey { pid: 70, tid: 70, start: 50 }, POD);
    let mut case = Case::with_runtime();
    case.empty(1_000);
    for ms in [1_000, 31_001, 31_600] {
        case.list(ms, Vec::new());
    }
    case.at(31_700, Observation::Task(agent.clone()));
    assert!(!case.wants(31_700).contains(&ask), "it may be a visitor");
    assert!(case.wants(32_300).contains(&ask), "it lives there");
    case.list(32_301, Vec::new());
    assert!(case.wants(32_801).contains(&ask), "a second time, for certainty");
    case.list(32_802, Vec::new());
    assert!(!case.wants(60_000).contains(&ask));
    case.at(60_001, Observation::TaskReleased { task: agent.key });
    assert!(!case.wants(60_001).contains(&ask), "of what was left it has been asked");
}

/// Nor is who passes through one in which tasks of the sandbox are left: he is neither listed nor to be killed.
#[test]
fn who_passes_through_what_a_dead_sandbox_has_left_is_none_of_its_tasks() {
    for is_killed in [false, true] {
        let mut case = Case::with_runtime();
        case.list(1_000, Vec::new());
        if is_killed {
            case.killed(1_000);
            case.at(1_001, Observation::TaskExiting { task: KEY });
        }
        case.list(31_001, Vec::new());
        let before = case.only();
        assert_eq!(lines(&before).contains("kill -9 10"), !is_killed, "{}", lines(&before));
        let agent = task(TaskKey { pid: 70, tid: 70, start: 50 }, POD);
        case.at(31_100, Observation::Task(agent.clone()));
        case.wants(31_100);
        assert_eq!(case.only(), before);
        // Who stays is listed.
        case.at(36_101, Observation::Cgroup { task: agent.key, path: "/user.slice".into() });
        let pids = |found: &Candidate| {
            found.holders.iter().filter_map(|holder| holder.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(&case.only()), [10, 70]);
        assert!(lines(&case.only()).contains("kill -9 70"));
        // Whose container belongs to a sandbox that lives is not to be killed, however long he stays.
        let (Observation::Sandbox(alive), path) = (&other()[0], "/kubepods/pod0/") else {
            panic!()
        };
        case.list(36_200, other());
        let path = format!("{path}{}", alive.id);
        case.at(36_300, Observation::Cgroup { task: agent.key, path });
        case.wants(36_300);
        let found = case.only();
        assert_eq!(pids(&found), [10, 70], "he is in it");
        assert!(!lines(&found).contains("kill -9 70"), "{}", lines(&found));
    }
}

#[test]
fn tasks_of_a_dead_sandbox_that_have_all_just_come_are_listed() {
    let mut case = Case::with_runtime();
    case.list(1_000, Vec::new());
    case.at(30_900, Observation::Task(task(TaskKey { pid: 70, tid: 70, start: 50 }, POD)));
    case.at(30_900, Observation::TaskReleased { task: KEY });
    case.list(31_001, Vec::new());
    let found = case.only();
    assert_eq!((found.code, found.holders[0].pid), (Code::IpHeldByDeadSandbox, Some(70)));
    assert!(lines(&found).contains("kill -9 70"), "{}", lines(&found));
}

/// A visitor keeps nothing alive: a finding that named him would change with each visit.
#[test]
fn a_visitor_is_not_named_among_what_holds_a_leaked_netns() {
    let holders = [
        vec![mount_of(PATH, 1, 1)],
        vec![Holder::Fd { pid: 9, fd: 3, comm: "agent".into() }],
        vec![],
    ];
    for holders in holders {
        let mut case = Case::with_runtime();
        case.empty(1_000);
        case.list(1_000, Vec::new());
        case.searched(31_200, &holders);
        case.searched(31_800, &holders);
        let before = case.only();
        assert_eq!(before.code, Code::NetnsLeaked);
        // The guard of commands about it, and the proof of findings that tell who is in it.
        let still = |case: &Case| {
            let netns = case.0.netns(case.0.find(&POD).unwrap()).unwrap();
            let mut proof = evidence::Proof::new(&case.0);
            proof.holder(netns, case.0.now());
            let proof = proof.done().into_iter().map(|item| item.text).collect::<Vec<_>>();
            (evidence::still(&case.0, netns), proof)
        };
        let guard = still(&case);
        let agent = task(TaskKey { pid: 70, tid: 70, start: 50 }, POD);
        case.at(31_900, Observation::Task(agent));
        case.wants(31_900);
        assert_eq!((case.only(), still(&case)), (before, guard), "while it is in");
    }
}

#[test]
fn who_has_unread_fds_may_hold_a_leaked_netns() {
    let mut case = Case::with_runtime();
    case.empty(1_000);
    case.list(1_000, Vec::new());
    let candidate = Holder::Candidate { pid: 17, fd: 5, comm: "keeper".into(), unread: 2 };
    for ms in [10_000, 10_100, 31_200] {
        case.searched(ms, std::slice::from_ref(&candidate));
    }
    let found = case.only();
    let kinds: Vec<_> = found.holders.iter().map(|holder| (holder.kind, holder.pid)).collect();
    assert_eq!(kinds, [(HolderKind::Kernel, None), (HolderKind::Candidate, Some(17))]);
    let proof: Vec<_> = found.evidence.iter().map(|item| item.text.as_str()).collect();
    let text = "may be held by an fd in flight to pid 17 (keeper): 2 fds wait unread at its Unix socket, fd 5";
    assert!(proof.contains(&text), "{proof:#?}");
    // They may be innocent: what the kernel may still do comes first.
    let steps: Vec<_> = found.remediation.iter().map(|step| step.line().to_string()).collect();
    assert!(steps[0].starts_with("Find what the kernel still does there"), "{steps:#?}");
    assert!(steps[1].starts_with(r#"Find out why pid 17 ("keeper") does not read"#), "{steps:#?}");
}

#[test]
fn a_netns_that_its_runtime_still_has_is_not_leaked() {
    let mut case = Case::with_runtime();
    case.empty(1_000);
    case.list(1_000, not_ready());
    case.searched(60_000, &[mount_of(PATH, 1, 1)]);
    assert_eq!(case.codes(), [], "its runtime may clean up");
}

#[test]
fn a_search_that_could_not_read_everything_proves_no_leak() {
    let mut case = Case::with_runtime();
    case.empty(1_000);
    case.list(1_000, Vec::new());
    case.at(40_000, Observation::HoldersSearched { netns: POD, complete: false });
    assert_eq!(case.codes(), []);
}

#[test]
fn a_netns_of_nobody_is_never_leaked() {
    // `ip netns add`, a pool of a build: no evidence that a kubelet requested it.
    let mut case = Case::pod();
    case.source("containerd", SourceStatus::Active);
    case.at(3, Observation::Holder { netns: POD, holder: mount_of("/run/netns/blue", 1, 1) });
    case.empty(5);
    case.list(1_000, Vec::new());
    case.searched(400_000, &[mount_of("/run/netns/blue", 1, 1)]);
    assert_eq!(case.codes(), []);
}

fn attachment(pod: Option<PodName>) -> Observation {
    Observation::Attachment(Attachment {
        made: None,
        container_id: ID.into(),
        ifname: "eth0".into(),
        network: "net".into(),
        netns_path: Some("/var/run/netns/cni-1".into()),
        ips: vec![(Ipv4Addr::new(10, 0, 0, 5).into(), 24)],
        pod,
    })
}

#[test]
fn where_no_runtime_can_be_asked_only_age_tells() {
    let case = |pod| {
        let mut case = Case::pod();
        case.source("runtime", SourceStatus::Disabled);
        case.at(3, attachment(pod));
        case.at(3, Observation::Holder { netns: POD, holder: mount_of(PATH, 1, 1) });
        case.empty(5);
        case.searched(200_000, &[mount_of(PATH, 1, 1)]);
        assert_eq!(case.codes(), [], "too young");
        case.searched(301_000, &[mount_of(PATH, 1, 1)]);
        case.codes()
    };
    assert_eq!(case(Some(pod_name())), [Code::NetnsLeaked]);
    assert_eq!(case(None), [], "BuildKit's pools are in the cache too");
}

#[test]
fn what_is_still_being_made_is_not_leaked_however_long_it_takes() {
    let mut case = Case::pod();
    case.source("runtime", SourceStatus::Disabled);
    case.at(3, attachment(Some(pod_name())));
    case.at(3, Observation::Holder { netns: POD, holder: mount_of(PATH, 1, 1) });
    case.call(250_000, 500, CniCommand::Add, ID);
    case.empty(250_001);
    case.searched(301_000, &[mount_of(PATH, 1, 1)]);
    assert_eq!(case.codes(), [], "its ADD runs");
    case.call_ended(302_000, 500, 0);
    case.searched(303_000, &[mount_of(PATH, 1, 1)]);
    case.searched(600_000, &[mount_of(PATH, 1, 1)]);
    assert_eq!(case.codes(), [], "its pause is slow to start");
    case.searched(603_000, &[mount_of(PATH, 1, 1)]);
    assert_eq!(case.codes(), [Code::NetnsLeaked]);
}

#[test]
fn a_runtime_that_was_never_heard_is_no_runtime_that_denies() {
    let mut case = Case::pod();
    case.at(3, attachment(Some(pod_name())));
    case.at(3, Observation::Holder { netns: POD, holder: mount_of(PATH, 1, 1) });
    case.empty(5);
    case.searched(400_000, &[mount_of(PATH, 1, 1)]);
    assert_eq!(case.codes(), []);
}

fn worker() -> Option<Cleanup> {
    Some(Cleanup {
        pid: 77,
        state: 'D',
        wchan: Some("msleep".into()),
        stack: vec!["msleep".into(), "netdev_run_todo".into(), "cleanup_net".into()],
        message: Some("unregister_netdevice: waiting for lo to become free".into()),
    })
}

#[test]
pub(super) fn a_worker_without_progress_is_found_and_one_that_gets_on_is_not() {
    let mut case = Case::pod();
    assert!(case.wants(20).contains(&Request::Cleanup), "one look at the start");
    case.at(30, Observation::Cleanup { worker: worker() });
    // Queued behind it, as a walk reports.
    let queued = Observation::NetnsDying { netns: NetnsRef::cookie(99) };
    case.0.apply(&Fact { at: BootNs(20_000 * MS), origin: Origin::Snapshot, what: queued });
    case.at(31_000, Observation::Cleanup { worker: worker() });
    let found = case.found();
    assert_eq!(found.len(), 1, "{found:#?}");
    let found = &found[0];
    assert_eq!((found.code, found.severity), (Code::NetnsTeardownStuck, Severity::Info));
    assert_eq!((found.holders[0].pid, found.preexisting), (Some(77), true));
    let proof = format!("{:?}", found.evidence);
    assert!(proof.contains("cleanup_net") && proof.contains("waiting for lo"), "{proof}");
    case.at(46_000, Observation::Cleanup { worker: None });
    assert_eq!(case.codes(), []);
    assert!(!case.wants(50_000).contains(&Request::Cleanup), "nothing dies: no look");
}

#[test]
fn what_a_mount_holds_does_not_wait_for_a_teardown_that_hangs() {
    for (holders, leaked) in [(vec![mount_of(PATH, 1, 1)], true), (Vec::new(), false)] {
        let mut case = Case::with_runtime();
        case.at(30, Observation::Cleanup { worker: worker() });
        case.empty(1_000);
        case.list(1_000, Vec::new());
        case.at(31_000, Observation::Cleanup { worker: worker() });
        case.searched(40_000, &holders);
        assert_eq!(case.codes().contains(&Code::NetnsLeaked), leaked, "{:?}", case.codes());
    }
}

#[test]
fn what_ends_meanwhile_is_progress() {
    let mut case = Case::pod();
    case.at(30, Observation::Cleanup { worker: worker() });
    case.at(25_000, Observation::NetnsGone { netns: POD });
    case.at(40_000, Observation::Cleanup { worker: worker() });
    assert_eq!(case.codes(), []);
}

#[test]
pub(super) fn sandboxes_that_come_and_go_are_a_loop_and_a_pod_made_anew_is_none() {
    let attempts = |uids: &[&str]| {
        let mut case = Case::with_runtime();
        for (n, uid) in uids.iter().enumerate() {
            let pod = PodName { uid: Some((*uid).into()), ..pod_name() };
            let id = format!("{n}{}", &ID[1..]);
            let one = Sandbox {
                id,
                pod: Some(pod),
                attempt: Some(n as u32),
                ips: vec![Ipv4Addr::new(10, 0, 0, n as u8).into()],
                ..sandbox(Life::Alive, "Ready")
            };
            case.list(10_000 * (n as u64 + 1), vec![Observation::Sandbox(one)]);
        }
        case.found()
            .into_iter()
            .filter(|found| found.code == Code::SandboxCrashLoop)
            .collect::<Vec<_>>()
    };
    let found = attempts(&["u"; 6]);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].impact.as_str().contains("takes an IP"), "{}", found[0].impact);
    assert_eq!(
        attempts(&["a", "b", "c", "d", "e", "f"]),
        [],
        "a StatefulSet makes each with a new UID"
    );
    assert_eq!(attempts(&["u"; 3]), [], "a restart of the node");
}

/// cAdvisor's `/:/rootfs:ro` pins Docker's file of a netns for half a minute: no address is up there.
#[test]
fn a_leaked_netns_without_an_address_is_information() {
    for (gone, severity) in [(false, Severity::Warning), (true, Severity::Info)] {
        let mut case = Case::with_runtime();
        case.empty(1_000);
        if gone {
            let local = Ipv4Addr::new(10, 0, 0, 5).into();
            let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
            case.at(1_001, Observation::AddressGone { netns: POD, key });
        }
        case.list(1_002, Vec::new());
        // dockerd takes up to a minute.
        case.searched(if gone { 91_200 } else { 31_200 }, &[mount_of(PATH, 1, 1)]);
        let found = case.found();
        let leaked = found.iter().find(|one| one.code == Code::NetnsLeaked).unwrap();
        assert_eq!(leaked.severity, severity, "{}", leaked.impact);
    }
}

/// `kubectl cordon` keeps no container of docker's or podman's away, and there may be no cluster.
#[test]
fn no_node_is_cordoned_for_a_container_that_no_kubelet_made() {
    for (runtime, pod, cordons) in
        [("docker", None, false), ("podman", None, false), ("docker", Some(pod_name()), true)]
    {
        let mut case = Case::pod();
        case.source(runtime, SourceStatus::Active);
        case.at(
            3,
            Observation::Cgroup { task: KEY, path: format!("/system.slice/{runtime}-{ID}.scope") },
        );
        for (ms, life) in
            [(10, Life::Alive), (1_000, Life::Dead), (40_000, Life::Dead), (80_000, Life::Dead)]
        {
            let scope = Scope::Runtime { runtime: runtime.into() };
            let told =
                Sandbox { runtime: runtime.into(), pod: pod.clone(), ..sandbox(life, "exited") };
            case.at(ms, Observation::Began(scope.clone()));
            case.at(ms, Observation::Sandbox(told));
            case.at(ms, Observation::Ended { scope, began: BootNs(ms * MS), complete: true });
            case.wants(ms);
        }
        let found = detect(&case.0, BootNs(81_000 * MS), &Thresholds::default());
        let dead = found.iter().find(|one| one.code == Code::IpHeldByDeadSandbox);
        let lines = lines(dead.unwrap_or_else(|| panic!("{runtime}: {found:#?}")));
        assert_eq!(lines.contains("kubectl cordon"), cordons, "{runtime}: {lines}");
        assert_eq!(lines.contains("Start no new container in its network"), !cordons, "{lines}");
    }
}
