//! Evidence, texts and commands that several detectors share.

use crate::contract::{Container, Holder, Pod};
use crate::fact::{BootNs, Holder as Held, SourceName};
use crate::finding::{Code, Evidence, Subject, finding_id};
use crate::map::{CallHistory, Netns, NodeMap, ReservationEntry, SandboxEntry};
use crate::remedy::{self, Command, Step, Text, guard, said, text, value};

/// Maximum number of listed addresses of a netns.
const LISTED: usize = 8;
/// Maximum number of listed holders of a netns.
const HOLDERS: usize = 64;
/// Why a sandbox that no runtime ever reported is not being made either.
pub(super) const NOT_BEING_MADE: &str =
    "every runtime was started after the sandbox was begun, so none of them is still making it";

/// The source of an item of evidence.
#[derive(Debug, Clone, Copy)]
pub(super) enum By<'a> {
    /// The CNI result cache, or a run of a plugin.
    Cni,
    KernelLog,
    Kubelet,
    Kubernetes,
    Neighbours,
    Netlink,
    Probe,
    Procfs,
    /// A runtime whose name is unknown.
    Runtime,
    RuntimeLog,
    /// A packet.
    Wire,
    /// A runtime, a store or a datastore, by its name.
    Named(&'a str),
}

impl By<'_> {
    fn as_str(&self) -> &str {
        match self {
            By::Cni => SourceName::Cni.as_str(),
            By::KernelLog => "kernel log",
            By::Kubelet => SourceName::Kubelet.as_str(),
            By::Kubernetes => SourceName::Kubernetes.as_str(),
            By::Neighbours => SourceName::Neighbours.as_str(),
            By::Netlink => SourceName::Netlink.as_str(),
            By::Probe => "probe",
            By::Procfs => SourceName::Procfs.as_str(),
            By::Runtime => SourceName::Runtime.as_str(),
            By::RuntimeLog => "runtime log",
            By::Wire => "wire",
            By::Named(name) => name,
        }
    }
}

/// Evidence, in the order in which it is presented.
pub(super) struct Proof<'a> {
    map: &'a NodeMap,
    items: Vec<Evidence>,
}

impl<'a> Proof<'a> {
    pub(super) fn new(map: &'a NodeMap) -> Self {
        Self { map, items: Vec::new() }
    }

    pub(super) fn tell(&mut self, by: By<'_>, at: BootNs, text: impl ToString) {
        let at = self.map.calendar().date(at);
        self.items.push(Evidence { source: by.as_str().to_owned(), at, text: text.to_string() });
    }

    /// Adds a runtime's report on a sandbox.
    pub(super) fn runtime(&mut self, entry: &SandboxEntry) {
        let sandbox = &entry.sandbox;
        let dead = entry.dead.unwrap_or(entry.told);
        let attempt = sandbox.attempt.map(|n| format!(", attempt {n}")).unwrap_or_default();
        let (id, word) = (said(short(&sandbox.id)), said(&sandbox.word));
        let since = if entry.preexisting { " when first asked" } else { "" };
        match entry.gone {
            Some(gone) => self.tell(
                By::Named(&sandbox.runtime),
                gone,
                format!("sandbox {id}{attempt} no longer exists; it was last {word}"),
            ),
            None if entry.dead.is_some() => {
                self.tell(
                    By::Named(&sandbox.runtime),
                    dead,
                    format!("sandbox {id}{attempt} is {word}{since}"),
                );
            }
            None => {
                self.tell(
                    By::Named(&sandbox.runtime),
                    entry.told,
                    format!("sandbox {id}{attempt} is {word}"),
                );
            }
        }
    }

