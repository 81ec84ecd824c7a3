//! The commands of real findings, pasted into a shell as printed. Each does what its sentence says; it does nothing
//! too early, for another object, or when repeated.
//!
//! `kubectl`, `crictl` and `calicoctl` are stand-ins here that record their arguments: see `support::remedy`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use support::cgroup::Freezer;
use support::fake_cri::FakeCri;
use support::fuse::Hung;
use support::network::{self, Container, Network};
use support::remedy::{Shell, change, changes, looks};
use support::role::{Helper, Role};
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, Sandbox};

use crate::cases::unasked::Forged;

support::tests! {
    a_leaked_netns_is_unmounted_and_no_other,
    a_mount_elsewhere_is_unmounted_there_by_our_own_umount needs [UmountN] @ Alone,
    a_leaked_reservation_is_freed_and_no_other needs [Cni],
    an_empty_reservation_is_freed_while_it_is_empty needs [Cni],
    // If several connections hang, none is blamed: no other may exist.
    a_hung_connection_is_aborted_and_no_other needs [Fuse] @ Alone,
    of_two_connections_that_hang_neither_is_aborted needs [Fuse] @ Alone,
    a_pair_goes_while_both_of_its_ends_are_here,
    an_orphans_route_goes_while_the_pod_lacks_the_ip,
    a_strangers_words_stay_a_value needs [Fuse] @ Alone,
    a_frozen_cgroup_is_thawed_while_it_is_frozen needs [FakeCri, FreezerV2],
    a_frozen_cgroup_of_v1_is_thawed_while_it_is_frozen needs [FakeCri, FreezerV1],
    an_empty_cached_result_is_removed_while_it_is_empty,
    a_pods_name_is_no_option needs [FakeCri],
    a_netns_that_a_user_mounts_over_a_pods_is_not_the_pods,
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

/// Waits for the finding about a pod's netns without a process, if no runtime can be asked.
fn leaked(lab: &Lab, daemon: &Daemon, netns: &Netns) -> Value {
    let finding = daemon.await_firing("netns-leaked", SOON, is_in(netns.inode));
    assert_eq!(finding["subject"]["ip"], lab.ip(7).to_string(), "{finding:#?}");
    finding
}

/// A command of a code's runbook, with what stands for its placeholders.
fn of_runbook(daemon: &Daemon, code: &str, with: &str, values: &[(&str, &str)]) -> String {
    let page = String::from_utf8(daemon.ask(&["explain", code]).stdout).unwrap();
    let line = page.lines().find(|line| line.starts_with("    ") && line.contains(with));
    let line = line.unwrap_or_else(|| panic!("no command with {with}: {page}")).trim();
    let at = format!("ipwatch --socket={} query", daemon.socket().display());
    let line = line.replace("ipwatch query", &at);
    values.iter().fold(line, |line, (name, value)| line.replace(name, value))
}

fn a_leaked_netns_is_unmounted_and_no_other(lab: &Lab) {
    let (netns, shell) = (with_address(lab, "old"), Shell::new(lab));
    // Created before the other is destroyed, so that it does not get that inode.
    let next = Netns::new(lab, "next");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()));
    let finding = leaked(lab, &daemon, &netns);
    let command = change(&finding, "&& umount /");
    // The runbook's own commands, which have preconditions too.
    let (id, inode) = (finding["id"].as_str().unwrap(), netns.inode);
    let values = [("ID", id), (" NODE", " node-1")];
    let cordon = of_runbook(&daemon, "netns-leaked", "kubectl cordon", &values);
    let (path, inode) = (netns.path().to_str().unwrap(), inode.to_string());
    let values = [("PATH", path), ("INODE", inode.as_str())];
    let enter = of_runbook(&daemon, "netns-leaked", "nsenter --net", &values);
    shell.succeeds(&cordon);
    assert_eq!(shell.said(), ["kubectl", "cordon", "node-1"]);
    shell.succeeds(&enter);
    // A process is in the netns after all.
    let visitor = Helper::new(Role::Park).inside(&netns).start();
    shell.refuses(&command);
    assert!(is_mounted(std::process::id(), netns.path()), "a living netns was unmounted");
    visitor.end();
    shell.succeeds(&command);
    assert!(!is_mounted(std::process::id(), netns.path()));
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
    shell.refuses(&cordon);
    assert_eq!(shell.said(), Vec::<String>::new(), "it is over");
    // Another netns is mounted at its path.
    let path = netns.path();
    rustix::mount::mount_bind(next.path(), path).unwrap();
    shell.refuses(&command);
    shell.refuses(&enter);
    let kept = is_mounted(std::process::id(), path);
    rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(kept, "another netns was unmounted");
}

