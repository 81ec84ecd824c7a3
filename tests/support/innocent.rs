//! Processes that look like trouble but are not: no finding may ever be opened for them.

use crate::cgroup::Freezer;
use crate::fuse::Hung;
use crate::poll::until;
use crate::proc::View;
use crate::role::{Helper, Role, Running};
use crate::{Lab, Netns};

/// A process and what keeps it in its state. The fields are dropped in this order: a cgroup can only be removed when
/// it is empty.
#[derive(Debug)]
pub struct Innocent {
    pub helper: Running,
    freezer: Option<Freezer>,
}

impl Innocent {
    fn plain(helper: Running) -> Self {
        Self { helper, freezer: None }
    }
}

impl Drop for Innocent {
    fn drop(&mut self) {
        if let Some(freezer) = &self.freezer {
            freezer.thaw();
        }
    }
}

/// Frozen by the v1 freezer. With `killed`, SIGKILL is pending until the thaw: then it looks exactly like a stuck
/// task (state D, SIGKILL pending), except for `__refrigerator`.
#[must_use]
pub fn frozen_v1(lab: &Lab, netns: &Netns, killed: bool) -> Innocent {
    let freezer = Freezer::v1(lab);
    let helper = Helper::new(Role::Park).inside(netns).start();
    freezer.freeze(helper.pid());
    if killed {
        helper.signal(libc::SIGKILL);
    }
    Innocent { helper, freezer: Some(freezer) }
}

/// Frozen by cgroup v2.
#[must_use]
pub fn frozen_v2(lab: &Lab, netns: &Netns) -> Innocent {
    let freezer = Freezer::v2(lab);
    let helper = Helper::new(Role::Park).inside(netns).start();
    freezer.freeze(helper.pid());
    Innocent { helper, freezer: Some(freezer) }
}

/// Waits for its vfork child: state D.
#[must_use]
pub fn vfork_parent(netns: &Netns) -> Innocent {
    let helper = Helper::new(Role::Vfork).inside(netns).start();
    until("the vfork parent waits", 5, || {
        View::leader(helper.pid()).is_some_and(|view| view.wchan == "kernel_clone")
    });
    Innocent::plain(helper)
}

/// Stopped by SIGSTOP.
#[must_use]
pub fn stopped(netns: &Netns) -> Innocent {
    let helper = Helper::new(Role::Park).inside(netns).start();
    helper.signal(libc::SIGSTOP);
    until("the process is stopped", 5, || state(&helper) == Some('T'));
    Innocent::plain(helper)
}

/// Dumps core endlessly, into a file system that does not answer.
#[must_use]
pub fn dumping_core(netns: &Netns, hung: &Hung) -> Innocent {
    let mut helper = Helper::new(Role::Dumper).inside(netns).dir(hung.dir()).start();
    helper.tell("dump");
    until("the process dumps core", 5, || {
        View::leader(helper.pid()).is_some_and(|view| view.core_dumping)
    });
    Innocent::plain(helper)
}

/// Uses all the CPU that it gets.
#[must_use]
pub fn busy(netns: &Netns) -> Innocent {
    Innocent::plain(Helper::new(Role::Busy).inside(netns).start())
}

/// Has exited but was not reaped: it holds no netns.
#[must_use]
pub fn zombie(netns: &Netns) -> Innocent {
    let mut helper = Helper::new(Role::Exiter).inside(netns).start();
    helper.tell("exit");
    until("the process is a zombie", 5, || state(&helper) == Some('Z'));
    Innocent::plain(helper)
}

fn state(helper: &Running) -> Option<char> {
    View::leader(helper.pid()).map(|view| view.state)
}
