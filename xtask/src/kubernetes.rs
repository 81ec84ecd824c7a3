//! Kubernetes programs for the tests: etcd from Debian's package, and kube-apiserver and kubelet, which Debian 12 has
//! only as source and which are built from it (`kubernetes.sh`).
//!
//! The build takes five to eleven minutes on two cores and 2.5 GB of disk, once: the three programs, some 200 MB,
//! stay in the cache. The source comes from the Debian mirrors in the machine's own apt sources; apt's lists of
//! sources are separate from the machine's, which are not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::shell::{self, command, output, run};
use crate::{place, setup};

/// Directory in the cache; the last number is incremented if the build changes.
const CACHED: &str = "1.20-1";
/// The programs of a complete build.
const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kubelet"];
/// Packages that the build needs.
const TOOLS: &[&str] = &["golang-1.19-go", "dpkg-dev", "debian-archive-keyring"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The vendored version crashes on the first custom resource if it was built with Go 1.18 or later.
const REFLECT: &str = "golang-github-modern-go-reflect2-dev";

/// The directory of the programs, if a test selected by these filters needs them; otherwise an empty path.
pub(crate) fn for_tests(tests: &Path, filters: &[&str]) -> Result<PathBuf> {
    let needs = output(Command::new(tests).arg("--needs").args(filters))?;
    let takes = |need| matches!(need, "Etcd" | "ApiServer" | "SharedApiServer" | "Kubelet");
    if needs.lines().any(takes) { programs() } else { Ok(PathBuf::new()) }
}

/// The directory of the programs, which are built if they are missing.
fn programs() -> Result<PathBuf> {
    // A separate lock, because others must not wait that long.
    let _lock = place::lock_named("kubernetes.lock")?;
    let base = place::cache("kubernetes")?;
    let dir = base.join(CACHED);
    if PROGRAMS.iter().all(|name| dir.join(name).exists()) {
        return Ok(dir);
    }
    let began = Instant::now();
    println!(
        "building kube-apiserver and kubelet, once, for {}: some 5 to 11 minutes",
        dir.display()
    );
    // Built in a temporary directory and renamed, so that the final directory is always complete.
    let room = base.join(format!("{CACHED}.part"));
    let _ = fs::remove_dir_all(&room);
    let made = make(&room).and_then(|made| {
        let _ = fs::remove_dir_all(&dir);
        fs::rename(made, &dir).with_context(|| dir.display().to_string())
    });
    // It has gigabytes, even after a failure.
    fs::remove_dir_all(&room).with_context(|| room.display().to_string())?;
    made?;
    println!("built in {} s", began.elapsed().as_secs());
    Ok(dir)
}

/// Builds the programs in `room`, and returns their directory.
fn make(room: &Path) -> Result<PathBuf> {
    let part = |name: &str| {
        let dir = room.join(name);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string()).map(|()| dir)
    };
    let made = part("made")?;
    setup::packages(TOOLS)?;
    let debs = part("debs")?;
    for package in ["etcd-server", REFLECT] {
        unpack(package, &debs)?;
    }
    fs::rename(debs.join("usr/bin/etcd"), made.join("etcd")).context("Debian's etcd-server")?;
    let source = source(&part("apt")?, &part("source")?)?;
    let tree = part("go/src/k8s.io")?.join("kubernetes");
    fs::rename(&source, &tree).with_context(|| tree.display().to_string())?;
    // With only what Go itself needs: no modules, no network, no flags of the user.
    let mut build = command(&["sh", "-euc", include_str!("kubernetes.sh"), "build"]);
    build.arg(debs.join("usr/share/gocode/src")).arg(&made).current_dir(&tree);
    build.env("GOPATH", room.join("go")).env("GOCACHE", part("cache")?).env("TMPDIR", part("tmp")?);
    build.env("GO111MODULE", "off").env("GOFLAGS", "").env("CGO_ENABLED", "0");
    let mut last = String::new();
    let status = shell::lines(&mut build, |line| {
        println!("{line}");
        line.clone_into(&mut last);
    })?;
    if !status.success() {
        bail!("the build ended with {status}: {last}");
    }
    Ok(made)
}

/// As [`setup::unpack`]; on failure again with updated lists.
fn unpack(package: &str, dir: &Path) -> Result<()> {
    setup::unpack(package, dir).or_else(|_| {
        setup::update()?;
        setup::unpack(package, dir)
    })
}

/// Debian's source package, unpacked in `dir`; `state` is for apt.
fn source(state: &Path, dir: &Path) -> Result<PathBuf> {
    let list = state.join("sources.list");
    let line = format!("deb-src [signed-by={KEYRING}] $(REPO_URI) $(RELEASE) $(COMPONENT)");
    let mut targets = setup::apt("apt-get");
    targets.args(["indextargets", "--format", &line, "Identifier: Packages", "Origin: Debian"]);
    let mirrors = output(&mut targets)?;
    if mirrors.is_empty() {
        bail!("apt's sources name no mirror of Debian's, where the source of Kubernetes is");
    }
    fs::write(&list, mirrors)?;
    let lists = state.join("lists");
    fs::create_dir_all(lists.join("partial"))?;
    let apt = |words: &[&str]| -> Command {
        let mut apt = setup::apt("apt-get");
        let none = PathBuf::from("/dev/null");
        for (name, path) in [
            ("Dir::Etc::sourcelist", &list),
            ("Dir::Etc::sourceparts", &none),
            ("Dir::State::lists", &lists),
            ("Dir::Cache", &state.join("cache")),
        ] {
            apt.arg("-o").arg(format!("{name}={}", path.display()));
        }
        apt.args(words);
        apt
    };
    run(&mut apt(&["update", "-q"]))?;
    run(apt(&["source", "-q", "--only-source", "kubernetes"]).current_dir(dir))?;
    let mut unpacked = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    unpacked
        .find(|path| path.is_dir() && path.to_string_lossy().contains("kubernetes-1.20"))
        .context("apt's sources have no Kubernetes 1.20; Debian 12's do")
}
