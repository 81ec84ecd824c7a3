//! `record` writes the fact stream, one JSON document a line; `replay` runs the engine on it.
//!
//! Recordings turn field cases into tests, and are used to measure the core. A recording begins with the settings
//! that change what is found, followed by the first snapshot, so it is self-contained. The facts of each step are
//! followed by the time of that step: a replay takes the same steps at the same times, and finds the same. The
//! findings of the recorder itself are included for comparison ([`Note::Told`]); a replay ignores them. Repeated facts
//! are written as repetitions (`again`).

mod again;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use self::again::{Again, Packer, Past, Written};
use super::canary::When;
use super::core::heard;
use super::network::Network;
use super::own::Own;
use super::span_links::SpanLinks;
use super::start::{self, Started};
use super::{must_be_root, on_runtime, shown};
use crate::clock;
use crate::config::Config;
use crate::contract::{Body, Document, SCHEMA};
use crate::engine::{Engine, Settings};
use crate::fact::{BootNs, Fact, Gate, Observation, Origin};
use crate::finding::Change;
use crate::map::Thresholds;
use crate::sources::procfs::Proc;

/// Version of the format. 1 had no repetitions.
const VERSION: u32 = 2;
/// Maximum length of a line, in bytes.
const MAX_LINE: usize = 1 << 20;
/// Maximum number of batches of facts in one step of the recorder.
const BATCHES: usize = 64;
/// Maximum time between two steps before the first snapshot is complete, in ns.
const UNTIL_READY: u64 = 20_000_000;

/// A line of a recording.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Note(Note),
    Fact(Box<Fact>),
}

/// A line that is not a fact.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    /// The settings that the facts are judged by. Must be the first line.
    Settings(Judged),
    /// Earlier facts, observed once more.
    Again(Again),
    /// The facts before this line were applied in a step at this time.
    Step(BootNs),
    /// A change of a finding in that step.
    Told(Box<Change>),
}

/// [`Settings`], and when the engine started.
#[derive(Serialize, Deserialize)]
struct Judged {
    #[serde(default = "first_version")]
    version: u32,
    started: BootNs,
    provisional: bool,
    #[serde(rename = "policy")]
    thresholds: Thresholds,
    /// Prefixes as text.
    shared: Vec<String>,
}

fn first_version() -> u32 {
    1
}

impl Judged {
    fn new(settings: &Settings, started: BootNs) -> Self {
        let Settings { provisional, thresholds, shared } = settings;
        let shared = shared.iter().map(ToString::to_string).collect();
        let (version, provisional) = (VERSION, *provisional);
        Self { version, started, provisional, thresholds: *thresholds, shared }
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        anyhow::ensure!(
            self.version <= VERSION,
            "a newer ipwatch recorded it: replay it with that"
        );
        let shared = self.shared.iter().map(|text| text.parse()).collect::<Result<_, _>>();
        let (provisional, thresholds) = (self.provisional, self.thresholds);
        Ok(Settings { provisional, thresholds, shared: shared? })
    }
}

/// `ipwatch record`: writes to a file or to standard output, for a time or until interrupted.
///
/// # Errors
/// Not root, no netlink, or the file cannot be written.
pub fn record(
    config: Config,
    out: Option<PathBuf>,
    duration: Option<Duration>,
) -> anyhow::Result<()> {
    must_be_root()?;
    let out: Box<dyn Write> = match out {
        Some(path) => Box::new(BufWriter::new(create(&path)?)),
        None => Box::new(BufWriter::new(io::stdout())),
    };
    on_runtime(async move {
        let network = Network::default();
        let started =
            start::start(&config, start::Sight::Everything, When::Never, &network, Proc::new())
                .await?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let end = tokio::time::sleep(duration.unwrap_or(Duration::from_secs(u32::MAX.into())));
        tokio::pin!(end);
        let mut recorder = Recorder::new(started, &config.engine(), out)?;
        loop {
            tokio::select! {
                told = recorder.turn() => told?,
                () = &mut end => break,
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
            }
        }
        recorder.out.flush()?;
        Ok(())
    })
}

/// A daemon whose only output is its file. The engine's requests are answered, and the answers are part of the
/// recording.
struct Recorder {
    engine: Engine,
    own: Own,
    started: Started,
    next: Option<BootNs>,
    packer: Packer,
    out: Box<dyn Write>,
}

impl Recorder {
    fn new(started: Started, settings: &Settings, mut out: Box<dyn Write>) -> io::Result<Self> {
        let now = clock::now();
        line(&mut out, &Note::Settings(Judged::new(settings, now)))?;
        let engine = Engine::new(settings.clone(), now);
        let packer = Packer::default();
        Ok(Self { engine, own: Own::new(now), started, next: None, packer, out })
    }

    /// Waits for an event and takes one step. Cancel-safe.
    async fn turn(&mut self) -> io::Result<()> {
        let now = clock::now();
        let mut next = self.next.map_or(self.own.due(), |next| next.min(self.own.due()));
        if !self.engine.is_ready() {
            next = next.min(now.plus(UNTIL_READY));
        }
        let Started { facts, first, dispatch, .. } = &mut self.started;
        let mut took = Vec::new();
        tokio::select! {
            Some(batch) = facts.recv() => {
                took.extend(batch);
                for _ in 0..BATCHES {
                    let Ok(batch) = facts.try_recv() else { break };
                    took.extend(batch);
                }
            }
            () = heard(first) => {
                first.clear();
                // Their facts are in the queue.
                while let Ok(batch) = facts.try_recv() {
                    took.extend(batch);
                }
                let (at, origin, what) = (clock::now(), Origin::Daemon, Observation::FirstAnswers);
                took.push(Fact { at, origin, what });
            }
            () = dispatch.troubled() => {}
            () = tokio::time::sleep(Duration::from_nanos(next.since(now))) => {}
        }
        self.step(took)
    }

