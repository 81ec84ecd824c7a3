//! What the daemon takes while nothing happens for long: ten minutes with 250 pods and a scrape every 15 s, and what its
//! memory consists of at the end.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use support::{Config, Daemon, Lab, prometheus};

use super::usage::{Usage, quiet};
use super::{Pod, figure, pod};

const LASTS: Duration = Duration::from_secs(600);
const SCRAPE: Duration = Duration::from_secs(15);
/// How long a part of the CPU time is measured.
const PART: Duration = Duration::from_secs(60);

pub(crate) fn ten_minutes_with_250_pods(lab: &Lab) {
    let _pods: Vec<Pod> = (0..250).map(|n| pod(lab, n, 2)).collect();
    without_polling(lab);
    let listen = prometheus::free_address();
    let config = Config::default().line(&format!("[metrics]\nlisten = \"{listen}\""));
    let daemon = Daemon::start(lab, &config);
    quiet();
    let began = Instant::now();
    let first = Usage::of(daemon.pid());
    let mut all = Vec::new();
    for n in 1.. {
        let next = began + SCRAPE * n;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let page = prometheus::get(&listen, "/metrics", "*/*").expect("the daemon listens");
        assert_eq!(page.status, 200);
        all.push(Usage::of(daemon.pid()));
        if began.elapsed() > LASTS {
            break;
        }
    }
    let last = all.last().expect("it was scraped");
    let most = all.iter().max_by_key(|usage| usage.resident_kib()).expect("it was scraped");
    figure("memory, 250 pods, ten minutes with a scrape every 15 s", "<= 10 MiB", &last.memory());
    let name = "memory, 250 pods, ten minutes with a scrape every 15 s, at most";
    figure(name, "<= 10 MiB", &most.memory());
    let cpu = format!("{:.3} % of a core over ten minutes", first.cpu_percent(last));
    figure("idle CPU, 250 pods, with a scrape every 15 s", "<= 0.05 %", &cpu);
    let parts = parts(daemon.pid());
    let shown: Vec<String> = parts.iter().map(|(name, kib)| format!("{name} {kib} KiB")).collect();
    figure("memory, 250 pods, ten minutes, what it consists of", "(none)", &shown.join(", "));
}

/// Where the kernel reports all events, as stock kernels do, nothing is polled in their place. Only the sweep that looks
/// for what the probes missed is left out here as well.
fn without_polling(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default().probes_line("sweep = \"0s\""));
    quiet();
    let from = Usage::of(daemon.pid());
    std::thread::sleep(PART);
    let cpu = format!("{:.3} % of a core over 60 s", from.cpu_percent(&Usage::of(daemon.pid())));
    figure("idle CPU, 250 pods, tasks not polled", "<= 0.05 %", &cpu);
}

/// The resident memory of a process by what it is, in KiB (`show_smap`, fs/proc/task_mmu.c); the largest first.
fn parts(pid: u32) -> Vec<(&'static str, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let mut parts = BTreeMap::<&str, u64>::new();
    let mut part = "other";
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") => {
                let kib = words.next().and_then(|kib| kib.parse::<u64>().ok()).expect("a size");
                *parts.entry(part).or_default() += kib;
            }
            Some(first) if !first.ends_with(':') => {
                let writable = line.split_whitespace().nth(1).is_some_and(|m| m.contains('w'));
                part = match line.split_whitespace().nth(5) {
                    Some("[heap]") => "heap",
                    Some("[stack]") => "stacks",
                    Some(path) if path.contains("bpf") => "ring buffers",
                    Some(path) if path.ends_with("/ipwatch") && !writable => "program",
                    Some(path) if path.starts_with('/') => "libraries and data",
                    _ => "other anonymous",
                };
            }
            _ => {}
        }
    }
    let mut parts: Vec<_> = parts.into_iter().filter(|(_, kib)| *kib > 0).collect();
    parts.sort_by_key(|(_, kib)| std::cmp::Reverse(*kib));
    parts
}
