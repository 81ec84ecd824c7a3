//! What `cargo xtask release` makes is installed: packages with their scripts in a root of their own, upgraded, rolled back
//! and removed; the image and the chart as those read them who get them. What the version before kept is read.
//!
//! An older binary in `IPWATCH_TEST_PREVIOUS` is started on what this version has written: `cargo xtask test --long` builds
//! the version before.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::daemon::{self, binary};
use support::helm::helm;
use support::poll::eventually;
use support::release::{Root, file, run};
use support::{Config, Daemon, Lab};

support::tests! {
    a_deb_is_upgraded_rolled_back_and_removed needs [Release],
    an_rpm_is_upgraded_rolled_back_and_removed needs [Release],
    the_image_is_what_the_chart_installs needs [Release, Helm],
    a_downloaded_release_is_checked needs [Release],
    a_reboot_and_an_upgrade_keep_the_history,
    a_tarball_is_unpacked_as_documented needs [Release],
    an_upgrade_keeps_findings,
    a_rollback_finds_what_was_kept needs [PreviousVersion],
}

const DEB: &str = ".deb";
const RPM: &str = ".rpm";
const STATE: &str = "var/lib/ipwatch";
const RUNTIME: &str = "run/ipwatch";
const CONFIG: &str = "etc/ipwatch/ipwatch.toml";

/// Puts a history and a change of the configuration where the service would.
fn use_it(root: &Root) {
    fs::create_dir_all(root.path(STATE)).unwrap();
    fs::write(root.path(STATE).join("ledger.redb"), "history").unwrap();
    // What a daemon that was stopped leaves there.
    fs::create_dir_all(root.path(RUNTIME)).unwrap();
    fs::write(root.path(RUNTIME).join("ipwatch.sock.lock"), "").unwrap();
    let config = root.path(CONFIG);
    let text = fs::read_to_string(&config).unwrap();
    fs::write(config, format!("observe_only = true\n{text}")).unwrap();
}

/// What a person has made is as it was.
#[track_caller]
fn is_kept(root: &Root) {
    assert_eq!(fs::read_to_string(root.path(STATE).join("ledger.redb")).unwrap(), "history");
    let text = fs::read_to_string(root.path(CONFIG)).unwrap();
    assert!(text.starts_with("observe_only = true\n"), "the configuration is a person's");
}

