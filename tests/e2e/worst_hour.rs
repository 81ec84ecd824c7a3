//! An unprivileged user does what the kernel permits to everybody, as much of it as possible, in network namespaces
//! of their own user namespace. The daemon survives, and keeps reporting findings about others.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::{self, Pid, Signal};
use support::cgroup::Memory;
use support::fuse::Hung;
use support::harness::{self, FIGURE};
use support::poll::until;
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Need, Netns, daemon, eventually, patience, proc, prometheus};

support::tests! {
    netns_that_are_full_take_no_memory @ Alone,
    more_netns_than_are_kept_take_no_place_of_a_pod @ Alone Long,
    under_a_flood_a_stuck_pod_is_found_as_soon needs [Fuse] @ Alone,
    with_little_memory_left_it_keeps_less needs [Fuse, CountedMemory] @ Alone,
    whose_mounts_have_it_killed_is_left_out needs [Fuse, CountedMemory] @ Alone,
    a_flood_of_addresses_concerns_its_netns_alone @ Alone Kernel Stock,
}

/// Number of the user's netns, and of the entries in each: as many neighbours and routes as ipwatch keeps of one.
const NETNS: usize = 24;
const NEIGHBOURS: u32 = 4_096;
const ROUTES: u32 = 8_192;
/// Maximum cost in KiB, with what the allocator keeps: 12 MiB of it are the entries.
const MEMORY: u64 = 40 * 1024;
/// What the daemon may have in all, in bytes, as its cgroup counts: two thirds of `MemoryHigh` of the unit, above which it
/// would be slowed down.
const CEILING: u64 = 64 << 20;

/// An unprivileged user.
const NOBODY: u32 = 65_534;

/// A process in its own user namespace and netns, killed with all that it has started when dropped.
pub(crate) struct Stranger {
    child: Child,
    done: PathBuf,
}

impl Stranger {
    /// Starts a process that runs `script` as root of its own namespaces, and stays.
    pub(crate) fn start(dir: &Path, name: &str, script: &str) -> Self {
        let done = dir.join(format!("{name}.done"));
        let script = format!("{script} && touch {}; exec sleep 600", done.display());
        let mut command = Command::new("unshare");
        // By its path: busybox's `unshare`, which a VM has, takes a bare name for one of its own programs, whose `ip` knows no
        // `-batch`.
        command
            .args(["-Urn", "/bin/sh", "-c", &script])
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir("/")
            .process_group(0);
        let child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("run unshare");
        Self { child, done }
    }

    /// Whether it goes on, as a flood does until it is dropped.
    fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }

    fn is_done(&self) -> bool {
        self.done.exists()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // Loops that it has started would go on, and take the CPUs from what is measured next.
        let _ = process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A world-writable directory like `/tmp`, because the lab's is not accessible to others. Removed when dropped.
pub(crate) struct OpenDir(pub(crate) PathBuf);

impl OpenDir {
    pub(crate) fn new(lab: &Lab) -> Self {
        let dir = Self(std::env::temp_dir().join(format!("{}-open", lab.tag())));
        fs::create_dir_all(&dir.0).expect("make a directory");
        fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o777)).expect("open it");
        dir
    }
}

impl Drop for OpenDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes lines for `ip -batch`.
fn batch(dir: &Path, name: &str, lines: impl Iterator<Item = String>) -> PathBuf {
    let path = dir.join(name);
    let text = lines.fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    });
    fs::write(&path, text).expect("write a batch");
    path
}

/// A daemon that is ready, and where its memory is counted if it can be.
pub(crate) fn counted(lab: &Lab, config: &Config) -> (Daemon, Option<Memory>) {
    let memory = Memory::counted(lab);
    let state = lab.subdir("state");
    let mut daemon = match &memory {
        None => Daemon::spawn(lab, config, &state),
        Some(memory) => Daemon::spawn_by(memory.command(&daemon::binary()), lab, config, &state),
    };
    daemon.await_ready();
    (daemon, memory)
}

