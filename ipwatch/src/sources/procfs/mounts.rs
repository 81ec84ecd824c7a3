//! Mounts of netns files: parses `mountinfo`, and watches it for changes.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Proc;
use super::files::{Dir, numbered};
use crate::clock;
use crate::fact::BootNs;
use crate::reading::{self, Readings, Watched};
use crate::sources::ready::ready;

/// Maximum number of bytes read of one mountinfo: about 300,000 mounts, three times the default of `fs.mount-max`.
const LONGEST: u64 = 64 << 20;

/// Maximum length of a line. A mount that was made with paths that system calls take has less: its root, its mount point
/// and its options have up to 4 KiB each, and each byte may be escaped with four. But a directory can be reached step by
/// step, as deep as one likes.
const LONGEST_LINE: usize = 64 << 10;
/// Length to which the mount point of a longer line is cut: even if every byte of it is escaped, more than `PATH_MAX`.
const SHORTENED: usize = 5 * 4096;

/// The used fields of one line of mountinfo, as the kernel escaped them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mount<'a> {
    pub(super) id: u64,
    /// Id of the mount that it lies on.
    pub(super) parent: u64,
    device: &'a [u8],
    pub(super) root: &'a [u8],
    pub(super) point: &'a [u8],
    pub(super) fs_type: &'a [u8],
    pub(super) source: &'a [u8],
    options: &'a [u8],
    /// The peer group that it is in.
    pub(super) shared: Option<u64>,
    /// The peer group whose slave it is.
    pub(super) master: Option<u64>,
}

