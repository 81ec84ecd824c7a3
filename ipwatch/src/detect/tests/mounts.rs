//! File systems of dead containers that stay mounted in another mount namespace.

use super::sandboxes::{APP, ID, PATH, UID, mount_of, sandbox};
use super::*;
use crate::fact::{Container, ContainerMount, Holder, Life, Process};

fn leftover(host: bool) -> Observation {
    Observation::ContainerMount(ContainerMount {
        container_id: APP.into(),
        mount_ns: 5,
        host,
        path: format!("/host/run/io.containerd.runtime.v2.task/k8s.io/{APP}/rootfs"),
        fs_type: "overlay".into(),
        processes: vec![Process { pid: 40, comm: "node-agent".into() }],
        cgroup: Some("/system.slice/agent.service".into()),
        started: None,
    })
}

fn container(life: Life, word: &str) -> Observation {
    Observation::Container(Container {
        runtime: "containerd".into(),
        id: APP.into(),
        sandbox: Some(ID.into()),
        name: Some("app".into()),
        life,
        word: word.into(),
    })
}

#[test]
pub(super) fn mounts_of_a_dead_container_are_searched_for_once_and_found_in_another_mount_namespace()
 {
    let mut case = Case::with_runtime();
    let alive = Observation::Sandbox(sandbox(Life::Alive, "Ready"));
    case.list(1_000, vec![alive.clone(), container(Life::Alive, "Running")]);
    case.list(2_000, vec![alive, container(Life::Dead, "Exited")]);
    let search = Request::ContainerMounts { ids: vec![APP.into()] };
    assert!(!case.wants(31_000).contains(&search));
    assert!(case.wants(32_000).contains(&search));
    let end = || Observation::ContainerMountsSearched { ids: vec![APP.into()], complete: true };
    case.at(32_100, leftover(false));
    case.at(32_100, end());
    let found = case.only();
    assert_eq!(found.code, Code::MountLeakBlocksRemoval);
    let holder = &found.holders[0];
    assert_eq!((holder.pid, holder.mount_ns, holder.mount_ns_pid), (None, Some(5), Some(40)));
    assert_eq!(found.subject.container.as_ref().unwrap().name.as_deref(), Some("app"));
    let command = found.remediation[0].command.as_ref().unwrap().sh();
    let still = crate::remedy::guard::is_still_found_at(
        &crate::finding::finding_id(found.code, &found.key),
        &holder.mount_path.clone().unwrap(),
    );
    let asks = format!("{} && readlink /proc/40/ns/mnt | grep -qxF 'mnt:[", still.sh());
    assert!(command.starts_with(&asks), "{command}");
    assert!(command.contains("]' && umount -N 40 /host/run/"), "{command}");
    assert!(case.wants(32_700).contains(&search), "a second look");
    case.at(32_800, end());
    assert_eq!(case.codes(), [], "it was unmounted");
    assert!(!case.wants(900_000).contains(&search), "a dead container makes no new mounts");
}

/// The end of a search that found, or did not find, the mount in a process of that age.
fn look(case: &mut Case, ms: u64, found: bool, started: Option<u64>) -> Vec<Code> {
    if let Observation::ContainerMount(mount) = leftover(false)
        && found
    {
        let started = started.map(|ms| BootNs(ms * MS));
        case.at(ms, Observation::ContainerMount(ContainerMount { started, ..mount }));
    }
    case.at(ms, Observation::ContainerMountsSearched { ids: vec![APP.into()], complete: true });
    case.codes()
}

/// A container that was dead when ipwatch started, long after the boot: it is searched for at once.
fn dead_before() -> Case {
    let mut case = Case::pod();
    case.source("containerd", SourceStatus::Active);
    let alive = Observation::Sandbox(sandbox(Life::Alive, "Ready"));
    case.list(100_000, vec![alive, container(Life::Dead, "Exited")]);
    case
}

/// Nobody knows whether it died a moment ago, while another pod started beside it.
#[test]
fn what_a_pod_has_that_has_just_started_is_no_leak_until_it_has_it_for_a_grace() {
    let mut case = dead_before();
    let search = Request::ContainerMounts { ids: vec![APP.into()] };
    let started = Some(99_500);
    assert_eq!(look(&mut case, 100_100, true, started), []);
    assert!(case.wants(100_700).contains(&search));
    assert_eq!(look(&mut case, 100_800, true, started), []);
    assert!(case.wants(101_400).contains(&search));
    assert_eq!(look(&mut case, 101_500, true, started), [], "it has just started");
    assert!(!case.wants(129_400).contains(&search));
    assert!(case.wants(129_500).contains(&search), "30 s after its start");
    assert!(!case.wants(129_550).contains(&search), "that is under way");
    assert_eq!(look(&mut case, 129_600, true, started), [Code::MountLeakBlocksRemoval]);
    assert!(case.wants(130_200).contains(&search), "a second look at what has settled");
    assert_eq!(look(&mut case, 130_300, true, started), [Code::MountLeakBlocksRemoval]);
    assert!(!case.wants(190_200).contains(&search));
    assert!(case.wants(190_300).contains(&search), "then now and then");
    assert_eq!(look(&mut case, 190_400, false, started), []);
}

