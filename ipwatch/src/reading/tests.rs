//! Tests the bookkeeping with a fake clock, and one thread that really hangs, on a pipe.

use std::io::Write as _;

use super::*;

const SEC: u64 = 1_000_000_000;

fn of(pid: u32, file: &str) -> Target {
    Target::Process { pid, file: file.to_owned() }
}

fn left(id: usize, target: Target) -> Left {
    Left { id, source: "procfs", target, since: BootNs(10 * SEC) }
}

fn on(path: &str, mount: &str) -> Target {
    Target::Path { path: path.into(), mount: mount.into() }
}

#[test]
fn the_same_is_not_asked_again_until_it_answers() {
    let mut roster = Roster::default();
    assert_eq!(roster.refuses(&of(812, "stack")), None);
    let verdict = roster.hangs(left(1, of(812, "stack")));
    assert_eq!(verdict, Verdict::LeftBehind(of(812, "stack")));
    assert_eq!(roster.refuses(&of(812, "stack")), Some(BootNs(10 * SEC)));
    assert_eq!(roster.refuses(&of(812, "stat")), None, "the rest of it may answer");
    assert_eq!(roster.refuses(&of(813, "stack")), None, "and so do others");
    roster.returned(1);
    assert_eq!(roster.refuses(&of(812, "stack")), None);
    assert!(roster.is_empty());
}

#[test]
fn two_files_of_a_process_speak_for_all() {
    let mut roster = Roster::default();
    roster.hangs(left(1, of(812, "stack")));
    roster.hangs(left(2, of(812, "wchan")));
    assert!(roster.refuses(&of(812, "stat")).is_some());
    assert!(roster.refuses(&of(813, "stat")).is_none());
    roster.returned(1);
    assert!(roster.refuses(&of(812, "stat")).is_none());
}

#[test]
fn no_more_than_eight_are_left_behind() {
    let mut roster = Roster::default();
    for id in 0..MOST_LEFT {
        let verdict = roster.hangs(left(id, of(id as u32, "stat")));
        assert!(matches!(verdict, Verdict::LeftBehind(_)));
    }
    assert_eq!(roster.hangs(left(8, of(99, "stat"))), Verdict::Stalled);
    assert!(roster.is_blind("procfs") && !roster.is_blind("netlink"));
    assert_eq!(roster.hangs(left(8, of(99, "stat"))), Verdict::Stalled, "counted once");
    assert_eq!(roster.len(), MOST_LEFT + 1);
    // A place is free, and the thread still hangs.
    roster.returned(3);
    assert!(matches!(roster.hangs(left(8, of(99, "stat"))), Verdict::LeftBehind(_)));
    assert!(!roster.is_blind("procfs"));
    assert_eq!(roster.len(), MOST_LEFT);
}

#[test]
fn half_of_the_places_are_kept_from_what_is_known_to_hang() {
    let mut roster = Roster::default();
    for id in 0..MOST_LEFT / 2 {
        assert_eq!(roster.refuses(&of(99, "stack")), None);
        roster.hangs(left(id, of(id as u32, "stack")));
    }
    assert!(roster.refuses(&of(99, "task/99/stack")).is_some());
    assert!(roster.refuses(&of(99, "pidfd_getfd")).is_some());
    assert!(roster.refuses(&of(99, "stat")).is_none());
}

#[test]
fn where_one_hangs_in_execve_others_in_it_are_passed_over() {
    let mut roster = Roster::default();
    assert!(!roster.is_wary_of(&of(813, "stat")));
    roster.hangs(left(1, of(812, "stack")));
    assert!(roster.is_wary_of(&of(813, "task/813/stack")));
    assert!(!roster.is_wary_of(&of(813, "stat")), "on this kernel it may answer");
    roster.hangs(left(2, of(812, "ns/net")));
    assert!(roster.is_wary_of(&of(813, "stat")) && !roster.is_wary_of(&of(813, "status")));
    assert_eq!(roster.passes_over(813, BootNs(20 * SEC)), BootNs(20 * SEC));
    assert_eq!(roster.passes_over(813, BootNs(30 * SEC)), BootNs(20 * SEC), "since the first time");
    assert_eq!(roster.passes_over(812, BootNs(30 * SEC)), BootNs(10 * SEC), "as its thread hangs");
    let told = &roster.report(BootNs(30 * SEC))[0].1;
    assert!(told.ends_with("; also in execve, and not read: pid 813"), "{told}");
    roster.has_answered(813);
    roster.passes_over(814, BootNs(40 * SEC));
    roster.returned(2);
    assert!(!roster.is_wary_of(&of(813, "stat")) && roster.is_wary_of(&of(813, "stack")));
    roster.returned(1);
    roster.hangs(left(1, of(812, "stack")));
    assert!(!roster.report(BootNs(50 * SEC))[0].1.contains("execve"), "nobody is left of before");
}

#[test]
fn one_lock_for_the_whole_node_leaves_nobody_behind() {
    let mut roster = Roster::default();
    let waits = Left { source: "netlink", ..left(1, Target::Rtnl) };
    assert_eq!(roster.hangs(waits), Verdict::Stalled);
    assert!(!roster.is_blind("netlink"), "what is known stays true: nobody can change it");
    let report = roster.report(BootNs(50 * SEC));
    assert!(report[0].1.starts_with("rtnetlink has not answered for 40 s"), "{report:?}");
    assert!(roster.unstalled(1) && !roster.unstalled(1));
    assert!(roster.is_empty());
}

