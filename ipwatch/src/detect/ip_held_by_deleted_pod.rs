//! `ip-held-by-deleted-pod`: the API server has deleted a pod, usually by force, while its sandbox and its netns with
//! an IP are still on this node.
//!
//! Only an API server and a runtime that answer can show this, and the runtime must have confirmed it after the pod's
//! grace period and ours. A sandbox that its runtime has forgotten is another finding.
//!
//! If the API server is not queried, the kubelet reports which pods it is to run: a pod that it is no longer to run
//! counts as deleted. That the kubelet still has a pod proves nothing about the API server, and is never reported.

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged, Listed, Subject};
use crate::contract::Holder;
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Evidence, Severity};
use crate::map::{DeletedPod, Kinds, NodeMap, Thresholds};
use crate::remedy::{self, Command, Step, said, text};

pub(super) const DETECTOR: Detector = Detector::Each {
    listed_on: Kinds::NONE,
    listed_beyond: Kinds::NETNS.and(Kinds::RUNTIMES).and(Kinds::PODS),
    list,
    beyond: Kinds::NETNS.and(Kinds::TASKS).and(Kinds::RUNTIMES).and(Kinds::PODS).and(Kinds::CALLS),
    judge,
};

fn list(map: &NodeMap, _now: BootNs, thresholds: &Thresholds) -> Listed {
    map.deleted_pods(thresholds).map(|deleted| deleted.netns.id.into()).collect::<Vec<_>>().into()
}

fn judge(map: &NodeMap, subject: &Subject, now: BootNs, thresholds: &Thresholds) -> Judged {
    let deleted = map.deleted_pod(subject.netns, thresholds);
    let found = deleted.and_then(|deleted| candidate(map, now, &deleted));
    // Which tasks have been there for long enough to be named changes with time.
    let next = found.as_ref().and_then(|_| map.next_resident(subject.netns, now));
    (found.into_iter().collect(), Again::at(next))
}

fn candidate(map: &NodeMap, now: BootNs, deleted: &DeletedPod<'_>) -> Option<Candidate> {
    let (netns, sandbox) = (deleted.netns, &deleted.sandbox.sandbox);
    let said = map.last_listed(&sandbox.runtime).filter(|said| *said >= deleted.from)?;
    let subject = evidence::subject(map, netns);
    let ip = subject.ip?;
    let boot = map.boot()?;
    let whose = evidence::owner(subject.pod.as_ref(), subject.container.as_ref(), text!("the pod"));
    let holders = map.resident_views(netns.id, now);
    let own = |holder: &&Holder| holder.mount_path.is_none() && holder.fd.is_none();
    let pids: Vec<u32> = holders.iter().filter(own).filter_map(|holder| holder.pid).collect();
    let key = format!("{}/{}/{}", boot.boot_id, netns.identity, sandbox.id);
    let is_found = evidence::is_found(Code::IpHeldByDeletedPod, &key);
    Some(Candidate {
        code: Code::IpHeldByDeletedPod,
        key,
        severity: Severity::Warning,
        evidence: evidence(map, deleted, said, &pids),
        impact: text!(
            "{} is still up in the netns of {}, which {}. An IPAM plugin that follows the API server frees it, and \
             the next pod that is assigned {} shares it.",
            ip,
            whose,
            if map.kubelet_tells() {
                "the kubelet should no longer run"
            } else {
                "the API server has deleted"
            },
            ip
        ),
        remediation: remediation(map, deleted, &is_found),
        holders,
        subject,
        since: deleted.gone,
        observed: said,
        caused_by: None,
        preexisting: deleted.entry.is_none(),
    })
}

