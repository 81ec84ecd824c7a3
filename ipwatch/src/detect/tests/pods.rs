//! Pods that the API server has deleted and the node has not.

use super::sandboxes::{ID, UID, not_ready, other, sandbox};
use super::*;
use crate::fact::{Life, Pod, PodName, Scope};
use crate::finding::Severity;

/// The uid of [`other`]'s pod.
const OTHER: &str = "00000000-0000-4000-8000-000000000001";

pub(super) fn pod(uid: &str) -> Pod {
    Pod {
        uid: uid.into(),
        namespace: "shop".into(),
        name: "api-0".into(),
        phase: Some("Running".into()),
        ips: Vec::new(),
        deletion: None,
        grace: Some(20),
        mirror_of: None,
    }
}

fn alive() -> Vec<Observation> {
    vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]
}

impl Case {
    /// A pod that containerd and the API server know.
    fn with_api(pods: Vec<Pod>) -> Self {
        let mut case = Self::with_runtime();
        case.source("kubernetes", SourceStatus::Active);
        case.pods(20, pods);
        case
    }

    /// A complete listing of the API server.
    pub(super) fn pods(&mut self, ms: u64, pods: Vec<Pod>) {
        self.at(ms, Observation::Began(Scope::Pods));
        pods.into_iter().for_each(|pod| self.at(ms, Observation::Pod(pod)));
        self.at(
            ms,
            Observation::Ended { scope: Scope::Pods, began: BootNs(ms * MS), complete: true },
        );
    }

    fn deleted(&mut self, ms: u64) {
        self.at(ms, Observation::PodGone { uid: UID.into() });
    }

    #[track_caller]
    fn none(&self, why: &str) {
        assert_eq!(self.found(), [], "{why}");
    }

    #[track_caller]
    fn one(&self) -> Candidate {
        let found = self.found();
        assert_eq!(found.len(), 1, "{found:#?}");
        found.into_iter().next().unwrap()
    }
}

#[test]
pub(super) fn a_pod_that_was_force_deleted_is_found_after_its_grace_and_ours() {
    let mut case = Case::with_api(vec![pod(UID)]);
    case.list(900, alive());
    case.none("it is there");
    case.deleted(1_000);
    case.list(50_900, alive());
    case.none("20 s of its own and 30 s of ours");
    case.list(51_001, alive());
    let found = case.one();
    assert_eq!((found.code, found.severity), (Code::IpHeldByDeletedPod, Severity::Warning));
    assert_eq!((found.since, found.observed), (BootNs(1_000 * MS), BootNs(51_001 * MS)));
    assert_eq!(found.holders[0].pid, Some(10));
    assert_eq!(found.subject.pod.as_ref().unwrap().name.as_deref(), Some("api-0"));
    let proof: String = found.evidence.iter().map(|item| item.text.clone() + "\n").collect();
    for part in [UID, "Running before", "a forced deletion", "is Ready", "pid 10", "10.0.0.5/24"] {
        assert!(proof.contains(part), "{part} is not in\n{proof}");
    }
    assert!(found.remediation.iter().any(|line| line.line().contains("crictl stopp 8f4c1b2a9d7e")));
    case.list(52_000, alive());
    assert!(case.one().observed > found.observed, "a second look");
    case.at(53_000, Observation::NetnsGone { netns: POD });
    case.none("it is over");
}

#[test]
pub(super) fn where_the_kubelet_tells_instead_it_is_its_word_that_is_repeated() {
    let mut case = Case::with_runtime();
    case.source("kubernetes", SourceStatus::Disabled);
    case.source("kubelet", SourceStatus::Active);
    case.pods(20, vec![pod(UID)]);
    case.list(900, alive());
    case.none("it is to run it");
    case.pods(1_000, Vec::new());
    case.list(51_001, alive());
    let found = case.one();
    assert!(
        found.impact.as_str().contains("which the kubelet should no longer run"),
        "{}",
        found.impact
    );
    let first = &found.evidence[0];
    assert_eq!(first.source, "kubelet");
    assert!(first.text.contains("no longer among the pods"), "{}", first.text);
    let proof: String = found.evidence.iter().map(|item| &*item.text).collect();
    assert!(!(proof + found.impact.as_str()).contains("API server has"), "it was not asked");
    let is_blind = |case: &Case| {
        super::blind(&case.0, &Thresholds::default()).contains(&Code::IpHeldByDeletedPod)
    };
    case.source("kubelet", SourceStatus::Down);
    case.none("it is silent");
    assert!(is_blind(&case), "so that nothing is taken for over");
    case.source("kubelet", SourceStatus::Disabled);
    assert!(!is_blind(&case));
}

