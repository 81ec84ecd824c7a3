//! The container runtimes of several Debian suites, each unpacked into a root of its own in the cache, for tests that
//! run them. Nothing is installed: a test sees such a root's `/usr` in a mount namespace of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::machine::Machine;
use crate::place;
use crate::shell::{command, output, run};
use crate::vm::apt::{Apt, Release};

/// Must be incremented if a change here affects the roots.
const EDITION: u32 = 1;

/// The suites, by the name of the tests' need.
const SUITES: [(&str, Release); 3] =
    [("Bookworm", Release::Bookworm), ("Trixie", Release::Trixie), ("Sid", Release::Sid)];

/// What is unpacked, with what it depends on. busybox is the shell of scripts that stand before a plugin or runc.
const PACKAGES: [&str; 14] = [
    "containerd",
    "docker.io",
    "podman",
    "runc",
    "crun",
    "netavark",
    "containernetworking-plugins",
    "passt",
    "slirp4netns",
    "uidmap",
    "iptables",
    "nftables",
    "catatonit",
    "busybox-static",
];

/// Beginnings of the names of packages that they depend on, and that no program run here uses.
const UNUSED: [&str; 9] = [
    "gnupg",
    "gpg",
    "dirmngr",
    "pinentry",
    "perl",
    "debconf",
    "systemd",
    "libc-gconv",
    "openssl-provider",
];

/// Programs of which each must run in its root; their first lines are the root's list of versions.
const PROGRAMS: [&str; 9] = [
    "containerd --version",
    "dockerd --version",
    "podman --version",
    "runc --version",
    "crun --version",
    "conmon --version",
    "/usr/lib/podman/netavark --version",
    "slirp4netns --version",
    "iptables --version",
];

/// The list of versions, written last.
const VERSIONS: &str = "versions";

/// The directory of the roots, with those that the tests selected by these filters need; otherwise an empty path.
pub(crate) fn for_tests(tests: &Path, filters: &[&str], long: bool) -> Result<PathBuf> {
    let mut list = Command::new(tests);
    // The older suites are for tests that run with `--long` only.
    list.arg("--needs").args(filters).envs(long.then_some(("IPWATCH_TEST_LONG", "1")));
    let needs = output(&mut list)?;
    let is_needed = |name: &str| needs.lines().any(|need| need == name);
    let wanted: Vec<Release> = SUITES
        .into_iter()
        .filter_map(|(need, release)| is_needed(need).then_some(release))
        .collect();
    if wanted.is_empty() {
        return Ok(PathBuf::new());
    }
    let _lock = place::lock_named("suites.lock")?;
    let dir = place::cache(&format!("suites-{EDITION}"))?;
    for release in wanted {
        let root = dir.join(release.name());
        if !root.join(VERSIONS).exists() {
            make(release, &root)?;
        }
        // Also in a root that was made before there were so many of them.
        link(&root)?;
    }
    Ok(dir)
}

fn make(release: Release, root: &Path) -> Result<()> {
    println!("unpacking the runtimes of Debian's {} into {}", release.name(), root.display());
    let _ = fs::remove_dir_all(root);
    fs::create_dir_all(root)?;
    let apt = Apt::of(Machine::own()?, Some(release))?;
    apt.update()?;
    let all = apt.with_dependencies(&PACKAGES)?;
    let is_used = |name: &&str| !UNUSED.iter().any(|start| name.starts_with(start));
    let all: Vec<&str> = all.iter().map(String::as_str).filter(is_used).collect();
    apt.unpack(&all, root)?;
    merge(root)?;
    for unread in ["doc", "man", "locale", "info"] {
        let _ = fs::remove_dir_all(root.join("usr/share").join(unread));
    }
    link(root)?;
    let versions: Vec<String> =
        PROGRAMS.iter().map(|words| version(root, words)).collect::<Result<_>>()?;
    fs::write(root.join(VERSIONS), versions.join("\n") + "\n")?;
    println!("{}", versions.join("\n"));
    Ok(())
}

/// Moves what older packages have in `/bin`, `/sbin` and `/lib` into `/usr`, as on an installed system.
fn merge(root: &Path) -> Result<()> {
    for name in ["bin", "sbin", "lib", "lib64"] {
        let old = root.join(name);
        if old.is_dir() && !old.is_symlink() {
            let new = root.join("usr").join(name);
            fs::create_dir_all(&new)?;
            run(command(&["cp", "-a"]).arg(old.join(".")).arg(&new))?;
            fs::remove_dir_all(&old)?;
        }
    }
    Ok(())
}

/// Links that maintainer scripts would have made.
fn link(root: &Path) -> Result<()> {
    let tables = ["iptables", "ip6tables"];
    let tables =
        tables.iter().flat_map(|name| ["", "-save", "-restore"].map(|end| format!("{name}{end}")));
    let tables = tables.map(|name| (format!("usr/sbin/{name}"), "xtables-nft-multi"));
    let shell = ["sh", "cat", "sleep", "head", "tr", "rm"]
        .map(|name| (format!("usr/bin/{name}"), "busybox"));
    for (path, to) in tables.chain(shell) {
        let path = root.join(path);
        if path.is_symlink() {
            continue;
        }
        let _ = fs::remove_file(&path);
        std::os::unix::fs::symlink(to, &path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The first line that a program says of itself, run as the tests run it.
fn version(root: &Path, words: &str) -> Result<String> {
    let script = "mount --make-private / && mount --bind \"$0/usr\" /usr && exec \"$@\"";
    let mut program =
        command(&["unshare", "-m", "--propagation", "unchanged", "sh", "-euc", script]);
    let said = output(program.arg(root).args(words.split(' ')))?;
    match said.lines().next() {
        Some(line) => Ok(line.to_owned()),
        None => bail!("{words} says nothing"),
    }
}
