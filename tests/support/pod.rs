//! A real containerd with real CNI plugins, with everything in the lab: root, state, socket, configuration,
//! reservations and the one image, made from busybox ([`place`]). Only three directories are fixed: libcni's result
//! cache, `/var/lib/cni/results`, the names of netns in `/run/netns`, and runc's state in `/run/containerd/runc`
//! ([`sweep`]).
//!
//! [`harm`] causes failures that happen on nodes; [`found`] is for pods that a kubelet makes; [`shared`] is a
//! containerd for tests that do it no harm.

mod found;
mod harm;
mod place;
pub(crate) mod shared;
mod sweep;

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::poll::eventually;
use crate::suite::{self, Cgroups};
use crate::{Lab, Netns, Suite, daemon, need, netns, sys};

pub use harm::{Slow, StoppedShim};
pub(crate) use place::{make_image, prevented, programs};
pub use sweep::sweep;
pub(crate) use sweep::{note_shims, remove_cgroups, remove_shim_sockets};

/// libcni's result cache; containerd cannot change its path.
pub const CNI_CACHE: &str = "/var/lib/cni/results";
pub(crate) const PLUGINS: &str = "/usr/lib/cni";
pub(crate) const IMAGE: &str = "ipwatch.test/busybox:1";
/// The image of ipwatch: see [`Containerd::import_ipwatch`].
pub const OWN_IMAGE: &str = "ipwatch.test/ipwatch:1";

/// Why no pods can be run here.
#[must_use]
pub fn missing() -> Option<String> {
    let needed = ["/usr/bin/containerd", "/usr/sbin/runc", "/bin/busybox"].map(PathBuf::from);
    let plugin = Path::new(PLUGINS).join("bridge");
    needed.into_iter().chain([plugin, client()]).find_map(need::absent)
}

/// The CRI client: `IPWATCH_TEST_CRI`, else the one that cargo built beside this binary.
pub(crate) fn client() -> PathBuf {
    std::env::var_os("IPWATCH_TEST_CRI")
        .map_or_else(|| daemon::binary().with_file_name("ipwatch-test-cri"), PathBuf::from)
}

/// A running containerd.
#[derive(Debug)]
pub struct Containerd<'a> {
    lab: &'a Lab,
    dir: PathBuf,
    /// `None` if it is shared.
    child: Option<Child>,
    socket: PathBuf,
    node: Option<PathBuf>,
    programs: Programs,
    /// The test's slot, if it is shared.
    slot: Option<usize>,
}

/// A pod without a container: its netns is held by the pause process and the mount.
#[derive(Debug, Clone)]
pub struct PodSandbox {
    /// The pod's name; its namespace is `shop`.
    pub name: String,
    pub uid: String,
    /// Attempt number of the sandbox.
    pub attempt: u32,
    pub sandbox: String,
    /// Pid of the pause process.
    pub pause: u32,
    /// Inode of its netns.
    pub netns: u64,
    /// Mount of its netns; empty if that is the host's.
    pub path: PathBuf,
    /// Its IP; empty if it has none of its own.
    pub ip: String,
}

/// A pod with one container.
#[derive(Debug, Clone)]
pub struct Pod {
    of: PodSandbox,
    pub container: String,
    /// Pid of the container's first process.
    pub pid: u32,
}

impl Deref for Pod {
    type Target = PodSandbox;

    fn deref(&self) -> &PodSandbox {
        &self.of
    }
}

/// How a containerd differs from the default.
#[derive(Debug, Clone, Default)]
pub struct Setup<'a> {
    /// A secret in the CNI configuration, of which libcni keeps a copy for each pod.
    pub secret: &'a str,
    /// Where its pods' IPs come from, other than the lab's whole range: `CIDR`, or `CIDR FIRST LAST`; several ranges of
    /// which a pod gets one IP are separated by `,`, those of which it gets one each by `;`.
    pub subnet: Option<String>,
    /// The netns that is its node, beside a first containerd: its network uses `ptp`, whose addresses are on the
    /// node, and macvlan for pods of the handler [`MACVLAN`]. Their IPs come from the third and the fourth of the
    /// lab's four blocks of 64: of each the first half, or the second for [`Setup::copy`] 1.
    pub node: Option<&'a Netns>,
    /// The netns in which it runs, as the only containerd, with the default network.
    pub inside: Option<&'a Netns>,
    /// With [`Setup::inside`]: its network uses macvlan on a device of that netns, not bridge.
    pub macvlan: bool,
    /// `ipwatch-ipam` stands before host-local, and asks the daemon of the lab.
    pub prevention: bool,
    /// With [`Setup::prevention`]: an ADD fails if all that is left is held (`whenAllHeld`).
    pub refuses: bool,
    /// The suite whose containerd, runc and CNI plugins are run, if not the installed ones.
    pub suite: Option<Suite>,
    /// The cgroup hierarchies that these see.
    pub cgroups: Cgroups,
    /// In a mount namespace of its own, whose mounts are shared as on a node: see [`Containerd::own_dir`].
    pub apart: bool,
    /// So many tests can share it: see [`Containerd::shared`].
    pub slots: usize,
    /// Which of two containerds of this kind it is, 0 or 1; each has networks of its own.
    pub copy: u8,
}

