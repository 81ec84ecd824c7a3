//! What is parked, until nobody has it any more.
//!
//! A parked reservation is released by a DEL under its own id, after the next ADD or DEL of its network (one at a time) or
//! by `ipwatch cni release`:
//!
//! - the daemon has said that the netns no longer has the IP,
//! - the node has been booted since, or
//! - nobody could say for [`UNPROVEN`], at two calls at least and at none between, that it is held: without a daemon
//!   nothing stays parked for ever.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::ask::{PATIENCE, Question, State as Holding, Unanswered, ask};
use crate::cni::Failure;
use crate::config::Config;
use crate::delegate::{self, Answer};
use crate::name::Parked;
use crate::plugin::Call;
use crate::state::{Entry, Lock, State, is_taken};
use crate::tally::Event;
use crate::{found, time};

/// How long a parked reservation stays while nobody can say whether it is held, in seconds.
pub const UNPROVEN: u64 = 600;
/// How long the release of one may take by which somebody else's call is held up.
pub(crate) const QUICK: Duration = Duration::from_secs(2);
/// How long one step of parking may take.
pub(crate) const STEP: Duration = Duration::from_secs(10);
/// How long the release of one may take for which a person waits.
const PATIENT: Duration = Duration::from_secs(30);
/// After how many seconds a release that failed is tried again.
pub(crate) const AGAIN: u64 = 60;

/// What is parked of a network, wherever that stands. To be called with its lock.
///
/// # Errors
/// The state file is lost, and nobody can say what was in it.
pub(crate) fn load(call: &Call) -> io::Result<State> {
    let config = &call.config;
    if let Some(state) = State::read(&config.state_dir, &config.name) {
        return Ok(state);
    }
    let state = in_store(config, &call.environment.path)?;
    // From now on it need not be looked for at each call.
    state.write(&config.state_dir, &config.name)?;
    Ok(state)
}

/// The same, without a state file where there is none.
///
/// # Errors
/// As [`load`].
pub(crate) fn known(call: &Call) -> io::Result<State> {
    let config = &call.config;
    let known = State::read(&config.state_dir, &config.name);
    known.map_or_else(|| in_store(config, &call.environment.path), Ok)
}

/// What the delegate's store has under ids of ours.
///
/// # Errors
/// It cannot be read.
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

/// Releases one that nobody has any more, after the runtime's own call was served. It never fails a call: what is left,
/// or cannot be released now, is released by a later one.
pub(crate) fn tend(call: &Call) {
    let config = &call.config;
    if !config.is_named() {
        return;
    }
    match State::read(&config.state_dir, &config.name) {
        Some(state) if state.parked.is_empty() => return,
        // Nothing was ever parked of a store that keeps no parked ones.
        None if config.host_local_dir().is_none() => return,
        _ => {}
    }
    // Another call does it.
    let Ok(_lock) = Lock::take_soon(&config.state_dir, &config.name) else { return };
    let state = match load(call) {
        Ok(state) => state,
        Err(error) => return call.say(&format!("what is parked is unknown: {error}")),
    };
    if state.parked.is_empty() {
        return;
    }
    let before = state.clone();
    let mut state = state;
    let verdicts = judge_for(call, &mut state);
    let bounds = Bounds { most: 1, each: QUICK, at_once: false };
    for one in keep(&config.state_dir, &config.name, &before, state, &verdicts, bounds) {
        match one.outcome {
            Ok(()) => {
                call.count(Event::Released);
                call.say(&format!("released {}, which nobody has any more", list(&one.entry.ips)));
            }
            Err(why) => call.say(&format!("{} cannot be released: {why}", one.entry.id)),
        }
    }
}

/// What becomes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    /// Nobody has it.
    over: bool,
    /// A critical finding about it fires.
    pub(crate) critical: bool,
}

impl Verdict {
    /// Whether nobody has it.
    pub(crate) fn is_over(self) -> bool {
        self.over
    }
}

/// Judges each entry, in their order, for a call of the plugin.
pub(crate) fn judge_for(call: &Call, state: &mut State) -> Vec<Verdict> {
    let Config { socket, patience, name, kind, .. } = &call.config;
    let question = Question { store: kind, network: name, ..nobodys() };
    let (verdicts, unanswered) = judge(socket, *patience, call.boot.as_deref(), question, state);
    if let Some(why) = unanswered {
        call.count(Event::Unanswered(why));
    }
    verdicts
}

