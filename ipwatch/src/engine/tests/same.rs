//! Incremental detection gives the same result as detection from scratch in random lives (`engine/lives.rs`).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::super::lives::{Line, Palette, live};
use crate::detect::tests::hostile;
use crate::finding::Code;
use crate::map::Kinds;
use crate::map::changes::unmarked::{UNMARKED, Unmarked};

/// The cases of the detectors' tests.
fn palette() -> Palette {
    let line = |line: hostile::Line| match line {
        hostile::Line::Fact(fact) => Line::Fact(fact),
        hostile::Line::Agenda(now, _) | hostile::Line::Detect(now, _) => Line::At(now),
    };
    let case = |case: Vec<hostile::Line>| case.into_iter().map(line).collect();
    Palette::new(hostile::tapes().into_iter().map(case).collect())
}

/// The fuzz target has no detectors' tests: it reads their cases from a file, one a line.
#[test]
fn the_fuzz_target_has_the_same_cases() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/engine/cases.jsonl");
    let line = |case: &Vec<Line>| serde_json::to_string(case).unwrap() + "\n";
    let now: String = palette().cases.iter().map(line).collect();
    if std::env::var_os("IPWATCH_BLESS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let there = include_str!("../cases.jsonl");
    assert!(
        there == now || std::env::var_os("IPWATCH_BLESS").is_some(),
        "run it with IPWATCH_BLESS=1"
    );
}

/// Runs each case unchanged.
fn live_all(palette: &Palette) -> BTreeSet<Code> {
    let cases = 0..palette.cases.len();
    let codes = cases.map(|case| live(palette, case, &vec![(0, 1); palette.cases[case].len()]));
    codes.flat_map(|lived| lived.codes).collect()
}

/// Any case, with any sequence of operations.
fn lives() -> impl Strategy<Value = (u16, Vec<(u8, u16)>)> {
    (any::<u16>(), prop::collection::vec((0..32u8, any::<u16>()), 20..220))
}

#[test]
fn what_looks_at_changes_finds_what_looks_at_everything_does() {
    let palette = palette();
    let codes = RefCell::new(live_all(&palette));
    // The same sequences in each run, so that their coverage is known; other and more ones if requested by
    // `PROPTEST_CASES`.
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let config =
        Config { cases: asked.unwrap_or(80), failure_persistence: None, ..Config::default() };
    let mut runner = match asked {
        Some(_) => TestRunner::new(config),
        None => {
            let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
            TestRunner::new_with_rng(config, rng)
        }
    };
    let not_kept = RefCell::new(BTreeSet::new());
    let run = runner.run(&lives(), |(case, life)| {
        let (cases, case) = (palette.cases.len(), usize::from(case) % palette.cases.len());
        codes.borrow_mut().extend(live(&palette, case, &life).codes);
        // The same with small bounds.
        not_kept.borrow_mut().extend(live(&palette, cases + case, &life).not_kept);
        Ok(())
    });
    run.unwrap();
    let codes = codes.into_inner();
    // These sequences find no orphaned veth. The detector's own cases do, and they compare with detection from scratch
    // too.
    let others = Code::ALL.iter().filter(|code| **code != Code::VethOrphaned);
    let missed: Vec<&Code> = others.filter(|code| !codes.contains(code)).collect();
    assert_eq!(missed, [&Code::VethOrphaned; 0], "these lives show nothing of them");
    let not_kept = not_kept.into_inner();
    for kind in ["addresses", "findings", "netns", "tasks"] {
        assert!(not_kept.contains(kind), "{kind}: this bound is never reached");
    }
}

/// Shows that the test above can fail: most kinds of changes are missed if they are not marked. What links and calls
/// change is marked otherwise too in these few sequences.
#[test]
fn what_is_not_marked_is_missed() {
    let palette = palette();
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let lives: Vec<_> = (0..60).map(|_| lives().new_tree(&mut runner).unwrap().current()).collect();
    let differs = |unmarked| {
        UNMARKED.set(Some(unmarked));
        let lived = catch_unwind(AssertUnwindSafe(|| {
            live_all(&palette);
            for (case, life) in &lives {
                live(&palette, usize::from(*case) % palette.cases.len(), life);
            }
        }));
        UNMARKED.set(None);
        lived.is_err()
    };
    let others = Unmarked::all()
        .filter(|unmarked| !matches!(unmarked, Unmarked::Kind(Kinds::LINKS | Kinds::CALLS)));
    let missed: Vec<Unmarked> = others.filter(|unmarked| !differs(*unmarked)).collect();
    assert_eq!(missed, [], "nobody noticed that these were not marked");
}
