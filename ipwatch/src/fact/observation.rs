//! Everything that a fact can say.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{
    Address, AddressKey, Attachment, Block, Boot, BootNs, Claim, Cleanup, CniCall, CniCommand,
    Container, ContainerMount, Endpoint, Holder, Hop, Link, Look, Mac, Monitor, Name, Neighbour,
    NetnsRef, Pod, Range, Reservation, Route, RouteKey, RuntimeProcess, Sandbox, Scope, Sender,
    Sight, Source, Task, TaskKey, Unreadable, Vlans,
};

/// What was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Observation {
    /// First fact of every stream: which boot of which node this is.
    Boot(Boot),
    /// The wall clock was set: dates are made with this offset from now on, as [`Boot::wall_offset`].
    ClockSet {
        /// Wall clock minus boot clock in nanoseconds.
        wall_offset: i64,
    },
    /// How much can be seen; changes when the attach ladder settles.
    Sight(Sight),
    /// A source changed its state.
    Source(Source),
    /// There is no source of this name any more: it goes by another one, or it stood for the lack of
    /// those that are there now.
    SourceGone {
        /// Its name.
        name: String,
    },

    /// A source told names that are none, and they were not taken: see [`Gate`](super::Gate).
    Refused {
        /// The source.
        source: String,
        /// What they were to be.
        name: Name,
        /// How many.
        count: u64,
    },

    /// Every container runtime and store that was there at the start has given its first answer, or has had the
    /// time to: what they have not told by now is not waited for. What they told comes before this.
    FirstAnswers,
    /// Events were lost (ring buffer or socket overrun). The daemon reads everything again; netns that
    /// were being torn down are dropped then, for the end of that may be what was lost.
    Lost {
        /// How many, when it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        /// Runs of CNI plugins may be among them: nothing tells of these again. Records that do not say may
        /// mean them.
        #[serde(default = "yes")]
        calls: bool,
    },
    /// A dump of `scope` began: entries last touched before this fact's `at` go when it ends.
    Began(Scope),
    /// The dump ended. Only a complete one sweeps: what a truncated dump did not name is unknown.
    Ended {
        /// What was dumped.
        #[serde(flatten)]
        scope: Scope,
        /// Time of the [`Observation::Began`] this closes.
        began: BootNs,
        /// Every entry was read.
        complete: bool,
    },

    /// A netns is alive. The names it carries belong together from now on.
    Netns {
        /// Its names.
        netns: NetnsRef,
    },
    /// A netns was just made (`copy_net_ns`).
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
    },
    /// The teardown has begun, or the nsid was taken away: its addresses may still be up.
    NetnsDying {
        /// Its names.
        netns: NetnsRef,
    },
    /// The teardown has ended: devices and addresses are gone, its inode and nsid are free.
    NetnsGone {
        /// Its names.
        netns: NetnsRef,
    },

    /// It could not be opened, or not be asked for: what is in it is unknown as before.
    NetnsClosed {
        /// The names it was looked for by.
        netns: NetnsRef,
    },

    /// A link is there.
    Link {
        /// Where.
        netns: NetnsRef,
        /// The link.
        link: Link,
    },
    /// A link left this netns: deleted, or moved to another one. Its addresses went with it.
    LinkGone {
        /// Where.
        netns: NetnsRef,
        /// Which.
        ifindex: u32,
    },
    /// What a netns calls another one: an nsid of its own for a netns that is known here.
    PeerNetns {
        /// Whose nsid it is.
        netns: NetnsRef,
        /// The nsid there.
        nsid: i32,
        /// Which netns that is.
        peer: NetnsRef,
    },
    /// A bridge's port has other settings: a link of which no more was told.
    Port {
        /// Where.
        netns: NetnsRef,
        /// Which device.
        ifindex: u32,
        /// As [`Link::isolated`].
        isolated: bool,
    },
    /// The VLANs of a bridge's port, or of the bridge: all of them.
    Vlans {
        /// Where.
        netns: NetnsRef,
        /// Which device.
        ifindex: u32,
        /// None means none: nothing passes where VLANs are filtered.
        vlans: Vec<Vlans>,
    },
    /// An address is there.
    Address {
        /// Where.
        netns: NetnsRef,
        /// The address.
        address: Address,
    },
    /// An address was deleted.
    AddressGone {
        /// Where.
        netns: NetnsRef,
        /// Which.
        key: AddressKey,
    },
    /// Duplicate address detection failed: another node on the link answered for the address.
    DadFailed {
        /// Where.
        netns: NetnsRef,
        /// On which link.
        ifindex: u32,
        /// The address.
        ip: IpAddr,
        /// The MAC that answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offender: Option<Mac>,
    },
    /// A neighbour entry is there, or has changed.
    Neighbour {
        /// Where.
        netns: NetnsRef,
        /// The entry.
        neighbour: Neighbour,
    },
    /// A neighbour entry is gone.
    NeighbourGone {
        /// Where.
        netns: NetnsRef,
        /// On which link.
        ifindex: u32,
        /// For which IP.
        ip: IpAddr,
    },

    /// Somebody claims an IP. Told when it is new for that device or another MAC than before, and again now
    /// and then while it goes on.
    Claimed {
        /// Where it was heard.
        netns: NetnsRef,
        /// The claim.
        claim: Claim,
    },
    /// A route is there, or has changed.
    Route {
        /// Where.
        netns: NetnsRef,
        /// The route.
        route: Route,
    },
    /// A route is gone, or one of several to the same place. Those of a device that goes down or away are
    /// not told of one by one.
    RouteGone {
        /// Where.
        netns: NetnsRef,
        /// Which.
        key: RouteKey,
        /// The next hops that it had: others of the same key stay. Absent for all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hops: Vec<Hop>,
    },

    /// A task is there, in this netns.
    Task(Task),
    /// A task has begun to exit. It keeps its netns until [`Observation::TaskReleased`].
    TaskExiting {
        /// Which.
        task: TaskKey,
    },
    /// A task has given its namespaces up (`nsproxy` is gone), or no longer exists.
    TaskReleased {
        /// Which.
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
        /// Sent to the whole process, not to one thread.
        group: bool,
        /// Who sent it; pid 0 is the kernel.
        by: Sender,
    },
    /// A file of a process does not answer, or does again: what is known of its tasks is to be looked at.
    ProcessDoubted {
        /// The process.
        pid: u32,
    },
    /// A careful look at one task, for the evidence of a finding.
    Look {
        /// Which.
        task: TaskKey,
        /// What it showed.
        look: Box<Look>,
    },
    /// The cgroup of a process.
    Cgroup {
        /// Which.
        task: TaskKey,
        /// Path within the hierarchy that names containers (see `map::sandbox`).
        path: String,
    },

    /// Something other than a task holds a netns.
    Holder {
        /// Which netns.
        netns: NetnsRef,
        /// By what.
        holder: Holder,
    },
    /// A holder search of this netns, through everything that can be read, has ended. The holders it
    /// found were told before; none of another kind was seen.
    HoldersSearched {
        /// Which netns.
        netns: NetnsRef,
        /// Every source of holders answered.
        complete: bool,
    },

    /// The CNI result cache says which IPs a container was given.
    Attachment(Attachment),
    /// The cache entry is gone.
    AttachmentGone {
        /// Its container.
        container_id: String,
        /// The interface in the container.
        ifname: String,
    },

    /// A runtime tells of a sandbox.
    Sandbox(Sandbox),
    /// A runtime has removed a sandbox.
    SandboxGone {
        /// Name of its source.
        runtime: String,
        /// The sandbox.
        id: String,
    },
    /// A runtime tells of a container.
    Container(Container),
    /// A runtime has removed a container.
    ContainerGone {
        /// Name of its source.
        runtime: String,
        /// The container.
        id: String,
    },
    /// All runtimes that run on the node, whether or not they are asked, and all monitors of containers.
    RuntimeProcesses {
        /// The runtimes.
        runtimes: Vec<RuntimeProcess>,
        /// The monitors.
        monitors: Vec<Monitor>,
        /// Every process could be read: who is not listed does not run.
        complete: bool,
    },

    /// The API server tells of a pod of this node.
    Pod(Pod),
    /// The API server has deleted a pod of this node.
    PodGone {
        /// Its uid.
        uid: String,
    },
    /// All that the API server has told of this node's pods is as new as this.
    PodsConfirmed,

    /// A container's file system, or its netns file, is mounted somewhere.
    ContainerMount(ContainerMount),
    /// A search of every mount namespace for mounts of these containers has ended. What it found was
    /// told before.
    ContainerMountsSearched {
        /// The containers' ids.
        ids: Vec<String>,
        /// Every mount namespace could be read.
        complete: bool,
    },
    /// What the kernel's worker that tears netns down (`cleanup_net`) does; absent while it rests.
    Cleanup {
        /// The worker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<Cleanup>,
    },

    /// A store reserves an IP, or has changed for whom.
    Reservation(Reservation),
    /// A store has let go of a reservation.
    ReservationGone {
        /// Name of the store.
        store: String,
        /// The reservation's key.
        key: String,
    },
    /// What a network can hand out. Ranges end with a dump that does not name them.
    Range(Range),
    /// A block of a store is there, or more or fewer of it are taken.
    Block(Block),
    /// It is there no more.
    BlockGone {
        /// Name of the store.
        store: String,
        /// The block's key.
        key: String,
    },
    /// A file of a store cannot be read. What it said before is told neither again nor as gone.
    StoreUnreadable(Unreadable),
    /// It can be read again, or is gone.
    StoreReadable {
        /// Name of the store.
        store: String,
        /// The file.
        path: String,
    },

    /// A CNI's datastore has an endpoint for a pod of this node, or has changed it.
    Endpoint(Endpoint),
    /// It has none any more.
    EndpointGone {
        /// Name of the source that tells of it.
        store: String,
        /// The endpoint's key.
        key: String,
    },
    /// This store has told all there is of endpoints until now.
    EndpointsConfirmed {
        /// Name of the source that tells of them.
        store: String,
    },

    /// A CNI plugin began to run.
    CniBegan(CniCall),
    /// It has ended.
    CniEnded {
        /// Which run.
        task: TaskKey,
        /// Its exit status, 0 for success; absent when a signal ended it or it was not seen to end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u32>,
        /// The signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<u32>,
    },
    /// Why a run failed, as the runtime's log has it.
    CniError {
        /// Of which container.
        container_id: String,
        /// Which command.
        command: CniCommand,
        /// The log's words, bounded. Hostile text.
        text: String,
    },
}

/// What a record that does not say may mean.
fn yes() -> bool {
    true
}
