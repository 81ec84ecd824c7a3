//! What each condition should say, from the findings that fire and from what cannot be judged. Pure.

use std::collections::BTreeMap;

use crate::contract::holders_in_short;
use crate::escape::escape;
use crate::finding::{Code, Finding, Severity, Status};
use crate::remedy::said;
use crate::sinks::{cut, events, journal};

/// Maximum length of a message, in bytes.
const MOST: usize = 1024;
/// Maximum length of the text about one finding, in bytes.
const PART: usize = 250;
/// Number of findings that are named.
const NAMED: usize = 3;
/// Characters of an id that are shown: enough for `ipwatch explain`.
const SHORT: usize = 8;

/// The conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A range has no IP left.
    Exhausted,
    /// Something that is over or stuck keeps an IP.
    Held,
    /// An IP is up twice.
    Conflict,
}

impl Kind {
    /// Every one, in the order in which they are written.
    pub(super) const ALL: [Self; 3] = [Self::Exhausted, Self::Held, Self::Conflict];

    /// The condition's type.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exhausted => "PodIPExhausted",
            Self::Held => "PodIPHeld",
            Self::Conflict => "PodIPConflict",
        }
    }

    /// The codes that it rests on: while one of them cannot be judged, the condition is not known to be over.
    pub(super) fn codes(self) -> &'static [Code] {
        match self {
            Self::Exhausted => &[Code::IpamRangeExhausting],
            Self::Held => &[
                Code::IpHeldByStuckProcess,
                Code::IpHeldByDeadSandbox,
                Code::IpHeldByDeletedPod,
                Code::NetnsLeaked,
                Code::IpReleasedButHeld,
                Code::IpConflictImminent,
            ],
            Self::Conflict => &[Code::IpDuplicate, Code::NeighbourConflict],
        }
    }

    /// The condition that a finding makes true while it fires. A range that has a few IPs left is not exhausted.
    pub(super) fn of(finding: &Finding) -> Option<Self> {
        let kind = Self::ALL.into_iter().find(|kind| kind.codes().contains(&finding.code))?;
        let least = if kind == Self::Exhausted { Severity::Critical } else { Severity::Warning };
        (finding.status == Status::Firing && finding.severity >= least).then_some(kind)
    }

    fn clear(self) -> State {
        let (reason, message) = match self {
            Self::Exhausted => ("NoRangeExhausted", "every range of pod IPs has some left"),
            Self::Held => ("NoIPHeld", "no pod IP is held by what is over or stuck"),
            Self::Conflict => ("NoIPConflict", "no pod IP is up twice"),
        };
        State { value: Value::False, reason: reason.to_owned(), message: message.to_owned() }
    }
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    True,
    False,
    Unknown,
}

impl Value {
    pub(super) const ALL: [Self; 3] = [Self::True, Self::False, Self::Unknown];

    /// As the API writes it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What a condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) value: Value,
    pub(super) reason: String,
    pub(super) message: String,
}

/// A firing finding, as far as a condition needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    kind: Kind,
    code: Code,
    severity: Severity,
    since: String,
    line: String,
}

impl Note {
    /// `None`: it makes no condition true.
    pub(super) fn of(finding: &Finding) -> Option<Self> {
        let kind = Kind::of(finding)?;
        let since = finding.firing_at.as_ref().unwrap_or(&finding.since).clone();
        let line = line(finding);
        Some(Self { kind, code: finding.code, severity: finding.severity, since, line })
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }
}

/// `10.0.3.17 of shop/api-0, held by pid 812 java (ipwatch explain wv4akx7q)`.
fn line(finding: &Finding) -> String {
    let mut line = journal::about(finding).unwrap_or_else(|| finding.code.to_string());
    if let Some(pod) = journal::named(finding) {
        line.push_str(&format!(" of {}", said(&pod)));
    }
    if let Some(holders) = holders_in_short(&finding.holders) {
        line.push_str(&format!(", held by {holders}"));
    }
    let id: String = finding.id.chars().take(SHORT).collect();
    let line = cut(escape(&line).into_owned(), PART);
    format!("{line} (ipwatch explain {})", escape(&id))
}

/// What is known of one code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sight {
    /// It cannot be judged now.
    pub blind: bool,
    /// A finding of an earlier run may not have been found again yet.
    pub warms_up: bool,
}

