//! The CNI result cache: which IPs a container's interface was given, and for which pod. libcni writes it at every ADD
//! (containerd, CRI-O, podman's older network), so it is available even if no runtime answers.

mod cache;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
pub mod log;
mod watch;

use std::path::PathBuf;

use crate::reading::Readings;
use crate::sources::Emit;

/// Directories of libcni's cache: the current one, and the one before CNI 0.7, below `/var/lib/cni/cache`.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    ["/var/lib/cni/results", "/var/lib/cni/cache/results"].map(PathBuf::from).to_vec()
}

/// Directories of CNI plugins: upstream, Debian and SUSE, Fedora, k3s, OpenShift, GKE.
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

/// Log files of runtimes: k3s, RKE2, a containerd with its own log, CRI-O.
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

/// Reads the whole cache and then follows it until the daemon shuts down. Directories that do not exist yet are waited
/// for.
pub async fn run(directories: Vec<PathBuf>, emit: Emit, readings: Readings) {
    watch::run(directories, emit, readings).await;
}
