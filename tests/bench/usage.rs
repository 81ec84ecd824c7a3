//! What a process uses, according to `/proc`.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// Waits until the first snapshot and its clean-up have passed.
pub(crate) fn quiet() {
    std::thread::sleep(Duration::from_secs(8));
}

/// Counts with strace how often the threads of a process open a mountinfo within 15 seconds.
pub(crate) fn reads_of_mountinfo(pid: u32) -> String {
    let pid = pid.to_string();
    let strace = ["15", "strace", "-f", "-q", "-e", "trace=openat", "-p", &pid];
    match Command::new("timeout").args(strace).output() {
        Ok(out) if out.status.code() == Some(124) => {
            let text = String::from_utf8_lossy(&out.stderr);
            text.lines().filter(|line| line.contains("mountinfo")).count().to_string()
        }
        _ => "not measured: strace does not run here".to_owned(),
    }
}

/// CPU time and memory at one moment.
pub(crate) struct Usage {
    at: Instant,
    ticks: u64,
    rss_kib: u64,
    anon_kib: u64,
}

impl Usage {
    pub(crate) fn of(pid: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        // The name may contain blanks; after it, field 3 is the first.
        let fields: Vec<&str> =
            stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        let number = |index: usize| fields[index - 3].parse::<u64>().expect("a number");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let kib = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key)).expect("a line");
            line.split_whitespace().nth(1).and_then(|value| value.parse().ok()).expect("a size")
        };
        Self {
            at: Instant::now(),
            ticks: number(14) + number(15),
            rss_kib: kib("VmRSS:"),
            anon_kib: kib("RssAnon:"),
        }
    }

    /// CPU time between two moments, in percent of one core. A tick is 10 ms.
    pub(crate) fn cpu_percent(&self, later: &Self) -> f64 {
        let used = (later.ticks - self.ticks) as f64 / 100.0;
        used / later.at.duration_since(self.at).as_secs_f64() * 100.0
    }

    /// Resident memory.
    pub(crate) fn memory(&self) -> String {
        let anonymous = self.anon_kib as f64 / 1024.0;
        format!("{:.1} MiB ({anonymous:.1} MiB of it anonymous)", self.resident_mib())
    }

    pub(crate) fn resident_kib(&self) -> u64 {
        self.rss_kib
    }

    pub(crate) fn resident_mib(&self) -> f64 {
        self.rss_kib as f64 / 1024.0
    }
}
