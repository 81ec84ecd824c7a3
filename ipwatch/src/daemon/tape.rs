//! `record` writes the fact stream, one JSON document a line; `replay` runs the pure half on it.
//!
//! That is how a case from the field becomes a test, and how the core is measured. A record begins
//! with the first snapshot, so it stands alone.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::concerns::Concerns;
use super::{must_be_root, on_runtime, shown, start};
use crate::clock::Calendar;
use crate::config::Config;
use crate::contract::{Body, Document, SCHEMA};
use crate::detect;
use crate::fact::{BootNs, Fact, Gate, What};
use crate::ledger::Ledger;
use crate::map::{NodeMap, Policy, want::Want};

/// After a loss everything is read again, but not more often than this, in ns.
const RESYNC_EVERY: u64 = 1_000_000_000;
/// No fact is longer than this.
const MAX_LINE: usize = 1 << 20;

/// `ipwatch record`: to a file, or to standard output without one; for a time, or until interrupted.
///
/// # Errors
/// Not root, no netlink, or the file cannot be written.
pub fn record(
    config: Config,
    out: Option<PathBuf>,
    duration: Option<Duration>,
) -> anyhow::Result<()> {
    must_be_root()?;
    let mut out: Box<dyn Write> = match out {
        Some(path) => Box::new(BufWriter::new(create(&path)?)),
        None => Box::new(BufWriter::new(io::stdout())),
    };
    on_runtime(async move {
        let mut started = start::start(&config, start::Sight::Everything).await?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let end = tokio::time::sleep(duration.unwrap_or(Duration::from_secs(u32::MAX.into())));
        tokio::pin!(end);
        // The map asks for what it needs to know; the answers are part of the record.
        let mut map = NodeMap::new(config.identity.provisional);
        let policy = config.policy();
        let (mut resync, mut resynced) = (false, BootNs::default());
        loop {
            let agenda = map.agenda(crate::clock::now(), &policy);
            for want in agenda.wants {
                started.desk.want(want);
            }
            let now = crate::clock::now();
            let next = agenda.next.unwrap_or(now.plus(1_000_000_000));
            tokio::select! {
                batch = started.facts.recv() => {
                    for fact in batch.unwrap_or_default() {
                        serde_json::to_writer(&mut out, &fact)?;
                        out.write_all(b"\n")?;
                        map.apply(&fact);
                        if matches!(fact.what, What::Lost { .. }) {
                            resync = true;
                        }
                    }
                    let now = crate::clock::now();
                    if resync && now.since(resynced) >= RESYNC_EVERY {
                        (resync, resynced) = (false, now);
                        started.desk.snapshot();
                        map.reopen_all(now);
                    }
                    map.take_tenures();
                    started.calls.tell(&mut map, &Concerns::default());
                }
                () = tokio::time::sleep(Duration::from_nanos(next.since(now))) => {}
                () = &mut end => break,
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
            }
        }
        out.flush()?;
        Ok(())
    })
}

/// A record tells who runs what here: for root only.
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

/// `ipwatch replay`: what the map, the detectors and the ledger make of a record.
///
/// # Errors
/// The file cannot be read, or a line of it is no fact.
pub fn replay(path: &Path) -> anyhow::Result<Document> {
    let file = File::open(path).with_context(|| format!("cannot read {}", shown(path)))?;
    let mut player = Player::default();
    for (number, line) in lines(BufReader::new(file)).enumerate() {
        let line = line.with_context(|| format!("cannot read {}", shown(path)))?;
        let fact: Fact = serde_json::from_slice(&line).with_context(|| {
            format!("{} is no record of ipwatch: line {} is no fact", shown(path), number + 1)
        })?;
        // A recording comes from elsewhere, as what it was made of did.
        let mut facts = vec![fact];
        player.gate.admit(&mut facts);
        facts.iter().try_for_each(|fact| player.play(fact))?;
    }
    player.end()
}

/// Lines of bounded length.
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

/// The pure half on its own clock: the time of the facts.
#[derive(Default)]
struct Player {
    gate: Gate,
    map: NodeMap,
    ledger: Option<Ledger>,
    next: BootNs,
}

impl Player {
    /// Between two looks of the detectors, in the record's time.
    const STEP: u64 = 10_000_000;

    fn play(&mut self, fact: &Fact) -> anyhow::Result<()> {
        self.map.apply(fact);
        if let What::Boot(boot) = &fact.what {
            let calendar = Calendar { wall_offset: boot.wall_offset };
            let mut ledger = Ledger::default();
            ledger.set_calendar(calendar);
            self.ledger = Some(ledger);
        }
        if self.map.now() >= self.next {
            self.next = self.map.now().plus(Self::STEP);
            self.look();
        }
        Ok(())
    }

    fn look(&mut self) {
        let (now, policy) = (self.map.now(), Policy::default());
        let _: Vec<Want> = self.map.agenda(now, &policy).wants;
        self.map.take_tenures();
        let candidates = detect::detect(&self.map, now, &policy);
        if let Some(ledger) = &mut self.ledger {
            ledger.set_second_look(policy.second_look);
            ledger.observe(now, &candidates, &detect::blind(&self.map, &policy));
        }
    }

    fn end(mut self) -> anyhow::Result<Document> {
        self.look();
        let ledger = self.ledger.context("the record does not say which boot it is of")?;
        Ok(Document {
            schema: SCHEMA.to_owned(),
            node: self.map.boot().map(|boot| boot.node.clone()).unwrap_or_default(),
            taken_at: self.map.calendar().date(self.map.now()),
            sources: self.map.sources(),
            body: Body::Findings(ledger.findings(true)),
            reservations: Vec::new(),
            refused: Vec::new(),
        })
    }
}
