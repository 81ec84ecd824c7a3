//! How many ADDs a second are served, four at a time while containers come and go, through `ipwatch-ipam` beside the bare
//! delegate: by the real host-local alone and within the real bridge, of one range, and of two ranges and both families.
//! The two take turns, so that what else the machine does meets both. No ADD and no DEL may fail, what is stored is at each
//! turn's end exactly what is attached, and nothing is parked.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::cni::{self, Node};
use support::harness::{FIGURE, is_long};
use support::ipam::{Plugin, addresses, answered};
use support::{Config, Daemon, Lab, Netns, daemon};

support::tests! {
    of_one_range needs [Cni] @ Alone,
    of_two_ranges_and_both_families needs [Cni] @ Alone,
}

/// ADDs at a time.
const CALLERS: usize = 4;
/// Containers of a caller at a time.
const LIVE: usize = 6;
/// Turns of each plugin, and how long one lasts.
const TURNS: usize = 3;
const OWN: &str = "ipwatch-ipam";

fn turn() -> Duration {
    Duration::from_secs(if is_long() { 20 } else { 2 })
}

/// Which program is called.
#[derive(Debug, Clone, Copy)]
enum Main {
    /// The IPAM plugin.
    Ipam,
    /// bridge, which calls the IPAM plugin.
    Bridge,
}

/// A network whose addresses the plugin gives, and its node.
struct Network<'a> {
    node: Node<'a>,
    /// Netns of containers: more than a caller has at a time, so that each ADD has one that is empty.
    pods: Vec<Netns>,
    bin: PathBuf,
    conf_dir: PathBuf,
    state: PathBuf,
    /// That of bridge.
    config: Value,
    plugin: Plugin,
    /// Addresses of a result.
    each: usize,
}

impl<'a> Network<'a> {
    fn new(lab: &'a Lab, ranges: &Value) -> Self {
        let (bin, conf_dir, store) = (lab.subdir("bin"), lab.subdir("net.d"), lab.subdir("ipam"));
        let state = lab.dir().join("parked");
        symlink(daemon::binary().with_file_name(OWN), bin.join(OWN)).expect("link a plugin");
        for name in ["bridge", "host-local"] {
            symlink(format!("{}/{name}", cni::PLUGINS), bin.join(name)).expect("link a plugin");
        }
        let name = format!("{}-rate", lab.tag());
        let list = json!({
            "cniVersion": "1.0.0", "name": name, "plugins": [{
                "type": "bridge", "bridge": "rate0", "ipam": {
                    "type": OWN, "socket": daemon::socket_in(lab), "stateDir": state,
                    "delegate": { "type": "host-local", "dataDir": store, "ranges": ranges },
                },
            }],
        });
        fs::write(conf_dir.join("10-rate.conflist"), list.to_string()).expect("write the network");
        let plugin = Plugin::new(&list.to_string(), &bin, &store.join(name));
        let config = serde_json::from_str(&plugin.config()).expect("JSON");
        let node = Node::new(lab);
        let pods = (0..CALLERS * (LIVE + 1)).map(|n| node.pod(&format!("p{n}"))).collect();
        let each = ranges.as_array().map_or(0, Vec::len);
        Self { node, pods, bin, conf_dir, state, config, plugin, each }
    }

    /// A call that succeeds. Returns the addresses of an ADD.
    #[track_caller]
    fn call(&self, (main, is_ours): Kind, command: &str, id: &str, pod: &Netns) -> Vec<IpAddr> {
        let mut config = self.config.clone();
        if !is_ours {
            config["ipam"] = config["ipam"]["delegate"].take();
        }
        let program = match main {
            Main::Ipam => config["ipam"]["type"].as_str().expect("a type"),
            Main::Bridge => "bridge",
        };
        let mut call = Command::new(self.bin.join(program));
        call.envs(self.plugin.environment(command, id)).env("CNI_NETNS", pod.path());
        let out = self.node.host.run(|| answered(call, &config.to_string()));
        let said = || String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{command} of {program}: {}", said());
        if command == "ADD" { addresses(&out.stdout) } else { Vec::new() }
    }

    /// What one caller does until `end`: an ADD at each step, and the DEL of its oldest container before it. Returns the
    /// number of ADDs, and what is attached at the end.
    fn calls(&self, kind: Kind, who: usize, end: Instant) -> (usize, Vec<Attached<'_>>) {
        let (mut live, mut count) = (VecDeque::new(), 0);
        let mut empty: VecDeque<&Netns> = self.pods[who * (LIVE + 1)..][..=LIVE].iter().collect();
        while Instant::now() < end {
            if live.len() == LIVE
                && let Some(Attached { id, pod, .. }) = live.pop_front()
            {
                let _ = self.call(kind, "DEL", &id, pod);
                empty.push_back(pod);
            }
            let pod = empty.pop_front().expect("there is one more than are used");
            let id = self.node.id(&format!("{who}x{count}"));
            let ips = self.call(kind, "ADD", &id, pod);
            assert_eq!(ips.len(), self.each, "{ips:?}");
            live.push_back(Attached { id, pod, ips });
            count += 1;
        }
        (count, live.into())
    }

