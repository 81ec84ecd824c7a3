//! Runtimes that hang, lie or are broken, and other hostile input around pods: the daemon answers, its other sources
//! go on, nothing is concluded from silence, and nothing dangerous reaches a terminal.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use support::fake_cri::FakeCri;
use support::fuse::Hung;
use support::pod::Containerd;
use support::poll::until;
use support::role::{Helper, Role};
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, Sandbox, patience};

support::tests! {
    a_runtime_that_never_answers needs [Fuse],
    a_runtime_that_answers_garbage needs [Fuse],
    a_runtime_that_hangs_up needs [Fuse],
    a_runtime_that_hangs_beside_one_that_answers needs [FakeCri],
    ten_thousand_mounts,
    tasks_that_die_between_two_reads,
    names_with_control_characters needs [FakeCri, Fuse],
    a_pod_name_of_253_characters needs [Pods],
}

/// Kinds of garbage that a socket may deliver.
const GARBAGE: [&[u8]; 4] = [
    b"\x00\xff\xfe\x1b[2J\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n{\"Id\": [[[[[[",
    // An empty SETTINGS frame of HTTP/2, and then the header of a 16 MiB frame without its data.
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\xff\xff\xff\x00\x01\x00\x00\x00\x01junk",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
];

/// A socket whose connections are handled by `answer`, for as long as the test runs.
fn listen(lab: &Lab, answer: fn(UnixStream, usize)) -> PathBuf {
    let path = lab.dir().join("bad.sock");
    let listener = UnixListener::bind(&path).expect("bind a socket");
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().flatten().enumerate() {
            std::thread::spawn(move || answer(stream, n));
        }
    });
    path
}

fn config(lab: &Lab) -> Config {
    Config::default().grace(1).holders_grace(1).leak_age(1).cache_dir(&lab.subdir("cni"))
}

/// A netns of a pod, with an address and without a task: a leak, if the runtime confirmed that.
fn taskless(lab: &Lab) -> (Netns, Sandbox) {
    let netns = Netns::new(lab, "idle");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    (netns, pod)
}

/// Checks that the other sources answer, and that the socket is reported.
fn others_answer(daemon: &Daemon) {
    let document = daemon.document(&["doctor"]).expect("doctor");
    let sources = document["sources"].as_array().expect("sources");
    for name in ["netlink", "procfs", "cni"] {
        let source = sources.iter().find(|source| source["name"] == name);
        let status = source.map(|source| source["status"].clone()).unwrap_or_default();
        assert!(status == "active" || status == "degraded", "{name} is {status}: {sources:#?}");
    }
    let told = sources.iter().find(|s| s["detail"].as_str().unwrap_or("").contains("bad.sock"));
    let told = told.unwrap_or_else(|| panic!("nothing is said of the socket: {sources:#?}"));
    assert_eq!(told["status"], "down", "{told:#?}");
}

/// Checks that nothing is reported about the idle netns, and that what needs no runtime is found as usual.
fn costs_nothing_else(lab: &Lab, answer: fn(UnixStream, usize)) {
    let socket = listen(lab, answer);
    let (idle, _pod) = taskless(lab);
    let daemon = Daemon::start(lab, &config(lab).cri(&socket));
    let mut hung = Hung::mount(lab);
    let netns = Netns::new(lab, "stuck");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(8), "eth0");
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    let finding = daemon.await_firing("ip-held-by-stuck-process", 15, |finding| {
        finding["subject"]["netns"]["inode"] == netns.inode
    });
    assert_eq!(finding["holders"][0]["pid"], helper.pid());
    std::thread::sleep(Duration::from_secs(8));
    others_answer(&daemon);
    let findings = daemon.findings_in(idle.inode);
    assert!(findings.is_empty(), "a silence proves nothing: {findings:#?}");
    let scan = std::time::Instant::now();
    assert!(daemon.ask(&["query", "ip"]).status.success());
    assert!(scan.elapsed() < Duration::from_secs(5) * patience(), "it answers without delay");
    assert!(daemon.stop().success(), "and stops in order");
}

fn a_runtime_that_never_answers(lab: &Lab) {
    costs_nothing_else(lab, |mut stream, _| {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
    });
}

fn a_runtime_that_answers_garbage(lab: &Lab) {
    costs_nothing_else(lab, |mut stream, n| {
        let _ = stream.write_all(GARBAGE[n % GARBAGE.len()]);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
    });
}

fn a_runtime_that_hangs_up(lab: &Lab) {
    costs_nothing_else(lab, |stream, _| drop(stream));
}

/// A runtime that does not answer may have the sandbox, so nobody can say that it is gone.
fn a_runtime_that_hangs_beside_one_that_answers(lab: &Lab) {
    let socket = listen(lab, |mut stream, _| {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
    });
    let good = FakeCri::start(lab);
    let (idle, pod) = taskless(lab);
    let daemon = Daemon::start(lab, &config(lab).cri(&socket).cri(good.socket()));
    std::thread::sleep(Duration::from_secs(12));
    let findings = daemon.findings_in(idle.inode);
    assert!(findings.is_empty(), "a silence proves nothing: {findings:#?}");
    // The other runtime's state is still shown.
    good.has_pod(&pod, "READY");
    until("the good one's word is shown", 20, || {
        daemon.ip_in(lab.ip(7), idle.inode).is_some_and(|a| a["pod"]["state"] == "Ready")
    });
    others_answer(&daemon);
}

