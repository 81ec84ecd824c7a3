//! The records that the kernel half writes and the user half reads, and nothing else.
//!
//! Every record begins with a [`Header`]; its `kind` says which struct follows. The layouts hold no
//! padding (checked at compile time): the kernel half copies them from its stack, where the verifier
//! refuses a byte that was never written. The user half takes them apart field by field with
//! [`Wire::take`], without `unsafe` and without trusting a length.
//!
//! Numbers are in the byte order of the machine. A field that the kernel could not tell is 0.

#![no_std]

mod wire;

pub use wire::Wire;

use wire::record;

/// What a record is: the `kind` of its [`Header`], and the index of its event's counters.
pub mod kind {
    /// [`super::NetnsRecord`]: `netns_bpf_pernet_init`.
    pub const NETNS_CREATED: u16 = 1;
    /// [`super::NetnsRecord`]: `netns_bpf_pernet_pre_exit`.
    pub const NETNS_DYING: u16 = 2;
    /// [`super::NetnsRecord`]: `proc_net_ns_exit`.
    pub const NETNS_GONE: u16 = 3;
    /// [`super::TaskRecord`]: a process was forked. One that did not live long is not told.
    pub const TASK_FORK: u16 = 4;
    /// [`super::TaskRecord`]: a process runs a new program.
    pub const TASK_EXEC: u16 = 5;
    /// No record: a process has begun to exit. It still holds its netns, and is in the table of [`super::Leaving`].
    pub const TASK_EXIT: u16 = 6;
    /// [`super::TaskRecord`]: a task moves to `netns` (`setns`, `unshare`).
    pub const TASK_JOIN: u16 = 7;
    /// [`super::TaskRecord`]: a task gives up its namespaces (`exit_task_namespaces`).
    pub const TASK_RELEASE: u16 = 8;
    /// [`super::TaskRecord`]: a task that was seen exiting is freed (`sched_process_free`).
    pub const TASK_FREE: u16 = 9;
    /// No record: a thread ends all others of its process (`zap_other_threads`), which is then in the table of
    /// [`super::Leaving`].
    pub const GROUP_EXIT: u16 = 10;
    /// No record: a SIGKILL was generated. Its target is in the table of [`super::Leaving`].
    pub const SIGNAL: u16 = 11;
    /// [`super::AddressRecord`]: an IPv4 address came.
    pub const IPV4_UP: u16 = 12;
    /// [`super::AddressRecord`]: an IPv4 address went.
    pub const IPV4_DOWN: u16 = 13;
    /// [`super::AddressRecord`]: an IPv6 address came; it may still be tentative.
    pub const IPV6_UP: u16 = 14;
    /// [`super::AddressRecord`]: an IPv6 address went.
    pub const IPV6_DOWN: u16 = 15;
    /// [`super::AddressRecord`]: an IPv6 address became usable or changed its flags.
    pub const IPV6_READY: u16 = 16;
    /// [`super::AddressRecord`]: an IPv6 address was taken off its routes.
    pub const IPV6_REMOVED: u16 = 17;
    /// [`super::AddressRecord`], `mac` is the offender's: duplicate address detection failed.
    pub const DAD_FAILED: u16 = 18;
    /// [`super::MoveRecord`].
    pub const DEVICE_MOVED: u16 = 19;
    /// [`super::NeighbourRecord`].
    pub const NEIGHBOUR: u16 = 20;
    /// [`super::ClaimRecord`]: ARP that the stack of a netns took in (`arp_process`).
    pub const CLAIM: u16 = 21;
    /// [`super::ClaimRecord`]: ARP that a socket of the host's netns heard.
    pub const CLAIM_ON_WIRE: u16 = 22;
    /// [`super::CallRecord`]: a CNI plugin began to run.
    pub const CALL_BEGAN: u16 = 23;
    /// [`super::CallEndRecord`]: it has ended.
    pub const CALL_ENDED: u16 = 24;
    /// [`super::CallRefusedRecord`]: a CNI plugin was run by somebody whose word does not count.
    pub const CALL_REFUSED: u16 = 25;
    /// [`super::TaskRecord`], read by the task iterator.
    pub const TASK_SEEN: u16 = 26;
    /// [`super::FileRecord`], read by the file iterator.
    pub const FILE_SEEN: u16 = 27;
    /// [`super::Header`] alone: there is something new in the tables of tasks.
    pub const ROUSE: u16 = 28;
    /// One more than the last kind: the length of tables indexed by kind.
    pub const COUNT: usize = 29;
}

