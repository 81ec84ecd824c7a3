//! The network configuration, and the configuration that the delegate is given.
//!
//! ```json
//! "ipam": {
//!   "type": "ipwatch-ipam",
//!   "delegate": { "type": "host-local", "ranges": [[{ "subnet": "10.88.7.0/24" }]] },
//!   "gateMax": 600, "whenAllHeld": "allow"
//! }
//! ```
//!
//! An option with an invalid value does not keep a pod from starting: the default is used, and [`Config::doubts`] says so.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::ask::PATIENCE;
use crate::cni::{Code, Environment, Failure, VERSIONS};

/// Longest configuration that is read, in bytes.
pub const LONGEST: usize = 1 << 20;
/// The plugin's name.
pub const OWN: &str = "ipwatch-ipam";
/// The daemon's socket.
pub const SOCKET: &str = "/run/ipwatch/ipwatch.sock";
/// Where parked reservations and counters are kept.
pub const STATE_DIR: &str = "/var/lib/cni/ipwatch-ipam";

/// The IPAM plugin whose addresses may be exchanged for others. whereabouts would assign the same (lowest free) address
/// again, `static` takes its addresses from the configuration, and `dhcp` from a server.
const RETRIED: &str = "host-local";

/// What an ADD does if all remaining addresses are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenAllHeld {
    /// It returns a held address, as it would without this plugin.
    Allow,
    /// It fails if a critical finding about a held address fires.
    Fail,
}

/// A network configuration.
#[derive(Debug, Clone)]
pub struct Config {
    whole: Map<String, Value>,
    delegate: Map<String, Value>,
    /// `cniVersion`.
    pub version: String,
    /// `name` of the network.
    pub name: String,
    /// `type` of the delegate.
    pub kind: String,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Where parked reservations and counters are kept.
    pub state_dir: PathBuf,
    /// Timeout of a question to the daemon.
    pub patience: Duration,
    /// How long a DEL is put off at most.
    pub gate_max: Duration,
    /// What an ADD does if all remaining addresses are held.
    pub when_all_held: WhenAllHeld,
    /// A line for each option with an invalid value.
    pub doubts: Vec<String>,
}

/// `cniVersion` of a configuration that may be invalid otherwise.
#[must_use]
pub fn version_of(bytes: &[u8]) -> String {
    version_in(&serde_json::from_slice(bytes).unwrap_or_default())
}

fn version_in(config: &Map<String, Value>) -> String {
    let version = config.get("cniVersion").and_then(Value::as_str);
    version.unwrap_or_default().chars().take(16).collect()
}

impl Config {
    /// The configuration of a call that has none.
    #[must_use]
    pub(crate) fn none(version: &str) -> Self {
        Self {
            version: version.to_owned(),
            name: String::new(),
            kind: String::new(),
            socket: PathBuf::from(SOCKET),
            state_dir: PathBuf::from(STATE_DIR),
            patience: PATIENCE,
            gate_max: Duration::from_secs(600),
            when_all_held: WhenAllHeld::Allow,
            doubts: Vec::new(),
            delegate: Map::new(),
            whole: Map::new(),
        }
    }