fn evidence(map: &NodeMap, deleted: &DeletedPod<'_>, said: BootNs, pids: &[u32]) -> Vec<Evidence> {
    let mut proof = Proof::new(map);
    if map.kubelet_tells() {
        proof.tell(By::Kubelet, deleted.gone, kubelets_verdict(deleted));
    } else {
        proof.tell(By::Kubernetes, deleted.gone, verdict(deleted));
    }
    proof.runtime(deleted.sandbox);
    if !pids.is_empty() {
        let some: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
        let more = if pids.len() > some.len() { ", …" } else { "" };
        let place = evidence::netns_text(deleted.netns);
        let held = format!("in {place}: pid {}{more}", some.join(", "));
        proof.tell(By::Procfs, said, held);
    }
    let ips = evidence::addresses(deleted.netns).join(", ");
    proof.tell(By::Netlink, said, format!("still up: {ips}"));
    proof.done()
}

/// The API server's report.
fn verdict(deleted: &DeletedPod<'_>) -> String {
    let Some(entry) = deleted.entry else {
        let uid = deleted.sandbox.sandbox.pod.as_ref().and_then(|pod| pod.uid.as_deref());
        return format!("it has no pod with uid {} on this node", said(uid.unwrap_or_default()));
    };
    let pod = &entry.pod;
    let how = match (pod.deletion.and_then(evidence::date), pod.grace) {
        // An API server reports the deletion first, also a forced one (1.20). This is also the last report of the
        // kubelet's own deletion, after the pod has ended.
        (Some(date), Some(0)) => {
            format!(", due by {date} without a grace period: usually a forced deletion")
        }
        (Some(date), _) => format!("; it was due to end by {date}"),
        (None, _) => ", without having been asked to terminate: a forced deletion".to_owned(),
    };
    let phase =
        pod.phase.as_ref().map(|phase| format!(", {} before", said(phase))).unwrap_or_default();
    let name = said(&format!("{}/{}", pod.namespace, pod.name));
    format!("pod {name} (uid {}) is deleted{phase}{how}", said(&pod.uid))
}

/// The kubelet's report. It does not tell why the pod is gone: the file of a static pod may have been removed.
fn kubelets_verdict(deleted: &DeletedPod<'_>) -> String {
    let Some(entry) = deleted.entry else {
        let uid = deleted.sandbox.sandbox.pod.as_ref().and_then(|pod| pod.uid.as_deref());
        return format!("it should run no pod with uid {}", said(uid.unwrap_or_default()));
    };
    let pod = &entry.pod;
    let phase =
        pod.phase.as_ref().map(|phase| format!(", {} before", said(phase))).unwrap_or_default();
    let date = pod.deletion.and_then(evidence::date);
    let date = date.map(|date| format!("; it was due to end by {date}")).unwrap_or_default();
    let name = said(&format!("{}/{}", pod.namespace, pod.name));
    let name = format!("{name} (uid {})", said(&pod.uid));
    format!("pod {name} is no longer among the pods that it should run{phase}{date}")
}

fn remediation(map: &NodeMap, deleted: &DeletedPod<'_>, is_found: &Command) -> Vec<Step> {
    let node = map.boot().map_or("", |boot| &*boot.node);
    let what_first = text!("Start no new pod here, it may be given this IP");
    let id = &*deleted.sandbox.sandbox.id;
    let what = text!("If it does not, end what is left of the pod as the kubelet would");
    let clean = match (&*deleted.sandbox.sandbox.runtime, evidence::still(map, deleted.netns)) {
        // A container of Docker's may be started again.
        ("docker", Some(still)) => {
            let stop = Command::new("docker").own("stop").value(id);
            Step::change(what, is_found.clone().and(still).and(stop))
        }
        ("docker", None) => evidence::by_its_client(what, Some("docker")),
        _ => evidence::remove_sandbox(map, what, is_found.clone(), id),
    };
    let log = ["--since", "-1h", "-u", "kubelet", "-g", "[Kk]illPod|StopPodSandbox"];
    vec![
        remedy::cordon(what_first, node, is_found.clone()),
        Step::look(
            text!("See whether the kubelet still tries, and what it waits for"),
            Command::new("journalctl").owns(&log),
        ),
        clean,
        Step::look(
            text!("If that hangs, a process in the pod hangs. This names it and what it waits for"),
            Command::new("ipwatch").own("scan"),
        ),
        Step::never(&text!(
            "delete the reservation of this IP or restart the IPAM agent while the IP is up"
        )),
    ]
}
