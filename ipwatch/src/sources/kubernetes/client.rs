//! Requests to the API server, with limits on time and size.
//!
//! Nothing is retried here, no proxy is taken from the environment, and no answer is in memory as a whole.

use std::io::BufReader;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response};

use super::connection::{Http, ServerAddress};
use super::credentials::Token;
use super::documents::Status;
use super::error::ApiError;
use super::kubeconfig::Secret;
use super::program::{Credential, Program, ProgramError};
use crate::sources::body::{self, Coming, Unread};
use crate::sources::errors::{chain, cut, within};

/// Maximum size in bytes of an error's body.
const STATUS_LIMIT: usize = 64 << 10;

/// A client of the API server.
pub(crate) struct Api {
    way: Arc<ServerAddress>,
    /// Replaced when our certificate is renewed.
    http: Mutex<Http>,
    pub(super) token: Token,
    /// A credential plugin, and its last answer.
    program: Option<(Arc<Program>, tokio::sync::Mutex<Credential>)>,
}

/// The body of an answer. Its connection is closed with it, unless the body was read to its end.
pub(crate) struct Body {
    what: &'static str,
    incoming: Incoming,
}

/// The body of a request.
pub(crate) struct Content {
    pub(crate) method: Method,
    /// Content type.
    pub(crate) kind: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Api {
    /// Runs `program`, if there is one, and may read files. Must be called within the tokio runtime, on a thread that
    /// may block. `Err`: what is wrong, without the content of any file.
    pub(super) fn new(
        way: ServerAddress,
        token: Token,
        program: Option<Program>,
    ) -> Result<Self, String> {
        let said = match &program {
            Some(program) => Some(program.run().map_err(|error| error.to_string())?),
            None => None,
        };
        let http = way.open(identity(said.as_ref()))?;
        let said = said.map(tokio::sync::Mutex::new);
        let program = program.map(Arc::new).zip(said);
        Ok(Self { way: Arc::new(way), http: Mutex::new(http), token, program })
    }

    /// The server's URL, for people.
    pub(crate) fn url(&self) -> String {
        self.way.url.clone()
    }

    /// Sends a GET request and returns the body of a successful answer.
    pub(crate) async fn get(
        &self,
        what: &'static str,
        path: &str,
        limit: Duration,
    ) -> Result<Body, ApiError> {
        self.ask(what, path, None, limit).await
    }

    /// The same for a request with a body.
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
            let answer = self.http().request(request).await;
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
    ) -> Result<Request<Full<Bytes>>, ApiError> {
        let wrong = |error: hyper::http::Error| ApiError::Garbage { what, why: error.to_string() };
        let path: PathAndQuery = path.parse().map_err(|error| wrong(Into::into(error)))?;
        let mut request = Request::builder()
            .uri(format!("{}{path}", self.way.url))
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("ipwatch/", env!("CARGO_PKG_VERSION")));
        let body = match content {
            None => Full::default(),
            Some(Content { method, kind, bytes }) => {
                request = request.method(method).header(CONTENT_TYPE, kind);
                bytes.into()
            }
        };
        let mut request = request.body(body).map_err(wrong)?;
        let headers = request.headers_mut();
        headers.extend(self.way.headers.iter().cloned());
        if let Some(token) = self.bearer().await? {
            let wrong =
                |_| ApiError::Setting("the token is invalid: it contains line breaks".to_owned());
            let mut value = HeaderValue::try_from(token.bearer()).map_err(wrong)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(request)
    }

    /// The current token: that of the plugin, which is run again before its answer expires; otherwise our own.
    async fn bearer(&self) -> Result<Option<Token>, ApiError> {
        let Some((program, said)) = &self.program else { return self.token.read().await };
        let mut said = said.lock().await;
        if !said.is_good() {
            let (program, way) = (Arc::clone(program), Arc::clone(&self.way));
            let asked = tokio::task::spawn_blocking(move || {
                let said = program.run()?;
                // A new certificate needs a new connection.
                let http = identity(Some(&said)).map(|identity| way.open(Some(identity)));
                Ok::<_, ProgramError>((said, http))
            });
            let wrong = |why: &str| ApiError::Setting(format!("{}: {why}", self.way.url));
            let asked = asked.await.map_err(|_| wrong("the credentials cannot be read"))?;
            let (new, http) = asked.map_err(|error| wrong(&error.to_string()))?;
            if let Some(http) = http {
                *self.http.lock().unwrap_or_else(PoisonError::into_inner) = http.map_err(wrong)?;
            }
            *said = new;
        }
        match &said.token {
            Some(Secret(token)) => Ok(Some(Token::Text(token.clone()))),
            None => self.token.read().await,
        }
    }

    fn http(&self) -> Http {
        self.http.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The certificate and key that a plugin returned.
fn identity(said: Option<&Credential>) -> Option<&[u8]> {
    said?.identity.as_ref().map(|Secret(pem)| pem.as_bytes())
}

impl Body {
    /// The next part, `None` at the end. Cancel-safe.
    pub(crate) async fn part(&mut self) -> Result<Option<Bytes>, ApiError> {
        body::part(&mut self.incoming).await.map_err(|error| ApiError::failed(self.what, &error))
    }

    /// Parses a body of at most `most` bytes. `parse` runs on a thread of its own, while the body arrives.
    pub(super) async fn read<T, P>(self, most: usize, parse: P) -> Result<T, ApiError>
    where
        T: Send + 'static,
        P: FnOnce(BufReader<Coming>) -> Result<T, serde_json::Error> + Send + 'static,
    {
        let what = self.what;
        body::read(self.incoming, most, Some(super::read::LEVELS), parse).await.map_err(|error| {
            match error {
                Unread::Broken(error) => ApiError::failed(what, &error),
                Unread::TooLong => ApiError::TooLarge { what, limit: most >> 20 },
                Unread::Garbage(why) => ApiError::Garbage { what, why },
            }
        })
    }

    /// The whole body, if it has at most `most` bytes.
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

async fn refusal(what: &'static str, answer: Response<Incoming>) -> ApiError {
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
    /// The error for a status. `wait`: seconds that the server asks us to wait.
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
    fn failed(what: &'static str, error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Broken { what, why: chain(error) }
    }
}
