//! A small Debian with systemd on a disk image, made once by mmdebstrap from the mirror in the machine's own apt
//! sources, and kept in the cache. It contains no tests, and no boot changes it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::shell::{command, output, run};
use crate::{place, setup};

/// The tools that make it, and a file system of it without a mount.
const TOOLS: &[&str] = &["mmdebstrap", "debian-archive-keyring", "e2fsprogs"];

/// Debian's release: the one with systemd 252, the oldest that the unit supports.
const RELEASE: &str = "bookworm";

/// Packages beyond the essential ones. dbus is needed by `systemctl`, udev renames devices as on a node, procps has
/// the `kill` of the unit's `ExecReload`, and apt installs the package as README says.
const PACKAGES: &str = "systemd,systemd-sysv,udev,dbus,iproute2,procps,apt";

/// Must be incremented if a change here affects the image.
const EDITION: u32 = 2;

/// Size of the disk: more than twice its contents.
const SIZE: &str = "600M";

/// Makes the image if it is missing, and returns its path.
pub(super) fn get() -> Result<PathBuf> {
    let _lock = place::lock()?;
    let image = place::cache("systemd")?.join(format!("{RELEASE}-{EDITION}.ext4"));
    if image.exists() {
        return Ok(image);
    }
    setup::packages(TOOLS)?;
    let part = image.with_extension("part");
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part)?;
    let root = part.join("root");
    let mirror = mirror()?;
    println!("making {} from {mirror} by mmdebstrap: a minute or two", image.display());
    // In a mount namespace, so that its mounts end with it.
    let mut make = command(&["unshare", "--mount", "mmdebstrap", "--mode=root"]);
    make.arg("--variant=essential").arg(format!("--include={PACKAGES}")).arg(RELEASE);
    run(make.arg(&root).arg(&mirror))?;
    settle(&root)?;
    let made = part.join("image");
    disk(&root, &made, SIZE)?;
    fs::rename(&made, &image).with_context(|| image.display().to_string())?;
    Ok(fs::remove_dir_all(&part).map(|()| image)?)
}

/// The Debian mirror of apt.
fn mirror() -> Result<String> {
    let format = "$(LABEL)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)";
    let mut targets = setup::apt("apt-get");
    targets.args(["indextargets", "--format", format, "Created-By: Packages"]);
    let wanted = format!("Debian|{RELEASE}|main|");
    let find =
        |text: &str| text.lines().find_map(|line| line.strip_prefix(&wanted)).map(str::to_owned);
    find(&output(&mut targets)?).with_context(|| {
        format!("apt's sources have no Debian {RELEASE}, of which the image is made")
    })
}

/// Sets what a machine determines at its first boot.
fn settle(root: &Path) -> Result<()> {
    fs::write(root.join("etc/machine-id"), "6970776174636800697077617463680a\n")?;
    fs::write(root.join("etc/hostname"), "vm\n")?;
    fs::write(root.join("etc/resolv.conf"), "")?;
    // Mount point of the disk with the tests.
    Ok(fs::create_dir_all(root.join("opt/ipwatch"))?)
}

/// Makes a file system with the contents of `root`, without mounting it.
pub(super) fn disk(root: &Path, to: &Path, size: &str) -> Result<()> {
    let _ = fs::remove_file(to);
    let mut mke2fs = command(&["mke2fs", "-q", "-t", "ext4", "-d"]);
    // No journal: the image is made once and never repaired.
    run(mke2fs.arg(root).args(["-O", "^has_journal"]).arg(to).arg(size))
}
