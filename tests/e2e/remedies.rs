//! What is told to do, done: the commands of real findings, pasted into a shell as they were printed. Each does what its
//! sentence says; before its time, for another one, or once more it does nothing.
//!
//! `kubectl`, `crictl` and `calicoctl` are stand-ins here that write their words down: see `support::remedy`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use support::fuse::Hung;
use support::network::{self, Container, Network};
use support::remedy::{Shell, change, changes, looks};
use support::role::{Helper, Role};
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, Sandbox};

support::tests! {
    a_leaked_netns_is_unmounted_and_no_other,
    a_mount_elsewhere_is_unmounted_there_by_our_own_umount needs [UmountN] @ Alone,
    a_leaked_reservation_is_freed_and_no_other needs [Cni],
    an_empty_reservation_is_freed_while_it_is_empty needs [Cni],
    // Of several connections that hang none is blamed: no other may be there.
    a_hung_connection_is_aborted_and_no_other needs [Fuse] @ Alone,
    a_pair_goes_while_both_of_its_ends_are_here,
    a_strangers_words_stay_a_value needs [Fuse] @ Alone,
    what_looks_changes_nothing,
}

/// Seconds until a finding fires here.
const SOON: u32 = 40;
const GRACE: u32 = 2;

fn config() -> Config {
    Config::default().grace(GRACE).holders_grace(GRACE).leak_age(GRACE)
}

fn with_address(lab: &Lab, hint: &str) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    netns
}

fn is_in(netns: u64) -> impl Fn(&Value) -> bool {
    move |finding| finding["subject"]["netns"]["inode"] == netns
}

fn is_mounted(pid: u32, path: &Path) -> bool {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let path = path.to_str().unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

/// A pod's netns without a process, where no runtime can be asked.
fn leaked(lab: &Lab, daemon: &Daemon, netns: &Netns) -> Value {
    let finding = daemon.await_firing("netns-leaked", SOON, is_in(netns.inode));
    assert_eq!(finding["subject"]["ip"], lab.ip(7).to_string(), "{finding:#?}");
    finding
}

fn a_leaked_netns_is_unmounted_and_no_other(lab: &Lab) {
    let (netns, shell) = (with_address(lab, "old"), Shell::new(lab));
    // Made before the other goes, whose inode it could be given.
    let next = Netns::new(lab, "next");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()));
    let finding = leaked(lab, &daemon, &netns);
    let command = change(&finding, "&& umount /");
    // Somebody is in it after all.
    let visitor = Helper::new(Role::Park).inside(&netns).start();
    shell.refuses(&command);
    assert!(is_mounted(std::process::id(), netns.path()), "a living netns was unmounted");
    visitor.end();
    shell.succeeds(&command);
    assert!(!is_mounted(std::process::id(), netns.path()));
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
    // Another one under its name.
    let path = netns.path();
    rustix::mount::mount_bind(next.path(), path).unwrap();
    shell.refuses(&command);
    let kept = is_mounted(std::process::id(), path);
    rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(kept, "another netns was unmounted");
}

fn a_mount_elsewhere_is_unmounted_there_by_our_own_umount(lab: &Lab) {
    let (netns, shell) = (with_address(lab, "old"), Shell::new(lab));
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let agent = Helper::new(Role::Agent).comm("agent").start();
    let bystander = Helper::new(Role::Agent).comm("bystander").start();
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()));
    netns.unmount();
    let finding = leaked(lab, &daemon, &netns);
    let text = finding["steps"].to_string();
    assert!(!text.contains("--mount") && !text.contains("nsenter -m"), "{text}");
    let of = |pid: u32| format!("umount -N {pid} ");
    let command = change(&finding, &of(agent.pid()));
    // The pid is another process's by now: one with a copy of that mount of its own.
    let others = command.replace(&agent.pid().to_string(), &bystander.pid().to_string());
    shell.refuses(&others);
    assert!(is_mounted(bystander.pid(), netns.path()), "another's mount was taken away");
    shell.succeeds(&command);
    assert!(!is_mounted(agent.pid(), netns.path()));
    shell.refuses(&command);
    shell.succeeds(&change(&finding, &of(bystander.pid())));
    daemon.await_resolved(&finding, SOON);
    agent.end();
    bystander.end();
}

