//! An IP is freed while it is held, and the next pod gets it without any error.

use std::time::{Duration, Instant};

use support::fuse::Hung;
use support::harness::FIGURE;
use support::lead::{Failure, Told};
use support::pod::{Containerd, Pod, Setup, Slow};
use support::poll::until;
use support::remedy::{Shell, change, changes};
use support::{Lab, sys};

use super::{Eyes, SOON, await_ready, is_about, names, small, watching};

support::tests! {
    an_ip_is_freed_while_its_holder_hangs needs [Containerd, Fuse] @ Alone,
}

pub(crate) const RELEASED: &str = "ip-released-but-held";
pub(crate) const DUPLICATE: &str = "ip-duplicate";
const IMMINENT: &str = "ip-conflict-imminent";

/// The command of a pod that must hang. Not cat: it splices, and would then hang with the lock of the pipe to its
/// shim, which would hang too.
pub(crate) const READ: [&str; 5] = ["/bin/busybox", "head", "-c", "1", "/host/hang"];

/// Makes a pod hang in the kernel, kills its shim, and unmounts its netns.
pub(crate) fn hang(containerd: &Containerd<'_>, hung: &mut Hung) -> Pod {
    let pod = containerd.run("db-0", hung.dir(), &READ);
    hung.await_read();
    orphan(containerd, &pod);
    pod
}

/// Like [`hang`], for a pod that already reads.
pub(crate) fn orphan(containerd: &Containerd<'_>, pod: &Pod) {
    sys::kill(pod.pid, libc::SIGKILL).unwrap();
    until("it hangs", 10, || pod.hangs());
    rustix::mount::unmount(&pod.path, rustix::mount::UnmountFlags::DETACH).unwrap();
    containerd.kill_shim_and_pause(pod);
}

fn an_ip_is_freed_while_its_holder_hangs(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let setup = Setup { subnet: Some(small(lab)), ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    let daemon = watching(lab, &containerd);
    let told = Told::by(&daemon);
    let pod = hang(&containerd, &mut hung);
    let reservation = containerd.reservations().join(&pod.ip);
    await_known(&daemon, &pod);
    let mut client = containerd.begin_stop(&pod);
    until("its IP is freed", 20, || !reservation.exists());
    let freed = Instant::now();
    let word = told.await_word(RELEASED, SOON, is_about(&pod.ip));
    let after = word.saturating_duration_since(freed).as_secs_f64() * 1e3;
    println!("{FIGURE}told {after:.1} ms after an IP was freed that is held");
    let _ = client.wait();

    // host-local assigns round-robin: the fifth next pod gets it.
    let others: Vec<_> = (0..4).map(|n| containerd.pod(&format!("web-{n}")).sandbox()).collect();
    await_ready(&daemon, &others);
    // An IP that is assigned again within a second of its release may be one change of the store that arrives in
    // parts, and is reported 0.3 s later (`map/ipam/mismatch.rs`). Whether four pods take that long depends on the
    // machine.
    until("the release is an old one", 5, || freed.elapsed() > Duration::from_millis(1500));
    // A plugin that assigns the IP immediately leaves only milliseconds, which may be too few on some machines. This
    // one takes longer, like those that ask a server.
    containerd.slow_down(Slow::Reserve, Duration::from_millis(200));
    let eyes = Eyes::on(&pod.ip);
    let second = containerd.pod("web-4").sandbox();
    assert_eq!(second.ip, pod.ip, "in silence");
    let at = eyes.saw();
    let holder = pod.pid.to_string();
    let named = |finding: &serde_json::Value| {
        names(&finding["holders"].to_string(), &[&holder], "the process that hangs")?;
        let subject = &finding["subject"]["pod"]["name"];
        names(&subject.to_string(), &[&pod.name], "the process that hangs, its pod")
    };
    let failure = Failure { case: "freed while held, next pod gets it", at, slow: true };
    told.lead(&failure, RELEASED, is_about(&pod.ip), named);
    let failure = Failure { case: "second holder goes live in silence", at, slow: false };
    let imminent = told.lead(&failure, IMMINENT, is_about(&pod.ip), named);
    let text = super::evidence(&imminent) + &imminent["subject"].to_string();
    assert!(text.contains(&second.sandbox[..12]), "whom it is given to: {imminent:#?}");

    // Both are on the node's bridge.
    let duplicate = daemon.await_firing(DUPLICATE, SOON, is_about(&pod.ip));
    assert_eq!(duplicate["severity"], "critical", "a runtime made both: {duplicate:#?}");
    let text = super::evidence(&duplicate) + &duplicate["impact"].to_string();
    for name in [&pod.name, &second.name] {
        assert!(text.contains(&**name), "{name} has it: {duplicate:#?}");
    }
    assert!(
        !duplicate["caused_by"].is_null(),
        "it follows from the one that hangs: {duplicate:#?}"
    );
    // The commands of the remedies work. The newer pod is ended by its runtime.
    let shell = Shell::new(lab).with_runtime(containerd.socket());
    let released = daemon.await_firing(RELEASED, SOON, is_about(&pod.ip));
    [&released, &imminent, &duplicate].into_iter().for_each(|finding| shell.looks(finding));
    let cordons =
        [&released, &imminent, &duplicate].map(|finding| change(finding, "kubectl cordon "));
    cordons.iter().for_each(|command| shell.succeeds(command));
    for command in changes(&imminent).iter().filter(|command| command.contains("crictl stopp ")) {
        shell.succeeds(command);
        assert!(!support::proc::is_alive(second.pause), "its sandbox goes on");
        shell.changes_nothing(command);
    }
    hung.release();
    daemon.await_resolved(&duplicate, SOON);
    // Nothing is wrong with the IP any more, so no node may be cordoned for it.
    daemon.await_resolved(&released, SOON);
    daemon.await_resolved(&imminent, SOON);
    let _ = shell.said();
    cordons.iter().for_each(|command| shell.refuses(command));
    assert_eq!(shell.said(), Vec::<String>::new());
}

/// Waits until the daemon knows a pod's IP.
#[track_caller]
pub(crate) fn await_known(daemon: &support::Daemon, pod: &Pod) {
    daemon.await_ip(&pod.ip, pod.netns);
}
