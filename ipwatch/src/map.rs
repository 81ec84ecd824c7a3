//! The live map of one node: netns, what is in them, and who holds them.
//!
//! Pure, with a single owner: it applies [`Fact`]s and answers queries. It has no clock (now is the time of the newest
//! fact, or the time that a query passes), does no I/O and takes no lock. The same facts in the same order give the
//! same map, so a recording can serve as a test.
//!
//! The state is split into four aggregates. Each is a folder, and nothing outside the folder can touch its fields; its
//! module documentation states its invariants:
//!
//! - [`kernel`]: netns, what is in them, and tasks.
//! - [`workload`]: containers, pods and runs of CNI plugins, and which of them a netns belongs to.
//! - [`ipam`]: what the stores reserve, from which ranges, and which reservations are leaked.
//! - [`conflict`]: which endpoints can reach each other, and which states contradict each other.
//!
//! Methods of `NodeMap` stand in the folder whose fields they change. They update the other aggregates through those
//! aggregates' own methods. Beside the aggregates:
//!
//! - `scheduler`, `request`: what the map does not know and asks the daemon to find out.
//! - `openings`, `looks`: how much of that is asked for at a time, and for whom.
//! - `queue`: what falls due by the clock.
//! - `changes`: which kinds of data changed, and when, so that detection can skip the rest.
//! - `seats`: to whom findings count, and how many have room.
//! - `refused`: rejected names and plugin runs, counted by source.
//! - `told`: which entries of a list are told when there are too many.
//! - `view`: answers in the types of the JSON contract.
//! - `bounds`: for tests, whether everything is within its bounds.

#[cfg(any(test, feature = "fuzzing"))]
mod bounds;
pub(crate) mod changes;
mod conflict;
mod ipam;
mod kernel;
mod looks;
mod openings;
mod queue;
mod refused;
pub mod request;
mod scheduler;
mod seats;
mod told;
mod view;
mod workload;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use changes::{Kinds, Tick};
pub use conflict::{
    Conflict, ConflictGrounds, Duplicate, Endpoint, Fixed, Holding, Meeting, OrphanRoute, Party,
    Reach, Side, Unanswered, is_pods,
};
#[cfg(test)]
pub(crate) use ipam::JUDGED;
pub use ipam::{
    Given, Grounds, Hold, IpamMismatch, Leak, LeakCause, Leaked, Level, Match, RangeEntry, Release,
    ReservationEntry, StoreNetwork, UnreadableEntry, Usage, WRITING, is_freed_by_cni,
    is_of_the_cluster,
};
pub use kernel::{
    AddressEntry, AddressId, Begun, Ending, Identity, Kill, LinkEntry, LookEntry, Named,
    NeighbourEntry, NeighbourNews, Netns, NetnsId, NotKept, TaskEntry, Teardown, TenantKind,
    TenureEvent, TenureKey, WorkerLook,
};
pub use looks::MOST_LOOKS;
pub use scheduler::{Agenda, Thresholds};
pub use seats::{Places, Seats, Whose};
pub use view::{scope_name, state_name};
pub(crate) use workload::strip_var;
pub use workload::{
    Attempt, CallEnd, CallEntry, CallHistory, Certainty, CommandStats, ContainerEntry, DeletedPod,
    EndpointEntry, LOOP_WINDOW, LateDel, Leftover, Loop, Lost, LostWhat, MissingEndpoint, Owner,
    PodEntry, SandboxEntry, SandboxVerdict, StaleEndpoint, Why,
};

use crate::clock::Calendar;
use crate::contract::SourceState;
use crate::fact::{
    Boot, BootNs, Fact, Holder, Observation, Origin, Scope, Sight, Source, SourceName, SourceStatus,
};

/// A hash table with a fast hasher for keys that are the kernel's numbers. The seed is random, because containers can
/// choose some of the keys.
type Table<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// The map. See the [module's documentation](self).
#[derive(Debug, Default)]
pub struct NodeMap {
    boot: Option<Boot>,
    /// The smallest wall-clock offset so far: rows written before the clock was set were dated with another offset.
    least_offset: i64,
    sight: Sight,
    sources: BTreeMap<String, Source>,
    /// Time of the newest fact.
    now: BootNs,
    /// When events were lost, if no complete walk has begun since.
    lost: Option<BootNs>,
    /// When events were last lost: whatever has not been reported since may no longer exist.
    lost_last: BootNs,
    /// When the ring buffer last had no room for events of single netns.
    overrun_last: BootNs,

