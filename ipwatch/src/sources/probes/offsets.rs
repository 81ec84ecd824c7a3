//! Which members of which kernel structs the programs read, and what is off when one is missing.

use super::btf::{BtfError, Structs};
use ipwatch_common::MISSING;

/// A global of the kernel half, and the member whose offset it takes: the first of the alternatives
/// that this kernel has.
struct Member {
    global: &'static str,
    alternatives: &'static [(&'static str, &'static str)],
}

const fn member(
    global: &'static str,
    alternatives: &'static [(&'static str, &'static str)],
) -> Member {
    Member { global, alternatives }
}

/// The names are those of `ipwatch-ebpf/src/offsets.rs`.
const MEMBERS: &[Member] = &[
    member("TASK_PID", &[("task_struct", "pid")]),
    member("TASK_TGID", &[("task_struct", "tgid")]),
    // Renamed in 5.5.
    member("TASK_START", &[("task_struct", "start_boottime"), ("task_struct", "real_start_time")]),
    member("TASK_PARENT", &[("task_struct", "real_parent")]),
    member("TASK_LEADER", &[("task_struct", "group_leader")]),
    member("TASK_NSPROXY", &[("task_struct", "nsproxy")]),
    member("TASK_COMM", &[("task_struct", "comm")]),
    member("TASK_FLAGS", &[("task_struct", "flags")]),
    // Renamed in 5.14.
    member("TASK_STATE", &[("task_struct", "__state"), ("task_struct", "state")]),
    member("TASK_EXIT_STATE", &[("task_struct", "exit_state")]),
    member("TASK_PENDING", &[("task_struct", "pending.signal")]),
    member("TASK_SIGNAL", &[("task_struct", "signal")]),
    member("TASK_SIGHAND", &[("task_struct", "sighand")]),
    // With CONFIG_SCHED_INFO.
    member("TASK_ARRIVAL", &[("task_struct", "sched_info.last_arrival")]),
    member("SIGNAL_LIVE", &[("signal_struct", "live")]),
    member("SIGNAL_SHARED_PENDING", &[("signal_struct", "shared_pending.signal")]),
    // Renamed in 5.17.
    member(
        "SIGNAL_EXEC_TASK",
        &[("signal_struct", "group_exec_task"), ("signal_struct", "group_exit_task")],
    ),
    member("SIGNAL_THREADS", &[("signal_struct", "nr_threads")]),
    member("SIGHAND_ACTION", &[("sighand_struct", "action")]),
    member("NSPROXY_NET", &[("nsproxy", "net_ns")]),
    // Since 5.14 for every netns.
    member("NET_COOKIE", &[("net", "net_cookie")]),
    member("NET_INODE", &[("net", "ns.inum")]),
    // Renamed in 6.18; before 5.16 it was the netns's own.
    member("NET_REFS", &[("net", "ns.__ns_ref"), ("net", "ns.count"), ("net", "count")]),
    member("NET_LIST", &[("net", "list")]),
    member("NET_NS", &[("net", "ns")]),
    member("NS_OPS", &[("ns_common", "ops")]),
    member("DEVICE_NET", &[("net_device", "nd_net")]),
    member("DEVICE_INDEX", &[("net_device", "ifindex")]),
    member("DEVICE_ADDR_LEN", &[("net_device", "addr_len")]),
    member("IFA4_DEV", &[("in_ifaddr", "ifa_dev")]),
    member("IN_DEVICE_DEV", &[("in_device", "dev")]),
    member("IFA4_LOCAL", &[("in_ifaddr", "ifa_local")]),
    member("IFA4_ADDRESS", &[("in_ifaddr", "ifa_address")]),
    member("IFA4_PREFIX_LEN", &[("in_ifaddr", "ifa_prefixlen")]),
    member("IFA4_SCOPE", &[("in_ifaddr", "ifa_scope")]),
    member("IFA4_FLAGS", &[("in_ifaddr", "ifa_flags")]),
    member("DEVICE_IP", &[("net_device", "ip_ptr")]),
    member("IN_DEVICE_LIST", &[("in_device", "ifa_list")]),
    member("IFA4_NEXT", &[("in_ifaddr", "ifa_next")]),
    member("IFA6_IDEV", &[("inet6_ifaddr", "idev")]),
    member("INET6_DEV_DEV", &[("inet6_dev", "dev")]),
    member("IFA6_ADDR", &[("inet6_ifaddr", "addr")]),
    member("IFA6_PEER", &[("inet6_ifaddr", "peer_addr")]),
    member("IFA6_PREFIX_LEN", &[("inet6_ifaddr", "prefix_len")]),
    member("IFA6_FLAGS", &[("inet6_ifaddr", "flags")]),
    member("SKB_HEAD", &[("sk_buff", "head")]),
    member("SKB_MAC_HEADER", &[("sk_buff", "mac_header")]),
    member("SKB_NETWORK_HEADER", &[("sk_buff", "network_header")]),
    member("SKB_DEV", &[("sk_buff", "dev")]),
    member("NEIGH_TABLE", &[("neighbour", "tbl")]),
    member("NEIGH_DEV", &[("neighbour", "dev")]),
    member("NEIGH_HA", &[("neighbour", "ha")]),
    member("NEIGH_STATE", &[("neighbour", "nud_state")]),
    member("NEIGH_KEY", &[("neighbour", "primary_key")]),
    member("TABLE_FAMILY", &[("neigh_table", "family")]),
    member("TASK_THREAD_PID", &[("task_struct", "thread_pid")]),
    member("PID_LEVEL", &[("pid", "level")]),
    member("PID_NUMBERS", &[("pid", "numbers")]),
    member("UPID_NS", &[("upid", "ns")]),
    member("PID_NS_INODE", &[("pid_namespace", "ns.inum")]),
    member("TASK_MM", &[("task_struct", "mm")]),
    member("MM_ENV_START", &[("mm_struct", "env_start")]),
    member("MM_ENV_END", &[("mm_struct", "env_end")]),
    member("BPRM_FILENAME", &[("linux_binprm", "filename")]),
    member("BPRM_INTERP", &[("linux_binprm", "interp")]),
    member("BPRM_FILE", &[("linux_binprm", "file")]),
    member("FILE_DENTRY", &[("file", "f_path.dentry")]),
    member("DENTRY_PARENT", &[("dentry", "d_parent")]),
    member("DENTRY_INODE", &[("dentry", "d_inode")]),
    member("INODE_NUMBER", &[("inode", "i_ino")]),
    member("SB_DEV", &[("super_block", "s_dev")]),
    member("TASK_EXIT_CODE", &[("task_struct", "exit_code")]),
    member("SIGNAL_FLAGS", &[("signal_struct", "flags")]),
    member("SIGNAL_EXIT_CODE", &[("signal_struct", "group_exit_code")]),
    member("TASK_CRED", &[("task_struct", "cred")]),
    member("CRED_UID", &[("cred", "uid")]),
    member("CRED_EFFECTIVE", &[("cred", "cap_effective")]),
    member("CRED_USER_NS", &[("cred", "user_ns")]),
    member("USER_NS_LEVEL", &[("user_namespace", "level")]),
    member("INODE_UID", &[("inode", "i_uid")]),
    member("INODE_MODE", &[("inode", "i_mode")]),
    member("FILE_INODE", &[("file", "f_inode")]),
    member("FILE_PRIVATE", &[("file", "private_data")]),
    member("INODE_SB", &[("inode", "i_sb")]),
    member("INODE_PRIVATE", &[("inode", "i_private")]),
    member("SB_MAGIC", &[("super_block", "s_magic")]),
    member("SOCKET_SK", &[("socket", "sk")]),
    member("SOCK_NET", &[("sock", "__sk_common.skc_net")]),
];

