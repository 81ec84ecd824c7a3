//! Each detector against maps made of facts: what it must find, and what it must ignore. This file: the stuck process.
//! `sandboxes`: dead sandboxes and leftovers; `ipam`: the IPAM, `leaks`: its leaks, `stores`: unreadable files,
//! `dispute`: when a mismatch counts; `duplicate`: one IP in two netns; `calls`: runs of CNI plugins; `neighbours`: two
//! MACs for one IP; `silence`: neighbours that do not answer; `orphans`: routes to nonexistent endpoints; `pods`: pods
//! that the API server has deleted; `whereabouts`: pools of the whole cluster; `endpoints`: Calico's endpoints,
//! `pools`: its pools; `unasked`: runtimes that are not queried; `hostile`: all of these with hostile text;
//! `preconditions`: guards of commands that change something; `growth`: how fast ranges fill up.

mod calls;
mod dispute;
mod duplicate;
mod endpoints;
mod growth;
mod held;
pub(crate) mod hostile;
mod ipam;
mod leaks;
mod mounts;
mod neighbours;
mod orphans;
mod pods;
mod pools;
mod preconditions;
mod proofs;
mod sandboxes;
mod silence;
mod stores;
mod unasked;
mod whereabouts;

use std::cell::RefCell;
use std::net::Ipv4Addr;

use super::*;
use crate::clock::Calendar;
use crate::fact::Scope;
use crate::fact::{
    Address, AddressKey, Boot, Fact, Link, Look, NetnsRef, Observation, Origin, Presence, Sender,
    Source, SourceStatus, Task, TaskKey,
};
use crate::finding::Severity;
use crate::ledger::life::{Life as Findings, Standing};
use crate::map::LOOP_WINDOW;
use crate::map::NodeMap;
use crate::map::request::Request;

const MS: u64 = 1_000_000;
const POD: NetnsRef = NetnsRef { cookie: Some(7), inode: Some(70), nsid: Some(3) };
const HOST: NetnsRef = NetnsRef { cookie: Some(1), inode: Some(1), nsid: None };
const KEY: TaskKey = TaskKey { pid: 10, tid: 10, start: 100 };
const PF_EXITING: u32 = 0x4;
const SIGKILL: u64 = 1 << 8;

/// The map of a case. Its facts can be recorded, and replayed with other texts: see `hostile`.
#[derive(Default)]
struct Recorded(NodeMap, RefCell<Kept>);

/// How often changes are judged.
#[derive(Default, PartialEq, Eq)]
enum Steps {
    /// After every fact.
    #[default]
    Each,
    /// Only when a case queries the findings: for cases with thousands of facts.
    Asked,
}

/// The results of earlier moments, as the engine keeps them from step to step.
#[derive(Default)]
struct Kept {
    detection: Detection,
    at: BootNs,
    steps: Steps,
}

impl Recorded {
    fn apply(&mut self, fact: &Fact) {
        hostile::write(|| hostile::Line::Fact(Box::new(fact.clone())));
        self.0.apply(fact);
        if self.1.borrow().steps == Steps::Each {
            self.keep(self.0.now(), &Thresholds::default());
        }
    }

    /// Judges what has changed. If a case goes back in time, nothing is kept.
    fn keep(&self, now: BootNs, thresholds: &Thresholds) {
        let kept = &mut *self.1.borrow_mut();
        if now < kept.at {
            kept.detection = Detection::default();
        }
        kept.at = now;
        kept.detection.update(&self.0, now, thresholds);
    }

    fn agenda(&mut self, now: BootNs, thresholds: &Thresholds) -> crate::map::Agenda {
        hostile::write(|| hostile::Line::Agenda(now, *thresholds));
        self.0.agenda(now, thresholds)
    }
}

impl std::ops::Deref for Recorded {
    type Target = NodeMap;

    fn deref(&self) -> &NodeMap {
        &self.0
    }
}

impl std::ops::DerefMut for Recorded {
    fn deref_mut(&mut self) -> &mut NodeMap {
        &mut self.0
    }
}

