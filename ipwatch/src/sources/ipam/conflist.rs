//! CNI network configurations: which networks host-local serves, out of which ranges, and where it keeps
//! their reservations.
//!
//! They carry whatever a plugin wants to be told, credentials among it. Nothing is read but the names and
//! types of networks and plugins, `ipam.{type, dataDir, subnet, rangeStart, rangeEnd, gateway, ranges}` and the same of
//! `ipam.delegate`,
//! flannel's `subnetFile`, and the configurations that a plugin like multus carries for others (`delegates`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::subnet::{self, Written};
use super::{Trouble, host_local, whole};
use crate::bounded;
use crate::fact::{Range, RangePart};
use crate::reading;
use crate::sources::json::{self, Few, Name};

/// Longest configuration that is read. A conflist is some kilobytes.
const LONGEST: usize = 256 * 1024;

/// Configurations in one directory.
const MOST: usize = 256;

/// Where flanneld leaves the node's subnet.
const FLANNEL: &str = "/run/flannel/subnet.env";

/// What kubelet and its runtime make of a configuration that cannot be read.
const SKIPPED: &str = "the runtime passes over this network; without another one the node is not ready and \
                       no pod starts";

/// What host-local makes of a range that it cannot use.
const REFUSED: &str = "host-local refuses every ADD to this network";

/// Whether libcni takes a file of this name for a configuration.
pub(super) fn is_config(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("conf" | "conflist" | "json"))
}

/// Whether what the configurations are links to hangs on an entry of this name: a projected volume is changed
/// by replacing it.
pub(super) fn is_behind(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "..data")
}

/// What the configurations of some directories name besides networks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// The directories where host-local keeps reservations.
    pub(super) data_dirs: Vec<PathBuf>,
    /// Files with flannel's subnets.
    pub(super) subnet_files: Vec<PathBuf>,
}

/// What the configurations in these directories name. Those that cannot be read name nothing: that is told
/// of when they are read for themselves.
pub(super) fn named(directories: &[PathBuf]) -> Named {
    let mut named = Named::default();
    let files = directories.iter().flat_map(|directory| entries(directory).unwrap_or_default());
    for path in files.filter(|path| is_config(path)).take(MOST) {
        let Ok(networks) = read_networks(&path) else { continue };
        for network in networks {
            named.data_dirs.extend(network.data_dir);
            named.subnet_files.extend(network.subnet_file);
        }
    }
    for paths in [&mut named.data_dirs, &mut named.subnet_files] {
        paths.retain(|path| path.is_absolute());
        paths.sort();
        paths.dedup();
    }
    named
}

/// What is in a directory of configurations.
fn entries(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let _reading = reading::path(directory)?;
    let entries = std::fs::read_dir(directory)?;
    Ok(entries.take(16 * MOST).flatten().map(|entry| entry.path()).collect())
}

/// The ranges of a configuration.
pub(super) fn ranges(path: &Path, default_dir: &Path) -> Result<Vec<Range>, Trouble> {
    let mut ranges: BTreeMap<String, Range> = BTreeMap::new();
    for network in read_networks(path)? {
        let sets = match &network.subnet_file {
            Some(file) => subnet::read(file).unwrap_or_default(),
            None => network.sets,
        };
        if sets.is_empty() {
            continue; // who can tell is not there yet, or is the API server
        }
        let new = || Range {
            store: host_local::NAME.to_owned(),
            network: network.name.clone(),
            path: path.display().to_string(),
            shares: false,
            data_dir: {
                let root = network.data_dir.as_deref().unwrap_or(default_dir);
                Some(root.join(&network.name).display().to_string())
            },
            sets: Vec::new(),
        };
        // A pod gets an IP from each plugin of the list that hands some out.
        ranges.entry(network.name.clone()).or_insert_with(new).sets.extend(sets);
    }
    Ok(ranges.into_values().collect())
}

fn read_networks(path: &Path) -> Result<Vec<Network>, Trouble> {
    let unreadable = |reason: String, effect| Trouble::Unreadable { reason, effect: Some(effect) };
    // libcni follows links, which some systems and every projected volume put here; who may write in this
    // directory may run what he likes as root.
    let read = whole(bounded::read_linked(path, LONGEST), LONGEST, None)?;
    parse(&read.bytes).map_err(|wrong| match wrong {
        Wrong::Json(_) => unreadable(wrong.to_string(), SKIPPED),
        Wrong::Range(_) => unreadable(wrong.to_string(), REFUSED),
    })
}

