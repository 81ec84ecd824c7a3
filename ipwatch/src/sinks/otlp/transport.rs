//! One request to the collector and its response, over gRPC or HTTP. A request takes no longer than the timeout of the
//! route, and the size of a response is limited.

use std::time::Duration;

use hyper::header::HeaderMap;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::dial::{Dial, Ways};
use super::http::Http;
use super::route::{Protocol, Route};
use super::{OtlpError, chain};
use crate::sources::socket::Paused;

/// Maximum size of a response in bytes.
pub(super) const LONGEST_ANSWER: usize = 64 * 1024;
/// The `User-Agent`.
pub(super) const AGENT: &str = concat!("ipwatch/", env!("CARGO_PKG_VERSION"));

/// The message of one request.
#[derive(Debug, Clone)]
pub(super) enum Payload {
    Traces(ExportTraceServiceRequest),
    Logs(ExportLogsServiceRequest),
    Metrics(ExportMetricsServiceRequest),
}

/// The collector accepted the request, but rejected this many of its items.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) rejected: u64,
    pub(super) why: String,
}

impl Taken {
    pub(super) fn without(rejected: i64, why: String) -> Self {
        // A response that only warns rejects 0 items.
        Self { rejected: u64::try_from(rejected).unwrap_or(0), why: cut(&why).to_owned() }
    }
}

/// Why the collector did not accept a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is unreachable or overloaded. The request may be retried.
    Later(String),
    /// It rejected the request. A retry would be rejected as well.
    Never(String),
}

/// A client of the collector. It connects when there is something to send.
pub(super) struct Transport {
    route: Route,
    way: Client,
}

enum Client {
    Grpc(Box<Grpc>),
    Http(Box<Http>),
}

impl Transport {
    /// Must be called within a tokio runtime.
    pub(super) fn new(route: Route, ways: &mut Ways) -> Result<Self, OtlpError> {
        let way = match route.protocol {
            Protocol::Grpc => Client::Grpc(Box::new(Grpc::new(&route, ways)?)),
            Protocol::Http => Client::Http(Box::new(Http::new(&route, ways)?)),
        };
        Ok(Self { route, way })
    }

    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    /// Waits before the next attempt.
    pub(super) async fn pause(&self, pause: Duration) -> Paused {
        let dial = match &self.way {
            Client::Grpc(grpc) => &grpc.dial,
            Client::Http(http) => http.dial(),
        };
        dial.pause(pause).await
    }

    /// Makes one attempt.
    pub(super) async fn send(&mut self, payload: &Payload) -> Result<Taken, Refusal> {
        let answer = async {
            match &mut self.way {
                Client::Grpc(grpc) => grpc.send(payload).await,
                Client::Http(http) => http.send(payload).await,
            }
        };
        match tokio::time::timeout(self.route.timeout, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                // Abandon the connection to a collector that hangs, with whatever is still queued on it.
                match &mut self.way {
                    Client::Grpc(grpc) => grpc.channel = grpc.fresh(),
                    Client::Http(http) => http.hang_up(),
                }
                Err(Refusal::Later(format!("no answer within {:?}", self.route.timeout)))
            }
        }
    }
}

struct Grpc {
    endpoint: Endpoint,
    dial: Dial,
    headers: HeaderMap,
    channel: Channel,
}

impl Grpc {
    fn new(route: &Route, ways: &mut Ways) -> Result<Self, OtlpError> {
        let target = &route.target;
        let wrong = |why: String| OtlpError::Endpoint { endpoint: target.url.clone(), why };
        let scheme = if target.secure { "https" } else { "http" };
        let origin = format!("{scheme}://{}", target.authority);
        let origin = origin.parse().map_err(|error| wrong(format!("{error}")))?;
        // `Dial` makes the connection, TLS included. To tonic it is plain text.
        let endpoint = Endpoint::from_shared(format!("http://{}", target.authority))
            .and_then(|endpoint| endpoint.user_agent(AGENT))
            .map_err(|error| wrong(chain(&error)))?
            .origin(origin);
        let (dial, headers) = (Dial::new(route, ways)?, route.headers.clone());
        let channel = connected(&endpoint, &dial);
        Ok(Self { endpoint, dial, headers, channel })
    }

    fn fresh(&self) -> Channel {
        connected(&self.endpoint, &self.dial)
    }

    async fn send(&mut self, payload: &Payload) -> Result<Taken, Refusal> {
        // The three generated clients differ only in their types.
        macro_rules! export {
            ($client:ident, $message:expr, $rejected:ident) => {{
                let client = $client::new(self.channel.clone());
                let mut client = client.max_decoding_message_size(LONGEST_ANSWER);
                let answer = client.export(self.request($message.clone())).await;
                let partial = answer.map(|answer| answer.into_inner().partial_success);
                partial.map(|some| some.map(|one| Taken::without(one.$rejected, one.error_message)))
            }};
        }
        let taken = match payload {
            Payload::Traces(traces) => export!(TraceServiceClient, traces, rejected_spans),
            Payload::Logs(logs) => export!(LogsServiceClient, logs, rejected_log_records),
            Payload::Metrics(points) => export!(MetricsServiceClient, points, rejected_data_points),
        };
        taken.map(Option::unwrap_or_default).map_err(|status| refusal(&status))
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        request
    }
}

fn connected(endpoint: &Endpoint, dial: &Dial) -> Channel {
    let dial = dial.clone();
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_: hyper::Uri| {
        let dial = dial.clone();
        async move { dial.connect().await.map(TokioIo::new) }
    }))
}

/// Classifies a status as the OTLP specification does (§ "Failures"), except that codes which a broken connection or a
/// proxy can cause are retried. A status from the collector has no source; one from a broken connection has.
fn refusal(status: &tonic::Status) -> Refusal {
    let source = std::error::Error::source(status);
    let why = match source {
        Some(source) => format!("{:?}: {}", status.code(), chain(source)),
        None => format!("{:?}: {}", status.code(), cut(status.message())),
    };
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::Unauthenticated => Refusal::Never(why),
        // Includes a response over the size limit (tonic's `Streaming`): a retry would get the same.
        Code::Internal | Code::OutOfRange if source.is_none() => Refusal::Never(why),
        Code::ResourceExhausted if !asks_for_another(status.details()) => Refusal::Never(why),
        _ => Refusal::Later(why),
    }
}

/// Whether a status asks for a retry: its details contain a `RetryInfo`, recognised by its type name.
fn asks_for_another(details: &[u8]) -> bool {
    const RETRY: &[u8] = b"google.rpc.RetryInfo";
    details.windows(RETRY.len()).any(|name| name == RETRY)
}

/// Truncates a message of the collector.
pub(super) fn cut(text: &str) -> &str {
    const MOST: usize = 256;
    &text[..text.floor_char_boundary(MOST)]
}