/// Installs a program under this name in the container's mount namespace.
fn replace_umount(lab: &Lab, agent: u32) -> std::path::PathBuf {
    let (trap, proof) = (lab.dir().join("umount"), lab.dir().join("trapped"));
    fs::write(&trap, format!("#!/bin/sh\ntouch '{}'\n", proof.display())).unwrap();
    fs::set_permissions(&trap, fs::Permissions::from_mode(0o755)).unwrap();
    let mut nsenter = Command::new("nsenter");
    nsenter.arg(format!("--mount=/proc/{agent}/ns/mnt")).args(["mount", "--bind"]);
    let done = nsenter.arg(&trap).arg(fs::canonicalize("/usr/bin/umount").unwrap()).status();
    assert!(done.unwrap().success());
    proof
}

fn a_mount_elsewhere_is_unmounted_there_by_our_own_umount(lab: &Lab) {
    let (netns, shell) = (with_address(lab, "old"), Shell::new(lab));
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let agent = Helper::new(Role::Agent).comm("agent").start();
    let bystander = Helper::new(Role::Agent).comm("bystander").start();
    let trapped = replace_umount(lab, agent.pid());
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()));
    netns.unmount();
    let finding = leaked(lab, &daemon, &netns);
    let text = finding["steps"].to_string();
    assert!(!text.contains("--mount") && !text.contains("nsenter -m"), "{text}");
    let of = |pid: u32| format!("umount -N {pid} ");
    let command = change(&finding, &of(agent.pid()));
    // The pid now belongs to another process, which has a copy of that mount.
    let others = command.replace(&agent.pid().to_string(), &bystander.pid().to_string());
    shell.refuses(&others);
    assert!(is_mounted(bystander.pid(), netns.path()), "another's mount was taken away");
    shell.succeeds(&command);
    assert!(!is_mounted(agent.pid(), netns.path()));
    shell.refuses(&command);
    shell.succeeds(&change(&finding, &of(bystander.pid())));
    daemon.await_resolved(&finding, SOON);
    assert!(!trapped.exists(), "a program of the container's was run");
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

/// host-local's file for a container that ended in the node's last crash, and for which DEL was never called.
fn a_leaked_reservation_is_freed_and_no_other(lab: &Lab) {
    let (node, shell) = (Netns::new(lab, "node"), Shell::new(lab));
    let network = a_network(lab, &node);
    let (container, pod) = (Container::new(lab, 1), Netns::new(lab, "pod"));
    let ip = network.add(&container, &pod).unwrap();
    pod.unmount();
    let file = network.reservations().join(&ip);
    // Older than the boot, which ended every container.
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().append(true).open(&file).unwrap().set_modified(long_ago).unwrap();
    let daemon = Daemon::start(lab, &of_networks(lab));
    let mine = |finding: &Value| finding["subject"]["ip"] == ip.as_str();
    let finding = daemon.await_firing("ipam-reservation-leaked", SOON, mine);
    shell.looks(&finding);
    let command = change(&finding, "flock ");
    let written = fs::read(&file).unwrap();
    // The file now names another container, or one whose id only has the same prefix.
    for id in [Container::new(lab, 2).id, format!("{}0", container.id)] {
        fs::write(&file, format!("{id}\r\neth0")).unwrap();
        shell.refuses(&command);
        assert!(file.exists(), "the reservation of {id} was freed");
    }
    fs::write(&file, &written).unwrap();
    // The command waits for the store's lock.
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

/// The previous IP.
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
    shell.looks(&finding);
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

/// The control file system of FUSE, mounted for a test if it is not mounted.
pub(crate) struct Fusectl(bool);

impl Fusectl {
    const DIR: &'static str = "/sys/fs/fuse/connections";

    pub(crate) fn new() -> Self {
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
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()));
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    let finding = daemon.await_firing("ip-held-by-stuck-process", SOON, is_in(netns.inode));
    let (command, cordon) = (change(&finding, "/abort"), change(&finding, "kubectl cordon "));
    shell.succeeds(&cordon);
    assert_eq!(shell.said()[..2], ["kubectl", "cordon"]);
    let hangs = || Path::new(&format!("/proc/{}/ns/net", helper.pid())).read_link().is_ok();
    // The pid now belongs to another process.
    let (check, rest) = command.split_once(" && ").unwrap();
    let others = check.replacen("{18}", "{18}9", 1);
    assert_ne!(others, check);
    shell.refuses(&format!("{others} && {rest}"));
    assert!(hangs(), "it was aborted for another process");
    shell.succeeds(&command);
    support::poll::until("it ends", 10, || !hangs());
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
    // The finding is resolved, so no node may be cordoned for it, although something else is wrong with the same IP.
    let other = leaked(lab, &daemon, &netns);
    assert_eq!(other["subject"]["ip"], finding["subject"]["ip"], "{other:#?}");
    shell.refuses(&cordon);
    assert_eq!(shell.said(), Vec::<String>::new());
}

