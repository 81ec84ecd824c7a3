//! The cgroups of a process: which path names its container, whether it is frozen, and how much CPU time it gets.

use std::io;
use std::path::{Path, PathBuf};

use super::files::{Dir, is_gone};
use super::{Proc, fact, mounts};
use crate::fact::{CpuLimit, Fact, Observation, TaskKey};

/// Maximum number of CPU limits that are read. A pod's container has two or three cgroups with one.
const MOST_LIMITS: usize = 16;

/// The mount points of the hierarchies that freeze or throttle tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hierarchies {
    /// cgroup v1, controller `freezer`.
    pub freezer: Option<PathBuf>,
    /// cgroup v1, controller `cpu`.
    pub cpu: Option<PathBuf>,
    /// cgroup v2, alone or beside v1.
    pub unified: Option<PathBuf>,
}

impl Hierarchies {
    /// Finds them in the mount namespace of `self` in `proc`.
    pub(super) fn find(proc: &Path) -> Self {
        let mut found = Self::default();
        let _: io::Result<_> = mounts::lines(&proc.join("self/mountinfo"), |line| {
            let Some(mount) = mounts::Mount::parse(line) else { return };
            // Only a mount of the hierarchy's root has the paths of /proc/PID/cgroup.
            if mount.root != b"/" {
                return;
            }
            let path = || Some(mount.path());
            match mount.fs_type {
                b"cgroup2" if found.unified.is_none() => found.unified = path(),
                b"cgroup" if mount.has_option(b"freezer") => found.freezer = path(),
                b"cgroup" if mount.has_option(b"cpu") => found.cpu = path(),
                _ => {}
            }
        });
        found
    }
}

impl Proc {
    /// Reads the path that names the container of a process. `None` if the process is gone, or if its pid was reused.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn cgroup(&self, task: TaskKey) -> io::Result<Option<Fact>> {
        let Some(dir) = self.task(task)? else { return Ok(None) };
        match dir.text("cgroup") {
            Ok(lines) => {
                let path = naming(&lines).map(ToOwned::to_owned);
                Ok(path.map(|path| fact(Observation::Cgroup { task, path })))
            }
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the cgroups in `lines`, which may be unreadable, keep a task where it is because they are frozen or being
    /// frozen. `None`: unknown. A task that is `leaving`, because it was killed or exits, leaves a frozen cgroup v2
    /// (`cgroup_leave_frozen` in `get_signal`, kernel/signal.c, 6.12), and its owner may have chosen that cgroup.
    pub(super) fn frozen(&self, lines: Option<&str>, leaving: bool) -> Option<bool> {
        let Some(lines) = lines else {
            // Its path is longer than a page, perhaps (ENAMETOOLONG, `proc_cgroup_show`).
            return (leaving && !self.may_freeze_v1()).then_some(false);
        };
        let freezer = hierarchies(lines).find(|line| line.has("freezer"));
        let unified = hierarchies(lines).find(Hierarchy::is_unified);
        let mounted = &self.hierarchies;
        let v1 =
            freezer.map_or(Some(false), |line| frozen_v1(mounted.freezer.as_deref(), line.path));
        let v2 = unified
            .filter(|_| !leaving)
            .map_or(Some(false), |line| frozen_v2(mounted.unified.as_deref(), line.path));
        match (v1, v2) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }
    }

    /// Whether the freezer of cgroup v1 may be in use: unless `SUBSYSTEM HIERARCHY CGROUPS ENABLED` says that it is in no
    /// hierarchy, or it is not built (`proc_cgroupstats_show`, kernel/cgroup/cgroup-v1.c).
    fn may_freeze_v1(&self) -> bool {
        let Ok(text) = Dir::open(&self.root).and_then(|root| root.text("cgroups")) else {
            return true;
        };
        let line = text.lines().find_map(|line| line.strip_prefix("freezer\t"));
        line.is_some_and(|rest| !rest.starts_with("0\t"))
    }

    /// The control file that froze the cgroups in `lines`: that of the innermost cgroup that was itself asked to
    /// freeze.
    pub(super) fn frozen_by(&self, lines: &str) -> Option<String> {
        let freezer = hierarchies(lines).find(|line| line.has("freezer"));
        let unified = hierarchies(lines).find(Hierarchy::is_unified);
        // `freezer.self_freezing` is the request for this cgroup, without that for a parent
        // (`freezer_self_freezing_read`, legacy_freezer.c).
        let v1 = freezer.and_then(|line| {
            asked(self.hierarchies.freezer.as_deref()?, line.path, "freezer.self_freezing")
        });
        let v2 = || asked(self.hierarchies.unified.as_deref()?, unified?.path, "cgroup.freeze");
        let file = v1.map(|dir| dir.join("freezer.state"));
        let file = file.or_else(|| v2().map(|dir| dir.join("cgroup.freeze")))?;
        file.into_os_string().into_string().ok()
    }
}

impl Proc {
    /// The CPU limits of the cgroups in `lines` and their parents, the innermost first; none if they are unknown.
    pub(super) fn cpu_limits(&self, lines: &str) -> Vec<CpuLimit> {
        self.limits_along(lines).unwrap_or_default()
    }

