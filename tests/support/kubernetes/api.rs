//! A client of the API that uses curl, which is enough for the tests.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use super::control::{SERVER, secret};
use crate::{poll, sys};

/// Name of curl's configuration.
pub(super) const CONFIG: &str = "curl";

/// The server and the credentials.
#[derive(Debug, Clone)]
pub struct Api {
    /// curl's configuration with certificate and token, which must not be on the command line.
    config: PathBuf,
    netns: PathBuf,
    /// File in which created objects are recorded, so that they are deleted after the test.
    made: Option<PathBuf>,
}

impl Api {
    pub(super) fn new(dir: &Path, netns: &Path, certificate: &Path, token: &str) -> Self {
        let config = dir.join(CONFIG);
        let text =
            format!("cacert = {certificate:?}\nheader = \"Authorization: Bearer {token}\"\n");
        secret(&config, &text);
        Self { config, netns: netns.to_owned(), made: None }
    }

    /// Like `new`, with an existing configuration.
    pub(super) fn by(config: PathBuf, netns: &Path) -> Self {
        Self { config, netns: netns.to_owned(), made: None }
    }

    /// Records created objects from now on.
    pub(super) fn noting(mut self, list: PathBuf) -> Self {
        self.made = Some(list);
        self
    }

    /// Records a created object.
    pub(super) fn note(&self, path: &str) {
        let Some(list) = &self.made else { return };
        let list = std::fs::File::options().create(true).append(true).open(list);
        writeln!(list.expect("open a list"), "{path}").expect("note what is made");
    }

    pub fn get(&self, path: &str) -> Result<Value, String> {
        self.ask("GET", path, None)
    }

    #[track_caller]
    pub fn create(&self, path: &str, object: &Value) -> Value {
        self.ask("POST", path, Some(object)).unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// DELETE as by `kubectl delete --force --grace-period=0`.
    #[track_caller]
    pub fn force_delete(&self, path: &str) {
        let now = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0 });
        let done = self.ask("DELETE", path, Some(&now));
        done.unwrap_or_else(|error| panic!("DELETE {path}: {error}"));
    }

    /// Sends a request; returns the answer, or an error if the server refuses.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let mut curl = self.curl(path);
        curl.args(["--max-time", "30", "--write-out", "\n%{http_code}", "--request", method]);
        if body.is_some() {
            let kind = match method {
                "PATCH" => "strategic-merge-patch+json",
                _ => "json",
            };
            let kind = format!("Content-Type: application/{kind}");
            curl.args(["--header", &kind, "--data-binary", "@-"]);
        }
        curl.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn(&mut curl);
        let mut stdin = child.stdin.take().expect("a pipe");
        let text = body.map(Value::to_string).unwrap_or_default();
        // A curl that fails reads nothing.
        let _ = stdin.write_all(text.as_bytes());
        drop(stdin);
        let out = child.wait_with_output().expect("wait for curl");
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).into_owned());
        }
        let answer = String::from_utf8_lossy(&out.stdout);
        let (answer, code) = answer.rsplit_once('\n').unwrap_or(("", &*answer));
        if code.starts_with('2') {
            // `ok` of /readyz is not JSON.
            let answer: Value = serde_json::from_str(answer).unwrap_or_default();
            // What a dry run made is not there, and a DELETE of the path with its query would delete the collection.
            let made = method == "POST" && !path.contains('?');
            if let (true, Some(name)) = (made, answer["metadata"]["name"].as_str()) {
                self.note(&format!("{path}/{name}"));
            }
            Ok(answer)
        } else {
            Err(format!("{code}: {answer}"))
        }
    }

    /// Follows the Events of a namespace.
    #[must_use]
    pub fn events(&self, namespace: &str) -> Events {
        let mut curl = self.curl(&format!("/api/v1/namespaces/{namespace}/events?watch=1"));
        curl.arg("--no-buffer").stdin(Stdio::null()).stderr(Stdio::inherit());
        let mut child = self.spawn(&mut curl);
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let at = Instant::now();
                let mut change: Value = serde_json::from_str(&line).expect("a JSON line");
                let event = change["object"].take();
                all.lock().unwrap_or_else(PoisonError::into_inner).push((at, event));
            }
        });
        Events { child, heard }
    }

    fn curl(&self, path: &str) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--config"]).arg(&self.config);
        curl.arg(format!("{SERVER}{path}")).stdout(Stdio::piped());
        curl
    }

    fn spawn(&self, command: &mut Command) -> Child {
        sys::on_own_thread(|| {
            sys::enter_netns(&self.netns).expect("enter the netns");
            command.spawn().expect("start curl")
        })
    }
}

/// The Events of a namespace, with the times at which they were received.
#[derive(Debug)]
pub struct Events {
    child: Child,
    heard: Arc<Mutex<Vec<(Instant, Value)>>>,
}

impl Events {
    /// All so far.
    #[must_use]
    pub fn all(&self) -> Vec<(Instant, Value)> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those about a pod so far.
    #[must_use]
    pub fn of(&self, pod: &str) -> Vec<(Instant, Value)> {
        let about = |event: &Value| event["involvedObject"]["name"] == pod;
        self.all().into_iter().filter(|(_, event)| about(event)).collect()
    }

    /// Waits for the first Event about a pod with this reason.
    #[must_use]
    #[track_caller]
    pub fn await_first(&self, pod: &str, reason: &str, seconds: u32) -> (Instant, Value) {
        let first = || self.of(pod).into_iter().find(|(_, event)| event["reason"] == reason);
        poll::settle(seconds, || first().is_some());
        let said = || -> Vec<String> {
            let line = |event: &Value| format!("{}: {}", event["reason"], event["message"]);
            self.of(pod).iter().map(|(_, event)| line(event)).collect()
        };
        first().unwrap_or_else(|| panic!("no {reason} of {pod}, but: {:#?}", said()))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
