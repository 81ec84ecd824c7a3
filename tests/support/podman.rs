//! A real podman with its networks in the lab. The directory of its reservations cannot be configured, so it runs in
//! a mount namespace where that is a directory of the lab. [`suite`] has those of other Debian suites.

mod suite;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::{Lab, need};

pub use suite::SuitesPodman;

/// Why its containers cannot be run here.
#[must_use]
pub fn missing() -> Option<String> {
    let needed = [
        "/usr/bin/podman",
        "/usr/lib/podman/netavark",
        "/usr/lib/cni/bridge",
        "/usr/bin/catatonit",
        "/usr/bin/slirp4netns",
        "/usr/bin/newuidmap",
        "/usr/sbin/runc",
        "/bin/busybox",
    ];
    needed.into_iter().find_map(need::absent)
}

/// What makes podman's networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Netavark,
    /// Its older way: CNI plugins, with host-local.
    Cni,
    /// For a user without rights: slirp4netns, which gives every container the same IP on a tap device.
    Rootless,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Self::Netavark => "netavark",
            Self::Cni => "cni",
            Self::Rootless => "netavark",
        }
    }

    /// What happens first in the mount namespace. A user needs a tap device that root has not kept for itself.
    fn prepare(self) -> &'static str {
        match self {
            Self::Netavark | Self::Cni => {
                r#"mount --bind "$LAB/containers" /run/containers &&
                    mount --bind "$LAB/netns" /run/netns && mount --bind "$LAB/cni" /var/lib/cni"#
            }
            Self::Rootless => {
                r#"mount -t tmpfs -o mode=755 none "$LAB/dev" && mknod "$LAB/dev/tun" c 10 200 &&
                    chmod 666 "$LAB/dev/tun" && mount --bind "$LAB/dev/tun" /dev/net/tun &&
                    chown -R 65534:65534 "$LAB/home" "$LAB/user" "$LAB/rootfs" "$LAB/networks" && chmod 700 "$LAB/user""#
            }
        }
    }

    /// The words before podman's own.
    fn as_user(self) -> &'static str {
        match self {
            Self::Netavark | Self::Cni => "env ROOT=$LAB/root RUN=$LAB/run TMP=$LAB/tmp",
            Self::Rootless => {
                "setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=$LAB/home \
                 XDG_RUNTIME_DIR=$LAB/user ROOT=$LAB/home/root RUN=$LAB/user/run TMP=$LAB/user/tmp"
            }
        }
    }
}

/// Reads a command from each line; writes its output and `DONE STATUS`.
const SHELL: &str = r#"
eval "$PREPARE" || exit 1
while read -r line; do
    eval "set -- $line"
    eval "exec_as=\"$AS\""
    $exec_as sh -c 'exec podman --root "$ROOT" --runroot "$RUN" --tmpdir "$TMP" \
        --network-config-dir "$LAB/networks" --runtime /usr/sbin/runc --cgroup-manager cgroupfs \
        --storage-driver vfs --events-backend file "$@"' podman "$@" < /dev/null 2>> "$LAB/log"
    echo "DONE $?"
done
"#;

/// Where a podman of a lab has its networks and its reservations.
#[derive(Debug, Clone)]
pub struct Files {
    dir: PathBuf,
}

impl Files {
    fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The file with its reservations.
    #[must_use]
    pub fn db(&self) -> PathBuf {
        self.dir.join("containers/networks/ipam.db")
    }

    /// The directory of its networks' files.
    #[must_use]
    pub fn networks(&self) -> PathBuf {
        self.dir.join("networks")
    }
}

/// podman in a separate netns and mount namespace.
#[derive(Debug)]
pub struct Podman {
    dir: PathBuf,
    /// Its networks and reservations.
    pub files: Files,
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Podman {
    /// Must be called in the netns of its bridges.
    #[must_use]
    pub fn start(lab: &Lab) -> Self {
        Self::start_with(lab, Backend::Netavark)
    }

    /// Like `start`, with this backend.
    #[must_use]
    pub fn start_with(lab: &Lab, backend: Backend) -> Self {
        let dir = match backend {
            Backend::Netavark => lab.subdir("podman"),
            Backend::Cni => lab.subdir("podman-cni"),
            Backend::Rootless => lab.subdir("podman-user"),
        };
        let own = ["containers", "netns", "cni", "networks", "rootfs/bin", "home", "user", "dev"];
        for name in own {
            std::fs::create_dir_all(dir.join(name)).expect("make a directory");
        }
        // The mount points, which may be missing if podman has never run.
        for name in ["/run/containers", "/run/netns", "/var/lib/cni"] {
            std::fs::create_dir_all(name).expect("make a directory");
        }
        std::fs::write(dir.join("containers.conf"), configuration(backend)).expect("write a file");
        std::fs::copy("/bin/busybox", dir.join("rootfs/bin/busybox")).expect("copy busybox");
        let mut child = Command::new("unshare")
            // What others unmount must not stay mounted there.
            .args(["-m", "--propagation", "slave", "sh", "-c", SHELL])
            .env("LAB", &dir)
            .envs([("PREPARE", backend.prepare()), ("AS", backend.as_user())])
            .current_dir(&dir)
            .env("CONTAINERS_CONF", dir.join("containers.conf"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("run unshare");
        let orders = child.stdin.take().expect("its input");
        let answers = BufReader::new(child.stdout.take().expect("its output"));
        Self { files: Files::new(&dir), dir, child, orders, answers }
    }

    /// The directory with the reservations (`networks`) and results (`results`) of [`Backend::Cni`].
    #[must_use]
    pub fn cni(&self) -> PathBuf {
        self.dir.join("cni")
    }

    /// Creates a network.
    pub fn network(&mut self, name: &str, subnet: &str) {
        self.ask(&format!("network create --internal --disable-dns --subnet {subnet} {name}"));
    }

    /// Runs a container in a network for at most a minute; returns its id.
    pub fn run(&mut self, name: &str, network: &str) -> String {
        self.run_for(60, name, &format!("--network {network}"))
    }

    /// Like `run`, with these options, for at most so many seconds.
    pub fn run_for(&mut self, seconds: u32, name: &str, options: &str) -> String {
        let rootfs = self.dir.join("rootfs");
        let (rootfs, sleep) = (rootfs.display(), format!("/bin/busybox sleep {seconds}"));
        self.ask(&format!("run -d --name {name} {options} --rootfs {rootfs} {sleep}"))
    }

    /// Runs any other command; returns the last line of its output.
    pub fn order(&mut self, line: &str) -> String {
        self.ask(line)
    }

    /// Removes a container.
    pub fn remove(&mut self, name: &str) {
        self.ask(&format!("rm -f -t 0 {name}"));
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.orders, "{line}").expect("give an order");
        let mut said = String::new();
        loop {
            let mut answer = String::new();
            self.answers.read_line(&mut answer).expect("read an answer");
            match answer.trim().strip_prefix("DONE ") {
                Some("0") => return said,
                None if !answer.is_empty() => answer.trim().clone_into(&mut said),
                _ => panic!("podman {line}: {answer}: {}", self.log()),
            }
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(Path::new(&self.dir).join("log")).unwrap_or_default()
    }
}

/// The limits are those that runc can set wherever these tests run.
fn configuration(backend: Backend) -> String {
    format!(
        "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n\
         [network]\nnetwork_backend = \"{}\"\ncni_plugin_dirs = [\"/usr/lib/cni\"]\n",
        backend.name()
    )
}

impl Drop for Podman {
    fn drop(&mut self) {
        // Its containers end by themselves, and its monitors carry the lab's tag.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
