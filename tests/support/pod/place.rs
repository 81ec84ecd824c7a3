//! The files of a containerd in the lab.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{IMAGE, MACVLAN, OWN_IMAGE, PLUGINS, Programs, Setup, shared};
use crate::{Lab, daemon, sys};

/// File name of a network's configuration.
pub(super) const CONFLIST: &str = "10-test.conflist";

const CONTAINERD: &str = "/usr/bin/containerd";

/// Directory of a containerd that has a mount namespace of its own.
pub(super) const APART: &str = "apart";

/// Mounts as on a node that systemd has booted, where all are shared: kubelet needs that for `HostToContainer`. Here the
/// host's stay as they are. The daemon's own two directories are the lab's (`$0`); on the host they are empty.
const NODE: &str = r#"
mount --make-rshared /
for dir in run/ipwatch var/lib/ipwatch; do
    mkdir -p "/$dir" "$0/$dir"
    mount --bind "$0/$dir" "/$dir"
done
exec "$@"
"#;

/// Writes its configuration, its CNI network and its programs.
pub(super) fn make(lab: &Lab, dir: &Path, setup: &Setup<'_>) {
    let config = config(dir, setup);
    fs::write(dir.join("config.toml"), config).expect("write the configuration");
    let network = |place: &str, text: String| {
        fs::create_dir_all(dir.join(place)).expect("make a directory");
        fs::write(dir.join(place).join(CONFLIST), text).expect("write the conflist");
    };
    for slot in 0..setup.slots {
        fs::create_dir_all(shared::conf_dir(dir, slot)).expect("make a directory");
    }
    if let Some(node) = setup.node.or(setup.inside.filter(|_| setup.macvlan)) {
        node.ip("link add up0 type veth peer name up1");
        node.ip("link set up0 up");
        node.ip("link set up1 up");
    }
    if setup.node.is_some() {
        let block = |n: u8| format!("{}/27", lab.ip(64 * n + 32 * setup.copy));
        let ptp = json!({ "type": "ptp" });
        network("net.d", conflist(lab, &setup.own("ptp"), ptp, &block(2)));
        let macvlan = json!({ "type": "macvlan", "master": "up0" });
        network("macvlan.d", conflist(lab, &setup.own("macvlan"), macvlan, &block(3)));
    } else {
        network("net.d", default_network(lab, setup));
    }
    programs(&dir.join("bin"), &Programs { suite: setup.suite, ..Programs::default() }.plugins());
    if setup.apart {
        fs::create_dir_all(dir.join(APART)).expect("make a directory");
    }
}

/// The plugins and runc: those below `names`, which lie at [`PLUGINS`] when they are run. Some of them can be slowed down, see [`super::Containerd::slow_down`]; `bridge` can be made
/// to fail, see [`super::Containerd::fail_del`].
pub(crate) fn programs(bin: &Path, names: &Path) {
    fs::create_dir_all(bin).expect("make a directory");
    for plugin in fs::read_dir(names).expect("the CNI plugins").flatten() {
        if plugin.file_name() != "bridge" && plugin.file_name() != "host-local" {
            let at = Path::new(PLUGINS).join(plugin.file_name());
            symlink(at, bin.join(plugin.file_name())).expect("link a plugin");
        }
    }
    let ours = daemon::binary().with_file_name("ipwatch-ipam");
    symlink(ours, bin.join("ipwatch-ipam")).expect("link a plugin");
    // bridge after the ADD: the netns is there with its IP, and nobody has been told. host-local after
    // the ADD: the IP is reserved, and nobody has it.
    let plugins = PLUGINS;
    let slow = |plugin: &str, before: &str| {
        format!(
            "#!/bin/sh\n{before}\
             if [ \"$CNI_COMMAND\" != ADD ] || [ ! -e \"$0.slow\" ]; then exec {plugins}/{plugin}; fi\n\
             {plugins}/{plugin}; code=$?; sleep \"$(cat \"$0.slow\")\"; exit $code\n"
        )
    };
    let fail = "if [ \"$CNI_COMMAND\" = DEL ] && [ -e \"$0.fail\" ]; then\n\
         echo '{\"cniVersion\": \"0.4.0\", \"code\": 999, \"msg\": \"made to fail\"}'; exit 1; fi\n";
    let release = format!(
        "if [ \"$CNI_COMMAND\" = DEL ] && [ -e \"$0.slow-del\" ]; then\n\
         {plugins}/host-local; code=$?; sleep \"$(cat \"$0.slow-del\")\"; exit $code; fi\n"
    );
    let (bridge, host_local) = (slow("bridge", fail), slow("host-local", &release));
    let runc = "#!/bin/sh\n\
         case \" $* \" in *' create '*) [ ! -e \"$0.slow\" ] || sleep \"$(cat \"$0.slow\")\";; esac\n\
         exec /usr/sbin/runc \"$@\"\n";
    for (name, text) in [("bridge", bridge.as_str()), ("host-local", &host_local), ("runc", runc)] {
        fs::write(bin.join(name), text).expect("write a script");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(bin.join(name), mode).expect("make it a program");
    }
}

