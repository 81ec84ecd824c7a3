//! A read that hangs in the kernel affects only what it reads: everything else is found as quickly as without it,
//! `doctor` names it, and when it returns, all is as before.
//!
//! The daemon itself hangs here: only for a machine that nobody else uses.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::cni::Node;
use support::fake_cri::FakeCri;
use support::fuse::Hung;
use support::poll::{settle, until};
use support::role::{Helper, Role, Running};
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, Sandbox, harness, patience, rtnl, sys};

support::tests! {
    a_process_that_hangs_in_execve needs [OwnMachine, Fuse] @ Kernel Stock,
    a_process_in_execve_whose_readers_wait needs [OwnMachine, Fuse] @ Kernel Stock,
    many_processes_that_hang_in_execve needs [OwnMachine, Fuse] @ Kernel Stock,
    a_store_below_a_hung_mount needs [OwnMachine, Fuse] @ Kernel Stock,
    directories_of_cni_below_hung_mounts needs [OwnMachine, Fuse, Cni] @ Kernel Stock,
    a_netns_mounted_below_a_hung_mount needs [OwnMachine, Fuse] @ Kernel Stock,
    rtnl_that_is_held needs [OwnMachine, Fuse] @ Alone Kernel Stock,
    a_runtime_below_a_hung_mount needs [OwnMachine, FakeCri, Fuse] @ Kernel Stock,
    a_runtime_that_is_slow needs [FakeCri, Fuse],
}

const GRACE: u32 = 2;
/// Time until a finding that nothing delays fires, in seconds.
const SOON: u32 = GRACE + 10;
/// Time from the release to the recovery, in seconds.
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

/// Where a process hangs in execve.
#[derive(Debug, Clone, Copy)]
enum Exec {
    /// In closing a file: with `exec_update_lock`, or on newer kernels before it takes the lock.
    Closing,
    /// In releasing its old memory while a file is being written from it: with the lock, on every kernel.
    Syncing,
}

/// Starts `count` processes that are killed while they hang there.
fn hang_in_execve(how: Exec, count: usize, netns: &Netns, hung: &Hung) -> Vec<Running> {
    let what = match how {
        Exec::Closing => "close",
        Exec::Syncing => "sync",
    };
    let file = hung.file();
    let start = |_| Helper::new(Role::Execer).inside(netns).arg(what).arg(&file).start();
    let mut helpers: Vec<Running> = (0..count).map(start).collect();
    helpers.iter_mut().for_each(|helper| helper.tell("exec"));
    // They must not be read to see whether they hang.
    std::thread::sleep(Duration::from_millis(500) * patience());
    helpers.iter().for_each(|helper| helper.signal(libc::SIGKILL));
    helpers
}

