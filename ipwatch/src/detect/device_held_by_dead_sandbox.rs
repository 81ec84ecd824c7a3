//! `device-held-by-dead-sandbox`: a NIC of the node (ENI, VF, a whole device) was moved into a pod's netns and is still
//! there, although the sandbox is dead. The next pod that needs it waits.

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged, Listed, Subject};
use crate::fact::{BootNs, Holder, Link, Parent};
use crate::finding::{Candidate, Code, Severity};
use crate::map::{Kinds, Netns, NodeMap, SandboxEntry, Thresholds};
use crate::remedy::{Command, Step, Text, guard, said as quoted, text, value};

pub(super) const DETECTOR: Detector = Detector::Each {
    listed_on: Kinds::NONE,
    listed_beyond: Kinds::NETNS.and(Kinds::RUNTIMES),
    list,
    beyond: Kinds::NETNS.and(Kinds::TASKS).and(Kinds::RUNTIMES),
    judge,
};

fn list(map: &NodeMap, _now: BootNs, _thresholds: &Thresholds) -> Listed {
    map.dead_sandboxes().map(|(_, netns)| netns.id.into()).collect::<Vec<_>>().into()
}

fn judge(map: &NodeMap, subject: &Subject, _now: BootNs, thresholds: &Thresholds) -> Judged {
    let netns = map.netns(subject.netns);
    let owner = netns.and_then(|netns| Some((netns, map.sandbox(&netns.owner()?.sandbox)?)));
    let Some((netns, entry)) = owner else { return (Vec::new(), Again::OnChange) };
    let devices = netns
        .links()
        .filter_map(|known| Some((&known.link, known.link.parent.as_ref()?, known.touched)));
    let found = devices.filter_map(|device| candidate(map, entry, netns, device, thresholds));
    (found.collect(), Again::OnChange)
}

fn candidate(
    map: &NodeMap,
    entry: &SandboxEntry,
    netns: &Netns,
    (link, parent, seen): (&Link, &Parent, BootNs),
    thresholds: &Thresholds,
) -> Option<Candidate> {
    let (since, said) = (entry.dead?, map.last_listed(&entry.sandbox.runtime)?);
    if netns.host
        || netns.dying.is_some()
        || link.loopback
        || !map.runtime_answers(&entry.sandbox.runtime)
        || said < since.plus(thresholds.sandbox_grace)
    {
        return None;
    }
    let boot = map.boot()?;
    let subject = evidence::subject(map, netns);
    let whose = evidence::owner(subject.pod.as_ref(), subject.container.as_ref(), text!("a pod"));
    let mut proof = Proof::new(map);
    proof.runtime(entry);
    let driver = parent.driver.as_deref().map(|name| text!(", driver {}", value(name)));
    let device = text!(
        "{} ({} {}{})",
        value(&link.name),
        value(&parent.bus),
        value(&parent.address),
        driver.unwrap_or_default()
    );
    let place = evidence::netns_text(netns);
    let named = parent.driver.as_deref().map(|name| format!(", driver {}", quoted(name)));
    let text = format!(
        "{} ({} {}{}) is in {place}",
        quoted(&link.name),
        quoted(&parent.bus),
        quoted(&parent.address),
        named.unwrap_or_default()
    );
    proof.tell(By::Netlink, seen, text);
    let holders = map.lasting_views(netns.id);
    let key = format!("{}/{}/{}/{}", boot.boot_id, netns.identity, parent.bus, parent.address);
    let is_found = evidence::is_found(Code::DeviceHeldByDeadSandbox, &key);
    Some(Candidate {
        code: Code::DeviceHeldByDeadSandbox,
        key,
        severity: Severity::Warning,
        evidence: proof.done(),
        impact: text!(
            "{} is still in the netns that {} left behind: no other pod can get it, and it returns to the node only \
             when that netns ends.",
            device,
            whose
        ),
        remediation: remediation(netns, link, is_found),
        holders,
        subject,
        since,
        observed: said,
        caused_by: None,
        preexisting: entry.preexisting,
    })
}

fn remediation(netns: &Netns, link: &Link, is_found: Command) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(inode) = netns.names.inode {
        steps.push(Step::look(
            text!("Free the netns first. This shows what holds it"),
            Command::new("ipwatch").owns(&["query", "netns"]).number(inode).owns(&["-o", "tree"]),
        ));
    }
    let what = text!(
        "Or move the device to the node at once. It arrives down and without addresses; if the node has a device of \
             that name, append: name NEW"
    );
    match out(netns, link) {
        Some(out) => steps.push(Step::change(what, is_found.and(out))),
        None => steps.push(Step::advice(what.then(&Text::own(
            ": move it to the node from within that netns, only while this finding is open and the device there is \
             still this one (compare it with ip -d link show)",
        )))),
    }
    steps
}

/// Moves the device to the node's netns, with the node's own `ip`, through a task that still exists or a mount that is
/// still this netns, if the name still belongs to this device.
fn out(netns: &Netns, link: &Link) -> Option<Command> {
    let moves = |enter: Command| {
        let same = guard::has_index_in(enter.clone(), &link.name, link.ifindex);
        let set = enter.owns(&["ip", "link", "set", "dev"]).value(&link.name);
        same.and(set.owns(&["netns", "1"]))
    };
    let enter = Command::new("nsenter");
    if let Some(task) = netns.inhabitants().next() {
        let parts = [task.pid.into(), task.tid.into()];
        let enter = enter.word("--net=/proc/{}/task/{}/ns/net", &parts);
        return Some(guard::is_same_task(task).and(moves(enter)));
    }
    let inode = netns.names.inode?;
    netns.holders().find_map(|holder| match holder {
        Holder::Mount { path, pid: 1, .. } => {
            let mounted = guard::is_mounted(1, inode, path)?;
            Some(mounted.and(moves(enter.clone().word("--net={}", &[value(path)]))))
        }
        _ => None,
    })
}
