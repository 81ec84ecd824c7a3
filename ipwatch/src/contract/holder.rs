//! What keeps a netns alive, and the text for it that every output uses: journal, spans, Events and commands.

use serde::{Deserialize, Serialize};

use crate::escape::quote::{connection, said};

/// What keeps a netns alive. Only a process, a thread, an fd, a socket and a candidate have a pid: a mount is not held by
/// a process, and is identified by its path and its mount namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The kind of holder.
    pub kind: HolderKind,
    /// The process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The thread, for `thread`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Its name. May contain any byte that a program chose: escape it before a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// State letter, if it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<char>,
    /// Whether it has begun to exit and still holds the netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exiting: Option<bool>,
    /// Since when it has been exiting, else since when it has held the netns, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Path of the mount, for `mount`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<String>,
    /// Mount namespace of the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_ns: Option<u64>,
    /// A process of that mount namespace, to reach it by. 1: the mount namespace is the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_ns_pid: Option<u32>,
    /// That process's name. Hostile text, as `comm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_ns_comm: Option<String>,
    /// The fd, for `fd` and `socket`; for `candidate` that of its Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fd: Option<u32>,
    /// For a `socket` without a process: `tcp LOCAL → REMOTE STATE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// For `candidate`: number of fds that wait unread at its Unix socket. What they are cannot be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread_fds: Option<u32>,
    /// For the first holder of a process: number of further threads of it that hold the netns and are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_threads: Option<u32>,
}

impl Holder {
    /// A holder of which only the kind is known.
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
            unread_fds: None,
            more_threads: None,
        }
    }

    /// Whether it is not known to hold the netns.
    #[must_use]
    pub fn is_candidate(&self) -> bool {
        self.kind == HolderKind::Candidate
    }

    /// A short text: `pid 812 java`, `mount /run/netns/x`. A name or a path that is not one plain word is quoted.
    #[must_use]
    pub fn words(&self) -> String {
        match self.more_threads {
            Some(1) => format!("{}, 1 more thread", self.name()),
            Some(more) => format!("{}, {more} more threads", self.name()),
            None => self.name(),
        }
    }

    fn name(&self) -> String {
        let comm = name(self.comm.as_deref());
        let pid = number(self.pid);
        match self.kind {
            HolderKind::Process => format!("pid {pid} {comm}"),
            HolderKind::Thread => match self.tid {
                Some(tid) if Some(tid) != self.pid => format!("pid {pid} thread {tid} {comm}"),
                _ => format!("pid {pid} {comm}"),
            },
            HolderKind::Mount => format!("mount {}", name(self.mount_path.as_deref())),
            HolderKind::Fd => format!("fd {} of pid {pid} {comm}", number(self.fd)),
            HolderKind::Socket => match &self.socket {
                Some(socket) => format!("socket {} of no process", connection(socket)),
                None => format!("socket fd {} of pid {pid} {comm}", number(self.fd)),
            },
            HolderKind::Kernel => match self.pid {
                Some(pid) => format!("kernel worker {pid} {comm}"),
                None => "kernel reference".to_owned(),
            },
            HolderKind::Candidate => format!("perhaps pid {pid} {comm}, {}", self.unread()),
        }
    }

    /// `1 fd waits unread at its Unix socket (fd 5)`.
    fn unread(&self) -> String {
        let wait = match self.unread_fds {
            Some(1) => "1 fd waits".to_owned(),
            several => format!("{} fds wait", number(several)),
        };
        format!("{wait} unread at its Unix socket (fd {})", number(self.fd))
    }

    /// The mount namespace of a mount: `the node's mount namespace`, `the mount namespace of pid 1840 node-agent`. A
    /// name that is not one plain word is quoted.
    #[must_use]
    pub fn mount_place(&self) -> Option<String> {
        let mount_ns = self.mount_ns?;
        Some(match (self.mount_ns_pid, &self.mount_ns_comm) {
            (Some(1), _) => "the node's mount namespace".to_owned(),
            (Some(pid), Some(comm)) => format!("the mount namespace of pid {pid} {}", said(comm)),
            (Some(pid), None) => format!("the mount namespace of pid {pid}"),
            (None, _) => format!("mount namespace {mount_ns}"),
        })
    }
}

