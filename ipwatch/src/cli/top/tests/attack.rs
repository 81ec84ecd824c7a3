//! Hostile names on every page, many of everything, and terminals of any size.

use super::*;
use crate::cli::hostile;
use crate::finding::Finding;
use crate::testing::words::words;

const SIZES: [(u16, u16); 7] = [(80, 24), (200, 50), (10, 4), (1, 1), (140, 20), (3, 60), (500, 5)];

/// Everything that the panes show, with this word in every field that a stranger fills.
fn hostile(word: &str, size: (u16, u16), glyphs: Glyphs) -> State {
    let mut state = told(size.0, size.1, glyphs);
    for (topic, name) in [
        (Topic::Findings, "scan.json"),
        (Topic::Ranges, "query-ipam.json"),
        (Topic::Neighbours, "query-neigh.json"),
        (Topic::Doctor, "doctor.json"),
    ] {
        let mut document = hostile::document(name, word);
        word.clone_into(&mut document.node);
        state.update(Update::Answer(topic, Box::new(document)));
    }
    state.update(Update::Events { events: hostile::events(word), omitted: 3 });
    state
}

fn is_harmless(state: &State) {
    let buffer = drawn(state, Paint(true));
    for cell in buffer.content() {
        let symbol = cell.symbol();
        assert!(hostile::is_harmless(symbol) && !symbol.contains('\n'), "{symbol:?}");
        assert!(symbol.chars().count() <= 1, "several characters in a cell: {symbol:?}");
    }
}

/// Every page, with this word in every field that a stranger fills, cell by cell.
pub(in crate::cli) fn pages(word: &str) -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for glyphs in [Glyphs::Unicode, Glyphs::Ascii] {
        for size in [(80, 24), (200, 50)] {
            let mut state = hostile(word, size, glyphs);
            let mut look = |state: &State, page: &str| {
                is_harmless(state);
                pages.push((format!("{page} {glyphs:?} {size:?}"), text(state)));
            };
            for keys in ["1", "2", "c", "j", "3", "4", "5", "s", "s"] {
                type_in(&mut state, keys);
                look(&state, keys);
            }
            type_in(&mut state, "2\r");
            look(&state, "asked");
            state.answer(1, word);
            look(&state, "answered");
            state.update(Update::Lost { why: word.to_owned(), again: 1 });
            look(&state, "lost");
        }
    }
    pages
}

#[test]
fn what_is_typed_or_pasted_is_shown_and_nothing_more() {
    for word in words() {
        let mut state = told(80, 24, Glyphs::Unicode);
        type_in(&mut state, "/");
        type_in(&mut state, &word);
        is_harmless(&state);
        assert!(state.filter.chars().count() <= 64);
    }
}

#[test]
fn any_size_is_drawn() {
    for (width, height) in SIZES {
        let mut state = told(80, 24, Glyphs::Unicode);
        for keys in ["1", "2", "3", "4", "5", "2c", "\x1b[F", "\x1b[6~", "?", "\x1b[F"] {
            type_in(&mut state, keys);
            state.resize(Size::new(width, height));
            is_harmless(&state);
            state.resize(Size::new(80, 24));
        }
    }
    let mut small = told(10, 4, Glyphs::Unicode);
    type_in(&mut small, "j");
    assert!(text(&small).contains("WARN"), "even there the worst is seen: {}", text(&small));
}

#[test]
fn two_thousand_findings_and_a_flood_of_addresses_are_bounded() {
    let mut document = sample("scan.json");
    let Body::Findings(findings) = &mut document.body else { panic!("findings") };
    let one = findings[0].clone();
    let many = |n: usize| {
        let caused_by = (n % 2 == 1).then(|| format!("{:05}", n - 1));
        Finding { id: format!("{n:05}"), caused_by, ..one.clone() }
    };
    *findings = (0..2_000).map(many).collect();
    let mut state = told(80, 24, Glyphs::Unicode);
    state.update(Update::Answer(Topic::Findings, Box::new(document.clone())));
    assert_eq!(state.rows[1].len(), 1_000);
    type_in(&mut state, "c\x1b[F");
    assert_eq!(state.rows[1].len(), 2_000);
    assert!(text(&state).contains(">WARN") || text(&state).contains("> WARN"), "{}", text(&state));
    let Body::Findings(findings) = &mut document.body else { panic!("findings") };
    *findings = (0..20_000).map(|n| Finding { caused_by: None, ..many(n) }).collect();
    state.update(Update::Answer(Topic::Findings, Box::new(document)));
    assert!(text(&state).contains("10000+10000"), "{}", text(&state));

    let held: Event =
        serde_json::from_str(sample_text("watch.jsonl").lines().next().unwrap()).unwrap();
    type_in(&mut state, "3j");
    for _ in 0..100 {
        state.update(Update::Events { events: vec![held.clone(); 100], omitted: 50 });
    }
    assert!(state.rows[2].len() <= 2_000);
    assert!(text(&state).contains("50 events are missing here") || state.rows[2].len() == 2_000);
}
