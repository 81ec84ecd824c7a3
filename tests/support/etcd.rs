//! A real etcd on a loopback port with both APIs, accessed by curl: its v3 API over HTTP (the JSON gateway), and its
//! v2 API.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::poll::until;
use crate::{Lab, kubernetes, need, sys};

/// Why it cannot be run here.
#[must_use]
pub fn missing() -> Option<String> {
    kubernetes::without(&["etcd"])
        .or_else(|| ["/usr/bin/curl", "/usr/bin/openssl"].into_iter().find_map(need::absent))
}

/// Killed when dropped; the end of its log is printed for a test that fails.
#[derive(Debug)]
pub struct Etcd {
    dir: PathBuf,
    /// The port for clients.
    port: u16,
    peers: u16,
    secure: bool,
    child: Child,
}

impl Etcd {
    /// Starts etcd and waits until it answers.
    #[must_use]
    pub fn start(lab: &Lab) -> Self {
        Self::new(lab, false)
    }

    /// Like `start`, over TLS and with client certificates.
    #[must_use]
    pub fn secure(lab: &Lab) -> Self {
        Self::new(lab, true)
    }

    fn new(lab: &Lab, secure: bool) -> Self {
        let dir = lab.subdir("etcd");
        if secure {
            certificates(&dir);
        }
        let (port, peers) = (free(), free());
        let child = spawn(&dir, port, peers, secure);
        let mut etcd = Self { dir, port, peers, secure, child };
        etcd.await_ready();
        etcd
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", if self.secure { "https" } else { "http" }, self.port)
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The `[calico]` section for it.
    #[must_use]
    pub fn lines(&self, api: &str) -> String {
        let mut lines =
            format!("[calico]\netcd_endpoints = [{:?}]\netcd_api = {api:?}\n", self.url());
        if self.secure {
            for (key, file) in [("ca", "ca.pem"), ("cert", "client.pem"), ("key", "client-key.pem")]
            {
                lines += &format!("etcd_{key}_file = {:?}\n", self.dir.join(file));
            }
        }
        lines
    }

    /// Kills etcd; its data stays on disk.
    pub fn crash(&mut self) {
        let _ = sys::kill(self.child.id(), libc::SIGKILL);
        let _ = self.child.wait();
    }

    /// Restarts etcd, and waits until it answers.
    pub fn restart(&mut self) {
        self.child = spawn(&self.dir, self.port, self.peers, self.secure);
        self.await_ready();
    }

    /// Kills etcd, calls `work` with it on another port, and restarts it on its own port.
    pub fn while_away(&mut self, work: impl FnOnce(&mut Self)) {
        self.crash();
        let home = std::mem::replace(&mut self.port, free());
        self.restart();
        work(self);
        self.crash();
        self.port = home;
        self.restart();
    }

    /// Stops etcd (SIGSTOP): it accepts connections, and answers nothing.
    pub fn hang(&self) {
        sys::kill(self.child.id(), libc::SIGSTOP).expect("stop it");
    }

    /// Continues etcd.
    pub fn go_on(&self) {
        sys::kill(self.child.id(), libc::SIGCONT).expect("have it go on");
    }

    /// Sets a key of the v3 API.
    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        self.v3("kv/put", &json!({ "key": encoded(key), "value": encoded(value) }));
    }

    /// Deletes a key of the v3 API.
    #[track_caller]
    pub fn delete(&self, key: &str) {
        self.v3("kv/deleterange", &json!({ "key": encoded(key) }));
    }

    /// Compacts the history.
    #[track_caller]
    pub fn compact(&self) {
        let now = self.v3("kv/range", &json!({ "key": encoded("/") }));
        self.v3("kv/compaction", &json!({ "revision": now["header"]["revision"] }));
    }

    /// A request of the v3 API.
    #[track_caller]
    pub fn v3(&self, what: &str, body: &Value) -> Value {
        let text = self.curl(&[], &format!("/v3/{what}"), Some(&body.to_string()));
        let answer = text.unwrap_or_else(|error| panic!("{what}: {error}"));
        serde_json::from_str(&answer).expect("a JSON answer")
    }

    /// Grants a role to a user. `token` must be of a user who may.
    #[track_caller]
    pub fn grant(&self, token: &str, user: &str, role: &str) {
        let body = json!({ "user": user, "role": role }).to_string();
        let header = format!("Authorization: {token}");
        let done = self.curl(&["--header", &header], "/v3/auth/user/grant", Some(&body));
        done.unwrap_or_else(|error| panic!("grant: {error}"));
    }