/// What a condition follows from.
#[derive(Debug)]
pub(super) struct Grounds<'a> {
    pub(super) firing: &'a BTreeMap<String, Note>,
    pub(super) sight: &'a BTreeMap<Code, Sight>,
    /// For so long a code could not be judged that nothing is known any more.
    pub(super) is_long_blind: bool,
    /// A finding that makes it true has fired in this run.
    pub(super) was_seen: bool,
    /// The status on the node, if it has one.
    pub(super) told: Option<Value>,
}

/// What a condition should say. `None`: what it says is kept, because nothing is known yet that is better.
pub(super) fn judge(kind: Kind, grounds: &Grounds<'_>) -> Option<State> {
    let sight = |code: &Code| grounds.sight.get(code).copied();
    // A code of which nothing was heard yet cannot be judged.
    let is_blind = |code: &Code| sight(code).is_none_or(|sight| sight.blind);
    let mut firing: Vec<&Note> = grounds.firing.values().filter(|note| note.kind == kind).collect();
    firing.sort_by(|a, b| (b.severity, &a.since).cmp(&(a.severity, &b.since)));
    let judged: Vec<&Note> = firing.iter().copied().filter(|note| !is_blind(&note.code)).collect();
    if let Some(worst) = judged.first() {
        let (reason, message) = (events::reason(worst.code), message(&judged));
        return Some(State { value: Value::True, reason, message });
    }
    if kind.codes().iter().any(is_blind) {
        return grounds.is_long_blind.then(|| unknown(&firing));
    }
    let warms_up = kind.codes().iter().any(|code| sight(code).is_none_or(|sight| sight.warms_up));
    // An earlier run found something, and this one has not had the time to find it again.
    if grounds.told == Some(Value::True) && !grounds.was_seen && warms_up {
        return None;
    }
    Some(kind.clear())
}

/// Whether a condition rests on a code that cannot be judged.
pub(super) fn is_blind(kind: Kind, sight: &BTreeMap<Code, Sight>) -> bool {
    kind.codes().iter().any(|code| sight.get(code).is_none_or(|sight| sight.blind))
}

fn unknown(last: &[&Note]) -> State {
    let mut text =
        "a source that this rests on does not answer: ipwatch doctor, on the node".to_owned();
    if !last.is_empty() {
        text = format!("{text}; last known: {}", message(last));
    }
    let reason = "SourcesDoNotAnswer".to_owned();
    State { value: Value::Unknown, reason, message: cut(text, MOST) }
}

