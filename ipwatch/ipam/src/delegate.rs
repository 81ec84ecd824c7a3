//! The delegate: found as libcni finds a plugin, and run with a timeout and a limit of its output.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::cni::{Code, Failure};
use crate::time::Deadline;

/// Longest output that is read, in bytes. A result has about a kilobyte.
const ANSWER: usize = 1 << 20;
/// Timeout of a run for the runtime. A runtime's own timeout is shorter (kubelet's is 2 to 4 minutes); this one is for a runtime without.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// How long to wait for a killed delegate to end.
const GONE: Duration = Duration::from_secs(1);

/// What a delegate answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its exit status.
    pub code: u8,
    /// Its standard output, unchanged.
    pub stdout: Vec<u8>,
}

/// Why a delegate gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// It was not started, so that it has changed nothing.
    #[error("{0}")]
    NotStarted(Failure),
    /// It was killed, did not end in time or wrote too much: it may have done its work or not.
    #[error("{0}")]
    Cut(Failure),
}

impl From<NoAnswer> for Failure {
    fn from(why: NoAnswer) -> Self {
        match why {
            NoAnswer::NotStarted(failure) | NoAnswer::Cut(failure) => failure,
        }
    }
}

impl Answer {
    /// Whether it succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.code == 0
    }
}

/// The program of a plugin: the first file of this name in one of the directories (libcni's `invoke.FindInPath`).
///
/// # Errors
/// The name is invalid, or there is no such file.
pub fn find(name: &str, path: &[PathBuf]) -> Result<PathBuf, Failure> {
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        let msg = format!("ipam.delegate.type is not the name of a plugin: {name:?}");
        return Err(Failure::new(Code::Config, msg));
    }
    let mut candidates = path.iter().map(|dir| dir.join(name));
    candidates.find(|file| file.is_file()).ok_or_else(|| {
        let msg = format!("failed to find plugin {name:?} in path {path:?}");
        Failure::new(Code::Config, msg)
    })
}

/// Runs a delegate. It inherits the standard error and the environment, in which `set` is changed.
///
/// # Errors
/// [`NoAnswer`]
pub fn run(program: &Path, set: &[(&str, &OsStr)], input: &[u8]) -> Result<Answer, NoAnswer> {
    run_within(program, set, input, PATIENCE)
}

/// [`run`] with another timeout.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_within(
    program: &Path,
    set: &[(&str, &OsStr)],
    input: &[u8],
    patience: Duration,
) -> Result<Answer, NoAnswer> {
    let failed = |what: String| Failure::new(Code::Other, format!("{}: {what}", program.display()));
    let mut command = Command::new(program);
    command.envs(set.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| NoAnswer::NotStarted(failed(format!("cannot be run: {error}"))))?;
    let deadline = Deadline::within(patience);
    match converse(&mut child, input, deadline) {
        Ok((status, stdout)) => match status.code() {
            Some(code) => Ok(Answer { code: u8::try_from(code).unwrap_or(1), stdout }),
            None => {
                let signal = status.signal().unwrap_or_default();
                Err(NoAnswer::Cut(failed(format!("was killed by signal {signal}"))))
            }
        },
        Err(error) => {
            let _ = child.kill();
            reap(&mut child, GONE);
            Err(NoAnswer::Cut(failed(error.to_string())))
        }
    }
}

