//! Real CNI plugins, run as by a runtime, and what ipwatch records of them.
//!
//! They run in a netns of the test that stands for the host's, so that they use no bridge and no sysctl of this
//! machine.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::{Value, json};

use crate::{Config, Lab, Netns, daemon, eventually, need, sys};

/// The directory in which Debian installs them.
pub const PLUGINS: &str = "/usr/lib/cni";

/// Why they cannot be run here.
#[must_use]
pub fn missing() -> Option<String> {
    let plugins = ["bridge", "host-local", "loopback", "macvlan", "ptp"];
    plugins.iter().find_map(|plugin| need::absent(Path::new(PLUGINS).join(plugin)))
}

/// The node of a test.
#[derive(Debug)]
pub struct Node<'a> {
    lab: &'a Lab,
    /// The netns in which the plugins run.
    pub host: Netns,
    /// A secret, put into every environment, configuration and argument that may contain credentials in practice.
    pub secret: String,
}

/// A call of a plugin.
#[derive(Debug, Clone)]
pub struct Call {
    pub plugin: PathBuf,
    /// `CNI_COMMAND`.
    pub command: &'static str,
    /// `CNI_CONTAINERID`, with the lab's tag appended; the pod has the same name.
    pub container: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// The plugin's standard input.
    pub config: Value,
    /// Additional size of the environment, in bytes.
    pub filler: usize,
}

impl<'a> Node<'a> {
    /// A node with a device `uplink` for macvlan.
    #[must_use]
    pub fn new(lab: &'a Lab) -> Self {
        let host = Netns::new(lab, "node");
        host.ip("link add uplink type veth peer name wire");
        host.ip("link set uplink up");
        let secret = format!("canary-{:016x}", u64::from(std::process::id()) << 20 | 0xc0de);
        Self { lab, host, secret }
    }

    /// A container id that is unique on this machine, on which others may run tests.
    #[must_use]
    pub fn id(&self, container: &str) -> String {
        format!("{container}-{}", self.lab.tag())
    }

    /// A netns for a pod.
    #[must_use]
    pub fn pod(&self, name: &str) -> Netns {
        Netns::new(self.lab, name)
    }

    /// A call of one of Debian's plugins for a container in `netns`.
    #[must_use]
    pub fn call(&self, plugin: &str, command: &'static str, id: &str, netns: &Netns) -> Call {
        Call {
            plugin: Path::new(PLUGINS).join(plugin),
            command,
            container: id.to_owned(),
            netns: netns.path().display().to_string(),
            ifname: if plugin == "loopback" { "lo" } else { "eth0" }.to_owned(),
            config: self.config(plugin),
            filler: 0,
        }
    }

    /// A configuration for that plugin, with host-local if it needs an IPAM.
    #[must_use]
    pub fn config(&self, plugin: &str) -> Value {
        let subnet = self.lab.cidr(0);
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "testnet", "type": plugin, "token": self.secret,
        });
        if plugin != "loopback" {
            config["ipam"] = json!({
                "type": "host-local", "dataDir": self.lab.dir().join("ipam"),
                "ranges": [[{ "subnet": subnet }]],
            });
        }
        if plugin == "macvlan" {
            config["master"] = "uplink".into();
        }
        config
    }

    /// Starts the plugin as libcni does: the environment has the runtime's variables, followed by those of CNI.
    #[must_use]
    pub fn start(&self, call: &Call) -> Child {
        let mut command = Command::new(&call.plugin);
        for n in 0..call.filler / 64 {
            command.env(format!("AAA_FILLER_{n:08}"), "x".repeat(44));
        }
        let id = self.id(&call.container);
        let args = format!(
            "IgnoreUnknown=1;TOKEN={};K8S_POD_NAMESPACE=shop;K8S_POD_NAME=pod-{id};\
             K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID=uid-{id}",
            self.secret
        );
        command.env("API_TOKEN", &self.secret).env("CNI_API_TOKEN", &self.secret);
        command.env("CNI_COMMAND", call.command).env("CNI_CONTAINERID", &id);
        command.env("CNI_NETNS", &call.netns).env("CNI_IFNAME", &call.ifname);
        command.env("CNI_PATH", PLUGINS).env("CNI_ARGS", args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.host.run(|| command.spawn()).expect("start the plugin");
        let mut stdin = child.stdin.take().expect("its standard input");
        // A plugin may end without reading its input.
        let _ = stdin.write_all(call.config.to_string().as_bytes());
        child
    }

    /// Runs the plugin to its end. Returns its pid, and how it ended.
    pub fn run(&self, call: &Call) -> (u32, Output) {
        let child = self.start(call);
        (child.id(), child.wait_with_output().expect("wait for the plugin"))
    }

    /// A script as a plugin, in the given directory.
    #[must_use]
    pub fn script(&self, dir: &Path, name: &str, body: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = dir.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("write a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("make it executable");
        path
    }
}

/// A running `ipwatch record`.
#[derive(Debug)]
pub struct Recorder<'a> {
    child: Child,
    out: PathBuf,
    node: &'a Node<'a>,
    /// A call that is only used to wait.
    call: Call,
}