    fn limits_along(&self, lines: &str) -> Option<Vec<CpuLimit>> {
        let v1 = |line: Hierarchy<'_>| {
            Some((self.hierarchies.cpu.as_deref()?, line.path.to_owned(), quota_v1 as Quota))
        };
        let v2 = |line: Hierarchy<'_>| {
            Some((self.hierarchies.unified.as_deref()?, line.path.to_owned(), quota_v2 as Quota))
        };
        let on_v1 = hierarchies(lines).find(|line| line.has("cpu")).and_then(v1);
        let on_v2 = || hierarchies(lines).find(Hierarchy::is_unified).and_then(v2);
        let (mount, path, quota) = on_v1.or_else(on_v2)?;
        let limit = |dir: PathBuf| {
            let dir = Dir::open(&dir).ok()?;
            let (quota, period) = quota(&dir)?;
            let stat = dir.text("cpu.stat").ok()?;
            let count = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "))?;
            let thousandths = quota.saturating_mul(1000).checked_div(period)?;
            Some(CpuLimit {
                thousandths: u32::try_from(thousandths).ok()?,
                exhausted: count.trim().parse().ok()?,
            })
        };
        Some(selves_and_parents(mount, &path)?.filter_map(limit).take(MOST_LIMITS).collect())
    }
}

/// Reads the quota and the period of a cgroup, both in µs.
type Quota = fn(&Dir) -> Option<(u64, u64)>;

/// `QUOTA PERIOD`, or `max PERIOD` (`cpu_max_show`, kernel/sched/core.c).
fn quota_v2(dir: &Dir) -> Option<(u64, u64)> {
    let text = dir.text("cpu.max").ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    Some((quota.parse().ok()?, period.parse().ok()?))
}

/// The quota is -1 if there is no limit; it then does not parse.
fn quota_v1(dir: &Dir) -> Option<(u64, u64)> {
    let number = |file: &str| dir.text(file).ok()?.trim().parse().ok();
    Some((number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?))
}

/// One line of `/proc/PID/cgroup`: `ID:CONTROLLERS:PATH`.
struct Hierarchy<'a> {
    id: &'a str,
    controllers: &'a str,
    path: &'a str,
}

impl Hierarchy<'_> {
    fn has(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|name| name == controller)
    }

    fn is_unified(&self) -> bool {
        self.id == "0" && self.controllers.is_empty()
    }
}

fn hierarchies(lines: &str) -> impl Iterator<Item = Hierarchy<'_>> {
    lines.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        Some(Hierarchy { id: parts.next()?, controllers: parts.next()?, path: parts.next()? })
    })
}

/// As [`naming`], of a process.
pub(super) fn read(process: &Dir) -> io::Result<Option<String>> {
    Ok(naming(&process.text("cgroup")?).map(ToOwned::to_owned))
}

/// The path that names the container: on v2 the only one; with v1 that of `name=systemd`, or else the longest.
pub(super) fn naming(lines: &str) -> Option<&str> {
    let longest = || hierarchies(lines).map(|line| line.path).max_by_key(|path| path.len());
    let systemd = hierarchies(lines).find(|line| line.controllers == "name=systemd");
    match systemd {
        // A runtime with the cgroupfs driver may not use the systemd hierarchy.
        Some(line) if line.path.len() > 1 => Some(line.path),
        _ => longest(),
    }
}

/// v1: `freezer.state` is THAWED, FREEZING or FROZEN, and includes the state of a frozen parent (`freezer_read`,
/// legacy_freezer.c). The parents are read as well, because the state of a child is updated lazily.
fn frozen_v1(mount: Option<&Path>, path: &str) -> Option<bool> {
    ancestors(mount, path, |dir| {
        let state = dir.text("freezer.state")?;
        Ok(state.trim() != "THAWED")
    })
}

/// v2: `cgroup.events` contains `frozen 1` when every task has stopped, and `cgroup.freeze` is 1 when a freeze was
/// requested: a task that hangs in the kernel never stops, but its cgroup is "being frozen".
fn frozen_v2(mount: Option<&Path>, path: &str) -> Option<bool> {
    ancestors(mount, path, |dir| {
        let frozen = dir.text("cgroup.events")?.lines().any(|line| line == "frozen 1");
        Ok(frozen || dir.text("cgroup.freeze").is_ok_and(|asked| asked.trim() == "1"))
    })
}

/// Whether `path` below `mount` or one of its parents is frozen. The root is never frozen and has no such files.
fn ancestors(
    mount: Option<&Path>,
    path: &str,
    frozen: impl Fn(&Dir) -> io::Result<bool>,
) -> Option<bool> {
    // A cgroup that was removed under an exiting task cannot be frozen (`proc_cgroup_show`).
    if path == "/" || path.ends_with(" (deleted)") {
        return Some(false);
    }
    // A path with `..` is outside our cgroup namespace (`cgroup_path_ns`).
    if path.split('/').any(|part| part == "..") {
        return None;
    }
    let below = Path::new(path.strip_prefix('/')?);
    let mut told = Some(false);
    for part in below.ancestors().filter(|part| !part.as_os_str().is_empty()) {
        match Dir::open(&mount?.join(part)).and_then(|dir| frozen(&dir)) {
            Ok(true) => return Some(true),
            Ok(false) => {}
            Err(_) => told = None,
        }
    }
    told
}

/// The innermost of `path` below `mount` and its parents whose `file` contains 1.
fn asked(mount: &Path, path: &str, file: &str) -> Option<PathBuf> {
    let says = |dir: &PathBuf| Dir::open(dir).and_then(|dir| dir.text(file));
    selves_and_parents(mount, path)?.find(|dir| says(dir).is_ok_and(|text| text.trim() == "1"))
}

/// The directories of a cgroup and its parents, without the root. `None`: the cgroup was removed, or is outside our
/// cgroup namespace (`cgroup_path_ns`).
fn selves_and_parents<'a>(mount: &'a Path, path: &'a str) -> Option<impl Iterator<Item = PathBuf>> {
    if path.ends_with(" (deleted)") || path.split('/').any(|part| part == "..") {
        return None;
    }
    let below = Path::new(path.strip_prefix('/')?);
    let parts = below.ancestors().filter(|part| !part.as_os_str().is_empty());
    Some(parts.map(|part| mount.join(part)))
}

#[cfg(test)]
mod tests;
