//! The used calls of etcd's v3 API. Each carries the token, and requires the member to refuse if it has no leader.

use futures_util::stream;
use prost::Message;
use tokio::sync::mpsc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::connection::User;
use super::error::EtcdError;
use super::messages::{
    AuthenticateRequest, AuthenticateResponse, RangeRequest, RangeResponse, WatchCreateRequest,
    WatchRequest, WatchResponse,
};
use super::status::{MESSAGE_LIMIT, why};
use crate::sources::grpc;

/// `MetadataRequireLeaderKey` and `MetadataHasLeader` (`api/v3rpc/rpctypes/md.go`). With it, a watch also ends when its
/// member loses the leader.
const HAS_LEADER: (&str, &str) = ("hasleader", "true");
/// `TokenFieldNameGRPC` (`api/v3rpc/rpctypes/metadatafields.go`).
const TOKEN: &str = "token";

const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// A client of one member.
pub(super) struct Client {
    channel: Channel,
    /// The authentication token. Never shown.
    token: Option<AsciiMetadataValue>,
}

/// Watches on one stream.
pub(super) struct Watches {
    answers: Streaming<WatchResponse>,
    /// The sending side of the stream, which must live as long as answers are expected: etcd ends a stream when its
    /// client closes the sending side.
    _open: mpsc::Sender<WatchRequest>,
}

impl Client {
    /// `user`: requests a token for this user. `what`: the request, in errors.
    pub(super) async fn new(
        what: &'static str,
        channel: Channel,
        user: Option<&User>,
    ) -> Result<Self, EtcdError> {
        let mut client = Self { channel, token: None };
        if let Some(User { name, password }) = user {
            let asks = AuthenticateRequest { name: name.clone(), password: password.clone() };
            let told: AuthenticateResponse = client.call(what, AUTHENTICATE, asks).await?;
            let none = |_| EtcdError::Garbage { what, why: "a token that is not ASCII".to_owned() };
            let mut token = AsciiMetadataValue::try_from(told.token).map_err(none)?;
            token.set_sensitive(true);
            client.token = Some(token);
        }
        Ok(client)
    }

    pub(super) async fn range(
        &self,
        what: &'static str,
        asks: RangeRequest,
    ) -> Result<RangeResponse, EtcdError> {
        self.call(what, RANGE, asks).await
    }

    /// Creates these watches, in this order. Returns with the first answer.
    pub(super) async fn watch(
        &self,
        what: &'static str,
        asks: Vec<WatchCreateRequest>,
    ) -> Result<Watches, EtcdError> {
        let (open, mut asked) = mpsc::channel(asks.len().max(1));
        for one in asks {
            // The channel has room for all of them.
            let _ = open.try_send(WatchRequest { create_request: Some(one) });
        }
        let asked = stream::poll_fn(move |context| asked.poll_recv(context));
        let mut grpc = self.ready(what).await?;
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let path = PathAndQuery::from_static(WATCH);
        let answers = grpc.streaming(self.request(asked), path, codec).await;
        let answers = answers.map_err(|status| why(what, &status))?.into_inner();
        Ok(Watches { answers, _open: open })
    }

    async fn call<Q, A>(
        &self,
        what: &'static str,
        path: &'static str,
        asks: Q,
    ) -> Result<A, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.ready(what).await?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(self.request(asks), PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| why(what, &status))
    }

    async fn ready(&self, what: &'static str) -> Result<tonic::client::Grpc<Channel>, EtcdError> {
        let broken = |why| EtcdError::Broken { what, why };
        grpc::ready(&self.channel, MESSAGE_LIMIT).await.map_err(broken)
    }

    fn request<T>(&self, asks: T) -> Request<T> {
        let mut request = Request::new(asks);
        let metadata = request.metadata_mut();
        metadata.insert(HAS_LEADER.0, AsciiMetadataValue::from_static(HAS_LEADER.1));
        if let Some(token) = &self.token {
            metadata.insert(TOKEN, token.clone());
        }
        request
    }
}

