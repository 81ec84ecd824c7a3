//! Everything that a fact can report.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{
    Address, AddressKey, Attachment, Block, Boot, BootNs, Claim, Cleanup, CniCall, CniCommand,
    Configured, Container, ContainerMount, Endpoint, Holder, Hop, Link, Look, Mac, Monitor, Name,
    Neighbour, NetnsRef, Pod, Range, Reservation, Route, RouteKey, RuntimeProcess, Sandbox, Scope,
    Sender, Sight, Source, Task, TaskKey, Unreadable, Unreported, Vlans,
};

/// What was observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Observation {
    /// First fact of every stream: the boot and the node.
    Boot(Boot),
    /// The wall clock was set: dates use this offset from now on, as [`Boot::wall_offset`].
    ClockSet {
        /// Wall clock minus boot clock in nanoseconds.
        wall_offset: i64,
    },
    /// How much can be observed; changes when the attach ladder has settled.
    Sight(Sight),
    /// The state of a source has changed.
    Source(Source),
    /// There is no source of this name any more: it has another name now, or it represented the lack of sources that
    /// exist now.
    SourceGone {
        /// Its name.
        name: String,
    },

    /// A source reported invalid names, which were rejected: see [`Gate`](super::Gate).
    Refused {
        /// The source.
        source: String,
        /// The kind of the names.
        name: Name,
        /// Number of rejections.
        count: u64,
    },

    /// Every container runtime and store that existed at the start has given its first answer, or has had the time to:
    /// missing answers are not waited for any more. Their facts come before this one.
    FirstAnswers,
    /// The daemon is near the memory that it may have, or no longer is.
    Memory {
        /// Whether it is.
        short: bool,
    },
    /// Events were lost (ring buffer or socket overrun). The daemon reads everything again; netns in teardown are
    /// removed then, because their end may have been lost.
    Lost {
        /// Number of lost events, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        /// Whether runs of CNI plugins may be among them: these cannot be read again. If absent in a record, they may
        /// be.
        #[serde(default = "yes")]
        calls: bool,
    },
    /// Events in one netns were not reported. If they were about its addresses or devices, it is read again, and what is
    /// known of it is not complete until then. No other netns is concerned.
    LostIn {
        /// Its names.
        netns: NetnsRef,
        /// What was not reported since the last such fact.
        #[serde(flatten)]
        unreported: Unreported,
    },
    /// Events were not reported in more netns of users than are told one by one: each of them is as after
    /// [`LostIn`](Self::LostIn).
    LostInUsers,
    /// A dump of `scope` began: entries last touched before this fact's `at` are removed when it ends.
    Began(Scope),
    /// The dump ended. Only a complete dump removes entries: what a truncated dump did not name is unknown.
    Ended {
        /// What was dumped.
        #[serde(flatten)]
        scope: Scope,
        /// Time of the [`Observation::Began`] of this dump.
        began: BootNs,
        /// Whether every entry was read.
        complete: bool,
    },

    /// A netns is alive. Its names belong together from now on.
    Netns {
        /// Its names.
        netns: NetnsRef,
    },
    /// A netns was just created (`copy_net_ns`).
    NetnsCreated {
        /// Its names.
        netns: NetnsRef,
    },
    /// Whose a netns is: only he, or root, can have made it. For the sharing of what is bounded.
    NetnsUser {
        /// Which.
        netns: NetnsRef,
        /// The user who made its user namespace; of nested ones the outermost, but for the node's own. 0 where it belongs
        /// to that.
        uid: u32,
        /// Whether it belongs to a user namespace below the node's own: with a `uid` of 0, a runtime made that, or the root
        /// of a container.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        nested: bool,
    },
    /// The teardown has begun, or the nsid was taken away: its addresses may still be up.
    NetnsDying {
        /// Its names.
        netns: NetnsRef,
    },
    /// The teardown has ended: devices and addresses are removed, its inode and nsid are free.
    NetnsGone {
        /// Its names.
        netns: NetnsRef,
    },

    /// The netns could not be opened, or there was no request for it: its contents stay as unknown as before.
    NetnsClosed {
        /// The names by which it was looked up.
        netns: NetnsRef,
    },

    /// A link exists or has changed.
    Link {
        /// Its netns.
        netns: NetnsRef,
        /// The link.
        link: Link,
    },
    /// A link left this netns: deleted, or moved to another one. Its addresses were removed with it.
    LinkGone {
        /// Its netns.
        netns: NetnsRef,
        /// Index of the link.
        ifindex: u32,
    },
    /// A netns's nsid for another one.
    PeerNetns {
        /// The netns in which the nsid is valid.
        netns: NetnsRef,
        /// The nsid there.
        nsid: i32,
        /// The netns that it refers to.
        peer: NetnsRef,
    },
    /// The settings of a bridge port have changed, without further data on the link.
    Port {
        /// Its netns.
        netns: NetnsRef,
        /// Index of the device.
        ifindex: u32,
        /// As [`Link::isolated`].
        isolated: bool,
    },
    /// All VLANs of a bridge port, or of the bridge.
    Vlans {
        /// Its netns.
        netns: NetnsRef,
        /// Index of the device.
        ifindex: u32,
        /// If empty, nothing passes where VLANs are filtered.
        vlans: Vec<Vlans>,
    },
    /// An address exists or has changed.
    Address {
        /// Its netns.
        netns: NetnsRef,
        /// The address.
        address: Address,
    },
    /// An address was deleted.
    AddressGone {
        /// Its netns.
        netns: NetnsRef,
        /// Its identity.
        key: AddressKey,
    },
    /// Duplicate address detection failed: another node on the link answered for the address.
    DadFailed {
        /// Its netns.
        netns: NetnsRef,
        /// Index of the device.
        ifindex: u32,
        /// The address.
        ip: IpAddr,
        /// The MAC that answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offender: Option<Mac>,
    },
    /// A neighbour entry exists or has changed.
    Neighbour {
        /// Its netns.
        netns: NetnsRef,
        /// The entry.
        neighbour: Neighbour,
    },
    /// A neighbour entry was removed.
    NeighbourGone {
        /// Its netns.
        netns: NetnsRef,
        /// Index of the device.
        ifindex: u32,
        /// Its IP.
        ip: IpAddr,
    },

    /// A claim to an IP. Reported when it is new for the device or has another MAC than before, and repeated at
    /// intervals while it continues.
    Claimed {
        /// The netns where it was received.
        netns: NetnsRef,
        /// The claim.
        claim: Claim,
    },
    /// A route exists or has changed.
    Route {
        /// Its netns.
        netns: NetnsRef,
        /// The route.
        route: Route,
    },
    /// A route, or one of several to the same destination, was removed. Routes of a device that is set down or removed
    /// are not reported one by one.
    RouteGone {
        /// Its netns.
        netns: NetnsRef,
        /// Its identity.
        key: RouteKey,
        /// The removed next hops: others of the same key stay. Empty for all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hops: Vec<Hop>,
    },

    /// A task exists, in this netns.
    Task(Task),
    /// A task has begun to exit. It keeps its netns until [`Observation::TaskReleased`].
    TaskExiting {
        /// The task.
        task: TaskKey,
    },
    /// A task has released its namespaces (`nsproxy`), or no longer exists.
    TaskReleased {
        /// The task.
        task: TaskKey,
    },
    /// A signal was generated for a task (only SIGKILL is reported).
    Signalled {
        /// The target's process id.
        pid: u32,
        /// The target thread.
        tid: u32,
        /// The signal's number.
        signal: u32,
        /// Whether it was sent to the whole process rather than to one thread.
        group: bool,
        /// The sender; pid 0 is the kernel.
        by: Sender,
    },
    /// A file of a process stopped answering, or answers again: its tasks must be looked at.
    ProcessDoubted {
        /// The process.
        pid: u32,
    },
    /// A detailed look at one task, for the evidence of a finding.
    Look {
        /// The task.
        task: TaskKey,
        /// What it showed.
        look: Box<Look>,
    },
    /// The cgroup of a process.
    Cgroup {
        /// The task.
        task: TaskKey,
        /// Path within the hierarchy that names containers (see [`cgroup`](super::cgroup)).
        path: String,
    },

    /// Something other than a task holds a netns.
    Holder {
        /// The netns.
        netns: NetnsRef,
        /// The holder.
        holder: Holder,
    },
    /// A search for holders of this netns, through everything that can be read, has ended. The holders that it found
    /// were reported before; there are no others.
    HoldersSearched {
        /// The netns.
        netns: NetnsRef,
        /// Whether every source of holders answered.
        complete: bool,
    },

    /// The CNI result cache has the IPs that a container was given.
    Attachment(Attachment),
    /// The cache entry was removed.
    AttachmentGone {
        /// Its container.
        container_id: String,
        /// The interface in the container.
        ifname: String,
    },

    /// A runtime reports a sandbox.
    Sandbox(Sandbox),
    /// A runtime has removed a sandbox.
    SandboxGone {
        /// Name of its source.
        runtime: String,
        /// The sandbox.
        id: String,
    },
    /// A runtime reports a container.
    Container(Container),
    /// A runtime has removed a container.
    ContainerGone {
        /// Name of its source.
        runtime: String,
        /// The container.
        id: String,
    },
    /// All runtimes that run on the node, whether or not they are queried, and all monitors of containers.
    RuntimeProcesses {
        /// The runtimes.
        runtimes: Vec<RuntimeProcess>,
        /// The monitors.
        monitors: Vec<Monitor>,
        /// Whether every process could be read, so that a runtime that is not listed does not run.
        complete: bool,
    },

    /// The API server reports a pod of this node.
    Pod(Pod),
    /// The API server has deleted a pod of this node.
    PodGone {
        /// Its uid.
        uid: String,
    },
    /// The API server's reports of this node's pods are complete up to this time.
    PodsConfirmed,
    /// How many pods the kubelet of this node starts at most, as the API server says.
    PodLimit {
        /// `status.allocatable.pods` of the Node.
        pods: u32,
    },

    /// A container's file system, or its netns file, is mounted somewhere.
    ContainerMount(ContainerMount),
    /// A search of every mount namespace for mounts of these containers has ended. What it found was reported before.
    ContainerMountsSearched {
        /// The containers' ids.
        ids: Vec<String>,
        /// Whether every mount namespace could be read.
        complete: bool,
    },
    /// State of the kernel's worker that tears down netns (`cleanup_net`); absent while it is idle.
    Cleanup {
        /// The worker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<Cleanup>,
    },

    /// A store has a reservation of an IP, or has changed its owner.
    Reservation(Reservation),
    /// A store has released a reservation.
    ReservationGone {
        /// Name of the store.
        store: String,
        /// The reservation's key.
        key: String,
    },
    /// What a network can hand out. A range is removed by a complete dump that does not name it.
    Range(Range),
    /// A CNI configuration names this network. It is removed as a range is.
    Configured(Configured),
    /// A block of a store exists, or the number of its taken IPs has changed.
    Block(Block),
    /// A block was removed.
    BlockGone {
        /// Name of the store.
        store: String,
        /// The block's key.
        key: String,
    },
    /// A file of a store cannot be read. Its former content is neither repeated nor reported as removed.
    StoreUnreadable(Unreadable),
    /// The file can be read again, or was removed.
    StoreReadable {
        /// Name of the store.
        store: String,
        /// The file.
        path: String,
    },

    /// A CNI's datastore has an endpoint for a pod of this node, or has changed it.
    Endpoint(Endpoint),
    /// The endpoint was removed.
    EndpointGone {
        /// Name of the source that reports it.
        store: String,
        /// The endpoint's key.
        key: String,
    },
    /// This datastore has reported all changes of endpoints until now.
    EndpointsConfirmed {
        /// Name of the source that reports them.
        store: String,
    },

    /// A CNI plugin was started.
    CniBegan(CniCall),
    /// A run of a CNI plugin has ended.
    CniEnded {
        /// The process of the run.
        task: TaskKey,
        /// Its exit status, 0 for success; absent if a signal ended it or its end was missed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u32>,
        /// The signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<u32>,
    },
    /// Why a run failed, according to the runtime's log.
    CniError {
        /// The container.
        container_id: String,
        /// The command.
        command: CniCommand,
        /// The text of the log, bounded. Hostile text.
        text: String,
    },
}

/// The default for a record without the field.
fn yes() -> bool {
    true
}
