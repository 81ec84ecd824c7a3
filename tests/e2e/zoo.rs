//! The zoo: what healthy nodes of every kind do, all at the same time and for as long as required. No finding above
//! `info` may be reported, and no `info` that is not listed here with its reason.
//!
//! The usual run has short graces and takes some tens of seconds; `cargo xtask test --only zoo --cycles 3600 --release` takes
//! an hour with the default graces. For the single animals see [`crate::never`]; for pods in every ordinary way
//! [`crate::healthy`].

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::cgroup::Freezer;
use support::fuse::Hung;
use support::pod::{CNI_CACHE, Containerd, Setup};
use support::poll::until;
use support::role::{Helper, Role};
use support::{Config, Daemon, Lab, Netns, harness, innocent};

use crate::healthy::Stops;
use crate::never;

support::tests! {
    nothing_innocent_is_flagged needs [Containerd, Fuse, FreezerV1, PlainCore] @ Alone,
}

/// Duration of the usual run.
const TIME: Duration = Duration::from_secs(40);
/// The default graces, a poll of the runtime and a second look.
const AFTERWARDS: Duration = Duration::from_secs(38);
const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];
/// Codes that may be reported as `info`, and why.
const CONTEXT: [(&str, &str); 1] = [(
    "ip-held-by-stuck-process",
    "a thousand threads take longer to end than the short grace of the usual run, and get on: told as slow",
)];

/// A duplicate within which an IP moves from one node to another is `info` from 0.3 s on. The animal itself takes up to
/// 0.2 s, and more on a machine that is too busy to run `ip` in time.
const HURTS: Duration = Duration::from_millis(280);
/// Last octet of the IP that moves.
const MOVES: u8 = 100;

/// An animal: what it does repeatedly until it is stopped.
type Animal = fn(&Lab, &Zoo<'_>);

const ANIMALS: [(&str, Animal); 9] = [
    ("people", people),
    ("sessions", sessions),
    ("failover", failover),
    ("devices", devices),
    ("everywhere", everywhere),
    ("twins", twins),
    ("exits", exits),
    ("innocents", innocents),
    ("pods", pods),
];

struct Zoo<'a> {
    stop: &'a AtomicBool,
    containerd: &'a Containerd<'a>,
    hung: &'a Hung,
    /// The longest time for which the IP that moves was on both nodes, in ms.
    overlap: AtomicU64,
}

impl Zoo<'_> {
    /// Sleeps; returns whether to go on.
    fn pause(&self, ms: u64) -> bool {
        std::thread::sleep(Duration::from_millis(ms));
        !self.stop.load(Ordering::Relaxed)
    }

    fn wait(&self) {
        while self.pause(100) {}
    }
}

fn nothing_innocent_is_flagged(lab: &Lab) {
    // The IPs of the other animals are outside.
    let subnet = Some(format!("{}/26", lab.ip(0)));
    let containerd = Containerd::start_as(lab, &Setup { subnet, ..Setup::default() });
    let hung = Hung::mount(lab);
    let seconds = harness::cycles();
    let config = match seconds {
        Some(_) => Config::default().cache_dir(Path::new(CNI_CACHE)),
        None => never::config(),
    };
    let config =
        config.cri(containerd.socket()).networks(&containerd.conf_dirs(), &containerd.bin_dir());
    let daemon = Daemon::start(lab, &config);
    daemon.await_source("containerd");
    let follower = daemon.follow();
    let time = seconds.map_or(TIME, |seconds| Duration::from_secs(seconds as u64));
    let stop = AtomicBool::new(false);
    let overlap = AtomicU64::new(0);
    let zoo = &Zoo { stop: &stop, containerd: &containerd, hung: &hung, overlap };
    let began = Instant::now();
    std::thread::scope(|scope| {
        // The animals end even if the test fails.
        let _stops = Stops(&stop);
        let all = ANIMALS.map(|(name, animal)| {
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn_scoped(scope, move || animal(lab, zoo)).expect("a thread")
        });
        while began.elapsed() < time && !all.iter().any(|one| one.is_finished()) {
            std::thread::sleep(Duration::from_millis(500));
            quiet(lab, zoo, &follower.changes_seen());
        }
        assert!(began.elapsed() >= time, "an animal has ended by itself");
    });
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
        ANIMALS.len(),
    );
    let _guilty = never::guilty(lab);
    until("what is wrong is told", 30, || alarm(lab, &daemon).is_some());
}

