//! Commands that look, and commands that free: as text for a person's shell, never run here. Pure.
//!
//! What frees an allocation of Whereabouts tests first that it is still the same one, in the same request: whoever was
//! given the IP meanwhile keeps it. Its overlapping reservation is deleted by the same command line, only where that
//! went through, and only while it is the object that was seen: Whereabouts itself would give the IP to a new pod of
//! the same name meanwhile. Nothing guards `calicoctl ipam release` so: it is never told.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::json;

use super::world::{Allocation, Overlapping, Pool};
use crate::contract::ClusterStep;

pub(super) const POOLS: &str = "ippools.whereabouts.cni.cncf.io";
pub(super) const OVERLAPPING: &str = "overlappingrangeipreservations.whereabouts.cni.cncf.io";
pub(super) const BLOCKS: &str = "ipamblocks.crd.projectcalico.org";
pub(super) const HANDLES: &str = "ipamhandles.crd.projectcalico.org";

/// Nodes that are named where there are many.
pub(super) const NAMED: usize = 5;

/// `kubectl`, for the cluster that was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kubectl {
    /// Its `--kubeconfig` and `--context`.
    pub(crate) flags: Vec<String>,
}

/// A word of a command.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word<'a> {
    /// Ours, or of the person who asked.
    Own(&'a str),
    /// An object says it: never an option.
    Theirs(&'a str),
}

use Word::{Own, Theirs};

impl Word<'_> {
    /// Quoted where a shell would act on it. `None`: nobody can type it, or a program would take it for an option.
    fn typed(self) -> Option<String> {
        match self {
            Own(text) => quoted(text),
            Theirs(text) => quoted(text).filter(|_| !text.starts_with('-')),
        }
    }
}