/// Groups of members that programs need. `TASK_STATE`, `TASK_EXIT_STATE`, `TASK_ARRIVAL`, `TASK_SIGHAND`,
/// `SIGNAL_EXEC_TASK`, `SIGNAL_THREADS`, `SIGHAND_ACTION`, `NET_COOKIE`, `NET_REFS` and those on the way from a file to its directory are in none: without them less is told, and nothing wrongly.
pub(super) mod need {
    /// To say which netns something is in.
    pub(in super::super) const NETNS: &[&str] = &["NET_INODE"];
    /// To say which task it is and where it stands.
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
    /// Runs of plugins. Without the members that lead from a program's file to its directory, a plugin
    /// is known by its path alone.
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
        // Who runs it, and whose it is: unread, both would pass for root.
        "TASK_CRED",
        "CRED_UID",
        "CRED_EFFECTIVE",
        "CRED_USER_NS",
        "USER_NS_LEVEL",
        "INODE_UID",
        "INODE_MODE",
    ];
    /// IPv4 addresses.
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
    /// IPv6 addresses.
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
    /// Devices.
    pub(in super::super) const DEVICE: &[&str] = &["NET_INODE", "DEVICE_NET", "DEVICE_INDEX"];
    /// Claims of an IP.
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
    /// Neighbours.
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

/// The offsets of this kernel.
#[derive(Debug)]
pub(super) struct Offsets(Vec<(&'static str, u32)>);

impl Offsets {
    /// Reads them out of the kernel's BTF.
    pub(super) fn read(btf: &[u8]) -> Result<Self, BtfError> {
        let names = MEMBERS.iter().flat_map(|member| member.alternatives).map(|(name, _)| *name);
        let structs = Structs::find(btf, names)?;
        let offset = |member: &Member| {
            member.alternatives.iter().find_map(|(name, path)| structs.offset(name, path))
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

    /// The first needed member that this kernel does not have, as C would name it.
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
    fn a_missing_member_is_named() {
        let offsets = Offsets(vec![("NET_INODE", 8), ("NET_LIST", MISSING)]);
        assert_eq!(offsets.lacking(&["NET_INODE"]), None);
        assert_eq!(offsets.lacking(&["NET_INODE", "NET_LIST"]).as_deref(), Some("net.list"));
    }

    /// The kernel that runs the tests is one of those it must work on.
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