#[test]
fn the_runtime_is_asked_when_the_grace_is_over() {
    let mut case = Case::with_api(vec![pod(UID)]);
    case.deleted(1_000);
    let ask = Request::Runtime { runtime: "containerd".into() };
    assert!(!case.wants(50_000).contains(&ask));
    assert!(case.wants(51_000).contains(&ask));
    case.list(51_100, alive());
    assert!(case.wants(51_600).contains(&ask), "a second time");
}

#[test]
fn one_that_was_asked_to_end_has_the_time_it_was_given() {
    let ending = Pod { deletion: Some(100_000 * MS as i64), grace: Some(90), ..pod(UID) };
    let mut case = Case::with_api(vec![ending]);
    case.deleted(1_000);
    case.list(129_000, alive());
    case.none("its time is not over");
    case.list(130_001, alive());
    let text = &case.one().evidence[0].text;
    assert!(text.contains("it was due to end by 1970-01-01T00:01:40"), "{text}");
    let forced = Pod { deletion: Some(1_000 * MS as i64), grace: Some(0), ..pod(UID) };
    let mut case = Case::with_api(vec![forced]);
    case.deleted(1_000);
    case.list(31_001, alive());
    let text = &case.one().evidence[0].text;
    assert!(text.contains("1970-01-01T00:00:01.000Z without a grace period"), "{text}");
    // A pod with a grace of 0 gets none.
    let mut case = Case::with_api(vec![Pod { grace: Some(0), ..pod(UID) }]);
    case.deleted(1_000);
    case.list(31_001, alive());
    case.one();
    let mut case = Case::with_api(vec![Pod { grace: Some(u64::MAX), ..pod(UID) }]);
    case.deleted(1_000);
    case.list(900_000, alive());
    case.none("for ever");
}

#[test]
fn nothing_is_said_while_one_of_the_two_is_silent() {
    let mut case = Case::with_api(vec![pod(UID)]);
    case.deleted(1_000);
    case.list(60_000, alive());
    case.one();
    let is_blind = |case: &Case| {
        super::blind(&case.0, &Thresholds::default()).contains(&Code::IpHeldByDeletedPod)
    };
    assert!(!is_blind(&case));
    case.source("kubernetes", SourceStatus::Down);
    case.none("the API server is silent");
    assert!(is_blind(&case));
    case.source("kubernetes", SourceStatus::Degraded);
    case.one();
    case.source("containerd", SourceStatus::Down);
    case.none("the runtime is silent");
    assert!(is_blind(&case));
    case.source("containerd", SourceStatus::Active);
    case.source("kubernetes", SourceStatus::Disabled);
    case.none("nobody is asked");
    assert!(!is_blind(&case), "and nobody is waited for");
    let mut case = Case::with_runtime();
    case.source("kubernetes", SourceStatus::Active);
    case.list(900_000, alive());
    case.none("it has not told anything yet");
    assert!(is_blind(&case));
}

#[test]
fn what_a_whole_list_does_not_name_is_gone_and_what_a_part_does_not_is_unknown() {
    let mut case = Case::with_api(vec![pod(UID)]);
    case.at(1_000, Observation::Began(Scope::Pods));
    case.at(
        1_000,
        Observation::Ended { scope: Scope::Pods, began: BootNs(1_000 * MS), complete: false },
    );
    case.list(60_000, alive());
    case.none("cut off");
    case.pods(61_000, Vec::new());
    case.list(111_001, alive());
    assert_eq!(case.one().since, BootNs(61_000 * MS));
    case.pods(112_000, vec![pod(UID)]);
    case.none("it is there after all");
}

