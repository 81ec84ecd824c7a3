//! The sources that are called by a name of ours, wherever they are told of: by facts, `ipwatch doctor`, the API and
//! the metrics.
//!
//! A container runtime, an IPAM store and a datastore of endpoints are sources too. They are called as they call
//! themselves, or by where they are, and their names are text.

use std::fmt;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceName {
    /// ARP packets on the node's own links.
    Arp,
    /// The daemon's own capabilities, where some are missing.
    Capabilities,
    /// The CNI result cache.
    Cni,
    /// The kubelet, asked for this node's pods where the API server is not.
    Kubelet,
    /// The API server.
    Kubernetes,
    /// The daemon's own memory of findings and tenures.
    Ledger,
    /// The map, where it keeps less than there is.
    Map,
    /// Neighbour entries, by netlink.
    Neighbours,
    /// Links and addresses, by netlink.
    Netlink,
    /// Export to a collector.
    Otlp,
    /// The eBPF half.
    Probes,
    /// Files under `/proc`.
    Procfs,
    /// Routes, by netlink.
    Routes,
    /// All container runtimes, while there is none.
    Runtime,
    /// Which container runtimes run.
    Runtimes,
}

impl SourceName {
    /// All of them: no runtime may take one of these names.
    pub const ALL: [Self; 15] = [
        Self::Arp,
        Self::Capabilities,
        Self::Cni,
        Self::Kubelet,
        Self::Kubernetes,
        Self::Ledger,
        Self::Map,
        Self::Neighbours,
        Self::Netlink,
        Self::Otlp,
        Self::Probes,
        Self::Procfs,
        Self::Routes,
        Self::Runtime,
        Self::Runtimes,
    ];

    /// As it is told.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Arp => "arp",
            Self::Capabilities => "capabilities",
            Self::Cni => "cni",
            Self::Kubelet => "kubelet",
            Self::Kubernetes => "kubernetes",
            Self::Ledger => "ledger",
            Self::Map => "map",
            Self::Neighbours => "neighbours",
            Self::Netlink => "netlink",
            Self::Otlp => "otlp",
            Self::Probes => "probes",
            Self::Procfs => "procfs",
            Self::Routes => "routes",
            Self::Runtime => "runtime",
            Self::Runtimes => "runtimes",
        }
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<SourceName> for String {
    fn from(name: SourceName) -> Self {
        name.as_str().to_owned()
    }
}

impl PartialEq<SourceName> for String {
    fn eq(&self, name: &SourceName) -> bool {
        self == name.as_str()
    }
}

/// What kinds of IPAM stores are called. A second host-local directory has its path behind its name.
pub mod store {
    /// The VPC CNI of AWS.
    pub const AWS_VPC_CNI: &str = "aws-vpc-cni";
    /// Calico's blocks.
    pub const CALICO: &str = "calico";
    /// What tells of Calico's pools.
    pub const CALICO_POOLS: &str = "calico-pools";
    /// Cilium's endpoints.
    pub const CILIUM: &str = "cilium";
    /// A directory of the CNI plugin host-local.
    pub const HOST_LOCAL: &str = "host-local";
    /// Docker's networks.
    pub const LIBNETWORK: &str = "libnetwork";
    /// podman's networks.
    pub const NETAVARK: &str = "netavark";
    /// The CNI of Alibaba Cloud.
    pub const TERWAY: &str = "terway";
    /// The IPAM plugin whereabouts.
    pub const WHEREABOUTS: &str = "whereabouts";

    /// All of them.
    pub const ALL: [&str; 9] = [
        AWS_VPC_CNI,
        CALICO,
        CALICO_POOLS,
        CILIUM,
        HOST_LOCAL,
        LIBNETWORK,
        NETAVARK,
        TERWAY,
        WHEREABOUTS,
    ];
}
