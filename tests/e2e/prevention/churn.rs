//! `ipwatch-ipam` at 50 ADDs a second, four at a time, with two ranges and both families, while plugins and the daemon are
//! killed and addresses are released that are up; and healthy pods, of which it parks nothing.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::harness::{FIGURE, is_long};
use support::ipam::Plugin;
use support::lead::Told;
use support::pod::{Containerd, Setup};
use support::poll::until;
use support::{Daemon, Lab, patience, sys};

use super::{PARKED, counted, reservations};
use crate::lead::{await_ready, config_for, watching};

support::tests! {
    killed_at_random_steps_nothing_is_lost_and_nothing_stays_parked needs [Containerd] @ Alone,
    healthy_pods_are_served_and_nothing_is_parked needs [Containerd] @ Alone,
}

/// ADDs at a time.
const CALLERS: usize = 4;
/// Of each caller, between two ADDs: 50 a second in all.
const PACE: Duration = Duration::from_millis(80);
/// Seconds after which a pod that is not gone is told of.
const GONE: u32 = 6;
/// Containers of a caller at a time.
const LIVE: usize = 6;

/// Two ranges of one family, and one of the other.
fn both_families(lab: &Lab) -> String {
    let tag: u32 = lab.ip(0).to_bits();
    format!("{}/26,{}/26;fd00:{:x}:{:x}::/120", lab.ip(0), lab.ip(64), tag >> 16, tag & 0xffff)
}

/// Random numbers that are the same in each run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[derive(Default)]
struct Count {
    adds: AtomicUsize,
    killed: AtomicUsize,
    full: AtomicUsize,
    add_time: Spent,
    del_time: Spent,
}

/// Where the time of the callers goes.
#[derive(Default)]
struct Spent {
    calls: AtomicU64,
    micros: AtomicU64,
}

impl Spent {
    /// Makes a call.
    fn on<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let answer = call();
        let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(took, Ordering::Relaxed);
        answer
    }

    /// Of a call, in ms.
    fn mean(&self) -> f64 {
        let calls = self.calls.load(Ordering::Relaxed).max(1);
        self.micros.load(Ordering::Relaxed) as f64 / 1e3 / calls as f64
    }
}

/// The machine's CPU time since its boot, in ticks: idle, and all (`/proc/stat`, proc(5)).
fn ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap();
    let fields = text.lines().next().unwrap().split_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap()).collect();
    (ticks[3] + ticks[4], ticks.iter().sum())
}

/// One caller: an ADD at each step, and a DEL of its oldest container. Some are killed, as by an OOM killer; then comes
/// DEL, as from a runtime.
fn calls(plugin: &Plugin, who: usize, over: &AtomicBool, count: &Count) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (who as u64 + 1));
    let (mut live, mut next) = (VecDeque::new(), Instant::now());
    let del = |random: &mut Random, id: &str| {
        let killed = (random.below(8) == 0).then(|| Duration::from_micros(random.below(15_000)));
        if count.del_time.on(|| plugin.call("DEL", id, killed)).is_none() {
            count.killed.fetch_add(1, Ordering::Relaxed);
        }
        let out = count.del_time.on(|| plugin.call("DEL", id, None)).expect("not killed");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    };
    for n in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("{:060x}{who:x}", n);
        let killed = (random.below(5) == 0).then(|| Duration::from_micros(random.below(25_000)));
        count.adds.fetch_add(1, Ordering::Relaxed);
        match count.add_time.on(|| plugin.call("ADD", &id, killed)) {
            Some(out) if out.status.success() => {
                plugin.assert_stored(&id, &out.stdout, 2);
                live.push_back(id);
            }
            Some(out) => {
                let said = String::from_utf8_lossy(&out.stdout).into_owned();
                assert!(said.contains("no IP addresses available"), "{said}");
                count.full.fetch_add(1, Ordering::Relaxed);
                del(&mut random, &id);
            }
            None => {
                count.killed.fetch_add(1, Ordering::Relaxed);
                del(&mut random, &id);
            }
        }
        if live.len() > LIVE {
            del(&mut random, &live.pop_front().unwrap());
        }
        next += PACE * patience();
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    live.iter().for_each(|id| del(&mut random, id));
}

/// CPU time of a call and of its delegate, of a few that meet no held address.
fn cpu_of_a_call(plugin: &Plugin) -> Duration {
    const PAIRS: u32 = 20;
    let before = sys::cpu_of_children();
    for n in 0..PAIRS {
        let id = format!("{n:063x}");
        let _ = plugin.add(&id);
        plugin.del(&id);
    }
    (sys::cpu_of_children() - before) / (2 * PAIRS)
}

/// How many addresses are parked.
fn parked(plugin: &Plugin) -> usize {
    plugin.stored().values().filter(|id| id.starts_with(PARKED)).count()
}

