//! IPAM stores as healthy nodes have them: files of others, files that are being written, networks that share a range or
//! a directory, results and networks of the past. The reservations of a runtime that cannot be asked are podman's
//! ([`super::podman`]).

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::json;
use support::network::{self, Container, Network};
use support::role::{Helper, Role};
use support::{Lab, Netns};

use super::Zoo;

/// Name of the network that no configuration names any more, without the lab's tag.
pub(super) const OLD: &str = "old-cni";

/// End of the name of a copy of a network's directory.
pub(super) const BACKUP: &str = ".bak";

/// Networks of plugins that the test calls, and what is left of the past.
pub(super) struct Stores {
    /// Holds what the plugins leave on a node.
    _node: Netns,
    /// One range set of two ranges, and another set: a container gets an IP of each set.
    pools: Network,
    /// A second configuration of the same network stands beside it, and a third with the same range.
    shared: Network,
    results: PathBuf,
}

impl Stores {
    pub(super) fn make(lab: &Lab) -> Self {
        let node = Netns::new(lab, "ipamnode");
        let part = |first: u8, last: u8| {
            let (first, last) = (lab.ip(first), lab.ip(last));
            json!({ "subnet": format!("{}/24", lab.ip(0)), "rangeStart": first, "rangeEnd": last })
        };
        let ranges = json!([[part(200, 203), part(206, 207)], [part(210, 219)]]);
        let ipam = json!({ "type": "host-local", "dataDir": lab.subdir("ipam"), "ranges": ranges });
        let more = json!({ "bridge": "pools0", "ipam": ipam });
        let subnet = format!("{}/28", lab.ip(224));
        let pools = Network::new(lab, &node, "pools", "bridge", &subnet, more);
        let on = |name: &str| {
            let more = json!({ "bridge": "shared0" });
            Network::new(lab, &node, name, "bridge", &subnet, more)
        };
        let (shared, _unused) = (on("shared"), on("unused"));
        let conflist = network::conf_dir(lab).join(format!("{}.conflist", shared.name()));
        fs::copy(&conflist, conflist.with_file_name("99-copy.conflist")).unwrap();
        let stores = Self { _node: node, pools, shared, results: lab.subdir("results") };
        stores.leave_the_past(lab);
        stores
    }

    /// The directory of results that no runtime uses any more.
    pub(super) fn results(&self) -> &Path {
        &self.results
    }

    /// Reservations and results of a CNI that was replaced, and backups that are not whole.
    fn leave_the_past(&self, lab: &Lab) {
        let old = lab.subdir("ipam").join(format!("{}-{OLD}", lab.tag()));
        fs::create_dir_all(&old).unwrap();
        for n in 241..244_u8 {
            let id = Container::new(lab, 9_000 + usize::from(n)).id;
            let file = old.join(lab.ip(n).to_string());
            fs::write(&file, format!("{id}\r\neth0")).unwrap();
            let made = SystemTime::now() - Duration::from_secs(3_600);
            fs::File::options().write(true).open(file).unwrap().set_modified(made).unwrap();
            let result = json!({
                "kind": "cniCacheV1",
                "containerId": id,
                "ifName": "eth0",
                "networkName": format!("{}-{OLD}", lab.tag()),
                "netns": format!("/run/netns/{}-gone", lab.tag()),
                "result": {
                    "cniVersion": "1.0.0",
                    "ips": [{ "address": lab.cidr(n), "interface": 0 }],
                },
            });
            let name = format!("{}-{OLD}-{id}-eth0", lab.tag());
            fs::write(self.results.join(name), result.to_string()).unwrap();
        }
        fs::write(old.join("last_reserved_ip.0"), lab.ip(243).to_string()).unwrap();
        let backup = lab.subdir("ipam").join(format!("{}{BACKUP}", self.shared.name()));
        fs::create_dir_all(&backup).unwrap();
        fs::write(backup.join(lab.ip(244).to_string()), "").unwrap();
        fs::write(backup.join(lab.ip(245).to_string()), "0123456789ab").unwrap();
        fs::write(backup.join("last_reserved_ip.0"), [0xff, 0xfe, 0]).unwrap();
    }
}

/// Files in the stores that are no reservations, and reservations that are being written.
pub(super) fn files(lab: &Lab, zoo: &Zoo<'_>) {
    let dirs = [zoo.containerd.reservations(), zoo.ipam.shared.reservations()];
    for n in 0.. {
        for dir in dirs.iter().filter(|dir| dir.exists()) {
            let ip = lab.ip(if n % 2 == 0 { 61 } else { 237 });
            let foreign = [
                format!(".{ip}.swp"),
                format!("{ip}~"),
                format!("{ip}.bak"),
                format!("#{ip}#"),
                ".nfs000000000000000a00000001".to_owned(),
                "README".to_owned(),
                "last_reserved_ip.7".to_owned(),
            ];
            foreign.iter().for_each(|name| fs::write(dir.join(name), "b0VIM 9.0").unwrap());
            fs::create_dir_all(dir.join("lost+found")).unwrap();
            // Two writes, and what a failed ADD takes back: host-local holds its lock meanwhile.
            if let Ok(lock) = fs::File::options().write(true).open(dir.join("lock")) {
                let _ = rustix::fs::flock(lock.as_fd(), rustix::fs::FlockOperation::LockExclusive);
                // As the plugin does: what a pod has is left to it.
                let path = dir.join(ip.to_string());
                if let Ok(mut file) = fs::File::create_new(&path) {
                    std::thread::sleep(Duration::from_millis(100));
                    let id = Container::new(lab, 8_000 + n).id;
                    write!(file, "{id}\r\neth0").unwrap();
                    std::thread::sleep(Duration::from_millis(100));
                    fs::remove_file(&path).unwrap();
                }
            }
            foreign.iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap());
        }
        if !zoo.pause(1_000) {
            return;
        }
    }
}

/// Containers that come and go in networks of several ranges, and in one that is configured more than once. DEL is called
/// again, as a runtime does that is not sure.
pub(super) fn pools(lab: &Lab, zoo: &Zoo<'_>) {
    let stores = &zoo.ipam;
    for n in 0.. {
        for network in [&stores.pools, &stores.shared] {
            let live = [2 * n, 2 * n + 1].map(|n| {
                let container = Container::new(lab, n);
                let netns = Netns::new(lab, &format!("ipam{}", n % 2));
                network.add(&container, &netns).unwrap();
                let pause = Helper::new(Role::Park).inside(&netns).start();
                (container, netns, pause)
            });
            let goes_on = zoo.pause(300);
            for (container, netns, pause) in live {
                network.del(&container, Some(&netns)).unwrap();
                pause.end();
                drop(netns);
                network.del(&container, None).unwrap();
            }
            if !goes_on {
                return;
            }
        }
    }
}