    /// Parses a configuration.
    ///
    /// # Errors
    /// It is not a JSON object, or has no valid delegate.
    pub fn read(bytes: &[u8]) -> Result<Self, Failure> {
        let whole: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| {
            Failure::new(
                Code::Decode,
                format!("the network configuration is not a valid JSON object: {error}"),
            )
        })?;
        let text = |of: &Map<String, Value>, key: &str| {
            of.get(key).and_then(Value::as_str).map(str::to_owned)
        };
        let wrong = |msg: &str| Failure::new(Code::Config, msg);
        let none = wrong(
            "ipam.delegate is missing: set it to the configuration of the IPAM plugin that ipwatch-ipam runs",
        );
        let ipam = whole.get("ipam").and_then(Value::as_object).ok_or(none.clone())?;
        let delegate = ipam.get("delegate").and_then(Value::as_object).ok_or(none)?.clone();
        let kind = text(&delegate, "type").unwrap_or_default();
        if kind == OWN {
            return Err(wrong("ipam.delegate.type must not be ipwatch-ipam itself"));
        }
        let mut doubts = Vec::new();
        let mut doubt = |key: &str, value: &Value| {
            doubts.push(format!(
                "ipam.{key} has an invalid value, and the default is used instead: {value}"
            ));
        };
        let mut config = Self {
            name: text(&whole, "name").unwrap_or_default(),
            kind,
            delegate,
            ..Self::none(&version_in(&whole))
        };
        for (key, value) in ipam {
            match key.as_str() {
                "gateMax" => match value.as_u64() {
                    Some(seconds) => config.gate_max = Duration::from_secs(seconds),
                    None => doubt(key, value),
                },
                "timeoutMs" => match value.as_u64().filter(|ms| (1..=2000).contains(ms)) {
                    Some(ms) => config.patience = Duration::from_millis(ms),
                    None => doubt(key, value),
                },
                "whenAllHeld" => match value.as_str() {
                    Some("allow") => {}
                    Some("fail") => config.when_all_held = WhenAllHeld::Fail,
                    _ => doubt(key, value),
                },
                "socket" | "stateDir" => match value.as_str().map(PathBuf::from) {
                    Some(path) if path.is_absolute() && key == "socket" => config.socket = path,
                    Some(path) if path.is_absolute() => config.state_dir = path,
                    _ => doubt(key, value),
                },
                _ => {}
            }
        }
        config.doubts = doubts;
        config.whole = whole;
        Ok(config)
    }

    /// The input of the delegate: the same configuration with the delegate's in place of this plugin's.
    #[must_use]
    pub fn for_delegate(&self) -> Vec<u8> {
        written(&self.with_delegate())
    }

    /// The input of the delegate for a parked reservation, which requests these addresses (the `ips` capability). What the
    /// runtime requests for its container is removed. `ipRanges` stay, because they may be the only ranges.
    #[must_use]
    pub fn for_parked(&self, ips: &[IpAddr]) -> Value {
        let mut whole = self.with_delegate();
        let ranges = whole.get("runtimeConfig").and_then(|config| config.get("ipRanges")).cloned();
        for key in ["args", "prevResult"] {
            whole.remove(key);
        }
        let ips: Vec<Value> = ips.iter().map(|ip| ip.to_string().into()).collect();
        let mut asked = Map::from_iter([("ips".to_owned(), Value::Array(ips))]);
        asked.extend(ranges.map(|ranges| ("ipRanges".to_owned(), ranges)));
        whole.insert("runtimeConfig".into(), Value::Object(asked));
        Value::Object(whole)
    }

    /// The input of the delegate for GC, with the parked reservations added to the lists of valid attachments that it has
    /// (1.1.0 specifies `cni.dev/valid-attachments`; libcni also writes `cni.dev/attachments`). A `null` is an empty list: of
    /// a runtime without containers libcni writes Go's nil slice (`GCNetworkList`, libcni/api.go, 1.2). Without a list the
    /// delegate is not told what is valid, and is not told so here either.
    #[must_use]
    pub fn for_gc<'a>(&self, parked: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
        let mut whole = self.with_delegate();
        let parked: Vec<Value> = parked
            .map(|(id, ifname)| serde_json::json!({ "containerID": id, "ifname": ifname }))
            .collect();
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            match whole.get_mut(key) {
                Some(Value::Array(valid)) => valid.extend(parked.iter().cloned()),
                Some(none @ Value::Null) if !parked.is_empty() => *none = parked.clone().into(),
                _ => {}
            }
        }
        written(&whole)
    }

    fn with_delegate(&self) -> Map<String, Value> {
        let mut whole = self.whole.clone();
        whole.insert("ipam".into(), Value::Object(self.delegate.clone()));
        whole
    }

    /// Whether the address that an ADD gets may be exchanged for another one: only if host-local chose it, the runtime did
    /// not request it, and the network's name can be a file name.
    #[must_use]
    pub fn may_retry(&self, environment: &Environment) -> bool {
        let is_there = |value: Option<&Value>| {
            value.is_some_and(|value| !value.is_null() && value != &Value::Array(Vec::new()))
        };
        let asked = environment.arg("IP").is_some_and(|ip| !ip.is_empty())
            || is_there(self.whole.get("runtimeConfig").and_then(|config| config.get("ips")))
            || is_there(self.whole.get("args").and_then(|args| args.get("cni")?.get("ips")));
        let is_known = VERSIONS.contains(&self.version.as_str());
        !asked && is_known && self.kind == RETRIED && self.is_named()
    }

    /// Whether the network's name can be a file name, by libcni's rule (`utils.ValidateNetworkName`).
    #[must_use]
    pub fn is_named(&self) -> bool {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        self.name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && self.name.len() <= 200
            && self.name.bytes().all(fits)
    }

    /// host-local's directory of this network.
    #[must_use]
    pub fn host_local_dir(&self) -> Option<PathBuf> {
        (self.kind == "host-local" && self.is_named()).then_some(())?;
        let dir =
            self.delegate.get("dataDir").and_then(Value::as_str).filter(|dir| !dir.is_empty());
        Some(PathBuf::from(dir.unwrap_or("/var/lib/cni/networks")).join(&self.name))
    }
}

