//! The daemon under test, and queries to it through its command line.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::container::{self, Bundle, Plan};
use crate::poll::eventually;
use crate::recording::Recorder;
use crate::shared::{self, Part};
use crate::unit::{self, Cage};
use crate::{Config, Lab, peek, remedy, sys};

/// File names in the lab.
const SOCKET: &str = "ipwatch.sock";
const LOG: &str = "daemon.log";

/// The binary under test: `IPWATCH_BIN`, else the one that cargo built beside this one.
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

/// Where the daemon of a lab has its socket.
#[must_use]
pub fn socket_in(lab: &Lab) -> PathBuf {
    lab.dir().join(SOCKET)
}

/// Which rungs of the attach ladder this run allows.
#[must_use]
pub fn probes() -> String {
    std::env::var("IPWATCH_TEST_PROBES").unwrap_or_else(|_| "all".into())
}

/// A running daemon. Stopped when dropped; its log is printed for a test that fails.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    /// The container in which it runs.
    bundle: Option<Bundle>,
    /// The file with its pid, if `child` only waits for the daemon.
    pid_file: Option<PathBuf>,
    /// A recorder beside it, if a recording is requested.
    _recorder: Option<Recorder>,
}

impl Daemon {
    /// Starts a daemon with a socket and a state directory in the lab, and waits for its first answer. A second start
    /// in the same lab finds the state of the first.
    #[must_use]
    pub fn start(lab: &Lab, config: &Config) -> Self {
        Self::start_in(lab, config, &lab.subdir("state"))
    }

    /// Like `start`, with another state directory.
    #[must_use]
    pub fn start_in(lab: &Lab, config: &Config, state: &Path) -> Self {
        let mut daemon = Self::spawn(lab, config, state);
        daemon.await_ready();
        daemon
    }

    /// Waits for the first answer.
    ///
    /// # Panics
    /// The daemon ended instead.
    #[track_caller]
    pub fn await_ready(&mut self) {
        eventually("the daemon answers", 20, || {
            if let Some(status) = self.child.try_wait().expect("wait for the daemon") {
                panic!("the daemon ended ({status}):\n{}", self.log());
            }
            peek::document(&self.socket, "/v1/health")?;
            self.ask(&["query", "ip", "-o", "json"]).status.success().then_some(())
        });
    }

    /// Like `start_in`, without waiting for an answer.
    #[must_use]
    pub fn spawn(lab: &Lab, config: &Config, state: &Path) -> Self {
        if container::wanted() {
            return Self::spawn_in(&Plan::default(), lab, config, state);
        }
        let command = match unit::cage() {
            Cage::None => Command::new(binary()),
            Cage::Capabilities => unit::with_capabilities(&unit::capabilities()),
            Cage::Unit => {
                let mut daemon = Self::spawn_by(unit::by_systemd(lab), lab, config, state);
                daemon.pid_file = Some(unit::pid_file(lab.dir()));
                unit::assert_caged(daemon.pid());
                return daemon;
            }
        };
        Self::spawn_by(command, lab, config, state)
    }

    /// Like `spawn`, in a container.
    #[must_use]
    pub fn spawn_in(plan: &Plan, lab: &Lab, config: &Config, state: &Path) -> Self {
        let bundle = Bundle::make(lab, plan, &Self::arguments(lab, config, state));
        let mut daemon = Self::launch(bundle.command(), lab);
        daemon.bundle = Some(bundle);
        daemon
    }

    /// Like `spawn`, through another program that executes the daemon. The program gets the arguments of `command`,
    /// then those of the daemon.
    #[must_use]
    pub fn spawn_by(mut command: Command, lab: &Lab, config: &Config, state: &Path) -> Self {
        command.args(Self::arguments(lab, config, state));
        Self::launch(command, lab)
    }

