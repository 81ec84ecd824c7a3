//! `netns-leaked`: a netns that was made for a pod has no task, and its sandbox no longer exists. Something else keeps
//! the netns alive, and with it its IPs and devices: a bind mount, an fd, a socket, or the kernel.
//!
//! A netns that is not known to be made for a pod (`ip netns` by people, pools) never counts, nor does one whose
//! sandbox the runtime still has: its owner may clean up any moment.

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged, Listed, Subject};
use crate::fact::{BootNs, Holder};
use crate::finding::{Candidate, Code, Severity};
use crate::map::{Kinds, Netns, NodeMap, SandboxVerdict, Thresholds};
use crate::remedy::{Command, Step, connection, said, text, value};

pub(super) const DETECTOR: Detector = Detector::Each {
    listed_on: Kinds::NETNS.and(Kinds::TASKS),
    listed_beyond: Kinds::NONE,
    list,
    beyond: Kinds::NETNS
        .and(Kinds::TASKS)
        .and(Kinds::RUNTIMES)
        .and(Kinds::PODS)
        .and(Kinds::CALLS)
        .and(Kinds::IPAM)
        .and(Kinds::TEARDOWN),
    judge,
};

fn list(map: &NodeMap, _now: BootNs, _thresholds: &Thresholds) -> Listed {
    let mut all: Vec<_> = map.taskless().map(|netns| netns.id).collect();
    all.sort_unstable();
    all.into_iter().map(Subject::from).collect::<Vec<_>>().into()
}

fn judge(map: &NodeMap, subject: &Subject, _now: BootNs, thresholds: &Thresholds) -> Judged {
    let found = map.netns(subject.netns).and_then(|netns| candidate(map, netns, thresholds));
    (found.into_iter().collect(), Again::OnChange)
}

fn candidate(map: &NodeMap, netns: &Netns, thresholds: &Thresholds) -> Option<Candidate> {
    if netns.host || netns.dying.is_some() {
        return None;
    }
    let from = map.leaked_from(netns, thresholds)?;
    // Only a complete search after that moment shows that there is no other holder.
    let (searched, complete) = netns.searched()?;
    if searched < from || !complete {
        return None;
    }
    // Queued behind a hanging teardown: not leaked.
    let queued = map
        .teardown()
        .is_some_and(|busy| netns.idle_since().is_some_and(|idle| idle >= busy.since));
    if queued && netns.holders().next().is_none() {
        return None;
    }
    let boot = map.boot()?;
    let subject = evidence::subject(map, netns);
    let holders = map.lasting_views(netns.id);
    let whose = evidence::owner(subject.pod.as_ref(), subject.container.as_ref(), text!("a pod"));
    Some(Candidate {
        code: Code::NetnsLeaked,
        key: format!("{}/{}", boot.boot_id, netns.identity),
        severity: if subject.ip.is_some() { Severity::Warning } else { Severity::Info },
        evidence: evidence(map, netns, searched),
        impact: match subject.ip {
            Some(ip) => text!(
                "{} stays up in a netns that {} has left behind. Its reservation leaks; once it is freed, the next pod \
                 that is given the IP shares it.",
                ip,
                whose
            ),
            None => text!(
                "A netns that {} has left behind still exists. No IP is up in it: no pod is affected.",
                whose
            ),
        },
        remediation: remediation(map, netns),
        holders,
        subject,
        since: netns.idle_since()?,
        observed: searched,
        caused_by: None,
        preexisting: netns.idle_since() == Some(netns.first_seen),
    })
}

