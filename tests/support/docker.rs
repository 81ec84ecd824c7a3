//! A real dockerd with all its files in the lab, used through its own API. Its containers have no docker network unless
//! a test creates one: as with kubelet's dockershim, a pod is a container `k8s_POD_…` with an empty netns, whose network
//! is added from outside. Nothing of the host is touched.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::contained::Container;
use crate::poll::{eventually, until};
use crate::suite::{self, Cgroups};
use crate::{Lab, Suite, cgroup, need, netns, pod, proc, sys};

const IMAGE: &str = "ipwatch.test/busybox:1";
/// State of dockerd's containerd.
const STATE: &str = "exec/containerd/daemon";

/// Why no containers can be run here.
#[must_use]
pub fn missing() -> Option<String> {
    if program().is_none() {
        return Some("no dockerd".to_owned());
    }
    ["/usr/sbin/runc", "/bin/busybox"].into_iter().find_map(need::absent)
}

fn program() -> Option<&'static str> {
    ["/usr/sbin/dockerd", "/usr/bin/dockerd"].into_iter().find(|path| Path::new(path).exists())
}

/// A running dockerd.
#[derive(Debug)]
pub struct Dockerd<'a> {
    lab: &'a Lab,
    dir: PathBuf,
    child: Child,
    networks: Networks,
    /// Whose program it is, if not the installed one's.
    suite: Option<Suite>,
}

/// The networks of a dockerd, for one that runs in a netns of its own.
#[derive(Debug, Clone, Default)]
pub struct Networks {
    /// Address and prefix length of the default bridge; without it there is none.
    pub bridge: Option<String>,
    /// Where networks get their addresses for which a test names none: a CIDR, and the prefix length of each.
    pub pool: Option<(String, u8)>,
}

/// A pod of a kubelet that uses docker.
#[derive(Debug, Clone)]
pub struct Pod {
    /// The pod's uid; its namespace is `shop`.
    pub uid: String,
    /// `k8s_POD_…`, which holds the netns.
    pub sandbox: Container,
    /// `k8s_main_…`.
    pub main: Container,
}

impl<'a> Dockerd<'a> {
    /// Starts dockerd and imports the image.
    #[must_use]
    pub fn start(lab: &'a Lab) -> Self {
        Self::launch(lab, Networks::default(), None)
    }

    /// Like `start`, with these networks. Must be called in the netns of its bridges.
    #[must_use]
    pub fn start_with(lab: &'a Lab, networks: Networks) -> Self {
        Self::launch(lab, networks, None)
    }

    /// Like `start`, with the dockerd of a suite: its containers run on while it does not (`--live-restore`).
    #[must_use]
    pub fn start_of(lab: &'a Lab, suite: Option<Suite>) -> Self {
        Self::launch(lab, Networks::default(), suite)
    }

    fn launch(lab: &'a Lab, networks: Networks, suite: Option<Suite>) -> Self {
        if suite.is_some() {
            suite::share(lab);
        }
        let dir = lab.subdir("docker");
        let child = spawn(&dir, &networks, suite);
        let dockerd = Self { lab, dir, child, networks, suite };
        dockerd.await_ready();
        dockerd.import_image();
        dockerd
    }

    /// Path of its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }

    /// Runs a container outside of a kubelet. It sees `dir` as `/host` and has the IP number `n` of the lab.
    #[must_use]
    pub fn run(&self, name: &str, n: u8, dir: &Path, command: &[&str]) -> Container {
        let parent = format!("/{}/docker", group(self.lab.tag()));
        self.with_ip(self.container(name, &parent, "none", dir, command, Value::Null), n)
    }

    /// Like `run`, with a secret in the container's environment and labels.
    #[must_use]
    pub fn run_with_secret(
        &self,
        name: &str,
        n: u8,
        dir: &Path,
        command: &[&str],
        secret: &str,
    ) -> Container {
        let more = json!({
            "Env": [format!("API_TOKEN={secret}")],
            "Labels": { "token": secret },
        });
        let parent = format!("/{}/docker", group(self.lab.tag()));
        self.with_ip(self.container(name, &parent, "none", dir, command, more), n)
    }

    /// Creates a docker network, from which nothing outside is reached.
    pub fn network(&self, name: &str, subnet: &str) {
        self.network_as(name, subnet, true);
    }

    /// Creates a docker network.
    pub fn network_as(&self, name: &str, subnet: &str, internal: bool) {
        let ipam = json!({ "Driver": "default", "Config": [{ "Subnet": subnet }] });
        let wanted = json!({ "Name": name, "Internal": internal, "IPAM": ipam });
        let _ = self.post("/networks/create", &wanted);
    }

