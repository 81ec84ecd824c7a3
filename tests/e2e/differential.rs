//! Compares the map with the kernel: after each of many random batches of changes, `query` must report the same
//! addresses of these netns as a full dump, when things have settled.
//!
//! The dumps are made by `ip`, which shares no code with ipwatch. A difference that stays is a failure, which prints
//! the seed and the batch: `IPWATCH_TEST_SEED` draws the same batches again. The two lanes of a batch run
//! concurrently, so that the same seed may not reproduce the same race: run it several times.

mod ops;

pub(crate) use ops::Rng;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ops::{Batch, Step};
use serde_json::Value;
use support::harness::{self, FIGURE};
use support::poll::{settle, until};
use support::{Config, Daemon, Lab, Netns, patience, sys};

support::tests! {
    the_map_equals_full_dumps_after_random_changes @ Kernel Stock Rung,
}

/// Duration in seconds: usually; on the lower rungs of the attach ladder; with `--long`.
const SECONDS: (u64, u64, u64) = (60, 20, 600);
/// Number of netns at a time: usually; on an emulated machine.
const NETNS: (usize, usize) = (20, 6);
/// How long a difference may last, in seconds.
const SETTLES: u32 = 10;

/// The addresses of each netns, by inode: index, name, IP, length and scope of each.
type Addresses = BTreeMap<u64, Vec<String>>;

fn the_map_equals_full_dumps_after_random_changes(lab: &Lab) {
    let seed = seed();
    println!("{FIGURE}IPWATCH_TEST_SEED={seed}");
    let mut rng = Rng(seed);
    let many = if patience() > 1 { NETNS.1 } else { NETNS.0 };
    let mut field = Field { lab, made: 0, all: Vec::new(), dead: BTreeSet::new() };
    (0..many / 2).for_each(|_| field.add(None));
    let daemon = Daemon::start(lab, &Config::default());
    (many / 2..many).for_each(|_| field.add(None));
    let (began, mut batches, mut changes, mut compared) = (Instant::now(), 0, 0, 0);
    let lasts = Duration::from_secs(seconds());
    while began.elapsed() < lasts {
        batches += 1;
        let names: Vec<String> = field.all.iter().map(|netns| netns.name().to_owned()).collect();
        let batch = Batch::draw(&mut rng, &names);
        changes += field.carry_out(&batch);
        let mut wrong = String::new();
        settle(SETTLES, || {
            let found = differences(&field, &daemon);
            (wrong, compared) = (found.0, compared + found.1);
            wrong.is_empty()
        });
        assert!(
            wrong.is_empty(),
            "IPWATCH_TEST_SEED={seed}, batch {batches}: the map is not what the kernel has\n{wrong}\n{batch}"
        );
    }
    println!(
        "{FIGURE}{batches} batches, {changes} commands and settings, {} netns ended, {compared} addresses compared",
        field.dead.len()
    );
    until("the netns that ended are gone", 60, || {
        let all = daemon.list("addresses", &["query", "ip"]);
        !all.iter().any(|address| {
            address["netns"]["cookie"].as_u64().is_some_and(|cookie| field.dead.contains(&cookie))
        })
    });
}

pub(crate) fn seed() -> u64 {
    let given = std::env::var("IPWATCH_TEST_SEED").ok();
    let given = given.map(|text| text.parse().expect("IPWATCH_TEST_SEED is a number"));
    given.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a date after 1970");
        u64::from(now.subsec_nanos()) ^ now.as_secs() << 20
    })
}

fn seconds() -> u64 {
    match support::daemon::probes().as_str() {
        _ if harness::is_long() => SECONDS.2,
        "all" => SECONDS.0,
        _ => SECONDS.1,
    }
}

/// The netns that are changed.
struct Field<'a> {
    lab: &'a Lab,
    made: usize,
    all: Vec<Netns>,
    /// Cookies of those that ended.
    dead: BTreeSet<u64>,
}

