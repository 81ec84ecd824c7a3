//! `ipwatch fix` frees what has leaked and nothing else, with real files of host-local, mounts and devices. An object that
//! changes between the plan and its change is skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use support::fake_cri::FakeCri;
use support::network::{self, Container, Network};
use support::{Config, Daemon, Lab, Netns, Sandbox, eventually};

use crate::lead::exhaustion::await_mounted;
use crate::lead::ips;

support::tests! {
    the_leaks_of_a_network_are_freed_and_come_back_unless_they_were_given_out needs [Cni],
    a_successor_between_plan_and_change_keeps_its_ip needs [Cni],
    a_reservation_whose_netns_was_seen_to_end_is_freed needs [Cni, FakeCri],
    a_netns_and_a_pair_that_nobody_uses_go,
}

const LEAKED: &str = "ipam-reservation-leaked";
/// Seconds until a finding fires here.
const SOON: u32 = 40;
const GRACE: u32 = 2;

fn config() -> Config {
    Config::default().grace(GRACE).holders_grace(GRACE).leak_age(GRACE)
}

/// A network with living containers and leaked ones.
struct Leaky {
    network: Network,
    daemon: Daemon,
    finding: Value,
    /// IPs of the leaks.
    leaked: Vec<String>,
    /// The IP of the living container, and its netns.
    living: (String, Netns),
    _node: Netns,
}

impl Leaky {
    /// With this many leaks: containers that ended in the node's last crash, and for which DEL was never called.
    fn new(lab: &Lab, leaks: usize) -> Self {
        let node = Netns::new(lab, "node");
        let subnet = format!("{}/26", lab.ip(0));
        let network =
            Network::new(lab, &node, "net", "bridge", &subnet, json!({ "bridge": "br0" }));
        let pod = Netns::new(lab, "living");
        let living = network.add(&Container::new(lab, 99), &pod).unwrap();
        let mut leaked = Vec::new();
        for n in 0..leaks {
            let pod = Netns::new(lab, &format!("pod{n}"));
            let ip = network.add(&Container::new(lab, n), &pod).unwrap();
            pod.unmount();
            // Written before the boot, which ended every container.
            let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            let file = network.reservations().join(&ip);
            fs::File::options().append(true).open(file).unwrap().set_modified(long_ago).unwrap();
            leaked.push(ip);
        }
        let config = config().networks(&[network::conf_dir(lab)], &network::bin_dir(lab));
        let daemon = Daemon::start(lab, &config);
        let finding = daemon.await_firing(LEAKED, SOON, |finding| {
            let all = finding["subject"]["reservations"].as_array().map_or(1, Vec::len);
            finding["subject"]["network"] == network.name() && all == leaks
        });
        Self { network, daemon, finding, leaked, living: (living, pod), _node: node }
    }

    fn id(&self) -> &str {
        self.finding["id"].as_str().unwrap()
    }

    fn file(&self, ip: &str) -> PathBuf {
        self.network.reservations().join(ip)
    }

    fn is_reserved(&self, ip: &str) -> bool {
        self.file(ip).exists()
    }
}

fn records(lab: &Lab) -> PathBuf {
    lab.dir().join("records")
}

/// Runs `fix` with its records in the lab, and without a terminal.
fn fix(lab: &Lab, daemon: &Daemon, args: &[&str]) -> Output {
    command(lab, daemon, args).output().unwrap()
}

pub(crate) fn command(lab: &Lab, daemon: &Daemon, args: &[&str]) -> Command {
    let mut command = Command::new(support::daemon::binary());
    command.arg("fix").args(args).arg("--socket").arg(daemon.socket());
    command.arg("--record-dir").arg(records(lab)).stdin(Stdio::null());
    command.env("SUDO_USER", "ada");
    command
}

/// The items, and the exit code.
pub(crate) fn items(out: &Output) -> (Vec<Value>, Option<i32>) {
    let document: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"));
    let items = document["fix"]["items"].as_array().unwrap_or_else(|| panic!("{document}"));
    (items.clone(), out.status.code())
}

/// The state of the item about an IP, and the reason.
pub(crate) fn state<'a>(items: &'a [Value], ip: &str) -> (&'a str, &'a str) {
    let item = items.iter().find(|item| item["ip"] == ip || item["about"] == ip);
    let item = item.unwrap_or_else(|| panic!("{ip}: {items:#?}"));
    (item["state"].as_str().unwrap(), item["why"].as_str().unwrap_or_default())
}

