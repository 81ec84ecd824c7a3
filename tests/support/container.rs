//! The daemon in a container, as in the DaemonSet of `deploy/kubernetes`: an OCI bundle is derived from that manifest
//! (namespaces, mounts and their propagation, capabilities) and run by runc. There is no kubelet: its translation of
//! the manifest is reproduced here.
//!
//! `IPWATCH_TEST_CONTAINER=1` starts every daemon of a run this way.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::{Lab, daemon};

const MANIFEST: &str = include_str!("../../deploy/kubernetes/base/daemonset.yaml");
const SECCOMP: &str = include_str!("../../deploy/kubernetes/seccomp.json");

/// Whether the daemons of this run must be in containers.
#[must_use]
pub fn wanted() -> bool {
    std::env::var_os("IPWATCH_TEST_CONTAINER").is_some()
}

/// Why no container can be run here.
#[must_use]
pub fn missing() -> Option<String> {
    let runs = Command::new("runc").arg("--version").stdout(Stdio::null()).status();
    (!runs.is_ok_and(|status| status.success())).then(|| "no runc".into())
}

/// The properties of a container: those of the manifest, unless a test changes them.
#[derive(Debug, Clone)]
pub struct Plan {
    host_pid: bool,
    host_network: bool,
    mounts: Vec<Mounted>,
    capabilities: Vec<String>,
    env: Vec<String>,
    /// Files of the image, or that kubelet makes: their paths and contents.
    files: Vec<(String, String)>,
    /// Its seccomp profile, as in the OCI configuration.
    seccomp: Option<Value>,
}

#[derive(Debug, Clone)]
struct Mounted {
    from: PathBuf,
    to: String,
    read_only: bool,
    follows: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let document: Value = serde_norway::from_str(MANIFEST).expect("the manifest");
        let pod = &document["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let list = |value: &Value| value.as_array().expect("a list").clone().into_iter();
        let volumes: Vec<Value> = list(&pod["volumes"]).collect();
        let host_path = |name: &Value| {
            let volume = volumes.iter().find(|volume| volume["name"] == *name).expect("its volume");
            volume["hostPath"]["path"].as_str().map(PathBuf::from)
        };
        let mounts = list(&container["volumeMounts"]).filter_map(|mount| {
            Some(Mounted {
                from: host_path(&mount["name"])?,
                to: text(&mount["mountPath"]),
                read_only: mount["readOnly"] == true,
                follows: mount["mountPropagation"] == "HostToContainer",
            })
        });
        // What kubelet would take from the pod, such as the node's name, is left out.
        let env = list(&container["env"]).filter(|env| env["value"].is_string()).map(|env| {
            let (name, value) = (text(&env["name"]), text(&env["value"]));
            format!("{name}={value}")
        });
        let added = list(&container["securityContext"]["capabilities"]["add"]);
        Self {
            host_pid: pod["hostPID"] == true,
            host_network: pod["hostNetwork"] == true,
            mounts: mounts.collect(),
            capabilities: added.map(|name| format!("CAP_{}", text(&name))).collect(),
            env: env.collect(),
            files: Vec::new(),
            seccomp: None,
        }
    }
}

impl Plan {
    /// With a separate PID namespace.
    #[must_use]
    pub fn own_pids(mut self) -> Self {
        self.host_pid = false;
        self
    }

    /// With a separate network namespace.
    #[must_use]
    pub fn own_network(mut self) -> Self {
        self.host_network = false;
        self
    }

    /// With a file in the container, as kubelet makes `/etc/resolv.conf`.
    #[must_use]
    pub fn file(mut self, path: &str, text: &str) -> Self {
        self.files.push((path.to_owned(), text.to_owned()));
        self
    }

    /// With a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push(format!("{name}={value}"));
        self
    }

    /// Under the profile of `deploy/kubernetes`.
    ///
    /// # Panics
    /// It is not JSON.
    #[must_use]
    pub fn under_seccomp(mut self) -> Self {
        self.seccomp = Some(serde_json::from_str(SECCOMP).expect("the profile"));
        self
    }

    /// Without propagation of the node's mounts.
    #[must_use]
    pub fn private(mut self) -> Self {
        self.mounts.iter_mut().for_each(|mount| mount.follows = false);
        self
    }
}

