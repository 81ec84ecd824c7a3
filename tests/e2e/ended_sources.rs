//! A part of a source that ends with an error is reported once and restarted; what it missed is read then.

use support::poll::until;
use support::role::{Helper, Role};
use support::{Config, Daemon, Lab, Netns, sys};

support::tests! {
    the_mount_table_is_watched_again_after_files_ran_out,
}

/// The log text for the end of the watch.
const ENDED: &str = "the watch of the mount table has ended and is started again";

/// A netns with a name and a process in it, so that only the mount table shows what becomes of the name.
fn named(lab: &Lab, hint: &str, host: u8) -> (Netns, support::role::Running) {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(host), "eth0");
    let helper = Helper::new(Role::Park).inside(&netns).start();
    (netns, helper)
}

fn await_mount(daemon: &Daemon, lab: &Lab, netns: &Netns, host: u8) {
    daemon.await_holder(lab.ip(host), netns.inode, "its mount", |h| h["kind"] == "mount");
}

fn await_no_mount(daemon: &Daemon, lab: &Lab, netns: &Netns, host: u8) {
    until("the mount is gone", 15, || {
        let held = daemon.ip_in(lab.ip(host), netns.inode).expect("a process is in it");
        held["holders"].as_array().is_some_and(|all| all.iter().all(|h| h["kind"] != "mount"))
    });
}

fn the_mount_table_is_watched_again_after_files_ran_out(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let (netns, _inside) = named(lab, "gap", 7);
    await_mount(&daemon, lab, &netns, 7);
    let state = || daemon.source("procfs").expect("it is told");
    let before = state();

    // From now on every file that the daemon opens exceeds its limit.
    let most = sys::limit_files(daemon.pid(), Some(3)).expect("limit the daemon's files");
    netns.unmount();
    until("its end is told", 15, || daemon.log().contains("mount table"));
    // Time for some failing attempts.
    std::thread::sleep(std::time::Duration::from_secs(4));
    sys::limit_files(daemon.pid(), most).expect("let the daemon open files");
    until("it works again", 60, || state() == before);
    let log = daemon.log();
    let states = log.lines().filter(|line| line.contains("source=\"procfs\""));
    let states: Vec<&str> = states.filter_map(|line| Some(line.split_once("core: ")?.1)).collect();
    assert!(states.iter().any(|state| state.contains(ENDED)), "{states:#?}");
    let repeated = states.windows(2).any(|two| two[0] == two[1]);
    assert!(!repeated, "each change is told, and not each try: {states:#?}");

    // What happened meanwhile has been read.
    await_no_mount(&daemon, lab, &netns, 7);
    let (later, _inside) = named(lab, "later", 8);
    await_mount(&daemon, lab, &later, 8);
    later.unmount();
    await_no_mount(&daemon, lab, &later, 8);
}