    /// Creates and starts a container in a docker network, or `host`, `none` or `container:ID`; returns its id. `more` is
    /// added to its configuration, and `host` to its `HostConfig`.
    #[must_use]
    pub fn begin(
        &self,
        name: &str,
        network: &str,
        command: &[&str],
        more: &Value,
        host: &Value,
    ) -> String {
        let parent = format!("/{}/docker", group(self.lab.tag()));
        let mut wanted = wanted(&parent, network, self.lab.dir(), command);
        merge(&mut wanted, more);
        merge(&mut wanted["HostConfig"], host);
        self.create(name, &wanted)
    }

    /// Requests a change of a container: `pause`, `unpause`, `stop?t=1`, `start`, `restart?t=1`.
    pub fn order(&self, id: &str, what: &str) {
        let _ = self.post(&format!("/containers/{id}/{what}"), &Value::Null);
    }

    /// Kills a container if it runs, and removes it.
    pub fn discard(&self, id: &str) {
        let path = format!("/containers/{id}?force=true");
        self.request("DELETE", &path, b"", "").expect("remove the container");
    }

    /// Makes it the only node of a swarm that listens at `ip`, and whose networks get their addresses from `pool`, 16
    /// each. Returns when the ingress network exists.
    pub fn swarm(&self, ip: &str, pool: &str) {
        let wanted = json!({
            "ListenAddr": ip,
            "AdvertiseAddr": ip,
            "DefaultAddrPool": [pool],
            "SubnetSize": 28,
        });
        let _ = self.post("/swarm/init", &wanted);
        eventually("the ingress network exists", 20, || {
            self.request("GET", "/networks/ingress", b"", "").ok()
        });
    }

    /// Creates a service of the swarm with one task, which is published through the ingress network. Returns when the
    /// task runs.
    pub fn service(&self, name: &str, command: &[&str]) {
        let container = json!({ "Image": IMAGE, "Command": command });
        let port = json!({ "Protocol": "tcp", "TargetPort": 80, "PublishedPort": 8080 });
        let wanted = json!({
            "Name": name,
            "TaskTemplate": { "ContainerSpec": container },
            "Mode": { "Replicated": { "Replicas": 1 } },
            "EndpointSpec": { "Ports": [port] },
        });
        let body = wanted.to_string();
        // After a restart it has no leader for some seconds.
        eventually("the swarm takes a service", 60, || {
            let path = "/services/create";
            self.request("POST", path, body.as_bytes(), "application/json").ok()
        });
        until("the task of the service runs", 30, || {
            let tasks = self.request("GET", "/tasks", b"", "").unwrap_or_default();
            let tasks = tasks.as_array().cloned().unwrap_or_default();
            tasks.iter().any(|task| task["Status"]["State"] == "running")
        });
    }

    /// Removes a service with its tasks.
    pub fn remove_service(&self, name: &str) {
        let path = format!("/services/{name}");
        eventually("the swarm removes a service", 60, || {
            self.request("DELETE", &path, b"", "").ok()
        });
    }

    /// Directory of all that it has: the data, and below `exec` the mounts of its netns.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs a container in such a network, with an IP that docker chooses.
    #[must_use]
    pub fn run_in(&self, name: &str, network: &str, command: &[&str]) -> Container {
        self.run_on(name, network, self.lab.dir(), command)
    }

    /// Like `run_in`, for a container that sees `dir` as `/host`.
    #[must_use]
    pub fn run_on(&self, name: &str, network: &str, dir: &Path, command: &[&str]) -> Container {
        let parent = format!("/{}/docker", group(self.lab.tag()));
        let container = self.container(name, &parent, network, dir, command, Value::Null);
        let inspected = self.inspect(&container.id).expect("what docker says of it");
        let ip = &inspected["NetworkSettings"]["Networks"][network]["IPAddress"];
        Container { ip: ip.as_str().expect("an IP").to_owned(), ..container }
    }

