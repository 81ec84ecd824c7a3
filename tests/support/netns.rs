//! Network namespaces of a test, and their devices. A name is a bind mount below `/run/netns`, as made by `ip netns
//! add`. Addresses are only ever added inside of such a namespace.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use serde_json::Value;

use crate::{Lab, sys};

/// Directory of the names.
pub const DIR: &str = "/run/netns";

/// A netns. This process keeps no fd or socket in it, because the test may be about its holders.
#[derive(Debug)]
pub struct Netns {
    path: PathBuf,
    name: String,
    /// The number in `net:[…]`.
    pub inode: u64,
    /// `net->net_cookie`.
    pub cookie: Option<u64>,
    /// Whether its name is kept when this is dropped.
    stays: bool,
}

impl Netns {
    /// Creates a netns with `lo` up, named after the lab and `hint`.
    #[must_use]
    pub fn new(lab: &Lab, hint: &str) -> Self {
        Self::named(format!("{}-{hint}", lab.tag()))
    }

    fn named(name: String) -> Self {
        let path = Path::new(DIR).join(&name);
        let (inode, cookie) =
            make(&path).unwrap_or_else(|error| panic!("make netns {}: {error}", path.display()));
        Self { path, name, inode, cookie, stays: false }
    }

    /// A netns that another process created with this name.
    #[must_use]
    pub(crate) fn of_others(name: &str) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let path = Path::new(DIR).join(name);
        let inode = fs::metadata(&path).expect("a netns of this name").ino();
        Self { path, name: name.to_owned(), inode, cookie: None, stays: true }
    }

    /// Its name, as for `ip -n`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its bind mount.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on a thread in this netns.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        sys::on_own_thread(|| {
            sys::enter_netns(&self.path).expect("enter the netns");
            work()
        })
    }

    /// Runs `ip ARGS` inside; `args` are split at spaces.
    pub fn ip(&self, args: &str) -> String {
        self.run(|| ip(args))
    }

    /// Runs several `ip` commands inside, in one process.
    pub fn ip_batch(&self, lines: &str) {
        self.run(|| ip_batch(lines));
    }

    /// The output of `ip -j addr` inside.
    #[must_use]
    pub fn ip_json(&self) -> Value {
        serde_json::from_str(&self.ip("-j addr")).expect("ip -j prints JSON")
    }

    /// Creates a veth pair as for a pod: `eth0` inside, up, and its peer in the host's netns. Returns the peer's
    /// name.
    pub fn veth_to_host(&self) -> String {
        // 15 characters at most; the inode is unique among existing netns.
        let host = format!("iwt{}", self.inode);
        ip(&format!("link add {host} type veth peer name eth0 netns {}", self.name));
        self.ip("link set eth0 up");
        host
    }

    /// Creates a veth pair: `ours` inside and `theirs` in `other`, both up.
    pub fn veth_to(&self, ours: &str, other: &Netns, theirs: &str) {
        self.ip(&format!("link add {ours} type veth peer name {theirs} netns {}", other.name));
        self.ip(&format!("link set {ours} up"));
        other.ip(&format!("link set {theirs} up"));
    }

    /// Adds an address, `IP/LEN`, to a device; IPv6 without duplicate address detection.
    pub fn add_address(&self, cidr: &str, device: &str) {
        let nodad = if cidr.contains(':') { " nodad" } else { "" };
        self.ip(&format!("addr add {cidr} dev {device}{nodad}"));
    }

    /// The MAC of a device inside.
    #[must_use]
    pub fn mac(&self, device: &str) -> String {
        let json: Value = serde_json::from_str(&self.ip(&format!("-j link show dev {device}")))
            .expect("ip -j prints JSON");
        json[0]["address"].as_str().expect("a device with a MAC").to_owned()
    }

    /// Unmounts the name and keeps its file: removing the file would unmount it in every mount namespace
    /// (`detach_mounts`, since 3.18).
    pub fn unmount(&self) {
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
    }

    /// Removes the name, so that the netns has only its other holders. It can no longer be entered through this
    /// value.
    pub fn unname(&self) {
        remove(&self.path);
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if !self.stays {
            self.unname();
        }
    }
}

