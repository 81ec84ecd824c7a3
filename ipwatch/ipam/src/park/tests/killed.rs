//! The plugin is killed at any of its steps, as by an OOM killer: nothing is lost, and nothing stays parked for ever.
//!
//! A state file is replaced by a rename, and between two runs of the delegate at most once with another content. A kill
//! right before and right after each run of the delegate therefore leaves every state that a kill at any moment leaves.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{NET, clean, program, started};
use crate::name::{PREFIX, boot_of};
use crate::state::State;
use crate::testing::{Network, script};

const HOST_LOCAL: &str = "/usr/lib/cni/host-local";

/// A call that is killed.
struct Case {
    what: &'static str,
    subnet: &'static str,
    /// Makes the situation that the call meets. Nothing is held before.
    before: fn(&Network),
    /// The addresses that are held at the time of the call.
    held: &'static [&'static str],
    /// Command and container. The command `release` is `ipwatch cni release`.
    call: (&'static str, &'static str),
    /// The runs of the delegate for this call.
    runs: &'static [&'static str],
    /// What the delegate's script does before host-local's work.
    first: &'static str,
    /// Whether the range has no other address, so that a held one is given.
    is_full: bool,
}

const CASE: Case = Case {
    what: "a held address is parked",
    subnet: NET,
    before: |_| {},
    held: &["10.88.7.2"],
    call: ("ADD", "c1"),
    runs: &["ADD c1", "DEL c1", "ADD ipwatch-parked", "ADD c1"],
    first: "",
    is_full: false,
};

#[test]
fn while_it_parks() {
    at_any_step(&CASE);
    at_any_step(&Case {
        what: "the parked id does not get it",
        runs: &["ADD c1", "DEL c1", "ADD ipwatch-parked", "DEL ipwatch-parked", "ADD c1"],
        first: "case $CNI_COMMAND$CNI_CONTAINERID in ADDipwatch-parked-*) echo '{}'; return 1;; esac",
        ..CASE
    });
}

#[test]
fn while_it_drops_what_a_cleaner_of_leaks_has_removed() {
    at_any_step(&Case {
        what: "a phantom",
        before: |net| {
            one_is_held(net);
            clean(net);
        },
        call: ("ADD", "c2"),
        runs: &["ADD c2", "DEL ipwatch-parked", "DEL c2", "ADD ipwatch-parked", "ADD c2"],
        ..CASE
    });
}

/// One is parked.
fn one_is_held(net: &Network) {
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.3"]);
}

/// Two are parked.
fn two_are_held(net: &Network) {
    net.daemon.holds(&["10.88.7.2", "10.88.7.3"]);
    assert_eq!(net.add("c1"), ["10.88.7.4"]);
    assert_eq!(net.parked().len(), 2);
}

#[test]
fn while_it_releases() {
    let after_del = Case {
        what: "after a DEL",
        before: two_are_held,
        held: &[],
        call: ("DEL", "c1"),
        runs: &["DEL c1", "DEL ipwatch-parked"],
        ..CASE
    };
    at_any_step(&Case {
        what: "after an ADD",
        call: ("ADD", "c2"),
        runs: &["ADD c2", "DEL ipwatch-parked"],
        ..after_del
    });
    at_any_step(&Case {
        what: "after a DEL, and the state file was lost",
        before: |net| {
            two_are_held(net);
            fs::remove_file(net.state_dir().join("net.parked")).unwrap();
        },
        ..after_del
    });
    at_any_step(&Case {
        what: "ipwatch cni release",
        call: ("release", ""),
        runs: &["DEL ipwatch-parked", "DEL ipwatch-parked"],
        ..after_del
    });
    at_any_step(&after_del);
}

#[test]
fn while_it_makes_room() {
    let over = Case {
        what: "a parked one that is no longer held",
        subnet: "10.88.7.0/29",
        before: |net| {
            one_is_held(net);
            (2..=4).for_each(|n| drop(net.add(&format!("c{n}"))));
        },
        held: &[],
        call: ("ADD", "c5"),
        runs: &["ADD c5", "DEL ipwatch-parked", "ADD c5"],
        ..CASE
    };
    at_any_step(&Case {
        what: "a parked one that is held",
        held: &["10.88.7.2"],
        is_full: true,
        ..over
    });
    at_any_step(&Case {
        what: "the one that this ADD has parked",
        subnet: "10.88.7.0/30",
        call: ("ADD", "c1"),
        runs: &["ADD c1", "DEL c1", "ADD ipwatch-parked", "ADD c1", "DEL ipwatch-parked", "ADD c1"],
        is_full: true,
        ..CASE
    });
    at_any_step(&over);
}

