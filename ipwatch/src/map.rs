//! The live map of one node: netns, what is in them, and who holds them.
//!
//! Pure and single-owner: it applies [`Fact`]s and answers questions. It has no clock (the newest
//! fact's time, or the time a question brings, is now), does no I/O and takes no lock. The same facts
//! in the same order give the same map, which is what makes a recording a test.
//!
//! - `identity`: which netns a fact speaks of; names that are reused never mix two of them.
//! - `netns`: what a dump may and may not overwrite. `tombstones`: what it must not bring back. `addresses`: what the
//!   kernel takes for one; `shares`: how many are kept, and whose. `links`: devices, and what goes with them.
//!   `netlink_reconcile`: what netlink says and no probe has told.
//! - `neighbours`: ARP and NDP entries; `unanswered`: those without an answer; `news`: what of them changed.
//! - `topology`: what else of a netns says who can reach whom; `reach`: who that is, and which IPs two have who
//!   meet; `ways`: which device leads to a pod; `orphan_routes`: routes that lead to nobody; `unresolved_peers`: links to
//!   netns that nobody has named yet.
//! - `claims`: who was heard to claim an IP; `conflict`: which claims cannot both be right.
//! - `holder`: what else holds a netns.
//! - `task`: who is in a netns, who is leaving it and who was killed.
//! - `missed`: what of all that no event had told.
//! - `sandbox`: which container and pod that is. `owner`: which sandbox a netns was made for.
//! - `runtime`: what the container runtimes say, and since when; `crash_loop`: sandboxes that come and go. `unasked`:
//!   whether a container may belong to a runtime that nobody asks.
//! - `pods`: what the API server says of this node's pods.
//! - `container_mounts`: mounts of dead containers. `teardown`: whether the kernel gets on with its work.
//! - `ipam`: what the stores reserve and let go of; `ranges`: out of what, and `blocks`: how much of that is taken
//!   where the reservations of other nodes are not told. `ipam_mismatch`: the stores against the
//!   kernel. `leaks`: reservations for containers that are gone.
//! - `endpoints`: what Calico's datastore has wired, and which living pods it does not have.
//! - `calls`: runs of CNI plugins; `late_del`: DELs of old sandboxes, and what the pod's new one loses meanwhile.
//! - `refused`: names and runs that were not taken, by source.
//! - `scheduler`, `request`: what the map does not know and asks the daemon to find out.
//! - `tenure`: who had an IP from when to when, as events for the ledger and for `watch`.
//! - `changes`: what of all that has changed, and when, for whoever looks only at what has.
//! - `view`, `ipam_view`, `neighbour_view`: answers in the words of the JSON contract.

mod addresses;
mod blocks;
mod calls;
pub(crate) mod changes;
mod claims;
mod conflict;
mod container_mounts;
mod crash_loop;
mod endpoints;
mod holder;
mod identity;
mod ipam;
mod ipam_mismatch;
mod ipam_view;
mod late_del;
mod leaks;
mod links;
mod missed;
mod neighbour_view;
mod neighbours;
mod netlink_reconcile;
mod netns;
mod news;
mod orphan_routes;
mod owner;
mod pods;
mod ranges;
mod reach;
mod refused;
pub mod request;
mod runtime;
mod sandbox;
mod scheduler;
mod shares;
mod task;
mod teardown;
mod tenure;
mod tombstones;
mod topology;
mod unanswered;
mod unasked;
mod unresolved_peers;
mod verdict;
mod view;
mod ways;
mod witness;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub use addresses::{AddressEntry, AddressId};
pub use calls::{CallEnd, CallEntry, CallHistory, CommandStats};
pub use changes::{Kinds, Tick};
pub use claims::Side;
pub use conflict::{Conflict, Grounds as ConflictGrounds, Party};
pub use container_mounts::Leftover;
pub use crash_loop::{Attempt, Loop, WINDOW as LOOP_WINDOW};
pub use endpoints::{EndpointEntry, MissingEndpoint, StaleEndpoint};
pub use identity::{Identity, NetnsId};
pub use ipam::{Release, ReservationEntry, UnreadableEntry, WRITING};
pub use ipam_mismatch::{Grounds, IpamMismatch, Match};
pub use late_del::{LateDel, Lost, LostWhat};
pub use leaks::{Leak, LeakCause, Leaked};
pub use neighbours::NeighbourEntry;
pub use netns::{LinkEntry, Netns};
pub use news::NeighbourNews;
pub use orphan_routes::{OrphanRoute, is_pods};
pub use owner::{Owner, Told};
pub use pods::{DeletedPod, PodEntry};
pub use ranges::{Level, RangeEntry, Usage};
pub use reach::{Duplicate, Endpoint, Holding, Meeting, Reach};
pub use runtime::{ContainerEntry, SandboxEntry, Word};
pub(crate) use sandbox::strip_var;
pub use scheduler::{Agenda, Thresholds};
pub use task::{Kill, LookEntry, TaskEntry};
pub use teardown::{Ending, Teardown, WorkerLook};
pub use tenure::TenureEvent;
pub use unanswered::{Fixed, Unanswered};
pub use unasked::Why;
pub use view::{scope_name, state_name};

