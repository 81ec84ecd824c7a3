//! `cargo xtask test`: runs all tests, the quick parts first. At the end it prints the seconds of its phases and of
//! the slowest tests, and what failed; the last line is `N passed, N failed, N skipped`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::build::{self, Binaries};
use crate::figures::{Origin, Reader};
use crate::phases::Phases;
use crate::tally::Tally;
use crate::{fuzz, instructions, kubernetes, package, place, release, setup, shell, suites, vm};

/// Parts that can be named with `--only`; any other name filters the tests on this host.
const PARTS: [&str; 6] = ["unit", "instructions", "e2e", "vm", "systemd", "arm64"];

/// Number of slow tests that are listed at the end.
const SLOWEST: usize = 30;

/// Runs the tests; `false` if something failed. A part that cannot be started counts as a failure, so that the last
/// line is always printed.
pub(crate) fn run(args: &[&str]) -> Result<bool> {
    let wanted = Wanted::parse(args)?;
    let (mut tally, mut phases) = (Tally::default(), Phases::default());
    if let Err(error) = parts(&wanted, &mut tally, &mut phases) {
        tally.add(&Tally::failure(&format!("{error:#}")));
    }
    print("seconds  phase", &phases.lines());
    print("seconds  test, of the slowest", &tally.slowest(SLOWEST));
    print("failed, or passed only the second time", tally.bad());
    println!("{tally}");
    Ok(tally.failed == 0)
}

/// Prints a table, unless it has no lines.
fn print(head: &str, lines: &[String]) {
    if !lines.is_empty() {
        println!("\n{head}\n{}\n", lines.join("\n"));
    }
}

/// The command line.
#[derive(Default)]
struct Wanted<'a> {
    /// Parts and filters.
    only: Vec<&'a str>,
    /// Length of the healthy run.
    cycles: Option<&'a str>,
    /// How often each test on this host runs.
    repeat: Option<&'a str>,
    /// Includes tests that take long and rarely find something new.
    long: bool,
    /// The end-to-end tests on this host run the release build.
    release: bool,
}

