//! The whole screen against recorded ones, and against what tries to break it.

pub(in crate::cli) mod attack;

use ratatui_core::backend::TestBackend;
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Size;
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;

use super::draw::draw;
use super::fit::Glyphs;
use super::keys::Decoder;
use super::known::{Topic, Update};
use super::questions::Question;
use super::state::{Effect, State};
use crate::api::Event;
use crate::cli::output::Out;
use crate::cli::show::{sample, sample_text};
use crate::cli::table::Paint;
use crate::contract::{Body, Code, Document};
use crate::fact::SourceStatus;
use crate::finding::{Finding, Severity};

/// A screen of this size that the daemon of the contract's examples has told everything.
fn told(width: u16, height: u16, glyphs: Glyphs) -> State {
    let mut state = State::new(Size::new(width, height), glyphs);
    state.update(Update::Following);
    for (topic, name) in [
        (Topic::Findings, "scan.json"),
        (Topic::Ranges, "query-ipam.json"),
        (Topic::Neighbours, "query-neigh.json"),
        (Topic::Doctor, "doctor.json"),
    ] {
        state.update(Update::Answer(topic, Box::new(sample(name))));
    }
    let events: Vec<Event> = sample_text("watch.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    state.update(Update::Events { events, omitted: 0 });
    state
}

/// Types these bytes; returns what the last key wants to be done.
fn type_in(state: &mut State, keys: &str) -> Option<Effect> {
    let keys = Decoder::default().read(keys.as_bytes());
    keys.into_iter().map(|key| state.key(key)).last().flatten()
}

/// The screen, through the terminal of ratatui that the product uses as well.
fn drawn(state: &State, paint: Paint) -> Buffer {
    let backend = TestBackend::new(state.size.width, state.size.height);
    let mut terminal = Terminal::new(backend).unwrap();
    terminal.draw(|frame| draw(state, paint, frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer, shown: impl Fn(&Cell) -> String) -> String {
    let width = usize::from(buffer.area.width);
    let line = |cells: &[Cell]| {
        let mut text = String::new();
        let mut covered = 0;
        for cell in cells {
            if covered > 0 {
                covered -= 1;
                continue;
            }
            covered = super::fit::columns(cell.symbol()).saturating_sub(1);
            text.push_str(&shown(cell));
        }
        format!("{}\n", text.trim_end())
    };
    buffer.content().chunks(width.max(1)).map(line).collect()
}

fn text(state: &State) -> String {
    lines(&drawn(state, Paint(false)), |cell| cell.symbol().to_owned())
}

/// The text, and below it a letter for the look of each cell: red, yellow, green, bold, dim; upper case is reversed.
fn painted(state: &State) -> String {
    let buffer = drawn(state, Paint(true));
    let look = |cell: &Cell| {
        let letter = match (cell.fg, cell.modifier) {
            (Color::Red, _) => 'r',
            (Color::Yellow, _) => 'y',
            (Color::Green, _) => 'g',
            (_, modifier) if modifier.contains(Modifier::BOLD) => 'b',
            (_, modifier) if modifier.contains(Modifier::DIM) => 'd',
            _ if cell.modifier.contains(Modifier::REVERSED) => '#',
            _ if cell.symbol() == " " => ' ',
            _ => '.',
        };
        match cell.modifier.contains(Modifier::REVERSED) {
            true => letter.to_ascii_uppercase().to_string(),
            false => letter.to_string(),
        }
    };
    let text = lines(&buffer, |cell| cell.symbol().to_owned());
    format!("{text}\n{}", lines(&buffer, look))
}

/// Compares with a recorded screen, or records it where `IPWATCH_BLESS` says so.
fn is_recorded(name: &str, screen: &str) {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/top/fixtures");
    let path = dir.join(format!("{name}.txt"));
    if std::env::var_os("IPWATCH_BLESS").is_some() {
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(&path, screen).unwrap();
    }
    let recorded = crate::bounded::read_text(&path, 1 << 20).unwrap_or_default();
    assert_eq!(screen, recorded, "{name}: IPWATCH_BLESS=1 records it anew");
}

#[test]
fn a_narrow_screen_has_the_ranges_and_one_pane() {
    let mut state = told(80, 24, Glyphs::Unicode);
    is_recorded("findings-80", &text(&state));
    for (key, name) in [("1", "ranges"), ("3", "addresses"), ("4", "conflicts"), ("5", "sources")] {
        type_in(&mut state, key);
        is_recorded(&format!("{name}-80"), &text(&state));
    }
}

#[test]
fn a_wide_screen_has_all_panes() {
    is_recorded("all-200", &text(&told(200, 50, Glyphs::Unicode)));
    is_recorded("all-140", &text(&told(140, 24, Glyphs::Unicode)));
}

/// What is wrong with the findings of the example, changed.
fn with_findings(change: impl FnOnce(&mut Vec<Finding>)) -> State {
    let mut state = told(80, 24, Glyphs::Unicode);
    let mut document = sample("scan.json");
    let Body::Findings(findings) = &mut document.body else { panic!("findings") };
    change(findings);
    state.update(Update::Answer(Topic::Findings, Box::new(document)));
    let mut neighbours = sample("query-neigh.json");
    neighbours.body = Body::Neighbours(Vec::new());
    state.update(Update::Answer(Topic::Neighbours, Box::new(neighbours)));
    state
}

/// As the node itself sees it: nothing about it is in the neighbour table.
fn duplicate(findings: &mut Vec<Finding>) {
    findings.truncate(1);
    (findings[0].code, findings[0].severity) = (Code::IpDuplicate, Severity::Critical);
}

#[test]
fn who_claims_a_duplicate_within_the_node_is_said() {
    let mut state = with_findings(duplicate);
    type_in(&mut state, "4");
    let screen = text(&state);
    let row = screen.lines().find(|line| line.starts_with("> ")).unwrap();
    assert!(row.contains("CRIT  10.0.3.17"), "{row}");
    assert!(row.contains("shop/api-0 (pid 812 java"), "{row}");
}

#[test]
fn how_bad_it_is_can_be_read_without_colours_in_every_pane() {
    let mut state = with_findings(duplicate);
    for pane in ["1", "2", "3", "4", "5"] {
        type_in(&mut state, pane);
        let screen = text(&state);
        let header = screen.lines().next().unwrap();
        assert!(header.contains("1 finding, 1 CRIT"), "{pane}: {header}");
    }
}

#[test]
fn addresses_of_one_prefix_are_told_apart_on_a_narrow_screen() {
    let mut state = with_findings(|findings| {
        findings.truncate(2);
        for (finding, ip) in findings.iter_mut().zip(["7334", "9999"]) {
            finding.subject.ip = Some(format!("2001:db8:85a3::8a2e:370:{ip}").parse().unwrap());
            finding.caused_by = None;
        }
    });
    type_in(&mut state, "2");
    let screen = text(&state);
    assert!(screen.contains("70:7334") && screen.contains("70:9999"), "{screen}");
}

#[test]
fn the_way_out_is_named_and_what_is_cut_is_marked_on_a_narrow_screen() {
    let screen = text(&told(80, 24, Glyphs::Unicode));
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines[23].contains("q quit"), "{}", lines[23]);
    assert!(lines[22].ends_with('…'), "{}", lines[22]);
}

#[test]
fn colours_mean_what_they_mean_everywhere() {
    let mut state = told(80, 24, Glyphs::Unicode);
    type_in(&mut state, " j");
    is_recorded("unfolded-80-painted", &painted(&state));
    is_recorded("all-200-painted", &painted(&told(200, 50, Glyphs::Unicode)));
}

#[test]
fn a_terminal_that_is_not_utf8_gets_ascii_alone() {
    for (width, height) in [(80, 24), (200, 50)] {
        let mut state = told(width, height, Glyphs::Ascii);
        is_recorded(&format!("ascii-{width}"), &text(&state));
        for keys in [" ", "1", "2", "3", "4", "5", "?"] {
            type_in(&mut state, keys);
            let screen = text(&state);
            assert!(screen.is_ascii(), "{keys}: {screen}");
        }
    }
}

#[test]
fn without_colours_a_cell_has_no_look() {
    let mut state = told(80, 24, Glyphs::Unicode);
    type_in(&mut state, " j");
    let plain = |cell: &Cell| cell.fg == Color::Reset && cell.modifier.is_empty();
    assert!(drawn(&state, Paint(false)).content().iter().all(plain));
}

#[tokio::test]
async fn a_page_says_what_the_command_in_its_title_says() {
    let fake = crate::api::fake::daemon(|_| Ok(sample("scan.json")));
    let mut state = told(80, 24, Glyphs::Unicode);
    let Some(Effect::Ask(number, question)) = type_in(&mut state, "\r") else {
        panic!("nothing is asked")
    };
    assert_eq!(question, Question::Explain("k3f9q2m7x5wz4a6b".to_owned()));
    assert!(text(&state).contains("asking the daemon"), "{}", text(&state));
    let cli = crate::cli::args::Cli::read(["ipwatch", "top"].map(Into::into).into()).unwrap();
    let answer = super::answers::text(&fake.client, &question, &Out::new(&cli.global), 80).await;
    state.answer(number + 1, "of another question");
    state.answer(number, &answer);
    is_recorded("explain-80", &painted(&state));
    type_in(&mut state, "\x1b[F");
    assert!(
        text(&state).contains("MORE   ipwatch explain ip-held-by-stuck-process"),
        "{}",
        text(&state)
    );
    assert_eq!(type_in(&mut state, "q"), None);
    assert!(text(&state).contains("Findings"), "q leads back first");
    assert_eq!(type_in(&mut state, "q"), Some(Effect::Quit));
}

#[test]
fn help_names_every_key_and_part_of_a_bar() {
    let mut state = told(80, 24, Glyphs::Unicode);
    type_in(&mut state, "?");
    is_recorded("help-80", &text(&state));
}

#[test]
fn what_is_stale_is_marked_and_loses_its_colours() {
    let mut state = told(80, 24, Glyphs::Unicode);
    state.update(Update::Lost { why: "no daemon answers".to_owned(), again: 4 });
    is_recorded("stale-80-painted", &painted(&state));
    state.update(Update::Following);
    assert!(!text(&state).contains("STALE"));
    type_in(&mut state, "3");
    assert!(text(&state).contains("the daemon was gone"), "{}", text(&state));
}

/// A node on which nothing was found, with sources of this status.
fn quiet(change: impl FnOnce(&mut Document)) -> State {
    let mut state = State::new(Size::new(80, 24), Glyphs::Unicode);
    state.update(Update::Following);
    let mut doctor = sample("doctor.json");
    doctor.blind.clear();
    doctor.sources.iter_mut().for_each(|source| source.status = SourceStatus::Active);
    change(&mut doctor);
    for (topic, body) in [
        (Topic::Findings, Body::Findings(Vec::new())),
        (Topic::Neighbours, Body::Neighbours(Vec::new())),
    ] {
        let empty = Document { body, blind: Vec::new(), ..doctor.clone() };
        state.update(Update::Answer(topic, Box::new(empty)));
    }
    state.update(Update::Answer(Topic::Doctor, Box::new(doctor)));
    state
}

#[test]
fn nothing_is_said_to_be_wrong_only_of_what_was_looked_at() {
    let state = State::new(Size::new(80, 24), Glyphs::Unicode);
    assert!(!text(&state).contains("nothing wrong"), "nothing was asked yet: {}", text(&state));
    assert!(text(&state).contains("not known yet"));

    let state = quiet(|_| {});
    assert!(text(&state).contains("nothing wrong is known"), "{}", text(&state));
    assert!(!text(&state).contains("but not everything"), "{}", text(&state));

    let mut state = quiet(|doctor| {
        doctor.sources[0].status = SourceStatus::Down;
        doctor.blind = vec![crate::finding::Code::IpDuplicate];
    });
    let screen = text(&state);
    assert!(screen.contains("1 code NOT JUDGED"), "{screen}");
    assert!(screen.contains("but not everything is seen: "), "{screen}");
    assert!(screen.contains("not judged: ip-duplicate"), "{screen}");
    is_recorded("blind-80", &screen);
    let why = "the first snapshot is not complete yet".to_owned();
    state.update(Update::Refused(Topic::Findings, why.clone()));
    assert!(text(&state).contains(&why), "{}", text(&state));
}

#[test]
fn a_filter_shows_what_has_its_text_also_below_a_folded_cause() {
    let mut state = told(80, 24, Glyphs::Unicode);
    type_in(&mut state, "/NGINX");
    let screen = text(&state);
    assert!(screen.contains("p81c") && screen.contains("k3f9"), "{screen}");
    assert!(!screen.contains("r7d2") && screen.contains("filter: NGINX_"), "{screen}");
    type_in(&mut state, "\rx");
    type_in(&mut state, "/\x7f\x7f\x7f\x7f\x7fnothing has this\r");
    assert!(text(&state).contains("no row with"), "{}", text(&state));
    assert!(!text(&state).contains("nothing wrong is known\n"), "{}", text(&state));
    state.key(super::keys::Key::Escape);
    assert!(text(&state).contains("k3f9"));
}

#[test]
fn a_search_goes_round_and_says_when_there_is_nothing() {
    let mut state = told(80, 24, Glyphs::Unicode);
    type_in(&mut state, "c");
    assert_eq!(state.cursors[1].at, 0);
    type_in(&mut state, "fnginx\r");
    assert_eq!(state.cursors[1].at, 1);
    type_in(&mut state, "n");
    assert_eq!(state.cursors[1].at, 1, "it is the only one");
    type_in(&mut state, "fdead-sandbox\rNN");
    assert_eq!(state.cursors[1].at, 2);
    type_in(&mut state, "fno such row\r");
    assert!(text(&state).contains("no row with \"no such row\""), "{}", text(&state));
}

#[test]
fn the_cursor_stays_on_its_row_while_others_come() {
    let mut state = told(80, 24, Glyphs::Unicode);
    type_in(&mut state, "cj");
    let id = |state: &State| match state.selected() {
        Some(super::rows::Row::Finding { at, .. }) => state.known.finding(at).unwrap().id.clone(),
        _ => panic!("no finding"),
    };
    let before = id(&state);
    let mut document = sample("scan.json");
    let Body::Findings(findings) = &mut document.body else { panic!("findings") };
    let mut worse = findings[1].clone();
    (worse.id, worse.caused_by) = ("aaaa".to_owned(), None);
    findings.push(worse);
    state.update(Update::Answer(Topic::Findings, Box::new(document)));
    assert_eq!(id(&state), before);
    // In the log the newest comes first, and stays in sight unless a row was selected.
    type_in(&mut state, "3");
    assert_eq!(state.cursors[2].at, 0);
}

#[test]
fn every_order_sorts() {
    let mut state = told(80, 24, Glyphs::Unicode);
    for pane in super::rows::Pane::ALL {
        type_in(&mut state, &(pane as usize + 1).to_string());
        for order in pane.orders() {
            assert!(text(&state).contains(&format!("by {order}")), "{order}: {}", text(&state));
            type_in(&mut state, "s");
        }
        assert_eq!(state.cursors[pane as usize].order, 0, "it goes round");
    }
}

#[test]
fn tree_and_history_are_those_of_the_row() {
    let mut state = told(80, 24, Glyphs::Unicode);
    let mut command = |keys: &str| {
        let Some(Effect::Ask(_, question)) = type_in(&mut state, keys) else { panic!("{keys}") };
        type_in(&mut state, "q");
        question.command()
    };
    assert!(command("t").starts_with("ipwatch query netns "), "by its netns");
    assert_eq!(command("h"), "ipwatch query history 10.0.3.17");
    assert!(command("3jt").ends_with(" -o tree"), "the newest entry is a gap");
    assert_eq!(command("4\r"), "ipwatch explain 10.0.3.17");
    assert_eq!(command("1\r"), "ipwatch query ipam cbr0");
    assert_eq!(type_in(&mut state, "5t"), None);
    assert!(text(&state).contains("there is no tree of this"));
}
