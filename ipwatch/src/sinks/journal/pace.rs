//! Limits the log lines about network namespaces of unprivileged users. Pure.
//!
//! Whoever can create a netns can cause findings about it without end, each with a line when it opens, fires and ends. Each
//! user therefore has a budget of lines, and so have all netns together of which is not known whose they are. Only lines of
//! the lowest severity are limited: a finding that asks a person to act is always logged. Findings that are not logged are
//! in `ipwatch query findings` and everywhere else.

use std::collections::BTreeMap;

use ipwatch_common::Budget;

use crate::fact::BootNs;
use crate::finding::{Change, ChangeKind, Severity};

/// The user who owns a netns; `None`: not known.
pub type User = Option<u32>;

/// Number of lines at once for each user, and the interval in ns at which one more may be written.
const LINES: Budget = Budget { refill: 10_000_000_000, burst: 128 };
/// Maximum number of users with budgets of their own. All others share that of unknown users.
const MAX_USERS: usize = 64;
/// Minimum interval, in ns, between two lines that tell how many were held back.
const TOLD_EVERY: u64 = 60_000_000_000;

/// The lines about netns of users.
#[derive(Debug, Default)]
pub struct Pace {
    users: BTreeMap<User, Lines>,
}

/// The lines about netns of one user.
#[derive(Debug, Default)]
struct Lines {
    /// See [`Budget::take`].
    full_at: u64,
    held_back: u64,
    /// When the number of those held back may be told.
    tell_at: BootNs,
}

impl Lines {
    fn is_unused(&self, now: BootNs) -> bool {
        self.held_back == 0 && self.full_at <= now.0
    }
}

impl Pace {
    /// Whether a change of a finding about a netns of this user may be logged.
    pub fn admits(&mut self, change: &Change, user: User, now: BootNs) -> bool {
        let is_over = change.change == ChangeKind::Resolved;
        if change.finding.severity != Severity::Info && !is_over {
            return true;
        }
        let lines = self.lines(user, now);
        if let Some(full_at) = LINES.take(lines.full_at, now.0) {
            lines.full_at = full_at;
            return true;
        }
        if lines.held_back == 0 {
            lines.tell_at = lines.tell_at.max(now.plus(TOLD_EVERY));
        }
        lines.held_back = lines.held_back.saturating_add(1);
        false
    }

    fn lines(&mut self, user: User, now: BootNs) -> &mut Lines {
        if self.users.len() >= MAX_USERS && !self.users.contains_key(&user) {
            self.users.retain(|_, lines| !lines.is_unused(now));
        }
        let has_room = self.users.len() < MAX_USERS || self.users.contains_key(&user);
        self.users.entry(user.filter(|_| has_room)).or_default()
    }

    /// How many lines were held back since they were last told, for people, a line for each user.
    pub fn due(&mut self, now: BootNs) -> Vec<String> {
        let due = self.users.iter_mut().filter(|(_, one)| one.held_back > 0 && one.tell_at <= now);
        let told = due.map(|(user, lines)| {
            lines.tell_at = now.plus(TOLD_EVERY);
            let count = std::mem::take(&mut lines.held_back);
            let whose = user.map_or("users that are not known".to_owned(), |uid| format!("uid {uid}"));
            format!(
                "{count} changes of findings about network namespaces of {whose} are not in the log: see `ipwatch query findings`"
            )
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::tests::{opened, resolved};

    const SEC: u64 = 1_000_000_000;

    fn change(severity: Severity) -> Change {
        let mut change = opened("a");
        change.finding.severity = severity;
        change
    }

    /// How many of `tries` are logged.
    fn logged(pace: &mut Pace, user: User, tries: usize, seconds: u64) -> usize {
        let change = change(Severity::Info);
        (0..tries).filter(|_| pace.admits(&change, user, BootNs(seconds * SEC))).count()
    }

    #[test]
    fn thousands_of_findings_of_one_user_fill_no_log_and_are_counted() {
        let mut pace = Pace::default();
        assert_eq!(logged(&mut pace, Some(1000), 3_000, 100), 128);
        assert_eq!(logged(&mut pace, Some(1001), 5, 100), 5, "another user's");
        let in_an_hour: usize =
            (0..3_600).map(|second| logged(&mut pace, Some(1000), 10, 100 + second)).sum();
        assert!((350..=361).contains(&in_an_hour), "{in_an_hour}");
        let told = pace.due(BootNs(4_000 * SEC));
        let count = 3_000 - 128 + 36_000 - in_an_hour;
        let said = " changes of findings about network namespaces of uid 1000 are not in the log: ";
        assert_eq!(told, [format!("{count}{said}see `ipwatch query findings`")]);
        assert!(pace.due(BootNs(5_000 * SEC)).is_empty());
        logged(&mut pace, Some(1000), 3_000, 5_000);
        assert!(pace.due(BootNs(5_059 * SEC)).is_empty(), "not so soon");
        assert_eq!(pace.due(BootNs(5_060 * SEC)).len(), 1);
    }

    #[test]
    fn what_a_person_must_act_on_is_always_logged() {
        let mut pace = Pace::default();
        logged(&mut pace, Some(1000), 1_000, 100);
        for severity in [Severity::Warning, Severity::Critical] {
            assert!(pace.admits(&change(severity), Some(1000), BootNs(100 * SEC)));
        }
        assert!(!pace.admits(&resolved("a"), Some(1000), BootNs(100 * SEC)), "it is over");
    }

    #[test]
    fn many_users_take_no_memory() {
        let mut pace = Pace::default();
        for uid in 0..1_000 {
            logged(&mut pace, Some(uid), 1, 100);
        }
        assert_eq!(pace.users.len(), MAX_USERS + 1);
        logged(&mut pace, Some(5_000), 200, 100);
        let told = pace.due(BootNs(1_000 * SEC));
        assert!(told[0].contains(" of users that are not known are "), "{told:?}");
        assert_eq!(logged(&mut pace, Some(6_000), 200, 10_000), 128, "the others' are full again");
    }
}
