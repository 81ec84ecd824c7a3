//! Netns of a test's own, created by forking `unshare -n`; each ends with its process.

use std::process::{Child, Command, Stdio};

/// Whether this test may create netns. Prints a line if not, so that a skip is not a silent pass.
pub(crate) fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// A netns held by a sleeping process.
pub(in crate::sources) struct Netns(Child);

impl Netns {
    pub(in crate::sources) fn new() -> Self {
        let child =
            Command::new("unshare").args(["-n", "sleep", "60"]).stdout(Stdio::null()).spawn();
        let netns = Self(child.expect("unshare"));
        let host = std::fs::read_link("/proc/self/ns/net").unwrap();
        let own = format!("/proc/{}/ns/net", netns.pid());
        // Wait for fork, unshare and exec.
        for _ in 0..2_000 {
            let comm = super::super::super::bounded::read_text(
                format!("/proc/{}/comm", netns.pid()).as_ref(),
                64,
            );
            if std::fs::read_link(&own).unwrap() != host && comm.unwrap() == "sleep\n" {
                return netns;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("unshare did not unshare");
    }

    pub(in crate::sources) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(in crate::sources) fn inode(&self) -> u32 {
        let link = std::fs::read_link(format!("/proc/{}/ns/net", self.pid())).unwrap();
        let text = link.to_str().unwrap();
        text.trim_start_matches("net:[").trim_end_matches(']').parse().unwrap()
    }

    /// Runs `ip` with these words in this netns.
    pub(in crate::sources) fn ip(&self, words: &str) {
        let pid = self.pid().to_string();
        run(Command::new("nsenter").args(["-n", "-t", &pid, "ip"]).args(words.split_whitespace()));
    }

    /// Creates a veth: `eth0` here, and `host` in the netns of the calling process.
    pub(in crate::sources) fn veth(&self, host: &str) {
        let add = format!("link add {host} type veth peer name eth0 netns {}", self.pid());
        run(Command::new("ip").args(add.split_whitespace()));
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this kernel supports a kind of device; prints a line if not. Needs a netns of the test's own.
pub(in crate::sources) fn has_device(words: &str) -> bool {
    let add = ["link", "add", "probe"].into_iter().chain(words.split_whitespace());
    let has = Command::new("ip").args(add).output().expect("ip").status.success();
    if has {
        ip("link del probe");
    } else {
        eprintln!("skipped: this kernel has no {words}");
    }
    has
}

pub(crate) fn ip(words: &str) {
    run(Command::new("ip").args(words.split_whitespace()));
}

pub(in crate::sources) fn run(command: &mut Command) {
    let output = command.output().expect("to start it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

/// Runs `work` in its own thread and its own netns, which lasts as long as what `work` leaves open.
pub(crate) fn in_new_netns<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let inside = move || {
        // SAFETY: moves this thread alone to a new netns; nothing else of the process changes.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        work()
    };
    std::thread::spawn(inside).join().expect("the work to be done")
}