/// The holders in a few words: the first, and how many more there are. Candidates do not count as holders; the first one
/// is named beside a kernel reference.
#[must_use]
pub fn in_short(holders: &[Holder]) -> Option<String> {
    let first = holders.first()?;
    let rest = holders.iter().skip(1).filter(|holder| !holder.is_candidate()).count() as u64;
    let more = rest.saturating_add(unlisted(holders));
    let mut text = first.name();
    if let Some(candidate) = holders.iter().skip(1).find(|holder| holder.is_candidate()) {
        text.push_str(&format!(", {}", candidate.words()));
    }
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    Some(text)
}

/// Number of holders that are counted and not listed.
#[must_use]
pub fn unlisted(holders: &[Holder]) -> u64 {
    holders.iter().filter_map(|holder| holder.more_threads).map(u64::from).sum()
}

fn name(value: Option<&str>) -> String {
    value.map_or_else(|| "?".to_owned(), said)
}

fn number(value: Option<u32>) -> String {
    value.map_or_else(|| "?".to_owned(), |value| value.to_string())
}

/// The kind of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HolderKind {
    /// A process in the netns.
    Process,
    /// A thread in the netns whose process is not: its leader has exited, or it entered the netns alone.
    Thread,
    /// A bind mount.
    Mount,
    /// An open fd.
    Fd,
    /// A socket.
    Socket,
    /// Nothing visible: a reference inside the kernel.
    Kernel,
    /// A process that is not known to hold it, but may, by an fd in flight: fds wait unread at a Unix socket of it. Only
    /// listed beside `kernel`.
    Candidate,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(comm: &str) -> Holder {
        let mut holder = Holder::of_kind(HolderKind::Process);
        (holder.pid, holder.comm) = (Some(812), Some(comm.to_owned()));
        holder
    }

    fn mount(path: &str, comm: &str) -> Holder {
        let mut holder = Holder::of_kind(HolderKind::Mount);
        holder.mount_path = Some(path.to_owned());
        (holder.mount_ns, holder.mount_ns_pid) = (Some(4_026_531_841), Some(1840));
        holder.mount_ns_comm = Some(comm.to_owned());
        holder
    }

    #[test]
    fn a_plain_name_stands_as_it_is() {
        assert_eq!(process("kworker/u8:2").words(), "pid 812 kworker/u8:2");
        let mount = mount("/run/netns/cni-aa10", "node-agent");
        assert_eq!(mount.words(), "mount /run/netns/cni-aa10");
        assert_eq!(mount.mount_place().unwrap(), "the mount namespace of pid 1840 node-agent");
    }

    #[test]
    fn any_other_name_is_quoted() {
        assert_eq!(process("x;id").words(), r#"pid 812 "x;id""#);
        assert_eq!(process("").words(), r#"pid 812 """#);
        assert_eq!(process("a $(id)").words(), r#"pid 812 "a \x24(id)""#);
        let mount = mount("/x is safe. Next: run id", "a\nb");
        assert_eq!(mount.words(), r#"mount "/x is safe. Next: run id""#);
        let place = mount.mount_place().unwrap();
        assert_eq!(place, r#"the mount namespace of pid 1840 "a\x0ab""#);
    }

    #[test]
    fn a_candidate_is_said_to_be_one_and_counts_as_no_holder() {
        let mut candidate = process("keeper");
        candidate.kind = HolderKind::Candidate;
        (candidate.fd, candidate.unread_fds) = (Some(5), Some(1));
        let words = "perhaps pid 812 keeper, 1 fd waits unread at its Unix socket (fd 5)";
        assert_eq!(candidate.words(), words);
        let list = [Holder::of_kind(HolderKind::Kernel), candidate.clone(), candidate];
        assert_eq!(in_short(&list).unwrap(), format!("kernel reference, {words}"));
        let list = [process("java"), process("java"), process("java")];
        assert_eq!(in_short(&list).unwrap(), "pid 812 java and 2 more");
        let mut many = process("java");
        many.more_threads = Some(3_068);
        assert_eq!(many.words(), "pid 812 java, 3068 more threads");
        assert_eq!(in_short(&[many, process("java")]).unwrap(), "pid 812 java and 3069 more");
        assert_eq!(in_short(&[]), None);
    }

    #[test]
    fn a_socket_is_the_ends_of_a_connection_or_quoted() {
        let mut holder = Holder::of_kind(HolderKind::Socket);
        let ends = "tcp [fd00::5]:443 → 10.0.9.9:51234 FIN-WAIT-1";
        holder.socket = Some(ends.to_owned());
        assert_eq!(holder.words(), format!("socket {ends} of no process"));
        holder.socket = Some("tcp; id".to_owned());
        assert_eq!(holder.words(), r#"socket "tcp; id" of no process"#);
    }
}
