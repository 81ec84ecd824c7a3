//! `ipwatch.toml` and the variables that go before it ([`environment`]), read and validated whole before anything
//! starts.
//!
//! Every key has a default; an unknown key is an error, because a misspelt grace is worse than none.

pub mod environment;
mod error;
pub mod keys;
pub mod text;
mod written;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use toml::Table;

use self::environment::Variable;
pub use self::error::ConfigError;
use self::error::in_file;
use self::keys::Key;
use self::written::{duration, lossily, prefixes, span};
use crate::bounded;
use crate::contract::Prefix;
use crate::engine::Settings;
use crate::map::Thresholds;
use crate::metrics;
use crate::sinks::otlp::config::Otlp;
use crate::sources::arp::Watch;
use crate::sources::calico::etcd;
use crate::sources::cni;
use crate::sources::ipam;
use crate::sources::kubernetes;
use crate::sources::probes::Rung;
use crate::sources::runtime::Socket;

/// Where the configuration is read from when no `--config` is given, if it is there.
pub const DEFAULT_PATH: &str = "/etc/ipwatch/ipwatch.toml";
/// The API's socket.
pub const DEFAULT_SOCKET: &str = "/run/ipwatch/ipwatch.sock";
/// Findings and history.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/ipwatch";
/// No configuration is longer than this.
const MAX_BYTES: usize = 1 << 20;

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The API's socket.
    #[serde(serialize_with = "lossily")]
    pub socket: PathBuf,
    /// Directory of the findings and the history.
    #[serde(serialize_with = "lossily")]
    pub state_dir: PathBuf,
    /// Change nothing on the node: no nsid is assigned. Netns without one are then read by entering
    /// them, and their changes are seen only where probes see them.
    pub observe_only: bool,
    /// The node's name in every document; the host name when absent.
    pub node: Option<String>,
    /// `[stuck]`
    pub stuck: Stuck,
    /// `[holders]`
    pub holders: Holders,
    /// `[probes]`
    pub probes: Probes,
    /// `[addresses]`
    pub addresses: Addresses,
    /// `[neighbours]`
    pub neighbours: Neighbours,
    /// `[identity]`
    pub identity: Identity,
    /// `[cni]`
    pub cni: Cni,
    /// `[ipam]`
    pub ipam: ipam::Settings,
    /// `[runtime]`
    pub runtime: Runtime,
    /// `[kubernetes]`
    pub kubernetes: kubernetes::Settings,
    /// `[calico]`
    pub calico: etcd::Settings,
    /// `[otlp]`
    pub otlp: Otlp,
    /// `[metrics]`
    pub metrics: metrics::Settings,
    /// `[retention]`
    pub retention: Retention,
}

/// When a task on its way out is called stuck.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stuck {
    /// How long it may be exiting or killed.
    #[serde(deserialize_with = "duration", serialize_with = "span")]
    pub grace: SignedDuration,
    /// The same while its core is being dumped.
    #[serde(deserialize_with = "duration", serialize_with = "span")]
    pub core_dump_grace: SignedDuration,
}

/// When what is left of a sandbox is called so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Holders {
    /// How long a sandbox may be dead, or gone from its runtime.
    #[serde(deserialize_with = "duration", serialize_with = "span")]
    pub grace: SignedDuration,
    /// How old a pod's netns may be that no runtime has ever told of, or without tasks where there is no
    /// runtime to ask.
    #[serde(deserialize_with = "duration", serialize_with = "span")]
    pub leak_age: SignedDuration,
    /// How long the kernel may be at tearing netns down without any progress.
    #[serde(deserialize_with = "duration", serialize_with = "span")]
    pub teardown_grace: SignedDuration,
}