fn message(firing: &[&Note]) -> String {
    let lines: Vec<&str> = firing.iter().take(NAMED).map(|note| note.line.as_str()).collect();
    let mut text = lines.join("; ");
    if firing.len() > NAMED {
        text.push_str(&format!("; and {} more", firing.len() - NAMED));
    }
    cut(text, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::tests::{opened, updated};

    fn firing(id: &str, change: impl FnOnce(&mut Finding)) -> (String, Note) {
        let mut finding = updated(id).finding;
        change(&mut finding);
        (id.to_owned(), Note::of(&finding).expect("it makes a condition true"))
    }

    fn sight(blind: &[Code], warms_up: bool) -> BTreeMap<Code, Sight> {
        let of = |code: &Code| (*code, Sight { blind: blind.contains(code), warms_up });
        Code::ALL.iter().map(of).collect()
    }

    fn held(notes: &[(String, Note)], sight: &BTreeMap<Code, Sight>, long: bool) -> Option<State> {
        told(notes, sight, long, Some(Value::False), true)
    }

    fn told(
        notes: &[(String, Note)],
        sight: &BTreeMap<Code, Sight>,
        is_long_blind: bool,
        told: Option<Value>,
        was_seen: bool,
    ) -> Option<State> {
        let firing = notes.iter().cloned().collect();
        let grounds = Grounds { firing: &firing, sight, is_long_blind, was_seen, told };
        judge(Kind::Held, &grounds)
    }

    #[test]
    fn a_finding_that_fires_makes_it_true_and_says_who_holds_what() {
        let state = held(&[firing("dvte6lcgcbjvp6en", |_| {})], &sight(&[], false), false).unwrap();
        assert_eq!((state.value, &*state.reason), (Value::True, "IpHeldByStuckProcess"));
        assert_eq!(
            state.message,
            "10.0.3.17 of shop/api-0, held by pid 812 java (ipwatch explain dvte6lcg)"
        );
        let state = held(&[], &sight(&[], false), false).unwrap();
        assert_eq!((state.value, &*state.reason), (Value::False, "NoIPHeld"));
    }

    #[test]
    fn context_what_was_seen_once_and_a_range_with_some_left_make_nothing_true() {
        let mut info = updated("a").finding;
        info.severity = Severity::Info;
        let mut low = updated("a").finding;
        (low.code, low.severity) = (Code::IpamRangeExhausting, Severity::Warning);
        let mut out = low.clone();
        out.severity = Severity::Critical;
        let mut other = updated("a").finding;
        other.code = Code::IpamReservationLeaked;
        for finding in [opened("a").finding, info, low, other] {
            assert_eq!(Kind::of(&finding), None, "{finding:?}");
        }
        assert_eq!(Kind::of(&out), Some(Kind::Exhausted));
    }

    #[test]
    fn a_silence_clears_nothing() {
        let blind = sight(&[Code::IpHeldByDeletedPod], false);
        assert_eq!(held(&[], &blind, false), None, "for a moment it stays as it is");
        let state = held(&[], &blind, true).unwrap();
        assert_eq!((state.value, &*state.reason), (Value::Unknown, "SourcesDoNotAnswer"));
        // A finding that is judged is true all the same; one that is not is the last that was known.
        let note = [firing("dvte6lcgcbjvp6en", |_| {})];
        assert_eq!(held(&note, &blind, true).unwrap().value, Value::True);
        let state = held(&note, &sight(&[Code::IpHeldByStuckProcess], false), true).unwrap();
        assert_eq!(state.value, Value::Unknown);
        assert!(state.message.contains("last known: 10.0.3.17 of shop/api-0"), "{state:?}");
        assert_eq!(held(&[], &BTreeMap::new(), false), None, "nothing was heard yet");
    }

    #[test]
    fn what_an_earlier_run_found_is_kept_until_this_one_had_the_time_to_find_it() {
        let (warm, cold) = (sight(&[], true), sight(&[], false));
        assert_eq!(told(&[], &warm, false, Some(Value::True), false), None);
        for (sight, was, seen) in [
            (&cold, Some(Value::True), false),
            (&warm, Some(Value::True), true),
            (&warm, Some(Value::False), false),
            (&warm, Some(Value::Unknown), false),
            (&warm, None, false),
        ] {
            assert_eq!(told(&[], sight, false, was, seen).unwrap().value, Value::False, "{was:?}");
        }
    }

    #[test]
    fn many_are_counted_the_worst_first_and_hostile_text_is_one_short_line() {
        let notes: Vec<_> = (0..9)
            .map(|n| {
                firing(&format!("{n}aaaaaaaaaaaaaaa"), |finding| {
                    finding.holders[0].comm = Some("\u{1b}[2J\njava ".repeat(300));
                    finding.subject.pod.as_mut().unwrap().name = Some("a\nb".to_owned());
                    if n == 7 {
                        finding.severity = Severity::Critical;
                        finding.code = Code::IpReleasedButHeld;
                    }
                })
            })
            .collect();
        let state = held(&notes, &sight(&[], false), false).unwrap();
        assert_eq!(state.reason, "IpReleasedButHeld");
        let message = &state.message;
        assert!(message.len() <= MOST && !message.contains(['\n', '\u{1b}']), "{message}");
        assert!(message.contains("(ipwatch explain 7aaaaaaa); "), "{message}");
        assert!(message.ends_with("; and 6 more"), "{message}");
    }

    #[test]
    fn every_reason_is_one_that_the_api_takes() {
        let reasons = Kind::ALL.map(|kind| kind.clear().reason).into_iter();
        let all = Kind::ALL.into_iter().flat_map(Kind::codes).map(|code| events::reason(*code));
        for reason in reasons.chain(all).chain([unknown(&[]).reason]) {
            assert!(reason.starts_with(|c: char| c.is_ascii_uppercase()), "{reason}");
            assert!(reason.chars().all(|c| c.is_ascii_alphanumeric()), "{reason}");
        }
    }
}
