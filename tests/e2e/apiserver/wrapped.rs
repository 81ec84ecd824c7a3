//! `ipwatch-ipam` around Whereabouts, whose pools are in a real API server, for the second and third interface of a pod, as
//! Multus asks for them: bridge, `ipwatch-ipam`, Whereabouts (`support::kubernetes::whereabouts` says which one), a real
//! containerd and a daemon that follows the pools.

use std::path::PathBuf;

use serde_json::{Value, json};
use support::fuse::Hung;
use support::ipam::answered;
use support::kubernetes::{ControlPlane, stores, whereabouts};
use support::pod::{Containerd, PodSandbox};
use support::poll::until;
use support::{Daemon, Lab, daemon};

use super::whereabouts::lines;
use crate::lead::duplicate::{READ, await_known, orphan};
use crate::lead::{SOON, await_ready, config_for};

support::tests! {
    a_del_of_whereabouts_waits_and_a_pod_gets_its_ip_again needs [ApiServer, Containerd, Fuse],
}

const STUCK: &str = "ip-held-by-stuck-process";
const FAILING: &str = "cni-del-failing";
/// CNI's "try again later".
const TRY_AGAIN: u64 = 11;

/// The second network of pods.
struct Second<'a> {
    control: &'a ControlPlane,
    bin: PathBuf,
    range: String,
    config: Value,
}

impl<'a> Second<'a> {
    fn new(lab: &Lab, control: &'a ControlPlane, containerd: &Containerd<'_>) -> Self {
        let range = format!("{}/28", lab.ip(192));
        // Whereabouts fails without a file of defaults.
        let defaults = lab.dir().join("whereabouts.conf");
        let kubeconfig = json!({ "kubernetes": { "kubeconfig": control.admin_config() } });
        std::fs::write(&defaults, kubeconfig.to_string()).unwrap();
        let config = json!({
            "cniVersion": "0.4.0", "name": format!("{}-storage", lab.tag()), "type": "bridge",
            // That of the first network, which goes with it.
            "bridge": format!("{}b", lab.tag()),
            "ipam": {
                "type": "ipwatch-ipam", "socket": daemon::socket_in(lab),
                "stateDir": containerd.parked(), "timeoutMs": 2000,
                "delegate": {
                    "type": "whereabouts", "range": range, "configuration_path": defaults,
                },
            },
        });
        Self { control, bin: containerd.bin_dir(), range, config }
    }

    /// A call for an interface of a pod; of no netns if `netns` is empty. Returns the result, or the error.
    fn call(
        &self,
        (program, command): (&str, &str),
        pod: &PodSandbox,
        ifname: &str,
        netns: &str,
    ) -> Result<Value, Value> {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            pod.name, pod.sandbox, pod.uid
        );
        let mut plugin = std::process::Command::new(self.bin.join(program));
        plugin.env("CNI_COMMAND", command).env("CNI_CONTAINERID", &*pod.sandbox);
        plugin.env("CNI_IFNAME", ifname).env("CNI_NETNS", netns).env("CNI_ARGS", args);
        plugin.env("CNI_PATH", &self.bin);
        let out = answered(plugin, &self.config.to_string());
        let said = serde_json::from_slice(&out.stdout).unwrap_or_default();
        if out.status.success() { Ok(said) } else { Err(said) }
    }

    /// An ADD that succeeds: its IP.
    #[track_caller]
    fn add(&self, program: &str, pod: &PodSandbox, ifname: &str) -> String {
        let result = self.call((program, "ADD"), pod, ifname, pod.path.to_str().unwrap());
        let result = result.unwrap_or_else(|error| panic!("{error:#}"));
        let address = result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("{result:#}"));
        address.split('/').next().unwrap().to_owned()
    }

    /// A DEL without a netns, which therefore can only free the IP.
    fn del(&self, pod: &PodSandbox, ifname: &str) -> Result<Value, Value> {
        self.call(("bridge", "DEL"), pod, ifname, "")
    }

    /// The container and the pod of each entry of the pool, by IP.
    fn entries(&self) -> Vec<[String; 3]> {
        let path = format!("{}/{}", stores::POOLS, stores::pool_name(&self.range));
        let pool = self.control.api().get(&path).expect("the pool");
        let first: std::net::Ipv4Addr = self.range.split('/').next().unwrap().parse().unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entry = |(offset, entry): (&String, &Value)| {
            let ip =
                std::net::Ipv4Addr::from_bits(first.to_bits() + offset.parse::<u32>().unwrap());
            [ip.to_string(), text(&entry["id"]), text(&entry["podref"])]
        };
        pool["spec"]["allocations"].as_object().expect("entries").iter().map(entry).collect()
    }

    /// The id of the container that an IP is reserved for.
    fn reserved_for(&self, ip: &str) -> Option<String> {
        let entry = self.entries().into_iter().find(|[of, ..]| of == ip);
        entry.map(|[_, id, _]| id)
    }
}

