//! The AWS VPC CNI's checkpoint: a JSON file for each network card, in which ipamd stores its allocations. It is
//! replaced by a rename (amazon-vpc-cni-k8s/pkg/ipamd/datastore/checkpoint.go).
//!
//! Only the version is read, and of each allocation the network, the container's id, the IPs, the time, and the pod's
//! namespace and name.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Content, Directory, Settings, Store, Trouble, read_whole};
use crate::fact::{PodName, Reservation, store};
use crate::sources::json::{self, Few, Name};

/// Name of the store.
const NAME: &str = store::AWS_VPC_CNI;

/// Maximum number of bytes read. An allocation takes about 300 bytes, and a node has at most some hundred.
const LONGEST: usize = 8 << 20;

/// The version of the format.
const VERSION: &str = "vpc-cni-ipam/1";

/// The interface name that ipamd writes if it does not know the interface (`backfillNetworkIface`,
/// pkg/ipamd/datastore).
const UNKNOWN: &str = "unknown";

/// The consequence if ipamd cannot parse the file (`ReadBackingStore`).
const NO_START: &str = "ipamd works on from memory, but will not start again: then no pod on this node gets \
                        an IP until the file is whole or the node is rebooted";

pub(super) struct Aws {
    checkpoint: PathBuf,
}

impl Aws {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { checkpoint: settings.aws_checkpoint.clone() }
    }
}

impl Store for Aws {
    fn name(&self) -> &'static str {
        NAME
    }

    fn directories(&self) -> Vec<Directory> {
        let directory = self.checkpoint.parent().unwrap_or(Path::new("/"));
        vec![Directory { path: directory.to_owned(), nested: false }]
    }

    /// The file itself, or that of a further card: `ipam-nic-1.json`, beside `ipam.json` or `ipam`.
    fn is_part(&self, path: &Path) -> bool {
        if path.file_name() == self.checkpoint.file_name() {
            return true;
        }
        let stem = |path: &Path| Some(path.file_stem()?.to_str()?.to_owned());
        let (Some(first), Some(this)) = (stem(&self.checkpoint), stem(path)) else { return false };
        let card = this.strip_prefix(&first).and_then(|rest| rest.strip_prefix("-nic-"));
        let is_card = card.is_some_and(|card| {
            !card.is_empty() && card.bytes().all(|digit| digit.is_ascii_digit())
        });
        let ending = path.extension();
        is_card && (ending == self.checkpoint.extension() || ending.is_some_and(|is| is == "json"))
    }

    fn read(&self, path: &Path) -> Result<Content, Trouble> {
        let unreadable = |reason: String| Trouble::Unreadable { reason, effect: Some(NO_START) };
        let read = read_whole(path, LONGEST, Some(NO_START))?;
        let reservations = parse(&read.bytes, &path.display().to_string()).map_err(unreadable)?;
        Ok(Content { reservations, ..Content::default() })
    }
}

/// Parses a checkpoint at `path`.
///
/// # Errors
/// What is wrong with it.
pub fn parse(bytes: &[u8], path: &str) -> Result<Vec<Reservation>, String> {
    let checkpoint: Checkpoint = json::parse(bytes).map_err(|error| error.to_string())?;
    match checkpoint.version {
        Some(Name(version)) if version == VERSION => {}
        Some(Name(version)) => return Err(format!("its version is {version:?}, not {VERSION}")),
        None => return Err(format!("it names no version: {VERSION} is expected")),
    }
    let allocations = checkpoint.allocations.0.into_iter();
    Ok(allocations.flat_map(|allocation| allocation.reservations(path)).collect())
}

#[derive(Deserialize)]
struct Checkpoint {
    version: Option<Name>,
    #[serde(default)]
    allocations: Few<Allocation, 131_072>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Allocation {
    network_name: Option<Name>,
    #[serde(rename = "containerID")]
    container_id: Option<Name>,
    if_name: Option<Name>,
    ipv4: Option<Name>,
    ipv6: Option<Name>,
    allocation_timestamp: Option<i64>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    k8s_pod_namespace: Option<Name>,
    k8s_pod_name: Option<Name>,
}

impl Allocation {
    fn reservations(self, path: &str) -> Vec<Reservation> {
        let text = |name: Option<Name>| name.map(|Name(name)| name).filter(|name| !name.is_empty());
        let pod = self.metadata.and_then(|of| {
            let (namespace, name) = (text(of.k8s_pod_namespace)?, text(of.k8s_pod_name)?);
            Some(PodName { namespace, name, uid: None })
        });
        let network = text(self.network_name).unwrap_or_default();
        let (container_id, if_name) = (text(self.container_id), text(self.if_name));
        let ifname = if_name.clone().filter(|name| name != UNKNOWN);
        let ips = [self.ipv4, self.ipv6].into_iter();
        let ips = ips.filter_map(|ip| text(ip)?.parse::<IpAddr>().ok());
        ips.map(|ip| Reservation {
            store: NAME.to_owned(),
            network: network.clone(),
            key: format!(
                "{path}#{network}/{}/{}/{ip}",
                container_id.as_deref().unwrap_or_default(),
                if_name.as_deref().unwrap_or_default()
            ),
            ip,
            container_id: container_id.clone(),
            ifname: ifname.clone(),
            pod: pod.clone(),
            since: self.allocation_timestamp.filter(|at| *at > 0),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
