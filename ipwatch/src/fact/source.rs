//! The sources with a fixed name, in facts, `ipwatch doctor`, the API and the metrics.
//!
//! A container runtime, an IPAM store and a datastore of endpoints are sources too. They have their own names, or are
//! named after their location, and these names are text.

use std::fmt;

/// A source with a fixed name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceName {
    /// ARP packets on the node's own links.
    Arp,
    /// The daemon's own capabilities, if some are missing.
    Capabilities,
    /// The CNI result cache.
    Cni,
    /// The kubelet, queried for this node's pods if the API server is not.
    Kubelet,
    /// The API server.
    Kubernetes,
    /// The daemon's own store of findings and tenures.
    Ledger,
    /// The map, if it keeps less than there is.
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
    /// Represents the container runtimes, as long as none is found.
    Runtime,
    /// The list of running container runtimes.
    Runtimes,
}

impl SourceName {
    /// All of them: no runtime may use one of these names.
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

    /// The name as reported.
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

/// Names of the kinds of IPAM stores. A second host-local directory has its path appended to the name.
pub mod store {
    /// Branch ENIs of AWS, in annotations of pods: the source is `kubernetes`.
    pub const AWS_BRANCH_ENI: &str = "aws-branch-eni";
    /// The VPC CNI of AWS.
    pub const AWS_VPC_CNI: &str = "aws-vpc-cni";
    /// Calico's blocks.
    pub const CALICO: &str = "calico";
    /// The source of Calico's pools.
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
    pub const ALL: [&str; 10] = [
        AWS_BRANCH_ENI,
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
