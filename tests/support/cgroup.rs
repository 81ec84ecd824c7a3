//! Cgroups of the test: in the v1 freezer, in v2, and in the hierarchy that names containers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Lab;
use crate::poll::until;

/// Mount point of the host's v1 freezer hierarchy. A mount of another test does not count: it disappears with that
/// test.
fn host_freezer() -> Option<PathBuf> {
    mounts()
        .filter(|m| !m.at.starts_with(std::env::temp_dir()))
        .find(|m| m.kind == "cgroup" && m.options.split(',').any(|o| o == "freezer"))
        .map(|m| m.at)
}

/// Mount point of the v1 freezer hierarchy, which is mounted in the lab if the host uses only v2. Must be called
/// before the daemon starts, because it looks for mounts at its start.
pub fn v1_freezer(lab: &Lab) -> PathBuf {
    host_freezer().unwrap_or_else(|| {
        let dir = lab.subdir(LAB_FREEZER);
        if !mounts().any(|m| m.at == dir) {
            mount_freezer(&dir).expect("mount the v1 freezer");
        }
        dir
    })
}

/// Directory of the lab's own mount of the v1 freezer.
const LAB_FREEZER: &str = "freezer";

fn mount_freezer(dir: &Path) -> io::Result<()> {
    let flags = rustix::mount::MountFlags::empty();
    Ok(rustix::mount::mount("ipwatch-test", dir, "cgroup", flags, c"freezer")?)
}

/// Why there is no v1 freezer here; tested by mounting it.
#[must_use]
pub fn without_v1_freezer() -> Option<String> {
    if host_freezer().is_some() {
        return None;
    }
    let dir = std::env::temp_dir().join(format!("iw{}-freezer", std::process::id()));
    let tried = fs::create_dir_all(&dir).and_then(|()| mount_freezer(&dir));
    let _ = rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH);
    let _ = fs::remove_dir(&dir);
    tried.err().map(|error| format!("no cgroup v1 freezer, and none can be mounted: {error}"))
}

/// Mount point of the v2 hierarchy.
#[must_use]
pub fn v2() -> Option<PathBuf> {
    mounts().find(|m| m.kind == "cgroup2").map(|m| m.at)
}

/// A group of the test that is limited to 64 MiB of memory; `None` if no hierarchy here permits that without changing
/// other groups.
#[must_use]
pub fn with_little_memory(lab: &Lab) -> Option<PathBuf> {
    let (root, limits) = match memory_v1() {
        Some(root) => (root, [("memory.limit_in_bytes", "67108864"), ("memory.swappiness", "0")]),
        None => (memory_v2()?, [("memory.max", "67108864"), ("memory.swap.max", "0")]),
    };
    let dir = root.join(format!("{}-memory", lab.tag()));
    fs::create_dir_all(&dir).expect("make a cgroup");
    for (file, value) in limits {
        // The second file exists only with swap.
        if let Err(error) = fs::write(dir.join(file), value) {
            println!("{file}: {error}");
        }
    }
    Some(dir)
}

/// A group of the test's own in which memory is counted. [`crate::sweep`] removes it.
#[derive(Debug)]
pub struct Memory(PathBuf);

impl Memory {
    /// `None` where no hierarchy here can have one without a change to groups of others.
    #[must_use]
    pub fn counted(lab: &Lab) -> Option<Self> {
        Self::named(lab, "memory")
    }

    /// As [`Memory::counted`], if a test has several.
    #[must_use]
    pub fn named(lab: &Lab, name: &str) -> Option<Self> {
        let dir = memory_v1().or_else(memory_v2)?.join(format!("{}-{name}", lab.tag()));
        fs::create_dir_all(&dir).expect("make a cgroup");
        Some(Self(dir))
    }

    /// Moves a process into it.
    pub fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("move a process");
    }

    /// Sets its limit, in bytes, beyond which the kernel ends what is in it, after it has taken back what it can.
    pub fn limit(&self, bytes: u64) {
        let v2 = self.0.join("memory.max");
        let file = if v2.exists() { v2 } else { self.0.join("memory.limit_in_bytes") };
        fs::write(file, bytes.to_string()).expect("set a limit");
    }

    /// Runs this program in it.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
        command.arg(self.0.join("cgroup.procs")).arg(program);
        command
    }

    /// What it has now, in bytes: all that counts against a limit (its pages, eBPF maps, socket buffers, what else the
    /// kernel has for it) but pages of files, which the kernel takes back when it needs them.
    #[must_use]
    pub fn now(&self) -> u64 {
        let read = |file: &str| fs::read_to_string(self.0.join(file)).ok();
        let all = read("memory.current").or_else(|| read("memory.usage_in_bytes"));
        let all: u64 = all.and_then(|text| text.trim().parse().ok()).expect("what it has");
        let stat = read("memory.stat").expect("of what kind");
        let kind = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        all - kind("file ").or_else(|| kind("total_cache ")).unwrap_or(0).min(all)
    }
}

