//! The record of changes: a directory for each run, which only root may read. It contains the files that were moved away
//! and `record.jsonl`: who ran the command, each intended change, and its outcome. The intention is on disk before the
//! change is made, so that a run that was killed can be undone too.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::who::Who;
use crate::clock;
use crate::contract::{FixItem, FixState};

const LOG: &str = "record.jsonl";

/// Longest record that is read, in bytes: 64 items need about 100 KiB.
const LONGEST: u64 = 4 << 20;

/// Maximum number of runs that are read: the newest ones.
const RUNS: usize = 4_096;

/// Mode of the directories: accessible to the owner only.
const OWNERS: Mode = Mode::RWXU;

/// Why a record cannot be kept. Nothing is changed without a record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error(
        "{path}: {error}: the record of what is changed cannot be kept there; --record-dir names another place"
    )]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error(
        "{0} is not this user's alone: `chown root:root` and `chmod 700` it, or name another place by --record-dir"
    )]
    Open(PathBuf),
}

/// A line of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "kebab-case")]
pub(crate) enum Line {
    /// The first line.
    Begin {
        /// When, RFC 3339.
        at: String,
        /// The finding or the network that was named.
        what: String,
        /// The node.
        node: String,
        /// Who ran the command.
        who: Who,
    },
    /// An intended change.
    Intent {
        /// When, RFC 3339.
        at: String,
        /// Its number in the run.
        number: usize,
        /// The item.
        item: Box<FixItem>,
        /// The name in this directory under which what is moved away is kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<String>,
    },
    /// The outcome of an intended change.
    Outcome {
        /// When, RFC 3339.
        at: String,
        /// Its number in the run.
        number: usize,
        /// The result.
        state: FixState,
        /// Why, where it was skipped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// Who, where it is another run that undid it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        who: Option<Who>,
    },
}

/// The date of now.
pub(crate) fn date() -> String {
    clock::Calendar { wall_offset: clock::wall_offset() }.date(clock::now())
}

/// The record of one run.
#[derive(Debug)]
pub(crate) struct Record {
    dir: OwnedFd,
    path: PathBuf,
    log: File,
    items: usize,
    /// The last line may be incomplete.
    torn: bool,
}

impl Record {
    /// Begins a record below `base`, which is created if it is missing.
    ///
    /// # Errors
    /// [`RecordError`]
    pub(crate) fn begin(
        base: &Path,
        what: &str,
        node: &str,
        who: Who,
    ) -> Result<Self, RecordError> {
        let fail = |error: io::Error| RecordError::Io { path: base.to_owned(), error };
        if let Some(above) = base.parent() {
            make_above(above).map_err(fail)?;
        }
        let made = rustix::fs::mkdir(base, OWNERS);
        made.or_else(unless_there).map_err(|error| fail(error.into()))?;
        let parent = open_base(base)?;
        let at = date();
        let name = format!("{at}-{}", who.pid);
        rustix::fs::mkdirat(&parent, &name, OWNERS).map_err(|error| fail(error.into()))?;
        let dir = open_dir(parent.as_fd(), name.as_ref()).map_err(fail)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND;
        let log = open_log(dir.as_fd(), flags).map_err(fail)?;
        let mut record = Self { dir, path: base.join(&name), log, items: 0, torn: false };
        let begin = Line::Begin { at, what: what.to_owned(), node: node.to_owned(), who };
        record.write(&begin).map_err(fail)?;
        // The directory's name must be on disk before a file is moved into it.
        rustix::fs::fsync(&parent).map_err(|error| fail(error.into()))?;
        Ok(record)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// How many items were intended so far.
    pub(crate) fn items(&self) -> usize {
        self.items
    }

    /// The directory for what is moved away.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Records an intended change, and the name under which a file that is moved away is kept. Returns its number.
    ///
    /// # Errors
    /// It could not be written; the change must then not be made.
    pub(crate) fn intend(&mut self, item: &FixItem, kept: Option<&str>) -> io::Result<usize> {
        let number = self.items;
        self.items += 1;
        let kept = kept.map(str::to_owned);
        self.write(&Line::Intent { at: date(), number, item: Box::new(item.clone()), kept })?;
        Ok(number)
    }

    /// Keeps a text under a name, before what it tells of is changed.
    ///
    /// # Errors
    /// The disk does not take it: then nothing must be changed.
    pub(crate) fn keep(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.dir, name, flags | OFlags::CLOEXEC, mode)?;
        let mut file = File::from(file);
        file.write_all(text)?;
        file.sync_all()
    }