/// The eBPF half.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Probes {
    /// Load it at all. Without it, netlink and procfs tell less, and later.
    pub enabled: bool,
    /// Rungs of the attach ladder that must not be used.
    pub forbid: Vec<Rung>,
    /// Between two looks at all tasks where probes tell of them.
    #[serde(deserialize_with = "duration", serialize_with = "span")]
    pub sweep: SignedDuration,
    /// The canary runs by itself too. False: only when somebody asks.
    pub canary: bool,
}

/// Who claims which IP on a link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Neighbours {
    /// Whether a socket listens for ARP on the links of the host's netns: `"auto"` (where no probe hears
    /// it), `"always"` or `"off"`.
    pub watch: Watch,
}

/// How netns are told apart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Identity {
    /// Do as if the kernel had no netns cookies.
    pub provisional: bool,
}

/// What is known of addresses beforehand.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Addresses {
    /// IPs, or prefixes of them, that several may have on one link on purpose: anycast, VIPs that move.
    #[serde(deserialize_with = "prefixes")]
    pub shared: Vec<Prefix>,
}

/// CNI: its result cache, and runs of its plugins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cni {
    /// Directories of the result cache.
    pub cache_dirs: Vec<PathBuf>,
    /// Directories of the plugins.
    pub bin_dirs: Vec<PathBuf>,
    /// Logs of the runtime, files or directories of `*.log`: they say why a plugin failed.
    pub logs: Vec<PathBuf>,
}

/// The container runtimes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Runtime {
    /// Their sockets, each a path or `{ path = "…", kind = "cri" }` (or `"docker"`). Absent: those in the
    /// usual places, as they appear. Empty: none is asked.
    pub sockets: Option<Vec<Socket>>,
    /// Sockets, or directories with sockets, of runtimes that run on the node without any of its pods. A runtime that
    /// runs and is neither asked nor named here makes every container that it may own unknown.
    pub ignore: Vec<PathBuf>,
}

/// How long the past is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// By age.
    #[serde(deserialize_with = "duration", serialize_with = "span")]
    pub max_age: SignedDuration,
    /// By size of the store.
    pub max_mib: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: DEFAULT_SOCKET.into(),
            state_dir: DEFAULT_STATE_DIR.into(),
            observe_only: false,
            node: None,
            stuck: Stuck::default(),
            holders: Holders::default(),
            probes: Probes::default(),
            addresses: Addresses::default(),
            neighbours: Neighbours::default(),
            identity: Identity::default(),
            cni: Cni::default(),
            ipam: ipam::Settings::default(),
            runtime: Runtime::default(),
            kubernetes: kubernetes::Settings::default(),
            calico: etcd::Settings::default(),
            otlp: Otlp::default(),
            metrics: metrics::Settings::default(),
            retention: Retention::default(),
        }
    }
}

impl Default for Stuck {
    fn default() -> Self {
        Self {
            grace: SignedDuration::from_secs(5),
            core_dump_grace: SignedDuration::from_secs(600),
        }
    }
}

impl Default for Holders {
    fn default() -> Self {
        Self {
            grace: SignedDuration::from_secs(30),
            leak_age: SignedDuration::from_mins(5),
            teardown_grace: SignedDuration::from_secs(30),
        }
    }
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            enabled: true,
            forbid: Vec::new(),
            sweep: SignedDuration::from_secs(30),
            canary: true,
        }
    }
}

impl Default for Cni {
    fn default() -> Self {
        Self {
            cache_dirs: cni::directories(),
            bin_dirs: cni::plugin_directories(),
            logs: cni::logs(),
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_age: SignedDuration::from_hours(30 * 24), max_mib: 64 }
    }
}

/// A configuration, and where its values come from.
#[derive(Debug)]
pub struct Loaded {
    /// The values that a daemon with this file and these variables uses.
    pub config: Config,
    /// The keys in the file. Their values are not kept: they may be secrets.
    in_file: Vec<&'static Key>,
    variables: Vec<Variable>,
}

/// Where the value of a key comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody has set it.
    Default,
    /// The file.
    File,
    /// The variable of this name.
    Variable(String),
    /// An option of the command line, such as `--socket`.
    Option(&'static str),
}