impl Kubectl {
    /// A command of these words. `None`: one of them is nothing that can be typed.
    fn command(&self, words: &[Word<'_>]) -> Option<String> {
        let flags = self.flags.iter().map(|flag| Own(flag));
        line([Own("kubectl")].into_iter().chain(flags).chain(words.iter().copied()))
    }

    /// What one of its flags says.
    fn flag(&self, name: &str) -> Option<&str> {
        let at = self.flags.iter().position(|flag| flag == name)?;
        self.flags.get(at + 1).map(String::as_str)
    }

    /// Shows something.
    pub(super) fn look(&self, what: &str, words: &[Word<'_>]) -> ClusterStep {
        looks(what, self.command(words))
    }

    /// Shows who says that it has an IP, in `podIPs` or in what Multus says of it.
    pub(super) fn users(&self, ip: IpAddr) -> ClusterStep {
        let pods = self.command(&[Own("get"), Own("pods"), Own("-A"), Own("-o"), Own("yaml")]);
        let what = "look whether any pod has the IP: this is to show none";
        looks(what, pods.map(|pods| format!("{pods} | grep -F -w {ip}")))
    }

    /// Shows an object of a namespace.
    pub(super) fn get(&self, what: &str, kind: &str, namespace: &str, name: &str) -> ClusterStep {
        let place = [Own("get"), Own(kind), Own("-n"), Theirs(namespace), Theirs(name)];
        self.look(what, &[&place[..], &[Own("-o"), Own("yaml")]].concat())
    }

    /// Shows an object of the cluster.
    pub(super) fn get_global(&self, what: &str, kind: &str, name: &str) -> ClusterStep {
        self.look(what, &[Own("get"), Own(kind), Theirs(name), Own("-o"), Own("yaml")])
    }

    /// Shows all pods and their nodes.
    pub(super) fn pods(&self, what: &str) -> ClusterStep {
        self.look(what, &[Own("get"), Own("pods"), Own("-A"), Own("-o"), Own("wide")])
    }

    /// Shows the node on which a container may still run, or all where nobody says which.
    pub(super) fn machine(&self, node: Option<&str>) -> ClusterStep {
        let Some(node) = node else {
            let what = "which node had it is not said: on one that does not answer or is gone its container may \
                        still run; `ipwatch query ip` there tells";
            return self.look(what, &[Own("get"), Own("nodes"), Own("-o"), Own("wide")]);
        };
        let what = "look whether its node answers: else its container may still run there; `ipwatch query ip` there \
                    tells";
        self.look(what, &[Own("get"), Own("node"), Theirs(node), Own("-o"), Own("wide")])
    }

    /// Asks Calico's own tool of the same cluster.
    pub(super) fn calicoctl(&self, what: &str, words: &[Word<'_>]) -> ClusterStep {
        let config = self.flag("--kubeconfig").map(|path| format!("KUBECONFIG={path}"));
        let context = self.flag("--context").map(|name| format!("--context={name}"));
        let mut all = Vec::new();
        if let Some(config) = &config {
            all.extend([Own("env"), Own("DATASTORE_TYPE=kubernetes"), Own(config)]);
        }
        all.push(Own("calicoctl"));
        all.extend(context.iter().map(|name| Own(name)));
        all.extend(words);
        looks(what, line(all))
    }

    /// Asks ipwatch on the node of a pod.
    pub(super) fn plugin(&self, what: &str, words: &[Word<'_>]) -> ClusterStep {
        let flags = self.flags.iter().map(|flag| Own(flag));
        let all = [Own("kubectl"), Own("ipwatch")].into_iter().chain(flags);
        looks(what, line(all.chain(words.iter().copied())))
    }

    /// Takes an allocation out of its pool, and then deletes its overlapping reservation.
    pub(super) fn free(
        &self,
        pool: &Pool,
        allocation: &Allocation,
        overlapping: Option<&Overlapping>,
    ) -> ClusterStep {
        let mut what = format!("free offset {} ({})", allocation.offset, allocation.ip);
        let mut command = self.remove(pool, allocation);
        if let Some(one) = overlapping {
            what.push_str(", and if that went through its overlapping reservation");
            command =
                command.zip(self.delete(one)).map(|(first, then)| format!("{first} && {then}"));
        }
        ClusterStep { what, command, changes: true }
    }

    fn remove(&self, pool: &Pool, allocation: &Allocation) -> Option<String> {
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
        let place =
            [Own("patch"), Own(POOLS), Own("-n"), Theirs(&pool.namespace), Theirs(&pool.name)];
        self.command(&[&place[..], &[Own("--type=json"), Own(&patch)]].concat())
    }

    /// Deletes an overlapping reservation that is still what it was. `None`: that cannot be said in a command.
    pub(super) fn delete(&self, overlapping: &Overlapping) -> Option<String> {
        let Overlapping { namespace, name, uid, version, .. } = overlapping;
        if ![namespace, name].into_iter().all(|one| is_name(one))
            || uid.is_empty()
            || version.is_empty()
        {
            return None;
        }
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": version},
        });
        let (resource, group) = OVERLAPPING.split_once('.')?;
        let path = format!("--raw=/apis/{group}/v1alpha1/namespaces/{namespace}/{resource}/{name}");
        let options = ascii(&options.to_string());
        let said = line([Own("printf"), Own("%s"), Own(&options)])?;
        let delete = self.command(&[Own("delete"), Own(&path), Own("-f"), Own("-")])?;
        Some(format!("{said} | {delete}"))
    }
}

/// A step that only looks.
fn looks(what: &str, command: Option<String>) -> ClusterStep {
    ClusterStep { what: what.to_owned(), command, changes: false }
}

/// Asks the runtimes of nodes where pods are being made whether one of them is this container.
pub(super) fn sandbox(nodes: &BTreeSet<&str>, id: &str) -> ClusterStep {
    let some: Vec<&str> = nodes.iter().copied().take(NAMED).collect();
    let more = match nodes.len() - some.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!(
        "look on each node where pods are being made, {}{more}: where this finds the container, a pod has the IP or is \
         about to, and nothing is to be freed; `ipwatch query` there tells too",
        some.join(", ")
    );
    looks(&what, line([Own("crictl"), Own("inspectp"), Theirs(id)]))
}

/// A step that is no command.
pub(super) fn advice(what: String) -> ClusterStep {
    ClusterStep { what, command: None, changes: false }
}

/// Words as a person types them.
fn line<'a>(words: impl IntoIterator<Item = Word<'a>>) -> Option<String> {
    Some(words.into_iter().map(Word::typed).collect::<Option<Vec<_>>>()?.join(" "))
}

/// What may stand in a path: nothing that makes it another one.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(plain)
}

/// Quoted where a shell would act on it. `None`: it has what no terminal shows.
fn quoted(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/:=@%+,-".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return Some(text.to_owned());
    }
    let typed = text.chars().all(|c| (' '..='~').contains(&c));
    typed.then(|| format!("'{}'", text.replace('\'', r"'\''")))
}

