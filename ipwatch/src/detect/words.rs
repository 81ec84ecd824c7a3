//! What several detectors say in the same way.

use super::cause::quoted;
use crate::contract::{Container, Holder, Pod};
use crate::fact::BootNs;
use crate::finding::{Evidence, Subject};
use crate::map::{CallHistory, Netns, NodeMap, ReservationEntry, SandboxEntry};

/// Addresses of a netns that are listed.
const LISTED: usize = 8;
/// Holders of a netns that are listed.
const HOLDERS: usize = 64;

/// Evidence in the order it is told.
pub(super) struct Proof<'a> {
    map: &'a NodeMap,
    items: Vec<Evidence>,
}

impl<'a> Proof<'a> {
    pub(super) fn new(map: &'a NodeMap) -> Self {
        Self { map, items: Vec::new() }
    }

    pub(super) fn tell(&mut self, source: &str, at: BootNs, text: String) {
        let at = self.map.calendar().date(at);
        self.items.push(Evidence { source: source.to_owned(), at, text });
    }

    /// What its runtime says of a sandbox.
    pub(super) fn runtime(&mut self, entry: &SandboxEntry) {
        let sandbox = &entry.sandbox;
        let dead = entry.dead.unwrap_or(entry.told);
        let attempt = sandbox.attempt.map(|n| format!(", attempt {n}")).unwrap_or_default();
        let id = short(&sandbox.id);
        let since = if entry.preexisting { " when first asked" } else { "" };
        match entry.gone {
            Some(gone) => self.tell(
                &sandbox.runtime,
                gone,
                format!(
                    "sandbox {id}{attempt} is not there any more; last it was {}",
                    sandbox.word
                ),
            ),
            None if entry.dead.is_some() => {
                self.tell(
                    &sandbox.runtime,
                    dead,
                    format!("sandbox {id}{attempt} is {}{since}", sandbox.word),
                );
            }
            None => {
                self.tell(
                    &sandbox.runtime,
                    entry.told,
                    format!("sandbox {id}{attempt} is {}", sandbox.word),
                );
            }
        }
    }

    /// Where an IP is up, and who is there.
    pub(super) fn holder(&mut self, netns: &Netns, now: BootNs) {
        let ips = addresses(netns).join(", ");
        self.tell("netlink", now, format!("still up in {}: {ips}", netns_text(netns)));
        if let Some(entry) = netns.owner().and_then(|owner| self.map.sandbox(&owner.sandbox)) {
            self.runtime(entry);
        } else if let Some(owner) = netns.owner() {
            self.tell(
                "procfs",
                now,
                format!("it is the netns of sandbox {}", short(&owner.sandbox)),
            );
        }
        let pids: Vec<String> = netns.tasks().take(8).map(|task| task.pid.to_string()).collect();
        if !pids.is_empty() {
            self.tell("procfs", now, format!("in it: pid {}", pids.join(", ")));
        }
    }

    /// How the ADDs and DELs of a netns's sandbox went.
    pub(super) fn calls_of(&mut self, netns: &Netns) {
        let history = netns.owner().and_then(|owner| self.map.call_history(&owner.sandbox));
        if let Some(history) = history {
            self.dels(history);
        }
    }

    /// How the DELs of a container went.
    pub(super) fn dels(&mut self, history: &CallHistory) {
        let del = &history.del;
        if let Some(ended) = del.ended {
            let text = match del.failures {
                0 => "DEL was run for it and succeeded".to_owned(),
                n => {
                    format!("DEL was run for it and failed, {} in a row", count(n as usize, "time"))
                }
            };
            self.tell("probe", ended, text);
        }
        if let Some((command, text, at)) = &history.error {
            self.tell("runtime log", *at, format!("{}: {text}", command.as_str()));
        }
    }

    pub(super) fn done(self) -> Vec<Evidence> {
        self.items
    }
}

/// A netns as a subject, with its first IP and whose it is.
pub(super) fn subject(map: &NodeMap, netns: &Netns) -> Subject {
    let (container, pod) = map.sandbox_of(netns.id);
    Subject {
        ip: netns.routable().map(|(key, _)| key.local).next(),
        netns: Some(map.netns_view(netns)),
        container,
        pod,
        network: None,
    }
}

pub(super) fn netns_text(netns: &Netns) -> String {
    match (netns.names.inode, netns.names.cookie) {
        (Some(inode), Some(cookie)) => format!("net:[{inode}] (cookie {cookie})"),
        (Some(inode), None) => format!("net:[{inode}]"),
        _ => netns.identity.to_string(),
    }
}

/// A device's name.
pub(super) fn device(netns: &Netns, ifindex: u32) -> String {
    netns.link(ifindex).map_or_else(|| format!("device {ifindex}"), |link| link.name.clone())
}

/// Its addresses, each with its device; of many the first.
pub(super) fn addresses(netns: &Netns) -> Vec<String> {
    let text = |ifindex: u32| device(netns, ifindex);
    let mut all = netns.routable();
    let first = all.by_ref().take(LISTED);
    let mut listed: Vec<String> = first
        .map(|(key, _)| format!("{}/{} on {}", key.local, key.prefix_len, text(key.ifindex)))
        .collect();
    let more = all.count();
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    listed
}

/// Of many holders the first: a finding is kept, written and sent, and `query` lists all.
pub(super) fn bounded(mut holders: Vec<Holder>) -> Vec<Holder> {
    holders.truncate(HOLDERS);
    holders
}

/// The pod, else the container, else `otherwise`.
pub(super) fn owner(pod: Option<&Pod>, container: Option<&Container>, otherwise: &str) -> String {
    match (pod, container.and_then(|container| container.id.as_deref())) {
        (Some(Pod { namespace: Some(namespace), name: Some(name), .. }), _) => {
            format!("pod {namespace}/{name}")
        }
        (_, Some(id)) => format!("container {}", short(id)),
        _ => otherwise.to_owned(),
    }
}

/// How to unmount a path in another mount namespace. `nsenter` runs the `umount` of that namespace's
/// image, which may have none; `umount -N` (util-linux 2.35) brings its own.
pub(super) fn unmount(pid: u32, path: &str) -> String {
    let path = quoted(path);
    format!(
        "nsenter --mount=/proc/{pid}/ns/mnt umount {path} (or, where its image has no umount: \
         umount -N {pid} {path})"
    )
}

/// For whom a reservation is: the pod, else the container.
pub(super) fn reserved_for(entry: &ReservationEntry) -> String {
    match (&entry.pod, entry.container_id.as_deref()) {
        (Some(pod), Some(id)) => {
            format!("pod {}/{} (container {})", pod.namespace, pod.name, short(id))
        }
        (Some(pod), None) => format!("pod {}/{}", pod.namespace, pod.name),
        (None, Some(id)) => format!("container {}", short(id)),
        (None, None) => "nobody by name".to_owned(),
    }
}

/// A moment of the wall clock, Unix time in nanoseconds.
pub(super) fn date(wall: i64) -> Option<String> {
    let at = u64::try_from(wall).ok()?;
    let date = crate::clock::Calendar::default().date(BootNs(at));
    (!date.is_empty()).then_some(date)
}

/// A container's id as runtimes show it.
pub(super) fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// `word` with its count.
pub(super) fn count(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}
