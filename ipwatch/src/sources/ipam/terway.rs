//! Terway's `ResRelation.db`: which IPs it has assigned to the pods of this node.
//!
//! A bolt file; bucket `relation`, key `NAMESPACE/POD`, JSON (`types/daemon/res.go`, `PodResources`). Only
//! `Resources[].{type,id,eni_id,ipv4,ipv6}` and `ContainerID` are read, from `PodInfo` `Name`, `Namespace`, `PodUID`,
//! `PodIP` and `PodIPs`, and from `NetConf`, which is a JSON text, `[].IfName` and `[].BasicInfo.PodIP`. Where the IPs
//! are depends on the version and on the kind of pod: pods with an ENI from the cluster (PodENI, trunk; 1.7 and newer)
//! have no resources, only the `NetConf`. Ranges are known only to the cloud provider.

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Deserializer};

use super::bolt::{BoltStore, Snapshot};
use super::document;
use super::{Content, Trouble};
use crate::fact::{PodName, Reservation, store};
use crate::sources::json::{self, Few, Name};

const NAME: &str = store::TERWAY;
const FILE: &str = "ResRelation.db";
const BUCKET: &str = "relation";

/// It opens the file at its start and reads every entry (`pkg/storage/store.go`).
const EFFECT: &str = "Terway's daemon does not start with it";

/// The store of this node's Terway. `dir`: the directory of its files, `/var/lib/cni/terway`.
pub(super) fn store(dir: &Path) -> BoltStore {
    BoltStore { name: NAME, dir: dir.to_owned(), file: FILE, effect: EFFECT, content }
}

/// Parses a file.
pub(crate) fn content(snapshot: &Snapshot, path: &Path) -> Result<Content, Trouble> {
    let mut reservations = Vec::new();
    snapshot.values(BUCKET, |key, value| add(&mut reservations, path, key, value))?;
    reservations.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(Content { reservations, ..Content::default() })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PodResources {
    resources: Option<Vec<Resource>>,
    pod_info: Option<PodInfo>,
    #[serde(rename = "ContainerID")]
    container_id: Option<Name>,
    #[serde(default)]
    net_conf: NetConf,
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
    #[serde(rename = "PodIPs")]
    ips: Option<IpSet>,
}

#[derive(Debug, Default, Deserialize)]
struct IpSet {
    #[serde(rename = "IPv4")]
    ipv4: Option<Name>,
    #[serde(rename = "IPv6")]
    ipv6: Option<Name>,
}

/// The configuration of the pod's interfaces. A text that cannot be parsed counts as empty.
#[derive(Debug, Default)]
struct NetConf(Vec<Interface>);

impl<'de> Deserialize<'de> for NetConf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Option<Cow<'de, str>> = Option::deserialize(deserializer)?;
        let interfaces = text.and_then(|text| json::parse::<Few<_, 16>>(text.as_bytes()).ok());
        Ok(Self(interfaces.unwrap_or_default().0))
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Interface {
    basic_info: Option<BasicInfo>,
    if_name: Option<Name>,
}

#[derive(Debug, Deserialize)]
struct BasicInfo {
    #[serde(rename = "PodIP")]
    ip: Option<IpSet>,
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
    let mut add = |network: String, ip: IpAddr, ifname: Option<String>| {
        document::room_for_one_more(reservations.len())?;
        reservations.push(Reservation {
            store: NAME.to_owned(),
            network,
            key: document::key(path, &[&key, &ip.to_string()]),
            ip,
            container_id: document::text(pod.container_id.as_ref()),
            ifname,
            pod: info.and_then(PodInfo::named).or_else(|| named_by(&key)),
            since: None,
        });
        Ok::<_, Trouble>(())
    };
    let mut from_resources = 0;
    for resource in pod.resources.iter().flatten() {
        for ip in resource.ips(info) {
            from_resources += 1;
            add(resource.network(), ip, None)?;
        }
    }
    if from_resources > 0 {
        return Ok(());
    }
    for interface in &pod.net_conf.0 {
        let ips = interface.basic_info.as_ref().and_then(|info| info.ip.as_ref());
        for ip in ips.into_iter().flat_map(IpSet::ips) {
            add(NAME.to_owned(), ip, document::text(interface.if_name.as_ref()))?;
        }
    }
    Ok(())
}

impl Resource {
    /// Its ENI; in the old format, the MAC in the id. Colons are replaced, because a network name has none.
    fn network(&self) -> String {
        let mac = || {
            let is_mac = |mac: &&str| mac.len() == 17 && mac.matches(':').count() == 5;
            let (mac, _) = self.id.as_ref()?.0.split_once('.')?;
            Some(mac).filter(is_mac).map(|mac| mac.replace(':', "-"))
        };
        document::text(self.eni_id.as_ref()).or_else(mac).unwrap_or_else(|| NAME.to_owned())
    }

    /// Its IPs. Before there were fields for them, `eniIp` had them in the id, `MAC.IP[-IP]`, and `eni` had the pod's
    /// IP.
    fn ips(&self, info: Option<&PodInfo>) -> Vec<IpAddr> {
        let written = parsed([&self.ipv4, &self.ipv6]);
        if !written.is_empty() {
            return written;
        }
        let kind = self.kind.as_ref().map(|Name(kind)| kind.as_str());
        match (kind, &self.id, info) {
            (Some("eniIp"), Some(Name(id)), _) => {
                let ips = id.split_once('.').map(|(_, ips)| ips);
                let ips = ips.into_iter().flat_map(|ips| ips.split('-'));
                ips.filter_map(|ip| ip.parse().ok()).collect()
            }
            (Some("eni"), _, Some(info)) => {
                let mut ips = parsed([&info.ip, &None]);
                let more = info.ips.iter().flat_map(IpSet::ips);
                ips.extend(
                    more.filter(|ip| {
                        info.ip.as_ref().is_none_or(|Name(one)| *one != ip.to_string())
                    }),
                );
                ips
            }
            _ => Vec::new(),
        }
    }
}

impl IpSet {
    fn ips(&self) -> Vec<IpAddr> {
        parsed([&self.ipv4, &self.ipv6])
    }
}

/// The valid IPs in these texts.
fn parsed(texts: [&Option<Name>; 2]) -> Vec<IpAddr> {
    texts.into_iter().flatten().filter_map(|Name(text)| text.parse().ok()).collect()
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

/// The pod in a key.
fn named_by(key: &str) -> Option<PodName> {
    let (namespace, name) = key.split_once('/')?;
    Some(PodName { namespace: namespace.to_owned(), name: name.to_owned(), uid: None })
}

#[cfg(test)]
mod tests;
