//! The restrictions of the unit in `deploy/systemd`, as tests apply them to the daemon.
//!
//! `IPWATCH_TEST_CAGE` restricts every daemon of a run: `capabilities` to the capabilities of the unit, which works
//! on any machine; `unit` to everything that the unit permits, by the systemd that booted this machine.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Lab, daemon, sys};

const UNIT: &str = include_str!("../../deploy/systemd/ipwatch.service");

/// The restrictions of the daemons of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cage {
    None,
    /// The unit's capabilities.
    Capabilities,
    /// All restrictions of the unit.
    Unit,
}

/// The requested restrictions.
///
/// # Panics
/// The value is unknown.
#[must_use]
pub fn cage() -> Cage {
    match std::env::var("IPWATCH_TEST_CAGE").as_deref() {
        Err(_) | Ok("") => Cage::None,
        Ok("capabilities") => Cage::Capabilities,
        Ok("unit") => Cage::Unit,
        Ok(other) => panic!("no cage {other:?}"),
    }
}

/// The capabilities that the unit grants.
#[must_use]
pub fn capabilities() -> Vec<String> {
    let lines = UNIT.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// These capabilities as a mask, as in `/proc`.
///
/// # Panics
/// A name is unknown.
#[must_use]
pub fn mask(names: &[String]) -> u64 {
    use rustix::thread::CapabilitySet;
    let one = |name: &String| CapabilitySet::from_name(name.strip_prefix("CAP_")?);
    let all: Option<CapabilitySet> = names.iter().map(one).collect();
    all.expect("capabilities").bits()
}

/// A field of a process' status.
///
/// # Panics
/// The field is missing.
#[must_use]
#[track_caller]
pub fn status(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process' status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("the line").trim().to_owned()
}

/// Whether the unit may lock unlimited memory, as which eBPF maps count before 5.11.
fn locks_memory() -> bool {
    UNIT.lines().any(|line| line == "LimitMEMLOCK=infinity")
}

/// The daemon with only these capabilities, and with the unit's limit of locked memory.
#[must_use]
pub fn with_capabilities(names: &[String]) -> Command {
    let mut command = Command::new(daemon::binary());
    if locks_memory() {
        sys::lock_memory(&mut command);
    }
    sys::keep_capabilities(&mut command, names);
    command
}

/// The daemon in a transient unit, to which systemd applies the unit's restrictions by a drop-in for every unit with
/// such a name (`xtask/src/vm/systemd/run.sh`). systemd-run waits for the unit and returns its exit code. The
/// daemon's pid is written to [`pid_file`].
#[must_use]
pub fn by_systemd(lab: &Lab) -> Command {
    static SERIAL: AtomicUsize = AtomicUsize::new(0);
    let mut command = Command::new("systemd-run");
    command.args(["--quiet", "--collect", "--pipe", "--wait", "--service-type=exec"]);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    command.arg(format!("--unit=ipwatch-caged-{}-{serial}", lab.tag()));
    // So that it is swept with the test.
    command.arg(format!("--setenv={}={}", crate::lab::TAG_VARIABLE, lab.tag()));
    // systemd replaces two dollars by one.
    let script = "echo $$$$ > \"$0\" && exec \"$@\"";
    command.args(["sh", "-c", script]).arg(pid_file(lab.dir())).arg(daemon::binary());
    let _ = fs::remove_file(pid_file(lab.dir()));
    command
}

/// # Panics
/// Capabilities or seccomp filter of this process are not those of the unit.
#[track_caller]
pub fn assert_caged(pid: u32) {
    let has = u64::from_str_radix(&status(pid, "CapBnd"), 16).expect("a mask");
    assert_eq!((has, status(pid, "Seccomp").as_str()), (mask(&capabilities()), "2"));
}

/// The file with the daemon's pid, in the lab's directory.
#[must_use]
pub fn pid_file(dir: &Path) -> std::path::PathBuf {
    dir.join("daemon.pid")
}
