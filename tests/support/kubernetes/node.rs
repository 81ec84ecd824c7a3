//! A node: a kubelet with the lab's containerd, whose pods get IPs from bridge and host-local.
//!
//! This kubelet does not affect the host: it has separate cgroups, directories and network. The sysctls that a
//! kubelet sets at its start are replaced by files of the lab, in a separate mount namespace, so that nothing must be
//! restored, even if the test is killed. Only the pods' logs have a fixed directory, below `/var/log`: see [`sweep`].

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::part::Part;
use super::{Api, ControlPlane, home, program};
use crate::pod::{Containerd, IMAGE, Pod, Setup};
use crate::poll::{eventually, until};
use crate::{Lab, cgroup};

/// Directories of kubelet's pod logs, and of links to them.
const LOGS: [&str; 2] = ["/var/log/pods", "/var/log/containers"];

/// Directories of the daemon in a pod, on the host empty.
const OWN: [&str; 2] = ["/run/ipwatch", "/var/lib/ipwatch"];

/// Replaces the sysctls that kubelet sets (`setupKernelTunables`, pkg/kubelet/cm) by files below `$0`.
const SHIELD: &str = r#"
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    mkdir -p "$0/${name%/*}"
    cat "/proc/sys/$name" > "$0/$name"
    mount --bind "$0/$name" "/proc/sys/$name"
done
exec "$@"
"#;

/// A running node.
#[derive(Debug)]
pub struct Node<'a> {
    lab: &'a Lab,
    kubelet: Part,
    /// Its runtime.
    pub containerd: Containerd<'a>,
    /// Its API server.
    pub control: ControlPlane,
}

impl<'a> Node<'a> {
    /// Starts everything and waits until the node is Ready. `subnet` is where pods' IPs come from ([`Setup::subnet`]);
    /// `flags` are further ones of the kubelet's.
    #[must_use]
    pub fn start(lab: &'a Lab, subnet: &str, flags: &[&str]) -> Self {
        Self::of(lab, ControlPlane::start(lab), subnet, flags)
    }

    /// Like `start`, with the API server that tests share.
    #[must_use]
    pub fn shared(lab: &'a Lab, subnet: &str, flags: &[&str]) -> Self {
        Self::of(lab, ControlPlane::shared(lab), subnet, flags)
    }

    /// The host itself is the node, for a pod in the node's network and mounts: kubelet and containerd are in the host's
    /// netns. Their mounts are those of [`Setup::apart`].
    #[must_use]
    pub fn on_the_host(lab: &'a Lab, subnet: &str) -> Self {
        let control = ControlPlane::start(lab);
        note_dirs(lab, &[&LOGS[..], &OWN].concat());
        let setup = Setup { subnet: Some(subnet.to_owned()), apart: true, ..Setup::default() };
        let containerd = Containerd::start_as(lab, &setup);
        let mut command = Command::new("nsenter");
        command.args(["-m", "-t", &containerd.pid().to_string(), "sh", "-euc", SHIELD]);
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = free.local_addr().expect("a port").port().to_string();
        drop(free);
        let config = control.far_node_config();
        with_flags(&mut command, lab, &control, &containerd, (&config, &port));
        Self::with(lab, control, containerd, command, Path::new("/proc/self/ns/net"))
    }

    /// Like `shared`, with `ipwatch-ipam` before host-local.
    #[must_use]
    pub fn prevented(lab: &'a Lab, subnet: &str) -> Self {
        let setup = Setup { prevention: true, subnet: Some(subnet.to_owned()), ..Setup::default() };
        Self::as_set_up(lab, ControlPlane::shared(lab), &setup, &[])
    }

    fn of(lab: &'a Lab, control: ControlPlane, subnet: &str, flags: &[&str]) -> Self {
        let setup = Setup { subnet: Some(subnet.to_owned()), ..Setup::default() };
        Self::as_set_up(lab, control, &setup, flags)
    }

