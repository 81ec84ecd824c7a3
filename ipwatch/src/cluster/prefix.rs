//! A prefix of IPs as two numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::contract;

/// From the first to the last IP of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefix {
    v4: bool,
    first: u128,
    last: u128,
    len: u8,
}

impl Prefix {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let prefix: contract::Prefix = text.parse().ok()?;
        let (v4, at) = number(prefix.ip);
        let hosts = u32::from(if v4 { 32_u8 } else { 128 }.checked_sub(prefix.len)?);
        let mask = 1_u128.checked_shl(hosts).map_or(u128::MAX, |size| size - 1);
        Some(Self { v4, first: at & !mask, last: at | mask, len: prefix.len })
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        let (v4, at) = number(ip);
        v4 == self.v4 && (self.first..=self.last).contains(&at)
    }

    /// The first IP and so many more, if it is within.
    pub(super) fn nth(&self, n: u128) -> Option<IpAddr> {
        let at = self.first.checked_add(n).filter(|at| *at <= self.last)?;
        Some(address(self.v4, at))
    }

    /// How many IPs it has, saturating.
    pub(super) fn size(&self) -> u64 {
        u64::try_from((self.last - self.first).saturating_add(1)).unwrap_or(u64::MAX)
    }

    pub(super) fn text(&self) -> String {
        format!("{}/{}", address(self.v4, self.first), self.len)
    }
}

/// Whether it is an IPv4 one, and as a number.
pub(super) fn number(ip: IpAddr) -> (bool, u128) {
    match ip {
        IpAddr::V4(ip) => (true, u128::from(ip.to_bits())),
        IpAddr::V6(ip) => (false, ip.to_bits()),
    }
}

fn address(v4: bool, at: u128) -> IpAddr {
    match u32::try_from(at) {
        Ok(at) if v4 => Ipv4Addr::from_bits(at).into(),
        _ => Ipv6Addr::from_bits(at).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_it() {
        let prefix = Prefix::parse("10.0.0.64/26").unwrap();
        assert_eq!(prefix.nth(3), Some("10.0.0.67".parse().unwrap()));
        assert_eq!(prefix.nth(64), None);
        assert_eq!((prefix.size(), prefix.text()), (64, "10.0.0.64/26".to_owned()));
        assert!(!prefix.contains("::10.0.0.65".parse().unwrap()));
        let six = Prefix::parse("fd00::/64").unwrap();
        assert_eq!(
            six.nth(u128::from(u64::MAX)),
            Some("fd00::ffff:ffff:ffff:ffff".parse().unwrap())
        );
        assert_eq!((six.nth(1 << 64), six.size()), (None, u64::MAX));
        assert_eq!(Prefix::parse("::/0").unwrap().size(), u64::MAX);
        assert_eq!(Prefix::parse("10.0.0.0/33"), None);
    }
}
