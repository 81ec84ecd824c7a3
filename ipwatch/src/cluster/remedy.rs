//! Commands that look, and commands that free, for a person's shell; they are never run here. Pure.
//!
//! A command that frees an allocation of Whereabouts tests, in the same request, that the allocation is unchanged: a
//! pod that was assigned the IP meanwhile keeps it. The same command line then deletes the overlapping reservation,
//! but only if the first request succeeded and only while the reservation is the object that was seen: Whereabouts
//! could assign the IP to a new pod of the same name meanwhile. `calicoctl ipam release` has no such precondition and
//! is never suggested.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::snapshot::{Allocation, Overlapping, Pool};
use crate::remedy::{Command, Part, Step, Text, kubernetes, text, value};

pub(super) use crate::remedy::kubernetes::{OVERLAPPING, POOLS};
pub(super) const BLOCKS: &str = "ipamblocks.crd.projectcalico.org";
pub(super) const HANDLES: &str = "ipamhandles.crd.projectcalico.org";

/// Maximum number of nodes that are named.
pub(super) const NAMED: usize = 5;

/// `kubectl`, for the scanned cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kubectl {
    /// Its `--kubeconfig` and `--context`.
    pub(crate) flags: Vec<String>,
}

impl Kubectl {
    /// `kubectl` with these words after the flags.
    pub(super) fn command(&self, words: &[&'static str]) -> Command {
        kubernetes::kubectl(&self.flags).owns(words)
    }

    /// The value of a flag.
    fn flag(&self, name: &str) -> Option<&str> {
        let at = self.flags.iter().position(|flag| flag == name)?;
        self.flags.get(at + 1).map(String::as_str)
    }

    /// Shows the pods that have this IP, in `podIPs` or in Multus' status.
    pub(super) fn users(&self, ip: IpAddr) -> Step {
        let pods = self.command(&["get", "pods", "-A", "-o", "yaml"]);
        let grep = Command::new("grep").owns(&["-F", "-w"]).ip(ip);
        let what = text!("look whether any pod has the IP: this is to show none");
        Step::look(what, pods.pipe(grep))
    }

    /// Shows an object of a namespace.
    pub(super) fn get(
        &self,
        what: &'static str,
        kind: &'static str,
        namespace: &str,
        name: &str,
    ) -> Step {
        let place = self.command(&["get", kind, "-n"]).value(namespace).value(name);
        Step::look(Text::own(what), place.owns(&["-o", "yaml"]))
    }

    /// Shows an object of the cluster.
    pub(super) fn get_global(&self, what: &'static str, kind: &'static str, name: &str) -> Step {
        let object = self.command(&["get", kind]).value(name);
        Step::look(Text::own(what), object.owns(&["-o", "yaml"]))
    }

    /// Shows all pods and their nodes.
    pub(super) fn pods(&self, what: &'static str) -> Step {
        Step::look(Text::own(what), self.command(&["get", "pods", "-A", "-o", "wide"]))
    }

    /// Shows the node on which a container may still run, or all nodes if the node is unknown.
    pub(super) fn machine(&self, node: Option<&str>) -> Step {
        let Some(node) = node else {
            let what = "which node had it is not said: on one that does not answer or is gone its container may \
                        still run; `ipwatch query ip` there tells";
            return Step::look(Text::own(what), self.command(&["get", "nodes", "-o", "wide"]));
        };
        let what = "look whether its node answers: else its container may still run there; `ipwatch query ip` there \
                    tells";
        let node = self.command(&["get", "node"]).value(node).owns(&["-o", "wide"]);
        Step::look(Text::own(what), node)
    }

    /// Calico's own tool, for the same cluster.
    pub(super) fn calicoctl(&self) -> Command {
        let program = match self.flag("--kubeconfig") {
            Some(path) => Command::new("env")
                .own("DATASTORE_TYPE=kubernetes")
                .word("KUBECONFIG={}", &[value(path)])
                .own("calicoctl"),
            None => Command::new("calicoctl"),
        };
        match self.flag("--context") {
            Some(name) => program.word("--context={}", &[value(name)]),
            None => program,
        }
    }

    /// ipwatch on the node of a pod.
    pub(super) fn plugin(&self) -> Command {
        self.flags.iter().fold(Command::new("kubectl").own("ipwatch"), |all, flag| all.asked(flag))
    }

    /// Removes an allocation from its pool, and then deletes its overlapping reservation.
    pub(super) fn free(
        &self,
        first: &'static str,
        pool: &Pool,
        allocation: &Allocation,
        overlapping: Option<&Overlapping>,
    ) -> Step {
        let offset = allocation.offset.to_string();
        let what =
            text!("{}free offset {} ({})", first, Part::Plain(offset.clone()), allocation.ip);
        let remove = kubernetes::remove_allocation(
            self.command(&[]),
            &kubernetes::Allocation {
                namespace: &pool.namespace,
                pool: &pool.name,
                range: Some(&pool.range),
                offset: &offset,
                id: &allocation.id,
                podref: allocation.podref.as_deref(),
            },
        );
        let Some(one) = overlapping else { return Step::change(what, remove) };
        let what = what.then(&text!(", and if that went through its overlapping reservation"));
        match self.delete(one) {
            Some(delete) => Step::change(what, remove.and(delete)),
            None => Step::advice(what),
        }
    }

    /// Deletes an overlapping reservation if it is unchanged. `None` if no command can express that.
    pub(super) fn delete(&self, overlapping: &Overlapping) -> Option<Command> {
        const PATH: &str = "--raw=/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/{}/\
                            overlappingrangeipreservations/{}";
        let Overlapping { namespace, name, uid, version, .. } = overlapping;
        kubernetes::delete(self.command(&[]), PATH, [namespace, name], uid, Some(version))
    }
}

/// Asks the runtimes of nodes where pods are being started for this container.
pub(super) fn sandbox(nodes: &BTreeSet<&str>, id: &str) -> Step {
    let some = nodes.iter().take(NAMED).map(|node| text!("{}", value(node)));
    let more = match nodes.len().saturating_sub(NAMED) {
        0 => Text::default(),
        more => text!(" and {} more", more),
    };
    let what = text!(
        "look on each node where pods are being made, {}{}: where this finds the container, a pod has the IP or is \
         about to, and nothing is to be freed; `ipwatch query` there tells too",
        Text::join(some, ", "),
        more
    );
    Step::look(what, Command::new("crictl").own("inspectp").value(id))
}

/// Whether an option is one that we write.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn is_our_option(word: &str) -> bool {
    const OURS: [&str; 9] =
        ["-n", "-o", "-A", "-F", "-w", "-f", "-", "--type=json", "--show-problem-ips"];
    const BEGIN: [&str; 3] = ["--patch=[", "--raw=/apis/", "--ip="];
    OURS.contains(&word) || BEGIN.iter().any(|one| word.starts_with(one))
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

