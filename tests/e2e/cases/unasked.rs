//! Two runtimes on one node, of which only one is asked. A pod that it does not know may belong to the other: it is
//! not called dead, and `doctor` shows which runtime is not asked. A pod that it did know is still found.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

use serde_json::Value;
use support::docker::Dockerd;
use support::harness::case;
use support::pod::{Containerd, Setup};
use support::poll::{eventually, until};
use support::proc::is_alive;
use support::{Daemon, Lab, Netns};

use super::{SLEEP, SOON, await_word, config, is_about, is_in};

support::tests! {
    a_living_pod_of_a_containerd_that_is_not_asked needs [Containerd],
    a_living_pod_of_a_dockerd_that_is_not_asked needs [Containerd, Dockerd],
    a_process_that_is_only_called_containerd needs [],
}

/// Age from which a denial counts, in seconds.
const AGE: u32 = 3;
/// A daemon that counts a denial as a death would have a finding by then: the age, two answers of the asked runtime,
/// and the same time again.
const LONG_SINCE: u64 = 30;

/// The detail of the source for running runtimes, when it mentions this one.
#[track_caller]
fn complaint(daemon: &Daemon, about: &str) -> String {
    eventually("doctor names the runtime that is not asked", 60, || {
        let source = daemon.source("runtimes")?;
        let detail = source["detail"].as_str()?;
        (source["status"] == "degraded" && detail.contains(about)).then(|| detail.to_owned())
    })
}

/// Checks that nothing is reported about this netns while its holder lives.
fn stays_silent(daemon: &Daemon, netns: u64, holder: u32) {
    let began = std::time::Instant::now();
    while began.elapsed().as_secs() < LONG_SINCE {
        let found: Vec<Value> = daemon.findings_in(netns);
        assert!(found.is_empty(), "a living pod of a runtime that is not asked: {found:#?}");
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    assert!(is_alive(holder));
}

fn a_living_pod_of_a_containerd_that_is_not_asked(lab: &Lab) {
    let node = Netns::new(lab, "far");
    let mut asked = Containerd::start(lab);
    let other = Containerd::start_as(lab, &Setup { node: Some(&node), ..Setup::default() });
    let own = asked.run("web-0", lab.dir(), &SLEEP);
    let others = other.run("web-1", lab.dir(), &SLEEP);
    let daemon = Daemon::start(lab, &config().leak_age(AGE).all_runtimes().cri(asked.socket()));
    await_word(&daemon, &own, "Ready");
    stays_silent(&daemon, others.netns, others.pid);
    let said = complaint(&daemon, &other.socket().display().to_string());
    assert!(
        said.contains("containers of containerd are running, and containerd is not asked"),
        "{said}"
    );
    assert!(said.contains("[runtime] sockets"), "what to do: {said}");
    // For the pods of the asked runtime findings are reported as usual.
    asked.crash();
    asked.kill_shim_and_pause(&own);
    asked.forget_in_runc(&own.container);
    asked.restart();
    let finding = daemon.await_firing("ip-held-by-dead-sandbox", SOON, is_in(own.netns));
    is_about(&finding, &own);
    assert!(daemon.findings_in(others.netns).is_empty());
    support::sys::kill(own.pid, libc::SIGKILL).unwrap();
    daemon.await_resolved(&finding, SOON);
    asked.stop(&own);
    other.stop(&others);
    case("a pod of a runtime that is not asked", "none: its owner was not asked", "-", "-");
}

fn a_living_pod_of_a_dockerd_that_is_not_asked(lab: &Lab) {
    let asked = Containerd::start(lab);
    let dockerd = Dockerd::start(lab);
    let own = asked.run("web-0", lab.dir(), &SLEEP);
    let others = dockerd.run_pod("web-1", 7, lab.dir(), &SLEEP);
    let daemon = Daemon::start(lab, &config().leak_age(AGE).all_runtimes().cri(asked.socket()));
    await_word(&daemon, &own, "Ready");
    stays_silent(&daemon, others.sandbox.netns, others.sandbox.pid);
    let said = complaint(&daemon, &dockerd.socket().display().to_string());
    assert!(said.contains("containers of docker are running, and docker is not asked"), "{said}");
    asked.stop(&own);
}

/// A process with uid 65534, killed when dropped.
pub(crate) struct Forged(pub(crate) Child);

impl Drop for Forged {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Such a process is not a runtime, so other pods do not become unknown.
fn a_process_that_is_only_called_containerd(lab: &Lab) {
    let forged: Vec<Forged> = ["containerd", "containerd-shim-runc-v2", "crio"]
        .iter()
        .map(|name| {
            let program = lab.dir().join(name);
            std::fs::copy("/bin/sleep", &program).expect("copy a program");
            let mut command = Command::new(&program);
            command.arg("1000").uid(65534).gid(65534).current_dir(Path::new("/"));
            Forged(command.spawn().expect("start a program"))
        })
        .collect();
    let comm = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    until("it is called so", 5, || comm(forged[0].0.id()).is_ok_and(|name| name == "containerd\n"));
    let daemon = Daemon::start(lab, &config().all_runtimes());
    let source = eventually("doctor tells of runtimes", 20, || daemon.source("runtimes"));
    let detail = source["detail"].as_str().unwrap_or_default();
    for Forged(child) in &forged {
        assert!(!detail.contains(&format!("pid {},", child.id())), "{detail}");
        assert!(!detail.contains(&format!("pid {})", child.id())), "{detail}");
    }
}
