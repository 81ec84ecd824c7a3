//! Runs the tests, each in a process of its own: a hang or a crash costs one test, what it left is
//! swept, and a missing capability is a counted skip (in CI: a failure).
//!
//! Usage: `e2e [--list|--needs] [--jobs N] [--repeat N] [--marked MARK]… [--skip TEXT]… [--without NEED]… [FILTER…]`.
//! `--needs` lists what the wanted tests need (see [`Need`]); `--marked` runs only those with a [`Mark`], with several of
//! them those that have all; `--without` leaves out what needs something that the place is not meant to have; `--repeat`
//! runs each test N times. The last line it prints is always `N passed, N failed, N skipped`.
//!
//! Most tests wait for most of their time, so that several run at once on each CPU, those that start the most first; one
//! that starts many servers stands for two. Tests marked [`Mark::Alone`] run by themselves, after the others.
//!
//! A test is given three minutes (times patience), so that a hang costs no more.
//!
//! In CI a test that failed is run once more, by itself, after all others. If it passes then, it is
//! counted as passed and named as `unsteady` with what it said the first time: that is a bug to be
//! looked into, in the test or in the product, but no reason to throw an hour's run away.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::lab::TAG_VARIABLE;
use crate::shared::{self, Shared, Stay};
use crate::{Lab, Need, lead, patience, remedy, role, sweep, sys, table};

/// What begins a line that is shown although its test passed.
pub const FIGURE: &str = "FIGURE ";

/// Tests that run at once on each CPU: they mostly wait for a grace, a program or the kernel.
const JOBS_PER_CPU: usize = 3;

/// What begins a line that becomes a row of the table of cases, its cells parted by tabs; see
/// [`case`].
const CASE: &str = "CASE ";
/// The cells of that table.
const CELLS: [&str; 4] = ["case", "finding", "holder named", "resolved by itself"];

/// Enters a case into the table that is printed at the end of the run: what went wrong, the finding that
/// was raised, whom it named, and how it ended. To be called once all of that is shown to be so.
pub fn case(what: &str, code: &str, holder: &str, resolved: &str) {
    println!("{CASE}{what}\t{code}\t{holder}\t{resolved}");
}

/// One test.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    /// `area::what_it_shows`.
    pub name: &'static str,
    /// What the place must offer.
    pub needs: &'static [Need],
    /// How and where it runs.
    pub marks: &'static [Mark],
    /// The test; it fails by panicking.
    pub run: fn(&Lab),
}

/// How and where a test runs, beside what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It loads the machine, or changes something that all share: it runs by itself.
    Alone,
    /// What it shows depends on the kernel: it runs in the VM of each kernel too, when everything is tested.
    Kernel,
    /// Of those, what a stock kernel does otherwise than the host's, or what the host cannot show: it runs in a VM of
    /// every run.
    Stock,
    /// What it shows is learned in another way on each rung of the attach ladder: it runs on the lower ones too.
    Rung,
    /// It reads other processes: it runs with the daemon in a container too.
    Container,
}

/// Lists the tests of a module: `tests! { one, two needs [Fuse], three @ Alone Kernel }`. A test that is
/// forgotten here is dead code, which the compiler reports.
#[macro_export]
macro_rules! tests {
    ($($name:ident $(needs [$($need:ident),*])? $(@ $($mark:ident)+)?),* $(,)?) => {
        pub(crate) const TESTS: &[$crate::Test] = &[$($crate::Test {
            name: concat!(module_path!(), "::", stringify!($name)),
            needs: &[$($($crate::Need::$need),*)?],
            marks: &[$($($crate::harness::Mark::$mark),+)?],
            run: $name,
        }),*];
    };
}

impl Test {
    fn is(&self, mark: Mark) -> bool {
        self.marks.contains(&mark)
    }

    /// How much it starts before it can begin. The longest tests are not to begin last.
    fn effort(&self) -> usize {
        self.needs.iter().map(|need| need.effort()).sum::<usize>() * 10 + self.needs.len()
    }

    /// How many of the tests that may run at once it stands for.
    fn weight(&self, jobs: usize) -> usize {
        let servers = self.needs.iter().map(|need| need.effort()).max().unwrap_or(0);
        // A kubelet costs much to start, and then waits as everybody does.
        if self.is(Mark::Alone) { jobs } else { servers.clamp(1, jobs.min(2)) }
    }
}