impl Setup<'_> {
    /// The name of what each of two containerds has.
    fn own(&self, name: &str) -> String {
        if self.copy == 0 { name.to_owned() } else { format!("{name}-{}", self.copy) }
    }
}

/// Which containerd is run.
#[derive(Debug, Clone, Copy, Default)]
struct Programs {
    /// `None`: the installed one.
    suite: Option<Suite>,
    cgroups: Cgroups,
}

impl Programs {
    /// A command that runs one of its programs.
    fn command(self, program: &Path) -> Command {
        match self.suite {
            Some(suite) => suite.command(program, self.cgroups),
            None => Command::new(program),
        }
    }

    /// The directory of its plugins, as it is on the host.
    fn plugins(self) -> PathBuf {
        let root = self.suite.map_or_else(|| PathBuf::from("/"), Suite::root);
        root.join(PLUGINS.trim_start_matches('/'))
    }
}

/// The first id of the user namespace of a pod that has one.
const FIRST_ID: u32 = 800_000_000;

/// See [`Setup::node`].
pub const MACVLAN: &str = "macvlan";

/// A pod to be created.
#[derive(Debug)]
pub struct Wanted<'a> {
    containerd: &'a Containerd<'a>,
    name: &'a str,
    uid: String,
    attempt: u32,
    host_network: bool,
    handler: String,
    secret: Option<&'a str>,
    net_admin: bool,
    user_namespace: bool,
}

impl<'a> Containerd<'a> {
    /// Starts a containerd and waits until it can run pods.
    #[must_use]
    pub fn start(lab: &'a Lab) -> Self {
        Self::start_as(lab, &Setup::default())
    }

    /// Like `start`, with this setup.
    #[must_use]
    pub fn start_as(lab: &'a Lab, setup: &Setup<'_>) -> Self {
        let kind = if setup.node.is_some() { "containerd-far" } else { "containerd" };
        let dir = lab.subdir(&setup.own(kind));
        sweep::begin(lab);
        place::make(lab, &dir, setup);
        if setup.suite.is_some() {
            suite::share(lab);
        }
        let node = setup.node.or(setup.inside).map(|netns| netns.path().to_owned());
        let programs = Programs { suite: setup.suite, cgroups: setup.cgroups };
        let child = Some(place::spawn(&dir, node.as_deref(), programs));
        let socket = dir.join("sock");
        let containerd = Self { lab, socket, dir, child, node, programs, slot: None };
        containerd.await_ready();
        containerd.import_image();
        containerd
    }

    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Directory of its network's configuration, or, with [`Setup::node`], its networks'.
    #[must_use]
    pub fn conf_dirs(&self) -> Vec<PathBuf> {
        if let Some(slot) = self.slot {
            return vec![shared::conf_dir(&self.dir, slot)];
        }
        let dirs = [self.dir.join("net.d"), self.dir.join("macvlan.d")];
        dirs.into_iter().filter(|dir| dir.exists()).collect()
    }

