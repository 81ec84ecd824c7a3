//! Parked reservations, and when they are released.
//!
//! A parked reservation is released by a DEL under its own id. That is done after an ADD or DEL of its network (one
//! reservation per call) or by `ipwatch cni release`, if
//!
//! - the daemon says that the netns no longer has the IP,
//! - the node has been booted since, or
//! - the daemon has not told for [`UNPROVEN`] seconds whether it is held, at any of at least two calls. Without a daemon
//!   nothing therefore stays parked for ever.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::ask::{Address, PATIENCE, Question, State as Holding, Unanswered, ask};
use crate::cni::Failure;
use crate::config::Config;
use crate::delegate::{self, Answer};
use crate::name::Parked;
use crate::plugin::Call;
use crate::state::{Entry, Lock, State, is_taken};
use crate::tally::Event;
use crate::{found, time};

/// How long a parked reservation stays while the daemon does not tell whether it is held, in seconds.
pub const UNPROVEN: u64 = 600;
/// Timeout of a release during a call for another container.
pub(crate) const QUICK: Duration = Duration::from_secs(2);
/// Timeout of one step of parking.
pub(crate) const STEP: Duration = Duration::from_secs(10);
/// Timeout of a release by `ipwatch cni release`.
const PATIENT: Duration = Duration::from_secs(30);

/// The parked reservations of a network. If the state file is lost, it is made anew from the delegate's store. The caller
/// must have the lock.
///
/// # Errors
/// The state file is lost, and the store cannot be read.
pub(crate) fn load(call: &Call) -> io::Result<State> {
    let config = &call.config;
    if let Some(state) = State::read(&config.state_dir, &config.name) {
        return Ok(state);
    }
    let state = in_store(config, &call.environment.path)?;
    // The next call reads the file, not the store, unless the disk is full or read-only.
    let _ = state.write(&config.state_dir, &config.name);
    Ok(state)
}

/// [`load`] without writing a state file.
///
/// # Errors
/// As [`load`].
pub(crate) fn known(call: &Call) -> io::Result<State> {
    let config = &call.config;
    let known = State::read(&config.state_dir, &config.name);
    known.map_or_else(|| in_store(config, &call.environment.path), Ok)
}

/// The parked reservations in the delegate's store, if that is host-local's.
///
/// # Errors
/// The store cannot be read.
fn in_store(config: &Config, path: &[PathBuf]) -> io::Result<State> {
    let dir = config.host_local_dir();
    let found = dir.map(|dir| found::in_host_local(&dir)).transpose()?.unwrap_or_default();
    let mut by_id: BTreeMap<String, (String, Vec<IpAddr>)> = BTreeMap::new();
    for (id, ifname, ip) in found {
        by_id.entry(id).or_insert((ifname, Vec::new())).1.push(ip);
    }
    let entry = |(id, (ifname, ips)): (String, (String, Vec<IpAddr>))| Entry {
        config: config.for_parked(&ips),
        path: path.to_owned(),
        unanswered_since: None,
        next_try: 0,
        who: String::new(),
        id,
        ifname,
        ips,
    };
    Ok(State { parked: by_id.into_iter().map(entry).collect() })
}

/// Releases one parked reservation that is no longer held, after the runtime's call was served. It never fails the call: a
/// later call releases the others, and repeats a release that failed.
pub(crate) fn tend(call: &Call) {
    let config = &call.config;
    if !config.is_named() {
        return;
    }
    match State::read(&config.state_dir, &config.name) {
        Some(state) if state.parked.is_empty() => return,
        // Addresses of other delegates are never parked.
        None if config.host_local_dir().is_none() => return,
        _ => {}
    }
    // Another call has the lock and does this.
    let Ok(_lock) = Lock::take_soon(&config.state_dir, &config.name) else { return };
    let state = match load(call) {
        Ok(state) => state,
        Err(error) => return call.say(&format!("cannot find the parked addresses: {error}")),
    };
    if state.parked.is_empty() {
        return;
    }
    let before = state.clone();
    let mut state = state;
    let verdicts = judge_for(call, &mut state);
    let bounds = Bounds { most: 1, each: QUICK, at_once: false };
    let place = Place {
        state_dir: &config.state_dir,
        socket: &config.socket,
        boot: call.boot(),
        bin: &call.environment.path,
    };
    for one in keep(place, &config.name, &before, state, &verdicts, bounds) {
        match one.outcome {
            Ok(()) => {
                call.count(Event::Released);
                call.say(&format!("released {}, which is no longer held", list(&one.entry.ips)));
            }
            Err(why) => call.say(&format!("{} cannot be released: {why}", one.entry.id)),
        }
    }
}

/// What was found out about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    /// It is to be released.
    over: bool,
    /// The daemon says that it is still held.
    held: bool,
    /// Whether a critical finding about it fires.
    pub(crate) critical: bool,
}

impl Verdict {
    /// Whether it is no longer held.
    pub(crate) fn is_over(self) -> bool {
        self.over
    }
}

