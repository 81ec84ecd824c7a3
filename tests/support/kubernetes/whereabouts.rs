//! Whereabouts as an IPAM plugin, for tests that run `ipwatch-ipam` around it.
//!
//! No package has it, so that this is a program of the tests which keeps its addresses in a real API server as Whereabouts
//! 0.8.0 does (`AssignIP`, `DeallocateIP` and `IPManagementKubernetesUpdate`):
//!
//! - Each range has an IPPool with an entry for each address: the container's id, the pod and the interface. An entry is
//!   written only to the version of the pool that was read.
//! - An ADD gets the address of the entry with the same pod and interface, whose id becomes that of the new container; or
//!   the lowest address without an entry.
//! - A DEL removes the first entry of its container, whatever its interface (0.9 and newer: that of the interface). If there
//!   is none, it succeeds.
//! - Each address has an OverlappingRangeIPReservation besides.
//!
//! `IPWATCH_TEST_WHEREABOUTS` names a program of Whereabouts that is run instead; the tests were run with that of 0.8.0.

use std::fs;
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{Api, ControlPlane, api, stores};
use crate::role::{self, Helper, Role};
use crate::sys;

/// The real program.
const REAL: &str = "IPWATCH_TEST_WHEREABOUTS";
/// Path of the overlapping reservations.
const OVERLAPPING: &str =
    "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/overlappingrangeipreservations";

/// Makes it the program `whereabouts` of a directory of plugins.
pub fn install(control: &ControlPlane, bin: &Path) {
    let program = bin.join("whereabouts");
    if let Some(real) = std::env::var_os(REAL) {
        return symlink(PathBuf::from(real), program).expect("link a plugin");
    }
    let own = Helper::command(Role::Whereabouts);
    let set = own.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let set: Vec<String> =
        set.map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
    let text = format!(
        "#!/bin/sh\n{} exec '{}' '{}' '{}'\n",
        set.join(" "),
        own.get_program().display(),
        control.dir.join(api::CONFIG).display(),
        control.netns.path().display()
    );
    fs::write(&program, text).expect("write a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make it a program");
}

/// An address of a range.
#[derive(Debug, Clone)]
struct Range {
    network: Ipv4Addr,
    length: u32,
    text: String,
}

impl Range {
    fn of(config: &Value) -> Self {
        let text = config["ipam"]["range"].as_str().expect("a range").to_owned();
        let (network, length) = text.split_once('/').expect("a CIDR");
        let (network, length) = (network.parse().expect("IPv4"), length.parse().expect("a length"));
        Self { network, length, text }
    }

    fn ip(&self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.to_bits() + offset)
    }

    /// The offsets of its addresses, without those of the network and of broadcast.
    fn offsets(&self) -> std::ops::Range<u32> {
        1..(1 << (32 - self.length)) - 1
    }
}

/// The call of a runtime.
struct Call {
    api: Api,
    container: String,
    ifname: String,
    /// Namespace and name of the pod.
    pod: String,
    version: String,
    range: Range,
}

/// Serves one call.
pub(crate) fn serve(args: &[String]) {
    let [curl, netns] = args else { panic!("curl's configuration and the netns of the server") };
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).expect("read the configuration");
    let config: Value = serde_json::from_str(&input).expect("a configuration");
    let args = variable("CNI_ARGS");
    let arg = |name: &str| {
        let mut pairs = args.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value).unwrap_or_default()
    };
    let call = Call {
        api: Api::by(curl.into(), Path::new(netns)),
        container: variable("CNI_CONTAINERID"),
        ifname: variable("CNI_IFNAME"),
        pod: format!("{}/{}", arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")),
        version: config["cniVersion"].as_str().unwrap_or_default().to_owned(),
        range: Range::of(&config),
    };
    let answer = match &*variable("CNI_COMMAND") {
        "ADD" => call.add(),
        // It never fails.
        "DEL" => call.del().or(Ok(Value::Null)),
        other => Err(format!("{other} is not implemented")),
    };
    match answer {
        Ok(Value::Null) => {}
        Ok(result) => role::say(&result.to_string()),
        Err(msg) => {
            let error = json!({ "cniVersion": call.version, "code": 999, "msg": msg });
            role::say(&error.to_string());
            sys::exit_now(1);
        }
    }
}