fn detect(told: &Recorded, now: BootNs, thresholds: &Thresholds) -> Vec<Candidate> {
    hostile::write(|| hostile::Line::Detect(now, *thresholds));
    let found = super::detect(told, now, thresholds);
    told.keep(now, thresholds);
    assert_eq!(told.1.borrow().detection.found(), found, "by what has changed, and from scratch");
    found
}

/// Compares with the open findings, as the engine does. Returns the IPs of those that are open then.
fn live(told: &Recorded, life: &mut Findings, ms: u64) -> Vec<std::net::IpAddr> {
    let (now, thresholds) = (BootNs(ms * MS), Thresholds::default());
    let found = detect(told, now, &thresholds);
    let detection = &told.1.borrow().detection;
    let may_hold = may_hold(detection, told, now);
    let standing = Standing { may_hold: &may_hold, ..Standing::default() };
    let blind = blind(told, &thresholds);
    life.observe_with(now, &Calendar::default(), &found, &blind, &standing);
    life.open().filter_map(|record| record.finding.subject.ip).collect()
}

/// Facts at chosen times, in ms since the boot.
struct Case(Recorded);

impl Case {
    /// A node whose sources answer, with nothing on it.
    fn bare() -> Self {
        let mut case = Self(Recorded::default());
        let boot = Boot {
            boot_id: "boot".into(),
            node: "node".into(),
            kernel: String::new(),
            wall_offset: 0,
            host: HOST,
        };
        case.at(1, Observation::Boot(boot));
        for name in ["procfs", "netlink", "neighbours"] {
            case.source(name, SourceStatus::Active);
        }
        case
    }

    /// A pod with one process and one address on a veth.
    fn pod() -> Self {
        let mut case = Self::bare();
        case.address([10, 0, 0, 5]);
        case.at(2, Observation::Task(task(KEY, POD)));
        case
    }

    fn at(&mut self, ms: u64, what: Observation) {
        self.0.apply(&Fact { at: BootNs(ms * MS), origin: Origin::Probe, what });
    }

    fn source(&mut self, name: &str, status: SourceStatus) {
        self.at(
            1,
            Observation::Source(Source { name: name.into(), status, detail: String::new() }),
        );
    }

    fn address(&mut self, ip: [u8; 4]) {
        let local = Ipv4Addr::from(ip).into();
        let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
        let address = Address { key, scope: Some(0), flags: Some(0) };
        self.at(1, Observation::Address { netns: POD, address });
    }

    fn killed(&mut self, ms: u64) {
        let by = Sender { pid: 812, comm: "containerd-shim".into() };
        self.at(ms, Observation::Signalled { pid: 10, tid: 10, signal: 9, group: true, by });
    }

    fn look(&mut self, ms: u64, look: Look) {
        self.at(ms, Observation::Look { task: KEY, look: Box::new(look) });
    }

    /// The requests of the map at this time.
    fn wants(&mut self, ms: u64) -> Vec<Request> {
        self.0.agenda(BootNs(ms * MS), &Thresholds::default()).wants
    }

    fn found(&self) -> Vec<Candidate> {
        detect(&self.0, self.0.now(), &Thresholds::default())
    }
}

/// The remediation, as lines.
fn lines(found: &Candidate) -> String {
    let lines: Vec<String> = found.remediation.iter().map(crate::remedy::Step::line).collect();
    lines.join("\n")
}

fn task(key: TaskKey, netns: NetnsRef) -> Task {
    let comm = "java".into();
    Task { key, netns, comm, parent: None, exiting: false, killed: false, state: None, idle: None }
}

/// Hanging in exit without a pending signal, like `exit(0)` in a FUSE flush.
fn hanging() -> Look {
    Look {
        netns: Some(Presence::In(POD)),
        comm: "java".into(),
        state: 'S',
        flags: PF_EXITING,
        wchan: Some("request_wait_answer".into()),
        stack: vec!["request_wait_answer".into(), "fuse_flush".into(), "do_exit".into()],
        frozen: Some(false),
        ..Look::default()
    }
}

