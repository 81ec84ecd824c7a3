//! A running `ipwatch record`: for tests of it, and beside each daemon if a run is to be recorded (`cargo xtask
//! recordings`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::daemon;
use crate::poll::{eventually, until};
use crate::sys;

/// Variable with the directory for recordings of what each daemon sees.
const WANTED: &str = "IPWATCH_TEST_RECORDINGS";

/// A recorder. Stopped when dropped.
#[derive(Debug)]
pub struct Recorder(Child);

impl Recorder {
    /// Starts a recorder with this configuration file, writing to `out`, and returns when its sources have been
    /// asked: later events are recorded as they happen, earlier ones are in the first snapshot.
    ///
    /// # Panics
    /// The recorder cannot be started.
    #[must_use]
    pub fn start(config: &Path, out: &Path) -> Self {
        let mut command = Command::new(daemon::binary());
        command.args(["record", "--config"]).arg(config);
        Self::start_by(command, out)
    }

    fn start_by(mut command: Command, out: &Path) -> Self {
        let recorder = command.arg("--out").arg(out).stdin(Stdio::null()).spawn();
        let recorder = Self(recorder.expect("start the recorder"));
        until("the recording is begun", 10, || out.exists());
        recorder
    }

    /// A recorder beside the daemon that this command starts, if requested: in the same place and with the same
    /// configuration.
    pub(crate) fn beside(daemon: &Command) -> Option<Self> {
        let dir = PathBuf::from(std::env::var_os(WANTED)?);
        let args: Vec<&OsStr> = daemon.get_args().collect();
        let at = args.windows(2).position(|pair| pair == ["run", "--config"])?;
        let mut command = Command::new(daemon.get_program());
        command.args(&args[..at]).args(["record", "--config"]).arg(args.get(at + 2)?);
        let taken = std::fs::read_dir(&dir).map_or(0, Iterator::count);
        let out = dir.join(format!("{}-{taken}.jsonl", std::process::id()));
        Some(Self::start_by(command, &out))
    }

    /// Stops the recorder as Ctrl-C does.
    ///
    /// # Panics
    /// The recorder does not end, or fails.
    pub fn stop(mut self) {
        sys::kill(self.0.id(), libc::SIGINT).expect("interrupt the recorder");
        let status =
            eventually("the recorder stops", 15, || self.0.try_wait().expect("wait for it"));
        assert!(status.success(), "{status}");
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = sys::kill(self.0.id(), libc::SIGINT);
            let _ = self.0.wait();
        }
    }
}