impl Loaded {
    /// Where the value of a key comes from.
    #[must_use]
    pub fn origin(&self, key: &Key) -> Origin {
        let is = |other: &&Key| other.name == key.name;
        match self.variables.iter().find(|variable| is(&variable.key)) {
            Some(variable) => Origin::Variable(variable.name()),
            None if self.in_file.iter().any(is) => Origin::File,
            None => Origin::Default,
        }
    }
}

impl Config {
    /// The configuration in `path`, or in [`DEFAULT_PATH`] if that is there, or the defaults; the variables of this
    /// process go before it.
    ///
    /// # Errors
    /// The file named cannot be read, or it or a variable says something it may not.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        Self::load_with_origins(path).map(|loaded| loaded.config)
    }

    /// Like [`Config::load`], with the origin of each value.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_with_origins(path: Option<&Path>) -> Result<Loaded, ConfigError> {
        let environment: Vec<_> = std::env::vars_os().collect();
        let (path, named) = path.map_or((Path::new(DEFAULT_PATH), false), |path| (path, true));
        let read = match bounded::read(path, MAX_BYTES) {
            Ok(read) => read,
            Err(error) if !named && error.kind() == std::io::ErrorKind::NotFound => {
                return Self::build("", path, &environment);
            }
            Err(source) => return Err(ConfigError::Read { path: path.into(), source }),
        };
        if read.truncated {
            return Err(ConfigError::TooLarge(path.into()));
        }
        Self::build(&String::from_utf8_lossy(&read.bytes), path, &environment)
    }

    /// The configuration of a file with this text and of these variables.
    fn build(
        text: &str,
        path: &Path,
        environment: &[(OsString, OsString)],
    ) -> Result<Loaded, ConfigError> {
        // The text itself, because only then an error has its line.
        let file: Self = toml::from_str(text).map_err(|error| in_file(text, path, &error))?;
        let mut whole: Table = text.parse().map_err(|error| in_file(text, path, &error))?;
        let in_keys = keys::KEYS.iter().filter(|key| key.is_in(&whole)).collect();
        let variables = environment::read(environment).map_err(ConfigError::Variable)?;
        variables.iter().for_each(|variable| variable.set(&mut whole));
        let config = if variables.is_empty() {
            file
        } else {
            whole.try_into().map_err(|error| in_file(text, path, &error))?
        };
        config.validate().map_err(|message| {
            // The variable that is wrong in the same way without the file.
            let same = |variable: &&Variable| {
                let alone = variable.alone().and_then(|config| config.validate());
                alone.err().as_ref() == Some(&message)
            };
            match variables.iter().find(same) {
                Some(variable) => ConfigError::Variable(variable.wrong(message)),
                None => ConfigError::Value { path: path.into(), message },
            }
        })?;
        Ok(Loaded { config, in_file: in_keys, variables })
    }

    #[cfg(test)]
    fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::build(text, path, &[]).map(|loaded| loaded.config)
    }

    fn validate(&self) -> Result<(), String> {
        let positive = |name: &str, value: SignedDuration| {
            if value < SignedDuration::from_millis(100) {
                return Err(format!("{name} must be at least 100ms"));
            }
            Ok(())
        };
        positive("stuck.grace", self.stuck.grace)?;
        positive("stuck.core_dump_grace", self.stuck.core_dump_grace)?;
        positive("holders.grace", self.holders.grace)?;
        positive("holders.leak_age", self.holders.leak_age)?;
        positive("holders.teardown_grace", self.holders.teardown_grace)?;
        positive("retention.max_age", self.retention.max_age)?;
        if !self.probes.sweep.is_zero() && self.probes.sweep < SignedDuration::from_secs(1) {
            return Err("probes.sweep must be at least 1s, or 0s for never".into());
        }
        if self.retention.max_mib == 0 {
            return Err("retention.max_mib must be at least 1".into());
        }
        if let Some(path) = self.ipam.wrong_path() {
            return Err(format!("ipam: {} must begin with /", path.display()));
        }
        if let Some(path) = self.kubernetes.wrong_path() {
            return Err(format!("kubernetes: {} must begin with /", path.display()));
        }
        if let Some(name) = self.kubernetes.wrong_namespace() {
            return Err(format!("kubernetes.event_namespaces: {name:?} is no name of a namespace"));
        }
        if let Some(wrong) = self.calico.wrong() {
            return Err(wrong);
        }
        if let Some(wrong) = self.metrics.wrong() {
            return Err(wrong);
        }
        if let Some(path) = self.otlp.wrong_path() {
            return Err(format!("otlp: {} must begin with /", path.display()));
        }
        self.otlp.validate().map_err(|error| error.to_string())
    }

    /// How patient the map is.
    #[must_use]
    pub fn thresholds(&self) -> Thresholds {
        Thresholds {
            grace: nanoseconds(self.stuck.grace),
            core_dump_grace: nanoseconds(self.stuck.core_dump_grace),
            sandbox_grace: nanoseconds(self.holders.grace),
            leak_age: nanoseconds(self.holders.leak_age),
            teardown_grace: nanoseconds(self.holders.teardown_grace),
            ..Thresholds::default()
        }
    }

    /// What of it changes what is found.
    #[must_use]
    pub fn engine(&self) -> Settings {
        Settings {
            provisional: self.identity.provisional,
            thresholds: self.thresholds(),
            shared: self.addresses.shared.clone(),
        }
    }
}