    /// What was kept under a name.
    ///
    /// # Errors
    /// It cannot be read, or is too long.
    pub(crate) fn kept(&self, name: &str) -> io::Result<Vec<u8>> {
        use std::io::Read as _;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.dir, name, flags, Mode::empty())?);
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
        }
        Ok(bytes)
    }

    /// Takes away what was kept under a name, if what it tells of was not changed after all.
    pub(crate) fn forget(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
    }

    /// Notes what became of it.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) fn became(
        &mut self,
        number: usize,
        item: &FixItem,
        who: Option<&Who>,
    ) -> io::Result<()> {
        let (state, why, who) = (item.state, item.why.clone(), who.cloned());
        self.write(&Line::Outcome { at: date(), number, state, why, who })
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        // Appended to an incomplete line, this line could not be read.
        let mut text = if self.torn { vec![b'\n'] } else { Vec::new() };
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
        let written = self.log.write_all(&text);
        self.torn = written.is_err();
        written?;
        self.log.sync_all()
    }

    /// Removes the record of a run that changed nothing. Returns whether it was removed.
    pub(crate) fn discard(self) -> bool {
        let is_log = |name: &[u8]| [b".".as_slice(), b"..", LOG.as_bytes()].contains(&name);
        let Ok(mut all) = rustix::fs::Dir::read_from(&self.dir) else { return false };
        all.all(|entry| entry.is_ok_and(|entry| is_log(entry.file_name().to_bytes())))
            && rustix::fs::unlinkat(&self.dir, LOG, AtFlags::empty()).is_ok()
            && std::fs::remove_dir(&self.path).is_ok()
    }
}

/// The record of an earlier run. Its files are not kept open, because there may be thousands of records.
#[derive(Debug)]
pub(crate) struct Kept {
    base: PathBuf,
    /// The name of its directory.
    pub(crate) name: OsString,
    pub(crate) lines: Vec<Line>,
}

impl Kept {
    /// Opens the record, to restore files from it.
    ///
    /// # Errors
    /// It no longer exists, or cannot be opened.
    pub(crate) fn open(&self) -> io::Result<Record> {
        let parent = open_base(&self.base).map_err(io::Error::other)?;
        let dir = open_dir(parent.as_fd(), &self.name)?;
        let log = open_log(dir.as_fd(), OFlags::RDWR | OFlags::APPEND)?;
        let length = log.metadata()?.len();
        let mut last = [b'\n'];
        if let Some(at) = length.checked_sub(1) {
            log.read_exact_at(&mut last, at)?;
        }
        let intents = self.lines.iter().filter(|line| matches!(line, Line::Intent { .. }));
        let (path, items) = (self.base.join(&self.name), intents.count());
        Ok(Record { dir, path, log, items, torn: last != *b"\n" })
    }
}

/// The runs below `base`, the newest first, and a text for each record or line that cannot be read and for each file that no
/// line names.
///
/// # Errors
/// [`RecordError`]. If there is no record yet, the list is empty.
pub(crate) fn runs(base: &Path) -> Result<(Vec<Kept>, Vec<String>), RecordError> {
    let fail = |error: io::Error| RecordError::Io { path: base.to_owned(), error };
    let parent = match open_base(base) {
        Err(RecordError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            return Ok((Vec::new(), Vec::new()));
        }
        parent => parent?,
    };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&parent).map_err(|error| fail(error.into()))? {
        let entry = entry.map_err(|error| fail(error.into()))?;
        let name = entry.file_name().to_bytes();
        if !name.starts_with(b".") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort_unstable_by(|one, other| other.cmp(one));
    names.truncate(RUNS);
    let (mut kept, mut unread) = (Vec::new(), Vec::new());
    for name in names {
        match read(base, parent.as_fd(), &name) {
            Ok((run, strange)) => {
                kept.push(run);
                unread.extend(strange);
            }
            Err(error) => unread.push(format!("{}: {error}", base.join(&name).display())),
        }
    }
    Ok((kept, unread))
}

fn read(base: &Path, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<(Kept, Vec<String>)> {
    use std::io::Read as _;
    let dir = open_dir(parent, name)?;
    let mut bytes = Vec::new();
    let log = open_log(dir.as_fd(), OFlags::RDONLY)?;
    log.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
    }
    let (mut lines, mut strange) = (Vec::<Line>::new(), Vec::new());
    let path = base.join(name).join(LOG);
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        match serde_json::from_slice(line) {
            Ok(line) => lines.push(line),
            Err(_) if line.is_empty() => {}
            Err(error) => {
                strange.push(format!("{}, line {}: {error}", path.display(), number + 1));
            }
        }
    }
    if !matches!(lines.first(), Some(Line::Begin { .. })) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it has no beginning"));
    }
    for file in untold(&dir, &lines)? {
        let path = base.join(name).join(file);
        strange.push(format!("{}: no line of its record says what it was", path.display()));
    }
    Ok((Kept { base: base.to_owned(), name: name.to_owned(), lines }, strange))
}

