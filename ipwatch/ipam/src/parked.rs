//! What is parked, until nobody has it any more.
//!
//! A parked reservation is released by a DEL under its own id, at the next ADD or DEL of its network or by
//! `ipwatch cni release`:
//!
//! - the daemon has said that the netns no longer has the IP,
//! - the node has been booted since, or
//! - nobody could say for [`UNPROVEN`] that it is held: without a daemon nothing stays parked for ever.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::ask::{PATIENCE, Question, State as Holding, ask};
use crate::cni::Failure;
use crate::delegate::{self, Answer};
use crate::name::Parked;
use crate::plugin::Call;
use crate::state::{Entry, Lock, State};
use crate::tally::Event;
use crate::{found, time};

/// How long a parked reservation stays without a proof that it is held, in seconds.
pub const UNPROVEN: u64 = 600;

/// What is parked of a network, wherever that stands. To be called with its lock.
///
/// # Errors
/// The state file is lost, and nobody can say what was in it.
pub(crate) fn load(call: &Call) -> io::Result<State> {
    let config = &call.config;
    if let Some(state) = State::read(&config.state_dir, &config.name) {
        return Ok(state);
    }
    let dir = config.host_local_dir();
    let found = dir.map(|dir| found::in_host_local(&dir)).transpose()?.unwrap_or_default();
    let mut by_id: BTreeMap<String, (String, Vec<IpAddr>)> = BTreeMap::new();
    for (id, ifname, ip) in found {
        by_id.entry(id).or_insert((ifname, Vec::new())).1.push(ip);
    }
    let entry = |(id, (ifname, ips)): (String, (String, Vec<IpAddr>))| Entry {
        config: config.for_parked(&ips),
        path: call.environment.path.clone(),
        proven: time::now().as_secs(),
        who: String::new(),
        id,
        ifname,
        ips,
    };
    let state = State { parked: by_id.into_iter().map(entry).collect() };
    // From now on it need not be looked for at each call.
    state.write(&config.state_dir, &config.name)?;
    Ok(state)
}

/// Releases what nobody has any more. It never fails a call: what cannot be released now is released by a later one.
pub(crate) fn tend(call: &Call) {
    let config = &call.config;
    if !config.is_named() {
        return;
    }
    let known = State::read(&config.state_dir, &config.name);
    if known.is_some_and(|state| state.parked.is_empty()) {
        return;
    }
    // Another call does it.
    let Some(_lock) = Lock::take_soon(&config.state_dir, &config.name) else { return };
    let state = match load(call) {
        Ok(state) => state,
        Err(error) => return call.say(&format!("what is parked is unknown: {error}")),
    };
    if state.parked.is_empty() {
        return;
    }
    let judge = judge(&config.socket, call.boot.as_deref(), &state, Some(call));
    let released = keep(&config.state_dir, &config.name, state, judge);
    for one in released {
        match one.outcome {
            Ok(()) => {
                call.count(Event::Released);
                call.say(&format!("released {}, which nobody has any more", list(&one.entry.ips)));
            }
            Err(why) => call.say(&format!("{} cannot be released: {why}", one.entry.id)),
        }
    }
}

/// What becomes of each entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// It is held now.
    Proven,
    /// It may be.
    Kept,
    /// Nobody has it.
    Over,
}

