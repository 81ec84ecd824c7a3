//! ADD: check what the delegate handed out, and park what is still held.
//!
//! A held address is given back under the runtime's id, reserved again under one of ours, and another one is asked for.
//! The order is such that a process that is killed between any two steps loses nothing: the entry of the state file is
//! written before its reservation is made, a runtime that got no result runs DEL, and a DEL of what is not there succeeds.
//!
//! The invariant: a result is returned only as it came from the last ADD under the runtime's own id and interface, and
//! nothing was given back under these since.

use std::net::IpAddr;
use std::time::Duration;

use crate::ask::{Address, Question, State as Holding, ask};
use crate::cni::{Code, Failure, addresses};
use crate::config::WhenAllHeld;
use crate::delegate::Answer;
use crate::name::{IFNAME, Parked};
use crate::parked::{self, list};
use crate::plugin::Call;
use crate::state::{Entry, Lock};
use crate::tally::Event;
use crate::time::{self, Deadline};

/// ADDs of one call.
const TRIES: u32 = 3;
/// Parked reservations of one network.
const MOST: usize = 8;
/// How long an address is waited for whose DEL is running.
const LEAVING: Duration = Duration::from_millis(50);
/// Between two questions about it.
const PAUSE: Duration = Duration::from_millis(5);

/// What is known of a result.
struct Found {
    held: Vec<Address>,
    usable: Option<u64>,
}

/// What became of a held result.
enum Outcome {
    /// It could not be parked, and is reserved as it was.
    Untouched,
    /// It was given back; the entry under which it is parked, if it could be.
    GivenBack(Option<Entry>),
}

/// ADD.
pub(crate) fn add(call: &Call) -> Result<Answer, Failure> {
    parked::tend(call);
    let mut answer = call.run("ADD")?;
    if !call.config.may_retry(&call.environment) {
        return Ok(answer);
    }
    for tries in 1..=TRIES {
        let ips = answer.is_ok().then(|| addresses(&answer.stdout)).flatten();
        let Some(ips) = ips else { return Ok(answer) };
        let Some(found) = who_has(call, &ips) else { return Ok(answer) };
        if tries == TRIES {
            return all_held(call, answer, &found.held);
        }
        let entry = match park(call, &ips, &found) {
            Outcome::Untouched => return all_held(call, answer, &found.held),
            Outcome::GivenBack(entry) => entry,
        };
        answer = match call.run("ADD") {
            Ok(next) if next.is_ok() => next,
            failed => return none_left(call, failed, entry, &found.held),
        };
    }
    Ok(answer)
}

/// Who has any of these addresses, if it is proven that somebody has one.
fn who_has(call: &Call, ips: &[IpAddr]) -> Option<Found> {
    let question = Question { ips, ..call.question("add") };
    let deadline = Deadline::within(LEAVING);
    loop {
        let told = match ask(&call.config.socket, &question, call.config.patience) {
            Ok(told) => told,
            Err(why) => {
                call.count(Event::Unanswered(why));
                call.say(&format!("ipwatch did not say whether {} is held: {why}", list(ips)));
                return None;
            }
        };
        let is =
            |state| told.addresses.iter().any(|one| one.state == state && ips.contains(&one.ip));
        if is(Holding::Held) {
            let mut held = told.addresses;
            held.retain(|one| one.state == Holding::Held && ips.contains(&one.ip));
            return Some(Found { held, usable: told.usable });
        }
        if is(Holding::Unknown) {
            call.count(Event::Unknown);
            return None;
        }
        if !is(Holding::Leaving) {
            return None;
        }
        // Its own DEL takes the device away after the IP is free: the usual order of things.
        deadline.left()?;
        std::thread::sleep(PAUSE);
    }
}

