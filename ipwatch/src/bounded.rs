//! Reading files that may be hostile: never more than a limit, never through a final symlink unless
//! asked, never blocking on a fifo, and lossy text.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::reading;

/// What was read of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bytes {
    /// The first bytes.
    pub bytes: Vec<u8>,
    /// There was more than the limit.
    pub truncated: bool,
    /// When a regular file was last written, Unix time in nanoseconds.
    pub modified: Option<i64>,
}

/// The first `limit` bytes of a file under `/proc` or `/sys`, whose paths the kernel makes.
///
/// # Errors
/// As `open` and `read`.
pub fn read(path: &Path, limit: usize) -> io::Result<Bytes> {
    read_with(path, limit, OFlags::empty())
}

/// The first `limit` bytes of a regular file that somebody else wrote: a symlink, fifo or device in
/// its place is an error (`ELOOP`, `InvalidInput`).
///
/// # Errors
/// As `open` and `read`; `InvalidInput` when it is no regular file.
pub fn read_regular(path: &Path, limit: usize) -> io::Result<Bytes> {
    read_with_stat(path, limit, OFlags::NOFOLLOW)
}

/// The same through a final symlink: for directories that nobody but root writes and whose readers follow
/// links.
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

/// When it was last written, Unix time in nanoseconds.
fn modified(stat: &Stat) -> Option<i64> {
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or_default();
    stat.st_mtime.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// What was read into a buffer of a small file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// So many bytes. All of the buffer: there may be more.
    pub length: usize,
    /// As [`Bytes::modified`].
    pub modified: Option<i64>,
}

/// A regular file of an open directory, as [`read_regular`] takes it: as much as there is room for in
/// `buffer`. For directories with tens of thousands of small files, where each system call counts: nobody walks
/// the path again, and the time of the last access stays as it is, which would be a write for each file.
///
/// # Errors
/// As [`read_regular`].
pub fn read_at(directory: BorrowedFd<'_>, name: &Path, buffer: &mut [u8]) -> io::Result<Filled> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = |more| rustix::fs::openat(directory, name, flags | more, Mode::empty());
    let fd = match open(OFlags::NOATIME) {
        // For its owner alone, and who may act as if.
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
        // One read gives all there is of a regular file: no other one to be told that it ends.
        if length >= size && size > 0 {
            break;
        }
    }
    Ok(Filled { length, modified: modified(&stat) })
}

/// The same file, to be read in parts.
///
/// # Errors
/// As `open`; `InvalidInput` when it is no regular file.
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

/// The last `limit` bytes of a regular file that somebody else writes, as [`read_regular`] takes it.
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

/// The same of a file that was just now of this size, which is no more than the limit, by one read.
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
        // It has grown.
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
        // The size of those under /proc is 0.
        let path = Path::new("/proc/self/status");
        let whole = read(path, 64 * 1024).unwrap().bytes.len();
        let read = read_regular(path, 64 * 1024).unwrap();
        assert!(!read.truncated && read.bytes.len() > whole / 2, "{} {whole}", read.bytes.len());
        let read = read_regular(path, 10).unwrap();
        assert_eq!((read.bytes.len(), read.truncated), (10, true));
    }
}
