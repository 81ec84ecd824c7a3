//! Shared by the tests: scripts, a fake daemon, and networks with the real host-local.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::cni::{Command, Environment, Failure, addresses};
use crate::config::Config;
use crate::delegate::Answer;
use crate::plugin::Call;

/// Where Debian installs host-local.
const PLUGINS: &str = "/usr/lib/cni";
/// If this variable is set, tests that need host-local are skipped where it is not installed.
const WITHOUT: &str = "IPWATCH_TEST_WITHOUT_CNI";
/// The boot that the tests run in.
pub(crate) const BOOT: &str = "0f3c9a12";

pub(crate) fn environment(command: &str, container: &str) -> Environment {
    let command = match command {
        "ADD" => Command::Add,
        "DEL" => Command::Del,
        "CHECK" => Command::Check,
        "GC" => Command::Gc,
        _ => Command::Status,
    };
    Environment {
        command,
        container: container.to_owned(),
        netns: if command != Command::Del { "/run/netns/nobodys" } else { "" }.to_owned(),
        ifname: "eth0".to_owned(),
        args: String::new(),
        path: vec![PLUGINS.into()],
    }
}

/// Writes an executable shell script. Another process does: if this one had it open for writing, what other tests start at that
/// moment would have so too until its `execve`, and what somebody writes to is not executed (`deny_write_access`, fs/exec.c).
pub(crate) fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    let path = dir.join(name);
    let mut install = std::process::Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(&path).stdin(std::process::Stdio::piped());
    let mut child = install.spawn().unwrap();
    write!(child.stdin.take().unwrap(), "#!/bin/sh\n{body}\n").unwrap();
    assert!(child.wait().unwrap().success());
    path
}

type Reply = Box<dyn Fn(&str) -> String + Send>;

/// Answers each request with what the test says.
pub(crate) struct FakeDaemon {
    socket: PathBuf,
    reply: Arc<Mutex<Reply>>,
}

impl FakeDaemon {
    pub(crate) fn start(dir: &Path) -> Self {
        let socket = dir.join("sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let reply: Arc<Mutex<Reply>> = Arc::new(Mutex::new(Box::new(|_| String::new())));
        let own = reply.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(mut stream), mut head) = (stream, Vec::new()) else { return };
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
                    head.push(byte[0]);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let target = head.split(' ').nth(1).unwrap_or_default();
                let reply = own.lock().unwrap()(target);
                let _ = stream.write_all(reply.as_bytes());
            }
        });
        Self { socket, reply }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// From now on the daemon answers with these bytes.
    pub(crate) fn replies(&self, reply: &str) {
        let reply = reply.to_owned();
        *self.reply.lock().unwrap() = Box::new(move |_| reply.clone());
    }

    /// From now on the daemon answers with this document.
    pub(crate) fn answers(&self, answer: impl Fn(&str) -> String + Send + 'static) {
        *self.reply.lock().unwrap() = Box::new(move |target| {
            let body = answer(target);
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        });
    }

    /// From now on these addresses are held by the netns with cookie 7, whether assigned or parked.
    pub(crate) fn holds(&self, held: &[&str]) {
        let held: Vec<String> = held.iter().map(|ip| (*ip).to_owned()).collect();
        self.answers(move |target| {
            let state = |ip: &str| {
                let is_held = held.iter().any(|held| held == ip);
                json!({
                    "ip": ip, "state": if is_held { "held" } else { "free" },
                    "netns": { "cookie": 7 }, "critical": true, "for_secs": 5,
                    "who": format!("{ip} is still held by pid 4903 (cat)"),
                })
            };
            let list = |name: &str| -> Vec<Value> {
                let mut found = target.split('&').filter_map(|pair| pair.split_once('='));
                let found = found.find(|(key, _)| *key == name).map_or("", |(_, value)| value);
                let ips = found.split("%2C").filter(|ip| !ip.is_empty());
                ips.map(|ip| state(ip.split("%40").next().unwrap())).collect()
            };
            let (addresses, parked) = (list("ips"), list("parked"));
            json!({ "schema": "ipwatch/v1", "held": {
                "addresses": addresses, "parked": parked, "usable": 100,
            }})
            .to_string()
        });
    }
}

