//! What `ipwatch cni install` and `uninstall` do on a node: `network` reads and writes the network configurations, `program`
//! installs the plugin's program, `named` remembers the directories that were named, and `removal` says when the program may
//! be removed.

mod named;
mod network;
mod program;
mod removal;

pub use named::Named;
pub use network::{Network, backup_name, diff, networks, replace};
pub use program::{homes, is_same_program, put_program, runtime_conf_dirs, runtime_dirs};
pub use removal::{
    is_unwrapped, mark_network_unwrapped, mark_unwrapped, removal_command, unmark, unmark_network,
    why_needed,
};

/// Directories of network configurations: of kubeadm, CRI-O and RKE2; of k3s; of RKE2's own containerd.
pub const CONF_DIRS: [&str; 3] = [
    "/etc/cni/net.d",
    "/var/lib/rancher/k3s/agent/etc/cni/net.d",
    "/var/lib/rancher/rke2/agent/etc/cni/net.d",
];
/// Directories that may contain plugins, whether or not a runtime looks there.
pub const BIN_DIRS: [&str; 6] = [
    "/opt/cni/bin",
    "/usr/lib/cni",
    "/usr/libexec/cni",
    "/var/lib/rancher/k3s/data/cni",
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
];
/// Where libcni caches results, each with the configuration that was used.
pub const CACHE_DIR: &str = "/var/lib/cni/results";

/// Maximum number of entries that are read of a directory.
const MAX_DIR_ENTRIES: usize = 4096;