/// The attack of security.md 2: 100 such netns killed the daemon within 13 s, with a limit of 192 MiB.
fn netns_that_are_full_take_no_memory(lab: &Lab) {
    let open = OpenDir::new(lab);
    let dir = open.0.as_path();
    let ip = |base: u32, n: u32| Ipv4Addr::from_bits(base + n);
    let neighbours = (0..NEIGHBOURS).map(|n| {
        let mac = format!("02:00:00:00:{:02x}:{:02x}", n >> 8, n & 0xff);
        format!("neigh add {} lladdr {mac} dev d0 nud permanent", ip(0x0a00_0001, n))
    });
    let neighbours = batch(dir, "neighbours", neighbours);
    let routes = (0..ROUTES).map(|n| format!("route add {}/32 dev d0", ip(0x0b00_0000, n)));
    let routes = batch(dir, "routes", routes);
    let script = format!(
        "ip link add d0 type veth peer name d1 && ip link set d0 up && ip link set d1 up && \
         ip -batch {} && ip -batch {}",
        neighbours.display(),
        routes.display()
    );

    let (daemon, memory) = counted(lab, &Config::default());
    let counted = || memory.as_ref().map_or(0, Memory::now);
    // A new netns with an address, and how long it takes until that is known.
    let known = |name: &str, number: u8| {
        let pod = Netns::new(lab, name);
        pod.veth_to_host();
        pod.add_address(&lab.cidr(number), "eth0");
        let added = Instant::now();
        daemon.await_ip(lab.ip(number), pod.inode);
        (added.elapsed(), pod)
    };
    let (quiet, pod) = known("pod", 9);
    let (at_rest, mut in_all) = (counted(), 0);
    let before = proc::rss_kib(daemon.pid());
    let strangers: Vec<Stranger> =
        (0..NETNS).map(|n| Stranger::start(dir, &format!("n{n}"), &script)).collect();
    let began = Instant::now();
    let mut most = before;
    while !strangers.iter().all(Stranger::is_done) {
        most = most.max(proc::rss_kib(daemon.pid()));
        in_all = in_all.max(counted());
        assert!(
            began.elapsed() < Duration::from_secs(90) * patience(),
            "the attack takes its time"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    // A new netns of somebody else is still found, and as soon.
    let (found, _late) = known("late", 10);
    until("what is left out is said", 60, || {
        let map = daemon.source("map");
        map.is_some_and(|map| map["detail"].to_string().contains(" more than is kept"))
    });
    until("and whose it is", 60, || {
        let map = daemon.source("map");
        map.is_some_and(|map| map["detail"].to_string().contains(&format!("; uid {NOBODY}: ")))
    });
    most = most.max(proc::rss_kib(daemon.pid()));
    println!(
        "{FIGURE}{NETNS} netns with {NEIGHBOURS} neighbours and {ROUTES} routes: {} MiB more; a new address is known after \
         {found:.1?}, {quiet:.1?} before",
        (most - before) / 1024
    );
    assert!(most - before < MEMORY, "{before} KiB before, {most} KiB at most");
    let soon = (2 * quiet).max(Duration::from_secs(2) * patience());
    assert!(found <= soon, "{found:.1?}, {quiet:.1?} where nobody fills anything");
    let mib = |bytes: u64| bytes >> 20;
    println!(
        "{FIGURE}as its cgroup counts, without pages of files: {} MiB before, {} MiB at most",
        mib(at_rest),
        mib(in_all)
    );
    assert!(in_all < CEILING, "{in_all} bytes");
    // What it knew of others it still knows.
    daemon.await_ip(lab.ip(9), pod.inode);
}

/// Netns of one user: more than are kept of all.
const CROWD: usize = 6_000;

/// The number of netns is bounded: those of a pod that comes later are found all the same, and what is left out is told, by
/// whose it is. When the user's have gone, nothing is left out any more. What the kernel keeps for files of all the processes
/// counts as the daemon's memory and can be taken back: so the ceiling is a limit here, at which the daemon would be killed.
fn more_netns_than_are_kept_take_no_place_of_a_pod(lab: &Lab) {
    let open = OpenDir::new(lab);
    let socket = lab.dir().join("metrics.sock");
    let config = format!("[metrics]\nlisten = \"unix:{}\"", socket.display());
    let (daemon, memory) = counted(lab, &Config::default().line(&config));
    let left_out = || {
        let page = prometheus::get_unix(&socket, "/metrics");
        let all = page.samples("ipwatch_not_kept");
        let of = all.iter().find(|one| one.contains("\"netns\"") && one.contains("\"users\""));
        of.and_then(|one| one.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or_default()
    };
    assert_eq!(left_out(), 0.0);
    if let Some(memory) = &memory {
        memory.limit(CEILING);
    }
    let script = format!("for n in $(seq {CROWD}); do unshare -n sleep 600 & done");
    let user = Stranger::start(&open.0, "crowd", &script);
    until("there are more than are kept", 300, || left_out() > 500.0);
    let pod = Netns::new(lab, "late");
    pod.veth_to_host();
    pod.add_address(&lab.cidr(9), "eth0");
    let added = Instant::now();
    daemon.await_ip(lab.ip(9), pod.inode);
    let took = added.elapsed();
    println!(
        "{FIGURE}{} of {CROWD} netns are left out; a pod's is known after {took:.1?}",
        left_out()
    );
    if let Some(has) = memory.as_ref().map(Memory::now) {
        println!("{FIGURE}with them: {} MiB, as the daemon's cgroup counts", has >> 20);
    }
    let map = daemon.source("map").expect("a source");
    let said = map["detail"].to_string();
    assert!(said.contains(&format!("uid {NOBODY}: ")) && said.contains("not kept"), "{said}");
    drop(user);
    until("nothing is left out any more", 300, || left_out() == 0.0);
    daemon.await_ip(lab.ip(9), pod.inode);
    if let Some(has) = memory.as_ref().map(Memory::now) {
        println!("{FIGURE}afterwards: {} MiB", has >> 20);
    }
}

/// Shell commands that the user repeats as fast as possible, until killed.
pub(crate) struct Flood {
    name: &'static str,
    script: &'static str,
}

impl Flood {
    /// Starts it in a netns of its own.
    pub(crate) fn start(&self, open: &OpenDir, number: usize) -> Stranger {
        let zero = open.0.join(format!("{}-{number}", self.name.replace(' ', "-")));
        Stranger::start(&open.0, "flood", &self.script.replace("$0", &zero.to_string_lossy()))
    }
}

/// Each runs on as many CPUs as the machine has for this user: they are shared with the daemon.
pub(crate) const FLOODS: [Flood; 9] = [
    Flood {
        name: "addresses",
        script: "ip link add d0 type veth peer name d1 && ip link set d0 up && \
                 for n in $(seq 200); do echo address add 10.9.0.$n/32 dev d0; done >$0.batch && \
                 while :; do ip -batch $0.batch; ip address flush dev d0; done",
    },
    Flood {
        name: "neighbours and routes",
        script: "ip link add d0 type veth peer name d1 && ip link set d0 up && ip link set d1 up && \
                 for n in $(seq 250); do \
                   echo neigh add 10.9.0.$n lladdr 02:00:00:00:00:01 dev d0 nud permanent; \
                   echo route add 10.9.1.$n/32 dev d0; \
                 done >$0.batch && \
                 while :; do ip -batch $0.batch; ip neigh flush nud permanent; ip route flush dev d0; done",
    },
    Flood { name: "links", script: "while :; do ip link add d0 type dummy; ip link del d0; done" },
    Flood { name: "processes", script: "while :; do /bin/true; done" },
    Flood { name: "netns", script: "while :; do unshare -n /bin/true; done" },
    // Fifty netns at a time, each filled with links and neighbours; they go together.
    Flood {
        name: "netns that are full",
        script: "for n in $(seq 50); do echo link add d$n type dummy; done >$0.batch && \
                 echo link set d1 up >>$0.batch && \
                 for n in $(seq 250); do \
                   echo neigh add 10.9.0.$n lladdr 02:00:00:00:00:01 dev d1 nud permanent; \
                 done >>$0.batch && \
                 while :; do for n in $(seq 50); do \
                   unshare -n /bin/sh -c \"ip -batch $0.batch; exec sleep 10\" & \
                 done; wait; done",
    },
    // Processes that end at once, some of them after an exec, in netns that stay.
    Flood {
        name: "short processes",
        script: "for n in $(seq 8); do \
                   unshare -n /bin/sh -c 'while :; do (:) & (:) & (exec /bin/true) & wait; done' & \
                 done; wait",
    },
    // Claims of IPs: two devices on a bridge of the user's have the same addresses. The kernel announces each (`arp_notify`,
    // `ndisc_notify`), and the other device answers for it (duplicate address detection).
    Flood {
        name: "claims",
        script: "ip link add br0 type bridge && ip link set br0 up && \
                 for n in 1 2; do \
                   ip link add p$n type veth peer name e$n && ip link set p$n master br0 up && \
                   echo 1 >/proc/sys/net/ipv4/conf/e$n/arp_notify && \
                   echo 1 >/proc/sys/net/ipv6/conf/e$n/ndisc_notify && ip link set e$n up || exit 1; \
                   for m in $(seq 100); do \
                     echo address add 10.9.0.$m/16 dev e$n; \
                     echo address add fd00:9::$m/64 dev e$n; \
                   done >$0.batch$n; \
                 done && \
                 while :; do for n in 1 2; do ip -batch $0.batch$n; done; \
                   for n in 1 2; do ip address flush dev e$n scope global; done; done",
    },
    // A quarter of a million open files of one netns, and again and again another one without a task, whose holders are
    // searched for.
    Flood {
        name: "files",
        script: "exec bash -c ' \
                   new() { \
                     unshare -n sleep 600 & pid=$!; \
                     until [ $(readlink /proc/$pid/ns/net) != $(readlink /proc/self/ns/net) ]; do \
                       sleep 0.1; done; \
                   }; \
                   new; for n in $(seq 450); do exec {fd}</proc/$pid/ns/net; done; kill $pid; \
                   for n in $(seq 280); do sleep 600 & done; \
                   while :; do new; exec 9</proc/$pid/ns/net; kill $pid; sleep 1; done'",
    },
];

/// security.md 4: a process that hangs in a pod was found after 29 s instead of 6. The time from the kill to the
/// firing of the finding is compared within one run. Nor does a flood take the daemon's memory.
fn under_a_flood_a_stuck_pod_is_found_as_soon(lab: &Lab) {
    let open = OpenDir::new(lab);
    // A full node, for what the daemon takes in all.
    let pods = if harness::is_long() { 250 } else { 0 };
    let _pods: Vec<Netns> = (0..pods)
        .map(|n| {
            let pod = Netns::new(lab, &format!("full{n}"));
            pod.veth_to_host();
            pod.add_address(&format!("{}/32", Ipv4Addr::from_bits(0x0a62_0001 + n)), "eth0");
            pod
        })
        .collect();
    let (daemon, memory) = counted(lab, &Config::default().grace(2));
    let mut number = 0;
    let mut found = |name: &str| {
        number += 1;
        let mut hung = Hung::mount_at(lab, &format!("hung{number}"));
        let pod = Netns::new(lab, &format!("pod{number}"));
        pod.veth_to_host();
        pod.add_address(&lab.cidr(number), "eth0");
        let mut helper = stuck::start(How::Kill, &pod, &mut hung);
        let killed = Timestamp::now();
        stuck::hang(How::Kill, &mut helper);
        let mut most = 0;
        let finding = eventually(&format!("{name}: it is found"), 30, || {
            most = most.max(memory.as_ref().map_or(0, Memory::now));
            let all = daemon.findings_in(pod.inode);
            all.into_iter().find(|finding| finding["status"] == "firing")
        });
        if most > 0 {
            println!("{FIGURE}{name}: at most {} MiB, as the daemon's cgroup counts", most >> 20);
            assert!(most < CEILING, "{name}: {most} bytes");
        }
        let fired: Timestamp = finding["firing_at"].as_str().expect("a date").parse().expect("one");
        let took = fired.duration_since(killed).as_secs_f64();
        println!("{FIGURE}{name}: a stuck pod is found after {took:.1} s");
        took
    };
    let quiet = found("nobody floods");
    for flood in FLOODS {
        let mut strangers: Vec<Stranger> = (0..2).map(|n| flood.start(&open, n)).collect();
        let name = flood.name;
        std::thread::sleep(Duration::from_secs(4));
        let took = found(name);
        assert!(strangers.iter_mut().all(Stranger::is_running), "{name}: it has ended");
        assert!(took <= 2.0 * quiet, "{name}: {took:.1} s, {quiet:.1} s where nobody floods");
        drop(strangers);
    }
}

/// A pod's process hangs, and the daemon says so.
fn finds_what_is_stuck(lab: &Lab, daemon: &Daemon) {
    let mut hung = Hung::mount_at(lab, "hung");
    let pod = Netns::new(lab, "pod");
    pod.veth_to_host();
    pod.add_address(&lab.cidr(9), "eth0");
    let mut helper = stuck::start(How::Kill, &pod, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    until("what is stuck is found", 30, || {
        daemon.findings_in(pod.inode).iter().any(|finding| finding["status"] == "firing")
    });
}

/// What runs in the daemon's cgroup counts as well, as a probe of kubelet does. It says that memory is short, keeps less, and
/// still finds what is stuck; afterwards it keeps all again.
fn with_little_memory_left_it_keeps_less(lab: &Lab) {
    const LIMIT: u64 = 128 << 20;
    let (daemon, memory) = counted(lab, &Config::default().grace(1));
    let memory = memory.expect("it is needed");
    memory.limit(LIMIT);
    let busy = Netns::new(lab, "busy");
    busy.veth_to_host();
    // So much work that it looks at its memory.
    let work = |n: u32| {
        let lines = (0..1_500).flat_map(|host| {
            let ip = Ipv4Addr::from_bits(0x0a63_0001 + host);
            ["add", "del"].map(|what| format!("address {what} {ip}/8 dev eth0"))
        });
        let path = batch(lab.dir(), &format!("work{n}"), lines);
        busy.ip(&format!("-batch {}", path.display()));
    };
    let is_short = || {
        let map = daemon.source("map");
        map.is_some_and(|map| map["detail"].to_string().contains("memory is short"))
    };
    work(0);
    assert!(!is_short(), "{} bytes", memory.now());

    let takes = LIMIT * 15 / 16 - memory.now();
    let mut hog = memory.command(Path::new("/bin/sh"));
    // tail keeps what it may have to print.
    hog.args(["-c", &format!("(head -c {takes} /dev/zero; exec sleep 600) | tail -c {takes}")]);
    let mut hog = hog.stdout(Stdio::null()).process_group(0).spawn().expect("take memory");
    let mut times = 0;
    until("it says that memory is short", 30, || {
        times += 1;
        work(times);
        is_short()
    });
    finds_what_is_stuck(lab, &daemon);
    assert!(is_short());

    let _ = process::kill_process_group(Pid::from_child(&hog), Signal::KILL);
    let _ = hog.wait();
    until("memory is no longer short", 60, || !is_short());
    let log = daemon.log();
    for said in ["memory is short", "memory is no longer short"] {
        assert_eq!(log.matches(said).count(), 1, "{said}: {log}");
    }
}

/// Makes a directory as deep as its first argument says, each with a name that mountinfo shows with four times as many
/// bytes, and mounts it on itself. Only perl is on every Debian and takes relative paths for what they are.
const DEEP: &str = r#"
    my ($levels, $mount, $done) = @ARGV;
    my ($name, $here) = ("\n" x 255, ".");
    chdir "/mnt" or die;
    for (1..$levels) { mkdir $name or die $!; chdir $name or die $!; }
    syscall($mount, $here, $here, 0, 4096, 0) == 0 or die $!;
    open(my $file, ">", $done) or die $!;
    sleep 600;
"#;
/// `mount`, by `asm/unistd.h`.
const MOUNT: u32 = if cfg!(target_arch = "x86_64") { 165 } else { 40 };

/// A line of mountinfo counts as the daemon's memory, and a user can make one that is larger than its limit. Then it is
/// killed; but not for ever.
fn whose_mounts_have_it_killed_is_left_out(lab: &Lab) {
    let open = OpenDir::new(lab);
    let (done, script) = (open.0.join("deep.done"), open.0.join("deep.pl"));
    fs::write(&script, DEEP).expect("write a script");
    let own = Memory::named(lab, "stranger").expect("it is needed");
    let run = format!(
        "sleep 1 && exec unshare -m /bin/sh -c 'mount -t tmpfs none /mnt && \
         exec perl {} 45000 {MOUNT} {}'",
        script.display(),
        done.display(),
    );
    let stranger = Stranger::start(&open.0, "deep", &run);
    own.take(stranger.child.id());
    until("the mount is made", 60, || done.exists());

    let memory = Memory::counted(lab).expect("it is needed");
    memory.limit(96 << 20);
    let (config, state) = (Config::default().grace(1), lab.subdir("state"));
    let start = || Daemon::spawn_by(memory.command(&daemon::binary()), lab, &config, &state);
    // Nothing but its name holds it, so that its holders are searched for.
    let empty = Netns::new(lab, "empty");
    empty.veth_to_host();
    let mut killed = 0;
    let mut daemon = start();
    while killed < 3 {
        until("it is killed", 60, || daemon.has_ended().is_some());
        killed += 1;
        daemon = start();
    }
    daemon.await_ready();
    finds_what_is_stuck(lab, &daemon);
    let said = daemon.source("procfs").expect("the source")["detail"].to_string();
    let group = format!("/{}-stranger", lab.tag());
    assert!(said.contains(&group) && said.contains("are not read"), "{said}");
    assert_eq!(daemon.has_ended(), None);
}

/// More than an owner's netns may report at once, by probes or by netlink, and fewer messages than a netlink socket of the
/// daemon holds.
const FLOOD: u32 = 6_000;
/// Addresses that are left at the end, when no further event may be reported.
const LEFT: u32 = 20;

/// The inode of a process's netns.
fn netns_of(pid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino())
}

/// A user adds and removes addresses faster than they may be reported: with their device, the kernel removes all at once,
/// so that a slow machine does not let them pass. Those of a pod are reported all the same, the
/// user's netns is read again, and no other.
fn a_flood_of_addresses_concerns_its_netns_alone(lab: &Lab) {
    let open = OpenDir::new(lab);
    let ip = |n: u32| Ipv4Addr::from_bits(0x0a09_0000 + n);
    let all = (1..=FLOOD).map(|n| format!("addr add {}/32 dev d0", ip(n)));
    let flood = batch(&open.0, "flood", all);
    let left = (1..=LEFT).map(|n| format!("addr add {}/32 dev d0", ip(FLOOD + n)));
    let left = batch(&open.0, "left", left);
    let go = open.0.join("go");
    let script = format!(
        "ip link add d0 type veth peer name d1 && ip link set d0 up && until [ -e {} ]; do sleep 0.1; done; \
         ip -batch {} && ip link del d0 && ip link add d0 type veth peer name d1 && ip link set d0 up && ip -batch {}",
        go.display(),
        flood.display(),
        left.display()
    );
    let socket = lab.dir().join("metrics.sock");
    let config = format!("[metrics]\nlisten = \"unix:{}\"", socket.display());
    let daemon = Daemon::start(lab, &Config::default().line(&config));
    let counted = |name: &str| prometheus::get_unix(&socket, "/metrics").value(name);
    let pod = Netns::new(lab, "pod");
    pod.veth_to_host();
    let stranger = Stranger::start(&open.0, "flooder", &script);
    let netns = eventually("the user's netns is known", 20, || {
        let inode = netns_of(stranger.child.id())?;
        let known = daemon.list("addresses", &["query", "netns", &inode.to_string()]);
        (inode != netns_of(std::process::id())? && !known.is_empty()).then_some(inode)
    });
    let before = counted("ipwatch_resyncs_total");
    assert_eq!(counted("ipwatch_netns_resyncs_total"), 0.0);

    fs::write(&go, "").expect("let it begin");
    let (mut slowest, mut rounds, began) = (Duration::ZERO, 0, Instant::now());
    while !stranger.is_done() || rounds < 5 {
        assert!(began.elapsed() < Duration::from_secs(60) * patience(), "the flood takes its time");
        pod.add_address(&lab.cidr(9), "eth0");
        let added = Instant::now();
        daemon.await_ip(lab.ip(9), pod.inode);
        slowest = slowest.max(added.elapsed());
        pod.ip(&format!("addr del {} dev eth0", lab.cidr(9)));
        daemon.await_no_ip(lab.ip(9), pod.inode);
        rounds += 1;
    }
    println!(
        "{FIGURE}{rounds} addresses of a pod under a flood: each known after {slowest:.1?} at most"
    );
    // Where no probe reports addresses, netlink's budget is the only one.
    if Need::Tracing.missing().is_none() {
        let lost = prometheus::get_unix(&socket, "/metrics");
        let lost = lost.samples("ipwatch_probe_events_lost_total");
        let held_back = lost.iter().find(|sample| sample.contains("\"ipv4-address\""));
        assert!(held_back.is_some_and(|sample| !sample.ends_with(" 0")), "no flood: {lost:?}");
    }
    let who = format!("net:[{netns}] of uid {NOBODY}: ");
    eventually(&format!("the map says who floods: {who}"), 10, || {
        let said = daemon.source("map")?["detail"].to_string();
        said.contains(&who).then_some(())
    });
    until("the user's netns has been read again", 30, || {
        let known = daemon.list("addresses", &["query", "netns", &netns.to_string()]);
        let on_d0 =
            |one: &&serde_json::Value| one["interface"]["name"] == "d0" && one["scope"] == "global";
        let known: std::collections::BTreeSet<String> =
            known.iter().filter(on_d0).map(|one| one["ip"].as_str().unwrap().to_owned()).collect();
        known == (1..=LEFT).map(|n| ip(FLOOD + n).to_string()).collect()
    });
    // What came through may have been enough to know them all.
    until("it was read because events were held back", 40, || {
        counted("ipwatch_netns_resyncs_total") > 0.0
    });
    assert_eq!(counted("ipwatch_resyncs_total"), before, "nothing else was read again");
}
