//! IP prefixes, as people and stores write them: `10.0.3.17`, `10.0.0.0/24`, `fd00::/8`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::Serialize;

/// An IP prefix; a single IP is a prefix of full length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Any IP in the prefix: the one that was written.
    pub ip: IpAddr,
    /// Number of fixed bits.
    pub len: u8,
}

impl Prefix {
    /// `None`: the length is too large for the IP's family.
    #[must_use]
    pub fn new(ip: IpAddr, len: u8) -> Option<Self> {
        (len <= width(ip)).then_some(Self { ip, len })
    }

    /// The prefix that contains only this IP.
    #[must_use]
    pub fn host(ip: IpAddr) -> Self {
        Self { ip, len: width(ip) }
    }

    /// Parses `IP/LEN`; an IP without a length is rejected.
    #[must_use]
    pub fn from_cidr(text: &str) -> Option<Self> {
        text.parse().ok().filter(|_| text.contains('/'))
    }

    /// The prefix as `IP/LEN`, even for a single IP.
    #[must_use]
    pub fn to_cidr(&self) -> String {
        format!("{}/{}", self.ip, self.len)
    }

    /// Whether it is a single IP.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.len >= width(self.ip)
    }

    /// Whether it contains `ip`. An IPv4 prefix contains no IPv6 address, not even a mapped one.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let host_bits = self.host_bits();
        match (self.ip, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_bits()).checked_shr(host_bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                (a.to_bits() ^ b.to_bits()).checked_shr(host_bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// Number of bits that are not fixed.
    #[must_use]
    pub fn host_bits(&self) -> u32 {
        u32::from(width(self.ip).saturating_sub(self.len))
    }

    /// The same prefix, with its first IP.
    #[must_use]
    pub fn network(&self) -> Self {
        Self { ip: self.first(), len: self.len }
    }

    /// Its first IP, the network address.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.address(number(self.ip) & !self.hosts())
    }

    /// Its last IP.
    #[must_use]
    pub fn last(&self) -> IpAddr {
        self.address(number(self.ip) | self.hosts())
    }

    /// Its first and its last IP.
    #[must_use]
    pub fn range(&self) -> (IpAddr, IpAddr) {
        (self.first(), self.last())
    }

    /// Its last IP, or for IPv4 the one before the broadcast address. `None`: it is a single IPv4 address.
    #[must_use]
    pub fn last_unicast(&self) -> Option<IpAddr> {
        let last = self.hosts().checked_sub(self.ip.is_ipv4().into())?;
        self.network().plus(last)
    }

    /// Number of IPs; for all of IPv6 one less.
    #[must_use]
    pub fn size(&self) -> u128 {
        self.hosts().saturating_add(1)
    }

    /// The IP `n` above its first one, if the prefix contains it.
    #[must_use]
    pub fn nth(&self, n: u128) -> Option<IpAddr> {
        self.network().plus(n)
    }

    /// The IP `n` above the written one, if the prefix contains it.
    #[must_use]
    pub fn plus(&self, n: u128) -> Option<IpAddr> {
        let at = number(self.ip).checked_add(n)?;
        (at <= number(self.last())).then(|| self.address(at))
    }

    /// The IP with this number in the prefix's family.
    #[must_use]
    pub fn address(&self, number: u128) -> IpAddr {
        match u32::try_from(number) {
            Ok(number) if self.ip.is_ipv4() => Ipv4Addr::from_bits(number).into(),
            _ => Ipv6Addr::from_bits(number).into(),
        }
    }

    /// A mask of the bits that are not fixed.
    fn hosts(&self) -> u128 {
        1_u128.checked_shl(self.host_bits()).map_or(u128::MAX, |size| size - 1)
    }
}

/// An IP as a number.
#[must_use]
pub fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() {
            write!(f, "{}", self.ip)
        } else {
            write!(f, "{}/{}", self.ip, self.len)
        }
    }
}

impl Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The text is neither an IP nor a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an IP or a prefix: write it as 10.0.3.17, 10.0.0.0/24 or fd00::/64")]
pub struct InvalidPrefix;

