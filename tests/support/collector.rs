//! A real OpenTelemetry collector (rotel) that prints what it receives.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::poll::until;
use crate::{Lab, need};

/// What is missing here to run it.
#[must_use]
pub fn missing() -> Option<String> {
    match binary() {
        Some(path) => need::absent(path),
        None => Some("no rotel (IPWATCH_TEST_ROTEL is not set)".to_owned()),
    }
}

fn binary() -> Option<PathBuf> {
    std::env::var_os("IPWATCH_TEST_ROTEL").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A running collector.
#[derive(Debug)]
pub struct Collector {
    child: Child,
    output: PathBuf,
    /// Where it takes OTLP over gRPC.
    pub endpoint: String,
    /// Where it takes OTLP over HTTP.
    pub http: String,
}

impl Collector {
    /// Starts it on free ports of the loopback and waits until it listens.
    #[must_use]
    pub fn start(lab: &Lab) -> Self {
        let (grpc, http) = (free_port(), free_port());
        let output = lab.dir().join("collector.log");
        let sink = fs::File::create(&output).expect("open the log");
        let child = Command::new(binary().expect("a collector"))
            .arg("start")
            .args(["--otlp-grpc-endpoint", &format!("127.0.0.1:{grpc}")])
            .args(["--otlp-http-endpoint", &format!("127.0.0.1:{http}")])
            .args(["--exporter", "blackhole", "--debug-log", "traces"])
            .args(["--debug-log-verbosity", "detailed"])
            .stdin(Stdio::null())
            .stdout(sink.try_clone().expect("a second handle"))
            .stderr(sink)
            .spawn()
            .expect("start the collector");
        until("the collector listens", 20, || {
            std::net::TcpStream::connect(("127.0.0.1", grpc)).is_ok()
        });
        let (endpoint, http) =
            (format!("http://127.0.0.1:{grpc}"), format!("http://127.0.0.1:{http}"));
        Self { child, output, endpoint, http }
    }

    /// What it received and printed so far.
    #[must_use]
    pub fn received(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the collector received:\n{}", self.received());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
