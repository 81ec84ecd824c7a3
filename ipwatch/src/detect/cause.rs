//! What a stuck task waits for, named from its kernel stack, and what frees it.
//!
//! The functions named here are those that appear on the stacks of Linux 6.1 to 6.18. A stack that is not
//! known is quoted, never guessed at.

use crate::fact::{FileSystem, Look, Process};

/// Frames of the stack that are quoted.
pub(super) const FRAMES: usize = 8;

/// Why a task does not get out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause<'a> {
    /// A FUSE server does not answer. The connections it may be, the likeliest first.
    Fuse(Vec<&'a FileSystem>),
    /// A server of a network file system does not answer.
    Network {
        /// `NFS`, `CIFS`, `Ceph`.
        name: &'static str,
        /// The mounts it may be.
        mounts: Vec<&'a FileSystem>,
    },
    /// A file system is frozen (`fsfreeze`, a snapshot).
    FrozenFileSystem(Vec<&'a FileSystem>),
    /// A block device does not answer.
    Block(Vec<&'a FileSystem>),
    /// It ends a pid namespace and waits for the last task in it.
    PidNamespace,
    /// Its core is being dumped.
    CoreDump,
    /// It waits for the kernel's network lock.
    Rtnl,
    /// Not known.
    Other,
}

/// Groups of kernel functions, the more telling first.
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
                // A server that waits for work waits for nobody's answer.
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

    /// What it waits for, in one line.
    pub(super) fn text(&self) -> Option<String> {
        Some(match self {
            Cause::Fuse(mounts) => match fuse_culprit(mounts) {
                Some(fs) => format!(
                    "it waits for a FUSE server: connection {}{} behind {}{}",
                    fs.minor,
                    fs.waiting.map(|n| format!(" ({n} unanswered)")).unwrap_or_default(),
                    fs.point,
                    servers(fs),
                ),
                None => "it waits for a FUSE server".to_owned(),
            },
            Cause::Network { name, mounts } => {
                format!("it waits for {} {name} server{}", article(name), at(mounts))
            }
            Cause::FrozenFileSystem(mounts) => {
                format!("it waits for a frozen file system to thaw{}", at(mounts))
            }
            Cause::Block(mounts) => format!("it waits for a block device{}", at(mounts)),
            Cause::PidNamespace => {
                "it ends its pid namespace and waits for the last task in it".to_owned()
            }
            Cause::CoreDump => "its core is being dumped".to_owned(),
            Cause::Rtnl => "it waits for the kernel's network lock (rtnl)".to_owned(),
            Cause::Other => return None,
        })
    }

    /// What frees it: lines for a person, the first one first.
    pub(super) fn way_out(&self, pid: u32) -> Vec<String> {
        match self {
            Cause::Fuse(mounts) => fuse_way_out(mounts),
            Cause::Network { name: "NFS", mounts } => {
                let mut lines = vec![format!(
                    "Bring the NFS server back{}: the process then exits by itself.",
                    at(mounts)
                )];
                lines.extend(only(mounts).map(|fs| {
                    format!(
                        "If the server is gone for good: umount -N {pid} -f {} \
                         fails its pending requests. umount -l frees nothing.",
                        quoted(&fs.point)
                    )
                }));
                lines.push(
                    "If neither helps, the wait cannot be ended: drain and reboot the node."
                        .to_owned(),
                );
                lines
            }
            Cause::Network { name, mounts } => vec![
                format!("Bring the {name} server back{}.", at(mounts)),
                "If it is gone for good: drain and reboot the node.".to_owned(),
            ],
            Cause::FrozenFileSystem(mounts) => {
                let one = only(mounts).map_or("MOUNT".to_owned(), |fs| quoted(&fs.point));
                vec![format!(
                    "Thaw the one that is frozen (a snapshot may have been left half done): nsenter \
                     --mount=/proc/{pid}/ns/mnt fsfreeze --unfreeze {one}"
                )]
            }
            Cause::Block(mounts) => vec![
                format!(
                    "Bring the device back{}; the kernel log says what is wrong: dmesg",
                    at(mounts)
                ),
                "If it is lost for good: drain and reboot the node.".to_owned(),
            ],
            Cause::PidNamespace => {
                vec!["Free the task it waits for: that one is the cause.".to_owned()]
            }
            Cause::CoreDump => {
                vec!["Let the core dump end, or make room where it is written.".to_owned()]
            }
            Cause::Rtnl => vec![
                "Somebody else holds the network lock: find who is stuck in the kernel with \
                 echo w > /proc/sysrq-trigger; dmesg"
                    .to_owned(),
            ],
            Cause::Other => vec![format!("Find out what it waits for: cat /proc/{pid}/stack")],
        }
    }
}

/// The file system, if there is but one that it can be: no command is given for a guess.
fn only<'a>(mounts: &[&'a FileSystem]) -> Option<&'a FileSystem> {
    match mounts {
        [only] => Some(only),
        _ => None,
    }
}

/// The one connection it must be: the only one, or the only one with unanswered requests.
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

