//! An NFS server that dies: processes hang in the kernel's own client, as on a node whose file server is lost.
//!
//! Implements as much of NFS version 3 over TCP (RFC 1813, with its MOUNT protocol and RPC of RFC 5531) as Linux
//! needs, on the loopback device: one directory with one file, `data`. The server dies at the first WRITE and answers
//! nothing from then on, until it is revived; then it answers what was asked meanwhile.
//!
//! A process that is killed while it has dirty pages hangs in its exit (`nfs_file_flush`, fs/nfs/file.c, which waits
//! uninterruptibly for writeback). Only for a machine that nobody else uses ([`crate::Need::OwnMachine`]).

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::Lab;

/// A mount of the server. When this is dropped, the server answers again and the file system is unmounted.
#[derive(Debug)]
pub struct Nfs {
    dir: PathBuf,
    health: Arc<Health>,
}

impl Nfs {
    /// Mounts it in the lab.
    #[must_use]
    pub fn mount(lab: &Lab) -> Self {
        let (dir, health) = (lab.subdir("nfs"), Arc::new(Health::default()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let its = Arc::clone(&health);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let health = Arc::clone(&its);
                std::thread::spawn(move || serve(stream, &health));
            }
        });
        // `mount.nfs` is not needed: the kernel requests the root handle itself. `hard` is the default.
        let options = format!(
            "vers=3,addr=127.0.0.1,proto=tcp,port={port},mountproto=tcp,mountport={port},nolock,noacl,hard,sec=sys"
        );
        let options = std::ffi::CString::new(options).expect("options without NUL");
        let source = "127.0.0.1:/export";
        mount(source, &dir, "nfs", MountFlags::empty(), options.as_c_str()).expect("mount NFS");
        Self { dir, health }
    }

    /// Its mount point.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Whether the server has died.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        *self.health.lock() == State::Dead
    }

    /// Revives the server, which does not die again.
    pub fn revive(&self) {
        self.health.set(State::Healed);
    }
}

impl Drop for Nfs {
    fn drop(&mut self) {
        self.revive();
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Alive,
    Dead,
    Healed,
}

#[derive(Debug, Default)]
struct Health {
    state: Mutex<State>,
    changed: Condvar,
}

impl Health {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.lock() = state;
        self.changed.notify_all();
    }

    /// Notes a WRITE: the server dies.
    fn is_written_to(&self) {
        let mut state = self.lock();
        if *state == State::Alive {
            *state = State::Dead;
        }
    }

    fn await_life(&self) {
        let mut state = self.lock();
        while *state == State::Dead {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Answers the requests of a connection until it ends.
fn serve(mut stream: TcpStream, health: &Health) -> io::Result<()> {
    loop {
        let mut request = Reader { bytes: &record(&mut stream)?[..] };
        let reply = answer(&mut request, health);
        health.await_life();
        let Some(reply) = reply else { return Ok(()) };
        let length = u32::try_from(reply.len()).map_err(io::Error::other)?;
        stream.write_all(&[&(LAST | length).to_be_bytes()[..], &reply].concat())?;
    }
}

/// Flag in the length of a fragment: the last one of its record.
const LAST: u32 = 1 << 31;
/// Maximum size of a request, more than one small file needs.
const LONGEST: usize = 1 << 20;

fn record(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut record = Vec::new();
    loop {
        let mut head = [0; 4];
        stream.read_exact(&mut head)?;
        let head = u32::from_be_bytes(head);
        let length = (head & !LAST) as usize;
        if record.len() + length > LONGEST {
            return Err(io::Error::other("too long"));
        }
        let from = record.len();
        record.resize(from + length, 0);
        stream.read_exact(&mut record[from..])?;
        if head & LAST != 0 {
            return Ok(record);
        }
    }
}

/// Decodes XDR.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn number(&mut self) -> Option<u32> {
        let (word, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u32::from_be_bytes(*word))
    }

    /// Opaque data with its length, padded.
    fn opaque(&mut self) -> Option<&'a [u8]> {
        let length = self.number()? as usize;
        let (data, _) = self.bytes.split_at_checked(length)?;
        self.bytes = self.bytes.get(length.next_multiple_of(4)..)?;
        Some(data)
    }
}

/// Encodes XDR.
struct Writer(Vec<u8>);

