//! How long it takes to load host-local's store, and how soon a change in it is reported: `cargo bench -p ipwatch
//! --bench ipam`.
//!
//! The store has 65,000 reservations, like a /16 that is nearly used up. Measured is the whole way from the files to
//! the facts in the daemon's queue.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use ipwatch::clock;
use ipwatch::fact::{BootNs, Fact, Observation};
use ipwatch::sources::Emit;
use ipwatch::sources::ipam::{self, Settings};
use tokio::sync::mpsc;

const FILES: u32 = 65_000;
const ROUNDS: usize = 5;
const CHANGES: u32 = 200;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let network = dir.path().join("networks/cbr0");
    fs::create_dir_all(&network).unwrap();
    for n in 0..FILES {
        reserve(&network, n);
    }
    let settings = Settings {
        conf_dirs: Vec::new(),
        data_dirs: vec![dir.path().join("networks")],
        aws_checkpoint: dir.path().join("aws-node/ipam.json"),
        cilium_state: dir.path().join("cilium"),
        docker_data_root: dir.path().join("docker"),
        terway_dir: dir.path().join("terway"),
        netavark_db: dir.path().join("podman/ipam.db"),
        netavark_networks: dir.path().join("networks.d"),
    };
    let loads: Vec<_> = (0..ROUNDS).map(|_| on_runtime(load(&settings))).collect();
    print("host-local, 65,000 reservations loaded", loads, "median < 300 ms");
    let (new, gone) = on_runtime(changes(&settings, &network));
    print("host-local, a new reservation -> fact", new, "worst < 10 ms");
    print("host-local, the end of a reservation -> fact", gone, "worst < 10 ms");
}

fn ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0af4_0000 + n)
}

fn reserve(network: &Path, n: u32) {
    fs::write(network.join(ip(n).to_string()), format!("{n:064x}\r\neth0")).unwrap();
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

async fn load(settings: &Settings) -> Duration {
    let (emit, mut facts) = Emit::channel(256);
    let began = clock::now();
    let _first = ipam::start(settings, &emit, &ipwatch::reading::Readings::default());
    whole(&mut facts).await;
    elapsed(began)
}

fn elapsed(began: BootNs) -> Duration {
    Duration::from_nanos(clock::now().since(began))
}

async fn whole(facts: &mut mpsc::Receiver<Vec<Fact>>) {
    let mut told = 0;
    loop {
        for fact in facts.recv().await.unwrap() {
            match fact.what {
                Observation::Reservation(_) => told += 1,
                Observation::Ended { complete, .. } => {
                    assert!(complete && told == FILES, "{told}");
                    return;
                }
                _ => {}
            }
        }
    }
}

/// From just before a file is written or removed to the fact.
async fn changes(settings: &Settings, network: &Path) -> (Vec<Duration>, Vec<Duration>) {
    let (emit, mut facts) = Emit::channel(256);
    let _first = ipam::start(settings, &emit, &ipwatch::reading::Readings::default());
    whole(&mut facts).await;
    let (mut new, mut gone) = (Vec::new(), Vec::new());
    for n in FILES..FILES + CHANGES {
        let began = clock::now();
        reserve(network, n);
        until(&mut facts, |what| matches!(what, Observation::Reservation(it) if it.ip == ip(n)))
            .await;
        new.push(elapsed(began));
        let began = clock::now();
        fs::remove_file(network.join(ip(n).to_string())).unwrap();
        until(&mut facts, |what| matches!(what, Observation::ReservationGone { .. })).await;
        gone.push(elapsed(began));
    }
    (new, gone)
}

async fn until(facts: &mut mpsc::Receiver<Vec<Fact>>, wanted: impl Fn(&Observation) -> bool) {
    while !facts.recv().await.unwrap().iter().any(|fact| wanted(&fact.what)) {}
}

/// A line that xtask reads into `docs/figures.json`.
fn print(what: &str, mut times: Vec<Duration>, goal: &str) {
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    let (median, worst, count) = (ms(median), ms(worst), times.len());
    println!("FIGURE {what}  median {median:.2} ms, worst {worst:.2} ms of {count}  goal {goal}");
}
