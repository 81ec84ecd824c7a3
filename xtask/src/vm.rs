//! Runs the end-to-end tests on stock Debian kernels in QEMU, also on rungs that this machine's kernel may refuse:
//! fentry, and kprobe with fentry disabled.

pub(crate) mod apt;
mod emulator;
mod initramfs;
mod kernel;
mod qemu;
mod sysroot;
pub(crate) mod systemd;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::{self, Binaries};
use crate::machine::Machine;
use crate::tally::Tally;
use crate::{place, setup};

use self::emulator::Emulator;
use kernel::ARM64;
pub(crate) use kernel::{Stock, UNDER_SYSTEMD, named, usual};

/// Tests on another architecture: the locations of a probe's arguments differ, and the layouts of the structs of
/// tasks, devices and netns.
const ON_ARM64: [&str; 9] = [
    "tracing::",
    "probes::every_event",
    "probes::who_claims",
    "map::",
    "holders::holders_of_before",
    "holders::setns",
    "stuck::a_killed_reader",
    "cni_calls::calls_are_told",
    "neighbours::two_answers",
];

/// Tests under lockdown: probes load and report, a finding has its evidence, and `doctor` names what lockdown
/// prevents.
const UNDER_LOCKDOWN: [&str; 8] = [
    "tracing::",
    "probes::every_event",
    "probes::a_refusal",
    "canary::each_event",
    "map::a_fresh_address",
    "stuck::a_killed_reader",
    "holders::an_fd_alone",
    "cni_calls::calls_are_told",
];

/// Tests under `lockdown=confidentiality`, where programs read kernel memory only through typed pointers, and netns
/// and files are not listed.
const UNDER_CONFIDENTIALITY: [&str; 9] = [
    "probes::every_event",
    "probes::a_refusal",
    "canary::each_event",
    "map::a_",
    "ways_to_die::each_is_found_without_a_sweep",
    "holders::an_",
    "holders::a_",
    "holders::setns",
    "identity::reuse_mixes_nothing_up",
];

/// Tests on the oldest kernel, unless everything is tested: which programs load, what they report, and what `/proc`
/// shows of a task that hangs.
const ON_THE_OLDEST: [&str; 12] = [
    "tracing::",
    "probes::every_event",
    "canary::each_event",
    "ways_to_die::",
    "hung_reads::a_process",
    "map::",
    "holders::holders_of_before",
    "holders::setns",
    "stuck::a_killed_reader",
    "stuck::the_innocent",
    "cni_calls::calls_are_told",
    "neighbours::two_answers",
];

/// Tests on the kernel in between, which is mainly tested on its lower rung.
const IN_BETWEEN: [&str; 5] = [
    "tracing::",
    "probes::every_event",
    "ways_to_die::",
    "stuck::a_killed_reader",
    "cni_calls::calls_are_told",
];

/// Tests on the newest kernel on its lower rung.
const ON_THE_LOWER_RUNG: [&str; 1] = ["ways_to_die::each_is_found_without"];

/// How much is tested.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extent {
    /// Run all tests that depend on the kernel, on both rungs of each kernel; otherwise the kernels share the work.
    pub(crate) every_rung: bool,
    /// Run tests in their long form (`IPWATCH_TEST_LONG`).
    pub(crate) long: bool,
}

/// One run of the test binary in the VM.
#[derive(Debug)]
pub(crate) struct Run {
    /// Value of `IPWATCH_TEST_PROBES`.
    pub(crate) probes: &'static str,
    /// Every daemon has only the capabilities of the unit (`IPWATCH_TEST_CAGE`).
    pub(crate) caged: bool,
    /// Arguments of the test binary.
    pub(crate) args: Vec<String>,
}

impl Run {
    /// Runs the tests that depend on the kernel, filtered by name.
    fn new(probes: &'static str, filters: &[&str]) -> Self {
        // Two jobs: an emulated CPU computes where a real one would wait.
        let args = filters.iter().copied().chain(["--jobs", "2", "--marked", "kernel"]);
        Self { probes, caged: false, args: args.map(str::to_owned).collect() }
    }