/// Nanoseconds of a duration that `validate` found positive.
fn nanoseconds(duration: SignedDuration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::runtime::Kind;

    /// The configuration of this text and these variables.
    pub(super) fn built(
        text: &str,
        environment: &[(OsString, OsString)],
    ) -> Result<Loaded, ConfigError> {
        Config::build(text, Path::new("test.toml"), environment)
    }

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("test.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn durations_are_written_for_people() {
        let config = parse("[stuck]\ngrace = \"1m 30s\"").unwrap();
        assert_eq!(config.thresholds().grace, 90_000_000_000);
    }

    #[test]
    fn an_unknown_key_names_its_line_and_the_known_ones() {
        let error = parse("observe_only = true\n[stuck]\ngrce = \"2s\"").unwrap_err();
        assert!(
            error.contains("test.toml:3: ")
                && error.contains("unknown key `grce`, did you mean `grace`?"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn a_secret_is_not_quoted() {
        let error = parse("[otlp]\nendpoint = [\"http://me:hunter2@host\"]").unwrap_err();
        assert!(error.contains("test.toml:2: what `otlp.endpoint` says"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        assert!(parse("[stuck]\ngrace = \"0s\"").unwrap_err().contains("stuck.grace"));
        assert!(parse("[stuck]\ngrace = \"-2s\"").unwrap_err().contains("stuck.grace"));
        let error = parse("[stuck]\ngrace = \"soon\"").unwrap_err();
        assert!(error.contains("grace") && error.contains("\"soon\" is not a duration"), "{error}");
        // A day is no fixed span of time to jiff.
        assert!(parse("[retention]\nmax_age = \"30d\"").unwrap_err().contains("days as hours"));
        assert!(parse("[probes]\nforbid = [\"fentri\"]").unwrap_err().contains("fentry"));
        assert!(parse("[neighbours]\nwatch = \"on\"").unwrap_err().contains("always"));
        assert!(parse("[retention]\nmax_mib = 0").unwrap_err().contains("max_mib"));
    }

    #[test]
    fn a_collector_is_named_by_a_url() {
        let endpoint = |text: &str| parse(&format!("[otlp]\nendpoint = \"{text}\""));
        assert!(endpoint("http://127.0.0.1:4317").is_ok());
        assert!(endpoint("https://collector:4317").is_ok());
        assert!(endpoint("unix:///run/otel.sock").is_ok());
        assert!(endpoint("collector:4317").unwrap_err().contains("http://"));
        assert!(endpoint("").unwrap_err().contains("http://"));
        let wrong = parse("[otlp]\nprotocol = \"http/json\"").unwrap_err();
        assert!(wrong.contains("test.toml:2") && wrong.contains("http/protobuf"), "{wrong}");
        assert!(parse("[otlp]\ntimeout = \"1ms\"").unwrap_err().contains("otlp.timeout"));
        assert!(parse("[otlp]\ncni_calls = \"some\"").unwrap_err().contains("failed"));
        let namespaces = |list: &str| parse(&format!("[kubernetes]\nevent_namespaces = {list}"));
        assert!(namespaces("[\"db\", \"kube-system\"]").is_ok());
        assert!(namespaces("[\"db\", \"../x\"]").unwrap_err().contains("\"../x\" is no name"));
        assert!(parse("[otlp]\nca_file = \"ca.pem\"").unwrap_err().contains("must begin with /"));
        let alone = parse("[otlp]\nclient_cert_file = \"/c.pem\"").unwrap_err();
        assert!(alone.contains("client_key_file"), "{alone}");
    }

    #[test]
    fn a_runtime_is_a_path_or_says_what_it_speaks() {
        let sockets = |text: &str| {
            parse(&format!("[runtime]\nsockets = {text}")).map(|config| config.runtime.sockets)
        };
        let socket = |path: &str, kind| Socket { path: path.into(), kind };
        assert_eq!(parse("[runtime]").unwrap().runtime.sockets, None);
        assert_eq!(sockets("[]").unwrap(), Some(Vec::new()));
        let written = r#"["/a.sock", "unix:///b.sock", { path = "/c.sock", kind = "docker" },
            { path = "/d.sock" }]"#;
        assert_eq!(
            sockets(written).unwrap().unwrap(),
            [
                socket("/a.sock", None),
                socket("/b.sock", None),
                socket("/c.sock", Some(Kind::Docker)),
                socket("/d.sock", None)
            ]
        );
        assert!(sockets(r#"["a.sock"]"#).unwrap_err().contains("must begin with /"));
        assert!(sockets("[7]").unwrap_err().contains("a path, or {"));
        let wrong = sockets(r#"[{ path = "/a", kind = "podman" }]"#).unwrap_err();
        assert!(wrong.contains("cri") && wrong.contains("docker"), "{wrong}");
        assert!(sockets(r#"[{ kind = "cri" }]"#).unwrap_err().contains("path"));
        assert!(sockets(r#"[{ path = "/a", port = 1 }]"#).unwrap_err().contains("port"));
    }

    #[test]
    fn what_is_shared_is_an_ip_or_a_prefix() {
        let shared = parse(
            r#"[addresses]
            shared = ["10.0.0.1", "192.0.2.0/24", "2001:db8::/64"]"#,
        );
        let shared = shared.unwrap().addresses.shared;
        assert_eq!((shared[0].len, shared[1].len, shared[2].len), (32, 24, 64));
        let wrong = parse("[addresses]\nshared = [\"ten\"]").unwrap_err();
        assert!(wrong.contains("\"ten\" is neither"), "{wrong}");
    }

    #[test]
    fn a_store_is_an_absolute_path() {
        let wrong = parse("[ipam]\ndata_dirs = [\"networks\"]").unwrap_err();
        assert!(wrong.contains("networks must begin with /"), "{wrong}");
        assert!(parse("[ipam]\ncilium_state = \"\"").is_err());
        assert!(parse("[ipam]\ndata_dir = []").unwrap_err().contains("data_dir"));
        assert_eq!(
            parse("[ipam]\nconf_dirs = []").unwrap().ipam.conf_dirs,
            [""; 0].map(PathBuf::from)
        );
    }
}