/// The first line of the log about a finding above `info`, unless it names an IP of another lab.
fn alarm(lab: &Lab, daemon: &Daemon) -> Option<String> {
    let [a, b, c, _] = lab.ip(0).octets();
    let ours = format!(" ip={a}.{b}.{c}.");
    let log = daemon.log();
    let mut findings = log.lines().filter(|line| line.contains("ipwatch::finding"));
    let is_ours = |line: &str| line.contains(&ours) || !line.contains(" ip=");
    let found = findings.find(|line| !line.contains("severity=\"info\"") && is_ours(line));
    found.map(str::to_owned)
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
        let code = finding["code"].as_str().unwrap_or_default();
        let is_known = CONTEXT.iter().any(|(own, _)| *own == code) || (moves(finding) && is_long());
        finding["severity"] == "info" && is_known
    };
    let here = || changes.iter().filter(|change| !never::is_elsewhere(lab, change));
    let wrong: Vec<_> = here().filter(|change| !is_context(&change["finding"])).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    here().count()
}

/// Netns of people, of VPNs and of CI jobs: some stay, most are temporary.
fn people(lab: &Lab, zoo: &Zoo<'_>) {
    let named = |n: u8, hint: &str| {
        let netns = Netns::new(lab, hint);
        netns.veth_to_host();
        netns.add_address(&lab.cidr(n), "eth0");
        netns
    };
    let _stay = [named(71, "lab"), named(72, "qrouter-1"), Netns::new(lab, "empty")];
    let tunnel = Netns::new(lab, "vpn");
    tunnel.ip("tuntap add dev tun0 mode tun");
    tunnel.ip("link set tun0 up");
    tunnel.add_address(&lab.cidr(73), "tun0");
    // The owner of a pool holds one only by an fd.
    let pooled = named(74, "pool");
    let _keeper = Helper::new(Role::HoldFd).arg(pooled.path().to_str().unwrap()).start();
    pooled.unname();
    while zoo.pause(200) {
        let netns = named(75, "job");
        netns.ip("-4 addr show");
        drop(netns);
    }
}

