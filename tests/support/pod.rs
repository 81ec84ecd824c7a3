//! A real containerd with real CNI plugins, everything of it in the lab: root, state, socket,
//! configuration, reservations and the one image, made from busybox. Only two things have fixed
//! places: libcni's result cache, `/var/lib/cni/results`, and the netns names in `/run/netns`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::poll::eventually;
use crate::{Lab, daemon, need, netns, sys};

/// Where libcni keeps results; it cannot be told otherwise through containerd.
pub const CNI_CACHE: &str = "/var/lib/cni/results";
const PLUGINS: &str = "/usr/lib/cni";
const IMAGE: &str = "ipwatch.test/busybox:1";
/// In the lab: `SANDBOX NETNS-PATH` of each pod, one a line, for [`sweep`].
const LIST: &str = "pods";

/// What is missing here to run pods.
#[must_use]
pub fn missing() -> Option<String> {
    let needed = ["/usr/bin/containerd", "/usr/sbin/runc", "/bin/busybox"].map(PathBuf::from);
    let plugin = Path::new(PLUGINS).join("bridge");
    needed.into_iter().chain([plugin, client()]).find_map(need::absent)
}

/// The CRI client: `IPWATCH_TEST_CRI`, else the one cargo built beside this.
fn client() -> PathBuf {
    std::env::var_os("IPWATCH_TEST_CRI")
        .map_or_else(|| daemon::binary().with_file_name("ipwatch-test-cri"), PathBuf::from)
}

/// A running containerd.
#[derive(Debug)]
pub struct Containerd<'a> {
    lab: &'a Lab,
    child: Child,
    socket: PathBuf,
}

/// A pod of it: a sandbox and one container.
#[derive(Debug)]
pub struct Pod {
    /// Its name; its namespace is `shop`.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The sandbox's container id.
    pub sandbox: String,
    /// The container's id.
    pub container: String,
    /// The container's first process.
    pub pid: u32,
    /// Inode of its netns.
    pub netns: u64,
    /// Its IP.
    pub ip: String,
}