#[test]
fn what_lies_on_the_same_mount_is_left_out() {
    let mut roster = Roster::default();
    roster.hangs(left(1, on("/var/lib/cni/networks/a/10.0.0.1", "/var/lib/cni/networks/a")));
    roster.hangs(left(2, on("/etc/hung", "")));
    let refused = |path: &str| roster.refuses(&on(path, "")).is_some();
    assert!(refused("/var/lib/cni/networks/a") && refused("/var/lib/cni/networks/a/10.0.0.2"));
    assert!(!refused("/var/lib/cni/networks/b/10.0.0.1") && !refused("/var/lib/cni/networks"));
    assert!(refused("/etc/hung/below") && !refused("/etc/passwd"));
}

#[test]
fn people_are_told_what_hangs_and_for_how_long() {
    let mut roster = Roster::default();
    roster.hangs(left(1, of(812, "stat")));
    roster.hangs(left(2, of(813, "task/814/stack")));
    let report = roster.report(BootNs(50 * SEC));
    let text = "/proc/812/stat has not answered for 40 s; /proc/813/task/814/stack has not answered for 40 s";
    assert_eq!(report, [("procfs", text.to_owned())]);
}

#[test]
fn a_thread_that_has_ended_hangs_at_nothing() {
    let readings = Readings::default();
    let slot = readings.slot("netlink", "netns");
    slot.begin(Target::Rtnl);
    let later = clock::now().plus(3 * SEC);
    assert_eq!(slot.hangs(later), Verdict::Stalled);
    assert_eq!(readings.report(later).len(), 1);
    slot.ended();
    assert_eq!(readings.report(later), []);
    assert_eq!(slot.hangs(later), Verdict::Works);
}

/// A worker that reads a pipe to which nothing is written, until it is left behind and returns.
#[test]
fn a_thread_that_hangs_is_left_and_comes_back() {
    let readings = Readings::default();
    let mut returns = readings.returns();
    let slot = readings.slot("procfs", "looks");
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let own = Arc::clone(&slot);
    let worker = std::thread::spawn(move || {
        own.during(|| {
            let _reading = file(812, Path::new("stat")).unwrap();
            let mut byte = [0];
            reader.read_exact(&mut byte).unwrap();
            assert!(is_left());
            byte[0]
        })
    });
    let begun = || slot.now().at.is_some();
    while !begun() {
        std::thread::yield_now();
    }
    let now = clock::now();
    assert_eq!(slot.hangs(now), Verdict::Works, "not yet");
    assert_eq!(slot.hangs(now.plus(3 * SEC)), Verdict::LeftBehind(of(812, "stat")));
    assert_eq!(slot.hangs(now.plus(3 * SEC)), Verdict::Works, "once");
    // Another thread is refused the file that this one hangs at, and nothing else.
    let other = readings.slot("procfs", "looks");
    let ((same, another), left) =
        other.during(|| (file(812, Path::new("stat")), file(7, Path::new("stat")).is_ok()));
    assert!(hangs(&same.unwrap_err()).is_some() && another && left.is_none());
    writer.write_all(b"x").unwrap();
    assert_eq!(worker.join().unwrap(), (b'x', Some(of(812, "stat"))), "it is to end");
    assert!(returns.has_changed().unwrap());
    returns.borrow_and_update();
    assert!(readings.report(now.plus(3 * SEC)).is_empty());
}

#[test]
fn who_waits_for_a_thread_that_hangs_goes_on_without_it() {
    let readings = Readings::default();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let dead = Path::new("/dead/plugin");
    let hangs = apart(&readings, "probes", move || {
        let _reading = path(dead).unwrap();
        reader.read_exact(&mut [0]).unwrap();
    });
    assert_eq!(hangs.unwrap(), Err(on("/dead/plugin", "")));
    assert_eq!(readings.report(clock::now()).first().map(|(source, _)| *source), Some("probes"));
    // The next reader need not wait.
    let refused = |wanted| apart(&readings, "probes", move || path(wanted).is_err()).unwrap();
    assert_eq!(refused(dead), Ok(true));
    assert_eq!(refused(Path::new("/dead/other")), Ok(false));
    writer.write_all(b"x").unwrap();
    while !readings.report(clock::now()).is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(refused(dead), Ok(false));
}

#[test]
fn a_thread_that_reads_on_is_not_left() {
    let readings = Readings::default();
    let slot = readings.slot("procfs", "search");
    let (_, left) = slot.during(|| {
        for pid in 0..100 {
            let _reading = file(pid, Path::new("stat")).unwrap();
            let within = file(pid, Path::new("status")).unwrap();
            drop(within);
            assert!(slot.now().at == Some(of(pid, "stat")), "the outermost counts");
        }
        // Between two reads it may compute for longer.
        assert_eq!(slot.hangs(clock::now().plus(3 * SEC)), Verdict::Works);
        let verdict = slot.hangs(clock::now().plus(11 * SEC));
        assert_eq!(verdict, Verdict::LeftBehind(Target::Job("search")));
    });
    assert_eq!(left, Some(Target::Job("search")));
    assert_eq!(slot.hangs(clock::now().plus(60 * SEC)), Verdict::Works, "it has nothing to do");
}

#[test]
fn a_thread_that_nobody_watches_reads_as_ever() {
    let _reading = path(Path::new("/etc")).unwrap();
    assert!(!is_left());
}

#[test]
fn the_mount_of_a_path_is_found_by_its_name() {
    assert_eq!(mount_of(Path::new("/proc/1/stat")), Path::new("/proc"));
    assert_eq!(mount_of(Path::new("/")), Path::new(""));
}
