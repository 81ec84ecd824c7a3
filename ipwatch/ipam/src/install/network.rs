//! The network configurations of the node: which there are, and writing them with `ipwatch-ipam` or without it.
//!
//! A configuration is replaced by a new file that is renamed over it, with the same mode and owner, after the old text
//! was copied to the backups. A configuration that is a symlink is not changed: its target may belong to another program.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::MAX_DIR_ENTRIES;
use crate::config::{Config, OWN};
use crate::files::{self, Attributes, make_dir, read_small};
use crate::wrap::{self, Standing};

/// Longest configuration, in bytes.
const MAX_CONFIG: usize = 256 * 1024;
/// Longest file that is searched for the plugin's name, in bytes.
const MAX_SEARCHED: u64 = 16 << 20;

/// A configuration of the node.
#[derive(Debug)]
pub struct Network {
    /// Its file.
    pub path: PathBuf,
    /// Its text, raw and parsed; or why it could not be read.
    pub read: Result<(String, wrap::Read), String>,
}

/// Every configuration in these directories, sorted by path.
#[must_use]
pub fn networks(dirs: &[PathBuf]) -> Vec<Network> {
    let mut files: Vec<PathBuf> = dirs
        .iter()
        .flat_map(|dir| fs::read_dir(dir).into_iter().flatten().take(MAX_DIR_ENTRIES).flatten())
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
            return Err("it is a symlink, which is not changed: name the directory of its target with --conf-dir".to_owned());
        }
        let bytes =
            read_small(path, MAX_CONFIG).map_err(|error| format!("it cannot be read: {error}"))?;
        let text =
            String::from_utf8(bytes.unwrap_or_default()).map_err(|_| "it is not UTF-8 text")?;
        let read = wrap::read(&text)?;
        Ok((text, read))
    };
    files.into_iter().map(|path| Network { read: read(&path), path }).collect()
}

impl Network {
    /// Whether `ipwatch-ipam` is the IPAM plugin of one of its plugins.
    #[must_use]
    pub fn is_wrapped(&self) -> bool {
        self.standings().any(|standing| matches!(standing, Standing::Wrapped(_)))
    }

