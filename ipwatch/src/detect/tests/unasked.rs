//! Containers that may belong to a runtime that is not queried: the denial of the others proves nothing.

use proptest::prelude::*;

use super::ipam::NEW;
use super::sandboxes::{ID, PATH, UID, mount_of, not_ready, other, pod_name};
use super::*;
use crate::fact::{Attachment, Engine, Monitor, RuntimeProcess};

const ASKED: &str = "/run/containerd";
const OTHERS: &str = "/run/other";
/// The kubelet's cgroupfs driver names no runtime.
const BARE: &str = "/kubepods/pod1c0de3f2-8a5b-4c9d-9e8f-0123456789ab/";

fn process(engine: Engine, dir: &str, asked: bool) -> RuntimeProcess {
    let (sockets, dirs) = (vec![format!("{dir}/x.sock")], vec![dir.to_owned()]);
    RuntimeProcess { pid: 800, engine, started: None, sockets, dirs, asked, ignored: false }
}

fn containerd() -> RuntimeProcess {
    process(Engine::Containerd, ASKED, true)
}

/// The shim of the pod in these tests.
fn shim(dir: &str) -> Monitor {
    Monitor {
        pid: 900,
        engine: Some(Engine::Containerd),
        dir: Some(dir.to_owned()),
        namespace: Some("k8s.io".into()),
        container_id: Some(ID.into()),
        children: vec![KEY.pid],
        ignored: false,
    }
}

impl Case {
    fn runs(&mut self, ms: u64, runtimes: &[RuntimeProcess], monitors: &[Monitor]) {
        let (runtimes, monitors) = (runtimes.to_vec(), monitors.to_vec());
        self.at(ms, Observation::RuntimeProcesses { runtimes, monitors, complete: true });
    }

    /// A kubelet's pod that containerd, which is queried and has other pods, denies for long enough.
    fn denied(cgroup: &str, runtimes: &[RuntimeProcess], monitors: &[Monitor]) -> Self {
        let mut case = Self::pod();
        case.source("containerd", SourceStatus::Active);
        case.at(3, Observation::Cgroup { task: KEY, path: cgroup.to_owned() });
        case.runs(4, runtimes, monitors);
        case.list(1_000, other());
        case.list(302_000, other());
        case
    }

    /// A netns without tasks that CNI's result cache names. `nobody`: there is no runtime to query.
    fn left(runtimes: &[RuntimeProcess], nobody: bool) -> Self {
        let mut case = Self::pod();
        if nobody {
            case.source("runtime", SourceStatus::Disabled);
        } else {
            case.source("containerd", SourceStatus::Active);
        }
        case.runs(4, runtimes, &[]);
        let attachment = Attachment {
            container_id: ID.into(),
            ifname: "eth0".into(),
            network: "cbr0".into(),
            netns_path: Some(PATH.into()),
            ips: Vec::new(),
            made: None,
            pod: Some(pod_name()),
        };
        case.at(5, Observation::Attachment(attachment));
        case.at(5, Observation::Holder { netns: POD, holder: mount_of(PATH, 1, 1) });
        case.at(6, Observation::TaskReleased { task: KEY });
        case.wants(6);
        if !nobody {
            case.list(1_000, other());
            case.list(302_000, other());
        }
        for ms in [303_000, 303_600] {
            case.at(ms, Observation::Holder { netns: POD, holder: mount_of(PATH, 1, 1) });
            case.at(ms, Observation::HoldersSearched { netns: POD, complete: true });
            case.wants(ms);
        }
        case
    }

    /// A reservation of a container of which nothing else is left.
    fn reserved_for_nobody(runtimes: &[RuntimeProcess], monitors: &[Monitor]) -> Self {
        let mut case = Self::reserved();
        case.runs(13, runtimes, monitors);
        case.reserve(1_000, 9, NEW);
        let lives = || {
            vec![Observation::Sandbox(super::sandboxes::sandbox(crate::fact::Life::Alive, "Ready"))]
        };
        case.list(301_100, lives());
        case.wants(301_200);
        case
    }

    fn codes_now(&self) -> Vec<Code> {
        self.found().iter().map(|found| found.code).collect()
    }
}

