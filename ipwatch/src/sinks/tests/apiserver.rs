//! What the fake API servers of the sinks share: a listener on loopback that asks one function for each answer, and the
//! kubeconfig that leads to it.

use std::convert::Infallible;

use http_body_util::{BodyExt as _, Full};
use hyper::Response;
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Parts;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::sources::kubernetes::Credentials;

/// The token that the kubeconfig holds.
pub(in crate::sinks) const TOKEN: &str = "canary";

/// Serves every request with the status and object that `answer` returns, and returns the server's URL.
pub(in crate::sinks) async fn serve<A, F>(answer: A) -> String
where
    A: Fn(Parts, Value) -> F + Clone + Send + 'static,
    F: Future<Output = (u16, Value)> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
                let answer = answer.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let (code, object) =
                        answer(parts, serde_json::from_slice(&body).unwrap()).await;
                    let body = Full::new(Bytes::from(object.to_string()));
                    Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
                }
            });
            let serving = hyper::server::conn::http1::Builder::new();
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
        }
    });
    url
}

/// A kubeconfig for this server, in a directory that lives as long as the second value.
pub(in crate::sinks) fn credentials(url: &str) -> (Credentials, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    let config = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"{url}\"}}}}]\n\
         users: [{{name: u, user: {{token: {TOKEN}}}}}]\n"
    );
    std::fs::write(&path, config).unwrap();
    (Credentials::Kubeconfig(path), dir)
}
