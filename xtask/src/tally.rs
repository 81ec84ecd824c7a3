//! Adding up what the parts of a test run say.

use std::fmt;

/// How many tests ended how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Fine.
    pub(crate) passed: u32,
    /// Not fine.
    pub(crate) failed: u32,
    /// Not run, each for a reason that was printed.
    pub(crate) skipped: u32,
}

impl Tally {
    /// One thing that failed as a whole.
    pub(crate) fn failure() -> Self {
        Self { failed: 1, ..Self::default() }
    }

    /// One thing that was skipped as a whole.
    pub(crate) fn skip() -> Self {
        Self { skipped: 1, ..Self::default() }
    }

    /// Adds another.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads a line such as `12 passed, 0 failed, 1 skipped` (ours) or libtest's `test result: ok.
    /// 12 passed; 0 failed; 1 ignored; …`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let line = match line.strip_prefix("test result: ") {
            Some(rest) => rest.split_once(". ")?.1,
            None => line,
        };
        let mut parts = line.split([',', ';']).map(str::trim);
        let mut number = |what: &[&str]| {
            let (number, word) = parts.next()?.split_once(' ')?;
            what.contains(&word).then(|| number.parse().ok())?
        };
        Some(Self {
            passed: number(&["passed"])?,
            failed: number(&["failed"])?,
            skipped: number(&["skipped", "ignored"])?,
        })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_summary_are_read_and_nothing_else() {
        let ours = Tally { passed: 12, failed: 1, skipped: 3 };
        assert_eq!(Tally::parse(&ours.to_string()), Some(ours.clone()));
        let theirs = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered";
        assert_eq!(Tally::parse(theirs), Some(ours));
        for other in ["", "ok 1/2 x", "12 passed", "a passed, 1 failed, 2 skipped"] {
            assert_eq!(Tally::parse(other), None, "{other}");
        }
    }
}
