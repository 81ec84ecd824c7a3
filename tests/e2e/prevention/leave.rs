//! `ipwatch cni install` and `uninstall` on the network of a real containerd whose pods go on, and the removal of the
//! package by dpkg with its own scripts, in a root of its own, where it is upgraded first.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use serde_json::Value;
use support::daemon::binary;
use support::pod::{CNI_CACHE, Containerd, PodSandbox, Setup};
use support::poll::eventually;
use support::{Lab, daemon};

use super::{counted, reservations};

support::tests! {
    a_network_is_wrapped_and_left_while_pods_run needs [Containerd],
    the_package_is_not_removed_while_a_network_names_it,
}

const OWN: &str = "ipwatch-ipam";

/// `ipwatch cni`, in the places of this containerd.
fn cni(containerd: &Containerd<'_>, cache: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("cni").args(words).arg("--conf-dir").arg(&containerd.conf_dirs()[0]);
    command.arg("--bin-dir").arg(containerd.bin_dir()).arg("--cache-dir").arg(cache);
    command.arg("--parked-dir").arg(containerd.parked());
    command.output().expect("run ipwatch")
}

/// The same; what it says.
#[track_caller]
fn said(containerd: &Containerd<'_>, cache: &Path, words: &[&str]) -> String {
    let out = cni(containerd, cache, words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{words:?}: {}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).expect("read a file")
}

/// Copies what libcni keeps of these pods into a cache of the lab's: the node's has those of other tests.
fn cached(cache: &Path, pods: &[&PodSandbox]) {
    let _ = fs::remove_dir_all(cache);
    fs::create_dir(cache).unwrap();
    for entry in fs::read_dir(CNI_CACHE).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if pods.iter().any(|pod| name.contains(&pod.sandbox)) {
            fs::copy(entry.path(), cache.join(name)).unwrap();
        }
    }
}

fn a_network_is_wrapped_and_left_while_pods_run(lab: &Lab) {
    let containerd = Containerd::start_as(lab, &Setup::default());
    let (cache, program) = (lab.dir().join("results"), containerd.bin_dir().join(OWN));
    fs::remove_file(&program).unwrap();
    let file = containerd.conf_dirs()[0].join("10-test.conflist");
    let (plain, before) = (read(&file), containerd.pod("before").sandbox());
    cached(&cache, &[]);

    let shown = said(&containerd, &cache, &["install", "--dry-run"]);
    assert!(shown.contains("\n+") && shown.contains(OWN), "{shown}");
    assert!(read(&file) == plain && !program.exists(), "nothing is changed");
    said(&containerd, &cache, &["install"]);
    assert!(read(&file).contains(OWN) && program.exists());
    assert!(said(&containerd, &cache, &["install"]).contains("nothing to change"));
    assert!(said(&containerd, &cache, &["status"]).contains("ipwatch-ipam wraps host-local"));
    // The daemon and the state of the lab, as an administrator sets options. In place: see `pod/shared.rs`.
    let mut list: Value = serde_json::from_str(&read(&file)).unwrap();
    list["plugins"][0]["ipam"]["socket"] = daemon::socket_in(lab).to_str().unwrap().into();
    list["plugins"][0]["ipam"]["stateDir"] = containerd.parked().to_str().unwrap().into();
    fs::write(&file, list.to_string()).unwrap();
    let through = eventually("a pod is made through it", 20, || made(&containerd, &cache, true));
    let other = containerd.pod("other").sandbox();
    cached(&cache, &[&through, &other]);
    assert!(counted(&containerd, "unanswered-no-daemon") > 0, "nobody answers here");
    containerd.stop(&before);
    assert_eq!(
        containerd.reserved_for(&before.ip),
        None,
        "what was made before it ends through it"
    );

    let text = said(&containerd, &cache, &["uninstall"]);
    let shape = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(shape(&read(&file)), shape(&plain), "as it was");
    assert!(program.exists(), "two pods may need it");
    let told = ["stays: for another 60 minutes", "as long as a file in", "`ipwatch cni uninstall`"];
    assert!(told.iter().all(|part| text.contains(part)), "{text}");
    let command = text.lines().find(|line| line.contains("&& rm ")).expect("a command").to_owned();
    let run = || Command::new("sh").args(["-c", &command]).status().unwrap();
    let plainly = eventually("a pod is made without it", 20, || made(&containerd, &cache, false));
    containerd.stop(&plainly);
    cached(&cache, &[&through, &other]);
    // An hour later.
    let mark = fs::File::options().write(true).open(containerd.parked().join("unwrapped")).unwrap();
    mark.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let _ = run();
    assert!(said(&containerd, &cache, &["uninstall"]).contains("stays: as long as a file in"));
    assert!(program.exists());
    // DEL of one with the configuration that is there now, and of the other, as CRI-O does, with its own.
    containerd.stop(&through);
    del_as_cached(&cache, &other, &containerd.bin_dir());
    assert_eq!(containerd.reserved_for(&other.ip), None);
    containerd.stop(&other);
    assert_eq!(reservations(&containerd), [] as [String; 0], "nothing is left");
    cached(&cache, &[]);
    assert!(said(&containerd, &cache, &["uninstall"]).contains("removed "));
    assert!(!program.exists());
    fs::write(&program, "").unwrap();
    let mark = containerd.parked().join("unwrapped");
    fs::File::create(mark).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let _ = run();
    assert!(!program.exists(), "{command}");
}