fn evidence(map: &NodeMap, netns: &Netns, searched: BootNs) -> Vec<crate::finding::Evidence> {
    let mut proof = Proof::new(map);
    let idle = netns.idle_since().unwrap_or_default();
    let owner = netns.owner();
    match owner.map(|owner| (owner, map.verdict_on(&owner.sandbox))) {
        Some((_, SandboxVerdict::Gone(entry))) => proof.runtime(entry),
        Some((owner, SandboxVerdict::Denied(_))) => {
            let runtimes: Vec<&str> = map.runtimes().collect();
            let id = said(evidence::short(&owner.sandbox));
            let text =
                format!("no runtime has sandbox {id}; asked: {}", evidence::listed(runtimes));
            proof.tell(By::Runtime, map.all_listed().unwrap_or(searched), text);
            if let Some(started) = map.runtimes_are_younger(netns) {
                proof.tell(By::Procfs, started, evidence::NOT_BEING_MADE);
            }
        }
        Some((owner, _)) => {
            let id = said(evidence::short(&owner.sandbox));
            proof.tell(
                By::Runtime,
                searched,
                format!("there is no runtime to ask for sandbox {id}"),
            );
        }
        None => {}
    }
    proof.tell(By::Procfs, idle, format!("no task is left in {}", evidence::netns_text(netns)));
    for holder in netns.holders() {
        proof.tell(By::Procfs, searched, format!("held by {}", holder_text(holder)));
    }
    if netns.held_by_kernel() {
        let text = "no mount, fd or socket that can be seen holds it, but a reference inside the kernel does: a network \
                    file system that was mounted from it, a TCP connection that is still being closed, an fd in flight \
                    between two processes, or a mount that no process shows because all in its mount namespace are in \
                    a chroot";
        proof.tell(By::Procfs, searched, text);
    }
    for candidate in netns.candidates() {
        proof.tell(By::Procfs, searched, format!("may be held by {}", holder_text(candidate)));
    }
    let ips = evidence::addresses(netns).join(", ");
    if !ips.is_empty() {
        proof.tell(By::Netlink, searched, format!("still up: {ips}"));
    }
    proof.done()
}

fn holder_text(holder: &Holder) -> String {
    match holder {
        Holder::Mount { mount_ns, path, comm, .. } => {
            let comm = comm.as_deref().map(|comm| format!(" ({})", said(comm))).unwrap_or_default();
            let whose = holder.process().map(|pid| format!(", the one of pid {pid}{comm}"));
            let whose = whose.unwrap_or_default();
            format!("a bind mount at {} in mnt:[{mount_ns}]{whose}", said(path))
        }
        Holder::Fd { pid, fd, comm } => format!("fd {fd} of pid {pid} ({})", said(comm)),
        Holder::Socket { pid, fd, comm } => {
            format!("a socket, fd {fd} of pid {pid} ({})", said(comm))
        }
        Holder::Orphan { text } => {
            format!("a socket that no process has any more: {}", connection(text))
        }
        Holder::Candidate { pid, fd, comm, unread } => {
            let wait = match unread {
                1 => "1 fd waits".to_owned(),
                several => format!("{several} fds wait"),
            };
            format!(
                "an fd in flight to pid {pid} ({}): {wait} unread at its Unix socket, fd {fd}",
                said(comm)
            )
        }
    }
}

fn release(netns: &Netns, holder: &Holder) -> Step {
    match holder {
        Holder::Mount { path, mount_ns, .. } => {
            evidence::unmount_netns(netns, holder.process(), *mount_ns, path)
        }
        Holder::Fd { pid, fd, comm } | Holder::Socket { pid, fd, comm } => Step::advice(text!(
            "Restart what pid {} ({}) belongs to: it keeps fd {} open.",
            *pid,
            value(comm),
            *fd
        )),
        Holder::Orphan { .. } => {
            Step::advice(text!("Wait: the kernel drops the connection by itself within minutes."))
        }
        Holder::Candidate { pid, comm, .. } => Step::advice(text!(
            "Find out why pid {} ({}) does not read the fds that were sent to it. The netns may be one of them: \
             restarting what the process belongs to would then free it.",
            *pid,
            value(comm)
        )),
    }
}

fn remediation(map: &NodeMap, netns: &Netns) -> Vec<Step> {
    let release = |holder| release(netns, holder);
    let mut steps: Vec<Step> = netns.holders().take(8).map(release).collect();
    if netns.held_by_kernel() {
        steps.push(Step::advice(text!(
            "Find what the kernel still does there: network file systems that were mounted from it, then processes \
             that pass fds to each other, then processes in a chroot (/proc/PID/root is not /)."
        )));
        // They may be innocent.
        steps.extend(netns.candidates().take(8).map(release));
        steps.push(Step::advice(text!(
            "If nothing is found, only a reboot frees it: drain the node first."
        )));
    }
    let ips: Vec<_> = netns.routable().map(|(key, _)| key.local).collect();
    let kept = ips.iter().find(|ip| map.reservations_of(**ip).next().is_some());
    steps.push(match kept {
        Some(ip) => Step::look(
            text!(
                "Then free its reservation: once nobody has the IP, a finding of its own says how"
            ),
            Command::new("ipwatch").owns(&["query", "ip"]).ip(*ip),
        ),
        None => {
            Step::advice(text!(
                "No reservation of its IPs is known. If the network's IPAM has one that ipwatch does not see, release it with \
                 the network's own CNI DEL."
            ))
        }
    });
    steps.push(Step::never(&text!("delete the reservation while the IP is still up")));
    steps
}
