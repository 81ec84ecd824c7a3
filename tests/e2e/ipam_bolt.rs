//! The stores that are bolt files: the reservations of dockerd and podman are read while they hold their files, and
//! they do not notice.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::docker::Dockerd;
use support::podman::Podman;
use support::{Config, Lab, Netns, daemon, eventually, sys};

support::tests! {
    what_dockerd_gave_is_told_while_it_holds_its_file needs [Dockerd],
    what_podman_gave_is_told needs [Podman],
}

/// A running `ipwatch record`, and its output file.
struct Recorder {
    child: Child,
    out: PathBuf,
}

impl Recorder {
    fn start(lab: &Lab, ipam: &[(&str, PathBuf)]) -> Self {
        let mut section = "[ipam]\ndata_dirs = []\n".to_owned();
        for (key, path) in ipam {
            writeln!(section, "{key} = {path:?}").unwrap();
        }
        let file = lab.dir().join("record.toml");
        std::fs::write(&file, Config::default().line(&section).text()).unwrap();
        let out = lab.dir().join("record.jsonl");
        let mut command = Command::new(daemon::binary());
        command.args(["record", "--config"]).arg(&file).arg("--out").arg(&out);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let recorder = Self { child, out };
        support::poll::until("the record is begun", 10, || recorder.out.exists());
        recorder
    }

    /// The first fact of this kind and store for which `is` holds.
    #[track_caller]
    fn await_fact(&self, what: &str, store: &str, is: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{what} of {store}"), 20, || {
            let text = std::fs::read_to_string(&self.out).unwrap_or_default();
            let facts = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let ours = |fact: &Value| fact["what"] == what && fact["store"] == store;
            facts.into_iter().find(|fact| ours(fact) && is(fact))
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = sys::kill(self.child.id(), libc::SIGINT);
        let _ = self.child.wait();
    }
}

fn what_dockerd_gave_is_told_while_it_holds_its_file(lab: &Lab) {
    let netns = Netns::new(lab, "docker");
    let dockerd = netns.run(|| Dockerd::start(lab));
    dockerd.network("shop", &lab.cidr(0));
    let before = dockerd.run_in("web", "shop", &["/bin/sleep", "1000000"]);
    let recorder = Recorder::start(lab, &[("docker_data_root", dockerd.data_root())]);
    let ip = |wanted: &str| {
        let wanted = wanted.to_owned();
        move |fact: &Value| fact["ip"] == wanted.as_str() && fact["container_id"].is_string()
    };
    let told = recorder.await_fact("reservation", "libnetwork", ip(&before.ip));
    assert_eq!(told["container_id"], before.id.as_str(), "{told}");
    assert_eq!(told["network"], "shop", "{told}");
    let range = recorder.await_fact("range", "libnetwork", |fact| fact["network"] == "shop");
    let part = &range["sets"][0][0];
    assert_eq!(part["first"], lab.ip(1).to_string(), "{range}");
    assert_eq!(part["last"], lab.ip(254).to_string(), "{range}");
    // The gateway is the bridge's.
    assert_eq!(part["except"][0], lab.ip(1).to_string(), "{range}");
    // Changes from now on, which dockerd writes undisturbed.
    let after = dockerd.run_in("desk", "shop", &["/bin/sleep", "1000000"]);
    let told = recorder.await_fact("reservation", "libnetwork", ip(&after.ip));
    assert_eq!(told["container_id"], after.id.as_str(), "{told}");
    dockerd.remove(&after);
    let key = told["key"].clone();
    recorder.await_fact("reservation_gone", "libnetwork", |fact| fact["key"] == key);
    dockerd.remove(&before);
}

fn what_podman_gave_is_told(lab: &Lab) {
    let netns = Netns::new(lab, "podman");
    let mut podman = netns.run(|| Podman::start(lab));
    podman.network("pods", &lab.cidr(0));
    let paths =
        [("netavark_db", podman.files.db()), ("netavark_networks", podman.files.networks())];
    let recorder = Recorder::start(lab, &paths);
    let id = podman.run("a1", "pods");
    let told =
        recorder.await_fact("reservation", "netavark", |fact| fact["container_id"] == id.as_str());
    assert_eq!(told["network"], "pods", "{told}");
    // An internal network without names has no gateway.
    assert_eq!(told["ip"], lab.ip(1).to_string(), "{told}");
    let range = recorder.await_fact("range", "netavark", |fact| fact["network"] == "pods");
    assert_eq!(range["sets"][0][0]["last"], lab.ip(254).to_string(), "{range}");
    podman.remove("a1");
    let key = told["key"].clone();
    recorder.await_fact("reservation_gone", "netavark", |fact| fact["key"] == key);
}
