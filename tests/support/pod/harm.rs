//! Failures of a containerd and its pods on nodes: a shim dies or hangs, the daemon is killed, its state is lost.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Containerd, Pod, PodSandbox, place};
use crate::fuse::{self, Hung};
use crate::poll::until;
use crate::{Suite, proc, sweep, sys};

impl Pod {
    /// Kills its process, which reads a file that never answers, and waits until it hangs.
    pub fn hang(&self, hung: &mut Hung) {
        hung.hang(self.pid);
    }

    /// Whether its process was killed and still hangs.
    #[must_use]
    pub fn hangs(&self) -> bool {
        fuse::hangs(self.pid)
    }
}

/// A stopped shim (SIGSTOP). Continues when this is dropped.
#[derive(Debug)]
pub struct StoppedShim(u32);

impl Drop for StoppedShim {
    fn drop(&mut self) {
        let _ = sys::kill(self.0, libc::SIGCONT);
    }
}

impl Containerd<'_> {
    /// The pod's shim: the parent of its processes.
    #[must_use]
    pub fn shim_of(&self, pod: &PodSandbox) -> u32 {
        proc::parent_of(pod.pause).expect("a parent")
    }

    /// Kills containerd: nobody cleans up after what dies meanwhile.
    pub fn crash(&mut self) {
        super::sweep::note_shims(self.lab, &self.dir.join("state"));
        self.own().kill().expect("kill containerd");
        self.own().wait().expect("wait for containerd");
    }

    /// Restarts containerd, which restores its state.
    pub fn restart(&mut self) {
        // containerd does not remove a stale socket before it binds its own.
        let _ = fs::remove_file(&self.socket);
        self.child = Some(place::spawn(&self.dir, self.node.as_deref(), self.programs));
        self.await_ready();
    }

    /// Replaces it by the containerd of another suite, which takes over state and pods, as an upgrade of the package
    /// does: SIGTERM to the old one, the shims and pods run on.
    pub fn upgrade(&mut self, to: Suite) {
        sys::kill(self.pid(), libc::SIGTERM).expect("stop containerd");
        self.own().wait().expect("wait for containerd");
        self.programs.suite = Some(to);
        self.restart();
    }

    /// Removes its state while it is not running, and the node's state for it below `/run`: as after a reboot, or by
    /// a desperate administrator. Netns, their mounts and CNI's reservations stay.
    pub fn wipe(&mut self) {
        for part in ["root", "state"] {
            sweep::unmount_below(&self.dir.join(part), |_| true);
            fs::remove_dir_all(self.dir.join(part)).expect("remove its state");
        }
        super::sweep::remove_runc_state(self.lab.tag());
    }

    /// After [`Containerd::wipe`]: starts with no state. Returns the time since which it answers.
    pub fn restart_empty(&mut self) -> Instant {
        self.restart();
        let since = Instant::now();
        self.import_image();
        since
    }

    /// Kills only the pod's shim and its pause process.
    pub fn kill_shim_and_pause(&self, pod: &PodSandbox) {
        self.kill_all(&[self.shim_of(pod), pod.pause]);
    }

    /// Kills the pod's shim and all its children.
    pub fn kill_shim_and_children(&self, pod: &PodSandbox) {
        let shim = self.shim_of(pod);
        let children = proc::children(shim);
        self.kill_all(&[&[shim], children.as_slice()].concat());
    }

    /// The shim first: otherwise it would reap the others and report them to containerd.
    fn kill_all(&self, pids: &[u32]) {
        for pid in pids {
            let _ = sys::kill(*pid, libc::SIGKILL);
        }
        for pid in pids {
            until("a killed process is gone", 10, || !proc::is_alive(*pid));
        }
    }

    /// Removes a container from runc's state, as if its `/run` were cleaned: a containerd that restores its state
    /// then cannot kill the container's processes.
    pub fn forget_in_runc(&self, id: &str) {
        let _ = fs::remove_dir_all(super::sweep::runc_state(id));
    }

    /// Stops the pod's shim: it reaps nothing and answers nothing.
    #[must_use]
    pub fn stop_shim(&self, pod: &PodSandbox) -> StoppedShim {
        let shim = self.shim_of(pod);
        sys::kill(shim, libc::SIGSTOP).expect("stop the shim");
        StoppedShim(shim)
    }

    /// Directory of its programs, which must not be shared.
    fn own_bin(&self) -> PathBuf {
        assert!(self.slot.is_none(), "a containerd of the test's own: needs [Containerd]");
        self.dir.join("bin")
    }

    /// Makes every DEL fail, or no longer.
    pub fn fail_del(&self, fails: bool) {
        let file = self.own_bin().join("bridge.fail");
        if fails {
            fs::write(file, "").expect("write a file");
        } else {
            let _ = fs::remove_file(file);
        }
    }

    /// Makes every ADD or DEL, or with `runc` every start of a process, take this long; zero ends that.
    pub fn slow_down(&self, program: Slow, by: Duration) {
        let name = match program {
            Slow::Add => "bridge.slow",
            Slow::Reserve => "host-local.slow",
            Slow::Release => "host-local.slow-del",
            Slow::Create => "runc.slow",
        };
        let file = self.own_bin().join(name);
        if by.is_zero() {
            let _ = fs::remove_file(file);
        } else {
            fs::write(file, by.as_secs_f32().to_string()).expect("write a number");
        }
    }
}

/// A step in the creation of a pod that can be slowed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slow {
    /// The CNI ADD, after the IP is up.
    Add,
    /// The IPAM plugin's part of the ADD, after the IP is reserved.
    Reserve,
    /// The IPAM plugin's part of a DEL, after the IP is free; the main plugin removes the device after it.
    Release,
    /// runc's `create`, of pause and container: between ADD and the first task in the netns.
    Create,
}
