//! Runs the tests, each in a separate process: a hang or a crash affects one test, what it left is swept, and a
//! missing capability is a counted skip (in CI: a failure).
//!
//! Usage: `e2e [--list|--needs] [--jobs N] [--repeat N] [--marked MARK]… [--skip TEXT]… [--without NEED]… [FILTER…]`.
//! `--needs` lists the needs of the selected tests (see [`Need`]); `--marked` selects tests with a [`Mark`], given
//! several times those with all marks; `--without` excludes tests with a need that the machine is not meant to
//! fulfil; `--repeat` runs each test N times. The last line is always `N passed, N failed, N skipped`.
//!
//! Most tests mainly wait, so several run at the same time on each CPU, those with the most services first; one that
//! starts many servers counts as two. Tests marked [`Mark::Alone`] run alone, after the others.
//!
//! The time limit of a test is three minutes (times patience).
//!
//! In CI a failed test is run again, alone, after all others. If it passes then, it counts as passed and is listed as
//! `unsteady` with the output of its failure: a bug in the test or in the product that must be looked into, but no
//! reason to discard an hour's run.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::lab::TAG_VARIABLE;
use crate::shared::{self, Shared, Stay};
use crate::{Lab, Need, lead, patience, remedy, role, sweep, sys, table};

/// Prefix of a line that is shown even if its test passes.
pub const FIGURE: &str = "FIGURE ";

/// Number of tests that run at the same time on each CPU: they mostly wait for a grace, a program or the kernel.
const JOBS_PER_CPU: usize = 3;

/// Prefix of a line that becomes a row of the table of cases; its cells are separated by tabs. See [`case`].
const CASE: &str = "CASE ";
/// The columns of that table.
const CELLS: [&str; 4] = ["case", "finding", "holder named", "resolved by itself"];

/// Adds a case to the table that is printed at the end of the run: what went wrong, the finding, the holder that it
/// named, and how it ended. Must be called after all of that was verified.
pub fn case(what: &str, code: &str, holder: &str, resolved: &str) {
    println!("{CASE}{what}\t{code}\t{holder}\t{resolved}");
}

/// One test.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    pub name: &'static str,
    /// What the machine must offer.
    pub needs: &'static [Need],
    /// How and where it runs.
    pub marks: &'static [Mark],
    /// The test function; it fails by panicking.
    pub run: fn(&Lab),
}

/// How and where a test runs, besides its needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It loads the machine, or changes something global: it runs alone.
    Alone,
    /// Its result depends on the kernel: if everything is tested, it also runs in the VM of each kernel.
    Kernel,
    /// A kernel test in which a stock kernel differs from the host's, or that the host cannot run: it runs in a VM in
    /// every run.
    Stock,
    /// Its subject is observed differently on each rung of the attach ladder: it also runs on the lower ones.
    Rung,
    /// It reads other processes: it also runs with the daemon in a container.
    Container,
    /// It takes long, and rarely finds something new: it runs with `--long` only.
    Long,
}

/// Lists the tests of a module: `tests! { one, two needs [Fuse], three @ Alone Kernel }`. A test that is not listed
/// is dead code, which the compiler reports.
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

    /// How much it starts, for the order of tests: the longest must not start last.
    fn effort(&self) -> usize {
        self.needs.iter().map(|need| need.effort()).sum::<usize>() * 10 + self.needs.len()
    }

    /// How many concurrent tests it counts as.
    fn weight(&self, jobs: usize) -> usize {
        let servers = self.needs.iter().map(|need| need.effort()).max().unwrap_or(0);
        // A kubelet is expensive to start, but then it mostly waits.
        if self.is(Mark::Alone) { jobs } else { servers.clamp(1, jobs.min(2)) }
    }
}

enum Outcome {
    /// With its lines marked `FIGURE …`.
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
    /// The leads that tests measured, including failed tests.
    leads: lead::Table,
    /// The commands of findings, including those of failed tests.
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
    let shares = |need: &Need| {
        matches!(need, Need::Runc | Need::Bookworm | Need::Trixie | Need::Sid | Need::Podman)
    };
    if wanted.iter().any(|test| test.needs.iter().any(shares)) {
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
            // libtest's flags, which users of cargo are used to.
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
            && (is_long() || !test.is(Mark::Long))
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

/// Runs a test, in its own process.
fn run_one(all: &[Test], name: &str) -> ExitCode {
    let test = all.iter().find(|test| short(test) == name).expect("a test of this name");
    // If the runner is killed, the test and its helpers must end too.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let lab = Lab::open().expect("a lab");
    (test.run)(&lab);
    ExitCode::SUCCESS
}

/// Runs the tests. If they are the complete suite, every form of command in a finding must have been run by one of
/// them.
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
            // A test that needs the whole machine waits until the end.
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

/// The second try of failed tests, each alone: a machine that is delayed fails several at once. If too many failed,
/// there is no second try.
fn try_again(count: &mut Count, shared: &Shared) {
    const SETTLED: Duration = Duration::from_secs(30);
    const MOST: usize = 12;
    if count.failed.len() > MOST {
        return;
    }
    if !count.failed.is_empty() {
        // The last tests leave a thousand netns behind, which the kernel destroys one after the other
        // (`cleanup_net`); until then the end of any other netns is delayed.
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

/// In the runner: runs a test and sweeps after it.
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
        Ok(Some(why)) => {
            let why = panic_of(&text).map_or(why, |what| format!("panicked at {what}"));
            Outcome::Failed { took, why, log: text }
        }
        Err(error) => Outcome::Failed { took, why: format!("cannot run it: {error}"), log: text },
    }
}

/// Where and with which words a test panicked first, in one line that is not long: a report of CI may show no more.
fn panic_of(log: &str) -> Option<String> {
    const LONGEST: usize = 600;
    let mut lines = log.lines().skip_while(|line| !line.starts_with("thread '"));
    let (_, at) = lines.next()?.split_once(" panicked at ")?;
    let is_message = |line: &&str| !line.starts_with("note: run with");
    let words = lines.take_while(is_message).flat_map(str::split_whitespace);
    let said = std::iter::once(at).chain(words).collect::<Vec<_>>().join(" ");
    Some(said.chars().take(LONGEST).collect())
}

/// A tag that is unique in this run.
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

/// Waits for a test; `Some` is the reason of its failure.
fn watch(mut child: std::process::Child, began: Instant) -> std::io::Result<Option<String>> {
    // A long healthy run takes this time, and one of random changes ten minutes; all other tests end long before.
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

/// The length of the healthy run, `IPWATCH_TEST_CYCLES`; `None`: the default.
#[must_use]
pub fn cycles() -> Option<usize> {
    std::env::var("IPWATCH_TEST_CYCLES").ok()?.parse().ok()
}

/// Whether tests that take long and rarely find something new must run too, `IPWATCH_TEST_LONG`.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("IPWATCH_TEST_LONG").is_some() || cycles().is_some()
}

/// On Ctrl-C the running tests are ended, and swept as usual.
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
