//! What `ipwatch cni` does with a node: which configurations there are, wrapping and unwrapping them, and the program.
//!
//! A configuration is replaced whole (a new file beside it, renamed), with its mode and owner, after a copy of it was
//! kept. A link is not followed, for what is behind it is somebody else's to change.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::config::OWN;
use crate::state::{make, read_small};
use crate::wrap::{self, Standing};

/// Where runtimes read networks: kubeadm, RKE2 and CRI-O; k3s; RKE2's own.
pub const CONF_DIRS: [&str; 3] = [
    "/etc/cni/net.d",
    "/var/lib/rancher/k3s/agent/etc/cni/net.d",
    "/var/lib/rancher/rke2/agent/etc/cni/net.d",
];
/// Where their plugins are.
pub const BIN_DIRS: [&str; 6] = [
    "/opt/cni/bin",
    "/usr/lib/cni",
    "/usr/libexec/cni",
    "/var/lib/rancher/k3s/data/cni",
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
];
/// Where libcni keeps results, each with the configuration that it was made with.
pub const CACHE_DIR: &str = "/var/lib/cni/results";

/// Longest configuration.
const LONGEST: usize = 256 * 1024;
/// Files of a directory that are looked at.
const MOST: usize = 4096;

/// A configuration of the node.
#[derive(Debug)]
pub struct Network {
    /// Its file.
    pub path: PathBuf,
    /// Its text, and what stands in it; or why it says nothing.
    pub read: Result<(String, wrap::Read), String>,
}

/// Every configuration in these directories, in the order of their names.
#[must_use]
pub fn networks(dirs: &[PathBuf]) -> Vec<Network> {
    let mut files: Vec<PathBuf> = dirs
        .iter()
        .flat_map(|dir| fs::read_dir(dir).into_iter().flatten().take(MOST).flatten())
        .map(|entry| entry.path())
        .filter(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("conf" | "conflist" | "json"))
        })
        .collect();
    files.sort();
    let read = |path: &Path| {
        let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        if is_link {
            return Err("it is a link: change what it leads to, with --conf-dir".to_owned());
        }
        let bytes =
            read_small(path, LONGEST).map_err(|error| format!("it cannot be read: {error}"))?;
        let text = String::from_utf8(bytes.unwrap_or_default()).map_err(|_| "it is no text")?;
        let read = wrap::read(&text)?;
        Ok((text, read))
    };
    files.into_iter().map(|path| Network { read: read(&path), path }).collect()
}

impl Network {
    /// Whether `ipwatch-ipam` stands in it.
    #[must_use]
    pub fn is_wrapped(&self) -> bool {
        self.standings().any(|standing| matches!(standing, Standing::Wrapped(_)))
    }