    /// Directory of its networks.
    #[must_use]
    pub fn data_root(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Runs a pod as kubelet's dockershim does: a container that holds the netns, with an IP, and another container
    /// in that netns that runs `command`.
    #[must_use]
    pub fn run_pod(&self, name: &str, n: u8, dir: &Path, command: &[&str]) -> Pod {
        let uid = pod::new_uid(self.lab.tag());
        let parent = format!("/kubepods/besteffort/pod{uid}");
        let of = |what: &str| format!("k8s_{what}_{name}_shop_{uid}_0");
        let sleep = ["/bin/sleep", "1000000"];
        let sandbox =
            self.container(&of("POD"), &parent, "none", self.lab.dir(), &sleep, Value::Null);
        let sandbox = self.with_ip(sandbox, n);
        let mode = format!("container:{}", sandbox.id);
        let main = self.container(&of("main"), &parent, &mode, dir, command, Value::Null);
        let main = Container { ip: sandbox.ip.clone(), ..main };
        Pod { uid, sandbox, main }
    }

    fn container(
        &self,
        name: &str,
        parent: &str,
        network: &str,
        dir: &Path,
        command: &[&str],
        more: Value,
    ) -> Container {
        let mut wanted = wanted(parent, network, dir, command);
        merge(&mut wanted, &more);
        let id = self.create(name, &wanted);
        let pid = eventually("the container has a process", 10, || {
            let pid = self.inspect(&id)?["State"]["Pid"].as_u64()?;
            u32::try_from(pid).ok().filter(|pid| *pid > 0)
        });
        let netns = proc::View::leader(pid).and_then(|view| view.netns).expect("its netns");
        Container { name: name.to_owned(), id, pid, netns, ip: String::new() }
    }

    fn create(&self, name: &str, wanted: &Value) -> String {
        let made = self.post(&format!("/containers/create?name={name}"), wanted);
        let id = made["Id"].as_str().expect("an id").to_owned();
        self.order(&id, "start");
        id
    }

    fn with_ip(&self, container: Container, n: u8) -> Container {
        let (pid, cidr) = (container.pid, self.lab.cidr(n));
        let host = format!("iwd{}", container.netns);
        netns::ip(&format!("link add {host} type veth peer name eth0 netns {pid}"));
        sys::on_own_thread(|| {
            let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
            sys::enter_netns(&path).expect("enter the container's netns");
            netns::ip("link set eth0 up");
            netns::ip(&format!("addr add {cidr} dev eth0"));
        });
        Container { ip: self.lab.ip(n).to_string(), ..container }
    }

    /// Its data about a container; `None` if it does not know the container.
    #[must_use]
    pub fn inspect(&self, id: &str) -> Option<Value> {
        self.request("GET", &format!("/containers/{id}/json"), b"", "").ok()
    }

    /// The state of a container, as docker reports it.
    #[must_use]
    pub fn state_of(&self, id: &str) -> Option<String> {
        self.inspect(id)?["State"]["Status"].as_str().map(str::to_owned)
    }

    /// Starts a container that has ended; its IP was lost with its netns.
    pub fn start_again(&self, container: &Container) {
        self.order(&container.id, "start");
    }

    /// Kills a container and removes it.
    pub fn remove(&self, container: &Container) {
        self.discard(&container.id);
    }

    /// Kills dockerd, its containerd and the shims of `containers`, and removes these from runc's state: their
    /// processes continue, unknown to all.
    pub fn crash_around(&mut self, containers: &[&Container]) {
        let shims: Vec<u32> =
            containers.iter().filter_map(|container| proc::parent_of(container.pid)).collect();
        let runtime = fs::read_to_string(self.dir.join("exec/containerd/containerd.pid"));
        let runtime = runtime.ok().and_then(|pid| pid.trim().parse().ok());
        pod::note_shims(self.lab, &self.dir.join(STATE));
        self.child.kill().expect("kill dockerd");
        self.child.wait().expect("wait for dockerd");
        for pid in runtime.into_iter().chain(shims) {
            let _ = sys::kill(pid, libc::SIGKILL);
            until("it is gone", 10, || !proc::is_alive(pid));
        }
        for container in containers {
            let state = self.dir.join("exec/runtime-runc/moby").join(&container.id);
            fs::remove_dir_all(state).expect("remove runc's state");
        }
    }

    /// Ends dockerd as an upgrade does: it stops its containers first.
    pub fn stop(&mut self) {
        sys::kill(self.child.id(), libc::SIGTERM).expect("end dockerd");
        until("dockerd has ended", 60, || matches!(self.child.try_wait(), Ok(Some(_))));
    }

    /// Restarts dockerd. Must be called in the netns of its bridges.
    pub fn restart(&mut self) {
        for left in ["pid", "exec/containerd/containerd.pid"] {
            let _ = fs::remove_file(self.dir.join(left));
        }
        self.child = spawn(&self.dir, &self.networks, self.suite);
        self.await_ready();
    }

    /// Replaces it by the dockerd of a suite, which may be the same one, as an upgrade or a restart of the package does:
    /// SIGTERM to the old one, its containers run on.
    pub fn replace(&mut self, by: Suite) {
        sys::kill(self.child.id(), libc::SIGTERM).expect("stop dockerd");
        self.child.wait().expect("wait for dockerd");
        self.suite = Some(by);
        self.restart();
    }

    /// Removes all that dockerd and its network library know about a container, while they do not run. Its netns, that
    /// netns' mount and its devices stay.
    pub fn forget(&self, container: &Container) {
        let data = self.data_root();
        fs::remove_dir_all(data.join("containers").join(&container.id)).expect("remove a file");
        fs::remove_file(data.join("network/files/local-kv.db")).expect("remove a file");
    }

    /// The mount of a container's netns.
    #[must_use]
    pub fn netns_path(&self, container: &Container) -> PathBuf {
        let inspected = self.inspect(&container.id).expect("what docker says of it");
        let path = inspected["NetworkSettings"]["SandboxKey"].as_str().expect("a path");
        // dockerd names the default directory, where its own differs.
        let name = path.rsplit('/').next().expect("a name");
        self.dir.join("exec/netns").join(name)
    }

    fn await_ready(&self) {
        eventually("dockerd is ready", 30, || self.request("GET", "/info", b"", "").ok());
    }

    /// The image is imported from the layer that was made for containerd.
    fn import_image(&self) {
        pod::make_image(&self.dir);
        let layer = fs::read(self.dir.join("image/layer.tar")).expect("read the layer");
        let (name, tag) = IMAGE.rsplit_once(':').expect("a tag");
        let path = format!("/images/create?fromSrc=-&repo={name}&tag={tag}");
        self.request("POST", &path, &layer, "application/x-tar").expect("import the image");
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let done = self.request("POST", path, body.as_bytes(), "application/json");
        done.unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// A request of HTTP/1.0, which ends with the connection.
    fn request(&self, method: &str, path: &str, body: &[u8], kind: &str) -> Result<Value, String> {
        let text = |error: std::io::Error| error.to_string();
        let mut stream = UnixStream::connect(self.socket()).map_err(text)?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        )
        .and_then(|()| stream.write_all(body))
        .map_err(text)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(text)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.split(' ').nth(1) {
            // 304: a container that is to be stopped or started is so already.
            Some(code) if code.starts_with('2') || code == "304" => {
                Ok(serde_json::from_str(body).unwrap_or_default())
            }
            _ => Err(answer),
        }
    }
}

impl Drop for Dockerd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            println!("dockerd said last:");
            tail.iter().rev().for_each(|line| println!("{line}"));
        }
        // The processes that it started carry the lab's tag and are swept.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The configuration of a container that sees `dir` as `/host`.