use crate::clock::Calendar;
use crate::contract::SourceState;
use crate::fact::{
    Attachment, Boot, BootNs, Fact, Holder, Observation, Origin, Scope, Sight, Source, SourceStatus,
};

/// A hash table with a fast hasher: keys are the kernel's numbers, and its seed is random, for some of
/// them can be chosen by containers.
type Table<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// The map. See the [module's documentation](self).
#[derive(Debug, Default)]
pub struct NodeMap {
    boot: Option<Boot>,
    sight: Sight,
    sources: BTreeMap<String, Source>,
    /// Time of the newest fact.
    now: BootNs,
    /// When events were lost, if no whole walk has begun since.
    lost: Option<BootNs>,
    /// When events were last lost: what was not told since may be gone.
    lost_last: BootNs,

    changes: changes::Changes,
    names: identity::Names,
    netns: Table<NetnsId, Netns>,
    /// Every address of every netns, in IP order.
    by_ip: BTreeSet<(IpAddr, NetnsId)>,
    reach: reach::Reachability,
    tombstones: tombstones::Tombstones,
    shares: shares::Shares,
    netlink_reconcile: netlink_reconcile::Unconfirmed,

    tasks: task::Tasks,
    missed: missed::Missed,
    attachments: BTreeMap<(String, String), (Attachment, BootNs)>,

    runtimes: runtime::Runtimes,
    processes: unasked::Processes,
    pods: pods::Pods,
    owners: owner::Owners,
    container_mounts: container_mounts::ContainerMounts,
    teardowns: teardown::Teardowns,
    ipam: ipam::Ipam,
    endpoints: endpoints::Endpoints,
    calls: calls::Calls,
    refused: refused::Refused,
    late_dels: late_del::LateDels,
    claims: claims::Claims,
    unanswered: unanswered::UnansweredEntries,
    news: news::News,
    orphan_routes: orphan_routes::OrphanRoutes,

    scheduler: scheduler::Pending,
    unresolved_peers: unresolved_peers::UnresolvedPeers,
    /// As of the newest agenda.
    thresholds: Thresholds,
    tenures: tenure::Outbox,
    /// Snapshots of [`Scope::Tasks`] that ended: what the first one showed stood before ipwatch.
    task_snapshots: u32,
    /// The mount table was read at least once.
    mounts_read: bool,
}

impl NodeMap {
    /// An empty map. With `provisional`, cookies are ignored and every netns is known by the names
    /// that older kernels have: the nsid and the nsfs inode.
    #[must_use]
    pub fn new(provisional: bool) -> Self {
        Self { names: identity::Names::new(provisional), ..Self::default() }
    }

    /// Applies one fact.
    pub fn apply(&mut self, fact: &Fact) {
        self.changes.begin();
        self.take_in(fact);
        self.mark_fact(&fact.what);
    }

