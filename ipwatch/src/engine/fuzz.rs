//! Entry points of the fuzz targets.

use std::sync::LazyLock;

use super::lives::{Line, Palette, live, told};
use crate::fact::Fact;

/// The cases of the detectors' tests, one a line, as the test `the_fuzz_target_has_the_same_cases` writes them.
static PALETTE: LazyLock<Palette> = LazyLock::new(|| {
    let case = |line: &str| serde_json::from_str::<Vec<Line>>(line).unwrap_or_default();
    let cases: Vec<_> = include_str!("cases.jsonl").lines().map(case).collect();
    assert!(cases.iter().all(|case| !case.is_empty()), "the cases are of another version");
    Palette::new(cases)
});

/// Longest life: a longer one only makes the search slow.
const MOST: usize = 400;

/// Runs a life: the first two bytes are the case, three more each an operation.
pub fn engine(bytes: &[u8]) {
    let Some((case, life)) = bytes.split_first_chunk() else { return };
    let life = life.chunks_exact(3).take(MOST);
    let life = life.map(|op| (op[0] % 32, u16::from_ne_bytes([op[1], op[2]])));
    live(&PALETTE, u16::from_ne_bytes(*case).into(), &life.collect::<Vec<_>>());
}

/// Tells an engine these facts, which no case has, at their times.
pub(crate) fn facts(facts: &[Fact]) {
    told(&PALETTE, facts);
}
