//! Repetitions in a recording. A sweep mostly reads what an earlier one has read, and on a quiet node that is nearly all
//! that is observed. Such facts are written as one line, `{"again":[FIRST,COUNT,AT]}`: the COUNT facts from number FIRST
//! of this recording on, observed once more at AT. Facts are counted from 0, repeated ones included.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::fact::{BootNs, Fact, Observation};

/// Number of past facts that a repetition can refer to: a sweep of a full node has fewer.
const WINDOW: usize = 1 << 16;

/// Facts of this recording, observed once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Again(u64, u64, BootNs);

/// Facts in the order in which they are written.
pub(super) enum Written<'a> {
    Fact(&'a Fact),
    Again(Again),
}

/// Whether a fact differs from a repetition of it in nothing but its time. A dump that ends later than it began has two
/// times.
fn has_one_time(fact: &Fact) -> bool {
    !matches!(fact.what, Observation::Ended { began, .. } if began != fact.at)
}

fn at(fact: &Fact, at: BootNs) -> Fact {
    let mut fact = Fact { at, ..fact.clone() };
    if let Observation::Ended { began, .. } = &mut fact.what {
        *began = at;
    }
    fact
}

/// The past facts of a recording as it is written.
#[derive(Debug, Default)]
pub(super) struct Packer {
    /// Number of the first fact in `past`.
    first: u64,
    /// Each as text without its time; `None` if it cannot be repeated.
    past: VecDeque<Option<Rc<str>>>,
    /// The newest number of each text.
    newest: HashMap<Rc<str>, u64>,
}

impl Packer {
    /// Calls `write` with what is to be written for these facts of one step.
    pub(super) fn pack<E: From<serde_json::Error>>(
        &mut self,
        facts: &[Fact],
        mut write: impl FnMut(Written<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let texts: Vec<Option<Rc<str>>> = facts.iter().map(text).collect::<Result<_, _>>()?;
        let mut next = 0;
        while let Some(fact) = facts.get(next) {
            let count = match self.repeated(&facts[next..], &texts[next..]) {
                Some(again) => {
                    write(Written::Again(again))?;
                    again.1 as usize
                }
                None => {
                    write(Written::Fact(fact))?;
                    1
                }
            };
            texts[next..next + count].iter().for_each(|text| self.push(text.clone()));
            next += count;
        }
        Ok(())
    }

    /// The longest beginning of these facts that follows the newest equal to the first of them.
    fn repeated(&self, facts: &[Fact], texts: &[Option<Rc<str>>]) -> Option<Again> {
        let (fact, text) = (facts.first()?, texts.first()?.as_ref()?);
        let number = *self.newest.get(text)?;
        let past = self.past.range((number - self.first) as usize..);
        let same = past
            .zip(texts)
            .zip(facts)
            .take_while(|((old, new), one)| new.is_some() && old == new && one.at == fact.at);
        Some(Again(number, same.count() as u64, fact.at))
    }

    fn push(&mut self, text: Option<Rc<str>>) {
        let number = self.first + self.past.len() as u64;
        if let Some(text) = &text {
            self.newest.insert(Rc::clone(text), number);
        }
        self.past.push_back(text);
        if self.past.len() > WINDOW {
            let oldest = self.past.pop_front().flatten();
            if let Some(text) = oldest
                && self.newest.get(&text) == Some(&self.first)
            {
                self.newest.remove(&text);
            }
            self.first += 1;
        }
    }
}

fn text(fact: &Fact) -> Result<Option<Rc<str>>, serde_json::Error> {
    let text = || serde_json::to_string(&at(fact, BootNs::default()));
    has_one_time(fact).then(text).transpose().map(|text| text.map(Rc::from))
}

/// The past facts of a recording as it is read.
#[derive(Debug, Default)]
pub(super) struct Past {
    first: u64,
    facts: VecDeque<Fact>,
}

impl Past {
    /// Adds the next fact.
    pub(super) fn push(&mut self, fact: Fact) {
        self.facts.push_back(fact);
        if self.facts.len() > WINDOW {
            self.facts.pop_front();
            self.first += 1;
        }
    }

