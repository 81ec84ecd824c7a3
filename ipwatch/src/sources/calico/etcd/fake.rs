//! A fake etcd with the v2 API for tests. Its answers to lists and long polls of a tree are set in advance.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// A status, the store's index, a document.
    Json(u16, u64, Value),
    /// These bytes, with status 200.
    Raw(u64, String),
    /// The head of a response, then nothing more.
    Hold(u64),
    /// No answer.
    Hang,
}

#[derive(Debug, Default)]
struct State {
    /// By a part of the path and query.
    replies: HashMap<&'static str, VecDeque<Reply>>,
    asked: Vec<String>,
    users: Vec<Option<String>>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Fake(Arc<Mutex<State>>);

impl Fake {
    /// Starts a server. Returns it and its URL. Without a set answer, lists are empty and polls wait.
    pub(super) async fn start(replies: Vec<(&'static str, Vec<Reply>)>) -> (Self, String) {
        let fake = Self::default();
        fake.state().replies =
            replies.into_iter().map(|(about, replies)| (about, replies.into())).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = served.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let fake = fake.clone();
                        async move { fake.answer(&request).await }
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        (fake, url)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The requests so far whose path or query contains `about`.
    pub(super) fn asked(&self, about: &str) -> Vec<String> {
        let state = self.state();
        state.asked.iter().filter(|path| path.contains(about)).cloned().collect()
    }

    /// The user of each request so far, as sent.
    pub(super) fn users(&self) -> Vec<Option<String>> {
        self.state().users.clone()
    }

    async fn answer(
        &self,
        request: &Request<Incoming>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, std::io::Error> {
        let path = request.uri().to_string();
        let reply = {
            let mut state = self.state();
            let user = request.headers().get("authorization");
            state.users.push(user.map(|user| user.to_str().unwrap().to_owned()));
            state.asked.push(path.clone());
            let found = state.replies.iter_mut().find(|(about, _)| path.contains(**about));
            found.and_then(|(_, replies)| replies.pop_front())
        };
        let usual = || match path.contains("wait=true") {
            true => Reply::Hold(100),
            false if path.starts_with("/v2/keys") => missing(100),
            false => Reply::Json(200, 100, json!({ "health": "true" })),
        };
        let (code, index, body) = match reply.unwrap_or_else(usual) {
            Reply::Json(code, index, document) => (code, index, full(document.to_string())),
            Reply::Raw(index, text) => (200, index, full(text)),
            Reply::Hold(index) => {
                let none = futures_util::stream::pending::<Result<Frame<Bytes>, Infallible>>();
                (200, index, StreamBody::new(none).boxed_unsync())
            }
            Reply::Hang => std::future::pending().await,
        };
        let answer = Response::builder().status(code).header("x-etcd-cluster-id", "c1");
        Ok(answer.header("x-etcd-index", index).body(body).unwrap())
    }
}

fn full(text: String) -> UnsyncBoxBody<Bytes, Infallible> {
    Full::new(Bytes::from(text)).boxed_unsync()
}

/// The answer for a tree that does not exist.
pub(super) fn missing(index: u64) -> Reply {
    let why =
        json!({ "errorCode": 100, "message": "Key not found", "cause": "/x", "index": index });
    Reply::Json(404, index, why)
}

/// A tree of keys and values.
pub(super) fn list(index: u64, entries: &[(&str, &str)]) -> Reply {
    let node = |(key, value): &(&str, &str)| json!({ "key": key, "value": value });
    let nodes: Vec<Value> = entries.iter().map(node).collect();
    let tree = json!({ "action": "get", "node": { "key": "/t", "dir": true, "nodes": nodes } });
    Reply::Json(200, index, tree)
}

pub(super) fn event(action: &str, at: u64, node: Value) -> Reply {
    let mut node = node;
    node["modifiedIndex"] = at.into();
    Reply::Json(200, at, json!({ "action": action, "node": node }))
}
