//! A read that hangs in the kernel concerns what it hangs at, and nothing else: what else is wrong is found as soon as
//! without it, `doctor` names it, and when it answers again all is as before.
//!
//! The daemon itself hangs here: for a machine that nobody else is on.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::fake_cri::FakeCri;
use support::fuse::Hung;
use support::poll::until;
use support::role::{Helper, Role, Running};
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, Sandbox, patience};

support::tests! {
    a_process_that_hangs_in_execve needs [OwnMachine, Fuse] @ Kernel Stock,
    many_processes_that_hang_in_execve needs [OwnMachine, Fuse] @ Kernel,
    a_store_below_a_hung_mount needs [OwnMachine, Fuse] @ Kernel Stock,
    a_netns_mounted_below_a_hung_mount needs [OwnMachine, Fuse] @ Kernel Stock,
    a_runtime_that_is_slow needs [FakeCri, Fuse],
}

const GRACE: u32 = 2;
/// A finding of which nothing keeps it.
const SOON: u32 = GRACE + 10;
/// From the release on.
const RECOVERY: u32 = 10;
const CODE: &str = "ip-held-by-stuck-process";

fn config(lab: &Lab) -> Config {
    Config::default().grace(GRACE).cache_dir(&lab.subdir("cni"))
}

fn with_address(lab: &Lab, hint: &str, host: u8) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(host), "eth0");
    netns
}

/// One that is killed while it hangs in closing a file of its old program.
fn hang_in_execve(netns: &Netns, hung: &Hung) -> Running {
    let mut helper = Helper::new(Role::Execer).inside(netns).arg(&hung.file()).start();
    helper.tell("exec");
    // Nothing of it may be read to see that it hangs.
    std::thread::sleep(Duration::from_millis(500) * patience());
    helper.signal(libc::SIGKILL);
    helper
}

/// An ordinary one, found as ever.
fn another_is_found(lab: &Lab, daemon: &Daemon, host: u8) {
    let mut hung = Hung::mount_at(lab, &format!("other-{host}"));
    let netns = with_address(lab, "other", host);
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    daemon.await_holder(lab.ip(host), netns.inode, "the helper", |h| h["pid"] == helper.pid());
    stuck::hang(How::Kill, &mut helper);
    let began = Instant::now();
    daemon.await_firing(CODE, SOON, |finding| finding["subject"]["netns"]["inode"] == netns.inode);
    println!("FIGURE another one found after {:.1} s", began.elapsed().as_secs_f64());
}

fn detail(daemon: &Daemon, source: &str) -> (String, String) {
    let source = daemon.source(source).unwrap_or_default();
    let text = |key: &str| source[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("detail"))
}

#[track_caller]
fn await_detail(daemon: &Daemon, source: &str, parts: &[&str]) {
    until(&format!("doctor says {parts:?} of {source}"), 15, || {
        let (_, told) = detail(daemon, source);
        parts.iter().all(|part| told.contains(part))
    });
    let (status, told) = detail(daemon, source);
    println!("FIGURE {source} is {status}: {told}");
    assert_eq!(status, "degraded", "{told}");
}

/// Its `stack` waits for `exec_update_lock`, on some kernels more, on some nothing.
fn a_process_that_hangs_in_execve(lab: &Lab) {
    let daemon;
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "exec", 7);
    daemon = Daemon::start(lab, &config(lab));
    let helper = hang_in_execve(&netns, &hung);
    let pid = helper.pid();
    let finding = daemon.await_firing(CODE, SOON, |finding| finding["holders"][0]["pid"] == pid);
    assert_eq!(finding["subject"]["ip"], lab.ip(7).to_string(), "{finding:#}");
    let evidence = finding["evidence"].to_string();
    if evidence.contains("not answer") {
        let commands = finding["remediation"].to_string();
        assert!(!commands.contains(&format!("/proc/{pid}/task")), "it would hang: {finding:#}");
        await_detail(&daemon, "procfs", &[&format!("/proc/{pid}/"), "has not answered for"]);
    } else {
        assert!(evidence.contains("do_close_on_exec"), "{finding:#}");
        println!("FIGURE its stack could be read here");
    }
    another_is_found(lab, &daemon, 8);
    let holder = daemon.ip_in(lab.ip(7), netns.inode).expect("its IP is up");
    assert!(holder["holders"].to_string().contains(&pid.to_string()), "{holder:#}");
    hung.release();
    until("it has ended", RECOVERY, || daemon.findings_in(netns.inode).is_empty());
    until("all is read again", RECOVERY, || !detail(&daemon, "procfs").1.contains("not answer"));
}

