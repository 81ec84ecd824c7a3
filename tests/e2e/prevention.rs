//! With `ipwatch-ipam` around host-local, an IP that is still up is not given to a pod, and its DEL is put off. Uses a real
//! containerd, bridge and host-local.
//!
//! - [`by_hand`]: `ipwatch cni release`, and what an ADD does if all that is left is held.
//! - [`churn`]: many calls at once while plugins and daemons are killed, and healthy pods.
//! - [`rate`]: how many ADDs a second are served, beside the bare delegate.
//! - [`leave`]: how the plugin is installed on a node and removed from it.
//! - [`strangers`]: others that have the addresses of the range.
//! - [`window`]: the moments in which an address that is up can still be given to an ADD.

pub(crate) mod by_hand;
pub(crate) mod churn;
pub(crate) mod leave;
pub(crate) mod rate;
pub(crate) mod strangers;
pub(crate) mod window;

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;

use serde_json::{Value, json};
use support::fuse::Hung;
use support::harness::case;
use support::ipam::Plugin;
use support::pod::{Containerd, Pod, PodSandbox, Setup};
use support::poll::until;
use support::{Daemon, Lab, Suite};

use crate::lead::duplicate::{READ, await_known, orphan};
use crate::lead::{SOON, await_ready, is_about, watching};

support::tests! {
    no_next_pod_is_given_an_ip_that_is_held needs [Containerd, Fuse],
    with_the_newest_containerd_and_plugins_too needs [Sid, Fuse],
    without_the_plugin_the_next_pod_is_given_it needs [Containerd, Fuse],
    a_del_waits_for_what_is_stuck needs [Containerd, Fuse],
    it_is_not_there_without_a_daemon needs [Containerd],
}

const STUCK: &str = "ip-held-by-stuck-process";
const DUPLICATE: &str = "ip-duplicate";
const IMMINENT: &str = "ip-conflict-imminent";
const FAILING: &str = "cni-del-failing";
const PARKED: &str = "ipwatch-parked-";

/// A containerd with a large network, with or without the plugin.
fn containerd(lab: &Lab, prevention: bool) -> Containerd<'_> {
    Containerd::start_as(lab, &Setup { prevention, ..Setup::default() })
}

/// A pod hangs, and its shim has ended; then its reservation is removed, as cleanup jobs do.
fn freed(containerd: &Containerd<'_>, daemon: &Daemon, hung: &mut Hung) -> Pod {
    let pod = containerd.run("db-0", hung.dir(), &READ);
    hung.await_read();
    await_known(daemon, &pod);
    await_ready(daemon, &[PodSandbox::clone(&pod)]);
    orphan(containerd, &pod);
    until("it knows that the pause has ended", 10, || {
        let address = daemon.ip_in(&pod.ip, pod.netns).expect("it hangs with its IP");
        let mut holders = address["holders"].as_array().into_iter().flatten();
        holders.all(|holder| holder["pid"] != pod.pause)
    });
    fs::remove_file(containerd.reservations().join(&pod.ip)).unwrap();
    containerd.hand_out_next(pod.ip.parse().unwrap());
    pod
}

/// Starts five pods. Each must have an IP that is reserved under its own id.
fn next_five(containerd: &Containerd<'_>) -> Vec<PodSandbox> {
    let all: Vec<_> = (0..5).map(|n| containerd.pod(&format!("web-{n}")).sandbox()).collect();
    for pod in &all {
        assert_eq!(containerd.reserved_for(&pod.ip).as_deref(), Some(&*pod.sandbox), "{pod:#?}");
    }
    all
}

fn no_next_pod_is_given_an_ip_that_is_held(lab: &Lab) {
    prevents(lab, &containerd(lab, true), |_, _| {});
    case(
        "freed while held, five next pods, with ipwatch-ipam",
        "none: 5 of 5 have an IP of their own",
        "the pod that hangs",
        "yes",
    );
}

/// The same with Debian's newest containerd (2.1) and host-local (1.9), which knows the GC and STATUS of CNI 1.1.
fn with_the_newest_containerd_and_plugins_too(lab: &Lab) {
    let setup = Setup { prevention: true, suite: Some(Suite::Sid), ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    prevents(lab, &containerd, |pods, parked| {
        // The runtime lists what it knows, which is the pods.
        let known = |pod: &PodSandbox| json!({ "containerID": pod.sandbox, "ifname": "eth0" });
        let known: Vec<Value> = pods.iter().map(known).collect();
        let list = json!({ "cniVersion": "1.1.0", "cni.dev/valid-attachments": known });
        let plugin = Plugin::of(&containerd).with_values(&list);
        let before = plugin.stored();
        for command in ["GC", "STATUS"] {
            let out = plugin.call(command, "", None).unwrap();
            assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stdout));
        }
        assert!(before.contains_key(&parked.parse().unwrap()));
        assert_eq!(plugin.stored(), before, "pods and parked addresses stay");
    });
}

