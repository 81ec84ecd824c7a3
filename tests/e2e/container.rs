//! The daemon in a container, run by runc according to the shipped manifest: it sees what it sees on the node, and
//! keeps nothing of the node alive. Other areas run this way too: `IPWATCH_TEST_CONTAINER`.

use std::fs;

use support::container::Plan;
use support::{Config, Daemon, Lab, Netns, eventually};

support::tests! {
    it_answers_as_on_the_node needs [Runc],
    it_keeps_no_netns_alive needs [Runc],
    what_would_keep_one_alive_is_refused needs [Runc],
    what_is_not_the_nodes_is_refused needs [Runc],
}

fn start(lab: &Lab) -> Daemon {
    let mut daemon =
        Daemon::spawn_in(&Plan::default(), lab, &Config::default(), &lab.subdir("state"));
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
    let rungs = |daemon: &Daemon| {
        let probes = daemon.list("probes", &["doctor"]);
        let rung = |probe: &serde_json::Value| format!("{} by {}", probe["event"], probe["rung"]);
        probes.iter().map(rung).collect::<Vec<_>>()
    };
    let inside = rungs(&contained);
    assert!(contained.stop().success());
    if !support::container::wanted() {
        let daemon = Daemon::start(lab, &Config::default());
        assert_eq!(inside, rungs(&daemon), "nothing is seen by a lower rung in the container");
    }
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
