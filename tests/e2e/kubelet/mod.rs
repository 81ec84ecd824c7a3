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
//! Each has a cluster of its own, which takes some 15 s to be Ready: a test that fails then says which of them is
//! wrong, and a node that was harmed serves nobody else.

pub(crate) mod deleted;
pub(crate) mod events;
pub(crate) mod exhaustion;
pub(crate) mod freed;
pub(crate) mod outage;

use serde_json::Value;
use support::kubernetes::Node;
use support::{Daemon, Lab};

use crate::lead::config_for;

/// A daemon that knows the node's containerd, and asks the API server for the node's pods.
fn watching(lab: &Lab, node: &Node<'_>) -> Daemon {
    let daemon = Daemon::start(lab, &config_for(&node.containerd).line(&node.agent_lines()));
    daemon.await_source("containerd");
    daemon.await_source("kubernetes");
    let source = daemon.source("kubernetes").unwrap();
    assert_eq!(source["status"], "active", "{source}");
    daemon
}

/// What an Event says.
fn message(event: &Value) -> &str {
    event["message"].as_str().unwrap_or_default()
}
