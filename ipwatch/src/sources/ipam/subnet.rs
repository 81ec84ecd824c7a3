//! What host-local can allocate from a subnet, and which subnet flannel has for this node.

use std::path::Path;

use serde::Deserialize;

use super::{Trouble, read_whole};
use crate::fact::RangePart;
use crate::prefix::Prefix;
use crate::sources::json::Name;

/// Maximum number of bytes read of flanneld's file, which has half a dozen lines.
const LONGEST: usize = 4_096;

/// The consequence if flannel cannot read its file.
const NO_ADD: &str = "flannel refuses every ADD until flanneld writes it anew";

/// A range as configured.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Written {
    pub(super) subnet: Option<Name>,
    pub(super) range_start: Option<Name>,
    pub(super) range_end: Option<Name>,
    pub(super) gateway: Option<Name>,
}

impl Written {
    /// Calico looks the subnet up in the API server.
    pub(super) fn is_told_elsewhere(&self) -> bool {
        self.subnet.as_ref().is_some_and(|Name(subnet)| subnet.starts_with("usePodCidr"))
    }

    /// What can be allocated (allocator/range.go, `Canonicalize`): from the first IP after the network address to the
    /// last before the broadcast address, for IPv6 to the very last; never the gateway, which is the first by default.
    pub(super) fn part(&self) -> Result<RangePart, String> {
        let text = self.subnet.as_ref().map_or("", |Name(subnet)| subnet);
        let subnet = Prefix::from_cidr(text).ok_or_else(|| format!("{text:?} is no subnet"))?;
        let defaults = subnet.nth(1).zip(subnet.last_unicast());
        let (first_ip, end) = defaults
            .filter(|_| subnet.host_bits() >= 2)
            .ok_or_else(|| format!("{text} is too small to hand anything out"))?;
        if subnet.ip != subnet.first() {
            return Err(format!("{text} is no subnet: its first IP is {}", subnet.first()));
        }
        let written = |name: &Option<Name>| match name {
            Some(Name(ip)) if !ip.is_empty() => {
                ip.parse().map(Some).map_err(|_| format!("{ip:?} is no IP"))
            }
            _ => Ok(None),
        };
        let inside = |name, default| match written(name)? {
            Some(ip) if !subnet.contains(ip) => Err(format!("{ip} is no IP of {text}")),
            ip => Ok(ip.unwrap_or(default)),
        };
        let (first, last) = (inside(&self.range_start, first_ip)?, inside(&self.range_end, end)?);
        // A gateway outside the subnet is allowed, and excludes nothing.
        let gateway = written(&self.gateway)?.unwrap_or(first_ip);
        if first > last {
            return Err(format!("{text}: the range begins at {first}, after its end {last}"));
        }
        let except = Some(gateway).filter(|gateway| (first..=last).contains(gateway));
        Ok(RangePart { first, last, except: except.into_iter().collect() })
    }
}

/// The range sets that flannel derives from its file.
pub(super) fn read(path: &Path) -> Result<Vec<Vec<RangePart>>, Trouble> {
    let unreadable = |reason: String| Trouble::Unreadable { reason, effect: Some(NO_ADD) };
    let read = read_whole(path, LONGEST, Some(NO_ADD))?;
    parse_flannel(&read.bytes).map_err(unreadable)
}

/// The range sets of `FLANNEL_SUBNET` and `FLANNEL_IPV6_SUBNET`, which contain the IPs of the bridge.
///
/// # Errors
/// What is wrong with it.
pub fn parse_flannel(bytes: &[u8]) -> Result<Vec<Vec<RangePart>>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it holds no text")?;
    let mut sets = Vec::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        if matches!(key, "FLANNEL_SUBNET" | "FLANNEL_IPV6_SUBNET") {
            let subnet = Prefix::from_cidr(value).ok_or_else(|| format!("{key} is no subnet"))?;
            let subnet = Some(Name(subnet.network().to_cidr()));
            sets.push(vec![Written { subnet, ..Written::default() }.part()?]);
        }
    }
    if sets.is_empty() {
        return Err("it names no FLANNEL_SUBNET".to_owned());
    }
    Ok(sets)
}

#[cfg(test)]
mod tests;