impl Field<'_> {
    /// Adds a netns, or replaces one that has ended.
    fn add(&mut self, slot: Option<usize>) {
        let netns = Netns::new(self.lab, &format!("f{}", self.made));
        // A veth to the node brings an nsid; the other half of them is found differently.
        if self.made.is_multiple_of(2) {
            netns.veth_to_host();
        }
        self.made += 1;
        match slot {
            None => self.all.push(netns),
            Some(slot) => {
                let ended = std::mem::replace(&mut self.all[slot], netns);
                self.dead.extend(ended.cookie);
            }
        }
    }

    /// Executes a batch. Returns the number of commands and settings.
    fn carry_out(&mut self, batch: &Batch) -> usize {
        let all = &self.all;
        let done = std::thread::scope(|scope| {
            let lane = |steps: &[(usize, Step)]| -> usize {
                steps.iter().map(|(slot, step)| take(&all[*slot], step)).sum()
            };
            let lanes: Vec<_> =
                batch.lanes.iter().map(|steps| scope.spawn(move || lane(steps))).collect();
            batch.ends.iter().for_each(|slot| all[*slot].unname());
            lanes.into_iter().map(|lane| lane.join().expect("a lane")).sum()
        });
        batch.ends.iter().for_each(|slot| self.add(Some(*slot)));
        done
    }
}

/// Executes a step in a netns, if that still exists. Failures are ignored.
fn take(netns: &Netns, step: &Step) -> usize {
    sys::on_own_thread(|| {
        if sys::enter_netns(netns.path()).is_err() {
            return 0;
        }
        match step {
            Step::Ip(lines) => {
                ip(lines);
                lines.lines().count()
            }
            Step::Sysctl(file, value) => {
                let _ = std::fs::write(format!("/proc/sys/net/{file}"), value);
                1
            }
        }
    })
}

fn ip(lines: &str) {
    let mut child = Command::new("ip")
        .args(["-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("run ip");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(lines.as_bytes()).expect("write to ip");
    drop(input);
    child.wait().expect("wait for ip");
}

/// The differences between map and kernel, for people, and the kernel's number of addresses.
fn differences(field: &Field<'_>, daemon: &Daemon) -> (String, usize) {
    let known = told_by_ipwatch(daemon);
    let (mut text, mut all) = (String::new(), 0);
    for (slot, netns) in field.all.iter().enumerate() {
        let real = told_by_ip(netns);
        let known = known.get(&netns.inode).cloned().unwrap_or_default();
        all += real.len();
        if real == known {
            continue;
        }
        let without = |all: &[String], others: &[String]| {
            let mut rest = others.to_vec();
            let mut left = all.to_vec();
            left.retain(|one| match rest.iter().position(|other| other == one) {
                Some(place) => {
                    rest.swap_remove(place);
                    false
                }
                None => true,
            });
            left.join("; ")
        };
        text += &format!(
            "[{slot}] {}: only in the kernel: {}\n    only in the map: {}\n",
            netns.name(),
            without(&real, &known),
            without(&known, &real)
        );
    }
    (text, all)
}

fn told_by_ip(netns: &Netns) -> Vec<String> {
    let json = netns.ip_json();
    let mut all = Vec::new();
    for link in json.as_array().expect("links") {
        for info in link["addr_info"].as_array().expect("addresses") {
            let (Some(ip), Some(len)) = (info["local"].as_str(), info["prefixlen"].as_u64()) else {
                continue;
            };
            let scope = info["scope"].as_str().unwrap_or_default();
            let name = link["ifname"].as_str().unwrap_or_default();
            all.push(format!("{} {name} {ip}/{len} {scope}", link["ifindex"]));
        }
    }
    all.sort_unstable();
    all
}

fn told_by_ipwatch(daemon: &Daemon) -> Addresses {
    let mut map = Addresses::new();
    for address in daemon.list("addresses", &["query", "ip"]) {
        let (Some(ip), Some(len)) = (address["ip"].as_str(), address["prefix_len"].as_u64()) else {
            continue;
        };
        // Another netns may already have its inode.
        if address["netns"]["state"] == "dying" {
            continue;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let interface = &address["interface"];
        let (name, scope) = (text(&interface["name"]), text(&address["scope"]));
        let all = map.entry(address["netns"]["inode"].as_u64().unwrap_or(0)).or_default();
        all.push(format!("{} {name} {ip}/{len} {scope}", interface["index"]));
    }
    map.values_mut().for_each(|all| all.sort_unstable());
    map
}