/// Returns those files of a process whose readers wait for the lock. The test can end the readers, because they wait
/// killably (`down_read_killable`).
fn hanging(pid: u32, files: &[&'static str]) -> Vec<&'static str> {
    let start = |file: &&'static str| {
        let program = if file.starts_with("ns/") { "readlink" } else { "cat" };
        let mut command = std::process::Command::new(program);
        command.arg(format!("/proc/{pid}/{file}")).stdin(Stdio::null()).stdout(Stdio::null());
        (*file, command.stderr(Stdio::null()).spawn().expect("start a reader"))
    };
    let mut readers: Vec<(&str, Child)> = files.iter().map(start).collect();
    settle(2, || {
        readers.retain_mut(|(_, reader)| matches!(reader.try_wait(), Ok(None)));
        readers.is_empty()
    });
    let end = |(file, mut reader): (&'static str, Child)| {
        let _ = reader.kill();
        let _ = reader.wait();
        file
    };
    readers.into_iter().map(end).collect()
}

/// Checks that another stuck process is found as usual.
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

/// If the kernel closes the file with `exec_update_lock` held (5.10), readers of the process wait; otherwise it is
/// looked at like any other.
fn a_process_that_hangs_in_execve(lab: &Lab) {
    one_hangs(lab, Exec::Closing, |pid| {
        let hangs = !hanging(pid, &["stack"]).is_empty();
        println!("FIGURE the readers of its stack hang: {hangs}");
        hangs
    });
}

/// The process holds the lock on every kernel. Which of its files wait for the lock differs.
fn a_process_in_execve_whose_readers_wait(lab: &Lab) {
    one_hangs(lab, Exec::Syncing, |pid| {
        let hang = hanging(pid, &["stack", "stat", "wchan", "ns/net", "mountinfo", "status"]);
        println!("FIGURE readers hang of {}", hang.join(", "));
        assert!(hang.contains(&"stack"), "this kernel has no lock there: nothing is tested");
        assert!(!hang.contains(&"mountinfo") && !hang.contains(&"status"), "{hang:?}");
        true
    });
}

fn one_hangs(lab: &Lab, how: Exec, hangs: impl Fn(u32) -> bool) {
    let daemon;
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "exec", 7);
    daemon = Daemon::start(lab, &config(lab));
    let helpers = hang_in_execve(how, 1, &netns, &hung);
    let pid = helpers[0].pid();
    let hangs = hangs(pid);
    another_is_found(lab, &daemon, 8);
    let finding = daemon.await_firing(CODE, SOON, |finding| finding["holders"][0]["pid"] == pid);
    assert_eq!(finding["subject"]["ip"], lab.ip(7).to_string(), "{finding:#}");
    let evidence = finding["evidence"].to_string();
    assert_eq!(evidence.contains("not answer"), hangs, "{finding:#}");
    if hangs {
        let commands = finding["remediation"].to_string();
        assert!(!commands.contains(&format!("/proc/{pid}/task")), "it would hang: {finding:#}");
        await_detail(&daemon, "procfs", &[&format!("/proc/{pid}/"), "has not answered for"]);
    } else {
        assert!(evidence.contains("do_close_on_exec"), "{finding:#}");
    }
    let holder = daemon.ip_in(lab.ip(7), netns.inode).expect("its IP is up");
    assert!(holder["holders"].to_string().contains(&pid.to_string()), "{holder:#}");
    hung.release();
    until("it has ended", RECOVERY, || daemon.findings_in(netns.inode).is_empty());
    // Only its own process: a test that runs beside this one may have others that hang.
    let own = format!("/proc/{pid}/");
    until("it is read again", RECOVERY, || !detail(&daemon, "procfs").1.contains(&own));
}

/// More processes than threads may be left behind: those beyond the first are skipped, but still found.
fn many_processes_that_hang_in_execve(lab: &Lab) {
    let daemon;
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "many", 7);
    daemon = Daemon::start(lab, &config(lab));
    let helpers = hang_in_execve(Exec::Syncing, 12, &netns, &hung);
    let pids: Vec<u32> = helpers.iter().map(Running::pid).collect();
    assert_eq!(hanging(pids[0], &["stack"]), ["stack"], "this kernel has no lock there");
    another_is_found(lab, &daemon, 8);
    until("each is told", 2 * SOON, || {
        let found = daemon.findings_in(netns.inode);
        pids.iter().all(|pid| found.iter().any(|f| f["holders"][0]["pid"] == *pid))
    });
    await_detail(&daemon, "procfs", &["has not answered for", "also in execve, and not read: pid"]);
    assert!(!daemon.log().contains("reads of it do not come back"), "it was blind");
    hung.release();
    until("they have ended", RECOVERY, || daemon.findings_in(netns.inode).is_empty());
    until("all is read again", RECOVERY, || !detail(&daemon, "procfs").1.contains("not answer"));
}

/// The reservations of one network are unknown, those of the other are known.
fn a_store_below_a_hung_mount(lab: &Lab) {
    let stores = lab.subdir("networks");
    let reserve = |network: &str, ip: &str, id: &str| {
        let dir = stores.join(network);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(ip), format!("{id}\r\neth0")).unwrap();
    };
    reserve("alpha", "10.200.1.5", "aaaa");
    // Dropped last: it cannot end while one of its threads hangs.
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

