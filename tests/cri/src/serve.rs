//! A mock of a container runtime: it answers the three calls of the CRI that only read, from a file that a test
//! writes. It serves where containerd does not fit (the VMs), and for more pods than one would start (the
//! benchmarks); everywhere else the tests ask a real one.
//!
//! The file has one line per sandbox, `sandbox ID STATE NAMESPACE NAME UID ATTEMPT [MADE]`, and one line per
//! container, `container ID STATE SANDBOX NAME`. MADE is the time of creation, in nanoseconds of Unix time. The file
//! is read for every call, so that a test changes the answers by replacing it. If it is missing, calls fail. A line
//! `slow SECONDS NAME` delays every answer to a method whose name begins with NAME.

use std::convert::Infallible;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;
use tower::ServiceExt as _;

use crate::cri;

/// The names of `ContainerState`, in its order.
pub(crate) const CONTAINER_STATES: [&str; 4] = ["CREATED", "RUNNING", "EXITED", "UNKNOWN"];

/// Answers on `socket` until standard input ends.
pub(crate) async fn serve(socket: &str, file: &str) -> Result<()> {
    let listener =
        tokio::net::UnixListener::bind(socket).with_context(|| format!("bind {socket}"))?;
    println!("ready");
    let end = async {
        // On another thread, which ends with the process at the latest.
        let _ = tokio::task::spawn_blocking(|| {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
        })
        .await;
    };
    let fake = Fake(Arc::new(file.into()));
    tokio::select! {
        () = end => Ok(()),
        failed = accept(listener, fake) => failed,
    }
}

async fn accept(listener: tokio::net::UnixListener, fake: Fake) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await.context("accept")?;
        tokio::spawn(answer(stream, fake.clone()));
    }
}

/// Answers on one connection. It uses hyper: tonic's own server would enable features that ipwatch is built without,
/// and their common dependencies would be built twice.
async fn answer(stream: tokio::net::UnixStream, fake: Fake) {
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        fake.clone().oneshot(request.map(Body::new))
    });
    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // How a connection ends does not matter.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

#[derive(Clone)]
struct Fake(Arc<PathBuf>);

impl tower::Service<Request<Body>> for Fake {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fake = self.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            fake.wait(&method).await;
            Ok(match method.as_str() {
                "Version" => fake.unary(request, |_| Ok(version())).await,
                "ListPodSandbox" => fake.unary(request, sandboxes).await,
                "ListContainers" => fake.unary(request, containers).await,
                _ => Status::unimplemented(method).into_http(),
            })
        })
    }
}

impl Fake {
    async fn wait(&self, method: &str) {
        #[expect(clippy::disallowed_methods, reason = "a file of the test's own")]
        let text = std::fs::read_to_string(&*self.0).unwrap_or_default();
        let slow = lines(&text, "slow").find_map(|words| {
            let [seconds, name] = words.as_slice() else { return None };
            method.starts_with(name).then(|| seconds.parse().ok())?
        });
        if let Some(seconds) = slow {
            tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
        }
    }

    async fn unary<A>(
        self,
        request: Request<Body>,
        answer: fn(&str) -> Result<A, Status>,
    ) -> Response<Body>
    where
        A: prost::Message + Default + 'static,
    {
        let codec = ProstCodec::<A, cri::Nothing>::default();
        Grpc::new(codec).unary(Unary(self.0, answer), request).await
    }
}

/// One method: the file, and the function from its text to the answer.
struct Unary<A>(Arc<PathBuf>, fn(&str) -> Result<A, Status>);

impl<A: prost::Message + Default + 'static> UnaryService<cri::Nothing> for Unary<A> {
    type Response = A;
    type Future = std::future::Ready<Result<tonic::Response<A>, Status>>;

    fn call(&mut self, _: tonic::Request<cri::Nothing>) -> Self::Future {
        #[expect(clippy::disallowed_methods, reason = "a file of the test's own")]
        let text = std::fs::read_to_string(&*self.0);
        let text = text.map_err(|error| Status::unavailable(error.to_string()));
        std::future::ready(text.and_then(|text| self.1(&text)).map(tonic::Response::new))
    }
}

fn version() -> cri::VersionResponse {
    cri::VersionResponse {
        version: "0.1.0".to_owned(),
        runtime_name: "containerd".to_owned(),
        runtime_version: "v0.0.0-mock".to_owned(),
        runtime_api_version: "v1".to_owned(),
    }
}

fn sandboxes(text: &str) -> Result<cri::ListPodSandboxResponse, Status> {
    let items = lines(text, "sandbox").map(|words| {
        let [id, state, namespace, name, uid, attempt, made @ ..] = &words[..] else {
            return Err(Status::internal(format!("a sandbox of {} words", words.len())));
        };
        let made = made.first().map_or(Ok(0), |made| made.parse());
        Ok(cri::PodSandbox {
            id: (*id).to_owned(),
            metadata: Some(cri::PodSandboxMetadata {
                name: (*name).to_owned(),
                uid: (*uid).to_owned(),
                namespace: (*namespace).to_owned(),
                attempt: attempt.parse().map_err(|_| Status::internal("attempt"))?,
            }),
            state: i32::from(*state != "READY"),
            created_at: made.map_err(|_| Status::internal("made"))?,
        })
    });
    Ok(cri::ListPodSandboxResponse { items: items.collect::<Result<_, _>>()? })
}

fn containers(text: &str) -> Result<cri::ListContainersResponse, Status> {
    let containers = lines(text, "container").map(|words| {
        let [id, state, sandbox, name] = words[..] else {
            return Err(Status::internal(format!("a container of {} words", words.len())));
        };
        let state = CONTAINER_STATES.iter().position(|known| *known == state);
        Ok(cri::Container {
            id: id.to_owned(),
            pod_sandbox_id: sandbox.to_owned(),
            metadata: Some(cri::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            state: state.and_then(|state| i32::try_from(state).ok()).unwrap_or(3),
        })
    });
    Ok(cri::ListContainersResponse { containers: containers.collect::<Result<_, _>>()? })
}

fn lines<'a>(text: &'a str, kind: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    text.lines().filter_map(move |line| {
        let mut words = line.split(' ');
        (words.next() == Some(kind)).then(|| words.collect())
    })
}
