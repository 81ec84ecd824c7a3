//! A dockerd for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tonic::body::Body;

/// A daemon with dockerd's API: JSON by path.
#[derive(Clone)]
pub(in super::super) struct Docker(Arc<Mutex<DockerState>>);

pub(in super::super) struct DockerState {
    pub(in super::super) answers: BTreeMap<String, String>,
    /// Paths that are not answered.
    pub(in super::super) stuck: BTreeSet<String>,
    pub(in super::super) calls: Vec<String>,
    events: broadcast::Sender<String>,
}

impl Docker {
    pub(in super::super) fn new(list: &str) -> Self {
        let version =
            r#"{"Version":"20.10.24","ApiVersion":"1.41","Components":[{"Name":"Engine"}]}"#;
        let answers = BTreeMap::from([
            ("/version".to_owned(), version.to_owned()),
            ("/containers/json".to_owned(), list.to_owned()),
        ]);
        Self(Arc::new(Mutex::new(DockerState {
            answers,
            stuck: BTreeSet::new(),
            calls: Vec::new(),
            events: broadcast::channel(64).0,
        })))
    }

    pub(in super::super) fn state(&self) -> MutexGuard<'_, DockerState> {
        self.0.lock().unwrap()
    }

    pub(in super::super) fn set(&self, path: &str, json: &str) {
        self.state().answers.insert(path.to_owned(), json.to_owned());
    }

    pub(in super::super) fn event(&self, line: &str) {
        self.send(&format!("{line}\n"));
    }

    /// Sends this to the clients that follow the events.
    pub(in super::super) fn send(&self, text: &str) {
        let _ = self.state().events.send(text.to_owned());
    }

    pub(in super::super) async fn has_listener(&self) {
        while self.state().events.receiver_count() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(in super::super) fn serve(&self, path: &Path) {
        let listener = UnixListener::bind(path).unwrap();
        let fake = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = fake.clone();
                let service = hyper::service::service_fn(move |request| {
                    let fake = fake.clone();
                    async move { Ok::<_, Infallible>(fake.answer(&request).await) }
                });
                let serving = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(serving);
            }
        });
    }

    async fn answer(&self, request: &hyper::Request<Incoming>) -> hyper::Response<Body> {
        let path = request.uri().path().to_owned();
        self.state().calls.push(path.clone());
        if self.state().stuck.contains(&path) {
            std::future::pending::<()>().await;
        }
        if path == "/events" {
            let events = self.state().events.subscribe();
            let lines = futures_util::stream::unfold(events, |mut events| async {
                let line = events.recv().await.ok()?;
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line))), events))
            });
            return hyper::Response::new(Body::new(StreamBody::new(lines.boxed())));
        }
        let Some(json) = self.state().answers.get(&path).cloned() else {
            let mut missing = hyper::Response::new(Body::default());
            *missing.status_mut() = hyper::StatusCode::NOT_FOUND;
            return missing;
        };
        hyper::Response::new(Body::new(Full::new(Bytes::from(json)).boxed()))
    }
}
