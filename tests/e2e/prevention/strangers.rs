//! An unprivileged user and a pod with `NET_ADMIN` have every address of the range. Nothing happens to anybody's ADD or DEL.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::ipam::Plugin;
use support::pod::{Containerd, PodSandbox, Setup};
use support::{Lab, patience};

use super::churn::state;
use super::{counted, next_five, reservations};
use crate::cases::unasked::Forged;
use crate::lead::{await_ready, watching};

support::tests! {
    strangers_delay_and_park_nothing needs [Containerd],
}

const NOBODY: u32 = 65534;
/// How long an ADD waits for an address that it believes to be held by a DEL.
const LEAVING: Duration = Duration::from_millis(50);

/// A shell command that gives these addresses to `eth0`, and then stays.
fn taking(ip: &str, all: &[Ipv4Addr]) -> String {
    let all: Vec<String> = all.iter().map(Ipv4Addr::to_string).collect();
    let add = format!("{ip} addr add $a/27 dev eth0 2>/dev/null");
    format!("for a in {}; do {add}; done; echo up; exec sleep 1000", all.join(" "))
}

/// A user's process, in a netns of its own. Returns the inode of that netns.
fn user(all: &[Ipv4Addr]) -> (Forged, u64) {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-c"]);
    command.arg(format!("ip link add eth0 type veth peer name wire; {}", taking("ip", all)));
    command.uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut user = Forged(command.spawn().expect("start a user's process"));
    let mut line = String::new();
    let out = user.0.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    let netns = fs::metadata(format!("/proc/{}/ns/net", user.0.id())).unwrap().ino();
    (user, netns)
}

/// The shortest times of an ADD until one of the second plugin is not longer by this than the shortest of the first, or
/// of many: who waits does so in each. The plugins take turns, so that what else the machine does meets both.
fn adds_take(plugins: [&Plugin; 2], longer: Duration) -> [Duration; 2] {
    let time = |plugin: &Plugin, tag: char, n: usize| {
        let (id, began) = (format!("{tag}{n:063x}"), Instant::now());
        let _ = plugin.add(&id);
        let took = began.elapsed();
        plugin.del(&id);
        took
    };
    let mut shortest = [Duration::MAX; 2];
    for n in 0..60 {
        let turn = [time(plugins[0], 'a', n), time(plugins[1], 'b', n)];
        shortest = [0, 1].map(|which| shortest[which].min(turn[which]));
        if shortest[1] < shortest[0] + longer {
            break;
        }
    }
    shortest
}

fn strangers_delay_and_park_nothing(lab: &Lab) {
    let setup =
        Setup { prevention: true, subnet: Some(format!("{}/27", lab.ip(0))), ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    // With the timeout of a node: the daemon has much to tell of here.
    let (daemon, plugin) =
        (watching(lab, &containerd), Plugin::of(&containerd).with_option("timeoutMs", 20));
    let all: Vec<Ipv4Addr> = (1..31).map(|n| lab.ip(n)).collect();
    let script = taking("/bin/busybox ip", &all);
    let rude =
        containerd.pod("rude").net_admin().run(lab.dir(), &["/bin/busybox", "sh", "-c", &script]);
    await_ready(&daemon, &[PodSandbox::clone(&rude)]);
    let (_user, netns) = user(&all);
    for netns in [rude.netns, netns] {
        all.iter().for_each(|ip| _ = daemon.await_ip(ip, netns));
    }
    let longer = LEAVING / 2 * patience();
    let [bare, with] = adds_take([&plugin.bare(), &plugin], longer);
    assert!(with < bare + longer, "{bare:?} of the delegate alone, {with:?} with it");

    containerd.hand_out_next(lab.ip(20));
    let pods = next_five(&containerd);
    let given: Vec<Ipv4Addr> = pods.iter().map(|pod| pod.ip.parse().unwrap()).collect();
    assert_eq!(given, all[19..24], "as host-local hands them out");
    // The runtime's DEL of a pod that has everybody's addresses passes as well.
    pods.iter().for_each(|pod| containerd.stop(pod));
    containerd.stop(&rude);
    assert_eq!(reservations(&containerd), [] as [String; 0]);
    assert_eq!(state(&containerd)["parked"].as_array().map_or(0, Vec::len), 0);
    for what in ["parked", "not-parked", "gave-held", "all-held", "gated", "unknown"] {
        assert_eq!(counted(&containerd, what), 0, "{what}");
    }
}
