//! What changed in the map, and when: detection looks only at what changed.
//!
//! Time is a counter here, a [`Tick`], which grows with every fact and every agenda. Each fact is of one or more
//! [`Kinds`]; [`of`] names them in a match without a wildcard, so a new fact does not compile without them. What is
//! derived later from facts (an owner, a leak that begins to count) is marked where it is derived.
//!
//! A change within one pod's netns also marks that netns ([`NodeMap::changed_in`]), so that the findings of other netns
//! need not be judged again. How far any other change reaches is not tracked: it counts as beyond any single netns
//! ([`NodeMap::changed_beyond`]).

use std::ops::BitOr;

use crate::fact::{NetnsRef, Observation, Scope, TaskKey};

use super::{NetnsId, NodeMap};

/// A moment between two facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Tick(u64);

impl Tick {
    /// The moment before: whatever is marked at this one counts as later.
    pub(super) fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

/// Parts of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds(u16);

impl Kinds {
    pub const NONE: Self = Self(0);
    /// Netns: created, removed, named, torn down, held; their owners.
    pub const NETNS: Self = Self(1 << 0);
    pub const ADDRESSES: Self = Self(1 << 1);
    /// Links, VLANs, and the nsids of peer netns.
    pub const LINKS: Self = Self(1 << 2);
    pub const ROUTES: Self = Self(1 << 3);
    /// Neighbour entries and claims.
    pub const NEIGHBOURS: Self = Self(1 << 4);
    /// Tasks, their cgroups and kills.
    pub const TASKS: Self = Self(1 << 5);
    /// Reports of container runtimes and the CNI result cache.
    pub const RUNTIMES: Self = Self(1 << 6);
    /// Reports of the API server or the kubelet about pods.
    pub const PODS: Self = Self(1 << 7);
    /// Reservations, ranges, blocks and files of IPAM stores; disputes and leaks.
    pub const IPAM: Self = Self(1 << 8);
    /// Runs of CNI plugins.
    pub const CALLS: Self = Self(1 << 9);
    /// Endpoints of a CNI's datastore.
    pub const ENDPOINTS: Self = Self(1 << 10);
    /// Mounts of dead containers.
    pub const MOUNTS: Self = Self(1 << 11);
    /// The kernel's worker that tears netns down.
    pub const TEARDOWN: Self = Self(1 << 12);
    /// Everything: status of sources, the boot, what probes see, losses.
    pub const ALL: Self = Self((1 << Self::COUNT) - 1);
    const COUNT: usize = 13;

    fn places(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let place = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (place < Self::COUNT).then_some(place)
        })
    }
}

impl BitOr for Kinds {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Kinds {
    /// As `|`, for constants.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// When each kind last changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    now: Tick,
    anywhere: [Tick; Kinds::COUNT],
    /// As `anywhere`, without changes that stay within one pod's netns.
    beyond: [Tick; Kinds::COUNT],
}

impl Changes {
    /// Starts a new tick for the marks that follow.
    pub(super) fn begin(&mut self) {
        self.now.0 += 1;
    }

    /// Marks a change of unknown reach.
    pub(super) fn mark(&mut self, kinds: Kinds) {
        #[cfg(test)]
        let kinds = unmarked::but(kinds);
        for place in kinds.places() {
            (self.anywhere[place], self.beyond[place]) = (self.now, self.now);
        }
    }