    /// Its arguments; writes the configuration that they name.
    fn arguments(lab: &Lab, config: &Config, state: &Path) -> Vec<String> {
        let file = lab.dir().join("ipwatch.toml");
        fs::write(&file, config.text()).expect("write the configuration");
        let socket = socket_in(lab);
        let path = |path: &Path| path.to_str().expect("a path that is text").to_owned();
        let words = ["run", "--config", &path(&file), "--socket", &path(&socket), "--state-dir"];
        words.into_iter().map(str::to_owned).chain([path(state)]).collect()
    }

    fn launch(mut command: Command, lab: &Lab) -> Self {
        let log = lab.dir().join(LOG);
        let sink = File::options().create(true).append(true).open(&log).expect("open the log");
        let recorder = Recorder::beside(&command);
        let child = command
            .stdin(Stdio::null())
            .stdout(sink.try_clone().expect("a second handle"))
            .stderr(sink)
            .spawn()
            .unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        Self {
            child,
            socket: socket_in(lab),
            log,
            bundle: None,
            pid_file: None,
            _recorder: recorder,
        }
    }

    /// A daemon that systemd runs; `child` is `follow`, which prints its log.
    #[must_use]
    pub fn of_a_service(follow: Command, lab: &Lab, socket: &Path) -> Self {
        let mut daemon = Self::launch(follow, lab);
        socket.clone_into(&mut daemon.socket);
        daemon
    }

    /// The daemon that tests share, for a test that `needs [SharedDaemon]`.
    #[must_use]
    pub fn shared(lab: &Lab) -> Self {
        let (home, _) = shared::joined(Part::Daemon);
        let mut follow = Command::new("tail");
        // From now on: its log about other tests does not explain a failure of this one.
        follow.args(["-n", "0", "-f"]).arg(home.join(LOG));
        Self::of_a_service(follow, lab, &home.join(SOCKET))
    }

    /// Starts the shared daemon. Its grace is too long for a test to wait for.
    pub(crate) fn start_shared(lab: &Lab) -> Self {
        Self::start(lab, &Config::default().grace(60))
    }