    /// The suite whose programs it runs, if not the installed ones.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.programs.suite
    }

    /// Directory of its plugins.
    #[must_use]
    pub fn bin_dir(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// Directory of its pods' reservations.
    #[must_use]
    pub fn reservations(&self) -> PathBuf {
        self.lab.dir().join("ipam").join(network(self.lab.tag(), "net"))
    }

    /// Where `ipwatch-ipam` keeps what it has parked: see [`Setup::prevention`].
    #[must_use]
    pub fn parked(&self) -> PathBuf {
        place::prevention_state(self.lab)
    }

    /// The id of the container that an IP of its network is reserved for.
    #[must_use]
    pub fn reserved_for(&self, ip: &str) -> Option<String> {
        let text = fs::read_to_string(self.reservations().join(ip)).ok()?;
        text.lines().next().map(str::to_owned)
    }

    /// Has host-local hand out this IP next, if it is free: the one after the last that it has handed out.
    pub fn hand_out_next(&self, ip: std::net::Ipv4Addr) {
        let last = std::net::Ipv4Addr::from_bits(ip.to_bits() - 1).to_string();
        fs::write(self.reservations().join("last_reserved_ip.0"), last).expect("write a file");
    }

    /// A pod of this name, to be made. Its uid is a new one, as that of every pod.
    #[must_use]
    pub fn pod(&'a self, name: &'a str) -> Wanted<'a> {
        Wanted {
            containerd: self,
            name,
            uid: new_uid(self.lab.tag()),
            attempt: 0,
            host_network: false,
            handler: self.slot.map(shared::handler).unwrap_or_default(),
            secret: None,
            net_admin: false,
            user_namespace: false,
        }
    }

    /// Runs a pod whose container runs `command` and sees `dir` as `/host`.
    #[must_use]
    pub fn run(&self, name: &str, dir: &Path, command: &[&str]) -> Pod {
        self.pod(name).run(dir, command)
    }

    /// Stops and removes a pod, as kubelet does after its deletion.
    pub fn stop(&self, pod: &PodSandbox) {
        self.halt(pod);
        self.cri(&["remove", &pod.sandbox]).expect("remove the pod");
    }

    /// Stops a pod without removing it: its sandbox is then NOTREADY. A failure is retried once, as kubelet does: for
    /// a container that ends by itself at this moment containerd reports "ttrpc: closed".
    pub fn halt(&self, pod: &PodSandbox) {
        let stop = || self.cri(&["stop", &pod.sandbox]);
        stop().or_else(|_| stop()).expect("stop the pod");
    }

    /// Starts to stop a pod that will not stop. The caller, or else [`crate::sweep`], kills the client.
    #[must_use]
    pub fn begin_stop(&self, pod: &PodSandbox) -> Child {
        self.command(&["stop", &pod.sandbox]).stderr(Stdio::null()).spawn().expect("stop the pod")
    }

    /// Starts to stop a pod's container as kubelet does: SIGTERM, and SIGKILL after this many seconds.
    #[must_use]
    pub fn begin_termination(&self, pod: &Pod, seconds: u32) -> Child {
        let mut command = self.command(&["stop-container", &pod.container, &seconds.to_string()]);
        command.spawn().expect("stop the container")
    }

    /// The state of a sandbox or a container: `READY`, `NOTREADY`; `CREATED`, `RUNNING`, `EXITED`, `UNKNOWN`. `None`
    /// if containerd does not know it.
    #[must_use]
    pub fn state_of(&self, id: &str) -> Option<String> {
        let list = self.cri(&["list"]).expect("list the pods");
        let mut lines = list.lines().map(|line| line.split_whitespace());
        lines.find_map(|mut words| {
            (words.next() == Some(id)).then(|| words.next().expect("a state").to_owned())
        })
    }

    /// How it ended; `None` if it runs.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.own().try_wait().expect("wait for containerd");
        status.map(|status| status.to_string())
    }

    /// The process of a containerd that is not shared.
    fn own(&mut self) -> &mut Child {
        self.child.as_mut().expect("a containerd of the test's own: needs [Containerd]")
    }

    fn await_ready(&self) {
        eventually("containerd is ready", 20, || self.cri(&["ready"]).ok());
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(client());
        command.arg(&self.socket).args(args).stdin(Stdio::null());
        command
    }

    fn cri(&self, args: &[&str]) -> Result<String, String> {
        let out = self.command(args).output().map_err(|error| error.to_string())?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).trim_end().to_owned());
        }
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }

    /// Makes [`OWN_IMAGE`] of the binary under test.
    pub fn import_ipwatch(&self) {
        place::make_own_image(&self.dir);
        self.import(&self.dir.join("ipwatch.tar"));
    }

    /// With [`Setup::apart`]: the directory that the daemon in a pod sees as this one, which is `/run/ipwatch` or
    /// `/var/lib/ipwatch`.
    #[must_use]
    pub fn own_dir(&self, dir: &str) -> PathBuf {
        self.dir.join(place::APART).join(dir.trim_start_matches('/'))
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("a containerd of the test's own: needs [Containerd]").id()
    }

    fn import_image(&self) {
        let image = self.dir.join("image.tar");
        if !image.exists() {
            place::make_image(&self.dir);
        }
        self.import(&image);
    }

    fn import(&self, image: &Path) {
        let ctr = Command::new("ctr")
            .arg("-a")
            .arg(&self.socket)
            .args(["-n", "k8s.io", "images", "import"])
            .arg(image)
            .output()
            .expect("run ctr");
        assert!(ctr.status.success(), "{}", String::from_utf8_lossy(&ctr.stderr));
    }
}

impl<'a> Wanted<'a> {
    /// Sets the uid to that of another sandbox of the same pod.
    #[must_use]
    pub fn uid(mut self, uid: &str) -> Self {
        uid.clone_into(&mut self.uid);
        self
    }

    #[must_use]
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// In the host's netns.
    #[must_use]
    pub fn host_network(mut self) -> Self {
        self.host_network = true;
        self
    }

