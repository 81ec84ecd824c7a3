//! A file system that never answers: the simplest way to make a process hang in the kernel.
//!
//! It implements raw `/dev/fuse` (`include/uapi/linux/fuse.h`, protocol 7.31) with one file, `hang`. The file can be
//! opened, but READ, FLUSH and FSYNC get no answer, and neither does CREATE, so that a core dump into the directory
//! hangs too. When the server ends, the kernel aborts the connection (`fuse_dev_release`), and every process that
//! hung on it continues.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags};

use crate::poll::until;
use crate::role::{Helper, Role, Running};
use crate::{Lab, proc, sys};

/// Whether a process was killed and hangs.
#[must_use]
pub fn hangs(pid: u32) -> bool {
    proc::View::leader(pid).is_some_and(|view| view.state == 'D' && view.killed())
}

/// The mounted file system. Its server ends when this is dropped, or when the test process ends.
#[derive(Debug)]
pub struct Hung {
    server: Option<Running>,
    dir: PathBuf,
}

impl Hung {
    /// Mounts it in the lab.
    #[must_use]
    pub fn mount(lab: &Lab) -> Self {
        Self::mount_at(lab, "fuse")
    }

    /// A second file system, under another name.
    #[must_use]
    pub fn mount_at(lab: &Lab, name: &str) -> Self {
        let dir = lab.subdir(name);
        let path = dir.to_str().expect("a path in UTF-8").to_owned();
        let server = Helper::new(Role::Fuse).arg(&path).start();
        Self { server: Some(server), dir }
    }

    /// A file system that does not even answer lookups. Every process that looks there hangs: only for a machine that
    /// nobody else uses ([`crate::Need::OwnMachine`]).
    #[must_use]
    pub fn mount_silent(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).expect("make a directory");
        let path = dir.to_str().expect("a path in UTF-8").to_owned();
        let server = Helper::new(Role::Fuse).arg(&path).arg("silent").start();
        Self { server: Some(server), dir: dir.to_owned() }
    }

    /// Makes the server answer nothing any more. What the kernel has in its caches is still found.
    pub fn fall_silent(&mut self) {
        let server = self.server.as_mut().expect("a server that was not released");
        server.tell(SILENCE);
        assert_eq!(server.hear(), SILENCE);
    }

    /// Its mount point. Creating a file there hangs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file that can be opened and then hangs.
    #[must_use]
    pub fn file(&self) -> String {
        self.dir.join("hang").to_str().expect("a path in UTF-8").to_owned()
    }

    /// Waits until the server has received a READ. Before that, SIGKILL would withdraw the request
    /// (`request_wait_answer`, the `FR_PENDING` case) and the reader would not hang.
    pub fn await_read(&mut self) {
        let server = self.server.as_mut().expect("a server that was not released");
        assert_eq!(server.hear(), "read");
    }

    /// Kills a process that reads the file, and waits until it hangs.
    #[track_caller]
    pub fn hang(&mut self, pid: u32) {
        self.await_read();
        sys::kill(pid, libc::SIGKILL).expect("kill a process");
        until("it hangs", 10, || hangs(pid));
    }

    /// Aborts the connection: processes that hang continue.
    pub fn release(&mut self) {
        if let Some(server) = self.server.take() {
            server.end();
        }
        unmount(&self.dir);
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // The server first: unmounting would wait for answers.
        self.server = None;
        unmount(&self.dir);
    }
}

fn unmount(dir: &Path) {
    let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
}

/// The command to the server, and its answer.
const SILENCE: &str = "silence";

const HEADER_IN: usize = 40;
const HEADER_OUT: usize = 16;
const ROOT: u64 = 1;
const FILE: u64 = 2;

mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const CREATE: u32 = 35;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const READDIRPLUS: u32 = 44;
}

