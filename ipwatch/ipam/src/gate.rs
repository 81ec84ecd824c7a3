//! DEL: fails with "try again later" while it would free an IP that a stuck process still holds.
//!
//! This keeps no state. The daemon's finding says how long the process has been stuck, and after `gateMax` the DEL is
//! passed to the delegate. It is also passed if the interface plugin can still remove the device, that is, if `CNI_NETNS`
//! is the netns that has the address.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use rustix::fs::{OFlags, fstatfs};

use crate::ask::{Question, State as Holding, ask};
use crate::cni::{Code, Failure};
use crate::delegate::Answer;
use crate::parked;
use crate::plugin::Call;
use crate::tally::Event;

/// `NSFS_MAGIC` of `include/uapi/linux/magic.h`.
const NSFS: u64 = 0x6e73_6673;

/// DEL.
pub(crate) fn del(call: &Call) -> Result<Answer, Failure> {
    if let Some(why) = why_not(call) {
        call.count(Event::Gated);
        return Err(Failure::new(Code::TryAgain, why));
    }
    let answer = call.run("DEL");
    parked::tend(call);
    Ok(answer?)
}

/// Why this DEL is put off. `None`: it is passed to the delegate.
fn why_not(call: &Call) -> Option<String> {
    let config = &call.config;
    if config.gate_max.is_zero() || call.environment.container.is_empty() {
        return None;
    }
    let netns = inode_of(&call.environment.netns);
    let told =
        match ask(&config.socket, &Question { netns, ..call.question("del") }, config.patience) {
            Ok(told) => told,
            Err(why) => {
                call.count(Event::Unanswered(why));
                return None;
            }
        };
    let held = told.addresses.iter().find(|one| one.state == Holding::Held)?;
    if held.for_secs >= config.gate_max.as_secs() {
        call.say(&format!(
            "{} is freed although it is still held, because gateMax has passed: {}",
            held.ip, held.who
        ));
        return None;
    }
    let who: String = held.who.chars().filter(|c| !c.is_control()).take(400).collect();
    Some(if who.is_empty() { format!("{} is still held", held.ip) } else { who })
}

/// The inode of the netns at a path. `None`: there is no netns there.
fn inode_of(path: &str) -> Option<u64> {
    if path.is_empty() {
        return None;
    }
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path).ok()?;
    // After an unmount the path is an empty regular file.
    let kind = fstatfs(&file).ok()?.f_type;
    (u64::try_from(kind).ok()? == NSFS).then_some(())?;
    file.metadata().ok().map(|metadata| metadata.ino())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_can_be_entered() {
        let own = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
        assert_eq!(inode_of("/proc/self/ns/net"), Some(own));
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(inode_of(file.path().to_str().unwrap()), None);
        assert_eq!(inode_of("/nowhere"), None);
        assert_eq!(inode_of(""), None);
    }
}
