//! When the holders of netns are searched for again, and in which order. A search passes over the open files and mounts of
//! all processes: whoever makes many of them, and a netns without tasks every moment, would have a thread do nothing else.

use std::collections::BTreeMap;

use crate::fact::BootNs;
use crate::map::TenantKind;
use crate::map::request::Sought;

/// After a search there is a pause of so many times its duration: it takes a fifth of a core at most.
const PAUSE: u64 = 4;
/// Maximum length of a pause, in nanoseconds: of one after a search in which every pass was given up.
const LONGEST: u64 = 40_000_000_000;

/// The netns that wait for the next search, which is one for all of them.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waiting: Vec<Sought>,
    not_before: BootNs,
}

impl Pace {
    pub(super) fn add(&mut self, netns: Vec<Sought>) {
        for sought in netns {
            match self.waiting.iter_mut().find(|waits| waits.netns == sought.netns) {
                Some(waits) => *waits = sought,
                None => self.waiting.push(sought),
            }
        }
    }

    /// When the next search is due; `None` if nothing waits for it.
    pub(super) fn due(&self) -> Option<BootNs> {
        (!self.waiting.is_empty()).then_some(self.not_before)
    }

    /// What is searched for now, in the order of precedence: the time of a search does not do for all. Users can make as many
    /// netns without tasks as they like, so that theirs come last, and users take turns. Of one tenant, and of pods and root
    /// together, those come first whose last complete search is longest ago: whoever was not reached is not overtaken by
    /// those that are made meanwhile.
    pub(super) fn take(&mut self) -> Vec<Sought> {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_by_key(|sought| sought.since);
        let mut of_users: BTreeMap<TenantKind, usize> = BTreeMap::new();
        let mut turn = |whose| match whose {
            TenantKind::Pod | TenantKind::Root => 0,
            TenantKind::User(_) => {
                let turn = of_users.entry(whose).or_default();
                *turn += 1;
                *turn
            }
        };
        let mut placed: Vec<(usize, Sought)> =
            waiting.into_iter().map(|sought| (turn(sought.whose), sought)).collect();
        placed.sort_by_key(|(turn, _)| *turn);
        placed.into_iter().map(|(_, sought)| sought).collect()
    }

    /// A search has ended.
    pub(super) fn ended(&mut self, began: BootNs, now: BootNs) {
        self.not_before = now.plus((now.since(began) * PAUSE).min(LONGEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::NetnsRef;

    const MS: u64 = 1_000_000;
    const ALICE: TenantKind = TenantKind::User(Some(1_000));
    const BOB: TenantKind = TenantKind::User(Some(1_001));

    fn sought(cookie: u64, whose: TenantKind, since: u64) -> Sought {
        Sought { netns: NetnsRef::cookie(cookie), whose, since: BootNs(since) }
    }

    fn taken(pace: &mut Pace) -> Vec<u64> {
        pace.take().iter().filter_map(|sought| sought.netns.cookie).collect()
    }

    #[test]
    fn after_a_search_others_have_their_turn() {
        let root = |cookie| sought(cookie, TenantKind::Root, cookie);
        let mut pace = Pace::default();
        assert_eq!(pace.due(), None);
        pace.add(vec![root(1)]);
        assert!(pace.due().is_some_and(|due| due <= BootNs(MS)), "the first one at once");
        assert_eq!(taken(&mut pace), [1]);
        pace.ended(BootNs(MS), BootNs(301 * MS));
        pace.add(vec![root(2), root(3)]);
        pace.add(vec![root(2)]);
        assert_eq!(pace.due(), Some(BootNs(1_501 * MS)));
        assert_eq!(taken(&mut pace), [2, 3], "all in one");
        pace.ended(BootNs(0), BootNs(60_000 * MS));
        pace.add(vec![root(4)]);
        assert_eq!(pace.due(), Some(BootNs(100_000 * MS)), "it waits no longer than that");
    }

    #[test]
    fn netns_of_users_come_after_the_others_and_users_take_turns() {
        let mut pace = Pace::default();
        pace.add((100..600).map(|n| sought(n, ALICE, n)).collect());
        pace.add(vec![
            sought(7, BOB, 700),
            sought(8, BOB, 701),
            sought(9, TenantKind::User(None), 50),
        ]);
        pace.add(vec![sought(1, TenantKind::Root, 800), sought(2, TenantKind::Pod, 801)]);
        let taken = taken(&mut pace);
        assert_eq!(taken[..8], [1, 2, 9, 100, 7, 101, 8, 102]);
        assert_eq!(taken.len(), 505);
    }

    /// With time for two of them in each search.
    #[test]
    fn whoever_was_not_reached_comes_before_those_that_were_and_those_that_are_new() {
        for whose in [TenantKind::Pod, TenantKind::Root, TenantKind::User(None), ALICE] {
            let mut pace = Pace::default();
            let mut known: Vec<Sought> = (1..=4).map(|n| sought(n, whose, n)).collect();
            let mut reached = Vec::new();
            for now in [10, 20, 30] {
                pace.add(known.clone());
                for cookie in taken(&mut pace).into_iter().take(2) {
                    known
                        .iter_mut()
                        .filter(|one| one.netns.cookie == Some(cookie))
                        .for_each(|one| one.since = BootNs(now));
                    reached.push(cookie);
                }
                known.insert(0, sought(now, whose, now + 1));
            }
            assert_eq!(reached, [1, 2, 3, 4, 1, 2]);
        }
    }

    #[test]
    fn whose_it_is_by_now_counts() {
        let mut pace = Pace::default();
        pace.add(vec![sought(1, ALICE, 1), sought(2, ALICE, 2)]);
        pace.add(vec![sought(2, TenantKind::Pod, 2)]);
        assert_eq!(taken(&mut pace), [2, 1]);
    }
}
