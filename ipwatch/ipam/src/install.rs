//! What `ipwatch cni` does with a node: which configurations there are, wrapping and unwrapping them, and the program.
//!
//! A configuration is replaced whole (a new file beside it, renamed), with its mode and owner, after a copy of it was
//! kept. A link is not followed, for what is behind it is somebody else's to change.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::config::{Config, OWN};
use crate::state::{make, read_small};
use crate::wrap::{self, Standing};

/// Where runtimes read networks: kubeadm, RKE2 and CRI-O; k3s; RKE2's own.
pub const CONF_DIRS: [&str; 3] = [
    "/etc/cni/net.d",
    "/var/lib/rancher/k3s/agent/etc/cni/net.d",
    "/var/lib/rancher/rke2/agent/etc/cni/net.d",
];
/// Where plugins may be, whether a runtime looks there or not.
pub const BIN_DIRS: [&str; 6] = [
    "/opt/cni/bin",
    "/usr/lib/cni",
    "/usr/libexec/cni",
    "/var/lib/rancher/k3s/data/cni",
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
];
/// Configurations of containerd and CRI-O, which say where they look for plugins.
const RUNTIMES: [&str; 4] = [
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "etc/crio/crio.conf",
];
/// CRI-O's further files.
const CRIO_PARTS: &str = "etc/crio/crio.conf.d";
/// Where they look if they do not say it.
const DEFAULT_BIN_DIR: &str = "/opt/cni/bin";
/// The keys by which they say it: containerd up to 2.0, containerd, CRI-O.
const BIN_KEYS: [&str; 3] = ["bin_dir", "bin_dirs", "plugin_dirs"];
/// k3s' programs: each release has a directory of its own here, which goes with it. Only `cni` stays.
const K3S_DATA: &str = "/var/lib/rancher/k3s/data";
/// How long after it was taken out of the configurations the program stays: an ADD or a DEL that had read one of them.
const LINGERS: Duration = Duration::from_secs(3600);
/// Its modification time says when that was.
const MARK: &str = "unwrapped";
/// Where libcni keeps results, each with the configuration that it was made with.
pub const CACHE_DIR: &str = "/var/lib/cni/results";