/// Sender of a signal that does not show in the daemon's pid namespace.
pub const OUTSIDE: u32 = u32::MAX;

/// The offset global of a member that this kernel does not have.
pub const MISSING: u32 = u32::MAX;

/// Netns in one element of the map that the netns walk fills.
pub const WALK_CHUNK: usize = 256;
/// Elements of that map: it holds 8,192 netns in 128 KiB.
pub const WALK_CHUNKS: usize = 32;

/// A directory whose programs are CNI plugins, as the user half tells it to the kernel half: the device
/// (`s_dev`) and the inode of one, or [`PATH_KEY`] and the [`path_key`] of its path.
pub type DirKey = [u64; 2];
/// First half of a [`DirKey`] that is made of a path: no device has this number.
pub const PATH_KEY: u64 = u64::MAX;
/// Directories that can be told.
pub const MOST_DIRS: u32 = 64;
/// A run of a plugin: `start_boottime` of its process, and its id.
pub type CallKey = [u64; 2];
/// Ends of runs that are kept where the ring buffer has no room.
pub const MOST_UNTOLD: u32 = 4096;
/// Longest path of a plugin that is taken, with the NUL at its end.
pub const LONGEST_PATH: usize = 256;

/// What [`path_key`] is for no bytes at all.
pub const PATH_SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// The key of a path and one byte more (FNV-1a). Two paths with one key would cost a look at an
/// environment that is no plugin's, and nothing else.
#[inline(always)]
#[must_use]
pub const fn path_step(key: u64, byte: u8) -> u64 {
    (key ^ byte as u64).wrapping_mul(0x0100_0000_01b3)
}

/// The key of a directory's path, without a slash at its end.
#[must_use]
pub const fn path_key(path: &[u8]) -> u64 {
    let mut key = PATH_SEED;
    let mut at = 0;
    while at < path.len() {
        key = path_step(key, path[at]);
        at += 1;
    }
    key
}

/// Address family, as in `sys/socket.h`.
pub const AF_INET: u8 = 2;
/// Address family, as in `sys/socket.h`.
pub const AF_INET6: u8 = 10;

record! {
    /// What every record begins with.
    pub struct Header {
        /// One of [`kind`].
        pub kind: u16,
        /// Size of the whole record.
        pub size: u16,
        /// Unused, but in the kernel half's table of tasks that were not told yet: 1 when an earlier name of this one
        /// was.
        pub reserved: u32,
        /// `CLOCK_BOOTTIME` in nanoseconds, at the event.
        pub time: u64,
    }
}

record! {
    /// The names of a netns.
    pub struct Netns {
        /// `net->net_cookie`; 0 on kernels that have none.
        pub cookie: u64,
        /// `net->ns.inum`.
        pub inode: u32,
        /// References that keep it alive (`net->ns.count`): 0 means that it waits for its
        /// teardown. [`MISSING`] where this was not asked.
        pub refs: u32,
    }
}

record! {
    /// A netns was made, begins to die, or is gone.
    pub struct NetnsRecord {
        /// What every record begins with.
        pub header: Header,
        /// Which.
        pub netns: Netns,
    }
}

