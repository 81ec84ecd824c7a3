//! Counts of a test that is repeated: each run prints its own, and the figure is their sum.

use std::fmt;

/// What ends the value that one run prints: `1 of 5 in this run`.
const IN_THIS_RUN: &str = " in this run";

/// How many of what was counted had a property, in how many runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Runs {
    had: u64,
    of: u64,
    /// Runs in which at least one had it.
    with: u64,
    runs: u64,
}

impl Runs {
    /// The value of one run.
    pub(super) fn one(measured: &str) -> Option<Self> {
        let (had, of) = measured.strip_suffix(IN_THIS_RUN)?.split_once(" of ")?;
        let (had, of) = (had.parse().ok()?, of.parse().ok()?);
        Some(Self { had, of, with: u64::from(had > 0), runs: 1 })
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.had += other.had;
        self.of += other.of;
        self.with += other.with;
        self.runs += other.runs;
    }

    /// The two parts of a figure: how many of all, and in how many runs.
    pub(super) fn parts(figure: &str) -> Option<(&str, &str)> {
        let (all, runs) = figure.split_once(", in ")?;
        Some((all, runs.strip_suffix(" runs")?))
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}, in {} of {} runs", self.had, self.of, self.with, self.runs)
    }
}
