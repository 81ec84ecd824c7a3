//! Cilium's endpoint state: a directory for each endpoint, in which the agent keeps what it needs to restore
//! it: `ep_config.json`, or before that a base64 comment in `ep_config.h`.
//!
//! Nothing is read but the endpoint's id, the container's, the IPs, and the pod's namespace and name. The
//! `IfName` in there is the host's end and none of the container's.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{Content, Directory, Settings, Store, Trouble, read_whole, unread};
use crate::fact::{PodName, Reservation};
use crate::reading;
use crate::sources::json::{self, Name};

/// Its name as a store.
const NAME: &str = "cilium";

/// Longest file that is read. The DNS history of an endpoint can make it some hundred kilobytes.
const LONGEST: usize = 4 << 20;

/// The comment in which the older shape keeps its JSON, the version in between.
const MARK: &str = "CILIUM_BASE64_";

/// The newer shape, and the older one.
const FILES: (&str, &str) = ("ep_config.json", "ep_config.h");

/// What an agent makes of a file that it cannot read (pkg/endpoint/restore.go).
const NOT_RESTORED: &str = "an agent that restarts does not restore this endpoint: its pod loses its \
                            network, and its IP counts as free";

/// The store.
pub(super) struct Cilium {
    state: PathBuf,
}

impl Cilium {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { state: settings.cilium_state.clone() }
    }
}

impl Store for Cilium {
    fn name(&self) -> &'static str {
        NAME
    }

    fn directories(&self) -> Vec<Directory> {
        vec![Directory { path: self.state.clone(), nested: true }]
    }

    /// Endpoints have numbers; `42_next`, `42_next_fail` and `templates` are none.
    fn is_part(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        let above = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let number = above.is_some_and(|id| id.parse::<u16>().is_ok());
        number && name.is_some_and(|name| name == FILES.0 || name == FILES.1)
    }

    fn read(&self, path: &Path) -> Result<Content, Trouble> {
        let unreadable =
            |reason: String| Trouble::Unreadable { reason, effect: Some(NOT_RESTORED) };
        let is_header = path.file_name().is_some_and(|name| name == FILES.1);
        // Both name the same endpoint; an agent that writes the newer reads no other.
        let _reading = reading::path(path).map_err(|error| unread(&error, Some(NOT_RESTORED)))?;
        if is_header && path.with_file_name(FILES.0).symlink_metadata().is_ok() {
            return Ok(Content::default());
        }
        let read = read_whole(path, LONGEST, Some(NOT_RESTORED))?;
        let directory = path.parent().unwrap_or(path).display().to_string();
        let parse = if is_header { parse_header } else { parse };
        let mut reservations = parse(&read.bytes, &directory).map_err(unreadable)?;
        for reservation in &mut reservations {
            reservation.since = read.modified;
        }
        Ok(Content { reservations, ranges: Vec::new() })
    }
}

/// What an `ep_config.h` says of the endpoint whose state is in `directory`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_header(bytes: &[u8], directory: &str) -> Result<Vec<Reservation>, String> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let marked = lines.find_map(|line| {
        let at = line.windows(MARK.len()).position(|window| window == MARK.as_bytes())?;
        Some(&line[at..])
    });
    let marked = marked.ok_or_else(|| format!("it has no {MARK} line"))?;
    let colon = marked.iter().position(|byte| *byte == b':').ok_or("torn: no endpoint follows")?;
    let coded = marked[colon + 1..].trim_ascii();
    let decoded = STANDARD.decode(coded).map_err(|_| "not understood: its base64 is broken")?;
    parse(&decoded, directory)
}

/// What an `ep_config.json` says of the endpoint whose state is in `directory`.
///
/// # Errors
/// What is wrong with it.
pub fn parse(bytes: &[u8], directory: &str) -> Result<Vec<Reservation>, String> {
    let endpoint: Endpoint = json::parse(bytes).map_err(|error| error.to_string())?;
    let id = endpoint.id.ok_or("not understood: it names no endpoint")?;
    let text = |name: Option<Name>| name.map(|Name(name)| name).filter(|name| !name.is_empty());
    let (namespace, name) = (text(endpoint.k8s_namespace), text(endpoint.k8s_pod_name));
    let pod = namespace.zip(name).map(|(namespace, name)| PodName { namespace, name, uid: None });
    let container_id = text(endpoint.container_id);
    let ips = [endpoint.ipv4, endpoint.ipv6].into_iter();
    let ips = ips.filter_map(|ip| text(ip)?.parse::<IpAddr>().ok());
    let reservations = ips.map(|ip| Reservation {
        store: NAME.to_owned(),
        network: NAME.to_owned(),
        key: format!("{directory}#{id}/{ip}"),
        ip,
        container_id: container_id.clone(),
        ifname: None,
        pod: pod.clone(),
        since: None,
    });
    Ok(reservations.collect())
}

#[derive(Deserialize)]
struct Endpoint {
    #[serde(rename = "ID")]
    id: Option<u16>,
    #[serde(rename = "dockerID")]
    container_id: Option<Name>,
    #[serde(rename = "IPv4")]
    ipv4: Option<Name>,
    #[serde(rename = "IPv6")]
    ipv6: Option<Name>,
    #[serde(rename = "K8sPodName")]
    k8s_pod_name: Option<Name>,
    #[serde(rename = "K8sNamespace")]
    k8s_namespace: Option<Name>,
}

#[cfg(test)]
mod tests;