    kernel: kernel::Kernel,
    workload: workload::Workload,
    ipam: ipam::Ipam,
    conflict: conflict::Conflicts,

    changes: changes::Changes,
    scheduler: scheduler::Pending,
    refused: refused::Refused,
    /// As of the last agenda.
    thresholds: Thresholds,
}

impl NodeMap {
    /// An empty map. With `provisional`, cookies are ignored and every netns is identified by the names that older
    /// kernels have: the nsid and the nsfs inode.
    #[must_use]
    pub fn new(provisional: bool) -> Self {
        Self { kernel: kernel::Kernel::new(provisional), ..Self::default() }
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
            Observation::ClockSet { wall_offset } => self.set_clock(*wall_offset),
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
            // For the engine: it changes nothing that the map knows of the node.
            Observation::FirstAnswers => {}
            Observation::Memory { short } => self.set_memory_short(*short, at),
            Observation::Lost { calls, .. } => {
                self.lost = Some(at);
                self.lost_last = at;
                self.conflict.readdressed();
                self.doubt_all_left_out();
                if *calls {
                    self.calls_lost(at);
                }
            }
            Observation::LostIn { netns, unreported } => self.lost_in(netns, *unreported, at),
            Observation::LostInUsers => self.lost_in_users(at),
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
                match self.resolve(netns, at) {
                    Some(id) => self.touch_netns(id, at),
                    None => self.found_left_out(netns, at),
                }
            }
            Observation::NetnsDying { netns } => {
                // A walk also finds netns that are only queued for teardown: this is no progress of the kernel's
                // worker.
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
                    let is_dying = self.netns(id).is_some_and(|entry| entry.dying.is_some());
                    match is_dying {
                        true => self.scheduler.adopted(id),
                        false => self.scheduler.not_adopted(id, at),
                    }
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

            Observation::NetnsUser { netns, uid, nested } => {
                self.set_netns_user(netns, (*uid, *nested), at);
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
                self.task_release_told(*task, at);
            }
            Observation::Signalled { pid, tid, signal, group, by } => {
                self.signalled(*pid, *tid, *signal, *group, by, at);
            }
            Observation::ProcessDoubted { pid } => self.process_doubted(*pid, at),
            Observation::Look { task, look } => self.looked(*task, look, at),
            Observation::Cgroup { task, path } => self.set_cgroup(*task, path, at),

            Observation::Holder { netns, holder } => self.set_holder(netns, holder, at),
            Observation::HoldersSearched { netns, complete } => self.searched(netns, *complete, at),

            Observation::Attachment(attachment) => self.set_attachment(attachment, at),
            Observation::AttachmentGone { container_id, ifname } => {
                self.drop_attachment(container_id, ifname);
            }

            Observation::Sandbox(sandbox) => self.set_sandbox(sandbox, at),
            Observation::SandboxGone { runtime, id } => self.sandbox_gone(runtime, id, at),
            Observation::Container(container) => self.set_container(container, at),
            Observation::ContainerGone { runtime, id } => self.container_gone(runtime, id, at),
            Observation::RuntimeProcesses { runtimes, monitors, complete } => {
                self.set_runtime_processes(runtimes, monitors, *complete);
            }

            Observation::Pod(pod) => self.set_pod(pod, at),
            Observation::PodGone { uid } => {
                self.pod_gone(uid, at);
                self.pods_fewer();
            }
            Observation::PodsConfirmed => {
                self.pods_confirmed(at);
                self.pods_fewer();
                self.endpoints_confirmed(workload::PODS, at);
            }
            Observation::PodLimit { pods } => self.set_pod_limit(*pods),

            Observation::ContainerMount(mount) => self.set_container_mount(mount, at),
            Observation::ContainerMountsSearched { ids, complete } => {
                self.container_mounts_searched(ids, *complete, at);
            }
            Observation::Cleanup { worker } => self.set_cleanup(worker.as_ref(), at),

            Observation::Reservation(reservation) => self.set_reservation(reservation, at),
            Observation::ReservationGone { store, key } => self.drop_reservation(store, key, at),
            Observation::Range(range) => self.set_range(range, at),
            Observation::Configured(network) => self.set_configured(network, at),
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

    fn set_clock(&mut self, wall_offset: i64) {
        let Some(boot) = &mut self.boot else { return };
        boot.wall_offset = wall_offset;
        self.least_offset = self.least_offset.min(wall_offset);
        self.ipam.touch_all();
    }

    fn begin(&mut self, boot: Boot, at: BootNs) {
        let host = boot.host;
        self.least_offset = boot.wall_offset;
        self.boot = Some(boot);
        self.set_host(host, at);
    }

    /// A dump of `scope` that began at `began` has ended. Removes entries that the dump did not name and no later fact
    /// touched; an incomplete dump removes nothing.
    fn sweep(&mut self, scope: &Scope, began: BootNs, complete: bool) {
        if let Scope::Addresses { netns } = scope {
            self.dump_ended(netns, began, complete);
        }
        self.kernel.read(scope);
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
            Scope::Pods => {
                self.pods_listed(began);
                self.pods_fewer();
            }
            Scope::Reservations { store } => self.sweep_reservations(store, began),
            Scope::Ranges { store } => {
                self.sweep_ranges(store, began);
                self.sweep_configured(store, began);
            }
            // An incomplete listing is of use too: see `take_in`.
            Scope::Endpoints { .. } | Scope::Blocks { .. } => {}
            Scope::Cni => self.sweep_attachments(began),
        }
    }

