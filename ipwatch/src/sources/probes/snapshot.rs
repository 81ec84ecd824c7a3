//! Snapshots of what already exists, read from the kernel in one pass.

mod files;

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use aya::maps::{Array, MapData, MapError};
use aya::programs::{Iter, ProgramError, RawTracePoint, RawTracePointRunOptions};
use aya::{Ebpf, TestRun};
use aya_log::EbpfLogger;
use ipwatch_common::{FileRecord, Netns, TaskRecord, WALK_CHUNK, WALK_CHUNKS, WalkResult, Wire};

use self::files::Chosen;
use super::events;
use super::log::ToTracing;
use crate::clock;
use crate::fact::{BootNs, Fact, NetnsRef, Observation, Origin, Scope};

/// One chunk of the netns walk's result, as bytes.
type Chunk = [u8; WALK_CHUNK * <Netns as Wire>::SIZE];
type WalkEnd = [u8; <WalkResult as Wire>::SIZE];

/// How often a walk is tried if the list changes during it.
const WALKS: u32 = 3;
/// Maximum number of facts in one snapshot. A longer one is cut and marked as incomplete.
const MOST: usize = 1 << 18;
/// Nanoseconds after which a pass of an iterator is given up: before its thread counts as hanging. A pass over a table of
/// a million fds that a thousand processes share takes minutes.
const LONGEST: u64 = 4_000_000_000;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The kernel refused the program when the probes were loaded; `doctor` shows why.
    #[error("this kernel refused the program {0}")]
    Refused(&'static str),
    /// The program is loaded, but cannot be run.
    #[error("the program does not run")]
    Program(#[from] ProgramError),
    /// The iterator cannot be attached to a file.
    #[error("the iterator cannot be opened")]
    Link(#[from] aya::programs::links::LinkError),
    #[error("its result cannot be read")]
    Map(#[from] MapError),
    /// There are more records than the limit.
    #[error("its output is longer than the limit")]
    Truncated,
    #[error("its output cannot be read")]
    Read(#[from] io::Error),
}

/// Takes snapshots. It blocks for some milliseconds and needs its own thread.
pub struct Snapshots {
    /// Owns every program and its attachment. Shared with `Probes`, which also keeps them alive.
    pub(super) ebpf: Arc<Mutex<Ebpf>>,
    pub(super) walk: Array<MapData, Chunk>,
    pub(super) walk_end: Array<MapData, WalkEnd>,
    pub(super) log: EbpfLogger<ToTracing>,
}

impl std::fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshots").finish_non_exhaustive()
    }
}

impl Snapshots {
    /// Every netns on `net->list`: alive, or waiting for its teardown ([`Observation::NetnsDying`]). A netns whose
    /// teardown has started is not on the list.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn netns(&mut self) -> Result<Vec<Fact>, SnapshotError> {
        let mut dump = Dump::begin(Scope::Netns);
        let mut complete = false;
        for _ in 0..WALKS {
            dump.facts.truncate(1);
            complete = self.walk(&mut dump)?;
            if complete {
                break;
            }
        }
        Ok(dump.end(complete))
    }

    fn walk(&mut self, dump: &mut Dump) -> Result<bool, SnapshotError> {
        {
            let mut ebpf = self.ebpf.lock().unwrap_or_else(PoisonError::into_inner);
            let program: &mut RawTracePoint = loaded(&mut ebpf, "walk_netns")?;
            program.test_run(RawTracePointRunOptions::new())?;
        }
        self.log.flush();
        let end = self.walk_end.get(&0, 0)?;
        let Some(end) = events::whole::<WalkResult>(&end) else { return Ok(false) };
        let count = (end.count as usize).min(WALK_CHUNK * WALK_CHUNKS);
        for first in (0..count).step_by(WALK_CHUNK) {
            let index = u32::try_from(first / WALK_CHUNK).unwrap_or(u32::MAX);
            let chunk = self.walk.get(&index, 0)?;
            let mut rest = &chunk[..];
            for _ in first..count.min(first + WALK_CHUNK) {
                let Some(netns) = Netns::take(&mut rest) else { return Ok(false) };
                dump.say(netns_seen(&netns));
            }
        }
        Ok(end.complete == 1)
    }

    /// Every task outside the host's netns. A thread whose leader is in the same netns is left out, unless it is
    /// exiting or killed.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn tasks(&mut self) -> Result<Vec<Fact>, SnapshotError> {
        let mut dump = Dump::begin(Scope::Tasks);
        let file = self.open("it_task")?;
        let complete =
            // A task without a number in our pid namespace could only be mistaken for another one.
            read_records::<TaskRecord>(file, |record| {
                !events::is_shown(&record) || dump.say(events::task_seen(&record))
            })?;
        Ok(dump.end(complete))
    }

    /// The fds and sockets that hold a netns which is neither the host's nor that of its process: of all netns, and as
    /// many as the map keeps of those that are searched for. Also returns whether the pass came to its end; if not, what
    /// holds these netns may not have been seen.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn files(&mut self, wanted: &[NetnsRef]) -> Result<(Vec<Fact>, bool), SnapshotError> {
        let mut dump = Dump::begin(Scope::Files);
        let file = self.open("it_file")?;
        let mut outside = false;
        let mut chosen = Chosen::new(wanted);
        let whole = read_records::<FileRecord>(file, |record| {
            // The holder is outside our pid namespace and cannot be named.
            outside |= record.pid == 0;
            if record.pid != 0 && chosen.takes(&record) {
                dump.say(events::file_seen(&record));
            }
            true
        })?;
        Ok((dump.end(whole && !outside && !chosen.is_cut), whole))
    }

    fn open(&self, name: &'static str) -> Result<std::fs::File, SnapshotError> {
        open(&self.ebpf, name)
    }
}

