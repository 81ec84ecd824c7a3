//! `cargo xtask test`: everything there is to test, the quick parts first, the long ones last and
//! with their progress shown. The last line is `N passed, N failed, N skipped`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::build::{self, Binaries};
use crate::tally::Tally;
use crate::{fuzz, kubernetes, place, setup, shell, vm};

/// Parts that can be named with `--only`; any other name is a filter for the tests on this host.
const PARTS: [&str; 5] = ["unit", "e2e", "vm", "systemd", "arm64"];

/// What only touches what a lower rung of the attach ladder changes: repeated there.
pub(crate) const RUNG_AREAS: [&str; 4] = ["map::", "holders::", "stuck::", "identity::"];

/// What netlink and `/proc` alone tell as soon as probes do.
const WITHOUT_PROBES: [&str; 4] = RUNG_AREAS;
/// Areas that are tested once more with the daemon in a container: what it reads of other processes.
const IN_A_CONTAINER: [&str; 2] = ["holders::", "stuck::"];

/// Runs it; `false` when something failed. What cannot even be started is a failure too, so that the
/// last line is there in any case.
pub(crate) fn run(args: &[&str]) -> Result<bool> {
    let wanted = Wanted::parse(args)?;
    let mut tally = Tally::default();
    if let Err(error) = parts(&wanted, &mut tally) {
        println!("FAILED  {error:#}");
        tally.add(&Tally::failure());
    }
    println!("{tally}");
    Ok(tally.failed == 0)
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
                    "usage: cargo xtask test [--only unit|e2e|vm|systemd|arm64|FILTER]... [--cycles NUMBER] \
                     [--repeat NUMBER] [--long]"
                ),
            }
        }
        Ok(wanted)
    }
}

fn parts(wanted: &Wanted<'_>, tally: &mut Tally) -> Result<()> {
    let only = &wanted.only;
    let wants = |part: &str| only.is_empty() || only.contains(&part);
    let filters: Vec<&str> = only.iter().copied().filter(|name| !PARTS.contains(name)).collect();
    if wants("unit") {
        tally.add(&unit()?);
    }
    // With a filter: those tests alone, in their long form.
    if wanted.long && filters.is_empty() {
        tally.add(&live_bolt()?);
        tally.add(&fuzz::all()?);
    }
    // A build of everything and two boots of an emulated machine: too long for every run.
    if only.contains(&"arm64") || (wanted.long && only.is_empty()) {
        tally.add(&vm::arm64()?);
    }
    if filters.is_empty() && !["e2e", "vm", "systemd"].iter().any(|part| wants(part)) {
        return Ok(());
    }
    setup::need_root("testing end to end")?;
    let binaries = build::for_tests()?;
    if wants("e2e") || !filters.is_empty() {
        tally.add(&on_this_host(&binaries, &filters, wanted)?);
    }
    if wants("vm") {
        for kernel in vm::KERNELS {
            tally.add(&vm::test(kernel, &binaries, &[]));
        }
    }
    // A quarter of an hour, for what changes seldom.
    if only.contains(&"systemd") || (wanted.long && only.is_empty()) {
        tally.add(&vm::systemd::test(&vm::KERNELS, &binaries, &[]));
    }
    Ok(())
}

fn unit() -> Result<Tally> {
    println!("== unit tests");
    setup::packages(setup::BUILD)?;
    let words = ["test", "--exclude", "ipwatch-tests", "--exclude", "ipwatch-ebpf", "--workspace"];
    count(&mut build::cargo(&words)?, "")
}

/// What reads a bolt file while bolt itself writes it.
fn live_bolt() -> Result<Tally> {
    println!("== a live bolt file");
    setup::packages(setup::BUILD)?;
    setup::packages(setup::BOLT)?;
    let writer = place::target().join("bolt-writer");
    let mut go = shell::command(&["go", "build", "-o"]);
    go.arg(&writer).arg("tests/bolt/make.go").current_dir(place::repository());
    // Debian's packages are no modules.
    go.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode");
    shell::run(&mut go)?;
    let words = ["test", "-p", "ipwatch", "--lib", "bolt::live_tests"];
    let mut cargo = build::cargo(&words)?;
    count(cargo.args(["--", "--ignored"]).env("IPWATCH_TEST_BOLT_WRITER", writer), "")
}

fn on_this_host(binaries: &Binaries, filters: &[&str], wanted: &Wanted<'_>) -> Result<Tally> {
    setup::packages(setup::E2E)?;
    setup::dockerd()?;
    let rotel = setup::rotel().unwrap_or_else(|error| {
        // The tests that need it say so, and count.
        println!("no collector: {error:#}");
        PathBuf::new()
    });
    let prometheus = setup::prometheus().unwrap_or_else(|error| {
        println!("no Prometheus: {error:#}");
        PathBuf::new()
    });
    let helm = setup::helm().unwrap_or_else(|error| {
        println!("no Helm: {error:#}");
        PathBuf::new()
    });
    let kubernetes = kubernetes::for_tests(&binaries.e2e, filters).unwrap_or_else(|error| {
        println!("no Kubernetes: {error:#}");
        PathBuf::new()
    });
    let e2e = || {
        let mut command = Command::new(&binaries.e2e);
        command.env("IPWATCH_BIN", &binaries.ipwatch).env("IPWATCH_TEST_CRI", &binaries.cri);
        command.env("IPWATCH_TEST_ROTEL", &rotel);
        command.env("IPWATCH_TEST_PROMETHEUS", &prometheus).env("IPWATCH_TEST_HELM", &helm);
        command.env("IPWATCH_TEST_KUBERNETES", &kubernetes);
        command.envs(wanted.cycles.map(|number| ("IPWATCH_TEST_CYCLES", number)));
        command.envs(wanted.long.then_some(("IPWATCH_TEST_LONG", "1")));
        command.args(wanted.repeat.into_iter().flat_map(|number| ["--repeat", number]));
        command
    };
    println!("== end to end on this host");
    // Probes on kernel functions are tested in the VMs, whatever this kernel takes.
    // Nor is a network that is not the tests' own stopped.
    let elsewhere = ["--skip", "tracing::", "--without", "OwnMachine", "--without", "Systemd"];
    let mut tally = count(e2e().args(filters).args(elsewhere), "")?;
    if filters.is_empty() {
        println!("== end to end on this host, without probes");
        let mut command = e2e();
        // The one thing that only a probe's list of files can tell: a netns that nothing but an fd or a
        // socket has held since before the start.
        command.args(["--skip", "holders_of_before_the_start"]);
        command.env("IPWATCH_TEST_PROBES", "off").args(WITHOUT_PROBES);
        tally.add(&count(&mut command, "")?);
        println!("== end to end on this host, in a container");
        let mut command = e2e();
        command.env("IPWATCH_TEST_CONTAINER", "1").args(IN_A_CONTAINER);
        tally.add(&count(&mut command, "")?);
    }
    Ok(tally)
}

/// Runs tests, shows their output as it comes, each line after `prefix`, and adds up what they say. A
/// run that ends badly without a failed test counts as one.
pub(crate) fn count(command: &mut Command, prefix: &str) -> Result<Tally> {
    let mut tally = Tally::default();
    let status = shell::lines(command, |line| {
        println!("{prefix}{line}");
        if let Some(part) = Tally::parse(line) {
            tally.add(&part);
        }
    })?;
    if !status.success() && tally.failed == 0 {
        println!("{prefix}it ended with {status}");
        tally.add(&Tally::failure());
    }
    Ok(tally)
}
