//! The daemon in a container, run by runc according to the shipped manifest: it sees what it sees on the node, and
//! keeps nothing of the node alive. Other areas run this way too: `IPWATCH_TEST_CONTAINER`.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::collector::Collector;
use support::container::Plan;
use support::poll::until;
use support::{Config, Daemon, Lab, Netns, eventually};

support::tests! {
    it_answers_as_on_the_node needs [Runc],
    it_keeps_no_netns_alive needs [Runc],
    what_would_keep_one_alive_is_refused needs [Runc],
    what_is_not_the_nodes_is_refused needs [Runc],
    a_collector_is_named_by_its_service needs [Runc, Rotel],
    it_needs_no_more_system_calls_than_its_profile_allows needs [Runc],
}

fn start(lab: &Lab) -> Daemon {
    start_as(lab, &Plan::default(), &Config::default())
}

fn start_as(lab: &Lab, plan: &Plan, config: &Config) -> Daemon {
    let mut daemon = Daemon::spawn_in(plan, lab, config, &lab.subdir("state"));
    daemon.await_ready();
    daemon
}

fn with_address(lab: &Lab) -> Netns {
    let netns = Netns::new(lab, "n");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    netns
}

fn it_answers_as_on_the_node(lab: &Lab) {
    let before = with_address(lab);
    let contained = start(lab);
    let path = before.path().to_str().unwrap();
    let is = |holder: &serde_json::Value| {
        holder["kind"] == "mount"
            && holder["mount_path"] == path
            && holder["mount_ns_pid"].is_u64()
            && holder["pid"].is_null()
    };
    contained.await_holder(lab.ip(7), before.inode, "mount, by its path on the node", is);
    let later = Netns::new(lab, "later");
    later.veth_to_host();
    later.add_address(&lab.cidr(8), "eth0");
    contained.await_ip(lab.ip(8), later.inode);
    later.ip(&format!("addr del {} dev eth0", lab.cidr(8)));
    contained.await_no_ip(lab.ip(8), later.inode);
    let inside = rungs(&contained);
    assert!(contained.stop().success());
    if !support::container::wanted() {
        let daemon = Daemon::start(lab, &Config::default());
        assert_eq!(inside, rungs(&daemon), "nothing is seen by a lower rung in the container");
    }
}

/// By which rung each event is seen.
fn rungs(daemon: &Daemon) -> Vec<String> {
    let probes = daemon.list("probes", &["doctor"]);
    let rung = |probe: &serde_json::Value| format!("{} by {}", probe["event"], probe["rung"]);
    probes.iter().map(rung).collect()
}

/// Under `deploy/kubernetes/seccomp.json`. Every source is as it is without, and the canary's events are all seen.
fn it_needs_no_more_system_calls_than_its_profile_allows(lab: &Lab) {
    let states = |daemon: &Daemon| {
        let sources = daemon.list("sources", &["doctor", "--canary"]);
        let state = |one: &serde_json::Value| format!("{} {}", one["name"], one["status"]);
        sources.iter().map(state).collect::<Vec<_>>()
    };
    let free = start(lab);
    let expected = (rungs(&free), states(&free));
    assert!(free.stop().success());
    let daemon = start_as(lab, &Plan::default().under_seccomp(), &Config::default());
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    assert!(status.lines().any(|line| line == "Seccomp:\t2"), "{status}");
    assert_eq!((rungs(&daemon), states(&daemon)), expected);
    let netns = with_address(lab);
    daemon.await_ip(lab.ip(7), netns.inode);
    assert!(daemon.stop().success());
}

/// As with `dnsPolicy: ClusterFirstWithHostNet`: kubelet's `/etc/resolv.conf` is in the container, not below `/host`.
fn a_collector_is_named_by_its_service(lab: &Lab) {
    let collector = Collector::start(lab);
    let (_, port) = collector.endpoint.rsplit_once(':').unwrap();
    let endpoint = format!("http://otel.observability:{port}");
    let config = Config::default().otlp(&endpoint).otlp_line("tenures = true");
    let dns = Dns::start("otel.observability.svc.cluster.test");
    let resolv = format!(
        "nameserver {}\nsearch ipwatch.svc.cluster.test svc.cluster.test\noptions ndots:5\n",
        dns.address
    );
    let plan = Plan::default().file("/etc/resolv.conf", &resolv);
    let daemon = start_as(lab, &plan, &config);
    let netns = with_address(lab);
    daemon.await_ip(lab.ip(7), netns.inode);
    netns.ip(&format!("addr del {} dev eth0", lab.cidr(7)));
    daemon.await_no_ip(lab.ip(7), netns.inode);
    let ip = lab.ip(7).to_string();
    until("the span of its tenure has arrived", 40, || collector.received().contains(&ip));
    assert!(dns.has_answered());
    assert!(daemon.stop().success());
}