    fn take_in(&mut self, fact: &Fact) {
        self.now = self.now.max(fact.at);
        let at = fact.at;
        match &fact.what {
            Observation::Boot(boot) => self.begin(boot.clone(), at),
            Observation::Sight(sight) => {
                self.sight = *sight;
                self.calls_seen(sight.calls, at);
            }
            Observation::Source(source) => {
                if fact.origin == Origin::Runtime {
                    self.runtime_stands(source);
                }
                let before = self.sources.insert(source.name.clone(), source.clone());
                if before.is_none_or(|before| before.status != source.status) {
                    self.ipam.touch_all();
                    self.endpoints_stand(&source.name, at);
                }
            }
            Observation::SourceGone { name } => {
                self.sources.remove(name);
                self.runtime_renamed(name);
                self.store_gone(name);
                self.blocks_over(name);
                self.endpoints_over(name);
            }
            Observation::Refused { source, name, count } => {
                self.name_refused(source, *name, *count, at)
            }
            // For the engine: what is known of the node is the same.
            Observation::FirstAnswers => {}
            Observation::Lost { calls, .. } => {
                self.lost = Some(at);
                self.lost_last = at;
                self.reach.readdressed();
                if *calls {
                    self.calls_lost(at);
                }
            }
            Observation::Began(Scope::Endpoints { store }) => self.endpoints_began(store),
            Observation::Began(scope) => self.dump_began(scope, at),
            Observation::Ended { scope: Scope::Endpoints { store }, began, complete } => {
                self.endpoints_listed(store, (*began, at), *complete);
            }
            Observation::Ended { scope: Scope::Blocks { store }, began, complete } => {
                self.blocks_listed(store, *began, *complete);
            }
            Observation::Ended { scope, began, complete } => self.sweep(scope, *began, *complete),

            Observation::Netns { netns } | Observation::NetnsCreated { netns } => {
                if let Some(id) = self.resolve(netns, at) {
                    self.touch_netns(id, at);
                }
            }
            Observation::NetnsDying { netns } => {
                // A walk meets what is only queued: that is no sign of the worker.
                if fact.origin != Origin::Snapshot {
                    self.teardown_progress(at);
                }
                self.netns_dying(netns, at);
            }
            Observation::NetnsGone { netns } => {
                self.teardown_progress(at);
                self.netns_gone(netns, at);
            }

            Observation::NetnsClosed { netns } => {
                if let Some(id) = self.find(netns) {
                    self.scheduler.not_adopted(id, at);
                }
            }
            Observation::Link { netns, link } => self.set_link(netns, link, at),
            Observation::LinkGone { netns, ifindex } => {
                self.drop_link(netns, *ifindex, at, fact.origin)
            }
            Observation::Address { netns, address } => {
                self.set_address(netns, address, at, fact.origin);
            }
            Observation::AddressGone { netns, key } => {
                self.drop_address(netns, key, at, fact.origin)
            }
            Observation::DadFailed { netns, ifindex, ip, offender } => {
                self.dad_failed(netns, *ifindex, *ip, *offender, at);
            }
            Observation::Neighbour { netns, neighbour } => {
                self.set_neighbour(netns, neighbour, at, fact.origin);
            }
            Observation::NeighbourGone { netns, ifindex, ip } => {
                self.drop_neighbour(netns, *ifindex, *ip, at);
            }

            Observation::PeerNetns { netns, nsid, peer } => {
                self.set_peer_netns(netns, *nsid, peer, at)
            }
            Observation::Port { netns, ifindex, isolated } => {
                self.set_isolated(netns, *ifindex, *isolated, at);
            }
            Observation::Vlans { netns, ifindex, vlans } => {
                self.set_vlans(netns, *ifindex, vlans, at)
            }
            Observation::Route { netns, route } => self.set_route(netns, route, at),
            Observation::RouteGone { netns, key, hops } => self.drop_route(netns, key, hops, at),
            Observation::Claimed { netns, claim } => self.set_claim(netns, claim, at),

            Observation::Task(task) => self.set_task(task, at, fact.origin),
            Observation::TaskExiting { task } => self.task_exiting(*task, at),
            Observation::TaskReleased { task } => {
                self.missed.told(task);
                self.task_released(*task, at);
            }
            Observation::Signalled { pid, tid, signal, group, by } => {
                self.signalled(*pid, *tid, *signal, *group, by, at);
            }
            Observation::ProcessDoubted { pid } => self.process_doubted(*pid, at),
            Observation::Look { task, look } => self.looked(*task, look, at),
            Observation::Cgroup { task, path } => self.set_cgroup(*task, path),

            Observation::Holder { netns, holder } => self.set_holder(netns, holder, at),
            Observation::HoldersSearched { netns, complete } => self.searched(netns, *complete, at),

            Observation::Attachment(attachment) => self.set_attachment(attachment, at),
            Observation::AttachmentGone { container_id, ifname } => {
                self.attachments.remove(&(container_id.clone(), ifname.clone()));
            }

            Observation::Sandbox(sandbox) => self.set_sandbox(sandbox, at),
            Observation::SandboxGone { runtime, id } => self.sandbox_gone(runtime, id, at),
            Observation::Container(container) => self.set_container(container, at),
            Observation::ContainerGone { runtime, id } => self.container_gone(runtime, id, at),
            Observation::RuntimeProcesses { runtimes, monitors, complete } => {
                self.set_runtime_processes(runtimes, monitors, *complete);
            }

            Observation::Pod(pod) => self.set_pod(pod, at),
            Observation::PodGone { uid } => self.pod_gone(uid, at),
            Observation::PodsConfirmed => {
                self.pods_confirmed(at);
                self.endpoints_confirmed(endpoints::PODS, at);
            }

            Observation::ContainerMount(mount) => self.set_container_mount(mount, at),
            Observation::ContainerMountsSearched { ids, complete } => {
                self.container_mounts_searched(ids, *complete, at);
            }
            Observation::Cleanup { worker } => self.set_cleanup(worker.as_ref(), at),

            Observation::Reservation(reservation) => self.set_reservation(reservation, at),
            Observation::ReservationGone { store, key } => self.drop_reservation(store, key, at),
            Observation::Range(range) => self.set_range(range, at),
            Observation::Block(block) => self.set_block(block, at),
            Observation::BlockGone { store, key } => self.block_gone(store, key, at),
            Observation::StoreUnreadable(file) => self.set_unreadable(file, at),
            Observation::StoreReadable { store, path } => self.set_readable(store, path),

            Observation::Endpoint(endpoint) => self.set_endpoint(endpoint, at),
            Observation::EndpointGone { store, key } => self.drop_endpoint(store, key, at),
            Observation::EndpointsConfirmed { store } => self.endpoints_confirmed(store, at),

            Observation::CniBegan(call) => self.call_began(call, at),
            Observation::CniEnded { task, status, signal } => {
                self.call_ended(*task, *status, *signal, at)
            }
            Observation::CniError { container_id, command, text } => {
                self.call_error(container_id, *command, text, at);
            }
        }
    }

