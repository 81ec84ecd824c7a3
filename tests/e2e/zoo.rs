//! The zoo: what healthy nodes of every kind do, all at the same time and for as long as required. No finding above
//! `info` may be reported, and no `info` that is not listed in [`CONTEXT`] with its reason.
//!
//! The usual run has a short grace for stuck processes and for what no runtime knows, and takes about a minute;
//! `cargo xtask test --only zoo --cycles 3600 --release` takes an hour, with the default graces. Each family of
//! animals has a file. For single animals see [`crate::never`]; for pods in every ordinary way [`crate::healthy`].
//!
//! What is not here, and why:
//! - `PrivateNetwork=`: systemd does not boot this machine. [`netns`] does the same to a netns and to its fd.
//! - A core dump through a slow pipe: `core_pattern` is the host's. [`exits`] dumps into a file system that is slow.
//! - ip_vs, VRF, VLAN, bond, ipvlan and dummy devices where the kernel has none: [`stock`] runs in VMs as well.
//! - LXC and nspawn: Debian's LXC starts no container beside both kinds of cgroups, and nspawn needs a newer systemd.
//! - snap, flatpak, MetalLB, teaming, nerdctl, gVisor, dockerd with live-restore: not tried.

mod addresses;
mod docker;
mod exits;
mod ipam;
mod lan;
mod netns;
mod podman;
pub(crate) mod stock;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::docker::Dockerd;
use support::fuse::Hung;
use support::network;
use support::pod::{CNI_CACHE, Containerd, Setup};
use support::podman::Podman;
use support::poll::until;
use support::{Config, Daemon, Lab, Netns, harness};

use crate::healthy::Stops;
use crate::never;

support::tests! {
    nothing_innocent_is_flagged needs [
        Containerd, Dockerd, Podman, Keepalived, Bubblewrap, Gdb, Macvlan, Vxlan, Fuse, FreezerV1, PlainCore
    ] @ Alone,
}

/// Duration of the usual run.
const TIME: Duration = Duration::from_secs(45);
/// The default graces, a poll of the runtime and a second look.
const AFTERWARDS: Duration = Duration::from_secs(38);
const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];

/// What may be reported as `info`.
struct Context {
    code: &'static str,
    is: fn(&Lab, &Value) -> bool,
    /// For a person who reads this: nothing compares it.
    _why: &'static str,
}

const CONTEXT: [Context; 8] = [
    Context {
        code: "ip-held-by-stuck-process",
        is: |_, _| true,
        _why: "a thousand threads, or two hundred with the smallest share of the CPU, take longer to end than the grace, \
               and get on: told as slow",
    },
    Context {
        code: "netns-leaked",
        is: |_, finding| finding["subject"]["ip"].is_null(),
        _why: "an agent with all mounts keeps the netns of removed Docker containers until dockerd removes their files: \
               no IP is up in it, and it ends by itself",
    },
    Context {
        code: "ipam-reservation-leaked",
        is: |_, finding| says(finding, ipam::OLD) || says(finding, ipam::BACKUP),
        _why: "a network that no configuration names any more: nobody hands out its IPs, and its files can be removed",
    },
    Context {
        code: "ipam-store-unreadable",
        is: |_, finding| says(finding, ipam::BACKUP),
        _why: "a file that is not whole, in a copy of a network's directory: nobody hands out its IPs either",
    },
    Context {
        code: "neighbour-conflict",
        is: |lab, finding| finding["subject"]["ip"] == lab.ip(lan::TWO_NICS).to_string(),
        _why: "a machine elsewhere that answers with two MACs at once looks like two machines: the LAN's concern",
    },
    Context {
        code: "neighbour-conflict",
        is: |lab, finding| {
            lan::NEAR.iter().any(|n| finding["subject"]["ip"] == lab.ip(*n).to_string())
        },
        _why: "so does a netns with two NICs, if they answer before ipwatch has read its devices",
    },
    Context {
        code: "ip-duplicate",
        is: |lab, finding| {
            let vips = addresses::VIPS.map(|n| lab.ip(n).to_string());
            vips.iter().any(|vip| finding["subject"]["ip"] == **vip)
        },
        _why: "keepalived, on a machine that is too busy to run it, takes an IP away later than 0.3 s after the other \
               router has it",
    },
    Context {
        code: "ip-duplicate",
        is: |lab, finding| finding["subject"]["ip"] == lab.ip(MOVES).to_string(),
        _why: "the IP that moves, if the machine was too busy for the animal: see [`quiet`]",
    },
];

