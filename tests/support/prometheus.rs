//! A real Prometheus that scrapes the daemon, its promtool, and manual scrapes.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::collector::free_port;
use crate::poll::{eventually, until};
use crate::{Lab, need, patience, sys};

/// Why it cannot be run here.
#[must_use]
pub fn missing() -> Option<String> {
    match std::env::var_os("IPWATCH_TEST_PROMETHEUS").filter(|path| !path.is_empty()) {
        Some(_) => ["prometheus", "promtool"].iter().find_map(|name| need::absent(binary(name))),
        None => Some("no Prometheus (IPWATCH_TEST_PROMETHEUS is not set)".to_owned()),
    }
}

fn binary(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("IPWATCH_TEST_PROMETHEUS").unwrap_or_default()).join(name)
}

/// Runs `promtool ARGS` in a directory with this input.
#[must_use]
pub fn promtool(args: &[&str], dir: &Path, input: &str) -> Output {
    let mut child = Command::new(binary("promtool"))
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start promtool");
    let mut stdin = child.stdin.take().expect("its input");
    // promtool reads all its input before it prints anything.
    stdin.write_all(input.as_bytes()).expect("write to promtool");
    drop(stdin);
    child.wait_with_output().expect("wait for promtool")
}

/// An address for the metrics of a lab's daemon, with a port that was free a moment ago.
#[must_use]
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// The answer to a manual scrape.
#[derive(Debug)]
pub struct Page {
    pub status: u16,
    /// The head of the answer, in lower case.
    pub head: String,
    pub body: String,
}

impl Page {
    /// The samples of a metric.
    #[must_use]
    pub fn samples(&self, name: &str) -> Vec<&str> {
        let of =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        self.body.lines().filter(of).collect()
    }

    /// The value of the only sample of a metric.
    ///
    /// # Panics
    /// There is none, or more than one.
    #[must_use]
    #[track_caller]
    pub fn value(&self, name: &str) -> f64 {
        let samples = self.samples(name);
        assert_eq!(samples.len(), 1, "{name}: {samples:?}");
        samples[0].rsplit(' ').next().and_then(|text| text.parse().ok()).expect("a value")
    }
}

/// Requests a path with this `Accept`. `None` if nobody listens, or if the connection is reset because there is no
/// free seat.
#[must_use]
pub fn get(address: &str, path: &str, accept: &str) -> Option<Page> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30) * patience())).ok()?;
    match exchange(stream, path, accept) {
        Ok(page) => Some(page),
        Err(error) => {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
            assert!(matches!(error.kind(), BrokenPipe | ConnectionReset), "{error}");
            None
        }
    }
}

/// Like [`get`], from a Unix socket.
#[must_use]
pub fn get_unix(socket: &Path, path: &str) -> Page {
    let stream = std::os::unix::net::UnixStream::connect(socket).expect("connect");
    exchange(stream, path, "*/*").expect("an answer")
}

fn exchange(
    mut stream: impl Read + std::io::Write,
    path: &str,
    accept: &str,
) -> std::io::Result<Page> {
    // HTTP/1.0: the answer ends with the connection, and has no chunks.
    let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\naccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    Ok(Page { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

/// A running Prometheus.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    log: PathBuf,
    address: String,
}

impl Prometheus {
    /// Starts it with one target and these rules, and waits for the first scrape.
    #[must_use]
    pub fn start(lab: &Lab, target: &str, rules: &[(&str, &str)]) -> Self {
        let dir = lab.subdir("prometheus");
        let mut names = String::new();
        for (name, text) in rules {
            fs::write(dir.join(name), text).expect("write the rules");
            let _ = write!(names, "{name}, ");
        }
        let config = format!(
            "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\nrule_files: [{names}]\n\
             scrape_configs:\n  - job_name: ipwatch\n    static_configs: [{{targets: ['{target}']}}]\n"
        );
        fs::write(dir.join("prometheus.yml"), config).expect("write the configuration");
        let (address, log) = (free_address(), dir.join("log"));
        let sink = File::create(&log).expect("open the log");
        let child = Command::new(binary("prometheus"))
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(sink.try_clone().expect("a second handle"))
            .stderr(sink)
            .spawn()
            .expect("start prometheus");
        let prometheus = Self { child, log, address };
        until("prometheus has scraped the daemon", 40, || {
            get(&prometheus.address, "/-/ready", "*/*").is_some_and(|page| page.status == 200)
                && prometheus.value("up{job=\"ipwatch\"}") == Some(1.0)
        });
        prometheus
    }

    /// The data of an answer of its API.
    ///
    /// # Panics
    /// The API returns an error.
    #[must_use]
    #[track_caller]
    pub fn api(&self, path: &str) -> Value {
        let page = eventually("prometheus answers", 10, || get(&self.address, path, "*/*"));
        let answer: Value = serde_json::from_str(&page.body).expect("JSON");
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The result of an instant query.
    ///
    /// # Panics
    /// The query fails.
    #[must_use]
    #[track_caller]
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let mut path = String::from("/api/v1/query?query=");
        for byte in expression.bytes() {
            let _ = write!(path, "%{byte:02x}");
        }
        self.api(&path)["result"].as_array().cloned().unwrap_or_default()
    }

    /// The first value of a query's result.
    #[must_use]
    pub fn value(&self, expression: &str) -> Option<f64> {
        self.query(expression).first()?["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("prometheus said:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
        let _ = sys::kill(self.child.id(), libc::SIGKILL);
        let _ = self.child.wait();
    }
}