/// Options of a command that are none of ours: what a shell makes of it is looked at.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn foreign_options(command: &str) -> Vec<String> {
    const OURS: [&str; 8] = ["-n", "-o", "-A", "-F", "-w", "-f", "-", "--type=json"];
    const BEGIN: [&str; 4] = ["--patch=[", "--raw=/apis/", "--ip=", "--show-problem-ips"];
    let (mut words, mut inside) = (vec![String::new()], false);
    let mut chars = command.chars();
    while let (Some(c), Some(word)) = (chars.next(), words.last_mut()) {
        match c {
            '\'' => inside = !inside,
            '\\' if !inside => word.extend(chars.next()),
            ' ' if !inside => words.push(String::new()),
            c => word.push(c),
        }
    }
    words.retain(|word| word.starts_with('-'));
    words.retain(|word| !OURS.contains(&&**word) && !BEGIN.iter().any(|one| word.starts_with(one)));
    words
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
        let step = kubectl.free(&pool(), &allocation("abc", Some("shop/web-0")), None);
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
        let step = Kubectl::default().free(&pool(), &allocation(evil, None), None);
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
        let step = Kubectl::default().free(&named, &allocation("abc", None), None);
        assert_eq!(step.command, None);
    }

    #[test]
    fn an_overlapping_reservation_goes_only_after_its_entry_and_only_if_it_is_the_same() {
        let kubectl = Kubectl::default();
        let step = kubectl.free(&pool(), &allocation("abc", None), Some(&overlapping()));
        let command = step.command.unwrap();
        let (patch, delete) = command.split_once(" && ").unwrap();
        assert!(patch.starts_with("kubectl patch "), "{command}");
        assert_eq!(
            delete,
            "printf %s '{\"apiVersion\":\"v1\",\"kind\":\"DeleteOptions\",\"preconditions\":\
             {\"resourceVersion\":\"77\",\"uid\":\"uid-1\"}}' | kubectl delete \
             --raw=/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/\
             overlappingrangeipreservations/10.0.0.11 -f -"
        );
        // Where the first fails, nothing comes after it.
        let run = command.replacen("kubectl patch", "false", 1).replace("kubectl delete", "echo");
        let out = std::process::Command::new("sh").args(["-c", &run]).output().unwrap();
        assert!(!out.status.success() && out.stdout.is_empty(), "{out:?}");
        // What is not known to be the same, or would be another path, is not deleted, and its entry not without it.
        for other in [
            Overlapping { uid: String::new(), ..overlapping() },
            Overlapping { version: String::new(), ..overlapping() },
            Overlapping { name: "../pods/x".into(), ..overlapping() },
            Overlapping { name: "..".into(), ..overlapping() },
            Overlapping { namespace: "x?dryRun=".into(), ..overlapping() },
        ] {
            let step = kubectl.free(&pool(), &allocation("abc", None), Some(&other));
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
        assert_eq!(kubectl.plugin("", &[Theirs("--help")]).command, None);
        let named = Pool { name: "--all".into(), ..pool() };
        assert_eq!(kubectl.free(&named, &allocation("abc", None), None).command, None);
        assert_eq!(foreign_options("kubectl get 'a b' '-'\\''x' --all -n x"), ["-'x", "--all"]);
    }

    #[test]
    fn every_program_asks_the_same_cluster() {
        let flags = ["--kubeconfig", "/k c", "--context", "prod"].map(str::to_owned).to_vec();
        let kubectl = Kubectl { flags };
        let show = kubectl.calicoctl("", &[Own("ipam"), Own("check")]).command.unwrap();
        assert_eq!(
            show,
            "env DATASTORE_TYPE=kubernetes 'KUBECONFIG=/k c' calicoctl --context=prod ipam check"
        );
        let plugin = kubectl.plugin("", &[Own("-n"), Theirs("shop"), Theirs("web-0")]);
        assert_eq!(
            plugin.command.unwrap(),
            "kubectl ipwatch --kubeconfig '/k c' --context prod -n shop web-0"
        );
        let step = kubectl.free(&pool(), &allocation("abc", None), Some(&overlapping()));
        assert_eq!(step.command.unwrap().matches("--kubeconfig '/k c' --context prod").count(), 2);
        let plain = Kubectl::default().calicoctl("", &[Own("ipam"), Own("check")]);
        assert_eq!(plain.command.unwrap(), "calicoctl ipam check");
    }
}
