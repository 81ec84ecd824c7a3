//! host-local, the IPAM plugin of flannel, of bridge and of most configurations written by hand: a directory for each
//! network, with a file for each reserved IP.
//!
//! The file's name is the IP; its content is the container's id and, since plugins 0.7, the interface on a second line.
//! It is written in place (`O_EXCL`, then one write) and removed at DEL, if id and interface are those in the file
//! (plugins/ipam/host-local/backend/disk/backend.go). Beside these files are `lock`, which the plugin locks and ipwatch
//! does not touch, and `last_reserved_ip.N`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use super::{
    Content, Directory, Settings, Store, Trouble, conflist, read_whole, subnet, too_long, unread,
};
use crate::bounded;
use crate::fact::{Name, Reservation, store};

/// Name of the store.
pub(super) const NAME: &str = store::HOST_LOCAL;

/// The default directory of reservations.
pub(super) const DEFAULT: &str = "/var/lib/cni/networks";

/// Maximum number of bytes read: two names, of at most 64 characters.
const LONGEST: usize = 1_024;

/// The consequence of a file that is not a valid reservation.
const TAKEN: &str = "host-local takes the IP for reserved, and no DEL ever frees it: it stays taken until \
                     somebody removes the file";

pub(crate) struct HostLocal {
    data_dirs: Vec<PathBuf>,
    conf_dirs: Vec<PathBuf>,
}

impl HostLocal {
    pub(crate) fn new(settings: &Settings) -> Self {
        let Settings { data_dirs, conf_dirs, .. } = settings.clone();
        Self { data_dirs, conf_dirs }
    }

    fn is_config(&self, path: &Path) -> bool {
        // The name is checked first, because there may be 65,000 files without such a name.
        conflist::is_config(path) && self.is_configured(path)
    }

    /// Whether it is in a directory of configurations.
    fn is_configured(&self, path: &Path) -> bool {
        path.parent().is_some_and(|above| self.conf_dirs.iter().any(|known| known == above))
    }
}

/// Whether it is a file of flanneld. A subnet file with another name is read with the configurations, but not watched.
fn is_flannel(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "env")
}

impl Store for HostLocal {
    fn name(&self) -> &'static str {
        NAME
    }

    fn directories(&self) -> Vec<Directory> {
        let named = conflist::named(&self.conf_dirs);
        let data_dirs: BTreeSet<_> = self.data_dirs.iter().chain(&named.data_dirs).collect();
        let above = named.subnet_files.iter().filter_map(|file| file.parent());
        let flat: BTreeSet<_> = self.conf_dirs.iter().map(PathBuf::as_path).chain(above).collect();
        let directory = |path: &Path, nested| Directory { path: path.to_owned(), nested };
        let data_dirs = data_dirs.into_iter().map(|path| directory(path, true));
        data_dirs.chain(flat.into_iter().map(|path| directory(path, false))).collect()
    }

    fn shows_use(&self, directory: &Directory) -> bool {
        directory.nested
    }

    fn governs(&self, path: &Path) -> bool {
        self.is_config(path)
            || is_flannel(path)
            || (conflist::is_behind(path) && self.is_configured(path))
    }

    fn is_part(&self, path: &Path) -> bool {
        ip_of(path).is_some() || self.is_config(path) || is_flannel(path)
    }

    fn takes(&self, path: &Path) -> Option<IpAddr> {
        ip_of(path)
    }

    fn read(&self, path: &Path) -> Result<Content, Trouble> {
        if self.is_config(path) {
            let default = self.data_dirs.first().map_or(Path::new(DEFAULT), PathBuf::as_path);
            let (ranges, networks) = conflist::content(path, default)?;
            return Ok(Content { ranges, networks, ..Content::default() });
        }
        if is_flannel(path) {
            // The configurations contain the network that it is for.
            return subnet::read(path).map(|_| Content::default());
        }
        let read = read_whole(path, LONGEST, Some(TAKEN))?;
        content(path, &read.bytes, read.modified)
    }

    fn read_in(&self, directory: BorrowedFd<'_>, path: &Path) -> Result<Content, Trouble> {
        let Some(name) = path.file_name().filter(|_| ip_of(path).is_some()) else {
            return self.read(path);
        };
        let mut buffer = [0; LONGEST + 1];
        let read = bounded::read_at(directory, Path::new(name), &mut buffer)
            .map_err(|error| unread(&error, Some(TAKEN)))?;
        if read.length > LONGEST {
            return Err(too_long(LONGEST, Some(TAKEN)));
        }
        content(path, &buffer[..read.length], read.modified)
    }
}

/// The IP in a file's name.
fn ip_of(path: &Path) -> Option<IpAddr> {
    path.file_name()?.to_str()?.parse().ok()
}

/// Parses the file of a reservation.
fn content(path: &Path, bytes: &[u8], modified: Option<i64>) -> Result<Content, Trouble> {
    let unreadable =
        |reason: &str| Trouble::Unreadable { reason: reason.to_owned(), effect: Some(TAKEN) };
    let ip = ip_of(path).ok_or_else(|| unreadable("its name is no IP"))?;
    let network = path.parent().and_then(Path::file_name).unwrap_or_default();
    let Holder { container_id, ifname } = parse(bytes).map_err(unreadable)?;
    let reservation = Reservation {
        store: NAME.to_owned(),
        network: network.to_string_lossy().into_owned(),
        key: path.display().to_string(),
        ip,
        container_id: Some(container_id),
        ifname,
        pod: None,
        since: modified,
    };
    Ok(Content { reservations: vec![reservation], ..Content::default() })
}

/// The owner of a reservation.
#[derive(Debug, PartialEq, Eq)]
pub struct Holder {
    pub container_id: String,
    /// The interface in the container; old plugins did not write it.
    pub ifname: Option<String>,
}

/// Parses the content of a file.
///
/// # Errors
/// What is wrong with it.
pub fn parse(bytes: &[u8]) -> Result<Holder, &'static str> {
    if bytes.is_empty() {
        return Err("it is empty");
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it holds no text")?.trim();
    let mut lines = text.lines().map(str::trim);
    let container_id =
        lines.next().filter(|line| !line.is_empty()).ok_or("it names no container")?;
    let ifname = lines.next().filter(|line| !line.is_empty());
    if lines.next().is_some() {
        return Err("it has more than two lines");
    }
    // A crash can leave such a file if it was being written.
    let garbled = |name: &str| name.contains(char::is_control);
    if garbled(container_id) || ifname.is_some_and(garbled) {
        return Err("it holds no text");
    }
    // Untrusted text. No DEL ever has such an id: libcni and the plugin itself reject it (`ValidateContainerID`).
    if !Name::ContainerId.fits(container_id) {
        return Err("its first line is no container id");
    }
    // The kernel accepts almost any device name, and the plugin any that it was given. An invalid name is dropped: the
    // owner of the IP is known without it.
    let ifname = ifname.filter(|name| Name::Device.fits(name));
    Ok(Holder { container_id: container_id.to_owned(), ifname: ifname.map(str::to_owned) })
}

#[cfg(test)]
mod tests;