/// Between the end of a sandbox and its removal a pod that was started beside it has its file systems for a moment.
#[test]
fn what_a_container_left_that_died_before_the_start_is_found_twice_before_it_counts() {
    let mut case = dead_before();
    let search = Request::ContainerMounts { ids: vec![APP.into()] };
    assert_eq!(look(&mut case, 100_100, true, None), []);
    assert!(case.wants(100_700).contains(&search));
    assert_eq!(look(&mut case, 100_800, true, None), [Code::MountLeakBlocksRemoval]);
    assert!(case.wants(101_400).contains(&search), "which lets it fire");
    assert_eq!(look(&mut case, 101_500, true, None), [Code::MountLeakBlocksRemoval]);
    assert!(!case.wants(160_000).contains(&search));
}

#[test]
fn the_runtimes_own_mounts_are_no_leak() {
    let mut case = Case::with_runtime();
    case.list(
        2_000,
        vec![Observation::Sandbox(sandbox(Life::Alive, "Ready")), container(Life::Dead, "Exited")],
    );
    case.wants(40_000);
    case.at(40_100, leftover(true));
    case.at(40_100, Observation::ContainerMountsSearched { ids: vec![APP.into()], complete: true });
    assert_eq!(case.codes(), []);
}

#[test]
fn containers_of_one_pod_share_files_and_leak_nothing() {
    let mut case = Case::with_runtime();
    case.list(
        1_000,
        vec![
            Observation::Sandbox(sandbox(Life::Alive, "Ready")),
            container(Life::Alive, "Running"),
        ],
    );
    case.list(
        2_000,
        vec![
            Observation::Sandbox(sandbox(Life::Dead, "NotReady")),
            container(Life::Alive, "Running"),
        ],
    );
    case.wants(40_000);
    let mount = ContainerMount {
        container_id: ID.into(),
        mount_ns: 5,
        host: false,
        path: "/etc/resolv.conf".into(),
        fs_type: "ext4".into(),
        processes: vec![Process { pid: 40, comm: "app".into() }],
        cgroup: Some(format!("/kubepods/pod{UID}/{APP}")),
        started: None,
    };
    case.at(40_100, Observation::ContainerMount(mount));
    case.at(40_100, Observation::ContainerMountsSearched { ids: vec![ID.into()], complete: true });
    assert!(!case.codes().contains(&Code::MountLeakBlocksRemoval), "{:?}", case.codes());
}

/// What is found of a dead container that has a file system mounted by an agent, and whose netns these mounts hold.
fn found_beside_an_agent(mut case: Case, holders: &[Holder]) -> Vec<Candidate> {
    beside_an_agent(&mut case, holders);
    case.found()
}

fn beside_an_agent(case: &mut Case, holders: &[Holder]) {
    let alive = Observation::Sandbox(sandbox(Life::Alive, "Ready"));
    case.list(500, vec![alive.clone(), container(Life::Alive, "Running")]);
    case.list(1_000, vec![alive, container(Life::Dead, "Exited")]);
    case.empty(1_100);
    case.list(1_200, Vec::new());
    case.wants(32_000);
    case.at(32_100, leftover(false));
    let ids = vec![APP.into()];
    case.at(32_100, Observation::ContainerMountsSearched { ids, complete: true });
    case.at(32_100, Observation::HoldersSearched { netns: POD, complete: true });
    case.searched(33_000, holders);
}

/// Only the agent's finding pages, so it is as severe as what the agent keeps.
#[test]
fn an_agent_that_keeps_an_ip_which_others_can_be_given_is_critical() {
    let severity = |is_reserved: bool| {
        let case = if is_reserved { Case::with_runtime() } else { Case::unreserved(100) };
        let found = found_beside_an_agent(case, &[mount_of("/host/run/netns/cni-1", 5, 40)]);
        let agent = found.iter().find(|one| one.code == Code::MountLeakBlocksRemoval).unwrap();
        let leaked = found.iter().find(|one| one.code == Code::NetnsLeaked).unwrap();
        assert_eq!(leaked.severity, agent.severity);
        agent.severity
    };
    assert_eq!(severity(true), Severity::Warning);
    assert_eq!(severity(false), Severity::Critical);
}

/// An agent that mounts `/` copies every mount of a netns. If the netns is still mounted elsewhere too, the agent is
/// not the cause of the leak.
#[test]
fn a_leaked_netns_follows_from_an_agents_mounts_only_where_nothing_else_holds_it() {
    for (elsewhere, follows) in [(false, true), (true, false)] {
        let mut holders = vec![mount_of("/host/run/netns/cni-1", 5, 40)];
        if elsewhere {
            holders.push(mount_of(PATH, 1, 1));
        }
        let found = found_beside_an_agent(Case::with_runtime(), &holders);
        let of = |code| found.iter().find(|one| one.code == code).unwrap();
        let (root, leaked) = (of(Code::MountLeakBlocksRemoval), of(Code::NetnsLeaked));
        let cause = follows.then(|| (root.code, root.key.clone()));
        assert_eq!(leaked.caused_by, cause, "{:#?}", leaked.holders);
    }
}

/// An agent that looks into the netns is no further holder of it.
#[test]
fn a_leaked_netns_follows_from_an_agents_mounts_while_somebody_visits_it() {
    let mut case = Case::with_runtime();
    beside_an_agent(&mut case, &[mount_of("/host/run/netns/cni-1", 5, 40)]);
    let before = case.found();
    let visitor = task(TaskKey { pid: 70, tid: 70, start: 50 }, POD);
    case.at(33_100, Observation::Task(visitor));
    case.wants(33_100);
    let leaked = case.found().into_iter().find(|one| one.code == Code::NetnsLeaked).unwrap();
    let root = leaked.caused_by.as_ref().map(|(code, _)| *code);
    assert_eq!(root, Some(Code::MountLeakBlocksRemoval), "{:#?}", leaked.holders);
    assert_eq!(case.found(), before);
}
