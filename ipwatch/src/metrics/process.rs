//! Resources used by the daemon itself, from `/proc`. The metric names are those of Prometheus' client libraries.

use std::path::Path;
use std::sync::OnceLock;

use crate::bounded;
use crate::clock;

/// Maximum size of `/proc/self/stat`, in bytes.
const STAT: usize = 4096;
/// Maximum number of descriptors that are counted.
const MOST_FDS: usize = 65_536;

/// Figures of the process at one moment; `None` if one cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Process {
    /// User and system time, in seconds.
    pub(super) cpu: Option<f64>,
    /// Resident memory, in bytes.
    pub(super) resident: Option<u64>,
    /// Virtual memory, in bytes.
    pub(super) virtual_memory: Option<u64>,
    /// When it started, in seconds since 1970.
    pub(super) started: Option<f64>,
    /// Open descriptors.
    pub(super) fds: Option<u64>,
    /// Limit of open descriptors (`RLIMIT_NOFILE`).
    pub(super) max_fds: Option<u64>,
}

impl Process {
    /// The figures of this process. Reads a few files of `/proc`, which takes some microseconds.
    pub(super) fn own() -> Self {
        let fds = std::fs::read_dir("/proc/self/fd");
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Self {
            // One of them is the directory itself.
            fds: fds.ok().map(|fds| (fds.take(MOST_FDS).count() as u64).saturating_sub(1)),
            max_fds: limit,
            ..bounded::read_text(Path::new("/proc/self/stat"), STAT)
                .ok()
                .and_then(|stat| Self::parse(&stat))
                .unwrap_or_default()
        }
    }

    /// Parses `/proc/PID/stat` (proc(5)).
    fn parse(stat: &str) -> Option<Self> {
        // The name may contain anything: the fields start after its last bracket, with the third one.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let seconds = |ticks_counted: u64| ticks_counted as f64 / ticks;
        Some(Self {
            cpu: Some(seconds(field(14)? + field(15)?)),
            started: Some(booted() + seconds(field(22)?)),
            virtual_memory: Some(field(23)?),
            resident: Some(field(24)?.saturating_mul(rustix::param::page_size() as u64)),
            ..Self::default()
        })
    }
}

/// When this machine booted, in seconds since 1970. Read once: if the start time moved with corrections of the clock,
/// it would look like a restart.
fn booted() -> f64 {
    static BOOTED: OnceLock<f64> = OnceLock::new();
    *BOOTED.get_or_init(|| clock::wall_offset() as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_understood_whatever_the_name() {
        let line = "812 (a) b) R 1 812 812 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4 0 1000 8192000 300 \
                    18446744073709551615 1 1 0";
        let process = Process::parse(line).unwrap();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(process.cpu, Some(200.0 / ticks));
        assert_eq!(process.virtual_memory, Some(8_192_000));
        assert_eq!(process.resident, Some(300 * rustix::param::page_size() as u64));
        assert_eq!(Process::parse("812 (x) R 1"), None);
    }

    #[test]
    fn this_process_costs_something() {
        let own = Process::own();
        assert!(own.cpu.is_some() && own.resident.is_some_and(|bytes| bytes > 100_000), "{own:?}");
        assert!(own.fds.is_some_and(|fds| fds > 2) && own.started.is_some_and(|at| at > 1.6e9));
    }
}