    /// Adds where an IP is up, and who is there: those that the holders name.
    pub(super) fn holder(&mut self, netns: &Netns, now: BootNs) {
        let ips = addresses(netns).join(", ");
        self.tell(By::Netlink, now, format!("still up in {}: {ips}", netns_text(netns)));
        if let Some(entry) = netns.owner().and_then(|owner| self.map.sandbox(&owner.sandbox)) {
            self.runtime(entry);
        } else if let Some(owner) = netns.owner() {
            self.tell(
                By::Procfs,
                now,
                format!("it is the netns of sandbox {}", said(short(&owner.sandbox))),
            );
        }
        let tasks = self.map.residents(netns, now).take(8);
        let pids: Vec<String> = tasks.map(|task| task.pid.to_string()).collect();
        if !pids.is_empty() {
            self.tell(By::Procfs, now, format!("in it: pid {}", pids.join(", ")));
        }
    }

    /// Adds the results of the DELs of a netns's sandbox.
    pub(super) fn calls_of(&mut self, netns: &Netns) {
        let history = netns.owner().and_then(|owner| self.map.call_history(&owner.sandbox));
        if let Some(history) = history {
            self.dels(history);
        }
    }

    /// Adds the results of the DELs of a container.
    pub(super) fn dels(&mut self, history: &CallHistory) {
        let del = &history.del;
        if let Some(ended) = del.ended {
            let text = match del.failures {
                0 => "DEL was run for it and succeeded".to_owned(),
                n => {
                    format!("DEL was run for it and failed, {} in a row", count(n as usize, "time"))
                }
            };
            self.tell(By::Probe, ended, text);
        }
        if let Some((command, text, at)) = &history.error {
            self.tell(By::RuntimeLog, *at, format!("{}: {}", command.as_str(), said(text)));
        }
    }

    pub(super) fn done(self) -> Vec<Evidence> {
        self.items
    }
}

/// A netns as a subject, with its first IP and its owner.
pub(super) fn subject(map: &NodeMap, netns: &Netns) -> Subject {
    let (container, pod) = map.sandbox_of(netns.id);
    Subject {
        ip: netns.routable().map(|(key, _)| key.local).next(),
        netns: Some(map.netns_view(netns)),
        container,
        pod,
        ..Subject::default()
    }
}

pub(super) fn netns_text(netns: &Netns) -> Text {
    match (netns.names.inode, netns.names.cookie) {
        (Some(inode), Some(cookie)) => text!("net:[{}] (cookie {})", inode, cookie),
        (Some(inode), None) => text!("net:[{}]", inode),
        _ => text!("netns {}", value(&netns.identity.to_string())),
    }
}

/// A device's name.
pub(super) fn device(netns: &Netns, ifindex: u32) -> String {
    netns.link(ifindex).map_or_else(|| format!("device {ifindex}"), |link| link.name.clone())
}

/// A device's name as written in evidence.
pub(super) fn device_said(netns: &Netns, ifindex: u32) -> String {
    netns.link(ifindex).map_or_else(|| format!("device {ifindex}"), |link| said(&link.name))
}

/// Its addresses, each with its device; only the first if there are many.
pub(super) fn addresses(netns: &Netns) -> Vec<String> {
    let text = |ifindex: u32| device_said(netns, ifindex);
    let mut all = netns.routable();
    let first = all.by_ref().take(LISTED);
    let mut listed: Vec<String> = first
        .map(|(key, known)| format!("{}/{} on {}", key.local, known.prefix_len, text(key.ifindex)))
        .collect();
    let more = all.count();
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    listed
}

/// The first holders: a finding is kept, written and sent, and `query` lists all.
pub(super) fn bounded(mut holders: Vec<Holder>) -> Vec<Holder> {
    holders.truncate(HOLDERS);
    holders
}

/// The pod, else the container, else `otherwise`.
pub(super) fn owner(pod: Option<&Pod>, container: Option<&Container>, otherwise: Text) -> Text {
    match (pod, container.and_then(|container| container.id.as_deref())) {
        (Some(Pod { namespace: Some(namespace), name: Some(name), .. }), _) => {
            text!("pod {}", value(&format!("{namespace}/{name}")))
        }
        (_, Some(id)) => text!("container {}", value(short(id))),
        _ => otherwise,
    }
}