/// More than may be left behind.
fn many_processes_that_hang_in_execve(lab: &Lab) {
    let daemon;
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "many", 7);
    daemon = Daemon::start(lab, &config(lab));
    let helpers: Vec<Running> = (0..12).map(|_| hang_in_execve(&netns, &hung)).collect();
    let pids: Vec<u32> = helpers.iter().map(Running::pid).collect();
    until("each is told", 2 * SOON, || {
        let found = daemon.findings_in(netns.inode);
        pids.iter().all(|pid| found.iter().any(|f| f["holders"][0]["pid"] == *pid))
    });
    another_is_found(lab, &daemon, 8);
    let (status, told) = detail(&daemon, "procfs");
    assert_eq!(status == "degraded", told.contains("not answer"), "{status}: {told}");
    hung.release();
    until("they have ended", RECOVERY, || daemon.findings_in(netns.inode).is_empty());
    until("all is read again", RECOVERY, || !detail(&daemon, "procfs").1.contains("not answer"));
}

/// Of one network's reservations nothing is known, of the other's everything.
fn a_store_below_a_hung_mount(lab: &Lab) {
    let stores = lab.subdir("networks");
    let reserve = |network: &str, ip: &str, id: &str| {
        let dir = stores.join(network);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(ip), format!("{id}\r\neth0")).unwrap();
    };
    reserve("alpha", "10.200.1.5", "aaaa");
    // Ends last: while one of its threads hangs, it cannot.
    let daemon;
    let mut hung = Hung::mount_silent(&stores.join("hung"));
    let mut cache = Hung::mount_silent(&lab.subdir("cni"));
    let text = format!("[ipam]\nconf_dirs = []\ndata_dirs = [{stores:?}]");
    daemon = Daemon::start(lab, &config(lab).line(&text));
    let reserved = |ip: &str| {
        let known = daemon.list("reservations", &["query", "ipam", ip]);
        known.iter().any(|one| one["ip"] == ip)
    };
    until("the other network is known", 15, || reserved("10.200.1.5"));
    reserve("alpha", "10.200.1.6", "bbbb");
    until("and followed", 10, || reserved("10.200.1.6"));
    let path = stores.join("hung");
    await_detail(&daemon, "host-local", &[path.to_str().unwrap(), "has not answered for"]);
    await_detail(
        &daemon,
        "cni",
        &[lab.dir().join("cni").to_str().unwrap(), "has not answered for"],
    );
    another_is_found(lab, &daemon, 8);
    hung.release();
    cache.release();
    reserve("hung", "10.200.2.5", "cccc");
    until("all is read again", RECOVERY, || {
        reserved("10.200.2.5") && detail(&daemon, "cni").0 == "active"
    });
    until("and active", RECOVERY, || detail(&daemon, "host-local").0 == "active");
}

/// The way to a netns leads through a directory that its server no longer answers for.
fn a_netns_mounted_below_a_hung_mount(lab: &Lab) {
    let daemon;
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "path", 7);
    let point = Path::new(&hung.file()).to_owned();
    rustix::mount::mount_bind(netns.path(), &point).expect("mount the netns there");
    let _unmount = Unmount(&point);
    netns.unmount();
    daemon = Daemon::start(lab, &config(lab));
    another_is_found(lab, &daemon, 8);
    let (status, told) = detail(&daemon, "netlink");
    println!("FIGURE netlink is {status}: {told}");
    assert_ne!(status, "down", "{told}");
    hung.release();
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// It says its name, and takes ten seconds for everything else. A `scan` gives the others' findings without it.
fn a_runtime_that_is_slow(lab: &Lab) {
    let netns = with_address(lab, "idle", 7);
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    let mut hung = Hung::mount(lab);
    let other = with_address(lab, "stuck", 8);
    let mut helper = stuck::start(How::Kill, &other, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    std::thread::sleep(Duration::from_secs(u64::from(GRACE) + 1));
    let runtime = FakeCri::start(lab);
    let file = lab.dir().join("scan.toml");
    let config = config(lab).cache_dir(pod.cache()).holders_grace(1).leak_age(1);
    fs::write(&file, config.cri(runtime.socket()).text()).unwrap();
    let scan = |what: &str| {
        let began = Instant::now();
        let mut scan = std::process::Command::new(support::daemon::binary());
        let out = scan.arg("scan").arg("--config").arg(&file).args(["-o", "json"]).output();
        let out = out.unwrap();
        let document: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let findings = document["findings"].as_array().expect("findings").clone();
        let took = began.elapsed();
        println!("FIGURE scan beside a runtime that {what}: {:.1} s", took.as_secs_f64());
        let ours = |f: &&Value| f["subject"]["netns"]["inode"] == other.inode;
        let found = findings.iter().find(ours).map(|finding| finding["code"].clone());
        assert_eq!(found, Some(CODE.into()), "{findings:#?}");
        took
    };
    runtime.has_pod(&pod, "READY");
    let usual = scan("answers");
    // Of each it is asked what it knows.
    let dead = |n| format!("sandbox {n:064x} NOTREADY shop api-{n} uid-{n} 0\n");
    let many: String = (0..40).map(dead).collect();
    for slow in ["slow 10 List", "slow 1000 List", "slow 10 PodSandboxStatus"] {
        runtime.has(&format!("{slow}\n{}{many}", FakeCri::lines(&pod, "NOTREADY")));
        let took = scan(slow);
        assert!(took < usual + Duration::from_secs(4) * patience(), "{slow}: {took:?}, {usual:?}");
    }
    hung.release();
}