    /// The facts that are repeated, with their new time.
    ///
    /// # Errors
    /// The recording does not have them, or no longer.
    pub(super) fn again(&mut self, again: Again) -> anyhow::Result<Vec<Fact>> {
        let Again(first, count, time) = again;
        let range = || {
            let from = usize::try_from(first.checked_sub(self.first)?).ok()?;
            let to = from.checked_add(usize::try_from(count).ok()?)?;
            (to <= self.facts.len()).then_some(from..to)
        };
        let range = range().context("it repeats facts that the record does not have")?;
        let facts: Vec<Fact> = self.facts.range(range).map(|fact| at(fact, time)).collect();
        facts.iter().for_each(|fact| self.push(fact.clone()));
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fact::{NetnsRef, Origin, Scope};

    fn fact(ms: u64, what: Observation) -> Fact {
        Fact { at: BootNs(ms), origin: Origin::Snapshot, what }
    }

    /// A sweep of these netns.
    fn sweep(ms: u64, all: &[u64]) -> Vec<Fact> {
        let began = fact(ms, Observation::Began(Scope::Netns));
        let netns = |n: &u64| fact(ms, Observation::Netns { netns: NetnsRef::cookie(*n) });
        let (scope, began_at) = (Scope::Netns, BootNs(ms));
        let ended = Observation::Ended { scope, began: began_at, complete: true };
        [began].into_iter().chain(all.iter().map(netns)).chain([fact(ms, ended)]).collect()
    }

    /// Writes these steps and reads them again; returns the number of lines.
    fn there_and_back(steps: &[Vec<Fact>]) -> usize {
        let (mut packer, mut past, mut lines) = (Packer::default(), Past::default(), 0);
        for step in steps {
            let mut read = Vec::new();
            let written = packer.pack(step, |written| {
                lines += 1;
                match written {
                    Written::Fact(fact) => {
                        past.push(fact.clone());
                        read.push(fact.clone());
                    }
                    Written::Again(again) => read.extend(past.again(again).unwrap()),
                }
                Ok::<(), serde_json::Error>(())
            });
            written.unwrap();
            assert_eq!(&read, step);
        }
        lines
    }

    #[test]
    fn a_sweep_that_finds_nothing_new_is_one_line() {
        let all = [1, 2, 3];
        assert_eq!(there_and_back(&[sweep(1, &all), sweep(2, &all), sweep(3, &all)]), 5 + 1 + 1);
        // What comes before the new netns, the netns, and what comes after it.
        assert_eq!(there_and_back(&[sweep(1, &all), sweep(2, &[1, 2, 7, 3])]), 5 + 3);
        let late = Observation::Ended { scope: Scope::Netns, began: BootNs(1), complete: true };
        let late = vec![fact(5, late)];
        assert_eq!(there_and_back(&[late.clone(), late]), 2, "a dump with two times");
    }

    #[test]
    fn what_is_older_than_the_window_is_not_repeated() {
        let long: Vec<u64> = (0..WINDOW as u64).collect();
        let first = sweep(1, &[1]);
        // The end of the first sweep is forgotten when the second one ends.
        assert_eq!(there_and_back(&[first.clone(), sweep(2, &long)]), 3 + 1 + WINDOW + 1);
        let mut past = Past::default();
        first.into_iter().for_each(|fact| past.push(fact));
        for again in [Again(3, 1, BootNs(1)), Again(0, 4, BootNs(1)), Again(u64::MAX, 2, BootNs(1))]
        {
            assert!(past.again(again).is_err(), "{again:?}");
        }
        sweep(2, &long).into_iter().for_each(|fact| past.push(fact));
        assert!(past.again(Again(0, 1, BootNs(3))).is_err(), "it was forgotten");
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            steps in prop::collection::vec(
                (prop::collection::vec(0..4u64, 0..6), 0..3u64),
                0..30,
            )
        ) {
            let steps: Vec<Vec<Fact>> =
                steps.into_iter().map(|(all, ms)| sweep(ms, &all)).collect();
            there_and_back(&steps);
        }
    }
}
