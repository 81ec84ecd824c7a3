//! Situations in which IPAM and the kernel seem to disagree, though all is well: with short grace periods nothing may
//! be raised, not even `pending`. The pods are containers for which the test calls plugins, and the runtime is a mock
//! that lists them.

use serde_json::json;
use support::fake_cri::FakeCri;
use support::network::{self, Container, Network};
use support::role::{Helper, Role, Running};
use support::{Lab, Netns};

use crate::never::{self, Watch, wait};

support::tests! {
    the_same_range_on_a_bridge_apart needs [Cni, FakeCri, Fuse],
    two_networks_with_one_subnet needs [Cni, FakeCri, Fuse],
    pods_of_macvlan_are_made_anew needs [Cni, FakeCri, Fuse] @ Kernel,
}

/// Longer than a poll of the runtime may take.
const HEARD: std::time::Duration = std::time::Duration::from_secs(7);

/// A running container.
struct Live {
    container: Container,
    netns: Netns,
    ip: String,
    _pause: Running,
}

/// A node with networks, and a runtime that lists what runs on it.
struct Node<'a> {
    lab: &'a Lab,
    netns: Netns,
    runtime: FakeCri,
    serial: usize,
}

impl<'a> Node<'a> {
    fn new(lab: &'a Lab) -> Self {
        Self { lab, netns: Netns::new(lab, "node"), runtime: FakeCri::start(lab), serial: 0 }
    }

    /// A network of 13 IPs on a bridge.
    fn bridge(&self, name: &str, bridge: &str) -> Network {
        let subnet = format!("{}/28", self.lab.ip(0));
        Network::new(self.lab, &self.netns, name, "bridge", &subnet, json!({ "bridge": bridge }))
    }

    fn watch(&self) -> Watch {
        let config = never::config()
            .leak_age(1)
            .cri(self.runtime.socket())
            .networks(&[network::conf_dir(self.lab)], &network::bin_dir(self.lab));
        Watch::start(self.lab, &config, Some("containerd"))
    }

    /// Runs a container in a network, with a process in it. The runtime learns of it through [`Node::tell`].
    fn run(&mut self, network: &Network, pod: &str) -> Live {
        self.serial += 1;
        let container = Container::new(self.lab, self.serial).of_pod(pod);
        let netns = Netns::new(self.lab, &format!("c{}", self.serial));
        let ip = network.add(&container, &netns).unwrap();
        let pause = Helper::new(Role::Park).inside(&netns).start();
        Live { container, netns, ip, _pause: pause }
    }

    /// Makes the runtime list exactly these containers.
    fn tell(&self, live: &[&Live]) {
        let lines = live.iter().map(|live| FakeCri::line(&live.container, "READY"));
        self.runtime.has(&lines.collect::<String>());
    }
}

/// Both networks use the same IPs, and neither reaches the other.
fn the_same_range_on_a_bridge_apart(lab: &Lab) {
    let mut node = Node::new(lab);
    let (one, other) = (node.bridge("one", "br1"), node.bridge("other", "br2"));
    let watch = node.watch();
    let first = node.run(&one, "web-0");
    node.tell(&[&first]);
    std::thread::sleep(HEARD);
    let second = node.run(&other, "web-1");
    assert_eq!(first.ip, second.ip);
    node.tell(&[&first, &second]);
    wait();
    // Freed in one network, held in the other.
    other.del(&second.container, Some(&second.netns)).unwrap();
    drop(second);
    node.tell(&[&first]);
    wait();
    watch.was_quiet(lab);
}

/// A copy of a network's configuration under another name, and an old one that is not used any more.
fn two_networks_with_one_subnet(lab: &Lab) {
    let mut node = Node::new(lab);
    let network = node.bridge("net", "br1");
    let _unused = node.bridge("old", "br1");
    let conflist = network::conf_dir(lab).join(format!("{}.conflist", network.name()));
    std::fs::copy(&conflist, conflist.with_file_name("99-copy.conflist")).unwrap();
    let watch = node.watch();
    let pods: Vec<Live> = (0..3).map(|n| node.run(&network, &format!("web-{n}"))).collect();
    node.tell(&pods.iter().collect::<Vec<_>>());
    wait();
    for pod in &pods[1..] {
        network.del(&pod.container, Some(&pod.netns)).unwrap();
    }
    node.tell(&[&pods[0]]);
    wait();
    watch.was_quiet(lab);
}

/// macvlan frees the IP before it removes its device. A second DEL for it comes while the pod's successor runs.
fn pods_of_macvlan_are_made_anew(lab: &Lab) {
    let mut node = Node::new(lab);
    node.netns.ip("link add up0 type veth peer name up1");
    node.netns.ip("link set up0 up");
    let subnet = format!("{}/28", lab.ip(0));
    let macvlan = json!({ "master": "up0" });
    let network = Network::new(lab, &node.netns, "mac", "macvlan", &subnet, macvlan);
    let watch = node.watch();
    let mut old = node.run(&network, "db-0");
    node.tell(&[&old]);
    for _ in 0..6 {
        network.del(&old.container, Some(&old.netns)).unwrap();
        let new = node.run(&network, "db-0");
        node.tell(&[&new]);
        network.del(&old.container, None).unwrap();
        old = new;
        std::thread::sleep(HEARD / 4);
    }
    wait();
    watch.was_quiet(lab);
}
