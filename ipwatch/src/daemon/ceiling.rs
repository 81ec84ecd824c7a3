//! How near the daemon is to the memory that it may have. Everything that it keeps is bounded where it is kept; this is the
//! last line before the kernel slows it down (`memory.high`) or ends it (`memory.max`).
//!
//! The limit is that of its memory cgroup, if that has one, and then all that is in the cgroup counts: a probe of a kubelet runs
//! there too. Else it is [`CEILING`], for the process alone. The page cache does not count, nor what the kernel keeps of files
//! that were looked at (v2): it drops both first. Whoever has many processes could fill it with entries of `/proc`.

use std::path::{Path, PathBuf};

use crate::bounded;

/// The ceiling without a limit of its own: `MemoryHigh` of the unit.
const CEILING: u64 = 96 << 20;
/// Memory is short from this part of the limit on, in eighths, and is so no longer below that.
const SHORT: u64 = 7;
const ENOUGH: u64 = 5;
/// Maximum size of the files that are read, in bytes.
const LONGEST: usize = 64 * 1024;

/// What is used of what may be used, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) used: u64,
    pub(super) limit: u64,
}

impl Usage {
    /// Whether memory is short now, given whether it was.
    pub(super) fn is_short(self, was: bool) -> bool {
        let eighths = if was { ENOUGH } else { SHORT };
        self.used >= self.limit / 8 * eighths
    }
}

/// The files of a memory cgroup, and their words.
struct Files {
    /// The part of `/proc/self/cgroup` that names the hierarchy, and where it is mounted.
    controller: &'static str,
    mount: &'static str,
    current: &'static str,
    limits: &'static [&'static str],
    cached: &'static [&'static str],
}

/// Of cgroup v2, of v2 beside v1, and of v1.
const HIERARCHIES: [Files; 2] = [
    Files {
        controller: "",
        mount: "/sys/fs/cgroup",
        current: "memory.current",
        limits: &["memory.high", "memory.max"],
        cached: &["inactive_file", "active_file", "slab_reclaimable"],
    },
    Files {
        controller: "memory",
        mount: "/sys/fs/cgroup/memory",
        current: "memory.usage_in_bytes",
        limits: &["memory.limit_in_bytes"],
        cached: &["total_inactive_file", "total_active_file"],
    },
];

/// A limit of cgroup v1 beyond this is none: `PAGE_COUNTER_MAX` in bytes (include/linux/page_counter.h).
const NO_LIMIT: u64 = 1 << 60;

/// Looks at the own memory. Reads a few files, which may be slow. `None`: nothing could be read.
pub(super) fn look() -> Option<Usage> {
    let cgroups = text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let own = HIERARCHIES.iter().find_map(|files| {
        let path = path_of(&cgroups, files.controller)?;
        of_cgroup(&Path::new(files.mount).join(path), files)
    });
    own.or_else(|| {
        let pages = resident(&text(Path::new("/proc/self/statm"))?)?;
        let used = pages.saturating_mul(rustix::param::page_size() as u64);
        Some(Usage { used, limit: CEILING })
    })
}

fn text(path: &Path) -> Option<String> {
    bounded::read_text(path, LONGEST).ok()
}

/// The usage of a cgroup with a limit.
fn of_cgroup(path: &Path, files: &Files) -> Option<Usage> {
    let read = |name: &str| text(&path.join(name));
    let limits = files.limits.iter().filter_map(|name| limit(&read(name)?));
    let limit = limits.min()?;
    let current: u64 = read(files.current)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let cached: u64 = files.cached.iter().filter_map(|name| value(&stat, name)).sum();
    Some(Usage { used: current.saturating_sub(cached), limit })
}

/// The path of the own cgroup in a hierarchy, relative to its mount, from `/proc/self/cgroup` (cgroups(7)).
fn path_of(cgroups: &str, controller: &str) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then_some(path)
    })?;
    let path = Path::new(path.strip_prefix('/')?);
    // With a cgroup namespace of its own a path may lead out of what is mounted.
    path.components()
        .all(|part| matches!(part, std::path::Component::Normal(_)))
        .then(|| path.into())
}

fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| (1..NO_LIMIT).contains(limit))
}

fn value(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

/// The second word of `/proc/PID/statm`, in pages (proc(5)).
fn resident(statm: &str) -> Option<u64> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_short_near_the_limit_and_until_there_is_much_again() {
        let limit = 96 << 20;
        let mut short = false;
        let told: Vec<bool> = [10, 83, 84, 90, 61, 60, 59, 70, 84]
            .into_iter()
            .map(|mib| {
                short = Usage { used: mib << 20, limit }.is_short(short);
                short
            })
            .collect();
        assert_eq!(told, [false, false, true, true, true, true, false, false, true]);
    }

    #[test]
    fn a_cgroup_counts_if_it_has_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("memory.current", "50000000\n");
        write("memory.high", "max\n");
        write("memory.max", "max\n");
        let stat = "anon 30000000\nfile 20000000\ninactive_file 12000000\nactive_file 4000000\n\
                    slab_reclaimable 3000000\n";
        write("memory.stat", stat);
        let usage = || of_cgroup(dir.path(), &HIERARCHIES[0]);
        assert_eq!(usage(), None, "without a limit");
        write("memory.max", "134217728\n");
        assert_eq!(usage(), Some(Usage { used: 31_000_000, limit: 128 << 20 }));
        write("memory.high", "100663296\n");
        assert_eq!(usage().unwrap().limit, 96 << 20, "the lower one");

        let v1 = &HIERARCHIES[1];
        write("memory.usage_in_bytes", "50000000\n");
        write("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(of_cgroup(dir.path(), v1), None, "so many bytes are no limit");
        write("memory.limit_in_bytes", "134217728\n");
        write("memory.stat", "inactive_file 1\ntotal_inactive_file 20000000\n");
        assert_eq!(of_cgroup(dir.path(), v1).unwrap().used, 30_000_000);
    }

    #[test]
    fn the_own_cgroup_is_the_one_that_the_kernel_names() {
        let hybrid = "9:name=systemd:/a\n4:cpu,memory:/system.slice/ipwatch.service\n0::/b\n";
        let of = |text, controller| path_of(text, controller);
        assert_eq!(of(hybrid, "memory"), Some("system.slice/ipwatch.service".into()));
        assert_eq!(of(hybrid, ""), Some("b".into()));
        assert_eq!(of("0::/\n", ""), Some("".into()), "in a cgroup namespace");
        assert_eq!(of("0::/../other\n", ""), None);
        assert_eq!(of("0::/b\n", "memory"), None);
    }

    #[test]
    fn words_of_files_are_parsed() {
        assert_eq!(resident("1000 250 30 1 0 200 0\n"), Some(250));
        assert_eq!(
            (resident(""), limit("max"), limit("0"), value("a 1\n", "b")),
            (None, None, None, None)
        );
    }
}
