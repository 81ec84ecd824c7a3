//! The processes that must be found: each sits in a netns with an IP and cannot get out.

use crate::fuse::Hung;
use crate::proc::View;
use crate::role::{Helper, Role, Running};
use crate::{Lab, Netns, sys};

/// How it came to hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Reads, and is killed with SIGKILL meanwhile.
    KilledReader,
    /// Reads, and another of its threads calls `exit_group()` meanwhile: no signal is sent, by nobody.
    GroupExit,
    /// Hangs in `exit(0)`, closing its file.
    Exit,
    /// Hangs in the exit that a thread-directed SIGKILL brought, as `cgroup.kill` sends it.
    ThreadKill,
    /// Hangs in the exit that SIGTERM brought.
    Term,
    /// Hangs in the exit that `kill -9` brought.
    Kill,
}

impl How {
    /// All of them.
    pub const ALL: [How; 6] =
        [How::KilledReader, How::GroupExit, How::Exit, How::ThreadKill, How::Term, How::Kill];

    /// The last signal it was sent was SIGKILL.
    #[must_use]
    pub fn by_sigkill(self) -> bool {
        matches!(self, How::KilledReader | How::ThreadKill | How::Kill)
    }

    /// The task shows `PF_EXITING`; the reader does not get that far.
    #[must_use]
    pub fn exits(self) -> bool {
        !self.reads()
    }

    /// It hangs in a read, not in its exit.
    fn reads(self) -> bool {
        matches!(self, How::KilledReader | How::GroupExit)
    }
}

/// The usual one: killed with SIGKILL, in a netns of its own with the lab's first IP. It hangs in its exit.
#[derive(Debug)]
pub struct Stuck {
    /// The process.
    pub helper: Running,
    /// Its netns.
    pub netns: Netns,
    /// The file system that it hangs on.
    pub hung: Hung,
}

impl Stuck {
    /// One that does not hang yet.
    #[must_use]
    pub fn about_to_be(lab: &Lab) -> Self {
        let mut hung = Hung::mount(lab);
        let netns = Netns::new(lab, "stuck");
        netns.veth_to_host();
        netns.add_address(&lab.cidr(1), "eth0");
        let helper = start(How::Kill, &netns, &mut hung);
        Self { helper, netns, hung }
    }

    /// One that hangs.
    #[must_use]
    pub fn new(lab: &Lab) -> Self {
        let mut stuck = Self::about_to_be(lab);
        stuck.hang();
        stuck
    }

    /// Has it hang.
    pub fn hang(&mut self) {
        hang(How::Kill, &mut self.helper);
    }
}

/// Starts one in `netns`, not hanging yet.
#[must_use]
pub fn start(how: How, netns: &Netns, hung: &mut Hung) -> Running {
    start_as(how, netns, hung, |helper| helper)
}

/// The same with more said about the process.
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

/// Makes it hang, and returns when `/proc` shows that it does.
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
    // stat, status and wchan are separate reads: the look that is returned must have come after the
    // task had fallen asleep.
    crate::eventually("the process hangs", 5, || {
        View::leader(pid).filter(|view| {
            view.wchan == "request_wait_answer"
                && matches!(view.state, 'S' | 'D')
                && if how.exits() { view.exiting() } else { view.killed() && view.state == 'D' }
        })
    })
}
