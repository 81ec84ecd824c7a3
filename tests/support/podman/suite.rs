//! podman of a suite, as root or as a user: its containers, their networks and the service with its API.
//!
//! The names of its netns are the node's. What else it keeps below `/run` and `/etc` is in the lab.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::Files;
use crate::contained::Container;
use crate::lab::TAG_VARIABLE;
use crate::poll::until;
use crate::suite::{self, Cgroups};
use crate::{Lab, Netns, Suite, cgroup, netns, proc, sys};

/// Uid and gid of the user whose containers they are, if not root's. Nobody on the host has it.
const USER: u32 = 64_242;
const NAME: &str = "walker";
/// The first of the ids that the user may give to user namespaces, and how many there are.
const IDS: (u32, u32) = (700_000_000, 65_536);

/// Files of `/etc` that are the lab's.
const OF_ETC: [(&str, &str); 4] = [
    ("passwd", "/etc/passwd"),
    ("group", "/etc/group"),
    ("subuid", "/etc/subuid"),
    ("subgid", "/etc/subgid"),
];

/// podman of a suite.
#[derive(Debug)]
pub struct SuitesPodman<'a> {
    lab: &'a Lab,
    dir: PathBuf,
    node: &'a Netns,
    suite: Suite,
    cgroups: Cgroups,
    /// Whether it runs as a user.
    rootless: bool,
    /// Its networks and reservations.
    pub files: Files,
    /// The ids of the containers that were run, which leave cgroups on the host, and the names of their netns there.
    made: RefCell<Vec<(String, Option<PathBuf>)>>,
}

impl Drop for SuitesPodman<'_> {
    fn drop(&mut self) {
        let mut rm = self.command(&["rm", "-a", "-f", "-t", "0"]);
        let _ = self.node.run(|| rm.output());
        for (id, name_of_netns) in self.made.take() {
            name_of_netns.iter().for_each(|path| netns::remove(path));
            for top in cgroup::hierarchies() {
                cgroup::end(&top.join("libpod_parent").join(format!("libpod-{id}")));
            }
        }
    }
}

