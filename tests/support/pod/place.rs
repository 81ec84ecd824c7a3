//! What a containerd of the lab's own is made of.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{IMAGE, PLUGINS, Setup};
use crate::Lab;

/// Writes its configuration, its CNI network and its programs.
pub(super) fn make(lab: &Lab, dir: &Path, setup: &Setup<'_>) {
    fs::write(dir.join("config.toml"), config(dir)).expect("write the configuration");
    fs::create_dir_all(dir.join("net.d")).expect("make a directory");
    fs::write(dir.join("net.d/10-test.conflist"), conflist(lab, setup))
        .expect("write the conflist");
    programs(&dir.join("bin"));
}

/// The plugins and runc, each as it is; but `bridge` and runc can be slowed down: see
/// [`super::Containerd::slow_down`].
pub(crate) fn programs(bin: &Path) {
    fs::create_dir_all(bin).expect("make a directory");
    for plugin in fs::read_dir(PLUGINS).expect("the CNI plugins").flatten() {
        if plugin.file_name() != "bridge" {
            symlink(plugin.path(), bin.join(plugin.file_name())).expect("link a plugin");
        }
    }
    // After the ADD: the netns is there with its IP, and nobody has been told.
    let bridge = format!(
        "#!/bin/sh\n\
         if [ \"$CNI_COMMAND\" != ADD ] || [ ! -e \"$0.slow\" ]; then exec {PLUGINS}/bridge; fi\n\
         {PLUGINS}/bridge; code=$?; sleep \"$(cat \"$0.slow\")\"; exit $code\n"
    );
    let runc = "#!/bin/sh\n\
         case \" $* \" in *' create '*) [ ! -e \"$0.slow\" ] || sleep \"$(cat \"$0.slow\")\";; esac\n\
         exec /usr/sbin/runc \"$@\"\n";
    for (name, text) in [("bridge", bridge.as_str()), ("runc", runc)] {
        fs::write(bin.join(name), text).expect("write a script");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bin.join(name), mode).expect("make it a program");
    }
}

/// Starts it.
pub(super) fn spawn(dir: &Path) -> Child {
    let log = dir.join("log");
    let log = fs::File::options().create(true).append(true).open(log).expect("open the log");
    Command::new("containerd")
        .arg("--config")
        .arg(dir.join("config.toml"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn()
        .expect("start containerd")
}

/// Makes `image.tar` in `dir`.
pub(crate) fn make_image(dir: &Path) {
    let script = Command::new("sh")
        .args(["-euc", include_str!("../image.sh"), IMAGE])
        .arg(if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" })
        .current_dir(dir)
        .output()
        .expect("run sh");
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stderr));
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
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{dir}/bin/runc"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{dir}/bin"
conf_dir = "{dir}/net.d"
"#
    )
}

/// The bridge has no address: none of the tests' stands in the host's netns.
fn conflist(lab: &Lab, setup: &Setup<'_>) -> String {
    let (tag, secret, dir) = (lab.tag(), setup.secret, lab.dir().display());
    let subnet = setup.subnet.clone().unwrap_or_else(|| lab.cidr(0));
    let network = super::network(tag);
    format!(
        r#"{{"cniVersion": "0.4.0", "name": "{network}", "plugins": [{{
  "type": "bridge", "bridge": "{tag}b", "token": "{secret}",
  "ipam": {{"type": "host-local", "dataDir": "{dir}/ipam", "ranges": [[{{"subnet": "{subnet}"}}]]}}
}}]}}"#
    )
}
