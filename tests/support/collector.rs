//! A real OpenTelemetry collector (rotel) that prints what it receives.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::poll::{eventually, until};
use crate::{Lab, need, sys};

/// Why it cannot be run here.
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

/// A collector, which may be stopped.
#[derive(Debug)]
pub struct Collector {
    child: Option<Child>,
    output: PathBuf,
    ports: (u16, u16),
    /// Its endpoint for OTLP over gRPC.
    pub endpoint: String,
    /// Its endpoint for OTLP over HTTP.
    pub http: String,
}

/// A received span, as the collector printed it.
#[derive(Debug, Clone)]
pub struct Span {
    text: String,
}

impl Collector {
    /// Starts a collector on free ports of the loopback device and waits until it listens.
    #[must_use]
    pub fn start(lab: &Lab) -> Self {
        let ports = (free_port(), free_port());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (endpoint, http) = (url(ports.0), url(ports.1));
        let output = lab.dir().join("collector.log");
        let mut collector = Self { child: None, output, ports, endpoint, http };
        collector.again();
        collector
    }

    /// Starts the collector again on the same ports, and waits until it listens. Its output is appended.
    pub fn again(&mut self) {
        let (grpc, http) = self.ports;
        let sink = fs::File::options().create(true).append(true).open(&self.output);
        let sink = sink.expect("open the log");
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
        self.child = Some(child);
        until("the collector listens", 20, || TcpStream::connect(("127.0.0.1", grpc)).is_ok());
    }

    /// Kills the collector.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the collector as an operator does.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        sys::kill(child.id(), libc::SIGTERM).expect("signal the collector");
        eventually("the collector stops", 30, || child.try_wait().expect("wait for the collector"));
    }

    /// The port for OTLP over gRPC.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.0
    }

    /// Its output so far.
    #[must_use]
    pub fn received(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// The first span with this name that contains all these parts.
    #[must_use]
    pub fn span(&self, name: &str, parts: &[&str]) -> Option<Span> {
        let received = self.received();
        let mut all = received.split("Span #").skip(1);
        let meant = |text: &&str| text.contains(name) && parts.iter().all(|p| text.contains(p));
        all.find(meant).map(|text| Span { text: text.to_owned() })
    }

    /// Waits for that span.
    #[track_caller]
    pub fn await_span(&self, name: &str, parts: &[&str]) -> Span {
        let what = format!("the span {name} with {parts:?} has arrived");
        eventually(&what, 20, || self.span(name, parts))
    }

    /// Number of different spans with this name, however often each was sent.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        let received = self.received();
        let mut ids = BTreeSet::new();
        for text in received.split("Span #").skip(1) {
            // Names of attributes and links come later in the text.
            let head = &text[..text.floor_char_boundary(600)];
            if head.contains(name) {
                ids.insert(field(head, "ID"));
            }
        }
        ids.len() as u64
    }
}

impl Span {
    /// As it was printed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it points at another one.
    ///
    /// # Panics
    /// The other span has no ids.
    #[must_use]
    pub fn leads_to(&self, other: &Span) -> bool {
        let ids = [field(&other.text, "Trace ID"), field(&other.text, "ID")];
        assert_eq!(ids.map(str::len), [32, 16], "{other:?}");
        ids.iter().all(|id| self.text.contains(id))
    }
}

/// The value of a line.
fn field<'a>(span: &'a str, name: &str) -> &'a str {
    let line = span.lines().find(|line| line.trim_start().starts_with(name));
    line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
}

impl Drop for Collector {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let received = self.received();
            let last = received.len().saturating_sub(200_000);
            println!("the collector received:\n{}", &received[received.ceil_char_boundary(last)..]);
        }
        self.kill();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
