//! Real CNI plugins, called by the test as a runtime would: for networks that no containerd here has, and for what a
//! runtime would not do, such as never calling DEL.
//!
//! Their node is a netns of the lab, so that everything that they leave on a node, including addresses, is in it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{Lab, Netns, pod, sys};

/// A network: its configuration, its plugins, its reservations.
#[derive(Debug, Clone)]
pub struct Network {
    name: String,
    node: PathBuf,
    bin: PathBuf,
    plugin: Value,
    data_dir: PathBuf,
}

/// The failure of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Its `code`; 0 if its output cannot be parsed.
    pub code: u64,
    /// Its output.
    pub said: String,
}

/// The container and its pod.
#[derive(Debug, Clone)]
pub struct Container {
    /// Its id: 64 hexadecimal digits.
    pub id: String,
    /// Name of its pod, in the namespace `shop`.
    pub pod: String,
    /// Uid of its pod.
    pub uid: String,
}

impl Container {
    /// A container unknown to any runtime. `n` distinguishes those of a lab.
    #[must_use]
    pub fn new(lab: &Lab, n: usize) -> Self {
        let (first, last) = pod::uid_of(lab.tag());
        let (id, pod) = (format!("{first}{n:044x}{last}"), format!("direct-{n}"));
        Self { id, pod, uid: pod::new_uid(lab.tag()) }
    }

    /// This container, with a pod of the given name.
    #[must_use]
    pub fn of_pod(mut self, name: &str) -> Self {
        name.clone_into(&mut self.pod);
        self
    }
}

impl Network {
    /// A network with the main plugin `plugin`, `more` keys in its configuration, and host-local for the addresses of
    /// `subnet`. Its configuration is also written to the lab's directory of networks.
    #[must_use]
    pub fn new(
        lab: &Lab,
        node: &Netns,
        name: &str,
        plugin: &str,
        subnet: &str,
        more: Value,
    ) -> Self {
        let name = format!("{}-{name}", lab.tag());
        let data_dir = lab.subdir("ipam");
        let mut config = json!({
            "type": plugin,
            "ipam": {
                "type": "host-local",
                "dataDir": data_dir,
                "ranges": [[{ "subnet": subnet }]],
            },
        });
        let keys = config.as_object_mut().expect("an object");
        keys.extend(more.as_object().cloned().unwrap_or_default());
        let list = json!({ "cniVersion": "0.4.0", "name": name, "plugins": [config] });
        fs::write(conf_dir(lab).join(format!("{name}.conflist")), list.to_string())
            .expect("write the conflist");
        let bin = bin_dir(lab);
        if !bin.join("host-local").exists() {
            pod::programs(&bin, Path::new(pod::PLUGINS));
        }
        let node = node.path().to_owned();
        Self { name, node, bin, plugin: config, data_dir }
    }

    /// The same network with `ipwatch-ipam` before host-local, which asks the daemon of the lab.
    #[must_use]
    pub fn prevented(&self, lab: &Lab) -> Self {
        let file = conf_dir(lab).join(format!("{}.conflist", self.name));
        let plain = fs::read_to_string(&file).expect("read the conflist");
        let text = pod::prevented(lab, &plain, false);
        fs::write(file, &text).expect("write the conflist");
        let mut list: Value = serde_json::from_str(&text).expect("a conflist");
        Self { plugin: list["plugins"][0].take(), ..self.clone() }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Directory of its reservations.
    #[must_use]
    pub fn reservations(&self) -> PathBuf {
        self.data_dir.join(&self.name)
    }

    /// The container's reservation, whose file name is the IP.
    #[must_use]
    pub fn ip_of(&self, container: &Container) -> Option<String> {
        let files = fs::read_dir(self.reservations()).ok()?.flatten();
        let of = |entry: &fs::DirEntry| {
            fs::read_to_string(entry.path()).is_ok_and(|text| text.starts_with(&container.id))
        };
        let mut names = files.filter(of).filter_map(|entry| entry.file_name().into_string().ok());
        names.find(|name| name.parse::<std::net::IpAddr>().is_ok())
    }

    /// ADD; returns the container's IP.
    ///
    /// # Errors
    /// The output of the plugin.
    pub fn add(&self, container: &Container, netns: &Netns) -> Result<String, Failed> {
        let result = self.call("ADD", container, Some(netns.path()))?;
        let cidr = result["ips"][0]["address"].as_str().expect("a result has an IP");
        Ok(cidr.split('/').next().expect("an IP").to_owned())
    }

    /// DEL; without a netns if the runtime no longer knows it.
    ///
    /// # Errors
    /// The output of the plugin.
    pub fn del(&self, container: &Container, netns: Option<&Netns>) -> Result<(), Failed> {
        self.call("DEL", container, netns.map(Netns::path)).map(drop)
    }

    fn call(
        &self,
        command: &str,
        container: &Container,
        netns: Option<&Path>,
    ) -> Result<Value, Failed> {
        let mut config = self.plugin.clone();
        config["cniVersion"] = "0.4.0".into();
        config["name"] = self.name.as_str().into();
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            container.pod, container.id, container.uid
        );
        let mut plugin = Command::new(self.bin.join(self.plugin["type"].as_str().expect("a type")));
        plugin.env("CNI_COMMAND", command).env("CNI_CONTAINERID", &container.id);
        plugin.env("CNI_NETNS", netns.unwrap_or(Path::new(""))).env("CNI_IFNAME", "eth0");
        plugin.env("CNI_PATH", &self.bin).env("CNI_ARGS", args);
        plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let out = sys::on_own_thread(|| {
            sys::enter_netns(&self.node).expect("enter the node's netns");
            let mut child = plugin.spawn().expect("start a plugin");
            let mut input = child.stdin.take().expect("a pipe");
            input.write_all(config.to_string().as_bytes()).expect("write to a plugin");
            drop(input);
            child.wait_with_output().expect("wait for a plugin")
        });
        let said: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        if out.status.success() {
            return Ok(said);
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said_plainly = said["msg"].as_str().map(str::to_owned);
        Err(Failed {
            code: said["code"].as_u64().unwrap_or(0),
            said: said_plainly.unwrap_or_else(|| text(&out.stdout) + &text(&out.stderr)),
        })
    }
}

/// Directory of the lab's network configurations.
#[must_use]
pub fn conf_dir(lab: &Lab) -> PathBuf {
    lab.subdir("cni.d")
}

/// Directory of the plugins that a test calls.
#[must_use]
pub fn bin_dir(lab: &Lab) -> PathBuf {
    lab.subdir("cni.bin")
}