/// The installed files work, and are no others' to read than they should be.
#[track_caller]
fn works(root: &Root) {
    let plain = run(Command::new(binary()).arg("--version"));
    assert_eq!(root.ipwatch(&["--version"]), plain);
    assert!(root.ipwatch(&["config", "check", "/etc/ipwatch/ipwatch.toml"]).contains("is right"));
    let mode = |path: &str| fs::metadata(root.path(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(CONFIG), 0o640);
    assert_eq!(mode("usr/bin/ipwatch"), 0o755);
    assert_eq!(fs::read_link(root.path("usr/bin/kubectl-ipwatch")).unwrap(), Path::new("ipwatch"));
}

fn a_deb_is_upgraded_rolled_back_and_removed(lab: &Lab) {
    let (root, [old, new]) = (Root::new(lab), [1, 2].map(|revision| file(revision, DEB)));
    let version = |root: &Root| {
        let status = fs::read_to_string(root.path("var/lib/dpkg/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Version: "));
        line.map(str::to_owned)
    };
    root.dpkg(&["--install"], &old);
    assert_eq!(root.told(), ["enable ipwatch.service", "start ipwatch.service"]);
    works(&root);
    use_it(&root);
    let before = version(&root).unwrap();
    root.dpkg(&["--install"], &new);
    assert_eq!(version(&root).unwrap(), format!("{before}-2"));
    // Not `start`: one that somebody stopped stays stopped.
    assert_eq!(root.told(), ["try-restart ipwatch.service"]);
    works(&root);
    is_kept(&root);
    root.dpkg(&["--install"], &old);
    assert_eq!(version(&root).unwrap(), before, "rolled back");
    assert_eq!(root.told(), ["try-restart ipwatch.service"]);
    works(&root);
    is_kept(&root);
    root.dpkg(&["--remove"], Path::new("ipwatch"));
    assert_eq!(root.told(), ["stop ipwatch.service", "disable ipwatch.service"]);
    assert!(!root.path("usr/bin/ipwatch").exists() && !root.path(RUNTIME).exists());
    is_kept(&root);
    root.dpkg(&["--install"], &new);
    assert_eq!(root.told()[0], "enable ipwatch.service", "again, as at first");
    root.dpkg(&["--purge"], Path::new("ipwatch"));
    assert!(!root.path(STATE).exists() && !root.path("etc/ipwatch").exists());
}

fn an_rpm_is_upgraded_rolled_back_and_removed(lab: &Lab) {
    let (root, [old, new]) = (Root::new(lab), [1, 2].map(|revision| file(revision, RPM)));
    let release =
        |root: &Root| root.rpm(&["-q", "--queryformat", "%{RELEASE}"], Path::new("ipwatch"));
    root.rpm(&["--install"], &old);
    // Whether it is started is for the distribution's presets to say.
    assert_eq!(root.told(), ["preset ipwatch.service"]);
    works(&root);
    assert_eq!(root.rpm(&["--verify"], Path::new("ipwatch")), "", "each file is as packed");
    use_it(&root);
    root.rpm(&["--upgrade"], &new);
    assert_eq!(release(&root), "2");
    assert_eq!(root.told(), ["try-restart ipwatch.service"]);
    works(&root);
    is_kept(&root);
    root.rpm(&["--upgrade", "--oldpackage"], &old);
    assert_eq!(release(&root), "1", "rolled back");
    assert_eq!(root.told(), ["try-restart ipwatch.service"]);
    works(&root);
    is_kept(&root);
    root.rpm(&["--erase"], Path::new("ipwatch"));
    assert_eq!(root.told(), ["disable --now ipwatch.service"]);
    assert!(!root.path("usr/bin/ipwatch").exists() && !root.path(RUNTIME).exists());
    // rpm has no purge: a configuration that was changed is put aside, and the history stays.
    let aside = fs::read_to_string(root.path("etc/ipwatch/ipwatch.toml.rpmsave")).unwrap();
    assert!(aside.starts_with("observe_only = true\n"));
    assert!(root.path(STATE).join("ledger.redb").exists());
}

/// The image, read by skopeo and run by runc, is the one that the chart names.
fn the_image_is_what_the_chart_installs(lab: &Lab) {
    let archive = format!("oci-archive:{}", file(1, "-image.tar").display());
    let said: Value =
        serde_json::from_str(&run(Command::new("skopeo").args(["inspect", &archive]))).unwrap();
    let digest = said["Digest"].as_str().unwrap();
    let chart = file(1, ".tgz");
    let out = helm(&["template", "ipwatch", chart.to_str().unwrap(), "-n", "ipwatch"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains(&format!("image: \"ipwatch@{digest}\"")), "{digest} in {text}");

    // As it is pushed to a registry: the digest must not change on the way.
    let dir = lab.dir().join("image");
    let to = format!("dir:{}", dir.display());
    run(Command::new("skopeo").args([
        "copy",
        "--quiet",
        "--all",
        "--preserve-digests",
        &archive,
        &to,
    ]));
    let pushed: Value =
        serde_json::from_str(&run(Command::new("skopeo").args(["inspect", &to]))).unwrap();
    assert_eq!(pushed["Digest"], said["Digest"]);

    let bundle = lab.dir().join("bundle");
    let rootfs = bundle.join("rootfs");
    fs::create_dir_all(&rootfs).unwrap();
    let layer = said["Layers"][0].as_str().unwrap().strip_prefix("sha256:").unwrap();
    run(Command::new("tar").arg("-xzf").arg(dir.join(layer)).arg("-C").arg(&rootfs));
    run(Command::new("runc").arg("spec").current_dir(&bundle));
    let file = bundle.join("config.json");
    let mut spec: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    spec["process"]["terminal"] = false.into();
    spec["process"]["args"] = serde_json::json!(["/usr/bin/ipwatch", "--version"]);
    spec["process"]["env"] = said["Env"].clone();
    spec["root"]["readonly"] = true.into();
    // The node's cgroups are not needed, and not every host lets runc make one.
    spec["linux"]["resources"] = serde_json::json!({});
    // The image has no directories for these, and a root that is read-only gets none.
    let mounts = spec["mounts"].as_array_mut().unwrap();
    mounts.retain(|mount| mount["destination"] == "/proc");
    for at in ["proc", "dev"] {
        fs::create_dir_all(rootfs.join(at)).unwrap();
    }
    mounts.push(serde_json::json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}));
    fs::write(&file, spec.to_string()).unwrap();
    let name = format!("release-{}", std::process::id());
    let said = run(Command::new("runc").args(["run", "--bundle"]).arg(&bundle).arg(name));
    assert_eq!(said, run(Command::new(binary()).arg("--version")));
}

