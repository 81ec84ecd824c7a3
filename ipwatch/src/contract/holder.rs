//! Who or what keeps a netns alive, and the words for it that every output uses: journal, spans, Events and commands.

use serde::{Deserialize, Serialize};

/// Who or what keeps a netns alive. Only a process, a thread, an fd and a socket have a pid: a mount is not kept by a
/// process, and is its path and the mount namespace it stands in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// What kind of hold it is.
    pub kind: HolderKind,
    /// The process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The thread, for `thread`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Its name. May hold any byte a program chose: escape it before a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// State letter, when it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<char>,
    /// It has begun to exit and still holds the netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exiting: Option<bool>,
    /// Since when it has been so (exiting, else holding), RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Path of the mount, for `mount`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<String>,
    /// Mount namespace of the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_ns: Option<u64>,
    /// A process of that mount namespace, to reach it by. 1: it is the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_ns_pid: Option<u32>,
    /// That process's name. Hostile, as `comm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_ns_comm: Option<String>,
    /// The fd, for `fd` and `socket`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fd: Option<u32>,
    /// For a `socket` that no process has: `tcp LOCAL → REMOTE STATE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
}

impl Holder {
    /// A holder of which nothing but its kind is known.
    #[must_use]
    pub fn of_kind(kind: HolderKind) -> Self {
        Self {
            kind,
            pid: None,
            tid: None,
            comm: None,
            state: None,
            exiting: None,
            since: None,
            mount_path: None,
            mount_ns: None,
            mount_ns_pid: None,
            mount_ns_comm: None,
            fd: None,
            socket: None,
        }
    }

    /// In a few words: `pid 812 java`, `mount /run/netns/x`. Not escaped.
    #[must_use]
    pub fn words(&self) -> String {
        let comm = self.comm.as_deref().unwrap_or("?");
        let pid = number(self.pid);
        match self.kind {
            HolderKind::Process => format!("pid {pid} {comm}"),
            HolderKind::Thread => match self.tid {
                Some(tid) if Some(tid) != self.pid => format!("pid {pid} thread {tid} {comm}"),
                _ => format!("pid {pid} {comm}"),
            },
            HolderKind::Mount => format!("mount {}", self.mount_path.as_deref().unwrap_or("?")),
            HolderKind::Fd => format!("fd {} of pid {pid} {comm}", number(self.fd)),
            HolderKind::Socket => match &self.socket {
                Some(socket) => format!("socket {socket} of no process"),
                None => format!("socket fd {} of pid {pid} {comm}", number(self.fd)),
            },
            HolderKind::Kernel => match self.pid {
                Some(pid) => format!("kernel worker {pid} {comm}"),
                None => "kernel reference".to_owned(),
            },
        }
    }

    /// Whose mount namespace a mount stands in: `the node's mount namespace`, `the mount namespace of pid 1840
    /// node-agent`. Not escaped.
    #[must_use]
    pub fn mount_place(&self) -> Option<String> {
        let mount_ns = self.mount_ns?;
        Some(match (self.mount_ns_pid, &self.mount_ns_comm) {
            (Some(1), _) => "the node's mount namespace".to_owned(),
            (Some(pid), Some(comm)) => format!("the mount namespace of pid {pid} {comm}"),
            (Some(pid), None) => format!("the mount namespace of pid {pid}"),
            (None, _) => format!("mount namespace {mount_ns}"),
        })
    }
}

fn number(value: Option<u32>) -> String {
    value.map_or_else(|| "?".to_owned(), |value| value.to_string())
}

/// What kind of hold it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HolderKind {
    /// A process in it.
    Process,
    /// A thread in it whose process is not: its leader has exited, or it went there alone.
    Thread,
    /// A bind mount.
    Mount,
    /// An open fd.
    Fd,
    /// A socket.
    Socket,
    /// Nothing visible: a reference inside the kernel.
    Kernel,
}
