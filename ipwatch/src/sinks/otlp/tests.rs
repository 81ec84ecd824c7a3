//! The sink against a collector in this process, on a runtime with one thread, as in the daemon.

use std::collections::VecDeque;
use std::sync::Mutex;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

use super::config::Otlp as Config;
use super::*;
use crate::sinks::call::tests::run;
use crate::sinks::tests::{node, opened, resolved, updated};
use crate::testing::serve_grpc;

mod golden;
mod hostile;
mod http;
mod secure;

/// Bounds a wait; no test depends on the real duration.
const PATIENCE: Duration = Duration::from_secs(20);

/// A collector that gives the listed answers, then success.
#[derive(Clone, Default)]
struct Collector {
    answers: Arc<Mutex<VecDeque<Result<i64, Status>>>>,
    spans: Arc<Mutex<Vec<Span>>>,
    tokens: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if let Some(token) = request.metadata().get("authorization") {
            self.tokens.lock().unwrap().push(token.to_str().unwrap().to_owned());
        }
        let rejected_spans = self.answers.lock().unwrap().pop_front().unwrap_or(Ok(0))?;
        let spans = request.into_inner().resource_spans.into_iter();
        let spans = spans.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
        self.spans.lock().unwrap().extend(spans);
        let partial_success = (rejected_spans > 0).then(|| ExportTracePartialSuccess {
            rejected_spans,
            error_message: "too many".to_owned(),
        });
        Ok(Response::new(ExportTraceServiceResponse { partial_success }))
    }
}

impl Collector {
    /// Serves until the runtime ends.
    async fn serve(self, listener: TcpListener) {
        let service = TraceServiceServer::new(self);
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_grpc(stream, service.clone()));
        }
    }

    async fn start(answers: impl IntoIterator<Item = Result<i64, Status>>) -> (Self, Otlp) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let otlp = connect(listener.local_addr().unwrap());
        let collector = Self::default();
        collector.answers.lock().unwrap().extend(answers);
        tokio::spawn(collector.clone().serve(listener));
        (collector, otlp)
    }
}

/// Settings from the text of a configuration file.
fn settings(file: &str) -> Result<Settings, OtlpError> {
    let config: Config = toml::from_str(file).unwrap();
    config.settings(&|_| None).map(Option::unwrap)
}

fn connect(address: std::net::SocketAddr) -> Otlp {
    let file = format!(
        "endpoint = \"http://{address}\"\nheaders = {{ Authorization = \"Bearer t0ken\" }}"
    );
    Otlp::start(settings(&file).unwrap(), &node(), &Readings::default()).unwrap()
}

impl Otlp {
    fn tell(&self, change: &Change) {
        self.publish(change, &[]);
    }

    /// The counters of findings.
    fn findings(&self) -> Count {
        self.counters().of(Kind::Findings)
    }

    fn trouble(&self) -> Option<String> {
        self.pipes.iter().find_map(|pipe| pipe.queue.trouble())
    }
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn a_collector_gets_every_change_and_the_headers() {
    let (collector, otlp) = Collector::start([]).await;
    for change in [opened("a"), updated("a"), resolved("a")] {
        otlp.tell(&change);
    }
    until("three exported", || otlp.findings().exported == 3).await;
    assert_eq!(collector.spans.lock().unwrap().len(), 3);
    assert_eq!(collector.tokens.lock().unwrap()[0], "Bearer t0ken");
    assert_eq!(otlp.trouble(), None);
    let counters = otlp.shutdown().await;
    assert_eq!(counters.total(), Count { exported: 3, ..Count::default() });
    assert_eq!(counters.failures, 0);
}

#[tokio::test]
async fn a_collector_that_comes_later_gets_what_waited() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let otlp = connect(address);
    otlp.tell(&opened("a"));
    until("the first failure", || otlp.counters().failures > 0).await;
    assert!(otlp.trouble().is_some_and(|why| why.contains("refused")), "{:?}", otlp.trouble());
    otlp.tell(&updated("a"));
    assert_eq!(otlp.findings().waiting, 2);

    let collector = Collector::default();
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(collector.clone().serve(listener));
    until("both exported", || otlp.findings().exported == 2).await;
    assert_eq!(otlp.trouble(), None);
    assert_eq!(otlp.shutdown().await.total().dropped, 0);
}

#[tokio::test]
async fn what_may_work_later_is_sent_again_and_what_never_will_is_not() {
    let busy = || Err(Status::unavailable("busy"));
    let (collector, otlp) =
        Collector::start([busy(), Ok(0), Err(Status::invalid_argument("no"))]).await;
    otlp.tell(&opened("a"));
    until("sent again", || otlp.findings().exported == 1).await;
    assert_eq!(otlp.counters().failures, 1);
    otlp.tell(&opened("b"));
    until("dropped", || otlp.findings().dropped == 1).await;
    otlp.tell(&opened("c"));
    until("the next one", || otlp.findings().exported == 2).await;
    assert_eq!(collector.spans.lock().unwrap().len(), 2);
    otlp.shutdown().await;
}