    /// Restricts the run to tests with one of these marks.
    fn marked(mut self, marks: &str) -> Self {
        self.args.extend(["--marked".to_owned(), marks.to_owned()]);
        self
    }
}

/// `cargo xtask vm [systemd|shipped|long] [KERNEL]… [-- FILTER…]`.
pub(crate) fn command(args: &[&str]) -> Result<bool> {
    let mut halves = args.splitn(2, |arg| *arg == "--");
    let (names, filters) = (halves.next().unwrap_or(&[]), halves.next().unwrap_or(&[]));
    let (how, names) = match names {
        [how @ ("systemd" | "shipped" | "long"), names @ ..] => (*how, names),
        _ => ("", names),
    };
    let by_systemd = how == "systemd";
    let mut kernels = names.iter().map(|name| named(name)).collect::<Result<Vec<_>>>()?;
    if kernels.is_empty() {
        kernels = if by_systemd { UNDER_SYSTEMD.to_vec() } else { usual(false) };
    }
    if by_systemd && kernels.iter().any(|kernel| kernel.machine == Machine::Arm64) {
        bail!("the Debian that boots systemd here is one for x86_64");
    }
    let mut tally = Tally::default();
    for machine in [Machine::X86_64, Machine::Arm64] {
        let mut its = kernels.clone();
        its.retain(|kernel| kernel.machine == machine);
        if its.is_empty() {
            continue;
        }
        let mut binaries = build::for_machine(machine)?;
        if matches!(how, "systemd" | "shipped") && machine == Machine::own()? {
            binaries = binaries.shipped()?;
        }
        if by_systemd {
            tally.add(&systemd::test(&its, &binaries, filters));
        } else {
            let extent = Extent { every_rung: true, long: how == "long" };
            tally.add(&all(&its, &binaries, filters, extent));
        }
    }
    println!("{tally}");
    Ok(tally.failed == 0)
}

/// The part `arm64` of `cargo xtask test`: cross-built, and run on an emulated machine. Prints the time that it
/// takes.
pub(crate) fn arm64() -> Result<Tally> {
    if let Err(error) = Machine::Arm64.ensure_tools() {
        return Ok(lacking("arm64", &error));
    }
    let began = Instant::now();
    let binaries = build::for_machine(Machine::Arm64)?;
    println!("cross-built in {} s", began.elapsed().as_secs());
    let mut tally = Tally::default();
    for kernel in ARM64 {
        let began = Instant::now();
        // In their usual form: this machine is too slow for the long one.
        let extent = Extent { every_rung: true, long: false };
        tally.add(&test(kernel, &binaries, &[], extent));
        println!("Linux {}: {} s", kernel.name, began.elapsed().as_secs());
    }
    Ok(tally)
}

/// Number of VMs that run at the same time: for a third of its time a VM runs a single test, which cannot keep two
/// CPUs busy. The tests would not tolerate the slowness of more VMs.
const AT_ONCE: usize = 2;

/// Boots these kernels, [`AT_ONCE`] at the same time, each in its own VM.
pub(crate) fn all(
    kernels: &[Stock],
    binaries: &Binaries,
    filters: &[&str],
    extent: Extent,
) -> Tally {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut tally = Tally::default();
        while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
            tally.add(&test(*kernel, binaries, filters, extent));
        }
        tally
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let mut tally = Tally::default();
        for worker in workers {
            let panicked = |_| Tally::failure("a thread that runs VMs panicked");
            tally.add(&worker.join().unwrap_or_else(panicked));
        }
        tally
    })
}

/// Boots one kernel and runs the tests in it. If this machine lacks something for a VM, the tests are skipped, or
/// fail in CI.
pub(crate) fn test(kernel: Stock, binaries: &Binaries, filters: &[&str], extent: Extent) -> Tally {
    // Parts that all kernels need are fetched once.
    static FETCHING: Mutex<()> = Mutex::new(());
    let parts = || -> Result<_> {
        let _one = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
        setup::packages(setup::VM)?;
        Ok((Emulator::find(kernel.machine)?, kernel.fetch()?))
    };
    let (emulator, fetched) = match parts() {
        Ok(parts) => parts,
        Err(error) => return lacking(&format!("Linux {}", kernel.name), &error),
    };
    twice(kernel, || {
        let runs = runs(kernel, filters, extent.every_rung);
        boot(&emulator, kernel, &fetched, binaries, &runs, extent.long)
    })
}