#[test]
fn one_that_hangs_past_its_grace_is_found_with_its_proof() {
    let mut case = Case::pod();
    case.killed(1_000);
    case.at(1_001, Observation::TaskExiting { task: KEY });
    case.look(6_100, Look { shared_pending: SIGKILL, ..hanging() });
    let [found] = case.found().try_into().unwrap();
    assert_eq!((found.code, found.since), (Code::IpHeldByStuckProcess, BootNs(1_000 * MS)));
    assert_eq!(found.subject.ip, Some(Ipv4Addr::new(10, 0, 0, 5).into()));
    assert_eq!((found.holders[0].pid, found.holders[0].exiting), (Some(10), Some(true)));
    let proof: Vec<&str> = found.evidence.iter().map(|item| item.text.as_str()).collect();
    let proof = proof.join("\n");
    for part in
        ["pid 812 (containerd-shim)", "PF_EXITING", "request_wait_answer", "0000000000000100"]
    {
        assert!(proof.contains(part), "{part} is not in\n{proof}");
    }
    assert!(lines(&found).contains("grep -r --include=waiting"), "{}", lines(&found));
}

/// A look at a process whose `stat` another reader waits for.
fn silent(since: u64) -> Look {
    let file = "/proc/10/stat".to_owned();
    let unanswered = Some(crate::fact::Unanswered { file, since: BootNs(since * MS) });
    Look { netns: Some(Presence::In(POD)), unanswered, ..Look::default() }
}

#[test]
fn one_whose_files_do_not_answer_is_found_after_its_grace() {
    let mut case = Case::pod();
    case.look(3_000, silent(1_000));
    assert!(case.found().is_empty(), "not yet");
    case.look(5_900, silent(1_000));
    assert!(case.found().is_empty(), "not yet");
    case.look(6_100, silent(1_000));
    let [found] = case.found().try_into().unwrap();
    assert_eq!((found.code, found.since), (Code::IpHeldByStuckProcess, BootNs(1_000 * MS)));
    assert_eq!(found.holders[0].pid, Some(10));
    let proof: Vec<&str> = found.evidence.iter().map(|item| item.text.as_str()).collect();
    let proof = proof.join("\n");
    assert!(proof.contains("/proc/10/stat has not answered for 5 s"), "{proof}");
    assert!(!lines(&found).contains("/proc/10"), "it would hang: {}", lines(&found));
    // Nothing was killed: when its files can be read again it is a normal process.
    case.look(8_000, Look { flags: 0, ..hanging() });
    assert!(case.found().is_empty());
    let looks = |want: &Request| matches!(want, Request::Look { .. });
    assert!(!case.wants(60_000).iter().any(looks), "nobody looks any more");
}

#[test]
fn what_does_not_answer_is_looked_at_twice() {
    let mut case = Case::pod();
    case.at(1_000, Observation::ProcessDoubted { pid: 10 });
    let look = Request::Look { task: KEY };
    assert!(case.wants(1_000).contains(&look), "at once");
    case.look(3_000, silent(1_000));
    assert!(case.wants(6_100).contains(&look), "after its grace");
    case.look(6_100, silent(1_000));
    assert!(case.wants(6_700).contains(&look), "and for certainty");
}

/// Only reading its stack waits for the lock.
#[test]
fn one_without_its_stack_is_judged_by_the_rest() {
    let file = "/proc/10/stack".to_owned();
    let unanswered = Some(crate::fact::Unanswered { file, since: BootNs(1_500 * MS) });
    let look = Look { stack: Vec::new(), wchan: None, unanswered, ..hanging() };
    let mut case = Case::pod();
    case.look(6_100, Look { flags: 0, ..look.clone() });
    assert!(case.found().is_empty(), "it is not on its way out");
    case.killed(1_000);
    case.look(6_200, Look { flags: 0, shared_pending: SIGKILL, ..look });
    let [found] = case.found().try_into().unwrap();
    let proof: Vec<&str> = found.evidence.iter().map(|item| item.text.as_str()).collect();
    assert!(proof.join("\n").contains("/proc/10/stack does not answer"), "{proof:?}");
    assert!(!lines(&found).contains("/proc/10"), "it would hang: {}", lines(&found));
}

