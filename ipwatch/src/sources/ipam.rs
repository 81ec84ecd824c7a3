//! The stores of IPAM plugins: which IPs are reserved, for which containers, and from which ranges.
//!
//! Each kind of store is one file here and one [`Store`]. The rest is shared: `follow` (handles events), `gather`
//! (reads many files), `known` (what was reported before), `trouble` (files that cannot be read). Everything is read
//! only: no lock is taken and no file is written.

#[doc(hidden)]
pub mod aws;
mod bolt;
#[doc(hidden)]
pub mod cilium;
#[doc(hidden)]
pub mod conflist;
mod document;
mod follow;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod gather;
#[doc(hidden)]
pub mod host_local;
mod known;
mod libnetwork;
mod netavark;
#[doc(hidden)]
pub mod subnet;
mod terway;
mod trouble;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounded::{self, Bytes};
use crate::fact::{Configured, Range, Reservation};
use crate::reading::Readings;
use crate::sources::{Emit, First};

/// Time for the first dump of each store; after that the first judgement is made without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// `[ipam]`: the paths of the stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Directories of CNI network configurations, which contain host-local's ranges.
    pub conf_dirs: Vec<PathBuf>,
    /// host-local: its directories, in addition to those in the configurations.
    pub data_dirs: Vec<PathBuf>,
    /// The AWS VPC CNI's file; those of further network cards are beside it.
    pub aws_checkpoint: PathBuf,
    /// Cilium's directory of endpoints.
    pub cilium_state: PathBuf,
    /// dockerd's `data-root`, which contains libnetwork's store.
    pub docker_data_root: PathBuf,
    /// Terway's directory.
    pub terway_dir: PathBuf,
    /// The file in which podman stores the IPs that it has assigned.
    pub netavark_db: PathBuf,
    /// The directory with the files of podman's networks.
    pub netavark_networks: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            conf_dirs: vec![
                "/etc/cni/net.d".into(),
                "/var/lib/rancher/k3s/agent/etc/cni/net.d".into(),
            ],
            data_dirs: vec![host_local::DEFAULT.into()],
            aws_checkpoint: "/var/run/aws-node/ipam.json".into(),
            cilium_state: "/var/run/cilium/state".into(),
            docker_data_root: "/var/lib/docker".into(),
            terway_dir: "/var/lib/cni/terway".into(),
            netavark_db: "/run/containers/networks/ipam.db".into(),
            netavark_networks: "/etc/containers/networks".into(),
        }
    }
}

impl Settings {
    /// The first path that is not absolute.
    pub(crate) fn wrong_path(&self) -> Option<&Path> {
        let one = [
            &self.aws_checkpoint,
            &self.cilium_state,
            &self.docker_data_root,
            &self.terway_dir,
            &self.netavark_db,
            &self.netavark_networks,
        ];
        let all = self.conf_dirs.iter().chain(&self.data_dirs).chain(one);
        all.map(PathBuf::as_path).find(|path| !path.is_absolute())
    }
}

/// Reads every store completely and then follows it; stores that do not exist yet are waited for. Must be called within
/// the tokio runtime.
#[must_use]
pub fn start(settings: &Settings, emit: &Emit, readings: &Readings) -> First {
    let (unheard, first) = First::new(PATIENCE);
    for store in stores(settings) {
        tokio::spawn(follow::run(store, emit.clone(), readings.clone(), unheard.clone()));
    }
    first
}

fn stores(settings: &Settings) -> Vec<Box<dyn Store>> {
    vec![
        Box::new(host_local::HostLocal::new(settings)),
        Box::new(aws::Aws::new(settings)),
        Box::new(cilium::Cilium::new(settings)),
        Box::new(libnetwork::store(&settings.docker_data_root)),
        Box::new(terway::store(&settings.terway_dir)),
        Box::new(netavark::Netavark::new(&settings.netavark_db, &settings.netavark_networks)),
    ]
}

pub(crate) trait Store: Send + Sync + 'static {
    /// Its name, and that of its source.
    fn name(&self) -> &'static str;

    /// The directories that contain its files. Called again whenever everything is read again.
    fn directories(&self) -> Vec<Directory>;

    /// Whether this file in such a directory is a part of the store. Decides by the name only.
    fn is_part(&self, path: &Path) -> bool;

    /// The name under which the content of this file is remembered. Several files of which their owner reads only one
    /// have the same unit, which need not be an existing file.
    fn unit(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }

    /// Reads the complete content of the unit with this name.
    ///
    /// # Errors
    /// Its content cannot be relied upon. What was reported of it before stays valid.
    fn read(&self, path: &Path) -> Result<Content, Trouble>;

    /// The same, if the file's directory is open. For stores with tens of thousands of files.
    ///
    /// # Errors
    /// As [`Store::read`].
    fn read_in(&self, directory: BorrowedFd<'_>, path: &Path) -> Result<Content, Trouble> {
        let _ = directory;
        self.read(path)
    }

    /// The IP that this file blocks even if its content cannot be read.
    fn takes(&self, path: &Path) -> Option<IpAddr> {
        let _ = path;
        None
    }

    /// Whether the existence of this directory shows that the store is in use.
    fn shows_use(&self, directory: &Directory) -> bool {
        let _ = directory;
        true
    }

    /// Whether the directories, or the content of other files, depend on this entry, which need not be a part of the
    /// store: when it changes, everything is read again.
    fn governs(&self, path: &Path) -> bool {
        let _ = path;
        false
    }
}

/// A directory of a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// The files are in its subdirectories (one level), which come and go.
    pub(crate) nested: bool,
}

/// The content of a file.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Content {
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) ranges: Vec<Range>,
    pub(crate) networks: Vec<Configured>,
}

/// Reads a whole file of at most `limit` bytes. `effect`: the consequence for its owner if it cannot be read.
pub(crate) fn read_whole(
    path: &Path,
    limit: usize,
    effect: Option<&'static str>,
) -> Result<Bytes, Trouble> {
    whole(bounded::read_regular(path, limit), limit, effect)
}

/// Turns a truncated or failed read into an error.
fn whole(
    read: io::Result<Bytes>,
    limit: usize,
    effect: Option<&'static str>,
) -> Result<Bytes, Trouble> {
    let read = read.map_err(|error| unread(&error, effect))?;
    if read.truncated { Err(too_long(limit, effect)) } else { Ok(read) }
}

/// The error for a failed read.
fn unread(error: &io::Error, effect: Option<&'static str>) -> Trouble {
    match error.kind() {
        io::ErrorKind::NotFound => Trouble::Gone,
        // Its owner holds a lease on it.
        io::ErrorKind::WouldBlock => Trouble::Busy(error.to_string()),
        _ => Trouble::Unreadable { reason: error.to_string(), effect },
    }
}

fn too_long(limit: usize, effect: Option<&'static str>) -> Trouble {
    Trouble::Unreadable { reason: format!("longer than {limit} bytes"), effect }
}

/// Why a file could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// It was removed while it was read.
    #[error("it is gone")]
    Gone,
    /// Its owner is writing it: it must be read again soon.
    #[error("it is being written: {0}")]
    Busy(String),
    /// It does not have this store's format.
    #[error("{reason}")]
    Unreadable {
        /// What is wrong with it.
        reason: String,
        /// The consequence for its owner.
        effect: Option<&'static str>,
    },
}