/// A command that succeeds only while the finding with this code and key is open.
pub(super) fn is_found(code: Code, key: &str) -> Command {
    guard::is_still_found(&finding_id(code, key))
}

/// Whether `crictl` queries the runtime of this name. A second runtime of a kind has its socket in its name, and
/// `crictl` queries the first.
pub(super) fn crictl_asks(runtime: &str) -> bool {
    matches!(runtime, "containerd" | "cri-o")
}

/// The runtime that has a sandbox, or last had it.
pub(super) fn runtime_of<'a>(map: &'a NodeMap, id: &str) -> Option<&'a str> {
    map.sandbox(id).map(|entry| &*entry.sandbox.runtime)
}

/// Makes the runtime of a sandbox end and remove it, guarded by `still`. If `crictl` does not query that runtime there
/// is no command.
pub(super) fn remove_sandbox(map: &NodeMap, what: Text, still: Command, id: &str) -> Step {
    match runtime_of(map, id) {
        Some(runtime) if crictl_asks(runtime) => remedy::remove_sandbox(what, still, id),
        runtime => by_its_client(what, runtime),
    }
}

/// Stops a container with the client of its runtime, if that is known.
pub(super) fn stop(runtime: Option<&str>, id: &str) -> Option<Command> {
    let client = match runtime? {
        "docker" => Command::new("docker").own("stop"),
        runtime if crictl_asks(runtime) => Command::new("crictl").own("stopp"),
        _ => return None,
    };
    Some(client.value(id))
}

/// Keeps whatever may be given an IP away from the node while something is `still` wrong: pods by `kubectl cordon`. A
/// container that docker or podman has and no kubelet made is in a network of theirs, for whose containers there is no such
/// command, and perhaps no cluster. `pods` and `containers` say what not to start.
pub(super) fn no_more(
    map: &NodeMap,
    container: Option<&str>,
    (pods, containers): (Text, Text),
    still: Command,
) -> Step {
    let known = container.and_then(|id| map.sandbox(id)).map(|entry| &entry.sandbox);
    let is_theirs = |runtime: &str| matches!(runtime, "docker" | "podman");
    if known.is_some_and(|known| known.pod.is_none() && is_theirs(&known.runtime)) {
        return Step::advice(containers);
    }
    remedy::cordon(pods, map.boot().map_or("", |boot| &*boot.node), still)
}

/// What not to start where the next one may be given the IP.
pub(super) fn may_be_given() -> (Text, Text) {
    (
        text!("Start no new pod here, it may be given this IP"),
        text!("Start no new container in its network, it may be given this IP."),
    )
}

/// What not to start where two have an IP, or are about to.
pub(super) fn more_of_them() -> (Text, Text) {
    (text!("Start no more pods here"), text!("Start no more containers in its network."))
}

/// Advice to use a runtime's own client.
pub(super) fn by_its_client(what: Text, runtime: Option<&str>) -> Step {
    let client = match runtime {
        Some(name) => {
            text!(". Use the client of {} for that, only while this finding is open.", value(name))
        }
        None => text!(". Use its runtime's client for that, only while this finding is open."),
    };
    Step::advice(what.then(&client))
}

/// Asks the runtime of a container whether it still has it. `crictl` says not found for everything that another runtime
/// has.
pub(super) fn ask_runtime(map: &NodeMap, id: &str) -> Step {
    match runtime_of(map, id) {
        Some(runtime) if crictl_asks(runtime) => Step::look(
            text!("Ask the runtime for the container: this must say not found"),
            Command::new("crictl").own("inspectp").value(id),
        ),
        Some(runtime) => Step::advice(text!(
            "Ask {} for container {} with its own client: it must not know it. crictl does not ask {}.",
            value(runtime),
            value(id),
            value(runtime)
        )),
        None => Step::advice(text!(
            "Ask the runtime that created container {} for it, with that runtime's own client: it must not know it. \
             crictl asks CRI runtimes only, and says not found for all others.",
            value(id)
        )),
    }
}

