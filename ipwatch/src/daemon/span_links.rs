//! The spans that a finding's span links to: the tenures of its IP, the newest runs of CNI plugins for its container,
//! and the finding that caused it. The targets of links are exported even if the rest of their kind is not, so that
//! every link resolves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::contract::{Netns, Tenure};
use crate::fact::{CniCommand, NetnsRef, TaskKey};
use crate::finding::{Change, ChangeKind, Code, Finding};
use crate::ledger::Ledger;
use crate::map::{CallEntry, Duplicate, Ending, NetnsId, NodeMap, strip_var};
use crate::sinks::call::{Run, RunKey};
use crate::sinks::otlp::{Calls, Otlp};
use crate::sinks::teardown::Teardown;
use crate::sinks::tenure::{self, Held};
use crate::sinks::{self, Link};

/// Maximum number of findings whose links are kept, and of other spans that are known to have been sent.
const MOST: usize = 4096;
/// Maximum number of links of one finding.
const MOST_LINKS: usize = 16;

/// The links of open findings.
#[derive(Debug, Default)]
pub(super) struct SpanLinks {
    of: BTreeMap<String, Vec<Link>>,
    /// Tenures whose start was sent, by span id.
    tenures: BTreeSet<[u8; 8]>,
    /// Runs that are sent when they end, or were sent.
    runs: BTreeSet<TaskKey>,
}

impl SpanLinks {
    /// The links of the span of this change. Links found earlier are kept: the tenure may have ended when the finding
    /// does.
    pub(super) fn links(
        &mut self,
        change: &Change,
        map: &NodeMap,
        ledger: &Ledger,
        otlp: &Otlp,
    ) -> Vec<Link> {
        if !otlp.traces() {
            return Vec::new();
        }
        let finding = &change.finding;
        let mut links = self.of.remove(&finding.id).unwrap_or_default();
        let tenures = self.tenures_of(finding, map, ledger, otlp);
        let runs = otlp.calls().map(|calls| self.runs_of(finding, map, &calls));
        let cause = finding.caused_by.as_deref().and_then(|id| ledger.open_finding(id));
        let cause = cause.map(sinks::to_finding);
        for link in tenures.into_iter().chain(runs.into_iter().flatten()).chain(cause) {
            if links.len() < MOST_LINKS && !links.contains(&link) {
                links.push(link);
            }
        }
        if change.change != ChangeKind::Resolved && self.of.len() < MOST {
            self.of.insert(finding.id.clone(), links.clone());
        }
        links
    }

    fn tenures_of(
        &mut self,
        finding: &Finding,
        map: &NodeMap,
        ledger: &Ledger,
        otlp: &Otlp,
    ) -> Vec<Link> {
        let (Some(ip), Some(netns)) = (finding.subject.ip, &finding.subject.netns) else {
            return Vec::new();
        };
        let Some(own) = find(map, netns) else { return Vec::new() };
        let boot_id: Arc<str> = map.boot().map_or("", |boot| &boot.boot_id).into();
        let all = std::iter::once(own).chain(rivals(map, finding.code, ip, own));
        let keys = all.flat_map(|id| map.tenures_in(id, ip));
        let tenures = keys.filter_map(|key| ledger.tenure(&key));
        let link = |tenure: Tenure| {
            let link = tenure::link(&tenure, &boot_id);
            if !otlp.tenures() && remember(&mut self.tenures, span_of(&link)) {
                let holders = holders(map, &tenure.netns);
                otlp.tenure(&Held { tenure, holders, boot_id: Arc::clone(&boot_id) });
            }
            link
        };
        tenures.map(link).collect()
    }

    /// The newest ADD and the newest DEL for the container, or for the netns if no container is known. Only the
    /// outermost plugins count; of several in a chain, the one that called an IPAM plugin, because that one assigned
    /// the IP. Runs for `lo` do not count: they assign none.
    fn runs_of(&mut self, finding: &Finding, map: &NodeMap, calls: &Calls) -> Vec<Link> {
        let subject = &finding.subject;
        let id = subject.container.as_ref().and_then(|container| container.id.as_deref());
        let path = subject.netns.as_ref().and_then(|netns| netns.path.as_deref()).map(strip_var);
        let inner = map.calls().filter_map(|entry| entry.within);
        let asked: BTreeSet<TaskKey> = inner.collect();
        let newest = |command| {
            let of = |entry: &&CallEntry| {
                let call = &entry.call;
                let meant = match (id, path) {
                    (Some(id), _) => call.container_id.as_deref() == Some(id),
                    (None, Some(path)) => call.netns_path.as_deref().map(strip_var) == Some(path),
                    (None, None) => false,
                };
                let lo = call.ifname.as_deref() == Some("lo");
                meant && !lo && call.command == command && entry.within.is_none()
            };
            let rank = |entry: &&CallEntry| (asked.contains(&entry.call.task), entry.began);
            map.calls().filter(of).max_by_key(rank)
        };
        let both = [CniCommand::Add, CniCommand::Del].into_iter().filter_map(newest);
        both.map(|entry| self.run(entry, map, calls)).collect()
    }

