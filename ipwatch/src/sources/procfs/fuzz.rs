//! Entry points of the fuzz targets.

use super::{cgroup, cleanup, look, mounts, runtimes};
use crate::fact::cgroup::attribution;

/// Parses lines of mountinfo.
pub fn mountinfo(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Some(mount) = mounts::Mount::parse(line) {
            let _ = (mount.netns(), mount.path(), mount.device());
            let _ = (mount.has_option(b"rw"), mount.option(b"fd"));
        }
    }
}

/// Parses the text of other files of `/proc`.
pub fn proc(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = look::Signals::parse(&text);
    let _ = look::frames(&text);
    let _ = cleanup::complaint(bytes);
    let _ = cgroup::naming(&text).and_then(attribution);
    runtimes::parse(&text);
}
