//! Which members of kernel structs the programs read, and which programs need which of them.

use super::btf::{BtfError, Field, Structs};
use ipwatch_common::MISSING;

/// A global of the kernel half, and the member whose offset it is set to: the first of the alternatives that this
/// kernel has.
struct Member {
    global: &'static str,
    read: Read,
    alternatives: &'static [(&'static str, &'static str)],
}

/// How the kernel half reads a member; sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// The whole member.
    Whole(u32),
    /// Its beginning: a part of an array, or the lower half of a number.
    First(u32),
    /// Only its offset is used: it contains what is wanted, or is an array without a length.
    Offset,
}

impl Read {
    /// Whether a member of this size can be read that way.
    fn suits(self, field: Field) -> bool {
        match self {
            Read::Whole(size) => field.size == size,
            Read::First(size) => field.size >= size,
            Read::Offset => true,
        }
    }
}

const fn member(
    global: &'static str,
    read: Read,
    alternatives: &'static [(&'static str, &'static str)],
) -> Member {
    Member { global, read, alternatives }
}

/// The names of globals are those in `ipwatch-ebpf/src/offsets.rs`.
const MEMBERS: &[Member] = &[
    member("TASK_PID", Read::Whole(4), &[("task_struct", "pid")]),
    member("TASK_TGID", Read::Whole(4), &[("task_struct", "tgid")]),
    // Renamed in 5.5.
    member(
        "TASK_START",
        Read::Whole(8),
        &[("task_struct", "start_boottime"), ("task_struct", "real_start_time")],
    ),
    member("TASK_PARENT", Read::Whole(8), &[("task_struct", "real_parent")]),
    member("TASK_LEADER", Read::Whole(8), &[("task_struct", "group_leader")]),
    member("TASK_NSPROXY", Read::Whole(8), &[("task_struct", "nsproxy")]),
    member("TASK_COMM", Read::Whole(16), &[("task_struct", "comm")]),
    member("TASK_FLAGS", Read::Whole(4), &[("task_struct", "flags")]),
    // Renamed in 5.14.
    member("TASK_STATE", Read::First(4), &[("task_struct", "__state"), ("task_struct", "state")]),
    member("TASK_EXIT_STATE", Read::Whole(4), &[("task_struct", "exit_state")]),
    member("TASK_PENDING", Read::Whole(8), &[("task_struct", "pending.signal")]),
    member("TASK_SIGNAL", Read::Whole(8), &[("task_struct", "signal")]),
    member("TASK_SIGHAND", Read::Whole(8), &[("task_struct", "sighand")]),
    // Needs CONFIG_SCHED_INFO.
    member("TASK_ARRIVAL", Read::Whole(8), &[("task_struct", "sched_info.last_arrival")]),
    member("SIGNAL_LIVE", Read::Whole(4), &[("signal_struct", "live")]),
    member("SIGNAL_SHARED_PENDING", Read::Whole(8), &[("signal_struct", "shared_pending.signal")]),
    // Renamed in 5.17.
    member(
        "SIGNAL_EXEC_TASK",
        Read::Whole(8),
        &[("signal_struct", "group_exec_task"), ("signal_struct", "group_exit_task")],
    ),
    member("SIGNAL_THREADS", Read::Whole(4), &[("signal_struct", "nr_threads")]),
    member("SIGHAND_ACTION", Read::Offset, &[("sighand_struct", "action")]),
    member("NSPROXY_NET", Read::Whole(8), &[("nsproxy", "net_ns")]),
    // Since 5.14 for every netns.
    member("NET_COOKIE", Read::Whole(8), &[("net", "net_cookie")]),
    member("NET_INODE", Read::Whole(4), &[("net", "ns.inum")]),
    // Renamed in 6.18; before 5.16 it was a member of the netns itself.
    member(
        "NET_REFS",
        Read::Whole(4),
        &[("net", "ns.__ns_ref"), ("net", "ns.count"), ("net", "count")],
    ),
    member("NET_LIST", Read::First(8), &[("net", "list")]),
    member("NET_NS", Read::Offset, &[("net", "ns")]),
    member("NS_OPS", Read::Whole(8), &[("ns_common", "ops")]),
    member("NET_USER_NS", Read::Whole(8), &[("net", "user_ns")]),
    member("USER_NS_OWNER", Read::Whole(4), &[("user_namespace", "owner")]),
    member("USER_NS_INODE", Read::Whole(4), &[("user_namespace", "ns.inum")]),
    member("USER_NS_PARENT", Read::Whole(8), &[("user_namespace", "parent")]),
    member("DEVICE_NET", Read::Whole(8), &[("net_device", "nd_net")]),
    member("DEVICE_INDEX", Read::Whole(4), &[("net_device", "ifindex")]),
    member("DEVICE_ADDR_LEN", Read::Whole(1), &[("net_device", "addr_len")]),
    member("IFA4_DEV", Read::Whole(8), &[("in_ifaddr", "ifa_dev")]),
    member("IN_DEVICE_DEV", Read::Whole(8), &[("in_device", "dev")]),
    member("IFA4_LOCAL", Read::Whole(4), &[("in_ifaddr", "ifa_local")]),
    member("IFA4_ADDRESS", Read::Whole(4), &[("in_ifaddr", "ifa_address")]),
    member("IFA4_PREFIX_LEN", Read::Whole(1), &[("in_ifaddr", "ifa_prefixlen")]),
    member("IFA4_SCOPE", Read::Whole(1), &[("in_ifaddr", "ifa_scope")]),
    member("IFA4_FLAGS", Read::Whole(4), &[("in_ifaddr", "ifa_flags")]),
    member("DEVICE_IP", Read::Whole(8), &[("net_device", "ip_ptr")]),
    member("IN_DEVICE_LIST", Read::Whole(8), &[("in_device", "ifa_list")]),
    member("IFA4_NEXT", Read::Whole(8), &[("in_ifaddr", "ifa_next")]),
    member("IFA6_IDEV", Read::Whole(8), &[("inet6_ifaddr", "idev")]),
    member("INET6_DEV_DEV", Read::Whole(8), &[("inet6_dev", "dev")]),
    member("IFA6_ADDR", Read::Whole(16), &[("inet6_ifaddr", "addr")]),
    member("IFA6_PEER", Read::Whole(16), &[("inet6_ifaddr", "peer_addr")]),
    member("IFA6_PREFIX_LEN", Read::Whole(4), &[("inet6_ifaddr", "prefix_len")]),
    member("IFA6_FLAGS", Read::Whole(4), &[("inet6_ifaddr", "flags")]),
    member("SKB_HEAD", Read::Whole(8), &[("sk_buff", "head")]),
    member("SKB_MAC_HEADER", Read::Whole(2), &[("sk_buff", "mac_header")]),
    member("SKB_NETWORK_HEADER", Read::Whole(2), &[("sk_buff", "network_header")]),
    member("SKB_DEV", Read::Whole(8), &[("sk_buff", "dev")]),
    member("NEIGH_TABLE", Read::Whole(8), &[("neighbour", "tbl")]),
    member("NEIGH_DEV", Read::Whole(8), &[("neighbour", "dev")]),
    member("NEIGH_HA", Read::First(6), &[("neighbour", "ha")]),
    member("NEIGH_STATE", Read::Whole(1), &[("neighbour", "nud_state")]),
    member("NEIGH_KEY", Read::Offset, &[("neighbour", "primary_key")]),
    member("TABLE_FAMILY", Read::Whole(4), &[("neigh_table", "family")]),
    member("TASK_THREAD_PID", Read::Whole(8), &[("task_struct", "thread_pid")]),
    member("PID_LEVEL", Read::Whole(4), &[("pid", "level")]),
    member("PID_NUMBERS", Read::Offset, &[("pid", "numbers")]),
    member("UPID_NS", Read::Whole(8), &[("upid", "ns")]),
    member("PID_NS_INODE", Read::Whole(4), &[("pid_namespace", "ns.inum")]),
    member("TASK_MM", Read::Whole(8), &[("task_struct", "mm")]),
    member("MM_ENV_START", Read::Whole(8), &[("mm_struct", "env_start")]),
    member("MM_ENV_END", Read::Whole(8), &[("mm_struct", "env_end")]),
    member("BPRM_FILENAME", Read::Whole(8), &[("linux_binprm", "filename")]),
    member("BPRM_INTERP", Read::Whole(8), &[("linux_binprm", "interp")]),
    member("BPRM_FILE", Read::Whole(8), &[("linux_binprm", "file")]),
    member("FILE_DENTRY", Read::Whole(8), &[("file", "f_path.dentry")]),
    member("DENTRY_PARENT", Read::Whole(8), &[("dentry", "d_parent")]),
    member("DENTRY_INODE", Read::Whole(8), &[("dentry", "d_inode")]),
    member("INODE_NUMBER", Read::Whole(8), &[("inode", "i_ino")]),
    member("SB_DEV", Read::Whole(4), &[("super_block", "s_dev")]),
    member("TASK_EXIT_CODE", Read::Whole(4), &[("task_struct", "exit_code")]),
    member("SIGNAL_FLAGS", Read::Whole(4), &[("signal_struct", "flags")]),
    member("SIGNAL_EXIT_CODE", Read::Whole(4), &[("signal_struct", "group_exit_code")]),
    member("TASK_CRED", Read::Whole(8), &[("task_struct", "cred")]),
    member("CRED_UID", Read::Whole(4), &[("cred", "uid")]),
    member("CRED_EFFECTIVE", Read::Whole(8), &[("cred", "cap_effective")]),
    member("CRED_USER_NS", Read::Whole(8), &[("cred", "user_ns")]),
    member("USER_NS_LEVEL", Read::Whole(4), &[("user_namespace", "level")]),
    member("INODE_UID", Read::Whole(4), &[("inode", "i_uid")]),
    member("INODE_MODE", Read::Whole(2), &[("inode", "i_mode")]),
    member("FILE_INODE", Read::Whole(8), &[("file", "f_inode")]),
    member("FILE_PRIVATE", Read::Whole(8), &[("file", "private_data")]),
    member("INODE_SB", Read::Whole(8), &[("inode", "i_sb")]),
    member("INODE_PRIVATE", Read::Whole(8), &[("inode", "i_private")]),
    member("SB_MAGIC", Read::Whole(8), &[("super_block", "s_magic")]),
    member("SOCKET_SK", Read::Whole(8), &[("socket", "sk")]),
    member("SOCK_NET", Read::Whole(8), &[("sock", "__sk_common.skc_net")]),
];