/// The service with podman's API, which ends when this is dropped.
#[derive(Debug)]
pub struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl<'a> SuitesPodman<'a> {
    /// root's, with its bridges in `node`.
    #[must_use]
    pub fn new(lab: &'a Lab, node: &'a Netns, suite: Suite) -> Self {
        let podman = Self::with(lab, node, suite, Cgroups::Host, false);
        fs::create_dir_all("/run/netns").expect("make a directory");
        podman
    }

    /// root's under cgroup v2 alone, for containers in user namespaces: see [`SuitesPodman::ids`].
    #[must_use]
    pub fn on_v2(lab: &'a Lab, node: &'a Netns, suite: Suite) -> Self {
        let podman = Self::with(lab, node, suite, Cgroups::V2, false);
        chown(&podman.dir.join("rootfs"), IDS.0);
        podman
    }

    /// The mapping of ids of a container in a user namespace.
    #[must_use]
    pub fn ids(&self) -> String {
        format!("0:{}:1024", IDS.0)
    }

    /// A user's. Under cgroup v2, without which it has no cgroups.
    #[must_use]
    pub fn rootless(lab: &'a Lab, node: &'a Netns, suite: Suite) -> Self {
        Self::with(lab, node, suite, Cgroups::V2, true)
    }

    fn with(lab: &'a Lab, node: &'a Netns, suite: Suite, cgroups: Cgroups, rootless: bool) -> Self {
        suite::share(lab);
        let dir = lab.subdir("podman");
        for name in ["containers", "networks", "rootfs/bin", "rootfs/host", "home", "user"] {
            fs::create_dir_all(dir.join(name)).expect("make a directory");
        }
        fs::copy("/bin/busybox", dir.join("rootfs/bin/busybox")).expect("copy busybox");
        let own = |file: &str, line: String| {
            let text = fs::read_to_string(Path::new("/etc").join(file)).unwrap_or_default();
            fs::write(dir.join(file), text + &line).expect("write a file");
        };
        let home = dir.join("home");
        own("passwd", format!("{NAME}:x:{USER}:{USER}::{}:/bin/sh\n", home.display()));
        own("group", format!("{NAME}:x:{USER}:\n"));
        let (first, number) = IDS;
        for file in ["subuid", "subgid"] {
            fs::write(dir.join(file), format!("{NAME}:{first}:{number}\n")).expect("write a file");
        }
        if rootless {
            chown(&dir, USER);
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(lab.dir(), mode).expect("let the user in");
            // As on a node, where everyone may use it.
            let tun = dir.join("tun");
            let mut mknod = Command::new("mknod");
            mknod.args(["-m", "666"]).arg(&tun).args(["c", "10", "200"]);
            assert!(run(&mut mknod).status.success(), "make a device");
        }
        let files = Files::new(&dir);
        Self { lab, dir, node, suite, cgroups, rootless, files, made: RefCell::default() }
    }

    /// The next commands are those of another suite's podman, which takes over the containers.
    pub fn replace(&mut self, by: Suite) {
        self.suite = by;
    }

    /// Path of the service's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }

    /// Starts the service.
    #[must_use]
    pub fn serve(&self) -> Service {
        let socket = self.socket();
        let _ = fs::remove_file(&socket);
        let address = format!("unix://{}", socket.display());
        let mut command = self.command(&["system", "service", "--time=0", &address]);
        command.stdout(Stdio::null()).stderr(self.log());
        let service = Service(self.node.run(|| command.spawn().expect("run podman")));
        until("podman's service listens", 20, || socket.exists());
        service
    }

    /// Creates a network.
    pub fn network(&self, name: &str, subnet: &str) {
        self.podman(&[
            "network",
            "create",
            "--internal",
            "--disable-dns",
            "--subnet",
            subnet,
            name,
        ]);
    }

    /// Runs a container with these options that sees `dir` as `/host`.
    #[must_use]
    #[track_caller]
    pub fn run(&self, name: &str, dir: &Path, options: &[&str], command: &[&str]) -> Container {
        let tag = format!("{TAG_VARIABLE}={}", self.lab.tag());
        let volume = format!("{}:/host", dir.display());
        let rootfs = self.dir.join("rootfs");
        let rootfs = rootfs.to_str().expect("a path in UTF-8");
        let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"];
        let mut words = vec!["run", "-d", "--name", name, "--env", &tag, "-v", &volume];
        words.extend(limits);
        if self.cgroups == Cgroups::V2 {
            // The host's v1 may keep the controller.
            words.push("--pids-limit=0");
        }
        words.extend(options);
        words.extend(["--rootfs", rootfs]);
        words.extend(command);
        let id = self.podman(&words);
        let pid = self.podman(&["inspect", "--format", "{{.State.Pid}}", name]);
        let pid = pid.parse().expect("a pid");
        let netns = proc::View::leader(pid).and_then(|view| view.netns).expect("its netns");
        let mut names = fs::read_dir(netns::DIR).into_iter().flatten().flatten();
        let name_of_netns = names.find_map(|entry| {
            let is_its = fs::metadata(entry.path()).is_ok_and(|meta| meta.ino() == netns);
            is_its.then(|| entry.path())
        });
        self.made.borrow_mut().push((id.clone(), name_of_netns));
        Container { name: name.to_owned(), id, pid, netns, ip: address_of(pid) }
    }

    /// Kills a container and removes it.
    pub fn remove(&self, container: &Container) {
        self.podman(&["rm", "-f", "-t", "0", &container.name]);
    }

    /// The state of a container, as podman reports it.
    #[must_use]
    pub fn state_of(&self, container: &Container) -> String {
        self.podman(&["inspect", "--format", "{{.State.Status}}", &container.name])
    }

    /// Kills a container's monitor, and then its first process.
    pub fn kill_with_monitor(&self, container: &Container) {
        let monitor = proc::parent_of(container.pid).expect("its conmon");
        for pid in [monitor, container.pid] {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        until("its monitor is gone", 10, || !proc::is_alive(monitor));
    }

    /// Removes all that podman knows about its containers, but for the IPs that it has assigned.
    pub fn forget_all(&self) {
        for part in ["root", "run", "tmp"] {
            crate::sweep::unmount_below(&self.dir.join(part), |_| true);
            let _ = fs::remove_dir_all(self.dir.join(part));
        }
    }

    #[track_caller]
    fn podman(&self, words: &[&str]) -> String {
        let mut command = self.command(words);
        command.stderr(self.log());
        let out = self.node.run(|| run(&mut command));
        assert!(out.status.success(), "podman {words:?}: {}", self.said());
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.trim().lines().last().unwrap_or_default().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut instead = vec![(self.dir.join("containers"), "/run/containers")];
        for (file, of) in OF_ETC {
            instead.push((self.dir.join(file), of));
        }
        let mut command = if self.rootless {
            instead.push((self.dir.join("tun"), "/dev/net/tun"));
            let mut command = self.suite.command_with("/usr/bin/busybox", self.cgroups, &instead);
            command.args(["start-stop-daemon", "-S", "-c", &format!("{USER}:{USER}")]);
            // Of a name that no process has: it starts none twice.
            command.args(["-a", "/usr/bin/podman", "-n", self.lab.tag(), "--"]);
            command
                .env("HOME", self.dir.join("home"))
                .env("XDG_RUNTIME_DIR", self.dir.join("user"));
            command
        } else {
            self.suite.command_with("/usr/bin/podman", self.cgroups, &instead)
        };
        command.env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1").stdin(Stdio::null());
        if !self.rootless {
            for (option, place) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
                command.arg(option).arg(self.dir.join(place));
            }
            command.arg("--network-config-dir").arg(self.files.networks());
        }
        // crun, the default, takes no hierarchies of both versions.
        let runtime = if self.cgroups == Cgroups::V2 { "/usr/bin/crun" } else { "/usr/sbin/runc" };
        command.args(["--runtime", runtime, "--cgroup-manager", "cgroupfs"]);
        command.args(["--storage-driver", "vfs", "--events-backend", "file"]).args(words);
        command
    }

    fn log(&self) -> fs::File {
        let log = self.lab.dir().join("podman.log");
        fs::File::options().create(true).append(true).open(log).expect("open the log")
    }

    fn said(&self) -> String {
        fs::read_to_string(self.lab.dir().join("podman.log")).unwrap_or_default()
    }
}

fn chown(dir: &Path, id: u32) {
    let mut chown = Command::new("chown");
    assert!(run(chown.arg("-R").arg(format!("{id}:{id}")).arg(dir)).status.success(), "chown");
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("run {command:?}: {error}"))
}

/// The first global IPv4 address in the netns of a process; empty if it has none.
fn address_of(pid: u32) -> String {
    let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let text = sys::on_own_thread(|| {
        sys::enter_netns(&path).expect("enter the container's netns");
        netns::ip("-4 -j addr show scope global")
    });
    let links: serde_json::Value = serde_json::from_str(&text).expect("ip -j prints JSON");
    let mut all = links.as_array().into_iter().flatten();
    let ip = all.find_map(|link| link["addr_info"][0]["local"].as_str());
    ip.unwrap_or_default().to_owned()
}