#[test]
fn any_state_will_do_and_pending_is_enough() {
    let looks = [
        hanging(),
        Look { flags: 0, state: 'D', sig_pending: SIGKILL, ..hanging() },
        Look { flags: 0, state: 'S', shared_pending: SIGKILL, ..hanging() },
    ];
    for look in looks {
        let mut case = Case::pod();
        case.at(1_000, Observation::TaskExiting { task: KEY });
        case.look(6_100, look.clone());
        assert_eq!(case.found().len(), 1, "{look:?}");
    }
}

#[test]
fn one_that_gets_somewhere_is_slow_and_not_stuck() {
    let at = |cpu: u64, threads: u32| Look { cpu: Some(cpu), threads: Some(threads), ..hanging() };
    let running = Look { state: 'R', ..at(7, 5) };
    // The look before, the look at the end of its grace, and the result of the latter.
    let cases = [
        ("it runs", at(7, 5), running, Severity::Info),
        ("it used CPU time", at(7, 5), at(8, 5), Severity::Info),
        ("threads of it ended", at(7, 5), at(7, 4), Severity::Info),
        ("nothing moved", at(7, 5), at(7, 5), Severity::Warning),
        ("another has its number of threads", at(7, 5), at(7, 6), Severity::Warning),
    ];
    for (what, first, second, severity) in cases {
        let mut case = Case::pod().witnessed(5);
        case.at(1_000, Observation::TaskExiting { task: KEY });
        case.look(3_500, first);
        assert_eq!(case.found(), [], "{what}: within its grace");
        case.look(6_100, second.clone());
        let [found] = case.found().try_into().unwrap();
        assert_eq!(found.severity, severity, "{what}");
        let proof: Vec<&str> = found.evidence.iter().map(|item| item.text.as_str()).collect();
        let told = proof.iter().any(|text| text.contains("exiting for 5 s and is not stuck"));
        assert_eq!(told, severity == Severity::Info, "{what}: {proof:?}");
        // The grace begins again with the last progress.
        case.look(8_000, Look { state: 'D', ..second.clone() });
        assert_eq!(case.found()[0].severity, severity, "{what}: no grace has passed");
        case.look(11_200, Look { state: 'D', ..second });
        assert_eq!(
            case.found()[0].severity,
            Severity::Warning,
            "{what}: nothing moved for a grace"
        );
    }
}

/// Each look: the limits of the cgroup and of the one above, in thousandths, and how often they were exhausted.
fn limited(looks: &[(u64, &[(u32, u64)])]) -> Candidate {
    let mut case = Case::pod();
    case.at(1_000, Observation::TaskExiting { task: KEY });
    for (at, limits) in looks {
        let limit = |(thousandths, exhausted): &(u32, u64)| crate::fact::CpuLimit {
            thousandths: *thousandths,
            exhausted: *exhausted,
        };
        let cpu_limits = limits.iter().map(limit).collect();
        case.look(*at, Look { state: 'R', cpu_limits, ..hanging() });
    }
    let [found] = case.found().try_into().unwrap();
    found
}

#[test]
fn a_cpu_limit_that_slows_it_down_is_told() {
    let says = |looks: &[(u64, &[(u32, u64)])]| {
        let found = limited(looks);
        let proof: String = found.evidence.iter().map(|item| item.text.as_str()).collect();
        [proof, found.impact.to_string(), found.remediation[0].line()]
    };
    let all = |said: &[String; 3], words: &str| said.iter().all(|text| text.contains(words));
    let silent = |said: [String; 3]| said.iter().all(|text| !text.contains("hrottled"));
    for (limit, words) in [(50, " 0.05 CPU"), (1_500, " 1.5 CPU"), (2_000, " 2 CPU")] {
        let said = says(&[(3_600, &[(limit, 7)]), (6_100, &[(limit, 8)])]);
        assert!(all(&said, words), "{said:?}");
    }
    assert!(silent(says(&[(3_600, &[]), (6_100, &[])])));
    assert!(silent(says(&[(3_600, &[(50, 7)]), (6_100, &[(50, 7)])])), "it was, long ago");
    // The lower one was exhausted once, the one above is now.
    let said = says(&[(3_600, &[(50, 1), (500, 7)]), (6_100, &[(50, 1), (500, 8)])]);
    assert!(all(&said, " 0.5 CPU"), "{said:?}");
    assert!(silent(says(&[(3_600, &[(500, 1)]), (6_100, &[(50, 3), (500, 1)])])), "a new limit");
}

