//! libnetwork's `local-kv.db`: which IPs dockerd has assigned to containers, and from which pools.
//!
//! A bolt file with one bucket, whose values are an index of eight bytes and JSON (libkv, `store/boltdb`). Only an
//! endpoint's `ep_iface.{addr,addrv6}` and `sandbox` are read, a sandbox's `Cid`, and a network's `name`, `scope`,
//! `ipamType` and `ipam{V4,V6}Info`; labels and options are not kept.

mod pool;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;

use super::bolt::{BoltStore, Snapshot};
use super::document;
use super::{Content, Trouble};
use crate::fact::{Range, Reservation, store};
use crate::sources::json::Name;

const NAME: &str = store::LIBNETWORK;
const FILE: &str = "local-kv.db";
const BUCKET: &str = "libnetwork";
const PREFIX: &str = "docker/network/v1.0/";
/// Number of bytes of the index before the JSON.
const INDEX: usize = 8;

/// dockerd's error when it starts with an invalid file.
const EFFECT: &str = "dockerd does not start with it (\"invalid database\")";

/// The store of one dockerd. `data_root`: `/var/lib/docker` by default.
pub(super) fn store(data_root: &Path) -> BoltStore {
    let dir = data_root.join("network/files");
    BoltStore { name: NAME, dir, file: FILE, effect: EFFECT, content }
}

/// Parses a file.
pub(crate) fn content(snapshot: &Snapshot, path: &Path) -> Result<Content, Trouble> {
    let mut found = Documents::default();
    snapshot.values(BUCKET, |key, value| found.add(key, value))?;
    Ok(found.content(path))
}

/// The kept parts of a file's documents.
#[derive(Default)]
struct Documents {
    /// Key, id of the network, endpoint.
    endpoints: Vec<(String, String, Endpoint)>,
    /// By id.
    sandboxes: HashMap<String, Sandbox>,
    /// By id.
    networks: HashMap<String, Network>,
}

#[derive(Deserialize)]
struct Endpoint {
    ep_iface: Option<Interface>,
    sandbox: Option<Name>,
}

#[derive(Deserialize)]
struct Interface {
    addr: Option<Name>,
    addrv6: Option<Name>,
}

#[derive(Deserialize)]
struct Sandbox {
    #[serde(rename = "Cid")]
    container: Option<Name>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    name: Option<Name>,
    scope: Option<Name>,
    ipam_type: Option<Name>,
    /// A JSON text, whose elements contain JSON texts again.
    ipam_v4_info: Option<String>,
    ipam_v6_info: Option<String>,
}

impl Documents {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), Trouble> {
        let json = value.get(INDEX..).filter(|json| !json.is_empty());
        let key = String::from_utf8_lossy(key);
        let (Some(json), Some(place)) = (json, key.strip_prefix(PREFIX)) else { return Ok(()) };
        let mut words = place.trim_end_matches('/').split('/');
        let (kind, first, second) = (words.next(), words.next(), words.next());
        match (kind, first, second) {
            (Some("endpoint"), Some(network), Some(_)) => {
                let endpoint = document::parse(json, &key)?;
                document::room_for_one_more(self.endpoints.len())?;
                self.endpoints.push((key.to_string(), network.to_owned(), endpoint));
            }
            (Some("sandbox"), Some(id), None) => {
                document::room_for_one_more(self.sandboxes.len())?;
                self.sandboxes.insert(id.to_owned(), document::parse(json, &key)?);
            }
            (Some("network"), Some(id), None) => {
                document::room_for_one_more(self.networks.len())?;
                self.networks.insert(id.to_owned(), document::parse(json, &key)?);
            }
            _ => {}
        }
        Ok(())
    }

    fn content(&self, path: &Path) -> Content {
        let reservations = self.endpoints.iter().flat_map(|(key, network, endpoint)| {
            let ips = endpoint.ips();
            ips.map(move |ip| self.reservation(path, key, network, endpoint, ip))
        });
        let mut reservations: Vec<Reservation> = reservations.collect();
        reservations.sort_by(|a, b| a.key.cmp(&b.key));
        let ranges = self.networks.iter().filter_map(|(id, network)| network.range(id, path));
        let mut ranges: Vec<Range> = ranges.collect();
        ranges.sort_by(|a, b| a.network.cmp(&b.network));
        Content { reservations, ranges, ..Content::default() }
    }

    fn reservation(
        &self,
        path: &Path,
        key: &str,
        network: &str,
        endpoint: &Endpoint,
        ip: IpAddr,
    ) -> Reservation {
        // An endpoint that no container has joined yet names no sandbox.
        let sandbox = endpoint.sandbox.as_ref().and_then(|Name(id)| self.sandboxes.get(id));
        let named = self.networks.get(network).and_then(|network| network.name.clone());
        Reservation {
            store: NAME.to_owned(),
            network: named.map_or_else(|| network.to_owned(), |Name(name)| name),
            key: document::key(path, &[key, &ip.to_string()]),
            ip,
            container_id: sandbox.and_then(|sandbox| document::text(sandbox.container.as_ref())),
            ifname: None,
            pod: None,
            since: None,
        }
    }
}

impl Endpoint {
    /// The IPs of its `IP/LEN` texts.
    fn ips(&self) -> impl Iterator<Item = IpAddr> {
        let written = self.ep_iface.iter().flat_map(|iface| [&iface.addr, &iface.addrv6]);
        written.flatten().filter_map(|Name(text)| text.split_once('/')?.0.parse().ok())
    }
}

impl Network {
    /// The range that can be allocated from; `None` if another component decides, or if it cannot be parsed.
    fn range(&self, id: &str, path: &Path) -> Option<Range> {
        let is =
            |field: &Option<Name>, word: &str| field.as_ref().is_some_and(|Name(is)| is == word);
        // Another driver has its own pools, and those of a swarm belong to its managers.
        if !is(&self.ipam_type, "default") || !is(&self.scope, "local") {
            return None;
        }
        let infos = [&self.ipam_v4_info, &self.ipam_v6_info].into_iter().flatten();
        let sets: Option<Vec<_>> = infos.map(|info| pool::parts(info)).collect();
        let sets = sets.filter(|sets| !sets.is_empty())?;
        let network = self.name.clone().map_or_else(|| id.to_owned(), |Name(name)| name);
        let path = path.to_string_lossy().into_owned();
        Some(Range { store: NAME.to_owned(), network, path, data_dir: None, shares: false, sets })
    }
}

/// Parses one document, as each kind.
#[cfg(feature = "fuzzing")]
pub(super) fn document(json: &[u8], path: &Path) {
    let value = [&[0; INDEX], json].concat();
    let mut found = Documents::default();
    for place in ["endpoint/n/e", "sandbox/s", "network/n"] {
        let _ = found.add(format!("{PREFIX}{place}/").as_bytes(), &value);
    }
    let _ = found.content(path);
}

#[cfg(test)]
mod tests;