/// Groups of members that programs need. `TASK_STATE`, `TASK_EXIT_STATE`, `TASK_ARRIVAL`, `TASK_SIGHAND`,
/// `SIGNAL_EXEC_TASK`, `SIGNAL_THREADS`, `SIGHAND_ACTION`, `NET_COOKIE`, `NET_REFS`, `NET_USER_NS`, `USER_NS_OWNER`,
/// `USER_NS_INODE`, `USER_NS_PARENT` and those on the way from a file to its directory are in none of them: without these, less is
/// reported, but nothing wrong.
pub(super) mod need {
    /// To identify a netns.
    pub(in super::super) const NETNS: &[&str] = &["NET_INODE"];
    /// To identify a task and its state.
    pub(in super::super) const TASK: &[&str] = &[
        "NET_INODE",
        "NSPROXY_NET",
        "TASK_PID",
        "TASK_TGID",
        "TASK_START",
        "TASK_PARENT",
        "TASK_LEADER",
        "TASK_NSPROXY",
        "TASK_COMM",
        "TASK_FLAGS",
        "TASK_PENDING",
        "TASK_SIGNAL",
        "SIGNAL_FLAGS",
        "SIGNAL_SHARED_PENDING",
    ];
    /// Runs of plugins. Without the members that lead from a program's file to its directory, a plugin is recognised
    /// only by its path.
    pub(in super::super) const CALL: &[&str] = &[
        "TASK_TGID",
        "TASK_START",
        "TASK_PARENT",
        "TASK_LEADER",
        "TASK_SIGNAL",
        "SIGNAL_LIVE",
        "TASK_THREAD_PID",
        "PID_LEVEL",
        "TASK_MM",
        "MM_ENV_START",
        "MM_ENV_END",
        "BPRM_FILENAME",
        "TASK_EXIT_CODE",
        "SIGNAL_FLAGS",
        "SIGNAL_EXIT_CODE",
        // Who runs the plugin, and who owns it: if these were not read, both would look like root.
        "TASK_CRED",
        "CRED_UID",
        "CRED_EFFECTIVE",
        "CRED_USER_NS",
        "USER_NS_LEVEL",
        "INODE_UID",
        "INODE_MODE",
    ];
    pub(in super::super) const IPV4: &[&str] = &[
        "NET_INODE",
        "DEVICE_NET",
        "DEVICE_INDEX",
        "IFA4_DEV",
        "IN_DEVICE_DEV",
        "IFA4_LOCAL",
        "IFA4_ADDRESS",
        "IFA4_PREFIX_LEN",
        "IFA4_SCOPE",
        "IFA4_FLAGS",
    ];
    pub(in super::super) const IPV6: &[&str] = &[
        "NET_INODE",
        "DEVICE_NET",
        "DEVICE_INDEX",
        "IFA6_IDEV",
        "INET6_DEV_DEV",
        "IFA6_ADDR",
        "IFA6_PEER",
        "IFA6_PREFIX_LEN",
        "IFA6_FLAGS",
    ];
    pub(in super::super) const DEVICE: &[&str] = &["NET_INODE", "DEVICE_NET", "DEVICE_INDEX"];
    /// ARP claims of an IP.
    pub(in super::super) const CLAIM: &[&str] = &[
        "NET_INODE",
        "DEVICE_NET",
        "DEVICE_INDEX",
        "DEVICE_IP",
        "IN_DEVICE_LIST",
        "IFA4_LOCAL",
        "IFA4_NEXT",
        "SKB_HEAD",
        "SKB_NETWORK_HEADER",
        "SKB_DEV",
    ];
    pub(in super::super) const NEIGHBOUR: &[&str] = &[
        "NET_INODE",
        "DEVICE_NET",
        "DEVICE_INDEX",
        "DEVICE_ADDR_LEN",
        "NEIGH_TABLE",
        "NEIGH_DEV",
        "NEIGH_HA",
        "NEIGH_STATE",
        "NEIGH_KEY",
        "TABLE_FAMILY",
    ];
    /// The netns walk.
    pub(in super::super) const WALK: &[&str] =
        &["NET_INODE", "NET_LIST", "NSPROXY_NET", "TASK_NSPROXY", "TASK_PARENT"];
    /// Open files.
    pub(in super::super) const FILE: &[&str] = &[
        "NET_INODE",
        "NSPROXY_NET",
        "TASK_NSPROXY",
        "TASK_TGID",
        "TASK_COMM",
        "NET_NS",
        "NS_OPS",
        "FILE_INODE",
        "FILE_PRIVATE",
        "INODE_SB",
        "INODE_PRIVATE",
        "SB_MAGIC",
        "SOCKET_SK",
        "SOCK_NET",
    ];
}

