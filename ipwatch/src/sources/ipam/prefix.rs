//! Arithmetic on subnets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A subnet of either family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subnet {
    /// Its first address, in the low bits.
    first: u128,
    host_bits: u32,
    ipv4: bool,
}

impl Subnet {
    /// The one that an IP lies in; `None` when the length is none of its family.
    pub(super) fn new(ip: IpAddr, prefix_len: u32) -> Option<Self> {
        let (number, bits) = match ip {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
            IpAddr::V6(ip) => (u128::from(ip), 128),
        };
        let host_bits = u32::checked_sub(bits, prefix_len)?;
        Some(Self { first: number & !mask(host_bits), host_bits, ipv4: ip.is_ipv4() })
    }

    /// Of `IP/LEN`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (ip, len) = text.split_once('/')?;
        Self::new(ip.parse().ok()?, len.parse().ok()?)
    }

    pub(super) fn is_ipv4(self) -> bool {
        self.ipv4
    }

    pub(super) fn host_bits(self) -> u32 {
        self.host_bits
    }

    pub(super) fn first(self) -> IpAddr {
        self.ip(self.first)
    }

    pub(super) fn last(self) -> IpAddr {
        self.ip(self.first | mask(self.host_bits))
    }

    /// The address so far above the first.
    pub(super) fn nth(self, n: u128) -> Option<IpAddr> {
        (n <= mask(self.host_bits)).then(|| self.ip(self.first | n))
    }

    pub(super) fn last_but_one(self) -> Option<IpAddr> {
        self.nth(mask(self.host_bits).checked_sub(1)?)
    }

    fn ip(self, number: u128) -> IpAddr {
        match u32::try_from(number) {
            Ok(number) if self.ipv4 => Ipv4Addr::from(number).into(),
            _ => Ipv6Addr::from(number).into(),
        }
    }
}

/// The low bits.
fn mask(bits: u32) -> u128 {
    1u128.checked_shl(bits).map_or(u128::MAX, |above| above - 1)
}