/// Starts containerd in the netns of its node.
pub(super) fn spawn(dir: &Path, node: Option<&Path>, programs: Programs) -> Child {
    let log = dir.join("log");
    let log = fs::File::options().create(true).append(true).open(log).expect("open the log");
    let apart = dir.join(APART);
    let mut command = if apart.exists() {
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "--propagation", "slave", "sh", "-euc", NODE]).arg(&apart);
        unshare.arg(CONTAINERD);
        unshare
    } else {
        programs.command(Path::new(CONTAINERD))
    };
    command.arg("--config").arg(dir.join("config.toml")).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("a second handle")).stderr(log);
    let mut spawn = || command.spawn().expect("start containerd");
    let Some(node) = node else { return spawn() };
    sys::on_own_thread(|| {
        sys::enter_netns(node).expect("enter the node's netns");
        spawn()
    })
}

/// Makes `image.tar` in `dir`: busybox.
pub(crate) fn make_image(dir: &Path) {
    let bin = dir.join("image/layer/bin");
    fs::create_dir_all(&bin).expect("make a directory");
    fs::create_dir_all(dir.join("image/layer/host")).expect("make a directory");
    fs::copy("/bin/busybox", bin.join("busybox")).expect("copy busybox");
    for applet in ["sh", "sleep", "cat"] {
        let _ = symlink("busybox", bin.join(applet));
    }
    pack_image(dir, "image", IMAGE, &json!({ "Entrypoint": ["/bin/sleep", "1000000"] }));
}

/// Makes `ipwatch.tar` in `dir`: the image of `deploy/container`, with the binary under test.
pub(super) fn make_own_image(dir: &Path) {
    let layer = dir.join("ipwatch/layer");
    let places = [
        "proc",
        "sys",
        "run",
        "etc/cni",
        "etc/ipwatch",
        "var/lib/cni",
        "var/lib/ipwatch",
        "var/log",
    ];
    for place in
        places.map(|place| format!("host/{place}")).iter().map(String::as_str).chain(["usr/bin"])
    {
        fs::create_dir_all(layer.join(place)).expect("make a directory");
    }
    symlink("../run", layer.join("host/var/run")).expect("make a link");
    // Without debug information, most of the file.
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(layer.join("usr/bin/ipwatch")).arg(daemon::binary());
    let done = strip.status().is_ok_and(|status| status.success());
    if !done {
        fs::copy(daemon::binary(), layer.join("usr/bin/ipwatch")).expect("copy the binary");
    }
    let config = json!({
        "Env": ["IPWATCH_HOST_ROOT=/host", "PATH=/usr/bin"],
        "Entrypoint": ["/usr/bin/ipwatch"], "Cmd": ["run"],
    });
    pack_image(dir, "ipwatch", OWN_IMAGE, &config);
}

