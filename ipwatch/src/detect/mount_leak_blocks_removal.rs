//! `mount-leak-blocks-removal`: a dead container's file system is still mounted in another mount namespace, usually
//! that of an agent which mounted `/`, `/run` or `/var/lib` of the node without `HostToContainer`: what is unmounted on
//! the node stays mounted there. Runtimes then fail to remove the container with "device or resource busy".
//!
//! One finding for each mount namespace: one agent is one cause.

use std::collections::BTreeMap;

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::contract::{self, HolderKind};
use crate::fact::BootNs;
use crate::fact::cgroup::attribution;
use crate::finding::{Candidate, Code, Severity, Subject, finding_id};
use crate::map::{Kinds, Leftover, NodeMap, Thresholds};
use crate::remedy::{Step, Text, guard, said, text, value};

/// Maximum number of mounts that are listed individually.
const LISTED: usize = 8;

pub(super) const DETECTOR: Detector =
    Detector::Whole { on: Kinds::MOUNTS.and(Kinds::RUNTIMES), beyond: Kinds::NONE, detect };

fn detect(map: &NodeMap, _now: BootNs, thresholds: &Thresholds) -> Judged {
    let mut by_mount_ns: BTreeMap<u64, Vec<&Leftover>> = BTreeMap::new();
    for leftover in map.leftovers(thresholds).filter(|leftover| !leftover.mount.host) {
        by_mount_ns.entry(leftover.mount.mount_ns).or_default().push(leftover);
    }
    let found = by_mount_ns.values().filter_map(|mounts| candidate(map, mounts));
    (found.collect(), Again::OnChange)
}

fn candidate(map: &NodeMap, mounts: &[&Leftover]) -> Option<Candidate> {
    // Mounts of a namespace whose own container lives are not foreign.
    let mounts: Vec<&Leftover> =
        mounts.iter().copied().filter(|found| is_foreign(map, &found.mount)).collect();
    let first = mounts.first()?;
    let boot = map.boot()?;
    let mount = &first.mount;
    let dead = &mount.container_id;
    let (container, pod) = dead_one(map, dead);
    let holder = mount.processes.first();
    let agent = agent(map, mount);
    let who = match (holder, &agent) {
        (Some(process), Some(agent)) => {
            text!("{} (pid {}, {})", agent, process.pid, value(&process.comm))
        }
        (Some(process), None) => text!("pid {} ({})", process.pid, value(&process.comm)),
        (None, _) => text!("mnt:[{}]", mount.mount_ns),
    };
    let mut proof = Proof::new(map);
    if let Some(entry) = map.sandbox(dead) {
        proof.runtime(entry);
    } else if let Some(entry) = map.container(dead) {
        let word = if entry.gone.is_some() { "not there any more" } else { &entry.container.word };
        let text = format!("container {} is {}", said(evidence::short(dead)), said(word));
        proof.tell(By::Named(&entry.container.runtime), entry.dead.unwrap_or(entry.told), text);
    }
    for found in mounts.iter().take(LISTED) {
        let of = said(evidence::short(&found.mount.container_id));
        let (fs_type, path) = (said(&found.mount.fs_type), said(&found.mount.path));
        let text = format!(
            "{fs_type} of container {of} is mounted at {path} in mnt:[{}]",
            found.mount.mount_ns
        );
        proof.tell(By::Procfs, found.seen, text);
    }
    let processes = mount.processes.iter().map(|p| format!("{} ({})", p.pid, said(&p.comm)));
    let processes: Vec<String> = processes.collect();
    let text = format!("in mnt:[{}]: pid {}", mount.mount_ns, processes.join(", "));
    proof.tell(By::Procfs, first.seen, text);
    let key = format!("{}/{}", boot.boot_id, mount.mount_ns);
    let id = finding_id(Code::MountLeakBlocksRemoval, &key);
    Some(Candidate {
        code: Code::MountLeakBlocksRemoval,
        key,
        severity: Severity::Warning,
        subject: Subject { container, pod, ..Subject::default() },
        holders: mounts.iter().take(LISTED).map(|found| holder_view(found)).collect(),
        evidence: proof.done(),
        since: mounts.iter().map(|found| found.first_seen).min()?,
        observed: mounts.iter().map(|found| found.seen).min()?,
        impact: text!(
            "{} of dead containers stay mounted by {}: their removal fails with \"device or resource busy\", and what \
             they held (a netns file too) is not freed.",
            evidence::count(mounts.len(), "file system"),
            who
        ),
        remediation: remediation(&mounts, agent.as_ref(), &id),
        caused_by: None,
        preexisting: false,
    })
}