/// Looks may be closer together than the limit is exhausted.
#[test]
fn what_is_said_of_a_cpu_limit_does_not_change_from_look_to_look() {
    let mut looks: Vec<(u64, &[(u32, u64)])> = vec![(3_600, &[(50, 7)]), (6_100, &[(50, 8)])];
    let first = limited(&looks);
    looks.push((7_100, &[(50, 8)]));
    let second = limited(&looks);
    assert_eq!(first.impact.as_str(), second.impact.as_str());
    assert_eq!(first.remediation, second.remediation);
    looks.push((11_200, &[(50, 8)]));
    assert_ne!(first.remediation, limited(&looks).remediation, "a grace ago");
}

/// Thousands of threads that exit slowly are some holders and a number.
#[test]
fn of_a_process_with_thousands_of_threads_some_are_listed() {
    let mut case = Case::pod().witnessed(5);
    case.0.1.borrow_mut().steps = Steps::Asked;
    let thread = |n: u32| TaskKey { tid: 10 + n, start: 100, ..KEY };
    for n in 1..3_100 {
        case.at(900, Observation::Task(task(thread(n), POD)));
    }
    case.killed(1_000);
    for n in 0..3_100 {
        let look = Look { shared_pending: SIGKILL, ..hanging() };
        // Only the last one says what it hangs in.
        let look = if n == 3_099 { look } else { Look { stack: vec![], wchan: None, ..look } };
        case.at(6_100, Observation::Look { task: thread(n), look: Box::new(look) });
    }
    let [found] = case.found().try_into().unwrap();
    assert_eq!((found.holders.len(), found.holders[0].more_threads), (32, Some(3_068)));
    assert!(found.evidence.len() < 200, "{}", found.evidence.len());
    let told = |words: &str| found.evidence.iter().any(|item| item.text.contains(words));
    assert!(told("the same is true of 3068 more threads") && told("fuse_flush"));
    assert!(lines(&found).contains("fuse"), "{}", lines(&found));
    // Of the netns, too.
    let netns = case.0.find(&POD).unwrap();
    let views = case.0.holder_views(netns);
    assert_eq!((views.len(), views[0].more_threads), (32, Some(3_068)));
    assert_eq!(crate::contract::holders_in_short(&views).unwrap(), "pid 10 java and 3099 more");
}

#[test]
fn a_core_that_is_still_written_is_slow_and_not_stuck() {
    let dump = |written: u64| Look { core_dumping: true, written: Some(written), ..hanging() };
    let mut case = Case::pod().witnessed(5);
    case.at(1_000, Observation::TaskExiting { task: KEY });
    case.look(300_000, dump(1_000));
    assert_eq!(case.found(), [], "within its grace");
    case.look(700_000, dump(2_000));
    let [found] = case.found().try_into().unwrap();
    assert_eq!(found.severity, Severity::Info);
    let proof: String = found.evidence.iter().map(|item| item.text.as_str()).collect();
    assert!(proof.contains("exiting for 699 s") && proof.contains("core was still"), "{proof}");
    assert!(lines(&found).contains("once its core is written"), "{}", lines(&found));
    case.look(1_200_000, dump(2_000));
    assert_eq!(case.found()[0].severity, Severity::Info, "less than a grace ago");
    case.look(1_300_100, dump(2_000));
    assert_eq!(case.found()[0].severity, Severity::Warning, "nobody reads it any more");
}

