//! Requests to the API server: through `kube`'s client, with a bound on time and on what is read.
//!
//! TLS, client certificates, impersonation and the joining of URLs are `kube`'s, layer by layer. Not its whole stack,
//! which retries by itself, logs each failure as an error, and takes a proxy from the environment; nor its
//! typed requests, which hold an answer in memory as a whole.

use std::io::BufReader;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::ConfigExt as _;
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

use super::account::Token;
use super::documents::Status;
use super::error::ApiError;
use crate::sources::answer::{self, Coming, Unread};
use crate::sources::errors::{chain, cut, within};

/// Longest answer that says why there is none.
const STATUS_LIMIT: usize = 64 << 10;
/// That a connection is kept for the next page of a list.
const IDLE: Duration = Duration::from_secs(15);

/// An open way to the API server.
pub(crate) struct Api {
    client: Client,
    /// Where it is, for people.
    url: String,
    pub(super) token: Token,
}

/// The body of an answer. Its connection ends with it, unless it was read to its end.
pub(crate) struct Body {
    what: &'static str,
    incoming: kube::client::Body,
}

/// What is sent along with a request.
pub(crate) struct Content {
    pub(crate) method: Method,
    /// Its type.
    pub(crate) kind: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Api {
    /// By `config`, whose `auth_info` has no token: that is ours. `url`: for people. Within the runtime
    /// of tokio, on a thread that may wait if `config` names a program.
    pub(super) fn new(config: &Config, url: String, token: Token) -> Result<Self, kube::Error> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        // A watch is small lines that are to be seen at once.
        tcp.set_nodelay(true);
        let connector = config.rustls_https_connector_with_connector(tcp)?;
        let http: legacy::Client<_, kube::client::Body> =
            legacy::Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE)
                .pool_max_idle_per_host(1)
                .build(connector);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(http);
        let client = Client::new(service, config.default_namespace.clone());
        Ok(Self { client, url, token })
    }

    /// Where it is, for people.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// The body of an answer that is one.
    pub(crate) async fn get(
        &self,
        what: &'static str,
        path: &str,
        limit: Duration,
    ) -> Result<Body, ApiError> {
        self.ask(what, path, None, limit).await
    }

    /// The same for a request that says something.
    pub(crate) async fn send(
        &self,
        what: &'static str,
        path: &str,
        content: Content,
        limit: Duration,
    ) -> Result<Body, ApiError> {
        self.ask(what, path, Some(content), limit).await
    }

    async fn ask(
        &self,
        what: &'static str,
        path: &str,
        content: Option<Content>,
        limit: Duration,
    ) -> Result<Body, ApiError> {
        within(what, limit, async {
            let request = self.request(what, path, content).await?;
            let answer = self.client.send(request).await;
            let answer = answer.map_err(|error| ApiError::failed(what, &error))?;
            if answer.status().is_success() {
                return Ok(Body { what, incoming: answer.into_body() });
            }
            Err(refusal(what, answer).await)
        })
        .await
    }

    async fn request(
        &self,
        what: &'static str,
        path: &str,
        content: Option<Content>,
    ) -> Result<Request<kube::client::Body>, ApiError> {
        let mut request = Request::builder()
            .uri(path)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("ipwatch/", env!("CARGO_PKG_VERSION")));
        let body = match content {
            None => kube::client::Body::empty(),
            Some(Content { method, kind, bytes }) => {
                request = request.method(method).header(CONTENT_TYPE, kind);
                bytes.into()
            }
        };
        let mut request = request
            .body(body)
            .map_err(|error| ApiError::Garbage { what, why: error.to_string() })?;
        if let Some(token) = self.token.read().await? {
            let wrong =
                |_| ApiError::Setting("the token is none: it has line breaks in it".to_owned());
            let mut value = HeaderValue::try_from(token.bearer()).map_err(wrong)?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }
}

impl Body {
    /// The next part. `None`: it has ended. Cancel-safe.
    pub(crate) async fn part(&mut self) -> Result<Option<Bytes>, ApiError> {
        answer::part(&mut self.incoming).await.map_err(|error| ApiError::failed(self.what, &error))
    }

    /// What `parse` makes of it, if it has no more than `most` bytes. On a thread of its own, while it comes.
    pub(super) async fn read<T, P>(self, most: usize, parse: P) -> Result<T, ApiError>
    where
        T: Send + 'static,
        P: FnOnce(BufReader<Coming>) -> Result<T, serde_json::Error> + Send + 'static,
    {
        let what = self.what;
        answer::read(self.incoming, most, parse).await.map_err(|error| match error {
            Unread::Broken(error) => ApiError::failed(what, &error),
            Unread::TooLong => ApiError::TooLarge { what, limit: most >> 20 },
            Unread::Garbage(why) => ApiError::Garbage { what, why },
        })
    }

    /// All of it, if it has no more than `most` bytes.
    pub(crate) async fn whole(mut self, most: usize, limit: Duration) -> Result<Vec<u8>, ApiError> {
        within(self.what, limit, async {
            let mut text = Vec::new();
            while let Some(data) = self.part().await? {
                if text.len() + data.len() > most {
                    return Err(ApiError::Garbage {
                        what: self.what,
                        why: "it is too long".into(),
                    });
                }
                text.extend_from_slice(&data);
            }
            Ok(text)
        })
        .await
    }
}

async fn refusal(what: &'static str, answer: Response<kube::client::Body>) -> ApiError {
    let code = answer.status().as_u16();
    let wait = answer.headers().get(RETRY_AFTER);
    let wait = wait.and_then(|value| value.to_str().ok()?.parse().ok());
    let mut body = Body { what, incoming: answer.into_body() };
    let mut text = Vec::new();
    while text.len() < STATUS_LIMIT {
        let Ok(Some(data)) = body.part().await else { break };
        text.extend_from_slice(&data);
    }
    let status: Status = serde_json::from_slice(&text).unwrap_or_default();
    Status { code, ..status }.refusal(what, wait)
}

impl Status {
    /// Why it is none of what was asked for. `wait`: seconds that the server wants us to.
    pub(super) fn refusal(self, what: &'static str, wait: Option<u64>) -> ApiError {
        let after = wait.or(self.details.retry_after_seconds).map(Duration::from_secs);
        match self.code {
            401 => ApiError::Unauthorized { what },
            410 => ApiError::Expired { what },
            429 => ApiError::Busy { what, after },
            code => ApiError::Refused { what, code, why: cut(&self.message.0) },
        }
    }
}

impl ApiError {
    /// Without the words of whoever has only passed it on.
    fn failed(what: &'static str, error: &kube::Error) -> Self {
        let why = match error {
            kube::Error::Service(error) => chain(&**error),
            kube::Error::HyperError(error) => chain(error),
            error => chain(error),
        };
        Self::Broken { what, why }
    }
}
