//! The daemon under test and the questions put to it, through its command line alone.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::poll::eventually;
use crate::{Lab, sys};

/// The binary under test: `IPWATCH_BIN`, else the one cargo built beside this.
#[must_use]
pub fn binary() -> PathBuf {
    std::env::var_os("IPWATCH_BIN").map_or_else(
        || {
            let own = std::env::current_exe().expect("the path of this binary");
            // target/TRIPLE/debug/deps/e2e-HASH → target/TRIPLE/debug/ipwatch
            own.parent().and_then(Path::parent).expect("a target directory").join("ipwatch")
        },
        PathBuf::from,
    )
}

/// What goes into `ipwatch.toml`.
#[derive(Debug, Clone, Default)]
pub struct Config {
    grace: Option<u32>,
    provisional: bool,
    cache_dir: Option<PathBuf>,
    otlp: Option<String>,
    extra: String,
}

impl Config {
    /// Grace before a holder counts as stuck, in seconds.
    #[must_use]
    pub fn grace(mut self, seconds: u32) -> Self {
        self.grace = Some(seconds);
        self
    }

    /// Identity without cookies.
    #[must_use]
    pub fn provisional(mut self) -> Self {
        self.provisional = true;
        self
    }

    /// The CNI result cache.
    #[must_use]
    pub fn cache_dir(mut self, dir: &Path) -> Self {
        self.cache_dir = Some(dir.to_owned());
        self
    }

    /// The collector.
    #[must_use]
    pub fn otlp(mut self, endpoint: &str) -> Self {
        self.otlp = Some(endpoint.to_owned());
        self
    }

    /// Any other lines.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.extra.push_str(line);
        self.extra.push('\n');
        self
    }

    /// The file's text. `IPWATCH_TEST_PROBES` (`all`, `kprobe`, `off`) says how high the attach ladder
    /// may go, so that one suite runs on every rung.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut section = |name: &str, line: String| {
            let _ = writeln!(text, "[{name}]\n{line}");
        };
        if let Some(seconds) = self.grace {
            section("stuck", format!("grace = \"{seconds}s\""));
        }
        if self.provisional {
            section("identity", "provisional = true".into());
        }
        if let Some(dir) = &self.cache_dir {
            section("cni", format!("cache_dirs = [{dir:?}]"));
        }
        if let Some(endpoint) = &self.otlp {
            section("otlp", format!("endpoint = {endpoint:?}"));
        }
        match probes().as_str() {
            "kprobe" => section("probes", "forbid = [\"fentry\"]".into()),
            "off" => section("probes", "enabled = false".into()),
            _ => {}
        }
        text + &self.extra
    }
}

/// Which rungs of the attach ladder this run allows.
#[must_use]
pub fn probes() -> String {
    std::env::var("IPWATCH_TEST_PROBES").unwrap_or_else(|_| "all".into())
}

