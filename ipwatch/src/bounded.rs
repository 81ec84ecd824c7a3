//! Reads files that may be hostile: up to a limit, never through a final symlink unless requested, never blocking on a
//! fifo, and with lossy text.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::reading;

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bytes {
    pub bytes: Vec<u8>,
    /// Whether there was more than the limit.
    pub truncated: bool,
    /// Modification time of a regular file, Unix time in nanoseconds.
    pub modified: Option<i64>,
}

/// Reads the first `limit` bytes of a file under `/proc` or `/sys`, whose paths are the kernel's.
///
/// # Errors
/// As `open` and `read`.
pub fn read(path: &Path, limit: usize) -> io::Result<Bytes> {
    read_with(path, limit, OFlags::empty())
}

/// Reads the first `limit` bytes of a regular file that another process wrote: a symlink, fifo or device in its place
/// is an error (`ELOOP`, `InvalidInput`).
///
/// # Errors
/// As `open` and `read`; `InvalidInput` if it is not a regular file.
pub fn read_regular(path: &Path, limit: usize) -> io::Result<Bytes> {
    read_with_stat(path, limit, OFlags::NOFOLLOW)
}

/// The same through a final symlink: for directories to which only root can write, and whose readers follow links.
///
/// # Errors
/// As [`read_regular`].
pub fn read_linked(path: &Path, limit: usize) -> io::Result<Bytes> {
    read_with_stat(path, limit, OFlags::empty())
}

fn read_with_stat(path: &Path, limit: usize, link: OFlags) -> io::Result<Bytes> {
    let _reading = reading::path(path)?;
    let (file, stat) = open_with_stat(path, link)?;
    let size = usize::try_from(stat.st_size).unwrap_or_default().min(limit);
    Ok(Bytes { modified: modified(&stat), ..take_sized(file, limit, size)? })
}

/// Modification time, Unix time in nanoseconds.
fn modified(stat: &Stat) -> Option<i64> {
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or_default();
    stat.st_mtime.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// The result of reading a small file into a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// Number of bytes. If the buffer is full, the file may have more.
    pub length: usize,
    /// As [`Bytes::modified`].
    pub modified: Option<i64>,
}

/// Reads a regular file of an open directory into `buffer`, as far as it fits, with the checks of [`read_regular`]. For
/// directories with tens of thousands of small files, where each system call counts: the path is not walked again, and
/// the access time is not updated, which would be a write for each file.
///
/// # Errors
/// As [`read_regular`].
pub fn read_at(directory: BorrowedFd<'_>, name: &Path, buffer: &mut [u8]) -> io::Result<Filled> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = |more| rustix::fs::openat(directory, name, flags | more, Mode::empty());
    let fd = match open(OFlags::NOATIME) {
        // Only permitted for the file's owner and with CAP_FOWNER.
        Err(Errno::PERM) => open(OFlags::empty())?,
        fd => fd?,
    };
    let stat = rustix::fs::fstat(&fd)?;
    refuse_irregular(&stat)?;
    let size = usize::try_from(stat.st_size).unwrap_or_default();
    let mut length = 0;
    while length < buffer.len() {
        match rustix::io::read(&fd, &mut buffer[length..]) {
            Err(Errno::INTR) => {}
            Ok(0) => break,
            read => length += read?,
        }
        // One read returns the whole regular file: a second read to see its end is not needed.
        if length >= size && size > 0 {
            break;
        }
    }
    Ok(Filled { length, modified: modified(&stat) })
}

/// Opens a file with the checks of [`read_regular`], to be read in parts.
///
/// # Errors
/// As `open`; `InvalidInput` if it is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_with_stat(path, OFlags::NOFOLLOW).map(|(file, _)| file)
}

fn open_with_stat(path: &Path, link: OFlags) -> io::Result<(File, Stat)> {
    let fd = open(path, link | OFlags::NONBLOCK)?;
    let stat = rustix::fs::fstat(&fd)?;
    refuse_irregular(&stat)?;
    Ok((File::from(fd), stat))
}

fn refuse_irregular(stat: &Stat) -> io::Result<()> {
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(())
}

/// Reads the last `limit` bytes of a regular file that another process writes, with the checks of [`read_regular`].
///
/// # Errors
/// As [`read_regular`].
pub fn read_tail(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    use std::io::{Seek as _, SeekFrom};
    let _reading = reading::path(path)?;
    let (mut file, stat) = open_with_stat(path, OFlags::NOFOLLOW)?;
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    file.seek(SeekFrom::Start(size.saturating_sub(limit as u64)))?;
    Ok(take(file, limit)?.bytes)
}