#[test]
fn while_the_delegate_collects_garbage() {
    at_any_step(&Case { what: "GC", before: one_is_held, call: ("GC", ""), runs: &["GC"], ..CASE });
}

/// Kills the call of a case right before and right after each run of the delegate.
#[track_caller]
fn at_any_step(case: &Case) {
    let Some(Outcome { runs, is_killed }) = play(case, usize::MAX, false) else { return };
    assert_eq!(runs, case.runs, "{}", case.what);
    assert!(!is_killed, "{}", case.what);
    for n in 1..=case.runs.len() {
        for after in [false, true] {
            let outcome = play(case, n, after);
            let is_killed = outcome.is_none_or(|outcome| outcome.is_killed);
            assert!(is_killed, "{}: run {n}, after {after}", case.what);
        }
    }
}

struct Outcome {
    runs: Vec<String>,
    is_killed: bool,
}

/// Plays a case in a new network: the delegate's `n`th run kills the plugin, before or after its work. Then the runtime goes
/// on as after every kill, and what is held is let go.
#[track_caller]
fn play(case: &Case, n: usize, after: bool) -> Option<Outcome> {
    let mut net = Network::new(&[case.subnet])?;
    let at = format!("{}: run {n}, after {after}", case.what);
    // That of the plugin in a process of its own.
    net.boot = boot_of(&fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap()).unwrap();
    let bin = net.dir.path().join("bin");
    deadly(&bin, case, n, after);
    net.path = vec![bin.clone()];
    (case.before)(&net);
    net.daemon.holds(case.held);
    let (command, id) = case.call;
    let others: BTreeSet<(String, String)> =
        net.stored().into_iter().filter(|(_, of)| is_of_other(of, id)).collect();

    fs::write(bin.join("armed"), "").unwrap();
    let is_killed = killed(&net, command, id);
    fs::remove_file(bin.join("armed")).unwrap();

    // A runtime that got no result of an ADD runs DEL. It repeats other calls.
    match command {
        "GC" => assert!(net.run("GC", "").is_ok(), "{at}: the lock is free"),
        "release" => {}
        _ => net.del(id),
    }
    let stored = net.stored();
    assert!(others.iter().all(|(ip, of)| stored.get(ip) == Some(of)), "{at}: {stored:?}");
    let own = |of: &String| of.split(' ').next() == Some(id);
    assert!(id.is_empty() || !stored.values().any(own), "{at}: {stored:?}");
    let next = net.add("next");
    let is_held = next.iter().any(|ip| case.held.contains(&ip.as_str()));
    assert_eq!(is_held, case.is_full, "{at}: {next:?}");

    net.daemon.holds(&[]);
    for of in net.stored().into_values().filter(|of| is_of_other(of, "")) {
        net.del(of.split(' ').next().unwrap());
    }
    (0..2).for_each(|_| net.del("nobody"));
    assert!(net.stored().is_empty(), "{at}: {:?}", net.stored());
    assert_eq!(State::read(&net.state_dir(), "net"), Some(State::default()), "{at}");
    let runs = fs::read_to_string(bin.join("runs")).unwrap();
    Some(Outcome { runs: runs.lines().map(|line| line.trim().to_owned()).collect(), is_killed })
}

/// Whether a reservation is that of another container, and not a parked one.
fn is_of_other(of: &str, id: &str) -> bool {
    !of.starts_with(PREFIX) && of.split(' ').next() != Some(id)
}

/// A host-local that, while it is armed, writes down its runs, without what makes a parked id unique, and whose `n`th run
/// kills the plugin.
fn deadly(bin: &Path, case: &Case, n: usize, after: bool) {
    fs::create_dir(bin).unwrap();
    let (before, after) = if after { (0, n) } else { (n, 0) };
    let body = format!(
        "[ -e {1}/armed ] || exec {HOST_LOCAL}\n\
         work() {{\n{}\n{HOST_LOCAL}\n}}\n\
         echo \"$CNI_COMMAND ${{CNI_CONTAINERID%%-[0-9a-f]*}}\" >>{1}/runs\n\
         n=$(grep -c . {1}/runs)\n\
         [ $n != {before} ] || {{ kill -9 $PPID; exit 1; }}\n\
         work; code=$?\n\
         [ $n != {after} ] || kill -9 $PPID\n\
         exit $code",
        case.first,
        bin.display()
    );
    script(bin, "host-local", &body);
}

/// Runs the plugin in a process of its own. Whether it was killed.
fn killed(net: &Network, command: &str, container: &str) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    let mut plugin = program(net, command, container, &[]);
    plugin.stdout(std::process::Stdio::null());
    started(&mut plugin, net).wait().unwrap().signal() == Some(9)
}