impl Call {
    fn add(&self) -> Result<Value, String> {
        let ip = self.changing(|call, entries| call.assign(entries).map(Some))?;
        let ip = ip.ok_or("no IP")?;
        let path = format!("{OVERLAPPING}/{ip}");
        if self.api.get(&path).is_err() {
            let object = json!({
                "apiVersion": "whereabouts.cni.cncf.io/v1alpha1",
                "kind": "OverlappingRangeIPReservation", "metadata": { "name": ip.to_string() },
                "spec": { "podref": self.pod, "ifname": self.ifname },
            });
            self.api.ask("POST", OVERLAPPING, Some(&object))?;
        }
        let address = format!("{ip}/{}", self.range.length);
        Ok(json!({
            "cniVersion": self.version, "dns": {},
            "ips": [{ "version": "4", "address": address }],
        }))
    }

    fn del(&self) -> Result<Value, String> {
        if let Some(ip) = self.changing(|call, entries| Ok(call.deallocate(entries)))? {
            self.api.ask("DELETE", &format!("{OVERLAPPING}/{ip}"), None)?;
        }
        Ok(Value::Null)
    }

    fn assign(&self, entries: &mut Map<String, Value>) -> Result<Ipv4Addr, String> {
        let own = |entry: &Value| entry["podref"] == self.pod && entry["ifname"] == self.ifname;
        if let Some((offset, entry)) = entries.iter_mut().find(|(_, entry)| own(entry)) {
            entry["id"] = self.container.as_str().into();
            return Ok(self.range.ip(offset.parse().map_err(|_| "no offset")?));
        }
        let offset = self.range.offsets().find(|n| !entries.contains_key(&n.to_string()));
        let offset =
            offset.ok_or(format!("Could not allocate IP in range: {}", self.range.text))?;
        let entry = json!({ "id": self.container, "podref": self.pod, "ifname": self.ifname });
        entries.insert(offset.to_string(), entry);
        Ok(self.range.ip(offset))
    }

    fn deallocate(&self, entries: &mut Map<String, Value>) -> Option<Ipv4Addr> {
        let own = |entry: &Value| entry["id"] == self.container;
        let offset = entries.iter().find(|(_, entry)| own(entry)).map(|(key, _)| key.clone())?;
        entries.remove(&offset);
        Some(self.range.ip(offset.parse().ok()?))
    }

    /// Changes the entries of the pool, which is made if there is none. Another writer makes it begin again.
    fn changing(
        &self,
        change: impl Fn(&Self, &mut Map<String, Value>) -> Result<Option<Ipv4Addr>, String>,
    ) -> Result<Option<Ipv4Addr>, String> {
        let path = format!("{}/{}", stores::POOLS, stores::pool_name(&self.range.text));
        for _ in 0..100 {
            let Ok(mut pool) = self.api.get(&path) else {
                let new = json!({
                    "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
                    "metadata": { "name": stores::pool_name(&self.range.text) },
                    "spec": { "range": self.range.text, "allocations": {} },
                });
                let _ = self.api.ask("POST", stores::POOLS, Some(&new));
                continue;
            };
            let entries = pool["spec"]["allocations"].as_object_mut().ok_or("no pool")?;
            let before = entries.clone();
            let ip = change(self, entries)?;
            if *entries == before {
                return Ok(ip);
            }
            // The object's version is among what was read.
            match self.api.ask("PUT", &path, Some(&pool)) {
                Err(error) if error.starts_with("409") => {}
                done => return done.map(|_| ip),
            }
        }
        Err("other writers all the time".to_owned())
    }
}
