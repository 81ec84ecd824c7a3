//! The server with a fake core: the bytes on the wire, and the limits of clients.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::contract::IpamRange;
use crate::metrics::{Counted, Extent, Reading};

/// A server and a core that answers.
struct Rig {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<io::Result<()>>,
    core: JoinHandle<()>,
}

impl Rig {
    fn start(options: Options, ready: bool, ranges: usize) -> Self {
        let mut server = Server::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        server.options = options;
        let address = server.address().unwrap();
        let (asking, mut questions) = mpsc::channel(4);
        let core = tokio::spawn(async move {
            while let Some(question) = questions.recv().await {
                match question {
                    Question::Ready(reply) => drop(reply.send(ready)),
                    Question::Read(reply) => drop(reply.send(Arc::new(reading(ready, ranges)))),
                }
            }
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(server.run(asking, async move {
            let _ = stopped.await;
        }));
        Self { address, stop, server, core }
    }

    /// The whole response to these bytes.
    async fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        // A server that closes before it has read everything resets the connection, after its answer.
        let _ = stream.read_to_end(&mut response).await;
        String::from_utf8(response).unwrap()
    }

    async fn get(&self, path: &str, accept: &str) -> String {
        self.raw(&format!("GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\n\r\n")).await
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.server.await.unwrap().unwrap();
        self.core.await.unwrap();
    }
}

fn reading(ready: bool, ranges: usize) -> Reading {
    let range = |number: usize| IpamRange {
        store: "host-local".into(),
        network: format!("{number:0100}"),
        range: "10.0.3.2-10.0.3.254".into(),
        usable: 253,
        used: 1,
        leaked: Some(0),
        free: 252,
        held: Some(0),
        available: Some(252),
        path: None,
        time_left: None,
    };
    let told = (0..ranges).map(|number| (Extent::Node, range(number))).collect();
    let ranges = Counted { told, omitted: 0 };
    Reading { whole: ready, ranges, ..Reading::default() }
}

#[tokio::test]
async fn the_format_is_negotiated() {
    let rig = Rig::start(Options::default(), true, 1);
    let plain = rig.get("/metrics", "*/*").await;
    assert!(plain.starts_with("HTTP/1.1 200") && plain.contains("version=0.0.4"), "{plain}");
    assert!(plain.contains("# TYPE ipwatch_facts_total counter") && !plain.contains("# EOF"));
    let open = rig.get("/metrics", "application/openmetrics-text;version=1.0.0").await;
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.contains("# TYPE ipwatch_facts counter") && open.ends_with("# EOF\n"), "{open}");
    rig.stop().await;
}

#[tokio::test]
async fn health_is_an_answer_and_readiness_a_whole_map() {
    for (ready, readiness) in [(true, "HTTP/1.1 200"), (false, "HTTP/1.1 503")] {
        let rig = Rig::start(Options::default(), ready, 0);
        assert!(rig.get("/healthz", "*/*").await.starts_with("HTTP/1.1 200"));
        assert!(rig.get("/readyz", "*/*").await.starts_with(readiness));
        // Metrics can be read before that.
        let page = rig.get("/metrics", "*/*").await;
        assert!(page.contains(&format!("ipwatch_ready {}\n", u8::from(ready))), "{page}");
        rig.stop().await;
    }
}

