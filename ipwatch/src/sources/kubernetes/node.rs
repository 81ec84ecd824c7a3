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
use crate::sources::backoff::{Pauses, jittered};
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
    /// Until the next request after an answer, or where the service account may not ask.
    pub(super) again: Duration,
    /// The first pause after another failure. Each is twice as long as the one before, and none is longer than `again`.
    pub(super) retry: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { open: s(30), answer: s(30), again: s(1800), retry: s(1) }
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
    let mut pauses = Pauses::new((pace.retry, pace.again));
    loop {
        let pause = match ask(&node, &door, pace).await {
            Ok(pods) => {
                if pods.is_some() && pods != told {
                    told = pods;
                    let what = pods.map(|pods| Observation::PodLimit { pods });
                    let fact = |what| Fact { at: clock::now(), origin: Origin::Kubernetes, what };
                    emit.send(what.into_iter().map(fact).collect()).await?;
                }
                pauses.begin_anew();
                jittered(pace.again)
            }
            Err(error) => {
                tracing::debug!("how many pods this node may have is unknown: {error}");
                pause_after(&error, pace, &mut pauses)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// The pause after a failure. At boot the network or the API server may be up only soon, and the kubelet may not have
/// registered this node yet (404). A permission that is missing (403) is not given soon.
fn pause_after(error: &ApiError, pace: Pace, pauses: &mut Pauses) -> Duration {
    match error {
        ApiError::Refused { code: 403, .. } => jittered(pace.again),
        ApiError::Busy { after: Some(after), .. } => {
            (*after).min(pace.again) + pauses.after_failure()
        }
        _ => pauses.after_failure(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_permission_is_not_asked_about_soon() {
        let pace = Pace::default();
        let pause = |error| pause_after(&error, pace, &mut Pauses::new((pace.retry, pace.again)));
        let refused = |code| ApiError::Refused { what: WHAT, code, why: String::new() };
        let soon = Duration::from_secs(2);
        assert!(pause(refused(403)) >= pace.again / 2);
        assert!(pause(refused(404)) < soon);
        assert!(pause(ApiError::Broken { what: WHAT, why: String::new() }) < soon);
        let busy = pause(ApiError::Busy { what: WHAT, after: Some(Duration::from_secs(60)) });
        assert!((Duration::from_secs(60)..Duration::from_secs(62)).contains(&busy), "{busy:?}");
    }
}
