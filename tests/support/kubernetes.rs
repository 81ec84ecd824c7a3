//! A real Kubernetes of one node: etcd and kube-apiserver ([`ControlPlane`]), asked by curl ([`Api`]), and a
//! kubelet with the lab's containerd ([`Node`]), in a netns of the lab's own, so that every port, and what a
//! kubelet changes of its network, is there alone; the daemon, outside it, has a [`Door`] in. No scheduler and no controller runs: a pod names its node, and
//! nobody puts another one in its place.
//!
//! The programs are those of `IPWATCH_TEST_KUBERNETES`, a directory; `cargo xtask test` builds them.

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

use std::path::PathBuf;

use crate::{Lab, need, pod};

pub use api::{Api, Events};
pub use asked::Asked;
pub use control::ControlPlane;
pub use door::Door;
pub use node::{Node, sweep};

/// What is missing here to run an API server.
#[must_use]
pub fn without_api_server() -> Option<String> {
    missing(&["etcd", "kube-apiserver"])
        .or_else(|| ["/usr/bin/curl", "/usr/bin/openssl"].into_iter().find_map(need::absent))
}

/// What is missing here to run a kubelet.
#[must_use]
pub fn without_kubelet() -> Option<String> {
    missing(&["kubelet"]).or_else(without_api_server).or_else(pod::missing)
}

/// The same of some of its programs.
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

/// Where a program is.
pub(crate) fn program(name: &str) -> PathBuf {
    dir().expect("the programs of Kubernetes").join(name)
}

/// Where everything of it lies.
fn home(lab: &Lab) -> PathBuf {
    lab.subdir("kubernetes")
}
