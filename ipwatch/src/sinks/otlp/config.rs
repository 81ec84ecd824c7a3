//! `[otlp]` of `ipwatch.toml`, merged with the `OTEL_*` environment variables.
//!
//! Precedence for each key: the file, the variable of the signal (`OTEL_EXPORTER_OTLP_TRACES_TIMEOUT`), the variable
//! for all signals (`OTEL_EXPORTER_OTLP_TIMEOUT`), the default. `OTEL_SDK_DISABLED=true` disables the export even if
//! the file configures it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::OtlpError;
use super::route::{self, Protocol, Route, Settings, Signal};
use super::tls::{self, Files};

/// Default timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum of the timeout.
const LEAST: Duration = Duration::from_millis(100);

/// Export to an OpenTelemetry collector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Otlp {
    /// `http://host:4317`, `https://host:4317` or `unix:///path`, for every signal. Absent:
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`, and without that nothing is exported.
    pub endpoint: Option<String>,
    /// `"grpc"` (the default) or `"http/protobuf"`.
    pub protocol: Option<Protocol>,
    /// Timeout of one request.
    #[serde(deserialize_with = "duration", serialize_with = "span")]
    pub timeout: Option<SignedDuration>,
    /// Sent with each request, for example a token.
    pub headers: Headers,
    /// PEM file with the trusted certificate authorities. Absent: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the client certificate, for a collector that requires one.
    pub client_cert_file: Option<PathBuf>,
    /// PEM file with the client certificate's key.
    pub client_key_file: Option<PathBuf>,
    /// What is exported: `"traces"`, `"logs"`, `"metrics"`.
    pub signals: Vec<Signal>,
    /// Which runs of CNI plugins are exported as spans: `"failed"`, `"all"` or `"none"`. Runs that a finding links to
    /// are exported as well, unless this is `"none"`.
    pub cni_calls: CallChoice,
    /// Exports a span for every tenure of an IP, not only for those that a finding links to.
    pub tenures: bool,
}

/// Which runs of CNI plugins are exported as spans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallChoice {
    /// Failed runs, and runs that a finding links to.
    #[default]
    Failed,
    All,
    None,
}

/// Headers by name. Their values may be secrets and are never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Headers(pub BTreeMap<String, String>);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, "(hidden)"))).finish()
    }
}

impl Serialize for Headers {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.keys().map(|name| (name, "(hidden)")))
    }
}

impl Default for Otlp {
    fn default() -> Self {
        Self {
            endpoint: None,
            protocol: None,
            timeout: None,
            headers: Headers::default(),
            ca_file: None,
            client_cert_file: None,
            client_key_file: None,
            signals: vec![Signal::Traces],
            cni_calls: CallChoice::default(),
            tenures: false,
        }
    }
}

/// Looks up an environment variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of this process. An empty variable counts as unset.
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

impl Otlp {
    /// Checks what can be checked without reading other files.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn validate(&self) -> Result<(), OtlpError> {
        if let Some(endpoint) = &self.endpoint {
            route::Target::parse(endpoint, None)?;
        }
        let given = self.timeout.map(|timeout| Duration::try_from(timeout).unwrap_or_default());
        if given.is_some_and(|timeout| timeout < LEAST) {
            return Err(OtlpError::Setting("otlp.timeout must be at least 100ms".to_owned()));
        }
        if self.client_cert_file.is_some() != self.client_key_file.is_some() {
            let why = "otlp.client_cert_file and otlp.client_key_file go together: name both";
            return Err(OtlpError::Setting(why.to_owned()));
        }
        let headers: Vec<_> = self.headers.0.clone().into_iter().collect();
        route::headers(&headers).map(drop)
    }

    /// The merged settings; `None` if nothing is to be exported. Reads the certificates.
    ///
    /// # Errors
    /// The settings are invalid. A collector that is unreachable is not an error: it may come up later.
    pub fn settings(&self, environment: Environment<'_>) -> Result<Option<Settings>, OtlpError> {
        self.validate()?;
        let disabled = environment("OTEL_SDK_DISABLED");
        if disabled.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let mut routes = Vec::new();
        for signal in Signal::ALL.into_iter().filter(|signal| self.signals.contains(signal)) {
            routes.extend(self.route(signal, environment)?);
        }
        if routes.is_empty() {
            return Ok(None);
        }
        Ok(Some(Settings {
            routes,
            calls: self.cni_calls,
            tenures: self.tenures,
            resource: resource(environment)?,
        }))
    }

    fn route(
        &self,
        signal: Signal,
        environment: Environment<'_>,
    ) -> Result<Option<Route>, OtlpError> {
        let own = |key: &str| format!("OTEL_EXPORTER_OTLP_{}_{key}", signal.variable());
        let all = |key: &str| format!("OTEL_EXPORTER_OTLP_{key}");
        let said = |key: &str| {
            let of = |name: String| environment(&name).map(|value| (name, value));
            of(own(key)).or_else(|| of(all(key)))
        };
        let protocol = match (self.protocol, said("PROTOCOL")) {
            (Some(protocol), _) => protocol,
            (None, Some((name, value))) => Protocol::parse(&name, &value)?,
            (None, None) => Protocol::default(),
        };
        // The variable of the signal has the whole URL; the other sources have a base URL.
        let (endpoint, path) = match (&self.endpoint, environment(&own("ENDPOINT"))) {
            (Some(endpoint), _) => (endpoint.clone(), Some(signal.path())),
            (None, Some(endpoint)) => (endpoint, None),
            (None, None) => match environment(&all("ENDPOINT")) {
                Some(endpoint) => (endpoint, Some(signal.path())),
                None => return Ok(None),
            },
        };
        let target = route::Target::parse(&endpoint, path)?;
        let timeout = match (self.timeout, said("TIMEOUT")) {
            (Some(timeout), _) => Duration::try_from(timeout).unwrap_or(TIMEOUT),
            (None, Some((name, value))) => milliseconds(&name, &value)?,
            (None, None) => TIMEOUT,
        };
        let headers = match (self.headers.0.is_empty(), said("HEADERS")) {
            (true, Some((name, value))) => pairs(&name, &value)?,
            _ => self.headers.0.clone().into_iter().collect(),
        };
        let file = |own: &Option<PathBuf>, key: &str| {
            own.clone().or_else(|| said(key).map(|(_, path)| PathBuf::from(path)))
        };
        let tls = target.secure.then(|| {
            let files = Files {
                ca: file(&self.ca_file, "CERTIFICATE"),
                certificate: file(&self.client_cert_file, "CLIENT_CERTIFICATE"),
                key: file(&self.client_key_file, "CLIENT_KEY"),
            };
            tls::client(&files, protocol)
        });
        let headers = route::headers(&headers)?;
        Ok(Some(Route { signal, target, protocol, timeout, headers, tls: tls.transpose()? }))
    }

    /// The first file whose path is not absolute, which it must be.
    #[must_use]
    pub fn wrong_path(&self) -> Option<&Path> {
        let files = [&self.ca_file, &self.client_cert_file, &self.client_key_file];
        files.into_iter().flatten().map(PathBuf::as_path).find(|path| !path.is_absolute())
    }
}

/// The attributes of `OTEL_RESOURCE_ATTRIBUTES`; `OTEL_SERVICE_NAME` overrides `service.name`.
fn resource(environment: Environment<'_>) -> Result<Vec<(String, String)>, OtlpError> {
    const NAME: &str = "OTEL_RESOURCE_ATTRIBUTES";
    let mut all = environment(NAME).map_or(Ok(Vec::new()), |value| pairs(NAME, &value))?;
    if let Some(name) = environment("OTEL_SERVICE_NAME") {
        all.retain(|(key, _)| key != "service.name");
        all.push(("service.name".to_owned(), name));
    }
    Ok(all)
}

fn milliseconds(name: &str, value: &str) -> Result<Duration, OtlpError> {
    let timeout = value.parse().ok().map(Duration::from_millis).filter(|time| *time >= LEAST);
    timeout.ok_or_else(|| {
        let why = format!("{name} is {value:?}: write it in milliseconds, 100 or more");
        OtlpError::Setting(why)
    })
}

/// Parses `key=value,key=value` with percent-encoded values (W3C baggage, as in OpenTelemetry).
fn pairs(name: &str, text: &str) -> Result<Vec<(String, String)>, OtlpError> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        Some((key.trim().to_owned(), decoded(value.trim())?)).filter(|(key, _)| !key.is_empty())
    };
    let all = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    // The text may contain a secret: it is not shown.
    let wrong =
        || OtlpError::Setting(format!("{name} is not a list of key=value separated by commas"));
    all.map(|part| pair(part).ok_or_else(wrong)).collect()
}

/// Percent-decodes (`%41` is `A`). `None` if an escape is incomplete or the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |byte: u8| char::from(byte).to_digit(16);
        out.push(match byte {
            b'%' => u8::try_from(hex(bytes.next()?)? * 16 + hex(bytes.next()?)?).ok()?,
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

/// Parses a duration such as `500ms` or `30s`.
fn duration<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SignedDuration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(|_| {
        let help = "is not a duration: write it as \"500ms\" or \"30s\"";
        serde::de::Error::custom(format!("{text:?} {help}"))
    })
}

fn span<S: serde::Serializer>(
    duration: &Option<SignedDuration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => serializer.collect_str(&format_args!("{duration:#}")),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests;
