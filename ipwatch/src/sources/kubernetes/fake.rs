//! A fake API server for tests. Its answers to lists and watches are set in advance.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

#[derive(Debug, Clone)]
pub(super) enum Reply {
    Json(Value),
    /// A status with a `Status` object, and the seconds in `Retry-After`.
    Status(u16, Option<u64>),
    /// These bytes, with status 200.
    Raw(&'static str),
    /// These lines, then the end.
    Lines(Vec<Value>),
    /// These lines, then nothing more.
    Hold(Vec<Value>),
    /// No answer.
    Hang,
    /// The connection is closed.
    Cut,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) lists: VecDeque<Reply>,
    pub(super) watches: VecDeque<Reply>,
    /// The path and query of each request, and its `Authorization`.
    pub(super) asked: Vec<(String, Option<String>)>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Fake(Arc<Mutex<State>>);

impl Fake {
    /// Starts a server. Returns it and its URL.
    pub(super) async fn start(lists: Vec<Reply>, watches: Vec<Reply>) -> (Self, String) {
        Self::serve(lists, watches, None).await
    }

    /// The same over TLS.
    pub(super) async fn secure(lists: Vec<Reply>, tls: TlsAcceptor) -> (Self, String) {
        Self::serve(lists, Vec::new(), Some(tls)).await
    }

    async fn serve(
        lists: Vec<Reply>,
        watches: Vec<Reply>,
        tls: Option<TlsAcceptor>,
    ) -> (Self, String) {
        let fake = Self::default();
        fake.state().lists = lists.into();
        fake.state().watches = watches.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let served = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (fake, tls) = (served.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => fake.connection(stream).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                fake.connection(stream).await;
                            }
                        }
                    }
                });
            }
        });
        (fake, url)
    }

    async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S) {
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let fake = self.clone();
            async move { fake.answer(&request).await }
        });
        let serving = hyper::server::conn::http1::Builder::new();
        // A client may close the connection at any time.
        let _ = serving.serve_connection(TokioIo::new(stream), service).await;
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.state().asked.iter().map(|(path, _)| path.clone()).collect()
    }

    pub(super) fn watched(&self) -> Vec<String> {
        self.paths().into_iter().filter(|path| path.contains("&watch=1")).collect()
    }

    /// The next answer; the last one is repeated.
    fn next(&self, watch: bool) -> Reply {
        let mut state = self.state();
        let replies = if watch { &mut state.watches } else { &mut state.lists };
        let last = replies.len() == 1;
        let reply = if last { replies.front().cloned() } else { replies.pop_front() };
        reply.unwrap_or(Reply::Hold(Vec::new()))
    }

    async fn answer(
        &self,
        request: &Request<Incoming>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, std::io::Error> {
        let path = request.uri().to_string();
        let token = request.headers().get("authorization");
        let token = token.map(|token| token.to_str().unwrap().to_owned());
        self.state().asked.push((path.clone(), token));
        let whole = |text: String| Full::new(Bytes::from(text)).boxed_unsync();
        Ok(match self.next(path.contains("&watch=1")) {
            Reply::Json(value) => Response::new(whole(value.to_string())),
            Reply::Raw(text) => Response::new(whole(text.to_owned())),
            Reply::Status(code, wait) => {
                let mut answer = Response::builder().status(code);
                if let Some(wait) = wait {
                    answer = answer.header("retry-after", wait);
                }
                let message = "no, says \u{1b}[2J the server";
                answer
                    .body(whole(
                        json!({"kind": "Status", "code": code, "message": message}).to_string(),
                    ))
                    .unwrap()
            }
            Reply::Lines(all) => Response::new(lines(&all, false)),
            Reply::Hold(all) => Response::new(lines(&all, true)),
            Reply::Hang => {
                std::future::pending::<()>().await;
                unreachable!()
            }
            Reply::Cut => return Err(std::io::Error::other("cut")),
        })
    }
}

fn lines(all: &[Value], hold: bool) -> UnsyncBoxBody<Bytes, Infallible> {
    let text: String = all.iter().map(|line| format!("{line}\n")).collect();
    let first = futures_util::stream::iter([Ok(Frame::data(Bytes::from(text)))]);
    if hold {
        let rest = futures_util::stream::pending();
        BodyExt::boxed_unsync(StreamBody::new(first.chain(rest)))
    } else {
        // The end arrives in a separate packet.
        let rest = futures_util::stream::once(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(Frame::data(Bytes::new()))
        });
        BodyExt::boxed_unsync(StreamBody::new(first.chain(rest)))
    }
}

/// A pod of `node-1`.
pub(super) fn pod(n: u32) -> Value {
    json!({
        "metadata": {
            "name": format!("api-{n}"), "namespace": "shop", "uid": uid(n),
            "resourceVersion": n.to_string(),
            "annotations": {"hunter2": "hunter2"}, "labels": {"hunter2": "hunter2"},
        },
        "spec": {
            "nodeName": "node-1", "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "app", "env": [{"name": "PASSWORD", "value": "hunter2"}]}],
        },
        "status": {"phase": "Running", "podIP": format!("10.0.0.{n}"), "podIPs": [{"ip": format!("10.0.0.{n}")}]},
    })
}

pub(super) fn uid(n: u32) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

/// A complete list.
pub(super) fn list(version: &str, pods: &[u32]) -> Reply {
    let items: Vec<Value> = pods.iter().map(|n| pod(*n)).collect();
    Reply::Json(
        json!({"kind": "PodList", "metadata": {"resourceVersion": version}, "items": items}),
    )
}

pub(super) fn event(kind: &str, object: Value) -> Value {
    json!({"type": kind, "object": object})
}

pub(super) fn bookmark(version: &str) -> Value {
    event("BOOKMARK", json!({"kind": "Pod", "metadata": {"resourceVersion": version}}))
}
