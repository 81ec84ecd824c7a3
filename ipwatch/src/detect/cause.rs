//! What a stuck task waits for, derived from its kernel stack, and how to end the wait.
//!
//! The functions named here appear on the stacks of Linux 6.1 to 6.18. An unknown stack is quoted, never guessed at.

use crate::fact::{FileSystem, Look, Process, TaskKey};
use crate::remedy::{Command, Step, Text, guard, text, value};

/// Maximum number of quoted stack frames.
pub(super) const FRAMES: usize = 8;

/// Why a task cannot exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause<'a> {
    /// A FUSE server does not answer. The possible connections, the likeliest first.
    Fuse(Vec<&'a FileSystem>),
    /// A server of a network file system does not answer.
    Network {
        /// `NFS`, `CIFS`, `Ceph`.
        name: &'static str,
        /// The possible mounts.
        mounts: Vec<&'a FileSystem>,
    },
    /// A file system is frozen (`fsfreeze`, a snapshot).
    FrozenFileSystem(Vec<&'a FileSystem>),
    /// A block device does not answer.
    Block(Vec<&'a FileSystem>),
    /// It is ending a pid namespace and waits for the last task in it.
    PidNamespace,
    CoreDump,
    /// It waits for the kernel's network lock.
    Rtnl,
    Other,
}

/// Groups of kernel functions, the more specific first.
const FUSE: &[&str] = &["request_wait_answer", "fuse_"];
const NFS: &[&str] = &["nfs_", "nfs3_", "nfs4_", "rpc_wait_bit_killable", "rpc_execute"];
const CIFS: &[&str] = &["cifs_", "smb2_", "smb3_"];
const CEPH: &[&str] = &["ceph_"];
const FREEZE: &[&str] =
    &["sb_start_write", "sb_start_pagefault", "sb_start_intwrite", "percpu_rwsem_wait"];
const BLOCK: &[&str] = &[
    "submit_bio_wait",
    "blk_",
    "bio_wait",
    "jbd2_",
    "ext4_",
    "xfs_",
    "btrfs_",
    "io_schedule",
    "folio_wait_",
    "wait_on_buffer",
];

impl<'a> Cause<'a> {
    /// The cause that a look shows.
    pub(super) fn of(look: &'a Look) -> Self {
        let in_any = |names: &[&str]| {
            let frames = look.wchan.iter().chain(&look.stack);
            frames.into_iter().any(|frame| {
                let frame = frame.trim_start_matches('_');
                // A server that waits for work does not wait for an answer.
                !frame.starts_with("fuse_dev_") && names.iter().any(|name| frame.starts_with(name))
            })
        };
        let of_type = |wanted: fn(&str) -> bool| {
            look.file_systems.iter().filter(|fs| wanted(&fs.fs_type)).collect::<Vec<_>>()
        };
        if in_any(&["zap_pid_ns_processes"]) {
            Cause::PidNamespace
        } else if in_any(FUSE) {
            let mut mounts = of_type(|fs| fs.starts_with("fuse"));
            mounts.sort_by_key(|fs| std::cmp::Reverse(fs.waiting));
            Cause::Fuse(mounts)
        } else if in_any(NFS) {
            Cause::Network { name: "NFS", mounts: of_type(|fs| fs.starts_with("nfs")) }
        } else if in_any(CIFS) {
            let mounts = of_type(|fs| matches!(fs, "cifs" | "smb3"));
            Cause::Network { name: "CIFS", mounts }
        } else if in_any(CEPH) {
            Cause::Network { name: "Ceph", mounts: of_type(|fs| fs == "ceph") }
        } else if in_any(FREEZE) && !look.file_systems.is_empty() {
            Cause::FrozenFileSystem(of_type(is_local))
        } else if in_any(&["rtnl_lock"]) {
            Cause::Rtnl
        } else if in_any(BLOCK) {
            Cause::Block(of_type(is_local))
        } else if look.core_dumping {
            Cause::CoreDump
        } else {
            Cause::Other
        }
    }

    /// What the task waits for, in one line.
    pub(super) fn text(&self) -> Option<Text> {
        Some(match self {
            Cause::Fuse(mounts) => match fuse_culprit(mounts) {
                Some(fs) => text!(
                    "it waits for a FUSE server: connection {}{} behind {}{}",
                    fs.minor,
                    fs.waiting.map(|n| text!(" ({} unanswered)", n)).unwrap_or_default(),
                    value(&fs.point),
                    servers(fs)
                ),
                None => text!("it waits for a FUSE server"),
            },
            Cause::Network { name, mounts } => {
                text!("it waits for {} {} server{}", article(name), *name, at(mounts))
            }
            Cause::FrozenFileSystem(mounts) => {
                text!("it waits for a frozen file system to thaw{}", at(mounts))
            }
            Cause::Block(mounts) => text!("it waits for a block device{}", at(mounts)),
            Cause::PidNamespace => {
                text!("it ends its pid namespace and waits for the last task in it")
            }
            Cause::CoreDump => text!("its core is being dumped"),
            Cause::Rtnl => text!("it waits for the kernel's network lock (rtnl)"),
            Cause::Other => return None,
        })
    }

    /// Steps to end the wait, in this order.
    pub(super) fn way_out(&self, task: &TaskKey) -> Vec<Step> {
        match self {
            Cause::Fuse(mounts) => fuse_way_out(mounts, task),
            Cause::Network { name: "NFS", mounts } => nfs_way_out(mounts, task),
            Cause::Network { name, mounts } => vec![
                Step::advice(text!("Bring the {} server back{}.", *name, at(mounts))),
                Step::advice(text!("If it is gone for good, drain and reboot the node.")),
            ],
            Cause::FrozenFileSystem(mounts) => frozen_way_out(mounts),
            Cause::Block(mounts) => vec![
                Step::look(
                    text!("Bring the device back{}; the kernel log says what is wrong", at(mounts)),
                    Command::new("dmesg"),
                ),
                Step::advice(text!("If it is lost for good, drain and reboot the node.")),
            ],
            Cause::PidNamespace => {
                vec![Step::advice(text!(
                    "Free the process that it waits for, one of the same pid namespace: it is the cause, and has its own \
                     finding if it holds the IP too."
                ))]
            }
            Cause::CoreDump => {
                vec![Step::advice(text!(
                    "Wait for the core dump to end, or free space where it is written."
                ))]
            }
            Cause::Rtnl => vec![blocked_tasks(text!(
                "Another task holds the network lock. The kernel log then lists the tasks that are blocked; find the one \
                 that is not itself waiting for the lock"
            ))],
            Cause::Other => {
                let TaskKey { pid, tid, .. } = *task;
                let stack = Command::new("cat");
                let stack = stack.word("/proc/{}/task/{}/stack", &[pid.into(), tid.into()]);
                let same = guard::is_same_task(task);
                vec![Step::look(text!("Find out what it waits for"), same.and(stack))]
            }
        }
    }
}

/// Makes the kernel list the blocked tasks. This writes to the kernel's log and changes nothing else.
pub(super) fn blocked_tasks(what: Text) -> Step {
    let list = Command::new("echo").own("w").to("/proc/sysrq-trigger", &[]);
    Step::look(what, list.and(Command::new("dmesg")))
}

fn nfs_way_out(mounts: &[&FileSystem], task: &TaskKey) -> Vec<Step> {
    let back = text!("Bring the NFS server back{}: the process then exits by itself.", at(mounts));
    let mut steps = vec![Step::advice(back)];
    // A mount point that was seen from elsewhere may be another mount there, even the node's root.
    steps.extend(only(mounts).filter(|fs| !fs.elsewhere).map(|fs| {
        // No helper (`umount.nfs` does not know `-N`), and no lookup of the path, which would hang.
        let umount = Command::new("umount").owns(&["-i", "-c", "-f", "-N"]);
        let umount = umount.number(task.pid).path(&fs.point);
        let what = text!(
            "If the server is gone for good, fail the requests that the process waits for; data that it had not \
             written is lost (umount of util-linux 2.35 or newer)"
        );
        Step::change(what, guard::is_same_task(task).and(umount))
    }));
    let else_ = text!("If neither helps, the wait cannot be ended: drain and reboot the node.");
    steps.push(Step::advice(else_));
    steps
}

/// A person thaws the file system, on the node's own mount, after checking: ipwatch does not know whether a snapshot is
/// being made.
fn frozen_way_out(mounts: &[&FileSystem]) -> Vec<Step> {
    let thaw = text!(
        "Ask whoever froze it to thaw it. Thaw it yourself with fsfreeze, at its mount point on the node{}, only while no \
         snapshot is being made and the process still waits.",
        at(mounts)
    );
    let look = only(mounts).filter(|fs| fs.source.starts_with("/dev/")).map(|fs| {
        let find = Command::new("findmnt").word("--source={}", &[value(&fs.source)]);
        Step::look(text!("See where the node has it mounted"), find)
    });
    look.into_iter().chain([Step::advice(thaw)]).collect()
}

/// The file system, if there is only one candidate: no command is given for a guess.
fn only<'a>(mounts: &[&'a FileSystem]) -> Option<&'a FileSystem> {
    match mounts {
        [only] => Some(only),
        _ => None,
    }
}

