//! One run of the canary, from the daemon's side. It blocks and needs its own thread.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

use super::claims::nsids::Doors;
use super::judge::{self, LeftOut, Marks};
use super::marks::Mark;
use super::stage::{ON, ON_WITH_DAD};
use super::{CONTAINER, Claims, STAGE};
use crate::clock;
use crate::fact::{BootNs, NetnsRef};
use crate::sources::netlink::Numbers;
use crate::sources::probes::Rung;

/// Until the child runs: its program may have to be read from a slow disk.
const LOADING: Duration = Duration::from_secs(3);
/// Maximum time for the creation of the netns, which takes milliseconds. All facts wait for it.
const MAKING: Duration = Duration::from_millis(500);
/// For all steps, and for what must be seen of them.
const STANDING: Duration = Duration::from_millis(2500);
/// After `end`, or a SIGKILL.
const LEAVING: Duration = Duration::from_millis(500);
/// For the teardown of both netns.
const TEARDOWN: Duration = Duration::from_millis(1500);
/// Between two checks of what was seen.
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum number of bytes that the stage may write.
const WORDS: usize = 4096;

/// The result of one run.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) marks: Marks,
    pub(crate) left_out: LeftOut,
}

/// What a run needs from other parts of the daemon.
pub(crate) struct Help<'a> {
    /// Requests every list in the background: netns, tasks, files.
    pub(crate) lists: &'a dyn Fn(),
    /// Requests a netns walk in the background.
    pub(crate) walk: &'a dyn Fn(),
    /// The number of events of a kind that the kernel half has counted.
    pub(crate) counted: &'a dyn Fn(u16) -> u64,
    /// Whether the daemon is shutting down, so that the run must end.
    pub(crate) over: &'a dyn Fn() -> bool,
    /// Factor for the waiting times: a busy node may be late.
    pub(crate) patience: u32,
}

/// What was seen so far.
struct Sightings<'a> {
    claims: &'a Claims,
    counted: &'a dyn Fn(u16) -> u64,
    /// The kernel half's counters before the stage did anything.
    before: Vec<(Mark, u16, u64)>,
}

impl<'a> Sightings<'a> {
    fn begin(claims: &'a Claims, events: &[(&str, Rung)], help: &Help<'a>) -> Self {
        let wanted = judge::wanted(events, &LeftOut::new(), true).into_iter();
        let before = wanted
            .filter_map(|mark| mark.counted().map(|kind| (mark, kind, (help.counted)(kind))))
            .collect();
        Self { claims, counted: help.counted, before }
    }

    fn marks(&self) -> Marks {
        let told = self.claims.marks().into_iter().map(|(mark, after)| (mark, Some(after)));
        let mut marks: Marks = told.collect();
        for (mark, kind, before) in &self.before {
            if (self.counted)(*kind) > *before {
                marks.entry(*mark).or_insert(None);
            }
        }
        marks
    }

    fn have(&self, wanted: &BTreeSet<Mark>) -> bool {
        let marks = self.marks();
        wanted.iter().all(|mark| marks.contains_key(mark))
    }
}

/// Makes every event once and waits for what the probes report of them. Takes a second or two; if something is not
/// seen, at most five seconds, multiplied by the patience.
pub(crate) fn run(claims: &Arc<Claims>, events: &[(&str, Rung)], help: &Help<'_>) -> Account {
    let mut account = Account { left_out: judge::untold(events), ..Account::default() };
    let sightings = Sightings::begin(claims, events, help);
    let outcome = play(claims, events, help, &sightings, &mut account.left_out);
    account.marks = sightings.marks();
    if let Err(error) = outcome {
        account.left_out.insert("all".to_owned(), error.to_string());
    }
    account
}

fn play(
    claims: &Arc<Claims>,
    events: &[(&str, Rung)],
    help: &Help<'_>,
    sightings: &Sightings<'_>,
    left_out: &mut LeftOut,
) -> io::Result<()> {
    if claims.is_on_stage() {
        return Err(io::Error::other("the process of an earlier run still hangs in the kernel"));
    }
    if (help.over)() {
        return Err(over());
    }
    let mut stage = Stage::start(claims)?;
    let made = stage.make(claims);
    let stood = made.and_then(|()| {
        // A duplicate is made only if its detection can be seen, because it is a duplicate for other tools on this node
        // too.
        let wanted = judge::wanted(events, left_out, true);
        stage.say(if wanted.contains(&Mark::DadFailed) { ON_WITH_DAD } else { ON })?;
        let until = after(STANDING * help.patience);
        let mut listed = false;
        loop {
            if (help.over)() {
                return Err(over());
            }
            let line = match stage.line(after(PAUSE).min(until)) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => None,
                line => Some(line?),
            };
            match line.as_deref().map(|line| line.split_once(' ').unwrap_or((line, ""))) {
                Some(("not", rest)) => {
                    let (step, why) = rest.split_once(' ').unwrap_or((rest, ""));
                    left_out.insert(step.to_owned(), why.to_owned());
                }
                Some(("stands", _)) => {
                    listed = true;
                    (help.lists)();
                }
                _ => {}
            }
            let wanted = judge::wanted(events, left_out, true);
            if listed && sightings.have(&wanted) || clock::now() >= until {
                return Ok(());
            }
        }
    });
    let ended = stage.end(claims);
    stood?;
    ended?;
    watch_teardown(sightings, events, help, left_out);
    Ok(())
}