/// A person has to find out which one it is.
fn of_two_connections_that_hang_neither_is_aborted(lab: &Lab) {
    let mut all = ["one", "two"].map(|name| Hung::mount_at(lab, name));
    let (_fusectl, shell) = (Fusectl::new(), Shell::new(lab));
    let netns = ["one", "two"].map(|hint| Netns::new(lab, hint));
    let daemon = Daemon::start(lab, &config());
    let mut stuck = Vec::new();
    for (n, (netns, hung)) in (7..).zip(netns.iter().zip(&mut all)) {
        netns.veth_to_host();
        netns.add_address(&lab.cidr(n), "eth0");
        let mut helper = stuck::start(How::Kill, netns, hung);
        stuck::hang(How::Kill, &mut helper);
        stuck.push(helper);
    }
    let code = "ip-held-by-stuck-process";
    let finding = daemon.await_firing(code, SOON, |finding| {
        is_in(netns[0].inode)(finding) && finding["steps"].to_string().contains("waiting requests")
    });
    assert!(!changes(&finding).iter().any(|command| command.contains("abort")), "{finding:#?}");
    shell.looks(&finding);
    all.iter_mut().for_each(Hung::release);
    daemon.await_resolved(&finding, SOON);
}

/// A veth pair in the host's netns, without addresses.
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
    shell.looks(&finding);
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

/// The node's route to an IP that the pod behind its device does not have.
fn an_orphans_route_goes_while_the_pod_lacks_the_ip(lab: &Lab) {
    let (pod, shell) = (Netns::new(lab, "pod"), Shell::new(lab));
    let name = format!("veth{:08x}", std::process::id());
    let _pair = Pair(name.clone());
    support::netns::ip(&format!("link add {name} type veth peer name eth0 netns {}", pod.name()));
    support::netns::ip(&format!("link set {name} up"));
    pod.ip("link set eth0 up");
    pod.add_address(&lab.cidr(8), "eth0");
    let route = format!("{}/32", lab.ip(7));
    support::netns::ip(&format!("route add {route} dev {name} scope link"));
    let is_there = || !support::netns::ip(&format!("route show {route} dev {name}")).is_empty();
    let daemon = Daemon::start(lab, &config());
    let mine = |finding: &Value| finding["steps"].to_string().contains(&name);
    let finding = daemon.await_firing("veth-orphaned", SOON, mine);
    assert_eq!(finding["subject"]["ip"], lab.ip(7).to_string(), "{finding:#?}");
    shell.looks(&finding);
    let command = change(&finding, "ip route del ");
    // The pod is being set up after all.
    pod.add_address(&lab.cidr(7), "eth0");
    shell.refuses(&command);
    assert!(is_there(), "the route to a pod's IP was deleted");
    pod.ip(&format!("addr del {} dev eth0", lab.cidr(7)));
    shell.succeeds(&command);
    assert!(!is_there());
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
    // A later route of the same kind does not belong to this finding.
    support::netns::ip(&format!("route add {route} dev {name} scope link"));
    pod.add_address(&lab.cidr(7), "eth0");
    shell.refuses(&command);
    assert!(is_there(), "the route of a later pod was deleted");
}

