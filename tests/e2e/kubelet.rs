//! A real kubelet runs into what ipwatch warns of: what counts is the Event by which people hear of it today, and
//! that the warning about that very IP or range stood before it. Each is a row of the table of leads, beside those
//! of [`crate::lead`], whose failures a runtime tells of.
//!
//! - [`exhaustion`]: leaked reservations, until a pod has its FailedCreatePodSandBox.
//! - [`freed`]: a force-deleted pod's process hangs, its sandbox is stopped, and the next pod is given its IP.
//! - [`deleted`]: a force-deleted pod hangs, until kubelet says FailedKillPod.
//! - [`events`]: ipwatch's own Event on a pod. No row of the table.
//! - [`outage`]: what an API server that is away does not bring about. No row of the table.
//!
//! Each has a node of its own, kubelet and containerd: one that was harmed serves nobody else. The API server is shared
//! by all but [`outage`], which kills it.

pub(crate) mod deleted;
pub(crate) mod events;
pub(crate) mod exhaustion;
pub(crate) mod freed;
pub(crate) mod outage;

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

/// Until kubelet's worker for a new pod has nothing to do: its last look ends with PLEG's next round, a second later.
const IDLE: Duration = Duration::from_secs(4);

/// A daemon that knows the node's containerd, and asks the API server for the node's pods.
fn watching(lab: &Lab, node: &Node<'_>) -> Daemon {
    let daemon = Daemon::start(lab, &config_for(&node.containerd).line(&node.agent_lines()));
    daemon.await_source("containerd");
    daemon.await_source("kubernetes");
    let source = daemon.source("kubernetes").unwrap();
    assert_eq!(source["status"], "active", "{source}");
    daemon
}

/// A node whose pod `db-0` was deleted by force, and hangs.
struct Deleted<'a> {
    pod: Pod,
    /// When it was deleted.
    at: Instant,
    events: Events,
    told: Told,
    daemon: Daemon,
    hung: Hung,
    // Dropped last: the others need it.
    node: Node<'a>,
}

impl<'a> Deleted<'a> {
    /// `flags` are kubelet's. The API has forgotten the pod, and kubelet has killed its process.
    fn start(lab: &'a Lab, flags: &[&str]) -> Self {
        let node = Node::shared(lab, &small(lab), flags);
        // After kubelet, which otherwise has a copy of this mount.
        let mut hung = Hung::mount(lab);
        let daemon = watching(lab, &node);
        let told = Told::by(&daemon);
        let events = node.api().events(node.namespace());
        let pod = node.run("db-0", hung.dir(), &READ);
        hung.await_read();
        daemon.await_ip(&pod.ip, pod.netns);
        // One that has just become Ready, kubelet's worker still looks at; a deletion by force that comes meanwhile
        // it forgets, and nobody says anything at all.
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

    /// The finding names what hangs, and its pod.
    fn is_named(&self, finding: &Value) -> Result<String, String> {
        let holder = self.pod.pid.to_string();
        names(&finding["holders"].to_string(), &[&holder], "the process that hangs")?;
        let subject = &finding["subject"]["pod"]["name"];
        names(&subject.to_string(), &[&self.pod.name], "the process that hangs, its pod")
    }
}

/// What an Event says.
fn message(event: &Value) -> &str {
    event["message"].as_str().unwrap_or_default()
}
