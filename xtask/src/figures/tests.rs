//! Figures, and the pages of this repository that show them.

use std::collections::BTreeSet;

use super::*;

/// Quantities in prose that are no figures of a benchmark, by page.
const IN_PROSE: [(&str, &[&str]); 2] = [("README.md", &[]), ("figures.md", &[])];

/// Every measured quantity on a page outside the comments.
fn loose(text: &str) -> Result<BTreeSet<String>> {
    const UNITS: [&str; 7] = ["ms", "µs", "us", "MiB", "%", "million", "times"];
    let without = between(text, "figures", |_| Ok(String::new()))?;
    let without = between(&without, "figure", |_| Ok(String::new()))?;
    let mark = |c: char| !c.is_alphanumeric() && c != '%';
    let words: Vec<&str> = without.split_whitespace().map(|word| word.trim_matches(mark)).collect();
    let is_number = |word: &str| word.replace([',', '.'], "").parse::<u64>().is_ok();
    let pairs = words.windows(2).filter(|pair| is_number(pair[0]) && UNITS.contains(&pair[1]));
    Ok(pairs.map(|pair| pair.join(" ")).collect())
}

fn read(lines: &[&str]) -> Reader {
    let mut reader = Reader::default();
    lines.iter().for_each(|line| reader.read(line));
    reader
}

fn line(name: &str, measured: &str, goal: &str) -> Line {
    (name.to_owned(), measured.to_owned(), goal.to_owned())
}

#[test]
fn pages_show_what_the_file_has() {
    let figures = stored().unwrap();
    let mut shown = 0;
    for page in pages().unwrap() {
        let text = fs::read_to_string(&page).unwrap();
        let page = page.display();
        let expected = rendered(&text, &figures).unwrap();
        for (is, should) in text.lines().zip(expected.lines()) {
            assert_eq!(is, should, "{page}: `cargo xtask figures` rewrites it");
        }
        assert_eq!(text, expected, "{page}: `cargo xtask figures` rewrites it");
        shown += text.matches("<!-- figure").count();
    }
    assert!(shown > 5, "only {shown} places show figures");
}

#[test]
fn every_figure_has_its_commit_or_is_named_as_one_without() {
    let figures = stored().unwrap();
    let without = figures.iter().filter(|(_, figure)| figure.commit.is_none());
    let without: BTreeSet<&str> = without.map(|(name, _)| name.as_str()).collect();
    assert_eq!(without, BY_HAND.into());
    for (name, figure) in &figures {
        let decided = value::is_reached(&figure.measured, &figure.goal);
        assert_eq!(figure.reached, decided, "{name}: {} against {}", figure.measured, figure.goal);
    }
}

#[test]
fn pages_of_figures_have_none_that_is_not_from_the_file() {
    for (name, allowed) in IN_PROSE {
        let page = pages().unwrap().into_iter().find(|page| page.ends_with(name)).unwrap();
        let found = loose(&fs::read_to_string(page).unwrap()).unwrap();
        assert_eq!(found, allowed.iter().map(|one| (*one).to_owned()).collect(), "{name}");
    }
}

#[test]
fn a_quantity_in_prose_is_found() {
    let text = "It takes 5 ms, or <!-- figure: a -->6 ms<!-- /figure -->, 2.5 % (12 MiB).\n\
                <!-- figures: bench -->| 7 ms |<!-- /figures --> p99 and 250 pods";
    let found: Vec<String> = loose(text).unwrap().into_iter().collect();
    assert_eq!(found, ["12 MiB", "2.5 %", "5 ms"]);
}

#[test]
fn what_the_harness_and_the_benchmarks_print_is_read() {
    let reader = read(&[
        "ok       4/8 a_stuck_holder (3.4 s)",
        "        stuck holder named, after its grace                         897ms        goal < 2 s",
        "FIGURE 65,000 reservations loaded  median 292 ms, worst 317 ms of 5  goal median < 300 ms",
        "        a duplicate fires 570ms after the second address",
        "false alarms: 0 in a healthy run of 60 pod cycles in 50 s and 2500 CNI calls beside them",
    ]);
    let expected = [
        line("stuck holder named, after its grace", "897ms", "< 2 s"),
        line("65,000 reservations loaded", "median 292 ms, worst 317 ms of 5", "median < 300 ms"),
        line(
            "false alarms of a healthy run",
            "0 in a healthy run of 60 pod cycles in 50 s and 2500 CNI calls beside them",
            "0",
        ),
    ];
    assert_eq!(reader.lines, expected);
}