impl FromStr for Prefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let Some((ip, len)) = text.split_once('/') else {
            return text.parse().map(Prefix::host).map_err(|_| InvalidPrefix);
        };
        // `u8::from_str` would accept a leading plus sign.
        if !len.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidPrefix);
        }
        let (ip, len) = (ip.parse().ok(), len.parse().ok());
        ip.zip(len).and_then(|(ip, len)| Self::new(ip, len)).ok_or(InvalidPrefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_ip_is_a_prefix_of_full_length() {
        assert_eq!(prefix("10.0.3.17"), Prefix { ip: ip("10.0.3.17"), len: 32 });
        assert_eq!(prefix("fd00::1").len, 128);
        assert_eq!(prefix("10.0.3.17/32").to_string(), "10.0.3.17");
        assert_eq!(prefix("10.0.3.17").to_cidr(), "10.0.3.17/32");
        assert_eq!(prefix("10.0.0.0/8").to_string(), "10.0.0.0/8");
    }

    #[test]
    fn what_is_no_prefix_is_refused() {
        for text in [
            "",
            "10.0.0",
            "10.0.0.256",
            "10.0.0.1/33",
            "10.0.0.1/+8",
            "10.0.0.1/-1",
            "10.0.0.1/",
            "10.0.0.1/300",
            "fd00::/129",
            "/8",
            "x/8",
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(InvalidPrefix), "{text:?}");
            assert_eq!(Prefix::from_cidr(text), None, "{text:?}");
        }
        assert_eq!(Prefix::from_cidr("10.0.0.1"), None);
        assert_eq!(Prefix::from_cidr("10.0.0.1/24"), Some(prefix("10.0.0.1/24")));
    }

    #[test]
    fn a_prefix_holds_what_shares_its_first_bits() {
        assert!(prefix("10.0.3.99/24").contains(ip("10.0.3.1")));
        assert!(!prefix("10.0.3.0/24").contains(ip("10.0.4.1")));
        assert!(prefix("0.0.0.0/0").contains(ip("255.1.2.3")));
        assert!(prefix("::/0").contains(ip("fd00::1")));
        assert!(!prefix("10.0.3.17").contains(ip("10.0.3.18")));
        assert!(!prefix("0.0.0.0/0").contains(ip("::ffff:10.0.0.1")));
        assert!(!prefix("10.0.0.64/26").contains(ip("::10.0.0.65")));
    }

    #[test]
    fn its_ends_and_what_lies_between() {
        let ends = |text: &str| prefix(text).range();
        assert_eq!(ends("10.0.0.77/26"), (ip("10.0.0.64"), ip("10.0.0.127")));
        assert_eq!(ends("0.0.0.0/0"), (ip("0.0.0.0"), ip("255.255.255.255")));
        assert_eq!(ends("fd00::42/122"), (ip("fd00::40"), ip("fd00::7f")));
        assert_eq!(ends("::1/0"), (ip("::"), ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")));
        assert_eq!(ends("10.0.0.1/32"), (ip("10.0.0.1"), ip("10.0.0.1")));
        let v4 = prefix("10.0.0.77/26");
        assert_eq!((v4.size(), v4.host_bits(), v4.network()), (64, 6, prefix("10.0.0.64/26")));
        assert_eq!((v4.nth(0), v4.nth(63)), (Some(ip("10.0.0.64")), Some(ip("10.0.0.127"))));
        assert_eq!((v4.nth(64), v4.nth(u128::MAX)), (None, None));
        assert_eq!((v4.plus(50), v4.plus(51)), (Some(ip("10.0.0.127")), None));
        let v6 = prefix("fd00::/64");
        assert_eq!(v6.nth(u64::MAX.into()), Some(ip("fd00::ffff:ffff:ffff:ffff")));
        assert_eq!((v6.nth(1 << 64), v6.size()), (None, 1 << 64));
        assert_eq!((prefix("::/0").size(), prefix("0.0.0.0/0").size()), (u128::MAX, 1 << 32));
    }

    #[test]
    fn only_ipv4_has_a_broadcast_address() {
        let last = |text: &str| prefix(text).last_unicast();
        assert_eq!(last("10.1.2.0/24"), Some(ip("10.1.2.254")));
        assert_eq!(last("10.1.2.0/31"), Some(ip("10.1.2.0")));
        assert_eq!(last("10.1.2.0/32"), None);
        assert_eq!(last("fd00::/120"), Some(ip("fd00::ff")));
        assert_eq!(last("fd00::7"), Some(ip("fd00::7")));
    }
}
