//! Who keeps a netns alive: every kind of holder alone, and holders that come, move and go.

use serde_json::Value;
use support::fuse::Hung;
use support::role::{Helper, Role, Running};
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns};

support::tests! {
    a_bind_mount_alone_is_named needs [SharedDaemon] @ Kernel Stock Rung Container,
    a_mount_in_another_mount_namespace_is_named needs [SharedDaemon] @ Kernel Stock Rung Container,
    an_fd_alone_is_named needs [SharedDaemon] @ Kernel Stock Rung Container,
    a_socket_alone_is_named needs [SharedDaemon] @ Kernel Stock Rung Container,
    a_thread_of_a_zombie_leader_is_named needs [SharedDaemon] @ Kernel Stock Rung Container,
    an_fd_in_flight_names_who_may_receive_it needs [SharedDaemon] @ Kernel Stock Rung Container,
    holders_of_before_the_start_are_named @ Kernel Stock Rung Container,
    an_exiting_process_stays_a_holder_until_its_netns_is_gone needs [SharedDaemon, Fuse] @ Kernel Stock Rung Container,
    setns_and_unshare_move_a_holder needs [SharedDaemon] @ Kernel Stock Rung Container,
    a_process_that_ends_is_no_holder needs [SharedDaemon] @ Kernel Stock Rung Container,
}

/// A netns with an address on eth0.
fn with_address(lab: &Lab, hint: &str) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    netns
}

/// Starts a helper that holds the netns in the given way, then removes the netns's name.
fn hold_alone(role: Role, netns: &Netns) -> Running {
    let path = netns.path().to_str().unwrap().to_owned();
    let helper = Helper::new(role).arg(&path).comm("keeper").start();
    netns.unname();
    helper
}

/// Without probes a netns is known only if it was seen while it had a name, or if a device event told of it.
fn is_known_by_its_name(daemon: &Daemon, lab: &Lab, netns: &Netns) {
    if support::daemon::probes() == "off" {
        daemon.await_ip(lab.ip(7), netns.inode);
    }
}

fn a_bind_mount_alone_is_named(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = with_address(lab, "m");
    let path = netns.path().to_str().unwrap();
    let is = |h: &Value| h["kind"] == "mount" && h["mount_path"] == path;
    let holder = daemon.await_holder(lab.ip(7), netns.inode, "mount", is);
    assert!(holder["mount_ns"].is_u64() && holder["pid"].is_null(), "{holder}");
}

/// The usual culprit: an agent in its own mount namespace still has the name mounted.
fn a_mount_in_another_mount_namespace_is_named(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = with_address(lab, "m2");
    let path = netns.path().to_str().unwrap().to_owned();
    let agent = Helper::new(Role::Agent).comm("agent").start();
    netns.unmount();
    // Before the unmount here, the host's mount may have been reported.
    let is = |h: &Value| {
        let there = h["mount_path"] == path.as_str() && h["mount_ns_pid"] == agent.pid();
        h["kind"] == "mount" && there
    };
    daemon.await_holder(lab.ip(7), netns.inode, "mount of the agent", is);
    agent.end();
    daemon.await_no_ip(lab.ip(7), netns.inode);
}

fn an_fd_alone_is_named(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = with_address(lab, "fd");
    is_known_by_its_name(&daemon, lab, &netns);
    let helper = hold_alone(Role::HoldFd, &netns);
    let is = |h: &Value| h["kind"] == "fd" && h["pid"] == helper.pid();
    let holder = daemon.await_holder(lab.ip(7), netns.inode, "fd", is);
    assert_eq!(holder["comm"], "keeper");
    assert!(holder["fd"].is_u64(), "{holder}");
    helper.end();
    daemon.await_no_ip(lab.ip(7), netns.inode);
}

fn a_socket_alone_is_named(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = with_address(lab, "so");
    is_known_by_its_name(&daemon, lab, &netns);
    let helper = hold_alone(Role::HoldSocket, &netns);
    let is = |h: &Value| h["kind"] == "socket" && h["pid"] == helper.pid();
    let holder = daemon.await_holder(lab.ip(7), netns.inode, "socket", is);
    assert_eq!(holder["comm"], "keeper");
    helper.end();
    daemon.await_no_ip(lab.ip(7), netns.inode);
}

