//! Where and how a signal is sent: parsed and checked before anything is started.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use super::OtlpError;
use super::config::CallChoice;

/// Settings of the sink.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(super) routes: Vec<Route>,
    /// Which runs of CNI plugins are exported as spans.
    pub calls: CallChoice,
    /// Whether every tenure of an IP is exported as a span.
    pub tenures: bool,
    /// `OTEL_RESOURCE_ATTRIBUTES`.
    pub resource: Vec<(String, String)>,
}

/// A kind of telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    /// Spans.
    Traces,
    /// Log records.
    Logs,
    Metrics,
}

impl Signal {
    pub(super) const ALL: [Signal; 3] = [Signal::Traces, Signal::Logs, Signal::Metrics];

    /// The name in `OTEL_*` variables.
    pub(super) fn variable(self) -> &'static str {
        match self {
            Signal::Traces => "TRACES",
            Signal::Logs => "LOGS",
            Signal::Metrics => "METRICS",
        }
    }

    /// The name in messages.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Signal::Traces => "traces",
            Signal::Logs => "logs",
            Signal::Metrics => "metrics",
        }
    }

    /// The path under a base URL.
    pub(super) fn path(self) -> &'static str {
        match self {
            Signal::Traces => "v1/traces",
            Signal::Logs => "v1/logs",
            Signal::Metrics => "v1/metrics",
        }
    }
}

/// The OTLP transport.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// OTLP over gRPC.
    #[default]
    #[serde(rename = "grpc")]
    Grpc,
    /// Protobuf over HTTP.
    #[serde(rename = "http/protobuf")]
    Http,
}

impl Protocol {
    pub(super) fn parse(name: &str, value: &str) -> Result<Self, OtlpError> {
        match value {
            "grpc" => Ok(Self::Grpc),
            "http/protobuf" => Ok(Self::Http),
            _ => {
                let why = format!("{name} is {value:?}: write it as grpc or http/protobuf");
                Err(OtlpError::Setting(why))
            }
        }
    }
}

/// Endpoint and options of one signal.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) signal: Signal,
    pub(super) target: Target,
    pub(super) protocol: Protocol,
    /// Timeout of one request.
    pub(super) timeout: Duration,
    /// Sent with each request.
    pub(super) headers: HeaderMap,
    /// For https.
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Header values may be secrets.
        let names: Vec<&str> = self.headers.keys().map(HeaderName::as_str).collect();
        f.debug_struct("Route")
            .field("signal", &self.signal)
            .field("url", &self.target.url)
            .field("protocol", &self.protocol)
            .field("timeout", &self.timeout)
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

/// The address to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// A parsed endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// As written, for messages.
    pub(super) url: String,
    pub(super) endpoint: Endpoint,
    pub(super) secure: bool,
    /// `host:port`, for the request's authority.
    pub(super) authority: String,
    /// Path of a request over HTTP.
    pub(super) path: String,
}

impl Target {
    /// Parses an endpoint. `path` is appended to the URL's own path; `None` if the URL is complete.
    pub(super) fn parse(endpoint: &str, path: Option<&str>) -> Result<Self, OtlpError> {
        let wrong = |why: String| OtlpError::Endpoint { endpoint: shown(endpoint), why };
        let (scheme, rest) =
            endpoint.split_once("://").ok_or_else(|| wrong("it has no scheme".to_owned()))?;
        let secure = match scheme {
            "http" => false,
            "https" => true,
            "unix" => return Self::unix(rest, path).ok_or_else(|| wrong("no path".to_owned())),
            _ => return Err(wrong(format!("unknown scheme {scheme:?}"))),
        };
        if rest.is_empty() || rest.starts_with('/') {
            return Err(wrong("it names no host".to_owned()));
        }
        // User and query would be shown wherever the endpoint is.
        if let Some(part) =
            [('@', "user"), ('?', "query")].iter().find(|(sign, _)| rest.contains(*sign))
        {
            let why = format!("it has a {}: put secrets into the headers", part.1);
            return Err(wrong(why));
        }
        let uri: hyper::Uri = endpoint.parse().map_err(|error| wrong(format!("{error}")))?;
        let authority = uri.authority().ok_or_else(|| wrong("it names no host".to_owned()))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = match (authority.as_str().rsplit_once(':'), authority.port_u16()) {
            (_, Some(port)) => port,
            // A port that is not a number, or too large.
            (Some((_, text)), None) if !text.ends_with(']') => {
                return Err(wrong(format!("{text:?} is not a port")));
            }
            _ => {
                if secure {
                    443
                } else {
                    80
                }
            }
        };
        if host.is_empty() || port == 0 {
            return Err(wrong("it names no host, or port 0".to_owned()));
        }
        let own = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            url: endpoint.to_owned(),
            endpoint: Endpoint::Tcp(host.to_owned(), port),
            secure,
            authority: authority.to_string(),
            path: path.map_or_else(
                || own.to_owned(),
                |path| format!("{}/{path}", own.trim_end_matches('/')),
            ),
        })
    }

    fn unix(socket: &str, path: Option<&str>) -> Option<Self> {
        socket.starts_with('/').then(|| Self {
            url: format!("unix://{socket}"),
            endpoint: Endpoint::Unix(socket.into()),
            secure: false,
            authority: "localhost".to_owned(),
            path: format!("/{}", path.unwrap_or_default()),
        })
    }
}

/// An endpoint for messages: without user, password and query.
fn shown(endpoint: &str) -> String {
    let (plain, query) =
        endpoint.split_once('?').map_or((endpoint, ""), |(plain, _)| (plain, "?…"));
    match (endpoint.split_once("://"), plain.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) if !scheme.contains('@') => {
            format!("{scheme}://…@{rest}{query}")
        }
        (_, Some((_, rest))) => format!("…@{rest}{query}"),
        _ => format!("{plain}{query}"),
    }
}

/// Validates headers for a request.
pub(super) fn headers(headers: &[(String, String)]) -> Result<HeaderMap, OtlpError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let wrong = |why: &str| OtlpError::Header { name: name.clone(), why: why.to_owned() };
        let key: HeaderName = name.parse().map_err(|_| wrong("not a valid name"))?;
        let value = Some(value).filter(|value| value.is_ascii());
        let mut value: HeaderValue = value
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| wrong("its value is not printable ASCII"))?;
        value.set_sensitive(true);
        map.insert(key, value);
    }
    Ok(map)
}
