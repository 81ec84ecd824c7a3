//! Secrets in the places of credentials on nodes: in a pod's environment, arguments, labels and annotations, in the
//! CNI configuration and in libcni's cache of it. They must not appear in any answer, record, log, span or file of
//! the daemon.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::collector::Collector;
use support::docker::Dockerd;
use support::fuse::Hung;
use support::pod::{CNI_CACHE, Containerd, Setup};
use support::poll::until;
use support::{Config, Daemon, Lab, daemon, eventually, sys};

support::tests! {
    a_canary_in_a_pod_of_containerd_appears_nowhere needs [Pods, Fuse, Rotel],
    a_canary_in_a_container_of_docker_appears_nowhere needs [Dockerd, Fuse, Rotel],
}

/// A value that no path, name or number of this test contains.
fn canary() -> String {
    format!("canary-{:016x}", u64::from(std::process::id()) << 20 | 0xfeed5)
}

/// Checks that a text contains none of the secrets.
#[track_caller]
fn is_clean(what: &str, text: &[u8], secrets: &[String]) {
    for secret in secrets.iter().map(String::as_bytes) {
        if let Some(at) = text.windows(secret.len()).position(|window| window == secret) {
            let from = at.saturating_sub(200);
            let around = String::from_utf8_lossy(&text[from..text.len().min(at + 60)]).into_owned();
            panic!("{what} holds the secret: …{around}");
        }
    }
}

/// Every file below a directory.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path()).collect();
    let (dirs, mut found): (Vec<_>, Vec<_>) = entries.into_iter().partition(|path| path.is_dir());
    found.extend(dirs.iter().flat_map(|dir| files(dir)));
    found
}

/// The daemon, a recorder and a collector.
struct Watched<'a> {
    lab: &'a Lab,
    config: Config,
    daemon: Daemon,
    collector: Collector,
    follower: support::Follower,
    recorder: std::process::Child,
}

impl<'a> Watched<'a> {
    fn start(lab: &'a Lab, config: Config) -> Self {
        let collector = Collector::start(lab);
        let config = config.grace(1).holders_grace(1).otlp(&collector.endpoint);
        // With maximum logging.
        let mut command = Command::new(daemon::binary());
        command.env("RUST_LOG", "trace").env("IPWATCH_LOG", "trace");
        let state = lab.subdir("state");
        let mut daemon = Daemon::spawn_by(command, lab, &config, &state);
        daemon.await_ready();
        let follower = daemon.follow();
        let file = lab.dir().join("record.toml");
        std::fs::write(&file, config.text()).unwrap();
        let mut command = Command::new(daemon::binary());
        command.args(["record", "--config"]).arg(&file);
        command.arg("--out").arg(lab.dir().join("record.jsonl"));
        let recorder = command.stdin(Stdio::null()).spawn().unwrap();
        Self { lab, config, daemon, collector, follower, recorder }
    }

    /// Makes every query, and searches everything that was printed and stored.
    fn holds_no(mut self, canary: &[String], netns: u64, names: &[&str]) {
        let finding = eventually("a finding fires", 40, || {
            let all = self.daemon.findings_in(netns);
            all.into_iter().find(|finding| finding["status"] == "firing")
        });
        until("a span of it has arrived", 20, || {
            self.collector.received().contains(finding["id"].as_str().unwrap())
        });
        self.answers_hold_no(canary, &finding, netns, names);
        sys::kill(self.recorder.id(), libc::SIGINT).unwrap();
        self.recorder.wait().unwrap();
        let record = std::fs::read(self.lab.dir().join("record.jsonl")).unwrap();
        let text = String::from_utf8_lossy(&record).into_owned();
        assert!(names.iter().all(|name| text.contains(name)), "the record tells of it");
        is_clean("the record", &record, canary);
        is_clean("`watch`", self.follower.text().as_bytes(), canary);
        is_clean("the log", self.daemon.log().as_bytes(), canary);
        let received = self.collector.received();
        is_clean("the spans", received.as_bytes(), canary);
        assert!(self.daemon.stop().success());
        let state = files(&self.lab.subdir("state"));
        assert!(!state.is_empty(), "it keeps a store");
        for file in state {
            is_clean(&file.display().to_string(), &std::fs::read(&file).unwrap(), canary);
        }
    }

