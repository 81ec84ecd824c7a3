//! What is left: the moments in which an address that is up can still be given to an ADD. Each test measures one and, where
//! nothing can slip through, demands that.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::harness::{FIGURE, is_long};
use support::ipam::Plugin;
use support::pod::{Containerd, PodSandbox, Setup, Slow};
use support::poll::until;
use support::{Lab, Netns, sys};

use super::containerd;
use crate::lead::{await_ready, watching};

support::tests! {
    a_release_is_known_at_once needs [Containerd],
    an_add_waits_for_a_del_that_runs needs [Containerd, Macvlan],
    what_an_add_reserved_that_nobody_awaits_is_freed needs [Containerd],
}

/// How long an ADD waits for an address whose DEL runs.
const LEAVING: Duration = Duration::from_millis(50);

fn rounds(usual: usize) -> usize {
    if is_long() { 50 } else { usual }
}

/// Prints a count, which xtask adds up over repeated runs.
fn counted(what: &str, number: usize, of: usize, goal: &str) {
    println!("{FIGURE}{what}  {number} of {of} in this run  goal {goal}");
}

fn is_up(netns: &File, ip: &str) -> bool {
    let table = sys::on_own_thread(|| {
        sys::enter_netns_fd(netns).expect("enter it");
        fs::read_to_string("/proc/thread-self/net/fib_trie").expect("its addresses")
    });
    table.lines().any(|line| line.trim_start_matches([' ', '|', '-']) == ip)
}

/// The daemon's lag: the ADD comes as soon as a reservation was removed by hand.
fn a_release_is_known_at_once(lab: &Lab) {
    let containerd = containerd(lab, true);
    let daemon = watching(lab, &containerd);
    let pod = containerd.pod("web").sandbox();
    await_ready(&daemon, std::slice::from_ref(&pod));
    let (plugin, rounds) = (Plugin::of(&containerd), rounds(10));
    let file = containerd.reservations().join(&pod.ip);
    let kept = fs::read(&file).unwrap();
    let mut shared = 0;
    for n in 0..rounds {
        fs::remove_file(&file).unwrap();
        containerd.hand_out_next(pod.ip.parse().unwrap());
        let id = format!("{n:064x}");
        shared += usize::from(plugin.add(&id).contains(&pod.ip.parse().unwrap()));
        plugin.del(&id);
        // It is parked by now, and is to be the pod's again.
        fs::write(&file, &kept).unwrap();
        until("its reservation is known again", 10, || {
            let answer = daemon.document(&["query", "ipam", &pod.ip]).unwrap_or_default();
            answer["reservations"][0]["container_id"] == *pod.sandbox
        });
    }
    counted("ADDs at once after a release by hand that return the IP", shared, rounds, "0");
    assert_eq!(shared, 0);
    containerd.stop(&pod);
}

/// Ends a pod, and calls an ADD as soon as the IP is free, which gets it. Returns whether the IP was still up when the ADD
/// returned it, and how long the ADD took.
fn during_del(containerd: &Containerd<'_>, plugin: &Plugin, pod: &PodSandbox) -> (bool, Duration) {
    let (netns, ip) = (File::open(&pod.path).unwrap(), pod.ip.parse().unwrap());
    containerd.hand_out_next(ip);
    let mut client = containerd.begin_stop(pod);
    await_free(containerd, pod);
    let (id, began) = (format!("{:064x}", pod.pause), Instant::now());
    let got = plugin.add(&id).contains(&ip.into());
    let (took, shared) = (began.elapsed(), got && is_up(&netns, &pod.ip));
    plugin.del(&id);
    assert!(client.wait().unwrap().success(), "the pod is stopped");
    containerd.stop(pod);
    (shared, took)
}

