use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::contract::{Container, Netns, Pod, Reserved};
use crate::finding::Severity;

const CALENDAR: Calendar = Calendar { wall_offset: 1_700_000_000_000_000_000 };
const CODE: Code = Code::IpHeldByStuckProcess;

fn candidate(key: &str, observed: u64) -> Candidate {
    Candidate {
        code: CODE,
        key: key.to_owned(),
        severity: Severity::Warning,
        subject: Subject::default(),
        holders: vec![holder(812)],
        evidence: Vec::new(),
        since: BootNs(1),
        observed: BootNs(observed),
        impact: remedy::Text::default(),
        remediation: vec![remedy::Step::advice(remedy::Text::own("reboot"))],
        caused_by: None,
        preexisting: false,
    }
}

fn holder(pid: u32) -> Holder {
    Holder {
        pid: Some(pid),
        comm: Some("cat".to_owned()),
        state: Some('S'),
        exiting: Some(true),
        ..Holder::of_kind(crate::contract::HolderKind::Process)
    }
}

fn see(life: &mut Life, now: u64, candidates: &[Candidate]) -> Vec<Change> {
    life.observe(BootNs(now), &CALENDAR, candidates, &BTreeSet::new())
}

fn kinds(changes: &[Change]) -> Vec<(ChangeKind, Status)> {
    changes.iter().map(|change| (change.change, change.finding.status)).collect()
}

/// Without a daemon nothing can check whether a finding is still open, and no command pretends to.
#[test]
fn what_asks_a_daemon_is_told_in_words_where_there_is_none() {
    let still = remedy::guard::is_still_found("k3f9q2m7x5wz4a6b");
    let cordon = remedy::cordon(remedy::Text::own("Start no pod here"), "node-1", still);
    let told = |daemon| {
        let mut life = Life::default();
        life.set_daemon(daemon);
        let remediation = vec![cordon.clone()];
        let found = |at| Candidate { remediation: remediation.clone(), ..candidate("a", at) };
        let opened = see(&mut life, 10, &[found(10)]);
        let fires = see(&mut life, 20, &[found(20)]);
        [opened, fires].map(|changes| changes.into_iter().next().unwrap().finding)
    };
    for finding in told(remedy::Daemon::Absent) {
        let [step] = &finding.steps[..] else { panic!("{finding:#?}") };
        assert_eq!((&step.command, step.changes, step.runs.len()), (&None, false, 0));
        assert!(!finding.remediation[0].contains("kubectl"), "{finding:#?}");
    }
    for finding in told(remedy::Daemon::At("/run/b.sock".into())) {
        assert_eq!(
            finding.steps[0].runs[0].argv[..3],
            ["ipwatch", "--socket=/run/b.sock", "query"]
        );
        assert!(finding.remediation[0].contains("ipwatch --socket=/run/b.sock query findings"));
    }
}

#[test]
fn a_life_from_the_first_look_to_the_end() {
    let mut life = Life::default();
    let opened = see(&mut life, 10, &[candidate("a", 9)]);
    assert_eq!(kinds(&opened), [(ChangeKind::Opened, Status::Pending)]);
    assert_eq!(opened[0].finding.firing_at, None);

    let fires = see(&mut life, 2_000_000_000, &[candidate("a", 1_999_000_000)]);
    assert_eq!(kinds(&fires), [(ChangeKind::Updated, Status::Firing)]);
    assert_eq!(fires[0].finding.firing_at, Some(CALENDAR.date(BootNs(2_000_000_000))));
    assert_eq!(fires[0].finding.last_seen, CALENDAR.date(BootNs(1_999_000_000)));

    let over = see(&mut life, 3_000_000_000, &[]);
    assert_eq!(kinds(&over), [(ChangeKind::Resolved, Status::Resolved)]);
    assert_eq!(over[0].finding.resolved_at, Some(CALENDAR.date(BootNs(3_000_000_000))));
    assert_eq!(life.open().count(), 0);
    assert_eq!(life.resolved().count(), 1);
}