    fn begin(&mut self, boot: Boot, at: BootNs) {
        let host = boot.host;
        self.boot = Some(boot);
        self.names.set_host(host);
        self.reach.rewired();
        self.resolve(&host, at);
    }

    /// A dump of `scope` that began at `began` has ended. What it did not name and nothing touched
    /// since is gone; an incomplete one proves nothing.
    fn sweep(&mut self, scope: &Scope, began: BootNs, complete: bool) {
        if let Scope::Addresses { netns } = scope {
            self.dump_ended(netns, began, complete);
        }
        match scope {
            Scope::Tasks => self.task_snapshots = self.task_snapshots.saturating_add(1),
            Scope::Mounts { .. } => self.mounts_read = true,
            _ => {}
        }
        if !complete {
            if *scope == Scope::Tasks {
                self.doubt_tasks(began);
            }
            return;
        }
        match scope {
            Scope::Netns => self.sweep_netns(began),
            Scope::Tasks => self.sweep_tasks(began),
            Scope::Links { netns } => self.sweep_links(netns, began),
            Scope::Addresses { netns } => self.sweep_addresses(netns, began),
            Scope::Neighbours { netns } => self.sweep_neighbours(netns, began),
            Scope::Routes { netns } => self.sweep_routes(netns, began),
            Scope::Mounts { mount_ns } => self.sweep_holders(
                began,
                |holder| matches!(holder, Holder::Mount { mount_ns: own, .. } if own == mount_ns),
            ),
            Scope::Files => self.sweep_holders(began, |holder| {
                matches!(holder, Holder::Fd { .. } | Holder::Socket { .. })
            }),
            Scope::Runtime { runtime } => self.runtime_listed(runtime, began),
            Scope::Pods => self.pods_listed(began),
            Scope::Reservations { store } => self.sweep_reservations(store, began),
            Scope::Ranges { store } => self.sweep_ranges(store, began),
            // What was cut short tells something too: see `apply`.
            Scope::Endpoints { .. } | Scope::Blocks { .. } => {}
            Scope::Cni => self.attachments.retain(|_, (_, touched)| *touched >= began),
        }
    }

    fn set_attachment(&mut self, attachment: &Attachment, at: BootNs) {
        let key = (attachment.container_id.clone(), attachment.ifname.clone());
        let renamed = self.attachments.get(&key).is_none_or(|(old, _)| old != attachment);
        self.attachments.insert(key, (attachment.clone(), at));
        if renamed {
            self.name_tenures(attachment);
            self.owners.ask_all();
            for (ip, _) in &attachment.ips {
                self.ipam.touch(*ip);
            }
        }
    }