/// Network configurations, plugins and a runtime's log, each on a file system that does not answer. The daemon starts
/// anyway.
fn directories_of_cni_below_hung_mounts(lab: &Lab) {
    let daemon;
    let names = ["conf", "bin", "log"];
    let mut mounts = names.map(|name| Hung::mount_silent(&lab.subdir(name)));
    let [conf, bin, log] = names.map(|name| lab.dir().join(name).join("below"));
    let node = Node::new(lab);
    let scripts = lab.subdir("scripts");
    let config = config(lab).networks(std::slice::from_ref(&conf), &bin).networks(&[], &scripts);
    daemon = Daemon::start(lab, &config.logs(std::slice::from_ref(&log)));
    another_is_found(lab, &daemon, 8);
    await_detail(&daemon, "host-local", &[conf.to_str().unwrap(), "has not answered for"]);
    await_detail(&daemon, "probes", &[bin.to_str().unwrap(), "has not answered for"]);
    // The reason of a plugin's failure is looked up in the log.
    let pod = node.pod("failing");
    let mut failing = node.call("loopback", "ADD", "failing-plugin", &pod);
    failing.plugin = node.script(&scripts, "failing", "exit 1");
    assert_eq!(node.run(&failing).1.status.code(), Some(1));
    await_detail(&daemon, "cni", &[log.to_str().unwrap(), "has not answered for"]);
    mounts.iter_mut().for_each(Hung::release);
    for source in ["host-local", "probes", "cni"] {
        let hangs = || detail(&daemon, source).1.contains("not answer");
        until(&format!("{source} is read again"), RECOVERY, || !hangs());
    }
}

/// The path of a netns leads through a directory of a file system that no longer answers. It is resolved without
/// asking the server: nothing hangs, and that netns is completely known.
fn a_netns_mounted_below_a_hung_mount(lab: &Lab) {
    let daemon;
    let mut hung = Hung::mount(lab);
    let netns = with_address(lab, "path", 7);
    let point = Path::new(&hung.file()).to_owned();
    rustix::mount::mount_bind(netns.path(), &point).expect("mount the netns there");
    netns.unmount();
    hung.fall_silent();
    daemon = Daemon::start(lab, &config(lab));
    another_is_found(lab, &daemon, 8);
    let path = point.to_str().unwrap();
    // In the node's mount namespace: another test's daemon may have a copy of the mount in its own.
    let is_it = |holder: &Value| holder["mount_path"] == path && holder["mount_ns_pid"] == 1;
    daemon.await_holder(lab.ip(7), netns.inode, "the mount", is_it);
    for source in ["netlink", "procfs"] {
        let (status, told) = detail(&daemon, source);
        println!("FIGURE {source} is {status}: {told}");
        assert_eq!(status, "active", "{told}");
    }
    hung.release();
    until("the mount is gone", RECOVERY, || {
        let address = daemon.ip_in(lab.ip(7), netns.inode);
        address.is_none_or(|address| !address["holders"].as_array().unwrap().iter().any(is_it))
    });
}

