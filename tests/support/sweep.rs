//! Cleans up after a test, even if it panicked or was killed for taking too long. Everything that a test creates
//! carries its tag, so that nothing of others is touched.

use std::fs;

use crate::lab::TAG_VARIABLE;
use crate::{Lab, cgroup, docker, kubernetes, netns, pod, sys};

/// Ends and removes what the test with this tag left behind.
pub fn sweep(tag: &str) {
    let prefix = format!("{tag}-");
    // Twice: the first pass may miss a helper that was just being started.
    for _ in 0..2 {
        cgroup::thaw(tag);
        for pid in processes(tag) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let dir = Lab::dir_of(tag);
    // Unmounting frees processes that hang on a mount, and then their cgroup. A hierarchy mounted for the test comes
    // last: with groups in it, it would stay mounted.
    unmount_below(&dir, |kind| kind != "cgroup");
    cgroup::sweep(tag);
    unmount_below(&dir, |_| true);
    docker::sweep(tag);
    kubernetes::sweep(tag);
    pod::sweep(tag);
    netns::sweep(&prefix);
    netns::sweep_devices(tag);
    let _ = fs::remove_dir_all(dir);
}

/// Processes with the tag in their environment. A process that hangs in its exit shows none; it ends when the file
/// system on which it hangs is unmounted.
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

/// Unmounts the mounts below `dir` whose type matches, the innermost first.
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
