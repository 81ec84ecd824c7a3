//! Recordings and their replay.

use super::*;
use crate::engine::tests::{exiting, fact, look, snapshot};
use crate::finding::{ChangeKind, Finding, Status};

const MS: u64 = 1_000_000;

/// A recording of a process that hangs, and the changes that the engine reported while it was recorded.
fn record(settings: &Settings) -> (Vec<u8>, Vec<Change>) {
    let started = BootNs(MS);
    let (mut out, mut told) = (Vec::new(), Vec::new());
    let mut engine = Engine::new(settings.clone(), started);
    line(&mut out, &Note::Settings(Judged::new(settings, started))).unwrap();
    let mut step = |ms: u64, facts: &[Fact]| {
        let at = BootNs(ms * MS);
        facts.iter().for_each(|fact| line(&mut out, fact).unwrap());
        line(&mut out, &Note::Step(at)).unwrap();
        for change in engine.step(facts, at).changes {
            line(&mut out, &Note::Told(Box::new(change.clone()))).unwrap();
            told.push(change);
        }
    };
    step(3, &snapshot());
    step(4, &[fact(4, Observation::FirstAnswers)]);
    step(1_000, &[exiting(1_000)]);
    for ms in [3_100, 3_700, 6_100, 6_777] {
        step(ms, &[look(ms)]);
    }
    (out, told)
}

pub(super) fn replayed(record: &[u8]) -> Vec<Finding> {
    let mut player = Player::default();
    lines(record).for_each(|line| player.play(&line.unwrap()).unwrap());
    match player.end().unwrap().body {
        Body::Findings(findings) => findings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_replay_finds_the_same_at_the_same_time() {
    let (record, told) = record(&Settings::default());
    assert_eq!(told.len(), 2, "{told:?}");
    let [finding] = &replayed(&record)[..] else { panic!("one finding") };
    assert_eq!((told[1].change, &told[1].finding), (ChangeKind::Updated, finding));
    assert_eq!(finding.firing_at.as_deref(), Some("1970-01-01T00:00:06.777Z"));
}

#[test]
fn the_thresholds_of_a_recording_are_its_own() {
    let with = |grace: u64| {
        let thresholds = Thresholds { grace: grace * MS, ..Thresholds::default() };
        let (record, told) = record(&Settings { thresholds, ..Settings::default() });
        let found = replayed(&record);
        assert_eq!(found.len(), usize::from(!told.is_empty()), "{grace}");
        found.into_iter().next().and_then(|finding| finding.firing_at)
    };
    assert_eq!(with(60_000), None);
    assert_eq!(with(2_000).as_deref(), Some("1970-01-01T00:00:03.700Z"));
}

#[test]
fn what_an_older_version_recorded_is_judged_by_the_defaults() {
    let (record, _) = record(&Settings::default());
    let old = |line: &&[u8]| {
        let note = [&b"{\"settings\""[..], b"{\"step\"", b"{\"told\""];
        let first = String::from_utf8_lossy(line).contains("first_answers");
        !first && !note.iter().any(|note| line.starts_with(note))
    };
    let facts: Vec<&[u8]> = record.split_inclusive(|byte| *byte == b'\n').filter(old).collect();
    let [finding] = &replayed(&facts.concat())[..] else { panic!("one finding") };
    assert_eq!(finding.status, Status::Firing);
}

#[test]
fn shared_ips_are_written_as_people_write_them() {
    let shared = vec!["10.0.0.1".parse().unwrap(), "2001:db8::/64".parse().unwrap()];
    let settings = Settings { provisional: true, shared, ..Settings::default() };
    let text = serde_json::to_string(&Note::Settings(Judged::new(&settings, BootNs(5)))).unwrap();
    assert!(text.contains(r#""shared":["10.0.0.1","2001:db8::/64"]"#), "{text}");
    let Note::Settings(judged) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
    assert_eq!(judged.settings().unwrap(), settings);
}

/// A recording without repetitions.
pub(super) fn spelled_out(record: &[u8]) -> Vec<u8> {
    let (mut out, mut past) = (Vec::new(), Past::default());
    for text in lines(record) {
        let text = text.unwrap();
        match serde_json::from_slice(&text).unwrap() {
            Line::Note(Note::Again(again)) => {
                past.again(again).unwrap().iter().for_each(|fact| line(&mut out, fact).unwrap());
                continue;
            }
            Line::Note(_) => {}
            Line::Fact(fact) => past.push(*fact),
        }
        out.extend(text);
    }
    out
}

#[test]
fn repetitions_are_replayed_as_what_they_repeat() {
    let (record, told) = record(&Settings::default());
    let (mut packed, mut packer, mut step) = (Vec::new(), Packer::default(), Vec::new());
    for text in lines(&record[..]) {
        let text = text.unwrap();
        match serde_json::from_slice(&text).unwrap() {
            Line::Fact(fact) => step.push(*fact),
            Line::Note(_) => {
                let written = packer.pack(&step, |written| match written {
                    Written::Fact(fact) => line(&mut packed, fact),
                    Written::Again(again) => line(&mut packed, &Note::Again(again)),
                });
                written.unwrap();
                step.clear();
                packed.extend(text);
            }
        }
    }
    assert!(packed.len() < record.len(), "the looks are alike");
    assert_eq!(String::from_utf8(spelled_out(&packed)), String::from_utf8(record));
    let [finding] = &replayed(&packed)[..] else { panic!("one finding") };
    assert_eq!(&told[1].finding, finding);
}

#[test]
fn what_a_newer_version_recorded_is_refused() {
    let (record, _) = record(&Settings::default());
    let newer = String::from_utf8(record).unwrap().replace("\"version\":2", "\"version\":3");
    let refused = Player::default().play(newer.lines().next().unwrap().as_bytes()).unwrap_err();
    assert!(refused.to_string().contains("a newer ipwatch"), "{refused}");
}

#[test]
fn a_line_that_is_neither_is_refused() {
    for line in ["", "{}", "{\"step\":\"now\"}", "Call me Ishmael.", "{\"again\":[0,1,5]}"] {
        assert!(Player::default().play(line.as_bytes()).is_err(), "{line}");
    }
    assert!(Player::default().end().is_err(), "it does not say which boot it is of");
}