/// Leaks at the end of a case: every leak of a network.
pub(crate) struct Leaks<'a> {
    pub(crate) network: &'a str,
    /// host-local's directory of the network.
    pub(crate) store: &'a Path,
    /// The leaked IPs.
    pub(crate) ips: &'a [&'a str],
    /// What the plan says about the containers of all of them.
    pub(crate) proof: &'a str,
}

impl Leaks<'_> {
    /// `fix` frees exactly these reservations of the store, and then the finding is over.
    #[track_caller]
    pub(crate) fn are_freed(&self, lab: &Lab, daemon: &Daemon) {
        let all: BTreeSet<&str> = self.ips.iter().copied().collect();
        let finding = daemon.await_firing(LEAKED, SOON, |finding| {
            let told: BTreeSet<&str> = ips(finding).collect();
            finding["subject"]["network"] == self.network && told == all
        });
        let (plan, _) = items(&fix(lab, daemon, &[self.network, "-o", "json"]));
        for item in &plan {
            let planned =
                item["state"] == "planned" && item["proof"].to_string().contains(self.proof);
            assert!(planned && all.contains(item["ip"].as_str().unwrap()), "{item:#?}");
        }
        assert_eq!(plan.len(), all.len(), "{plan:#?}");
        let before = files(self.store);
        // One that takes too long on a busy machine is skipped, and is freed by the next run.
        let mut freed = BTreeSet::new();
        eventually("all of them are freed", SOON, || {
            let out = fix(lab, daemon, &[self.network, "--yes", "-o", "json"]);
            let document: Value = serde_json::from_slice(&out.stdout).ok()?;
            for item in document["fix"]["items"].as_array()? {
                let ip = item["ip"].as_str().unwrap_or_default().to_owned();
                (item["state"] == "done").then(|| freed.insert(ip));
            }
            (freed.len() >= all.len()).then_some(())
        });
        let mut expected = before;
        expected.retain(|name, _| !all.contains(name.as_str()));
        assert_eq!(files(self.store), expected, "exactly {all:?}");
        daemon.await_resolved(&finding, SOON);
    }
}

/// The files of a directory, with their content.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    };
    fs::read_dir(dir).unwrap().flatten().map(read).collect()
}

/// `fix` unmounts the leaked netns of a finding, and then the finding is over.
#[track_caller]
pub(crate) fn unmounts(lab: &Lab, daemon: &Daemon, finding: &Value, path: &Path) {
    let id = finding["id"].as_str().unwrap();
    eventually("it is unmounted", SOON, || {
        let out = fix(lab, daemon, &[id, "--yes", "-o", "json"]);
        let document: Value = serde_json::from_slice(&out.stdout).ok()?;
        (document["fix"]["items"][0]["state"] == "done").then_some(())
    });
    assert!(!is_mounted(path));
    daemon.await_resolved(finding, SOON);
}

fn the_leaks_of_a_network_are_freed_and_come_back_unless_they_were_given_out(lab: &Lab) {
    let leaky = Leaky::new(lab, 2);
    let (one, two) = (&leaky.leaked[0], &leaky.leaked[1]);
    let written = fs::read(leaky.file(two)).unwrap();
    let all_there = || leaky.leaked.iter().all(|ip| leaky.is_reserved(ip));

    let shown = fix(lab, &leaky.daemon, &[leaky.network.name()]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success() && text.contains("Nothing has been changed yet."), "{shown:?}");
    assert!(text.contains(one.as_str()) && text.contains(two.as_str()), "{text}");
    assert!(text.contains("there is no runtime to ask"), "{text}");
    assert!(
        !text.contains(&format!(" {} ", leaky.living.0)),
        "a living one is in the plan: {text}"
    );
    assert!(all_there() && !records(lab).exists(), "without a terminal nothing is changed");

    let last = leaky.network.reservations().join("last_reserved_ip.0");
    let last_was = fs::read(&last).unwrap();
    let (done, code) = items(&fix(lab, &leaky.daemon, &[leaky.id(), "--yes", "-o", "json"]));
    assert_eq!(code, Some(0), "{done:#?}");
    for ip in [one, two] {
        assert_eq!(state(&done, ip).0, "done", "{done:#?}");
        assert!(!leaky.is_reserved(ip));
    }
    assert!(leaky.is_reserved(&leaky.living.0), "a living container's reservation was freed");
    assert_eq!(fs::read(&last).unwrap(), last_was);
    told_who(lab, leaky.id());
    leaky.daemon.await_resolved(&leaky.finding, SOON);

    // The first of them is given out again.
    fs::write(&last, prior(one)).unwrap();
    let next = Netns::new(lab, "next");
    let successor = Container::new(lab, 50);
    assert_eq!(&leaky.network.add(&successor, &next).unwrap(), one);
    let shown = fix(lab, &leaky.daemon, &[leaky.network.name(), "--undo"]);
    assert!(shown.status.success() && !leaky.is_reserved(two), "{shown:?}");
    let args = [leaky.network.name(), "--undo", "--yes", "-o", "json"];
    let (undone, code) = items(&fix(lab, &leaky.daemon, &args));
    assert_eq!(code, Some(1), "not all of it: {undone:#?}");
    assert_eq!(state(&undone, two).0, "restored", "{undone:#?}");
    assert_eq!(fs::read(leaky.file(two)).unwrap(), written);
    let (state, why) = state(&undone, one);
    assert!(state == "skipped" && why.contains("given out again"), "{undone:#?}");
    assert!(fs::read_to_string(leaky.file(one)).unwrap().starts_with(&successor.id));
    // What was restored is not restored again.
    let (rest, _) = items(&fix(lab, &leaky.daemon, &args));
    assert_eq!(rest.len(), 1, "{rest:#?}");
}