    /// Marks a change within one pod's netns; the caller marks the netns.
    fn mark_within(&mut self, kinds: Kinds) {
        #[cfg(test)]
        let kinds = unmarked::but(kinds);
        for place in kinds.places() {
            self.anywhere[place] = self.now;
        }
    }
}

/// How far a fact reaches.
enum Reach<'a> {
    Anywhere,
    /// One netns. A change in the host's netns counts as anywhere.
    Netns(&'a NetnsRef),
    /// The netns of a task. A netns that the task has left was marked when it left.
    Task(&'a TaskKey),
    /// The netns of all tasks of a process.
    Process(u32),
}

/// What a fact may change, and where.
fn of(what: &Observation) -> (Kinds, Reach<'_>) {
    use Reach::{Anywhere, Netns, Process, Task};
    match what {
        Observation::Boot(_)
        | Observation::ClockSet { .. }
        | Observation::Sight(_)
        | Observation::Source(_)
        | Observation::SourceGone { .. }
        | Observation::Refused { .. }
        | Observation::Lost { .. } => (Kinds::ALL, Anywhere),
        Observation::FirstAnswers | Observation::Memory { .. } => (Kinds::NONE, Anywhere),
        Observation::LostIn { netns, unreported } if unreported.concerns_addresses() => {
            (Kinds::ADDRESSES | Kinds::NETNS | Kinds::ROUTES, Netns(netns))
        }
        Observation::LostIn { .. } => (Kinds::NONE, Anywhere),
        Observation::LostInUsers => (Kinds::ADDRESSES | Kinds::NETNS | Kinds::ROUTES, Anywhere),
        Observation::Began(scope) | Observation::Ended { scope, .. } => (of_scope(scope), Anywhere),
        Observation::Netns { .. }
        | Observation::NetnsCreated { .. }
        | Observation::NetnsUser { .. }
        | Observation::NetnsClosed { .. }
        | Observation::Holder { .. }
        | Observation::HoldersSearched { .. } => (Kinds::NETNS, Anywhere),
        Observation::NetnsDying { .. } | Observation::NetnsGone { .. } => {
            (Kinds::NETNS | Kinds::TEARDOWN, Anywhere)
        }
        Observation::Address { netns, .. }
        | Observation::AddressGone { netns, .. }
        | Observation::DadFailed { netns, .. } => (Kinds::ADDRESSES, Netns(netns)),
        Observation::Link { netns, .. }
        | Observation::Port { netns, .. }
        | Observation::Vlans { netns, .. } => (Kinds::LINKS, Netns(netns)),
        Observation::LinkGone { netns, .. } => (Kinds::LINKS | Kinds::ADDRESSES, Netns(netns)),
        Observation::PeerNetns { .. } => (Kinds::LINKS | Kinds::NETNS, Anywhere),
        Observation::Neighbour { .. }
        | Observation::NeighbourGone { .. }
        | Observation::Claimed { .. } => (Kinds::NEIGHBOURS, Anywhere),
        Observation::Route { .. } | Observation::RouteGone { .. } => (Kinds::ROUTES, Anywhere),
        Observation::Task(task) => (Kinds::TASKS, Task(&task.key)),
        Observation::TaskExiting { task }
        | Observation::TaskReleased { task }
        | Observation::Look { task, .. }
        | Observation::Cgroup { task, .. } => (Kinds::TASKS, Task(task)),
        Observation::Signalled { pid, .. } => (Kinds::TASKS, Process(*pid)),
        Observation::ProcessDoubted { .. } => (Kinds::NONE, Anywhere),
        Observation::Attachment(_)
        | Observation::AttachmentGone { .. }
        | Observation::Sandbox(_)
        | Observation::SandboxGone { .. }
        | Observation::Container(_)
        | Observation::ContainerGone { .. }
        | Observation::RuntimeProcesses { .. } => (Kinds::RUNTIMES, Anywhere),
        Observation::Pod(_) | Observation::PodGone { .. } => (Kinds::PODS, Anywhere),
        Observation::PodsConfirmed => (Kinds::PODS | Kinds::ENDPOINTS, Anywhere),
        Observation::PodLimit { .. } => (Kinds::IPAM, Anywhere),
        Observation::ContainerMount(_) | Observation::ContainerMountsSearched { .. } => {
            (Kinds::MOUNTS, Anywhere)
        }
        Observation::Cleanup { .. } => (Kinds::TEARDOWN, Anywhere),
        Observation::Reservation(_)
        | Observation::ReservationGone { .. }
        | Observation::Range(_)
        | Observation::Configured(_)
        | Observation::Block(_)
        | Observation::BlockGone { .. }
        | Observation::StoreUnreadable(_)
        | Observation::StoreReadable { .. } => (Kinds::IPAM, Anywhere),
        Observation::Endpoint(_)
        | Observation::EndpointGone { .. }
        | Observation::EndpointsConfirmed { .. } => (Kinds::ENDPOINTS, Anywhere),
        Observation::CniBegan(_) | Observation::CniEnded { .. } | Observation::CniError { .. } => {
            (Kinds::CALLS, Anywhere)
        }
    }
}

/// What the beginning or the end of a dump may change.
fn of_scope(scope: &Scope) -> Kinds {
    match scope {
        Scope::Netns => Kinds::ALL,
        Scope::Tasks => Kinds::TASKS | Kinds::NETNS,
        Scope::Links { .. } => Kinds::LINKS | Kinds::ADDRESSES | Kinds::NETNS,
        Scope::Addresses { .. } => Kinds::ADDRESSES | Kinds::NETNS,
        Scope::Neighbours { .. } => Kinds::NEIGHBOURS,
        Scope::Routes { .. } => Kinds::ROUTES,
        Scope::Mounts { .. } | Scope::Files => Kinds::NETNS,
        Scope::Runtime { .. } | Scope::Cni => Kinds::RUNTIMES,
        Scope::Pods => Kinds::PODS | Kinds::ENDPOINTS,
        Scope::Reservations { .. } | Scope::Ranges { .. } | Scope::Blocks { .. } => Kinds::IPAM,
        Scope::Endpoints { .. } => Kinds::ENDPOINTS,
    }
}

impl NodeMap {
    /// Marks what a fact has just changed.
    pub(super) fn mark_fact(&mut self, what: &Observation) {
        let (kinds, reach) = of(what);
        match reach {
            Reach::Anywhere => self.changes.mark(kinds),
            Reach::Netns(netns) => match self.find(netns) {
                Some(id) => self.mark_in(id, kinds),
                None if self.is_left_out(netns) => {}
                None => self.changes.mark(kinds),
            },
            Reach::Task(task) => {
                self.changes.mark_within(kinds);
                if let Some(id) = self.task(task).map(|entry| entry.netns) {
                    self.mark_in(id, kinds);
                }
            }
            Reach::Process(pid) => {
                self.changes.mark_within(kinds);
                let ids: Vec<NetnsId> = self.tasks_of(pid).map(|entry| entry.netns).collect();
                ids.into_iter().for_each(|id| self.mark_in(id, kinds));
            }
        }
    }

    /// Marks a change within a netns.
    pub(super) fn mark_in(&mut self, id: NetnsId, kinds: Kinds) {
        #[cfg(test)]
        if unmarked::is_within() && self.netns(id).is_some_and(|entry| !entry.host) {
            return self.changes.mark_within(kinds);
        }
        if self.kernel.mark_changed(id, self.changes.now) {
            self.changes.mark_within(kinds);
        } else {
            self.changes.mark(kinds);
        }
    }

    /// The current tick; no change is newer.
    #[must_use]
    pub fn tick(&self) -> Tick {
        self.changes.now
    }

    /// Whether any of these kinds changed after `since`.
    #[must_use]
    pub fn changed(&self, kinds: Kinds, since: Tick) -> bool {
        kinds.places().any(|place| self.changes.anywhere[place] > since)
    }

    /// Whether any of these kinds changed at this tick or later.
    pub(super) fn changed_from(&self, kinds: Kinds, from: Tick) -> bool {
        kinds.places().any(|place| self.changes.anywhere[place] >= from)
    }

    /// Whether any of these kinds changed after `since`, other than within one pod's netns.
    #[must_use]
    pub fn changed_beyond(&self, kinds: Kinds, since: Tick) -> bool {
        kinds.places().any(|place| self.changes.beyond[place] > since)
    }

    /// Whether something in this netns changed after `since`.
    #[must_use]
    pub fn changed_in(&self, id: NetnsId, since: Tick) -> bool {
        self.netns(id).is_none_or(|entry| entry.changed_since(since))
    }
}

/// Lets a test suppress marks, to check that the missing mark is noticed.
#[cfg(test)]
pub(crate) mod unmarked {
    use std::cell::Cell;

    use super::Kinds;

    /// What is suppressed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Unmarked {
        Kind(Kinds),
        /// The mark of the netns in which something changed.
        Within,
    }

    thread_local! {
        pub(crate) static UNMARKED: Cell<Option<Unmarked>> = const { Cell::new(None) };
    }

    impl Unmarked {
        pub(crate) fn all() -> impl Iterator<Item = Self> {
            let kinds = Kinds::ALL.places().map(|place| Self::Kind(Kinds(1 << place)));
            kinds.chain([Self::Within])
        }
    }

    /// `kinds` without the suppressed ones.
    pub(super) fn but(kinds: Kinds) -> Kinds {
        match UNMARKED.get() {
            Some(Unmarked::Kind(out)) => Kinds(kinds.0 & !out.0),
            _ => kinds,
        }
    }

    pub(super) fn is_within() -> bool {
        UNMARKED.get() == Some(Unmarked::Within)
    }
}