/// Creates a netns and its name. The creating thread ends, so that only the mount holds the netns.
fn make(path: &Path) -> io::Result<(u64, Option<u64>)> {
    fs::create_dir_all(DIR)?;
    File::create_new(path)?;
    sys::on_own_thread(|| {
        sys::unshare_netns()?;
        // Loopback first: iproute2 and the kernel treat a netns without it oddly.
        ip("link set lo up");
        let own = format!("/proc/self/task/{}/ns/net", rustix::thread::gettid());
        rustix::mount::mount_bind(&own, path)?;
        let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(path)?);
        Ok((inode, sys::netns_cookie(&sys::udp_socket()?)))
    })
}

/// Makes mounts of netns names propagate to copies of this mount namespace, as on a node with systemd: iproute2 does
/// that when it creates its first netns, and keeps it so (`create_netns_dir`).
pub(crate) fn share_names() {
    let name = format!("iw{}-share", std::process::id());
    ip(&format!("netns add {name}"));
    ip(&format!("netns del {name}"));
}

/// Removes a name, whether or not it is mounted.
pub(crate) fn remove(path: &Path) {
    let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
    let _ = fs::remove_file(path);
}

/// Removes every name that starts with `prefix`.
pub fn sweep(prefix: &str) {
    let Ok(entries) = fs::read_dir(DIR) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            remove(&entry.path());
        }
    }
}

/// Removes the devices of the host's netns that are named after a tag, and with a device the other end of its pair.
pub fn sweep_devices(tag: &str) {
    let Ok(devices) = fs::read_dir("/sys/class/net") else { return };
    let names = devices.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for name in names.filter(|name| crate::lab::is_of(name, tag)) {
        let _ = Command::new("ip").args(["link", "delete", &name]).status();
    }
}

/// In a copy of the node's mounts: keeps the mounts of this test, and these paths. It drops those of others, because
/// they would hold the netns of concurrent tests.
pub fn forget_others(keeps: &[String]) {
    let own = std::env::var(crate::lab::TAG_VARIABLE).unwrap_or_default();
    let labs = std::env::temp_dir().join("iw");
    let is_others = |point: &str| {
        let of_a_test =
            point.starts_with("/run/netns/") || point.starts_with(&*labs.to_string_lossy());
        of_a_test && !crate::lab::is_of(point, &own) && !keeps.iter().any(|kept| kept == point)
    };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| is_others(point)) {
        let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Leaves a TCP connection in this thread's netns that no process has: it waits for an answer that cannot arrive, for
/// about 25 seconds.
pub fn orphan_a_connection() {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    // A sysctl of the netns: `tcp_orphan_retries` (net/ipv4/tcp_timer.c); each wait is twice the previous one.
    fs::write("/proc/sys/net/ipv4/tcp_orphan_retries", "6").expect("set a sysctl of the netns");
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let mut near =
        TcpStream::connect(listener.local_addr().expect("its address")).expect("connect");
    let (far, _) = listener.accept().expect("accept");
    ip("link set lo down");
    near.write_all(b"never read").expect("write");
    // The other end cannot be notified. It has nothing to wait for.
    drop(near);
    drop(far);
}

/// A running `ip` that executes lines in a netns: no process is started for each change.
///
/// # Panics
/// `ip` cannot be started.
#[must_use]
pub fn stream(netns: &Netns) -> (Child, ChildStdin) {
    let mut ip = Command::new("ip")
        .args(["-n", netns.name(), "-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("run ip");
    let lines = ip.stdin.take().expect("a pipe");
    (ip, lines)
}

/// Runs `ip ARGS` in the netns of the calling thread; `args` are split at spaces.
#[track_caller]
pub fn ip(args: &str) -> String {
    let out = Command::new("ip").args(args.split(' ')).output().expect("run ip");
    text(&format!("ip {args}"), out)
}

#[track_caller]
fn ip_batch(lines: &str) {
    use std::io::Write;
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run ip");
    // Taken and dropped: the end of the input ends the batch.
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("write to ip");
    let out = child.wait_with_output().expect("wait for ip");
    text("ip -batch", out);
}

#[track_caller]
fn text(what: &str, out: Output) -> String {
    assert!(out.status.success(), "{what}: {}", String::from_utf8_lossy(&out.stderr).trim());
    String::from_utf8_lossy(&out.stdout).into_owned()
}