/// A skip because this machine lacks something for a VM; a failure in CI.
fn lacking(what: &str, error: &anyhow::Error) -> Tally {
    if setup::in_ci() {
        return Tally::failure(&format!("{what}: {error:#}"));
    }
    println!("skipped {what}: {error:#}");
    Tally::skip()
}

/// Boots; in CI a second time if the VM ended early.
fn twice(kernel: Stock, boot: impl Fn() -> Result<Option<Tally>>) -> Tally {
    let again = || {
        // As with a failed test: in CI it gets a second try, and is named.
        if !setup::in_ci() {
            return Ok(None);
        }
        let line =
            format!("unsteady: Linux {} ended in the middle and was booted once more", kernel.name);
        println!("{line}");
        let mut tally = boot()?;
        tally.iter_mut().for_each(|tally| tally.read(&line, ""));
        Ok(tally)
    };
    match boot().and_then(|tally| tally.map_or_else(again, |tally| Ok(Some(tally)))) {
        Ok(Some(tally)) => tally,
        Ok(None) => Tally::failure(&format!("Linux {}: it ended in the middle", kernel.name)),
        Err(error) => Tally::failure(&format!("Linux {}: {error:#}", kernel.name)),
    }
}

/// The runs in the VM, with the capabilities of the unit only: on the host the tests run with all capabilities.
///
/// With `every_rung`, or if tests are named: all of them on the highest rung, and on the next rung those that depend
/// on it. Otherwise the kernels share the work: the newest is tested on its highest rung with what differs between a
/// stock kernel and the host's; the one in between on the next rung; the oldest with what is specific to old kernels.
/// The tests of every way to die run on each kernel.
fn runs(kernel: Stock, filters: &[&str], every_rung: bool) -> Vec<Run> {
    let caged = |run: Run| Run { caged: true, ..run };
    let named = |its: &'static [&'static str]| if filters.is_empty() { its } else { filters };
    if ARM64.contains(&kernel) {
        // Without fentry the next rung is the highest, and tests must expect that.
        let probes = if kernel.has_fentry() { "all" } else { "kprobe" };
        return vec![Run::new(probes, named(&ON_ARM64))];
    }
    match kernel.words {
        "lockdown=integrity" => return vec![caged(Run::new("all", named(&UNDER_LOCKDOWN)))],
        "lockdown=confidentiality" => {
            return vec![caged(Run::new("all", named(&UNDER_CONFIDENTIALITY)))];
        }
        _ => {}
    }
    let lower = || caged(Run::new("kprobe", filters));
    if every_rung {
        let lower = if filters.is_empty() { lower().marked("rung") } else { lower() };
        return vec![caged(Run::new("all", filters)), lower];
    }
    match kernel.name {
        "5.10" => vec![caged(Run::new("all", &ON_THE_OLDEST))],
        "6.1" => {
            vec![caged(Run::new("all", &IN_BETWEEN)), lower().marked("rung").marked("stock")]
        }
        _ => vec![
            caged(Run::new("all", &[])).marked("stock"),
            caged(Run::new("kprobe", &ON_THE_LOWER_RUNG)),
        ],
    }
}

fn boot(
    emulator: &Emulator,
    kernel: Stock,
    fetched: &kernel::Fetched,
    binaries: &Binaries,
    runs: &[Run],
    long: bool,
) -> Result<Option<Tally>> {
    let script = initramfs::script(runs, binaries.shipped, long);
    let image = image(kernel, fetched, binaries, &script)?;
    let limits = if long { qemu::Limits::LONG } else { qemu::Limits::USUAL };
    qemu::boot(emulator, kernel, &fetched.image, &image, &[], limits)
}