/// Five pods start after a release of an IP that is held; `while_parked` gets them, and the IP that is parked.
fn prevents(
    lab: &Lab,
    containerd: &Containerd<'_>,
    while_parked: impl FnOnce(&[PodSandbox], &str),
) {
    let mut hung = Hung::mount(lab);
    let daemon = watching(lab, containerd);
    let pod = freed(containerd, &daemon, &mut hung);
    let others = next_five(containerd);
    let ips: BTreeSet<&str> = others.iter().map(|pod| &*pod.ip).collect();
    assert!(ips.len() == 5 && !ips.contains(&*pod.ip), "{ips:?}, and {} is held", pod.ip);
    let parked = containerd.reserved_for(&pod.ip).expect("it is kept");
    assert!(parked.starts_with(PARKED), "{parked}");
    assert_eq!(counted(containerd, "parked"), 1);
    // ipwatch recognises the parked reservation, and reports no IP that was given out while it is held.
    let listed = daemon.list("reservations", &["query", "ipam"]);
    let entry = listed.iter().find(|entry| entry["ip"] == *pod.ip).expect("it is listed");
    assert_eq!(entry["agree"], "parked", "{entry:#?}");
    await_ready(&daemon, &others);
    daemon.await_firing(STUCK, SOON, is_about(&pod.ip));
    let wrong = |finding: &&Value| {
        is_about(&pod.ip)(finding)
            && [DUPLICATE, IMMINENT].iter().any(|code| finding["code"] == *code)
    };
    assert_eq!(daemon.findings().iter().filter(wrong).count(), 0, "{:#?}", daemon.findings());
    while_parked(&others, &pod.ip);
    // Once the IP is no longer held, the next call releases it after its own work, and a later pod may be given it.
    hung.release();
    daemon.await_no_ip(&pod.ip, pod.netns);
    let next = containerd.pod("web-5").sandbox();
    assert_eq!(counted(containerd, "released"), 1);
    containerd.hand_out_next(pod.ip.parse().unwrap());
    let last = containerd.pod("web-6").sandbox();
    assert_eq!(last.ip, pod.ip);
    others.iter().chain([&next, &last]).for_each(|pod| containerd.stop(pod));
    assert_eq!(reservations(containerd), [] as [String; 0], "nothing is left");
}

/// The same without the plugin, which shows that the test above can fail.
fn without_the_plugin_the_next_pod_is_given_it(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let containerd = containerd(lab, false);
    let daemon = watching(lab, &containerd);
    let pod = freed(&containerd, &daemon, &mut hung);
    let others = next_five(&containerd);
    assert_eq!(others[0].ip, pod.ip, "in silence");
    daemon.await_firing(DUPLICATE, SOON, is_about(&pod.ip));
    hung.release();
    case("freed while held, five next pods", DUPLICATE, "the first of them", "yes");
}

fn a_del_waits_for_what_is_stuck(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let containerd = containerd(lab, true);
    let daemon = watching(lab, &containerd);
    let pod = containerd.run("db-0", hung.dir(), &READ);
    hung.await_read();
    await_known(&daemon, &pod);
    orphan(&containerd, &pod);
    daemon.await_firing(STUCK, SOON, is_about(&pod.ip));
    // The runtime has lost the netns, so its DEL would only free the IP.
    for _ in 0..2 {
        assert!(!containerd.begin_stop(&pod).wait().unwrap().success(), "it is put off");
        assert_eq!(containerd.reserved_for(&pod.ip).as_deref(), Some(&*pod.sandbox));
    }
    assert_eq!(counted(&containerd, "gated"), 2);
    // It waits for what is told already, and is no trouble of its own.
    let told: Vec<Value> =
        daemon.findings().into_iter().filter(|one| one["code"] == FAILING).collect();
    assert_eq!(told, [] as [Value; 0]);
    hung.release();
    daemon.await_no_ip(&pod.ip, pod.netns);
    containerd.stop(&pod);
    assert_eq!(containerd.reserved_for(&pod.ip), None);
    case("DEL of a pod that hangs, with ipwatch-ipam", "none: DEL waits", "pod", "yes");
}

/// Without a daemon, pods start and stop as they would without the plugin.
fn it_is_not_there_without_a_daemon(lab: &Lab) {
    let containerd = containerd(lab, true);
    for n in 0..3 {
        let pod = containerd.pod(&format!("web-{n}")).sandbox();
        assert_eq!(containerd.reserved_for(&pod.ip).as_deref(), Some(&*pod.sandbox));
        containerd.stop(&pod);
    }
    assert_eq!(reservations(&containerd), [] as [String; 0]);
    assert!(counted(&containerd, "unanswered-no-daemon") >= 6);
}

/// The reserved IPs: the names of the files in the store.
fn reservations(containerd: &Containerd<'_>) -> Vec<String> {
    let files = fs::read_dir(containerd.reservations()).into_iter().flatten().flatten();
    let names = files.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.parse::<Ipv4Addr>().is_ok()).collect()
}

/// The value of one of the plugin's counters.
fn counted(containerd: &Containerd<'_>, what: &str) -> u64 {
    let text = fs::read_to_string(containerd.parked().join("counters")).unwrap_or_default();
    let all: Value = serde_json::from_str(&text).unwrap_or_default();
    all[what].as_u64().unwrap_or(0)
}
