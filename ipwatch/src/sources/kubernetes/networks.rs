//! The ranges that Whereabouts may allocate from. Its pools do not contain them; the NetworkAttachmentDefinitions do.
//!
//! Read are the name, and from `spec.config` the types of the plugins and Whereabouts' own keys `range`, `range_start`,
//! `range_end`, `exclude`, `network_name`, `enable_overlapping_ranges` and `ipRanges`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;

use super::reflector::{Change, Kind};
use super::whereabouts::{Meta, STORE, pool_name};
use crate::clock;
use crate::fact::{self, BootNs, Observation, RangePart, Scope};
use crate::prefix::{Prefix, number};
use crate::sources::json::{self, Few, Name};

/// Maximum number of networks that are remembered.
const MOST: usize = 1024;
/// Maximum length in bytes of a configuration.
const LONGEST: usize = 256 << 10;

/// The ranges of each network. `Err`: the configuration is Whereabouts' and could not be parsed.
#[derive(Default)]
pub(super) struct Networks {
    told: BTreeMap<String, Result<Vec<fact::Range>, ()>>,
    /// During a list: what it has contained so far.
    listed: Option<BTreeMap<String, Result<Vec<fact::Range>, ()>>>,
}

/// `NetworkAttachmentDefinition`
#[derive(Deserialize)]
pub(crate) struct Definition {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
}

impl Definition {
    /// The ranges of this network. `Err`: it is Whereabouts' and could not be parsed.
    pub(crate) fn ranges(&self) -> Result<Vec<fact::Range>, ()> {
        let name = format!("{}/{}", self.metadata.namespace.0, self.metadata.name.0);
        ranges(&name, &self.spec.config)
    }
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    config: String,
}

/// A CNI configuration: a list of plugins, or one.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    plugins: Few<Config, 64>,
    ipam: Option<Ipam>,
}

#[derive(Deserialize)]
struct Ipam {
    #[serde(rename = "type", default)]
    kind: Name,
    #[serde(default)]
    network_name: Name,
    /// Whether an IP is allocated only once in all ranges (whereabouts 0.8, pkg/config: `OverlappingRanges`).
    #[serde(rename = "enable_overlapping_ranges", default = "yes")]
    shares: bool,
    #[serde(flatten)]
    own: Written,
    #[serde(rename = "ipRanges", default)]
    ranges: Few<Written, 64>,
    /// What `ipwatch-ipam` stands before.
    delegate: Option<Box<Ipam>>,
}

impl Ipam {
    /// The plugin that reserves: behind `ipwatch-ipam` its delegate.
    fn served(self) -> Self {
        match self.delegate {
            Some(delegate) if self.kind.0 == ipwatch_ipam::config::OWN => *delegate,
            delegate => Self { delegate, ..self },
        }
    }
}

fn yes() -> bool {
    true
}

/// A range as configured.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Written {
    range: Name,
    range_start: Name,
    range_end: Name,
    exclude: Few<Name, 256>,
}

impl Kind for Networks {
    type Item = Definition;

    fn source(&self) -> &'static str {
        "whereabouts-networks"
    }

    fn about(&self) -> String {
        "the networks of Whereabouts".to_owned()
    }

    fn path(&self) -> String {
        "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions?".to_owned()
    }

    fn may_be_missing(&self) -> bool {
        true
    }

    fn wrong(&self) -> usize {
        self.told.values().filter(|told| told.is_err()).count()
    }

    fn tell(&mut self, change: Change<Self::Item>, out: &mut Vec<Observation>) {
        match change {
            Change::Began => self.listed = Some(BTreeMap::new()),
            Change::Now(definition) => {
                let name =
                    format!("{}/{}", definition.metadata.namespace.0, definition.metadata.name.0);
                let ranges = ranges(&name, &definition.spec.config);
                let into = self.listed.as_mut().unwrap_or(&mut self.told);
                if into.len() < MOST || into.contains_key(&name) {
                    into.insert(name, ranges);
                }
                if self.listed.is_none() {
                    self.all(clock::now(), out);
                }
            }
            Change::Gone(definition) => {
                let name =
                    format!("{}/{}", definition.metadata.namespace.0, definition.metadata.name.0);
                self.told.remove(&name);
                self.all(clock::now(), out);
            }
            Change::Ended { began, complete } => {
                let listed = self.listed.take().unwrap_or_default();
                if complete {
                    self.told = listed;
                } else {
                    self.told.extend(listed);
                }
                self.all(began, out);
            }
            Change::Confirmed => {}
        }
    }
}