    /// Permits a role to read the keys in a range.
    #[track_caller]
    pub fn grant_read(&self, token: &str, role: &str, from: &str, end: &str) {
        let range = json!({ "permType": "READ", "key": encoded(from), "range_end": encoded(end) });
        let body = json!({ "name": role, "perm": range }).to_string();
        let header = format!("Authorization: {token}");
        let done = self.curl(&["--header", &header], "/v3/auth/role/grant", Some(&body));
        done.unwrap_or_else(|error| panic!("grant: {error}"));
    }

    /// Sets a key of the v2 API. `[1-9]` in a name sets nine keys.
    #[track_caller]
    pub fn set(&self, key: &str, value: &str) {
        let value = format!("value={value}");
        let set = ["--request", "PUT", "--data-urlencode", &value];
        self.curl(&set, &format!("/v2/keys{key}"), None).unwrap_or_else(|e| panic!("{key}: {e}"));
    }

    /// Deletes a directory of the v2 API with its contents.
    #[track_caller]
    pub fn remove(&self, key: &str) {
        let path = format!("/v2/keys{key}?recursive=true");
        self.curl(&["--request", "DELETE"], &path, None).unwrap_or_else(|e| panic!("{key}: {e}"));
    }

    /// The sum of the counters whose lines begin with this text.
    #[must_use]
    #[track_caller]
    pub fn counted(&self, begins: &str) -> u64 {
        let text = self.curl(&[], "/metrics", None).expect("its metrics");
        let lines = text.lines().filter(|line| line.starts_with(begins));
        let value = |line: &str| line.rsplit_once(' ').and_then(|(_, n)| n.parse::<f64>().ok());
        lines.filter_map(value).sum::<f64>() as u64
    }

    fn await_ready(&mut self) {
        until("etcd answers", 60, || {
            let ended = self.child.try_wait().expect("wait for it");
            assert!(ended.is_none(), "etcd ended: {ended:?}");
            self.curl(&[], "/health", None).is_ok_and(|text| text.contains("true"))
        });
    }

    fn curl(&self, more: &[&str], path: &str, body: Option<&str>) -> Result<String, String> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "30"]).args(more);
        if self.secure {
            for (option, file) in
                [("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client-key.pem")]
            {
                curl.arg(option).arg(self.dir.join(file));
            }
        }
        if body.is_some() {
            curl.args(["--data-binary", "@-"]);
        }
        curl.arg(format!("{}{path}", self.url()));
        curl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = curl.spawn().map_err(|error| error.to_string())?;
        // A curl that fails reads nothing.
        let _ = child.stdin.take().expect("a pipe").write_all(body.unwrap_or("").as_bytes());
        let out = child.wait_with_output().map_err(|error| error.to_string())?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.crash();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(25).collect();
            println!("etcd said last:");
            tail.iter().rev().for_each(|line| println!("{line}"));
        }
    }
}

fn spawn(dir: &std::path::Path, port: u16, peers: u16, secure: bool) -> Child {
    let log = File::options().create(true).append(true).open(dir.join("log")).expect("its log");
    let scheme = if secure { "https" } else { "http" };
    let mut command = Command::new(kubernetes::program("etcd"));
    command.arg("--data-dir").arg(dir.join("data"));
    for (flag, url) in [
        ("--listen-client-urls", format!("{scheme}://127.0.0.1:{port}")),
        ("--advertise-client-urls", format!("{scheme}://127.0.0.1:{port}")),
        ("--listen-peer-urls", format!("http://127.0.0.1:{peers}")),
    ] {
        command.args([flag, &url]);
    }
    if secure {
        command.arg("--client-cert-auth");
        for (flag, file) in [
            ("--trusted-ca-file", "ca.pem"),
            ("--cert-file", "server.pem"),
            ("--key-file", "server-key.pem"),
        ] {
            command.arg(flag).arg(dir.join(file));
        }
    }
    // Nothing here outlives the test.
    command.args(["--enable-v2", "--unsafe-no-fsync", "--logger=zap", "--log-level=warn"]);
    command.stdin(Stdio::null()).current_dir(dir);
    command.stdout(log.try_clone().expect("a second handle")).stderr(log);
    command.spawn().expect("start etcd")
}

/// A free port.
fn free() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("its number").port()
}

fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

/// A certificate authority, and certificates for a server on loopback and for a client.
fn certificates(dir: &std::path::Path) {
    let script = "set -e
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \\
            -subj /CN=authority -keyout ca-key.pem -out ca.pem
        for who in server client; do
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$who \\
                -keyout $who-key.pem -out $who.csr
            printf 'subjectAltName = IP:127.0.0.1\\nextendedKeyUsage = serverAuth, clientAuth\\n' >$who.ext
            openssl x509 -req -days 30 -in $who.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial \\
                -extfile $who.ext -out $who.pem
        done";
    let made = Command::new("sh").args(["-c", script]).current_dir(dir).output();
    let made = made.expect("run openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
