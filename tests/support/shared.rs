//! What tests share, because its start costs more than what most of them do with it: a containerd, an API server
//! with its etcd, and a daemon. Each runs in a process of this binary that has a lab of its own, as a test has, and is
//! swept like one.
//!
//! The runner starts one for the first test that declares it, gives each test a slot in it, and ends it when no test is
//! left that declares it, or when the run ends in any other way. What a slot is, the part says: see
//! [`crate::pod::Containerd::shared`], [`crate::kubernetes::ControlPlane::shared`], [`crate::Daemon::shared`].
//!
//! Only tests that leave it as it is may share it. Whatever crashes, wipes, slows down or reconfigures has its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::harness::{self, Test};
use crate::kubernetes::{self, ControlPlane};
use crate::lab::TAG_VARIABLE;
use crate::pod::{self, Containerd, Setup};
use crate::{Daemon, Lab, Need, patience, sweep};

/// Which part a process keeps running.
const KEEP: &str = "IPWATCH_TEST_KEEP";
/// How many slots it is to have.
const SLOTS: &str = "IPWATCH_TEST_SLOTS";
/// In its lab, once it can be used.
const READY: &str = "ready";
/// Slots beyond the tests that run at once: a slot whose test left something behind is not used again.
const SPARE: usize = 4;
/// How long a start may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A part that can be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A containerd. A slot is a handler of its runtime, with a network of its own.
    Pods,
    /// etcd and kube-apiserver. A slot is the name of a node, whose kubelet is let in.
    ApiServer,
    /// A daemon. Its slots do not differ: it watches the whole machine in any case.
    Daemon,
}

impl Part {
    const ALL: [Part; 3] = [Part::Pods, Part::ApiServer, Part::Daemon];

    fn need(self) -> Need {
        match self {
            Part::Pods => Need::Pods,
            Part::ApiServer => Need::SharedApiServer,
            Part::Daemon => Need::SharedDaemon,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Part::Pods => "containerd",
            Part::ApiServer => "API server",
            Part::Daemon => "daemon",
        }
    }

    /// In the environment of a test: the part's tag and the test's slot.
    fn variable(self) -> &'static str {
        match self {
            Part::Pods => "IPWATCH_TEST_SHARED_CONTAINERD",
            Part::ApiServer => "IPWATCH_TEST_SHARED_API_SERVER",
            Part::Daemon => "IPWATCH_TEST_SHARED_DAEMON",
        }
    }

    /// Whether a test that has ended left nothing in its slot.
    fn is_free(self, home: &Path, slot: usize) -> bool {
        match self {
            Part::Pods => pod::shared::is_free(home, slot),
            Part::ApiServer => kubernetes::shared::is_free(home, slot),
            Part::Daemon => true,
        }
    }
}

/// In a test: the lab of a part that it shares, and the test's slot.
pub(crate) fn joined(part: Part) -> (PathBuf, usize) {
    let said = std::env::var(part.variable());
    let said = said.unwrap_or_else(|_| panic!("a test that declares needs [{:?}]", part.need()));
    let (tag, slot) = said.split_once(':').expect("a tag and a slot");
    (Lab::dir_of(tag), slot.parse().expect("a number"))
}

/// In a process of its own: keeps a part running until the runner closes the standard input or is gone. Returns at
/// once where the environment names none.
pub(crate) fn keep() -> Option<ExitCode> {
    let name = std::env::var(KEEP).ok()?;
    let part = Part::ALL.into_iter().find(|part| part.name() == name).expect("a part");
    let slots = std::env::var(SLOTS).expect("a number of slots").parse().expect("a number");
    let lab = Lab::open().expect("a lab");
    let mut ended: Box<dyn FnMut() -> Option<String> + '_> = match part {
        Part::Pods => {
            let mut own = Containerd::start_as(&lab, &Setup { slots, ..Setup::default() });
            Box::new(move || own.ended())
        }
        Part::ApiServer => {
            let mut own = ControlPlane::start_for(&lab, slots);
            Box::new(move || own.ended())
        }
        Part::Daemon => {
            let mut own = Daemon::start_shared(&lab);
            Box::new(move || own.has_ended())
        }
    };
    fs::write(lab.dir().join(READY), "").expect("say that it is ready");
    let over = std::thread::spawn(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    while !over.is_finished() {
        if let Some(status) = ended() {
            println!("the shared {name} ended by itself: {status}");
            return Some(ExitCode::FAILURE);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Some(ExitCode::SUCCESS)
}

/// In the runner: the parts of one run. Dropped, it ends them all.
pub(crate) struct Shared {
    places: [Mutex<Place>; Part::ALL.len()],
}

/// What there is of a part.
struct Place {
    part: Part,
    /// Tests of this run that declare it and have not ended.
    wanted: usize,
    slots: usize,
    running: Option<Running>,
}

/// A part that runs.
struct Running {
    tag: String,
    keeper: Child,
    log: PathBuf,
    free: Vec<usize>,
    /// Slots that tests have now.
    taken: usize,
}

/// A test's stay in a part. To be dropped when the test is swept.
pub(crate) struct Stay<'a> {
    place: &'a Mutex<Place>,
    tag: String,
    slot: usize,
    variable: &'static str,
}

impl Shared {
    /// For these tests, of which so many run at once.
    pub(crate) fn new(tests: &[Test], jobs: usize) -> Self {
        let place = |part: Part| {
            let wanted = tests.iter().filter(|test| test.needs.contains(&part.need())).count();
            Mutex::new(Place { part, wanted, slots: jobs + SPARE, running: None })
        };
        Self { places: Part::ALL.map(place) }
    }

    /// Has a test take part in what it declares. An error says what cannot be had.
    pub(crate) fn enter(&self, test: &Test) -> Result<Vec<Stay<'_>>, String> {
        // One that is being started keeps nobody waiting who does not declare it.
        let places = Part::ALL.into_iter().zip(&self.places);
        let declared = places.filter(|(part, _)| test.needs.contains(&part.need()));
        declared.map(|(_, place)| Stay::begin(place)).collect()
    }
}

