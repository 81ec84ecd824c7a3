//! Prefixes as people write them: `10.0.3.17`, `10.0.0.0/24`, `fd00::/8`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A prefix of IPs; one IP is a prefix of full length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Any IP in it.
    pub ip: IpAddr,
    /// Its length.
    pub len: u8,
}

impl Prefix {
    /// Exactly this IP.
    #[must_use]
    pub fn host(ip: IpAddr) -> Self {
        Self { ip, len: width(ip) }
    }

    /// Whether it is one IP.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.len >= width(self.ip)
    }

    /// Whether `ip` lies in it. An IPv4 prefix holds no IPv6 address, mapped ones included.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let host_bits = u32::from(width(self.ip).saturating_sub(self.len));
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

/// Not an IP and not a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an IP or a prefix: write it as 10.0.3.17, 10.0.0.0/24 or fd00::/64")]
pub struct InvalidPrefix;

impl FromStr for Prefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let Some((ip, len)) = text.split_once('/') else {
            return text.parse().map(Prefix::host).map_err(|_| InvalidPrefix);
        };
        let ip: IpAddr = ip.parse().map_err(|_| InvalidPrefix)?;
        // `u8::from_str` takes a leading plus sign; nobody writes a prefix so.
        if !len.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidPrefix);
        }
        let len: u8 = len.parse().map_err(|_| InvalidPrefix)?;
        if len > width(ip) { Err(InvalidPrefix) } else { Ok(Self { ip, len }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn one_ip_is_a_prefix_of_full_length() {
        assert_eq!(prefix("10.0.3.17"), Prefix { ip: "10.0.3.17".parse().unwrap(), len: 32 });
        assert_eq!(prefix("fd00::1").len, 128);
        assert_eq!(prefix("10.0.3.17/32").to_string(), "10.0.3.17");
        assert_eq!(prefix("10.0.0.0/8").to_string(), "10.0.0.0/8");
    }

    #[test]
    fn what_is_no_prefix_is_refused() {
        for text in ["", "10.0.0", "10.0.0.256", "10.0.0.1/33", "10.0.0.1/+8", "fd00::/129", "/8"] {
            assert_eq!(text.parse::<Prefix>(), Err(InvalidPrefix), "{text:?}");
        }
    }

    #[test]
    fn a_prefix_holds_what_shares_its_first_bits() {
        assert!(prefix("10.0.3.99/24").contains("10.0.3.1".parse().unwrap()));
        assert!(!prefix("10.0.3.0/24").contains("10.0.4.1".parse().unwrap()));
        assert!(prefix("0.0.0.0/0").contains("255.1.2.3".parse().unwrap()));
        assert!(prefix("::/0").contains("fd00::1".parse().unwrap()));
        assert!(!prefix("10.0.3.17").contains("10.0.3.18".parse().unwrap()));
        assert!(!prefix("0.0.0.0/0").contains("::ffff:10.0.0.1".parse().unwrap()));
    }
}