    fn as_set_up(lab: &'a Lab, control: ControlPlane, setup: &Setup<'_>, flags: &[&str]) -> Self {
        note_dirs(lab, &LOGS);
        // Created by kubelet.
        control.api().note(&format!("/api/v1/nodes/{}", control.node));
        let setup = Setup { inside: Some(control.netns()), ..setup.clone() };
        let containerd = Containerd::start_as(lab, &setup);
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "slave", "sh", "-euc", SHIELD]);
        let (config, port) = (control.node_config(), control.kubelet_port().to_string());
        with_flags(&mut command, lab, &control, &containerd, (&config, &port));
        command.arg(format!("--node-ip={}", control.address)).args(flags);
        let netns = control.netns().path().to_owned();
        Self::with(lab, control, containerd, command, &netns)
    }

    fn with(
        lab: &'a Lab,
        control: ControlPlane,
        containerd: Containerd<'a>,
        command: Command,
        netns: &Path,
    ) -> Self {
        make_cgroups(&group(lab.tag()));
        let kubelet = Part::start("kubelet", command, netns, &home(lab));
        let mut node = Self { lab, kubelet, containerd, control };
        let namespace = json!({ "metadata": { "name": lab.tag() } });
        node.api().create("/api/v1/namespaces", &namespace);
        node.await_ready();
        node
    }

    /// The API with all rights.
    #[must_use]
    pub fn api(&self) -> &Api {
        self.control.api()
    }

    /// The lines of the daemon's configuration for this API server.
    #[must_use]
    pub fn agent_lines(&self) -> String {
        let config = self.control.agent_config();
        format!("[kubernetes]\nkubeconfig = {config:?}\nnode = {:?}", self.control.node)
    }

    /// Its netns.
    #[must_use]
    pub fn netns(&self) -> &crate::Netns {
        self.control.netns()
    }

    /// Its name in the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.control.node
    }

    /// The namespace of its pods.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.lab.tag()
    }

    /// Waits until the node is Ready.
    pub fn await_ready(&mut self) {
        let path = format!("/api/v1/nodes/{}", self.control.node);
        until("the node is Ready", 90, || {
            self.kubelet.assert_running();
            let node = self.api().get(&path).unwrap_or_default();
            condition(&node, "Ready")
        });
    }

    /// Kills kubelet; its pods continue.
    pub fn crash_kubelet(&mut self) {
        self.kubelet.crash();
    }

    /// Restarts kubelet, and waits until it has reported the node as Ready.
    pub fn restart_kubelet(&mut self) {
        let path = format!("/api/v1/nodes/{}", self.control.node);
        let said = |node: &Value| {
            condition_of(node, "Ready")["lastHeartbeatTime"].as_str().map(str::to_owned)
        };
        let before = said(&self.api().get(&path).expect("the node"));
        self.kubelet.restart();
        until("kubelet says that the node is Ready", 90, || {
            self.kubelet.assert_running();
            let node = self.api().get(&path).unwrap_or_default();
            condition(&node, "Ready") && said(&node) > before
        });
    }

    /// Creates a pod whose container runs `command` and sees `dir` as `/host`.
    pub fn create(&self, name: &str, dir: &Path, command: &[&str]) {
        let container = json!({
            "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": command,
            "volumeMounts": [{ "name": "host", "mountPath": "/host" }],
        });
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": self.control.node, "restartPolicy": "Never", "dnsPolicy": "Default",
                "automountServiceAccountToken": false, "enableServiceLinks": false,
                "tolerations": [{ "operator": "Exists" }],
                "containers": [container],
                "volumes": [{ "name": "host", "hostPath": { "path": dir } }],
            },
        });
        self.api().create(&self.pods(), &pod);
    }

    /// The pod object; `None` if it does not exist.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<Value> {
        self.api().get(&self.path(name)).ok()
    }

    /// Asks for a pod's end, as `kubectl delete` does: kubelet kills it after a second, and the API has it until then.
    pub fn delete(&self, name: &str) {
        let soon = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1 });
        self.api().ask("DELETE", &self.path(name), Some(&soon)).expect("delete a pod");
    }

    /// Takes a pod out of the API at once, whatever becomes of it on the node.
    pub fn force_delete(&self, name: &str) {
        self.api().force_delete(&self.path(name));
    }

    /// Like [`Node::create`]; waits until the pod is Ready.
    #[must_use]
    pub fn run(&self, name: &str, dir: &Path, command: &[&str]) -> Pod {
        self.create(name, dir, command);
        self.await_started(name)
    }

    /// Waits until a pod that was created is Ready.
    #[must_use]
    pub fn await_started(&self, name: &str) -> Pod {
        let container = eventually(&format!("{name} is Ready"), 60, || {
            let pod = self.pod(name)?;
            let id = pod["status"]["containerStatuses"][0]["containerID"].as_str()?;
            let id = id.strip_prefix("containerd://").expect("an id of containerd's").to_owned();
            condition(&pod, "Ready").then_some(id)
        });
        self.containerd.found(name, &container)
    }

    /// A pod that does nothing.
    #[must_use]
    pub fn run_idle(&self, name: &str) -> Pod {
        self.create_idle(name);
        self.await_started(name)
    }

    /// The same, which need not be Ready yet.
    pub fn create_idle(&self, name: &str) {
        self.create(name, self.lab.dir(), &["/bin/sleep", "1000000"]);
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace())
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.pods())
    }
}

