//! What a test needs of its machine. A missing need is a named, counted skip for a person, and a failure in CI: there
//! a green run must have tested everything.

use std::path::Path;

use crate::Suite;

/// A requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// `/dev/fuse`.
    Fuse,
    /// A cgroup v1 freezer hierarchy, mounted or to be mounted.
    FreezerV1,
    /// A cgroup v2 hierarchy whose groups can be frozen.
    FreezerV2,
    /// `core_pattern` is a plain relative name, so that a process dumps core into its directory. The sysctl is the
    /// host's: a test does not change it.
    PlainCore,
    /// CNI plugins, and probes that see them run.
    Cni,
    /// containerd, runc, the CNI plugins and the CRI helper: a containerd of the test, which it may harm.
    Containerd,
    /// The runtimes of Debian 12, in a root of their own ([`Suite`]).
    Bookworm,
    /// Those of Debian 13.
    Trixie,
    /// Those of Debian's newest suite.
    Sid,
    /// What `Containerd` needs, for the containerd that tests share (`Containerd::shared`): the test must not harm
    /// it.
    Pods,
    /// Only runc.
    Runc,
    /// dockerd and runc.
    Dockerd,
    /// podman with netavark and with CNI, and runc.
    Podman,
    /// bubblewrap, and setpriv to start it as a user.
    Bubblewrap,
    /// gdb.
    Gdb,
    /// keepalived.
    Keepalived,
    /// A cgroup hierarchy in which a group of the test gets less CPU time.
    LittleCpu,
    /// A cgroup hierarchy in which the memory of a group of the test is counted and limited.
    CountedMemory,
    /// The CRI helper, which imitates a runtime.
    FakeCri,
    /// The daemon that tests share (`Daemon::shared`): the test must only query it.
    SharedDaemon,
    /// etcd.
    Etcd,
    /// etcd and kube-apiserver of the test, which it may harm.
    ApiServer,
    /// The API server that tests share (`ControlPlane::shared`): the test must not harm it, nor depend on objects of
    /// others.
    SharedApiServer,
    /// The shared API server, and kubelet beside a containerd.
    Kubelet,
    /// The rotel collector.
    Rotel,
    /// Prometheus and its promtool.
    Prometheus,
    /// Helm and kubectl.
    Helm,
    /// Chromium.
    Chromium,
    /// A release of the daemon under test in two revisions, as `cargo xtask release` packs it, and who reads it.
    Release,
    /// The binary of the version before. `cargo xtask test --long` alone builds it.
    PreviousVersion,
    /// A machine that nobody else is on, whose network as a whole may be stopped for seconds: a VM that
    /// was booted for these tests.
    OwnMachine,
    /// A machine booted by systemd, with the packages to install.
    Systemd,
    /// Probes may be attached to kernel functions (fentry or kprobe).
    Tracing,
    /// The kernel supports macvlan devices.
    Macvlan,
    /// The kernel supports VXLAN devices.
    Vxlan,
    /// An `umount` that takes a mount namespace as an argument (`-N`, util-linux 2.35).
    UmountN,
    /// The kernel's NFS client.
    Nfs,
}

impl Need {
    /// The cost of starting it, compared with a test that only starts the daemon.
    #[must_use]
    pub fn effort(self) -> usize {
        match self {
            Need::Kubelet => 3,
            Need::ApiServer => 2,
            Need::Containerd
            | Need::Bookworm
            | Need::Trixie
            | Need::Sid
            | Need::Pods
            | Need::Dockerd
            | Need::Podman
            | Need::SharedApiServer => 1,
            _ => 0,
        }
    }