#[test]
fn a_thread_that_waits_for_one_that_advances_is_slow_as_well() {
    let other = TaskKey { tid: 11, start: 101, ..KEY };
    let asleep = |stack: &[&str]| Look {
        state: 'D',
        stack: stack.iter().map(|frame| (*frame).to_owned()).collect(),
        wchan: None,
        ..hanging()
    };
    let running = || Look { state: 'R', ..hanging() };
    let fuse = || hanging();
    let lock = || asleep(&["rwsem_down_read_slowpath", "down_read", "exit_mm", "do_exit"]);
    let core = || asleep(&["do_exit", "do_group_exit"]);
    let cases = [
        ("the lock of its memory", running(), lock(), Severity::Info),
        ("its core", running(), core(), Severity::Info),
        ("a lock, and nothing moves", fuse(), lock(), Severity::Warning),
        ("a server, whatever the others do", running(), fuse(), Severity::Warning),
        ("a mutex of anybody", running(), asleep(&["mutex_lock", "do_exit"]), Severity::Warning),
        ("an unreadable stack", running(), asleep(&[]), Severity::Warning),
    ];
    for (what, first, second, severity) in cases {
        let mut case = Case::pod().witnessed(5);
        case.at(900, Observation::Task(task(other, POD)));
        case.killed(1_000);
        case.look(6_100, first);
        case.at(6_100, Observation::Look { task: other, look: Box::new(second) });
        let [found] = case.found().try_into().unwrap();
        assert_eq!(found.severity, severity, "{what}: {found:#?}");
    }
}

/// Any user can hang in a netns of a user namespace, and assign it any IP; and what hangs in a netns that root made by
/// hand affects no pod.
#[test]
fn a_process_that_no_pod_has_is_information_unless_a_witness_says_more() {
    let severity = |slice: &str, reserved: bool| {
        let mut case = Case::pod();
        case.at(3, Observation::Cgroup { task: KEY, path: format!("/{slice}/session-1.scope") });
        if reserved {
            case = case.witnessed(5);
        }
        case.wants(4);
        case.killed(1_000);
        case.look(6_100, hanging());
        let found = case.found().remove(0);
        let is_pods = found.severity != Severity::Info;
        let steps =
            found.remediation.iter().map(|step| step.line().to_string()).collect::<Vec<_>>();
        assert_eq!(steps.iter().any(|step| step.contains("cordon")), is_pods, "{steps:#?}");
        assert_eq!(found.impact.as_str().contains("next pod"), is_pods, "{}", found.impact);
        found.severity
    };
    assert_eq!(severity("user.slice/user-1000.slice", false), Severity::Info);
    assert_eq!(severity("user.slice/user-1000.slice", true), Severity::Warning);
    assert_eq!(severity("user.slice/user-0.slice", false), Severity::Info, "root's");
    assert_eq!(severity("system.slice", false), Severity::Info);
    assert_eq!(severity("system.slice", true), Severity::Warning);
    let docker = format!("system.slice/docker-{}.scope", "d".repeat(64));
    assert_eq!(severity(&docker, false), Severity::Warning, "a runtime's, which is not asked");
}

#[test]
fn a_thread_that_hangs_is_told_whatever_others_of_its_process_do() {
    let mut case = Case::pod().witnessed(5);
    let other = TaskKey { tid: 11, start: 101, ..KEY };
    case.at(900, Observation::Task(task(other, POD)));
    case.killed(1_000);
    case.at(1_001, Observation::TaskExiting { task: other });
    case.look(6_100, Look { shared_pending: SIGKILL, ..hanging() });
    case.at(
        6_100,
        Observation::Look { task: other, look: Box::new(Look { state: 'R', ..hanging() }) },
    );
    let [found] = case.found().try_into().unwrap();
    assert_eq!(found.severity, Severity::Warning);
    assert_eq!(found.holders.len(), 1, "the one that hangs");
}

#[test]
fn progress_is_looked_for_halfway() {
    let mut case = Case::pod();
    case.at(1_000, Observation::TaskExiting { task: KEY });
    let look = Request::Look { task: KEY };
    assert!(case.wants(3_600).contains(&look), "halfway");
    case.look(3_600, hanging());
    assert!(!case.wants(5_900).contains(&look));
    assert!(case.wants(6_100).contains(&look), "at the end of its grace");
}

#[test]
fn the_innocent_are_left_alone() {
    let innocents = [
        ("frozen", Look { frozen: Some(true), state: 'D', shared_pending: SIGKILL, ..hanging() }),
        ("perhaps frozen", Look { frozen: None, ..hanging() }),
        ("dumping core", Look { core_dumping: true, ..hanging() }),
        (
            "a vfork parent",
            Look { flags: 0, state: 'D', wchan: Some("kernel_clone".into()), ..hanging() },
        ),
        ("stopped", Look { flags: 0, state: 'T', ..hanging() }),
        ("busy", Look { flags: 0, state: 'R', wchan: None, ..hanging() }),
        ("not known to hold", Look { netns: None, ..hanging() }),
    ];
    for (what, look) in innocents {
        let mut case = Case::pod();
        case.at(1_000, Observation::TaskExiting { task: KEY });
        case.look(6_100, look);
        assert_eq!(case.found(), [], "{what}");
    }
}

