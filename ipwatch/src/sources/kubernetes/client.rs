//! Requests to the API server: one connection each, over TLS, with a bound on time and on what is read.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::account::Token;
use super::documents::Status;
use super::error::{ApiError, chain, cut, within};

/// Longest answer that says why there is none.
const STATUS_LIMIT: usize = 64 << 10;

/// An open way to the API server.
pub(super) struct Api {
    /// Name or IP.
    pub(super) host: String,
    pub(super) port: u16,
    /// Absent: plain HTTP.
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    pub(super) token: Token,
    /// What stands before each path.
    pub(super) prefix: String,
}

/// The body of an answer, and what it comes through.
pub(super) struct Body {
    what: &'static str,
    incoming: Incoming,
    _connection: Connection,
}

/// Ends with whoever reads from it.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Api {
    /// Where it is, for people.
    pub(super) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.prefix)
    }

    fn authority(&self) -> String {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// The body of an answer that is one.
    pub(super) async fn get(
        &self,
        what: &'static str,
        path: &str,
        limit: Duration,
    ) -> Result<Body, ApiError> {
        within(what, limit, async {
            let request = self.request(what, path).await?;
            let tcp = TcpStream::connect((self.host.as_str(), self.port)).await;
            let tcp = tcp.map_err(|error| ApiError::broken(what, &error))?;
            // A watch is small lines that are to be seen at once.
            let _ = tcp.set_nodelay(true);
            match &self.tls {
                None => exchange(what, tcp, request).await,
                Some((config, name)) => {
                    let connector = tokio_rustls::TlsConnector::from(Arc::clone(config));
                    let stream = connector.connect(name.clone(), tcp).await;
                    let stream = stream.map_err(|error| ApiError::broken(what, &error))?;
                    exchange(what, stream, request).await
                }
            }
        })
        .await
    }

    async fn request(
        &self,
        what: &'static str,
        path: &str,
    ) -> Result<Request<Empty<Bytes>>, ApiError> {
        let mut request = Request::get(format!("{}{path}", self.prefix))
            .header(HOST, self.authority())
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("ipwatch/", env!("CARGO_PKG_VERSION")))
            .body(Empty::new())
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

async fn exchange<S>(
    what: &'static str,
    stream: S,
    request: Request<Empty<Bytes>>,
) -> Result<Body, ApiError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |error: hyper::Error| ApiError::broken(what, &error);
    let hello = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = hello.map_err(broken)?;
    let connection = Connection(tokio::spawn(async move {
        // What is wrong with it, its body tells.
        let _ = connection.await;
    }));
    let answer = sender.send_request(request).await.map_err(broken)?;
    if answer.status() == StatusCode::OK {
        return Ok(Body { what, incoming: answer.into_body(), _connection: connection });
    }
    Err(refusal(what, answer, connection).await)
}

impl Body {
    /// The next part. `None`: it has ended. Cancel-safe.
    pub(super) async fn part(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            match self.incoming.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    // Anything else is a trailer.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => return Err(ApiError::broken(self.what, &error)),
            }
        }
    }
}

async fn refusal(
    what: &'static str,
    answer: Response<Incoming>,
    connection: Connection,
) -> ApiError {
    let code = answer.status().as_u16();
    let wait = answer.headers().get(RETRY_AFTER);
    let wait = wait.and_then(|value| value.to_str().ok()?.parse().ok());
    let mut body = Body { what, incoming: answer.into_body(), _connection: connection };
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
    fn broken(what: &'static str, error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Broken { what, why: cut(&chain(error)) }
    }
}