#[test]
fn of_several_findings_of_one_failure_the_shortest_lead_counts() {
    let reader = read(&[
        "lead time: case                    finding                machine lead  human lead  named right",
        "runtime's state lost, range fills  ipam-range-exhausting  900.0 ms      4.1 s       10 of 10: x",
        "runtime's state lost, range fills  netns-leaked           4.6 s         3.1 s       10 of 10: y",
        "ADD without DEL, range fills       ipam-range-exhausting  2.6 s         2.2 s       10 of 10: z",
        "310 passed, 0 failed, 0 skipped",
    ]);
    let [word, fires] = LEADS[0].names();
    let expected = [line(&word, "900.0 ms", "> 0 s"), line(&fires, "3.1 s", "> 0 s")];
    // The second failure lacks one of its findings.
    assert_eq!(reader.leads().collect::<Vec<_>>(), expected);
}

#[test]
fn counts_of_repeated_runs_are_added() {
    let name = PREVENTED[0].1;
    let reader = read(&[
        &format!("        {name}  1 of 5 in this run  goal all"),
        &format!("        {name}  0 of 5 in this run  goal all"),
        "FIGURE another  1 of 5 in this month  goal all",
    ]);
    assert_eq!(reader.lines, [line("another", "1 of 5 in this month", "all")]);
    let [runs] = Vec::from_iter(reader.counts.values())[..] else { panic!("{reader:?}") };
    assert_eq!(runs.to_string(), "1 of 10, in 1 of 2 runs");
    let figure = Origin::of("abc".into()).unwrap().figure(runs.to_string(), "all".into());
    let figures = Figures::from([(name.to_owned(), figure)]);
    let row = row_of_prevention(&PREVENTED[0], &figures).unwrap();
    assert_eq!(row, "| without `ipwatch-ipam` | 1 of 10 | 1 of 2 |");
}

#[test]
fn a_goal_is_compared_with_the_value_that_it_names() {
    let reached = value::is_reached;
    assert_eq!(reached("175.2ms", "< 100 ms"), Some(false));
    assert_eq!(reached("897ms", "< 2 s"), Some(true));
    assert_eq!(reached("2.7 % of a core at 1000 a second", "<= 1.5 %"), Some(false));
    assert_eq!(reached("18x (288ms against 5.3s)", ">= 100x"), Some(false));
    assert_eq!(reached("1.13 times", "<= 1.3 times"), Some(true));
    assert_eq!(reached("p50 84µs, p99 235µs", "p99 < 500 us"), Some(true));
    assert_eq!(reached("p50 84µs, p99 735µs", "p99 < 500 us"), Some(false));
    assert_eq!(reached("0 of 120002 lost, 0 losses told", "none lost"), Some(true));
    assert_eq!(reached("3 records", "none"), Some(false));
    assert_eq!(reached("21.1 MiB; without 13.0 MiB", "< 10 MiB more"), None);
    assert_eq!(reached("264.2ms", "< its answer + 100 ms"), None);
    assert_eq!(reached("14.9 MiB", "< 100 ms"), None, "another unit");
    assert_eq!(reached("-1.2 s", "> 0 s"), Some(false));
    assert_eq!(value::shown("0.233 % of a core over 30 s"), "0.233 %");
    assert_eq!(value::shown("p50 84µs"), "84µs");
}

#[test]
fn a_page_is_rewritten_between_its_comments() {
    let figures: Figures = serde_json::from_str(
        r#"{"x": {"measured": "5 ms of 9", "goal": "< 9 ms", "reached": true, "commit": "abc"}}"#,
    )
    .unwrap();
    let text =
        "a <!-- figure: x -->4 ms<!-- /figure --> b <!-- figures: bench -->old<!-- /figures -->\n";
    let expected = "a <!-- figure: x -->5 ms<!-- /figure --> b <!-- figures: bench -->\n\n\
                    | Figure | Measured | Goal | Reached | Commit |\n|---|---|---|---|---|\n\
                    | x | 5 ms of 9 | < 9 ms | yes | abc |\n<!-- /figures -->\n";
    assert_eq!(rendered(text, &figures).unwrap(), expected);
    assert!(rendered("<!-- figure: y --><!-- /figure -->", &figures).is_err());
    assert!(rendered("<!-- figure: x -->5 ms", &figures).is_err());
}
