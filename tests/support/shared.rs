//! Services that tests share, because starting them takes longer than most tests: a containerd, an API server with
//! its etcd, and a daemon. Each runs in a process of this binary with a lab, as a test does, and is swept like one.
//!
//! The runner starts a service for the first test that declares it, gives each test a slot in it, and ends it when no
//! remaining test declares it, or when the run ends in any other way. For the meaning of a slot see
//! [`crate::pod::Containerd::shared`], [`crate::kubernetes::ControlPlane::shared`], [`crate::Daemon::shared`].
//!
//! Only tests that do not change a service may share it. A test that crashes, wipes, slows down or reconfigures it
//! starts its own.

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

/// Variable with the service that a process keeps running.
const KEEP: &str = "IPWATCH_TEST_KEEP";
/// Variable with its number of slots.
const SLOTS: &str = "IPWATCH_TEST_SLOTS";
/// File in its lab that exists when it can be used.
const READY: &str = "ready";
/// Slots beyond the number of concurrent tests: a slot is not reused if its test left something behind.
const SPARE: usize = 4;
/// Time limit of a start.
const LIMIT: Duration = Duration::from_secs(120);

/// A service that can be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A containerd. A slot is a handler of its runtime with a network.
    Pods,
    /// etcd and kube-apiserver. A slot is the name of a node as whose kubelet a test may authenticate.
    ApiServer,
    /// A daemon. Its slots do not differ, because it watches the whole machine.
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

    /// Variable of a test with the service's tag and the test's slot.
    fn variable(self) -> &'static str {
        match self {
            Part::Pods => "IPWATCH_TEST_SHARED_CONTAINERD",
            Part::ApiServer => "IPWATCH_TEST_SHARED_API_SERVER",
            Part::Daemon => "IPWATCH_TEST_SHARED_DAEMON",
        }
    }

    /// Whether the test left nothing in its slot.
    fn is_free(self, home: &Path, slot: usize) -> bool {
        match self {
            Part::Pods => pod::shared::is_free(home, slot),
            Part::ApiServer => kubernetes::shared::is_free(home, slot),
            Part::Daemon => true,
        }
    }
}

/// In a test: the lab of a service that it shares, and the test's slot.
pub(crate) fn joined(part: Part) -> (PathBuf, usize) {
    let said = std::env::var(part.variable());
    let said = said.unwrap_or_else(|_| panic!("a test that declares needs [{:?}]", part.need()));
    let (tag, slot) = said.split_once(':').expect("a tag and a slot");
    (Lab::dir_of(tag), slot.parse().expect("a number"))
}

/// In a separate process: keeps a service running until the runner closes the standard input or ends. Returns at once
/// if the environment names none.
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

/// In the runner: the services of a run. Ended when dropped.
pub(crate) struct Shared {
    places: [Mutex<Place>; Part::ALL.len()],
}

/// State of a service.
struct Place {
    part: Part,
    /// Number of tests of this run that declare it and have not ended.
    wanted: usize,
    slots: usize,
    running: Option<Running>,
}

/// A running service.
struct Running {
    tag: String,
    keeper: Child,
    log: PathBuf,
    free: Vec<usize>,
    /// Number of slots in use.
    taken: usize,
}

/// A test's use of a service. Must be dropped after the test is swept.
pub(crate) struct Stay<'a> {
    place: &'a Mutex<Place>,
    tag: String,
    slot: usize,
    variable: &'static str,
}

impl Shared {
    /// For these tests, of which `jobs` run at the same time.
    pub(crate) fn new(tests: &[Test], jobs: usize) -> Self {
        let place = |part: Part| {
            let wanted = tests.iter().filter(|test| test.needs.contains(&part.need())).count();
            Mutex::new(Place { part, wanted, slots: jobs + SPARE, running: None })
        };
        Self { places: Part::ALL.map(place) }
    }

    /// Gives a test slots in the services that it declares. The error says what is not available.
    pub(crate) fn enter(&self, test: &Test) -> Result<Vec<Stay<'_>>, String> {
        // A service that is being started delays only tests that declare it.
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

    /// The variable for the environment of the test.
    pub(crate) fn env(&self) -> (&'static str, String) {
        (self.variable, format!("{}:{}", self.tag, self.slot))
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let mut place = lock(self.place);
        let free = place.part.is_free(&Lab::dir_of(&self.tag), self.slot);
        // It may have been restarted meanwhile.
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
    /// A slot for a test, and the tag of the service.
    fn take(&mut self) -> Result<(String, usize), String> {
        if let Some(running) = &mut self.running {
            let ended = running.keeper.try_wait().map_or(true, |status| status.is_some());
            // If no slot is left, many tests left something in theirs.
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

    /// Called when a test has ended.
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
            // Ctrl-C is for the runner, so that what the tests have in the service is removed in order.
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
    /// Ends the service and removes what is left of it. Returns its log.
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
