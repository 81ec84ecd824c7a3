//! The CNI result cache: which IPs a container's interface was given, and for which pod. libcni writes
//! it at every ADD (containerd, CRI-O, podman's older network), so it answers when no runtime does.

mod cache;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
pub mod log;
mod watch;

use std::path::PathBuf;

use crate::reading::Readings;
use crate::sources::Emit;

/// Where libcni keeps its cache: now, and before CNI 0.7 under `/var/lib/cni/cache`.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    ["/var/lib/cni/results", "/var/lib/cni/cache/results"].map(PathBuf::from).to_vec()
}

/// Where plugins lie: upstream's place, then those of Debian and SUSE, Fedora, k3s, OpenShift, GKE.
#[must_use]
pub fn plugin_directories() -> Vec<PathBuf> {
    [
        "/opt/cni/bin",
        "/usr/lib/cni",
        "/usr/libexec/cni",
        "/var/lib/rancher/k3s/data/cni",
        "/var/lib/rancher/k3s/data/current/bin",
        "/var/lib/cni/bin",
        "/home/kubernetes/bin",
    ]
    .map(PathBuf::from)
    .to_vec()
}

/// Where runtimes log: k3s, RKE2, a containerd with a log of its own, CRI-O.
#[must_use]
pub fn logs() -> Vec<PathBuf> {
    [
        "/var/lib/rancher/k3s/agent/containerd/containerd.log",
        "/var/lib/rancher/rke2/agent/containerd/containerd.log",
        "/var/log/containerd.log",
        "/var/log/crio",
    ]
    .map(PathBuf::from)
    .to_vec()
}

/// Reads the cache, whole, and then follows it until the daemon goes down. Directories that are not there yet are waited
/// for.
pub async fn run(directories: Vec<PathBuf>, emit: Emit, readings: Readings) {
    watch::run(directories, emit, readings).await;
}
