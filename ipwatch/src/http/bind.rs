//! Creates the file of a Unix socket: private from the first moment, replaced only if it is stale, removed only if it
//! is still ours.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::bounded;

/// Group whose members may connect, if the node has it.
pub(crate) const GROUP: &str = "ipwatch";
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Maximum size of `/etc/group` that is read, in bytes.
const GROUP_FILE_LIMIT: usize = 1024 * 1024;

/// Why the socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another daemon holds the lock, or a process listens on the socket.
    #[error(
        "another daemon uses {0}: stop it first, or give this one its own --socket and \
         --state-dir"
    )]
    InUse(PathBuf),
    /// The path exists and is not a socket.
    #[error("{0} exists and is not a socket: move it away, or give another --socket")]
    NotASocket(PathBuf),
    /// The path is longer than 107 bytes, the limit of the kernel.
    #[error("{0} is too long for a socket (107 bytes at most): give a shorter --socket")]
    TooLong(PathBuf),
    /// A system call failed.
    #[error("cannot {action} {path}: {error}; run it as root, or give another --socket")]
    Io {
        /// What was attempted, for the message.
        action: &'static str,
        path: PathBuf,
        error: io::Error,
    },
}

/// A listening socket and its file.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listener: UnixListener,
    /// The group whose members may connect; `None`: only root and our own user.
    pub(crate) group: Option<u32>,
    path: PathBuf,
    identity: (u64, u64),
    /// Held until the server ends.
    _lock: OwnedFd,
}