/// A duplicate within which an IP moves from one node to another is `info` from 0.3 s on. The animal itself takes up to
/// 0.2 s, and more on a machine that is too busy to run `ip` in time.
const HURTS: Duration = Duration::from_millis(280);
/// Last octet of the IP that moves.
const MOVES: u8 = 100;
/// IPs outside of the lab that its netns have as every node or pod has them.
const EVERYWHERE: [&str; 4] = ["169.254.20.10", "172.17.0.1", "169.254.1.1", "10.0.2.100"];

/// An animal: what it does repeatedly until it is stopped.
type Animal = fn(&Lab, &Zoo<'_>);

const ANIMALS: [(&str, Animal); 30] = [
    ("people", netns::people),
    ("sessions", netns::sessions),
    ("commands", netns::commands),
    ("sandboxes", netns::sandboxes),
    ("services", netns::services),
    ("ci", netns::ci),
    ("clusters", netns::clusters),
    ("failover", addresses::failover),
    ("devices", addresses::devices),
    ("everywhere", addresses::everywhere),
    ("twins", addresses::twins),
    ("sticky", addresses::sticky),
    ("macvlan", addresses::macvlan),
    ("ipv6", addresses::ipv6),
    ("keepalived", addresses::keepalived),
    ("vmac", addresses::vmac),
    ("proxy-arp", lan::proxy_arp),
    ("two-nics", lan::two_nics),
    ("first-hop", lan::first_hop),
    ("exits", exits::exits),
    ("innocents", exits::innocents),
    ("gdb", exits::gdb),
    ("cores", exits::cores),
    ("starved", exits::starved),
    ("pods", exits::pods),
    ("ipam", ipam::files),
    ("ipam-pools", ipam::pools),
    ("docker", docker::docker),
    ("podman", podman::podman),
    ("rootless", podman::rootless),
];

struct Zoo<'a> {
    stop: &'a AtomicBool,
    containerd: &'a Containerd<'a>,
    /// dockerd, and the netns that is its host.
    docker: Mutex<(Dockerd<'a>, Netns)>,
    /// podman with each of its backends.
    podman: Mutex<[Podman; 2]>,
    ipam: ipam::Stores,
    hung: &'a Hung,
    /// Indices of the devices that were on the host before: another test may have left some.
    before: BTreeSet<u64>,
    /// The longest time for which the IP that moves was on both nodes, in ms.
    overlap: AtomicU64,
    /// How often each animal came to a pause.
    pauses: Mutex<BTreeMap<String, usize>>,
}

impl Zoo<'_> {
    /// Sleeps; returns whether to go on.
    fn pause(&self, ms: u64) -> bool {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        *self.pauses.lock().unwrap().entry(name).or_default() += 1;
        let until = Instant::now() + Duration::from_millis(ms);
        while !self.stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
        false
    }

    fn wait(&self) {
        while self.pause(1_000) {}
    }
}

/// An IP of the lab's second network, which the engines' networks share: its first is too small for all.
fn far_ip(lab: &Lab, n: u8) -> Ipv4Addr {
    let [_, x, y, _] = lab.ip(0).octets();
    Ipv4Addr::new(172, 16 + x % 16, y, n)
}

/// The prefix of the lab's IPv6 addresses.
fn v6(lab: &Lab) -> String {
    let [_, x, y, _] = lab.ip(0).octets();
    format!("fd00:5a{x:02x}:{y:x}1:")
}

