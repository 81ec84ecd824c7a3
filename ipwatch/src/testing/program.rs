//! Programs that a test makes and runs. Another process writes them: a child that another test has forked meanwhile
//! would have this one's file open until it executes, and what is open for writing cannot be executed (`ETXTBSY`,
//! `exe_file_deny_write_access`, 6.18).

use std::path::Path;
use std::process::Command;

/// Makes a script.
pub(crate) fn script(path: &Path, text: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    run(Command::new("/bin/sh").args(["-c", write]).arg(path).arg(text));
}

/// Copies a program of the system.
pub(crate) fn copy(of: &str, path: &Path) {
    run(Command::new("/bin/cp").arg(of).arg(path));
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}
