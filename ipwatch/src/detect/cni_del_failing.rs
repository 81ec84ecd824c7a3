//! `cni-del-failing`: DEL of one sandbox fails again and again, or was never called although the sandbox is dead. Until
//! a DEL succeeds, the IP stays reserved.
//!
//! Two simultaneous DELs that both fail count as one failure (`map/workload/calls.rs`). If nothing of the sandbox is
//! left, failures count only if they continue for [`LONG`].

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::contract;
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{CallHistory, Kinds, NodeMap, SandboxVerdict, Thresholds, is_freed_by_cni};
use crate::remedy::{Command, Step, Text, said, text, value};

/// Failures over this period count even if nothing of the sandbox is known to be left, in ns.
const LONG: u64 = 60_000_000_000;
/// A history without a DEL for this long has ended: DELs are repeated more often than that.
const STALE: u64 = 3_600_000_000_000;

pub(super) const DETECTOR: Detector = Detector::Whole {
    on: Kinds::NONE,
    beyond: Kinds::CALLS.and(Kinds::RUNTIMES).and(Kinds::IPAM).and(Kinds::NETNS),
    detect,
};

fn detect(map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> Judged {
    let failing = map.failing_dels().filter_map(|(id, history)| failing(map, id, history, now));
    let found: Vec<Candidate> = failing.chain(missing(map, now, thresholds)).collect();
    let old = map.all_dead().filter_map(|entry| Some(entry.dead?.plus(thresholds.leak_age)));
    let again = match Again::always_if(!found.is_empty() || map.failing_dels().next().is_some()) {
        Again::OnChange => Again::at(old.filter(|old| *old > now).min()),
        always => always,
    };
    (found, again)
}

fn failing(map: &NodeMap, id: &str, history: &CallHistory, now: BootNs) -> Option<Candidate> {
    // The plugin that fails; another plugin of the network may succeed meanwhile.
    let worst = history.plugins.iter().max_by_key(|(_, went)| went.failures);
    let (plugin, went) = worst.filter(|(_, went)| went.failures >= 2)?;
    let (first, last, status) = went.failed?;
    let left = is_left(map, id);
    if (!left && last.since(first) < LONG) || now.since(last) > STALE {
        return None;
    }
    let mut proof = Proof::new(map);
    let status = status.map_or("a signal".to_owned(), |status| format!("status {status}"));
    let text = format!(
        "{} DEL for {} failed {} times in a row, the last time with {status}",
        said(plugin),
        said(evidence::short(id)),
        went.failures
    );
    proof.tell(By::Probe, last, text);
    proof.tell(By::Probe, first, "the first of these DELs failed");
    if let Some((command, text, at)) = &history.error {
        proof.tell(By::RuntimeLog, *at, format!("{}: {}", command.as_str(), said(text)));
    }
    let what = text!("CNI DEL of {} fails again and again", value(evidence::short(id)));
    candidate(map, id, history.pod.as_ref(), proof, &what, (first, last))
}

/// Sandboxes that have been dead for long, with a reserved IP, for which no DEL was ever called.
fn missing(map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> Vec<Candidate> {
    let Some(seen) = map.calls_seen_since() else { return Vec::new() };
    let dead = map.all_dead().filter_map(|entry| Some((entry, entry.dead?)));
    let quiet = dead.filter(|(entry, dead)| {
        !entry.preexisting
            && !entry.sandbox.host_network
            && *dead > seen
            && now.since(*dead) >= thresholds.leak_age
            && matches!(map.verdict_on(&entry.sandbox.id), SandboxVerdict::Dead(_))
            && map.call_history(&entry.sandbox.id).is_none_or(|known| known.del.first.is_none())
            && map.reservations_for(&entry.sandbox.id).any(|entry| is_freed_by_cni(&entry.store))
    });
    let found = quiet.filter_map(|(entry, dead)| {
        let id = &entry.sandbox.id;
        let mut proof = Proof::new(map);
        proof.runtime(entry);
        let short = said(evidence::short(id));
        let text = format!(
            "no DEL has been run for {short} since then, and every run of a plugin is observed"
        );
        proof.tell(By::Probe, dead, text);
        let what = text!("CNI DEL of {} was never run", value(evidence::short(id)));
        candidate(map, id, entry.sandbox.pod.as_ref(), proof, &what, (dead, now))
    });
    found.collect()
}

fn is_left(map: &NodeMap, id: &str) -> bool {
    map.reservations_for(id).next().is_some() || map.netns_of_sandbox(id).is_some()
}

fn candidate(
    map: &NodeMap,
    id: &str,
    pod: Option<&crate::fact::PodName>,
    mut proof: Proof<'_>,
    what: &Text,
    (since, observed): (BootNs, BootNs),
) -> Option<Candidate> {
    let reservation = map.reservations_for(id).next();
    if let Some(entry) = reservation {
        let text = format!(
            "{} still reserves {} for it: {}",
            said(&entry.store),
            entry.ip,
            said(&entry.key)
        );
        proof.tell(By::Named(&entry.store), entry.told, text);
    }
    let netns = map.netns_of_sandbox(id);
    let (container, told) = map.sandbox_told(id).unwrap_or_default();
    let ip = reservation.map(|entry| entry.ip);
    let kept = ip.map_or_else(|| text!("its network stays"), |ip| text!("{} stays reserved", ip));
    let key = format!("{}/{id}", map.boot()?.boot_id);
    let remediation = remediation(map, id, evidence::is_found(Code::CniDelFailing, &key));
    Some(Candidate {
        code: Code::CniDelFailing,
        key,
        severity: Severity::Warning,
        subject: Subject {
            ip,
            netns: netns.map(|netns| map.netns_view(netns)),
            container: container.or_else(|| {
                Some(contract::Container { id: Some(id.to_owned()), ..Default::default() })
            }),
            pod: told.or_else(|| {
                pod.map(|pod| contract::Pod {
                    namespace: Some(pod.namespace.clone()),
                    name: Some(pod.name.clone()),
                    uid: pod.uid.clone(),
                    ..Default::default()
                })
            }),
            network: reservation.map(|entry| entry.network.to_string()),
            ..Subject::default()
        },
        holders: Vec::new(),
        evidence: proof.done(),
        since,
        observed,
        impact: text!("{}: {}, and the pod cannot be removed.", what, kept),
        remediation,
        caused_by: None,
        preexisting: false,
    })
}

/// Removing the sandbox runs DEL, and ends the pod if it still runs: a command only where the runtime has said that it
/// does not.
fn again(map: &NodeMap, id: &str, is_found: Command) -> Step {
    match map.verdict_on(id) {
        SandboxVerdict::Dead(_) => evidence::remove_sandbox(
            map,
            text!("Once the cause is fixed, run DEL again"),
            is_found,
            id,
        ),
        _ => Step::advice(text!(
            "Once the cause is fixed, the runtime runs DEL again when its sandbox is removed. Remove it by hand only if \
             the runtime says that it is NotReady: ipwatch explain cni-del-failing has the command."
        )),
    }
}

fn remediation(map: &NodeMap, id: &str, is_found: Command) -> Vec<Step> {
    let log = [
        "--since",
        "-1h",
        "-u",
        "containerd",
        "-u",
        "crio",
        "-u",
        "kubelet",
        "-g",
        "failed [(]delete[)]",
    ];
    vec![
        Step::look(text!("Read the plugin's error"), Command::new("journalctl").owns(&log)),
        again(map, id, is_found),
        Step::never(&text!("force-remove the sandbox; DEL is then never run for it")),
    ]
}