fn park(call: &Call, ips: &[IpAddr], found: &Found) -> Outcome {
    let config = &call.config;
    let cannot = |why: &str| {
        call.count(Event::NotParked);
        call.say(&format!("{} is held and cannot be parked: {why}", list(ips)));
        Outcome::Untouched
    };
    let Some(_lock) = Lock::take(&config.state_dir, &config.name) else {
        return cannot("its lock cannot be had");
    };
    let mut state = match parked::load(call) {
        Ok(state) => state,
        Err(error) => return cannot(&error.to_string()),
    };
    if state.parked.len() >= most(found.usable) {
        return cannot("as many are parked as may be");
    }
    let Some(boot) = call.boot.clone() else { return cannot("the boot id cannot be read") };
    let cookie = found.held.iter().find_map(|one| one.netns.cookie).unwrap_or(0);
    // Unlike any other of this boot.
    let nonce = time::now().as_nanos() as u64;
    let entry = Entry {
        id: Parked { boot, cookie, nonce }.id(),
        ifname: IFNAME.to_owned(),
        ips: ips.to_vec(),
        config: config.for_parked(ips),
        path: call.environment.path.clone(),
        proven: time::now().as_secs(),
        who: said(&found.held),
    };
    state.parked.push(entry.clone());
    if let Err(error) = state.write(&config.state_dir, &config.name) {
        return cannot(&error.to_string());
    }
    let kept = call.run("DEL").is_ok_and(|answer| answer.is_ok()) && reserve(call, &entry);
    if kept {
        call.count(Event::Parked);
        call.say(&format!("parked {}: {}", list(ips), entry.who));
        return Outcome::GivenBack(Some(entry));
    }
    call.count(Event::NotParked);
    // Whatever came of it: a DEL of what is not there succeeds. One that fails is repeated by a later call.
    if parked::release(&entry).is_ok() {
        state.parked.retain(|known| known.id != entry.id);
        let _ = state.write(&config.state_dir, &config.name);
    }
    Outcome::GivenBack(None)
}

/// ADD under a parked id. Whether it got exactly what it asked for.
fn reserve(call: &Call, entry: &Entry) -> bool {
    let path = &call.environment.path;
    let Ok(answer) = parked::run(&call.config.kind, path, "ADD", entry, &entry.ips) else {
        return false;
    };
    let got = answer.is_ok().then(|| addresses(&answer.stdout)).flatten();
    let sorted = |ips: &[IpAddr]| {
        let mut ips = ips.to_vec();
        ips.sort_unstable();
        ips
    };
    got.is_some_and(|got| sorted(&got) == sorted(&entry.ips))
}

/// How many may be parked: eight, and a tenth of the pods that the network has room for, but one always.
fn most(usable: Option<u64>) -> usize {
    let tenth = usable.and_then(|usable| usize::try_from(usable / 10).ok()).unwrap_or(MOST);
    tenth.clamp(1, MOST)
}

/// Everything that was handed out is held, and the last result is still reserved.
fn all_held(call: &Call, answer: Answer, held: &[Address]) -> Result<Answer, Failure> {
    if let Some(failure) = refusal(call, held) {
        // The runtime runs DEL after a failed ADD. Not all do at once.
        let _ = call.run("DEL");
        return Err(failure);
    }
    call.count(Event::GaveHeld);
    call.say(&format!("gave an address that is held: {}", said(held)));
    Ok(answer)
}

/// After an address was parked there is none left: it is given as it would be without this plugin.
fn none_left(
    call: &Call,
    failed: Result<Answer, Failure>,
    entry: Option<Entry>,
    held: &[Address],
) -> Result<Answer, Failure> {
    let Some(entry) = entry else { return failed };
    if let Some(failure) = refusal(call, held) {
        return Err(failure);
    }
    let Some(lock) = Lock::take(&call.config.state_dir, &call.config.name) else { return failed };
    if let Err(why) = parked::release(&entry) {
        call.say(&format!("{} cannot be released: {why}", entry.id));
        return failed;
    }
    if let Ok(mut state) = parked::load(call) {
        state.parked.retain(|known| known.id != entry.id);
        let _ = state.write(&call.config.state_dir, &call.config.name);
    }
    drop(lock);
    let answer = call.run("ADD")?;
    if answer.is_ok() {
        call.count(Event::GaveHeld);
        call.say(&format!("no other address is left than one that is held: {}", said(held)));
    }
    Ok(answer)
}

/// The error of an ADD that is to fail rather than to share an address: only where that is firing and critical.
fn refusal(call: &Call, held: &[Address]) -> Option<Failure> {
    let fails =
        call.config.when_all_held == WhenAllHeld::Fail && held.iter().any(|one| one.critical);
    fails.then(|| {
        call.count(Event::AllHeld);
        Failure::new(Code::TryAgain, said(held))
    })
}

fn said(held: &[Address]) -> String {
    let one = |one: &Address| {
        let who = one.who.chars().filter(|c| !c.is_control()).take(400).collect::<String>();
        if who.is_empty() { format!("{} is still held", one.ip) } else { who }
    };
    held.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