fn killed_at_random_steps_nothing_is_lost_and_nothing_stays_parked(lab: &Lab) {
    let setup = Setup { prevention: true, subnet: Some(both_families(lab)), ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    let daemon = Mutex::new(Some(watching(lab, &containerd)));
    let pods: Vec<_> =
        ["a", "b", "c"].map(|name| containerd.pod(name).sandbox()).into_iter().collect();
    await_ready(daemon.lock().unwrap().as_ref().unwrap(), &pods);
    // As on a node: a daemon that is starting is not waited for.
    let plugin = Plugin::of(&containerd).with_option("timeoutMs", 20);
    let plugin = plugin.with_real_delegate(&lab.dir().join("real"));
    let (over, count) = (AtomicBool::new(false), Count::default());
    let cpu = cpu_of_a_call(&plugin);
    let own: BTreeMap<IpAddr, String> = plugin.stored();
    assert_eq!(own.len(), 2 * pods.len(), "{own:?}");
    let (time, began) = (Duration::from_secs(if is_long() { 60 } else { 10 }), Instant::now());
    let (mut most, before) = (0, ticks());
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|who| {
                let (plugin, over, count) = (&plugin, &over, &count);
                scope.spawn(move || calls(plugin, who, over, count))
            })
            .collect();
        let mut random = Random(7);
        for n in 0.. {
            if began.elapsed() > time || callers.iter().any(|caller| caller.is_finished()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(300 + random.below(400)));
            // A cleaner of leaks takes what a pod has, or what is parked for it.
            let pod = &pods[n % pods.len()];
            if let Some(ip) = own.iter().find(|(_, id)| **id == pod.sandbox).map(|(ip, _)| ip)
                && plugin
                    .stored()
                    .get(ip)
                    .is_some_and(|id| *id == pod.sandbox || id.starts_with(PARKED))
            {
                let _ = fs::remove_file(plugin.store().join(ip.to_string()));
                if let IpAddr::V4(ip) = ip {
                    containerd.hand_out_next(*ip);
                }
            }
            most = most.max(parked(&plugin));
            if n % 3 == 2 {
                daemon.lock().unwrap().take().unwrap().crash();
                std::thread::sleep(Duration::from_millis(random.below(300)));
                *daemon.lock().unwrap() = Some(watching(lab, &containerd));
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let (took, after) = (began.elapsed(), ticks());
    // A delegate that outlives its killed plugin may reserve after the runtime's DEL, as it may without the plugin: it
    // is found as a leak, or freed by a DEL that is repeated.
    let late: Vec<String> = plugin.stored().into_values().filter(|id| id.len() == 61).collect();
    for id in &late {
        assert!(plugin.call("DEL", id, None).unwrap().status.success());
    }
    pods.iter().for_each(|pod| containerd.stop(pod));
    let daemon = daemon.into_inner().unwrap().unwrap();
    pods.iter().for_each(|pod| daemon.await_no_ip(&pod.ip, pod.netns));
    until("what is parked is released by the next calls", 60, || {
        assert!(plugin.call("DEL", "nobodys", None).unwrap().status.success());
        plugin.stored().is_empty()
    });
    let state = state(&containerd);
    assert_eq!(state["parked"].as_array().map_or(0, Vec::len), 0, "{state}");
    let number = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    assert!(counted(&containerd, "parked") > 0, "it had something to do");
    println!(
        "{FIGURE}{} ADDs in {:.1} s, {:.0} a second, four at a time; {} calls killed, {} parked and {} at a time, {} \
         refused for want of addresses, {} reserved by an orphaned delegate after its DEL: nothing lost, nothing stays",
        number(&count.adds),
        took.as_secs_f32(),
        number(&count.adds) as f32 / took.as_secs_f32(),
        number(&count.killed),
        counted(&containerd, "parked"),
        most,
        number(&count.full),
        late.len(),
    );
    println!(
        "{FIGURE}of the {} ms between two ADDs of a caller: ADD {:.1} ms, a DEL {:.1} ms, and {:.1} DELs an ADD; a call needs \
         {:.1} ms of CPU with its delegate; of the machine {:.0} % was idle",
        PACE.as_millis(),
        count.add_time.mean(),
        count.del_time.mean(),
        count.del_time.calls.load(Ordering::Relaxed) as f64 / number(&count.adds) as f64,
        cpu.as_secs_f64() * 1e3,
        (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64 * 100.0,
    );
}

/// The state file of the network.
pub(super) fn state(containerd: &Containerd<'_>) -> Value {
    let files = fs::read_dir(containerd.parked()).into_iter().flatten().flatten();
    let mut files = files.map(|file| file.path());
    let file = files.find(|path: &PathBuf| is_state(path));
    let text = file.map(|file| fs::read_to_string(file).unwrap()).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn is_state(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "parked")
}

fn healthy_pods_are_served_and_nothing_is_parked(lab: &Lab) {
    let cycles = if is_long() { 1_000 } else { 24 };
    let setup = Setup { prevention: true, ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    // On a busy machine it takes seconds until a pod is gone.
    let config = config_for(&containerd).holders_grace(GONE).leak_age(GONE);
    let daemon = Daemon::start(lab, &config);
    daemon.await_source("containerd");
    let told = Told::by(&daemon);
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= cycles {
                        return;
                    }
                    // It panics if an ADD fails.
                    let pod = containerd.pod(&format!("web-{n}")).sandbox();
                    let reserved = containerd.reserved_for(&pod.ip);
                    assert_eq!(reserved.as_deref(), Some(&*pod.sandbox), "{pod:#?}");
                    containerd.stop(&pod);
                }
            });
        }
    });
    let took = began.elapsed();
    assert_eq!(reservations(&containerd), [] as [String; 0], "nothing is left");
    for what in ["parked", "not-parked", "gave-held", "gated"] {
        assert_eq!(counted(&containerd, what), 0, "{what}");
    }
    // A grace, two answers of the runtime and a second look.
    std::thread::sleep(Duration::from_secs(u64::from(GONE) + 13) * patience());
    let findings = told.findings().into_iter().map(|(_, finding)| finding);
    let findings: Vec<Value> = findings.filter(|finding| lab.owns(&finding.to_string())).collect();
    assert_eq!(findings, [] as [Value; 0]);
    let unanswered = fs::read_to_string(containerd.parked().join("counters")).unwrap_or_default();
    println!(
        "{FIGURE}{cycles} healthy pods through ipwatch-ipam in {:.0} s: no ADD failed, nothing parked, no finding; \
         counted: {}",
        took.as_secs_f32(),
        if unanswered.is_empty() { "nothing" } else { &unanswered },
    );
    drop::<Daemon>(daemon);
}