    /// Whether events were lost so recently (10 s) that not everything has been read again. What a netns had held back does
    /// not count: nobody can keep others from being judged.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        const SETTLES: u64 = 10_000_000_000;
        let last = self.lost_last.max(self.overrun_last);
        last > BootNs::default() && self.now.since(last) < SETTLES
    }

    /// The boot, after the first `Boot` fact.
    #[must_use]
    pub fn boot(&self) -> Option<&Boot> {
        self.boot.as_ref()
    }

    /// Converts times of this boot to dates.
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
        let host = self.host().and_then(|id| self.netns(id));
        self.kernel.has_first_tasks_and_mounts() && host.is_some_and(|host| host.opened.is_some())
    }

    /// Whether this source has reported a status.
    #[must_use]
    pub fn has_source(&self, name: SourceName) -> bool {
        self.sources.contains_key(name.as_str())
    }

    /// Whether this source is active or degraded. A source that never reported is neither.
    #[must_use]
    pub fn answers(&self, name: SourceName) -> bool {
        self.is_answering(name.as_str())
    }

    /// As [`NodeMap::answers`], for a runtime.
    #[must_use]
    pub fn runtime_answers(&self, runtime: &str) -> bool {
        self.is_answering(runtime)
    }

    /// As [`NodeMap::answers`], for an IPAM store or a datastore of endpoints.
    #[must_use]
    pub fn store_answers(&self, store: &str) -> bool {
        self.is_answering(store)
    }

    fn is_answering(&self, name: &str) -> bool {
        self.sources.get(name).is_some_and(|source| {
            matches!(source.status, SourceStatus::Active | SourceStatus::Degraded)
        })
    }

    /// The host's netns.
    #[must_use]
    pub fn host(&self) -> Option<NetnsId> {
        self.boot.as_ref().and_then(|boot| self.kernel.find(&boot.host))
    }

    /// Number of links, addresses and routes that exceed the bounds of their netns, or of all netns, and are not kept.
    #[must_use]
    pub fn beyond_bounds(&self) -> u64 {
        self.kernel.beyond_bounds()
    }

    /// One source's state.
    #[must_use]
    pub fn source(&self, name: &str) -> Option<&Source> {
        self.sources.get(name)
    }

    /// Number of netns, addresses and tasks.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        self.kernel.sizes()
    }

    /// Whether this origin only repeats what probes report directly and in the kernel's order.
    fn hearsay(&self, origin: Origin) -> bool {
        origin == Origin::Netlink && self.sight.addresses
    }
}