    /// How it ended; `None` if it runs.
    pub fn has_ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().expect("wait for the daemon")?;
        Some(format!("{status}\n{}", self.log()))
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.bundle.as_ref().map_or_else(|| self.signalled(), Bundle::pid)
    }

    /// The process that must be signalled to end the daemon.
    fn signalled(&self) -> u32 {
        let Some(file) = &self.pid_file else { return self.child.id() };
        eventually("it has written its pid", 10, || {
            fs::read_to_string(file).ok()?.trim().parse().ok()
        })
    }

    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Runs `ipwatch ARGS` for this daemon.
    #[must_use]
    pub fn ask(&self, args: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.arg("--socket").arg(&self.socket).args(args).stdin(Stdio::null());
        command.output().expect("run ipwatch")
    }

    /// The document that `ipwatch ARGS -o json` prints; `None` if it exits with "not found" (3).
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

    /// The list under `key` of the answer's document; empty if nothing is found.
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

    /// The address with this IP in the netns with this inode.
    #[must_use]
    #[track_caller]
    pub fn ip_in(&self, ip: impl ToString, netns: u64) -> Option<Value> {
        self.ip(ip).into_iter().find(|address| address["netns"]["inode"] == netns)
    }

    /// Like `ip_in`, from the HTTP API, which is cheaper to poll.
    fn peek_ip_in(&self, ip: &str, netns: u64) -> Option<Value> {
        let all = peek::list(&self.socket, &format!("/v1/addresses?ip={ip}"), "addresses");
        all.into_iter().find(|address| address["netns"]["inode"] == netns)
    }

    /// Waits until the daemon knows this IP in this netns.
    #[track_caller]
    pub fn await_ip(&self, ip: impl ToString, netns: u64) -> Value {
        let ip = ip.to_string();
        let mut found = None;
        crate::poll::settle(10, || {
            found = self.peek_ip_in(&ip, netns).and_then(|_| self.ip_in(&ip, netns));
            found.is_some()
        });
        found.unwrap_or_else(|| {
            let what = ["query", "netns", &netns.to_string(), "-o", "json"];
            panic!(
                "{ip} is not known in netns {netns}, but: {:#?}\nthe netns: {}\nsources: {}\nlog: {}",
                self.ip(&ip),
                String::from_utf8_lossy(&self.ask(&what).stdout),
                String::from_utf8_lossy(&self.ask(&["doctor", "-o", "wide"]).stdout),
                self.log()
            )
        })
    }

    /// Waits until the daemon no longer knows this IP in this netns.
    #[track_caller]
    pub fn await_no_ip(&self, ip: impl ToString, netns: u64) {
        let ip = ip.to_string();
        eventually(&format!("{ip} is gone from netns {netns}"), 10, || {
            let gone = self.peek_ip_in(&ip, netns).is_none() && self.ip_in(&ip, netns).is_none();
            gone.then_some(())
        });
    }

    /// Waits until this IP in this netns has a holder that matches `is`, and returns the holder.
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
        let mut look = |address: Option<Value>| {
            seen = address.map_or(Value::Null, |mut all| all["holders"].take());
            found = seen.as_array().and_then(|all| all.iter().find(|holder| is(holder)).cloned());
            found.is_some()
        };
        crate::poll::settle(10, || {
            look(self.peek_ip_in(&ip, netns)) && look(self.ip_in(&ip, netns))
        });
        found.unwrap_or_else(|| panic!("{ip} in netns {netns}: no holder {what}; holders: {seen}"))
    }

    /// `query findings`.
    #[must_use]
    #[track_caller]
    pub fn findings(&self) -> Vec<Value> {
        let all = self.list("findings", &["query", "findings"]);
        all.iter().for_each(remedy::printed);
        all
    }

    /// The open findings about the netns with this inode.
    #[must_use]
    #[track_caller]
    pub fn findings_in(&self, netns: u64) -> Vec<Value> {
        let mut all = self.findings();
        all.retain(|finding| finding["subject"]["netns"]["inode"] == netns);
        all
    }

    /// Waits until a finding with this code that matches `is` fires.
    #[track_caller]
    pub fn await_firing(&self, code: &str, seconds: u32, is: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Vec::new();
        let mut found = None;
        let mut look = |findings: Vec<Value>| {
            seen = findings;
            let firing = |f: &&Value| f["code"] == code && f["status"] == "firing" && is(f);
            found = seen.iter().find(firing).cloned();
            found.is_some()
        };
        crate::poll::settle(seconds, || {
            look(peek::list(&self.socket, "/v1/findings", "findings")) && look(self.findings())
        });
        found.unwrap_or_else(|| panic!("no such {code} fires; open: {seen:#?}"))
    }

    /// Waits until a finding is resolved, and returns it.
    #[track_caller]
    pub fn await_resolved(&self, finding: &Value, seconds: u32) -> Value {
        let id = &finding["id"];
        let resolved =
            |all: Vec<Value>| all.into_iter().find(|f| f["id"] == *id && f["status"] == "resolved");
        eventually(&format!("{} {id} is resolved", finding["code"]), seconds, || {
            resolved(peek::list(&self.socket, "/v1/findings?all=true", "findings"))?;
            resolved(self.list("findings", &["query", "findings", "--all"]))
        })
    }

    /// The status of a source.
    #[must_use]
    pub fn source(&self, name: &str) -> Option<Value> {
        let document = self.document(&["doctor"])?;
        document["sources"].as_array()?.iter().find(|source| source["name"] == name).cloned()
    }

    /// Waits until a source is active or degraded.
    #[track_caller]
    pub fn await_source(&self, name: &str) {
        let mut seen = None;
        crate::poll::settle(40, || {
            seen = self.source(name);
            seen.as_ref().is_some_and(|s| s["status"] == "active" || s["status"] == "degraded")
        });
        let answers = seen.as_ref().is_some_and(|source| source["status"] != "down");
        assert!(answers, "source {name} does not answer: {seen:?}");
    }

    /// Follows every change of findings from now on.
    #[must_use]
    pub fn follow(&self) -> Follower {
        self.follow_what(&[])
    }

    /// Follows one stream, as `ipwatch watch WHAT` does.
    #[must_use]
    pub fn follow_what(&self, what: &[&str]) -> Follower {
        let path = self.log.with_file_name("watch.jsonl");
        let mut command = Command::new(binary());
        command.arg("--socket").arg(&self.socket).args(["watch", "-o", "jsonl"]).args(what);
        let out = File::create(&path).expect("open a file");
        let child = command.stdin(Stdio::null()).stdout(out).spawn().expect("run ipwatch watch");
        Follower { child, path }
    }

    /// All events from now on, line by line, until the socket is shut down. Uses the socket directly, because that is
    /// one process less on the way.
    pub fn events(&self) -> (UnixStream, impl Iterator<Item = String> + Send + use<>) {
        let mut socket = UnixStream::connect(&self.socket).expect("connect to the daemon");
        // 1.0: the answer ends with the connection, and its body has only lines.
        socket.write_all(b"GET /v1/watch HTTP/1.0\r\n\r\n").expect("ask the daemon");
        let mut lines = BufReader::new(socket.try_clone().expect("a second handle")).lines();
        let status = lines.next().expect("an answer").expect("an answer");
        assert!(status.contains("200"), "{status}");
        let mut body = lines.skip_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
        body.next().expect("the end of the head").expect("an answer");
        (socket, body.map_while(Result::ok))
    }

    /// Stops the daemon as an operator does, and returns how it ended.
    pub fn stop(mut self) -> std::process::ExitStatus {
        sys::kill(self.signalled(), libc::SIGTERM).expect("signal the daemon");
        eventually("the daemon stops", 15, || self.child.try_wait().expect("wait for the daemon"))
    }

    /// Kills the daemon.
    pub fn crash(mut self) {
        sys::kill(self.signalled(), libc::SIGKILL).expect("kill the daemon");
        self.child.wait().expect("wait for the daemon");
    }

    /// Waits for the daemon to end by itself, and returns its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        eventually("the daemon ends", 20, || self.child.try_wait().expect("wait for the daemon"))
            .code()
    }
}