/// A mount point that reads like advice and contains a command.
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
        // Every second part is quoted.
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

fn a_frozen_cgroup_is_thawed_while_it_is_frozen(lab: &Lab) {
    thaws(lab, true);
}

fn a_frozen_cgroup_of_v1_is_thawed_while_it_is_frozen(lab: &Lab) {
    thaws(lab, false);
}

/// Users who may create cgroups choose their names: this one is a command.
fn thaws(lab: &Lab, v2: bool) {
    let group = Freezer::named(lab, v2, "x;id>proof;$(id>proof);#");
    let (netns, shell) = (with_address(lab, "frozen"), Shell::new(lab));
    let (runtime, pod) = (FakeCri::start(lab), Sandbox::make(lab, &netns, &lab.cidr(7), ""));
    runtime.has_pod(&pod, "READY");
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()).cri(runtime.socket()));
    daemon.await_source("containerd");
    let helper = Helper::new(Role::Park).inside(&netns).within(&pod).start();
    let known = |address: Value| address["pod"]["state"] == "Ready";
    support::poll::until("the pod is known as Ready", 30, || {
        daemon.ip_in(lab.ip(7), netns.inode).is_some_and(known)
    });
    group.freeze(helper.pid());
    if !v2 {
        // A process frozen by v1 cannot be killed.
        helper.signal(libc::SIGKILL);
    }
    runtime.has_pod(&pod, "NOTREADY");
    let file = if v2 { "cgroup.freeze" } else { "freezer.state" };
    let finding = daemon.await_firing("ip-held-by-dead-sandbox", SOON, |finding| {
        let named = || changes(finding).iter().any(|command| command.contains(file));
        is_in(netns.inode)(finding) && named()
    });
    let command = change(&finding, file);
    shell.refuses(&command.replacen("{18}", "{18}9", 1));
    assert!(group.is_frozen(), "it was thawed for another process");
    shell.looks(&finding);
    shell.succeeds(&command);
    support::poll::until("it is thawed", 10, || !group.is_frozen());
    shell.refuses(&command);
    for command in changes(&finding) {
        let _ = shell.run(&command);
    }
    assert!(!lab.dir().join("shell/proof").exists(), "it ran: {finding:#?}");
    helper.end();
    daemon.await_resolved(&finding, SOON);
}

fn an_empty_cached_result_is_removed_while_it_is_empty(lab: &Lab) {
    let (cache, shell) = (lab.subdir("cache"), Shell::new(lab));
    let daemon = Daemon::start(lab, &config().cache_dir(&cache));
    let file = cache.join("net-0123456789-eth0");
    fs::write(&file, "").unwrap();
    let path = file.to_str().unwrap();
    let mine = |finding: &Value| finding["steps"].to_string().contains(path);
    let finding = daemon.await_firing("ipam-store-unreadable", SOON, mine);
    shell.looks(&finding);
    let command = change(&finding, "rm ");
    fs::write(&file, "{}").unwrap();
    shell.refuses(&command);
    assert!(file.exists(), "it had something to say by then");
    fs::write(&file, "").unwrap();
    shell.succeeds(&command);
    assert!(!file.exists());
    daemon.await_resolved(&finding, SOON);
    shell.refuses(&command);
}