#[tokio::test]
async fn what_is_not_asked_rightly_is_told_what_is_right() {
    let rig = Rig::start(Options::default(), true, 0);
    let unknown = rig.get("/", "*/*").await;
    assert!(unknown.starts_with("HTTP/1.1 404") && unknown.contains("/metrics"), "{unknown}");
    let post = rig.raw("POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await;
    assert!(post.starts_with("HTTP/1.1 405") && post.contains("allow: GET"), "{post}");
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(http::HEAD_LIMIT));
    assert!(rig.raw(&long).await.starts_with("HTTP/1.1 431"));
    assert!(rig.raw("nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    rig.stop().await;
}

/// `/healthz` is read by supervisors: a core that hangs must not look healthy.
#[tokio::test]
async fn a_core_that_stands_still_is_not_healthy() {
    let mut server = Server::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    server.options.answer = Duration::from_millis(100);
    let address = server.address().unwrap();
    let (asking, _questions) = mpsc::channel(1);
    let running = tokio::spawn(server.run(asking, std::future::pending()));
    for path in ["/healthz", "/readyz", "/metrics"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("or hangs"), "{answer}");
    }
    running.abort();
}

/// A server with two seats, and whoever has them: a client that requests 10 MB, more than the kernel buffers for a
/// connection, and reads nothing, and one that requests nothing. Connections are accepted in the order in which they
/// were made.
async fn occupied(patience: Duration) -> (Rig, [TcpStream; 2]) {
    let patience = Patience { head: patience, stall: patience };
    let options = Options { connections: 2, patience, whole: AN_HOUR, answer: AN_HOUR };
    let rig = Rig::start(options, true, 10_000);
    let mut deaf = TcpStream::connect(rig.address).await.unwrap();
    deaf.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let silent = TcpStream::connect(rig.address).await.unwrap();
    (rig, [deaf, silent])
}

/// Asks until the answer is 200.
async fn served(rig: &Rig, path: &str) -> String {
    let asked = async {
        loop {
            let page = rig.get(path, "*/*").await;
            if page.starts_with("HTTP/1.1 200") {
                return page;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), asked).await.unwrap()
}

/// Longer than any test.
const AN_HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_client_too_many_is_refused_and_counted() {
    let (rig, mut seated) = occupied(AN_HOUR).await;
    let mut begun = [0; 12];
    seated[0].read_exact(&mut begun).await.unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
    let refused = rig.get("/healthz", "*/*").await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("too many"), "{refused}");
    drop(seated);
    let page = served(&rig, "/metrics").await;
    let counted = page.lines().find(|line| line.starts_with("ipwatch_metrics_refused_total"));
    assert!(!counted.unwrap().ends_with(" 0"), "{counted:?}");
    rig.stop().await;
}

/// Whoever sends no request, or does not read what he requested, keeps his seat only for a while.
#[tokio::test]
async fn those_who_never_read_lose_their_places() {
    let (rig, seated) = occupied(Duration::from_millis(200)).await;
    served(&rig, "/healthz").await;
    drop(seated);
    rig.stop().await;
}

/// A client that gets neither a seat nor an answer is counted as well.
#[tokio::test]
async fn whoever_is_cut_off_is_counted() {
    let rig = Rig::start(Options { connections: 1, ..Options::default() }, true, 0);
    let mut clients = Vec::new();
    // One client is served and 16 get 503; they never send a request. Three more are cut off.
    for _ in 0..20 {
        clients.push(TcpStream::connect(rig.address).await.unwrap());
    }
    for cut_off in &mut clients[17..] {
        let _ = cut_off.read(&mut [0]).await;
    }
    drop(clients);
    let mut refused = 3;
    let page = loop {
        let page = rig.get("/metrics", "*/*").await;
        if page.starts_with("HTTP/1.1 200") {
            break page;
        }
        refused += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let counted = format!("ipwatch_metrics_refused_total {refused}");
    assert!(page.lines().any(|line| line == counted), "{counted}: {page}");
    rig.stop().await;
}

/// A client that reads a little at a time is not stalled, but its connection ends as well.
#[tokio::test]
async fn no_connection_lasts_for_ever() {
    let options = Options { whole: Duration::from_millis(300), ..Options::default() };
    let rig = Rig::start(options, true, 10_000);
    let mut slow = TcpStream::connect(rig.address).await.unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut some = vec![0; 4096];
    let dripping = async {
        while slow.read(&mut some).await.is_ok_and(|count| count > 0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(60), dripping).await.unwrap();
    rig.stop().await;
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Server::bind(&Listen::Tcp(address)).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("[metrics] listen"), "{error}");
    assert!(!error.contains('\n'));
}

#[tokio::test]
async fn a_unix_socket_is_served_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.sock");
    let listen = Listen::Unix(path.clone());
    let server = Server::bind(&listen).unwrap();
    let again = Server::bind(&listen).unwrap_err().to_string();
    assert!(again.contains("in use") && !again.contains("--socket"), "{again}");
    let (asking, mut questions) = mpsc::channel(1);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(asking, async move {
        let _ = stopped.await;
    }));
    let core = tokio::spawn(async move {
        while let Some(Question::Ready(reply)) = questions.recv().await {
            let _ = reply.send(true);
        }
    });
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    core.await.unwrap();
    assert!(!path.exists());
}