/// A running `ipwatch watch`.
#[derive(Debug)]
pub struct Follower {
    child: Child,
    path: PathBuf,
}

impl Follower {
    /// Every change of a finding so far, in order.
    ///
    /// # Panics
    /// Changes are missing, because this follower was too slow.
    #[must_use]
    #[track_caller]
    pub fn changes(&self) -> Vec<Value> {
        let events = self.events();
        let lagged: Vec<&Value> = events.iter().filter(|e| e["event"] == "lagged").collect();
        assert!(lagged.is_empty(), "the follower was too slow: {lagged:?}");
        findings(events)
    }

    /// Like `changes`, but does not panic if changes were missed: if other tests cause thousands of events, the log
    /// has those that are missing here.
    #[must_use]
    pub fn changes_seen(&self) -> Vec<Value> {
        findings(self.events())
    }

    fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.path).expect("what was followed");
        // The last line may be incomplete.
        let whole = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        whole.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
    }

    /// Its whole output so far.
    #[must_use]
    pub fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap_or_default()
    }
}

fn findings(mut events: Vec<Value>) -> Vec<Value> {
    events.retain(|event| event["event"] == "finding");
    events
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the daemon said:\n{}", self.log());
        }
        // For a daemon in a unit, `child` only waits for it, so the daemon itself is signalled.
        let pid = self.pid_file.as_ref().and_then(|file| fs::read_to_string(file).ok());
        let pid = pid.and_then(|text| text.trim().parse().ok()).unwrap_or(self.child.id());
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = sys::kill(pid, libc::SIGTERM);
        }
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