/// A running daemon. Stopped when dropped; its log is printed, for a test that fails.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Starts it with a socket and a state directory in the lab, and waits for its first answer. A
    /// second start in the same lab finds the first one's state.
    #[must_use]
    pub fn start(lab: &Lab, config: &Config) -> Self {
        Self::start_in(lab, config, &lab.subdir("state"))
    }

    /// The same with another state directory.
    #[must_use]
    pub fn start_in(lab: &Lab, config: &Config, state: &Path) -> Self {
        let mut daemon = Self::spawn(lab, config, state);
        daemon.await_ready();
        daemon
    }

    /// Waits for its first answer.
    ///
    /// # Panics
    /// It ended instead.
    #[track_caller]
    pub fn await_ready(&mut self) {
        eventually("the daemon answers", 20, || {
            if let Some(status) = self.child.try_wait().expect("wait for the daemon") {
                panic!("the daemon ended ({status}):\n{}", self.log());
            }
            self.ask(&["query", "ip", "-o", "json"]).status.success().then_some(())
        });
    }

    /// The same without waiting.
    #[must_use]
    pub fn spawn(lab: &Lab, config: &Config, state: &Path) -> Self {
        Self::spawn_by(Command::new(binary()), lab, config, state)
    }

    /// The same through another program, which becomes the daemon: its arguments are those of
    /// `command` and then the daemon's.
    #[must_use]
    pub fn spawn_by(mut command: Command, lab: &Lab, config: &Config, state: &Path) -> Self {
        let dir = lab.dir();
        let (file, log) = (dir.join("ipwatch.toml"), dir.join("daemon.log"));
        fs::write(&file, config.text()).expect("write the configuration");
        let socket = dir.join("ipwatch.sock");
        let sink = File::options().create(true).append(true).open(&log).expect("open the log");
        let child = command
            .args(["run", "--config"])
            .arg(&file)
            .arg("--socket")
            .arg(&socket)
            .arg("--state-dir")
            .arg(state)
            .stdin(Stdio::null())
            .stdout(sink.try_clone().expect("a second handle"))
            .stderr(sink)
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}", binary().display()));
        Self { child, socket, log }
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Everything it said so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Runs `ipwatch ARGS` against it.
    #[must_use]
    pub fn ask(&self, args: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.arg("--socket").arg(&self.socket).args(args).stdin(Stdio::null());
        command.output().expect("run ipwatch")
    }

    /// The document that `ipwatch ARGS -o json` prints; `None` when it says "not found" (exit code 3).
    ///
    /// # Panics
    /// Any other failure, or no JSON.
    #[must_use]
    #[track_caller]
    pub fn document(&self, args: &[&str]) -> Option<Value> {
        let out = self.ask(&[args, &["-o", "json"]].concat());
        if out.status.code() == Some(3) {
            return None;
        }
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "ipwatch {args:?}: {}: {said}", out.status);
        let document: Value = serde_json::from_slice(&out.stdout).expect("a JSON document");
        assert_eq!(document["schema"], "ipwatch/v1");
        Some(document)
    }

    /// The list under `key` of the document that a question brings; empty when nothing is found.
    #[must_use]
    #[track_caller]
    pub fn list(&self, key: &str, args: &[&str]) -> Vec<Value> {
        let Some(mut document) = self.document(args) else { return Vec::new() };
        match document[key].take() {
            Value::Array(list) => list,
            other => panic!("ipwatch {args:?}: {key} is {other}"),
        }
    }

    /// `query ip IP`.
    #[must_use]
    #[track_caller]
    pub fn ip(&self, ip: impl ToString) -> Vec<Value> {
        self.list("addresses", &["query", "ip", &ip.to_string()])
    }

    /// What it says of one IP in one netns, by the netns's inode.
    #[must_use]
    #[track_caller]
    pub fn ip_in(&self, ip: impl ToString, netns: u64) -> Option<Value> {
        self.ip(ip).into_iter().find(|address| address["netns"]["inode"] == netns)
    }

    /// Waits until it knows this IP in this netns.
    #[track_caller]
    pub fn await_ip(&self, ip: impl ToString, netns: u64) -> Value {
        let ip = ip.to_string();
        eventually(&format!("{ip} is known in netns {netns}"), 10, || self.ip_in(&ip, netns))
    }

    /// Waits until it no longer knows this IP in this netns.
    #[track_caller]
    pub fn await_no_ip(&self, ip: impl ToString, netns: u64) {
        let ip = ip.to_string();
        eventually(&format!("{ip} is gone from netns {netns}"), 10, || {
            self.ip_in(&ip, netns).is_none().then_some(())
        });
    }

    /// Waits until this IP in this netns has a holder for which `is` holds, and returns the holder.
    #[track_caller]
    pub fn await_holder(
        &self,
        ip: impl ToString,
        netns: u64,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Value {
        let ip = ip.to_string();
        let mut seen = Value::Null;
        let mut found = None;
        crate::poll::settle(10, || {
            seen = self.ip_in(&ip, netns).map_or(Value::Null, |mut all| all["holders"].take());
            found = seen.as_array().and_then(|all| all.iter().find(|holder| is(holder)).cloned());
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("{ip} in netns {netns}: no holder {what}; holders: {seen}"))
    }

    /// `query findings`.
    #[must_use]
    #[track_caller]
    pub fn findings(&self) -> Vec<Value> {
        self.list("findings", &["query", "findings"])
    }

    /// The open findings about a netns, by its inode.
    #[must_use]
    #[track_caller]
    pub fn findings_in(&self, netns: u64) -> Vec<Value> {
        let mut all = self.findings();
        all.retain(|finding| finding["subject"]["netns"]["inode"] == netns);
        all
    }

    /// Ends it as an operator would, and says how it ended.
    pub fn stop(mut self) -> std::process::ExitStatus {
        sys::kill(self.pid(), libc::SIGTERM).expect("signal the daemon");
        eventually("the daemon stops", 15, || self.child.try_wait().expect("wait for the daemon"))
    }

    /// Ends it without warning.
    pub fn crash(mut self) {
        self.child.kill().expect("kill the daemon");
        self.child.wait().expect("wait for the daemon");
    }

    /// Waits for it to end by itself and returns its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        eventually("the daemon ends", 20, || self.child.try_wait().expect("wait for the daemon"))
            .code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the daemon said:\n{}", self.log());
        }
        let _ = sys::kill(self.pid(), libc::SIGTERM);
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