/// The connection, if it is certain: the only one, or the only one with unanswered requests.
fn fuse_culprit<'a>(mounts: &[&'a FileSystem]) -> Option<&'a FileSystem> {
    let mut connections: Vec<&FileSystem> = Vec::new();
    for &fs in mounts.iter().filter(|fs| fs.waiting != Some(0)) {
        if connections.iter().all(|known| known.minor != fs.minor) {
            connections.push(fs);
        }
    }
    if let [only] = connections[..] {
        return Some(only);
    }
    let mut waiting = connections.into_iter().filter(|fs| fs.waiting.is_some_and(|n| n > 0));
    waiting.next().filter(|_| waiting.next().is_none())
}

fn fuse_way_out(mounts: &[&FileSystem], task: &TaskKey) -> Vec<Step> {
    let Some(fs) = fuse_culprit(mounts) else {
        let mountpoint = text!(
            "If /sys/fs/fuse/connections is empty, fusectl is not mounted there: ipwatch explain \
             ip-held-by-stuck-process has the command."
        );
        let waiting = Command::new("grep").owns(&["-r", "--include=waiting", "[1-9]"]);
        let mut steps = vec![Step::look(
            text!("A FUSE server does not answer. Its connection is one with waiting requests"),
            waiting.own("/sys/fs/fuse/connections"),
        )];
        let some = mounts.iter().take(4);
        let some = some.map(|fs| text!("{} at {}", fs.minor, value(&fs.point)));
        let some = Text::join(some, ", ");
        if !some.is_empty() {
            steps.push(Step::advice(text!("It can see these connections: {}.", some)));
        }
        steps.push(Step::advice(text!(
            "Make the server answer again. Otherwise abort the connection through the file abort beside waiting, \
             only while waiting is not 0 and the requests are those of this process: the mount ends for everybody."
        )));
        return [steps, vec![Step::advice(mountpoint)]].concat();
    };
    let server = match &fs.servers[..] {
        [only] if fs.sure => text!("pid {} ({})", only.pid, value(&only.comm)),
        [] => text!("its server"),
        some if fs.sure => text!("its server, which is {},", names(some, " or ")),
        some => text!("its server, perhaps {},", names(some, " or ")),
    };
    let back = Step::advice(text!("Make {} answer for {} again, or", server, value(&fs.point)));
    // The control files are not mounted, or not visible from here.
    if fs.waiting.is_none() {
        let what = text!(
            "abort its requests: they fail, killed processes exit, and this mount stops working for everybody. Its control \
             file is {}/abort in /sys/fs/fuse/connections (mount fusectl first if that is empty). Write to it only while pid {} still waits and {}/waiting is not 0.",
            fs.minor,
            task.pid,
            fs.minor
        );
        return vec![back, Step::advice(what)];
    }
    let waits = Command::new("grep").owns(&["-q", "[1-9]"]);
    let waits = waits.word("/sys/fs/fuse/connections/{}/waiting", &[fs.minor.into()]);
    let abort = Command::new("echo").own("1");
    let abort = abort.to("/sys/fs/fuse/connections/{}/abort", &[fs.minor.into()]);
    vec![
        back,
        Step::change(
            text!(
                "abort its requests: they fail, killed processes exit, and this mount stops working for everybody"
            ),
            guard::is_same_task(task).and(waits).and(abort),
        ),
    ]
}

