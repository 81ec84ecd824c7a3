//! The records that the kernel half writes and the user half reads.
//!
//! Every record begins with a [`Header`], whose `kind` says which struct follows. The layouts have no
//! padding (checked at compile time): the kernel half copies them from its stack, and the verifier
//! rejects bytes that were never written. The user half parses them field by field with
//! [`Wire::take`], without `unsafe` and without trusting a length.
//!
//! Numbers have the byte order of the machine. A field that the kernel could not provide is 0.

#![no_std]

mod budget;
mod wire;

pub use budget::Budget;
pub use wire::Wire;

use wire::record;

/// The kind of a record: `kind` in its [`Header`], and the index of the counters of its event.
pub mod kind {
    /// [`super::NetnsRecord`]: `netns_bpf_pernet_init`.
    pub const NETNS_CREATED: u16 = 1;
    /// [`super::NetnsRecord`]: `netns_bpf_pernet_pre_exit`.
    pub const NETNS_DYING: u16 = 2;
    /// [`super::NetnsRecord`]: `proc_net_ns_exit`.
    pub const NETNS_GONE: u16 = 3;
    /// [`super::TaskRecord`]: a process was forked. Processes that end soon are not reported.
    pub const TASK_FORK: u16 = 4;
    /// [`super::TaskRecord`]: a process executes a new program.
    pub const TASK_EXEC: u16 = 5;
    /// No record: a process begins to exit. It still holds its netns, and is in the table of [`super::Leaving`].
    pub const TASK_EXIT: u16 = 6;
    /// [`super::TaskRecord`]: a task moves to `netns` (`setns`, `unshare`).
    pub const TASK_JOIN: u16 = 7;
    /// [`super::TaskRecord`]: a task releases its namespaces (`exit_task_namespaces`).
    pub const TASK_RELEASE: u16 = 8;
    /// [`super::TaskRecord`]: a task that was seen exiting is freed (`sched_process_free`).
    pub const TASK_FREE: u16 = 9;
    /// No record: a thread ends all others of its process (`zap_other_threads`), which is then in the table of
    /// [`super::Leaving`].
    pub const GROUP_EXIT: u16 = 10;
    /// No record: a SIGKILL was generated. Its target is in the table of [`super::Leaving`].
    pub const SIGNAL: u16 = 11;
    /// [`super::AddressRecord`]: an IPv4 address was added.
    pub const IPV4_UP: u16 = 12;
    /// [`super::AddressRecord`]: an IPv4 address was removed.
    pub const IPV4_DOWN: u16 = 13;
    /// [`super::AddressRecord`]: an IPv6 address was added; it may still be tentative.
    pub const IPV6_UP: u16 = 14;
    /// [`super::AddressRecord`]: an IPv6 address was removed.
    pub const IPV6_DOWN: u16 = 15;
    /// [`super::AddressRecord`]: an IPv6 address became usable or changed its flags.
    pub const IPV6_READY: u16 = 16;
    /// [`super::AddressRecord`]: the kernel announced the removal of an IPv6 address (`RTM_DELADDR`).
    pub const IPV6_REMOVED: u16 = 17;
    /// [`super::AddressRecord`] with `offender`: duplicate address detection failed.
    pub const DAD_FAILED: u16 = 18;
    /// [`super::MoveRecord`].
    pub const DEVICE_MOVED: u16 = 19;
    /// [`super::NeighbourRecord`].
    pub const NEIGHBOUR: u16 = 20;
    /// [`super::ClaimRecord`]: ARP that the stack of a netns processed (`arp_process`).
    pub const CLAIM: u16 = 21;
    /// [`super::ClaimRecord`]: ARP that a socket in the host's netns received.
    pub const CLAIM_ON_WIRE: u16 = 22;
    /// [`super::CallRecord`]: a CNI plugin began to run.
    pub const CALL_BEGAN: u16 = 23;
    /// [`super::CallEndRecord`]: a CNI plugin has ended.
    pub const CALL_ENDED: u16 = 24;
    /// [`super::CallRefusedRecord`]: an untrusted user ran a CNI plugin.
    pub const CALL_REFUSED: u16 = 25;
    /// [`super::TaskRecord`], read by the task iterator.
    pub const TASK_SEEN: u16 = 26;
    /// [`super::FileRecord`], read by the file iterator.
    pub const FILE_SEEN: u16 = 27;
    /// [`super::Header`] alone: the tables of tasks have new entries.
    pub const ROUSE: u16 = 28;
    /// [`super::Header`] alone: the table of [`super::Owed`] has new entries.
    pub const OWED: u16 = 29;
    /// Number of kinds: the length of tables indexed by kind.
    pub const COUNT: usize = 30;
}

