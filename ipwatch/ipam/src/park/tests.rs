#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

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
    let mut state = State::read(&net.state_dir(), "net").unwrap();
    state.parked[0].proven = 0;
    state.write(&net.state_dir(), "net").unwrap();
    let old = crate::time::now().as_secs() > crate::parked::UNPROVEN;
    net.add("c3");
    assert_eq!(net.parked().is_empty(), old);
    // After a boot nobody has it.
    let mut call = net.call("ADD", "c4");
    call.boot = Some("ffffffff".into());
    assert!(call.serve().unwrap().is_ok());
    assert_eq!(net.parked(), [] as [&str; 0]);
}

/// The delegate's `n`th run kills the plugin, as an OOM killer would at any time, before it or after it did its work.
#[test]
fn killed_at_any_step_it_loses_nothing() {
    // 1: ADD, 2: DEL, 3: ADD of the parked one, 4: ADD.
    for n in 1..=4 {
        for after in [false, true] {
            let Some(mut net) = Network::new(&[NET]) else { return };
            let bin = net.dir.path().join("bin");
            fs::create_dir(&bin).unwrap();
            let work = "/usr/lib/cni/host-local";
            let kill = format!(
                "n=$(cat {0}/n 2>/dev/null || echo 0); n=$((n+1)); echo $n >{0}/n",
                bin.display()
            );
            let die = format!("[ $n != {n} ] || {{ kill -9 $PPID; exit 1; }}");
            let body = if after {
                format!("{kill}\n{work}; code=$?\n{die}\nexit $code")
            } else {
                format!("{kill}\n{die}\nexec {work}")
            };
            script(&bin, "host-local", &body);
            net.path = vec![bin.clone()];
            net.daemon.holds(&["10.88.7.2"]);
            assert!(killed(&net, "ADD", "c1"), "run {n}");
            // A runtime that got no result runs DEL, and tries again.
            net.path = vec!["/usr/lib/cni".into()];
            net.del("c1");
            let stored = net.stored();
            assert!(!stored.values().any(|of| of.starts_with("c1")), "run {n}: {stored:?}");
            net.add("c2");
            net.daemon.holds(&[]);
            net.del("c2");
            assert_eq!(net.stored().len(), 0, "run {n}, after {after}: {:?}", net.stored());
        }
    }
}

/// Runs the plugin in a process of its own. Whether it was killed.
fn killed(net: &Network, command: &str, container: &str) -> bool {
    use std::io::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    let this = std::env::current_exe().unwrap();
    let mut plugin = std::process::Command::new(this);
    plugin.args(["--exact", "plugin::tests::as_a_program", "--nocapture", "--test-threads=1"]);
    plugin.env("IPWATCH_IPAM_PROGRAM", "1").env("CNI_COMMAND", command);
    plugin
        .env("CNI_CONTAINERID", container)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_NETNS", "/run/netns/nobodys");
    plugin.env("CNI_PATH", &net.path[0]);
    plugin.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let mut child = plugin.spawn().unwrap();
    child.stdin.take().unwrap().write_all(net.config().to_string().as_bytes()).unwrap();
    child.wait().unwrap().signal() == Some(9)
}