#[test]
fn a_pod_that_may_be_anothers_is_not_dead() {
    let bare = format!("{BARE}{ID}");
    let dead = |runtimes: &[RuntimeProcess], monitors: &[Monitor]| {
        Case::denied(&bare, runtimes, monitors).codes_now()
    };
    let found = [Code::IpHeldByDeadSandbox];
    assert_eq!(dead(&[containerd()], &[]), found, "nobody else runs");
    for engine in [Engine::Containerd, Engine::CriO, Engine::Docker] {
        let other = process(engine, OTHERS, false);
        assert_eq!(dead(&[containerd(), other.clone()], &[]), [], "{engine:?} is not asked");
        let asked = RuntimeProcess { asked: true, ..other.clone() };
        assert_eq!(dead(&[containerd(), asked], &[]), found, "it is");
        let ignored = RuntimeProcess { ignored: true, ..other };
        assert_eq!(dead(&[containerd(), ignored], &[]), found, "it has no pods here");
    }
}

#[test]
fn a_cgroup_that_only_root_makes_rules_other_kinds_out() {
    let slice = format!("/kubepods.slice/kubepods-pod{}.slice", UID.replace('-', "_"));
    let scope = format!("{slice}/cri-containerd-{ID}.scope");
    let with = |path: &str, engine| {
        let other = process(engine, OTHERS, false);
        Case::denied(path, &[containerd(), other], &[]).codes_now()
    };
    assert_eq!(with(&scope, Engine::CriO), [Code::IpHeldByDeadSandbox]);
    assert_eq!(with(&scope, Engine::Docker), [Code::IpHeldByDeadSandbox]);
    assert_eq!(with(&scope, Engine::Containerd), [], "another of its kind");
    let crio = format!("{slice}/crio-{ID}.scope");
    assert_eq!(with(&crio, Engine::CriO), []);
}

#[test]
fn a_netns_path_rules_other_kinds_out() {
    let with =
        |engine| Case::left(&[containerd(), process(engine, OTHERS, false)], false).codes_now();
    assert_eq!(with(Engine::Docker), [Code::NetnsLeaked], "no netns of dockerd's is called so");
    assert_eq!(with(Engine::Containerd), []);
    assert_eq!(with(Engine::CriO), []);
}

#[test]
fn the_monitor_of_a_container_tells_whose_it_is() {
    let bare = format!("{BARE}{ID}");
    let dead = |runtimes: &[RuntimeProcess], monitors: &[Monitor]| {
        Case::denied(&bare, runtimes, monitors).codes_now()
    };
    let found = [Code::IpHeldByDeadSandbox];
    let second = process(Engine::Containerd, OTHERS, false);
    let both = [containerd(), second];
    assert_eq!(dead(&both, &[shim(ASKED)]), found, "its own runtime denies it");
    assert_eq!(dead(&both, &[shim(OTHERS)]), []);
    let stranger = Monitor { dir: None, engine: None, ..shim(OTHERS) };
    assert_eq!(dead(&both, &[stranger]), [], "a monitor that does not say whose it is");
    // Its containerd is down, or was not found.
    assert_eq!(dead(&[containerd()], &[shim(OTHERS)]), []);
    assert_eq!(dead(&[], &[shim(OTHERS)]), []);
    assert_eq!(dead(&[], &[Monitor { ignored: true, ..shim(OTHERS) }]), found);
    // CRI does not show containers in another containerd namespace.
    let hidden = Monitor { namespace: Some("default".into()), ..shim(ASKED) };
    assert_eq!(dead(&[containerd()], &[hidden]), []);
    // Identified only by its children, and beside a visitor from a pod of the queried runtime.
    let nameless = Monitor { container_id: None, ..shim(OTHERS) };
    let visitor = Monitor { pid: 901, container_id: Some(NEW.into()), ..shim(ASKED) };
    assert_eq!(dead(&[containerd()], &[nameless]), []);
    assert_eq!(dead(&[containerd()], &[visitor, Monitor { children: vec![], ..shim(OTHERS) }]), []);
}

#[test]
fn its_owners_own_word_counts_whoever_else_runs() {
    let mut case = Case::with_runtime();
    case.runs(12, &[containerd(), process(Engine::CriO, OTHERS, false)], &[]);
    case.list(1_000, not_ready());
    case.list(31_001, not_ready());
    assert_eq!(case.codes_now(), [Code::IpHeldByDeadSandbox]);
    case.list(32_000, Vec::new());
    assert_eq!(case.codes_now(), [Code::IpHeldByDeadSandbox], "it had it, and has it no more");
}

