//! Compares and removes files of host-local under the store's own lock (`DIR/lock`, on which the plugin uses `flock`
//! for each ADD and DEL).

use super::command::Command;

/// Removes the file `$1` if its first line is the container `$2`: host-local ends that line with `\r\n`.
const FREE: &str = "[ \"$(head -n 1 -- \"$1\" | tr -d \"\\r\")\" = \"$2\" ] && rm -- \"$1\"";
/// Removes the file `$1` if it is empty.
pub(crate) const FREE_EMPTY: &str = "[ -f \"$1\" ] && [ ! -s \"$1\" ] && rm -- \"$1\"";

/// Removes a reservation that still names this container.
#[must_use]
pub(crate) fn free(path: &str, container: &str) -> Option<Command> {
    let lock = format!("{}/lock", path.rsplit_once('/')?.0);
    let flock = Command::new("flock").path(&lock).owns(&["sh", "-c", FREE, "sh"]);
    Some(flock.path(path).value(container))
}

/// Removes a reservation that is still empty.
#[must_use]
pub(crate) fn free_empty(path: &str) -> Option<Command> {
    let lock = format!("{}/lock", path.rsplit_once('/')?.0);
    Some(Command::new("flock").path(&lock).owns(&["sh", "-c", FREE_EMPTY, "sh"]).path(path))
}
