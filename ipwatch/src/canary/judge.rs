//! What the marks of one run prove of each event. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::marks::Mark;
use crate::sources::probes::Rung;

/// What is known of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All of it was seen, the slowest after so many nanoseconds.
    Seen(u64),
    /// It was made, and this of it was not told.
    NotSeen(String),
    /// No canary can make it here, and why.
    NotTried(String),
    /// It could not be made, or not be told, for a reason that may pass.
    NotNow(String),
}

/// Why a step was left out, as the stage says it, by the word for the step.
pub(crate) type LeftOut = BTreeMap<String, String>;

/// An event, the step that makes it, and what is seen of it.
type Expected = (&'static str, &'static str, &'static [(Mark, &'static str)]);

/// By the names of the ladder.
const EXPECTED: &[Expected] = &[
    ("process-fork", "children", &[(Mark::Fork, "a fork")]),
    ("process-exec", "children", &[(Mark::Exec, "an exec")]),
    ("process-exit", "children", &[(Mark::Exit, "an exit")]),
    ("netns-release", "children", &[(Mark::Release, "the release of a netns")]),
    ("task-freed", "children", &[(Mark::Free, "a freed task")]),
    ("netns-join", "netns", &[(Mark::Join, "a task that enters a netns")]),
    ("sigkill", "children", &[(Mark::Kill, "a SIGKILL")]),
    ("netns-created", "netns", &[(Mark::Created, "a new netns")]),
    ("netns-teardown-begin", "teardown", &[(Mark::Dying, "a teardown that begins")]),
    ("netns-teardown-end", "teardown", &[(Mark::Gone, "a teardown that ends")]),
    (
        "ipv4-address",
        "ipv4",
        &[(Mark::Ipv4Up, "an address that comes"), (Mark::Ipv4Down, "one that goes")],
    ),
    (
        "ipv6-address",
        "ipv6",
        &[(Mark::Ipv6Up, "an address that comes"), (Mark::Ipv6Down, "one that goes")],
    ),
    (
        "ipv6-usable",
        "ipv6",
        &[
            (Mark::Ipv6Ready, "an address that is usable"),
            (Mark::Ipv6Peer, "another peer"),
            (Mark::Ipv6Removed, "an address that is taken off"),
        ],
    ),
    ("ipv6-dad-failure", "dad", &[(Mark::DadFailed, "a duplicate")]),
    ("device-moved", "device", &[(Mark::Moved, "a device that moves")]),
    ("neighbour-update", "neighbour", &[(Mark::Neighbour, "an update")]),
    ("arp-claim", "arp", &[(Mark::Claimed, "a claim")]),
    (
        "cni-call",
        "plugin",
        &[(Mark::CallBegan, "a plugin that begins"), (Mark::CallEnded, "one that ends")],
    ),
    ("netns-list", "lists", &[(Mark::NetnsListed, "a netns")]),
    ("task-list", "lists", &[(Mark::TaskListed, "a task")]),
    ("file-list", "lists", &[(Mark::FileListed, "an fd")]),
];

/// What is to be seen of these events: while the stage stands, or when it has gone.
pub(super) fn wanted(
    events: &[(&str, Rung)],
    left_out: &LeftOut,
    standing: bool,
) -> BTreeSet<Mark> {
    let attached =
        |name: &str| events.iter().any(|(event, rung)| *event == name && *rung != Rung::Socket);
    EXPECTED
        .iter()
        .filter(|(event, step, _)| attached(event) && !left_out.contains_key(*step))
        .filter(|(_, step, _)| (*step == "teardown") != standing)
        .flat_map(|(_, _, marks)| marks.iter().map(|(mark, _)| *mark))
        .collect()
}

