#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]

mod killed;

use std::fs;

use super::{Address, Holding, most_urgent};
use crate::cni::Code;
use crate::state::State;
use crate::testing::{Network, script};

const NET: &str = "10.88.7.0/24";

#[test]
fn what_is_held_is_parked_and_another_one_is_given() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.3"]);
    assert_eq!(net.parked(), ["10.88.7.2"]);
    assert_eq!(net.counted("parked"), 1);
    let state = State::read(&net.state_dir(), "net").unwrap();
    assert!(state.parked[0].id.contains("-7-"), "the cookie: {}", state.parked[0].id);
    // It stays parked while it is held.
    assert_eq!(net.add("c2"), ["10.88.7.4"]);
    net.del("c2");
    assert_eq!(net.parked(), ["10.88.7.2"]);
    // And no longer.
    net.daemon.holds(&[]);
    assert_eq!(net.add("c3"), ["10.88.7.5"]);
    assert_eq!(net.parked(), [] as [&str; 0]);
    assert_eq!(State::read(&net.state_dir(), "net"), Some(State::default()));
}

#[test]
fn a_del_releases_too() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    net.daemon.holds(&[]);
    net.del("c1");
    assert_eq!(net.stored().len(), 0, "{:?}", net.stored());
    // Repeated, and of one that never was.
    net.del("c1");
    net.del("other");
}

#[test]
fn both_families_are_parked_whole() {
    let Some(net) = Network::new(&["10.88.7.0/24", "fd00:88::/64"]) else { return };
    net.daemon.holds(&["fd00:88::2"]);
    assert_eq!(net.add("c1"), ["10.88.7.3", "fd00:88::3"]);
    assert_eq!(net.parked(), ["10.88.7.2", "fd00:88::2"]);
    net.daemon.holds(&[]);
    net.del("c1");
    assert_eq!(net.stored().len(), 0, "{:?}", net.stored());
}

#[test]
fn at_most_three_are_tried() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2", "10.88.7.3", "10.88.7.4"]);
    assert_eq!(net.add("c1"), ["10.88.7.4"], "the last one is given all the same");
    assert_eq!(net.parked(), ["10.88.7.2", "10.88.7.3"]);
    assert_eq!(net.counted("gave-held"), 1);
}

#[test]
fn no_more_are_parked_than_may_be() {
    let Some(net) = Network::new(&[NET]) else { return };
    let held: Vec<String> = (2..40).map(|n| format!("10.88.7.{n}")).collect();
    let held: Vec<&str> = held.iter().map(String::as_str).collect();
    net.daemon.holds(&held);
    for n in 0..8 {
        net.add(&format!("c{n}"));
    }
    assert_eq!(net.parked().len(), super::MOST);
    assert_eq!(super::most(Some(5)), 1);
    assert_eq!(super::most(Some(61)), 6);
    assert_eq!(super::most(None), super::MOST);
}

#[test]
fn the_last_address_is_given_although_it_is_held_or_not() {
    // Room for one.
    let Some(mut net) = Network::new(&["10.88.7.0/30"]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.2"]);
    assert_eq!(net.parked(), [] as [&str; 0]);
    net.del("c1");
    net.more = serde_json::json!({ "whenAllHeld": "fail" });
    let failure = net.run("ADD", "c2").unwrap_err();
    assert_eq!(failure.code, Code::TryAgain);
    assert!(failure.msg.contains("10.88.7.2 is still held by pid 4903 (cat)"), "{failure}");
    assert!(!net.stored().values().any(|of| of.starts_with("c2")), "{:?}", net.stored());
    // A range with nothing left at all is the delegate's word, to the byte.
    net.daemon.holds(&[]);
    net.add("c3");
    let full = net.run("ADD", "c4").unwrap();
    assert!(String::from_utf8_lossy(&full.stdout).contains("no IP addresses available"));
    assert_ne!(full.code, 0);
}

#[test]
fn a_silent_daemon_changes_nothing() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.replies("HTTP/1.1 404 Not Found\r\n\r\n");
    assert_eq!(net.add("c1"), ["10.88.7.2"]);
    net.daemon.answers(|_| {
        r#"{"schema":"ipwatch/v1","held":{"addresses":[{"ip":"10.88.7.3","state":"unknown"}]}}"#
            .into()
    });
    assert_eq!(net.add("c2"), ["10.88.7.3"]);
    // What it says of addresses that nobody asked about is nothing.
    net.daemon.answers(|_| {
        r#"{"schema":"ipwatch/v1","held":{"addresses":[{"ip":"10.88.7.9","state":"held"}]}}"#.into()
    });
    assert_eq!(net.add("c3"), ["10.88.7.4"]);
    fs::remove_file(net.daemon.socket()).unwrap();
    assert_eq!(net.add("c4"), ["10.88.7.5"]);
    assert_eq!(net.parked(), [] as [&str; 0]);
    let counted = ["unanswered-old-daemon", "unknown", "unanswered-no-daemon"];
    assert_eq!(counted.map(|what| net.counted(what)), [1, 1, 1]);
}

