//! The healthy run: pods start and end in real containerds in every ordinary way, on bridges, ptp and macvlan, beside
//! plugins that are called as fast as on a busy node, with the default graces. The runtime and ipwatch itself are
//! restarted meanwhile, as by an upgrade. Not a single finding may be raised, not even as `pending`.
//!
//! The usual run makes [`CYCLES`] cycles, or as many as fit into a minute; `IPWATCH_TEST_CYCLES` (`cargo xtask test
//! --only healthy --cycles 10000`) sets their number, which two nodes make side by side under one daemon.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::network::{self, Container, Network};
use support::pod::{CNI_CACHE, Containerd, MACVLAN, Pod, PodSandbox, Setup, Slow};
use support::poll::until;
use support::{Config, Daemon, Follower, Lab, Netns, harness, lead};

use crate::never;

support::tests! {
    pods_come_and_go_and_nothing_is_flagged needs [Containerd, Fuse] @ Alone,
}

/// Number of cycles of the usual run, if there is time.
const CYCLES: usize = 60;
const TIME: Duration = Duration::from_secs(50);
/// Minimum of any run: each kind twice.
const LEAST: usize = 2 * KINDS;
/// Number of kinds of cycles.
pub(crate) const KINDS: usize = 14;
/// The kind in which ipwatch itself is restarted.
pub(crate) const IPWATCH_RESTARTS: usize = 13;
/// The default grace of a dead sandbox, a poll of the runtime and a second look: by then what the last cycles left
/// behind would be found.
const AFTERWARDS: Duration = Duration::from_secs(38);
/// Pause between two CNI calls beside the pods: 50 a second, if the machine is fast enough.
const PACE: Duration = Duration::from_millis(20);
/// Number of concurrent callers: a bridge's ADD mostly waits.
const CALLERS: u8 = 4;
/// Pods that live on meanwhile.
const STEADY: usize = 4;
const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];

/// A node under test.
pub(crate) struct Node<'a> {
    lab: &'a Lab,
    /// Which of two it is; its pods' names end with it.
    copy: u8,
    containerd: Containerd<'a>,
    /// A containerd on its own node, whose pods use ptp and macvlan.
    far: Containerd<'a>,
    _netns: Netns,
    steady: Vec<Pod>,
    serial: usize,
}

impl<'a> Node<'a> {
    pub(crate) fn start(lab: &'a Lab, copy: u8) -> Self {
        let subnet = Some(format!("{}/27", lab.ip(32 * copy)));
        let near = Containerd::start_as(lab, &Setup { subnet, copy, ..Setup::default() });
        let netns = Netns::new(lab, &format!("far{copy}"));
        let far = Setup { node: Some(&netns), copy, ..Setup::default() };
        let far = Containerd::start_as(lab, &far);
        let mut node =
            Self { lab, copy, containerd: near, far, _netns: netns, steady: Vec::new(), serial: 0 };
        for _ in 0..STEADY {
            let pod = node.pod("web");
            node.steady.push(pod);
        }
        node
    }

    /// Adds its runtimes and networks.
    pub(crate) fn configure(&self, config: Config) -> Config {
        [&self.containerd, &self.far].into_iter().fold(config, |config, containerd| {
            config.cri(containerd.socket()).networks(&containerd.conf_dirs(), &containerd.bin_dir())
        })
    }

    /// One cycle; the kinds take turns.
    pub(crate) fn cycle(&mut self, n: usize, watch: &Mutex<Watch<'_>>) {
        match n % KINDS {
            0 | 4 => self.plain(),
            1 => self.sandbox_only(),
            2 => self.rolled(),
            3 => self.stateful(),
            5 => self.ends_by_itself(),
            6 => self.slow(),
            7 => self.on_the_hosts_network(),
            8 => self.new_attempt(),
            9 => self.plain_on("", "ptp"),
            10 => self.plain_on(MACVLAN, "mac"),
            11 => self.remade_on_macvlan(),
            12 => self.runtime_restarts(),
            IPWATCH_RESTARTS => {
                self.ipwatch_restarts(n / KINDS, &mut watch.lock().expect("no node has failed"))
            }
            kind => unreachable!("kind {kind}"),
        }
    }

