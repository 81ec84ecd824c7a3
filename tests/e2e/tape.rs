//! `record` and `replay`: a recorded case gives the same findings elsewhere, and contains no secret.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::fuse::Hung;
use support::proc::View;
use support::recording::Recorder;
use support::remedy::{Shell, change};
use support::stuck::{self, How};
use support::{Config, Lab, Netns, Sandbox, daemon, patience};

support::tests! {
    a_record_is_replayed_to_the_same_finding_without_a_secret needs [Fuse],
    what_is_no_record_is_refused,
    what_is_told_of_nfs_fails_the_requests_of_the_process needs [Fuse, UmountN],
}

/// A recorder with this configuration.
fn record(lab: &Lab, config: &Config, out: &std::path::Path) -> Recorder {
    let file = lab.dir().join("record.toml");
    std::fs::write(&file, config.text()).unwrap();
    Recorder::start(&file, out)
}

fn a_record_is_replayed_to_the_same_finding_without_a_secret(lab: &Lab) {
    // A value that no path or name of this test contains.
    let secret = format!("canary-{:016x}", u64::from(std::process::id()) << 20 | 0xabcde);
    let mut hung = Hung::mount(lab);
    let netns = Netns::new(lab, "tape");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let pod = Sandbox::make(lab, &netns, &lab.cidr(7), &secret);
    let out = lab.dir().join("record.jsonl");
    // A grace in the configuration, which the replay must use too.
    let config = Config::default().cache_dir(pod.cache()).grace(2);
    let recorder = record(lab, &config, &out);
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
    // The replay must find what the recorder found, at the same times.
    let lives = |findings: Vec<Value>| -> BTreeMap<String, Vec<Value>> {
        let parts = ["code", "status", "since", "firing_at", "resolved_at", "subject", "steps"];
        let life = |finding: Value| {
            let id = finding["id"].as_str().unwrap().to_owned();
            // A change within ten seconds of another is reported later, possibly after the end of the recording. A
            // resolved finding was reported completely.
            let is_paced = |part| ["subject", "steps"].contains(&part);
            let told =
                parts.iter().filter(|part| finding["status"] == "resolved" || !is_paced(**part));
            (id, told.map(|part| finding[*part].clone()).collect())
        };
        findings.into_iter().map(life).collect()
    };
    assert_eq!(lives(told(&record)), lives(findings), "as it happened, and replayed");
}

/// The recorder's findings, each change in order.
fn told(record: &str) -> Vec<Value> {
    let lines = record.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|mut line| Some(line.get_mut("told")?["finding"].take())).collect()
}

/// The default grace of 5 s, the second look, and without probes the interval of polling.
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

/// The line with a secret, for the failure message.
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

/// Changes a record of a process that hangs on FUSE: the mount is NFS, and the process waits in NFS.
fn as_nfs(value: &mut Value, point: &str) {
    match value {
        Value::Object(object) => {
            if object.get("point").is_some_and(|at| at == point) {
                object.insert("fs_type".to_owned(), "nfs4".into());
            }
            object.values_mut().for_each(|value| as_nfs(value, point));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| as_nfs(value, point)),
        Value::String(text) if is_frame_of_fuse(text) => "nfs_wait_bit_killable".clone_into(text),
        _ => {}
    }
}

fn is_frame_of_fuse(text: &str) -> bool {
    let frame = text.trim_start_matches('_');
    frame == "request_wait_answer" || frame.starts_with("fuse_") && !frame.starts_with("fuse_dev_")
}

/// There is no NFS here (`dead_nfs` uses it, in a VM): the command comes from a record in which the file system is
/// called NFS, with the pid and the mount point of a process that hangs on FUSE. `umount -f` makes either file system
/// fail its requests (`umount_begin`, called by `do_umount`, fs/namespace.c, 6.12).
fn what_is_told_of_nfs_fails_the_requests_of_the_process(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let netns = Netns::new(lab, "nfs");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let out = lab.dir().join("record.jsonl");
    let recorder = record(lab, &Config::default(), &out);
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    std::thread::sleep(past_the_grace());
    recorder.stop();
    let point = hung.dir().to_str().unwrap();
    let record = std::fs::read_to_string(&out).unwrap();
    let lines = record.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).expect("a JSON line");
        as_nfs(&mut line, point);
        format!("{line}\n")
    });
    std::fs::write(&out, lines.collect::<String>()).unwrap();

    let mut findings = replayed(&out);
    findings.retain(|finding| finding["subject"]["netns"]["inode"] == netns.inode);
    let [finding] = &findings[..] else { panic!("one finding: {findings:#?}") };
    let (shell, command) = (Shell::new(lab), change(finding, "umount "));
    assert!(command.ends_with(point), "{command}");
    let hangs = || View::leader(helper.pid()).is_some_and(|view| view.state == 'D');
    // The pid now belongs to another process.
    let (check, rest) = command.split_once(" && ").unwrap();
    let others = check.replacen("{18}", "{18}9", 1);
    assert_ne!(others, check);
    shell.refuses(&format!("{others} && {rest}"));
    assert!(hangs(), "its requests failed for another process");
    // A file system in use stays mounted, and `umount` reports that: the process must no longer wait.
    let _ = shell.run(&command);
    support::poll::until("it ends", 10, || !hangs());
    shell.refuses(&command);
}
