//! The end-to-end tests on stock Debian kernels in QEMU, where probes may stand on rungs that this
//! machine's own kernel may refuse: fentry, and kprobe with fentry forbidden.

mod emulator;
mod initramfs;
mod kernel;
mod qemu;
pub(crate) mod systemd;

use anyhow::{Context as _, Result, bail};

use crate::build::{self, Binaries};
use crate::tally::Tally;
use crate::test::RUNG_AREAS;
use crate::{place, setup};

use self::emulator::Emulator;
pub(crate) use kernel::{KERNELS, Stock};

/// What a VM has no parts for, and what an emulated CPU is too slow for.
const NOT_IN_A_VM: [&str; 16] = [
    "--without",
    "Containerd",
    "--without",
    "Runc",
    "--without",
    "Dockerd",
    "--without",
    "Podman",
    "--without",
    "Rotel",
    "--without",
    "Prometheus",
    "--without",
    "Systemd",
    "--skip",
    "scale::",
];

/// One run of the test binary inside.
#[derive(Debug)]
pub(crate) struct Run {
    /// `IPWATCH_TEST_PROBES`.
    pub(crate) probes: &'static str,
    /// Arguments.
    pub(crate) args: Vec<String>,
}

impl Run {
    fn new(probes: &'static str, filters: &[&str]) -> Self {
        let args = filters.iter().copied().chain(NOT_IN_A_VM);
        Self { probes, args: args.map(str::to_owned).collect() }
    }
}

/// `cargo xtask vm [systemd] [KERNEL]… [-- FILTER…]`.
pub(crate) fn command(args: &[&str]) -> Result<bool> {
    let mut halves = args.splitn(2, |arg| *arg == "--");
    let (named, filters) = (halves.next().unwrap_or(&[]), halves.next().unwrap_or(&[]));
    let (by_systemd, named) = match named {
        ["systemd", named @ ..] => (true, named),
        _ => (false, named),
    };
    let mut kernels = Vec::new();
    for name in named {
        match KERNELS.iter().find(|kernel| kernel.name == *name) {
            Some(kernel) => kernels.push(*kernel),
            None => bail!("no kernel {name:?}; there are 6.1 and 6.12"),
        }
    }
    if kernels.is_empty() {
        kernels.extend(KERNELS);
    }
    let binaries = build::for_tests()?;
    let mut tally = Tally::default();
    if by_systemd {
        tally = systemd::test(&kernels, &binaries, filters);
    } else {
        kernels.iter().for_each(|kernel| tally.add(&test(*kernel, &binaries, filters)));
    }
    println!("{tally}");
    Ok(tally.failed == 0)
}

/// Boots one kernel and runs the tests in it. What this machine lacks for a VM is a skip, and in CI
/// a failure.
pub(crate) fn test(kernel: Stock, binaries: &Binaries, filters: &[&str]) -> Tally {
    println!("== end to end on Linux {} (QEMU, emulated: some minutes)", kernel.name);
    let parts = || -> Result<_> {
        setup::packages(setup::VM)?;
        Ok((Emulator::find()?, kernel.fetch()?))
    };
    let (emulator, fetched) = match parts() {
        Ok(parts) => parts,
        Err(error) => return lacking(&format!("Linux {}", kernel.name), &error),
    };
    twice(kernel, || boot(&emulator, kernel, &fetched, binaries, &runs(filters)))
}

/// What this machine lacks for a VM: a skip, and in CI a failure.
fn lacking(what: &str, error: &anyhow::Error) -> Tally {
    if setup::in_ci() {
        println!("FAILED  {what}: {error:#}");
        return Tally::failure();
    }
    println!("skipped {what}: {error:#}");
    Tally::skip()
}

/// Boots, in CI once more where it ended in the middle.
fn twice(kernel: Stock, boot: impl Fn() -> Result<Option<Tally>>) -> Tally {
    let again = || {
        // As with a test that fails: in CI it has a second try, and is named.
        if !setup::in_ci() {
            return Ok(None);
        }
        println!("unsteady: Linux {} ended in the middle and is booted once more", kernel.name);
        boot()
    };
    match boot().and_then(|tally| tally.map_or_else(again, |tally| Ok(Some(tally)))) {
        Ok(Some(tally)) => tally,
        Ok(None) => Tally::failure(),
        Err(error) => {
            println!("FAILED  Linux {}: {error:#}", kernel.name);
            Tally::failure()
        }
    }
}

/// First all tests on the highest rung, then what a rung changes on the next one.
fn runs(filters: &[&str]) -> Vec<Run> {
    let lower = if filters.is_empty() { RUNG_AREAS.as_slice() } else { filters };
    vec![Run::new("all", filters), Run::new("kprobe", lower)]
}

fn boot(
    emulator: &Emulator,
    kernel: Stock,
    fetched: &kernel::Fetched,
    binaries: &Binaries,
    runs: &[Run],
) -> Result<Option<Tally>> {
    let dir = place::target().join("vm").join(kernel.name);
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let image = initramfs::make(&dir, fetched, binaries, runs)?;
    qemu::boot(emulator, kernel, &fetched.image, &image, &[])
}
