//! `[metrics]`: the address to listen on, and limits of the series that grow with the node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::contract::Prefix;

/// Default maximum number of `ipwatch_address_info` series: four times the pods that a node runs.
const ADDRESSES: usize = 1024;
/// Upper limit of that maximum: beyond it a metric is the wrong tool.
const MOST_ADDRESSES: usize = 16_384;

/// `[metrics]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `"127.0.0.1:9469"` or `"unix:/run/ipwatch/metrics.sock"`. Absent: nothing listens.
    pub listen: Option<Listen>,
    /// Allow an address that other machines can reach. They can then read the names and IPs of pods.
    pub allow_non_loopback: bool,
    /// Export `ipwatch_address_info`, a series for each IP of a pod.
    pub address_info: bool,
    /// The prefixes of pod IPs: only IPs within them have an `ipwatch_address_info` series.
    #[serde(deserialize_with = "prefixes")]
    pub pod_cidrs: Vec<Prefix>,
    /// Maximum number of these series; the number left out is a metric as well.
    pub max_address_series: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: None,
            allow_non_loopback: false,
            address_info: false,
            pod_cidrs: Vec::new(),
            max_address_series: ADDRESSES,
        }
    }
}

impl Settings {
    /// The first error in the settings, if any.
    pub(crate) fn wrong(&self) -> Option<String> {
        if let Some(Listen::Tcp(address)) = &self.listen
            && !address.ip().to_canonical().is_loopback()
            && !self.allow_non_loopback
        {
            return Some(format!(
                "metrics.listen {address} is reached by other machines, which would read pods' names and IPs: \
                 listen on 127.0.0.1:{} or unix:/PATH, or set metrics.allow_non_loopback = true",
                address.port()
            ));
        }
        if self.address_info && self.pod_cidrs.is_empty() {
            let wrong = "metrics.address_info needs metrics.pod_cidrs, as [\"10.244.0.0/16\"]";
            return Some(wrong.to_owned());
        }
        if !(1..=MOST_ADDRESSES).contains(&self.max_address_series) {
            return Some(format!("metrics.max_address_series must be 1 to {MOST_ADDRESSES}"));
        }
        None
    }
}

/// The address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // `unix:///run/x.sock` is accepted as well.
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(format!("{text:?}: the path after unix: must begin with /"));
            }
            return Ok(Listen::Unix(path.into()));
        }
        // No host names: a name needs a lookup, and may resolve to another address later.
        text.parse().map(Listen::Tcp).map_err(|_| {
            format!(
                "{text:?} is neither an IP and a port nor a socket: write it as \"127.0.0.1:9469\", \
                 \"[::1]:9469\" or \"unix:/run/ipwatch/metrics.sock\""
            )
        })
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

fn prefixes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Prefix>, D::Error> {
    let prefix = |text: String| {
        let help = "is not a prefix: write it as \"10.244.0.0/16\" or \"fd00:10:244::/56\"";
        text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} {help}")))
    };
    Vec::<String>::deserialize(deserializer)?.into_iter().map(prefix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        let settings: Settings = toml::from_str(text).unwrap();
        settings.wrong().unwrap_or_default()
    }

    #[test]
    fn it_listens_on_the_loopback_or_a_socket() {
        for listen in ["127.0.0.1:9469", "127.9.9.9:1", "[::1]:9469", "[::ffff:127.0.0.1]:9469"] {
            assert_eq!(wrong(&format!("listen = \"{listen}\"")), "", "{listen}");
        }
        for path in ["unix:/run/metrics.sock", "unix:///run/metrics.sock"] {
            assert_eq!(path.parse(), Ok(Listen::Unix("/run/metrics.sock".into())));
        }
        for listen in ["0.0.0.0:9469", "[::]:9469", "10.0.0.1:9469", "[::ffff:10.0.0.1]:9469"] {
            let said = wrong(&format!("listen = \"{listen}\""));
            assert!(said.contains("allow_non_loopback"), "{listen}: {said}");
            let allowed = format!("listen = \"{listen}\"\nallow_non_loopback = true");
            assert_eq!(wrong(&allowed), "");
        }
    }

    #[test]
    fn what_is_no_place_to_listen_is_told_how_to_write_one() {
        for listen in ["localhost:9469", "9469", ":9469", "127.0.0.1", "", "http://127.0.0.1:1"] {
            assert!(listen.parse::<Listen>().unwrap_err().contains("127.0.0.1:9469"), "{listen}");
        }
        assert!("unix:metrics.sock".parse::<Listen>().unwrap_err().contains("begin with /"));
    }

    #[test]
    fn addresses_need_bounds() {
        assert!(wrong("address_info = true").contains("pod_cidrs"));
        assert_eq!(wrong("address_info = true\npod_cidrs = [\"10.244.0.0/16\"]"), "");
        assert!(wrong("max_address_series = 0").contains("max_address_series"));
        assert!(wrong("max_address_series = 100000").contains("16384"));
        assert!(toml::from_str::<Settings>("pod_cidrs = [\"pods\"]").is_err());
        assert!(toml::from_str::<Settings>("adress_info = true").is_err());
    }
}