record! {
    /// A task.
    pub struct TaskRecord {
        /// What every record begins with.
        pub header: Header,
        /// Its netns; all 0 when it has none (any more).
        pub netns: Netns,
        /// Thread group id, in the initial pid namespace.
        pub pid: u32,
        /// Thread id, in the initial pid namespace.
        pub tid: u32,
        /// `start_boottime` in nanoseconds.
        pub start: u64,
        /// Thread group id of `real_parent`.
        pub parent: u32,
        /// `PF_*`.
        pub flags: u32,
        /// `__state`.
        pub state: u32,
        /// `exit_state`.
        pub exit_state: u32,
        /// Signals 1 to 64 that are pending for the thread or its process.
        pub pending: u64,
        /// For how long it has not been on a CPU, in nanoseconds; 0 when that is not known. Never more
        /// than it is. Told by the task iterator alone.
        pub idle: u64,
        /// Its name.
        pub comm: [u8; 16],
    }
}

/// Of a task that was not told yet: the address of its `task_struct`, and its `start_boottime`.
pub type FreshKey = [u64; 2];
/// Tasks that may wait to be told.
pub const MOST_FRESH: u32 = 4096;
/// Thread groups that may be on their way out.
pub const MOST_LEAVING: u32 = 8192;

record! {
    /// A thread group of which a part is on its way out, by the address of its `signal_struct`.
    pub struct Leaving {
        /// `start_boottime` of its leader: an address is used again.
        pub start: u64,
        /// Since when.
        pub since: u64,
        /// When it was sent SIGKILL first; 0: it was not, as far as was seen.
        pub killed: u64,
        /// Its id.
        pub pid: u32,
        /// All of it is to end. Else its leader alone has exited.
        pub ending: u32,
        /// Grows when one of its threads exits after it was named to the user half.
        pub news: u32,
        /// The thread that the signal was directed at.
        pub tid: u32,
        /// 1 when the signal was sent to the whole thread group.
        pub group: u32,
        /// Thread group id of the task that sent it; 0 for the kernel itself.
        pub sender: u32,
        /// Name of the task that ran while it was generated.
        pub comm: [u8; 16],
    }
}

record! {
    /// An address and the index of the device it is on.
    pub struct AddressRecord {
        /// What every record begins with.
        pub header: Header,
        /// The device's netns.
        pub netns: Netns,
        /// `ifa_local`, or `addr` of IPv6; an IPv4 address is in the first four bytes.
        pub local: [u8; 16],
        /// `ifa_address`, or `peer_addr` of IPv6, which is all 0 without a peer.
        pub peer: [u8; 16],
        /// The device.
        pub ifindex: u32,
        /// `IFA_F_*`.
        pub flags: u32,
        /// [`AF_INET`] or [`AF_INET6`].
        pub family: u8,
        /// Length of the prefix.
        pub prefix_len: u8,
        /// `RT_SCOPE_*` of an IPv4 address; 0 for IPv6, which says it by the address itself.
        pub scope: u8,
        /// 1 when `offender` was read.
        pub has_offender: u8,
        /// Who answered, in [`kind::DAD_FAILED`].
        pub offender: [u8; 6],
        /// Unused.
        pub reserved: [u8; 6],
    }
}

record! {
    /// A device was moved to another netns.
    pub struct MoveRecord {
        /// What every record begins with.
        pub header: Header,
        /// Where it was.
        pub from: Netns,
        /// Where it is.
        pub to: Netns,
        /// Its index there.
        pub from_ifindex: u32,
        /// Its index here.
        pub to_ifindex: u32,
    }
}

record! {
    /// An update of a neighbour entry, before it is applied.
    pub struct NeighbourRecord {
        /// What every record begins with.
        pub header: Header,
        /// The device's netns.
        pub netns: Netns,
        /// The neighbour's IP; an IPv4 address is in the first four bytes.
        pub ip: [u8; 16],
        /// The device.
        pub ifindex: u32,
        /// `NEIGH_UPDATE_F_*`.
        pub flags: u32,
        /// [`AF_INET`] or [`AF_INET6`].
        pub family: u8,
        /// `NUD_*` before.
        pub old_state: u8,
        /// `NUD_*` that the update asks for.
        pub new_state: u8,
        /// 1 when the update names a hardware address.
        pub has_claim: u8,
        /// Hardware address before.
        pub mac: [u8; 6],
        /// Hardware address that the update names.
        pub claim: [u8; 6],
    }
}

