//! Turns a request into a response.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::header::{ACCEPT, ALLOW, HeaderMap, HeaderValue, VARY};
use hyper::{Method, Request, StatusCode};
use ipwatch_ipam::config::STATE_DIR;
use ipwatch_ipam::tally;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Question;
use super::families::Scrape;
use super::process::Process;
use super::text::{self, Format};
use crate::http::{Answer, response, whole};

const TEXT: &str = "text/plain; charset=utf-8";
/// Content types of the formats.
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What every connection needs to answer.
#[derive(Debug, Clone)]
pub(super) struct Answerer {
    pub(super) questions: mpsc::Sender<Question>,
    /// Clients that found no free connection.
    pub(super) refused: Arc<AtomicU64>,
    /// Timeout of the core's answer.
    pub(super) patience: Duration,
}

impl Answerer {
    pub(super) async fn answer<B>(&self, request: &Request<B>) -> Answer {
        if request.method() != Method::GET {
            let mut answer = line(StatusCode::METHOD_NOT_ALLOWED, "read-only: use GET");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return answer;
        }
        match request.uri().path() {
            "/metrics" => self.metrics(format(request.headers())).await,
            "/healthz" => match self.ask(Question::Ready).await {
                Some(_) => line(StatusCode::OK, "ok"),
                None => silent(),
            },
            "/readyz" => match self.ask(Question::Ready).await {
                Some(true) => line(StatusCode::OK, "ready"),
                Some(false) => {
                    let wait = "not ready: the first snapshot is not complete yet";
                    line(StatusCode::SERVICE_UNAVAILABLE, wait)
                }
                None => silent(),
            },
            _ => line(StatusCode::NOT_FOUND, "unknown path: use /metrics, /healthz or /readyz"),
        }
    }

    /// Counts a client that is refused.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a client that is refused, and returns its answer.
    pub(super) fn full(&self) -> Answer {
        self.refuse();
        line(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many clients are connected: try again in a moment",
        )
    }

    /// The metrics page. Written on a blocking thread: a thousand addresses take milliseconds, during which events
    /// would queue.
    async fn metrics(&self, format: Format) -> Answer {
        let Some(reading) = self.ask(Question::Read).await else { return silent() };
        let refused = self.refused.load(Ordering::Relaxed);
        let written = tokio::task::spawn_blocking(move || {
            let plugin = tally::all(Path::new(STATE_DIR)).unwrap_or_default();
            text::write(Scrape { reading, process: Process::own(), refused, plugin }, format)
        });
        // If the client gives up before the job has begun, the job is cancelled.
        let late = written.abort_handle();
        let page = match timeout(self.patience, written).await {
            Ok(Ok(Ok(page))) => page,
            Ok(Ok(Err(error))) => return failed(&error),
            Ok(Err(error)) => return failed(&error),
            Err(error) => {
                late.abort();
                return failed(&error);
            }
        };
        let kind = match format {
            Format::OpenMetrics => OPEN_METRICS,
            Format::Plain => PLAIN,
        };
        let mut answer = response(StatusCode::OK, kind, whole(page));
        answer.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
        answer
    }

    /// Sends a question to the core and waits for its answer.
    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.questions.send(question(reply)).await.ok()?;
            answer.await.ok()
        };
        timeout(self.patience, asked).await.ok().flatten()
    }
}

/// OpenMetrics if the client accepts it with at least the weight of plain text.
fn format(headers: &HeaderMap) -> Format {
    let (mut open, mut plain) = (0u16, 0u16);
    for accepted in headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()) {
        for kind in accepted.split(',') {
            let mut parts = kind.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let mut weight = 1000;
            let mut version = None;
            for part in parts {
                if let Some(text) = part.strip_prefix("q=") {
                    weight = quality(text);
                } else if let Some(text) = part.strip_prefix("version=") {
                    version = Some(text.trim_matches('"'));
                }
            }
            match name.as_str() {
                // 0.0.1 was the name of 1.0.0 before its release.
                "application/openmetrics-text"
                    if version.is_none_or(|version| matches!(version, "1.0.0" | "0.0.1")) =>
                {
                    open = open.max(weight);
                }
                "text/plain" | "text/*" => plain = plain.max(weight),
                _ => {}
            }
        }
    }
    if open > 0 && open >= plain { Format::OpenMetrics } else { Format::Plain }
}

/// Parses a weight such as `0.75`, in thousandths; 0 if it is not a number.
fn quality(text: &str) -> u16 {
    let weight: f32 = text.parse().unwrap_or_default();
    // The value is clamped, and the cast turns NaN into 0.
    (weight.clamp(0.0, 1.0) * 1000.0) as u16
}

fn line(status: StatusCode, text: &'static str) -> Answer {
    response(status, TEXT, whole(format!("{text}\n")))
}

/// The answer if the core did not answer in time.
fn silent() -> Answer {
    let text = "the daemon does not answer: it is stopping or hangs; see its log";
    line(StatusCode::SERVICE_UNAVAILABLE, text)
}

fn failed(error: &dyn std::fmt::Display) -> Answer {
    tracing::warn!("the metrics cannot be written: {error}");
    line(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written: see the daemon's log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_what_the_scraper_takes() {
        let format = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
            format(&headers)
        };
        // Prometheus 2.42, 3.x with and without protobuf, curl, a browser.
        let open = [
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.5,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.2",
            "Application/OpenMetrics-Text",
        ];
        for accept in open {
            assert_eq!(format(accept), Format::OpenMetrics, "{accept}");
        }
        let plain = [
            "*/*",
            "text/html,*/*;q=0.8",
            "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;q=0.5",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;version=9.0.0",
            "application/openmetrics-text;q=nonsense",
            "application/openmetrics-text;q=NaN",
            "",
        ];
        for accept in plain {
            assert_eq!(format(accept), Format::Plain, "{accept}");
        }
        assert_eq!(super::format(&HeaderMap::new()), Format::Plain);
    }
}
