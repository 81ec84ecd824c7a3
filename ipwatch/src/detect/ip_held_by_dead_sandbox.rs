//! `ip-held-by-dead-sandbox`: a netns with an IP still has tasks, but its sandbox is dead to the runtime:
//! NotReady, exited, or not there any more.
//!
//! Only a runtime that answers, and that answered again after the grace, can say so. A sandbox that no
//! runtime ever told of counts only if a kubelet of this node made it: pods of a cluster inside a
//! container are nobody's here.

use super::words::{self, Proof};
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity};
use crate::map::{Netns, NodeMap, Policy, SandboxEntry, Word};

pub(super) fn detect(map: &NodeMap, _now: BootNs, policy: &Policy) -> Vec<Candidate> {
    let dead = map.dead_sandboxes().map(|(_, netns)| netns);
    dead.chain(map.strangers()).filter_map(|netns| candidate(map, netns, policy)).collect()
}

/// Since when its sandbox is dead, by whose word, and when that was said last.
struct Verdict<'a> {
    since: BootNs,
    said: BootNs,
    entry: Option<&'a SandboxEntry>,
}

fn verdict<'a>(map: &'a NodeMap, netns: &Netns, policy: &Policy) -> Option<Verdict<'a>> {
    let owner = netns.owner()?;
    let (entry, since, from) = match map.word_on(&owner.sandbox) {
        Word::Dead(entry) | Word::Gone(entry) => {
            (Some(entry), entry.dead?, entry.dead?.plus(policy.sandbox_grace))
        }
        Word::Denied(first) if owner.kubelet => {
            (None, first.max(netns.first_seen), map.denied_from(netns, first, policy))
        }
        _ => return None,
    };
    let said = match entry {
        Some(entry) => map.last_listed(&entry.sandbox.runtime)?,
        None => map.all_listed()?,
    };
    (said >= from).then_some(Verdict { since, said, entry })
}

fn candidate(map: &NodeMap, netns: &Netns, policy: &Policy) -> Option<Candidate> {
    if netns.host || netns.dying.is_some() || netns.tasks().next().is_none() {
        return None;
    }
    let verdict = verdict(map, netns, policy)?;
    let subject = words::subject(map, netns);
    let ip = subject.ip?;
    let boot = map.boot()?;
    let owner = netns.owner()?;
    let whose = words::owner(subject.pod.as_ref(), subject.container.as_ref(), "the sandbox");
    let tasks: Vec<_> = map
        .holder_views(netns.id)
        .into_iter()
        .filter(|holder| holder.pid.is_some() && holder.mount_path.is_none() && holder.fd.is_none())
        .collect();
    let pids: Vec<u32> = tasks.iter().filter_map(|holder| holder.pid).collect();
    Some(Candidate {
        code: Code::IpHeldByDeadSandbox,
        key: format!("{}/{}/{}", boot.boot_id, netns.identity, owner.sandbox),
        severity: Severity::Warning,
        evidence: evidence(map, netns, &verdict, &pids),
        impact: format!(
            "{ip} stays up in what is left of {whose}, though {}. When the IPAM frees it, the next pod \
             that is given {ip} shares it.",
            match verdict.entry {
                Some(_) => "its runtime takes it for dead",
                None => "every runtime that can have made it denies it",
            }
        ),
        remediation: remediation(map, netns, &owner.sandbox, &pids),
        holders: tasks,
        subject,
        since: verdict.since,
        observed: verdict.said,
        caused_by: None,
        preexisting: verdict.entry.is_none_or(|entry| entry.preexisting),
    })
}

fn evidence(
    map: &NodeMap,
    netns: &Netns,
    verdict: &Verdict<'_>,
    pids: &[u32],
) -> Vec<crate::finding::Evidence> {
    let mut proof = Proof::new(map);
    match verdict.entry {
        Some(entry) => proof.runtime(entry),
        None => {
            let runtimes: Vec<&str> = map.runtimes().collect();
            let id = netns.owner().map_or("", |owner| words::short(&owner.sandbox));
            let text = format!("no runtime has sandbox {id}; asked: {}", runtimes.join(", "));
            proof.tell("runtime", verdict.said, text);
        }
    }
    let some: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
    let more = if pids.len() > some.len() { ", …" } else { "" };
    let text = format!(
        "{} in {}: pid {}{more}",
        words::count(pids.len(), "task"),
        words::netns_text(netns),
        some.join(", "),
    );
    proof.tell("procfs", verdict.said, text);
    let frozen = netns.tasks().filter_map(|key| map.task(key)?.look.as_ref());
    if frozen.into_iter().any(|entry| entry.look.frozen == Some(true)) {
        proof.tell("procfs", verdict.said, "its cgroup is frozen".to_owned());
    }
    let ips = words::addresses(netns).join(", ");
    proof.tell("netlink", verdict.said, format!("still up: {ips}"));
    proof.done()
}

fn remediation(map: &NodeMap, netns: &Netns, sandbox: &str, pids: &[u32]) -> Vec<String> {
    let node = map.boot().map_or("NODE", |boot| &*boot.node);
    let mut lines =
        vec![format!("Start no new pod here, it may be given this IP: kubectl cordon {node}")];
    let frozen = netns
        .tasks()
        .filter_map(|key| map.task(key))
        .find(|task| task.look.as_ref().is_some_and(|entry| entry.look.frozen == Some(true)));
    if let Some(task) = frozen {
        let path = task.cgroup.as_deref().unwrap_or("PATH");
        lines.push(format!(
            "Thaw its cgroup, so that what was killed can end: echo 0 > \
             /sys/fs/cgroup{path}/cgroup.freeze (v1: echo THAWED > freezer.state)"
        ));
    }
    match map.word_on(sandbox) {
        Word::Dead(entry) if entry.sandbox.runtime != "docker" => lines.push(format!(
            "Let the runtime clean up: crictl stopp {0} && crictl rmp {0}",
            words::short(sandbox)
        )),
        Word::Dead(_) => {
            lines.push(format!("Let docker clean up: docker rm -f {}", words::short(sandbox)))
        }
        _ => {}
    }
    let some: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
    lines.push(format!(
        "End what is left of it, for nobody watches over it: kill {}",
        some.join(" ")
    ));
    lines.push("Do not: delete the reservation of this IP while it is up".to_owned());
    lines
}