    fn overlapping() -> Overlapping {
        Overlapping {
            namespace: "kube-system".into(),
            name: "10.0.0.11".into(),
            uid: "uid-1".into(),
            version: "77".into(),
            podref: None,
            claimed: false,
        }
    }

    #[test]
    fn an_entry_is_tested_before_it_is_removed() {
        let kubectl = Kubectl { flags: vec!["--context".into(), "my cluster".into()] };
        let step = kubectl.free("", &pool(), &allocation("abc", Some("shop/web-0")), None);
        assert_eq!(
            step.command.unwrap().sh(),
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
        let step = Kubectl::default().free("", &pool(), &allocation(evil, None), None);
        let command = step.command.unwrap().sh();
        assert!(command.chars().all(|c| (' '..='~').contains(&c)), "{command:?}");
        // The shell parses the word as it was meant.
        let echoed = command.replacen("kubectl patch", "printf '%s\\n'", 1);
        let out = std::process::Command::new("sh").args(["-c", &echoed]).output().unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        let patch = said.lines().last().unwrap().strip_prefix("--patch=").unwrap();
        let patch: serde_json::Value = serde_json::from_str(patch).unwrap();
        assert_eq!(patch[1]["value"], evil);
        // A name that cannot be typed makes no command.
        let named = Pool { name: evil.into(), ..pool() };
        let step = Kubectl::default().free("", &named, &allocation("abc", None), None);
        assert_eq!(step.command, None);
    }

    #[test]
    fn an_overlapping_reservation_goes_only_after_its_entry_and_only_if_it_is_the_same() {
        let kubectl = Kubectl::default();
        let step = kubectl.free("", &pool(), &allocation("abc", None), Some(&overlapping()));
        let command = step.command.unwrap().sh();
        let (patch, delete) = command.split_once(" && ").unwrap();
        assert!(patch.starts_with("kubectl patch "), "{command}");
        assert_eq!(
            delete,
            "printf %s '{\"apiVersion\":\"v1\",\"kind\":\"DeleteOptions\",\"preconditions\":\
             {\"resourceVersion\":\"77\",\"uid\":\"uid-1\"}}' | kubectl delete \
             --raw=/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/\
             overlappingrangeipreservations/10.0.0.11 -f -"
        );
        // If the first request fails, the second is not sent.
        let run = command.replacen("kubectl patch", "false", 1).replace("kubectl delete", "echo");
        let out = std::process::Command::new("sh").args(["-c", &run]).output().unwrap();
        assert!(!out.status.success() && out.stdout.is_empty(), "{out:?}");
        // An object that cannot be identified, or that would be another path, is not deleted; then its entry is not
        // removed either.
        for other in [
            Overlapping { uid: String::new(), ..overlapping() },
            Overlapping { version: String::new(), ..overlapping() },
            Overlapping { name: "../pods/x".into(), ..overlapping() },
            Overlapping { name: "..".into(), ..overlapping() },
            Overlapping { namespace: "x?dryRun=".into(), ..overlapping() },
        ] {
            let step = kubectl.free("", &pool(), &allocation("abc", None), Some(&other));
            assert_eq!(step.command, None, "{other:?}");
        }
    }

    #[test]
    fn what_an_object_says_is_never_an_option() {
        let kubectl = Kubectl { flags: vec!["--context".into(), "-x".into()] };
        assert_eq!(kubectl.get("", "node", "a", "--kubeconfig=x").command, None);
        assert_eq!(kubectl.get("", "node", "-A", "x").command, None);
        assert_eq!(kubectl.get_global("", "node", "-n").command, None);
        assert_eq!(kubectl.machine(Some("--raw=/")).command, None);
        assert!(!kubectl.plugin().value("--help").is_typed());
        let named = Pool { name: "--all".into(), ..pool() };
        assert_eq!(kubectl.free("", &named, &allocation("abc", None), None).command, None);
        assert!(is_our_option("-n") && !is_our_option("--all"));
    }

    #[test]
    fn every_program_asks_the_same_cluster() {
        let flags = ["--kubeconfig", "/k c", "--context", "prod"].map(str::to_owned).to_vec();
        let kubectl = Kubectl { flags };
        let show = kubectl.calicoctl().owns(&["ipam", "check"]).sh();
        assert_eq!(
            show,
            "env DATASTORE_TYPE=kubernetes 'KUBECONFIG=/k c' calicoctl --context=prod ipam check"
        );
        let plugin = kubectl.plugin().own("-n").value("shop").value("web-0");
        assert_eq!(plugin.sh(), "kubectl ipwatch --kubeconfig '/k c' --context prod -n shop web-0");
        let step = kubectl.free("", &pool(), &allocation("abc", None), Some(&overlapping()));
        assert_eq!(
            step.command.unwrap().sh().matches("--kubeconfig '/k c' --context prod").count(),
            2
        );
        let plain = Kubectl::default().calicoctl().owns(&["ipam", "check"]);
        assert_eq!(plain.sh(), "calicoctl ipam check");
    }
}