fn of_networks(lab: &Lab) -> Config {
    config().networks(&[network::conf_dir(lab)], &network::bin_dir(lab))
}

fn a_network(lab: &Lab, node: &Netns) -> Network {
    let subnet = format!("{}/26", lab.ip(0));
    Network::new(lab, node, "net", "bridge", &subnet, json!({ "bridge": "br0" }))
}

/// host-local's own file of a container that the node's last crash ended, and for which DEL was never called.
fn a_leaked_reservation_is_freed_and_no_other(lab: &Lab) {
    let (node, shell) = (Netns::new(lab, "node"), Shell::new(lab));
    let network = a_network(lab, &node);
    let (container, pod) = (Container::new(lab, 1), Netns::new(lab, "pod"));
    let ip = network.add(&container, &pod).unwrap();
    pod.unmount();
    let file = network.reservations().join(&ip);
    // Of before the boot, which ended every container.
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().append(true).open(&file).unwrap().set_modified(long_ago).unwrap();
    let daemon = Daemon::start(lab, &of_networks(lab));
    let mine = |finding: &Value| finding["subject"]["ip"] == ip.as_str();
    let finding = daemon.await_firing("ipam-reservation-leaked", SOON, mine);
    let command = change(&finding, "flock ");
    let written = fs::read(&file).unwrap();
    // It is another container's by now; the same with an id that only begins alike.
    for id in [Container::new(lab, 2).id, format!("{}0", container.id)] {
        fs::write(&file, format!("{id}\r\neth0")).unwrap();
        shell.refuses(&command);
        assert!(file.exists(), "the reservation of {id} was freed");
    }
    fs::write(&file, &written).unwrap();
    // Whoever holds the lock is waited for.
    let lock = network.reservations().join("lock");
    let held = fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    let late = std::thread::scope(|scope| {
        let run = scope.spawn(|| shell.run(&command));
        std::thread::sleep(Duration::from_millis(300));
        let waited = file.exists();
        held.unlock().unwrap();
        (waited, run.join().unwrap())
    });
    assert!(late.0, "it did not wait for the plugin's lock");
    assert!(late.1.status.success() && !file.exists(), "{late:?}");
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
    // The next container gets an IP, and keeps it.
    let next = Netns::new(lab, "next");
    fs::write(network.reservations().join("last_reserved_ip.0"), prior(&ip)).unwrap();
    assert_eq!(network.add(&Container::new(lab, 3), &next).unwrap(), ip);
    shell.refuses(&command);
    assert!(file.exists(), "the next one's IP was freed");
}

/// The IP before this one.
fn prior(ip: &str) -> String {
    let ip: std::net::Ipv4Addr = ip.parse().unwrap();
    std::net::Ipv4Addr::from(u32::from(ip) - 1).to_string()
}

fn an_empty_reservation_is_freed_while_it_is_empty(lab: &Lab) {
    let (node, shell) = (Netns::new(lab, "node"), Shell::new(lab));
    let network = a_network(lab, &node);
    let netns = Netns::new(lab, "c1");
    network.add(&Container::new(lab, 1), &netns).unwrap();
    let daemon = Daemon::start(lab, &of_networks(lab));
    let file = network.reservations().join(lab.ip(9).to_string());
    fs::write(&file, "").unwrap();
    let path = file.to_str().unwrap();
    let mine = |finding: &Value| finding["steps"].to_string().contains(path);
    let finding = daemon.await_firing("ipam-store-unreadable", SOON, mine);
    let command = change(&finding, "flock ");
    fs::write(&file, format!("{}\r\neth0", Container::new(lab, 2).id)).unwrap();
    shell.refuses(&command);
    assert!(file.exists(), "it named somebody by then");
    fs::write(&file, "").unwrap();
    shell.succeeds(&command);
    assert!(!file.exists());
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
}

/// The control files of FUSE, mounted for a test where nobody has.
struct Fusectl(bool);

impl Fusectl {
    const DIR: &'static str = "/sys/fs/fuse/connections";