/// A runtime may have any pod name; a command must not contain a name that is an option.
fn a_pods_name_is_no_option(lab: &Lab) {
    let (node, runtime) = (Netns::new(lab, "node"), FakeCri::start(lab));
    let config = config().cache_dir(&lab.subdir("cni")).cri(runtime.socket());
    let daemon = Daemon::start(lab, &config);
    daemon.await_source("containerd");
    node.ip("link add bri0 type bridge");
    node.ip("link set bri0 up");
    let mut pods: Vec<(Netns, Sandbox)> = Vec::new();
    for (n, name) in ["web-0", "--all"].into_iter().enumerate() {
        let netns = Netns::new(lab, &format!("pod{n}"));
        node.veth_to(&format!("port{n}"), &netns, "eth0");
        node.ip(&format!("link set port{n} master bri0"));
        let uid = format!("{n:08x}-0000-4000-8000-00000000000{n}");
        let paper = Sandbox::make_as(lab, &netns, &lab.cidr(5), "", (name, &uid));
        pods.push((netns, paper));
        let lines = pods.iter().map(|(_, pod)| FakeCri::lines(pod, "READY"));
        runtime.has(&lines.collect::<String>());
        // An address whose addition is seen, so that the newer of the two is known.
        let (netns, _) = &pods[n];
        netns.add_address(&lab.cidr(6), "eth0");
        daemon.await_ip(lab.ip(6), netns.inode);
        netns.ip(&format!("addr del {} dev eth0", lab.cidr(6)));
        netns.add_address(&lab.cidr(5), "eth0");
        daemon.await_ip(lab.ip(5), netns.inode);
    }
    let ip = lab.ip(5).to_string();
    let finding =
        daemon.await_firing("ip-duplicate", SOON, |finding| finding["subject"]["ip"] == ip);
    std::thread::sleep(Duration::from_secs(6));
    // The runtime has been asked about the owner by now.
    let finding = daemon.await_firing("ip-duplicate", SOON, |one| one["id"] == finding["id"]);
    for finding in daemon.findings().iter().chain([&finding]) {
        let words = finding["steps"].as_array().into_iter().flatten();
        let words = words.flat_map(|step| step["runs"].as_array().into_iter().flatten());
        // Our own program has this option.
        let words = words.filter(|run| run["argv"][0] != "ipwatch");
        let mut words = words.flat_map(|run| run["argv"].as_array().into_iter().flatten());
        assert!(words.all(|word| word != "--all"), "{finding:#?}");
    }
    let shell = Shell::new(lab);
    shell.looks(&finding);
    // It is a container of an unknown pod, and is ended while both exist.
    let command = change(&finding, "crictl stopp ");
    shell.succeeds(&command);
    assert_eq!(shell.said()[..2], ["crictl", "stopp"]);
    let document = daemon.document(&["doctor"]).expect("doctor answers");
    let refused = document["refused"].as_array().cloned().unwrap_or_default();
    assert!(refused.iter().any(|entry| entry["name"] == "pod-name"), "{refused:#?}");
    pods[0].0.unmount();
    shell.refuses(&command);
    assert_eq!(shell.said(), Vec::<String>::new(), "one of the two is gone");
}

/// In its own mount namespace any user may mount a netns at a pod's path.
fn a_netns_that_a_user_mounts_over_a_pods_is_not_the_pods(lab: &Lab) {
    let netns = with_address(lab, "pod");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()));
    let owned = |address: &Value| address["pod"]["name"] == pod.name.as_str();
    support::poll::until("the pod's own netns is known", 10, || {
        daemon.ip_in(lab.ip(7), netns.inode).is_some_and(|address| owned(&address))
    });
    let path = netns.path().display();
    let script = format!(
        "mount -t tmpfs none /run/netns && touch '{path}' && unshare --net sh -c 'mount --bind /proc/self/ns/net {path} && \
         ip link add d0 type bridge && ip addr add {} dev d0' && echo ready && exec sleep 1000",
        lab.cidr(9)
    );
    let mut forged = Command::new("/usr/bin/unshare");
    forged.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    forged.uid(65534).gid(65534).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut forged = Forged(forged.spawn().expect("start unshare"));
    let mut said = String::new();
    BufReader::new(forged.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "ready\n", "a user may have namespaces here");
    // Only that mount holds it, so that its mounts are searched for.
    let mounted = format!("/proc/{}/root{path}", forged.0.id());
    let inode = fs::metadata(mounted).unwrap().ino();
    daemon.await_ip(lab.ip(9), inode);
    // Meanwhile every netns is looked at again, with its mounts.
    let until = std::time::Instant::now() + Duration::from_secs(12);
    while std::time::Instant::now() < until {
        let address = daemon.ip_in(lab.ip(9), inode).expect("it is still there");
        assert!(address["pod"].is_null(), "{address:#?}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Runs everything that only looks, in any order and twice: nothing changes.
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
