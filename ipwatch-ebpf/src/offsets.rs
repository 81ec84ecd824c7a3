//! Where the members of kernel structs are. The user half reads it from the kernel's BTF and writes
//! it here before the programs are loaded; a member that this kernel lacks stays [`MISSING`]. The
//! names are the contract with the user half's table of members.

use aya_ebpf::Global;
use ipwatch_common::MISSING;

macro_rules! offsets {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub static $name: Global<u32> = Global::new(MISSING);
    )*};
}

offsets! {
    TASK_PID TASK_TGID TASK_START TASK_PARENT TASK_LEADER TASK_NSPROXY TASK_COMM TASK_FLAGS
    TASK_STATE TASK_EXIT_STATE TASK_PENDING TASK_SIGNAL TASK_SIGHAND TASK_ARRIVAL
    SIGNAL_LIVE SIGNAL_SHARED_PENDING SIGNAL_EXEC_TASK SIGNAL_THREADS SIGHAND_ACTION
    NSPROXY_NET NET_COOKIE NET_INODE NET_REFS NET_LIST NET_NS NS_OPS NET_USER_NS
    DEVICE_NET DEVICE_INDEX DEVICE_ADDR_LEN
    IFA4_DEV IN_DEVICE_DEV IFA4_LOCAL IFA4_ADDRESS IFA4_PREFIX_LEN IFA4_SCOPE IFA4_FLAGS
    IFA6_IDEV INET6_DEV_DEV IFA6_ADDR IFA6_PEER IFA6_PREFIX_LEN IFA6_FLAGS
    DEVICE_IP IN_DEVICE_LIST IFA4_NEXT
    SKB_HEAD SKB_MAC_HEADER SKB_NETWORK_HEADER SKB_DEV
    NEIGH_TABLE NEIGH_DEV NEIGH_HA NEIGH_STATE NEIGH_KEY TABLE_FAMILY
    TASK_THREAD_PID PID_LEVEL PID_NUMBERS UPID_NS PID_NS_INODE TASK_MM MM_ENV_START MM_ENV_END BPRM_FILENAME BPRM_FILE FILE_DENTRY DENTRY_PARENT DENTRY_INODE
    INODE_NUMBER SB_DEV TASK_EXIT_CODE SIGNAL_FLAGS SIGNAL_EXIT_CODE
    TASK_CRED CRED_UID CRED_EFFECTIVE CRED_USER_NS USER_NS_LEVEL USER_NS_OWNER USER_NS_INODE USER_NS_PARENT INODE_UID INODE_MODE BPRM_INTERP
    FILE_INODE FILE_PRIVATE INODE_SB INODE_PRIVATE SB_MAGIC SOCKET_SK SOCK_NET
}

/// nsfs inode of the host's netns. No other netns has it while the host's lives, which is always.
#[unsafe(no_mangle)]
pub static HOST_INODE: Global<u32> = Global::new(0);

/// nsfs inode of the pid namespace whose numbers `/proc` shows; 0 for the node's first, whose numbers the kernel's own
/// are.
#[unsafe(no_mangle)]
pub static OWN_PID_NS: Global<u32> = Global::new(0);

/// 1 where kernel memory is read through typed pointers only: see `read`.
#[unsafe(no_mangle)]
pub static TYPED: Global<u32> = Global::new(0);

/// Cookie of the host's netns, where the kernel has one.
#[unsafe(no_mangle)]
pub static HOST_COOKIE: Global<u64> = Global::new(0);
