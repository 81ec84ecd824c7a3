//! Container runtimes as people run them: the versions of three Debian suites ([`Suite`]), each with the libc, the shims,
//! the OCI runtime and the network plugins of its suite. Each is used as a node does ([`never::Watch`]: nothing may be
//! reported, not even as `pending`), restarted and upgraded under running containers, and then breaks: what is stuck
//! or leaked must be found, with its holder.
//!
//! The newest suite is tested in every run, the older ones with `--long`.

pub(crate) mod containerd;
pub(crate) mod dockerd;
pub(crate) mod podman;

use std::time::Duration;

use serde_json::Value;
use support::contained::Container;
use support::{Config, Daemon, patience};

/// Every grace in these tests, in seconds: longer than a container takes to end, and much shorter than the default.
const GRACE: u32 = 3;
/// Seconds until a finding must fire: its grace, two answers of a runtime that is asked every five seconds, and a
/// reconnection to one that was restarted.
const SOON: u32 = 60;
/// How many containers come and go.
const CHURN: usize = 12;

const STUCK: &str = "ip-held-by-stuck-process";
const DEAD: &str = "ip-held-by-dead-sandbox";
const LEAKED: &str = "netns-leaked";
const RESERVED: &str = "ipam-reservation-leaked";

/// Scenarios that are functions of a lab and a suite, as tests of each suite.
macro_rules! on_each_suite {
    ($($scenario:ident needs [$($need:ident),*]),* $(,)?) => {
        pub(crate) mod sid {
            use super::{Lab, Suite};

            support::tests! { $($scenario needs [$($need,)* Sid]),* }

            $(fn $scenario(lab: &Lab) {
                super::$scenario(lab, Suite::Sid);
            })*
        }

        pub(crate) mod trixie {
            use super::{Lab, Suite};

            support::tests! { $($scenario needs [$($need,)* Bookworm, Trixie] @ Long),* }

            $(fn $scenario(lab: &Lab) {
                super::$scenario(lab, Suite::Trixie);
            })*
        }

        pub(crate) mod bookworm {
            use super::{Lab, Suite};

            support::tests! { $($scenario needs [$($need,)* Bookworm] @ Long),* }

            $(fn $scenario(lab: &Lab) {
                super::$scenario(lab, Suite::Bookworm);
            })*
        }
    };
}
use on_each_suite;

fn config() -> Config {
    Config::default().grace(GRACE).holders_grace(GRACE).leak_age(GRACE)
}

/// Longer than a finding may take to be raised: graces, polls and second looks.
fn wait() {
    std::thread::sleep(Duration::from_secs(10) + Duration::from_secs(2) * patience());
}

fn is_in(netns: u64) -> impl Fn(&Value) -> bool {
    move |finding| finding["subject"]["netns"]["inode"] == netns
}

/// Waits until the runtime's state of a container or pod in this netns is known.
#[track_caller]
fn await_state(daemon: &Daemon, ip: &str, netns: u64, states: &[&str]) {
    let mut seen = Value::Null;
    support::poll::settle(30, || {
        seen = daemon.ip_in(ip, netns).unwrap_or_default();
        let is = |part: &str| states.iter().any(|state| seen[part]["state"] == **state);
        is("pod") || is("container")
    });
    let known = ["pod", "container"].map(|part| seen[part]["state"].clone());
    assert!(
        states.iter().any(|state| known.iter().any(|one| one == state)),
        "{ip} is none of {states:?}: {seen:#?}"
    );
}

/// Waits until each of these containers is known to run.
#[track_caller]
fn are_running(daemon: &Daemon, containers: &[Container]) {
    for container in containers {
        await_state(daemon, &container.ip, container.netns, &["running"]);
    }
}