/// Makes `NAME.tar` of the directory `NAME/layer`.
fn pack_image(dir: &Path, name: &str, image: &str, config: &Value) {
    let script = Command::new("sh")
        .args(["-euc", include_str!("../image.sh"), name, image])
        .arg(if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" })
        .arg(config.to_string())
        .current_dir(dir)
        .output()
        .expect("run sh");
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stderr));
}

/// The default network of a lab.
pub(super) fn default_network(lab: &Lab, setup: &Setup<'_>) -> String {
    // The bridge has no address: no test uses one in the host's netns.
    let bridge = setup.own(&format!("{}b", lab.tag()));
    let main = if setup.macvlan {
        json!({ "type": "macvlan", "master": "up0" })
    } else {
        json!({ "type": "bridge", "bridge": bridge, "token": setup.secret })
    };
    let subnet = setup.subnet.clone().unwrap_or_else(|| lab.cidr(0));
    let text = conflist(lab, &setup.own("net"), main, &subnet);
    if setup.prevention { prevented(lab, &text, setup.refuses) } else { text }
}

/// Where `ipwatch-ipam` keeps what it has parked.
pub(super) fn prevention_state(lab: &Lab) -> PathBuf {
    lab.dir().join("parked")
}

/// The same network with `ipwatch-ipam` before its IPAM plugin. A daemon that is a debug build, on a machine that builds
/// meanwhile, has more time than the 20 ms of the default, which the release build has (`cargo xtask test --release`).
pub(crate) fn prevented(lab: &Lab, text: &str, refuses: bool) -> String {
    let mut list: Value = serde_json::from_str(text).expect("a conflist");
    let delegate = list["plugins"][0]["ipam"].take();
    list["plugins"][0]["ipam"] = json!({
        "type": "ipwatch-ipam", "delegate": delegate, "socket": daemon::socket_in(lab),
        "stateDir": prevention_state(lab),
    });
    if refuses {
        list["plugins"][0]["ipam"]["whenAllHeld"] = json!("fail");
    }
    if !crate::poll::is_shipped() {
        list["plugins"][0]["ipam"]["timeoutMs"] = json!(2000);
    }
    list.to_string()
}

fn config(dir: &Path, setup: &Setup<'_>) -> String {
    let macvlan = setup.node.map(|_| (MACVLAN.to_owned(), dir.join("macvlan.d")));
    let slot = |slot: usize| (shared::handler(slot), shared::conf_dir(dir, slot));
    let handlers = macvlan.into_iter().chain((0..setup.slots).map(slot));
    let dir = dir.display();
    let handler = |(name, conf_dir): (String, PathBuf)| {
        format!(
            r#"[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
cni_conf_dir = {conf_dir:?}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
BinaryName = "{dir}/bin/runc"
"#
        )
    };
    let plain = format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.nri.v1.nri"]
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
    );
    plain + &handlers.map(handler).collect::<String>()
}

fn conflist(lab: &Lab, name: &str, mut plugin: Value, subnet: &str) -> String {
    let range = |text: &str| {
        let mut words = text.split(' ');
        let mut range = json!({ "subnet": words.next() });
        if let (Some(first), Some(last)) = (words.next(), words.next()) {
            (range["rangeStart"], range["rangeEnd"]) = (first.into(), last.into());
        }
        range
    };
    let set = |text: &str| text.split(',').map(range).collect::<Value>();
    let ranges: Value = subnet.split(';').map(set).collect();
    plugin["ipam"] =
        json!({ "type": "host-local", "dataDir": lab.dir().join("ipam"), "ranges": ranges });
    let name = super::network(lab.tag(), name);
    json!({ "cniVersion": "0.4.0", "name": name, "plugins": [plugin] }).to_string()
}