    /// Sets the handler of the runtime.
    #[must_use]
    pub fn handler(mut self, handler: &str) -> Self {
        handler.clone_into(&mut self.handler);
        self
    }

    /// Puts a secret into labels, annotations and the container's environment.
    #[must_use]
    pub fn with_secret(mut self, secret: &'a str) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Its container may change the pod's network (`CAP_NET_ADMIN`).
    #[must_use]
    pub fn net_admin(mut self) -> Self {
        self.net_admin = true;
        self
    }

    /// In a user namespace of its own, to which its netns belongs.
    #[must_use]
    pub fn user_namespace(mut self) -> Self {
        self.user_namespace = true;
        self
    }

    /// Creates the sandbox.
    #[must_use]
    pub fn sandbox(self) -> PodSandbox {
        self.try_sandbox().unwrap_or_else(|error| panic!("run a sandbox: {error}"))
    }

    /// Like `sandbox`, returning the error of a failure.
    pub fn try_sandbox(self) -> Result<PodSandbox, String> {
        let keys = self.keys();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let sandbox = self.containerd.cri(&[&["sandbox"], keys.as_slice()].concat())?;
        let lab = self.containerd.lab;
        sweep::note_id(lab, &sandbox);
        let pause = eventually("the sandbox has a process", 5, || first_process(&sandbox));
        let netns =
            crate::proc::View::leader(pause).and_then(|view| view.netns).expect("its netns");
        let (path, ip) = if self.host_network {
            (PathBuf::new(), String::new())
        } else {
            (sweep::note_netns(lab, netns), address_of(pause))
        };
        let (name, uid, attempt) = (self.name.to_owned(), self.uid, self.attempt);
        Ok(PodSandbox { name, uid, attempt, sandbox, pause, netns, path, ip })
    }

    /// Creates the pod with a container that runs `command` and sees `dir` as `/host`.
    #[must_use]
    pub fn run(self, dir: &Path, command: &[&str]) -> Pod {
        let containerd = self.containerd;
        let mut keys = self.keys();
        keys.push(format!("image={IMAGE}"));
        keys.push(format!("dir={}", dir.display()));
        let of = self.sandbox();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let words = [&["container", &of.sandbox], keys.as_slice(), &["--"], command].concat();
        let container = containerd.cri(&words).expect("run a container");
        sweep::note_id(containerd.lab, &container);
        let pid = eventually("the container has a process", 5, || first_process(&container));
        Pod { of, container, pid }
    }

    fn keys(&self) -> Vec<String> {
        let mut keys = vec![
            "namespace=shop".to_owned(),
            format!("name={}", self.name),
            format!("uid={}", self.uid),
            format!("attempt={}", self.attempt),
            format!("handler={}", self.handler),
        ];
        keys.extend(self.host_network.then(|| "host-network=yes".to_owned()));
        keys.extend(self.secret.map(|secret| format!("secret={secret}")));
        keys.extend(self.user_namespace.then(|| format!("ids={FIRST_ID}")));
        keys.extend(self.net_admin.then(|| "net-admin=yes".to_owned()));
        keys
    }
}

impl Drop for Containerd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            println!("containerd said last:");
            tail.iter().rev().for_each(|line| println!("{line}"));
        }
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A pod uid that contains the lab's tag, so that [`sweep`] finds the pod's cgroups.
pub(crate) fn new_uid(tag: &str) -> String {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let (first, last) = uid_of(tag);
    format!("{first}-{:04x}-4000-8000-{last}", SERIAL.fetch_add(1, Ordering::Relaxed) & 0xffff)
}

/// The beginning and the end of all uids of a lab.
pub(crate) fn uid_of(tag: &str) -> (String, String) {
    let (pid, serial) = tag.trim_start_matches("iw").split_once('n').expect("a tag");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    (format!("{:08x}", number(pid)), format!("{:012x}", number(serial)))
}

/// Name of a CNI network of the lab.
fn network(tag: &str, name: &str) -> String {
    format!("{tag}-{name}")
}

/// The first process of a container, found by its cgroup.
pub(crate) fn first_process(container: &str) -> Option<u32> {
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut inside: Vec<u32> = pids
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/cgroup"))
                .is_ok_and(|text| text.contains(container))
        })
        .collect();
    inside.sort_unstable();
    inside.first().copied()
}

/// The pod's IPv4 address, read from the kernel in the pod's netns.
fn address_of(pid: u32) -> String {
    let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let text = sys::on_own_thread(|| {
        sys::enter_netns(&path).expect("enter the pod's netns");
        netns::ip("-4 -j addr show dev eth0")
    });
    let json: serde_json::Value = serde_json::from_str(&text).expect("ip -j prints JSON");
    json[0]["addr_info"][0]["local"].as_str().expect("an address").to_owned()
}