/// Sender of a signal that is not visible in the daemon's pid namespace.
pub const OUTSIDE: u32 = u32::MAX;

/// Value of an offset global if this kernel does not have the member.
pub const MISSING: u32 = u32::MAX;

/// Number of netns in one element of the map that the netns walk fills.
pub const WALK_CHUNK: usize = 256;
/// Number of elements of that map: it holds 8,192 netns in 128 KiB.
pub const WALK_CHUNKS: usize = 32;

/// A directory whose programs are CNI plugins, as the user half passes it to the kernel half: the device
/// (`s_dev`) and the inode of the directory, or [`PATH_KEY`] and the [`path_key`] of its path.
pub type DirKey = [u64; 2];
/// First half of a [`DirKey`] that is made from a path: no device has this number.
pub const PATH_KEY: u64 = u64::MAX;
/// Maximum number of directories.
pub const MOST_DIRS: u32 = 64;
/// Identifies a run of a plugin: `start_boottime` of its process, and its pid.
pub type CallKey = [u64; 2];
/// Maximum number of ends of runs that are kept if the ring buffer has no room.
pub const MOST_UNTOLD: u32 = 4096;
/// Maximum length of a plugin's path, with the NUL at its end.
pub const LONGEST_PATH: usize = 256;

/// The [`path_key`] of an empty path.
pub const PATH_SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds a byte to the key of a path (FNV-1a). If two paths have the same key, the environment of a
/// program that is no plugin is looked at, which has no other consequence.
#[inline(always)]
#[must_use]
pub const fn path_step(key: u64, byte: u8) -> u64 {
    (key ^ byte as u64).wrapping_mul(0x0100_0000_01b3)
}

/// The key of a directory's path, which must not end with a slash.
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
    /// The beginning of every record.
    pub struct Header {
        /// One of [`kind`].
        pub kind: u16,
        /// Size of the whole record.
        pub size: u16,
        /// Unused, except in the kernel half's table of tasks that were not reported yet: 1 if this task was already
        /// reported under an earlier name.
        pub reserved: u32,
        /// Time of the event, `CLOCK_BOOTTIME` in nanoseconds.
        pub time: u64,
    }
}

record! {
    /// The identifiers of a netns.
    pub struct Netns {
        /// `net->net_cookie`; 0 if the kernel has none.
        pub cookie: u64,
        /// `net->ns.inum`.
        pub inode: u32,
        /// References that keep it alive (`net->ns.count`): 0 means that it waits for its
        /// teardown. [`MISSING`] if this was not read.
        pub refs: u32,
    }
}

record! {
    /// A netns was created, begins to be torn down, or was destroyed.
    pub struct NetnsRecord {
        /// The common header.
        pub header: Header,
        /// The netns.
        pub netns: Netns,
    }
}

record! {
    /// A task.
    pub struct TaskRecord {
        /// The common header.
        pub header: Header,
        /// Its netns; all 0 if it has none, or none any more.
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
        /// Pending signals 1 to 64 of the thread or its process.
        pub pending: u64,
        /// How long the task has not been on a CPU, in nanoseconds; 0 if unknown. A lower bound.
        /// Set only by the task iterator.
        pub idle: u64,
        /// Name of the task.
        pub comm: [u8; 16],
    }
}