fn a_del_of_whereabouts_waits_and_a_pod_gets_its_ip_again(lab: &Lab) {
    let control = ControlPlane::start_as(lab, &[]);
    stores::whereabouts(&control);
    let overlapping = stores::overlapping(&control);
    let is_reserved = |ip: &str| control.api().get(&format!("{overlapping}/{ip}")).is_ok();
    let mut hung = Hung::mount(lab);
    let containerd = Containerd::start(lab);
    whereabouts::install(&control, &containerd.bin_dir());
    let second = Second::new(lab, &control, &containerd);
    let daemon = Daemon::start(lab, &config_for(&containerd).line(&lines(lab, &control)));
    daemon.await_source("containerd");

    let pod = containerd.run("db-0", hung.dir(), &READ);
    hung.await_read();
    let [one, two] = ["net1", "net2"].map(|ifname| second.add("bridge", &pod, ifname));
    assert_ne!(one, two);
    await_known(&daemon, &pod);
    await_ready(&daemon, &[PodSandbox::clone(&pod)]);
    for ip in [&one, &two] {
        daemon.await_ip(ip, pod.netns);
        until("its allocation is known", 40, || {
            let all = daemon.list("reservations", &["query", "ipam", ip]);
            all.iter().any(|entry| entry["store"] == "whereabouts" && entry["agree"] == "yes")
        });
        assert!(is_reserved(ip), "{ip}");
    }

    // It hangs, and the runtime has lost the netns: a DEL would free the IPs while they are up.
    orphan(&containerd, &pod);
    let is_its = |finding: &Value| finding["subject"]["netns"]["inode"] == pod.netns;
    daemon.await_firing(STUCK, SOON, is_its);
    let before = second.entries();
    for ifname in ["net1", "net2", "net1"] {
        let error = second.del(&pod, ifname).expect_err("it is put off");
        let told = error["msg"].as_str().unwrap_or_default();
        assert_eq!(error["code"], TRY_AGAIN, "{error:#}");
        assert!(told.contains(&format!("is still held by pid {} (", pod.pid)), "{error:#}");
    }
    assert_eq!(second.entries(), before);
    // Before the first DEL it is told that none was run.
    until("a DEL that waits does not fail", 20, || {
        daemon.findings().iter().all(|finding| finding["code"] != FAILING)
    });

    // Another sandbox of the same pod: Whereabouts gives the same IP, which is not exchanged for another. Only the
    // IPAM plugin is called, because the IP is up elsewhere.
    let mut next = PodSandbox::clone(&pod);
    next.sandbox = next.sandbox.chars().rev().collect();
    assert_eq!(second.add("ipwatch-ipam", &next, "net2"), two);
    assert_eq!(second.reserved_for(&two).as_deref(), Some(&*next.sandbox));
    assert!(second.entries().iter().all(|[_, id, _]| !id.starts_with("ipwatch-parked-")));
    // The old one has that IP no more. Its DEL waits for its other IP, which Whereabouts before 0.9 would free.
    until("the daemon knows whose it is", 40, || {
        let all = daemon.list("reservations", &["query", "ipam", &two]);
        all.iter().any(|entry| entry["container_id"] == *next.sandbox)
    });
    for ifname in ["net2", "net1"] {
        let error = second.del(&pod, ifname).expect_err("it hangs still");
        assert_eq!(error["code"], TRY_AGAIN, "{error:#}");
    }
    assert_eq!(second.reserved_for(&one).as_deref(), Some(&*pod.sandbox));
    for _ in 0..2 {
        second.del(&next, "net2").expect("nothing of its own is stuck");
        assert_eq!(second.reserved_for(&two), None);
        assert!(!is_reserved(&two));
    }

    hung.release();
    daemon.await_no_ip(&one, pod.netns);
    for ifname in ["net1", "net1", "net2"] {
        second.del(&pod, ifname).expect("it is not held any more");
        assert_eq!(second.entries(), [] as [[String; 3]; 0]);
        assert!(!is_reserved(&one));
    }
}