    /// A name that a StatefulSet of this node gives.
    fn name(&self, of: &str) -> String {
        format!("{of}-{}", self.copy)
    }

    fn pod(&mut self, name: &str) -> Pod {
        self.serial += 1;
        let name = format!("{}-{}", self.name(name), self.serial);
        self.containerd.run(&name, self.lab.dir(), &SLEEP)
    }

    /// Created and deleted.
    fn plain(&mut self) {
        let pod = self.pod("batch");
        self.containerd.stop(&pod);
    }

    fn plain_on(&self, handler: &str, name: &str) {
        let pod = self.far.pod(&self.name(name)).handler(handler).run(self.lab.dir(), &SLEEP);
        self.far.stop(&pod);
    }

    /// macvlan frees the IP and removes its device after that. Then comes the second DEL of the old sandbox.
    fn remade_on_macvlan(&self) {
        let name = self.name("mac");
        let make = || self.far.pod(&name).handler(MACVLAN).sandbox();
        let old = make();
        self.far.halt(&old);
        let new = make();
        self.far.stop(&old);
        self.far.stop(&new);
    }

    fn sandbox_only(&mut self) {
        let pod = self.containerd.pod(&self.name("empty")).sandbox();
        self.containerd.stop(&pod);
    }

    /// A Deployment is rolled: a new pod is started first, then the oldest ends.
    fn rolled(&mut self) {
        let pod = self.pod("web");
        self.steady.push(pod);
        let oldest = self.steady.remove(0);
        self.containerd.stop(&oldest);
    }

    /// A StatefulSet's pod is recreated under its name; its predecessor is stopped again while it runs, and removed
    /// later.
    fn stateful(&mut self) {
        let name = self.name("db");
        let old = self.containerd.run(&name, self.lab.dir(), &SLEEP);
        self.containerd.halt(&old);
        let new = self.containerd.run(&name, self.lab.dir(), &SLEEP);
        self.containerd.halt(&old);
        self.containerd.stop(&old);
        self.containerd.stop(&new);
    }

    /// A Job's pod: its container exits, its sandbox is stopped and stays for a while.
    fn ends_by_itself(&mut self) {
        let pod = self.containerd.run(&self.name("job"), self.lab.dir(), &["/bin/sleep", "0.3"]);
        until("the job ends", 10, || {
            self.containerd.state_of(&pod.container).as_deref() == Some("EXITED")
        });
        self.containerd.halt(&pod);
        self.containerd.stop(&pod);
    }

    /// First ADD is slow, then the start of pause.
    fn slow(&mut self) {
        for what in [Slow::Add, Slow::Create] {
            self.containerd.slow_down(what, Duration::from_millis(1500));
            let pod = self.containerd.pod(&self.name("late")).sandbox();
            self.containerd.slow_down(what, Duration::ZERO);
            self.containerd.stop(&pod);
        }
    }

    fn on_the_hosts_network(&mut self) {
        let pod =
            self.containerd.pod(&self.name("agent")).host_network().run(self.lab.dir(), &SLEEP);
        self.containerd.stop(&pod);
    }

    /// kubelet recreates a pod's sandbox: the same pod with its next attempt.
    fn new_attempt(&mut self) {
        let name = self.name("again");
        let first = self.containerd.pod(&name).sandbox();
        self.containerd.halt(&first);
        let second = self.containerd.pod(&name).uid(&first.uid).attempt(1).sandbox();
        self.containerd.stop(&first);
        self.containerd.stop(&second);
    }

    /// containerd is upgraded: it is restarted, and its shims live on.
    fn runtime_restarts(&mut self) {
        self.containerd.crash();
        std::thread::sleep(Duration::from_millis(500));
        self.containerd.restart();
        for pod in &self.steady {
            assert_eq!(self.containerd.state_of(&pod.sandbox).as_deref(), Some("READY"));
        }
    }