    fn step(&mut self, mut facts: Vec<Fact>) -> io::Result<()> {
        let Started { dispatch, eyes, calls, .. } = &self.started;
        let now = clock::now();
        facts.extend(self.own.facts(dispatch, eyes, self.engine.map(), now));
        let out = &mut self.out;
        self.packer.pack(&facts, |written| match written {
            Written::Fact(fact) => line(out, fact),
            Written::Again(again) => line(out, &Note::Again(again)),
        })?;
        let mut effects = self.engine.step(&facts, now);
        line(&mut self.out, &Note::Step(now))?;
        for change in effects.changes.drain(..) {
            line(&mut self.out, &Note::Told(Box::new(change)))?;
        }
        // A quiet node would fill a buffer in minutes.
        self.out.flush()?;
        self.own.ask(dispatch, &mut effects, now);
        self.next = effects.next;
        calls.tell(effects.calls, self.engine.map(), &SpanLinks::default());
        Ok(())
    }
}

fn line(out: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, what)?;
    out.write_all(b"\n")
}

/// A recording shows who runs what on this node: readable by root only.
fn create(path: &Path) -> anyhow::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", shown(path)))
}

/// `ipwatch replay`: the findings of the engine after a recording.
///
/// # Errors
/// The file cannot be read, or is not a recording.
pub fn replay(path: &Path) -> anyhow::Result<Document> {
    let file = File::open(path).with_context(|| format!("cannot read {}", shown(path)))?;
    let mut player = Player::default();
    for (number, line) in lines(BufReader::new(file)).enumerate() {
        let line = line.with_context(|| format!("cannot read {}", shown(path)))?;
        player.play(&line).with_context(|| {
            format!("{} is no record of ipwatch: line {} is no fact", shown(path), number + 1)
        })?;
    }
    player.end()
}

/// Lines of at most [`MAX_LINE`] bytes.
fn lines(mut reader: impl BufRead) -> impl Iterator<Item = io::Result<Vec<u8>>> {
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let limit = MAX_LINE as u64;
        match io::Read::take(&mut reader, limit).read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(read) if read == MAX_LINE && line.last() != Some(&b'\n') => {
                Some(Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long")))
            }
            Ok(_) => Some(Ok(line)),
            Err(error) => Some(Err(error)),
        }
    })
}

/// The engine, with the recording as its clock.
#[derive(Default)]
struct Player {
    gate: Gate,
    engine: Option<Engine>,
    past: Past,
    /// Whether the recording has the times of steps. Recordings of older versions do not.
    has_steps: bool,
    /// The newest step.
    at: BootNs,
}

impl Player {
    /// Time between two steps if the recording does not have them, in the recording's time, in ns.
    const STEP: u64 = 10_000_000;

    fn play(&mut self, line: &[u8]) -> anyhow::Result<()> {
        match serde_json::from_slice(line)? {
            Line::Note(Note::Settings(judged)) => {
                let settings = judged.settings()?;
                self.has_steps = true;
                match &mut self.engine {
                    Some(engine) => engine.retune(settings.thresholds, settings.shared),
                    None => self.engine = Some(Engine::new(settings, judged.started)),
                }
            }
            Line::Note(Note::Step(at)) => self.step(at),
            Line::Note(Note::Told(_)) => {}
            Line::Note(Note::Again(again)) => {
                self.past.again(again)?.into_iter().for_each(|fact| self.apply(fact));
            }
            Line::Fact(fact) => {
                self.past.push((*fact).clone());
                self.apply(*fact);
            }
        }
        Ok(())
    }

    fn apply(&mut self, fact: Fact) {
        let at = fact.at;
        // A recording may come from anywhere: its facts pass the same gate as those of sources.
        let mut facts = vec![fact];
        self.gate.admit(&mut facts);
        let engine = self.engine.get_or_insert_with(|| {
            let mut engine = Engine::new(Settings::default(), at);
            // Old recordings do not say when the first answers were complete.
            engine.apply(&[Fact { at, origin: Origin::Daemon, what: Observation::FirstAnswers }]);
            engine
        });
        engine.apply(&facts);
        let now = engine.map().now();
        if !self.has_steps && now >= self.at.plus(Self::STEP) {
            self.step(now);
        }
    }

    fn step(&mut self, at: BootNs) {
        self.at = at;
        if let Some(engine) = &mut self.engine {
            engine.step(&[], at);
        }
    }

    fn end(mut self) -> anyhow::Result<Document> {
        if let Some(engine) = &self.engine
            && !self.has_steps
        {
            self.step(engine.map().now());
        }
        let engine = self.engine.filter(|engine| engine.map().boot().is_some());
        let engine = engine
            .context("the recording has no boot id: is it a whole file of `ipwatch record`?")?;
        let map = engine.map();
        Ok(Document {
            schema: SCHEMA.to_owned(),
            node: map.boot().map(|boot| boot.node.clone()).unwrap_or_default(),
            taken_at: map.calendar().date(map.now()),
            sources: map.sources(),
            body: Body::Findings(engine.ledger().findings(true)),
            reservations: Vec::new(),
            networks: Vec::new(),
            refused: Vec::new(),
            blind: Vec::new(),
            daemon: None,
            runs: Vec::new(),
        })
    }
}

#[cfg(test)]
mod field;
#[cfg(test)]
mod outages;
#[cfg(test)]
mod tests;