/// A command that succeeds only while a netns is the same: one of its tasks still exists, or, without tasks other than
/// visitors, it is still mounted on the node.
pub(super) fn still(map: &NodeMap, netns: &Netns) -> Option<Command> {
    if let Some(task) = netns.inhabitants().find(|key| map.task(key).is_some()) {
        return Some(guard::is_same_task(task));
    }
    let inode = netns.names.inode?;
    netns.holders().find_map(|holder| match holder {
        Held::Mount { path, pid: 1, .. } => guard::is_mounted(1, inode, path),
        _ => None,
    })
}

/// Unmounts the file of an unused netns, if the file is still that netns.
pub(super) fn unmount_netns(netns: &Netns, pid: Option<u32>, mount_ns: u64, path: &str) -> Step {
    let command = || {
        let (pid, inode) = (pid?, netns.names.inode?);
        let mounted = guard::is_mounted(pid, inode, path)?;
        let unmount = match pid {
            // The mount there has just been compared.
            1 => Command::new("umount").path(path),
            _ => unmount(pid, mount_ns, path)?,
        };
        Some((pid, guard::is_unused(inode).and(mounted).and(unmount)))
    };
    match command() {
        Some((1, command)) => {
            let what = text!("Unmount it, if it is still this netns and nobody is in it");
            Step::change(what, command)
        }
        Some((pid, command)) => {
            let what = text!(
                "Unmount it where pid {} sees it, if it is still this netns and nobody is in it (umount of util-linux \
                 2.35 or newer)",
                pid
            );
            Step::change(what, command)
        }
        None => Step::advice(text!(
            "Unmount {} in mnt:[{}], only while it is this netns and nobody is in it.",
            value(path),
            mount_ns
        )),
    }
}

/// How to unmount a path in another mount namespace with the node's own `umount` (`-N`, util-linux 2.35): no program of
/// a container is run. `None` if no process is known to be there.
pub(super) fn unmount(pid: u32, mount_ns: u64, path: &str) -> Option<Command> {
    let unmount = match (pid, mount_ns) {
        (0, _) | (_, 0) => return None,
        (1, _) => Command::new("umount").path(path),
        _ => Command::new("umount").own("-N").number(pid).path(path),
    };
    Some(guard::is_in_mount_ns(pid, mount_ns).and(unmount))
}

/// The pod that a reservation is for, else the container.
pub(super) fn reserved_for(entry: &ReservationEntry) -> Text {
    let pod = entry.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name));
    match (&pod, entry.container_id.as_deref()) {
        (Some(pod), Some(id)) => text!("pod {} (container {})", value(pod), value(short(id))),
        (Some(pod), None) => text!("pod {}", value(pod)),
        (None, Some(id)) => text!("container {}", value(short(id))),
        (None, None) => text!("an unnamed owner"),
    }
}

/// A wall-clock time, given as Unix time in nanoseconds.
pub(super) fn date(wall: i64) -> Option<String> {
    let at = u64::try_from(wall).ok()?;
    let date = crate::clock::Calendar::default().date(BootNs(at));
    (!date.is_empty()).then_some(date)
}

/// A container's id in texts, shortened as runtimes do. Commands use the whole id.
pub(super) fn short(id: &str) -> &str {
    let end = id.char_indices().nth(12).map_or(id.len(), |(at, _)| at);
    &id[..end]
}

/// A few names, each quoted if needed.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(said).collect::<Vec<_>>().join(", ")
}

/// `word` with its count.
pub(super) fn count(n: usize, word: &'static str) -> Text {
    text!("{} {}{}", n, word, if n == 1 { "" } else { "s" })
}
