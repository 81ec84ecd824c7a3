//! `ipwatch cni release`, and what an ADD does if all that is left is held (`whenAllHeld`), with a real daemon, containerd
//! and host-local.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};
use support::daemon::binary;
use support::fuse::Hung;
use support::ipam::Plugin;
use support::pod::{Containerd, PodSandbox, Setup};
use support::{Daemon, Lab};

use super::{IMMINENT, PARKED, containerd, counted, freed};
use crate::lead::duplicate::{RELEASED, await_known};
use crate::lead::exhaustion::network_of;
use crate::lead::{SOON, await_ready, is_about, watching};

support::tests! {
    what_is_no_longer_held_is_released_by_hand needs [Containerd, Fuse],
    where_all_is_held_an_add_fails_or_shares_it needs [Containerd, Fuse],
}

const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];

/// `ipwatch cni release`, which asks at this socket. Returns what it says.
#[track_caller]
fn release(containerd: &Containerd<'_>, socket: &Path) -> String {
    let mut command = Command::new(binary());
    command.args(["cni", "release", "--parked-dir"]).arg(containerd.parked());
    command.arg("--bin-dir").arg(containerd.bin_dir()).arg("--socket").arg(socket);
    let out = command.output().expect("run ipwatch");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// The next pod would be given this IP, which is held: it is parked.
#[track_caller]
fn parks(containerd: &Containerd<'_>, name: &str, ip: &str) {
    containerd.hand_out_next(ip.parse().unwrap());
    let next = containerd.pod(name).sandbox();
    assert_ne!(next.ip, ip);
    assert!(is_parked(containerd, ip), "{:?}", containerd.reserved_for(ip));
}

fn is_parked(containerd: &Containerd<'_>, ip: &str) -> bool {
    containerd.reserved_for(ip).is_some_and(|id| id.starts_with(PARKED))
}

fn what_is_no_longer_held_is_released_by_hand(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let containerd = containerd(lab, true);
    let daemon = watching(lab, &containerd);
    let stuck = freed(&containerd, &daemon, &mut hung);
    let other = containerd.run("db-1", lab.dir(), &SLEEP);
    await_known(&daemon, &other);
    await_ready(&daemon, &[PodSandbox::clone(&other)]);
    fs::remove_file(containerd.reservations().join(&other.ip)).unwrap();
    parks(&containerd, "web-0", &stuck.ip);
    parks(&containerd, "web-1", &other.ip);

    // One ends without a DEL, which would release what is parked.
    containerd.kill_shim_and_children(&other);
    unmount(&other.path, UnmountFlags::DETACH).unwrap();
    daemon.await_no_ip(&other.ip, other.netns);
    // Without a word of the daemon nothing is released.
    let said = release(&containerd, &lab.dir().join("nobody"));
    assert_eq!(said.matches("ipwatch does not know whether it is held: ").count(), 2, "{said}");
    assert!(is_parked(&containerd, &stuck.ip) && is_parked(&containerd, &other.ip));

    let network = network_of(&containerd);
    let said = release(&containerd, daemon.socket());
    let held = format!("still held: {} of {network}, as of when it was parked: ", stuck.ip);
    for part in [&held, &format!("by pid {} (", stuck.pid)] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(said.contains(&format!("released {} of {network}\n", other.ip)), "{said}");
    assert!(is_parked(&containerd, &stuck.ip), "it is held");
    assert_eq!(containerd.reserved_for(&other.ip), None);

    hung.release();
    daemon.await_no_ip(&stuck.ip, stuck.netns);
    let said = release(&containerd, daemon.socket());
    assert_eq!(said, format!("released {} of {network}\n", stuck.ip));
    assert_eq!(containerd.reserved_for(&stuck.ip), None);
    assert_eq!(release(&containerd, daemon.socket()), "nothing to release\n");
}

/// A range of one IP, which a pod that hangs has although it was freed.
fn where_all_is_held_an_add_fails_or_shares_it(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let only = format!("{}/27 {ip} {ip}", lab.ip(0), ip = lab.ip(5));
    let setup = Setup { prevention: true, refuses: true, subnet: Some(only), ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    let daemon: Daemon = watching(lab, &containerd);
    let stuck = freed(&containerd, &daemon, &mut hung);
    let critical = daemon.await_firing(RELEASED, SOON, is_about(&stuck.ip));
    assert_eq!(critical["severity"], "critical", "{critical:#?}");

    let error = containerd.pod("web-0").try_sandbox().expect_err("all is held");
    let who = format!("{} is still held by pid {} (", stuck.ip, stuck.pid);
    for part in [&*who, " of pod shop/db-0", "; ipwatch explain "] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(counted(&containerd, "all-held"), 1);
    assert!(is_parked(&containerd, &stuck.ip), "{:?}", containerd.reserved_for(&stuck.ip));

    // With the default the pod starts, and the daemon tells of it.
    let plugin = Plugin::of(&containerd).with_option("whenAllHeld", "allow");
    let id = "a".repeat(64);
    assert_eq!(plugin.add(&id), [stuck.ip.parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(containerd.reserved_for(&stuck.ip), Some(id.clone()));
    assert_eq!(counted(&containerd, "gave-held"), 1);
    daemon.await_firing(IMMINENT, SOON, is_about(&stuck.ip));
    plugin.del(&id);
    hung.release();
    daemon.await_no_ip(&stuck.ip, stuck.netns);
    assert_eq!(plugin.stored().len(), 0, "{:?}", plugin.stored());
}
