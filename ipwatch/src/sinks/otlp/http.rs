//! OTLP over HTTP/1.1: protobuf in a POST, on one persistent connection.

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;

use super::dial::{Dial, Ways};
use super::route::Route;
use super::transport::{AGENT, LONGEST_ANSWER, Payload, Refusal, Taken};
use super::{OtlpError, chain};
use crate::dial::{self, Driver};

/// A client for one path.
pub(super) struct Http {
    dial: Dial,
    path: String,
    headers: HeaderMap,
    line: Option<Line>,
}

type Line = (SendRequest<Full<Bytes>>, Driver);

impl Http {
    pub(super) fn new(route: &Route, ways: &mut Ways) -> Result<Self, OtlpError> {
        let target = &route.target;
        let host = HeaderValue::try_from(&target.authority).map_err(|error| {
            OtlpError::Endpoint { endpoint: target.url.clone(), why: error.to_string() }
        })?;
        let mut headers = route.headers.clone();
        headers.insert(HOST, host);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let dial = Dial::new(route, ways)?;
        Ok(Self { dial, path: target.path.clone(), headers, line: None })
    }

    /// How it connects.
    pub(super) fn dial(&self) -> &Dial {
        &self.dial
    }

    /// Closes the connection.
    pub(super) fn hang_up(&mut self) {
        self.line = None;
    }

    pub(super) async fn send(&mut self, payload: &Payload) -> Result<Taken, Refusal> {
        let body = Bytes::from(match payload {
            Payload::Traces(traces) => traces.encode_to_vec(),
            Payload::Logs(logs) => logs.encode_to_vec(),
            Payload::Metrics(metrics) => metrics.encode_to_vec(),
        });
        let answer = self.exchange(body).await;
        let (status, body) = match answer {
            Ok(answer) => answer,
            Err(why) => {
                self.hang_up();
                return Err(Refusal::Later(why));
            }
        };
        if status.is_success() {
            return Ok(taken(payload, &body));
        }
        Err(refusal(status))
    }

    async fn exchange(&mut self, body: Bytes) -> Result<(StatusCode, Bytes), String> {
        // Collectors close idle connections. That is not a failure.
        let (mut sender, driver) = match self.line.take() {
            Some(line) if !line.0.is_closed() => line,
            _ => self.connect().await?,
        };
        sender.ready().await.map_err(|error| chain(&error))?;
        let mut request = Request::builder().method(Method::POST).uri(&self.path);
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
        }
        let request = request.body(Full::new(body)).map_err(|error| chain(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| chain(&error))?;
        let status = answer.status();
        // The status alone decides. A connection with an unread rest of a response is not reused.
        let body = match read(answer).await {
            Ok(body) => {
                self.line = Some((sender, driver));
                body
            }
            Err(error) => {
                tracing::debug!("the OTLP collector answered {status}, and then: {error}");
                Bytes::new()
            }
        };
        Ok((status, body))
    }

    async fn connect(&self) -> Result<Line, String> {
        let stream = self.dial.connect().await.map_err(|error| chain(&error))?;
        dial::http1(stream, None).await.map_err(|error| chain(&error))
    }
}

async fn read(answer: Response<Incoming>) -> Result<Bytes, String> {
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
    Ok(body.map_err(|error| chain(&*error))?.to_bytes())
}

/// How many items were rejected. An empty response means none.
fn taken(payload: &Payload, body: &Bytes) -> Taken {
    let partial = match payload {
        Payload::Traces(_) => ExportTraceServiceResponse::decode(body.clone())
            .ok()
            .and_then(|answer| answer.partial_success)
            .map(|partial| Taken::without(partial.rejected_spans, partial.error_message)),
        Payload::Logs(_) => ExportLogsServiceResponse::decode(body.clone())
            .ok()
            .and_then(|answer| answer.partial_success)
            .map(|partial| Taken::without(partial.rejected_log_records, partial.error_message)),
        Payload::Metrics(_) => ExportMetricsServiceResponse::decode(body.clone())
            .ok()
            .and_then(|answer| answer.partial_success)
            .map(|partial| Taken::without(partial.rejected_data_points, partial.error_message)),
    };
    partial.unwrap_or_default()
}

/// Classifies a status as the OTLP specification does (§ "Failures" of OTLP/HTTP).
fn refusal(status: StatusCode) -> Refusal {
    let why = format!("HTTP {status}");
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Refusal::Later(why),
        _ => Refusal::Never(why),
    }
}
