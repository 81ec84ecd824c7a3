//! OTLP over HTTP: a small server that reads requests and gives the listed answers.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message as _;
use tokio::net::TcpListener;

use super::{Otlp, settings, until};
use crate::reading::Readings;
use crate::sinks::metrics;
use crate::sinks::tests::{node, opened};

/// One request as received.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) path: String,
    kind: String,
    token: String,
    pub(super) body: Bytes,
}

/// A status and a body.
pub(super) type Answer = (u16, Vec<u8>);

/// Gives the listed answers, then 200 without a body.
#[derive(Clone, Default)]
pub(super) struct Server {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(super) async fn start(answers: impl IntoIterator<Item = Answer>) -> (Self, SocketAddr) {
        let server = Self::default();
        server.answers.lock().unwrap().extend(answers);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (own, address) = (server.clone(), listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let own = own.clone();
                let service = hyper::service::service_fn(move |request| {
                    let own = own.clone();
                    async move { own.answer(request).await }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        (server, address)
    }

    async fn answer(&self, request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
        let header = |name| {
            let value = request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            value.unwrap_or_default()
        };
        let (kind, token) = (header("content-type"), header("authorization"));
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await?.to_bytes();
        self.seen.lock().unwrap().push(Seen { path, kind, token, body });
        let (status, body) = self.answers.lock().unwrap().pop_front().unwrap_or((200, Vec::new()));
        let answer = Response::builder().status(status).body(Full::from(body));
        Ok(answer.unwrap())
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn start(address: SocketAddr, signals: &str) -> Otlp {
    let file = format!(
        "endpoint = \"http://{address}\"\nprotocol = \"http/protobuf\"\nsignals = [{signals}]\n\
         headers = {{ authorization = \"Bearer t0ken\" }}"
    );
    Otlp::start(settings(&file).unwrap(), &node(), &Readings::default()).unwrap()
}

#[tokio::test]
async fn every_signal_goes_to_its_own_path() {
    let (server, address) = Server::start([]).await;
    let otlp = start(address, r#""traces", "logs", "metrics""#);
    otlp.tell(&opened("a"));
    otlp.measure(metrics::tests::snapshot());
    until("all three", || otlp.counters().total().exported == 3).await;
    let seen = server.seen();
    let body = |path: &str| seen.iter().find(|one| one.path == path).unwrap().body.clone();
    let traces = ExportTraceServiceRequest::decode(body("/v1/traces")).unwrap();
    let logs = ExportLogsServiceRequest::decode(body("/v1/logs")).unwrap();
    let metrics = ExportMetricsServiceRequest::decode(body("/v1/metrics")).unwrap();
    let span = &traces.resource_spans[0].scope_spans[0].spans[0];
    let record = &logs.resource_logs[0].scope_logs[0].log_records[0];
    assert_eq!((&record.trace_id, &record.span_id), (&span.trace_id, &span.span_id));
    assert_eq!(metrics.resource_metrics[0].scope_metrics[0].metrics[0].name, "ipwatch.findings");
    for one in &seen {
        assert_eq!((&*one.kind, &*one.token), ("application/x-protobuf", "Bearer t0ken"));
    }
    assert_eq!(otlp.shutdown().await.total().dropped, 0);
}

#[tokio::test]
async fn what_may_work_later_is_sent_again_and_what_never_will_is_not() {
    let (server, address) =
        Server::start([(503, Vec::new()), (200, Vec::new()), (400, vec![1])]).await;
    let otlp = start(address, r#""traces""#);
    otlp.tell(&opened("a"));
    until("sent again", || otlp.findings().exported == 1).await;
    assert_eq!(otlp.counters().failures, 1);
    otlp.tell(&opened("b"));
    until("dropped", || otlp.findings().dropped == 1).await;
    assert!(otlp.trouble().is_some_and(|why| why.contains("400")));
    otlp.tell(&opened("c"));
    until("the next one", || otlp.findings().exported == 2).await;
    assert_eq!(server.seen().len(), 4);
}

#[tokio::test]
async fn what_a_collector_rejects_is_counted() {
    let partial_success =
        Some(ExportTracePartialSuccess { rejected_spans: 1, error_message: "too many".to_owned() });
    let answer = ExportTraceServiceResponse { partial_success }.encode_to_vec();
    let (_server, address) = Server::start([(200, answer)]).await;
    let otlp = start(address, r#""traces""#);
    otlp.tell(&opened("a"));
    otlp.tell(&opened("b"));
    let counters = otlp.shutdown().await.total();
    assert_eq!((counters.exported, counters.dropped), (1, 1));
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let (_server, address) = Server::start([(200, vec![0; 1 << 20])]).await;
    let otlp = start(address, r#""traces""#);
    otlp.tell(&opened("a"));
    // The status means that it was accepted: it is not sent again.
    until("taken", || otlp.findings().exported == 1).await;
    assert_eq!(otlp.counters().failures, 0);
    otlp.tell(&opened("b"));
    until("over another connection", || otlp.findings().exported == 2).await;
}
