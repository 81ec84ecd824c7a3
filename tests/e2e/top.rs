//! `ipwatch top` in a real terminal, over a real daemon: what is found is shown and explained, at any size; the terminal is
//! given back, also after a signal; a daemon that is gone is shown as gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::pty::Pty;
use support::{Config, Daemon, Lab, daemon};

use crate::demo::stage::{Pod, Stage};

support::tests! {
    // What else is found on the machine would be on the screen as well.
    a_person_looks_and_leaves @ Alone,
    without_a_terminal_it_names_the_command_that_needs_none,
}

/// Names the directory of the screens if `cargo xtask pictures` asks for them.
const PICTURES: &str = "IPWATCH_TEST_PICTURES";
/// Seconds until both looks have seen it.
const SOON: u32 = 40;

/// `ipwatch top` of this daemon, as for a person with a UTF-8 locale and colours.
fn top(socket: &Path) -> Command {
    let mut command = Command::new(daemon::binary());
    command.arg("--socket").arg(socket).arg("top");
    command.env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR");
    command
}

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    /// For the stage. A picture shows its paths.
    fn new(lab: &Lab) -> Self {
        let Some(_) = std::env::var_os(PICTURES) else { return Self(lab.subdir("demo")) };
        let place = Self(PathBuf::from("/run/shop"));
        fs::create_dir(&place.0).expect("make a directory that was not there");
        place
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The demo's pods of which one leaked and two have one IP, and a range of which they have IPs; and the configuration of a
/// daemon that sees them.
pub(crate) fn node(lab: &Lab, dir: &Path) -> (Stage, String) {
    let roles = std::env::current_exe().expect("this binary");
    let mut stage = Stage::new(dir, &roles).expect("a stage");
    stage.healthy().expect("a healthy pod");
    stage.leaked().expect("a netns that is left");
    stage.duplicate().expect("two pods with one IP");
    let (conf, store) = (lab.subdir("net.d"), lab.subdir("networks"));
    let network = "shop";
    let text = format!(
        r#"{{"cniVersion":"1.0.0","name":"{network}","plugins":[{{"type":"bridge","bridge":"shop0","ipam":{{
        "type":"host-local","dataDir":{store:?},
        "ranges":[[{{"subnet":"10.88.7.0/26"}}]]}}}}]}}"#
    );
    fs::write(conf.join("10-shop.conflist"), text).expect("write the network");
    let reservations = store.join(network);
    fs::create_dir_all(&reservations).expect("make the store");
    for host in 2..28 {
        // The demo's pods have theirs, nobody has the others.
        let pods = if host <= 5 { "de30" } else { "0000" };
        let id = format!("{pods}{host:060x}");
        fs::write(reservations.join(format!("10.88.7.{host}")), format!("{id}\r\neth0"))
            .expect("reserve");
    }
    let lines = format!("node = \"node-17\"\n{}\n[ipam]\nconf_dirs = [{conf:?}]\n", stage.config());
    (stage, lines)
}

