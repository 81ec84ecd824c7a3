//! Which files of a process wait for its `exec_update_lock`, and whether the process may hold that lock now.
//!
//! `execve` takes the lock when it replaces the memory (`exec_mmap`, fs/exec.c) and releases it in `setup_new_exec`. In
//! between it releases the old memory, which waits for asynchronous I/O (`exit_aio` in `mmput`, fs/aio.c); and before
//! "exec: `do_close_on_exec()` before taking `exec_update_lock`" (6.1.189, 6.12.111) it closes files, which waits for
//! the server of a file system (`fuse_flush`). Readers wait as long as it does:
//!
//! - of `stack` (`lock_trace`, fs/proc/base.c) and of an fd by `pidfd_getfd` (`__pidfd_fget`, kernel/pid.c) in any
//!   case;
//! - of `stat`, `wchan` and of the links `ns/…`, `fd/…`, `exe`, `cwd` and `root` since "proc: protect
//!   `ptrace_may_access()` with `exec_update_lock`" (5.10.261, 6.1.178, 6.12.97).
//!
//! `status`, `comm`, `cgroup`, `mountinfo`, `fdinfo/…` and the lists of `task` and `fd` do not wait.

use std::path::Path;

/// Maximum number of bytes read of a `status`: more than the longest one has. The fields that matter follow the groups,
/// of which whoever may call `setgroups` has up to 65,536, each up to eleven bytes long (`NGROUPS_MAX`, `task_state` in
/// fs/proc/array.c, 6.12).
pub(crate) const STATUS: usize = 1 << 20;

/// Which readers wait for the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waits {
    /// Only readers of what a process is doing.
    Tracer,
    /// Every reader for which the kernel checks the access.
    Reader,
}

/// Whether readers of this file wait for the lock, and which. `file`: its path below the process's directory.
pub(super) fn waits(file: &str) -> Option<Waits> {
    let own = match file.strip_prefix("task/").and_then(|rest| rest.split_once('/')) {
        Some((_, own)) => own,
        None => file,
    };
    match own.split('/').next()? {
        "stack" | "pidfd_getfd" => Some(Waits::Tracer),
        "stat" | "wchan" | "exe" | "cwd" | "root" => Some(Waits::Reader),
        // The lists do not wait.
        "ns" | "fd" if own.contains('/') => Some(Waits::Reader),
        _ => None,
    }
}

/// Whether a process may hold the lock: it has memory, but no program in it yet.
pub(super) fn is_under_way(pid: u32) -> bool {
    shows_no_program(&Path::new("/proc").join(pid.to_string()).join("status"))
}

fn shows_no_program(status: &Path) -> bool {
    let read = crate::bounded::read(status, STATUS);
    // In what was cut off there may be anything.
    read.is_ok_and(|read| read.truncated || has_no_program(&String::from_utf8_lossy(&read.bytes)))
}

/// `start_code` and `end_code` are set after `setup_new_exec` (`load_elf_binary`, fs/binfmt_elf.c). A kernel thread and
/// a task that has released its memory show no such lines.
fn has_no_program(status: &str) -> bool {
    let size = |key| {
        let value = status.lines().find_map(|line| line.strip_prefix(key))?;
        value.trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    size("VmSize:").is_some() && size("VmExe:") == Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_whichever_task_they_are_of() {
        for file in ["stat", "task/7/stat", "wchan", "ns/net", "task/7/ns/net", "fd/3", "root/run"]
        {
            assert_eq!(waits(file), Some(Waits::Reader), "{file}");
        }
        for file in ["stack", "task/7/stack", "pidfd_getfd"] {
            assert_eq!(waits(file), Some(Waits::Tracer), "{file}");
        }
        for file in ["status", "task/7/status", "fd", "task", "fdinfo/3", "mountinfo", "cgroup"] {
            assert_eq!(waits(file), None, "{file}");
        }
    }

    #[test]
    fn a_process_without_a_program_is_in_execve() {
        let status = |size, exe| format!("Name:\tx\nVmSize:\t{size} kB\nVmExe:\t{exe} kB\n");
        assert!(has_no_program(&status("       4", "       0")));
        assert!(!has_no_program(&status("    1188", "     488")));
        assert!(!has_no_program("Name:\tkthreadd\nState:\tS (sleeping)\n"));
        assert!(!is_under_way(std::process::id()));
    }

    #[test]
    fn many_groups_hide_no_execve() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |groups, exe| {
            let groups = "4294967294 ".repeat(groups);
            let text = format!("Groups:\t{groups}\nVmSize:\t4 kB\nVmExe:\t{exe} kB\n");
            std::fs::write(file.path(), text).unwrap();
            shows_no_program(file.path())
        };
        assert!(read(65_536, 0), "the most that a process can have");
        assert!(!read(65_536, 488));
        assert!(read(100_000, 488), "of what was cut off it is unknown");
    }
}