/// Processes in their own netns: sandboxes of browsers, builds and services.
fn sessions(_: &Lab, zoo: &Zoo<'_>) {
    while zoo.pause(100) {
        let mut all: Vec<_> = ["-n", "-Urn"]
            .map(|flags| {
                let mut command = std::process::Command::new("unshare");
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

/// An IP that moves from one node of a cluster to the other: removed first, or added first, for up to 200 ms.
fn failover(lab: &Lab, zoo: &Zoo<'_>) {
    let lan = Netns::new(lab, "lan");
    lan.ip("link add br0 type bridge");
    lan.ip("link set br0 up");
    let member = |name: &str, n: u8| {
        let netns = Netns::new(lab, name);
        netns.veth_to("eth0", &lan, name);
        lan.ip(&format!("link set {name} master br0"));
        netns.add_address(&lab.cidr(n), "eth0");
        netns
    };
    let nodes = [member("member1", 101), member("member2", 102)];
    let vip = format!("{}/32", lab.ip(MOVES));
    nodes[0].add_address(&vip, "eth0");
    let mut active = 0;
    for n in 0.. {
        let (old, new) = (&nodes[active], &nodes[1 - active]);
        let overlap = [0, 2, 50, 200][n % 4];
        if n % 8 < 4 {
            let began = Instant::now();
            new.add_address(&vip, "eth0");
            std::thread::sleep(Duration::from_millis(overlap));
            old.ip(&format!("addr del {vip} dev eth0"));
            zoo.overlap.fetch_max(began.elapsed().as_millis() as u64, Ordering::Relaxed);
        } else {
            old.ip(&format!("addr del {vip} dev eth0"));
            new.add_address(&vip, "eth0");
        }
        active = 1 - active;
        if !zoo.pause(400) {
            return;
        }
    }
}

/// Addresses and devices that change in a netns that lives on.
fn devices(lab: &Lab, zoo: &Zoo<'_>) {
    let netns = Netns::new(lab, "devices");
    let own = lab.cidr(110);
    let v6 = "fd00:5a00::110/64";
    for n in (0..=u8::MAX).cycle() {
        let host = netns.veth_to_host();
        netns.add_address(&own, "eth0");
        for _ in 0..5 {
            netns.ip(&format!("addr del {own} dev eth0"));
            netns.add_address(&own, "eth0");
        }
        netns.add_address(v6, "eth0");
        netns.ip(&format!("link set eth0 address 02:00:00:00:5a:{n:02x}"));
        netns.ip(&format!("addr del {v6} dev eth0"));
        support::netns::ip(&format!("link del {host}"));
        if !zoo.pause(100) {
            return;
        }
    }
}

/// Addresses that every node or pod has: a DNS cache on a link-local address, an anycast service on loopback, the
/// network of a Docker in a pod.
fn everywhere(lab: &Lab, zoo: &Zoo<'_>) {
    let all: Vec<Netns> = (0..4)
        .map(|n| {
            let netns = Netns::new(lab, &format!("every{n}"));
            netns.veth_to_host();
            netns.add_address(&lab.cidr(120 + n), "eth0");
            netns.add_address("169.254.20.10/32", "lo");
            netns.add_address(&format!("{}/32", lab.ip(125)), "lo");
            netns.ip("link add docker0 type bridge");
            netns.ip("link set docker0 up");
            netns.add_address("172.17.0.1/16", "docker0");
            netns
        })
        .collect();
    zoo.wait();
    assert_eq!(all.len(), 4);
}

/// One IP twice, on two bridges that do not reach each other.
fn twins(lab: &Lab, zoo: &Zoo<'_>) {
    let node = Netns::new(lab, "apart");
    let twin = |n: u8| {
        let (bridge, port) = (format!("br{n}"), format!("p{n}"));
        node.ip(&format!("link add {bridge} type bridge"));
        node.ip(&format!("link set {bridge} up"));
        let netns = Netns::new(lab, &format!("twin{n}"));
        netns.veth_to("eth0", &node, &port);
        node.ip(&format!("link set {port} master {bridge}"));
        netns
    };
    let both = [twin(1), twin(2)];
    while zoo.pause(1_000) {
        both.iter().for_each(|netns| netns.add_address(&lab.cidr(130), "eth0"));
        std::thread::sleep(Duration::from_secs(2));
        both.iter()
            .for_each(|netns| drop(netns.ip(&format!("addr del {} dev eth0", lab.cidr(130)))));
    }
}

/// Processes in the role of a pod that end in every way, also with many threads.
fn exits(lab: &Lab, zoo: &Zoo<'_>) {
    let netns = Netns::new(lab, "exits");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(140), "eth0");
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV].into_iter().cycle() {
        let threads = Helper::new(Role::Threads).arg("1000").inside(&netns).start();
        let stopped = Helper::new(Role::Park).inside(&netns).start();
        stopped.signal(libc::SIGSTOP);
        threads.signal(signal);
        stopped.signal(libc::SIGKILL);
        if !zoo.pause(500) {
            return;
        }
    }
}

/// Processes that look stuck but are not.
fn innocents(lab: &Lab, zoo: &Zoo<'_>) {
    let netns = Netns::new(lab, "innocents");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(150), "eth0");
    let all = [
        innocent::frozen_v1(lab, &netns, true),
        innocent::vfork_parent(&netns),
        innocent::stopped(&netns),
        innocent::dumping_core(&netns, zoo.hung),
        innocent::zombie(&netns),
    ];
    zoo.wait();
    assert_eq!(all.len(), 5);
}

/// Pods start and end; one is frozen and killed, and ends when it is thawed; one ignores SIGTERM.
fn pods(lab: &Lab, zoo: &Zoo<'_>) {
    let containerd = zoo.containerd;
    let deaf = ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    let slow = containerd.run("slow-0", lab.dir(), &deaf);
    let mut client = containerd.begin_termination(&slow, 300);
    let freezer = Freezer::named(lab, false, "zoo-pods");
    for n in 0.. {
        let pod = containerd.run(&format!("web-{n}"), lab.dir(), &SLEEP);
        if n % 3 == 0 {
            freezer.freeze(pod.pid);
            support::sys::kill(pod.pid, libc::SIGKILL).unwrap();
            std::thread::sleep(Duration::from_secs(3));
            freezer.thaw();
            until("it has gone", 10, || !support::proc::is_alive(pod.pid));
        }
        containerd.stop(&pod);
        if !zoo.pause(200) {
            break;
        }
    }
    client.kill().unwrap();
    client.wait().unwrap();
    containerd.stop(&slow);
}