/// Adds kubelet with its kubeconfig, its port and all other flags that are the same everywhere.
fn with_flags(
    command: &mut Command,
    lab: &Lab,
    control: &ControlPlane,
    containerd: &Containerd<'_>,
    (config, port): (&Path, &str),
) {
    let dir = home(lab);
    let path = |name: &str| dir.join(name).display().to_string();
    command.arg(dir.join("sysctl")).arg(program("kubelet"));
    for (flag, value) in [
        ("kubeconfig", config.display().to_string().as_str()),
        ("hostname-override", &control.node),
        ("container-runtime", "remote"),
        ("container-runtime-endpoint", &format!("unix://{}", containerd.socket().display())),
        ("root-dir", &path("kubelet")),
        ("cert-dir", &path("kubelet-pki")),
        ("volume-plugin-dir", &path("plugins")),
        ("cgroup-driver", "cgroupfs"),
        ("cgroup-root", &format!("/{}", group(lab.tag()))),
        // Values for a host with swap, with little room, and without CAP_SYS_RESOURCE.
        ("fail-swap-on", "false"),
        ("eviction-hard", "memory.available<1Mi,nodefs.available<1%,imagefs.available<1%"),
        ("image-gc-high-threshold", "100"),
        ("oom-score-adj", "0"),
        // The directory of its sockets is fixed.
        ("feature-gates", "DevicePlugins=false"),
        ("make-iptables-util-chains", "false"),
        ("address", "127.0.0.1"),
        ("port", port),
        ("anonymous-auth", "false"),
        ("healthz-port", "0"),
        ("read-only-port", "0"),
        ("node-status-update-frequency", "2s"),
        ("v", "2"),
    ] {
        command.arg(format!("--{flag}={value}"));
    }
}

/// Whether a condition of a node or a pod is true.
fn condition(object: &Value, kind: &str) -> bool {
    condition_of(object, kind)["status"] == "True"
}

/// The condition; null if it is not reported yet.
fn condition_of<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|one| one["type"] == kind)).unwrap_or(&Value::Null)
}

/// Root of a lab's cgroups. Not under a name that [`cgroup::sweep`] removes, because that does not end processes.
fn group(tag: &str) -> String {
    format!("{tag}.kubelet")
}

/// Creates the root cgroup in every hierarchy, which a kubelet requires.
fn make_cgroups(group: &str) {
    let (alone, all) = (PathBuf::from("/sys/fs/cgroup"), cgroup::hierarchies());
    let is_hierarchy = |top: &PathBuf| top.join("cgroup.procs").exists();
    // With v2 alone, directories below the root are groups.
    let tops = if is_hierarchy(&alone) { vec![alone] } else { all };
    for top in tops.iter().filter(|top| is_hierarchy(top)) {
        let dir = top.join(group);
        fs::create_dir_all(&dir).expect("make a cgroup");
        // In v1 a new group has none, and takes no process until it is set.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read_to_string(top.join(file)) {
                let _ = fs::write(dir.join(file), all.trim());
            }
        }
        // In v2: the controllers for the groups below.
        if let Ok(all) = fs::read_to_string(dir.join("cgroup.controllers")) {
            for controller in all.split_whitespace() {
                let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
    }
}

/// Records which of these directories do not exist on the host.
fn note_dirs(lab: &Lab, dirs: &[&str]) {
    let absent = dirs.iter().filter(|dir| !Path::new(dir).exists());
    let text: String = absent.map(|dir| format!("{dir}\n")).collect();
    fs::write(home(lab).join(OURS), text).expect("write a list");
}

const OURS: &str = "absent-dirs";

/// Ends the remaining processes of a lab's kubelet; removes its cgroups and its pods' logs, whose names begin with
/// their namespace, the lab's tag.
pub fn sweep(tag: &str) {
    let dir = Lab::dir_of(tag).join("kubernetes");
    if !dir.exists() {
        return;
    }
    cgroup::end_everywhere(&group(tag));
    super::shared::leave(tag);
    // An underscore follows the tag in both forms: `NAMESPACE_POD_UID` and `POD_NAMESPACE_CONTAINER-ID.log`.
    for entry in LOGS.iter().flat_map(fs::read_dir).flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        if name.starts_with(&format!("{tag}_")) {
            let _ = fs::remove_dir_all(path);
        } else if name.contains(&format!("_{tag}_")) {
            let _ = fs::remove_file(path);
        }
    }
    let ours = fs::read_to_string(dir.join(OURS)).unwrap_or_default();
    // Only if they are empty.
    ours.lines().for_each(|dir| drop(fs::remove_dir(dir)));
}
