//! Runs commands; every error names the command.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::interrupt;

/// A command from its words.
pub(crate) fn command(words: &[&str]) -> Command {
    let (program, args) = words.split_first().unwrap_or((&"true", &[]));
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs a command with its output shown.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| shown(command))?;
    check(command, status)
}

/// Runs a command and returns its stdout; the error contains its stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| shown(command))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("{}: {}: {}", shown(command), out.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Whether a command runs and succeeds; its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs a command and calls `each` with each line of its stdout as it arrives.
pub(crate) fn lines(command: &mut Command, each: impl FnMut(&str)) -> Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| shown(command))?;
    if let Some(stdout) = child.stdout.take() {
        each_line(stdout, each)?;
    }
    child.wait().with_context(|| shown(command))
}

/// As [`lines`], and terminates the command after it has printed no sign of life for this long: no line for which
/// `each` returns true. The command must then close its output.
pub(crate) fn lines_within(
    command: &mut Command,
    silence: Duration,
    mut each: impl FnMut(&str) -> bool,
) -> Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| shown(command))?;
    let (sender, lines) = mpsc::channel();
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || -> std::io::Result<()> {
        let Some(stdout) = stdout else { return Ok(()) };
        each_line(stdout, |line| {
            // The receiver is dropped only after an error.
            let _ = sender.send(line.to_owned());
        })
    });
    let mut alive = Instant::now();
    loop {
        match lines.recv_timeout(silence.saturating_sub(alive.elapsed())) {
            Ok(line) if each(&line) => alive = Instant::now(),
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                interrupt::terminate(&child);
                alive = Instant::now();
            }
        }
    }
    let status = child.wait().with_context(|| shown(command))?;
    reader.join().unwrap_or(Ok(()))?;
    Ok(status)
}

fn each_line(stdout: ChildStdout, mut each: impl FnMut(&str)) -> std::io::Result<()> {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    // Read bytes, not text: a kernel's console may print anything.
    while reader.read_until(b'\n', &mut line)? > 0 {
        each(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok(())
}

fn check(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("{}: {status}", shown(command));
    }
    Ok(())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Makes a program. The shell writes it, not this process: a child that another test has forked meanwhile would have
/// the file open for writing, and then it cannot be executed (`ETXTBSY`).
#[cfg(test)]
pub(crate) fn make_program(path: &std::path::Path, text: &str) {
    let script = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    run(Command::new("/bin/sh").args(["-c", script]).arg(path).arg(text)).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_falls_silent_is_ended() {
        let mut said = Vec::new();
        let mut endless = command(&["sh", "-c", "echo one; echo two; exec sleep 600"]);
        let status = lines_within(&mut endless, Duration::from_millis(300), |line| {
            said.push(line.to_owned());
            true
        });
        assert!(!status.unwrap().success());
        assert_eq!(said, ["one", "two"]);
    }

    #[test]
    fn a_command_that_prints_no_sign_of_life_is_ended() {
        // It ends by itself after a time, so that the test ends too where this fails.
        let script = "echo one; for _ in $(seq 200); do echo noise; sleep 0.05; done";
        let mut noisy = command(&["sh", "-c", script]);
        let status = lines_within(&mut noisy, Duration::from_millis(500), |line| line != "noise");
        assert!(!status.unwrap().success());
    }
}
