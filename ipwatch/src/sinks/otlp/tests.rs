//! Against a collector in this process, on a runtime like the daemon's: one thread.

use std::collections::VecDeque;
use std::sync::Mutex;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tonic::{Response, Status};

use super::*;
use crate::sinks::tests::{opened, resolved, updated};

/// Bounds a wait; no test depends on how long it really takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A collector that answers as it is told, then with success.
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
        let incoming = futures_util::stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(self))
            .serve_with_incoming(incoming)
            .await
            .unwrap();
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

fn settings(endpoint: &str) -> Settings {
    Settings {
        endpoint: endpoint.to_owned(),
        timeout: Duration::from_secs(5),
        headers: vec![("Authorization".to_owned(), "Bearer t0ken".to_owned())],
    }
}

fn node() -> Node {
    Node { name: "node-17".to_owned(), version: "0.0.0".to_owned() }
}

fn connect(address: std::net::SocketAddr) -> Otlp {
    Otlp::start(settings(&format!("http://{address}")), &node()).unwrap()
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
        otlp.publish(&change);
    }
    until("three exported", || otlp.counters().exported == 3).await;
    assert_eq!(collector.spans.lock().unwrap().len(), 3);
    assert_eq!(collector.tokens.lock().unwrap()[0], "Bearer t0ken");
    assert_eq!(otlp.trouble(), None);
    let counters = otlp.shutdown().await;
    assert_eq!(counters, Counters { exported: 3, ..Counters::default() });
}

#[tokio::test]
async fn a_collector_that_comes_later_gets_what_waited() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let otlp = connect(address);
    otlp.publish(&opened("a"));
    until("the first failure", || otlp.counters().failures > 0).await;
    assert!(otlp.trouble().is_some_and(|why| why.contains("refused")), "{:?}", otlp.trouble());
    otlp.publish(&updated("a"));
    assert_eq!(otlp.counters().waiting, 2);

    let collector = Collector::default();
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(collector.clone().serve(listener));
    until("both exported", || otlp.counters().exported == 2).await;
    assert_eq!(otlp.trouble(), None);
    assert_eq!(otlp.shutdown().await.dropped, 0);
}

#[tokio::test]
async fn what_may_work_later_is_sent_again_and_what_never_will_is_not() {
    let busy = || Err(Status::unavailable("busy"));
    let (collector, otlp) =
        Collector::start([busy(), Ok(0), Err(Status::invalid_argument("no"))]).await;
    otlp.publish(&opened("a"));
    until("sent again", || otlp.counters().exported == 1).await;
    assert_eq!(otlp.counters().failures, 1);
    otlp.publish(&opened("b"));
    until("dropped", || otlp.counters().dropped == 1).await;
    otlp.publish(&opened("c"));
    until("the next one", || otlp.counters().exported == 2).await;
    assert_eq!(collector.spans.lock().unwrap().len(), 2);
    otlp.shutdown().await;
}

#[tokio::test]
async fn what_a_collector_rejects_is_counted() {
    let (_collector, otlp) = Collector::start([Ok(1)]).await;
    otlp.publish(&opened("a"));
    otlp.publish(&opened("b"));
    let counters = otlp.shutdown().await;
    assert_eq!((counters.exported, counters.dropped), (1, 1));
}

#[tokio::test]
async fn the_end_sends_what_waits() {
    let (collector, otlp) = Collector::start([]).await;
    // Nothing was polled yet: all of it is still in the queue.
    (0..100).for_each(|n| otlp.publish(&opened(&n.to_string())));
    assert_eq!(otlp.shutdown().await.exported, 100);
    assert_eq!(collector.spans.lock().unwrap().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn the_end_does_not_wait_for_a_dead_collector() {
    // It takes connections and never answers: the backlog of a listener nobody accepts from.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let otlp = connect(listener.local_addr().unwrap());
    otlp.publish(&opened("a"));
    let begun = tokio::time::Instant::now();
    let counters = otlp.shutdown().await;
    // Time is the runtime's own here: it jumps to the next timer, whatever the machine does.
    assert!(begun.elapsed() <= SHUTDOWN + Duration::from_millis(10), "{:?}", begun.elapsed());
    assert_eq!((counters.exported, counters.dropped, counters.waiting), (0, 1, 0));
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_with_a_reason() {
    for (endpoint, reason) in [
        ("127.0.0.1:4317", "no scheme"),
        ("https://collector:4317", "TLS is not built in"),
        ("ftp://collector", "unknown scheme \"ftp\""),
        ("http://", "no host"),
        ("http:// /", "invalid uri"),
    ] {
        let error = Otlp::start(settings(endpoint), &node()).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(endpoint), "{error}");
    }
    let mut bad = settings("http://127.0.0.1:4317");
    bad.headers = vec![("authorization".to_owned(), "s\u{e9}cret".to_owned())];
    let error = Otlp::start(bad.clone(), &node()).unwrap_err().to_string();
    assert!(error.contains("authorization") && !error.contains("cret"), "{error}");
    assert!(!format!("{bad:?}").contains("cret"), "no value is ever shown");
    bad.headers = vec![("not a name".to_owned(), String::new())];
    assert!(Otlp::start(bad, &node()).is_err());
}