/// Waits for the end of the teardown. The kernel tears netns down one after the other, so one that hangs blocks all
/// behind it.
fn watch_teardown(
    sightings: &Sightings<'_>,
    events: &[(&str, Rung)],
    help: &Help<'_>,
    left_out: &mut LeftOut,
) {
    let until = after(TEARDOWN * help.patience);
    let wanted = judge::wanted(events, left_out, false);
    while !sightings.have(&wanted) && clock::now() < until && !(help.over)() {
        std::thread::sleep(PAUSE);
    }
    if sightings.have(&wanted) || (help.over)() {
        return;
    }
    let asked = clock::now();
    (help.walk)();
    let until = after(LEAVING);
    while clock::now() < until {
        if sightings.claims.is_queued(asked) {
            let why = "the kernel has not begun to tear its netns down: another one may hold it up";
            left_out.insert("teardown".to_owned(), why.to_owned());
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

fn over() -> io::Error {
    io::Error::other("the daemon goes down")
}

fn after(pause: Duration) -> BootNs {
    clock::now().plus(pause.as_nanos() as u64)
}

/// The child.
struct Stage {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// What was read and is not a complete line yet.
    rest: Vec<u8>,
    words: usize,
}

impl Stage {
    /// Starts the child, which waits for a command.
    fn start(claims: &Claims) -> io::Result<Self> {
        let own = format!("/proc/{}/exe", std::process::id());
        let mut child = Command::new("/proc/self/exe")
            .arg0(CONTAINER)
            .args([STAGE, "stage", &own])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        claims.begin(child.id());
        Ok(Self { child, input: Some(input), output, rest: Vec::new(), words: 0 })
    }

    fn make(&mut self, claims: &Claims) -> io::Result<()> {
        if self.line(after(LOADING))? != "ready" {
            return Err(io::ErrorKind::InvalidData.into());
        }
        claims.hold(MAKING);
        self.say("go")?;
        let line = self.line(after(MAKING)).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => io::Error::other("no network namespace was made in 0.5 s"),
            io::ErrorKind::UnexpectedEof => {
                io::Error::other("it may make no network namespace: CAP_SYS_ADMIN, seccomp")
            }
            _ => error,
        })?;
        let named = line.strip_prefix("netns ").and_then(|names| names.split_once(' '));
        let names = named.and_then(|(one, other)| Some([netns(one)?, netns(other)?]));
        let names = names.ok_or(io::ErrorKind::InvalidData)?;
        let doors = self.doors(names).inspect_err(|error| tracing::debug!(%error, "its netns"));
        claims.know(names, doors.ok());
        Ok(())
    }

    /// Opens both netns: the one that the stage is in, and the other through the stage's own fd.
    fn doors(&self, names: [NetnsRef; 2]) -> io::Result<Doors> {
        let pid = self.child.id();
        let open = |path: String, name: NetnsRef| -> Option<OwnedFd> {
            let fd =
                rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
            let inode = rustix::fs::fstat(&fd).ok()?.st_ino;
            (name.inode.map(u64::from) == Some(inode)).then_some(fd)
        };
        // It has its three standard streams, and fds of both netns.
        let there = (3..16).find_map(|fd| {
            let path = format!("/proc/{pid}/fd/{fd}");
            let link = rustix::fs::readlink(&*path, Vec::new()).ok()?;
            if !link.to_bytes().starts_with(b"net:[") {
                return None;
            }
            open(path, names[1])
        });
        let here = open(format!("/proc/{pid}/ns/net"), names[0]);
        let netns = here.zip(there).ok_or(io::ErrorKind::NotFound)?;
        Ok(Doors { netns: netns.into(), numbers: Numbers::open()? })
    }

    fn say(&mut self, word: &str) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{word}")
    }

    /// One line, or `TimedOut`.
    fn line(&mut self, until: BootNs) -> io::Result<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            let left = Duration::from_nanos(until.since(clock::now()));
            let timeout = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut fds = [PollFd::from_borrowed_fd(self.output.as_fd(), PollFlags::IN)];
            if rustix::event::poll(&mut fds, Some(&timeout))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut buffer = [0; 512];
            let read = self.output.read(&mut buffer)?;
            self.words += read;
            if read == 0 || self.words > WORDS {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.rest.extend_from_slice(&buffer[..read]);
        }
    }

    /// Ends the child, kills it if it does not end by itself, and leaves no zombie. A child that hangs in the kernel is
    /// waited for on a thread of its own, for as long as it takes.
    fn end(mut self, claims: &Arc<Claims>) -> io::Result<()> {
        let _ = self.say("end");
        drop(self.input.take());
        if !self.is_over(LEAVING)? {
            self.child.kill()?;
            if !self.is_over(LEAVING)? {
                let (claims, mut child) = (Arc::clone(claims), self.child);
                let wait = move || {
                    let _ = child.wait();
                    claims.left();
                };
                let thread = std::thread::Builder::new().name("ipwatch-canary".to_owned());
                thread.stack_size(64 * 1024).spawn(wait)?;
                return Err(io::Error::other("its process hangs in the kernel"));
            }
        }
        claims.left();
        Ok(())
    }

    fn is_over(&mut self, pause: Duration) -> io::Result<bool> {
        let until = after(pause);
        while self.child.try_wait()?.is_none() {
            if clock::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(true)
    }
}

/// Parses `COOKIE:INODE`, where 0 means none.
fn netns(text: &str) -> Option<NetnsRef> {
    let (cookie, inode) = text.split_once(':')?;
    let cookie: u64 = cookie.parse().ok()?;
    let inode: u32 = inode.parse().ok()?;
    (inode != 0).then_some(NetnsRef {
        cookie: (cookie != 0).then_some(cookie),
        inode: Some(inode),
        nsid: None,
    })
}