/// Of a result of both families.
#[test]
fn one_that_is_not_known_hides_no_other_one() {
    let ips: Vec<std::net::IpAddr> =
        ["10.88.7.2", "fd00:88::2"].map(|ip| ip.parse().unwrap()).into();
    let urgent = |states: [Holding; 2]| {
        let told = ips.iter().zip(states).map(|(ip, state)| Address {
            ip: *ip,
            state,
            netns: crate::ask::Netns::default(),
            who: String::new(),
            critical: false,
            for_secs: 0,
        });
        let told: Vec<Address> = told.collect();
        (most_urgent(&told, &ips), most_urgent(&told, &ips[1..]))
    };
    use Holding::{Free, Held, Leaving, Unknown};
    assert_eq!(urgent([Leaving, Unknown]), (Leaving, Unknown));
    assert_eq!(urgent([Unknown, Held]), (Held, Held));
    assert_eq!(urgent([Held, Free]), (Held, Free));
    assert_eq!(urgent([Unknown, Free]), (Unknown, Free));
    assert_eq!(most_urgent(&[], &ips), Free);
}

#[test]
fn one_that_is_leaving_is_waited_for_and_then_given() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.answers(|_| {
        r#"{"schema":"ipwatch/v1","held":{"addresses":[{"ip":"10.88.7.2","state":"leaving"}]}}"#
            .into()
    });
    let began = crate::time::now();
    assert_eq!(net.add("c1"), ["10.88.7.2"]);
    assert!(crate::time::now() - began >= super::LEAVING);
    assert_eq!(net.parked(), [] as [&str; 0]);
}

#[test]
fn what_was_asked_for_is_given() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.9"]);
    let mut call = net.call("ADD", "c1");
    call.environment.args = "IP=10.88.7.9".into();
    assert!(call.serve().unwrap().is_ok());
    assert_eq!(net.stored()["10.88.7.9"], "c1 eth0");
    assert_eq!(net.parked(), [] as [&str; 0]);
}

#[test]
fn a_lost_state_file_is_made_anew_from_the_store() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    for lost in ["", "{"] {
        let file = net.state_dir().join("net.parked");
        if lost.is_empty() {
            fs::remove_file(file).unwrap()
        } else {
            fs::write(file, lost).unwrap()
        }
        net.add(&format!("c-{}", lost.len()));
        assert_eq!(net.parked(), ["10.88.7.2"]);
        assert_eq!(State::read(&net.state_dir(), "net").unwrap().parked.len(), 1);
    }
    fs::remove_file(net.state_dir().join("net.parked")).unwrap();
    net.daemon.holds(&[]);
    net.del("c1");
    assert_eq!(net.parked(), [] as [&str; 0]);
}

#[test]
fn nothing_is_parked_for_ever() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    // Without a daemon: as long as its last proof is not too old.
    fs::remove_file(net.daemon.socket()).unwrap();
    net.add("c2");
    assert_eq!(net.parked(), ["10.88.7.2"]);
    set_unanswered(&net, Some(1));
    let old = crate::time::now().as_secs() > crate::parked::UNPROVEN + 1;
    net.add("c3");
    assert_eq!(net.parked().is_empty(), old);
    // After a boot nobody has it.
    let mut call = net.call("ADD", "c4");
    call.boot = Some("ffffffff".to_owned()).into();
    assert!(call.serve().unwrap().is_ok());
    assert_eq!(net.parked(), [] as [&str; 0]);
}

