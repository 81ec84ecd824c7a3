//! Netns that no container runtime has: of people, VPNs, sandboxes, services, CI jobs and nested clusters.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::role::{Helper, Role, Running};
use support::{Lab, Netns};

use super::Zoo;

/// Netns of one CI run, and how many start at once.
const JOBS: usize = 600;
const AT_ONCE: usize = 30;

/// A netns with `eth0`, whose other end is in the host's netns.
fn named(lab: &Lab, n: u8, hint: &str) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(n), "eth0");
    netns
}

/// Netns of people, of VPNs and of CI jobs: some stay, most are temporary.
pub(super) fn people(lab: &Lab, zoo: &Zoo<'_>) {
    let _stay = [named(lab, 71, "lab"), named(lab, 72, "qrouter-1"), Netns::new(lab, "empty")];
    let tunnel = Netns::new(lab, "vpn");
    tunnel.ip("tuntap add dev tun0 mode tun");
    tunnel.ip("link set tun0 up");
    tunnel.add_address(&lab.cidr(73), "tun0");
    // The owner of a pool holds one only by an fd.
    let pooled = named(lab, 74, "pool");
    let _keeper = Helper::new(Role::HoldFd).arg(pooled.path().to_str().unwrap()).start();
    pooled.unname();
    while zoo.pause(200) {
        let netns = named(lab, 75, "job");
        netns.ip("-4 addr show");
        drop(netns);
    }
}

/// Processes in their own netns: `unshare`, as root and as a user.
pub(super) fn sessions(_: &Lab, zoo: &Zoo<'_>) {
    while zoo.pause(100) {
        let mut all: Vec<_> = ["-n", "-Urn"]
            .map(|flags| {
                let mut command = Command::new("unshare");
                command
                    .args([flags, "sh", "-c", "ip link set lo up; exec sleep 0.2"])
                    .spawn()
                    .unwrap()
            })
            .into();
        let mut mover = Helper::new(Role::Mover).start();
        mover.ask("unshare");
        all.iter_mut().for_each(|child| drop(child.wait()));
        mover.end();
    }
}

/// `ip netns add`, `exec` and `del`, as in people's scripts. `exec` has a mount namespace of its own.
pub(super) fn commands(lab: &Lab, zoo: &Zoo<'_>) {
    let stay = named(lab, 76, "script");
    let run = |words: &[&str]| {
        let done = Command::new("ip").arg("netns").args(words).status().unwrap();
        assert!(done.success(), "ip netns {words:?}");
    };
    let name = format!("{}-made", lab.tag());
    let mut long = Command::new("ip");
    let mut long = long.args(["netns", "exec", stay.name(), "sleep", "100000"]).spawn().unwrap();
    while zoo.pause(300) {
        run(&["add", &name]);
        run(&["exec", &name, "ip", "link", "set", "lo", "up"]);
        run(&["exec", &name, "sleep", "0.1"]);
        run(&["del", &name]);
        run(&["exec", stay.name(), "ip", "-4", "addr"]);
    }
    long.kill().unwrap();
    long.wait().unwrap();
}

/// Sandboxes of desktop programs and builds: bubblewrap, as root and as a user without rights.
pub(super) fn sandboxes(_: &Lab, zoo: &Zoo<'_>) {
    let bwrap = |user: &str, seconds: &str| -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "bwrap"]);
        // Its program dies with it: as long as this test is killed by force, nothing remains.
        command.args(["--unshare-net", "--unshare-pid", "--die-with-parent", "--ro-bind", "/usr"]);
        command.args(["/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]);
        command.args(["--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev"]);
        if user != "0" {
            command.arg("--unshare-user");
        }
        command.args(["/bin/sleep", seconds]).stdin(Stdio::null()).spawn().unwrap()
    };
    let mut stay = [bwrap("0", "100000"), bwrap("65534", "100000")];
    while zoo.pause(300) {
        for user in ["0", "65534"] {
            assert!(bwrap(user, "0.2").wait().unwrap().success(), "bwrap as {user}");
        }
    }
    for child in &mut stay {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Services as with `PrivateNetwork=`: systemd keeps the fd of the netns in a socket, where nobody reads it, and the
/// processes of the service end and start again in the netns.
pub(super) fn services(lab: &Lab, zoo: &Zoo<'_>) {
    let netns = Netns::new(lab, "service");
    let path = netns.path().to_str().unwrap().to_owned();
    let keeper = Helper::new(Role::HoldInFlight).arg(&path).start();
    while zoo.pause(500) {
        let service: Running = Helper::new(Role::Park).inside(&netns).start();
        std::thread::sleep(Duration::from_millis(300));
        service.end();
    }
    keeper.end();
}

/// A CI run: hundreds of netns that live for a second or two.
pub(super) fn ci(_: &Lab, zoo: &Zoo<'_>) {
    loop {
        let mut running: Vec<Child> = Vec::new();
        for _ in 0..JOBS / AT_ONCE {
            let job = || {
                let mut command = Command::new("unshare");
                command.args(["-n", "sleep", "1.5"]).spawn().unwrap()
            };
            running.extend((0..AT_ONCE).map(|_| job()));
            if !zoo.pause(600) {
                break;
            }
            running.retain_mut(|child| child.try_wait().unwrap().is_none());
        }
        running.iter_mut().for_each(|child| drop(child.wait()));
        if !zoo.pause(60_000) {
            return;
        }
    }
}

/// Two clusters in containers (kind, k3d): each node is a netns with its own bridge and pods, and both use the same IPs
/// for them. The nodes themselves are on one LAN.
pub(super) fn clusters(lab: &Lab, zoo: &Zoo<'_>) {
    let lan = Netns::new(lab, "kindnet");
    lan.ip("link add br0 type bridge");
    lan.ip("link set br0 up");
    let node = |n: u8| {
        let node = Netns::new(lab, &format!("kind{n}"));
        let port = format!("kind{n}");
        node.veth_to("eth0", &lan, &port);
        lan.ip(&format!("link set {port} master br0"));
        node.add_address(&lab.cidr(64 + n), "eth0");
        node.ip("link add cni0 type bridge");
        node.ip("link set cni0 up");
        node.add_address(&format!("{}/29", lab.ip(113)), "cni0");
        node.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        node
    };
    let nodes = [node(1), node(2)];
    let pod = |at: usize, n: u8| {
        let (node, port) = (&nodes[at], format!("pod{n}"));
        let pod = Netns::new(lab, &format!("kind{at}-{n}"));
        pod.veth_to("eth0", node, &port);
        node.ip(&format!("link set {port} master cni0"));
        pod.add_address(&format!("{}/29", lab.ip(n)), "eth0");
        pod.ip(&format!("route add default via {}", lab.ip(113)));
        let process = Helper::new(Role::Park).inside(&pod).start();
        (pod, process)
    };
    let _stay = [pod(0, 114), pod(1, 114)];
    while zoo.pause(500) {
        let both = [pod(0, 115), pod(1, 115)];
        std::thread::sleep(Duration::from_secs(1));
        for (pod, process) in both {
            process.end();
            // As CNI does: the device first. With the netns alone, the kernel would remove it some time later.
            pod.ip("link del eth0");
        }
    }
}
