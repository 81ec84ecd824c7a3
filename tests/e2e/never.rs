//! Situations that look like trouble and are none: with short grace periods nothing may be raised, not even
//! `pending`. For what a single process may look like, see also [`crate::stuck`].
//!
//!
//! Other tests run meanwhile and are seen: each test counts only what is its own, by IP, pod and path. gVisor,
//! KubeVirt and istio cannot run here; unit tests cover them with recorded facts.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use support::cgroup::Freezer;
use support::fake_cri::FakeCri;
use support::fuse::Hung;
use support::keepalived::Keepalived;
use support::pod::{CNI_CACHE, Containerd, Slow};
use support::poll::until;
use support::role::{Helper, Role, Running};
use support::stuck::{self, How};
use support::{Config, Daemon, Follower, Lab, Netns, Sandbox, innocent, patience};

support::tests! {
    a_frozen_pod needs [Pods, Fuse, FreezerV1],
    a_pod_in_its_grace_period needs [Pods, Fuse],
    a_pod_whose_add_is_slow needs [Containerd, Fuse],
    a_pod_whose_ip_is_reserved_long_before_it_is_up needs [Containerd, Fuse],
    a_pod_whose_pause_is_slow needs [Containerd, Fuse],
    a_second_del_of_an_old_sandbox needs [Pods, Fuse],
    a_pod_of_the_hosts_network needs [Pods, Fuse],
    a_pod_that_ends_by_itself needs [Pods, Fuse],
    netns_of_people_and_of_pools needs [Fuse] @ Kernel,
    netns_of_people_and_of_pools_beside_a_runtime needs [FakeCri, Fuse],
    a_virtual_ip_that_keepalived_moves needs [Keepalived, Fuse],
    processes_of_a_live_pod needs [FakeCri, Fuse, FreezerV2, PlainCore] @ Kernel,
}

/// Every grace period, in seconds.
const GRACE: u32 = 1;
const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];

pub(crate) fn config() -> Config {
    Config::default().grace(GRACE).holders_grace(GRACE).cache_dir(Path::new(CNI_CACHE))
}

/// Waits longer than a finding may take to be raised: grace periods, polls and second looks.
pub(crate) fn wait() {
    std::thread::sleep(Duration::from_secs(8) + Duration::from_secs(2) * patience());
}

/// A daemon with a follower that was connected before the test's events.
pub(crate) struct Watch {
    pub(crate) daemon: Daemon,
    follower: Follower,
}

impl Watch {
    pub(crate) fn start(lab: &Lab, config: &Config, runtime: Option<&str>) -> Self {
        let daemon = Daemon::start(lab, config);
        runtime.into_iter().for_each(|runtime| daemon.await_source(runtime));
        let follower = daemon.follow();
        Self { daemon, follower }
    }

    pub(crate) fn of(lab: &Lab, containerd: &Containerd<'_>) -> Self {
        let config = config()
            .cri(containerd.socket())
            .networks(&containerd.conf_dirs(), &containerd.bin_dir());
        Self::start(lab, &config, Some("containerd"))
    }

    /// Checks that nothing was reported about this lab, and that a real fault then is reported.
    #[track_caller]
    pub(crate) fn was_quiet(self, lab: &Lab) {
        let mine = |changes: Vec<Value>| -> Vec<Value> {
            changes.into_iter().filter(|change| is_about(lab, change)).collect()
        };
        let told = mine(self.follower.changes_seen());
        assert!(told.is_empty(), "{told:#?}");
        assert_eq!(logged(lab, &self.daemon), None);
        let open = mine(self.daemon.findings());
        assert!(open.is_empty(), "{open:#?}");
        let _guilty = guilty(lab);
        until("what is wrong is told", 20, || !mine(self.daemon.findings()).is_empty());
    }
}

/// The first log line of a finding about one of the lab's IPs. A follower may be too slow where other tests cause
/// thousands of events; the log has all.
pub(crate) fn logged(lab: &Lab, daemon: &Daemon) -> Option<String> {
    let [a, b, c, _] = lab.ip(0).octets();
    let ours = format!(" ip={a}.{b}.{c}.");
    let log = daemon.log();
    let mut findings = log.lines().filter(|line| line.contains("ipwatch::finding"));
    findings.find(|line| line.contains(&ours)).map(str::to_owned)
}