/// A sandbox in a crash loop gets a new netns each time.
#[test]
fn a_duplicate_whose_holder_is_made_anew_is_opened_once() {
    const SECOND: u64 = 1_000_000_000;
    let twice = |at| Candidate { code: Code::IpDuplicate, ..candidate("a", at) };
    let mut life = Life::default();
    let mut told = see(&mut life, SECOND, &[twice(SECOND)]);
    // It is there for two seconds, and then gone for two.
    for at in 2..42 {
        let found = if at % 4 < 2 { vec![] } else { vec![twice(at * SECOND)] };
        told.extend(see(&mut life, at * SECOND, &found));
    }
    let both = [(ChangeKind::Opened, Status::Pending), (ChangeKind::Updated, Status::Firing)];
    assert_eq!(kinds(&told), both);
    let gone = BootNs(44 * SECOND);
    assert_eq!(see(&mut life, 43 * SECOND, &[twice(43 * SECOND)]), []);
    assert!(life.is_at_rest());
    assert_eq!(see(&mut life, gone.0, &[]), []);
    assert_eq!((life.is_at_rest(), life.due(gone)), (false, Some(BootNs(49 * SECOND))));
    assert_eq!(see(&mut life, 48 * SECOND, &[]), []);
    let over = see(&mut life, 49 * SECOND, &[]);
    assert_eq!(kinds(&over), [(ChangeKind::Resolved, Status::Resolved)]);
    assert_eq!(over[0].finding.resolved_at, Some(CALENDAR.date(gone)), "since it is not seen");
    // Seen once, it has paged nobody.
    see(&mut life, 60 * SECOND, &[twice(60 * SECOND)]);
    assert_eq!(see(&mut life, 61 * SECOND, &[]).len(), 1);
}

/// The gaps of a crash loop double up to 5 minutes: only the first ones end the finding.
#[test]
fn a_duplicate_whose_holder_crashes_in_a_loop_is_opened_twice_at_most() {
    const SECOND: u64 = 1_000_000_000;
    let twice = |at: u64| Candidate { code: Code::IpDuplicate, ..candidate("a", at * SECOND) };
    let mut life = Life::default();
    let (mut at, mut told) = (1, Vec::new());
    let ack = Ack { at: CALENDAR.date(BootNs(1)), uid: Some(0), note: None, until: None };
    for gap in [10, 20, 40, 80, 160, 300, 300, 300] {
        for _ in 0..3 {
            told.extend(see(&mut life, at * SECOND, &[twice(at)]));
            at += 1;
        }
        let id = life.open().next().unwrap().finding.id.clone();
        life.acknowledge(&id, "", Some(ack.clone()));
        for _ in 0..gap {
            told.extend(see(&mut life, at * SECOND, &[]));
            at += 1;
        }
    }
    let count = |kind| told.iter().filter(|change| change.change == kind).count();
    assert_eq!((count(ChangeKind::Opened), count(ChangeKind::Resolved)), (2, 1), "{told:#?}");
    let again = told.iter().filter(|change| change.change == ChangeKind::Opened).nth(1).unwrap();
    assert_eq!(again.finding.acked.as_ref(), Some(&ack));
    // The loop has ended: so does the finding, as of when it was last seen.
    let missing = life.open().next().unwrap().missing.unwrap();
    let over = see(&mut life, (at + 600) * SECOND, &[]);
    assert_eq!(over[0].finding.resolved_at, Some(CALENDAR.date(missing)));
    // Long after, it is another one.
    let later = see(&mut life, (at + 2_000) * SECOND, &[twice(at + 2_000)]);
    assert_eq!(later[0].finding.acked, None);
}

