//! The question to the daemon, over its Unix socket: who still has these addresses?
//!
//! One request and one answer, within 20 ms in all. Any error is one of [`Unanswered`], is counted, and means that nothing
//! is known. An ADD or a DEL is never delayed further by a daemon that does not answer.

use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use serde::Deserialize;

use crate::delegate::ready;
use crate::time::Deadline;

/// Timeout of the whole exchange if the configuration has no `timeoutMs`.
pub const PATIENCE: Duration = Duration::from_millis(20);
/// Longest answer that is read, in bytes.
const LONGEST: usize = 256 * 1024;
/// The version of the contract that this client understands.
const SCHEMA: &str = "ipwatch/v1";

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question<'a> {
    /// `add`: are the assigned addresses still held? `del`: are the addresses of this container still held?
    pub call: &'a str,
    /// The delegate's type.
    pub store: &'a str,
    /// The network.
    pub network: &'a str,
    /// `CNI_CONTAINERID`.
    pub container: &'a str,
    /// `CNI_IFNAME`.
    pub ifname: &'a str,
    /// `add`: the addresses that the delegate assigned.
    pub ips: &'a [IpAddr],
    /// `del`: inode of the netns that the interface plugin can enter.
    pub netns: Option<u64>,
    /// Parked addresses, each with the cookie of the netns that had it.
    pub parked: &'a [(IpAddr, u64)],
}

impl Question<'_> {
    /// The question as the target of an HTTP request.
    #[must_use]
    pub fn target(&self) -> String {
        let mut target = format!("/v1/held?call={}", self.call);
        let mut with = |name: &str, value: &str| {
            if value.is_empty() {
                return;
            }
            let _ = write!(target, "&{name}=");
            for byte in value.bytes() {
                match byte {
                    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b':' => {
                        target.push(char::from(byte));
                    }
                    other => _ = write!(target, "%{other:02X}"),
                }
            }
        };
        with("store", self.store);
        with("network", self.network);
        with("container", self.container);
        with("ifname", self.ifname);
        let ips: Vec<String> = self.ips.iter().map(IpAddr::to_string).collect();
        with("ips", &ips.join(","));
        with("netns", &self.netns.map(|inode| inode.to_string()).unwrap_or_default());
        let parked: Vec<String> =
            self.parked.iter().map(|(ip, cookie)| format!("{ip}@{cookie}")).collect();
        with("parked", &parked.join(","));
        target
    }
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Held {
    /// `add`: one for each address of the question. `del`: one for each address that is reserved for the container.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// One for each parked address of the question.
    #[serde(default)]
    pub parked: Vec<Address>,
    /// Number of addresses in the network that can be assigned to pods.
    pub usable: Option<u64>,
}

/// The answer about one address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Whether it is still held.
    pub state: State,
    /// The netns in which it is up.
    #[serde(default)]
    pub netns: Netns,
    /// What holds it, in one line for people.
    #[serde(default)]
    pub who: String,
    /// Whether a critical finding about it fires.
    #[serde(default)]
    pub critical: bool,
    /// For how many seconds this has been so, by the finding that explains it; a stuck process: since it began to exit.
    #[serde(default)]
    pub for_secs: u64,
}

/// A network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct Netns {
    /// `net->net_cookie`.
    pub cookie: Option<u64>,
}

/// Whether an address is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No sandbox that was given it by a store has it.
    Free,
    /// The sandbox that was given it by this store still has it.
    Held,
    /// As [`State::Held`], but the sandbox's DEL is running or has just ended.
    Leaving,
    /// The daemon does not know, or answered with a state that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// There is no socket, or no process listens on it.
    #[error("no-daemon")]
    NoDaemon,
    /// This process may not connect to the socket, or the socket's process does not run as root.
    #[error("refused")]
    Refused,
    /// It took too long.
    #[error("timeout")]
    Timeout,
    /// The daemon is of a version that does not know the question.
    #[error("old-daemon")]
    Old,
    /// The daemon is still starting, or is overloaded.
    #[error("not-ready")]
    NotReady,
    /// The answer could not be parsed.
    #[error("broken-answer")]
    Broken,
}

