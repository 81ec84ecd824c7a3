//! The processes that must be found: each is in a netns with an IP and hangs.

use crate::fuse::Hung;
use crate::proc::View;
use crate::role::{Helper, Role, Running};
use crate::{Lab, Netns, sys};

/// How a process came to hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It reads, and is killed by SIGKILL.
    KilledReader,
    /// It reads, and another of its threads calls `exit_group()`; no signal is sent.
    GroupExit,
    /// It hangs in `exit(0)`, closing its file.
    Exit,
    /// It hangs in its exit after a SIGKILL directed at a thread, as sent by `cgroup.kill`.
    ThreadKill,
    /// It hangs in its exit after SIGTERM.
    Term,
    /// It hangs in its exit after `kill -9`.
    Kill,
}

impl How {
    pub const ALL: [How; 6] =
        [How::KilledReader, How::GroupExit, How::Exit, How::ThreadKill, How::Term, How::Kill];

    /// Whether the last signal was SIGKILL.
    #[must_use]
    pub fn by_sigkill(self) -> bool {
        matches!(self, How::KilledReader | How::ThreadKill | How::Kill)
    }

    /// Whether the task shows `PF_EXITING`; the readers do not get that far.
    #[must_use]
    pub fn exits(self) -> bool {
        !self.reads()
    }

    /// Whether it hangs in a read instead of its exit.
    fn reads(self) -> bool {
        matches!(self, How::KilledReader | How::GroupExit)
    }
}

/// The usual case: killed with SIGKILL, in its own netns with the lab's first IP. It hangs in its exit.
#[derive(Debug)]
pub struct Stuck {
    pub helper: Running,
    pub netns: Netns,
    /// The file system on which it hangs.
    pub hung: Hung,
}

impl Stuck {
    /// A process that does not hang yet.
    #[must_use]
    pub fn about_to_be(lab: &Lab) -> Self {
        let mut hung = Hung::mount(lab);
        let netns = Netns::new(lab, "stuck");
        netns.veth_to_host();
        netns.add_address(&lab.cidr(1), "eth0");
        let helper = start(How::Kill, &netns, &mut hung);
        Self { helper, netns, hung }
    }

    /// A process that hangs.
    #[must_use]
    pub fn new(lab: &Lab) -> Self {
        let mut stuck = Self::about_to_be(lab);
        stuck.hang();
        stuck
    }

    /// Makes the process hang.
    pub fn hang(&mut self) {
        hang(How::Kill, &mut self.helper);
    }
}

/// Starts a process in `netns` that does not hang yet.
#[must_use]
pub fn start(how: How, netns: &Netns, hung: &mut Hung) -> Running {
    start_as(how, netns, hung, |helper| helper)
}

/// Like [`start`], with further options of the process.
#[must_use]
pub fn start_as<'a>(
    how: How,
    netns: &'a Netns,
    hung: &mut Hung,
    more: impl FnOnce(Helper<'a>) -> Helper<'a>,
) -> Running {
    let file = hung.file();
    let role = match how {
        How::KilledReader => Role::Reader,
        How::GroupExit => Role::HungLeader,
        _ => Role::Opener,
    };
    let helper = more(Helper::new(role).inside(netns)).arg(&file).start();
    if how.reads() {
        hung.await_read();
    }
    helper
}

/// Makes the process hang, and returns when `/proc` shows it.
pub fn hang(how: How, helper: &mut Running) -> View {
    match how {
        How::KilledReader | How::Kill => helper.signal(libc::SIGKILL),
        How::Exit | How::GroupExit => helper.tell("exit"),
        How::ThreadKill => {
            sys::tgkill(helper.pid(), helper.pid(), libc::SIGKILL).expect("signal a thread");
        }
        How::Term => helper.signal(libc::SIGTERM),
    }
    let pid = helper.pid();
    // stat, status and wchan are separate reads: the look that is returned must be entirely after the task fell
    // asleep.
    crate::eventually("the process hangs", 5, || {
        View::leader(pid).filter(|view| {
            view.wchan == "request_wait_answer"
                && matches!(view.state, 'S' | 'D')
                && if how.exits() { view.exiting() } else { view.killed() && view.state == 'D' }
        })
    })
}