/// Builds the initramfs of a VM for these runs.
fn image(
    kernel: Stock,
    fetched: &kernel::Fetched,
    binaries: &Binaries,
    runs: &str,
) -> Result<PathBuf> {
    let dir = place::target().join("vm").join(kernel.name);
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    initramfs::make(&dir, kernel, fetched, binaries, runs)
}

/// The output of `doctor` on a stock kernel, as JSON.
pub(crate) fn doctor(kernel: Stock, binaries: &Binaries) -> Result<String> {
    setup::packages(setup::VM)?;
    let (emulator, fetched) = (Emulator::find(kernel.machine)?, kernel.fetch()?);
    let image = image(kernel, &fetched, binaries, "support\n")?;
    let mut said = None;
    let limits = qemu::Limits::USUAL;
    qemu::boot_and_hear(&emulator, kernel, &fetched.image, &image, &[], limits, |line| {
        said = said.take().or(line.strip_prefix("ipwatch-support: ").map(str::to_owned));
    })?;
    said.with_context(|| format!("the daemon said nothing on Linux {}", kernel.name))
}

/// Recordings made beside each of these tests (name, test) on the newest stock kernel: by name, the lines of their
/// packed form.
pub(crate) fn recordings(
    binaries: &Binaries,
    cases: &[(&str, &str)],
) -> Result<BTreeMap<String, String>> {
    setup::packages(setup::VM)?;
    let kernel = kernel::KERNELS[0];
    let (emulator, fetched) = (Emulator::find(kernel.machine)?, kernel.fetch()?);
    let runs: Vec<String> =
        cases.iter().map(|(name, test)| format!("recording {name} {test}\n")).collect();
    let image = image(kernel, &fetched, binaries, &runs.concat())?;
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    let hear = |line: &str| {
        let line = line.strip_prefix("ipwatch-recording: ").and_then(|line| line.split_once(' '));
        if let Some((name, packed)) = line {
            said.entry(name.to_owned()).or_default().extend([packed.trim_end(), "\n"]);
        }
    };
    let limits = qemu::Limits::USUAL;
    let tally = qemu::boot_and_hear(&emulator, kernel, &fetched.image, &image, &[], limits, hear)?;
    ensure!(tally.is_some_and(|tally| tally.failed == 0), "a test to be recorded failed");
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The filters of the runs on these probes in a usual run of all tests.
    fn usual_runs(kernel: &str, probes: &str) -> Vec<String> {
        let kernel = named(kernel).unwrap();
        let runs = runs(kernel, &[], false).into_iter().filter(|run| run.probes == probes);
        runs.flat_map(|run| run.args).collect()
    }

    fn has(args: &[String], wanted: &str) -> bool {
        args.iter().any(|arg| wanted.starts_with(arg.as_str()))
    }

    /// On 6.12 the tests' marks select them.
    #[test]
    fn each_way_to_die_is_tried_on_each_kernel() {
        for kernel in ["5.10", "6.1"] {
            for test in ["each_is_found_by_the_sweep", "each_is_found_where", "each_is_found_by_l"]
            {
                let test = format!("ways_to_die::{test}");
                assert!(has(&usual_runs(kernel, "all"), &test), "{kernel} {test}");
            }
        }
        assert!(has(&usual_runs("6.12", "all"), "stock"));
        assert!(has(&usual_runs("6.12", "kprobe"), "ways_to_die::each_is_found_without_a_sweep"));
    }

    #[test]
    fn what_a_kernel_refuses_is_proven_and_named_on_each() {
        let canary = "canary::each_event_is_proven";
        for kernel in ["5.10", "6.12-integrity", "6.12-confidentiality"] {
            assert!(has(&usual_runs(kernel, "all"), canary), "{kernel}");
        }
        let refusal = "probes::a_refusal_is_told_with_what_was_read";
        for kernel in ["6.12-integrity", "6.12-confidentiality"] {
            assert!(has(&usual_runs(kernel, "all"), refusal), "{kernel}");
        }
    }
}
