//! Requests to the v2 API: HTTP/1.1 over reused connections, with limits on time and size.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};

use super::connection::{Dial, User};
use super::error::EtcdError;
use super::reflector::Visit;
use super::tree::Refusal;
use crate::dial::{self, Driver};
use crate::sources::body;
use crate::sources::errors::{chain, cut};

/// Maximum size in bytes of an error's body.
const REFUSAL_LIMIT: usize = 64 << 10;
/// `EcodeKeyNotFound`.
const NOT_FOUND: u32 = 100;
/// `EcodeEventIndexCleared`.
const CLEARED: u32 = 401;

/// A connection to one member, for one request after another.
pub(super) struct Line {
    dial: Dial,
    user: Option<User>,
    open: Option<(SendRequest<Empty<Bytes>>, Driver)>,
}

pub(super) struct Answer {
    what: &'static str,
    /// The index of the store at that time, `X-Etcd-Index`.
    pub(super) index: u64,
    /// `X-Etcd-Cluster-Id`.
    pub(super) cluster: Option<HeaderValue>,
    /// `None`: the key does not exist.
    pub(super) body: Option<Incoming>,
}

impl Line {
    pub(super) fn new(visit: &Visit) -> Self {
        Self { dial: visit.dial.clone(), user: visit.user.clone(), open: None }
    }

    /// Sends a GET request and returns a successful answer. The caller must set a timeout, and call
    /// [`hang_up`](Self::hang_up) if it expires.
    pub(super) async fn get(
        &mut self,
        what: &'static str,
        path: &str,
    ) -> Result<Answer, EtcdError> {
        let request = self.request(what, path)?;
        let broken = |error: hyper::Error| EtcdError::Broken { what, why: chain(&error) };
        // Taken out: if this future is dropped early, the connection cannot be reused.
        let open = self.open.take().filter(|(sender, _)| !sender.is_closed());
        let (mut sender, driver) = match open {
            Some(open) => open,
            None => {
                let stream = self.dial.connect().await;
                let stream =
                    stream.map_err(|error| EtcdError::Broken { what, why: chain(&error) })?;
                dial::http1(stream, None).await.map_err(broken)?
            }
        };
        sender.ready().await.map_err(broken)?;
        let answer = sender.send_request(request).await.map_err(broken)?;
        self.open = Some((sender, driver));
        if answer.status() == StatusCode::OK {
            return Ok(Answer::new(what, answer));
        }
        refusal(what, answer).await
    }

    /// The next request opens a new connection.
    pub(super) fn hang_up(&mut self) {
        self.open = None;
    }

    fn request(&self, what: &'static str, path: &str) -> Result<Request<Empty<Bytes>>, EtcdError> {
        let mut request = Request::get(path)
            .header(HOST, self.dial.at.authority())
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("ipwatch/", env!("CARGO_PKG_VERSION")))
            .body(Empty::new())
            .map_err(|error| EtcdError::Garbage { what, why: error.to_string() })?;
        if let Some(user) = &self.user {
            let text = STANDARD.encode(format!("{}:{}", user.name, user.password));
            let value = HeaderValue::try_from(format!("Basic {text}"));
            let mut value = value.map_err(|_| EtcdError::Setting("no such user".to_owned()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }
}

impl Answer {
    fn new(what: &'static str, answer: Response<Incoming>) -> Self {
        let header = |name: &str| answer.headers().get(name);
        let index = header("x-etcd-index").and_then(|value| value.to_str().ok()?.parse().ok());
        let cluster = header("x-etcd-cluster-id").cloned();
        Self { what, index: index.unwrap_or_default(), cluster, body: Some(answer.into_body()) }
    }

    /// The next part of the body, `None` at the end. Cancel-safe.
    pub(super) async fn part(&mut self) -> Result<Option<Bytes>, EtcdError> {
        let Some(body) = &mut self.body else { return Ok(None) };
        let broken =
            |error: hyper::Error| EtcdError::Broken { what: self.what, why: chain(&error) };
        body::part(body).await.map_err(broken)
    }

    /// The whole body, if it has at most `limit` bytes.
    pub(super) async fn whole(&mut self, limit: usize) -> Result<Vec<u8>, EtcdError> {
        let mut text = Vec::new();
        while let Some(data) = self.part().await? {
            if text.len() + data.len() > limit {
                return Err(EtcdError::TooLarge { what: self.what, limit: limit >> 20 });
            }
            text.extend_from_slice(&data);
        }
        Ok(text)
    }
}

/// The error for a response. A missing key is not an error.
async fn refusal(what: &'static str, answer: Response<Incoming>) -> Result<Answer, EtcdError> {
    let status = answer.status();
    let mut answer = Answer::new(what, answer);
    let text = answer.whole(REFUSAL_LIMIT).await.unwrap_or_default();
    let said: Refusal = serde_json::from_slice(&text).unwrap_or_default();
    let why = cut(&format!("{} {}", status.as_u16(), said.message.0));
    Err(match (status, said.error_code) {
        (StatusCode::NOT_FOUND, NOT_FOUND) => {
            return Ok(Answer { index: answer.index.max(said.index), body: None, ..answer });
        }
        (_, CLEARED) => {
            EtcdError::Expired { what, why: "what was told last is too long ago (401, cleared)" }
        }
        (StatusCode::UNAUTHORIZED, _) => EtcdError::Credentials { what, why },
        (StatusCode::FORBIDDEN, _) => EtcdError::Denied { what, why },
        // etcd's answer if the v2 API is disabled.
        (StatusCode::NOT_FOUND, _) => EtcdError::Broken {
            what,
            why: format!(
                "{why}: it has no v2 API; is it to be calico.etcd_api = \"v3\", or etcd to be started with --enable-v2?"
            ),
        },
        (StatusCode::SERVICE_UNAVAILABLE, _) => EtcdError::NoLeader { what },
        _ => EtcdError::Broken { what, why },
    })
}
