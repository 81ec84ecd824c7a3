//! The driver of a device. Netlink does not report it; a symlink in sysfs names it.

use std::path::Path;

use crate::fact::{Fact, Observation, Parent};

/// Adds to each link of a dump the driver of its hardware.
pub(super) fn name_all(facts: &mut [Fact]) {
    for fact in facts {
        if let Observation::Link { link, .. } = &mut fact.what
            && let Some(parent) = &mut link.parent
        {
            parent.driver = of("/sys/bus".as_ref(), parent);
        }
    }
}

/// Reads one symlink in sysfs. Neither another file system nor the driver is involved.
fn of(buses: &Path, parent: &Parent) -> Option<String> {
    let plain = |name: &str| !name.is_empty() && name != ".." && !name.contains('/');
    if !plain(&parent.bus) || !plain(&parent.address) {
        return None;
    }
    let link = buses.join(&parent.bus).join("devices").join(&parent.address).join("driver");
    let driver = std::fs::read_link(link).ok()?;
    Some(driver.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
