//! Commands that look, and commands that free: as text for a person's shell, never run here. Pure.
//!
//! What frees an allocation tests first that it is still the same one, in the same request: whoever was given the IP
//! meanwhile keeps it. An overlapping reservation is deleted after that and not before: while it is there,
//! Whereabouts does not give the IP to anybody, so that it cannot be another's by then.

use std::net::IpAddr;

use serde_json::json;

use super::world::{Allocation, Overlapping, Pool};
use crate::contract::ClusterStep;

pub(super) const POOLS: &str = "ippools.whereabouts.cni.cncf.io";
pub(super) const OVERLAPPING: &str = "overlappingrangeipreservations.whereabouts.cni.cncf.io";
pub(super) const BLOCKS: &str = "ipamblocks.crd.projectcalico.org";
pub(super) const HANDLES: &str = "ipamhandles.crd.projectcalico.org";

/// `kubectl`, for the cluster that was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kubectl {
    /// Its `--kubeconfig` and `--context`.
    pub(crate) flags: Vec<String>,
}

impl Kubectl {
    /// A command of these words. `None`: one of them is nothing that can be typed.
    fn command(&self, words: &[&str]) -> Option<String> {
        let flags = self.flags.iter().map(String::as_str);
        let all = ["kubectl"].into_iter().chain(flags).chain(words.iter().copied());
        Some(all.map(word).collect::<Option<Vec<_>>>()?.join(" "))
    }

    /// Shows something.
    pub(super) fn look(&self, what: &str, words: &[&str]) -> ClusterStep {
        ClusterStep { what: what.to_owned(), command: self.command(words), changes: false }
    }

    /// Shows who says that it has an IP, in `podIPs` or in what Multus says of it.
    pub(super) fn users(&self, ip: IpAddr) -> ClusterStep {
        let pods = self.command(&["get", "pods", "-A", "-o", "yaml"]);
        ClusterStep {
            what: "look whether any pod has the IP: this is to show none".to_owned(),
            command: pods.map(|pods| format!("{pods} | grep -F -w {ip}")),
            changes: false,
        }
    }

    /// Shows an object of a namespace.
    pub(super) fn get(&self, what: &str, kind: &str, namespace: &str, name: &str) -> ClusterStep {
        self.look(what, &["get", kind, "-n", namespace, name, "-o", "yaml"])
    }

    /// Takes an allocation out of its pool.
    pub(super) fn remove(&self, pool: &Pool, allocation: &Allocation) -> ClusterStep {
        let entry = format!("/spec/allocations/{}", allocation.offset);
        let mut patch = vec![
            json!({"op": "test", "path": "/spec/range", "value": pool.range}),
            json!({"op": "test", "path": format!("{entry}/id"), "value": allocation.id}),
        ];
        if let Some(podref) = &allocation.podref {
            patch.push(json!({"op": "test", "path": format!("{entry}/podref"), "value": podref}));
        }
        patch.push(json!({"op": "remove", "path": entry}));
        let patch = format!("--patch={}", ascii(&json!(patch).to_string()));
        let words = ["patch", POOLS, "-n", &pool.namespace, &pool.name, "--type=json", &patch];
        ClusterStep {
            what: format!("free offset {} ({})", allocation.offset, allocation.ip),
            command: self.command(&words),
            changes: true,
        }
    }

    /// Deletes an overlapping reservation.
    pub(super) fn delete(&self, overlapping: &Overlapping) -> ClusterStep {
        let Overlapping { namespace, name, .. } = overlapping;
        ClusterStep {
            what: "then its overlapping reservation, only if the command before it succeeded"
                .to_owned(),
            command: self.command(&["delete", OVERLAPPING, "-n", namespace, name]),
            changes: true,
        }
    }
}

/// A step that is no kubectl command.
pub(super) fn step(what: &str, words: &[&str], changes: bool) -> ClusterStep {
    let command = words.iter().map(|one| word(one)).collect::<Option<Vec<_>>>();
    let command = command.filter(|words| !words.is_empty()).map(|words| words.join(" "));
    ClusterStep { what: what.to_owned(), command, changes }
}

/// A word of a command, quoted where a shell would act on it. `None`: it has what no terminal shows.
fn word(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/:=@%+,-".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return Some(text.to_owned());
    }
    let typed = text.chars().all(|c| (' '..='~').contains(&c));
    typed.then(|| format!("'{}'", text.replace('\'', r"'\''")))
}

/// JSON that means the same, in printable ASCII.
fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if (' '..='~').contains(&c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool {
            namespace: "kube-system".into(),
            name: "10.0.0.0-27".into(),
            range: "10.0.0.0/27".into(),
            prefix: String::new(),
            allocations: Vec::new(),
            wrong: 0,
        }
    }

    fn allocation(id: &str, podref: Option<&str>) -> Allocation {
        Allocation {
            offset: 11,
            ip: "10.0.0.11".parse().unwrap(),
            id: id.into(),
            podref: podref.map(str::to_owned),
            claimed: false,
        }
    }

    #[test]
    fn an_entry_is_tested_before_it_is_removed() {
        let kubectl = Kubectl { flags: vec!["--context".into(), "my cluster".into()] };
        let step = kubectl.remove(&pool(), &allocation("abc", Some("shop/web-0")));
        assert_eq!(
            step.command.unwrap(),
            "kubectl --context 'my cluster' patch ippools.whereabouts.cni.cncf.io -n kube-system 10.0.0.0-27 \
             --type=json '--patch=[{\"op\":\"test\",\"path\":\"/spec/range\",\"value\":\"10.0.0.0/27\"},\
             {\"op\":\"test\",\"path\":\"/spec/allocations/11/id\",\"value\":\"abc\"},\
             {\"op\":\"test\",\"path\":\"/spec/allocations/11/podref\",\"value\":\"shop/web-0\"},\
             {\"op\":\"remove\",\"path\":\"/spec/allocations/11\"}]'"
        );
        assert!(step.changes);
    }

    #[test]
    fn what_an_object_says_is_never_run_by_a_shell() {
        let evil = "a'; rm -rf \u{1b}[2J\u{202e}\n$(reboot)`";
        let step = Kubectl::default().remove(&pool(), &allocation(evil, None));
        let command = step.command.unwrap();
        assert!(command.chars().all(|c| (' '..='~').contains(&c)), "{command:?}");
        // What the shell makes of it is the word as it was meant.
        let echoed = command.replacen("kubectl patch", "printf '%s\\n'", 1);
        let out = std::process::Command::new("sh").args(["-c", &echoed]).output().unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        let patch = said.lines().last().unwrap().strip_prefix("--patch=").unwrap();
        let patch: serde_json::Value = serde_json::from_str(patch).unwrap();
        assert_eq!(patch[1]["value"], evil);
        // A name that cannot be typed makes no command.
        let named = Pool { name: evil.into(), ..pool() };
        assert_eq!(Kubectl::default().remove(&named, &allocation("abc", None)).command, None);
    }
}
