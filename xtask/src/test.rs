//! `cargo xtask test`: everything there is to test, the quick parts first, the long ones last and
//! with their progress shown. At the end stand the seconds of its phases and of the slowest tests, and what failed; the last line is
//! `N passed, N failed, N skipped`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::build::{self, Binaries};
use crate::phases::Phases;
use crate::tally::Tally;
use crate::{fuzz, instructions, kubernetes, place, setup, shell, vm};

/// Parts that can be named with `--only`; any other name is a filter for the tests on this host.
const PARTS: [&str; 6] = ["unit", "instructions", "e2e", "vm", "systemd", "arm64"];

/// Slow tests that are named at the end.
const SLOWEST: usize = 30;

/// Runs it; `false` when something failed. What cannot even be started is a failure too, so that the
/// last line is there in any case.
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

/// A table; nothing where it has no lines.
fn print(head: &str, lines: &[String]) {
    if !lines.is_empty() {
        println!("\n{head}\n{}\n", lines.join("\n"));
    }
}

/// What is asked for.
#[derive(Default)]
struct Wanted<'a> {
    /// Parts, and filters.
    only: Vec<&'a str>,
    /// Length of the healthy run.
    cycles: Option<&'a str>,
    /// How often each test on this host runs.
    repeat: Option<&'a str>,
    /// With what takes long and seldom tells something new.
    long: bool,
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
                     [--repeat NUMBER] [--long]"
                ),
            }
        }
        Ok(wanted)
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
    // With a filter: those tests alone, in their long form.
    if wanted.long && filters.is_empty() {
        tally.add(&phases.run("a live bolt file", live_bolt)?);
        tally.add(&phases.run("fuzz targets", fuzz::all)?);
    }
    // A build of everything and two boots of an emulated machine: too long for every run.
    if only.contains(&"arm64") || (wanted.long && only.is_empty()) {
        tally.add(&phases.run("cross-built for arm64", vm::arm64)?);
    }
    if filters.is_empty() && !["e2e", "vm", "systemd"].iter().any(|part| wants(part)) {
        return Ok(());
    }
    setup::need_root("testing end to end")?;
    let binaries = phases.run("build: end-to-end tests", build::for_tests)?;
    if wants("e2e") || !filters.is_empty() {
        on_this_host(&binaries, &filters, wanted, tally, phases)?;
    }
    let systemd = only.contains(&"systemd") || (wanted.long && only.is_empty());
    if !wants("vm") && !systemd {
        return Ok(());
    }
    if wants("vm") {
        // As it ships only where everything is tested: that build takes as long as half a VM's tests.
        let shipped = wanted.long.then(|| phases.run("build: as it ships", || binaries.shipped()));
        let binaries = shipped.transpose()?.unwrap_or_else(|| binaries.clone());
        tally.add(&phases.run("end to end on stock kernels (QEMU, emulated)", || {
            let extent = vm::Extent { every_rung: wanted.long, long: wanted.long };
            vm::all(&vm::usual(wanted.long), &binaries, &[], extent)
        }));
    }
    // A quarter of an hour, for what changes seldom.
    if systemd {
        let shipped = phases.run("build: as it ships", || binaries.shipped())?;
        let systemd = || vm::systemd::test(&vm::UNDER_SYSTEMD, &shipped, &[]);
        tally.add(&phases.run("under systemd (QEMU, emulated)", systemd));
    }
    Ok(())
}

/// The words of cargo for what has unit tests.
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
    shell::run(build::cargo(&UNIT)?.arg("--no-run"))
}

fn unit() -> Result<Tally> {
    count(&mut build::cargo(&UNIT)?)
}