    /// ipwatch is upgraded, or killed, while a pod starts and another one ends; the next run finds the state of the last.
    fn ipwatch_restarts(&mut self, turn: usize, watch: &mut Watch<'_>) {
        let ends = self.pod("batch");
        watch.end(turn % 2 == 1);
        self.containerd.stop(&ends);
        let starts = self.pod("batch");
        watch.begin();
        self.containerd.stop(&starts);
    }
}

/// The daemon under test, and what each of its runs reported.
pub(crate) struct Watch<'a> {
    lab: &'a Lab,
    config: Config,
    run: Option<(Daemon, Follower)>,
    /// Changes that earlier runs reported.
    told: Vec<Value>,
}

impl<'a> Watch<'a> {
    pub(crate) fn start(lab: &'a Lab, config: Config) -> Self {
        let mut watch = Self { lab, config, run: None, told: Vec::new() };
        watch.begin();
        watch
    }

    fn begin(&mut self) {
        let daemon = Daemon::start(self.lab, &self.config);
        let follower = daemon.follow();
        self.run = Some((daemon, follower));
    }

    fn end(&mut self, by_force: bool) {
        let (daemon, follower) = self.run.take().expect("it runs");
        self.told.extend(follower.changes_seen());
        drop(follower);
        if by_force {
            daemon.crash();
        } else {
            assert!(daemon.stop().success());
        }
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        &self.run.as_ref().expect("it runs").0
    }

    /// Everything that was reported, by all runs.
    pub(crate) fn changes(&self) -> Vec<Value> {
        let now = self.run.iter().flat_map(|(_, follower)| follower.changes_seen());
        self.told.iter().cloned().chain(now).collect()
    }
}

/// Calls plugins as on a busy node, for containers without a runtime, until stopped.
struct Calls<'a> {
    stop: &'a AtomicBool,
    made: &'a AtomicUsize,
}

impl<'a> Calls<'a> {
    /// Several callers at the same time.
    fn begin<'scope>(&self, scope: &'scope Scope<'scope, '_>, lab: &'scope Lab, node: &'scope Netns)
    where
        'a: 'scope,
    {
        let bridge = serde_json::json!({ "bridge": "calls0" });
        let network =
            Network::new(lab, node, "calls", "bridge", &format!("{}/27", lab.ip(64)), bridge);
        for worker in 0..usize::from(CALLERS) {
            let (stop, made, network) = (self.stop, self.made, network.clone());
            scope.spawn(move || {
                let netns = Netns::new(lab, &format!("calls{worker}"));
                let mut at = Instant::now();
                let mut pace = || {
                    made.fetch_add(1, Ordering::Relaxed);
                    at = (at + PACE * u32::from(CALLERS)).max(Instant::now() - PACE);
                    std::thread::sleep(at.saturating_duration_since(Instant::now()));
                };
                let mut n = worker;
                while !stop.load(Ordering::Relaxed) {
                    let container = Container::new(lab, n);
                    network.add(&container, &netns).expect("ADD");
                    pace();
                    network.del(&container, Some(&netns)).expect("DEL");
                    pace();
                    n += usize::from(CALLERS);
                }
            });
        }
    }
}

fn pods_come_and_go_and_nothing_is_flagged(lab: &Lab) {
    let node = Netns::new(lab, "calls");
    let (stop, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        // The calls end even if the run fails.
        let _stops = Stops(&stop);
        run(lab, &|| Calls { stop: &stop, made: &made }.begin(scope, lab, &node), &stop, &made);
    });
}