#[derive(Debug)]
pub(super) struct Offsets(Vec<(&'static str, u32)>);

impl Offsets {
    /// Reads the offsets from the kernel's BTF.
    pub(super) fn read(btf: &[u8]) -> Result<Self, BtfError> {
        let names = MEMBERS.iter().flat_map(|member| member.alternatives).map(|(name, _)| *name);
        let structs = Structs::find(btf, names)?;
        let offset = |member: &Member| {
            let places =
                member.alternatives.iter().find_map(|(name, path)| structs.member(name, path));
            places.filter(|place| member.read.suits(*place)).map(|place| place.offset)
        };
        Ok(Self(
            MEMBERS
                .iter()
                .map(|member| (member.global, offset(member).unwrap_or(MISSING)))
                .collect(),
        ))
    }

    /// Each global and its value.
    pub(super) fn globals(&self) -> impl Iterator<Item = (&'static str, &u32)> {
        self.0.iter().map(|(global, offset)| (*global, offset))
    }

    /// The first needed member that this kernel does not have, in C notation.
    pub(super) fn lacking(&self, needed: &[&str]) -> Option<String> {
        let lacks = |global: &&&str| {
            self.0.iter().any(|(name, offset)| name == *global && *offset == MISSING)
        };
        let global = needed.iter().find(lacks)?;
        let member = MEMBERS.iter().find(|member| member.global == *global)?;
        member.alternatives.first().map(|(name, path)| format!("{name}.{path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_needed_member_is_in_the_table() {
        let all = [
            need::NETNS,
            need::TASK,
            need::CALL,
            need::IPV4,
            need::IPV6,
            need::DEVICE,
            need::NEIGHBOUR,
            need::CLAIM,
            need::WALK,
            need::FILE,
            &["SKB_HEAD", "SKB_MAC_HEADER"],
        ];
        for global in all.concat() {
            assert!(MEMBERS.iter().any(|member| member.global == global), "{global}");
        }
    }

    #[test]
    fn a_member_is_read_only_where_it_has_the_size_that_is_read() {
        let place = |size| Field { offset: 8, size };
        assert!(Read::Whole(4).suits(place(4)));
        assert!(!Read::Whole(4).suits(place(8)) && !Read::Whole(8).suits(place(4)));
        assert!(Read::First(6).suits(place(32)) && Read::First(6).suits(place(6)));
        assert!(!Read::First(6).suits(place(4)));
        assert!(Read::Offset.suits(place(0)));
    }

    #[test]
    fn a_missing_member_is_named() {
        let offsets = Offsets(vec![("NET_INODE", 8), ("NET_LIST", MISSING)]);
        assert_eq!(offsets.lacking(&["NET_INODE"]), None);
        assert_eq!(offsets.lacking(&["NET_INODE", "NET_LIST"]).as_deref(), Some("net.list"));
    }

    /// The kernel that runs the tests must have every member.
    #[test]
    fn this_kernel_has_every_member() {
        let path = std::path::Path::new(super::super::BTF_PATH);
        let Ok(btf) = crate::bounded::read(path, super::super::BTF_LIMIT) else {
            eprintln!("SKIPPED: {} cannot be read", path.display());
            return;
        };
        let offsets = Offsets::read(&btf.bytes).unwrap();
        let missing: Vec<_> = offsets.globals().filter(|(_, at)| **at == MISSING).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