/// A bundle on disk. When dropped, the container is deleted, even if runc failed.
#[derive(Debug)]
pub struct Bundle {
    dir: PathBuf,
    state: PathBuf,
    id: String,
}

impl Bundle {
    /// A bundle whose container runs `ipwatch ARGS`. The lab's directory is mounted in it as well.
    #[must_use]
    pub fn make(lab: &Lab, plan: &Plan, args: &[String]) -> Self {
        let dir = lab.subdir("bundle");
        let root = dir.join("rootfs");
        let mut mounts = vec![json!({ "destination": "/proc", "type": "proc", "source": "proc" })];
        let lab_dir = lab.dir().to_owned();
        let own = Mounted {
            to: format!("/host{}", lab_dir.display()),
            from: lab_dir,
            read_only: false,
            follows: true,
        };
        for mount in plan.mounts.iter().chain([&own]) {
            fs::create_dir_all(root.join(mount.to.trim_start_matches('/'))).expect("a mount point");
            if !mount.from.exists() {
                // `DirectoryOrCreate` would create it, but not on a test's host.
                continue;
            }
            mounts.push(mount.option());
        }
        let _ = symlink("../run", root.join("host/var/run"));
        for (path, text) in &plan.files {
            let file = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(file.parent().expect("a directory")).expect("make a directory");
            fs::write(file, text).expect("write a file");
        }
        let program = root.join("usr/bin/ipwatch");
        fs::create_dir_all(program.parent().expect("a directory")).expect("make a directory");
        fs::write(&program, "").expect("a mount point");
        mounts.push(bind(&daemon::binary(), "/usr/bin/ipwatch", &["bind", "ro"]));
        let mut namespaces = vec![json!({ "type": "mount" }), json!({ "type": "ipc" })];
        if !plan.host_pid {
            namespaces.push(json!({ "type": "pid" }));
        }
        if !plan.host_network {
            namespaces.push(json!({ "type": "network" }));
        }
        let id = format!("{}-ipwatch", lab.tag());
        let held = &plan.capabilities;
        let args: Vec<&str> =
            ["/usr/bin/ipwatch"].into_iter().chain(args.iter().map(String::as_str)).collect();
        let mut linux = json!({ "namespaces": namespaces, "cgroupsPath": format!("/{id}") });
        if let Some(profile) = &plan.seccomp {
            linux["seccomp"] = profile.clone();
        }
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": { "uid": 0, "gid": 0 },
                "args": args,
                "env": plan.env,
                "cwd": "/",
                "capabilities": { "bounding": held, "effective": held, "permitted": held },
            },
            "root": { "path": "rootfs", "readonly": true },
            "mounts": mounts,
            "linux": linux,
        });
        fs::write(dir.join("config.json"), config.to_string()).expect("write the bundle");
        Self { dir, state: lab.subdir("runc"), id }
    }

    fn runc(&self) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(&self.state);
        command
    }

    /// The command that runs the container and passes signals on.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = self.runc();
        command.arg("run").arg("--bundle").arg(&self.dir).arg(&self.id);
        command
    }

    /// The pid of the daemon itself.
    #[must_use]
    pub fn pid(&self) -> u32 {
        let out = self.runc().arg("state").arg(&self.id).output().expect("run runc");
        let state: Value = serde_json::from_slice(&out.stdout).expect("the container's state");
        u32::try_from(state["pid"].as_u64().expect("its pid")).expect("a pid")
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let mut delete = self.runc();
        delete.args(["delete", "--force"]).arg(&self.id);
        let _ = delete.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

impl Mounted {
    fn option(&self) -> Value {
        let follows = if self.follows { "rslave" } else { "rprivate" };
        let writable = if self.read_only { "ro" } else { "rw" };
        bind(&self.from, &self.to, &["rbind", follows, writable])
    }
}

fn bind(from: &Path, to: &str, options: &[&str]) -> Value {
    json!({ "destination": to, "type": "bind", "source": from, "options": options })
}