impl<'a> Containerd<'a> {
    /// Starts it and waits until it can run pods.
    #[must_use]
    pub fn start(lab: &'a Lab) -> Self {
        let dir = lab.subdir("containerd");
        fs::write(dir.join("config.toml"), config(&dir)).expect("write the configuration");
        fs::create_dir_all(dir.join("net.d")).expect("make a directory");
        fs::write(dir.join("net.d/10-test.conflist"), conflist(lab)).expect("write the conflist");
        let log = fs::File::create(dir.join("log")).expect("open the log");
        let child = Command::new("containerd")
            .arg("--config")
            .arg(dir.join("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("start containerd");
        let containerd = Self { lab, child, socket: dir.join("sock") };
        eventually("containerd is ready", 20, || containerd.cri(&["ready"]).ok());
        containerd.import_image(&dir);
        containerd
    }

    /// Runs a pod whose container runs `command` and sees `dir` as `/host`.
    #[must_use]
    pub fn run(&self, name: &str, dir: &Path, command: &[&str]) -> Pod {
        let uid = uid(self.lab.tag());
        let dir = dir.to_str().expect("a path in UTF-8");
        let ids = self
            .cri(&[&["run", "shop", name, &uid, IMAGE, dir], command].concat())
            .expect("run a pod");
        let (sandbox, container) = ids.trim().split_once(' ').expect("two ids");
        let pid = eventually("the container has a process", 5, || first_process(container));
        let netns = crate::proc::View::leader(pid).and_then(|view| view.netns).expect("its netns");
        self.note(sandbox, netns);
        let ip = address_of(pid);
        Pod {
            name: name.to_owned(),
            uid,
            sandbox: sandbox.to_owned(),
            container: container.to_owned(),
            pid,
            netns,
            ip,
        }
    }

    /// Stops and removes a pod, as kubelet does when it is deleted.
    pub fn stop(&self, pod: &Pod) {
        self.cri(&["stop", &pod.sandbox]).expect("stop the pod");
    }

    fn cri(&self, args: &[&str]) -> Result<String, String> {
        let out = Command::new(client()).arg(&self.socket).args(args).output();
        let out = out.map_err(|error| error.to_string())?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }

    fn import_image(&self, dir: &Path) {
        let script = Command::new("sh")
            .args(["-euc", include_str!("image.sh"), IMAGE])
            .arg(if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" })
            .current_dir(dir)
            .output()
            .expect("run sh");
        assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stderr));
        let ctr = Command::new("ctr")
            .arg("-a")
            .arg(&self.socket)
            .args(["-n", "k8s.io", "images", "import"])
            .arg(dir.join("image.tar"))
            .output()
            .expect("run ctr");
        assert!(ctr.status.success(), "{}", String::from_utf8_lossy(&ctr.stderr));
    }

    /// Notes the pod and the name of its netns, so that both are swept even when nobody stops it.
    fn note(&self, sandbox: &str, inode: u64) {
        use std::os::unix::fs::MetadataExt as _;
        let mut names = fs::read_dir(netns::DIR).expect("the names of netns").flatten();
        let path = names
            .find(|name| fs::metadata(name.path()).is_ok_and(|meta| meta.ino() == inode))
            .expect("a name of the pod's netns")
            .path();
        let list = self.lab.dir().join(LIST);
        let before = fs::read_to_string(&list).unwrap_or_default();
        fs::write(list, format!("{before}{sandbox} {}\n", path.display())).expect("note the pod");
    }
}

impl Drop for Containerd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.lab.dir().join("containerd/log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            println!("containerd said last:");
            tail.iter().rev().for_each(|line| println!("{line}"));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pod uid that carries the lab's tag, so that [`sweep`] knows the pod's cgroups.
fn uid(tag: &str) -> String {
    let (pid, serial) = tag.trim_start_matches("iw").split_once('n').expect("a tag");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    format!("{:08x}-0000-4000-8000-{:012x}", number(pid), number(serial))
}

fn first_process(container: &str) -> Option<u32> {
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

/// Asks the kernel, in the pod's netns, for the pod's IPv4 address.
fn address_of(pid: u32) -> String {
    let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
    let text = sys::on_own_thread(|| {
        sys::enter_netns(&path).expect("enter the pod's netns");
        netns::ip("-4 -j addr show dev eth0")
    });
    let json: serde_json::Value = serde_json::from_str(&text).expect("ip -j prints JSON");
    json[0]["addr_info"][0]["local"].as_str().expect("an address").to_owned()
}

fn config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{dir}/sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
disable_apparmor = true
# Works without CAP_SYS_RESOURCE, which a CI machine may lack.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
# Works on any file system, and the image is small.
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{dir}/net.d"
"#
    )
}

/// The bridge has no address: none of the tests' stands in the host's netns.
fn conflist(lab: &Lab) -> String {
    let (tag, subnet, dir) = (lab.tag(), lab.cidr(0), lab.dir().display());
    format!(
        r#"{{"cniVersion": "0.4.0", "name": "{tag}-net", "plugins": [{{
  "type": "bridge", "bridge": "{tag}b",
  "ipam": {{"type": "host-local", "dataDir": "{dir}/ipam", "ranges": [[{{"subnet": "{subnet}"}}]]}}
}}]}}"#
    )
}

/// Removes what a lab's pods left outside the lab: processes, cgroups, netns, cache files, bridge.
pub fn sweep(tag: &str) {
    let Ok(list) = fs::read_to_string(Lab::dir_of(tag).join(LIST)) else { return };
    let pod = format!("kubepods/besteffort/pod{}", uid(tag));
    // v2 alone has its groups right there, v1 in a directory for each hierarchy.
    let top = PathBuf::from("/sys/fs/cgroup");
    let below = fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
    for top in below.chain([top.clone()]).collect::<Vec<_>>() {
        remove_cgroup(&top.join(&pod));
        // The parents that kubelet would have made; on a node with a kubelet they are not empty.
        let _ = fs::remove_dir(top.join("kubepods/besteffort"));
        let _ = fs::remove_dir(top.join("kubepods"));
    }
    for (sandbox, path) in list.lines().filter_map(|line| line.split_once(' ')) {
        netns::remove(Path::new(path));
        let results = fs::read_dir(CNI_CACHE).into_iter().flatten().flatten();
        for entry in results.filter(|e| e.file_name().to_string_lossy().contains(sandbox)) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = Command::new("ip").args(["link", "del", &format!("{tag}b")]).output();
}

fn remove_cgroup(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    for _ in 0..50 {
        let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        for pid in processes.lines().filter_map(|line| line.parse().ok()) {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        if fs::remove_dir(dir).is_ok() || !dir.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