/// What reads a bolt file while bolt itself writes it.
fn live_bolt() -> Result<Tally> {
    setup::packages(setup::BUILD)?;
    setup::packages(setup::BOLT)?;
    let writer = place::target().join("bolt-writer");
    let mut go = shell::command(&["go", "build", "-o"]);
    go.arg(&writer).arg("tests/bolt/make.go").current_dir(place::repository());
    // Debian's packages are no modules.
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
    let daemons = phases.run("programs that the tests run", || Daemons::get(binaries, filters))?;
    let e2e = || {
        let mut command = daemons.command(binaries);
        command.envs(wanted.cycles.map(|number| ("IPWATCH_TEST_CYCLES", number)));
        command.envs(wanted.long.then_some(("IPWATCH_TEST_LONG", "1")));
        command.args(wanted.repeat.into_iter().flat_map(|number| ["--repeat", number]));
        command
    };
    // Probes on kernel functions are tested in the VMs, whatever this kernel takes.
    // Nor is a network that is not the tests' own stopped.
    let elsewhere = ["--without", "Tracing", "--without", "OwnMachine", "--without", "Systemd"];
    tally.add(
        &phases.run("end to end on this host", || count(e2e().args(filters).args(elsewhere)))?,
    );
    if filters.is_empty() {
        tally.add(&phases.run("end to end on this host, without probes", || {
            // The one thing that only a probe's list of files can tell: a netns that nothing but an fd or a
            // socket has held since before the start.
            let skip = ["--marked", "rung", "--skip", "holders_of_before_the_start"];
            count(e2e().args(skip).env("IPWATCH_TEST_PROBES", "off"))
        })?);
        tally.add(&phases.run("end to end on this host, in a container", || {
            count(e2e().args(["--marked", "container"]).env("IPWATCH_TEST_CONTAINER", "1"))
        })?);
    }
    Ok(())
}

/// The end-to-end tests on this host, with all that those which are named need.
pub(crate) fn end_to_end(binaries: &Binaries, filters: &[&str]) -> Result<Command> {
    Ok(Daemons::get(binaries, filters)?.command(binaries))
}

/// Where the programs of others are that the end-to-end tests run. A path is empty where one cannot be had: the
/// tests that need it say so, and count.
struct Daemons {
    rotel: PathBuf,
    prometheus: PathBuf,
    helm: PathBuf,
    kubernetes: PathBuf,
}

impl Daemons {
    /// Installs, unpacks or builds them, where they are not there yet.
    fn get(binaries: &Binaries, filters: &[&str]) -> Result<Self> {
        setup::packages(setup::E2E)?;
        setup::dockerd()?;
        let or_none = |name: &str, path: Result<PathBuf>| {
            path.unwrap_or_else(|error| {
                println!("no {name}: {error:#}");
                PathBuf::new()
            })
        };
        Ok(Self {
            rotel: or_none("collector", setup::rotel()),
            prometheus: or_none("Prometheus", setup::prometheus()),
            helm: or_none("Helm", setup::helm()),
            kubernetes: or_none("Kubernetes", kubernetes::for_tests(&binaries.e2e, filters)),
        })
    }

    /// The test binary, which is told where they are.
    fn command(&self, binaries: &Binaries) -> Command {
        let mut tests = Command::new(&binaries.e2e);
        tests.env("IPWATCH_BIN", &binaries.ipwatch).env("IPWATCH_TEST_CRI", &binaries.cri);
        tests.env("IPWATCH_TEST_ROTEL", &self.rotel).env("IPWATCH_TEST_HELM", &self.helm);
        tests.env("IPWATCH_TEST_PROMETHEUS", &self.prometheus);
        tests.env("IPWATCH_TEST_KUBERNETES", &self.kubernetes);
        tests
    }
}

/// Runs tests, shows their output as it comes, and adds up what they say. A run that ends badly without a failed
/// test counts as one.
pub(crate) fn count(command: &mut Command) -> Result<Tally> {
    let mut tally = Tally::default();
    let status = shell::lines(command, |line| {
        println!("{line}");
        tally.read(line, "");
    })?;
    if !status.success() && tally.failed == 0 {
        tally.add(&Tally::failure(&format!("{command:?} ended with {status}")));
    }
    Ok(tally)
}