/// The commands of the notes.
fn a_downloaded_release_is_checked(lab: &Lab) {
    let sums = file(1, "SHA256SUMS");
    let notes = fs::read_to_string(file(1, "RELEASE-NOTES.md")).unwrap();
    let check =
        notes.lines().find_map(|line| line.strip_prefix("    sha256sum")).expect("a command");
    // Only what somebody needs was downloaded.
    for from in [sums, file(1, DEB)] {
        fs::copy(&from, lab.dir().join(from.file_name().unwrap())).unwrap();
    }
    let words = format!("sha256sum {check}");
    let checked =
        || Command::new("sh").args(["-c", &words]).current_dir(lab.dir()).status().unwrap();
    assert!(checked().success());
    let mut bytes = fs::read(file(1, DEB)).unwrap();
    bytes[100] ^= 1;
    fs::write(lab.dir().join(file(1, DEB).file_name().unwrap()), bytes).unwrap();
    assert!(!checked().success());
}

/// What commit b5173eb, the version before, kept of a node with these addresses: 10.99.0.6 came and went, 10.99.0.5 and
/// twice 10.99.0.9 were up when it was stopped, which a person had acknowledged.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/upgrade");
const BOOT: &str = "5f0c7a52-1d3e-4c58-9b1a-2a6d3c4e5f60\n";
const FINDING: &str = "hukrlqqgkgqqxdg2";

/// Its state directory, as a person copies it.
fn kept(lab: &Lab) -> PathBuf {
    let state = lab.subdir("kept");
    let unpack = format!("gzip -dc {KEPT}/ledger.redb.gz > {}/ledger.redb", state.display());
    run(Command::new("sh").args(["-c", &unpack]));
    fs::copy(format!("{KEPT}/ledger.redb.sealed"), state.join("ledger.redb.sealed")).unwrap();
    state
}

/// That node's name; its history is years old at some time. Keys that the version before knew, too.
fn config() -> Config {
    Config::of(
        "node = \"node-a\"\n[retention]\nmax_age = \"876000h\"\n[runtime]\nsockets = []\n\
         [probes]\nenabled = false\n",
    )
}