    /// The reason why it is missing, or `None`.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        match self {
            Need::Fuse => absent("/dev/fuse"),
            Need::FreezerV1 => crate::cgroup::without_v1_freezer(),
            Need::FreezerV2 => {
                crate::cgroup::v2().is_none().then(|| "no cgroup v2 hierarchy".into())
            }
            Need::PlainCore => {
                let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").ok()?;
                pattern.starts_with(['|', '/']).then(|| format!("core_pattern is {pattern:?}"))
            }
            Need::Cni => crate::cni::missing(),
            Need::Containerd | Need::Pods => crate::pod::missing(),
            Need::Bookworm => Suite::Bookworm.missing(),
            Need::Trixie => Suite::Trixie.missing(),
            Need::Sid => Suite::Sid.missing(),
            Need::Runc => crate::container::missing(),
            Need::Dockerd => crate::docker::missing(),
            Need::Podman => crate::podman::missing(),
            Need::Bubblewrap => absent("/usr/bin/bwrap").or_else(|| absent("/usr/bin/setpriv")),
            Need::Gdb => absent("/usr/bin/gdb"),
            Need::Keepalived => crate::keepalived::missing(),
            Need::LittleCpu => crate::cgroup::without_cpu(),
            Need::CountedMemory => crate::cgroup::without_memory(),
            Need::FakeCri => absent(crate::pod::client()),
            Need::SharedDaemon => None,
            Need::Etcd => crate::etcd::missing(),
            Need::ApiServer | Need::SharedApiServer => crate::kubernetes::without_api_server(),
            Need::Kubelet => crate::kubernetes::without_kubelet(),
            Need::Rotel => crate::collector::missing(),
            Need::Prometheus => crate::prometheus::missing(),
            Need::Helm => crate::helm::missing(),
            Need::Chromium => crate::chromium::missing(),
            Need::Release => crate::release::missing(),
            Need::PreviousVersion => (std::env::var_os("IPWATCH_TEST_PREVIOUS").is_none())
                .then(|| "the version before is not built (--long builds it)".into()),
            Need::OwnMachine => (std::env::var_os("IPWATCH_TEST_OWN_MACHINE").is_none()
                || !Path::new("/modules/order").exists())
            .then(|| "this is no VM of the tests' own".into()),
            Need::Systemd => crate::systemd::missing(),
            Need::Tracing => (std::env::var_os("IPWATCH_TEST_TRACING").is_none())
                .then(|| "this kernel takes neither fentry nor kprobe".into()),
            Need::Macvlan => no_device("link low type macvlan mode bridge"),
            Need::Vxlan => no_device("type vxlan id 7 remote 100.64.0.1 dstport 4789"),
            Need::UmountN => without_umount(),
            Need::Nfs => {
                let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
                (!known.lines().any(|line| line == "nodev\tnfs")).then(|| "no NFS client".into())
            }
        }
    }
}

impl Need {
    /// A host may lack it even in CI: cgroup v1 is built into fewer and fewer kernels. The VMs, whose
    /// kernels take probes on functions, have it. Chromium is large: `cargo xtask test --long` alone installs it.
    #[must_use]
    pub fn may_be_missing(self) -> bool {
        // busybox, which is in VMs of another machine, knows no namespaces.
        self == Need::UmountN
            // With v2, whoever started the tests decides which controllers they have.
            || matches!(self, Need::LittleCpu | Need::CountedMemory)
            // A mirror may be out of step with its own lists, above all with those of sid.
            || matches!(self, Need::Bookworm | Need::Trixie | Need::Sid)
            || self == Need::FreezerV1 && Need::Tracing.missing().is_some()
            || matches!(self, Need::Chromium | Need::PreviousVersion) && !crate::harness::is_long()
    }
}

fn without_umount() -> Option<String> {
    let help = std::process::Command::new("umount").arg("--help").output();
    let knows = help.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("--namespace"));
    (!knows).then(|| "no umount that takes a mount namespace".into())
}

/// The reason if the kernel cannot create such a device; tested in a temporary netns.
fn no_device(what: &str) -> Option<String> {
    let script = format!("ip link add low type veth peer name high && ip link add new {what}");
    let made = std::process::Command::new("unshare").args(["--net", "sh", "-c", &script]).output();
    let out = match made {
        Ok(out) => out,
        Err(error) => return Some(format!("cannot run unshare: {error}")),
    };
    let said = String::from_utf8_lossy(&out.stderr);
    (!out.status.success()).then(|| format!("no device of {what:?}: {}", said.trim()))
}

/// The reason if `path` does not exist.
#[must_use]
pub fn absent(path: impl AsRef<Path>) -> Option<String> {
    let path = path.as_ref();
    (!path.exists()).then(|| format!("no {}", path.display()))
}
