//! The plugin's program: the directories in which the node's runtimes look for plugins, and the copy of the program there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{MAX_DIR_ENTRIES, Network};
use crate::config::OWN;
use crate::files::{self, Attributes, read_small};
use crate::wrap::Standing;

/// Configurations of containerd and CRI-O, which name the directories of plugins.
const RUNTIMES: [&str; 4] = [
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "etc/crio/crio.conf",
];
/// CRI-O's drop-in directory.
const CRIO_DROP_INS: &str = "etc/crio/crio.conf.d";
/// Longest configuration of a runtime, in bytes.
const MAX_CONFIG: usize = 256 * 1024;
/// The directory that a runtime uses if its configuration names none.
const DEFAULT_BIN_DIR: &str = "/opt/cni/bin";
/// The keys that name the directories of plugins: containerd before 2.1, containerd since 2.1, CRI-O.
const BIN_KEYS: [&str; 3] = ["bin_dir", "bin_dirs", "plugin_dirs"];
/// The keys that name the directory of network configurations: containerd, CRI-O.
const CONF_KEYS: [&str; 2] = ["conf_dir", "network_dir"];
/// The programs of k3s. Each release has its own directory in here, which an upgrade removes. Only `cni` stays.
const K3S_DATA: &str = "/var/lib/rancher/k3s/data";
/// Longest program, in bytes.
const MAX_PROGRAM: usize = 64 << 20;

/// The directories in which each of the node's runtimes looks for plugins, by its configuration below `root`.
#[must_use]
pub fn runtime_dirs(root: &Path) -> Vec<Vec<PathBuf>> {
    let of = |text: String| {
        let dirs = dirs_in(&text, &BIN_KEYS);
        if dirs.is_empty() { vec![PathBuf::from(DEFAULT_BIN_DIR)] } else { dirs }
    };
    let mut all: Vec<Vec<PathBuf>> = runtime_configs(root).map(of).collect();
    all.sort();
    all.dedup();
    all
}

/// The directories of network configurations that the node's runtimes name, by their configurations below `root`.
#[must_use]
pub fn runtime_conf_dirs(root: &Path) -> Vec<PathBuf> {
    runtime_configs(root).flat_map(|text| dirs_in(&text, &CONF_KEYS)).collect()
}

/// The texts of the runtimes' configurations below `root`.
fn runtime_configs(root: &Path) -> impl Iterator<Item = String> {
    let parts = fs::read_dir(root.join(CRIO_DROP_INS))
        .into_iter()
        .flatten()
        .take(MAX_DIR_ENTRIES)
        .flatten();
    let parts = parts.map(|entry| entry.path());
    let files: Vec<PathBuf> = RUNTIMES.iter().map(|file| root.join(file)).chain(parts).collect();
    files.into_iter().filter_map(|file| {
        // Symlinks are followed: only root writes these files, and they are only read.
        let file = fs::canonicalize(file).ok()?;
        let bytes = read_small(&file, MAX_CONFIG).ok()??;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    })
}

