//! A program in a pseudo-terminal of its own, as a person runs it: keys go in, a [`Screen`] comes out.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::poll::{eventually, until};
use crate::screen::Screen;

/// A program and its terminal.
pub struct Pty {
    child: Child,
    near: File,
    /// Keeps the terminal after the program has ended.
    far: OwnedFd,
    before: Termios,
    screen: Screen,
    /// Bytes that the program has written.
    pub written: usize,
}

impl Pty {
    /// Starts the program in a terminal of this size, which is its controlling terminal.
    #[must_use]
    pub fn start(mut command: Command, width: u16, height: u16) -> Self {
        let (near, far) = open().expect("a pseudo-terminal");
        tcsetwinsize(&far, size(width, height)).expect("set the size");
        let before = tcgetattr(&far).expect("the terminal's settings");
        let handle = || far.try_clone().expect("a second handle");
        command.stdin(handle()).stdout(handle()).stderr(handle());
        let own = far.as_raw_fd();
        let control = move || {
            rustix::process::setsid()?;
            // SAFETY: the ioctl takes an integer and touches no memory.
            match unsafe { libc::ioctl(own, libc::TIOCSCTTY, 0) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: between fork and exec it does two system calls, and takes no lock and no memory.
        unsafe { command.pre_exec(control) };
        let child = command.spawn().expect("start the program");
        let screen = Screen::new(usize::from(width), usize::from(height));
        Self { child, near: File::from(near), far, before, screen, written: 0 }
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types.
    pub fn type_in(&mut self, keys: &str) {
        self.near.write_all(keys.as_bytes()).expect("type");
    }

    /// Changes the size of the terminal, as a person does with a window. The kernel sends SIGWINCH
    /// (`tty_do_resize`, drivers/tty/tty_io.c).
    pub fn resize(&mut self, width: u16, height: u16) {
        self.screen.resize(usize::from(width), usize::from(height));
        tcsetwinsize(&self.near, size(width, height)).expect("set the size");
    }

    /// The screen now.
    pub fn screen(&mut self) -> &Screen {
        let mut bytes = [0; 4096];
        while self.has_more() {
            let read = self.near.read(&mut bytes).unwrap_or(0);
            if read == 0 {
                break;
            }
            self.written += read;
            self.screen.write(&bytes[..read]);
        }
        &self.screen
    }

    fn has_more(&self) -> bool {
        let mut near = [PollFd::new(&self.near, PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut near, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Waits until all of these texts are on the screen; returns it.
    #[track_caller]
    pub fn await_text(&mut self, wanted: &[&str]) -> String {
        let mut last = String::new();
        let mut found = None;
        crate::poll::settle(20, || {
            last = self.screen().text();
            found = wanted.iter().all(|text| last.contains(text)).then(|| last.clone());
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("not all of {wanted:?} on the screen:\n{last}"))
    }

    /// Waits for the end of the program. What it wrote until then is read, so that it does not wait for us.
    pub fn await_end(&mut self) -> ExitStatus {
        eventually("it ends", 10, || {
            let _ = self.screen();
            self.child.try_wait().expect("wait for it")
        })
    }

    /// # Panics
    /// The terminal is not as it was before the program.
    pub fn assert_as_before(&mut self) {
        let screen = self.screen();
        assert!(!screen.is_other && screen.has_cursor, "not the screen from before");
        let after = tcgetattr(&self.far).expect("the terminal's settings");
        assert_eq!(
            format!("{after:?}"),
            format!("{:?}", self.before),
            "other settings than before"
        );
    }

    /// Whether the program has taken the terminal.
    pub fn await_taken(&mut self) {
        until("it takes the terminal", 10, || {
            let other = self.screen().is_other;
            let now = tcgetattr(&self.far).expect("the terminal's settings");
            other && format!("{now:?}") != format!("{:?}", self.before)
        });
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(width: u16, height: u16) -> Winsize {
    Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Both ends of a new pseudo-terminal.
fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let (mut near, mut far) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: openpty writes two integers, and takes null for what is not wanted.
    let rc = unsafe { libc::openpty(&raw mut near, &raw mut far, none, none.cast(), none.cast()) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    for fd in [near, far] {
        // SAFETY: the descriptors are open; the flag is an integer.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: both are open, and nobody else has them.
    Ok(unsafe { (OwnedFd::from_raw_fd(near), OwnedFd::from_raw_fd(far)) })
}
