//! How many pods the kubelet of this node starts at most: `status.allocatable.pods` of its Node, which is the kubelet's
//! `maxPods`, whether by a flag or by a file. It is asked for now and then, by a `get` of this one object. Nobody misses
//! it if it cannot be had: the service account may have no permission for it.

use std::convert::Infallible;
use std::time::Duration;

use serde::Deserialize;

use super::credentials::Credentials;
use super::error::ApiError;
use crate::clock;
use crate::fact::{Fact, Observation, Origin};
use crate::sources::backoff::jittered;
use crate::sources::json::Name;
use crate::sources::url::encoded;
use crate::sources::{Closed, Emit};

const WHAT: &str = "this node";
/// Maximum size in bytes of a Node. The images that a node has are in it.
const LONGEST: usize = 4 << 20;

/// When to ask, and how long to wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) open: Duration,
    pub(super) answer: Duration,
    /// Until the next request, whatever became of the last one.
    pub(super) again: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { open: s(30), answer: s(30), again: s(1800) }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Node {
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    allocatable: Allocatable,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Allocatable {
    /// A quantity, which is a text.
    pods: Name,
}

/// Asks until the daemon shuts down.
pub(super) async fn run(
    node: String,
    door: Credentials,
    pace: Pace,
    emit: Emit,
) -> Result<Infallible, Closed> {
    let mut told = None;
    loop {
        match ask(&node, &door, pace).await {
            Ok(pods) if pods.is_some() && pods != told => {
                told = pods;
                let what = pods.map(|pods| Observation::PodLimit { pods });
                let fact = |what| Fact { at: clock::now(), origin: Origin::Kubernetes, what };
                emit.send(what.into_iter().map(fact).collect()).await?;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("how many pods this node may have is unknown: {error}"),
        }
        tokio::time::sleep(jittered(pace.again)).await;
    }
}

async fn ask(node: &str, door: &Credentials, pace: Pace) -> Result<Option<u32>, ApiError> {
    let api = door.enter(pace.open).await?;
    // From the server's cache, which costs etcd nothing.
    let path = format!("/api/v1/nodes/{}?resourceVersion=0", encoded(node));
    let body = api.get(WHAT, &path, pace.answer).await?;
    let parse = |coming| Node::deserialize(&mut serde_json::Deserializer::from_reader(coming));
    let node: Node = body.read(LONGEST, parse).await?;
    Ok(node.status.allocatable.pods.0.parse().ok())
}
