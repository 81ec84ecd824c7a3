//! The IPAM plugin of a network, called as a main plugin calls it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::Suite;
use crate::cni;
use crate::pod::Containerd;
use crate::suite::Cgroups;

/// An IPAM plugin and the network that it serves.
#[derive(Debug, Clone)]
pub struct Plugin {
    program: PathBuf,
    /// Runs it beside the libraries that it needs.
    suite: Option<Suite>,
    bin: PathBuf,
    config: Value,
    store: PathBuf,
}

impl Plugin {
    /// That of a containerd's network.
    #[must_use]
    pub fn of(containerd: &Containerd<'_>) -> Self {
        let file = containerd.conf_dirs()[0].join("10-test.conflist");
        let text = fs::read_to_string(file).expect("read the network");
        let plugin = Self::new(&text, &containerd.bin_dir(), &containerd.reservations());
        Self { suite: containerd.suite(), ..plugin }
    }

    /// That of the first plugin of a conflist, with the directory of plugins and that of host-local's reservations.
    #[must_use]
    pub fn new(conflist: &str, bin: &Path, store: &Path) -> Self {
        let list: Value = serde_json::from_str(conflist).expect("a conflist");
        let mut config = list["plugins"][0].clone();
        config["name"] = list["name"].clone();
        config["cniVersion"] = "1.0.0".into();
        Self::with(config, bin, store)
    }

    fn with(config: Value, bin: &Path, store: &Path) -> Self {
        let program = bin.join(config["ipam"]["type"].as_str().expect("an IPAM plugin"));
        Self { program, suite: None, bin: bin.to_owned(), config, store: store.to_owned() }
    }

    /// The delegate of `ipwatch-ipam` alone.
    #[must_use]
    pub fn bare(&self) -> Self {
        let mut config = self.config.clone();
        config["ipam"] = config["ipam"]["delegate"].take();
        Self { suite: self.suite, ..Self::with(config, &self.bin, &self.store) }
    }

    /// The same with other values at the top of its configuration.
    #[must_use]
    pub fn with_values(&self, values: &Value) -> Self {
        let mut config = self.config.clone();
        for (key, value) in values.as_object().expect("an object") {
            config[key] = value.clone();
        }
        Self { config, ..self.clone() }
    }

    /// The same with another value in `ipam`.
    #[must_use]
    pub fn with_option(&self, key: &str, value: impl Into<Value>) -> Self {
        let mut config = self.config.clone();
        config["ipam"][key] = value.into();
        Self { config, ..self.clone() }
    }

    /// The same with `ipwatch-ipam` and the real host-local in a new directory of plugins: host-local of a containerd is a
    /// script that can be made slow, which costs more CPU than host-local itself.
    #[must_use]
    pub fn with_real_delegate(&self, bin: &Path) -> Self {
        fs::create_dir_all(bin).expect("make a directory");
        let own = fs::canonicalize(&self.program).expect("the plugin");
        symlink(own, bin.join("ipwatch-ipam")).expect("link a plugin");
        symlink(Path::new(cni::PLUGINS).join("host-local"), bin.join("host-local"))
            .expect("link a plugin");
        Self::with(self.config.clone(), bin, &self.store)
    }

    /// Directory of host-local's reservations.
    #[must_use]
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// What it reads.
    #[must_use]
    pub fn config(&self) -> String {
        self.config.to_string()
    }

    /// The environment of a call.
    #[must_use]
    pub fn environment(&self, command: &str, id: &str) -> [(&'static str, OsString); 5] {
        [
            ("CNI_COMMAND", command.into()),
            ("CNI_CONTAINERID", id.into()),
            ("CNI_IFNAME", "eth0".into()),
            ("CNI_NETNS", "/run/netns/nobodys".into()),
            ("CNI_PATH", self.bin.clone().into()),
        ]
    }

    /// A call, which is killed after so long. `None`: it was.
    #[must_use]
    pub fn call(&self, command: &str, id: &str, killed: Option<Duration>) -> Option<Output> {
        let program = &self.program;
        let of_suite = |suite: Suite| suite.command(program, Cgroups::Host);
        let mut plugin = self.suite.map_or_else(|| Command::new(program), of_suite);
        plugin.envs(self.environment(command, id));
        let mut plugin = started(plugin, &self.config());
        if let Some(after) = killed {
            std::thread::sleep(after);
            plugin.kill().expect("kill the plugin");
        }
        let out = plugin.wait_with_output().expect("wait for the plugin");
        (out.status.signal() != Some(libc::SIGKILL)).then_some(out)
    }

    /// An ADD that succeeds. Returns its addresses.
    #[track_caller]
    #[must_use]
    pub fn add(&self, id: &str) -> Vec<IpAddr> {
        let out = self.call("ADD", id, None).expect("not killed");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        addresses(&out.stdout)
    }

    /// A DEL that succeeds.
    #[track_caller]
    pub fn del(&self, id: &str) {
        let out = self.call("DEL", id, None).expect("not killed");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }

    /// The invariant of a result: each of its addresses, so many, is stored under exactly this id and interface.
    #[track_caller]
    pub fn assert_stored(&self, id: &str, result: &[u8], number: usize) {
        let ips = addresses(result);
        assert_eq!(ips.len(), number, "{}", String::from_utf8_lossy(result));
        for ip in ips {
            let stored = fs::read_to_string(self.store.join(ip.to_string())).unwrap_or_default();
            let stored: Vec<&str> = stored.split_whitespace().collect();
            assert_eq!(stored, [id, "eth0"], "{ip}");
        }
    }

    /// Each address that is stored, and its container.
    #[must_use]
    pub fn stored(&self) -> BTreeMap<IpAddr, String> {
        let files = fs::read_dir(&self.store).into_iter().flatten().flatten();
        let of = |file: fs::DirEntry| {
            let ip = file.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            Some((ip, text.split_whitespace().next().unwrap_or_default().to_owned()))
        };
        files.filter_map(of).collect()
    }
}

/// Starts a plugin with this configuration.
fn started(mut plugin: Command, config: &str) -> Child {
    plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut plugin = plugin.spawn().expect("run the plugin");
    let mut stdin = plugin.stdin.take().expect("its standard input");
    // One that is killed reads nothing.
    let _ = stdin.write_all(config.as_bytes());
    plugin
}

/// Runs a plugin with this configuration.
#[must_use]
pub fn answered(plugin: Command, config: &str) -> Output {
    started(plugin, config).wait_with_output().expect("wait for the plugin")
}

/// The addresses of a result.
///
/// # Panics
/// It is none.
#[must_use]
#[track_caller]
pub fn addresses(result: &[u8]) -> Vec<IpAddr> {
    let result: Value = serde_json::from_slice(result).expect("a result");
    let ips = result["ips"].as_array().expect("addresses");
    let ip = |ip: &Value| {
        let address = ip["address"].as_str().expect("an address");
        address.split('/').next().and_then(|ip| ip.parse().ok()).expect("an address")
    };
    ips.iter().map(ip).collect()
}