/// Why no group of the test can have its memory counted.
#[must_use]
pub fn without_memory() -> Option<String> {
    let is_there = memory_v1().or_else(memory_v2).is_some();
    (!is_there).then(|| "no cgroup hierarchy here counts the memory of a group".into())
}

fn memory_v1() -> Option<PathBuf> {
    mounts()
        .find(|m| m.kind == "cgroup" && m.options.split(',').any(|o| o == "memory"))
        .map(|m| m.at)
}

fn memory_v2() -> Option<PathBuf> {
    v2_with("memory")
}

/// Mount point of the v2 hierarchy, if groups have this controller.
fn v2_with(controller: &str) -> Option<PathBuf> {
    let given = |root: &PathBuf| {
        let controllers = fs::read_to_string(root.join("cgroup.subtree_control"));
        controllers.is_ok_and(|text| text.split_whitespace().any(|one| one == controller))
    };
    v2().filter(given)
}

/// A group of the test's own that gets little CPU time. Its processes get as much as others when it is dropped;
/// [`crate::sweep`] removes it.
#[derive(Debug)]
pub struct LittleCpu {
    dir: PathBuf,
    v2: bool,
}

impl LittleCpu {
    /// The smallest share there is, which counts while others want the CPU: two of 1024 of a usual group.
    #[must_use]
    pub fn by_share(lab: &Lab) -> Self {
        let group = Self::make(lab, "share");
        group.set(("cpu.shares", "2"), ("cpu.weight", "1"));
        group
    }

    /// A limit of a hundredth of a CPU. Linux 6.18 limits no process that exits (`throttle_cfs_rq_work`,
    /// kernel/sched/fair.c).
    #[must_use]
    pub fn by_limit(lab: &Lab) -> Self {
        let group = Self::make(lab, "limit");
        group.set(("cpu.cfs_quota_us", "1000"), ("cpu.max", "1000 100000"));
        group
    }

    /// Whether a limit slows down a process that exits.
    #[must_use]
    pub fn limits_exits() -> bool {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut parts = release.split('.').filter_map(|part| part.parse::<u32>().ok());
        (parts.next(), parts.next()) < (Some(6), Some(18))
    }

    fn make(lab: &Lab, name: &str) -> Self {
        let (root, v2) = cpu().expect("a hierarchy with CPU time");
        let dir = root.join(format!("{}-cpu-{name}", lab.tag()));
        fs::create_dir_all(&dir).expect("make a cgroup");
        Self { dir, v2 }
    }

    fn set(&self, on_v1: (&str, &str), on_v2: (&str, &str)) {
        let (file, value) = if self.v2 { on_v2 } else { on_v1 };
        fs::write(self.dir.join(file), value).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// Moves a process into the group.
    pub fn take(&self, pid: u32) {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string()).expect("move into the cgroup");
    }
}

impl Drop for LittleCpu {
    fn drop(&mut self) {
        let files = [("cpu.shares", "1024"), ("cpu.cfs_quota_us", "-1")];
        let files_v2 = [("cpu.weight", "100"), ("cpu.max", "max")];
        for (file, value) in if self.v2 { files_v2 } else { files } {
            let _ = fs::write(self.dir.join(file), value);
        }
    }
}

/// Why no group can get less CPU time.
#[must_use]
pub fn without_cpu() -> Option<String> {
    cpu().is_none().then(|| "no cgroup hierarchy shares CPU time among groups".into())
}

/// Mount point of a hierarchy that shares CPU time among groups, and whether it is v2.
fn cpu() -> Option<(PathBuf, bool)> {
    let v1 = mounts()
        .find(|m| m.kind == "cgroup" && m.options.split(',').any(|o| o == "cpu"))
        .map(|m| (m.at, false));
    v1.or_else(|| Some((v2_with("cpu")?, true)))
}

/// Mount point of the hierarchy whose paths name containers: systemd's on v1, else v2.
#[must_use]
pub fn naming() -> Option<PathBuf> {
    mounts()
        .find(|m| m.kind == "cgroup" && m.options.split(',').any(|o| o == "name=systemd"))
        .map(|m| m.at)
        .or_else(v2)
}

struct Mounted {
    at: PathBuf,
    kind: String,
    options: String,
}

fn mounts() -> impl Iterator<Item = Mounted> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.into_iter().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some(Mounted {
            at: fields.next()?.into(),
            kind: fields.next()?.into(),
            options: fields.next()?.into(),
        })
    })
}

/// A group that can be frozen. Thawed and removed when dropped, or by [`crate::sweep`].
#[derive(Debug)]
pub struct Freezer {
    dir: PathBuf,
    v2: bool,
}