fn fuse_way_out(mounts: &[&FileSystem]) -> Vec<String> {
    let abort = |n: &str| format!("echo 1 > /sys/fs/fuse/connections/{n}/abort");
    let Some(fs) = fuse_culprit(mounts) else {
        let mut lines = vec![
            "A FUSE server does not answer. Its connection is one with waiting requests: \
             grep . /sys/fs/fuse/connections/*/waiting"
                .to_owned(),
        ];
        let some = mounts.iter().map(|fs| format!("{} at {}", fs.minor, fs.point));
        let some: Vec<String> = some.take(4).collect();
        if !some.is_empty() {
            lines.push(format!("It can see these: {}.", some.join(", ")));
        }
        lines.push(format!("Bring the server back, or give its requests up: {}", abort("N")));
        return lines;
    };
    let server = match &fs.servers[..] {
        [only] if fs.sure => format!("pid {} ({})", only.pid, only.comm),
        [] => "its server".to_owned(),
        some => format!("its server, which is {}", names(some, " or ")),
    };
    vec![
        format!("Bring {server} back to answer for {}, or", fs.point),
        format!(
            "give its requests up, which ends every process that waits for it: {}",
            abort(&fs.minor.to_string())
        ),
    ]
}

fn servers(fs: &FileSystem) -> String {
    match &fs.servers[..] {
        [] => String::new(),
        some if fs.sure => format!(", which {} should answer", names(some, " and ")),
        some => format!(", which one of {} should answer", names(some, ", ")),
    }
}

fn names(processes: &[Process], between: &str) -> String {
    let one = |process: &Process| format!("pid {} ({})", process.pid, process.comm);
    processes.iter().take(4).map(one).collect::<Vec<_>>().join(between)
}

/// ` (SOURCE at POINT)`, for one mount or a few.
fn at(mounts: &[&FileSystem]) -> String {
    let one = |fs: &&FileSystem| match fs.source.as_str() {
        "" => fs.point.clone(),
        source => format!("{source} at {}", fs.point),
    };
    match mounts.iter().take(3).map(one).collect::<Vec<_>>() {
        none if none.is_empty() => String::new(),
        some => format!(" ({})", some.join(", or ")),
    }
}

fn article(name: &str) -> &'static str {
    if name.starts_with('N') { "an" } else { "a" }
}

/// A path as a shell takes it, for it was chosen by a container.
pub(super) fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@+=,%".contains(c);
    if !path.is_empty() && path.chars().all(plain) {
        return path.to_owned();
    }
    format!("'{}'", path.replace('\'', r"'\''"))
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

    fn mount(fs_type: &str, source: &str, point: &str, minor: u32) -> FileSystem {
        FileSystem {
            fs_type: fs_type.into(),
            source: source.into(),
            point: point.into(),
            minor,
            waiting: None,
            servers: Vec::new(),
            sure: false,
        }
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
        let text = cause.text().unwrap();
        assert!(text.contains("connection 52 (3 unanswered) behind /mnt/it's"), "{text}");
        assert!(text.contains("pid 71 (sshfs) should answer"), "{text}");
        let out = cause.way_out(812).join("\n");
        assert!(out.contains("echo 1 > /sys/fs/fuse/connections/52/abort"), "{out}");
    }

    #[test]
    fn of_several_fuse_connections_none_is_blamed_without_proof() {
        let mounts = vec![mount("fuse", "a", "/a", 52), mount("fuse", "b", "/b", 53)];
        let look = look(&["request_wait_answer"], mounts);
        let cause = Cause::of(&look);
        assert_eq!(cause.text().unwrap(), "it waits for a FUSE server");
        let out = cause.way_out(812).join("\n");
        assert!(out.contains("connections/N/abort") && out.contains("52 at /a"), "{out}");
    }

    #[test]
    fn an_nfs_wait_names_mount_and_server() {
        let nfs = mount("nfs4", "10.9.0.4:/data", "/mnt/my data", 60);
        let stack =
            ["folio_wait_bit_common", "nfs_wb_all", "nfs_file_flush", "filp_close", "do_exit"];
        let look = look(&stack, vec![nfs, mount("ext4", "/dev/sda1", "/", 1)]);
        let cause = Cause::of(&look);
        assert!(cause.text().unwrap().contains("an NFS server (10.9.0.4:/data at /mnt/my data)"));
        let out = cause.way_out(9).join("\n");
        assert!(out.contains("umount -N 9 -f '/mnt/my data'"), "{out}");
        assert!(out.contains("reboot"), "{out}");
    }

    #[test]
    fn each_known_stack_has_its_cause() {
        let is = |stack: &[&str], text: &str| {
            let look = look(stack, vec![mount("ext4", "/dev/sda1", "/", 1)]);
            let told = Cause::of(&look).text().unwrap_or_default();
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

    #[test]
    fn a_hostile_path_stays_one_word_for_a_shell() {
        assert_eq!(quoted("/a/b-c"), "/a/b-c");
        assert_eq!(quoted("/a';reboot'"), r"'/a'\'';reboot'\'''");
        assert_eq!(quoted("/a b$(x)"), "'/a b$(x)'");
    }
}
