//! The container runtimes of other Debian suites, which `cargo xtask test` unpacks into roots of their own. A program of
//! a suite runs with that root's `/usr` in place of the host's, in a mount namespace of its own: with its own libc,
//! shims, runc and plugins. All else, `/run` above all, is the host's.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use crate::Lab;

/// Names the directory of the roots.
const VARIABLE: &str = "IPWATCH_TEST_SUITES";

/// A Debian suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// Debian 12: containerd 1.6, dockerd 20.10, podman 4.3.
    Bookworm,
    /// Debian 13: containerd 1.7, dockerd 26.1, podman 5.4.
    Trixie,
    /// The newest: containerd 2.1, dockerd 28.5, podman 5.8 when this was written.
    Sid,
}

/// The cgroup hierarchies that a program sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cgroups {
    /// Those of the host.
    #[default]
    Host,
    /// cgroup v1 alone.
    V1,
    /// cgroup v2 alone, with the controllers that the host's v1 leaves to it.
    V2,
}

/// Only the names of netns and mounts in the lab reach the host, as those of a runtime on a node do. The root's `/usr`
/// comes last: it has no `mount`.
const ENTER: &str = r#"
for dir in / /usr /run /dev; do
    ! mountpoint -q $dir || mount --make-private $dir
done
mount --make-rprivate /sys/fs/cgroup
case $1 in
V1) ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified ;;
V2) mount -t cgroup2 none /sys/fs/cgroup ;;
esac
shift
while [ "$1" != -- ]; do
    [ -e "$2" ] || [ -d "$1" ] || : > "$2"
    [ -e "$2" ] || mkdir -p "$2"
    mount --bind "$1" "$2"
    shift 2
done
shift
mount --bind "$0/usr" /usr
exec "$@"
"#;

impl Suite {
    /// The root.
    #[must_use]
    pub fn root(self) -> PathBuf {
        let dir = std::env::var_os(VARIABLE).map(PathBuf::from).unwrap_or_default();
        dir.join(format!("{self:?}").to_lowercase())
    }

    /// Why its programs cannot be run here.
    #[must_use]
    pub(crate) fn missing(self) -> Option<String> {
        let root = self.root().join("versions");
        crate::pod::missing().or_else(|| crate::need::absent(root))
    }

    /// What a program of it says of its version, such as `containerd`.
    #[must_use]
    pub fn version(self, program: &str) -> String {
        let all = std::fs::read_to_string(self.root().join("versions")).unwrap_or_default();
        let is_its = |line: &&str| line.to_lowercase().starts_with(program);
        all.lines().find(is_its).unwrap_or_default().to_owned()
    }

    /// A command that runs a program of it.
    #[must_use]
    pub fn command(self, program: impl AsRef<OsStr>, cgroups: Cgroups) -> Command {
        self.command_with(program, cgroups, &[])
    }

    /// Like `command`, with these files and directories, each in the place of another.
    pub(crate) fn command_with(
        self,
        program: impl AsRef<OsStr>,
        cgroups: Cgroups,
        instead: &[(PathBuf, &str)],
    ) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "unchanged", "sh", "-euc", ENTER]);
        command.arg(self.root()).arg(format!("{cgroups:?}"));
        for (path, of) in instead {
            command.arg(path).arg(of);
        }
        command.arg("--").arg(program);
        command
    }
}

/// Makes the mounts in the lab, from now on, visible both on the host and in the mount namespaces of a suite's programs,
/// as on a node, where all of them would be in one.
///
/// # Panics
/// A mount fails.
pub fn share(lab: &Lab) {
    let script =
        r#"mountpoint -q "$0" || { mount --rbind "$0" "$0" && mount --make-shared "$0"; }"#;
    let done = Command::new("sh").args(["-euc", script]).arg(lab.dir()).status().expect("run sh");
    assert!(done.success(), "share the mounts of {}", lab.dir().display());
}