/// Why a configuration says nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It is no configuration.
    #[error("{0}")]
    Json(String),
    /// host-local can hand nothing out of it.
    #[error("{0}")]
    Range(String),
}

/// One network that host-local serves.
#[derive(Debug, PartialEq, Eq)]
pub struct Network {
    pub name: String,
    /// Where the reservations are, unless in host-local's default place.
    pub data_dir: Option<PathBuf>,
    /// What it hands out, unless flannel knows.
    pub sets: Vec<Vec<RangePart>>,
    /// Where flannel says what it hands out.
    pub subnet_file: Option<PathBuf>,
}

/// The networks of a configuration that host-local serves.
///
/// # Errors
/// It is no configuration, or has a range that cannot be.
pub fn parse(bytes: &[u8]) -> Result<Vec<Network>, Wrong> {
    let config: Config = json::parse(bytes).map_err(|error| Wrong::Json(error.to_string()))?;
    let mut networks = Vec::new();
    config.networks(None, &mut networks)?;
    Ok(networks)
}

/// A network with a list of plugins, a network with one plugin, or a plugin: Go's libcni tells them apart
/// by the file's name and by where they stand, and they share no key with two meanings.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    name: Option<Name>,
    #[serde(rename = "type")]
    kind: Option<Name>,
    #[serde(default)]
    plugins: Few<Config, 64>,
    #[serde(default)]
    delegates: Few<Config, 64>,
    ipam: Option<Ipam>,
    subnet_file: Option<Name>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ipam {
    #[serde(rename = "type")]
    kind: Option<Name>,
    data_dir: Option<Name>,
    subnet: Option<Name>,
    range_start: Option<Name>,
    range_end: Option<Name>,
    gateway: Option<Name>,
    ranges: Few<Few<Written, 256>, 64>,
    /// What `ipwatch-ipam` stands before.
    delegate: Option<Box<Ipam>>,
}

impl Config {
    fn networks(self, above: Option<&Name>, into: &mut Vec<Network>) -> Result<(), Wrong> {
        let name = self.name.as_ref().or(above);
        for plugin in self.plugins.0.into_iter().chain(self.delegates.0) {
            plugin.networks(name, into)?;
        }
        let Some(Name(name)) = name else { return Ok(()) };
        // The name becomes a directory's.
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            return Ok(());
        }
        let flannel = self.kind.is_some_and(|Name(kind)| kind == "flannel");
        let ipam = self.ipam.unwrap_or_default().served();
        let host_local = match &ipam.kind {
            Some(Name(kind)) => kind == host_local::NAME,
            None => flannel, // its default for the plugin that it works through
        };
        if !host_local {
            return Ok(());
        }
        let path = |Name(path): Name| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
        let subnet_file = flannel
            .then(|| self.subnet_file.and_then(path).unwrap_or_else(|| PathBuf::from(FLANNEL)));
        let data_dir = ipam.data_dir.clone().and_then(path);
        let sets = if flannel { Vec::new() } else { ipam.sets()? };
        into.push(Network { name: name.clone(), data_dir, sets, subnet_file });
        Ok(())
    }
}

impl Ipam {
    /// The plugin that reserves: behind `ipwatch-ipam` its delegate.
    fn served(self) -> Self {
        let is_ours =
            self.kind.as_ref().is_some_and(|Name(kind)| kind == ipwatch_ipam::config::OWN);
        match self.delegate {
            Some(delegate) if is_ours => *delegate,
            delegate => Self { delegate, ..self },
        }
    }

    /// The range sets, a range at the top before the others (allocator/config.go, `LoadIPAMConfig`).
    fn sets(self) -> Result<Vec<Vec<RangePart>>, Wrong> {
        let Self { subnet, range_start, range_end, gateway, ranges, .. } = self;
        let single =
            subnet.is_some().then(|| vec![Written { subnet, range_start, range_end, gateway }]);
        let sets = single.into_iter().chain(ranges.0.into_iter().map(|Few(set)| set));
        let mut all = Vec::new();
        for set in sets.filter(|set| !set.is_empty()) {
            // Where the API server says which subnet is this node's, nothing here does.
            if set.iter().any(Written::is_told_elsewhere) {
                return Ok(Vec::new());
            }
            let parts: Result<_, _> = set.iter().map(Written::part).collect();
            all.push(parts.map_err(Wrong::Range)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