fn written(whole: &Map<String, Value>) -> Vec<u8> {
    // Serializing a map with string keys cannot fail.
    serde_json::to_vec(whole).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::environment;

    fn read(ipam: Value) -> Result<Config, Failure> {
        let whole = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam });
        Config::read(whole.to_string().as_bytes())
    }

    fn delegate() -> Value {
        json!({ "type": "host-local", "dataDir": "/x", "ranges": [[{ "subnet": "10.1.0.0/24" }]] })
    }

    #[test]
    fn the_delegate_stands_where_the_plugin_stood() {
        let config = read(json!({ "type": OWN, "delegate": delegate(), "gateMax": 5 })).unwrap();
        let given: Value = serde_json::from_slice(&config.for_delegate()).unwrap();
        let plain =
            json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": delegate() });
        assert_eq!(given, plain);
        assert_eq!(config.gate_max, Duration::from_secs(5));
        assert_eq!(config.host_local_dir(), Some(PathBuf::from("/x/net")));
    }

    #[test]
    fn a_wrong_option_stops_nothing_and_a_missing_delegate_does() {
        let odd =
            json!({ "delegate": delegate(), "gateMax": "soon", "whenAllHeld": 3, "socket": "x" });
        let config = read(odd).unwrap();
        assert_eq!(config.doubts.len(), 3, "{:?}", config.doubts);
        assert_eq!(config.socket, PathBuf::from(SOCKET));
        assert_eq!(read(json!({ "type": OWN })).unwrap_err().code, Code::Config);
        assert_eq!(read(json!({ "delegate": { "type": OWN } })).unwrap_err().code, Code::Config);
        assert_eq!(Config::read(b"[]").unwrap_err().code, Code::Decode);
        assert_eq!(version_of(b"{\"cniVersion\":\"0.4.0\"}"), "0.4.0");
    }

    #[test]
    fn what_was_asked_for_is_never_given_back() {
        let plain = environment("ADD", "c1");
        let config = read(json!({ "delegate": delegate() })).unwrap();
        assert!(config.may_retry(&plain));
        let asked = Environment { args: "IP=10.1.0.9".into(), ..plain.clone() };
        assert!(!config.may_retry(&asked));
        for kind in ["static", "dhcp", "whereabouts", "other"] {
            assert!(!read(json!({ "delegate": { "type": kind } })).unwrap().may_retry(&plain));
        }
        for more in [
            json!({ "runtimeConfig": { "ips": ["10.1.0.9"] } }),
            json!({ "args": { "cni": { "ips": ["10.1.0.9"] } } }),
        ] {
            let mut whole =
                json!({ "cniVersion": "1.0.0", "name": "net", "ipam": { "delegate": delegate() } });
            whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let config = Config::read(whole.to_string().as_bytes()).unwrap();
            assert!(!config.may_retry(&plain), "{more}");
        }
        let nameless =
            json!({ "cniVersion": "1.0.0", "name": "../x", "ipam": { "delegate": delegate() } });
        assert!(!Config::read(nameless.to_string().as_bytes()).unwrap().may_retry(&plain));
    }

    #[test]
    fn gc_spares_what_is_parked() {
        let whole = json!({
            "name": "net", "ipam": { "delegate": delegate() },
            "cni.dev/valid-attachments": [{ "containerID": "a", "ifname": "eth0" }],
        });
        let config = Config::read(whole.to_string().as_bytes()).unwrap();
        let given = config.for_gc([("p", "ipwparked")].into_iter());
        let given: Value = serde_json::from_slice(&given).unwrap();
        let valid = given["cni.dev/valid-attachments"].as_array().unwrap();
        assert_eq!(valid.len(), 2);
        assert_eq!(valid[1], json!({ "containerID": "p", "ifname": "ipwparked" }));
        assert!(given.get("cni.dev/attachments").is_none());
    }

    /// A node was drained, and what is stuck there still has its address.
    #[test]
    fn gc_of_a_runtime_without_containers_spares_what_is_parked() {
        let whole = json!({
            "name": "net", "ipam": { "delegate": delegate() },
            "cni.dev/valid-attachments": null, "cni.dev/attachments": null,
        });
        let config = Config::read(whole.to_string().as_bytes()).unwrap();
        let given = |parked: &[(&str, &str)]| -> Value {
            serde_json::from_slice(&config.for_gc(parked.iter().copied())).unwrap()
        };
        let parked = json!([{ "containerID": "p", "ifname": "ipwparked" }]);
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            assert_eq!(given(&[("p", "ipwparked")])[key], parked, "{key}");
            assert_eq!(given(&[])[key], Value::Null, "{key}: as the runtime wrote it");
        }
    }

    #[test]
    fn a_parked_reservation_asks_for_its_ips_alone() {
        let whole = json!({
            "name": "net", "ipam": { "delegate": delegate() }, "prevResult": {}, "args": { "cni": {} },
            "runtimeConfig": { "portMappings": [], "ipRanges": [[{ "subnet": "10.1.0.0/24" }]] },
        });
        let config = Config::read(whole.to_string().as_bytes()).unwrap();
        let given = config.for_parked(&["10.1.0.9".parse().unwrap()]);
        let asked = json!({ "ips": ["10.1.0.9"], "ipRanges": [[{ "subnet": "10.1.0.0/24" }]] });
        assert_eq!(given["runtimeConfig"], asked);
        assert!(given.get("args").is_none() && given.get("prevResult").is_none());
    }
}
