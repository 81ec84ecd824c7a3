//! A real podman with its networks in the lab. Where it keeps what IPs it gave it cannot be told, so it
//! runs in a mount namespace where that is a directory of the lab.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::{Lab, need};

/// What is missing here to run its containers.
#[must_use]
pub fn missing() -> Option<String> {
    let needed = ["/usr/bin/podman", "/usr/lib/podman/netavark", "/usr/sbin/runc", "/bin/busybox"];
    needed.into_iter().find_map(need::absent)
}

/// Words come in, one command a line; its answer and `DONE STATUS` go out.
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

/// podman, in a netns and a mount namespace of its own.
#[derive(Debug)]
pub struct Podman {
    dir: PathBuf,
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Podman {
    /// To be called in the netns that its bridges are to stand in.
    #[must_use]
    pub fn start(lab: &Lab) -> Self {
        let dir = lab.subdir("podman");
        for name in ["containers", "netns", "networks", "rootfs/bin"] {
            std::fs::create_dir_all(dir.join(name)).expect("make a directory");
        }
        // What the mounts are put on; both may be missing where no podman has run yet.
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

    /// The file with the IPs that it gave.
    #[must_use]
    pub fn db(&self) -> PathBuf {
        self.dir.join("containers/networks/ipam.db")
    }

    /// The directory with its networks' files.
    #[must_use]
    pub fn networks(&self) -> PathBuf {
        self.dir.join("networks")
    }

    /// Makes a network.
    pub fn network(&mut self, name: &str, subnet: &str) {
        self.ask(&format!("network create --internal --subnet {subnet} {name}"));
    }

    /// Runs a container in a network for a minute at most; its id is the answer.
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
        // Its containers end by themselves, and its monitors bear the lab's tag.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