/// A pod that was made through it, or not.
fn made(containerd: &Containerd<'_>, cache: &Path, through: bool) -> Option<PodSandbox> {
    let pod = containerd.pod("made").sandbox();
    cached(cache, &[&pod]);
    let is_through = fs::read_dir(cache).unwrap().flatten().any(|entry| {
        let entry: Value = serde_json::from_str(&read(&entry.path())).unwrap();
        decoded(entry["config"].as_str().unwrap()).contains(OWN)
    });
    if is_through != through {
        containerd.stop(&pod);
    }
    (is_through == through).then_some(pod)
}

fn decoded(base64: &str) -> String {
    let mut child = Command::new("base64");
    let mut child =
        child.arg("-d").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run base64");
    child.stdin.take().unwrap().write_all(base64.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// DEL with the configuration that libcni keeps for a pod (`CNIConfig.getCachedConfig`).
fn del_as_cached(cache: &Path, pod: &PodSandbox, bin: &Path) {
    let of_pod = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains(&pod.sandbox);
    let mut entries = fs::read_dir(cache).unwrap().flatten().filter(of_pod);
    let entry =
        entries.find(|entry| entry.file_name().to_string_lossy().ends_with("-eth0")).unwrap();
    let entry: Value = serde_json::from_str(&read(&entry.path())).unwrap();
    let list: Value = serde_json::from_str(&decoded(entry["config"].as_str().unwrap())).unwrap();
    let mut config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    assert_eq!(config["ipam"]["type"], OWN);
    let mut plugin = Command::new(bin.join("bridge"));
    plugin.env("CNI_COMMAND", "DEL").env("CNI_CONTAINERID", &pod.sandbox);
    plugin.env("CNI_NETNS", &pod.path).env("CNI_IFNAME", "eth0").env("CNI_PATH", bin);
    let mut plugin = plugin.stdin(Stdio::piped()).spawn().expect("run bridge");
    plugin.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    assert!(plugin.wait().unwrap().success());
}

/// The package's scripts.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("../../../deploy/package/postinst")),
    ("prerm", include_str!("../../../deploy/package/prerm")),
    ("postrm", include_str!("../../../deploy/package/postrm")),
];
const PLAIN: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.7.0/24"}]]}}]}"#;

/// A root with a shell, a network of containerd's and an empty dpkg.
fn root(lab: &Lab) -> PathBuf {
    let root = lab.subdir("root");
    for dir in [
        "bin",
        "dev",
        "tmp",
        "etc/cni/net.d",
        "etc/containerd",
        "opt/cni/bin",
        "var/lib/cni/results",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "var/lib/dpkg/triggers",
    ] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for file in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(file), "").unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for name in ["sh", "rm", "touch", "grep", "find"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    // Without devices: what the scripts send there is a file.
    fs::write(root.join("dev/null"), "").unwrap();
    // No group has to be made.
    program(&root.join("bin/getent"), "#!/bin/sh\n");
    program(&root.join("opt/cni/bin/host-local"), "#!/bin/sh\n");
    fs::write(root.join("etc/containerd/config.toml"), "bin_dir = \"/opt/cni/bin\"\n").unwrap();
    fs::write(root.join("etc/cni/net.d/10-net.conflist"), PLAIN).unwrap();
    root
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A package of these programs with the real scripts.
fn package(lab: &Lab) -> PathBuf {
    let tree = lab.subdir("tree");
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    fs::create_dir_all(tree.join("DEBIAN")).unwrap();
    for name in ["ipwatch", OWN] {
        fs::copy(binary().with_file_name(name), tree.join("usr/bin").join(name)).unwrap();
    }
    let control = "Package: ipwatch\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\n\
                   Description: a test\n";
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    SCRIPTS.iter().for_each(|(name, text)| program(&tree.join("DEBIAN").join(name), text));
    let deb = lab.dir().join("ipwatch.deb");
    let mut build = Command::new("dpkg-deb");
    build.args(["--build", "--root-owner-group", "-Znone"]).arg(&tree).arg(&deb);
    assert!(build.output().expect("run dpkg-deb").status.success());
    deb
}

fn the_package_is_not_removed_while_a_network_names_it(lab: &Lab) {
    let (root, deb) = (root(lab), package(lab));
    let dpkg = |words: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", root.display()))
            .args(["--force-bad-path", "--force-unsafe-io"]);
        let out = dpkg.args(words).output().expect("run dpkg");
        let text =
            [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (out.status.success(), text.concat())
    };
    let (installed, text) = dpkg(&["--install", deb.to_str().unwrap()]);
    assert!(installed, "{text}");
    let mut install = Command::new("chroot");
    let out = install.arg(&root).args(["/usr/bin/ipwatch", "cni", "install"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let file = root.join("etc/cni/net.d/10-net.conflist");
    let (copy, own) = (root.join("opt/cni/bin").join(OWN), root.join("usr/bin/ipwatch"));
    assert!(read(&file).contains(OWN) && copy.exists());

    // An upgrade: the copy is of the version before.
    program(&copy, "of the version before");
    let status = |root: &Path| {
        let mut status = Command::new("chroot");
        let out = status.arg(root).args(["/usr/bin/ipwatch", "cni", "status"]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    assert!(status(&root).contains("of another version than this ipwatch"), "{}", status(&root));
    let (upgraded, text) = dpkg(&["--install", deb.to_str().unwrap()]);
    assert!(upgraded && text.contains("replaced /opt/cni/bin/ipwatch-ipam"), "{text}");
    assert!(!status(&root).contains("of another version"), "{}", status(&root));
    let same = [&copy, &root.join("usr/bin").join(OWN)].map(|file| fs::read(file).unwrap());
    assert!(same[0] == same[1] && read(&file).contains(OWN));

    // One that it cannot change.
    let odd = root.join("etc/cni/net.d/20-odd.conflist");
    fs::write(&odd, "{ \"ipam\": \"ipwatch-ipam\"").unwrap();
    let (removed, text) = dpkg(&["--remove", "ipwatch"]);
    assert!(!removed && text.contains("20-odd.conflist still names ipwatch-ipam"), "{text}");
    assert!(own.exists() && copy.exists(), "{text}");

    // A pod that was made through it runs.
    fs::remove_file(&odd).unwrap();
    let entry = root.join("var/lib/cni/results/net-c1-eth0");
    fs::write(entry, r#"{"config":"eyJ0eXBlIjogImlwd2F0Y2gtaXBhbSJ9"}"#).unwrap();
    let (removed, text) = dpkg(&["--remove", "ipwatch"]);
    assert!(removed, "{text}");
    assert_eq!(read(&file), PLAIN);
    assert!(!own.exists(), "the package is gone");
    assert!(copy.exists(), "the plugin stays");
    for part in [
        "/opt/cni/bin/ipwatch-ipam stays: for another 60 minutes",
        "&& rm /opt/cni/bin/ipwatch-ipam",
    ] {
        assert!(text.contains(part), "until when, and what then: {text}");
    }
}
