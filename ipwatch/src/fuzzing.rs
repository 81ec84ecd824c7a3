//! Entries of the fuzz targets (`fuzz/`): one for each parser of foreign bytes, and the engine. Built only with the feature
//! `fuzzing`.

pub use crate::cli::fuzz::paste;
pub use crate::cluster::fuzz::cluster;
pub use crate::engine::fuzz::engine;
pub use crate::sources::calico::etcd::fuzz::etcd_v2;
pub use crate::sources::calico::fuzz::{calico, kubernetes};
pub use crate::sources::cni::fuzz::{cni_cache, cni_log};
pub use crate::sources::ipam::fuzz::{
    aws, bolt, cilium, conflist, host_local, libnetwork, netavark, terway,
};
pub use crate::sources::kubernetes::kubelet::fuzz::kubelet;
pub use crate::sources::netlink::fuzz::netlink;
pub use crate::sources::probes::fuzz::cni_call;
pub use crate::sources::procfs::fuzz::{mountinfo, proc};
pub use crate::sources::runtime::fuzz::{cri, docker};

/// Records of the kernel half's ring buffers, and what the engine makes of them.
pub fn ring_records(bytes: &[u8]) {
    crate::engine::fuzz::facts(&crate::sources::probes::fuzz::ring_records(bytes));
}
