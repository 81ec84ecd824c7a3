//! Commands that succeed only while something is still as it was seen. They stand before `&&`.
//!
//! A pid is given to another process sooner or later, and the number of a namespace at once. So each is compared with
//! what else was seen of it, right before it is used.

use super::command::Command;
use super::text::value;
use crate::fact::TaskKey;

/// Succeeds if nothing has the netns whose link reads `$1`: no task, and no thread either.
const UNUSED: &str = "x=$(ls -l /proc/[0-9]*/task/[0-9]*/ns/net 2>/dev/null); \
                      case $x in \"\"|*\"$1\"*) exit 1; esac";

/// The beginning of a finding in JSON, from its id to its status. Between them there are only names of ours, so that
/// nothing that somebody else has called something is mistaken for it. After the status stands `unjudged` where a source
/// that the finding rests on does not answer: then it is not known whether it is still so, and nothing is changed.
const OPEN: &str = "\"id\":\"{}\",[a-z\":,-]*\"status\":\"(firing|pending)\",\"subject\"";

/// The finding with this id is still open, by the daemon's own word: without a daemon, nothing is changed. What carries
/// no other proof that it is not too late stands behind this. Another finding about the same IP does not count; one that
/// is a consequence does.
#[must_use]
pub(crate) fn is_still_found(id: &str) -> Command {
    asked(id).pipe(Command::new("grep").own("-qE").word(OPEN, &[value(id)]))
}

/// The same, and this mount is still among those that the finding is about. JSON writes a path with quotes or
/// backslashes in another way: such a path is not found.
#[must_use]
pub(crate) fn is_still_found_at(id: &str, path: &str) -> Command {
    let open = Command::new("grep").own("-E").word(OPEN, &[value(id)]);
    let mount = Command::new("grep").own("-qF").word("\"mount_path\":\"{}\"", &[value(path)]);
    asked(id).pipe(open).pipe(mount)
}

fn asked(id: &str) -> Command {
    Command::new("ipwatch").owns(&["query", "findings"]).value(id).owns(&["--all", "-o", "jsonl"])
}

/// A device of a netns, which `enter` enters, still has this index.
#[must_use]
pub(crate) fn has_index_in(enter: Command, device: &str, index: u32) -> Command {
    let show = enter.owns(&["ip", "-o", "link", "show", "dev"]).value(device);
    show.pipe(Command::new("grep").own("-q").word("^{}: ", &[index.into()]))
}

/// This very thread is still there: the start time is field 22 of its stat (`do_task_stat`, fs/proc/array.c). The
/// second field is its name, which holds anything, in 15 bytes: too few to look like what follows it.
#[must_use]
pub(crate) fn is_same_task(task: &TaskKey) -> Command {
    let grep = Command::new("grep")
        .own("-qE")
        .word("[)] [A-Za-z] (-?[0-9]+ ){18}{} ", &[task.start.into()]);
    grep.word("/proc/{}/task/{}/stat", &[task.pid.into(), task.tid.into()])
}

/// A process is in this mount namespace.
#[must_use]
pub(crate) fn is_in_mount_ns(pid: u32, mount_ns: u64) -> Command {
    let link = Command::new("readlink").word("/proc/{}/ns/mnt", &[pid.into()]);
    link.pipe(Command::new("grep").own("-qxF").word("mnt:[{}]", &[mount_ns.into()]))
}

/// This netns is mounted at this path where a process is. Its inode may be another's by now, for the kernel hands it out
/// again: of the same number, at the same path, and with nobody in it ([`is_unused`]), one does not tell them apart.
/// Runtimes never use a path twice. The kernel writes a mountinfo with blanks and
/// backslashes escaped (`show_mountinfo`, fs/proc_namespace.c): such a path is not looked for.
#[must_use]
pub(crate) fn is_mounted(pid: u32, inode: u32, path: &str) -> Option<Command> {
    if path.contains([' ', '\\', '#']) {
        return None;
    }
    let line = [inode.into(), value(path)];
    let grep = Command::new("grep").own("-qF").word(" net:[{}] {} ", &line);
    Some(grep.word("/proc/{}/mountinfo", &[pid.into()]))
}

/// No task is in this netns.
#[must_use]
pub(crate) fn is_unused(inode: u32) -> Command {
    let script = Command::new("sh").own("-c").own(UNUSED).own("sh");
    script.word("net:[{}]", &[inode.into()])
}

/// A device of the node still has this index.
#[must_use]
pub(crate) fn has_index(device: &str, index: u32) -> Command {
    let grep = Command::new("grep").own("-qx").number(index);
    grep.place("/sys/class/net/{}/ifindex", &[value(device)])
}
