//! A server that is none: it lets everybody in, speaks HTTP/1.1 or HTTP/2 as its caller does, so that it passes for an API
//! server, an etcd, a runtime, a kubelet or a collector, and answers every request in one bad [`Manner`].

use std::io::{Read, Result, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// A byte a second.
    Slow,
    /// At once, but not what was asked for.
    Wrong,
    /// Small pieces that are well formed, without end.
    Endless,
    /// Half of an answer, and then it hangs up.
    CutOff,
    /// One word of a gigabyte.
    Gigabyte,
}

impl Manner {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Slow, Self::Wrong, Self::Endless, Self::CutOff, Self::Gigabyte];
}

/// What it did so far.
#[derive(Debug, Default)]
pub struct Served {
    came: AtomicUsize,
    asked: AtomicUsize,
    sent: AtomicU64,
}

impl Served {
    /// Connections that were made to it.
    #[must_use]
    pub fn came(&self) -> usize {
        self.came.load(Ordering::Relaxed)
    }

    /// Requests that it was sent.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Bytes that it could send.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// One on a Unix socket, for as long as the test runs.
#[must_use]
pub fn on_socket(path: &Path, manner: Manner) -> Arc<Served> {
    let listener = UnixListener::bind(path).expect("bind a socket");
    let served = Arc::<Served>::default();
    let shared = Arc::clone(&served);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let writer = stream.try_clone().expect("a second handle");
            serve(stream, writer, manner, &shared);
        }
    });
    served
}

/// One on a port of loopback, which is returned.
#[must_use]
pub fn on_port(manner: Manner) -> (u16, Arc<Served>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind a port");
    let port = listener.local_addr().expect("its address").port();
    let served = Arc::<Served>::default();
    let shared = Arc::clone(&served);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let writer = stream.try_clone().expect("a second handle");
            serve(stream, writer, manner, &shared);
        }
    });
    (port, served)
}

/// Serves one connection on a thread of its own.
fn serve(
    reader: impl Read + Send + 'static,
    writer: impl Write + Send + 'static,
    manner: Manner,
    served: &Arc<Served>,
) {
    served.came.fetch_add(1, Ordering::Relaxed);
    let mut guest = Guest { reader, writer, manner, served: Arc::clone(served) };
    std::thread::spawn(move || {
        // Whoever has had enough hangs up.
        let _ = guest.talk();
    });
}

/// What begins a connection of HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A list that no list of pods, keys or containers is.
const WRONG: &[u8] = br#"{"kind":7,"items":{"a":[null,1e400]},"kvs":"no","node":[],"Id":{}}"#;
/// How a list begins, and an entry of it, in the words of all that are asked.
const BEGINNING: &[u8] = br#"{"kind":"List","metadata":{"resourceVersion":"1"},"items":["#;
const ENTRY: &[u8] = br#"{"metadata":{"name":"a","namespace":"b","uid":"c"}},"#;
/// A word that does not end, where a name is expected.
const WORD: &[u8] = br#"{"kind":"List","items":[{"metadata":{"name":""#;
const GIGABYTE: u64 = 1 << 30;

struct Guest<R, W> {
    reader: R,
    writer: W,
    manner: Manner,
    served: Arc<Served>,
}