#[test]
fn grace_and_release_count() {
    let mut case = Case::pod();
    case.at(1_000, Observation::TaskExiting { task: KEY });
    case.look(5_900, hanging());
    assert_eq!(case.found(), [], "within its grace");
    case.look(6_100, hanging());
    assert_eq!(case.found().len(), 1);
    case.at(6_200, Observation::TaskReleased { task: KEY });
    assert_eq!(case.found(), [], "it got out");
}

#[test]
fn a_core_dump_that_takes_too_long_is_a_cause() {
    let mut case = Case::pod();
    case.at(1_000, Observation::TaskExiting { task: KEY });
    case.look(700_000, Look { core_dumping: true, ..hanging() });
    let [found] = case.found().try_into().unwrap();
    assert!(found.evidence.iter().any(|item| item.text.contains("core is being dumped")));
}

#[test]
fn without_an_ip_that_others_could_get_there_is_nothing_to_say() {
    let mut case = Case::pod();
    let key = |ip: [u8; 4]| AddressKey {
        ifindex: 2,
        local: Ipv4Addr::from(ip).into(),
        prefix_len: 24,
        peer: None,
    };
    case.at(3, Observation::AddressGone { netns: POD, key: key([10, 0, 0, 5]) });
    case.address([169, 254, 0, 5]);
    case.at(1_000, Observation::TaskExiting { task: KEY });
    case.look(6_100, hanging());
    assert_eq!(case.found(), [], "link-local only");
    // An address on the loopback device concerns nobody else.
    case.address([10, 0, 0, 6]);
    let link = Link { ifindex: 2, name: "lo".into(), up: true, loopback: true, ..Link::default() };
    assert_eq!(case.found().len(), 1);
    case.at(4, Observation::Link { netns: POD, link });
    assert_eq!(case.found(), []);
}

#[test]
fn threads_of_one_process_are_one_finding() {
    let mut case = Case::pod();
    let other = TaskKey { tid: 11, start: 101, ..KEY };
    case.at(900, Observation::Task(task(other, POD)));
    case.killed(1_000);
    case.look(6_100, hanging());
    case.at(6_100, Observation::Look { task: other, look: Box::new(hanging()) });
    let [found] = case.found().try_into().unwrap();
    assert_eq!(found.holders.len(), 2);
    assert_eq!(found.holders[1].tid, Some(11));
}

#[test]
fn a_source_that_is_down_blinds_its_detectors() {
    let mut case = Case::pod();
    let blind = |case: &Case| blind(&case.0, &Thresholds::default());
    assert!(blind(&case).is_empty());
    case.source("procfs", SourceStatus::Down);
    assert!(blind(&case).contains(&Code::IpHeldByStuckProcess));
    case.source("procfs", SourceStatus::Degraded);
    assert!(blind(&case).is_empty());
}

#[test]
fn what_hung_before_the_start_is_not_judged_before_its_grace() {
    let mut case = Case::pod();
    let hanging_since_long = TaskKey { pid: 20, tid: 20, start: 5 };
    let what = Observation::Task(Task { exiting: true, ..task(hanging_since_long, POD) });
    case.0.apply(&Fact { at: BootNs(1_000 * MS), origin: Origin::Snapshot, what });
    let blind = |case: &Case| !blind(&case.0, &Thresholds::default()).is_empty();
    assert!(blind(&case));
    let mut look = |ms, look| {
        case.at(ms, Observation::Look { task: hanging_since_long, look: Box::new(look) });
        blind(&case)
    };
    assert!(look(2_000, hanging()));
    assert!(look(6_100, Look { core_dumping: true, ..hanging() }));
    assert!(!look(6_600, hanging()));
}