/// A duplicate is one finding, whoever has the IP. What was acknowledged is that this pod has it.
#[test]
fn an_acknowledgement_does_not_pass_to_another_holder() {
    const SECOND: u64 = 1_000_000_000;
    let pod = |name: &str, uid: &str, sandbox: &str| Subject {
        netns: Some(Netns { cookie: Some(sandbox.len() as u64), ..Netns::default() }),
        container: Some(Container { id: Some(sandbox.into()), ..Container::default() }),
        pod: Some(Pod {
            namespace: Some("shop".into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
            ..Pod::default()
        }),
        ..Subject::default()
    };
    let bare = |cookie: u64| Subject {
        netns: Some(Netns { cookie: Some(cookie), ..Netns::default() }),
        ..Subject::default()
    };
    let twice = |at: u64, subject: &Subject| Candidate {
        code: Code::IpDuplicate,
        severity: Severity::Critical,
        subject: subject.clone(),
        ..candidate("a", at * SECOND)
    };
    let ack = Ack { at: CALENDAR.date(BootNs(1)), uid: Some(0), note: None, until: None };
    // Acknowledged at 2 s, not seen from 3 s until `back`, then seen each second with these subjects.
    let pages = |back: u64, subjects: &[Subject]| {
        let mut life = Life::default();
        let first = pod("web-0", "1", "a");
        see(&mut life, SECOND, &[twice(1, &first)]);
        let fires = see(&mut life, 2 * SECOND, &[twice(2, &first)]);
        let id = fires[0].finding.id.clone();
        life.acknowledge(&id, "", Some(ack.clone()));
        assert!(!life.get(&id).unwrap().finding.pages());
        (3..back).for_each(|at| drop(see(&mut life, at * SECOND, &[])));
        let mut at = back;
        for subject in subjects {
            see(&mut life, at * SECOND, &[twice(at, subject)]);
            at += 1;
        }
        let told = see(&mut life, at * SECOND, &[twice(at, subjects.last().unwrap())]);
        (life.get(&id).unwrap().finding.pages(), life, told, at)
    };
    let repeated = |subject: Subject, times: usize| vec![subject; times];
    for back in [3, 6, 300] {
        let (same, ..) = pages(back, &repeated(pod("web-0", "1", "bb"), 30));
        assert!(!same, "the same pod, in another sandbox, after {back} s");
        let (other, ..) = pages(back, &repeated(pod("web-1", "2", "bb"), 2));
        assert!(other, "another pod, after {back} s");
        let (anew, ..) = pages(back, &repeated(pod("web-0", "2", "bb"), 2));
        assert!(anew, "a new pod of that name, after {back} s");
        // A netns whose pod is not known yet, and one that has none.
        let named = [repeated(bare(7), 5), repeated(pod("web-0", "1", "bb"), 5)].concat();
        let (same, life, ..) = pages(back, &named);
        let waits = life.open().next().unwrap().acked_for.due();
        assert!(!same && waits.is_none(), "the same pod once it is named, after {back} s");
        let (stranger, ..) = pages(back, &repeated(bare(7), 12));
        assert!(stranger, "a netns of nobody, after {back} s");
        // Who is acknowledged in turn, is.
        let (_, mut life, _, at) = pages(back, &repeated(pod("web-1", "2", "bb"), 2));
        let id = life.open().next().unwrap().finding.id.clone();
        life.acknowledge(&id, "", Some(ack.clone()));
        for (at, subject) in [(at + 1, pod("web-0", "1", "a")), (at + 2, pod("web-1", "2", "bb"))] {
            see(&mut life, at * SECOND, &[twice(at, &subject)]);
            assert!(!life.get(&id).unwrap().finding.pages(), "{subject:?}");
        }
    }
    // It is told when it ends, and a netns without a name is waited for.
    let mut life = Life::default();
    see(&mut life, SECOND, &[twice(1, &pod("web-0", "1", "a"))]);
    let fires = see(&mut life, 2 * SECOND, &[twice(2, &pod("web-0", "1", "a"))]);
    life.acknowledge(&fires[0].finding.id, "", Some(ack.clone()));
    assert!(life.is_at_rest());
    see(&mut life, 3 * SECOND, &[twice(3, &bare(7))]);
    assert!(!life.is_at_rest());
    assert_eq!(life.due(BootNs(4 * SECOND)), Some(BootNs(13 * SECOND)));
    let ended = see(&mut life, 13 * SECOND, &[twice(3, &bare(7))]);
    assert_eq!(kinds(&ended), [(ChangeKind::Updated, Status::Firing)]);
    assert_eq!(ended[0].at, Some(CALENDAR.date(BootNs(13 * SECOND))));
}

/// A restart does not make another holder the acknowledged one.
#[test]
fn after_a_restart_the_acknowledgement_is_still_about_its_holder() {
    let of = |at: u64, id: &str| Candidate {
        code: Code::IpDuplicate,
        severity: Severity::Critical,
        subject: Subject {
            container: Some(Container { id: Some(id.into()), ..Container::default() }),
            ..Subject::default()
        },
        ..candidate("a", at)
    };
    let mut earlier = Life::default();
    see(&mut earlier, 10, &[of(10, "a")]);
    let fires = see(&mut earlier, 20, &[of(20, "a")]);
    let id = fires[0].finding.id.clone();
    let ack = Ack { at: CALENDAR.date(BootNs(1)), uid: Some(0), note: None, until: None };
    earlier.acknowledge(&id, "", Some(ack));
    let stored = earlier.get(&id).unwrap().clone();
    let stored = Record { acked_for: AckedFor::default(), ..stored };
    for (holder, pages) in [("a", false), ("b", true)] {
        for found_before in [true, false] {
            let mut life = Life::default();
            if found_before {
                see(&mut life, 30, &[of(30, holder)]);
            }
            life.continue_from(stored.clone());
            see(&mut life, 40, &[of(40, holder)]);
            see(&mut life, 50, &[of(50, holder)]);
            let finding = &life.get(&id).unwrap().finding;
            assert_eq!(finding.pages(), pages, "{holder}, found before: {found_before}");
        }
    }
}

#[test]
fn the_same_observation_twice_is_one() {
    let mut life = Life::default();
    see(&mut life, 10, &[candidate("a", 9)]);
    for now in 11..20 {
        assert_eq!(see(&mut life, now, &[candidate("a", 9)]), []);
    }
}

#[test]
fn two_looks_too_close_are_one() {
    let mut life = Life::default();
    life.set_second_look(500);
    let none = BTreeSet::new();
    life.observe(BootNs(11), &CALENDAR, &[candidate("a", 10)], &none);
    assert_eq!(life.due(BootNs(11)), Some(BootNs(510)));
    assert_eq!(life.observe(BootNs(14), &CALENDAR, &[candidate("a", 13)], &none), []);
    let [change] =
        life.observe(BootNs(511), &CALENDAR, &[candidate("a", 510)], &none).try_into().unwrap();
    assert_eq!(change.finding.status, Status::Firing);

    // Without a third look, it still fires once it has lasted longer.
    life.observe(BootNs(600), &CALENDAR, &[candidate("a", 510), candidate("b", 600)], &none);
    let both = [candidate("a", 510), candidate("b", 603)];
    assert_eq!(life.observe(BootNs(1_100), &CALENDAR, &both, &none), []);
    assert_eq!(life.due(BootNs(1_100)), Some(BootNs(1_600)));
    let [change] = life.observe(BootNs(1_600), &CALENDAR, &both, &none).try_into().unwrap();
    assert_eq!(change.finding.status, Status::Firing);
}

#[test]
fn what_is_left_out_stays_as_long_as_it_holds() {
    let mut life = Life::default();
    see(&mut life, 10, &[candidate("a", 9)]);
    see(&mut life, 11, &[candidate("a", 11)]);
    assert!(life.is_at_rest(), "it fires");
    life.keep_left_out(&[], Some(|_: &Finding| true));
    assert_eq!(see(&mut life, 12, &[]), []);
    assert!(!life.is_at_rest(), "no candidate changes when it ends");
    life.keep_left_out(&[], Some(|_: &Finding| false));
    assert_eq!(kinds(&see(&mut life, 13, &[])), [(ChangeKind::Resolved, Status::Resolved)]);
}

#[test]
fn what_is_blind_does_not_resolve_and_still_opens() {
    let (mut life, blind) = (Life::default(), BTreeSet::from([CODE]));
    see(&mut life, 10, &[candidate("a", 9)]);
    let changes = life.observe(BootNs(11), &CALENDAR, &[candidate("b", 11)], &blind);
    assert_eq!(kinds(&changes), [(ChangeKind::Opened, Status::Pending)]);
    assert_eq!(life.open().count(), 2);
    assert_eq!(see(&mut life, 12, &[]).len(), 2);
}

#[test]
fn one_that_comes_back_has_its_old_id_and_a_new_life() {
    let mut life = Life::default();
    let first = see(&mut life, 10, &[candidate("a", 9)]);
    see(&mut life, 11, &[candidate("a", 11)]);
    see(&mut life, 12, &[]);
    let again = see(&mut life, 20, &[Candidate { preexisting: true, ..candidate("a", 20) }]);
    assert_eq!(kinds(&again), [(ChangeKind::Opened, Status::Pending)]);
    assert_eq!(again[0].finding.id, first[0].finding.id);
    assert_eq!((again[0].finding.resolved_at.as_ref(), again[0].finding.preexisting), (None, true));
    assert_eq!(life.resolved().count(), 0, "it is not over any more");
}

/// An acknowledgement belongs to the cause, which continues while one leak is freed and the next one appears.
#[test]
fn an_acknowledgement_holds_whatever_becomes_of_what_one_cause_has_left() {
    let of = |at: u64, ips: &[&str]| {
        let reserved = |ip: &&str| Reserved {
            ip: ip.parse().unwrap(),
            key: format!("/net/{ip}"),
            container: None,
            pod: None,
        };
        let reservations = ips.iter().map(reserved).collect();
        let subject = Subject { reservations, ..Subject::default() };
        Candidate { subject, ..candidate("net/unknown", at) }
    };
    let ack = Ack { at: "now".to_owned(), uid: Some(0), until: None, note: None };
    let mut life = Life::default();
    see(&mut life, 10, &[of(10, &["10.0.0.1", "10.0.0.2"])]);
    let fires = see(&mut life, 20, &[of(20, &["10.0.0.1", "10.0.0.2"])]);
    life.acknowledge(&fires[0].finding.id, "now", Some(ack.clone()));
    see(&mut life, 30, &[of(30, &["10.0.0.2"])]);
    let told = see(&mut life, 11_000_000_000, &[of(11_000_000_000, &["10.0.0.2", "10.0.0.3"])]);
    assert_eq!(kinds(&told), [(ChangeKind::Updated, Status::Firing)]);
    assert_eq!((told[0].held_back, &told[0].finding.acked), (1, &Some(ack)));
    assert!(!told[0].finding.pages() && told[0].finding.subject.several() == Some(2));
    // It ends with the cause.
    see(&mut life, 12_000_000_000, &[]);
    let again = see(&mut life, 13_000_000_000, &[of(13_000_000_000, &["10.0.0.9"])]);
    assert_eq!((&again[0].finding.id, &again[0].finding.acked), (&told[0].finding.id, &None));
}

#[test]
fn only_what_people_act_on_is_an_update() {
    let mut life = Life::default();
    see(&mut life, 10, &[candidate("a", 9)]);
    see(&mut life, 11, &[candidate("a", 11)]);
    let base = || candidate("a", 12);

    let evidence = crate::finding::Evidence {
        source: "procfs".to_owned(),
        at: String::new(),
        text: "state D".to_owned(),
    };
    let mut flicker = holder(812);
    (flicker.state, flicker.comm) = (Some('R'), Some("other".to_owned()));
    for quiet in [
        base(),
        Candidate { evidence: vec![evidence.clone()], ..base() },
        Candidate { holders: vec![flicker], ..base() },
        Candidate { impact: remedy::Text::own("worse"), ..base() },
        Candidate { since: BootNs(5), preexisting: true, ..base() },
    ] {
        assert_eq!(see(&mut life, 13, &[quiet]), []);
    }
    let record = life.open().next().unwrap();
    assert_eq!(record.finding.since, CALENDAR.date(BootNs(1)), "since belongs to the life");
    assert!(!record.finding.preexisting);

    let subject = Subject { ip: Some("10.0.0.1".parse().unwrap()), ..Subject::default() };
    let mut alive = holder(812);
    alive.exiting = None;
    let mut at = 14;
    for news in [
        Candidate { severity: Severity::Critical, ..base() },
        Candidate { subject, ..base() },
        Candidate { holders: vec![holder(813)], ..base() },
        Candidate { holders: vec![alive], ..base() },
        Candidate { holders: vec![holder(812), holder(813)], ..base() },
        Candidate { remediation: vec![remedy::Step::advice(remedy::Text::own("wait"))], ..base() },
    ] {
        at += 2 * PACE;
        let mut changes = see(&mut life, at, std::slice::from_ref(&news));
        changes.extend(see(&mut life, at + SETTLES, std::slice::from_ref(&news)));
        assert_eq!(kinds(&changes), [(ChangeKind::Updated, Status::Firing)], "{news:?}");
        assert_eq!(see(&mut life, at + SETTLES + 1, &[news]), []);
        at += 2 * PACE;
        see(&mut life, at, &[base()]);
        see(&mut life, at + SETTLES, &[base()]);
    }
}

#[test]
fn evidence_is_refreshed_in_silence() {
    let mut life = Life::default();
    see(&mut life, 10, &[candidate("a", 9)]);
    see(&mut life, 11, &[candidate("a", 11)]);
    let fresh = Candidate { impact: remedy::Text::own("now"), ..candidate("a", 5_000_000_000) };
    assert_eq!(see(&mut life, 5_000_000_000, &[fresh]), []);
    let record = life.open().next().unwrap();
    assert_eq!(record.finding.impact, "now");
    assert_eq!(record.finding.last_seen, CALENDAR.date(BootNs(5_000_000_000)));
    // A look that arrives late turns nothing back.
    see(&mut life, 5_000_000_001, &[candidate("a", 11)]);
    assert_eq!(life.open().next().unwrap().finding.last_seen, CALENDAR.date(BootNs(5_000_000_000)));
}

#[test]
fn a_consequence_names_its_cause_by_id() {
    let caused = |key: &str, by: &str| Candidate {
        caused_by: Some((CODE, by.to_owned())),
        ..candidate(key, 9)
    };
    let mut life = Life::default();
    // The consequence comes first in the list, before its cause.
    let changes = see(&mut life, 10, &[caused("effect", "cause"), candidate("cause", 9)]);
    let id = |key| Some(finding_id(CODE, key));
    assert_eq!(changes[0].finding.caused_by, id("cause"));
    assert_eq!(changes[1].finding.caused_by, None);
    // A cause that has ended explains nothing any more; no finding is its own cause.
    let changes = see(&mut life, 11, &[caused("effect", "cause"), caused("self", "self")]);
    assert_eq!(changes[0].change, ChangeKind::Resolved);
    assert_eq!(changes[1].finding.caused_by, None);
    assert_eq!(changes[2].finding.caused_by, None);
}

#[test]
fn one_named_twice_is_told_once() {
    let mut life = Life::default();
    let older = Candidate { severity: Severity::Info, ..candidate("a", 8) };
    let changes = see(&mut life, 10, &[older, candidate("a", 9)]);
    assert_eq!(kinds(&changes), [(ChangeKind::Opened, Status::Pending)]);
    assert_eq!(changes[0].finding.severity, Severity::Warning, "the later look counts");
}

#[test]
fn what_an_earlier_run_left_goes_on() {
    let mut earlier = Life::default();
    see(&mut earlier, 10, &[candidate("a", 9)]);
    see(&mut earlier, 11, &[candidate("a", 11)]);
    let record = earlier.open().next().unwrap().clone();

    let mut life = Life::default();
    life.continue_from(record.clone());
    let later = Candidate { since: BootNs(50), preexisting: true, ..candidate("a", 60) };
    assert_eq!(see(&mut life, 61, std::slice::from_ref(&later)), []);
    let now = &life.open().next().unwrap().finding;
    assert_eq!((&now.since, &now.firing_at), (&record.finding.since, &record.finding.firing_at));

    // The same, if the earlier run's record arrives late.
    let mut life = Life::default();
    see(&mut life, 61, &[later]);
    life.continue_from(record.clone());
    let now = &life.open().next().unwrap().finding;
    assert_eq!((&now.since, &now.firing_at), (&record.finding.since, &record.finding.firing_at));
    assert_eq!((now.status, now.preexisting), (Status::Firing, false));
}

#[test]
fn a_pending_one_of_an_earlier_run_fires_with_the_first_look_of_this_one() {
    let mut earlier = Life::default();
    see(&mut earlier, 10, &[candidate("a", 9)]);
    let mut life = Life::default();
    life.continue_from(earlier.open().next().unwrap().clone());
    assert_eq!(see(&mut life, 20, &[candidate("a", 9)]), [], "that is still the first look");
    let fires = see(&mut life, 21, &[candidate("a", 21)]);
    assert_eq!(kinds(&fires), [(ChangeKind::Updated, Status::Firing)]);
}

#[test]
fn the_past_is_bounded_and_forgotten_by_age() {
    let mut life = Life::default();
    for n in 0..RESOLVED_KEPT as u64 + 10 {
        let now = n * 1_000_000_000;
        see(&mut life, now, &[candidate(&n.to_string(), now)]);
    }
    assert_eq!(life.resolved().count(), RESOLVED_KEPT);
    let newest = life.resolved().next().unwrap().resolved_at.clone().unwrap();
    life.forget_before(millis(&newest));
    assert_eq!(life.resolved().count(), 1);
}

/// One call: which keys are seen, by which observation, and whether the code is blind.
#[derive(Debug, Clone)]
struct Step {
    seen: Vec<(u8, u8, bool)>,
    blind: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let seen = prop::collection::vec((0..4_u8, 0..6_u8, any::<bool>()), 0..5);
    (seen, any::<bool>()).prop_map(|(seen, blind)| Step { seen, blind })
}

proptest! {
    /// For any sequence of observations, the changes of each finding are consistent.
    #[test]
    fn every_story_is_well_formed(steps in prop::collection::vec(step(), 1..40)) {
        let mut life = Life::default();
        // By id: its status, and the observations since it was opened.
        let mut story: HashMap<String, (Status, BTreeSet<u64>)> = HashMap::new();
        for (now, step) in steps.iter().enumerate() {
            let candidates: Vec<Candidate> = step
                .seen
                .iter()
                .map(|(key, observed, critical)| Candidate {
                    severity: if *critical { Severity::Critical } else { Severity::Warning },
                    ..candidate(&key.to_string(), u64::from(*observed))
                })
                .collect();
            let blind = step.blind.then_some(CODE).into_iter().collect();
            let changes = life.observe(BootNs(now as u64), &CALENDAR, &candidates, &blind);

            let ids: BTreeSet<String> =
                candidates.iter().map(|seen| finding_id(CODE, &seen.key)).collect();
            for Change { change, finding, .. } in &changes {
                let before = story.get(&finding.id).map(|(status, _)| *status);
                match change {
                    ChangeKind::Opened => {
                        prop_assert!(matches!(before, None | Some(Status::Resolved)));
                        prop_assert_eq!(finding.status, Status::Pending);
                        prop_assert!(finding.firing_at.is_none());
                        story.insert(finding.id.clone(), (finding.status, BTreeSet::new()));
                    }
                    ChangeKind::Updated => {
                        prop_assert!(matches!(before, Some(Status::Pending | Status::Firing)));
                        prop_assert!(before <= Some(finding.status), "firing is never taken back");
                    }
                    ChangeKind::Resolved => {
                        prop_assert!(!step.blind, "blind never resolves");
                        prop_assert!(!ids.contains(&finding.id), "it is still seen");
                        prop_assert!(matches!(before, Some(Status::Pending | Status::Firing)));
                        prop_assert_eq!(finding.status, Status::Resolved);
                        prop_assert!(finding.resolved_at.is_some());
                    }
                }
                if let Some((status, _)) = story.get_mut(&finding.id) {
                    *status = finding.status;
                }
            }
            for seen in &candidates {
                let id = finding_id(CODE, &seen.key);
                prop_assert!(life.get(&id).is_some(), "what is seen is open, under its own id");
                // Of two candidates with one key only the later look counts.
                let latest = candidates.iter().filter(|other| other.key == seen.key);
                let latest = latest.map(|other| other.observed.0).max().unwrap_or_default();
                story.get_mut(&id).unwrap().1.insert(latest);
            }
            for (id, (status, looks)) in &story {
                let record = life.get(id);
                prop_assert_eq!(record.is_some(), *status != Status::Resolved);
                let Some(record) = record else { continue };
                prop_assert_eq!(record.finding.status, *status, "every step is told");
                prop_assert_eq!(
                    *status == Status::Firing,
                    looks.len() > 1,
                    "two separate looks, no fewer and no more"
                );
            }
        }
    }
}

#[test]
fn what_an_earlier_run_left_is_kept_until_it_can_be_found_again() {
    let mut earlier = Life::default();
    see(&mut earlier, 10, &[candidate("a", 9)]);
    let record = earlier.open().next().unwrap().clone();
    let mut life = Life::default();
    life.be_patient(&[CODE]);
    life.continue_from(record);
    assert_eq!(see(&mut life, 20, &[]), [], "it takes its grace to be found again");
    see(&mut life, 30, &[candidate("a", 29)]);
    assert_eq!(see(&mut life, 40, &[]).len(), 1, "found again, and then gone");
    let mut life = Life::default();
    life.continue_from(earlier.open().next().unwrap().clone());
    assert_eq!(see(&mut life, 20, &[]).len(), 1, "without patience");
}

#[test]
fn what_cannot_be_found_again_is_kept_while_it_holds() {
    let (mut life, mut earlier) = (Life::default(), Life::default());
    let opened = see(&mut earlier, 10, &[candidate("a", 9), candidate("b", 9)]);
    let id = opened[0].finding.id.clone();
    let note = Ack { at: String::new(), uid: None, until: None, note: Some("on it".into()) };
    earlier.acknowledge(&id, "", Some(note.clone()));
    earlier.open().for_each(|record| life.continue_from(record.clone()));
    life.keep_while(|finding| finding.id == id);
    let resolved = see(&mut life, 20, &[]);
    assert_eq!(kinds(&resolved), [(ChangeKind::Resolved, Status::Resolved)]);
    assert_ne!(resolved[0].finding.id, id);
    assert_eq!(life.get(&id).unwrap().finding.acked, Some(note));
    life.keep_while(|_| false);
    assert_eq!(see(&mut life, 30, &[]).len(), 1);

    // A finding that this run has found itself lasts as long as it is found.
    let mut life = Life::default();
    earlier.open().for_each(|record| life.continue_from(record.clone()));
    see(&mut life, 20, &[candidate("a", 20), candidate("b", 20)]);
    life.keep_while(|_| true);
    assert_eq!(see(&mut life, 30, &[]).len(), 2);
}

/// A holder with thousands of threads, or one that restarts every few seconds, causes one page and no flood of updates.
#[test]
fn holders_that_change_are_told_at_most_once_in_ten_seconds() {
    const SEC: u64 = 1_000_000_000;
    let mut life = Life::default();
    let with = |at: u64, pid: u32| Candidate { holders: vec![holder(pid)], ..candidate("a", at) };
    see(&mut life, SEC, &[with(SEC, 1)]);
    let fires = see(&mut life, 2 * SEC, &[with(2 * SEC, 2)]);
    assert_eq!(
        (kinds(&fires), fires[0].held_back),
        (vec![(ChangeKind::Updated, Status::Firing)], 0)
    );
    assert!(life.is_at_rest());

    // Reported after a second, with the changes in the meantime.
    assert_eq!(see(&mut life, 3 * SEC, &[with(3 * SEC, 3)]), []);
    assert_eq!(life.due(BootNs(3 * SEC)), Some(BootNs(3 * SEC + SETTLES)));
    let told = see(&mut life, 4 * SEC, &[with(4 * SEC, 4)]);
    assert_eq!((told.len(), told[0].held_back), (1, 1));
    assert_eq!(told[0].finding.holders[0].pid, Some(4));

    // Delayed, but visible to queries.
    for step in 5..14 {
        assert_eq!(
            see(&mut life, step * SEC, &[with(step * SEC, u32::try_from(step).unwrap())]),
            []
        );
    }
    let known = life.open().next().unwrap();
    assert_eq!(known.finding.holders[0].pid, Some(13));
    assert!(!life.is_at_rest(), "something is to be told");
    assert_eq!(life.due(BootNs(13 * SEC)), Some(BootNs(14 * SEC)));

    // Reported when it may be, although nothing is new then.
    let told = see(&mut life, 14 * SEC, &[with(13 * SEC, 13)]);
    assert_eq!((told.len(), told[0].held_back), (1, 8), "the ninth is this one");
    assert_eq!(told[0].finding.holders[0].pid, Some(13));
    assert!(life.is_at_rest());
    assert_eq!(see(&mut life, 15 * SEC, &[with(15 * SEC, 15)]), []);

    // A change that a person acts on is reported at once, with the delayed ones.
    let worse = Candidate { severity: Severity::Critical, ..with(16 * SEC, 15) };
    assert_eq!(see(&mut life, 16 * SEC, std::slice::from_ref(&worse)), [], "seen once");
    assert_eq!((life.is_at_rest(), life.due(BootNs(15 * SEC))), (false, Some(BootNs(16 * SEC))));
    let told =
        see(&mut life, 16 * SEC + 1, &[Candidate { observed: BootNs(16 * SEC + 1), ..worse }]);
    assert_eq!((told.len(), told[0].held_back), (1, 1));
    let over = see(&mut life, 17 * SEC, &[]);
    assert_eq!(kinds(&over), [(ChangeKind::Resolved, Status::Resolved)]);
}

/// The first of five leaks makes the range's finding a consequence, which is reported at once; the other four must not
/// wait for ten seconds after that.
#[test]
fn what_follows_shortly_after_a_change_is_told_a_second_later() {
    const SEC: u64 = 1_000_000_000;
    let mut life = Life::default();
    let with = |at: u64, pid: u32| Candidate { holders: vec![holder(pid)], ..candidate("a", at) };
    see(&mut life, SEC, &[with(SEC, 1)]);
    see(&mut life, 2 * SEC, &[with(2 * SEC, 1)]);
    let worse = |at, pid| Candidate { severity: Severity::Critical, ..with(at, pid) };
    assert_eq!(see(&mut life, 9 * SEC - 1, &[worse(9 * SEC - 1, 2)]), []);
    assert_eq!(see(&mut life, 9 * SEC, &[worse(9 * SEC, 2)]).len(), 1);
    let soon = 9 * SEC + SEC / 10;
    assert_eq!(see(&mut life, soon, &[worse(soon, 3)]), []);
    let told = see(&mut life, soon + SETTLES, &[worse(soon, 3)]);
    assert_eq!((told.len(), told[0].held_back), (1, 0));
    assert_eq!(told[0].finding.holders[0].pid, Some(3));
}

/// The pod's name is reported as soon as it is known, once.
#[test]
fn the_pods_name_is_told_at_once() {
    const SEC: u64 = 1_000_000_000;
    let mut life = Life::default();
    let named = |at: u64, name: &str| {
        let pod = Pod { name: Some(name.to_owned()), ..Pod::default() };
        let subject = Subject { pod: Some(pod), ..Subject::default() };
        Candidate { subject, ..candidate("a", at) }
    };
    see(&mut life, SEC, &[candidate("a", SEC)]);
    see(&mut life, 2 * SEC, &[candidate("a", 2 * SEC)]);
    assert_eq!(see(&mut life, 3 * SEC, &[named(3 * SEC, "api-0")]).len(), 1);
    assert_eq!(see(&mut life, 4 * SEC, &[candidate("a", 4 * SEC)]), []);
    let later = 4 * SEC + SEC / 2;
    assert_eq!(see(&mut life, later, &[named(later, "api-1")]), []);
}