/// The directories that a runtime's configuration names by one of these keys. Lines are matched without a TOML parser: these keys have no
/// other meaning in any section, and a value that is not understood names no directory.
fn dirs_in(text: &str, keys: &[&str]) -> Vec<PathBuf> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let mut dirs = Vec::new();
    while let Some(line) = lines.next() {
        let Some((_, value)) = line.split_once('=').filter(|(key, _)| keys.contains(&key.trim()))
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

/// The directories into which the program is installed: of those in which each runtime looks (`looked`), those that
/// contain the IPAM plugin of one of these networks.
///
/// # Errors
/// A runtime would not find the program, or an upgrade of k3s would remove it.
pub fn homes(networks: &[Network], looked: &[Vec<PathBuf>]) -> Result<Vec<PathBuf>, String> {
    if looked.is_empty() {
        return Err("no configuration of containerd or CRI-O was found that says where plugins are: name their directory with \
                    --bin-dir"
            .to_owned());
    }
    let mut all = Vec::new();
    for dirs in looked {
        let found = with_delegate(networks, dirs);
        let is_of_release = |dir: &&PathBuf| dir.starts_with(K3S_DATA) && !dir.ends_with("cni");
        if let Some(dir) = found.iter().find(is_of_release) {
            return Err(format!(
                "an upgrade of k3s removes {}, and no pod would start after it: upgrade to a k3s that has {K3S_DATA}/cni \
                 first",
                dir.display()
            ));
        }
        if found.is_empty() {
            let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            return Err(format!(
                "a runtime looks for plugins in {}, but the IPAM plugin is not there: name its directory with --bin-dir",
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

/// Whether two files have the same content. `None`: one of them cannot be read.
#[must_use]
pub fn is_same_program(one: &Path, other: &Path) -> Option<bool> {
    let read = |file: &Path| read_small(&fs::canonicalize(file).ok()?, MAX_PROGRAM).ok()?;
    Some(read(one)? == read(other)?)
}

/// Installs the program in a directory of plugins. Returns `false` if it is there already.
///
/// # Errors
/// The program cannot be read or written.
pub fn put_program(program: &Path, dir: &Path) -> io::Result<bool> {
    let mut bytes = Vec::new();
    let limit = MAX_PROGRAM as u64 + 1;
    io::Read::read_to_end(&mut io::Read::take(File::open(program)?, limit), &mut bytes)?;
    if bytes.len() > MAX_PROGRAM {
        return Err(io::Error::other(format!("{} is too large", program.display())));
    }
    let to = dir.join(OWN);
    if read_small(&to, MAX_PROGRAM).ok().flatten().as_deref() == Some(&bytes) {
        return Ok(false);
    }
    files::replace(&to, &bytes, Attributes { mode: 0o755, ..Attributes::PRIVATE })?;
    Ok(true)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::super::networks;
    use super::*;

    const LIST: &str = "{\"name\":\"net\",\n\"plugins\":[\n{\"type\":\"bridge\",\"ipam\":{\"type\":\"host-local\"}}\n]}\n";

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
        // A second runtime looks in another directory and would not find it.
        let error = homes(&all, &[vec![bin.clone()], vec![other.clone()]]).unwrap_err();
        assert!(error.contains("--bin-dir"), "{error}");
        assert!(homes(&all, &[]).unwrap_err().contains("--bin-dir"));
        let program = dir.path().join("program");
        fs::write(&program, "p").unwrap();
        assert!(put_program(&program, &bin).unwrap());
        assert!(!put_program(&program, &bin).unwrap());
        assert_eq!(fs::metadata(bin.join(OWN)).unwrap().mode() & 0o777, 0o755);
        assert_eq!(is_same_program(&program, &bin.join(OWN)), Some(true));
        fs::write(&program, "newer").unwrap();
        assert_eq!(is_same_program(&program, &bin.join(OWN)), Some(false));
        assert_eq!(is_same_program(&program, &other.join(OWN)), None);
    }

    #[test]
    fn a_runtime_says_where_it_looks() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(runtime_dirs(root.path()), Vec::<Vec<PathBuf>>::new());
        for (file, text) in [
            (
                "etc/containerd/config.toml",
                "[cni]\n# bin_dir = \"/no\"\n  bin_dir = '/home/kubernetes/bin'\n  conf_dir = \"/etc/cni/other\"\n",
            ),
            (
                "etc/crio/crio.conf.d/10.conf",
                "plugin_dirs = [\n\t\"/usr/libexec/cni\",\n\t\"/a\",\n]\n",
            ),
            ("etc/crio/crio.conf", "network_dir = \"/etc/crio/net.d/\"\n"),
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
        let confs = runtime_conf_dirs(root.path());
        assert_eq!(confs, ["/etc/cni/other", "/etc/crio/net.d/"].map(PathBuf::from));
    }
}