/// The record of one run of a plugin.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub began: Value,
    pub ended: Option<Value>,
}

impl<'a> Recorder<'a> {
    /// Starts a recorder and waits until it sees calls.
    #[must_use]
    pub fn start(node: &'a Node<'a>, config: &Config) -> Self {
        Self::start_by(node, config, &Path::new(PLUGINS).join("loopback"))
    }

    /// Like `start`, with the loopback plugin whose run it must see.
    #[must_use]
    pub fn start_by(node: &'a Node<'a>, config: &Config, loopback: &Path) -> Self {
        let dir = node.lab.dir();
        let (file, out) = (dir.join("record.toml"), dir.join("record.jsonl"));
        std::fs::write(&file, config.text()).expect("write the configuration");
        let mut command = Command::new(daemon::binary());
        command.args(["record", "--config"]).arg(&file).arg("--out").arg(&out);
        let child = command.stdin(Stdio::null()).spawn().expect("start the recorder");
        let mut call = node.call("loopback", "VERSION", "", &node.host);
        call.plugin = loopback.to_owned();
        call.netns = "/".repeat(200);
        let recorder = Self { child, out, node, call };
        recorder.await_call("first");
        recorder
    }

    /// Makes a call and waits until it is recorded, and therefore everything before it. The record is written in
    /// blocks, which the long ids fill.
    fn await_call(&self, word: &str) {
        let call = Call { container: word.repeat(16), ..self.call.clone() };
        eventually("a call is recorded", 20, || {
            self.node.run(&call);
            self.text().contains(&call.container).then_some(())
        });
    }

    #[must_use]
    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// Stops the recorder. Returns the recorded runs of this node, with container ids without the tag, and the whole
    /// record.
    #[must_use]
    pub fn stop(mut self) -> (Vec<Seen>, String) {
        self.await_call("last");
        sys::kill(self.child.id(), libc::SIGINT).expect("signal the recorder");
        let status: ExitStatus =
            eventually("the recorder stops", 15, || self.child.try_wait().expect("wait for it"));
        assert!(status.success(), "{status}");
        let text = self.text();
        let mut seen: Vec<Seen> = Vec::new();
        let mut at: HashMap<String, usize> = HashMap::new();
        let tag = format!("{}\"", self.node.id(""));
        for line in text.lines().filter(|line| line.contains("\"cni_")) {
            let ours = line.contains(&tag);
            let fact: Value = serde_json::from_str(&line.replace(&tag, "\"")).expect("a JSON line");
            let task = fact["task"].to_string();
            match fact["what"].as_str() {
                Some("cni_began") if ours => {
                    assert_eq!(at.insert(task, seen.len()), None, "it began twice: {fact}");
                    seen.push(Seen { began: fact, ended: None });
                }
                Some("cni_ended") => {
                    if let Some(run) = at.get(&task) {
                        seen[*run].ended = Some(fact);
                    }
                }
                _ => {}
            }
        }
        (seen, text)
    }
}

impl Seen {
    /// Checks that this is the record of `call`, by this process and with this end.
    ///
    /// # Panics
    /// It is not.
    #[track_caller]
    pub fn is(&self, call: &Call, pid: u32, status: ExitStatus) {
        use std::os::unix::process::ExitStatusExt as _;
        let id = &call.container;
        let expected = json!({
            "pid": pid, "parent": std::process::id(), "plugin": call.plugin,
            "command": call.command, "container_id": id, "netns_path": call.netns,
            "ifname": call.ifname,
            "pod": { "namespace": "shop", "name": format!("pod-{id}"), "uid": format!("uid-{id}") },
        });
        let of = |key: &str| {
            let value = if key == "pid" { &self.began["task"][key] } else { &self.began[key] };
            (key.to_owned(), value.clone())
        };
        let keys = expected.as_object().expect("an object").keys();
        assert_eq!(keys.map(|key| of(key)).collect::<Value>(), expected);
        let ended = self.ended.as_ref().unwrap_or_else(|| panic!("no end: {}", self.began));
        assert_eq!(ended["status"].as_i64(), status.code().map(i64::from), "{ended}");
        assert_eq!(ended["signal"].as_i64(), status.signal().map(i64::from), "{ended}");
    }

    /// Duration of the run, in nanoseconds.
    #[must_use]
    pub fn lasted(&self) -> u64 {
        let at = |fact: &Value| fact["at"].as_u64().expect("a time");
        at(self.ended.as_ref().expect("an end")) - at(&self.began)
    }
}

/// The only run with this command, container and plugin.
#[must_use]
#[track_caller]
pub fn only<'a>(seen: &'a [Seen], plugin: &str, command: &str, container: &str) -> &'a Seen {
    let is = |seen: &&Seen| {
        seen.began["container_id"] == container
            && seen.began["command"] == command
            && seen.began["plugin"].as_str().is_some_and(|p| p.ends_with(&format!("/{plugin}")))
    };
    let all: Vec<&Seen> = seen.iter().filter(is).collect();
    assert_eq!(all.len(), 1, "{plugin} {command} {container}: {all:#?}");
    all[0]
}
