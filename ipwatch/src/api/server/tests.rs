//! The server with a fake core: the bytes on the wire, and the limits of clients.

use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::api::client::{Client, ClientError};
use crate::api::{Ask, AskError, Event, Questions, Request, Selector, Stream, questions};
use crate::contract::{self, Body, Document, HeldQuestion, SCHEMA, Tenure};

/// A server with a fake core, in a temporary directory.
struct Rig {
    path: PathBuf,
    requests: Questions,
    events: Streams,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<io::Result<()>>,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn start(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipwatch.sock");
        let server = Server::bind(&path, options).unwrap();
        let (sender, requests) = questions(4);
        let events = Streams::new(4);
        let (stop, stopped) = oneshot::channel::<()>();
        let running = server.run(sender, events.clone(), async move {
            let _ = stopped.await;
        });
        Self { path, requests, events, stop: Some(stop), server: tokio::spawn(running), _dir: dir }
    }

    fn client(&self) -> Client {
        Client::new(&self.path)
    }

    /// Answers the next question.
    async fn reply(&mut self, answer: Result<Document, AskError>) -> Ask {
        let Request { ask, uid, reply } = self.requests.recv().await.unwrap();
        assert_eq!(uid, rustix::process::geteuid().as_raw());
        reply.send(answer).unwrap();
        ask
    }

    /// The whole response to these bytes.
    async fn raw(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(&self.path).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        // A server that closes before it has read everything resets the connection, after its answer.
        let _ = stream.read_to_end(&mut response).await;
        String::from_utf8(response).unwrap()
    }

    async fn get(&self, target: &str) -> String {
        self.raw(&format!("GET {target} HTTP/1.1\r\nhost: x\r\n\r\n")).await
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.server.await.unwrap().unwrap();
        assert!(!self.path.exists(), "the socket is removed");
    }
}

fn options() -> Options {
    Options { group: "ipwatch-no-such-group".into(), ..Options::default() }
}

fn document(body: Body) -> Document {
    Document {
        schema: SCHEMA.into(),
        node: "node-17".into(),
        taken_at: "2026-01-02T03:10:10.000Z".into(),
        sources: Vec::new(),
        body,
        reservations: Vec::new(),
        networks: Vec::new(),
        refused: Vec::new(),
        blind: Vec::new(),
        daemon: None,
        runs: Vec::new(),
    }
}

fn held(last: u8) -> Event {
    Event::Held(Tenure {
        ip: [10, 0, 3, last].into(),
        netns: contract::Netns::default(),
        container: None,
        pod: None,
        from: "2026-01-02T03:04:05.000Z".into(),
        preexisting: false,
        to: None,
        ended_by: None,
        times: None,
    })
}

#[tokio::test]
async fn a_question_reaches_the_core_and_its_answer_comes_back() {
    let mut rig = Rig::start(options());
    let client = rig.client();
    let ask = Ask::Addresses(Selector::Pod(Some("shop/api-0".into())));
    let expected = document(Body::Addresses(Vec::new()));
    let (asked, answered) = tokio::join!(rig.reply(Ok(expected.clone())), client.ask(&ask));
    assert_eq!(asked, ask);
    assert_eq!(answered.unwrap(), expected);
    rig.stop().await;
}

/// An ADD waits for 20 ms. Whoever may ask for lists asks for many at the same time.
#[tokio::test]
async fn a_pod_that_starts_waits_for_no_list() {
    let mut rig = Rig::start(options());
    let lists: Vec<_> = (0..2 * DOCUMENTS)
        .map(|_| {
            let client = rig.client();
            tokio::spawn(async move { client.ask(&Ask::Doctor).await })
        })
        .collect();
    let first = rig.requests.recv().await.unwrap();
    let client = rig.client();
    let held = tokio::spawn(async move { client.ask(&Ask::Held(HeldQuestion::default())).await });
    let next = timeout(Duration::from_secs(20), async {
        loop {
            if let Some(request) = rig.requests.urgent() {
                return request;
            }
            tokio::task::yield_now().await;
        }
    });
    let Request { ask, reply, .. } = next.await.expect("it comes although no list is answered");
    assert_eq!(ask, Ask::Held(HeldQuestion::default()));
    reply.send(Ok(document(Body::Held(contract::Held::default())))).unwrap();
    assert!(held.await.unwrap().is_ok());
    drop(first);
    lists.iter().for_each(JoinHandle::abort);
    rig.stop().await;
}

