//! ADD: checks the address that the delegate assigned, and parks it if it is still held.
//!
//! To park an address, it is freed under the runtime's id and reserved again under an id of this plugin; then another one
//! is requested. If the process is killed between any two steps, nothing is lost: the entry in the state file is written
//! before its reservation is made, a runtime that got no result runs DEL, and a DEL of a reservation that does not exist
//! succeeds.
//!
//! The invariant: the returned result is the delegate's result of the last ADD under the runtime's own id and interface,
//! and nothing was freed under these since.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::ask::{Address, Question, State as Holding, ask};
use crate::cni::{Code, Failure, addresses, error_of};
use crate::config::WhenAllHeld;
use crate::delegate::{Answer, NoAnswer};
use crate::install;
use crate::name::{IFNAME, Parked};
use crate::parked::{self, list};
use crate::plugin::Call;
use crate::state::{Entry, Lock, State};
use crate::tally::Event;
use crate::time::{self, Deadline};

/// Maximum number of addresses that one call tries.
const TRIES: u32 = 3;
/// Maximum number of parked reservations of one network.
const MOST: usize = 8;
/// How long to wait for an address whose DEL is running.
const LEAVING: Duration = Duration::from_millis(50);
/// Time between two questions about it.
const PAUSE: Duration = Duration::from_millis(5);

/// The held addresses of a result, and how many addresses of the network can be assigned.
struct Found {
    held: Vec<Address>,
    usable: Option<u64>,
}

/// What happened to a held result.
enum Outcome {
    /// It could not be parked, and is still reserved for the runtime's container.
    Untouched,
    /// As [`Outcome::Untouched`], because the maximum number is parked already.
    Full,
    /// It was freed under the runtime's id. The entry under which it is parked, unless that failed.
    GivenBack(Option<Entry>),
}

/// Serves an ADD. A parked reservation is released only after it.
pub(crate) fn add(call: &Call) -> Result<Answer, Failure> {
    let answer = hand_out(call);
    parked::tend(call);
    answer
}

fn hand_out(call: &Call) -> Result<Answer, Failure> {
    let mut answer = call.add()?;
    if !call.config.may_retry(&call.environment) {
        return Ok(answer);
    }
    if is_exhausted(&answer) {
        return with_room(call, answer, None);
    }
    for tries in 1..=TRIES {
        let ips = answer.is_ok().then(|| addresses(&answer.stdout)).flatten();
        let Some(ips) = ips else { return Ok(answer) };
        let Some(found) = who_has(call, &ips) else { return Ok(answer) };
        // This does not fail with `whenAllHeld`: the range may have more addresses, which may not be held.
        if tries == TRIES {
            return Ok(given(call, answer, &said(&found.held)));
        }
        let parked = match park(call, &ips, &found) {
            Outcome::Untouched => return Ok(given(call, answer, &said(&found.held))),
            Outcome::Full => return all_held(call, answer, &found.held),
            Outcome::GivenBack(entry) => entry,
        };
        answer = call.add()?;
        if is_exhausted(&answer) {
            return with_room(call, answer, parked.map(|entry| (entry, found.held)));
        }
    }
    Ok(answer)
}

/// Whether the delegate answered that its range has no free address (host-local's `allocator.Get`).
fn is_exhausted(answer: &Answer) -> bool {
    let error = (!answer.is_ok()).then(|| error_of(&answer.stdout)).flatten();
    error.is_some_and(|(_, msg)| msg.contains("no IP addresses available"))
}

/// The held ones of these addresses. `None`: none is held, or it is not known.
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
        match most_urgent(&told.addresses, ips) {
            Holding::Held => {
                let mut held = told.addresses;
                held.retain(|one| one.state == Holding::Held && ips.contains(&one.ip));
                return Some(Found { held, usable: told.usable });
            }
            // Its DEL frees the IP first and then removes the device, as usual.
            Holding::Leaving => {
                deadline.left()?;
                std::thread::sleep(PAUSE);
            }
            Holding::Unknown => {
                call.count(Event::Unknown);
                call.say(&format!("ipwatch does not know whether {} is held", list(ips)));
                return None;
            }
            Holding::Free => return None,
        }
    }
}

/// What the answer about some addresses calls for. One of which nothing is known does not hide that another one is about to
/// go, and nobody else's address counts.
fn most_urgent(told: &[Address], ips: &[IpAddr]) -> Holding {
    let is = |state: &Holding| told.iter().any(|one| one.state == *state && ips.contains(&one.ip));
    let urgent = [Holding::Held, Holding::Leaving, Holding::Unknown].into_iter().find(is);
    urgent.unwrap_or(Holding::Free)
}

