//! Commands that succeed only while something is as it was seen. They precede `&&`.
//!
//! The kernel reuses pids after a while, and inodes of namespaces at once. Therefore each is compared with what else
//! was seen of it, immediately before it is used.

use super::command::Command;
use super::text::value;
use crate::fact::TaskKey;

/// Succeeds if no task or thread has the netns whose link reads `$1`.
const UNUSED: &str = "x=$(ls -l /proc/[0-9]*/task/[0-9]*/ns/net 2>/dev/null); \
                      case $x in \"\"|*\"$1\"*) exit 1; esac";

/// The beginning of a finding in JSON, from its id to its status. Between them are only names of ours, so that no
/// text of others can match. If a source that the finding rests on does not answer, `unjudged` follows the status and
/// the pattern does not match: then it is unknown whether the finding still holds, and nothing is changed.
const OPEN: &str = "\"id\":\"{}\",[a-z\":,-]*\"status\":\"(firing|pending)\",\"subject\"";

/// Succeeds if the daemon reports that the finding with this id is still open; fails without a daemon. Commands that
/// have no other precondition follow it. Another finding about the same IP does not count; a consequence does.
#[must_use]
pub(crate) fn is_still_found(id: &str) -> Command {
    asked(id).pipe(Command::new("grep").own("-qE").word(OPEN, &[value(id)]))
}

/// Like [`is_still_found`]; in addition this mount must still be among those of the finding. A path with quotes or
/// backslashes is not found, because JSON escapes it.
#[must_use]
pub(crate) fn is_still_found_at(id: &str, path: &str) -> Command {
    let open = Command::new("grep").own("-E").word(OPEN, &[value(id)]);
    let mount = Command::new("grep").own("-qF").word("\"mount_path\":\"{}\"", &[value(path)]);
    asked(id).pipe(open).pipe(mount)
}

fn asked(id: &str) -> Command {
    Command::new("ipwatch").owns(&["query", "findings"]).value(id).owns(&["--all", "-o", "jsonl"])
}

/// Succeeds if a device in a netns, which `enter` enters, still has this index.
#[must_use]
pub(crate) fn has_index_in(enter: Command, device: &str, index: u32) -> Command {
    let show = enter.owns(&["ip", "-o", "link", "show", "dev"]).value(device);
    show.pipe(Command::new("grep").own("-q").word("^{}: ", &[index.into()]))
}

/// Succeeds if this thread still exists: compares the start time, field 22 of its stat (`do_task_stat`,
/// fs/proc/array.c). The second field is its name, which may contain anything, but has at most 15 bytes: too few to
/// imitate the fields that follow.
#[must_use]
pub(crate) fn is_same_task(task: &TaskKey) -> Command {
    let grep = Command::new("grep")
        .own("-qE")
        .word("[)] [A-Za-z] (-?[0-9]+ ){18}{} ", &[task.start.into()]);
    grep.word("/proc/{}/task/{}/stat", &[task.pid.into(), task.tid.into()])
}

/// Succeeds if a process is in this mount namespace.
#[must_use]
pub(crate) fn is_in_mount_ns(pid: u32, mount_ns: u64) -> Command {
    let link = Command::new("readlink").word("/proc/{}/ns/mnt", &[pid.into()]);
    link.pipe(Command::new("grep").own("-qxF").word("mnt:[{}]", &[mount_ns.into()]))
}

/// Succeeds if this netns is mounted at this path, as seen by a process. The kernel may have reused the inode: a new
/// netns with the same inode, at the same path and without tasks ([`is_unused`]), cannot be told apart, but runtimes
/// never use a path twice. The kernel escapes blanks and backslashes in mountinfo (`show_mountinfo`,
/// fs/proc_namespace.c): for such a path there is no command.
#[must_use]
pub(crate) fn is_mounted(pid: u32, inode: u32, path: &str) -> Option<Command> {
    if path.contains([' ', '\\', '#']) {
        return None;
    }
    let line = [inode.into(), value(path)];
    let grep = Command::new("grep").own("-qF").word(" net:[{}] {} ", &line);
    Some(grep.word("/proc/{}/mountinfo", &[pid.into()]))
}

/// Succeeds if no task is in this netns.
#[must_use]
pub(crate) fn is_unused(inode: u32) -> Command {
    let script = Command::new("sh").own("-c").own(UNUSED).own("sh");
    script.word("net:[{}]", &[inode.into()])
}

/// Succeeds if a device of the node still has this index.
#[must_use]
pub(crate) fn has_index(device: &str, index: u32) -> Command {
    let grep = Command::new("grep").own("-qx").number(index);
    grep.place("/sys/class/net/{}/ifindex", &[value(device)])
}
