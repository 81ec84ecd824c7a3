//! A fake container runtime, where no containerd fits: in the VMs, and for figures with hundreds of pods. It reports
//! the sandboxes that a test sets. All other tests use a real runtime ([`crate::pod`]).

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::network::Container;
use crate::{Lab, Sandbox, pod};

/// Answers as containerd until dropped.
#[derive(Debug)]
pub struct FakeCri {
    child: Child,
    socket: PathBuf,
    file: PathBuf,
}

impl FakeCri {
    /// Starts one without sandboxes.
    #[must_use]
    pub fn start(lab: &Lab) -> Self {
        Self::start_at(lab, &lab.dir().join("cri.sock"))
    }

    /// Like `start`, on another socket.
    #[must_use]
    pub fn start_at(lab: &Lab, socket: &Path) -> Self {
        let (socket, file) = (socket.to_owned(), lab.dir().join("cri.txt"));
        fs::write(&file, "").expect("write what it has");
        let mut child = Command::new(pod::client())
            .arg(&socket)
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the mock");
        let mut line = String::new();
        let said = child.stdout.take().expect("a pipe");
        BufReader::new(said).read_line(&mut line).expect("hear the mock");
        assert_eq!(line.trim(), "ready");
        Self { child, socket, file }
    }

    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its list, as a client gets it.
    #[must_use]
    pub fn list(&self) -> String {
        let out = Command::new(pod::client()).arg(&self.socket).arg("list").output();
        let out = out.expect("run the client");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Sets its contents to these lines (`tests/cri/src/serve.rs`).
    pub fn has(&self, lines: &str) {
        // Replaced atomically, because the fake may be reading.
        let part = self.file.with_extension("part");
        fs::write(&part, lines).expect("write what it has");
        fs::rename(part, &self.file).expect("replace what it has");
    }

    /// Sets its contents to this pod in this state.
    pub fn has_pod(&self, pod: &Sandbox, state: &str) {
        self.has(&Self::lines(pod, state));
    }

    /// The line for the sandbox of a container for which a test called plugins.
    #[must_use]
    pub fn line(container: &Container, state: &str) -> String {
        let Container { id, pod, uid } = container;
        format!("sandbox {id} {state} shop {pod} {uid} 0\n")
    }

    /// The lines of a pod: its sandbox and its container.
    #[must_use]
    pub fn lines(pod: &Sandbox, state: &str) -> String {
        let of_container = if state == "READY" { "RUNNING" } else { "EXITED" };
        let (sandbox, container) = (&pod.sandbox, &pod.container);
        format!(
            "sandbox {sandbox} {state} {} {} {} 0 {}\ncontainer {container} {of_container} {sandbox} main\n",
            Sandbox::NAMESPACE,
            pod.name,
            pod.uid,
            pod.made
        )
    }
}

impl Drop for FakeCri {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