impl Writer {
    fn numbers(&mut self, numbers: &[u32]) -> &mut Self {
        numbers.iter().for_each(|number| self.0.extend(number.to_be_bytes()));
        self
    }

    fn long(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// The handle of a file: its number.
    fn handle(&mut self, file: u32) -> &mut Self {
        self.numbers(&[4, file])
    }

    /// `fattr3`.
    fn attributes(&mut self, file: u32) -> &mut Self {
        // Type, mode, links, owner and group.
        let (kind, mode) = if file == ROOT { (2, 0o777) } else { (1, 0o666) };
        self.numbers(&[kind, mode, 1, 0, 0]);
        // Size and space used, device, file system, number, and three times.
        self.long(0).long(0).numbers(&[0, 0]).long(1).long(file.into());
        self.numbers(&[1_000_000_000, 0].repeat(3))
    }

    /// `post_op_attr` with attributes.
    fn after(&mut self, file: u32) -> &mut Self {
        self.numbers(&[1]).attributes(file)
    }

    /// `wcc_data`: no attributes of before, and those of after.
    fn around(&mut self, file: u32) -> &mut Self {
        self.numbers(&[0]).after(file)
    }
}

const ROOT: u32 = 1;
const DATA: u32 = 2;
const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;

/// The answer to a call; `None` if it is not a call.
fn answer(request: &mut Reader<'_>, health: &Health) -> Option<Vec<u8>> {
    let [xid, kind, _version] = [request.number()?, request.number()?, request.number()?];
    let [program, _, procedure] = [request.number()?, request.number()?, request.number()?];
    if kind != 0 {
        return None;
    }
    // Credentials and verifier.
    for _ in 0..2 {
        request.number()?;
        request.opaque()?;
    }
    let mut reply = Writer(Vec::new());
    // Accepted, no verifier, success.
    reply.numbers(&[xid, 1, 0, 0, 0, 0]);
    let known = match (program, procedure) {
        (_, 0) | (MOUNT, 3) => Some(()),
        // The root's handle, and the flavour AUTH_SYS.
        (MOUNT, 1) => {
            reply.numbers(&[0]).handle(ROOT).numbers(&[1, 1]);
            Some(())
        }
        (NFS, _) => nfs(procedure, request, &mut reply, health),
        _ => None,
    };
    if known.is_none() {
        // PROC_UNAVAIL.
        reply.0.clear();
        reply.numbers(&[xid, 1, 0, 0, 0, 3]);
    }
    Some(reply.0)
}

/// The procedures of NFS, by their numbers in RFC 1813.
fn nfs(procedure: u32, request: &mut Reader<'_>, to: &mut Writer, health: &Health) -> Option<()> {
    const NOENT: u32 = 2;
    let handle = request.opaque()?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))?;
    match procedure {
        // GETATTR.
        1 => to.numbers(&[0]).attributes(handle),
        // SETATTR.
        2 => to.numbers(&[0]).around(handle),
        // LOOKUP.
        3 if request.opaque()? == b"data" => to.numbers(&[0]).handle(DATA).after(DATA).after(ROOT),
        3 => to.numbers(&[NOENT]).after(ROOT),
        // ACCESS: grants everything.
        4 => to.numbers(&[0]).after(handle).numbers(&[request.number()?]),
        // WRITE: everything, FILE_SYNC.
        7 => {
            health.is_written_to();
            let [_, _, count] = [request.number()?, request.number()?, request.number()?];
            to.numbers(&[0]).around(handle).numbers(&[count, 2, 0, 0])
        }
        // CREATE.
        8 => to.numbers(&[0, 1]).handle(DATA).after(DATA).around(ROOT),
        // FSSTAT.
        18 => to.numbers(&[0]).after(handle).numbers(&[0; 13]),
        // FSINFO: sizes of reads, writes and listings, the maximum file size, the resolution of times, properties.
        19 => {
            let size = 65536;
            to.numbers(&[0]).after(handle).numbers(&[size, size, 512, size, size, 512, size]);
            to.long(1 << 40).numbers(&[1, 0, 0x18])
        }
        // PATHCONF.
        20 => to.numbers(&[0]).after(handle).numbers(&[1, 255, 1, 1, 0, 1]),
        // COMMIT.
        21 => to.numbers(&[0]).around(handle).numbers(&[0, 0]),
        _ => return None,
    };
    Some(())
}