enum Outcome {
    /// With the lines it marked for people to read (`FIGURE …`).
    Passed(Duration, String),
    Failed {
        took: Duration,
        why: String,
        log: String,
    },
    Skipped(String),
}

#[derive(Default)]
struct Count {
    passed: usize,
    failed: Vec<Test>,
    skipped: usize,
    cases: Vec<String>,
    /// What the tests that measure leads said of them, also those that failed.
    leads: lead::Table,
    /// The commands of findings, also of tests that failed.
    commands: remedy::Forms,
}

struct Options {
    filters: Vec<String>,
    skips: Vec<String>,
    without: Vec<String>,
    marked: Vec<String>,
    jobs: usize,
    repeat: usize,
    list: bool,
    needs: bool,
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// `main` of a test binary.
#[must_use]
pub fn main(tests: &[&[Test]]) -> ExitCode {
    role::play();
    if let Some(code) = shared::keep() {
        return code;
    }
    let all: Vec<Test> = tests.iter().flat_map(|tests| tests.iter().copied()).collect();
    if let Ok(name) = std::env::var("IPWATCH_TEST_ONE") {
        return run_one(&all, &name);
    }
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let wanted: Vec<Test> = all.into_iter().filter(|test| options.wants(test)).collect();
    if wanted.is_empty() && !options.needs {
        eprintln!("no test here is named or marked so: --list shows all");
        return ExitCode::from(2);
    }
    if options.list {
        wanted.iter().for_each(|test| println!("{}", short(test)));
        return ExitCode::SUCCESS;
    }
    if options.needs {
        let needs: BTreeSet<String> =
            wanted.iter().flat_map(|test| test.needs).map(|need| format!("{need:?}")).collect();
        needs.iter().for_each(|need| println!("{need}"));
        return ExitCode::SUCCESS;
    }
    if wanted.iter().any(|test| test.needs.contains(&Need::Runc)) {
        crate::netns::share_names();
    }
    let whole = options.filters.is_empty() && options.marked.is_empty();
    run_all(&wanted.repeat(options.repeat), options.jobs, whole)
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        filters: Vec::new(),
        skips: Vec::new(),
        without: Vec::new(),
        marked: Vec::new(),
        jobs: JOBS_PER_CPU * std::thread::available_parallelism().map_or(1, usize::from),
        repeat: 1,
        list: false,
        needs: false,
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => options.list = true,
            "--needs" => options.needs = true,
            "--skip" => options.skips.push(args.next().ok_or("--skip needs a text")?),
            "--without" => options.without.push(args.next().ok_or("--without needs a name")?),
            "--marked" => options.marked.push(args.next().ok_or("--marked needs a mark")?),
            "--jobs" => options.jobs = number(&mut args).ok_or("--jobs needs a number")?,
            "--repeat" => options.repeat = number(&mut args).ok_or("--repeat needs a number")?,
            // libtest's flags, which cargo's users type out of habit.
            "--nocapture" | "--test-threads=1" => options.jobs = 1,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            _ => options.filters.push(arg),
        }
    }
    Ok(options)
}

fn number(args: &mut impl Iterator<Item = String>) -> Option<usize> {
    args.next().and_then(|text| text.parse().ok()).filter(|number| *number > 0)
}

impl Options {
    fn wants(&self, test: &Test) -> bool {
        let name = short(test);
        (self.filters.is_empty() || self.filters.iter().any(|text| name.contains(text)))
            && !self.skips.iter().any(|text| name.contains(text))
            && !test.needs.iter().any(|need| self.without.contains(&format!("{need:?}")))
            && self.marked.iter().all(|mark| {
                test.marks.iter().any(|has| format!("{has:?}").eq_ignore_ascii_case(mark))
            })
    }
}

/// The name without the crate's.
fn short(test: &Test) -> &'static str {
    test.name.split_once("::").map_or(test.name, |(_, rest)| rest)
}