/// The daemon on what was kept, as during the boot in which it was.
fn in_that_boot(lab: &Lab, program: OsString, state: &Path) -> Daemon {
    let boot = lab.dir().join("boot_id");
    fs::write(&boot, BOOT).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave", "sh", "-c"]);
    command.arg("mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"");
    command.arg(&boot).arg(program);
    let mut daemon = Daemon::spawn_by(command, lab, &config(), state);
    daemon.await_ready();
    daemon
}

#[track_caller]
fn history(daemon: &Daemon, ip: &str) -> Value {
    let all = daemon.list("history", &["query", "history", ip]);
    all.into_iter().next().unwrap_or_else(|| panic!("nothing is kept of {ip}"))
}

#[track_caller]
fn has_history(daemon: &Daemon) {
    let gone = history(daemon, "10.99.0.6");
    assert_eq!(gone["netns"]["path"], "/run/netns/gone");
    assert_eq!(gone["from"], "2026-11-28T06:56:44.023Z");
    assert_eq!(gone["to"], "2026-11-28T06:56:50.283Z");
    assert_eq!(gone["ended_by"], "address-deleted");
    assert_eq!(history(daemon, "10.99.0.5")["from"], "2026-11-28T06:56:43.959Z");
    let source = daemon.source("ledger").expect("a ledger");
    assert_eq!(source["status"], "active", "{source}");
}

/// The finding that was open, and is kept with what a person said of it.
#[track_caller]
fn has_finding(daemon: &Daemon, status: &str) {
    let finding = eventually("the finding that was kept", 20, || {
        let all = daemon.list("findings", &["query", "findings", "--all"]);
        all.into_iter().find(|one| one["id"] == FINDING && one["status"] == status)
    });
    assert_eq!(finding["code"], "ip-duplicate");
    assert_eq!(finding["since"], "2026-11-28T06:56:44.200Z");
    assert_eq!(finding["acked"]["note"], "seen by a person");
}

fn a_reboot_and_an_upgrade_keep_the_history(lab: &Lab) {
    let state = kept(lab);
    let mut daemon = Daemon::spawn_by(Command::new(binary()), lab, &config(), &state);
    daemon.await_ready();
    has_history(&daemon);
    assert_eq!(history(&daemon, "10.99.0.5")["ended_by"], "reboot");
    has_finding(&daemon, "resolved");
    assert!(daemon.stop().success());
}

/// The command of docs/release.md.
fn a_tarball_is_unpacked_as_documented(lab: &Lab) {
    let root = lab.subdir("root");
    let arch = file(1, DEB).file_stem().unwrap().to_string_lossy().into_owned();
    let arch = arch.rsplit_once('_').unwrap().1.to_owned();
    let version = env!("CARGO_PKG_VERSION");
    let tarball = file(1, &format!("/ipwatch-{version}-linux-{arch}.tar.gz"));
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/release.md");
    let page = fs::read_to_string(page).unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix("    tar -C / ")).expect("a command");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, words) = words.split_last().unwrap();
    assert_eq!(*name, format!("ipwatch-{version}-linux-amd64.tar.gz"));
    run(Command::new("tar").arg("-C").arg(&root).args(words).arg(&tarball));
    let said = run(Command::new(root.join("usr/bin/ipwatch")).arg("--version"));
    assert_eq!(said, run(Command::new(binary()).arg("--version")));
    assert!(root.join("usr/lib/systemd/system/ipwatch.service").exists());
    let top = fs::read_dir(&root).unwrap().count();
    assert_eq!(top, 1, "nothing but usr");
}

fn an_upgrade_keeps_findings(lab: &Lab) {
    let state = kept(lab);
    upgrade(lab, &state);
}

fn a_rollback_finds_what_was_kept(lab: &Lab) {
    let state = kept(lab);
    upgrade(lab, &state);
    let previous = std::env::var_os("IPWATCH_TEST_PREVIOUS").expect("a binary, which it needs");
    roll_back(lab, previous, &state);
}

/// This version on what the version before kept.
fn upgrade(lab: &Lab, state: &Path) {
    let daemon = in_that_boot(lab, binary().into(), state);
    has_history(&daemon);
    // Its network namespaces are not here, so it is over.
    has_finding(&daemon, "resolved");
    assert!(daemon.stop().success());
}

/// The version before on what this one has left, and this one again.
fn roll_back(lab: &Lab, previous: OsString, state: &Path) {
    // It takes the configuration of its time, and answers on the same socket.
    let _ = fs::remove_file(daemon::socket_in(lab));
    let daemon = in_that_boot(lab, previous, state);
    has_history(&daemon);
    has_finding(&daemon, "resolved");
    assert!(daemon.stop().success());
    let _ = fs::remove_file(daemon::socket_in(lab));
    let daemon = in_that_boot(lab, binary().into(), state);
    has_history(&daemon);
    has_finding(&daemon, "resolved");
    assert!(daemon.stop().success());
}