impl<'a> Wanted<'a> {
    fn parse(args: &[&'a str]) -> Result<Self> {
        let mut wanted = Self::default();
        let mut rest = args;
        while !rest.is_empty() {
            rest = match rest {
                ["--long", rest @ ..] => {
                    wanted.long = true;
                    rest
                }
                ["--release", rest @ ..] => {
                    wanted.release = true;
                    rest
                }
                ["--only", part, rest @ ..] => {
                    wanted.only.push(*part);
                    rest
                }
                ["--cycles", number, rest @ ..] if number.parse::<u32>().is_ok() => {
                    wanted.cycles = Some(*number);
                    rest
                }
                ["--repeat", number, rest @ ..] if number.parse::<u32>().is_ok() => {
                    wanted.repeat = Some(*number);
                    rest
                }
                _ => bail!(
                    "usage: cargo xtask test [--only unit|instructions|e2e|vm|systemd|arm64|FILTER]... [--cycles NUMBER] \
                     [--repeat NUMBER] [--long] [--release]"
                ),
            }
        }
        Ok(wanted)
    }

    /// Whether the parts of `--long` that need no root run: what bolt writes, and every fuzz target.
    fn takes_long_over_units(&self) -> bool {
        // With another part, or a filter, only that runs, in its long form.
        self.long && self.only.iter().all(|name| *name == "unit")
    }
}

fn parts(wanted: &Wanted<'_>, tally: &mut Tally, phases: &mut Phases) -> Result<()> {
    let only = &wanted.only;
    let wants = |part: &str| only.is_empty() || only.contains(&part);
    let filters: Vec<&str> = only.iter().copied().filter(|name| !PARTS.contains(name)).collect();
    if wants("unit") {
        phases.run("build: unit tests", unit_build)?;
        tally.add(&phases.run("unit tests", unit)?);
    }
    if wants("instructions") {
        tally.add(&phases.run("instructions of the pure half", instructions::test)?);
    }
    if wanted.takes_long_over_units() {
        tally.add(&phases.run("a live bolt file", live_bolt)?);
        tally.add(&phases.run("fuzz targets", fuzz::all)?);
    }
    // A full build and two boots of an emulated machine take too long for every run.
    if only.contains(&"arm64") || (wanted.long && only.is_empty()) {
        tally.add(&phases.run("cross-built for arm64", vm::arm64)?);
    }
    if filters.is_empty() && !["e2e", "vm", "systemd"].iter().any(|part| wants(part)) {
        return Ok(());
    }
    setup::need_root("testing end to end")?;
    let binaries = phases.run("build: end-to-end tests", build::for_tests)?;
    if wants("e2e") || !filters.is_empty() {
        let shipped =
            wanted.release.then(|| phases.run("build: as it ships", || binaries.shipped()));
        let binaries = shipped.transpose()?.unwrap_or_else(|| binaries.clone());
        on_this_host(&binaries, &filters, wanted, tally, phases)?;
    }
    let systemd = only.contains(&"systemd") || (wanted.long && only.is_empty());
    if !wants("vm") && !systemd {
        return Ok(());
    }
    if wants("vm") {
        // The release build only if everything is tested: it takes as long as half of a VM's tests.
        let shipped = wanted.long.then(|| phases.run("build: as it ships", || binaries.shipped()));
        let binaries = shipped.transpose()?.unwrap_or_else(|| binaries.clone());
        tally.add(&phases.run("end to end on stock kernels (QEMU, emulated)", || {
            let extent = vm::Extent { every_rung: wanted.long, long: wanted.long };
            vm::all(&vm::usual(wanted.long), &binaries, &[], extent)
        }));
    }
    // Takes a quarter of an hour, and changes rarely.
    if systemd {
        let shipped = phases.run("build: as it ships", || binaries.shipped())?;
        let systemd = || vm::systemd::test(&vm::UNDER_SYSTEMD, &shipped, &[]);
        tally.add(&phases.run("under systemd (QEMU, emulated)", systemd));
    }
    Ok(())
}

/// Arguments of cargo for the packages with unit tests.
const UNIT: [&str; 7] = [
    "test",
    "--workspace",
    "--no-fail-fast",
    "--exclude",
    "ipwatch-tests",
    "--exclude",
    "ipwatch-ebpf",
];

fn unit_build() -> Result<()> {
    setup::packages(setup::BUILD)?;
    // Without them the test that packs a release is skipped, and those of ipwatch-ipam fail.
    if setup::is_root() {
        setup::packages(package::TOOLS)?;
        setup::packages(setup::UNIT)?;
    }
    shell::run(build::cargo(&UNIT)?.arg("--no-run"))
}

fn unit() -> Result<Tally> {
    count(&mut build::cargo(&UNIT)?)
}

/// Tests the reader of bolt files while bolt itself writes the file.
fn live_bolt() -> Result<Tally> {
    setup::packages(setup::BUILD)?;
    setup::packages(setup::BOLT)?;
    let writer = place::target().join("bolt-writer");
    let mut go = shell::command(&["go", "build", "-o"]);
    go.arg(&writer).arg("tests/bolt/make.go").current_dir(place::repository());
    // Debian's packages are not modules.
    go.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode");
    shell::run(&mut go)?;
    let words = ["test", "-p", "ipwatch", "--lib", "bolt::tests::live"];
    let mut cargo = build::cargo(&words)?;
    count(cargo.args(["--", "--ignored"]).env("IPWATCH_TEST_BOLT_WRITER", writer))
}

fn on_this_host(
    binaries: &Binaries,
    filters: &[&str],
    wanted: &Wanted<'_>,
    tally: &mut Tally,
    phases: &mut Phases,
) -> Result<()> {
    // It is large, and what it shows changes seldom: without `--long` its test runs where it is there already.
    if wanted.long {
        phases.run("Chromium", || setup::packages(&["chromium"]))?;
    }
    let daemons = phases
        .run("programs that the tests run", || Daemons::get(binaries, filters, wanted.long))?;
    // A release build of another commit takes as long as all unit tests.
    let build_previous = || release::previous_for_tests(binaries, filters);
    let previous = wanted.long.then(|| phases.run("build: the version before", build_previous));
    let previous = or_none("version before", previous.unwrap_or_else(|| Ok(PathBuf::new())));
    let e2e = || {
        let mut command = daemons.command(binaries);
        if !previous.as_os_str().is_empty() {
            command.env("IPWATCH_TEST_PREVIOUS", &previous);
        }
        command.envs(wanted.cycles.map(|number| ("IPWATCH_TEST_CYCLES", number)));
        command.envs(wanted.long.then_some(("IPWATCH_TEST_LONG", "1")));
        command.envs(wanted.release.then_some(("IPWATCH_TEST_SHIPPED", "1")));
        command.args(wanted.repeat.into_iter().flat_map(|number| ["--repeat", number]));
        command
    };
    // Probes on kernel functions are tested in the VMs, even if this kernel supports them. Tests that stop the
    // machine's own network are not run here either.
    let elsewhere = ["--without", "Tracing", "--without", "OwnMachine", "--without", "Systemd"];
    let mut figures = Reader::default();
    tally.add(&phases.run("end to end on this host", || {
        count_and(e2e().args(filters).args(elsewhere), |line| figures.read(line))
    })?);
    // README has the leads of ten runs, and docs the long healthy runs of the release build.
    let ten = wanted.repeat.and_then(|number| number.parse().ok()).is_some_and(|n: u32| n >= 10);
    let is_long = wanted.cycles.is_some() && wanted.release;
    if (ten || is_long) && tally.failed == 0 {
        figures.keep(ten, &Origin::here()?)?;
    }
    if filters.is_empty() {
        tally.add(&phases.run("end to end on this host, without probes", || {
            // Only a probe's list of files shows a netns that nothing but an fd or a socket has held since before the
            // start.
            let skip = ["--marked", "rung", "--skip", "holders_of_before_the_start"];
            count(e2e().args(skip).env("IPWATCH_TEST_PROBES", "off"))
        })?);
        tally.add(&phases.run("end to end on this host, in a container", || {
            count(e2e().args(["--marked", "container"]).env("IPWATCH_TEST_CONTAINER", "1"))
        })?);
    }
    Ok(())
}

/// The path of a program, or an empty one with the reason on stdout: tests that need it are skipped.
fn or_none(name: &str, path: Result<PathBuf>) -> PathBuf {
    path.unwrap_or_else(|error| {
        println!("no {name}: {error:#}");
        PathBuf::new()
    })
}

/// The end-to-end tests on this host, with everything that the selected tests need.
pub(crate) fn end_to_end(binaries: &Binaries, filters: &[&str]) -> Result<Command> {
    Ok(Daemons::get(binaries, filters, false)?.command(binaries))
}

/// Paths of the third-party programs that the end-to-end tests run. A path is empty if the program is not available:
/// tests that need it are skipped with a message.
struct Daemons {
    rotel: PathBuf,
    prometheus: PathBuf,
    helm: PathBuf,
    kubernetes: PathBuf,
    suites: PathBuf,
    release: PathBuf,
}

impl Daemons {
    /// Installs, unpacks or builds the programs that are missing.
    fn get(binaries: &Binaries, filters: &[&str], long: bool) -> Result<Self> {
        setup::packages(setup::E2E)?;
        setup::dockerd()?;
        Ok(Self {
            rotel: or_none("collector", setup::rotel()),
            prometheus: or_none("Prometheus", setup::prometheus()),
            helm: or_none("Helm", setup::helm()),
            kubernetes: or_none("Kubernetes", kubernetes::for_tests(&binaries.e2e, filters)),
            suites: or_none("runtimes", suites::for_tests(&binaries.e2e, filters, long)),
            release: or_none("release", release::for_tests(binaries, filters)),
        })
    }

