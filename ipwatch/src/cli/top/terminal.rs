//! The terminal: raw while the screen is shown, and given back as it was however that ends.

use std::io::{self, Stdin, Stdout, Write as _};
use std::sync::{Mutex, Once, PoisonError};

use ratatui_core::layout::Size;
use ratatui_core::terminal::Terminal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::ansi::{Ansi, ENTER, LEAVE};
use super::draw::draw;
use super::state::State;
use crate::cli::table::Paint;

/// Used where the terminal does not say its size.
const USUAL: Size = Size { width: 80, height: 24 };
/// Larger ones are not drawn to their end: a size is what somebody else says.
const LARGEST: Size = Size { width: 500, height: 200 };

/// How the terminal was before. `None`: it is as it was.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// The terminal, while it shows the screen.
pub(super) struct Screen {
    terminal: Terminal<Ansi<Stdout>>,
    paint: Paint,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// It is not a terminal, or has gone.
    pub(super) fn take(paint: Paint) -> io::Result<Self> {
        give_back_after_a_panic();
        // From here on dropping gives it back.
        let terminal = Terminal::new(Ansi::new(io::stdout(), size()))?;
        let mut screen = Self { terminal, paint };
        screen.enter()?;
        Ok(screen)
    }

    /// Makes the terminal ours, again after it was given back or somebody else has written to it.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        let now = tcgetattr(io::stdin())?;
        let mut raw = now.clone();
        raw.make_raw();
        BEFORE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(now);
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write(ENTER)?;
        self.terminal.clear()
    }

    /// The size of the terminal now.
    pub(super) fn resize(&mut self) -> Size {
        let size = size();
        self.terminal.backend_mut().set_size(size);
        size
    }

    /// Draws what has changed.
    pub(super) fn draw(&mut self, state: &State) -> io::Result<()> {
        let paint = self.paint;
        self.terminal.draw(|frame| draw(state, paint, frame.buffer_mut()))?;
        Ok(())
    }

    /// Gives the terminal back, stops this process as Ctrl-Z does, and takes the terminal again when it is continued.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        kill_process(getpid(), Signal::TSTP)?;
        self.enter()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Leaves the screen and makes the terminal what it was. Does nothing the second time.
fn give_back() {
    // Taken without waiting: the hook of a panic must not wait for the thread that panics.
    let Ok(mut before) = BEFORE.try_lock() else { return };
    if let Some(before) = before.take() {
        // A terminal that is gone needs neither.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}

/// The message of a panic is for the screen that the person comes from. The shipped program aborts after it, and drops
/// nothing.
fn give_back_after_a_panic() {
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            usual(panic);
        }));
    });
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn size() -> Size {
    let Ok(size) = tcgetwinsize(io::stdout()) else { return USUAL };
    match Size::new(size.ws_col, size.ws_row) {
        Size { width: 0, .. } | Size { height: 0, .. } => USUAL,
        size => Size::new(size.width.min(LARGEST.width), size.height.min(LARGEST.height)),
    }
}

/// What is typed.
pub(super) struct Input(AsyncFd<Stdin>);

impl Input {
    /// # Errors
    /// The terminal cannot be waited for.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: nothing in this program closes stdin, so the descriptor is open for as long as the process runs.
        let stdin = unsafe { AsyncFd::register_with_interest(io::stdin(), Interest::READABLE) };
        Ok(Self(stdin?))
    }

    /// The next bytes; none at the end, when the terminal has gone.
    pub(super) async fn read(&self) -> io::Result<Vec<u8>> {
        loop {
            let mut ready = self.0.readable().await?;
            // The terminal stays in blocking mode, which it shares with the shell: it is read only if it has something.
            let mut stdin = [PollFd::new(self.0.get_ref(), PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut stdin, Some(&now))? == 0 {
                ready.clear_ready();
                continue;
            }
            let mut bytes = vec![0; 1024];
            let read = match rustix::io::read(self.0.get_ref(), &mut bytes) {
                Ok(read) => read,
                Err(rustix::io::Errno::INTR) => continue,
                // What a terminal that was hung up says (`tty_read`, drivers/tty/tty_io.c).
                Err(rustix::io::Errno::IO) => 0,
                Err(error) => return Err(error.into()),
            };
            bytes.truncate(read);
            return Ok(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd as _, OwnedFd};
    use std::process::Command;

    use super::*;

    /// Says that this is the program that panics.
    const PANICS: &str = "IPWATCH_TEST_PANICS";

    fn pty() -> (OwnedFd, OwnedFd) {
        let (mut near, mut far) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: openpty writes two integers, and takes null for what is not wanted.
        let rc =
            unsafe { libc::openpty(&raw mut near, &raw mut far, none, none.cast(), none.cast()) };
        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
        // SAFETY: both are open, and nobody else has them.
        unsafe { (OwnedFd::from_raw_fd(near), OwnedFd::from_raw_fd(far)) }
    }

    #[test]
    fn a_panic_is_told_on_a_terminal_that_is_as_it_was() {
        if std::env::var_os(PANICS).is_some() {
            let _screen = Screen::take(Paint(false)).unwrap();
            panic!("on purpose");
        }
        let (near, far) = pty();
        let before = format!("{:?}", tcgetattr(&far).unwrap());
        let end = || far.try_clone().unwrap();
        let own = "cli::top::terminal::tests::a_panic_is_told_on_a_terminal_that_is_as_it_was";
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", own, "--nocapture"])
            .envs([(PANICS, "1"), ("RUST_BACKTRACE", "0")])
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .status()
            .unwrap();
        assert!(!ended.success());
        // The kernel hands it over in parts, also after the program has ended (`flush_to_ldisc`, drivers/tty).
        rustix::io::ioctl_fionbio(&near, true).unwrap();
        let (mut said, mut part) = (Vec::new(), [0; 8192]);
        for _ in 0..1_000 {
            match rustix::io::read(&near, &mut part) {
                Ok(read) => said.extend_from_slice(&part[..read]),
                Err(_) if String::from_utf8_lossy(&said).contains("on purpose") => break,
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
            }
        }
        let said = String::from_utf8_lossy(&said).into_owned();
        let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("no {text:?} in {said:?}"));
        assert!(at(ENTER) < at(LEAVE) && at(LEAVE) < at("on purpose"), "{said:?}");
        assert_eq!(said.matches(LEAVE).count(), 1, "once: {said:?}");
        assert_eq!(format!("{:?}", tcgetattr(&far).unwrap()), before);
    }
}