fn a_person_looks_and_leaves(lab: &Lab) {
    let place = Place::new(lab);
    let (stage, config) = node(lab, &place.0);
    let config = Config::of(&config);
    let netns = place.0.join("netns").join(Pod::TWIN.netns());
    let start = || {
        // A picture shows the path of the ledger.
        let (program, state) = (Command::new(daemon::binary()), place.0.join("state"));
        let mut daemon = Daemon::spawn_by(program, lab, &config, &state);
        daemon.await_ready();
        daemon
    };
    let daemon = start();
    for (code, pod) in [("netns-leaked", Pod::LEAKED), ("ip-duplicate", Pod::TWIN)] {
        daemon.await_firing(code, SOON, |finding| finding["subject"]["ip"] == pod.ip().as_str());
    }
    let socket = daemon::socket_in(lab);
    let mut terminal = Pty::start(top(&socket), 80, 24);
    terminal.await_taken();
    terminal.await_text(&["node-17", "Ranges", "shop", "2 Findings", "SEV", "? help"]);
    keep(&mut terminal, "top-80");

    // Others on this machine have their findings as well.
    terminal.type_in(&format!("/{}\r", Pod::TWIN.ip()));
    let screen = terminal.await_text(&["ip-duplicate", "filter: \"10.88.7.5\""]);
    assert!(!screen.contains("netns-leaked"), "{screen}");
    terminal.type_in("\r");
    terminal.await_text(&["ipwatch explain ", "WHAT   ip-duplicate", "q back"]);
    terminal.resize(200, 50);
    terminal.await_text(&["WHAT   ip-duplicate", "PROOF"]);
    terminal.type_in("q");
    terminal.await_text(&["3 Addresses", "4 Conflicts", "5 Sources", "ip-duplicate"]);
    terminal.type_in("t");
    terminal.await_text(&["-o tree", "shop/db-", "10.88.7.5/"]);
    terminal.type_in("qh");
    terminal.await_text(&["ipwatch query history 10.88.7.5", "FROM"]);
    terminal.type_in("q\x1b");
    terminal.await_text(&["netns-leaked", "ip-duplicate"]);
    terminal.resize(200, 32);
    terminal.await_text(&["netns-leaked", "Sources"]);
    for (word, how) in [("add", " up "), ("del", " gone ")] {
        let done = inside(&netns, &format!("ip address {word} 10.88.7.30/32 dev eth0")).status();
        assert!(done.expect("run ip").success());
        support::poll::until(how, 20, || {
            let screen = terminal.screen().text();
            screen.lines().any(|line| line.contains(" 10.88.7.30 ") && line.contains(how))
        });
    }
    keep(&mut terminal, "top-200");
    terminal.resize(10, 4);
    terminal.await_text(&["node-17"]);
    terminal.resize(80, 24);
    terminal.await_text(&["netns-leaked"]);

    costs_little(&mut terminal, &netns);

    // The daemon goes, and comes back.
    daemon.crash();
    terminal.await_text(&["STALE, as of ", "trying again within"]);
    let daemon = start();
    support::poll::until("it is live again", 30, || !terminal.screen().text().contains("STALE"));
    terminal.type_in("q");
    assert!(terminal.await_end().success());
    terminal.assert_as_before();

    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let mut terminal = Pty::start(top(daemon.socket()), 80, 24);
        terminal.await_taken();
        terminal.await_text(&["node-17"]);
        support::sys::kill(terminal.pid(), signal).expect("signal it");
        assert!(terminal.await_end().success());
        terminal.assert_as_before();
    }
    drop(stage);
}

/// A shell command in a netns.
fn inside(netns: &Path, script: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns.display())).args(["sh", "-c", script]);
    command
}

/// Its share of a core while addresses come and go, which has it draw as often as it ever does.
fn costs_little(terminal: &mut Pty, netns: &Path) {
    const SECONDS: u32 = 4;
    let script = format!(
        "n=0; while [ $n -lt {} ]; do ip address add 10.88.7.61/32 dev eth0; sleep 0.05; \
         ip address del 10.88.7.61/32 dev eth0; sleep 0.05; n=$((n+1)); done",
        SECONDS * 10
    );
    let mut churn = inside(netns, &script);
    let (before, written) = (proc_ticks(terminal.pid()), terminal.written);
    let mut churn = churn.spawn().expect("addresses that come and go");
    while churn.try_wait().expect("it runs").is_none() {
        std::thread::sleep(Duration::from_millis(50));
        let _ = terminal.screen();
    }
    let ticks = proc_ticks(terminal.pid()) - before;
    let bytes = terminal.written - written;
    println!(
        "{}{ticks} ticks of 10 ms and {bytes} bytes in {SECONDS} s of addresses that come and go",
        support::harness::FIGURE
    );
    assert!(bytes > 0, "the addresses are shown");
    // 1 % is what is measured for; the build of the tests has checks that the product has not.
    assert!(ticks <= u64::from(SECONDS) * 5, "{ticks} ticks of 10 ms are more than 5 % of a core");
}

/// Keeps a screen for the documentation, if `cargo xtask pictures` asks for it.
fn keep(terminal: &mut Pty, name: &str) {
    if let Some(dir) = std::env::var_os(PICTURES) {
        let screen = terminal.screen().painted();
        fs::write(Path::new(&dir).join(format!("{name}.screen")), screen).expect("keep the screen");
    }
}

/// What a process has computed, in clock ticks: user and system.
fn proc_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    rest.split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum()
}

fn without_a_terminal_it_names_the_command_that_needs_none(lab: &Lab) {
    let out = top(&lab.dir().join("no.sock")).output().expect("run it");
    assert_eq!(out.status.code(), Some(2));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("needs a terminal") && said.contains("`ipwatch watch`"), "{said}");
    // In a terminal, but without a daemon: the terminal is not touched.
    let mut terminal = Pty::start(top(&lab.dir().join("no.sock")), 120, 24);
    assert_eq!(terminal.await_end().code(), Some(2));
    terminal.await_text(&["no daemon answers on"]);
    terminal.assert_as_before();
}