#[tokio::test]
async fn what_a_collector_rejects_is_counted() {
    let (_collector, otlp) = Collector::start([Ok(1)]).await;
    otlp.tell(&opened("a"));
    otlp.tell(&opened("b"));
    let counters = otlp.shutdown().await.total();
    assert_eq!((counters.exported, counters.dropped), (1, 1));
}

#[tokio::test]
async fn the_end_sends_what_waits() {
    let (collector, otlp) = Collector::start([]).await;
    // Nothing was polled yet: all items are still queued.
    (0..100).for_each(|n| otlp.tell(&opened(&n.to_string())));
    assert_eq!(otlp.shutdown().await.total().exported, 100);
    assert_eq!(collector.spans.lock().unwrap().len(), 100);
}

#[tokio::test]
async fn the_end_does_not_wait_for_a_dead_collector() {
    // Accepts connections in its backlog and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let file = format!("endpoint = \"http://{address}\"\ntimeout = \"1h\"");
    let otlp = Otlp::start(settings(&file).unwrap(), &node(), &Readings::default()).unwrap();
    otlp.tell(&opened("a"));
    // Without its own limit the shutdown would wait for the answer, for an hour.
    let end = tokio::time::timeout(PATIENCE, otlp.shutdown()).await;
    let counters = end.expect("an end").total();
    assert_eq!((counters.exported, counters.dropped, counters.waiting), (0, 1, 0));
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_with_a_reason() {
    for (endpoint, reason) in [
        ("127.0.0.1:4317", "no scheme"),
        ("ftp://collector", "unknown scheme \"ftp\""),
        ("http://", "no host"),
        ("http:// /", "invalid uri"),
        ("http://collector:port", "is not a port"),
        ("http://:4317", "no host"),
        ("unix://socket", "no path"),
    ] {
        let error = settings(&format!("endpoint = {endpoint:?}")).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(endpoint), "{error}");
    }
    let headers = |text: &str| {
        let file = format!("endpoint = \"http://127.0.0.1:4317\"\nheaders = {{ {text} }}");
        settings(&file).unwrap_err().to_string()
    };
    let error = headers("authorization = \"s\u{e9}cret\"");
    assert!(error.contains("authorization") && !error.contains("cret"), "{error}");
    assert!(headers("\"not a name\" = \"\"").contains("not a name"));
}

#[tokio::test]
async fn a_burst_is_delivered_or_counted_to_the_span() {
    const BURST: u64 = 20_000;
    let (collector, otlp) = Collector::start([]).await;
    let calls = otlp.calls().unwrap();
    let one = run(7, None);
    for n in 0..BURST {
        calls.publish(&one);
        if n % 100 == 0 {
            // Yields as the daemon does between two turns.
            tokio::task::yield_now().await;
        }
    }
    until("nothing waits", || otlp.counters().of(Kind::Calls).waiting == 0).await;
    let counters = otlp.shutdown().await.of(Kind::Calls);
    assert_eq!((counters.exported + counters.dropped, counters.waiting), (BURST, 0));
    assert_eq!(collector.spans.lock().unwrap().len() as u64, counters.exported);
    assert!(counters.exported > 0);
}

#[tokio::test]
async fn runs_are_wanted_when_they_failed_or_all_are() {
    let failed = run(7, None);
    let mut fine = failed.clone();
    fine.entry.ended.as_mut().unwrap().status = Some(0);
    let wants = |choice: &str| {
        let file = format!("endpoint = \"http://127.0.0.1:1\"\ncni_calls = {choice:?}");
        let otlp = Otlp::start(settings(&file).unwrap(), &node(), &Readings::default()).unwrap();
        otlp.calls().map(|calls| (calls.wants(&failed), calls.wants(&fine)))
    };
    assert_eq!(wants("failed"), Some((true, false)));
    assert_eq!(wants("all"), Some((true, true)));
    assert_eq!(wants("none"), None);
}

#[tokio::test]
async fn it_is_shown_how_it_stands() {
    let (_collector, otlp) = Collector::start([Err(Status::invalid_argument("\u{1b}no"))]).await;
    otlp.tell(&opened("a"));
    until("dropped", || otlp.findings().dropped == 1).await;
    let (status, detail) = otlp.standing();
    assert_eq!(status, SourceStatus::Degraded);
    assert!(
        detail.contains("0 sent, 1 dropped, 0 waiting") && detail.contains("\\x1bno"),
        "{detail}"
    );
    otlp.tell(&opened("b"));
    until("sent", || otlp.findings().exported == 1).await;
    assert_eq!(otlp.standing().0, SourceStatus::Active);
}
