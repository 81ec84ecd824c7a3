//! The requests to the API server, from its audit log.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::control::{ACCOUNT, secret};

const LOG: &str = "audit.log";

/// A request of the daemon.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Path and query.
    pub uri: String,
    /// The HTTP status of the answer.
    pub code: u64,
}

impl Asked {
    /// Whether the request is a watch.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.uri.contains("watch=")
    }
}

/// The flags for a complete audit log.
pub(super) fn flags(dir: &Path) -> [String; 2] {
    let policy = dir.join("audit.json");
    let all = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"], "rules": [{ "level": "Metadata" }],
    });
    secret(&policy, &all.to_string());
    [
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", dir.join(LOG).display()),
    ]
}

/// The daemon's requests, in order.
pub(super) fn all(dir: &Path) -> Vec<Asked> {
    let text = fs::read_to_string(dir.join(LOG)).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let events = whole
        .lines()
        .map(|line| -> Value { serde_json::from_str(line).expect("an event of the audit log") });
    let mut told = std::collections::BTreeSet::new();
    events
        .filter(is_the_daemons)
        // A watch is logged when it begins, and again when it ends.
        .filter(|event| told.insert(event["auditID"].to_string()))
        .map(|event| Asked {
            uri: event["requestURI"].as_str().unwrap_or_default().to_owned(),
            code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        })
        .collect()
}

/// Whether a request is the daemon's. A refused client has no user name; the tests' own requests are made by curl.
fn is_the_daemons(event: &Value) -> bool {
    let by_curl = event["userAgent"].as_str().is_some_and(|agent| agent.starts_with("curl/"));
    let refused = event["responseStatus"]["code"] == 401;
    !by_curl && (event["user"]["username"] == ACCOUNT || refused)
}