/// The files in a record's directory that no line names.
fn untold(dir: &OwnedFd, lines: &[Line]) -> io::Result<Vec<OsString>> {
    let is_told = |name: &[u8]| {
        let kept = |line: &Line| matches!(line, Line::Intent { kept: Some(kept), .. } if kept.as_bytes() == name);
        name.starts_with(b".") || name == LOG.as_bytes() || lines.iter().any(kept)
    };
    let mut untold = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !is_told(name) {
            untold.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(untold)
}

/// Creates the missing directories above the records. The lowest is the daemon's state directory.
fn make_above(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn unless_there(error: rustix::io::Errno) -> rustix::io::Result<()> {
    if error == rustix::io::Errno::EXIST { Ok(()) } else { Err(error) }
}

/// Opens the directory of all records, if only its owner, this user, has access.
fn open_base(base: &Path) -> Result<OwnedFd, RecordError> {
    let dir = open_dir(rustix::fs::CWD, base.as_os_str())
        .map_err(|error| RecordError::Io { path: base.to_owned(), error })?;
    let stat = rustix::fs::fstat(&dir)
        .map_err(|error| RecordError::Io { path: base.to_owned(), error: error.into() })?;
    let shared = Mode::from_raw_mode(stat.st_mode).intersects(Mode::RWXG | Mode::RWXO);
    if shared || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(RecordError::Open(base.to_owned()));
    }
    Ok(dir)
}

fn open_dir(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

fn open_log(dir: BorrowedFd<'_>, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, LOG, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its record is no regular file"));
    }
    Ok(File::from(fd))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::contract::{Code, FixTarget};

    fn item() -> FixItem {
        FixItem {
            finding: "k3f9q2m7x5wz4a6b".to_owned(),
            code: Code::IpamReservationLeaked,
            target: FixTarget::Nothing { about: "a\u{1b}\n".to_owned() },
            state: FixState::Planned,
            why: None,
            proof: Vec::new(),
        }
    }

    #[test]
    fn what_was_done_is_read_again_the_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("state/fix");
        assert!(runs(&base).unwrap().0.is_empty());
        for what in ["one", "two"] {
            let mut record = Record::begin(&base, what, "node-1", Who::now()).unwrap();
            let number = record.intend(&item(), Some("0-x")).unwrap();
            record.became(number, &FixItem { state: FixState::Done, ..item() }, None).unwrap();
            // A run in the same millisecond would have the same name.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let (kept, unread) = runs(&base).unwrap();
        assert_eq!((kept.len(), unread.len()), (2, 0));
        let Line::Begin { what, .. } = &kept[0].lines[0] else { panic!("{:?}", kept[0].lines) };
        assert_eq!(what, "two");
        let Line::Intent { item: told, .. } = &kept[0].lines[1] else { panic!("no intent") };
        assert_eq!(**told, item());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let run = base.join(&kept[0].name);
        assert_eq!([mode(&base), mode(&run)], [0o700; 2]);
        assert_eq!(mode(&run.join(LOG)), 0o600);
    }

    #[test]
    fn a_directory_that_others_may_enter_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("fix");
        std::fs::create_dir(&base).unwrap();
        std::fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).unwrap();
        let refused = Record::begin(&base, "x", "n", Who::now()).unwrap_err();
        assert!(matches!(refused, RecordError::Open(_)), "{refused}");
        std::fs::remove_dir(&base).unwrap();
        std::os::unix::fs::symlink("/tmp", &base).unwrap();
        assert!(Record::begin(&base, "x", "n", Who::now()).is_err(), "a link was followed");
    }

    #[test]
    fn half_a_line_takes_no_other_with_it_and_what_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("fix");
        let mut record = Record::begin(&base, "x", "n", Who::now()).unwrap();
        let half = |record: &Record| {
            let mut log = File::options().append(true).open(record.path().join(LOG)).unwrap();
            log.write_all(b"{\"line\":\"int").unwrap();
        };
        // The disk was full, and is so no more.
        half(&record);
        record.torn = true;
        record.intend(&item(), Some("0-x")).unwrap();
        half(&record);
        std::fs::create_dir(base.join("2000")).unwrap();
        std::fs::write(record.path().join("7-y"), "").unwrap();
        let (kept, unread) = runs(&base).unwrap();
        assert_eq!((kept.len(), kept[0].lines.len()), (1, 2), "{unread:?}");
        for part in ["record.jsonl, line 2: ", "record.jsonl, line 4: ", "/7-y: ", "/2000: "] {
            assert_eq!(unread.iter().filter(|one| one.contains(part)).count(), 1, "{unread:?}");
        }
        let mut again = kept[0].open().unwrap();
        again.became(0, &FixItem { state: FixState::Restored, ..item() }, None).unwrap();
        assert_eq!(runs(&base).unwrap().0[0].lines.len(), 3);
    }

    #[test]
    fn a_run_that_changed_nothing_leaves_nothing_and_many_runs_keep_no_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("fix");
        let mut record = Record::begin(&base, "x", "n", Who::now()).unwrap();
        record.intend(&item(), Some("0-x")).unwrap();
        let path = record.path().to_owned();
        std::fs::write(path.join("0-x"), "").unwrap();
        assert!(!record.discard() && path.join(LOG).exists(), "something is kept in it");
        let ours = |fd: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_link(fd.unwrap().path()).is_ok_and(|to| to.starts_with(dir.path()))
        };
        let (kept, _) = runs(&base).unwrap();
        assert_eq!(kept.len(), 1);
        let open = std::fs::read_dir("/proc/self/fd").unwrap().map(ours).filter(|is| *is).count();
        assert_eq!(open, 0);
        std::fs::remove_file(path.join("0-x")).unwrap();
        assert!(kept[0].open().unwrap().discard() && !path.exists());
    }
}
