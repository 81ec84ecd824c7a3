//! `record` and `replay`: a case from the field, taken along, says the same elsewhere; and it carries
//! no secret.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::fuse::Hung;
use support::stuck::{self, How};
use support::{Config, Lab, Netns, Sandbox, daemon, eventually, patience, sys};

support::tests! {
    a_record_is_replayed_to_the_same_finding_without_a_secret needs [Fuse],
    what_is_no_record_is_refused,
}

/// `ipwatch record`, running.
struct Recorder(Child);

impl Recorder {
    fn start(lab: &Lab, config: &Config, out: &std::path::Path) -> Self {
        let file = lab.dir().join("record.toml");
        std::fs::write(&file, config.text()).unwrap();
        let mut command = Command::new(daemon::binary());
        command.args(["record", "--config"]).arg(&file).arg("--out").arg(out);
        let recorder = Self(command.stdin(Stdio::null()).spawn().unwrap());
        // It exists once the sources are asked; what begins later is recorded as it happens, and what
        // began before stands in the first snapshot.
        support::poll::until("the record is begun", 10, || out.exists());
        recorder
    }

    /// As Ctrl-C does.
    fn stop(mut self) {
        sys::kill(self.0.id(), libc::SIGINT).unwrap();
        let status = eventually("the recorder stops", 15, || self.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

fn a_record_is_replayed_to_the_same_finding_without_a_secret(lab: &Lab) {
    // One that no path or name of this test contains.
    let secret = format!("canary-{:016x}", u64::from(std::process::id()) << 20 | 0xabcde);
    let mut hung = Hung::mount(lab);
    let netns = Netns::new(lab, "tape");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), &secret);
    let out = lab.dir().join("record.jsonl");
    // Without a grace of its own: a replay goes by the default policy.
    let recorder = Recorder::start(lab, &Config::default().cache_dir(pod.cache()), &out);
    let mut helper = stuck::start_as(How::Kill, &netns, &mut hung, |helper| {
        helper.within(&pod).env("API_TOKEN", &secret).arg(&secret)
    });
    stuck::hang(How::Kill, &mut helper);
    std::thread::sleep(past_the_grace());
    recorder.stop();

    let record = std::fs::read_to_string(&out).unwrap();
    let pid = helper.pid();
    for part in [pod.name.as_str(), &lab.ip(7).to_string(), &format!("\"pid\":{pid}")] {
        assert!(record.contains(part), "the record has no {part}");
    }
    assert!(!record.contains(&secret), "the record holds a secret: {}", around(&record, &secret));
    let findings = replayed(&out);
    let ours = findings.iter().find(|f| f["subject"]["netns"]["inode"] == netns.inode);
    let finding = ours.unwrap_or_else(|| panic!("not among {findings:?}"));
    assert_eq!(finding["code"], "ip-held-by-stuck-process");
    assert_eq!(finding["status"], "firing", "{finding}");
    assert_eq!(finding["subject"]["ip"], lab.ip(7).to_string());
    assert_eq!(finding["subject"]["pod"]["name"], pod.name, "{finding}");
    assert_eq!(finding["holders"][0]["pid"], pid, "{finding}");
}

/// The default grace of 5 s, the second look, and where there are no probes their stand-in's period.
fn past_the_grace() -> Duration {
    let unseen = if daemon::probes() == "off" { 5 } else { 0 };
    Duration::from_secs(u64::from(5 + unseen + 1 + 2 * patience()))
}

fn replayed(record: &std::path::Path) -> Vec<Value> {
    let mut command = Command::new(daemon::binary());
    let out = command.arg("replay").arg(record).args(["-o", "json"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    let mut document: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|error| panic!("{}: {error}: {said}", out.status));
    match document["findings"].take() {
        Value::Array(findings) => findings,
        other => panic!("findings: {other}; {said}"),
    }
}

/// The line of a secret, for whoever must find the leak.
fn around<'a>(record: &'a str, secret: &str) -> &'a str {
    record.lines().find(|line| line.contains(secret)).unwrap_or_default()
}

fn what_is_no_record_is_refused(lab: &Lab) {
    let file = lab.dir().join("novel.txt");
    std::fs::write(&file, "Call me Ishmael.\n").unwrap();
    let out = Command::new(daemon::binary()).arg("replay").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("novel.txt") && said.contains("line 1"), "{said}");
}
