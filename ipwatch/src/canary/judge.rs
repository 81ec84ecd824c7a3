//! What the marks of one run prove about each event. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::marks::Mark;
use crate::sources::probes::Rung;

/// What is known about one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything expected was seen; the slowest part after this many nanoseconds. `None`: the kernel half only counts
    /// it.
    Seen(Option<u64>),
    /// The event was made, and this part of it was not reported.
    NotSeen(String),
    /// The canary cannot make the event here, and why.
    NotTried(String),
    /// The event could not be made, or not be reported, for a temporary reason.
    NotNow(String),
}

/// Why a step was left out, by the stage's name of the step.
pub(crate) type LeftOut = BTreeMap<String, String>;

/// What was seen in one run, and how many nanoseconds after it happened, if a record shows it.
pub(crate) type Marks = BTreeMap<Mark, Option<u64>>;

/// An event, the step that makes it, and what must be seen of it.
type Expected = (&'static str, &'static str, &'static [(Mark, &'static str)]);

/// By the names in the ladder.
const EXPECTED: &[Expected] = &[
    ("process-fork", "children", &[(Mark::Fork, "a fork")]),
    ("process-exec", "children", &[(Mark::Exec, "an exec")]),
    ("process-exit", "children", &[(Mark::Exit, "an exit")]),
    ("netns-release", "release", &[(Mark::Release, "the release of a netns")]),
    ("task-freed", "free", &[(Mark::Free, "a freed task")]),
    ("netns-join", "netns", &[(Mark::Join, "a task that enters a netns")]),
    ("sigkill", "children", &[(Mark::Kill, "a SIGKILL")]),
    ("group-exit", "children", &[(Mark::GroupExit, "a thread that ends all others")]),
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

/// Steps that happen at the end of the stage.
const LAST: [&str; 3] = ["release", "free", "teardown"];

/// Steps whose result cannot be seen, because of which events are attached and which are not.
pub(super) fn untold(events: &[(&str, Rung)]) -> LeftOut {
    let attached = |name: &str| events.iter().any(|(event, _)| *event == name);
    let mut left_out = LeftOut::new();
    let mut leave = |step: &str, why: &str| left_out.insert(step.to_owned(), why.to_owned());
    // The kernel half remembers an exit, and reports the end of a remembered task once (ipwatch-ebpf/src/tasks.rs).
    if !attached("process-exit") {
        leave("release", "it tells only of tasks of which process-exit has told");
        leave("free", "it tells only of tasks of which process-exit has told");
    } else if attached("netns-release") {
        leave("free", "netns-release reports the same end earlier");
    }
    left_out
}

/// What must be seen of these events: while the stage runs, or after it has ended.
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
        .filter(|(_, step, _)| LAST.contains(step) != standing)
        .flat_map(|(_, _, marks)| marks.iter().map(|(mark, _)| *mark))
        .collect()
}

/// The verdict of a run about one event on this rung. `held_back`: whether records of its kinds were lost or suppressed
/// meanwhile.
pub(crate) fn judge(
    event: &str,
    rung: Rung,
    marks: &Marks,
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
        let slowest = expected.iter().filter_map(|(mark, _)| marks.get(mark).copied().flatten());
        return Verdict::Seen(slowest.max());
    }
    // A run that failed as a whole leaves every step out.
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

    fn marks(marks: &[(Mark, u64)]) -> Marks {
        marks.iter().map(|(mark, after)| (*mark, Some(*after))).collect()
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
        assert_eq!(verdict("ipv4-address", &whole, &[]), Verdict::Seen(Some(120_000)));
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
        assert_eq!(verdict("sigkill", &[(Mark::Kill, 1)], &off), Verdict::Seen(Some(1)));
        // The steps before the failure were made and seen.
        let failed = [("all", "the stage hangs")];
        assert_eq!(verdict("sigkill", &[(Mark::Kill, 1)], &failed), Verdict::Seen(Some(1)));
        let not_now = Verdict::NotNow("the stage hangs".to_owned());
        assert_eq!(verdict("process-fork", &[], &failed), not_now);
    }

    #[test]
    fn what_is_only_counted_was_seen_at_no_time() {
        let counted = Marks::from([(Mark::GroupExit, None)]);
        let verdict = judge("group-exit", Rung::Fentry, &counted, &LeftOut::new(), false);
        assert_eq!(verdict, Verdict::Seen(None));
        assert_eq!(Mark::GroupExit.counted(), Some(ipwatch_common::kind::GROUP_EXIT));
    }

    #[test]
    fn the_end_of_a_task_is_told_by_one_event() {
        let verdict = |events: &[(&str, Rung)], event: &str, seen: &[(Mark, u64)]| {
            judge(event, Rung::Fentry, &marks(seen), &untold(events), false)
        };
        let [exit, release, free] =
            ["process-exit", "netns-release", "task-freed"].map(|event| (event, Rung::Fentry));
        let not_seen = |verdict| matches!(verdict, Verdict::NotSeen(_));
        let not_tried = |verdict| matches!(verdict, Verdict::NotTried(_));
        assert!(not_tried(verdict(&[exit, release, free], "task-freed", &[])));
        assert!(not_seen(verdict(&[exit, release, free], "netns-release", &[])));
        assert!(not_seen(verdict(&[exit, free], "task-freed", &[])));
        assert!(not_tried(verdict(&[release, free], "netns-release", &[])));
        assert!(not_tried(verdict(&[release, free], "task-freed", &[])));
        // If one event is not seen, the other is.
        let freed = verdict(&[exit, release, free], "task-freed", &[(Mark::Free, 1)]);
        assert_eq!(freed, Verdict::Seen(Some(1)));
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
