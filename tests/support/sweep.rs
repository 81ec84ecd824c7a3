//! Cleaning up after a test, whatever became of it: passed, panicked, or killed for taking too long.
//! Everything a test makes carries its tag, so that nothing of anybody else's is touched.

use std::fs;

use crate::lab::TAG_VARIABLE;
use crate::{Lab, cgroup, docker, kubernetes, netns, pod, sys};

/// Ends and removes all that the test with this tag left. Nothing is left of one that ended well.
pub fn sweep(tag: &str) {
    let prefix = format!("{tag}-");
    // Twice: a helper that was just being started may have been missed.
    for _ in 0..2 {
        cgroup::thaw(tag);
        for pid in processes(tag) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let dir = Lab::dir_of(tag);
    // What hung on a mount goes with it, and then its cgroup; a hierarchy that was mounted for the
    // test last, for with groups in it it would stay.
    unmount_below(&dir, |kind| kind != "cgroup");
    cgroup::sweep(tag);
    unmount_below(&dir, |_| true);
    docker::sweep(tag);
    kubernetes::sweep(tag);
    pod::sweep(tag);
    netns::sweep(&prefix);
    let _ = fs::remove_dir_all(dir);
}

/// Processes with the tag in their environment. One that hangs in exit shows none; it goes when the
/// file system it hangs on does.
fn processes(tag: &str) -> Vec<u32> {
    let own = std::process::id();
    let wanted = format!("{TAG_VARIABLE}={tag}");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|all| all.split(|byte| *byte == 0).any(|var| var == wanted.as_bytes()))
        })
        .collect()
}

/// Unmounts what stands below the lab and is of such a kind, the innermost first.
pub(crate) fn unmount_below(dir: &std::path::Path, is: impl Fn(&str) -> bool) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().rev().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        is(fields.next()?).then_some(point)
    });
    for point in points.map(std::path::Path::new).filter(|point| point.starts_with(dir)) {
        let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
    }
}