fn nothing_innocent_is_flagged(lab: &Lab) {
    let before = devices();
    // The IPs of the other animals are outside.
    let subnet = Some(format!("{}/26", lab.ip(0)));
    let containerd = Containerd::start_as(lab, &Setup { subnet, ..Setup::default() });
    // A pod that lives throughout shows which network configurations the runtime reads.
    let steady = containerd.run("steady-0", lab.dir(), &SLEEP);
    let hung = Hung::mount(lab);
    let docker = docker::start(lab);
    let podman = podman::start(lab);
    let ipam = ipam::Stores::make(lab);
    let seconds = harness::cycles();
    let config = config(lab, seconds.is_some(), &containerd)
        .docker(&docker.0.socket())
        .more_cache(ipam.results())
        .networks(&[podman[1].files.networks()], &network::bin_dir(lab))
        .data_dir(&podman[1].cni().join("networks"))
        .more_cache(&podman[1].cni().join("results"))
        .store("docker_data_root", &docker.0.data_root())
        .store("netavark_db", &podman[0].files.db())
        .store("netavark_networks", &podman[0].files.networks());
    let daemon = Daemon::start(lab, &config);
    daemon.await_source("containerd");
    daemon.await_source("docker");
    until("the daemon knows a pod by its runtime", 30, || {
        daemon.ip_in(&steady.ip, steady.netns).is_some_and(|known| known["pod"]["state"] == "Ready")
    });
    let follower = daemon.follow();
    let time = seconds.map_or(TIME, |seconds| Duration::from_secs(seconds as u64));
    let stop = AtomicBool::new(false);
    let zoo = &Zoo {
        stop: &stop,
        containerd: &containerd,
        docker: Mutex::new(docker),
        podman: Mutex::new(podman),
        ipam,
        hung: &hung,
        before,
        overlap: AtomicU64::new(0),
        pauses: Mutex::default(),
    };
    // A short run tells at its end all that is wrong.
    let look = || {
        if seconds.is_some() {
            quiet(lab, zoo, &follower.changes_seen());
        }
    };
    let_them_run(lab, zoo, time, &look);
    match seconds {
        Some(_) => std::thread::sleep(AFTERWARDS),
        None => never::wait(),
    }
    let told = quiet(lab, zoo, &follower.changes_seen());
    // A follower may be too slow, so the log is checked too.
    assert_eq!(alarm(lab, &daemon), None);
    println!(
        "{}the zoo, findings above info  0 in {} s of {} animals; {told} of info  goal 0",
        harness::FIGURE,
        time.as_secs(),
        ANIMALS.len() + stock::here().count(),
    );
    a_guilty_one_is_told(lab, &containerd, &daemon);
    containerd.stop(&steady);
}

/// With the default graces, or in a short run with less of some of them.
fn config(lab: &Lab, long: bool, containerd: &Containerd<'_>) -> Config {
    let config = Config::default().cache_dir(Path::new(CNI_CACHE));
    let config = if long { config } else { config.grace(1).leak_age(10) };
    config
        .ignore_runtimes(&others(lab))
        .cri(containerd.socket())
        .networks(&containerd.conf_dirs(), &containerd.bin_dir())
        .networks(&[network::conf_dir(lab)], &network::bin_dir(lab))
        .data_dir(&lab.subdir("ipam"))
}

/// Lets all animals do what they do for this time, and calls `look` twice a second.
fn let_them_run(lab: &Lab, zoo: &Zoo<'_>, time: Duration, look: &dyn Fn()) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        // The animals end even if the test fails.
        let _stops = Stops(zoo.stop);
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let all = ANIMALS.iter().map(|(name, animal)| {
            named(name).spawn_scoped(scope, move || animal(lab, zoo)).expect("a thread")
        });
        let stock = stock::here().map(|(name, animal)| {
            let run = move || animal(lab, &|ms| zoo.pause(ms));
            named(name).spawn_scoped(scope, run).expect("a thread")
        });
        let all: Vec<_> = all.chain(stock).collect();
        while began.elapsed() < time && !all.iter().any(|one| one.is_finished()) {
            std::thread::sleep(Duration::from_millis(500));
            look();
        }
        assert!(began.elapsed() >= time, "an animal has ended by itself");
    });
    let pauses = zoo.pauses.lock().unwrap();
    println!("pauses: {pauses:?}");
    let idle = ANIMALS.iter().find(|(name, _)| !pauses.contains_key(*name));
    assert!(idle.is_none(), "{idle:?} did not come to a pause");
}

/// The directories of tests that others run on this machine, whose runtimes do not belong to this node. podman's monitors
/// in the lab do.
fn others(lab: &Lab) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(std::env::temp_dir()).expect("the directory of all tests");
    let paths = entries.flatten().map(|entry| entry.path());
    let is_test = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("iw")) && path != lab.dir()
    };
    paths.filter(is_test).chain([PathBuf::from("/run")]).collect()
}