/// A DNS server with one name, on an address of the loopback device of its own.
struct Dns {
    address: Ipv4Addr,
    answered: Arc<AtomicBool>,
}

impl Dns {
    fn start(name: &str) -> Self {
        let [_, b, c, d] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 128 | b, c, d.clamp(1, 254));
        let socket = UdpSocket::bind((address, 53)).unwrap();
        let answered = Arc::new(AtomicBool::new(false));
        let (name, has) = (encoded(name), Arc::clone(&answered));
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let Some(reply) = reply(&buffer[..length], &name) else { continue };
                has.fetch_or(reply[7] == 1, Ordering::SeqCst);
                let _ = socket.send_to(&reply, from);
            }
        });
        Self { address, answered }
    }

    fn has_answered(&self) -> bool {
        self.answered.load(Ordering::SeqCst)
    }
}

/// A name as in a message: each label after its length.
fn encoded(name: &str) -> Vec<u8> {
    let label = |label: &str| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat();
    name.split('.').flat_map(label).chain([0]).collect()
}

/// The answer to a query of one question (RFC 1035): 127.0.0.1 if it asks for the IPv4 address of `name`.
fn reply(query: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let asked = query.get(12..12 + name.len()).is_some_and(|asked| asked == name);
    let end = 12 + query.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
    let is_a = query.get(end..end + 2)? == [0, 1];
    let found = asked && is_a;
    let code = if asked { 0 } else { 3 };
    let mut reply =
        [&query[..2], &[0x81, 0x80 | code, 0, 1, 0, u8::from(found), 0, 0, 0, 0]].concat();
    reply.extend_from_slice(query.get(12..end + 4)?);
    if found {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
    }
    Some(reply)
}

/// The agent in R6 kept the mounts of dead containers, by a copy of the node's mounts that did not follow them.
fn it_keeps_no_netns_alive(lab: &Lab) {
    let netns = with_address(lab);
    let daemon = start(lab);
    daemon.await_ip(lab.ip(7), netns.inode);
    let mounted = || {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", daemon.pid())).unwrap();
        mounts.contains(&format!("net:[{}]", netns.inode))
    };
    assert!(mounted(), "the container has the node's /run, and what is mounted there");
    netns.unname();
    assert!(!mounted());
    daemon.await_no_ip(lab.ip(7), netns.inode);
    eventually("its end of the pair went with it", 10, || {
        let devices = fs::read_to_string("/proc/net/dev").unwrap();
        (!devices.contains(&lab.tag().to_string())).then_some(())
    });
}

fn what_would_keep_one_alive_is_refused(lab: &Lab) {
    let _netns = with_address(lab);
    let said = refused(lab, &Plan::default().private());
    assert!(said.contains("mountPropagation HostToContainer"), "{said}");
}

fn what_is_not_the_nodes_is_refused(lab: &Lab) {
    let said = refused(lab, &Plan::default().own_pids());
    assert!(said.contains("hostPID"), "{said}");
    let said = refused(lab, &Plan::default().own_network());
    assert!(said.contains("hostNetwork"), "{said}");
}

/// The message with which the daemon refuses to start.
fn refused(lab: &Lab, plan: &Plan) -> String {
    let mut daemon = Daemon::spawn_in(plan, lab, &Config::default(), &lab.subdir("state"));
    assert_eq!(daemon.ended(), Some(2), "{}", daemon.log());
    let log = daemon.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("ipwatch: ")).collect();
    let last = lines.last().unwrap_or_else(|| panic!("one line says why:\n{log}"));
    (*last).to_owned()
}
