//! Real keepalived: a virtual IP that moves between netns by VRRP.

use std::process::{Child, Command, Stdio};

use crate::poll::until;
use crate::{Lab, Netns, need, sys};

const PROGRAM: &str = "/usr/sbin/keepalived";

/// Why it cannot run here.
#[must_use]
pub fn missing() -> Option<String> {
    need::absent(PROGRAM)
}

/// One router of a group, in its own netns. Stopped as by an operator when dropped: it takes the virtual IP away.
#[derive(Debug)]
pub struct Keepalived(Child);

impl Keepalived {
    /// Starts it on `eth0` of a netns. Of the routers that run, the one with the highest `priority` has `vip`.
    #[must_use]
    pub fn start(lab: &Lab, netns: &Netns, vip: &str, priority: u8) -> Self {
        Self::start_with(lab, netns, vip, priority, "")
    }

    /// Like `start`, with `use_vmac`: the virtual IP is on a macvlan device of its own, with the MAC of RFC 5798.
    #[must_use]
    pub fn start_with_vmac(lab: &Lab, netns: &Netns, vip: &str, priority: u8) -> Self {
        Self::start_with(lab, netns, vip, priority, "  use_vmac vrrp51\n  vmac_xmit_base\n")
    }

    fn start_with(lab: &Lab, netns: &Netns, vip: &str, priority: u8, more: &str) -> Self {
        let dir = lab.subdir(&format!("keepalived-{vip}-{priority}"));
        let file = dir.join("keepalived.conf");
        std::fs::write(&file, configuration(vip, priority, more)).expect("write the configuration");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", netns.path().display())).arg(PROGRAM);
        command.args([
            "--dont-fork",
            "--log-console",
            "--no-syslog",
            "--dont-respawn",
            "--vrrp",
            "--use-file",
        ]);
        command.arg(&file);
        for (option, name) in [("--pid", "pid"), ("--vrrp_pid", "vrrp.pid")] {
            command.arg(option).arg(dir.join(name));
        }
        let log = std::fs::File::create(dir.join("log")).expect("open a file");
        let errors = log.try_clone().expect("a second handle");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        Self(command.spawn().expect("run keepalived"))
    }

    /// Waits until a netns has this IP or not.
    #[track_caller]
    pub fn await_vip(netns: &Netns, vip: &str, wanted: bool) {
        let what = format!("{} has {vip}: {wanted}", netns.name());
        let address = format!(" {vip}/");
        until(&what, 20, || netns.ip("-4 addr show").contains(&address) == wanted);
    }
}

/// Three advertisements in 0.6 s that do not come make the other one the master.
fn configuration(vip: &str, priority: u8, more: &str) -> String {
    let device = if more.is_empty() { " dev eth0" } else { "" };
    format!(
        "global_defs {{\n  vrrp_version 3\n  script_user root\n}}\n\
         vrrp_instance test {{\n  state BACKUP\n  interface eth0\n  virtual_router_id 51\n  \
         priority {priority}\n  advert_int 0.2\n{more}  virtual_ipaddress {{\n    {vip}/32{device}\n  }}\n}}\n"
    )
}

impl Drop for Keepalived {
    fn drop(&mut self) {
        let _ = sys::kill(self.0.id(), libc::SIGTERM);
        for _ in 0..250 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