impl Bound {
    /// Creates the socket file, with mode 0660 for `group` if the node has it, else 0600.
    pub(crate) fn new(path: &Path, group: &str) -> Result<Self, BindError> {
        let address = SocketAddrUnix::new(path).map_err(|error| match error {
            rustix::io::Errno::NAMETOOLONG => BindError::TooLong(path.to_owned()),
            other => refusal("use", path)(other.into()),
        })?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        make_directory(parent)?;
        let lock = lock(path)?;
        clear_stale(path, &address)?;

        let fd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|error| refusal("make a socket for", path)(error.into()))?;
        // `unix_bind_bsd` (net/unix/af_unix.c, 6.1 to 6.18) gives the file the mode of the socket's own inode, so
        // that nobody else can open it between bind and the call that sets its group.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)
            .and_then(|()| rustix::net::bind(&fd, &address))
            .map_err(|error| refusal("make the socket", path)(error.into()))?;
        let (identity, group) = open_to_group(path, group)?;
        rustix::net::listen(&fd, BACKLOG)
            .map_err(|error| refusal("listen on", path)(error.into()))?;
        Ok(Self {
            listener: UnixListener::from(fd),
            group,
            path: path.to_owned(),
            identity,
            _lock: lock,
        })
    }

    /// Removes the file, unless it was replaced by another one.
    pub(crate) fn remove(&self) {
        let ours = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity);
        if ours && let Err(error) = rustix::fs::unlink(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

fn refusal(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BindError + use<> {
    let path = path.to_owned();
    move |error| BindError::Io { action, path, error }
}

fn make_directory(directory: &Path) -> Result<(), BindError> {
    match rustix::fs::mkdir(directory, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(refusal("make the directory", directory)(error.into())),
    }
}

/// Locks `PATH.lock`, so that of two daemons that start at the same time neither takes the other's new socket for a
/// stale one. The directory itself is not locked: any user who may read it could hold its lock and keep the daemon
/// from starting. The file is never removed, because two daemons could then hold different locks.
fn lock(path: &Path) -> Result<OwnedFd, BindError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = rustix::fs::open(
        &name,
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
    .map_err(|error| refusal("open", Path::new(&name))(error.into()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(BindError::InUse(path.to_owned())),
        Err(error) => Err(refusal("lock", Path::new(&name))(error.into())),
    }
}

/// Removes a socket on which nobody listens. Anything else with this name is kept.
fn clear_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), BindError> {
    let stat = match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(refusal("look at", path)(error.into())),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    // Non-blocking: connect would wait for as long as the backlog of the other side is full.
    let answer = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .and_then(|fd| rustix::net::connect(&fd, address));
    match answer {
        Err(rustix::io::Errno::CONNREFUSED) => {}
        Ok(()) | Err(rustix::io::Errno::AGAIN) => return Err(BindError::InUse(path.to_owned())),
        Err(error) => return Err(refusal("connect to", path)(error.into())),
    }
    rustix::fs::unlink(path).map_err(|error| refusal("remove the stale", path)(error.into()))
}

/// Gives the new socket file to `group`. Returns the file's identity (device and inode), and the group's id.
fn open_to_group(path: &Path, group: &str) -> Result<((u64, u64), Option<u32>), BindError> {
    let refused = |error: rustix::io::Errno| refusal("set the permissions of", path)(error.into());
    let file =
        rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(refused)?;
    let stat = rustix::fs::fstat(&file).map_err(refused)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    let identity = (stat.st_dev, stat.st_ino);
    let Some(gid) = group_id(group) else { return Ok((identity, None)) };
    if let Err(error) = give_to(&file, gid) {
        // Not root, and not a member of the group: the socket stays private.
        tracing::warn!(group, %error, "the socket stays closed to the group");
        return Ok((identity, None));
    }
    Ok((identity, Some(gid)))
}

fn give_to(file: &OwnedFd, gid: u32) -> io::Result<()> {
    rustix::fs::chownat(file.as_fd(), "", None, Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
    // fchmod rejects an O_PATH fd, and fchmodat2 (6.6) is newer than the oldest kernel that we support.
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(0o660))?;
    Ok(())
}

/// The id of a local group. `/etc/group` is parsed here because glibc's `getgrnam` loads plugins at run time, which a
/// static binary cannot rely on.
fn group_id(name: &str) -> Option<u32> {
    let text = bounded::read_text(Path::new("/etc/group"), GROUP_FILE_LIMIT).ok()?;
    group_id_in(&text, name)
}

fn group_id_in(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    use super::*;

    const NOBODY_HAS_IT: &str = "ipwatch-no-such-group";

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let text = "root:x:0:\nipwatch2:x:7:\nbroken\nipwatch:x:987:ada,bob\n";
        assert_eq!(group_id_in(text, "ipwatch"), Some(987));
        assert_eq!(group_id_in(text, "ipw"), None);
        assert_eq!(group_id_in("ipwatch:x:none:\n", "ipwatch"), None);
    }

    #[test]
    fn the_socket_is_private_without_the_group_and_its_directory_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/ipwatch.sock");
        let bound = Bound::new(&path, NOBODY_HAS_IT).unwrap();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert_eq!(bound.group, None);
        bound.remove();
        assert!(!path.exists());
    }

    #[test]
    fn the_socket_is_open_to_a_group_that_exists() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipwatch.sock");
        // Every Linux has this group, and root may give a file to it.
        let Some(gid) = group_id("daemon") else { return };
        let bound = Bound::new(&path, "daemon").unwrap();
        let mode = std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777;
        let expected =
            if rustix::process::geteuid().is_root() { (0o660, Some(gid)) } else { (0o600, None) };
        assert_eq!((mode, bound.group), expected);
    }

    #[test]
    fn a_second_daemon_is_told_so_and_a_dead_ones_socket_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipwatch.sock");
        let first = Bound::new(&path, NOBODY_HAS_IT).unwrap();
        assert!(matches!(Bound::new(&path, NOBODY_HAS_IT), Err(BindError::InUse(_))));
        drop(first);
        assert!(path.exists(), "as after kill -9");
        Bound::new(&path, NOBODY_HAS_IT).unwrap();
    }

    #[test]
    fn whoever_answers_without_the_lock_keeps_the_socket_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipwatch.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(Bound::new(&path, NOBODY_HAS_IT), Err(BindError::InUse(_))));
    }

    #[test]
    fn the_lock_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipwatch.sock");
        let victim = dir.path().join("victim");
        std::os::unix::fs::symlink(&victim, dir.path().join("ipwatch.sock.lock")).unwrap();
        assert!(matches!(Bound::new(&path, NOBODY_HAS_IT), Err(BindError::Io { .. })));
        assert!(!victim.exists());
    }

    #[test]
    fn neither_a_link_nor_a_file_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target.sock");
        let _target = Bound::new(&target, NOBODY_HAS_IT).unwrap();
        let link = dir.path().join("link.sock");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(matches!(Bound::new(&link, NOBODY_HAS_IT), Err(BindError::NotASocket(_))));
        let file = dir.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        assert!(matches!(Bound::new(&file, NOBODY_HAS_IT), Err(BindError::NotASocket(_))));
        assert!(link.is_symlink() && file.exists());
    }

    #[test]
    fn a_socket_of_somebody_else_in_our_place_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipwatch.sock");
        let ours = Bound::new(&path, NOBODY_HAS_IT).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        ours.remove();
        assert!(path.exists());
    }

    #[test]
    fn a_path_over_the_kernels_limit_is_named() {
        let path = Path::new("/tmp").join("x".repeat(120));
        assert!(matches!(Bound::new(&path, NOBODY_HAS_IT), Err(BindError::TooLong(_))));
    }
}