fn nobodys<'a>() -> Question<'a> {
    Question {
        call: "add",
        store: "",
        network: "",
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
    let now = time::now().as_secs();
    let verdict = |entry: &mut Entry| {
        let own = Parked::read(&entry.id);
        if own.is_none_or(|own| boot.is_some_and(|now| now != own.boot)) {
            return Verdict { over: true, critical: false };
        }
        let of = |ip: &IpAddr| told.iter().find(|address| address.ip == *ip);
        let is = |wanted: &[Holding]| {
            let state = |ip| of(ip).map_or(Holding::Unknown, |address| address.state);
            entry.ips.iter().any(|ip| wanted.contains(&state(ip)))
        };
        let critical = entry.ips.iter().filter_map(of).any(|address| address.critical);
        let is_held = is(&[Holding::Held, Holding::Leaving]);
        if is_held || !is(&[Holding::Unknown]) {
            entry.unanswered_since = None;
            return Verdict { over: !is_held, critical };
        }
        // How long ago it was proven says nothing: a quiet network asks once a day.
        let since = entry.unanswered_since.get_or_insert(now);
        Verdict { over: now.saturating_sub(*since) > UNPROVEN, critical: false }
    };
    (state.parked.iter_mut().map(verdict).collect(), unanswered)
}

/// An entry that was to be released.
#[derive(Debug)]
pub struct Released {
    /// Which.
    pub entry: Entry,
    /// Whether it was.
    pub outcome: Result<(), String>,
}

/// How much is released by one call.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// So many are tried.
    most: usize,
    /// So long each may take.
    each: Duration,
    /// Also those whose release has just failed.
    at_once: bool,
}

/// Releases what is over, and writes what is left if it is not what was there `before`.
fn keep(
    dir: &Path,
    network: &str,
    before: &State,
    state: State,
    verdicts: &[Verdict],
    bounds: Bounds,
) -> Vec<Released> {
    let (mut left, mut released) = (State::default(), Vec::new());
    let now = time::now().as_secs();
    for (at, mut entry) in state.parked.into_iter().enumerate() {
        let is_over = verdicts.get(at).is_some_and(|verdict| verdict.over);
        let is_due = bounds.at_once || entry.next_try <= now;
        if !is_over || !is_due || released.len() >= bounds.most {
            left.parked.push(entry);
            continue;
        }
        let outcome = release(&entry, bounds.each);
        if outcome.is_err() {
            entry.next_try = now + AGAIN;
            left.parked.push(entry.clone());
        }
        released.push(Released { entry, outcome });
    }
    if left != *before
        && let Err(error) = left.write(dir, network)
    {
        // A DEL that is repeated succeeds: what is released and still written is released once more.
        eprintln!("ipwatch-ipam: the state of {network} cannot be written: {error}");
    }
    released
}

/// DEL of a parked reservation.
///
/// # Errors
/// The delegate is not there, or fails.
pub(crate) fn release(entry: &Entry, within: Duration) -> Result<(), String> {
    let kind = entry.config.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str);
    let answer = run(kind.unwrap_or_default(), &entry.path, "DEL", entry, within);
    let answer = answer.map_err(|failure| failure.to_string())?;
    if answer.is_ok() {
        return Ok(());
    }
    let said = crate::cni::error_of(&answer.stdout);
    Err(said.map_or_else(|| format!("exit status {}", answer.code), |(_, msg)| msg))
}

/// A call of the delegate for a parked reservation: under its own id and interface, without anything of the pod whose
/// ADD it was, so that nobody is taken for that pod.
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
    // An ADD must name a netns (`skel.getCmdArgsFromEnv`), and no IPAM plugin opens it: one that nobody has is nobody's.
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
    delegate::run_within(&program, &set, &config, within)
}

/// Releases what is parked of a network, for a person. Without `force` only what nobody has. With `config`, and the
/// directories of plugins, also what the delegate's store has of a lost state file.
///
/// # Errors
/// Another call is at work.
pub fn release_network(
    dir: &Path,
    socket: &Path,
    boot: Option<&str>,
    network: &str,
    force: bool,
    config: Option<(&Config, &[PathBuf])>,
) -> Result<Vec<Released>, String> {
    let _lock = Lock::take(dir, network).map_err(|error| match is_taken(&error) {
        true => "a call of the plugin is at work: try again".to_owned(),
        false => format!("its lock cannot be had: {error}"),
    })?;
    let before = match (State::read(dir, network), config) {
        (Some(state), _) => state,
        (None, Some((config, path))) => in_store(config, path)
            .map_err(|error| format!("what is parked cannot be found: {error}"))?,
        (None, None) => State::default(),
    };
    let mut state = before.clone();
    let verdicts = if force {
        vec![Verdict { over: true, critical: false }; state.parked.len()]
    } else {
        judge(socket, PATIENCE * 50, boot, nobodys(), &mut state).0
    };
    let bounds = Bounds { most: usize::MAX, each: PATIENT, at_once: true };
    Ok(keep(dir, network, &before, state, &verdicts, bounds))
}

/// Who has what is parked, in words.
pub(crate) fn said(state: &State) -> String {
    let one = |entry: &Entry| match entry.who.is_empty() {
        true => format!("{} is parked", list(&entry.ips)),
        false => entry.who.clone(),
    };
    state.parked.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Addresses, as a person reads them.
pub(crate) fn list(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    ips.join(" and ")
}
