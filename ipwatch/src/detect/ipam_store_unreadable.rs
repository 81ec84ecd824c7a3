//! `ipam-store-unreadable`: a file of an IPAM store, or of the CNI result cache, is truncated, empty or of an unknown
//! version. Its content is unknown to ipwatch, and mostly to its owner too.

use std::net::IpAddr;

use super::evidence::{By, Proof};
use super::run::{Again, Detector, Judged};
use crate::fact::{BootNs, SourceName, Unreadable, store};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{Kinds, NodeMap, Thresholds, UnreadableEntry, WRITING};
use crate::remedy::{Command, Step, host_local, said, text, value};

/// Maximum number of files that are reported individually.
const TOLD: usize = 64;

/// Whether a network is configured is known when a living pod is in a configured one.
pub(super) const DETECTOR: Detector =
    Detector::Whole { on: Kinds::IPAM.and(Kinds::RUNTIMES), beyond: Kinds::NONE, detect };

fn detect(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> Judged {
    let old = map.unreadable().filter(|entry| now.since(entry.since) >= WRITING);
    let found = old.take(TOLD).map(|entry| candidate(map, entry, now)).collect();
    (found, Again::always_if(map.unreadable().next().is_some()))
}

fn candidate(map: &NodeMap, entry: &UnreadableEntry, now: BootNs) -> Candidate {
    let file = &entry.file;
    let mut proof = Proof::new(map);
    proof.tell(
        By::Named(&file.store),
        entry.told,
        format!("{}: {}", said(&file.path), said(&file.reason)),
    );
    let nobodys = map.nobodys_file(file);
    let impact = match (&file.effect, nobodys) {
        (_, Some(network)) => text!(
            "The file {} cannot be used. No CNI configuration names its network {} any more: nobody hands out its IPs, and \
             no pod is affected.",
            value(&file.path),
            value(network)
        ),
        (Some(effect), _) => {
            text!("The file {} cannot be used: {}.", value(&file.path), value(effect))
        }
        (None, _) => {
            text!(
                "The file {} cannot be used: which IPs it reserves is unknown.",
                value(&file.path)
            )
        }
    };
    Candidate {
        code: Code::IpamStoreUnreadable,
        key: format!("{}/{}", file.store, file.path),
        severity: if nobodys.is_some() { Severity::Info } else { Severity::Warning },
        subject: Subject::default(),
        holders: Vec::new(),
        evidence: proof.done(),
        since: entry.since,
        observed: now,
        impact,
        remediation: remediation(file),
        caused_by: None,
        preexisting: false,
    }
}

/// The steps depend on the owner of the file: most files belong to living pods, and an agent's database must not be
/// removed while the agent runs.
fn remediation(file: &Unreadable) -> Vec<Step> {
    let path = &*file.path;
    let mut steps = vec![Step::look(
        text!("Look at it"),
        Command::new("ls").own("-l").path(path).and(begin(path)),
    )];
    let (_, name) = path.rsplit_once('/').unwrap_or_default();
    let agent = match &*file.store {
        store::HOST_LOCAL => {
            match name.parse::<IpAddr>() {
                Ok(ip) => steps.extend(reserved(file, ip)),
                Err(_) => steps.push(Step::advice(text!(
                    "Fix it, or let its owner write it again (the network's DaemonSet, flanneld, your configuration \
                     management)."
                ))),
            }
            return steps;
        }
        _ if *file.store == *SourceName::Cni.as_str() => {
            steps.extend(cached(file));
            return steps;
        }
        store::LIBNETWORK => text!("dockerd"),
        store::NETAVARK => text!("podman"),
        store::TERWAY => text!("Terway's daemon"),
        store::AWS_VPC_CNI => text!("the aws-node pod"),
        store::CILIUM => text!("the cilium agent"),
        other => text!("{}", value(other)),
    };
    steps.push(Step::advice(text!(
        "Read the log of {}, which has the content in memory and writes the file again. If it says that it cannot \
         read the file, drain the node and restart {}. If that still does not start, restore the file.",
        &agent,
        &agent
    )));
    steps.push(Step::never(&text!(
        "remove or edit {} while pods run here; it is all that {} knows",
        value(path),
        agent
    )));
    steps
}

/// Shows the first bytes of a file in a form that is safe for a terminal.
fn begin(path: &str) -> Command {
    Command::new("od").owns(&["-c", "-N", "200"]).path(path)
}

/// Of the result cache only an empty file is removed, and only while it is empty: it contains nothing that could be
/// missed.
fn cached(file: &Unreadable) -> Vec<Step> {
    let wait = text!(
        "Wait until its pod is deleted and DEL fails because of it (crictl pods must not say Ready for the container \
         in its name)"
    );
    let step = if file.reason.contains("empty") {
        let remove = Command::new("sh").owns(&["-c", host_local::FREE_EMPTY, "sh"]);
        Step::change(
            wait.then(&text!(
                ", then remove it, if it is still empty, so that DEL can run without it"
            )),
            remove.path(&file.path),
        )
    } else {
        Step::advice(
            wait.then(&text!(", then move that one file away, so that DEL can run without it.")),
        )
    };
    let never = text!("remove the whole directory; the other files belong to running pods");
    vec![step, Step::never(&never)]
}

/// The file of a reserved IP: only an empty file names no owner.
fn reserved(file: &Unreadable, ip: IpAddr) -> Vec<Step> {
    let ask = Command::new("ipwatch").owns(&["query", "ip"]).ip(ip);
    let free = host_local::free_empty(&file.path).filter(|_| file.reason.contains("empty"));
    let Some(free) = free else {
        return vec![
            Step::look(text!("Find out who has the IP: it may be a running pod"), ask),
            Step::never(&text!(
                "remove {} while anybody has {}; the next ADD would assign it again",
                value(&file.path),
                ip
            )),
        ];
    };
    vec![
        Step::look(text!("Ask whether anybody has the IP: this must name nobody"), ask),
        Step::change(text!("Then free it under the plugin's own lock, if it is still empty"), free),
        Step::never(&text!("remove the whole directory; the other files belong to running pods")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(store: &str, path: &str, reason: &str) -> String {
        let (store, path, reason) = (store.into(), path.into(), reason.into());
        remediation(&Unreadable { store, path, reason, effect: None, takes: None })
            .iter()
            .map(Step::line)
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn only_what_is_empty_is_removed_and_under_the_lock() {
        let path = "/var/lib/cni/networks/cbr0/10.0.0.5";
        let empty = text("host-local", path, "it is empty");
        let [check, free] = ["ipwatch query ip 10.0.0.5", "flock /var/lib/cni/networks/cbr0/lock"];
        assert!(empty.find(check).unwrap() < empty.find(free).unwrap(), "{empty}");
        assert!(empty.contains("[ ! -s \"$1\" ]"), "{empty}");
        let removes = |text: &str| {
            let advice = text.lines().filter(|line| !line.starts_with("Do not"));
            advice.into_iter().any(|line| line.contains("rm ") || line.contains("mv "))
        };
        assert!(removes(&empty));
        for (store, path, reason) in [
            ("host-local", path, "it holds no text"),
            ("host-local", "/etc/cni/net.d/10-flannel.conflist", "it is empty"),
            ("host-local", "/run/flannel/subnet.env", "it is empty"),
            ("libnetwork", "/var/lib/docker/network/files/local-kv.db", "it is empty"),
            ("terway", "/var/lib/cni/terway/ResRelation.db", "torn"),
            ("aws-vpc-cni", "/var/run/aws-node/ipam.json", "it is empty"),
        ] {
            let text = text(store, path, reason);
            assert!(!removes(&text), "{text}");
        }
    }
}