/// As [`read`], lossily decoded.
///
/// # Errors
/// As `open` and `read`.
pub fn read_text(path: &Path, limit: usize) -> io::Result<String> {
    read(path, limit).map(|read| String::from_utf8_lossy(&read.bytes).into_owned())
}

fn read_with(path: &Path, limit: usize, flags: OFlags) -> io::Result<Bytes> {
    let _reading = reading::path(path)?;
    take(File::from(open(path, flags)?), limit)
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | flags, Mode::empty())?)
}

fn take(file: File, limit: usize) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(cut(bytes, limit))
}

/// The same with a single read, for a file that has just had this size, which is at most the limit.
fn take_sized(mut file: File, limit: usize, size: usize) -> io::Result<Bytes> {
    let mut bytes = vec![0; size + 1];
    let read = loop {
        match file.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    bytes.truncate(read);
    if read > size {
        // The file has grown.
        file.take((limit - size) as u64).read_to_end(&mut bytes)?;
    }
    Ok(cut(bytes, limit))
}

fn cut(mut bytes: Vec<u8>, limit: usize) -> Bytes {
    let truncated = bytes.len() > limit;
    bytes.truncate(limit);
    Bytes { bytes, truncated, modified: None }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_limit_cuts_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"12345").unwrap();
        let cut = read_regular(&path, 4).unwrap();
        assert_eq!((cut.bytes.as_slice(), cut.truncated), (&b"1234"[..], true));
        let whole = read_regular(&path, 5).unwrap();
        assert_eq!((whole.bytes.as_slice(), whole.truncated), (&b"12345"[..], false));
    }

    #[test]
    fn a_link_or_a_directory_is_no_regular_file() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/proc/self/status", &link).unwrap();
        assert!(read_regular(&link, 10).is_err());
        assert!(read_regular(dir.path(), 10).is_err());
    }

    #[test]
    fn a_file_of_an_open_directory_is_read_to_the_buffers_end() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("f"), b"12345").unwrap();
        std::fs::write(at("empty"), b"").unwrap();
        std::os::unix::fs::symlink("f", at("link")).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), kind, Mode::RUSR, 0).unwrap();
        let directory = File::open(dir.path()).unwrap();
        let mut buffer = [0; 6];
        let mut read = |name: &str, room: usize| {
            let read = read_at(directory.as_fd(), Path::new(name), &mut buffer[..room])?;
            assert_eq!(read.modified, read_regular(&at(name), 9).unwrap().modified);
            Ok::<_, io::Error>(buffer[..read.length].to_vec())
        };
        assert_eq!(read("f", 6).unwrap(), b"12345");
        assert_eq!(read("f", 4).unwrap(), b"1234");
        assert_eq!(read("empty", 6).unwrap(), b"");
        assert_eq!(read("link", 6).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        assert_eq!(read("fifo", 6).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(read("none", 6).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_link_is_followed_where_it_is_asked_for_and_to_a_regular_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let link = |to: &Path| {
            let _ = std::fs::remove_file(at("link"));
            std::os::unix::fs::symlink(to, at("link")).unwrap();
            read_linked(&at("link"), 4)
        };
        std::fs::write(at("f"), b"12345").unwrap();
        let cut = link(&at("f")).unwrap();
        assert_eq!((cut.bytes.as_slice(), cut.truncated), (&b"1234"[..], true));
        assert!(link(dir.path()).is_err());
        assert!(link(Path::new("/dev/null")).is_err());
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), kind, Mode::RUSR, 0).unwrap();
        assert!(link(&at("fifo")).is_err());
    }

    #[test]
    fn a_file_that_is_longer_than_it_says_is_read_all_the_same() {
        // Files under /proc have size 0.
        let path = Path::new("/proc/self/status");
        let whole = read(path, 64 * 1024).unwrap().bytes.len();
        let read = read_regular(path, 64 * 1024).unwrap();
        assert!(!read.truncated && read.bytes.len() > whole / 2, "{} {whole}", read.bytes.len());
        let read = read_regular(path, 10).unwrap();
        assert_eq!((read.bytes.len(), read.truncated), (10, true));
    }
}
