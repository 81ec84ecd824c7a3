//! podman's `ipam.db`: which IPs it has assigned to containers; and the files of its networks, which contain their
//! ranges.
//!
//! A bolt file (`containers/common`, `libnetwork/netavark/ipam.go`): a bucket for each network, and in it one for each
//! subnet, whose keys are IPs of 4 or 16 bytes and whose values are container ids. Of a network's file `name`,
//! `subnets[].{subnet,gateway,lease_range}` and `ipam_options.driver` are read.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::bolt::Snapshot;
use super::document;
use super::{Content, Directory, Store, Trouble};
use crate::bounded;
use crate::fact::{Range, RangePart, Reservation, store};
use crate::prefix::Prefix;
use crate::sources::json::Name;

const NAME: &str = store::NETAVARK;

/// podman's error when it runs a container.
const EFFECT: &str = "podman starts no container in a network (\"IPAM error: … invalid database\")";

/// Maximum number of bytes read of a network's file.
const LONGEST: usize = 1 << 20;

/// The store of root's podman.
pub(crate) struct Netavark {
    /// `ipam.db`.
    db: PathBuf,
    /// The directory of the networks' files.
    networks: PathBuf,
}

impl Netavark {
    /// `db`: `/run/containers/networks/ipam.db`; `networks`: `/etc/containers/networks`.
    pub(crate) fn new(db: &Path, networks: &Path) -> Self {
        Self { db: db.to_owned(), networks: networks.to_owned() }
    }
}

impl Store for Netavark {
    fn name(&self) -> &'static str {
        NAME
    }

    fn directories(&self) -> Vec<Directory> {
        let dirs = [self.db.parent(), Some(self.networks.as_path())];
        let plain = |path: &Path| Directory { path: path.to_owned(), nested: false };
        dirs.into_iter().flatten().map(plain).collect()
    }

    fn is_part(&self, path: &Path) -> bool {
        let json = path.extension().is_some_and(|extension| extension == "json");
        path == self.db || (json && path.parent() == Some(&self.networks))
    }

    /// The networks' directory is part of podman's package, so it does not show that the store is in use.
    fn shows_use(&self, directory: &Directory) -> bool {
        Some(directory.path.as_path()) == self.db.parent()
    }

    fn read(&self, path: &Path) -> Result<Content, Trouble> {
        if path == self.db {
            return content(&Snapshot::take(path, EFFECT)?, path);
        }
        let read = bounded::read_regular(path, LONGEST).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Trouble::Gone,
            _ => Trouble::Unreadable { reason: error.to_string(), effect: None },
        })?;
        if read.truncated {
            let reason = format!("longer than {LONGEST} bytes");
            return Err(Trouble::Unreadable { reason, effect: None });
        }
        if read.bytes.is_empty() {
            return Err(Trouble::Busy("it is empty".to_owned()));
        }
        Ok(Content {
            ranges: range(&read.bytes, path)?.into_iter().collect(),
            ..Content::default()
        })
    }
}

/// Parses `ipam.db`.
pub(crate) fn content(snapshot: &Snapshot, path: &Path) -> Result<Content, Trouble> {
    let mut reservations = Vec::new();
    snapshot.entries(|entry| {
        let ([network, subnet], Some(container)) = (entry.path, entry.value) else { return Ok(()) };
        // `lastIP` has six bytes, and the keys of the bucket `ids` are containers.
        let Some(ip) = ip(entry.key).filter(|_| *subnet != b"ids") else { return Ok(()) };
        document::room_for_one_more(reservations.len())?;
        reservations.push(reservation(path, &String::from_utf8_lossy(network), ip, container));
        Ok(())
    })?;
    reservations.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(Content { reservations, ..Content::default() })
}

fn reservation(path: &Path, network: &str, ip: IpAddr, container: &[u8]) -> Reservation {
    Reservation {
        store: NAME.to_owned(),
        network: network.to_owned(),
        key: document::key(path, &[network, &ip.to_string()]),
        ip,
        container_id: Some(String::from_utf8_lossy(container).into_owned()),
        ifname: None,
        pod: None,
        since: None,
    }
}

fn ip(key: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(key).ok().map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(key).ok().map(IpAddr::from);
    v4().or_else(v6)
}

#[derive(Deserialize)]
struct Network {
    name: Name,
    #[serde(default)]
    subnets: Option<Vec<NetworkSubnet>>,
    #[serde(default)]
    ipam_options: Option<IpamOptions>,
}

#[derive(Deserialize)]
struct NetworkSubnet {
    subnet: Name,
    gateway: Option<IpAddr>,
    lease_range: Option<LeaseRange>,
}

#[derive(Deserialize)]
struct LeaseRange {
    start_ip: Option<IpAddr>,
    end_ip: Option<IpAddr>,
}

#[derive(Deserialize)]
struct IpamOptions {
    driver: Option<Name>,
}

/// The range of a network, with one set for each subnet. `None` if podman does not allocate its IPs.
pub(crate) fn range(json: &[u8], path: &Path) -> Result<Option<Range>, Trouble> {
    let network: Network = document::parse(json, "network")?;
    let driver = network.ipam_options.and_then(|options| options.driver);
    if driver.is_some_and(|Name(driver)| !matches!(driver.as_str(), "" | "host-local")) {
        return Ok(None);
    }
    let subnets = network.subnets.unwrap_or_default();
    let sets: Option<Vec<_>> = subnets.iter().map(|subnet| Some(vec![part(subnet)?])).collect();
    let Name(name) = network.name;
    let path = path.to_string_lossy().into_owned();
    let range = |sets| Range {
        store: NAME.to_owned(),
        network: name,
        path,
        data_dir: None,
        shares: false,
        sets,
    };
    Ok(sets.filter(|sets| !sets.is_empty()).map(range))
}

/// The IPs that `getFreeIPFromBucket` can return: a lease range is used unchanged, including the broadcast address.
fn part(subnet: &NetworkSubnet) -> Option<RangePart> {
    let Name(written) = &subnet.subnet;
    let whole = Prefix::from_cidr(written)?;
    let lease = subnet.lease_range.as_ref();
    let first = lease.and_then(|lease| lease.start_ip).or_else(|| whole.nth(1))?;
    let last = lease.and_then(|lease| lease.end_ip).or_else(|| whole.last_unicast())?;
    let within = first.is_ipv4() == last.is_ipv4() && first <= last;
    let except = subnet.gateway.filter(|ip| first <= *ip && *ip <= last).into_iter().collect();
    within.then_some(RangePart { first, last, except })
}

#[cfg(test)]
mod tests;