    /// The test binary with the paths in its environment.
    fn command(&self, binaries: &Binaries) -> Command {
        let mut tests = Command::new(&binaries.e2e);
        tests.env("IPWATCH_BIN", &binaries.ipwatch).env("IPWATCH_TEST_CRI", &binaries.cri);
        tests.env("IPWATCH_TEST_ROTEL", &self.rotel).env("IPWATCH_TEST_HELM", &self.helm);
        tests.env("IPWATCH_TEST_PROMETHEUS", &self.prometheus);
        tests.env("IPWATCH_TEST_KUBERNETES", &self.kubernetes);
        tests.env("IPWATCH_TEST_SUITES", &self.suites);
        tests.env("IPWATCH_TEST_RELEASE", &self.release);
        tests
    }
}

/// Runs tests, shows their output, and sums up their results. If the command fails without a failed test, that counts
/// as a failure.
pub(crate) fn count(command: &mut Command) -> Result<Tally> {
    count_and(command, |_| {})
}

/// Like [`count`], and calls `each` with each line.
fn count_and(command: &mut Command, mut each: impl FnMut(&str)) -> Result<Tally> {
    let mut tally = Tally::default();
    let status = shell::lines(command, |line| {
        println!("{line}");
        each(line);
        tally.read(line, "");
    })?;
    if !status.success() && tally.failed == 0 {
        tally.add(&Tally::failure(&format!("{command:?} ended with {status}")));
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_named_in_its_long_form_runs_without_the_others() {
        let long = |args: &[&str]| Wanted::parse(args).unwrap().takes_long_over_units();
        assert!(long(&["--long"]) && long(&["--long", "--only", "unit"]));
        assert!(!long(&[]) && !long(&["--only", "unit"]));
        assert!(!long(&["--long", "--only", "systemd"]));
        assert!(!long(&["--long", "--only", "fifty_calls"]));
    }
}