    /// One turn. Returns the number of ADDs, and how long they took.
    fn turn(&self, kind: Kind) -> (usize, Duration) {
        let (began, time) = (Instant::now(), turn());
        let done: Vec<(usize, Vec<Attached<'_>>)> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|who| scope.spawn(move || self.calls(kind, who, began + time)))
                .collect();
            callers.into_iter().map(|caller| caller.join().expect("no call failed")).collect()
        });
        let took = began.elapsed();
        let live = done.iter().flat_map(|(_, live)| live);
        let attached: BTreeMap<IpAddr, String> =
            live.flat_map(|one| one.ips.iter().map(|ip| (*ip, one.id.clone()))).collect();
        assert_eq!(self.plugin.stored(), attached, "{kind:?}");
        for one in done.iter().flat_map(|(_, live)| live) {
            let _ = self.call(kind, "DEL", &one.id, one.pod);
        }
        assert_eq!(self.plugin.stored(), BTreeMap::new(), "{kind:?}");
        (done.iter().map(|(count, _)| count).sum(), took)
    }

    /// ADDs a second, with `ipwatch-ipam` and without, and their number.
    fn rates(&self, main: Main) -> ([f64; 2], usize) {
        let (mut adds, mut times) = ([0; 2], [Duration::ZERO; 2]);
        for _ in 0..TURNS {
            for (which, is_ours) in [true, false].into_iter().enumerate() {
                let (count, took) = self.turn((main, is_ours));
                adds[which] += count;
                times[which] += took;
            }
        }
        ([0, 1].map(|which| adds[which] as f64 / times[which].as_secs_f64()), adds[0])
    }
}

/// The program that is called, and whether `ipwatch-ipam` is before host-local.
type Kind = (Main, bool);

/// A container with its addresses.
struct Attached<'a> {
    id: String,
    pod: &'a Netns,
    ips: Vec<IpAddr>,
}

fn of_one_range(lab: &Lab) {
    measure(lab, "one range", &json!([[{ "subnet": lab.cidr(0) }]]));
}

fn of_two_ranges_and_both_families(lab: &Lab) {
    let tag = lab.ip(0).to_bits();
    let v6 = format!("fd00:{:x}:{:x}::/112", tag >> 16, tag & 0xffff);
    let v4 = [0, 64].map(|n| json!({ "subnet": format!("{}/26", lab.ip(n)) }));
    measure(lab, "two ranges and both families", &json!([v4, [{ "subnet": v6 }]]));
}

fn measure(lab: &Lab, of: &str, ranges: &Value) {
    let network = Network::new(lab, ranges);
    let config = Config::default().networks(std::slice::from_ref(&network.conf_dir), &network.bin);
    let daemon = network.node.host.run(|| Daemon::start(lab, &config));
    for (main, what, goal) in [
        (Main::Ipam, "host-local", ">= 50 ADDs"),
        (Main::Bridge, "bridge and host-local", "(none)"),
    ] {
        let ([ours, bare], adds) = network.rates(main);
        println!(
            "{FIGURE}four callers at a time, {what} with {of}, through ipwatch-ipam  {ours:.1} ADDs a second, {:.0} % of \
             the {bare:.1} without it; of {adds} none failed  goal {goal}",
            ours / bare * 100.0,
        );
        assert!(ours > 0.0 && bare > 0.0);
    }
    let parked = fs::read_to_string(network.state.join(format!("{}-rate.parked", lab.tag())));
    let parked: Value = serde_json::from_str(&parked.unwrap_or_default()).unwrap_or_default();
    assert_eq!(parked["parked"].as_array().map_or(0, Vec::len), 0, "{parked}");
    let counters = fs::read_to_string(network.state.join("counters")).unwrap_or_default();
    let counted: Value = serde_json::from_str(&counters).unwrap_or_default();
    for what in ["parked", "not-parked", "gave-held", "all-held", "gated"] {
        assert_eq!(counted[what].as_u64().unwrap_or(0), 0, "{counted}");
    }
    if !counters.is_empty() {
        println!("{FIGURE}with {of}, counted: {counters}");
    }
    drop::<Daemon>(daemon);
}
