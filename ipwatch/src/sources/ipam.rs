//! The stores of IPAM plugins: which IPs are reserved, for whom, and out of which ranges.
//!
//! Each kind of store is one file here and one [`Store`]; what follows files and turns their changes into
//! facts is shared: `follow` (the events and the order of things), `gather` (many files at once), `known` (what
//! was said before), `trouble` (files that say nothing). Everything is read only: no lock is taken and no file is written.

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
use crate::fact::{Range, Reservation};
use crate::reading::Readings;
use crate::sources::{Emit, First};

/// For the first dump of each store, before the first judgement is made without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// `[ipam]`: where the stores are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// CNI network configurations, which name host-local's ranges.
    pub conf_dirs: Vec<PathBuf>,
    /// host-local: its directories, besides those that the configurations name.
    pub data_dirs: Vec<PathBuf>,
    /// The AWS VPC CNI's file; those of further network cards lie beside it.
    pub aws_checkpoint: PathBuf,
    /// Cilium's directory of endpoints.
    pub cilium_state: PathBuf,
    /// dockerd's `data-root`, in which libnetwork's store is.
    pub docker_data_root: PathBuf,
    /// Terway's directory.
    pub terway_dir: PathBuf,
    /// The file in which podman keeps the IPs that it gave.
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
    /// The first path that is none.
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

/// Reads every store, whole, and then follows it; those that are not there yet are waited for. To be called
/// within the runtime of tokio.
#[must_use]
pub fn start(settings: &Settings, emit: &Emit, readings: &Readings) -> First {
    let (unheard, first) = First::new(PATIENCE);
    for store in stores(settings) {
        tokio::spawn(follow::run(store, emit.clone(), readings.clone(), unheard.clone()));
    }
    first
}

/// Every kind of store there is.
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

/// One kind of store.
pub(crate) trait Store: Send + Sync + 'static {
    /// Its name, and its source's.
    fn name(&self) -> &'static str;

    /// The directories whose files it is made of, as they are to be now; asked again whenever everything
    /// is read anew.
    fn directories(&self) -> Vec<Directory>;

    /// Whether this file of such a directory is a part of the store. Looks at the name alone.
    fn is_part(&self, path: &Path) -> bool;

    /// The name under which what this part says is kept. Files of which their owner reads only one share a name, which
    /// need not be that of a file that is there.
    fn unit(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }

    /// What the unit of this name says: all of it, each time.
    ///
    /// # Errors
    /// It says nothing that can be relied upon. What it said before stands.
    fn read(&self, path: &Path) -> Result<Content, Trouble>;

    /// The same, where the directory that the file is in is open. For stores with tens of thousands of files.
    ///
    /// # Errors
    /// As [`Store::read`].
    fn read_in(&self, directory: BorrowedFd<'_>, path: &Path) -> Result<Content, Trouble> {
        let _ = directory;
        self.read(path)
    }

    /// The IP that this file keeps from being handed out even when it says nothing.
    fn takes(&self, path: &Path) -> Option<IpAddr> {
        let _ = path;
        None
    }

    /// Whether this directory shows, by being there, that the store is in use.
    fn shows_use(&self, directory: &Directory) -> bool {
        let _ = directory;
        true
    }

    /// Whether the directories, or what other files say, hang on this entry, which need be no part: when it
    /// changes, everything is read anew.
    fn governs(&self, path: &Path) -> bool {
        let _ = path;
        false
    }
}

/// A directory of a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// The files are in the directories below it (one level), which come and go.
    pub(crate) nested: bool,
}

/// What a file says.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Content {
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) ranges: Vec<Range>,
}

/// All of a file that is no longer than `limit`. `effect`: what its owner makes of one that cannot be read.
pub(crate) fn read_whole(
    path: &Path,
    limit: usize,
    effect: Option<&'static str>,
) -> Result<Bytes, Trouble> {
    whole(bounded::read_regular(path, limit), limit, effect)
}

/// What was read of a file, if it is all of it.
fn whole(
    read: io::Result<Bytes>,
    limit: usize,
    effect: Option<&'static str>,
) -> Result<Bytes, Trouble> {
    let read = read.map_err(|error| unread(&error, effect))?;
    if read.truncated { Err(too_long(limit, effect)) } else { Ok(read) }
}

/// Why a file was not read.
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

/// Why a file says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// It went away while it was looked at.
    #[error("it is gone")]
    Gone,
    /// Its owner is writing it: it is to be read again soon.
    #[error("it is being written: {0}")]
    Busy(String),
    /// It is not what this store writes.
    #[error("{reason}")]
    Unreadable {
        /// What is wrong with it.
        reason: String,
        /// What its owner makes of that.
        effect: Option<&'static str>,
    },
}