/// Starts a new pass of an iterator.
fn open(ebpf: &Mutex<Ebpf>, name: &'static str) -> Result<std::fs::File, SnapshotError> {
    let mut ebpf = ebpf.lock().unwrap_or_else(PoisonError::into_inner);
    let program: &mut Iter = loaded(&mut ebpf, name)?;
    let link = program.attach()?;
    Ok(program.take_link(link)?.into_file()?)
}

/// Every task that still holds a netns, of the groups in the kernel half's table of exiting groups.
pub(super) fn leaving(ebpf: &Mutex<Ebpf>) -> Result<Vec<TaskRecord>, SnapshotError> {
    let mut members = Vec::new();
    let complete = read_records::<TaskRecord>(open(ebpf, "it_leaving")?, |record| {
        if events::is_shown(&record) {
            members.push(record);
        }
        members.len() < MOST
    })?;
    // An incomplete pass proves nothing about a group without a record.
    if complete { Ok(members) } else { Err(SnapshotError::Truncated) }
}

fn loaded<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut T, SnapshotError>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(SnapshotError::Refused(name))?;
    if program.fd().is_err() {
        return Err(SnapshotError::Refused(name));
    }
    Ok(program.try_into()?)
}

/// The facts of one dump.
struct Dump {
    scope: Scope,
    at: BootNs,
    facts: Vec<Fact>,
}

impl Dump {
    fn begin(scope: Scope) -> Self {
        let at = clock::now();
        let mut dump = Self { scope: scope.clone(), at, facts: Vec::new() };
        dump.say(Observation::Began(scope));
        dump
    }

    /// Adds an observation. Returns false when the limit is reached.
    fn say(&mut self, what: Observation) -> bool {
        self.facts.push(Fact { at: self.at, origin: Origin::Snapshot, what });
        self.facts.len() < MOST
    }

    fn end(mut self, complete: bool) -> Vec<Fact> {
        let (scope, began) = (self.scope.clone(), self.at);
        self.say(Observation::Ended { scope, began, complete });
        self.facts
    }
}

fn netns_seen(record: &Netns) -> Observation {
    let netns = events::netns_ref(record);
    if record.refs == 0 { Observation::NetnsDying { netns } } else { Observation::Netns { netns } }
}

/// Passes every record of an iterator to `each` until it returns false, or until it takes too long. Returns whether all
/// records were read.
fn read_records<T: Wire>(file: impl Read, each: impl FnMut(T) -> bool) -> io::Result<bool> {
    read_records_until(clock::now().plus(LONGEST), file, each)
}

fn read_records_until<T: Wire>(
    until: BootNs,
    mut file: impl Read,
    mut each: impl FnMut(T) -> bool,
) -> io::Result<bool> {
    let mut buffer = vec![0; 32 << 10];
    let mut held = 0;
    loop {
        if clock::now() > until {
            return Ok(false);
        }
        let read = match file.read(&mut buffer[held..]) {
            Ok(0) => return Ok(held == 0),
            Ok(read) => read,
            // bpf_seq_read() gives up after a million objects without output: continue from there.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        held += read;
        let mut rest = &buffer[..held];
        while rest.len() >= T::SIZE {
            let Some(record) = T::take(&mut rest) else { return Ok(false) };
            if !each(record) {
                return Ok(false);
            }
        }
        // A read may end in the middle of a record.
        let left = rest.len();
        buffer.copy_within(held - left..held, 0);
        held = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipwatch_common::MISSING;

    /// A reader that returns a few bytes at a time.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    fn walk_results(count: u32) -> Vec<u8> {
        (0..count).flat_map(|at| [at.to_ne_bytes(), 1u32.to_ne_bytes()].concat()).collect()
    }

    #[test]
    fn records_survive_any_cut_between_reads() {
        let bytes = walk_results(5);
        for step in 1..=bytes.len() {
            let mut seen = Vec::new();
            let complete = read_records::<WalkResult>(Trickle(&bytes, step), |record| {
                seen.push(record.count);
                true
            });
            assert!(complete.unwrap());
            assert_eq!(seen, [0, 1, 2, 3, 4], "cut at {step}");
        }
    }

    #[test]
    fn half_a_record_at_the_end_is_not_complete() {
        let bytes = walk_results(2);
        let cut = &bytes[..bytes.len() - 3];
        assert!(!read_records::<WalkResult>(cut, |_| true).unwrap());
    }

    #[test]
    fn too_many_records_are_cut_off() {
        let bytes = walk_results(3);
        let mut seen = 0;
        let complete = read_records::<WalkResult>(&bytes[..], |_| {
            seen += 1;
            seen < 2
        });
        assert!(!complete.unwrap());
    }

    /// An iterator that looks at a million objects and finds nothing, again and again.
    struct Barren;

    impl Read for Barren {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    #[test]
    fn a_pass_that_takes_too_long_is_given_up() {
        let until = clock::now().plus(50_000_000);
        assert!(!read_records_until::<WalkResult>(until, Barren, |_| true).unwrap());
    }

    #[test]
    fn a_netns_without_references_is_dying() {
        let netns = |refs| netns_seen(&Netns { cookie: 3, inode: 4, refs });
        assert!(matches!(netns(0), Observation::NetnsDying { .. }));
        assert!(matches!(netns(1), Observation::Netns { .. }));
        assert!(matches!(netns(MISSING), Observation::Netns { .. }), "not asked is not dead");
    }
}