#[test]
fn one_that_the_api_server_never_told_of_is_found_late_and_only_where_the_list_is_this_nodes() {
    let both = || [alive(), other_of_api()].concat();
    let wait = |pods: Vec<Pod>, sandboxes: Vec<Observation>, confirmed: bool| {
        let mut case = Case::with_api(pods);
        case.list(100, sandboxes.clone());
        case.list(299_000, sandboxes.clone());
        case.none("it may be new");
        if confirmed {
            case.at(321_000, Observation::PodsConfirmed);
        }
        case.list(322_000, sandboxes);
        case.found().iter().map(|found| found.code).collect::<Vec<_>>()
    };
    assert_eq!(wait(vec![pod(OTHER)], both(), true), [Code::IpHeldByDeletedPod]);
    assert_eq!(wait(vec![pod(OTHER)], both(), false), [], "the list is old");
    assert_eq!(wait(Vec::new(), both(), true), [], "as for a node of another name");
    let mirror = Pod { mirror_of: Some(UID.into()), ..pod(OTHER) };
    assert_eq!(wait(vec![mirror], both(), true), [], "a static pod");
    assert_eq!(wait(vec![pod(OTHER)], alive(), true), [], "none of the two is the other's");
}

/// Another pod, which the API server has.
fn other_of_api() -> Vec<Observation> {
    let mut all = other();
    for what in &mut all {
        if let Observation::Sandbox(sandbox) = what {
            sandbox.pod = Some(PodName {
                namespace: "shop".into(),
                name: "other-0".into(),
                uid: Some(OTHER.into()),
            });
        }
    }
    all
}

#[test]
fn a_static_pod_outlives_its_mirror() {
    let mirror = Pod { mirror_of: Some("0123456789abcdef0123456789abcdef".into()), ..pod(UID) };
    let mut case = Case::with_api(vec![mirror]);
    case.deleted(1_000);
    case.list(900_000, alive());
    case.none("the kubelet makes it anew");
}

#[test]
fn its_successor_of_the_same_name_is_not_it() {
    let mut case = Case::with_api(vec![pod(OTHER), pod(UID)]);
    case.at(1_000, Observation::PodGone { uid: OTHER.into() });
    case.list(900_000, alive());
    case.none("another uid");
}

#[test]
fn a_dead_sandbox_is_the_cause_and_a_stuck_process_before_it() {
    let mut case = Case::with_api(vec![pod(UID)]);
    case.deleted(1_000);
    case.list(1_000, not_ready());
    case.list(60_000, not_ready());
    let found = case.found();
    let [dead, deleted] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((dead.code, deleted.code), (Code::IpHeldByDeadSandbox, Code::IpHeldByDeletedPod));
    assert_eq!(deleted.caused_by, Some((dead.code, dead.key.clone())));
    let mut case = Case::with_api(vec![pod(UID)]);
    case.deleted(1_000);
    case.killed(1_000);
    case.look(6_100, Look { shared_pending: SIGKILL, ..hanging() });
    case.list(60_000, alive());
    let found = case.found();
    let [stuck, deleted] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((stuck.code, deleted.code), (Code::IpHeldByStuckProcess, Code::IpHeldByDeletedPod));
    assert_eq!(deleted.caused_by, Some((stuck.code, stuck.key.clone())));
}

#[test]
fn a_sandbox_that_its_runtime_forgot_is_another_finding() {
    let mut case = Case::with_api(vec![pod(UID)]);
    case.deleted(1_000);
    case.list(1_000, Vec::new());
    case.list(60_000, Vec::new());
    assert_eq!(case.one().code, Code::IpHeldByDeadSandbox);
    assert!(case.0.sandbox(ID).is_some_and(|entry| entry.gone.is_some()));
}

#[test]
fn no_more_pods_are_kept_than_a_node_can_have() {
    let mut case = Case::with_api(Vec::new());
    let uid = |n: u32| format!("00000000-0000-4000-8000-{n:012}");
    case.pods(30, (0..5000).map(|n| pod(&uid(n))).collect());
    assert!(case.0.pod(&uid(0)).is_some() && case.0.pod(&uid(4999)).is_none());
    case.pods(700_000, Vec::new());
    case.pods(1_400_000, vec![pod(OTHER)]);
    assert!(case.0.pod(&uid(0)).is_none(), "gone for long, and no runtime has anything of it");
}
