//! Sums the results of the parts of a test run: number of tests by result, and their durations.

use std::fmt;

/// Number of tests by result.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// Not run, each for a reason that was printed.
    pub(crate) skipped: u32,
    /// Durations of the end-to-end tests that print one.
    timed: Vec<Timed>,
    /// Tests that failed, or passed only on the second try: a line each.
    bad: Vec<String>,
}

/// A test and its duration.
#[derive(Debug, Clone, PartialEq)]
struct Timed {
    seconds: f32,
    /// Includes the place where it ran.
    name: String,
}

impl Tally {
    /// A part without separate tests that passed.
    pub(crate) fn pass() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    /// A part without separate tests that failed; prints a line.
    pub(crate) fn failure(what: &str) -> Self {
        let line = format!("FAILED  {what}");
        println!("{line}");
        Self { failed: 1, bad: vec![line], ..Self::default() }
    }

    /// A part without separate tests that was skipped.
    pub(crate) fn skip() -> Self {
        Self { skipped: 1, ..Self::default() }
    }

    pub(crate) fn add(&mut self, other: &Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.timed.extend_from_slice(&other.timed);
        self.bad.extend_from_slice(&other.bad);
    }

    /// Adds the result in a line, of a test that ran in this place, or of a summary.
    pub(crate) fn read(&mut self, line: &str, place: &str) {
        if let Some(part) = Self::parse(line) {
            self.add(&part);
        } else if let Some((name, seconds)) = timed(line) {
            self.timed.push(Timed { seconds, name: format!("{place}{name}") });
        }
        if is_bad(line) {
            self.bad.push(format!("{place}{line}"));
        }
    }

    /// Failed and unsteady tests, a line each.
    pub(crate) fn bad(&self) -> &[String] {
        &self.bad
    }

    /// The slowest tests, a line each, the slowest first.
    pub(crate) fn slowest(&self, most: usize) -> Vec<String> {
        let mut tests: Vec<&Timed> = self.timed.iter().collect();
        tests.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        let line = |test: &&Timed| format!("{:7.1}  {}", test.seconds, test.name);
        tests.iter().take(most).map(line).collect()
    }

    /// Parses a summary: ours, such as `12 passed, 0 failed, 1 skipped`, or libtest's, `test result: ok. 12 passed; 0
    /// failed; 1 ignored; …`.
    fn parse(line: &str) -> Option<Self> {
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
            ..Self::default()
        })
    }
}

/// Parses the line of an end-to-end test: `ok  12/205 map::a (3.4 s)` or `FAILED  …: why`
/// (`tests/support/harness.rs`).
fn timed(line: &str) -> Option<(&str, f32)> {
    let mut words = line.split_whitespace();
    if !matches!(words.next()?, "ok" | "FAILED") || !words.next()?.contains('/') {
        return None;
    }
    let name = words.next()?;
    let seconds = words.next()?.strip_prefix('(')?.parse().ok()?;
    words.next()?.starts_with("s)").then_some((name, seconds))
}

/// Whether a line names a failed or unsteady test: libtest's `test a::b ... FAILED`, or our `FAILED  …`, `failed: …`
/// or `unsteady: …`.
fn is_bad(line: &str) -> bool {
    let ours = ["FAILED  ", "failed: ", "unsteady: "].iter().any(|word| line.starts_with(word));
    ours || (line.starts_with("test ") && line.ends_with(" ... FAILED"))
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
        let ours = Tally { passed: 12, failed: 1, skipped: 3, ..Tally::default() };
        assert_eq!(Tally::parse(&ours.to_string()), Some(ours.clone()));
        let theirs = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered";
        assert_eq!(Tally::parse(theirs), Some(ours));
        for other in ["", "ok 1/2 x", "12 passed", "a passed, 1 failed, 2 skipped"] {
            assert_eq!(Tally::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_slowest_come_first_each_with_its_place() {
        let mut tally = Tally::default();
        tally.read("ok       1/3 map::a (3.4 s)", "");
        tally.read("FAILED   2/3 map::b (61.0 s): not done", "6.1 ");
        tally.read("ok       3/3 map::c (0.2 s)", "");
        for other in ["skipped  4/4 map::d: no etcd", "ok (1 s)", "failed: map::b", "ok 1/2 x"] {
            tally.read(other, "");
        }
        assert_eq!(tally.slowest(2), ["   61.0  6.1 map::b", "    3.4  map::a"]);
        assert_eq!(tally.passed, 0);
    }

    #[test]
    fn what_failed_is_named_each_with_its_place() {
        let mut tally = Tally::default();
        let bad = ["FAILED   2/3 map::b (61.0 s): not done", "test a::b ... FAILED", "unsteady: c"];
        for line in bad.iter().chain(&["ok 1/3 map::a (3.4 s)", "test a::c ... ok", "FAILED"]) {
            tally.read(line, "6.1 ");
        }
        assert_eq!(tally.bad(), bad.map(|line| format!("6.1 {line}")));
    }
}