impl<'a> Mount<'a> {
    /// `ID PARENT DEVICE ROOT POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS`. No field contains a space, because the
    /// kernel escapes them (`show_mountinfo`, fs/proc_namespace.c).
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = number(fields.next()?)?;
        let parent = number(fields.next()?)?;
        let device = fields.next()?;
        let root = fields.next()?;
        let point = fields.next()?;
        let mut rest = fields.skip(1);
        let (mut shared, mut master) = (None, None);
        for tag in rest.by_ref().take_while(|&field| field != b"-") {
            let of = |name: &[u8]| tag.strip_prefix(name).and_then(number);
            shared = shared.or_else(|| of(b"shared:"));
            master = master.or_else(|| of(b"master:"));
        }
        let fs_type = rest.next()?;
        let source = rest.next().unwrap_or_default();
        let options = rest.next().unwrap_or_default();
        Some(Self { id, parent, device, root, point, fs_type, source, options, shared, master })
    }

    /// The inode of the netns that is mounted, if it is one.
    pub(super) fn netns(&self) -> Option<u32> {
        if self.fs_type != b"nsfs" {
            return None;
        }
        numbered(self.root, "net").and_then(|inode| u32::try_from(inode).ok())
    }

    /// The mount point.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&unescape(self.point)))
    }

    /// Major and minor number of the file system's device.
    pub(super) fn device(&self) -> Option<(u32, u32)> {
        let (major, minor) = std::str::from_utf8(self.device).ok()?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// Whether the file system has this option.
    pub(super) fn has_option(&self, name: &[u8]) -> bool {
        self.options.split(|&byte| byte == b',').any(|option| option == name)
    }

    /// The number to which a file system option is set; `name` includes the `=`.
    pub(super) fn option(&self, name: &[u8]) -> Option<u32> {
        let mut options = self.options.split(|&byte| byte == b',');
        let value = options.find_map(|option| option.strip_prefix(name))?;
        std::str::from_utf8(value).ok()?.parse().ok()
    }
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Maximum length of a [`text`], in bytes. A user makes thousands of mounts with far longer ones. Even without its last
/// character, a text that was cut is longer than a path that a system call takes (`PATH_MAX`), and so is seen to be none.
const LONGEST_TEXT: usize = 4096 + 4;

/// A field of mountinfo as text for people: unescaped, lossily decoded, and cut if it is too long.
pub(super) fn text(field: &[u8]) -> String {
    // Each byte may be escaped with four.
    let plain = unescape(&field[..field.len().min(4 * LONGEST_TEXT)]);
    let text = String::from_utf8_lossy(&plain[..plain.len().min(LONGEST_TEXT)]);
    let end = text.floor_char_boundary(LONGEST_TEXT);
    text[..end].to_owned()
}

/// Replaces octal escapes such as `\040`.
fn unescape(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'\\') {
        return Cow::Borrowed(field);
    }
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = |digits: &[u8; 3]| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        };
        match after.first_chunk().and_then(octal).filter(|_| byte == b'\\') {
            Some(escaped) => {
                plain.push(escaped);
                rest = &after[3..];
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    Cow::Owned(plain)
}

/// Passes each line of a mountinfo to `each`. Returns false if there was more than the limit.
pub(super) fn lines(path: &Path, each: impl FnMut(&[u8])) -> io::Result<bool> {
    let mut file = watched(path)?.take(LONGEST);
    Ok(lines_of(&mut file, BootNs(u64::MAX), each)? && file.limit() > 0)
}

/// As [`lines`] of a mount namespace that is a tenant's perhaps: its length is not limited, and false is returned if it
/// takes too long.
pub(super) fn lines_until(path: &Path, until: BootNs, each: impl FnMut(&[u8])) -> io::Result<bool> {
    lines_of(watched(path)?, until, each)
}

fn watched(path: &Path) -> io::Result<Watched<File>> {
    let above = path.parent().map(Dir::open).ok_or(io::ErrorKind::InvalidInput)??;
    above.watched("mountinfo")
}

/// As [`lines_until`], for an open mountinfo. Of a line that is too long, `each` gets what [`shortened`] makes of it.
pub(super) fn lines_of(
    file: impl Read,
    until: BootNs,
    mut each: impl FnMut(&[u8]),
) -> io::Result<bool> {
    let mut reader = BufReader::with_capacity(32 << 10, file);
    let mut line = Vec::new();
    loop {
        let read = reader.fill_buf()?;
        if clock::now() > until {
            return Ok(false);
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let part = &read[..end.unwrap_or(read.len())];
        // One byte more than is allowed shows that the line is too long.
        let room = (LONGEST_LINE + 1).saturating_sub(line.len());
        line.extend_from_slice(&part[..part.len().min(room)]);
        let (is_last, used) = (read.is_empty(), part.len() + usize::from(end.is_some()));
        reader.consume(used);
        if end.is_none() && !is_last {
            continue;
        }
        if line.len() > LONGEST_LINE {
            shortened(&line).into_iter().for_each(|line| each(&line));
        } else if !line.is_empty() {
            each(&line);
        }
        if is_last {
            return Ok(true);
        }
        line.clear();
    }
}

/// A line about the same mount with a mount point that ends early, if it is of a netns: `net:[INODE]` is its root. Nobody
/// can use that path, which is longer than any that a system call takes, and no command is made of it.
fn shortened(line: &[u8]) -> Option<Vec<u8>> {
    let fields: Vec<&[u8]> = line.splitn(6, |&byte| byte == b' ').collect();
    let [id, parent, device, root, point, ..] = fields[..] else { return None };
    numbered(root, "net")?;
    let point = &point[..point.len().min(SHORTENED)];
    Some([id, parent, device, root, point, b"rw - nsfs nsfs rw"].join(&b' '))
}

/// Watches for netns files that are mounted or unmounted in the node's mount namespace, which is that of the first
/// process (the daemon's own may be a container's or a hardened service's). Nothing is read while nothing changes.
#[derive(Debug)]
pub struct MountWatch {
    changed: AsyncFd<OwnedFd>,
    path: PathBuf,
    /// The netns mounts at the last read.
    mounted: Option<BTreeSet<(u32, PathBuf)>>,
    readings: Readings,
}

impl MountWatch {
    /// Every mount of a container causes an event; those of one pod come together.
    const SETTLE: Duration = Duration::from_millis(50);

    /// Watches from now on. To miss nothing, call [`Proc::mounts`] for the first time after this.
    ///
    /// # Errors
    /// mountinfo cannot be opened or watched.
    pub fn new(proc: &Proc, readings: Readings) -> io::Result<Self> {
        let open = |process: &str| {
            let path = proc.root.join(process).join("mountinfo");
            File::open(&path).map(|file| (file, path))
        };
        // That of the first process needs CAP_SYS_PTRACE (`mounts_open_common`, fs/proc_namespace.c).
        let (file, path) = open("1").or_else(|_| open("self"))?;
        // The kernel signals the open file when the mounts change (`mounts_poll`, same file).
        let changed = ready(file.into(), Interest::PRIORITY)?;
        Ok(Self { changed, path, mounted: None, readings })
    }

    /// Waits until a netns file was mounted or unmounted, or may have been.
    ///
    /// # Errors
    /// mountinfo cannot be read.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            self.changed.ready(Interest::PRIORITY).await?.clear_ready();
            tokio::time::sleep(Self::SETTLE).await;
            let path = self.path.clone();
            let read = move || netns_mounts(&path);
            let mounted = match reading::unblocked(&self.readings, "procfs", read).await? {
                Ok(Err(error)) if reading::hangs(&error).is_none() => return Err(error),
                Ok(read) => read.ok(),
                Err(_) => None,
            };
            if mounted.is_none() || mounted != self.mounted {
                self.mounted = mounted;
                return Ok(());
            }
        }
    }
}

fn netns_mounts(path: &Path) -> io::Result<BTreeSet<(u32, PathBuf)>> {
    let mut mounted = BTreeSet::new();
    lines(path, |line| {
        if let Some(mount) = Mount::parse(line) {
            mounted.extend(mount.netns().map(|inode| (inode, mount.path())));
        }
    })?;
    Ok(mounted)
}

#[cfg(test)]
mod tests;