/// In the test's own process.
fn run_one(all: &[Test], name: &str) -> ExitCode {
    let test = all.iter().find(|test| short(test) == name).expect("a test of this name");
    // The runner may be killed: the test and its helpers then end too.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let lab = Lab::open().expect("a lab");
    (test.run)(&lab);
    ExitCode::SUCCESS
}

/// Runs them; where they are the whole, every form of command of a finding must have been run by one of them.
fn run_all(tests: &[Test], jobs: usize, whole: bool) -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        eprintln!("these tests make network namespaces: run them as root");
        return ExitCode::from(2);
    }
    catch_interrupt();
    let (count, shared) = (Mutex::new(Count::default()), Shared::new(tests, jobs));
    let done = AtomicUsize::new(0);
    let mut waiting: Vec<Test> = tests.to_vec();
    waiting.sort_by_key(|test| (test.is(Mark::Alone), std::cmp::Reverse(test.effort())));
    let (free, freed) = (Mutex::new(jobs), Condvar::new());
    let lock = || free.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        let mut room = lock();
        while !waiting.is_empty() && !INTERRUPTED.load(Ordering::Relaxed) {
            // Whoever waits for the whole machine waits at the end.
            let Some(next) = waiting.iter().position(|test| test.weight(jobs) <= *room) else {
                room = freed.wait(room).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let test = waiting.remove(next);
            *room -= test.weight(jobs);
            let (count, done, lock, freed, shared) = (&count, &done, &lock, &freed, &shared);
            scope.spawn(move || {
                let outcome = run(&test, shared);
                let number = done.fetch_add(1, Ordering::Relaxed) + 1;
                tell(&test, &outcome, number, tests.len(), count);
                *lock() += test.weight(jobs);
                freed.notify_one();
            });
        }
    });
    let mut count = count.into_inner().unwrap_or_else(PoisonError::into_inner);
    if in_ci() && !INTERRUPTED.load(Ordering::Relaxed) {
        try_again(&mut count, &shared);
    }
    drop(shared);
    let rows = count.cases.iter().map(|row| row.split('\t').map(str::to_owned).collect());
    table::print(CELLS, rows.collect());
    count.leads.print();
    let all_ran = count.commands.print() || !whole;
    for test in &count.failed {
        println!("failed: {}", short(test));
    }
    if !all_ran {
        println!("failed: every command of a finding is run by a test");
    }
    let failed = count.failed.len() + usize::from(!all_ran);
    println!("{} passed, {failed} failed, {} skipped", count.passed, count.skipped);
    let good = failed == 0 && !INTERRUPTED.load(Ordering::Relaxed);
    ExitCode::from(u8::from(!good))
}

/// The second chance of what failed: each alone. A machine that is held up fails several at once. Where more failed,
/// there is nothing unsteady about it.
fn try_again(count: &mut Count, shared: &Shared) {
    const SETTLED: Duration = Duration::from_secs(30);
    const MOST: usize = 12;
    if count.failed.len() > MOST {
        return;
    }
    if !count.failed.is_empty() {
        // The last tests leave a thousand netns behind, which the kernel takes down one after the other (`cleanup_net`):
        // until then no other one ends.
        std::thread::sleep(SETTLED);
    }
    for test in std::mem::take(&mut count.failed) {
        match run(&test, shared) {
            Outcome::Passed(_, log) => {
                count.passed += 1;
                count.cases.extend(cases(&log));
                count.leads.read(&log);
                count.commands.read(short(&test), &log);
                println!("unsteady: {} failed and then passed by itself", short(&test));
            }
            Outcome::Skipped(why) | Outcome::Failed { why, .. } => {
                println!("FAILED  again: {}: {why}", short(&test));
                count.failed.push(test);
            }
        }
    }
}

fn cases(log: &str) -> impl Iterator<Item = String> {
    log.lines().filter_map(|line| line.strip_prefix(CASE)).map(str::to_owned)
}

