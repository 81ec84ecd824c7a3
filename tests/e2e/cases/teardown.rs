//! The kernel's worker hangs in the teardown of a netns.

use std::time::Duration;

use serde_json::Value;
use support::harness::case;
use support::remedy::Shell;
use support::{Daemon, Lab, Netns, eventually, patience, rtnl};

use super::{GRACE, SOON, config, evidence};

support::tests! {
    a_teardown_that_hangs_while_it_is_watched needs [OwnMachine] @ Alone Kernel Stock,
    a_teardown_that_hung_before_the_start needs [OwnMachine] @ Alone Kernel Stock,
}

const CODE: &str = "netns-teardown-stuck";

fn with_address(lab: &Lab, hint: &str) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    netns
}

/// Checks that the hanging worker is named.
fn names_the_worker(finding: &Value) -> u32 {
    let (pid, view) = eventually("a worker hangs", 10, rtnl::cleanup_worker);
    assert_eq!(finding["holders"][0]["pid"], pid, "{finding:#?}");
    assert_eq!(finding["holders"][0]["state"], view.state.to_string(), "{finding:#?}");
    assert!(evidence(finding).contains("cleanup_net"), "{finding:#?}");
    pid
}

fn a_teardown_that_hangs_while_it_is_watched(lab: &Lab) {
    let daemon = Daemon::start(lab, &config());
    let (netns, behind) = (with_address(lab, "first"), Netns::new(lab, "second"));
    daemon.await_ip(lab.ip(7), netns.inode);
    let held = rtnl::Held::take();
    drop(netns);
    eventually("a worker hangs", 10, rtnl::cleanup_worker);
    drop(behind);
    let finding = daemon.await_firing(CODE, SOON, |_| true);
    assert_eq!(finding["severity"], "info", "{finding:#?}");
    let pid = names_the_worker(&finding);
    Shell::new(lab).looks(&finding);
    let leaked: Vec<Value> =
        daemon.findings().into_iter().filter(|f| f["code"] == "netns-leaked").collect();
    assert!(leaked.is_empty(), "what waits is queued, not leaked: {leaked:#?}");
    held.release();
    daemon.await_resolved(&finding, SOON);
    case("rtnl is held while netns die", CODE, &format!("kernel worker {pid}, its stack"), "yes");
}

/// Only the worker itself shows it.
fn a_teardown_that_hung_before_the_start(lab: &Lab) {
    let netns = with_address(lab, "first");
    let held = rtnl::Held::take();
    drop(netns);
    eventually("a worker hangs", 10, rtnl::cleanup_worker);
    std::thread::sleep(Duration::from_secs(1) * patience());
    let daemon = Daemon::start(lab, &config());
    let finding = daemon.await_firing(CODE, SOON, |_| true);
    let pid = names_the_worker(&finding);
    assert_eq!(finding["preexisting"], true, "{finding:#?}");
    held.release();
    daemon.await_resolved(&finding, SOON + GRACE);
    case("the same, before the daemon", CODE, &format!("kernel worker {pid}, its stack"), "yes");
}