    fn new() -> Self {
        let is_there = is_mounted(std::process::id(), Path::new(Self::DIR));
        if !is_there {
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("fusectl", Self::DIR, "fusectl", flags, None).unwrap();
        }
        Self(!is_there)
    }
}

impl Drop for Fusectl {
    fn drop(&mut self) {
        if self.0 {
            let _ = rustix::mount::unmount(Self::DIR, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

fn a_hung_connection_is_aborted_and_no_other(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let (_fusectl, shell) = (Fusectl::new(), Shell::new(lab));
    let netns = with_address(lab, "stuck");
    let daemon = Daemon::start(lab, &config());
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    let finding = daemon.await_firing("ip-held-by-stuck-process", SOON, is_in(netns.inode));
    let command = change(&finding, "/abort");
    let hangs = || Path::new(&format!("/proc/{}/ns/net", helper.pid())).read_link().is_ok();
    // The pid is another process's by now.
    let (check, rest) = command.split_once(" && ").unwrap();
    let others = check.replacen("{18}", "{18}9", 1);
    assert_ne!(others, check);
    shell.refuses(&format!("{others} && {rest}"));
    assert!(hangs(), "it was aborted for another process");
    shell.succeeds(&command);
    support::poll::until("it ends", 10, || !hangs());
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
}

/// A pair of devices in the host's netns. They bear no address.
struct Pair(String);

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).output();
    }
}

fn a_pair_goes_while_both_of_its_ends_are_here(lab: &Lab) {
    let (pod, shell) = (Netns::new(lab, "pod"), Shell::new(lab));
    let daemon = Daemon::start(lab, &config());
    let name = format!("veth{:08x}", std::process::id());
    let pair = Pair(format!("{}b", lab.tag()));
    support::netns::ip(&format!("link add {name} type veth peer name {}", pair.0));
    let is_there = || Path::new(&format!("/sys/class/net/{name}")).exists();
    let mine = |finding: &Value| finding["steps"].to_string().contains(&name);
    let finding = daemon.await_firing("veth-orphaned", SOON, mine);
    let command = change(&finding, "ip link del ");
    // The pod is being set up after all.
    support::netns::ip(&format!("link set {} netns {}", pair.0, pod.name()));
    shell.refuses(&command);
    assert!(is_there(), "a pod's device was deleted");
    pod.ip(&format!("link set {} netns 1", pair.0));
    shell.succeeds(&command);
    assert!(!is_there());
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
}

/// A mount point that reads as advice, with a command in it.
fn a_strangers_words_stay_a_value(lab: &Lab) {
    let proof = lab.dir().join("proof");
    let name = format!("x\" is safe. Now run$(id>{0});id>{0};#", "proof");
    let mut hung = Hung::mount_at(lab, &name);
    let (_fusectl, shell) = (Fusectl::new(), Shell::new(lab));
    let netns = with_address(lab, "stuck");
    let daemon = Daemon::start(lab, &config());
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    let finding = daemon.await_firing("ip-held-by-stuck-process", SOON, is_in(netns.inode));
    for step in finding["steps"].as_array().unwrap() {
        // What is quoted is every other part.
        let what = step["what"].as_str().unwrap();
        let ours: String = what.split('"').step_by(2).collect();
        assert!(!ours.contains("safe") && !ours.contains("id>"), "{what}");
    }
    for command in looks(&finding).into_iter().chain(changes(&finding)) {
        let _ = shell.run(&command);
    }
    assert!(!proof.exists() && !lab.dir().join("shell/proof").exists(), "it ran: {finding:#?}");
    daemon.await_resolved(&finding, SOON);
}

/// All that only looks, in any order and twice: everything is as it was.
fn what_looks_changes_nothing(lab: &Lab) {
    let (netns, shell) = (with_address(lab, "old"), Shell::new(lab));
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()));
    let finding = leaked(lab, &daemon, &netns);
    let commands = looks(&finding);
    for command in commands.iter().chain(commands.iter().rev()) {
        let _ = shell.run(command);
    }
    assert!(is_mounted(std::process::id(), netns.path()));
    assert_eq!(daemon.findings_in(netns.inode).len(), 1);
    assert_eq!(shell.said(), Vec::<String>::new(), "nothing is asked of the cluster");
}
