//! One connection to the API server for a sink that writes objects: opened when it is needed, and anew after a failure,
//! so that credentials are read again.

use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use crate::sources::kubernetes::{Api, ApiError, Content, Credentials};

/// Upper limit of a `Retry-After` of the server.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// The server, as far as a sink needs it.
pub(super) struct Server {
    door: Credentials,
    api: Option<Api>,
    /// Name of the request, for messages.
    what: &'static str,
    /// Timeout of connecting, and of one answer.
    limit: Duration,
}

/// A request with an object.
pub(super) struct Write<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    /// Content type.
    pub(super) kind: &'static str,
    pub(super) object: &'a Value,
}

impl Server {
    pub(super) fn new(door: Credentials, what: &'static str, limit: Duration) -> Self {
        Self { door, api: None, what, limit }
    }

    /// Sends an object. Returns the answer, of at most `most` bytes.
    pub(super) async fn write(
        &mut self,
        request: Write<'_>,
        most: usize,
    ) -> Result<Vec<u8>, ApiError> {
        let Write { method, path, kind, object } = request;
        let api = match self.api.take() {
            Some(api) => api,
            None => self.door.enter(self.limit).await?,
        };
        let content = Content { method, kind, bytes: object.to_string().into_bytes() };
        let answer = self.api.insert(api).send(self.what, path, content, self.limit).await?;
        // Read the whole answer, so that the connection can be reused.
        answer.whole(most, self.limit).await
    }

    /// After a failure: the next attempt connects anew, with the credentials that are there then.
    pub(super) fn leave(&mut self) {
        self.api = None;
    }
}

/// How long the server asks to be left alone.
pub(super) fn asked_to_wait(error: &ApiError) -> Duration {
    match error {
        ApiError::Busy { after: Some(after), .. } => (*after).min(LONGEST_WAIT),
        _ => Duration::ZERO,
    }
}

/// Whether a retry would be refused again: no permission, or no such object.
pub(super) fn is_refused(error: &ApiError) -> bool {
    matches!(error, ApiError::Refused { code: 400..=499, .. })
}

/// A Kubernetes name, if it is a valid one: it becomes part of a path.
pub(super) fn label(name: &str, most: usize) -> Option<&str> {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    (starts && name.len() <= most && name.bytes().all(fits)).then_some(name)
}
