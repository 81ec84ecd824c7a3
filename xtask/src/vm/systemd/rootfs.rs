//! A small Debian with systemd on a disk image, made once by mmdebstrap from the mirror that the machine's own
//! apt sources name, and kept in the cache. Nothing of the tests is in it, and no boot changes it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::shell::{command, output, run};
use crate::{place, setup};

/// What makes it, and a file system of it without a mount.
const TOOLS: &[&str] = &["mmdebstrap", "debian-archive-keyring", "e2fsprogs"];

/// Debian's release: the one with systemd 252, the oldest that the unit is meant for.
const RELEASE: &str = "bookworm";

/// What is in it beyond what every Debian has. dbus carries `systemctl`'s words, udev names and renames
/// devices as on a node, procps has the `kill` of the unit's `ExecReload`.
const PACKAGES: &str = "systemd,systemd-sysv,udev,dbus,iproute2,procps";

/// To be raised when anything here changes what comes out.
const EDITION: u32 = 1;

/// Room on the disk: more than twice what is on it.
const SIZE: &str = "600M";

/// Makes it unless it is there, and says where it is.
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
    // What it mounts goes with it, whatever becomes of it.
    let mut make = command(&["unshare", "--mount", "mmdebstrap", "--mode=root"]);
    make.arg("--variant=essential").arg(format!("--include={PACKAGES}")).arg(RELEASE);
    run(make.arg(&root).arg(&mirror))?;
    settle(&root)?;
    let made = part.join("image");
    disk(&root, &made, SIZE)?;
    fs::rename(&made, &image).with_context(|| image.display().to_string())?;
    Ok(fs::remove_dir_all(&part).map(|()| image)?)
}

/// Where apt has its Debian from.
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

/// What a machine finds out at its first boot, so that none asks.
fn settle(root: &Path) -> Result<()> {
    fs::write(root.join("etc/machine-id"), "6970776174636800697077617463680a\n")?;
    fs::write(root.join("etc/hostname"), "vm\n")?;
    fs::write(root.join("etc/resolv.conf"), "")?;
    // Where the disk with the tests goes.
    Ok(fs::create_dir_all(root.join("opt/ipwatch"))?)
}

/// A file system with what is in `root`, made without mounting it.
pub(super) fn disk(root: &Path, to: &Path, size: &str) -> Result<()> {
    let _ = fs::remove_file(to);
    let mut mke2fs = command(&["mke2fs", "-q", "-t", "ext4", "-d"]);
    // No journal: it is made once and never repaired.
    run(mke2fs.arg(root).args(["-O", "^has_journal"]).arg(to).arg(size))
}