impl<R: Read, W: Write> Guest<R, W> {
    fn talk(&mut self) -> Result<()> {
        let mut first = vec![0; PREFACE.len()];
        self.reader.read_exact(&mut first)?;
        if first == PREFACE { self.http2() } else { self.http1(first) }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes)?;
        self.served.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Answers the first request. Whatever else was sent is left unread.
    fn http1(&mut self, mut request: Vec<u8>) -> Result<()> {
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") {
            self.reader.read_exact(&mut byte)?;
            request.push(byte[0]);
        }
        self.served.asked.fetch_add(1, Ordering::Relaxed);
        let head = |length: u64| {
            let json = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ";
            format!("{json}{length}\r\n\r\n").into_bytes()
        };
        match self.manner {
            Manner::Slow => {
                self.send(&head(1 << 20))?;
                BEGINNING.iter().cycle().try_for_each(|byte| {
                    std::thread::sleep(Duration::from_secs(1));
                    self.send(&[*byte])
                })
            }
            Manner::Wrong => {
                self.send(&head(WRONG.len() as u64))?;
                self.send(WRONG)
            }
            Manner::Endless => {
                self.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                self.chunk(BEGINNING)?;
                let many = ENTRY.repeat(1000);
                loop {
                    self.chunk(&many)?;
                }
            }
            Manner::CutOff => {
                self.send(&head(1 << 20))?;
                self.send(&[BEGINNING, ENTRY].concat())
            }
            Manner::Gigabyte => {
                self.send(&head(GIGABYTE))?;
                self.send(WORD)?;
                let part = vec![b'a'; 1 << 16];
                (0..GIGABYTE >> 16).try_for_each(|_| self.send(&part))
            }
        }
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        self.send(format!("{:x}\r\n", bytes.len()).as_bytes())?;
        self.send(bytes)?;
        self.send(b"\r\n")
    }

    /// Answers calls of gRPC, one after the other. A second one waits while the first is still being answered.
    fn http2(&mut self) -> Result<()> {
        self.frame(SETTINGS, 0, 0, &[])?;
        let mut windows = Windows::default();
        loop {
            let frame = self.read_frame()?;
            if frame.kind == HEADERS {
                self.served.asked.fetch_add(1, Ordering::Relaxed);
                // `:status: 200`, `content-type: application/grpc` (RFC 7541, 6.1 and 6.2.2, of the static table).
                let head = [b"\x88\x0f\x10\x10".as_slice(), b"application/grpc"].concat();
                self.frame(HEADERS, END_HEADERS, frame.stream, &head)?;
                windows.begin(frame.stream);
                self.answer(&mut windows)?;
            } else {
                self.take(&frame, &mut windows)?;
            }
        }
    }

    /// A message of gRPC: a flag, its length, and what it is.
    fn answer(&mut self, windows: &mut Windows) -> Result<()> {
        let announced = |length: u32| [&[0], length.to_be_bytes().as_slice()].concat();
        match self.manner {
            Manner::Slow => {
                self.data(windows, &announced(1 << 16))?;
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                    self.data(windows, b"\n")?;
                }
            }
            Manner::Wrong => {
                // No field has this number and type.
                let message = [announced(8), vec![0xff; 8]].concat();
                self.data(windows, &message)?;
                // `grpc-status: 0`, literally, and the end of the stream.
                let trailers = b"\x00\x0bgrpc-status\x010";
                self.frame(HEADERS, END_HEADERS | END_STREAM, windows.stream, trailers)
            }
            Manner::Endless => {
                let many = announced(0).repeat(1000);
                loop {
                    self.data(windows, &many)?;
                }
            }
            Manner::CutOff => {
                self.data(windows, &[announced(1 << 10), vec![b'\n'; 100]].concat())?;
                Err(std::io::ErrorKind::ConnectionAborted.into())
            }
            Manner::Gigabyte => {
                self.data(windows, &announced(1 << 30))?;
                let part = vec![b'a'; 1 << 14];
                (0..GIGABYTE >> 14).try_for_each(|_| self.data(windows, &part))
            }
        }
    }

    /// Sends this on the stream that is being answered, as fast as its windows allow.
    fn data(&mut self, windows: &mut Windows, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = windows.room().min(bytes.len());
            if room == 0 {
                let frame = self.read_frame()?;
                self.take(&frame, windows)?;
                continue;
            }
            let (now, rest) = bytes.split_at(room);
            self.frame(DATA, 0, windows.stream, now)?;
            windows.sent(now.len());
            bytes = rest;
        }
        Ok(())
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, bytes: &[u8]) -> Result<()> {
        let length = u32::try_from(bytes.len()).expect("a small frame").to_be_bytes();
        let mut head = length[1..].to_vec();
        head.extend([kind, flags]);
        head.extend(stream.to_be_bytes());
        head.extend(bytes);
        self.send(&head)
    }

    fn read_frame(&mut self) -> Result<Frame> {
        let mut head = [0; 9];
        self.reader.read_exact(&mut head)?;
        let number = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
        let mut bytes = vec![0; number(&head[..3]) as usize];
        self.reader.read_exact(&mut bytes)?;
        Ok(Frame { kind: head[3], flags: head[4], stream: number(&head[5..]) & !(1 << 31), bytes })
    }

    /// What is said beside requests.
    fn take(&mut self, frame: &Frame, windows: &mut Windows) -> Result<()> {
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => {
                for setting in frame.bytes.chunks_exact(6) {
                    let value = u32::from_be_bytes(setting[2..].try_into().expect("four bytes"));
                    if setting[..2] == INITIAL_WINDOW_SIZE {
                        windows.initial = i64::from(value);
                    }
                }
                self.frame(SETTINGS, ACK, 0, &[])
            }
            PING if frame.flags & ACK == 0 => self.frame(PING, ACK, 0, &frame.bytes),
            WINDOW_UPDATE => {
                let more = frame.bytes[..4].try_into().expect("four bytes");
                windows.grow(frame.stream, u32::from_be_bytes(more));
                Ok(())
            }
            // The stream that is being answered is given up, or all are.
            RST_STREAM | GOAWAY => Err(std::io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(()),
        }
    }
}

// Frames of HTTP/2 and their flags (RFC 9113, 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
/// The most that a frame may have unless the receiver says otherwise.
const LARGEST: i64 = 1 << 14;

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    bytes: Vec<u8>,
}

/// How much may be sent on the connection, and on the stream that is being answered.
struct Windows {
    initial: i64,
    of_all: i64,
    of_stream: i64,
    stream: u32,
}

impl Default for Windows {
    fn default() -> Self {
        let initial = (1 << 16) - 1;
        Self { initial, of_all: initial, of_stream: initial, stream: 0 }
    }
}

impl Windows {
    fn begin(&mut self, stream: u32) {
        (self.stream, self.of_stream) = (stream, self.initial);
    }

    fn room(&self) -> usize {
        let room = self.of_all.min(self.of_stream).clamp(0, LARGEST);
        usize::try_from(room).expect("no less than nothing")
    }

    fn sent(&mut self, count: usize) {
        let count = i64::try_from(count).expect("a small frame");
        self.of_all -= count;
        self.of_stream -= count;
    }

    fn grow(&mut self, stream: u32, more: u32) {
        if stream == 0 {
            self.of_all += i64::from(more);
        } else if stream == self.stream {
            self.of_stream += i64::from(more);
        }
    }
}
