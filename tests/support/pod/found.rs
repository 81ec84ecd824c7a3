//! A pod that this containerd made for a kubelet: the data that tests need.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::{Containerd, Pod, PodSandbox, address_of, first_process, network, place, sweep};
use crate::poll::eventually;
use crate::proc::View;

impl Containerd<'_> {
    /// The pod with this name and container, as kubelet made it, found by CNI's cache and the kernel.
    #[must_use]
    #[track_caller]
    pub fn found(&self, name: &str, container: &str) -> Pod {
        sweep::note_id(self.lab, container);
        let pid = eventually("the container has a process", 5, || first_process(container));
        let (sandbox, uid, pause) = eventually("its sandbox is known to CNI", 5, || {
            sweep::cached().find_map(|entry| {
                let text = fs::read_to_string(entry.path()).ok()?;
                let result: Value = serde_json::from_str(&text).ok()?;
                let ours = result["networkName"] == network(self.lab.tag(), "net")
                    && argument(&result, "K8S_POD_NAME")? == name;
                let id = ours.then(|| result["containerId"].as_str())??.to_owned();
                // The result of an earlier pod of this name may be left.
                let pause = first_process(&id)?;
                Some((id, argument(&result, "K8S_POD_UID")?, pause))
            })
        });
        sweep::note_id(self.lab, &sandbox);
        let netns = View::leader(pause).and_then(|view| view.netns).expect("its netns");
        // With a mount namespace of its own, its mount is not on the host, and goes with that namespace.
        let apart = self.dir.join(place::APART).exists();
        let path = if apart { PathBuf::new() } else { sweep::note_netns(self.lab, netns) };
        let ip = address_of(pause);
        let name = name.to_owned();
        let of = PodSandbox { name, uid, attempt: 0, sandbox, pause, netns, path, ip };
        Pod { of, container: container.to_owned(), pid }
    }
}

/// One of the arguments with which the plugins were called.
pub(super) fn argument(result: &Value, key: &str) -> Option<String> {
    let pair = result["cniArgs"].as_array()?.iter().find(|pair| pair[0] == key)?;
    pair[1].as_str().map(str::to_owned)
}