#[test]
fn a_netns_or_a_reservation_that_may_be_anothers_is_no_leak() {
    let second = process(Engine::Containerd, OTHERS, false);
    let both = [containerd(), second.clone()];
    assert_eq!(Case::left(&[containerd()], false).codes_now(), [Code::NetnsLeaked]);
    assert_eq!(Case::left(&both, false).codes_now(), []);
    assert_eq!(Case::left(&[], true).codes_now(), [Code::NetnsLeaked], "no runtime runs");
    assert_eq!(
        Case::left(std::slice::from_ref(&second), true).codes_now(),
        [],
        "one does, and is not asked"
    );
    let leak = [Code::IpamReservationLeaked];
    assert_eq!(Case::reserved_for_nobody(&[containerd()], &[]).codes_now(), leak);
    assert_eq!(Case::reserved_for_nobody(&both, &[]).codes_now(), []);
    let own = Monitor { container_id: Some(NEW.into()), ..shim(OTHERS) };
    assert_eq!(Case::reserved_for_nobody(&[containerd()], &[own]).codes_now(), []);
    // The doubt ends as soon as that runtime is queried.
    let mut case = Case::reserved_for_nobody(&both, &[]);
    let asked = RuntimeProcess { asked: true, ..second };
    case.runs(301_300, &[containerd(), asked], &[]);
    assert_eq!(case.codes_at(301_400), leak);
}

#[test]
fn what_runs_unread_may_be_anything() {
    let mut case = Case::denied(&format!("{BARE}{ID}"), &[containerd()], &[]);
    assert_eq!(case.codes_now(), [Code::IpHeldByDeadSandbox]);
    let (runtimes, monitors) = (Vec::new(), Vec::new());
    case.at(303_000, Observation::RuntimeProcesses { runtimes, monitors, complete: false });
    assert_eq!(case.codes_now(), []);
}

fn engine() -> impl Strategy<Value = Engine> {
    prop_oneof![Just(Engine::Containerd), Just(Engine::CriO), Just(Engine::Docker)]
}

fn monitors() -> impl Strategy<Value = Vec<Monitor>> {
    let dir = prop_oneof![Just(OTHERS), Just("/run/third")];
    let one = (prop::option::of(engine()), dir, any::<bool>(), any::<bool>(), any::<bool>());
    let made =
        |(engine, dir, named, parent, new): (Option<Engine>, &str, bool, bool, bool)| Monitor {
            engine,
            dir: Some(dir.to_owned()),
            container_id: named.then(|| if new { NEW } else { ID }.to_owned()),
            children: if parent { vec![KEY.pid] } else { Vec::new() },
            ..shim(OTHERS)
        };
    prop::collection::vec(one.prop_map(made), 0..3)
}

/// Whether a line of a remedy does something that cannot be undone.
fn does_harm(line: &str) -> bool {
    let words = [
        "kill ", "crictl ", "docker ", " rm ", "umount", "release", "delete ", "patch ", "netns 1",
    ];
    !line.starts_with("Do not") && words.iter().any(|word| line.contains(word))
}

proptest! {
    /// As long as another runtime may own the container, no finding has a remedy that ends a process or frees an IP.
    #[test]
    fn nothing_that_may_be_anothers_has_a_remedy(
        monitors in monitors(),
        others in prop::collection::vec((engine(), any::<bool>()), 0..3),
    ) {
        // A runtime that could own each of these, according to all evidence.
        let mut runtimes = vec![containerd(), process(Engine::Containerd, "/run/unasked", false)];
        runtimes.extend(others.iter().map(|(engine, asked)| process(*engine, OTHERS, *asked)));
        // None of their monitors belongs to a queried runtime: that would settle the owner.
        let told = |monitor: &&Monitor| {
            !runtimes.iter().any(|other| other.asked && monitor.dir.as_ref().is_some_and(|dir| other.dirs.contains(dir)))
        };
        let monitors: Vec<Monitor> = monitors.iter().filter(told).cloned().collect();
        let cases = [
            Case::denied(&format!("{BARE}{ID}"), &runtimes, &monitors),
            Case::left(&runtimes, false),
            Case::left(&runtimes, true),
            Case::reserved_for_nobody(&runtimes, &monitors),
        ];
        for case in cases {
            for found in case.found() {
                let lines = found.remediation.iter().map(crate::remedy::Step::line);
                let harm: Vec<String> = lines.filter(|line| does_harm(line)).collect();
                prop_assert!(harm.is_empty(), "{:?}: {harm:?}", found.code);
            }
        }
    }
}

/// Checks the property itself: without doubt each of these cases has such a remedy.
#[test]
fn what_is_proven_has_one() {
    let own = [containerd()];
    let cases = [
        Case::denied(&format!("{BARE}{ID}"), &own, &[]),
        Case::left(&own, false),
        Case::left(&[], true),
        Case::reserved_for_nobody(&own, &[]),
    ];
    for case in cases {
        let found = case.found();
        let mut steps = found.iter().flat_map(|found| &found.remediation);
        assert!(steps.any(|step| does_harm(&step.line())), "{found:#?}");
    }
}