/// The lock is global: meanwhile nothing can be asked by netlink, and nothing changes. What processes do is still
/// seen.
fn rtnl_that_is_held(lab: &Lab) {
    // Dropped last: it cannot end while one of its threads waits for the lock.
    let daemon;
    let mut hung = Hung::mount(lab);
    let known = with_address(lab, "known", 7);
    let mut stuck = stuck::start(How::Kill, &known, &mut hung);
    daemon = Daemon::start(lab, &config(lab));
    daemon.await_holder(lab.ip(7), known.inode, "the helper", |h| h["pid"] == stuck.pid());
    // It learns of another netns when netlink cannot be asked about it.
    sys::kill(daemon.pid(), libc::SIGSTOP).expect("stop the daemon");
    let late = with_address(lab, "late", 8);
    let held = rtnl::Held::take();
    sys::kill(daemon.pid(), libc::SIGCONT).expect("have the daemon go on");
    let began = Instant::now();
    stuck::hang(How::Kill, &mut stuck);
    let is_known = |finding: &Value| finding["subject"]["netns"]["inode"] == known.inode;
    let finding = daemon.await_firing(CODE, SOON, is_known);
    println!("FIGURE found after {:.1} s of the lock", began.elapsed().as_secs_f64());
    await_detail(&daemon, "netlink", &["rtnetlink has not answered for", "rtnl_mutex"]);
    let length = if harness::is_long() { 60 } else { 20 };
    std::thread::sleep(Duration::from_secs(length).saturating_sub(began.elapsed()));
    let address = daemon.ip_in(lab.ip(7), known.inode).expect("its IP is up");
    assert_eq!(address["holders"][0]["pid"], stuck.pid(), "{address:#}");
    let open = daemon.findings();
    assert!(open.iter().any(|f| f["id"] == finding["id"]), "nobody has resolved it: {open:#?}");
    await_detail(&daemon, "netlink", &["rtnetlink has not answered for"]);
    println!("FIGURE held for {:.0} s", began.elapsed().as_secs_f64());
    held.release();
    let says_so = || detail(&daemon, "netlink").1.contains("rtnetlink");
    until("netlink is read again", RECOVERY, || !says_so());
    until("the other netns is known", RECOVERY, || daemon.ip_in(lab.ip(8), late.inode).is_some());
    hung.release();
    until("it has ended", RECOVERY, || daemon.findings_in(known.inode).is_empty());
    assert!(daemon.stop().success());
}

/// The path of a runtime's socket leads through a directory of a file system that no longer answers, and so do those
/// of the kubelet and the collector.
fn a_runtime_below_a_hung_mount(lab: &Lab) {
    // Dropped last: it cannot end while one of its threads hangs.
    let daemon;
    let dir = lab.subdir("runtime");
    let socket = dir.join("containerd.sock");
    let runtime = FakeCri::start_at(lab, &socket);
    // Mounted over the directory with the socket: when the server ends, the socket is visible again.
    let mut hung = Hung::mount_silent(&dir);
    let kubelet = dir.join("pods-api.sock");
    let text = format!("[kubernetes]\nkubelet_socket = {kubelet:?}");
    let config = config(lab).cri(&socket).line(&text);
    let collector = dir.join("otlp.sock");
    daemon = Daemon::start(lab, &config.otlp(&format!("unix://{}", collector.display())));
    another_is_found(lab, &daemon, 8);
    await_detail(&daemon, "runtimes", &[socket.to_str().unwrap(), "has not answered for"]);
    let (status, told) = detail(&daemon, "containerd");
    println!("FIGURE containerd is {status}: {told}");
    assert_eq!(status, "down", "{told}");
    assert!(told.contains(socket.to_str().unwrap()), "{told}");
    hung.release();
    // The fake has no events: it is polled, and its detail shows that.
    until("the runtime is asked", RECOVERY, || detail(&daemon, "containerd").1.contains("mock"));
    until("and nothing hangs", RECOVERY, || detail(&daemon, "runtimes").0 == "active");
    assert!(daemon.stop().success());
    drop(runtime);
}

/// The runtime reports its name, and takes ten seconds for everything else. A `scan` reports the others' findings
/// without it.
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
    // Details are requested for each of them.
    let dead = |n| format!("sandbox {n:064x} NOTREADY shop api-{n} uid-{n} 0\n");
    let many: String = (0..40).map(dead).collect();
    for slow in ["slow 10 List", "slow 1000 List", "slow 10 PodSandboxStatus"] {
        runtime.has(&format!("{slow}\n{}{many}", FakeCri::lines(&pod, "NOTREADY")));
        let took = scan(slow);
        // Without a time limit it would take more than six seconds.
        assert!(took < usual + Duration::from_secs(5) * patience(), "{slow}: {took:?}, {usual:?}");
    }
    hung.release();
}