/// What a run says of one event that stands on this rung; `held_back`: records of its kinds were lost or held back
/// meanwhile.
pub(crate) fn judge(
    event: &str,
    rung: Rung,
    marks: &BTreeMap<Mark, u64>,
    left_out: &LeftOut,
    held_back: bool,
) -> Verdict {
    let Some((_, step, expected)) = EXPECTED.iter().find(|(name, ..)| *name == event) else {
        return Verdict::NotTried("no step makes it".to_owned());
    };
    if rung == Rung::Socket {
        let why = "only the host's links are heard, on which the canary sends nothing";
        return Verdict::NotTried(why.to_owned());
    }
    let missing: Vec<&str> = expected
        .iter()
        .filter(|(mark, _)| !marks.contains_key(mark))
        .map(|(_, text)| *text)
        .collect();
    if missing.is_empty() {
        let slowest = expected.iter().filter_map(|(mark, _)| marks.get(mark)).max();
        return Verdict::Seen(slowest.copied().unwrap_or_default());
    }
    // A whole run that failed leaves every step out.
    if let Some(why) = left_out.get("all") {
        return Verdict::NotNow(why.clone());
    }
    if let Some(why) = left_out.get(*step) {
        return match *step {
            "teardown" | "lists" => Verdict::NotNow(why.clone()),
            _ => Verdict::NotTried(why.clone()),
        };
    }
    if held_back {
        return Verdict::NotNow("records were lost or held back meanwhile".to_owned());
    }
    Verdict::NotSeen(missing.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(marks: &[(Mark, u64)]) -> BTreeMap<Mark, u64> {
        marks.iter().copied().collect()
    }

    fn verdict(event: &str, seen: &[(Mark, u64)], left_out: &[(&str, &str)]) -> Verdict {
        let left_out =
            left_out.iter().map(|(step, why)| ((*step).to_owned(), (*why).to_owned())).collect();
        judge(event, Rung::Fentry, &marks(seen), &left_out, false)
    }

    #[test]
    fn every_event_of_the_ladder_has_a_step() {
        let mut events: Vec<&str> = crate::sources::probes::event_names().collect();
        let mut expected: Vec<&str> = EXPECTED.iter().map(|(event, ..)| *event).collect();
        events.sort_unstable();
        expected.sort_unstable();
        assert_eq!(expected, events);
    }

    #[test]
    fn an_event_is_seen_when_all_of_it_is() {
        let whole = [(Mark::Ipv4Up, 90_000), (Mark::Ipv4Down, 120_000)];
        assert_eq!(verdict("ipv4-address", &whole, &[]), Verdict::Seen(120_000));
        let half = verdict("ipv4-address", &whole[..1], &[]);
        assert_eq!(half, Verdict::NotSeen("one that goes".to_owned()));
        let none = verdict("sigkill", &whole, &[]);
        assert_eq!(none, Verdict::NotSeen("a SIGKILL".to_owned()));
    }

    #[test]
    fn what_was_not_made_proves_nothing() {
        let off = [("ipv6", "IPv6 is off")];
        let not_tried = Verdict::NotTried("IPv6 is off".to_owned());
        assert_eq!(verdict("ipv6-address", &[], &off), not_tried);
        assert_eq!(verdict("sigkill", &[(Mark::Kill, 1)], &off), Verdict::Seen(1));
        // The steps before it were made and seen.
        let failed = [("all", "the stage hangs")];
        assert_eq!(verdict("sigkill", &[(Mark::Kill, 1)], &failed), Verdict::Seen(1));
        let not_now = Verdict::NotNow("the stage hangs".to_owned());
        assert_eq!(verdict("process-fork", &[], &failed), not_now);
    }

    #[test]
    fn a_loss_is_no_proof_of_blindness() {
        let lost = judge("sigkill", Rung::TpBtf, &marks(&[]), &LeftOut::new(), true);
        assert!(matches!(lost, Verdict::NotNow(_)), "{lost:?}");
    }

    #[test]
    fn a_socket_hears_only_the_hosts_links() {
        let verdict = judge("arp-claim", Rung::Socket, &marks(&[]), &LeftOut::new(), false);
        assert!(matches!(verdict, Verdict::NotTried(_)), "{verdict:?}");
    }
}