fn judge(
    socket: &Path,
    boot: Option<&str>,
    state: &State,
    call: Option<&Call>,
) -> impl Fn(&Entry) -> Judgement + use<> {
    let cookie = |entry: &Entry| Parked::read(&entry.id).map_or(0, |parked| parked.cookie);
    let of = |entry: &Entry| {
        let cookie = cookie(entry);
        entry.ips.iter().map(move |ip| (*ip, cookie)).collect::<Vec<_>>()
    };
    let parked: Vec<(IpAddr, u64)> = state.parked.iter().flat_map(of).collect();
    let (network, store) = call.map_or(("", ""), |call| (&call.config.name, &call.config.kind));
    let question = Question {
        call: "add",
        store,
        network,
        container: "",
        ifname: "",
        ips: &[],
        netns: None,
        parked: &parked,
    };
    let patience = call.map_or(PATIENCE * 50, |call| call.config.patience);
    let told = ask(socket, &question, patience);
    if let (Err(why), Some(call)) = (&told, call) {
        call.count(Event::Unanswered(*why));
    }
    let told = told.map(|held| held.parked).unwrap_or_default();
    let boot = boot.map(str::to_owned);
    move |entry| {
        let of_this_boot = Parked::read(&entry.id)
            .is_some_and(|own| boot.as_ref().is_none_or(|now| *now == own.boot));
        if !of_this_boot {
            return Judgement::Over;
        }
        let state = |ip: &IpAddr| {
            let found = told.iter().find(|address| address.ip == *ip);
            found.map_or(Holding::Unknown, |address| address.state)
        };
        let states: Vec<Holding> = entry.ips.iter().map(state).collect();
        let is = |wanted: &[Holding]| states.iter().any(|state| wanted.contains(state));
        let unproven = time::now().as_secs().saturating_sub(entry.proven);
        if is(&[Holding::Held, Holding::Leaving]) {
            Judgement::Proven
        } else if !is(&[Holding::Unknown]) || unproven > UNPROVEN {
            Judgement::Over
        } else {
            Judgement::Kept
        }
    }
}

/// An entry that was to be released.
#[derive(Debug)]
pub struct Released {
    /// Which.
    pub entry: Entry,
    /// Whether it was.
    pub outcome: Result<(), String>,
}

/// Releases what is over, and writes what is left.
fn keep(
    dir: &Path,
    network: &str,
    state: State,
    judge: impl Fn(&Entry) -> Judgement,
) -> Vec<Released> {
    let before = state.clone();
    let (mut left, mut released) = (State::default(), Vec::new());
    for mut entry in state.parked {
        match judge(&entry) {
            Judgement::Over => {
                let outcome = release(&entry);
                if outcome.is_err() {
                    left.parked.push(entry.clone());
                }
                released.push(Released { entry, outcome });
                continue;
            }
            // Written now and then: it only bounds how long it stays without a daemon.
            Judgement::Proven if time::now().as_secs() > entry.proven + UNPROVEN / 10 => {
                entry.proven = time::now().as_secs();
            }
            Judgement::Proven | Judgement::Kept => {}
        }
        left.parked.push(entry);
    }
    if left != before
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
pub(crate) fn release(entry: &Entry) -> Result<(), String> {
    let kind = entry.config.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str);
    let answer = run(kind.unwrap_or_default(), &entry.path, "DEL", entry, &[]);
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
    ips: &[IpAddr],
) -> Result<Answer, Failure> {
    let program = delegate::find(kind, path)?;
    let joined = std::env::join_paths(path).unwrap_or_default();
    let args = match ips {
        [one] => format!("IgnoreUnknown=1;IP={one}"),
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
    delegate::run(&program, &set, &config)
}

/// Releases what is parked of a network, for a person. Without `force` only what nobody has.
///
/// # Errors
/// Another call is at work.
pub fn release_network(
    dir: &Path,
    socket: &Path,
    boot: Option<&str>,
    network: &str,
    force: bool,
) -> Result<Vec<Released>, &'static str> {
    let lock = Lock::take(dir, network);
    let _lock = lock.ok_or("a call of the plugin is at work: try again")?;
    let state = State::read(dir, network).unwrap_or_default();
    if force {
        return Ok(keep(dir, network, state, |_| Judgement::Over));
    }
    let judge = judge(socket, boot, &state, None);
    Ok(keep(dir, network, state, judge))
}

/// Addresses, as a person reads them.
pub(crate) fn list(ips: &[IpAddr]) -> String {
    let ips: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    ips.join(" and ")
}
