//! Compares the bytes that a collector receives with a recording (`golden.hex`). Users' queries, dashboards and alerts
//! depend on them.

use std::fmt::Write as _;
use std::path::Path;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;

use super::http::Server;
use super::{Otlp, settings, until};
use crate::bounded;
use crate::fact::TaskKey;
use crate::finding::{Change, Severity};
use crate::map::CallEnd;
use crate::reading::Readings;
use crate::sinks::call::RunKey;
use crate::sinks::call::tests::run;
use crate::sinks::tests::{full, node, opened, resolved, updated};
use crate::sinks::{Link, metrics, teardown, tenure};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sinks/otlp/tests/golden.hex");
/// Bytes in one line of the recording.
const LINE: usize = 48;

fn changes() -> Vec<Change> {
    let mut hostile = opened("hostile");
    hostile.finding.severity = Severity::Critical;
    hostile.finding.impact = "\u{1b}[2J".to_owned();
    hostile.finding.subject.netns.as_mut().unwrap().cookie = Some(u64::MAX);
    hostile.finding.evidence[0].text = "ü".repeat(5000);
    let mut many = opened("many");
    many.finding.evidence = std::iter::repeat_n(many.finding.evidence[0].clone(), 70).collect();
    many.finding.evidence[1].at = "no date".to_owned();
    let mut bare = opened("bare");
    bare.finding.severity = Severity::Info;
    (bare.finding.subject, bare.finding.holders) = Default::default();
    (bare.finding.evidence, bare.finding.remediation) = Default::default();
    bare.finding.steps.clear();
    vec![opened("a"), updated("a"), resolved("a"), full(), hostile, many, bare]
}

fn links() -> Vec<Link> {
    let task = TaskKey { pid: 7, tid: 7, start: 5 };
    let run = RunKey { task, root: task, boot_id: "boot" };
    vec![tenure::link(&tenure::tests::held(None).tenure, "boot"), run.link()]
}

/// Publishes every kind of item in every shape. Returns the number of items.
fn tell_all(otlp: &Otlp) -> u64 {
    let changes = changes();
    for change in &changes {
        otlp.publish(change, &links());
    }
    for (finished, told) in [(Some(30), false), (None, true), (Some(30), true)] {
        otlp.teardown(&teardown::tests::teardown(finished, told));
    }
    let (mut fine, mut killed) = (run(9, None), run(10, None));
    fine.entry.ended.as_mut().unwrap().status = Some(0);
    killed.entry.ended =
        Some(CallEnd { at: crate::fact::BootNs(30), status: None, signal: Some(9) });
    let mut explained = run(11, None);
    explained.error = Some("no IP\u{1b}[2J".to_owned());
    explained.entry.call.netns_path = Some("/run/netns/a".into());
    let runs = [run(7, None), run(8, Some(7)), fine, killed, explained];
    let (calls, count) = (otlp.calls().unwrap(), runs.len());
    runs.iter().for_each(|run| calls.publish(run));
    otlp.tenure(&tenure::tests::held(None));
    otlp.tenure(&tenure::tests::held(Some("2026-01-01T00:01:00.000Z")));
    otlp.measure(metrics::tests::snapshot());
    (2 * changes.len() + 3 + count + 2 + 1) as u64
}

/// The requests that arrive, by path.
async fn sent() -> Vec<(String, Vec<u8>)> {
    let (server, address) = Server::start([]).await;
    let file = format!(
        "endpoint = \"http://{address}\"\nprotocol = \"http/protobuf\"\ncni_calls = \"all\"\n\
         tenures = true\nsignals = [\"traces\", \"logs\", \"metrics\"]"
    );
    let mut node = node();
    let said = [("service.name", "watch"), ("deployment", "edge"), ("zone", "a\u{1b}b")];
    node.resource = said.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let otlp = Otlp::start(settings(&file).unwrap(), &node, &Readings::default()).unwrap();
    let count = tell_all(&otlp);
    until("all taken", || otlp.counters().total().exported == count).await;
    otlp.shutdown().await;
    let mut all: Vec<_> =
        server.seen().into_iter().map(|one| (one.path, one.body.to_vec())).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// For the failure message.
fn decoded(path: &str, body: &[u8]) -> String {
    match path {
        "/v1/traces" => format!("{:#?}", ExportTraceServiceRequest::decode(body).unwrap()),
        "/v1/logs" => format!("{:#?}", ExportLogsServiceRequest::decode(body).unwrap()),
        _ => format!("{:#?}", ExportMetricsServiceRequest::decode(body).unwrap()),
    }
}

fn written(all: &[(String, Vec<u8>)]) -> String {
    let mut text = String::new();
    for (path, body) in all {
        let _ = writeln!(text, "{path}");
        for line in body.chunks(LINE) {
            let _ =
                writeln!(text, "{}", line.iter().map(|b| format!("{b:02x}")).collect::<String>());
        }
    }
    text
}

fn read(text: &str) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        if line.starts_with('/') {
            all.push((line.to_owned(), Vec::new()));
            continue;
        }
        let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        all.last_mut().unwrap().1.extend((0..line.len()).step_by(2).map(byte));
    }
    all
}

/// `IPWATCH_BLESS=1 cargo test -p ipwatch --lib golden` updates the recording. A change belongs in the changelog.
#[tokio::test]
async fn collectors_get_the_bytes_that_they_got_before() {
    let all = sent().await;
    if std::env::var_os("IPWATCH_BLESS").is_some() {
        std::fs::write(GOLDEN, written(&all)).unwrap();
        return;
    }
    let before = read(&bounded::read_text(Path::new(GOLDEN), 1 << 20).unwrap());
    assert_eq!(all.len(), before.len(), "requests");
    for ((path, body), (path_before, body_before)) in all.iter().zip(&before) {
        assert_eq!(path, path_before);
        if body == body_before {
            continue;
        }
        let (now, then) = (decoded(path, body), decoded(path, body_before));
        let lines = now.lines().zip(then.lines()).enumerate();
        let differ = lines.filter(|(_, (now, then))| now != then).take(10);
        let differ: Vec<String> =
            differ.map(|(at, (now, then))| format!("{at}: {then} is now {now}")).collect();
        panic!("{path}: {} bytes, were {}:\n{}", body.len(), body_before.len(), differ.join("\n"));
    }
}