impl Freezer {
    /// A group in the v1 freezer.
    #[must_use]
    pub fn v1(lab: &Lab) -> Self {
        Self::make(&v1_freezer(lab), lab, false)
    }

    /// A group in v2.
    #[must_use]
    pub fn v2(lab: &Lab) -> Self {
        Self::make(&v2().expect("a v2 hierarchy"), lab, true)
    }

    /// A group in v1 or v2 with this name.
    #[must_use]
    pub fn named(lab: &Lab, v2: bool, name: &str) -> Self {
        let root = if v2 { self::v2().expect("a v2 hierarchy") } else { v1_freezer(lab) };
        Self::make_as(&root, lab, v2, name)
    }

    fn make(root: &Path, lab: &Lab, v2: bool) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Self::make_as(root, lab, v2, &format!("freezer{serial}"))
    }

    fn make_as(root: &Path, lab: &Lab, v2: bool, name: &str) -> Self {
        let dir = root.join(format!("{}-{name}", lab.tag()));
        fs::create_dir_all(&dir).expect("make a cgroup");
        Self { dir, v2 }
    }

    /// Moves a process into the group and waits until the kernel reports it as frozen.
    ///
    /// Runtimes report a container as started shortly before its execve. Within that, a thread waits for the others
    /// to end (`de_thread`), which frozen ones never do: the group is not frozen before it is thawed.
    pub fn freeze(&self, pid: u32) {
        let is_runc = || {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.starts_with("runc:"))
        };
        until("the container's program runs", 10, || !is_runc());
        self.begin(pid);
        until("the cgroup is frozen", 10, || self.is_frozen());
    }

    /// Moves a process into the group, and has it freeze, which it never does if the process hangs.
    pub fn begin(&self, pid: u32) {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string()).expect("move into the cgroup");
        set_frozen(&self.dir, self.v2, true);
    }

    /// Whether the kernel reports the group as frozen.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        if self.v2 {
            let events = fs::read_to_string(self.dir.join("cgroup.events")).unwrap_or_default();
            events.lines().any(|line| line == "frozen 1")
        } else {
            let state = fs::read_to_string(self.dir.join("freezer.state")).unwrap_or_default();
            state.trim() == "FROZEN"
        }
    }

    /// Thaws the group.
    pub fn thaw(&self) {
        set_frozen(&self.dir, self.v2, false);
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        remove(&self.dir);
    }
}

fn set_frozen(dir: &Path, v2: bool, frozen: bool) {
    let (file, text) = match (v2, frozen) {
        (true, true) => ("cgroup.freeze", "1"),
        (true, false) => ("cgroup.freeze", "0"),
        (false, true) => ("freezer.state", "FROZEN"),
        (false, false) => ("freezer.state", "THAWED"),
    };
    let _ = fs::write(dir.join(file), text);
}

/// Thaws the groups of the test with this tag: processes frozen in v1 cannot be killed.
pub fn thaw(tag: &str) {
    for (root, is_v2) in [(host_freezer(), false), (lab_freezer(tag), false), (v2(), true)] {
        groups(root, tag).iter().for_each(|group| set_frozen(group, is_v2, false));
    }
}

/// Removes the groups of the test with this tag, when nothing runs in them.
pub fn sweep(tag: &str) {
    let cpu = cpu().map(|(root, _)| root);
    for root in [host_freezer(), lab_freezer(tag), memory_v1(), cpu, v2(), naming()] {
        groups(root, tag).iter().for_each(|group| remove(group));
    }
}

fn lab_freezer(tag: &str) -> Option<PathBuf> {
    Some(Lab::dir_of(tag).join(LAB_FREEZER))
}

fn groups(root: Option<PathBuf>, tag: &str) -> Vec<PathBuf> {
    let prefix = format!("{tag}-");
    let entries = root.and_then(|root| fs::read_dir(root).ok()).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    named.map(|entry| entry.path()).collect()
}

/// Removes a group, its subgroups first. The last process needs a moment to end after a kill.
fn remove(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    for _ in 0..50 {
        if fs::remove_dir(dir).is_ok() || !dir.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The roots of all hierarchies: with v2 alone the one mount, with v1 a directory for each.
pub(crate) fn hierarchies() -> Vec<PathBuf> {
    let top = PathBuf::from("/sys/fs/cgroup");
    let below = fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
    below.chain([top.clone()]).collect()
}

/// Ends the processes in a group of every hierarchy, and removes the group.
pub(crate) fn end_everywhere(group: &str) {
    hierarchies().iter().for_each(|top| end(&top.join(group)));
}

/// Ends the processes in a group and its subgroups, and removes them.
pub(crate) fn end(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            end(&entry.path());
        }
    }
    for _ in 0..50 {
        let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        for pid in processes.lines().filter_map(|line| line.parse().ok()) {
            let _ = crate::sys::kill(pid, libc::SIGKILL);
        }
        if fs::remove_dir(dir).is_ok() || !dir.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