/// Key of a task that was not reported yet: the address of its `task_struct`, and its `start_boottime`.
pub type FreshKey = [u64; 2];
/// Maximum number of tasks that wait to be reported.
pub const MOST_FRESH: u32 = 4096;
/// Maximum number of thread groups that are exiting.
pub const MOST_LEAVING: u32 = 8192;

record! {
    /// A thread group that is exiting, wholly or in part, by the address of its `signal_struct`.
    pub struct Leaving {
        /// `start_boottime` of its leader, because addresses are reused.
        pub start: u64,
        /// When it began to exit.
        pub since: u64,
        /// When SIGKILL was first sent to it; 0 if that was not seen.
        pub killed: u64,
        /// Its thread group id.
        pub pid: u32,
        /// 1 if the whole group is to end; 0 if only its leader has exited.
        pub ending: u32,
        /// Incremented if one of its threads exits after the group was reported to the user half.
        pub news: u32,
        /// The thread to which the signal was directed.
        pub tid: u32,
        /// 1 if the signal was sent to the whole thread group.
        pub group: u32,
        /// Thread group id of the task that sent it; 0 for the kernel itself.
        pub sender: u32,
        /// Name of the task that was current when the signal was generated.
        pub comm: [u8; 16],
    }
}

record! {
    /// An address and the index of its device.
    pub struct AddressRecord {
        /// The common header.
        pub header: Header,
        /// The device's netns.
        pub netns: Netns,
        /// `ifa_local`, or `addr` of IPv6; an IPv4 address is in the first four bytes.
        pub local: [u8; 16],
        /// `ifa_address`, or `peer_addr` of IPv6, which is all 0 without a peer.
        pub peer: [u8; 16],
        /// The index of the device.
        pub ifindex: u32,
        /// `IFA_F_*`.
        pub flags: u32,
        /// [`AF_INET`] or [`AF_INET6`].
        pub family: u8,
        /// Length of the prefix.
        pub prefix_len: u8,
        /// `RT_SCOPE_*` of an IPv4 address; 0 for IPv6, where the address implies it.
        pub scope: u8,
        /// 1 if `offender` was read.
        pub has_offender: u8,
        /// The MAC that answered, in [`kind::DAD_FAILED`].
        pub offender: [u8; 6],
        /// Unused.
        pub reserved: [u8; 6],
    }
}

record! {
    /// A device was moved to another netns.
    pub struct MoveRecord {
        /// The common header.
        pub header: Header,
        /// The netns that it left.
        pub from: Netns,
        /// The netns that it entered.
        pub to: Netns,
        /// Its index in `from`.
        pub from_ifindex: u32,
        /// Its index in `to`.
        pub to_ifindex: u32,
    }
}

record! {
    /// An update of a neighbour entry, before it is applied.
    pub struct NeighbourRecord {
        /// The common header.
        pub header: Header,
        /// The device's netns.
        pub netns: Netns,
        /// The neighbour's IP; an IPv4 address is in the first four bytes.
        pub ip: [u8; 16],
        /// The index of the device.
        pub ifindex: u32,
        /// `NEIGH_UPDATE_F_*`.
        pub flags: u32,
        /// [`AF_INET`] or [`AF_INET6`].
        pub family: u8,
        /// `NUD_*` before the update.
        pub old_state: u8,
        /// `NUD_*` that the update requests.
        pub new_state: u8,
        /// 1 if the update contains a hardware address.
        pub has_claim: u8,
        /// Hardware address before the update.
        pub mac: [u8; 6],
        /// Hardware address in the update.
        pub claim: [u8; 6],
    }
}