/// `ARPOP_REQUEST` of include/uapi/linux/if_arp.h.
pub const ARP_REQUEST: u8 = 1;
/// `ARPOP_REPLY`.
pub const ARP_REPLY: u8 = 2;

record! {
    /// Somebody claims an IPv4 address, by ARP.
    pub struct ClaimRecord {
        /// What every record begins with.
        pub header: Header,
        /// Where it was heard.
        pub netns: Netns,
        /// The device that heard it.
        pub ifindex: u32,
        /// The IP.
        pub ip: [u8; 4],
        /// Whose it is to be.
        pub mac: [u8; 6],
        /// [`ARP_REQUEST`] or [`ARP_REPLY`].
        pub operation: u8,
        /// 1 when the packet asks for, or answers to, the very IP that it claims.
        pub announces: u8,
    }
}

record! {
    /// An open file that keeps a netns alive in which its process is not.
    pub struct FileRecord {
        /// What every record begins with.
        pub header: Header,
        /// The netns that is kept alive.
        pub netns: Netns,
        /// Thread group id of the process that has it open.
        pub pid: u32,
        /// The fd.
        pub fd: u32,
        /// 1 for a socket, 0 for an nsfs file.
        pub socket: u32,
        /// Unused.
        pub reserved: u32,
        /// The process's name.
        pub comm: [u8; 16],
    }
}

record! {
    /// A CNI plugin began to run. Each text ends at its first NUL and is all NUL where there is none; one
    /// that fills its field but for a NUL may have been longer. Of the environment nothing but these
    /// variables is ever copied.
    pub struct CallRecord {
        /// What every record begins with.
        pub header: Header,
        /// Its process, in the initial pid namespace.
        pub pid: u32,
        /// Thread group id of `real_parent`.
        pub parent: u32,
        /// `start_boottime` in nanoseconds.
        pub start: u64,
        /// 1 for a script: the file that runs is its interpreter, and `loose` says nothing of the script itself.
        pub script: u32,
        /// 1 when the file that runs, or a directory above it in its file system, belongs to another user than
        /// root or can be written by one, or when that could not be read.
        pub loose: u32,
        /// `bprm->filename`: the path that it was run by.
        pub plugin: [u8; LONGEST_PATH],
        /// `CNI_COMMAND`.
        pub command: [u8; 16],
        /// `CNI_CONTAINERID`.
        pub container_id: [u8; 256],
        /// `CNI_NETNS`.
        pub netns_path: [u8; 256],
        /// `CNI_IFNAME`.
        pub ifname: [u8; 32],
        /// `K8S_POD_NAMESPACE` of `CNI_ARGS`.
        pub pod_namespace: [u8; 72],
        /// `K8S_POD_NAME` of `CNI_ARGS`.
        pub pod_name: [u8; 264],
        /// `K8S_POD_UID` of `CNI_ARGS`.
        pub pod_uid: [u8; 72],
    }
}

record! {
    /// A CNI plugin was run by somebody who is not root of the first user namespace with CAP_NET_ADMIN or
    /// CAP_SYS_ADMIN. Of what it was told nothing is copied.
    pub struct CallRefusedRecord {
        /// What every record begins with.
        pub header: Header,
        /// Its process, in the initial pid namespace.
        pub pid: u32,
        /// `cred->uid`, as the first user namespace numbers it.
        pub uid: u32,
    }
}

record! {
    /// A CNI plugin has ended.
    pub struct CallEndRecord {
        /// What every record begins with.
        pub header: Header,
        /// Its process, in the initial pid namespace.
        pub pid: u32,
        /// As `wait` gives it: status in the second byte, signal in the first.
        pub code: u32,
        /// `start_boottime` in nanoseconds.
        pub start: u64,
    }
}

record! {
    /// What one run of the netns walk left in its result map.
    pub struct WalkResult {
        /// Netns written to the chunks.
        pub count: u32,
        /// 1 when the walk came back to the head of the list.
        pub complete: u32,
    }
}