impl Watches {
    /// The next answer, `None` if the server has ended the stream. Cancel-safe.
    pub(super) async fn message(
        &mut self,
        what: &'static str,
    ) -> Result<Option<WatchResponse>, EtcdError> {
        self.answers.message().await.map_err(|status| why(what, &status))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use futures_util::StreamExt as _;
    use tokio::net::TcpListener;
    use tonic::body::Body;
    use tonic::codegen::http;
    use tonic::{Response, Status};

    use super::*;
    use crate::testing::serve_grpc;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A request with its metadata.
    #[derive(Debug, Clone, PartialEq)]
    struct Asked {
        path: String,
        has_leader: bool,
        token: Option<String>,
    }

    impl Asked {
        fn of(request: &http::Request<Body>) -> Self {
            let header = |name| {
                let value = request.headers().get(name)?;
                Some(value.to_str().unwrap().to_owned())
            };
            Self {
                path: request.uri().path().to_owned(),
                has_leader: header("hasleader").as_deref() == Some("true"),
                token: header("token"),
            }
        }
    }

    /// What a server has received.
    #[derive(Clone, Default)]
    struct Seen {
        asked: Arc<Mutex<Vec<Asked>>>,
        watches: Arc<Mutex<Vec<WatchCreateRequest>>>,
        /// Whether the client has closed its side of the watch.
        closed: Arc<Mutex<bool>>,
    }

    impl Seen {
        async fn answer(self, request: http::Request<Body>) -> http::Response<Body> {
            let path = request.uri().path().to_owned();
            self.asked.lock().unwrap().push(Asked::of(&request));
            match &*path {
                AUTHENTICATE => {
                    unary(request, |asked: AuthenticateRequest| {
                        if (&*asked.name, &*asked.password) == ("me", "pass:word") {
                            return Ok(AuthenticateResponse { token: "t0ken.1".to_owned() });
                        }
                        let text = "etcdserver: authentication failed, invalid user ID or password";
                        Err(Status::invalid_argument(text))
                    })
                    .await
                }
                RANGE => {
                    unary(request, |_: RangeRequest| {
                        Ok(RangeResponse { count: 7, ..RangeResponse::default() })
                    })
                    .await
                }
                _ => self.watch(request).await,
            }
        }

        /// Answers that each watch was created.
        async fn watch(self, request: http::Request<Body>) -> http::Response<Body> {
            let service = tower::service_fn(move |request: Request<Streaming<WatchRequest>>| {
                let seen = self.clone();
                let (said, mut told) = mpsc::channel(8);
                tokio::spawn(async move {
                    let mut asked = request.into_inner();
                    while let Ok(Some(one)) = asked.message().await {
                        seen.watches.lock().unwrap().extend(one.create_request);
                        let created = WatchResponse { created: true, ..WatchResponse::default() };
                        said.send(Ok(created)).await.unwrap();
                    }
                    *seen.closed.lock().unwrap() = true;
                    said.closed().await;
                });
                let told = stream::poll_fn(move |context| told.poll_recv(context)).boxed();
                async move { Ok::<_, Status>(Response::new(told)) }
            });
            let codec = ProstCodec::<WatchResponse, WatchRequest>::default();
            tonic::server::Grpc::new(codec).streaming(service, request).await
        }
    }

    async fn unary<Q, A>(
        request: http::Request<Body>,
        answer: fn(Q) -> Result<A, Status>,
    ) -> http::Response<Body>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let service = tower::service_fn(|request: Request<Q>| {
            let answer = answer(request.into_inner());
            async move { answer.map(Response::new) }
        });
        tonic::server::Grpc::new(ProstCodec::<A, Q>::default()).unary(service, request).await
    }

    async fn server() -> (Seen, Channel) {
        let seen = Seen::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = seen.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let seen = served.clone();
            async move { Ok::<_, Infallible>(seen.answer(request).await) }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve_grpc(stream, service.clone()));
            }
        });
        let endpoint = tonic::transport::Endpoint::from_shared(url).unwrap();
        (seen, endpoint.connect().await.unwrap())
    }

    fn user(password: &str) -> User {
        User { name: "me".to_owned(), password: password.to_owned() }
    }

    #[tokio::test]
    async fn a_token_and_the_leader_go_along() {
        let (seen, channel) = server().await;
        let client = Client::new("it", channel, Some(&user("pass:word"))).await.unwrap();
        assert_eq!(client.range("it", RangeRequest::default()).await.unwrap().count, 7);
        client.watch("it", vec![WatchCreateRequest::default()]).await.unwrap();
        let asked = |path: &str, token: Option<&str>| Asked {
            path: path.to_owned(),
            has_leader: true,
            token: token.map(str::to_owned),
        };
        let token = Some("t0ken.1");
        let all = [asked(AUTHENTICATE, None), asked(RANGE, token), asked(WATCH, token)];
        assert_eq!(*seen.asked.lock().unwrap(), all);
    }

    #[tokio::test]
    async fn nobody_is_named_where_there_is_no_user() {
        let (seen, channel) = server().await;
        let client = Client::new("it", channel, None).await.unwrap();
        client.range("it", RangeRequest::default()).await.unwrap();
        let all = seen.asked.lock().unwrap().clone();
        assert_eq!((all.len(), &all[0].token), (1, &None));
    }

    #[tokio::test]
    async fn a_wrong_password_is_said_and_not_shown() {
        let (_seen, channel) = server().await;
        let error = Client::new("it", channel, Some(&user("hunter2"))).await.err().unwrap();
        assert!(matches!(error, EtcdError::Credentials { .. }), "{error}");
        let asks = AuthenticateRequest { name: "me".into(), password: "hunter2".into() };
        let tells = AuthenticateResponse { token: "hunter2".into() };
        assert!(!format!("{error:?} {asks:?} {tells:?}").contains("hunter2"));
    }

    #[tokio::test]
    async fn a_stream_of_watches_is_open_until_it_is_dropped() {
        let (seen, channel) = server().await;
        let client = Client::new("it", channel, None).await.unwrap();
        let one = |key: &str| WatchCreateRequest { key: key.into(), ..Default::default() };
        let mut watches = client.watch("it", vec![one("a"), one("b")]).await.unwrap();
        for _ in 0..2 {
            let told = tokio::time::timeout(PATIENCE, watches.message("it")).await.unwrap();
            assert!(told.unwrap().unwrap().created);
        }
        assert_eq!(*seen.watches.lock().unwrap(), [one("a"), one("b")]);
        assert!(!*seen.closed.lock().unwrap());
        drop(watches);
        let closed = async {
            while !*seen.closed.lock().unwrap() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, closed).await.unwrap();
    }
}