    fn answers_hold_no(&self, canary: &[String], finding: &Value, netns: u64, names: &[&str]) {
        let inode = netns.to_string();
        let mut questions: Vec<Vec<&str>> = vec![
            vec!["query", "ip"],
            vec!["query", "netns"],
            vec!["query", "netns", &inode, "-o", "tree"],
            vec!["query", "findings", "--all"],
            vec!["query", "history"],
            vec!["query", "neigh"],
            vec!["explain", finding["id"].as_str().unwrap(), "--evidence"],
            vec!["doctor"],
        ];
        questions.extend(names.iter().map(|name| vec!["query", "pod", name]));
        for question in &questions {
            for output in ["table", "json", "yaml"] {
                let question = if question.contains(&"-o") {
                    question.clone()
                } else {
                    [question.as_slice(), &["-o", output]].concat()
                };
                let out = self.daemon.ask(&question);
                is_clean(&format!("{question:?}"), &out.stdout, canary);
                is_clean(&format!("{question:?}"), &out.stderr, canary);
            }
        }
        let file = self.lab.dir().join("scan.toml");
        std::fs::write(&file, self.config.text()).unwrap();
        let mut scan = Command::new(daemon::binary());
        let out = scan.args(["scan", "-o", "json", "--config"]).arg(&file).output().unwrap();
        is_clean("scan", &[out.stdout, out.stderr].concat(), canary);
    }
}

/// Kills a process while it reads from a file system that does not answer. The canary is one of its arguments.
fn hang(hung: &mut Hung, pid: u32, canary: &str) {
    // The runtime's process becomes the container's by an exec, which may not have happened yet.
    for file in ["cmdline", "environ"] {
        until("the canary stands there", 10, || {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(canary)
        });
    }
    hung.hang(pid);
}

fn a_canary_in_a_pod_of_containerd_appears_nowhere(lab: &Lab) {
    let canary = canary();
    let mut hung = Hung::mount(lab);
    let containerd = Containerd::shared_as(lab, &Setup { secret: &canary, ..Setup::default() });
    let config = Config::default().cri(containerd.socket()).cache_dir(Path::new(CNI_CACHE));
    let watched = Watched::start(lab, config);
    let command = ["/bin/cat", "/host/hang", &canary];
    let pod = containerd.pod("vault-0").with_secret(&canary).run(hung.dir(), &command);
    let kept = kept_by_libcni(&pod.sandbox);
    hang(&mut hung, pod.pid, &canary);
    watched.holds_no(&[canary, kept], pod.netns, &["vault-0"]);
}

/// A part of the configuration as libcni keeps it, in base64.
fn kept_by_libcni(sandbox: &str) -> String {
    let cached = std::fs::read_dir(CNI_CACHE).unwrap().flatten();
    let config = |entry: std::fs::DirEntry| {
        let cached: Value = serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap();
        cached["config"].as_str().map(str::to_owned)
    };
    let of_eth0 = |name: &str| name.contains(sandbox) && name.ends_with("-eth0");
    let mut eth0 = cached.filter(|entry| of_eth0(&entry.file_name().to_string_lossy()));
    let config = eth0.next().and_then(config).expect("libcni keeps the configuration");
    config[config.len() / 2..][..32].to_owned()
}

fn a_canary_in_a_container_of_docker_appears_nowhere(lab: &Lab) {
    let canary = canary();
    let mut hung = Hung::mount(lab);
    let dockerd = Dockerd::start(lab);
    let watched = Watched::start(lab, Config::default().docker(&dockerd.socket()));
    let command = ["/bin/cat", "/host/hang", &canary];
    let container = dockerd.run_with_secret("vault", 7, hung.dir(), &command, &canary);
    hang(&mut hung, container.pid, &canary);
    watched.holds_no(&[canary], container.netns, &["vault"]);
}