    /// Whether it names `ipwatch-ipam`, or may: also where this program does not look for plugins. A file that could not be
    /// parsed is read again, and here symlinks are followed.
    #[must_use]
    pub fn may_name_it(&self) -> bool {
        if let Ok((text, _)) = &self.read {
            return text.contains(OWN);
        }
        let mut bytes = Vec::new();
        let limit = MAX_SEARCHED + 1;
        let read = File::open(&self.path)
            .and_then(|file| io::Read::read_to_end(&mut io::Read::take(file, limit), &mut bytes));
        match read {
            Ok(length) => {
                length as u64 > MAX_SEARCHED || String::from_utf8_lossy(&bytes).contains(OWN)
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// The configuration of each of its plugins whose IPAM plugin is `ipwatch-ipam`.
    #[must_use]
    pub fn configs(&self) -> Vec<Config> {
        let Ok((text, _)) = &self.read else { return Vec::new() };
        let mut found = Vec::new();
        let whole: Value = serde_json::from_str(text).unwrap_or_default();
        configs_in(&whole, &Map::new(), &mut found);
        found
    }

    /// Whether each of its plugins is wrapped, can be, or cannot.
    pub fn standings(&self) -> impl Iterator<Item = &Standing> {
        let plugins = self.read.as_ref().map(|(_, read)| read.plugins.as_slice());
        plugins.unwrap_or_default().iter().map(|plugin| &plugin.standing)
    }

    /// Its text with `ipwatch-ipam` (`wrapped`) or without. `None`: there is nothing to change.
    ///
    /// # Errors
    /// It could not be read or parsed.
    pub fn changed(&self, wrapped: bool) -> Result<Option<String>, String> {
        let (text, _) = self.read.as_ref().map_err(Clone::clone)?;
        if wrapped { wrap::wrap(text) } else { wrap::unwrap(text) }
    }
}

/// Adds the configurations in `body` whose IPAM plugin is `ipwatch-ipam`. A plugin of a list has the list's name and
/// version, as libcni gives it (`buildOneConfig`).
fn configs_in(body: &Value, above: &Map<String, Value>, into: &mut Vec<Config>) {
    let Some(own) = body.as_object() else { return };
    let mut named = above.clone();
    for key in ["name", "cniVersion"] {
        named.extend(own.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    let lists = ["plugins", "delegates"].into_iter().filter_map(|key| own.get(key)?.as_array());
    lists.flatten().for_each(|plugin| configs_in(plugin, &named, into));
    let kind = own.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str);
    if kind == Some(OWN) {
        let mut whole = own.clone();
        whole.extend(named);
        into.extend(Config::read(Value::Object(whole).to_string().as_bytes()));
    }
}

/// The file name of a configuration's copy. It contains the whole path, because two directories may have files of the
/// same name.
#[must_use]
pub fn backup_name(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').replace('/', "%")
}

/// Replaces a configuration if its file still has the text that was read. That text is copied to `backups`: as
/// [`backup_name`] when the configuration is wrapped, and with `.wrapped` appended when it is unwrapped, when the first
/// copy is removed. A copy without `.wrapped` therefore means that the configuration is to be wrapped.
///
/// # Errors
/// The file has changed since, or cannot be written.
pub fn replace(network: &Network, new: &str, backups: &Path) -> io::Result<()> {
    let Ok((text, _)) = &network.read else { return Err(io::Error::other("it was not read")) };
    let path = &network.path;
    let name = backup_name(path);
    let metadata = fs::symlink_metadata(path)?;
    if read_small(path, MAX_CONFIG)?.as_deref() != Some(text.as_bytes()) {
        return Err(io::Error::other("the file has changed since it was read: try again"));
    }
    make_dir(backups)?;
    let unwraps = network.is_wrapped();
    let copy = if unwraps { format!("{name}.wrapped") } else { name.clone() };
    files::replace(&backups.join(copy), text.as_bytes(), Attributes::PRIVATE)?;
    let owner = Some((metadata.uid(), metadata.gid()));
    let same = Attributes { mode: metadata.mode() & 0o7777, owner, synced: true };
    files::replace(path, new.as_bytes(), same)?;
    if unwraps {
        let _ = fs::remove_file(backups.join(name));
    }
    Ok(())
}

/// The lines that change, in the form of a unified diff.
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

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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
        assert!(all[1].read.as_ref().unwrap_err().contains("is a symlink"));
        let new = all[0].changed(true).unwrap().unwrap();
        let shown = diff(&file, LIST, &new);
        assert_eq!(shown.lines().filter(|line| line.starts_with('+')).count(), 2, "{shown}");
        replace(&all[0], &new, &backups).unwrap();
        let copy = backups.join(backup_name(&file));
        assert!(copy.to_str().unwrap().ends_with("%net.d%10-net.conflist"), "{copy:?}");
        assert_eq!(fs::read_to_string(&copy).unwrap(), LIST);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        let again = networks(&dirs);
        assert!(again[0].is_wrapped());
        assert_eq!(again[0].changed(true).unwrap(), None);
        assert_eq!(fs::read_dir(&conf).unwrap().count(), 3, "no temporary file is left");
        // The file has changed since it was read.
        assert!(replace(&all[0], &new, &backups).is_err());
        let back = again[0].changed(false).unwrap().unwrap();
        replace(&again[0], &back, &backups).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), LIST);
        assert!(!copy.exists(), "no copy says that it is to be wrapped");
        assert!(copy.with_extension("conflist.wrapped").exists());
        assert!(!networks(&dirs).iter().any(Network::may_name_it));
        fs::write(&file, &new).unwrap();
        assert!(networks(&dirs)[1].may_name_it(), "by the target of the symlink");
    }

    #[test]
    fn a_wrapped_configuration_names_its_state_directory() {
        let text = r#"{"name":"net","cniVersion":"1.0.0","plugins":[{"type":"bridge","ipam":{"type":"ipwatch-ipam",
            "stateDir":"/s","delegate":{"type":"host-local","dataDir":"/d"}}},{"type":"portmap"}]}"#;
        let read = Ok((text.to_owned(), wrap::read(text).unwrap()));
        let configs = Network { path: PathBuf::new(), read }.configs();
        let [config] = configs.as_slice() else { panic!("{configs:?}") };
        assert_eq!(config.state_dir, PathBuf::from("/s"));
        assert_eq!(config.host_local_dir(), Some(PathBuf::from("/d/net")));
        let multus = format!(r#"{{"name":"multus","type":"multus","delegates":[{text}]}}"#);
        let read = Ok((multus.clone(), wrap::read(&multus).unwrap()));
        let configs = Network { path: PathBuf::new(), read }.configs();
        assert_eq!(configs[0].host_local_dir(), Some(PathBuf::from("/d/net")), "its own name");
    }

    /// An administrator has named it where this program does not look.
    #[test]
    fn any_text_that_names_it_keeps_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            r#"{"name":"n","type":"bridge","ipam":{"type":"host-local"},"other":"ipwatch-ipam"}"#;
        fs::write(dir.path().join("a.conf"), text).unwrap();
        let all = networks(&[dir.path().to_owned()]);
        assert!(all[0].read.is_ok() && !all[0].is_wrapped() && all[0].may_name_it());
    }
}