/// The plugin as a process of its own, with whatever is to run it.
fn program(
    net: &Network,
    command: &str,
    container: &str,
    before: &[&str],
) -> std::process::Command {
    let this = std::env::current_exe().unwrap();
    let mut words = before.iter().map(std::ffi::OsString::from).chain([this.into()]);
    let mut plugin = std::process::Command::new(words.next().unwrap());
    plugin.args(words);
    plugin.args(["--exact", "plugin::tests::as_a_program", "--nocapture", "--test-threads=1"]);
    plugin.env("IPWATCH_IPAM_PROGRAM", "1").env("CNI_COMMAND", command);
    plugin
        .env("CNI_CONTAINERID", container)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_NETNS", "/run/netns/nobodys");
    plugin.env("CNI_PATH", &net.path[0]);
    plugin.stdin(std::process::Stdio::piped());
    plugin
}

fn started(plugin: &mut std::process::Command, net: &Network) -> std::process::Child {
    use std::io::Write as _;
    let mut child = plugin.spawn().unwrap();
    child.stdin.take().unwrap().write_all(net.config().to_string().as_bytes()).unwrap();
    child
}

/// A runtime whose deadline has passed kills the main plugin, runs DEL, and never hears of what this one goes on with.
#[test]
fn whoever_called_is_killed_and_nothing_stays_reserved_for_it() {
    use std::io::Read as _;
    // 1: ADD, 2: DEL, 3: ADD of the parked one, 4: ADD.
    for n in 1..=4 {
        let Some(mut net) = Network::new(&[NET]) else { return };
        let counter = net.dir.path().join("n");
        let kill = format!(
            "n=$(cat {0} 2>/dev/null || echo 0); n=$((n+1)); echo $n >{0}\n\
             [ $n != {n} ] || kill -9 $(cut -d' ' -f4 /proc/$PPID/stat)",
            counter.display()
        );
        watched(&mut net, &kill);
        net.daemon.holds(&["10.88.7.2"]);
        let mut plugin = program(&net, "ADD", "c1", &["sh", "-c", "\"$@\"; exit 1", "sh"]);
        plugin.stdout(std::process::Stdio::piped());
        let mut parent = started(&mut plugin, &net);
        // The plugin has it as well: its end is this one's.
        let _ = parent.stdout.take().unwrap().read_to_end(&mut Vec::new());
        assert!(!parent.wait().unwrap().success());
        let stored = net.stored();
        assert!(!stored.values().any(|of| of.starts_with("c1")), "run {n}: {stored:?}");
        assert_eq!(net.parked().len(), usize::from(n > 1), "run {n}");
    }
}

/// A runtime that uses an id again: the first ADD is served after the second one, whose container runs.
#[test]
fn what_another_add_reserved_is_not_given_back() {
    use std::io::Read as _;
    let Some(mut net) = Network::new(&[NET]) else { return };
    net.add("c1");
    watched(&mut net, "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat)");
    let mut plugin = program(&net, "ADD", "c1", &["sh", "-c", "\"$@\"; exit 1", "sh"]);
    plugin.stdout(std::process::Stdio::piped());
    let mut parent = started(&mut plugin, &net);
    let _ = parent.stdout.take().unwrap().read_to_end(&mut Vec::new());
    assert!(!parent.wait().unwrap().success());
    assert_eq!(net.stored()["10.88.7.2"], "c1 eth0");
}

/// A plugin that is killed while it answers has answered all or nothing.
#[test]
fn an_answer_is_written_at_once() {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    let Some(net) = Network::new(&[NET]) else { return };
    // Each write to it is a message.
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut plugin = program(&net, "ADD", "c1", &[]);
    plugin.stdout(OwnedFd::from(theirs));
    assert!(started(&mut plugin, &net).wait().unwrap().success());
    let mut part = [0; 4096];
    let mut messages = std::iter::from_fn(|| {
        let length = ours.recv(&mut part).ok()?;
        Some(part[..length].to_vec())
    });
    // The others are of the test's own program.
    let answer = messages.find(|message| message.starts_with(b"{")).unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["ips"][0]["address"], "10.88.7.2/24");
}

