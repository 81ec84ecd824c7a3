//! What `ipwatch top` takes on a node with 250 pods, on a screen that shows every pane: while nothing happens, and while
//! addresses come and go, which has it draw as often as it ever does.

use std::fs;
use std::io::Write as _;
use std::process::{ChildStdin, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::daemon::binary;
use support::pty::Pty;
use support::{Config, Daemon, Lab};

use super::usage::{Usage, quiet};
use super::{Pod, figure, pod};

const PODS: usize = 250;
const LASTS: Duration = Duration::from_secs(60);
/// How often the terminal is read. Redraws are a quarter of a second apart.
const READ: Duration = Duration::from_millis(10);
/// Changes of addresses a second: those of pods that come and go, and a flood.
const RATES: [(&str, u32); 3] = [
    ("nothing happens", 0),
    ("20 address changes a second", 20),
    ("1,000 address changes a second", 1_000),
];

pub(crate) fn of_250_pods(lab: &Lab) {
    let pods: Vec<Pod> = (0..PODS).map(|n| pod(lab, n, 2)).collect();
    let daemon = Daemon::start(lab, &reserved(lab));
    let mut command = Command::new(binary());
    command.arg("--socket").arg(daemon.socket()).arg("top").env("LC_ALL", "C.UTF-8");
    let mut terminal = Pty::start(command, 200, 50);
    terminal.await_taken();
    terminal.await_text(&["Ranges", "shop", "Addresses", "Sources"]);
    quiet();
    let (mut ip, mut lines) = support::netns::stream(&pods[0].netns);
    for (what, rate) in RATES {
        let shown = follow(&mut terminal, &mut lines, rate);
        figure(&format!("`ipwatch top`, 250 pods, {what}, CPU"), "< 1 %", &shown);
    }
    terminal.await_text(&["10.241.0."]);
    drop(lines);
    ip.wait().expect("ip ends");
}

/// The configuration with a range in which each pod has its IP.
fn reserved(lab: &Lab) -> Config {
    let (conf, store) = (lab.subdir("net.d"), lab.subdir("networks"));
    let text = format!(
        r#"{{"cniVersion":"1.0.0","name":"shop","plugins":[{{"type":"bridge","bridge":"shop0","ipam":{{
        "type":"host-local","dataDir":{store:?},
        "ranges":[[{{"subnet":"10.100.0.0/16"}}]]}}}}]}}"#
    );
    fs::write(conf.join("10-shop.conflist"), text).expect("write the network");
    let reservations = store.join("shop");
    fs::create_dir(&reservations).expect("make the store");
    for n in 0..PODS {
        fs::write(reservations.join(format!("10.100.{n}.2")), format!("{n:064x}\r\neth0"))
            .expect("reserve");
    }
    Config::default().networks(&[conf], lab.dir())
}

/// Its share of a core while addresses change at this rate, and how often it was drawn.
fn follow(terminal: &mut Pty, lines: &mut ChildStdin, rate: u32) -> String {
    let (before, began) = (Usage::of(terminal.pid()), Instant::now());
    let (mut changes, mut draws, mut grew) = (0, 0, false);
    let mut change = |changes: u128| {
        let n = changes / 2 % 200 + 1;
        let word = if changes.is_multiple_of(2) { "add" } else { "del" };
        writeln!(lines, "addr {word} 10.241.0.{n}/32 dev eth0").expect("tell ip");
        lines.flush().expect("tell ip");
    };
    while began.elapsed() < LASTS {
        let due = began.elapsed().as_millis() * u128::from(rate) / 1_000;
        while changes < due {
            change(changes);
            changes += 1;
        }
        sleep(READ);
        let written = terminal.written;
        let _ = terminal.screen();
        let grows = terminal.written > written;
        draws += u32::from(grows && !grew);
        grew = grows;
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu = before.cpu_percent(&Usage::of(terminal.pid()));
    // What was added is removed, so that it can be added again.
    if !changes.is_multiple_of(2) {
        change(changes);
    }
    format!("{cpu:.2} % of a core, drawn {:.1} times a second", f64::from(draws) / seconds)
}