fn await_free(containerd: &Containerd<'_>, pod: &PodSandbox) {
    let reservation = containerd.reservations().join(&pod.ip);
    while reservation.exists() {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Ends a pod. Returns for how long its IP was up after its release.
fn open_for(containerd: &Containerd<'_>, pod: &PodSandbox) -> Duration {
    let netns = File::open(&pod.path).unwrap();
    let mut client = containerd.begin_stop(pod);
    await_free(containerd, pod);
    let freed = Instant::now();
    while is_up(&netns, &pod.ip) {
        std::thread::sleep(Duration::from_micros(100));
    }
    let open = freed.elapsed();
    assert!(client.wait().unwrap().success(), "the pod is stopped");
    containerd.stop(pod);
    open
}

/// macvlan frees the IP first and then removes the device. Between the two there is about as much time as an ADD takes;
/// here there is more, as on a machine that is busy.
fn an_add_waits_for_a_del_that_runs(lab: &Lab) {
    let node = Netns::new(lab, "node");
    let setup = Setup { prevention: true, inside: Some(&node), macvlan: true, ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    let daemon = node.run(|| watching(lab, &containerd));
    let (ours, rounds) = (Plugin::of(&containerd), rounds(2));
    let bare = ours.bare();
    let pod = |kind: &str, n: usize| {
        let pod = containerd.pod(&format!("{kind}-{n}")).sandbox();
        await_ready(&daemon, std::slice::from_ref(&pod));
        pod
    };
    let mut open: Vec<Duration> =
        (0..10).map(|n| open_for(&containerd, &pod("plain", n))).collect();
    open.sort_unstable();
    println!(
        "{FIGURE}an IP is up after its release by a DEL of macvlan  median {:.1} ms, worst {:.1} ms of {}  goal (none)",
        open[open.len() / 2].as_secs_f64() * 1e3,
        open[open.len() - 1].as_secs_f64() * 1e3,
        open.len(),
    );
    let what = "ADDs during a DEL whose device goes";
    for (delay, bare_shares) in [(30, false), (1_000, true)] {
        containerd.slow_down(Slow::Release, Duration::from_millis(delay));
        let (mut with, mut without) = (0, 0);
        for n in 0..rounds {
            let (shared, took) = during_del(&containerd, &ours, &pod("ours", n));
            // It returns an address that is still up only after its wait.
            assert!(!shared || took >= LEAVING, "after {took:?}");
            with += usize::from(shared);
            without += usize::from(during_del(&containerd, &bare, &pod("bare", n)).0);
        }
        let late = format!("{what} {delay} ms later that return the IP while it is up");
        counted(&format!("{late}, with ipwatch-ipam"), with, rounds, "(none)");
        counted(&format!("{late}, without"), without, rounds, "(none)");
        assert!(!bare_shares || without == rounds, "so that this test can fail");
    }
    let counters = fs::read_to_string(containerd.parked().join("counters")).unwrap_or_default();
    assert_eq!(counters, "", "a DEL that runs is nothing out of the ordinary");
}

/// The main plugin of an ADD is killed, as by a runtime whose timeout is over, and the runtime runs DEL at once. Returns
/// whether something is reserved in the end.
fn is_left(plugin: &Plugin, id: &str, after: Duration) -> bool {
    // It reads the answer, as a main plugin does, and waits for its end.
    let mut main = Command::new("sh");
    main.args(["-c", "answer=$(\"$0\"); exit $?"]).arg(plugin.program());
    main.envs(plugin.environment("ADD", id));
    main.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut main = main.spawn().expect("start a main plugin");
    let mut stderr = main.stderr.take().unwrap();
    let _ = main.stdin.take().unwrap().write_all(plugin.config().as_bytes());
    std::thread::sleep(after);
    main.kill().unwrap();
    main.wait().unwrap();
    plugin.del(id);
    // Everything that it started has ended when nobody has the pipe any more.
    stderr.read_to_end(&mut Vec::new()).unwrap();
    plugin.stored().values().any(|stored| stored == id)
}

fn what_an_add_reserved_that_nobody_awaits_is_freed(lab: &Lab) {
    let containerd = containerd(lab, true);
    let daemon = watching(lab, &containerd);
    let (ours, rounds) = (Plugin::of(&containerd), rounds(30));
    let bare = ours.bare();
    let (mut with, mut without) = (0, 0);
    for n in 0..rounds {
        let after = Duration::from_micros(1000 * n as u64);
        with += usize::from(is_left(&ours, &format!("a{n:063x}"), after));
        let id = format!("b{n:063x}");
        without += usize::from(is_left(&bare, &id, after));
        bare.del(&id);
    }
    let what = "ADDs whose main plugin is killed that leave a reservation";
    counted(&format!("{what}, with ipwatch-ipam"), with, rounds, "0");
    counted(&format!("{what}, without ipwatch-ipam"), without, rounds, "(none)");
    assert_eq!(with, 0);
    drop(daemon);
}