#[tokio::test]
async fn the_cores_refusals_keep_their_kind() {
    let mut rig = Rig::start(options());
    for (refusal, expected) in [
        (AskError::NotFound("no pod shop/api-0".into()), 404),
        (AskError::Ambiguous("k3 is two findings".into()), 409),
        (AskError::Unavailable("still starting".into()), 503),
    ] {
        let client = rig.client();
        let (_, answer) = tokio::join!(rig.reply(Err(refusal.clone())), client.ask(&Ask::Doctor));
        match answer.unwrap_err() {
            ClientError::Refused { status, error, hint } => {
                assert_eq!((status, error), (expected, refusal.to_string()));
                assert!(!hint.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
    rig.stop().await;
}

#[tokio::test]
async fn what_is_not_asked_rightly_is_told_what_is_right() {
    let rig = Rig::start(options());
    let unknown = rig.get("/v1/nonsense").await;
    assert!(unknown.starts_with("HTTP/1.1 404"), "{unknown}");
    assert!(unknown.contains("/v1/neighbours") && unknown.contains("\"schema\":\"ipwatch/v1\""));
    let bad = rig.get("/v1/addresses?ip=10.0.0.300").await;
    assert!(bad.starts_with("HTTP/1.1 400") && bad.contains("10.0.3.17"), "{bad}");
    let post = rig.raw("POST /v1/doctor HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await;
    assert!(post.starts_with("HTTP/1.1 405") && post.contains("allow: GET"), "{post}");
    let looked = rig.get("/v1/ack?what=k3f9").await;
    assert!(looked.starts_with("HTTP/1.1 405"), "nothing is changed by looking: {looked}");
    let long = format!("GET /v1/doctor HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(http::HEAD_LIMIT));
    assert!(rig.raw(&long).await.starts_with("HTTP/1.1 431"));
    rig.stop().await;
}

#[tokio::test]
async fn health_tells_how_the_sources_stand() {
    let mut rig = Rig::start(options());
    for (status, expected) in [
        (crate::fact::SourceStatus::Active, "ok"),
        (crate::fact::SourceStatus::Disabled, "ok"),
        (crate::fact::SourceStatus::Down, "degraded"),
    ] {
        let mut answer = document(Body::Probes(Vec::new()));
        answer.sources.push(contract::SourceState {
            name: "netlink".into(),
            status,
            detail: String::new(),
        });
        let client = rig.client();
        let (asked, health) = tokio::join!(rig.reply(Ok(answer)), client.health());
        assert_eq!(asked, Ask::Doctor);
        let health = health.unwrap();
        assert_eq!(health["status"], expected);
        assert_eq!(health["sources"][0]["name"], "netlink");
    }
    rig.stop().await;
}

#[tokio::test]
async fn a_follower_sees_events_in_order() {
    let rig = Rig::start(options());
    let mut watch = rig.client().watch(Stream::Events).await.unwrap();
    for last in 1..=3 {
        rig.events.send(held(last));
        assert_eq!(watch.next().await.unwrap(), Some(held(last)));
    }
    rig.stop().await;
    assert_eq!(watch.next().await.unwrap(), None, "the stream ends with the daemon");
}

#[tokio::test]
async fn a_follower_that_was_overtaken_is_told_by_how_much() {
    let rig = Rig::start(options());
    let mut watch = rig.client().watch(Stream::Events).await.unwrap();
    // The channel holds four. Nothing is read in between: sending does not yield.
    for last in 1..=10 {
        rig.events.send(held(last));
    }
    assert_eq!(watch.next().await.unwrap(), Some(Event::Lagged { dropped: 6 }));
    assert_eq!(watch.next().await.unwrap(), Some(held(7)));
    rig.stop().await;
}

#[tokio::test]
async fn followers_are_few_and_one_that_left_makes_room() {
    let rig = Rig::start(Options { watchers: 1, ..options() });
    let first = rig.client().watch(Stream::Events).await.unwrap();
    let Err(ClientError::Refused { status: 503, hint, .. }) =
        rig.client().watch(Stream::Events).await
    else {
        panic!("a second follower was let in")
    };
    assert!(hint.contains("ipwatch watch"));
    drop(first);
    // The server notices the disconnect without an event to write.
    let again = async {
        while rig.client().watch(Stream::Events).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), again).await.unwrap();
    rig.stop().await;
}

#[tokio::test]
async fn one_client_too_many_is_told_and_silent_ones_lose_their_place() {
    let rig = Rig::start(Options {
        connections: 1,
        head_timeout: Duration::from_millis(300),
        ..options()
    });
    let mut silent = UnixStream::connect(&rig.path).await.unwrap();
    let refused = rig.get("/v1/doctor?x=1").await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    for part in ["\"error\":\"too many clients are connected\"", "try again in a moment; `ss -xp`"]
    {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let mut rest = String::new();
    // The server closes the connection.
    timeout(Duration::from_secs(10), silent.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert!(rig.get("/v1/doctor?x=1").await.starts_with("HTTP/1.1 400"));
    rig.stop().await;
}

/// Whoever only connects is let go after a second unless told otherwise, and the daemon tells nothing otherwise.
#[test]
fn an_unfinished_request_expires_after_a_second_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::bind(&dir.path().join("ipwatch.sock"), options()).unwrap();
    let (second, usual) = (Duration::from_secs(1), Options::default());
    assert_eq!(usual.head_timeout, second);
    assert_eq!((server.options.patience().head, usual.patience().head), (second, second));
}

#[tokio::test]
async fn a_follower_that_never_reads_is_let_go_and_nobody_waits_for_it() {
    let mut rig =
        Rig::start(Options { watchers: 1, stall_timeout: Duration::from_millis(200), ..options() });
    let mut deaf = UnixStream::connect(&rig.path).await.unwrap();
    deaf.write_all(b"GET /v1/watch HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut head = [0; 8];
    deaf.read_exact(&mut head).await.unwrap();
    let (events, flood) = (rig.events.clone(), Arc::new(std::sync::atomic::AtomicBool::new(true)));
    let flooding = Arc::clone(&flood);
    let flooder = tokio::spawn(async move {
        while flooding.load(std::sync::atomic::Ordering::Relaxed) {
            events.send(held(1));
            tokio::task::yield_now().await;
        }
    });
    // The core answers while the buffers of the client that does not read fill up.
    let client = rig.client();
    let answer = document(Body::Probes(Vec::new()));
    let (_, answered) = tokio::join!(rig.reply(Ok(answer)), client.ask(&Ask::Doctor));
    answered.unwrap();
    let freed = async {
        while rig.client().watch(Stream::Events).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), freed).await.unwrap();
    flood.store(false, std::sync::atomic::Ordering::Relaxed);
    flooder.await.unwrap();
    drop(deaf);
    rig.stop().await;
}

#[tokio::test]
async fn a_core_that_does_not_answer_is_named() {
    let mut rig = Rig::start(Options { answer_timeout: Duration::from_millis(100), ..options() });
    let client = rig.client();
    let Err(ClientError::Refused { status: 504, .. }) = client.ask(&Ask::Doctor).await else {
        panic!("no timeout")
    };
    let _ = rig.requests.recv().await;
    // The same for a core that has ended.
    rig.requests.close();
    let Err(ClientError::Refused { status: 503, error, .. }) = client.ask(&Ask::Doctor).await
    else {
        panic!("an answer from nobody")
    };
    assert!(error.contains("the daemon is stopping"), "{error}");
    rig.stop().await;
}

#[tokio::test]
async fn the_client_says_why_nobody_answers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ipwatch.sock");
    let missing = Client::new(&path).ask(&Ask::Doctor).await.unwrap_err();
    assert!(matches!(missing, ClientError::NoDaemon(_)));
    let text = missing.to_string();
    assert!(text.contains("ipwatch run") && text.contains("ipwatch scan"), "{text}");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let stale = Client::new(&path).ask(&Ask::Doctor).await.unwrap_err();
    assert!(matches!(stale, ClientError::NoDaemon(_)));
}

#[tokio::test]
async fn the_client_names_a_daemon_of_another_schema() {
    let mut rig = Rig::start(options());
    let newer = Document { schema: "ipwatch/v9".into(), ..document(Body::Probes(Vec::new())) };
    let client = rig.client();
    let (_, answer) = tokio::join!(rig.reply(Ok(newer)), client.ask(&Ask::Doctor));
    let Err(ClientError::Schema { theirs, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(theirs, "ipwatch/v9");
    rig.stop().await;
}

/// Both barriers, with a real foreign user: the file's mode, and the peer's credentials.
#[tokio::test]
async fn a_foreign_user_is_refused_with_a_reason() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let rig = Rig::start(options());
    let directory = rig.path.parent().unwrap();
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let closed = as_nobody(rig.client()).await;
    assert!(matches!(closed, ClientError::Denied(_)), "{closed:?}");
    std::fs::set_permissions(&rig.path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let refused = as_nobody(rig.client()).await;
    let ClientError::Refused { status: 403, error, hint } = refused else { panic!("{refused:?}") };
    assert!(error.contains("65534") && hint.contains("usermod"), "{error}: {hint}");
    rig.stop().await;
}

/// A server with eight connections, to which every user can connect and where a request may take its time.
fn open_to_all() -> Rig {
    use std::os::unix::fs::PermissionsExt;
    let head_timeout = Duration::from_secs(60);
    let rig = Rig::start(Options { connections: 8, head_timeout, ..options() });
    let open = std::fs::Permissions::from_mode;
    std::fs::set_permissions(rig.path.parent().unwrap(), open(0o755)).unwrap();
    std::fs::set_permissions(&rig.path, open(0o666)).unwrap();
    rig
}

/// One user opens as many connections as possible and sends no request.
#[tokio::test]
async fn whoever_only_connects_keeps_no_seat_from_root() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let rig = open_to_all();
    let path = rig.path.clone();
    let held = std::thread::spawn(move || {
        become_nobody();
        let all = (0..40).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap());
        all.collect::<Vec<_>>()
    });
    let held = tokio::task::spawn_blocking(move || held.join().unwrap()).await.unwrap();
    for _ in 0..4 {
        let answer = rig.get("/v1/doctor?x=1").await;
        assert!(answer.starts_with("HTTP/1.1 400"), "root is answered: {answer}");
    }
    drop(held);
    rig.stop().await;
}

/// A user who has his quarter of the connections is told so, and not that there are too many clients.
#[tokio::test]
async fn whoever_has_his_quarter_is_told_that_it_is_his() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let rig = open_to_all();
    let path = rig.path.clone();
    let held = std::thread::spawn(move || {
        become_nobody();
        [(); 2].map(|()| std::os::unix::net::UnixStream::connect(&path).unwrap())
    });
    let held = tokio::task::spawn_blocking(move || held.join().unwrap()).await.unwrap();
    let refused = as_nobody(rig.client()).await;
    let ClientError::Refused { status: 503, error, hint } = refused else { panic!("{refused:?}") };
    assert_eq!(error, "user 65534 has as many clients connected as one user may have");
    assert_eq!(hint, "try again in a moment; `ss -xp` shows who is connected");
    drop(held);
    rig.stop().await;
}

/// In Linux each thread has its own credentials.
fn become_nobody() {
    let (uid, gid) = (rustix::fs::Uid::from_raw(65534), rustix::fs::Gid::from_raw(65534));
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
}

/// Asks from a thread whose user is nobody.
async fn as_nobody(client: Client) -> ClientError {
    let asked = std::thread::spawn(move || {
        become_nobody();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(client.ask(&Ask::Doctor)).unwrap_err()
    });
    tokio::task::spawn_blocking(move || asked.join().unwrap()).await.unwrap()
}

/// A document that exceeds the buffers of a socket.
fn large() -> Document {
    Document { node: "n".repeat(3 << 20), ..document(Body::Probes(Vec::new())) }
}

/// Requests the large document and reads only the beginning of the answer.
async fn visitor(rig: &mut Rig) -> UnixStream {
    let mut stream = UnixStream::connect(&rig.path).await.unwrap();
    stream.write_all(b"GET /v1/doctor HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    rig.reply(Ok(large())).await;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    stream
}

#[tokio::test]
async fn few_read_large_answers_at_one_time() {
    let mut rig = Rig::start(options());
    let mut readers = Vec::new();
    for _ in 0..DOCUMENTS {
        readers.push(visitor(&mut rig).await);
    }
    let client = rig.client();
    let (_, refused) = tokio::join!(rig.reply(Ok(large())), client.ask(&Ask::Doctor));
    let Err(ClientError::Refused { status: 503, hint, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(hint.starts_with("ask for less"), "{hint}");
    // A small answer is still served.
    let small = document(Body::Probes(Vec::new()));
    let (_, answered) = tokio::join!(rig.reply(Ok(small)), client.ask(&Ask::Doctor));
    answered.unwrap();
    // A client that disconnects makes room.
    drop(readers.pop());
    let room = async {
        while tokio::join!(rig.reply(Ok(large())), client.ask(&Ask::Doctor)).1.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), room).await.unwrap();
    rig.stop().await;
}

#[tokio::test]
async fn whoever_reads_byte_by_byte_is_let_go() {
    let mut rig = Rig::start(Options { whole_timeout: Duration::from_secs(3), ..options() });
    let mut slow = visitor(&mut rig).await;
    let ended = async {
        // Slower than the server's timeout, which is long enough for the answer to begin on a busy machine.
        let mut part = [0; 4096];
        let mut read = 0;
        // The client can read what is buffered; then the stream ends before the answer does.
        while let Ok(some @ 1..) = slow.read(&mut part).await {
            read += some;
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        read
    };
    let read = timeout(Duration::from_secs(60), ended).await.unwrap();
    assert!(read < 3 << 20, "{read}");
    rig.stop().await;
}
