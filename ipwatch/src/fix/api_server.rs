//! Objects in the API server, with the rights of the person who runs the command: read as they are now, and changed only if
//! they are still what was read.

use std::path::PathBuf;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::remedy::said;
use crate::sources::kubernetes::list::Server;
use crate::sources::kubernetes::{Api, ApiError, Content};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of an answer, in bytes: etcd takes no object of more than 1.5 MiB.
const ANSWER: usize = 2 << 20;
/// Longest name of an object.
const LONGEST: usize = 253;
const WHAT: &str = "the API server";

/// How the API server is reached: `None` is the default of `ipwatch cluster scan`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
}

/// Why an object was not changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("it was changed in the API server at this very moment")]
    Changed,
    #[error("it is there already: it has been given out again since")]
    Exists,
    #[error("{0}: --kubeconfig names credentials that may")]
    Api(String),
    /// It may have been changed.
    #[error("the API server's answer was lost, and it may have been changed: {0}")]
    Lost(String),
}

/// A connection, made at the first request.
pub(super) struct ApiServer {
    access: Access,
    api: Option<Api>,
}

impl ApiServer {
    pub(super) fn new(access: Access) -> Self {
        Self { access, api: None }
    }

    /// The object at a path as it is in etcd now. `None`: there is none.
    pub(super) async fn get(&mut self, path: &str) -> Result<Option<Value>, String> {
        let api = self.api().await?;
        let answer = async { api.get(WHAT, path, PATIENCE).await?.whole(ANSWER, PATIENCE).await };
        match answer.await {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| format!("the API server's answer is no JSON: {error}")),
            Err(ApiError::Refused { code: 404, .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Applies a JSON patch (RFC 6902) that begins with tests of what was read.
    pub(super) async fn patch(&mut self, path: &str, patch: &Value) -> Result<(), Refused> {
        self.send(Method::PATCH, path, "application/json-patch+json", patch).await
    }

    pub(super) async fn create(&mut self, path: &str, object: &Value) -> Result<(), Refused> {
        self.send(Method::POST, path, "application/json", object).await
    }

    /// Deletes an object if it is still the one that was read.
    pub(super) async fn delete(&mut self, path: &str, object: &Value) -> Result<(), Refused> {
        let (uid, version) = (text(object, "/metadata/uid"), version(object));
        let (Some(uid), Some(version)) = (uid, version) else { return Err(Refused::Changed) };
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1",
            "preconditions": { "uid": uid, "resourceVersion": version },
        });
        self.send(Method::DELETE, path, "application/json", &options).await
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        kind: &'static str,
        object: &Value,
    ) -> Result<(), Refused> {
        let is_new = method == Method::POST;
        let content = Content { method, kind, bytes: object.to_string().into_bytes() };
        let api = self.api().await.map_err(Refused::Api)?;
        let sent =
            async { api.send(WHAT, path, content, PATIENCE).await?.whole(ANSWER, PATIENCE).await };
        match sent.await {
            Ok(_) => Ok(()),
            Err(ApiError::Refused { code: 409, .. }) if is_new => Err(Refused::Exists),
            // 422: a test of the patch failed. 409: a precondition did. 404: it is gone.
            Err(ApiError::Refused { code: 404 | 409 | 422, .. }) => Err(Refused::Changed),
            // 5xx: the server gave up waiting for etcd, which may have taken it.
            Err(
                error @ (ApiError::Broken { .. }
                | ApiError::Silent { .. }
                | ApiError::Garbage { .. }
                | ApiError::TooLarge { .. }
                | ApiError::Refused { code: 500.., .. }),
            ) => Err(Refused::Lost(error.to_string())),
            Err(error) => Err(Refused::Api(error.to_string())),
        }
    }

    async fn api(&mut self) -> Result<&Api, String> {
        let api = match self.api.take() {
            Some(api) => api,
            None => {
                let Access { kubeconfig, context } = self.access.clone();
                Server::open(kubeconfig, context).await?.into_api()
            }
        };
        Ok(self.api.insert(api))
    }
}

/// The pod of this name, unless there is none.
///
/// # Errors
/// Whether there is one is not known.
pub(super) async fn pod(
    api: &mut ApiServer,
    (namespace, name): (&str, &str),
) -> Result<Option<Value>, String> {
    if !is_name(namespace) || !is_name(name) {
        return Err(format!("{} is no name of a pod", said(&format!("{namespace}/{name}"))));
    }
    api.get(&format!("/api/v1/namespaces/{namespace}/pods/{name}")).await
}

/// The version of an object that was read.
pub(super) fn version(object: &Value) -> Option<&str> {
    text(object, "/metadata/resourceVersion")
}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

/// Whether it can be a part of a path as it is.
pub(super) fn is_name(name: &str) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (1..=LONGEST).contains(&name.len())
        && name.bytes().all(fits)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}