fn a_thread_of_a_zombie_leader_is_named(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = with_address(lab, "th");
    is_known_by_its_name(&daemon, lab, &netns);
    let helper = hold_alone(Role::ZombieLeader, &netns);
    let is = |h: &Value| h["kind"] == "thread" && h["pid"] == helper.pid();
    let holder = daemon.await_holder(lab.ip(7), netns.inode, "thread", is);
    let tid = support::proc::tasks_in(netns.inode)[0].1;
    assert_eq!(holder["tid"], tid, "{holder}");
    helper.end();
    daemon.await_no_ip(lab.ip(7), netns.inode);
}

/// No process has it: this must neither make the netns vanish nor blame anybody, and who would receive it is named as a
/// candidate.
fn an_fd_in_flight_names_who_may_receive_it(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = with_address(lab, "fl");
    daemon.await_ip(lab.ip(7), netns.inode);
    let helper = hold_alone(Role::HoldInFlight, &netns);
    support::poll::until("its receiver is named as a candidate", 10, || {
        let address = daemon.ip_in(lab.ip(7), netns.inode).expect("still shown");
        let holders = address["holders"].as_array().unwrap();
        let Some((kernel, candidates)) = holders.split_first() else {
            // Only a search that could read everything may say "kernel"; without a probe's list of files it depends on
            // the host whether there is such a search.
            return support::daemon::probes() == "off";
        };
        let named = candidates.iter().any(|h| h["pid"] == helper.pid() && h["unread_fds"] == 1);
        let others = candidates.iter().all(|holder| holder["kind"] == "candidate");
        kernel["kind"] == "kernel" && named && others
    });
    helper.end();
    daemon.await_no_ip(lab.ip(7), netns.inode);
}

fn holders_of_before_the_start_are_named(lab: &Lab) {
    let kinds =
        [(Role::HoldFd, "fd"), (Role::HoldSocket, "socket"), (Role::ZombieLeader, "thread")];
    let held = kinds.map(|(role, kind)| {
        let netns = with_address(lab, kind);
        (hold_alone(role, &netns), netns, kind)
    });
    let daemon = Daemon::start(lab, &Config::default());
    for (helper, netns, kind) in &held {
        let is = |h: &Value| h["kind"] == *kind && h["pid"] == helper.pid();
        daemon.await_holder(lab.ip(7), netns.inode, kind, is);
    }
}

fn an_exiting_process_stays_a_holder_until_its_netns_is_gone(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let daemon = Daemon::shared(lab);
    let netns = with_address(lab, "ex");
    let mut helper = stuck::start(How::Exit, &netns, &mut hung);
    netns.unname();
    let pid = helper.pid();
    daemon.await_holder(lab.ip(7), netns.inode, "the helper", |h| h["pid"] == pid);
    stuck::hang(How::Exit, &mut helper);
    let is = |h: &Value| h["pid"] == pid && h["exiting"] == true;
    daemon.await_holder(lab.ip(7), netns.inode, "that exits", is);
    hung.release();
    daemon.await_no_ip(lab.ip(7), netns.inode);
}

fn setns_and_unshare_move_a_holder(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let (a, b) = (with_address(lab, "a"), with_address(lab, "b"));
    let mut mover = Helper::new(Role::Mover).inside(&a).start();
    let pid = mover.pid();
    let holds = |netns: &Netns| {
        let address = daemon.await_ip(lab.ip(7), netns.inode);
        address["holders"]
            .as_array()
            .unwrap()
            .iter()
            .any(|holder| holder["pid"] == pid && holder["kind"] == "process")
    };
    support::poll::until("it holds the first", 10, || holds(&a) && !holds(&b));
    mover.ask(&format!("setns {}", b.path().display()));
    support::poll::until("setns moves it", 10, || !holds(&a) && holds(&b));
    mover.ask("unshare");
    support::poll::until("unshare takes it away", 10, || !holds(&a) && !holds(&b));
}

fn a_process_that_ends_is_no_holder(lab: &Lab) {
    let daemon = Daemon::shared(lab);
    let netns = with_address(lab, "end");
    let helper = Helper::new(Role::Park).inside(&netns).start();
    let pid = helper.pid();
    daemon.await_holder(lab.ip(7), netns.inode, "the helper", |h| h["pid"] == pid);
    helper.end();
    support::poll::until("it is no holder any more", 10, || {
        let address = daemon.await_ip(lab.ip(7), netns.inode);
        !address["holders"].as_array().unwrap().iter().any(|h| h["pid"] == pid)
    });
}