/// Whether the mount is neither in the dead container's own last processes nor in another container of its pod: these
/// share files of their sandbox.
fn is_foreign(map: &NodeMap, mount: &crate::fact::ContainerMount) -> bool {
    let own = mount.cgroup.as_deref().and_then(attribution).and_then(|found| found.container_id);
    let Some(own) = own else { return true };
    let sandbox = |id: &str| match map.container(id) {
        Some(entry) => entry.container.sandbox.clone(),
        None => Some(id.to_owned()),
    };
    own != mount.container_id && sandbox(&own) != sandbox(&mount.container_id)
}

fn dead_one(map: &NodeMap, id: &str) -> (Option<contract::Container>, Option<contract::Pod>) {
    if let Some((container, pod)) = map.sandbox_told(id) {
        return (container, pod);
    }
    let Some(entry) = map.container(id) else { return (None, None) };
    let told = &entry.container;
    let pod = told.sandbox.as_deref().and_then(|sandbox| map.sandbox_told(sandbox)?.1);
    let container = contract::Container {
        id: Some(id.to_owned()),
        runtime: Some(told.runtime.clone()),
        name: told.name.clone(),
        state: Some(told.word.clone()),
    };
    (Some(container), pod)
}

/// The pod or container whose processes see the mount.
fn agent(map: &NodeMap, mount: &crate::fact::ContainerMount) -> Option<Text> {
    let id = attribution(mount.cgroup.as_deref()?)?.container_id?;
    let (container, pod) = dead_one(map, &id);
    Some(evidence::owner(
        pod.as_ref(),
        container.as_ref(),
        text!("container {}", value(evidence::short(&id))),
    ))
}

fn holder_view(found: &Leftover) -> contract::Holder {
    let process = found.mount.processes.first();
    contract::Holder {
        mount_path: Some(found.mount.path.clone()),
        mount_ns_pid: process.map(|process| process.pid),
        mount_ns_comm: process.map(|process| process.comm.clone()),
        mount_ns: Some(found.mount.mount_ns),
        ..contract::Holder::of_kind(HolderKind::Mount)
    }
}

fn remediation(mounts: &[&Leftover], agent: Option<&Text>, id: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = mounts.iter().take(LISTED).map(|found| unmount(found, id)).collect();
    if let Some(agent) = agent {
        steps.push(Step::advice(text!("Or restart {}: its mounts go with it.", agent)));
    }
    steps.push(Step::advice(text!(
        "Permanently: set mountPropagation: HostToContainer on that agent's volume, so that it sees what the node \
         unmounts."
    )));
    steps.push(Step::never(&text!(
        "remove the directory by hand; what is mounted there may be somebody's data"
    )));
    steps
}

/// Only while the daemon still finds this very mount, of a container that is still dead.
fn unmount(found: &Leftover, id: &str) -> Step {
    let mount = &found.mount;
    let pid = mount.processes.first().map_or(0, |process| process.pid);
    match evidence::unmount(pid, mount.mount_ns, &mount.path) {
        Some(unmount) => Step::change(
            text!(
                "Unmount {} where the agent sees it, and nowhere else (umount of util-linux 2.35 or newer)",
                value(&mount.path)
            ),
            guard::is_still_found_at(id, &mount.path).and(unmount),
        ),
        None => Step::advice(text!(
            "Unmount {} in mnt:[{}], only while its container is dead.",
            value(&mount.path),
            mount.mount_ns
        )),
    }
}