/// The IP before this one.
fn prior(ip: &str) -> String {
    let ip: std::net::Ipv4Addr = ip.parse().unwrap();
    std::net::Ipv4Addr::from(u32::from(ip) - 1).to_string()
}

/// The record says who ran the command, and only its owner may read it.
fn told_who(lab: &Lab, id: &str) {
    let base = records(lab);
    let runs: Vec<PathBuf> =
        fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [run] = runs.as_slice() else { panic!("one run: {runs:?}") };
    for dir in [&base, run] {
        assert_eq!(fs::metadata(dir).unwrap().mode() & 0o777, 0o700, "{dir:?}");
    }
    let text = fs::read_to_string(run.join("record.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let who = &lines[0]["who"];
    assert_eq!((&who["uid"], &who["sudo_user"]), (&json!(0), &json!("ada")), "{who}");
    let words = who["command"].as_array().unwrap();
    assert!(words.contains(&json!("fix")) && words.contains(&json!(id)), "{who}");
    let kept = lines.iter().filter_map(|line| line["kept"].as_str());
    assert_eq!(kept.filter(|name| run.join(name).is_file()).count(), 2, "{text}");
}

/// Waits until a process has opened a file: it has made its plan, and waits for the lock.
fn await_open(process: &Child, path: &Path) {
    let fds = PathBuf::from(format!("/proc/{}/fd", process.id()));
    support::poll::until("it waits for the lock", 30, || {
        let fds = fs::read_dir(&fds).into_iter().flatten().flatten();
        fds.map(|fd| fd.path()).any(|fd| fs::read_link(fd).is_ok_and(|to| to == path))
    });
}

fn a_successor_between_plan_and_change_keeps_its_ip(lab: &Lab) {
    let leaky = Leaky::new(lab, 3);
    let [rewritten, up, leak] = leaky.leaked.as_slice() else { panic!("three") };
    let lock = leaky.network.reservations().join("lock");
    // The test takes the lock as the plugin does: `fix` makes its plan, and waits before the first change.
    let held = fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    let mut fixing = command(lab, &leaky.daemon, &[leaky.id(), "--yes", "-o", "json"]);
    let mut fixing = fixing.stdout(Stdio::piped()).spawn().unwrap();
    await_open(&fixing, &lock);
    // One IP belongs to another container now; the other one is up, and is not reserved again.
    let successor = format!("{}\r\neth0", Container::new(lab, 60).id);
    fs::write(leaky.file(rewritten), &successor).unwrap();
    let stranger = Netns::new(lab, "stranger");
    stranger.veth_to_host();
    stranger.add_address(&format!("{up}/26"), "eth0");
    held.unlock().unwrap();
    let mut stdout = Vec::new();
    fixing.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    let status = fixing.wait().unwrap();
    let (items, code) = items(&Output { status, stdout, stderr: Vec::new() });
    assert_eq!(code, Some(1), "{items:#?}");
    for ip in [rewritten, up] {
        let (state, why) = state(&items, ip);
        assert!(state == "skipped" && !why.is_empty(), "{ip}: {items:#?}");
        assert!(leaky.is_reserved(ip), "{ip} was freed: {items:#?}");
    }
    assert_eq!(fs::read_to_string(leaky.file(rewritten)).unwrap(), successor);
    assert_eq!(state(&items, leak).0, "done", "{items:#?}");
    assert!(!leaky.is_reserved(leak));
}

/// No runtime has a pod, so that none speaks for a container. The daemon has seen the netns of one, and its end.
fn a_reservation_whose_netns_was_seen_to_end_is_freed(lab: &Lab) {
    let node = Netns::new(lab, "node");
    let subnet = format!("{}/26", lab.ip(0));
    let network = Network::new(lab, &node, "net", "bridge", &subnet, json!({ "bridge": "br0" }));
    let runtime = FakeCri::start(lab);
    let config = config().networks(&[network::conf_dir(lab)], &network::bin_dir(lab));
    let daemon = Daemon::start(lab, &config.cri(runtime.socket()));
    daemon.await_source("containerd");
    let pods = [1, 2].map(|n| {
        let netns = Netns::new(lab, &format!("pod{n}"));
        let ip = network.add(&Container::new(lab, n), &netns).unwrap();
        await_mounted(&daemon, &ip, &netns);
        (ip, netns)
    });
    let [_living, (ip, ended)] = pods;
    drop(ended);
    let (store, proof) = (network.reservations(), "no runtime speaks for the container");
    Leaks { network: network.name(), store: &store, ips: &[&ip], proof }.are_freed(lab, &daemon);
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = path.to_str().unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

fn a_netns_and_a_pair_that_nobody_uses_go(lab: &Lab) {
    let netns = Netns::new(lab, "old");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), "");
    // Named after the pod, as by Calico; and one whose name has a plugin's form alone.
    let name = format!("cali{}", hash_of(&pod.name));
    let peer = format!("{}b", lab.tag());
    support::netns::ip(&format!("link add {name} type veth peer name {peer}"));
    let strange = format!("veth{:08x}", std::process::id());
    support::netns::ip(&format!("link add {strange} type veth peer name {}c", lab.tag()));
    let device = Path::new("/sys/class/net").join(&name);
    let daemon = Daemon::start(lab, &config().cache_dir(pod.cache()));

    let is_mine = |finding: &Value| finding["subject"]["netns"]["inode"] == netns.inode;
    let finding = daemon.await_firing("netns-leaked", SOON, is_mine);
    let id = finding["id"].as_str().unwrap();
    let shown = fix(lab, &daemon, &[id]);
    assert!(shown.status.success() && is_mounted(netns.path()), "{shown:?}");
    // This process has it open.
    let open = fs::File::open(netns.path()).unwrap();
    let (held, _) = items(&fix(lab, &daemon, &[id, "--yes", "-o", "json"]));
    assert_ne!(held[0]["state"], "done", "{held:#?}");
    assert!(held[0]["why"].as_str().is_some_and(|why| why.contains("holds it")), "{held:#?}");
    assert!(is_mounted(netns.path()), "it was in use");
    drop(open);
    // The daemon may have seen this process, and then looks again: 1, 5 and 30 s later (`SEARCH_PAUSES`).
    eventually("it is unmounted", 2 * SOON, || {
        let out = fix(lab, &daemon, &[id, "--yes", "-o", "json"]);
        let document: Value = serde_json::from_slice(&out.stdout).ok()?;
        (out.status.success() && document["fix"]["items"][0]["state"] == "done").then_some(())
    });
    assert!(!is_mounted(netns.path()));
    daemon.await_resolved(&finding, SOON);
    let again = fix(lab, &daemon, &[id, "--yes"]);
    assert_eq!(again.status.code(), Some(3), "{again:?}");

    let is_mine = |finding: &Value| finding["subject"]["interface"]["name"] == name.as_str();
    let finding = daemon.await_firing("veth-orphaned", SOON, is_mine);
    let id = finding["id"].as_str().unwrap();
    assert!(fix(lab, &daemon, &[id]).status.success() && device.exists());
    let (done, code) = items(&fix(lab, &daemon, &[id, "--yes", "-o", "json"]));
    assert_eq!((code, &done[0]["state"]), (Some(0), &json!("done")), "{done:#?}");
    assert!(!device.exists());

    let is_mine = |finding: &Value| finding["subject"]["interface"]["name"] == strange.as_str();
    let finding = daemon.await_firing("veth-orphaned", SOON, is_mine);
    let id = finding["id"].as_str().unwrap();
    let (left, _) = items(&fix(lab, &daemon, &[id, "--yes", "-o", "json"]));
    let why = left[0]["why"].as_str().unwrap_or_default();
    assert_eq!(left[0]["state"], "left-out", "{left:#?}");
    assert!(why.contains("the form of its name alone"), "{why}");
    assert!(Path::new("/sys/class/net").join(&strange).exists(), "a person may have made it");
    support::netns::ip(&format!("link delete {strange}"));
}

/// The hash of a pod's name in its device's.
fn hash_of(pod: &str) -> String {
    let text = format!("printf %s {}.{pod} | sha1sum", Sandbox::NAMESPACE);
    let out = Command::new("sh").args(["-c", &text]).output().unwrap();
    String::from_utf8_lossy(&out.stdout)[..11].to_owned()
}