fn wanted(parent: &str, network: &str, dir: &Path, command: &[&str]) -> Value {
    json!({
        "Image": IMAGE,
        "Cmd": command,
        // How long it waits at its start for the end of a running container.
        "StopTimeout": 1,
        "HostConfig": {
            "NetworkMode": network,
            "CgroupParent": parent,
            "Binds": [format!("{}:/host", dir.display())],
        },
    })
}

/// Adds the keys of `more`.
fn merge(wanted: &mut Value, more: &Value) {
    if let (Some(wanted), Some(more)) = (wanted.as_object_mut(), more.as_object()) {
        wanted.extend(more.clone());
    }
}

fn spawn(dir: &Path, networks: &Networks, suite: Option<Suite>) -> Child {
    let log = dir.join("log");
    let log = fs::File::options().create(true).append(true).open(log).expect("open the log");
    let path = |name: &str| dir.join(name).display().to_string();
    // Not the machine's own configuration.
    fs::write(dir.join("none.json"), "{}").expect("write a configuration");
    let mut dockerd = match suite {
        Some(suite) => suite.command("dockerd", Cgroups::Host),
        None => Command::new(program().expect("dockerd")),
    };
    dockerd.args(suite.map(|_| "--live-restore"));
    match &networks.bridge {
        Some(bridge) => dockerd.args(["--bip", bridge]),
        None => dockerd.arg("--bridge=none"),
    };
    if let Some((base, size)) = &networks.pool {
        dockerd.arg(format!("--default-address-pool=base={base},size={size}"));
    }
    dockerd
        .args(["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"])
        // `vfs` works on any file system.
        .arg("--storage-driver=vfs")
        .args(["--data-root", &path("data"), "--exec-root", &path("exec")])
        .args(["--pidfile", &path("pid"), "--host", &format!("unix://{}", path("sock"))])
        .args(["--config-file", &path("none.json")])
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn()
        .expect("start dockerd")
}

/// Root of a lab's cgroups. Not under a name that [`cgroup::sweep`] removes, because that does not end processes.
fn group(tag: &str) -> String {
    format!("{tag}.docker")
}

/// Ends the remaining processes of a lab's containers, and removes their cgroups.
pub fn sweep(tag: &str) {
    let dir = Lab::dir_of(tag).join("docker");
    if dir.exists() {
        pod::remove_shim_sockets(&dir.join(STATE));
        cgroup::end_everywhere(&group(tag));
        pod::remove_cgroups(tag);
    }
}
