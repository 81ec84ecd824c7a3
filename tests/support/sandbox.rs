//! What a runtime leaves on the node for a pod, without a runtime: the cgroup of its container and the
//! cached CNI result of its sandbox. By them a pod is named where no containerd runs, as in the VMs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde_json::json;

use crate::poll::until;
use crate::{Lab, Netns, cgroup};

/// A pod on paper; its namespace is `shop`.
#[derive(Debug)]
pub struct Sandbox {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Id of the sandbox.
    pub sandbox: String,
    /// Id of the container whose cgroup it is. The sandbox's own is another one, as in every pod.
    pub container: String,
    /// When it was made, in nanoseconds of Unix time.
    pub made: u128,
    cgroup: PathBuf,
    cache: PathBuf,
}

impl Sandbox {
    /// Namespace of every pod here.
    pub const NAMESPACE: &str = "shop";

    /// A pod whose sandbox is `netns` and whose IP is `cidr`. `secret` goes to where a real cache file
    /// carries credentials: into the network's configuration.
    #[must_use]
    pub fn make(lab: &Lab, netns: &Netns, cidr: &str, secret: &str) -> Self {
        let uid = format!("{:08x}-0000-4000-8000-000000000001", netns.inode);
        Self::make_as(lab, netns, cidr, secret, ("api-0", &uid))
    }

    /// The same with a name and a uid that somebody else has given it.
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
        // Below a group with the lab's tag, as in a cluster inside a container: a real kubelet's
        // groups are left alone, and the sweep knows what to remove.
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

    /// The container's cgroup, which a process of it is to join before it becomes its program.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Waits until `/proc` shows a process in it: by other eyes than the product's.
    pub fn await_in(&self, pid: u32) {
        until("the process is in the container's cgroup", 5, || {
            fs::read_to_string(format!("/proc/{pid}/cgroup"))
                .is_ok_and(|lines| lines.contains(&self.container))
        });
    }
}
