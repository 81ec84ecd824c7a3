//! `device-held-by-dead-sandbox`: a NIC of the node (ENI, VF, a whole device) was moved into a pod's netns
//! and is still there, though the sandbox is dead. The next pod that needs it waits.

use super::cause::quoted;
use super::words::{self, Proof};
use crate::fact::{BootNs, Link, Parent};
use crate::finding::{Candidate, Code, Severity};
use crate::map::{Netns, NodeMap, Policy, SandboxEntry};

pub(super) fn detect(map: &NodeMap, _now: BootNs, policy: &Policy) -> Vec<Candidate> {
    let dead = map.dead_sandboxes();
    dead.flat_map(|(entry, netns)| {
        let devices = netns
            .links()
            .filter_map(|known| Some((&known.link, known.link.parent.as_ref()?, known.touched)));
        devices.filter_map(move |device| candidate(map, entry, netns, device, policy))
    })
    .collect()
}

fn candidate(
    map: &NodeMap,
    entry: &SandboxEntry,
    netns: &Netns,
    (link, parent, seen): (&Link, &Parent, BootNs),
    policy: &Policy,
) -> Option<Candidate> {
    let (since, said) = (entry.dead?, map.last_listed(&entry.sandbox.runtime)?);
    if netns.host
        || netns.dying.is_some()
        || link.loopback
        || !map.answers(&entry.sandbox.runtime)
        || said < since.plus(policy.sandbox_grace)
    {
        return None;
    }
    let boot = map.boot()?;
    let subject = words::subject(map, netns);
    let whose = words::owner(subject.pod.as_ref(), subject.container.as_ref(), "a pod");
    let mut proof = Proof::new(map);
    proof.runtime(entry);
    let driver =
        parent.driver.as_deref().map(|name| format!(", driver {name}")).unwrap_or_default();
    let device = format!("{} ({} {}{driver})", link.name, parent.bus, parent.address);
    let place = words::netns_text(netns);
    proof.tell("netlink", seen, format!("{device} is in {place}"));
    let holders = map.holder_views(netns.id);
    Some(Candidate {
        code: Code::DeviceHeldByDeadSandbox,
        key: format!("{}/{}/{}/{}", boot.boot_id, netns.identity, parent.bus, parent.address),
        severity: Severity::Warning,
        evidence: proof.done(),
        impact: format!(
            "{device} is in what is left of {whose}: no other pod can be given it, and it does not come \
             back to the node before that netns ends."
        ),
        remediation: vec![
            format!(
                "Free the netns first: its holders are named here, and by ipwatch query netns {}",
                netns.names.inode.unwrap_or_default()
            ),
            format!(
                "To take the device out at once: nsenter --net={} ip link set dev {} netns 1",
                quoted(&door(netns, &holders)),
                quoted(&link.name),
            ),
        ],
        holders,
        subject,
        since,
        observed: said,
        caused_by: None,
        preexisting: entry.preexisting,
    })
}

/// A path that leads into the netns.
fn door(netns: &Netns, holders: &[crate::contract::Holder]) -> String {
    if let Some(task) = netns.tasks().next() {
        return format!("/proc/{}/task/{}/ns/net", task.pid, task.tid);
    }
    holders.iter().find_map(|holder| holder.mount_path.clone()).unwrap_or_else(|| "PATH".to_owned())
}