/// Creates a real fault of a pod, to see that the daemon would have reported one.
pub(crate) fn guilty(lab: &Lab) -> (Running, Hung, Netns, Sandbox) {
    let mut hung = Hung::mount_at(lab, "guilty");
    let netns = Netns::new(lab, "guilty");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(250), "eth0");
    // The cgroup of its container is what makes it a pod's.
    let pod = Sandbox::make(lab, &netns, &lab.cidr(250), "");
    let mut helper = stuck::start_as(How::Kill, &netns, &mut hung, |helper| helper.within(&pod));
    pod.await_in(helper.pid());
    // The daemon reads the cgroup when the process starts; cgroup v1 shows none for an exiting task.
    std::thread::sleep(Duration::from_millis(500) * patience());
    stuck::hang(How::Kill, &mut helper);
    (helper, hung, netns, pod)
}

/// Whether a finding, or a change of one, is about this lab. Its text is not searched: it may name file systems of
/// another lab running at the same time, whose mounts these processes see.
pub(crate) fn is_about(lab: &Lab, change: &Value) -> bool {
    let finding = if change["finding"].is_object() { &change["finding"] } else { change };
    lab.owns(&finding["subject"].to_string()) || lab.owns(&finding["holders"].to_string())
}

/// Whether a change is about others on this machine, who may run tests too: another IP, or files of another lab.
pub(crate) fn is_elsewhere(lab: &Lab, change: &Value) -> bool {
    let subject = &change["finding"]["subject"];
    let elsewhere =
        subject["ip"].is_string() || change["finding"]["holders"].to_string().contains("/tmp/iw");
    elsewhere && !is_about(lab, change)
}

fn a_frozen_pod(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let watch = Watch::of(lab, &containerd);
    let pod = containerd.run("paused-0", lab.dir(), &SLEEP);
    let freezer = Freezer::v1(lab);
    freezer.freeze(pod.pid);
    // As kubelet does when the pod is deleted meanwhile. The process dies once it is thawed.
    support::sys::kill(pod.pid, libc::SIGKILL).unwrap();
    wait();
    freezer.thaw();
    until("it has gone", 10, || !support::proc::is_alive(pod.pid));
    containerd.stop(&pod);
    watch.was_quiet(lab);
}

fn a_pod_in_its_grace_period(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let watch = Watch::of(lab, &containerd);
    let command = ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    let pod = containerd.run("slow-0", lab.dir(), &command);
    let mut client = containerd.begin_termination(&pod, 300);
    wait();
    assert!(client.try_wait().unwrap().is_none(), "it ignores SIGTERM");
    client.kill().unwrap();
    client.wait().unwrap();
    containerd.stop(&pod);
    watch.was_quiet(lab);
}

fn a_pod_whose_add_is_slow(lab: &Lab) {
    slow(lab, Slow::Add);
}

fn a_pod_whose_ip_is_reserved_long_before_it_is_up(lab: &Lab) {
    slow(lab, Slow::Reserve);
}

fn a_pod_whose_pause_is_slow(lab: &Lab) {
    slow(lab, Slow::Create);
}

/// The netns exists with its IP, no task is in it, and the runtime does not list the sandbox yet.
fn slow(lab: &Lab, what: Slow) {
    let containerd = Containerd::start(lab);
    let watch = Watch::of(lab, &containerd);
    containerd.slow_down(what, Duration::from_secs(7));
    let pod = containerd.pod("late-0").sandbox();
    containerd.slow_down(what, Duration::ZERO);
    wait();
    containerd.stop(&pod);
    watch.was_quiet(lab);
}

/// A StatefulSet's pod is recreated, and kubelet stops its predecessor's sandbox once more.
fn a_second_del_of_an_old_sandbox(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let watch = Watch::of(lab, &containerd);
    let old = containerd.run("db-0", lab.dir(), &SLEEP);
    containerd.halt(&old);
    let new = containerd.run("db-0", lab.dir(), &SLEEP);
    containerd.halt(&old);
    wait();
    containerd.stop(&old);
    wait();
    assert_eq!(containerd.state_of(&new.sandbox).as_deref(), Some("READY"));
    containerd.stop(&new);
    watch.was_quiet(lab);
}

fn a_pod_of_the_hosts_network(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let watch = Watch::of(lab, &containerd);
    let pod = containerd.pod("agent-0").host_network().run(lab.dir(), &SLEEP);
    wait();
    containerd.halt(&pod);
    wait();
    watch.was_quiet(lab);
}