/// Asks the daemon behind the socket at `path`.
///
/// # Errors
/// [`Unanswered`]
pub fn ask(path: &Path, question: &Question<'_>, patience: Duration) -> Result<Held, Unanswered> {
    let deadline = Deadline::within(patience);
    let socket = dial(path)?;
    let request =
        format!("GET {} HTTP/1.1\r\nHost: ipwatch\r\nConnection: close\r\n\r\n", question.target());
    tell(&socket, request.as_bytes(), deadline)?;
    read(&hear(&socket, deadline)?)
}

fn dial(path: &Path) -> Result<OwnedFd, Unanswered> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(|_| Unanswered::Broken)?;
    let address = SocketAddrUnix::new(path).map_err(|_| Unanswered::NoDaemon)?;
    connect(&socket, &address).map_err(|error| match error {
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => Unanswered::Refused,
        // The listener's queue is full, because its process does not accept connections.
        rustix::io::Errno::AGAIN => Unanswered::Timeout,
        _ => Unanswered::NoDaemon,
    })?;
    // An answer counts only if it comes from root (or, in tests, from the same user).
    let peer = socket_peercred(&socket).map_err(|_| Unanswered::Refused)?;
    let known = peer.uid.is_root() || peer.uid == rustix::process::geteuid();
    known.then_some(socket).ok_or(Unanswered::Refused)
}

fn await_ready(socket: &OwnedFd, flags: PollFlags, deadline: Deadline) -> Result<(), Unanswered> {
    let left = deadline.left().ok_or(Unanswered::Timeout)?;
    ready(socket, flags, left).map_err(|_: io::Error| Unanswered::Broken)
}

fn tell(socket: &OwnedFd, mut rest: &[u8], deadline: Deadline) -> Result<(), Unanswered> {
    while !rest.is_empty() {
        match send(socket, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
            Err(rustix::io::Errno::AGAIN) => await_ready(socket, PollFlags::OUT, deadline)?,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(Unanswered::Broken),
        }
    }
    Ok(())
}

/// Reads until the daemon closes the connection or the body has the announced length.
fn hear(socket: &OwnedFd, deadline: Deadline) -> Result<Vec<u8>, Unanswered> {
    let (mut heard, mut part) = (Vec::new(), [0; 8192]);
    loop {
        match recv(socket, &mut part, RecvFlags::empty()) {
            Ok((0, _)) => return Ok(heard),
            Ok((length, _)) => heard.extend_from_slice(part.get(..length).unwrap_or_default()),
            Err(rustix::io::Errno::AGAIN) => await_ready(socket, PollFlags::IN, deadline)?,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(Unanswered::Broken),
        }
        if heard.len() > LONGEST {
            return Err(Unanswered::Broken);
        }
        if split(&heard).is_some_and(|(head, body)| length_of(head) == Some(body.len())) {
            return Ok(heard);
        }
        deadline.left().ok_or(Unanswered::Timeout)?;
    }
}

/// Head and body of a response.
fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = bytes.split_at(end);
    Some((std::str::from_utf8(head).ok()?, body.get(4..)?))
}

fn length_of(head: &str) -> Option<usize> {
    let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    length?.1.trim().parse().ok()
}