/// Waits at most `limit` for a killed child, which may stay in an uninterruptible sleep.
fn reap(child: &mut Child, limit: Duration) {
    let deadline = Deadline::within(limit);
    while matches!(child.try_wait(), Ok(None)) && deadline.left().is_some() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes the input and reads the output until the child has ended.
fn converse(
    child: &mut Child,
    input: &[u8],
    deadline: Deadline,
) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut stdin = child.stdin.take();
    let mut stdout = child.stdout.take();
    if let (Some(stdin), Some(stdout)) = (&stdin, &stdout) {
        ioctl_fionbio(stdin, true)?;
        ioctl_fionbio(stdout, true)?;
    }
    // The end of the child counts, not the end of its output: a process that it started may keep the pipe open.
    let ended: Option<OwnedFd> = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let (mut rest, mut said) = (input, Vec::new());
    loop {
        if let Some(status) = child.try_wait()? {
            if let Some(stdout) = &mut stdout {
                drain(stdout, &mut said)?;
            }
            return Ok((status, said));
        }
        let left = deadline
            .left()
            .ok_or_else(|| io::Error::other("does not end in time and was killed"))?;
        let mut fds = Vec::with_capacity(3);
        fds.extend(ended.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(stdout.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(stdin.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
        // Without a pidfd (Linux before 5.3) its end is polled for.
        let pause = if ended.is_some() { left } else { left.min(Duration::from_millis(5)) };
        wait(&mut fds, pause)?;
        if let Some(pipe) = &mut stdin {
            match pipe.write(rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                // The child may close its standard input without reading all of it.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => rest = &[],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if rest.is_empty() {
                stdin = None;
            }
        }
        if let Some(pipe) = &mut stdout
            && drain(pipe, &mut said)?
        {
            stdout = None;
        }
    }
}

/// Reads what is available. Returns whether that was the end of the output.
fn drain(pipe: &mut impl Read, said: &mut Vec<u8>) -> io::Result<bool> {
    let mut part = [0; 4096];
    loop {
        match pipe.read(&mut part) {
            Ok(0) => return Ok(true),
            Ok(length) => said.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if said.len() > ANSWER {
            return Err(io::Error::other("writes more than a mebibyte"));
        }
    }
}

/// Waits until one of them is ready or the time is over.
pub(crate) fn wait(fds: &mut [PollFd<'_>], pause: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(pause).ok();
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one descriptor is ready or the time is over.
pub(crate) fn ready(fd: &impl AsFd, flags: PollFlags, pause: Duration) -> io::Result<()> {
    wait(&mut [PollFd::new(fd, flags)], pause)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::testing::script;

    #[test]
    fn a_name_with_a_separator_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "plugin", "exit 0");
        let path = [PathBuf::from("/nowhere"), dir.path().to_owned()];
        assert_eq!(find("plugin", &path).unwrap(), program);
        for wrong in ["", "../plugin", "a/plugin", ".", "..", "other"] {
            assert_eq!(find(wrong, &path).unwrap_err().code, Code::Config, "{wrong}");
        }
    }

    #[test]
    fn input_output_and_status_are_passed_through() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), "plugin", "cat; printf %s \"$CNI_COMMAND\"; exit 7");
        // More than a pipe holds.
        let input = vec![b'x'; 300_000];
        let answer = run(&program, &[("CNI_COMMAND", OsStr::new("ADD"))], &input).unwrap();
        assert_eq!(answer.code, 7);
        assert_eq!(answer.stdout.len(), input.len() + 3);
        assert!(answer.stdout.ends_with(b"ADD"));
        // One that reads nothing.
        let deaf = script(dir.path(), "deaf", "exec 0<&-; echo '{}'");
        assert_eq!(run(&deaf, &[], &input).unwrap().stdout, b"{}\n");
    }

    #[test]
    fn one_that_does_not_die_is_not_waited_for() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let began = crate::time::now();
        reap(&mut child, Duration::from_millis(50));
        assert!(crate::time::now() - began < Duration::from_secs(10));
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        reap(&mut child, Duration::from_secs(10));
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn it_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let slow = script(dir.path(), "slow", "exec sleep 600");
        let error = run_within(&slow, &[], b"", Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("does not end in time"), "{error}");
        let loud = script(dir.path(), "loud", "head -c 3000000 /dev/zero");
        let error = run(&loud, &[], b"").unwrap_err();
        assert!(error.to_string().contains("more than a mebibyte"), "{error}");
        let killed = script(dir.path(), "killed", "kill -9 $$");
        let error = run(&killed, &[], b"").unwrap_err();
        assert!(error.to_string().contains("signal 9"), "{error}");
        // A process that it leaves behind has the pipe, and is not waited for.
        let parent = script(dir.path(), "parent", "sleep 5 & echo '{}'");
        let began = crate::time::now();
        assert_eq!(run(&parent, &[], b"").unwrap().stdout, b"{}\n");
        assert!(crate::time::now() - began < Duration::from_secs(4));
    }
}
