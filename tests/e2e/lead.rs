//! The lead time of warnings: each field failure is caused with real parts, its time is taken independently of the
//! product, and the warnings about that IP or range must have come before it. Each adds a row to the table of leads;
//! see [`support::lead`].
//!
//! - [`exhaustion`]: leaks fill a range until ADD fails.
//! - [`duplicate`]: an IP is freed while it is held, and the next pod gets it.
//! - [`ipvlan`]: the same where the kernel refuses the second one, in the VMs.
//! - [`outlets`]: how soon the warning reaches the collector, a scrape and the journal.

pub(crate) mod duplicate;
pub(crate) mod exhaustion;
pub(crate) mod ipvlan;
pub(crate) mod outlets;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::pod::{CNI_CACHE, Containerd, PodSandbox};
use support::{Config, Daemon, Lab, Netns, patience};

/// Grace in these tests, in seconds.
const GRACE: u32 = 2;
/// Seconds until a finding must be reported: its grace, two answers of a runtime that is asked every five seconds,
/// and a reconnection to one that was restarted.
pub(crate) const SOON: u32 = 90;

fn config() -> Config {
    Config::default()
        .grace(GRACE)
        .holders_grace(GRACE)
        .leak_age(GRACE)
        .cache_dir(Path::new(CNI_CACHE))
}

/// Eight addresses of the lab, of which five are for pods and one for the gateway.
pub(crate) fn small(lab: &Lab) -> String {
    format!("{}/29", lab.ip(0))
}

/// The configuration of a daemon that uses this containerd and its networks.
pub(crate) fn config_for(containerd: &Containerd<'_>) -> Config {
    config().cri(containerd.socket()).networks(&containerd.conf_dirs(), &containerd.bin_dir())
}

/// A daemon that uses this containerd and its networks.
pub(crate) fn watching(lab: &Lab, containerd: &Containerd<'_>) -> Daemon {
    let daemon = Daemon::start(lab, &config_for(containerd));
    daemon.await_source("containerd");
    daemon
}

/// Waits until the daemon knows these pods as Ready in their runtime.
#[track_caller]
pub(crate) fn await_ready(daemon: &Daemon, pods: &[PodSandbox]) {
    for pod in pods {
        support::poll::until(&format!("{} is known as Ready", pod.name), 20, || {
            let all = daemon.list("addresses", &["query", "pod", &pod.uid]);
            all.iter().any(|address| address["pod"]["state"] == "Ready")
        });
    }
}

/// Whether the finding is about this IP, alone or among others.
pub(crate) fn is_about(ip: &str) -> impl Fn(&Value) -> bool {
    move |finding| ips(finding).any(|known| known == ip)
}

/// The IPs of a finding.
pub(crate) fn ips(finding: &Value) -> impl Iterator<Item = &str> {
    let subject = &finding["subject"];
    let of_several = subject["reservations"].as_array().into_iter().flatten();
    let all = std::iter::once(subject).chain(of_several);
    all.filter_map(|one| one["ip"].as_str())
}

/// Whether the finding is about this network.
pub(crate) fn is_of(network: &str) -> impl Fn(&Value) -> bool {
    move |finding| finding["subject"]["network"] == network
}

/// All its evidence as one text.
pub(crate) fn evidence(finding: &Value) -> String {
    let items = finding["evidence"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| format!("{}\n", item["text"])).collect()
}

/// `shown`, for the table, if a text contains all of `what`; otherwise what is missing.
pub(crate) fn names(text: &str, what: &[&str], shown: &str) -> Result<String, String> {
    match what.iter().find(|what| !text.contains(**what)) {
        None => Ok(shown.to_owned()),
        Some(missing) => Err(format!("{missing} is missing in {text}")),
    }
}

/// Sees an IP go up in any netns with an nsid in the node, by netlink: independent of the product.
pub(crate) struct Eyes {
    monitor: Child,
    seen: Receiver<Instant>,
}

impl Eyes {
    fn on(ip: &str) -> Self {
        Self::through(Self::command().spawn().expect("run ip"), ip)
    }

    /// Like `on`, for a node that is this netns.
    pub(crate) fn within(node: &Netns, ip: &str) -> Self {
        Self::through(node.run(|| Self::command().spawn().expect("run ip")), ip)
    }

    fn command() -> Command {
        let mut monitor = Command::new("ip");
        monitor.args(["-o", "monitor", "all-nsid", "address"]);
        monitor.stdin(Stdio::null()).stdout(Stdio::piped());
        monitor
    }

    fn through(mut monitor: Child, ip: &str) -> Self {
        use std::io::{BufRead as _, BufReader};
        let lines = BufReader::new(monitor.stdout.take().expect("a pipe")).lines();
        let (tell, seen) = channel();
        let wanted = format!(" {ip}/");
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let at = Instant::now();
                if line.contains(&wanted) && !line.contains("Deleted") {
                    let _ = tell.send(at);
                }
            }
        });
        // `ip monitor` does not report that it has subscribed; the event to be seen is seconds away.
        std::thread::sleep(Duration::from_millis(200) * patience());
        Self { monitor, seen }
    }

    /// When the IP first went up since then.
    #[track_caller]
    pub(crate) fn saw(&self) -> Instant {
        let limit = Duration::from_secs(10) * patience();
        self.seen.recv_timeout(limit).expect("the IP goes up, and netlink says so")
    }
}

impl Drop for Eyes {
    fn drop(&mut self) {
        let _ = self.monitor.kill();
        let _ = self.monitor.wait();
    }
}