fn tell(test: &Test, outcome: &Outcome, number: usize, of: usize, count: &Mutex<Count>) {
    let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
    let name = short(test);
    match outcome {
        Outcome::Passed(took, figures) => {
            count.passed += 1;
            println!("ok      {number:>2}/{of} {name} ({:.1} s)", took.as_secs_f32());
            for figure in figures.lines().filter_map(|line| line.strip_prefix(FIGURE)) {
                println!("        {figure}");
            }
            count.cases.extend(cases(figures));
            count.leads.read(figures);
            count.commands.read(name, figures);
        }
        Outcome::Skipped(why) => {
            count.skipped += 1;
            println!("skipped {number:>2}/{of} {name}: {why}");
        }
        Outcome::Failed { took, why, log } => {
            count.failed.push(*test);
            count.leads.read(log);
            count.commands.read(name, log);
            let took = took.as_secs_f32();
            println!(
                "FAILED  {number:>2}/{of} {name} ({took:.1} s): {why}\n---- {name}\n{}\n----",
                log.trim()
            );
        }
    }
}

/// In the runner: one test from its start to the end of what it left.
fn run(test: &Test, shared: &Shared) -> Outcome {
    let missing = test.needs.iter().find_map(|need| Some((need, need.missing()?)));
    if let Some((need, why)) = missing {
        return if in_ci() && !need.may_be_missing() {
            let why = format!("missing here: {why}");
            Outcome::Failed { took: Duration::ZERO, why, log: String::new() }
        } else {
            Outcome::Skipped(why)
        };
    }
    let stays = match shared.enter(test) {
        Ok(stays) => stays,
        Err(why) => return Outcome::Failed { took: Duration::ZERO, why, log: String::new() },
    };
    let tag = new_tag();
    let log = std::env::temp_dir().join(format!("{tag}.log"));
    let began = Instant::now();
    let verdict = spawn(test, &tag, &log, &stays).and_then(|child| watch(child, began));
    sweep::sweep(&tag);
    drop(stays);
    let text = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    let took = began.elapsed();
    match verdict {
        Ok(None) => Outcome::Passed(took, text),
        Ok(Some(why)) => Outcome::Failed { took, why, log: text },
        Err(error) => Outcome::Failed { took, why: format!("cannot run it: {error}"), log: text },
    }
}

/// A tag that nothing of this run has.
pub(crate) fn new_tag() -> String {
    static SERIAL: AtomicUsize = AtomicUsize::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    format!("iw{}n{serial}", std::process::id())
}

/// Whether the run was interrupted.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

fn spawn(
    test: &Test,
    tag: &str,
    log: &std::path::Path,
    stays: &[Stay<'_>],
) -> std::io::Result<std::process::Child> {
    let log = File::create(log)?;
    Command::new(std::env::current_exe()?)
        .env(TAG_VARIABLE, tag)
        .env("IPWATCH_TEST_ONE", short(test))
        .envs(stays.iter().map(Stay::env))
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

/// Waits for a test; `Some` says why it failed.
fn watch(mut child: std::process::Child, began: Instant) -> std::io::Result<Option<String>> {
    // A long healthy run needs its time, and one of random changes ten minutes; everything else is done long before.
    let long = if is_long() { Duration::from_secs(720) } else { Duration::ZERO };
    let longer =
        long + Duration::from_secs(4) * cycles().and_then(|n| n.try_into().ok()).unwrap_or(0);
    let limit = Duration::from_secs(180) * patience() + longer;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| match status.code() {
                Some(_) => "panicked".to_owned(),
                None => status.to_string(),
            }));
        }
        let late = began.elapsed() > limit;
        if late || INTERRUPTED.load(Ordering::Relaxed) {
            let _ = child.kill();
            let _ = child.wait();
            let why = if late {
                format!("not done in {} s", limit.as_secs())
            } else {
                "interrupted".into()
            };
            return Ok(Some(why));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How long the healthy run is to be, `IPWATCH_TEST_CYCLES`; `None`: as long as usual.
#[must_use]
pub fn cycles() -> Option<usize> {
    std::env::var("IPWATCH_TEST_CYCLES").ok()?.parse().ok()
}

/// Whether what takes long and seldom tells something new is wanted too, `IPWATCH_TEST_LONG`.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("IPWATCH_TEST_LONG").is_some() || cycles().is_some()
}

/// Ctrl-C ends the running tests, which are then swept as ever.
fn catch_interrupt() {
    extern "C" fn interrupted(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        sys::on_signal(signal, interrupted);
    }
}

/// Whether this is a CI run, by the variable that CI systems set.
#[must_use]
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}