#[test]
fn a_result_that_nobody_takes_is_given_back() {
    let Some(mut net) = Network::new(&[NET]) else { return };
    let (began, go) = (net.dir.path().join("began"), net.dir.path().join("go"));
    let wait = format!(
        "echo >{}; n=0; until [ -e {} ] || [ $n -gt 600 ]; do sleep 0.05; n=$((n+1)); done",
        began.display(),
        go.display()
    );
    let log = watched(&mut net, &wait);
    let mut plugin = program(&net, "ADD", "c1", &[]);
    plugin.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut plugin = started(&mut plugin, &net);
    let deadline = crate::time::Deadline::within(std::time::Duration::from_secs(30));
    while !began.exists() && deadline.left().is_some() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(plugin.stdout.take());
    fs::write(&go, "").unwrap();
    plugin.wait().unwrap();
    assert_eq!(fs::read_to_string(&log).unwrap(), "ADD c1\nDEL c1\n");
    assert_eq!(net.stored().len(), 0, "{:?}", net.stored());
}

fn set_unanswered(net: &Network, since: Option<u64>) {
    let mut state = State::read(&net.state_dir(), "net").unwrap();
    state.parked.iter_mut().for_each(|entry| entry.unanswered_since = since);
    state.write(&net.state_dir(), "net").unwrap();
}

#[test]
fn one_lost_answer_releases_nothing() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    let since = || State::read(&net.state_dir(), "net").unwrap().parked[0].unanswered_since;
    assert_eq!(since(), None);
    net.daemon.replies("HTTP/1.1 503 Busy\r\n\r\n");
    net.del("c1");
    assert_eq!(net.parked(), ["10.88.7.2"]);
    let first = since();
    assert!(first.is_some());
    net.del("c1");
    assert_eq!(since(), first, "it counts from the first one");
    // An answer clears it, however long ago the last question was.
    set_unanswered(&net, Some(0));
    net.daemon.holds(&["10.88.7.2"]);
    net.del("c1");
    assert_eq!((since(), net.parked().len()), (None, 1));
}

#[test]
fn the_last_that_is_parked_is_given_where_nothing_else_is_left() {
    // Room for two.
    let Some(mut net) = Network::new(&["10.88.7.0/30"]) else { return };
    net.ranges = serde_json::json!([[{ "subnet": "10.88.7.0/29", "rangeStart": "10.88.7.2", "rangeEnd": "10.88.7.3" }]]);
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.3"]);
    assert_eq!(net.parked(), ["10.88.7.2"]);
    net.more = serde_json::json!({ "whenAllHeld": "fail" });
    let failure = net.run("ADD", "c2").unwrap_err();
    assert_eq!(failure.code, Code::TryAgain);
    assert!(failure.msg.contains("10.88.7.2 is still held by pid 4903 (cat)"), "{failure}");
    assert_eq!(net.parked(), ["10.88.7.2"]);
    net.more = serde_json::json!({});
    assert_eq!(net.add("c3"), ["10.88.7.2"]);
    assert_eq!((net.parked().len(), net.counted("gave-held")), (0, 1));
    assert_eq!(State::read(&net.state_dir(), "net"), Some(State::default()));
    // One that nobody has any more is no held one.
    net.del("c3");
    net.del("c1");
    assert_eq!(net.add("c4"), ["10.88.7.3"]);
    assert_eq!(net.run("ADD", "c5").map(|answer| answer.code), Ok(0));
    net.del("c4");
    assert_eq!(net.parked(), [] as [&str; 0]);
}

#[test]
fn what_became_free_is_given_at_once_where_nothing_else_is_left() {
    let Some(mut net) = Network::new(&[NET]) else { return };
    net.ranges = serde_json::json!([[{ "subnet": "10.88.7.0/29", "rangeStart": "10.88.7.2", "rangeEnd": "10.88.7.3" }]]);
    net.more = serde_json::json!({ "whenAllHeld": "fail" });
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.3"]);
    net.daemon.holds(&[]);
    assert_eq!(net.add("c2"), ["10.88.7.2"]);
    assert_eq!((net.counted("gave-held"), net.counted("released")), (0, 1));
}

/// Another call took what was released for this one, and this one was given an address that somebody freed by hand.
#[test]
fn what_is_given_in_place_of_what_became_free_is_asked_about() {
    let Some(mut net) = Network::new(&[NET]) else { return };
    net.ranges = serde_json::json!([[{ "subnet": "10.88.7.0/29", "rangeStart": "10.88.7.2", "rangeEnd": "10.88.7.3" }]]);
    // The DEL of the parked id frees the address of c1 in its place.
    let other = net.dir.path().join("ipam/net/10.88.7.3");
    let instead = format!(
        "case $CNI_COMMAND$CNI_CONTAINERID in DELipwatch-parked-*) cat >/dev/null; rm {}; exit 0;; esac",
        other.display()
    );
    watched(&mut net, &instead);
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.3"]);
    net.daemon.holds(&["10.88.7.3"]);
    assert_eq!(net.add("c2"), ["10.88.7.3"]);
    assert_eq!(net.counted("gave-held"), 1);
}

