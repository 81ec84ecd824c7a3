//! A running program of the control plane or node.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::sys;

/// Killed when dropped; the end of its log is printed for a test that fails.
#[derive(Debug)]
pub(super) struct Part {
    name: &'static str,
    command: Command,
    netns: PathBuf,
    child: Child,
    log: PathBuf,
}

impl Part {
    /// Starts the program in this netns; its log goes to `dir`.
    pub(super) fn start(
        name: &'static str,
        mut command: Command,
        netns: &Path,
        dir: &Path,
    ) -> Self {
        let log = dir.join(format!("{name}.log"));
        let sink = File::options().create(true).append(true).open(&log).expect("open the log");
        command.stdin(Stdio::null()).current_dir(dir);
        command.stdout(sink.try_clone().expect("a second handle")).stderr(sink);
        let netns = netns.to_owned();
        let child = spawn(name, &mut command, &netns);
        Self { name, command, netns, child, log }
    }

    /// Kills the program.
    pub(super) fn crash(&mut self) {
        let _ = sys::kill(self.child.id(), libc::SIGKILL);
        let _ = self.child.wait();
    }

    /// Sends the program a signal.
    pub(super) fn signal(&self, signal: i32) {
        sys::kill(self.child.id(), signal).expect("signal it");
    }

    /// Restarts the program with the same command.
    pub(super) fn restart(&mut self) {
        self.child = spawn(self.name, &mut self.command, &self.netns);
    }

    /// How it ended; `None` if it runs.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().expect("wait for it")?;
        Some(format!("{}: {status}", self.name))
    }

    /// Fails the test if the program has ended.
    #[track_caller]
    pub(super) fn assert_running(&mut self) {
        let ended = self.ended();
        assert!(ended.is_none(), "it ended: {ended:?}");
    }
}

fn spawn(name: &str, command: &mut Command, netns: &Path) -> Child {
    let spawned = sys::on_own_thread(|| {
        sys::enter_netns(netns).expect("enter the netns");
        command.spawn()
    });
    spawned.unwrap_or_else(|error| panic!("start {name}: {error}"))
}

impl Drop for Part {
    fn drop(&mut self) {
        self.crash();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(25).collect();
            println!("{} said last:", self.name);
            tail.iter().rev().for_each(|line| println!("{line}"));
        }
    }
}