fn read(response: &[u8]) -> Result<Held, Unanswered> {
    #[derive(Deserialize)]
    struct Document {
        schema: String,
        held: Held,
    }
    let (head, body) = split(response).ok_or(Unanswered::Broken)?;
    let mut words = head.split_ascii_whitespace();
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    match words.next().filter(|_| is_http) {
        Some("200") => {}
        Some("400" | "404" | "405") => return Err(Unanswered::Old),
        Some("403") => return Err(Unanswered::Refused),
        Some("503" | "504") => return Err(Unanswered::NotReady),
        _ => return Err(Unanswered::Broken),
    }
    let document: Document = serde_json::from_slice(body).map_err(|_| Unanswered::Broken)?;
    (document.schema == SCHEMA).then_some(document.held).ok_or(Unanswered::Old)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::testing::FakeDaemon;
    use crate::time::now;

    const LONG: Duration = Duration::from_secs(5);

    fn question<'a>() -> Question<'a> {
        Question {
            call: "add",
            store: "host-local",
            network: "net",
            container: "c 1&x",
            ifname: "eth0",
            ips: &[],
            netns: None,
            parked: &[],
        }
    }

    #[test]
    fn a_question_is_a_target() {
        let ips = ["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let asked = Question { ips: &ips, parked: &[(ips[0], 7)], ..question() };
        assert_eq!(
            asked.target(),
            "/v1/held?call=add&store=host-local&network=net&container=c%201%26x&ifname=eth0\
             &ips=10.1.0.2%2Cfd00::2&parked=10.1.0.2%407"
        );
    }

    #[test]
    fn an_answer_is_taken_and_anything_else_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = FakeDaemon::start(dir.path());
        daemon.answers(|_| {
            r#"{"schema":"ipwatch/v1","held":{"addresses":[{"ip":"10.1.0.2","state":"held",
                "netns":{"cookie":7},"who":"pid 5 (cat)"},{"ip":"10.1.0.3","state":"odd"}],
                "usable":9}}"#
                .to_owned()
        });
        let held = ask(daemon.socket(), &question(), LONG).unwrap();
        let states: Vec<State> = held.addresses.iter().map(|one| one.state).collect();
        assert_eq!(states, [State::Held, State::Unknown]);
        assert_eq!((held.addresses[0].netns.cookie, held.usable), (Some(7), Some(9)));
        for (reply, expected) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n", Unanswered::Old),
            ("HTTP/1.1 503 Busy\r\n\r\n", Unanswered::NotReady),
            ("HTTP/1.1 403 No\r\n\r\n", Unanswered::Refused),
            ("HTTP/1.1 200 OK\r\n\r\n{}", Unanswered::Broken),
            ("HTTP/1.1 200 OK\r\n\r\n{\"schema\":\"ipwatch/v9\",\"held\":{}}", Unanswered::Old),
            ("garbage", Unanswered::Broken),
            ("", Unanswered::Broken),
        ] {
            daemon.replies(reply);
            assert_eq!(ask(daemon.socket(), &question(), LONG).unwrap_err(), expected, "{reply:?}");
        }
    }

    #[test]
    fn the_example_of_the_contract_is_understood() {
        let example = include_str!("../../../docs/contract/held.json");
        let held = read(format!("HTTP/1.1 200 OK\r\n\r\n{example}").as_bytes()).unwrap();
        let [first] = held.addresses.as_slice() else { panic!("{held:?}") };
        assert_eq!((first.state, first.netns.cookie), (State::Held, Some(4127)));
        assert!(first.critical && first.for_secs == 359 && first.who.contains("pid 4903 (cat)"));
        assert_eq!((held.parked[0].state, held.usable), (State::Free, Some(253)));
    }

    #[test]
    fn nobody_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let nowhere = dir.path().join("nowhere");
        assert_eq!(ask(&nowhere, &question(), PATIENCE).unwrap_err(), Unanswered::NoDaemon);
        // It listens but never accepts, like a daemon that is stopped.
        let hung = dir.path().join("hung");
        let _listener = std::os::unix::net::UnixListener::bind(&hung).unwrap();
        let began = now();
        assert_eq!(ask(&hung, &question(), PATIENCE).unwrap_err(), Unanswered::Timeout);
        let took = now() - began;
        assert!(took >= PATIENCE && took < Duration::from_secs(2), "{took:?}");
    }
}
