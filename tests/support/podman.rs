//! A real podman with its networks in the lab. The directory of its reservations cannot be configured, so it runs in
//! a mount namespace where that is a directory of the lab.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::{Lab, need};

/// Why its containers cannot be run here.
#[must_use]
pub fn missing() -> Option<String> {
    let needed = ["/usr/bin/podman", "/usr/lib/podman/netavark", "/usr/sbin/runc", "/bin/busybox"];
    needed.into_iter().find_map(need::absent)
}

/// Reads a command from each line; writes its output and `DONE STATUS`.
const SHELL: &str = r#"
mount --bind "$LAB/containers" /run/containers && mount --bind "$LAB/netns" /run/netns || exit 1
while read -r line; do
    eval "set -- $line"
    podman --root "$LAB/root" --runroot "$LAB/run" --tmpdir "$LAB/tmp" \
        --network-config-dir "$LAB/networks" --runtime /usr/sbin/runc --cgroup-manager cgroupfs \
        --storage-driver vfs --events-backend file "$@" < /dev/null 2>> "$LAB/log"
    echo "DONE $?"
done
"#;

/// podman in a separate netns and mount namespace.
#[derive(Debug)]
pub struct Podman {
    dir: PathBuf,
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Podman {
    /// Must be called in the netns of its bridges.
    #[must_use]
    pub fn start(lab: &Lab) -> Self {
        let dir = lab.subdir("podman");
        for name in ["containers", "netns", "networks", "rootfs/bin"] {
            std::fs::create_dir_all(dir.join(name)).expect("make a directory");
        }
        // The mount points, which may be missing if podman has never run.
        for name in ["/run/containers", "/run/netns"] {
            std::fs::create_dir_all(name).expect("make a directory");
        }
        std::fs::copy("/bin/busybox", dir.join("rootfs/bin/busybox")).expect("copy busybox");
        let mut child = Command::new("unshare")
            .args(["-m", "sh", "-c", SHELL])
            .env("LAB", &dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("run unshare");
        let orders = child.stdin.take().expect("its input");
        let answers = BufReader::new(child.stdout.take().expect("its output"));
        Self { dir, child, orders, answers }
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

    /// Creates a network.
    pub fn network(&mut self, name: &str, subnet: &str) {
        self.ask(&format!("network create --internal --subnet {subnet} {name}"));
    }

    /// Runs a container in a network for at most a minute; returns its id.
    pub fn run(&mut self, name: &str, network: &str) -> String {
        let limits = "--ulimit nofile=1024:1024 --ulimit nproc=4096:4096";
        let rootfs = self.dir.join("rootfs");
        let sleep = "/bin/busybox sleep 60";
        let rootfs = rootfs.display();
        self.ask(&format!(
            "run -d --name {name} --network {network} {limits} --rootfs {rootfs} {sleep}"
        ))
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

impl Drop for Podman {
    fn drop(&mut self) {
        // Its containers end by themselves, and its monitors carry the lab's tag.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