/// As many are parked as may be, and one of them is no longer held: the next held one takes its place.
#[test]
fn what_became_free_makes_room_for_what_is_held() {
    let Some(mut net) = Network::new(&["10.88.7.0/28"]) else { return };
    net.more = serde_json::json!({ "whenAllHeld": "fail" });
    let few = |held: &'static [&'static str]| {
        net.daemon.answers(move |target| {
            let state = |ip: &str| if held.contains(&ip) { "held" } else { "free" };
            let of = |key: &str| {
                let mut pairs = target.split('&').filter_map(|pair| pair.split_once('='));
                let ips = pairs.find(|(name, _)| *name == key).map_or("", |(_, ips)| ips).split("%2C");
                let ips = ips.filter_map(|ip| ip.split("%40").next()).filter(|ip| !ip.is_empty());
                let one = |ip| format!(r#"{{"ip":"{ip}","state":"{}","critical":true}}"#, state(ip));
                ips.map(one).collect::<Vec<_>>().join(",")
            };
            let (ips, parked) = (of("ips"), of("parked"));
            format!(r#"{{"schema":"ipwatch/v1","held":{{"usable":13,"addresses":[{ips}],"parked":[{parked}]}}}}"#)
        });
    };
    few(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.3"]);
    few(&["10.88.7.4"]);
    assert_eq!(net.add("c2"), ["10.88.7.5"]);
    assert_eq!(net.parked(), ["10.88.7.4"], "one of 13 may be");
    assert_eq!((net.counted("parked"), net.counted("released")), (2, 1));
    // Where it is held, it stays, and this network may park no other one.
    few(&["10.88.7.4", "10.88.7.6"]);
    assert_eq!(net.run("ADD", "c3").unwrap_err().code, Code::TryAgain);
    assert_eq!((net.parked(), net.counted("all-held")), (vec!["10.88.7.4".into()], 1));
}

#[test]
fn a_third_held_one_is_given_whatever_happens_when_all_are() {
    let Some(mut net) = Network::new(&[NET]) else { return };
    net.more = serde_json::json!({ "whenAllHeld": "fail" });
    net.daemon.holds(&["10.88.7.2", "10.88.7.3", "10.88.7.4"]);
    assert_eq!(net.add("c1"), ["10.88.7.4"]);
    assert_eq!(net.counted("gave-held"), 1);
}

#[test]
fn a_phantom_makes_room_for_what_is_there() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    // Room for one, and a cleaner of leaks took it.
    let id = State::read(&net.state_dir(), "net").unwrap().parked[0].id.clone();
    net.daemon.answers(|target| {
        let is_it = target.contains("ips=10.88.7.2&") || target.ends_with("ips=10.88.7.2");
        let state = if is_it { "held" } else { "free" };
        format!(
            r#"{{"schema":"ipwatch/v1","held":{{"usable":9,
            "addresses":[{{"ip":"10.88.7.2","state":"{state}"}}],
            "parked":[{{"ip":"10.88.7.2","state":"held"}}]}}}}"#
        )
    });
    clean(&net);
    assert_eq!(net.add("c2"), ["10.88.7.4"]);
    assert_eq!(net.parked(), ["10.88.7.2"]);
    let parked = State::read(&net.state_dir(), "net").unwrap().parked;
    assert_eq!(parked.len(), 1);
    assert_ne!(parked[0].id, id);
}

/// A cleaner of leaks removes the parked reservation of 10.88.7.2, which host-local assigns next.
fn clean(net: &Network) {
    let store = net.dir.path().join("ipam/net");
    fs::remove_file(store.join("10.88.7.2")).unwrap();
    fs::write(store.join("last_reserved_ip.0"), "10.88.7.1").unwrap();
}

/// A delegate that writes down each call and, in some, does something else than host-local.
fn watched(net: &mut Network, body: &str) -> std::path::PathBuf {
    let bin = net.dir.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    let log = bin.join("log");
    let body = format!(
        "echo $CNI_COMMAND $CNI_CONTAINERID >>{}\n{body}\nexec /usr/lib/cni/host-local",
        log.display()
    );
    script(&bin, "host-local", &body);
    net.path = vec![bin];
    log
}

