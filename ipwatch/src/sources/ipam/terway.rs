//! Terway's `ResRelation.db`: which IPs it has given to the pods of this node.
//!
//! A bolt file; bucket `relation`, key `NAMESPACE/POD`, JSON (`types/daemon/res.go`, `PodResources`). Read
//! are `Resources[].{type,id,eni_id,ipv4,ipv6}`, `ContainerID` and of `PodInfo` `Name`, `Namespace`,
//! `PodUID` and `PodIP`, and nothing else. What it could hand out is the cloud's to know.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::bolt::Snapshot;
use super::document;
use super::{Content, Directory, Store, Trouble};
use crate::fact::{PodName, Reservation};
use crate::sources::json::Name;

const NAME: &str = "terway";
const FILE: &str = "ResRelation.db";
const BUCKET: &str = "relation";

/// It opens the file when it starts and reads every entry (`pkg/storage/store.go`).
const EFFECT: &str = "Terway's daemon does not start with it";

/// The store of this node's Terway.
pub(crate) struct Terway {
    dir: PathBuf,
}

impl Terway {
    /// `dir`: where Terway keeps its files, `/var/lib/cni/terway`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }
}

impl Store for Terway {
    fn name(&self) -> &'static str {
        NAME
    }

    fn directories(&self) -> Vec<Directory> {
        vec![Directory { path: self.dir.clone(), nested: false }]
    }

    fn is_part(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == FILE)
    }

    fn read(&self, path: &Path) -> Result<Content, Trouble> {
        content(&Snapshot::take(path, EFFECT)?, path)
    }
}

/// What a file says.
pub(crate) fn content(snapshot: &Snapshot, path: &Path) -> Result<Content, Trouble> {
    let mut reservations = Vec::new();
    snapshot.values(BUCKET, |key, value| add(&mut reservations, path, key, value))?;
    reservations.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(Content { reservations, ranges: Vec::new() })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PodResources {
    resources: Option<Vec<Resource>>,
    pod_info: Option<PodInfo>,
    #[serde(rename = "ContainerID")]
    container_id: Option<Name>,
}

#[derive(Deserialize)]
struct Resource {
    #[serde(rename = "type")]
    kind: Option<Name>,
    id: Option<Name>,
    eni_id: Option<Name>,
    ipv4: Option<Name>,
    ipv6: Option<Name>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PodInfo {
    name: Option<Name>,
    namespace: Option<Name>,
    #[serde(rename = "PodUID")]
    uid: Option<Name>,
    #[serde(rename = "PodIP")]
    ip: Option<Name>,
}

pub(super) fn add(
    reservations: &mut Vec<Reservation>,
    path: &Path,
    key: &[u8],
    value: &[u8],
) -> Result<(), Trouble> {
    let key = String::from_utf8_lossy(key);
    let pod: PodResources = document::parse(value, &key)?;
    let info = pod.pod_info.as_ref();
    for resource in pod.resources.iter().flatten() {
        for ip in resource.ips(info) {
            document::room_for_one_more(reservations.len())?;
            reservations.push(Reservation {
                store: NAME.to_owned(),
                network: document::text(resource.eni_id.as_ref()).unwrap_or_default(),
                key: document::key(path, &[&key, &ip.to_string()]),
                ip,
                container_id: document::text(pod.container_id.as_ref()),
                ifname: None,
                pod: info.and_then(PodInfo::named).or_else(|| named_by(&key)),
                since: None,
            });
        }
    }
    Ok(())
}

impl Resource {
    /// Its IPs. Before the fields for them there was for `eniIp` the id, `MAC.IP[-IP]`, and for `eni`
    /// the pod's IP.
    fn ips(&self, info: Option<&PodInfo>) -> Vec<IpAddr> {
        let written = [&self.ipv4, &self.ipv6].into_iter().flatten();
        let ips: Vec<IpAddr> = written.filter_map(|Name(text)| text.parse().ok()).collect();
        if !ips.is_empty() {
            return ips;
        }
        let kind = self.kind.as_ref().map(|Name(kind)| kind.as_str());
        let text = match (kind, &self.id, info.and_then(|info| info.ip.as_ref())) {
            (Some("eniIp"), Some(Name(id)), _) => id.split_once('.').map(|(_, ips)| ips),
            (Some("eni"), _, Some(Name(ip))) => Some(ip.as_str()),
            _ => None,
        };
        text.into_iter().flat_map(|text| text.split('-')).filter_map(|ip| ip.parse().ok()).collect()
    }
}

impl PodInfo {
    fn named(&self) -> Option<PodName> {
        Some(PodName {
            namespace: document::text(self.namespace.as_ref())?,
            name: document::text(self.name.as_ref())?,
            uid: document::text(self.uid.as_ref()),
        })
    }
}

/// As the key has it.
fn named_by(key: &str) -> Option<PodName> {
    let (namespace, name) = key.split_once('/')?;
    Some(PodName { namespace: namespace.to_owned(), name: name.to_owned(), uid: None })
}

#[cfg(test)]
mod tests;