/// `ARPOP_REQUEST` of include/uapi/linux/if_arp.h.
pub const ARP_REQUEST: u8 = 1;
/// `ARPOP_REPLY`.
pub const ARP_REPLY: u8 = 2;

record! {
    /// A claim of an IPv4 address by ARP.
    pub struct ClaimRecord {
        /// The common header.
        pub header: Header,
        /// The netns in which it was received.
        pub netns: Netns,
        /// The index of the device that received it.
        pub ifindex: u32,
        /// The claimed IP.
        pub ip: [u8; 4],
        /// The MAC that claims it.
        pub mac: [u8; 6],
        /// [`ARP_REQUEST`] or [`ARP_REPLY`].
        pub operation: u8,
        /// 1 if the target IP of the packet is the claimed IP.
        pub announces: u8,
    }
}

record! {
    /// An open file that keeps a netns alive in which its process is not.
    pub struct FileRecord {
        /// The common header.
        pub header: Header,
        /// The netns that is kept alive.
        pub netns: Netns,
        /// Thread group id of the process that has the file open.
        pub pid: u32,
        /// The file descriptor.
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
    /// A CNI plugin began to run. Each text ends at its first NUL, and is all NUL if it is absent; a text
    /// that fills its field except for one NUL may have been truncated. Only these variables of the
    /// environment are ever copied.
    pub struct CallRecord {
        /// The common header.
        pub header: Header,
        /// Its pid, in the initial pid namespace.
        pub pid: u32,
        /// Thread group id of `real_parent`.
        pub parent: u32,
        /// `start_boottime` in nanoseconds.
        pub start: u64,
        /// 1 for a script: the file that runs is its interpreter, and `loose` does not cover the script itself.
        pub script: u32,
        /// 1 if the file that runs, or a directory above it in its file system, belongs to a user other than
        /// root or is writable by one, or if that could not be read.
        pub loose: u32,
        /// `bprm->filename`: the path that was executed.
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
    /// A CNI plugin was run by a user that is not root of the initial user namespace with CAP_NET_ADMIN or
    /// CAP_SYS_ADMIN. Nothing of its environment is copied.
    pub struct CallRefusedRecord {
        /// The common header.
        pub header: Header,
        /// Its pid, in the initial pid namespace.
        pub pid: u32,
        /// `cred->uid`, in the initial user namespace.
        pub uid: u32,
    }
}

record! {
    /// A CNI plugin has ended.
    pub struct CallEndRecord {
        /// The common header.
        pub header: Header,
        /// Its pid, in the initial pid namespace.
        pub pid: u32,
        /// As returned by `wait`: status in the second byte, signal in the first.
        pub code: u32,
        /// `start_boottime` in nanoseconds.
        pub start: u64,
    }
}

/// Maximum number of netns whose events were not reported, until the user half reads the table.
pub const MOST_OWED: u32 = 1024;

/// Maximum number of those that are in a user namespace: whoever has one netns can have any number of them.
pub const MOST_OWED_TO_USERS: u32 = 512;

record! {
    /// A netns whose events were not all reported since the user half last looked, by its cookie, or its inode if it has
    /// none. The counts are lower bounds: two CPUs may count at once.
    pub struct Owed {
        /// The netns.
        pub netns: Netns,
        /// Events of addresses and devices that were held back, because the netns or its owner caused too many.
        pub addresses: u32,
        /// Updates of neighbour entries, likewise.
        pub neighbours: u32,
        /// Claims of IPs, likewise.
        pub claims: u32,
        /// Events of tasks, likewise.
        pub tasks: u32,
        /// Events of addresses and devices for which the ring buffer had no room.
        pub overrun: u32,
        /// 0.
        pub reserved: u32,
    }
}

record! {
    /// The result of one netns walk.
    pub struct WalkResult {
        /// Number of netns written to the chunks.
        pub count: u32,
        /// 1 if the walk returned to the head of the list.
        pub complete: u32,
    }
}