/// A network with the real host-local.
pub(crate) struct Network {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) daemon: FakeDaemon,
    pub(crate) ranges: Value,
    pub(crate) more: Value,
    pub(crate) path: Vec<PathBuf>,
    pub(crate) kind: &'static str,
    /// The boot that its calls run in.
    pub(crate) boot: String,
}

impl Network {
    /// `None`: host-local is not installed, and the test is to be skipped for that.
    #[track_caller]
    pub(crate) fn new(subnets: &[&str]) -> Option<Self> {
        let plugin = Path::new(PLUGINS).join("host-local");
        if !plugin.exists() {
            assert!(
                std::env::var_os(WITHOUT).is_some(),
                "{} is not there: install containernetworking-plugins, or set {WITHOUT}=1 to skip this test",
                plugin.display()
            );
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let daemon = FakeDaemon::start(dir.path());
        daemon.holds(&[]);
        let ranges: Vec<Value> =
            subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
        Some(Self {
            dir,
            daemon,
            ranges: ranges.into(),
            more: json!({}),
            path: vec![PLUGINS.into()],
            kind: "host-local",
            boot: BOOT.into(),
        })
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn config(&self) -> Value {
        let mut ipam = json!({
            "type": "ipwatch-ipam", "socket": self.daemon.socket(), "stateDir": self.state_dir(),
            "timeoutMs": 2000,
            "delegate": { "type": self.kind, "dataDir": self.dir.path().join("ipam"), "ranges": self.ranges },
        });
        ipam.as_object_mut().unwrap().extend(self.more.as_object().unwrap().clone());
        json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam })
    }

    pub(crate) fn call(&self, command: &str, container: &str) -> Call {
        let config = Config::read(self.config().to_string().as_bytes()).unwrap();
        let environment =
            Environment { path: self.path.clone(), ..environment(command, container) };
        Call {
            environment,
            config,
            boot: Some(self.boot.clone()).into(),
            parent: None,
            reserved: false.into(),
            set: true,
        }
    }

    pub(crate) fn run(&self, command: &str, container: &str) -> Result<Answer, Failure> {
        self.call(command, container).serve()
    }

    /// Runs an ADD and returns its addresses.
    #[track_caller]
    pub(crate) fn add(&self, container: &str) -> Vec<String> {
        let answer = self.run("ADD", container).unwrap();
        assert!(answer.is_ok(), "{}", String::from_utf8_lossy(&answer.stdout));
        let ips = addresses(&answer.stdout).unwrap();
        let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
        // The invariant of the plugin.
        for ip in &ips {
            assert_eq!(self.stored()[ip], format!("{container} eth0"));
        }
        ips
    }

    #[track_caller]
    pub(crate) fn del(&self, container: &str) {
        assert!(self.run("DEL", container).unwrap().is_ok());
    }

    /// What the delegate has stored: by address, the container and the interface.
    pub(crate) fn stored(&self) -> BTreeMap<String, String> {
        let entries =
            fs::read_dir(self.dir.path().join("ipam/net")).into_iter().flatten().flatten();
        let of = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            name.parse::<IpAddr>().ok()?;
            let text = fs::read_to_string(entry.path()).unwrap();
            Some((name, text.split_whitespace().collect::<Vec<_>>().join(" ")))
        };
        entries.filter_map(of).collect()
    }

    /// Addresses that are stored under a parked id.
    pub(crate) fn parked(&self) -> Vec<String> {
        let stored = self.stored().into_iter();
        stored.filter(|(_, of)| of.starts_with(crate::name::PREFIX)).map(|(ip, _)| ip).collect()
    }

    pub(crate) fn counted(&self, what: &str) -> u64 {
        crate::tally::read(&self.state_dir()).get(what).copied().unwrap_or(0)
    }
}