impl Networks {
    /// Reports all ranges.
    fn all(&self, began: BootNs, out: &mut Vec<Observation>) {
        let scope = || Scope::Ranges { store: STORE.to_owned() };
        out.push(Observation::Began(scope()));
        let ranges = self.told.values().filter_map(|told| told.as_ref().ok()).flatten();
        out.extend(ranges.cloned().map(Observation::Range));
        out.push(Observation::Ended { scope: scope(), began, complete: true });
    }
}

/// The ranges of a configuration. `Err`: it is Whereabouts' and could not be parsed.
fn ranges(name: &str, config: &str) -> Result<Vec<fact::Range>, ()> {
    if config.len() > LONGEST || !config.contains("whereabouts") {
        return Ok(Vec::new());
    }
    let config: Config = json::parse(config.as_bytes()).map_err(|_| ())?;
    let mut found = Vec::new();
    config.whereabouts(&mut found);
    let mut ranges = Vec::new();
    for ipam in found {
        let own = Some(ipam.own).filter(|own| !own.range.0.is_empty());
        for written in own.into_iter().chain(ipam.ranges.0) {
            let (range, parts) = written.parts().ok_or(())?;
            let prefix = Some(&ipam.network_name.0).filter(|name| !name.is_empty());
            ranges.push(fact::Range {
                store: STORE.to_owned(),
                network: prefix.map(|name| format!("{name}-")).unwrap_or_default()
                    + &pool_name(&range),
                path: format!("network-attachment-definitions/{name}"),
                data_dir: None,
                shares: ipam.shares,
                sets: vec![parts],
            });
        }
    }
    Ok(ranges)
}

impl Config {
    fn whereabouts(self, into: &mut Vec<Ipam>) {
        into.extend(self.ipam.map(Ipam::served).filter(|ipam| ipam.kind.0 == "whereabouts"));
        for plugin in self.plugins.0 {
            plugin.whereabouts(into);
        }
    }
}