/// A pod whose runtime vouches for it: that its cgroup is read in time does not matter.
fn a_guilty_one_is_told(lab: &Lab, containerd: &Containerd<'_>, daemon: &Daemon) {
    let mut hung = Hung::mount_at(lab, "guilty");
    let pod = containerd.run("guilty-0", hung.dir(), &["/bin/cat", "/host/hang"]);
    until("the daemon knows the pod by its runtime", 30, || {
        daemon.ip_in(&pod.ip, pod.netns).is_some_and(|known| known["pod"]["state"] == "Ready")
    });
    pod.hang(&mut hung);
    until("what is wrong is told", 90, || alarm(lab, daemon).is_some());
}

/// The first line of the log about a finding above `info`, unless it names an IP of another lab.
fn alarm(lab: &Lab, daemon: &Daemon) -> Option<String> {
    let log = daemon.log();
    let mut findings = log.lines().filter(|line| line.contains("ipwatch::finding"));
    let is_ours = |line: &str| {
        let ip = line.split_once(" ip=").map(|(_, rest)| rest.split(' ').next().unwrap_or(rest));
        ip.is_none_or(|ip| is_of_the_zoo(lab, ip.trim_matches('"')))
    };
    let found = findings.find(|line| !line.contains("severity=\"info\"") && is_ours(line));
    found.map(str::to_owned)
}

/// Whether an IP is one that an animal has.
fn is_of_the_zoo(lab: &Lab, ip: &str) -> bool {
    let network = |ip: Ipv4Addr| {
        let [a, b, c, _] = ip.octets();
        format!("{a}.{b}.{c}.")
    };
    ip.starts_with(&network(lab.ip(0)))
        || ip.starts_with(&network(far_ip(lab, 0)))
        || ip.starts_with(&v6(lab))
        || EVERYWHERE.contains(&ip)
}

/// The indices of the host's devices.
fn devices() -> BTreeSet<u64> {
    let all = std::fs::read_dir("/sys/class/net").expect("the host's devices").flatten();
    let index =
        |path: PathBuf| std::fs::read_to_string(path.join("ifindex")).ok()?.trim().parse().ok();
    all.filter_map(|device| index(device.path())).collect()
}

/// Checks that nothing above `info` was reported, and no unexpected `info`. Returns how much was.
#[track_caller]
fn quiet(lab: &Lab, zoo: &Zoo<'_>, changes: &[Value]) -> usize {
    let moves = |finding: &Value| {
        finding["code"] == "ip-duplicate" && finding["subject"]["ip"] == lab.ip(MOVES).to_string()
    };
    let is_long = || zoo.overlap.load(Ordering::Relaxed) >= HURTS.as_millis() as u64;
    if changes.iter().any(|change| moves(&change["finding"])) && !is_long() {
        // The animal knows at the end of an overlap how long it was.
        std::thread::sleep(Duration::from_secs(2));
    }
    let is_context = |finding: &Value| {
        let is = |one: &Context| finding["code"] == one.code && (one.is)(lab, finding);
        let is_known = CONTEXT.iter().any(is) && (!moves(finding) || is_long());
        finding["severity"] == "info" && is_known
    };
    let is_here = |change: &&Value| {
        let ip = change["finding"]["subject"]["ip"].as_str();
        let device = change["finding"]["subject"]["interface"]["index"].as_u64();
        let is_older = device.is_some_and(|index| zoo.before.contains(&index));
        !is_older
            && (!never::is_elsewhere(lab, change) || ip.is_some_and(|ip| is_of_the_zoo(lab, ip)))
    };
    let here = || changes.iter().filter(is_here);
    let wrong: Vec<_> = here().filter(|change| !is_context(&change["finding"])).collect();
    let in_short = wrong.iter().map(|change| {
        let finding = &change["finding"];
        format!("{} {} {}", finding["code"], finding["severity"], finding["subject"])
    });
    assert!(wrong.is_empty(), "{:?}: {wrong:#?}", in_short.collect::<Vec<_>>());
    here().count()
}

/// Whether a finding's subject, impact or evidence contains a text.
fn says(finding: &Value, text: &str) -> bool {
    ["subject", "impact", "evidence"].iter().any(|part| finding[part].to_string().contains(text))
}