impl Stay<'_> {
    fn begin(place: &Mutex<Place>) -> Result<Stay<'_>, String> {
        let mut held = lock(place);
        let variable = held.part.variable();
        let taken = held.take();
        if taken.is_err() {
            held.leave();
        }
        let (tag, slot) = taken?;
        Ok(Stay { place, tag, slot, variable })
    }

    /// For the environment of the test.
    pub(crate) fn env(&self) -> (&'static str, String) {
        (self.variable, format!("{}:{}", self.tag, self.slot))
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let mut place = lock(self.place);
        let free = place.part.is_free(&Lab::dir_of(&self.tag), self.slot);
        // It may have been started anew meanwhile.
        if let Some(running) = place.running.as_mut().filter(|running| running.tag == self.tag) {
            running.taken -= 1;
            if free {
                running.free.push(self.slot);
            } else {
                println!("        {}: slot {} is not used again", self.tag, self.slot);
            }
        }
        place.leave();
    }
}

impl Place {
    /// A slot for a test, and the tag of what it is a slot of.
    fn take(&mut self) -> Result<(String, usize), String> {
        if let Some(running) = &mut self.running {
            let ended = running.keeper.try_wait().map_or(true, |status| status.is_some());
            // One without a slot has had many tests that left something in it.
            if ended || (running.free.is_empty() && running.taken == 0) {
                println!("        the shared {} is started anew", self.part.name());
                self.end();
            }
        }
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        let running = self.running.as_mut().ok_or("it is not running")?;
        let slot = running.free.pop().ok_or("what is shared has no slot left")?;
        running.taken += 1;
        Ok((running.tag.clone(), slot))
    }

    /// A test has ended.
    fn leave(&mut self) {
        self.wanted = self.wanted.saturating_sub(1);
        if self.wanted == 0 {
            self.end();
        }
    }

    fn start(&self) -> Result<Running, String> {
        let name = self.part.name();
        let tag = harness::new_tag();
        let log = std::env::temp_dir().join(format!("{tag}.log"));
        let began = Instant::now();
        let keeper = self.spawn(&tag, &log).map_err(|error| format!("shared {name}: {error}"))?;
        let free = (0..self.slots).rev().collect();
        let mut running = Running { tag, keeper, log, free, taken: 0 };
        let ready = Lab::dir_of(&running.tag).join(READY);
        let why = loop {
            if ready.exists() {
                let took = began.elapsed().as_secs_f32();
                println!("        the shared {name} is ready after {took:.1} s");
                return Ok(running);
            }
            if let Ok(Some(status)) = running.keeper.try_wait() {
                break status.to_string();
            }
            if harness::is_interrupted() || began.elapsed() > LIMIT * patience() {
                break "it is not ready".to_owned();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let said = running.end();
        Err(format!("the shared {name} cannot be had: {why}\n{said}"))
    }

    fn spawn(&self, tag: &str, log: &Path) -> std::io::Result<Child> {
        use std::os::unix::process::CommandExt as _;
        let log = File::create(log)?;
        Command::new(std::env::current_exe()?)
            .env(TAG_VARIABLE, tag)
            .env(KEEP, self.part.name())
            .env(SLOTS, self.slots.to_string())
            .env("RUST_BACKTRACE", "0")
            // Ctrl-C is for the runner: what the tests have in here is to be removed in order.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
    }

    fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.end();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end();
    }
}

impl Running {
    /// Ends it and removes all that is left of it. What it said is the answer.
    fn end(mut self) -> String {
        drop(self.keeper.stdin.take());
        let began = Instant::now();
        while matches!(self.keeper.try_wait(), Ok(None)) {
            if began.elapsed() > Duration::from_secs(10) * patience() {
                let _ = self.keeper.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        sweep::sweep(&self.tag);
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let _ = fs::remove_file(&self.log);
        said
    }
}

fn lock(place: &Mutex<Place>) -> MutexGuard<'_, Place> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}