fn park(call: &Call, ips: &[IpAddr], found: &Found) -> Outcome {
    let config = &call.config;
    let cannot = |why: &str| {
        call.count(Event::NotParked);
        call.say(&format!("{} is still held but cannot be parked: {why}", list(ips)));
        Outcome::Untouched
    };
    let _lock = match Lock::take(&config.state_dir, &config.name) {
        Ok(lock) => lock,
        Err(error) => return cannot(&format!("the lock cannot be taken: {error}")),
    };
    // Checked under the lock, which `ipwatch cni uninstall` takes after it has set the mark: what is parked before is
    // released by it.
    if install::is_unwrapped(&config.state_dir, &config.name) {
        return cannot("the network is no longer wrapped, and nothing would release it");
    }
    let mut state = match parked::load(call) {
        Ok(state) => state,
        Err(error) => return cannot(&error.to_string()),
    };
    if !has_room(call, &mut state, ips, most(found.usable)) {
        let _ = state.write(&config.state_dir, &config.name);
        cannot("the maximum number of addresses is parked already");
        return Outcome::Full;
    }
    let Some(boot) = call.boot().map(str::to_owned) else {
        return cannot("the boot id cannot be read");
    };
    let cookie = found.held.iter().find_map(|one| one.netns.cookie).unwrap_or(0);
    // Unique within this boot.
    let nonce = time::now().as_nanos() as u64;
    let entry = Entry {
        id: Parked { boot, cookie, nonce }.id(),
        ifname: IFNAME.to_owned(),
        ips: ips.to_vec(),
        config: config.for_parked(ips),
        path: call.environment.path.clone(),
        unanswered_since: None,
        next_try: 0,
        who: said(&found.held),
    };
    state.parked.push(entry.clone());
    if let Err(error) = state.write(&config.state_dir, &config.name) {
        return cannot(&error.to_string());
    }
    let gave_back = call.run_within("DEL", parked::STEP);
    let why_not = match &gave_back {
        Ok(answer) if !answer.is_ok() => Some("the delegate's DEL failed".to_owned()),
        Err(NoAnswer::NotStarted(failure)) => Some(failure.to_string()),
        _ => None,
    };
    if let Some(why) = why_not {
        // The delegate did not free it, so nothing is reserved under the parked id.
        state.parked.retain(|known| known.id != entry.id);
        let _ = state.write(&config.state_dir, &config.name);
        return cannot(&why);
    }
    if gave_back.is_ok() && reserve(call, &entry) {
        call.count(Event::Parked);
        call.say(&format!("parked {}: {}", list(ips), entry.who));
        return Outcome::GivenBack(Some(entry));
    }
    call.count(Event::NotParked);
    // It may be reserved under the parked id or not: a DEL succeeds in both cases. If it fails, a later call repeats it.
    if parked::release(&entry, &[], parked::STEP).is_ok() {
        state.parked.retain(|known| known.id != entry.id);
        let _ = state.write(&config.state_dir, &config.name);
    }
    Outcome::GivenBack(None)
}

/// Whether the store has just assigned one of an entry's addresses to another container, so that somebody has removed its
/// parked reservation.
fn is_phantom(entry: &Entry, ips: &[IpAddr]) -> bool {
    entry.ips.iter().any(|ip| ips.contains(ip))
}

/// Drops the phantoms. Of an entry of both families the address of the other one may still be reserved.
fn drop_phantoms(state: &mut State, ips: &[IpAddr], path: &[PathBuf]) {
    state.parked.retain(|entry| {
        !is_phantom(entry, ips) || parked::release(entry, path, parked::STEP).is_err()
    });
}

/// Whether these addresses may be parked beside what is parked already, and at most so many in all. After each call one entry
/// is released of those that are no longer held, which may be too late for this one: then it is released now.
fn has_room(call: &Call, state: &mut State, ips: &[IpAddr], most: usize) -> bool {
    drop_phantoms(state, ips, &call.environment.path);
    let is_full =
        |state: &State| state.parked.iter().filter(|entry| !is_phantom(entry, ips)).count() >= most;
    if is_full(state) {
        make_room(call, state);
    }
    !is_full(state)
}

/// Releases an entry that is no longer held, to park another address in its place.
fn make_room(call: &Call, state: &mut State) {
    let (verdicts, now) = (parked::judge_for(call, state), time::now().as_secs());
    let is_over = |at: usize, entry: &Entry| {
        entry.is_due(now) && verdicts.get(at).is_some_and(|verdict| verdict.is_over())
    };
    let at = state.parked.iter().enumerate().position(|(at, entry)| is_over(at, entry));
    if let Some(at) = at {
        release(call, state, at, now);
    }
}