impl Written {
    /// The IPs that can be allocated: from the first after the network address to the last before the broadcast
    /// address, within `range_start` and `range_end`, without those excluded (whereabouts 0.8, pkg/allocate and
    /// pkg/iphelpers).
    fn parts(&self) -> Option<(Prefix, Vec<RangePart>)> {
        let text = &self.range.0;
        // `A-B/LEN` is `A/LEN` from A to B.
        let (text, from, to) = match text.split_once('-') {
            None => (text.clone(), None, None),
            Some((first, rest)) => {
                let (last, len) = rest.split_once('/')?;
                (format!("{first}/{len}"), Some(first), Some(last))
            }
        };
        let range = Prefix::from_cidr(&text)?;
        let bound = |own: &Name, other: Option<&str>| -> Option<Option<u128>> {
            let text = if own.0.is_empty() { other } else { Some(own.0.as_str()) };
            match text {
                None => Some(None),
                // A bound outside the network is ignored.
                Some(text) => {
                    let ip: IpAddr = text.trim().parse().ok()?;
                    Some(range.contains(ip).then(|| number(ip)))
                }
            }
        };
        let usable_first = number(range.first()).checked_add(1)?;
        let usable_last = number(range.last()).checked_sub(1)?;
        let first = bound(&self.range_start, from)?.map_or(usable_first, |at| at.max(usable_first));
        let last = bound(&self.range_end, to)?.map_or(usable_last, |at| at.min(usable_last));
        let mut excluded = Vec::new();
        for Name(text) in &self.exclude.0 {
            let one: Prefix = text.parse().ok()?;
            excluded.push((number(one.first()), number(one.last())));
        }
        excluded.sort_unstable();
        let mut parts = Vec::new();
        let mut from = first;
        for (out_first, out_last) in excluded {
            if out_first > from {
                parts.push((from, last.min(out_first - 1)));
            }
            from = from.max(out_last.saturating_add(1));
        }
        parts.push((from, last));
        let part = |(first, last): (u128, u128)| RangePart {
            first: range.address(first),
            last: range.address(last),
            except: Vec::new(),
        };
        let parts: Vec<RangePart> =
            parts.into_iter().filter(|(first, last)| first <= last).map(part).collect();
        (!parts.is_empty()).then_some((range, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ipam: &str) -> Vec<String> {
        let config = format!(
            r#"{{"cniVersion": "0.3.1", "type": "ipvlan", "master": "eth0", "ipam": {{"type": "whereabouts", {ipam}}}}}"#
        );
        let part = |part: &RangePart| format!("{}-{}", part.first, part.last);
        let all = ranges("kube-system/macvlan", &config);
        all.unwrap_or_default()
            .iter()
            .map(|range| {
                let parts: Vec<String> = range.sets[0].iter().map(part).collect();
                format!("{}: {}", range.network, parts.join(" "))
            })
            .collect()
    }

    #[test]
    fn the_bounds_are_those_of_the_definition() {
        assert_eq!(text(r#""range": "10.0.0.0/27""#), ["10.0.0.0-27: 10.0.0.1-10.0.0.30"]);
        assert_eq!(
            text(r#""range": "10.0.0.0/27", "range_start": "10.0.0.10", "range_end": "10.0.0.14""#),
            ["10.0.0.0-27: 10.0.0.10-10.0.0.14"]
        );
        assert_eq!(
            text(r#""range": "10.0.0.10-10.0.0.14/27""#),
            ["10.0.0.0-27: 10.0.0.10-10.0.0.14"]
        );
        assert_eq!(
            text(
                r#""network_name": "blue", "range": "10.0.0.5/29", "exclude": ["10.0.0.2/31", "10.0.0.5"]"#
            ),
            ["blue-10.0.0.0-29: 10.0.0.1-10.0.0.1 10.0.0.4-10.0.0.4 10.0.0.6-10.0.0.6"]
        );
        assert_eq!(
            text(
                r#""ipRanges": [{"range": "10.0.0.0/30"}, {"range": "fd00::/126", "range_start": "::1"}]"#
            ),
            ["10.0.0.0-30: 10.0.0.1-10.0.0.2", "fd00---126: fd00::1-fd00::2"]
        );
    }

    #[test]
    fn what_cannot_be_is_said_and_what_is_others_is_left_alone() {
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/32", "10.0.0.1-x"] {
            let ipam = format!(r#"{{"ipam": {{"type": "whereabouts", "range": "{wrong}"}}}}"#);
            let read = ranges("a/b", &ipam);
            assert!(read.is_err() || wrong.is_empty(), "{wrong}: {read:?}");
        }
        let excluded = r#"{"ipam": {"type": "whereabouts", "range": "10.0.0.0/29", "exclude": ["10.0.0.0/24"]}}"#;
        assert_eq!(ranges("a/b", excluded), Err(()), "nothing is left");
        assert_eq!(ranges("a/b", "whereabouts {"), Err(()));
        assert_eq!(
            ranges("a/b", r#"{"ipam": {"type": "host-local", "token": "whereabouts"}}"#),
            Ok(Vec::new())
        );
        assert_eq!(ranges("a/b", "anything"), Ok(Vec::new()));
    }
}