/// The sandbox lives on with only pause in it, and is then stopped but not removed.
fn a_pod_that_ends_by_itself(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let watch = Watch::of(lab, &containerd);
    let pod = containerd.run("job-0", lab.dir(), &["/bin/sleep", "2"]);
    until("its container has ended", 10, || {
        containerd.state_of(&pod.container).as_deref() == Some("EXITED")
    });
    wait();
    containerd.halt(&pod);
    wait();
    watch.was_quiet(lab);
}

fn netns_of_people_and_of_pools(lab: &Lab) {
    nobodys(lab, &config().leak_age(1), None);
}

fn netns_of_people_and_of_pools_beside_a_runtime(lab: &Lab) {
    let runtime = FakeCri::start(lab);
    nobodys(lab, &config().cri(runtime.socket()), Some("containerd"));
}

/// A person's `ip netns add`, neutron's routers, and the netns that BuildKit keeps in stock: no runtime made or knows
/// them, nothing runs in them, and they are kept on purpose.
fn nobodys(lab: &Lab, config: &Config, runtime: Option<&str>) {
    let watch = Watch::start(lab, config, runtime);
    let named = |n: u8, hint: &str| {
        let netns = Netns::new(lab, hint);
        netns.veth_to_host();
        netns.add_address(&lab.cidr(n), "eth0");
        netns
    };
    let _lasting = [named(1, "lab"), named(2, "qrouter-1"), named(3, "qdhcp-1")];
    let pool: Vec<Netns> = (10..14).map(|n| named(n, &format!("pool{n}"))).collect();
    // A pool's owner keeps some only by an fd.
    let keep = |netns: &Netns| {
        let helper = Helper::new(Role::HoldFd).arg(netns.path().to_str().unwrap()).start();
        netns.unname();
        helper
    };
    let _keepers: Vec<_> = pool.iter().take(2).map(keep).collect();
    wait();
    watch.was_quiet(lab);
}

/// Processes in the netns of a pod that its runtime considers alive.
fn processes_of_a_live_pod(lab: &Lab) {
    let runtime = FakeCri::start(lab);
    let netns = Netns::new(lab, "pod");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    runtime.has_pod(&pod, "READY");
    let config = config().cache_dir(pod.cache()).cri(runtime.socket());
    let watch = Watch::start(lab, &config, Some("containerd"));
    let hung = Hung::mount(lab);
    let innocents = [
        innocent::frozen_v2(lab, &netns),
        innocent::vfork_parent(&netns),
        innocent::stopped(&netns),
        innocent::dumping_core(&netns, &hung),
        innocent::busy(&netns),
        innocent::zombie(&netns),
    ];
    until("the pod is known by its runtime's word", 20, || {
        let address = watch.daemon.ip_in(lab.ip(7), netns.inode);
        address.is_some_and(|address| address["pod"]["state"] == "Ready")
    });
    wait();
    assert_eq!(innocents.len(), 6);
    watch.was_quiet(lab);
}

/// Two pods with real keepalived: a master that is stopped, and one that comes back and takes the virtual IP from the
/// other. For a moment both may have it.
fn a_virtual_ip_that_keepalived_moves(lab: &Lab) {
    let lan = Netns::new(lab, "lan");
    lan.ip("link add br0 type bridge");
    lan.ip("link set br0 up");
    let pod = |name: &str, n: u8| {
        let netns = Netns::new(lab, name);
        netns.veth_to("eth0", &lan, name);
        lan.ip(&format!("link set {name} master br0"));
        netns.add_address(&lab.cidr(n), "eth0");
        let uid = format!("{n:08x}-0000-4000-8000-000000000002");
        let sandbox = Sandbox::make_as(lab, &netns, &lab.cidr(n), "", (name, &uid));
        (netns, sandbox)
    };
    // A duplicate of these two would page: a runtime made them, says the CNI result cache.
    let ((low, sandbox), (high, _other)) = (pod("low", 11), pod("high", 12));
    let watch = Watch::start(lab, &config().cache_dir(sandbox.cache()), None);
    let vip = lab.ip(10).to_string();
    let has = |netns: &Netns, wanted| Keepalived::await_vip(netns, &vip, wanted);
    let _backup = Keepalived::start(lab, &low, &vip, 90);
    has(&low, true);
    for _ in 0..3 {
        let master = Keepalived::start(lab, &high, &vip, 110);
        has(&high, true);
        has(&low, false);
        drop(master);
        has(&high, false);
        has(&low, true);
    }
    wait();
    watch.was_quiet(lab);
}