/// Sets the flag when dropped.
pub(crate) struct Stops<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn run(lab: &Lab, begin: &dyn Fn(), stop: &AtomicBool, made: &AtomicUsize) {
    let wanted = harness::cycles();
    let copies = if wanted.is_some() { 2 } else { 1 };
    let mut nodes: Vec<Node<'_>> = (0..copies).map(|copy| Node::start(lab, copy)).collect();
    let mut config = Config::default()
        .networks(&[network::conf_dir(lab)], &network::bin_dir(lab))
        .cache_dir(Path::new(CNI_CACHE));
    for node in &nodes {
        config = node.configure(config);
    }
    let watch = Mutex::new(Watch::start(lab, config));
    begin();
    let began = Instant::now();
    let cycles = AtomicUsize::new(0);
    // Set by the first node that ends, or fails.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for node in &mut nodes {
            let (watch, cycles, done) = (&watch, &cycles, &done);
            scope.spawn(move || {
                let _stops = Stops(done);
                // Each node counts for itself, so that it has all kinds.
                for n in 0.. {
                    let made_so_far = cycles.load(Ordering::Relaxed);
                    let enough = wanted.is_none() && n >= LEAST && began.elapsed() > TIME;
                    if enough
                        || done.load(Ordering::Relaxed)
                        || made_so_far >= wanted.unwrap_or(CYCLES)
                    {
                        break;
                    }
                    node.cycle(n, watch);
                    if cycles.fetch_add(1, Ordering::Relaxed) % 100 == 0 {
                        quiet(
                            &watch.lock().expect("no node has failed"),
                            (made_so_far, made, began),
                        );
                    }
                }
            });
        }
    });
    let took = began.elapsed();
    let cycles = cycles.into_inner();
    let watch = watch.into_inner().expect("no node has failed");
    let rate = made.load(Ordering::Relaxed) as f64 / took.as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    std::thread::sleep(AFTERWARDS);
    quiet(&watch, (cycles, made, began));
    let daemon = watch.daemon();
    lead::healthy(cycles, made.load(Ordering::Relaxed), 0, took);
    let steady = nodes.iter().flat_map(|node| &node.steady);
    knows_the_living_alone(lab, daemon, &steady.map(|pod| &**pod).collect::<Vec<_>>());
    let _guilty = never::guilty(lab);
    until("what is wrong is told", 30, || never::logged(lab, daemon).is_some());
    println!(
        "{}{cycles} pod cycles in {:.0} s, {rate:.0} CNI calls a second beside them: no finding, {} kB resident",
        harness::FIGURE,
        took.as_secs_f32(),
        support::proc::rss_kib(daemon.pid()),
    );
}

/// Checks that nothing was reported, not even as `pending`; a report counts as a false alarm.
#[track_caller]
fn quiet(watch: &Watch<'_>, (cycles, made, began): (usize, &AtomicUsize, Instant)) {
    let mut changes = watch.changes();
    changes.retain(|change| !never::is_elsewhere(watch.lab, change));
    let logged = never::logged(watch.lab, watch.daemon());
    if changes.is_empty() && logged.is_none() {
        return;
    }
    let ids: std::collections::BTreeSet<String> =
        changes.iter().map(|change| change["finding"]["id"].to_string()).collect();
    lead::healthy(cycles, made.load(Ordering::Relaxed), ids.len().max(1), began.elapsed());
    panic!("after {cycles} cycles: {logged:?} {changes:#?}");
}

/// Checks that the map has all living pods and none of those that ended.
fn knows_the_living_alone(lab: &Lab, daemon: &Daemon, living: &[&PodSandbox]) {
    let known = daemon.list("addresses", &["query", "pod"]);
    for pod in living {
        let found =
            known.iter().any(|a| a["ip"] == pod.ip.as_str() && a["netns"]["inode"] == pod.netns);
        assert!(found, "{} is not known: {known:#?}", pod.name);
    }
    let mine = |address: &&Value| lab.owns(&address["pod"].to_string());
    let dead = known
        .iter()
        .filter(mine)
        .filter(|address| !living.iter().any(|pod| address["pod"]["uid"] == pod.uid.as_str()));
    let dead: Vec<_> = dead.collect();
    assert!(dead.is_empty(), "these pods are gone: {dead:#?}");
}