#[test]
fn a_first_look_at_a_second_thread_is_no_second_look() {
    let mut case = Case::pod();
    let other = TaskKey { tid: 11, start: 101, ..KEY };
    case.at(900, Observation::Task(task(other, POD)));
    case.killed(1_000);
    case.look(6_100, hanging());
    let [first] = case.found().try_into().unwrap();
    case.at(6_101, Observation::Look { task: other, look: Box::new(hanging()) });
    let [second] = case.found().try_into().unwrap();
    assert_eq!((first.observed, &first.key), (second.observed, &second.key));
    case.at(6_200, Observation::TaskReleased { task: KEY });
    let [third] = case.found().try_into().unwrap();
    assert_eq!(third.key, first.key, "one thread got out, the process did not");
}

#[test]
fn a_look_that_could_not_tell_changes_nothing() {
    let mut case = Case::pod();
    case.at(1_000, Observation::TaskExiting { task: KEY });
    case.look(6_100, hanging());
    case.look(6_600, Look { frozen: None, ..hanging() });
    case.look(7_100, Look { netns: None, ..hanging() });
    assert_eq!(case.found().len(), 1);
}

#[test]
fn what_needs_its_past_is_waited_for_after_a_restart() {
    const SEC: u64 = 1_000 * MS;
    let thresholds = Thresholds::default();
    for code in [Code::IpamStoreUnreadable, Code::NetnsLeaked] {
        assert!(patient(60 * SEC, &thresholds).contains(&code), "{code}");
        assert!(!patient(430 * SEC, &thresholds).contains(&code), "{code}");
    }
    for code in [Code::SandboxCrashLoop, Code::IpamRangeExhausting] {
        assert!(patient(LOOP_WINDOW, &thresholds).contains(&code), "{code}");
    }
    assert_eq!(patient(LOOP_WINDOW + 60 * SEC, &thresholds), []);
}

/// The needs of each code: a row of `codes` that loses a need fails here.
#[test]
fn each_code_waits_for_the_sources_that_it_needs() {
    let mut case = Case::bare();
    let ended = |scope| Observation::Ended { scope, began: BootNs(MS), complete: true };
    for name in ["containerd", "host-local"] {
        case.source(name, SourceStatus::Active);
    }
    case.at(2, ended(Scope::Runtime { runtime: "containerd".into() }));
    case.at(2, ended(Scope::Reservations { store: "host-local".into() }));
    let mut without = |source: &str| -> Vec<&str> {
        let blind = |case: &Case| blind(&case.0, &Thresholds::default());
        assert_eq!(blind(&case), BTreeSet::new());
        case.source(source, SourceStatus::Down);
        let found = blind(&case);
        case.source(source, SourceStatus::Active);
        found.into_iter().map(Code::as_str).collect()
    };
    let sandboxes = [
        "ip-held-by-dead-sandbox",
        "ip-held-by-deleted-pod",
        "device-held-by-dead-sandbox",
        "netns-leaked",
    ];
    let mut procfs = vec!["ip-held-by-stuck-process"];
    procfs.extend(sandboxes);
    procfs.extend(["netns-teardown-stuck", "mount-leak-blocks-removal", "sandbox-crash-loop"]);
    assert_eq!(without("procfs"), procfs);
    let all = Code::ALL.iter().map(|code| code.as_str());
    let but: Vec<&str> = all.filter(|name| *name != "netns-teardown-stuck").collect();
    assert_eq!(without("netlink"), but);
    let neighbours = ["neighbour-conflict", "neighbour-failed", "gateway-neighbour-lost"];
    assert_eq!(without("neighbours"), neighbours);
    let mut runtimes = sandboxes.to_vec();
    runtimes.extend([
        "mount-leak-blocks-removal",
        "sandbox-crash-loop",
        "ipam-reservation-leaked",
        "cni-del-hits-successor",
        "cni-del-failing",
        "endpoint-missing",
    ]);
    assert_eq!(without("containerd"), runtimes);
    let stores = [
        "ip-released-but-held",
        "ip-conflict-imminent",
        "ipam-reservation-leaked",
        "ipam-range-exhausting",
        "ipam-store-unreadable",
        "cni-del-hits-successor",
        "cni-del-failing",
    ];
    assert_eq!(without("host-local"), stores);
}
