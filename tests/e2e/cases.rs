//! The field cases, each made with real parts ([`crate::reproductions`]): exactly its finding is raised, the finding
//! names the right holder, and it is resolved when its cause ends. Each case adds a row to the table that is printed
//! at the end.
//!
//! - [`dead`]: a sandbox that the runtime calls dead still has tasks; [`leaked`]: only a netns is left; [`mounts`],
//!   [`loops`]: what an agent or a pod does to the node.
//! - [`ipam`]: stores and plugins; [`calico`]: what a plugin does to Calico's datastore, and the consequences.
//! - [`docker`]: the same with docker as the runtime. [`unasked`]: pods of a runtime that is not asked.
//! - [`paper`]: the same in the VMs, with a fake runtime.
//! - [`teardown`], [`device`]: the kernel and its NICs, on dedicated machines.

pub(crate) mod calico;
pub(crate) mod dead;
pub(crate) mod device;
pub(crate) mod docker;
pub(crate) mod ipam;
pub(crate) mod leaked;
pub(crate) mod loops;
pub(crate) mod mounts;
pub(crate) mod paper;
pub(crate) mod teardown;
pub(crate) mod unasked;

use std::path::Path;

use serde_json::Value;
use support::pod::{CNI_CACHE, Containerd, PodSandbox};
use support::{Config, Daemon, Lab};

/// Grace in these tests, in seconds.
const GRACE: u32 = 2;
/// Seconds until a finding must fire: its grace, two answers of a runtime that is asked every five seconds, and a
/// reconnection to one that was restarted.
const SOON: u32 = 40;
const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];

fn config() -> Config {
    Config::default().grace(GRACE).holders_grace(GRACE).cache_dir(Path::new(CNI_CACHE))
}

/// A daemon that uses this containerd and has received its list.
fn watching(lab: &Lab, containerd: &Containerd<'_>) -> Daemon {
    let daemon = Daemon::start(lab, &config().cri(containerd.socket()));
    daemon.await_source("containerd");
    daemon
}

/// Waits until the daemon knows a pod with this state in its runtime.
#[track_caller]
fn await_word(daemon: &Daemon, pod: &PodSandbox, word: &str) {
    support::poll::until(&format!("{} is known as {word}", pod.name), 20, || {
        let all = daemon.list("addresses", &["query", "pod", &pod.uid]);
        all.iter().any(|address| address["pod"]["state"] == word)
    });
}

fn is_in(netns: u64) -> impl Fn(&Value) -> bool {
    move |finding| finding["subject"]["netns"]["inode"] == netns
}

/// The only open finding about a netns, or the one of which all others there are consequences.
#[track_caller]
fn root_in(daemon: &Daemon, netns: u64) -> Value {
    let all = daemon.findings_in(netns);
    let (roots, folded): (Vec<&Value>, Vec<&Value>) =
        all.iter().partition(|finding| finding["caused_by"].is_null());
    assert_eq!(roots.len(), 1, "one cause: {all:#?}");
    for consequence in folded {
        assert_eq!(consequence["caused_by"], roots[0]["id"], "{consequence:#?}");
    }
    roots[0].clone()
}

/// Checks that the finding is about this pod.
#[track_caller]
fn is_about(finding: &Value, pod: &PodSandbox) {
    let subject = &finding["subject"];
    assert_eq!(subject["ip"], pod.ip.as_str(), "{finding:#?}");
    assert_eq!(subject["netns"]["inode"], pod.netns, "{finding:#?}");
    assert_eq!(subject["pod"]["namespace"], "shop", "{finding:#?}");
    assert_eq!(subject["pod"]["name"], pod.name.as_str(), "{finding:#?}");
    assert_eq!(subject["pod"]["uid"], pod.uid.as_str(), "{finding:#?}");
}

/// All its evidence as one text.
fn evidence(finding: &Value) -> String {
    let items = finding["evidence"].as_array().expect("evidence");
    let text = |item: &Value| format!("[{}] {}", item["source"], item["text"]);
    items.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// The only holder of the finding.
#[track_caller]
fn only_holder(finding: &Value) -> &Value {
    let holders = finding["holders"].as_array().expect("holders");
    assert_eq!(holders.len(), 1, "{finding:#?}");
    &holders[0]
}
