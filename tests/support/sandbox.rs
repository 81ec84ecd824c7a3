//! What a runtime leaves on the node for a pod, without a runtime: the cgroup of its container and the cached CNI
//! result of its sandbox. They give the pod's name where no containerd runs, as in the VMs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde_json::json;

use crate::poll::until;
use crate::{Lab, Netns, cgroup};

/// A pod without a runtime; its namespace is `shop`.
#[derive(Debug)]
pub struct Sandbox {
    pub name: String,
    pub uid: String,
    pub sandbox: String,
    /// Id of the container that owns the cgroup. Differs from the sandbox's id, as in every pod.
    pub container: String,
    /// When it was created, as Unix time in nanoseconds.
    pub made: u128,
    cgroup: PathBuf,
    cache: PathBuf,
}

impl Sandbox {
    /// Namespace of every pod here.
    pub const NAMESPACE: &str = "shop";

    /// A pod with the sandbox `netns` and the IP `cidr`. `secret` is placed where a real cache file has credentials:
    /// in the network's configuration.
    #[must_use]
    pub fn make(lab: &Lab, netns: &Netns, cidr: &str, secret: &str) -> Self {
        let uid = format!("{:08x}-0000-4000-8000-000000000001", netns.inode);
        Self::make_as(lab, netns, cidr, secret, ("api-0", &uid))
    }

    /// Like `make`, with a given name and uid.
    #[must_use]
    pub fn make_as(
        lab: &Lab,
        netns: &Netns,
        cidr: &str,
        secret: &str,
        (name, uid): (&str, &str),
    ) -> Self {
        let hex = |first: char| format!("{first}{:063x}", netns.inode);
        let (sandbox, container) = (hex('a'), hex('c'));
        // Below a group with the lab's tag, as in a cluster inside a container: a real kubelet's groups are not
        // touched, and the sweep knows what to remove.
        let place = format!("{}-node/kubepods/besteffort/pod{uid}/{container}", lab.tag());
        let cgroup = cgroup::naming().expect("a hierarchy that names containers").join(place);
        fs::create_dir_all(&cgroup).expect("make a cgroup");
        let cache = lab.subdir("cni");
        let cached = json!({
            "kind": "cniCacheV1",
            "containerId": sandbox,
            "config": secret,
            "ifName": "eth0",
            "networkName": "test-net",
            "netns": netns.path(),
            "cniArgs": [
                ["K8S_POD_NAMESPACE", Self::NAMESPACE],
                ["K8S_POD_NAME", name],
                ["K8S_POD_INFRA_CONTAINER_ID", sandbox],
                ["K8S_POD_UID", uid],
            ],
            "result": {
                "cniVersion": "1.0.0",
                "interfaces": [{ "name": "eth0", "sandbox": netns.path() }],
                "ips": [{ "address": cidr, "interface": 0 }],
            },
        });
        fs::write(cache.join(format!("test-net-{sandbox}-eth0")), cached.to_string())
            .expect("write a CNI result");
        let (name, uid) = (name.to_owned(), uid.to_owned());
        let made = UNIX_EPOCH.elapsed().expect("after 1970").as_nanos();
        Self { name, uid, sandbox, container, made, cgroup, cache }
    }

    /// The result cache, for [`crate::Config::cache_dir`].
    #[must_use]
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The container's cgroup, which a process must join before it executes its program.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Waits until `/proc` shows a process in the cgroup.
    pub fn await_in(&self, pid: u32) {
        until("the process is in the container's cgroup", 5, || {
            fs::read_to_string(format!("/proc/{pid}/cgroup"))
                .is_ok_and(|lines| lines.contains(&self.container))
        });
    }
}
