//! Reads `/proc` and cgroup files relative to one open directory.
//!
//! A pid is reused as soon as it is free. A directory fd below `/proc` is not: it refers to the one task it was opened
//! for, and every access through it fails (ESRCH, ENOENT) once that task is gone (`proc_pid_lookup` pins `struct pid`).
//! Therefore everything read through one [`Dir`] belongs to the same task.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, RawDir};

use crate::reading::{self, Reading, Watched};

/// Maximum number of bytes read. Every file except mountinfo and `status` is far smaller.
pub(super) const SMALL: usize = 64 * 1024;

/// Size in the buffer of a directory entry whose name has up to four bytes (`struct linux_dirent64`), in bytes.
const DIRENT: usize = 24;
/// Number of directory entries that are read at once.
const MOST_AT_ONCE: usize = 1_365;

#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    /// The process that the directory belongs to, and the thread if it is a thread's.
    of: Option<(u32, Option<u32>)>,
}

impl Dir {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { fd: rustix::fs::open(path, flags, Mode::empty())?, of: whose(path, None) })
    }

    /// Opens a directory below this one.
    pub(super) fn dir(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        let (path, flags) = (path.as_ref(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC);
        let fd = rustix::fs::openat(&self.fd, path, flags, Mode::empty())?;
        Ok(Self { fd, of: whose(path, self.of) })
    }

    /// Registers that a file below this directory is about to be read, by any call.
    pub(super) fn reading(&self, path: &Path) -> io::Result<Option<Reading>> {
        match self.of {
            None => Ok(None),
            // The leader's own thread directory has the same files.
            Some((pid, tid)) if tid.is_none_or(|tid| tid == pid) => {
                reading::file(pid, path).map(Some)
            }
            Some((pid, tid)) => {
                let tid = tid.unwrap_or(pid);
                reading::file(pid, &Path::new("task").join(tid.to_string()).join(path)).map(Some)
            }
        }
    }

    /// Opens a file below this directory that is read in parts.
    pub(super) fn watched(&self, name: &'static str) -> io::Result<Watched<File>> {
        Ok(Watched { inner: self.file(name)?, pid: self.of.map(|(pid, _)| pid), name })
    }

    /// Opens a file below this directory.
    pub(super) fn file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let _reading = self.reading(path.as_ref())?;
        Ok(File::from(rustix::fs::openat(&self.fd, path.as_ref(), flags, Mode::empty())?))
    }

    /// Opens a file below this directory with O_PATH.
    pub(super) fn path(&self, path: &str) -> io::Result<OwnedFd> {
        let _reading = self.reading(path.as_ref())?;
        Ok(rustix::fs::openat(&self.fd, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Reads the first [`SMALL`] bytes of a file.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.read_up_to(path, SMALL)
    }

    /// Reads a whole `status`, lossily decoded.
    pub(super) fn status(&self) -> io::Result<String> {
        let bytes = self.read_up_to("status", reading::STATUS)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn read_up_to(&self, path: impl AsRef<Path>, limit: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let _reading = self.reading(path.as_ref())?;
        self.file(path)?.take(limit as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// As [`read`](Self::read), lossily decoded.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        self.read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The name of a process or thread; empty if it is gone.
    pub(super) fn comm(&self) -> String {
        let comm = self.text("comm").unwrap_or_default();
        comm.strip_suffix('\n').unwrap_or(&comm).to_owned()
    }

    /// The user that the directory belongs to: of a process, its effective one (`task_dump_owner`, fs/proc/base.c).
    pub(super) fn owner(&self) -> io::Result<u32> {
        Ok(rustix::fs::fstat(&self.fd)?.st_uid)
    }

    /// The number in a namespace link `KIND:[NUMBER]`. Reads only the link's text, so it works on a made-up tree and
    /// accesses no file system but `/proc`.
    pub(super) fn namespace(&self, path: &str, kind: &str) -> io::Result<u64> {
        let mut buffer = [0u8; 64];
        numbered(self.link(path, &mut buffer)?, kind)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The text of a link, as far as it fits into `buffer`.
    ///
    /// The link of a task that is just exiting returns EACCES, like one that may not be read (`proc_ns_readlink`,
    /// `proc_fd_access_allowed`); that case is returned as ENOENT or ESRCH.
    pub(super) fn link<'a>(&self, path: &str, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let _reading = self.reading(path.as_ref())?;
        match rustix::fs::readlinkat_raw(&self.fd, path, &mut *buffer) {
            Ok(len) => Ok(&buffer[..len]),
            Err(rustix::io::Errno::ACCESS) => match self.read("stat") {
                Err(stat) if is_gone(&stat) => Err(stat),
                _ => Err(io::ErrorKind::PermissionDenied.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Reads as much of a link's text as fits into `buffer`, and returns the number of bytes. The link is not followed.
    pub(super) fn link_into(&self, path: &str, buffer: &mut [u8]) -> io::Result<usize> {
        let _reading = self.reading(path.as_ref())?;
        Ok(rustix::fs::readlinkat_raw(&self.fd, path, buffer)?)
    }

    /// The entries of a directory whose names are numbers: tasks, threads, fds.
    pub(super) fn numbers(&self, path: &str) -> io::Result<Vec<u32>> {
        self.first_numbers(path, usize::MAX).map(|(numbers, _)| numbers)
    }

    /// As [`numbers`](Self::numbers), the first so many of them, and whether these are all. The kernel makes an inode and a
    /// directory entry for each that fits into the buffer (`proc_fill_cache`, fs/proc/base.c), which count as our memory: it
    /// has room for so many.
    pub(super) fn first_numbers(&self, path: &str, most: usize) -> io::Result<(Vec<u32>, bool)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let _reading = self.reading(path.as_ref())?;
        let listing = rustix::fs::openat(&self.fd, path, flags, Mode::empty())?;
        let mut numbers = Vec::new();
        // One more shows that there are more; the others are `.` and `..`.
        let room = most.saturating_add(3).min(MOST_AT_ONCE) * DIRENT;
        let mut buffer = Vec::with_capacity(room);
        let mut entries = RawDir::new(listing, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if numbers.len() >= most {
                return Ok((numbers, false));
            }
            numbers.push(number);
        }
        Ok((numbers, true))
    }
}

/// The process, and the thread, whose directory `path` leads to, starting from that of `of`. Other directories can have
/// numbers in their names too: in an absolute path only those after `proc` count.
fn whose(path: &Path, of: Option<(u32, Option<u32>)>) -> Option<(u32, Option<u32>)> {
    let parts = path.iter().skip_while(|part| path.is_absolute() && *part != "proc");
    let numbers = parts.filter_map(|part| part.to_str()?.parse::<u32>().ok());
    numbers.fold(of, |of, number| match of {
        None => Some((number, None)),
        Some((pid, _)) => Some((pid, Some(number))),
    })
}

/// The number in `KIND:[NUMBER]`.
pub(super) fn numbered(link: &[u8], kind: &str) -> Option<u64> {
    let number = link.strip_prefix(kind.as_bytes())?.strip_prefix(b":[")?.strip_suffix(b"]")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Whether the task of a directory is gone: ENOENT at the lookup, ESRCH at the read.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}