/// Longest configuration.
const LONGEST: usize = 256 * 1024;
/// Longest file that is looked through for the program's name.
const MOST_BYTES: u64 = 16 << 20;
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
        let limit = MOST_BYTES + 1;
        let read = File::open(&self.path)
            .and_then(|file| io::Read::read_to_end(&mut io::Read::take(file, limit), &mut bytes));
        match read {
            Ok(length) => {
                length as u64 > MOST_BYTES || String::from_utf8_lossy(&bytes).contains(OWN)
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Each configuration in it in which `ipwatch-ipam` stands.
    #[must_use]
    pub fn configs(&self) -> Vec<Config> {
        let Ok((text, _)) = &self.read else { return Vec::new() };
        let whole: Value = serde_json::from_str(text).unwrap_or_default();
        let bodies = match whole.get("plugins").and_then(Value::as_array) {
            Some(plugins) => plugins.clone(),
            None => vec![whole.clone()],
        };
        let read = |mut body: Value| {
            let own = body.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str);
            (own == Some(OWN)).then_some(())?;
            for key in ["name", "cniVersion"] {
                let value = whole.get(key).cloned().unwrap_or_default();
                body.as_object_mut()?.insert(key.to_owned(), value);
            }
            Config::read(body.to_string().as_bytes()).ok()
        };
        bodies.into_iter().filter_map(read).collect()
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

/// What the copy of a configuration is called: by its whole path, for two directories may have files of one name.
#[must_use]
pub fn backup_name(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').replace('/', "%")
}

/// Replaces a configuration, if it still is what was read. A copy of what was there is kept in `backups`: by its
/// path while it is wrapped, and of one that was unwrapped as `NAME.wrapped`.
///
/// # Errors
/// It has changed since, or cannot be written.
pub fn replace(network: &Network, new: &str, backups: &Path) -> io::Result<()> {
    let Ok((text, _)) = &network.read else { return Err(io::Error::other("it was not read")) };
    let path = &network.path;
    let name = backup_name(path);
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

/// Where the node's runtimes look for plugins: the directories of each, below `root`.
#[must_use]
pub fn runtime_dirs(root: &Path) -> Vec<Vec<PathBuf>> {
    let parts = fs::read_dir(root.join(CRIO_PARTS)).into_iter().flatten().take(MOST).flatten();
    let parts = parts.map(|entry| entry.path());
    let files = RUNTIMES.iter().map(|file| root.join(file)).chain(parts);
    let mut all: Vec<Vec<PathBuf>> = files
        .filter_map(|file| {
            // An administrator's link is followed: it is only read.
            let file = fs::canonicalize(file).ok()?;
            let bytes = read_small(&file, LONGEST).ok()??;
            let dirs = dirs_in(&String::from_utf8_lossy(&bytes));
            Some(if dirs.is_empty() { vec![PathBuf::from(DEFAULT_BIN_DIR)] } else { dirs })
        })
        .collect();
    all.sort();
    all.dedup();
    all
}

/// The directories that a runtime's configuration names. Not by TOML's grammar: a key of this name has no other meaning,
/// and what is not understood names none.
fn dirs_in(text: &str) -> Vec<PathBuf> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let mut dirs = Vec::new();
    while let Some(line) = lines.next() {
        let Some((_, value)) =
            line.split_once('=').filter(|(key, _)| BIN_KEYS.contains(&key.trim()))
        else {
            continue;
        };
        let mut value = value.trim().to_owned();
        while value.starts_with('[') && !value.contains(']') {
            let Some(more) = lines.next() else { break };
            value.push_str(more);
        }
        let quoted = value.split(['"', '\'']).skip(1).step_by(2);
        dirs.extend(quoted.filter(|dir| dir.starts_with('/')).map(PathBuf::from));
    }
    dirs
}

/// The directories for the program: of those in which each runtime looks, those that a delegate of these networks is in.
///
/// # Errors
/// A runtime would not find it there, or not for long.
pub fn homes(networks: &[Network], looked: &[Vec<PathBuf>]) -> Result<Vec<PathBuf>, String> {
    if looked.is_empty() {
        return Err("no configuration of containerd or CRI-O says where plugins are looked for: name the directory with \
                    --bin-dir"
            .to_owned());
    }
    let mut all = Vec::new();
    for dirs in looked {
        let found = with_delegate(networks, dirs);
        let passing = |dir: &&PathBuf| dir.starts_with(K3S_DATA) && !dir.ends_with("cni");
        if let Some(dir) = found.iter().find(passing) {
            return Err(format!(
                "{} goes with an upgrade of k3s, and pods would not start then: only a k3s that has {K3S_DATA}/cni can \
                 be prepared",
                dir.display()
            ));
        }
        if found.is_empty() {
            let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            return Err(format!(
                "a runtime looks for plugins in {}, and the IPAM plugin is not there: name its directory with --bin-dir",
                dirs.join(" and ")
            ));
        }
        all.extend(found);
    }
    all.sort();
    all.dedup();
    Ok(all)
}

fn with_delegate(networks: &[Network], bin_dirs: &[PathBuf]) -> Vec<PathBuf> {
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

/// A result in the runtime's cache that was made through `ipwatch-ipam`, or may have been: its DEL may need the program.
///
/// # Errors
/// The cache cannot be read.
pub fn needed_by(cache: &Path) -> io::Result<Option<PathBuf>> {
    let entries = match fs::read_dir(cache) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let may_need = match read_small(&path, 1 << 20) {
            // The configuration is in there in base64 (libcni's `cachedInfo.Config`) or as it is.
            Ok(Some(bytes)) => {
                let text = String::from_utf8_lossy(&bytes);
                text.contains(OWN) || in_base64(&text)
            }
            // Its DEL has been.
            Ok(None) => false,
            Err(_) => true,
        };
        if may_need {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Remembers that no configuration names the program any more, or (`anew`) that one did until now.
///
/// # Errors
/// It cannot be written.
pub fn mark_unwrapped(state_dir: &Path, anew: bool) -> io::Result<()> {
    let mark = state_dir.join(MARK);
    if !anew && fs::symlink_metadata(&mark).is_ok() {
        return Ok(());
    }
    make(state_dir)?;
    write(&mark, b"", 0o600, None)
}

/// Forgets it, for it is in a configuration again or the program is gone.
pub fn unmark(state_dir: &Path) {
    let _ = fs::remove_file(state_dir.join(MARK));
}

/// Why the program has to stay, though no configuration names it any more.
#[must_use]
pub fn why_needed(state_dir: &Path, cache: &Path) -> Option<String> {
    let mark = fs::symlink_metadata(state_dir.join(MARK)).and_then(|mark| mark.modified());
    let age = mark.ok().and_then(|at| at.elapsed().ok());
    if age.is_none_or(|age| age < LINGERS) {
        return Some(
            "calls that have read a configuration before may be running for an hour".to_owned(),
        );
    }
    match needed_by(cache) {
        Ok(None) => None,
        Ok(Some(entry)) => Some(format!(
            "DEL of pods that were made through it may need it, such as {}",
            entry.display()
        )),
        Err(error) => Some(format!("{} cannot be read: {error}", cache.display())),
    }
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
        let copy = backups.join(backup_name(&file));
        assert!(copy.to_str().unwrap().ends_with("%net.d%10-net.conflist"), "{copy:?}");
        assert_eq!(fs::read_to_string(&copy).unwrap(), LIST);
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
        assert!(!copy.exists(), "nothing says that it is to be wrapped");
        assert!(copy.with_extension("conflist.wrapped").exists());
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
        let found = homes(&all, &[vec![other.clone(), bin.clone()]]);
        assert_eq!(found.as_deref(), Ok(std::slice::from_ref(&bin)));
        // A second runtime looks elsewhere, and would not find it.
        let error = homes(&all, &[vec![bin.clone()], vec![other.clone()]]).unwrap_err();
        assert!(error.contains("--bin-dir"), "{error}");
        assert!(homes(&all, &[]).unwrap_err().contains("--bin-dir"));
        let program = dir.path().join("program");
        fs::write(&program, "p").unwrap();
        assert!(put_program(&program, &bin).unwrap());
        assert!(!put_program(&program, &bin).unwrap());
        assert_eq!(fs::metadata(bin.join(OWN)).unwrap().mode() & 0o777, 0o755);
    }

    #[test]
    fn a_cached_result_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(needed_by(dir.path()).unwrap(), None);
        assert_eq!(needed_by(&dir.path().join("nowhere")).unwrap(), None);
        assert!(needed_by(Path::new("/proc/self/comm")).is_err());
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
            assert_eq!(needed_by(dir.path()).unwrap(), Some(file.clone()), "{text}");
            fs::remove_file(file).unwrap();
        }
        // What cannot be read may be one.
        fs::create_dir(dir.path().join("odd")).unwrap();
        assert_eq!(needed_by(dir.path()).unwrap(), Some(dir.path().join("odd")));
    }

    #[test]
    fn a_runtime_says_where_it_looks() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(runtime_dirs(root.path()), Vec::<Vec<PathBuf>>::new());
        for (file, text) in [
            (
                "etc/containerd/config.toml",
                "[cni]\n# bin_dir = \"/no\"\n  bin_dir = '/home/kubernetes/bin'\n",
            ),
            (
                "etc/crio/crio.conf.d/10.conf",
                "plugin_dirs = [\n\t\"/usr/libexec/cni\",\n\t\"/a\",\n]\n",
            ),
            ("etc/crio/crio.conf", "x = 1"),
        ] {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let found = runtime_dirs(root.path());
        let found: Vec<String> = found.iter().map(|dirs| format!("{dirs:?}")).collect();
        assert_eq!(
            found,
            [r#"["/home/kubernetes/bin"]"#, r#"["/opt/cni/bin"]"#, r#"["/usr/libexec/cni", "/a"]"#]
        );
    }

    #[test]
    fn the_program_stays_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let (state, cache) = (dir.path().join("state"), dir.path().join("cache"));
        assert!(why_needed(&state, &cache).is_some(), "nobody knows since when");
        mark_unwrapped(&state, true).unwrap();
        assert!(why_needed(&state, &cache).is_some());
        let before = std::time::SystemTime::UNIX_EPOCH;
        File::options().write(true).open(state.join(MARK)).unwrap().set_modified(before).unwrap();
        mark_unwrapped(&state, false).unwrap();
        assert_eq!(why_needed(&state, &cache), None);
        fs::create_dir(&cache).unwrap();
        fs::write(cache.join("net-c1-eth0"), OWN).unwrap();
        assert!(why_needed(&state, &cache).is_some());
        mark_unwrapped(&state, true).unwrap();
        assert!(why_needed(&state, &dir.path().join("nowhere")).is_some());
    }

    #[test]
    fn a_wrapped_one_says_where_its_parked_ones_are() {
        let text = r#"{"name":"net","cniVersion":"1.0.0","plugins":[{"type":"bridge","ipam":{"type":"ipwatch-ipam",
            "stateDir":"/s","delegate":{"type":"host-local","dataDir":"/d"}}},{"type":"portmap"}]}"#;
        let read = Ok((text.to_owned(), wrap::read(text).unwrap()));
        let configs = Network { path: PathBuf::new(), read }.configs();
        let [config] = configs.as_slice() else { panic!("{configs:?}") };
        assert_eq!(config.state_dir, PathBuf::from("/s"));
        assert_eq!(config.host_local_dir(), Some(PathBuf::from("/d/net")));
    }
}
