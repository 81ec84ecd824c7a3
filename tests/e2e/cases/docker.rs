//! The cases with docker as the runtime: its state of a stuck process's container, and a process that outlives its
//! container.

use support::contained::Container;
use support::docker::Dockerd;
use support::fuse::Hung;
use support::harness::case;
use support::poll::until;
use support::remedy::{Shell, change};
use support::{Daemon, Lab, netns, sys};

use super::{SLEEP, SOON, config, evidence, is_in, root_in};

support::tests! {
    a_stuck_pod_of_docker_has_its_word needs [Dockerd, Fuse],
    a_process_outlives_a_container_of_docker needs [Dockerd],
    the_newer_of_two_containers_with_one_ip_is_stopped needs [Dockerd],
}

fn watching(lab: &Lab, dockerd: &Dockerd<'_>) -> Daemon {
    let daemon = Daemon::start(lab, &config().docker(&dockerd.socket()));
    daemon.await_source("docker");
    daemon
}

fn a_stuck_pod_of_docker_has_its_word(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let dockerd = Dockerd::start(lab);
    let daemon = watching(lab, &dockerd);
    let pod = dockerd.run_pod("db-0", 7, hung.dir(), &["/bin/cat", "/host/hang"]);
    hung.hang(pod.main.pid);
    let finding = daemon.await_firing("ip-held-by-stuck-process", SOON, is_in(pod.sandbox.netns));
    let subject = &finding["subject"];
    assert_eq!(subject["ip"], pod.sandbox.ip.as_str(), "{finding:#?}");
    // From the name that kubelet gave it: there is no CNI result.
    assert_eq!(subject["pod"]["namespace"], "shop", "{finding:#?}");
    assert_eq!(subject["pod"]["name"], "db-0", "{finding:#?}");
    assert_eq!(subject["pod"]["uid"], pod.uid.as_str(), "{finding:#?}");
    assert_eq!(subject["container"]["id"], pod.main.id.as_str(), "{finding:#?}");
    assert_eq!(subject["container"]["runtime"], "docker", "{finding:#?}");
    assert_eq!(finding["holders"][0]["pid"], pod.main.pid, "{finding:#?}");
    assert!(evidence(&finding).contains("docker"), "{finding:#?}");
    assert_eq!(root_in(&daemon, pod.sandbox.netns)["id"], finding["id"]);
    hung.release();
    daemon.await_resolved(&finding, SOON);
    case(
        "docker: process hangs on FUSE",
        "ip-held-by-stuck-process",
        &format!("pid {} (cat), pod by its name", pod.main.pid),
        "yes, when the mount is aborted",
    );
}

fn a_process_outlives_a_container_of_docker(lab: &Lab) {
    let mut dockerd = Dockerd::start(lab);
    let daemon = watching(lab, &dockerd);
    let container = dockerd.run("web", 7, lab.dir(), &SLEEP);
    let known = |address: &serde_json::Value| address["container"]["state"] == "running";
    until("it is known", 20, || {
        daemon.ip_in(&container.ip, container.netns).is_some_and(|a| known(&a))
    });
    dockerd.crash_around(&[&container]);
    dockerd.restart();
    let finding = daemon.await_firing("ip-held-by-dead-sandbox", SOON, is_in(container.netns));
    let subject = &finding["subject"];
    assert_eq!(subject["ip"], container.ip.as_str(), "{finding:#?}");
    assert_eq!(subject["container"]["id"], container.id.as_str(), "{finding:#?}");
    assert_eq!(subject["container"]["name"], "web", "{finding:#?}");
    assert_eq!(subject["container"]["runtime"], "docker", "{finding:#?}");
    assert_eq!(finding["holders"][0]["pid"], container.pid, "{finding:#?}");
    assert!(evidence(&finding).contains("exited"), "{finding:#?}");
    let shell = Shell::new(lab).with_docker(&dockerd.socket());
    shell.looks(&finding);
    let remove = change(&finding, "docker rm ");
    shell.succeeds(&remove);
    assert_eq!(dockerd.state_of(&container.id), None, "docker has it no more");
    shell.refuses(&remove);
    sys::kill(container.pid, libc::SIGKILL).unwrap();
    daemon.await_resolved(&finding, SOON);
    case(
        "docker: exited, its process lives",
        "ip-held-by-dead-sandbox",
        &format!("pid {} (sleep), container", container.pid),
        "yes, when it is killed",
    );
}

/// A bridge in the host's netns, without an address.
struct Bridge(String);

impl Bridge {
    fn new(lab: &Lab) -> Self {
        let name = format!("{}br", lab.tag());
        netns::ip(&format!("link add {name} type bridge"));
        netns::ip(&format!("link set {name} up"));
        Self(name)
    }

    /// Attaches the host's end of the container's veth.
    fn plug(&self, container: &Container) {
        let port = format!("iwd{}", container.netns);
        netns::ip(&format!("link set {port} master {}", self.0));
        netns::ip(&format!("link set {port} up"));
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ip").args(["link", "del", &self.0]).output();
    }
}

fn the_newer_of_two_containers_with_one_ip_is_stopped(lab: &Lab) {
    let dockerd = Dockerd::start(lab);
    let bridge = Bridge::new(lab);
    let daemon = watching(lab, &dockerd);
    let [old, new] = ["old", "new"].map(|name| {
        let container = dockerd.run(name, 7, lab.dir(), &SLEEP);
        bridge.plug(&container);
        daemon.await_ip(&container.ip, container.netns);
        container
    });
    let finding = daemon.await_firing("ip-duplicate", SOON, |finding| {
        finding["subject"]["ip"] == old.ip.as_str()
            && finding["steps"].to_string().contains(&new.id)
    });
    let shell = Shell::new(lab).with_docker(&dockerd.socket());
    shell.looks(&finding);
    let stop = change(&finding, "docker stop ");
    let state = |container: &Container| dockerd.state_of(&container.id);
    assert!(stop.ends_with(&format!("docker stop {}", new.id)), "{stop}");
    shell.succeeds(&stop);
    assert_eq!(state(&new).as_deref(), Some("exited"));
    assert_eq!(state(&old).as_deref(), Some("running"), "the older one goes on");
    daemon.await_resolved(&finding, SOON);
    // A repetition, and when the container runs again with an IP without conflict.
    shell.refuses(&stop);
    dockerd.start_again(&new);
    shell.refuses(&stop);
    assert_eq!(state(&new).as_deref(), Some("running"), "it was stopped too late");
}
