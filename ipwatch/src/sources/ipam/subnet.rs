//! What host-local can hand out of a subnet, and which subnet flannel has been given for this node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde::Deserialize;

use super::{Trouble, read_whole};
use crate::fact::RangePart;
use crate::sources::json::Name;

/// Longest file of flanneld that is read. It has half a dozen lines.
const LONGEST: usize = 4_096;

/// What flannel makes of a file that it cannot read.
const NO_ADD: &str = "flannel refuses every ADD until flanneld writes it anew";

/// A range as it is written in a configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Written {
    pub(super) subnet: Option<Name>,
    pub(super) range_start: Option<Name>,
    pub(super) range_end: Option<Name>,
    pub(super) gateway: Option<Name>,
}

impl Written {
    /// Calico has it looked up at the API server.
    pub(super) fn is_told_elsewhere(&self) -> bool {
        self.subnet.as_ref().is_some_and(|Name(subnet)| subnet.starts_with("usePodCidr"))
    }

    /// What can be handed out of it (allocator/range.go, `Canonicalize`): from the first IP after the
    /// subnet's own to the last before its broadcast address, or to the very last with IPv6; never the
    /// gateway, which is the first unless another is named.
    pub(super) fn part(&self) -> Result<RangePart, String> {
        let text = self.subnet.as_ref().map_or("", |Name(subnet)| subnet);
        let subnet = Subnet::parse(text).ok_or_else(|| format!("{text:?} is no subnet"))?;
        if subnet.host_bits < 2 {
            return Err(format!("{text} is too small to hand anything out"));
        }
        if subnet.ip != subnet.network() {
            let network = subnet.address(subnet.network());
            return Err(format!("{text} is no subnet: its first IP is {network}"));
        }
        let written = |name: &Option<Name>| match name {
            Some(Name(ip)) if !ip.is_empty() => {
                ip.parse().map(Some).map_err(|_| format!("{ip:?} is no IP"))
            }
            _ => Ok(None),
        };
        let inside = |name, default| match written(name)? {
            None => Ok(default),
            Some(ip) => subnet.number(ip).ok_or_else(|| format!("{ip} is no IP of {text}")),
        };
        let (first_ip, end) = (subnet.network() + 1, subnet.last() - u128::from(subnet.v4));
        let (first, last) = (inside(&self.range_start, first_ip)?, inside(&self.range_end, end)?);
        // One outside the subnet is allowed, and takes nothing away.
        let gateway = written(&self.gateway)?.map_or(Some(first_ip), |ip| subnet.number(ip));
        if first > last {
            let (first, last) = (subnet.address(first), subnet.address(last));
            return Err(format!("{text}: the range begins at {first}, after its end {last}"));
        }
        let except = gateway.filter(|gateway| (first..=last).contains(gateway));
        Ok(RangePart {
            first: subnet.address(first),
            last: subnet.address(last),
            except: except.into_iter().map(|ip| subnet.address(ip)).collect(),
        })
    }
}

/// An IP and the length of its prefix, as numbers.
struct Subnet {
    v4: bool,
    ip: u128,
    host_bits: u32,
}

impl Subnet {
    fn parse(text: &str) -> Option<Self> {
        let (ip, len) = text.split_once('/')?;
        let (ip, len): (IpAddr, u32) = (ip.parse().ok()?, len.parse().ok()?);
        let (v4, ip, bits) = match ip {
            IpAddr::V4(ip) => (true, u128::from(u32::from(ip)), 32),
            IpAddr::V6(ip) => (false, u128::from(ip), 128),
        };
        Some(Self { v4, ip, host_bits: u32::checked_sub(bits, len)? })
    }

    fn hosts(&self) -> u128 {
        1_u128.checked_shl(self.host_bits).map_or(u128::MAX, |size| size - 1)
    }

    fn network(&self) -> u128 {
        self.ip & !self.hosts()
    }

    fn last(&self) -> u128 {
        self.network() | self.hosts()
    }

    /// The IP as a number, if it is of this subnet.
    fn number(&self, ip: IpAddr) -> Option<u128> {
        let number = match ip {
            IpAddr::V4(ip) if self.v4 => u128::from(u32::from(ip)),
            IpAddr::V6(ip) if !self.v4 => u128::from(ip),
            _ => return None,
        };
        (self.network()..=self.last()).contains(&number).then_some(number)
    }

    fn address(&self, number: u128) -> IpAddr {
        match u32::try_from(number) {
            Ok(number) if self.v4 => Ipv4Addr::from_bits(number).into(),
            _ => Ipv6Addr::from_bits(number).into(),
        }
    }
}

/// The range sets that flannel makes of its file.
pub(super) fn read(path: &Path) -> Result<Vec<Vec<RangePart>>, Trouble> {
    let unreadable = |reason: String| Trouble::Unreadable { reason, effect: Some(NO_ADD) };
    let read = read_whole(path, LONGEST, Some(NO_ADD))?;
    parse_flannel(&read.bytes).map_err(unreadable)
}

/// The range sets of `FLANNEL_SUBNET` and `FLANNEL_IPV6_SUBNET`, which are the IPs of the bridge.
///
/// # Errors
/// What is wrong with it.
pub fn parse_flannel(bytes: &[u8]) -> Result<Vec<Vec<RangePart>>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it holds no text")?;
    let mut sets = Vec::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        if matches!(key, "FLANNEL_SUBNET" | "FLANNEL_IPV6_SUBNET") {
            let subnet = Subnet::parse(value).ok_or_else(|| format!("{key} is no subnet"))?;
            let network = subnet.address(subnet.network());
            let len = if subnet.v4 { 32 } else { 128 } - subnet.host_bits;
            let subnet = Some(Name(format!("{network}/{len}")));
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
