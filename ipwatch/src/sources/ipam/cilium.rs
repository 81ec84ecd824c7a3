//! Cilium's endpoint state: a directory for each endpoint, in which the agent stores what it needs to restore the
//! endpoint (`serializableEndpoint`, pkg/endpoint/restore.go): `ep_config.json`, in older versions a base64 comment in
//! `ep_config.h` (1.8 and newer), and before that in `lxc_config.h`. During an upgrade several of them exist, and only
//! the newest format counts.
//!
//! Only the endpoint's id, the container's id, the IPs, the interface in the container, and the pod's namespace, name
//! and uid are read. `IfName` is the host's end, not that in the container.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{Content, Directory, Settings, Store, Trouble, read_whole, unread};
use crate::fact::{PodName, Reservation, store};
use crate::reading;
use crate::sources::json::{self, Name};

/// Name of the store.
const NAME: &str = store::CILIUM;

/// Maximum number of bytes read. The DNS history of an endpoint can make a file some hundred kilobytes long.
const LONGEST: usize = 4 << 20;

/// Start of the comment that contains the JSON in the older formats; a version follows it.
const MARK: &str = "CILIUM_BASE64_";

/// The file names of the formats, the newest first; an agent reads the first that exists. The third became a symlink to
/// the second in 1.11.
const FILES: [&str; 3] = ["ep_config.json", "ep_config.h", "lxc_config.h"];

/// Suffixes of directories of an endpoint that is being built, or whose build failed. A restarted agent uses them if
/// the endpoint has no other directory (`partitionEPDirNamesByRestoreStatus`).
const UNFINISHED: [&str; 2] = ["_next", "_next_fail"];

/// The consequence if an agent cannot read a file (pkg/endpoint/restore.go).
const NOT_RESTORED: &str = "an agent that restarts does not restore this endpoint: its pod loses its \
                            network, and its IP counts as free";

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

    /// Directories of endpoints have numbers, such as `42` and `42_next`; `templates` is not one.
    fn is_part(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        let above = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let number =
            above.is_some_and(|name| finished(name).unwrap_or(name).parse::<u16>().is_ok());
        number && name.is_some_and(|name| FILES.contains(&name))
    }

    /// All formats belong to the same endpoint.
    fn unit(&self, path: &Path) -> PathBuf {
        path.with_file_name(FILES[0])
    }

    fn read(&self, path: &Path) -> Result<Content, Trouble> {
        let _reading = reading::path(path).map_err(|error| unread(&error, Some(NOT_RESTORED)))?;
        let there = |path: &Path| path.symlink_metadata().is_ok();
        let directory = path.parent().unwrap_or(path);
        let whole = directory.file_name().and_then(|name| finished(name.to_str()?));
        if whole.is_some_and(|whole| there(&directory.with_file_name(whole))) {
            return Ok(Content::default());
        }
        let shape = FILES.iter().find(|name| there(&path.with_file_name(name)));
        let shape = shape.ok_or(Trouble::Gone)?;
        let unreadable = |reason: String| Trouble::Unreadable {
            reason: format!("{shape}: {reason}"),
            effect: Some(NOT_RESTORED),
        };
        let read = read_whole(&path.with_file_name(shape), LONGEST, Some(NOT_RESTORED))?;
        let parse = if *shape == FILES[0] { parse } else { parse_header };
        let directory = directory.display().to_string();
        let mut reservations = parse(&read.bytes, &directory).map_err(unreadable)?;
        for reservation in &mut reservations {
            reservation.since = read.modified;
        }
        Ok(Content { reservations, ..Content::default() })
    }
}

/// The name of the endpoint's own directory, if this is an unfinished one.
fn finished(name: &str) -> Option<&str> {
    UNFINISHED.iter().find_map(|suffix| name.strip_suffix(suffix))
}

/// Parses the `ep_config.h` of the endpoint whose state is in `directory`.
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

/// Parses the `ep_config.json` of the endpoint whose state is in `directory`.
///
/// # Errors
/// What is wrong with it.
pub fn parse(bytes: &[u8], directory: &str) -> Result<Vec<Reservation>, String> {
    let endpoint: Endpoint = json::parse(bytes).map_err(|error| error.to_string())?;
    let id = endpoint.id.ok_or("not understood: it names no endpoint")?;
    let text = |name: Option<Name>| name.map(|Name(name)| name).filter(|name| !name.is_empty());
    let (namespace, name) = (text(endpoint.k8s_namespace), text(endpoint.k8s_pod_name));
    let uid = text(endpoint.k8s_uid);
    let pod = namespace.zip(name).map(|(namespace, name)| PodName { namespace, name, uid });
    let (container_id, ifname) = (text(endpoint.container_id), text(endpoint.ifname));
    let ips = [endpoint.ipv4, endpoint.ipv6].into_iter();
    let ips = ips.filter_map(|ip| text(ip)?.parse::<IpAddr>().ok());
    let reservations = ips.map(|ip| Reservation {
        store: NAME.to_owned(),
        network: NAME.to_owned(),
        key: format!("{directory}#{id}/{ip}"),
        ip,
        container_id: container_id.clone(),
        ifname: ifname.clone(),
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
    #[serde(rename = "K8sUID")]
    k8s_uid: Option<Name>,
    #[serde(rename = "ContainerIfName")]
    ifname: Option<Name>,
}

#[cfg(test)]
mod tests;