/// A verdict for each entry, in the same order.
pub(crate) fn judge_for(call: &Call, state: &mut State) -> Vec<Verdict> {
    let Config { socket, patience, name, kind, .. } = &call.config;
    let question = about(kind, name);
    let (verdicts, unanswered) = judge(socket, *patience, call.boot(), question, state);
    if let Some(why) = unanswered {
        call.count(Event::Unanswered(why));
    }
    verdicts
}

/// A question about parked addresses of a network. Where no netns has a cookie (Linux before 5.14) the daemon finds the
/// holder by the store and the network.
fn about<'a>(store: &'a str, network: &'a str) -> Question<'a> {
    Question {
        call: "add",
        store,
        network,
        container: "",
        ifname: "",
        ips: &[],
        netns: None,
        parked: &[],
    }
}

fn judge(
    socket: &Path,
    patience: Duration,
    boot: Option<&str>,
    question: Question<'_>,
    state: &mut State,
) -> (Vec<Verdict>, Option<Unanswered>) {
    let cookie = |entry: &Entry| Parked::read(&entry.id).map_or(0, |parked| parked.cookie);
    let of = |entry: &Entry| {
        let cookie = cookie(entry);
        entry.ips.iter().map(move |ip| (*ip, cookie)).collect::<Vec<_>>()
    };
    let parked: Vec<(IpAddr, u64)> = state.parked.iter().flat_map(of).collect();
    let told = ask(socket, &Question { parked: &parked, ..question }, patience);
    let unanswered = told.as_ref().err().copied();
    let told = told.map(|held| held.parked).unwrap_or_default();
    (verdicts(&told, boot, time::now().as_secs(), state), unanswered)
}

/// A verdict for each entry. `told` has an answer for each address of each entry, in this order: an address may be that of two
/// entries, one of which is a phantom of another netns.
fn verdicts(told: &[Address], boot: Option<&str>, now: u64, state: &mut State) -> Vec<Verdict> {
    let mut told = told.iter();
    let verdict = |entry: &mut Entry| {
        let of_it: Vec<Option<&Address>> =
            (entry.ips.iter()).map(|ip| told.next().filter(|address| address.ip == *ip)).collect();
        let own = Parked::read(&entry.id);
        if own.is_none_or(|own| boot.is_some_and(|now| now != own.boot)) {
            return Verdict { over: true, ..Verdict::default() };
        }
        let is = |wanted: &[Holding]| {
            let state = |of: &Option<&Address>| of.map_or(Holding::Unknown, |of| of.state);
            of_it.iter().any(|of| wanted.contains(&state(of)))
        };
        let critical = of_it.iter().flatten().any(|address| address.critical);
        let is_held = is(&[Holding::Held, Holding::Leaving]);
        if is_held || !is(&[Holding::Unknown]) {
            entry.unanswered_since = None;
            return Verdict { over: !is_held, held: is_held, critical };
        }
        // The time since the last proof does not count, because a network may have one call a day.
        let since = entry.unanswered_since.get_or_insert(now);
        let over = now.saturating_sub(*since) > UNPROVEN;
        Verdict { over, ..Verdict::default() }
    };
    state.parked.iter_mut().map(verdict).collect()
}

/// The attempt to release an entry.
#[derive(Debug)]
pub struct Released {
    /// The entry.
    pub entry: Entry,
    /// Whether it was released.
    pub outcome: Result<(), String>,
    /// Whether the daemon says that it is still held.
    pub still_held: bool,
}

/// An entry that was not released, because it may still be held.
#[derive(Debug)]
pub struct Kept {
    /// The entry.
    pub entry: Entry,
    /// Whether the daemon says that it is held. Otherwise nobody knows.
    pub is_held: bool,
}

/// What became of the entries of a network.
#[derive(Debug)]
pub struct Outcome {
    /// Those that were no longer held, or all.
    pub released: Vec<Released>,
    /// The others.
    pub kept: Vec<Kept>,
}

/// Where `ipwatch cni` and a call find what a release needs.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The directory of the state files.
    pub state_dir: &'a Path,
    /// The daemon's socket.
    pub socket: &'a Path,
    /// The part of the boot id that the ids of parked reservations contain.
    pub boot: Option<&'a str>,
    /// The directories of plugins now: an entry's own may be gone.
    pub bin: &'a [PathBuf],
}

/// How much is released by one call.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Maximum number of entries.
    most: usize,
    /// Timeout of each.
    each: Duration,
    /// Whether to try again at once those whose release has failed.
    at_once: bool,
}

/// Releases the entries that are no longer held, and writes the others if they differ from `before`.
fn keep(
    place: Place<'_>,
    network: &str,
    before: &State,
    state: State,
    verdicts: &[Verdict],
    bounds: Bounds,
) -> Vec<Released> {
    let (mut left, mut released) = (State::default(), Vec::new());
    let now = time::now().as_secs();
    for (at, mut entry) in state.parked.into_iter().enumerate() {
        let verdict = verdicts.get(at).copied().unwrap_or_default();
        let is_due = bounds.at_once || entry.is_due(now);
        if !verdict.over || !is_due || released.len() >= bounds.most {
            left.parked.push(entry);
            continue;
        }
        let outcome = release(&entry, place.bin, bounds.each);
        if outcome.is_err() {
            entry.put_off(now);
            left.parked.push(entry.clone());
        }
        released.push(Released { entry, outcome, still_held: verdict.held });
    }
    if left != *before
        && let Err(error) = left.write(place.state_dir, network)
    {
        // A later call releases the same entries again, and a repeated DEL succeeds.
        eprintln!("ipwatch-ipam: cannot write the state file of network {network}: {error}");
    }
    released
}