fn servers(fs: &FileSystem) -> Text {
    match &fs.servers[..] {
        [] => Text::default(),
        some if fs.sure => text!(", which {} should answer", names(some, " and ")),
        some @ [_] => text!(", which perhaps {} should answer", names(some, "")),
        some => text!(", which one of {} should answer", names(some, ", ")),
    }
}

fn names(processes: &[Process], between: &'static str) -> Text {
    let one = |process: &Process| text!("pid {} ({})", process.pid, value(&process.comm));
    Text::join(processes.iter().take(4).map(one), between)
}

/// ` (SOURCE at POINT)`, for one mount or a few.
fn at(mounts: &[&FileSystem]) -> Text {
    let one = |fs: &&FileSystem| match fs.source.as_str() {
        "" => text!("{}", value(&fs.point)),
        source => text!("{} at {}", value(source), value(&fs.point)),
    };
    let some = Text::join(mounts.iter().take(3).map(one), ", or ");
    if some.is_empty() { some } else { text!(" ({})", some) }
}

fn article(name: &str) -> &'static str {
    if name.starts_with('N') { "an" } else { "a" }
}

fn is_local(fs: &str) -> bool {
    !fs.starts_with("fuse") && !fs.starts_with("nfs") && !matches!(fs, "cifs" | "smb3" | "ceph")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(stack: &[&str], file_systems: Vec<FileSystem>) -> Look {
        let stack = stack.iter().map(|&frame| frame.to_owned()).collect();
        Look { stack, file_systems, ..Look::default() }
    }

    fn look_at(file_systems: Vec<FileSystem>) -> Look {
        look(&["request_wait_answer"], file_systems)
    }

    fn mount(fs_type: &str, source: &str, point: &str, minor: u32) -> FileSystem {
        FileSystem {
            fs_type: fs_type.into(),
            source: source.into(),
            point: point.into(),
            elsewhere: false,
            minor,
            waiting: None,
            servers: Vec::new(),
            sure: false,
        }
    }

    const TASK: TaskKey = TaskKey { pid: 812, tid: 813, start: 4711 };

    fn out(cause: &Cause<'_>) -> String {
        let steps: Vec<String> = cause.way_out(&TASK).iter().map(Step::line).collect();
        steps.join("\n")
    }

    #[test]
    fn a_fuse_server_is_named_with_its_connection() {
        let mut fuse = mount("fuse.sshfs", "me@there:/", "/mnt/it's", 52);
        fuse.waiting = Some(3);
        fuse.servers = vec![Process { pid: 71, comm: "sshfs".into() }];
        fuse.sure = true;
        let idle = FileSystem { waiting: Some(0), ..mount("fuse.x", "x", "/mnt/x", 53) };
        let look = look(&["request_wait_answer", "__fuse_simple_request"], vec![idle, fuse]);
        let cause = Cause::of(&look);
        let text = cause.text().unwrap().to_string();
        assert!(text.contains("connection 52 (3 unanswered) behind \"/mnt/it\\x27s\""), "{text}");
        assert!(text.contains("pid 71 (\"sshfs\") should answer"), "{text}");
        let out = out(&cause);
        let abort = "grep -qE '[)] [A-Za-z] (-?[0-9]+ ){18}4711 ' /proc/812/task/813/stat && \
                     grep -q '[1-9]' /sys/fs/fuse/connections/52/waiting && \
                     echo 1 > /sys/fs/fuse/connections/52/abort";
        assert!(out.contains(abort), "{out}");
        // No command writes to control files that are not mounted.
        let unseen = FileSystem { waiting: None, ..mount("fuse.x", "x", "/mnt/x", 54) };
        let look = look_at(vec![unseen]);
        let steps = Cause::of(&look).way_out(&TASK);
        assert!(steps.iter().all(|step| step.command.is_none()), "{steps:?}");
        assert!(steps[1].line().contains("54/abort") && steps[1].line().contains("fusectl"));
    }

    #[test]
    fn a_fuse_server_that_is_not_sure_is_not_told_as_if_it_were() {
        let mut fuse = mount("fuse.sshfs", "", "/mnt", 52);
        fuse.servers = vec![Process { pid: 71, comm: "sshfs".into() }];
        let look = look_at(vec![fuse]);
        let cause = Cause::of(&look);
        let (text, out) = (cause.text().unwrap().to_string(), out(&cause));
        assert!(text.ends_with(", which perhaps pid 71 (\"sshfs\") should answer"), "{text}");
        assert!(out.contains("Make its server, perhaps pid 71 (\"sshfs\"), answer"), "{out}");
    }

    #[test]
    fn of_several_fuse_connections_none_is_blamed_without_proof() {
        let mounts = vec![mount("fuse", "a", "/a", 52), mount("fuse", "b", "/b", 53)];
        let look = look(&["request_wait_answer"], mounts);
        let cause = Cause::of(&look);
        assert_eq!(cause.text().unwrap().as_str(), "it waits for a FUSE server");
        let out = out(&cause);
        assert!(!out.contains("echo 1 >") && out.contains("52 at \"/a\""), "{out}");
    }

    #[test]
    fn an_nfs_wait_names_mount_and_server() {
        let nfs = mount("nfs4", "10.9.0.4:/data", "/mnt/my data", 60);
        let stack =
            ["folio_wait_bit_common", "nfs_wb_all", "nfs_file_flush", "filp_close", "do_exit"];
        let look = look(&stack, vec![nfs, mount("ext4", "/dev/sda1", "/", 1)]);
        let cause = Cause::of(&look);
        let text = cause.text().unwrap().to_string();
        assert!(text.contains("an NFS server (\"10.9.0.4:/data\" at \"/mnt/my data\")"), "{text}");
        let out = out(&cause);
        let fail = "/proc/812/task/813/stat && umount -i -c -f -N 812 '/mnt/my data'";
        assert!(out.contains(fail), "{out}");
        assert!(out.contains("reboot"), "{out}");
    }

    #[test]
    fn no_command_is_given_for_a_mount_point_that_was_seen_from_elsewhere() {
        let nfs = FileSystem { elsewhere: true, ..mount("nfs4", "10.9.0.4:/data", "/", 60) };
        let look = look(&["nfs_wb_all"], vec![nfs]);
        let out = out(&Cause::of(&look));
        assert!(out.contains("10.9.0.4:/data") && !out.contains("umount"), "{out}");
    }

    #[test]
    fn each_known_stack_has_its_cause() {
        let is = |stack: &[&str], text: &str| {
            let look = look(stack, vec![mount("ext4", "/dev/sda1", "/", 1)]);
            let told = Cause::of(&look).text().unwrap_or_default().to_string();
            assert!(told.contains(text) && told.is_empty() == text.is_empty(), "{stack:?}: {told}");
        };
        is(&["zap_pid_ns_processes", "do_exit"], "pid namespace");
        is(&["__sb_start_write", "vfs_write"], "frozen file system");
        is(&["percpu_rwsem_wait", "vfs_write"], "frozen file system");
        is(&["io_schedule", "folio_wait_bit", "ext4_writepages"], "block device");
        is(&["__mutex_lock", "rtnl_lock", "unregister_netdev"], "network lock");
        is(&["smb2_close", "cifs_close"], "CIFS");
        is(&["do_wait", "kernel_wait4"], "");
        is(&[], "");
        let dumping = Look { core_dumping: true, ..Look::default() };
        assert_eq!(Cause::of(&dumping), Cause::CoreDump);
    }
}
