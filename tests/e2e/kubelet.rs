//! A real kubelet runs into what ipwatch warns of. Measured is the Event by which people learn of it today; the
//! warning about that IP or range must come before it. Each case is a row of the table of lead times, beside those of
//! [`crate::lead`], whose failures a runtime reports.
//!
//! - [`exhaustion`]: leaked reservations, until a pod gets FailedCreatePodSandBox.
//! - [`freed`]: a force-deleted pod's process hangs, its sandbox is stopped, and the next pod gets its IP.
//! - [`deleted`]: a force-deleted pod hangs, until kubelet reports FailedKillPod.
//! - [`prevented`]: the same with `ipwatch-ipam`, and without it, and the next five pods. No row in the table.
//! - [`events`]: ipwatch's own Event on a pod. No row in the table.
//! - [`outage`]: an API server outage must not cause a finding. No row in the table.
//!
//! Each has its own node, kubelet and containerd: a damaged node is not reused. The API server is shared by all but
//! [`outage`], which kills it.

pub(crate) mod deleted;
pub(crate) mod events;
pub(crate) mod exhaustion;
pub(crate) mod freed;
pub(crate) mod outage;
pub(crate) mod prevented;

use std::time::{Duration, Instant};

use serde_json::Value;
use support::fuse::Hung;
use support::kubernetes::{Events, Node};
use support::lead::Told;
use support::pod::Pod;
use support::poll::until;
use support::{Daemon, Lab, patience};

use crate::lead::duplicate::READ;
use crate::lead::{config_for, names, small};

/// Time until kubelet's worker for a new pod is idle: its last look ends with the next round of PLEG, one second
/// later.
const IDLE: Duration = Duration::from_secs(4);

/// Starts a daemon that reads the node's containerd, and the node's pods from the API server.
fn watching(lab: &Lab, node: &Node<'_>) -> Daemon {
    let daemon = Daemon::start(lab, &config_for(&node.containerd).line(&node.agent_lines()));
    daemon.await_source("containerd");
    daemon.await_source("kubernetes");
    let source = daemon.source("kubernetes").unwrap();
    assert_eq!(source["status"], "active", "{source}");
    daemon
}

/// A node whose pod `db-0` was deleted by force and hangs.
struct Deleted<'a> {
    pod: Pod,
    /// When the pod was deleted.
    at: Instant,
    events: Events,
    told: Told,
    daemon: Daemon,
    hung: Hung,
    // Dropped last: the others need it.
    node: Node<'a>,
}

impl<'a> Deleted<'a> {
    /// `flags` are kubelet's. On return the API has forgotten the pod, and kubelet has killed its process.
    fn start(lab: &'a Lab, flags: &[&str]) -> Self {
        Self::on(lab, Node::shared(lab, &small(lab), flags), watching)
    }

    /// The same on this node, with a daemon that `watch` starts.
    fn on(lab: &'a Lab, node: Node<'a>, watch: fn(&Lab, &Node<'_>) -> Daemon) -> Self {
        // Mounted after kubelet started, which would otherwise have a copy of this mount.
        let mut hung = Hung::mount(lab);
        let daemon = watch(lab, &node);
        let told = Told::by(&daemon);
        let events = node.api().events(node.namespace());
        let pod = node.run("db-0", hung.dir(), &READ);
        hung.await_read();
        daemon.await_ip(&pod.ip, pod.netns);
        // Kubelet's worker still handles a pod that has just become Ready; it forgets a forced deletion that comes
        // meanwhile, and reports nothing at all.
        std::thread::sleep(IDLE * patience());
        let at = Instant::now();
        node.force_delete("db-0");
        until("the API has forgotten it", 20, || node.pod("db-0").is_none());
        until("kubelet kills it, and it hangs", 60, || pod.hangs());
        Self { pod, at, events, told, daemon, hung, node }
    }

    /// Whether the pod's IP is reserved.
    fn is_reserved(&self) -> bool {
        self.node.containerd.reservations().join(&self.pod.ip).exists()
    }

    /// Checks that the finding names the hanging process and its pod.
    fn is_named(&self, finding: &Value) -> Result<String, String> {
        let holder = self.pod.pid.to_string();
        names(&finding["holders"].to_string(), &[&holder], "the process that hangs")?;
        let subject = &finding["subject"]["pod"]["name"];
        names(&subject.to_string(), &[&self.pod.name], "the process that hangs, its pod")
    }
}

/// The text of an Event.
fn message(event: &Value) -> &str {
    event["message"].as_str().unwrap_or_default()
}
