//! Starts a daemon with a socket and a state directory in a temporary directory, and stops it.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::{interrupt, shell};

/// A temporary directory, removed when dropped.
pub(crate) struct TemporaryDir(PathBuf);

impl TemporaryDir {
    pub(crate) fn new() -> Result<Self> {
        let dir = shell::output(&mut shell::command(&["mktemp", "-d", "-t", "ipwatch.XXXXXXXX"]))?;
        Ok(Self(dir.trim().into()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running `ipwatch run`.
pub(crate) struct Monitor {
    child: Child,
    ipwatch: PathBuf,
    socket: PathBuf,
    config: PathBuf,
}

impl Monitor {
    /// Starts the daemon with these settings and its log to `log`, and waits for its first answer.
    pub(crate) fn start(ipwatch: &Path, dir: &Path, settings: &str, log: Stdio) -> Result<Self> {
        let socket = dir.join("ipwatch.sock");
        let config = dir.join("ipwatch.toml");
        std::fs::write(&config, settings)?;
        let child = Command::new(ipwatch)
            .args(["run", "--config"])
            .arg(&config)
            .arg("--socket")
            .arg(&socket)
            .arg("--state-dir")
            .arg(dir.join("state"))
            .stdin(Stdio::null())
            .stderr(log)
            // Out of the terminal's foreground process group: on Ctrl-C we stop it ourselves.
            .process_group(0)
            .spawn()
            .context("start the monitor")?;
        let mut monitor = Self { child, ipwatch: ipwatch.to_owned(), socket, config };
        monitor.wait_until_ready()?;
        Ok(monitor)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        for _ in 0..300 {
            if let Some(status) = self.child.try_wait()? {
                bail!("the monitor ended: {status}");
            }
            if shell::succeeds(&mut self.command(&["query", "ip"])) {
                return Ok(());
            }
            if interrupt::came() {
                bail!("interrupted");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("the monitor does not answer on {}", self.socket.display())
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Path of its configuration.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// `ipwatch ARGS` for this daemon.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.ipwatch);
        command.arg("--socket").arg(&self.socket).args(args).stdin(Stdio::null());
        command
    }

    /// Runs `ipwatch ARGS` with its output shown.
    pub(crate) fn show(&self, args: &[&str]) -> Result<()> {
        shell::run(&mut self.command(args))
    }

    /// Shows events until Ctrl-C, or until the daemon ends.
    pub(crate) fn follow(mut self) -> Result<()> {
        let mut watch = self.command(&["watch"]).process_group(0).spawn()?;
        let ended = loop {
            if interrupt::came() {
                break None;
            }
            if let Some(status) = self.child.try_wait()? {
                break Some(status);
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        interrupt::terminate(&watch);
        watch.wait()?;
        match ended {
            Some(status) => bail!("the monitor ended: {status}"),
            None => Ok(()),
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            interrupt::terminate(&self.child);
            let _ = self.child.wait();
        }
    }
}