    fn run(&mut self, entry: &CallEntry, map: &NodeMap, calls: &Calls) -> Link {
        let boot_id: Arc<str> = map.boot().map_or("", |boot| &boot.boot_id).into();
        let task = entry.call.task;
        let link = RunKey { task, root: task, boot_id: &boot_id }.link();
        let wall_offset = map.calendar().wall_offset;
        let run = Run { entry: entry.clone(), root: task, boot_id, wall_offset, error: None };
        // A run in progress is sent when it ends; a failed run was sent when it ended.
        if remember(&mut self.runs, task) && run.entry.ended.is_some() && !calls.wants(&run) {
            calls.publish(&run);
        }
        link
    }

    /// Whether a finding links to this run, which has ended.
    pub(super) fn is_about(&self, task: &TaskKey) -> bool {
        self.runs.contains(task)
    }

    /// A tenure begins: sent if all tenures are exported.
    pub(super) fn held(&self, tenure: &Tenure, map: &NodeMap, otlp: Option<&Otlp>) {
        let Some(otlp) = otlp.filter(|otlp| otlp.tenures()) else { return };
        self.send(tenure, map, otlp);
    }

    /// A tenure has ended: sent if all tenures are exported, or if its start was sent.
    pub(super) fn released(&mut self, tenure: &Tenure, map: &NodeMap, otlp: Option<&Otlp>) {
        let Some(otlp) = otlp.filter(|otlp| otlp.traces()) else { return };
        let boot_id = map.boot().map_or("", |boot| &boot.boot_id);
        if self.tenures.remove(&span_of(&tenure::link(tenure, boot_id))) || otlp.tenures() {
            self.send(tenure, map, otlp);
        }
    }

    /// A tenure of an earlier boot, which ended with that boot: sent if all tenures are exported. It has no holders
    /// any more.
    pub(super) fn ended_by_reboot(tenure: &Tenure, boot_id: &Arc<str>, otlp: Option<&Otlp>) {
        let Some(otlp) = otlp.filter(|otlp| otlp.tenures()) else { return };
        let (tenure, boot_id) = (tenure.clone(), Arc::clone(boot_id));
        otlp.tenure(&Held { tenure, holders: Vec::new(), boot_id });
    }

    fn send(&self, tenure: &Tenure, map: &NodeMap, otlp: &Otlp) {
        let holders = holders(map, &tenure.netns);
        let boot_id = map.boot().map_or("", |boot| &boot.boot_id).into();
        otlp.tenure(&Held { tenure: tenure.clone(), holders, boot_id });
    }
}

/// The id of the span that a link points to, as bytes: [`opentelemetry::SpanId`] has no order.
fn span_of(link: &Link) -> [u8; 8] {
    link.span_context.span_id().to_bytes()
}

/// Sends spans for teardowns of netns that have ended or hang, and counts `untold` further ones as lost.
pub(super) fn tell_teardowns(
    map: &NodeMap,
    endings: Vec<Ending>,
    untold: u64,
    otlp: Option<&Otlp>,
) {
    let Some(otlp) = otlp.filter(|otlp| otlp.traces()) else { return };
    if untold > 0 {
        otlp.teardowns_lost(untold);
    }
    if endings.is_empty() {
        return;
    }
    let boot_id: Arc<str> = map.boot().map_or("", |boot| &boot.boot_id).into();
    let wall_offset = map.calendar().wall_offset;
    for ending in endings {
        otlp.teardown(&Teardown { ending, boot_id: Arc::clone(&boot_id), wall_offset });
    }
}

fn find(map: &NodeMap, netns: &Netns) -> Option<NetnsId> {
    map.find(&NetnsRef { cookie: netns.cookie, inode: netns.inode, nsid: netns.nsid })
}

/// The other netns that have the IP of a duplicate.
fn rivals(map: &NodeMap, code: Code, ip: IpAddr, own: NetnsId) -> impl Iterator<Item = NetnsId> {
    let all = if code == Code::IpDuplicate { map.duplicates() } else { &[] };
    let sides = |one: &Duplicate| (one.first.at.netns, one.second.at.netns);
    all.iter().filter(move |one| one.ip == ip).filter_map(move |one| match sides(one) {
        (first, second) if first == own => Some(second),
        (first, second) if second == own => Some(first),
        _ => None,
    })
}

fn holders(map: &NodeMap, netns: &Netns) -> Vec<crate::contract::Holder> {
    find(map, netns).map(|id| map.holder_views(id)).unwrap_or_default()
}

/// Adds `one` and returns whether it is new. If the set is full, some element is removed: at worst the same span is
/// sent twice.
fn remember<T: Ord>(set: &mut BTreeSet<T>, one: T) -> bool {
    if set.len() >= MOST && !set.contains(&one) {
        set.pop_first();
    }
    set.insert(one)
}