/// The delegate's type of an entry.
fn kind_of(entry: &Entry) -> &str {
    let kind = entry.config.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str);
    kind.unwrap_or_default()
}

/// Releases a parked reservation by a DEL under its id. The delegate is searched for in the directories of the call that
/// parked it and then in `bin`, because the runtime may have been given others since.
///
/// # Errors
/// The delegate cannot be run, or fails.
pub(crate) fn release(entry: &Entry, bin: &[PathBuf], within: Duration) -> Result<(), String> {
    let path: Vec<PathBuf> = entry.path.iter().chain(bin).cloned().collect();
    let answer = run(kind_of(entry), &path, "DEL", entry, within);
    let answer = answer.map_err(|failure| failure.to_string())?;
    if answer.is_ok() {
        return Ok(());
    }
    let said = crate::cni::error_of(&answer.stdout);
    Err(said.map_or_else(|| format!("exit status {}", answer.code), |(_, msg)| msg))
}

/// Calls the delegate for a parked reservation: under its own id and interface, and without the `CNI_ARGS` and the netns
/// of the pod whose ADD it was.
pub(crate) fn run(
    kind: &str,
    path: &[PathBuf],
    command: &str,
    entry: &Entry,
    within: Duration,
) -> Result<Answer, Failure> {
    let program = delegate::find(kind, path)?;
    let joined = std::env::join_paths(path).unwrap_or_default();
    let args = match entry.ips.as_slice() {
        [one] if command == "ADD" => format!("IgnoreUnknown=1;IP={one}"),
        _ => "IgnoreUnknown=1".to_owned(),
    };
    // An ADD must have a netns (`skel.getCmdArgsFromEnv`), but no IPAM plugin opens it. This path does not exist.
    let netns = if command == "ADD" { format!("/run/netns/{}", entry.id) } else { String::new() };
    let set: [(&str, &OsStr); 6] = [
        ("CNI_PATH", &joined),
        ("CNI_COMMAND", command.as_ref()),
        ("CNI_CONTAINERID", entry.id.as_ref()),
        ("CNI_IFNAME", entry.ifname.as_ref()),
        ("CNI_NETNS", netns.as_ref()),
        ("CNI_ARGS", args.as_ref()),
    ];
    let config = serde_json::to_vec(&entry.config).unwrap_or_default();
    Ok(delegate::run_within(&program, &set, &config, within)?)
}

/// Releases parked reservations of a network for `ipwatch cni`: with `force` all, otherwise those that are no longer held.
/// With `config`, also those whose state file was lost.
///
/// # Errors
/// Another process has the lock, or the reservations cannot be found.
pub fn release_network(
    place: Place<'_>,
    network: &str,
    force: bool,
    config: Option<&Config>,
) -> Result<Outcome, String> {
    let dir = place.state_dir;
    let _lock = Lock::take(dir, network).map_err(|error| match is_taken(&error) {
        true => "a call of ipwatch-ipam is running for this network: try again".to_owned(),
        false => format!("the lock in {} cannot be taken: {error}", dir.display()),
    })?;
    let before = match (State::read(dir, network), config) {
        (Some(state), _) => state,
        (None, Some(config)) => in_store(config, place.bin)
            .map_err(|error| format!("cannot find the parked addresses: {error}"))?,
        (None, None) => State::default(),
    };
    let mut state = before.clone();
    let kind = before.parked.first().map(kind_of).unwrap_or_default();
    let patience = PATIENCE * 50;
    let (mut verdicts, _) =
        judge(place.socket, patience, place.boot, about(kind, network), &mut state);
    if force {
        verdicts.iter_mut().for_each(|verdict| verdict.over = true);
    }
    let judged = state.parked.iter().zip(&verdicts).filter(|(_, verdict)| !verdict.over);
    let kept = judged.map(|(entry, verdict)| Kept { entry: entry.clone(), is_held: verdict.held });
    let kept = kept.collect();
    let bounds = Bounds { most: usize::MAX, each: PATIENT, at_once: true };
    Ok(Outcome { released: keep(place, network, &before, state, &verdicts, bounds), kept })
}

/// What holds the parked addresses, in one line for people.
pub(crate) fn said(state: &State) -> String {
    let one = |entry: &Entry| match entry.who.is_empty() {
        true => format!("{} is parked", list(&entry.ips)),
        false => entry.who.clone(),
    };
    state.parked.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Addresses in one line for people.
pub(crate) fn list(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    ips.join(" and ")
}

#[cfg(test)]
mod tests;