    /// Whether it names `ipwatch-ipam`, or may: what is not understood is looked through, links are followed.
    #[must_use]
    pub fn may_name_it(&self) -> bool {
        if self.read.is_ok() {
            return self.is_wrapped();
        }
        let mut bytes = Vec::new();
        let limit = LONGEST as u64;
        let read = File::open(&self.path)
            .and_then(|file| io::Read::read_to_end(&mut io::Read::take(file, limit), &mut bytes));
        match read {
            Ok(_) => String::from_utf8_lossy(&bytes).contains(OWN),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// How each of its plugins stands.
    pub fn standings(&self) -> impl Iterator<Item = &Standing> {
        let plugins = self.read.as_ref().map(|(_, read)| read.plugins.as_slice());
        plugins.unwrap_or_default().iter().map(|plugin| &plugin.standing)
    }

    /// Its text with `ipwatch-ipam`, or without. `None`: nothing is to be changed.
    ///
    /// # Errors
    /// It is not understood.
    pub fn changed(&self, wrapped: bool) -> Result<Option<String>, String> {
        let (text, _) = self.read.as_ref().map_err(Clone::clone)?;
        if wrapped { wrap::wrap(text) } else { wrap::unwrap(text) }
    }
}

/// Replaces a configuration, if it still is what was read. A copy of what was there is kept in `backups`: under its own
/// name while it is wrapped, and of one that was unwrapped as `NAME.wrapped`.
///
/// # Errors
/// It has changed since, or cannot be written.
pub fn replace(network: &Network, new: &str, backups: &Path) -> io::Result<()> {
    let Ok((text, _)) = &network.read else { return Err(io::Error::other("it was not read")) };
    let path = &network.path;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let metadata = fs::symlink_metadata(path)?;
    if read_small(path, LONGEST)?.as_deref() != Some(text.as_bytes()) {
        return Err(io::Error::other("it has changed meanwhile: try again"));
    }
    make(backups)?;
    let unwraps = network.is_wrapped();
    let copy = if unwraps { format!("{name}.wrapped") } else { name.clone() };
    write(&backups.join(copy), text.as_bytes(), 0o600, None)?;
    write(path, new.as_bytes(), metadata.mode() & 0o7777, Some((metadata.uid(), metadata.gid())))?;
    if unwraps {
        let _ = fs::remove_file(backups.join(name));
    }
    Ok(())
}

/// A diff of the lines that change, for people.
#[must_use]
pub fn diff(path: &Path, before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let tail = old[same..].iter().rev().zip(new[same..].iter().rev());
    let tail = tail.take_while(|(one, other)| one == other).count();
    let mut text = format!("--- {0}\n+++ {0}\n@@ line {1} @@\n", path.display(), same + 1);
    for (sign, lines) in [('-', &old[same..old.len() - tail]), ('+', &new[same..new.len() - tail])]
    {
        for line in lines {
            text.push(sign);
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Directories of plugins that a delegate of these networks is in.
#[must_use]
pub fn homes(networks: &[Network], bin_dirs: &[PathBuf]) -> Vec<PathBuf> {
    let kinds: Vec<&String> = networks
        .iter()
        .flat_map(Network::standings)
        .filter_map(|standing| match standing {
            Standing::Plain(kind) | Standing::Wrapped(kind) => Some(kind),
            Standing::Refused(_) => None,
        })
        .collect();
    let has = |dir: &&PathBuf| kinds.iter().any(|kind| dir.join(kind).is_file());
    bin_dirs.iter().filter(has).cloned().collect()
}

/// Puts the program into a directory of plugins. Whether that changed anything.
///
/// # Errors
/// It cannot be read or written.
pub fn put_program(program: &Path, dir: &Path) -> io::Result<bool> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(File::open(program)?, 64 << 20), &mut bytes)?;
    let to = dir.join(OWN);
    if read_small(&to, 64 << 20).ok().flatten().as_deref() == Some(&bytes) {
        return Ok(false);
    }
    write(&to, &bytes, 0o755, None)?;
    Ok(true)
}

/// A result in the runtime's cache that was made through `ipwatch-ipam`: its DEL needs the program.
#[must_use]
pub fn needed_by(cache: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let names = |path: &PathBuf| {
        let Ok(Some(bytes)) = read_small(path, 1 << 20) else { return false };
        // The configuration is in there in base64 (libcni's `cachedInfo.Config`) or as it is.
        let text = String::from_utf8_lossy(&bytes);
        text.contains(OWN) || in_base64(&text)
    };
    entries.map(|entry| entry.path()).find(names)
}

/// Whether a text has the name within something in base64, at any of the three offsets that it can have.
fn in_base64(text: &str) -> bool {
    // "ipwatch-ipam", without what depends on its neighbours.
    ["aXB3YXRjaC1pcGFt", "lwd2F0Y2gtaXBhb", "pcHdhdGNoLWlwYW"]
        .iter()
        .any(|part| text.contains(part))
}

fn write(path: &Path, bytes: &[u8], mode: u32, owner: Option<(u32, u32)>) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // No runtime takes a file of this name for a configuration.
    let new = path.with_file_name(format!(".{name}.ipwatch-new"));
    let _ = fs::remove_file(&new);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    if let Some((uid, gid)) = owner {
        std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]
mod tests {
    use super::*;

    const LIST: &str = "{\"name\":\"net\",\n\"plugins\":[\n{\"type\":\"bridge\",\"ipam\":{\"type\":\"host-local\"}}\n]}\n";

    #[test]
    fn a_node_is_wrapped_and_unwrapped() {
        let dir = tempfile::tempdir().unwrap();
        let (conf, backups) = (dir.path().join("net.d"), dir.path().join("backups"));
        fs::create_dir(&conf).unwrap();
        let file = conf.join("10-net.conflist");
        fs::write(&file, LIST).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(conf.join("notes.txt"), "x").unwrap();
        std::os::unix::fs::symlink(&file, conf.join("20-link.conf")).unwrap();
        let dirs = [conf.clone()];
        let all = networks(&dirs);
        assert_eq!(all.len(), 2);
        assert!(all[1].read.as_ref().unwrap_err().contains("is a link"));
        let new = all[0].changed(true).unwrap().unwrap();
        let shown = diff(&file, LIST, &new);
        assert_eq!(shown.lines().filter(|line| line.starts_with('+')).count(), 2, "{shown}");
        replace(&all[0], &new, &backups).unwrap();
        assert_eq!(fs::read_to_string(backups.join("10-net.conflist")).unwrap(), LIST);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        let again = networks(&dirs);
        assert!(again[0].is_wrapped());
        assert_eq!(again[0].changed(true).unwrap(), None);
        assert_eq!(fs::read_dir(&conf).unwrap().count(), 3, "nothing is left beside it");
        // Somebody else was at work since it was read.
        assert!(replace(&all[0], &new, &backups).is_err());
        let back = again[0].changed(false).unwrap().unwrap();
        replace(&again[0], &back, &backups).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), LIST);
        assert!(!backups.join("10-net.conflist").exists(), "nothing says that it is to be wrapped");
        assert!(backups.join("10-net.conflist.wrapped").exists());
        assert!(!networks(&dirs).iter().any(Network::may_name_it));
        fs::write(&file, &new).unwrap();
        assert!(networks(&dirs)[1].may_name_it(), "by what the link leads to");
    }

    #[test]
    fn the_program_goes_where_the_delegate_is() {
        let dir = tempfile::tempdir().unwrap();
        let (conf, bin, other) =
            (dir.path().join("net.d"), dir.path().join("bin"), dir.path().join("other"));
        [&conf, &bin, &other].iter().for_each(|dir| fs::create_dir(dir).unwrap());
        fs::write(conf.join("10-net.conflist"), LIST).unwrap();
        fs::write(bin.join("host-local"), "").unwrap();
        let all = networks(std::slice::from_ref(&conf));
        assert_eq!(homes(&all, &[other, bin.clone()]), std::slice::from_ref(&bin));
        let program = dir.path().join("program");
        fs::write(&program, "p").unwrap();
        assert!(put_program(&program, &bin).unwrap());
        assert!(!put_program(&program, &bin).unwrap());
        assert_eq!(fs::metadata(bin.join(OWN)).unwrap().mode() & 0o777, 0o755);
    }

    #[test]
    fn a_cached_result_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(needed_by(dir.path()), None);
        // Three configurations in which the name stands at the three offsets.
        for (n, text) in [
            "eyJ0eXBlIjoiaXB3YXRjaC1pcGFtIn0=",
            "eyJ0eXBlIjogImlwd2F0Y2gtaXBhbSJ9",
            "eyJ0eXBlIjogICJpcHdhdGNoLWlwYW0ifQ==",
        ]
        .iter()
        .enumerate()
        {
            let file = dir.path().join(format!("net-{n}-eth0"));
            fs::write(&file, format!("{{\"config\":\"{text}\"}}")).unwrap();
            assert_eq!(needed_by(dir.path()), Some(file.clone()), "{text}");
            fs::remove_file(file).unwrap();
        }
    }
}