    /// Whether events were lost so lately that not everything was read again.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        const SETTLES: u64 = 10_000_000_000;
        self.lost_last > BootNs::default() && self.now.since(self.lost_last) < SETTLES
    }

    /// The boot, once the first fact has come.
    #[must_use]
    pub fn boot(&self) -> Option<&Boot> {
        self.boot.as_ref()
    }

    /// Turns times of this boot into dates.
    #[must_use]
    pub fn calendar(&self) -> Calendar {
        Calendar { wall_offset: self.boot.as_ref().map_or(0, |boot| boot.wall_offset) }
    }

    /// What the probes can see.
    #[must_use]
    pub fn sight(&self) -> Sight {
        self.sight
    }

    /// Time of the newest fact.
    #[must_use]
    pub fn now(&self) -> BootNs {
        self.now
    }

    /// Every source and its state, by name.
    #[must_use]
    pub fn sources(&self) -> Vec<SourceState> {
        let state = |source: &Source| SourceState {
            name: source.name.clone(),
            status: source.status,
            detail: source.detail.clone(),
        };
        self.sources.values().map(state).collect()
    }

    /// Whether netns, tasks, mounts and the host have been read at least once.
    #[must_use]
    pub fn has_first_snapshot(&self) -> bool {
        let host = self.host().and_then(|id| self.netns.get(&id));
        self.task_snapshots > 0 && self.mounts_read && host.is_some_and(|host| host.dumped)
    }

    /// Whether this source has said how it stands.
    #[must_use]
    pub fn has_source(&self, name: &str) -> bool {
        self.sources.contains_key(name)
    }

    /// Whether this source answers, wholly or in part. One never heard of does not.
    #[must_use]
    pub fn answers(&self, source: &str) -> bool {
        self.sources.get(source).is_some_and(|source| {
            matches!(source.status, SourceStatus::Active | SourceStatus::Degraded)
        })
    }

    /// One netns.
    #[must_use]
    pub fn netns(&self, id: NetnsId) -> Option<&Netns> {
        self.netns.get(&id)
    }

    /// Every netns, in no order.
    pub fn all_netns(&self) -> impl Iterator<Item = &Netns> {
        self.netns.values()
    }

    /// The host's netns.
    #[must_use]
    pub fn host(&self) -> Option<NetnsId> {
        self.boot.as_ref().and_then(|boot| self.names.find(&boot.host))
    }

    /// The netns of a source's name for it, when it is known.
    #[must_use]
    pub fn find(&self, netns: &crate::fact::NetnsRef) -> Option<NetnsId> {
        self.names.find(netns)
    }

    /// One task.
    #[must_use]
    pub fn task(&self, key: &crate::fact::TaskKey) -> Option<&TaskEntry> {
        self.tasks.get(key)
    }

    /// Every known task of a process, threads included.
    pub fn tasks_of(&self, pid: u32) -> impl Iterator<Item = &TaskEntry> {
        self.tasks.of(pid)
    }

    /// Tasks that are exiting or killed and still hold a netns.
    pub fn leaving(&self) -> impl Iterator<Item = &TaskEntry> {
        self.tasks.leaving()
    }

    /// Those of them that a look was taken at.
    pub fn seen_leaving(&self) -> impl Iterator<Item = &TaskEntry> {
        self.tasks.seen_leaving()
    }

    /// Those of them that were so when ipwatch first looked.
    pub fn left_before(&self) -> impl Iterator<Item = &TaskEntry> {
        self.tasks.left_before()
    }

    /// When and by whom a task's process was killed, if it was seen.
    #[must_use]
    pub fn kill_of(&self, task: &crate::fact::TaskKey) -> Option<&Kill> {
        self.tasks.kill(task)
    }

    /// Links, addresses and routes that were beyond the bounds of their netns, or of all, and are not kept.
    #[must_use]
    pub fn beyond_bounds(&self) -> u64 {
        let beyond = |entry: &Netns| entry.more + entry.unkept() + entry.wiring.beyond;
        self.netns.values().map(beyond).sum()
    }

    /// One source's state.
    #[must_use]
    pub fn source(&self, name: &str) -> Option<&Source> {
        self.sources.get(name)
    }

    /// Number of netns, addresses and tasks.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.netns.len(), self.by_ip.len(), self.tasks.len())
    }

    /// Whether this origin only repeats what probes tell first-hand and in the kernel's order.
    fn hearsay(&self, origin: Origin) -> bool {
        origin == Origin::Netlink && self.sight.addresses
    }
}