/// The mount namespace that has the only mount of a netns.
fn ten_thousand_mounts(lab: &Lab) {
    let (netns, pod) = taskless(lab);
    let dir = lab.subdir("crowd");
    let crowd = Helper::new(Role::Crowd).arg(dir.to_str().unwrap()).arg("10000").start();
    netns.unmount();
    let daemon = Daemon::start(lab, &config(lab).cache_dir(pod.cache()));
    let is = |h: &Value| h["kind"] == "mount" && h["mount_ns_pid"] == crowd.pid();
    let holder = daemon.await_holder(lab.ip(7), netns.inode, "the mount among many", is);
    assert_eq!(holder["mount_path"], netns.path().to_str().unwrap());
    let rss = support::proc::rss_kib(daemon.pid());
    println!("{rss} kB after reading them");
    crowd.end();
    daemon.await_no_ip(lab.ip(7), netns.inode);
}

/// Short-lived processes, each killed: by the time its data is read, the process is gone.
fn tasks_that_die_between_two_reads(lab: &Lab) {
    let netns = Netns::new(lab, "flash");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let daemon = Daemon::start(lab, &config(lab));
    let follower = daemon.follow();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(6) {
        let script = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 60 & kill -9 $!; done; wait";
        netns.run(|| {
            let mut sh = std::process::Command::new("sh");
            sh.args(["-c", script]).stderr(std::process::Stdio::null()).status().unwrap();
        });
        assert!(daemon.ask(&["query", "netns", &netns.inode.to_string()]).status.success());
    }
    let about = |change: &&Value| change["finding"]["subject"]["netns"]["inode"] == netns.inode;
    let changes = follower.changes();
    let told: Vec<&Value> = changes.iter().filter(about).collect();
    assert!(told.is_empty(), "{told:#?}");
    until("none of them is taken for a holder", 10, || {
        let address = daemon.ip_in(lab.ip(7), netns.inode).expect("its IP is still there");
        !address["holders"].to_string().contains("\"process\"")
    });
}

/// Control characters in the names of a process, a container and a pod. JSON keeps them, escaped; no text output
/// prints them.
fn names_with_control_characters(lab: &Lab) {
    const EVIL: &str = "x\u{1b}[2J\u{7}\r\u{202e}y";
    let runtime = FakeCri::start(lab);
    let mut hung = Hung::mount(lab);
    let (netns, pod) = taskless(lab);
    let lines = FakeCri::lines(&pod, "READY").replace("main", EVIL).replace("api-0", EVIL);
    runtime.has(&lines);
    let config = config(lab).cache_dir(pod.cache()).cri(runtime.socket());
    let daemon = Daemon::start(lab, &config);
    daemon.await_source("containerd");
    let mut helper =
        stuck::start_as(How::Kill, &netns, &mut hung, |helper| helper.within(&pod).comm(EVIL));
    pod.await_in(helper.pid());
    daemon.await_holder(lab.ip(7), netns.inode, "the helper", |h| h["pid"] == helper.pid());
    std::thread::sleep(Duration::from_millis(300) * patience());
    stuck::hang(How::Kill, &mut helper);
    let finding = daemon.await_firing("ip-held-by-stuck-process", 15, |finding| {
        finding["subject"]["netns"]["inode"] == netns.inode
    });
    let id = finding["id"].as_str().unwrap().to_owned();
    assert!(finding.to_string().contains("\\u001b[2J"), "exact in JSON: {finding}");
    let inode = netns.inode.to_string();
    let questions: &[&[&str]] = &[
        &["query", "ip"],
        &["query", "ip", "-o", "wide"],
        &["query", "pod"],
        &["query", "netns", &inode, "-o", "tree"],
        &["query", "netns", &inode, "-o", "name"],
        &["query", "findings"],
        &["query", "findings", "-o", "wide"],
        &["query", "history"],
        &["explain", &id],
        &["explain", &id, "--evidence"],
        &["doctor"],
    ];
    for question in questions {
        let out = daemon.ask(question);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{question:?}: {said}");
        is_clean(&said, &format!("{question:?}"));
    }
    is_clean(&daemon.log(), "the log");
}

#[track_caller]
fn is_clean(text: &str, what: &str) {
    let evil = text.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
    assert!(evil.is_none(), "{what} has a raw {evil:?}:\n{}", text.escape_debug());
}

/// The longest pod name that Kubernetes allows.
fn a_pod_name_of_253_characters(lab: &Lab) {
    let name = format!("{}-0", "n".repeat(251));
    let containerd = Containerd::shared(lab);
    let daemon = Daemon::start(lab, &config(lab).cri(containerd.socket()));
    daemon.await_source("containerd");
    let pod = containerd.run(&name, lab.dir(), &["/bin/sleep", "1000000"]);
    until("it is known by its whole name", 20, || {
        daemon.ip_in(&pod.ip, pod.netns).is_some_and(|a| a["pod"]["name"] == name.as_str())
    });
    let found = daemon.list("addresses", &["query", "pod", &format!("shop/{name}")]);
    assert!(found.iter().any(|address| address["ip"] == pod.ip.as_str()), "{found:#?}");
    for question in [["query", "pod"], ["query", "ip"]] {
        assert!(daemon.ask(&question).status.success());
    }
    containerd.stop(&pod);
    daemon.await_no_ip(&pod.ip, pod.netns);
}