#[test]
fn the_call_itself_comes_first_and_one_is_released_after_it() {
    let Some(mut net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2", "10.88.7.3"]);
    assert_eq!(net.add("c1"), ["10.88.7.4"]);
    net.daemon.holds(&[]);
    let log = watched(&mut net, "");
    net.add("c2");
    assert_eq!(net.parked(), ["10.88.7.3"], "one of two");
    assert!(fs::read_to_string(&log).unwrap().starts_with("ADD c2\n"));
    net.del("c2");
    assert_eq!(net.parked(), [] as [&str; 0]);
}

#[test]
fn a_release_that_hangs_is_not_waited_for_and_not_repeated_at_once() {
    let Some(mut net) = Network::new(&[NET]) else { return };
    let hangs = "case $CNI_COMMAND$CNI_CONTAINERID in DELipwatch-parked-*) exec sleep 600;; esac";
    let log = watched(&mut net, hangs);
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.3"]);
    net.daemon.holds(&[]);
    let began = crate::time::now();
    net.del("c1");
    assert!(crate::time::now() - began < std::time::Duration::from_secs(60));
    net.add("c2");
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("DEL ipwatch-parked-").count(), 1, "{log}");
    assert_eq!(net.parked(), ["10.88.7.2"], "a later call releases it");
}

#[test]
fn where_the_delegate_gives_nothing_back_it_is_given_as_it_was() {
    let Some(mut net) = Network::new(&[NET]) else { return };
    watched(
        &mut net,
        "case $CNI_COMMAND in DEL) echo '{\"code\":999,\"msg\":\"no\"}'; exit 1;; esac",
    );
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.2"]);
    assert_eq!(State::read(&net.state_dir(), "net"), Some(State::default()));
    assert_eq!((net.counted("not-parked"), net.counted("gave-held")), (1, 1));
}

/// As without memory for another process: nothing was freed, and the first result is still valid.
#[test]
fn where_the_delegate_cannot_be_run_any_more_it_is_given_as_it_was() {
    let Some(mut net) = Network::new(&[NET]) else { return };
    watched(&mut net, "rm \"$0\"");
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.2"]);
    assert_eq!(State::read(&net.state_dir(), "net"), Some(State::default()));
    assert_eq!((net.counted("not-parked"), net.counted("gave-held")), (1, 1));
}

/// An ADD that read the wrapped configuration right before `ipwatch cni uninstall` released what was parked.
#[test]
fn nothing_is_parked_after_an_uninstall() {
    let Some(net) = Network::new(&[NET]) else { return };
    crate::install::mark_unwrapped(&net.state_dir(), true).unwrap();
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(net.add("c1"), ["10.88.7.2"]);
    assert_eq!((net.parked().len(), net.counted("not-parked")), (0, 1));
    crate::install::unmark(&net.state_dir());
    assert_eq!(net.add("c2"), ["10.88.7.3"]);
}

#[test]
fn a_range_of_the_runtime_is_the_range_of_what_is_parked() {
    let Some(net) = Network::new(&[]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    let call = |command: &str| {
        let mut call = net.call(command, "c1");
        let mut config = net.config();
        config["ipam"]["delegate"].as_object_mut().unwrap().remove("ranges");
        config["runtimeConfig"] = serde_json::json!({ "ipRanges": [[{ "subnet": NET }]] });
        call.config = crate::config::Config::read(config.to_string().as_bytes()).unwrap();
        call.serve().unwrap()
    };
    assert!(call("ADD").is_ok());
    assert_eq!(net.parked(), ["10.88.7.2"]);
    net.daemon.holds(&[]);
    assert!(call("DEL").is_ok());
    assert_eq!(net.stored().len(), 0, "{:?}", net.stored());
}

#[test]
fn gc_waits_for_whoever_parks_and_knows_what_was_lost() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    fs::remove_file(net.state_dir().join("net.parked")).unwrap();
    let lock = crate::state::Lock::try_take(&net.state_dir(), "net").unwrap();
    assert_eq!(net.run("GC", "").unwrap_err().code, Code::TryAgain);
    drop(lock);
    let _ = net.run("GC", "");
    assert_eq!(net.parked(), ["10.88.7.2"]);
}