/// Releases an entry because this call needs its address or its place. Returns whether that was done.
fn release(call: &Call, state: &mut State, at: usize, now: u64) -> bool {
    let Some(entry) = state.parked.get_mut(at) else { return false };
    if let Err(why) = parked::release(entry, &call.environment.path, parked::QUICK) {
        call.say(&format!("{} cannot be released: {why}", entry.id));
        entry.put_off(now);
        return false;
    }
    state.parked.remove(at);
    call.count(Event::Released);
    true
}

/// Runs ADD under a parked id. Returns whether it got exactly the requested addresses.
fn reserve(call: &Call, entry: &Entry) -> bool {
    let Ok(answer) = parked::run(&call.config.kind, &entry.path, "ADD", entry, parked::STEP) else {
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

/// How many addresses may be parked: at most eight and at most a tenth of the usable ones, but always one.
fn most(usable: Option<u64>) -> usize {
    let tenth = usable.and_then(|usable| usize::try_from(usable / 10).ok()).unwrap_or(MOST);
    tenth.clamp(1, MOST)
}

/// Returns a held address, as it would be returned without this plugin.
fn given(call: &Call, answer: Answer, who: &str) -> Answer {
    call.count(Event::GaveHeld);
    call.say(&format!("returned an address that is still held: {who}"));
    answer
}

/// No more addresses may be parked, and the last result is still reserved for the container.
fn all_held(call: &Call, answer: Answer, held: &[Address]) -> Result<Answer, Failure> {
    if held.iter().any(|one| one.critical)
        && let Some(failure) = refusal(call, &said(held))
    {
        // A runtime runs DEL after a failed ADD, but not every runtime at once.
        let _ = call.run("DEL");
        return Err(failure);
    }
    Ok(given(call, answer, &said(held)))
}

/// The range has no free address, and some of it are parked. Releases a parked address for this ADD: one that is no longer
/// held or, without such, the oldest, which is then returned as it would be without this plugin. `mine`: what this ADD has
/// just parked, and its held addresses.
fn with_room(
    call: &Call,
    failed: Answer,
    mine: Option<(Entry, Vec<Address>)>,
) -> Result<Answer, Failure> {
    let config = &call.config;
    let (mine, held) = mine.unzip();
    let lock = Lock::take(&config.state_dir, &config.name);
    let known = lock.as_ref().ok().and_then(|_| parked::load(call).ok());
    let may_write = known.is_some();
    // The entry of this call is known without the lock too, because no other call uses its id.
    let mut state = known.unwrap_or_else(|| State { parked: Vec::from_iter(mine) });
    let verdicts = parked::judge_for(call, &mut state);
    let now = time::now().as_secs();
    let order = |at: &usize| {
        let is_over = verdicts.get(*at).is_some_and(|verdict| verdict.is_over());
        let waits = state.parked.get(*at).is_some_and(|entry| !entry.is_due(now));
        (!is_over, waits, *at)
    };
    let Some(at) = (0..state.parked.len()).min_by_key(order) else { return Ok(failed) };
    let is_over = verdicts.get(at).is_some_and(|verdict| verdict.is_over());
    let critical = verdicts.iter().any(|verdict| verdict.critical)
        || held.as_ref().is_some_and(|held| held.iter().any(|one| one.critical));
    let who = held.map_or_else(|| parked::said(&state), |held| said(&held));
    if !is_over
        && critical
        && let Some(failure) = refusal(call, &who)
    {
        return Err(failure);
    }
    let is_released = release(call, &mut state, at, now);
    if may_write {
        let _ = state.write(&config.state_dir, &config.name);
    }
    drop(lock);
    if !is_released {
        return Ok(failed);
    }
    let answer = call.add()?;
    if !answer.is_ok() {
        return Ok(answer);
    }
    if !is_over {
        return Ok(given(call, answer, &who));
    }
    // Another call may have been given the one that was released, and this one an address that was freed meanwhile.
    match addresses(&answer.stdout).and_then(|ips| who_has(call, &ips)) {
        Some(found) => all_held(call, answer, &found.held),
        None => Ok(answer),
    }
}

/// The error of the ADD if `whenAllHeld` is `fail`.
fn refusal(call: &Call, who: &str) -> Option<Failure> {
    (call.config.when_all_held == WhenAllHeld::Fail).then(|| {
        call.count(Event::AllHeld);
        Failure::new(Code::TryAgain, who)
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
