//! A real Kubernetes with one node: etcd and kube-apiserver ([`ControlPlane`]), accessed by curl ([`Api`]), and a
//! kubelet with the lab's containerd ([`Node`]), in a netns of the lab, so that its ports and a kubelet's changes of
//! the network are isolated. The daemon is outside of it and connects through a [`Door`]. No scheduler and no
//! controller runs: a pod names its node, and nothing replaces it.
//!
//! The programs are in the directory `IPWATCH_TEST_KUBERNETES`; `cargo xtask test` builds them.

mod agent;
mod api;
mod asked;
pub mod calico;
mod control;
mod door;
mod harm;
mod node;
mod part;
pub(crate) mod shared;
pub mod stores;
mod token;
pub mod whereabouts;

use std::path::PathBuf;

use crate::{Lab, need, pod};

pub use api::{Api, Events};
pub use asked::Asked;
pub use control::ControlPlane;
pub use door::Door;
pub use node::{Node, sweep};

/// Why an API server cannot be run here.
#[must_use]
pub fn without_api_server() -> Option<String> {
    missing(&["etcd", "kube-apiserver"])
        .or_else(|| ["/usr/bin/curl", "/usr/bin/openssl"].into_iter().find_map(need::absent))
}

/// Why a kubelet cannot be run here.
#[must_use]
pub fn without_kubelet() -> Option<String> {
    missing(&["kubelet"]).or_else(without_api_server).or_else(pod::missing)
}

/// Why some of its programs cannot be run here.
pub(crate) fn without(programs: &[&str]) -> Option<String> {
    missing(programs)
}

fn missing(programs: &[&str]) -> Option<String> {
    let Some(dir) = dir() else {
        return Some("no Kubernetes: IPWATCH_TEST_KUBERNETES is not set".into());
    };
    programs.iter().find_map(|name| need::absent(dir.join(name)))
}

fn dir() -> Option<PathBuf> {
    std::env::var_os("IPWATCH_TEST_KUBERNETES").filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// Path of a program.
pub(crate) fn program(name: &str) -> PathBuf {
    dir().expect("the programs of Kubernetes").join(name)
}

/// Directory of all its files.
fn home(lab: &Lab) -> PathBuf {
    lab.subdir("kubernetes")
}
