//! `sandbox-crash-loop`: sandboxes of one pod are recreated again and again. Each may take an IP with it, and then this
//! is why the range runs out; or none gets an IP, and then the range is empty or the plugin fails. Neither finding is
//! folded under the other: the two are listed separately.

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::contract;
use crate::fact::{BootNs, PodName};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{Attempt, Kinds, LOOP_WINDOW, Loop, NodeMap, Thresholds};
use crate::remedy::{Command, Step, said, text, value};

/// Number of sandboxes of one pod within the window that are a loop. kubelet makes a second one when a runtime or a
/// node restarts, and a third when that takes a while.
const ATTEMPTS: usize = 5;

pub(super) const DETECTOR: Detector =
    Detector::Whole { on: Kinds::RUNTIMES, beyond: Kinds::NONE, detect };

fn detect(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> Judged {
    let found = map.loops().filter_map(|pod| candidate(map, pod, now)).collect();
    let attempts = map.loops().flat_map(|pod| &pod.attempts);
    let over = attempts.map(|attempt| attempt.made.plus(LOOP_WINDOW).plus(1));
    (found, Again::at(over.filter(|over| *over > now).min()))
}

fn candidate(map: &NodeMap, pod: &Loop, now: BootNs) -> Option<Candidate> {
    let lately: Vec<&Attempt> =
        pod.attempts.iter().filter(|attempt| now.since(attempt.made) <= LOOP_WINDOW).collect();
    if lately.len() < ATTEMPTS || !map.runtime_answers(&pod.runtime) {
        return None;
    }
    let (first, last) = (lately.first()?, lately.last()?);
    let boot = map.boot()?;
    let ips: Vec<String> =
        lately.iter().flat_map(|attempt| ips_of(map, &attempt.sandbox)).collect();
    let span = last.made.since(first.made) / 1_000_000_000;
    let each = span / (lately.len() as u64 - 1).max(1);
    let name = format!("{}/{}", pod.pod.namespace, pod.pod.name);
    let mut proof = Proof::new(map);
    for attempt in &lately {
        let number = attempt.number.map(|n| format!(" (attempt {n})")).unwrap_or_default();
        let ips = ips_of(map, &attempt.sandbox);
        let ips = if ips.is_empty() { "no IP of it is known".to_owned() } else { ips.join(", ") };
        let id = said(evidence::short(&attempt.sandbox));
        proof.tell(
            By::Named(&pod.runtime),
            attempt.made,
            format!("sandbox {id}{number} was created: {ips}"),
        );
    }
    let impact = if ips.is_empty() {
        text!(
            "No sandbox of pod {} lasts, and none gets an IP: either the range is full, or the CNI plugin fails before it \
             assigns one.",
            value(&name)
        )
    } else {
        text!(
            "Each new sandbox of pod {} takes an IP ({} so far). If the earlier ones do not release theirs, the \
             range runs out.",
            value(&name),
            ips.len()
        )
    };
    let (container, told) = map.sandbox_told(&last.sandbox).unwrap_or_default();
    Some(Candidate {
        code: Code::SandboxCrashLoop,
        key: format!("{}/{}/{}", boot.boot_id, name, pod.pod.uid.as_deref().unwrap_or_default()),
        severity: Severity::Warning,
        subject: Subject {
            container,
            pod: told.or_else(|| {
                Some(contract::Pod {
                    namespace: Some(pod.pod.namespace.clone()),
                    name: Some(pod.pod.name.clone()),
                    uid: pod.pod.uid.clone(),
                    attempt: last.number,
                    state: None,
                })
            }),
            ..Subject::default()
        },
        holders: Vec::new(),
        evidence: proof.done(),
        since: first.made,
        observed: map.last_listed(&pod.runtime)?,
        impact: text!("{} A new one every {} s.", impact, each),
        remediation: remediation(&pod.pod),
        caused_by: None,
        preexisting: false,
    })
}

/// The IPs of a sandbox, as reported by its runtime.
fn ips_of(map: &NodeMap, sandbox: &str) -> Vec<String> {
    let told = map.sandbox(sandbox).map(|entry| entry.sandbox.ips.clone()).unwrap_or_default();
    told.iter().map(ToString::to_string).collect()
}

fn remediation(pod: &PodName) -> Vec<Step> {
    let describe = Command::new("kubectl").owns(&["describe", "pod", "-n"]);
    let log = ["--since", "-1h", "-u", "containerd", "-u", "crio", "-g", "RunPodSandbox"];
    vec![
        Step::look(
            text!("Its events say why a sandbox fails"),
            describe.value(&pod.namespace).value(&pod.name),
        ),
        Step::look(
            text!("The runtime's log says what the CNI plugin answered"),
            Command::new("journalctl").owns(&log),
        ),
        Step::never(&text!("delete the pod again and again; each new one takes another IP")),
    ]
}
