//! `ipam-store-unreadable`: a file of an IPAM store, or of the CNI result cache, is torn, empty or of a
//! version that nobody knows. What it said is unknown, to ipwatch and mostly to its owner too.

use std::net::IpAddr;

use super::cause::quoted;
use super::words::Proof;
use crate::fact::{BootNs, Unreadable};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{NodeMap, Policy, UnreadableEntry, WRITING};

/// Files that are told one by one.
const TOLD: usize = 64;

pub(super) fn detect(map: &NodeMap, now: BootNs, _policy: &Policy) -> Vec<Candidate> {
    let old = map.unreadable().filter(|entry| now.since(entry.since) >= WRITING);
    old.take(TOLD).map(|entry| candidate(map, entry, now)).collect()
}

fn candidate(map: &NodeMap, entry: &UnreadableEntry, now: BootNs) -> Candidate {
    let file = &entry.file;
    let mut proof = Proof::new(map);
    proof.tell(&file.store, entry.told, format!("{}: {}", file.path, file.reason));
    let impact = match &file.effect {
        Some(effect) => format!("{} says nothing: {effect}.", file.path),
        None => format!("{} says nothing: which IPs it reserves is unknown.", file.path),
    };
    Candidate {
        code: Code::IpamStoreUnreadable,
        key: format!("{}/{}", file.store, file.path),
        severity: Severity::Warning,
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

/// What to do depends on whose file it is: most of them are of living pods, and an agent's database is not to
/// be taken from under it.
fn remediation(file: &Unreadable) -> Vec<String> {
    let path = quoted(&file.path);
    let mut lines = vec![format!("Look at it: ls -l {path}; head -c 200 {path} | od -c | head")];
    let (dir, name) = file.path.rsplit_once('/').unwrap_or_default();
    let agent = match &*file.store {
        "host-local" => {
            match name.parse::<IpAddr>() {
                Ok(ip) => lines.extend(reserved(file, ip, dir, &path)),
                Err(_) => lines.push(format!(
                    "Put it right, or have it written anew by what wrote it (the network's DaemonSet, flanneld, \
                     your configuration management): {path}"
                )),
            }
            return lines;
        }
        "cni" => {
            lines.push(format!(
                "Wait until its pod is to go and DEL fails on it (crictl pods must not say Ready for the container \
                 in its name), then move it away, so that DEL can run without it: mv {path} /root/"
            ));
            lines.push(
                "Do not: remove the whole directory, the others are of living pods".to_owned(),
            );
            return lines;
        }
        "libnetwork" => "dockerd",
        "netavark" => "podman",
        "terway" => "Terway's daemon",
        "aws-vpc-cni" => "the aws-node pod",
        "cilium" => "the cilium agent",
        store => store,
    };
    lines.push(format!(
        "Ask its owner, which has it in memory and writes it anew: the log of {agent}; where that says that it \
         cannot read it, drain the node, restart {agent}, and restore the file where it still does not start"
    ));
    lines.push(format!(
        "Do not: remove or edit {path} while pods run here, it is all that {agent} knows"
    ));
    lines
}

/// Of a reserved IP: only what is empty names nobody.
fn reserved(file: &Unreadable, ip: IpAddr, dir: &str, path: &str) -> Vec<String> {
    if !file.reason.contains("empty") {
        return vec![
            format!("Find out whose it is, it may be a living pod's: ipwatch check {ip}"),
            format!(
                "Do not: remove {path} while anybody has {ip}, the next ADD hands it out again"
            ),
        ];
    }
    let dir = quoted(dir);
    vec![
        format!("Ask whether anybody has the IP: ipwatch check {ip} (nobody may have it)"),
        format!(
            "Then free it under the plugin's own lock, if it is empty still: flock {dir}/lock \
             sh -c 'test -s \"$1\" || rm \"$1\"' sh {path}"
        ),
        "Do not: remove the whole directory, the others are of living pods".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(store: &str, path: &str, reason: &str) -> String {
        let (store, path, reason) = (store.into(), path.into(), reason.into());
        remediation(&Unreadable { store, path, reason, effect: None, takes: None }).join("\n")
    }

    #[test]
    fn only_what_is_empty_is_removed_and_under_the_lock() {
        let path = "/var/lib/cni/networks/cbr0/10.0.0.5";
        let empty = text("host-local", path, "it is empty");
        let [check, free] = ["ipwatch check 10.0.0.5", "flock /var/lib/cni/networks/cbr0/lock"];
        assert!(empty.find(check).unwrap() < empty.find(free).unwrap(), "{empty}");
        assert!(empty.contains("test -s"), "{empty}");
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
