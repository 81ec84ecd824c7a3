//! Failures of an API server and its etcd: they hang, die, and lose history.

use std::process::Command;

use serde_json::{Value, json};

use super::ControlPlane;
use super::control::ETCD;
use super::token::base64;

impl ControlPlane {
    /// Stops the API server (SIGSTOP): requests are accepted, and never answered.
    pub fn hang(&self) {
        self.own().server.signal(libc::SIGSTOP);
    }

    /// Continues the API server.
    pub fn wake(&self) {
        self.own().server.signal(libc::SIGCONT);
    }

    /// Stops etcd (SIGSTOP): a request that needs it takes until [`ControlPlane::wake_etcd`].
    pub fn hang_etcd(&self) {
        self.own().etcd.signal(libc::SIGSTOP);
    }

    /// Continues etcd.
    pub fn wake_etcd(&self) {
        self.own().etcd.signal(libc::SIGCONT);
    }

    /// Kills etcd while the API server continues.
    pub fn crash_etcd(&mut self) {
        self.own_mut().etcd.crash();
    }

    /// Restarts etcd with its data, and waits until the API server answers.
    pub fn restart_etcd(&mut self) {
        self.own_mut().etcd.restart();
        self.await_ready();
    }

    /// Compacts etcd's history: a watch that resumes from an older revision is refused (410).
    pub fn compact(&self) {
        let now = self.ask_etcd("range", &json!({ "key": base64(b"\0") }));
        let revision = &now["header"]["revision"];
        assert!(revision.is_string(), "{now}");
        let done = self.ask_etcd("compaction", &json!({ "revision": revision, "physical": true }));
        assert!(done["header"].is_object(), "{done}");
    }

    /// Puts an object into etcd that the API server cannot decode: requests that read it fail (500).
    pub fn damage(&self, key: &str) {
        let object = json!({ "key": base64(key.as_bytes()), "value": base64(b"no object") });
        let done = self.ask_etcd("put", &object);
        assert!(done["header"].is_object(), "{done}");
    }

    /// Removes that object.
    pub fn repair(&self, key: &str) {
        let done = self.ask_etcd("deleterange", &json!({ "key": base64(key.as_bytes()) }));
        assert_eq!(done["deleted"], "1", "{done}");
    }

    /// A request to etcd's own API, as JSON.
    fn ask_etcd(&self, what: &str, body: &Value) -> Value {
        let _its_own = self.own();
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "30", "--data", &body.to_string()]);
        curl.arg(format!("{ETCD}/v3/kv/{what}"));
        let out = self.netns.run(|| curl.output().expect("run curl"));
        serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"))
    }
}
