//! What `ipwatch-ipam` adds to an ADD: beside the bare delegate in alternating runs, and by the kernel's probes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use support::ipam::Plugin;
use support::{Config, Daemon, Lab, cni, daemon, sys};

use super::{figure, median, quantile};

const RUNS: usize = 10;
/// ADDs of each kind in a run.
const ADDS: usize = 50;
const OWN: &str = "ipwatch-ipam";

/// A network of host-local with `ipwatch-ipam` before it.
struct Network {
    plugin: Plugin,
    conf_dir: PathBuf,
    bin: PathBuf,
    counters: PathBuf,
}

impl Network {
    fn new(lab: &Lab) -> Self {
        let (bin, conf_dir, store) = (lab.subdir("bin"), lab.subdir("net.d"), lab.subdir("ipam"));
        let state = lab.dir().join("parked");
        symlink(daemon::binary().with_file_name(OWN), bin.join(OWN)).expect("link a plugin");
        for name in ["bridge", "host-local"] {
            symlink(format!("{}/{name}", cni::PLUGINS), bin.join(name)).expect("link a plugin");
        }
        let conflist = json!({
            "cniVersion": "1.0.0", "name": "bench", "plugins": [{
                "type": "bridge", "bridge": "bench0", "ipam": {
                    "type": OWN, "socket": daemon::socket_in(lab), "stateDir": state,
                    // A late answer must show in the figures, not be given up.
                    "timeoutMs": 2000,
                    "delegate": {
                        "type": "host-local", "dataDir": store,
                        "ranges": [[{ "subnet": lab.cidr(0) }]],
                    },
                },
            }],
        });
        let conflist = conflist.to_string();
        fs::write(conf_dir.join("10-bench.conflist"), &conflist).expect("write the network");
        let plugin = Plugin::new(&conflist, &bin, &store.join("bench"));
        Self { plugin, conf_dir, bin, counters: state.join("counters") }
    }

    fn config(&self) -> Config {
        Config::default().networks(std::slice::from_ref(&self.conf_dir), &self.bin)
    }
}

/// What the ADDs of one kind took.
#[derive(Default)]
struct Took {
    all: Vec<Duration>,
    /// The median of each run.
    medians: Vec<Duration>,
    cpu: Duration,
}

impl Took {
    /// One run: ADDs of so many containers, each with its DEL after it.
    fn run(&mut self, plugin: &Plugin, run: usize) {
        let mut times = Vec::with_capacity(ADDS);
        for n in 0..ADDS {
            let id = format!("{run:032x}{n:032x}");
            let (began, cpu) = (Instant::now(), sys::cpu_of_children());
            let _ = plugin.add(&id);
            times.push(began.elapsed());
            self.cpu += sys::cpu_of_children() - cpu;
            plugin.del(&id);
        }
        self.medians.push(median(times.clone()));
        self.all.extend(times);
    }

    fn cpu_ms(&self) -> f64 {
        ms(self.cpu) / self.all.len() as f64
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(crate) fn of_an_add(lab: &Lab) {
    let network = Network::new(lab);
    let daemon = Daemon::start(lab, &network.config());
    super::quiet();
    let (with, without) = (&network.plugin, network.plugin.bare());
    let (mut ours, mut bare) = (Took::default(), Took::default());
    for run in 0..RUNS {
        ours.run(with, run);
        bare.run(&without, run);
    }
    let each = ours.medians.iter().zip(&bare.medians);
    let mut added: Vec<Duration> = each.map(|(ours, bare)| ours.saturating_sub(*bare)).collect();
    let shown = format!(
        "median {:.1} ms, worst of {RUNS} runs {:.1} ms; {:.1} ms with and {:.1} ms without it",
        ms(median(added.clone())),
        ms(quantile(&mut added, 1.0)),
        ms(median(ours.all.clone())),
        ms(median(bare.all.clone())),
    );
    figure("ipwatch-ipam, added to an ADD of host-local", "median <= 3 ms", &shown);
    let shown = format!(
        "{:.2} ms; {:.2} ms with and {:.2} ms without it",
        ours.cpu_ms() - bare.cpu_ms(),
        ours.cpu_ms(),
        bare.cpu_ms()
    );
    figure("ipwatch-ipam, CPU time added to an ADD of host-local", "(none)", &shown);
    let mut own = own_times(lab, &network);
    let shown = format!(
        "median {:.1} ms, p99 {:.1} ms of {}",
        ms(median(own.clone())),
        ms(quantile(&mut own, 0.99)),
        own.len()
    );
    figure("ipwatch-ipam, its own time in an ADD, without the delegate", "p99 <= 5 ms", &shown);
    let counters = fs::read_to_string(&network.counters).unwrap_or_default();
    assert_eq!(counters, "", "the daemon answered each question, and knew");
    drop(daemon);
}

/// From `execve` to exit of each ADD, less that of the delegate within it.
fn own_times(lab: &Lab, network: &Network) -> Vec<Duration> {
    let node = cni::Node::new(lab);
    let dirs = format!("[cni]\nbin_dirs = [{:?}, {:?}]", cni::PLUGINS, network.bin);
    let recorder = cni::Recorder::start(&node, &Config::default().line(&dirs));
    let number = RUNS * ADDS;
    for n in 0..number {
        // The recorder keeps the calls of this lab, which it knows by their ids.
        let id = node.id(&format!("own{n:05}"));
        let _ = network.plugin.add(&id);
        network.plugin.del(&id);
    }
    let (seen, _) = recorder.stop();
    let is = |one: &&cni::Seen, name: &str| {
        let began = &one.began;
        began["command"] == "ADD" && began["plugin"].as_str().is_some_and(|at| at.ends_with(name))
    };
    let lasted = |one: &cni::Seen| (one.began["container_id"].to_string(), one.lasted());
    let inner: std::collections::HashMap<_, _> =
        seen.iter().filter(|one| is(one, "/host-local")).map(lasted).collect();
    let outer = seen.iter().filter(|one| is(one, "/ipwatch-ipam")).map(lasted);
    let own = outer.map(|(id, outer)| Duration::from_nanos(outer.saturating_sub(inner[&id])));
    let own: Vec<Duration> = own.collect();
    assert_eq!(own.len(), number);
    own
}