/// The server: mounts the file system on `args[0]` and answers until the test ends.
pub(crate) fn serve(args: &[String]) {
    let mut device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
    mount(&device, Path::new(&args[0]));
    let silent = args.get(1).is_some_and(|word| word == "silent");
    crate::role::ready();
    let mut request = vec![0; 1 << 17];
    let mut dead = false;
    loop {
        let stdin = std::io::stdin();
        let mut polled = [PollFd::new(&device, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
        let told =
            rustix::event::poll(&mut polled, None).is_err() || !polled[1].revents().is_empty();
        let mut line = String::new();
        if told && stdin.read_line(&mut line).is_ok() && line.trim_end() == SILENCE {
            dead = true;
            crate::role::say(SILENCE);
            continue;
        }
        if told {
            unmount(Path::new(&args[0]));
            return;
        }
        match device.read(&mut request) {
            Ok(len) if dead && len >= HEADER_IN => {}
            Ok(len) if len >= HEADER_IN => answer(&mut device, &request[..len], silent),
            // Unmounted or aborted.
            Ok(_) => return,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            // An interrupted or withdrawn request.
            Err(_) => {}
        }
    }
}

fn mount(device: &File, at: &Path) {
    use std::os::fd::AsRawFd;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        device.as_fd().as_raw_fd()
    );
    let options = std::ffi::CString::new(options).expect("no NUL");
    rustix::mount::mount(
        "ipwatch-test",
        at,
        "fuse",
        rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV,
        options.as_c_str(),
    )
    .expect("mount the file system");
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn answer(device: &mut File, request: &[u8], silent: bool) {
    let unique = u64_at(request, 8);
    let node = u64_at(request, 16);
    let reply = match u32_at(request, 4) {
        // The protocol has no answer for these …
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => return,
        // … and these hang, which is the purpose of this file system.
        opcode::READ => return crate::role::say("read"),
        opcode::FLUSH | opcode::FSYNC | opcode::CREATE => return,
        opcode::LOOKUP | opcode::READDIR | opcode::READDIRPLUS if silent => return,
        opcode::INIT => Ok(init()),
        opcode::LOOKUP if request[HEADER_IN..].starts_with(b"hang\0") => Ok(entry()),
        opcode::LOOKUP => Err(libc::ENOENT),
        opcode::GETATTR => Ok(attributes(node)),
        opcode::OPEN => Ok(opened(FOPEN_DIRECT_IO)),
        // podman and runc ask this of a volume: `struct fuse_statfs_out`, with nothing in it.
        opcode::STATFS => Ok(vec![0; 80]),
        opcode::OPENDIR => Ok(opened(0)),
        opcode::RELEASE | opcode::RELEASEDIR => Ok(Vec::new()),
        _ => Err(libc::ENOSYS),
    };
    let (error, body) = match reply {
        Ok(body) => (0, body),
        Err(errno) => (-errno, Vec::new()),
    };
    let mut out = Vec::with_capacity(HEADER_OUT + body.len());
    out.extend(((HEADER_OUT + body.len()) as u32).to_ne_bytes());
    out.extend(error.to_ne_bytes());
    out.extend(unique.to_ne_bytes());
    out.extend(body);
    // ENOENT: the requester was interrupted and no longer waits.
    let _ = device.write(&out);
}

/// Each read goes to the server and waits in `request_wait_answer`, not in the page cache.
const FOPEN_DIRECT_IO: u32 = 1;

/// `struct fuse_init_out`: 7.31, everything optional off.
fn init() -> Vec<u8> {
    let mut out = Vec::new();
    for word in [7_u32, 31, 0, 0] {
        out.extend(word.to_ne_bytes());
    }
    out.extend([0; 4]); // max_background, congestion_threshold: the kernel's defaults
    out.extend(4096_u32.to_ne_bytes()); // max_write
    out.resize(64, 0);
    out
}

/// `struct fuse_entry_out` of the one file, with a long timeout.
fn entry() -> Vec<u8> {
    let mut out = Vec::new();
    for word in [FILE, 0, 3600, 3600] {
        out.extend(word.to_ne_bytes());
    }
    out.extend([0; 8]);
    out.extend(attr(FILE));
    out
}

/// `struct fuse_attr_out`.
fn attributes(node: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(3600_u64.to_ne_bytes());
    out.extend([0; 8]);
    out.extend(attr(node));
    out
}

/// `struct fuse_attr`.
fn attr(node: u64) -> Vec<u8> {
    let mode = if node == ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
    let mut out = Vec::new();
    for word in [node, 4096, 8, 0, 0, 0] {
        out.extend(word.to_ne_bytes()); // ino, size, blocks, times
    }
    for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        out.extend(word.to_ne_bytes()); // times, mode, nlink, uid, gid, rdev, blksize, flags
    }
    out
}

/// `struct fuse_open_out`.
fn opened(flags: u32) -> Vec<u8> {
    let mut out = vec![0; 8];
    out.extend(flags.to_ne_bytes());
    out.extend([0; 4]);
    out
}
