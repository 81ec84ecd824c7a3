//! CNI network configurations: which networks host-local serves, from which ranges, and where it stores their
//! reservations.
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
use crate::fact::{Configured, Range, RangePart};
use crate::reading;
use crate::sources::json::{self, Few, Name};

/// Maximum number of bytes read. A conflist has a few kilobytes.
const LONGEST: usize = 256 * 1024;

/// Maximum number of configurations in one directory.
const MOST: usize = 256;

/// The file in which flanneld writes the node's subnet.
const FLANNEL: &str = "/run/flannel/subnet.env";

/// Plugins that add pods to networks whose configurations are in the API server (NetworkAttachmentDefinition and
/// similar).
const META: [&str; 4] = ["multus", "multus-shim", "danm", "genie"];

/// Maximum number of networks named within one configuration.
const NAMED: usize = 256;

/// The consequence if a configuration cannot be read by kubelet and its runtime.
const SKIPPED: &str = "the runtime passes over this network; without another one the node is not ready and \
                       no pod starts";

/// The consequence if host-local cannot use a range.
const REFUSED: &str = "host-local refuses every ADD to this network";

/// Whether libcni treats a file with this name as a configuration.
pub(super) fn is_config(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("conf" | "conflist" | "json"))
}

/// Whether this entry is what links to configurations point through: a projected volume is changed by replacing it.
pub(super) fn is_behind(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "..data")
}

/// What configurations refer to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// The directories in which host-local stores reservations.
    pub(super) data_dirs: Vec<PathBuf>,
    /// Files with flannel's subnets.
    pub(super) subnet_files: Vec<PathBuf>,
}

/// What the configurations in these directories refer to. Configurations that cannot be read are skipped; they are
/// reported when they are read as files of the store.
pub(super) fn named(directories: &[PathBuf]) -> Named {
    let mut named = Named::default();
    let files = directories.iter().flat_map(|directory| entries(directory).unwrap_or_default());
    for path in files.filter(|path| is_config(path)).take(MOST) {
        let networks = read_config(&path).map(Config::served);
        let Ok(Ok(networks)) = networks else { continue };
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

/// The entries of a directory.
fn entries(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let _reading = reading::path(directory)?;
    let entries = std::fs::read_dir(directory)?;
    Ok(entries.take(16 * MOST).flatten().map(|entry| entry.path()).collect())
}

/// The ranges in a configuration, and every network that it names.
pub(super) fn content(
    path: &Path,
    default_dir: &Path,
) -> Result<(Vec<Range>, Vec<Configured>), Trouble> {
    let config = read_config(path)?;
    let networks = config.configured(&path.display().to_string());
    let mut ranges: BTreeMap<String, Range> = BTreeMap::new();
    for network in config.served().map_err(unreadable)? {
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
        // A pod gets an IP from each plugin in the list that assigns some.
        ranges.entry(network.name.clone()).or_insert_with(new).sets.extend(sets);
    }
    Ok((ranges.into_values().collect(), networks))
}

fn unreadable(wrong: Wrong) -> Trouble {
    let effect = match wrong {
        Wrong::Json(_) => SKIPPED,
        Wrong::Range(_) => REFUSED,
    };
    Trouble::Unreadable { reason: wrong.to_string(), effect: Some(effect) }
}

fn read_config(path: &Path) -> Result<Config, Trouble> {
    // libcni follows links, which some systems and every projected volume use here; whoever can write to this directory
    // can run anything as root anyway.
    let read = whole(bounded::read_linked(path, LONGEST), LONGEST, None)?;
    Config::parse(&read.bytes).map_err(unreadable)
}

/// Why a configuration cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It cannot be parsed as a configuration.
    #[error("{0}")]
    Json(String),
    /// host-local cannot allocate from it.
    #[error("{0}")]
    Range(String),
}

/// A network that host-local serves.
#[derive(Debug, PartialEq, Eq)]
pub struct Network {
    pub name: String,
    /// The directory of the reservations, if not host-local's default.
    pub data_dir: Option<PathBuf>,
    /// Its ranges, unless they are flannel's.
    pub sets: Vec<Vec<RangePart>>,
    /// The file with flannel's subnet.
    pub subnet_file: Option<PathBuf>,
}

/// The networks in a configuration that host-local serves.
///
/// # Errors
/// It cannot be parsed, or has an invalid range.
pub fn parse(bytes: &[u8]) -> Result<Vec<Network>, Wrong> {
    Config::parse(bytes)?.served()
}

/// A network with a list of plugins, a network with one plugin, or a plugin. Go's libcni distinguishes them by the
/// file's name and by their position; no key has two meanings.
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
    fn parse(bytes: &[u8]) -> Result<Self, Wrong> {
        json::parse(bytes).map_err(|error| Wrong::Json(error.to_string()))
    }

    /// The networks that host-local serves.
    fn served(self) -> Result<Vec<Network>, Wrong> {
        let mut networks = Vec::new();
        self.networks(None, &mut networks)?;
        Ok(networks)
    }

    /// Every network with a name, whatever plugins it has.
    fn configured(&self, path: &str) -> Vec<Configured> {
        let plugins = self.plugins.0.iter().chain(&self.delegates.0);
        let mut all: Vec<Configured> =
            plugins.flat_map(|plugin| plugin.configured(path)).take(NAMED).collect();
        let is_meta = |plugin: &Self| {
            plugin.kind.as_ref().is_some_and(|Name(kind)| META.iter().any(|own| kind == own))
        };
        let elsewhere = is_meta(self) || self.plugins.0.iter().any(is_meta);
        if self.name.is_some() || elsewhere {
            let name = self.name.as_ref().map_or_else(String::new, |Name(name)| name.clone());
            let (store, path) = (host_local::NAME.to_owned(), path.to_owned());
            all.push(Configured { store, name, path, elsewhere });
        }
        all
    }

    fn networks(self, above: Option<&Name>, into: &mut Vec<Network>) -> Result<(), Wrong> {
        let name = self.name.as_ref().or(above);
        for plugin in self.plugins.0.into_iter().chain(self.delegates.0) {
            plugin.networks(name, into)?;
        }
        let Some(Name(name)) = name else { return Ok(()) };
        // The name is used as a directory name.
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
            // If this node's subnet comes from the API server, it is unknown here.
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
